"""masks: which blocks of a loop a condition on indices, or a mask, leaves anything to do for.

In: a fused block program that compares indices (causal attention, windows, blocks on the diagonal). Out of `limit`: the same
program, in which a loop runs only over the spans where its iterations change its state. `unmasked` drops, from the blocks that
lie wholly in a span, what the span decides. Nothing of this knows what the program computes: an iteration is left out because, with
comparisons decided, each of its contributions is the identity of what it is combined with.
`guard` says the same of masks that are tensors, whose blocks a loop looks at when it runs, and `full_blocks` what such a loop does
where its mask leaves nothing out. `stand_ins_as_nothing`, on tensor
programs, makes -inf of numbers that stand for it.
"""

from typing import TYPE_CHECKING

from weft.lazy import export_lazily

if TYPE_CHECKING:
    from weft.masks.full import full_blocks, with_full_blocks
    from weft.masks.guards import guard
    from weft.masks.limit import limit
    from weft.masks.questions import Question, questions
    from weft.masks.sparsity import EDGES, NONE, Sparsity, classed, share_of, typical
    from weft.masks.stand_ins import stand_ins_as_nothing
    from weft.masks.unmasked import Known, known_values, unmasked
    from weft.masks.values import counted, values_inside

__all__ = [
    "EDGES",
    "NONE",
    "Known",
    "Question",
    "Sparsity",
    "classed",
    "counted",
    "full_blocks",
    "guard",
    "known_values",
    "limit",
    "questions",
    "share_of",
    "stand_ins_as_nothing",
    "typical",
    "unmasked",
    "values_inside",
    "with_full_blocks",
]

export_lazily(__name__)
