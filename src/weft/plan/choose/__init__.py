"""choose: what becomes of a region.

In: a region, and the example that it is compiled for. Out: its candidates, the one that the model puts first, its kernels, as the
target builds them; and the cut of the whole graph that is predicted to take least.
"""
