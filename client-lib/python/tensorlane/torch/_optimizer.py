"""DistributedOptimizer: gradients leave during the backward pass, most urgent first. By default they are averaged when
backward() returns; with overlap=True step() returns at once, and each parameter is updated just before it is used next.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from .. import _constants, _process_sets, _reports
from .._process_sets import AnyProcessSet
from ..errors import misuse
from . import _device, _touch
from ._accepted import check_plain, name_parameters
from ._distributed import Distributed
from ._gradients import GradientSender
from ._lifetime import Lifetime, watch_slot, with_pending
from ._modules import COMPILED, ModuleWatch, check_module, check_thread, is_compiled
from ._seals import Seals
from ._sharded import Sharded, ShardedCore
from ._shards import ELEMENT
from ._sharing import ELEMENTWISE, sharing
from ._stepper import PROVEN, Stepper, snapshot
from ._transport import NativeTransport
from ._trial import check_separable, check_shareable

_NO_GRADIENT = object()
_groups = weakref.WeakKeyDictionary()  # by process set: how many optimizers it has had, the same on all of its ranks


def DistributedOptimizer(
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.nn.Parameter]] | None = None,
    model: torch.nn.Module | Sequence[torch.nn.Module] | None = None,
    *,
    op: int = _constants.Average,
    backward_passes_per_step: int = 1,
    overlap: bool = False,
    synchronous: bool | None = None,
    sharded: bool = False,
    shard: str | None = None,
    max_norm: float | None = None,
    wire_dtype: torch.dtype | None = None,
    process_set: AnyProcessSet | None = None,
    transport: Any = None,
) -> Distributed:
    """Wraps `optimizer` so that its gradients are averaged (or summed: op=Sum) over all ranks, or those of
    `process_set`. Collective: every one of them calls it alike.

    The result, to be used in its place, is of a subclass of its class and shares its parameters, groups and state.

    - Gradients are sent as they appear in the backward pass. `named_parameters` (as of model.named_parameters()) gives
      their names and, by its order, which is needed first in the forward pass; without it, the order of the parameter
      groups.
    - When the last of `backward_passes_per_step` backward passes returns, p.grad holds the averages, as with
      DistributedDataParallel. What comes after it (clipping, GradScaler, norms, step()) is plain PyTorch.
      `synchronous=True` says the same aloud, synchronous=False is overlap=True.
    - overlap=True is for speed: backward() and step() return at once, and each parameter is updated on this thread in
      the forward pre-hook of the first module that needs it, so that sums arrive while the next forward pass computes.
      The results are the same, bit for bit. Whatever torch function touches a parameter, its state or its gradient
      earlier has it brought up to date first. Not seen are reads and writes past torch's functions (NumPy arrays that
      share the memory, C++ extensions outside of modules) and on other threads: call flush() before. The first
      iteration does not overlap; `model` is needed only when the modules that run first are not all that use the
      parameters.
    - A parameter without a gradient on this rank counts as zeros where another rank has one. What no rank used is left
      alone.
    - A rank without a batch calls step() alone.
    - sharded=True gives each rank a share of the parameters to step, and of the state: see the class Sharded, also for
      `shard`, `max_norm` and `wire_dtype`.

    `transport` is for tests: what sums buffers over the ranks in place of the daemons. close() ends the wrapping, on
    all ranks.

    With overlap=True: SGD, Adam, AdamW, RMSprop and Adagrad, and any other class that proves on clones of some
    parameters to step each by itself. Errors: InvalidArgumentError for what is refused, with the reason: closures and
    LBFGS, SparseAdam, modules under DDP, FSDP or DataParallel, ScriptModules, unnamed or unsupported parameters;
    MismatchError on all ranks where they wrap different models, or do different things in an iteration. The classes of
    errors are in `tensorlane`, not in `tensorlane.torch`, which has the base class Error alone. PyTorch 2.1 or newer.
    """
    _check_arguments(op, backward_passes_per_step, overlap, synchronous)
    _check_optimizer(optimizer)
    shares = sharing(optimizer, sharded, shard, max_norm, wire_dtype)
    named = name_parameters(optimizer, named_parameters)
    modules = _checked_modules(model)
    reason = _why_synchronous(named, modules, overlap or synchronous is False, synchronous, sharded)
    _check_steps(optimizer, shares, reason)
    result = _instance(optimizer, Sharded if sharded else Distributed)
    _replace_earlier({parameter for _, parameter in named})
    process_set = _process_sets.of(process_set)
    number = _groups.get(process_set, 0)
    if sharded:
        core = result._core = ShardedCore(result, optimizer, modules, reason, process_set, shares)
    else:
        core = result._core = _Core(result, type(optimizer), modules, reason, process_set)
    core.register(transport or NativeTransport(process_set), f"optimizer.{number}", named, op, backward_passes_per_step)
    _groups[process_set] = number + 1
    _reports.add(core)
    return result


class _Core(Lifetime):
    """The state of one DistributedOptimizer. Everything runs on the training thread, the one that calls step(), or, for
    parameters on GPUs, on a thread of autograd's while that one waits in backward()."""

    def __init__(self, optimizer, wrapped, modules, reason, process_set):
        super().__init__(wrapped, process_set)
        self._modules = modules
        self._stepper = Stepper(optimizer, wrapped)
        self._seals = Seals(
            "the update would be applied to other values than without overlap", "leave out overlap=True"
        )
        self._unguarded = []
        self._shown = []  # keys of gradients that are watched
        self._next = 0  # no slot before it has an update pending
        self._thread = threading.get_ident()
        self._touch = _touch.of_this_thread()
        self.reason = reason  # why step() is synchronous; None when it is not
        self.pending = set()  # slots with an update that has not been applied
        self.updates = _device.Trail()  # of those of this iteration that have been
        self.averaged = False  # p.grad holds the averages of the latest round, which no step() has applied

    def register(self, transport, group, named, op, passes):
        self._sender = GradientSender(transport, group, named, op, passes, self, whole=self.reason is not None)
        self._by_parameter = {slot.parameter: slot for slot in self._sender.slots}
        self._watch = ModuleWatch(self, self._sender.slots, self._modules)
        if self.reason is None:
            self._touch.join(self)

    def step(self, optimizer):
        self._check_alive()
        if self._thread != threading.get_ident():
            self._change_thread()
        with self._touch.aside():
            self._check_registered(optimizer)
            if self.reason is not None and not self._watch.recording:
                self._stop_watching()
            if self._watch.recording:
                self._watch.check()
            if self._has_averages():
                self._step_whole(optimizer)
            elif self.reason is not None or self._sender.recording or self._watch.recording:
                self._synchronize()
                self._step_whole(optimizer)
            else:
                self._collect()
                self._defer(optimizer)
            self._sender.steps += 1

    def synchronize(self):
        self._check_alive()
        with self._touch.aside():
            if not self._has_averages():
                self._synchronize()

    def flush_for_reading(self):
        if not self._stepper.stepping:
            self.flush()

    def before_scaled_step(self):
        if self._sender.round_open:
            self.synchronize()

    def flush(self):
        self.apply(self._sender.slots)

    def apply(self, slots):
        """Applies the pending updates among `slots`, and others whose sums are there: steps are cheaper together."""
        slots = [slot for slot in slots if slot.update is not None]
        if not slots:
            return
        self._check_alive()
        check_thread(self._thread, slots)
        with self._touch.aside() as watch:
            self.updates.follow(slots[0].where())
            self._wait(slots)
            slots += self._arrived(slots)
            self._seals.check(slots)
            used = [slot for slot in slots if self._sender.used(slot)]
            if used:
                self._stepper.some([(slot.parameter, slot.average, slot.update) for slot in used])
            # Where nobody has called zero_grad() yet the next gradients may be added to these.
            self._put_into_gradients([slot for slot in used if self._is_shown(slot)])
            self.updates.leave({slot.batch.device for slot in slots})
            self._is_up_to_date(slots, watch)

    def before_zero_grad(self, set_to_none=True):
        """Gradients that have been sent are dropped, if all ranks do."""
        self._check_alive()
        with self._touch.aside():
            if not set_to_none and self._shown and not self._sender.round_open:
                self._show_averages()  # a rank that had no gradient has zeros then, as the others
            self._hide_gradients()
            self.averaged = False
            if self._sender.posted:
                self._collect(drop=True)
                self._wait(self._sender.slots)
                self._sender.new_round()
            self._sender.forget_unsent()

    def compiled_later(self):
        """A forward pass of a model that was compiled since: from now on step() is synchronous."""
        self.flush()
        self.reason = COMPILED
        self._sender.whole = True

    def report(self):
        return {
            "optimizer": self.wrapped.__name__,
            "mode": "cross-iteration" if self.reason is None else "synchronous",
            "reason": self.reason,
            "recording": self._watch.recording,
            "parameters": len(self._sender.slots),
            "pending": len(self.pending),
            "sent_at_step": [slot.name for slot in self._sender.slots if slot.late],
            "updated_in_step": [slot.name for slot in self._unguarded],
        }

    def before_round(self):
        """Groups may have been dropped, or have come back."""
        self.updates.follow("a backward pass")  # which overwrites what updates read
        self._set_trained(self._stepper.groups)

    def after_pass(self, last):
        """A backward pass is over; `last`: of its round."""
        if self.reason is None:
            # Of modules that this forward pass left out, while their gradients are shown as step() left them.
            self.flush()
            self._show_gradients()
        elif last:
            self._check_alive()
            with self._touch.aside():
                self._synchronize()

    def _has_averages(self):
        """Whether p.grad holds averages that the next step() has to apply. Gradients that were dropped since, by
        whomever, are no such averages: then this rank takes part in the round of the others, without a batch. The
        averages are alike on all ranks, so all of them decide alike."""
        if not self.averaged or self._sender.round_open:
            return False
        for slot in self._sender.slots:
            gradient = slot.parameter.grad
            if gradient is None:
                continue
            # To look whether a GPU has only zeros there would be to wait for it. If so, the roll call finds out that
            # this rank has stepped without the others.
            if slot.was_left(gradient, gradient._version) or slot.batch.device is not None or bool(gradient.any()):
                return True
        return False

    def _synchronize(self):
        self._collect()
        self._wait(self._sender.slots)
        self._hide_gradients()
        self._put_into_gradients([slot for slot in self._sender.slots if self._sender.used(slot)])
        self.averaged = True
        self._sender.new_round()

    def _step_whole(self, optimizer):
        self.averaged = False
        self._stepper.whole(self._unregistered(optimizer))
        if self._watch.recording and self._watch.has_seen_training():
            self._finish_recording()

    def _collect(self, drop=False):
        """Leaves every gradient of the round sent and no older update pending: their buffers are about to be used
        again."""
        self.apply(self._sender.slots)
        if not self._sender.round_open:
            self.before_round()
        self._guarded_by_failure(lambda: self._sender.send_rest(drop))

    def _unregistered(self, optimizer):
        """Frozen parameters may still have a gradient of before: it is this rank's own, so nobody may step with it."""
        return {p: None for group in optimizer.param_groups for p in group["params"] if p not in self._by_parameter}

    def _defer(self, optimizer):
        watch = self._touch
        me, state = weakref.ref(self), vars(optimizer)["state"]
        for group, hyperparameters in zip(optimizer.param_groups, snapshot(optimizer.param_groups)):
            for parameter in group["params"]:
                slot = self._by_parameter.get(parameter)
                if slot is not None and slot.takes_part():
                    slot.update = hyperparameters
                    self.pending.add(slot)
                    slot.watched = watch_slot(watch, me, slot, state.get(parameter, {}))
        self._sender.new_round()
        if self.pending:
            self.updates.clear()
            self._next = 0
            self._seals.make(self._sender.slots)
            with_pending.add(self)
        self._show_gradients()
        self.apply(self._unguarded)

    def _arrived(self, slots):
        """Further slots whose sums are there, in the order of the forward pass up to the first one that is missing."""
        chosen, ordered, more = set(slots), self._sender.slots, []
        while self._next < len(ordered) and (ordered[self._next].update is None or ordered[self._next] in chosen):
            self._next += 1
        for slot in ordered[self._next :]:
            if slot.update is not None and slot not in chosen:
                if not self._sender.done(slot):
                    break
                more.append(slot)
        if more:
            self._wait(more)
        return more

    def _show_gradients(self):
        """From here on p.grad is watched: who looks at one finds the averages in all of them."""
        self._hide_gradients()
        watch, me = self._touch, weakref.ref(self)
        for slot in self._sender.slots:
            gradient, looked = slot.parameter.grad, _Looked(me, slot)
            if gradient is not None:
                slot.shown = weakref.ref(gradient)
                self._shown.append(watch.add(gradient, looked))
            elif slot.takes_part():
                slot.shown = _NO_GRADIENT
                watch.without_gradient[id(slot.parameter)] = looked
                self._shown.append((None, None))

    def _hide_gradients(self):
        if self._shown:
            watch = self._touch
            for keys in self._shown:
                watch.forget(keys)
            for slot in self._sender.slots:
                slot.shown = None
                watch.without_gradient.pop(id(slot.parameter), None)
            self._shown = []

    def _is_shown(self, slot):
        """Whether nobody has touched p.grad since it was shown."""
        if slot.shown is _NO_GRADIENT:
            return slot.parameter.grad is None and id(slot.parameter) in self._touch.without_gradient
        return slot.shown is not None and slot.parameter.grad is slot.shown()

    def looked_at_gradients(self):
        """The user's code does, outside of a backward pass."""
        if torch._C._current_graph_task_id() != -1:
            return
        with self._touch.aside():
            if self._sender.round_open:
                self.synchronize()
            else:
                self._show_averages()

    def _show_averages(self):
        """Of the round that step() has consumed."""
        self.flush()
        self._put_into_gradients(
            [slot for slot in self._sender.slots if self._is_shown(slot) and self._sender.used(slot)]
        )
        self._hide_gradients()

    def _change_thread(self):
        """Another thread trains from now on. What is pending is applied there."""
        self._forget_all()
        self._thread = threading.get_ident()
        self._touch = _touch.of_this_thread()
        if self.reason is None:
            self._touch.join(self)

    def _stop_watching(self):
        """Nothing will be pending any more."""
        self._watch.close()
        self._unguarded = []
        self._forget_all()

    def _forget_all(self):
        self._hide_gradients()
        watch = self._touch
        watch.leave(self)
        for slot in self._sender.slots:
            for keys in slot.watched:
                watch.forget(keys)
            slot.watched = ()

    def _finish_recording(self):
        if self.reason is None and self._watch.compiled():
            self.reason = COMPILED
            self._sender.whole = True
        if self.reason is None:
            self._unguarded = self._watch.finish()
        else:
            self._watch.stop()

    def _wait(self, slots):
        self._guarded_by_failure(lambda: self._sender.wait(slots))

    def _put_into_gradients(self, slots):
        """The averages of the latest round, which nothing has overwritten yet."""
        present = [slot for slot in slots if slot.parameter.grad is not None]
        with torch.no_grad():
            if present:
                torch._foreach_copy_([slot.parameter.grad for slot in present], [slot.average for slot in present])
            for slot in slots:
                if slot.parameter.grad is None:
                    slot.parameter.grad = slot.average.clone()
                    if slot.shown is not None:
                        slot.shown = weakref.ref(slot.parameter.grad)
                slot.leave(slot.parameter.grad)


class _Looked:
    """Called when somebody looks at what was the gradient of a slot, or gets p.grad of one that had none."""

    def __init__(self, core, slot):
        self._core = core
        self._slot = slot

    def __call__(self, tensor):
        core = self._core()
        if core is not None and (self._slot.parameter.grad is tensor or self._slot.parameter is tensor):
            core.looked_at_gradients()


def _instance(optimizer, methods):
    """An optimizer of a subclass of `methods` and of the class of `optimizer`, with its parameters, groups and state.
    """
    wrapped = type(optimizer)
    distributed = type(
        wrapped.__name__, (methods, wrapped), {"__module__": wrapped.__module__, "__doc__": wrapped.__doc__}
    )
    result = distributed.__new__(distributed)
    # A scheduler made for the wrapped optimizer has put its own step() into the instance; ours must stay visible.
    result.__setstate__({key: value for key, value in vars(optimizer).items() if key != "step"})
    return result


def _check_steps(optimizer, shares, reason):
    """Classes that are not known show on clones that they can be stepped in parts, where they will be."""
    if shares is not None:
        if type(optimizer) not in ELEMENTWISE:
            check_shareable(optimizer, shares.by == ELEMENT)
    elif reason is None and type(optimizer) not in PROVEN:
        check_separable(optimizer)


def _checked_modules(model):
    modules = [] if model is None else list(model) if isinstance(model, (list, tuple)) else [model]
    for module in modules:
        check_module(module)
    return modules


def _why_synchronous(named, modules, overlap, synchronous, sharded):
    """Why step() waits for all parameters; None where it does not."""
    if sharded and synchronous:
        return "synchronous=True was asked for"
    if not sharded and not overlap:
        return "overlap=True was not asked for"
    compiled = any(is_compiled(module) for module in modules) or any("_orig_mod." in name for name, _ in named)
    return COMPILED if compiled else None


def _replace_earlier(parameters):
    """Wrapping parameters again takes them from the optimizer that had them."""
    for core in _reports.members():
        if core.shares(parameters):
            core.replaced = core._failure is None
            core.close(
                misuse(
                    "another DistributedOptimizer has its parameters now", f"optimizer {core.wrapped.__name__}",
                    "use the new one",
                )
            )


def _check_arguments(op, backward_passes_per_step, overlap, synchronous):
    if not hasattr(torch.Tensor, "register_post_accumulate_grad_hook"):
        raise misuse(
            "PyTorch 2.1 or newer is needed", f"DistributedOptimizer with PyTorch {torch.__version__}",
            "upgrade PyTorch, or average gradients with allreduce()",
        )
    if op not in (_constants.Sum, _constants.Average):
        raise misuse(f"gradients cannot be reduced by op {op!r}", "DistributedOptimizer", "use Sum or Average")
    if synchronous and overlap:
        raise misuse(
            "synchronous=True and overlap=True contradict each other", "DistributedOptimizer",
            "pass overlap=True, or neither",
        )
    if backward_passes_per_step < 1:
        raise misuse(
            "backward_passes_per_step must be at least 1", f"backward_passes_per_step={backward_passes_per_step}",
            "count the backward passes of one step",
        )


def _check_optimizer(optimizer):
    name = type(optimizer).__name__
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise misuse(
            "a torch.optim.Optimizer is expected", f"DistributedOptimizer({name})", "pass the optimizer, not the model"
        )
    if isinstance(optimizer, Distributed):
        if optimizer._core not in _reports.members():
            raise misuse("it was distributed before, and is closed", f"optimizer {name}", optimizer._way_on)
        raise misuse("it is distributed already", f"optimizer {name}", "wrap the plain optimizer once")
    check_plain(optimizer)
