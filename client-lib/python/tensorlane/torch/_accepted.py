"""What DistributedOptimizer takes: which optimizers, and parameters by which names."""

import inspect

import torch

from ..errors import misuse


def check_plain(optimizer):
    """Errors: InvalidArgumentError for an optimizer whose gradients cannot be averaged for it."""
    name = type(optimizer).__name__
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    if isinstance(optimizer, torch.optim.LBFGS) or (closure is not None and closure.default is inspect.Parameter.empty):
        raise misuse(
            "a closure is refused: it computes gradients inside step(), after they should have been sent",
            f"optimizer {name}", "use an optimizer whose step() needs no closure",
        )
    if isinstance(optimizer, torch.optim.SparseAdam):
        raise misuse(
            "sparse gradients cannot be summed", f"optimizer {name}", "use Adam with dense gradients (sparse=False)"
        )
    if any(group.get("differentiable") for group in optimizer.param_groups):
        raise misuse(
            "differentiable=True is refused: autograd cannot follow an update that happens later", f"optimizer {name}",
            "turn it off",
        )


def name_parameters(optimizer, named_parameters):
    """[(name, parameter)] of what the optimizer trains, in the order of named_parameters, else of the groups."""
    trained = {
        p: f"{number}.{place}"
        for number, group in enumerate(optimizer.param_groups)
        for place, p in enumerate(group["params"])
        if p.requires_grad
    }
    if not trained:
        raise misuse(
            "no parameter requires a gradient", f"optimizer {type(optimizer).__name__}",
            "unfreeze what shall be trained",
        )
    if named_parameters is None:
        return [(f"noname.{name}", parameter) for parameter, name in trained.items()]
    names, chosen = set(), {}
    for name, parameter in named_parameters:
        if name in names:
            raise misuse(
                "two parameters have this name", f"named_parameters, '{name}'",
                "give each its own, as model.named_parameters() does",
            )
        names.add(name)
        if parameter in trained:
            chosen.setdefault(parameter, name)
    unnamed = [name for parameter, name in trained.items() if parameter not in chosen]
    if unnamed:
        raise misuse(
            "the optimizer has parameters without a name", f"group.place {', '.join(unnamed[:5])}",
            "pass named_parameters of the whole model",
        )
    return [(name, parameter) for parameter, name in chosen.items()]
