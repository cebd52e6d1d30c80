"""The loader: what it hands out, where it stands, what it refuses."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest
import torch

from deltacell.cell import Genes
from deltacell.errors import InputError
from deltacell.screen import Batch, Genotypes, Loader, Screen

GENES = Genes(f"g{i}" for i in range(8))
SETS = [[0, 1, 2], [3, 4], [5], [6, 7], [0, 7, 3, 2], [1], [2, 4]]


def screen_of(**columns: object) -> Screen:
    score = np.arange(len(SETS), dtype=np.float32) / 10
    return Screen.build(GENES, Genotypes.of(SETS), **({"score": score} | columns))


def sets_of(batch: Batch) -> list[list[int]]:
    return [genes.tolist() for genes in batch.genotypes]


def rows_of(loader: Loader) -> list[list[int]]:
    return [batch.rows.tolist() for batch in loader]


def tensors(batch: Batch) -> list[torch.Tensor]:
    genotypes = batch.genotypes
    return [genotypes.genes, genotypes.offsets, batch.targets, batch.weights, batch.rows]


def test_a_batch_holds_genotypes_targets_weights_and_rows() -> None:
    first, second, third = Loader(screen_of(), batch_size=3, shuffle=False)
    assert sets_of(first) == [[0, 1, 2], [3, 4], [5]]
    assert sets_of(second) == [[6, 7], [0, 7, 3, 2], [1]]
    assert second.rows.tolist() == [3, 4, 5]
    torch.testing.assert_close(second.targets, torch.tensor([0.3, 0.4, 0.5]))
    torch.testing.assert_close(second.weights, torch.full((3,), 1 / 3))
    assert (len(third), third.weights.tolist()) == (1, [1.0])
    # Six genes and four offsets of 8 bytes, three targets and weights of 4, three rows of 8.
    assert first.nbytes == 8 * 6 + 8 * 4 + 4 * 3 + 4 * 3 + 8 * 3


def test_ranks_take_contiguous_slices_and_the_last_batch_may_leave_some_empty() -> None:
    how = {"batch_size": 5, "shuffle": False, "world_size": 4}
    loaders = [Loader(screen_of(), rank=r, **how) for r in range(4)]
    assert [rows_of(loader) for loader in loaders] == [
        *([[0], []], [[1], [5]], [[2], []], [[3, 4], [6]])
    ]
    empty = list(loaders[0])[1]
    assert len(empty) == len(empty.targets) == 0
    assert empty.genotypes.offsets.tolist() == [0]
    assert float(list(loaders[1])[1].weights) == 0.5


def test_rows_choose_and_own_targets_are_by_row_of_the_screen() -> None:
    rows = np.array([5, 0, 3])
    rows.setflags(write=False)
    (batch,) = Loader(screen_of(), rows, shuffle=False, targets=np.arange(7) * 100.0)
    assert batch.rows.tolist() == [5, 0, 3]
    assert batch.targets.tolist() == [500.0, 0.0, 300.0]
    assert sets_of(batch) == [[1], [0, 1, 2], [6, 7]]
    (batch,) = Loader(screen_of(), np.isin(np.arange(7), [0, 3]), shuffle=False)
    assert batch.rows.tolist() == [0, 3]


def test_a_batch_is_a_copy_of_the_screen() -> None:
    screen = screen_of()
    for batch in Loader(screen, shuffle=False):
        for column in tensors(batch):
            column.zero_()
    assert screen.equals(screen_of())


def test_epochs_follow_each_other_and_can_be_set() -> None:
    loader = Loader(screen_of(), batch_size=2)
    orders = []
    for epoch in range(3):
        assert loader.epoch == epoch
        orders.append(rows_of(loader))
    assert orders[0] != orders[1] != orders[2]
    loader.set_epoch(1)
    assert rows_of(loader) == orders[1]
    assert loader.epoch == 2


def test_only_the_newest_iteration_moves_the_loader() -> None:
    loader, whole = Loader(screen_of(), batch_size=2), rows_of(Loader(screen_of(), batch_size=2))
    older = iter(loader)
    next(older)
    assert next(iter(loader)).rows.tolist() == whole[0]
    assert len(list(older)) == 3
    assert (loader.epoch, loader.state_dict()["batch"]) == (0, 1)
    assert rows_of(loader) == whole
    assert loader.epoch == 1


def test_counting_the_steps_is_a_whole_epoch() -> None:
    """A trainer that knows the length never asks for one batch too many."""
    loader, expected = Loader(screen_of(), batch_size=2), Loader(screen_of(), batch_size=2)
    first = [b.rows.tolist() for b in islice(loader, len(loader))]
    state = loader.state_dict()
    assert (state["epoch"], state["batch"]) == (1, 0)
    second = [b.rows.tolist() for b in islice(loader, len(loader))]
    assert [first, second] == [rows_of(expected), rows_of(expected)]


def test_a_loaded_state_survives_a_look_ahead_and_setting_the_same_epoch() -> None:
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


def test_the_checksum_of_the_screen_is_not_computed_for_batches() -> None:
    screen = screen_of()
    list(Loader(screen, batch_size=2))
    assert "checksum" not in screen.__dict__


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
def test_a_state_of_another_order_is_refused(key: str, other: dict[str, object]) -> None:
    same = {"screen": screen_of(), "batch_size": 2, "samples_per_epoch": 6}
    state = Loader(**same).state_dict()
    with pytest.raises(InputError) as caught:
        Loader(**(same | other)).load_state_dict(state)
    assert (caught.value.code, caught.value.fields) == ("other-order", {"key": key})


@pytest.mark.parametrize("change", [{"batch": 4}, {"batch": -1}, {"epoch": -1}, None])
def test_what_is_not_a_state_is_refused(change: dict[str, int] | None) -> None:
    loader = Loader(screen_of(), batch_size=2)
    state = {"epoch": 0} if change is None else loader.state_dict() | change
    with pytest.raises(InputError) as caught:
        loader.load_state_dict(state)
    assert caught.value.code == "not-a-state"


@pytest.mark.parametrize("shuffle", [True, False])
def test_an_epoch_of_some_samples_is_the_beginning_of_its_order(shuffle: bool) -> None:
    whole = Loader(screen_of(), batch_size=2, shuffle=shuffle)
    some = Loader(screen_of(), batch_size=2, shuffle=shuffle, samples_per_epoch=3)
    for _ in range(3):
        rows = [row for batch in rows_of(whole) for row in batch]
        assert [row for batch in rows_of(some) for row in batch] == rows[:3]


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"rows": [0, 7]}, "row-outside-screen"),
        ({"rows": [-1]}, "row-outside-screen"),
        ({"rows": [1, 1, 2]}, "repeated-rows"),
        ({"rows": []}, "no-rows"),
        ({"rows": [0.5]}, "invalid-rows"),
        ({"rows": [True, False]}, "invalid-rows"),
        ({"batch_size": 0}, "invalid-number"),
        ({"samples_per_epoch": 0}, "invalid-number"),
        ({"seed": -1}, "invalid-number"),
        ({"rank": 2, "world_size": 2}, "invalid-rank"),
        ({"targets": "p_value"}, "targets"),
        ({"targets": [1.0, 2.0]}, "column-length"),
        ({"targets": [np.nan] * 7}, "missing-target"),
    ],
)
def test_what_cannot_be_loaded(given: dict[str, object], code: str) -> None:
    with pytest.raises(InputError) as caught:
        Loader(screen_of(), **given)
    assert caught.value.code == code


def test_missing_targets_may_be_left_out() -> None:
    score = np.array([0.1, np.nan, 0.2, np.nan, 0.3, 0.4, np.nan], dtype=np.float32)
    (batch,) = Loader(screen_of(score=score), np.isfinite(score), shuffle=False)
    assert batch.rows.tolist() == [0, 2, 4, 5]


def test_batches_move_to_a_device() -> None:
    (there,), (here,) = Loader(screen_of(), device="meta"), Loader(screen_of())
    for batch in (there, here.to("meta")):
        assert {t.device.type for t in tensors(batch)} == {"meta"}
        assert [t.shape for t in tensors(batch)] == [t.shape for t in tensors(here)]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
def test_batches_on_a_gpu_equal_those_in_memory() -> None:
    loaders = (Loader(screen_of(), batch_size=2, device=d) for d in ("cuda", "cpu"))
    for there, here in zip(*loaders, strict=True):
        for a, b in zip(tensors(there), tensors(here), strict=True):
            assert a.is_cuda
            assert torch.equal(a.cpu(), b)
