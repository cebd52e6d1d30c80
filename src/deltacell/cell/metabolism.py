"""The metabolism of a cell: reactions, metabolites, and the genes that catalyse reactions."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
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
        lost.sort_indices()
        columns = (lost.indices, lost.indptr)
        return cls(*(torch.from_numpy(column.astype(np.int64)) for column in columns))

    def of(self, genotype: int) -> torch.Tensor:
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
        table = np.array(sorted(stoichiometry), dtype=np.float64).reshape(-1, 3)
        lengths = {len(rules), len(lower), len(upper), len(pathways) or len(reactions)}
        sizes = len(reactions), len(metabolites)
        if lengths != {sizes[0]} or (table[:, :2] < 0).any() or (table[:, :2] >= sizes).any():
            what = "reaction columns differ in length, or a stoichiometry index is out of range"
            raise InputError(what, code="bad-shape")
        clauses = [clauses_of(rule) for rule in rules]
        names = list(dict.fromkeys(g for rule in clauses for clause in rule for g in clause))
        index = dict(zip(names, genes.resolve(names).tolist(), strict=True))
        absent = [name for name, i in index.items() if i < 0]
        if absent and on_unknown != "drop":
            what = f"{len(absent)} genes of the rules are unknown or ambiguous, first '{absent[0]}'"
            raise GeneNameError(what, code="unknown-gene")
        sets = [
            (r, sorted({index[g] for g in clause if index[g] >= 0}))
            for r, alternatives in enumerate(clauses)
            for clause in alternatives
        ]
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
        return len(self.reactions)

    @property
    def n_metabolites(self) -> int:
        return len(self.metabolites)

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
        sizes = np.diff(deleted.indptr)
        others = np.repeat(sizes, sizes)
        at = ragged_positions(np.repeat(deleted.indptr[:-1], sizes), others)
        rest = at != np.repeat(np.arange(len(others)), others)
        smaller = _rows(deleted.indices[at[rest]], offsets_of(others - 1), self.n_genes)
        of_smaller = _rows(np.arange(len(others)), deleted.indptr, len(others))
        lost = self._lost(deleted) > of_smaller @ self._lost(smaller)
        return LostReactions.of_matrix(lost.tocsr())

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
        parts = []
        for r, name in enumerate(self.reactions):
            clauses = np.flatnonzero(self.clause_reaction == r).tolist()
            signs = [1, -1] if self.reversible[r] else [-1 if self.lower[r] < 0 else 1]
            for number, clause in enumerate(clauses or [-1], 1):
                isozyme = f"{name}_iso{number}" if len(clauses) > 1 else name
                parts += [(isozyme + ("_rev" if s < 0 else ""), r, s, clause) for s in signs]
        names = tuple(name for name, *_ in parts)
        source, sign, of_part = np.array([p[1:] for p in parts], np.int64).reshape(-1, 3).T
        starts = np.searchsorted(self.reaction, np.arange(self.n_reactions + 1))
        shape = self.n_reactions, self.n_metabolites
        entries = csr_array((self.coefficient, self.metabolite, starts), shape=shape)[source]
        lengths = np.diff(entries.indptr)
        clauses = _rows(self.clause_genes, self.clause_offsets, self.n_genes)[of_part[of_part >= 0]]
        low, high = self.lower[source], self.upper[source]
        return replace(
            self,
            reactions=names,
            lower=np.maximum(np.where(sign > 0, low, -high), 0.0),
            upper=np.where(sign > 0, high, -low),
            reaction=np.repeat(np.arange(len(source), dtype=np.int32), lengths),
            metabolite=entries.indices.astype(np.int32),
            coefficient=entries.data * np.repeat(sign, lengths),
            clause_reaction=np.flatnonzero(of_part >= 0).astype(np.int32),
            clause_genes=clauses.indices.astype(np.int32),
            clause_offsets=clauses.indptr.astype(np.int64),
            pathways=tuple(self.pathways[r] for r in source) if self.pathways else (),
        )

    def take(self, genes: Ints) -> Metabolism:
        """Return the metabolism of the given genes, renumbered; all others always live."""
        new_index = np.full(self.n_genes, -1, dtype=np.int32)
        new_index[genes] = np.arange(len(genes), dtype=np.int32)
        renumbered = new_index[self.clause_genes]
        inside = renumbered >= 0
        offsets, kept = offsets_of(inside)[self.clause_offsets], renumbered[inside]
        return replace(self, clause_genes=kept, clause_offsets=offsets, n_genes=len(genes))

    def __repr__(self) -> str:
        return f"Metabolism({self.n_reactions:,} reactions, {self.n_metabolites:,} metabolites)"

    def to_arrow(self) -> dict[str, pa.Table]:
        text, ends = pa.string(), self.clause_offsets[1:]
        tables = {
            "reactions": pa.table(
                {"id": pa.array(self.reactions, text), "lower": self.lower, "upper": self.upper},
            ),
            "metabolites": pa.table({"id": pa.array(self.metabolites, text)}),
            "stoichiometry": pa.table({name: getattr(self, name) for name in _ENTRIES}),
            "clauses": pa.table({"reaction": self.clause_reaction, "end": ends}),
            "clause_genes": pa.table({"gene": self.clause_genes}),
        }
        if self.pathways:
            names = pa.array(list(map(list, self.pathways)), pa.list_(text))
            tables["pathways"] = pa.table({"names": names})
        return tables

    @classmethod
    def from_arrow(cls, tables: Mapping[str, pa.Table], n_genes: int) -> Metabolism:
        def column(table: str, name: str) -> Any:
            return column_of(tables[table], name)

        found = cls(
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
        check_rows("metabolism", found.clause_offsets, found.clause_genes, n_genes)
        for name in ("reaction", "metabolite", "clause_reaction"):
            index, width = getattr(found, name), len(getattr(found, f"{name.split('_')[-1]}s"))
            check_rows("metabolism", np.array([0, len(index)]), index, width)
        if len(found.pathways) not in (0, found.n_reactions):
            raise StoreError("not every reaction has a list of pathways", code="damaged")
        return found


def _rows(columns: Any, offsets: Any, width: int) -> csr_array:
    ones = np.ones(len(columns), dtype=np.int32)
    return csr_array((ones, columns, offsets), shape=(len(offsets) - 1, width))


def _matrix(genotypes: Any, n_genes: int) -> csr_array:
    return _rows(genotypes.genes.cpu().numpy(), genotypes.offsets.cpu().numpy(), n_genes)


def clauses_of(rule: str) -> tuple[tuple[str, ...], ...]:
    """Return the clauses of a rule: ``(A and B) or C`` gives ``(("A", "B"), ("C",))``."""
    genes: list[str] = []

    def as_python(token: str) -> str:
        if token.lower() in _OPERATORS:
            return _OPERATORS[token.lower()]
        genes.append(token)
        return f"_{len(genes) - 1}"

    def alternatives(node: ast.expr) -> list[frozenset[str]]:
        if isinstance(node, ast.Name):
            return [frozenset([genes[int(node.id[1:])]])]
        if not isinstance(node, ast.BoolOp):
            raise SyntaxError
        found, *rest = map(alternatives, node.values)
        for more in rest:
            if isinstance(node.op, ast.Or):
                found += more
            elif len(found) * len(more) > MOST_CLAUSES:
                raise MemoryError
            else:
                found = [a | b for a, b in product(found, more)]
            found = list(dict.fromkeys(found))
        return found

    written = " ".join(map(as_python, _TOKEN.findall(rule)))
    try:
        # The rule is only parsed, never evaluated.
        clauses = alternatives(ast.parse(written, mode="eval").body) if written else []
    except (SyntaxError, RecursionError, MemoryError):
        what = f"the gene rule '{rule[:80]}' is invalid, or has more than {MOST_CLAUSES} clauses"
        raise InputError(what, code="bad-rule") from None
    return tuple(tuple(sorted(clause)) for clause in clauses)
