"""What the columns of a table mean, as given by the user."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from deltacell.base.errors import InputError
from deltacell.storage.tables.numbers import is_number
from deltacell.storage.tables.sheet import Sheet, column_numbers

_GENE_KEY = re.compile(r"(?:genes?|query|array)\d{0,2}")
_NUMBER_KEY = re.compile(r"score\d{0,2}|fitness|weight")
_KEY = re.compile(
    rf"{_GENE_KEY.pattern}|{_NUMBER_KEY.pattern}|p_value|sd|study|split|condition",
)


class ColumnPlaces(NamedTuple):
    """Where the columns that the user named are in a sheet."""

    header_row: int | None  # None if they were named by their numbers, and there is no header
    position: dict[str, int]  # of each column, from 0, by key


@dataclass(frozen=True)
class ColumnNames:
    """What the columns of a table mean, as given by the user: ``gene1=ORF,gene2=Orf 2,score=x``."""

    names: Mapping[str, str]  # a column's name, or its number from 1, by key

    @classmethod
    def parse(cls, written: str) -> ColumnNames:
        """Parse ``KEY=COLUMN,KEY=COLUMN``; a name may contain commas that no ``KEY=`` follows."""
        parts = re.split(r",\s*(?=[A-Za-z_]+\d*\s*=)", written.strip())
        names: dict[str, str] = {}
        is_valid = True
        for part in parts:
            key, _, name = (text.strip() for text in part.partition("="))
            key = key.lower()
            is_valid &= bool(name) and bool(_KEY.fullmatch(key)) and key not in names
            names[key] = name
        columns = cls(names)
        if is_valid and columns.names_several_genes:
            return columns
        raise InputError(
            f"--columns {written!r} is not KEY=COLUMN,KEY=COLUMN with two columns of genes",
            code="bad-columns",
            fix="The keys are gene1, gene2, … or query, array or genes, score or fitness or "
            "weight, p_value, sd, study, split, condition; each once: "
            "gene1=ORF,gene2=Partner,score=S. Scores of several conditions are score1, score2, …. "
            "A column of genes, genes1, … is split into its names.",
        )

    @property
    def genes(self) -> list[str]:
        """The keys of the columns of genes."""
        return [key for key in self.names if _GENE_KEY.fullmatch(key)]

    @property
    def scores(self) -> list[str]:
        """The keys of the scores of several conditions."""
        return [key for key in self.names if re.fullmatch(r"score\d+", key)]

    @property
    def names_several_genes(self) -> bool:
        """Whether there are two columns of genes, or one whose fields have several genes."""
        return len(self.genes) > 1 or any(key.startswith("genes") for key in self.genes)

    def find(self, sheet: Sheet) -> ColumnPlaces | None:
        """Return where the columns are in a sheet; None if it lacks one of them.

        Numbers in place of names are tried first: they fit a sheet whose first row has a number in
        the column of the score and none in those of genes.
        """
        first_row = sheet.rows[0]
        position = self._positions(column_numbers(len(first_row)))
        if position is not None:
            score = next(position[key] for key in position if _NUMBER_KEY.fullmatch(key))
            genes = [first_row[position[key]] for key in self.genes]
            if is_number(first_row[score]) and not any(map(is_number, genes)):
                return ColumnPlaces(None, position)
        for header in sheet.headers:
            position = self._positions(header.names)
            if position:
                return ColumnPlaces(header.row, position)
        return None

    def _positions(self, header: Sequence[str]) -> dict[str, int] | None:
        """Return the position of each column by key, ignoring case; None if one is absent."""
        first_position: dict[str, int] = {}
        for i, name in enumerate(header):
            first_position.setdefault(name.lower(), i)
        columns = {key: name.lower() for key, name in self.names.items()}
        if not first_position.keys() >= set(columns.values()):
            return None
        return {key: first_position[name] for key, name in columns.items()}
