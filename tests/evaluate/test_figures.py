"""The numbers behind figures, and that the figures are drawn."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from deltacell.cell import Cell, Relation
from deltacell.errors import InputError
from deltacell.evaluate import draw_figures
from deltacell.evaluate.diagnostics import (
    calibration,
    density,
    gene_degree,
    relation_weights,
    residual_by_degree,
)
from deltacell.evaluate.figures import (
    draw_calibration,
    draw_density,
    draw_relation_weights,
    draw_residuals,
)
from deltacell.report.figures import check_figure
from deltacell.screen import Genotypes

BEGINNINGS = {".png": b"\x89PNG", ".svg": b"<?xml"}


@pytest.fixture
def data():
    rng = np.random.default_rng(0)
    predicted = rng.normal(size=500)
    measured = 2 * predicted + rng.normal(size=500)
    cell = Cell.synthetic("demo")
    genotypes = Genotypes.of([(i % 300, (i + 7) % 300) for i in range(500)])
    weights = rng.dirichlet(np.ones(2), 300)
    return [
        (draw_density, density(predicted, measured)),
        (draw_density, density(np.zeros(500), measured)),
        (draw_calibration, calibration(predicted, measured)),
        (draw_calibration, calibration(np.zeros(500), measured)),
        (draw_residuals, residual_by_degree(cell, genotypes, predicted, measured)),
        (draw_relation_weights, relation_weights(["$a_", "b"], weights)),
        (draw_relation_weights, relation_weights(["a"], [1.0])),
    ]


def test_figures_are_drawn(tmp_path: Path, data):
    for i, (draw, what) in enumerate(data):
        suffix = list(BEGINNINGS)[i % 2]
        path = tmp_path / "new" / f"{i}{suffix}"
        draw(what, path, "a $title_ of ours")
        assert path.read_bytes().startswith(BEGINNINGS[suffix])


def test_the_same_figure_is_the_same_file(tmp_path: Path, data):
    draw, what = data[2]
    for name in ("a.svg", "b.svg"):
        draw(what, tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_figures_that_cannot_be(tmp_path: Path, data):
    draw, what = data[0]
    with pytest.raises(InputError, match=r"ends in '\.pdf'"):
        check_figure(tmp_path / "a.pdf")
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        draw(what, tmp_path / "file" / "a.png")


def test_all_figures_go_into_one_folder(tmp_path: Path, cell, screen, split):
    zeros = np.zeros(len(split.test))
    weights = {"dango": relation_weights(["a"], [1.0])}
    given = {"../a b": zeros, "dango": zeros}
    drawn = draw_figures(cell, screen, split, given, tmp_path / "f", weights=weights, suffix=".svg")
    assert {path.name for path in drawn} == {
        *(f"_a_b-{what}.svg" for what in ("predicted", "calibration", "residual")),
        *(f"dango-{what}.svg" for what in ("predicted", "calibration", "residual", "relations")),
    }
    assert set((tmp_path / "f").iterdir()) == set(drawn)
    with pytest.raises(InputError, match="a_b-predicted"):
        draw_figures(cell, screen, split, {"a b": zeros, "a_b": zeros}, tmp_path)
    with pytest.raises(InputError, match="written as"):
        draw_figures(cell, screen, split, given, tmp_path, suffix=".gif")


def test_density_counts_every_row_once():
    rng = np.random.default_rng(0)
    predicted, measured = rng.normal(size=(2, 5_000))
    measured[:10] = np.nan
    found = density(predicted, measured, bins=20)
    assert found.counts.shape == (20, 20)
    assert found.counts.sum() + found.outside == 4_990
    assert 0 < found.outside < 25
    assert found.pearson == pytest.approx(np.corrcoef(predicted[10:], measured[10:])[0, 1])
    # Along the first axis are the predictions.
    low = density([0.0] * 99 + [1.0], np.linspace(0, 1, 100), bins=2, cut=0)
    assert low.counts[0].sum() == 99


def test_calibration_is_the_means_of_bins():
    predicted = np.repeat([0.0, 1.0, 2.0], 4)
    measured = np.array([0, 2, 0, 2, 1, 1, 1, 1, 5, 5, 5, 5], dtype=float)
    found = calibration(predicted, measured, bins=3)
    np.testing.assert_allclose(found.predicted, [0, 1, 2])
    np.testing.assert_allclose(found.measured, [1, 1, 5])
    np.testing.assert_allclose(found.error, [np.std([0, 2, 0, 2], ddof=1) / 2, 0, 0])
    np.testing.assert_array_equal(found.rows, 4)
    assert found.slope == pytest.approx(np.polyfit(predicted, measured, 1)[0])
    assert calibration(np.zeros(5), np.arange(5.0)).slope is None


@pytest.mark.parametrize(
    ("scale", "said"),
    [
        (0.0, "the predictions are all the same"),
        (1e-4, "all but the same: their deviation is\n0.01 % of that measured, so there is no"),
        (0.02, "slope 50.00"),
        (1.0, "slope 1.00"),
    ],
)
def test_a_predictor_that_hardly_varies_has_no_slope(tmp_path: Path, monkeypatch, scale, said):
    measured = np.linspace(-1, 1, 50)
    found = calibration(0.3 + scale * measured, measured)
    assert (found.slope is None) == (scale < 0.01)
    drawn = []
    monkeypatch.setattr(Figure, "savefig", lambda self, *_, **__: drawn.append(self))
    draw_calibration(found, tmp_path / "a.png", "mine")
    assert said in drawn[0].axes[0].get_title(loc="left")


def test_residuals_go_to_the_degree_of_each_gene():
    relations = [
        Relation.from_edges("u", [0, 0], [1, 2], n_genes=4, directed=False),
        Relation.from_edges("d", [0], [1], n_genes=4, directed=True),
    ]
    cell = Cell(["a", "b", "c", "d"], relations)
    np.testing.assert_array_equal(gene_degree(cell), [3, 2, 1, 0])
    genotypes = Genotypes.of([(0, 3), (0,), (3,), (1, 2)])
    measured = np.array([1.0, 3.0, -1.0, np.nan])
    found = residual_by_degree(cell, genotypes, np.zeros(4), measured, bins=2)
    np.testing.assert_allclose(found.degree, [0, 3])
    np.testing.assert_allclose(found.mean, [0, 2])
    np.testing.assert_allclose(found.rms, [1, np.sqrt(5)])
    np.testing.assert_array_equal(found.genes, [2, 2])
    with pytest.raises(InputError, match="for 4 genotypes"):
        residual_by_degree(cell, genotypes, np.zeros(3), np.zeros(3))
    with pytest.raises(InputError, match="no row"):
        residual_by_degree(cell, genotypes, np.zeros(4), np.full(4, np.nan))


def test_relation_weights_over_the_genes_that_are_deleted():
    weights = torch.tensor([[0.0, 1.0], [0.5, 0.5], [1.0, 0.0]])
    found = relation_weights(["a", "b"], weights, np.array([2, 2, 1]))
    np.testing.assert_allclose(found.mean, [2.5 / 3, 0.5 / 3])
    assert found.genes == 3
    with pytest.raises(InputError, match="for 3 relations"):
        relation_weights(["a", "b", "c"], weights)
    with pytest.raises(InputError, match="finite"):
        relation_weights(["a"], [np.nan])


@pytest.mark.parametrize(
    ("predicted", "measured", "code"),
    [
        ([1, 2], [1], "prediction-shape"),
        ([1, 2], [np.nan, np.nan], "no-scores"),
        ([1, np.nan], [1, 2], "prediction-not-finite"),
    ],
)
def test_columns_that_do_not_pair(predicted, measured, code):
    for compute in (density, calibration):
        with pytest.raises(InputError) as caught:
            compute(predicted, measured)
        assert caught.value.code == code
