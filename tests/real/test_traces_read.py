"""Real traces, old and new, are read as they are, told apart from a plain JSON reader."""

import gzip
import json
from collections import Counter
from functools import cache

import numpy as np
import pytest

from deltacell.profile.trace import read as reading
from deltacell.profile.trace.read import read_traces
from deltacell.profile.trace.trace import NOTHING, Kind

pytestmark = pytest.mark.real
read_trace = cache(reading.read_trace)

FILES = {
    "resnet50_loader_workers_0.pt.trace.json.gz": 75_718,
    "ddp_a100_rank0of2.json.gz": 40_573,
    "ddp_world128_rank0.json.gz": 4_855,
    "dlrm_ddp_8ranks/worker7_step_12.1694128201553.pt.trace.json.gz": None,
}
KINDS = {
    **dict.fromkeys(("Operator", "cpu_op"), Kind.operator),
    **dict.fromkeys(("Runtime", "cuda_runtime"), Kind.runtime),
    **dict.fromkeys(("Kernel", "kernel"), Kind.kernel),
    **dict.fromkeys(("Memcpy", "gpu_memcpy"), Kind.copy),
    **dict.fromkeys(("Memset", "gpu_memset"), Kind.fill),
    **{"user_annotation": Kind.annotation, "gpu_user_annotation": Kind.device_annotation},
    "Trace": Kind.other,
}


@pytest.fixture
def traces(shared_data):
    return shared_data / "traces"


@pytest.mark.parametrize("name", FILES)
def test_every_event_with_a_duration_is_there(traces, name):
    path = traces / name
    plain = json.loads(gzip.decompress(path.read_bytes()), parse_float=str, parse_int=str)
    listed = plain["traceEvents"]
    assert FILES[name] in (None, len(listed))
    complete = [e for e in listed if e["ph"] == "X"]
    trace = read_trace(path)
    assert trace.warnings == ()

    def nanoseconds(text):
        whole, _, rest = text.partition(".")
        return int(whole) * 1000 + int(rest.ljust(3, "0")[:3] or 0)

    base = int(plain.get("baseTimeNanoseconds", 0))
    expected = Counter(
        (e["name"], nanoseconds(e["ts"]) + base, nanoseconds(e["dur"]), e["pid"], e["tid"])
        for e in complete
    )
    where = [trace.threads[code] for code in trace.thread]
    found = Counter(
        (trace.text(row), int(begin) + trace.origin, int(duration), thread.pid, thread.tid)
        for row, (begin, duration, thread) in enumerate(
            zip(trace.begin, trace.duration, where, strict=True),
        )
    )
    assert found == expected
    of_category = Counter(KINDS[e["cat"]] for e in complete)
    of_kind = Counter(Kind(kind) for kind in trace.kind)
    # Named ranges of old traces are among the operators.
    for both in (of_category, of_kind):
        both[Kind.operator] += both.pop(Kind.annotation, 0)
    assert of_kind == of_category
    # Device events have the call that caused them.
    on_device = np.isin(trace.kind, [Kind.kernel, Kind.copy, Kind.fill])
    assert all(trace.threads[code].is_device for code in np.unique(trace.thread[on_device]))
    assert not any(trace.threads[c].is_device for c in np.unique(trace.thread[trace.kind <= 1]))
    calls = trace.correlation[trace.kind == Kind.runtime]
    assert np.isin(trace.correlation[on_device], calls).mean() > 0.98


def test_the_old_schema_and_outer_operators_before_what_they_call(traces):
    trace = read_trace(traces / "resnet50_loader_workers_0.pt.trace.json.gz")
    assert (trace.rank, trace.world_size, trace.device_name) == (None, None, "Tesla V100-DGXS-32GB")
    names = {trace.text(row) for row in np.flatnonzero(trace.kind == Kind.annotation)}
    assert {name for name in names if name.startswith("ProfilerStep#")} == {
        f"ProfilerStep#{number}" for number in range(5, 11)
    }
    assert "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__" in names
    assert (trace.stack != NOTHING).sum() == 14_994
    same = (np.diff(trace.begin) == 0) & (np.diff(trace.duration) == 0)
    same &= np.diff(trace.thread) == 0
    pairs = Counter((trace.text(row), trace.text(row + 1)) for row in np.flatnonzero(same))
    assert pairs["aten::zeros", "aten::empty"] >= pairs["aten::empty", "aten::zeros"]
    assert pairs["cudaLaunchKernel", "aten::add_"] == 0


def test_the_new_schema(traces):
    trace = read_trace(traces / "ddp_a100_rank0of2.json.gz")
    assert (trace.rank, trace.world_size) == (0, 2)
    assert trace.device_name == "NVIDIA A100-PG509-200"
    # Written as microseconds since a base, with three places.
    assert (trace.begin % 1000 != 0).mean() > 0.9


def test_ranks_and_missing_ones_and_other_programs_that_are_none(traces, refused):
    ranks = read_traces(traces / "dlrm_ddp_8ranks")
    assert [trace.rank for trace in ranks] == list(range(8))
    assert {trace.world_size for trace in ranks} == {8}
    assert all(trace.warnings == () for trace in ranks)
    for name, said in (
        ("ddp_a100_rank0of2.json.gz", "Traces of 1 of 2 ranks are missing: 1."),
        ("ddp_world128_rank1.json.gz", "Traces of 127 of 128 ranks are missing: 0, 2 to 127."),
    ):
        (trace,) = read_traces(traces / name)
        assert trace.warnings == (said,)
    refused("not-one-run", read_traces, traces)


def test_a_trace_cut_off_in_the_middle_is_read_up_to_the_cut(traces, tmp_path):
    packed = (traces / "ddp_a100_rank0of2.json.gz").read_bytes()
    whole = read_trace(traces / "ddp_a100_rank0of2.json.gz")
    (tmp_path / "half.json.gz").write_bytes(packed[: len(packed) // 2])
    half = read_trace(tmp_path / "half.json.gz")
    assert 0 < len(half) < len(whole)
    assert half.damage == "the file is cut off"
