"""A cell from tables in memory."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from deltacell.cell.annotation import Feature
from deltacell.cell.cell import Cell
from deltacell.cell.genes import Genes
from deltacell.cell.readers.edges import NamedEdges, names_of, relation_of
from deltacell.cell.readers.names import OnUnresolved, in_capitals, name_error
from deltacell.errors import InputError

_MISSING = {"aliases": (), "chromosome": "", "start": -1, "end": -1, "description": ""}


def cell_of_tables(
    networks: Mapping[str, Any],
    genes: Any,
    features: Mapping[str, Any],
    directed: set[str],
    on_unknown: OnUnresolved,
) -> Cell:
    """Return the cell of some tables; see `Cell.from_tables`."""
    unknown = sorted(directed - set(networks))
    if unknown:
        what = f"no network is called '{unknown[0]}'; there are {', '.join(networks) or 'none'}"
        raise InputError(what, code="unknown-relation")
    edges = [_edges(name, frame_of(t, name), name in directed) for name, t in networks.items()]
    if genes is None:
        named = {n.upper(): in_capitals(n) for one in edges[::-1] for n in names_of(one)[::-1]}
        genes = list(named.values())[::-1]
    known = _genes(genes)
    made = [relation_of(one, known, on_unknown) for one in edges]
    return Cell(
        known,
        [relation for relation, _ in made],
        features=[
            _feature(name, frame_of(table, name), known, on_unknown)
            for name, table in features.items()
        ],
        sources=[source for _, source in made],
    )


def frame_of(table: Any, name: str) -> pl.DataFrame:
    """Return a table of pandas, polars or columns by name, called `name` in errors, as polars."""
    try:
        if isinstance(table, pl.DataFrame):
            return table
        if hasattr(table, "to_dict") and hasattr(table, "columns"):
            table = {str(column): table[column].tolist() for column in table.columns}
        return pl.DataFrame(table, strict=False)
    except (TypeError, ValueError, pl.exceptions.PolarsError) as error:
        raise InputError(
            f"'{name}' is not a table ({error})",
            code="not-a-table",
            fix="Give a data frame of pandas or polars, or columns by name.",
        ) from error


def _edges(name: str, table: pl.DataFrame, directed: bool) -> NamedEdges:
    if table.width not in (2, 3):
        raise InputError(
            f"the network '{name}' has {table.width} columns: {', '.join(table.columns)}; expected "
            "two of genes, and a weight if there is one",
            code="bad-shape",
        )
    source, target, *weight = table.get_columns()
    return NamedEdges(
        name,
        _names(source, name),
        _names(target, name),
        weight[0].cast(pl.Float64).to_numpy() if weight else None,
        directed,
        Path(name),
        np.arange(1, table.height + 1, dtype=np.int64),
        hashlib.sha256(table.write_csv().encode()).hexdigest(),
        "table",
    )


def _names(column: pl.Series, name: str) -> pl.Series:
    texts = column.cast(pl.String).str.strip_chars()
    if texts.is_null().any() or (texts == "").any():
        what = f"the column '{column.name}' of '{name}' has a row without a gene"
        raise InputError(what, code="no-gene-name")
    return texts


def _genes(genes: Any) -> Genes:
    if isinstance(genes, Genes):
        return genes
    if not hasattr(genes, "columns") and not isinstance(genes, Mapping):
        return Genes(genes)
    table = frame_of(genes, "genes")
    if "systematic" not in table.columns:
        there = ", ".join(table.columns)
        what = f"the table of genes has no column 'systematic'; it has {there}"
        raise InputError(what, code="missing-columns")
    columns: dict[str, Any] = {
        name: [_MISSING.get(name) if value is None else value for value in table[name].to_list()]
        for name in ("systematic", "standard", *_MISSING)
        if name in table.columns
    }
    return Genes(**columns)


def _feature(name: str, table: pl.DataFrame, genes: Genes, on_unknown: OnUnresolved) -> Feature:
    if table.width < 2:
        what = f"the feature '{name}' has {table.width} columns; expected genes and numbers"
        raise InputError(what, code="bad-shape")
    names = _names(table.to_series(0), name)
    index = genes.resolve(names).index
    if on_unknown == "error" and (index < 0).any():
        row = int(np.argmax(index < 0))
        raise name_error(genes, names[row], Path(name), line=row + 1)
    found = index[index >= 0]
    twice = np.flatnonzero(np.bincount(found, minlength=len(genes)) > 1)
    if len(twice):
        what = f"the feature '{name}' has the gene {genes.label(int(twice[0]))} twice"
        raise InputError(what, code="duplicate-gene")
    values = np.full((len(genes), table.width - 1), np.nan, dtype=np.float32)
    values[found] = table[:, 1:].cast(pl.Float32).to_numpy()[index >= 0]
    return Feature(name, values, tuple(table.columns[1:]))
