"""Real traces, against what was checked by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from deltacell.profile.trace.attribution import (
    Attribution,
    RanksAttribution,
    attribute,
    attribute_ranks,
)
from deltacell.profile.trace.device import PARTS, collective_rows
from deltacell.profile.trace.read import read_trace

pytestmark = pytest.mark.real
MS = 1e6


@pytest.fixture(scope="module")
def resnet(shared_data: Path) -> dict[int, Attribution]:
    folder = shared_data / "traces"
    return {
        workers: attribute(
            read_trace(folder / f"resnet50_loader_workers_{workers}.pt.trace.json.gz")
        )
        for workers in (0, 4)
    }


@pytest.fixture(scope="module")
def dlrm(shared_data: Path) -> RanksAttribution:
    files = sorted((shared_data / "traces" / "dlrm_ddp_8ranks").iterdir())
    return attribute_ranks([read_trace(file) for file in files])


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
    ("workers", "step", "loader", "kernels"), [(0, 174.6, 69, 98.6), (4, 131.3, 1, 99.1)]
)
def test_resnet50_is_what_was_measured(
    resnet: dict[int, Attribution], workers: int, step: float, loader: float, kernels: float
) -> None:
    found = resnet[workers]
    assert adds_up(found)
    assert found.step_times.mean() / MS == pytest.approx(step, abs=0.05)
    assert found.loader.per_step / MS == pytest.approx(loader, abs=0.5)
    assert found.seconds_per_step()["data loading"] * 1e3 == pytest.approx(loader, abs=0.5)
    assert found.device is not None
    mean = found.device.steps.filter("counted")["kernels"].mean()
    assert mean is not None
    assert float(mean) / MS == pytest.approx(kernels, abs=0.1)
    assert [number for number, _ in found.steps.cut] == [5]


def test_resnet50_waits_for_data_only_without_workers(resnet: dict[int, Attribution]) -> None:
    assert "warm-up" in resnet[4].steps.cut[0][1]
    assert "warm-up" not in resnet[0].steps.cut[0][1]
    assert any("Step 5" in notice for notice in resnet[4].notices)


def test_without_workers_the_device_waits_for_data(resnet: dict[int, Attribution]) -> None:
    device = resnet[0].device
    assert device is not None
    assert device.idle.row(0, named=True)["reason"] == "data"
    assert device.idle_by_name.row(0)[:2] == (
        "data",
        "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
    )
    other = resnet[4].device
    assert other is not None
    assert other.idle.row(0, named=True)["reason"] == "launch"


def test_little_of_resnet50_is_in_no_category(resnet: dict[int, Attribution]) -> None:
    for found in resnet.values():
        shares = shares_of(found)
        assert shares["other"] < 0.04
        assert min(shares["forward"], shares["backward"]) > 0.2
        assert shares["optimizer"] > 0.1
        assert not any("no category" in notice for notice in found.notices)


def test_the_copies_that_resnet50_waits_for_have_a_call_site(
    resnet: dict[int, Attribution],
) -> None:
    first = resnet[0].syncs.row(0, named=True)
    assert (first["call"], first["operation"]) == ("cudaStreamSynchronize", "aten::to")
    assert first["site"].startswith("resnet50_profiler_api.py(")
    assert first["count"] == 2 * resnet[0].n_counted


def test_dlrm_is_what_was_measured(dlrm: RanksAttribution) -> None:
    assert all(adds_up(one) for one in dlrm.ranks)
    shares = [dlrm.device[part] / dlrm.device["wall"] for part in PARTS]
    compute, communication, copies, idle = (float(share.to_numpy().mean()) for share in shares)
    assert (idle, compute) == pytest.approx((0.545, 0.078), abs=0.0005)
    assert communication + copies == pytest.approx(0.377, abs=0.0005)
    assert not any("missing" in notice for notice in dlrm.notices)


def test_dlrm_waits_for_rank_7(dlrm: RanksAttribution) -> None:
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
    found = attribute_ranks(traces)
    assert len(found.ranks) == given
    assert found.world_size == world
    assert any(f"Of {world} ranks only" in notice for notice in found.notices)
    assert all(adds_up(one) for one in found.ranks)


def test_the_backward_of_ddp_is_seen_on_its_own_thread(shared_data: Path) -> None:
    found = attribute(read_trace(shared_data / "traces" / "ddp_a100_rank0of2.json.gz"))
    names = [found.trace.threads[thread].tid for thread in found.host.helpers]
    assert names == ["2919752"]
    shares = shares_of(found)
    assert 0.4 < shares["backward"] < 0.5
    assert np.isclose(sum(shares.values()), 1)
