"""The entry point torch.backends: torch calls register() at the end of its own import, whatever the program is.

This module stands beside the package so that no other file of it is opened before the program asks for it.
"""

import os

_asked = False  # for classes of NCCL's groups


def register() -> None:
    """Makes init_process_group("tensorlane") known, and gives the groups of NCCL classes where the variable
    TENSORLANE_NCCL_POLICY names a policy. Raises nothing: an error would end the import of torch."""
    try:
        import torch.distributed as distributed

        if distributed.is_available() and not hasattr(distributed.Backend, "TENSORLANE"):
            distributed.Backend.register_backend("tensorlane", _create, extended_api=True, devices=["cpu", "cuda"])
    except Exception:
        pass
    if os.environ.get("TENSORLANE_NCCL_POLICY"):
        _enable_nccl()


def _create(options, backend_options):
    from tensorlane.torch import _backend

    return _backend.create(options, backend_options)


def _enable_nccl():
    global _asked
    if _asked:  # importing what it needs comes back here
        return
    _asked = True
    try:
        from tensorlane.torch import nccl

        nccl.enable_from_environment()
    except Exception as error:
        _say(f"tensorlane: warning: groups of NCCL get no classes: {error}")


def _say(text):
    """On standard error, where that can be written to: a full disk must not end the import of torch."""
    import sys

    try:
        if sys.stderr is not None:
            print(text, file=sys.stderr, flush=True)
    except Exception:
        pass
