"""An explanation adds up, agrees with the runs it is of, and with what was measured."""

import json
from dataclasses import replace
from itertools import permutations
from types import SimpleNamespace

import golden
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltacell.cell import Cell, Relation
from deltacell.models.baselines import Additive, GlobalMean
from deltacell.models.baselines.config import GlobalMeanConfig
from deltacell.models.fitted.predictor import Parts
from deltacell.models.interface import Vote
from deltacell.ranking.ensemble import on_one_scale, scorer_of
from deltacell.ranking.gene_names import gene_facts, gene_texts
from deltacell.ranking.gene_sets import Scored
from deltacell.ranking.measured import AgainstMeasured, Agreement, against_measured, nearest_sets
from deltacell.ranking.request_on_runs import trained_genes, trained_sizes
from deltacell.ranking.why import NEAREST, OTHER_GENES, explain_set
from deltacell.report.predict import explained_page, print_explained_set
from deltacell.screen import Genotypes, Screen
from deltacell.train.loaded_runs import load_runs


@pytest.fixture(scope="module")
def loaded(runs):
    names = ("seed0", "other_split", "additive", "trees", "hetero")
    return dict(zip(names, load_runs([runs[name] for name in names]), strict=True))


def genes_of(run, row):
    offsets = run.data.screen.offsets
    return run.data.screen.genotypes.genes[offsets[row] : offsets[row + 1]].tolist()


def unmeasured(run, row):
    """Return a set of the same size that was not measured, near a measured one."""
    measured = {frozenset(genes_of(run, r)) for r in range(len(run.data.screen))}
    genes = genes_of(run, row)
    made = ([*genes[:-1], other] for other in range(run.data.cell.n_genes))
    return next(m for m in made if len(set(m)) == len(genes) and frozenset(m) not in measured)


def total(result, of):
    rows = result["relations" if of == "relations" else "gene_contributions"]
    others = result["other_genes"]["contribution"] if of == "genes" else 0.0
    contributed = sum(row["contribution"] for row in rows) + others
    return result[f"{of}_baseline"] + contributed + result[f"{of}_residual"]


@pytest.mark.parametrize(
    ("name", "tolerance", "floor"),
    # Other vector instructions changed numbers of HeteroCell by up to 2e-7.
    [
        ("additive", 1e-5, 1e-12),
        ("trees", 1e-5, 1e-12),
        ("seed0", 1e-3, 1e-8),
        ("hetero", 1e-3, 2e-6),
    ],
)
def test_explanations_are_as_recorded(loaded, name, tolerance, floor):
    run = loaded[name]
    genes = genes_of(run, int(run.data.split.test[0]))
    golden.check(
        f"why/{name}", explain_set([run], genes).to_json(), tolerance=tolerance, floor=floor
    )


def test_an_explanation_of_several_runs_is_as_recorded(loaded):
    several = [loaded["seed0"], loaded["other_split"], loaded["trees"]]
    genes = unmeasured(several[0], 3)
    golden.check("why/several", explain_set(several, genes).to_json(), tolerance=1e-3, floor=1e-8)


@pytest.mark.parametrize("name", ["additive", "trees", "seed0", "hetero"])
def test_one_run_is_explained_by_what_it_can_tell(loaded, name, capsys):
    run = loaded[name]
    genes = genes_of(run, int(run.data.split.test[0]))
    result = explain_set([run], genes[::-1]).to_json()
    json.dumps(result, allow_nan=False)
    score = float(run.predictor(Genotypes.of([genes]))[0])
    assert result["score"] == pytest.approx(score, abs=1e-5)
    assert (result["spread"], result["part"], result["complete"]) == (None, "test", True)
    print_explained_set(result)
    assert result["genes"][0] in capsys.readouterr().out
    if name in ("additive", "trees"):
        assert result["relations"] == result["gene_contributions"] == result["votes"] == []
        return
    for of in ("relations", "genes"):
        assert total(result, of) == pytest.approx(score, abs=1e-5)
    sizes = [abs(row["contribution"]) for row in result["relations"]]
    assert sizes == sorted(sizes, reverse=True)
    assert {row["relation"] for row in result["relations"]} == set(run.predictor.model.relations)
    deleted = [row["gene"] for row in result["gene_contributions"] if row["deleted"]]
    assert set(deleted) == set(result["genes"])
    shown = len(result["gene_contributions"])
    assert shown <= len(genes) + OTHER_GENES
    assert shown + result["other_genes"]["genes"] == run.data.cell.n_genes


def test_unlike_predictors_are_brought_to_one_scale(loaded):
    several = [loaded["seed0"], loaded["additive"], loaded["trees"]]
    genotypes = several[0].data.part(several[0].data.split.validation)[0]
    predictors = [run.predictor for run in several], on_one_scale(several)
    before, after = (np.array([one(genotypes).double() for one in of]) for of in predictors)
    np.testing.assert_allclose(after.std(axis=1), before.std(axis=1).mean(), rtol=1e-4)
    np.testing.assert_allclose(after.mean(axis=1), before.mean(), rtol=1e-4, atol=1e-6)
    for one, other in zip(before, after, strict=True):
        assert np.corrcoef(one, other)[0, 1] == pytest.approx(1)
    # Seeds of one model are on one scale already.
    alike = [loaded["seed0"], loaded["other_split"]]
    assert on_one_scale(alike) == [run.predictor for run in alike]
    # A predictor that knows nothing adds only the mean.
    run = loaded["additive"]
    mean = GlobalMean().fit(run.data.cell, *run.data.part(run.data.split.train))
    config = replace(run.config, model=GlobalMeanConfig())
    flat = replace(run, config=config, predictor=replace(run.predictor, model=mean))
    each = scorer_of([loaded["trees"], flat]).score_each(np.array([[0, 1], [2, 3], [4, 5]]))
    assert np.ptp(each[0]) > 0 == np.ptp(each[1])


def test_several_runs_give_the_mean_and_how_far_they_differ(loaded):
    several = [loaded["seed0"], loaded["other_split"]]
    genes = unmeasured(several[0], 3)
    alone = [explain_set([run], genes, most=30).to_json() for run in several]
    together = explain_set(several, genes, most=30).to_json()
    scores = [one["score"] for one in alone]
    assert [one["score"] for one in together["runs"]] == pytest.approx(scores, abs=1e-6)
    assert together["score"] == pytest.approx(np.mean(scores), abs=1e-6)
    assert together["spread"] == pytest.approx(np.std(scores, ddof=1), abs=1e-6)
    for row in together["relations"]:
        of_runs = [
            sum(r["contribution"] for r in one["relations"] if r["relation"] == row["relation"])
            for one in alone
        ]
        assert row["contribution"] == pytest.approx(np.mean(of_runs))
    for key in ("relations_baseline", "genes_baseline", "genes_residual"):
        assert together[key] == pytest.approx(np.mean([one[key] for one in alone]))
    mixed = explain_set([loaded["seed0"], loaded["trees"]], genes, most=30).to_json()
    dango, trees = mixed["runs"]
    assert mixed["score"] == pytest.approx((dango["score"] + trees["score"]) / 2, abs=1e-6)
    assert total(mixed, "relations") == pytest.approx(dango["score"], abs=1e-5)


def test_votes_and_parts_of_a_predictor_are_shown(loaded, monkeypatch):
    run = loaded["additive"]
    parts = [np.array([value]) for value in (-0.1, 0.25, -0.4)]
    monkeypatch.setattr(
        Additive,
        "_parts",
        lambda self, cell, sets: Parts(*(p.repeat(len(sets)) for p in parts)),
    )
    votes = [Vote((0, 2), 1, 2, -0.3, name, weight) for name, weight in (("a", 0.5), ("b", 2.0))]
    monkeypatch.setattr(Additive, "evidence", lambda self, cell, genes: votes)
    result = explain_set([run], [0, 1]).to_json()
    first, second, third = gene_texts(run.data.cell.genes)[:3]
    told = {"names": [first, third], "by": third, "replaced": second, "score": -0.3}
    assert [one["relation"] for one in result["votes"]] == ["b", "a"]
    assert all(one.items() >= told.items() for one in result["votes"])
    (said,) = result["runs"]
    assert (said["hit"], said["given_hit"]) == pytest.approx((0.25, -0.4))


def test_a_measured_set_is_nearest_to_itself_and_its_part_is_given(loaded):
    run, word = loaded["seed0"], "training"
    keys = run.data.screen.keys
    row = next(int(r) for r in run.data.split.train if (keys == keys[r]).sum() == 1)
    result = explain_set([run], genes_of(run, row), most=15).to_json()
    assert result["measured"] == pytest.approx(float(run.data.screen.column("score")[row]))
    nearest = result["nearest"]
    assert nearest[0]["genes"] == result["genes"]
    assert (nearest[0]["distance"], nearest[0]["part"], result["part"]) == (0, word, word)
    assert nearest[0]["predicted"] == result["score"]
    distances = [near["distance"] for near in nearest]
    assert (len(nearest), distances) == (NEAREST, sorted(distances))
    # They are sets of the screen, with the mean of their scores.
    measured = {}
    for r, score in enumerate(run.data.screen.column("score").tolist()):
        names = frozenset(run.data.cell.genes[g] for g in genes_of(run, r))
        measured.setdefault(names, []).append(score)
    for near in nearest:
        assert near["measured"] == pytest.approx(np.mean(measured[frozenset(near["genes"])]))


def test_unmeasured_large_and_foreign_sets_are_explained_in_part_or_refused(loaded, refused):
    result = explain_set([loaded["hetero"]], unmeasured(loaded["hetero"], 5), most=15).to_json()
    assert (result["measured"], result["part"]) == (None, None)
    large = explain_set([loaded["seed0"]], [0, 1, 2, 3, 4], most=15).to_json()
    assert (len(large["genes"]), large["nearest"]) == (5, [])
    for genes in ([1, 1], [0, 99_999], []):
        refused(("bad-genotypes", "no-gene"), explain_set, [loaded["seed0"]], genes)
    run = loaded["other_split"]
    screen = run.data.screen
    fitness = Screen.build(screen.genes, screen.genotypes, score=0.0, phenotype="fitness")
    refused(
        "different-phenotypes",
        scorer_of,
        [loaded["seed0"], replace(run, data=replace(run.data, screen=fitness))],
    )


def test_names_are_no_markup_and_links_are_links(loaded, capsys, refused):
    result = explain_set([loaded["seed0"], loaded["other_split"]], [0, 1], most=15).to_json()
    fact = {"gene": "YA", "name": "A[red]", "description": "A <b>helicase", "link": None}
    result |= {"names": ["A[red]", "B"], "gene_facts": [fact], "lost": ["r_0042"]}
    print_explained_set(result)
    assert "r_0042" in capsys.readouterr().out
    page = explained_page(result)
    assert "A &lt;b&gt;helicase" in page
    assert "<b>helicase" not in page
    genes = loaded["seed0"].data.cell.genes
    (fact,) = gene_facts(genes, [0], "https://example.org/{gene}?n={name}")
    assert fact.link.startswith(f"https://example.org/{genes[0]}?n=")
    for template in ("ftp://example.org/{gene}", "https://example.org", "https://{other}"):
        refused("invalid-link", gene_facts, genes, [0], template)


N = 12


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 5), st.sampled_from([1, 3, 100]))
def test_nearest_equals_trying_everything(seed, size, k):
    """Every way to match is tried, with a cosine written out."""
    rng = np.random.default_rng(seed)
    edges = [rng.integers(0, N, (2, 20)) for _ in "ab"]
    relations = [
        Relation.from_edges(name, *of, n_genes=N, directed=name == "b")
        for name, of in zip("ab", edges, strict=True)
    ]
    cell = Cell([f"Y{i:02d}" for i in range(N)], relations)
    genes = rng.permutation(N)[:size].tolist()
    sets = np.array([rng.permutation(N)[:size] for _ in range(25)])
    rows, found = nearest_sets(cell, genes, sets, k)
    vectors = np.eye(N, 3 * N)
    for place, relation in enumerate(relations, 1):
        of = vectors[:, place * N : (place + 1) * N]
        of += np.eye(N)
        of[relation.entries().target, relation.entries().source] += 1
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    def apart(a, b):
        return 0 if a == b else 1 - unit[a] @ unit[b]

    of_row = [
        min(np.mean(list(map(apart, genes, order))) for order in permutations(other))
        for other in sets.tolist()
    ]
    assert found == pytest.approx(sorted(of_row)[:k], abs=1e-9)
    # Rounding may turn ties round, so the rows are compared by their distance.
    assert len(set(rows.tolist())) == len(rows) == min(k, 25)
    assert [of_row[row] for row in rows.tolist()] == pytest.approx(found, abs=1e-9)


CELL = Cell(
    [f"Y{i:02d}" for i in range(N)],
    [Relation.from_edges("a", [0], [1], n_genes=N, directed=False)],
)
SETS = [[0, 1], [1, 0], [1, 2], [2, 3], [3, 4, 5], [4, 5], [5, 6], [9, 8], [7, 8, 9]]
SCORES = [0.0, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]


def split_run(train, validation, test, sets=SETS, scores=SCORES):
    """What a ranking takes of a run."""
    screen = Screen.build(CELL.genes, Genotypes.of(sets), score=scores)
    parts = {"train": train, "validation": validation, "test": test}
    split = SimpleNamespace(**{name: np.array(rows, dtype=int) for name, rows in parts.items()})
    return SimpleNamespace(data=SimpleNamespace(cell=CELL, screen=screen, split=split))


class Sum:
    def score(self, sets):
        score = sets.sum(axis=1).astype(np.float32)
        return Scored(sets, score, np.zeros_like(score))


ONE, OTHER = split_run([0, 1, 2, 4], [3, 5], [6, 8]), split_run([6], [0, 1], [2, 3, 4, 5, 8])


def test_measured_sets_of_a_size_the_test_part_first():
    found = against_measured([ONE], Sum(), [2])
    assert [" ".join([*one.genes, one.part]) for one in found.measured] == [
        "Y05 Y06 test",
        *("Y02 Y03 validation", "Y04 Y05 validation"),
        *("Y00 Y01 training", "Y01 Y02 training"),
    ]
    # Repeats are one set, with their mean; a row in no part is left out.
    first = found.measured[3]
    assert (first.measured, first.predicted) == (0.25, 1.0)
    both = against_measured([ONE], Sum(), [2, 3]).agreement
    assert both[0] == Agreement("test", 2, None)
    expected = np.corrcoef([1, 3, 12], [0.25, 1.0, 3.0])[0, 1]
    assert both[2].pearson == pytest.approx(expected)
    assert against_measured([ONE], Sum(), [4]) == AgainstMeasured([], [])
    few = against_measured([ONE], Sum(), [2, 3], most=4).measured
    assert [one.part for one in few] == ["test", "test", "validation", "training"]


def test_a_set_that_any_run_was_trained_on_is_not_called_test():
    third = split_run([1], [], [0], [[10, 11], [6, 5]], [1.0, 1.0])
    for other, expected in (
        (OTHER, {"Y05 Y06": "training", "Y07 Y08 Y09": "test", "Y02 Y03": "validation"}),
        (third, {"Y05 Y06": "training", "Y07 Y08 Y09": "test"}),
    ):
        found = against_measured([ONE, other], Sum(), [2, 3]).measured
        parts = {" ".join(one.genes): one.part for one in found}
        assert parts.items() >= expected.items()
        assert "Y10 Y11" not in parts
    assert (trained_sizes([ONE]), trained_sizes([ONE, OTHER])) == ({2, 3}, {2})
    assert np.flatnonzero(trained_genes([ONE])).tolist() == [0, 1, 2, 3, 4, 5]
    assert np.flatnonzero(trained_genes([ONE, OTHER])).tolist() == [5]
