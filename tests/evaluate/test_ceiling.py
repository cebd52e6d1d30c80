"""The replicate ceiling against screens whose noise is known."""

from __future__ import annotations

import numpy as np
import pytest

from deltacell.cell import Genes
from deltacell.evaluate import Bootstrap, replicate_ceiling
from deltacell.screen import Genotypes, Screen


def repeated(n_sets: int, noise: float, seed: int = 0) -> tuple[Screen, np.ndarray]:
    """Every pair of 40 genes once, twice or three times, the truth of deviation 1."""
    rng = np.random.default_rng(seed)
    sets = [(i, j) for i in range(40) for j in range(i + 1, 40)][:n_sets]
    row = np.sort(np.concatenate([np.arange(n_sets), rng.integers(0, n_sets, n_sets)]))
    truth = rng.normal(size=n_sets)[row]
    score = truth + noise * rng.normal(size=len(row))
    genes = Genes([f"g{i}" for i in range(40)])
    return Screen.build(genes, Genotypes.of([sets[r] for r in row]), score=score), truth


@pytest.mark.parametrize("noise", [0.3, 1.0])
def test_it_is_what_the_truth_itself_reaches(noise):
    screen, truth = repeated(780, noise)
    ceiling = replicate_ceiling(screen, np.arange(len(screen)), bootstrap=Bootstrap(200))
    reached = np.corrcoef(truth, screen.column("score"))[0, 1]
    assert ceiling.pearson.value == pytest.approx(reached, abs=0.03)
    assert ceiling.pearson.value == pytest.approx(1 / np.sqrt(1 + noise**2), abs=0.03)
    assert ceiling.pearson.low < 1 / np.sqrt(1 + noise**2) < ceiling.pearson.high
    assert "sqrt(1 - noise / variance)" in ceiling.sentence
    assert ceiling.repeated_sets > 300


def test_merged_rows_have_less_noise_and_need_the_screen_before():
    screen, truth = repeated(780, 1.0)
    merged = screen.merge("mean")
    rows = np.arange(len(merged))
    alone = replicate_ceiling(merged, rows)
    assert alone.pearson.value is None
    assert "0 gene sets were measured more than once" in alone.pearson.reason
    assert "no replicate ceiling" in alone.sentence
    with_repeats = replicate_ceiling(merged, rows, repeats=screen, bootstrap=Bootstrap(100))
    first = np.unique(screen.keys, return_index=True)[1]
    reached = np.corrcoef(truth[np.sort(first)], merged.column("score"))[0, 1]
    assert with_repeats.pearson.value == pytest.approx(reached, abs=0.03)


def test_one_repeated_set_is_too_few():
    genes = Genes(["a", "b", "c"])
    screen = Screen.build(genes, Genotypes.of([(0, 1), (0, 1), (1, 2)]), score=[1.0, 2.0, 3.0])
    why = "1 gene set was measured more than once, and at least 3 are needed"
    assert replicate_ceiling(screen, np.arange(3)).pearson.reason == why


def test_noise_without_signal_has_no_ceiling():
    screen, _ = repeated(780, 1.0)
    same = np.flatnonzero(np.abs(screen.column("score")) < 0.5)
    ceiling = replicate_ceiling(screen, same)
    assert ceiling.pearson.value is None
    assert "differ as much as the test rows" in ceiling.pearson.reason


def test_hits_say_that_it_is_too_high():
    screen, _ = repeated(100, 0.5)
    rows = np.arange(len(screen))
    few = Bootstrap(20)
    assert "too high" in replicate_ceiling(screen, rows, only_hits=True, bootstrap=few).sentence
    assert "too high" not in replicate_ceiling(screen, rows, bootstrap=few).sentence
