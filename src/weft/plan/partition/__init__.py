"""partition: where one kernel may end, before anything is known of kernels.

In: a tensor program. Out: stages, regions between calls into PyTorch; and the cheapest chain of intervals, given prices. Laws that
changed the program are checked here.
"""
