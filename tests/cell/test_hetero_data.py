from __future__ import annotations

import pytest
import torch
from torch_geometric.data import HeteroData

from deltacell.cell import Cell
from deltacell.errors import InputError


@pytest.fixture(scope="module")
def demo():
    return Cell.synthetic("demo")


@pytest.fixture
def plain():
    data = HeteroData()
    data["gene"].num_nodes = 4
    data["gene", "binds", "gene"].edge_index = torch.tensor([[0, 1, 2, 1], [1, 0, 1, 2]])
    data["gene", "regulates", "gene"].edge_index = torch.tensor([[0, 3, 2], [3, 3, 1]])
    data["gene", "regulates", "gene"].edge_weight = torch.tensor([0.5, 1.0, 0.25])
    return data


def test_the_form_is_what_pyg_expects(demo):
    data = demo.to_hetero_data()
    assert data.validate()
    assert data["gene"].num_nodes == 300
    assert data["gene"].name[0] == demo.genes[0]
    assert data["gene"].feature_expression.shape == (300, 16)
    edges = data["gene", "tflink", "gene"]
    assert edges.directed is True
    source, target = edges.edge_index[:, 7].tolist()
    assert demo.relation("tflink").csr().to_dense()[target, source] == 1
    assert data["gene", "physical", "gene"].edge_index.shape == (2, 2 * 1_300)
    assert data["gene", "physical", "gene"].is_undirected()


def test_the_metabolism_is_a_graph_beside_its_rules(demo):
    data, metabolism = demo.to_hetero_data(), demo.metabolism
    converts = data["reaction", "converts", "metabolite"]
    assert torch.equal(converts.edge_index[0], torch.tensor(metabolism.reaction).long())
    assert converts.coefficient.tolist() == metabolism.coefficient.tolist()
    gene, reaction = data["gene", "enables", "reaction"].edge_index
    assert set(gene.tolist()) == set(metabolism.clause_genes.tolist())
    assert set(reaction.tolist()) == set(metabolism.clause_reaction.tolist())
    assert data["reaction"].lower.tolist() == metabolism.lower.tolist()
    assert data["reaction"].pathways == [list(names) for names in metabolism.pathways]


def test_back_gives_an_equal_cell(demo):
    back = Cell.from_hetero_data(demo.to_hetero_data())
    assert back.equals(demo)
    assert back.stats() == demo.stats()


def test_what_comes_out_shares_no_memory_with_the_cell(demo):
    data = demo.to_hetero_data()
    data["gene", "physical", "gene"].edge_weight.zero_()
    data["gene"].feature_expression.zero_()
    assert demo.relation("physical").weights.min() == 1
    assert demo.features["expression"].values.any()


def test_a_plain_graph_becomes_a_cell(plain):
    plain["gene"].x = torch.ones(4, 2)
    cell = Cell.from_hetero_data(plain)
    assert cell.genes.systematic == ("g0000", "g0001", "g0002", "g0003")
    binds, regulates = cell.relation("binds"), cell.relation("regulates")
    assert not binds.directed
    assert binds.n_edges == 2
    assert binds.weights.tolist() == [1] * 4
    assert regulates.directed
    assert regulates.n_edges == 2
    assert regulates.counts.dropped == {"self loop": 1}
    assert cell.features["x"].values.tolist() == [[1, 1]] * 4
    assert cell.metabolism is None


def test_the_number_of_genes_may_be_told_by_their_features(plain):
    del plain["gene"].num_nodes
    plain["gene"].x = torch.ones(5, 1)
    assert Cell.from_hetero_data(plain).n_genes == 5


def test_edges_with_other_weights_on_the_way_back_are_directed(plain):
    edges = plain["gene", "binds", "gene"]
    edges.edge_weight = torch.tensor([1.0, 2.0, 1.0, 1.0])
    assert Cell.from_hetero_data(plain).relation("binds").directed
    edges.directed = False
    relation = Cell.from_hetero_data(plain).relation("binds")
    assert not relation.directed
    assert sorted(relation.weights.tolist()) == [1, 1, 2, 2]


def test_a_changed_graph_does_not_keep_the_old_counts(demo):
    data = demo.to_hetero_data()
    edges = data["gene", "regulatory", "gene"]
    edges.edge_index, edges.edge_weight = edges.edge_index[:, :9], edges.edge_weight[:9]
    relation = Cell.from_hetero_data(data).relation("regulatory")
    assert (relation.counts.read, relation.counts.kept) == (9, 9)


def other_node_type(data):
    data["drug"].num_nodes = 2


def no_genes(data):
    del data["gene"], data["gene", "binds", "gene"], data["gene", "regulates", "gene"]
    data["protein"].num_nodes = 2


def names_of_others(data):
    data["gene"].name = ["a", "b"]


def edge_outside(data):
    data["gene", "binds", "gene"].edge_index = torch.tensor([[0], [9]])


def reactions_alone(data):
    data["reaction"].num_nodes = 2


@pytest.mark.parametrize(
    ("spoil", "code"),
    [
        (other_node_type, "bad-node-types"),
        (no_genes, "bad-node-types"),
        (names_of_others, "bad-shape"),
        (edge_outside, "gene-index-outside"),
        (reactions_alone, "bad-metabolism"),
    ],
)
def test_what_is_no_cell_is_refused(plain, spoil, code):
    spoil(plain)
    with pytest.raises(InputError) as caught:
        Cell.from_hetero_data(plain)
    assert caught.value.code == code


def test_rules_that_no_longer_fit_their_edges_are_refused(demo):
    data = demo.to_hetero_data()
    enables = data["gene", "enables", "reaction"]
    enables.edge_index = enables.edge_index[:, 1:]
    with pytest.raises(InputError, match="not those of the rules"):
        Cell.from_hetero_data(data)
