"""Keys of gene sets."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltacell.screen.genotypes import comparable_keys, repeats_a_gene, set_keys

LAW = settings(max_examples=80, deadline=None)


def ragged(sets):
    return np.array([g for s in sets for g in s], dtype=np.int64), np.cumsum(
        [0, *(len(s) for s in sets)]
    )


sets = st.lists(st.lists(st.integers(0, 3), max_size=4, unique=True), min_size=1, max_size=15)


@LAW
# With so many genes a set of four no longer fits one integer.
@pytest.mark.parametrize("n_genes", [4, 10**6])
@given(some=sets, others=sets)
def test_keys_are_equal_exactly_when_the_sets_are(n_genes, some, others):
    some = [[g * (n_genes // 4) + n_genes // 4 - 1 for g in s] for s in some]
    others = [[g * (n_genes // 4) + n_genes // 4 - 1 for g in s] for s in others]
    keys = set_keys(*ragged(some), n_genes)
    assert (keys[:, None] == keys).tolist() == [[set(a) == set(b) for b in some] for a in some]
    mine, theirs = comparable_keys(n_genes, ragged(some), ragged(others))
    assert np.isin(mine, theirs).tolist() == [any(set(a) == set(b) for b in others) for a in some]


@LAW
@given(st.lists(st.lists(st.integers(-2, 3), max_size=5), min_size=1))
def test_repeats_are_of_genes_and_not_of_what_is_unknown(rows):
    known = [[g for g in row if g >= 0] for row in rows]
    assert repeats_a_gene(*ragged(rows)).tolist() == [len(set(k)) < len(k) for k in known]
