"""Cache entries among the artifacts of `torch.compiler.save_cache_artifacts()`: an entry as bytes, and PyTorch's register.

The bytes are the entry's manifest and its payloads, one after the other; nothing in them is unpickled. What `load_cache_artifacts`
is given goes into the cache folder, where it is checked like any other entry whenever it is used.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import threading
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from weft.errors import CacheFolderWarning, Location
from weft.run import manifest as manifests
from weft.run.key import cache_key
from weft.run.manifest import Manifest

KIND = "weft"
"""Name of weft's artifacts: `CacheInfo.weft_artifacts` lists their keys."""

_LENGTH = 8
_recorded: dict[str, None] = {}
_state: dict[str, Any] = {}
_lock = threading.Lock()


def packed(manifest: Manifest, files: Mapping[str, bytes]) -> bytes:
    """Writes an entry as bytes: the length of its manifest, the manifest, its payloads in the order of their names."""
    text = manifests.text_of(manifest)
    return b"".join((len(text).to_bytes(_LENGTH, "little"), text, *(files[name] for name in sorted(manifest["files"]))))


def unpacked(key: str, data: bytes) -> tuple[Manifest, dict[str, bytes]] | None:
    """Reads an entry that `packed` wrote. Never raises.

    None where it is not whole, where it is the entry of another key, and where its key is not that of what it says it was made of.
    """
    end = _LENGTH + int.from_bytes(data[:_LENGTH], "little")
    manifest = manifests.parse(data[_LENGTH:end])
    if manifest is None or manifest["key"] != key or cache_key(manifest["parts"]) != key:
        return None
    files: dict[str, bytes] = {}
    for name, stated in sorted(manifest["files"].items()):
        begin, end = end, end + stated["bytes"]
        files[name] = data[begin:end]
        if begin > end or hashlib.sha256(files[name]).hexdigest() != stated["sha256"]:
            return None
    return None if end != len(data) else (manifest, files)


def register(take: Callable[[str, bytes], object]) -> None:
    """Makes weft's entries a kind of artifact that PyTorch saves and loads.

    `take` is given the key and the bytes of each that is loaded. Where this version of PyTorch has no register of kinds, `record`
    says so, once.
    """
    try:
        theirs: Any = importlib.import_module("torch.compiler._cache")  # no public name

        class WeftCacheArtifact(theirs.CacheArtifact):
            def populate_cache(self) -> None:
                take(self.key, self.content)

            @staticmethod
            def type() -> str:
                return KIND

        theirs.CacheArtifactFactory.register(WeftCacheArtifact)
        _state["record"] = theirs.CacheArtifactManager.record_artifact
    except (ImportError, AttributeError, TypeError, AssertionError) as error:
        _state["missing"] = f"{type(error).__name__}: {error}"


def record(manifest: Manifest, files: Mapping[str, bytes]) -> None:
    """Notes an entry that this process has used or written, so that PyTorch saves it."""
    with _lock:  # PyTorch's lists are for one thread at a time; weft's compilers run in several
        if "record" in _state:
            _state["record"](KIND, manifest["key"], packed(manifest, files))
            _recorded[manifest["key"]] = None
        elif why := _state.pop("missing", None):
            _say_missing(why)


def recorded() -> tuple[str, ...]:
    """Lists the keys of all entries that were recorded in this process, in the order in which they were first used."""
    with _lock:
        return tuple(_recorded)


def _in_a_child() -> None:
    global _lock  # noqa: PLW0603 - a thread of the parent may hold it
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_in_a_child)


def _say_missing(why: str) -> None:
    place = Location.of_caller() or Location(__file__, 0)
    message = (
        "weft's cache entries are no part of torch.compiler.save_cache_artifacts(): this version of PyTorch does not let "
        f"weft register them ({why}). Use `weft cache export` and `weft cache import` instead."
    )
    warnings.warn_explicit(message, CacheFolderWarning, place.file, place.line)
