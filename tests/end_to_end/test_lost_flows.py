"""Data connections between daemons are reset in the middle of a job. With on_lost_flow: resume it goes on, every sum right; where they stay away for longer than the
detection time, and with on_lost_flow: abort, every rank fails with an error that names the connection."""

import json
import os
import re
import sys
import time

from daemons import BUILD, PYTHON, Daemons, Lab, expect, outputs, require_namespaces

MESSAGE = f"{BUILD}/tests/message"
TRAIN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "train_digits.py")
DETECTION = 2.0
SURVIVES = 4.0  # detection where connections are to be resumed: two resets that come close together count as one outage
HIT = 30.0  # seconds for a reset to hit


def start_job(daemons, seconds):
    ranks = daemons.job("job", [MESSAGE, "loop", str(3 << 20), str(seconds), "0.5"])
    for rank in ranks:
        expect(rank.stdout.readline() == "running\n", "the job did not start")
    return ranks


def reset(lab, daemons, host, seconds):
    """Every data packet that comes to `host` is answered with a reset for so long: the connections it belongs to are lost, and no new ones are made. Heartbeats pass."""
    ports = f"{daemons.port + 10}-{daemons.port + 18}"
    lab.run(host, "nft", "add table inet cut; add chain inet cut in { type filter hook input priority 0; }; "
                         f"add rule inet cut in tcp dport {ports} reject with tcp reset; add rule inet cut in tcp sport {ports} reject with tcp reset")
    time.sleep(seconds)
    lab.run(host, "nft", "delete table inet cut")


def resumed(daemons):
    return [daemons.status(name)["lane"]["resumed_flows"] for name in daemons.names]


def hit(lab, daemons, host, seconds):
    """Resets until one has hit: a short one may fall where no packet passes."""
    before, deadline = resumed(daemons), time.monotonic() + HIT
    while time.monotonic() < deadline:
        reset(lab, daemons, host, seconds)
        soon = time.monotonic() + 1.0
        while time.monotonic() < soon:
            # Both ends of a flow count it.
            if sum(now > then for now, then in zip(resumed(daemons), before)) >= 2:
                return
    raise AssertionError(f"resets of {seconds} s at {host} have not hit within {HIT} s: flows were resumed {resumed(daemons)} times")


def goes_on():
    with Lab(policy="strict", hosts=3) as lab, Daemons(3, lab=lab, settings={"detection": f"{SURVIVES} s", "on_lost_flow": "resume"}) as daemons:
        ranks = start_job(daemons, 300)
        for host, seconds in (("h0", 0.02), ("h1", 0.3), ("h2", 0.02), ("h1", 0.8)):
            hit(lab, daemons, host, seconds)
        counts = resumed(daemons)
        ranks[0].terminate()  # the loop's way to end well
        for index, (text, code) in enumerate(outputs(ranks, 30)):
            expect(code == 0, f"rank {index} ended with status {code}: {text}")
        expect("was resumed" in daemons.log("h1"), daemons.log("h1"))
        print(f"4 resets: the job went on with the right sums, flows were resumed {counts} times", flush=True)


def trains_on():
    """The same model twice: undisturbed, and with a reset every 200 ms. A digest of the parameters of each."""
    with Lab(policy="strict", hosts=2) as lab, Daemons(2, lab=lab, settings={"detection": f"{SURVIVES} s", "on_lost_flow": "resume"}) as daemons:
        ranks = [daemons.rank("train", index, 2, name, [PYTHON, TRAIN, "150", f"calm={daemons.socket(name)}", f"torn={daemons.socket(name)}"])
                 for index, name in enumerate(daemons.names)]
        calm = [json.loads(rank.stdout.readline())["digest"] for rank in ranks]
        while ranks[0].poll() is None:
            reset(lab, daemons, "h1", 0.02)
            time.sleep(0.2)
        counts = resumed(daemons)
        ended = outputs(ranks, 30)
        for index, (text, code) in enumerate(ended):
            expect(code == 0, f"rank {index} ended with status {code}: {text}")
        torn = [json.loads(text)["digest"] for text, _ in ended]
        expect(len({*calm, *torn}) == 1, f"the parameters differ: {calm}, {torn}")
        expect(min(counts) >= 1, f"flows were resumed {counts} times: the resets have not hit")
        print(f"training over lost connections: the same parameters, flows were resumed {counts} times", flush=True)


def gives_up(settings, cut, allowed, named):
    with Lab(policy="strict", hosts=3) as lab, Daemons(3, lab=lab, settings={"detection": f"{DETECTION} s", **settings}) as daemons:
        ranks = start_job(daemons, 60)
        since = time.monotonic()
        reset(lab, daemons, "h1", cut)
        for index, (text, code) in enumerate(outputs(ranks, 20)):
            lines = [line for line in text.splitlines() if line.startswith("tensorlane: error: ")]
            expect(code == 1 and len(lines) == 1 and re.search(named, lines[0]), f"rank {index}: status {code}: {text}")
        took = time.monotonic() - since
        expect(took < cut + allowed, f"the last rank failed after {took:.2f} s")
        print(f"{settings or 'resume'}, cut for {cut} s: every rank failed after {took:.2f} s, naming the connection", flush=True)


def main():
    require_namespaces()
    goes_on()
    if os.path.exists(PYTHON):
        trains_on()
    else:
        print(f"not trained: no {PYTHON}: run deploy/install-deps python", flush=True)
    gives_up({"on_lost_flow": "resume"}, DETECTION + 1.5, 2.0, r"connection of host h\d to host h\d was lost: .*could not be resumed")
    gives_up({"on_lost_flow": "abort"}, 0.3, DETECTION, r"connection of host h\d to host h\d was lost: ")


if __name__ == "__main__":
    sys.exit(main())
