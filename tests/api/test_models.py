"""Blocks of well-known models through `weft.compile`, held to the error rule: as a command all of them, as a test a share.

`python tests/api/test_models.py [NAME ...]` runs every model in fp32 and bf16 and prints what is left to PyTorch.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

import weft
from testkit.api.models import MODELS

SIZES = ((5, 6), (7, 9), (6, 11))
SHARE = (("t5", torch.bfloat16), ("experts", torch.float32))


def cast(values: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """The values, those of floating point in `dtype`."""
    return [v.to(dtype) if v.is_floating_point() else v for v in values]


def outputs(found: Tensor | Sequence[Tensor]) -> Sequence[Tensor]:
    """The results as a sequence."""
    return [found] if isinstance(found, Tensor) else found


def judged(name: str, dtype: torch.dtype) -> weft.Program:
    """Runs a model at every size; the error rule over all of them; what was compiled."""
    module, inputs = MODELS[name]
    torch.manual_seed(0)
    model, reference = module().to(dtype).eval(), module().double().eval()
    reference.load_state_dict(model.state_dict())
    with torch.no_grad():
        program = weft.optimize(model, tuple(cast(inputs(*SIZES[0]), dtype)))
        for sizes in SIZES:
            given = cast(inputs(*sizes), dtype)
            found, eager = outputs(program(*given)), outputs(model(*given))
            exact = outputs(reference(*cast(given, torch.float64)))
            for one, other, wanted in zip(found, eager, exact, strict=True):
                assert (one.dtype, one.shape, one.stride()) == (other.dtype, other.shape, other.stride())
                error, allowed = (float((v.double() - wanted).abs().max()) for v in (one, other))
                # One draw: eager may be lucky with it.
                assert error <= 4 * allowed + 4 * torch.finfo(dtype).eps * float(wanted.abs().max()), (
                    name,
                    dtype,
                    sizes,
                )
    return program


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("name", "dtype"), SHARE)
def test_model_is_right_at_several_sizes(name, dtype):
    torch.compiler.reset()
    program = judged(name, dtype)
    assert program.kernels
    assert "graph" not in {f.operation for f in program.fallbacks}


if __name__ == "__main__":
    for name in sys.argv[1:] or MODELS:
        for dtype in (torch.float32, torch.bfloat16):
            program = judged(name, dtype)
            print(f"{name} {dtype}: {len(program.kernels)} kernels; left to PyTorch:")
        print("\n".join(f"  {each}" for each in program.fallbacks))
