"""Cumulus Linux: nvue.sh and qos_features.conf, read into the same words. DSCP or PCP -> switch priority -> traffic class."""

import functools
import re

from oracle_text import numbers


class Cumulus:
    def __init__(self):
        self.of = {"dscp": {}, "pcp": {}}  # code point -> switch priority
        self.queue_of = {priority: priority for priority in range(8)}
        self.strict, self.weight = set(), {}
        self.shaper, self.ecn = {}, {}  # port, queue -> kbit/s; its settings
        self.pfc, self.watched, self.trusting_none = {}, set(), set()  # port -> its PFC; ports with a watchdog; ports whose marks do not count
        self.all_ports, self.denied = set(), {}

    def ports(self):
        return sorted(self.all_ports)

    def held(self, port):
        return self.denied.get(port, set())

    def walk(self, port, dscp, pcp):
        of, point = (self.of["dscp"], dscp) if pcp is None else (self.of["pcp"], pcp)
        arrives, queue = 0 if port in self.trusting_none else of[point], self.queue_of[of[point]]
        flow = self.pfc.get(port, {"priorities": set()})
        stops = arrives in flow["priorities"]
        assert not stops or (flow["tx"] and flow["rx"] and flow["cable"] > 0 and port in self.watched and self.queue_of[arrives] == arrives), port
        ecn = self.ecn.get((port, queue), {})
        assert not ecn or (ecn["ecn"] and not ecn["red"]), ecn
        rate = self.shaper.get((port, queue))
        return {"arrives": arrives, "group": arrives if stops else 0, "pfc": stops, "queue": queue, "strict": queue in self.strict,
                "shaper": rate * 1000 if rate else None, "ecn": (ecn["min"], ecn["max"], ecn["probability"]) if ecn else False}

    def served_first(self, port, used):
        return sorted(self.strict & set(used), reverse=True) + [sorted(set(used) & set(self.weight))]

    def weights(self, port):
        assert None not in self.weight.values() and not self.strict & set(self.weight), self.weight
        return self.weight


class Nvue(Cumulus):
    most_mtu = 9216

    def __init__(self, text, wanted, device):
        super().__init__()
        lines = [line for line in text.splitlines() if not line.startswith("#")]
        assert lines[0] == "set -eu" and lines[-1] == "nv config apply", lines
        self.times, self.profiles, self.mtus, self.pools = {}, {}, {}, 0
        self.bound = []
        for line in lines[1:-1]:
            for pattern, take in self.words():
                found = re.fullmatch("nv set " + pattern, line)
                if found:
                    take(*found.groups())
                    break
            else:
                raise AssertionError(line)
        for ports, what, name in self.bound:
            self.bind(ports, what, name)
        assert self.pools == (100 if self.pfc else 0) or not any(cls.get("lossless") for cls in wanted.classes.values()), self.pools
        for port, flow in self.pfc.items():
            assert flow["cable"] >= wanted.ports[device][port]["cable"], (port, flow)

    @functools.cache
    def words(self):
        profile = lambda kind: lambda name, *rest: self.profiles.setdefault((kind, name), {}).update(dict([rest]))
        return [
            (r"qos mapping default-global trust both", lambda: None),
            (r"qos mapping default-global (dscp|pcp) (\d+) switch-priority (\d)", lambda what, point, priority: self.of[what].update({int(point): int(priority)})),
            (r"qos mapping (FABRIC-EDGE) (trust) (port)", profile("mapping")),
            (r"qos mapping (FABRIC-EDGE) (port-default-sp) (0)", profile("mapping")),
            (r"qos egress-queue-mapping default-global switch-priority (\d) traffic-class (\d)", lambda priority, tc: self.queue_of.update({int(priority): int(tc)})),
            (r"qos egress-scheduler default-global traffic-class (\d) mode strict", lambda tc: self.strict.add(int(tc))),
            (r"qos egress-scheduler default-global traffic-class (\d) mode dwrr", lambda tc: self.weight.setdefault(int(tc), None)),
            (r"qos egress-scheduler default-global traffic-class (\d) bw-percent (\d+)", lambda tc, weight: self.weight.update({int(tc): int(weight)})),
            (r"qos traffic-pool default-loss(?:less|y) memory-percent (\d+)", self.add_pool),
            (r"qos pfc-watchdog (polling-interval|robustness) (\d+)", lambda what, value: self.times.update({what: int(value)})),
            (r"qos pfc (\S+) (switch-priority) ([\d,]+)", profile("pfc")),
            (r"qos pfc (\S+) (tx|rx) (enable)", profile("pfc")),
            (r"qos pfc (\S+) (cable-length) (\d+)", profile("pfc")),
            (r"qos egress-shaper (\S+) traffic-class (\d) max-rate (\d+)", profile("egress-shaper")),
            (r"qos congestion-control (\S+) traffic-class (\d (?:ecn|red|min-threshold|max-threshold|probability)) (\S+)", profile("congestion-control")),
            (r"acl (\S+) (type) (ipv4|ipv6)", profile("acl")),
            (r"acl (\S+) (rule \d+ match ip dscp) (\d+)", profile("acl")),
            (r"acl (\S+) (rule \d+ action) (deny|permit)", profile("acl")),
            (r"interface (\S+) link mtu (\d+)", lambda ports, mtu: self.mtus.update({port: int(mtu) for port in ports.split(",")})),
            (r"interface (\S+) qos (pfc|egress-shaper|congestion-control|mapping) profile (\S+)", lambda *binding: self.bound.append(binding)),
            (r"interface (\S+) (acl) (\S+) inbound", lambda *binding: self.bound.append(binding)),
            (r"interface (\S+) qos pfc-watchdog state enabled?", lambda ports: self.watched.update(ports.split(","))),
        ]

    def add_pool(self, percent):
        self.pools += int(percent)

    def bind(self, ports, what, name):
        profile = self.profiles[what, name]
        for port in ports.split(","):
            self.all_ports.add(port)
            if what == "pfc":
                self.pfc[port] = {"priorities": numbers(profile["switch-priority"]), "tx": "tx" in profile, "rx": "rx" in profile, "cable": int(profile["cable-length"])}
            elif what == "egress-shaper":
                self.shaper.update({(port, int(tc)): int(rate) for tc, rate in profile.items()})
            elif what == "congestion-control":
                for tc in {key[0] for key in profile}:
                    self.ecn[port, int(tc)] = {"ecn": profile[f"{tc} ecn"] == "enable", "red": profile[f"{tc} red"] == "enable",
                                               **{key: int(profile[f"{tc} {word}"]) for key, word in (("min", "min-threshold"), ("max", "max-threshold"), ("probability", "probability"))}}
            elif what == "mapping":
                assert profile == {"trust": "port", "port-default-sp": "0"}, profile
                self.trusting_none.add(port)
            else:
                denied = {int(value) for key, value in profile.items() if key.endswith("dscp") and profile[key.replace("match ip dscp", "action")] == "deny"}
                assert profile["rule 999 action"] == "permit" and self.denied.setdefault(port, denied) == denied, profile

    def mtu(self, port):
        assert set(self.mtus) == self.all_ports
        return self.mtus[port]

    def watchdog(self):
        poll = self.times["polling-interval"]
        return poll, poll * self.times["robustness"], 200, True  # NVUE has no words for the other two


class QosFeatures(Cumulus):
    cannot_hold = True  # it has no words for access lists

    def __init__(self, text, wanted, device):
        super().__init__()
        rows = [line.split(" = ") for line in text.splitlines() if not line.startswith("#")]
        self.rows = dict(rows)
        assert len(self.rows) == len(rows), "a doubled row"
        used = {"traffic.packet_priority_source_set", "traffic.port_default_priority"}
        assert self.rows["traffic.packet_priority_source_set"] == "[802.1p,dscp]" and self.rows["traffic.port_default_priority"] == "0"
        for key, value in rows:
            point = re.fullmatch(r"traffic\.cos_(\d)\.priority_source\.(dscp|8021p)", key)
            if point:
                for number in self.list(value):
                    of = self.of["dscp" if point[2] == "dscp" else "pcp"]
                    assert int(number) not in of, number
                    of[int(number)] = int(point[1])
                used.add(key)
            scheduled = re.fullmatch(r"default_egress_sched\.egr_queue_(\d)\.bw_percent", key)
            if scheduled:
                self.strict.add(int(scheduled[1])) if value == "0" else self.weight.update({int(scheduled[1]): int(value)})
                used.add(key)
        for kind, take in (("source", self.take_source), ("pfc", self.take_pfc), ("pfc_watchdog", lambda port, group: self.watched.add(port)),
                           ("ecn_red", self.take_ecn), ("shaping", self.take_shaping)):
            names = self.list(self.rows.get(f"{kind}.port_group_list", "[]"))
            for name in names:
                group = {key.split(".", 2)[2]: value for key, value in rows if key.startswith(f"{kind}.{name}.")}
                for port in group["port_set"].split(","):
                    take(port, group)
            used |= {f"{kind}.port_group_list"} | {key for key in self.rows if key.startswith(f"{kind}.") and key.split(".")[1] in names}
        assert used >= set(self.rows), set(self.rows) - used

    @staticmethod
    def list(text):
        assert text[0] + text[-1] == "[]", text
        return [part for part in text[1:-1].split(",") if part]

    def take_source(self, port, group):
        assert group["packet_priority_source_set"] == "[port]" and group["port_default_priority"] == "0", group
        self.trusting_none.add(port)

    def take_pfc(self, port, group):
        self.pfc[port] = {"priorities": {int(one) for one in self.list(group["cos_list"])}, "tx": group["tx_enable"] == "true", "rx": group["rx_enable"] == "true",
                          "cable": int(group["cable_length"])}

    def take_ecn(self, port, group):
        for queue in self.list(group["egress_queue_list"]):
            assert (port, int(queue)) not in self.ecn, (port, queue)
            self.ecn[port, int(queue)] = {"ecn": group["ecn_enable"] == "true", "red": group["red_enable"] == "true", "min": int(group["min_threshold_bytes"]),
                                          "max": int(group["max_threshold_bytes"]), "probability": int(group["probability"])}

    def take_shaping(self, port, group):
        self.all_ports.add(port)
        for key, value in group.items():
            if key != "port_set":
                least, most = self.list(value.replace(" ", ""))
                assert least == "0"
                self.shaper[port, int(re.fullmatch(r"egr_queue_(\d)\.shaper", key)[1])] = int(most)
