"""The metabolism of a cell: reactions, metabolites, and the genes that catalyse reactions."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, product
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import torch
from scipy.sparse import csr_array

from deltacell.base.arrays import (
    Bools,
    Doubles,
    Indices,
    Ints,
    column_of,
    offsets_of,
    ragged_positions,
)
from deltacell.base.errors import GeneNameError, InputError, StoreError
from deltacell.cell.genes import Genes, OnUnknown
from deltacell.cell.relation import check_rows

MOST_CLAUSES = 4096

_ENTRIES = ("reaction", "metabolite", "coefficient")
_TOKEN = re.compile(r"[()]|&+|\|+|[^\s()&|]+")
_OPERATORS = {"and": "and", "&": "and", "&&": "and", "or": "or", "|": "or", "||": "or"}
_OPERATORS |= {"(": "(", ")": ")"}


class LostReactions(NamedTuple):
    """The reactions that each genotype loses, in ascending order: a ragged pair."""

    reactions: torch.Tensor
    offsets: torch.Tensor

    @classmethod
    def of_matrix(cls, lost: csr_array) -> LostReactions:
        """Return the entries of a matrix [genotypes, reactions]."""
        lost.sort_indices()
        reactions = lost.indices.astype(np.int64)
        offsets = lost.indptr.astype(np.int64)
        return cls(torch.from_numpy(reactions), torch.from_numpy(offsets))

    def of(self, genotype: int) -> torch.Tensor:
        """Return the reactions that one genotype loses."""
        return self.reactions[self.offsets[genotype] : self.offsets[genotype + 1]]


@dataclass(frozen=True, eq=False, repr=False)
class Metabolism:
    """Reactions and metabolites with signed stoichiometry and Boolean gene rules.

    A rule is a list of clauses; a clause is satisfied when all of its genes live. A reaction is
    lost when no clause is satisfied; one without clauses is never lost.
    """

    reactions: tuple[str, ...]
    metabolites: tuple[str, ...]
    lower: Doubles  # bound of each reaction's flux
    upper: Doubles
    reaction: Indices  # of each entry of the stoichiometry, ascending
    metabolite: Indices
    coefficient: Doubles  # negative if consumed, positive if produced
    clause_reaction: Indices  # ascending
    clause_genes: Indices
    clause_offsets: Ints  # of each clause in `clause_genes`
    n_genes: int
    pathways: tuple[tuple[str, ...], ...] = ()  # of each reaction; empty if none has any

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
        """Make a metabolism from one rule per reaction, empty if it needs no gene.

        The stoichiometry consists of triples of reaction, metabolite and coefficient. An unknown
        gene is an error; with ``drop`` it is assumed to live always.
        """
        entries = np.array(sorted(stoichiometry), dtype=np.float64).reshape(-1, 3)
        lengths = {len(rules), len(lower), len(upper), len(pathways) or len(reactions)}
        numbers = entries[:, :2]  # of a reaction and a metabolite
        is_outside = (numbers < 0) | (numbers >= (len(reactions), len(metabolites)))
        if lengths != {len(reactions)} or is_outside.any():
            message = "reaction columns differ in length, or a stoichiometry index is out of range"
            raise InputError(message, code="bad-shape")
        clauses = _Clauses.of([clauses_of(rule) for rule in rules])
        index = _index_of_names(clauses.genes, genes, on_unknown)
        members = [sorted({index[g] for g in names if index[g] >= 0}) for names in clauses.genes]
        in_pathways = tuple(tuple(dict.fromkeys(names)) for names in pathways)
        return cls(
            tuple(reactions),
            tuple(metabolites),
            np.asarray(lower, dtype=np.float64),
            np.asarray(upper, dtype=np.float64),
            entries[:, 0].astype(np.int32),
            entries[:, 1].astype(np.int32),
            np.ascontiguousarray(entries[:, 2]),
            np.array(clauses.reaction, dtype=np.int32),
            np.array(list(chain.from_iterable(members)), dtype=np.int32),
            offsets_of(np.array(list(map(len, members)), dtype=np.int64)),
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

    def stats(self) -> dict[str, int]:
        """Return its sizes."""
        return {
            "reactions": self.n_reactions,
            "metabolites": self.n_metabolites,
            "genes_in_rules": len(np.unique(self.clause_genes)),
            "reactions_with_rule": len(np.unique(self.clause_reaction)),
        }

    @property
    def reversible(self) -> Bools:
        """Which reactions can run both ways."""
        return (self.lower < 0) & (self.upper > 0)

    @cached_property
    def rule_genes(self) -> tuple[Ints, Ints]:
        """The pairs (reaction, gene) of all rules, each once, ordered by reaction then gene."""
        reaction = np.repeat(self.clause_reaction, np.diff(self.clause_offsets))
        pairs = np.unique(np.stack([reaction, self.clause_genes]), axis=1).astype(np.int64)
        return pairs[0], pairs[1]

    def lost_reactions(self, genotypes: Any) -> LostReactions:
        """Return the reactions whose rules the living genes of each genotype cannot satisfy."""
        return LostReactions.of_matrix(self._lost(_matrix(genotypes, self.n_genes)))

    def lost_together(self, genotypes: Any) -> LostReactions:
        """Return the reactions that each genotype loses but no proper subset of its genes does."""
        deleted = _matrix(genotypes, self.n_genes)
        # It suffices to compare with the subsets that lack one gene.
        subsets = self._without_one_gene(deleted)
        n_subsets = len(deleted.indices)
        subsets_of_genotypes = _rows(np.arange(n_subsets), deleted.indptr, n_subsets)
        lost_by_a_subset = subsets_of_genotypes @ self._lost(subsets)
        lost = self._lost(deleted) > lost_by_a_subset
        return LostReactions.of_matrix(lost.tocsr())

    def _without_one_gene(self, deleted: csr_array) -> csr_array:
        """Return [deletions, genes]: for each deleted gene of a genotype, the genotype's others."""
        sizes = np.diff(deleted.indptr)
        size_of_own = np.repeat(sizes, sizes)  # of the genotype of each deletion, [deletions]
        start_of_own = np.repeat(deleted.indptr[:-1], sizes)
        deletion = ragged_positions(start_of_own, size_of_own)
        left_out = np.repeat(np.arange(len(size_of_own)), size_of_own)
        others = deletion[deletion != left_out]
        return _rows(deleted.indices[others], offsets_of(size_of_own - 1), self.n_genes)

    def _lost(self, deleted: csr_array) -> csr_array:
        """Return [genotypes, reactions] from the deleted genes, [genotypes, genes]."""
        broken = deleted @ self._clauses_of_genes
        # A clause that loses two of its genes counts once.
        broken.data[:] = 1
        lost = broken @ self._reaction_of_clauses
        n_clauses = np.bincount(self.clause_reaction, minlength=self.n_reactions)
        lost.data = (lost.data == n_clauses[lost.indices]).astype(np.int32)
        lost.eliminate_zeros()
        return lost

    @cached_property
    def _clauses_of_genes(self) -> csr_array:
        """Which clauses each gene is in, [genes, clauses]."""
        return _rows(self.clause_genes, self.clause_offsets, self.n_genes).T.tocsr()

    @cached_property
    def _reaction_of_clauses(self) -> csr_array:
        """Which reaction each clause is an alternative of, [clauses, reactions]."""
        offsets = np.arange(len(self.clause_reaction) + 1)
        return _rows(self.clause_reaction, offsets, self.n_reactions)

    def split(self) -> Metabolism:
        """Return a metabolism with one reaction per direction and isozyme.

        A reversible reaction becomes two, the second (``_rev``) with inverted signs; one that runs
        only backwards is inverted; each clause of a rule (``_iso1``, ``_iso2``, …) becomes one.
        """
        parts = self._directions_and_isozymes()
        source = np.array([part.reaction for part in parts], dtype=np.int64)
        sign = np.array([part.sign for part in parts], dtype=np.int64)
        clause = np.array([part.clause for part in parts], dtype=np.int64)
        entries = self._stoichiometry[source]
        lengths = np.diff(entries.indptr)
        has_clause = clause >= 0
        clauses = _rows(self.clause_genes, self.clause_offsets, self.n_genes)[clause[has_clause]]
        low = self.lower[source]
        high = self.upper[source]
        return replace(
            self,
            reactions=tuple(part.name for part in parts),
            lower=np.maximum(np.where(sign > 0, low, -high), 0.0),
            upper=np.where(sign > 0, high, -low),
            reaction=np.repeat(np.arange(len(source), dtype=np.int32), lengths),
            metabolite=entries.indices.astype(np.int32),
            coefficient=entries.data * np.repeat(sign, lengths),
            clause_reaction=np.flatnonzero(has_clause).astype(np.int32),
            clause_genes=clauses.indices.astype(np.int32),
            clause_offsets=clauses.indptr.astype(np.int64),
            pathways=tuple(self.pathways[r] for r in source) if self.pathways else (),
        )

    def _directions_and_isozymes(self) -> list[_PartOfReaction]:
        """Return a part for each direction and each clause of every reaction."""
        parts = []
        for reaction, name in enumerate(self.reactions):
            clauses = np.flatnonzero(self.clause_reaction == reaction).tolist()
            for number, clause in enumerate(clauses or [-1], 1):
                isozyme = f"{name}_iso{number}" if len(clauses) > 1 else name
                for sign in self._signs(reaction):
                    part_name = f"{isozyme}_rev" if sign < 0 else isozyme
                    parts.append(_PartOfReaction(part_name, reaction, sign, clause))
        return parts

    def _signs(self, reaction: int) -> list[int]:
        """Return the directions in which a reaction runs, 1 and -1."""
        if self.reversible[reaction]:
            return [1, -1]
        return [-1] if self.lower[reaction] < 0 else [1]

    @property
    def _stoichiometry(self) -> csr_array:
        """The coefficients, [reactions, metabolites]."""
        starts = np.searchsorted(self.reaction, np.arange(self.n_reactions + 1))
        shape = (self.n_reactions, self.n_metabolites)
        return csr_array((self.coefficient, self.metabolite, starts), shape=shape)

    def take(self, genes: Ints) -> Metabolism:
        """Return the metabolism of the given genes, renumbered; all others always live."""
        new_index = np.full(self.n_genes, -1, dtype=np.int32)
        new_index[genes] = np.arange(len(genes), dtype=np.int32)
        renumbered = new_index[self.clause_genes]
        is_inside = renumbered >= 0
        return replace(
            self,
            clause_genes=renumbered[is_inside],
            clause_offsets=offsets_of(is_inside)[self.clause_offsets],
            n_genes=len(genes),
        )

    def __repr__(self) -> str:
        return f"Metabolism({self.n_reactions:,} reactions, {self.n_metabolites:,} metabolites)"

    def to_arrow(self) -> dict[str, pa.Table]:
        """Return its columns as tables."""
        reactions = pa.array(self.reactions, pa.string())
        metabolites = pa.array(self.metabolites, pa.string())
        ends = self.clause_offsets[1:]
        tables = {
            "reactions": pa.table({"id": reactions, "lower": self.lower, "upper": self.upper}),
            "metabolites": pa.table({"id": metabolites}),
            "stoichiometry": pa.table({name: getattr(self, name) for name in _ENTRIES}),
            "clauses": pa.table({"reaction": self.clause_reaction, "end": ends}),
            "clause_genes": pa.table({"gene": self.clause_genes}),
        }
        if self.pathways:
            names = pa.array(list(map(list, self.pathways)), pa.list_(pa.string()))
            tables["pathways"] = pa.table({"names": names})
        return tables

    @classmethod
    def from_arrow(cls, tables: Mapping[str, pa.Table], n_genes: int) -> Metabolism:
        """Return the metabolism of tables that `to_arrow` made; inconsistent ones raise."""

        def column(table: str, name: str) -> Any:
            return column_of(tables[table], name)

        metabolism = cls(
            tuple(tables["reactions"]["id"].to_pylist()),
            tuple(tables["metabolites"]["id"].to_pylist()),
            lower=column("reactions", "lower"),
            upper=column("reactions", "upper"),
            **{name: column("stoichiometry", name) for name in _ENTRIES},
            clause_reaction=column("clauses", "reaction"),
            clause_genes=column("clause_genes", "gene"),
            clause_offsets=np.concatenate([[0], column("clauses", "end")]).astype(np.int64),
            n_genes=n_genes,
            pathways=tuple(map(tuple, column("pathways", "names"))) if "pathways" in tables else (),
        )
        check_rows("metabolism", metabolism.clause_offsets, metabolism.clause_genes, n_genes)
        _check_index(metabolism.reaction, metabolism.n_reactions)
        _check_index(metabolism.metabolite, metabolism.n_metabolites)
        _check_index(metabolism.clause_reaction, metabolism.n_reactions)
        if len(metabolism.pathways) not in (0, metabolism.n_reactions):
            raise StoreError("not every reaction has a list of pathways", code="damaged")
        return metabolism


class _PartOfReaction(NamedTuple):
    """One direction of a reaction with one of its isozymes."""

    name: str
    reaction: int
    sign: int  # -1 if it runs backwards
    clause: int  # -1 if the reaction needs no gene


class _Clauses(NamedTuple):
    """The clauses of all rules, in the order of the reactions."""

    reaction: list[int]
    genes: list[tuple[str, ...]]

    @classmethod
    def of(cls, rules: Sequence[Rule]) -> _Clauses:
        """Return the clauses of one rule per reaction."""
        reaction = []
        for i, rule in enumerate(rules):
            reaction += [i] * len(rule)
        return cls(reaction, list(chain.from_iterable(rules)))


def _index_of_names(
    clauses: Sequence[tuple[str, ...]],
    genes: Genes,
    on_unknown: OnUnknown,
) -> dict[str, int]:
    """Return the gene of each name in some clauses, which is negative if there is no such gene."""
    names = list(dict.fromkeys(chain.from_iterable(clauses)))
    index = dict(zip(names, genes.resolve(names).tolist(), strict=True))
    absent = [name for name in names if index[name] < 0]
    if absent and on_unknown != "drop":
        n_absent = len(absent)
        message = f"{n_absent} genes of the rules are unknown or ambiguous, first '{absent[0]}'"
        raise GeneNameError(message, code="unknown-gene")
    return index


def _check_index(index: Indices, width: int) -> None:
    """Raise if an index from disk is not below `width`."""
    check_rows("metabolism", np.array([0, len(index)]), index, width)


def _rows(columns: Any, offsets: Any, width: int) -> csr_array:
    """Return a matrix with ones in the given columns of each row, [rows, width]."""
    ones = np.ones(len(columns), dtype=np.int32)
    return csr_array((ones, columns, offsets), shape=(len(offsets) - 1, width))


def _matrix(genotypes: Any, n_genes: int) -> csr_array:
    """Return the deleted genes, [genotypes, genes]."""
    return _rows(genotypes.genes.cpu().numpy(), genotypes.offsets.cpu().numpy(), n_genes)


Rule = tuple[tuple[str, ...], ...]
"""The clauses of a rule: alternative sets of genes, of which one must live."""


def clauses_of(rule: str) -> Rule:
    """Return the clauses of a rule: ``(A and B) or C`` gives ``(("A", "B"), ("C",))``."""
    genes: list[str] = []

    def as_python(token: str) -> str:
        if token.lower() in _OPERATORS:
            return _OPERATORS[token.lower()]
        genes.append(token)
        return f"_{len(genes) - 1}"

    expression = " ".join(map(as_python, _TOKEN.findall(rule)))
    if not expression:
        return ()
    try:
        # The rule is only parsed, never evaluated.
        clauses = _alternatives(ast.parse(expression, mode="eval").body, genes)
    except (SyntaxError, RecursionError, MemoryError):
        message = f"the gene rule '{rule[:80]}' is invalid, or has more than {MOST_CLAUSES} clauses"
        raise InputError(message, code="bad-rule") from None
    return tuple(tuple(sorted(clause)) for clause in clauses)


def _alternatives(node: ast.expr, genes: Sequence[str]) -> list[frozenset[str]]:
    """Return the clauses of a parsed rule, in which ``_3`` is the gene with the number 3."""
    if isinstance(node, ast.Name):
        number = int(node.id[1:])
        return [frozenset([genes[number]])]
    if not isinstance(node, ast.BoolOp):
        raise SyntaxError
    operands = [_alternatives(value, genes) for value in node.values]
    clauses = operands[0]
    for more in operands[1:]:
        if isinstance(node.op, ast.Or):
            clauses += more
        elif len(clauses) * len(more) > MOST_CLAUSES:
            raise MemoryError
        else:
            clauses = [a | b for a, b in product(clauses, more)]
        clauses = list(dict.fromkeys(clauses))
    return clauses
