"""The persistent cache of binaries: safe against crashes, other processes, damage and other users.

    FOLDER/                      mode 0700
        KEY/                     mode 0700; KEY is 64 hex digits (key.cache_key)
            manifest.json        what the entry holds, checksums, and what the key was made of
            kernel.5d41402a….so  a payload; its name carries its content's hash

Every file is written under a temporary name beside its own and renamed in, the manifest last: an
entry exists from the instant its manifest does, and only then. A payload's name says its content:
a second writer never changes what a first reader is about to open. An open library keeps its inode.

Right results rest on renames and checksums alone. Two processes that miss at once may both compile, and the last rename
wins; `CacheFolder.alone` only saves that work where the file system has locks, and never waits for long. No fsync: what a
power failure tears fails its checksum and is rebuilt. What killed writers left is removed once a day (`files.sweep`).
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import warnings
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType

from weft.errors import CacheFolderError, CacheFolderWarning, Location
from weft.options import current
from weft.run import artifacts, scratch, stats
from weft.run import files as on_disk
from weft.run import manifest as manifests
from weft.run.files import write_file
from weft.run.manifest import Json, Manifest, stored_name

__all__ = ["CacheFolder", "Entry", "Json", "write_file"]

_TRIES = 20


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
        used: when it was last looked up for use (or written), in UTC; None where the file system does not say.
    """

    key: str
    files: Mapping[str, Path]
    meta: Mapping[str, Json]
    parts: Mapping[str, str]
    created: str
    versions: Mapping[str, str]
    size: int
    persistent: bool
    used: datetime | None = field(default=None, compare=False)


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
        chosen = _chosen_folder(path)
        self._private: Path | None = None
        self.persistent = chosen is not None
        if chosen is None:  # no home: what is compiled lives as long as this process
            chosen = self._private = scratch.private_folder()
        self.path = chosen
        _make_folder(self.path)

    def lookup(self, key: str, *, counted: bool = True) -> Entry | None:
        """Returns the entry of `key` if it is there and every byte of it is what was written, else None.

        Args:
            key: 64 hex digits.
            counted: as a hit of `weft.stats()`.
        """
        _demand_key(key)
        for root in self._roots():
            found = _whole(root, key)
            if not isinstance(found, str):
                manifest, files, used = found
                artifacts.record(manifest, files)
                if counted:
                    stats.count("cache_hits")
                with suppress(OSError):  # a read-only folder does not say when its entries were used
                    os.utime(root / key / manifests.NAME)
                return _entry(root, manifest, persistent=self._persists(root), used=used)
        return None

    def alone(self, key: str) -> AbstractContextManager[None]:
        """Holds the lock of `key`, as in `with folder.alone(key):` look again, build, store; others who ask wait, for a
        while, if possible.
        """
        _demand_key(key)
        return on_disk.alone(self.path, key)

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

        A folder that cannot be written to (read-only, full) is counted, and the entry goes to this process's private folder.
        All entries go there if there is no folder. A CacheFolderWarning says so, once for a folder.

        Args:
            key: 64 hex digits.
            files: payloads by name, each a word with an extension, as in "kernel.so".
            meta: anything that JSON can say; comes back with the entry.
            parts: what the key was made of, for people who read the manifest.
            private: go to the private folder at once (the persistent one forbids execution, say).

        Raises:
            CacheFolderError: the folder has become one that is not safe.
            OSError: the private folder failed too; no disk and no memory has room.
        """
        _demand_key(key)
        manifest = manifests.describe(key, files, meta or {}, parts or {})
        why = f"kernels cannot be loaded from the cache folder {self.path}: does its file system forbid execution?"
        if not self.persistent:
            why = "there is no cache folder, since this user has no home"
        elif not private:
            try:
                _write(self.path, manifest, files)
            except OSError as error:
                stats.count("cache_write_failures")
                why = f"the cache folder {self.path} cannot be written to: {error.strerror or error}"
            else:
                artifacts.record(manifest, files)
                on_disk.sweep_daily(self.path)
                return _entry(self.path, manifest, persistent=True)
        artifacts.record(manifest, files)
        self._private = scratch.private_folder()
        _write(self._private, manifest, files)
        _say_not_kept(why)
        return _entry(self._private, manifest, persistent=False)

    def take(self, key: str, data: bytes) -> bool:
        """Writes an entry that another process packed (`artifacts.packed`), unless there is a whole one here that is newer.

        Its content may be code, which runs once something asks for its key: it must come from a source that may run code here.

        Returns:
            False for bytes that are not an entry of `key`, of which nothing is written.

        Raises:
            CacheFolderError: the folder has become one that is not safe.
        """
        found = artifacts.unpacked(key, data) if on_disk.KEY.fullmatch(key) else None
        if found is None:
            return False
        manifest, files = found
        try:
            self.adopt(manifest, files)
        except OSError as error:
            stats.count("cache_write_failures")
            _say_not_kept(f"the cache folder {self.path} cannot be written to: {error.strerror or error}")
        artifacts.record(manifest, files)
        return True

    def adopt(self, manifest: Manifest, files: Mapping[str, bytes]) -> bool:
        """Writes an entry of another process (`artifacts.unpacked`), unless it is here already, or a newer one; whether it did.

        Raises:
            CacheFolderError: the folder has become one that is not safe.
            OSError: it cannot be written to; what was there is there still.
        """
        here = _whole(self.path, manifest["key"])
        if not isinstance(here, str) and (here[0] == manifest or here[0]["created"] > manifest["created"]):
            return False
        _write(self.path, manifest, files)
        made = datetime.fromisoformat(manifest["created"]).timestamp()
        with suppress(OSError):  # it has not been used here yet: so far it counts as used when it was made
            os.utime(self.path / manifest["key"] / manifests.NAME, (made, made))
        return True

    def packed(self, key: str) -> bytes | None:
        """Returns the entry of `key` as bytes, for `take` and `adopt` in another folder; None where it is not whole."""
        _demand_key(key)
        found = _whole(self.path, key)
        return None if isinstance(found, str) else artifacts.packed(*found[:2])

    def entries(self) -> Iterator[Entry]:
        """Yields every whole entry of the persistent folder, in the order of keys; no hits are counted."""
        for _, found in self.examine():
            if isinstance(found, Entry):
                yield found

    def examine(self) -> Iterator[tuple[str, Entry | str]]:
        """Yields each key of the persistent folder, in order, with its entry, or with what is wrong with it."""
        if self.persistent:
            for folder in on_disk.entry_folders(self.path):
                yield folder.name, _read(self.path, folder.name, persistent=True)

    def size(self) -> int:
        """Counts the bytes under the persistent folder's entries, damaged and half-written ones included."""
        total = 0
        for folder in on_disk.entry_folders(self.path):
            try:
                total += sum(path.lstat().st_size for path in folder.iterdir())
            except OSError:  # another process clears at the same time
                continue
        return total

    def remove(self, key: str) -> bool:
        """Removes one entry, damaged or whole; whether it is gone now. A process that has loaded its kernel keeps it.

        A folder of that name that holds anything but weft's files is left alone.
        """
        _demand_key(key)
        return on_disk.remove_entry(self.path, key)

    def sweep(self) -> int:
        """Removes what killed writers left, an hour old or older; how many files and folders."""
        return on_disk.sweep(self.path)

    def _persists(self, root: Path) -> bool:
        return self.persistent and root == self.path

    def _roots(self) -> list[Path]:
        # What had to go to the private folder had a reason: it is asked first.
        return [self.path] if self._private is None else [self._private, self.path]


_said: set[str] = set()


def _say_not_kept(why: str) -> None:
    """Warns, once for a reason, that what is compiled lives as long as this process."""
    if why in _said:
        return
    _said.add(why)
    error = CacheFolderError(
        f"{why}; each process compiles again", todo="name a folder that you may write to in WEFT_CACHE_DIR"
    )
    place = error.where if isinstance(error.where, Location) else Location(__file__, 0)
    warnings.warn_explicit(f"weft keeps no kernels: {error}", CacheFolderWarning, place.file, place.line)


def _chosen_folder(path: Path | str | None) -> Path | None:
    """Returns the folder that is asked for, else the platform's; None where nothing is asked for and the user has no home."""
    stated = path or current().cache_dir
    try:
        return Path(stated or _platform_folder()).expanduser().absolute()
    except RuntimeError as error:  # the home of a user whom the system does not know
        if stated is None:
            return None
        raise CacheFolderError(
            f"the cache folder {stated} cannot be found: {error}",
            todo="name a folder by its full path in WEFT_CACHE_DIR",
        ) from error


def _platform_folder() -> Path:
    # Imported here: a process that never compiles, or names its folder, need not pay for it.
    from platformdirs import user_cache_path

    return user_cache_path("weft", appauthor=False)


def _make_folder(path: Path) -> None:
    """Makes the folder, unless it cannot be made: then lookups miss, and store goes to the private folder.

    Raises CacheFolderError where there is one that is not safe.
    """
    for _ in range(_TRIES):
        try:
            if not path.is_dir():  # asked hundreds of times, when it is there
                path.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = path.stat()
        except FileExistsError as error:
            if os.path.lexists(path) and not path.is_dir():
                raise CacheFolderError(
                    f"the cache folder {path} is not a folder",
                    todo=f"remove {path}, or name another folder in WEFT_CACHE_DIR",
                ) from error
        except OSError:
            return
        else:
            _demand_safe(path, found)
            return
        # It was there and is gone: someone removes it at the same time.


def _demand_safe(path: Path, found: os.stat_result) -> None:
    if found.st_uid != os.geteuid():
        raise CacheFolderError(
            f"the cache folder {path} belongs to another user (uid {found.st_uid}, yours is "
            f"{os.geteuid()}), who could put code there that runs as you",
            todo="name a folder of your own in WEFT_CACHE_DIR",
        )
    if found.st_mode & on_disk.OTHERS_MAY_WRITE:
        raise CacheFolderError(
            f"the cache folder {path} can be written to by others (mode "
            f"{stat.S_IMODE(found.st_mode):04o}), who could put code there that runs as you",
            todo=f"run `chmod 700 {path}`, or name another folder in WEFT_CACHE_DIR",
        )


def _demand_key(key: str) -> None:
    if on_disk.KEY.fullmatch(key) is None:
        raise ValueError(f"not a cache key (64 hex digits): {key!r}")


def _write(root: Path, manifest: Manifest, files: Mapping[str, bytes]) -> None:
    try:
        _write_once(root, manifest, files)
    except FileNotFoundError:  # someone cleared the cache meanwhile
        _write_once(root, manifest, files)
    except IsADirectoryError:  # in the place of one of the entry's files, which weft never puts there
        shutil.rmtree(root / manifest["key"], ignore_errors=True)
        _write_once(root, manifest, files)


def _write_once(root: Path, manifest: Manifest, files: Mapping[str, bytes]) -> None:
    text = manifests.text_of(manifest)
    folder = root / manifest["key"]
    _make_folder(root)  # again: it may have been removed, and another one put in its place, since it was opened
    on_disk.claim(folder)
    for name, content in files.items():
        write_file(folder / stored_name(name, manifest["files"][name]["sha256"]), content)
    write_file(folder / manifests.NAME, text)


def _read(root: Path, key: str, *, persistent: bool) -> Entry | str:
    """Reads the entry if it is there, ours and whole; else says what is wrong. Whatever is wrong is a miss, and is written anew."""
    found = _whole(root, key)
    return found if isinstance(found, str) else _entry(root, found[0], persistent=persistent, used=found[2])


def _whole(root: Path, key: str) -> tuple[Manifest, dict[str, bytes], datetime] | str:
    """Reads the entry's manifest and payloads, and when it was last used; else says what is wrong."""
    folder = root / key
    files: dict[str, bytes] = {}
    try:
        if not on_disk.is_ours(folder):
            return "others can write to it, or it is no folder"
        path = folder / manifests.NAME
        manifest = manifests.parse(on_disk.read_file(path, manifests.MOST_BYTES))
        if manifest is None or manifest["key"] != key:
            return f"{manifests.NAME} is not what was written" if manifest is None else "it is the entry of another key"
        for name, file in manifest["files"].items():
            files[name] = on_disk.read_file(folder / stored_name(name, file["sha256"]), file["bytes"])
            if hashlib.sha256(files[name]).hexdigest() != file["sha256"]:
                return f"{name} is not what was written"
        return manifest, files, datetime.fromtimestamp(path.stat().st_mtime, UTC)
    except OSError as error:
        where = f"{Path(error.filename).name}: " if isinstance(error.filename, str) else ""
        return f"{where}{error.strerror}"


def _entry(root: Path, manifest: Manifest, *, persistent: bool, used: datetime | None = None) -> Entry:
    folder = root / manifest["key"]
    files = {name: folder / stored_name(name, file["sha256"]) for name, file in manifest["files"].items()}
    return Entry(
        key=manifest["key"],
        files=MappingProxyType(files),
        meta=MappingProxyType(manifest["meta"]),
        parts=MappingProxyType(manifest["parts"]),
        created=manifest["created"],
        versions=MappingProxyType(manifest["versions"]),
        size=sum(file["bytes"] for file in manifest["files"].values()),
        persistent=persistent,
        used=used,
    )


def _take_artifact(key: str, data: bytes) -> None:
    """Takes an entry that PyTorch loads; what is not whole is passed over with a warning."""
    folder = CacheFolder()
    if not folder.take(key, data):
        message = (
            f"the artifact {key} is damaged, or no entry of weft's cache: it is passed over, and made anew where needed"
        )
        warnings.warn(message, CacheFolderWarning, stacklevel=2)


artifacts.register(_take_artifact)
