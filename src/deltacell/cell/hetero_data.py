"""A cell as a PyG `HeteroData`, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch_geometric.data import HeteroData

from deltacell.arrays import AnyArray
from deltacell.cell.annotation import Annotation, Feature
from deltacell.cell.cell import Cell
from deltacell.cell.genes import Genes
from deltacell.cell.metabolism import Metabolism
from deltacell.cell.relation import Relation
from deltacell.counts import Counts, Source
from deltacell.errors import InputError

GENE, REACTION, METABOLITE = "gene", "reaction", "metabolite"
CONVERTS = (REACTION, "converts", METABOLITE)
ENABLES = (GENE, "enables", REACTION)
_CLAUSES = ("clause_reaction", "clause_genes", "clause_offsets")


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
    if (m := cell.metabolism) is not None:
        reactions, metabolites = data[REACTION], data[METABOLITE]
        reactions.num_nodes, metabolites.num_nodes = m.n_reactions, m.n_metabolites
        reactions.name, metabolites.name = list(m.reactions), list(m.metabolites)
        reactions.lower, reactions.upper = _tensor(m.lower), _tensor(m.upper)
        if m.pathways:
            reactions.pathways = [list(names) for names in m.pathways]
        data[CONVERTS].edge_index = _tensor(np.stack([m.reaction, m.metabolite]).astype(np.int64))
        data[CONVERTS].coefficient = _tensor(m.coefficient)
        data[ENABLES].edge_index = _tensor(np.stack(m.rule_genes[::-1]))
        # Rules are neither nodes nor edges, so they stand beside the graph and not in it.
        for name in _CLAUSES:
            setattr(data, name, _tensor(getattr(m, name)))
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
    is there in both directions with the same weight. Any other node type than ``gene``,
    ``reaction`` and ``metabolite`` is an error.
    """
    strange = set(data.node_types) - {GENE, REACTION, METABOLITE}
    if GENE not in data.node_types or strange:
        raise InputError(
            f"the node types are {', '.join(data.node_types) or 'none'}; expected 'gene', and "
            "beside it only 'reaction' and 'metabolite'",
            code="bad-node-types",
            fix="Take the part with the genes: data.node_type_subgraph(['gene'])",
        )
    nodes, n_genes = data[GENE], data[GENE].num_nodes
    if n_genes is None:
        raise InputError("data['gene'].num_nodes is not set", code="bad-shape")
    names = [str(n) for n in nodes["name"]] if "name" in nodes else _numbered(n_genes)
    if len(names) != n_genes:
        what = f"data['gene'] has {n_genes} nodes and {len(names)} names"
        raise InputError(what, code="bad-shape")
    columns = ("standard", "aliases", "chromosome", "start", "end")
    relations = [
        _relation(name, data[source, name, target], n_genes)
        for source, name, target in data.edge_types
        if source == target == GENE
    ]
    features = [
        Feature(name, values.detach().cpu().numpy(), tuple(nodes.get(f"columns_{name}", ())))
        for key, values in nodes.items()
        if key == "x" or key.startswith("feature_")
        for name in (key.removeprefix("feature_"),)
    ]
    facts: Mapping[str, Any] = data._global_store
    return Cell(
        Genes(names, **{key: nodes[key] for key in columns if key in nodes}),
        relations,
        _metabolism(data, n_genes) if REACTION in data.node_types else None,
        features,
        [
            Annotation(name, indptr.numpy(), indices.numpy(), tuple(terms), tuple(ids))
            for name, (indptr, indices, terms, ids) in facts.get("annotations", {}).items()
        ],
        sources=[Source.from_json(s) for s in facts.get("sources", ())],
        synthetic=facts.get("synthetic"),
    )


def _tensor(array: AnyArray) -> torch.Tensor:
    return torch.from_numpy(np.array(array))


def _numbered(n: int) -> list[str]:
    return [f"g{i:04d}" for i in range(n)]


def _relation(name: str, edges: Any, n_genes: int) -> Relation:
    source, target = edges["edge_index"].cpu().numpy()
    weight = edges["edge_weight"].detach().cpu().numpy() if "edge_weight" in edges else None
    if "directed" in edges:
        directed = bool(edges["directed"])
    else:
        there = Relation.from_edges(name, source, target, weight, n_genes=n_genes, directed=True)
        directed = not there.equals(there.transpose)
    relation = Relation.from_edges(name, source, target, weight, n_genes=n_genes, directed=directed)
    if "counts" in edges and edges["counts"]["kept"] == relation.n_edges:
        relation.counts = Counts.from_json(edges["counts"])
    return relation


def _metabolism(data: HeteroData, n_genes: int) -> Metabolism:
    there = {*data.node_types, *data.edge_types, *data._global_store}
    missing = [part for part in (METABOLITE, CONVERTS, ENABLES, *_CLAUSES) if part not in there]
    if missing:
        raise InputError(
            f"there are reactions, and data[{missing[0]!r}] is missing",
            code="bad-metabolism",
            fix="Use what Cell.to_hetero_data gives, or leave the reactions out.",
        )
    reactions, converts = data[REACTION], data[CONVERTS]
    reaction, metabolite = converts["edge_index"].numpy().astype(np.int32)
    clause_reaction, clause_genes, clause_offsets = (getattr(data, n).numpy() for n in _CLAUSES)
    metabolism = Metabolism(
        tuple(reactions["name"]),
        tuple(data[METABOLITE]["name"]),
        reactions["lower"].numpy(),
        reactions["upper"].numpy(),
        reaction,
        metabolite,
        converts["coefficient"].numpy(),
        clause_reaction,
        clause_genes,
        clause_offsets,
        n_genes,
        tuple(map(tuple, reactions.get("pathways", ()))),
    )
    expected = np.stack(metabolism.rule_genes[::-1])
    if not np.array_equal(expected, data[ENABLES]["edge_index"].numpy()):
        raise InputError(
            f"the edges {ENABLES} are not those of the rules (clause_genes)",
            code="bad-metabolism",
            fix="Change the cell and convert it again; the rules do not follow the edges.",
        )
    return metabolism
