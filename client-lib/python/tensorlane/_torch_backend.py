"""The entry point torch.backends: torch calls it at the end of its own import, whatever the program is."""


def register() -> None:
    """Makes init_process_group("tensorlane") known. Imports no more of this package than that needs, and raises
    nothing: an error would end the import of torch."""
    try:
        import torch.distributed as distributed

        if distributed.is_available() and not hasattr(distributed.Backend, "TENSORLANE"):
            distributed.Backend.register_backend("tensorlane", _create, extended_api=True, devices=["cpu", "cuda"])
    except Exception:
        pass


def _create(options, backend_options):
    from .torch import _backend

    return _backend.create(options, backend_options)
