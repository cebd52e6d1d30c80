"""The comparison on triples: folds share no query pair, and correlations are within folds."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltacell.cell import Cell
from deltacell.screen import Screen
from deltacell_dev.bench import triples

N_GENES = 40


def screen_of(cell, sets, scores):
    names = [[cell.genes.systematic[gene] for gene in genes] for genes in sets]
    columns = {f"gene{i + 1}": [row[i] for row in names] for i in range(len(sets[0]))}
    frame = pl.DataFrame({**columns, "score": scores})
    return Screen.from_pandas(frame, cell, columns={name: name for name in frame.columns})


def screen_of_query_pairs(seed=0, n_pairs=10, n_arrays=12):
    """Triples of query pairs with array genes; the score is that of the query pair, and noise."""
    rng = np.random.default_rng(seed)
    cell = Cell([f"G{i:02d}" for i in range(N_GENES)], [])
    sets, scores = [], []
    for pair in range(n_pairs):
        arrays = rng.choice(np.arange(2 * n_pairs, N_GENES), n_arrays, replace=False)
        sets += [[2 * pair, 2 * pair + 1, int(array)] for array in arrays]
        scores += (rng.normal() + 0.1 * rng.normal(size=n_arrays)).tolist()
    return cell, screen_of(cell, sets, scores)


@settings(max_examples=4, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), by=st.sampled_from(triples.FOLDS_BY))
def test_folds_test_every_row_once_and_share_no_query_pair(seed, by):
    _, screen = screen_of_query_pairs(seed)
    query_pair = triples.query_pairs(screen)
    assert len(set(query_pair.tolist())) == 10
    folds = triples.Folds.of(screen, by, 5, seed=seed % 100)
    splits = [folds.split(screen, fold) for fold in range(5)]
    tested = np.concatenate([split.test for split in splits])
    assert sorted(tested.tolist()) == list(range(len(screen)))
    assert all(len(split.validation) == len(screen) // 10 for split in splits)
    shared = [np.isin(query_pair[split.test], query_pair[split.train]).mean() for split in splits]
    assert shared == [0.0] * 5 if by == "query pair" else min(shared) > 0


def test_correlations_are_within_folds():
    rng = np.random.default_rng(0)
    cell = Cell([f"G{i:02d}" for i in range(N_GENES)], [])
    sets = {tuple(sorted(rng.choice(N_GENES, 3, replace=False).tolist())) for _ in range(300)}
    screen = screen_of(cell, sorted(sets), rng.normal(size=len(sets)).tolist())
    truth = screen.column("score").astype(np.float64)
    folds = triples.Folds.of(screen, "set", 5)
    shifted = truth + 100.0 * folds.tested_in
    noise = np.random.default_rng(1).normal(size=len(truth))
    predictions = {"additive": noise, "shifted": shifted, "constant": np.zeros(len(truth))}
    rows = triples.compared_by_fold(screen, folds, predictions, "set")
    by_name = {row["predictor"]: row for row in rows}
    assert by_name["shifted"]["Pearson"] == pytest.approx(1.0)
    assert by_name["shifted"]["low"] == pytest.approx(1.0)
    assert by_name["shifted"]["over additive"] == pytest.approx(1 - by_name["additive"]["Pearson"])
    assert by_name["shifted"]["over low"] > 0
    assert by_name["constant"]["Pearson"] is None
    expected = [
        np.corrcoef(noise[at], truth[at])[0, 1] for at in map(folds.tested_in.__eq__, range(5))
    ]
    assert by_name["additive"]["Pearson"] == pytest.approx(np.mean(expected))
    assert by_name["additive"]["spread"] == pytest.approx(np.std(expected, ddof=1))
    assert by_name["additive"]["low"] < np.mean(expected) < by_name["additive"]["high"]


def test_effects_planted_in_query_pairs_are_found_in_folds_of_sets_only(tmp_path: Path, refused):
    cell, screen = screen_of_query_pairs()
    rng = np.random.default_rng(2)
    pairs = [
        [int(a), int(b)] for a, b in {tuple(sorted(rng.choice(40, 2, False))) for _ in range(90)}
    ]
    cell.save(tmp_path / "cell")
    screen.save(tmp_path / "screens" / "triples")
    screen_of(cell, pairs, rng.normal(size=len(pairs)).tolist()).save(
        tmp_path / "screens" / "pairs"
    )
    options = {"folder": tmp_path, "screen": "triples", "pairs": "pairs"}
    chosen = ["query_pair", "additive", triples.OF_PAIRS]
    result = triples.run(tmp_path / "runs", **options, only=chosen)
    assert [row["predictor"] for row in result["rows"]] == 2 * chosen
    by_set, by_pair = result["rows"][:3], result["rows"][3:]
    assert by_set[0]["Pearson"] > 0.9
    assert by_pair[0]["Pearson"] is None
    # The pairs do not know of the folds, and each set has one prediction in all of them.
    assert abs(by_set[2]["Pearson"]) < 0.5
    assert triples.run(tmp_path / "runs", **options, only=chosen)["rows"] == result["rows"]
    refused("unknown-name", triples.run, tmp_path / "x", **options, only=["additve"])
    refused(
        "no-triples", triples.run, tmp_path / "x", **{**options, "screen": "pairs"}, only=chosen
    )
