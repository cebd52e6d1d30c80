"""The replicate ceiling, the numbers behind figures, and that the figures are drawn."""

from __future__ import annotations

import numpy as np
import pytest

from deltacell.cell import Cell, Genes, Relation
from deltacell.evaluate import draw_figures, replicate_ceiling
from deltacell.evaluate.figures import calibration, draw_relation_weights, residual_by_degree
from deltacell.screen import Genotypes, Screen


def repeated(n_sets, noise):
    """Every pair of 40 genes once, twice or three times, the truth of deviation 1."""
    rng = np.random.default_rng(0)
    sets = [(i, j) for i in range(40) for j in range(i + 1, 40)][:n_sets]
    row = np.sort(np.concatenate([np.arange(n_sets), rng.integers(0, n_sets, n_sets)]))
    truth = rng.normal(size=n_sets)[row]
    score = truth + noise * rng.normal(size=len(row))
    genes = Genes([f"g{i}" for i in range(40)])
    return Screen.build(genes, Genotypes.of([sets[r] for r in row]), score=score), truth


@pytest.mark.parametrize("noise", [0.3, 1.0])
def test_the_ceiling_is_what_the_truth_itself_reaches(noise):
    screen, truth = repeated(780, noise)
    ceiling = replicate_ceiling(screen, np.arange(len(screen)))
    reached = np.corrcoef(truth, screen.column("score"))[0, 1]
    assert ceiling.pearson == pytest.approx(reached, abs=0.03)
    assert ceiling.pearson == pytest.approx(1 / np.sqrt(1 + noise**2), abs=0.03)
    assert ceiling.repeated_sets > 300
    # Merged rows have less noise and need the screen before.
    merged = screen.merge("mean")
    rows, first = np.arange(len(merged)), np.unique(screen.keys, return_index=True)[1]
    reached = np.corrcoef(truth[np.sort(first)], merged.column("score"))[0, 1]
    assert replicate_ceiling(merged, rows, screen).pearson == pytest.approx(reached, abs=0.03)
    alone = replicate_ceiling(merged, rows)
    assert (alone.pearson, alone.repeated_sets) == (None, 0)


def test_without_repeats_or_signal_there_is_no_ceiling():
    screen, _ = repeated(780, 1.0)
    same = replicate_ceiling(screen, np.flatnonzero(np.abs(screen.column("score")) < 0.5))
    assert same.noise > same.variance
    few = Screen.build(Genes(["a", "b"]), Genotypes.of([(0, 1), (0, 1)]), score=[1.0, 2.0])
    assert same.pearson is replicate_ceiling(few, np.arange(2)).pearson is None


def test_all_figures_go_into_one_folder_and_are_the_same_again(
    tmp_path, cell, screen, split, refused
):
    rng = np.random.default_rng(0)
    zeros = np.zeros(len(split.test))
    given = {"../a $b_": zeros, "dango": rng.normal(size=len(zeros))}
    weights = ["$a_", "b"], rng.dirichlet(np.ones(2), 300)
    folders = tmp_path / "new" / "f", tmp_path / "g"
    drawn, again = (
        draw_figures(cell, screen, split, given, folder, weights={"dango": weights})
        for folder in folders
    )
    kinds = ("predicted", "calibration", "residual")
    assert {path.name for path in drawn} == {
        *(f"{name}-{what}.png" for name in ("_a_b_", "dango") for what in kinds),
        "dango-relations.png",
    }
    assert set(folders[0].iterdir()) == set(drawn)
    for one, other in zip(drawn, again, strict=True):
        assert one.read_bytes().startswith(b"\x89PNG")
        assert one.read_bytes() == other.read_bytes()
    vector = [tmp_path / name for name in ("a.svg", "b.svg")]
    for path in vector:
        draw_relation_weights(*weights, path, "weights")
    assert vector[0].read_bytes() == vector[1].read_bytes()
    (tmp_path / "file").write_text("")
    for code, folder in (("same-name", tmp_path), ("unwritable", tmp_path / "file" / "f")):
        same = {"a b": zeros, "a_b": zeros}
        assert refused(draw_figures, cell, screen, split, same, folder) == code


def test_calibration_is_the_means_of_bins():
    predicted = np.repeat([0.0, 1.0, 2.0], 4)
    measured = np.array([0, 2, 0, 2, 1, 1, 1, 1, 5, 5, 5, 5], dtype=float)
    means, said = calibration(predicted, measured, bins=3)
    np.testing.assert_allclose(means[:2], [[0, 1, 2], [1, 1, 5]])
    np.testing.assert_allclose(means[2], [np.std([0, 2, 0, 2], ddof=1) / 2, 0, 0])
    assert said == f"slope {np.polyfit(predicted, measured, 1)[0]:.2f}"


@pytest.mark.parametrize(
    ("scale", "said"),
    [(0.0, "no slope"), (1e-4, "0.01% of that measured"), (0.02, "50.00"), (1.0, "slope 1.00")],
)
def test_a_predictor_that_hardly_varies_has_no_slope(scale, said):
    measured = np.linspace(-1, 1, 50)
    assert said in calibration(0.3 + scale * measured, measured)[1]


def test_residuals_go_to_the_degree_of_each_gene():
    relations = [
        Relation.from_edges("u", [0, 0], [1, 2], n_genes=4, directed=False),
        Relation.from_edges("d", [0], [1], n_genes=4, directed=True),
    ]
    cell, genotypes = Cell(["a", "b", "c", "d"], relations), Genotypes.of([(0, 3), (0,), (3,)])
    degree, low, mean, high, rms = residual_by_degree(
        cell, genotypes, np.array([1.0, 3.0, -1.0]), bins=2
    )
    np.testing.assert_allclose(degree, [0, 3])
    np.testing.assert_allclose([low, mean, high], [[-0.5, 1.5], [0, 2], [0.5, 2.5]])
    np.testing.assert_allclose(rms, [1, np.sqrt(5)])
