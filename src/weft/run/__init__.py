"""From source text to a kernel that can be called, and the persistent cache between the two.

In: the C++ text that `emit` printed, the kernel's signature, and what its cache key is made of.
Out: a launcher that takes tensors and gives a tuple of new tensors; counters for `weft.stats`.
`build` is the way through: key -> cache (or compiler, then cache) -> load -> launch. Nothing of
block programs is known here: what a kernel computes, and whether it may run, is decided above.
"""
