"""Splits: what each is for, what it says about itself, and what it refuses."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from deltacell.cell import Genes
from deltacell.errors import InputError, StoreError
from deltacell.screen import Genotypes, Leakage, Screen, Split

N_GENES = 60
GENES = Genes(f"g{i}" for i in range(N_GENES))


def screen_of(sets: list[list[int]], **columns: object) -> Screen:
    return Screen.build(GENES, Genotypes.of(sets), **({"score": 0.1} | columns))


def pairs(n: int = 200, seed: int = 0) -> Screen:
    """A ring through all genes, and random pairs, some of them more than once."""
    rng = np.random.default_rng(seed)
    ring = [[i, (i + 1) % N_GENES] for i in range(N_GENES)]
    chords = [rng.choice(N_GENES, 2, replace=False).tolist() for _ in range(n)]
    return screen_of([*ring, *chords][:n])


def crossed(n_queries: int = 20, *, known: bool = True) -> Screen:
    """Query pairs (2q, 2q + 1) crossed with ten array genes that are no query."""
    sets = [[2 * q, 2 * q + 1, a] for q in range(n_queries) for a in range(50, 60)]
    role = ["query", "query", "array"] * len(sets) if known else "unknown"
    return screen_of(sets, role=role)


def of_three_studies() -> Screen:
    study = ["a"] * 10 + ["b"] * 30 + ["c"] * 60
    rng = np.random.default_rng(1)
    sets = [rng.choice(N_GENES, 2, replace=False).tolist() for _ in study]
    return screen_of(sets, study=study)


def test_random_reaches_its_shares_and_seeds_differ() -> None:
    screen = pairs()
    split = Split.random(screen)
    assert (len(split.train), len(split.validation), len(split.test)) == (160, 20, 20)
    assert len(split) == len(screen)
    assert not Split.random(screen, seed=1).equals(split)
    wider = Split.random(screen, validation=0.25, test=0.5)
    assert (len(wider.validation), len(wider.test)) == (50, 100)
    assert "random: 160 train, 20 validation, 20 test" in repr(split)


def test_random_without_validation_or_test() -> None:
    split = Split.random(pairs(), validation=0, test=0.2)
    assert (len(split.validation), len(split.test)) == (0, 40)
    split = Split.random(pairs(), validation=0, test=0)
    assert len(split.train) == 200


def test_a_set_measured_too_often_for_a_part_stays_in_training() -> None:
    screen = screen_of([[0, 1]] * 50 + [[2, i] for i in range(3, 53)])
    for seed in range(10):
        assert set(range(50)) <= set(Split.random(screen, seed).train)


def test_a_split_cannot_be_changed() -> None:
    split = Split.random(pairs())
    with pytest.raises(ValueError, match="read-only"):
        split.test[0] = 3
    with pytest.raises(dataclasses.FrozenInstanceError):
        split.seed = 3  # type: ignore[misc]


@pytest.mark.parametrize("overlapping", [[0, 1], [4]])
def test_parts_that_overlap_or_miss_a_row_are_refused(overlapping: list[int]) -> None:
    with pytest.raises(InputError, match="each once"):
        Split(np.array([0, 1]), np.array(overlapping), np.array([2]), "random", 0, "")


def test_gene_reports_by_how_many() -> None:
    split = Split.gene(pairs())
    assert len(split.held_out) == 12
    assert set(split.unseen_counts) == {1, 2}
    assert split.unseen_counts[1] > split.unseen_counts[2]
    assert split.to_json()["test_genotypes_by_unseen_genes"]["2"] == split.unseen_counts[2]
    assert f"12 of 60 genes are held out, and {len(split.test)} of 200" in split.notes[0]
    rest = len(split.train) + len(split.validation)
    assert len(split.validation) == pytest.approx(0.1 * rest, abs=4)
    said = split.to_json()["validation_genotypes_by_unseen_genes"]
    assert sum(said.values()) == len(split.validation)
    assert "0" not in said
    leakage = split.leakage(pairs())
    unseen = {*split.held_out, *split.validation_genes}
    tested = set(
        np.concatenate(
            [g.numpy() for g in pairs().genotypes.take(torch.from_numpy(split.test.copy()))]
        )
    )
    assert leakage.test.genes.of == len(tested)
    assert leakage.test.genes.shared == len(tested - unseen)
    assert leakage.validation.genes.of - leakage.validation.genes.shared == len(
        split.validation_genes
    )


def test_set_by_query_keeps_query_pairs_whole_and_drops_nothing() -> None:
    screen = crossed()
    split = Split.sets(screen, "query")
    query = np.repeat(np.arange(20), 10)
    assert len(set(query[split.test])) == len(set(query[split.validation])) == 2
    assert (len(split.train), len(split.test), len(split.dropped)) == (160, 20, 0)
    assert split.notes == ()
    assert split.method == "set"


def test_set_by_pair_of_triples_that_hang_together_drops_and_says_so() -> None:
    # Every query pair meets the same array genes, and g0 is in two query pairs.
    sets = [[2 * q, 2 * q + 1, a] for q in range(20) for a in range(50, 60)]
    sets += [[0, 40, a] for a in range(50, 60)] + [[40, 2, a] for a in range(50, 60)]
    sets += [[2 * q, 2 * q + 2, a] for q in range(18) for a in range(50, 52)]
    role = ["query", "query", "array"] * len(sets)
    split = Split.sets(screen_of(sets, role=role), "pair", seed=2)
    assert len(split.dropped) > 0
    assert f"by query pair, and {len(split.dropped)} others" in split.notes[0]
    assert "too large for the parts" in split.notes[0]


def test_set_where_roles_are_not_known_finds_the_query_pairs() -> None:
    # Neighbouring query pairs share a gene, so the chain of them hangs together.
    sets = [[q, q + 1, a] for q in range(20) for a in range(50, 60)]
    split = Split.sets(screen_of(sets), "query")
    assert "200 of 200" in split.notes[0]
    assert "by commonest pair" in split.notes[0]
    query = np.repeat(np.arange(20), 10)
    for part in (split.train, split.validation, split.test):
        assert set(np.bincount(query[part])) <= {0, 10}
    assert len(split.test) == 20


def test_set_for_merged_pairs_is_random_and_says_so() -> None:
    screen = screen_of([[i, j] for i in range(20) for j in range(20, 30)])
    for by in ("query", "pair"):
        split = Split.sets(screen, by, seed=4)
        assert split.equals(Split.random(screen, seed=4))
        assert "equals the random split" in split.notes[0]


def test_source_tests_on_the_studies_named() -> None:
    screen = of_three_studies()
    split = Split.source(screen, ["a", "c"])
    assert split.test.tolist() == [*range(10), *range(40, 100)]
    assert (len(split.train), len(split.validation)) == (27, 3)
    assert Split.source(screen, "b").test.tolist() == list(range(10, 40))
    assert "70 of 100 genotypes are of 'a', 'c'" in split.notes[0]


def test_source_lists_the_studies_there_are() -> None:
    with pytest.raises(InputError, match="no study is called 'd'; there are 'a', 'b', 'c'"):
        Split.source(of_three_studies(), ["a", "d"])
    with pytest.raises(InputError, match="no study was given"):
        Split.source(of_three_studies(), [])


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Split.random(pairs(4)), r"0\.1 x 4 = 0\.4 for test"),
        (lambda: Split.random(pairs(), validation=0.5, test=0.5), r"0\.5 \+ test 0\.5 = 1"),
        (lambda: Split.random(pairs(), test=-0.1), "test is -0.1; expected a share"),
        (lambda: Split.random(pairs(), seed=-1), "seed is -1"),
        (lambda: Split.gene(screen_of([[0, 1], [0, 2]])), r"0\.1 x 1 = 0\.1 genotypes"),
        (lambda: Split.gene(pairs(), held_out=0.001), r"0\.001 x 60 genes of the screen = 0\.06"),
        (lambda: Split.gene(pairs(), held_out=0.99), "59 of 60 genes are held out, and 200 of 200"),
        (lambda: Split.source(of_three_studies(), ["a", "b", "c"]), "train part would be empty"),
        (lambda: Split.sets(pairs(), "gene"), "by 'query' or 'pair'"),
        (lambda: Split.sets(pairs(3)), "a part would be empty"),
    ],
)
def test_what_cannot_be_split_says_the_arithmetic(make: object, said: str) -> None:
    with pytest.raises(InputError, match=said):
        make()  # type: ignore[operator]


def test_a_split_that_leaves_no_training_says_how_many_it_would_drop() -> None:
    sets = [[a, b, c] for a in range(8) for b in range(a + 1, 8) for c in range(b + 1, 8)]
    with pytest.raises(InputError, match=r"would be empty.*others that share a gene pair.*dropped"):
        Split.sets(screen_of(sets), "pair", validation=0.3, test=0.3)


def test_save_then_load_is_identity(tmp_path: Path) -> None:
    screen = pairs()
    for name, split in {
        "gene": Split.gene(screen, seed=3),
        "set": Split.sets(screen, seed=3),
        "source": Split.source(of_three_studies(), ["b"]),
        "no validation": Split.random(screen, validation=0),
    }.items():
        split.save(tmp_path / name)
        loaded = Split.load(tmp_path / name, of_three_studies() if name == "source" else screen)
        assert loaded.equals(split)
        assert loaded.to_json() == split.to_json()
        assert np.array_equal(loaded.held_out, split.held_out)
        assert np.array_equal(loaded.unseen, split.unseen)


def test_save_does_not_replace_unless_told_to(tmp_path: Path) -> None:
    screen = pairs()
    Split.random(screen).save(tmp_path / "split")
    with pytest.raises(StoreError, match="already a split"):
        Split.gene(screen).save(tmp_path / "split")
    Split.gene(screen).save(tmp_path / "split", overwrite=True)
    assert Split.load(tmp_path / "split", screen).method == "gene"


def test_another_screen_is_refused(tmp_path: Path) -> None:
    split = Split.random(pairs())
    split.save(tmp_path / "split")
    other = pairs(seed=1)
    with pytest.raises(InputError, match="made of another screen"):
        Split.load(tmp_path / "split", other)
    with pytest.raises(InputError, match="made of another screen"):
        split.leakage(other)


def test_a_screen_is_not_a_split(tmp_path: Path) -> None:
    pairs().save(tmp_path / "screen")
    with pytest.raises(StoreError, match="this is a screen, and a split was expected"):
        Split.load(tmp_path / "screen", pairs())


def test_leakage_counts_what_is_also_in_training() -> None:
    screen = screen_of([[0, 1, 2], [0, 1], [3], [1, 2], [4, 5], [0, 1, 2], [2, 3]])
    leakage = Leakage.measure(
        screen, train=np.array([0, 1, 2]), validation=np.array([3, 4]), test=np.array([5, 6])
    )
    assert leakage.to_json() == {
        "test": {
            "genes": {"shared": 4, "of": 4, "share": 1.0},
            "pairs": {"shared": 3, "of": 4, "share": 0.75},
            "sets": {"shared": 1, "of": 2, "share": 0.5},
        },
        "validation": {
            "genes": {"shared": 2, "of": 4, "share": 0.5},
            "pairs": {"shared": 1, "of": 2, "share": 0.5},
            "sets": {"shared": 0, "of": 2, "share": 0.0},
        },
    }
    json.dumps(leakage.to_json())
    assert leakage.sentence == (
        "Also in training: of the test part 100 % of 4 genes, 75.0 % of 4 pairs and 50.0 % of 2 "
        "sets; of the validation part 50.0 % of 4 genes, 50.0 % of 2 pairs and 0 % of 2 sets."
    )


def test_leakage_of_an_empty_part_and_of_single_genes() -> None:
    screen = screen_of([[i] for i in range(20)])
    leakage = Split.random(screen, validation=0).leakage(screen)
    assert leakage.test.pairs.share is None
    assert leakage.sentence == (
        "Also in training: of the test part 0 % of 2 genes and 0 % of 2 sets; "
        "of the validation part nothing, as it is empty."
    )


def test_leakage_never_rounds_to_none_or_all() -> None:
    screen = screen_of([[0, 1]] + [[i] for i in range(2, 60)])
    rows = np.arange(len(screen))
    leakage = Leakage.measure(screen, train=rows[1:], validation=rows[:0], test=rows)
    assert "96.7 % of 60 genes, 0 % of 1 pairs and 98.3 % of 59 sets" in leakage.sentence
    from deltacell.screen.leakage import Overlap, _percent

    assert _percent(Overlap(1, 10_000)) == "under 0.1 %"
    assert _percent(Overlap(9_999, 10_000)) == "over 99.9 %"


def test_genotypes_of_many_genes() -> None:
    """Sets too large for a key of one number."""
    genes = Genes(f"g{i}" for i in range(6000))
    rng = np.random.default_rng(0)
    sets = [rng.choice(6000, 7, replace=False).tolist() for _ in range(40)]
    screen = Screen.build(genes, Genotypes.of([*sets, *sets]), score=0.1)
    split = Split.random(screen)
    assert split.leakage(screen).test.sets.shared == 0
    assert len(split.test) == 8
