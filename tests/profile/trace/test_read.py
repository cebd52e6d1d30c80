"""Reading a trace, whoever wrote it, and the traces of several ranks."""

from __future__ import annotations

import gzip
import json
from fractions import Fraction

import pytest

from deltacell.errors import InputError
from deltacell.profile.trace import decode
from deltacell.profile.trace.read import listed, read_trace, read_traces
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


def code_of(path, reader=read_trace, **options):
    with pytest.raises(InputError) as caught:
        reader(path, **options)
    return caught.value.code


def names(trace):
    return [trace.text(row) for row in range(len(trace))]


class TestWhatAnEventIs:
    @pytest.mark.parametrize(
        ("categories", "kind"),
        [
            (("Operator", "cpu_op", ...), Kind.operator),
            (("Runtime", "cuda_runtime", "cuda_driver", "hip_runtime"), Kind.runtime),
            (("Kernel", "kernel", "mtia_ccp_events", "hpu_op"), Kind.kernel),
            (("Memcpy", "gpu_memcpy"), Kind.copy),
            (("Memset", "gpu_memset"), Kind.fill),
            (("user_annotation",), Kind.annotation),
            (("gpu_user_annotation",), Kind.device_annotation),
            (("python_function",), Kind.python),
            (("overhead", "Trace", "something new"), Kind.other),
        ],
    )
    def test_by_category(self, read, categories, kind):
        trace = read([event(cat=category) for category in categories])
        assert set(trace.kind.tolist()) == {kind}

    @pytest.mark.parametrize(
        ("name", "category", "kind"),
        [
            ("ProfilerStep#7", "Operator", Kind.annotation),
            ("enumerate(DataLoader)#_SingleProcessDataLoaderIter", "Operator", Kind.annotation),
            ("Optimizer.step#SGD.step", "cpu_op", Kind.annotation),
            ("MulBackward0", "Operator", Kind.operator),
            ("CopyHostToDevice", "kernel", Kind.copy),
            ("__amd_rocclr_fillBufferAligned.kd", "kernel", Kind.fill),
            ("hipLaunchKernel", "cuda_runtime", Kind.runtime),
        ],
    )
    def test_by_name_where_the_category_is_too_wide(self, read, name, category, kind):
        assert read([event(name, cat=category)]).kind.tolist() == [kind]

    def test_the_profiler_of_autograd_has_no_categories_and_no_object(self, read):
        cpu = event(cat=..., pid="CPU functions", tid=0)
        cuda = event("kernel", ts=105, cat=..., pid="CUDA functions", tid=7)
        trace = read(json.dumps([cpu, cuda]))
        assert trace.kind.tolist() == [Kind.operator, Kind.kernel]
        assert [t.is_device for t in trace.threads] == [False, True]
        assert trace.warnings == ()

    def test_flows_marks_and_counters_are_passed_over(self, read):
        others = [{"ph": ph, "name": "x", "pid": 1, "tid": 2, "ts": 1} for ph in "sfitCbenN"]
        trace = read([*others, event()])
        assert (len(trace), trace.warnings) == (1, ())

    def test_what_joins_events(self, read):
        number = {"correlation": 55}
        launch = event("cudaLaunchKernel", cat="cuda_runtime", args=number)
        kernel = event("k", 120, cat="kernel", pid=3, tid=7, args=number | {"device": 3})
        copy = event("Memcpy HtoD", 130, cat="gpu_memcpy", pid=3, tid=7, args={"bytes": 4096})
        forward = event("aten::mul", 140, args={"Sequence number": 9})
        free = event("cudaFree", 150, cat="cuda_runtime", args={"correlation": 0})
        trace = read([launch, kernel, copy, forward, free])
        assert trace.correlation.tolist() == [55, 55, NOTHING, NOTHING, NOTHING]
        assert trace.sequence.tolist() == [NOTHING, NOTHING, NOTHING, 9, NOTHING]
        assert trace.threads[trace.thread[1]].device == 3
        assert trace.on_device.tolist() == [False, True, True, False, False]

    def test_inputs_and_call_stacks(self, read):
        said = {"Input Dims": [[32, 8], []], "Input type": ["float", "Scalar"]}
        stack = {"Call stack": "a.py(1): f;b.py(2): g"}
        trace = read([event(args=stack), event("aten::mm", 105, args=said), event(ts=300)])
        assert trace.shape.tolist() == [NOTHING, 0, NOTHING]
        assert trace.shapes == (("[[32, 8], []]", '["float", "Scalar"]'),)
        assert trace.stack.tolist() == [0, NOTHING, NOTHING]
        assert trace.stacks == ("a.py(1): f;b.py(2): g",)
        assert len(read([event()]).stack) == 0

    def test_a_stream_of_a_context_is_no_overflow(self, read):
        said = {"stream": 4294967295, "correlation": 4294967295}
        found = event("Context Sync", 105, cat="cuda_sync", pid=0, tid=4294967295, args=said)
        assert read([event(), found]).threads[1].tid == "4294967295"

    def test_unknown_categories_are_counted(self, read):
        trace = read([event(), event("x", 105, cat="quantum"), event("y", 106, cat="quantum")])
        assert trace.strange == {"quantum": 2}

    def test_a_thread_is_the_same_as_number_and_as_text(self, read):
        named = {"ph": "M", "name": "thread_name", "pid": 1, "tid": 2, "args": {"name": "main"}}
        trace = read([event(tid="2"), event(tid=2, ts=200), named])
        assert [(t.pid, t.tid, t.name) for t in trace.threads] == [("1", "2", "main")]

    def test_of_two_as_long_the_one_begun_first_is_outer(self, read):
        # As in old traces, where whole microseconds make an operator as long as what it calls.
        inner = event("aten::_to_copy", args={"External id": 8})
        outer = event("aten::to", args={"External id": 7})
        launch = event("cudaLaunchKernel", cat="cuda_runtime", args={"External id": 1})
        step = event("ProfilerStep#1", cat="user_annotation", args={"External id": 99})
        trace = read([launch, inner, outer, step])
        assert names(trace) == ["ProfilerStep#1", "aten::to", "aten::_to_copy", "cudaLaunchKernel"]


class TestTimes:
    @pytest.mark.parametrize(
        "ts", ["716423322690655.123", "1716423322690655.12", "4458676522690.655", "6.001", "1e3"]
    )
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

    def test_the_base_of_the_clock_is_added(self, read):
        assert read([event(ts=5.5)], baseTimeNanoseconds=10**18).origin == 10**18 + 5_500

    def test_what_is_left_out_is_counted(self, read):
        half = {key: value for key, value in event("lost").items() if key != "dur"}
        made = [
            *(event("good"), event("negative", dur=-5), event("missing", dur=...)),
            *(event("null", dur=None), event("timeless", ts=...), event("odd", ph="Q")),
            *(half | {"ph": "B"}, half | {"ph": "E", "name": "other"}),
        ]
        trace = read(made)
        assert names(trace) == ["good"]
        assert [int(said.split()[0]) for said in trace.warnings] == [3, 1, 1, 2]
        assert trace.damage == "7 events could not be read"

    def test_beginnings_and_ends_without_the_other(self, write):
        half = {"ph": "B", "name": "outer", "pid": 1, "tid": 2, "ts": 10}
        others = [
            *(half | {"ph": "E", "name": "before", "ts": 5}, half),
            *(half | {"name": "lost", "ts": 20}, half | {"ph": "E", "ts": 30}),
            half | {"name": "open", "ts": 40},
        ]
        trace = read_trace(write(others))
        assert (names(trace), trace.duration.tolist()) == (["outer"], [20_000])
        assert trace.damage == "3 events could not be read"
        assert code_of(write([half])) == "no-events"


class TestWhatATraceSaysOfItself:
    @pytest.mark.parametrize("totals", [True, False])
    def test_memory(self, read, totals):
        marks = []
        for ts, change, total, device in [(120, -8, 92, 1), (110, 100, 100, 1), (130, 5, 5, 0)]:
            args = {"Bytes": change, "Device Type": device, "Device Id": 0}
            args |= {"Total Allocated": total} if totals else {}
            marks.append({"ph": "i", "name": "[memory]", "ts": ts, "args": args})
        memory = read([event(), *marks]).memory
        assert memory["time"].tolist() == [10_000, 20_000, 30_000]
        # Old traces have changes only.
        assert memory["total"].tolist() == [100, 92, 5]

    def test_before_and_after_the_events(self, read):
        about = {
            "deviceProperties": [{"id": 0, "name": "A"}, {"id": 1, "name": "B"}],
            "distributedInfo": {"backend": "nccl", "rank": 3, "world_size": 8},
            **{"record_shapes": 1, "with_stack": 0, "pytorch_version": "2.6"},
        }
        kernel = event("k", cat="kernel", pid=1, args={"device": 1, "stream": 7})
        before = read([kernel], "rank5.json", **about)
        text = json.dumps({"traceEvents": [kernel]})[:-1]
        after = read(text + ', "INFO": ["a}, {\\"ph\\": 1"], ' + json.dumps(about)[1:])
        for trace in (before, after):
            assert (trace.rank, trace.world_size, trace.device_name) == (3, 8, "B")
            assert trace.settings == {"record_shapes": True, "with_stack": False}
            assert (trace.torch_version, trace.warnings) == ("2.6", ())

    @pytest.mark.parametrize(
        ("name", "rank", "world_size"),
        [
            ("trace-rank3-window0.json", 3, None),
            ("worker7_step_12.1694128201553.pt.trace.json", 7, None),
            ("ddp_a100_rank0of2.json", 0, 2),
            ("ddp_world128_rank1.json", 1, 128),
            ("rank_12.json.gz", 12, None),
            ("resnet50_loader_workers_4.pt.trace.json", None, None),
            ("crank3.json", None, None),
        ],
    )
    def test_the_rank_by_the_file_name(self, read, name, rank, world_size):
        trace = read([event()], name)
        assert (trace.rank, trace.world_size) == (rank, world_size)


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
        assert trace.warnings[0].startswith(f"{CUT} (its packing (gzip)")

    def test_several_packed_files_in_one(self, read):
        text = whole().encode()
        trace = read(gzip.compress(text[:1000]) + gzip.compress(text[1000:]) + b"\0" * 100)
        assert (len(trace), trace.warnings) == (50, ())

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

    @pytest.mark.parametrize("value", ["inf", "-nan", "NaN", "Infinity", "-Infinity", "nan(ind)"])
    def test_numbers_that_are_none(self, read, value):
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
            event(ts=400, name=None, tid=None, pid=1.5),
            event(ts=500, args={"correlation": 10**30}),
            event(ts=600, args=[1, 2]),
        ]
        trace = read([*odd, 7, None, ["x"]])
        assert trace.begin.tolist() == [0, 99_500, 199_500, 299_500, 399_500, 499_500]
        assert trace.duration.tolist() == [7_000] + [10_000] * 5
        assert trace.correlation.tolist() == [NOTHING, NOTHING, 5, NOTHING, NOTHING, NOTHING]
        assert trace.damage == "3 events could not be read"

    def test_a_number_too_large_for_a_column(self, read):
        trace = read([event(args={"correlation": 10**30}), event(ts=200)])
        assert trace.correlation.tolist() == [NOTHING, NOTHING]

    @pytest.mark.parametrize("change", ["grew", "lost"])
    def test_a_file_that_changes_while_it_is_read(self, write, monkeypatch, change):
        monkeypatch.setattr(decode, "PIECE", 500)
        path = write(whole()[:1500] if change == "grew" else whole())

        def disturb(label, done, total):
            text = path.read_bytes()
            path.write_bytes(text + b"x" * 1000 if change == "grew" else text[:1200])

        trace = read_trace(path, progress=disturb)
        assert 0 < len(trace) < 50
        assert trace.warnings[0].startswith(CUT)
        assert change in trace.warnings[1]

    @pytest.mark.parametrize(
        ("text", "code"),
        [
            (b"", "empty-trace"),
            (b"  \n ", "empty-trace"),
            (b"\x1f\x8b\x08", "empty-trace"),
            (b"hello", "not-a-trace"),
            (b"PK\x03\x04", "not-a-trace"),
            (b'{"a": 1}', "not-a-trace"),
            (b'{"traceEvents": {}}', "not-a-trace"),
            (b'{"traceEvents"', "not-a-trace"),
            (b'{"a": ' * 50_000, "not-a-trace"),
            (b'{"traceEvents": []}', "no-events"),
            (b'{"traceEvents": [', "no-events"),
            (b"[1, 2, 3]", "no-events"),
            (b"[]", "no-events"),
            (b'[{"a": 1}]', "no-events"),
            (b"[" * 100_000, "no-events"),
            (b'{"traceEvents": [' + b'{"a":' * 50_000, "no-events"),
        ],
    )
    def test_what_is_not_a_trace(self, write, text, code):
        assert code_of(write(text)) == code

    def test_what_cannot_be_read(self, tmp_path):
        for path in (tmp_path, tmp_path / "none.json"):
            assert code_of(path) == "unreadable-file"


class TestInPieces:
    def test_an_event_longer_than_a_piece(self, read, monkeypatch):
        monkeypatch.setattr(decode, "PIECE", 1000)
        assert len(read([event(), event("x" * 20_000, 200), event(ts=300)])) == 3

    def test_progress_ends_at_all(self, write):
        told = []
        path = write([event(ts=i) for i in range(100)], "trace.json.gz")
        read_trace(path, progress=lambda *said: told.append(said))
        assert told[-1] == ("reading trace.json.gz", path.stat().st_size, path.stat().st_size)


class TestRanks:
    @pytest.fixture
    def rank(self, write):
        def written(name, rank=None, world_size=None, ts=0, cat="cpu_op"):
            about = {"distributedInfo": {"rank": rank, "world_size": world_size}}
            return write([event(ts=ts, cat=cat)], name, **({} if rank is None else about))

        return written

    def test_they_are_in_order_and_complete(self, rank, tmp_path):
        for number in (10, 2, 0, 1, *range(3, 10)):
            rank(f"worker{number}.json.gz", number, 11)
        (tmp_path / "notes.json").write_text('{"a": 1}')
        traces = read_traces(tmp_path)
        assert [trace.rank for trace in traces] == list(range(11))
        # A file that is not a trace is left out and named.
        assert all("notes.json" in trace.warnings[0] for trace in traces)

    @pytest.mark.parametrize(
        ("files", "said"),
        [
            ([("a.json", 0, 2)], ["Of 2 ranks only 0 is here; missing: 1."]),
            ([("rank0.json",), ("rank2.json",)], ["Of 3 ranks only 0, 2 are here; missing: 1."]),
            ([("a.json",)], []),
        ],
    )
    def test_missing_ranks_are_named(self, rank, tmp_path, files, said):
        for file in files:
            rank(*file)
        for trace in read_traces(tmp_path):
            assert list(trace.warnings) == said

    def test_the_windows_of_a_run_are_cycles_of_one_trace_per_rank(self, rank, tmp_path):
        rank("run/config.json")
        for number, window in [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2)]:
            name = f"run/traces/trace-rank{number}-window{window}.json.gz"
            rank(name, ts=1000 * window)
        rank("run/traces/.trace-rank1-window2.json.gz.plain.tmp")
        traces = read_traces(tmp_path / "run")
        assert [trace.rank for trace in traces] == [0, 1]
        assert [trace.cycles for trace in traces] == [(0, 10**6, 2 * 10**6), (0, 10**6)]
        (single,) = read_traces(tmp_path / "run", window=2)
        assert single.origin == 2 * 10**6
        assert len(traces[0]) == 3 * len(single)
        assert code_of(tmp_path / "run", read_traces, window=7) == "no-trace"

    @pytest.mark.parametrize(
        "files",
        [
            [("a.json", None, None), ("b.json", None, None)],
            [("a.json", 0, 2), ("b.json", 0, 2)],
            [("a.json", 0, 2), ("b.json", 1, 4)],
        ],
    )
    def test_traces_of_different_runs_are_refused(self, rank, tmp_path, files):
        for file in files:
            rank(*file)
        assert code_of(tmp_path, read_traces) == "not-one-run"

    def test_what_is_not_there_or_not_of_pytorch(self, rank, tmp_path):
        assert code_of(tmp_path / "nothing", read_traces) == "missing-file"
        assert code_of(tmp_path, read_traces) == "no-trace"
        for name in ("a.json", "b.json"):
            (tmp_path / name).write_text("x")
            assert code_of(tmp_path, read_traces) == "not-a-trace"
        assert code_of(rank("c.json", cat="browser"), read_traces) == "not-of-pytorch"
        assert code_of(rank("d.json", cat="Trace"), read_traces) == "nothing-recorded"

    @pytest.mark.parametrize(
        ("numbers", "text"),
        [
            ([], ""),
            ([1, 0], "0, 1"),
            ([0, 1, 2, 9], "0 to 2, 9"),
            (range(0, 40, 2), "0, 2, 4, 6, 8, 10, 12, 14 and 12 more"),
        ],
    )
    def test_numbers_as_text(self, numbers, text):
        assert listed(numbers) == text
