"""Screens as PyG `HeteroData`: nodes for the genotypes, and edges to the genes they delete."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from deltacell.base.arrays import offsets_of
from deltacell.base.errors import InputError
from deltacell.cell.hetero_data import GENE, doubles_of, genes_of, index_of_edges
from deltacell.screen.genotypes import Genotypes

if TYPE_CHECKING:
    from torch_geometric.data import HeteroData

    from deltacell.screen.screen import Screen

GENOTYPE = "genotype"
DELETES = "deletes"
#: The columns of a screen that are read in addition to its phenotype.
COLUMNS = ("standard_deviation", "p_value")

_PHENOTYPE_FIX = (
    "Set data['genotype'].phenotype to a float tensor with the score of every genotype, NaN where "
    "it is missing."
)
_DELETES_FIX = (
    "Set data['genotype', 'deletes', 'gene'].edge_index to an integer tensor [2, deletions]: the "
    "genotype in the first row, the gene that it deletes in the second."
)


def screen_of(data: HeteroData, *, study: str, phenotype: str) -> Screen:
    """Return the screen of a `HeteroData`; see `Screen.from_hetero_data`."""
    from deltacell.screen.screen import Screen

    genes = genes_of(data)
    if GENOTYPE not in data.node_types or "phenotype" not in data[GENOTYPE]:
        message = "the HeteroData has no phenotype of genotypes"
        raise InputError(message, code="missing-phenotype", fix=_PHENOTYPE_FIX)
    nodes = data[GENOTYPE]
    edge_type = (GENOTYPE, DELETES, GENE)
    score = _scores(nodes["phenotype"])
    if edge_type not in data.edge_types:
        message = "the HeteroData does not say which genes a genotype deletes"
        raise InputError(message, code="missing-edges", fix=_DELETES_FIX)
    place = "data['genotype', 'deletes', 'gene']"
    owner, gene = index_of_edges(data[edge_type], place, _DELETES_FIX)
    if len(owner) and not 0 <= owner.min() <= owner.max() < len(score):
        message = f"{place}.edge_index names a genotype outside 0 to {len(score) - 1}"
        raise InputError(message, code="bad-edges", fix=_DELETES_FIX)
    order = np.argsort(owner, kind="stable")
    offsets = offsets_of(np.bincount(owner, minlength=len(score)))
    columns: dict[str, Any] = {
        name: doubles_of(nodes[name], f"data['genotype'].{name}", len(score))
        for name in COLUMNS
        if name in nodes
    }
    return Screen.build(
        genes,
        Genotypes(torch.from_numpy(gene[order]), torch.from_numpy(offsets)),
        score=score,
        phenotype=phenotype,
        study=study,
        **columns,
    )


def add_genotypes(data: HeteroData, screen: Screen) -> HeteroData:
    """Add the genotypes of a screen to a `HeteroData`; see `Screen.to_hetero_data`."""

    def tensor(name: str) -> torch.Tensor:
        return torch.from_numpy(np.array(screen.column(name)))

    nodes = data[GENOTYPE]
    nodes.num_nodes = len(screen)
    nodes.phenotype = tensor("score")
    for name in COLUMNS:
        nodes[name] = tensor(name)
    genotypes = screen.genotypes
    deletions = torch.stack([genotypes.owner, genotypes.genes])
    data[GENOTYPE, DELETES, GENE].edge_index = deletions
    return data


def _scores(values: Any) -> Any:
    """Return the scores of a tensor or list of any length, as an array of float64."""
    n = len(values) if hasattr(values, "__len__") else 1
    return doubles_of(values, "data['genotype'].phenotype", n)
