"""DANGO: gene vectors that reconstruct the networks and score sets of genes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from deltacell.cell import Cell
from deltacell.errors import InputError
from deltacell.models.base import Prediction, Recorded, check_cell, checked_relations, named_range
from deltacell.models.dango.reconstruction import Reconstruction
from deltacell.models.gene_vectors import FeatureEncoder
from deltacell.models.hyper_sagnn import HyperSAGNN
from deltacell.propagate import SparseMatrix
from deltacell.propagate.product import mean_product
from deltacell.screen import Genotypes

STRING_LAMBDAS: Mapping[str, float] = {
    "string_neighborhood": 1.0,
    "string_fusion": 1.0,
    "string_cooccurence": 1.0,
    "string_coexpression": 0.1,
    "string_experimental": 0.1,
    "string_database": 1.0,
}
"""The weight of a non-edge in the reconstruction of each channel of STRING."""

STRING_RELATIONS = tuple(STRING_LAMBDAS)


class Encoding(NamedTuple):
    """The encoded wild type."""

    networks: Tensor  # the genes' vectors in each of k networks, [k, n_genes, hidden]
    genes: Tensor  # their meta-embedding, [n_genes, hidden]
    attention: Tensor  # the weight of each network for each gene, [n_genes, k]


class Dango(Recorded, nn.Module):
    """Predict the score of a genotype from vectors that also have to reconstruct the networks.

    The embedding [n_genes, hidden], with features added by `FeatureEncoder`, passes through `SAGE`
    and a `Reconstruction` head for each network; `MetaEmbedding` combines the networks' vectors,
    and `HyperSAGNN` scores the deleted genes. Message passing runs once per step, on the wild type.
    ``lambdas`` is the weight of a non-edge by network; ``heads``, ``layers`` and ``largest`` are
    passed to `HyperSAGNN`.
    """

    def __init__(
        self,
        cell: Cell,
        relations: Sequence[str] = STRING_RELATIONS,
        lambdas: Mapping[str, float] = STRING_LAMBDAS,
        *,
        features: Sequence[str] | None = None,
        hidden: int = 64,
        heads: int = 4,
        layers: int = 2,
        largest: int | None = None,
    ) -> None:
        super().__init__()
        self.n_genes = cell.n_genes
        self.relations = checked_relations(cell, relations)
        if absent := [name for name in self.relations if name not in lambdas]:
            what = f"no lambda for the network '{absent[0]}'; expected one of {', '.join(lambdas)}"
            fix = f"Give the weight of its non-edges: lambdas={{..., '{absent[0]}': 1.0}}"
            raise InputError(what, code="no-lambda", fix=fix)
        self.embedding = nn.Parameter(torch.empty(cell.n_genes, hidden).normal_(std=0.1))
        self.sage = nn.ModuleList(SAGE(hidden) for _ in self.relations)
        self.reconstruction = Reconstruction(
            cell.n_genes,
            hidden,
            {name: lambdas[name] for name in self.relations},
        )
        self.meta_embedding = MetaEmbedding(hidden)
        self.hyper_sagnn = HyperSAGNN(hidden, heads, layers, largest=largest)
        self.features = FeatureEncoder(cell, features or (), hidden)

    def forward(self, cell: Cell, genotypes: Genotypes, *, reconstruct: bool = True) -> Prediction:
        """Return the scores [b] of genotypes.

        The intermediate results are the fields of `Encoding`, ``z`` [b, hidden] and
        ``reconstruction`` [k], which `DangoLoss` needs.
        """
        check_cell(genes=(self.n_genes, cell.n_genes))
        self.features.check(cell)
        if genotypes.genes.device.type == "cpu":  # elsewhere a check would wait for the device
            genotypes.check(self.n_genes)
        encoding = self.encode(cell)
        score, z = self.hyper_sagnn.scores(encoding.genes, genotypes)
        intermediate = {**encoding._asdict(), "z": z}
        if reconstruct:
            with named_range("dango.reconstruction"):
                matrices = [SparseMatrix.of(cell.relation(name)) for name in self.relations]
                intermediate["reconstruction"] = self.reconstruction(encoding.networks, matrices)
        return Prediction(score, intermediate)

    def encode(self, cell: Cell) -> Encoding:
        """Return the genes' vectors in the wild type."""
        with named_range("dango.encoder"):
            vectors, first = [], self.first_vectors(cell)
            for name, sage in zip(self.relations, self.sage, strict=True):
                with named_range(f"dango.encoder.{name}"):
                    vectors.append(sage(SparseMatrix.of(cell.relation(name)), first))
            networks = torch.stack(vectors)
        with named_range("dango.meta_embedding"):
            genes, attention = self.meta_embedding(networks)
        return Encoding(networks, genes, attention)

    def first_vectors(self, cell: Cell) -> Tensor:
        vectors: Tensor = self.features(cell, self.embedding)
        return vectors

    def compile_row_wise(self, **options: Any) -> None:
        """Compile the parts that work gene by gene or set by set, without the sparse products."""
        self.meta_embedding.compile(**options)
        self.hyper_sagnn.compile_row_wise(**options)


class SAGE(nn.Module):
    """Two `SAGELayer` layers on the same network."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(SAGELayer(width) for _ in range(2))

    def forward(self, matrix: SparseMatrix, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(matrix, x)
        return x


class SAGELayer(nn.Module):
    r"""GraphSAGE with mean aggregation, ``h'_i = relu(W_n mean over N(i) of h_j + b + W_s h_i)``.

    The mean over no neighbours is 0. There are no self loops, since W_s is applied to h_i itself.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.neighbours = nn.Linear(width, width)
        self.own = nn.Linear(width, width, bias=False)

    def forward(self, matrix: SparseMatrix, x: Tensor) -> Tensor:
        return torch.relu(self.neighbours(mean_product(matrix, x)) + self.own(x))


class MetaEmbedding(nn.Module):
    """Average the k networks with weights for each gene, ``e_i = sum over k of a_ik h_ki``.

    ``a_i = softmax over k of Linear(hidden / 2, 1)(relu(Linear(hidden, hidden / 2)(h_ki)))``; all
    networks share the scorer.
    """

    def __init__(self, hidden: int) -> None:
        super().__init__()
        half = max(1, hidden // 2)
        self.scorer = nn.Sequential(nn.Linear(hidden, half), nn.ReLU(), nn.Linear(half, 1))

    def forward(self, networks: Tensor) -> tuple[Tensor, Tensor]:
        attention = self.scorer(networks).softmax(0)
        genes = (attention * networks).sum(0)
        return genes, attention.squeeze(-1).t()
