"""Random fabric files: fabric_text(seed, nos) gives equal text for equal seeds."""

import random


# How a NOS calls its ports: text, the first number, and text; SONiC counts lanes.
NAMES = {"eos": ("Ethernet", 1, "/1"), "nxos": ("Ethernet1/", 1, ""), "junos": ("et-0/0/", 0, ""), "cumulus": ("swp", 1, ""), "onyx": ("1/", 1, "")}


def fabric_text(seed, nos="sonic"):
    pick = random.Random(seed)
    spines, leaves = pick.randint(1, 3), pick.randint(1, 4)
    each = pick.randint(1, 4)
    spare = pick.randint(0, 2)  # listed ports without a link
    speed, lanes, step = pick.choice([("100 Gbit/s", 4, 4), ("400G", 8, 8), ("25G", 1, 1), ("200G", 4, 4)])
    cables = pick.sample([1, 3, 5, 40, 100] if nos == "sonic" else [1, 5, 40, 100, 300], 2)
    platform = pick.choice(["SN4700", "SN5600", "SN3700", '{name: other, buffer: 200 MiB, queues: 8, lossless: 2}'])
    before, base, after = NAMES.get(nos, ("Ethernet", 0, ""))
    step = step if nos == "sonic" else 1

    def named(first, last, repeat=""):
        return f"{before}[{base + first * step}-{base + last * step}:{step}{repeat}]{after}"

    lines = [classes(pick), f'hosts: [{{name: "h[0-{each * leaves - 1}]", addresses: {{tcp: "h[0-{each * leaves - 1}]"}}}}]', "switches:"]
    for role, count, ports in (("leaf", leaves, each + spines + spare), ("spine", spines, leaves)):
        lines.append(f'  - {{name: "{role}[0-{count - 1}]", nos: {nos}, role: {role}, platform: {platform}, '
                     f'ports: [{{name: "{named(0, ports - 1)}", speed: {speed}, lanes: {lanes}}}]}}')
    if "other" in platform:  # whose ASIC is not known
        lines[0] += ("" if "\nqos:" in lines[0] else "\nqos:") + "\n  headroom: {accept_estimate: true}"
    mtu = pick.choice([4200, 9000, 9216])
    lines += ["links:",
              f'  - {{from: "h[0-{each * leaves - 1}]", from_port: eth0, to: "leaf[0-{leaves - 1}*{each}]", '
              f'to_port: "{named(0, each - 1)}", speed: {speed}, cable: {cables[0]} m, mtu: {mtu}}}',
              f'  - {{from: "leaf[0-{leaves - 1}*{spines}]", from_port: "{named(each, each + spines - 1)}", '
              f'to: "spine[0-{spines - 1}]", to_port: "{named(0, leaves - 1, f"*{spines}")}", speed: {speed}, '
              f'cable: {cables[1]} m, mtu: {mtu}}}']
    return "\n".join(lines) + "\n"


def classes(pick):
    """Greenfield, or some classes with PCPs that descend with the rank, and services for a few of them."""
    if pick.random() < 0.3:
        return "classes: " + pick.choice(["greenfield", "brownfield"])
    count = pick.randint(2, 4)
    pcps = sorted(pick.sample([1, 2, 3, 5], count), reverse=True)
    dscps = pick.sample(range(1, 64), count + 2)
    lossless = pick.sample(range(count), pick.randint(0, 2))
    text = "classes:\n  data:\n"
    for i in range(count):
        text += f"    - {{name: class-{i}, dscp: {dscps[i]}, pcp: {pcps[i]}, lossless: {str(i in lossless).lower()}, rank: {i}}}\n"
    text += f"  control: {{name: ctl, dscp: {dscps[count]}, pcp: 6}}\nqos:\n  classes:\n"
    free = [pcp for pcp in range(1, 7) if pcp not in pcps and pcp != 6 and pcp > pcps[1]]
    if free:
        text += f"    cnp: {{dscp: {dscps[count + 1]}, pcp: {pick.choice(free)}, shaper: {pick.randint(1, 9)} %}}\n"
    else:
        text += "    cnp: {pcp: 7, dscp: %d}\n" % dscps[count + 1]
    text += f"    class-0: {{shaper: {pick.randint(10, 40)} %, ecn: {{kmin: {pick.randint(50, 100)} KiB, kmax: {pick.randint(200, 999)} KiB, pmax: {pick.randint(1, 100)} %}}}}\n"
    text += f"    class-1: {{weight: {pick.randint(10, 40)} %}}\n    default: {{weight: {pick.randint(30, 50)} %}}"
    return text
