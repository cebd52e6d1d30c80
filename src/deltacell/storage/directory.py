"""The on-disk form: a directory of Arrow parts and a manifest.

A directory is written under a temporary name next to its destination and renamed when it is
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
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Self

import pyarrow as pa

from deltacell.base.errors import StoreError
from deltacell.base.files import (
    JsonObject,
    check_locks,
    flush,
    flush_parent,
    read_json,
    seal_of,
    temporary_name,
)
from deltacell.base.memory import NotEnoughMemoryError, lacks_memory, memory_sentence
from deltacell.base.rendering import as_html
from deltacell.storage.provenance import Source

SCHEMA_VERSION = 1
MANIFEST = "manifest.json"

# Arguments of renameat2, from linux/fcntl.h and linux/fs.h.
_AT_WORKING_DIRECTORY = -100
_RENAME_EXCHANGE = 2


class Stored(NamedTuple):
    """The contents of a directory and their checksum."""

    parts: dict[str, pa.Table]
    meta: JsonObject
    checksum: str


class Storable:
    """Base class of `Cell` and `Screen`: storage in a directory, and provenance."""

    stored_as: str  # the kind of its directory
    made_from: tuple[str, ...]  # the constructor arguments that are also attributes
    sources: tuple[Source, ...]  # the files it was made from
    synthetic_recipe: JsonObject | None  # the parameters of a synthetic one
    path: Path | None = None  # the directory it was loaded from, if any

    def stats(self) -> JsonObject:
        """Return its sizes, sources and checksum as a JSON-serialisable dict."""
        sources = [source.to_json() for source in self.sources]
        return {**self._facts(), "sources": sources, "checksum": self.checksum}

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write it to a directory, all of it or nothing."""
        sources = [source.to_json() for source in self.sources]
        meta = {"sources": sources, "synthetic": self.synthetic_recipe, "stats": self._facts()}
        write(path, self.stored_as, self._parts(), meta, overwrite=overwrite)

    @cached_property
    def checksum(self) -> str:
        """The checksum of the contents, the same in memory and on disk."""
        return checksum(self._parts())

    def equals(self, other: Any) -> bool:
        """Whether both have the same contents; their sources may differ."""
        return bool(self.checksum == other.checksum)

    def _repr_html_(self) -> str:
        values = {self.stored_as: {**self.stats(), "sources": []}}
        return as_html("data:print_data", values)

    def _with(self, **changed: Any) -> Self:
        """Return a copy with other values of some constructor arguments."""
        arguments = {name: getattr(self, name) for name in self.made_from}
        return type(self)(**{"synthetic": self.synthetic_recipe, **arguments, **changed})

    def _loaded(self, path: str | os.PathLike[str], stored: Stored) -> Self:
        """Add what its directory says of it beside its parts, and where it is."""
        self.sources = tuple(Source.from_json(source) for source in stored.meta["sources"])
        self.synthetic_recipe = stored.meta["synthetic"]
        self.path = Path(path).absolute()
        self.__dict__["checksum"] = stored.checksum
        return self

    def _facts(self) -> JsonObject:
        """Return its sizes as a JSON-serialisable dict."""
        raise NotImplementedError

    def _parts(self) -> dict[str, pa.Table]:
        """Return its contents as Arrow tables by the name of their file."""
        raise NotImplementedError


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
            sha256 = sha256_of_file(file)
            described[name] = {"file": file.name, "rows": table.num_rows, "sha256": sha256}
        write_manifest(temporary, kind, described, meta)


def write_manifest(
    directory: Path,
    kind: str,
    parts: Mapping[str, Mapping[str, Any]],
    meta: Mapping[str, Any],
) -> None:
    """Write the manifest of a directory.

    Args:
        directory: The directory, in which the parts are.
        kind: What it holds, such as ``cell``.
        parts: By name, a ``file``, its number of ``rows`` and its ``sha256``.
        meta: What else is recorded; ``files`` names further files that belong to the directory.
    """
    manifest: JsonObject = {
        "format": "deltacell",
        "schema": SCHEMA_VERSION,
        "kind": kind,
        "checksum": _checksum_of(parts),
        "parts": dict(parts),
        "meta": dict(meta),
    }
    manifest["seal"] = seal_of(manifest)
    text = json.dumps(manifest, indent=1, ensure_ascii=False, allow_nan=False)
    (directory / MANIFEST).write_text(text + "\n", encoding="utf-8")


@contextmanager
def new_directory(
    path: str | os.PathLike[str],
    kind: str,
    *,
    overwrite: bool = False,
) -> Iterator[Path]:
    """Yield a temporary directory to fill, which becomes `path` if the block ends without an error.

    An existing directory is replaced only with `overwrite`, and only if it is of the same kind and
    holds nothing that this program did not write.
    """
    resolved = Path(path).resolve()
    temporary = temporary_name(resolved)
    new_parents: list[Path] = []
    try:
        replaces = _must_be_replaced(resolved, kind, overwrite=overwrite)
        new_parents = [folder for folder in resolved.parents if not folder.exists()]
        temporary.mkdir(parents=True)
        yield temporary
        # Everything must be on disk before the rename.
        for entry in (*temporary.rglob("*"), temporary):
            flush(entry)
        check_locks(resolved)
        _put(temporary, resolved, kind, replaces=replaces)
    except OSError as error:
        raise StoreError(
            f"the {kind} could not be written: {error.strerror or error}",
            code="not-written",
            where=path,
            fix="Nothing was written. Free some space or choose another path.",
        ) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        with suppress(OSError):  # A folder may not be empty.
            for folder in new_parents:
                folder.rmdir()


def remove(path: Path, kind: str) -> None:
    """Remove a directory of the given kind that holds nothing that this program did not write."""
    path = path.resolve()
    if _must_be_replaced(path, kind, overwrite=True):
        # A kill from here on leaves nothing at the path; the rest is removed by the next process.
        shutil.rmtree(path.rename(temporary_name(path)), ignore_errors=True)


def read(path: str | os.PathLike[str], kind: str, *, verify: bool = True) -> Stored:
    """Open a directory of the given kind; its parts are memory-mapped."""
    path = Path(path)
    manifest = read_manifest(path)
    if manifest["kind"] != kind:
        message = f"expected a saved {kind}, but found a saved {manifest['kind']}"
        raise StoreError(message, code="wrong-kind", where=path)
    parts = {
        name: _read_part(path, name, described, verify=verify)
        for name, described in manifest["parts"].items()
    }
    return Stored(parts, manifest["meta"], manifest["checksum"])


def _read_part(
    directory: Path,
    name: str,
    described: Mapping[str, Any],
    *,
    verify: bool,
) -> pa.Table:
    """Open a part of a directory as the manifest describes it."""
    file = directory / described["file"]
    try:
        if file.name != described["file"] or not file.is_file():
            raise _damaged(file, f"the part '{name}' is not a file next to the manifest")
        if verify and sha256_of_file(file) != described["sha256"]:
            raise _damaged(file, "the contents do not match the checksum in the manifest")
        with pa.memory_map(str(file)) as source:
            return pa.ipc.open_file(source).read_all()
    except pa.ArrowException as error:
        if lacks_memory(error):
            raise NotEnoughMemoryError(memory_sentence()) from error
        raise _damaged(file, f"not an Arrow file: {error}") from error
    except OSError as error:
        message = f"cannot be read: {error.strerror or error}"
        raise StoreError(message, code="unreadable", where=file) from error


def read_manifest(path: str | os.PathLike[str]) -> JsonObject:
    """Read the manifest of a directory; raise if it is damaged or of another version."""
    path = Path(path)
    file = path / MANIFEST
    if not file.is_file():
        reason = "it has no manifest.json" if path.exists() else "no such directory"
        fix = "Create one with `deltacell data import` or `deltacell data synthetic`."
        message = f"not a cell, screen or split: {reason}"
        raise StoreError(message, code="not-a-store", where=path, fix=fix)
    manifest = read_json(file, what="the manifest")
    try:
        version = (manifest["format"], manifest["schema"])
        is_ours = version == ("deltacell", SCHEMA_VERSION)
        is_whole = not is_ours or _matches_its_checksums(manifest)
    except (KeyError, TypeError, AttributeError):
        is_whole = False
    if not is_whole:
        raise _damaged(file, "the manifest was edited or damaged")
    if not is_ours:
        message = f"not a deltacell manifest with schema version {SCHEMA_VERSION}"
        fix = "Import the source files again with this version."
        raise StoreError(message, code="other-version", where=file, fix=fix)
    return dict(manifest)


def _matches_its_checksums(manifest: Mapping[str, Any]) -> bool:
    """Return whether neither a manifest nor the checksums of its parts were changed."""
    if manifest["seal"] != seal_of(manifest):
        return False
    return bool(manifest["checksum"] == _checksum_of(manifest["parts"]))


def checksum(parts: Mapping[str, pa.Table]) -> str:
    """Return the checksum of a directory with these parts."""
    described = {}
    for name, table in parts.items():
        sink = pa.BufferOutputStream()
        _write_part(sink, table)
        sha256 = hashlib.sha256(sink.getvalue()).hexdigest()
        described[name] = {"sha256": sha256}
    return _checksum_of(described)


def sha256_of_file(path: str | os.PathLike[str]) -> str:
    """Return the SHA-256 of a file as hexadecimal digits."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _write_part(sink: Any, table: pa.Table) -> None:
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table.combine_chunks())


def _checksum_of(parts: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the checksum of all parts, from the ``sha256`` of each."""
    lines = "".join(f"{name}\t{parts[name]['sha256']}\n" for name in sorted(parts))
    return hashlib.sha256(lines.encode()).hexdigest()


def _damaged(file: Path, message: str) -> StoreError:
    fix = "Restore the directory from a copy, or create it again from its sources."
    return StoreError(message, code="damaged", where=file, fix=fix)


def _must_be_replaced(path: Path, kind: str, *, overwrite: bool) -> bool:
    """Return whether there is a directory to replace; raise if it must not be replaced."""
    if not os.path.lexists(path):
        return False
    if path.is_dir() and not any(path.iterdir()):
        return False
    strangers = [path.name]
    with suppress(StoreError):
        manifest = read_manifest(path)
        if manifest["kind"] == kind:
            strangers = _strangers(path, manifest)
    if overwrite and not strangers:
        return True
    if strangers:
        message = f"'{strangers[0]}' is not part of a saved {kind} and would be deleted"
        fix = "Choose an empty or a new directory."
    else:
        message = f"a saved {kind} is already here"
        fix = "Choose another path, or use --overwrite."
    raise StoreError(message, code="exists", where=path, fix=fix)


def _strangers(path: Path, manifest: Mapping[str, Any]) -> list[str]:
    """Return the entries of a directory that were not written with its manifest."""
    own = {MANIFEST, *(part["file"] for part in manifest["parts"].values())}
    own |= set(manifest["meta"].get("files", ()))
    return [entry.name for entry in path.iterdir() if entry.name not in own and not _is_ours(entry)]


def _is_ours(entry: Path) -> bool:
    """Whether an entry was written by this program, or contains only such directories."""
    if entry.is_symlink() or not entry.is_dir():
        return False
    if (entry / MANIFEST).is_file():
        return not _strangers(entry, read_manifest(entry))
    return all(_is_ours(inner) for inner in entry.iterdir())


def _put(temporary: Path, path: Path, kind: str, *, replaces: bool) -> None:
    """Rename a new directory to its path, unless something was put there in the meantime."""
    replaced = temporary
    try:
        if replaces:
            replaced = _exchange(temporary, path)
            # Nobody else writes here, so this second check is final.
            _must_be_replaced(replaced, kind, overwrite=True)
        else:
            temporary.rename(path)  # A directory can replace nothing but an empty directory.
    except (StoreError, OSError) as error:
        if isinstance(error, StoreError):
            shutil.rmtree(_exchange(replaced, path), ignore_errors=True)
        elif error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise
        message = (
            f"something else was written here while the {kind} was being made; it is unchanged"
        )
        fix = "Choose another path, or move it elsewhere and rerun the command."
        raise StoreError(message, code="destination-changed", where=path, fix=fix) from error
    flush_parent(path)
    shutil.rmtree(replaced, ignore_errors=True)


def _exchange(new: Path, path: Path) -> Path:
    """Put a directory at a path, and return the new path of the one that was there."""
    if _exchanged(new, path):
        return new
    # Without an atomic exchange, nothing is at the path for a moment.
    aside = path.rename(path.parent / f".{path.name}.{secrets.token_hex(6)}.old")
    try:
        new.rename(path)
    except OSError:
        aside.rename(path)
        raise
    return aside


def _exchanged(first: Path, second: Path) -> bool:
    """Swap the names of two directories atomically; return False if the system cannot."""
    if sys.platform != "linux":
        return False
    with suppress(AttributeError, OSError):
        renameat2 = ctypes.CDLL(None).renameat2
        status = renameat2(
            _AT_WORKING_DIRECTORY,
            os.fsencode(first),
            _AT_WORKING_DIRECTORY,
            os.fsencode(second),
            _RENAME_EXCHANGE,
        )
        return bool(status == 0)
    return False
