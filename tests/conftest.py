"""What every test starts from: a cache of its own, fixed seeds, threads that fit the machine."""

from __future__ import annotations

import gc
import os
import random
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import settings

from testkit.walk import WALK_ALL, spread
from weft.cost.machine import Processor
from weft.run import compiler
from weft.tensor.dtypes import DType

# One example sequence for everyone: a failure seen in CI is seen at home.
settings.register_profile("weft", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("weft")


def pytest_addoption(parser: pytest.Parser) -> None:
    """An order of the tests that only a seed knows: no test may rely on what another one left behind."""
    parser.addoption("--shuffled", type=int, metavar="SEED", help="files, and tests in each, in a random order")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Takes as many cases as a run asks for, in an order of its own where one is asked for."""
    _deselect(config, items)
    seed: int | None = config.getoption("--shuffled")
    if seed is not None:
        rng = random.Random(seed)
        rank = {path: rng.random() for path in sorted({item.nodeid.partition("::")[0] for item in items})}
        items.sort(key=lambda item: (rank[item.nodeid.partition("::")[0]], rng.random()))


def _deselect(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keeps a share of the cases of a test that is marked `one_in(n)`; all for the whole walk, or where a case is named."""
    if WALK_ALL or any("[" in arg for arg in config.args):
        return
    cases: dict[str, list[pytest.Function]] = {}
    for item in items:
        if isinstance(item, pytest.Function) and item.get_closest_marker("one_in") is not None:
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    without: set[pytest.Item] = set()
    for found in cases.values():
        mark = found[0].get_closest_marker("one_in")
        assert mark is not None
        kept = spread([item.callspec.indices for item in found], mark.args[0])
        without |= set(found) - {found[place] for place in kept}
    config.hook.pytest_deselected(items=[item for item in items if item in without])
    items[:] = [item for item in items if item not in without]


@pytest.fixture(scope="module", params=["cpu", "numpy"])
def target(request: pytest.FixtureRequest) -> str:
    """The target whose kernels a test compiles and runs."""
    return request.param


@pytest.fixture(scope="session", autouse=True)
def _clean_environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    judge = os.environ.get("WEFT_TESTS_JUDGE", "off")
    with pytest.MonkeyPatch.context() as patch:
        for variable in [name for name in os.environ if name.startswith("WEFT_")]:
            patch.delenv(variable)
        # One for all of pytest-xdist's workers, whose folders lie in one: what one has compiled, others need not.
        base = tmp_path_factory.getbasetemp()
        cache = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "weft-cache"
        cache.mkdir(mode=0o700, exist_ok=True)
        patch.setenv("WEFT_CACHE_DIR", str(cache))
        # Processes that tests start have one thread, as this one (`_threads`): others would wait for work, two for each core.
        patch.setenv("OMP_NUM_THREADS", "1")
        # Nor does each of them compile the sources of weft anew.
        patch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
        # Which of two runs must not depend on how busy the machine is; tests/plan/test_trial.py sets it for itself.
        patch.setenv("WEFT_MEASURE", "never")
        # What fails in weft is an error here, not PyTorch's to run; tests/api/test_net.py is about that.
        patch.setenv("WEFT_DEFECTS", "raise")
        # Tens of milliseconds for each of thousands of kernels: WEFT_TESTS_JUDGE=first has them all judged, whoever looks for
        # what the judge refuses and should not.
        patch.setenv("WEFT_JUDGE", judge)
        yield


def pytest_collection_finish() -> None:
    """Leaves what collecting has made out of every later collection of garbage: looking at it took a tenth of the time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def this_processor() -> Iterator[Callable[[], Processor]]:
    """Schedules are chosen for one processor (a server with AVX-512 and AMX), whichever machine the tests run on.

    WEFT_TESTS_PROCESSOR=here has them chosen for this machine's; tests of a choice may then fail. Gives what reads this machine's.
    """
    read = Processor.here
    with pytest.MonkeyPatch.context() as patch:
        if os.environ.get("WEFT_TESTS_PROCESSOR") != "here":
            caches = (48 << 10, 2 << 20, 105 << 20)
            server = Processor(2.7e9, 64, frozenset({DType.bfloat16, DType.int8}), caches)
            patch.setattr(Processor, "here", lambda: server)
        yield read


@pytest.fixture(scope="session", autouse=True)
def _threads() -> None:
    # The first multi-threaded torch.exp of a process may be imprecise (a race in PyTorch): have it
    # behind us before any test compares numbers.
    torch.set_num_threads(max(2, torch.get_num_threads()))
    torch.exp(torch.zeros(1 << 20))
    torch.set_num_threads(1)  # not by the number of workers: which schedule is chosen depends on it


@pytest.fixture(scope="session", autouse=True)
def _untimed_guards() -> Iterator[None]:
    """PyTorch does not time the guards of each graph that it traces: before that it empties the caches, for 10 to 20 ms.

    Nothing reads that time but a log. The guards are made, and checked, as ever.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("torch._dynamo.guards.profile_guard_manager", lambda *_: 0.0, raising=False)
        yield


@pytest.fixture(scope="session")
def linker(tmp_path_factory: pytest.TempPathFactory) -> Path | None:
    """A folder with the quicker of GNU's linkers under the name that GCC looks for; None where there is none."""
    gold = shutil.which("ld.gold")
    if gold is None:
        return None
    folder = tmp_path_factory.mktemp("linker")
    (folder / "ld").symlink_to(gold)
    return folder


@pytest.fixture(autouse=True)
def _level(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, linker: Path | None) -> None:
    """Kernels are optimised less than users' are, which takes a sixth of the time, but where a test is marked `as_shipped`.

    They are linked by another linker too, which takes half of the usual one's 0.04 s.
    """
    if not WALK_ALL and request.node.get_closest_marker("as_shipped") is None:
        monkeypatch.setattr(compiler, "LEVEL", "-Og")
        if linker is not None:
            monkeypatch.setenv("COMPILER_PATH", str(linker))


@pytest.fixture(autouse=True)
def _fresh_state() -> Iterator[None]:
    random.seed(0)
    torch.manual_seed(0)
    yield
    if "torch._dynamo" in sys.modules:
        torch.compiler.reset()
    for module, said in (
        *(("weft.plan.execute.instead", "SAID"), ("weft.api.losses", "_said"), ("weft.api.recompiles", "_said")),
        ("weft.run.cache", "_said"),
    ):
        if module in sys.modules:
            getattr(sys.modules[module], said).clear()
    if "weft.api.known" in sys.modules:
        sys.modules["weft.api.known"]._known.clear()
    if "torch.compiler._cache" in sys.modules:  # else a test that saves artifacts saves those of all before it
        sys.modules["torch.compiler._cache"].CacheArtifactManager.clear()
