"""Every pass, in order: the only place that says what a program goes through.

A pass is written in a file of its own, and listed here.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import Any, TypeAlias

from weft.block.program import BlockProgram
from weft.fuse import Fusion, Rule, fused_by
from weft.fuse.coarse_where_kept_in_16_bits import coarse_where_kept_in_16_bits
from weft.fuse.duplicate_mapped_scale import duplicate_mapped_scale
from weft.fuse.extend_map import extend_map
from weft.fuse.factors_after_maxima import factors_after_maxima
from weft.fuse.fuse_consecutive_elementwise import fuse_consecutive_elementwise
from weft.fuse.fuse_consecutive_maps import fuse_consecutive_maps
from weft.fuse.fuse_map_with_reduction import fuse_map_with_reduction
from weft.fuse.fuse_sibling_maps import fuse_sibling_maps
from weft.fuse.inside_the_only_loop import inside_the_only_loop
from weft.fuse.peel_first_iteration import peel_first_iteration
from weft.fuse.round_where_made import round_where_made
from weft.fuse.safety import exponentials_as_pairs
from weft.fuse.swap_scale_dot import swap_scale_dot
from weft.fuse.swap_shift_dot import swap_shift_dot
from weft.masks import guard, limit, stand_ins_as_nothing
from weft.pipeline.families import Family
from weft.pipeline.lowering import chains_to_loops, chains_to_rounding_loops, to_blocks
from weft.pipeline.shifts import cancel_shifts
from weft.tensor import laws
from weft.tensor.passes import Conditioning, Pass, Rewritten, Setting
from weft.tensor.program import TensorProgram

Passes: TypeAlias = tuple[Pass[..., Any], ...]

LAWS: Passes = (
    laws.remove_dead,
    laws.inline_reindexing,
    laws.windows_at_sources,
    laws.drop_precision_casts,
    laws.masks_in_place,
    laws.split_elementwise,
    laws.pick_first,
    laws.merge_equal,
    laws.remove_dead,
)
"""Of every captured graph. Reindexings go first, so that none stands between a cast and its reader, or between operations that a
law looks for; equal values are merged last, when the others have made them alike. A new law stands before `merge_equal`:
docs/extending.md says what each of the others wants before and after it."""

GRAPH: Passes = (*LAWS, laws.multiply_in_fp8, laws.narrow_exact_factors, laws.as_in_eager)
"""Of a captured graph, before it is cut into regions."""

IN_NUMBERS: Passes = (stand_ins_as_nothing,)
"""Of a graph after `GRAPH`: what holds of floats alone, so that no check over a field is made across it."""

REGION: Passes = (laws.round_between_kernels, laws.centre_at_an_element, laws.views_as_inputs, laws.numbered)
"""Of each region, which `laws.part` takes from the graph."""

DERIVED_LAWS: Passes = (cancel_shifts, laws.expand_sums, laws.scale_rows_last)
"""Laws that not every program goes through, in the order that lets each see what it needs: the papers' programs need all three."""

PRIORITY: tuple[Rule, ...] = (
    duplicate_mapped_scale,
    swap_scale_dot,
    swap_shift_dot,
    fuse_consecutive_elementwise,
    fuse_map_with_reduction,
    fuse_consecutive_maps,
    fuse_sibling_maps,
)
"""Blockbuster's order (section 4.1): rules 8, 4, 5, 9, 3, 1, 2."""

EXTENSION: tuple[Rule, ...] = (extend_map,)
"""Section 4.2's rule: what it does over again is weighed against the snapshot before it."""

INSTEAD: tuple[Rule, ...] = (peel_first_iteration,)
"""What can be done in place of an extension, where redundant work is discouraged."""

RULES_IN_PLANS: tuple[Rule, ...] = (fuse_consecutive_elementwise, fuse_map_with_reduction, fuse_consecutive_maps)
"""Rules that never pay and leave every rounding where it was: every kernel can be made with them."""

RULES_THAT_KEEP_PRECISION: tuple[Rule, ...] = tuple(r for r in PRIORITY if r.conditioning is not Conditioning.cancels)
"""What other candidates are made with: all but the rule that may cancel most of a result away."""

AFTER_FUSION: Passes = (
    limit,
    guard,
    exponentials_as_pairs,
    round_where_made,
    coarse_where_kept_in_16_bits,
    factors_after_maxima,
    inside_the_only_loop,
)
"""Of a fused block program."""

_FUSED = RULES_THAT_KEEP_PRECISION, EXTENSION, INSTEAD, AFTER_FUSION

WRITTEN = Family(
    "rules that keep every rounding",
    (laws.decays_below_maxima, laws.numbers_as_doubles, laws.sizes_in_place, laws.choices_in_place, to_blocks),
    *(RULES_IN_PLANS, (), ()),
    (limit, guard, round_where_made, factors_after_maxima, inside_the_only_loop),
)
SNAPSHOTS = Family("", (cancel_shifts, *WRITTEN.before), *_FUSED)
ONE_LOOP = Family("one loop", (laws.numbers_as_doubles, laws.choices_in_place, chains_to_loops), *_FUSED, chains=True)
ROUNDING_LOOP = Family(
    "one loop that rounds at the scale so far",
    (laws.numbers_as_doubles, laws.choices_in_place, chains_to_rounding_loops),
    *_FUSED,
    chains=True,
)
DERIVED = Family(
    "derivation",
    (*DERIVED_LAWS, laws.sizes_in_place, to_blocks),
    *(PRIORITY, EXTENSION, INSTEAD),
    (exponentials_as_pairs,),
)
"""As the paper derives its examples, with all laws and rules: no kernel is made so, since some of them cancel."""

FAMILIES = (WRITTEN, SNAPSHOTS, ONE_LOOP, ROUNDING_LOOP)
"""Of the candidates of every region, as `select` generates them."""


PASSES: Mapping[str, Pass[..., Any]] = {
    each.name: each
    for each in chain(
        *(GRAPH, IN_NUMBERS, (laws.part,), REGION),
        *(passes for f in (*FAMILIES, DERIVED) for passes in (f.before, f.rules, f.extend, f.instead, f.after)),
    )
}
"""Every pass by name, as the steps of a trace name it."""


def normalize(program: TensorProgram) -> TensorProgram:
    """Apply `LAWS` to `program`; a second time changes names at most."""
    return Rewritten(program).under(LAWS, Setting()).program


def fuse(
    program: BlockProgram,
    rules: tuple[Rule, ...] = PRIORITY,
    extend: tuple[Rule, ...] = EXTENSION,
    instead: tuple[Rule, ...] = INSTEAD,
    *,
    checked: bool = False,
) -> Fusion:
    """Fuse `program` by the paper's rules, or by some of them; arguments as of `weft.fuse.fused_by`."""
    return fused_by(program, rules, extend, instead, checked=checked)
