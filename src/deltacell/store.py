"""The on-disk form: a directory of Arrow parts beside a manifest.

A directory is written under a temporary name beside its destination and renamed when it is
complete, so that a reader never sees half of one. Parts are uncompressed Arrow IPC files and are
memory-mapped on load. The manifest holds a checksum of every part and a seal over itself; both
show damage, and neither proves who wrote it. Nothing that is read is ever executed.
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import json
import os
import secrets
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from deltacell.errors import StoreError
from deltacell.files import flush, flush_parent, seal_of, temporary_name

SCHEMA_VERSION = 1
MANIFEST = "manifest.json"
_RESTORE = "Restore the directory from a copy, or make it again from its sources."


@dataclass(frozen=True)
class Stored:
    """What a directory holds: its parts, its other facts, and the checksum of its contents."""

    parts: dict[str, pa.Table]
    meta: dict[str, Any]
    checksum: str


def write(
    path: str | os.PathLike[str],
    kind: str,
    parts: Mapping[str, pa.Table],
    meta: Mapping[str, Any],
    *,
    overwrite: bool = False,
) -> None:
    """Write a directory of the given kind, all of it or nothing; see `new_directory`."""
    with new_directory(path, kind, overwrite=overwrite) as temporary:
        described = {}
        for name, table in parts.items():
            file = temporary / f"{name}.arrow"
            with pa.OSFile(str(file), "wb") as sink:
                _write_part(sink, table)
            sha = sha256_of_file(file)
            described[name] = {"file": file.name, "rows": table.num_rows, "sha256": sha}
        write_manifest(temporary, kind, described, meta)


def write_manifest(
    directory: Path, kind: str, parts: Mapping[str, Mapping[str, Any]], meta: Mapping[str, Any]
) -> None:
    """Write the manifest of a directory whose parts are there."""
    manifest: dict[str, Any] = {
        "format": "deltacell",
        "schema": SCHEMA_VERSION,
        "kind": kind,
        "checksum": _checksum_of({name: part["sha256"] for name, part in parts.items()}),
        "parts": dict(parts),
        "meta": dict(meta),
    }
    manifest["seal"] = seal_of(manifest)
    text = json.dumps(manifest, indent=1, ensure_ascii=False, allow_nan=False)
    (directory / MANIFEST).write_text(text + "\n", encoding="utf-8")


@contextmanager
def new_directory(
    path: str | os.PathLike[str], kind: str, *, overwrite: bool = False
) -> Iterator[Path]:
    """Give a temporary directory to fill, which becomes `path` when the block ends well."""
    given, path = path, Path(path).resolve()
    temporary = temporary_name(path)
    made: list[Path] = []
    try:
        replaces = _refuse_to_clobber(path, kind, overwrite=overwrite)
        made = [folder for folder in path.parents if not folder.exists()]
        temporary.mkdir(parents=True)
        yield temporary
        _flush(temporary)
        (_replace if replaces else _put)(temporary, path, kind)
        made = []
    except OSError as error:
        raise StoreError(
            f"the {kind} could not be written: {error.strerror or error}",
            code="not-written",
            where=given,
            fix="Nothing was left half-written. Free some space or choose another place.",
        ) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        for folder in made:
            with suppress(OSError):
                folder.rmdir()


def read(path: str | os.PathLike[str], kind: str, *, verify: bool = True) -> Stored:
    """Open a directory of the given kind; its parts are memory-mapped."""
    path = Path(path)
    manifest = read_manifest(path)
    if manifest["kind"] != kind:
        what = f"this is {_a(manifest['kind'])}, and {_a(kind)} was expected"
        raise StoreError(what, code="wrong-kind", where=path)
    parts = {}
    for name, described in manifest["parts"].items():
        file = path / described["file"]
        if file.name != described["file"]:
            raise _damaged(
                path / MANIFEST, f"it names '{described['file']}', which is not beside it"
            )
        try:
            if not file.is_file():
                raise _damaged(file, f"the part '{name}' is missing")
            if verify and sha256_of_file(file) != described["sha256"]:
                raise _damaged(file, "the contents do not match the checksum in the manifest")
            with pa.memory_map(str(file)) as source:
                parts[name] = pa.ipc.open_file(source).read_all()
        except pa.ArrowException as error:
            raise _damaged(file, f"not an Arrow file: {error}") from error
        except OSError as error:
            what = f"cannot be read: {error.strerror or error}"
            raise StoreError(what, code="unreadable", where=file) from error
    return Stored(parts, manifest["meta"], manifest["checksum"])


def read_manifest(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read and check the manifest of a directory."""
    path = Path(path)
    file = path / MANIFEST
    try:
        manifest: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        known, version = manifest["format"] == "deltacell", manifest["schema"]
        if known and version == SCHEMA_VERSION:
            shas = {name: part["sha256"] for name, part in manifest["parts"].items()}
            whole = manifest["seal"] == seal_of(manifest)
            whole &= manifest["checksum"] == _checksum_of(shas)
            whole &= isinstance(manifest["kind"], str) and isinstance(manifest["meta"], dict)
            whole &= all(isinstance(part["file"], str) for part in manifest["parts"].values())
            if not whole:
                raise _damaged(file, "the manifest was edited or damaged")
            return manifest
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        raise StoreError(
            "not a cell, screen or split: it has no manifest.json"
            if path.exists()
            else "there is no such directory",
            code="not-a-store",
            where=path,
            fix="Make one with `deltacell data import` or `deltacell data synthetic`.",
        ) from None
    except OSError as error:
        what = f"cannot be read: {error.strerror}"
        raise StoreError(what, code="unreadable", where=file) from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise _damaged(file, "the manifest is damaged") from error
    if not known:
        raise StoreError("the manifest is not one of deltacell", code="not-a-store", where=file)
    raise StoreError(
        f"written with schema version {version}, and this program reads {SCHEMA_VERSION}",
        code="other-version",
        where=file,
        fix="Import the source files again with this version.",
    )


def checksum(parts: Mapping[str, pa.Table]) -> str:
    """Return the checksum that a directory with these parts would have."""
    shas = {}
    for name, table in parts.items():
        sink = _HashingSink()
        _write_part(pa.PythonFile(sink, mode="w"), table)
        shas[name] = sink.hash.hexdigest()
    return _checksum_of(shas)


def sha256_of_file(path: str | os.PathLike[str]) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _write_part(sink: Any, table: pa.Table) -> None:
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table.combine_chunks())


class _HashingSink:
    """A file that keeps only the hash of what is written to it."""

    closed = False

    def __init__(self) -> None:
        self.hash = hashlib.sha256()
        self._written = 0

    def write(self, data: bytes) -> int:
        self.hash.update(data)
        self._written += len(data)
        return len(data)

    def tell(self) -> int:
        return self._written

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass


def _checksum_of(shas: Mapping[str, str]) -> str:
    lines = "".join(f"{name}\t{sha}\n" for name, sha in sorted(shas.items()))
    return hashlib.sha256(lines.encode()).hexdigest()


def _damaged(file: Path, what: str) -> StoreError:
    return StoreError(what, code="damaged", where=file, fix=_RESTORE)


def _refuse_to_clobber(path: Path, kind: str, *, overwrite: bool) -> bool:
    """Return whether there is a directory to replace; raise where it must not be replaced."""

    def refused(code: str, what: str, fix: str) -> StoreError:
        return StoreError(what, code=code, where=path, fix=fix)

    if not os.path.lexists(path):
        return False
    if not path.is_dir():
        raise refused("exists", "there is a file of this name", "Choose another place.")
    if not any(path.iterdir()):
        return False
    try:
        manifest = read_manifest(path)
        there, foreign = _a(manifest["kind"]), _strangers(path, manifest)
    except StoreError:
        there, foreign = "something else", []
    if there != _a(kind):
        what = f"the directory already holds {there}, and {_a(kind)} was to be written there"
        raise refused("exists", what, "Choose an empty or a new directory.")
    if not overwrite:
        fix = "Choose another place, or allow replacing it (overwrite, --overwrite)."
        raise refused("exists", f"there is already {_a(kind)} here", fix)
    if foreign:
        what = f"the directory also holds '{foreign[0]}', which replacing the {kind} would delete"
        raise refused("would-delete", what, "Move it elsewhere first, or choose another place.")
    return True


def _a(kind: str) -> str:
    return f"{'an' if kind[:1] in tuple('aeiou') else 'a'} {kind}"


def _strangers(path: Path, manifest: Mapping[str, Any]) -> list[str]:
    """Return the entries of a directory that were not written with its manifest."""
    own = {MANIFEST, *(part["file"] for part in manifest["parts"].values())}
    own |= set(manifest["meta"].get("files", ()))
    return [entry.name for entry in path.iterdir() if entry.name not in own and not _is_ours(entry)]


def _is_ours(entry: Path) -> bool:
    """Whether an entry is a directory of ours, or holds nothing but such directories."""
    if entry.is_symlink() or not entry.is_dir():
        return False
    if (entry / MANIFEST).is_file():
        return not _strangers(entry, read_manifest(entry))
    return all(_is_ours(inner) for inner in entry.iterdir())


def _flush(directory: Path) -> None:
    """Wait until everything in a directory is on the disk, so that no rename comes before it."""
    for entry in (*directory.rglob("*"), directory):
        flush(entry)


def _put(temporary: Path, path: Path, kind: str) -> None:
    """Let a new directory appear at a path, unless something was put there meanwhile."""
    try:
        # A directory can replace nothing but an empty directory.
        temporary.rename(path)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise _came_meanwhile(path, kind) from error
        raise
    flush_parent(path)


def _replace(temporary: Path, path: Path, kind: str) -> None:
    """Let a new directory take the place of one of the same kind, which then is removed.

    What is taken away is checked once more under its new name, where nobody else writes, and put
    back where it is not what was to be replaced.
    """
    aside = path.parent / f".{path.name}.{secrets.token_hex(6)}.old"
    old = temporary
    if not _exchanged(temporary, path):
        # Without an exchange in one step there is a moment in which nothing is at the path.
        old = path.rename(aside)
        try:
            temporary.rename(path)
        except OSError:
            old.rename(path)
            raise
    try:
        _refuse_to_clobber(old, kind, overwrite=True)
    except StoreError as error:
        if not _exchanged(old, path):
            old = old.rename(aside)
            path.rename(temporary)
            old.rename(path)
        raise _came_meanwhile(path, kind) from error
    flush_parent(path)
    shutil.rmtree(old, ignore_errors=True)


def _came_meanwhile(path: Path, kind: str) -> StoreError:
    return StoreError(
        f"something else was put here while the {kind} was being made, and is left as it is",
        code="came-meanwhile",
        where=path,
        fix="Choose another place, or move it elsewhere and rerun the command.",
    )


def _exchanged(one: Path, other: Path) -> bool:
    """Let two directories swap their names in one step, where the system can do that (Linux)."""
    if sys.platform != "linux":
        return False
    at_working_directory, exchange = -100, 2
    try:
        renameat2 = ctypes.CDLL(None).renameat2
    except (AttributeError, OSError):
        return False
    names = os.fsencode(one), os.fsencode(other)
    done: int = renameat2(at_working_directory, names[0], at_working_directory, names[1], exchange)
    return done == 0
