"""Laws of a screen: saving, then loading, is the identity; merging gives one row per set."""

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltacell.cell import Cell, Genes
from deltacell.screen import Coverage, Genotypes, Screen, StudyCoverage
from deltacell.screen.screen import GENE_SCHEMA, PERTURBATIONS, ROW_SCHEMA
from deltacell.storage.provenance import Counts, Source

N = 4
LAW = settings(max_examples=30, deadline=None)
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
        p_value=column(st.floats(0, 1) | st.just(float("nan"))),
        standard_deviation=np.abs(column(number)),
        replicates=column(st.integers(1, 5)),
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
            np.testing.assert_array_equal(loaded.column(name), screen.column(name))
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
@given(screens(), st.sampled_from(["mean", "median", "best-p"]))
def test_one_row_a_set_and_phenotype_and_its_score_within_theirs(screen, how):
    merged = screen.merge(how)
    assert merged.merge(how).equals(merged)

    def groups_of(screen):
        sets = (frozenset(genes.tolist()) for genes in screen.genotypes)
        return list(zip(sets, screen.column("phenotype"), strict=True))

    groups = groups_of(screen)
    distinct = list(dict.fromkeys(groups))
    assert groups_of(merged) == distinct
    assert merged.column("replicates").sum() == screen.column("replicates").sum()
    score, p = screen.column("score"), screen.column("p_value")
    for row, group in enumerate(distinct):
        mine = np.array([g == group for g in groups])
        known = score[mine & np.isfinite(score)]
        value = merged.column("score")[row]
        if how == "best-p":
            smallest = np.nanargmin(np.where(np.isnan(p), np.inf, p)[mine])
            np.testing.assert_array_equal(value, score[mine][smallest])
        elif not len(known):
            assert np.isnan(value)
        else:
            expected = np.mean(known, dtype=np.float64) if how == "mean" else np.median(known)
            assert value == pytest.approx(expected, rel=1e-6, abs=1e-6)
            assert known.min() <= value <= known.max()


@LAW
@given(screens(), st.permutations(range(N)))
def test_hetero_data_and_back_keeps_genotypes_and_numbers(screen, order):
    cell = Cell(screen.genes.take(order), [])
    for data in (screen.to_hetero_data(), screen.to_hetero_data(cell)):
        back = Screen.from_hetero_data(data).on(Cell(screen.genes, []))
        assert [g.tolist() for g in back.genotypes] == [g.tolist() for g in screen.genotypes]
        for name in ("score", "standard_deviation", "p_value"):
            np.testing.assert_array_equal(back.column(name), screen.column(name))
