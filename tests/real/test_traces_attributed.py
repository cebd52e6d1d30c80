"""Real traces, against what was checked by hand; their sentences are in `profile/explain`."""

from pathlib import Path

import polars as pl
import pytest

from deltacell.profile.trace.attribution import Attribution, RanksAttribution
from deltacell.profile.trace.device import PARTS, collective_rows
from deltacell.profile.trace.read import read_trace

pytestmark = pytest.mark.real
MS = 1e6


def adds_up(found: Attribution) -> bool:
    counted = found.per_step.filter("counted")
    assert sum(found.seconds_per_step().values()) == pytest.approx(counted["wall"].mean() / 1e9)
    assert found.doing["time"].sum() == counted["wall"].sum()
    assert found.device is not None
    parts = found.device.steps.select(pl.sum_horizontal(PARTS)).to_series()
    assert (parts == found.device.steps["wall"]).all()
    return True


def shares_of(found: Attribution) -> dict[str, float]:
    seconds = found.seconds_per_step()
    return {name: s / sum(seconds.values()) for name, s in seconds.items()}


@pytest.mark.parametrize(
    ("workers", "step", "loader", "kernels", "idle"),
    [(0, 174.6, 69, 98.6, "data"), (4, 131.3, 1, 99.1, "launch")],
)
def test_resnet50_waits_for_data_only_without_workers(
    shared_data: Path,
    workers: int,
    step: float,
    loader: float,
    kernels: float,
    idle: str,
) -> None:
    file = shared_data / "traces" / f"resnet50_loader_workers_{workers}.pt.trace.json.gz"
    found = Attribution(read_trace(file))
    assert adds_up(found)
    assert found.step_times.mean() / MS == pytest.approx(step, abs=0.05)
    assert found.loader.per_step / MS == pytest.approx(loader, abs=0.5)
    assert found.seconds_per_step()["data loading"] * 1e3 == pytest.approx(loader, abs=0.5)
    assert found.device is not None
    mean = found.device.steps.filter("counted")["kernels"].to_numpy().mean()
    assert mean / MS == pytest.approx(kernels, abs=0.1)
    assert found.device.idle["reason"][0] == found.device.idle_by_name["reason"][0] == idle
    ((number, why),) = found.steps.cut
    assert (number, "warm-up" in why) == (5, workers == 4)
    shares = shares_of(found)
    assert shares["other"] < 0.04
    assert min(shares["forward"], shares["backward"]) > 0.2
    assert shares["optimizer"] > 0.1
    assert not any("no category" in notice for notice in found.notices)
    first = found.syncs.row(0, named=True)
    assert (first["call"], first["operation"]) == ("cudaStreamSynchronize", "aten::to")
    assert first["site"].startswith("resnet50_profiler_api.py(")
    assert first["count"] == 2 * found.n_counted


def test_dlrm_waits_for_rank_7(shared_data: Path) -> None:
    files = sorted((shared_data / "traces" / "dlrm_ddp_8ranks").iterdir())
    dlrm = RanksAttribution([read_trace(file) for file in files])
    assert all(adds_up(one) for one in dlrm.ranks)
    shares = [dlrm.device[part] / dlrm.device["wall"] for part in PARTS]
    compute, communication, copies, idle = (float(share.to_numpy().mean()) for share in shares)
    assert (idle, compute) == pytest.approx((0.545, 0.078), abs=0.0005)
    assert communication + copies == pytest.approx(0.377, abs=0.0005)
    assert not any("missing" in notice for notice in dlrm.notices)
    assert dlrm.alignment is not None
    first = dlrm.alignment.collectives.row(0, named=True)
    assert (first["first_rank"], first["last_rank"]) == (1, 7)
    assert first["late_by"] / MS == pytest.approx(7.6, abs=0.05)
    ranks = dlrm.alignment.ranks.sort("waited_for", descending=True)
    assert ranks["rank"][0] == 7
    assert ranks["waited_for"][0] > 0.7 * ranks["waited_for"].sum()
    assert dlrm.alignment.unaligned == 0
    # Most of the time in collectives is that wait.
    nccl = [one.trace.duration[collective_rows(one.trace)].sum() for one in dlrm.ranks]
    assert dlrm.alignment.ranks["waited"].sum() > 0.7 * sum(nccl)


@pytest.mark.parametrize(
    ("files", "given", "world"),
    [("ddp_a100_rank0of2.json.gz", 1, 2), ("ddp_world128_rank*.json.gz", 2, 128)],
)
def test_missing_ranks_are_a_notice(shared_data: Path, files: str, given: int, world: int) -> None:
    traces = [read_trace(file) for file in sorted((shared_data / "traces").glob(files))]
    found = RanksAttribution(traces)
    assert (len(found.ranks), found.world_size) == (given, world)
    assert any(f"of {world} ranks are missing" in notice for notice in found.notices)
    assert all(adds_up(one) for one in found.ranks)
    if given == 1:
        # The backward of DDP is seen on its own thread.
        (one,) = found.ranks
        assert [one.trace.threads[thread].tid for thread in one.host.helpers] == ["2919752"]
        assert 0.4 < shares_of(one)["backward"] < 0.5
