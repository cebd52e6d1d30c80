"""Cells, their relations and features, and the account of every row."""

import json

import numpy as np
import pytest

from deltacell.base.errors import StoreError
from deltacell.cell import Cell, Feature, Genes, Metabolism, Relation
from deltacell.storage.provenance import AMBIGUOUS_NAME, UNKNOWN_GENE, Counts, Source

NAN = float("nan")


def relation(name, source, target, n_genes=3, directed=False):
    return Relation.from_edges(name, source, target, n_genes=n_genes, directed=directed)


@pytest.fixture
def cell():
    genes = Genes(
        ["YAL001C", "YBR002W", "YCL003C"],
        ["TFC3", None, None],
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
        [Feature("expression", np.eye(3))],
        sources=[Source("a.txt", "00", "edges", Counts(2, 2), "a")],
    )


def test_stats_are_the_numbers_of_the_cell(cell):
    stats = cell.stats()
    assert (stats["genes"], stats["genes_with_position"], stats["edges"]) == (3, 2, 3)
    counts = {"read": 2, "resolved": 2, "kept": 2, "dropped": {}}
    assert list(stats["relations"][0].values()) == ["a", False, 3, 2, 2, counts]
    assert list(stats["metabolism"].values()) == [1, 1, 2, 1]
    assert stats["features"] == [{"feature": "expression", "width": 3, "known": 3, "missing": 0.0}]
    assert repr(cell).startswith("Cell(3 genes, 3 relations, 3 edges, Metabolism(")


def test_genes_and_relations_are_chosen_and_merged(cell):
    by_name = cell.subset(["ybr002w", "TFC3"])
    assert by_name.equals(cell.subset([1, 0]))
    assert (by_name.relation("a").n_edges, by_name.sources) == (1, cell.sources)
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
def test_unknown_genes_relations_and_features_are_refused(cell, ask, code, refused):
    refused(code, lambda: ask(cell))


@pytest.mark.parametrize(
    ("parts", "code"),
    [
        ({"relations": [relation("r", [0], [1], n_genes=2)]}, "other-genes"),
        ({"relations": [relation("r", [0], [i]) for i in (1, 2)]}, "duplicate-name"),
        ({"features": [Feature("f", np.zeros((4, 1)))]}, "other-genes"),
        ({"features": [Feature("f", np.full((3, 1), i)) for i in (1, 2)]}, "duplicate-name"),
        ({"metabolism": Metabolism.build(Genes(["A"]), [], [], [], [], [], [])}, "other-genes"),
    ],
)
def test_parts_that_do_not_fit_are_refused(parts, code, refused):
    refused(code, lambda: Cell(**({"genes": ["A", "B", "C"], "relations": []} | parts)))


@pytest.mark.parametrize(
    ("part", "old", "new"),
    [("relations", b"abc", b"abd"), ("features", b"expression", b"expressioN")],
)
def test_an_edited_name_is_noticed(cell, tmp_path, part, old, new, refused):
    cell.save(tmp_path / "cell")
    file = tmp_path / "cell" / f"{part}.arrow"
    assert old in file.read_bytes()
    file.write_bytes(file.read_bytes().replace(old, new))
    error = refused("damaged", lambda: Cell.load(tmp_path / "cell"))
    assert (type(error), error.where) == (StoreError, file)


def test_saving_over_itself_works_while_it_is_mapped(cell, tmp_path):
    cell.save(tmp_path / "cell")
    loaded = Cell.load(tmp_path / "cell")
    loaded.with_relations(["b"]).save(tmp_path / "cell", overwrite=True)
    assert loaded._with().equals(cell)
    assert list(Cell.load(tmp_path / "cell").relations) == ["b"]


def test_a_feature_knows_what_is_missing():
    feature = Feature("expression", [[1, NAN], [NAN, NAN], [5, 0]], ("heat", "salt"))
    assert (feature.known.tolist(), feature.missing) == ([True, False, True], 0.25)
    assert repr(feature) == "Feature('expression', width 2, known for 2)"
    taken = feature.take(np.array([2, 1]))
    assert np.array_equal(taken.values, [[5, 0], [NAN, NAN]], equal_nan=True)
    assert taken.columns == feature.columns
    numbered = Feature("x", np.array([[1, 2], [3, 4]], dtype=np.float64, order="F"))
    assert (numbered.columns, numbered.values.dtype) == (("1", "2"), np.float32)


@pytest.mark.parametrize(
    ("values", "columns"),
    [
        ([1.0, 2.0], ()),
        (np.zeros((2, 0)), ()),
        (np.zeros((2, 2)), ("a",)),
        (np.zeros((2, 2)), ("a", "a")),
        ([[float("inf")], [1.0]], ()),
    ],
)
def test_values_and_columns_that_are_no_feature_are_refused(values, columns, refused):
    refused("bad-feature", lambda: Feature("f", values, columns))


def test_the_row_is_the_target_and_taking_genes_counts_what_is_left_out():
    directed = relation("regulatory", [0, 0, 3], [1, 2, 0], n_genes=4, directed=True)
    assert directed.indptr.tolist() == [0, 1, 2, 3, 3]
    assert directed.indices.tolist() == [3, 0, 0]
    taken = directed.take(np.array([2, 0]))
    assert taken.counts == Counts(3, 1, {"outside the genes taken": 2})


@pytest.mark.parametrize(
    ("source", "target", "weight"),
    [
        *(([0], [4], None), ([-1], [0], None), ([0, 1], [1], None), ([0], [1], [1.0, 2.0])),
        *(([0], [1], [float("nan")]), ([0], [1], [float("inf")])),
    ],
)
def test_edges_that_cannot_be_are_refused(source, target, weight, refused):
    given = "r", source, target, weight
    refused("bad-edges", Relation.from_edges, *given, n_genes=4, directed=True)


@pytest.mark.parametrize(
    ("indptr", "indices"),
    [
        *(([0, 1, 2], [1, 2]), ([0, 1, 2], [1, -1]), ([0, 2, 1], [1])),
        *(([0, 1, 3], [1, 0]), ([1, 1, 2], [1, 0]), ([], [])),
    ],
)
def test_edges_from_disk_are_not_trusted(indptr, indices, refused):
    # A sparse product would read beyond its memory.
    rows = np.array(indptr, dtype=np.int64), np.array(indices, dtype=np.int32)
    forged = Relation("forged", *rows, np.ones(len(indices), dtype=np.float32), directed=True)
    options = {"directed": True, "counts": Counts(0, 0)}
    refused("damaged", Relation.from_arrow, forged.to_arrow(), "forged", **options)


def test_rows_are_kept_or_dropped_for_a_reason_and_add_up():
    counts = Counts(10, 4, {"self loop": 3, UNKNOWN_GENE: 2, AMBIGUOUS_NAME: 1, "other": 0})
    dropped = {"self loop": 3, UNKNOWN_GENE: 2, AMBIGUOUS_NAME: 1}
    assert counts.to_json() == {"read": 10, "resolved": 7, "kept": 4, "dropped": dropped}
    source = Source("f.gz", "ab", "string", counts, "physical", {"pairs": 2})
    assert Source.from_json(json.loads(json.dumps(source.to_json()))) == source
    for given in ((3, 3, {"x": 1}), (3, 2, {}), (3, 4, {"x": -1}), (0, -1, {"x": 1})):
        with pytest.raises(ValueError, match="rows"):
            Counts(*given)
