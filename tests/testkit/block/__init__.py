"""Tensor and block programs written by hand."""
