"""The device's time: parts that add up, what an idle device waits for, and the critical path."""

from dataclasses import replace

import numpy as np
import pytest
from traces import STEP, Event, make_trace, named, steps

from deltacell.profile.trace.attribution import Attribution
from deltacell.profile.trace.device import PARTS, DeviceTime
from deltacell.profile.trace.trace import Kind, Trace

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
LOADER = "enumerate(DataLoader)#_Single.__next__"


def device_of(trace: Trace) -> DeviceTime:
    found = Attribution(trace).device
    assert found is not None
    return found


def kernel(begin: int, length: int, number: int, name="gemm", stream="stream 7") -> Event:
    return Event(name, begin, length, Kind.kernel, stream, number)


def launch(begin: int, number: int, length: int = 5) -> Event:
    return Event("cudaLaunchKernel", begin, length, Kind.runtime, correlation=number)


def test_only_what_nothing_hides_is_exposed():
    trace = make_trace(
        [
            STEP,
            kernel(100, 200, 1),
            kernel(200, 300, 2, NCCL, "stream 9"),
            Event("Memcpy HtoD", 450, 150, Kind.copy, "stream 11", 3),
            Event("Memset (Device)", 700, 10, Kind.fill, "stream 7", 4),
        ],
    )
    found = device_of(trace)
    assert found.steps.select(PARTS).row(0) == (200, 200, 110, 490)
    assert [found.kernels[part] for part in ("wall", *PARTS)] == [610, 200, 200, 110, 100]


def test_a_kernel_over_the_end_of_a_step_is_cut_there_but_counted_where_launched():
    found = device_of(make_trace([*steps([100, 100]), launch(50, 1), kernel(80, 60, 1)])).steps
    assert found["compute"].to_list() == [20, 40]
    assert found["kernels"].to_list() == [60, 0]


WAITS = Event("cudaStreamSynchronize", 30, 180, Kind.runtime)
LOADS = Event(LOADER, 50, 800, Kind.annotation)


@pytest.mark.parametrize(
    ("events", "reason", "idle"),
    [
        ([kernel(10, 90, 1), LOADS, launch(860, 2), kernel(870, 130, 2)], "data", 770),
        ([kernel(10, 190, 1), WAITS, launch(400, 2), kernel(410, 590, 2)], "sync", 210),
        ([launch(10, 2), kernel(20, 100, 1), kernel(600, 400, 2)], "queued", 480),
        ([kernel(20, 100, 1), kernel(600, 400, 2)], "unlaunched", 480),
        ([kernel(10, 90, 1), launch(900, 2), kernel(910, 90, 2)], "host", 810),
        ([kernel(10, 90, 1)], "end", 900),
    ],
)
def test_why_an_idle_device_waits(events, reason, idle):
    found = device_of(make_trace([STEP, launch(0, 1), *events]))
    assert found.idle.select("reason", "time").row(0) == (reason, idle)
    assert found.idle["time"].sum() == found.steps["idle"].sum()
    if reason == "data":
        assert ("data", LOADER, 750) in found.idle_by_name.rows()


def test_only_a_device_with_other_streams_waits_for_them():
    events = [STEP, launch(0, 1), launch(10, 2), launch(20, 3), kernel(30, 90, 1)]
    alone = [*events, kernel(600, 300, 2), kernel(900, 100, 3)]
    beside = [*events, kernel(600, 300, 2), kernel(900, 100, 3, stream="stream 9")]
    assert device_of(make_trace(alone)).idle["reason"][0] == "queued"
    assert device_of(make_trace(beside)).idle["reason"][0] == "device"


def test_a_trace_without_steps_begins_with_its_first_launch_and_ends_with_its_last_kernel():
    events = [Event("aten::randn", 0, 5000), launch(5000, 1), kernel(5020, 100, 1)]
    events += [launch(5100, 2), kernel(5130, 100, 2), Event("aten::sum", 5300, 9000)]
    found = Attribution(make_trace(events))
    assert found.device is not None
    assert found.step_times.tolist() == [230]
    assert found.device.steps.select(PARTS).row(0) == (200, 0, 0, 30)
    assert "end" not in found.device.idle["reason"].to_list()


def test_an_idle_device_whose_host_launches_more_slowly_than_it_computes():
    events = [STEP]
    for i in range(10):
        events += [Event("aten::add", 100 * i, 95), launch(100 * i + 40, i, 50)]
        events.append(kernel(100 * i + 92, 4, i))
    assert device_of(make_trace(events)).idle["reason"][0] == "launch"


def test_the_busiest_of_several_devices_is_taken():
    trace = make_trace([STEP, kernel(0, 100, 1), kernel(0, 300, 2, stream="stream 9")])
    numbers = zip(trace.threads, (None, 0, 1), strict=True)
    threads = tuple(replace(thread, device=number) for thread, number in numbers)
    found = device_of(replace(trace, threads=threads))
    assert found.others == 1
    assert found.steps["compute"].to_list() == [300]
    assert Attribution(make_trace([STEP])).device is None


def test_a_device_that_falls_behind_its_host_has_steps_of_its_own():
    events = steps([100] * 4)
    for step in range(4):
        events += [launch(100 * step + 10, step), kernel(20 + 300 * step, 300, step)]
    found = Attribution(make_trace(events))
    assert found.device.windows is not found.steps
    assert (found.step_times.tolist(), found.behind) == ([300, 300, 300], 200)
    assert found.device.steps.filter("counted")["compute"].to_list() == [300, 300, 300]


def test_device_time_is_by_kernel_operator_and_module():
    trace = make_trace(
        [
            STEP,
            Event("nn.Module: Linear_0", 0, 100, Kind.python),
            Event("aten::linear", 10, 80, sequence=3),
            Event("aten::addmm", 20, 60, sequence=3),
            *(launch(30, 1, 10), kernel(50, 200, 1)),
            Event("AddmmBackward0", 300, 100, thread="autograd", sequence=3),
            launch(310, 2, 10)._replace(thread="autograd"),
            kernel(330, 400, 2),
        ],
    )
    work = Attribution(trace).work
    operators = {name: row for name, *row in work.operators.select("name", "time", "total").rows()}
    assert operators["aten::addmm"] == [200, 200]
    assert operators["aten::linear"] == [0, 200]
    assert work.kernels.row(0) == ("gemm", "compute", 2, 600)
    # The backward of its operator is the module's too.
    assert work.modules.filter(name="nn.Module: Linear_0")["time"].item() == 600


def test_without_a_device_modules_have_the_time_of_the_host():
    module = Event("nn.Module: Linear_0", 0, 100, Kind.python)
    inner = Event("nn.Module: Tanh_0", 40, 20, Kind.python)
    modules = Attribution(
        make_trace([STEP, module, Event("aten::addmm", 20, 10), inner]),
    ).work.modules
    assert modules.select("name", "time", "total").rows() == [
        (module.name, 80, 100),
        (inner.name, 20, 20),
    ]


def test_sizes_of_products_give_a_roofline():
    trace = make_trace(
        [STEP, Event("aten::mm", 10, 80), launch(30, 1, 10), kernel(50, 200, 1)],
        shape=np.array([-1, 0, -1, -1], dtype=np.int32),
        shapes=(("[[1000, 1000], [1000, 1000]]", '["float", "float"]'),),
        device_name="NVIDIA A100-SXM4-80GB",
    )
    found = Attribution(trace).work.roofline.row(0, named=True)
    assert found["gflop"] == 2.0
    # 2 GFLOP at 19.5 TFLOP per second.
    assert found["least"] == pytest.approx(102_564, abs=1)
    assert found["share of the peak"] == pytest.approx(102_564 / 200, rel=1e-4)


SYNC = Event("cudaDeviceSynchronize", 550, 450, Kind.runtime)
FORWARD, OPTIMIZER = named("phase.forward", 0, 900), named("phase.optimizer", 900, 100)


@pytest.mark.parametrize(
    ("events", "path"),
    [
        # Without a wait the host is the path.
        ([FORWARD, launch(10, 1), kernel(20, 900, 1)], {"host forward": 900, "host other": 100}),
        # Where the host waits, the path goes over the device.
        (
            [
                *(FORWARD, launch(90, 1, 10), launch(110, 2, 10), kernel(120, 300, 1), OPTIMIZER),
                *(kernel(430, 370, 2, NCCL), WAITS._replace(begin=200, duration=610)),
            ],
            {
                **{"host forward": 200, "host optimizer": 100, "launch waiting": 30},
                **{"device compute": 300, "device communication": 370},
            },
        ),
        # A kernel that the device was ready for waited for its launch.
        (
            [launch(0, 1, 10), kernel(20, 30, 1), launch(500, 2, 10), kernel(520, 100, 2), SYNC],
            {"host other": 890, "launch waiting": 10, "device compute": 100},
        ),
        # A wait with nothing to wait for is the host's.
        ([SYNC], {"host other": 1000}),
    ],
)
def test_the_critical_path(events, path):
    found = Attribution(make_trace([STEP, *events])).critical_path
    assert {f"{where} {part}": time for where, part, time in found.rows()} == path
