"""Reductions, by Horovod's names. The values are tl_op_t."""

Sum = 0
Average = 1
Min = 2
Max = 3
Product = 4
