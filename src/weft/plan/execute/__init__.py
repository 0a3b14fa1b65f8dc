"""execute: the plan of a whole graph, and the callable that runs it.

In: a captured graph. Out: stages in order, kernels and calls into PyTorch, with their views, sizes and writes.
"""
