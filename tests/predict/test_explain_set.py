"""An explanation adds up, agrees with the runs it is of, and says so in words."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from deltacell.errors import InputError
from deltacell.models.baselines import Additive, GlobalMean
from deltacell.models.baselines.baseline import Parts
from deltacell.predict.ensemble import on_one_scale, scorer_of
from deltacell.predict.explain_set import NEAREST, OTHER_GENES, explain_set
from deltacell.predict.explained_sentences import sentences_of
from deltacell.predict.status import Evidence
from deltacell.report.predict import explained_page, print_explained_set
from deltacell.screen import Genotypes, Screen
from deltacell.train.compose import compose
from deltacell.train.config import GlobalMeanConfig
from deltacell.train.loaded_run import load_runs
from deltacell.train.run import train

SMALL = [
    "experiment=demo",
    "data.synthetic_genotypes=400",
    "data.batch_size=64",
    "trainer.epochs=1",
    "trainer.figures_every=0",
    "loggers.tensorboard=false",
    "model.hidden=8",
]
DATA = ["data.synthetic=demo", "data.screen_genes_only=true", "split.method=gene"]
FITTED = {
    name: [*DATA, "data.synthetic_genotypes=400", "data.batch_size=64", f"model={model}"]
    for name, model in (("additive", "additive"), ("trees", "boosted_trees"))
}
ASKED = {
    "dango": [],
    "other_split": ["seed=1", "split.seed=1"],
    "additive": ["name=additive"],
    "trees": ["name=trees", "model.rounds=5"],
    "hetero": [
        "model=hetero_cell",
        "model.relations=[physical, tflink]",
        "model.layers=1",
        "model.local_heads=2",
        "name=hetero",
    ],
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    for name, more in ASKED.items():
        train(compose([*(FITTED.get(name) or SMALL), *more, f"directory={folder / name}"]))
    loaded = load_runs([folder / name for name in ASKED])
    return dict(zip(ASKED, loaded, strict=True))


def genes_of(run, row):
    offsets = run.data.screen.offsets
    return run.data.screen.genotypes.genes[offsets[row] : offsets[row + 1]].tolist()


def rest_of(run, row):
    """Return a set of the same size that was not measured, near a measured one."""
    measured = {frozenset(genes_of(run, r)) for r in range(len(run.data.screen))}
    genes = genes_of(run, row)
    for other in range(run.data.cell.n_genes):
        made = [*genes[:-1], other]
        if len(set(made)) == len(genes) and frozenset(made) not in measured:
            return made
    raise AssertionError


@pytest.mark.parametrize("name", ["additive", "trees"])
def test_a_predictor_without_gradients_tells_its_score_and_what_is_near(runs, name, capsys):
    run = runs[name]
    genes = genes_of(run, int(run.data.split.test[0]))
    result = explain_set([run], genes)
    json.dumps(result, allow_nan=False)
    assert result["score"] == pytest.approx(float(run.predictor(Genotypes.of([genes]))[0]))
    assert result["explained"] is None
    assert result["relations"] == result["gene_contributions"] == result["votes"] == []
    assert result["part"] == "test"
    near = result["nearest"]
    assert near[0]["genes"] == result["genes"]
    assert near[0]["distance"] == 0
    assert [one["distance"] for one in near] == sorted(one["distance"] for one in near)
    print_explained_set(result)
    assert "The nearest measured sets" in capsys.readouterr().out


def test_unlike_predictors_are_brought_to_one_scale(runs):
    several = [runs["dango"], runs["additive"], runs["trees"]]
    scaled = on_one_scale(several)
    genotypes = several[0].data.part(several[0].data.split.validation)[0]
    before = np.array([run.predictor(genotypes).numpy() for run in several], dtype=np.float64)
    after = np.array([one(genotypes).numpy() for one in scaled], dtype=np.float64)
    np.testing.assert_allclose(after.std(axis=1), before.std(axis=1).mean(), rtol=1e-4)
    np.testing.assert_allclose(after.mean(axis=1), before.mean(), rtol=1e-4, atol=1e-6)
    for one, other in zip(before, after, strict=True):
        assert np.corrcoef(one, other)[0, 1] == pytest.approx(1)
    # Seeds of one model are on one scale already.
    alike = [runs["dango"], runs["other_split"]]
    assert on_one_scale(alike) == [run.predictor for run in alike]


def test_a_predictor_that_knows_nothing_adds_nothing_but_the_mean(runs):
    mean = runs["additive"].data.split
    flat = GlobalMean().fit(runs["additive"].data.cell, *runs["additive"].data.part(mean.train))
    constant = replace(
        runs["additive"],
        config=replace(runs["additive"].config, model=GlobalMeanConfig()),
        predictor=replace(runs["additive"].predictor, model=flat),
    )
    sets = np.array([[0, 1], [2, 3], [4, 5]])
    one, other = runs["trees"], constant
    scores = scorer_of([one, other]).of_each(sets)
    assert np.ptp(scores[1]) == 0
    assert np.ptp(scores[0]) > 0


def test_a_mixture_is_explained_by_what_each_of_them_can_tell(runs):
    several = [runs["dango"], runs["trees"]]
    genes = rest_of(several[0], 3)
    result = explain_set(several, genes, most=30)
    json.dumps(result, allow_nan=False)
    dango, trees = result["runs"]
    assert result["score"] == pytest.approx((dango["score"] + trees["score"]) / 2, abs=1e-6)
    assert result["explained"] == pytest.approx(dango["score"], abs=1e-5)
    total = sum(row["contribution"] for row in result["relations"])
    assert result["explained"] == pytest.approx(
        result["relations_baseline"] + total + result["relations_residual"]
    )


def test_votes_and_parts_of_a_predictor_are_shown(runs, capsys, monkeypatch):
    run = runs["additive"]

    def parts(self, cell, sets):
        n = len(sets)
        return Parts(np.full(n, -0.1), np.full(n, 0.25), np.full(n, -0.4))

    monkeypatch.setattr(Additive, "_parts", parts)
    keys = ("genes", "replaced", "by", "score", "relation", "weight")
    rows = [
        dict(zip(keys, row, strict=True))
        for row in (([0, 2], 1, 2, -0.3, "physical", 0.5), ([1, 3], 0, 3, -0.2, "tflink", 2.0))
    ]
    monkeypatch.setattr(Additive, "evidence", lambda self, cell, genes: rows, raising=False)
    result = explain_set([run], [0, 1])
    genes = run.data.cell.genes
    label = [genes.standard[i] or genes[i] for i in range(4)]
    first, second = result["votes"]
    assert (first["names"], first["relation"]) == ([label[1], label[3]], "tflink")
    assert (first["by"], first["replaced"]) == (label[3], label[0])
    assert (second["score"], second["weight"]) == (-0.3, 0.5)
    (said,) = result["runs"]
    assert (said["hit"], said["given_hit"]) == pytest.approx((0.25, -0.4))
    assert any("probability of 0.25" in sentence for sentence in result["sentences"])
    print_explained_set(result)
    assert "The measured sets it rests on" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["dango", "hetero"])
def test_the_contributions_lead_from_the_baseline_to_the_score(runs, name):
    run = runs[name]
    genes = genes_of(run, int(run.data.split.test[0]))
    result = explain_set([run], genes)
    json.dumps(result, allow_nan=False)
    with torch.no_grad():
        score = float(run.predictor(Genotypes.of([genes]))[0])
    assert result["score"] == pytest.approx(score, abs=1e-5)
    assert result["spread"] is None
    assert result["complete"]
    of_relations = sum(row["contribution"] for row in result["relations"])
    total = result["relations_baseline"] + of_relations + result["relations_residual"]
    assert total == pytest.approx(score, abs=1e-5)
    of_genes = sum(row["contribution"] for row in result["gene_contributions"])
    of_genes += result["other_genes"]["contribution"]
    total = result["genes_baseline"] + of_genes + result["genes_residual"]
    assert total == pytest.approx(score, abs=1e-5)
    sizes = [abs(row["contribution"]) for row in result["relations"]]
    assert sizes == sorted(sizes, reverse=True)
    assert {row["relation"] for row in result["relations"]} == set(run.predictor.model.relations)
    deleted = [row["gene"] for row in result["gene_contributions"] if row["deleted"]]
    assert set(deleted) == set(result["genes"])
    assert len(result["gene_contributions"]) <= len(genes) + OTHER_GENES
    told = len(result["gene_contributions"])
    assert told + result["other_genes"]["genes"] == run.data.cell.n_genes


def test_the_order_of_genes_does_not_matter(runs):
    genes = rest_of(runs["dango"], 0)
    assert explain_set([runs["dango"]], genes) == explain_set([runs["dango"]], genes[::-1])


@pytest.mark.parametrize("part", ["train", "validation", "test"])
def test_a_measured_set_is_nearest_to_itself_and_its_part_is_told(runs, part):
    run = runs["dango"]
    keys = run.data.screen.keys
    once = [r for r in getattr(run.data.split, part) if (keys == keys[r]).sum() == 1]
    row = int(once[0])
    genes = genes_of(run, row)
    result = explain_set([run], genes, most=15)
    word = "training" if part == "train" else part
    assert result["measured"] == pytest.approx(float(run.data.screen.column("score")[row]))
    assert result["part"] == word
    nearest = result["nearest"]
    assert nearest[0]["genes"] == result["genes"]
    assert (nearest[0]["distance"], nearest[0]["part"]) == (0, word)
    assert nearest[0]["predicted"] == result["score"]
    assert f"in the {word} part" in " ".join(result["sentences"])
    distances = [near["distance"] for near in nearest]
    assert len(nearest) == NEAREST
    assert distances == sorted(distances)


def test_what_is_told_of_near_sets_is_what_the_screen_and_the_run_say(runs):
    run = runs["hetero"]
    genes = rest_of(run, 5)
    result = explain_set([run], genes, most=15)
    assert result["measured"] is None
    assert result["part"] is None
    assert "not among the measured ones" in result["sentences"][1]
    cell, screen = run.data.cell, run.data.screen
    by_set = {frozenset(genes_of(run, r)): r for r in range(len(screen))}
    for near in result["nearest"]:
        indices = [cell.genes.index(name) for name in near["genes"]]
        row = by_set[frozenset(indices)]
        assert near["measured"] == pytest.approx(float(screen.column("score")[row]))
        predicted = scorer_of([run]).score(np.array([indices])).score[0]
        assert near["predicted"] == float(predicted)
    assert result["evidence"] == Evidence.of(cell).of_set(genes)


def test_several_runs_give_the_mean_and_how_far_they_differ(runs):
    several = [runs["dango"], runs["other_split"]]
    genes = rest_of(several[0], 3)
    alone = [explain_set([run], genes) for run in several]
    together = explain_set(several, genes)
    assert together["score"] == pytest.approx(np.mean([one["score"] for one in alone]), abs=1e-6)
    assert together["spread"] == pytest.approx(
        np.std([one["score"] for one in alone], ddof=1), abs=1e-6
    )
    names = {row["relation"] for one in alone for row in one["relations"]}
    assert {row["relation"] for row in together["relations"]} == names
    for row in together["relations"]:
        of_runs = [
            sum(r["contribution"] for r in one["relations"] if r["relation"] == row["relation"])
            for one in alone
        ]
        assert row["contribution"] == pytest.approx(np.mean(of_runs))
        assert row["spread"] == pytest.approx(np.std(of_runs, ddof=1))
    for key in ("relations_baseline", "genes_baseline", "genes_residual"):
        assert together[key] == pytest.approx(np.mean([one[key] for one in alone]))
    assert together["sentences"][0].startswith("2 runs predict a score of")
    assert [one["score"] for one in together["runs"]] == pytest.approx(
        [one["score"] for one in alone], abs=1e-6
    )


def test_what_a_run_trained_on_is_never_called_test(runs):
    one, other = runs["dango"], runs["other_split"]
    seen = set(other.data.split.train.tolist())
    row = next(r for r in one.data.split.test.tolist() if r in seen)
    assert explain_set([one], genes_of(one, row), most=15)["part"] == "test"
    assert explain_set([one, other], genes_of(one, row), most=15)["part"] == "training"


def test_sets_beyond_what_was_trained_on_are_explained_with_a_warning(runs):
    run = runs["dango"]
    result = explain_set([run], [0, 1, 2, 3, 4], most=15)
    assert len(result["genes"]) == 5
    assert result["nearest"] == []
    assert "The run was not trained on sets of 5 genes." in " ".join(result["sentences"])
    unseen, seen = int(run.data.split.held_out[0]), genes_of(run, int(run.data.split.train[0]))[0]
    said = " ".join(explain_set([run], [unseen, seen], most=15)["sentences"])
    assert f"{run.data.cell.genes[unseen]} is in no set that the run was trained on" in said


@pytest.mark.parametrize(
    ("genes", "message"),
    [([1, 1], "twice"), ([0, 99_999], "deletes gene 99999"), ([], "deletes no gene")],
)
def test_what_is_no_set_is_refused(runs, genes, message):
    with pytest.raises(InputError, match=message):
        explain_set([runs["dango"]], genes)


ONE = {"name": "one", "model": "dango", "score": -0.5}


def made(**changed):
    """Return an explanation of two genes by two runs."""
    return {
        "title": "Why A B scores -0.5",
        "genes": ["YA", "YB"],
        "names": ["A[red]", "B"],
        "runs": [
            {**ONE, "seed": 0, "hit": None, "given_hit": None},
            {**ONE, "seed": 1, "hit": None, "given_hit": None},
        ],
        "score": -0.5,
        "explained": -0.5,
        "votes": [],
        "lost": ["r_0042"],
        "gene_facts": [
            {"gene": "YA", "name": "A[red]", "description": "A <b>helicase", "link": None},
            {"gene": "YB", "name": "B", "description": None, "link": "https://example.org/YB"},
        ],
        "spread": 0.1,
        "measured": None,
        "part": None,
        "relations": [
            {"relation": "binds", "contribution": -0.6, "spread": 0.1, "links": 1},
            {"relation": "acts", "contribution": 0.1, "spread": 0.2, "links": 0},
        ],
        "relations_baseline": 0.0,
        "relations_residual": 0.0,
        "gene_contributions": [
            {"gene": "YB", "name": "B", "deleted": True, "contribution": -0.4, "spread": 0.0},
            {"gene": "YA", "name": "A[red]", "deleted": True, "contribution": 0.1, "spread": 0.0},
            {"gene": "YC", "name": "YC", "deleted": False, "contribution": -0.2, "spread": 0.0},
        ],
        "other_genes": {"genes": 1_200, "contribution": 0.05},
        "genes_baseline": -0.05,
        "genes_residual": 0.0,
        "complete": True,
        "nearest": [
            {
                "genes": ["YA", "YC"],
                "names": ["A[red]", "YC"],
                "distance": 0.25,
                "measured": -0.3,
                "predicted": -0.4,
                "part": "test",
            }
        ],
        "evidence": {
            "relations": ["binds"],
            "links": [{"first": "YA", "second": "YB", "relation": "binds"}],
            "pathways": ["p", "q"],
            "complexes": ["r1", "r2", "r3", "r4", "r5"],
        },
        **changed,
    }


def test_the_words():
    said = sentences_of(made(), ["B"], {3})
    assert said == [
        "2 runs predict a score of -0.5 for the deletion of A[red] and B, with a spread of 0.1.",
        "This set is not among the measured ones that the run was made with.",
        "Without any message over the relations the score would be +0; they change it by -0.5. "
        "binds (-0.6) carries 86 % of what they contribute.",
        "The deleted genes' own vectors contribute -0.3, most by B (-0.4); all other genes "
        "together -0.15, most by YC (-0.2).",
        "Some of the genes are joined by binds, share the pathways p and q and are in a complex "
        "together (by r1, r2, r3 and 2 more).",
        "The measured set most like it is A[red] and YC (test), at a distance of 0.25: measured "
        "-0.3, predicted -0.4.",
        "Not every run was trained on sets of 2 genes. B is in no set that one of the runs was "
        "trained on: what it knows of it comes from networks and features alone.",
        "Contributions tell what moves the model, which need not be what moves the cell. They add "
        "up to the score within 0.",
    ]
    nothing = {"relations": [], "links": [], "pathways": [], "complexes": []}
    rough = made(complete=False, genes_residual=0.2, evidence=nothing, nearest=[], relations=[])
    said = sentences_of(rough, [], {2})
    assert "No relation has a part in it: the score is +0 without any message." in said
    assert "No other set of this size was measured." in said
    assert said[4].startswith("No relation of the cell joins two of the genes")
    assert said[-1].startswith("The contributions miss the score by 0.2")


def test_the_terminal_shows_all_of_it_and_takes_no_name_for_markup(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    print_explained_set({**made(), "sentences": sentences_of(made(), [], {2})})
    text = capsys.readouterr().out
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert "binds 1 -0.6000 0.100 ----------------" in lines
    assert "acts 0 +0.1000 0.200 +++" in lines
    assert any(line.startswith("A[red] (YA) yes +0.1000") for line in lines)
    assert any(line.startswith("1,200 other genes no +0.0500") for line in lines)
    assert "A[red] YC 0.25 -0.3000 -0.4000 test" in lines
    assert "A[red] B binds" in lines
    assert "no relation +0.0000 -" in lines
    assert "no gene -0.0500 -" in lines
    assert "Shared pathways: p, q" in lines
    assert "Reactions that only the whole set loses: r_0042" in lines
    assert [line for line in lines if line.startswith("score")] == ["score -0.5000 -"] * 2


def test_the_page_has_the_genes_and_the_evidence_as_text():
    page = explained_page({**made(), "sentences": sentences_of(made(), [], {2})})
    for text in ("A &lt;b&gt;helicase", "https://example.org/YB", "r_0042", "joined by", "binds"):
        assert text in page
    assert "<b>helicase" not in page
    nothing = {"relations": [], "links": [], "pathways": [], "complexes": []}
    bare = explained_page({**made(evidence=nothing, lost=[], nearest=[]), "sentences": []})
    assert "No evidence" in bare


def test_runs_of_different_phenotypes_have_no_mean(runs):
    run = runs["other_split"]
    screen = run.data.screen
    fitness = Screen.build(
        screen.genes, screen.genotypes, score=screen.column("score"), phenotype="fitness"
    )
    other = replace(run, data=replace(run.data, screen=fitness))
    with pytest.raises(
        InputError, match=r"trained on the phenotype fitness, and .* on interaction"
    ):
        scorer_of([runs["dango"], other])
