"""Splits: what each is for, what it says about itself, and what it refuses."""

from dataclasses import replace

import numpy as np
import pytest

from deltacell.cell import Genes
from deltacell.screen import Genotypes, Screen, Split

N_GENES = 60
GENES = Genes(f"g{i}" for i in range(N_GENES))


def screen_of(sets, **columns):
    return Screen.build(GENES, Genotypes.of(sets), **({"score": 0.1} | columns))


def pairs(n=200, seed=0):
    """A ring through all genes, and random pairs, some of them more than once."""
    rng = np.random.default_rng(seed)
    ring = [[i, (i + 1) % N_GENES] for i in range(N_GENES)]
    chords = [rng.choice(N_GENES, 2, replace=False).tolist() for _ in range(n)]
    return screen_of([*ring, *chords][:n])


def of_three_studies():
    study = ["a"] * 10 + ["b"] * 30 + ["c"] * 60
    rng = np.random.default_rng(1)
    return screen_of([rng.choice(N_GENES, 2, replace=False).tolist() for _ in study], study=study)


def test_random_reaches_its_shares_and_seeds_differ():
    screen = pairs()
    split = Split.random(screen)
    assert (len(split.train), len(split.validation), len(split.test)) == (160, 20, 20)
    assert not Split.random(screen, seed=1).equals(split)
    wider = Split.random(screen, validation=0.25, test=0.5)
    assert (len(wider.validation), len(wider.test)) == (50, 100)
    assert len(Split.random(screen, validation=0, test=0).train) == 200
    often = screen_of([[0, 1]] * 50 + [[2, i] for i in range(3, 53)])
    for seed in range(10):
        # A set that was measured too often for a part stays in training.
        assert set(range(50)) <= set(Split.random(often, seed).train)


def test_gene_reports_by_how_many_and_source_tests_on_the_studies_named():
    screen = pairs()
    split = Split.gene(screen)
    said = split.to_json()
    assert said["held_out_genes"] == len(split.held_out) == 12
    assert set(said["test_genotypes_by_unseen_genes"]) == {"1", "2"}
    rest = len(split.train) + len(split.validation)
    assert len(split.validation) == pytest.approx(0.1 * rest, abs=4)
    by_unseen = said["validation_genotypes_by_unseen_genes"]
    assert sum(by_unseen.values()) == len(split.validation)
    assert "0" not in by_unseen
    validation = split.leakage(screen).validation.genes
    assert validation.of - validation.shared == len(split.validation_genes)
    screen = of_three_studies()
    split = Split.source(screen, ["a", "c"])
    assert split.test.tolist() == [*range(10), *range(40, 100)]
    assert (len(split.train), len(split.validation)) == (27, 3)
    assert Split.source(screen, "b").test.tolist() == list(range(10, 40))


TRIPLES = [[2 * q, 2 * q + 1, a] for q in range(20) for a in range(50, 60)]


def test_set_by_query_keeps_pairs_whole_and_by_pair_drops_what_hangs_together():
    split = Split.sets(screen_of(TRIPLES, role=["query", "query", "array"] * len(TRIPLES)), "query")
    query = np.repeat(np.arange(20), 10)
    assert len(set(query[split.test])) == len(set(query[split.validation])) == 2
    assert (len(split.train), len(split.test), len(split.dropped)) == (160, 20, 0)
    assert (split.notes, split.method) == ((), "set")
    # Every query pair meets the same array genes, and g0 is in two query pairs.
    sets = TRIPLES + [[0, 40, a] for a in range(50, 60)] + [[40, 2, a] for a in range(50, 60)]
    sets += [[2 * q, 2 * q + 2, a] for q in range(18) for a in range(50, 52)]
    role = ["query", "query", "array"] * len(sets)
    split = Split.sets(screen_of(sets, role=role), "pair", seed=2)
    assert len(split.dropped) > 0
    assert f"by query pair, and {len(split.dropped)} others" in split.notes[0]


def test_set_where_roles_are_not_known_finds_the_query_pairs():
    # Neighbouring query pairs share a gene, so the chain of them hangs together.
    split = Split.sets(screen_of([[q, q + 1, a] for q in range(20) for a in range(50, 60)]))
    assert "by commonest pair" in split.notes[0]
    query = np.repeat(np.arange(20), 10)
    for part in (split.train, split.validation, split.test):
        assert set(np.bincount(query[part])) <= {0, 10}
    assert len(split.test) == 20


ALL_OF_EIGHT = [[a, b, c] for a in range(8) for b in range(a + 1, 8) for c in range(b + 1, 8)]


@pytest.mark.parametrize(
    ("make", "code"),
    [
        (
            lambda: Split(np.arange(2), np.array([1]), np.array([2]), "random", 0, ""),
            "invalid-split",
        ),
        (lambda: Split.random(pairs(4)), "empty-part"),
        (lambda: Split.random(pairs(), validation=0.5, test=0.5), "invalid-share"),
        (lambda: Split.random(pairs(), test=-0.1), "invalid-share"),
        (lambda: Split.random(pairs(), seed=-1), "invalid-number"),
        (lambda: Split.gene(screen_of([[0, 1], [0, 2]])), "empty-part"),
        (lambda: Split.gene(pairs(), held_out=0.001), "empty-part"),
        (lambda: Split.gene(pairs(), held_out=0.99), "empty-part"),
        (lambda: Split.source(of_three_studies(), ["a", "b", "c"]), "empty-part"),
        (lambda: Split.source(of_three_studies(), ["a", "d"]), "unknown-study"),
        (lambda: Split.source(of_three_studies(), []), "unknown-study"),
        (lambda: Split.sets(pairs(), "gene"), "unknown-by"),
        (lambda: Split.sets(pairs(3)), "empty-part"),
        (lambda: Split.sets(screen_of(ALL_OF_EIGHT), "pair", 0, 0.3, 0.3), "empty-part"),
        (lambda: Split.named(pairs(), [["g0", "g1"]], ["exam"]), "unknown-part"),
        (lambda: Split.named(pairs(), [["g0", "g1"]] * 2, ["test", "train"]), "set-in-two-parts"),
    ],
)
def test_screens_and_shares_that_cannot_be_split_are_refused(make, code, refused):
    refused(code, make)


def test_a_gene_of_validation_genotypes_alone_is_unseen():
    screen = pairs()
    split = Split.gene(screen)
    genes = screen.genotypes.genes.numpy().reshape(-1, 2)
    fitted = np.isin(genes, np.unique(genes[split.train]))
    assert split.unseen.tolist() == (2 - fitted[split.test].sum(axis=1)).tolist()
    held_out_twice = np.isin(genes, split.held_out).any(axis=1)
    held_out_twice &= np.isin(genes, split.validation_genes).any(axis=1)
    place = np.flatnonzero(held_out_twice[split.test])
    assert len(place)
    assert (split.unseen[place] == 2).all()


def test_a_split_that_was_saved_with_other_counts_is_counted_again(tmp_path):
    screen = pairs()
    split = Split.gene(screen)
    ones = np.ones_like(split.unseen)
    earlier = replace(split, unseen=ones)
    earlier.save(tmp_path / "split")
    loaded = Split.load(tmp_path / "split", screen)
    assert loaded.unseen.tolist() == split.unseen.tolist() != ones.tolist()
    assert loaded.validation_unseen.tolist() == split.validation_unseen.tolist()
    # Checkpoints that were trained on it know it by this.
    assert loaded.checksum == earlier.checksum
    loaded.save(tmp_path / "again")
    assert Split.load(tmp_path / "again", screen).checksum == earlier.checksum


def test_save_then_load_is_identity(tmp_path):
    screen, studies = pairs(), of_three_studies()
    for name, split, of in (
        ("gene", Split.gene(screen, seed=3), screen),
        ("set", Split.sets(screen, seed=3), screen),
        ("source", Split.source(studies, ["b"]), studies),
        ("no validation", Split.random(screen, validation=0), screen),
    ):
        split.save(tmp_path / name)
        loaded = Split.load(tmp_path / name, of)
        assert loaded.equals(split)
        assert loaded.to_json() == split.to_json()
        assert loaded.checksum == split.checksum


def test_a_split_of_another_screen_is_refused(tmp_path, refused):
    screen, other = pairs(), pairs(seed=1)
    Split.random(screen).save(tmp_path / "split")
    refused("exists", Split.gene(screen).save, tmp_path / "split")
    Split.gene(screen).save(tmp_path / "split", overwrite=True)
    assert Split.load(tmp_path / "split", screen).method == "gene"
    refused("other-screen", Split.load, tmp_path / "split", other)
    refused("other-screen", Split.random(screen).leakage, other)


def test_leakage_is_said_in_a_sentence():
    screen = screen_of([[0, 1, 2], [0, 1], [3], [1, 2], [4, 5], [0, 1, 2], [2, 3]])
    parts = (np.array(rows) for rows in ([0, 1, 2], [3, 4], [5, 6]))
    assert Split(*parts, "random", 0, screen.checksum).leakage(screen).sentence == (
        "Also in training: of the test part 100 % of 4 genes, 75 % of 4 pairs and 50 % of 2 sets; "
        "of the validation part 50 % of 4 genes, 50 % of 2 pairs and 0 % of 2 sets."
    )
    singles = screen_of([[i] for i in range(20)])
    leakage = Split.random(singles, validation=0).leakage(singles)
    assert leakage.test.pairs.share is None
    assert str(leakage.test) == "0 % of 2 genes and 0 % of 2 sets"
    assert str(leakage.validation) == "nothing"
