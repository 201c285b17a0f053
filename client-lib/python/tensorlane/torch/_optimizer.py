"""The cross-iteration optimizer: step() returns at once, and each parameter is updated just before the next forward pass needs it."""

import contextlib
import inspect
import itertools
import threading
import weakref

import torch

from .. import _constants, _process_sets, _reports
from ..errors import Error, InvalidArgumentError, misuse
from ._gradients import GradientSender
from ._modules import ModuleWatch, check_module, check_thread, is_compiled
from ._stepper import PROVEN, Stepper, check_separable, snapshot
from ._transport import NativeTransport

_groups = weakref.WeakKeyDictionary()  # by process set: numbers its optimizers, alike on its ranks
_with_pending = set()  # keeps cores alive whose optimizer the user has dropped before its last updates were applied


def DistributedOptimizer(
    optimizer, named_parameters=None, model=None, *, op=_constants.Average, backward_passes_per_step=1, synchronous=False, process_set=None, transport=None
):
    """Wraps `optimizer` so that its gradients are averaged (or summed: op=Sum) over all ranks, or those of `process_set`.
    Collective: every one of them calls it alike.

    The result is an optimizer of a subclass of the wrapped one's class and shares its parameters, groups and state; use it in its place.

    - Gradients are sent as they appear in the backward pass. `named_parameters` (as of model.named_parameters()) gives their names and, by its
      order, which is needed first in the forward pass; without it, the order of the parameter groups.
    - step() takes note of all hyperparameters and returns. Each parameter is updated on this thread, in the forward pre-hook of the first module
      that needs it, or by flush(). flush() runs by itself before state_dict(), loading, deepcopy, pickle and eval(). Whoever reads parameters
      directly between step() and the next forward pass (an average of the weights, a histogram) calls flush() first.
    - The first iteration is synchronous and finds out which modules need which parameter; `model` is needed only when the modules that run first
      are not all that use the parameters.
    - p.grad stays this rank's own. To clip gradients or unscale them call synchronize() after backward(): it waits and puts the averages into
      p.grad, and the next step() applies p.grad as it then is.
    - A parameter without a gradient on this rank counts as zeros, since others may have one.
    - synchronous=True: step() waits for everything and steps the optimizer as a whole. Also in force when the model is compiled.

    Supports SGD, Adam, AdamW, RMSprop and Adagrad, and any other class that proves on clones of some parameters to step each by itself.
    Errors: InvalidArgumentError for what is refused, with the reason: closures and LBFGS, SparseAdam, modules under DDP, FSDP or DataParallel,
    ScriptModules, unnamed or unsupported parameters. PyTorch 2.1 or newer.
    """
    if not hasattr(torch.Tensor, "register_post_accumulate_grad_hook"):
        raise misuse("PyTorch 2.1 or newer is needed", f"DistributedOptimizer with PyTorch {torch.__version__}", "upgrade PyTorch, or average gradients with allreduce()")
    if op not in (_constants.Sum, _constants.Average):
        raise misuse(f"gradients cannot be reduced by op {op!r}", "DistributedOptimizer", "use Sum or Average")
    _check_optimizer(optimizer)
    if backward_passes_per_step < 1:
        raise misuse("backward_passes_per_step must be at least 1", f"backward_passes_per_step={backward_passes_per_step}", "count the backward passes of one step")
    named = _named(optimizer, named_parameters)
    reason = "asked for" if synchronous else None
    modules = [] if model is None else list(model) if isinstance(model, (list, tuple)) else [model]
    for module in modules:
        check_module(module)
    if reason is None and (any(is_compiled(m) for m in modules) or any("_orig_mod." in name for name, _ in named)):
        reason = "the model is compiled (torch.compile)"
    if reason is None and type(optimizer) not in PROVEN:
        check_separable(optimizer)

    wrapped = type(optimizer)
    distributed = type(wrapped.__name__, (_Distributed, wrapped), {"__module__": wrapped.__module__, "__doc__": wrapped.__doc__})
    result = distributed.__new__(distributed)
    # A scheduler made for the wrapped optimizer has put its own step() into the instance; ours must stay visible.
    result.__setstate__({key: value for key, value in vars(optimizer).items() if key != "step"})
    _replace_earlier({parameter for _, parameter in named})
    process_set = _process_sets.of(process_set)
    group = f"optimizer.{next(_groups.setdefault(process_set, itertools.count()))}"
    sender = GradientSender(transport or NativeTransport(process_set), group, named, op, backward_passes_per_step)
    result._core = _Core(result, wrapped, sender, modules, reason, process_set)
    _reports.add(result._core)
    return result


class _Core:
    """The state of one DistributedOptimizer. Everything runs on the training thread: the one that calls step()."""

    def __init__(self, optimizer, wrapped, sender, modules, reason, process_set):
        self.wrapped = wrapped
        self.process_set = process_set
        self._sender = sender
        self._by_parameter = {slot.parameter: slot for slot in sender.slots}
        self._watch = ModuleWatch(self, sender.slots, modules)
        self._stepper = Stepper(optimizer, wrapped)
        self._unguarded = []
        self._thread = threading.get_ident()
        self._failure = None
        self.reason = reason  # why step() is synchronous; None when it is not
        self.pending = set()  # slots with an update that has not been applied
        self.synchronized = False  # p.grad holds the averages

    def step(self, optimizer):
        self._check_alive()
        self._thread = threading.get_ident()
        self._check_registered(optimizer)
        if self._watch.recording:
            self._watch.check()
        if self.synchronized and not self._sender.round_open:
            self.synchronized = False
            self._stepper.whole(self._unregistered(optimizer))
            self._finish_recording()
            return
        self._collect()
        active = [slot for slot in self._sender.slots if slot.active]
        if self.reason is None and not self._watch.recording:
            self._defer(optimizer, active)
        else:
            for slot in active:
                self._wait(slot)
            self._stepper.whole({**self._unregistered(optimizer), **{slot.parameter: slot.average for slot in active}})
        self.synchronized = False
        self._sender.new_round()
        self._finish_recording()

    def before_scaled_step(self):
        if self._sender.round_open:
            raise misuse(
                "GradScaler.step() changes gradients that have been sent", "DistributedOptimizer",
                "call synchronize() after backward() and before GradScaler.unscale_() or step()",
            )

    def synchronize(self):
        self._check_alive()
        if self.synchronized and not self._sender.round_open:
            return
        self._collect()
        for slot in self._sender.slots:
            if slot.active:
                self._wait(slot)
                self._put_into_grad(slot)
        self.synchronized = True
        self._sender.new_round()

    def flush(self):
        self.apply(self._sender.slots)

    def apply(self, slots):
        """Applies the pending updates among `slots`, in their order."""
        slots = [slot for slot in slots if slot.update is not None]
        if not slots:
            return
        self._check_alive()
        check_thread(self._thread, slots)
        for slot in slots:
            self._wait(slot)
            self._stepper.one(slot.parameter, slot.average, slot.update)
            slot.update = None
            self.pending.discard(slot)
        if not self.pending:
            _with_pending.discard(self)

    def before_zero_grad(self):
        if self.synchronized and not self._sender.round_open:
            return
        if any(slot.sent for slot in self._sender.slots):
            raise misuse(
                "zero_grad() between backward() and step() would drop gradients that have been sent", "DistributedOptimizer",
                "call it after step(), or call synchronize() first to skip an iteration on all ranks",
            )
        self._sender.forget_unsent()

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

    def close(self, reason):
        """Takes all hooks off; later calls fail with `reason`."""
        try:
            if self._failure is None:
                self.flush()
        finally:
            self._failure = reason
            self._sender.close()
            self._watch.close()
            _with_pending.discard(self)
            _reports.remove(self)

    def leave(self):
        """The process leaves its job: the buffers go away with it."""
        self.close(misuse("this process has left its job", f"optimizer {self.wrapped.__name__}", "call tensorlane.init() and wrap the optimizer again"))

    def shares(self, parameters):
        return any(slot.parameter in parameters for slot in self._sender.slots)

    def _collect(self):
        """Leaves every gradient of the round sent and no older update pending: their buffers are about to be used again."""
        self.apply(self._sender.slots)
        self._guarded_by_failure(self._sender.send_rest)

    def _unregistered(self, optimizer):
        """Frozen parameters may still have a gradient of before: it is this rank's own, so nobody may step with it."""
        return {p: None for group in optimizer.param_groups for p in group["params"] if p not in self._by_parameter}

    def _defer(self, optimizer, active):
        taken = snapshot(optimizer.param_groups)
        for group, hyperparameters in zip(optimizer.param_groups, taken):
            for parameter in group["params"]:
                slot = self._by_parameter.get(parameter)
                if slot is not None and slot.active:
                    slot.update = hyperparameters
                    self.pending.add(slot)
        if self.pending:
            _with_pending.add(self)
        self.apply(self._unguarded)

    def _finish_recording(self):
        if not self._watch.recording or self._sender.recording:
            return
        if self.reason is None and self._watch.compiled():
            self.reason = "the model is compiled (torch.compile)"
        if self.reason is None:
            self._unguarded = self._watch.finish()
        else:
            self._watch.stop()

    def _wait(self, slot):
        self._guarded_by_failure(lambda: self._sender.wait(slot))

    def _guarded_by_failure(self, call):
        """After the transport has failed there is no way to complete what is pending: every later call says so again."""
        try:
            call()
        except Error as error:
            if not isinstance(error, InvalidArgumentError):
                self._failure = error
            raise

    def _check_alive(self):
        if self._failure is not None:
            raise self._failure

    @staticmethod
    def _put_into_grad(slot):
        with torch.no_grad():
            if slot.parameter.grad is None:
                slot.parameter.grad = slot.average.clone()
            else:
                slot.parameter.grad.detach().copy_(slot.average)

    def _check_registered(self, optimizer):
        for number, group in enumerate(optimizer.param_groups):
            for place, parameter in enumerate(group["params"]):
                if parameter.requires_grad and parameter not in self._by_parameter:
                    raise misuse(
                        "it was frozen when the optimizer was wrapped, so it is not registered", f"parameter {place} of group {number}",
                        "make all parameters that will be trained require gradients before DistributedOptimizer(), or wrap again",
                    )


class _Distributed:
    """Stands before the wrapped class in the method resolution order."""

    def step(self, closure=None):
        """Applies the averaged gradients: at once when synchronize() was called, else before the next forward pass needs each parameter."""
        if closure is not None:
            raise misuse(
                "a closure is refused: it computes gradients inside step(), after they should have been sent", f"{type(self).__name__}.step(closure)",
                "compute the loss and call backward() before step()",
            )
        self._core.step(self)

    def synchronize(self):
        """Waits for all sums of this iteration and puts them into p.grad. The next step() applies p.grad as it then is."""
        self._core.synchronize()

    def flush(self):
        """Applies every pending update now. Call it before reading parameters directly."""
        self._core.flush()

    @contextlib.contextmanager
    def skip_synchronize(self):
        """For code written for Horovod: step() after synchronize() never synchronizes again anyway."""
        yield

    def zero_grad(self, set_to_none=True):
        self._core.before_zero_grad()
        super().zero_grad(set_to_none)

    @property
    def _step_supports_amp_scaling(self):
        """Read by GradScaler.step() before it unscales gradients, which it does without leaving a trace in their versions."""
        self._core.before_scaled_step()
        return False

    def state_dict(self):
        self._core.flush()
        return super().state_dict()

    def load_state_dict(self, state_dict):
        self._core.flush()
        super().load_state_dict(state_dict)

    def add_param_group(self, param_group):
        raise misuse(
            "the set of parameters is fixed when it is registered with the other ranks", f"{type(self).__name__}.add_param_group",
            "add groups to the optimizer before DistributedOptimizer()",
        )

    def __reduce_ex__(self, protocol):
        """A copy or a pickle is a plain optimizer of the wrapped class: wrap it again where it is used."""
        self._core.flush()
        return _plain, (self._core.wrapped, self.__getstate__())

    def tensorlane_status(self):
        """What is in force, and why."""
        return self._core.report()

    def close(self):
        """Applies what is pending and takes all hooks off the model."""
        self._core.close(misuse("it is closed", f"optimizer {type(self).__name__}", "wrap the plain optimizer again"))


def _replace_earlier(parameters):
    """Wrapping parameters again takes them from the optimizer that had them."""
    for core in _reports.members():
        if core.shares(parameters):
            core.close(misuse("another DistributedOptimizer has its parameters now", f"optimizer {core.wrapped.__name__}", "use the new one"))


def _plain(wrapped, state):
    optimizer = wrapped.__new__(wrapped)
    optimizer.__setstate__(state)
    return optimizer


def _check_optimizer(optimizer):
    name = type(optimizer).__name__
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise misuse("a torch.optim.Optimizer is expected", f"DistributedOptimizer({name})", "pass the optimizer, not the model")
    if isinstance(optimizer, _Distributed):
        raise misuse("it is distributed already", f"optimizer {name}", "wrap the plain optimizer once")
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    if isinstance(optimizer, torch.optim.LBFGS) or (closure is not None and closure.default is inspect.Parameter.empty):
        raise misuse("a closure is refused: it computes gradients inside step(), after they should have been sent", f"optimizer {name}", "use an optimizer whose step() needs no closure")
    if isinstance(optimizer, torch.optim.SparseAdam):
        raise misuse("sparse gradients cannot be summed", f"optimizer {name}", "use Adam with dense gradients (sparse=False)")
    if any(group.get("differentiable") for group in optimizer.param_groups):
        raise misuse("differentiable=True is refused: autograd cannot follow an update that happens later", f"optimizer {name}", "turn it off")


def _named(optimizer, named_parameters):
    """[(name, parameter)] of what the optimizer trains, in the order of named_parameters, else of the groups."""
    trained = {p: f"{number}.{place}" for number, group in enumerate(optimizer.param_groups) for place, p in enumerate(group["params"]) if p.requires_grad}
    if not trained:
        raise misuse("no parameter requires a gradient", f"optimizer {type(optimizer).__name__}", "unfreeze what shall be trained")
    if named_parameters is None:
        return [(f"noname.{name}", parameter) for parameter, name in trained.items()]
    names, chosen = set(), {}
    for name, parameter in named_parameters:
        if name in names:
            raise misuse("two parameters have this name", f"named_parameters, '{name}'", "give each its own, as model.named_parameters() does")
        names.add(name)
        if parameter in trained:
            chosen.setdefault(parameter, name)
    unnamed = [name for parameter, name in trained.items() if parameter not in chosen]
    if unnamed:
        raise misuse("the optimizer has parameters without a name", f"group.place {', '.join(unnamed[:5])}", "pass named_parameters of the whole model")
    return [(name, parameter) for parameter, name in chosen.items()]
