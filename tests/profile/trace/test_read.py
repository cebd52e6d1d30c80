"""Reading a trace, whoever wrote it, and the traces of several ranks."""

import gzip
import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from fractions import Fraction

import pytest

from deltacell.base.errors import InputError
from deltacell.profile.trace import read as reading
from deltacell.profile.trace.decode import EventTable
from deltacell.profile.trace.read import read_trace, read_traces
from deltacell.profile.trace.trace import NOTHING, Kind

CUT = "The file is cut off"


def event(name="aten::add", ts=100, dur=10, **more):
    made = {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 2, "ts": ts, "dur": dur}
    return {key: value for key, value in {**made, **more}.items() if value is not ...}


@pytest.fixture
def write(tmp_path):
    """Write a text, or events and what else a trace says of itself."""

    def written(content, name="trace.json", **about):
        if isinstance(content, list):
            content = json.dumps({**about, "traceEvents": content})
        content = content if isinstance(content, bytes) else content.encode()
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
        return path

    return written


@pytest.fixture
def read(write):
    return lambda *given, **about: read_trace(write(*given, **about))


def code_of(path, reader=read_trace):
    with pytest.raises(InputError) as caught:
        reader(path)
    return caught.value.code


def names(trace):
    return [trace.text(row) for row in range(len(trace))]


class TestWhatAnEventIs:
    @pytest.mark.parametrize(
        ("kind", "categories"),
        [
            (Kind.operator, "Operator cpu_op"),
            (Kind.runtime, "Runtime cuda_runtime cuda_driver hip_runtime"),
            (Kind.kernel, "Kernel kernel mtia_ccp_events hpu_op"),
            (Kind.copy, "Memcpy gpu_memcpy kernel:CopyHostToDevice"),
            (Kind.fill, "Memset gpu_memset kernel:__amd_rocclr_fillBufferAligned.kd"),
            (Kind.annotation, "user_annotation Operator:ProfilerStep#7 cpu_op:Optimizer.step#SGD"),
            (Kind.device_annotation, "gpu_user_annotation"),
            (Kind.python, "python_function"),
            (Kind.other, "overhead Trace something_new"),
        ],
    )
    def test_by_category_and_where_that_is_too_wide_by_name(self, read, kind, categories):
        pairs = [word.partition(":") for word in categories.split()]
        trace = read([event(name or "x", cat=category) for category, _, name in pairs])
        assert set(trace.kind.tolist()) == {kind}

    def test_the_profiler_of_autograd_has_no_categories_and_no_object(self, read):
        cpu = event(cat=..., pid="CPU functions", tid=0)
        cuda = event("kernel", ts=105, cat=..., pid="CUDA functions", tid=7)
        trace = read(json.dumps([cpu, cuda]))
        assert trace.kind.tolist() == [Kind.operator, Kind.kernel]
        assert [t.is_device for t in trace.threads] == [False, True]
        assert trace.warnings == ()

    def test_numbers_that_join_events_are_read_and_0_joins_none(self, read):
        number = {"correlation": 55}
        launch = event("cudaLaunchKernel", cat="cuda_runtime", args=number)
        kernel = event("k", 120, cat="kernel", pid=3, tid=7, args=number | {"device": 3})
        copy = event("Memcpy HtoD", 130, cat="gpu_memcpy", pid=3, tid=7, args={"bytes": 4096})
        forward = event("aten::mul", 140, args={"Sequence number": 9})
        free = event("cudaFree", 150, cat="cuda_runtime", args={"correlation": 0})
        of_context = {"stream": 4294967295, "correlation": 4294967295}
        sync = event("Context Sync", 160, cat="cuda_sync", tid=4294967295, args=of_context)
        trace = read([launch, kernel, copy, forward, free, sync])
        assert trace.correlation.tolist() == [55, 55, NOTHING, NOTHING, NOTHING, 4294967295]
        assert trace.sequence.tolist() == [NOTHING, NOTHING, NOTHING, 9, NOTHING, NOTHING]
        assert trace.threads[trace.thread[1]].device == 3
        assert trace.threads[trace.thread[5]].tid == "4294967295"
        assert trace.on_device.tolist() == [False, True, True, False, False, False]

    def test_inputs_and_call_stacks(self, read):
        said = {"Input Dims": [[32, 8], []], "Input type": ["float", "Scalar"]}
        stack = {"Call stack": "a.py(1): f;b.py(2): g"}
        trace = read([event(args=stack), event("aten::mm", 105, args=said), event(ts=300)])
        assert trace.shape.tolist() == [NOTHING, 0, NOTHING]
        assert trace.shapes == (("[[32, 8], []]", '["float", "Scalar"]'),)
        assert trace.stack.tolist() == [0, NOTHING, NOTHING]
        assert trace.stacks == ("a.py(1): f;b.py(2): g",)
        assert len(read([event()]).stack) == 0

    def test_unknown_categories_are_counted(self, read):
        trace = read([event(), event("x", 105, cat="quantum"), event("y", 106, cat="quantum")])
        assert trace.strange == {"quantum": 2}

    def test_a_thread_is_the_same_as_number_and_as_text(self, read):
        named = {"ph": "M", "name": "thread_name", "pid": 1, "tid": 2, "args": {"name": "main"}}
        trace = read([event(tid="2"), event(tid=2, ts=200), named])
        assert [(t.pid, t.tid, t.name) for t in trace.threads] == [("1", "2", "main")]

    def test_of_two_events_of_one_length_the_one_begun_first_is_outer(self, read):
        # As in old traces, where whole microseconds make an operator as long as what it calls.
        inner = event("aten::_to_copy", args={"External id": 8})
        outer = event("aten::to", args={"External id": 7})
        launch = event("cudaLaunchKernel", cat="cuda_runtime", args={"External id": 1})
        step = event("ProfilerStep#1", cat="user_annotation", args={"External id": 99})
        trace = read([launch, inner, outer, step])
        assert names(trace) == ["ProfilerStep#1", "aten::to", "aten::_to_copy", "cudaLaunchKernel"]


class TestTimes:
    @pytest.mark.parametrize("ts", ["1716423322690655.12", "4458676522690.655", "6.001", "1e3"])
    def test_nanoseconds_are_kept_whatever_the_clock(self, read, ts):
        later = "2e3" if "e" in ts else ts.replace("6", "8")
        first = f'{{"ph":"X","name":"a","ts":{ts},"dur":0.001}}'
        second = f'{{"ph":"X","name":"b","ts":{later},"dur":12.345}}'
        trace = read(f'{{"traceEvents": [{first}, {{"ph":"M","name":"x"}}, {second}]}}')
        assert trace.origin == int(Fraction(ts) * 1000)
        assert trace.begin.tolist() == [0, int((Fraction(later) - Fraction(ts)) * 1000)]
        assert trace.duration.tolist() == [1, 12_345]

    @pytest.mark.parametrize("ts", [10**16, 1e300, -(10**17), 10**30, "9876543210987654.123"])
    def test_a_time_beyond_all_clocks_is_left_out(self, read, ts):
        trace = read([event(ts=1.5), event(ts=ts), event(ts=2.5)])
        assert trace.begin.tolist() == [0, 1000]
        assert trace.damage == "1 event could not be read"

    def test_damaged_and_unpaired_events_are_left_out_and_counted(self, read):
        half = {"ph": "B", "name": "outer", "pid": 1, "tid": 2, "ts": 10}
        made = [
            *(event("good"), event("negative", dur=-5), event("missing", dur=...)),
            *(event("null", dur=None), event("timeless", ts=...), event("odd", ph="Q")),
            *(half | {"ph": "E", "name": "before", "ts": 5}, half | {"name": "lost"}, half),
            *(half | {"ph": "E", "ts": 30}, half | {"name": "open", "ts": 40}),
        ]
        trace = read(made)
        assert (names(trace), trace.duration.tolist()) == (["outer", "good"], [20_000, 10_000])
        assert [int(said.split()[0]) for said in trace.warnings] == [4, 3, 1]
        assert trace.damage == "8 events could not be read"


class TestWhatATraceSaysOfItself:
    def test_metadata_before_and_after_the_events_is_read(self, read):
        about = {
            "deviceProperties": [{"id": 0, "name": "A"}, {"id": 1, "name": "B"}],
            "distributedInfo": {"backend": "nccl", "rank": 3, "world_size": 8},
            **{"record_shapes": 1, "with_stack": 0, "pytorch_version": "2.6"},
            "baseTimeNanoseconds": 10**18,
        }
        kernel = event("k", cat="kernel", pid=1, args={"device": 1, "stream": 7})
        before = read([kernel], "rank5.json", **about)
        text = json.dumps({"traceEvents": [kernel]})[:-1]
        after = read(text + ', "INFO": ["a}, {\\"ph\\": 1"], ' + json.dumps(about)[1:])
        for trace in (before, after):
            assert (trace.rank, trace.world_size, trace.device_name) == (3, 8, "B")
            assert trace.settings == {"record_shapes": True, "with_stack": False}
            assert (trace.torch_version, trace.warnings) == ("2.6", ())
            assert trace.origin == 10**18 + 100_000

    def test_the_rank_by_the_file_name(self, read):
        ranks = {
            "worker7_step_12.1694128201553.pt.trace.json": (7, None),
            "ddp_a100_rank0of2.json": (0, None),
            "rank_12.json.gz": (12, None),
            "resnet50_loader_workers_4.pt.trace.json": (None, None),
            "crank3.json": (None, None),
        }
        traces = {name: read([event()], name) for name in ranks}
        assert {name: (t.rank, t.world_size) for name, t in traces.items()} == ranks


def whole(n=50):
    events = [event(f"op{i}", 10 * i, 5, args={"External id": i}) for i in range(n)]
    return json.dumps({"schemaVersion": 1, "traceEvents": events})


class TestDamage:
    @pytest.mark.parametrize("damage", ["cut", "overwritten"])
    def test_a_packed_file(self, read, damage):
        packed = gzip.compress(whole(20_000).encode())
        half = packed[: len(packed) // 2]
        trace = read(half if damage == "cut" else half + b"\xff" * len(half))
        assert 100 < len(trace) < 20_000
        assert trace.warnings[0].startswith(f"{CUT} (the gzip data")

    @pytest.mark.parametrize(
        ("written", "name"),
        [
            (b'"a\x01b\n\x00c\xff\xfed\x1b[31m"', "a b  c\ufffd\ufffdd [31m"),
            (rb'"C:\Users\me"', "C:\\Users\\me"),
            (rb'"a \ud800 b"', "a \ufffd b"),
            (rb'"\ud83d\ude00 \\ \" \u00e9"', '\U0001f600 \\ " \u00e9'),
        ],
    )
    def test_names_that_json_does_not_allow(self, read, written, name):
        trace = read(whole(3).encode().replace(b'"op1"', written))
        assert names(trace) == ["op0", name, "op2"]

    @pytest.mark.parametrize("value", ["inf", "-nan", "NaN", "-Infinity", "nan(ind)"])
    def test_values_that_are_no_numbers_are_left_out_with_a_warning(self, read, value):
        trace = read(whole(3).replace('"External id": 1', f'"bandwidth": {value}'))
        assert (len(trace), len(trace.warnings)) == (3, 1)
        assert len(read(whole(3).replace('"ts": 10', f'"ts": {value}'))) == 2

    @pytest.mark.parametrize(
        ("good", "damaged"),
        [
            ('"name": "op2"', '"name": "say "hello" to } ] {"'),
            ('"ts": 20, "dur": 5', '"ts": 20, "dur": '),
            ('{"External id": 2}', '{"External id": 2'),
        ],
    )
    def test_an_event_that_cannot_be_decoded_is_left_out_alone(self, read, good, damaged):
        trace = read(whole(6).replace(good, damaged))
        assert names(trace) == ["op0", "op1", "op3", "op4", "op5"]
        assert trace.damage == "1 event could not be read"

    def test_numbers_and_names_of_another_type(self, read):
        odd = [
            event(ts="100.5", dur="7"),
            event(ts=200, args=None),
            event(ts=300, args={"stream": "7", "correlation": 5.0, "bytes": "many"}),
            event(ts=400, name=None, tid=None, pid=1.5, args={"correlation": "6"}),
            event(ts=500, args={"correlation": 10**30, "Sequence number": "many"}),
            event(ts=600, args=[1, 2]),
        ]
        trace = read([*odd, 7, None, ["x"]])
        assert trace.begin.tolist() == [0, 99_500, 199_500, 299_500, 399_500, 499_500]
        assert trace.duration.tolist() == [7_000] + [10_000] * 5
        assert trace.correlation.tolist() == [NOTHING, NOTHING, 5, 6, NOTHING, NOTHING]
        assert trace.sequence.tolist() == [NOTHING] * 6
        assert (trace.text(3), trace.threads[trace.thread[3]].pid) == ("", "1.5")
        assert trace.damage == "3 events could not be read"

    @pytest.mark.parametrize(
        ("code", "texts"),
        [
            ("empty-trace", [b"", b"  \n ", b"\x1f\x8b\x08"]),
            ("not-a-trace", [b"hello", b"PK\x03\x04", b'{"a": 1}', b'{"a": ' * 50_000]),
            ("not-a-trace", [b'{"traceEvents": {}}', b'{"traceEvents"']),
            ("no-events", [b'{"traceEvents": []}', b'{"traceEvents": [', b"[]", b"[1, 2, 3]"]),
            (
                "no-events",
                [b'[{"a": 1}]', b"[" * 100_000, b'{"traceEvents": [' + b'{"a":' * 50_000],
            ),
        ],
    )
    def test_files_that_are_no_traces_are_refused_with_codes(self, write, tmp_path, code, texts):
        assert {code_of(write(text)) for text in texts} == {code}
        assert code_of(tmp_path) == code_of(tmp_path / "none.json") == "unreadable-file"


class TestSeveralProcesses:
    @pytest.fixture
    def joined(self, monkeypatch):
        """How often the part of another process was added."""
        calls, join = [], EventTable.join
        monkeypatch.setattr(EventTable, "join", lambda *tables: calls.append(join(*tables)))
        monkeypatch.setattr(reading, "PART", 1000)
        monkeypatch.setattr(os, "sched_getaffinity", lambda process: range(4))
        return calls

    def test_a_large_plain_file_is_read_in_parts(self, read, joined):
        text = json.loads(whole(200))
        for i, one in enumerate(text["traceEvents"]):
            one["args"] |= {"Input Dims": [[i // 2]], "Input type": ["float"]}
            one["args"]["Call stack"] = f"call{i // 3}"
        trace = read(json.dumps(text))
        assert (len(joined), len(trace), trace.warnings) == (38, 200, ())
        assert names(trace) == [f"op{i}" for i in range(200)]
        assert [trace.shapes[code] for code in trace.shape] == [
            (f"[[{i // 2}]]", '["float"]') for i in range(200)
        ]
        assert [trace.stacks[code] for code in trace.stack] == [f"call{i // 3}" for i in range(200)]
        for text, name in (
            (whole(1), "small"),
            (whole(200), "packed.gz"),
            ("[" + "1" * 9999, "bare"),
        ):
            with suppress(InputError):
                read(text, name)
        assert len(joined) == 38

    @pytest.mark.parametrize(
        ("good", "other", "rows", "said"),
        [
            ('"name": "op150"', '"name": "}, {\\"ph\\": 1"', 200, 0),
            ('"traceEvents"', '"more": [' + '{"name": 1}, ' * 999 + '{}], "traceEvents"', 200, 0),
            ('"name": "op150"', '"name": "say "hello" to } ] {"', 199, 1),
            ('{"schemaVersion": 1', '{"deeper": {"schemaVersion": 1', 200, 1),
            ('"op20", "pid": 1, "tid": 2, "ts": 200, "dur": 5, "args": {"External id": 20}}',
             '"op20"}], "more": [{"ph": "X"}', 20, 1),
            ('{"ph": "X", "cat": "cpu_op", "name": "op150"', '{"ph": "B", "name": "op150"', 199, 1),
        ],
    )  # fmt: skip
    def test_a_trace_that_cannot_be_cut_safely_is_read_by_one_process(
        self, read, joined, good, other, rows, said
    ):
        text = whole(200)
        assert good in text
        trace = read(text.replace(good, other))
        assert (len(trace), len(trace.warnings)) == (rows, said)

    def test_a_kill_leaves_no_process_behind(self, write):
        program = (
            "import os, sys\n"
            "from deltacell.profile.trace import read\n"
            "read.PART, os.sched_getaffinity = 1000, lambda process: range(4)\n"
            "read.read_trace(sys.argv[1], progress=lambda *done: os.kill(os.getpid(), 9))\n"
        )
        # More than fits into a pipe, so that the others wait for the one that is killed.
        command = [sys.executable, "-c", program, str(write(whole(20_000)))]
        killed = subprocess.Popen(command, start_new_session=True)
        assert killed.wait(60) == -9
        for _ in range(100):
            try:
                os.killpg(killed.pid, 0)
            except ProcessLookupError:
                return
            time.sleep(0.1)
        pytest.fail("a process of the group is still there")


class TestRanks:
    @pytest.fixture
    def rank(self, write):
        def written(name, rank=None, world_size=None, ts=0, cat="cpu_op"):
            about = {"distributedInfo": {"rank": rank, "world_size": world_size}}
            return write([event(ts=ts, cat=cat)], name, **({} if rank is None else about))

        return written

    def test_ranks_of_a_folder_are_in_order_and_complete(self, rank, tmp_path):
        for number in (10, 2, 0, 1, *range(3, 10)):
            rank(f"worker{number}.json.gz", number, 11)
        (tmp_path / "notes.json").write_text('{"a": 1}')
        traces = read_traces(tmp_path)
        assert [trace.rank for trace in traces] == list(range(11))
        # A file that is not a trace is left out and named.
        assert all("notes.json" in trace.warnings[0] for trace in traces)

    def test_missing_ranks_are_named(self, rank, tmp_path):
        (alone,) = read_traces(rank("a.json", 0, 2))
        assert alone.warnings == ("Traces of 1 of 2 ranks are missing: 1.",)
        for name in ("some/rank0.json", "some/rank2.json"):
            rank(name)
        said = ("Traces of 1 of 3 ranks are missing: 1.",)
        assert [trace.warnings for trace in read_traces(tmp_path / "some")] == [said, said]

    def test_the_windows_of_a_run_are_cycles_of_one_trace_per_rank(self, rank, tmp_path):
        rank("run/config.json")
        for number, window in [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2)]:
            name = f"run/traces/trace-rank{number}-window{window}.json.gz"
            rank(name, ts=1000 * window)
        rank("run/traces/.trace-rank1-window2.json.gz.plain.tmp")
        traces = read_traces(tmp_path / "run")
        assert [trace.rank for trace in traces] == [0, 1]
        assert [trace.cycles for trace in traces] == [(0, 10**6, 2 * 10**6), (0, 10**6)]

    @pytest.mark.parametrize("other", [(0, 2), (1, 4), (None, None)])
    @pytest.mark.parametrize("one", [(0, 2), (None, None)])
    def test_traces_of_different_runs_are_refused(self, rank, tmp_path, one, other):
        rank("a.json", *one)
        rank("b.json", *other)
        assert code_of(tmp_path, read_traces) == "not-one-run"

    def test_missing_files_and_traces_of_other_programs_are_refused(self, rank, tmp_path):
        assert code_of(tmp_path / "nothing", read_traces) == "missing-file"
        assert code_of(tmp_path, read_traces) == "no-trace"
        for name in ("a.json", "b.json"):
            (tmp_path / name).write_text("x")
            assert code_of(tmp_path, read_traces) == "not-a-trace"
        for category in ("browser", "Trace"):
            assert code_of(rank("c.json", cat=category), read_traces) == "nothing-recorded"
