"""Every propagation equals deleting the genes, and a check that cannot fail is no check."""

from dataclasses import replace
from typing import Any

import laws
import pytest
import torch
from cells import random_cell, random_sets
from hypothesis import given, note, settings
from hypothesis import strategies as st

from deltacell.models.hetero_cell.model import HeteroCell
from deltacell.propagate import GENE, Delta, Shared, WildType
from deltacell.propagate import NAMES as ALL_NAMES
from deltacell.propagate.reference import EdgeMask
from deltacell.propagate.shared import TileMutants
from deltacell.propagate.transfer import TensorMap
from deltacell.screen import Genotypes

# `late` is for one layer, and has laws of its own.
NAMES = [name for name in ALL_NAMES if name != "late"]

# Whatever things cost, the result is the same; these costs make `delta` take every way there is.
SPARSE = {"gather_cost": 0.0, "entry_cost": 0.0}
COSTS = st.sampled_from([0.0, 1e9]) | st.floats(-2, 5).map(lambda x: 10.0**x)

OPTIONS = {
    "aggregation": ["sum", "mean"],
    "metabolism": [False, True],
    "features": [(), ("f",)],
    "residual": [False, True],
    "combine": ["sum", "mean", "attention", "pairwise"],
    "output": ["mean", "gate", "global"],
    "z_norm": ["scale", "norm", "none"],
    "dropout": [0.0, 0.4],
    "gin_layers": [1, 2, 3],
    "mutant_layers": [1, 2],
}


@st.composite
def ways(draw, name, batch):
    """A strategy with options drawn, where it has any."""
    tile = st.none() | st.integers(1, batch)
    rows = st.none() | st.integers(0, 7)
    if name == "shared":
        return draw(st.builds(Shared, tile, rows))
    workers = st.none() | st.integers(1, 3)
    return draw(st.builds(Delta, tile, rows, workers, gather_cost=COSTS, entry_cost=COSTS))


@settings(laws.LAW, max_examples=10)
@given(data=st.data())
def test_every_strategy_equals_deleting(data):
    cell = data.draw(laws.small_cells())
    options = {name: data.draw(st.sampled_from(values)) for name, values in OPTIONS.items()}
    # One mutant has no gene left.
    more = [[0, 1], [0, 1, 2, 3, cell.n_genes - 1], list(range(cell.n_genes))]
    sets = [*(s.tolist() for s in data.draw(laws.genotypes_of(cell))), *more]
    genotypes, model = Genotypes.of(sets), laws.model_of(cell, **options)
    expected = laws.results(model, laws.Dense(), cell, genotypes)
    for name in NAMES:
        if name == "auto" and options["mutant_layers"] == 1 and not options["metabolism"]:
            continue  # It is `late`, which refuses large sets for their many subsets.
        with laws.made(name, model, cell, genotypes) as way:
            if name in ("shared", "delta"):
                way = data.draw(ways(name, len(genotypes)))
            note(name)
            laws.assert_equals_deleting(way, model, cell, genotypes, expected)


@pytest.mark.parametrize("metabolism", [False, True])
@pytest.mark.parametrize("aggregation", ["sum", "mean"])
def test_wrong_strategies_are_rejected(aggregation, metabolism):
    cell = laws.fixed_cell(metabolism=True)
    genotypes = Genotypes.of([[0], [1, 2], [0, 1, 3]])
    model = laws.model_of(cell, aggregation=aggregation, metabolism=metabolism)
    wrong: list[Any] = [KeepsEdges(), ForgetsLaterLayers(), stale(Shared), stale(EdgeMask)]
    wrong += [stale(Delta), KeepsMasks(), *([KeepsReactions()] * metabolism)]
    expected = laws.results(model, laws.Dense(), cell, genotypes)
    for way in wrong:
        with pytest.raises(AssertionError, match=r"^(score|z|vectors|gradient of \S+): "):
            laws.assert_equals_deleting(way, model, cell, genotypes, expected)


def test_training_takes_the_same_course():
    cell = laws.fixed_cell(metabolism=True)
    genotypes = Genotypes.of([[0], [1, 2], [0, 1, 3], [7], [2, 4, 5, 6]])
    targets = torch.linspace(-1, 1, len(genotypes), dtype=torch.float64)

    def curve(name, way=None):
        model = laws.model_of(cell, metabolism=True, dropout=0.3)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        losses = []
        torch.manual_seed(1)
        with laws.made(name, model, cell, genotypes) as made:
            model.propagation = way or made
            for step in range(4):
                some = torch.tensor([step % 5, (step + 2) % 5, 4])
                score = model(cell, genotypes.take(some)).score
                loss = (score - targets[some]).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.detach())
        return torch.stack(losses)

    expected = curve("dense")
    assert expected.std() > 1e-3
    found = {name: curve(name) for name in NAMES}
    found["delta, sparse"] = curve("delta", Delta(tile=3, workers=2, **SPARSE))
    for name, losses in found.items():
        torch.testing.assert_close(
            losses,
            expected,
            rtol=1e-9,
            atol=1e-11,
            msg=lambda m, n=name: f"{n}: {m}",
        )


@settings(laws.LAW, max_examples=8)
@given(data=st.data())
def test_memory_order_and_company_do_not_matter(refused, data):
    cell = data.draw(laws.small_cells())
    genotypes = data.draw(laws.genotypes_of(cell))
    model = laws.model_of(cell, metabolism=data.draw(st.booleans()), dropout=0.4)
    expected = laws.results(model, Delta(tile=1), cell, genotypes)
    # Just enough for one genotype, so that all are computed again in the backward.
    model.propagation = Delta(max_bytes=1)
    least = refused("max-bytes-too-small", model, cell, genotypes).fields["least"]
    twice = Delta(max_bytes=2 * least, workers=2)
    for other in (Delta(max_bytes=least), twice, Delta(tile=len(genotypes))):
        found = laws.results(model, other, cell, genotypes)
        for name, tensor in expected.items():
            torch.testing.assert_close(found[name], tensor, rtol=1e-10, atol=1e-10)
    order = torch.tensor(data.draw(st.permutations(range(len(genotypes)))))
    turned = laws.results(model, Delta(tile=2), cell, genotypes.take(order))
    for name in ("score", "z", "vectors"):
        torch.testing.assert_close(turned[name], expected[name][order], rtol=1e-10, atol=1e-10)


def test_single_precision_is_exact_enough():
    """The spread over genotypes is what a difference is measured by."""
    cell = random_cell(200, dict.fromkeys("abcd", 1500), directed="a")
    torch.manual_seed(0)
    model = HeteroCell(cell, hidden=16, output="global")
    genotypes = Genotypes.of(random_sets(200, 12, sizes=(3,)))

    def scores(strategy):
        model.propagation = strategy
        with torch.no_grad():
            return model(cell, genotypes).score

    reference = scores(laws.Dense())
    for good in (Shared(), Shared(tile=5), Delta(), Delta(tile=5, **SPARSE)):
        assert (scores(good) - reference).abs().max() < 1e-2 * reference.std()
    assert (scores(KeepsEdges()) - reference).abs().max() > 1e-2 * reference.std()


@pytest.mark.parametrize("name", [*NAMES, "late"])
def test_an_empty_batch_gives_an_empty_score(name):
    late = name == "late"
    cell = laws.fixed_cell(metabolism=not late)
    model = laws.model_of(cell, metabolism=not late, mutant_layers=2 - late, epistasis=True)
    none = Genotypes.of([])
    with laws.made(name, model, cell, none) as model.propagation:
        assert model(cell, none).score.shape == (0,)


class KeepsEdges(Shared):
    """Deletes genes from the pool, and leaves them in the graph."""

    def mutants(self, plan, hops, wild_type, readout):
        return super().mutants(plan, [], WildType((wild_type.last,)), readout)


class ForgetsLaterLayers(Shared):
    """Deletes genes before the first layer, and lets them come back to life in it."""

    def _mutants(self, plan, step):
        living = TileMutants._living

        def only_at_first(self, kind, x):
            return x if hasattr(self, "state") else living(self, kind, x)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(TileMutants, "_living", only_at_first)
            return super()._mutants(plan, step)


class KeepsReactions(Shared):
    """Deletes genes, and none of the reactions that need them."""

    def plan(self, shapes, deleted, device, **options):
        genes_only = replace(deleted, nodes={GENE: deleted.nodes[GENE]})
        return super().plan(shapes, genes_only, device, **options)


class KeepsMasks(EdgeMask):
    """Clears no bit of the masks: deleted genes leave the pool alone."""

    def plan(self, shapes, deleted, device, **options):
        right = super().plan(shapes, deleted, device, **options)
        return replace(right, sent={k: (torch.ones_like(m),) for k, (m,) in right.sent.items()})


def stale(kind):
    """A strategy that computes the wild type in the first step and never again."""

    class Stale(kind):  # type: ignore[misc]
        def wild_type(self, hops, state):
            if "kept" not in self.__dict__:
                found = super().wild_type(hops, state)
                self.__dict__["kept"] = TensorMap(torch.Tensor.detach)(found)
            kept: WildType = self.__dict__["kept"]
            return kept

    return Stale()
