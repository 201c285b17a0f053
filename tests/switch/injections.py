"""Changes of rendered configuration, one thing each, with what `diff` is to say of them. inject(nos, pick, text, device, wanted) answers the
changed text and the expected set of (what, running, wanted, class, frozenset of ports)."""

import re


def scheduling(strict, weight=None, level=None, most=None):
    text = "strict" if strict else f"weight {weight}"
    return text + (f", level {level}" if level else "") + (f", at most {most}" if most else "")


class Injection:
    def __init__(self, pick, text, device, wanted):
        self.pick, self.text, self.wanted, self.expected = pick, text, wanted, set()
        self.ports = wanted.ports[device]
        self.trusted = frozenset(port for port, kind in self.ports.items() if kind["trusted"])
        self.free = [d for d in range(64) if d not in wanted.queue_of_dscp]  # default traffic
        self.lossless = sorted(q for q, cls in wanted.classes.items() if cls.get("lossless"))

    def name(self, queue):
        return self.wanted.classes[queue]["name"] if queue in self.wanted.classes else ""

    def expect(self, what, running, wanted, queue, ports):
        """queue: of the class; None: no class's."""
        assert ports, what
        self.expected.add((what, running, wanted, "" if queue is None else self.name(queue), frozenset(ports)))

    def change(self, pattern, make):
        """Rewrites one of the places that match as make(match) says; None where there is none."""
        found = list(re.finditer(pattern, self.text))
        if not found:
            return None
        match = self.pick.choice(found)
        self.text = self.text[:match.start()] + make(match) + self.text[match.end():]
        return match

    def number(self, pattern, step=1):
        """Adds `step` to the group `n`, else to the last one, of a match: the match and both numbers."""
        group = lambda m: "n" if "n" in m.groupdict() else m.lastindex
        changed = lambda m: self.text[m.start():m.start(group(m))] + str(int(m[group(m)]) + step) + self.text[m.end(group(m)):m.end()]
        match = self.change(pattern, changed)
        return match and (match, int(match[group(match)]) + step, int(match[group(match)]))

    def default_to_other(self):
        return self.pick.choice(self.free), self.pick.choice([q for q in self.wanted.classes if q])


def eos(i):
    number = lambda q: 1 - q if q <= 1 and 1 not in i.wanted.classes else q
    queue = {number(q): q for q in range(8)}
    ports = lambda profile: [port for port, own in re.findall(r"interface (\S+)\n(?:   !.*\n)?   mtu \d+\n   service-profile (\S+)", i.text) if own == profile]
    dscp, to = i.default_to_other()
    i.change(rf"(qos map dscp (?:\d+ )*?){dscp} ((?:\d+ )*to traffic-class {number(0)}\n)", lambda m: f"{m[1]}{m[2]}qos map dscp {dscp} to traffic-class {number(to)}\n")
    i.expect(f"DSCP {dscp}", str(number(to)), str(number(0)), 0, i.trusted)
    match, now, was = i.number(r"(FABRIC-\d+)\n(?:   .*\n)*?   \S*tx-queue (\d)\n      priority strict\n      shape rate (\d+)")
    i.expect(f"scheduling of queue {match[2]}", scheduling(True, most=f"{now} %"), scheduling(True, most=f"{was} %"), queue[int(match[2])], ports(match[1]))
    match, now, was = i.number(r"qos profile (FABRIC-\d+)\n(?:   .*\n)*   \S*tx-queue (\d)\n      no priority\n      bandwidth percent (\d+)\n(?!      shape)", -1)
    i.expect(f"scheduling of queue {match[2]}", scheduling(False, now), scheduling(False, was), queue[int(match[2])], ports(match[1]))
    marks = r"qos profile (FABRIC-\d+)\n(?:   .*\n)*?   \S*tx-queue (\d)\n(?:      .*\n)*?      random-detect ecn (?=.*maximum-threshold (?P<most>\d+).*probability (?P<percent>\d+))minimum-threshold (\d+)"
    marking(i, marks, lambda m: (queue[int(m[2])], m[2], ports(m[1])))
    if i.lossless:
        match = i.change(r"qos profile (FABRIC-\d+)\n((?:   .*\n)*?)   priority-flow-control priority (\d) no-drop\n", lambda m: f"qos profile {m[1]}\n{m[2]}")
        i.expect(f"PFC of priority {match[3]}", "off", "on", queue[int(match[3])], ports(match[1]))
        match, now, was = i.number(r"default timeout 0\.(\d)\n")
        i.expect("watchdog detection", f"{now}00 ms", f"{was}00 ms", None, i.trusted)
    match = i.change(r"interface (\S+)\n((?:   !.*\n)?)   mtu (\d+)", lambda m: f"interface {m[1]}\n{m[2]}   mtu 1500")
    i.expect("MTU", "1500 bytes", f"{match[3]} bytes", None, [match[1]])


def marking(i, pattern, about, unit="bytes"):
    """about: of a match, the queue, its number in the configuration, and ports. The number is the lower threshold."""
    found = i.number(pattern)
    if found:
        match, now, was = found
        queue, number, ports = about(match)
        i.expect(f"ECN of queue {number}", *(f"marks between {low} and {match['most']} {unit}, {match['percent']} %" for low in (now, was)), queue, ports)


def nxos(i):
    group = {int(q): int(g) for q, g in re.findall(r"class FABRIC-TC(\d)\n    set qos-group (\d)", i.text)} | {0: 0}
    queue = {g: q for q, g in group.items()}
    ports = lambda policy: re.findall(rf"interface (\S+)\n(?:  .*\n)*?  service-policy type queuing output {policy}\n", i.text)
    of = lambda text: 0 if text == "-default" else int(text)
    dscp, to = i.default_to_other()
    i.change(rf"(FABRIC-TC{to}\n  match dscp )", lambda m: f"{m[1]}{dscp},")
    i.expect(f"DSCP {dscp}", str(group[to]), "0", 0, i.trusted)
    start = r"queuing (FABRIC-OUT-\d+)\n(?:  .*\n)*?  class type queuing c-out-8q-q(\S+)\n(?:    !.*\n)*"
    match, now, was = i.number(start + r"    priority level (\d)\n(?:    !.*\n)*    shape min 0 mbps max (\d+)")
    i.expect(f"scheduling of queue {match[2]}", *(scheduling(True, level=match[3], most=f"{n}000000 bit/s") for n in (now, was)), queue[of(match[2])], ports(match[1]))
    match, now, was = i.number(start + r"    bandwidth remaining percent ([1-9]\d*)\n(?!    (?:shape|!))", -1)
    i.expect(f"scheduling of queue {of(match[2])}", scheduling(False, now), scheduling(False, was), queue[of(match[2])], ports(match[1]))
    marking(i, start + r"(?:    .*\n)*?    random-detect (?=.*maximum-threshold (?P<most>\d+).*drop-probability (?P<percent>\d+))minimum-threshold (\d+)",
            lambda m: (queue[of(m[2])], of(m[2]), ports(m[1])))
    if i.lossless:
        match = i.change(r"interface (\S+)\n  mtu (\d+)\n  priority-flow-control mode on", lambda m: m[0][:-2] + "off")
        for q in i.lossless:
            i.expect(f"PFC of priority {group[q]}", "off", "on" if group[q] == q else f"on, as priority {q} of its frames", q, [match[1]])
        match, now, was = i.number(r"shutdown-multiplier (\d+)")
        i.expect("watchdog detection", f"{now * i.wanted.watchdog[0]} ms", f"{was * i.wanted.watchdog[0]} ms", None, i.trusted)
    match = i.change(r"interface (\S+)\n  mtu (\d+)", lambda m: f"interface {m[1]}\n  mtu 1500")
    i.expect("MTU", "1500 bytes", f"{match[2]} bytes", None, [match[1]])


def junos(i):
    ports = lambda policy: re.findall(rf"interfaces (\S+) scheduler-map {policy}\n", i.text)
    fc = lambda q: f"fabric-{q}" if q else "best-effort"
    dscp, to = i.default_to_other()
    i.change(rf"FABRIC-DSCP forwarding-class best-effort loss-priority low code-points {dscp:06b}\n", lambda m: m[0].replace("best-effort", fc(to)))
    i.expect(f"DSCP {dscp}", str(to), "0", 0, i.trusted)
    share = re.compile(r"schedulers (FABRIC-\d-\d+) shaping-rate percent (\d+)")
    match, now, was = i.number(r"schedulers FABRIC-(\d)-(\d+) shaping-rate percent (\d+)\n(?=set class-of-service schedulers \S+ priority strict)")
    i.expect(f"scheduling of queue {match[1]}", *(scheduling(True, most=f"{n} %") for n in (now, was)), int(match[1]), ports(f"FABRIC-{match[2]}"))
    shaped = {name for name, _ in share.findall(i.text)}
    match, now, was = i.number(r"schedulers FABRIC-(\d)-(\d+) transmit-rate percent (\d+)\n(?!.*shaping-rate)", -1)
    assert f"FABRIC-{match[1]}-{match[2]}" not in shaped
    i.expect(f"scheduling of queue {match[1]}", *(scheduling(False, n) for n in (now, was)), int(match[1]), ports(f"FABRIC-{match[2]}"))
    profile = r"drop-profiles FABRIC-(\d)-(\d+) interpolate fill-level (\d+)\n.*drop-probability 0\n.*drop-probability (\d+)"
    found = i.number(profile)
    if found:
        match, now, was = found
        low = re.search(rf"drop-profiles FABRIC-{match[1]}-{match[2]} interpolate fill-level (\d+)", i.text)[1]
        i.expect(f"ECN of queue {match[1]}", *(f"marks between {low} and {match[3]} percent of the queue's buffer, {n} %" for n in (now, was)), int(match[1]), ports(f"FABRIC-{match[2]}"))
    if i.lossless:
        gone = i.pick.choice(i.lossless)
        index = i.change(rf"set class-of-service congestion-notification-profile FABRIC-(\d+) input dscp code-point {i.wanted.classes[gone]['dscp']:06b} pfc\n", lambda m: "")[1]
        i.expect(f"PFC of priority {gone}", "off", "on", gone, ports(f"FABRIC-{index}"))
        match, now, was = i.number(r"notification-profile FABRIC-(\d+) pfc-watchdog recovery (\d+)")
        i.expect("watchdog restoration", f"{now} ms", f"{was} ms", None, ports(f"FABRIC-{match[1]}"))
        match, now, was = i.number(r"notification-profile FABRIC-(\d+) input cable-length (\d+)")
        i.expect("cable", f"{now} m", f"{was} m", None, ports(f"FABRIC-{match[1]}"))
    match = i.change(r"set interfaces (\S+) mtu (\d+)", lambda m: f"set interfaces {m[1]} mtu 1500")
    i.expect("MTU", "1500 bytes", f"{match[2]} bytes", None, [match[1]])


def cumulus(i):
    bound = lambda what: {name: names.split(",") for names, name in re.findall(rf"nv set interface (\S+) qos {what} profile (\S+)\n", i.text)}
    dscp, to = i.default_to_other()
    i.change(rf"dscp {dscp} switch-priority 0\n", lambda m: f"dscp {dscp} switch-priority {to}\n")
    i.expect(f"DSCP {dscp}", str(to), "0", 0, i.trusted)
    shared(i, r"egress-scheduler default-global traffic-class (\d) bw-percent (\d+)",
           r"egress-shaper (\S+) traffic-class (\d) max-rate (\d+)", bound("egress-shaper"))
    marking(i, r"congestion-control (\S+) traffic-class (\d) min-threshold (?P<n>\d+)(?=\n.*max-threshold (?P<most>\d+)\n.*probability (?P<percent>\d+))",
            lambda m: (int(m[2]), m[2], bound("congestion-control")[m[1]]))
    if i.lossless:
        gone = i.pick.choice(i.lossless)
        kept = ",".join(str(q) for q in i.lossless if q != gone) or "7"
        match = i.change(r"qos pfc (\S+) switch-priority \S+\n", lambda m: f"qos pfc {m[1]} switch-priority {kept}\n")
        i.expect(f"PFC of priority {gone}", "off", "on", gone, bound("pfc")[match[1]])
        if kept == "7":
            i.expect("PFC of priority 7", "on", "off", 7, bound("pfc")[match[1]])
        match, now, was = i.number(r"qos pfc (\S+) cable-length (\d+)")
        i.expect("cable", f"{now} m", f"{was} m", None, bound("pfc")[match[1]])
        match, now, was = i.number(r"pfc-watchdog robustness (\d+)")
        i.expect("watchdog detection", f"{now * i.wanted.watchdog[0]} ms", f"{was * i.wanted.watchdog[0]} ms", None, i.trusted)
    port = i.pick.choice(sorted(i.ports))
    i.text += f"nv set interface {port} link mtu 1500\n"
    i.expect("MTU", "1500 bytes", f"{i.ports[port]['mtu']} bytes", None, [port])


def shared(i, weights, shapers, bound):
    """Cumulus: one share for all ports, shapers for each kind of them."""
    match, now, was = i.number(shapers)
    q = int(match[2])
    if i.wanted.classes[q]["strict"]:
        i.expect(f"scheduling of queue {q}", *(scheduling(True, most=f"{n}000 bit/s") for n in (now, was)), q, bound[match[1]])
    else:  # its weight stands in another line
        i.text = i.text.replace(match[0][:-len(match[3])] + str(now), match[0])
    limited = {int(number) for _, number, _ in re.findall(shapers, i.text)}
    weighted = [int(number) for number, share in re.findall(weights, i.text) if int(share) > 1 and int(number) not in limited]
    q = i.pick.choice(weighted)
    match, now, was = i.number(weights.replace(r"(\d)", f"({q})", 1), -1)
    i.expect(f"scheduling of queue {q}", scheduling(False, now), scheduling(False, was), q, i.ports)


def flat(i):
    bound = lambda what: {name: names.split(",") for name, names in re.findall(rf"{what}\.(\S+?)\.port_set = (\S+)\n", i.text)}
    dscp, to = i.default_to_other()
    i.change(rf"(cos_0.priority_source.dscp = \[(?:\d+,)*?){dscp}(?:,|(?=\]))", lambda m: m[1])
    i.change(rf"cos_{to}.priority_source.dscp = \[", lambda m: f"{m[0]}{dscp},")
    i.expect(f"DSCP {dscp}", str(to), "0", 0, i.trusted)
    shared(i, r"default_egress_sched.egr_queue_(\d).bw_percent = (\d+)", r"shaping\.(\S+?)\.egr_queue_(\d)\.shaper = \[0, (\d+)", bound("shaping"))
    marking(i, r"ecn_red\.(fabric\d+q(\d))\.min_threshold_bytes = (?P<n>\d+)(?=\n.* = (?P<most>\d+)\n.* = (?P<percent>\d+))", lambda m: (int(m[2]), m[2], bound("ecn_red")[m[1]]))
    if i.lossless:
        gone = i.pick.choice(i.lossless)
        match = i.change(r"pfc\.(\S+?)\.cos_list = \[\S+\]", lambda m: f"pfc.{m[1]}.cos_list = [{','.join(str(q) for q in i.lossless if q != gone)}]")
        i.expect(f"PFC of priority {gone}", "off", "on", gone, bound("pfc")[match[1]])
        match, now, was = i.number(r"pfc\.(\S+?)\.cable_length = (\d+)")
        i.expect("cable", f"{now} m", f"{was} m", None, bound("pfc")[match[1]])


SYSTEMS = {"eos": ("eos", "config.txt", eos), "nxos": ("nxos", "config.txt", nxos), "junos": ("junos", "junos.set", junos),
           "nvue": ("cumulus", "nvue.sh", cumulus), "qos_features": ("cumulus", "qos_features.conf", flat)}


def inject(system, pick, text, device, wanted):
    injection = Injection(pick, text, device, wanted)
    SYSTEMS[system][2](injection)
    return injection.text, injection.expected
