"""The bench for habits finds what it is for."""

import random
from itertools import islice

import pytest

from deltacell.data import import_folder as module
from deltacell_dev.bench import faults, habits


@pytest.mark.parametrize("kind", habits.KINDS)
def test_no_habit_makes_a_gene(kind, tmp_path):
    cases = islice(habits.habits(tmp_path, kind, random.Random(0)), 20)
    outcomes = [faults.outcome_of(call, expected) for call, expected in cases]
    assert {problem for _, problem in outcomes} == {""}
    assert any(outcome == "right" for outcome, _ in outcomes)


def test_a_ghost_gene_is_a_failure(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_new_genes", lambda genes, names: names)
    cases = islice(habits.habits(tmp_path, "names in a table", random.Random(0)), 20)
    assert any(faults.outcome_of(call, expected)[0] == "failures" for call, expected in cases)
