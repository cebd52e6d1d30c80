"""Splits: what each is for, what it says about itself, and what it refuses."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from deltacell.cell import Genes
from deltacell.errors import InputError, StoreError
from deltacell.screen import Genotypes, Leakage, Screen, Split
from deltacell.screen.split import Overlap

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
    assert len(Split.random(screen, validation=0, test=0).train) == 200


def test_a_set_measured_too_often_for_a_part_stays_in_training() -> None:
    screen = screen_of([[0, 1]] * 50 + [[2, i] for i in range(3, 53)])
    for seed in range(10):
        assert set(range(50)) <= set(Split.random(screen, seed).train)


def test_a_split_cannot_be_changed_and_its_parts_are_all_rows_once() -> None:
    split = Split.random(pairs())
    with pytest.raises(ValueError, match="read-only"):
        split.test[0] = 3
    with pytest.raises(dataclasses.FrozenInstanceError):
        split.seed = 3  # type: ignore[misc]
    for overlapping in ([0, 1], [4]):
        with pytest.raises(InputError) as caught:
            Split(np.array([0, 1]), np.array(overlapping), np.array([2]), "random", 0, "")
        assert caught.value.code == "invalid-split"


def test_gene_reports_by_how_many() -> None:
    screen = pairs()
    split = Split.gene(screen)
    assert len(split.held_out) == 12
    assert set(split.unseen_counts) == {1, 2}
    assert split.to_json()["test_genotypes_by_unseen_genes"]["2"] == split.unseen_counts[2]
    rest = len(split.train) + len(split.validation)
    assert len(split.validation) == pytest.approx(0.1 * rest, abs=4)
    said = split.to_json()["validation_genotypes_by_unseen_genes"]
    assert sum(said.values()) == len(split.validation)
    assert "0" not in said
    leakage = split.leakage(screen)
    unseen = {*split.held_out, *split.validation_genes}
    tested = set(screen.genotypes.take(torch.from_numpy(split.test.copy())).genes.tolist())
    assert leakage.test.genes == Overlap(len(tested - unseen), len(tested))
    validation = leakage.validation.genes
    assert validation.of - validation.shared == len(split.validation_genes)


def test_set_by_query_keeps_query_pairs_whole_and_drops_nothing() -> None:
    sets = [[2 * q, 2 * q + 1, a] for q in range(20) for a in range(50, 60)]
    split = Split.sets(screen_of(sets, role=["query", "query", "array"] * len(sets)), "query")
    query = np.repeat(np.arange(20), 10)
    assert len(set(query[split.test])) == len(set(query[split.validation])) == 2
    assert (len(split.train), len(split.test), len(split.dropped)) == (160, 20, 0)
    assert (split.notes, split.method) == ((), "set")


def test_set_by_pair_of_triples_that_hang_together_drops_and_says_so() -> None:
    # Every query pair meets the same array genes, and g0 is in two query pairs.
    sets = [[2 * q, 2 * q + 1, a] for q in range(20) for a in range(50, 60)]
    sets += [[0, 40, a] for a in range(50, 60)] + [[40, 2, a] for a in range(50, 60)]
    sets += [[2 * q, 2 * q + 2, a] for q in range(18) for a in range(50, 52)]
    role = ["query", "query", "array"] * len(sets)
    split = Split.sets(screen_of(sets, role=role), "pair", seed=2)
    assert len(split.dropped) > 0
    assert f"by query pair, and {len(split.dropped)} others" in split.notes[0]


def test_set_where_roles_are_not_known_finds_the_query_pairs() -> None:
    # Neighbouring query pairs share a gene, so the chain of them hangs together.
    sets = [[q, q + 1, a] for q in range(20) for a in range(50, 60)]
    split = Split.sets(screen_of(sets), "query")
    assert "by commonest pair" in split.notes[0]
    query = np.repeat(np.arange(20), 10)
    for part in (split.train, split.validation, split.test):
        assert set(np.bincount(query[part])) <= {0, 10}
    assert len(split.test) == 20


@pytest.mark.parametrize("by", ["query", "pair"])
def test_set_for_merged_pairs_is_random_and_says_so(by: str) -> None:
    screen = screen_of([[i, j] for i in range(20) for j in range(20, 30)])
    split = Split.sets(screen, by, seed=4)
    assert split.equals(Split.random(screen, seed=4))
    assert len(split.notes) == 1


def test_source_tests_on_the_studies_named() -> None:
    screen = of_three_studies()
    split = Split.source(screen, ["a", "c"])
    assert split.test.tolist() == [*range(10), *range(40, 100)]
    assert (len(split.train), len(split.validation)) == (27, 3)
    assert Split.source(screen, "b").test.tolist() == list(range(10, 40))


TRIPLES = [[a, b, c] for a in range(8) for b in range(a + 1, 8) for c in range(b + 1, 8)]


@pytest.mark.parametrize(
    ("make", "code"),
    [
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
        (lambda: Split.sets(screen_of(TRIPLES), "pair", 0, 0.3, 0.3), "empty-part"),
        (lambda: Split.named(pairs(), [["g0", "g1"]], ["exam"]), "unknown-part"),
        (lambda: Split.named(pairs(), [["g0", "g1"]] * 2, ["test", "train"]), "set-in-two-parts"),
    ],
)
def test_what_cannot_be_split(make: Callable[[], Split], code: str) -> None:
    with pytest.raises(InputError) as caught:
        make()
    assert caught.value.code == code


def test_save_then_load_is_identity(tmp_path: Path) -> None:
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


def test_what_is_not_the_split_of_a_screen_is_refused(tmp_path: Path) -> None:
    screen, other = pairs(), pairs(seed=1)
    Split.random(screen).save(tmp_path / "split")
    with pytest.raises(StoreError):
        Split.gene(screen).save(tmp_path / "split")
    Split.gene(screen).save(tmp_path / "split", overwrite=True)
    assert Split.load(tmp_path / "split", screen).method == "gene"
    for refused in (
        lambda: Split.load(tmp_path / "split", other),
        lambda: Split.random(screen).leakage(other),
    ):
        with pytest.raises(InputError) as caught:
            refused()
        assert caught.value.code == "other-screen"
    screen.save(tmp_path / "screen")
    with pytest.raises(StoreError):
        Split.load(tmp_path / "screen", screen)


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
    assert leakage.sentence == (
        "Also in training: of the test part 100 % of 4 genes, 75.0 % of 4 pairs and 50.0 % of 2 "
        "sets; of the validation part 50.0 % of 4 genes, 50.0 % of 2 pairs and 0 % of 2 sets."
    )


def test_leakage_of_an_empty_part_and_of_single_genes() -> None:
    screen = screen_of([[i] for i in range(20)])
    leakage = Split.random(screen, validation=0).leakage(screen)
    assert leakage.test.pairs.share is None
    assert str(leakage.test) == "0 % of 2 genes and 0 % of 2 sets"
    assert str(leakage.validation) == "nothing, as it is empty"


def test_a_share_is_never_rounded_to_none_or_all() -> None:
    shares = [Overlap(n, 10_000) for n in (0, 1, 5_000, 9_999, 10_000)]
    assert [str(share) for share in shares] == [
        *("0 %", "under 0.1 %", "50.0 %", "over 99.9 %", "100 %")
    ]


def test_genotypes_of_many_genes() -> None:
    """Sets too large for a key of one number."""
    rng = np.random.default_rng(0)
    sets = [rng.choice(6000, 7, replace=False).tolist() for _ in range(40)]
    genes = Genes(f"g{i}" for i in range(6000))
    screen = Screen.build(genes, Genotypes.of([*sets, *sets]), score=0.1)
    split = Split.random(screen)
    assert split.leakage(screen).test.sets.shared == 0
    assert len(split.test) == 8
