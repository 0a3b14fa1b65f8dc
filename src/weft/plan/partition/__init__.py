"""partition: where one kernel may end and the next begin.

In: a tensor program. Out: stages, regions between calls into PyTorch; the cheapest cover by convex parts, given prices; and codes
of cuts. Laws that changed the program are checked here.
"""
