"""Beds that do not come up or whose owner is killed: what is refused says why, and nothing is left."""

import concurrent.futures
import os
import signal
import subprocess
import sys
import time

from bed import CLEAN_UP_LIMIT, IMAGE, require_bed, traces, wait_for_no_traces
from lab_harness import TENSORLANE, tensorlane


def expect_error(arguments, exit_status, line):
    done = tensorlane("lab", "up", *arguments, check=False)
    assert (done.returncode, done.stderr) == (exit_status, f"tensorlane: error: {line}\n"), done


def test_what_is_refused():
    expect_error(["--rdma", "--hosts", "1"], 2, "1 hosts with --rdma: --hosts: expected 2 to 4")
    expect_error(["--rdma", "--hosts", "5"], 2, "5 hosts with --rdma: --hosts: expected 2 to 4")
    expect_error(["--rdma", "--vlan", "4095"], 2, "VLAN 4095: --vlan: expected 1 to 4094")
    expect_error(["--rdma", "--memory", "16"], 2, "16 MiB for each guest: --memory: expected 256 to 8192 MiB")
    expect_error(["--vlan", "7"], 2, "--vlan requires --rdma: tensorlane lab up: see `tensorlane lab up --help`")
    expect_error(["--rdma", "--guest", "/no/such"], 1, "no guest to start: /no/such/vmlinux: No such file or directory: "
                 "run deploy/install-deps rdma-vm, or name its folder with --guest")


def test_a_guest_that_cannot_start_leaves_nothing(folder=f"/tmp/tl-guest-{os.getpid()}"):
    name = f"t{os.getpid()}x"
    os.mkdir(folder)
    try:
        os.symlink(f"{IMAGE}/vmlinux", f"{folder}/vmlinux")
        with open(f"{folder}/initrd", "w") as file:
            file.write("no archive")
        done = tensorlane("lab", "up", "--rdma", "--hosts", "2", "--name", name, "--guest", folder, check=False, timeout=150)
        assert done.returncode == 1 and done.stderr.startswith("tensorlane: error: the guest of host 'h0' is gone: "), done
        wait_for_no_traces(name, CLEAN_UP_LIMIT)
    finally:
        for file in os.listdir(folder):
            os.unlink(f"{folder}/{file}")
        os.rmdir(folder)


def test_killed_while_it_starts():
    name = f"t{os.getpid()}k"
    starter = subprocess.Popen([TENSORLANE, "lab", "up", "--rdma", "--hosts", "2", "--name", name])
    while sum("qemu" in trace for trace in traces(name)) < 2:
        assert starter.poll() is None
        time.sleep(0.1)
    starter.kill()
    starter.wait()
    wait_for_no_traces(name, CLEAN_UP_LIMIT)


def test_killed_owner():
    name = f"t{os.getpid()}o"
    # What a test is: a process that owns a bed, and is then killed with its whole group.
    owner = subprocess.Popen(["sh", "-c", f"{TENSORLANE} lab up --rdma --hosts 2 --name {name} --owner $$ && echo up && sleep 600"],
                             stdout=subprocess.PIPE, text=True, start_new_session=True)
    while (line := owner.stdout.readline()) != "up\n":
        assert line, "the bed did not start"
    os.killpg(owner.pid, signal.SIGKILL)
    owner.wait()
    wait_for_no_traces(name, CLEAN_UP_LIMIT)


def timed(test):
    begin = time.monotonic()
    test()
    print(f"ok {test.__name__} {time.monotonic() - begin:.1f} s", flush=True)


def main():
    require_bed()
    tests = [test for name, test in globals().items() if name.startswith("test_")]
    with concurrent.futures.ThreadPoolExecutor(len(tests)) as pool:  # beds of different names do not meet
        for done in [pool.submit(timed, test) for test in tests]:
            done.result()


if __name__ == "__main__":
    sys.exit(main())
