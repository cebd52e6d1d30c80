"""Ranks aligned on their collectives."""

from __future__ import annotations

import pytest
from made import Event, make_trace

from deltacell.errors import InputError
from deltacell.profile.trace.attribution import RanksAttribution, attribute_ranks
from deltacell.profile.trace.trace import Kind, Trace

NCCL = "ncclKernel_AllReduce_RING_LL_Sum_float"


def device_rank(rank: int, load: int, origin: int = 0, world: int = 3, clock: int = 0) -> Trace:
    """A rank that loads for a while, and then meets the others at two collectives."""
    done = 1000
    events = [
        Event("ProfilerStep#1", 0, 2000, Kind.annotation),
        Event("enumerate(DataLoader)#_Single.__next__", 0, load, Kind.annotation),
        Event("cudaLaunchKernel", load + 10, 5, Kind.runtime, correlation=1),
        Event(NCCL, load + 20, done - load - 20, Kind.kernel, "stream 8", 1),
        Event("cudaLaunchKernel", done + 10, 5, Kind.runtime, correlation=2),
        Event(NCCL, done + 20 + rank, 500 - rank, Kind.kernel, "stream 8", 2),
    ]
    return make_trace(events, rank=rank, world_size=world, origin=origin + clock)


def host_rank(rank: int, work: int) -> Trace:
    events = [
        Event("ProfilerStep#5", 0, 2000, Kind.annotation),
        Event("phase.loss", 0, work, Kind.annotation),
        Event("phase.backward", work, 1200 - work, Kind.annotation),
        Event("autograd::engine::evaluate_function: MulBackward0", work + 10, 50),
        Event("c10d::allreduce_", work + 20, 5),
        Event("gloo:all_reduce", work + 25, 1100 - work - 25, Kind.annotation, "gloo"),
    ]
    return make_trace(events, rank=rank, world_size=2)


def test_the_last_one_is_named_with_what_it_was_doing() -> None:
    found = attribute_ranks([device_rank(rank, load) for rank, load in enumerate([100, 900, 300])])
    assert found.alignment is not None
    first = found.alignment.collectives.row(0, named=True)
    assert (first["first_rank"], first["last_rank"], first["late_by"]) == (0, 1, 800)
    assert first["waited"] == 800 + 600
    assert first["category"] == "data_loading"
    assert first["doing"].startswith("enumerate(DataLoader)")
    assert found.alignment.ranks["last"].to_list() == [0, 1, 1]
    assert found.alignment.ranks["waited_for"].to_list() == [0, 1400, 1 + 2]
    assert found.alignment.on_device
    assert found.missing == ()


def test_ranks_that_begin_at_other_times_are_laid_on_one_clock() -> None:
    late = device_rank(1, 100, origin=700)
    found = attribute_ranks([device_rank(0, 100), late])
    assert found.alignment is not None
    first = found.alignment.collectives.row(0, named=True)
    assert (first["last_rank"], first["late_by"], first["late_before"]) == (1, 700, 700)
    assert found.alignment.shift == (0, 0)


def test_clocks_that_cannot_be_one_are_laid_on_the_ends() -> None:
    hour = 3600 * 10**9
    found = attribute_ranks([device_rank(0, 100), device_rank(1, 900, clock=hour, world=2)])
    assert found.alignment is not None
    first = found.alignment.collectives.row(0, named=True)
    assert (first["last_rank"], first["late_by"]) == (1, 800)
    assert any("clocks" in notice for notice in found.notices)


def test_collectives_of_the_host_are_aligned_by_the_calls_that_start_them() -> None:
    found = attribute_ranks([host_rank(0, 100), host_rank(1, 800)])
    assert found.alignment is not None
    assert not found.alignment.on_device
    first = found.alignment.collectives.row(0, named=True)
    assert (first["last_rank"], first["late_by"], first["category"]) == (1, 700, "loss")
    # The rank that came first waited for the other in its backward.
    waits = found.ranks[0].seconds_per_step()["communication"]
    assert waits * 1e9 == pytest.approx(1100 - 160 + 5)


def test_missing_ranks_are_noticed() -> None:
    found: RanksAttribution = attribute_ranks(
        [device_rank(rank, 100, world=128) for rank in (0, 1)]
    )
    assert len(found.missing) == 126
    assert found.world_size == 128
    assert any("2 of 128 ranks" in notice for notice in found.notices)


def test_one_rank_alone_has_no_alignment() -> None:
    found = attribute_ranks([device_rank(0, 100, world=2)])
    assert found.alignment is None
    assert found.missing == (1,)


def test_two_traces_of_one_rank_are_refused() -> None:
    with pytest.raises(InputError, match="rank 0"):
        attribute_ranks([device_rank(0, 100), device_rank(0, 200)])


def test_a_collective_on_some_ranks_only_is_said() -> None:
    more = [
        Event("ProfilerStep#1", 0, 2000, Kind.annotation),
        *(Event(NCCL, 100 * i, 50, Kind.kernel, "stream 8", i) for i in range(1, 4)),
    ]
    found = attribute_ranks([device_rank(0, 100, world=2), make_trace(more, rank=1, world_size=2)])
    assert found.alignment is not None
    assert found.alignment.unaligned == 1
    assert len(found.alignment.collectives) == 2


def test_a_call_that_returns_at_once_is_no_sign_of_other_clocks() -> None:
    # The collective itself lies beside, and was not written for all calls.
    million = 10**6

    def rank(number: int, at: int) -> Trace:
        events = [
            Event("ProfilerStep#5", 0, 2000 * million, Kind.annotation),
            Event("c10d::allreduce_", at, 5),
            Event("gloo:all_reduce", at + 10, 1100 * million - at, Kind.annotation, "gloo"),
            Event("c10d::allreduce_", 1200 * million + at, 5),
            Event("c10d::allreduce_", 1210 * million + at, 5),
        ]
        return make_trace(events, rank=number, world_size=2)

    found = attribute_ranks([rank(0, 20), rank(1, 500 * million)])
    assert found.alignment is not None
    assert found.alignment.shift == (0, 0)
    assert found.alignment.collectives["last_rank"].to_list() == [1, 1, 1]
    assert found.alignment.arrivals["length"].null_count() == 4


def test_a_collective_that_nobody_waits_for_is_no_wait() -> None:
    def busy(rank: int, at: int) -> Trace:
        events = [
            Event("ProfilerStep#5", 0, 2000, Kind.annotation),
            Event("phase.forward", 0, 2000, Kind.annotation),
            Event("c10d::allreduce_", at, 5),
            Event("gloo:all_reduce", at + 10, 1500 - at, Kind.annotation, "gloo"),
        ]
        return make_trace(events, rank=rank, world_size=2)

    found = attribute_ranks([busy(0, 100), busy(1, 900)])
    assert found.alignment is not None
    row = found.alignment.collectives.row(0, named=True)
    assert (row["last_rank"], row["late_by"], row["waited"]) == (1, 800, 5)


def test_what_does_not_count_is_in_no_sum() -> None:
    def two_steps(rank: int, at: int) -> Trace:
        events = [
            Event("ProfilerStep#1", 0, 1000, Kind.annotation),
            Event(NCCL, at, 900 - at, Kind.kernel, "stream 8"),
            Event("ProfilerStep#2", 1000, 1000, Kind.annotation),
            Event(NCCL, 1010 + rank, 800, Kind.kernel, "stream 8"),
        ]
        return make_trace(events, rank=rank, world_size=2)

    found = attribute_ranks([two_steps(0, 100), two_steps(1, 800)])
    assert found.alignment is not None
    assert found.alignment.collectives["counted"].to_list() == [False, True]
    assert found.alignment.ranks["waited_for"].to_list() == [0, 1]
