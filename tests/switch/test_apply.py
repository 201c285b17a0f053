#!/usr/bin/env python3
"""`tensorlane-switch apply` in network namespaces: old or new, whoever is killed, at some KILLS of the commands that run. usage: test_apply.py TENSORLANE_SWITCH [KILLS]

What ports are to do afterwards is what the rendered apply.sh makes of twins of theirs."""

import contextlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

SWITCH = os.path.abspath(sys.argv[1])
KILLS = int(sys.argv[2]) if len(sys.argv) > 2 else 7
SKIP = 77
TC = shutil.which("tc")
NODES = {"s0": ("sw0", "sw1"), "h0": ("eth0",), "h1": ("eth0",)}
PENDING = ("changing.json", "waiting.json", "reverting.json")

# In the place of tc: counts commands, one by one also where a batch holds many, and at the one of number AT kills, or says that the kernel refused.
FAKE_TC = """#!/bin/sh
parent() { read -r _ _ _ found _ <"/proc/$1/stat"; }
step() {
  read -r n <"$DIR/count"
  n=$((n + 1))
  echo $n >"$DIR/count"
  if [ -n "$SLOW" ]; then sleep "$SLOW"; fi
  if [ $n != "$AT" ]; then return; fi
  if [ "$WHO" = refuse ]; then echo 'Error: refused.' >&2; exit 2; fi
  starter=$PPID pids=
  if [ -e "$DIR/state/changing.json" ] || [ -e "$DIR/state/reverting.json" ]; then
    worker=$PPID; parent $worker; guardian=$found; parent $guardian; starter=$found
  fi
  for name in $WHO; do # the worker is the last: this process dies with it
    case $name in worker) pids="$pids $worker" ;; *) pids="$([ $name = guardian ] && echo $guardian || echo $starter) $pids" ;; esac
  done
  echo "$WHO $pids" >"$DIR/killed"
  if [ -n "$pids" ]; then kill -s KILL $pids; fi
}
if [ "$1" != -batch ]; then
  step
  exec TC "$@"
fi
while read -r line; do
  step
  printf '%s\\n' "$line" | TC -batch - || exit
done
"""


def skip(reason):
    print(f"SKIPPED {os.path.basename(sys.argv[0])}: {reason}", flush=True)
    sys.exit(SKIP)


def sh(*command, check=True, **options):
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, check=check, timeout=120, **options)


def fabric_text(speed="10 Gbit/s", hosts=2, extra=""):
    return "\n".join(["hosts:", *(f"  - {{name: h{i}, addresses: {{tcp: 10.77.0.{i + 1}}}}}" for i in range(hosts)), "switches: [{name: s0}]", "links:",
                      *(f"  - {{from: h{i}, from_port: eth0, to: s0, to_port: sw{i}, speed: {speed}}}" for i in range(hosts)), extra, ""])


class Net:
    """A switch and two hosts, each in a namespace of its own; `twin`: as apply.sh configures them."""

    def __init__(self, tag):
        self.prefix = f"tl-ap{os.getpid()}{tag}-"
        for node in NODES:
            sh("ip", "netns", "add", self.ns(node))
        self.cable()

    def cable(self):
        for i in range(2):
            sh("ip", "-n", self.ns("s0"), "link", "add", "name", f"sw{i}", "type", "veth", "peer", "name", "eth0", "netns", self.ns(f"h{i}"))
            sh("ip", "-n", self.ns("s0"), "link", "set", f"sw{i}", "up")
            sh("ip", "-n", self.ns(f"h{i}"), "link", "set", "eth0", "up")

    def ns(self, node):
        return self.prefix + node

    def at(self, nodes=NODES):
        return [word for node in nodes for word in ("--at", f"{node}={self.ns(node)}")]

    def close(self):
        for node in NODES:
            sh("ip", "netns", "delete", self.ns(node), check=False)

    def port_state(self, node, port):
        show = lambda *words: sh(TC, "-n", self.ns(node), "-d", *words).stdout
        text = show("qdisc", "show", "dev", port)
        qdiscs = sorted(line.strip() for line in text.splitlines() if " 0: " not in line)
        classes = sorted(line.strip() for line in show("class", "show", "dev", port).splitlines() if line.strip())
        filters = show("filter", "show", "dev", port).splitlines()
        if "clsact" in text:
            filters += show("filter", "show", "dev", port, "ingress").splitlines()
        return [re.sub(r" (refcnt|direct_packets_stat) \d+", "", line) for line in (*qdiscs, *(classes if qdiscs else ()), *filters)]

    def state(self):
        return {(node, port): self.port_state(node, port) for node, ports in NODES.items() for port in ports if port in self.ports(node)}

    def ports(self, node):
        return [link["ifname"] for link in json.loads(sh("ip", "-n", self.ns(node), "-j", "link").stdout)]


class Apply:
    """The command with a state folder, a fake tc and files of its own."""

    def __init__(self, folder, red):
        self.dir, self.red, self.bin = folder, red, folder / "bin"
        self.bin.mkdir()
        (self.bin / "tc").write_text(FAKE_TC.replace("TC ", TC + " "))
        (self.bin / "tc").chmod(0o755)

    def command(self, *words):
        return [SWITCH, "apply", "--state", str(self.dir / "state"), *map(str, words), *(() if self.red or "--fabric" not in words else ("--no-ecn",))]

    def env(self, at="", who="", slow=""):
        (self.dir / "count").write_text("0\n")
        (self.dir / "killed").unlink(missing_ok=True)
        if not (at or slow):
            return os.environ
        return {**os.environ, "PATH": f"{self.bin}:{os.environ['PATH']}", "DIR": str(self.dir), "AT": str(at), "WHO": who, "SLOW": slow}

    def run(self, *words, code=0, **how):
        done = subprocess.run(self.command(*words), capture_output=True, text=True, timeout=120, env=self.env(**how))
        assert code is None or done.returncode == code, (words, how, done)
        return done

    def count(self):
        return int((self.dir / "count").read_text())

    def fabric(self, text):
        path = self.dir / "fabric.yaml"
        path.write_text(text)
        return "--fabric", path

    def pending(self):
        return [name for name in PENDING if (self.dir / "state" / name).exists()]

    def refused(self, *words, says, code=2, **how):
        done = self.run(*words, code=code, **how)
        assert done.stderr.startswith("tensorlane-switch: error: ") and done.stderr.count("\n") == 1, done
        for word in says:
            assert word in done.stderr, (word, done.stderr)


def configured(net, folder, text, red):
    """What apply.sh makes of this net. Without sch_red ECN's queues are plain, as long as the port's others."""
    (folder / "twin.yaml").write_text(text)
    sh(SWITCH, "render", "--fabric", folder / "twin.yaml", "--target", "linux", "--out", folder / "twin")
    script = (folder / "twin/s0/apply.sh").read_text()
    if not red:
        script = re.sub(r" red limit .*", " " + re.search(r"bfifo limit \d+", script).group(0), script)
    sh("ip", "netns", "exec", net.ns("s0"), "sh", "-s", input=script)
    for i in range(2):  # a host's port is as its link's other end
        block = re.search(rf"^tc qdisc del dev sw{i} root.*?^END$", script, re.M | re.S).group(0)
        sh("ip", "netns", "exec", net.ns(f"h{i}"), "sh", "-s", input="set -eu\n" + block.replace(f"dev sw{i} ", "dev eth0 ") + "\n")
    states = net.state()
    for node, ports in NODES.items():
        for port in ports:
            sh(TC, "-n", net.ns(node), "qdisc", "del", "dev", port, "root", check=False)
    return states


def eventually(what, seconds=30):
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "not in time"
        time.sleep(0.05)


def settled(apply):
    """No apply is under way: nobody holds the lock."""
    return sh("flock", "-n", apply.dir / "state/lock", "true", check=False).returncode == 0


class World:
    def __init__(self, net, apply, a, b):
        self.net, self.apply, self.a, self.b = net, apply, a, b
        self.none = {place: [] for place in a}

    def start(self, text, *options, **how):
        return self.apply.run(*self.apply.fabric(text), *self.net.at(), "--apply", *options, **how)


A, B = fabric_text(), fabric_text("5 Gbit/s", extra="qos: {classes: {urgent: {shaper: 50 %}}}")


def check_expectation(world):
    """The twins' states say what the fabric file asks for, and differ."""
    leaf = lambda state: next(line for line in state["s0", "sw0"] if line.startswith("class htb 1:15"))
    assert "prio 1" in leaf(world.a) and "rate 4Gbit ceil 4Gbit" in leaf(world.a), leaf(world.a)
    assert "rate 2500Mbit ceil 2500Mbit" in leaf(world.b), leaf(world.b)
    assert any("00ac0000/00fc0000" in line for line in world.a["h0", "eth0"]), world.a
    assert all(world.a[place] != world.b[place] and world.a[place] for place in world.a)


def check_plan(world):
    """Without --apply nothing changes, not even a folder is made."""
    net, apply = world.net, world.apply
    shown = apply.run(*apply.fabric(A), *net.at(), code=1).stdout
    assert shown.endswith("4 of 4 ports would change; nothing does without --apply\n"), shown
    assert f"  tc -n {net.ns('h1')} qdisc add dev eth0 root handle 1: htb default 10\n" in shown
    assert "s0 sw0, of the pair that is first:" in shown and "h0 eth0, of the pair that is first:" in shown
    plan = json.loads(apply.run(*apply.fabric(A), *net.at(), "--json", code=1).stdout)
    assert plan["result"] == "plan" and [(p["device"], p["port"]) for p in plan["ports"] if p["first"]] == [("s0", "sw0"), ("h0", "eth0")], plan
    assert all(p["changes"] and p["commands"] for p in plan["ports"]) and len(plan["ports"]) == 4
    assert net.state() == world.none and not (apply.dir / "state").exists()


def check_confirmed(world):
    """All new at once for whoever waits, kept by --confirm, again the same, and old again by --revert."""
    net, apply = world.net, world.apply
    text = world.start(A).stdout
    assert "s0 sw0 and h0 eth0: changed and verified" in text and "4 ports changed and verified" in text, text
    assert net.state() == world.a and apply.pending() == ["waiting.json"]
    for path in (apply.dir / "state").iterdir():
        assert path.stat().st_mode & 0o077 == 0, path
    assert (apply.dir / "state").stat().st_mode & 0o777 == 0o700
    apply.refused(*apply.fabric(B), *net.at(), "--apply", says=("an apply waits for its confirmation", "--revert"))
    assert apply.run("--confirm").stdout == "confirmed: the new queues stay\n"
    assert net.state() == world.a and not apply.pending() and settled(apply)
    apply.refused("--confirm", says=("no apply waits",))
    assert world.start(A).stdout.startswith("all 4 ports do what ")
    done = json.loads(world.start(B, "--json").stdout)
    assert done["result"] == "waiting" and done["error"] is None and net.state() == world.b
    assert json.loads(apply.run("--revert", "--json").stdout)["result"] == "reverted"
    assert net.state() == world.a and not apply.pending()
    world.start(B)
    apply.run("--confirm")
    assert net.state() == world.b
    apply.run("--revert")  # also of what was confirmed
    assert net.state() == world.a


def check_by_hand(world):
    """rollback.sh brings back the old queues without the journal: nothing is confirmed then, and --revert ends the apply."""
    old = world.net.state()
    world.start(B)
    sh("sh", world.apply.dir / "state/rollback.sh")
    assert world.net.state() == old
    world.apply.refused("--confirm", says=("what was applied does not run there any more", "nothing is confirmed", "--revert"))
    assert world.apply.pending() == ["waiting.json"]
    world.apply.run("--revert")
    assert world.net.state() == old and not world.apply.pending()


def check_relative_folder(world):
    """--state is taken from where the command is called, although its processes leave that folder."""
    old, here = world.net.state(), world.apply.dir / "here"
    (here / "way").mkdir(parents=True)

    def run(folder, state, *words):
        command = world.apply.command(*words)
        command[command.index("--state") + 1] = state
        done = subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=120)
        assert done.returncode == 0, done

    files = (*world.apply.fabric(B), *world.net.at(), "--apply")
    run(here, "way/back", *files)
    assert (here / "way/back/waiting.json").exists() and world.net.state() == world.b
    run(here / "way", "back", "--revert")
    assert world.net.state() == old
    run(here, "way/../way/back", *files, "--confirm-within", 0.02)
    eventually(lambda: world.net.state() == old)


def check_unconfirmed(world):
    begin = time.monotonic()
    world.start(B, "--confirm-within", 0.05)
    assert world.apply.pending() == ["waiting.json"] and (world.net.state() == world.b or time.monotonic() - begin > 2)
    eventually(lambda: settled(world.apply))
    assert time.monotonic() - begin >= 3
    assert world.net.state() == world.a and not world.apply.pending()
    world.apply.refused("--confirm", says=("no apply waits",))


def check_kills(world):
    """At some KILLS steps another one of the three, or several, is killed."""
    net, apply = world.net, world.apply
    apply.run(*apply.fabric(B), *net.at(), at=-1, code=1)
    trial = apply.count()
    world.start(B, at=-1)
    steps = apply.count()
    apply.run("--revert")
    for at in (trial // 3, trial - 1):  # before there is a worker
        world.start(B, at=at, who="starter", code=-9)
        assert net.state() == world.a and not apply.pending() and settled(apply), at
    whos = ("worker", "guardian", "starter", "worker guardian", "worker starter", "worker guardian starter", "guardian starter")
    seen = {}
    for number, at in enumerate(range(trial + 1, steps + 1, max(1, (steps - trial) // KILLS))):
        who = whos[number % len(whos)]
        seen.setdefault(who, []).append(killed_at(world, at, who, by_hand=number % 2))
    print(f"{steps} commands, {trial} in the trial; killed: " + ", ".join(f"{who}: {' '.join(found)}" for who, found in seen.items()), flush=True)
    assert {who: set(found) for who, found in seen.items()} == {who: {"new" if who == "starter" else "old"} for who in whos}


def killed_at(world, at, who, by_hand):
    """What runs when all is over: the old, or the new."""
    net, apply = world.net, world.apply
    world.start(B, at=at, who=who, code=None)
    assert (apply.dir / "killed").exists(), (at, who)
    if who == "worker guardian starter":  # nobody is left who could: the way back by hand, or by the command alone
        eventually(lambda: settled(apply))
        assert apply.pending() == ["changing.json"]
        if by_hand:
            sh("sh", apply.dir / "state/rollback.sh")
            assert net.state() == world.a, (at, who)
        apply.run("--revert")
    eventually(lambda: settled(apply) or apply.pending() == ["waiting.json"])
    new = apply.pending() == ["waiting.json"]
    assert net.state() == (world.b if new else world.a), (at, who, apply.pending())
    if new:
        apply.run("--revert")
        assert net.state() == world.a, (at, who)
    assert not apply.pending() and settled(apply), (at, who)
    return "new" if new else "old"


def check_kills_while_waiting(world):
    """Whoever watches the time is killed: old again at once; both: by the next command, also by one that would confirm."""
    net, apply = world.net, world.apply
    for who in (("worker",), ("guardian",), ("worker", "guardian")):
        world.start(B)
        pids = dict(zip(("guardian", "worker"), watchers(apply)))
        for name in who:
            os.kill(pids[name], 9)
        if len(who) == 2:
            eventually(lambda: settled(apply))
            assert net.state() == world.b
            assert "what ran before it runs again" in apply.run("--confirm", code=1).stdout
        eventually(lambda: settled(apply) and not apply.pending())
        assert net.state() == world.a, who
    world.start(B)
    os.kill(watchers(apply)[1], 15)
    eventually(lambda: settled(apply) and not apply.pending())
    assert net.state() == world.a


def watchers(apply):
    """The pids of guardian and worker: the processes of the command that live on, parents first."""
    found = []
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if str(apply.dir / "state") in (stat.parent / "cmdline").read_text().split("\0"):
                found.append(int(stat.parent.name))
    parent = lambda pid: int(pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
    assert len(found) == 2, found
    return found if parent(found[1]) == found[0] else found[::-1]


def check_failures(world):
    """A command that fails in the trial changes nothing; one that fails later takes all back; so does --revert in the middle."""
    net, apply = world.net, world.apply
    world.start(B, at=-1)
    steps = apply.count()
    apply.run("--revert")
    for at in (10, steps // 2, steps - 40):
        done = world.start(B, at=at, who="refuse", code=None)
        assert done.returncode in (1, 2) and "refused" in done.stderr, (at, done)
        assert net.state() == world.a and not apply.pending(), at
    assert done.returncode == 1
    done = json.loads(world.start(B, "--json", at=steps - 40, who="refuse", code=1).stdout)
    assert done["result"] == "reverted" and "refused" in done["error"], done
    env = apply.env(slow="0.05")
    starter = subprocess.Popen(apply.command(*apply.fabric(B), *net.at(), "--apply"), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=env)
    eventually(lambda: apply.pending() == ["changing.json"], 30)
    second = subprocess.run(apply.command(*apply.fabric(A), *net.at(), "--apply"), capture_output=True, text=True, timeout=60)
    assert second.returncode == 2 and "another apply is under way" in second.stderr, second
    taken = subprocess.run(apply.command("--revert"), capture_output=True, text=True, timeout=60)
    assert taken.returncode == 0, taken
    assert "taken back by --revert" in starter.communicate(timeout=30)[1] and starter.returncode == 1
    assert net.state() == world.a and not apply.pending()


def check_foreign(world):
    """Queues that others made are not touched; where --running says how they were made, they can come back."""
    net, apply = world.net, world.apply
    sh(TC, "-n", net.ns("h1"), "qdisc", "replace", "dev", "eth0", "root", "pfifo", "limit", "7")
    foreign = net.state()
    apply.refused(*apply.fabric(B), *net.at(), "--apply", says=("port 'eth0' of 'h1' has queues that could not be brought back", "--running"))
    assert net.state() == foreign
    sh(TC, "-n", net.ns("h1"), "qdisc", "del", "dev", "eth0", "root")
    shutil.rmtree(apply.dir / "state")  # now nobody knows how the others were made
    before = net.state()
    apply.refused(*apply.fabric(B), *net.at(), "--apply", says=("could not be brought back",))
    (apply.dir / "running.yaml").write_text(A)
    world.start(B, "--running", apply.dir / "running.yaml")
    assert net.state() == world.b
    apply.run("--revert")
    assert net.state() == before
    world.start(A)
    apply.run("--confirm")
    assert net.state() == world.a


def check_removed_ports(world):
    """A port that the file has no more goes back to the kernel's own queue; one that is gone, or goes meanwhile, hinders nothing."""
    net, apply = world.net, world.apply
    less = fabric_text(hosts=1)
    targets = net.at(("s0", "h0"))
    apply.run(*apply.fabric(less), *targets, "--apply")
    apply.run("--confirm")
    assert net.state() == {**world.a, ("s0", "sw1"): []}, "h1 is no target of this apply"
    apply.run("--revert")
    assert net.state() == world.a
    apply.run(*apply.fabric(fabric_text("5 Gbit/s")), *net.at(), "--apply")
    sh("ip", "-n", net.ns("s0"), "link", "delete", "sw1")  # and h1's eth0 with it
    apply.run("--revert")
    assert net.state() == {place: world.a[place] for place in (("s0", "sw0"), ("h0", "eth0"))}
    apply.run(*apply.fabric(less), *targets, "--apply", code=0)
    sh("ip", "netns", "delete", net.ns("h1"))
    apply.run(*apply.fabric(fabric_text("5 Gbit/s", hosts=1)), *targets, "--apply")
    apply.run("--revert")
    assert net.port_state("s0", "sw0") == world.a["s0", "sw0"]


def check_errors(world):
    """What, where, what to do."""
    net, apply = world.net, world.apply
    file = apply.fabric(A)
    apply.refused(*file, "--at", "s0=tl-no-such", "--apply", says=("no such network namespace", "tl-no-such", "ip netns list"))
    for bad in ("../x", "-x", "a;b", "$(id)", "a b"):
        apply.refused(*file, "--at", f"s0={bad}", "--apply", says=("is no name of a network namespace",))
    apply.refused(*file, "--at", "s9", "--apply", says=("no switch or host 's9'", "fabric.yaml"))
    apply.refused(*file, "--at", "s0=", "--apply", says=("expected DEVICE=NAMESPACE",))
    apply.refused("--apply", says=("--fabric, --at",))
    apply.refused(*file, *net.at(), "--confirm-within", 0, says=("--confirm-within",))
    apply.refused("--apply", "--confirm", says=("--confirm",))
    apply.refused(*file, "--at", f"s0={net.ns('h0')}", "--apply", says=("device 's0' has no port 'sw0'", net.ns("h0"), "--at"))
    apply.refused(*file, "--at", f"h0={net.ns('h0')}", "--at", f"h1={net.ns('h0')}", "--apply", says=("port 'eth0' belongs to two devices",))
    for name in ("a;b", "$(touch x)", "-batch"):
        apply.refused(*apply.fabric(A.replace("sw0", json.dumps(name))), *net.at(), "--apply", says=("expected",))
    file = apply.fabric(A)
    empty = apply.dir / "empty"
    empty.mkdir()
    for tools, missing in (((), "ip"), (("ip",), "tc")):
        for tool in tools:
            (empty / tool).symlink_to(shutil.which(tool))
        done = subprocess.run(apply.command(*file, *net.at(), "--apply"), capture_output=True, text=True, env={"PATH": str(empty)})
        assert done.returncode == 2 and f"cannot run '{missing}'" in done.stderr, done
    (apply.dir / "open").mkdir(mode=0o777)
    (apply.dir / "open").chmod(0o777)
    done = subprocess.run([SWITCH, "apply", "--confirm", "--state", apply.dir / "open"], capture_output=True, text=True)
    assert done.returncode == 2 and "expected a folder of this user with mode 0700" in done.stderr, done
    nobody = subprocess.run(apply.command(*file, *net.at()), capture_output=True, text=True, user=65534, group=65534, cwd="/")
    assert nobody.returncode == 2 and "error" in nobody.stderr and nobody.stderr.count("\n") == 1, nobody


def main():
    if os.geteuid() != 0:
        skip("needs root")
    probe = subprocess.run(["ip", "netns", "add", f"tl-probe{os.getpid()}"], capture_output=True, text=True)
    if probe.returncode != 0:
        skip(f"cannot create a network namespace: {probe.stderr.strip()}")
    sh("ip", "netns", "delete", f"tl-probe{os.getpid()}")
    with contextlib.ExitStack() as stack:
        folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        nets = []
        for tag in ("", "t"):
            nets.append(Net(tag))
            stack.callback(nets[-1].close)
        net, twin = nets
        red = sh(TC, "-n", twin.ns("h0"), "qdisc", "add", "dev", "eth0", "root", *"red limit 400000 min 30000 max 90000 avpkt 1000 burst 55 ecn".split(), check=False).returncode == 0
        sh(TC, "-n", twin.ns("h0"), "qdisc", "del", "dev", "eth0", "root", check=False)
        if not red:
            print("NOT TESTED: ECN, as this kernel has no sch_red")
        world = World(net, Apply(folder, red), *(configured(twin, folder, text, red) for text in (A, B)))
        for check in (check_expectation, check_plan, check_errors, check_relative_folder, check_confirmed, check_by_hand, check_unconfirmed, check_kills, check_kills_while_waiting, check_failures,
                      check_foreign, check_removed_ports):
            begin = time.monotonic()
            check(world)
            print(f"{check.__name__}: {time.monotonic() - begin:.1f} s", flush=True)


main()
