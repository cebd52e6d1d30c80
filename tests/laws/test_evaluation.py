"""Laws of an evaluation: metrics, intervals, what is not additive, and the order of rows."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn.metrics import average_precision_score, roc_auc_score

from deltacell.cell import Cell
from deltacell.evaluation import METRICS, Bootstrap, Estimate, evaluate_predictions
from deltacell.evaluation.additivity import _rank, not_additive
from deltacell.evaluation.metrics import Column, Weights
from deltacell.screen import Genotypes, Screen, Split

seeds = st.integers(0, 9999)


def law(examples):
    return settings(max_examples=examples, deadline=None)


REFERENCE = {
    "pearson": lambda x, y, _: stats.pearsonr(x, y).statistic,
    "spearman": lambda x, y, _: stats.spearmanr(x, y).statistic,
    "mse": lambda x, y, _: np.mean((x - y) ** 2),
    "auroc": lambda x, _, positive: roc_auc_score(positive, x),
    "aupr": lambda x, _, positive: average_precision_score(positive, x),
}


def value(name, prediction, truth):
    return METRICS[name].measure(Column(prediction), Column(truth))[0]


@st.composite
def cases(draw):
    """Predictions with ties, truth with ties, classes of both kinds, and counts of the rows."""
    seed = draw(st.integers(0, 10_000))
    n = draw(st.integers(4, 60))
    rng = np.random.default_rng(seed)
    decimals = draw(st.sampled_from([0, 1, 8]))
    truth = np.round(rng.normal(size=n), decimals)
    prediction = np.round(draw(st.sampled_from([-1, 0, 1])) * truth + rng.normal(size=n), decimals)
    positive = (rng.random(n) < 0.4).astype(float)
    counts = rng.integers(0, 4, n).astype(float)
    # Two rows that differ in all, and are always drawn, keep every metric defined.
    truth[:2], prediction[:2], positive[:2], counts[:2] = (5, -5), (4, -4), (1, 0), 1
    return (prediction, truth, positive), counts


@pytest.mark.parametrize("name", METRICS)
@given(case=cases(), seed=seeds)
@law(40)
def test_equal_to_the_libraries_with_rows_written_out_in_any_order(name, case, seed):
    columns, counts = case
    metric, often = METRICS[name], counts.astype(int)
    prediction, truth = columns[0], columns[1 if metric.of == "score" else 2]
    expected = REFERENCE[name](*columns)
    order = np.random.default_rng(seed).permutation(len(truth))
    for rows in (slice(None), order):
        assert value(name, prediction[rows], truth[rows]) == pytest.approx(expected, abs=1e-10)
    weights = Weights(np.stack([counts, np.ones_like(counts)]))
    values = metric.function(Column(prediction), Column(truth), weights)
    written = REFERENCE[name](*(np.repeat(column, often) for column in columns))
    np.testing.assert_allclose(values, [written, expected], atol=1e-10)


def drawn(bootstrap, name, prediction, truth, keys):
    columns = Column(prediction), Column(truth)
    blocks = bootstrap.weights(keys.reshape(len(keys), -1))
    return np.concatenate([METRICS[name].function(*columns, Weights(block)) for block in blocks])


def interval(bootstrap, *arguments):
    found = bootstrap.with_interval(Estimate(0.0), drawn(bootstrap, *arguments))
    return np.array([found.low, found.high])


def with_gene_effects(rng, n_genes=60, n=500):
    """Predictions and scores of pairs whose parts of each gene correlate, and the true Pearson."""
    pairs = rng.permutation(np.stack(np.triu_indices(n_genes, 1), axis=1))[:n]
    u, v = rng.normal(size=(2, n_genes))
    v = 0.5 * u + np.sqrt(0.75) * v
    x, y = (of[pairs].sum(axis=1) + 0.5 * rng.normal(size=n) for of in (u, v))
    return x, y, pairs, 0.5 * 2 / (2 + 0.25)


def test_with_gene_effects_resampled_genes_cover_the_truth_and_resampled_pairs_do_not():
    # Of 200 intervals at 95 %, binomial noise leaves 92 to 98 % within two deviations.
    covered = {"genes": 0, "pairs": 0}
    for trial in range(200):
        x, y, pairs, truth = with_gene_effects(np.random.default_rng(trial))
        for name, units in (("genes", pairs), ("pairs", np.arange(len(x)))):
            low, high = interval(Bootstrap(300, seed=trial), "pearson", x, y, units)
            covered[name] += low <= truth <= high
    assert covered["genes"] / 200 >= 0.91
    assert covered["pairs"] / 200 <= 0.65


def test_without_gene_effects_resampled_genes_are_conservative_by_what_is_documented():
    ratios = []
    for trial in range(20):
        rng = np.random.default_rng(trial)
        _, _, pairs, _ = with_gene_effects(rng, n_genes=200, n=3000)
        x, y = rng.normal(size=(2, len(pairs)))
        genes, rows = (
            np.ptp(interval(Bootstrap(200, seed=trial), "pearson", x, y, units))
            for units in (pairs, np.arange(len(x)))
        )
        ratios.append(genes / rows)
    assert 1.2 < np.mean(ratios) < np.sqrt(3) + 0.1


@given(
    sets=st.lists(
        st.lists(st.integers(0, 9), min_size=1, max_size=3, unique=True),
        min_size=1,
        max_size=15,
    ),
    seed=seeds,
)
@law(50)
def test_a_set_counts_as_the_product_of_its_genes(sets, seed):
    padded = np.array([[-1] * (3 - len(s)) + sorted(s) for s in sets])
    genes = np.unique(padded[padded >= 0])
    bootstrap = Bootstrap(25, seed=seed)
    # The same genes as sets of one gene show how often each was drawn.
    (times,) = bootstrap.weights(genes[:, None])
    np.testing.assert_array_equal(times.sum(axis=1), len(genes))
    (weights,) = bootstrap.weights(padded)
    column = {int(gene): i for i, gene in enumerate(genes)}
    for row, genes_of_row in enumerate(sets):
        product = np.prod([times[:, column[g]] for g in genes_of_row], axis=0)
        np.testing.assert_array_equal(weights[:, row], product)


@given(seed=seeds)
@law(30)
def test_resamples_depend_neither_on_the_order_of_rows_nor_on_blocks(seed):
    rng = np.random.default_rng(seed)
    keys, order, bootstrap = rng.integers(0, 12, 30), rng.permutation(30), Bootstrap(20, seed=seed)
    (weights,) = bootstrap.weights(keys[:, None])
    (shuffled,) = bootstrap.weights(keys[order, None])
    np.testing.assert_array_equal(weights[:, order], shuffled)
    # As many different keys are drawn as there are.
    different, first = np.unique(keys, return_index=True)
    np.testing.assert_array_equal(weights[:, first].sum(axis=1), len(different))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("deltacell.evaluation.bootstrap._NUMBERS_PER_BLOCK", 100)
        blocks = list(bootstrap.weights(keys[:, None]))
    assert len(blocks) == 7
    np.testing.assert_array_equal(np.concatenate(blocks), weights)


def test_shuffled_labels_leave_intervals_that_hold_chance():
    missed = dict.fromkeys(METRICS, 0)
    for trial in range(60):
        rng = np.random.default_rng(trial)
        truth = rng.normal(size=200)
        prediction = rng.permutation(truth)
        positive = (truth < -0.5).astype(float)
        bootstrap = Bootstrap(300, seed=trial)
        for name, chance in (("pearson", 0.0), ("spearman", 0.0), ("auroc", 0.5)):
            column = positive if name == "auroc" else truth
            low, high = interval(bootstrap, name, prediction, column, truth)
            missed[name] += not low <= chance <= high
    assert all(missed[name] <= 9 for name in missed), missed


@pytest.mark.parametrize("share", [0.5, 0.96])
def test_an_interval_needs_resamples_that_define_it(share):
    values = np.linspace(0, 1, 100)
    values[int(100 * share) :] = np.nan
    found = Bootstrap().with_interval(Estimate(0.5), values)
    assert (found.low is None) == (found.reason is not None) == (share < 0.95)


N_GENES = 60


def sets_of(rng, n, sizes=(2,)):
    """Draw n different sets, padded in front with -1."""
    genes = rng.random((3 * n, N_GENES)).argsort(axis=1)[:, : max(sizes)]
    genes[np.arange(max(sizes)) >= rng.choice(sizes, len(genes))[:, None]] = -1
    rows = np.unique(np.sort(genes, axis=1), axis=0)
    return rng.permutation(rows)[:n]


def sums(genes, effects):
    return np.where(genes >= 0, effects[genes], 0).sum(axis=1)


@given(seed=seeds, sizes=st.sampled_from([(2,), (3,), (1, 2, 3)]))
@law(30)
def test_a_sum_of_gene_effects_reads_0(seed, sizes):
    rng = np.random.default_rng(seed)
    genes = sets_of(rng, 300, sizes)
    share, reason = not_additive(genes, 5 + sums(genes, rng.normal(size=N_GENES)))
    assert reason is None
    assert share == pytest.approx(0, abs=1e-8)
    # In the float32 that models compute in, too.
    single = (5 + sums(genes, rng.normal(size=N_GENES))).astype(np.float32)
    assert not_additive(genes, single)[0] < 1e-8


@pytest.mark.parametrize("sizes", [(2,), (3,), (2, 3)])
@pytest.mark.parametrize("n", [120, 400])
def test_noise_reads_1_on_average_however_many_genes_there_are(sizes, n):
    shares = []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        shares.append(not_additive(sets_of(rng, n, sizes), rng.normal(size=n))[0])
    error = np.std(shares) / np.sqrt(len(shares))
    assert abs(np.mean(shares) - 1) < 4 * error
    # Without its correction it would read this much, and a test of it would notice.
    assert 1 - N_GENES / n < 1 - 8 * error


def test_a_mixture_reads_its_share():
    shares = []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        genes = sets_of(rng, 500)
        values = sums(genes, rng.normal(size=N_GENES)) + np.sqrt(2) * rng.normal(size=500)
        shares.append(not_additive(genes, values)[0])
    assert np.mean(shares) == pytest.approx(0.5, abs=0.03)


@given(seed=seeds)
@law(20)
def test_scale_order_and_repeats_do_not_matter(seed):
    rng = np.random.default_rng(seed)
    genes = sets_of(rng, 200)
    values = sums(genes, rng.normal(size=N_GENES)) + rng.normal(size=200)
    share = not_additive(genes, values)[0]
    order = rng.permutation(200)
    again = np.concatenate([order, order[:50]])
    turned = genes[again][:, ::-1]
    assert not_additive(turned, 3 - 7 * values[again])[0] == pytest.approx(share, rel=1e-6)


@given(seed=seeds, n=st.integers(1, 60))
@law(50)
def test_the_rank_for_pairs_is_that_of_the_dense_indicators(seed, n):
    genes = sets_of(np.random.default_rng(seed), n)
    present, column = np.unique(genes, return_inverse=True)
    column = column.reshape(genes.shape)
    dense = np.zeros((n, len(present)))
    dense[np.arange(n)[:, None], column] = 1
    assert _rank(column.ravel(), np.full(n, 2), len(present)) == np.linalg.matrix_rank(dense)


def test_too_few_sets_and_constants_are_said_to_be():
    rng = np.random.default_rng(0)
    few = sets_of(rng, 30)
    share, reason = not_additive(few, rng.normal(size=30))
    assert share is None
    assert "too few" in reason
    assert not_additive(sets_of(rng, 200), np.full(200, 0.3))[0] is None


CELL = Cell([f"g{i}" for i in range(20)], [])
SETS = [(i, j) for i in range(20) for j in range(i + 1, 20)]
FEW = Bootstrap(40)


def made(seed, n, often):
    """``n`` pairs, each written ``often`` times, all of them test rows but the first ten."""
    rng = np.random.default_rng(seed)
    chosen = rng.permutation(len(SETS))[:n]
    score = np.repeat(rng.normal(scale=0.2, size=n), often)
    sets = Genotypes.of([SETS[i] for i in np.repeat(chosen, often)])
    screen = Screen.build(CELL.genes, sets, score=score, study="s", p_value=0.01)
    rows, held = np.arange(len(screen)), 10 * often
    parts, unseen = (rows[:held], rows[:0], rows[held:]), np.repeat(np.arange(n - 10) % 2, often)
    split = Split(*parts, "random", 0, screen.checksum, unseen=unseen)
    noise = np.repeat(rng.normal(size=(2, n)), often, axis=1)
    given = {"additive": score + noise[0], "model": score + 0.3 * noise[1]}
    return screen, split, {name: values[held:] for name, values in given.items()}


def numbers(evaluation):
    return np.array(
        [
            [np.nan if x is None else x for x in (e.value, e.low, e.high)]
            for group in evaluation.groups
            for of_name in (*group.scores.values(), *group.differences["model"].values())
            for e in of_name.values()
        ],
    )


@given(seed=seeds)
@law(10)
def test_the_order_of_the_test_rows_does_not_matter(seed):
    screen, split, predictions = made(seed, 60, 2)
    order = np.random.default_rng(seed).permutation(len(split.test))
    at = np.concatenate([split.train, split.test[order]])
    shuffled = screen.take(at)
    same = replace(split, screen_checksum=shuffled.checksum, unseen=split.unseen[order])
    first = evaluate_predictions(CELL, screen, split, predictions, bootstrap=FEW)
    turned = {name: values[order] for name, values in predictions.items()}
    second = evaluate_predictions(CELL, shuffled, same, turned, bootstrap=FEW)
    np.testing.assert_allclose(numbers(first), numbers(second), atol=1e-9)


@given(seed=seeds, often=st.integers(2, 5))
@law(10)
def test_rows_written_again_are_no_further_evidence(seed, often):
    # For metrics that are means over rows, each value and interval stays what it was.
    results = [
        evaluate_predictions(CELL, *made(seed, 60, times), bootstrap=FEW).groups
        for times in (1, often)
    ]
    for once, again in zip(*results, strict=True):
        assert again.rows == often * once.rows
        assert again.gene_sets == once.gene_sets
        for metric in set(METRICS) - {"spearman"}:
            a, b = (group.differences["model"]["additive"][metric] for group in (once, again))
            assert (a.value, a.low, a.high) == pytest.approx((b.value, b.low, b.high), abs=1e-9)
