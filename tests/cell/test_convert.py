"""Cells and screens from tables in memory; cells as HeteroData, and back."""

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.data import HeteroData

import deltacell as dc
from deltacell.cell import Cell

NETWORK = {"a": ["RAD52", "RAD51", "SGS1"], "b": ["RAD51", "RAD54", "MUS81"]}


@pytest.mark.parametrize("kind", [pd.DataFrame, pl.DataFrame, dict])
def test_a_cell_of_tables(kind):
    genes = ["SGS1", "RAD52", "RAD51"]
    fitness = kind({"gene": genes, "fitness": [0.9, None, 0.3], "size": [1, 2, 2]})
    cell = dc.Cell.from_tables(
        {"physical": kind(NETWORK), "regulatory": kind({**NETWORK, "w": [1.0, 2.0, 3.0]})},
        features={"fitness": fitness},
        directed=["regulatory"],
    )
    assert set(cell.genes) == {"RAD52", "RAD51", "SGS1", "RAD54", "MUS81"}
    assert cell.relation("physical").n_edges == 3
    assert cell.relation("regulatory").directed
    values = cell.features["fitness"].values[cell.genes.indices(["SGS1", "RAD52", "MUS81"])]
    nan = np.nan
    np.testing.assert_allclose(values, [[0.9, 1], [nan, 2], [nan, nan]], rtol=1e-6)


def test_genes_of_a_table_have_all_their_names_and_what_is_unknown_is_dropped_or_refused(refused):
    genes = pd.DataFrame(
        {
            "systematic": ["YML032C", "YER095W"],
            "standard": ["RAD52", None],
            "aliases": [["RAD-52"], []],
            "description": ["Protein that stimulates strand exchange", None],
        },
    )
    networks = {"physical": pd.DataFrame({"a": ["rad-52", "RAD52"], "b": ["YER095W", "XYZ"]})}
    cell = dc.Cell.from_tables(networks, genes, on_unknown="drop")
    assert cell.relation("physical").n_edges == 1
    assert cell.subset(["RAD52"]).genes.description == (genes["description"][0],)
    refused("unknown-gene", dc.Cell.from_tables, networks, genes)
    refused("missing-columns", dc.Cell.from_tables, networks, {"standard": ["CDC48"]})


@pytest.mark.parametrize(
    ("networks", "features", "code"),
    [
        ({"one": {"a": ["A"]}}, {}, "bad-shape"),
        ({"one": {"a": ["A"], "b": [None]}}, {}, "bad-rows"),
        ({"one": 3}, {}, "not-a-table"),
        ({"one": NETWORK}, {"f": {"g": ["SGS1"]}}, "no-value"),
        ({"one": NETWORK}, {"f": {"g": ["XYZ"], "x": [1]}}, "unknown-gene"),
    ],
)
def test_a_table_that_is_none_is_refused(networks, features, code, refused):
    refused(code, lambda: dc.Cell.from_tables(networks, features=features))


CELL = dc.Cell.synthetic("demo")
GENES = st.sets(st.integers(0, CELL.n_genes - 1), min_size=2, max_size=3)


@settings(max_examples=12, deadline=None)
@given(st.lists(st.tuples(GENES, st.floats(-1, 1, width=32)), min_size=1, max_size=8))
def test_a_screen_is_what_its_table_says(rows):
    sets = [sorted(genes) for genes, _ in rows]
    frame = pd.DataFrame([[CELL.genes[g] for g in one] + [None] * (3 - len(one)) for one in sets])
    frame.columns = ["gene1", "gene2", "gene3"]
    screen = dc.Screen.from_pandas(frame.assign(score=[score for _, score in rows]), CELL)
    for found in (screen, dc.Screen.from_pandas(screen.to_pandas(), CELL)):
        assert [one.tolist() for one in found.genotypes] == sets
        assert found.column("score").tolist() == [score for _, score in rows]


def test_columns_may_be_called_otherwise_and_errors_name_the_row(refused):
    a, b, c = CELL.genes[0], CELL.genes[1], CELL.genes[2]
    frame = pd.DataFrame({"left": [a, a], "right": [b, "NOT1"], "eps": [0.1, -0.2]})
    names = {"gene1": "left", "gene2": "right", "score": "eps"}
    error = refused("unknown-gene", dc.Screen.from_pandas, frame, CELL, columns=names)
    assert "row 1 of the table" in str(error)
    assert len(dc.Screen.from_pandas(frame, CELL, columns=names, on_unknown="drop")) == 1
    refused("missing-column", dc.Screen.from_pandas, frame, CELL, columns={"gene1": "wrong"})
    missing = pd.DataFrame({"gene1": [a, a], "gene2": [b, c], "score": [0.1, np.nan]})
    assert len(dc.Screen.from_pandas(missing, CELL)) == 1


def test_names_are_escaped_where_a_notebook_shows_a_cell(hostile):
    edge = {"a": ["A"], "b": ["B"]}
    shown = dc.Cell.from_tables({hostile[0]: edge, "[bold]x": edge})._repr_html_()
    assert "<img" not in shown
    assert "[bold]x" in shown


def test_the_form_is_what_pyg_expects_and_back_gives_an_equal_cell():
    data, metabolism = CELL.to_hetero_data(), CELL.metabolism
    assert data.validate()
    assert data["gene"].feature_expression.shape == (300, 16)
    edges = data["gene", "tflink", "gene"]
    assert edges.directed is True
    source, target = edges.edge_index[:, 7].tolist()
    assert (source, target) in zip(*CELL.relation("tflink").edges()[:2], strict=True)
    assert data["gene", "physical", "gene"].is_undirected()
    converts = data["reaction", "converts", "metabolite"]
    assert converts.edge_index[0].tolist() == metabolism.reaction.tolist()
    assert converts.coefficient.tolist() == metabolism.coefficient.tolist()
    gene, reaction = data["gene", "enables", "reaction"].edge_index
    assert set(gene.tolist()) == set(metabolism.clause_genes.tolist())
    assert set(reaction.tolist()) == set(metabolism.clause_reaction.tolist())
    back = Cell.from_hetero_data(data)
    assert back.equals(CELL)
    # They share no memory.
    data["gene", "physical", "gene"].edge_weight.zero_()
    assert CELL.relation("physical").weights.min() == 1


def test_a_changed_graph_does_not_keep_the_old_counts():
    data = CELL.to_hetero_data()
    edges = data["gene", "regulatory", "gene"]
    edges.edge_index, edges.edge_weight = edges.edge_index[:, :9], edges.edge_weight[:9]
    relation = Cell.from_hetero_data(data).relation("regulatory")
    assert (relation.counts.read, relation.counts.kept) == (9, 9)


# --- a HeteroData of another program ---


def plain():
    """Three genes with an undirected and a directed relation, as PyG users write them."""
    data = HeteroData()
    data["gene"].name = ["YAL001C", "YAL002W", "YAL003W"]
    data["gene"].x = torch.tensor([[0.5], [np.nan], [2.0]])
    data["gene", "physical", "gene"].edge_index = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
    data["gene", "regulatory", "gene"].edge_index = torch.tensor([[0, 0], [1, 2]])
    data["gene", "regulatory", "gene"].edge_weight = torch.tensor([1.0, 3.0])
    data["reaction"].num_nodes = 1
    data["gene", "gpr", "reaction"].edge_index = torch.tensor([[0], [0]])
    data["genotype"].phenotype = torch.tensor([-0.25, np.nan])
    deletions = torch.tensor([[1, 0, 1, 0], [2, 0, 0, 1]])
    data["genotype", "deletes", "gene"].edge_index = deletions
    return data


def test_a_graph_of_another_program_is_a_cell():
    cell = Cell.from_hetero_data(plain())
    assert cell.genes.systematic == ("YAL001C", "YAL002W", "YAL003W")
    assert list(cell.relations) == ["physical", "regulatory"]
    physical, regulatory = cell.relations.values()
    assert (physical.directed, physical.n_edges) == (False, 2)
    assert (regulatory.directed, regulatory.n_edges) == (True, 2)
    assert regulatory.entries().weight.tolist() == [1, 3]
    np.testing.assert_array_equal(cell.feature("x").values, [[0.5], [np.nan], [2]])


def test_relations_stated_as_directed_are_directed(refused):
    data = plain()
    assert not Cell.from_hetero_data(data, directed=[]).relation("regulatory").directed
    assert Cell.from_hetero_data(data, directed=["physical"]).relation("physical").n_edges == 4
    refused("unknown-relation", lambda: Cell.from_hetero_data(data, directed=["phisical"]))
    data["gene", "physical", "gene"].directed = True
    assert Cell.from_hetero_data(data).relation("physical").directed


def test_names_may_be_called_as_in_torchcell():
    data = plain()
    data["gene"].node_ids = data["gene"].name
    del data["gene"].name
    assert Cell.from_hetero_data(data).genes.systematic[0] == "YAL001C"


def without_genes(data):
    return HeteroData()


def without_names(data):
    del data["gene"].name
    return data


def set_names(names):
    def change(data):
        data["gene"].name = names
        return data

    return change


def set_edges(edge_index):
    def change(data):
        data["gene", "physical", "gene"].edge_index = edge_index
        return data

    return change


def without_edges(data):
    edges = data["gene", "physical", "gene"]
    edges.edge_weight = torch.ones(4)
    del edges.edge_index
    return data


def set_weights(data):
    data["gene", "regulatory", "gene"].edge_weight = torch.ones(3)
    return data


def set_features(data):
    data["gene"].feature_size = torch.ones(2, 1)
    return data


@pytest.mark.parametrize(
    ("change", "code", "fix"),
    [
        (without_genes, "missing-genes", "data['gene'].name"),
        (without_names, "missing-names", "data['gene'].name"),
        (set_names(["YAL001C"]), "bad-names", "data['gene'].name"),
        (set_names([0, 1, 2]), "bad-names", "data['gene'].name"),
        (without_edges, "missing-edges", "data['gene', 'physical', 'gene'].edge_index"),
        (set_edges(torch.zeros(3, 2)), "bad-shape", "[2, edges]"),
        (set_edges(torch.tensor([[0], [3]])), "bad-edges", None),
        (set_edges("edges"), "not-numbers", None),
        (set_weights, "bad-shape", None),
        (set_features, "bad-shape", None),
    ],
)
def test_a_graph_without_what_a_cell_needs_is_refused(change, code, fix, refused):
    error = refused(code, Cell.from_hetero_data, change(plain()))
    assert fix is None or fix in error.fix


def test_genotypes_of_another_program_are_a_screen():
    screen = dc.Screen.from_hetero_data(plain(), study="mine", phenotype="fitness")
    assert [genes.tolist() for genes in screen.genotypes] == [[0, 1], [2, 0]]
    np.testing.assert_array_equal(screen.column("score"), np.float32([-0.25, np.nan]))
    assert set(screen.rows["study"]) == {"mine"}
    assert set(screen.rows["phenotype"]) == {"fitness"}


def without_phenotype(data):
    del data["genotype"].phenotype
    return data


def without_deletions(data):
    del data["genotype", "deletes", "gene"]
    return data


def set_deletions(edge_index):
    def change(data):
        data["genotype", "deletes", "gene"].edge_index = torch.tensor(edge_index)
        return data

    return change


@pytest.mark.parametrize(
    ("change", "code", "fix"),
    [
        (without_names, "missing-names", "data['gene'].name"),
        (without_phenotype, "missing-phenotype", "data['genotype'].phenotype"),
        (without_deletions, "missing-edges", "data['genotype', 'deletes', 'gene'].edge_index"),
        (set_deletions([[0, 2], [0, 1]]), "bad-edges", "edge_index"),
        (set_deletions([[0, 1], [0, 3]]), "bad-genotypes", None),
        (set_deletions([[0, 0], [0, 1]]), "bad-genotypes", None),
    ],
)
def test_genotypes_without_what_a_screen_needs_are_refused(change, code, fix, refused):
    error = refused(code, dc.Screen.from_hetero_data, change(plain()))
    assert fix is None or fix in error.fix
