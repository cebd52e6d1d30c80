"""A cell from tables in memory."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from deltacell.cell.cell import Cell
from deltacell.cell.feature import Feature
from deltacell.cell.genes import Genes
from deltacell.cell.readers.edges import NamedEdges, names_of, relation_of
from deltacell.cell.readers.names import OnUnresolved, in_capitals, name_error
from deltacell.errors import InputError

_OF_GENES = ("systematic", "standard", "aliases", "chromosome", "start", "end", "description")


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
        raise InputError(
            f"no network is called '{unknown[0]}'; there are {', '.join(networks) or 'none'}"
        )
    edges = [
        _edges(name, frame_of(table, name), name in directed) for name, table in networks.items()
    ]
    known = _genes(genes) if genes is not None else Genes(_all_named(edges))
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
    """Return a table of pandas, polars or plain columns as a polars data frame.

    Parameters
    ----------
    table
        A data frame, or columns by name.
    name
        What to call it in an error.
    """
    try:
        if isinstance(table, pl.DataFrame):
            return table
        if hasattr(table, "to_dict") and hasattr(table, "columns"):
            columns = {str(column): table[column].tolist() for column in table.columns}
            return pl.DataFrame(columns, strict=False)
        return pl.DataFrame(table, strict=False)
    except (TypeError, ValueError, pl.exceptions.PolarsError) as error:
        raise InputError(
            f"'{name}' is not a table ({error})",
            fix="Give a data frame of pandas or polars, or columns by name.",
        ) from error


def _edges(name: str, table: pl.DataFrame, directed: bool) -> NamedEdges:
    if table.width not in (2, 3):
        raise InputError(
            f"the network '{name}' has {table.width} columns: {', '.join(table.columns)}; expected "
            "two of genes, and a weight if there is one"
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
        raise InputError(f"the column '{column.name}' of '{name}' has a row without a gene")
    return texts


def _all_named(edges: Iterable[NamedEdges]) -> list[str]:
    found: dict[str, str] = {}
    for one in edges:
        for name in names_of(one):
            found.setdefault(name.upper(), in_capitals(name))
    return list(found.values())


def _genes(genes: Any) -> Genes:
    if isinstance(genes, Genes):
        return genes
    if not hasattr(genes, "columns") and not isinstance(genes, Mapping):
        return Genes(genes)
    table = frame_of(genes, "genes")
    if "systematic" not in table.columns:
        raise InputError(
            f"the table of genes has no column 'systematic'; it has {', '.join(table.columns)}"
        )
    empty: dict[str, Any] = {
        "aliases": (),
        "chromosome": "",
        "start": -1,
        "end": -1,
        "description": "",
    }
    columns: dict[str, Any] = {
        name: [empty.get(name) if value is None else value for value in table[name].to_list()]
        for name in _OF_GENES
        if name in table.columns
    }
    return Genes(**columns)


def _feature(name: str, table: pl.DataFrame, genes: Genes, on_unknown: OnUnresolved) -> Feature:
    if table.width < 2:
        raise InputError(
            f"the feature '{name}' has {table.width} columns; expected genes and numbers"
        )
    names = _names(table.to_series(0), name)
    index = genes.resolve(names).index
    if on_unknown == "error" and (index < 0).any():
        row = int(np.argmax(index < 0))
        raise name_error(genes, names[row], Path(name), line=row + 1)
    found = index[index >= 0]
    twice = np.flatnonzero(np.bincount(found, minlength=len(genes)) > 1)
    if len(twice):
        raise InputError(f"the feature '{name}' has the gene {genes.label(int(twice[0]))} twice")
    values = np.full((len(genes), table.width - 1), np.nan, dtype=np.float32)
    values[found] = table[:, 1:].cast(pl.Float32).to_numpy()[index >= 0]
    return Feature(name, values, tuple(table.columns[1:]))
