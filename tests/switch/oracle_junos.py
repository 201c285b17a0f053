"""Junos: junos.set and junos.xml, read into the same tree. A node is {word: node}; both must come to the same."""

import functools
import re
import xml.etree.ElementTree

# Tags of XML that `set` leaves out.
HIDDEN = {"interface", "filter-name"}


def tree_of_set(text):
    root = {}
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        command, *words = line.split()
        assert command == "set", line
        at = root
        for word in words:
            at = at.setdefault(word, {})
    return root


def tree_of_xml(text):
    root = {}

    def put(element, at):
        tag = element.tag
        children = list(element)
        if tag == "drop-profile-map":
            for word in (tag, *(word for child in children for word in (child.tag, child.text))):
                at = at.setdefault(word, {})
            return
        if tag not in HIDDEN:
            at = at.setdefault(tag, {})
        if children and children[0].tag == "name":
            at = at.setdefault(children.pop(0).text, {})
        elif not children and element.text and element.text.strip():
            at.setdefault(element.text, {})
        for child in children:
            put(child, at)

    # Each part in the namespace of its YANG model, which begins with the family's.
    configuration = xml.etree.ElementTree.fromstring(text)
    family, tag = re.fullmatch(r"{http://yang.juniper.net/(junos|junos-qfx)/conf/root}(.*)", configuration.tag).groups()
    assert tag == "configuration"
    for child in configuration:
        part = child.tag.split("}")[1]
        for element in child.iter():
            space, element.tag = element.tag[1:].split("}")
            assert space == f"http://yang.juniper.net/{family}/conf/{part}", space
        put(child, root)
    return root


def only(node):
    assert len(node) == 1, node
    return next(iter(node))


class Junos:
    no_pcp = True  # a routed port has one classifier, by DSCP
    most_mtu = 9216

    def __init__(self, tree, wanted, device):
        self.wanted, self.here = wanted, wanted.ports[device]
        assert set(tree) <= {"class-of-service", "firewall", "interfaces"}
        self.cos, self.tree = tree["class-of-service"], tree
        self.interfaces = tree["interfaces"]
        self.queue_of = {name: int(only(own["queue-num"])) for name, own in self.cos["forwarding-classes"]["class"].items()}
        self.priority_of = {name: int(only(own["pfc-priority"])) for name, own in self.cos["forwarding-classes"]["class"].items() if "no-loss" in own}
        self.buffer = self.memory(wanted)
        if self.priority_of:
            shares = self.cos["shared-buffer"]["ingress"]["buffer-partition"]
            assert sum(int(only(share["percent"])) for share in shares.values()) == 100, shares
        pcp = self.points("ieee-802.1", "FABRIC-PCP")
        assert {point: self.queue_of[name] for point, name in pcp.items()} == {point: point if point in wanted.classes else 0 for point in range(8)}

    @staticmethod
    def memory(wanted):
        platform = wanted.fabric["switches"][0]["platform"]
        known = {"SN3700": 42_000_000, "SN4700": 64_000_000, "SN5600": 160_000_000}
        if isinstance(platform, str):
            return known[platform]
        number, *unit = str(platform["buffer"]).split()
        return int(number) * (1048576 if unit else 1)

    def ports(self):
        assert set(self.cos["interfaces"]) == set(self.interfaces)
        return sorted(self.interfaces)

    def mtu(self, port):
        return int(only(self.interfaces[port]["mtu"]))

    def points(self, kind, name):
        """Code point -> forwarding class."""
        found = {}
        for forwarding, own in self.cos["classifiers"][kind][name]["forwarding-class"].items():
            for bits in own["loss-priority"]["low"]["code-points"]:
                assert int(bits, 2) not in found and len(bits) == (6 if kind == "dscp" else 3), bits
                found[int(bits, 2)] = forwarding
        return found

    @functools.cache
    def arrival(self, port):
        return self.points("dscp", only(self.cos["interfaces"][port]["unit"]["0"]["classifiers"]["dscp"]))

    @functools.cache
    def held(self, port):
        unit = self.interfaces[port].get("unit")
        if unit is None:
            return set()
        dropped = []
        for family, match in (("inet", "dscp"), ("inet6", "traffic-class")):
            terms = self.tree["firewall"]["family"][family]["filter"][only(unit["0"]["family"][family]["filter"]["input"])]["term"]
            first, rest = terms.values()
            assert first["then"] == {"discard": {}} and rest == {"then": {"accept": {}}}, terms
            dropped.append({int(dscp) for dscp in first["from"][match]})
        assert dropped[0] == dropped[1], dropped
        return dropped[0]

    def watchdog(self):
        times = [tuple(only(profile["pfc-watchdog"][key]) for key in ("poll-interval", "detection", "recovery", "watchdog-action"))
                 for profile in self.cos["congestion-notification-profile"].values()]
        assert len(set(times)) == 1, times
        poll, detection, recovery, action = times[0]
        return int(poll), int(poll) * int(detection), int(recovery), action == "drop"

    @functools.cache
    def stops(self, port):
        """DSCP -> the priority that it stops."""
        name = self.cos["interfaces"][port].get("congestion-notification-profile")
        if name is None:
            return {}
        profile = self.cos["congestion-notification-profile"][only(name)]
        assert int(only(profile["input"]["cable-length"])) >= self.here[port]["cable"], profile
        queues = {int(bits, 2): int(only(own["flow-control-queue"])) for bits, own in profile["output"]["ieee-802.1"]["code-point"].items()}
        points = {}
        for bits, own in profile["input"]["dscp"]["code-point"].items():
            assert own == {"pfc": {}}, own
            priority = self.priority_of[self.arrival(port)[int(bits, 2)]]
            assert queues[priority] == self.queue_of[self.arrival(port)[int(bits, 2)]], (bits, queues)
            points[int(bits, 2)] = priority
        assert set(queues) == set(points.values()), (queues, points)
        return points

    @functools.cache
    def scheduler(self, port, forwarding):
        own = self.cos["schedulers"][only(self.cos["scheduler-maps"][only(self.cos["interfaces"][port]["scheduler-map"])]["forwarding-class"][forwarding]["scheduler"])]
        assert set(own) <= {"priority", "shaping-rate", "transmit-rate", "drop-profile-map", "explicit-congestion-notification"}, own
        return own

    def ecn(self, port, forwarding):
        """Percent of the packet memory: thresholds that the file gives are met to a percent."""
        own = self.scheduler(port, forwarding)
        if "explicit-congestion-notification" not in own:
            return False
        profile = self.cos["drop-profiles"][only(own["drop-profile-map"]["loss-priority"]["any"]["protocol"]["any"]["drop-profile"])]["interpolate"]
        least, most = (int(level) * self.buffer // 100 for level in profile["fill-level"])
        zero, chance = map(int, profile["drop-probability"])
        assert zero == 0
        given = self.wanted.classes[self.queue_of[forwarding]]["ecn"]
        if given:
            low, high = (int(str(given[key]).split()[0]) * (1024 if "KiB" in str(given[key]) else 1) for key in ("kmin", "kmax"))
            if abs(low - least) <= self.buffer / 100 and abs(high - most) <= self.buffer * 2 / 100:
                return low, high, chance
        return least, most, chance

    def walk(self, port, dscp, pcp):
        assert pcp is None
        arrives, leaves = self.arrival(port)[dscp], self.points_of_fabric()[dscp]
        own, priority = self.scheduler(port, leaves), self.stops(port).get(dscp)
        rate = own.get("shaping-rate")
        return {"arrives": self.queue_of[arrives], "group": priority or 0, "pfc": priority is not None, "queue": self.queue_of[leaves],
                "strict": only(own["priority"]) == "strict-high", "shaper": ("percent", int(only(rate["percent"]))) if rate else None, "ecn": self.ecn(port, leaves)}

    @functools.cache
    def points_of_fabric(self):
        return self.points("dscp", "FABRIC-DSCP")

    def served_first(self, port, used):
        """The higher of two strict-high queues first."""
        strict = sorted((queue for name, queue in self.queue_of.items() if only(self.scheduler(port, name)["priority"]) == "strict-high"), reverse=True)
        return strict + [sorted(queue for queue in self.queue_of.values() if queue not in strict)]

    def weights(self, port):
        return {queue: int(only(self.scheduler(port, name)["transmit-rate"]["percent"])) for name, queue in self.queue_of.items()
                if "transmit-rate" in self.scheduler(port, name)}


def from_set(text, wanted, device):
    return Junos(tree_of_set(text), wanted, device)


def from_xml(text, wanted, device):
    return Junos(tree_of_xml(text), wanted, device)
