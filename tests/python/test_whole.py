"""What applies pending updates, how it behaves as an optimizer, and what happens when the transport fails."""

import copy
import gc
import io
import pickle

import pytest
import torch
import torch.nn.functional as F
from helpers import backward, bits, iterate, pending, unchanged, wrap
from loopback import Loopback
from models import OPTIMIZERS, build, data, same_bits
from tensorlane import errors
from tensorlane.torch import DistributedOptimizer
from torch import nn


# What flushes


FLUSHERS = {
    "state_dict": lambda model, optimizer: model.state_dict(),
    "state_dict of a child": lambda model, optimizer: model.first.state_dict(),
    "optimizer state_dict": lambda model, optimizer: optimizer.state_dict(),
    "eval": lambda model, optimizer: model.eval(),
    "train(False)": lambda model, optimizer: model.train(False),
    "deepcopy": lambda model, optimizer: copy.deepcopy(model),
    "deepcopy of the optimizer": lambda model, optimizer: copy.deepcopy(optimizer),
    "pickle": lambda model, optimizer: pickle.dumps(model),
    "pickle of the optimizer": lambda model, optimizer: pickle.dumps(optimizer),
    "torch.save": lambda model, optimizer: torch.save(model, io.BytesIO()),
    "flush": lambda model, optimizer: optimizer.flush(),
}


@pytest.mark.parametrize("how", FLUSHERS)
def test_flushes(how):
    model = build("plain")
    optimizer = wrap(model)
    iterate(model, optimizer, 2)
    before = bits(model)
    assert pending(optimizer) == 6
    FLUSHERS[how](model, optimizer)
    assert pending(optimizer) == 0 and unchanged(model, before) == []


def test_train_mode_does_not_flush():
    model = build("plain")
    optimizer = wrap(model)
    iterate(model, optimizer, 2)
    model.train()
    assert pending(optimizer) == 6


def test_loading_a_model_is_not_overwritten_by_a_pending_update():
    model = build("plain")
    optimizer = wrap(model)
    iterate(model, optimizer, 2)
    other = build("plain", seed=99).state_dict()
    model.load_state_dict(other)
    assert pending(optimizer) == 0
    same_bits(model.state_dict(), other)


def test_loading_an_optimizer():
    model, twin = build("plain"), build("plain")
    optimizer, other = wrap(model, OPTIMIZERS["adam"](model.parameters())), wrap(twin, OPTIMIZERS["adam"](twin.parameters()))
    iterate(model, optimizer, 3)
    saved = copy.deepcopy(optimizer.state_dict()), copy.deepcopy(model.state_dict())
    iterate(twin, other, 2, seed=50)
    twin.load_state_dict(saved[1])
    other.load_state_dict(saved[0])
    for net, one in ((model, optimizer), (twin, other)):
        iterate(net, one, 3, seed=70)
    same_bits(model.state_dict(), twin.state_dict())


@pytest.mark.parametrize("copier", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_a_copy_of_the_model_is_free_of_the_optimizer(copier):
    model = build("plain")
    optimizer = wrap(model)
    iterate(model, optimizer, 2)
    twin = copier(model)
    same_bits(twin.state_dict(), model.state_dict())
    assert not any(m._forward_pre_hooks for m in twin.modules())
    assert not any(name in vars(m) for m in twin.modules() for name in ("train", "state_dict", "__reduce_ex__"))
    backward(model, 3)
    optimizer.step()
    before = bits(twin)
    twin(torch.randn(1, 6)).sum().backward()
    twin.eval()
    assert pending(optimizer) == 6 and unchanged(twin, before) == list(before)


def test_a_copy_of_the_optimizer_is_a_plain_one():
    model = build("plain")
    optimizer = wrap(model, OPTIMIZERS["adam"](model.parameters()))
    iterate(model, optimizer, 2)
    twin = pickle.loads(pickle.dumps(optimizer))
    assert type(twin) is torch.optim.Adam
    same_bits(twin.state_dict()["state"], optimizer.state_dict()["state"])


def test_updates_survive_an_optimizer_that_goes_out_of_scope():
    def run(synchronous):
        model = build("plain")
        iterate(model, wrap(model, synchronous=synchronous), 3)
        gc.collect()
        return model.state_dict()

    same_bits(run(False), run(True))


def test_wrapping_again_takes_over():
    model = build("plain")
    old_transport, transport = Loopback(), Loopback()
    old = wrap(model, transport=old_transport)
    iterate(model, old, 2)
    before = bits(model)
    new = wrap(model, transport=transport)
    assert unchanged(model, before) == [], "what was pending is applied"
    old_transport.log.clear()
    iterate(model, new, 2)
    assert old_transport.log == [] and transport.posted()
    with pytest.raises(errors.InvalidArgumentError, match="another DistributedOptimizer has its parameters now"):
        old.step()


def test_close_leaves_nothing_on_the_model():
    gc.collect()  # what earlier tests have dropped
    global_hooks = dict(torch.nn.modules.module._global_forward_pre_hooks)
    model = build("plain")
    optimizer = wrap(model)
    clean = [set(vars(m)) for m in build("plain").modules()]
    iterate(model, optimizer, 2)
    optimizer.close()
    assert [set(vars(m)) for m in model.modules()] == clean
    assert not any(m._forward_pre_hooks for m in model.modules())
    assert torch.nn.modules.module._global_forward_pre_hooks == global_hooks


def test_close_gives_the_buffers_back_unless_ranks_may_differ():
    """Not after an error, which other ranks may not have; one that was replaced has none of its own."""
    model = build("plain")
    sound, replaced, failed = Loopback(), Loopback(), Loopback()
    wrap(build("plain"), transport=sound).close()
    assert sound.buffers == []
    old = wrap(model, transport=replaced)
    optimizer = wrap(model, transport=failed)
    assert replaced.buffers
    old.close()
    assert replaced.buffers == []
    failed.failure = errors.AbortedError("rank 1 died")
    with pytest.raises(errors.AbortedError):
        iterate(model, optimizer)
    optimizer.close()
    assert failed.buffers


@pytest.mark.parametrize("synchronous", [False, True])
def test_after_close_the_plain_optimizer_goes_on_with_its_state_or_a_new_one_loads_it(synchronous):
    results = []
    for way in ("never wrapped", "plain", "loads", "wraps again"):
        model = build("plain")
        plain = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        optimizer = plain if way == "never wrapped" else wrap(model, plain, synchronous=synchronous)
        iterate(model, optimizer, 3)
        if way != "never wrapped":
            optimizer.close()
        if way == "loads":
            plain = torch.optim.SGD(model.parameters(), lr=0.7)
            plain.load_state_dict(optimizer.state_dict())
        elif way == "wraps again":
            plain = wrap(model, plain, synchronous=synchronous)
        iterate(model, plain, 3)
        if way == "wraps again":
            plain.flush()
        results.append(bits(model))
    for other in results[1:]:
        assert all(torch.equal(results[0][name], other[name]) for name in other)


def test_close_that_other_ranks_have_not_come_to_goes_on_when_it_is_called_again(monkeypatch):
    transport = Loopback()
    optimizer = wrap(build("plain"), transport=transport)

    def late():
        raise errors.TimedOutError("rank 1 on host h1 has not unregistered after 5.4 s: group 'optimizer.0' of job 'j': let every rank unregister the same groups")

    with monkeypatch.context() as patch:
        patch.setattr(transport, "unregister", late)
        for _ in range(2):
            with pytest.raises(errors.TimedOutError, match="optimizer SGD is not closed on all ranks: rank 1 on host h1 .*, and call close\\(\\) again"):
                optimizer.close()
    optimizer.close()
    assert transport.buffers == []
    optimizer.close()  # Loopback refuses to be unregistered twice


# Being an optimizer


def test_it_is_an_optimizer_of_the_wrapped_class():
    model = build("plain")
    inner = torch.optim.AdamW(model.parameters())
    optimizer = wrap(model, inner)
    assert isinstance(optimizer, torch.optim.AdamW)
    assert optimizer.param_groups is inner.param_groups and optimizer.state is inner.state


def test_step_hooks_of_the_user_run_once_per_step():
    for synchronous in (False, True):
        model = build("plain")
        optimizer = wrap(model, synchronous=synchronous)
        calls = []
        optimizer.register_step_pre_hook(lambda *_: calls.append("pre"))
        optimizer.register_step_post_hook(lambda *_: calls.append("post"))
        iterate(model, optimizer, 3)
        optimizer.flush()
        assert calls == ["pre", "post"] * 3


@pytest.mark.filterwarnings("error")
def test_schedulers_made_before_and_after_wrapping():
    def run(before, synchronous=False):
        model = build("plain")
        inner = torch.optim.SGD(model.parameters(), lr=0.1)
        if before:
            scheduler = torch.optim.lr_scheduler.LambdaLR(inner, lambda n: 0.8**n)
        optimizer = wrap(model, inner, synchronous=synchronous)
        if not before:
            scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: 0.8**n)
        for step in range(5):
            iterate(model, optimizer, seed=step)
            if before:
                inner._opt_called = True  # else torch warns that it saw no step(); with a scheduler made for ours it does not
            scheduler.step()
        return model.state_dict()

    same_bits(run(True), run(False))
    same_bits(run(False), run(False, synchronous=True))


def test_state_made_in_a_forward_pass_under_inference_mode_is_ordinary():
    """Momentum that begins later makes its buffer in the forward pass; an inference tensor could not be updated afterwards."""
    models = [build("plain") for _ in range(2)]
    for model, synchronous in zip(models, (False, True)):
        optimizer = wrap(model, torch.optim.SGD(model.parameters(), lr=0.1), synchronous=synchronous)
        for step in range(4):
            iterate(model, optimizer, seed=step)
            if step == 1:
                with torch.inference_mode():
                    model(data(step)[0])
            optimizer.param_groups[0]["momentum"] = 0.9
    same_bits(models[0].state_dict(), models[1].state_dict())


class Multiplying(torch.optim.Optimizer):
    """Uses a product of matrices, which autocast would compute in bfloat16."""

    def __init__(self, params):
        super().__init__(params, {})

    @torch.no_grad()
    def step(self, closure=None):
        for parameter in self.param_groups[0]["params"]:
            flat = parameter.grad.reshape(1, -1)
            parameter.sub_(0.01 * parameter.grad * torch.mm(flat, flat.t()).item())


def test_updates_in_a_forward_pass_under_autocast_have_full_precision():
    models = [build("plain") for _ in range(2)]
    for model, synchronous in zip(models, (False, True)):
        optimizer = wrap(model, Multiplying(model.parameters()), synchronous=synchronous)
        for step in range(4):
            optimizer.zero_grad()
            x, y = data(step)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = F.cross_entropy(model(x).float(), y)
            loss.backward()
            optimizer.step()
    same_bits(models[0].state_dict(), models[1].state_dict())


# Failures below


def test_a_failed_transport_fails_everything_after_it():
    model = build("plain")
    transport = Loopback()
    optimizer = wrap(model, transport=transport)
    iterate(model, optimizer, 2)
    transport.failure = errors.AbortedError("the job was aborted: host b: resume from a checkpoint")
    for use in (lambda: model(torch.randn(1, 6)), model.state_dict, optimizer.flush, optimizer.step):
        with pytest.raises(errors.AbortedError, match="host b"):
            use()


def test_a_failed_post_is_not_taken_for_a_result():
    model = build("plain")
    transport = Loopback()
    optimizer = wrap(model, transport=transport)
    iterate(model, optimizer, 1)
    before = bits(model)
    transport.log.clear()
    transport.failure = errors.AbortedError("the job was aborted: host b: resume from a checkpoint")
    with pytest.raises(errors.AbortedError):
        backward(model)
    with pytest.raises(errors.AbortedError):
        optimizer.step()
    assert unchanged(model, before) == list(before)


def test_a_gradient_that_could_not_be_posted_is_posted_at_step():
    model = build("plain")
    transport = Loopback()
    optimizer = wrap(model, transport=transport)
    iterate(model, optimizer, 1)
    optimizer.zero_grad()
    transport.log.clear()
    transport.failure = errors.InvalidArgumentError("an operation on it is under way: tensor: wait for it")
    with pytest.raises(errors.InvalidArgumentError):
        backward(model)
    transport.failure = None
    optimizer.step()
    assert sorted(transport.posted()) == sorted(transport.names[:-1])


def test_leaving_the_job_applies_what_is_pending(monkeypatch):
    import tensorlane
    from tensorlane import _native

    left = []
    monkeypatch.setattr(_native, "_context", object())
    monkeypatch.setattr(_native, "shutdown", lambda: left.append(True))
    model, other = build("plain"), build("plain")
    broken = Loopback()
    optimizer, failing = wrap(model), wrap(other, transport=broken)
    iterate(model, optimizer, 2)
    iterate(other, failing, 2)
    broken.failure = errors.AbortedError("the job was aborted: host b: resume from a checkpoint")
    before = bits(model)
    with pytest.raises(errors.AbortedError):
        tensorlane.shutdown()
    assert unchanged(model, before) == [] and left == [True]
    with pytest.raises(errors.InvalidArgumentError, match="this process has left its job"):
        iterate(model, optimizer)
