"""Compiling while PyTorch serves, `options(compile="background")`, and timing while what was compiled first serves, `"first"`.

A call that needs a graph compiled runs it in PyTorch and asks for kernels, or compiles it and asks for their times (`asked`). A
thread of this process (`requests`) sends one graph after the other to another process (`process`, `server`), which captures,
chooses, builds, judges and times, and fills the cache; `graphs` and `plans` are what goes there and back. When the answer is here,
`serving` swaps what runs.
"""
