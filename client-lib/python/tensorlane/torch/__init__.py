"""tensorlane for PyTorch, by Horovod's names.

    import tensorlane.torch as tl
    tl.init()
    tl.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = tl.DistributedOptimizer(plain_optimizer, model.named_parameters())

The classes of errors are in `tensorlane` (tensorlane.TimedOutError, ...); tensorlane.torch.Error is the base of all.
"""

import tensorlane_autoload

from .. import (
    Average,
    Error,
    Max,
    Min,
    ProcessSet,
    Product,
    Sum,
    add_process_set,
    barrier,
    global_process_set,
    init,
    is_initialized,
    local_rank,
    local_size,
    poll,
    rank,
    remove_process_set,
    shutdown,
    size,
    status,
    synchronize,
)
from ._backend import monitored_barrier
from ._broadcast import broadcast_object, broadcast_optimizer_state, broadcast_parameters
from ._calls import (
    KVStore,
    allgather,
    allgather_async,
    allreduce,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    broadcast,
    broadcast_,
    broadcast_async,
    broadcast_async_,
    reducescatter,
    reducescatter_async,
)
from ._ddp import ddp_comm_hook
from ._exchange import (
    alltoall,
    alltoall_async,
    gather,
    gather_async,
    reduce,
    reduce_async,
    scatter_,
    scatter_async_,
)
from ._messages import recv_, recv_async_, send, send_async
from ._optimizer import DistributedOptimizer
from ._shard_scaler import ShardedGradScaler
from ._shard_state import merge_state_dicts
from ._trace import trace

tensorlane_autoload.register()  # init_process_group("tensorlane")
