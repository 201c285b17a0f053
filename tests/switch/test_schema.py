#!/usr/bin/env python3
"""common/fabric/fabric.schema.json, which editors read: it takes every example, knows the same keys as the loader, and refuses what the
loader refuses by its form.
usage: test_schema.py TENSORLANE_SWITCH"""

import copy
import json
import pathlib
import re
import subprocess
import sys
import tempfile

import yaml

SWITCH = sys.argv[1]
ROOT = pathlib.Path(__file__).parents[2]
SCHEMA = json.loads((ROOT / "common/fabric/fabric.schema.json").read_text())
TYPES = {"object": dict, "array": list, "string": str, "boolean": bool, "integer": int, "number": (int, float), "null": type(None)}


def complaints(value, schema, path="fabric"):
    """What draft-07 says of a value, for the words that the schema uses."""
    unknown = set(schema) - {"$schema", "$ref", "title", "description", "definitions", "type", "properties", "additionalProperties", "required", "enum",
                             "anyOf", "items", "propertyNames", "maxProperties", "minItems", "maxItems", "minLength", "maxLength", "pattern", "minimum", "maximum"}
    assert not unknown, unknown
    if "$ref" in schema:
        return complaints(value, SCHEMA["definitions"][schema["$ref"].removeprefix("#/definitions/")], path)
    if "anyOf" in schema:
        each = [complaints(value, one, path) for one in schema["anyOf"]]
        return [] if [] in each else each[-1]
    if "enum" in schema:
        return [] if value in schema["enum"] else [f"{path}: {value!r} is none of {schema['enum']}"]
    kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    if not any(isinstance(value, TYPES[kind]) and (kind == "boolean" or not isinstance(value, bool)) for kind in kinds):
        return [f"{path}: {value!r} is no {kinds}"]
    found = []
    if isinstance(value, dict):
        found += [f"{path}: no {key}" for key in schema.get("required", []) if key not in value]
        if len(value) > schema.get("maxProperties", len(value)):
            found.append(f"{path}: {len(value)} properties")
        for key, item in value.items():
            found += complaints(key, {"type": "string", **schema["propertyNames"]}, f"{path}: the name {key}") if "propertyNames" in schema else []
            rest = schema.get("additionalProperties", True)
            if key in schema.get("properties", {}):
                found += complaints(item, schema["properties"][key], f"{path}.{key}")
            elif rest is False:
                found.append(f"{path}: unknown {key}")
            elif rest is not True:
                found += complaints(item, rest, f"{path}.{key}")
    elif isinstance(value, list):
        if not schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", len(value)):
            found.append(f"{path}: {len(value)} items")
        for i, item in enumerate(value):
            found += complaints(item, schema["items"], f"{path}[{i}]")
    elif isinstance(value, str):
        if not schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", len(value)) or not re.search(schema.get("pattern", ""), value):
            found.append(f"{path}: {value!r}")
    elif value is not None and not schema.get("minimum", value) <= value <= schema.get("maximum", value):
        found.append(f"{path}: {value!r}")
    return found


def load(folder, fabric):
    """The loader's error, or nothing."""
    path = folder / "fabric.yaml"
    path.write_text(yaml.safe_dump(fabric))
    done = subprocess.run([SWITCH, "lint", path], capture_output=True, text=True, timeout=60)
    return done.stderr if done.returncode == 2 else ""


# Every mapping of a fabric file once.
FULL = yaml.safe_load("""
classes:
  data: [{name: urgent, dscp: 46, pcp: 5, service_level: 5, lossless: true, rank: 0, window: 1 MiB}, {name: bulk, dscp: 26, pcp: 3}]
  control: {dscp: 51, pcp: 6}
  thresholds: [0.5]
hosts:
  - {name: "h[0-1]", addresses: {tcp: "10.0.0.[1-2]"}, rdma_devices: [mlx5_0], retry_budget: 4 s}
switches:
  - name: s0
    nos: sonic
    release: "202405"
    platform: {name: box, asic: spectrum3, buffer: 64 MiB, port_headroom: 1 MiB, queues: 8, lossless: 2, evidence: the manual}
    role: leaf
    ports: [{name: "Ethernet[0-4:4]", speed: 100G, lanes: 4}]
links:
  - {from: "h[0-1]", from_port: eth0, to: s0, to_port: "Ethernet[0-4:4]", speed: 100 Gbit/s, cable: 3 m, mtu: 9216}
qos:
  classes:
    urgent: {strict: true, shaper: 40 %, ecn: {kmin: 150 KiB, kmax: 1500 KiB, pmax: 5 %}}
    cnp: {dscp: 48, pcp: 4}
  headroom: {formula: current, port_mtu: 9216, lossless_mtu: 4096, small_packets: 100 %, shared_headroom: false, accept_estimate: true}
  watchdog: {poll: 100 ms, detection: 200 ms, restoration: 200 ms, action: drop}
  head_of_line_lifetime: 400 ms
  retry_budget: 4 s
routing: {mode: routes, routes: [[h0, s0, h1]]}
data_protection: encrypt
urgencies: [{job: "prod-*", tensor: "*", operation: allgather, at_least: 1 KiB, at_most: 1 MiB, urgency: 0.9}]
nccl:
  groups: [{group: "mesh_tp*", class: urgent}, {group: "*", class: mixed, operation: allgather, at_least: 1 KiB, at_most: 1 MiB}]
  mixed: bulk
  clear_to_send: control
  separate_reduce_scatter: true
  dropped: refuse
  environment: {NCCL_SOCKET_IFNAME: eth0, NCCL_IB_TIMEOUT: 22, NCCL_X: 1.5, NCCL_Y: true, NCCL_IB_TC: null}
""")

MAPPINGS = {
    (): "", ("classes",): "classes", ("classes", "data", 0): "data_class", ("classes", "control"): "control_class", ("hosts", 0): "host",
    ("hosts", 0, "addresses"): "host.addresses", ("switches", 0): "switch", ("switches", 0, "platform"): "platform", ("switches", 0, "ports", 0): "port",
    ("links", 0): "link", ("qos",): "qos", ("qos", "classes", "urgent"): "service", ("qos", "classes", "cnp"): "cnp", ("qos", "classes", "urgent", "ecn"): "ecn",
    ("qos", "headroom"): "headroom", ("qos", "watchdog"): "watchdog", ("routing",): "routing", ("urgencies", 0): "urgency",
    ("nccl",): "nccl", ("nccl", "groups", 0): "group_rule",
}


def at(fabric, path):
    for key in path:
        fabric = fabric[key]
    return fabric


def check_keys(folder):
    for path, name in MAPPINGS.items():
        changed = copy.deepcopy(FULL)
        at(changed, path)["zzzzzzzz"] = 1
        error = load(folder, changed)
        known = re.search(r"unknown key 'zzzzzzzz'.*expected one of (.*)\n", error)
        assert known, (path, error)
        definition = SCHEMA
        for part in name.split("."):
            definition = definition["definitions"][part] if part in SCHEMA["definitions"] else definition["properties"][part] if part else definition
        assert set(known[1].split(", ")) == set(definition["properties"]), (path, known[1], sorted(definition["properties"]))
        assert complaints(changed, SCHEMA), path
    assert set(SCHEMA["definitions"]) - {"name", "names", "ports", "rate", "bytes", "duration", "metres", "percent", "dscp", "pcp", "service_level", "address"} == {
        name for name in MAPPINGS.values() if name and "." not in name}


def check_words(folder):
    """Words of a list are those of the loader, which says them."""
    for path, definition in ((("switches", 0, "nos"), "switch"), (("switches", 0, "role"), "switch"), (("qos", "headroom", "formula"), "headroom"),
                             (("qos", "watchdog", "action"), "watchdog"), (("routing", "mode"), "routing"), (("data_protection",), ""),
                             (("urgencies", 0, "operation"), "urgency"), (("nccl", "groups", 1, "operation"), "group_rule"), (("nccl", "dropped"), "nccl")):
        changed = copy.deepcopy(FULL)
        at(changed, path[:-1])[path[-1]] = "zzzzzzzz"
        known = re.search(r"expected one of (.*)\n", load(folder, changed))
        assert known and known[1].split(", ") == (SCHEMA["definitions"][definition] if definition else SCHEMA)["properties"][path[-1]]["enum"], (path, known)


def check_mutations(folder):
    for path, value in (
        (("classes", "data", 0, "dscp"), 64), (("classes", "data", 0, "pcp"), 8), (("classes", "data", 0, "lossless"), 3), (("classes", "data", 0, "window"), "1 MB"),
        (("classes", "thresholds"), [2]), (("classes", "data"), []), (("hosts", 0, "addresses"), {}), (("hosts", 0, "control_port"), 0), (("hosts", 0, "name"), "a b"),
        (("hosts", 0, "name"), "x\x1b"), (("hosts", 0, "retry_budget"), "4"), (("switches", 0, "ports", 0, "lanes"), 3), (("switches", 0, "ports", 0, "speed"), "fast"),
        (("switches", 0, "platform", "queues"), 9), (("links", 0, "cable"), "3"), (("links", 0, "mtu"), 100), (("links", 0, "speed"), 100), (("qos", "classes", "urgent", "shaper"), 40),
        (("qos", "classes", "urgent", "ecn"), {"kmin": "1 KiB"}), (("qos", "headroom", "lookup"), "a;b"), (("routing", "routes"), [["h0", "h1"]]), (("hosts",), "h0"), (("data_protection",), "some"),
        (("nccl", "groups"), {}), (("nccl", "groups", 0), {"class": "bulk"}), (("nccl", "groups", 0, "group"), ""), (("nccl", "groups", 1, "at_most"), "1 MB"), (("nccl", "mixed"), "a b"),
        (("nccl", "separate_reduce_scatter"), 1), (("nccl", "environment"), []), (("nccl", "environment"), {"nccl_x": 1}), (("nccl", "environment"), {"UCX_TLS": "rc"}), (("nccl", "environment"), {"NCCL_": "1"}),
        (("nccl", "environment", "NCCL_X"), ["a"]), (("nccl", "environment"), {f"NCCL_{i}": 1 for i in range(257)}), (("nccl", "environment"), {"NCCL_" + 124 * "X": 1}),
    ):
        changed = copy.deepcopy(FULL)
        at(changed, path[:-1])[path[-1]] = value
        assert load(folder, changed), (path, value)
        assert complaints(changed, SCHEMA), (path, value)


def check_examples(folder):
    assert not load(folder, FULL), load(folder, FULL)
    assert not complaints(FULL, SCHEMA), complaints(FULL, SCHEMA)
    files = [ROOT / "deploy/examples/fabric.yaml", *sorted((ROOT / "tests/switch/golden").glob("*.yaml"))]
    assert len(files) > 2
    texts = [re.sub("PUBLIC-KEY-OF-GPU..", 40 * "x", path.read_text()) for path in files]
    for nos in ("sonic", "eos"):
        example = subprocess.run([SWITCH, "example", "clos", "--spines", "2", "--leaves", "4", "--hosts", "8", "--nos", nos], capture_output=True, text=True, timeout=60)
        texts.append(example.stdout)
    for text in texts:
        assert not complaints(yaml.safe_load(text), SCHEMA), (complaints(yaml.safe_load(text), SCHEMA), text)


def main():
    for check in (check_examples, check_keys, check_words, check_mutations):
        with tempfile.TemporaryDirectory() as folder:
            check(pathlib.Path(folder))


main()
