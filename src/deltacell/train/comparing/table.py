"""The finished trials of a comparison on disk, so that a killed one resumes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import msgspec

from deltacell.base.errors import InputError
from deltacell.base.files import read_json, seal_of, write_json
from deltacell.train.comparing.trials import TrialRow

FILE = "trials.json"
_SCHEMA = 1


class TrialTable:
    """The finished trials, which are written anew, atomically, with every trial."""

    def __init__(self, folder: Path, meaning: Mapping[str, object]) -> None:
        """Open the table of a folder; one of another comparison raises."""
        self.folder = folder
        self.rows: list[TrialRow] = []
        # As JSON has it, where keys are text and tuples are lists.
        self._meaning = json.loads(json.dumps(meaning, default=str))
        if (folder / FILE).exists():
            self.rows = self._read()

    def _read(self) -> list[TrialRow]:
        path = self.folder / FILE
        data = read_json(path, what="the table of trials")
        is_intact = isinstance(data, dict) and data.get("seal") == seal_of(data)
        if not is_intact or data.get("schema") != _SCHEMA:
            what = "the table of trials was edited or damaged after it was written"
            fix = "Delete it to begin again."
            raise InputError(what, code="broken-seal", where=path, fix=fix)
        if data["meaning"] != self._meaning:
            keys = _differing_keys(data["meaning"], self._meaning)
            what = f"the directory has trials of another comparison, which differs in {keys}"
            fix = "Choose another directory with --out, or delete it."
            raise InputError(what, code="other-comparison", where=self.folder, fix=fix)
        return msgspec.convert(data["trials"], list[TrialRow])

    def add(self, row: TrialRow) -> None:
        """Write the table with another finished trial."""
        rows = [*self.rows, row]
        data = {
            "schema": _SCHEMA,
            "meaning": self._meaning,
            "trials": [asdict(finished) for finished in rows],
        }
        data["seal"] = seal_of(data)
        self.folder.mkdir(parents=True, exist_ok=True)
        write_json(self.folder / FILE, data, what="the table of trials")
        self.rows = rows

    def of(self, arm: str) -> list[TrialRow]:
        """Return the trials of an arm in their order."""
        return [row for row in self.rows if row.arm == arm]

    def has(self, arm: str, turn: int) -> bool:
        """Return whether a trial has finished, or an earlier one of its arm has failed."""
        return any(row.turn == turn or row.error is not None for row in self.of(arm))

    @property
    def seconds(self) -> float:
        """The seconds that all finished trials took."""
        return sum(row.seconds for row in self.rows)


def _differing_keys(before: Mapping[str, object], now: Mapping[str, object]) -> str:
    """Return the first keys by which two meanings differ."""
    keys: list[str] = []
    for name in dict.fromkeys([*before, *now]):
        of_before = before.get(name)
        of_now = now.get(name)
        if isinstance(of_before, dict) and isinstance(of_now, dict):
            differing = [k for k in of_now if of_now[k] != of_before.get(k)]
            keys += [f"{key} of {name.upper()}" for key in sorted(differing)]
        elif of_before != of_now:
            keys.append(name)
    return _first_of(keys)


def _first_of(keys: Sequence[str], most: int = 3) -> str:
    more = f" and {len(keys) - most} more" if len(keys) > most else ""
    return ", ".join(keys[:most]) + more
