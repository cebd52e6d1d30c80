"""Ranks aligned on their collectives."""

import pytest
from traces import Event, make_trace, named, steps

from deltacell.profile.trace.attribution import Alignment, RanksAttribution
from deltacell.profile.trace.trace import Kind, Trace

NCCL = "ncclKernel_AllReduce_RING_LL_Sum_float"
LONG = named("ProfilerStep#1", 0, 2000)


def device_rank(rank: int, load: int, origin: int = 0, world: int = 3) -> Trace:
    """A rank that loads for a while, and then meets the others at two collectives."""
    events = [
        *(LONG, named("enumerate(DataLoader)#_Single.__next__", 0, load)),
        Event("cudaLaunchKernel", load + 10, 5, Kind.runtime, correlation=1),
        Event(NCCL, load + 20, 980 - load, Kind.kernel, "stream 8", 1),
        Event("cudaLaunchKernel", 1010, 5, Kind.runtime, correlation=2),
        Event(NCCL, 1020 + rank, 500 - rank, Kind.kernel, "stream 8", 2),
    ]
    return make_trace(events, rank=rank, world_size=world, origin=origin)


def host_ranks(*ranks: list[Event]) -> list[Trace]:
    return [make_trace(events, rank=i, world_size=len(ranks)) for i, events in enumerate(ranks)]


def aligned(traces: list[Trace]) -> Alignment:
    found = RanksAttribution(traces).alignment
    assert found is not None
    return found


def test_the_last_one_is_named():
    found = aligned([device_rank(rank, load) for rank, load in enumerate([100, 900, 300])])
    first = found.collectives.row(0, named=True)
    assert (first["first_rank"], first["last_rank"], first["late_by"]) == (0, 1, 800)
    assert first["waited"] == 1400
    assert found.ranks["last"].to_list() == [0, 1, 1]
    assert found.ranks["waited_for"].to_list() == [0, 1400, 1 + 2]
    assert found.ranks["waited"].sum() == 1403


@pytest.mark.parametrize(
    ("loads", "origin", "late", "before", "shifted"),
    [
        ((100, 100), 700, 700, 700, False),
        # Clocks that cannot be one are aligned on the ends of collectives.
        ((100, 900), 3600 * 10**9, 800, 0, True),
    ],
)
def test_ranks_are_put_on_one_clock(loads, origin, late, before, shifted):
    traces = [device_rank(0, loads[0], world=2), device_rank(1, loads[1], origin, world=2)]
    found = aligned(traces)
    first = found.collectives.row(0, named=True)
    assert (first["last_rank"], first["late_by"], first["late_before"]) == (1, late, before)
    assert found.shifted == shifted


def test_collectives_of_the_host_are_aligned_by_the_calls_that_start_them():
    def rank(work: int) -> list[Event]:
        return [
            *(LONG, named("phase.loss", 0, work), named("phase.backward", work, 1200 - work)),
            Event("autograd::engine::evaluate_function: MulBackward0", work + 10, 50),
            Event("c10d::allreduce_", work + 20, 5),
            named("gloo:all_reduce", work + 25, 1075 - work, "gloo"),
        ]

    ranks = RanksAttribution(host_ranks(rank(100), rank(800)))
    first = ranks.alignment.collectives.row(0, named=True)
    assert (first["last_rank"], first["late_by"]) == (1, 700)
    # The rank that came first waited for the other in its backward.
    assert ranks.ranks[0].seconds_per_step()["gradient communication"] * 1e9 == pytest.approx(945)


def test_missing_ranks_are_noticed_and_one_alone_has_no_alignment():
    found = RanksAttribution([device_rank(rank, 100, world=128) for rank in (0, 1)])
    assert found.world_size == 128
    assert found.notices[0] == "Traces of 126 of 128 ranks are missing: 2 to 127."
    assert RanksAttribution([device_rank(0, 100, world=2)]).alignment is None


def test_a_collective_on_some_ranks_only_is_counted():
    more = [LONG, *(Event(NCCL, 100 * i, 50, Kind.kernel, "stream 8", i) for i in range(1, 4))]
    found = aligned([device_rank(0, 100, world=2), make_trace(more, rank=1, world_size=2)])
    assert (found.unaligned, len(found.collectives)) == (1, 2)


def test_a_call_that_returns_at_once_is_no_sign_of_other_clocks():
    # The collective itself runs beside, and was not written for all calls.
    ms = 10**6

    def rank(at: int) -> list[Event]:
        calls = [Event("c10d::allreduce_", at + later, 5) for later in (0, 1200 * ms, 1210 * ms)]
        beside = named("gloo:all_reduce", at + 10, 1100 * ms - at, "gloo")
        return [named("ProfilerStep#5", 0, 2000 * ms), *calls, beside]

    found = aligned(host_ranks(rank(20), rank(500 * ms)))
    assert not found.shifted
    assert found.collectives["last_rank"].to_list() == [1, 1, 1]


def test_a_collective_that_nobody_waits_for_is_no_wait():
    def busy(at: int) -> list[Event]:
        beside = named("gloo:all_reduce", at + 10, 1500 - at, "gloo")
        return [LONG, named("phase.forward", 0, 2000), Event("c10d::allreduce_", at, 5), beside]

    row = aligned(host_ranks(busy(100), busy(900))).collectives.row(0, named=True)
    assert (row["last_rank"], row["late_by"], row["waited"]) == (1, 800, 5)


def test_a_collective_that_does_not_count_is_in_no_sum():
    def rank(at: int) -> list[Event]:
        first = Event(NCCL, at, 900 - at, Kind.kernel, "stream 8")
        return [*steps([1000, 1000]), first, Event(NCCL, 1010 + at, 50, Kind.kernel, "stream 8")]

    found = aligned(host_ranks(rank(100), rank(800)))
    assert found.collectives["counted"].to_list() == [False, True]
    assert found.ranks["waited_for"].to_list() == [0, 700]
