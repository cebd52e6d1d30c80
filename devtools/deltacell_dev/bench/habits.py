"""Habits of people and their programs that change the names in a table without a trace.

A case writes a table in which some names were changed as a spreadsheet, an editor or a copy from a
web page does it. Reading must give the original names, or drop or refuse the row: a name that was
never measured must not become a gene.
"""

from __future__ import annotations

import random
import shutil
import unicodedata
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from deltacell.cell import Genes
from deltacell.data.import_folder import import_folder
from deltacell.ranking.given_sets import line_of_set
from deltacell.ranking.source import read_sets

Cases = Iterator[tuple[Callable[[], Any], Any]]

NAMES = (
    *("YAL001C", "YAL002W", "YDL227C", "SEPT7", "MARCH1", "HLA-A"),
    *("NKX2-1", "sep-1", "Tub\u00e9"),
)
_HIDDEN = (
    *("\ufeff", "\u200b", "\u200e", "\u202a", "\u2060", "\u00ad", "\u00a0"),
    *(" ", "\ufe0f", "\x07"),
)
_DAMAGED = ("7-Sep", "1-Mar", "Sep-07", "9/7/2024", "2024-03-01", "TRUE", "#REF!", "2.31E+13")
_QUOTED = ("ARG5,6", 'a"b', "a b", "#1", "A#1", "it's", "x;y")


def habits(artefacts: Path, kind: str, rng: random.Random) -> Cases:
    """Yield cases of tables as people keep and change them, each with its expected result."""
    folder = artefacts / "habits"
    while True:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        yield KINDS[kind](folder, rng)


def _changed_table(folder: Path, rng: random.Random) -> tuple[Callable[[], Any], Any]:
    """Return a call that tells whether all genes of a changed table are genes of the original."""
    rows = [[*rng.sample(NAMES, 2), f"{rng.gauss(0, 1):.3f}"] for _ in range(12)]
    for row in rng.sample(rows, 4):
        place = rng.randrange(2)
        match rng.randrange(4):
            case 0:
                cut = rng.choice((0, len(row[place])))
                row[place] = row[place][:cut] + rng.choice(_HIDDEN) + row[place][cut:]
            case 1:
                row[place] = rng.choice(_DAMAGED)
            case 2:
                # As macOS writes the names of files: a letter, and an accent of its own.
                row[place] = unicodedata.normalize("NFD", row[place])
            case _:
                row[place] = rng.choice("+;|/&").join(rng.sample(NAMES[:3], 2))
    text = "".join(",".join(row) + "\n" for row in [["gene1", "gene2", "score"], *rows])
    (folder / "screen.csv").write_text(text, encoding="utf-8")
    return partial(_has_only_known_genes, folder), True


def _has_only_known_genes(folder: Path) -> bool:
    return set(import_folder(folder).cell.genes) <= set(NAMES)


def _written_sets(folder: Path, rng: random.Random) -> tuple[Callable[[], Any], Any]:
    """Return a call that reads written sets back, and these sets."""
    genes = Genes([*NAMES, *_QUOTED])
    sets = {tuple(sorted(rng.sample(range(len(genes)), 2))) for _ in range(5)}
    file = folder / "sets.txt"
    lines = [line_of_set([genes[i] for i in pair]) for pair in sorted(sets)]
    file.write_text("\n".join(lines), encoding="utf-8")
    return partial(_pairs_of, file, genes), sorted(map(list, sets))


def _pairs_of(file: Path, genes: Genes) -> list[list[int]]:
    [pairs] = read_sets(file, genes)
    read: list[list[int]] = pairs.tolist()
    return read


KINDS = {"names in a table": _changed_table, "names in gene sets": _written_sets}
