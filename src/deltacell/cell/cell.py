"""The wild type: its genes, its relations, and optionally metabolism, features, annotations."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
import pyarrow as pa

from deltacell import storage
from deltacell.base.errors import InputError, did_you_mean, need
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
        self.features, self.annotations = _by_name(features), _by_name(annotations)
        self.sources = tuple(sources)
        self.synthetic_recipe = None if synthetic is None else dict(synthetic)
        named = *self.relations.values(), *self.features.values(), *self.annotations.values()
        parts: tuple[Any, ...] = (*named, metabolism or self)
        for part in parts:
            if part.n_genes != self.n_genes:
                what = f"{part!r} has {part.n_genes} genes, but the cell has {self.n_genes}"
                raise InputError(what, code="other-genes")
        if both := sorted(self.features.keys() & self.annotations.keys()):
            what = f"a feature and an annotation are both called '{both[0]}'"
            raise InputError(what, code="duplicate-name")

    @classmethod
    def synthetic(cls, name: str = "demo", *, seed: int = 0) -> Cell:
        """Return the synthetic cell ``demo``, ``yeast`` (of the real size) or ``redundancy``."""
        from deltacell.cell.synthetic import synthetic_cell

        return synthetic_cell(name, seed=seed)

    @property
    def n_genes(self) -> int:
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
        relations = dict(self.relations)
        for new, names in groups.items():
            parts = [self.relation(name) for name in names]
            gone = {part.name for part in parts}
            if not gone or not gone <= relations.keys() or new in relations.keys() - gone:
                what = (
                    f"cannot merge '{new}': no relations, a relation used twice, or a name in use"
                )
                raise InputError(what, code="bad-merge")
            first, directed = parts[0].name, any(part.directed for part in parts)
            edges = [part.entries() if directed else part.edges() for part in parts]
            columns = map(np.concatenate, zip(*edges, strict=True))
            facts: dict[str, Any] = {"n_genes": self.n_genes, "directed": directed}
            relations[first] = Relation.from_edges(new, *columns, **facts)
            relations = {r.name: r for n, r in relations.items() if n == first or n not in gone}
        return self._with(relations=relations)

    def relation(self, name: str) -> Relation:
        return _get(self.relations, name, "relation")

    def feature(self, name: str) -> Feature:
        """Return a feature, or an annotation as a feature, by its name."""
        known: dict[str, Feature | Annotation] = {**self.features, **self.annotations}
        found = _get(known, name, "feature")
        return found if isinstance(found, Feature) else found.feature

    def _facts(self) -> dict[str, Any]:
        m = self.metabolism
        return {
            "genes": self.n_genes,
            "genes_with_position": int(self.genes.has_position.sum()),
            "relations": [
                {
                    "relation": r.name,
                    "directed": r.directed,
                    "genes_with_an_edge": r.n_connected,
                    "edges": r.n_edges,
                    "max_degree": int(np.maximum(r.in_degree, r.out_degree).max(initial=0)),
                    "counts": r.counts.to_json(),
                }
                for r in self.relations.values()
            ],
            "edges": sum(r.n_edges for r in self.relations.values()),
            "metabolism": m
            and {
                "reactions": m.n_reactions,
                "metabolites": m.n_metabolites,
                "genes_in_rules": len(np.unique(m.clause_genes)),
                "reactions_with_rule": len(np.unique(m.clause_reaction)),
            },
            "features": [{"feature": f.name, **f.stats()} for f in self.features.values()],
            "annotations": [{"annotation": a.name, **a.stats()} for a in self.annotations.values()],
        }

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Cell:
        """Open a cell; its arrays are memory-mapped."""
        stored = storage.read(path, "cell")
        parts = stored.parts

        def under(prefix: str) -> dict[str, pa.Table]:
            return {n.partition(".")[2]: t for n, t in parts.items() if n.startswith(f"{prefix}.")}

        def listed(name: str) -> list[tuple[dict[str, pa.Table], dict[str, Any]]]:
            rows = parts[f"{name}s"].to_pylist() if f"{name}s" in parts else []
            return [(under(f"{name}-{i:03d}"), row) for i, row in enumerate(rows)]

        genes = Genes.from_arrow(parts["genes"])
        counts = (Counts.from_json(facts["counts"]) for facts in stored.meta["stats"]["relations"])
        relations = zip(listed("relation"), counts, strict=True)
        metabolism = under("metabolism")
        cell = cls(
            genes,
            [Relation.from_arrow(tables, **row, counts=rows) for (tables, row), rows in relations],
            Metabolism.from_arrow(metabolism, len(genes)) if metabolism else None,
            [Feature.from_arrow(tables, **row) for tables, row in listed("feature")],
            [Annotation.from_arrow(tables, **row) for tables, row in listed("annotation")],
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

        directed, edges = set(directed), []
        for name in directed - set(networks):
            raise InputError(f"unknown network '{name}' in directed", code="unknown-relation")
        for name, network in networks.items():
            table = Table.from_memory(network, name)
            columns = table.frame.columns
            if len(columns) not in (2, 3):
                what = f"the network '{name}' has {len(columns)} columns; expected 2 or 3"
                raise InputError(what, code="bad-shape")
            edges.append(edges_of(table, columns, name, "table", directed=name in directed))
        if genes is None:
            names = (in_capitals(name) for one in edges for name in one.gene_names)
            genes = Genes([]).extended(names)
        elif isinstance(genes, Mapping) or isinstance(getattr(genes, "columns", 0), Iterable):
            frame = frame_of(genes, "genes")
            if "systematic" not in frame.columns:
                what = "the table of genes has no column 'systematic'"
                raise InputError(what, code="missing-columns")
            known = frame.select(name for name in frame.columns if name in Genes([]).columns())
            genes = Genes(**known.to_dict(as_series=False))
        genes = genes if isinstance(genes, Genes) else Genes(genes)
        made = [one.on(genes, on_unknown) for one in edges]
        of_genes = [
            feature_of(Table.from_memory(table, name), genes, on_unknown)
            for name, table in (features or {}).items()
        ]
        sources = [source for _, source in (*made, *of_genes)]
        relations = [relation for relation, _ in made]
        return cls(genes, relations, None, [feature for feature, _ in of_genes], sources=sources)

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
        need("torch_geometric", "A HeteroData", "pyg")
        import torch
        from torch_geometric.data import HeteroData

        def tensor(array: Any) -> torch.Tensor:
            return torch.from_numpy(np.array(array))

        data = HeteroData(cell=self)
        nodes = data["gene"]
        nodes.num_nodes, nodes.name = self.n_genes, list(self.genes.systematic)
        for feature in self.features.values():
            nodes[f"feature_{feature.name}"] = tensor(feature.values)
            nodes[f"columns_{feature.name}"] = list(feature.columns)
        for relation in self.relations.values():
            source, target, weight = relation.entries()
            edges = data["gene", relation.name, "gene"]
            edges.edge_index, edges.edge_weight = tensor([source, target]), tensor(weight)
            edges.directed = relation.directed
        if (m := self.metabolism) is not None:
            data["reaction"].num_nodes, data["reaction"].name = m.n_reactions, list(m.reactions)
            data["metabolite"].num_nodes = m.n_metabolites
            data["metabolite"].name = list(m.metabolites)
            converts = data["reaction", "converts", "metabolite"]
            converts.edge_index = tensor([m.reaction, m.metabolite]).long()
            converts.coefficient = tensor(m.coefficient)
            data["gene", "enables", "reaction"].edge_index = tensor(m.rule_genes[::-1])
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
        cell, nodes = data.get("cell"), data["gene"] if "gene" in data.node_types else None
        if not isinstance(cell, Cell) or nodes is None:
            genes = hetero_data.genes_of(data)
            return cls(
                genes,
                hetero_data.relations_of(data, len(genes), directed),
                features=hetero_data.features_of(data, len(genes)),
            )
        relations = []
        for name in (edge[1] for edge in data.edge_types if edge[0] == edge[2] == "gene"):
            edges, was = data["gene", name, "gene"], cell.relations.get(name)
            columns = (*edges["edge_index"].numpy(), edges["edge_weight"].numpy())
            facts = {"n_genes": cell.n_genes, "directed": edges["directed"]}
            now = Relation.from_edges(name, *columns, **facts)
            relations.append(was if was is not None and was.equals(now) else now)
        features = [
            Feature(name, nodes[f"feature_{name}"].numpy(), tuple(nodes[f"columns_{name}"]))
            for name in (key[8:] for key in nodes if key.startswith("feature_"))
        ]
        return cell._with(relations=relations, features=features)

    def __repr__(self) -> str:
        edges = sum(r.n_edges for r in self.relations.values())
        sizes = f"{self.n_genes:,} genes, {len(self.relations)} relations, {edges:,} edges"
        return f"Cell({sizes}{'' if self.metabolism is None else f', {self.metabolism!r}'})"

    def _parts(self) -> dict[str, pa.Table]:
        relations, features = self.relations.values(), self.features.values()
        directed = pa.array([r.directed for r in relations], pa.bool_())
        width = pa.array([f.width for f in features], pa.int64())
        # The names are also in a part, so that the checksum covers them.
        parts = {
            "genes": self.genes.to_arrow(),
            "relations": pa.table({"name": _texts(self.relations), "directed": directed}),
            "features": pa.table({"name": _texts(self.features), "width": width}),
        }
        if self.annotations:
            parts["annotations"] = pa.table({"name": _texts(self.annotations)})
        pieces: dict[str, Any] = {f"relation-{i:03d}": r for i, r in enumerate(relations)}
        pieces |= {"metabolism": self.metabolism} if self.metabolism is not None else {}
        pieces |= {f"feature-{i:03d}": f for i, f in enumerate(features)}
        pieces |= {f"annotation-{i:03d}": a for i, a in enumerate(self.annotations.values())}
        for prefix, piece in pieces.items():
            parts |= {f"{prefix}.{name}": table for name, table in piece.to_arrow().items()}
        return parts


def _texts(names: Iterable[str]) -> pa.Array:
    return pa.array(list(names), pa.string())


def _by_name(parts: Iterable[Part] | Mapping[str, Part]) -> dict[str, Part]:
    named: dict[str, Part] = {}
    for part in parts.values() if isinstance(parts, Mapping) else parts:
        if named.setdefault(part.name, part) is not part:
            what = f"two relations, features or annotations are called '{part.name}'"
            raise InputError(what, code="duplicate-name")
    return named


def _get(parts: Mapping[str, Named], name: str, what: str) -> Named:
    if name not in parts:
        said = f"unknown {what} '{name}'{did_you_mean(name, parts)}"
        fix = f"The cell has {', '.join(parts) or 'none'}."
        raise InputError(said, code=f"unknown-{what}", fix=fix)
    return parts[name]
