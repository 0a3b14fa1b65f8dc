"""What each mode of `compile` costs a caller: first results, full speed, calls meanwhile, a stream of sizes, a soak.

    python benchmarks/background.py first  [--only NAME ...] [--modes MODE ...] [--processes N] [--device cuda] [--json FILE]
    python benchmarks/background.py stream [--calls N] [--device cuda] [--json FILE]
    python benchmarks/background.py soak   [--seconds S] [--threads N] [--backend eager] [--json FILE] [--plot FILE]

`first`: each figure is the median of N new processes with empty caches, in which the function ran in eager before; what a first
call imports, PyTorch's tracer and weft, is a part of it. `backend="eager"` is PyTorch's tracer with nothing behind it.
`meanwhile` is the time of calls made one after the other while the other process compiles, or times what was compiled first,
beside that of the same calls before it began (the modes called busy); `full speed` is the time until `weft.ready` returns, in
the other modes without any such call. Where other work keeps the machine busy, seconds of processor time, of both processes and
their compilers, say more. `stream`: calls of random lengths and batches on a process that has served two; of each call the time
is compared with eager's on the same operands, and the binaries in the cache are counted. `soak`: threads call with random
sizes; each result is compared with eager's, and the memory of both processes is sampled, and drawn if matplotlib is installed.
On a GPU all is in bf16, and calls are waited for.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from weft.lab.measure import setting

_SECONDS = 1800
_NAMES = ("mlp", "attention", "norm", "bert", "llama")
_MODES = ("first", "background", "first, busy", "background, busy")
_MODELS = """
import json, os, random, sys, threading, time, warnings
import torch

warnings.simplefilter("ignore")
torch.set_grad_enabled(False)
torch.manual_seed(0)


DTYPE = torch.float32 if DEVICE == "cpu" else torch.bfloat16
LEEWAY = {"rtol": 1e-3, "atol": 1e-4} if DEVICE == "cpu" else {"rtol": 3e-2, "atol": 3e-2}


def randn(*shape):
    return torch.randn(*shape, device=DEVICE, dtype=DTYPE)


def attention(q, k, v):
    return torch.softmax(q @ k.mT / 8, -1) @ v


def norm(x, scale, bias):
    return torch.nn.functional.gelu(torch.nn.functional.layer_norm(x, x.shape[-1:], scale, bias)) * torch.sigmoid(x)


def found(name):
    if name == "mlp":
        layers = torch.nn.Linear(256, 1024), torch.nn.GELU(), torch.nn.Linear(1024, 256)
        return torch.nn.Sequential(*layers).eval().to(DEVICE, DTYPE), (randn(256, 256),)
    if name == "norm":
        return norm, (randn(1024, 512), randn(512), randn(512))
    if name == "attention":
        return attention, tuple(randn(2, 4, 256, 64) for _ in range(3))
    import transformers
    sizes = dict(hidden_size=128, num_hidden_layers=2, num_attention_heads=4, intermediate_size=512, vocab_size=1000)
    if name == "bert":
        model = transformers.BertModel(transformers.BertConfig(**sizes))
    else:
        model = transformers.LlamaModel(transformers.LlamaConfig(**sizes, use_cache=False))
    return model.eval().to(DEVICE, DTYPE), (torch.randint(0, 1000, (2, 64), device=DEVICE),)


def wait():
    if DEVICE != "cpu":
        torch.cuda.synchronize()


def timed(call):
    wait()
    begin = time.perf_counter()
    call()
    wait()
    return time.perf_counter() - begin


def used(pid):
    # Seconds of processor time of a process and of those that it has waited for.
    try:
        fields = open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def resident(pid):
    try:
        return int(open(f"/proc/{pid}/statm").read().split()[1]) * 4096 / 2**20
    except OSError:
        return 0.0
"""
_FIRST = """
name, mode = sys.argv[1:]
function, inputs = found(name)
for _ in range(3):
    function(*inputs)
figures = {"eager call": min(timed(lambda: function(*inputs)) for _ in range(20))}
begin, before = time.perf_counter(), used(os.getpid())
if mode == "eager":
    compiled = torch.compile(function, backend="eager")
else:
    import weft
    compiled = weft.compile(function, **({} if mode == "blocking" else {"compile": mode.removesuffix(", busy")}))
compiled(*inputs)
wait()
figures["first"] = time.perf_counter() - begin
figures["first, processor"] = used(os.getpid()) - before
if mode.endswith("busy"):
    calls = []
    while weft.stats().in_progress:
        calls.append(timed(lambda: compiled(*inputs)))
    calls.sort()
    figures |= {"median meanwhile": calls[len(calls) // 2], "worst meanwhile": calls[-1], "99th": calls[-len(calls) // 100]}
if mode != "eager":
    weft.ready(compiled)
    from weft.api.background.requests import QUEUE
    figures["full"] = time.perf_counter() - begin
    figures["full, processor"] = used(os.getpid()) - before + (used(QUEUE.process.number) if QUEUE.process else 0.0)
figures["call"] = min(timed(lambda: compiled(*inputs)) for _ in range(20))
figures["failed"] = 0 if mode == "eager" else weft.stats().failed
print(json.dumps(figures))
"""
_STREAM = """
import weft

calls, = map(int, sys.argv[1:])
from collections import Counter
from weft.api import backend
from weft.run import build
from weft.run.gpu import build as gpu_build
from weft.run.cache import CacheFolder

compiled = weft.compile(attention, compile="background")
foreground = []
for module, name in ((backend, "compile_graph"), (build, "_compile"), (gpu_build, "assemble")):
    def noting(*given, inner=getattr(module, name), name=name, **more):
        foreground.append(name)
        return inner(*given, **more)
    setattr(module, name, noting)
rng = random.Random(0)


def operands():
    batch, length = rng.randint(1, 16), rng.randint(1, 2048)
    return [randn(batch, length, 64) for _ in range(3)]


for size in (100, 200):
    compiled(*(randn(4, size, 64) for _ in range(3)))
    weft.ready(compiled)
rows, wrong = [], 0
for number in range(calls):
    given = operands()
    order = (attention, compiled) if number % 2 else (compiled, attention)
    results = {}
    times = {f: timed(lambda: results.update({f: f(*given)})) for f in order}
    wrong += not torch.allclose(results[attention], results[compiled], **LEEWAY)
    rows.append((*given[0].shape[:2], times[attention], times[compiled]))
late = sorted(own - 1.2 * eager for _, _, eager, own in rows)
weft.ready(compiled)
now = weft.stats()
own = ("program", "kernel", "text")
texts = [e for e in CacheFolder().entries() if {"kernel.so", "kernel.cubin"} & e.files.keys()]
print(json.dumps({
    "kernels compiled in the foreground": len(foreground), "binaries": len(texts),
    "most binaries of a kernel": max(Counter(str([e.parts.get(part) for part in own]) for e in texts).values()),
    "99th percentile of (time - 1.2 x eager's)": late[-max(1, len(late) // 100)], "worst": late[-1], "wrong": wrong,
    "eager, all calls": sum(r[2] for r in rows), "weft, all calls": sum(r[3] for r in rows),
    "asked": now.asked, "served": now.served, "failed": now.failed, "meanwhile": now.meanwhile,
    "compiles by the other process": now.compiles, "rows": sorted(rows, key=lambda r: 1.2 * r[2] - r[3])[:12],
}))
"""
_SOAK = """
seconds, threads, backend = float(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
import weft
from weft.api.background.requests import QUEUE
model, _ = found("mlp")
layer = torch.nn.LayerNorm(256).eval()


def block(x):
    return torch.softmax(layer(x), -1) + x


def compiled_by(f):
    return weft.compile(f, compile="background") if backend == "weft" else torch.compile(f, backend="eager")


pairs = [(f, compiled_by(f)) for f in (model, block, attention)]
torch.set_num_threads(1)
stop, wrong, done = threading.Event(), [], []


def calls(seed):
    torch.set_grad_enabled(False)
    rng, own, count = random.Random(seed), torch.Generator().manual_seed(seed), 0
    while not stop.is_set():
        function, compiled = pairs[rng.randrange(3)]
        shape = (rng.randint(1, 16), rng.randint(1, 128), 256)
        given = [torch.randn(shape, generator=own) for _ in range(3 if function is attention else 1)]
        try:
            torch.testing.assert_close(compiled(*given), function(*given), rtol=1e-3, atol=1e-4)
        except BaseException as error:
            wrong.append(f"{shape}: {error}"[:500])
            return
        count += 1
    done.append(count)


running = [threading.Thread(target=calls, args=(n,)) for n in range(threads)]
for thread in running:
    thread.start()
begin, samples = time.monotonic(), []
while (now := time.monotonic() - begin) < seconds:
    other = QUEUE.process
    samples.append((round(now, 1), round(resident(os.getpid()), 1), round(resident(other.number), 1) if other else 0.0))
    time.sleep(min(5.0, seconds / 20))
stop.set()
for thread in running:
    thread.join()
now = weft.stats()
half = len(samples) // 2
print(json.dumps({
    "calls": sum(done), "wrong": wrong, "asked": now.asked, "served": now.served, "failed": now.failed,
    "MiB at half time": samples[half][1], "MiB at the end": samples[-1][1], "seconds, MiB here, MiB there": samples,
}))
"""


def process(script: str, *arguments: str, device: str = "cpu") -> dict[str, Any]:
    """Run a script in a new process with an empty cache, and return the figures that it prints."""
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-c", f"DEVICE = {device!r}\n{_MODELS}{script}", *arguments],
            env={**os.environ, "WEFT_CACHE_DIR": str(Path(folder) / "cache")},
            check=False,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
        )
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    return json.loads(done.stdout.splitlines()[-1])


def first(names: list[str], modes: list[str], processes: int, device: str) -> dict[str, Any]:
    """Measure first results, full speed and calls meanwhile; times in seconds."""
    found: dict[str, Any] = {}
    for name in names:
        runs: dict[str, list[dict[str, float]]] = {mode: [] for mode in ("eager", "blocking", *modes)}
        for _ in range(processes):
            for mode, made in runs.items():
                made.append(process(_FIRST, name, mode, device=device))
        medians = {
            mode: {figure: statistics.median(run[figure] for run in made) for figure in made[0]}
            for mode, made in runs.items()
        }
        found[name] = {mode: _beside(mode, medians) for mode in runs if mode != "eager"} | {"medians": medians}
        for mode, shown in found[name].items():
            if mode != "medians":
                sys.stdout.write(f"{name}, {mode}: { {k: round(v, 3) for k, v in shown.items()} }\n")
        sys.stdout.flush()
    return found


def _beside(mode: str, medians: dict[str, dict[str, float]]) -> dict[str, float]:
    """Compare the figures of a mode with those of `backend="eager"`, of blocking and of eager calls."""
    own = medians[mode]
    found = {
        "first result": own["first"],
        "first result / backend eager's": own["first"] / medians["eager"]["first"],
        "first result, processor": own["first, processor"],
        "full speed": own["full"],
        "full speed, processor": own["full, processor"],
        "full speed / blocking": own["full"] / medians["blocking"]["full"],
        "call / eager": own["call"] / own["eager call"],
    }
    if "median meanwhile" in own:
        found["median call meanwhile / eager"] = own["median meanwhile"] / own["eager call"]
        found["worst call meanwhile - eager"] = own["worst meanwhile"] - own["eager call"]
    return found


def plot(samples: list[tuple[float, float, float]], path: Path) -> None:
    """Draw the memory of a soak, MiB by second: of the process that calls, and of the one that compiles."""
    try:
        from matplotlib import pyplot
    except ImportError:
        sys.stderr.write("matplotlib is not installed: nothing is drawn\n")
        return
    figure, axes = pyplot.subplots()
    seconds, here, there = zip(*samples, strict=True)
    axes.plot(seconds, here, label="the process that calls")
    axes.plot(seconds, there, label="the process that compiles")
    axes.set(xlabel="seconds", ylabel="MiB", ylim=(0, None))
    axes.legend()
    figure.savefig(path)


def main() -> None:
    """Measure what is asked for, print it and write it as JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("what", choices=("first", "stream", "soak"))
    parser.add_argument("--only", nargs="+", default=list(_NAMES), choices=_NAMES)
    parser.add_argument("--modes", nargs="+", default=list(_MODES), choices=_MODES, help="beside eager and blocking")
    parser.add_argument("--processes", type=int, default=3, help="new processes for each figure")
    parser.add_argument("--calls", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument(
        "--backend", choices=("weft", "eager"), default="weft", help="soak: eager, to compare its memory"
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="but for the soak, which is of a CPU")
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--plot", type=Path, help="soak: draw memory here, with matplotlib")
    given = parser.parse_args()
    before = asdict(setting())
    match given.what:
        case "first":
            found = first(given.only, given.modes, given.processes, given.device)
        case "stream":
            found = process(_STREAM, str(given.calls), device=given.device)
        case _:
            found = process(_SOAK, str(given.seconds), str(given.threads), given.backend)
    if given.what != "first":
        sys.stdout.write(f"{json.dumps({k: v for k, v in found.items() if not isinstance(v, list)}, indent=1)}\n")
    if given.plot is not None and given.what == "soak":
        plot(found["seconds, MiB here, MiB there"], given.plot)
    if given.json is not None:
        given.json.write_text(json.dumps({"setting": before, **found}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
