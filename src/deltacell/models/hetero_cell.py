"""HeteroCell: the score of a genotype from the difference between two whole cells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn

from deltacell.arrays import Ints
from deltacell.cell import Cell
from deltacell.errors import InputError
from deltacell.models.base import (
    Prediction,
    Recorded,
    check_cell,
    check_choice,
    check_range,
    checked_relations,
    named_range,
)
from deltacell.models.gene_vectors import GeneEncoder
from deltacell.models.heads import GlobalHead, Pooling, ScoreGate
from deltacell.models.hyper_sagnn import HyperSAGNN
from deltacell.models.layers import GeneLayer, MetabolicEdges, MetabolicLayer
from deltacell.propagate import (
    GENE,
    METABOLITE,
    REACTION,
    Aggregate,
    Deleted,
    DeletedNodes,
    Hop,
    Mutants,
    Propagation,
    SparseMatrix,
    Touched,
    WildType,
    by_difference,
    smaller_sets,
    strategy,
)
from deltacell.screen import Genotypes

OUTPUTS = ("mean", "gate", "global")
"""How the score is made: the mean of both heads, a learned mean of them, or the global head."""

AGGREGATIONS = ("sum", "mean")
"""What a gene receives over a relation: the sum or the mean over its living neighbours."""

MUTANTS = ("true", "matched", "none")
"""What mutants lack: the deleted genes, wrong genes of similar degrees; or no mutants."""

MATCHED_AMONG = 32
"""Genes of similar degree among which `matched_genes` assigns replacements."""


class EncodedCell(NamedTuple):
    """Message passing, and what it makes of the wild type."""

    hops: list[Hop]
    wild_type: WildType


class HeteroCell(Recorded, nn.Module):
    """Predict from the difference between the whole wild type and the whole mutant.

    `GeneEncoder` makes the genes' first vectors; each layer is a `GeneLayer` over the relations
    and, with metabolism, a `MetabolicLayer`. In a mutant the deleted genes, all edges that touch
    them and the reactions that require them are gone. The global head reads
    ``z = pool(wild type) - pool(mutant)``, see `Pooling`; the local head is `HyperSAGNN` on the
    wild type's vectors of the deleted genes. Normalisation is row by row, so a genotype's score is
    the same in any batch.

    Parameters
    ----------
    cell
        The wild type, for its sizes and the names of its relations and features.
    relations
        The relations to use, by name; by default all.
    hidden
        Width of a vector.
    layers
        Number of layers.
    gin_layers
        Linear layers of each relation's MLP in each layer.
    combine
        How the relations' messages become one vector, one of `COMBINATIONS`.
    output
        One of `OUTPUTS`.
    residual
        Whether a layer adds its input.
    metabolism
        Whether messages also pass through the cell's metabolism.
    features
        Features of the cell to use, by name; by default none.
    local_heads, local_layers
        Attention heads and layers of the local head; the heads divide the width.
    aggregation
        One of `AGGREGATIONS`.
    activation
        One of `ACTIVATIONS`.
    z_norm
        What is done to z before the global head, one of `Z_NORMS`.
    dropout
        Share of numbers dropped while training: one mask per step, gene, layer and relation, shared
        by the wild type and all mutants.
    largest
        The most genes that a genotype will have, see `HyperSAGNN`.
    mutant_layers
        How many of the last layers see the deletion; by default all. The layers before are those
        of the wild type.
    epistasis
        Whether the global head also reads the part of z that no smaller set of deletions explains,
        and with metabolism the reactions that no smaller set loses.
    mutants
        One of `MUTANTS`. With ``matched`` the mutant is that of wrong genes, see `matched_genes`,
        and with ``none`` there is only the local head: the difference is what a mutant is worth.
    propagation
        How mutants are propagated: the name of a strategy, or one made with `strategy`.
    """

    instead: Tensor
    instead_of: Tensor

    def __init__(
        self,
        cell: Cell,
        relations: Sequence[str] | None = None,
        *,
        hidden: int = 64,
        layers: int = 3,
        gin_layers: int = 2,
        combine: str = "sum",
        output: str = "mean",
        residual: bool = False,
        metabolism: bool = False,
        features: Sequence[str] | None = None,
        local_heads: int = 8,
        local_layers: int = 2,
        aggregation: str = "sum",
        activation: str = "gelu",
        z_norm: str = "norm",
        dropout: float = 0.0,
        largest: int | None = None,
        mutant_layers: int | None = None,
        epistasis: bool = False,
        mutants: str = "true",
        propagation: str | Propagation = "auto",
    ) -> None:
        super().__init__()
        check_choice("output", output, OUTPUTS)
        check_choice("aggregation", aggregation, AGGREGATIONS)
        check_choice("kind of mutants", mutants, MUTANTS)
        check_range("[1, inf)", hidden=hidden, layers=layers, gin_layers=gin_layers)
        check_range("[0, 1)", dropout=dropout)
        self.mutant_layers = layers if mutant_layers is None else mutant_layers
        check_range(f"[1, {layers}]", mutant_layers=self.mutant_layers)
        if mutants == "none" and output != "mean":
            raise InputError(
                f"mutants='none' leaves only the local head, and the output is '{output}'",
                code="no-mutants",
                fix="Set output='mean'.",
            )
        self.n_genes = cell.n_genes
        self.relations = checked_relations(cell, cell.relations if relations is None else relations)
        self.output, self.aggregation = output, aggregation
        self.mutants, self.epistasis = mutants, epistasis
        self.propagation: Propagation = (
            strategy(propagation) if isinstance(propagation, str) else propagation
        )
        self.encoder = GeneEncoder(cell, features or (), hidden, activation, dropout)
        self.layers = nn.ModuleList(
            GeneLayer(
                f"hetero_cell.layer{i}",
                len(self.relations),
                hidden,
                gin_layers=gin_layers,
                combine=combine,
                activation=activation,
                residual=residual,
                dropout=dropout,
            )
            for i in range(1, layers + 1)
        )
        self.reactions: nn.Parameter | None = None
        self.metabolites: nn.Parameter | None = None
        self.metabolic_layers = nn.ModuleList()
        if metabolism:
            if cell.metabolism is None:
                raise InputError(
                    "metabolism=True, and the cell has no metabolism",
                    code="no-metabolism",
                    fix="Use a cell that has one, or metabolism=False.",
                )
            sizes = cell.metabolism.n_reactions, cell.metabolism.n_metabolites
            self.reactions, self.metabolites = (
                nn.Parameter(torch.empty(n, hidden).normal_(std=0.02)) for n in sizes
            )
            self.metabolic_layers.extend(
                MetabolicLayer(f"hetero_cell.metabolism{i}", hidden, activation)
                for i in range(1, layers + 1)
            )
        self.pooling = Pooling(hidden, activation)
        self.global_head = GlobalHead(
            cell.n_genes,
            hidden,
            activation,
            z_norm,
            epistasis=epistasis,
            lost=epistasis and metabolism,
        )
        instead = matched_genes(cell, self.relations) if mutants == "matched" else np.empty(0, int)
        self.register_buffer("instead", torch.from_numpy(instead), persistent=False)
        self.register_buffer("instead_of", torch.from_numpy(instead.argsort()), persistent=False)
        self.local_head = (
            None
            if output == "global"
            else HyperSAGNN(hidden, local_heads, local_layers, largest=largest)
        )
        self.gate = ScoreGate(hidden, activation) if output == "gate" else None

    def forward(self, cell: Cell, genotypes: Genotypes | Deleted) -> Prediction:
        """Return the scores [b] of genotypes.

        The intermediate results are ``genes``, the wild type's vectors [n_genes, hidden], ``pool``,
        the pooled wild type [hidden], ``z`` [b, hidden], ``global`` [b]; with a local head
        ``local`` [b]; with the output ``gate`` the weights of the two, ``gate`` [b, 2]; with
        epistasis ``epistasis`` [b, hidden] in float64 and, with metabolism, ``lost`` [b, hidden],
        the sum over the reactions that no smaller set loses.

        If the genotypes were prepared with `prepare`, the step waits for no device.
        """
        deleted = self._prepared(cell, genotypes)
        return self._score(self.encode(cell), deleted)

    def encode(self, cell: Cell) -> EncodedCell:
        """Return the wild type, against which `score` scores genotypes; draws the dropout."""
        with named_range("hetero_cell.encoder"):
            state = {GENE: self.encoder(cell)}
            if self.reactions is not None and self.metabolites is not None:
                state |= {REACTION: self.reactions, METABOLITE: self.metabolites}
            kept = [layer.draw(state[GENE]) for layer in self._gene_layers]
        hops = self.hops(cell, kept)
        with named_range("hetero_cell.wild_type"):
            return EncodedCell(hops, self.propagation.wild_type(hops, state))

    def score(self, cell: Cell, encoded: EncodedCell, genotypes: Genotypes | Deleted) -> Prediction:
        """Return what `forward` does, for a wild type that `encode` has encoded."""
        return self._score(encoded, self._prepared(cell, genotypes))

    def prepare(self, cell: Cell, genotypes: Genotypes) -> Deleted:
        """Do the host's work for a batch; it can run ahead of the step, in the loader's thread."""
        self.check(cell)
        genotypes = genotypes.to("cpu")
        if self.mutants == "none":
            return Deleted.of(cell, genotypes)
        hops = self.mutant_hops(cell)

        def deleted(sets: Genotypes) -> Deleted:
            return Deleted.of(cell, sets, metabolism=self.reactions is not None)

        if self.mutants == "matched":
            genotypes = genotypes.check(cell.n_genes)
            genotypes = Genotypes(self.instead.cpu()[genotypes.genes], genotypes.offsets)
        wanted = replace(deleted(genotypes), epistasis=self.epistasis)
        prepared = self.propagation.prepare(hops, wanted)
        if self.epistasis and not isinstance(prepared, Touched):
            smaller = smaller_sets(
                genotypes, lambda sets: self.propagation.prepare(hops, deleted(sets))
            )
            prepared = replace(prepared, smaller=smaller)
        if self.epistasis and self.reactions is not None and cell.metabolism is not None:
            lost = DeletedNodes.of(*cell.metabolism.lost_together(genotypes))
            prepared = replace(prepared, together=lost)
        return prepared

    def mutant_vectors(self, cell: Cell, genotypes: Genotypes | Deleted) -> Tensor:
        """Return the genes' vectors in every mutant, [b, n_genes, hidden], 0 where deleted."""
        if self.mutants == "none":
            raise InputError("a model with mutants='none' has no mutants", code="no-mutants")
        deleted = self._prepared(cell, genotypes)
        vectors = self._mutants(self.encode(cell), deleted, vectors=True).vectors
        assert vectors is not None
        return vectors

    def hops(self, cell: Cell, kept: Sequence[Tensor | None] | None = None) -> list[Hop]:
        """Return message passing as hops, with each layer's dropout of this step, if any."""
        mean = self.aggregation == "mean"
        aggregates = [
            Aggregate(GENE, SparseMatrix.of(cell.relation(name)), mean) for name in self.relations
        ]
        hops: list[Hop] = []
        for i, layer in enumerate(self._gene_layers):
            hops.append(layer.hop(aggregates, None if kept is None else kept[i]))
            if cell.metabolism is not None and self.reactions is not None:
                edges = MetabolicEdges.of(cell.metabolism)
                metabolic = cast(MetabolicLayer, self.metabolic_layers[i])
                hops.extend(metabolic.hops(edges, last=i == len(self.layers) - 1))
        return hops

    def mutant_hops(self, cell: Cell) -> list[Hop]:
        """Return those hops that see the deletion, which are the last ones."""
        return self.hops(cell)[self._early :]

    def compile_row_wise(self, **options: Any) -> None:
        """Compile the parts that work gene by gene or genotype by genotype; sparse products stay.

        The compiled code is for any number of rows. Options are those of `torch.compile`.
        """
        options = {"dynamic": True} | options
        for layer in self._gene_layers:
            layer.compile_row_wise(**options)
        self.pooling.compile(**options)
        if self.local_head is not None:
            self.local_head.compile_row_wise(**options)

    def check(self, cell: Cell) -> None:
        """Raise if the cell differs in kind from the one that the model was made for."""
        sizes = {"genes": (self.n_genes, cell.n_genes)}
        if self.reactions is not None and self.metabolites is not None:
            there = cell.metabolism
            sizes["reactions"] = len(self.reactions), there.n_reactions if there else 0
            sizes["metabolites"] = len(self.metabolites), there.n_metabolites if there else 0
        check_cell(**sizes)
        for name in self.relations:
            cell.relation(name)
        self.encoder.features.check(cell)

    @property
    def _gene_layers(self) -> list[GeneLayer]:
        return [cast(GeneLayer, layer) for layer in self.layers]

    @property
    def _early(self) -> int:
        # Before the last layer, metabolism adds three hops to a layer.
        hops_of_a_layer = 1 if self.reactions is None else 4
        return (len(self.layers) - self.mutant_layers) * hops_of_a_layer

    def _prepared(self, cell: Cell, genotypes: Genotypes | Deleted) -> Deleted:
        self.check(cell)
        if isinstance(genotypes, Genotypes):
            genotypes = self.prepare(cell, genotypes)
        elif (
            self.mutants != "none"
            and self.reactions is not None
            and REACTION not in genotypes.nodes
        ):
            raise _not_prepared("metabolism")
        return genotypes.to(self.encoder.embedding.device, non_blocking=True)

    def _score(self, encoded: EncodedCell, deleted: Deleted) -> Prediction:
        genes = encoded.wild_type.last[GENE]
        intermediate = {"genes": genes}
        scores = []
        if self.mutants != "none":
            scores.append(self._global_score(encoded, deleted, intermediate))
        if self.local_head is not None:
            named = deleted.genotypes
            if self.mutants == "matched":
                # The local head reads the genes that were given, not those propagated instead.
                named = Genotypes(self.instead_of[named.genes], named.offsets)
            with named_range("hetero_cell.local_head"):
                scores.append(self.local_head(genes, named))
            intermediate["local"] = scores[-1]
        if len(scores) == 1:
            return Prediction(scores[0], intermediate)
        if self.gate is None:
            return Prediction((scores[0] + scores[1]) / 2, intermediate)
        with named_range("hetero_cell.gate"):
            score, intermediate["gate"] = self.gate(torch.stack(scores, -1))
        return Prediction(score, intermediate)

    def _global_score(
        self, encoded: EncodedCell, deleted: Deleted, intermediate: dict[str, Tensor]
    ) -> Tensor:
        mutants = self._mutants(encoded, deleted)
        intermediate |= {"pool": mutants.pooled, "z": mutants.z}
        read = []
        if self.epistasis:
            epistasis = mutants.epistasis
            if epistasis is None:
                if deleted.smaller is None:
                    raise _not_prepared("epistasis")
                of_subsets = self._mutants(encoded, deleted.smaller.deleted)
                epistasis = by_difference(of_subsets.z, deleted.smaller, len(deleted))
            intermediate["epistasis"] = epistasis
            read.append(epistasis)
        if deleted.together is not None:
            together, reactions = deleted.together, encoded.wild_type.last[REACTION]
            lost = reactions.new_zeros(len(deleted), reactions.shape[1])
            lost = lost.index_add(0, together.owner, reactions.index_select(0, together.nodes))
            intermediate["lost"] = lost
            read.append(lost)
        with named_range("hetero_cell.global_head"):
            intermediate["global"] = self.global_head(mutants.z, *read)
        return intermediate["global"]

    def _mutants(self, encoded: EncodedCell, deleted: Deleted, *, vectors: bool = False) -> Mutants:
        with named_range("hetero_cell.mutants"):
            return self.propagation.mutants(
                encoded.hops[self._early :],
                encoded.wild_type.after(self._early),
                deleted,
                self.pooling,
                vectors=vectors,
            )


def matched_genes(cell: Cell, relations: Sequence[str]) -> Ints:
    """Return a wrong gene for each gene, of similar degree in every relation.

    A permutation without fixed points: genes are ordered by their degrees over all relations, and
    within each block of about 32 every gene is assigned another so that the differences of the
    logarithms of their degrees are smallest. Hubs stay hubs, and who their neighbours are is lost.
    """
    degrees = np.stack([cell.relation(name).out_degree for name in relations], axis=1)
    logs = np.log1p(degrees)
    order = np.argsort(logs.sum(1), kind="stable")
    if len(order) < 2:
        raise InputError("matched genes need a cell of at least two genes", code="too-few-genes")
    instead = np.empty(len(order), dtype=np.int64)
    for block in np.array_split(order, max(1, len(order) // MATCHED_AMONG)):
        apart = np.abs(logs[block][:, None] - logs[block][None]).sum(2)
        np.fill_diagonal(apart, 1e6)
        instead[block] = block[linear_sum_assignment(apart)[1]]
    return instead


def _not_prepared(what: str) -> InputError:
    return InputError(
        f"the genotypes were prepared without {what}, which the model reads",
        code="not-prepared",
        fix="Prepare them with this model's `prepare`.",
    )
