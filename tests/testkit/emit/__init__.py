"""Kernels compiled and compared, and faults planted in their text."""
