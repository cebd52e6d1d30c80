"""One checkpoint as a file: tensors and plain values, and nothing that runs when it is read."""

from __future__ import annotations

import hashlib
import io
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, cast

import torch
from torch import Tensor, nn

from deltacell.errors import InputError, StoreError

SCHEMA_VERSION = 1


def write_checkpoint(
    path: Path, state: Mapping[str, Any], *, step: int, epoch: int, metric: float | None
) -> str:
    """Write a state and where it was taken, and return the SHA-256 of the file."""
    payload = {
        _MARK: SCHEMA_VERSION,
        "step": step,
        "epoch": epoch,
        "metric": metric,
        "state": plain_state(state),
    }
    with path.open("wb") as file:
        sink = _HashingFile(file)
        try:
            torch.save(payload, cast(IO[bytes], sink))
        except Exception:
            # PyTorch hides a full disk behind an error about a position in the file.
            if sink.error is not None:
                raise sink.error from None
            raise
    return sink.sha256


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Return ``step``, ``epoch``, ``metric`` and ``state`` of a file, its tensors on the CPU.

    A file that is not one of ours is refused, and nothing in it is executed, whatever it holds.
    """
    if not zipfile.is_zipfile(path):
        with path.open("rb") as file:
            begins = file.read(2)
        if begins[:1] == pickle.PROTO and len(begins) == 2 and begins[1] <= 5:
            raise StoreError(
                "refused: this is a bare pickle, which could run code when it is read", where=path
            )
        raise StoreError(_NOT_WHOLE, where=path)
    try:
        payload = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # whatever damaged bytes lead to
        unsafe = _unsafe_names(path)
        if unsafe:
            raise StoreError(
                f"refused: the file asks for {', '.join(unsafe)} when it is read, and a checkpoint "
                "holds nothing but tensors, numbers, text, lists and dicts",
                where=path,
            ) from error
        raise StoreError(_NOT_WHOLE, where=path) from error
    if not isinstance(payload, dict) or _MARK not in payload:
        raise StoreError("this is not a checkpoint of deltacell's", where=path)
    if payload[_MARK] != SCHEMA_VERSION:
        raise StoreError(
            f"a checkpoint of schema version {payload[_MARK]}, and this program reads "
            f"{SCHEMA_VERSION}",
            where=path,
        )
    kinds = {"step": (int,), "epoch": (int,), "metric": (float, type(None)), "state": (dict,)}
    if not all(name in payload and type(payload[name]) in kinds[name] for name in kinds):
        raise StoreError(_NOT_WHOLE, where=path)
    try:
        # Whoever uses PyTorch may have told it to read more than what we write.
        plain_state(payload["state"])
    except InputError as error:
        raise StoreError(f"refused: {error.what}", where=path) from error
    return payload


def check_contents(path: Path) -> None:
    """Compare the contents with the checksums that the file itself holds."""
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
    except Exception as error:  # whatever damaged bytes lead to
        raise StoreError(_NOT_WHOLE, where=path) from error
    if damaged is not None:
        raise StoreError(_NOT_WHOLE, where=path)


def plain_state(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a state as it will be read, or say which key holds what cannot be saved.

    Ordered dicts become dicts, and parameters their tensors; tensors are not copied.

    Parameters
    ----------
    state
        Tensors, numbers, text, None, and lists, tuples and dicts of them, by name.
    """
    return {name: _plain(value, name) for name, value in state.items()}


_MARK = "deltacell_checkpoint"
_NOT_WHOLE = "the checkpoint is damaged, or this is not one"
_VALUES = (int, float, str, bool, type(None), Tensor)


class _HashingFile(io.BufferedIOBase):
    """A file that keeps the hash of what is written to it, and the first error."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._hash = hashlib.sha256()
        self.error: OSError | None = None

    def write(self, data: Any) -> int:
        try:
            written = self._file.write(data)
        except OSError as error:
            self.error = self.error or error
            raise
        self._hash.update(data)
        return written

    @property
    def sha256(self) -> str:
        return self._hash.hexdigest()


def _plain(value: Any, where: str) -> Any:
    kind = type(value)
    # Exact types: a numpy float is a float too, and could not be read again.
    if kind in _VALUES:
        return value
    if kind is nn.Parameter or kind is nn.Buffer:
        return value.detach()
    if kind in (list, tuple):
        return kind(_plain(one, f"{where}[{place}]") for place, one in enumerate(value))
    if kind in (dict, OrderedDict):
        for key in value:
            if type(key) not in (str, int):
                raise InputError(
                    f"'{where}' of a checkpoint's state has the key {key!r}, and keys have to be "
                    "text or whole numbers"
                )
        return {key: _plain(one, f"{where}.{key}") for key, one in value.items()}
    raise InputError(
        f"'{where}' of a checkpoint's state is a {kind.__module__}.{kind.__qualname__}, which "
        "cannot be saved; expected tensors, numbers, text, None, and lists, tuples and dicts of "
        "them"
    )


def _unsafe_names(path: Path) -> list[str]:
    """Return what a file would import, found without importing it."""
    try:
        return sorted(torch.serialization.get_unsafe_globals_in_checkpoint(str(path)))
    except Exception:  # whatever damaged bytes lead to
        return []
