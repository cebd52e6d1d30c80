"""Gene sets as people give them: tables, arrays, lists and lines of text, as lists of names."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import polars as pl

from deltacell.base.errors import InputError

LONGEST_QUOTED = 256  # characters of a name in quotation marks

# A comment begins where a name could begin, so that A#1 is a name.
_WORD = re.compile(
    r"(?P<comment>#.*)"
    rf'|"(?P<double>(?:[^"]|""){{1,{LONGEST_QUOTED}}})"(?=[\s,;]|$)'
    rf"|'(?P<single>[^']{{1,{LONGEST_QUOTED}}})'(?=[\s,;]|$)"
    r"|(?P<plain>[^\s,;\"'][^\s,;]*(?:,[^\s,;\"'][^\s,;]*)*)",
)
_NEEDS_QUOTES = re.compile(r"[\s,;\"']|^#")
_FIX = "Pass a list of tuples such as [('HO', 'STE2')], or a data frame with a gene per column."


def gene_sets_of(sets: object) -> list[list[str]]:
    """Return the names of each gene set.

    `sets` is a pandas or polars data frame or a two-dimensional array, in which each row is a set
    with a gene per column; or an iterable of sets, each of which is a sequence of names. Missing
    values of a row are skipped, so that pairs and triples fit into one table. A name where a set
    belongs is an error, because its letters are not genes.
    """
    if isinstance(sets, str | bytes):
        raise _not_a_set(sets, 0)
    rows = [_names(genes, row) for row, genes in enumerate(_rows(sets))]
    for row, names in enumerate(rows):
        if not names:
            what = f"set {row + 1} has no gene"
            raise InputError(what, code="empty-set", fix=_FIX, row=row)
    return rows


def line_of_set(names: Iterable[str]) -> str:
    """Return a set as a line of a file that `words_of_line` reads back."""
    return " ".join(map(_quoted, names))


def _no_name_is_known(name: str) -> bool:
    return False


def words_of_line(line: str, is_known: Callable[[str], bool] = _no_name_is_known) -> list[str]:
    """Return the names in a line, which are separated by spaces, tabs, commas or semicolons.

    A name with one of these is in quotation marks. Commas within a known name, as in ARG5,6, need
    no marks unless its parts are known names too. A ``#`` that follows no other character of a name
    begins a comment, unless the name that it would begin is known.
    """
    words: list[str] = []
    position = 0
    while match := _WORD.search(line, position):
        position = match.end()
        kind = match.lastgroup
        text = match[kind] if kind else ""
        if kind == "comment" and is_known(first_word := re.split(r"[\s,;]", text, maxsplit=1)[0]):
            words.append(first_word)
            position = match.start() + len(first_word)
        elif kind == "double":
            words.append(text.replace('""', '"').strip())
        elif kind == "single":
            words.append(text.strip())
        elif kind == "plain":
            words += _split_at_commas(text.strip("\"'"), is_known)
    return [word for word in words if word]


def _split_at_commas(text: str, is_known: Callable[[str], bool]) -> list[str]:
    parts = text.split(",")
    if len(parts) == 1 or all(map(is_known, parts)):
        return parts
    words = []
    start = 0
    while start < len(parts):
        ends = range(len(parts), start, -1)
        longest = next((e for e in ends if is_known(",".join(parts[start:e]))), start + 1)
        words.append(",".join(parts[start:longest]))
        start = longest
    return words


def _quoted(name: str) -> str:
    if _NEEDS_QUOTES.search(name) is None:
        return name
    doubled = name.replace('"', '""')
    return f'"{doubled}"'


def _rows(sets: Any) -> Iterator[object]:
    """Yield what stands for each set; a row of a table is a tuple."""
    if isinstance(sets, pl.LazyFrame):
        sets = sets.collect()
    if isinstance(sets, pl.DataFrame):
        return sets.iter_rows() if sets.width > 1 else _only_column(sets.to_series().to_list())
    if hasattr(sets, "itertuples"):
        _check_no_named_index(sets)
        rows = list(sets.itertuples(index=False, name=None))
        return iter(rows) if sets.shape[1] > 1 else _only_column([row[0] for row in rows])
    if isinstance(sets, pl.Series | np.ndarray):
        sets = sets.tolist() if isinstance(sets, np.ndarray) else sets.to_list()
    if isinstance(sets, dict) or not isinstance(sets, Iterable):
        what = f"gene sets cannot be read from an object of type {type(sets).__name__}"
        raise InputError(what, code="not-sets", fix=_FIX)
    return iter(sets)


def _check_no_named_index(frame: Any) -> None:
    """Raise if the index of a pandas frame has a name: it may be a column of genes."""
    names = [str(name) for name in frame.index.names if name is not None]
    if names:
        what = f"the index of the data frame ({', '.join(names)}) is not read as a column of genes"
        fix = "If it has genes, pass frame.reset_index(), otherwise frame.reset_index(drop=True)."
        raise InputError(what, code="named-index", fix=fix)


def _only_column(values: Sequence[object]) -> Iterator[object]:
    """Yield the sets of a table with one column, which has one gene or a list of genes per row."""
    return iter([(value,) if isinstance(value, str) else value for value in values])


def _names(genes: object, row: int) -> list[str]:
    if isinstance(genes, str | bytes) or not isinstance(genes, Iterable):
        raise _not_a_set(genes, row)
    names = []
    for gene in genes:
        if _is_missing(gene):
            continue
        # Identifiers of NCBI are numbers.
        is_integer = isinstance(gene, int | np.integer) and not isinstance(gene, bool)
        if not isinstance(gene, str) and not is_integer:
            what = f"set {row + 1} has {gene!r}, which is not a gene name"
            raise InputError(what, code="not-a-name", fix=_FIX, row=row)
        names.append(str(gene))
    return names


def _is_missing(gene: object) -> bool:
    if isinstance(gene, float):
        return math.isnan(gene)
    is_empty = isinstance(gene, str) and not gene.strip()
    # pandas has a missing value of its own, whose type has this name.
    return gene is None or is_empty or type(gene).__name__ in ("NAType", "NaTType")


def _not_a_set(genes: object, row: int) -> InputError:
    what = f"set {row + 1} is {genes!r:.80}, which is not a set of genes"
    return InputError(what, code="not-a-set", fix=_FIX, row=row)
