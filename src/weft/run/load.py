"""Loading shared libraries into this process."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from weft.errors import CompilerError

NativeFunction: TypeAlias = Callable[[bytes], None]
"""A kernel's C function: takes the packed words of its call (see `launch`); holds no GIL."""

_loaded: dict[Path, ctypes.CDLL] = {}
_lock = threading.Lock()


def load(path: Path, symbol: str) -> NativeFunction:
    """Loads the function `symbol` of the library at `path`.

    A library is opened once per path and stays open for the life of the process, so a function
    stays good whatever happens to the file: an open library holds its inode, not its name.

    Raises:
        OSError: the system refuses the file (damaged, gone, or its file system forbids execution).
        CompilerError: the library has no such function.
    """
    with _lock:
        library = _loaded.get(path)
        if library is None:
            # Local: two kernels may define helpers of one name. Now: a symbol that is missing must
            # show here, where a fallback is still possible, not in the first call.
            library = ctypes.CDLL(str(path), mode=os.RTLD_LOCAL | os.RTLD_NOW)
            _loaded[path] = library
    try:
        function = library[symbol]
    except AttributeError as error:
        raise CompilerError(
            f"the compiled library has no function {symbol}",
            where=str(path),
            todo="this is a bug in weft: report it with the kernel's source",
        ) from error
    function.argtypes = [ctypes.c_char_p]
    function.restype = None
    return function
