"""Kernels written by hand, and faults for the cache."""
