"""Loss scaling for sharded optimizers."""

from __future__ import annotations

import torch

from ._sharded import Sharded

# PyTorch before 2.3 has no scaler of other devices.
_Scaler = getattr(torch.amp, "GradScaler", None) or torch.cuda.amp.GradScaler


class ShardedGradScaler(_Scaler):
    """torch.amp.GradScaler, for DistributedOptimizer(sharded=True), whose gradients are not in p.grad: all ranks agree
    on whether one of them has found inf or nan, and skip the step together. Other optimizers are treated as
    torch.amp.GradScaler treats them. As that one, it refuses gradients of float16
    (InvalidArgumentError). With parameters in host memory: ShardedGradScaler("cpu")."""

    def _unscale_grads_(self, optimizer, inv_scale, found_inf, allow_fp16):
        if not isinstance(optimizer, Sharded):
            return super()._unscale_grads_(optimizer, inv_scale, found_inf, allow_fp16)
        found = optimizer._core.unscale(float(inv_scale), allow_fp16)
        return {found_inf.device: torch.full_like(found_inf, float(found))}
