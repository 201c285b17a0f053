"""Arista EOS' config.txt."""

import functools

from oracle_text import Renumbered, blocks, find, numbers, one, only_known

QUEUE = r"(?:uc-)?tx-queue (\d)"


class Eos(Renumbered):
    most_mtu = 9214

    def __init__(self, text, wanted, device):
        # Best effort is traffic class 1 of EOS, unless the fabric has a class of that number.
        super().__init__({**{queue: queue for queue in range(8)}, 0: 0 if 1 in wanted.classes else 1, **({} if 1 in wanted.classes else {1: 0})})
        self.lines = blocks(text, "!")
        only_known(self.lines, r"qos (map|profile) .*", r"priority-flow-control pause watchdog .*", r"(class|policy)-map type .*", r"interface .*")
        self.of_dscp, self.of_pcp = self.map("dscp"), self.map("cos")
        self.queue_of = {int(tc): int(queue) for tc, queue, _ in find(self.lines, r"qos map traffic-class (\d) to tx-queue (\d)")}
        self.interfaces = {name: inner for name, inner in find(self.lines, r"interface (Ethernet[\d/]+)")}
        self.profiles = {name: Profile(inner) for name, inner in find(self.lines, r"qos profile (\S+)")}
        self.policies = {name: inner for name, inner in find(self.lines, r"policy-map type quality-of-service (\S+)")}
        self.class_maps = {name: inner for name, inner in find(self.lines, r"class-map type qos match-any (\S+)")}

    def map(self, what):
        found = {}
        for points, tc, _ in find(self.lines, rf"qos map {what} ([\d ]+) to traffic-class (\d)"):
            for point in numbers(points):
                assert point not in found, (what, point)
                found[point] = int(tc)
        return found

    def ports(self):
        return sorted(self.interfaces)

    def mtu(self, port):
        return int(one(self.interfaces[port], r"mtu (\d+)")[0])

    @functools.cache
    def profile(self, port):
        return self.profiles[one(self.interfaces[port], r"service-profile (\S+)")[0]]

    def watchdog(self):
        start = "priority-flow-control pause watchdog "
        times = [one(self.lines, start + rf"default {name} ([\d.]+)")[0] for name in ("polling-interval", "timeout", "recovery-time")]
        return tuple(round(float(time) * 1000) for time in times) + (one(self.lines, start + r"action (drop|no-drop)")[0] == "drop",)

    def policy(self, profile):
        """Of a port that is not trusted: class -> its actions."""
        classes = find(self.policies[profile.policy], r"class (\S+)")
        assert classes[-1][0] == "class-default" and len(classes) == 2, classes
        return classes

    def arrives(self, profile, dscp, pcp):
        if profile.policy is None:
            return self.of_dscp[dscp] if pcp is None else self.of_pcp[pcp]
        (name, marked), (_, rest) = self.policy(profile)
        chosen = marked if dscp in numbers(one(self.class_maps[name], r"match dscp ([\d ]+)")[0] if dscp is not None else "99") else rest
        return int(one(chosen, r"set traffic-class (\d)")[0])

    def held(self, port):
        profile = self.profile(port)
        if profile.policy is None:
            return set()
        (name, marked), (_, rest) = self.policy(profile)
        assert one(marked, r"set dscp (\d+)")[0] == "0" and not find(rest, r"set dscp .*")
        return numbers(one(self.class_maps[name], r"match dscp ([\d ]+)")[0])

    def walk(self, port, dscp, pcp):
        profile = self.profile(port)
        arrives = self.arrives(profile, dscp, pcp)
        queue = self.queue_of[self.of_dscp[dscp] if pcp is None else self.of_pcp[pcp]]
        own = profile.queues[queue]
        stops = arrives in profile.no_drop and self.queue_of[arrives] == arrives
        assert not stops or (profile.flow_control and profile.watchdog), port
        return {"arrives": self.number(arrives), "group": arrives if stops else 0, "pfc": stops, "queue": self.number(queue), "strict": own["strict"],
                "shaper": None if own["shape"] is None else ("percent", own["shape"]), "ecn": own["ecn"]}

    def served_first(self, port, used):
        """'no priority' makes every queue below weighted, too."""
        queues = self.profile(port).queues
        weighted = max(queue for queue, own in queues.items() if not own["strict"])
        assert all(own["strict"] == (queue > weighted) for queue, own in queues.items()), queues
        strict = [self.number(queue) for queue in sorted(queues, reverse=True) if queue > weighted]
        return [queue for queue in strict if queue in used] + [sorted(self.number(queue) for queue in queues if queue <= weighted and self.number(queue) in used)]

    def weights(self, port):
        return {self.number(queue): own["weight"] for queue, own in self.profile(port).queues.items() if not own["strict"]}


class Profile:
    def __init__(self, lines):
        only_known(lines, r"qos trust dscp", r"service-policy type qos input \S+", r"priority-flow-control .*", QUEUE)
        policy = find(lines, r"service-policy type qos input (\S+)")
        assert len(policy) + len(find(lines, r"qos trust dscp")) == 1, lines
        self.policy = policy[0][0] if policy else None
        self.flow_control = len(find(lines, r"priority-flow-control on")) == 1
        self.watchdog = len(find(lines, r"priority-flow-control pause watchdog")) == 1
        self.no_drop = {int(priority) for priority, _ in find(lines, r"priority-flow-control priority (\d) no-drop")}
        self.queues = {int(number): self.queue(inner) for number, inner in find(lines, QUEUE)}

    @staticmethod
    def queue(lines):
        ecn = r"random-detect ecn minimum-threshold (\d+) bytes maximum-threshold (\d+) bytes max-mark-probability (\d+) weight 0"
        only_known(lines, r"(no priority|priority strict)", r"bandwidth percent \d+", r"shape rate \d+ percent", ecn)
        strict, shape, marks = bool(find(lines, "priority strict")), find(lines, r"shape rate (\d+) percent"), find(lines, ecn)
        assert strict != bool(find(lines, "no priority")), lines
        return {"strict": strict, "weight": None if strict else int(one(lines, r"bandwidth percent (\d+)")[0]), "shape": int(shape[0][0]) if shape else None,
                "ecn": tuple(map(int, marks[0][:3])) if marks else False}
