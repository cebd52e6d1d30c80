"""The wild type: its genes, its relations, and optionally metabolism, features, annotations."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
import pyarrow as pa

from deltacell import store
from deltacell.cell.annotation import Annotation, Feature
from deltacell.cell.genes import Genes
from deltacell.cell.metabolism import Metabolism
from deltacell.cell.relation import Relation
from deltacell.counts import Counts, Source
from deltacell.errors import InputError, did_you_mean

if TYPE_CHECKING:
    from torch_geometric.data import HeteroData

Part = TypeVar("Part", Relation, Feature, Annotation)
Named = TypeVar("Named")


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
        For a synthetic cell, what it was made with.
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
        if isinstance(relations, Mapping):
            relations = [r if r.name == n else r.renamed(n) for n, r in relations.items()]
        if isinstance(features, Mapping):
            features = [
                f.renamed(name) if isinstance(f, Feature) else Feature.of_all(name, f)
                for name, f in features.items()
            ]
        self.genes = genes if isinstance(genes, Genes) else Genes(genes)
        self.relations = _by_name(relations, "relations")
        self.metabolism = metabolism
        self.features = _by_name(features or (), "features")
        self.annotations = _by_name(annotations, "annotations")
        self.sources = tuple(sources)
        self.synthetic_recipe = None if synthetic is None else dict(synthetic)
        self.path: Path | None = None
        """The directory it was loaded from, if any."""
        sizes = [(f"relation '{r.name}'", r.n_genes) for r in self.relations.values()]
        sizes += [(f"feature '{f.name}'", len(f.values)) for f in self.features.values()]
        sizes += [(f"annotation '{a.name}'", a.n_genes) for a in self.annotations.values()]
        sizes += [("the metabolism", metabolism.n_genes)] if metabolism is not None else []
        for what, n in sizes:
            if n != self.n_genes:
                what = f"{what} is over {n} genes, and the cell has {self.n_genes}"
                raise InputError(what, code="other-genes")
        if both := sorted(self.features.keys() & self.annotations.keys()):
            what = f"a feature and an annotation are both called '{both[0]}'"
            raise InputError(what, code="duplicate-name")

    @classmethod
    def synthetic(cls, name: str = "demo", *, seed: int = 0) -> Cell:
        """Return a synthetic cell, the same for the same random seed.

        Parameters
        ----------
        name
            ``demo``, a few hundred genes in pathways; ``yeast``, the size of the real one; or
            ``redundancy``, in which genes are reached by two or three routes.
        """
        from deltacell.cell.synthetic import synthetic_cell

        return synthetic_cell(name, seed=seed)

    @property
    def n_genes(self) -> int:
        """Number of genes."""
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
        """Return the cell with groups of relations each replaced by their union.

        Parameters
        ----------
        groups
            Names of the relations to merge, by the name of the union, which takes the place of
            the first of them.
        """
        relations = dict(self.relations)
        for new, names in groups.items():
            parts = [self.relation(name) for name in names]
            merged = Relation.merge(new, parts)
            gone = {part.name for part in parts}
            if twice := gone - relations.keys():
                what = f"the relation '{min(twice)}' is in two groups"
                raise InputError(what, code="bad-merge")
            if new in relations and new not in gone:
                raise InputError(f"there is another relation called '{new}'", code="bad-merge")
            replaced = [merged if r is parts[0] else r for r in relations.values()]
            relations = {r.name: r for r in replaced if r is merged or r.name not in gone}
        return self._with(relations=relations)

    def relation(self, name: str) -> Relation:
        """Return a relation by its name."""
        return _get(self.relations, name, "relation")

    def with_feature(self, feature: Feature) -> Cell:
        """Return the cell with one more feature, or with one of the same name replaced."""
        return self._with(features={**self.features, feature.name: feature})

    def feature(self, name: str) -> Feature:
        """Return a feature, or an annotation as a feature, by its name."""
        known: dict[str, Feature | Annotation] = {**self.features, **self.annotations}
        found = _get(known, name, "feature")
        return found if isinstance(found, Feature) else found.feature

    def with_annotation(self, annotation: Annotation) -> Cell:
        """Return the cell with one more annotation, or with one of the same name replaced."""
        return self._with(annotations={**self.annotations, annotation.name: annotation}.values())

    def stats(self) -> dict[str, Any]:
        """Return what the cell holds, in numbers."""
        sources = [s.to_json() for s in self.sources]
        return {**self._facts(), "sources": sources, "checksum": self.checksum}

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
        verify
            Compare every part with its checksum first.
        """
        stored = store.read(path, "cell", verify=verify)
        parts, meta = stored.parts, stored.meta

        def under(prefix: str) -> dict[str, pa.Table]:
            return {n.removeprefix(prefix): t for n, t in parts.items() if n.startswith(prefix)}

        def described(name: str) -> list[dict[str, Any]]:
            rows: list[dict[str, Any]] = parts[name].to_pylist() if name in parts else []
            return rows

        genes = Genes.from_arrow(parts["genes"])
        counts = map(Counts.from_json, meta["counts"])
        metabolism = under("metabolism.")
        cell = cls(
            genes,
            [
                Relation.from_arrow(under(f"relation-{i:03d}."), **row, counts=rows)
                for i, (row, rows) in enumerate(zip(described("relations"), counts, strict=True))
            ],
            Metabolism.from_arrow(metabolism, len(genes)) if metabolism else None,
            [
                # Earlier versions wrote one table per feature.
                Feature.from_arrow(
                    {"values": parts[old]} if old in parts else under(f"{old}."), **f
                )
                for i, f in enumerate(described("features"))
                for old in (f"feature-{i:03d}",)
            ],
            [
                Annotation.from_arrow(under(f"annotation-{i:03d}."), row["name"])
                for i, row in enumerate(described("annotations"))
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
        """Make a cell from tables in memory: pandas or polars data frames, or columns by name.

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
        return store.checksum(self._parts()) == store.checksum(other._parts())

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
        relations, features = list(self.relations.values()), list(self.features.values())
        annotations = list(self.annotations.values())
        # The names are a part, and not only in the manifest, so that the checksum covers them.
        names, directed = [r.name for r in relations], [r.directed for r in relations]
        named = [f.name for f in features]
        parts = {
            "genes": self.genes.to_arrow(),
            "relations": pa.table(
                {"name": pa.array(names, pa.string()), "directed": pa.array(directed, pa.bool_())}
            ),
            "features": pa.table(
                {
                    "name": pa.array(named, pa.string()),
                    "width": pa.array([f.width for f in features], pa.int64()),
                }
            ),
        }
        # A cell without annotations keeps the checksum that it had before there were any.
        if annotations:
            parts["annotations"] = pa.table({"name": pa.array(self.annotations, pa.string())})
        pieces: list[tuple[str, Any]] = [(f"relation-{i:03d}", r) for i, r in enumerate(relations)]
        pieces += [("metabolism", self.metabolism)] if self.metabolism is not None else []
        pieces += [(f"feature-{i:03d}", f) for i, f in enumerate(features)]
        pieces += [(f"annotation-{i:03d}", a) for i, a in enumerate(annotations)]
        for prefix, piece in pieces:
            parts |= {f"{prefix}.{name}": table for name, table in piece.to_arrow().items()}
        return parts


def _by_name(parts: Iterable[Part], what: str) -> dict[str, Part]:
    named: dict[str, Part] = {}
    for part in parts:
        if named.setdefault(part.name, part) is not part:
            raise InputError(f"two {what} are called '{part.name}'", code="duplicate-name")
    return named


def _get(parts: Mapping[str, Named], name: str, what: str) -> Named:
    if name not in parts:
        raise InputError(
            f"the cell has no {what} '{name}'{did_you_mean(name, parts)}; "
            f"it has {', '.join(parts) or 'none'}",
            code=f"unknown-{what}",
        )
    return parts[name]
