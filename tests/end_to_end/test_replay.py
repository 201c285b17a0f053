"""Two daemons record what goes into their engines, over jobs that end well, a job that is aborted, and a daemon that is killed. Every log replays to
the digests that the daemon wrote down; one that was changed does not, though its checksums are right; one that was damaged, or comes from another
version, is refused by name."""

import glob
import json
import os
import signal
import stat
import struct
import subprocess
import sys

from daemons import BIN, BUILD, Daemons, expect, outputs, wait_for

MESSAGE = f"{BUILD}/tests/message"
OVERTAKE = f"{BUILD}/tests/overtake"
FILE_HEAD, BLOCK_HEAD = 16, 36
FIRST_EVENT = 16


def replay(*files):
    """Exit status, the parsed --json or None, and the error text."""
    done = subprocess.run([os.path.join(BIN, "tensorlane"), "replay", "--json", *files], capture_output=True, text=True, timeout=60)
    return done.returncode, json.loads(done.stdout) if done.stdout else None, done.stderr


def logs(daemons, job=""):
    return sorted(glob.glob(os.path.join(daemons.folder, f"{job}*.tllog")))


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def blocks(log):
    """Where each block begins, and the length of its payload."""
    at, found = FILE_HEAD, []
    while at < len(log):
        length = struct.unpack_from("<I", log, at + 4)[0]
        found.append((at, length))
        at += BLOCK_HEAD + length
    return found


def with_changed_time(log):
    """The log with the time of one event moved by some nanoseconds, and checksums that are right."""
    changed = bytearray(log)
    for at, length in blocks(log)[1:]:
        payload = at + BLOCK_HEAD
        if log[payload] < FIRST_EVENT:
            continue
        changed[payload + 1] ^= 0x04  # behind the kind: the low bits of the time
        struct.pack_into("<I", changed, at + 20, crc32c(changed[payload:payload + length]))
        struct.pack_into("<I", changed, at + 32, crc32c(changed[at:at + 32]))
        return bytes(changed)
    raise AssertionError("no block begins with an event")


def expect_equal(files, complete):
    code, said, error = replay(*files)
    expect(code == 0 and said and said["equal"], f"replay of {files}: status {code}: {said} {error}")
    for log in said["logs"]:
        expect(log["equal"] and log["events"] > 10 and log["picks"] > 5 and log["plans"] >= 1 and log["seconds"] > 0, f"{log}")
        expect(log["complete"] or not complete, f"{log}")
    return said["logs"]


def check_changes(daemons, path):
    with open(path, "rb") as file:
        log = file.read()

    def try_with(data):
        with open(os.path.join(daemons.folder, "changed.tllog"), "wb") as file:
            file.write(data)
        return replay(file.name)

    code, said, error = try_with(log)
    expect(code == 0 and said["logs"][0]["complete"], f"a copy: {code} {error}")
    code, said, error = try_with(with_changed_time(log))
    parting = said["logs"][0].get("parting", {})
    expect(code == 1 and not said["equal"] and parting.get("checkpoint", 0) >= 2 and "recorded_digest" in parting, f"a changed event: {code} {said} {error}")
    middle = len(log) // 2
    code, said, error = try_with(log[:middle] + bytes([log[middle] ^ 1]) + log[middle + 1:])
    expect(code == 1 and said is None and "checksum" in error and "changed.tllog" in error, f"a damaged block: {code} {error}")
    code, said, error = try_with(log[:-5])
    expect(code == 0 and said["equal"] and said["logs"][0]["cut_off_bytes"] > 0 and not said["logs"][0]["complete"], f"a log that was cut off: {code} {said} {error}")
    code, said, error = try_with(log[:8] + struct.pack("<I", 9) + log[12:])
    expect(code == 1 and "version 9" in error, f"another version: {code} {error}")
    code, said, error = try_with(b"#!/bin/sh\n" * 10)
    expect(code == 1 and "no log of an engine" in error, f"another file: {code} {error}")
    code, _, error = replay(path + ".missing")
    expect(code == 2 and "cannot read the log" in error, f"a missing file: {code} {error}")


def main():
    with Daemons(2, settings={"record": "{folder}", "detection": "2 s"}) as daemons:
        # Closed: sums of both kinds of length.
        for name, size, urgency in (("small", "4096", "1.0"), ("large", "8388608", "0.0")):
            for index, (text, code) in enumerate(outputs(daemons.job(name, [MESSAGE, "sum", size, "20", urgency]), 40)):
                expect(code == 0, f"{name}: rank {index} ended with status {code}: {text}")
        # Aborted in the middle of bulk and urgent operations.
        ranks = daemons.job("aborted", [OVERTAKE, str(1 << 28), "65536", "50"])
        expect(ranks[0].stdout.readline().startswith("post "), "the job of two classes did not start")
        ranks[1].kill()
        wait_for(lambda: all("job 'aborted' has failed" in daemons.log(name) for name in daemons.names), "the end of the job")
        ranks[0].kill()
        for name in ("small", "large", "aborted"):
            wait_for(lambda: len(logs(daemons, name)) == 2 and all(log["complete"] for log in replay(*logs(daemons, name))[1]["logs"]), f"the end of job {name}")
        all_logs = logs(daemons)
        expect(all(stat.S_IMODE(os.stat(path).st_mode) == 0o600 for path in all_logs), "others may read the logs")
        replayed = expect_equal(all_logs, complete=True)
        # A daemon that is killed leaves a log to its last tenth of a second.
        ranks = daemons.job("killed", [MESSAGE, "loop", "1048576", "30", "0.5"])
        expect(ranks[0].stdout.readline() == "running\n", "the last job did not start")
        wait_for(lambda: all(os.stat(path).st_size > 20000 for path in logs(daemons, "killed")), "a log of the running job")
        os.kill(daemons.pid("h1"), signal.SIGKILL)
        outputs(ranks, 20)
        killed = expect_equal([path for path in logs(daemons, "killed") if "-h1-" in path], complete=False)[0]
        expect(not killed["complete"], f"{killed}")
        check_changes(daemons, next(path for path in all_logs if os.path.basename(path).startswith("large")))
        for name in daemons.names:
            expect("engine log" not in daemons.log(name), daemons.log(name))
    events = sum(log["events"] for log in replayed)
    print(f"{len(replayed)} logs of {events} events and {sum(log['picks'] for log in replayed)} picks replay to the same digests; "
          f"that of a killed daemon {killed['seconds']:.1f} s long: {killed['ending']}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
