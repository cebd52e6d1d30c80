"""The metabolism of a cell: reactions, metabolites, and the genes that reactions need."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise, product
from typing import NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import torch

from deltacell.arrays import (
    Bools,
    Doubles,
    Indices,
    Ints,
    column_of,
    distinct,
    offsets_of,
    ragged_positions,
)
from deltacell.cell.genes import AMBIGUOUS, Genes, OnUnknown
from deltacell.errors import GeneNameError, InputError, StoreError

MOST_CLAUSES = 4096

_TOKEN = re.compile(r"[()]|&+|\|+|[^\s()&|]+")
_AND, _OR = {"and", "&", "&&"}, {"or", "|", "||"}


class _GeneSets(Protocol):
    """Gene sets as a flat list with offsets, which is what genotypes are."""

    @property
    def genes(self) -> torch.Tensor: ...

    @property
    def offsets(self) -> torch.Tensor: ...


class _Ragged(NamedTuple):
    genes: torch.Tensor
    offsets: torch.Tensor


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
    lower, upper
        Bounds of each reaction's flux.
    reaction, metabolite, coefficient
        The stoichiometry, ordered by reaction; negative is consumed, positive produced.
    clause_reaction
        The reaction of each clause, ascending.
    clause_genes, clause_offsets
        The genes of each clause.
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
        stoichiometry
            Triples of reaction, metabolite and coefficient.
        rules
            One Boolean rule per reaction, empty where it needs no gene.
        on_unknown
            What to do with a gene that the cell does not have: ``error``, or ``drop``, which
            takes it as always living.
        """
        columns = {"rules": rules, "lower": lower, "upper": upper, "pathways": pathways}
        for what, given in columns.items():
            if len(given) != len(reactions) and (given or what != "pathways"):
                what = f"{what} has {len(given)} entries for {len(reactions)} reactions"
                raise InputError(what, code="bad-shape")
        clauses = [clauses_of(rule) for rule in rules]
        names = list(dict.fromkeys(g for rule in clauses for clause in rule for g in clause))
        index = dict(zip(names, genes.resolve(names).index.tolist(), strict=True))
        absent = [name for name, i in index.items() if i < 0]
        if absent and on_unknown != "drop":
            several = ", which is ambiguous" if index[absent[0]] == AMBIGUOUS else ""
            raise GeneNameError(
                f"{len(absent)} genes of the reactions' rules are not genes of the cell, first "
                f"'{absent[0]}'{several}",
                code="unknown-gene",
                fix="Choose what to do with unknown genes: drop (they always live) or add.",
            )
        sets = [
            (r, sorted({index[g] for g in clause if index[g] >= 0}))
            for r, alternatives in enumerate(clauses)
            for clause in alternatives
        ]
        table = np.array(sorted(stoichiometry), dtype=np.float64).reshape(-1, 3)
        for at, n in zip(table.T, (len(reactions), len(metabolites)), strict=False):
            if len(at) and not 0 <= at.min() <= at.max() < n:
                what = f"the stoichiometry has an index outside the {n} given"
                raise InputError(what, code="bad-shape")
        in_pathways = tuple(tuple(dict.fromkeys(of)) for of in pathways)
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
            in_pathways if any(in_pathways) else (),
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
        n = max(self.n_genes, 1)
        key = np.unique(reaction * n + self.clause_genes)
        return key // n, key % n

    def lost_reactions(self, genotypes: _GeneSets) -> LostReactions:
        """Return the reactions whose rules the living genes of each genotype cannot satisfy.

        The cost is that of the clauses which the deleted genes appear in.
        """
        return self._by_genotype(self._lost(genotypes), len(genotypes.offsets) - 1)

    def lost_together(self, genotypes: _GeneSets) -> LostReactions:
        """Return the reactions that each genotype loses and no smaller set of its genes does.

        Of a single gene these are all it loses; of two genes, those that only both together stop,
        such as a reaction with two isozymes.
        """
        genes, offsets = genotypes.genes.cpu().numpy(), genotypes.offsets.cpu().numpy()
        sizes = np.diff(offsets)
        # What a smaller set loses, a set with one gene less loses: one such set per gene.
        owner = np.repeat(np.arange(len(sizes)), sizes)
        others = sizes[owner]
        at = ragged_positions(offsets[owner], others)
        rest = at != np.repeat(np.arange(len(genes)), others)
        less = _Ragged(torch.from_numpy(genes[at[rest]]), torch.from_numpy(offsets_of(others - 1)))
        key = self._lost(less)
        n = max(self.n_reactions, 1)
        lost_less = owner[key // n] * n + key % n
        return self._by_genotype(np.setdiff1d(self._lost(genotypes), lost_less), len(sizes))

    def _lost(self, genotypes: _GeneSets) -> Ints:
        """Return the pairs of a genotype and a reaction it loses as ``genotype * n + reaction``."""
        genes = genotypes.genes.cpu().numpy()
        offsets = genotypes.offsets.cpu().numpy()
        owner = np.repeat(np.arange(len(offsets) - 1, dtype=np.int64), np.diff(offsets))
        starts, clauses = self._clauses_by_gene
        hits = starts[genes + 1] - starts[genes]
        broken = clauses[ragged_positions(starts[genes], hits)]
        n_clauses, n = max(len(self.clause_reaction), 1), max(self.n_reactions, 1)
        # A clause that loses two of its genes is broken once.
        once, _ = distinct(np.repeat(owner, hits) * n_clauses + broken)
        reaction = self.clause_reaction[once % n_clauses]
        key, times = distinct(once // n_clauses * n + reaction)
        lost: Ints = key[times == self._clauses_per_reaction[key % n]]
        return lost

    def _by_genotype(self, key: Ints, n_genotypes: int) -> LostReactions:
        n = max(self.n_reactions, 1)
        offsets = offsets_of(np.bincount(key // n, minlength=n_genotypes))
        return LostReactions(torch.from_numpy(key % n), torch.from_numpy(offsets))

    def names_lost_together(self, genotypes: _GeneSets) -> list[tuple[str, ...]]:
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
        sets = [set(self.clause_genes[a:b].tolist()) for a, b in pairwise(self.clause_offsets)]
        for begin, end in pairwise(ends.tolist()):
            clauses = sets[begin:end]
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
        parts = []
        for r, name in enumerate(self.reactions):
            clauses = np.flatnonzero(self.clause_reaction == r).tolist()
            signs = [1, -1] if self.reversible[r] else [-1 if self.lower[r] < 0 else 1]
            for number, clause in enumerate(clauses or [None], 1):
                isozyme = f"{name}_iso{number}" if len(clauses) > 1 else name
                parts += [(isozyme + ("_rev" if s < 0 else ""), r, s, clause) for s in signs]
        source = np.array([r for _, r, _, _ in parts], dtype=np.int64)
        sign = np.array([s for _, _, s, _ in parts], dtype=np.float64)
        owned = np.array([c for *_, c in parts if c is not None], dtype=np.int64)
        has_clause = np.array([c is not None for *_, c in parts], dtype=bool)
        starts = np.searchsorted(self.reaction, np.arange(self.n_reactions + 1))
        lengths = np.diff(starts)[source]
        at = ragged_positions(starts[source], lengths)
        clause_lengths = np.diff(self.clause_offsets)[owned]
        forward, low, high = sign > 0, self.lower[source], self.upper[source]
        return replace(
            self,
            reactions=tuple(name for name, *_ in parts),
            lower=np.maximum(np.where(forward, low, -high), 0.0),
            upper=np.where(forward, high, -low),
            reaction=np.repeat(np.arange(len(source), dtype=np.int32), lengths),
            metabolite=self.metabolite[at],
            coefficient=self.coefficient[at] * np.repeat(sign, lengths),
            clause_reaction=np.flatnonzero(has_clause).astype(np.int32),
            clause_genes=self.clause_genes[
                ragged_positions(self.clause_offsets[owned], clause_lengths)
            ],
            clause_offsets=offsets_of(clause_lengths),
            pathways=tuple(self.pathways[r] for r in source) if self.pathways else (),
        )

    def take(self, genes: Ints) -> Metabolism:
        """Return the metabolism over the given genes, renumbered; all others always live."""
        new_index = np.full(self.n_genes, -1, dtype=np.int32)
        new_index[genes] = np.arange(len(genes), dtype=np.int32)
        renumbered = new_index[self.clause_genes]
        inside = renumbered >= 0
        clause = np.repeat(np.arange(len(self.clause_reaction)), np.diff(self.clause_offsets))
        lengths = np.bincount(clause[inside], minlength=len(self.clause_reaction))
        offsets, kept = offsets_of(lengths), renumbered[inside]
        return replace(self, clause_genes=kept, clause_offsets=offsets, n_genes=len(genes))

    def equals(self, other: Metabolism) -> bool:
        """Whether both hold the same reactions, metabolites, stoichiometry, rules and pathways."""
        return self.n_genes == other.n_genes and self.to_arrow() == other.to_arrow()

    def __repr__(self) -> str:
        return f"Metabolism({self.n_reactions:,} reactions, {self.n_metabolites:,} metabolites)"

    def to_arrow(self) -> dict[str, pa.Table]:
        """Return its tables; that of the pathways only where a reaction has one."""
        names, metabolites = (pa.array(n, pa.string()) for n in (self.reactions, self.metabolites))
        tables = {
            "reactions": {"id": names, "lower": self.lower, "upper": self.upper},
            "metabolites": {"id": metabolites},
            "stoichiometry": {
                "reaction": pa.array(self.reaction, pa.int32()),
                "metabolite": pa.array(self.metabolite, pa.int32()),
                "coefficient": pa.array(self.coefficient, pa.float64()),
            },
            "clauses": {
                "reaction": pa.array(self.clause_reaction, pa.int32()),
                "end": pa.array(self.clause_offsets[1:], pa.int64()),
            },
            "clause_genes": {"gene": pa.array(self.clause_genes, pa.int32())},
        }
        # Left out where empty, so that cells without pathways keep their checksum.
        if self.pathways:
            lists = pa.array([list(p) for p in self.pathways], pa.list_(pa.string()))
            tables["pathways"] = {"names": lists}
        return {name: pa.table(columns) for name, columns in tables.items()}

    @classmethod
    def from_arrow(cls, tables: Mapping[str, pa.Table], n_genes: int) -> Metabolism:
        """Inverse of `to_arrow`; the numbers stay memory-mapped."""
        reactions, stoichiometry = tables["reactions"], tables["stoichiometry"]
        pathways = tables["pathways"]["names"].to_pylist() if "pathways" in tables else ()
        found = cls(
            tuple(reactions["id"].to_pylist()),
            tuple(tables["metabolites"]["id"].to_pylist()),
            column_of(reactions, "lower"),
            column_of(reactions, "upper"),
            column_of(stoichiometry, "reaction"),
            column_of(stoichiometry, "metabolite"),
            column_of(stoichiometry, "coefficient"),
            column_of(tables["clauses"], "reaction"),
            column_of(tables["clause_genes"], "gene"),
            np.concatenate([[0], column_of(tables["clauses"], "end")]).astype(np.int64),
            n_genes,
            tuple(map(tuple, pathways)),
        )
        for index, n in (
            (found.reaction, found.n_reactions),
            (found.metabolite, found.n_metabolites),
            (found.clause_reaction, found.n_reactions),
            (found.clause_genes, n_genes),
        ):
            if len(index) and not 0 <= index.min() <= index.max() < n:
                raise StoreError(
                    f"the metabolism has an index outside 0 to {n - 1}", code="damaged"
                )
        ends = found.clause_offsets
        if (np.diff(ends) < 0).any() or ends[-1] != len(found.clause_genes):
            raise StoreError("the metabolism's clauses do not fit their genes", code="damaged")
        if found.pathways and len(found.pathways) != found.n_reactions:
            raise StoreError("the metabolism's pathways do not fit its reactions", code="damaged")
        return found

    @cached_property
    def _clauses_by_gene(self) -> tuple[Ints, Ints]:
        clause = np.repeat(np.arange(len(self.clause_reaction)), np.diff(self.clause_offsets))
        order = np.argsort(self.clause_genes, kind="stable")
        starts = offsets_of(np.bincount(self.clause_genes, minlength=self.n_genes))
        return starts, clause[order].astype(np.int64)

    @cached_property
    def _clauses_per_reaction(self) -> Ints:
        return np.bincount(self.clause_reaction, minlength=self.n_reactions)


def clauses_of(rule: str) -> tuple[tuple[str, ...], ...]:
    """Return a rule as alternatives, each a set of genes that together suffice.

    ``(A and B) or C`` gives ``(("A", "B"), ("C",))``. Alternatives stay as they are written, also
    where one contains another; equal ones are kept once. An empty rule has no alternatives.
    """
    tokens = _TOKEN.findall(rule)[::-1]

    def malformed(why: str) -> InputError:
        shown = rule if len(rule) <= 80 else f"{rule[:80]}…"
        return InputError(f"the gene rule '{shown}' cannot be read: {why}", code="bad-rule")

    def either() -> list[frozenset[str]]:
        found = together()
        while tokens and tokens[-1].lower() in _OR:
            tokens.pop()
            found += together()
        return list(dict.fromkeys(found))

    def together() -> list[frozenset[str]]:
        found = one()
        while tokens and tokens[-1].lower() in _AND:
            tokens.pop()
            more = one()
            if len(found) * len(more) > MOST_CLAUSES:
                raise malformed(f"it has more than {MOST_CLAUSES} alternatives")
            found = list(dict.fromkeys(a | b for a, b in product(found, more)))
        return found

    def one() -> list[frozenset[str]]:
        if not tokens:
            raise malformed("it ends where a gene was expected")
        token = tokens.pop()
        if token == "(":
            found = either()
            if not tokens or tokens.pop() != ")":
                raise malformed("a bracket is not closed")
            return found
        if token == ")" or token.lower() in _AND | _OR:
            raise malformed(f"'{token}' stands where a gene was expected")
        if token.lower() == "not":
            raise malformed("'not' has no meaning for a deletion")
        return [frozenset([token])]

    try:
        clauses = either() if tokens else []
    except RecursionError:
        raise malformed("its brackets are nested too deep") from None
    if tokens:
        raise malformed(f"'{tokens[-1]}' was not expected")
    return tuple(tuple(sorted(clause)) for clause in clauses)
