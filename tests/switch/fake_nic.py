#!/usr/bin/env -S python3 -SE
"""A NIC that is not there. Called as mlnx_qos, dcb, tc, ethtool or ip (see `install`), it keeps one NIC's settings in the JSON file FAKE_NIC and prints
them as those tools do; `ip` passes what is no VLAN on to the real one. FAKE_FAILS=N makes the Nth change fail. Every change is counted in `changes`.
A test starts it a thousand times, so it imports what starts fast."""

import json
import os
import sys

NEW = {"dcbx": "fw", "trust": "pcp", "dscp2prio": [d // 8 if d % 16 == 10 else 0 for d in range(64)], "pfc": [0] * 8, "prio_tc": [1, 0, 2, 3, 4, 5, 6, 7], "tsa": ["vendor"] * 8,
       "bw": [0] * 8, "rate": [0] * 8, "cable": 7, "prio2buffer": [0] * 8, "sizes": [524288, 0, 0, 0, 0, 0, 0, 0], "pause": ["on", "on"], "qdisc": None,
       "clsact": False, "filters": [], "app": {"24": 3}, "willing": "on", "vlan_egress": {"3": 4}, "vlan_ingress": {}, "changes": 0}
TOTAL = 524288


def install(folder, *tools):
    for tool in tools:
        (folder / tool).symlink_to(os.path.realpath(__file__))


def keep(nic):
    with open(os.environ["FAKE_NIC"], "w", encoding="utf-8") as kept:
        json.dump(nic, kept)


def change(nic):
    nic["changes"] += 1
    if nic["changes"] == int(os.environ.get("FAKE_FAILS", 0)):
        keep(nic)
        sys.exit(f"{sys.argv[0]}: firmware error")


def numbers(text):
    return [int(word) for word in text.split(",")]


def mlnx_qos(nic, args):
    assert args[:2] == ["-i", "eth0"], args
    options = dict(zip(args[2::2], args[3::2]))
    for option, value in options.items():
        change(nic)
        if option in ("-d", "--trust"):
            nic[{"-d": "dcbx", "--trust": "trust"}[option]] = value
        elif option == "--dscp2prio":
            dscp, prio = numbers(value.removeprefix("set,"))
            assert nic["trust"] == "dscp", "refused by the driver"
            nic["dscp2prio"][dscp] = prio
        elif option == "--tsa":
            nic["tsa"] = value.split(",")
            assert len(nic["tsa"]) == 8 and "ets" not in nic["tsa"] or sum(numbers(options["--tcbw"])) == 100
        else:
            key = {"--pfc": "pfc", "--prio_tc": "prio_tc", "--tcbw": "bw", "--ratelimit": "rate", "--cable_len": "cable", "--prio2buffer": "prio2buffer",
                   "--buffer_size": "sizes"}[option]
            nic[key] = int(value) if key == "cable" else numbers(value)
            assert sum(nic["sizes"]) <= TOTAL and (key == "cable" or len(nic[key]) == 8), "refused by the driver"
    lines = [f"DCBX mode: {'OS' if nic['dcbx'] == 'os' else 'Firmware'} controlled", f"Priority trust state: {nic['trust']}"]
    if nic["trust"] == "dscp":
        lines += ["dscp2prio mapping:"]
        for prio in range(8):
            dscps = [d for d in reversed(range(64)) if nic["dscp2prio"][d] == prio]
            lines += [f"\tprio:{prio} dscp:" + "".join(f"{d:02}," for d in dscps[i:i + 8]) for i in range(0, len(dscps), 8)]
    row = lambda values: "".join(f"{value}   " for value in values)
    lines += ["default priority:", f"Receive buffer size (bytes): {','.join(map(str, nic['sizes']))},total_size={TOTAL}", f"Cable len: {nic['cable']}",
              "PFC configuration:", "\tpriority    " + row(range(8)), "\tenabled     " + row(nic["pfc"]), "\tbuffer      " + row(nic["prio2buffer"])]
    for tc in range(8):
        rate = f"{nic['rate'][tc]}.0 Gbps" if nic["rate"][tc] else "unlimited"
        lines.append(f"tc: {tc} ratelimit: {rate}, tsa: {nic['tsa'][tc]}" + (f", bw: {nic['bw'][tc]}%" if nic["tsa"][tc] == "ets" else ""))
        lines += [f"\t priority:  {prio}" for prio in range(8) if nic["prio_tc"][prio] == tc]
    print("\n".join(lines))


def rate_text(mbps):
    return f"{mbps // 1000}Gbit" if mbps and mbps % 1000 == 0 else f"{mbps}Mbit" if mbps else "0bit"


def rate_mbps(text):
    return int(text.removesuffix("Gbit")) * 1000 if text.endswith("Gbit") else int(text.removesuffix("Mbit")) if text.endswith("Mbit") else 0


DCB = {"tc-tsa": "tsa", "tc-bw": "bw", "prio-tc": "prio_tc", "prio-pfc": "pfc", "tc-maxrate": "rate", "prio-buffer": "prio2buffer", "buffer-size": "sizes"}


def dcb_show(nic, name):
    if name == "willing":
        return f"willing {nic['willing']}"
    shown = {"prio-pfc": lambda v: "on" if v else "off", "tc-maxrate": lambda v: rate_text(v)}.get(name, str)
    return name + " " + " ".join(f"{i}:{shown(v)}" for i, v in enumerate(nic[DCB[name]]))


def dcb_set(nic, words):
    change(nic)
    name = None
    for word in words:
        if word in DCB or word == "willing":
            name = word
        elif name == "willing":
            nic["willing"] = word
        else:
            index, value = word.split(":")
            assert name, words
            value = {"on": 1, "off": 0}.get(value, value) if name == "prio-pfc" else rate_mbps(value) if name == "tc-maxrate" else value
            nic[DCB[name]][int(index)] = value if name == "tc-tsa" else int(value)
    assert sum(nic["sizes"]) <= TOTAL


def dcb(nic, args):
    flags = [arg for arg in args if arg.startswith("-")]
    kind, verb, dev, name, *words = [arg for arg in args if not arg.startswith("-")]
    assert (dev, name) == ("dev", "eth0"), args
    if kind == "dcbx":
        if verb == "set":
            change(nic)
            nic["dcbx"] = " ".join(words)
        print("host ieee" if nic["dcbx"] == "host ieee" else "lld_managed")
    elif kind == "app":
        if verb == "flush":
            change(nic)
            nic["app"] = {}
        elif verb == "add":
            change(nic)
            nic["app"] |= dict(word.split(":") for word in words[1:])
        elif nic["app"]:
            assert flags == ["-N"]
            print("dscp-prio " + " ".join(f"{dscp}:{nic['app'][dscp]}" for dscp in sorted(nic["app"], key=int)) + " ")
    elif verb == "set":
        dcb_set(nic, words)
    elif kind == "buffer":
        assert flags == ["-j"]
        print(json.dumps({"total-size": TOTAL} if words == ["total-size"] else {words[0]: nic[DCB[words[0]]]}))
    else:
        print("".join(f"{dcb_show(nic, word)} \n" for word in words))


def tc(nic, args):
    if args[:2] == ["qdisc", "show"]:
        if nic["qdisc"]:
            print(f"qdisc mqprio 8001: root tc 8 map {nic['qdisc']} \n             queues:(0:0)")
        else:
            print("qdisc mq 0: root")
        if nic["clsact"] and "root" not in args:
            print("qdisc clsact ffff: parent ffff:fff1")
    elif args[:2] == ["filter", "show"]:
        for index, (family, pref, tos, prio) in enumerate(nic["filters"]):
            print(f"filter protocol {family} pref {pref} flower chain 0 handle {index + 1:#x}\n  eth_type ipv4\n  ip_tos {tos}\n  not_in_hw\n"
                  f"\taction order 1: skbedit  priority :{prio} pipe\n\t index 1 ref 1 bind 1\n")
    else:
        change(nic)
        words = dict(zip(args, args[1:]))
        if args[:2] == ["qdisc", "add"]:
            if "clsact" in args:
                assert not nic["clsact"]
                nic["clsact"] = True
            else:
                assert "mqprio" in args and not nic["qdisc"] and words["hw"] == "1"
                nic["qdisc"] = " ".join(args[args.index("map") + 1:args.index("hw")])
        elif args[:2] == ["qdisc", "del"]:
            if "clsact" in args:
                nic["clsact"], nic["filters"] = False, []
            else:
                nic["qdisc"] = None
        elif args[:2] == ["filter", "del"]:
            nic["filters"] = [row for row in nic["filters"] if row[1] != words["pref"]]
        else:
            assert nic["clsact"]
            nic["filters"].append([words["protocol"], words["pref"], words["ip_tos"], words["priority"]])


def ethtool(nic, args):
    if args[0] == "-A":
        change(nic)
        nic["pause"] = [args[args.index("rx") + 1], args[args.index("tx") + 1]]
    else:
        print(f"Pause parameters for eth0:\nAutonegotiate:\toff\nRX:\t\t{nic['pause'][0]}\nTX:\t\t{nic['pause'][1]}")


def ip(nic, args):
    if args == ["-o", "link", "show", "type", "vlan"]:
        print("7: eth0.100@eth0: <BROADCAST,UP> mtu 9000 qdisc noqueue\n8: eth10.5@eth10: <BROADCAST,UP> mtu 9000")
    elif "eth0.100" in args and "set" in args:
        change(nic)
        key = "vlan_egress" if "egress-qos-map" in args else "vlan_ingress"
        nic[key] = {**nic[key], **dict(word.split(":") for word in args if ":" in word)}
    elif "eth0.100" in args:
        shown = [f"{name}-qos-map {{ {' '.join(f'{a}:{b}' for a, b in sorted(nic[f'vlan_{name}'].items()) if int(b))} }}" for name in ("ingress", "egress")]
        print(f"7: eth0.100@eth0: <UP>\n    vlan protocol 802.1Q id 100 <REORDER_HDR> {' '.join(shown)} addrgenmode eui64")
    else:
        os.execv("/usr/sbin/ip" if os.path.exists("/usr/sbin/ip") else "/sbin/ip", ["ip", *args])


def main():
    nic = NEW
    if os.path.exists(os.environ["FAKE_NIC"]):
        with open(os.environ["FAKE_NIC"], encoding="utf-8") as kept:
            nic = json.load(kept)
    {"mlnx_qos": mlnx_qos, "dcb": dcb, "tc": tc, "ethtool": ethtool, "ip": ip}[os.path.basename(sys.argv[0])](nic, sys.argv[1:])
    keep(nic)


if __name__ == "__main__":
    main()
