"""Each chain is one kernel, or the few that it says, with nothing left to PyTorch, right by the error rule; its loop reads once.

Of the candidates the derived loop is built here, where there is one: at these small sizes the cost model may prefer to go over a
row twice, since it stays in a cache. A share of the chains, at the last of their sizes; with WALK_ALL=1 in the environment all.
"""

from __future__ import annotations

import functools

import pytest

import weft
from testkit.cascade.forcing import derived_loops
from testkit.cascade.workloads import CHAINS
from testkit.walk import WALK_ALL
from weft.lab.measure import Standard


@pytest.fixture(scope="module", autouse=True)
def _derived_loops():
    with derived_loops():
        yield


def expected_to_fail(reason):
    return pytest.mark.xfail(reason=reason, raises=AssertionError, strict=True) if reason else ()


REST = (
    "torch.var without correction",
    "kurtosis",
    "correlation",
    "LayerNorm + matmul, weight and bias",
    "LayerNorm + matmul, by hand",
    "log-sum-exp, by hand",
    "cross-entropy",
    "log-softmax + NLL, by hand",
    "entropy of a softmax, by hand",
    "softmax of a standardised row",
    "cosine similarity, by hand",
    "min-max normalise + sum",
    "product by a sum",
    "product of exponentials",
)
TRIED = [chain for chain in CHAINS if WALK_ALL or chain.name not in REST]


def at_sizes():
    for chain in TRIED:
        for sizes in chain.sizes if WALK_ALL else chain.sizes[-1:]:
            name = f"{chain.name}-{'x'.join(map(str, sizes))}"
            yield pytest.param(chain, sizes, id=name, marks=expected_to_fail(chain.fails.get(sizes, "")))


def with_loads():
    for chain in TRIED:
        if chain.loads is not None:
            yield pytest.param(chain, id=chain.name, marks=expected_to_fail(chain.loads_more))


@functools.cache
def compiled(name, sizes):
    """Once for both tests: making it is most of what they take."""
    chain = next(chain for chain in CHAINS if chain.name == name)
    return weft.optimize(chain.function, chain.inputs(sizes, 0))


def optimized(chain, sizes):
    """The program at these sizes, which is right: no reason that a chain may have to be other kernels excuses wrong numbers."""
    program = compiled(chain.name, sizes)
    if not all(kernel.verdict.agrees for kernel in program.kernels):
        pytest.fail(f"{chain.name}: {program}")
    judgement = Standard.of(chain.function, lambda number: chain.inputs(sizes, number), gaps=chain.gaps).judge(program)
    if not judgement.ok:
        pytest.fail(f"{chain.name}: {judgement}")
    return program


@pytest.mark.one_in(4)
@pytest.mark.parametrize(("chain", "sizes"), list(at_sizes()))
def test_a_chain_is_one_kernel_and_right(chain, sizes):
    program = optimized(chain, sizes)
    assert program.fallbacks == ()
    assert 1 <= len(program.kernels) <= chain.kernels


@pytest.mark.one_in(2)
@pytest.mark.parametrize("chain", list(with_loads()))
def test_its_loop_loads_each_element_as_often_as_results_ask(chain):
    """By the bytes that kernels load, of all bytes that there are."""
    program = compiled(chain.name, chain.sizes[-1])
    assert program.kernels
    costs = [kernel.cost for kernel in program.kernels]
    there = max(cost.unique_bytes - cost.bytes_written for cost in costs)
    assert sum(cost.bytes_read for cost in costs) <= 1.05 * chain.loads * there


def test_chains_have_names_of_their_own():
    assert len({chain.name for chain in CHAINS}) == len(CHAINS) >= 45
