"""`weft cache`: listing, checking, clearing, exporting and importing what lies in the cache folder."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click
from rich.table import Table

from weft.cli.command import NewFile, console, reporting
from weft.errors import CommandError, CompilerError
from weft.plan import Measured
from weft.run import archive
from weft.run.cache import CacheFolder, Entry, Json
from weft.verify import Verdict

_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_SHOWN = 12
_KINDS = {"weft": "version of weft", "torch": "version of PyTorch", "machine": "processor", "compiler": "compiler"}
_TEXTS = {"kernel.cpp": "source", "kernel.py": "source", "kernel.ptx": "assembly", "kernel.amdgcn": "assembly"}


@click.group()
def cache() -> None:
    """List, print, check, remove and carry about compiled kernels on disk."""


@cache.command()
@reporting
def path() -> None:
    """Print the cache folder in use."""
    click.echo(str(CacheFolder().path))


@cache.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON array instead of a table.")
@reporting
def listed(as_json: bool) -> None:
    """List the entries: key, kernel, size, when it was written and last used, program."""
    entries = list(CacheFolder().entries())
    if as_json:
        click.echo(json.dumps([_row(entry) for entry in entries], indent=1))
        return
    table = Table("key", "name", "bytes", "written", "last used", "program", box=None)
    for entry in entries:
        row = _row(entry)
        texts = (entry.key[:_SHOWN], row["name"], f"{entry.size:,}", _date(entry.created), _date(row["used"]))
        table.add_row(*map(str, texts), _shortened(str(row["program"])))
    console().print(table)
    click.echo(f"{_entries(len(entries))} in {CacheFolder().path}")


@cache.command()
@click.argument("key")
@click.option("--source/--no-source", default=True, help="Print the C++, Triton's Python or the assembly too.")
@reporting
def show(key: str, source: bool) -> None:
    """Print one entry: what it was made from, its verdict, its source. KEY may be shortened to its first digits."""
    entry = _found(CacheFolder(), key)
    click.echo(f"key: {entry.key}\nname: {_name(entry)}\nwritten: {entry.created}\nbytes: {entry.size}")
    for title, value in (*sorted(entry.versions.items()), *_meta(entry).items()):
        click.echo(f"{title}: {value}")
    for title, text in sorted(entry.parts.items()):
        click.echo(f"\n== {title}\n{text}")
    for name in sorted(_TEXTS.keys() & entry.files.keys()) if source else ():
        click.echo(f"\n== {_TEXTS[name]}\n{entry.files[name].read_text(encoding='utf-8')}")


@cache.command()
@click.option("--older-than", metavar="AGE", help='Only entries that were not used for this long: "12h", "30d", "4w".')
@click.option("--measurements", is_flag=True, help="Only measurements, so that the next process measures again.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@reporting
def clear(older_than: str | None, measurements: bool, yes: bool) -> None:
    """Remove entries, also damaged and unfinished ones, but no other files. Running processes keep what they have loaded."""
    folder = CacheFolder()
    age = None if older_than is None else _age(older_than, "--older-than")
    chosen = [
        key
        for key, found in folder.examine()
        if (age is None or _unused(found, age)) and (not measurements or _is_measurement(found))
    ]
    if not chosen:
        click.echo(f"nothing to remove in {folder.path}")
        return
    what = f"{_entries(len(chosen))} of {folder.path}"
    if not yes and not click.confirm(f"Remove {what}?"):
        raise SystemExit(1)
    removed = sum(folder.remove(key) for key in chosen)
    folder.sweep()
    click.echo(f"removed {removed} of {what}")
    if removed < len(chosen):
        click.echo("The others hold files that weft did not write, or cannot be removed.")


@cache.command("export")
@click.argument("file", type=NewFile())
@click.argument("keys", nargs=-1, metavar="[KEY]...")
@click.option("--used-since", metavar="AGE", help='Only entries that were used in this time: "12h", "30d", "4w".')
@reporting
def exported(file: Path, keys: tuple[str, ...], used_since: str | None) -> None:
    """Write entries to FILE, for `weft cache import` on machines of the same kind: all, or those of the keys.

    A KEY may be shortened to its first digits.
    """
    folder = CacheFolder()
    age = None if used_since is None else _age(used_since, "--used-since")
    chosen = [_found(folder, key) for key in keys] if keys else list(folder.entries())
    wanted = dict.fromkeys(e.key for e in chosen if age is None or not _unused(e, age))
    packed = ((key, data) for key in wanted if (data := folder.packed(key)) is not None)
    count = archive.export(file, packed)
    click.echo(f"exported {_entries(count)} of {folder.path} to {file}")


@cache.command("import")
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--trust", is_flag=True, help="Read FILE although others may have written it. Entries are code that runs as you."
)
@reporting
def imported(file: Path, trust: bool) -> None:
    """Add the entries of FILE, which `weft cache export` wrote. Those that are here already, or newer, stay.

    Entries are native code: FILE must be yours, and nobody else may be able to write to it or its folder. Damaged entries are
    passed over.
    """
    folder = CacheFolder()
    if not folder.persistent:
        raise CommandError("there is no cache folder, since this user has no home", todo="name one in WEFT_CACHE_DIR")
    found = archive.take_all(folder, file, trusted=trust)
    click.echo(f"imported {_entries(len(found.new))} into {folder.path}; {found.here} were here already")
    if found.damaged or not found.whole:
        end = "" if found.whole else "; the file's end is missing"
        click.echo(
            f"passed over: {_entries(found.damaged)} that are damaged{end}. They are compiled when they are needed."
        )
    unlike = [kinds for parts in found.new if (kinds := _unlike(parts))]
    if unlike:
        kinds = ", ".join(sorted({f"another {kind}" for each in unlike for kind in each}))
        click.echo(f"{_entries(len(unlike))} will not be found here: {kinds}")


@cache.command()
@reporting
def verify() -> None:
    """Check every byte of every entry. Exits with 1 if one is damaged; it is rebuilt when it is needed."""
    folder, whole, damaged = CacheFolder(), 0, 0
    for key, found in folder.examine():
        if isinstance(found, Entry):
            whole += 1
        else:
            damaged += 1
            click.echo(f"{key}: {found}")
    swept = folder.sweep()
    more = f"; {swept} files of killed processes removed" if swept else ""
    click.echo(f"{whole} whole, {damaged} damaged or unfinished in {folder.path}{more}")
    if damaged:
        click.echo("what to do: nothing, or `weft cache clear` to remove all entries")
        raise SystemExit(1)


@cache.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of lines.")
@reporting
def stats(as_json: bool) -> None:
    """Print how many entries there are, of which kind and version, and their size."""
    folder = CacheFolder()
    found = list(folder.examine())
    entries = [entry for _, entry in found if isinstance(entry, Entry)]
    kinds = Counter(_kind(e) for e in entries)
    numbers: dict[str, object] = {
        "path": str(folder.path),
        "bytes": folder.size(),
        "kernels": kinds["kernel"],
        "binaries for GPUs": kinds["binary"],
        "measurements": kinds["measurement"],
        "choices": kinds["choice"],
        "judgements": kinds["judgement"],
        "parts of kernels": kinds["part of kernels"],
        "damaged": len(found) - len(entries),
        "of other sources": sum(not _is_of_this_weft(e) for e in entries),
        "oldest": min((e.created for e in entries), default=None),
        "newest": max((e.created for e in entries), default=None),
    }
    click.echo(json.dumps(numbers, indent=1) if as_json else "\n".join(f"{k}: {v}" for k, v in numbers.items()))


def _entries(count: int) -> str:
    return f"{count} {'entry' if count == 1 else 'entries'}"


def _unlike(parts: Mapping[str, str]) -> list[str]:
    """Name what an entry was made with that is another one here, so that nothing here asks for it."""
    from weft.run.key import environment_parts

    try:
        here = environment_parts()
    except CompilerError:
        here = {"compiler": ""}
    return [said for name, said in _KINDS.items() if name in here and parts.get(name, here[name]) != here[name]]


def _is_of_this_weft(entry: Entry) -> bool:
    """Tell whether the entry is of this version and this source: else nothing will ask for it."""
    from weft.run.key import source_hash

    return entry.parts.get("weft") == source_hash()


def _row(entry: Entry) -> dict[str, object]:
    return {
        "key": entry.key,
        "name": _name(entry),
        "bytes": entry.size,
        "written": entry.created,
        "used": None if entry.used is None else entry.used.isoformat(timespec="seconds"),
        "program": entry.parts.get("program", entry.parts.get("trial", entry.parts.get("class", ""))),
    }


def _kind(entry: Entry) -> str:
    """Name the kind of an entry: kernel (for a GPU: its text), binary for a GPU and a class of calls, or what was
    measured, judged or chosen.
    """
    if "assembled" in entry.meta:
        return "binary"
    if {"trial", "tuned"} & entry.parts.keys():
        return "measurement"
    if "judged" in entry.parts:
        return "judgement"
    if "shared" in entry.parts:
        return "part of kernels"
    return "choice" if "chosen" in entry.parts else "kernel"


def _is_measurement(found: Entry | str) -> bool:
    return isinstance(found, Entry) and _kind(found) == "measurement"


def _name(entry: Entry) -> str:
    match entry.meta:
        case {"signature": {"name": str(name)} | {"kernel": {"name": str(name)}}}:
            return name
        case {"assembled": {"name": str(name), "target": str(target)}}:
            return f"{name}, {target}"
        case _:
            return {
                "measurement": "measurement",
                "judgement": "judgement",
                "part of kernels": "part of kernels",
                "choice": entry.parts.get("chosen", ""),
            }.get(_kind(entry), "-")


def _meta(entry: Entry) -> Mapping[str, Json]:
    """Return what the kernel's maker said, its verdict first of all; of a measurement, the times, and what is in doubt."""
    measured = Measured.read(entry.meta)
    if measured is not None:
        return {"measured": str(measured), **entry.meta}
    inner = entry.meta.get("meta")
    if not isinstance(inner, dict):
        return entry.meta
    return {title: _verdict(value) if title == "verdict" else value for title, value in inner.items()}


def _verdict(kept: Json) -> Json:
    """Say a verdict in words; anything else is returned as it is."""
    try:
        return str(Verdict.from_json(kept))
    except (LookupError, TypeError, ValueError):
        return kept


def _shortened(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 48 else f"{line[:45]}..."


def _date(text: object) -> str:
    return str(text)[:16].replace("T", " ") if text else "-"


def _found(folder: CacheFolder, start: str) -> Entry:
    """Find the one entry whose key begins with `start`."""
    known = list(_beginning(folder, start)) if re.fullmatch(r"[0-9a-f]+", start) else []
    if len(known) == 1 and isinstance(known[0][1], Entry):
        return known[0][1]
    if len(known) == 1:
        what, todo = f"the entry {known[0][0]} is damaged: {known[0][1]}", "nothing: it is rebuilt when it is needed"
    elif known:
        what, todo = f"{len(known)} entries begin with {start!r}", "give more digits of the key"
    else:
        what, todo = f"there is no entry {start!r}", "give a key, or its beginning, from `weft cache list`"
    raise CommandError(what, where=str(folder.path), todo=todo)


def _beginning(folder: CacheFolder, start: str) -> Iterator[tuple[str, Entry | str]]:
    return ((key, found) for key, found in folder.examine() if key.startswith(start))


def _age(text: str, where: str) -> timedelta:
    match = re.fullmatch(r"(\d+)([mhdw])", text)
    if match is None:
        raise CommandError(
            f"{text!r} is not an age",
            where=where,
            todo="give minutes, hours, days or weeks: 30m, 12h, 30d, 4w",
        )
    try:
        return timedelta(**{_UNITS[match[2]]: int(match[1])})
    except OverflowError as error:
        raise CommandError(f"{text!r} is too long", where=where, todo="give a shorter age") from error


def _unused(found: Entry | str, age: timedelta) -> bool:
    # What is damaged serves nobody; a file system that does not say when an entry was used says when it was written.
    if isinstance(found, str):
        return True
    last = found.used or datetime.fromisoformat(found.created)
    return datetime.now(UTC) - last > age
