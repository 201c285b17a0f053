"""The computation graph of one training iteration of a model, in the format of graph.schema.json, for `tensorlane
order`.

A dispatch mode sees every operation of the forward and the backward pass below autograd, with the tensors that it reads
and writes; who wrote a storage last is what a reader of it waits for. That follows control flow, attention and
hand-written autograd functions alike, and needs no model that can be traced symbolically.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from typing import Any, Callable

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from ..errors import misuse
from ._modules import check_module, is_compiled

FORMAT_VERSION = 1


def trace(
    model: torch.nn.Module,
    example: Any,
    path: str | os.PathLike[str] | None = None,
    *,
    loss: Callable[[Any], torch.Tensor] | None = None,
    repeats: int = 5,
    gbps: float = 10.0,
) -> dict[str, Any]:
    """The graph of one iteration of `model` on `example`, as a dictionary in the format of graph.schema.json; also
    written to the file `path`, if given.

    example: what the model is called with: a tensor, a tuple of arguments or a dictionary of keyword arguments.
    loss: called with the model's output, gives the scalar to differentiate; default: the sum of all floating-point
    outputs.
    repeats: an operation's time is the least of so many runs (TicTac, section 5: 5), after one that is not counted.
    gbps: the network that transfers are timed for: a parameter of B bytes takes 8 B / (gbps * 1e9) seconds each way.

    Every parameter that is trained is a recv operation, on the resource "downlink", which the operations that read it
    wait for, and a send operation, on "uplink", which waits for its gradient; one without a gradient sends nothing.
    Everything else that computes is a compute operation on the device that it ran on; views compute nothing and are
    left out. Times are of operations alone: on CUDA each is waited for. Gradients, buffers and the random state are
    afterwards what they were. The model must do the same in every run (InvalidArgumentError), and hooks run. PyTorch
    2.1 or newer.
    """
    check_module(model)
    if is_compiled(model):
        raise misuse("a compiled model shows no operations", "trace()", "trace the model before compiling it")
    if repeats < 1 or not gbps > 0:
        raise misuse(f"repeats={repeats}, gbps={gbps}", "trace()", "give at least one run, and a rate above 0")
    parameters = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    if not parameters:
        raise misuse("the model has no parameter that is trained", "trace()", "nothing would be transferred")
    with _kept(model):
        recorders = [_run(model, example, loss or _sum, parameters) for _ in range(repeats + 1)][1:]
    graph = {
        "version": FORMAT_VERSION,
        "about": {
            "source": "tensorlane.torch.trace", "model": type(model).__name__, "torch": str(torch.__version__),
            "repeats": repeats, "gbps": gbps,
        },
        "operations": _operations(recorders, parameters, gbps),
    }
    if path is not None:
        with open(path, "w", encoding="utf-8") as file:
            json.dump(graph, file, indent=1)
            file.write("\n")
    return graph


def _run(model, example, loss, parameters):
    for parameter in parameters.values():
        parameter.grad = None
    recorder = _Recorder(parameters)
    with _module_names(model, recorder), torch.enable_grad(), recorder:
        output = (
            model(**example)
            if isinstance(example, dict)
            else model(*example) if isinstance(example, tuple) else model(example)
        )
        value = loss(output)
        if not isinstance(value, torch.Tensor) or value.numel() != 1 or not value.requires_grad:
            raise misuse(
                "the loss is nothing to differentiate", "trace()",
                "let the loss return a scalar that depends on the parameters",
            )
        recorder.phase, recorder.module = "backward", ""
        value.backward()
    recorder.gradients = {
        name: _gradient_writer(recorder, name, parameter)
        for name, parameter in parameters.items()
        if parameter.grad is not None
    }
    return recorder


def _gradient_writer(recorder, name, parameter):
    if parameter.grad.layout != torch.strided:
        raise misuse("a gradient is sparse", f"parameter {name}", "build the module with sparse=False")
    return recorder.writer(parameter.grad)


def _operations(recorders, parameters, gbps):
    """The list of the format: recv operations, computation as it ran, send operations."""
    first = recorders[0]
    if any(other.shape() != first.shape() for other in recorders):
        raise misuse(
            "two runs of the model did different operations", "trace()",
            "give a model and a loss that do the same every time",
        )
    sizes = {name: parameter.numel() * parameter.element_size() for name, parameter in parameters.items()}

    def transfer(kind, name, resource, inputs):
        seconds = sizes[name] * 8 / (gbps * 1e9)
        return {
            "name": f"{kind}/{name}", "kind": kind, "resource": resource, "seconds": seconds, "bytes": sizes[name],
            "inputs": inputs,
        }

    operations = [transfer("recv", name, "downlink", []) for name in parameters]
    for position, op in enumerate(first.operations):
        seconds = min(recorder.operations[position]["seconds"] for recorder in recorders)
        operations.append({**op, "kind": "compute", "seconds": seconds})
    operations += [
        transfer("send", name, "uplink", [writer] if writer else []) for name, writer in first.gradients.items()
    ]
    return operations


class _Recorder(TorchDispatchMode):
    """What one iteration did. `operations` have name, resource, seconds and inputs."""

    def __init__(self, parameters):
        super().__init__()
        self.operations = []
        self.phase, self.module = "forward", ""
        self.gradients = {}
        # Weak references keep a storage's identity from being used again while its memory may go.
        self._writers = {_storage(parameter): f"recv/{name}" for name, parameter in parameters.items()}

    def shape(self):
        return [{key: value for key, value in op.items() if key != "seconds"} for op in self.operations], self.gradients

    def writer(self, tensor):
        """The operation that wrote the tensor last; None: none of this iteration."""
        return self._writers.get(_storage(tensor))

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        read = _tensors((args, kwargs))
        device = next((tensor.device for tensor in read), torch.device("cpu"))
        _wait_for(device)
        start = time.perf_counter()
        result = func(*args, **kwargs)
        _wait_for(device)
        seconds = time.perf_counter() - start
        self._add(func.__name__.split(".")[0], read, _tensors(result), _changed(func, args, kwargs), seconds)
        return result

    def _add(self, function, read, written, changed, seconds):
        sources = {_storage(tensor) for tensor in read}
        targets = {_storage(tensor) for tensor in written}
        if not changed and targets and targets <= sources:
            return  # a view
        inputs = {self._writers[source]: None for source in map(_storage, read) if source in self._writers}
        name = "/".join(filter(None, (self.phase, self.module, f"{function}.{len(self.operations)}")))
        device = next((tensor.device for tensor in (*read, *written)), "cpu")
        self.operations.append({"name": name, "resource": str(device), "seconds": seconds, "inputs": list(inputs)})
        for target in (targets - sources) | changed:
            self._writers[target] = name


def _changed(func, args, kwargs):
    """The storages that an operation writes in place, as its schema says."""
    values = [
        *zip(func._schema.arguments, args),
        *((argument, kwargs.get(argument.name)) for argument in func._schema.arguments[len(args) :]),
    ]
    written = [value for argument, value in values if argument.alias_info is not None and argument.alias_info.is_write]
    return {_storage(tensor) for tensor in _tensors(written)}


def _tensors(tree):
    return [leaf for leaf in tree_flatten(tree)[0] if isinstance(leaf, torch.Tensor) and leaf.layout == torch.strided]


def _storage(tensor):
    return StorageWeakRef(tensor.untyped_storage())


def _wait_for(device):
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _sum(output):
    tensors = [
        leaf
        for leaf in tree_flatten(output)[0]
        if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() and leaf.requires_grad
    ]
    if not tensors:
        raise misuse("the model's output is nothing to differentiate", "trace()", "give a loss")
    return sum(tensor.float().sum() for tensor in tensors)


@contextlib.contextmanager
def _module_names(model, recorder):
    """Keeps recorder.module at the name of the module whose forward pass runs."""
    names = {module: name for name, module in model.named_modules()}
    outer = []

    def enter(module, _inputs):
        outer.append(recorder.module)
        recorder.module = names.get(module, recorder.module)

    def leave(_module, _inputs, _output):
        recorder.module = outer.pop()

    handles = [register_module_forward_pre_hook(enter), register_module_forward_hook(leave)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextlib.contextmanager
def _kept(model):
    """Puts gradients, buffers and the random state back."""
    gradients = [(parameter, parameter.grad) for parameter in model.parameters()]
    buffers = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    devices = {
        tensor.device.index for tensor in (*model.parameters(), *model.buffers()) if tensor.device.type == "cuda"
    }
    try:
        with torch.random.fork_rng(devices=sorted(devices)):
            yield
    finally:
        for parameter, gradient in gradients:
            parameter.grad = gradient
        with torch.no_grad():
            for buffer, value in buffers:
                buffer.copy_(value)
