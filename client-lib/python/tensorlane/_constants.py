"""Reductions, by Horovod's names. The values are tl_op_t."""

Sum: int = 0
Average: int = 1
Min: int = 2
Max: int = 3
Product: int = 4
