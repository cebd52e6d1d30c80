"""Any delimited table, through a mapping that says which of its columns mean what."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl

from deltacell.arrays import Ints, offsets_of
from deltacell.errors import InputError
from deltacell.screen.columns import PERTURBATIONS, PHENOTYPES, ROLES
from deltacell.screen.readers.published import perturbation_of
from deltacell.screen.readers.written import WrittenScreen, deleted_genes, one_of, refuse_empty
from deltacell.table import Table, open_text, read_table

NAME = "delimited"

#: What a column can be mapped to. Those of `PER_GENE` take a column per gene, or one in which the
#: values of all genes are joined; the others take one column.
PER_GENE = ("genes", "alleles", "perturbations")
PER_ROW = (
    *("score", "sign", "standard_deviation", "p_value", "query_fitness", "array_fitness"),
    *("phenotype", "study"),
)

_SIGNS = {
    **dict.fromkeys(("-1", "-", "negative"), -1),
    **dict.fromkeys(("1", "+1", "+", "positive"), 1),
    **dict.fromkeys(("0", "", "both", "none"), 0),
}


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
    """Read a table with a header."""
    text = open_text(path)
    header = text.data.split(b"\n", 1)[0].decode("utf-8", errors="replace")
    separator = separator or next((s for s in ("\t", ";") if s in header), ",")
    table = read_table(text, separator=separator)
    _check_mapping(columns, table)
    refuse_empty(table)
    names, offsets = _per_gene(table, columns["genes"], joined_by)
    sizes = np.diff(offsets)
    owner = np.repeat(np.arange(len(table)), sizes)
    given: dict[str, pl.Series] = {}
    for key in ("alleles", "perturbations"):
        if key in columns:
            values, theirs = _per_gene(table, columns[key], joined_by)
            wrong = np.diff(theirs) != sizes
            if wrong.any():
                row = int(np.argmax(wrong))
                raise table.error(row, f"{np.diff(theirs)[row]} {key} for {sizes[row]} genes")
            given[key.removesuffix("s")] = values
    if "perturbation" in given:
        one_of(given["perturbation"], PERTURBATIONS, "perturbation", table, owner)
    elif "allele" in given:
        told = pl.select(perturbation_of(pl.lit(given["allele"])))
        given["perturbation"] = told.to_series()
    if roles is not None:
        one_of(pl.Series(list(roles), dtype=pl.String), ROLES, "role")
        if (sizes > len(roles)).any():
            row = int(np.argmax(sizes > len(roles)))
            raise table.error(row, f"{sizes[row]} genes, and roles for {len(roles)} were given")
        position = np.arange(offsets[-1]) - offsets[owner]
        given["role"] = pl.Series(list(roles)).gather(position)
    texts = {
        key: table.strings(str(columns[key])).str.strip_chars()
        for key in ("phenotype", "study", "sign")
        if key in columns
    }
    if phenotype is not None:
        one_of(pl.Series([phenotype]), PHENOTYPES, "phenotype")
    elif "phenotype" in texts:
        one_of(texts["phenotype"], PHENOTYPES, "phenotype", table)
    numbers = {
        key: table.floats(str(columns[key]), missing=key != "score")
        for key in PER_ROW[:6]
        if key in columns and key != "sign"
    }
    if "sign" in texts:
        signs = texts["sign"].str.to_lowercase()
        one_of(signs, list(_SIGNS), str(columns["sign"]), table)
        numbers["sign"] = signs.replace_strict(_SIGNS, return_dtype=pl.Int8).to_numpy()
    return WrittenScreen(
        table,
        np.arange(len(table)),
        deleted_genes(names, **given),
        offsets,
        NAME,
        study or table.path.name.split(".")[0] or table.path.name,
        texts.get("phenotype", "interaction") if phenotype is None else phenotype,
        numbers,
        studies=texts.get("study") if study is None else None,
    )


def _listed(value: str | Sequence[str]) -> list[str]:
    return [value] if isinstance(value, str) else list(value)


def _check_mapping(columns: Mapping[str, str | Sequence[str]], table: Table) -> None:
    unknown = [key for key in columns if key not in PER_GENE + PER_ROW]
    if unknown:
        raise InputError(
            f"a screen has no {unknown[0]}; a column can be {', '.join(PER_GENE + PER_ROW)}",
            code="unknown-key",
        )
    if "genes" not in columns or not ("score" in columns or "sign" in columns):
        raise InputError(
            "the mapping must say which columns hold the genes and which the score or the sign",
            code="missing-key",
        )
    several = [key for key in PER_ROW if key in columns and not isinstance(columns[key], str)]
    if several:
        raise InputError(
            f"'{several[0]}' takes the name of one column, not {columns[several[0]]}",
            code="one-column",
        )
    there = table.frame.columns
    absent = [name for value in columns.values() for name in _listed(value) if name not in there]
    if absent:
        raise InputError(
            f"there is no column {', '.join(map(repr, absent))}; "
            f"there are {', '.join(map(repr, there))}",
            code="missing-column",
            where=table.path,
            line=1,
        )


def _per_gene(
    table: Table, columns: str | Sequence[str], joined_by: str | None
) -> tuple[pl.Series, Ints]:
    """Return the values of all genes, row by row, and where each row begins."""
    names = _listed(columns)
    first = pl.col(names[0]).str.strip_chars()
    if len(names) > 1:
        values = pl.concat_list(pl.col(names).str.strip_chars())
    elif joined_by is not None:
        values = first.str.split(joined_by).list.eval(pl.element().str.strip_chars())
    else:
        values = first.str.replace_all(r"[;,|+/\s]+", ";").str.split(";")
    lists = table.frame.select(values.list.filter(pl.element() != "")).to_series()
    sizes = lists.list.len().to_numpy()
    if (sizes == 0).any():
        raise table.error(int(np.argmax(sizes == 0)), f"no value in {', '.join(names)}")
    return lists.explode(), offsets_of(sizes)
