"""A cell as a PyG `HeteroData`, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch_geometric.data import HeteroData

from deltacell.arrays import AnyArray, Ints
from deltacell.cell.annotation import Annotation
from deltacell.cell.cell import Cell
from deltacell.cell.feature import Feature
from deltacell.cell.genes import Genes
from deltacell.cell.metabolism import Metabolism
from deltacell.cell.relation import Relation
from deltacell.counts import Counts, Source
from deltacell.errors import InputError

GENE, REACTION, METABOLITE = "gene", "reaction", "metabolite"
CONVERTS = (REACTION, "converts", METABOLITE)
ENABLES = (GENE, "enables", REACTION)


def to_hetero_data(cell: Cell) -> HeteroData:
    """Return the cell as a PyG `HeteroData`; `from_hetero_data` gives back an equal cell.

    - ``data["gene"]``: ``num_nodes``, ``name``, ``standard``, ``aliases``, ``chromosome``,
      ``start``, ``end``; for each feature ``feature_NAME`` [n_genes, width], NaN where a
      value is missing, and ``columns_NAME``.
    - ``data["gene", RELATION, "gene"]``: ``edge_index`` [2, entries] from source to target, both
      directions where undirected; ``edge_weight`` [entries]; ``directed``; ``counts``.
    - With a metabolism, ``data["reaction"]`` (``name``, ``lower``, ``upper`` and, where known,
      ``pathways``) and ``data["metabolite"]`` (``name``);
      ``data["reaction", "converts", "metabolite"]`` with a signed ``coefficient``;
      ``data["gene", "enables", "reaction"]``, the genes of each rule; and the rules themselves as
      ``clause_reaction``, ``clause_genes`` and ``clause_offsets``.
    - With annotations, ``data.annotations``: by name (indptr, indices, terms, ids), see
      `Annotation`.

    Parameters
    ----------
    cell
        The wild type.
    """
    data = HeteroData()
    genes = data[GENE]
    genes.num_nodes = cell.n_genes
    genes.name = list(cell.genes.systematic)
    genes.standard = list(cell.genes.standard)
    genes.aliases = [list(names) for names in cell.genes.aliases]
    genes.chromosome = list(cell.genes.chromosome)
    genes.start, genes.end = _tensor(cell.genes.start), _tensor(cell.genes.end)
    for feature in cell.features.values():
        genes[f"feature_{feature.name}"] = _tensor(feature.values)
        genes[f"columns_{feature.name}"] = list(feature.columns)
    for relation in cell.relations.values():
        source, target, weight = relation.entries()
        edges = data[GENE, relation.name, GENE]
        edges.edge_index = _tensor(np.stack([source, target]))
        edges.edge_weight = _tensor(weight)
        edges.directed = relation.directed
        edges.counts = relation.counts.to_json()
    if cell.metabolism is not None:
        _put_metabolism(data, cell.metabolism)
    if cell.annotations:
        data.annotations = {
            a.name: (_tensor(a.indptr), _tensor(a.indices), list(a.terms), list(a.ids))
            for a in cell.annotations.values()
        }
    data.sources = [source.to_json() for source in cell.sources]
    data.synthetic = cell.synthetic_recipe
    return data


def from_hetero_data(data: HeteroData) -> Cell:
    """Make a cell from a PyG `HeteroData`: one of `to_hetero_data`, or a plain one.

    A plain one needs only nodes ``gene`` and edges between them. Without ``name`` the genes are
    called g0000, g0001, …; node features ``x`` become a feature of that name. Edges without
    ``edge_weight`` weigh 1. Without ``directed`` a relation is undirected exactly when every edge
    is there in both directions with the same weight.

    Parameters
    ----------
    data
        Any other node type than ``gene``, ``reaction`` and ``metabolite`` is an error.
    """
    strange = set(data.node_types) - {GENE, REACTION, METABOLITE}
    if GENE not in data.node_types or strange:
        raise InputError(
            f"the node types are {', '.join(data.node_types) or 'none'}; expected 'gene', and "
            "beside it only 'reaction' and 'metabolite'",
            fix="Take the part with the genes: data.node_type_subgraph(['gene'])",
        )
    names = _gene_names(data[GENE])
    genes = Genes(
        names,
        **{
            key: data[GENE][key]
            for key in ("standard", "aliases", "chromosome", "start", "end")
            if key in data[GENE]
        },
    )
    facts: Mapping[str, Any] = data._global_store
    return Cell(
        genes,
        [
            _relation(relation, data[source, relation, target], len(genes))
            for source, relation, target in data.edge_types
            if source == target == GENE
        ],
        _metabolism(data, len(genes)) if REACTION in data.node_types else None,
        _features(data[GENE]),
        [
            Annotation(name, indptr.numpy(), indices.numpy(), tuple(terms), tuple(ids))
            for name, (indptr, indices, terms, ids) in facts.get("annotations", {}).items()
        ],
        sources=[Source.from_json(s) for s in facts["sources"]] if "sources" in facts else (),
        synthetic=facts.get("synthetic"),
    )


def _tensor(array: AnyArray) -> torch.Tensor:
    return torch.from_numpy(np.array(array))


def _put_metabolism(data: HeteroData, metabolism: Metabolism) -> None:
    reactions, metabolites = data[REACTION], data[METABOLITE]
    reactions.num_nodes, metabolites.num_nodes = metabolism.n_reactions, metabolism.n_metabolites
    reactions.name, metabolites.name = list(metabolism.reactions), list(metabolism.metabolites)
    reactions.lower, reactions.upper = _tensor(metabolism.lower), _tensor(metabolism.upper)
    if metabolism.pathways:
        reactions.pathways = [list(names) for names in metabolism.pathways]
    converted = np.stack([metabolism.reaction, metabolism.metabolite]).astype(np.int64)
    data[CONVERTS].edge_index = _tensor(converted)
    data[CONVERTS].coefficient = _tensor(metabolism.coefficient)
    reaction, gene = metabolism.rule_genes
    data[ENABLES].edge_index = _tensor(np.stack([gene, reaction]))
    # Rules are neither nodes nor edges, so they stand beside the graph and not in it.
    data.clause_reaction = _tensor(metabolism.clause_reaction)
    data.clause_genes = _tensor(metabolism.clause_genes)
    data.clause_offsets = _tensor(metabolism.clause_offsets)


def _gene_names(store: Any) -> list[str]:
    n_genes = store.num_nodes
    if n_genes is None:
        raise InputError("the number of genes is not known: data['gene'].num_nodes is not set")
    if "name" not in store:
        return [f"g{i:04d}" for i in range(n_genes)]
    names = [str(name) for name in store["name"]]
    if len(names) != n_genes:
        raise InputError(f"data['gene'] has {n_genes} nodes and {len(names)} names")
    return names


def _features(store: Any) -> list[Feature]:
    found = []
    for key, values in store.items():
        name = key.removeprefix("feature_")
        if key != "x" and name == key:
            continue
        matrix = np.asarray(values.detach().cpu(), dtype=np.float32)
        columns = f"columns_{name}"
        found.append(Feature(name, matrix, tuple(store[columns]) if columns in store else ()))
    return found


def _relation(name: str, store: Any, n_genes: int) -> Relation:
    source, target = store["edge_index"].cpu().numpy()
    weight = store["edge_weight"].detach().cpu().numpy() if "edge_weight" in store else None
    if "directed" in store:
        directed = bool(store["directed"])
    else:
        directed = not _is_symmetric(source, target, weight)
    relation = Relation.from_edges(name, source, target, weight, n_genes=n_genes, directed=directed)
    if "counts" in store and store["counts"]["kept"] == relation.n_edges:
        relation.counts = Counts.from_json(store["counts"])
    return relation


def _is_symmetric(source: Ints, target: Ints, weight: AnyArray | None) -> bool:
    weights = np.ones(len(source)) if weight is None else weight.ravel()
    there, back = np.lexsort((weights, target, source)), np.lexsort((weights, source, target))
    return all(
        np.array_equal(one[there], other[back])
        for one, other in ((source, target), (target, source), (weights, weights))
    )


def _metabolism(data: HeteroData, n_genes: int) -> Metabolism:
    missing = [
        what
        for what, there in (
            ("data['metabolite']", METABOLITE in data.node_types),
            (f"data[{CONVERTS}]", CONVERTS in data.edge_types),
            (f"data[{ENABLES}]", ENABLES in data.edge_types),
            ("data.clause_reaction", "clause_reaction" in data._global_store),
        )
        if not there
    ]
    if missing:
        raise InputError(
            f"there are reactions, and no {missing[0]}",
            fix="Use what Cell.to_hetero_data gives, or leave the reactions out.",
        )
    reactions, converts = data[REACTION], data[CONVERTS]
    reaction, metabolite = converts["edge_index"].numpy().astype(np.int32)
    metabolism = Metabolism(
        tuple(reactions["name"]),
        tuple(data[METABOLITE]["name"]),
        reactions["lower"].numpy(),
        reactions["upper"].numpy(),
        reaction,
        metabolite,
        converts["coefficient"].numpy(),
        data.clause_reaction.numpy(),
        data.clause_genes.numpy(),
        data.clause_offsets.numpy(),
        n_genes,
        tuple(tuple(names) for names in reactions["pathways"]) if "pathways" in reactions else (),
    )
    expected = np.stack(metabolism.rule_genes[::-1])
    if not np.array_equal(expected, data[ENABLES]["edge_index"].numpy()):
        raise InputError(
            f"the edges {ENABLES} are not those of the rules (clause_genes)",
            fix="Change the cell and convert it again; the rules do not follow the edges.",
        )
    return metabolism
