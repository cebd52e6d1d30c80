"""The wild type: its genes, its relations, and optionally metabolism, features, annotations."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from deltacell import storage
from deltacell.base.errors import InputError, did_you_mean
from deltacell.base.files import JsonObject
from deltacell.cell import hetero_data
from deltacell.cell.annotation import Annotation, Feature
from deltacell.cell.genes import Genes
from deltacell.cell.metabolism import Metabolism
from deltacell.cell.relation import Relation
from deltacell.storage.provenance import Counts, Source
from deltacell.storage.tables import Table, frame_of

if TYPE_CHECKING:
    from torch_geometric.data import HeteroData

Part = TypeVar("Part", Relation, Feature, Annotation)
Named = TypeVar("Named")


class Cell(storage.Storable):
    """The wild type: ordered genes, and the relations and features of these genes."""

    stored_as = "cell"
    made_from = ("genes", "relations", "metabolism", "features", "annotations", "sources")

    def __init__(
        self,
        genes: Genes | Iterable[str],
        relations: Iterable[Relation] | Mapping[str, Relation],
        metabolism: Metabolism | None = None,
        features: Iterable[Feature] | Mapping[str, Feature] = (),
        annotations: Iterable[Annotation] | Mapping[str, Annotation] = (),
        *,
        sources: Sequence[Source] = (),
        synthetic: Mapping[str, Any] | None = None,
    ) -> None:
        self.genes = genes if isinstance(genes, Genes) else Genes(genes)
        self.relations = _by_name(relations)
        self.metabolism = metabolism
        self.features = _by_name(features)
        self.annotations = _by_name(annotations)
        self.sources = tuple(sources)
        self.synthetic_recipe = None if synthetic is None else dict(synthetic)
        self._check_parts()

    def _check_parts(self) -> None:
        """Raise if a part is of other genes, or a feature and an annotation have one name."""
        parts: list[Relation | Feature | Annotation | Metabolism] = [*self.relations.values()]
        parts += [*self.features.values(), *self.annotations.values()]
        if self.metabolism is not None:
            parts.append(self.metabolism)
        for part in parts:
            if part.n_genes != self.n_genes:
                message = f"{part!r} has {part.n_genes} genes, but the cell has {self.n_genes}"
                raise InputError(message, code="other-genes")
        shared_names = sorted(self.features.keys() & self.annotations.keys())
        if shared_names:
            message = f"a feature and an annotation are both called '{shared_names[0]}'"
            raise InputError(message, code="duplicate-name")

    @classmethod
    def synthetic(cls, name: str = "demo", *, seed: int = 0) -> Cell:
        """Return the synthetic cell ``demo``, ``yeast`` (of the real size) or ``redundancy``."""
        from deltacell.cell.synthetic import synthetic_cell

        return synthetic_cell(name, seed=seed)

    @property
    def n_genes(self) -> int:
        """The number of genes."""
        return len(self.genes)

    def subset(self, genes: Iterable[str | int]) -> Cell:
        """Return the cell with only the given genes, by any name or index, in the given order."""
        chosen = self.genes.indices(genes)
        if len(np.unique(chosen)) != len(chosen):
            raise InputError("a gene was given twice", code="duplicate-gene")
        return self._with(
            genes=self.genes.take(chosen),
            relations=[r.take(chosen) for r in self.relations.values()],
            metabolism=None if self.metabolism is None else self.metabolism.take(chosen),
            features=[f.take(chosen) for f in self.features.values()],
            annotations=[a.take(chosen) for a in self.annotations.values()],
        )

    def with_relations(self, names: Iterable[str]) -> Cell:
        """Return the cell with only the named relations, in the given order."""
        return self._with(relations=[self.relation(name) for name in names])

    def merge_relations(self, groups: Mapping[str, Iterable[str]]) -> Cell:
        """Return the cell with groups of relations, by their new name, replaced by their union."""
        relations = list(self.relations.values())
        for new_name, names in groups.items():
            parts = [self.relation(name) for name in names]
            merged_names = {part.name for part in parts}
            other_names = {relation.name for relation in relations} - merged_names
            n_left = len(relations) - len(other_names)
            if not parts or n_left < len(merged_names) or new_name in other_names:
                message = (
                    f"cannot merge '{new_name}': no relations, a relation used twice, "
                    "or a name in use"
                )
                raise InputError(message, code="bad-merge")
            merged = self._merged(new_name, parts)
            relations = [merged if r.name == parts[0].name else r for r in relations]
            relations = [r for r in relations if r is merged or r.name not in merged_names]
        return self._with(relations=relations)

    def _merged(self, name: str, parts: Sequence[Relation]) -> Relation:
        """Return the union of relations, directed if any of them is."""
        directed = any(part.directed for part in parts)
        edges = [part.entries() if directed else part.edges() for part in parts]
        columns = map(np.concatenate, zip(*edges, strict=True))
        return Relation.from_edges(name, *columns, n_genes=self.n_genes, directed=directed)

    def relation(self, name: str) -> Relation:
        """Return a relation by its name."""
        return _get(self.relations, name, "relation")

    def feature(self, name: str) -> Feature:
        """Return a feature, or an annotation as a feature, by its name."""
        known: dict[str, Feature | Annotation] = {**self.features, **self.annotations}
        part = _get(known, name, "feature")
        return part if isinstance(part, Feature) else part.feature

    def _facts(self) -> JsonObject:
        relations = self.relations.values()
        return {
            "genes": self.n_genes,
            "genes_with_position": int(self.genes.has_position.sum()),
            "relations": [{"relation": r.name, **r.stats()} for r in relations],
            "edges": sum(relation.n_edges for relation in relations),
            "metabolism": None if self.metabolism is None else self.metabolism.stats(),
            "features": [{"feature": f.name, **f.stats()} for f in self.features.values()],
            "annotations": [{"annotation": a.name, **a.stats()} for a in self.annotations.values()],
        }

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Cell:
        """Open a cell; its arrays are memory-mapped."""
        stored = storage.read(path, "cell")
        parts = stored.parts
        genes = Genes.from_arrow(parts["genes"])
        facts_of_relations = stored.meta["stats"]["relations"]
        counts = [Counts.from_json(facts["counts"]) for facts in facts_of_relations]
        relations = zip(_listed(parts, "relation"), counts, strict=True)
        metabolism = _tables_under(parts, "metabolism")
        cell = cls(
            genes,
            [Relation.from_arrow(r.tables, **r.arguments, counts=rows) for r, rows in relations],
            Metabolism.from_arrow(metabolism, len(genes)) if metabolism else None,
            [Feature.from_arrow(f.tables, **f.arguments) for f in _listed(parts, "feature")],
            [Annotation.from_arrow(a.tables, **a.arguments) for a in _listed(parts, "annotation")],
        )
        return cell._loaded(path, stored)

    @classmethod
    def from_tables(
        cls,
        networks: Mapping[str, Any],
        genes: Any = None,
        features: Mapping[str, Any] | None = None,
        *,
        directed: Iterable[str] = (),
        on_unknown: Literal["error", "drop"] = "error",
    ) -> Cell:
        """Make a cell from tables in memory: pandas or polars data frames, or columns by name.

        Parameters
        ----------
        networks
            Tables by relation name: two columns of gene names, and optionally a weight. The
            relations named in `directed` are directed.
        genes
            Systematic names, or a table with a column ``systematic`` and any of ``standard``,
            ``aliases``, ``chromosome``, ``start``, ``end`` and ``description``; by default every
            gene of the networks.
        features
            Tables by feature name: a column of gene names and columns of numbers, read like a file
            (rows of one gene are averaged).
        """
        from deltacell.cell.readers.features import feature_of
        from deltacell.cell.readers.names import in_capitals
        from deltacell.cell.readers.networks import edges_of

        directed = set(directed)
        for name in directed - set(networks):
            raise InputError(f"unknown network '{name}' in directed", code="unknown-relation")
        edges = []
        for name, network in networks.items():
            table = Table.from_memory(network, name)
            columns = table.frame.columns
            if len(columns) not in (2, 3):
                message = f"the network '{name}' has {len(columns)} columns; expected 2 or 3"
                raise InputError(message, code="bad-shape")
            edges.append(edges_of(table, columns, name, "table", directed=name in directed))
        if genes is None:
            names = chain.from_iterable(network.gene_names for network in edges)
            genes = Genes([]).extended(map(in_capitals, names))
        else:
            genes = _genes_of_table(genes)
        read_relations = [network.on(genes, on_unknown) for network in edges]
        read_features = [
            feature_of(Table.from_memory(table, name), genes, on_unknown)
            for name, table in (features or {}).items()
        ]
        return cls(
            genes,
            [relation for relation, _ in read_relations],
            features=[feature for feature, _ in read_features],
            sources=[source for _, source in (*read_relations, *read_features)],
        )

    def to_hetero_data(self) -> HeteroData:
        """Return the cell as a PyG `HeteroData`; `from_hetero_data` gives back an equal cell.

        - ``data["gene"]``: ``name``; for each feature ``feature_NAME`` [n_genes, width], NaN where
          a value is missing, and ``columns_NAME``.
        - ``data["gene", RELATION, "gene"]``: ``edge_index`` [2, entries] from source to target,
          both directions if undirected; ``edge_weight`` [entries]; ``directed``.
        - With a metabolism, ``data["reaction"]`` and ``data["metabolite"]``, the stoichiometry as
          ``data["reaction", "converts", "metabolite"]`` with a signed ``coefficient``, and the
          genes of each rule as ``data["gene", "enables", "reaction"]``.
        - ``data.cell``: the cell itself, for everything that is not a graph.
        """
        import torch
        from torch_geometric.data import HeteroData

        def tensor(array: Any) -> torch.Tensor:
            return torch.from_numpy(np.array(array))

        data = HeteroData(cell=self)
        nodes = data["gene"]
        nodes.num_nodes = self.n_genes
        nodes.name = list(self.genes.systematic)
        for feature in self.features.values():
            nodes[f"feature_{feature.name}"] = tensor(feature.values)
            nodes[f"columns_{feature.name}"] = list(feature.columns)
        for relation in self.relations.values():
            source, target, weight = relation.entries()
            edges = data["gene", relation.name, "gene"]
            edges.edge_index = tensor([source, target])
            edges.edge_weight = tensor(weight)
            edges.directed = relation.directed
        metabolism = self.metabolism
        if metabolism is not None:
            data["reaction"].num_nodes = metabolism.n_reactions
            data["reaction"].name = list(metabolism.reactions)
            data["metabolite"].num_nodes = metabolism.n_metabolites
            data["metabolite"].name = list(metabolism.metabolites)
            converts = data["reaction", "converts", "metabolite"]
            converts.edge_index = tensor([metabolism.reaction, metabolism.metabolite]).long()
            converts.coefficient = tensor(metabolism.coefficient)
            enables = data["gene", "enables", "reaction"]
            enables.edge_index = tensor(metabolism.rule_genes[::-1])
        return data

    @classmethod
    def from_hetero_data(
        cls,
        data: HeteroData,
        *,
        directed: Iterable[str] | None = None,
    ) -> Cell:
        """Make a cell from a PyG `HeteroData` of `to_hetero_data` or of another program.

        The result of `to_hetero_data` gives back an equal cell; its edges and features may have
        been changed. Any other needs

        - ``data["gene"].name`` or ``.node_ids``: the systematic names, in the order of the nodes;
        - ``data["gene", RELATION, "gene"].edge_index`` [2, edges] from source to target, and
          optionally ``edge_weight`` [edges].

        ``x`` and ``feature_NAME`` of the genes become features; other nodes and edges are ignored.

        Parameters
        ----------
        directed
            The names of the directed relations. By default a relation without the attribute
            ``directed`` is undirected if all its edges are there in both directions.
        """
        cell = data.get("cell")
        if isinstance(cell, Cell) and "gene" in data.node_types:
            return cell._changed_by(data)
        genes = hetero_data.genes_of(data)
        return cls(
            genes,
            hetero_data.relations_of(data, len(genes), directed),
            features=hetero_data.features_of(data, len(genes)),
        )

    def _changed_by(self, data: HeteroData) -> Cell:
        """Return the cell with the relations and features of a result of `to_hetero_data`."""
        names = [name for source, name, target in data.edge_types if source == target == "gene"]
        relations = []
        for name in names:
            edges = data["gene", name, "gene"]
            source, target = edges["edge_index"].numpy()
            relation = Relation.from_edges(
                name,
                source,
                target,
                edges["edge_weight"].numpy(),
                n_genes=self.n_genes,
                directed=edges["directed"],
            )
            before = self.relations.get(name)
            is_unchanged = before is not None and before.equals(relation)
            relations.append(before if is_unchanged else relation)
        nodes = data["gene"]
        prefix = "feature_"
        feature_names = [key.removeprefix(prefix) for key in nodes if key.startswith(prefix)]
        features = [
            Feature(name, nodes[f"feature_{name}"].numpy(), tuple(nodes[f"columns_{name}"]))
            for name in feature_names
        ]
        return self._with(relations=relations, features=features)

    def __repr__(self) -> str:
        n_edges = sum(relation.n_edges for relation in self.relations.values())
        sizes = f"{self.n_genes:,} genes, {len(self.relations)} relations, {n_edges:,} edges"
        metabolism = "" if self.metabolism is None else f", {self.metabolism!r}"
        return f"Cell({sizes}{metabolism})"

    def _parts(self) -> dict[str, pa.Table]:
        relations = self.relations.values()
        features = self.features.values()
        directed = pa.array([relation.directed for relation in relations], pa.bool_())
        width = pa.array([feature.width for feature in features], pa.int64())
        # The names are also in a part, so that the checksum covers them.
        parts = {
            "genes": self.genes.to_arrow(),
            "relations": pa.table({"name": _texts(self.relations), "directed": directed}),
            "features": pa.table({"name": _texts(self.features), "width": width}),
        }
        if self.annotations:
            parts["annotations"] = pa.table({"name": _texts(self.annotations)})
        for i, relation in enumerate(relations):
            parts |= _prefixed(f"relation-{i:03d}", relation.to_arrow())
        if self.metabolism is not None:
            parts |= _prefixed("metabolism", self.metabolism.to_arrow())
        for i, feature in enumerate(features):
            parts |= _prefixed(f"feature-{i:03d}", feature.to_arrow())
        for i, annotation in enumerate(self.annotations.values()):
            parts |= _prefixed(f"annotation-{i:03d}", annotation.to_arrow())
        return parts


class _StoredPart(NamedTuple):
    """A relation, feature or annotation on disk."""

    tables: dict[str, pa.Table]
    arguments: dict[str, Any]  # of its method `from_arrow`


def _listed(parts: Mapping[str, pa.Table], kind: str) -> list[_StoredPart]:
    """Return the stored relations, features or annotations; none if the cell has no such table."""
    rows = parts[f"{kind}s"].to_pylist() if f"{kind}s" in parts else []
    return [_StoredPart(_tables_under(parts, f"{kind}-{i:03d}"), r) for i, r in enumerate(rows)]


def _tables_under(parts: Mapping[str, pa.Table], prefix: str) -> dict[str, pa.Table]:
    """Return the tables whose names begin with a prefix and a point, without these."""
    start = f"{prefix}."
    return {name.removeprefix(start): parts[name] for name in parts if name.startswith(start)}


def _prefixed(prefix: str, tables: Mapping[str, pa.Table]) -> dict[str, pa.Table]:
    return {f"{prefix}.{name}": table for name, table in tables.items()}


def _genes_of_table(genes: Any) -> Genes:
    """Return genes from a table with the columns of `Genes`, or from systematic names."""
    if isinstance(genes, Genes):
        return genes
    is_table = isinstance(genes, Mapping) or isinstance(getattr(genes, "columns", 0), Iterable)
    if not is_table:
        return Genes(genes)
    frame = frame_of(genes, "genes")
    if "systematic" not in frame.columns:
        message = "the table of genes has no column 'systematic'"
        raise InputError(message, code="missing-columns")
    known = frame.select(name for name in frame.columns if name in Genes([]).columns())
    return Genes(**known.to_dict(as_series=False))


def _texts(names: Iterable[str]) -> pa.Array:
    return pa.array(list(names), pa.string())


def _by_name(parts: Iterable[Part] | Mapping[str, Part]) -> dict[str, Part]:
    """Return parts by their names; the keys of a mapping are ignored."""
    by_name: dict[str, Part] = {}
    for part in parts.values() if isinstance(parts, Mapping) else parts:
        if by_name.setdefault(part.name, part) is not part:
            message = f"two relations, features or annotations are called '{part.name}'"
            raise InputError(message, code="duplicate-name")
    return by_name


def _get(parts: Mapping[str, Named], name: str, kind: str) -> Named:
    """Return a part by its name; raise if there is none."""
    if name not in parts:
        message = f"unknown {kind} '{name}'{did_you_mean(name, parts)}"
        fix = f"The cell has {', '.join(parts) or 'none'}."
        raise InputError(message, code=f"unknown-{kind}", fix=fix)
    return parts[name]
