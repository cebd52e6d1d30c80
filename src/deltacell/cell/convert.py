"""A cell from tables in memory; as a PyG `HeteroData`, and back."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import torch

from deltacell.cell.annotation import Feature
from deltacell.cell.cell import Cell
from deltacell.cell.genes import Genes
from deltacell.cell.readers.names import OnUnresolved, account_for_names, in_capitals
from deltacell.cell.readers.networks import NamedEdges
from deltacell.cell.relation import Relation
from deltacell.errors import InputError

if TYPE_CHECKING:
    from torch_geometric.data import HeteroData

GENE, REACTION, METABOLITE = "gene", "reaction", "metabolite"
CONVERTS = (REACTION, "converts", METABOLITE)
ENABLES = (GENE, "enables", REACTION)


def to_hetero_data(cell: Cell) -> HeteroData:
    """Return the cell as a PyG `HeteroData`; `from_hetero_data` gives back an equal cell.

    - ``data["gene"]``: ``name``; for each feature ``feature_NAME`` [n_genes, width], NaN where a
      value is missing, and ``columns_NAME``.
    - ``data["gene", RELATION, "gene"]``: ``edge_index`` [2, entries] from source to target, both
      directions if undirected; ``edge_weight`` [entries]; ``directed``.
    - With a metabolism, ``data["reaction"]`` and ``data["metabolite"]``, the stoichiometry as
      ``data["reaction", "converts", "metabolite"]`` with a signed ``coefficient``, and the genes of
      each rule as ``data["gene", "enables", "reaction"]``.
    - ``data.cell``: the cell itself, which has all that is not a graph.
    """
    from torch_geometric.data import HeteroData

    data = HeteroData(cell=cell)
    genes = data[GENE]
    genes.num_nodes, genes.name = cell.n_genes, list(cell.genes.systematic)
    for feature in cell.features.values():
        genes[f"feature_{feature.name}"] = _tensor(feature.values)
        genes[f"columns_{feature.name}"] = list(feature.columns)
    for relation in cell.relations.values():
        source, target, weight = relation.entries()
        edges = data[GENE, relation.name, GENE]
        edges.edge_index, edges.edge_weight = _tensor([source, target]), _tensor(weight)
        edges.directed = relation.directed
    if (m := cell.metabolism) is not None:
        reactions, metabolites = data[REACTION], data[METABOLITE]
        reactions.num_nodes, metabolites.num_nodes = m.n_reactions, m.n_metabolites
        reactions.name, metabolites.name = list(m.reactions), list(m.metabolites)
        data[CONVERTS].edge_index = _tensor([m.reaction, m.metabolite]).long()
        data[CONVERTS].coefficient = _tensor(m.coefficient)
        data[ENABLES].edge_index = _tensor(m.rule_genes[::-1])
    return data


def from_hetero_data(data: HeteroData) -> Cell:
    """Return the cell of what `to_hetero_data` gives, whose edges and features may be changed."""
    if not isinstance(data.get("cell"), Cell):
        fix = "Give what Cell.to_hetero_data returns, or make a cell with Relation.from_edges."
        raise InputError("the data holds no cell", code="bad-data", fix=fix)
    nodes = data[GENE]
    cell: Cell = data.cell
    names = [key.removeprefix("feature_") for key in nodes if key.startswith("feature_")]
    return cell._with(
        relations=[
            _relation(name, data[source, name, target], cell)
            for source, name, target in data.edge_types
            if source == target == GENE
        ],
        features=[
            Feature(name, nodes[f"feature_{name}"].numpy(), tuple(nodes[f"columns_{name}"]))
            for name in names
        ],
    )


def _tensor(array: Any) -> torch.Tensor:
    return torch.from_numpy(np.array(array))


def _relation(name: str, edges: Any, cell: Cell) -> Relation:
    columns = (*edges["edge_index"].numpy(), edges["edge_weight"].numpy())
    relation = Relation.from_edges(name, *columns, n_genes=cell.n_genes, directed=edges["directed"])
    was = cell.relations.get(name)
    return was if was is not None and was.equals(relation) else relation


def cell_of_tables(
    networks: Mapping[str, Any],
    genes: Any,
    features: Mapping[str, Any],
    directed: set[str],
    on_unknown: OnUnresolved,
) -> Cell:
    """Return the cell of some tables; see `Cell.from_tables`."""
    unknown = sorted(directed - set(networks))
    if unknown:
        what = f"no network is called '{unknown[0]}'; there are {', '.join(networks) or 'none'}"
        raise InputError(what, code="unknown-relation")
    edges = [_edges(name, frame_of(t, name), name in directed) for name, t in networks.items()]
    if genes is None:
        genes = Genes([]).extended(in_capitals(name) for one in edges for name in one.gene_names)
    known = _genes(genes)
    made = [one.on(known, on_unknown) for one in edges]
    return Cell(
        known,
        [relation for relation, _ in made],
        features=[
            _feature(name, frame_of(table, name), known, on_unknown)
            for name, table in features.items()
        ],
        sources=[source for _, source in made],
    )


def frame_of(table: Any, name: str) -> pl.DataFrame:
    """Return a table of pandas, polars or columns by name, called `name` in errors, as polars."""
    try:
        if isinstance(table, pl.DataFrame):
            return table
        if hasattr(table, "to_dict") and hasattr(table, "columns"):
            table = {str(column): table[column].tolist() for column in table.columns}
        return pl.DataFrame(table, strict=False)
    except (TypeError, ValueError, pl.exceptions.PolarsError) as error:
        fix = "Give a data frame of pandas or polars, or columns by name."
        what = f"'{name}' is not a table ({error})"
        raise InputError(what, code="not-a-table", fix=fix) from error


def _edges(name: str, table: pl.DataFrame, directed: bool) -> NamedEdges:
    if table.width not in (2, 3):
        what = f"the network '{name}' has the columns {', '.join(table.columns)}; expected two of "
        raise InputError(f"{what}genes, and a weight if there is one", code="bad-shape")
    source, target, *weight = table.get_columns()
    columns = {"source": _names(source, name), "target": _names(target, name)}
    columns |= {"weight": weight[0].cast(pl.Float64)} if weight else {}
    frame = pl.DataFrame({**columns, "line": np.arange(1, table.height + 1)})
    sha256 = hashlib.sha256(table.write_csv().encode()).hexdigest()
    return NamedEdges(name, frame, Path(name), sha256, "table", directed)


def _names(column: pl.Series, name: str) -> pl.Series:
    texts = column.cast(pl.String).str.strip_chars()
    if texts.is_null().any() or (texts == "").any():
        what = f"the column '{column.name}' of '{name}' has a row without a gene"
        raise InputError(what, code="no-gene-name")
    return texts


def _genes(genes: Any) -> Genes:
    if isinstance(genes, Genes):
        return genes
    if not hasattr(genes, "columns") and not isinstance(genes, Mapping):
        return Genes(genes)
    table = frame_of(genes, "genes")
    known = Genes([]).columns()
    if "systematic" not in table.columns:
        what = f"the table of genes has no 'systematic' among {', '.join(table.columns)}"
        raise InputError(what, code="missing-columns")
    return Genes(**{name: table[name].to_list() for name in table.columns if name in known})


def _feature(name: str, table: pl.DataFrame, genes: Genes, on_unknown: OnUnresolved) -> Feature:
    if table.width < 2:
        what = f"the feature '{name}' has {table.width} columns; expected genes and numbers"
        raise InputError(what, code="bad-shape")
    names = _names(table.to_series(0), name)
    index = genes.resolve(names)
    account_for_names(names, index, on_unknown, Path(name), np.arange(1, len(names) + 1))
    found = index[index >= 0]
    if len(np.unique(found)) < len(found):
        raise InputError(f"the feature '{name}' has a gene twice", code="duplicate-gene")
    values = np.full((len(genes), table.width - 1), np.nan, dtype=np.float32)
    values[found] = table[:, 1:].cast(pl.Float32).to_numpy()[index >= 0]
    return Feature(name, values, tuple(table.columns[1:]))
