"""The loader and the dataset: what they hand out, where they stand, what they refuse."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from deltacell.cell import Genes
from deltacell.errors import InputError
from deltacell.screen import Batch, GenotypeDataset, Genotypes, Loader, Screen

GENES = Genes(f"g{i}" for i in range(8))
SETS = [[0, 1, 2], [3, 4], [5], [6, 7], [0, 7, 3, 2], [1], [2, 4]]


def screen_of(sets: list[list[int]] = SETS, **columns: object) -> Screen:
    score = np.arange(len(sets), dtype=np.float32) / 10
    return Screen.build(GENES, Genotypes.of(sets), **({"score": score} | columns))


def sets_of(batch: Batch) -> list[list[int]]:
    return [genes.tolist() for genes in batch.genotypes]


def test_a_batch_holds_genotypes_targets_weights_and_rows() -> None:
    first, second, third = Loader(screen_of(), batch_size=3, shuffle=False)
    assert sets_of(first) == [[0, 1, 2], [3, 4], [5]]
    assert sets_of(second) == [[6, 7], [0, 7, 3, 2], [1]]
    assert sets_of(third) == [[2, 4]]
    assert second.rows.tolist() == [3, 4, 5]
    torch.testing.assert_close(second.targets, torch.tensor([0.3, 0.4, 0.5]))
    torch.testing.assert_close(second.weights, torch.full((3,), 1 / 3))
    assert third.weights.tolist() == [1.0]
    for batch in (first, second, third):
        assert batch.genotypes.genes.dtype == batch.genotypes.offsets.dtype == torch.int64
        assert batch.targets.dtype == batch.weights.dtype == torch.float32
        assert batch.rows.dtype == torch.int64
        assert batch.genotypes.check(len(GENES)) is batch.genotypes


def test_size_of_a_batch() -> None:
    batch = next(iter(Loader(screen_of(), batch_size=2, shuffle=False)))
    assert len(batch) == 2
    # Five genes and three offsets of 8 bytes, two targets and weights of 4, two rows of 8.
    assert batch.nbytes == 8 * 5 + 8 * 3 + 4 * 2 + 4 * 2 + 8 * 2


def test_ranks_take_contiguous_slices_and_the_last_batch_may_leave_some_empty() -> None:
    loaders = [
        Loader(screen_of(), batch_size=5, shuffle=False, rank=r, world_size=4) for r in range(4)
    ]
    assert [len(loader) for loader in loaders] == [2] * 4
    rows = [[batch.rows.tolist() for batch in loader] for loader in loaders]
    assert rows == [[[0], []], [[1], [5]], [[2], []], [[3, 4], [6]]]
    empty = list(loaders[0])[1]
    assert len(empty) == len(empty.genotypes) == len(empty.targets) == len(empty.weights) == 0
    assert empty.genotypes.offsets.tolist() == [0]
    assert float(list(loaders[1])[1].weights) == 0.5


def test_sample_weights_are_shares_of_the_global_batch() -> None:
    weights = [1.0, 3.0, 2.0, 2.0, 1.0, 1.0, 9.0]
    first, second = Loader(screen_of(), batch_size=4, shuffle=False, sample_weights=weights)
    torch.testing.assert_close(first.weights, torch.tensor([1, 3, 2, 2]) / 8)
    torch.testing.assert_close(second.weights, torch.tensor([1, 1, 9]) / 11)


def test_rows_choose_and_own_targets_are_by_row_of_the_screen() -> None:
    targets = np.arange(len(SETS)) * 100.0
    (batch,) = Loader(screen_of(), [5, 0, 3], shuffle=False, targets=targets)
    assert batch.rows.tolist() == [5, 0, 3]
    assert batch.targets.tolist() == [500.0, 0.0, 300.0]
    assert sets_of(batch) == [[1], [0, 1, 2], [6, 7]]
    mask = np.isin(np.arange(len(SETS)), [0, 3])
    (batch,) = Loader(screen_of(), mask, shuffle=False)
    assert batch.rows.tolist() == [0, 3]


def test_a_batch_is_a_copy_of_the_screen() -> None:
    screen = screen_of()
    before = screen.genotypes.genes.clone()
    for batch in Loader(screen, shuffle=False):
        batch.genotypes.genes.zero_()
        batch.rows.zero_()
        batch.targets.zero_()
    assert torch.equal(screen.genotypes.genes, before)
    (again,) = Loader(screen, shuffle=False)
    assert again.rows.tolist() == list(range(len(SETS)))
    assert again.targets[1:].all()


def test_read_only_rows_are_taken() -> None:
    rows = np.array([2, 4])
    rows.setflags(write=False)
    (batch,) = Loader(screen_of(), rows, shuffle=False)
    assert batch.rows.tolist() == [2, 4]


def test_epochs_follow_each_other_and_can_be_set() -> None:
    loader = Loader(screen_of(), batch_size=2)
    orders = []
    for epoch in range(3):
        assert loader.epoch == epoch
        orders.append([b.rows.tolist() for b in loader])
    assert orders[0] != orders[1] != orders[2]
    loader.set_epoch(1)
    assert [b.rows.tolist() for b in loader] == orders[1]
    assert loader.epoch == 2


def test_an_iteration_given_up_starts_the_epoch_over() -> None:
    loader = Loader(screen_of(), batch_size=2)
    whole = [b.rows.tolist() for b in Loader(screen_of(), batch_size=2)]
    assert next(iter(loader)).rows.tolist() == whole[0]
    assert next(iter(loader)).rows.tolist() == whole[0]
    assert [b.rows.tolist() for b in loader] == whole
    assert loader.epoch == 1


def test_an_older_iteration_does_not_move_the_loader() -> None:
    loader = Loader(screen_of(), batch_size=2)
    older = iter(loader)
    next(older)
    newer = iter(loader)
    next(newer)
    assert len(list(older)) == 3
    assert (loader.epoch, loader.state_dict()["batch"]) == (0, 1)


def test_counting_the_steps_is_a_whole_epoch() -> None:
    """A trainer that knows the length never asks for one batch too many."""
    loader = Loader(screen_of(), batch_size=2)
    first = [b.rows.tolist() for b in islice(loader, len(loader))]
    state = loader.state_dict()
    assert (state["epoch"], state["batch"]) == (1, 0)
    second = [b.rows.tolist() for b in islice(loader, len(loader))]
    expected = Loader(screen_of(), batch_size=2)
    assert [first, second] == [[b.rows.tolist() for b in expected] for _ in range(2)]


def test_a_loaded_state_survives_a_look_ahead_and_setting_the_same_epoch() -> None:
    loader = Loader(screen_of(), batch_size=2, seed=3)
    whole = [b.rows.tolist() for b in loader]
    list(islice(loader, 2))
    state = loader.state_dict()
    resumed = Loader(screen_of(), batch_size=2, seed=3)
    resumed.load_state_dict(state)
    iter(resumed)
    next(iter(resumed))
    resumed.set_epoch(1)
    resumed.set_epoch(state["epoch"])
    left = [b.rows.tolist() for b in resumed]
    loader.set_epoch(1)
    assert left == [b.rows.tolist() for b in loader][2:]
    assert resumed.epoch == 2
    resumed.set_epoch(0)
    assert [b.rows.tolist() for b in resumed] == whole


def test_the_state_is_plain_data() -> None:
    loader = Loader(screen_of(), batch_size=2, seed=5)
    assert set(loader.state_dict()) == {
        "epoch",
        "batch",
        "seed",
        "shuffle",
        "batch_size",
        "samples_per_epoch",
        "run_length",
        "rows",
        "screen",
    }
    assert all(type(v) in (int, str, bool) for v in loader.state_dict().values())


def test_the_checksum_of_the_screen_is_not_computed_for_batches() -> None:
    screen = screen_of()
    loader = Loader(screen, batch_size=2)
    list(loader)
    assert "checksum" not in screen.__dict__
    loader.state_dict()
    assert "checksum" in screen.__dict__


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"seed": 1}, "another seed: 0, and this loader has 1"),
        ({"batch_size": 3}, "another batch size: 2, and this loader has 3"),
        ({"shuffle": False}, "another setting of shuffle"),
        ({"rows": [0, 1, 2, 3, 4, 6], "samples_per_epoch": 6}, "another choice of rows"),
        ({"samples_per_epoch": 5}, "another number of samples an epoch: 6, and this loader has 5"),
    ],
)
def test_a_state_of_another_order_is_refused(other: dict[str, object], said: str) -> None:
    same = {"batch_size": 2, "samples_per_epoch": 6}
    state = Loader(screen_of(), **same).state_dict()
    with pytest.raises(InputError, match=said):
        Loader(screen_of(), **(same | other)).load_state_dict(state)


@pytest.mark.parametrize("shuffle", [True, False])
def test_an_epoch_of_some_samples_is_the_beginning_of_its_order(shuffle: bool) -> None:
    whole = Loader(screen_of(), batch_size=2, shuffle=shuffle)
    some = Loader(screen_of(), batch_size=2, shuffle=shuffle, samples_per_epoch=3)
    assert len(some) == 2
    for _ in range(3):
        rows = [row for batch in whole for row in batch.rows.tolist()]
        assert [row for batch in some for row in batch.rows.tolist()] == rows[:3]
    with pytest.raises(InputError, match="samples_per_epoch is 0"):
        Loader(screen_of(), samples_per_epoch=0)


def test_a_state_of_another_screen_is_refused() -> None:
    state = Loader(screen_of()).state_dict()
    with pytest.raises(InputError, match="another screen"):
        Loader(screen_of(score=0.5)).load_state_dict(state)


@pytest.mark.parametrize("change", [{"batch": 4}, {"batch": -1}, {"epoch": -1}])
def test_a_state_out_of_range_is_refused(change: dict[str, int]) -> None:
    loader = Loader(screen_of(), batch_size=2)
    with pytest.raises(InputError, match="an epoch has 4 batches"):
        loader.load_state_dict(loader.state_dict() | change)


def test_something_else_is_not_a_state() -> None:
    with pytest.raises(InputError, match="not the state of a loader: it has no batch, batch_size"):
        Loader(screen_of()).load_state_dict({"epoch": 0})


def test_missing_targets_are_counted() -> None:
    score = np.array([0.1, np.nan, 0.2, np.nan, 0.3, 0.4, np.nan], dtype=np.float32)
    screen = screen_of(score=score)
    with pytest.raises(InputError, match=r"3 of 7 rows have no target.*\n.*Leave them out"):
        Loader(screen)
    with pytest.raises(InputError, match="1 of 2 rows have no target"):
        GenotypeDataset(screen, [0, 1])
    (batch,) = Loader(screen, np.isfinite(score), shuffle=False)
    assert batch.rows.tolist() == [0, 2, 4, 5]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"rows": [0, 7]}, "row 7 is outside the screen, whose rows are 0 to 6"),
        ({"rows": [-1]}, "row -1 is outside"),
        ({"rows": [1, 1, 2]}, "1 of 3 rows are repeats"),
        ({"rows": []}, "no rows were given"),
        ({"rows": [0.5]}, "rows must be a list of row numbers, not float64"),
        ({"rows": [True, False]}, r"mask of rows has the shape \(2,\), expected \(7,\)"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"rank": 2, "world_size": 2}, "rank 2 of 2"),
        ({"seed": -1}, "seed is -1"),
        ({"targets": "p_value"}, "targets is 'p_value'; expected 'score'"),
        ({"targets": [1.0, 2.0]}, r"targets has the shape \(2,\), expected \(7,\)"),
        ({"sample_weights": [0.0] + [1.0] * 6}, "1 of 7 sample weights are not positive"),
        ({"sample_weights": np.ones(3)}, "sample_weights has the shape"),
    ],
)
def test_what_cannot_be_loaded(given: dict[str, object], said: str) -> None:
    with pytest.raises(InputError, match=said):
        Loader(screen_of(), **given)


def test_batches_move_to_a_device() -> None:
    (batch,) = Loader(screen_of(), device="meta")
    assert {t.device.type for t in _tensors(batch)} == {"meta"}
    (here,) = Loader(screen_of())
    assert {t.device.type for t in _tensors(here.to("meta"))} == {"meta"}
    assert [t.shape for t in _tensors(batch)] == [t.shape for t in _tensors(here)]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
def test_batches_on_a_gpu_equal_those_in_memory() -> None:
    for there, here in zip(
        Loader(screen_of(), batch_size=2, device="cuda"),
        Loader(screen_of(), batch_size=2),
        strict=True,
    ):
        assert all(t.is_cuda for t in _tensors(there))
        for a, b in zip(_tensors(there), _tensors(here), strict=True):
            assert torch.equal(a.cpu(), b)


def _tensors(batch: Batch) -> list[torch.Tensor]:
    return [
        batch.genotypes.genes,
        batch.genotypes.offsets,
        batch.targets,
        batch.weights,
        batch.rows,
    ]


def through_data_loader(workers: int) -> list[Batch]:
    dataset = GenotypeDataset(screen_of(), [6, 4, 2, 0, 1])
    generator = torch.Generator().manual_seed(1)
    return list(
        DataLoader(
            dataset,
            batch_size=2,
            shuffle=True,
            generator=generator,
            num_workers=workers,
            collate_fn=GenotypeDataset.collate,
        )
    )


def assert_covers(batches: list[Batch]) -> None:
    assert [len(batch) for batch in batches] == [2, 2, 1]
    assert sorted(r for b in batches for r in b.rows.tolist()) == [0, 1, 2, 4, 6]
    for batch in batches:
        assert sets_of(batch) == [SETS[row] for row in batch.rows.tolist()]
        torch.testing.assert_close(batch.targets, batch.rows / 10)
        assert float(batch.weights.sum()) == 1.0


def test_the_dataset_in_a_data_loader() -> None:
    batches = through_data_loader(workers=0)
    assert_covers(batches)
    assert [r for b in batches for r in b.rows.tolist()] != [6, 4, 2, 0, 1]


@pytest.mark.slow
def test_the_dataset_in_a_data_loader_with_workers() -> None:
    batches = through_data_loader(workers=2)
    assert_covers(batches)
    alone = through_data_loader(workers=0)
    assert [b.rows.tolist() for b in batches] == [b.rows.tolist() for b in alone]


def test_the_dataset_outside_its_rows() -> None:
    with pytest.raises(IndexError):
        GenotypeDataset(screen_of(), [3])[1]
