"""Daemons that drive a NIC which vfio-pci has, on emulated hosts with an IOMMU: virtio with a queue for each class. The kernel has the host's other NIC, over which TCP goes.

    test_vfio.py TENSORLANE"""

import json
import re
import signal
import socket
import sys
import time

from bed import Bed, require_bed
from daemons_in_bed import BIN, MESSAGE, Daemons, results, wait_until

HOSTS = ["h0", "h1"]
NIC = "net1"  # the second rail's, to QEMU
SIZE = 400_000
REST = 2.0  # seconds
OUTAGE = 2.0

# The NIC of eth1 in the kernel's words: "0000:00:04.0".
ADDRESS = "basename $(readlink -f /sys/class/net/eth1/device/..)"
# By hand, what driverctl and dpdk-devbind.py do; and huge pages.
BIND = """
set -e
echo $2 >/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages
cd /sys/bus/pci
echo vfio-pci >devices/$1/driver_override
echo $1 >devices/$1/driver/unbind
echo $1 >drivers_probe
"""
# Twice, REST apart: nanoseconds that the daemon's lane has used, how often it has gone to sleep, and the interrupts of the NIC.
LOOK = """
lane=$(dirname $(grep -lx lane /proc/$({pid})/task/*/comm))
look() {{
  echo $(cut -d' ' -f1 $lane/schedstat) $(grep ^voluntary $lane/status | cut -f2) $(grep '({nic})' /proc/interrupts | awk '{{ sum += $2 }} END {{ print sum + 0 }}')
}}
look
sleep {rest}
look
"""


class Ports(Daemons):
    """Daemons whose transport is the NIC of the second rail, and whose TCP addresses are of the first one."""

    def __init__(self, bed, port, nics):
        self.nics = nics
        self.eal = {"h0": "", "h1": ", '--no-huge', '-m', '64'"}  # small pages are made known to the IOMMU one by one
        super().__init__(bed, "dpdk", port, {"detection": "15 s"}, HOSTS)

    def own_rails(self, line):
        number = re.search(r"10\.77\.0\.(\d+)", line)[1]
        return super().own_rails(line).replace("addresses: {", f"addresses: {{dpdk: 10.79.0.{number}, ")

    def configuration(self, host, **settings):
        dpdk = f"{{devices: ['{self.nics[host]}'], eal: ['-a', '{self.nics[host]}'{self.eal[host]}]}}"
        return super().configuration(host, **{"dpdk": dpdk, **settings})

    def port_of(self, host):
        """What the daemon says of it."""
        return self.status(host)["lane"]["rails"][0]["port"]


def set_link(bed, host, up):
    """Of the host's NIC, as if its cable were pulled or put back."""
    with socket.socket(socket.AF_UNIX) as qmp:
        qmp.settimeout(10)
        qmp.connect(f"{bed.shared}/guests/{host}/qmp")
        with qmp.makefile("rw") as words:
            json.loads(words.readline())  # its greeting
            for command in ({"execute": "qmp_capabilities"}, {"execute": "set_link", "arguments": {"name": NIC, "up": up}}):
                words.write(json.dumps(command) + "\n")
                words.flush()
                answer = json.loads(words.readline())
                while "event" in answer:
                    answer = json.loads(words.readline())
                assert answer == {"return": {}}, answer


def on_both(bed, *command):
    """The command's output on each host."""
    return [bed.finish(child) for child in [bed.start(host, *command) for host in HOSTS]]


def start_doctor(bed, ports, host):
    return bed.start(host, f"{BIN}/tensorlane", "doctor", "--json", "--config", ports.configuration(host))


def findings(bed, host, doctor):
    """What it has found about DPDK, by severity."""
    out, err = bed.outcome(doctor)
    assert out, err
    found = [finding for finding in json.loads(out)["findings"] if finding["rule"] == "P1"]
    for finding in found:
        print(f"doctor on {host}: {finding['severity']}: {finding['place']}: {finding['message']}", flush=True)
    return {severity: [f["message"] for f in found if f["severity"] == severity] for severity in ("error", "warning", "note")}


def bind(bed, ports, host, huge_pages):
    bed.run(host, "sh", "-c", BIND, "bind", ports.nics[host], str(huge_pages))


def check_kernels_driver(bed, ports):
    """While a driver of the kernel has the NIC, the daemon ends with an error that names it, and the doctor knows. Then vfio-pci has both; h1 does without huge pages."""
    daemon = bed.start("h1", f"{BIN}/tensorlaned", "--config", ports.configuration("h1"))
    found = findings(bed, "h0", start_doctor(bed, ports, "h0"))
    assert any("'virtio-pci', a driver of the kernel, has the device" in error for error in found["error"]), found
    bind(bed, ports, "h0", 100)
    ports.start("h0")  # beside the one that is to fail: DPDK takes seconds to start on an emulated host
    _, err = bed.outcome(daemon)
    last = err.strip().splitlines()[-1]
    print(last, flush=True)
    assert daemon.returncode == 1 and "the driver 'virtio-pci' has the device" in last and "bind it to vfio-pci" in last, err
    bind(bed, ports, "h1", 0)


def check_rest(bed, ports):
    """While a job does nothing, the daemon's lane sleeps until the NIC's interrupt, but for a look at the link ten times a second; the next message brings that interrupt."""
    running = ports.start_job("rest", [MESSAGE, "pause", "4096", "60", "0.9"], HOSTS)
    for rank in running:
        line = rank.stdout.readline()
        assert line == "pausing\n", f"{line}{rank.communicate()}"
    look = LOOK.format(pid=ports.pid("h0"), nic=ports.nics["h0"], rest=REST)
    begin, end = ([int(word) for word in line.split()] for line in bed.run("h0", "sh", "-c", look).splitlines())
    for rank in running:
        rank.send_signal(signal.SIGTERM)
    seconds = min(float(out) for out in results(running))
    after = int(bed.run("h0", "sh", "-c", look.replace(f"sleep {REST}", "exit")).split()[2])
    nanoseconds, sleeps, interrupts = (later - earlier for earlier, later in zip(begin, end, strict=True))
    share = nanoseconds / REST / 1e9
    print(f"at rest the lane of h0 used {share:.1%} of the emulated CPU and slept {sleeps / REST:.0f} times a second, with {interrupts} interrupts; "
          f"the sum after it took {seconds * 1e3:.1f} ms and {after - end[2]} interrupts", flush=True)
    # Emulated, a look takes some hundred times what it takes on a real host.
    assert share < 0.3 and sleeps / REST < 40, "the lane looks for packets, and does not wait for interrupts"
    assert after > end[2] and seconds < 1, "the message after the rest brought no interrupt"


def check_outage(bed, ports):
    """A link that is down for a while ends nothing, and the daemon tells of it; so it does when there is no traffic."""
    before = ports.port_of("h0")
    running = ports.start_loop("outage", HOSTS, 60, SIZE)
    set_link(bed, "h0", False)
    begin = time.monotonic()
    down = ports.port_of("h0")
    time.sleep(max(0.0, OUTAGE - (time.monotonic() - begin)))
    set_link(bed, "h0", True)
    assert not down["link_up"], down
    wait_until(lambda: ports.port_of("h0")["received_packets"] > down["received_packets"] + 100, 20, lambda: "nothing comes after the outage")
    running[0].send_signal(signal.SIGTERM)
    results(running)
    for up in (False, True):
        set_link(bed, "h0", up)
        wait_until(lambda: ports.port_of("h0")["link_up"] == up, 5, lambda: f"the daemon does not see the link with up={up}")
    after = ports.port_of("h0")
    print(f"an outage of {OUTAGE} s and one of a port at rest: every sum was right, {after['link_changes'] - before['link_changes']} changes of the link, packets {after['datagrams']}", flush=True)
    assert after["link_changes"] - before["link_changes"] == 4, (before, after)


def check_status(bed, ports):
    """What the daemons and the doctor say at the end."""
    doctors = [start_doctor(bed, ports, host) for host in HOSTS]
    status = on_both(bed, f"{BIN}/tensorlane", "status", "--json", "--socket", ports.socket())
    for host, lane in zip(HOSTS, (json.loads(text)["lane"] for text in status), strict=True):
        port = lane["rails"][0]["port"]
        print(f"{host}: {json.dumps(port)}", flush=True)
        assert port["device"] == ports.nics[host] and port["link_up"], port
        assert [queue["class"] for queue in port["queues"]] == ["control", "urgent", "bulk"], port
        assert all(queue["sent_packets"] > 0 for queue in port["queues"]), port
        assert [c["transport"] for path in lane["paths"] for c in path["candidates"] if c["chosen"]] == ["dpdk"], lane["paths"]
    h0, h1 = (findings(bed, host, doctor) for host, doctor in zip(HOSTS, doctors, strict=True))
    assert not any(h0.values()) and not h1["error"] and ["`eal` says --no-huge" in text for text in h1["warning"]] == [True], (h0, h1)


def main():
    require_bed()
    begin = time.monotonic()
    with Bed(hosts=2, speed="100 Mbit/s", memory=900, rails=2, iommu=True) as bed:
        print(f"up after {time.monotonic() - begin:.1f} s", flush=True)
        nics = dict(zip(HOSTS, (text.strip() for text in on_both(bed, "sh", "-c", ADDRESS)), strict=True))
        ports = Ports(bed, 7200, nics)
        check_kernels_driver(bed, ports)
        with ports:
            print(f"daemons after {time.monotonic() - begin:.1f} s", flush=True)
            check_rest(bed, ports)
            check_outage(bed, ports)
            check_status(bed, ports)
    print(f"{time.monotonic() - begin:.1f} s", flush=True)


if __name__ == "__main__":
    sys.exit(main())
