"""The persistent cache of binaries: safe against crashes, other processes, damage and other users.

    FOLDER/                      mode 0700
        KEY/                     mode 0700; KEY is 64 hex digits (key.cache_key)
            manifest.json        what the entry holds, checksums, and what the key was made of
            kernel.5d41402a….so  a payload; its name carries its content's hash

Every file is written under a temporary name beside its own and renamed in, the manifest last: an
entry exists from the instant its manifest does, and only then. A payload's name says its content:
a second writer never changes what a first reader is about to open. An open library keeps its inode.

No locks. Two processes that miss at once both compile and the last rename wins, which costs a
second of work; a lock file does not hold on some network file systems, leaves others waiting for a
process that hangs, and costs every start the import of a library. No fsync either: what a power
failure tears fails its checksum and is rebuilt.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import secrets
import shutil
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import MappingProxyType
from typing import TypeAlias, TypedDict, cast

from weft.errors import CacheFolderError
from weft.options import current
from weft.run import scratch, stats

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"

_FORMAT = 1
_MANIFEST = "manifest.json"
_KEY = re.compile(r"[0-9a-f]{64}")
_PAYLOAD = re.compile(r"[A-Za-z0-9_]+\.[A-Za-z0-9]+")
_OTHERS_MAY_WRITE = stat.S_IWGRP | stat.S_IWOTH


class _File(TypedDict):
    sha256: str
    bytes: int


class _Manifest(TypedDict):
    format: int
    key: str
    parts: dict[str, str]
    created: str
    versions: dict[str, str]
    files: dict[str, _File]
    meta: dict[str, Json]


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry, whole when it was looked up.

    Attributes:
        key: 64 hex digits.
        files: the payloads: their names as given to `store`, and where they lie.
        meta: what the writer said about them.
        parts: what the key was made of, where the writer said so.
        created: when it was written, ISO 8601, UTC.
        versions: of Python and of the packages that made it.
        size: bytes of all payloads.
        persistent: false where it lies in this process's own folder and ends with it.
    """

    key: str
    files: Mapping[str, Path]
    meta: Mapping[str, Json]
    parts: Mapping[str, str]
    created: str
    versions: Mapping[str, str]
    size: int
    persistent: bool


class CacheFolder:
    """The entries under one folder, with a private folder of this process for what it cannot take.

    Every method may be called from any thread and any number of processes.
    """

    def __init__(self, path: Path | str | None = None) -> None:
        """Opens the folder, creating it (mode 0700) where it can be created.

        Args:
            path: the folder; None: the option cache_dir (WEFT_CACHE_DIR), else the platform's user
                cache folder.

        Raises:
            CacheFolderError: the folder is another user's, or others may write to it, or it is no
                folder. Whoever can write there could have this process run their code.
        """
        self.path = _chosen_folder(path)
        self._private: Path | None = None
        _make_folder(self.path)

    def lookup(self, key: str, *, counted: bool = True) -> Entry | None:
        """The entry of `key` if it is there and every byte of it is what was written, else None; `counted`: as a hit."""
        _demand_key(key)
        for root in self._roots():
            entry = _read(root, key, persistent=root == self.path)
            if entry is not None:
                if counted:
                    stats.count("cache_hits")
                return entry
        return None

    def store(
        self,
        key: str,
        files: Mapping[str, bytes],
        meta: Mapping[str, Json] | None = None,
        *,
        parts: Mapping[str, str] | None = None,
        private: bool = False,
    ) -> Entry:
        """Writes an entry, over a damaged or older one of the same key.

        A folder that cannot be written to (read-only, full) is counted and the entry goes to this
        process's private folder.

        Args:
            key: 64 hex digits.
            files: payloads by name, each a word with an extension, as in "kernel.so".
            meta: anything that JSON can say; comes back with the entry.
            parts: what the key was made of, for people who read the manifest.
            private: go to the private folder at once (the persistent one forbids execution, say).

        Raises:
            OSError: the private folder failed too; no disk and no memory has room.
        """
        _demand_key(key)
        manifest = _manifest(key, files, meta or {}, parts or {})
        if not private:
            try:
                _write(self.path, manifest, files)
            except OSError:
                stats.count("cache_write_failures")
            else:
                return _entry(self.path, manifest, persistent=True)
        self._private = scratch.private_folder()
        _write(self._private, manifest, files)
        return _entry(self._private, manifest, persistent=False)

    def entries(self) -> Iterator[Entry]:
        """Every whole entry of the persistent folder, in the order of keys; counts no hits."""
        for folder in _entry_folders(self.path):
            entry = _read(self.path, folder.name, persistent=True)
            if entry is not None:
                yield entry

    def size(self) -> int:
        """Bytes under the persistent folder's entries, damaged and half-written ones included."""
        total = 0
        for folder in _entry_folders(self.path):
            try:
                total += sum(path.lstat().st_size for path in folder.iterdir())
            except OSError:  # another process clears at the same time
                continue
        return total

    def clear(self) -> int:
        """Removes every entry of the persistent folder, nothing else in it; how many there were.

        A process that has loaded a kernel keeps it.
        """
        removed = 0
        for folder in list(_entry_folders(self.path)):
            shutil.rmtree(folder, ignore_errors=True)
            removed += not folder.exists()
        return removed

    def _roots(self) -> list[Path]:
        # What had to go to the private folder had a reason: it is asked first.
        return [self.path] if self._private is None else [self._private, self.path]


def write_file(path: Path, content: bytes) -> None:
    """Writes `content` to `path` in one step as others see it: temporary name, then rename.

    Raises OSError; then nothing of it remains, unless the process was killed.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(6)}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _chosen_folder(path: Path | str | None) -> Path:
    stated = path or current().cache_dir
    if stated is None:
        # Imported here: a process that never compiles, or names its folder, need not pay for it.
        from platformdirs import user_cache_path

        stated = user_cache_path("weft", appauthor=False)
    try:
        return Path(stated).expanduser().absolute()
    except RuntimeError as error:
        raise CacheFolderError(
            f"the cache folder {stated} cannot be found: {error}",
            todo="name a folder by its full path in WEFT_CACHE_DIR",
        ) from error


def _make_folder(path: Path) -> None:
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except FileExistsError as error:
        raise CacheFolderError(
            f"the cache folder {path} is not a folder",
            todo=f"remove {path}, or name another folder in WEFT_CACHE_DIR",
        ) from error
    except OSError:
        return  # it cannot be created: lookups miss, and store goes to the private folder
    try:
        found = path.stat()
    except OSError:
        return
    if found.st_uid != os.geteuid():
        raise CacheFolderError(
            f"the cache folder {path} belongs to another user (uid {found.st_uid}, yours is "
            f"{os.geteuid()}), who could put code there that runs as you",
            todo="name a folder of your own in WEFT_CACHE_DIR",
        )
    if found.st_mode & _OTHERS_MAY_WRITE:
        raise CacheFolderError(
            f"the cache folder {path} can be written to by others (mode "
            f"{stat.S_IMODE(found.st_mode):04o}), who could put code there that runs as you",
            todo=f"run `chmod 700 {path}`, or name another folder in WEFT_CACHE_DIR",
        )


def _demand_key(key: str) -> None:
    if _KEY.fullmatch(key) is None:
        raise ValueError(f"not a cache key (64 hex digits): {key!r}")


def _stored_name(name: str, sha256: str) -> str:
    stem, _, extension = name.partition(".")
    return f"{stem}.{sha256[:16]}.{extension}"


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in ("weft", "torch"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:  # run from a checkout that is not installed
            found[package] = "unknown"
    return found


def _manifest(key: str, files: Mapping[str, bytes], meta: Mapping[str, Json], parts: Mapping[str, str]) -> _Manifest:
    for name in files:
        if _PAYLOAD.fullmatch(name) is None:
            raise ValueError(f"not the name of a payload (a word and an extension): {name!r}")
    return {
        "format": _FORMAT,
        "key": key,
        "parts": dict(parts),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": _versions(),
        "files": {
            name: {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
            for name, content in files.items()
        },
        "meta": dict(meta),
    }


def _checksum(body: object) -> str:
    text = json.dumps(body, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _write(root: Path, manifest: _Manifest, files: Mapping[str, bytes]) -> None:
    body = {**manifest, "checksum": _checksum(manifest)}
    text = json.dumps(body, indent=1, sort_keys=True, allow_nan=False)
    folder = root / manifest["key"]
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    _claim(folder)
    for name, content in files.items():
        write_file(folder / _stored_name(name, manifest["files"][name]["sha256"]), content)
    write_file(folder / _MANIFEST, text.encode())


def _claim(folder: Path) -> None:
    """Makes the entry's folder, in place of anything of that name that weft cannot have made."""
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        if _is_ours(folder):
            return
        if folder.is_dir() and not folder.is_symlink():
            shutil.rmtree(folder)
        else:
            folder.unlink()
        folder.mkdir(mode=0o700)


def _is_ours(folder: Path) -> bool:
    # What others put here while the folder stood open to them stays theirs after `chmod 700`.
    found = folder.lstat()
    safe = found.st_uid == os.geteuid() and not found.st_mode & _OTHERS_MAY_WRITE
    return stat.S_ISDIR(found.st_mode) and safe


def _read(root: Path, key: str, *, persistent: bool) -> Entry | None:
    """The entry if it is there, ours and whole. Anything else is a miss, and is written anew."""
    folder = root / key
    try:
        if not _is_ours(folder):
            return None
        manifest = _parse((folder / _MANIFEST).read_bytes())
        if manifest is None or manifest["key"] != key:
            return None
        for name, file in manifest["files"].items():
            content = (folder / _stored_name(name, file["sha256"])).read_bytes()
            if hashlib.sha256(content).hexdigest() != file["sha256"]:
                return None
    except OSError:
        return None
    return _entry(root, manifest, persistent=persistent)


def _parse(text: bytes) -> _Manifest | None:
    """The manifest, if its checksum holds: then it is as weft wrote it, and has its form."""
    try:
        body: object = json.loads(text)
    except ValueError:
        return None
    if not isinstance(body, dict):
        return None
    fields = cast("dict[str, object]", body)
    checksum = fields.pop("checksum", None)
    if fields.get("format") != _FORMAT or checksum != _checksum(fields):
        return None
    return cast("_Manifest", cast("object", fields))


def _entry(root: Path, manifest: _Manifest, *, persistent: bool) -> Entry:
    folder = root / manifest["key"]
    files = {name: folder / _stored_name(name, file["sha256"]) for name, file in manifest["files"].items()}
    return Entry(
        key=manifest["key"],
        files=MappingProxyType(files),
        meta=MappingProxyType(manifest["meta"]),
        parts=MappingProxyType(manifest["parts"]),
        created=manifest["created"],
        versions=MappingProxyType(manifest["versions"]),
        size=sum(file["bytes"] for file in manifest["files"].values()),
        persistent=persistent,
    )


def _entry_folders(root: Path) -> Iterator[Path]:
    try:
        children = sorted(root.iterdir())
    except OSError:
        return
    for child in children:
        if _KEY.fullmatch(child.name) and child.is_dir() and not child.is_symlink():
            yield child
