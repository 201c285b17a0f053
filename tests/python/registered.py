"""Imported by scripts that name the backend: where torch reads no entry points (torch.backends), a program has to import tensorlane.torch."""

import torch.distributed

if not hasattr(torch.distributed.Backend, "TENSORLANE"):
    import tensorlane.torch  # noqa: F401
