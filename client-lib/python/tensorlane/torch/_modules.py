"""Which module's forward pass must wait for which parameter, and what must not see a pending update (overlap=True).

In the first iteration a global forward pre-hook records which modules' hooks fire in training. Afterwards every
parameter has *guards*: each module that owns it and whose hook fired, or else that owner's nearest ancestors whose hook
did (attention never calls its output projection, it hands the weight to a fused function). A parameter with an owner
that has no such ancestor, or with no owner at all, is updated inside step().

Guards bring the parameters of a module up to date together, and those that a C++ extension is given inside it. Any
other use is seen by _touch.py.
"""

import threading
import weakref

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from ..errors import misuse
from ._rounds import on_autograds_thread

# PyTorch 2.1 has no such question; there the compiler sees the recording hooks.
_is_compiling = getattr(getattr(torch, "compiler", None), "is_compiling", lambda: False)

COMPILED = "the model is compiled (torch.compile)"  # why step() is synchronous

_WRAPPERS = {
    "DistributedDataParallel": "it averages the gradients itself, so they would be averaged twice",
    "FullyShardedDataParallel": "it shards the parameters and averages the gradients itself",
    "FSDPModule": "it shards the parameters and averages the gradients itself",
    "DataParallel": "its replicas run forward passes on other threads",
}


def check_module(module):
    """Raises for a module tree that the optimizer cannot serve."""
    for child in module.modules():
        if isinstance(child, torch.jit.ScriptModule):
            raise misuse(
                "a ScriptModule runs no Python hooks", f"module {type(child).__name__}",
                "give the optimizer the module before scripting it",
            )
        for kind in type(child).__mro__:
            if kind.__module__.startswith("torch.") and kind.__name__ in _WRAPPERS:
                raise misuse(
                    f"parameters under {kind.__name__} are refused: {_WRAPPERS[kind.__name__]}",
                    f"module {type(child).__name__}", "give the plain module to the optimizer and train that",
                )


def is_compiled(module):
    """Whether torch.compile has been applied to the module or a part of it."""
    return any(
        type(child).__name__ == "OptimizedModule" or getattr(child, "_compiled_call_impl", None) is not None
        for child in module.modules()
    )


class ModuleWatch:
    """`owner` applies pending updates: it has pending, apply(slots), flush(), before_zero_grad() and compiled_later(),
    and `updates`, a Trail; the modules hold it weakly. Used by the training thread."""

    def __init__(self, owner, slots, modules):
        self.recording = True
        self._owner = weakref.ref(owner)
        self._by_parameter = {slot.parameter: slot for slot in slots}
        self._given = modules
        self._fired = {}
        self._uses = _Uses(self._by_parameter, self._fired)
        self._handles = []
        self._recorders = [
            register_module_forward_pre_hook(_entering_hook(self._uses)),
            register_module_forward_hook(_leaving_hook(self._uses), always_call=True),
        ]
        for recorder in self._recorders:
            weakref.finalize(owner, recorder.remove)

    def roots(self):
        """The outermost modules known so far that use our parameters."""
        inside = set()
        fired = [m for m in self._fired.values() if any(p in self._by_parameter for p in m.parameters())]
        for module in self._given + fired:
            inside.update(id(child) for child in module.modules() if child is not module)
        unique = {id(m): m for m in self._given + fired}
        return [m for key, m in unique.items() if key not in inside]

    def has_seen_training(self):
        """Whether there has been a forward pass to learn from."""
        return bool(self._fired or self._uses.compiled)

    def compiled(self):
        """Whether a module that has run is compiled."""
        return bool(self._uses.compiled) or any(is_compiled(root) for root in self.roots())

    def check(self):
        """Raises if a module that has run cannot be served."""
        for root in self.roots():
            check_module(root)

    def finish(self):
        """Ends the recording and puts the hooks on. Returns the slots that no module guards."""
        roots = self.roots()
        parents, owners, subtrees = self._survey(roots)
        guarded, unguarded = {}, []
        for slot in self._by_parameter.values():
            guards = self._guards(owners.get(slot, []), parents)
            if not guards:
                unguarded.append(slot)
            for module in guards:
                guarded.setdefault(module, []).append(slot)
            slot.late = slot.late or len(owners.get(slot, [])) > 1
        for module, below in subtrees.items():
            self._instrument(module, guarded.get(module, []), below)
        self.stop()
        return unguarded

    def stop(self):
        """Ends the recording without hooks."""
        self.recording = False
        for recorder in self._recorders:
            recorder.remove()
        self._fired.clear()

    def close(self):
        """Takes everything off the modules again."""
        self.stop()
        for remove in self._handles:
            remove()
        self._handles.clear()

    def _survey(self, roots):
        parents, owners, subtrees = {}, {}, {}
        for module in dict.fromkeys(m for root in roots for m in root.modules()):
            for child in module.children():
                parents.setdefault(child, []).append(module)
            below = [self._by_parameter[p] for p in module.parameters() if p in self._by_parameter]
            if below:
                subtrees[module] = below
            for parameter in dict.fromkeys(module._parameters.values()):
                if parameter in self._by_parameter:
                    owners.setdefault(self._by_parameter[parameter], []).append(module)
        return parents, owners, subtrees

    def _guards(self, owners, parents):
        guards, level = {}, list(owners)
        while level:
            above = []
            for module in level:
                if id(module) in self._fired:
                    guards[module] = True
                elif module in parents:
                    above += parents[module]
                else:
                    return []
            level = list(dict.fromkeys(above))
        return list(guards)

    def _instrument(self, module, guarded, below):
        everything = list(dict.fromkeys(guarded + below))
        handle = module.register_forward_pre_hook(_ForwardHook(self._owner, guarded, everything), prepend=True)
        self._handles.append(handle.remove)
        for name in _GUARDED_METHODS:
            if name not in vars(module):
                guard = _flush_before(self._owner, weakref.ref(module), name)
                vars(module)[name] = guard
                self._handles.append(
                    lambda module=module, name=name, guard=guard: vars(module).get(name) is guard
                    and vars(module).pop(name)
                )


class _Uses:
    """Records which modules' hooks fire while an outermost module runs that uses our parameters."""

    def __init__(self, by_parameter, fired):
        self.compiled = []  # not empty: a compiled module has run
        self._by_parameter = by_parameter
        self._fired = fired
        self._thread = threading.local()

    def enter(self, module):
        running = self._running()
        if not running:
            if not any(parameter in self._by_parameter for parameter in module.parameters()):
                return
            if is_compiled(module):
                self.compiled.append(True)
                return
        running.append(module)
        if torch.is_grad_enabled():
            self._fired.setdefault(id(module), module)

    def leave(self, module):
        running = self._running()
        if running and running[-1] is module:
            running.pop()

    def _running(self):
        """The modules whose forward pass is under way on this thread, outermost first."""
        if not hasattr(self._thread, "running"):
            self._thread.running = []
        return self._thread.running


def _entering_hook(uses):
    def enter(module, args):
        if _is_compiling():
            uses.compiled.append(True)
        else:
            uses.enter(module)

    return enter


def _leaving_hook(uses):
    def leave(module, args, output):
        if not _is_compiling():
            uses.leave(module)

    return leave


class _ForwardHook:
    """The forward pre-hook of one module. Where autograd does not record, or outside training, torch may take fast
    paths on which the hooks of children do not fire: then the module waits for everything below it."""

    def __init__(self, owner, guarded, everything):
        self._owner = owner
        self._guarded = guarded
        self._everything = everything

    def __call__(self, module, args):
        owner = self._owner()
        if owner is None or not (owner.pending or owner.updates):
            return
        owner.updates.follow(f"the forward pass of module {type(module).__name__}")
        if owner.pending:
            compiler = torch._C._dynamo.eval_frame.set_eval_frame(None)
            try:
                if compiler:
                    owner.compiled_later()
                else:
                    owner.apply(self._guarded if module.training and torch.is_grad_enabled() else self._everything)
            finally:
                torch._C._dynamo.eval_frame.set_eval_frame(compiler)


# What torch.compiler.disable() sets, without the cost of importing the compiler: where a model is compiled later, the
# compiled code calls the hook instead of being traced through it, and the hook turns the compiler off for what it
# calls.
_ForwardHook.__call__._torchdynamo_disable = True


_GUARDED_METHODS = ("state_dict", "_load_from_state_dict", "train", "zero_grad", "__reduce_ex__")


def _flush_before(owner, module, name):
    """Stands in for the method `name` of one module and flushes first. train() flushes only on the way to evaluation;
    zero_grad() does what that of the optimizer does."""

    def call(*args, **kwargs):
        optimizer, target = owner(), module()
        if optimizer is not None and name == "zero_grad":
            optimizer.before_zero_grad(args[0] if args else kwargs.get("set_to_none", True))
        elif optimizer is not None and not (name == "train" and (args[0] if args else kwargs.get("mode", True))):
            optimizer.flush()
        result = getattr(type(target), name)(target, *args, **kwargs)
        return _without_our_traces(result) if name == "__reduce_ex__" else result

    call.__name__ = name
    call.tensorlane = True
    return call


def _without_our_traces(reduced):
    """What copy.deepcopy and pickle make of a module, less our hooks: the copy belongs to no optimizer."""
    if not isinstance(reduced, tuple) or len(reduced) < 3 or not isinstance(reduced[2], dict):
        return reduced
    state = {key: value for key, value in reduced[2].items() if not getattr(value, "tensorlane", False)}
    hooks = state.get("_forward_pre_hooks")
    if hooks is not None:
        kept = hooks.copy()
        for key in [key for key, hook in hooks.items() if isinstance(hook, _ForwardHook)]:
            del kept[key]
        state["_forward_pre_hooks"] = kept
    return (*reduced[:2], state, *reduced[3:])


def check_thread(thread, slots):
    """Updates belong to the thread that calls step(), and to autograd's, for which that one waits in backward()."""
    if thread != threading.get_ident() and not on_autograds_thread():
        raise misuse(
            "a forward pass on another thread needs its pending update", slots[0].where(),
            "run the forward pass on the thread that calls step(), or call flush() there first",
        )
