"""Any delimited table, through a mapping that says which of its columns mean what."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import polars as pl

from deltacell.arrays import AnyArray, Ints, offsets_of
from deltacell.errors import InputError
from deltacell.screen.columns import PERTURBATIONS, PHENOTYPES, ROLES
from deltacell.screen.readers.fields import one_of
from deltacell.screen.readers.strains import perturbation_of
from deltacell.screen.readers.written import WrittenScreen
from deltacell.table import Table, open_text, read_table

NAME = "delimited"

#: What a column can be mapped to. Those of `PER_GENE` take a column a gene, or one in which the
#: values of all genes are joined; the others take one column.
PER_GENE = ("genes", "alleles", "perturbations")
PER_ROW = (
    "score",
    "sign",
    "standard_deviation",
    "p_value",
    "query_fitness",
    "array_fitness",
    "phenotype",
    "study",
)

_SIGNS = {"-1": -1, "-": -1, "negative": -1, "1": 1, "+1": 1, "+": 1, "positive": 1}
_NO_SIGN = {"0": 0, "": 0, "both": 0, "none": 0}


def recognise(head: Sequence[str], file_name: str) -> bool:
    """Return False: what the columns of any table mean cannot be told from its contents.

    Parameters
    ----------
    head
        First lines of the file.
    file_name
        Its name.
    """
    return False


def read(
    path: str | os.PathLike[str],
    *,
    columns: Mapping[str, str | Sequence[str]],
    separator: str | None = None,
    joined_by: str | None = None,
    roles: Sequence[str] | None = None,
    study: str | None = None,
    phenotype: str | None = None,
) -> WrittenScreen:
    """Read a table with a header.

    Parameters
    ----------
    path
        The file.
    columns
        What is in which column, as ``{"genes": ["a", "b"], "score": "eps"}``. ``genes`` and a
        ``score`` or a ``sign`` are needed. A genotype may leave gene columns empty.
    separator
        Between columns. Where not given, a tab if the header has one, else a semicolon, else a
        comma.
    joined_by
        What separates genes, alleles and perturbations that share a column. Where not given, any
        of ``;``, ``,``, ``|``, ``+``, ``/`` and spaces.
    roles
        The role of each gene, in order (``["query", "array"]``); unknown where not given.
    study
        What to call the study; the file's name where neither this nor a column is given.
    phenotype
        ``interaction`` where neither this nor a column is given.
    """
    text = open_text(path)
    if separator is None:
        separator = _separator(text.data.split(b"\n", 1)[0].decode("utf-8", errors="replace"))
    table = read_table(text, separator=separator)
    _check_mapping(columns, table)
    if not len(table):
        raise InputError("the screen is empty: there is a header and no row", where=table.path)
    names, offsets = _per_gene(table, columns["genes"], joined_by)
    alleles = _aligned(table, columns, "alleles", joined_by, offsets)
    perturbation = _aligned(table, columns, "perturbations", joined_by, offsets)
    if perturbation is None:
        perturbation = _told_by_allele(alleles, len(names))
    else:
        at = np.repeat(np.arange(len(table)), np.diff(offsets))
        one_of(perturbation, PERTURBATIONS, "perturbation", table, at)

    def strings(key: str) -> pl.Series | None:
        return table.strings(str(columns[key])).str.strip_chars() if key in columns else None

    def numbers(key: str, *, missing: bool = True) -> AnyArray | float:
        return table.floats(str(columns[key]), missing=missing) if key in columns else np.nan

    phenotypes = strings("phenotype") if phenotype is None else pl.Series([phenotype])
    if phenotypes is not None:
        one_of(phenotypes, PHENOTYPES, "phenotype", table if phenotype is None else None)
    return WrittenScreen(
        names,
        offsets,
        _roles(roles, offsets, table),
        perturbation,
        pl.repeat("", len(names), eager=True) if alleles is None else alleles,
        table.lines,
        table.path,
        table.sha256,
        NAME,
        study or file_stem(table.path),
        (phenotype or "interaction") if phenotypes is None or phenotype else phenotypes,
        score=numbers("score", missing=False),
        sign=_signs(table, str(columns["sign"])) if "sign" in columns else None,
        standard_deviation=numbers("standard_deviation"),
        p_value=numbers("p_value"),
        query_fitness=numbers("query_fitness"),
        array_fitness=numbers("array_fitness"),
        studies=strings("study") if study is None else None,
    )


def file_stem(path: Path) -> str:
    """Return the name of a file up to its first dot."""
    return path.name.split(".")[0] or path.name


def _separator(header: str) -> str:
    return next((s for s in ("\t", ";") if s in header), ",")


def _listed(value: str | Sequence[str]) -> list[str]:
    return [value] if isinstance(value, str) else list(value)


def _check_mapping(columns: Mapping[str, str | Sequence[str]], table: Table) -> None:
    unknown = [key for key in columns if key not in PER_GENE + PER_ROW]
    if unknown:
        raise InputError(
            f"a screen has no {', '.join(unknown)}; a column can be {', '.join(PER_GENE + PER_ROW)}"
        )
    if "genes" not in columns or not ("score" in columns or "sign" in columns):
        raise InputError(
            "the mapping must say which columns hold the genes and which the score or the sign; "
            f"it has {', '.join(columns) or 'nothing'}"
        )
    several = [key for key in PER_ROW if key in columns and not isinstance(columns[key], str)]
    if several:
        raise InputError(f"'{several[0]}' takes the name of one column, not {columns[several[0]]}")
    there = table.frame.columns
    absent = [name for value in columns.values() for name in _listed(value) if name not in there]
    if absent:
        raise InputError(
            f"there is no column {', '.join(repr(name) for name in absent)}; "
            f"there are {', '.join(repr(name) for name in there)}",
            where=table.path,
            line=1,
        )


def _per_gene(
    table: Table, columns: str | Sequence[str], joined_by: str | None
) -> tuple[pl.Series, Ints]:
    """Return the values of all genes, row by row, and where each row begins."""
    names = _listed(columns)
    if len(names) > 1:
        values = pl.concat_list(pl.col(names).str.strip_chars())
    elif joined_by is not None:
        values = pl.col(names[0]).str.split(joined_by).list.eval(pl.element().str.strip_chars())
    else:
        values = (
            pl.col(names[0]).str.strip_chars().str.replace_all(r"[;,|+/\s]+", ";").str.split(";")
        )
    lists = table.frame.select(values.list.filter(pl.element() != "")).to_series()
    sizes = lists.list.len().to_numpy()
    if (sizes == 0).any():
        raise table.error(int(np.argmax(sizes == 0)), f"no value in {', '.join(names)}")
    return lists.explode(), offsets_of(sizes)


def _aligned(
    table: Table,
    columns: Mapping[str, str | Sequence[str]],
    key: str,
    joined_by: str | None,
    offsets: Ints,
) -> pl.Series | None:
    if key not in columns:
        return None
    values, theirs = _per_gene(table, columns[key], joined_by)
    wrong = np.diff(theirs) != np.diff(offsets)
    if wrong.any():
        row = int(np.argmax(wrong))
        raise table.error(row, f"{np.diff(theirs)[row]} {key} for {np.diff(offsets)[row]} genes")
    return values


def _told_by_allele(alleles: pl.Series | None, n: int) -> pl.Series:
    if alleles is None:
        return pl.repeat("deletion", n, eager=True)
    return pl.select(perturbation_of(pl.lit(alleles))).to_series()


def _roles(roles: Sequence[str] | None, offsets: Ints, table: Table) -> pl.Series:
    sizes = np.diff(offsets)
    if roles is None:
        return pl.repeat("unknown", int(offsets[-1]), eager=True)
    one_of(pl.Series(list(roles), dtype=pl.String), ROLES, "role")
    if (sizes > len(roles)).any():
        row = int(np.argmax(sizes > len(roles)))
        raise table.error(row, f"{sizes[row]} genes, and roles for {len(roles)} were given")
    position = np.arange(offsets[-1]) - np.repeat(offsets[:-1], sizes)
    return pl.Series(list(roles)).gather(position)


def _signs(table: Table, column: str) -> AnyArray:
    written = table.strings(column).str.strip_chars().str.to_lowercase()
    meaning = _SIGNS | _NO_SIGN
    one_of(written, list(meaning), column, table)
    signs: AnyArray = written.replace_strict(meaning, return_dtype=pl.Int8).to_numpy()
    return signs
