"""Predictions of anybody's predictor, from a table or a function, for the rows of an evaluation."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import torch

from deltacell.base.arrays import AnyArray, Bools, Doubles, Ints
from deltacell.base.errors import InputError
from deltacell.base.text import count_text
from deltacell.cell import Genes
from deltacell.models.fitted.gene_sets import look_up
from deltacell.models.fitted.predictor import Parts
from deltacell.models.interface import Prediction
from deltacell.screen import Genotypes
from deltacell.screen.gene_keys import matrix_keys, sorted_matrix
from deltacell.storage.tables.file import File
from deltacell.storage.tables.table import Table

SCORE = "score"
OPTIONAL = ("hit", "given_hit")  # of a predictor of two parts
_GENE = re.compile(r"gene ?\d+")
_FIX = (
    "Write a table with a header: the genes of a set in columns gene1, gene2, and its prediction "
    "in a column score. `deltacell data split --csv` writes the sets."
)

#: Takes gene sets, each a tuple of names, and returns a score for each; NaN if it has none.
ScoreFunction = Callable[[list[tuple[str, ...]]], npt.ArrayLike]


@dataclass(frozen=True, eq=False)
class GivenPredictions:
    """The predictions of one predictor for some genotypes."""

    name: str
    parts: Parts  # NaN where there is no prediction, [genotypes]
    notes: tuple[str, ...] = ()

    @property
    def is_given(self) -> Bools:
        """Which genotypes have a prediction, [genotypes]."""
        columns = [column for column in self.parts if column is not None]
        is_given: Bools = np.all([np.isfinite(column) for column in columns], axis=0)
        return is_given

    def of(self, rows: Bools) -> Prediction:
        """Return the predictions of some rows, all of which have one."""
        hit = self.parts.hit
        given_hit = self.parts.given_hit
        return Prediction(
            torch.from_numpy(self.parts.score[rows]),
            hit=None if hit is None else torch.from_numpy(hit[rows]),
            given_hit=None if given_hit is None else torch.from_numpy(given_hit[rows]),
        )


def predictions_of_function(
    name: str,
    function: ScoreFunction,
    genes: Genes,
    genotypes: Genotypes,
) -> GivenPredictions:
    """Return the scores that a function has for genotypes, which it is given by name."""
    sets = [tuple(genes[gene] for gene in genotype.tolist()) for genotype in genotypes]
    scores = np.asarray(function(sets), dtype=np.float64)
    if scores.shape != (len(sets),):
        message = f"'{name}' returned the shape {scores.shape} for {len(sets):,} gene sets"
        fix = "Return one score per gene set, NaN where there is none."
        raise InputError(message, code="wrong-predictions", fix=fix)
    if np.isinf(scores).any():
        raise InputError(f"'{name}' returned an infinite score", code="wrong-predictions")
    return GivenPredictions(name, Parts(scores))


class PredictionTable:
    """A table of gene sets and predictions, with the genes resolved in a cell.

    It has the columns ``gene1``, ``gene2``, … and ``score``, and optionally ``hit`` (the
    probability of a hit) and ``given_hit`` (the expected score of a hit). Sets of different sizes
    leave columns of genes empty. A set without a score, or with an unknown gene, has no prediction.
    """

    def __init__(self, name: str, table: Table, genes: Genes) -> None:
        self.name = name
        self._table = table
        self._n_genes = len(genes)
        gene_columns = [column for column in table.frame.columns if _is_gene(column)]
        columns = {_word(column): column for column in table.frame.columns}
        table.check_not_repeated(columns[SCORE])
        self._values = {SCORE: table.numbers(columns[SCORE])}
        for part in OPTIONAL:
            if part in columns:
                self._values[part] = table.numbers(columns[part])
        names = table.frame.select(gene_columns)
        is_empty = names.select(pl.all_horizontal(pl.all() == "")).to_series()
        table.mark_bad("no gene", gene_columns[0], is_empty.to_numpy())
        table.raise_if_bad()
        self._sets = _resolved(names, genes)
        has_unknown = (self._sets == _UNKNOWN).any(axis=1)
        has_score = np.isfinite(self._values[SCORE])
        self._is_usable: Bools = has_score & ~has_unknown
        self.n_rows = len(table)
        self.n_unknown = int(has_unknown.sum())

    @classmethod
    def read(cls, path: Path, genes: Genes) -> PredictionTable:
        """Read a table in any format that `deltacell data import` reads."""
        return cls(path.stem, _read_table(path), genes)

    @classmethod
    def from_memory(cls, frame: Any, name: str, genes: Genes) -> PredictionTable:
        """Return a data frame of pandas or polars as a table of predictions."""
        table = Table.from_memory(frame, name)
        if not _has_columns(table.frame.columns):
            raise _unreadable(Path(name))
        return cls(name, table, genes)

    def of(self, genotypes: Genotypes) -> GivenPredictions:
        """Return the predictions of genotypes, NaN where the table has none."""
        offsets = genotypes.offsets.numpy()
        n_columns = self._sets.shape[1]
        width = max(n_columns, int(np.diff(offsets).max(initial=0)))
        padding = ((0, 0), (width - n_columns, 0))
        sets = np.pad(np.sort(self._sets[self._is_usable], axis=1), padding, constant_values=-1)
        keys, first = self._distinct(matrix_keys(sets, self._n_genes))
        wanted = sorted_matrix(genotypes.genes.numpy(), offsets, width)
        places, is_listed = look_up(keys, matrix_keys(wanted, self._n_genes))
        columns: dict[str, Doubles] = {}
        for part, values in self._values.items():
            column = np.full(len(genotypes), np.nan)
            column[is_listed] = values[self._is_usable][first[places[is_listed]]]
            columns[part] = column
        return GivenPredictions(self.name, Parts(**columns), tuple(self._notes()))

    def _distinct(self, keys: AnyArray) -> tuple[AnyArray, Ints]:
        """Return the distinct keys and the first row of each; raise if a set has two scores."""
        distinct, first, group = np.unique(keys, return_index=True, return_inverse=True)
        score = self._values[SCORE][self._is_usable]
        differs = np.flatnonzero(score != score[first[group]])
        if len(differs):
            lines = self._table.lines[self._is_usable]
            message = f"{count_text(len(differs), 'row')} repeat a gene set with another score"
            fix = "Keep one prediction per gene set."
            where = self._table.path
            line = int(lines[differs[0]])
            raise InputError(message, code="repeated-set", where=where, line=line, fix=fix)
        return distinct, first

    def _notes(self) -> Iterator[str]:
        n_unusable = self.n_rows - int(self._is_usable.sum())
        if n_unusable:
            yield (
                f"{self.name}: {n_unusable:,} of {count_text(self.n_rows, 'row')} are not used, "
                f"{self.n_unknown:,} of them because of an unknown gene, the others have no score."
            )


_UNKNOWN = -2  # a gene that the cell does not have; -1 is no gene


def _resolved(names: pl.DataFrame, genes: Genes) -> Ints:
    """Return the indices of genes by name, [rows, columns], -1 if empty and -2 if unknown."""
    distinct = names.unpivot()["value"].unique().to_list()
    index_of = dict(zip(distinct, genes.resolve(distinct).tolist(), strict=True))
    codes = {name: _UNKNOWN if index < 0 else index for name, index in index_of.items()}
    codes[""] = -1
    columns = [[codes[name] for name in names[column]] for column in names.columns]
    return np.array(columns, dtype=np.int64).T


def _read_table(path: Path) -> Table:
    if not path.is_file():
        raise InputError("no such file", code="no-such-file", where=path)
    for sheet in File(path).sheets:
        for header in sheet.headers:
            if _has_columns(header.names):
                return sheet.below(header.row)
    raise _unreadable(path)


def _unreadable(path: str | os.PathLike[str]) -> InputError:
    message = "no table of gene sets and predictions"
    return InputError(message, code="not-predictions", where=path, fix=_FIX)


def _has_columns(names: Sequence[str]) -> bool:
    words = [_word(name) for name in names]
    return words.count(SCORE) == 1 and any(_is_gene(name) for name in names)


def _is_gene(column: str) -> bool:
    return _GENE.fullmatch(_word(column).replace("_", " ")) is not None


def _word(column: str) -> str:
    return column.strip().lower()
