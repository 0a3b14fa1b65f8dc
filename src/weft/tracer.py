"""What weft takes of PyTorch's tracer, Dynamo: no public names but `config`, from one place.

It is imported with this module, once: two threads that import it at the same time fail, since its own imports are circular. What
`torch.compile` imports first is first here too: a thread there waits then, or this one does. It takes as long as PyTorch itself, so
that only what traces imports this module: not `import weft`, and not a program that was saved.
"""

from __future__ import annotations

from contextlib import suppress
from importlib import import_module

from weft.garbage import uncollected

with uncollected():
    with suppress(ImportError):
        import_module("torch._inductor.compiler_bisector")
    import_module("torch._dynamo")

from torch._dynamo import config, eval_frame
from torch._dynamo.eval_frame import OptimizedModule
from torch._dynamo.exc import BackendCompilerFailed, TorchDynamoException
from torch._dynamo.guards import GuardBuilder
from torch._dynamo.output_graph import OutputGraph
from torch._dynamo.source import GlobalStateSource, TensorPropertySource
from torch._dynamo.symbolic_convert import InstructionTranslator
from torch._dynamo.utils import counters, guard_failures
from torch._dynamo.variables import builder
from torch._dynamo.variables.base import AttributeMutationExisting, ValueMutationExisting

__all__ = [
    "AttributeMutationExisting",
    "BackendCompilerFailed",
    "GlobalStateSource",
    "GuardBuilder",
    "InstructionTranslator",
    "OptimizedModule",
    "OutputGraph",
    "TensorPropertySource",
    "TorchDynamoException",
    "ValueMutationExisting",
    "builder",
    "config",
    "counters",
    "eval_frame",
    "guard_failures",
]
