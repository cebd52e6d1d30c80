"""A ranking of gene sets: its file, and what is said of it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deltacell.predict.ranking_file import HIGHEST, LOWEST, read_about, read_rows

SHOWN = 2_000
"""Rows of each end that `Ranking.to_json` holds; the file has all."""


@dataclass(frozen=True, eq=False)
class Ranking:
    """Gene sets with their scores, the lowest first.

    The columns of its file: ``end`` (``lowest``, ``highest``; null where all of a file of sets is
    listed), ``rank`` (from 1, within its end), ``genes`` and ``names`` (systematic, and standard
    where there is one), ``score`` (in the unit of the screen; the mean over runs), ``spread`` (the
    standard deviation over runs; null for one), ``status`` (``measured``, ``tested`` and not
    significant, ``untested``), ``measured`` (the mean of what was measured, or null), ``linked``
    (too near on a chromosome to be combined; null where not known), and the evidence:
    ``relations`` (names of those that connect two of the genes), ``links`` (which two, by which
    relation), ``pathways`` and ``complexes`` (names of those that two of the genes share).

    Parameters
    ----------
    path
        The Parquet file.
    about
        What the file says of itself.
    measured
        Predicted against measured, see `to_json`.
    agreement
        How near they are, see `to_json`.
    """

    path: Path
    about: Mapping[str, Any]
    measured: Sequence[Mapping[str, Any]] = ()
    agreement: Sequence[Mapping[str, Any]] = ()

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Ranking:
        """Return the ranking of a file that `deltacell predict` wrote."""
        return cls(Path(path), read_about(path))

    def to_json(self, most: int = SHOWN) -> dict[str, Any]:
        """Return it as plain data, for a page or another program.

        - ``title``: what was ranked, in a few words.
        - ``sentences``: what was ranked by which runs, what was left out and why, what to beware
          of; a list of sentences, the most important first.
        - ``file``: the name of the Parquet file.
        - ``request``: what was asked for, by name (``sets``, ``size``, ``top``, ``above``, …).
        - ``runs``: of each ``name``, ``seed``, ``model`` (``dango`` or ``hetero_cell``),
          ``finished`` (whether its training came to its end), ``checkpoint``, ``sha256`` and
          ``validation_pearson`` (a number or null).
        - ``counts``: ``genes`` (that sets are made of), ``sets`` (that were gone through),
          ``rows`` (of the file), ``lowest``, ``highest`` and ``listed`` (rows of each end; those
          of a file of sets are ``listed``).
        - ``relations``: the names of the cell's relations, in its order.
        - ``rows``: the first of each end; each a dict of the columns above, ``links`` a list of
          ``{first, second, relation}`` with systematic names. What is missing is null.
        - ``rows_not_here``: how many more rows the file has.
        - ``measured``: up to 2,000 measured sets of the sizes that were ranked, the test part
          first: ``{genes, names, predicted, measured, part}`` with the part of the split that
          they were in, ``test``, ``validation`` or ``training``. Empty where it was not asked for.
        - ``agreement``: for each part that is there ``{part, sets, pearson}``; ``pearson`` is null
          where it is not defined.

        Parameters
        ----------
        most
            Rows of each end.
        """
        counts = self.about["counts"]
        slices, first = [], 0
        for end in ("listed", LOWEST, HIGHEST):
            slices.append((first, min(most, counts[end])))
            first += counts[end]
        rows = read_rows(self.path, slices).to_pylist()
        return {
            "title": self.about["title"],
            "sentences": list(self.about["sentences"]),
            "file": self.path.name,
            "request": dict(self.about["request"]),
            "runs": list(self.about["runs"]),
            "counts": dict(counts),
            "relations": list(self.about["relations"]),
            "rows": rows,
            "rows_not_here": counts["rows"] - len(rows),
            "measured": [dict(one) for one in self.measured],
            "agreement": [dict(one) for one in self.agreement],
        }
