"""Graphs of real models: what tensorlane.torch.trace() writes, and what `tensorlane order` makes of it."""

import collections
import json
import os
import pathlib
import subprocess

import pytest
import tensorlane
import tensorlane.torch
import torch
import torch.nn.functional as F
from models import Attention, Frozen, Tied
from torch import nn

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("TENSORLANE_BUILD", ROOT / "build"))
SCHEMA = json.loads((ROOT / "client-lib" / "python" / "tensorlane" / "graph.schema.json").read_text(encoding="utf-8"))


class Cnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(2), nn.Dropout(0.1), nn.Conv2d(8, 16, 3))
        self.classifier = nn.Linear(16 * 5 * 5, 10)

    def forward(self, x):
        return self.classifier(self.features(x).relu_().flatten(1))


IMAGES = torch.randn(4, 3, 16, 16)
MODELS = {"cnn": (Cnn, IMAGES), "attention": (Attention, torch.randn(4, 6)), "tied": (Tied, torch.randn(4, 6)), "frozen": (Frozen, torch.randn(4, 6))}


def check_schema(value, schema):
    """The part of JSON schema that graph.schema.json uses."""
    if "const" in schema:
        assert value == schema["const"]
    if "enum" in schema:
        assert value in schema["enum"]
    kind = schema.get("type")
    if kind == "object":
        assert isinstance(value, dict)
        assert set(schema.get("required", [])) <= set(value)
        if schema.get("additionalProperties") is False:
            assert set(value) <= set(schema["properties"])
        for key, inner in schema.get("properties", {}).items():
            if key in value:
                check_schema(value[key], inner)
    elif kind == "array":
        assert isinstance(value, list)
        for item in value:
            check_schema(item, schema["items"])
    elif kind:
        assert isinstance(value, {"string": str, "integer": int, "number": (int, float)}[kind])
        assert len(value) >= schema.get("minLength", 0) if kind == "string" else schema.get("minimum", value) <= value <= schema.get("maximum", value)


def ancestors(graph, name):
    inputs = {op["name"]: op["inputs"] for op in graph["operations"]}
    found, left = set(), [name]
    while left:
        for source in inputs[left.pop()]:
            if source not in found:
                found.add(source)
                left.append(source)
    return found


def order(path, algorithm):
    out = path.with_suffix(f".{algorithm}.json")
    command = [BUILD / "bin" / "tensorlane", "order", "--algorithm", algorithm, path, "--json", out]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(out.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", MODELS)
def test_a_graph_has_every_parameter_and_every_gradient(name, tmp_path):
    build, example = MODELS[name]
    model = build()
    graph = tensorlane.torch.trace(model, example, tmp_path / "graph.json", repeats=2, gbps=8)
    assert json.loads((tmp_path / "graph.json").read_text(encoding="utf-8")) == graph
    check_schema(graph, SCHEMA)
    operations = {op["name"]: op for op in graph["operations"]}
    assert len(operations) == len(graph["operations"])
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    for kind in ("recv", "send"):
        of_kind = {op["name"] for op in graph["operations"] if op["kind"] == kind}
        assert of_kind == {f"{kind}/{name}" for name in trained}
    seen = set()
    for op in graph["operations"]:
        assert set(op["inputs"]) <= seen, op  # in the order in which it ran
        seen.add(op["name"])
    readers = collections.Counter(source for op in graph["operations"] for source in op["inputs"])
    for name, parameter in trained.items():
        assert readers[f"recv/{name}"] > 0
        assert operations[f"recv/{name}"]["bytes"] == parameter.numel() * 4
        assert operations[f"recv/{name}"]["seconds"] == pytest.approx(parameter.numel() * 4e-9)  # 8 Gbit/s: 1 ns a byte
        assert any(source.startswith("backward/") for source in ancestors(graph, f"send/{name}"))
    compute = [op for op in graph["operations"] if op["kind"] == "compute"]
    assert all(op["resource"] == "cpu" and op["seconds"] > 0 for op in compute)


def test_what_computes_waits_for_what_it_reads():
    graph = tensorlane.torch.trace(Cnn(), IMAGES, repeats=1)
    named = {op["name"].rsplit(".", 1)[0]: op["name"] for op in graph["operations"] if op["kind"] == "compute"}
    first, last = named["forward/features.0/convolution"], named["forward/classifier/addmm"]
    assert {"recv/features.0.weight", "recv/features.0.bias"} == ancestors(graph, first)
    # The last layer's forward pass waits for all, through two operations that work in place.
    assert {f"recv/{name}" for name, _ in Cnn().named_parameters()} <= ancestors(graph, last)
    assert named["forward/relu_"] in ancestors(graph, last) and named["forward/features.2/relu_"] in ancestors(graph, last)
    # Its gradients are there before those of the first layer, which wait for the whole backward pass.
    assert len(ancestors(graph, "send/classifier.bias")) < len(ancestors(graph, "send/features.0.weight"))
    assert not any(op["name"].split("/")[-1].startswith(("view", "t.", "detach")) for op in graph["operations"])


def test_attention_waits_for_the_projection_that_no_module_calls():
    graph = tensorlane.torch.trace(Attention(), torch.randn(4, 6), repeats=1)
    read = {source for op in graph["operations"] for source in op["inputs"]}
    assert {"recv/layer.self_attn.out_proj.weight", "recv/layer.self_attn.in_proj_weight"} <= read


@pytest.mark.parametrize("name", ["cnn", "attention"])
def test_the_graph_is_ordered(name, tmp_path):
    build, example = MODELS[name]
    model = build()
    path = tmp_path / "graph.json"
    tensorlane.torch.trace(model, example, path, repeats=2)
    parameters = [name for name, _ in model.named_parameters()]
    for algorithm in ("tic", "tac", "layer"):
        result = order(path, algorithm)
        numbers = result["priorities"]
        assert set(numbers) == {f"recv/{name}" for name in parameters}
        assert 0 <= result["E"] <= 1 and result["S"] > 0
        assert numbers[f"recv/{parameters[0]}"] < numbers[f"recv/{parameters[-1]}"]
        if algorithm != "tic":
            assert sorted(numbers.values()) == list(range(len(parameters)))
    sends = order(path, "caramel")["priorities"]
    assert set(sends) == {f"send/{name}" for name in parameters}
    assert sends[f"send/{parameters[-1]}"] < sends[f"send/{parameters[0]}"]


def test_a_model_is_left_as_it_was():
    model = Cnn()
    model.classifier.bias.grad = torch.ones(10)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.random.get_rng_state()
    tensorlane.torch.trace(model, (IMAGES,), loss=lambda y: F.cross_entropy(y, torch.zeros(4, dtype=torch.long)), repeats=1)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(model.classifier.bias.grad, torch.ones(10)) and model.classifier.weight.grad is None
    assert torch.equal(torch.random.get_rng_state(), state)


def test_the_time_is_the_least_of_the_runs(monkeypatch):
    """One operation takes 1, 2, ... ticks in runs 0, 1, ...: the first run, which warms up, does not count."""
    ticks = iter(range(10**9))
    run = [0]

    class Slower(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self, x):
            run[0] += 1
            return x * self.weight

    monkeypatch.setattr("tensorlane.torch._trace.time.perf_counter", lambda: next(ticks) * run[0])
    graph = tensorlane.torch.trace(Slower(), torch.ones(3), repeats=3)
    assert run[0] == 4
    assert {op["seconds"] for op in graph["operations"] if op["kind"] == "compute"} == {2}


class Detach(nn.Module):
    def forward(self, x):
        return x.detach()


class Fickle(nn.Linear):
    def forward(self, x):
        self.calls = getattr(self, "calls", 0) + 1
        y = super().forward(x)
        return y.relu() if self.calls % 2 else y


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (lambda: Fickle(3, 3), {}, "two runs of the model did different operations"),
        (lambda: nn.Linear(3, 3).requires_grad_(False), {}, "no parameter that is trained"),
        (lambda: nn.Linear(3, 3), {"repeats": 0}, "repeats=0"),
        (lambda: nn.Linear(3, 3), {"gbps": 0.0}, "gbps=0.0"),
        (lambda: nn.Linear(3, 3), {"loss": lambda y: y.detach().sum()}, "the loss is nothing to differentiate"),
        (lambda: nn.Sequential(nn.Linear(3, 3), Detach()), {}, "the model's output is nothing to differentiate"),
    ],
)
def test_refusals(model, options, message):
    with pytest.raises(tensorlane.Error, match=message):
        tensorlane.torch.trace(model(), torch.randn(2, 3), **options)
