"""The loader: what it hands out, where it stands, what it refuses."""

from itertools import chain, islice

import numpy as np
import pytest

from deltacell.cell import Genes
from deltacell.screen import Genotypes, Loader, Screen

GENES = Genes(f"g{i}" for i in range(8))
SETS = [[0, 1, 2], [3, 4], [5], [6, 7], [0, 7, 3, 2], [1], [2, 4]]


def screen_of(**columns):
    score = np.arange(len(SETS), dtype=np.float32) / 10
    return Screen.build(GENES, Genotypes.of(SETS), **({"score": score} | columns))


def rows_of(loader):
    return [batch.rows.tolist() for batch in loader]


def tensors(batch):
    genotypes = batch.genotypes
    return [genotypes.genes, genotypes.offsets, batch.targets, batch.weights, batch.rows]


def test_rows_choose_and_own_targets_are_by_row_of_the_screen():
    rows = np.array([5, 0, 3])
    rows.setflags(write=False)
    (batch,) = Loader(screen_of(), rows, shuffle=False, targets=np.arange(7) * 100.0)
    assert batch.rows.tolist() == [5, 0, 3]
    assert batch.targets.tolist() == [500.0, 0.0, 300.0]
    assert [genes.tolist() for genes in batch.genotypes] == [[1], [0, 1, 2], [6, 7]]
    # Six genes and four offsets of 8 bytes, three targets and weights of 4, three rows of 8.
    assert batch.nbytes == 8 * 6 + 8 * 4 + 4 * 3 + 4 * 3 + 8 * 3
    (batch,) = Loader(screen_of(), np.isin(np.arange(7), [0, 3]), shuffle=False)
    assert batch.rows.tolist() == [0, 3]


def test_a_batch_is_a_copy_of_the_screen_and_moves_to_a_device():
    screen = screen_of()
    for batch in Loader(screen, shuffle=False):
        for column in tensors(batch):
            column.zero_()
    assert "checksum" not in screen.__dict__
    assert screen.equals(screen_of())
    (here,) = Loader(screen_of())
    there = here.to("meta")
    assert {t.device.type for t in tensors(there)} == {"meta"}
    assert [t.shape for t in tensors(there)] == [t.shape for t in tensors(here)]


def test_after_an_abandoned_iteration_the_epoch_starts_over():
    loader, whole = Loader(screen_of(), batch_size=2), rows_of(Loader(screen_of(), batch_size=2))
    for _ in range(2):
        assert next(iter(loader)).rows.tolist() == whole[0]
    assert (loader.epoch, loader.state_dict()["batch"]) == (0, 1)
    assert rows_of(loader) == whole
    assert loader.epoch == 1


def test_a_loaded_state_survives_a_look_ahead_and_what_is_none_is_refused(refused):
    loader = Loader(screen_of(), batch_size=2, seed=3)
    list(loader)
    list(islice(loader, 2))
    state = loader.state_dict()
    assert all(type(value) in (int, str, bool) for value in state.values())
    resumed = Loader(screen_of(), batch_size=2, seed=3)
    resumed.load_state_dict(state)
    next(iter(resumed))
    resumed.set_epoch(state["epoch"])
    loader.set_epoch(1)
    assert rows_of(resumed) == rows_of(loader)[2:]
    assert resumed.epoch == 2
    loader = Loader(screen_of(), batch_size=2)
    good = loader.state_dict()
    for state in ({"epoch": 0}, *(good | c for c in ({"batch": 4}, {"batch": -1}, {"epoch": -1}))):
        refused("not-a-state", loader.load_state_dict, state)


@pytest.mark.parametrize(
    ("key", "other"),
    [
        ("seed", {"seed": 1}),
        ("batch_size", {"batch_size": 3}),
        ("shuffle", {"shuffle": False}),
        ("rows", {"rows": [0, 1, 2, 3, 4, 6]}),
        ("samples_per_epoch", {"samples_per_epoch": 5}),
        ("run_length", {"run_length": 2}),
        ("screen", {"screen": screen_of(score=0.5)}),
    ],
)
def test_a_state_of_another_order_is_refused(key, other, refused):
    same = {"screen": screen_of(), "batch_size": 2, "samples_per_epoch": 6}
    state = Loader(**same).state_dict()
    error = refused("other-order", Loader(**(same | other)).load_state_dict, state)
    assert error.fields == {"key": key}


@pytest.mark.parametrize("shuffle", [True, False])
def test_an_epoch_of_some_samples_is_the_beginning_of_its_order(shuffle):
    whole = Loader(screen_of(), batch_size=2, shuffle=shuffle)
    some = Loader(screen_of(), batch_size=2, shuffle=shuffle, samples_per_epoch=3)
    for _ in range(3):
        assert [*chain(*rows_of(some))] == [*chain(*rows_of(whole))][:3]


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"rows": [0, 7]}, "invalid-rows"),
        ({"rows": [-1]}, "invalid-rows"),
        ({"rows": [1, 1, 2]}, "invalid-rows"),
        ({"rows": []}, "invalid-rows"),
        ({"rows": [0.5]}, "invalid-rows"),
        ({"rows": [True, False]}, "invalid-rows"),
        ({"batch_size": 0}, "invalid-number"),
        ({"samples_per_epoch": 0}, "invalid-number"),
        ({"seed": -1}, "invalid-number"),
        ({"targets": [1.0, 2.0]}, "column-length"),
        ({"targets": [np.nan] * 7}, "missing-target"),
    ],
)
def test_options_that_a_loader_cannot_follow_are_refused(given, code, refused):
    refused(code, lambda: Loader(screen_of(), **given))
