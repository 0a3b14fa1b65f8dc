"""The manifest of a cache entry: its form, its checksum, and reading it without trusting it."""

from __future__ import annotations

import functools
import hashlib
import json
import platform
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any, TypeAlias, TypedDict, cast

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"

NAME = "manifest.json"
MOST_BYTES = 64 * 2**20
"""A manifest that is longer than this is not weft's."""

_FORMAT = 1
_PAYLOAD = re.compile(r"[A-Za-z0-9_]+\.[A-Za-z0-9]+")
_STORED = re.compile(r"[A-Za-z0-9_]+\.[0-9a-f]{16}\.[A-Za-z0-9]+")
_SHA256 = re.compile(r"[0-9a-f]{64}")


class File(TypedDict):
    """A payload's checksum and length."""

    sha256: str
    bytes: int


class Manifest(TypedDict):
    """All of a manifest but its checksum."""

    format: int
    key: str
    parts: dict[str, str]
    created: str
    versions: dict[str, str]
    files: dict[str, File]
    meta: dict[str, Json]


def describe(key: str, files: Mapping[str, bytes], meta: Mapping[str, Json], parts: Mapping[str, str]) -> Manifest:
    """Makes the manifest of an entry that is to be written. ValueError for a payload whose name is no word with an extension."""
    for name in files:
        if _PAYLOAD.fullmatch(name) is None:
            raise ValueError(f"not the name of a payload (a word and an extension): {name!r}")
    return {
        "format": _FORMAT,
        "key": key,
        "parts": dict(parts),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": dict(_versions()),
        "files": {
            name: {"sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
            for name, content in files.items()
        },
        "meta": dict(meta),
    }


def text_of(manifest: Manifest) -> bytes:
    """Writes the manifest as text. ValueError where `meta` holds what JSON cannot say."""
    body = {**manifest, "checksum": _checksum(manifest)}
    return json.dumps(body, indent=1, sort_keys=True, allow_nan=False).encode()


def parse(text: bytes) -> Manifest | None:
    """Reads the manifest, if it is as weft wrote it: its checksum holds and everything in it has its form. Never raises."""
    try:
        body: object = json.loads(text)
        if not isinstance(body, dict):
            return None
        fields = cast("dict[str, Any]", body)
        stated = fields.pop("checksum", None)
        if stated != _checksum(fields):  # refuses NaN, which json.loads reads
            return None
    except (ValueError, RecursionError):
        return None
    return cast("Manifest", cast("object", fields)) if _has_form(fields) else None


def stored_name(name: str, sha256: str) -> str:
    """Returns the name under which a payload lies: it says the content."""
    stem, _, extension = name.partition(".")
    return f"{stem}.{sha256[:16]}.{extension}"


def is_stored_name(name: str) -> bool:
    """Tells whether `stored_name` gives such names."""
    return _STORED.fullmatch(name) is not None


def _has_form(fields: Mapping[str, Any]) -> bool:
    match fields:
        case {"format": int(form), "key": str(), "created": str(), "meta": dict()} if form == _FORMAT:
            pass
        case _:
            return False
    try:
        datetime.fromisoformat(fields["created"]).timestamp()
    except (ValueError, OverflowError):  # of a year that no clock counts from
        return False
    for name in ("parts", "versions", "files"):
        if not isinstance(fields.get(name), dict):
            return False
    texts = (*fields["parts"].values(), *fields["versions"].values())
    return all(isinstance(text, str) for text in texts) and all(_is_file(*item) for item in fields["files"].items())


def _is_file(name: str, stated: object) -> bool:
    match stated:
        case {"sha256": str(sha256), "bytes": int()}:
            return _PAYLOAD.fullmatch(name) is not None and _SHA256.fullmatch(sha256) is not None
        case _:
            return False


def _checksum(body: object) -> str:
    text = json.dumps(body, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


@functools.cache
def _versions() -> Mapping[str, str]:
    """Read the versions of what is installed, once: reading asks the file system."""
    found = {"python": platform.python_version()}
    for package in ("weft", "torch"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:  # run from a checkout that is not installed
            found[package] = "unknown"
    return found
