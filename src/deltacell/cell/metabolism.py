"""The metabolism of a cell: reactions, metabolites, and the genes that reactions need."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from deltacell.arrays import Bools, Indices, Ints, column_of, distinct, offsets_of, ragged_positions
from deltacell.cell.genes import AMBIGUOUS, Genes, OnUnknown
from deltacell.cell.rule import Clause, clauses_of
from deltacell.errors import GeneNameError, InputError, StoreError

Doubles = npt.NDArray[np.float64]


class RaggedGenes(Protocol):
    """Gene sets as a flat list with offsets, which is what genotypes are."""

    @property
    def genes(self) -> torch.Tensor:
        """Gene indices of all sets, one after the other."""

    @property
    def offsets(self) -> torch.Tensor:
        """Where each set begins, and the end."""


class LostReactions(NamedTuple):
    """The reactions that each genotype loses, ascending: a ragged pair like genotypes."""

    reactions: torch.Tensor
    offsets: torch.Tensor

    def of(self, genotype: int) -> torch.Tensor:
        """Return the reactions that one genotype loses."""
        return self.reactions[self.offsets[genotype] : self.offsets[genotype + 1]]


@dataclass(frozen=True, eq=False)
class Metabolism:
    """Reactions and metabolites with signed stoichiometry and Boolean gene rules.

    A rule is held as clauses: alternatives, each of which is satisfied when all of its genes live.
    A reaction is lost when none is satisfied; one without clauses is never lost. A gene outside
    the cell can never be deleted and so appears in no clause.

    Parameters
    ----------
    reactions, metabolites
        Their identifiers.
    lower, upper
        Bounds of each reaction's flux.
    reaction, metabolite, coefficient
        The stoichiometry, ordered by reaction; negative is consumed, positive produced.
    clause_reaction
        The reaction of each clause, ascending.
    clause_genes, clause_offsets
        The genes of each clause.
    n_genes
        Number of genes of the cell.
    pathways
        For each reaction the names of its pathways; empty where no reaction has any.
    """

    reactions: tuple[str, ...]
    metabolites: tuple[str, ...]
    lower: Doubles
    upper: Doubles
    reaction: Indices
    metabolite: Indices
    coefficient: Doubles
    clause_reaction: Indices
    clause_genes: Indices
    clause_offsets: Ints
    n_genes: int
    pathways: tuple[tuple[str, ...], ...] = ()

    @classmethod
    def build(
        cls,
        genes: Genes,
        reactions: Sequence[str],
        metabolites: Sequence[str],
        stoichiometry: Sequence[tuple[int, int, float]],
        rules: Sequence[str],
        lower: Sequence[float],
        upper: Sequence[float],
        *,
        pathways: Sequence[Sequence[str]] = (),
        on_unknown: OnUnknown = "error",
    ) -> Metabolism:
        """Make a metabolism from written rules.

        Parameters
        ----------
        genes
            The cell's genes.
        reactions, metabolites
            Their identifiers.
        stoichiometry
            Triples of reaction, metabolite and coefficient.
        rules
            One Boolean rule a reaction, empty where it needs no gene.
        lower, upper
            Bounds of each reaction's flux.
        pathways
            For each reaction the names of its pathways; empty where none is known.
        on_unknown
            What to do with a gene that the cell does not have: ``error``, or ``drop``, which
            takes it as always living.
        """
        for what, given in (("rules", rules), ("lower", lower), ("upper", upper)):
            if len(given) != len(reactions):
                raise InputError(f"{what} has {len(given)} entries for {len(reactions)} reactions")
        if pathways and len(pathways) != len(reactions):
            raise InputError(f"pathways has {len(pathways)} entries for {len(reactions)} reactions")
        clauses = [clauses_of(rule) for rule in rules]
        index = _resolve_rule_genes(genes, clauses, on_unknown)
        sets = [
            (r, sorted({index[g] for g in clause if index[g] >= 0}))
            for r, alternatives in enumerate(clauses)
            for clause in alternatives
        ]
        table = np.array(sorted(stoichiometry), dtype=np.float64).reshape(-1, 3)
        for column, names in ((0, reactions), (1, metabolites)):
            if len(table) and not (
                0 <= table[:, column].min() <= table[:, column].max() < len(names)
            ):
                raise InputError(f"the stoichiometry names an index outside the {len(names)} given")
        return cls(
            tuple(reactions),
            tuple(metabolites),
            np.asarray(lower, dtype=np.float64),
            np.asarray(upper, dtype=np.float64),
            table[:, 0].astype(np.int32),
            table[:, 1].astype(np.int32),
            np.ascontiguousarray(table[:, 2]),
            np.array([r for r, _ in sets], dtype=np.int32),
            np.array([g for _, clause in sets for g in clause], dtype=np.int32),
            offsets_of(np.array([len(clause) for _, clause in sets], dtype=np.int64)),
            len(genes),
            _pathways_of_reactions(pathways),
        )

    @property
    def n_reactions(self) -> int:
        """Number of reactions."""
        return len(self.reactions)

    @property
    def n_metabolites(self) -> int:
        """Number of metabolites."""
        return len(self.metabolites)

    @property
    def reversible(self) -> Bools:
        """Which reactions can run both ways."""
        both: Bools = (self.lower < 0) & (self.upper > 0)
        return both

    @cached_property
    def rule_genes(self) -> tuple[Ints, Ints]:
        """The pairs (reaction, gene) of all rules, each once, ordered by reaction then gene."""
        reaction = np.repeat(self.clause_reaction, np.diff(self.clause_offsets)).astype(np.int64)
        key = np.unique(reaction * max(self.n_genes, 1) + self.clause_genes)
        return key // max(self.n_genes, 1), key % max(self.n_genes, 1)

    def lost_reactions(self, genotypes: RaggedGenes) -> LostReactions:
        """Return the reactions whose rules the living genes of each genotype cannot satisfy.

        The cost is that of the clauses which the deleted genes appear in.
        """
        genes = genotypes.genes.cpu().numpy()
        offsets = genotypes.offsets.cpu().numpy()
        n_genotypes = len(offsets) - 1
        owner = np.repeat(np.arange(n_genotypes, dtype=np.int64), np.diff(offsets))
        starts, clauses = self._clauses_by_gene
        hits = starts[genes + 1] - starts[genes]
        broken = clauses[ragged_positions(starts[genes], hits)]
        n_clauses = max(len(self.clause_reaction), 1)
        # A clause that loses two of its genes is broken once.
        once, _ = distinct(np.repeat(owner, hits) * n_clauses + broken)
        owner, broken = once // n_clauses, once % n_clauses
        n_reactions = max(self.n_reactions, 1)
        key, times = distinct(owner * n_reactions + self.clause_reaction[broken])
        lost = times == self._clauses_per_reaction[key % n_reactions]
        key = key[lost]
        per_genotype = np.bincount(key // n_reactions, minlength=n_genotypes)
        return LostReactions(
            torch.from_numpy(key % n_reactions), torch.from_numpy(offsets_of(per_genotype))
        )

    def lost_together(self, genotypes: RaggedGenes) -> LostReactions:
        """Return the reactions that each genotype loses and no smaller set of its genes does.

        Of a single gene these are all it loses; of two genes, those that only both together stop,
        such as a reaction with two isozymes.
        """
        genes, offsets = genotypes.genes.cpu().numpy(), genotypes.offsets.cpu().numpy()
        sizes = np.diff(offsets)
        lost = self.lost_reactions(genotypes)
        owner = np.repeat(np.arange(len(sizes)), np.diff(lost.offsets.numpy()))
        key = owner * self.n_reactions + lost.reactions.numpy()
        # What a smaller set loses, a set with one gene less loses: one such set per gene.
        of_gene = np.repeat(np.arange(len(sizes)), sizes)
        others = sizes[of_gene]
        at = ragged_positions(offsets[of_gene], others)
        without = np.repeat(np.arange(len(genes)), others)
        rest = at != without
        less = _Ragged(torch.from_numpy(genes[at[rest]]), torch.from_numpy(offsets_of(others - 1)))
        lost_less = self.lost_reactions(less)
        owner_less = np.repeat(of_gene, np.diff(lost_less.offsets.numpy()))
        key_less = owner_less * self.n_reactions + lost_less.reactions.numpy()
        key = np.setdiff1d(key, key_less)
        n_reactions = max(self.n_reactions, 1)
        per_genotype = np.bincount(key // n_reactions, minlength=len(sizes))
        return LostReactions(
            torch.from_numpy(key % n_reactions), torch.from_numpy(offsets_of(per_genotype))
        )

    def names_lost_together(self, genotypes: RaggedGenes) -> list[tuple[str, ...]]:
        """Return the names of the reactions of `lost_together`, genotype by genotype."""
        lost = self.lost_together(genotypes)
        return [
            tuple(self.reactions[j] for j in lost.of(b).tolist())
            for b in range(len(lost.offsets) - 1)
        ]

    def pairs_lost_together(self) -> tuple[Ints, Ints]:
        """Return all pairs of genes that lose a reaction together and not alone.

        Returns
        -------
        tuple
            The pairs, ascending, [m, 2], and the number of reactions that each loses, [m].
        """
        pairs: set[tuple[int, int]] = set()
        ends = np.searchsorted(self.clause_reaction, np.arange(self.n_reactions + 1))
        for begin, end in pairwise(ends.tolist()):
            clauses = [
                set(self.clause_genes[self.clause_offsets[c] : self.clause_offsets[c + 1]].tolist())
                for c in range(begin, end)
            ]
            # Two genes that break every clause have one in the first.
            for a in clauses[0] if clauses else ():
                unbroken = [clause for clause in clauses if a not in clause]
                both = set.intersection(*unbroken) if unbroken else set()
                pairs |= {(min(a, b), max(a, b)) for b in both}
        found = np.array(sorted(pairs), dtype=np.int64).reshape(-1, 2)
        offsets = torch.arange(len(found) + 1) * 2
        lost = self.lost_together(_Ragged(torch.from_numpy(found.ravel()), offsets))
        times = np.diff(lost.offsets.numpy())
        return found[times > 0], times[times > 0]

    def split(self) -> Metabolism:
        """Return the form in which every direction and every isozyme is a reaction of its own.

        A reversible reaction becomes two, the second (``_rev``) with its signs turned; one that
        runs only backwards is turned; each clause of a rule (``_iso1``, ``_iso2``, …) becomes one.
        """
        clauses = [np.flatnonzero(self.clause_reaction == r) for r in range(self.n_reactions)]
        starts = np.searchsorted(self.reaction, np.arange(self.n_reactions + 1))
        names, bounds, sources, signs, owners = [], [], [], [], []
        for r, name in enumerate(self.reactions):
            for number, clause in enumerate(clauses[r] if len(clauses[r]) else [None], 1):
                isozyme = f"{name}_iso{number}" if len(clauses[r]) > 1 else name
                for way, suffix in self._ways(r):
                    names.append(isozyme + suffix)
                    bounds.append(
                        (max(self.lower[r], 0.0), self.upper[r])
                        if way > 0
                        else (max(-self.upper[r], 0.0), -self.lower[r])
                    )
                    sources.append(r)
                    signs.append(way)
                    owners.append(clause)
        source = np.array(sources, dtype=np.int64)
        lengths = (starts[1:] - starts[:-1])[source]
        at = ragged_positions(starts[source], lengths)
        has_clause = np.array([c is not None for c in owners], dtype=bool)
        owned = np.array([c for c in owners if c is not None], dtype=np.int64)
        clause_lengths = np.diff(self.clause_offsets)[owned]
        return Metabolism(
            tuple(names),
            self.metabolites,
            np.array([low for low, _ in bounds], dtype=np.float64),
            np.array([high for _, high in bounds], dtype=np.float64),
            np.repeat(np.arange(len(source), dtype=np.int32), lengths),
            self.metabolite[at],
            self.coefficient[at] * np.repeat(np.array(signs, dtype=np.float64), lengths),
            np.flatnonzero(has_clause).astype(np.int32),
            self.clause_genes[ragged_positions(self.clause_offsets[owned], clause_lengths)],
            offsets_of(clause_lengths),
            self.n_genes,
            tuple(self.pathways[r] for r in sources) if self.pathways else (),
        )

    def take(self, genes: Ints) -> Metabolism:
        """Return the metabolism over the given genes, renumbered; all others always live."""
        new_index = np.full(self.n_genes, -1, dtype=np.int32)
        new_index[genes] = np.arange(len(genes), dtype=np.int32)
        renumbered = new_index[self.clause_genes]
        inside = renumbered >= 0
        clause = np.repeat(np.arange(len(self.clause_reaction)), np.diff(self.clause_offsets))
        lengths = np.bincount(clause[inside], minlength=len(self.clause_reaction))
        return Metabolism(
            self.reactions,
            self.metabolites,
            self.lower,
            self.upper,
            self.reaction,
            self.metabolite,
            self.coefficient,
            self.clause_reaction,
            renumbered[inside],
            offsets_of(lengths),
            len(genes),
            self.pathways,
        )

    def equals(self, other: Metabolism) -> bool:
        """Whether both hold the same reactions, metabolites, stoichiometry, rules and pathways."""
        mine, theirs = self.to_arrow(), other.to_arrow()
        return (
            self.n_genes == other.n_genes
            and mine.keys() == theirs.keys()
            and all(mine[n].equals(theirs[n]) for n in mine)
        )

    def __repr__(self) -> str:
        return f"Metabolism({self.n_reactions:,} reactions, {self.n_metabolites:,} metabolites)"

    def to_arrow(self) -> dict[str, pa.Table]:
        """Return its parts; that of the pathways only where a reaction has one."""
        ends = pa.array(self.clause_offsets[1:], pa.int64())
        parts = {
            "reactions": pa.table(
                {
                    "id": pa.array(self.reactions, pa.string()),
                    "lower": self.lower,
                    "upper": self.upper,
                }
            ),
            "metabolites": pa.table({"id": pa.array(self.metabolites, pa.string())}),
            "stoichiometry": pa.table(
                {
                    "reaction": pa.array(self.reaction, pa.int32()),
                    "metabolite": pa.array(self.metabolite, pa.int32()),
                    "coefficient": pa.array(self.coefficient, pa.float64()),
                }
            ),
            "clauses": pa.table(
                {"reaction": pa.array(self.clause_reaction, pa.int32()), "end": ends}
            ),
            "clause_genes": pa.table({"gene": pa.array(self.clause_genes, pa.int32())}),
        }
        # Not there where empty, so that cells without pathways keep their checksum.
        if self.pathways:
            parts["pathways"] = pa.table(
                {"names": pa.array([list(p) for p in self.pathways], pa.list_(pa.string()))}
            )
        return parts

    @classmethod
    def from_arrow(cls, parts: Mapping[str, pa.Table], n_genes: int) -> Metabolism:
        """Inverse of `to_arrow`; the numbers stay memory-mapped."""
        found = cls(
            tuple(parts["reactions"]["id"].to_pylist()),
            tuple(parts["metabolites"]["id"].to_pylist()),
            column_of(parts["reactions"], "lower"),
            column_of(parts["reactions"], "upper"),
            column_of(parts["stoichiometry"], "reaction"),
            column_of(parts["stoichiometry"], "metabolite"),
            column_of(parts["stoichiometry"], "coefficient"),
            column_of(parts["clauses"], "reaction"),
            column_of(parts["clause_genes"], "gene"),
            np.concatenate([[0], column_of(parts["clauses"], "end")]).astype(np.int64),
            n_genes,
            tuple(tuple(names) for names in parts["pathways"]["names"].to_pylist())
            if "pathways" in parts
            else (),
        )
        found._check_indices()
        return found

    def _check_indices(self) -> None:
        for what, index, n in (
            ("reaction", self.reaction, self.n_reactions),
            ("metabolite", self.metabolite, self.n_metabolites),
            ("reaction", self.clause_reaction, self.n_reactions),
            ("gene", self.clause_genes, self.n_genes),
        ):
            if len(index) and not 0 <= index.min() <= index.max() < n:
                raise StoreError(f"the metabolism names a {what} outside the {n} there are")
        ends = self.clause_offsets
        if (np.diff(ends) < 0).any() or ends[-1] != len(self.clause_genes):
            raise StoreError("the metabolism's clauses do not fit their genes")
        if self.pathways and len(self.pathways) != self.n_reactions:
            raise StoreError(
                f"the metabolism has pathways of {len(self.pathways)} reactions, "
                f"and there are {self.n_reactions}"
            )

    @cached_property
    def _clauses_by_gene(self) -> tuple[Ints, Ints]:
        clause = np.repeat(np.arange(len(self.clause_reaction)), np.diff(self.clause_offsets))
        order = np.argsort(self.clause_genes, kind="stable")
        starts = offsets_of(np.bincount(self.clause_genes, minlength=self.n_genes))
        return starts, clause[order].astype(np.int64)

    @cached_property
    def _clauses_per_reaction(self) -> Ints:
        return np.bincount(self.clause_reaction, minlength=self.n_reactions)

    def _ways(self, reaction: int) -> list[tuple[int, str]]:
        if self.reversible[reaction]:
            return [(1, ""), (-1, "_rev")]
        backwards = self.lower[reaction] < 0
        return [(-1, "_rev")] if backwards else [(1, "")]


class _Ragged(NamedTuple):
    """Gene sets, some of them perhaps empty."""

    genes: torch.Tensor
    offsets: torch.Tensor


def _pathways_of_reactions(pathways: Sequence[Sequence[str]]) -> tuple[tuple[str, ...], ...]:
    found = tuple(tuple(dict.fromkeys(names)) for names in pathways)
    return found if any(found) else ()


def _resolve_rule_genes(
    genes: Genes, clauses: Sequence[Sequence[Clause]], on_unknown: OnUnknown
) -> dict[str, int]:
    names = list(dict.fromkeys(g for rule in clauses for clause in rule for g in clause))
    index = genes.resolve(names).index
    absent = [name for name, i in zip(names, index, strict=True) if i < 0]
    if absent and on_unknown == "add":
        raise ValueError("genes are added before a metabolism is built, not by it")
    if absent and on_unknown == "error":
        first = absent[0]
        several = index[names.index(first)] == AMBIGUOUS
        raise GeneNameError(
            f"{len(absent)} genes of the reactions' rules are not genes of the cell, "
            f"first '{first}'" + (", which is ambiguous" if several else ""),
            fix="Choose what to do with unknown genes: drop (take them as always living) or add.",
        )
    return dict(zip(names, index.tolist(), strict=True))
