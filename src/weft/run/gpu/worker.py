"""A process that compiles Triton kernels for `workers`: a script of its own, which imports nothing of weft, nor PyTorch.

Reads one job a line (JSON) on standard input. Answers each with an empty line as it begins, and with a line of JSON when it has
done. Ends when standard input does, or after a while without jobs. What Triton prints goes to standard error.
"""

from __future__ import annotations

import base64
import importlib.util
import json
import os
import select
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

IDLE_SECONDS = 60.0
OLDEST = (3, 6)
_LONGEST_MESSAGE = 20_000


def compiled(job: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Compile the kernel of `job`: its binary, its assembly, and what Triton says of them. Raises whatever Triton does."""
    try:
        triton, compiler = import_module("triton"), import_module("triton.compiler")
    except Exception as error:  # what is installed may fail in any way, for every kernel alike
        raise ImportError(f"importing it failed with {type(error).__name__}: {error}") from error
    if tuple(int(n) for n in triton.__version__.split(".")[:2]) < OLDEST:
        raise ImportError(f"Triton {triton.__version__} is older than {'.'.join(map(str, OLDEST))}")
    function = getattr(loaded(job["text"], folder / f"{job['name']}.py"), job["name"])
    signature: dict[str, str] = {}
    constants: dict[str, int] = {}
    attributes: dict[tuple[int, ...], list[list[Any]]] = {}
    for place, (name, (kind, divisible, value)) in enumerate(zip(function.arg_names, job["arguments"], strict=True)):
        signature[name] = kind
        if value is not None:
            constants[name] = value
        elif divisible:
            attributes[(place,)] = [["tt.divisibility", 16]]
    backend, arch = job["backend"], job["arch"]
    target = import_module("triton.backends.compiler").GPUTarget(
        backend, int(arch) if backend == "cuda" else arch, 32 if backend == "cuda" else 64
    )
    options = {"num_warps": job["warps"], "num_stages": job["stages"]}
    if "device_assert" in job["text"]:  # which Triton leaves out otherwise, and other assertions of its own with it
        options |= {"debug": True, "sanitize_overflow": False}
    made = compiler.compile(
        compiler.ASTSource(function, signature, constants, attributes), target=target, options=options
    )
    binary, text = ("cubin", "ptx") if backend == "cuda" else ("hsaco", "amdgcn")
    said = made.metadata
    return {
        "binary": base64.b64encode(made.asm[binary]).decode(),
        "assembly": made.asm[text],
        "name": said.name,
        "shared": said.shared,
        "threads": said.num_warps * target.warp_size,
        "scratch": getattr(said, "global_scratch_size", 0) or 0,
        "profile": getattr(said, "profile_scratch_size", 0) or 0,
        "triton": triton.__version__,
    }


def loaded(text: str, path: Path) -> Any:
    """Load a module of Triton functions from the file `path`, where Triton reads its source, whenever it runs."""
    path.write_text(text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def answer(line: bytes) -> dict[str, Any]:
    """Answer one job: as `compiled`, or {"error": ..., "message": ...}."""
    try:
        with tempfile.TemporaryDirectory(prefix="weft-compile-", ignore_cleanup_errors=True) as folder:
            os.environ["TRITON_CACHE_DIR"] = folder  # weft's own cache keeps what is made
            return compiled(json.loads(line), Path(folder))
    except Exception as error:  # noqa: BLE001 - whatever it is, it is this job's alone
        return {"error": type(error).__name__, "message": str(error)[-_LONGEST_MESSAGE:]}


def main() -> None:
    """Serve jobs until there are no more."""
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    jobs = sys.stdin.buffer
    # One job at a time is ever on its way, so nothing but the next can be in the buffer of `jobs`, and it is not there yet.
    while select.select([jobs], [], [], IDLE_SECONDS)[0] and (line := jobs.readline()):
        replies.write(b"\n")
        replies.flush()
        replies.write(json.dumps(answer(line)).encode() + b"\n")
        replies.flush()


if __name__ == "__main__":
    main()
