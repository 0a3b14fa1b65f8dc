"""partition: where one kernel may end and the next begin.

In: a tensor program. Out: stages, regions between calls into PyTorch; and the cheapest chain of intervals, given prices. Laws that
changed the program are checked here.
"""
