"""Gene names that a person typed: looked up, and where they are not found, what was meant."""

from __future__ import annotations

import difflib
import os
from collections.abc import Sequence

import numpy as np

from deltacell.arrays import Ints
from deltacell.cell import Genes
from deltacell.errors import GeneNameError


class GeneNames:
    """The names that may be typed.

    Parameters
    ----------
    genes
        Of the cell that the runs were trained on.
    whole
        Those of the cell before any was left out, where some were.
    """

    def __init__(self, genes: Genes, whole: Genes | None = None) -> None:
        self.genes = genes
        self._whole = whole

    def index(
        self, name: str, where: str | os.PathLike[str] | None = None, line: int | None = None
    ) -> int:
        """Return the index of a gene, or raise an error that says which name is near.

        Parameters
        ----------
        name
            Systematic, standard or an alias.
        where, line
            Where it stands, if in a file.
        """
        try:
            return self.genes.index(name)
        except GeneNameError as error:
            what, fix = error.what, error.fix
            if self.genes.resolve([name]).index[0] == -1:
                what, fix = self._unknown(name)
            raise GeneNameError(what, where=where, line=line, fix=fix) from None

    def indices(self, names: Sequence[str]) -> Ints:
        """Return the indices of several genes, each given once."""
        found: list[int] = []
        for name in names:
            gene = self.index(name)
            if gene in found:
                raise GeneNameError(f"the gene {self.genes.label(gene)} was given twice")
            found.append(gene)
        return np.array(found, dtype=np.int64)

    def _unknown(self, name: str) -> tuple[str, str]:
        """Return what is wrong with a name and what to do."""
        if self._whole is not None and self._whole.resolve([name]).found[0]:
            label = self._whole.label(self._whole.index(name))
            return (
                f"the gene {label} is not among the {len(self.genes):,} that the run was trained "
                "on",
                "Train with data.screen_genes_only=false to have all genes of the cell.",
            )
        near = self._near(name)
        meant = f"Did you mean {' or '.join(near)}? " if near else ""
        return (
            f"no gene is called '{name}'",
            f"{meant}Give systematic names, standard names or aliases.",
        )

    def _near(self, name: str) -> list[str]:
        known: dict[str, str] = {}
        for i in range(len(self.genes)):
            for one in (*self.genes.aliases[i], self.genes.standard[i], self.genes.systematic[i]):
                if one:
                    known[one.upper()] = one
        close = difflib.get_close_matches(name.strip().upper(), known, n=3, cutoff=0.75)
        return [known[one] for one in close]


def gene_texts(genes: Genes) -> list[str]:
    """Return the name that people use of each gene: the standard one where it has one."""
    return [
        standard or systematic
        for standard, systematic in zip(genes.standard, genes.systematic, strict=True)
    ]
