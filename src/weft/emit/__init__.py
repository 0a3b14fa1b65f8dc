"""emit: text of kernels.

In: a block program whose loops have places (`schedule.apply`) and the part of it that one launch runs. Out: source text, one
function. Emitters print what the program says and decide nothing: what two of them would both have to decide belongs in
`apply`, or, where it is about printing, here: what a kernel is called with (`calls`), what a loop runs over (`ranges`), what values
are computed as (`kinds`). `cpp` prints C++ in the vocabulary of `cpp/prelude.h`, `triton` prints Triton.
"""
