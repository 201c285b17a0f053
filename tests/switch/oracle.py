"""What each port of a fabric is to do with each DSCP and PCP, and what rendered configuration does with it.

wanted(fabric) and walk_sonic/walk_linux answer in the same words, so that a test compares them. Nothing here is shared with the renderers."""

import itertools
import math
import re

import yaml

PRESETS = {name: {"data": [{"name": "urgent", "dscp": 43, "pcp": 5, "lossless": True}, {"name": "bulk", "dscp": bulk, "pcp": 3, "lossless": True}]}
           for name, bulk in (("greenfield", 27), ("brownfield", 26))}
CONTROL = {"name": "control", "dscp": 51, "pcp": 6}


def expand(pattern):
    """h[0-4:2*2] -> h0 h0 h2 h2 h4 h4"""
    parts = re.split(r"\[(\d+)-(\d+)(?::(\d+))?(?:\*(\d+))?\]", str(pattern))
    choices = []
    for i in range(0, len(parts) - 1, 5):
        first, last, step, repeat = parts[i + 1:i + 5]
        numbers = [str(n) for n in range(int(first), int(last) + 1, int(step or 1)) for _ in range(int(repeat or 1))]
        choices.append([parts[i] + n for n in numbers])
    return ["".join(chosen) + parts[-1] for chosen in itertools.product(*choices)]


def rate(text):
    number, unit = re.fullmatch(r"([\d.]+) ?(G|M)(?:bit/s)?", text).groups()
    return int(float(number) * {"G": 1_000_000_000, "M": 1_000_000}[unit])


def size(text):
    number, unit = re.fullmatch(r"(\d+) ?(KiB|MiB|)", str(text)).groups()
    return int(number) * {"KiB": 1024, "MiB": 1048576, "": 1}[unit]


def percent(text):
    return int(str(text).split()[0].rstrip("%"))


class Wanted:
    """classes: queue -> what is known of its class. ports: device -> port -> speed, lossless cable, trust."""

    def __init__(self, text):
        self.fabric = fabric = yaml.safe_load(text)
        table = fabric.get("classes", "greenfield")
        table = PRESETS[table] if isinstance(table, str) else table
        data = sorted(({"rank": i, "lossless": True, **cls} for i, cls in enumerate(table["data"])), key=lambda cls: cls["rank"])
        services = (fabric.get("qos") or {}).get("classes", {})
        control = table.get("control", CONTROL)
        self.classes = {0: {"name": "default", "strict": False}}
        for i, cls in enumerate(data):
            self.classes[cls["pcp"]] = {"name": cls["name"], "dscp": cls["dscp"], "lossless": cls["lossless"], "data": True, "strict": i == 0}
        self.classes[control["pcp"]] = {"name": control.get("name", "control"), "dscp": control["dscp"], "strict": True}
        cnp = services.get("cnp", {})
        pcp = cnp.get("pcp", max(q for q in range(1, data[0]["pcp"]) if q not in self.classes) if "pcp" not in cnp else 0)
        self.classes[pcp] = {"name": "cnp", "dscp": cnp.get("dscp", 48), "strict": True}
        for cls in self.classes.values():
            service = services.get(cls["name"], {})
            cls["strict"] = service.get("strict", cls["strict"])
            cls["weight"] = percent(service["weight"]) if "weight" in service else None
            cls["ecn"] = service.get("ecn")
            usual = None if not cls["strict"] else 40 if cls.get("data") else 5
            cls["shaper"] = percent(service["shaper"]) if "shaper" in service else usual
        self.queue_of_dscp = {cls["dscp"]: queue for queue, cls in self.classes.items() if queue}
        watchdog = (fabric.get("qos") or {}).get("watchdog", {})
        self.watchdog = tuple(int(str(watchdog.get(key, usual)).split()[0]) for key, usual in (("poll", 100), ("detection", 200), ("restoration", 200)))
        self.watchdog += (watchdog.get("action", "drop") == "drop",)
        self.ports = {}
        for switch in fabric["switches"]:
            for name in expand(switch["name"]):
                self.ports[name] = {port: {"speed": rate(entry["speed"]), "trusted": False}
                                    for entry in switch["ports"] for port in expand(entry["name"])}
        for link in fabric["links"]:
            ends = [expand(link[key]) for key in ("from", "from_port", "to", "to_port")]
            for i in range(max(map(len, ends))):
                here = [end[i % len(end)] for end in ends]
                for device, port in (here[:2], here[2:]):
                    if device in self.ports:
                        self.ports[device][port].update(trusted=True, cable=float(link["cable"].split()[0]), mtu=link.get("mtu", 1500))
        for ports in self.ports.values():
            largest = max([port["mtu"] for port in ports.values() if "mtu" in port] + [1500])
            for port in ports.values():
                port.setdefault("mtu", largest)

    def of(self, device, port, dscp, pcp, software=False):
        """What this port does with a packet that arrives there, and what it does with one that leaves it."""
        trusted = self.ports[device][port]["trusted"]
        queue = self.queue_of_dscp.get(dscp, 0) if pcp is None else pcp if pcp in self.classes else 0
        arrives = queue if trusted else 0
        lossless = trusted and not software and bool(self.classes[arrives].get("lossless"))
        leaves = self.classes[queue]
        return {"arrives": arrives, "group": arrives if lossless else 0, "pfc": lossless, "queue": queue, "strict": leaves["strict"],
                "shaper": self.ports[device][port]["speed"] * leaves["shaper"] // 100 if leaves["shaper"] else None,
                "ecn": (size(leaves["ecn"]["kmin"]), size(leaves["ecn"]["kmax"]), percent(leaves["ecn"].get("pmax", 100)))
                if leaves["ecn"] else bool(leaves.get("data"))}

    def held(self, device, port):
        """DSCPs of classes that do not get through from a port without a link; CNP's, which routing uses, does."""
        return set() if self.ports[device][port]["trusted"] else {cls["dscp"] for cls in self.classes.values() if cls.get("dscp") and cls["name"] != "cnp"}

    def served_first(self):
        """Queues with traffic, most urgent first; weighted ones stand together at the end."""
        strict = sorted((queue for queue, cls in self.classes.items() if cls["strict"]), reverse=True)
        return strict + [sorted(queue for queue, cls in self.classes.items() if not cls["strict"])]


def same(wanted, found):
    """Equal, where ECN whose thresholds the file leaves to the tool is any ECN that is sound."""
    wanted, found = dict(wanted), dict(found)
    if isinstance(wanted["ecn"], bool):
        ecn = found["ecn"]
        found["ecn"] = bool(ecn) and 0 < ecn[0] < ecn[1] and 1 <= ecn[2] <= 100
    if wanted["shaper"] and found["shaper"] and abs(wanted["shaper"] - found["shaper"]) <= 800:  # whole bytes
        found["shaper"] = wanted["shaper"]
    return wanted == found


class Sonic:
    def __init__(self, db):
        self.db = db

    def ports(self):
        return sorted(set(self.db["PORT_QOS_MAP"]))

    def walk(self, port, dscp, pcp):
        binding = self.db["PORT_QOS_MAP"][port]
        lookup = lambda table, key, name: int(self.db[table][binding[name]][str(key)])
        if pcp is None:
            tc, leaving = lookup("DSCP_TO_TC_MAP", dscp, "dscp_to_tc_map"), int(self.db["DSCP_TO_TC_MAP"]["FABRIC"][str(dscp)])
        else:
            tc, leaving = lookup("DOT1P_TO_TC_MAP", pcp, "dot1p_to_tc_map"), int(self.db["DOT1P_TO_TC_MAP"]["FABRIC"][str(pcp)])
        queue = lookup("TC_TO_QUEUE_MAP", leaving, "tc_to_queue_map")
        row = self.db["QUEUE"][f"{port}|{queue}"]
        scheduler = self.db["SCHEDULER"][row["scheduler"]]
        profile = self.db["WRED_PROFILE"].get(row.get("wred_profile")) if "WRED_PROFILE" in self.db else None
        group = lookup("TC_TO_PRIORITY_GROUP_MAP", tc, "tc_to_pg_map")
        enabled = [int(p) for p in binding.get("pfc_enable", "").split(",") if p]
        return {"arrives": tc, "queue": queue, "strict": scheduler["type"] == "STRICT",
                "shaper": int(scheduler["pir"]) * 8 if "pir" in scheduler else None, "group": group if group in enabled else 0,
                "pfc": self.stops(port, tc, group, enabled),
                "ecn": (int(profile["green_min_threshold"]), int(profile["green_max_threshold"]), int(profile["green_drop_probability"]))
                if profile else False}

    def held(self, port):
        rules = {}
        for key, rule in self.db.get("ACL_RULE", {}).items():
            assert rule["PACKET_ACTION"] == "DROP"
            table = key.split("|")[0]
            if port in self.db["ACL_TABLE"][table]["ports"]:
                rules.setdefault(self.db["ACL_TABLE"][table]["type"], set()).add(int(rule["DSCP"]))
        assert not rules or rules["L3"] == rules["L3V6"], rules
        return rules.get("L3", set())

    def stops(self, port, tc, group, enabled):
        """A full group asks its peer to stop this priority, the same priority stops the queue, and the group has room to do so."""
        if group not in enabled:
            return False
        binding, number = self.db["PORT_QOS_MAP"][port], str(group)
        stopped = self.db["MAP_PFC_PRIORITY_TO_QUEUE"][binding["pfc_to_queue_map"]][number]
        own = self.db["PFC_PRIORITY_TO_PRIORITY_GROUP_MAP"][binding["pfc_to_pg_map"]][number]
        room = self.db["BUFFER_PG"].get(f"{port}|{number}", {}).get("profile")
        if room not in (None, "NULL"):
            profile = self.db["BUFFER_PROFILE"][room]
            assert int(profile["xoff"]) > 0 and int(profile["size"]) > 0, profile
        length = self.db["CABLE_LENGTH"]["AZURE"].get(port)
        assert binding["pfcwd_sw_enable"] == binding["pfc_enable"] and port in self.db["PFC_WD"] and length, port
        return int(own) == group and int(stopped) == tc and room is not None

    def served_first(self, port, used):
        kinds = {queue: self.db["SCHEDULER"][self.db["QUEUE"][f"{port}|{queue}"]["scheduler"]] for queue in range(8)}
        strict = [queue for queue in range(7, -1, -1) if kinds[queue]["type"] == "STRICT" and queue in used]
        return strict + [[queue for queue in range(8) if kinds[queue]["type"] != "STRICT" and queue in used]]

    def weights(self, port):
        rows = [self.db["SCHEDULER"][self.db["QUEUE"][f"{port}|{queue}"]["scheduler"]] for queue in range(8)]
        return {queue: int(row["weight"]) for queue, row in enumerate(rows) if row["type"] == "DWRR"}


class Linux:
    """tc's lines of an apply.sh."""

    def __init__(self, text):
        self.lines = {}
        for line in text.splitlines():
            words = line.split()
            if words[1:3] == ["add", "dev"]:
                self.lines.setdefault(words[3], []).append([words[0]] + words[4:])

    def ports(self):
        return sorted(self.lines)

    def classes(self, port):
        return {words[4]: dict(zip(words[5::2], words[6::2])) for words in map(self.htb, self.lines[port]) if words}

    @staticmethod
    def htb(words):
        # class parent 1:1 classid 1:16 htb rate R ceil C burst B cburst B prio P quantum Q
        return words[:5] + words[6:] if words[0] == "class" and words[2] == "1:1" else None

    def walk(self, port, dscp, pcp):
        assert pcp is None
        flows = {words[-1] for words in self.lines[port] if words[0] == "filter" and words[1] != "ingress" and self.matches(words, dscp)}
        assert len(flows) <= 1, (port, dscp, flows)
        flow = flows.pop() if flows else "1:10"
        dropped = any(words[1] == "ingress" and self.matches(words, dscp) for words in self.lines[port])
        own = self.classes(port)[flow]
        queue = int(flow.split(":")[1], 16) - 16
        strangers = any(words[1] == "ingress" for words in self.lines[port])  # CNP's mark is routing protocols', too: it passes
        arrives = 0 if dropped or strangers else queue
        ceil, speed = int(own["ceil"][:-3]), self.speed(port)
        red = next((words for words in self.lines[port] if words[:3] == ["qdisc", "parent", flow] and "red" in words), None)
        value = lambda key: float(red[red.index(key) + 1])
        return {"arrives": arrives, "queue": queue, "strict": own["prio"] != "7", "shaper": ceil if ceil != speed else None, "group": 0, "pfc": False,
                "ecn": (int(value("min")), int(value("max")), round(value("probability") * 100)) if red and red[-1] == "ecn" else False}

    def held(self, port):
        by_protocol = {protocol: {dscp for dscp in range(64) for words in self.lines[port]
                                  if words[1:4] == ["ingress", "protocol", protocol] and words[-2:] == ["action", "drop"] and self.matches(words, dscp)}
                       for protocol in ("ip", "ipv6")}
        assert by_protocol["ip"] == by_protocol["ipv6"], by_protocol
        return by_protocol["ip"]

    @staticmethod
    def matches(words, dscp):
        """IPv4, IPv6 and both behind a tag must agree: each protocol's filter is looked at."""
        text = " ".join(words)
        for found, shift in ((re.search(r"(?:dsfield|priority) (0x\w+) 0xfc", text), 2), (re.search(r"u16 (0x4\w+) 0xf0fc", text), 2),
                             (re.search(r"u16 (0x6\w+) 0xffc0", text), 6)):
            if found:
                return (int(found[1], 16) & (0xfc << (shift - 2))) >> shift == dscp
        return False

    def speed(self, port):
        root = next(words for words in self.lines[port] if words[:3] == ["class", "parent", "1:"])
        return int(root[root.index("rate") + 1][:-3])

    def served_first(self, port, used):
        queues = {int(flow.split(":")[1], 16) - 16: int(own["prio"]) for flow, own in self.classes(port).items()}
        assert set(queues) == set(used), (queues, used)
        strict = sorted((queue for queue in queues if queues[queue] != 7), key=lambda queue: queues[queue])
        return strict + [sorted(queue for queue in queues if queues[queue] == 7)]

    def weights(self, port):
        left = {int(flow.split(":")[1], 16) - 16: int(own["rate"][:-3]) for flow, own in self.classes(port).items() if own["prio"] == "7"}
        return {queue: rate_ * 100 / sum(left.values()) for queue, rate_ in left.items()}


class OpenConfig:
    def __init__(self, config):
        self.qos = config["openconfig-qos:qos"]
        self.interfaces = config["openconfig-interfaces:interfaces"]["interface"]
        self.bindings = {entry["interface-id"]: entry for entry in self.qos["interfaces"]["interface"]}
        self.queue_ids = {entry["name"]: entry["config"]["queue-id"] for entry in self.qos["queues"]["queue"]}
        self.groups = {entry["name"]: entry["config"]["output-queue"] for entry in self.qos["forwarding-groups"]["forwarding-group"]}
        self.classifiers = {entry["name"]: entry["terms"]["term"] for entry in self.qos["classifiers"]["classifier"]}
        self.policies = {entry["name"]: sorted(entry["schedulers"]["scheduler"], key=lambda one: one["sequence"])
                         for entry in self.qos["scheduler-policies"]["scheduler-policy"]}
        self.profiles = {entry["name"]: entry["wred"]["uniform"]["config"]
                         for entry in self.qos.get("queue-management-profiles", {}).get("queue-management-profile", [])}

    def ports(self):
        assert sorted(entry["name"] for entry in self.interfaces) == sorted(self.bindings)
        return sorted(self.bindings)

    def classify(self, name, dscp):
        found = []
        for family in ("ipv4", "ipv6"):
            terms = [term for term in self.classifiers[f"{name}-{family.upper()}"] if dscp in term["conditions"][family]["config"]["dscp-set"]]
            assert len(terms) == 1, (name, dscp, terms)
            found.append(self.queue_ids[self.groups[terms[0]["actions"]["config"]["target-group"]]])
        assert found[0] == found[1], (name, dscp)
        return found[0]

    def held(self, port):
        names = {entry["config"]["name"] for entry in self.bindings[port]["input"]["classifiers"]["classifier"]}
        sets = [{dscp for term in self.classifiers[name] if term["actions"].get("remark", {}).get("config", {}).get("set-dscp") == 0
                 for conditions in term["conditions"].values() for dscp in conditions["config"]["dscp-set"]} for name in names]
        assert len(sets) == 2 and sets[0] == sets[1], sets
        return sets[0]

    def schedulers(self, port):
        return self.policies[self.bindings[port]["output"]["scheduler-policy"]["config"]["name"]]

    def walk(self, port, dscp, pcp):
        assert pcp is None
        bound = {entry["config"]["name"].split("-")[0] for entry in self.bindings[port]["input"]["classifiers"]["classifier"]}
        assert len(bound) == 1, bound
        arrives, queue = self.classify(bound.pop(), dscp), self.classify("FABRIC", dscp)
        name = next(name for name, number in self.queue_ids.items() if number == queue)
        own = next(one for one in self.schedulers(port) if name in [entry["config"]["queue"] for entry in one["inputs"]["input"]])
        row = next(entry for entry in self.bindings[port]["output"]["queues"]["queue"] if entry["name"] == name)
        ecn = self.profiles.get(row["config"].get("queue-management-profile"))
        return {"arrives": arrives, "group": 0, "pfc": False, "queue": queue, "strict": own["config"].get("priority") == "STRICT",
                "shaper": int(own["one-rate-two-color"]["config"]["cir"]) if "one-rate-two-color" in own else None,
                "ecn": (int(ecn["min-threshold"]), int(ecn["max-threshold"]), ecn["max-drop-probability-percent"]) if ecn and ecn["enable-ecn"] else False}

    def served_first(self, port, used):
        order = []
        for one in self.schedulers(port):
            queues = sorted(self.queue_ids[entry["config"]["queue"]] for entry in one["inputs"]["input"])
            order.append(queues[0] if one["config"].get("priority") == "STRICT" and len(queues) == 1 else queues)
        return order

    def weights(self, port):
        weights = {self.queue_ids[entry["config"]["queue"]]: int(entry["config"]["weight"])
                   for one in self.schedulers(port) for entry in one["inputs"]["input"] if "weight" in entry["config"]}
        return {queue: weight * 100 / sum(weights.values()) for queue, weight in weights.items()}


def differences(wanted, device, found):
    """What configuration does otherwise than the fabric file says, as lines of text. Some have no words for PFC, some none for PCP."""
    no_pfc, no_pcp = isinstance(found, (Linux, OpenConfig)), getattr(found, "no_pcp", isinstance(found, (Linux, OpenConfig)))
    lines = []
    if hasattr(found, "watchdog") and any(cls.get("lossless") for cls in wanted.classes.values()) and found.watchdog() != wanted.watchdog:
        lines.append(f"{device}: watchdog {found.watchdog()}, not {wanted.watchdog}")
    if found.ports() != sorted(wanted.ports[device]):
        lines.append(f"{device}: ports {found.ports()}")
    share = sum(cls["shaper"] for cls in wanted.classes.values() if cls["strict"])
    for port in sorted(set(found.ports()) & set(wanted.ports[device])):
        for dscp, pcp in [(dscp, None) for dscp in range(64)] + [(None, pcp) for pcp in range(8) if not no_pcp]:
            is_, should = found.walk(port, dscp, pcp), wanted.of(device, port, dscp, pcp, no_pfc)
            if isinstance(is_["shaper"], tuple):
                is_["shaper"] = wanted.ports[device][port]["speed"] * is_["shaper"][1] // 100
            if not same(should, is_):
                lines.append(f"{device} {port}: DSCP {dscp} PCP {pcp}: {is_}, not {should}")
        if not hasattr(found, "cannot_hold") and found.held(port) != wanted.held(device, port):
            lines.append(f"{device} {port}: holds DSCPs {found.held(port)}, not {wanted.held(device, port)}")
        if hasattr(found, "mtu") and found.mtu(port) != min(wanted.ports[device][port]["mtu"], found.most_mtu):
            lines.append(f"{device} {port}: MTU {found.mtu(port)}")
        if found.served_first(port, wanted.classes) != wanted.served_first():
            lines.append(f"{device} {port}: served {found.served_first(port, wanted.classes)}, not {wanted.served_first()}")
        weights = found.weights(port)
        if not math.isclose(sum(weights.values()), 100, abs_tol=0.01) or weights[0] * (100 - share) < 1000 - 1e-6:
            lines.append(f"{device} {port}: weights {weights}")
        if any(weight > 1 for queue, weight in weights.items() if queue not in wanted.classes):
            lines.append(f"{device} {port}: weights {weights} of queues without traffic")
        given = {queue: cls["weight"] for queue, cls in wanted.classes.items() if cls["weight"]}
        for a, b in itertools.combinations(given, 2):
            if given[a] > given[b] * 1.2 and not weights[a] > weights[b]:
                lines.append(f"{device} {port}: weights {weights}, not as {given}")
    return lines
