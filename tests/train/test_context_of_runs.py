"""Runs with context: their config and record, what they load, and what is refused."""

import shutil
from dataclasses import replace
from html import unescape

import numpy as np
import pytest
import torch

from deltacell.base.errors import InputError
from deltacell.cell import Cell
from deltacell.data.import_folder import Imported
from deltacell.profile.record import Status, read_run, write_run
from deltacell.ranking.why import explain_set
from deltacell.report.predict import explained_page
from deltacell.screen import Genotypes, Screen
from deltacell.train.config.compose import compose, with_settings
from deltacell.train.data import load_data
from deltacell.train.loaded_runs import load_run
from deltacell.train.run import train

FAST = ["model=pair_trees", "loss=none", "model.rounds=3", "trainer.progress=false"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """An import with two halves of a screen, the second on another scale, and the first again."""
    place = tmp_path_factory.mktemp("context")
    cell = Cell.synthetic("demo")
    screen = Screen.synthetic(cell, n=700)
    is_own = np.random.default_rng(0).permutation(len(screen)) % 2 == 0
    own = screen.take(is_own)
    others = screen.take(~is_own)
    others = others.with_scores(5 - 20 * others.column("score"))
    Imported(cell, {"own": own, "others": others, "again": own}).save(place / "data")
    return place


def config_of(folder, run, *words):
    where = [f"data.folder={folder / 'data'}", "data.screen=own", f"directory={folder / run}"]
    return compose([*FAST, *where, "data.merge=mean", *words])


@pytest.fixture(scope="module")
def run(folder):
    """A run with the screen `others` as its context."""
    train(config_of(folder, "with", "data.context=[others]"))
    return folder / "with"


@pytest.fixture(scope="module")
def of_others(folder):
    """A run that was trained on the screen `others`."""
    train(config_of(folder, "of-others", "data.screen=others"))
    return folder / "of-others"


def scores_of(run):
    loaded = load_run(run)
    return loaded.predictor.predict(loaded.data.screen.genotypes).score.numpy()


def test_a_run_records_its_context_and_loads_with_it(folder, run, tmp_path):
    [facts] = read_run(run).context
    assert (facts.name, facts.predictor) == ("others", "")
    assert facts.checksum == Screen.load(folder / "data" / "screens" / "others").checksum
    expected = scores_of(run)
    # A run and its data may be moved together.
    shutil.copytree(folder, tmp_path / "moved")
    assert np.array_equal(scores_of(tmp_path / "moved" / "with"), expected)
    alone = config_of(folder, "alone")
    train(alone)
    assert read_run(folder / "alone").context == ()
    assert not np.array_equal(scores_of(folder / "alone"), expected)


def test_a_run_is_context_with_what_it_measured_and_predicts(folder, of_others):
    config = config_of(folder, "of-run", f"data.context=[{of_others}]")
    [study] = load_data(config).context
    assert study.predictor is not None
    assert len(study.screen) == len(load_run(of_others).data.screen)
    train(config)
    [facts] = read_run(folder / "of-run").context
    assert len(facts.predictor) == 64
    assert not np.array_equal(scores_of(folder / "of-run"), scores_of(folder / "with"))


def test_a_run_whose_context_changed_is_refused(folder, run, tmp_path):
    shutil.copytree(folder, tmp_path / "moved")
    screens = tmp_path / "moved" / "data" / "screens"
    others = Screen.load(screens / "others")
    others.with_scores(others.column("score") + 1).save(screens / "others", overwrite=True)
    with pytest.raises(InputError) as error:
        load_run(tmp_path / "moved" / "with")
    assert error.value.code == "other-context"


def test_the_cell_keeps_the_genes_of_the_context(folder):
    words = ["data.screen_genes_only=true", "data.subset=20"]
    alone = load_data(config_of(folder, "x", *words)).cell
    both = load_data(config_of(folder, "x", *words, "data.context=[others]"))
    of_others = {
        both.context[0].screen.genes.systematic[gene]
        for gene in both.context[0].screen.genotypes.genes.tolist()
    }
    assert set(both.cell.genes.systematic) == set(alone.genes.systematic) | of_others
    assert len(both.cell.genes) > len(alone.genes)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["data.context=[again]"], "repeated-study"),
        (["data.context=[own]"], "repeated-study"),
        (["data.context=[nobody]"], "unknown-screen"),
        (["data.context=[./nobody]"], "not-a-store"),
    ],
)
def test_studies_that_cannot_be_context_of_a_run_are_refused(folder, words, code):
    with pytest.raises(InputError) as error:
        load_data(config_of(folder, "x", *words))
    assert error.value.code == code


def test_a_model_that_reads_no_context_is_refused(folder):
    with pytest.raises(InputError) as error:
        compose(["model=additive", f"data.folder={folder / 'data'}", "data.context=[others]"])
    assert error.value.code == "no-context"


def test_a_run_that_learned_from_the_target_is_refused(folder, run):
    """The target of this training was the context of the run, so its scores would come back."""
    config = config_of(folder, "x", f"data.context=[{run}]")
    config = with_settings(config, {"data.screen": "others"})
    with pytest.raises(InputError) as error:
        load_data(config)
    assert error.value.code == "repeated-study"


def test_an_unfinished_run_is_refused(folder, of_others, tmp_path):
    shutil.copytree(folder, tmp_path / "all")
    copy = tmp_path / "all" / "of-others"
    write_run(copy, replace(read_run(copy), status=Status.interrupted))
    with pytest.raises(InputError) as error:
        load_data(config_of(folder, "x", f"data.context=[{copy}]"))
    assert error.value.code == "unfinished-run"


def test_scores_do_not_depend_on_the_batch(run):
    loaded = load_run(run)
    genotypes = loaded.data.screen.genotypes
    together = loaded.predictor.predict(genotypes).score
    alone = [
        loaded.predictor.predict(Genotypes.of([genotypes.genes[start:end].tolist()])).score
        for start, end in list(zip(genotypes.offsets[:-1], genotypes.offsets[1:], strict=True))[:5]
    ]
    assert np.array_equal(np.concatenate(alone), together[:5].numpy())


def test_the_explanation_and_the_page_name_what_each_study_measured(folder, of_others, capsys):
    train(config_of(folder, "of-both", f"data.context=[{of_others}]"))
    loaded = load_run(folder / "of-both")
    others = Screen.load(folder / "data" / "screens" / "others").merge("mean")
    is_pair = np.diff(others.offsets) == 2
    row = int(np.flatnonzero(is_pair)[0])
    measured = others.genotypes.take(torch.tensor([row])).genes.tolist()
    [study] = explain_set([loaded], measured).knowledge.studies
    # The name is that of the study in the screen.
    [name] = {evidence.name for evidence in loaded.data.context}
    assert study.study == name
    assert study.measured == pytest.approx(float(others.column("score")[row]), rel=1e-5)
    assert study.is_tested
    assert study.is_hit == bool(others.hit_rule.reaches(others.column("score")[[row]])[0])
    genotype = Genotypes.of([measured])
    expected = load_run(of_others).predictor.predict(genotype).score
    assert study.expected == pytest.approx(float(expected[0]), rel=1e-5)
    scores = dict(zip(map(frozenset, every_set(others)), others.column("score"), strict=True))
    assert study.votes
    for vote in study.votes:
        genes = frozenset(loaded.data.cell.genes.index(gene) for gene in vote.names)
        assert vote.score == pytest.approx(float(scores[genes]), abs=1e-4)
        assert len(genes & set(measured)) == 1
    explained = explain_set([loaded], measured)
    page = explained_page(explained.to_json())
    assert f"{name}: measured {study.measured:+.4g}" in unescape(page)
    alone = load_run(of_others)
    assert explain_set([alone], measured).knowledge.studies == []


def every_set(screen):
    bounds = zip(screen.offsets[:-1], screen.offsets[1:], strict=True)
    return [screen.genotypes.genes[start:end].tolist() for start, end in bounds]
