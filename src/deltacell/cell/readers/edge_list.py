"""Plain edge lists: two genes per row, and perhaps a weight; forms as in `deltacell.sheet`."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl

from deltacell.cell.readers.edges import NamedEdges
from deltacell.cell.readers.names import stem_of
from deltacell.errors import InputError
from deltacell.sheet import (
    MISSING,
    BadRows,
    ColumnNames,
    Sheet,
    forms_in,
    is_missing,
    is_number,
    numbers_of,
    sheets,
    word,
)

NAME = "edge_list"

_GENE = re.compile(r"[A-Za-z0-9](?:[\w.:@'()-]*[\w')])?")
_WEIGHT = re.compile(
    r"(?:edge)?weights?|w|confidence|(?:combined|string)score|correlation|pearsonr?|pcc|similarity"
    r"|probability|llr"
)
# Words that no screen has for its genes, beside which a score is a weight.
_NODE = re.compile(
    r"(?:source|target|from|to|(?:protein|node|interactor|regulator|tf|factor)\w*|u|v)"
)
_GENE_WORD = re.compile(
    r"(?:gene|orf|name|id|systematic|query|array)(?:name|id|orf|a|b|i|j|x|y|\d|source|target)*"
    r"|[abijxy]"
)


class _Form(NamedTuple):
    sheet: Sheet
    at: int | None  # the row of the header
    columns: tuple[int, ...]  # of source, target and perhaps weight


def recognise(path: str | os.PathLike[str], columns: Sequence[ColumnNames] = ()) -> bool:
    """Whether a file has two names per row, with or without a weight.

    Without a header there are two or three columns, and no weight is below 0, as scores of a
    screen are. A header has words such as ``source``, ``gene1`` or ``orf_b`` for the names and
    ``weight`` for the number; beside words that only networks have (``source``, ``protein1``, …)
    it may be ``score``. Of ten rows two may be something else, which `read` then names.
    """
    return bool(_forms(path, columns))


def asks(path: str | os.PathLike[str]) -> str | None:
    """Return why a table of gene, gene and number is not taken for a network; None if it is none.

    Its number may be the score of a screen, which a model must not see as a network.
    """
    for sheet in sheets(path):
        for at, header in sheet.headers():
            rows = sheet.rows[at:]
            if len(rows[0]) != 3 or (sheet.separator == " " and len(rows) < 3):
                continue
            if _are_edges(rows, 3, sheet.separator):
                return (
                    "it has two genes and a number per row and no header. Say what the number is: "
                    "--columns gene1=1,gene2=2,score=3 for a screen, weight=3 for a network"
                )
            if not is_number(rows[0][2]) and _are_edges(rows[1:], 3, sheet.separator):
                one, other, number = header
                return (
                    f"it has two genes and a number per row, and it is not known what '{number}' "
                    f'is. Say so: --columns "gene1={one},gene2={other},score={number}" for a '
                    f"screen, weight={number} for a network"
                )
    return None


def read(
    path: str | os.PathLike[str],
    *,
    name: str | None = None,
    directed: bool = False,
    columns: Sequence[ColumnNames] = (),
) -> list[NamedEdges]:
    """Return the relation of a file; of a workbook, one for each sheet that is an edge list.

    Rows whose weight is missing are left out and counted. All rows that cannot be read are
    reported at once.
    """
    path = Path(path)
    forms = _forms(path, columns)
    if not forms:
        raise InputError(
            asks(path) or "two columns of genes, and perhaps one of weights, were expected",
            code="not-an-edge-list",
            where=path,
            fix="Call them gene1, gene2 and weight: docs/how-to/networks.md.",
        )
    stem = name or stem_of(path.name)
    return [
        _read(form, f"{stem}_{form.sheet.name}" if len(forms) > 1 else stem, directed)
        for form in forms
    ]


def _read(form: _Form, name: str, directed: bool) -> NamedEdges:
    bad = BadRows(form.sheet.path)
    table, notes = form.sheet.below(form.at, bad)
    if not len(table):
        bad.refuse()
        raise InputError("there is nothing below the header", code="empty-file", where=table.path)
    source, target, *rest = (table.frame.columns[i] for i in form.columns)
    weight, kept = None, np.ones(len(table), dtype=bool)
    if rest:
        weight, wrong = numbers_of(table.frame[rest[0]], decimal_comma=form.sheet.decimal_comma)
        what = f"the weight in column '{rest[0]}' is not a finite number"
        bad.add_where(what, table, rest[0], wrong)
        kept = ~np.isnan(weight)
    for column in (source, target):
        unnamed = is_missing(table.frame[column])
        bad.add(f"column '{column}' holds no gene name", table.lines[unnamed], [""] * unnamed.sum())
    bad.refuse()
    if not kept.any():
        raise InputError(
            "no row has a weight, and there is a column for it",
            code="no-weight",
            where=table.path,
            fix="Remove that column: a network needs no weights.",
        )
    return NamedEdges.of(
        table,
        NAME,
        name,
        table.frame[source].str.strip_chars().filter(pl.Series(kept)),
        table.frame[target].str.strip_chars().filter(pl.Series(kept)),
        None if weight is None else weight[kept],
        directed=directed,
        rows=np.flatnonzero(kept),
        notes=notes,
        left_out={"no weight": int((~kept).sum())},
    )


def _forms(path: str | os.PathLike[str], given: Sequence[ColumnNames]) -> list[_Form]:
    return forms_in(path, [partial(_as_told, given), _by_words, _without_header])


def _as_told(given: Sequence[ColumnNames], sheet: Sheet) -> _Form | None:
    for names in given:
        if "weight" in names.names and len(names.genes) == 2 and (found := names.find(sheet)):
            at, positions = found
            return _Form(sheet, at, tuple(positions[key] for key in (*names.genes, "weight")))
    return None


def _by_words(sheet: Sheet) -> _Form | None:
    for at, header in sheet.headers():
        words = [word(name) for name in header]
        while words and words[-1].startswith("column"):
            words.pop()
        nodes = [i for i, w in enumerate(words) if _NODE.fullmatch(w)]
        genes = [i for i, w in enumerate(words) if _NODE.fullmatch(w) or _GENE_WORD.fullmatch(w)]
        if len(genes) != 2:
            genes = genes[:2] if genes[:2] == [0, 1] else []
        weights = [i for i, w in enumerate(words) if _WEIGHT.fullmatch(w)]
        if len(genes) == len(nodes) == 2 and not weights:
            weights = [i for i, w in enumerate(words) if w == "score"]
        if len(genes) != 2 or len(weights) > 1 or (len(words) > 2 and not weights):
            continue
        columns = (*genes, *weights)
        rows = [[row[i] for i in columns] for row in sheet.rows[at + 1 :] if len(row) >= len(words)]
        alone = not at and len(sheet.rows) == 1
        if alone or _are_edges(rows, len(columns), sheet.separator):
            return _Form(sheet, at, columns)
    return None


def _without_header(sheet: Sheet) -> _Form | None:
    width = len(sheet.rows[0])
    if width not in (2, 3) or (sheet.separator in (" ", "") and len(sheet.rows) < 2):
        return None
    if any(is_number(n) and n[0] in "-\u2212" for row in _named(sheet.rows, width) for n in row):
        return None
    if _are_edges(sheet.rows, width, sheet.separator):
        return _Form(sheet, None, tuple(range(width)))
    return None


def _named(rows: Sequence[Sequence[str]], width: int) -> list[Sequence[str]]:
    """Return what follows the two names in rows that begin with two names."""
    return [
        row[2:]
        for row in rows
        if len(row) == width
        and all(_GENE.fullmatch(name) and not is_number(name) for name in row[:2])
    ]


def _are_edges(rows: Sequence[Sequence[str]], width: int, separator: str) -> bool:
    """Whether most rows are edges; those without their number count if another has one."""
    pairs = _named(rows, width)
    whole = sum(all(map(is_number, numbers)) for numbers in pairs)
    absent = sum(any(number.lower() in MISSING for number in numbers) for numbers in pairs)
    wrong_at_most = 0 if separator == " " else len(rows) // 5
    return whole > 0 and len(rows) - whole - absent <= wrong_at_most
