"""A cell with its screens, as an import makes and saves them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import polars as pl

from deltacell import storage
from deltacell.base.errors import InputError
from deltacell.base.files import write_json
from deltacell.cell import Cell, Genes
from deltacell.screen.readers import tables
from deltacell.screen.readers.written import NamedParts
from deltacell.screen.screen import Screen

#: The file of an import with the counts of every source.
ACCOUNT = "account.json"


@dataclass(frozen=True)
class Imported:
    """A cell and screens over its genes, by study, with named splits of these screens."""

    cell: Cell
    screens: Mapping[str, Screen]
    left_alone: Mapping[str, str] = field(default_factory=dict)  # files not read, and why
    notes: Sequence[str] = ()
    splits: Mapping[str, NamedParts] = field(default_factory=dict)

    def account(self) -> dict[str, Any]:
        """Return what became of every file and row as a JSON-serialisable dict."""
        of_screens = chain.from_iterable(screen.sources for screen in self.screens.values())
        sources = [*self.cell.sources, *of_screens]
        return {
            "sources": [source.to_json() for source in sources],
            "left_alone": [{"file": file, "why": why} for file, why in self.left_alone.items()],
            "notes": list(self.notes),
        }

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write ``path/cell``, ``path/screens/NAME`` and the account, all of it or nothing."""
        for name in self.screens:
            if not name or Path(name).name != name or name.startswith("."):
                message = f"'{name}' cannot be the name of a screen and its folder"
                raise InputError(message, code="screen-name")
        account = self.account()
        with storage.new_directory(path, "import", overwrite=overwrite) as temporary:
            self.cell.save(temporary / "cell")
            for name, screen in self.screens.items():
                screen.save(temporary / "screens" / name)
            for name, (sets, parts) in self.splits.items():
                table = pl.DataFrame({"genes": sets, "part": parts}).to_arrow()
                storage.write(temporary / "splits" / name, "parts", {"sets": table}, {})
            write_json(temporary / ACCOUNT, account, what="the account")
            meta = {
                "files": [ACCOUNT],
                "screens": list(self.screens),
                "splits": list(self.splits),
                "left_alone": account["left_alone"],
                "notes": account["notes"],
            }
            storage.write_manifest(temporary, "import", {}, meta)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Imported:
        """Open an import; columns and arrays are memory-mapped."""
        path = Path(path)
        meta = storage.read(path, "import").meta
        cell = Cell.load(path / "cell")
        return cls(
            cell,
            {name: Screen.load(path / "screens" / Path(name).name) for name in meta["screens"]},
            {left["file"]: left["why"] for left in meta["left_alone"]},
            meta["notes"],
            {n: read_parts(path / "splits" / n, cell.genes) for n in meta.get("splits", ())},
        )


def read_parts(path: str | os.PathLike[str], genes: Genes) -> NamedParts:
    """Return the gene sets and their parts from an imported split or a table of these genes."""
    if not Path(path).is_dir():
        return tables.split_reader.read(path, is_known=genes.is_known)[0]
    sets = storage.read(path, "parts").parts["sets"]
    return NamedParts(sets["genes"].to_pylist(), sets["part"].to_pylist())


def open_screen(path: str | os.PathLike[str], name: str | None = None) -> Screen:
    """Open a screen, or a screen of an import by name; optional if there is only one."""
    path = Path(path)
    manifest = storage.read_manifest(path)
    if manifest["kind"] != "import" and name is None:
        return Screen.load(path)
    names = manifest["meta"].get("screens", ())
    if name is None and len(names) == 1:
        name = names[0]
    if name not in names:
        message = f"it has no screen '{name}'" if name else f"it has {len(names)} screens"
        fix = f"Choose from: {', '.join(names) or 'none'}."
        raise InputError(message, code="unknown-screen", where=path, fix=fix)
    return Screen.load(path / "screens" / Path(str(name)).name)
