#!/usr/bin/env python3
"""`tensorlane classes`: every number follows from the fabric file, in text, as JSON and as a shell reads it, and groups get the classes
that their names stand for.
usage: classes_command_test.py TENSORLANE"""

import fnmatch
import json
import pathlib
import re
import subprocess
import sys
import tempfile

TENSORLANE = str(pathlib.Path(sys.argv[1]).absolute())
HOSTS = "hosts: [{name: h0, addresses: {tcp: 10.0.0.1}}]\n"
FOUR = """classes:
  data:
    - {name: first.one, dscp: 46, pcp: 5, service_level: 12, lossless: false, rank: 0}
    - {name: 2nd, dscp: 40, pcp: 4, rank: 3}
    - {name: mixed, dscp: 20, pcp: 2, rank: 5}
    - {name: last_one, dscp: 0, pcp: 0, service_level: 1, rank: 9, lossless: false}
  control: {dscp: 63, pcp: 7, service_level: 15%s}
"""
# The columns of each: name, DSCP, PCP, service level, lossless; control last.
FABRICS = {
    "classes: greenfield\n": [("urgent", 43, 5, 5, True), ("bulk", 27, 3, 3, True), ("control", 51, 6, 6, False)],
    "classes: brownfield\n": [("urgent", 43, 5, 5, True), ("bulk", 26, 3, 3, True), ("control", 51, 6, 6, False)],
    "": [("urgent", 43, 5, 5, True), ("bulk", 27, 3, 3, True), ("control", 51, 6, 6, False)],
    FOUR % "": [("first.one", 46, 5, 12, False), ("2nd", 40, 4, 4, True), ("mixed", 20, 2, 2, True), ("last_one", 0, 0, 1, False), ("control", 63, 7, 15, False)],
}
LIBRARIES = {"nccl": ("NCCL_IB_TC", "NCCL_IB_SL"), "ucx": ("UCX_IB_TRAFFIC_CLASS", "UCX_IB_SL"), "ucc": ("UCX_IB_TRAFFIC_CLASS", "UCX_IB_SL"), "gloo": None,
             "mooncake": ("MC_IB_TC", "MC_IB_SL"), "nvshmem": ("NVSHMEM_IB_TRAFFIC_CLASS", "NVSHMEM_IB_SL"), "env": None}
SAME = {**dict.fromkeys(("NCCL_IB_TC", "NCCL_GIN_IB_TC", "NCCL_IB_ROCE_VERSION_NUM")), "NCCL_COMM_SPLIT_SHARE_RESOURCES": "0", "NCCL_COMM_SHRINK_SHARE_RESOURCES": "0"}

URGENT, BULK, MIXED = "urgent", "bulk", "mixed"
# Which class a group gets by the name that a program gives it; with reduce-scatters of FSDP2 in a group of their own, too, where that differs.
GROUPS = {
    # DeviceMesh, by PyTorch's documentation and TorchTitan.
    "mesh_tp": URGENT, "mesh_etp": URGENT, "mesh_pp": URGENT, "mesh_cp": URGENT, "mesh_sp": URGENT, "mesh_ep": URGENT,
    "mesh_dp_replicate": BULK, "mesh_replicate": BULK, "mesh_ddp": BULK,
    "mesh_dp": (MIXED, URGENT), "mesh_dp_shard": (MIXED, URGENT), "mesh_dp_shard_cp": (MIXED, URGENT), "mesh_dp_shard_mod_ep": (MIXED, URGENT),
    "mesh_fsdp": (MIXED, URGENT), "mesh_efsdp": (MIXED, URGENT), "mesh_shard": (MIXED, URGENT),
    "fsdp_reduce_scatter": BULK, "pp_p2p_downstream": URGENT, "mesh_sequence_parallel": URGENT, "mesh_data_parallel": MIXED, "EXPERT_DATA_PARALLEL_GROUP_AG": URGENT, "default_pg": MIXED, "undefined": MIXED, "": MIXED, "mesh_loss": MIXED, "mesh_batch": MIXED, "my_checkpoint_group": BULK, "mesh_tp_checkpoint": BULK, "async_ckpt": BULK,
    # Megatron-core 0.16, parallel_state.py.
    "DATA_PARALLEL_GROUP": MIXED, "DATA_PARALLEL_GROUP_GLOO": MIXED, "DATA_PARALLEL_GROUP_WITH_CP": MIXED, "DATA_PARALLEL_GROUP_WITH_CP_GLOO": MIXED,
    "DATA_PARALLEL_GROUP_WITH_CP_AG": URGENT, "INTRA_PARTIAL_DATA_PARALLEL_GROUP_WITH_CP": MIXED, "INTRA_PARTIAL_DATA_PARALLEL_GROUP_WITH_CP_GLOO": MIXED,
    "EXPERT_DATA_PARALLEL_GROUP": MIXED, "EXPERT_DATA_PARALLEL_GROUP_GLOO": MIXED, "HIERARCHICAL_EXPERT_DATA_PARALLEL_GROUP_L1": MIXED,
    "INTRA_DISTRIBUTED_OPTIMIZER_INSTANCE_GROUP": MIXED,
    "CONTEXT_PARALLEL_GROUP": URGENT, "HIERARCHICAL_CONTEXT_PARALLEL_GROUP_L0": URGENT, "HIERARCHICAL_CONTEXT_PARALLEL_GROUP_GLOO_L1": URGENT,
    "HYBRID_DP_CP_GROUP_4": URGENT, "MODEL_PARALLEL_GROUP": URGENT, "TENSOR_MODEL_PARALLEL_GROUP": URGENT, "PIPELINE_MODEL_PARALLEL_GROUP": URGENT,
    "EMBEDDING_GROUP": BULK, "POSITION_EMBEDDING_GROUP": BULK,
    "TENSOR_AND_DATA_PARALLEL_GROUP": URGENT, "TENSOR_AND_DATA_PARALLEL_GROUP_WITH_CP": URGENT, "TENSOR_AND_CONTEXT_PARALLEL_GROUP": URGENT,
    "EXPERT_MODEL_PARALLEL_GROUP": URGENT, "EXPERT_TENSOR_PARALLEL_GROUP": URGENT, "EXPERT_TENSOR_AND_MODEL_PARALLEL_GROUP": URGENT,
    "EXPERT_TENSOR_MODEL_PIPELINE_PARALLEL_GROUP": URGENT,
}


class Command:
    def __init__(self, folder):
        self.fabric = folder / "fabric.yaml"

    def run(self, text, library, *options):
        self.fabric.write_text(text + HOSTS)
        return self.on(self.fabric, library, *options)

    @staticmethod
    def on(fabric, library, *options):
        command = [TENSORLANE, "classes", "--for", library, "--fabric", fabric, *options]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, errors="surrogateescape")

    def text(self, text, library):
        done = self.run(text, library)
        assert done.returncode == 0 and not done.stderr, done
        return done.stdout

    def json(self, text, library):
        done = self.run(text, library, "--json")
        assert done.returncode == 0 and not done.stderr, done
        return json.loads(done.stdout)


def mark(dscp):
    return dscp * 4 + 2


def check_numbers(command):
    for text, classes in FABRICS.items():
        for library, names in LIBRARIES.items():
            policy = command.json(text, library)
            assert (policy["version"], policy["for"], policy["fabric"]) == (1, library, str(command.fabric)) and policy["notes"], policy
            assert len(policy["classes"]) == len(classes) - 1
            for row, (name, dscp, pcp, level, lossless) in zip([*policy["classes"], policy["control"]], classes):
                settings = {names[0]: str(mark(dscp)), names[1]: str(level)} if names else {}
                wanted = {"name": name, "rank": row["rank"], "dscp": dscp, "tos": mark(dscp), "traffic_class": mark(dscp), "pcp": pcp, "service_level": level,
                          "lossless": lossless, "settings": settings}
                assert row == wanted, (library, row, wanted)
            if text.startswith("classes:\n"):
                assert [c["rank"] for c in policy["classes"]] == [0, 3, 5, 9]
            assert ("rules" in policy) == (library == "nccl") and ("variables" in policy) == (library == "env"), policy


def check_text(command):
    """What people read has the numbers that programs read."""
    for text, classes in FABRICS.items():
        for library, names in LIBRARIES.items():
            if library == "env":
                continue
            shown, policy = command.text(text, library), command.json(text, library)
            rows = [line.split() for line in shown.splitlines()[1:len(classes) + 1]]
            for row, (name, dscp, pcp, level, _) in zip(rows, classes):
                settings = [f"{names[0]}={mark(dscp)}", f"{names[1]}={level}"] if names else []
                assert row == [name, str(dscp), str(mark(dscp)), str(pcp), str(level), *settings], (row, shown)
            assert all(note in shown for note in policy["notes"]), shown
            assert not re.search(r"[ \t]$", shown, re.M), shown
        shown, policy = command.text(text, "nccl"), command.json(text, "nccl")
        for name, value in policy["process"].items():
            assert (f"\n  {name}={value}\n" if value else f"\n  unset {name}\n") in shown, (name, shown)
        assert f"(NCCL_IB_FIFO_TC) have class '{policy['clear_to_send']['class']}'." in shown
        for rule in policy["rules"]:
            group, cls, rest = re.search(rf"^  ({re.escape(rule['group'])}) +([\w.-]+)(.*) default$", shown, re.M).groups()
            assert cls.rstrip(",") == rule["class"] and (f"which is {policy['mixed']}" in rest) == (rule["class"] == "mixed"), (rule, shown)


def check_nccl(command):
    """What every process is told, and of which class a receiver's readiness is."""
    for text, nccl, mixed, level, ready in (
        ("classes: greenfield\n", "", "bulk", 3, ("urgent", 43)), ("classes: brownfield\n", "", "bulk", 3, ("urgent", 43)),
        ("", "nccl: {mixed: urgent, clear_to_send: control}\n", "urgent", 5, ("control", 51)), ("", "nccl: {clear_to_send: bulk}\n", "bulk", 3, ("bulk", 27)),
        (FOUR % "", "", "mixed", 2, ("2nd", 40)), (FOUR % ", lossless: true", "", "mixed", 2, ("control", 63)),
        (FOUR % ", name: ctl, lossless: true", "nccl: {mixed: last_one}\n", "last_one", 1, ("ctl", 63)),
        (FOUR % ", name: ctl", "nccl: {clear_to_send: ctl}\n", "mixed", 2, ("ctl", 63)),
        ((FOUR % "").replace("rank: 3", "rank: 3, lossless: false").replace("rank: 5", "rank: 5, lossless: false"), "", "mixed", 2, ("first.one", 46)),
    ):
        policy = command.json(text + nccl, "nccl")
        assert policy["mixed"] == mixed and policy["clear_to_send"] == {"class": ready[0], "traffic_class": mark(ready[1])}, policy
        assert policy["process"] == {**SAME, "NCCL_IB_SL": str(level), "NCCL_IB_FIFO_TC": str(mark(ready[1]))}, policy
        assert (policy["separate_reduce_scatter"], policy["dropped"], policy["not_enforceable"]) == (False, "report", [])
    policy = command.json("nccl: {separate_reduce_scatter: true, dropped: refuse, environment: {NCCL_IB_SL: 9, NCCL_DEBUG: WARN, NCCL_IB_FIFO_TC: ~}}\n", "nccl")
    assert (policy["separate_reduce_scatter"], policy["dropped"]) == (True, "refuse")
    assert policy["process"] == {**SAME, "NCCL_IB_SL": "9", "NCCL_DEBUG": "WARN", "NCCL_IB_FIFO_TC": None}, policy["process"]


def check_rules(command):
    """Rules of the file before the defaults, and those by what NCCL cannot choose by."""
    text = """nccl:
  groups:
    - {group: "mesh_tp*", class: urgent}
    - {group: "a", class: bulk, operation: reducescatter}
    - {group: "b", class: mixed, at_least: 1 MiB}
    - {group: "c", class: bulk, operation: allgather, at_most: 1 KiB}
    - {group: "own", class: none}
    - {group: "*", class: mixed}
"""
    policy = command.json(text, "nccl")
    at = lambda line: f"{command.fabric}:{line}"
    defaults = command.json("", "nccl")["rules"]
    own = [{"group": "mesh_tp*", "class": "urgent", "where": at(3)}, {"group": "own", "class": "none", "where": at(7)}, {"group": "*", "class": "mixed", "where": at(8)}]
    assert policy["rules"] == own + defaults and len(defaults) > 20, policy["rules"]
    why = "NCCL's hint is one class for a whole communicator: a rule by %s is not enforceable here"
    assert policy["not_enforceable"] == [{"group": "a", "class": "bulk", "where": at(4), "why": why % "operation"}, {"group": "b", "class": "mixed", "where": at(5), "why": why % "size"},
                                         {"group": "c", "class": "bulk", "where": at(6), "why": why % "operation"}], policy["not_enforceable"]
    shown = command.text(text, "nccl")
    assert re.search(rf"^  mesh_tp\* +urgent +{at(3)}$", shown, re.M) and re.search(rf"^  own +none: NCCL's default, 0 +{at(7)}$", shown, re.M) and re.search(rf"^  b +mixed, which is bulk +{at(5)}: {why % 'size'}$", shown, re.M), shown
    policy = command.json("nccl: {groups: [{group: a, class: bulk, at_least: 1 KiB}]}\n", "nccl")
    assert policy["rules"] == defaults and len(policy["not_enforceable"]) == 1, policy


def class_of(policy, group):
    """The class of the first rule that fits, and of where reduce-scatters cannot be separated."""
    rule = next(rule for rule in policy["rules"] if fnmatch.fnmatchcase(group, rule["group"]))
    return rule["class"], rule.get("shared", rule["class"])


def check_groups(command):
    for separate in (False, True):
        policy = command.json(f"nccl: {{separate_reduce_scatter: {str(separate).lower()}}}\n", "nccl")
        assert {rule["where"] for rule in policy["rules"]} == {"default"}
        for group, wanted in GROUPS.items():
            together, apart = wanted if isinstance(wanted, tuple) else (wanted, wanted)
            assert class_of(policy, group) == ((apart if separate else together), together), (separate, group, class_of(policy, group))
    # The most and the least urgent, whatever they are called.
    policy = command.json(FOUR % "", "nccl")
    assert [class_of(policy, group)[0] for group in ("mesh_tp", "mesh_ddp", "default_pg")] == ["first.one", "last_one", "mixed"]


def check_shell(command):
    for text, classes in FABRICS.items():
        variables = command.json(text, "env")["variables"]
        names = [re.sub("[^A-Z0-9]", "_", name.upper()) for name, *_ in classes]
        wanted = {f"TENSORLANE_{name}_{what}": str(value) for name, (_, dscp, pcp, level, _) in zip(names, classes)
                  for what, value in (("DSCP", dscp), ("TOS", mark(dscp)), ("PCP", pcp), ("SL", level))}
        assert variables == wanted, (variables, wanted)
        script = 'eval "$("$1" classes --for env --fabric "$2")" && env'
        done = subprocess.run(["sh", "-euc", script, "sh", TENSORLANE, command.fabric], capture_output=True, text=True, timeout=60, env={"PATH": "/usr/bin:/bin"})
        assert done.returncode == 0 and not done.stderr, done
        seen = dict(line.split("=", 1) for line in done.stdout.splitlines() if line.startswith("TENSORLANE_"))
        assert seen == wanted, (seen, wanted)
    # A path is no command.
    folder = command.fabric.parent / "a\ntouch gone\n$(touch gone)"
    folder.mkdir(parents=True)
    (folder / "fabric.yaml").write_text(HOSTS)
    done = subprocess.run(["sh", "-euc", script, "sh", TENSORLANE, folder / "fabric.yaml"], capture_output=True, text=True, timeout=60, env={"PATH": "/usr/bin:/bin"}, cwd=command.fabric.parent)
    assert done.returncode == 0 and "TENSORLANE_BULK_TOS=110" in done.stdout and not (command.fabric.parent / "gone").exists(), done


def check_refusals(command):
    for names in (("a-b", "a.b"), ("a", "A"), ("control.", "control-")):
        text = "classes: {data: [{name: %s, dscp: 1, pcp: 1}, {name: %s, dscp: 2, pcp: 2}]}\n" % names
        for options in ((), ("--json",)):
            done = command.run(text, "env", *options)
            variable = "TENSORLANE_" + re.sub("[^A-Z0-9]", "_", names[0].upper()) + "_TOS"
            assert done.returncode == 2 and not done.stdout, done
            assert f"classes '{names[0]}' and '{names[1]}' make the same shell variable {variable}: {command.fabric}: rename one of them" in done.stderr, done
        assert len(command.json(text, "nccl")["classes"]) == 2
    done = command.run("classes: {data: [{name: CONTROL, dscp: 1, pcp: 1}, {name: b, dscp: 2, pcp: 2}]}\n", "env")
    assert done.returncode == 2 and "classes 'CONTROL' and 'control' make" in done.stderr, done
    done = command.run("", "ncl")
    assert done.returncode == 2 and not done.stdout and all(name in done.stderr for name in ("--for", "ncl", *LIBRARIES)), done
    for arguments in (("--for", "nccl"), ("--fabric", command.fabric)):
        done = subprocess.run([TENSORLANE, "classes", *arguments], capture_output=True, text=True, timeout=60)
        assert done.returncode == 2 and not done.stdout and "required" in done.stderr, done
    done = command.on("/no/such/fabric.yaml", "nccl")
    assert done.returncode == 2 and "/no/such/fabric.yaml: No such file" in done.stderr and not done.stdout, done
    done = command.run("nccl: {mixed: bluk}\n", "ucx")
    assert done.returncode == 2 and f"{command.fabric}:1: did you mean 'bulk'?" in done.stderr, done


def check_out(command):
    """Whole or not at all."""
    out = command.fabric.parent / "policy.json"
    out.write_text("old")
    call = [TENSORLANE, "classes", "--for", "nccl", "--fabric", str(command.fabric), "--json", "--out", str(out)]
    command.fabric.write_text(HOSTS + "nccl: {mixed: urgnt}\n")
    assert subprocess.run(call, capture_output=True, timeout=60).returncode == 2 and out.read_text() == "old"
    command.fabric.write_text(HOSTS)
    done = subprocess.run(call, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and not done.stdout and json.loads(out.read_text())["mixed"] == "bulk", done
    assert sorted(path.name for path in out.parent.iterdir() if path.name.startswith("policy.json")) == ["policy.json"]
    done = subprocess.run([*call[:-1], str(out.parent / "nowhere" / "policy.json")], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "cannot be written (No such file or directory)" in done.stderr, done


def check_odd_path(command):
    """A path need not be UTF-8, JSON must."""
    odd = bytes(command.fabric.parent) + b"/\xff.yaml"
    with open(odd, "w") as file:
        file.write(HOSTS)
    for library in LIBRARIES:
        done = command.on(odd, library, "--json")
        assert done.returncode == 0 and json.loads(done.stdout.encode("utf-8"))["fabric"].endswith("/\ufffd.yaml"), done


def main():
    with tempfile.TemporaryDirectory() as name:
        command = Command(pathlib.Path(name))
        for check in (check_numbers, check_text, check_nccl, check_rules, check_groups, check_shell, check_refusals, check_out, check_odd_path):
            check(command)


main()
