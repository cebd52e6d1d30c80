"""Laws of a screen on disk: saving, then loading, is the identity."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from deltacell.cell import Genes
from deltacell.counts import Counts, Source
from deltacell.screen import Coverage, Genotypes, Screen, StudyCoverage
from deltacell.screen.columns import GENE_SCHEMA, PERTURBATIONS, ROW_SCHEMA

N = 6
LAW = settings(max_examples=50, deadline=None)
gene_lists = st.lists(st.integers(0, N - 1), min_size=1, max_size=4, unique=True)
names = st.text("aεΔ,\n\t'\" ", max_size=4)


@st.composite
def coverages(draw):
    def study():
        sets = draw(st.lists(gene_lists, max_size=4))
        return StudyCoverage(
            draw(names),
            np.array([g for s in sets for g in s], dtype=np.int64),
            np.cumsum([0, *(len(s) for s in sets)]),
            np.array(draw(st.lists(st.integers(0, N - 1), unique=True)), dtype=np.int64),
            draw(st.booleans()),
        )

    return Coverage(tuple(study() for _ in range(draw(st.integers(0, 3)))))


@st.composite
def screens(draw):
    sets = draw(st.lists(gene_lists, min_size=1, max_size=8))
    n, total = len(sets), sum(map(len, sets))

    def column(values, length=n):
        return draw(st.lists(values, min_size=length, max_size=length))

    number = st.floats(width=32, allow_nan=False, allow_infinity=False) | st.just(float("nan"))
    source = Source("f", "0" * 64, "r", Counts(n + 2, n, {"why": 2}), "s", {"note": 1})
    return Screen.build(
        Genes(
            [f"g{i}" for i in range(N)],
            draw(st.lists(st.none() | st.text("xyz", min_size=1), min_size=N, max_size=N)),
        ),
        Genotypes.of(sets),
        coverage=draw(coverages()),
        sources=[source] * draw(st.integers(0, 2)),
        score=np.array(column(number), dtype=np.float32),
        sign=column(st.sampled_from([-1, 0, 1])),
        p_value=column(st.floats(0, 1)),
        phenotype=column(st.sampled_from(["interaction", "fitness"])),
        study=column(names),
        role=column(st.sampled_from(["query", "array", "unknown"]), total),
        perturbation=column(st.sampled_from(PERTURBATIONS), total),
        allele=column(names, total),
    )


@LAW
@given(screens())
def test_save_then_load_is_identity(screen):
    with tempfile.TemporaryDirectory() as folder:
        screen.save(Path(folder) / "screen")
        loaded = Screen.load(Path(folder) / "screen")
        assert loaded.equals(screen)
        assert loaded.genes == screen.genes
        for name in ROW_SCHEMA.names:
            np.testing.assert_array_equal(loaded.column(name), screen.column(name))
        for name in GENE_SCHEMA.names:
            np.testing.assert_array_equal(loaded.gene_column(name), screen.gene_column(name))
        assert loaded.sources == screen.sources
        assert loaded._with().checksum == screen.checksum
        for mine, theirs in zip(loaded.coverage.studies, screen.coverage.studies, strict=True):
            assert (mine.study, mine.complete) == (theirs.study, theirs.complete)
            np.testing.assert_array_equal(mine.query_genes, theirs.query_genes)
            np.testing.assert_array_equal(mine.query_offsets, theirs.query_offsets)
            np.testing.assert_array_equal(mine.array_genes, theirs.array_genes)


@LAW
@given(screens(), st.data())
def test_how_a_screen_was_put_together_does_not_change_its_checksum(screen, data):
    cut = data.draw(st.integers(0, len(screen)))
    parts = [screen.take(rows) for rows in (range(cut), range(cut, len(screen))) if len(rows)]
    assert Screen.concat(parts)._with(coverage=screen.coverage).equals(screen)
    assert all(Screen.concat([part]).equals(part) for part in parts)


@LAW
@given(screens())
def test_another_sign_is_another_checksum(screen):
    changed = screen.column("sign").copy()
    changed[0] = (changed[0] + 2) % 3 - 1
    at = screen.rows.column_names.index("sign")
    other = screen._with(
        rows=screen.rows.set_column(at, screen.rows.schema.field("sign"), [changed])
    )
    assert not other.equals(screen)
