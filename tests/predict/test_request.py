"""What a ranking is asked for, gene sets as people write them, and what it means for runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from deltacell.cell import Genes
from deltacell.errors import InputError
from deltacell.predict import request as module
from deltacell.predict.request import (
    GeneNames,
    Request,
    gene_texts,
    read_genes,
    read_sets,
    read_sets_option,
    read_status_option,
    sets_checksum,
    subject_of,
)
from deltacell.predict.sentences import ranking_sentences, ranking_title
from deltacell.predict.status import STATUSES
from deltacell.screen.genotypes import sorted_matrix
from deltacell.train.compose import compose
from deltacell.train.data import load_data


def code_of(function, *args, **named):
    with pytest.raises(InputError) as caught:
        function(*args, **named)
    return caught.value.code


@pytest.mark.parametrize(
    ("given", "ends", "most"),
    [
        ({}, ("lowest", "highest"), 1_000),
        ({"above": 0.2}, ("highest",), None),
        ({"below": -0.2}, ("lowest",), None),
        ({"above": 0.2, "below": -0.2}, ("lowest", "highest"), None),
        ({"above": 0.2, "top": 5}, ("highest",), 5),
        ({"top": 5}, ("lowest", "highest"), 5),
        ({"sets": "file", "file": Path("some/mine.txt")}, (None,), None),
        ({"sets": "file", "file": Path("mine.txt"), "top": 3}, ("lowest", "highest"), 3),
    ],
)
def test_which_ends_are_kept(given, ends, most):
    request = Request(**{"sets": "pairs", **given})
    assert (request.ends, request.most) == (ends, most)
    is_file = request.sets == "file"
    assert request.keeps_linked == is_file
    assert request.statuses == (STATUSES if is_file else ("untested",))
    assert request.to_json()["file"] == ("mine.txt" if is_file else None)
    # 0.7 has no exact float32; a score that prints as 0.7 counts as reaching it.
    assert Request("pairs", above=0.7).limit("highest") < 0.7


def test_the_number_of_genes():
    assert [Request(sets).n_genes for sets in ("pairs", "triples")] == [2, 3]
    assert Request("with", given=("A", "B")).n_genes == 3
    assert Request("with", given=("A",), size=4).n_genes == 4


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"sets": "with"}, "no-gene"),
        ({"sets": "with", "given": ("A", "B"), "size": 2}, "size-too-small"),
        ({"size": 3}, "size-without-with"),
        ({"top": 0}, "top-too-small"),
        ({"distance": -1}, "negative-distance"),
        ({"above": float("nan")}, "limit-not-finite"),
        ({"above": 1e39}, "limit-not-finite"),
        ({"above": 0.1, "below": 0.1}, "limits-overlap"),
        ({"status": ("untried",)}, "unknown-status"),
        ({"status": ()}, "unknown-status"),
        ({"sets": "file", "file": Path("a"), "genes": "all"}, "genes-of-a-file"),
    ],
)
def test_what_cannot_be_asked_for(given, code):
    assert code_of(Request, **{"sets": "pairs", **given}) == code


def test_the_words_of_options(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine.txt").write_text("A B\n")
    assert read_sets_option("pairs", []) == {"sets": "pairs"}
    assert read_sets_option("with A,B", ["C"]) == {"sets": "with", "given": ("A", "B", "C")}
    assert read_sets_option("with", ["A,B", "C"]) == {"sets": "with", "given": ("A", "B", "C")}
    assert read_sets_option("mine.txt", []) == {"sets": "file", "file": Path("mine.txt")}
    assert code_of(read_sets_option, "pairs", ["C"]) == "not-a-run"
    for words in ("triple", ""):
        assert code_of(read_sets_option, words, []) == "unknown-sets"
    assert read_status_option("tested, untested") == ("tested", "untested")
    assert read_status_option("any") == read_status_option("any,tested") == STATUSES
    assert read_status_option(",") == ()


GENES = Genes(
    ["YDL227C", "YFL026W", "YCR040W", "YHR152W", "YBR053C"],
    ["HO", "STE2", "MATALPHA1", "SPO12", None],
    [["ENDO"], [], [], ["SAME"], ["SAME"]],
)
NAMES = GeneNames(GENES)


def written(tmp_path, text):
    path = tmp_path / "sets.txt"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_names_of_any_kind_with_anything_between(tmp_path):
    text = (
        "\ufeffGene1\tGene2\r\n# a comment\r\n\r\nHO, ste2\r\nYFL026W;endo # the same\r\n"
        '"HO"\t"MATALPHA1"\tYBR053C\r\n'
    )
    pairs, triples = read_sets(written(tmp_path, text), NAMES)
    assert (pairs.tolist(), triples.tolist()) == ([[0, 1]], [[0, 2, 4]])
    assert read_genes(written(tmp_path, "gene\nSTE2\nHO\nYDL227C\n"), NAMES).tolist() == [0, 1]
    assert code_of(read_genes, written(tmp_path, "\n"), NAMES) == "no-genes"
    assert sets_checksum([pairs, triples]) == sets_checksum([triples, pairs])
    assert sets_checksum([pairs]) != sets_checksum([np.array([[0, 2]])])


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("", None, "no gene set"),
        ("# nothing\n\n", None, "no gene set"),
        ("HO STE2\nHO STE3\n", 2, "did you mean 'STE2'"),
        ("HO STE2\nHO same\n", 2, "ambiguous"),
        ("HO STE2\n\nHO ENDO\n", 3, "twice"),
        ("first second\nHO STE2\n", 1, "'first'"),
        (b"HO \xff\xfe\n", None, "UTF-8"),
        (b"HO\0STE2\n", None, "zero bytes"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(tmp_path, text, line, said):
    with pytest.raises(InputError, match=said) as caught:
        read_sets(written(tmp_path, text), NAMES)
    assert caught.value.line == line


def test_a_parquet_file_as_the_command_writes_it(tmp_path):
    path = tmp_path / "sets.parquet"
    assert code_of(read_sets, path, NAMES) == "no-such-file"
    pq.write_table(pa.table({"genes": [["YFL026W", "YDL227C"], ["HO", "STE2"]]}), path)
    assert [s.tolist() for s in read_sets(path, NAMES)] == [[[0, 1]]]
    for table, code in (
        ({"gene": ["HO"]}, "no-gene-column"),
        ({"genes": [1, 2]}, "no-gene-column"),
        ({"genes": [["HO"], []]}, "no-sets"),
    ):
        pq.write_table(pa.table(table), path)
        assert code_of(read_sets, path, NAMES) == code
    path.write_bytes(path.read_bytes()[:20])
    assert code_of(read_sets, path, NAMES) == "unreadable-parquet"


def test_genes_by_name():
    assert gene_texts(GENES) == ["HO", "STE2", "MATALPHA1", "SPO12", "YBR053C"]
    assert NAMES.indices(["STE2", "HO"]).tolist() == [1, 0]
    assert code_of(NAMES.indices, ["HO", "ENDO"]) == "gene-twice"
    # A gene that the run was trained without.
    assert code_of(GeneNames(GENES.take([0, 1]), GENES).index, "SPO12") == "gene-not-in-run"


FACTS = {"name": "demo", "seed": 0, "finished": True, "model": "dango", "sha256": "0" * 64}
COUNTS = {"lowest": 5, "highest": 4, "listed": 0}


@pytest.fixture(scope="module")
def run():
    """A run of a part of a screen, as far as a subject looks at it."""
    words = ["data.synthetic_genotypes=400", "data.subset=100", "data.screen_genes_only=true"]
    config = compose(["experiment=demo", *words])
    return SimpleNamespace(config=config, data=load_data(config))


@pytest.fixture
def made(run, monkeypatch):
    facts = {**FACTS, "validation_pearson": 0.5}
    monkeypatch.setattr(module, "run_facts", lambda run, label, weights: dict(facts))
    monkeypatch.setattr(module, "labels_of", lambda runs: [FACTS["name"]] * len(runs))
    return lambda *args, **named: subject_of([run], Request(*args, **named))


def test_what_a_run_left_out_was_measured_all_the_same(run, made):
    data = run.data
    assert (len(data.whole), len(data.screen)) == (400, 100)
    there = data.whole.on(data.cell, on_unknown="drop")
    sets = sorted_matrix(there.genotypes.genes.numpy(), there.offsets)
    pairs = sets[(sets[:, 0] < 0) & (sets[:, 1] >= 0), 1:]
    assert len(pairs) > len(data.screen) // 4
    assert {STATUSES[code] for code in made("pairs").statuses.of(pairs)} == {"measured"}


def test_genes_of_the_screen_all_or_given(run, made, tmp_path):
    n, names = run.data.cell.n_genes, run.data.cell.genes
    assert made("pairs").sets.n_sets == n * (n - 1) // 2
    file = tmp_path / "few.txt"
    file.write_text(f"{names[3]}\n{names[1].lower()}\n{names[5]}\n")
    few = made("pairs", genes=file)
    assert (few.genes.tolist(), few.sets.n_sets) == ([1, 3, 5], 3)
    one = (names[1],)
    assert code_of(made, "with", given=one, size=4, genes=file) == "too-few-genes"
    assert code_of(made, "with", given=one, size=60) == "too-many-sets"
    assert code_of(made, "pairs", cautious=True) == "cautious-alone"


def test_the_same_request_by_other_names_and_orders_of_genes_is_the_same(run, made):
    a, b = run.data.cell.genes[0], run.data.cell.genes[3]
    first = made("with", given=(a, b)).identity
    assert first == made("with", given=(b.lower(), a)).identity
    assert first != made("with", given=(a,)).identity
    assert made("pairs", top=3).identity != made("pairs").identity


def test_warnings_are_given_where_they_are_due(run, made):
    def beware(subject):
        said = ranking_sentences(subject, COUNTS)
        assert all(sentence.endswith(".") for sentence in said)
        return [sentence for sentence in said if sentence.startswith("Beware")]

    subject = made("pairs")
    in_training = np.zeros(run.data.cell.n_genes, dtype=bool)
    for row in run.data.split.train:
        a, b = run.data.screen.offsets[row : row + 2]
        in_training[run.data.screen.genotypes.genes.numpy()[a:b]] = True
    assert subject.untrained == (~in_training[subject.genes]).sum() > 0
    assert len(beware(subject)) == 1
    subject = replace(subject, untrained=0)
    assert not beware(subject)
    for reached, warned in ((-0.154, 1), (0.099, 1), (float("nan"), 1), (0.1, 0), (None, 0)):
        changed = {**subject.runs[0], "validation_pearson": reached}
        assert len(beware(replace(subject, runs=[changed]))) == warned
    assert beware(replace(subject, runs=[{**subject.runs[0], "finished": False}]))
    assert beware(replace(subject, trained_sizes=frozenset({3})))
    assert beware(replace(subject, trained_sizes=frozenset(), runs=[*subject.runs] * 2))


@pytest.mark.parametrize(
    ("named", "title"),
    [
        ({"sets": "triples"}, "Untested triples ranked by demo (seed 0)"),
        ({"sets": "pairs", "status": STATUSES}, "Pairs ranked by demo (seed 0)"),
        ({"sets": "with", "size": 4}, "Untested sets of 4 genes with {} ranked by demo (seed 0)"),
    ],
)
def test_the_title(run, made, named, title):
    name = run.data.cell.genes[0]
    given = (name,) if named["sets"] == "with" else ()
    assert ranking_title(made(**named, given=given)) == title.format(name)
