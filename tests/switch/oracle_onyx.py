"""NVIDIA Onyx' config.txt: commands for ranges of ports."""

import re

PORTS = r"interface ethernet (\S+) "
WORDS = [
    (PORTS + r"mtu (\d+) force", "mtu"), (PORTS + r"qos trust (both|port)", "trust"), (PORTS + r"qos default (switch-priority 0)", "default"),
    (PORTS + r"qos map (dscp \d+) to switch-priority (\d)", "map"), (PORTS + r"qos map (pcp \d dei [01]) to switch-priority (\d)", "map"),
    (PORTS + r"traffic-class (\d) bind switch-priority (\d)", "bind"), (PORTS + r"dcb priority-flow-control mode (on) force", "pfc"),
    (PORTS + r"traffic-class (\d) dcb ets (strict|wrr \d+)", "ets"), (PORTS + r"traffic-class (\d) bandwidth shape (\d+)M", "shape"),
    (PORTS + r"traffic-class (\d) congestion-control ecn minimum-absolute (\d+) maximum-absolute (\d+)", "ecn"),
    (PORTS + r"(ipv[46] port access-group \S+)", "group"),
]


def expand(names):
    """1/1-1/4 -> 1/1 1/2 1/3 1/4"""
    first, _, last = names.partition("-")
    chassis, _, start = first.rpartition("/")
    assert not last or last.rpartition("/")[0] == chassis, names
    return [f"{chassis}/{number}" for number in range(int(start), int(last.rpartition("/")[2] if last else start) + 1)]


class Onyx:
    most_mtu = 9216

    def __init__(self, text, wanted, device):
        self.wanted, self.own = wanted, {}
        self.priorities, self.enabled, self.denied, table = set(), False, {}, None
        for line in [line.strip() for line in text.splitlines() if not line.startswith("##")]:
            listed, rule = re.fullmatch(r"(ipv[46]) access-list (\S+)", line), re.fullmatch(r"deny ip any any dscp (\d+)", line)
            priority = re.fullmatch(r"dcb priority-flow-control priority (\d) enable", line)
            if listed:
                table = self.denied.setdefault(f"{listed[1]} port access-group {listed[2]}", set())
            elif rule:
                table.add(int(rule[1]))
            elif priority:
                self.priorities.add(int(priority[1]))
            elif line == "dcb priority-flow-control enable force":
                self.enabled = True
            elif line not in ("permit ip any any", "exit"):
                self.take(line)

    def take(self, line):
        for pattern, kind in WORDS:
            found = re.fullmatch(pattern, line)
            if found:
                names, first, *rest = found.groups()
                for port in expand(names):
                    row = self.own.setdefault(port, {})
                    assert (kind, first) not in row, line
                    row[kind, first] = rest
                return
        raise AssertionError(line)

    def ports(self):
        return sorted(self.own)

    def one(self, port, kind):
        found = [first for key, first in self.own[port] if key == kind]
        assert len(found) == 1, (port, kind, found)
        return found[0]

    def mtu(self, port):
        return int(self.one(port, "mtu"))

    def held(self, port):
        tables = [self.denied[group] for kind, group in self.own[port] if kind == "group"]
        assert len(tables) in (0, 2) and (not tables or tables[0] == tables[1]), tables
        return tables[0] if tables else set()

    def walk(self, port, dscp, pcp):
        row = self.own[port]
        found = {row["map", f"dscp {dscp}"][0]} if pcp is None else {row["map", f"pcp {pcp} dei {dei}"][0] for dei in "01"}
        assert len(found) == 1, found
        priority, trusted = int(found.pop()), self.one(port, "trust") == "both"
        assert trusted or self.one(port, "default")
        arrives = priority if trusted else 0
        queue = next(int(tc) for kind, tc in row if kind == "bind" and int(row[kind, tc][0]) == priority)
        stops = self.enabled and arrives in self.priorities and ("pfc", "on") in row and int(row["bind", str(arrives)][0]) == arrives
        shape, ecn = row.get(("shape", str(queue))), row.get(("ecn", str(queue)))
        return {"arrives": arrives, "group": arrives if stops else 0, "pfc": stops, "queue": queue, "strict": row["ets", str(queue)][0] == "strict",
                "shaper": int(shape[0]) * 1_000_000 if shape else None, "ecn": self.thresholds(queue, *map(int, ecn)) if ecn else False}

    def thresholds(self, queue, least, most):
        """In kB, upwards, and without a probability: what the file gives is met to one."""
        given = self.wanted.classes[queue]["ecn"]
        if given:
            low, high = (int(str(given[key]).split()[0]) * (1024 if "KiB" in str(given[key]) else 1) for key in ("kmin", "kmax"))
            if 0 <= least * 1000 - low < 1000 and 0 <= most * 1000 - high < 1000:
                return low, high, int(str(given["pmax"]).split()[0].rstrip("%"))
        return least * 1000, most * 1000, 100

    def ets(self, port):
        return {int(tc): rest[0] for (kind, tc), rest in self.own[port].items() if kind == "ets"}

    def served_first(self, port, used):
        served = self.ets(port)
        strict = sorted((queue for queue in used if served[queue] == "strict"), reverse=True)
        return strict + [sorted(queue for queue in used if served[queue] != "strict")]

    def weights(self, port):
        return {queue: int(how.split()[1]) for queue, how in self.ets(port).items() if how != "strict"}
