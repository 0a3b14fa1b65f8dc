"""Laws on tensor programs: pure functions from a program to one that computes the same.

In comes what capture wrote down; out goes what lowering can read: no dead or repeated values,
rounding only where it counts, and no reindexing but views of inputs, which `views` turns into
inputs of their own. Each law's docstring draws it, and states its condition and its conditioning:
what it does to rounding.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from weft.lazy import export_lazily

if TYPE_CHECKING:
    from weft.tensor.laws.between import in_one_memory, round_between_kernels
    from weft.tensor.laws.casts import drop_precision_casts
    from weft.tensor.laws.centres import centre_at_an_element
    from weft.tensor.laws.cleaning import merge_equal, part, remove_dead
    from weft.tensor.laws.decays import decays_below_maxima
    from weft.tensor.laws.doubles import numbers_as_doubles
    from weft.tensor.laws.elementwise import choices_in_place, sizes_in_place, split_elementwise
    from weft.tensor.laws.expansion import expand_sums
    from weft.tensor.laws.factors import scale_rows_last
    from weft.tensor.laws.fp8_factors import multiply_in_fp8
    from weft.tensor.laws.masks import masks_in_place
    from weft.tensor.laws.names import called_by_place, numbered
    from weft.tensor.laws.narrowing import narrow_exact_factors
    from weft.tensor.laws.order import as_in_eager
    from weft.tensor.laws.picks import pick_first
    from weft.tensor.laws.reindexing import inline_reindexing
    from weft.tensor.laws.shift import cancel_shifts, lost_shifts
    from weft.tensor.laws.views import View, views, views_as_inputs
    from weft.tensor.laws.windows import windows_at_sources

__all__ = [
    "View",
    "as_in_eager",
    "called_by_place",
    "cancel_shifts",
    "centre_at_an_element",
    "choices_in_place",
    "decays_below_maxima",
    "drop_precision_casts",
    "expand_sums",
    "in_one_memory",
    "inline_reindexing",
    "lost_shifts",
    "masks_in_place",
    "merge_equal",
    "multiply_in_fp8",
    "narrow_exact_factors",
    "numbered",
    "numbers_as_doubles",
    "part",
    "pick_first",
    "remove_dead",
    "round_between_kernels",
    "scale_rows_last",
    "sizes_in_place",
    "split_elementwise",
    "views",
    "views_as_inputs",
    "windows_at_sources",
]

export_lazily(__name__)
