"""The wild type: its genes, its relations, and optionally metabolism, features, annotations."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa

from deltacell import store
from deltacell.arrays import Ints
from deltacell.cell.annotation import Annotation
from deltacell.cell.feature import Feature
from deltacell.cell.genes import Genes
from deltacell.cell.metabolism import Metabolism
from deltacell.cell.relation import Relation
from deltacell.counts import Source
from deltacell.errors import InputError, did_you_mean

if TYPE_CHECKING:
    from torch_geometric.data import HeteroData


class Cell:
    """The wild type.

    Parameters
    ----------
    genes
        Its genes in order, as `Genes` or as systematic names.
    relations
        Gene networks over these genes.
    metabolism
        Reactions and their rules over these genes.
    features
        Named matrices with one row per gene.
    annotations
        Terms that the genes have, such as GO or complexes.
    sources
        The files it was made from.
    synthetic
        For a made-up cell, what it was made with.
    """

    def __init__(
        self,
        genes: Genes | Iterable[str],
        relations: Iterable[Relation] | Mapping[str, Relation],
        metabolism: Metabolism | None = None,
        features: Iterable[Feature] | Mapping[str, Any] | None = None,
        annotations: Iterable[Annotation] = (),
        *,
        sources: Sequence[Source] = (),
        synthetic: Mapping[str, Any] | None = None,
    ) -> None:
        self.genes = genes if isinstance(genes, Genes) else Genes(genes)
        self.relations: dict[str, Relation] = _named_relations(relations)
        self.metabolism = metabolism
        self.features: dict[str, Feature] = _named_features(features)
        self.annotations: dict[str, Annotation] = _named_annotations(annotations)
        self.sources = tuple(sources)
        self.synthetic_recipe = None if synthetic is None else dict(synthetic)
        self.path: Path | None = None
        """The directory it was loaded from, if any."""
        self._check_sizes()

    @classmethod
    def synthetic(cls, name: str = "demo", *, seed: int = 0) -> Cell:
        """Return a made-up cell, the same for the same seed.

        Parameters
        ----------
        name
            ``demo``, a few hundred genes in pathways; or ``yeast``, the size of the real one.
        seed
            Of all that is drawn.
        """
        from deltacell.cell.synthetic import synthetic_cell

        return synthetic_cell(name, seed=seed)

    @property
    def n_genes(self) -> int:
        """Number of genes."""
        return len(self.genes)

    def subset(self, genes: Iterable[str | int]) -> Cell:
        """Return the cell with only the given genes, in the given order.

        Parameters
        ----------
        genes
            Names of any kind, or indices.
        """
        index = [g if isinstance(g, (int, np.integer)) else self.genes.index(g) for g in genes]
        chosen: Ints = np.array(index, dtype=np.int64)
        if len(np.unique(chosen)) != len(chosen):
            raise InputError("a gene was given twice")
        if len(chosen) and not 0 <= chosen.min() <= chosen.max() < self.n_genes:
            raise InputError(f"a gene index is outside the cell, 0 to {self.n_genes - 1}")
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
        """Return the cell with groups of relations each replaced by their union.

        Parameters
        ----------
        groups
            Names of the relations to merge, by the name of the union. The union stands where the
            first of its relations stood.
        """
        relations = dict(self.relations)
        for new, names in groups.items():
            parts = [self.relation(name) for name in names]
            absent = [part.name for part in parts if part.name not in relations]
            if absent:
                raise InputError(f"the relation '{absent[0]}' is in two groups")
            merged = Relation.merge(new, parts)
            gone = {part.name for part in parts}
            if new in relations and new not in gone:
                raise InputError(f"there is another relation called '{new}'")
            place = list(relations).index(parts[0].name)
            kept = [r for r in relations.values() if r.name not in gone]
            before = sum(r.name not in gone for r in list(relations.values())[:place])
            relations = {r.name: r for r in [*kept[:before], merged, *kept[before:]]}
        return self._with(relations=relations)

    def relation(self, name: str) -> Relation:
        """Return a relation by its name; an unknown one is an error that lists those there are."""
        if name not in self.relations:
            raise InputError(
                f"the cell has no relation '{name}'{did_you_mean(name, self.relations)}; "
                f"it has {', '.join(self.relations) or 'none'}"
            )
        return self.relations[name]

    def with_feature(self, feature: Feature) -> Cell:
        """Return the cell with one more feature, or with one of the same name replaced."""
        return self._with(features={**self.features, feature.name: feature})

    def feature(self, name: str) -> Feature:
        """Return a feature, or an annotation as a feature, by its name."""
        if name in self.features:
            return self.features[name]
        if name in self.annotations:
            return self.annotations[name].feature
        there = [*self.features, *self.annotations]
        raise InputError(
            f"the cell has no feature '{name}'{did_you_mean(name, there)}; "
            f"it has {', '.join(there) or 'none'}"
        )

    def with_annotation(self, annotation: Annotation) -> Cell:
        """Return the cell with one more annotation, or with one of the same name replaced."""
        return self._with(annotations=({**self.annotations, annotation.name: annotation}).values())

    def stats(self) -> dict[str, Any]:
        """Return what the cell holds, in numbers."""
        return {
            **self._facts(),
            "sources": [s.to_json() for s in self.sources],
            "checksum": self.checksum,
        }

    def _facts(self) -> dict[str, Any]:
        relations = [
            {
                "relation": r.name,
                "directed": r.directed,
                "genes_with_an_edge": r.n_connected,
                "edges": r.n_edges,
                "max_degree": int(np.maximum(r.in_degree, r.out_degree).max(initial=0)),
                "counts": r.counts.to_json(),
            }
            for r in self.relations.values()
        ]
        m = self.metabolism
        return {
            "genes": self.n_genes,
            "genes_with_position": int(self.genes.has_position.sum()),
            "relations": relations,
            "edges": sum(r.n_edges for r in self.relations.values()),
            "metabolism": None
            if m is None
            else {
                "reactions": m.n_reactions,
                "metabolites": m.n_metabolites,
                "genes_in_rules": len(np.unique(m.clause_genes)),
                "reactions_with_rule": len(np.unique(m.clause_reaction)),
            },
            "features": [
                {
                    "feature": f.name,
                    "width": f.width,
                    "known": int(f.known.sum()),
                    "missing": f.missing,
                }
                for f in self.features.values()
            ],
            "annotations": [
                {
                    "annotation": a.name,
                    "terms": len(a.terms),
                    "genes": int(a.known.sum()),
                    "pairs": len(a.indices),
                }
                for a in self.annotations.values()
            ],
        }

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Write the cell to a directory, all of it or nothing."""
        meta = {
            "counts": [r.counts.to_json() for r in self.relations.values()],
            "sources": [s.to_json() for s in self.sources],
            "synthetic": self.synthetic_recipe,
            "stats": self._facts(),
        }
        store.write(path, "cell", self._parts(), meta, overwrite=overwrite)

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, verify: bool = True) -> Cell:
        """Open a cell; its arrays are memory-mapped.

        Parameters
        ----------
        path
            The directory.
        verify
            Compare every part with its checksum first.
        """
        stored = store.read(path, "cell", verify=verify)
        parts, meta = stored.parts, stored.meta
        genes = Genes.from_arrow(parts["genes"])
        relations = [
            {**described, "counts": counts}
            for described, counts in zip(
                parts["relations"].to_pylist(), meta["counts"], strict=True
            )
        ]
        cell = cls(
            genes,
            [
                Relation.from_arrow(_under(parts, f"relation-{i:03d}."), described)
                for i, described in enumerate(relations)
            ],
            Metabolism.from_arrow(_under(parts, "metabolism."), len(genes))
            if "metabolism.reactions" in parts
            else None,
            [
                Feature.from_arrow(_feature_parts(parts, i), described)
                for i, described in enumerate(parts["features"].to_pylist())
            ],
            [
                Annotation.from_arrow(_under(parts, f"annotation-{i:03d}."), name)
                for i, name in enumerate(_annotation_names(parts))
            ],
            sources=[Source.from_json(s) for s in meta["sources"]],
            synthetic=meta["synthetic"],
        )
        cell.__dict__["checksum"] = stored.checksum
        cell.path = Path(path).absolute()
        return cell

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
        """Make a cell of tables in memory: pandas or polars data frames, or columns by name.

        Parameters
        ----------
        networks
            Tables by the names of their relations: two columns of gene names, then a weight if
            there is one.
        genes
            Systematic names, or a table with a column ``systematic`` and any of ``standard``,
            ``aliases``, ``chromosome``, ``start``, ``end`` and ``description``; where not given,
            every gene that a network names.
        features
            Tables by the names of the features: a column of gene names, then columns of numbers.
        directed
            Names of the networks whose edges have a direction.
        on_unknown
            What to do with a row whose gene is not one of ``genes``.
        """
        from deltacell.cell.tables import cell_of_tables

        return cell_of_tables(networks, genes, features or {}, set(directed), on_unknown)

    @cached_property
    def checksum(self) -> str:
        """Checksum of everything the cell holds, the same in memory and on disk."""
        return store.checksum(self._parts())

    def equals(self, other: Cell) -> bool:
        """Whether both hold the same genes, relations, metabolism, features and annotations."""
        if (self.metabolism is None) != (other.metabolism is None):
            return False
        return (
            self.genes == other.genes
            and list(self.relations) == list(other.relations)
            and all(r.equals(other.relations[r.name]) for r in self.relations.values())
            and list(self.features) == list(other.features)
            and all(f.equals(other.features[f.name]) for f in self.features.values())
            and list(self.annotations) == list(other.annotations)
            and all(a.equals(other.annotations[a.name]) for a in self.annotations.values())
            and (
                self.metabolism is None
                or (other.metabolism is not None and self.metabolism.equals(other.metabolism))
            )
        )

    def to_hetero_data(self) -> HeteroData:
        """Return the cell as a PyG `HeteroData`; `from_hetero_data` is the way back."""
        from deltacell.cell.hetero_data import to_hetero_data

        return to_hetero_data(self)

    @classmethod
    def from_hetero_data(cls, data: HeteroData) -> Cell:
        """Make a cell from a PyG `HeteroData` with a node type ``gene``."""
        from deltacell.cell.hetero_data import from_hetero_data

        return from_hetero_data(data)

    def __repr__(self) -> str:
        edges = sum(r.n_edges for r in self.relations.values())
        extra = "" if self.metabolism is None else f", {self.metabolism!r}"
        return (
            f"Cell({self.n_genes:,} genes, {len(self.relations)} relations, {edges:,} edges{extra})"
        )

    def _repr_html_(self) -> str:
        from deltacell.report.data import print_data
        from deltacell.report.terminal import as_html

        return as_html(lambda: print_data({"cell": {**self.stats(), "sources": []}}, ""))

    def _with(self, **changed: Any) -> Cell:
        parts: dict[str, Any] = {
            "genes": self.genes,
            "relations": self.relations,
            "metabolism": self.metabolism,
            "features": self.features,
            "annotations": self.annotations.values(),
            "sources": self.sources,
            "synthetic": self.synthetic_recipe,
        }
        return Cell(**(parts | changed))

    def _parts(self) -> dict[str, pa.Table]:
        relations, features = self.relations.values(), self.features.values()
        parts = {
            "genes": self.genes.to_arrow(),
            "relations": pa.Table.from_pylist([r.describe() for r in relations], _RELATIONS),
            "features": pa.Table.from_pylist([f.describe() for f in features], _FEATURES),
        }
        for i, relation in enumerate(relations):
            for name, table in relation.to_arrow().items():
                parts[f"relation-{i:03d}.{name}"] = table
        if self.metabolism is not None:
            for name, table in self.metabolism.to_arrow().items():
                parts[f"metabolism.{name}"] = table
        for i, feature in enumerate(features):
            for name, table in feature.to_arrow().items():
                parts[f"feature-{i:03d}.{name}"] = table
        # A cell without annotations keeps the checksum that it had before there were any.
        if self.annotations:
            parts["annotations"] = pa.table({"name": pa.array(self.annotations, pa.string())})
        for i, annotation in enumerate(self.annotations.values()):
            for name, table in annotation.to_arrow().items():
                parts[f"annotation-{i:03d}.{name}"] = table
        return parts

    def _check_sizes(self) -> None:
        for relation in self.relations.values():
            if relation.n_genes != self.n_genes:
                raise InputError(
                    f"relation '{relation.name}' is over {relation.n_genes} genes, "
                    f"and the cell has {self.n_genes}"
                )
        for feature in self.features.values():
            if len(feature.values) != self.n_genes:
                raise InputError(
                    f"feature '{feature.name}' has {len(feature.values)} rows, "
                    f"and the cell has {self.n_genes} genes"
                )
        for annotation in self.annotations.values():
            if annotation.n_genes != self.n_genes:
                raise InputError(
                    f"annotation '{annotation.name}' is over {annotation.n_genes} genes, "
                    f"and the cell has {self.n_genes}"
                )
            if annotation.name in self.features:
                raise InputError(f"a feature and an annotation are both called '{annotation.name}'")
        if self.metabolism is not None and self.metabolism.n_genes != self.n_genes:
            raise InputError(
                f"the metabolism is over {self.metabolism.n_genes} genes, "
                f"and the cell has {self.n_genes}"
            )


# The names are a part, and not only in the manifest, so that the checksum covers them.
_RELATIONS = pa.schema([("name", pa.string()), ("directed", pa.bool_())])
_FEATURES = pa.schema([("name", pa.string()), ("width", pa.int64())])


def _named_relations(relations: Iterable[Relation] | Mapping[str, Relation]) -> dict[str, Relation]:
    given: Iterable[Relation]
    if isinstance(relations, Mapping):
        given = [r if r.name == name else r.renamed(name) for name, r in relations.items()]
    else:
        given = list(relations)
    named: dict[str, Relation] = {}
    for relation in given:
        if named.setdefault(relation.name, relation) is not relation:
            raise InputError(f"two relations are called '{relation.name}'")
    return named


def _named_features(features: Iterable[Feature] | Mapping[str, Any] | None) -> dict[str, Feature]:
    if features is None:
        return {}
    if isinstance(features, Mapping):
        return {
            name: f.renamed(name) if isinstance(f, Feature) else Feature.of_all(name, f)
            for name, f in features.items()
        }
    named: dict[str, Feature] = {}
    for feature in features:
        if named.setdefault(feature.name, feature) is not feature:
            raise InputError(f"two features are called '{feature.name}'")
    return named


def _named_annotations(annotations: Iterable[Annotation]) -> dict[str, Annotation]:
    named: dict[str, Annotation] = {}
    for annotation in annotations:
        if named.setdefault(annotation.name, annotation) is not annotation:
            raise InputError(f"two annotations are called '{annotation.name}'")
    return named


def _annotation_names(parts: Mapping[str, pa.Table]) -> list[str]:
    names: list[str] = parts["annotations"]["name"].to_pylist() if "annotations" in parts else []
    return names


def _feature_parts(parts: Mapping[str, pa.Table], i: int) -> dict[str, pa.Table]:
    # Earlier versions wrote one table per feature, without the names of its columns.
    old = parts.get(f"feature-{i:03d}")
    return _under(parts, f"feature-{i:03d}.") if old is None else {"values": old}


def _under(parts: Mapping[str, pa.Table], prefix: str) -> dict[str, pa.Table]:
    return {n.removeprefix(prefix): t for n, t in parts.items() if n.startswith(prefix)}
