"""What a request means for runs, and what is said of it."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from deltacell.errors import InputError
from deltacell.predict import subject as module
from deltacell.predict.ranking_rows import sentences_of, title_of
from deltacell.predict.request import Request
from deltacell.predict.status import STATUSES
from deltacell.predict.subject import subject_of
from deltacell.screen.keys import sorted_matrix
from deltacell.train.compose import compose
from deltacell.train.data import load_data

FACTS = {"name": "demo", "seed": 0, "finished": True, "model": "dango", "sha256": "0" * 64}


@pytest.fixture(scope="module")
def run():
    """A run of a part of a screen, as far as a subject looks at it."""
    words = ["data.synthetic_genotypes=400", "data.subset=100", "data.screen_genes_only=true"]
    config = compose(["experiment=demo", *words])
    return SimpleNamespace(config=config, data=load_data(config))


@pytest.fixture
def made(run, monkeypatch):
    def make(*args, **named):
        return subject_of([run], Request(*args, **named))

    facts = {**FACTS, "validation_pearson": 0.5}
    monkeypatch.setattr(module, "run_facts", lambda run, label, weights: dict(facts))
    monkeypatch.setattr(module, "labels_of", lambda runs: [FACTS["name"]] * len(runs))
    return make


def test_what_a_run_left_out_was_measured_all_the_same(run, made):
    data = run.data
    assert len(data.whole) == 400
    assert len(data.screen) == 100
    there = data.whole.on(data.cell, on_unknown="drop")
    assert len(there) > 100
    sets = sorted_matrix(there.genotypes.genes.numpy(), there.offsets)
    pairs = sets[(sets[:, 0] < 0) & (sets[:, 1] >= 0), 1:]
    assert len(pairs) > len(data.screen) // 4
    statuses = made("pairs").statuses
    assert {STATUSES[code] for code in statuses.of(pairs)} == {"measured"}


def test_genes_of_the_screen_all_or_given(run, made, tmp_path):
    n = run.data.cell.n_genes
    assert made("pairs").sets.n_sets == n * (n - 1) // 2
    names = run.data.cell.genes
    (tmp_path / "few.txt").write_text(f"{names[3]}\n{names[1].lower()}\n{names[5]}\n")
    few = made("pairs", genes=tmp_path / "few.txt")
    assert few.genes.tolist() == [1, 3, 5]
    assert few.sets.n_sets == 3
    with pytest.raises(InputError, match="3 genes make no set of 4"):
        made("with", given=(names[1],), size=4, genes=tmp_path / "few.txt")


def test_the_same_request_by_another_name_of_a_gene_is_the_same(run, made):
    name = run.data.cell.genes[0]
    assert made("with", given=(name,)).identity == made("with", given=(name.lower(),)).identity
    assert made("with", given=(name,)).identity != made("pairs").identity
    assert made("pairs", top=3).identity != made("pairs").identity


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ({"top": 5}, "The 5 lowest and the 4 highest of"),
        ({"above": 0.25}, "All 4 with a score of 0.25 or more of"),
        ({"below": -0.5, "top": 5}, "The first 5 with a score of -0.5 or less of"),
        ({"below": -0.5, "top": 6}, "All 5 with a score of -0.5 or less of"),
        ({"status": ("tested",)}, "Left out: sets that were measured or not tested"),
        ({"distance": 1_500}, "less than 1.5 kb apart"),
        ({"linked": True}, "validation part the run had a Pearson correlation of 0.500"),
    ],
)
def test_what_is_said(made, named, said):
    counts = {"lowest": 5, "highest": 4, "listed": 0}
    sentences = sentences_of(made("pairs", **named), counts)
    assert said in " ".join(sentences)
    assert all(sentence.endswith(".") for sentence in sentences)
    assert any("apart on one chromosome" in s for s in sentences) == ("linked" not in named)


def test_a_cautious_limit_is_not_said_to_be_one_of_the_score(made):
    subject = made("pairs", below=-0.5)
    subject = replace(subject, request=replace(subject.request, cautious=True))
    said = sentences_of(subject, {"lowest": 5, "highest": 0, "listed": 0})[0]
    assert "All 5 with a score, less extreme by its spread, of -0.5 or less of" in said


def test_more_sets_than_can_be_counted_are_refused(run, made):
    with pytest.raises(InputError, match="sets of 60, which nobody goes through"):
        made("with", given=(run.data.cell.genes[0],), size=60)


def test_given_genes_in_any_order_are_one_request(run, made):
    a, b = run.data.cell.genes[0], run.data.cell.genes[3]
    assert made("with", given=(a, b)).identity == made("with", given=(b, a)).identity


def test_pairs_that_are_linked_are_counted_where_all_of_them_matter(run, made):
    counts = {"lowest": 5, "highest": 4, "listed": 0}
    assert "pairs of genes are; --linked" in " ".join(sentences_of(made("pairs"), counts))
    some = " ".join(sentences_of(made("with", given=(run.data.cell.genes[0],)), counts))
    assert "hardly combine (--linked keeps them)" in some
    none = " ".join(sentences_of(made("pairs", distance=0), counts))
    assert "hardly combine" not in none


@pytest.mark.parametrize(
    ("named", "n", "same"),
    [
        ({"top": 5}, 4, True),
        ({"top": 5}, 5, False),
        ({}, 4, True),
        ({"above": 0.1, "below": -0.1}, 4, False),
        ({"top": 5, "above": 0.1}, 4, False),
    ],
)
def test_short_ends_say_where_a_set_of_both_is(made, named, n, same):
    counts = {"lowest": n, "highest": n, "listed": 0}
    said = " ".join(sentences_of(made("pairs", **named), counts))
    assert ("where it comes sooner" in said) == same


@pytest.mark.parametrize(
    ("reached", "warned"),
    [(-0.154, True), (0.099, True), (float("nan"), True), (0.1, False), (None, False)],
)
def test_a_run_that_learned_nothing_is_warned_of(made, reached, warned):
    subject = replace(made("pairs"), runs=[{**FACTS, "validation_pearson": reached}])
    said = " ".join(sentences_of(subject, {"lowest": 5, "highest": 4, "listed": 0}))
    assert ("demo (seed 0) says next to nothing of sets it has not seen" in said) == warned


def test_a_run_that_was_stopped_is_warned_of(made):
    counts = {"lowest": 5, "highest": 4, "listed": 0}
    subject = made("pairs")
    assert "come to its end" not in " ".join(sentences_of(subject, counts))
    stopped = replace(subject, runs=[{**subject.runs[0], "finished": False}])
    said = " ".join(sentences_of(stopped, counts))
    assert "Beware: the training of demo (seed 0) did not come to its end." in said


def test_the_title(run, made):
    assert title_of(made("triples")) == "Untested triples ranked by demo (seed 0)"
    name = run.data.cell.genes[0]
    subject = made("with", given=(name,), size=4, status=STATUSES)
    assert title_of(subject) == f"Sets of 4 genes with {name} ranked by demo (seed 0)"


def test_sizes_and_genes_that_were_never_trained_on_are_warned_of(run, made):
    counts = {"lowest": 5, "highest": 4, "listed": 0}
    name = run.data.cell.genes[0]
    said = " ".join(sentences_of(made("with", given=(name,), size=4), counts))
    assert "trained on sets of 2 and 3 genes, and never on sets of 4" in said
    # What one of several runs was not trained on, another may have been.
    several = replace(made("triples"), runs=[{**made("triples").runs[0]}] * 2)
    several = replace(several, trained_sizes=frozenset({2}))
    said = " ".join(sentences_of(several, counts))
    assert "not every run was trained on sets of 3 genes, as all were on sets of 2." in said
    assert "in no set of the training part of one of the runs." in said
    said = " ".join(sentences_of(replace(several, trained_sizes=frozenset()), counts))
    assert "not every run was trained on sets of 3 genes. Nothing shows" in said
    subject = made("pairs")
    in_training = np.zeros(run.data.cell.n_genes, dtype=bool)
    for row in run.data.split.train:
        at = run.data.screen.offsets[row : row + 2]
        in_training[run.data.screen.genotypes.genes.numpy()[at[0] : at[1]]] = True
    assert subject.untrained == (~in_training[subject.genes]).sum() > 0
    assert f"{subject.untrained:,} of {len(subject.genes):,} genes are in no set" in " ".join(
        sentences_of(subject, counts)
    )
