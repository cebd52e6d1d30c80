"""The benchmark of context: its parts share nothing, and it refuses a study that leaks."""

from dataclasses import replace

import numpy as np
import pytest

from deltacell.base.errors import InputError
from deltacell.bench.context import (
    OWN,
    SHUFFLED,
    TESTS,
    WITH,
    Sizes,
    checked,
    compare,
    draw_parts,
    planted_problem,
    rows_of_tests,
)
from deltacell.models.interface import Study


@pytest.fixture(scope="module")
def problem():
    return planted_problem()


@pytest.mark.parametrize("seed", range(3))
def test_no_pair_is_in_two_parts_and_no_unseen_gene_in_training(problem, seed):
    parts = draw_parts(problem.target, problem.sizes, seed)
    every = np.concatenate([parts.training, parts.validation, parts.seen, parts.unseen])
    keys = problem.target.keys[every]
    assert len(np.unique(keys)) == len(every) == 150 + 40 + 150 + 150
    pairs = problem.target.genotypes.genes.numpy().reshape(-1, 2)
    learned = np.unique(pairs[np.concatenate([parts.training, parts.validation])])
    known_genes = np.unique(pairs[parts.seen])
    held_out = np.setdiff1d(np.unique(pairs[parts.unseen]), np.union1d(learned, known_genes))
    assert np.isin(pairs[parts.unseen], held_out).any(axis=1).all()
    assert not np.isin(pairs[parts.seen], held_out).any()
    again = draw_parts(problem.target, problem.sizes, seed)
    assert np.array_equal(again.training, parts.training)
    assert not np.array_equal(draw_parts(problem.target, problem.sizes, 9).seen, parts.seen)


def test_new_pairs_are_those_that_the_study_did_not_measure(problem):
    parts = draw_parts(problem.target, problem.sizes, 0)
    is_new = np.arange(len(problem.target)) % 2 == 0
    rows = rows_of_tests(parts, is_new)
    assert set(rows) == set(TESTS)
    assert (rows["new_seen"] % 2 == 0).all()
    assert set(parts.seen) - set(rows["new_seen"]) == {row for row in parts.seen if row % 2}


def test_a_target_that_is_too_small_is_refused(problem):
    with pytest.raises(InputError) as error:
        draw_parts(problem.target, Sizes(), 0)
    assert error.value.code == "too-few-pairs"


def test_a_study_that_repeats_the_target_is_refused(problem):
    leaking = replace(problem, study=Study("earlier", problem.target))
    with pytest.raises(InputError) as error:
        checked(leaking)
    assert error.value.code == "repeated-study"
    assert checked(problem) is problem


@pytest.mark.slow
def test_context_helps_and_shuffled_context_does_not(problem):
    found = compare(problem, seeds=2)
    gain = {(row["predictor"], row["test"]): row for row in found["gains"]}
    for test in TESTS:
        assert gain[WITH, test]["low"] > 0
        assert gain[SHUFFLED, test]["low"] < 0 or gain[SHUFFLED, test]["value"] < 0.02
    means = {row["predictor"]: row for row in found["rows"]}
    assert found["measured"]["unseen"] == means[WITH]["unseen"] > means[OWN]["unseen"]
    [with_seen] = [
        row for row in found["intervals"] if (row["predictor"], row["test"]) == (WITH, "seen")
    ]
    assert with_seen["low"] < with_seen["value"] < with_seen["high"]
    assert np.mean(with_seen["by_seed"]) == pytest.approx(with_seen["value"])
