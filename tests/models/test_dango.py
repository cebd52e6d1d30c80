"""DANGO and its parts: sizes, formulas, what it returns, what it refuses, compilation."""

import pytest
import torch
from cells import random_cell
from torch import nn
from torch._dynamo.utils import counters

from deltacell import Genotypes, Relation
from deltacell.models import STRING_LAMBDAS, STRING_RELATIONS, Dango, DangoLoss, HyperSAGNN
from deltacell.models.dango.layers import SAGE, MetaEmbedding, SAGELayer
from deltacell.models.dango.reconstruction import dense_loss
from deltacell.propagate.product import SparseMatrix

AB = {"a": 1.0, "b": 1.0}
EDGES = dict.fromkeys(STRING_RELATIONS, 30)


def count(*modules):
    return sum(p.numel() for module in modules for p in module.parameters())


def test_parameters_are_those_of_the_specification():
    model = Dango(random_cell(6_607, EDGES))
    assert model.embedding.numel() + count(model.sage, model.reconstruction) == 3_098_650
    assert (model.embedding.numel(), count(model.sage)) == (422_848, 99_072)
    assert (count(model.meta_embedding), count(model.hyper_sagnn)) == (2_113, 37_507)
    assert count(model) == 3_138_270
    assert float(model.embedding.detach().std()) == pytest.approx(0.1, rel=0.01)
    weight = model.reconstruction.heads[0].weight.detach()
    assert float(weight.std()) == pytest.approx(0.1, rel=0.02)
    assert all(layer.beta == 0.01 for layer in model.hyper_sagnn.sets.attention)


def test_dango_returns_scores_and_intermediates_and_names_its_parts_to_a_profiler():
    cell = random_cell(20, EDGES)
    model = Dango(cell, hidden=8).double()
    with torch.profiler.profile() as profiler:
        genotypes = Genotypes.of([[0], [1, 2], [3, 4, 5, 6]] * 5)
        prediction = model(cell, genotypes, wanted=DangoLoss.reads)
    calls = {event.key: event.count for event in profiler.key_averages()}
    assert calls["dango.encoder"] == calls["dango.encoder.string_fusion"] == 1
    assert {"dango.reconstruction", "hyper_sagnn"} <= calls.keys()
    found = prediction.intermediate
    shapes = {name: tuple(t.shape) for name, t in found.items()}
    assert shapes == {
        "networks": (6, 20, 8),
        "genes": (20, 8),
        "attention": (20, 6),
        "z": (15, 8),
        "reconstruction": (6,),
    }
    for k, name in enumerate(STRING_RELATIONS):
        head, matrix = model.reconstruction.heads[k], SparseMatrix.of(cell.relation(name))
        plain = dense_loss(
            found["networks"][k],
            head.weight,
            head.bias,
            matrix,
            STRING_LAMBDAS[name],
        )
        torch.testing.assert_close(found["reconstruction"][k], plain)
    few = {name for name, value in STRING_LAMBDAS.items() if value == 0.1}
    assert few == {"string_coexpression", "string_experimental"}
    without = model(cell, Genotypes.of([[0]]))
    assert "reconstruction" not in without.intermediate


def test_every_parameter_has_a_gradient_even_without_genotypes():
    cell = random_cell(20, EDGES)
    model = Dango(cell, hidden=8)
    prediction = model(cell, Genotypes.of([]), wanted=DangoLoss.reads)
    assert prediction.score.shape == (0,)
    loss = DangoLoss()(prediction, torch.zeros(0), torch.zeros(0), epoch=3)
    loss.total.backward()
    assert loss.total == 0
    assert all(p.grad is not None and not p.grad.isnan().any() for p in model.parameters())


@pytest.mark.parametrize(
    ("code", "arguments", "options"),
    [
        ("no-lambda", (["a", "b"], {"a": 1.0}), {}),
        ("repeated-name", (["a", "a"], AB), {}),
        ("no-relation", ([], {}), {}),
        ("heads-do-not-divide", (["a"], AB), {"hidden": 10}),
        ("heads-do-not-divide", (["a"], AB), {"heads": 0}),
        ("out-of-range", (["a"], {"a": -1}), {}),
        ("out-of-range", (["a"], AB), {"largest": 0}),
        ("repeated-name", (["a"], AB), {"features": ["f", "f"]}),
    ],
)
def test_a_model_that_cannot_be(refused, code, arguments, options):
    refused(code, Dango, random_cell(20, {"a": 30, "b": 30}), *arguments, **{"hidden": 8} | options)


def test_cells_and_genotypes_that_do_not_fit(refused):
    model = Dango(random_cell(20, {"a": 30}), ["a"], AB, hidden=8, largest=2)
    for code, n, sets in (
        ("other-cell", 21, [[1]]),
        ("genotype-too-large", 20, [[1], [0, 4, 5]]),
        ("bad-genotypes", 20, [[1], []]),
    ):
        refused(code, model, random_cell(n, {"a": 30}), Genotypes.of(sets))


def one_set(model, e):
    """The score of one set, gene by gene and head by head, as the formula is written."""
    x = e
    for layer in model.sets.attention:
        query, key, value = layer.query_key_value(x).chunk(3, dim=-1)
        width = x.shape[1] // layer.heads
        new = []
        for i in range(len(x)):
            others = [j for j in range(len(x)) if j != i]
            if not others:
                new.append(x[i])
                continue
            heads = []
            for h in range(layer.heads):
                at = slice(h * width, (h + 1) * width)
                logits = torch.stack([query[i, at] @ key[j, at] for j in others]) / width**0.5
                share = torch.exp(logits) / torch.exp(logits).sum()
                heads.append(sum(a * value[j, at] for a, j in zip(share, others, strict=True)))
            new.append(x[i] + layer.beta * layer.out(torch.cat(heads)))
        x = torch.stack(new)
    return model.sets.score((x - torch.relu(model.sets.static(e))) ** 2).mean()


@pytest.mark.parametrize(("heads", "layers"), [(4, 2), (8, 2), (1, 1), (2, 3)])
def test_hyper_sagnn_is_the_formula(heads, layers):
    torch.manual_seed(0)
    model = HyperSAGNN(16, heads, layers).double()
    for layer in model.sets.attention:
        nn.init.constant_(layer.beta, 0.7)
    e = torch.randn(9, 16, dtype=torch.float64, requires_grad=True)
    sets = [[0, 3, 4], [5], [8, 1], [2, 6, 7, 1, 0], [3, 2]]
    found = model(e, Genotypes.of(sets))
    torch.testing.assert_close(found, torch.stack([one_set(model, e[s]) for s in sets]))
    model.largest = 7
    torch.testing.assert_close(model(e, Genotypes.of(sets)), found, rtol=1e-12, atol=0)
    nothing = model(e, Genotypes.of([]))
    nothing.sum().backward()
    assert nothing.shape == (0,)
    assert e.grad is not None
    assert not e.grad.any()


def test_sage_is_the_formula_gene_by_gene():
    relation = Relation.from_edges("r", [1, 2, 0, 3], [0, 0, 1, 2], n_genes=5, directed=True)
    sage = SAGE(4).double()
    x = torch.randn(5, 4, dtype=torch.float64)
    expected = x
    for layer in sage.layers:
        assert isinstance(layer, SAGELayer)
        assert layer.own.bias is None
        means = torch.zeros_like(expected)
        for gene, sources in {0: [1, 2], 1: [0], 2: [3]}.items():
            means[gene] = expected[sources].mean(0)
        own = expected @ layer.own.weight.t()
        expected = (means @ layer.neighbours.weight.t() + layer.neighbours.bias + own).relu()
    torch.testing.assert_close(sage(SparseMatrix.of(relation), x), expected)


def test_meta_embedding_is_the_formula_gene_by_gene():
    meta = MetaEmbedding(6).double()
    networks = torch.randn(3, 5, 6, dtype=torch.float64)
    genes, attention = meta(networks)
    for gene in range(5):
        share = torch.cat([meta.scorer(networks[k, gene]) for k in range(3)]).softmax(0)
        torch.testing.assert_close(attention[gene], share)
        torch.testing.assert_close(genes[gene], share @ networks[:, gene])


# Eight is the model's width too.
BATCHES = [[[i, i + 1, i + 2] for i in range(8)], [[1, 2], [3]], [[1, 2, 3, 4, 5]] * 15]


@pytest.mark.parametrize(
    "options",
    [{"backend": "eager", "fullgraph": True}, pytest.param({}, marks=pytest.mark.slow)],
)
def test_compiled_parts_are_the_same_and_compiled_once(options):
    torch._dynamo.reset()
    counters.clear()
    cell = random_cell(20, {"a": 30, "b": 30})
    torch.manual_seed(0)
    plain, compiled = (Dango(cell, ("a", "b"), AB, hidden=8, layers=1) for _ in range(2))
    compiled.load_state_dict(plain.state_dict())
    compiled.compile_parts(**options)
    for sets in BATCHES:
        scores = [model(cell, Genotypes.of(sets)).score for model in (compiled, plain)]
        torch.testing.assert_close(*scores)
        for score in scores:
            score.square().sum().backward()
        assert counters["stats"]["unique_graphs"] == 2
    for mine, other in zip(compiled.parameters(), plain.parameters(), strict=True):
        if other.grad is not None:
            torch.testing.assert_close(mine.grad, other.grad)
