from ._optimizer import DistributedOptimizer
