"""A cell from a PyG `HeteroData` of another program: gene names, and an edge_index per relation."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from deltacell.base.arrays import Ints
from deltacell.base.errors import InputError, did_you_mean
from deltacell.cell.annotation import Feature
from deltacell.cell.genes import Genes
from deltacell.cell.relation import Relation

if TYPE_CHECKING:
    from torch_geometric.data import HeteroData

GENE = "gene"
#: Attributes of ``data["gene"]`` that may have the names; TorchCell calls them ``node_ids``.
NAME_ATTRIBUTES = ("name", "node_ids")

_GENE_FIX = "Set data['gene'].name to a list with the systematic name of every gene, in order."


def genes_of(data: HeteroData) -> Genes:
    """Return the genes of ``data["gene"]``, from its attribute ``name`` or ``node_ids``."""
    if GENE not in data.node_types:
        known = ", ".join(f"'{kind}'" for kind in data.node_types) or "none"
        message = f"the HeteroData has no nodes of type 'gene'; its node types are {known}"
        raise InputError(message, code="missing-genes", fix=_GENE_FIX)
    nodes = data[GENE]
    names = next((nodes[key] for key in NAME_ATTRIBUTES if key in nodes), None)
    if names is None:
        message = "the HeteroData has no gene names"
        raise InputError(message, code="missing-names", fix=_GENE_FIX)
    if isinstance(names, str) or not all(isinstance(name, str) for name in names):
        message = "the gene names of the HeteroData are not a list of texts"
        raise InputError(message, code="bad-names", fix=_GENE_FIX)
    n_nodes = _number_of_genes(nodes, len(names))
    if n_nodes != len(names):
        message = f"the HeteroData has {len(names)} gene names for {n_nodes} genes"
        raise InputError(message, code="bad-names", fix=_GENE_FIX)
    return Genes(names)


def relations_of(
    data: HeteroData,
    n_genes: int,
    directed: Iterable[str] | None = None,
) -> list[Relation]:
    """Return a relation for each edge type from genes to genes, named after the edge type.

    Without `directed`, the names of the directed relations, a relation is directed unless all its
    edges are in ``edge_index`` in both directions; an attribute ``directed`` of the edges decides
    before that.
    """
    names = [name for source, name, target in data.edge_types if source == target == GENE]
    if directed is not None:
        directed = set(directed)
        for name in sorted(directed - set(names)):
            message = f"unknown relation '{name}' in directed{did_you_mean(name, names)}"
            raise InputError(message, code="unknown-relation")
    return [_relation(data[GENE, name, GENE], name, n_genes, directed) for name in names]


def features_of(data: HeteroData, n_genes: int) -> list[Feature]:
    """Return ``x`` and each ``feature_NAME`` of the genes, [genes, width], if it has a width."""
    nodes = data[GENE]
    features = []
    for key in nodes:
        if key != "x" and not key.startswith("feature_"):
            continue
        name = key.removeprefix("feature_")
        values = _array(nodes[key], f"data['gene'].{key}", np.float32)
        if values.ndim == 1:
            values = values[:, None]
        if values.ndim != 2 or len(values) != n_genes:
            message = (
                f"data['gene'].{key} has the shape {list(values.shape)}; "
                f"expected a row for each of {n_genes} genes"
            )
            raise InputError(message, code="bad-shape")
        if values.shape[1]:
            columns = nodes.get(f"columns_{name}") or [str(i) for i in range(values.shape[1])]
            features.append(Feature(name, values, tuple(columns)))
    return features


def index_of_edges(edges: Any, place: str, fix: str) -> Ints:
    """Return ``edge_index`` of an edge type, [2, edges], or raise an error that names the type."""
    if "edge_index" not in edges:
        raise InputError(f"{place} has no edge_index", code="missing-edges", fix=fix)
    index: Ints = _array(edges["edge_index"], f"{place}.edge_index", np.int64)
    if index.ndim != 2 or len(index) != 2:
        message = f"{place}.edge_index has the shape {list(index.shape)}; expected [2, edges]"
        raise InputError(message, code="bad-shape", fix=fix)
    return index


def doubles_of(values: Any, place: str, n: int) -> Any:
    """Return one number per element of a tensor or list, as an array of float64."""
    numbers = _array(values, place, np.float64).ravel()
    if len(numbers) != n:
        message = f"{place} has {len(numbers)} values; expected {n}"
        raise InputError(message, code="bad-shape")
    return numbers


def _relation(edges: Any, name: str, n_genes: int, directed: Iterable[str] | None) -> Relation:
    """Return the relation of an edge type."""
    place = f"data['gene', '{name}', 'gene']"
    fix = (
        f"Set {place}.edge_index to an integer tensor [2, edges] of gene indices, the sources in "
        f"the first row; or remove the relation with: del {place}"
    )
    source, target = index_of_edges(edges, place, fix)
    weight = edges.get("edge_weight")
    if weight is not None:
        weight = doubles_of(weight, f"{place}.edge_weight", len(source))
    if directed is not None:
        is_directed = name in directed
    elif "directed" in edges:
        is_directed = bool(edges["directed"])
    else:
        is_directed = not _has_both_directions(source, target)
    return Relation.from_edges(
        name,
        source,
        target,
        weight,
        n_genes=n_genes,
        directed=is_directed,
    )


def _has_both_directions(source: Ints, target: Ints) -> bool:
    base = int(max(source.max(initial=0), target.max(initial=0))) + 1
    forward = np.unique(source * base + target)
    backward = np.unique(target * base + source)
    return np.array_equal(forward, backward)


def _number_of_genes(nodes: Any, n_names: int) -> int:
    """Return the number of nodes that the HeteroData states, or the number of names."""
    stated = nodes.get("num_nodes")
    if stated is None and "x" in nodes:
        stated = len(nodes["x"])
    return n_names if stated is None else int(stated)


def _array(values: Any, place: str, dtype: type) -> Any:
    """Return a tensor or list as an array; `place` is its name in the message of an error."""
    try:
        if hasattr(values, "detach"):
            values = values.detach().cpu().numpy()
        return np.array(values, dtype=dtype)
    except (TypeError, ValueError) as error:
        raise InputError(f"{place} is not an array of numbers", code="not-numbers") from error
