"""measure: times, beside PyTorch's, of what was planned.

In: a plan and its first arguments. Out: whichever is faster, and what was measured; calls replayed from CUDA graphs.
"""
