"""Daemons that cannot use their device say why, and what to do. On one host of a bed, whose network is broken afterwards."""

import os

from bed import Failed
from daemons_in_bed import BIN, BUILD, MESSAGE, Daemons

TINY = 1 << 20  # bytes of locked memory: enough to open the device, not for a job's staging
NOBODY = "65534"
NO_GIDS = os.path.join(BUILD, "tests", "libno_gids.so")


def said(bed, daemons, host, before="true", **settings):
    """What a daemon says that cannot start, when `before`, shell commands, has been done in a mount namespace of its own."""
    path = daemons.configuration(host, **settings)
    try:
        bed.run(host, "unshare", "-m", "sh", "-c", f"{before} && exec {BIN}/tensorlaned --config {path}", timeout=30)
    except Failed as failure:
        return str(failure)
    raise AssertionError("the daemon has started")


def expect(text, *parts):
    for part in parts:
        assert part in text, f"{part!r} is not in {text}"


def test_devices(bed, daemons, host):
    expect(said(bed, daemons, host, rdma="{device: mlx5_9}"),
           "tensorlane: error: this host has no RDMA device 'mlx5_9': /sys/class/infiniband: set `rdma: device` in daemon.yaml to one of rxe0, rxe1")
    expect(said(bed, daemons, host, rdma="{device: rxe0, port: 2}"), "tensorlane: error: the device has no port 2: rxe0: set `rdma: port` to 1 to 1")
    expect(said(bed, daemons, host, rdma="{device: rxe0, gid_index: 99}"), "tensorlane: error: GID 99 does not exist: rxe0 port 1: leave out `gid_index`, or use one of fe80::")


def test_no_gid(bed, daemons, host):
    """Soft-RoCE always has one, of its interface's MAC address: a library in front of libibverbs hides them, for this daemon alone."""
    expect(said(bed, daemons, host, before=f"export LD_PRELOAD={NO_GIDS}", rdma="{device: rxe0}"),
           "tensorlane: error: the port has no RoCE v2 GID: rxe0 port 1: give its network interface an address, and let the device speak RoCE v2")


def test_a_device_wide_traffic_class(bed, daemons, host):
    """Soft-RoCE has no such file, so the driver's folder gets one by a mount over it, for this daemon alone."""
    device = "/sys/devices/virtual/infiniband/rxe0"
    fixture = (f"cp -rP {device} /run/rxe0 2>/dev/null; mkdir -p /run/rxe0/tc/1 && echo 'Global tclass=106' >/run/rxe0/tc/1/traffic_class "
               f"&& mount --bind /run/rxe0 {device}")
    expect(said(bed, daemons, host, before=fixture, rdma="{device: rxe0}"),
           "tensorlane: error: a device-wide traffic class 106 (DSCP 26) is set, which puts all classes into one: rxe0 port 1: "
           "echo 0 > /sys/class/infiniband/rxe0/tc/1/traffic_class")


def test_locked_memory(bed, daemons, host, peer):
    """Nobody's daemon on `host`, whom the limit binds, and a job with `peer`, whose daemon may lock what it wants."""
    home = f"/run/nobody-{daemons.port}"
    daemons.configuration(host, fabric=f"{home}/fabric.yaml", secret_key_file=f"{home}/key", socket=f"{home}/socket")
    bed.run(host, "sh", "-c", f"mkdir {home} && cp {daemons.fabric} {home}/fabric.yaml && cp {bed.shared}/keys/{host}.secret {home}/key "
            f"&& cp {daemons.configured(host)} {home}/daemon.yaml && chown -R {NOBODY} {home} && chmod 666 /dev/infiniband/uverbs0 "
            f"&& ln -sf {home}/socket {daemons.socket()}")
    nobody = ["prlimit", f"--memlock={TINY}", "setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    daemons.start(host, nobody, f"{home}/daemon.yaml")
    daemons.start(peer)
    for each in (host, peer):
        daemons.wait_ready(each)
    ranks = daemons.start_job("locked", [MESSAGE, "flood", "65536", "1", "0.0"], [peer, host])
    for rank in ranks:
        out, err = rank.communicate(timeout=60)
        print(err.strip(), flush=True)
        assert rank.returncode == 1, out + err
        expect(err, "tensorlane: error: cannot register ", f"the limit of locked memory (RLIMIT_MEMLOCK) is {TINY} bytes: host {host}, rxe0 port 1: set LimitMEMLOCK=infinity in tensorlaned's unit")
    assert daemons.status(host)["lane"], "the daemon lives"


def test_addresses(bed, daemons, host, vlan):
    """Breaks the host's network, a step at a time."""
    address, tcp = bed.rdma_address(host), bed.address(host)
    no_gid = f"tensorlane: error: no RoCE v2 GID has this host's rdma address {address}: rxe0 port 1: its GIDs are fe80::"
    fix = "or give the interface (or the VLAN on it, which must exist) that address"
    bed.run(host, "sh", "-c", f"ip address flush dev eth0.{vlan} && ip address add 10.99.0.1/24 dev eth0.{vlan}")
    expect(said(bed, daemons, host, rdma="{device: rxe0}"), no_gid, "10.99.0.1 (index ", f"eth0.{vlan})", fix)
    bed.run(host, "ip", "link", "delete", f"eth0.{vlan}")
    text = said(bed, daemons, host, rdma="{device: rxe0}")
    expect(text, no_gid, f"{tcp} (index 1, eth0)", fix)
    assert f"eth0.{vlan}" not in text, text
    bed.run(host, "ip", "link", "set", "eth0", "down")
    expect(said(bed, daemons, host, rdma="{device: rxe0}"),
           "tensorlane: error: the port is down: rxe0 port 1: bring its network interface up and look at the cable")
    expect(said(bed, daemons, host), f"tensorlane: error: none of 2 RDMA devices can be used at this host's rdma address {address}: ",
           "rxe0 port 1: the port is down", f"rxe1 port 1: no RoCE v2 GID has this host's rdma address {address}",
           ": bring the one that is meant up, and give its interface that address")
