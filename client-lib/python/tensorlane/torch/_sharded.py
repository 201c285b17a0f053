"""DistributedOptimizer(sharded=True): each rank steps its share of the parameters and keeps the state of that alone.

Gradients are reduce-scattered as they appear in the backward pass. step() waits for this rank's shares of the sums,
clips them by the norm over all ranks, steps the shares, and starts the all-gathers of the parameters in the order of
the next forward pass, in which each module waits for its own parameters alone. What leaves when is in _gradients.py and
_shards.py, which module waits for what in _modules.py, who else must not see an old parameter in _touch.py.

p.grad is None as soon as a gradient has been sent, and no rank has the whole sum. Who looks at p.grad then, until
zero_grad(), gets an error: clipping a model's gradients in the ordinary way would clip nothing.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import threading
import weakref
from typing import Any

import torch

from ..errors import MismatchError, misuse
from . import _device, _shard_state, _shards, _touch
from ._distributed import Distributed
from ._lifetime import Lifetime, watch_slot, with_pending
from ._modules import COMPILED, ModuleWatch, check_thread
from ._seals import Seals, bits_of
from ._shards import ShardSender
from ._sharing import ELEMENTWISE
from ._stepper import Stepper, clone_with, default_state, snapshot, without_parameters

_STEPPED_ELEMENTS = 1 << 18  # of this rank's, before their all-gathers begin
_NOT_WHOLE = (
    "no rank has the whole gradient: sharded=True shares the sums out over the ranks and steps the shares",
    "clip with DistributedOptimizer(max_norm=) or optimizer.clip_grad_norm_(), scale losses with "
    "tensorlane.torch.ShardedGradScaler, and clear gradients with zero_grad()",
)
_STATE = "what full_state_dict() gave before, or merge_state_dicts() of the state_dict() that every rank still has"
WAY_ON = f"use or wrap a plain optimizer that has loaded {_STATE}"


class ShardedCore(Lifetime):
    """The state of one sharded optimizer. Everything runs on the training thread, the one that calls step(), and hooks
    of gradients on autograd's."""

    again = "wrap an optimizer that has loaded what full_state_dict() gives now"

    def __init__(self, optimizer, plain, modules, reason, process_set, sharing):
        """`optimizer` is a Sharded, `plain` what it wraps."""
        super().__init__(type(plain), process_set)
        self._modules = modules
        self._optimizer = weakref.ref(optimizer)
        self._plain = plain  # until register()
        self._sharing = sharing
        self._max_norm = sharing.max_norm
        self._seals = Seals("what was written is lost", "pass synchronous=True")
        self._unguarded = []
        self._shown = False  # p.grad is watched
        self._gathered = False  # the sums of this round have arrived
        self._compared = False  # the ranks have begun with the same parameters
        self._thread = threading.get_ident()
        self._touch = _touch.of_this_thread()
        self.reason = reason  # why step() waits for the parameters; None when it does not
        self.pending = set()  # slots whose parameter has not arrived
        self.updates = _device.Trail()

    def register(self, transport, group, named, op, passes):
        plain, self._plain = self._plain, None
        self.about = {"rank": transport.rank, "world": transport.size, "by": self._sharing.by}
        self._places = {}
        self._keeper = weakref.finalize(self, _take_back, [parameter for _, parameter in named], self._places)
        self._keeper.atexit = False
        self._sender = ShardSender(
            transport, group, named, op, passes, self, by=self._sharing.by, wire=self._sharing.wire
        )
        self._by_parameter = {slot.parameter: slot for slot in self._sender.slots}
        self._places.update((id(slot.parameter), slot.parameter.data_ptr()) for slot in self._sender.slots)
        self._segments = {
            segment.slot.parameter: segment for bucket in self._sender.buckets for segment in bucket.segments
        }
        self._watch = ModuleWatch(self, self._sender.slots, self._modules)
        self._inner = clone_with(plain, self._inner_groups(plain), default_state(plain, {}))
        state, self._frozen = _shard_state.of_plain(plain, self._segments, self._by_parameter)
        self._inner.state.update(state)
        self._stepper = Stepper(self._inner, self.wrapped)
        vars(self._optimizer())["state"] = default_state(plain, {})
        plain.state.clear()  # it would grow old there, and take the room that is saved here
        self._touch.join(self)

    # Called by the optimizer's methods

    def step(self, optimizer):
        with self._calling():
            self._check_registered(optimizer)
            self._check_places()
            if self._watch.recording:
                self._watch.check()
            self._gather()
            if self._max_norm is None:
                self._exchange(_shards.STEP)
            else:
                norms = self._exchange(_shards.STEP, self._local_norm(2.0), self._max_norm)
                self._clip(_combined(norms, 2.0), self._max_norm)
            self._apply_shares(optimizer)
            self._end_round()
            self._sender.steps += 1
            if self._watch.recording and self._watch.has_seen_training():
                self._finish_recording()
            if self.reason is not None or self._watch.recording:
                self.flush()
            self.apply(self._unguarded)

    def clip_grad_norm(self, max_norm, norm_type, error_if_nonfinite):
        where = f"{self.wrapped.__name__}.clip_grad_norm_"
        if norm_type == 0.0 or math.isnan(norm_type):
            raise misuse(f"norm_type={norm_type:g} is no norm over all ranks", where, "use 1, 2 or inf, say")
        if math.isnan(max_norm):
            raise misuse("max_norm=nan", where, "give a number, or inf to clip nothing")
        with self._calling():
            self._gather()
            norms = self._exchange(_shards.CLIP, self._local_norm(norm_type), max_norm, norm_type)
            total = _combined(norms, norm_type)
            if error_if_nonfinite and not math.isfinite(total):
                raise RuntimeError(
                    f"The total norm of order {norm_type} for gradients from `parameters` is non-finite, so it cannot "
                    "be clipped. To disable this error and scale the gradients by the non-finite norm anyway, set "
                    "`error_if_nonfinite=False`"
                )
            self._clip(total, max_norm)
            return torch.tensor(total, dtype=torch.float32)

    def before_scaled_step(self):
        """A GradScaler asks. Gradients are unscaled where they are, by unscale()."""

    def unscale(self, inverse, allow_fp16):
        """Multiplies the gradients. Returns whether any rank has one that is not finite."""
        half = [slot for slot in self._sender.slots if slot.parameter.dtype == torch.float16 and slot.takes_part()]
        if half and not allow_fp16:
            raise misuse(
                "gradients of float16 are not unscaled: those that are small are lost before", half[0].where(),
                "keep parameters in float32, and compute under torch.autocast",
            )
        with self._calling():
            self._gather()
            sums = [segment.gradient for bucket in self._sender.buckets for segment in self._used(bucket)]
            finite = all(bool(torch.isfinite(gradient).all()) for gradient in sums)
            flags = self._exchange(_shards.UNSCALE, 0.0 if finite else 1.0)
            if inverse != 1.0:
                for bucket in self._sender.buckets:
                    bucket.gradients.mul_(inverse)
            return any(flags)

    def before_zero_grad(self, set_to_none=True):
        """Gradients that have been sent are dropped, if all ranks do."""
        self._check_alive()
        with self._touch.aside():
            self._hide()
            if self._sender.posted:
                self._gather()
                self._exchange(_shards.DROP)
                self._end_round()
            self._sender.forget_unsent()

    def flush(self):
        self.apply(self._sender.slots)

    def apply(self, slots):
        """Returns when the parameters of these have arrived, and others with them."""
        slots = [slot for slot in slots if slot.update is not None]
        if not slots:
            return
        self._check_alive()
        check_thread(self._thread, slots)
        with self._touch.aside() as watch:
            buckets = list({slot.batch.index: slot.batch for slot in slots}.values())
            self._guarded_by_failure(lambda: self._sender.wait_values(buckets))
            arrived = [slot for bucket in buckets for slot in bucket.slots if slot.update is not None]
            self._seals.check(arrived)
            self._is_up_to_date(arrived, watch)

    def state(self):
        return self._inner.state

    def state_dict(self, packed_groups):
        return _shard_state.of_rank(
            self._optimizer().param_groups, packed_groups, self._segments, self._inner.state, self.about, self._frozen
        )

    def full_state_dict(self, packed_groups):
        with self._calling():
            if self._sender.round_open:
                raise misuse(
                    "gradients are under way", f"{self.wrapped.__name__}.full_state_dict",
                    "call it after step() and before the next backward pass",
                )
            self.flush()
            mine = self.state_dict(packed_groups)
            return _shard_state.merge_state_dicts(self._guarded_by_failure(lambda: self._sender.gather(mine)))

    def own_state(self, state_dict):
        """What set_state() takes, of a dictionary that is checked here."""
        return _shard_state.split(
            state_dict, self._optimizer().param_groups, self._segments, self.about, self._by_parameter
        )

    def set_state(self, own):
        state, self._frozen = own
        self._inner.state.clear()
        self._inner.state.update(state)

    def leave(self, what, fix):
        super().leave(what, f"{fix}: it first loads {_STATE}")

    def slot_of(self, parameter):
        """None: it is not one of these."""
        return self._by_parameter.get(parameter)

    def report(self):
        return {
            "optimizer": self.wrapped.__name__,
            "mode": "sharded",
            "shard": self.about["by"],
            "reason": self.reason,
            "recording": self._watch.recording,
            "parameters": len(self._sender.slots),
            "buckets": len(self._sender.buckets),
            "elements": sum(segment.count for segment in self._segments.values()),
            "pending": len(self.pending),
            "sent_at_step": [slot.name for slot in self._sender.slots if slot.late],
            "updated_in_step": [slot.name for slot in self._unguarded],
        }

    # Called by hooks

    def compiled_later(self):
        """A forward pass of a model that was compiled since."""
        self.flush()
        self.reason = COMPILED

    def before_round(self):
        if self._shown and any(id(slot.parameter) in self._touch.without_gradient for slot in self._sender.slots):
            raise misuse(
                "gradients of the last iteration were not cleared, and gradients that are shared out do not add up",
                f"optimizer {self.wrapped.__name__}", "call zero_grad() before each backward pass",
            )
        self._hide()
        self._set_trained(self._optimizer().param_groups)

    def after_pass(self, last):
        if last:
            self._show()

    # Inside

    @contextlib.contextmanager
    def _calling(self):
        """A call of the training thread."""
        self._check_alive()
        if self._thread != threading.get_ident():
            self._forget_all()
            self._thread = threading.get_ident()
            self._touch = _touch.of_this_thread()
            self._touch.join(self)
        with self._touch.aside(), torch.inference_mode(False), torch.no_grad():
            yield

    def _gather(self):
        """Leaves this rank's shares of the sums in place; no older parameter is under way."""
        if self._gathered:
            self._sender.check_unchanged()
            return
        self.flush()
        if not self._sender.round_open:
            self._hide()
            self._set_trained(self._optimizer().param_groups)
        self._guarded_by_failure(self._sender.send_rest)
        self._sender.check_unchanged()
        self._guarded_by_failure(lambda: self._sender.wait(self._sender.slots))
        for bucket in self._sender.buckets:
            bucket.take_sums()
        self._gathered = True
        if not self._compared:
            self._compare()

    def _compare(self):
        """Where ranks begin with different parameters, each would keep its share of them."""
        mine = sum((place + 1) * bits_of(slot.parameter) for place, slot in enumerate(self._sender.slots)) % (1 << 52)
        sums = self._exchange(_shards.COMPARE, float(mine))
        self._compared = True
        differing = [rank for rank, other in enumerate(sums) if other != sums[0]]
        if differing:
            self._failure = MismatchError(
                f"ranks {differing} have computed their first gradients with other parameters than rank 0: "
                "DistributedOptimizer: call broadcast_parameters(model.state_dict()) on all ranks before"
            )
            raise self._failure

    def _check_places(self):
        for slot in self._sender.slots:
            if slot.parameter.data_ptr() != self._places[id(slot.parameter)]:
                raise misuse(
                    "its memory was replaced, and sharded=True brings updates into the memory that it had",
                    slot.where(), f"convert and move the model before DistributedOptimizer(), or {self.again}",
                )

    def _exchange(self, call, *numbers):
        return self._guarded_by_failure(lambda: self._sender.exchange(call, *numbers))

    def _used(self, bucket):
        """This rank's segments of what any rank had a gradient for."""
        return [segment for segment in bucket.segments if self._sender.used(segment.slot)]

    def _local_norm(self, kind):
        """What _combined() makes the norm of."""
        sums = [segment.gradient for bucket in self._sender.buckets for segment in self._used(bucket)]
        if not sums:
            return math.inf if kind == -math.inf else 0.0
        norms = torch.stack([torch.linalg.vector_norm(each, kind).double() for each in sums])
        return float(_extreme(norms, kind) if math.isinf(kind) else norms.pow(kind).sum())

    def _clip(self, total, most):
        factor = most / (total + 1e-6)
        if factor < 1.0 or math.isnan(factor):
            for bucket in self._sender.buckets:
                bucket.gradients.mul_(factor)

    def _apply_shares(self, optimizer):
        """Steps this rank's shares and starts the all-gathers, in the order of the forward pass."""
        if self.wrapped in ELEMENTWISE:
            self._step_by_and_by(optimizer)
        else:
            self._step_at_once(optimizer)
        if self.pending:
            with_pending.add(self)

    def _step_at_once(self, optimizer):
        """One step of the optimizer for all shares: it may count its steps, in its groups or by itself."""
        buckets = [bucket for bucket in self._sender.buckets if any(self._sender.used(slot) for slot in bucket.slots)]
        groups = [
            (group, [self._segments[p].parameter for p in group["params"] if p in self._segments])
            for group in optimizer.param_groups
        ]
        used = (segment for bucket in buckets for segment in self._used(bucket))
        self._stepper.shared_out(groups, {segment.parameter: segment.gradient for segment in used})
        if buckets:
            self._post_values(buckets)

    def _step_by_and_by(self, optimizer):
        """The first parameters travel while the next ones are stepped."""
        hyperparameters = {
            parameter: values
            for group, values in zip(optimizer.param_groups, snapshot(optimizer.param_groups))
            for parameter in group["params"]
        }
        waiting, elements = [], 0
        for bucket in self._sender.buckets:
            if any(self._sender.used(slot) for slot in bucket.slots):
                waiting.append(bucket)
                elements += bucket.share
            if waiting and (elements >= _STEPPED_ELEMENTS or bucket is self._sender.buckets[-1]):
                self._step_buckets(waiting, hyperparameters)
                waiting, elements = [], 0

    def _step_buckets(self, buckets, hyperparameters):
        updates = [
            (segment.parameter, segment.gradient, hyperparameters[segment.slot.parameter])
            for bucket in buckets
            for segment in self._used(bucket)
        ]
        if updates:
            self._stepper.some(updates)
        self._post_values(buckets)

    def _post_values(self, buckets):
        self._guarded_by_failure(lambda: self._sender.post_values(buckets))
        me = weakref.ref(self)
        for slot in (slot for bucket in buckets for slot in bucket.slots):
            torch.autograd.graph.increment_version(slot.parameter)
            slot.update = True
            slot.seal = (slot.parameter._version, None)
            self.pending.add(slot)
            slot.watched = watch_slot(self._touch, me, slot, {})

    def _end_round(self):
        self._gathered = False
        self._sender.new_round()

    def _finish_recording(self):
        if self.reason is None and self._watch.compiled():
            self.reason = COMPILED
        if self.reason == COMPILED:
            self._watch.stop()
        else:
            self._unguarded = self._watch.finish()

    def _show(self):
        """From here on nobody may look at p.grad, until it is cleared."""
        looked = _Looked(self)
        for slot in self._sender.slots:
            if slot.takes_part() and slot.parameter.grad is None:
                self._touch.without_gradient[id(slot.parameter)] = looked
        self._shown = True

    def _hide(self):
        if self._shown:
            for slot in self._sender.slots:
                self._touch.without_gradient.pop(id(slot.parameter), None)
            self._shown = False

    def _forget_all(self):
        self._hide()
        self._touch.leave(self)
        for slot in self._sender.slots:
            for keys in slot.watched:
                self._touch.forget(keys)
            slot.watched = ()

    def _stop_watching(self):
        """Nothing is pending any more, and the parameters move into memory of their own."""
        self._watch.close()
        self._unguarded = []
        self._forget_all()
        self._keeper()
        for bucket in self._sender.buckets:
            for segment in bucket.segments:
                segment.parameter.data = segment.parameter.data.clone()
                segment.gradient = None

    def _inner_groups(self, plain):
        groups = []
        for group in plain.param_groups:
            mine = [self._segments[p].parameter for p in group["params"] if p in self._segments]
            groups.append({**without_parameters(group), "params": mine})
        return groups


class _Looked:
    """Called when somebody gets p.grad of a parameter whose gradient has been sent, or of another one that has its id
    now."""

    def __init__(self, core):
        self._core = weakref.ref(core)

    def __call__(self, parameter):
        core = self._core()
        slot = None if core is None else core.slot_of(parameter)
        if slot is not None and torch._C._current_graph_task_id() == -1:
            what, fix = _NOT_WHOLE
            raise misuse(what, slot.where(), fix)


class Sharded(Distributed):
    """What DistributedOptimizer(sharded=True) gives: an optimizer of which each rank steps a share of the parameters,
    and keeps the state of that alone.

    - Gradients are reduce-scattered as they appear in the backward pass. step() waits for this rank's share of them,
      steps it and returns; each module's forward pass waits for its own parameters. With synchronous=True step()
      waits for all. The model's parameters are alike on all ranks (broadcast_parameters()), are in host memory, and
      move into memory that is shared with the daemon, until close().
    - p.grad is not for use: it is None when its gradient has been sent, no rank has the sum, and who looks at it gets
      an error. `max_norm` lets step() clip by the norm over all parameters and ranks; clip_grad_norm_() does so by
      hand. Losses are scaled with ShardedGradScaler. zero_grad() comes before each backward pass.
    - `state` and state_dict() are of this rank's share; full_state_dict() is whole.
    - `wire_dtype` (torch.bfloat16 or float16) is the type in which gradients of float32 and float64 travel; they are
      summed in float32 and rounded once.
    - Optimizers of torch.optim that treat each element by itself are known. Of any other one `shard` says whether it
      does ("element"), or needs whole parameters ("parameter"): then what shares a bucket is shared out by parameters,
      and one large one alone travels as often as there are ranks. Such an optimizer is tried on clones of some
      parameters, and refused where it computes something over all of them. It makes one step in an iteration, so that
      it may count its steps, in its groups, too.

    Errors: as of DistributedOptimizer()."""

    def clip_grad_norm_(
        self, max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False
    ) -> torch.Tensor:
        """As torch.nn.utils.clip_grad_norm_() of all parameters, on averages over the ranks: scales this rank's shares
        of them by the norm over all ranks, and returns that. After backward() and before step(). Collective:
        MismatchError where ranks give other norms. InvalidArgumentError for norm_type=0."""
        return self._core.clip_grad_norm(float(max_norm), float(norm_type), error_if_nonfinite)

    def synchronize(self) -> None:
        """Refused: InvalidArgumentError."""
        what, fix = _NOT_WHOLE
        raise misuse(what, f"{type(self).__name__}.synchronize", fix)

    @property
    def state(self) -> Any:
        """Of this rank's segments of the parameters."""
        core = vars(self).get("_core")
        return vars(self)["state"] if core is None else core.state()

    @state.setter
    def state(self, value):
        vars(self)["state"] = value

    def state_dict(self) -> dict[str, Any]:
        """Of this rank's share: for a file of each rank, to be loaded by the same rank of as many, or to be merged by
        merge_state_dicts(). Not collective."""
        return self._core.state_dict(_packed_groups(self))

    def full_state_dict(self) -> dict[str, Any]:
        """What the plain optimizer's state_dict() would be, on every rank: it can be loaded by that, and by a sharded
        optimizer of any number of ranks. Collective, between two iterations; MismatchError where others train on."""
        return self._core.full_state_dict(_packed_groups(self))

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes this rank's state_dict(), or a whole one: a plain optimizer's, or of full_state_dict(). Every rank
        loads; not collective. InvalidArgumentError for what another rank, or one of another number, has saved, and
        ValueError for other groups; nothing is changed then."""
        self._core.flush()
        kept, core = vars(self)["state"], self._core
        own = core.own_state(state_dict)
        torch.optim.Optimizer.load_state_dict(self, {**_without_share(state_dict), "state": {}})
        vars(self)["state"] = kept
        core.set_state(own)

    _way_on = WAY_ON

    def close(self) -> None:
        """As of other distributed optimizers, and the parameters get memory of their own again. The plain optimizer
        that was wrapped has lost its state to the ranks' shares: load what full_state_dict() gave before into it. Where
        nobody called that, state_dict() still works, and merge_state_dicts() of those of all ranks is the same."""
        super().close()

    def __reduce_ex__(self, protocol):
        """Refused: InvalidArgumentError."""
        raise misuse(
            "it cannot be copied: each rank has a share of its state alone", f"optimizer {type(self).__name__}",
            "copy what full_state_dict() gives",
        )


def _packed_groups(optimizer):
    """As in a state dictionary."""
    numbers = itertools.count()
    groups = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
    for packed, group in zip(groups, optimizer.param_groups):
        packed["params"] = [next(numbers) for _ in group["params"]]
    return groups


def _without_share(state_dict):
    return {key: value for key, value in state_dict.items() if key != _shard_state.SHARD}


def _combined(values, kind):
    """The norm over all ranks."""
    values = torch.tensor(values, dtype=torch.float64, device="cpu")
    return float(_extreme(values, kind) if math.isinf(kind) else values.sum().pow(1 / kind))


def _extreme(values, kind):
    """The norm of an infinite kind; nan where one of them is."""
    return values.max() if kind > 0 else values.min()


def _take_back(parameters, places):
    """The parameters' memory is their own again."""
    with _touch.of_this_thread().aside(), torch.no_grad():
        for parameter in parameters:
            if parameter.data_ptr() == places.get(id(parameter)):
                parameter.data = parameter.data.clone()
