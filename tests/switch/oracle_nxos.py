"""Cisco NX-OS' config.txt."""

import functools

from oracle_text import Renumbered, blocks, find, numbers, one, only_known


class Nxos(Renumbered):
    most_mtu = 9216

    def __init__(self, text, wanted, device):
        # Strict classes are the highest groups, without a gap; the others keep their numbers. Priorities of PFC are the fabric's.
        strict = sorted((queue for queue, cls in wanted.classes.items() if cls["strict"]), reverse=True)
        super().__init__({**{queue: queue for queue in wanted.classes}, **{queue: 7 - i for i, queue in enumerate(strict)}})
        self.here, self.lines = wanted.ports[device], blocks(text, "!")
        only_known(self.lines, r"(class|policy)-map type .*", r"system qos", r"priority-flow-control .*", r"interface .*")
        self.class_maps = {name: inner for name, inner in find(self.lines, r"class-map type qos match-any (\S+)")}
        self.policies = {(kind, name): inner for kind, name, inner in find(self.lines, r"policy-map type (\S+) (\S+)")}
        self.interfaces = {name: inner for name, inner in find(self.lines, r"interface (Ethernet[\d/]+)")}
        _, name = "network-qos", one(one(self.lines, "system qos")[0], r"service-policy type network-qos (\S+)")[0]
        self.pause = {}
        assert sorted(group for group, _ in self.classes("network-qos", name, r"class type network-qos c-8q-nq([1-7]|-default)")) == sorted(self.ours)
        for group, inner in self.classes("network-qos", name, r"class type network-qos c-8q-nq([1-7]|-default)"):
            only_known(inner, r"mtu \d+", r"pause pfc-cos \d")
            assert int(one(inner, r"mtu (\d+)")[0]) == max(port["mtu"] for port in self.here.values())
            for priority, _ in find(inner, r"pause pfc-cos (\d)"):
                self.pause[group] = int(priority)

    def classes(self, kind, name, pattern):
        """[(group, its lines)]"""
        lines = self.policies[kind, name]
        only_known(lines, pattern)
        return [(0 if group == "-default" else int(group), inner) for group, inner in find(lines, pattern)]

    def ports(self):
        return sorted(self.interfaces)

    def mtu(self, port):
        return int(one(self.interfaces[port], r"mtu (\d+)")[0])

    def watchdog(self):
        one(self.lines, "priority-flow-control watch-dog-interval on")
        poll = int(one(self.lines, r"priority-flow-control watch-dog interval (\d+)")[0])
        times = [int(one(self.lines, pattern)[0]) for pattern in (r"priority-flow-control watch-dog shutdown-multiplier (\d+)",
                                                                  r"priority-flow-control auto-restore multiplier (\d+)")]
        actions = {not disabled for inner in self.interfaces.values()
                   for disabled, _ in find(inner, r"priority-flow-control watch-dog-interval on( disable-action)?")}
        assert len(actions) == 1, actions
        return poll, poll * times[0], poll * times[1], actions.pop()

    @functools.cache
    def classify(self, policy, dscp, pcp):
        """The first class that matches says which group, and whether the mark is taken off."""
        for name, actions in find(self.policies["qos", policy], r"class (\S+)"):
            matches = self.class_maps[name]
            only_known(matches, r"match (dscp|cos) [\d,]+")
            points = set().union(*[numbers(text) for text, _ in find(matches, rf"match {'dscp' if pcp is None else 'cos'} ([\d,]+)")])
            if (dscp if pcp is None else pcp) in points:
                only_known(actions, r"set qos-group \d", r"set dscp 0")
                return int(one(actions, r"set qos-group (\d)")[0]), bool(find(actions, r"set dscp 0"))
        return 0, False

    @functools.cache
    def input(self, port):
        return one(self.interfaces[port], r"service-policy type qos input (\S+)")[0]

    def held(self, port):
        return {dscp for dscp in range(64) if self.classify(self.input(port), dscp, None)[1]}

    def output(self, port):
        return self.scheduling(one(self.interfaces[port], r"service-policy type queuing output (\S+)")[0])

    @functools.cache
    def scheduling(self, name):
        queues = {}
        for group, inner in self.classes("queuing", name, r"class type queuing c-out-8q-q([1-7]|-default)"):
            assert group not in queues, group
            queues[group] = self.queue(inner)
        assert sorted(queues) == list(range(8)), queues
        return queues

    @staticmethod
    def queue(lines):
        shape = r"shape min 0 mbps max (\d+) mbps"
        ecn = r"random-detect minimum-threshold (\d+) bytes maximum-threshold (\d+) bytes drop-probability (\d+) weight 0 ecn"
        only_known(lines, r"priority level \d", r"bandwidth remaining percent \d+", shape, ecn)
        level, weight, marks = find(lines, r"priority level (\d)"), find(lines, r"bandwidth remaining percent (\d+)"), find(lines, ecn)
        assert len(level) + len(weight) == 1, lines
        return {"level": int(level[0][0]) if level else None, "weight": int(weight[0][0]) if weight else None,
                "shaper": int(one(lines, shape)[0]) * 1_000_000 if find(lines, shape) else None, "ecn": tuple(map(int, marks[0][:3])) if marks else False}

    @functools.cache
    def stops(self, port, group):
        lines = self.interfaces[port]
        mode = one(lines, r"priority-flow-control mode (on|off)")[0]
        if mode == "off" or group not in self.pause:
            return False
        one(lines, r"priority-flow-control watch-dog-interval on(?: disable-action)?")
        here = self.here[port]
        pauses = find(lines, r"service-policy type queuing input (\S+)")
        assert len(pauses) == (here["cable"] > 100), port
        for name, _ in pauses:
            inner = dict(self.classes("queuing", name, r"class type queuing c-in-q([1-7]|-default)"))[group]
            size, pause, resume, _ = one(inner, r"pause buffer-size (\d+) pause-threshold (\d+) resume-threshold (\d+)")
            # At least what the cable holds both ways and one packet of the port.
            assert int(size) - int(pause) >= 2 * here["cable"] * here["speed"] / 198e6 / 8 + here["mtu"] and 12480 <= int(resume) <= int(pause), inner
        return True

    def walk(self, port, dscp, pcp):
        arrives, _ = self.classify(self.input(port), dscp, pcp)
        group, _ = self.classify("FABRIC-IN", dscp, pcp)
        own, stops = self.output(port)[group], self.stops(port, arrives)
        return {"arrives": self.number(arrives), "group": self.pause[arrives] if stops else 0, "pfc": stops, "queue": self.number(group),
                "strict": own["level"] is not None, "shaper": own["shaper"], "ecn": own["ecn"]}

    def served_first(self, port, used):
        """Levels from 1, at the highest groups without a gap."""
        queues = self.output(port)
        strict = sorted((own["level"], group) for group, own in queues.items() if own["level"] is not None)
        assert strict == [(i + 1, 7 - i) for i in range(len(strict))], strict
        return [self.number(group) for _, group in strict] + [sorted((self.number(group) for group, own in queues.items() if own["level"] is None and own["weight"]), key=str)]

    def weights(self, port):
        return {self.number(group): own["weight"] for group, own in self.output(port).items() if own["weight"]}
