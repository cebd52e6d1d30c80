"""DANGO: gene vectors that reconstruct the networks and score sets of genes."""

from __future__ import annotations

import copy
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from deltacell.base.errors import InputError
from deltacell.cell import Cell
from deltacell.models.base import check_cell, checked_relations, named_range
from deltacell.models.dango.config import STRING_LAMBDAS, STRING_RELATIONS
from deltacell.models.dango.gates import DangoGates
from deltacell.models.dango.layers import SAGE, MetaEmbedding
from deltacell.models.dango.reconstruction import Reconstruction, dense_loss
from deltacell.models.dango.scorer import DangoScorer
from deltacell.models.gene_vectors import FeatureEncoder
from deltacell.models.hyper_sagnn import HyperSAGNN, OthersAttention
from deltacell.models.interface import (
    GatedScore,
    Model,
    Prediction,
    RelationWeights,
    TargetScale,
)
from deltacell.profile.record import Messages
from deltacell.propagate.product import SparseMatrix
from deltacell.screen import Genotypes


class Encoding(NamedTuple):
    """The encoded wild type."""

    networks: Tensor  # the genes' vectors in each of k networks, [k, n_genes, hidden]
    genes: Tensor  # their meta-embedding, [n_genes, hidden]
    attention: Tensor  # the weight of each network for each gene, [n_genes, k]


class Dango(Model):
    """Predict the score of a genotype from vectors that also have to reconstruct the networks.

    The embedding [n_genes, hidden], with features added by `FeatureEncoder`, passes through `SAGE`
    and a `Reconstruction` head for each network; `MetaEmbedding` combines the networks' vectors,
    and `HyperSAGNN` scores the deleted genes. Message passing runs once per step, on the wild type.
    ``lambdas`` is the weight of a non-edge by network; ``heads``, ``layers`` and ``largest`` are
    passed to `HyperSAGNN`.
    """

    sets_per_call = 4096  # the cost of a call hardly depends on the number of sets
    sets_per_block = 64**3
    relations: tuple[str, ...]

    def __init__(
        self,
        cell: Cell,
        relations: Sequence[str] = STRING_RELATIONS,
        lambdas: Mapping[str, float] = STRING_LAMBDAS,
        *,
        features: Sequence[str] | None = (),
        hidden: int = 64,
        heads: int = 4,
        layers: int = 2,
        largest: int | None = None,
    ) -> None:
        super().__init__()
        self.n_genes = cell.n_genes
        self.relations = checked_relations(cell, relations)
        own_lambdas = _lambdas_of(self.relations, lambdas)
        self.embedding = nn.Parameter(torch.empty(cell.n_genes, hidden).normal_(std=0.1))
        self.sage = nn.ModuleList(SAGE(hidden) for _ in self.relations)
        self.reconstruction = Reconstruction(cell.n_genes, hidden, own_lambdas)
        self.meta_embedding = MetaEmbedding(hidden)
        self.hyper_sagnn = HyperSAGNN(hidden, heads, layers, largest=largest)
        self.features = FeatureEncoder(cell, features, hidden)

    def forward(
        self,
        cell: Cell,
        genotypes: Genotypes,
        *,
        wanted: Collection[str] = (),
    ) -> Prediction:
        """Return the scores [b] of genotypes.

        The intermediate results are the fields of `Encoding`, ``z`` [b, hidden] and, if it is
        wanted, ``reconstruction`` [k], which `DangoLoss` needs.
        """
        check_cell(genes=(self.n_genes, cell.n_genes))
        self.features.check(cell)
        if genotypes.genes.device.type == "cpu":  # elsewhere a check would wait for the device
            genotypes.check(self.n_genes)
        encoding = self.encode(cell)
        score, z = self.hyper_sagnn.scores(encoding.genes, genotypes)
        intermediate = {**encoding._asdict(), "z": z}
        if "reconstruction" in wanted:
            with named_range("dango.reconstruction"):
                relations = [cell.relation(name) for name in self.relations]
                matrices = [SparseMatrix.of(relation) for relation in relations]
                intermediate["reconstruction"] = self.reconstruction(encoding.networks, matrices)
        return Prediction(score, intermediate)

    def messages(self) -> Messages:
        """Return that messages are passed on the wild type only."""
        return Messages.wild_type

    def encode(self, cell: Cell) -> Encoding:
        """Return the genes' vectors in the wild type."""
        with named_range("dango.encoder"):
            vectors = []
            first = self.first_vectors(cell)
            for name, sage in zip(self.relations, self.sage, strict=True):
                with named_range(f"dango.encoder.{name}", name):
                    vectors.append(sage(SparseMatrix.of(cell.relation(name)), first))
            networks = torch.stack(vectors)
        with named_range("dango.meta_embedding"):
            genes, attention = self.meta_embedding(networks)
        return Encoding(networks, genes, attention)

    def first_vectors(self, cell: Cell) -> Tensor:
        """Return the embedding of the genes with their features, [n_genes, hidden]."""
        vectors: Tensor = self.features(cell, self.embedding)
        return vectors

    def scorer(self, cell: Cell, scale: TargetScale) -> DangoScorer:
        """Return exact scores of gene sets, and approximate ones with a bound."""
        exact = self._in_double_precision()
        genes = exact.encode(cell).genes.cpu()
        # Sets are scored on the CPU, in threads and in parts of one shape.
        return DangoScorer(exact.cpu().hyper_sagnn.sets, genes, scale)

    def gated(self, cell: Cell, genes: Sequence[int]) -> GatedScore:
        """Return the score of one genotype as a function of gates, in float64."""
        # On the CPU, because only the neighbourhood of the genes is computed.
        return DangoGates(self._in_double_precision().cpu(), cell, genes)

    @torch.no_grad()
    def relation_weights(self, cell: Cell, genes: Tensor) -> RelationWeights:
        """Return the weight of each network for some genes."""
        attention = self.encode(cell).attention[genes]
        return RelationWeights(self.relations, attention.cpu().numpy())

    def _in_double_precision(self) -> Dango:
        return copy.deepcopy(self).double().eval().requires_grad_(False)

    def with_dense_loss(self, cell: Cell) -> Dango:
        """Return a copy that forms every genes x genes reconstruction, as the published form does.

        It is a reference for the closed form. The dense adjacencies are made here.
        """
        matrices = [SparseMatrix.of(cell.relation(name)) for name in self.relations]
        dense = {m: m.csr(device="cpu", dtype=torch.float32).to_dense() for m in matrices}
        model = copy.deepcopy(self)
        model.reconstruction.loss = lambda z, w, b, m, x: dense_loss(z, w, b, dense[m], x)
        return model

    def with_spread_attention(self, cell: Cell, betas: Sequence[float]) -> Dango:
        """Return a copy whose attention differs between genes, as after a training.

        Each layer has a beta; its queries and keys are scaled until the logits of the first 512
        genes have standard deviation 1. The attention of initial weights is nearly uniform.
        """
        model = copy.deepcopy(self)
        with torch.no_grad():
            genes = model.encode(cell).genes[:512]
            for part, beta in zip(model.hyper_sagnn.sets.attention, betas, strict=True):
                layer = cast(OthersAttention, part)
                layer.beta.fill_(beta)
                parts = layer.query_key_value(genes).unflatten(-1, (3, layer.heads, -1))
                query = parts.select(-3, 0)
                key = parts.select(-3, 1)
                logits = torch.einsum("ihx,jhx->hij", query, key) / math.sqrt(query.shape[-1])
                for weights in (layer.query_key_value.weight, layer.query_key_value.bias):
                    weights[: genes.shape[1]] /= logits.std(-1).mean()
        return model

    def compile_parts(self, **options: Any) -> None:
        """Compile the parts that work gene by gene or set by set, without the sparse products."""
        self.meta_embedding.compile(**options)
        self.hyper_sagnn.compile_row_wise(**options)


def _lambdas_of(relations: Sequence[str], lambdas: Mapping[str, float]) -> dict[str, float]:
    """Return the weight of a non-edge for each relation; all must be there."""
    absent = [name for name in relations if name not in lambdas]
    if absent:
        raise InputError(
            f"no lambda for the network '{absent[0]}'; expected one of {', '.join(lambdas)}",
            code="no-lambda",
            fix=f"Give the weight of its non-edges: lambdas={{..., '{absent[0]}': 1.0}}",
        )
    return {name: lambdas[name] for name in relations}
