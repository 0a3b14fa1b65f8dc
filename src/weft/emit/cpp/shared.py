"""What kernels have in common: products with blocks that are not staged, which take a compiler longer than the rest of a kernel."""

from __future__ import annotations

from collections.abc import Mapping

# Of these types, `WEFT_DOTS_OF_...` in prelude.h declares the products that lie elsewhere.
_TYPES = {
    "float": "WEFT_DOTS(template, float)",
    "bf16": "WEFT_DOTS(template, bf16)\nWEFT_PAIRED_DOTS(template, bf16)",
}


def shared(text: str) -> Mapping[str, str]:
    """Return the translation units to link with a kernel, each by the macro that tells its text that it is there.

    Those of the element types of its inputs, if it multiplies blocks that are not staged: of what else it multiplies it has
    products of its own, which are short.
    """
    if "weft::dot_direct" not in text:
        return {}
    return {
        f"WEFT_DOTS_OF_{name}": f'#include "prelude.h"\nnamespace weft {{\n{dots}\n}}\n'
        for name, dots in _TYPES.items()
        if f"const {name}* const" in text or f"const weft::{name}* const" in text
    }
