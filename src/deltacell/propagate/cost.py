"""What propagation costs on a machine: rates, measured once and kept."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import pooch
import torch
from torch.nn import functional

from deltacell.errors import InputError, StoreError
from deltacell.files import write_json
from deltacell.propagate.gradients import gradients_of
from deltacell.propagate.product import SparseMatrix, multiply
from deltacell.propagate.restricted import Entries, picked_rows
from deltacell.propagate.workers import in_workers

SCHEMA = 1
"""Of the file that rates are kept in; another one is not read."""

NEAR_NUMBERS = 2**19
"""Vectors of so many numbers stay in a core's cache while a sparse matrix is gone through."""


@dataclass(frozen=True)
class Rates:
    """Seconds that one unit of each kind of work takes one thread while the others work too.

    What is here when nothing is given is typical of a server's core, and good enough to choose by.

    Parameters
    ----------
    entry
        An entry of a sparse matrix times one number of a vector, where the vectors stay in cache.
    far_entry
        The same where they do not.
    flop_forward
        A floating-point operation of the row-wise part, with all that lies between those.
    flop_backward
        One of the same in the backward, where it is computed again, and both its gradients.
    moved
        A number that is gathered from a list of rows, or added to one.
    picked
        A row picked out of a sparse matrix, on the host.
    found
        An entry of a list of differences, made on the host.
    call
        A call that computes nothing.
    """

    entry: float = 3.7e-11
    far_entry: float = 1e-10
    flop_forward: float = 1.7e-11
    flop_backward: float = 4.5e-11
    moved: float = 4e-10
    picked: float = 8e-7
    found: float = 6e-8
    call: float = 4e-6

    def product(self, n_entries: float, width: int, numbers: int) -> float:
        """Return the seconds of a product of a sparse matrix and vectors.

        Parameters
        ----------
        n_entries
            Of the matrix.
        width
            Of the vectors, those of all mutants of a tile side by side.
        numbers
            In all vectors.
        """
        return n_entries * width * (self.entry if numbers <= NEAR_NUMBERS else self.far_entry)

    def row_wise(self, flop: float) -> float:
        """Return the seconds of the row-wise part, forward and backward."""
        return flop * (self.flop_forward + self.flop_backward)

    def to_json(self) -> dict[str, float]:
        """Return what `from_json` reads."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Rates:
        """Inverse of `to_json`; a rate too many, too few or not above 0 is an error."""
        names = {f.name for f in fields(cls)}
        if set(values) != names:
            differ = ", ".join(sorted(names ^ set(values)))
            raise InputError(f"rates of another version: {differ} are in one and not in the other")
        for name, value in values.items():
            if not isinstance(value, (int, float)) or not 0 < value < float("inf"):
                raise InputError(f"the rate '{name}' is {value!r}; expected seconds above 0")
        return cls(**{name: float(value) for name, value in values.items()})


def rates_here(device: torch.device, dtype: torch.dtype, workers: int) -> Rates:
    """Return the rates of this machine, measured now or on an earlier day.

    They are kept in the user's cache directory, by machine, version of PyTorch, device, type and
    number of threads. Where nothing can be kept, they are measured again.

    Parameters
    ----------
    device, dtype
        What is computed with.
    workers
        Threads that work side by side.
    """
    made_for = _made_for(device, dtype, workers)
    path = _path(made_for)
    kept = _read(path, made_for)
    if kept is not None:
        return kept
    rates = measure_rates(device, dtype, workers)
    _write(path, {"schema": SCHEMA, "made_for": made_for, "rates": rates.to_json()})
    return rates


def measure_rates(device: torch.device, dtype: torch.dtype, workers: int) -> Rates:
    """Measure the rates in some threads at once, and return the mean over threads.

    Parameters
    ----------
    device, dtype, workers
        As in `rates_here`.
    """
    found = in_workers(lambda _, i: _Measured(device, dtype, i).rates(), range(workers), workers)
    means = {f.name: float(np.mean([getattr(r, f.name) for r in found])) for f in fields(Rates)}
    return Rates(**means)


class _Measured:
    """What one thread measures: the best of some tries of each."""

    WIDTH, ROWS, DEGREE, TRIES = 64, 4096, 64, 5

    def __init__(self, device: torch.device, dtype: torch.dtype, seed: int) -> None:
        self.device, self.dtype = device, dtype
        self.random = np.random.default_rng(seed)

    def rates(self) -> Rates:
        near, far = self.ROWS, 16 * self.ROWS
        matrix = self._matrix(near)
        forward, backward = self._flop()
        return Rates(
            entry=self._entry(matrix),
            far_entry=self._entry(self._matrix(far)),
            flop_forward=forward,
            flop_backward=backward,
            moved=self._moved(),
            picked=self._picked(matrix),
            found=self._found(matrix),
            call=self._call(),
        )

    def _entry(self, matrix: SparseMatrix) -> float:
        x = self._numbers(matrix.shape[1], self.WIDTH)
        return self._best(lambda: multiply(matrix, x)) / (matrix.n_entries * self.WIDTH)

    def _flop(self) -> tuple[float, float]:
        n, h = 2048, self.WIDTH
        x, by = self._numbers(n, h), self._numbers(n, h)
        first, second, scale, shift = (
            self._numbers(*shape).requires_grad_() for shape in ((h, h), (h, h), (h,), (h,))
        )
        flop = 2 * 2 * n * h * h

        def forward() -> torch.Tensor:
            inner = functional.gelu(torch.addmm(shift, x, first))
            normed = functional.layer_norm(torch.addmm(shift, inner, second), (h,), scale, shift)
            return functional.gelu(normed)

        def no_gradient() -> None:
            with torch.no_grad():
                forward()

        def backward() -> None:
            with torch.enable_grad():
                made = forward()
            gradients_of(made, [first, second, scale, shift], by)

        return self._best(no_gradient) / flop, self._best(backward) / flop

    def _moved(self) -> float:
        x = self._numbers(self.ROWS, self.WIDTH)
        half = np.sort(self.random.choice(self.ROWS, self.ROWS // 2, replace=False))
        rows = torch.from_numpy(half).to(self.device)

        def there_and_back() -> None:
            x.index_add_(0, rows, x.index_select(0, rows))

        return self._best(there_and_back) / (2 * len(rows) * self.WIDTH)

    def _picked(self, matrix: SparseMatrix) -> float:
        rows = np.arange(0, self.ROWS, 8)
        return self._best(lambda: picked_rows(matrix, rows)) / len(rows)

    def _found(self, matrix: SparseMatrix) -> float:
        sources = np.arange(0, self.ROWS, self.ROWS // 32)
        n_entries = len(Entries.of(matrix, sources).target)

        def find() -> None:
            entries = Entries.of(matrix, sources)
            entries.by_target(self.ROWS, entries.target)
            entries.by_source(len(sources), entries.target)

        return self._best(find) / max(n_entries, 1)

    def _call(self) -> float:
        x = self._numbers(1, 1)
        return self._best(lambda: [x.add(x) for _ in range(64)]) / 64

    def _matrix(self, n: int) -> SparseMatrix:
        columns = self.random.integers(0, n, (n, self.DEGREE * self.ROWS // n), dtype=np.int32)
        columns.sort(1)
        indptr = np.arange(n + 1, dtype=np.int64) * columns.shape[1]
        return SparseMatrix(indptr, columns.ravel(), n_columns=n)

    def _numbers(self, *shape: int) -> torch.Tensor:
        numbers = self.random.standard_normal(shape)
        return torch.from_numpy(numbers).to(self.device, self.dtype)

    def _best(self, work: Callable[[], object]) -> float:
        work()
        seconds = []
        for _ in range(self.TRIES):
            self._wait()
            began = time.perf_counter()
            work()
            self._wait()
            seconds.append(time.perf_counter() - began)
        return min(seconds)

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def _made_for(device: torch.device, dtype: torch.dtype, workers: int) -> dict[str, Any]:
    name = platform.processor() or platform.machine()
    if device.type == "cuda":
        name = torch.cuda.get_device_name(device)
    return {
        "machine": platform.node(),
        "cores": os.cpu_count(),
        "device": device.type,
        "name": name,
        "torch": torch.__version__,
        "dtype": str(dtype),
        "threads": torch.get_num_threads(),
        "workers": workers,
    }


def _path(made_for: dict[str, Any]) -> Path:
    key = hashlib.sha256(json.dumps(made_for, sort_keys=True).encode()).hexdigest()[:16]
    return Path(pooch.os_cache("deltacell")) / "rates" / f"{key}.json"


def _read(path: Path, made_for: dict[str, Any]) -> Rates | None:
    try:
        kept = json.loads(path.read_text())
        if kept["schema"] == SCHEMA and kept["made_for"] == made_for:
            return Rates.from_json(kept["rates"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError, InputError):
        # Absent or damaged: measuring again is all that it takes.
        return None
    return None


def _write(path: Path, kept: dict[str, Any]) -> None:
    # A home that cannot be written to only costs the time to measure again.
    with suppress(OSError, StoreError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, kept, what="the rates of this machine")
