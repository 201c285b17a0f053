"""The Ansible role of deploy/ansible, with a real Ansible: compares without changing, applies where something differs, goes back where that fails, two
devices first. Devices are folders of this machine; scripts and SONiC's `config` are the test's, and write down what they were asked.

    test_ansible.py ANSIBLE_PLAYBOOK"""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

PLAYBOOK = pathlib.Path(__file__).resolve().parents[2] / "deploy" / "ansible" / "site.yml"
SCRIPTS = {
    "apply.sh": 'echo apply >>"$0.log"; echo "$WANTED" >"$0.state"',
    "verify.sh": 'echo verify >>"$(dirname "$0")/apply.sh.log"; [ "$(cat "$(dirname "$0")/apply.sh.state")" = "good" ] || { echo "eth0: pfc is off"; exit 1; }',
    "rollback.sh": 'echo rollback >>"$(dirname "$0")/apply.sh.log"; echo old >"$(dirname "$0")/apply.sh.state"',
}
CONFIG = '#!/bin/sh\necho "$*" >>"$(dirname "$0")/asked"\ncase "$*" in load*) exit ${LOAD_FAILS:-0} ;; esac\n'


class Fabric:
    """Devices in folders of `folder`."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)

    def device(self, name, files):
        configs = self.folder / "configs" / name
        configs.mkdir(parents=True)
        for file, text in files.items():
            (configs / file).write_text(text)

    def host(self, name, wanted="good"):
        self.device(name, {file: f"#!/bin/sh\nWANTED={wanted}\n{text}\n" for file, text in SCRIPTS.items()})
        place = self.folder / name
        place.mkdir()
        (place / "apply.sh.state").write_text("old\n")

    def state(self, name):
        return (self.folder / name / "apply.sh.state").read_text().strip()

    def log(self, name):
        log = self.folder / name / "apply.sh.log"
        return log.read_text().split() if log.exists() else []

    def run(self, hosts, *options, **environment):
        """(exit status, {device: tasks that changed it}, all that was printed)."""
        variables = {"tensorlane_configs": str(self.folder / "configs"), "ansible_connection": "local", "ansible_python_interpreter": sys.executable,
                     "tensorlane_folder": f"{self.folder}/{{{{ inventory_hostname }}}}", "tensorlane_sonic_file": str(self.folder / "sonic.json")}
        done = subprocess.run([sys.argv[1], "-i", ",".join(hosts) + ",", str(PLAYBOOK), "-e", json.dumps(variables), *options], capture_output=True, text=True, timeout=300,
                              env={**os.environ, "LC_ALL": "C.UTF-8", "ANSIBLE_LOCAL_TEMP": str(self.folder / "tmp"), "ANSIBLE_HOME": str(self.folder / "home"),
                                   "PATH": f"{self.folder}:{os.environ['PATH']}", **environment})
        text = done.stdout + done.stderr
        changed = {device: int(count) for device, count in re.findall(r"^(\w+) +: ok=\d+ +changed=(\d+)", done.stdout, re.MULTILINE)}
        return done.returncode, changed, text


APPLY = ("-e", "tensorlane_apply=true")


def compares_without_changing(fabric):
    fabric.host("h0")
    status, _, text = fabric.run(["h0"])
    assert status == 0 and "eth0: pfc is off" in text, text
    assert fabric.state("h0") == "old" and fabric.log("h0") == ["verify"], fabric.log("h0")


def applies_once(fabric):
    fabric.host("h0")
    status, _, text = fabric.run(["h0"], *APPLY)
    assert status == 0 and fabric.state("h0") == "good", text
    assert fabric.log("h0") == ["verify", "apply", "verify"], fabric.log("h0")
    status, changed, text = fabric.run(["h0"], *APPLY)
    assert status == 0 and changed == {"h0": 0}, text
    assert fabric.log("h0")[3:] == ["verify"], fabric.log("h0")


def stops_after_a_bad_pair(fabric):
    fabric.host("h0")
    fabric.host("h1", wanted="bad")
    fabric.host("h2")
    status, changed, text = fabric.run(["h0", "h1", "h2"], *APPLY)
    assert status != 0 and "h1 is as it was: 'Verify' failed" in text and "pfc is off" in text, text
    assert fabric.state("h1") == "old" and fabric.log("h1") == ["verify", "apply", "verify", "rollback"], fabric.log("h1")
    assert fabric.state("h2") == "old" and fabric.log("h2") == [] and "h2" not in changed, "the others come only after a good pair"


def loads_sonic(fabric):
    fabric.device("s0", {"config_db.json": "{}\n"})
    (fabric.folder / "config").write_text(CONFIG)
    (fabric.folder / "config").chmod(0o755)
    asked = fabric.folder / "asked"
    status, _, text = fabric.run(["s0"])
    assert status == 0 and not asked.exists(), text
    status, _, text = fabric.run(["s0"], *APPLY)
    path = fabric.folder / "sonic.json"
    assert status == 0, text
    assert asked.read_text().splitlines() == ["delete-checkpoint tensorlane", "checkpoint tensorlane", f"load -y {path}", "save -y"]
    asked.unlink()
    status, _, text = fabric.run(["s0"], *APPLY, LOAD_FAILS="1")
    assert status != 0 and "s0 is as it was: 'Load' failed" in text, text
    assert asked.read_text().splitlines()[-2:] == [f"load -y {path}", "rollback tensorlane"], asked.read_text()


def refuses_the_rest(fabric):
    fabric.device("s0", {"junos.set": "set x\n"})
    status, _, text = fabric.run(["s0"], *APPLY)
    assert status != 0 and "holds junos.set: render it with" in text, text


def main():
    if not os.path.exists(sys.argv[1]):
        print(f"skipped: no {sys.argv[1]}: run deploy/install-deps python")
        return 77
    for case in (compares_without_changing, applies_once, stops_after_a_bad_pair, loads_sonic, refuses_the_rest):
        with tempfile.TemporaryDirectory() as folder:
            case(Fabric(folder))
        print(f"ok {case.__name__}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
