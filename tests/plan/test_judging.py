"""The judge of emitted code: a kernel whose text is wrong never serves, whatever is wrong with it."""

import json
import os
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import weft
from testkit.processes.running import ran
from weft.api import net
from weft.emit import cpp
from weft.errors import DefectError, LeftToPyTorchWarning, WrongKernelError
from weft.plan.choose import region
from weft.plan.execute import regions
from weft.plan.judge import judging
from weft.plan.judge.sizes import Chosen, sizes_for
from weft.plan.targets import bench as benches
from weft.plan.targets.cpp import bench
from weft.verify import cases as verify
from weft.verify.regimes import layout_of
from weft.verify.torch_array import TorchArray


@pytest.fixture(autouse=True)
def _judged(monkeypatch):
    """One candidate of a region is tried, but where a test says otherwise."""
    monkeypatch.setenv("WEFT_JUDGE", "first")
    monkeypatch.setattr(region, "_JUDGED", 1)


def softmax(x):
    return torch.softmax(x, -1)


def replaced(monkeypatch, old, new):
    """Has the C++ emitter print `new` for `old`."""
    emit = cpp.emit

    def wrong(*args, **kwargs):
        text = emit(*args, **kwargs)
        assert old in text, text
        return text.replace(old, new)

    monkeypatch.setattr(cpp, "emit", wrong)


def optimized(fn, *inputs, **options):
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        program = weft.optimize(fn, inputs, defects="warn", **options)
    return program, [w for w in heard if issubclass(w.category, LeftToPyTorchWarning)]


FAULTS = {
    "lost rescale": ("const float s6 = s[i] * s5;", "const float s6 = s[i];", "one element ahead: error"),
    "bound": ("weft::min_index(2048, K - k)", "weft::min_index(2048, K - k - 1)", "where eager gives"),
    "step": ("k1 += 2048", "k1 += 2047", "eager"),
    "stride": ("j * x_s1_in]", "j]", "where eager gives"),
    "not written": ("t4_1[i * K + j] = t17;", "(void)t17;", "nan where eager gives"),
    "written beside": ("t4_1[i * K + j] = t17", "t4_1[i * K + j + 1] = t17", "written beside a tensor"),
    "crash": ("t_1[i * K + j] = t9", "*(volatile float*)8 = t9", "crashed (SIGSEGV)"),
    "overflow": ("weft::maximum(t7_lanes[lane], x_1[i * x_s0 + j * x_s1_in])", "0.0f", "eager"),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("references", ["numpy", "torch"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_kernel_never_serves(fault, references, monkeypatch, tmp_path):
    """Whoever works out what is right: numpy, or PyTorch where the kernels run."""
    old, new, said = FAULTS[fault]
    if references == "torch":
        monkeypatch.setattr(verify, "ON_DEVICE", 0)
        monkeypatch.setattr(verify, "DRAWN_THERE", 0)
        made = verify.cases

        def on_a_device(program, far, near, seed, draws, layout, device, after):
            assert device is None
            return made(program, far, near, seed, draws, layout, torch.device("cpu"), after)

        monkeypatch.setattr(judging, "cases", on_a_device)
    replaced(monkeypatch, old, new)
    x = torch.randn(5, 70)
    program, heard = optimized(softmax, x, cache_dir=tmp_path)
    assert program.kernels == ()
    assert said in program.fallbacks[0].reason, program.fallbacks[0].reason
    torch.testing.assert_close(program(x), softmax(x), rtol=0, atol=0)
    assert len(heard) <= 1  # a cause is said once in a process, in whichever test comes first


@pytest.mark.parametrize(("dim", "short"), [(-1, (9, 7)), (0, (7, 9))], ids=["rows", "columns"])
def test_one_long_chain_of_additions_never_serves(dim, short, monkeypatch, tmp_path):
    """Each addition of equal elements rounds one way: a sum that is never moved on is right where it is short alone."""
    replaced(monkeypatch, "_done += 1;", "_done = 1;")
    program, _ = optimized(lambda x: x.sum(dim), torch.randn([n if n == 9 else 130 for n in short]), cache_dir=tmp_path)
    assert program.kernels
    assert program.fallbacks == ()
    with weft.options(defects="warn", cache_dir=tmp_path), warnings.catch_warnings():
        warnings.simplefilter("ignore", LeftToPyTorchWarning)
        program(torch.randn(short))
    assert "constant rows: error" in program.fallbacks[0].reason


def test_an_endless_loop_is_a_verdict(monkeypatch, tmp_path):
    monkeypatch.setattr(bench, "SECONDS", 0.5)
    replaced(monkeypatch, "t_1[i * K + j] = t9", "for (volatile int more = 1; more;) {}")
    program, _ = optimized(softmax, torch.randn(5, 70), cache_dir=tmp_path)
    assert "did not end in 0.5 seconds" in program.fallbacks[0].reason


def test_the_user_hears_of_it_once_with_a_file_that_shows_it(monkeypatch, tmp_path):
    net._said.clear()
    replaced(monkeypatch, "s[i] * s5;", "s[i];")
    x = torch.randn(5, 70)
    program, heard = optimized(softmax, x, cache_dir=tmp_path)
    (warning,) = heard
    assert "is wrong on hard inputs" in str(warning.message)
    assert f"{__file__}:" in str(warning.message)
    (file,) = (tmp_path / "reproducers").iterdir()
    assert str(file) in str(warning.message)
    with pytest.raises(WrongKernelError, match="hard inputs"):
        exec(compile(file.read_text(), file, "exec"), {"__name__": "reproducer"})
    assert program.kernels == ()


def test_the_verdict_is_remembered(monkeypatch, tmp_path):
    x = torch.randn(5, 70)
    program, _ = optimized(softmax, x, cache_dir=tmp_path)
    assert len(program.kernels) == 1

    def asked(*_):
        raise AssertionError("judged again")

    monkeypatch.setattr(judging, "wrong_of", asked)
    assert len(optimized(softmax, x, cache_dir=tmp_path)[0].kernels) == 1
    assert len(optimized(softmax, x, cache_dir=tmp_path, judge="off")[0].kernels) == 1
    with pytest.raises(DefectError, match="judged again"):
        weft.optimize(softmax, (x,), cache_dir=tmp_path, judge="always", defects="raise")


def test_a_wrong_one_is_remembered_too(monkeypatch, tmp_path):
    with monkeypatch.context() as patch:
        replaced(patch, "s[i] * s5;", "s[i];")
        assert optimized(softmax, torch.randn(5, 70), cache_dir=tmp_path)[0].kernels == ()
    monkeypatch.setattr(judging, "wrong_of", None)
    program, _ = optimized(softmax, torch.randn(5, 70), cache_dir=tmp_path)
    assert "is wrong on hard inputs" in program.fallbacks[0].reason


def test_a_size_that_a_number_looks_made_of_excuses_nothing_at_other_sizes(monkeypatch, tmp_path):
    """0.5 is 1 / sqrt(4): what the judge forgives a graph that runs with 4 rows alone, it must not forgive one of any number."""
    emit = cpp.emit

    def few_rows(*args, **kwargs):
        return emit(*args, **kwargs).replace("; program < m_blocks;", "; program < weft::min_index(m_blocks, 8);")

    monkeypatch.setattr(cpp, "emit", few_rows)

    def half(x):
        return (x * 0.5).sum(-1)

    called = weft.compile(half, cache_dir=tmp_path, measure="never", effort="none", defects="warn")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LeftToPyTorchWarning)
        for rows in (50, 4, 60):  # from the second on PyTorch takes it for any number
            x = torch.randn(rows, 70)
            torch.testing.assert_close(called(x), half(x))


def test_off_asks_nothing_and_is_said(monkeypatch, tmp_path):
    monkeypatch.setattr(judging, "wrong_of", None)
    (kernel,) = optimized(softmax, torch.randn(5, 70), cache_dir=tmp_path, judge="off")[0].kernels
    assert 'judged: not judged: judge="off"' in str(kernel)


def test_a_kernel_says_that_it_was_judged_or_why_not(monkeypatch, tmp_path):
    """From the cache, too."""
    x = torch.randn(5, 70)

    def said(folder):
        (kernel,) = optimized(softmax, x, cache_dir=folder)[0].kernels
        return kernel.judged

    assert [said(tmp_path / "a") for _ in range(2)] == ["right on hard inputs"] * 2
    monkeypatch.setattr(judging, "sizes_for", lambda judged, _: Chosen(layout_of(judged.written)))
    assert [said(tmp_path / "b") for _ in range(2)] == [
        "not judged: all sizes that it serves are too large to test"
    ] * 2
    program, _ = optimized(softmax, x, cache_dir=tmp_path / "b")
    assert "not judged: all sizes that it serves are too large to test" in str(program.explain())


def test_a_region_beside_a_wrong_one_keeps_its_kernel(monkeypatch, tmp_path):
    """Only what is wrong goes to PyTorch."""
    replaced_in = cpp.emit

    def wrong(*args, **kwargs):
        return replaced_in(*args, **kwargs).replace("weft::decay(", "2.0f * weft::decay(")

    monkeypatch.setattr(cpp, "emit", wrong)

    def both(x, y):
        return torch.logsumexp(x, -1), torch.nn.functional.layer_norm(y, (y.shape[-1],))

    x, y = torch.randn(5, 70), torch.randn(6, 50)
    program, _ = optimized(both, x, y, cache_dir=tmp_path)
    assert len(program.kernels) == 1
    torch.testing.assert_close(program(x, y), both(x, y))


def test_a_full_disk_costs_the_verdict_only(monkeypatch, tmp_path):
    store = judging.CacheFolder.store

    def full(self, key, files, *rest, **more):
        if not files:
            raise OSError(28, "No space left on device")
        return store(self, key, files, *rest, **more)

    monkeypatch.setattr(judging.CacheFolder, "store", full)
    assert len(optimized(softmax, torch.randn(5, 70), cache_dir=tmp_path)[0].kernels) == 1


@pytest.fixture(scope="module")
def tuned_on_a_gpu():
    """Tell what became of a tuning whose fastest candidate is wrong, and one whose candidates all are, in Triton's interpreter."""
    environment = {name: value for name, value in os.environ.items() if name not in ("WEFT_DEFECTS", "WEFT_JUDGE")}
    done = ran(["-m", "testkit.plan.gpu_wrong_winner", "1", "99"], environment | {"TRITON_INTERPRET": "1"})
    return json.loads(done.stdout.splitlines()[-1])


def test_a_wrong_winner_gives_way_to_the_next_candidate(tuned_on_a_gpu):
    outcome, _ = tuned_on_a_gpu
    assert (outcome["kernels"], outcome["fallbacks"], outcome["warned"]) == (1, [], [])
    assert outcome["error"] < 1e-5
    refused = [line for line in outcome["candidates"] if "is wrong on hard inputs" in line]
    assert len(refused) == 1


def test_where_every_candidate_is_wrong_pytorch_runs_it_with_one_warning(tuned_on_a_gpu):
    _, outcome = tuned_on_a_gpu
    assert outcome["kernels"] == 0
    assert outcome["error"] == 0
    assert "is wrong on hard inputs" in outcome["fallbacks"][0]
    assert len(outcome["warned"]) == 1


# The marker of a GPU's judge.


@pytest.fixture
def judged_region(monkeypatch, tmp_path):
    """Gives what is judged by, and a region."""
    found = []
    with monkeypatch.context() as patch:
        patch.setattr(regions, "demand", lambda judged, region: found.append((judged, region)))
        optimized(softmax, torch.randn(5, 70), cache_dir=tmp_path)
    return found[-1]


@pytest.mark.parametrize("wrong", [False, True])
def test_references_that_the_gpu_has_no_room_for_are_numpys(wrong, judged_region, monkeypatch):
    """A kernel is judged all the same, on all of its cases."""
    judged, kernels = judged_region
    refused, tallied = [], []

    def no_room(*given):
        refused.append(given)
        raise torch.OutOfMemoryError("CUDA out of memory")

    def run(judged, region, every, tally):
        tallied.append(0)
        for case in every:
            tallied[-1] += 1
            tally.add(case, tuple(v * (1.5 if wrong else 1.0) for v in case.exact))

    monkeypatch.setattr(verify, "ON_DEVICE", 0)
    monkeypatch.setattr(TorchArray, "of", staticmethod(no_room))
    monkeypatch.setattr(judging, "run", run)
    said = judging.wrong_of(replace(judged, device=torch.device("cpu")), kernels, 0)
    assert ("error" in (said or "")) is wrong
    assert len(refused) == 1 == len(tallied) // 2
    assert tallied[0] <= 1
    chosen = sizes_for(judged, kernels)
    counts = [len(list(verify.cases(judged.written, chosen.far, chosen.near, 0, draws))) for draws in (1, 4)]
    assert tallied[1] == counts[0]
    assert sum(tallied[1:]) == counts[wrong]  # the first draw is not made again


@pytest.fixture
def on_a_gpu(monkeypatch, tmp_path, judged_region):
    """Judges a region as if its kernels ran on a GPU: `judge(wrong_of)` has that in place of what runs them."""
    judged, region = judged_region
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a GPU")

    def judge(wrong_of):
        monkeypatch.setattr(judging, "wrong_of", wrong_of)
        with weft.options(cache_dir=tmp_path, judge="first"):
            judging.demand(replace(judged, device=torch.device("cuda", 0)), region)

    return judge


def right(*_):
    """Finds nothing wrong."""


GONE = f"{judging.socket.gethostname()} {2**22 + 1}"
"""The name of a process that there is not: numbers end at 2**22."""


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, AssertionError])
def test_an_interrupted_judge_leaves_no_marker(error, on_a_gpu, monkeypatch):
    """Nor does a defect of the judge's: the next process must not take the marker for a kernel that it did not survive."""

    def interrupted(*_):
        raise error

    monkeypatch.setattr(judging, "_this_process", lambda: GONE)  # what were left would be a process's that is gone
    with pytest.raises(error):
        on_a_gpu(interrupted)
    asked = []
    on_a_gpu(lambda *_: asked.append(1))
    assert asked


def test_a_process_that_did_not_survive_is_a_verdict(on_a_gpu, monkeypatch):
    class Killed(BaseException):
        """Stands for the end of the process: nothing of `demand` runs any more."""

    def killed(*_):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(judging, "_this_process", lambda: GONE)
        # no such process
        patch.setattr(judging.CacheFolder, "remove", lambda *_: None)
        with pytest.raises(Killed):
            on_a_gpu(killed)
    with pytest.raises(WrongKernelError, match="crashed or was killed"):
        on_a_gpu(right)


def test_a_marker_of_a_process_that_runs_or_of_another_machine_says_nothing():
    assert judging._known({"running": judging._this_process()}) is None
    assert judging._known({"running": f"{judging.socket.gethostname()} {os.getppid()}"}) is None
    assert judging._known({"running": f"another-machine {2**22 + 1}"}) is None


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="no /proc tells when a process began")
def test_a_process_with_the_number_of_one_that_is_gone_is_another():
    host, number, began = judging._this_process().split(" ")
    assert judging._known({"running": f"{host} {number} {began}"}) is None
    gone = judging._known({"running": f"{host} {number} 1{began}"})
    assert gone is not None
    assert "crashed or was killed" in gone.wrong


def test_a_case_that_memory_has_no_room_for_leaves_the_smaller_ones(monkeypatch, tmp_path):
    """The large case comes first: without it the others are run all the same."""
    replaced(monkeypatch, *FAULTS["lost rescale"][:2])
    monkeypatch.setattr(benches, "MEMORY", 1 << 20)
    met: list[int] = []
    guard = benches.Guarded.holding

    def holding(self, *args, **keywords):
        try:
            return guard(self, *args, **keywords)
        except MemoryError:
            met.append(1)
            raise

    monkeypatch.setattr(benches.Guarded, "holding", holding)
    program, _ = optimized(softmax, torch.randn(5, 70), cache_dir=tmp_path)
    assert met, "everything had room"
    assert program.kernels == ()


@pytest.mark.parametrize(
    ("fn", "shapes"),
    [
        (lambda x, w: torch.layer_norm(x, (x.shape[-1],)) @ w, ((32, 64), (64, 48))),
        (lambda q, k, v, t: torch.softmax(q @ k.mT / t, -1) @ v, ((1, 2, 96, 16), (1, 2, 96, 16), (1, 2, 96, 16), ())),
    ],
    ids=["a mean off the grid of 16 bits", "a divisor below the normal numbers"],
)
def test_right_kernels_of_16_bits_serve_where_rounding_leaves_no_digit(fn, shapes, tmp_path):
    program, _ = optimized(fn, *(torch.randn(shape).abs().bfloat16() for shape in shapes), cache_dir=tmp_path)
    assert program.fallbacks == ()
    assert [kernel.judged for kernel in program.kernels] == ["right on hard inputs"]


def test_a_number_made_of_what_a_mask_excludes_may_be_made_of_a_number(monkeypatch, tmp_path):
    """Eager multiplies 0 with the NaN that a causal mask excludes, and makes 0 of it; kernels leave it out."""

    def attention(q):
        keys = q.clamp(-1e4, 1e4)
        return torch.nan_to_num(torch.nn.functional.scaled_dot_product_attention(keys, keys, q, is_causal=True))

    program, _ = optimized(attention, torch.randn(2, 2, 2), cache_dir=tmp_path / "right")
    assert {kernel.judged for kernel in program.kernels} == {"right on hard inputs"}
    assert [f for f in program.fallbacks if "hard inputs" in f.reason] == []
    emit = cpp.emit
    monkeypatch.setattr(cpp, "emit", lambda *a, **k: emit(*a, **k).replace("weft::decay(", "1.01f * weft::decay("))
    program, _ = optimized(attention, torch.randn(2, 40, 8), cache_dir=tmp_path / "wrong")
    assert "hard inputs" in program.fallbacks[0].reason


def masked(x, mask):
    return torch.where(mask, x, -torch.inf).amax(-1), mask.any(-1)


def looked_up(x, index):
    return torch.relu(x[index]).sum(-1)


def halves(x):
    return torch.cat([x[:, 7:], x[:, :7]], 1) * 2, (x.long() % 3 == 1)


ON_A_DEVICE = {
    "products": (lambda a, b: torch.relu(a @ b), torch.randn(40, 33).bfloat16(), torch.randn(33, 50).bfloat16()),
    "halves": (lambda a, b: (a @ b).softmax(-1), torch.randn(40, 33).half(), torch.randn(33, 50).half()),
    "doubles": (lambda a: torch.cumsum(a, -1), torch.randn(40, 33).double()),
    "masks": (masked, torch.randn(20, 30), torch.rand(20, 30) > 0.5),
    "lookups": (looked_up, torch.randn(20, 30), torch.randint(0, 20, (9,))),
    "integers": (lambda a, b: (a * 3 + b, a > b), torch.arange(50).to(torch.int8), torch.arange(50)),
    "joins": (halves, torch.randn(17, 30)),
    "no rows": (lambda x: x / x.norm(), torch.randn(300)),
    "one element": (lambda x, y: x * y.sum(), torch.randn(1), torch.randn(1, 1)),
    "rankings": (lambda x: torch.topk(x, 3), torch.randn(20, 30)),
    "no inputs": (lambda x: x.new_ones(5) * torch.arange(5), torch.randn(2)),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", ON_A_DEVICE)
def test_right_kernels_are_right_on_inputs_that_are_drawn_on_a_device(name, monkeypatch, tmp_path):
    function, *inputs = ON_A_DEVICE[name]
    made, devices = verify.cases, []

    def on_a_device(program, far, near, seed, draws, layout, device, after):
        assert device is None
        for case in made(program, far, near, seed, draws, layout, torch.device("cpu")):
            devices.append(case.device)
            yield case

    monkeypatch.setattr(verify, "ON_DEVICE", 0)
    monkeypatch.setattr(verify, "DRAWN_THERE", 0)
    monkeypatch.setattr(judging, "cases", on_a_device)
    program, heard = optimized(function, *inputs, cache_dir=tmp_path)
    assert {kernel.judged for kernel in program.kernels} == {"right on hard inputs"}
    assert set(devices) == {torch.device("cpu")}
    assert [f.reason for f in program.fallbacks] == [] == heard


def test_a_kernel_that_no_case_has_room_for_is_not_judged(monkeypatch, tmp_path):
    monkeypatch.setattr(benches, "MEMORY", 1 << 11)
    program, _ = optimized(softmax, torch.randn(5, 70), cache_dir=tmp_path)
    assert [kernel.judged for kernel in program.kernels] == [
        "not judged: all sizes that it serves are too large to test"
    ]


@pytest.mark.parametrize("columns", [32, 64])
def test_a_norm_of_a_matmul_in_bf16_is_right_on_hard_inputs(columns: int) -> None:
    def fn(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.layer_norm(x @ w, (columns,))

    inputs = torch.randn(600, columns).bfloat16(), torch.randn(columns, columns).bfloat16()
    program = weft.optimize(fn, inputs, judge="always", defects="raise")
    assert program.fallbacks == ()
    assert {kernel.judged for kernel in program.kernels} == {"right on hard inputs"}
