from __future__ import annotations

import numpy as np
import pytest

from deltacell.cell import Cell, Feature, Genes, Metabolism, Relation
from deltacell.counts import Counts, Source
from deltacell.errors import InputError, StoreError


def relation(name, source, target, n_genes=3, directed=False):
    return Relation.from_edges(name, source, target, n_genes=n_genes, directed=directed)


@pytest.fixture
def cell():
    genes = Genes(
        ["YAL001C", "YBR002W", "YCL003C"],
        ["TFC3", None, None],
        chromosome=["1", "2", ""],
        start=[5, 9, -1],
        end=[6, 12, -1],
    )
    return Cell(
        genes,
        [
            relation("a", [0, 1], [1, 2]),
            relation("b", [0], [1], directed=True),
            relation("c", [], []),
        ],
        Metabolism.build(genes, ["r"], ["m"], [(0, 0, -1)], ["TFC3 or YBR002W"], [0], [1]),
        {"expression": np.eye(3)},
        sources=[Source("a.txt", "00", "edges", Counts(2, 2), "a")],
    )


def test_stats_are_the_numbers_of_the_cell(cell):
    stats = cell.stats()
    assert (stats["genes"], stats["genes_with_position"], stats["edges"]) == (3, 2, 3)
    assert stats["relations"][0] == {
        "relation": "a",
        "directed": False,
        "genes_with_an_edge": 3,
        "edges": 2,
        "max_degree": 2,
        "counts": {"read": 2, "resolved": 2, "kept": 2, "dropped": {}},
    }
    assert stats["metabolism"] == {
        "reactions": 1,
        "metabolites": 1,
        "genes_in_rules": 2,
        "reactions_with_rule": 1,
    }
    assert stats["features"] == [{"feature": "expression", "width": 3, "known": 3, "missing": 0.0}]
    assert repr(cell).startswith("Cell(3 genes, 3 relations, 3 edges, Metabolism(")


def test_a_subset_takes_names_of_any_kind_or_indices(cell):
    by_name = cell.subset(["ybr002w", "TFC3"])
    assert by_name.equals(cell.subset([1, 0]))
    assert by_name.genes.systematic == ("YBR002W", "YAL001C")
    assert (by_name.relation("a").n_edges, by_name.sources) == (1, cell.sources)


def test_relations_are_chosen_by_name_and_order_and_merged_in_place_of_the_first(cell):
    assert list(cell.with_relations(["c", "a"]).relations) == ["c", "a"]
    assert list(cell.merge_relations({"new": ["b", "c"]}).relations) == ["a", "new"]
    assert list(cell.merge_relations({"c": ["c", "a"]}).relations) == ["b", "c"]
    assert list(cell.merge_relations({"x": ["a"], "y": ["c", "b"]}).relations) == ["x", "y"]


@pytest.mark.parametrize(
    ("ask", "code"),
    [
        (lambda c: c.subset([0, 0]), "duplicate-gene"),
        (lambda c: c.subset(["TFC3", "YAL001C"]), "duplicate-gene"),
        (lambda c: c.subset([3]), "gene-index-outside"),
        (lambda c: c.subset([-1]), "gene-index-outside"),
        (lambda c: c.subset(["nobody"]), "unknown-gene"),
        (lambda c: c.with_relations(["x"]), "unknown-relation"),
        (lambda c: c.merge_relations({"x": ["a", "b"], "y": ["b", "c"]}), "bad-merge"),
        (lambda c: c.merge_relations({"a": ["b", "c"]}), "bad-merge"),
        (lambda c: c.merge_relations({"x": []}), "bad-merge"),
        (lambda c: c.merge_relations({"x": ["z"]}), "unknown-relation"),
    ],
)
def test_what_is_not_there_is_refused(cell, ask, code):
    with pytest.raises(InputError) as caught:
        ask(cell)
    assert caught.value.code == code


def test_a_feature_is_added_or_replaced(cell):
    more = cell.with_feature(Feature.of_all("protein", np.ones((3, 2))))
    assert list(more.features) == ["expression", "protein"]
    again = more.with_feature(Feature.of_all("protein", np.zeros((3, 1))))
    assert again.feature("protein").width == 1
    assert list(cell.features) == ["expression"]


def test_the_key_of_a_mapping_is_the_name(cell):
    features = {"also new": cell.features["expression"]}
    renamed = Cell(cell.genes, {"new": cell.relation("a")}, features=features)
    assert renamed.relation("new").name == "new"
    assert renamed.features["also new"].name == "also new"


@pytest.mark.parametrize(
    ("parts", "code"),
    [
        ({"relations": [relation("r", [0], [1], n_genes=2)]}, "other-genes"),
        ({"relations": [relation("r", [0], [i]) for i in (1, 2)]}, "duplicate-name"),
        ({"features": {"f": np.zeros((4, 1))}}, "other-genes"),
        ({"features": [Feature.of_all("f", np.full((3, 1), i)) for i in (1, 2)]}, "duplicate-name"),
        ({"metabolism": Metabolism.build(Genes(["A"]), [], [], [], [], [], [])}, "other-genes"),
    ],
)
def test_parts_that_do_not_fit_are_refused(parts, code):
    with pytest.raises(InputError) as caught:
        Cell(**({"genes": ["A", "B", "C"], "relations": []} | parts))
    assert caught.value.code == code


def test_equal_means_all_of_it(cell):
    assert cell.equals(cell.subset(range(3)))
    assert not cell.equals(cell.with_relations(["a", "b"]))
    assert not cell.equals(cell.with_relations(["b", "a", "c"]))
    parts = cell.genes, cell.relations, cell.metabolism, cell.features
    assert not cell.equals(Cell(*parts[:2], None, parts[3]))
    assert not cell.equals(Cell(*parts[:3]))
    assert not cell.equals(Cell(cell.genes.systematic, *parts[1:]))


@pytest.mark.parametrize(
    ("part", "old", "new"),
    [("relations", b"abc", b"abd"), ("features", b"expression", b"expressioN")],
)
def test_an_edited_name_is_noticed(cell, tmp_path, part, old, new):
    cell.save(tmp_path / "cell")
    file = tmp_path / "cell" / f"{part}.arrow"
    assert old in file.read_bytes()
    file.write_bytes(file.read_bytes().replace(old, new))
    with pytest.raises(StoreError) as caught:
        Cell.load(tmp_path / "cell")
    assert (caught.value.code, caught.value.where) == ("damaged", file)


def test_saving_over_itself_works_while_it_is_mapped(cell, tmp_path):
    cell.save(tmp_path / "cell")
    loaded = Cell.load(tmp_path / "cell")
    loaded.with_relations(["b"]).save(tmp_path / "cell", overwrite=True)
    assert loaded.equals(cell)
    assert list(Cell.load(tmp_path / "cell").relations) == ["b"]
