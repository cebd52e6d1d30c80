from __future__ import annotations

import numpy as np
import pytest

from deltacell.cell import Cell, Feature, Genes, Metabolism, Relation
from deltacell.counts import Counts, Source
from deltacell.errors import GeneNameError, InputError, StoreError


@pytest.fixture
def cell():
    genes = Genes(
        ["YAL001C", "YBR002W", "YCL003C"], ["TFC3", None, None], chromosome=["1", "2", ""],
        start=[5, 9, -1], end=[6, 12, -1],
    )  # fmt: skip
    return Cell(
        genes,
        [
            Relation.from_edges("a", [0, 1], [1, 2], n_genes=3, directed=False),
            Relation.from_edges("b", [0], [1], n_genes=3, directed=True),
            Relation.from_edges("c", [], [], n_genes=3, directed=False),
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
    by_name, by_index = cell.subset(["ybr002w", "TFC3"]), cell.subset([1, 0])
    assert by_name.equals(by_index)
    assert by_name.genes.systematic == ("YBR002W", "YAL001C")
    assert by_name.relation("a").n_edges == 1
    assert by_name.sources == cell.sources


@pytest.mark.parametrize(
    ("genes", "error", "message"),
    [
        ([0, 0], InputError, "a gene was given twice"),
        (["TFC3", "YAL001C"], InputError, "a gene was given twice"),
        ([3], InputError, "outside the cell, 0 to 2"),
        ([-1], InputError, "outside the cell"),
        (["nobody"], GeneNameError, "no gene is called 'nobody'"),
    ],
)
def test_a_subset_of_what_is_not_there_is_refused(cell, genes, error, message):
    with pytest.raises(error, match=message):
        cell.subset(genes)


def test_relations_are_chosen_by_name_and_order(cell):
    assert list(cell.with_relations(["c", "a"]).relations) == ["c", "a"]
    with pytest.raises(InputError, match="no relation 'x'; it has a, b, c"):
        cell.with_relations(["x"])


def test_a_merged_relation_stands_where_the_first_one_stood(cell):
    merged = cell.merge_relations({"new": ["b", "c"]})
    assert list(merged.relations) == ["a", "new"]
    assert list(cell.merge_relations({"c": ["c", "a"]}).relations) == ["b", "c"]
    both = cell.merge_relations({"x": ["a"], "y": ["c", "b"]})
    assert list(both.relations) == ["x", "y"]


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ({"x": ["a", "b"], "y": ["b", "c"]}, "'b' is in two groups"),
        ({"a": ["b", "c"]}, "another relation called 'a'"),
        ({"x": []}, "nothing to merge"),
        ({"x": ["z"]}, "no relation 'z'"),
    ],
)
def test_groups_that_cannot_be_merged_are_refused(cell, groups, message):
    with pytest.raises(InputError, match=message):
        cell.merge_relations(groups)


def test_a_feature_is_added_or_replaced(cell):
    more = cell.with_feature(Feature.of_all("protein", np.ones((3, 2))))
    assert list(more.features) == ["expression", "protein"]
    again = more.with_feature(Feature.of_all("protein", np.zeros((3, 1))))
    assert again.features["protein"].width == 1
    assert list(cell.features) == ["expression"]


def test_the_key_of_a_mapping_is_the_name(cell, tmp_path):
    renamed = Cell(
        cell.genes, {"new": cell.relation("a")}, features={"also new": cell.features["expression"]}
    )
    renamed.save(tmp_path / "cell")
    loaded = Cell.load(tmp_path / "cell")
    assert loaded.equals(renamed)
    assert loaded.relation("new").name == "new"
    assert loaded.features["also new"].name == "also new"


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"relations": [Relation.from_edges("r", [0], [1], n_genes=2, directed=True)]},
         "'r' is over 2 genes, and the cell has 3"),
        ({"relations": [Relation.from_edges("r", [0], [i], n_genes=3, directed=True)
                        for i in (1, 2)]},
         "two relations are called 'r'"),
        ({"features": {"f": np.zeros((4, 1))}}, "'f' has 4 rows, and the cell has 3 genes"),
        ({"features": [Feature.of_all("f", np.full((3, 1), i)) for i in (1, 2)]},
         "two features are called 'f'"),
        ({"metabolism": Metabolism.build(Genes(["A"]), [], [], [], [], [], [])},
         "metabolism is over 1 genes, and the cell has 3"),
    ],
)  # fmt: skip
def test_parts_of_another_size_are_refused(parts, message):
    with pytest.raises(InputError, match=message):
        Cell(**({"genes": ["A", "B", "C"], "relations": []} | parts))


def test_equal_means_all_of_it(cell):
    assert cell.equals(cell.subset(range(3)))
    assert not cell.equals(cell.with_relations(["a", "b"]))
    assert not cell.equals(cell.with_relations(["b", "a", "c"]))
    assert not cell.equals(Cell(cell.genes, cell.relations, None, cell.features))
    assert not cell.equals(Cell(cell.genes, cell.relations, cell.metabolism))
    assert not cell.equals(
        Cell(cell.genes.systematic, cell.relations, cell.metabolism, cell.features)
    )


@pytest.mark.parametrize(
    ("part", "old", "new"),
    [("relations", b"abc", b"abd"), ("features", b"expression", b"expressioN")],
)
def test_an_edited_name_is_noticed(cell, tmp_path, part, old, new):
    cell.save(tmp_path / "cell")
    file = tmp_path / "cell" / f"{part}.arrow"
    assert old in file.read_bytes()
    file.write_bytes(file.read_bytes().replace(old, new))
    with pytest.raises(StoreError, match="do not match the checksum"):
        Cell.load(tmp_path / "cell")


def test_saving_over_itself_works_while_it_is_mapped(cell, tmp_path):
    cell.save(tmp_path / "cell")
    loaded = Cell.load(tmp_path / "cell")
    loaded.with_relations(["b"]).save(tmp_path / "cell", overwrite=True)
    assert loaded.equals(cell)
    assert list(Cell.load(tmp_path / "cell").relations) == ["b"]
