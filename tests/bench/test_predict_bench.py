"""The bench of prediction: what is measured, and what its numbers are made of."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch

from deltacell import Cell, Relation
from deltacell.bench import predict as bench
from deltacell.errors import InputError
from deltacell.models import Dango
from deltacell.predict.dango_bounds import UniformTables
from deltacell.train.data import Standard
from deltacell.train.predictor import Predictor

N = 24


@pytest.fixture(scope="module")
def predictor() -> Predictor:
    rng = np.random.default_rng(0)
    relation = Relation.from_edges("a", *rng.integers(0, N, (2, 60)), n_genes=N, directed=False)
    cell = Cell([f"Y{i}" for i in range(N)], [relation])
    torch.manual_seed(0)
    model = Dango(cell, ("a",), {"a": 1.0}, hidden=8, heads=2)
    return Predictor(model, cell, Standard())


def test_all_triples_are_ranked(predictor: Predictor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "TOP", 10)
    took = bench._ranked(predictor, N, seed=0)
    assert took.sets == N * (N - 1) * (N - 2) // 6
    assert min(took) > 0


def test_the_loop_scores_what_it_says(predictor: Predictor) -> None:
    took = bench._loop(predictor, 100, 32, seed=0)
    assert took.sets == 100
    assert min(took) > 0


def test_the_median_of_the_turns_counts() -> None:
    row = bench._row([bench.Took(100, wall, 2 * wall, 1.0) for wall in (1.0, 5.0, 2.0)])
    assert row["sets_per_s"] == 50
    assert row["sets_per_cpu_s"] == 25
    assert row["sets_per_s_of_each"] == [100, 20, 50]


def test_attention_is_made_as_strong_as_asked(predictor: Predictor) -> None:
    made = bench.shaped(predictor, bench.Variant(9, "", (0.25, 0.001), 1.0))
    betas, before = (
        [layer.beta.item() for layer in one.model.hyper_sagnn.sets.attention]
        for one in (made, predictor)
    )
    assert betas == pytest.approx([0.25, 0.001])
    assert before == pytest.approx([0.01, 0.01])
    ranges = []
    for one in (predictor, made):
        model = one.model.double()
        with torch.no_grad():
            tables = UniformTables.of(
                model.hyper_sagnn.sets, model.encode(predictor.cell).genes, size=3
            )
        ranges.append(float(tables.norms[0].logits.mean()))
        one.model.float()
    # Of some twenty genes, numbers of deviation 1 range over some 4.
    assert 2 < ranges[1] < 6
    assert ranges[0] < ranges[1] / 10
    assert bench.shaped(predictor, bench.Variant(9, "")) is predictor


def test_bars_are_at_least() -> None:
    rows: list[dict[str, Any]] = [
        {"model": "dango", "variant": "loop", "sets_per_s": 100_000},
        {"model": "dango", "variant": "ranked", "sets_per_s": 5_000_000},
        {"model": "dango", "variant": "ranked_unpruned", "sets_per_s": 140_000},
    ]
    bars = bench._bars(rows)
    assert bars["dango_ranked_sets_per_s"]["met"]
    assert bars["dango_ranked_over_loop"]["measured"] == 50
    assert not bars["dango_unpruned_over_loop"]["met"]


def test_no_repeat_is_refused() -> None:
    with pytest.raises(InputError) as caught:
        bench.run(repeats=0)
    assert caught.value.code == "too-few-repeats"


@pytest.mark.slow
def test_the_whole_bench_on_the_demo_cell() -> None:
    told = []
    result = bench.run(lambda what, done, total: told.append(what), quick=True, repeats=1)
    assert [(row["model"], row["variant"]) for row in result["rows"]] == [
        (model, variant) for model, ranked in bench.RANKED.items() for variant in ("loop", *ranked)
    ]
    assert all(row["sets_per_s"] > 0 for row in result["rows"])
    assert result["bars"] == {}
    assert len(told) == len(result["rows"])
    json.dumps(result)
