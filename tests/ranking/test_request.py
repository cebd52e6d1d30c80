"""What a ranking is asked for, gene sets as people write them, and what it means for runs."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from deltacell.cell import Genes
from deltacell.ranking import request_on_runs as module
from deltacell.ranking.filter import STATUSES
from deltacell.ranking.gene_names import gene_indices, gene_texts
from deltacell.ranking.request import Request
from deltacell.ranking.request_on_runs import RunFacts, subject_of
from deltacell.ranking.sentences import sentences
from deltacell.ranking.source import read_sets
from deltacell.screen.gene_keys import sorted_matrix
from deltacell.train.config.compose import compose
from deltacell.train.data import load_data
from deltacell.train.predictor import TrainedPredictor, build_predictor


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
def test_ends_and_defaults_of_a_request_follow_its_options(given, ends, most):
    request = Request(**{"sets": "pairs", **given})
    assert (request.ends, request.top) == (ends, most)
    is_file = request.sets == "file"
    assert request.linked == is_file
    assert request.status == (STATUSES if is_file else ("untested",))
    assert request.to_json()["file"] == ("mine.txt" if is_file else None)
    # 0.7 has no exact float32; a score that prints as 0.7 counts as reaching it.
    assert Request("pairs", above=0.7).limit("highest") < 0.7
    assert [Request(sets).size for sets in ("pairs", "triples")] == [2, 3]
    assert [Request("with", given=("A",), size=s).size for s in (None, 4)] == [2, 4]


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"sets": "with"}, "no-gene"),
        ({"sets": "with", "given": ("A", "B"), "size": 2}, "invalid-size"),
        ({"size": 3}, "invalid-size"),
        ({"top": 0}, "out-of-range"),
        ({"distance": -1}, "out-of-range"),
        ({"above": float("nan")}, "invalid-limit"),
        ({"above": 1e39}, "invalid-limit"),
        ({"above": 0.1, "below": 0.1}, "invalid-limit"),
        ({"status": ("untried",)}, "unknown-status"),
        ({"status": ()}, "unknown-status"),
        ({"sets": "file", "file": Path("a"), "genes": "all"}, "genes-of-a-file"),
    ],
)
def test_options_that_contradict_the_request_are_refused(given, code, refused):
    refused(code, Request, **{"sets": "pairs", **given})


def test_the_words_of_options(tmp_path, monkeypatch, refused):
    monkeypatch.chdir(tmp_path)
    Path("mine.txt").write_text("A B\n")
    assert Request.of_words("pairs") == Request("pairs")
    assert Request.of_words("with A,B C") == Request("with", given=("A", "B", "C"))
    assert Request.of_words('with "ARG5,6" HO') == Request("with", given=("ARG5,6", "HO"))
    assert Request.of_words("mine.txt") == Request("file", file=Path("mine.txt"))
    for words in ("triple", ""):
        refused("unknown-sets", Request.of_words, words)
    assert Request.of_words("pairs", status="untested, tested").status == ("tested", "untested")
    assert Request.of_words("pairs", status="any,tested").status == STATUSES
    refused("unknown-status", Request.of_words, "pairs", status=",")


GENES = Genes(
    ["YDL227C", "YFL026W", "YCR040W", "YHR152W", "YBR053C"],
    ["HO", "STE2", "MATALPHA1", "SPO12", None],
    [["ENDO"], [], [], ["SAME"], ["SAME"]],
)


def sets_of(tmp_path, text):
    path = tmp_path / "sets.txt"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return [sets.tolist() for sets in read_sets(path, GENES)]


def test_names_of_any_kind_with_anything_between(tmp_path):
    text = (
        "\ufeffGene1\tGene2\r\n# a comment\r\n\r\nHO, ste2\r\nYFL026W;endo # the same\r\n"
        '"HO"\t"MATALPHA1"\tYBR053C\r\n'
    )
    assert sets_of(tmp_path, text) == [[[0, 1]], [[0, 2, 4]]]
    assert gene_texts(GENES) == ["HO", "STE2", "MATALPHA1", "SPO12", "YBR053C"]
    assert gene_indices(GENES, ["STE2", "HO"]).tolist() == [1, 0]


def test_a_first_line_of_known_genes_is_a_set_and_no_mark_hides_a_gene(tmp_path):
    genes = Genes(["ORF1", "ORF2", "A#1", "ARG5,6"])
    path = tmp_path / "sets.txt"
    for text, expected in {
        "ORF1 ORF2\nORF2 A#1\n": [[0, 1], [1, 2]],
        "gene1 gene2\nA#1 ORF1\nARG5,6,ORF2\n": [[0, 2], [1, 3]],
        "\ufeff\u200bORF1 \u202aO\u200bRF2\u202c\n": [[0, 1]],
    }.items():
        path.write_text(text)
        assert [sets.tolist() for sets in read_sets(path, genes)] == [expected]


@pytest.mark.parametrize(
    ("text", "line", "code"),
    [
        ("", None, "no-sets"),
        ("# nothing\n\n", None, "no-sets"),
        ("HO STE2\nHO STE3\n", 2, "unknown-gene"),
        ("HO STE2\nHO same\n", 2, "ambiguous-gene"),
        ("HO STE2\n\nHO ENDO\n", 3, "gene-twice"),
        ("first second\nHO STE2\n", 1, "unknown-gene"),
        (b"HO \xff\xfe\n", None, "not-text"),
        (b"HO\0STE2\n", None, "not-text"),
        (b"PAR1\0\xff", None, "not-text"),
    ],
)
def test_a_bad_file_of_sets_is_refused_with_its_line(tmp_path, text, line, code, refused):
    assert refused(code, sets_of, tmp_path, text).line == line


FACTS = RunFacts("demo", 0, "dango", "best.pt", "0" * 64, finished=True, validation_pearson=0.5)
COUNTS = {"lowest": 5, "highest": 4, "listed": 0}


@pytest.fixture(scope="module")
def run():
    """A run of a part of a screen, as far as a subject looks at it."""
    words = ["data.synthetic_genotypes=400", "data.subset=100", "data.screen_genes_only=true"]
    config = compose(["experiment=demo", *words])
    data = load_data(config)
    model = build_predictor(config, data)
    predictor = TrainedPredictor(model, data.cell, data.standard)
    return SimpleNamespace(config=config, data=data, predictor=predictor, intervals=None)


@pytest.fixture
def made(run, monkeypatch):
    monkeypatch.setattr(module, "_facts", lambda run, label, weights: FACTS)
    monkeypatch.setattr(module, "labels_of", lambda runs: [FACTS.name] * len(runs))
    return lambda *args, **named: subject_of([run], Request(*args, **named))


def test_pairs_that_a_run_left_out_have_the_status_measured(run, made):
    data = run.data
    assert (len(data.whole), len(data.screen)) == (400, 100)
    there = data.whole.on(data.cell, on_unknown="drop")
    sets = sorted_matrix(there.genotypes.genes.numpy(), there.offsets)
    pairs = sets[(sets[:, 0] < 0) & (sets[:, 1] >= 0), 1:]
    assert len(pairs) > len(data.screen) // 4
    assert {STATUSES[code] for code in made("pairs").statuses.of(pairs)} == {"measured"}


def test_genes_of_the_screen_or_given_by_any_name(run, made, tmp_path, refused):
    n, names = run.data.cell.n_genes, run.data.cell.genes
    assert made("pairs").sets.n_sets == n * (n - 1) // 2
    file = tmp_path / "few.txt"
    file.write_text(f"{names[3]}\n{names[1].lower()}\n{names[5]}\n")
    few = made("pairs", genes=file)
    assert (few.genes.tolist(), few.sets.n_sets) == ([1, 3, 5], 3)
    a, b = names[0], names[3]
    refused("too-few-genes", made, "with", given=(names[1],), size=4, genes=file)
    refused("too-many-sets", made, "with", given=(a,), size=n - 5)
    # The same request by other names and another order is the same.
    first = made("with", given=(a, b)).identity
    assert first == made("with", given=(b.lower(), a)).identity
    assert first != made("with", given=(a,)).identity
    assert made("pairs", top=3).identity != made("pairs").identity


def test_warnings_are_given_where_they_are_due(run, made):
    subject = made("pairs")
    genotypes, (facts,) = list(run.data.screen.genotypes), subject.runs
    trained = {gene for row in run.data.split.train for gene in genotypes[row].tolist()}
    assert subject.untrained == len(set(subject.genes.tolist()) - trained) > 0
    for changes, warnings in (
        ({"untrained": 3}, 1),
        ({}, 0),
        ({"runs": [replace(facts, validation_pearson=0.099)]}, 1),
        ({"runs": [replace(facts, validation_pearson=float("nan"))]}, 1),
        ({"runs": [replace(facts, validation_pearson=None)]}, 0),
        ({"runs": [replace(facts, finished=False)]}, 1),
        ({"trained_sizes": {3}}, 1),
        ({"trained_sizes": set(), "runs": [facts] * 2}, 1),
    ):
        changed = replace(subject, **{"untrained": 0, **changes})
        texts = sentences(changed, COUNTS)
        assert sum(text.startswith("Beware") for text in texts) == warnings
