"""Calls somebody before any torch function gets a watched tensor: a parameter whose update is pending, its optimizer
state, or a gradient that has been sent.

A TorchFunctionMode sees every torch call of its thread: operators, methods, and properties such as `.data`. It is on
the stack while there is somebody to watch for; the stack is not touched in a backward pass, which puts it back as it
was. It lies at the bottom (above torch's own mode of default devices), so that other modes are entered and left as if
it were not there. It costs 2 us for each torch call.
"""

import contextlib
import threading
import weakref

import torch
from torch._C import (
    _get_function_stack_at, _len_torch_function_stack, _pop_torch_function_stack, _push_on_torch_function_stack,
)
from torch.overrides import TorchFunctionMode
from torch.utils._device import DeviceContext

_thread = threading.local()


def of_this_thread():
    if not hasattr(_thread, "watch"):
        _thread.watch = Watch()
    return _thread.watch


class _Away(threading.local):
    """How many calls of ours are under way on a thread."""

    calls = 0


class Watch(TorchFunctionMode):
    """What one thread watches, and in its backward passes autograd's threads with it, to which torch gives a stack of
    their own like that of the thread. `watched` maps id(tensor), and `places` the address of its first element, to a
    function that is called with the tensor before that is used. A tensor may end while it is watched, and another one
    get its id: the function must look which it is."""

    def __init__(self):
        super().__init__()
        self.watched = {}
        self.places = {}
        # By id(parameter): called when somebody gets its p.grad, and forgotten when somebody sets it.
        self.without_gradient = {}
        self._askers = weakref.WeakSet()
        self._away = _Away()

    def join(self, asker):
        """Watches from now on, until leave() or the end of `asker`."""
        self._askers.add(asker)
        self._refresh()

    def leave(self, asker):
        self._askers.discard(asker)
        self._refresh()

    def add(self, tensor, touched, aliases=False):
        """With `aliases`, tensors that begin at the same element (p.data, p.detach(), p.view(-1)) are watched, too.
        Returns the keys for forget()."""
        self.watched[id(tensor)] = touched
        if not aliases:
            return id(tensor), None
        place = tensor.data_ptr()
        self.places[place] = touched
        return id(tensor), place

    def forget(self, keys):
        number, place = keys
        self.watched.pop(number, None)
        if place is not None:
            self.places.pop(place, None)

    @contextlib.contextmanager
    def aside(self):
        """Calls in this context are ours: not watched, and no part of what torch.jit.trace records."""
        present = self._present()
        if present:
            self._take_out()
        tracing = torch._C._get_tracing_state()
        if tracing is not None:
            torch._C._set_tracing_state(None)
        self._away.calls += 1
        try:
            yield self
        finally:
            self._away.calls -= 1
            if tracing is not None:
                torch._C._set_tracing_state(tracing)
            if present and self._askers:
                self._put_in()

    def _present(self):
        return any(_get_function_stack_at(i) is self for i in range(_len_torch_function_stack()))

    def _refresh(self):
        if self._away.calls == 0 and bool(self._askers) != self._present():
            self._put_in() if self._askers else self._take_out()

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function in _LOOKS:
            if self.without_gradient and function in _OF_GRADIENT:
                self._see_gradient(function, args[0])
        elif self.watched:
            self._see(args)
            if kwargs:
                self._see(kwargs.values())
        return function(*args, **(kwargs or {}))

    def _see(self, values):
        for value in values:
            if isinstance(value, torch.Tensor):
                touched = self.watched.get(id(value)) or (self.places and self.places.get(_place(value)))
                if touched:
                    self._handle(touched, value)
            elif isinstance(value, (list, tuple)):
                self._see(value)
            elif isinstance(value, dict):
                self._see(value.values())

    def _see_gradient(self, function, parameter):
        touched = self.without_gradient.get(id(parameter))
        if touched and function == _SET_GRADIENT:  # each access makes another object
            del self.without_gradient[id(parameter)]
        elif touched:
            self._handle(touched, parameter)

    def _handle(self, touched, value):
        self._away.calls += 1  # torch has taken this mode off the stack for the call, and will put it back
        try:
            touched(value)
        finally:
            self._away.calls -= 1

    def _put_in(self):
        above = _pop_all()
        if above and _insists_on_the_bottom(above[-1]):
            _push_on_torch_function_stack(above.pop())
        _push_on_torch_function_stack(self)
        _push_all(above)

    def _take_out(self):
        _push_all([mode for mode in _pop_all() if mode is not self])


def _pop_all():
    return [_pop_torch_function_stack() for _ in range(_len_torch_function_stack())]


def _push_all(modes):
    for mode in reversed(modes):
        _push_on_torch_function_stack(mode)


def _insists_on_the_bottom(mode):
    """Whether it is what torch.set_default_device() has put there; in newer versions of torch it looks for itself at
    the bottom when it is left."""
    default = getattr(getattr(torch, "_GLOBAL_DEVICE_CONTEXT", None), "device_context", None)
    return mode is default and "_len_torch_function_stack" in DeviceContext.__exit__.__code__.co_names


def _place(tensor):
    try:
        return tensor.data_ptr()
    except RuntimeError:  # it has no memory of its own: fake, functional, batched
        return None


# Looking at a tensor's properties reads none of its values.
_LOOKS = (
    frozenset(
        accessor
        for name in (
            "shape", "dtype", "device", "requires_grad", "is_leaf", "grad_fn", "ndim", "layout", "itemsize", "nbytes",
            "names", "is_nested", "is_sparse", "is_sparse_csr", "is_mkldnn", "is_quantized", "is_meta", "is_cpu",
            "is_cuda", "is_mps", "is_xpu", "_version", "output_nr", "retains_grad", "_backward_hooks",
            "_post_accumulate_grad_hooks", "grad",
        )
        if hasattr(torch.Tensor, name)
        for accessor in (getattr(torch.Tensor, name).__get__,)
    )
    | frozenset(
        getattr(torch.Tensor, name)
        for name in (
            "size", "dim", "numel", "stride", "storage_offset", "is_floating_point", "is_complex", "is_contiguous",
            "element_size", "get_device", "register_hook", "register_post_accumulate_grad_hook", "requires_grad_",
            "__hash__", "__len__", "is_same_size", "is_set_to", "ndimension", "nelement",
        )
        if hasattr(torch.Tensor, name)
    )
    | {torch.Tensor.grad.__set__, torch.Tensor.requires_grad.__set__, torch.is_floating_point, torch.numel}
)
_SET_GRADIENT = torch.Tensor.grad.__set__
_OF_GRADIENT = (torch.Tensor.grad.__get__, torch.Tensor.grad.__set__)
