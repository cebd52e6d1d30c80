"""DANGO: gene vectors that reconstruct the networks and score sets of genes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import nn

from deltacell.cell import Cell
from deltacell.errors import InputError
from deltacell.models.gene_vectors import FeatureEncoder
from deltacell.models.hyper_sagnn import HyperSAGNN
from deltacell.models.meta_embedding import MetaEmbedding
from deltacell.models.prediction import Prediction
from deltacell.models.ranges import named_range
from deltacell.models.reconstruction import Reconstruction
from deltacell.models.recorded import Recorded
from deltacell.models.sage import SAGE
from deltacell.propagate import SparseMatrix
from deltacell.screen import Genotypes

STRING_LAMBDAS: Mapping[str, float] = MappingProxyType(
    {
        "string_neighborhood": 1.0,
        "string_fusion": 1.0,
        "string_cooccurence": 1.0,
        "string_coexpression": 0.1,
        "string_experimental": 0.1,
        "string_database": 1.0,
    }
)
"""The weight of a non-edge in the reconstruction of each channel of STRING."""

STRING_RELATIONS = tuple(STRING_LAMBDAS)
"""The six channels of STRING."""


class Encoding(NamedTuple):
    """What DANGO makes of the wild type.

    Parameters
    ----------
    networks
        The genes' vectors in each of k networks, [k, n_genes, hidden].
    genes
        Their meta-embedding, [n_genes, hidden].
    attention
        The weight of each network for each gene, [n_genes, k].
    """

    networks: torch.Tensor
    genes: torch.Tensor
    attention: torch.Tensor


class Dango(Recorded, nn.Module):
    """Predict the score of a genotype from vectors that also have to reconstruct the networks.

    An embedding [n_genes, hidden] shared by the networks, to which features add what they say of a
    gene, see `FeatureEncoder`; for each network two layers of `SAGE`
    and a `Reconstruction` head; `MetaEmbedding` of the networks' vectors; `HyperSAGNN` on the
    deleted genes. Message passing sees only the wild type, once a step whatever the batch.

    Parameters
    ----------
    cell
        The wild type, for its number of genes and the names of its relations.
    relations
        The networks, by name.
    lambdas
        The weight of a non-edge in the reconstruction, by name; one for every network.
    features
        Features of the cell to use, by name; none where not given.
    hidden
        Width of a gene's vector.
    heads
        Attention heads of Hyper-SAGNN; they divide the width.
    layers
        Attention layers of Hyper-SAGNN.
    largest
        The most genes that a genotype will have, see `HyperSAGNN`.
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
        self.relations = tuple(relations)
        self._check_relations(cell, lambdas)
        self.embedding = nn.Parameter(torch.empty(cell.n_genes, hidden).normal_(std=0.1))
        self.sage = nn.ModuleList(SAGE(hidden) for _ in self.relations)
        self.reconstruction = Reconstruction(
            cell.n_genes, hidden, {name: lambdas[name] for name in self.relations}
        )
        self.meta_embedding = MetaEmbedding(hidden)
        self.hyper_sagnn = HyperSAGNN(hidden, heads, layers, largest=largest)
        self.features = FeatureEncoder(cell, features or (), hidden)

    def forward(self, cell: Cell, genotypes: Genotypes, *, reconstruct: bool = True) -> Prediction:
        """Return the scores [b] of genotypes.

        Beside the score there are ``networks`` [k, n_genes, hidden], ``genes`` [n_genes, hidden],
        ``attention`` [n_genes, k], ``z`` [b, hidden] and ``reconstruction`` [k].

        Parameters
        ----------
        cell
            The wild type.
        genotypes
            ``b`` sets of one gene or more, mixed as they come. On a CPU they are checked, and then
            sent to the device of the model. Elsewhere a look at them would wait for the device, so
            check those before they go there.
        reconstruct
            Whether to compute the reconstruction loss of each network, which `DangoLoss` needs.
        """
        self._check(cell, genotypes)
        encoding = self.encode(cell)
        sets = self.hyper_sagnn.scores(encoding.genes, genotypes)
        intermediate = {**encoding._asdict(), "z": sets.z}
        if reconstruct:
            with named_range("dango.reconstruction"):
                matrices = [SparseMatrix.of(cell.relation(name)) for name in self.relations]
                intermediate["reconstruction"] = self.reconstruction(encoding.networks, matrices)
        return Prediction(sets.score, intermediate)

    def encode(self, cell: Cell) -> Encoding:
        """Return the genes' vectors in the wild type; those of every genotype are among them.

        Parameters
        ----------
        cell
            The wild type.
        """
        with named_range("dango.encoder"):
            vectors, first = [], self.first_vectors(cell)
            for name, sage in zip(self.relations, self.sage, strict=True):
                with named_range(f"dango.encoder.{name}"):
                    vectors.append(sage(SparseMatrix.of(cell.relation(name)), first))
            networks = torch.stack(vectors)
        with named_range("dango.meta_embedding"):
            genes, attention = self.meta_embedding(networks)
        return Encoding(networks, genes, attention)

    def first_vectors(self, cell: Cell) -> torch.Tensor:
        """Return the genes' vectors before any network, [n_genes, hidden].

        Parameters
        ----------
        cell
            The wild type.
        """
        vectors: torch.Tensor = self.features(cell, self.embedding)
        return vectors

    def compile_row_wise(self, **options: Any) -> None:
        """Compile the parts that work gene by gene or set by set; the sparse products stay.

        Parameters
        ----------
        options
            Of `torch.compile`.
        """
        self.meta_embedding.compile(**options)
        self.hyper_sagnn.compile_row_wise(**options)

    def _check_relations(self, cell: Cell, lambdas: Mapping[str, float]) -> None:
        if not self.relations:
            raise InputError("DANGO needs at least one relation, and none was given")
        for name in self.relations:
            cell.relation(name)
            if name not in lambdas:
                raise InputError(
                    f"the network '{name}' has no lambda; there are values for "
                    f"{', '.join(lambdas) or 'none'}",
                    fix=f"Give the weight of its non-edges: lambdas={{..., '{name}': 1.0}}",
                )
        if len(set(self.relations)) != len(self.relations):
            raise InputError(f"a relation was given twice: {', '.join(self.relations)}")

    def _check(self, cell: Cell, genotypes: Genotypes) -> None:
        if cell.n_genes != self.n_genes:
            raise InputError(
                f"the model was made for {self.n_genes} genes, and the cell has {cell.n_genes}"
            )
        self.features.check(cell)
        if genotypes.genes.device.type == "cpu":
            genotypes.check(self.n_genes)
