"""What the optimizer refuses, by name and with the reason."""

import pytest
import torch
from helpers import wrap
from loopback import Loopback
from models import build, same_bits
from tensorlane.errors import InvalidArgumentError
from tensorlane.torch import DistributedOptimizer, Min, broadcast_parameters
from torch import nn


def refused(text, call):
    with pytest.raises(InvalidArgumentError) as raised:
        call()
    assert str(raised.value) == text


def step(model, optimizer, x=None):
    optimizer.zero_grad()
    model(torch.ones(2, 6) if x is None else x).square().sum().backward()
    optimizer.step()


def test_lbfgs():
    model = build("plain")
    refused(
        "a closure is refused: it computes gradients inside step(), after they should have been sent: optimizer LBFGS: "
        "use an optimizer whose step() needs no closure",
        lambda: wrap(model, torch.optim.LBFGS(model.parameters())),
    )


@pytest.mark.parametrize("synchronous", [False, True])
def test_closure(synchronous):
    optimizer = wrap(build("plain"), synchronous=synchronous)
    refused(
        "a closure is refused: it computes gradients inside step(), after they should have been sent: SGD.step(closure): "
        "compute the loss and call backward() before step()",
        lambda: optimizer.step(lambda: 0.0),
    )


def test_sparse_adam():
    model = nn.Embedding(4, 3, sparse=True)
    refused(
        "sparse gradients cannot be summed: optimizer SparseAdam: use Adam with dense gradients (sparse=False)",
        lambda: wrap(model, torch.optim.SparseAdam(model.parameters())),
    )


def test_sparse_gradient():
    model = nn.Embedding(4, 3, sparse=True)
    optimizer = wrap(model)  # held: its hooks go with it
    refused(
        "its gradient is sparse, and only dense ones can be summed: parameter 'weight': build the layer with sparse=False",
        lambda: model(torch.tensor([1])).sum().backward(),
    )
    del optimizer


def test_differentiable():
    model = build("plain")
    with pytest.raises(InvalidArgumentError, match="differentiable=True is refused"):
        wrap(model, torch.optim.SGD(model.parameters(), lr=0.1, differentiable=True))


@pytest.fixture
def process_group(tmp_path):
    dist = pytest.importorskip("torch.distributed")
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


DDP_TEXT = (
    "parameters under DistributedDataParallel are refused: it averages the gradients itself, so they would be averaged twice: "
    "module DistributedDataParallel: give the plain module to the optimizer and train that"
)


def test_ddp(process_group):
    model = nn.parallel.DistributedDataParallel(build("plain"))
    refused(DDP_TEXT, lambda: wrap(model, outer=model))


@pytest.mark.parametrize("synchronous", [False, True])
def test_ddp_that_comes_later(process_group, synchronous):
    """Nobody gave us the outer module: it is found in the first iteration, before any parameter changes."""
    model = build("plain")
    optimizer = wrap(model, synchronous=synchronous)
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    outer = nn.parallel.DistributedDataParallel(model)
    refused(DDP_TEXT, lambda: step(outer, optimizer))
    assert all(torch.equal(p, before[n]) for n, p in model.named_parameters())


def test_fsdp_by_its_name():
    """FSDP wants an accelerator; its class alone decides."""
    fsdp = pytest.importorskip("torch.distributed.fsdp").FullyShardedDataParallel
    model = fsdp.__new__(fsdp)
    nn.Module.__init__(model)
    model.inner = build("plain")
    with pytest.raises(InvalidArgumentError, match="parameters under FullyShardedDataParallel are refused: it shards the parameters"):
        wrap(model.inner, outer=model)


def test_data_parallel():
    model = nn.DataParallel(build("plain"))
    with pytest.raises(InvalidArgumentError, match="under DataParallel are refused: its replicas run forward passes on other threads"):
        wrap(model, outer=model)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_script_module():
    model = torch.jit.script(build("plain"))
    refused(
        "a ScriptModule runs no Python hooks: module RecursiveScriptModule: give the optimizer the module before scripting it",
        lambda: wrap(model, outer=model),
    )


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_script_module_inside():
    model = nn.Sequential(nn.Linear(6, 6), torch.jit.trace(nn.Linear(6, 3), torch.ones(1, 6)))
    optimizer = wrap(model)
    with pytest.raises(InvalidArgumentError, match="a ScriptModule runs no Python hooks"):
        step(model, optimizer)


def test_wrapped_twice():
    model = build("plain")
    optimizer = wrap(model)
    refused("it is distributed already: optimizer SGD: wrap the plain optimizer once", lambda: wrap(model, optimizer))
    optimizer.close()
    way_on = "use or wrap the plain optimizer that it was made of, or a new one that has loaded its state_dict()"
    refused(f"it was distributed before, and is closed: optimizer SGD: {way_on}", lambda: wrap(model, optimizer))
    refused(f"it is closed: optimizer SGD: {way_on}", optimizer.step)


def test_not_an_optimizer():
    with pytest.raises(InvalidArgumentError, match="a torch.optim.Optimizer is expected"):
        DistributedOptimizer(build("plain"), transport=Loopback())


def test_late_group():
    model = build("plain")
    with pytest.raises(InvalidArgumentError, match="the set of parameters is fixed"):
        wrap(model).add_param_group({"params": [nn.Parameter(torch.ones(1))]})


def test_names():
    model = build("plain")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    named = list(model.named_parameters())
    with pytest.raises(InvalidArgumentError, match="the optimizer has parameters without a name: group.place 0.5"):
        DistributedOptimizer(optimizer, named[:-1], transport=Loopback())
    with pytest.raises(InvalidArgumentError, match="two parameters have this name: named_parameters, 'x'"):
        DistributedOptimizer(optimizer, [("x", p) for _, p in named], transport=Loopback())


@pytest.mark.parametrize("passes", [0, -1])
def test_passes(passes):
    with pytest.raises(InvalidArgumentError, match=f"backward_passes_per_step must be at least 1: backward_passes_per_step={passes}"):
        wrap(build("plain"), backward_passes_per_step=passes)


def test_nothing_to_train():
    model = build("plain").requires_grad_(False)
    with pytest.raises(InvalidArgumentError, match="no parameter requires a gradient"):
        wrap(model)


@pytest.mark.parametrize(
    "parameter, text",
    [
        (torch.zeros(2, dtype=torch.complex64), "dtype torch.complex64 is not supported: parameter 'p'"),
        (torch.zeros(0), "it has no elements: parameter 'p'"),
        (torch.zeros(2, device="meta"), "tensors on meta are not supported: parameter 'p': move it to the CPU or to a CUDA GPU"),
    ],
)
def test_unsupported_parameters(parameter, text):
    parameter = nn.Parameter(parameter)
    with pytest.raises(InvalidArgumentError, match=text):
        DistributedOptimizer(torch.optim.SGD([parameter], lr=0.1), [("p", parameter)], transport=Loopback())


# Unknown optimizers


class Signs(torch.optim.Optimizer):
    """Treats every parameter by itself."""

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.sub_(p.grad.sign() * group["lr"])


class Normalized(Signs):
    """Couples all parameters by the norm of the whole gradient."""

    @torch.no_grad()
    def step(self, closure=None):
        gradients = [p for g in self.param_groups for p in g["params"] if p.grad is not None]
        norm = torch.stack([p.grad.norm() for p in gradients]).norm()
        for p in gradients:
            p.sub_(p.grad / norm * self.param_groups[0]["lr"])


class Counting(Signs):
    """Counts steps in its group."""

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            group["count"] = group.get("count", 0) + 1
            for p in group["params"]:
                if p.grad is not None:
                    p.sub_(p.grad * group["lr"] / group["count"])


class Noisy(Signs):
    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.sub_(p.grad * group["lr"] + torch.randn_like(p) * 1e-3)


class SlightlyCoupled(Signs):
    """Each update takes one bit from the parameter before it."""

    @torch.no_grad()
    def step(self, closure=None):
        previous = 0.0
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.sub_(p.grad * group["lr"] * (1 + previous))
                    previous = 1e-6


class SignsWithTwoStates(Signs):
    pass


@pytest.mark.parametrize("kind", [Signs, SignsWithTwoStates])
def test_an_unknown_optimizer_that_steps_each_parameter_by_itself_is_accepted(kind):
    states = []
    for synchronous in (False, True):
        model = build("plain")
        optimizer = wrap(model, kind(model.parameters(), 0.01), synchronous=synchronous)
        for _ in range(5):
            step(model, optimizer)
        assert optimizer.tensorlane_status()["pending"] == (0 if synchronous else 6)
        states.append(model.state_dict())
    same_bits(*states)


@pytest.mark.parametrize("kind", [torch.optim.NAdam, torch.optim.Adamax, torch.optim.RAdam, torch.optim.Rprop, torch.optim.Adadelta, torch.optim.ASGD])
def test_other_optimizers_of_torch_prove_themselves(kind):
    states = []
    for synchronous in (False, True):
        model = build("plain")
        optimizer = wrap(model, kind(model.parameters(), lr=0.01), synchronous=synchronous)
        for _ in range(5):
            step(model, optimizer)
        states.append(model.state_dict())
    same_bits(*states)


@pytest.mark.parametrize("kind", [Normalized, Counting, SlightlyCoupled])
def test_an_unknown_optimizer_that_couples_parameters_is_refused(kind):
    model = build("plain")
    refused(
        f"stepping its parameters one at a time does not give the bits of a whole step: optimizer {kind.__name__}: "
        "pass synchronous=True, which steps it as a whole",
        lambda: wrap(model, kind(model.parameters(), 0.01)),
    )
    optimizer = wrap(model, kind(model.parameters(), 0.01), synchronous=True)
    step(model, optimizer)


def test_coupling_shows_with_a_single_parameter_too():
    model = nn.Linear(6, 3, bias=False)
    with pytest.raises(InvalidArgumentError, match="one at a time"):
        wrap(model, Normalized(model.parameters(), 0.01))


def test_an_optimizer_that_draws_random_numbers_is_refused():
    model = build("plain")
    state = torch.get_rng_state()
    with pytest.raises(InvalidArgumentError, match="draws random numbers"):
        wrap(model, Noisy(model.parameters(), 0.01))
    assert torch.equal(state, torch.get_rng_state())


def test_the_comparison_leaves_the_original_alone():
    model = build("plain")
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    inner = torch.optim.NAdam(model.parameters())
    wrap(model, inner)
    assert not inner.state and all(torch.equal(p, before[n]) for n, p in model.named_parameters())


# torch.compile


def compiled_cases():
    def whole(model):
        return torch.compile(model, backend="eager")

    def in_place(model):
        model.compile(backend="eager")
        return model

    return {"torch.compile": whole, "module.compile": in_place}


@pytest.mark.filterwarnings("ignore:Using `torch.compile")
@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize("how", compiled_cases())
def test_a_compiled_model_is_stepped_synchronously_and_status_says_so(how, told):
    plain = build("plain")
    reference = torch.optim.SGD(plain.parameters(), lr=0.1)
    model = build("plain")
    called = compiled_cases()[how](model)
    optimizer = DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), model=called if told else None, overlap=True, transport=Loopback()
    )
    for _ in range(3):
        step(called, optimizer)
        step(plain, reference)
    report = optimizer.tensorlane_status()
    assert (report["mode"], report["reason"], report["pending"]) == ("synchronous", "the model is compiled (torch.compile)", 0)
    same_bits(model.state_dict(), plain.state_dict())


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_compiling_after_the_first_iteration_keeps_the_numbers():
    torch.compiler.reset()  # or code compiled for another model of this class would be taken, without the hooks that are new here
    states = []
    for synchronous in (False, True):
        model = build("plain")
        optimizer = wrap(model, synchronous=synchronous)
        for _ in range(2):
            step(model, optimizer)
        called = torch.compile(model, backend="eager")
        for _ in range(3):
            step(called, optimizer)
        states.append(model.state_dict())
    same_bits(*states)


def test_reductions_that_are_no_sums():
    refused(
        "gradients cannot be reduced by op 2: DistributedOptimizer: use Sum or Average",
        lambda: wrap(build("plain"), op=Min),
    )


def test_broadcasting_what_has_no_names():
    model = build("plain")
    refused(
        "Plain is a module: broadcast_parameters: pass model.state_dict(), which has the buffers, too", lambda: broadcast_parameters(model),
    )
    for parameters in (list(model.parameters()), nn.Sequential(model).children()):
        with pytest.raises(InvalidArgumentError, match="is no pair of a name and a tensor: broadcast_parameters: pass model.state_dict"):
            broadcast_parameters(parameters)
