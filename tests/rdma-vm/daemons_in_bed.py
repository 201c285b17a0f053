"""Daemons on the hosts of a bed, and ranks that use them. Standard library only."""

import json
import os
import secrets

from bed import IMAGE

BUILD = os.path.dirname(IMAGE)
BIN = os.path.join(BUILD, "bin")
PYTHON = os.path.join(BUILD, "venv", "bin", "python")


class Daemons:
    """One daemon on every host, started when entered and stopped when left: Daemons(bed, "auto", port=7200). Several of them can be up,
    with ports 100 apart; `name` tells them apart."""

    def __init__(self, bed, transport, port, settings=None, hosts=None):
        self.bed, self.name, self.port = bed, transport, port
        self.settings = {"transport": transport, **(settings or {})}
        self.hosts = hosts or [h["name"] for h in bed.about["hosts"]]
        self.children = {}

    def __enter__(self):
        with open(f"{self.bed.shared}/fabric.yaml") as file:
            fabric = file.read().replace("control_port: 7100", f"control_port: {self.port}").replace("data_port: 7110", f"data_port: {self.port + 10}")
        self.fabric = f"{self.bed.shared}/fabric-{self.port}.yaml"
        with open(self.fabric, "w") as file:
            file.write(fabric)
        for host in self.hosts:
            self.start(host)
        for host in self.hosts:
            self.wait_ready(host)
        return self

    def __exit__(self, *failure):
        for host, child in self.children.items():
            if child.poll() is None:
                child.terminate()
            _, log = child.communicate(timeout=30)
            if failure[0] is not None:
                print(f"--- log of {self.name} on {host}\n{log[-3000:]}", flush=True)

    def socket(self):
        return f"/run/{self.port}.sock"

    def configuration(self, host, **settings):
        path = f"{self.bed.shared}/{host}-{self.port}.yaml"
        everything = {"fabric": self.fabric, "host": host, "secret_key_file": f"keys/{host}.secret", "socket": self.socket(), **self.settings, **settings}
        with open(path, "w") as file:
            file.writelines(f"{key}: {value}\n" for key, value in everything.items())
        return path

    def start(self, host):
        # Beside the fabric file the keys belong to root alone, in the guest too.
        self.children[host] = self.bed.start(host, f"{BIN}/tensorlaned", "--config", self.configuration(host))

    def wait_ready(self, host):
        self.bed.run(host, "sh", "-c", f"until {BIN}/tensorlane status --json --socket {self.socket()} >/dev/null 2>&1; do sleep 0.2; done", timeout=60)

    def status(self, host):
        return json.loads(self.bed.run(host, f"{BIN}/tensorlane", "status", "--json", "--socket", self.socket()))


def start_job(bed, command, environment, hosts=None):
    """One rank of a job on every host: the children, in the order of the ranks."""
    hosts = hosts or [h["name"] for h in bed.about["hosts"]]
    common = {"WORLD_SIZE": len(hosts), "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1, "MASTER_ADDR": bed.address(hosts[0]), "MASTER_PORT": 29511,
              "TENSORLANE_JOB_SECRET": secrets.token_hex(16), "OMP_NUM_THREADS": 1, "TMPDIR": "/run", "HOME": "/run", **environment}
    return [bed.start(host, "env", *(f"{key}={value}" for key, value in {**common, "RANK": rank}.items()), *command) for rank, host in enumerate(hosts)]
