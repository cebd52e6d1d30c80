"""What a strain ID says: ``YKL051W+YDL227C_tm3059`` deletes two genes, ``YAL001C_tsq508`` one.

A strain ID is one ORF or several joined by ``+``, then ``_`` and the strain's number in its
collection. The letters of the collection tell how the gene is perturbed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from deltacell.arrays import Ints, offsets_of, ragged_positions

#: How the strains of a collection are perturbed. Of all others the allele's name decides.
COLLECTIONS = {
    "tsq": "ts",
    "tsa": "ts",
    "damp": "damp",
    "sn": "deletion",
    "dma": "deletion",
    "s": "allele",
}

_DELTA = r"(?i)(?:\u0394|\u2206|delta)$"
# A bare gene name in lower case (vam3, rpl26a, arg5,6, ygr242w, yfl034c-b) stands for its deletion.
_BARE_NAME = r"^(?:[a-z]{3}\d+(?:,\d+)?[a-d]?|y[a-p][lr]\d{3}[wc](?:-[a-z])?|q\d{4})$"


@dataclass(frozen=True, eq=False)
class Strains:
    """Distinct strains with the genes they delete, and which strain each row of a file used.

    Parameters
    ----------
    names, perturbation, allele
        Of the deleted genes of all strains, one after the other.
    offsets
        Where each strain begins, and the end.
    which
        The strain of each row.
    """

    names: pl.Series
    perturbation: pl.Series
    allele: pl.Series
    offsets: Ints
    which: Ints

    @property
    def sizes(self) -> Ints:
        """Number of deleted genes of each row's strain."""
        return np.diff(self.offsets)[self.which]

    def without(self, name: str) -> Strains:
        """Return the strains without one gene, such as a control locus."""
        kept = (self.names != name).to_numpy()
        owner = np.repeat(np.arange(len(self.offsets) - 1), np.diff(self.offsets))
        left = np.bincount(owner[kept], minlength=len(self.offsets) - 1)
        return Strains(
            self.names.filter(kept),
            self.perturbation.filter(kept),
            self.allele.filter(kept),
            offsets_of(left),
            self.which,
        )

    def take(self, rows: Ints) -> Strains:
        """Return the strains as used by some of the rows."""
        return Strains(self.names, self.perturbation, self.allele, self.offsets, self.which[rows])


@dataclass(frozen=True, eq=False)
class Crosses:
    """The deleted genes of every row: those of its query strain, then those of its array strain."""

    names: pl.Series
    role: pl.Series
    perturbation: pl.Series
    allele: pl.Series
    offsets: Ints


def parse_strains(strain: pl.Series, allele: pl.Series | None = None) -> Strains:
    """Parse the strain IDs of a column.

    Parameters
    ----------
    strain
        A strain ID a row.
    allele
        Its allele names, joined by ``+`` as the genes are. Names that do not match the genes one
        to one are left out.
    """
    written = pl.DataFrame(
        {
            "strain": strain.str.strip_chars(),
            "allele": pl.repeat("", len(strain), eager=True) if allele is None else allele,
        }
    )
    distinct = written.unique(maintain_order=True).with_row_index("id")
    which = written.join(distinct, on=["strain", "allele"], how="left", maintain_order="left")
    genes = pl.col("strain").str.extract(r"^([^_]*)").str.split("+")
    alleles = pl.col("allele").str.strip_chars().str.split("+")
    parsed = distinct.select(
        genes=genes,
        collection=pl.col("strain").str.extract(r"_([A-Za-z]*)").str.to_lowercase().fill_null(""),
        alleles=pl.when(alleles.list.len() == genes.list.len())
        .then(alleles)
        .otherwise(pl.lit("").repeat_by(genes.list.len())),
    )
    offsets = offsets_of(parsed["genes"].list.len().to_numpy())
    flat = parsed.explode("genes", "alleles").select(
        name=pl.col("genes").str.strip_chars(),
        allele=pl.col("alleles").str.strip_chars(),
        perturbation=pl.col("collection").replace_strict(
            COLLECTIONS, default=perturbation_of(pl.col("alleles").str.strip_chars())
        ),
    )
    return Strains(
        flat["name"], flat["perturbation"], flat["allele"], offsets, which["id"].to_numpy()
    )


def perturbation_of(allele: pl.Expr) -> pl.Expr:
    """Return what the name of an allele tells: nothing, or a delta, is a deletion."""
    return (
        pl.when((allele == "") | allele.str.contains(_DELTA) | allele.str.contains(_BARE_NAME))
        .then(pl.lit("deletion"))
        .when(allele.str.contains(r"(?i)[-_]damp\d*$"))
        .then(pl.lit("damp"))
        .when(allele.str.contains(r"(?i)-ts\d*$"))
        .then(pl.lit("ts"))
        .otherwise(pl.lit("allele"))
    )


def crossed(query: Strains, array: Strains) -> Crosses:
    """Return the deleted genes of every row, each a query strain crossed with an array strain."""
    n_query = len(query.names)
    lengths = np.stack([query.sizes, array.sizes], axis=1)
    starts = np.stack([query.offsets[query.which], array.offsets[array.which] + n_query], axis=1)
    at = ragged_positions(starts.ravel(), lengths.ravel())
    roles = pl.Series(["query"] * n_query + ["array"] * len(array.names), dtype=pl.String)
    return Crosses(
        pl.concat([query.names, array.names]).gather(at),
        roles.gather(at),
        pl.concat([query.perturbation, array.perturbation]).gather(at),
        pl.concat([query.allele, array.allele]).gather(at),
        offsets_of(lengths.sum(axis=1)),
    )
