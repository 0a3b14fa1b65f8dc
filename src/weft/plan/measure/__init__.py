"""measure: timing a plan beside PyTorch.

In: a plan and its first arguments. Out: whichever is faster, and what was measured; calls replayed from CUDA graphs.
"""
