"""A study that repeats the target's own measurements is found by its equal scores."""

import numpy as np
import pytest

from deltacell.base.errors import InputError
from deltacell.cell import Genes
from deltacell.models.interface import Study
from deltacell.screen import Genotypes, Screen
from deltacell.train.context import check_not_repeated, repeated_scores

N = 40
GENES = Genes([f"G{i:02d}" for i in range(N)])
PAIRS = [[a, b] for a in range(N) for b in range(a + 1, N)]


def screen(rows, scores, genes=GENES, **columns):
    return Screen.build(genes, Genotypes.of(rows), score=scores, **columns)


@pytest.fixture
def measured():
    rng = np.random.default_rng(0)
    rows = [PAIRS[i] for i in rng.permutation(len(PAIRS))[:300]]
    return rows, rng.normal(size=300).round(4)


def test_the_same_study_twice_is_an_error_with_counts(measured):
    rows, scores = measured
    with pytest.raises(InputError) as error:
        check_not_repeated(screen(rows, scores), [Study("again", screen(rows, scores))])
    assert error.value.code == "repeated-study"
    assert error.value.fields == {"equal": 300, "common": 300}


@pytest.mark.parametrize("form", ["turned", "earlier", "renumbered", "precise"])
def test_other_forms_of_the_same_study(measured, form):
    rows, scores = measured
    rng = np.random.default_rng(1)
    other = screen([row[::-1] for row in rows], scores)
    if form == "earlier":  # a tenth of the pairs, four fifths of which were measured again since
        again = np.where(rng.random(30) < 0.8, rng.normal(size=30), scores[:30])
        other = screen(rows[:30], again)
    if form == "renumbered":
        names = [f"G{i:02d}" for i in reversed(range(N))]
        mirrored = [[N - 1 - gene for gene in row] for row in rows]
        other = screen(mirrored, scores, Genes([*names, "ELSEWHERE"]))
    if form == "precise":
        other = screen(rows, scores * (1 + 3e-5 * rng.uniform(-1, 1, 300)))
    with pytest.raises(InputError) as error:
        check_not_repeated(screen(rows, scores), [Study("other", other)])
    assert error.value.code == "repeated-study"


def test_independent_measurements_are_no_repetition(measured):
    rows, scores = measured
    rng = np.random.default_rng(2)
    noisy = screen(rows, (scores + 0.3 * rng.normal(size=300)).round(4))
    signs = screen(rows, np.sign(scores))
    # Four fifths of the signs agree, half of them by chance.
    agreeing = screen(rows, np.sign(scores) * np.where(rng.random(300) < 0.8, 1, -1))
    elsewhere = screen(rows, scores, Genes([f"H{i}" for i in range(N)]))
    apart = screen([pair for pair in PAIRS if pair not in rows][:100], scores[:100])
    check_not_repeated(screen(rows, scores), [Study("noisy", noisy), Study("elsewhere", elsewhere)])
    check_not_repeated(signs, [Study("signs", agreeing)])
    check_not_repeated(screen(rows, scores), [Study("apart", apart)])
    assert repeated_scores(screen(rows, scores), apart).n_common == 0


def test_scores_of_zero_and_missing_ones_say_nothing(measured):
    rows, _ = measured
    empty = np.where(np.arange(300) % 2, 0.0, np.nan)
    found = repeated_scores(screen(rows, empty), screen(rows, empty))
    assert (found.n_common, found.n_equal) == (0, 0)
