"""A job runs while its daemons have nothing but what the installed unit leaves them: restricted.py says what of it is emulated.

    test_restricted.py BUILD [dpdk]     over TCP, or over DPDK's shared memory"""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.request

from daemons import BIN, BUILD, Daemons, expect, outputs, skip

UID = 64001
HERE = os.path.dirname(os.path.abspath(__file__))
MESSAGE = os.path.join(BUILD, "tests", "message")


class RestrictedDaemons(Daemons):
    def __init__(self, unit, *arguments, **options):
        super().__init__(*arguments, **options)
        self.unit = unit

    def write_fabric(self):
        super().write_fabric()
        for file in [self.folder, *(os.path.join(self.folder, name + ".secret") for name in self.names)]:
            os.chown(file, UID, UID)
        os.chmod(self.folder, 0o755)

    def on_host(self, name, command):
        if not command[0].endswith("tensorlaned"):
            return super().on_host(name, command)
        return [sys.executable, os.path.join(HERE, "restricted.py"), self.unit, str(UID), self.folder, *command]


class OneAfterTheOther(RestrictedDaemons):
    """A port whose other end is not there yet does not open."""

    def start(self, name):
        super().start(name)
        self.wait_ready(name)


def check_restrictions(pid):
    """What the kernel says of the daemon: the emulation did not pass it by."""
    with open(f"/proc/{pid}/status") as file:
        status = dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
    for key, value in {"CapEff": "0" * 16, "CapBnd": "0" * 16, "NoNewPrivs": "1", "Seccomp": "2", "Groups": " "}.items():
        expect(status[key].strip() == value.strip(), f"{key} of the daemon is {status[key]!r}")
    expect(os.stat(f"/proc/{pid}/environ").st_uid == 0, "the daemon can be dumped: its user's other processes can read the secrets in it")
    expect(status["Uid"].split() == [str(UID)] * 4, f"the daemon's users are {status['Uid']}")


def check_niceness(pid):
    """Who asks for spans takes no time of those who make them."""
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        if (task / "comm").read_text() == "spans\n":
            nice = int((task / "stat").read_text().rpartition(")")[2].split()[16])
            return expect(nice == 10, f"the niceness of the thread that answers for spans is {nice}")
    expect(False, "there is no thread that answers for spans")


def over_dpdk(unit):
    """A port without a NIC, and memory without huge pages, need nothing that the unit does not leave."""
    of_host = {name: {"transport": "dpdk", "dpdk": f"{{devices: ['net_memif0,role={role},id=0,socket={{folder}}/memif,socket-abstract=no'], eal: [--no-huge, -m, '256', --no-pci]}}"}
               for name, role in (("h0", "server"), ("h1", "client"))}
    with OneAfterTheOther(unit, 2, of_host=of_host, dpdk=of_host) as daemons:
        check_restrictions(daemons.pid("h0"))
        results = outputs(daemons.job("restricted", [MESSAGE, "loop", "65536", "1", "0"]), 60)
        expect(all(status == 0 for _, status in results), f"the job failed: {results}")
        expect("go over dpdk" in daemons.log("h0"), f"no flow over DPDK: {daemons.log('h0')}")
    print("good: a job over DPDK under the unit's restrictions")


def main():
    if os.geteuid() != 0 or os.uname().machine != "x86_64" or shutil.which("systemd-analyze") is None:
        skip("needs root on x86-64, and systemd-analyze")
    with tempfile.TemporaryDirectory() as prefix:
        subprocess.run(["cmake", "--install", BUILD, "--prefix", prefix], check=True, capture_output=True)
        unit = os.path.join(prefix, "lib/systemd/system/tensorlaned.service")
        if "dpdk" in sys.argv[2:]:
            return over_dpdk(unit)
        score = subprocess.run(["systemd-analyze", "security", "--offline=true", unit], capture_output=True, text=True).stdout
        exposure = float(re.search(r"Overall exposure level for \S+: ([0-9.]+)", score)[1])
        expect(exposure <= 2.5, f"the unit's exposure is {exposure}")
        settings = {"metrics": "127.0.0.1:0", "timeline": "{folder}/{host}.json", "record": ".", "cpu": "0"}
        with RestrictedDaemons(unit, 2, settings=settings) as daemons:
            for name in daemons.names:
                check_restrictions(daemons.pid(name))
                check_niceness(daemons.pid(name))
            results = outputs(daemons.job("restricted", [MESSAGE, "loop", "65536", "1", "0"]), 60)
            expect(all(status == 0 for _, status in results), f"the job failed: {results}")
            lane = daemons.status("h0")["lane"]
            expect(lane["sent_slices"] > 0, f"nothing went over TCP: {lane}")
            with urllib.request.urlopen(f"http://{lane['metrics']}/metrics", timeout=10) as answer:
                expect(b"tensorlane_jobs_started_total 1" in answer.read(), "the metrics do not tell of the job")
            for name in daemons.names:
                expect(not re.search(r" error |not permitted|denied", daemons.log(name)), f"log of {name}: {daemons.log(name)}")
                logs = [file for file in os.listdir(daemons.folder) if file.endswith(".tllog") and f"-{name}-" in file]
                expect(logs != [], f"no engine log of {name}")
            for child in daemons.children.values():
                child.terminate()
                expect(child.wait(timeout=10) == 0, "a daemon did not end well")
            spans = json.loads(pathlib.Path(daemons.folder, "h0.json").read_text())
            expect(any(span.get("name") == "QUEUE" and span["args"]["peer"] == "h1" for span in spans), "no span of the job in the timeline")
    print(f"good: exposure {exposure}, and a job over TCP under the unit's restrictions")


if __name__ == "__main__":
    if not os.path.exists(os.path.join(BIN, "tensorlaned")):
        skip(f"no {BIN}/tensorlaned")
    sys.exit(main())
