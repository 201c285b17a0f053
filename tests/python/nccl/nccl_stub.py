"""NCCL's process groups without NCCL: in one process that takes itself for one rank of many, whose collectives do nothing.

install() puts a recording stub in place of ProcessGroupNCCL, which a PyTorch for CPUs lacks. What torch.distributed makes of it are fake process
groups; which options reached the constructor, or the split of a group, is in `made`."""

import dataclasses
import types

import torch
import torch.distributed as distributed
import torch.distributed.distributed_c10d as c10d
from torch.testing._internal.distributed.fake_pg import FakeStore

UNDEFINED = -(2**31)  # NCCL_CONFIG_UNDEF_INT

made = []  # Record of each group of NCCL, in order
_of_backend = {}  # id of a backend: (the backend, its options)


@dataclasses.dataclass
class Record:
    how: str  # "constructor", "split"
    size: int
    options: object

    @property
    def traffic_class(self):
        return self.options.config.traffic_class


class Options:
    """The attributes that torch.distributed and programs use."""

    def __init__(self, is_high_priority_stream=False):
        self.config = types.SimpleNamespace(traffic_class=UNDEFINED, split_share=UNDEFINED, blocking=UNDEFINED, cga_cluster_size=UNDEFINED, min_ctas=UNDEFINED, max_ctas=UNDEFINED, net_name=None)
        self.is_high_priority_stream = is_high_priority_stream
        self._timeout = c10d.default_pg_nccl_timeout or c10d.default_pg_timeout
        self.group_name, self.global_ranks_in_group, self.split_from, self.split_color = "", [], None, 0


class OldOptions(Options):
    """Of a release that passes no traffic class on."""

    def __init__(self, is_high_priority_stream=False):
        super().__init__(is_high_priority_stream)
        del self.config.traffic_class


class _Meta(type):
    def __instancecheck__(cls, instance):
        return id(instance) in _of_backend


class ProcessGroupNCCL(metaclass=_Meta):
    def __new__(cls, store, rank, size, options):
        return _backend("constructor", rank, size, options)


def _backend(how, rank, size, options):
    make = getattr(torch._C._distributed_c10d.FakeProcessGroup, "_create_internal", torch._C._distributed_c10d.FakeProcessGroup)
    backend = make(rank, size)
    _of_backend[id(backend)] = (backend, options)
    made.append(Record(how, size, options))
    return backend


def _split(parent, ranks, timeout=None, opts=None, group_name=None, group_desc=None, **_):
    """ProcessGroup.split_group, of C++."""
    group = c10d.ProcessGroup(c10d.PrefixStore(f"{group_name}/", FakeStore()), ranks.index(parent.rank()), len(ranks))
    group._set_default_backend(c10d.ProcessGroup.BackendType.NCCL)
    backend = _backend("split", ranks.index(parent.rank()), len(ranks), opts)
    for device in ("cpu", "cuda"):
        group._register_backend(torch.device(device), c10d.ProcessGroup.BackendType.NCCL, backend)
    group._set_group_name(group_name)
    group._set_group_desc(group_desc)
    return group


def install(options=Options):
    """In this process, for good."""
    ProcessGroupNCCL.Options = options
    c10d.ProcessGroupNCCL, c10d._NCCL_AVAILABLE = ProcessGroupNCCL, True
    fake = torch._C._distributed_c10d.FakeProcessGroup
    fake._set_sequence_number_for_group = lambda self: None
    fake.options = property(lambda self: _of_backend.get(id(self), (None, None))[1])
    fake.comm_split_count = lambda self: sum(record.how == "split" for record in made)
    fake.supports_splitting = True
    fake.perform_nocolor_split = lambda self, device: None
    c10d._store_based_barrier = lambda *args, **kwargs: None  # the other ranks are not there


def start(world, bound=False, **options):
    """The default group. `bound`: as init_process_group(device_id=...) leaves it, so that meshes split it and new groups are split from it; its
    device is one of CUDA, which nothing computes on."""
    backend = "cpu:nccl,cuda:nccl" if bound else "cpu:nccl"
    distributed.init_process_group(options.pop("backend", backend), store=FakeStore(), rank=0, world_size=world, **options)
    if bound:
        torch.accelerator.is_available = lambda: True
        torch.accelerator.current_accelerator = lambda *args: torch.device("cuda")
        c10d.ProcessGroup.split_group = _split
        distributed.group.WORLD.bound_device_id = torch.device("cuda", 0)


def classes():
    """{description of a group: what its options ask for} of the groups that live, and are NCCL's."""
    found = {}
    for group in c10d._world.pg_names:
        backend = group._get_backend(torch.device("cpu"))
        if isinstance(backend, ProcessGroupNCCL):
            found[group.group_desc] = backend.options.config.traffic_class
    return found
