"""HeteroCell and its parts: sizes, formulas, what it returns, what it refuses, compilation."""

import copy
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from cells import random_cell
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from deltacell.cell import Cell, Feature, Genes, Metabolism
from deltacell.models.gene_vectors import GeneEncoder, feature_vectors
from deltacell.models.hetero_cell.combinations import (
    COMBINATIONS,
    AttentionCombination,
    PairwiseCombination,
)
from deltacell.models.hetero_cell.gin import gin_message, gin_message_gradients
from deltacell.models.hetero_cell.heads import Pooling
from deltacell.models.hetero_cell.layers import GeneLayer, MetabolicEdges, MetabolicLayer
from deltacell.models.hetero_cell.matched import matched_genes
from deltacell.models.hetero_cell.model import MUTANTS, HeteroCell
from deltacell.models.hetero_cell.precision import in_precision_of
from deltacell.propagate import GENE, METABOLITE, REACTION, Deleted, Delta, Shared
from deltacell.propagate.parallel.graphs import gradients_of
from deltacell.screen import Genotypes

RULES = ["g0 and g1", "g1 or g2", "", "g3"]
STOICHIOMETRY = [(0, 0, -1.0), (0, 1, 2.0), (1, 1, -1.0), (1, 2, 1.0), (2, 0, 0.5), (3, 2, -3.0)]


@pytest.fixture(scope="module")
def cell():
    n, rng = 20, np.random.default_rng(0)
    genes = Genes([f"g{i}" for i in range(n)])
    relations = random_cell(n, dict.fromkeys("abc", 40), directed="b").relations
    ids, bounds = [f"q{j}" for j in range(4)], ([0] * 4, [1] * 4)
    metabolism = Metabolism.build(genes, ids, ["p0", "p1", "p2"], STOICHIOMETRY, RULES, *bounds)
    values = rng.normal(size=(n, 5))
    values[4, 2] = np.nan
    known = np.arange(n) % 3 > 0
    feature = Feature("f", np.where(known[:, None], values, np.nan))
    return Cell(genes, relations, metabolism, [feature])


@pytest.fixture(scope="module")
def genotypes():
    return Genotypes.of([[0], [1, 2], [3, 4, 5], [0, 6, 7, 8]])


def small(cell, **options):
    torch.manual_seed(0)
    return HeteroCell(cell, **({"hidden": 16, "layers": 2} | options))


def count(model):
    return sum(p.numel() for p in model.parameters())


def test_parameters_are_those_of_the_specification(cell):
    reference = random_cell(6607, dict.fromkeys("abcdefghi", 1))
    model = HeteroCell(reference, gin_layers=4, combine="pairwise", z_norm="none")
    assert count(model) == 1_781_187
    smaller = HeteroCell(reference, combine="sum", output="global", z_norm="none")
    assert count(smaller) == 669_917
    h, layers = 16, 2
    extra = count(small(cell, metabolism=True)) - count(small(cell))
    assert extra == (4 + 3) * h + layers * (3 * h**2 + h + 2 * h**2 + h + h**2 + h + 4 * h)
    late = small(cell, epistasis=True, mutant_layers=1)
    assert count(late) - count(small(cell)) == h**2 + 1
    both = small(cell, epistasis=True, metabolism=True)
    assert count(both) - count(small(cell, metabolism=True)) == h**2
    assert float(model.encoder.embedding.detach().std()) == pytest.approx(0.02, rel=0.02)
    scale = small(cell, z_norm="scale").global_head.log_scale
    assert scale is not None
    assert scale.exp().item() == pytest.approx(20)
    layer, plain = model.layers[0], nn.Linear(64, 64).weight.detach()
    assert (layer.eps == 0).all()
    for linear in layer.linears:
        assert float(linear.weight.detach().abs().max()) == pytest.approx(1 / 8, rel=1e-3)
        assert float(linear.weight.detach().std()) == pytest.approx(float(plain.std()), rel=0.05)


@pytest.mark.parametrize("output", ["mean", "gate", "global"])
@pytest.mark.parametrize("combine", COMBINATIONS)
def test_a_prediction_of_hetero_cell_holds_the_intermediates_of_its_output(
    cell, genotypes, combine, output
):
    options = {"metabolism": True, "features": ["f"], "residual": True, "gin_layers": 4}
    model = small(cell, combine=combine, output=output, **options)
    prediction = model(cell, genotypes)
    found = prediction.intermediate
    assert (found["genes"].shape, found["pool"].shape) == ((20, 16), (16,))
    assert (found["z"].shape, prediction.score.shape) == ((4, 16), (4,))
    if output == "global":
        assert "local" not in found
        assert torch.equal(prediction.score, found["global"])
    if output == "mean":
        torch.testing.assert_close(prediction.score, (found["global"] + found["local"]) / 2)
    if output == "gate":
        both = torch.stack([found["global"], found["local"]], -1)
        torch.testing.assert_close(prediction.score, (found["gate"] * both).sum(-1))
        torch.testing.assert_close(found["gate"].sum(-1), torch.ones(4))
    prediction.score.square().sum().backward()
    unread = {n for n, p in model.named_parameters() if p.grad is None}
    # Nothing reads the metabolites of the last layer.
    last = "metabolic_layers.1.metabolite"
    assert unread == {f"{last}.{i}.{w}" for i in (0, 1) for w in ("weight", "bias")}
    again = copy.deepcopy(model)(cell, model.prepare(cell, genotypes)).score
    assert torch.equal(again, prediction.score)


class Operations(TorchDispatchMode):
    """Counts what is carried out."""

    def __init__(self):
        super().__init__()
        self.seen: Counter[str] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen[str(func)] += 1
        return func(*args, **(kwargs or {}))


def test_a_step_neither_waits_nor_loops_over_genotypes(cell):
    """With the whole batch as a tile, as on a GPU."""
    options = {"metabolism": True, "aggregation": "mean", "combine": "pairwise", "dropout": 0.1}
    way = Shared(tile=1000, rows_at_a_time=0)
    model = small(cell, **options, output="gate", propagation=way)
    assert model.local_head is not None
    # On a CPU, where reading the sizes is free, the local head reads them.
    model.local_head._width = lambda _: 4  # type: ignore[method-assign]
    counts = []
    for n in (3, 11):
        sets = [[i, (i + 1) % 20, (i + 2) % 20] for i in range(n)]
        prepared = model.prepare(cell, Genotypes.of(sets))
        # Matrices and transposes are made once, the first time.
        model(cell, prepared).score.sum().backward()
        with Operations() as operations:
            model(cell, prepared).score.square().sum().backward()
        counts.append(operations.seen)
    assert not [name for name in counts[0] if "local_scalar" in name or "nonzero" in name]
    assert counts[0] == counts[1]


@pytest.mark.parametrize("rows_at_a_time", [0, 8])
@pytest.mark.parametrize("combine", COMBINATIONS)
def test_bfloat16_autocast(cell, genotypes, combine, rows_at_a_time):
    strategy = Shared(rows_at_a_time=rows_at_a_time)
    model = small(
        cell,
        combine=combine,
        metabolism=True,
        features=["f"],
        output="gate",
        propagation=strategy,
    )
    exact = model(cell, genotypes)
    # Without oneDNN, whose bf16 kernels some virtual machines announce and cannot run.
    with torch.backends.mkldnn.flags(enabled=False):
        with torch.autocast("cpu", torch.bfloat16):
            prediction = model(cell, genotypes)
        prediction.score.float().square().sum().backward()
    found = prediction.intermediate
    assert found["z"].dtype == found["genes"].dtype == found["pool"].dtype == torch.float32
    for name in ("genes", "z"):
        # Rounding by 8 bits somewhere on the way, and not more.
        error = (found[name] - exact.intermediate[name]).norm()
        assert error < 0.1 * exact.intermediate[name].norm()
    assert not torch.equal(found["genes"], exact.intermediate["genes"])
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    assert all(g.dtype == torch.float32 and torch.isfinite(g).all() for g in gradients)


def test_a_profiler_shows_the_parts_and_one_wild_type(cell, genotypes):
    options = {"combine": "pairwise", "propagation": "shared"}
    model = small(cell, metabolism=True, output="gate", **options)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        model(cell, genotypes)
    calls = {event.key: event.count for event in profile.key_averages()}
    parts = "encoder mutants layer1 layer2.combination metabolism1 pooling global_head local_head"
    assert {f"hetero_cell.{part}" for part in [*parts.split(), "gate"]} <= calls.keys()
    assert calls["hetero_cell.wild_type"] == 1


REFUSED = {
    "no-relation": {"relations": [[]]},
    "repeated-name": {"relations": [["a", "a"]]},
    "unknown-choice": {
        name: ["none of these"]
        for name in ("combine", "output", "aggregation", "z_norm", "mutants")
    },
    "heads-do-not-divide": {"local_heads": [5], "hidden": [18]},
    "out-of-range": {"hidden": [0], "gin_layers": [0], "dropout": [1.0], "mutant_layers": [0, 3]},
    "no-mutants": {"mutants": ["none"]},
    "not-late": {"epistasis": [True]},
    "unknown-relation": {"relations": [["a", "d"]]},
    "unknown-feature": {"features": [["g"]]},
    "unknown-propagation": {"propagation": ["fast"]},
}


@pytest.mark.parametrize(
    ("code", "name", "value"),
    [(c, n, v) for c, given in REFUSED.items() for n, values in given.items() for v in values],
)
def test_a_model_that_cannot_be(refused, cell, code, name, value):
    options = {"combine": "attention", "output": "gate"} | {name: value}
    refused(code, small, cell, **options)


def test_cells_and_genotypes_that_do_not_fit(refused, cell, genotypes):
    model = small(cell, features=["f"], metabolism=True, epistasis=True)
    without = Cell(cell.genes, cell.relations, None, cell.features)
    refused("no-metabolism", small, without, metabolism=True)
    split = Cell(cell.genes, cell.relations, cell.metabolism.split(), cell.features)
    wider = cell._with(features=[Feature("f", np.zeros((20, 6)))])
    late = small(cell, mutant_layers=1, epistasis=True)
    for other in (without, split, wider, cell.subset(range(19))):
        refused("other-cell", model, other, genotypes)
    pair = Genotypes.of([[0, 1]])
    for code, own, other, given in (
        ("unknown-relation", model, cell.with_relations(["a", "b"]), genotypes),
        ("bad-genotypes", model, cell, Genotypes.of([[]])),
        ("too-many-deleted", late, cell, Genotypes.of([range(6)])),
        ("too-many-deleted", late, cell, Genotypes.of([range(20)])),
        ("not-late", small(cell, propagation="late"), cell, genotypes),
        ("not-late", small(cell, mutant_layers=1, epistasis=True, propagation="delta"), cell, pair),
    ):
        refused(code, own, other, given)


def test_wrong_genes_have_the_same_degrees_and_other_neighbours():
    cell = Cell.synthetic("demo")
    instead = matched_genes(cell, tuple(cell.relations))
    assert sorted(instead.tolist()) == list(range(cell.n_genes))
    assert (instead != np.arange(cell.n_genes)).all()
    degrees = np.stack([r.out_degree for r in cell.relations.values()], axis=1)
    total = np.log1p(degrees).sum(1)
    shuffled = np.random.default_rng(0).permutation(cell.n_genes)
    apart = np.abs(total - total[instead]).mean()
    assert apart < 0.25 * np.abs(total - total[shuffled]).mean()


def test_matched_mutants_delete_other_genes_and_none_have_no_vector(cell):
    sets = [[0, 5], [7, 3], [1, 2, 4]]
    made = {kind: small(cell, mutant_layers=1, mutants=kind).eval() for kind in MUTANTS}
    true, wrong, none = (made[kind](cell, Genotypes.of(sets)) for kind in MUTANTS)
    # All heads have the same weights, and the local one sees the deleted genes themselves.
    torch.testing.assert_close(true.intermediate["local"], wrong.intermediate["local"])
    torch.testing.assert_close(true.intermediate["local"], none.score)
    assert (true.intermediate["z"] - wrong.intermediate["z"]).abs().max() > 1e-6
    assert "z" not in none.intermediate
    instead = [made["matched"].instead[s].tolist() for s in sets]
    named = made["true"](cell, Genotypes.of(instead)).intermediate["z"]
    torch.testing.assert_close(wrong.intermediate["z"], named)
    none.score.sum().backward()
    # What another model has prepared is prepared again.
    made["metabolism"] = small(cell, metabolism=True, epistasis=True).eval()
    for model in made.values():
        expected = model(cell, Genotypes.of(sets)).score
        for other in made.values():
            assert torch.equal(model(cell, other.prepare(cell, Genotypes.of(sets))).score, expected)


@pytest.mark.parametrize("relations", [1, 2, 9])
def test_pairwise_is_an_mlp_of_its_own_for_every_pair(relations):
    torch.manual_seed(0)
    hidden = 8
    combine = PairwiseCombination(relations, hidden).double()
    messages = torch.randn(relations, 6, hidden, dtype=torch.float64, requires_grad=True)
    pairs = [(a, b) for a in range(relations) for b in range(a, relations)]
    assert list(combine.pairs) == pairs
    of_a_pair = 2 * hidden * 32 + 32 + 32 * hidden + hidden
    assert count(combine) == len(pairs) * of_a_pair + hidden * 32 + 32 + 33 + 2 * hidden
    places = combine.project.view(relations, hidden, relations + 1, 32)
    options = []
    for p, (a, b) in enumerate(pairs):
        weight = torch.cat([places[a, :, b - a], places[b, :, relations - b + a]])
        both = torch.cat([messages[a], messages[b]], -1)
        inner = functional.gelu(both @ weight + combine.project_bias[p])
        options.append(inner @ combine.expand.weight[p] + combine.expand.bias[p])
    stacked = torch.stack([*options, messages.mean(0)])
    score = combine.score_out(functional.gelu(combine.score(stacked)))
    expected = combine.norm((score.softmax(0) * stacked).sum(0))
    found = combine(messages)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    by, leaves = torch.randn_like(found), [messages, *combine.parameters()]
    gradients = (torch.autograd.grad((f * by).sum(), leaves) for f in (found, expected))
    torch.testing.assert_close(*gradients, rtol=1e-10, atol=1e-12)


def test_attention_is_pytorch_s():
    torch.manual_seed(0)
    combine = AttentionCombination(5, 8).double()
    theirs = nn.MultiheadAttention(8, 4, batch_first=True).double()
    with torch.no_grad():
        theirs.in_proj_weight.copy_(combine.query_key_value.weight)
        theirs.in_proj_bias.copy_(combine.query_key_value.bias)
        theirs.out_proj.load_state_dict(combine.out.state_dict())
    messages = torch.randn(5, 6, 8, dtype=torch.float64)
    rows = (messages + combine.relation).transpose(0, 1)
    expected = theirs(rows, rows, rows, need_weights=False)[0].mean(1)
    torch.testing.assert_close(combine(messages), expected)


def of_relation(linears, dtype):
    """The parameters of a relation, away from where they start, and what they are applied to."""
    torch.manual_seed(0)
    layer = GeneLayer("l", 3, 8, linears, "sum", False, 0.0)
    parameters = [p + 0.3 * torch.randn_like(p) for p in layer.parameters_by_relation()[1]]
    given = [torch.randn(5, 8), torch.randn(5, 8)]
    return [x.to(dtype).detach().requires_grad_() for x in given], [
        p.to(dtype).detach().requires_grad_() for p in parameters
    ]


@pytest.mark.parametrize("linears", [1, 2, 3])
def test_a_gin_message_and_its_gradient_by_hand(linears):
    (x, received), parameters = of_relation(linears, torch.float64)
    act, by = functional.gelu, torch.randn_like(x)
    eps, weight, bias, first, *rest = parameters
    h = ((1 + eps) * x + received) @ first + rest[0]
    for w, b in zip(rest[1::2], rest[2::2], strict=True):
        h = act(h) @ w + b
    formula = act(functional.layer_norm(h, (8,), weight, bias))
    message = gin_message(x, received, parameters)
    torch.testing.assert_close(message, formula, rtol=1e-12, atol=1e-12)
    wanted = gradients_of([formula], [x, received, *parameters], [by])
    more = torch.cat([x, x[:4]]).detach(), torch.cat([received, received[:4]]).detach()
    # Again after a larger one, in memory that is not fresh.
    for _ in range(2):
        found = gin_message_gradients(x, received, parameters, by)
        torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)
        gin_message_gradients(*more, parameters, torch.randn(9, 8).double())


def test_under_autocast_the_gradient_is_that_of_what_was_computed():
    own, parameters = of_relation(2, torch.float32)
    by = torch.randn_like(own[0])
    with torch.autocast("cpu", torch.bfloat16):
        found = gin_message_gradients(*own, parameters, by)
        message = gin_message(*own, parameters)
        expected = gradients_of([message], [*own, *parameters], [by])
    assert message.dtype == torch.float32
    torch.testing.assert_close(found, expected)
    exact = gin_message_gradients(*own, parameters, by)[0]
    assert not torch.equal(exact, found[0])


def test_features_are_added_where_they_are_known_and_the_blocks_share_a_norm(cell):
    torch.manual_seed(0)
    encoder = GeneEncoder(cell, ["f"], 16, 0.0)
    nn.init.normal_(encoder.norm.weight)
    added = encoder.features.linears[0](torch.from_numpy(feature_vectors(cell.features["f"])))
    known = torch.from_numpy(cell.features["f"].known).unsqueeze(1)
    x = encoder.embedding + torch.where(known, added, 0)
    for block in encoder.blocks:
        x = functional.gelu(encoder.norm(block(x)))
    torch.testing.assert_close(encoder(cell), x)


def mean_of(rows):
    return torch.stack(rows).mean(0) if rows else torch.zeros(6, dtype=torch.float64)


def test_a_metabolic_layer_is_the_formula_in_the_wild_type_and_in_a_mutant(cell):
    """The mutant lacks genes 0 and 2, and so reaction 0; reaction 1 has gene 1 left."""
    torch.manual_seed(0)
    layer, pooling = MetabolicLayer("m", 6).double(), Pooling(6).double()
    sizes = {GENE: 20, REACTION: 4, METABOLITE: 3}
    state = {kind: torch.randn(n, 6, dtype=torch.float64) for kind, n in sizes.items()}
    s = np.zeros((4, 3))
    for j, m, coefficient in STOICHIOMETRY:
        s[j, m] = coefficient

    def reactions(genes_of):
        new = {}
        for j, genes in genes_of.items():
            share = torch.tensor(np.abs(s[j]) / np.abs(s[j]).sum()) @ state[METABOLITE]
            h = torch.cat([state[REACTION][j], mean_of([state[GENE][g] for g in genes]), share])
            new[j] = functional.gelu(layer.reaction(h))
        return new

    def gene(g, genes_of, new):
        mean = mean_of([new[j] for j, genes in genes_of.items() if g in genes])
        return state[GENE][g] + layer.gene(mean)

    assert cell.metabolism is not None
    edges = MetabolicEdges.of(cell.metabolism)
    assert MetabolicEdges.of(cell.metabolism) is edges
    hops = layer.hops(layer.shapes(edges, last=False))
    found = Shared().wild_type(hops, state).last
    genes_of = {0: [0, 1], 1: [1, 2], 2: [], 3: [3]}
    new = reactions(genes_of)
    torch.testing.assert_close(found[REACTION], torch.stack(list(new.values())))
    for m in range(3):
        mean = mean_of([s[j, m] * new[j] for j in np.flatnonzero(s[:, m])])
        h = layer.metabolite(torch.cat([state[METABOLITE][m], mean]))
        torch.testing.assert_close(found[METABOLITE][m], functional.gelu(h))
    wild = torch.stack([gene(g, genes_of, new) for g in range(20)])
    torch.testing.assert_close(found[GENE], wild)
    shapes = layer.shapes(edges, last=True)
    hops = layer.hops(shapes)
    assert [hop.target for hop in hops] == [REACTION, GENE]
    deleted, genes_of = Deleted.of(cell, Genotypes.of([[0, 2]]), metabolism=True), {1: [1], 3: [3]}
    new = reactions(genes_of)
    mutant = torch.stack([gene(g, genes_of, new) for g in range(20) if g not in (0, 2)])
    pools = []
    for genes in (wild, mutant):
        gate, value = pooling(genes)
        pools.append(gate.softmax(0) @ value)
    for strategy in (Shared(), Delta()):
        wild_type = strategy.wild_type(hops, state)
        plan: Any = strategy.plan(shapes, deleted, torch.device("cpu"))
        z = strategy.mutants(plan, hops, wild_type, pooling).z[0]
        torch.testing.assert_close(z, pools[0] - pools[1], rtol=1e-9, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("rows_at_a_time", [0, 8])
def test_compiled_parts_are_compiled_once(cell, rows_at_a_time):
    torch._dynamo.reset()
    strategy = Shared(rows_at_a_time=rows_at_a_time)
    plain = small(cell, layers=1, combine="pairwise", propagation=strategy)
    model = copy.deepcopy(plain)
    compiler = CompileCounterWithBackend("eager")
    model.compile_parts(backend=compiler)
    counts = []
    for first in range(3):
        sets = [[first, first + 1, first + 3], [first + 2], [5, first + 6], [9, 8]]
        found = model(cell, Genotypes.of(sets)).score
        found.sum().backward()
        torch.testing.assert_close(found, plain(cell, Genotypes.of(sets)).score)
        counts.append(compiler.frame_count)
    assert counts[0] > 0
    assert counts == [counts[0]] * 3


def test_a_module_in_double_precision_is_unchanged_meanwhile_because_threads_share_it():
    module, seen = nn.Sequential(nn.Linear(3, 2), nn.LayerNorm(2)), []
    module.register_forward_pre_hook(lambda *_: seen.append(module[0].weight))
    weight, x = module[0].weight, torch.rand(4, 3).double()
    found = in_precision_of(module, x)
    assert found.dtype == torch.float64
    assert seen == [weight]
    exact = copy.deepcopy(module).double()
    torch.testing.assert_close(found, exact(x), rtol=0, atol=0)
    found.square().sum().backward()
    exact(x).square().sum().backward()
    torch.testing.assert_close(weight.grad, exact[0].weight.grad.float())
