"""masks: which blocks of a loop a condition on indices leaves anything to do for.

In: a fused block program that compares indices (causal attention, windows). Out of `limit`: the same program, in which a loop runs
only over the band beside the diagonal where its iterations change its state. `unmasked` drops, from the blocks that lie wholly
in the band, what the band decides. Nothing here knows what the program computes: an iteration is left out because, with the
comparison decided, each of its contributions is the identity of what it is combined with.
"""

from weft.masks.limit import limit
from weft.masks.unmasked import Known, known_values, unmasked
from weft.masks.values import values_inside

__all__ = ["Known", "known_values", "limit", "unmasked", "values_inside"]
