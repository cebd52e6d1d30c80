"""HeteroCell: the score of a genotype from the difference between wild type and mutant."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from deltacell.base.checks import check_choice, check_range
from deltacell.base.errors import InputError
from deltacell.base.files import JsonObject
from deltacell.cell import Cell, Metabolism
from deltacell.models.base import check_cell, checked_relations, named_range
from deltacell.models.gene_vectors import GeneEncoder
from deltacell.models.hetero_cell.gates import HeteroCellGates
from deltacell.models.hetero_cell.heads import GlobalHead, Pooling
from deltacell.models.hetero_cell.layers import GeneLayer, MetabolicEdges, MetabolicLayer
from deltacell.models.hetero_cell.matched import matched_genes
from deltacell.models.hetero_cell.prepared import PreparedMutants
from deltacell.models.hetero_cell.scorer import HeteroCellScorer
from deltacell.models.hyper_sagnn import HyperSAGNN
from deltacell.models.interface import GatedScore, LabelledSets, Model, Prediction, TargetScale
from deltacell.profile.record import Messages
from deltacell.propagate.choose import AUTO, Auto, ChosenStrategy, strategy
from deltacell.propagate.deleted import Deleted, DeletedNodes
from deltacell.propagate.hop import GENE, METABOLITE, REACTION, Aggregate, Hop, HopShape, State
from deltacell.propagate.product import SparseMatrix
from deltacell.propagate.strategy import AnyStrategy, Plan, WildType
from deltacell.screen import Genotypes

OUTPUTS = ("mean", "gate", "global")  # the mean or a gated mean of both heads, or the global head
AGGREGATIONS = ("sum", "mean")  # over the living neighbours
MUTANTS = ("true", "matched", "none")  # delete the genotype's genes, `matched_genes`, or nothing


class LayerShapes(NamedTuple):
    """What a layer reads in a cell."""

    genes: HopShape
    metabolism: tuple[HopShape, ...]


@dataclass(frozen=True, eq=False)
class CellShapes:
    """What all layers read in one cell."""

    cell: weakref.ref[Cell]
    layers: tuple[LayerShapes, ...]

    @property
    def hops(self) -> list[HopShape]:
        """The shapes of all hops, in order."""
        hops: list[HopShape] = []
        for layer in self.layers:
            hops.append(layer.genes)
            hops.extend(layer.metabolism)
        return hops


class EncodedCell(NamedTuple):
    """The hops of message passing, and the wild type after each."""

    hops: list[Hop]
    wild_type: WildType


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
        propagation: str | AnyStrategy | Auto = AUTO,
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
        self.aggregation = aggregation
        self.mutants = mutants
        self.epistasis = epistasis
        self.propagation: AnyStrategy | Auto = (
            strategy(propagation) if isinstance(propagation, str) else propagation
        )
        self._chosen: ChosenStrategy | None = None
        self._shapes: CellShapes | None = None
        self.encoder = GeneEncoder(cell, features, hidden, dropout)
        self.layers = nn.ModuleList(
            GeneLayer(
                f"hetero_cell.layer{number}",
                len(self.relations),
                hidden,
                gin_layers,
                combine,
                residual,
                dropout,
            )
            for number in range(1, layers + 1)
        )
        self.reactions: nn.Parameter | None = None
        self.metabolites: nn.Parameter | None = None
        self.metabolic_layers = nn.ModuleList()
        if metabolism:
            self._add_metabolism(_metabolism_of(cell), hidden, layers)
        self.pooling = Pooling(hidden)
        self.global_head = GlobalHead(
            cell.n_genes,
            hidden,
            z_norm,
            epistasis=epistasis and not metabolism,
            lost=epistasis and metabolism,
        )
        # For the host, so it is no buffer, which would follow the model to a device.
        self.instead: Tensor | None = None
        if mutants == "matched":
            self.instead = torch.from_numpy(matched_genes(cell, self.relations))
        self.local_head: HyperSAGNN | None = None
        if output != "global":
            self.local_head = HyperSAGNN(hidden, local_heads, local_layers, largest=largest)
        self.gate: nn.Module | None = None
        if output == "gate":
            self.gate = nn.Sequential(nn.Linear(2, hidden), nn.GELU(), nn.Linear(hidden, 2))

    def _add_metabolism(self, metabolism: Metabolism, hidden: int, layers: int) -> None:
        self.reactions = _embedding(metabolism.n_reactions, hidden)
        self.metabolites = _embedding(metabolism.n_metabolites, hidden)
        self.metabolic_layers.extend(
            MetabolicLayer(f"hetero_cell.metabolism{i}", hidden) for i in range(1, layers + 1)
        )

    def begin(self, cell: Cell, training: LabelledSets) -> None:
        """Let the propagation `auto` make its choice, which the record of a run keeps."""
        self.strategy_for(cell)

    def strategy_for(self, cell: Cell) -> AnyStrategy:
        """Return the strategy of the run, which `auto` chooses at the first call.

        It chooses again if the model has moved to a device of another kind since.
        """
        request = self.propagation
        if not isinstance(request, Auto):
            return request
        if self._chosen is None or not self._chosen.is_for(request, self.device):
            self._chosen = request.choose(self.mutant_shapes(cell), self.device)
        return self._chosen.strategy

    def forward(
        self,
        cell: Cell,
        genotypes: Genotypes | PreparedMutants,
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
        """Return on what messages are passed; None before `auto` has chosen."""
        if self.mutants == "none":
            return Messages.wild_type
        if isinstance(self.propagation, Auto):
            return None if self._chosen is None else self._chosen.strategy.passes
        return self.propagation.passes

    def encode(self, cell: Cell) -> EncodedCell:
        """Draw the dropout and return the wild type, which `score` needs."""
        self.check(cell)
        with named_range("hetero_cell.encoder"):
            state = self.first_state(cell)
            kept = [layer.draw(state[GENE]) for layer in self._gene_layers]
        return self.encoded(cell, self.hops(cell, kept), state)

    def encoded(self, cell: Cell, hops: list[Hop], state: State) -> EncodedCell:
        """Return the wild type from the vectors before the first of these hops."""
        with named_range("hetero_cell.wild_type"):
            return EncodedCell(hops, self.strategy_for(cell).wild_type(hops, state))

    def first_state(self, cell: Cell) -> dict[str, Tensor]:
        """Return the vectors before the first layer by kind of node, [nodes, hidden] each."""
        state = {GENE: self.encoder(cell)}
        if self.reactions is not None and self.metabolites is not None:
            state |= {REACTION: self.reactions, METABOLITE: self.metabolites}
        return state

    def score(
        self,
        cell: Cell,
        encoded: EncodedCell,
        genotypes: Genotypes | PreparedMutants,
    ) -> Prediction:
        """Return the result of `forward` for an encoded wild type."""
        prepared = self._prepared(cell, genotypes).to(self.device, non_blocking=True)
        genes = encoded.wild_type.last[GENE]
        intermediate = {"genes": genes}
        scores = []
        if prepared.plan is not None:
            scores.append(self._global_score(encoded, prepared, prepared.plan, intermediate))
        if self.local_head is not None:
            with named_range("hetero_cell.local_head"):
                scores.append(self.local_head(genes, prepared.genotypes))
            intermediate["local"] = scores[-1]
        both = torch.stack(scores, -1)
        if self.gate is None:
            return Prediction(both.mean(-1), intermediate)
        with named_range("hetero_cell.gate"):
            weights = self.gate(both).softmax(-1).to(both.dtype)
            intermediate["gate"] = weights
            return Prediction((weights * both).sum(-1), intermediate)

    def _prepared(self, cell: Cell, genotypes: Genotypes | PreparedMutants) -> PreparedMutants:
        """Return genotypes prepared for this model, cell and strategy."""
        if isinstance(genotypes, Genotypes):
            return self.prepare(cell, genotypes)
        if genotypes.is_for(self, cell, self.strategy_for(cell)):
            return genotypes
        return self.prepare(cell, genotypes.genotypes)

    def prepare(self, cell: Cell, genotypes: Genotypes) -> PreparedMutants:
        """Do the host's part of a step; the loader's thread can do it ahead."""
        self.check(cell)
        strategy = self.strategy_for(cell)
        metabolism = cell.metabolism if self.reactions is not None else None
        deleted = Deleted.of(
            cell,
            genotypes,
            metabolism=metabolism is not None,
            instead=self.instead,
        )
        if self.mutants == "none":
            return PreparedMutants(self, cell, strategy, deleted)
        lost_together = None
        if self.epistasis and metabolism is not None:
            lost_together = DeletedNodes.of(*metabolism.lost_together(deleted.genes))
        plan = strategy.plan(
            self.mutant_shapes(cell),
            deleted,
            self.device,
            dtype=torch.promote_types(self.encoder.embedding.dtype, torch.float32),
            epistasis=self.epistasis and metabolism is None,
        )
        return PreparedMutants(self, cell, strategy, deleted, plan, lost_together)

    def cell_shapes(self, cell: Cell) -> CellShapes:
        """Return what the layers read in a cell; made once per cell."""
        if self._shapes is None or self._shapes.cell() is not cell:
            self._shapes = CellShapes(weakref.ref(cell), tuple(self._layer_shapes(cell)))
        return self._shapes

    def _layer_shapes(self, cell: Cell) -> Iterator[LayerShapes]:
        mean = self.aggregation == "mean"
        aggregates = [
            Aggregate(GENE, SparseMatrix.of(cell.relation(name)), mean) for name in self.relations
        ]
        edges = None
        if self.reactions is not None:
            edges = MetabolicEdges.of(_metabolism_of(cell))
        for number, layer in enumerate(self._gene_layers, start=1):
            metabolism: tuple[HopShape, ...] = ()
            if edges is not None:
                metabolic = cast(MetabolicLayer, self.metabolic_layers[number - 1])
                metabolism = metabolic.shapes(edges, last=number == len(self.layers))
            yield LayerShapes(layer.shape(aggregates), metabolism)

    def mutant_shapes(self, cell: Cell) -> list[HopShape]:
        """Return the shapes of the hops that see the deletion."""
        return self.cell_shapes(cell).hops[self.first_mutant_hop :]

    def hops(self, cell: Cell, kept: Sequence[Tensor | None] | None = None) -> list[Hop]:
        """Return message passing as hops, with the dropout of each layer, if any."""
        hops: list[Hop] = []
        for i, shapes in enumerate(self.cell_shapes(cell).layers):
            hops.append(self._gene_layers[i].hop(shapes.genes, None if kept is None else kept[i]))
            if shapes.metabolism:
                metabolic = cast(MetabolicLayer, self.metabolic_layers[i])
                hops.extend(metabolic.hops(shapes.metabolism))
        return hops

    @property
    def first_mutant_hop(self) -> int:
        """The number of hops before those that see the deletion."""
        # Before the last layer, metabolism adds three hops to a layer.
        hops_of_a_layer = 1 if self.reactions is None else 4
        return (len(self.layers) - self.mutant_layers) * hops_of_a_layer

    def facts(self) -> JsonObject:
        """Return the strategy of the run, and why it is this one."""
        request = self.propagation
        cell = None if self._shapes is None else self._shapes.cell()
        if cell is not None:
            # A model begins on the host, and is then moved to the device of the training.
            self.strategy_for(cell)
        chosen: dict[str, Any]
        if not isinstance(request, Auto):
            chosen = {"name": request.name, "choice": None, "why": "set in the config"}
        elif self._chosen is None:
            reason = "The strategy is chosen with the first batch."
            chosen = {"name": AUTO, "choice": asdict(request), "why": reason}
        else:
            choice = {"max_bytes": request.max_bytes, "choice": self._chosen.choice.name}
            chosen = {"name": AUTO, "choice": choice, "why": str(self._chosen.choice)}
        return {"propagation": chosen}

    def scorer(self, cell: Cell, scale: TargetScale) -> HeteroCellScorer:
        """Return exact scores of gene sets, from a copy of the model."""
        return HeteroCellScorer(copy.deepcopy(self).eval().requires_grad_(False), cell, scale)

    def gated(self, cell: Cell, genes: Sequence[int]) -> GatedScore:
        """Return the score of one genotype as a function of gates, in float64."""
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
        """Raise an error if the cell is not of the sizes and names that the model is for."""
        sizes = {"genes": (self.n_genes, cell.n_genes)}
        if self.reactions is not None and self.metabolites is not None:
            metabolism = cell.metabolism
            n_reactions = 0 if metabolism is None else metabolism.n_reactions
            n_metabolites = 0 if metabolism is None else metabolism.n_metabolites
            sizes["reactions"] = (len(self.reactions), n_reactions)
            sizes["metabolites"] = (len(self.metabolites), n_metabolites)
        check_cell(**sizes)
        for name in self.relations:
            cell.relation(name)
        self.encoder.features.check(cell)

    @property
    def _gene_layers(self) -> list[GeneLayer]:
        return [cast(GeneLayer, layer) for layer in self.layers]

    def _global_score(
        self,
        encoded: EncodedCell,
        prepared: PreparedMutants,
        plan: Plan,
        intermediate: dict[str, Tensor],
    ) -> Tensor:
        """Return the scores [b] of the global head, and add what they come from."""
        hops = encoded.hops[self.first_mutant_hop :]
        wild_type = encoded.wild_type.after(self.first_mutant_hop)
        with named_range("hetero_cell.mutants", "messages on mutants"):
            mutants = prepared.strategy.mutants(plan, hops, wild_type, self.pooling)
        intermediate["pool"] = mutants.pooled
        intermediate["z"] = mutants.z
        if self.epistasis and self.reactions is None:
            if mutants.epistasis is None:
                raise InputError(
                    f"propagation '{prepared.strategy.name}' does not compute epistasis",
                    code="not-late",
                    fix="Set model.propagation=late, or auto without model.max_bytes.",
                )
            intermediate["epistasis"] = mutants.epistasis
        if prepared.lost_together is not None:
            reactions = encoded.wild_type.last[REACTION]
            lost = _sum_of_lost(reactions, prepared.lost_together, len(prepared))
            intermediate["lost"] = lost
        with named_range("hetero_cell.global_head"):
            intermediate["global"] = self.global_head(
                mutants.z,
                intermediate.get("epistasis"),
                intermediate.get("lost"),
            )
        return intermediate["global"]


def _sum_of_lost(reactions: Tensor, lost: DeletedNodes, n_genotypes: int) -> Tensor:
    """Return the sum of the vectors of each genotype's lost reactions, [b, hidden]."""
    total = reactions.new_zeros(n_genotypes, reactions.shape[1])
    return total.index_add(0, lost.owner, reactions.index_select(0, lost.nodes))


def _metabolism_of(cell: Cell) -> Metabolism:
    if cell.metabolism is None:
        what = "metabolism=True, but the cell has no metabolism"
        raise InputError(what, code="no-metabolism")
    return cell.metabolism


def _embedding(n: int, hidden: int) -> nn.Parameter:
    return nn.Parameter(torch.empty(n, hidden).normal_(std=0.02))
