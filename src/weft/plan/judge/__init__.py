"""judge: kernels are tested before they serve.

In: the kernels of a region, and its program. Out: that they are right on hard inputs, or what is wrong (docs/internals/judge.md).
"""
