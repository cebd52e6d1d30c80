"""`refit`: a predictor that has seen all measurements, by choices made without the test part."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import deltacell as dc
from deltacell.cli.app import app
from deltacell.models.fitted.predictor import Zeros
from deltacell.profile.record import RUN_FILE, Status, read_run, write_run
from deltacell.profile.refitted import ChosenByValidation
from deltacell.train.loaded_runs import load_run
from deltacell.train.predictor import build_fitted
from deltacell.train.refit import refit_run

SEED = 3
BASELINES = ("additive", "boosted_trees", "nearest_profiles")


@pytest.fixture(scope="module")
def cell():
    return dc.Cell.synthetic("demo")


@pytest.fixture(scope="module")
def screen(cell):
    return dc.Screen.synthetic(cell, n=400)


def fitted(model, cell, screen, folder, **options):
    if model in ("pairs", "boosted_trees"):
        options = {"rounds": 40, **options}
    if model == "pairs":
        options = {"patience": 2, "learning_rate": 0.3, **options}
    return dc.fit(model, cell, screen, directory=folder, seed=SEED, progress=False, **options)


@pytest.fixture(scope="module")
def run(cell, screen, tmp_path_factory):
    return fitted("pairs", cell, screen, tmp_path_factory.mktemp("refit") / "run")


@pytest.fixture(scope="module")
def refitted(run):
    return run.refit(progress=False)


def states_differ(one, other):
    """Return the keys of two learned states that are not equal to the bit."""
    assert one.keys() == other.keys()

    def is_equal(a, b):
        if isinstance(a, torch.Tensor):
            # Unknown values are NaN.
            return np.array_equal(a.numpy(), b.numpy(), equal_nan=a.is_floating_point())
        if isinstance(a, dict):
            return a.keys() == b.keys() and all(is_equal(a[key], b[key]) for key in a)
        if isinstance(a, list | tuple):
            return len(a) == len(b) and all(map(is_equal, a, b))
        return a == b

    return [key for key in one if not is_equal(one[key], other[key])]


def scores_changed(screen, rows):
    """Return a screen with other scores in some rows."""
    score = screen.column("score").copy()
    score[rows] = np.random.default_rng(1).normal(size=len(rows))
    return screen.with_scores(score)


def test_a_refit_is_the_fit_on_a_split_with_everything_in_training(cell, screen, run, refitted):
    (rounds,) = run.loaded.predictor.model.chosen().rounds
    assert 1 <= rounds < 40  # stopped early, so the rounds come from the validation part
    directly = fitted(
        "pairs",
        cell,
        screen,
        run.path.parent / "directly",
        split=dc.Split.everything(screen),
        rounds=rounds,
    )
    of_refit = refitted.loaded.predictor.model.state_dict()
    of_direct = directly.loaded.predictor.model.state_dict()
    assert not states_differ(of_refit, of_direct)
    assert states_differ(of_refit, run.loaded.predictor.model.state_dict())
    assert refitted.split.equals(directly.split)
    assert len(of_refit["targets"]) == len(screen)


@pytest.mark.parametrize("model", BASELINES)
def test_baselines_are_refitted_with_what_they_chose(model, cell, screen, tmp_path):
    run = fitted(model, cell, screen, tmp_path / "run")
    chosen = run.loaded.predictor.model.chosen()
    refitted = run.refit(progress=False).loaded
    directly = build_fitted(refitted.config, refitted.data).fit(
        cell, *refitted.data.part(np.arange(len(screen))), seed=SEED, chosen=chosen
    )
    assert not states_differ(refitted.predictor.model.state_dict(), directly.state_dict())
    assert refitted.predictor.model.chosen() == chosen
    if model == "nearest_profiles":
        assert chosen.weight not in (None, 1.0)
    else:
        assert chosen == ChosenByValidation()


def test_hits_keep_their_trees_and_calibration(run):
    data = run.loaded.data
    zeros = made_zeros(data.cell.n_genes)

    def fit(rows, **options):
        model = build_fitted(run.config, data)
        model.fit(data.cell, *data.part(rows), draw_zeros=lambda ratio: zeros, seed=SEED, **options)
        return model

    chosen = fit(data.split.train, validation=data.part(data.split.validation)).chosen()
    assert chosen.rounds_of_hits < 40
    assert chosen.slope != 1.0
    again = fit(np.arange(len(data.screen)), chosen=chosen)
    assert again.chosen() == chosen


def made_zeros(n_genes):
    rng = np.random.default_rng(0)
    pairs = [np.sort(rng.choice(n_genes, 2, replace=False)).tolist() for _ in range(300)]
    return Zeros(dc.Genotypes.of(pairs[:250]), dc.Genotypes.of(pairs[250:]), 3.0, 4.0)


def test_nothing_of_the_test_part_changes_what_was_chosen(cell, screen, run, refitted, tmp_path):
    other = fitted("pairs", cell, scores_changed(screen, run.split.test), tmp_path / "other")
    assert np.array_equal(other.split.test, run.split.test)
    again = other.refit(progress=False)
    assert again.record.refitted.chosen == refitted.record.refitted.chosen
    # What was learned did change.
    states = [one.loaded.predictor.model.state_dict() for one in (again, refitted)]
    assert states_differ(*states)


def test_the_record_says_what_was_refitted_and_how(run, refitted, screen):
    record = refitted.record
    assert record.status is Status.finished
    assert (refitted.path / record.refitted.run).resolve() == run.path
    assert record.refitted.measurements == record.samples.train == len(screen)
    assert record.refitted.chosen == run.loaded.predictor.model.chosen()
    assert record.refitted.validation_pearson == run.record.best.value
    assert record.samples.test == record.samples.validation == 0
    assert read_run(run.path).refitted is None


def test_its_evidence_is_of_all_measurements(run, refitted, screen):
    test = sets_of(screen, run.split.test)
    assert not evidence_about(run, test) & set(test)
    assert evidence_about(refitted, test) & set(test)
    genes = [screen.genes[gene] for gene in test[0]]
    parts = {one["part"] for one in refitted.why(*genes).to_json()["nearest"]}
    assert parts == {"training"}


def test_its_ranking_says_how_it_was_made(run, refitted, screen):
    ranked = dc.rank(refitted, sets="pairs", top=3, progress=False)
    sentences = ranked.to_json()["sentences"]
    sentence = refitted.record.refitted.sentence
    assert sentence in sentences
    assert f"all {len(screen)} measurements" in sentence
    pearson = f"{run.record.best.value:.3f}"
    assert any("validation part" in one and pearson in one for one in sentences)


def sets_of(screen, rows):
    """Return the genes of some genotypes, ascending."""
    genotypes = [screen.genotypes.take(torch.tensor([row])) for row in rows]
    return [tuple(sorted(one.genes.tolist())) for one in genotypes]


def evidence_about(run, sets):
    """Return the measured sets that vote for the scores of some sets."""
    model = run.loaded.predictor.model
    votes = [vote for one in sets for vote in model.evidence(run.cell, one)]
    return {tuple(sorted(vote.genes)) for vote in votes}


def test_it_cannot_be_evaluated_on_what_it_has_seen(run, refitted, cell, refused):
    error = refused("seen-everything", dc.evaluate, refitted, progress=False)
    assert f"deltacell evaluate {run.path}" in str(error)
    refused("seen-everything", dc.evaluate, [run, refitted], progress=False)
    other = dc.Screen.synthetic(cell, n=100, seed=5)
    assert len(dc.evaluate(refitted, on=other, progress=False).split.test)


def test_a_refit_that_is_impossible_raises_the_code_of_its_reason(
    run, refitted, cell, screen, tmp_path, refused
):
    refused("already-refitted", refitted.refit, tmp_path / "again", progress=False)
    refused("run-exists", run.refit, refitted.path, progress=False)
    network = dc.fit("pair_cell", cell, screen, directory=tmp_path / "n", epochs=1, progress=False)
    refused("cannot-refit", network.refit, progress=False)
    second = fitted("additive", cell, screen, run.path.parent / "second", split=run.split)
    both = f"[{run.path},{second.path}]"
    words = ["model=ensemble", f"model.runs={both}", f"directory={tmp_path / 'e'}"]
    assert not app(["train", *words], standalone_mode=False)
    refused("cannot-refit", dc.Run(tmp_path / "e").refit, progress=False)
    assert not list(tmp_path.glob("*-refitted"))
    write_run(second.path, replace(read_run(second.path), status=Status.interrupted))
    refused("unfinished-run", dc.Run(second.path).refit, progress=False)


def test_a_refit_that_was_stopped_starts_again_with_the_same_choice(run, refitted, tmp_path):

    def stop(what, done, total):
        if what == "trees":
            raise KeyboardInterrupt

    refit_run(load_run(run.path), tmp_path / "again", progress=stop)
    assert read_run(tmp_path / "again").status is Status.interrupted
    again = run.refit(tmp_path / "again", progress=False)
    assert len(again.record.attempts) == 2
    states = [one.loaded.predictor.model.state_dict() for one in (again, refitted)]
    assert not states_differ(*states)


def test_the_parts_of_a_run_are_public(run, cell, screen):
    assert run.cell.genes == cell.genes
    assert run.screen.checksum == screen.checksum
    assert isinstance(run.split, dc.Split)
    alone = dc.Split.load(run.path / "split")
    assert alone.equals(run.split)
    assert dc.Split.load(run.path / "split", run.screen).equals(run.split)
    scored = dc.evaluate(run, run.screen, run.split, progress=False)
    assert len(scored.split.test) == len(run.split.test)


def test_the_command(run, tmp_path, capsys):
    out = tmp_path / "final"
    assert not app(["refit", str(run.path), "--out", str(out)], standalone_mode=False)
    printed = capsys.readouterr().out
    assert read_run(out).refitted.sentence in " ".join(printed.split())
    assert f"deltacell evaluate {run.path}" in printed
    assert (out / RUN_FILE).is_file()
