"""``metrics.csv``: one row an epoch."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from deltacell.errors import InputError
from deltacell.files import write_text
from deltacell.profile.record import CHECK, check_of_row, read_metrics

COLUMNS = (
    "epoch",
    "step",
    "seconds",
    "samples_per_s",
    "lr",
    "train_loss",
    "validation_loss",
    "validation_pearson",
    "validation_spearman",
    "validation_mse",
)


class MetricsFile:
    """The file, which is written anew and whole with every row.

    Columns are those of any row: first `COLUMNS` in their order, then the others as they came up. A
    row that lacks one has nothing there. The last column, ``crc32``, shows damage.

    Parameters
    ----------
    path
        The file; made with the first row. One that is there is continued.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._rows = self._read()

    @property
    def rows(self) -> list[dict[str, float | None]]:
        """The rows so far; what was not measured is left out or None."""
        return [dict(row) for row in self._rows]

    def append(self, row: Mapping[str, float | None]) -> None:
        """Add a row, whose ``step`` is after that of the last.

        A row of the same epoch and step takes the place of the last: the end of that epoch was
        done again, because a run was stopped just before it and killed just after.

        Parameters
        ----------
        row
            Numbers by column; ``epoch`` and ``step`` are whole and always there.
        """
        for name in ("epoch", "step"):
            if type(row[name]) is not int:
                raise TypeError(f"'{name}' of a row of metrics has to be an int, not {row[name]!r}")
        for name, value in row.items():
            if not name or not name.isprintable() or name == CHECK:
                raise ValueError(f"{name!r} cannot be the name of a column")
            if value is not None and not isinstance(value, (int, float)):
                raise TypeError(
                    f"'{name}' of a row of metrics has to be a number, not {type(value).__name__}"
                )
        before = self._rows
        if before and all(before[-1][name] == row[name] for name in ("epoch", "step")):
            before = before[:-1]
        if before and _step(row) <= _step(before[-1]):
            raise ValueError(
                f"a row of step {row['step']} cannot come after one of step "
                f"{before[-1]['step']}; call truncate_after first"
            )
        self._write([*before, dict(row)])

    def truncate_after(self, step: int) -> None:
        """Drop the rows of steps after this one, which a resumed run makes again."""
        kept = [row for row in self._rows if _step(row) <= step]
        if len(kept) < len(self._rows):
            self._write(kept)

    def _read(self) -> list[dict[str, float | None]]:
        if not self.path.exists():
            return []
        try:
            rows = read_metrics(self.path).to_dicts()
            with self.path.open("rb") as file:
                if not file.readline().rstrip().endswith(f",{CHECK}".encode()):
                    raise InputError(f"there is no column '{CHECK}'", where=self.path, line=1)
            return rows
        except InputError as error:
            raise InputError(
                error.what,
                where=error.where,
                line=error.line,
                fix="Mend it, or move it away to go on with a new one.",
            ) from error

    def _write(self, rows: list[dict[str, float | None]]) -> None:
        names = list(dict.fromkeys([*COLUMNS, *(name for row in rows for name in row)]))
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow([*names, CHECK])
        crc = check_of_row(names, 0)
        for row in rows:
            written = [_written(row.get(name)) for name in names]
            crc = check_of_row(written, crc)
            writer.writerow([*written, crc])
        write_text(self.path, text.getvalue(), what="the metrics")
        self._rows = rows


def _step(row: Mapping[str, float | None]) -> int:
    return cast(int, row["step"])


def _written(value: float | None) -> str:
    if value is None:
        return ""
    return str(value) if type(value) is int else repr(float(value))
