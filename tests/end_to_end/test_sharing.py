"""Two jobs that call everything urgent share a host's class evenly, though one sends to two hosts and the other to one; and what a job sends beyond the
limit of its host's daemon.yaml goes in the next class and is counted."""

import subprocess
import sys
import time

from daemons import BIN, BUILD, Daemons, Lab, expect, outputs, require_namespaces, wait_for

MESSAGE = f"{BUILD}/tests/message"
MIB = 1 << 20
SECONDS = 4.0
LIMIT = 100e6


def counts(daemons):
    """Bytes on h0 by (job, class, "sent_bytes" or "demoted_bytes")."""
    jobs = daemons.status("h0")["lane"]["jobs"]
    return {(job["name"], cls["name"], key): cls[key] for job in jobs for cls in job["classes"] for key in ("sent_bytes", "demoted_bytes")}


def rates(daemons):
    """The same in bits per second, over SECONDS."""
    before, begin = counts(daemons), time.monotonic()
    time.sleep(SECONDS)
    after, passed = counts(daemons), time.monotonic() - begin
    return {name: (after[name] - before[name]) * 8 / passed for name in after}


def wait_until_sending(daemons, jobs):
    """A job starts when all of its ranks have: on a busy machine, seconds after the other one."""
    wait_for(lambda: all(counts(daemons).get((job, "urgent", "sent_bytes"), 0) > MIB for job in jobs), f"not all of {jobs} send")


def finish(ranks):
    results = outputs(ranks, 60)
    expect(all(status == 0 for _, status in results), f"a job failed: {results}")


def main():
    require_namespaces()
    with Lab(policy="strict", hosts=3) as lab:
        with Daemons(3, lab=lab, settings={"pattern": "parameter_server"}) as daemons:
            many = daemons.job("many", [MESSAGE, "flood", str(4 * MIB), "12", "1.0"], hosts=["h0", "h1", "h2"])
            few = daemons.job("few", [MESSAGE, "flood", str(8 * MIB), "12", "1.0"], hosts=["h0", "h2"])
            wait_until_sending(daemons, ["many", "few"])
            found = rates(daemons)
            finish(many + few)
            most, least = found["many", "urgent", "sent_bytes"], found["few", "urgent", "sent_bytes"]
            print(f"many peers {most * 1e-6:.0f} Mbit/s, few {least * 1e-6:.0f} Mbit/s")
            expect(most + least > 300e6, "the jobs do not fill the link")
            expect(0.4 <= most / (most + least) <= 0.6, "the jobs do not share evenly")
            expect(sum(found[name] for name in found if name[2] == "demoted_bytes") == 0, "bytes are demoted without a limit")

        with Daemons(3, lab=lab, settings={"job_limits": "[{class: urgent, rate: 100 Mbit/s, burst: 1 MiB}]"}) as daemons:
            ranks = daemons.job("limited", [MESSAGE, "flood", str(8 * MIB), "8", "1.0"], hosts=["h0", "h1"])
            wait_until_sending(daemons, ["limited"])
            found = rates(daemons)
            text = subprocess.run([f"{BIN}/tensorlane", "status", "--socket", daemons.socket("h0")], capture_output=True, text=True, check=True).stdout
            finish(ranks)
            urgent, bulk, demoted = (found["limited", cls, key] for cls, key in
                                     (("urgent", "sent_bytes"), ("bulk", "sent_bytes"), ("urgent", "demoted_bytes")))
            print(f"limited to 100 Mbit/s: urgent {urgent * 1e-6:.0f} Mbit/s, bulk {bulk * 1e-6:.0f} Mbit/s, demoted {demoted * 1e-6:.0f} Mbit/s")
            # Within the time of a status and an operation at either end.
            expect(urgent <= 1.1 * LIMIT, "more is urgent than the limit allows")
            expect(urgent >= 0.7 * LIMIT, "less is urgent than the limit allows")
            expect(bulk > LIMIT and demoted > LIMIT, "what exceeds the limit does not go in the next class")
            expect("bytes of class urgent were demoted" in text, f"the status does not say it: {text}")


if __name__ == "__main__":
    sys.exit(main())
