"""HeteroCell: the score of a genotype from the difference between wild type and mutant."""

from __future__ import annotations

import copy
import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn
from torch.nn import functional

from deltacell.base.arrays import Ints
from deltacell.base.errors import InputError
from deltacell.cell import Cell
from deltacell.models.base import (
    check_cell,
    check_choice,
    check_range,
    checked_relations,
    named_range,
)
from deltacell.models.gene_vectors import GeneEncoder
from deltacell.models.hetero_cell.gates import HeteroCellGates
from deltacell.models.hetero_cell.layers import (
    EncodedCell,
    GeneLayer,
    MetabolicEdges,
    MetabolicLayer,
    in_precision_of,
)
from deltacell.models.hetero_cell.scorer import HeteroCellScorer
from deltacell.models.hyper_sagnn import HyperSAGNN
from deltacell.models.interface import GatedScore, LabelledSets, Model, Prediction, TargetScale
from deltacell.profile.record import Messages
from deltacell.propagate.auto import Auto, strategy
from deltacell.propagate.base import Deleted, DeletedNodes, Propagation
from deltacell.propagate.hop import GENE, METABOLITE, REACTION, Aggregate, Hop
from deltacell.propagate.pool import Terms
from deltacell.propagate.product import SparseMatrix
from deltacell.propagate.workers import Rows
from deltacell.screen import Genotypes

OUTPUTS = ("mean", "gate", "global")  # the mean or a gated mean of both heads, or the global head
AGGREGATIONS = ("sum", "mean")  # over the living neighbours
MUTANTS = ("true", "matched", "none")  # delete the genotype's genes, `matched_genes`, or nothing
Z_NORMS = ("scale", "norm", "none")
MATCHED_AMONG = 32  # block size of `matched_genes`
EPISTASIS = 1000.0  # the rough ratio of z to epistasis


class HeteroCell(Model):
    """Predict from the difference between the whole wild type and the whole mutant.

    `GeneEncoder` computes the genes' first vectors; each layer is a `GeneLayer` over the relations
    and, with metabolism, a `MetabolicLayer`. In the last ``mutant_layers``, a mutant lacks the
    deleted genes, their edges and the reactions that require them. The global head reads
    ``z = pool(wild type) - pool(mutant)``, see `Pooling`, and with ``epistasis`` the part of z, or
    with metabolism the reactions, that no smaller set explains. The local head is `HyperSAGNN` on
    the wild type's vectors of the deleted genes. Normalisation is row by row, so a genotype's score
    is the same in any batch. The wild type and all mutants share one dropout mask per step.
    docs/reference/config.md describes all parameters.
    """

    sets_per_block = 64
    relations: tuple[str, ...]

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
        features: Sequence[str] | None = (),
        local_heads: int = 8,
        local_layers: int = 2,
        aggregation: str = "sum",
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
        if epistasis and not metabolism and self.mutant_layers > 1:
            what = "epistasis requires mutant_layers=1, unless metabolism=True"
            raise InputError(what, code="not-late")
        if mutants == "none" and output != "mean":
            what = f"mutants='none' requires output='mean', not '{output}'"
            raise InputError(what, code="no-mutants")
        self.n_genes = cell.n_genes
        self.relations = checked_relations(cell, cell.relations if relations is None else relations)
        self.aggregation, self.mutants, self.epistasis = aggregation, mutants, epistasis
        self.propagation: Propagation = (
            strategy(propagation) if isinstance(propagation, str) else propagation
        )
        self.encoder = GeneEncoder(cell, features, hidden, dropout)
        options = (gin_layers, combine, residual, dropout)
        self.layers = nn.ModuleList(
            GeneLayer(f"hetero_cell.layer{i}", len(self.relations), hidden, *options)
            for i in range(1, layers + 1)
        )
        self.reactions = self.metabolites = None
        self.metabolic_layers = nn.ModuleList()
        if metabolism:
            if cell.metabolism is None:
                what = "metabolism=True, but the cell has no metabolism"
                raise InputError(what, code="no-metabolism")
            sizes = cell.metabolism.n_reactions, cell.metabolism.n_metabolites
            self.reactions, self.metabolites = (
                nn.Parameter(torch.empty(n, hidden).normal_(std=0.02)) for n in sizes
            )
            self.metabolic_layers.extend(
                MetabolicLayer(f"hetero_cell.metabolism{i}", hidden) for i in range(1, layers + 1)
            )
        self.pooling = Pooling(hidden)
        read = epistasis and not metabolism, epistasis and metabolism
        self.global_head = GlobalHead(cell.n_genes, hidden, z_norm, *read)
        instead = matched_genes(cell, self.relations) if mutants == "matched" else np.empty(0, int)
        self.instead = nn.Buffer(torch.from_numpy(instead), persistent=False)
        self.local_head = None
        if output != "global":
            self.local_head = HyperSAGNN(hidden, local_heads, local_layers, largest=largest)
        self.gate = None
        if output == "gate":
            self.gate = nn.Sequential(nn.Linear(2, hidden), nn.GELU(), nn.Linear(hidden, 2))

    def begin(self, cell: Cell, training: LabelledSets) -> None:
        """Let the propagation `auto` make its choice, which the record of a run keeps."""
        self.prepare(cell, Genotypes.of([]))

    def forward(
        self,
        cell: Cell,
        genotypes: Genotypes | Deleted,
        *,
        wanted: Collection[str] = (),
    ) -> Prediction:
        """Return the scores [b] of genotypes.

        The intermediate results are the wild type's vectors ``genes`` [n_genes, hidden] and their
        ``pool`` [hidden], ``z`` [b, hidden], the scores ``global`` and ``local`` [b] and their
        weights ``gate`` [b, 2], ``epistasis`` [b, hidden] in float64, and ``lost`` [b, hidden], the
        sum over the reactions that no smaller set loses.
        """
        return self.score(cell, self.encode(cell), genotypes)

    def messages(self) -> Messages | None:
        return Messages.wild_type if self.mutants == "none" else self.propagation.messages()

    def encode(self, cell: Cell) -> EncodedCell:
        """Draw the dropout and return the wild type, which `score` needs."""
        self.check(cell)
        with named_range("hetero_cell.encoder"):
            state = self.first_state(cell)
            kept = [layer.draw(state[GENE]) for layer in self._gene_layers]
        hops = self.hops(cell, kept)
        with named_range("hetero_cell.wild_type"):
            return EncodedCell(hops, self.propagation.wild_type(hops, state))

    def first_state(self, cell: Cell) -> dict[str, Tensor]:
        """Return the vectors before the first layer by kind of node, [nodes, hidden] each."""
        state = {GENE: self.encoder(cell)}
        if self.reactions is not None and self.metabolites is not None:
            state |= {REACTION: self.reactions, METABOLITE: self.metabolites}
        return state

    def score(self, cell: Cell, encoded: EncodedCell, genotypes: Genotypes | Deleted) -> Prediction:
        """Return the result of `forward` for an encoded wild type."""
        # Genotypes that were prepared for another model, cell or strategy are prepared again.
        if isinstance(genotypes, Deleted) and genotypes.made_for != self._made_for(cell):
            genotypes = genotypes.genotypes
        if isinstance(genotypes, Genotypes):
            genotypes = self.prepare(cell, genotypes)
        deleted = genotypes.to(self.encoder.embedding.device, non_blocking=True)
        genes = encoded.wild_type.last[GENE]
        intermediate = {"genes": genes}
        scores = []
        if self.mutants != "none":
            scores.append(self._global_score(encoded, deleted, intermediate))
        if self.local_head is not None:
            with named_range("hetero_cell.local_head"):
                scores.append(self.local_head(genes, deleted.genotypes))
            intermediate["local"] = scores[-1]
        both = torch.stack(scores, -1)
        if self.gate is None:
            return Prediction(both.mean(-1), intermediate)
        with named_range("hetero_cell.gate"):
            weights = intermediate["gate"] = self.gate(both).softmax(-1).to(both.dtype)
            return Prediction((weights * both).sum(-1), intermediate)

    def prepare(self, cell: Cell, genotypes: Genotypes) -> Deleted:
        """Do the host's part of a step; the loader's thread can do it ahead."""
        self.check(cell)
        metabolism = cell.metabolism if self.reactions is not None else None
        instead = self.instead.cpu() if self.mutants == "matched" else None
        found = Deleted.of(cell, genotypes, metabolism=metabolism is not None, instead=instead)
        if self.mutants != "none":
            found = replace(found, epistasis=self.epistasis and metabolism is None)
            if self.epistasis and metabolism is not None:
                together = DeletedNodes.of(*metabolism.lost_together(found.lost))
                found = replace(found, together=together)
            found = self.propagation.prepare(self.mutant_hops(cell), found)
        return replace(found, made_for=self._made_for(cell))

    def hops(self, cell: Cell, kept: Sequence[Tensor | None] | None = None) -> list[Hop]:
        """Return message passing as hops, with the dropout of each layer, if any."""
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
        """Return the hops that see the deletion."""
        return self.hops(cell)[self._early :]

    def facts(self) -> dict[str, Any]:
        way = self.propagation
        chosen: dict[str, Any] = {"name": way.name, "choice": None, "why": "set in the config"}
        if isinstance(way, Auto):
            chosen = {"name": "auto", "choice": dict(vars(way)), "why": way.explain()}
        return {"propagation": chosen}

    def scorer(self, cell: Cell, scale: TargetScale) -> HeteroCellScorer:
        return HeteroCellScorer(copy.deepcopy(self).eval().requires_grad_(False), cell, scale)

    def gated(self, cell: Cell, genes: Sequence[int]) -> GatedScore:
        exact = copy.deepcopy(self).double().eval().requires_grad_(False)
        return HeteroCellGates(exact, cell, genes)

    def compile_parts(self, **options: Any) -> None:
        """Compile the parts that work row by row; options are those of `torch.compile`."""
        options = {"dynamic": True} | options
        for layer in self._gene_layers:
            layer.compile_row_wise(**options)
        self.pooling.compile(**options)
        if self.local_head is not None:
            self.local_head.compile_row_wise(**options)

    def check(self, cell: Cell) -> None:
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

    def _made_for(self, cell: Cell) -> list[object]:
        return [self, cell, self.propagation]

    def _global_score(
        self,
        encoded: EncodedCell,
        deleted: Deleted,
        intermediate: dict[str, Tensor],
    ) -> Tensor:
        hops, wild_type = encoded.hops[self._early :], encoded.wild_type.after(self._early)
        with named_range("hetero_cell.mutants"):
            mutants = self.propagation.mutants(hops, wild_type, deleted, self.pooling)
        intermediate |= {"pool": mutants.pooled, "z": mutants.z}
        if deleted.epistasis:
            if mutants.epistasis is None:
                what = f"propagation '{self.propagation.name}' does not compute epistasis"
                fix = "Set model.propagation=late, or auto without model.max_bytes."
                raise InputError(what, code="not-late", fix=fix)
            intermediate["epistasis"] = mutants.epistasis
        if deleted.together is not None:
            together, reactions = deleted.together, encoded.wild_type.last[REACTION]
            lost = reactions.new_zeros(len(deleted), reactions.shape[1])
            lost = lost.index_add(0, together.owner, reactions.index_select(0, together.nodes))
            intermediate["lost"] = lost
        with named_range("hetero_cell.global_head"):
            read = (intermediate.get(name) for name in ("epistasis", "lost"))
            intermediate["global"] = self.global_head(mutants.z, *read)
        return intermediate["global"]


def matched_genes(cell: Cell, relations: Sequence[str]) -> Ints:
    """Return a permutation of the genes that replaces each by one of similar degrees.

    Within blocks of about 32 genes of similar degree, the assignment minimises the differences of
    the log degrees over all relations. Hubs stay hubs, but get other neighbours.
    """
    degrees = np.stack([cell.relation(name).out_degree for name in relations], axis=1)
    logs = np.log1p(degrees)
    order = np.argsort(logs.sum(1), kind="stable")
    instead = np.empty(len(order), dtype=np.int64)
    for block in np.array_split(order, max(1, len(order) // MATCHED_AMONG)):
        apart = np.abs(logs[block][:, None] - logs[block][None]).sum(2)
        np.fill_diagonal(apart, 1e6)
        instead[block] = block[linear_sum_assignment(apart)[1]]
    return instead


class Pooling(nn.Module):
    """``p = sum_i w_i v_i`` over living genes, w the softmax of gate(x_i), v_i = act(Linear(x_i)).

    The gate is Linear(hidden, hidden / 2), act, Linear(hidden / 2, 1). Gates and values are
    computed in fp32 or better even inside autocast, because only their tiny differences matter.
    """

    def __init__(self, hidden: int) -> None:
        super().__init__()
        act, half = nn.GELU(), hidden // 2
        self.gate = nn.Sequential(nn.Linear(hidden, half), act, nn.Linear(half, 1))
        self.value = nn.Sequential(nn.Linear(hidden, hidden), act)

    def forward(self, vectors: Tensor) -> tuple[Tensor, Tensor]:
        return self.gate(vectors).squeeze(-1), self.value(vectors)

    def terms(self, vectors: Tensor, rows: Rows) -> Terms:
        """Return gates [...] and values [..., hidden] of vectors; ``rows`` is not used."""
        with named_range("hetero_cell.pooling"), torch.autocast(vectors.device.type, enabled=False):
            return Terms(*in_precision_of(self, vectors))


class GlobalHead(nn.Module):
    """A score from the difference z of the whole cell: Linear(hidden, hidden), act, Linear.

    z is about 1 / n_genes for each deleted gene. With the `z_norm` ``scale`` it is multiplied by a
    learned number that starts at n_genes; ``norm`` is a LayerNorm of ``n_genes * z``. Epistasis is
    about a thousand times smaller and varies by orders of magnitude, so the head reads
    ``asinh(scale * n_genes * epistasis)`` with a learned scale that starts at `EPISTASIS`.
    """

    def __init__(self, n_genes: int, hidden: int, z_norm: str, epistasis: bool, lost: bool) -> None:
        super().__init__()
        check_choice("z_norm", z_norm, Z_NORMS)
        self.n_genes = n_genes
        self.norm = nn.LayerNorm(hidden) if z_norm == "norm" else None
        self.log_scale, self.epistasis_log_scale = (
            nn.Parameter(torch.tensor(math.log(start))) if wanted else None
            for start, wanted in ((max(n_genes, 1), z_norm == "scale"), (EPISTASIS, epistasis))
        )
        self.inner = nn.Linear((1 + epistasis + lost) * hidden, hidden)
        self.out = nn.Linear(hidden, 1)

    def forward(
        self,
        z: Tensor,
        epistasis: Tensor | None = None,
        lost: Tensor | None = None,
    ) -> Tensor:
        if self.log_scale is not None:
            z = z * self.log_scale.exp()
        if self.norm is not None:
            z = self.norm(self.n_genes * z)
        read = [z]
        if self.epistasis_log_scale is not None and epistasis is not None:
            scale = self.n_genes * self.epistasis_log_scale.double().exp()
            read.append((scale * epistasis).asinh().to(z.dtype))
        if lost is not None:
            read.append(lost.to(z.dtype))
        inner = functional.gelu(self.inner(torch.cat(read, -1)))
        return self.out(inner).squeeze(-1)  # type: ignore[no-any-return]
