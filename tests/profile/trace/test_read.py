"""Reading a trace, whoever wrote it."""

from __future__ import annotations

import gzip
import json
import re

import numpy as np
import pytest

from deltacell.errors import InputError
from deltacell.profile.trace import decode
from deltacell.profile.trace.read import read_trace
from deltacell.profile.trace.trace import NOTHING, Kind


def event(name="aten::add", ts=100, dur=10, **more):
    made = {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 2, "ts": ts, "dur": dur}
    return {key: value for key, value in {**made, **more}.items() if value is not ...}


@pytest.fixture
def write(tmp_path):
    def written(events, name="trace.json", **about):
        path = tmp_path / name
        text = json.dumps({**about, "traceEvents": events}).encode()
        path.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
        return path

    return written


@pytest.fixture
def write_text(tmp_path):
    def written(text, name="trace.json"):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return written


def rows(trace):
    """Each event as (name, kind, begin, duration)."""
    kinds = [Kind(kind).name for kind in trace.kind]
    texts = [trace.text(row) for row in range(len(trace))]
    return list(zip(texts, kinds, trace.begin.tolist(), trace.duration.tolist(), strict=True))


class TestWhatAnEventIs:
    @pytest.mark.parametrize(
        ("category", "kind"),
        [
            ("Operator", Kind.operator),
            ("cpu_op", Kind.operator),
            ("Runtime", Kind.runtime),
            ("cuda_runtime", Kind.runtime),
            ("cuda_driver", Kind.runtime),
            ("hip_runtime", Kind.runtime),
            ("Kernel", Kind.kernel),
            ("kernel", Kind.kernel),
            ("Memcpy", Kind.copy),
            ("gpu_memcpy", Kind.copy),
            ("Memset", Kind.fill),
            ("gpu_memset", Kind.fill),
            ("user_annotation", Kind.annotation),
            ("gpu_user_annotation", Kind.device_annotation),
            ("python_function", Kind.python),
            ("overhead", Kind.other),
            ("Trace", Kind.other),
            ("something new", Kind.other),
            (..., Kind.operator),
        ],
    )
    def test_by_category(self, write, category, kind):
        assert read_trace(write([event(cat=category)])).kind.tolist() == [kind]

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
            ("Cijk_Ailk_Bljk_SB_MT64x64", "kernel", Kind.kernel),
        ],
    )
    def test_by_name_where_the_category_is_too_wide(self, write, name, category, kind):
        assert read_trace(write([event(name, cat=category)])).kind.tolist() == [kind]

    def test_the_profiler_of_autograd_has_no_categories_and_no_object(self, write_text):
        cpu = event(cat=..., pid="CPU functions", tid=0)
        cuda = event("kernel", ts=105, cat=..., pid="CUDA functions", tid=7)
        trace = read_trace(write_text(json.dumps([cpu, cuda])))
        assert trace.kind.tolist() == [Kind.operator, Kind.kernel]
        assert [t.is_device for t in trace.threads] == [False, True]
        assert trace.warnings == ()

    def test_flows_marks_and_counters_are_no_events(self, write):
        others = [{"ph": ph, "name": "x", "pid": 1, "tid": 2, "ts": 1} for ph in "sfitCbenN"]
        trace = read_trace(write([*others, event()]))
        assert len(trace) == 1
        assert trace.warnings == ()

    def test_what_joins_events(self, write):
        launch = event("cudaLaunchKernel", cat="cuda_runtime", args={"correlation": 55})
        kernel = event(
            "k", 120, cat="kernel", pid=3, tid=7, args={"correlation": 55, "stream": 7, "device": 3}
        )
        copy = event("Memcpy HtoD", 130, cat="gpu_memcpy", pid=3, tid=7, args={"bytes": 4096})
        forward = event("aten::mul", 140, args={"Sequence number": 9})
        unjoined = event("cudaFree", 150, cat="cuda_runtime", args={"correlation": 0})
        trace = read_trace(write([launch, kernel, copy, forward, unjoined]))
        assert trace.correlation.tolist() == [55, 55, NOTHING, NOTHING, NOTHING]
        assert trace.sequence.tolist() == [NOTHING, NOTHING, NOTHING, 9, NOTHING]
        assert trace.threads[trace.thread[1]].device == 3
        assert trace.has_device

    def test_the_sizes_and_types_of_inputs(self, write):
        said = {"Input Dims": [[32, 8], []], "Input type": ["float", "Scalar"]}
        trace = read_trace(write([event(), event("aten::mm", 105, args=said)]))
        assert trace.shape.tolist() == [NOTHING, 0]
        assert trace.shapes == (("[[32, 8], []]", '["float", "Scalar"]'),)

    def test_a_stream_of_a_context_is_no_overflow(self, write):
        said = {"stream": 4294967295, "correlation": 4294967295}
        found = event("Context Sync", 105, cat="cuda_sync", pid=0, tid=4294967295, args=said)
        assert len(read_trace(write([event(), found]))) == 2

    def test_categories_that_are_not_known_are_counted(self, write):
        odd = [event("x", 105, cat="quantum"), event("y", 106, cat="quantum")]
        trace = read_trace(write([event(), *odd]))
        assert trace.strange == {"quantum": 2}
        assert [Kind(kind) for kind in trace.kind] == [Kind.operator, Kind.other, Kind.other]

    def test_other_devices_are_devices(self, write):
        odd = [event("x", 105, cat="mtia_ccp_events"), event("y", 106, cat="hpu_op")]
        assert read_trace(write([event(), *odd])).kind.tolist()[1:] == [Kind.kernel, Kind.kernel]

    def test_python_functions_know_who_called_them(self, write):
        def function(name, ts, dur, own, parent):
            args = {"Python id": own, "Python parent id": parent}
            return event(name, ts, dur, cat="python_function", args=args)

        calls = [
            function("c", 30, 5, 3, 2),
            function("a", 10, 90, 1, None),
            event("aten::add", 21, 1),
            function("b", 20, 50, 2, 1),
            function("d", 95, 1, 4, 777),
        ]
        trace = read_trace(write(calls))
        assert [trace.text(row) for row in range(5)] == ["a", "b", "aten::add", "c", "d"]
        assert trace.parent.tolist() == [NOTHING, 0, NOTHING, 1, NOTHING]

    def test_call_stacks_of_old_traces(self, write):
        stack = {"Call stack": "a.py(1): f;b.py(2): g"}
        trace = read_trace(write([event(args=stack), event(ts=200), event(ts=300, args=stack)]))
        assert trace.stack.tolist() == [0, NOTHING, 0]
        assert trace.stacks == ("a.py(1): f;b.py(2): g",)
        assert len(read_trace(write([event()])).stack) == 0

    def test_a_thread_is_the_same_as_number_and_as_text(self, write):
        named = {"ph": "M", "name": "thread_name", "pid": 1, "tid": 2, "args": {"name": "main"}}
        trace = read_trace(write([event(tid="2"), event(tid=2, ts=200), named]))
        assert trace.thread.tolist() == [0, 0]
        assert [(t.pid, t.tid, t.name) for t in trace.threads] == [("1", "2", "main")]


class TestTimes:
    def test_order_is_by_beginning_then_the_longest(self, write):
        made = [event("c", 20, 1), event("b", 10, 5), event("a", 10, 50), event("d", 20, 0)]
        trace = read_trace(write(made))
        assert [name for name, *_ in rows(trace)] == ["a", "b", "c", "d"]
        assert trace.begin.tolist() == [0, 0, 10_000, 10_000]
        assert trace.origin == 10_000

    def test_of_two_as_long_the_one_begun_first_is_outer(self, write):
        # As in old traces, where whole microseconds make an operator as long as what it calls.
        inner = event("aten::_to_copy", args={"External id": 8})
        outer = event("aten::to", args={"External id": 7})
        launch = event("cudaLaunchKernel", cat="cuda_runtime", args={"External id": 1})
        step = event("ProfilerStep#1", cat="user_annotation", args={"External id": 99})
        trace = read_trace(write([launch, inner, outer, step]))
        assert [name for name, *_ in rows(trace)] == [
            "ProfilerStep#1",
            "aten::to",
            "aten::_to_copy",
            "cudaLaunchKernel",
        ]

    @pytest.mark.parametrize(
        "ts", ["716423322690655.123", "1716423322690655.123", "4458676522690.655", "6.001", "1e3"]
    )
    def test_nanoseconds_are_kept_whatever_the_clock(self, write_text, ts):
        from fractions import Fraction

        later = "2e3" if "e" in ts else ts.replace("6", "8")
        first = f'{{"ph":"X","name":"a","ts":{ts},"dur":0.001}}'
        second = f'{{"ph":"X","name":"b","ts":{later},"dur":12.345}}'
        text = f'{{"traceEvents": [{first}, {second}]}}'
        trace = read_trace(write_text(text))
        assert trace.origin == int(Fraction(ts) * 1000)
        assert trace.begin.tolist() == [0, int((Fraction(later) - Fraction(ts)) * 1000)]
        assert trace.duration.tolist() == [1, 12_345]

    def test_times_beyond_what_a_double_holds_with_any_number_of_places(self, write_text):
        text = (
            '{"traceEvents": [{"ph":"X","name":"a","ts":1716423322690655.12,"dur":1},'
            '{"ph":"M","name":"x"}, {"ph":"X","name":"b","ts":1716423322690655.5,"dur":2.0}]}'
        )
        assert read_trace(write_text(text)).begin.tolist() == [0, 380]

    @pytest.mark.parametrize("ts", [10**16, 1e300, -(10**17), 10**30, "9876543210987654.123"])
    def test_a_time_beyond_all_clocks_is_left_out(self, write, ts):
        trace = read_trace(write([event(ts=1.5), event(ts=ts), event(ts=2.5)]))
        assert trace.begin.tolist() == [0, 1000]
        assert trace.warnings == ("1 event has no time or no duration and was left out.",)

    def test_the_base_of_the_clock_is_added(self, write):
        trace = read_trace(write([event(ts=5.5)], baseTimeNanoseconds=10**18))
        assert trace.origin == 10**18 + 5_500

    def test_negative_and_missing_durations_are_told(self, write):
        made = [
            event("good"),
            event("negative", dur=-5),
            event("missing", dur=...),
            event("null", dur=None),
            event("timeless", ts=...),
        ]
        trace = read_trace(write(made))
        assert [name for name, *_ in rows(trace)] == ["good"]
        assert trace.warnings == (
            "3 events have no time or no duration and were left out.",
            "1 event has a negative duration and was left out.",
        )


class TestBeginningsAndEnds:
    def half(self, ph, name, ts, tid=2):
        made = {"ph": ph, "cat": "cpu_op", "name": name, "pid": 1, "tid": tid, "ts": ts}
        return {key: value for key, value in made.items() if value is not ...}

    def test_they_are_paired_on_their_thread(self, write):
        halves = [
            self.half("B", "outer", 10),
            self.half("B", "elsewhere", 12, tid=3),
            self.half("B", "inner", 20),
            self.half("E", "inner", 25),
            self.half("E", "elsewhere", 40, tid=3),
            self.half("E", ..., 100),
        ]
        trace = read_trace(write([*halves, event("x", 30, 1)]))
        assert rows(trace) == [
            ("outer", "operator", 0, 90_000),
            ("elsewhere", "operator", 2_000, 28_000),
            ("inner", "operator", 10_000, 5_000),
            ("x", "operator", 20_000, 1_000),
        ]
        assert trace.warnings == ()

    def test_those_without_another_half_are_told(self, write):
        halves = [
            self.half("E", "before", 5),
            self.half("B", "outer", 10),
            self.half("B", "lost", 20),
            self.half("E", "outer", 30),
            self.half("B", "open", 40),
        ]
        trace = read_trace(write(halves))
        assert rows(trace) == [("outer", "operator", 0, 20_000)]
        assert "3 beginnings without an end" in trace.warnings[0]

    def test_only_unpaired_ones_are_no_trace(self, write):
        with pytest.raises(InputError, match="no event with a duration"):
            read_trace(write([self.half("B", "a", 1)]))


class TestMemory:
    def mark(self, ts, **args):
        return {"ph": "i", "name": "[memory]", "pid": 1, "tid": 2, "ts": ts, "args": args}

    def test_totals_as_written(self, write):
        marks = [
            self.mark(
                120, **{"Bytes": -8, "Total Allocated": 92, "Device Type": 1, "Device Id": 0}
            ),
            self.mark(
                110, **{"Bytes": 50, "Total Allocated": 100, "Device Type": 1, "Device Id": 0}
            ),
        ]
        trace = read_trace(write([event(ts=100), *marks]))
        assert trace.memory["time"].tolist() == [10_000, 20_000]
        assert trace.memory["total"].tolist() == [100, 92]
        assert trace.memory["device"].tolist() == [1, 1]
        assert "memory_since_begin" not in trace.settings

    def test_old_traces_have_changes_only(self, write):
        marks = [
            self.mark(ts, **{"Bytes": n, "Device Type": kind, "Device Id": -1})
            for ts, n, kind in [(1, 10, 0), (2, 500, 1), (3, 20, 0), (4, -30, 0)]
        ]
        trace = read_trace(write([event(ts=1), *marks]))
        assert trace.memory["total"].tolist() == [10, 500, 30, 0]
        assert trace.settings["memory_since_begin"] is True


class TestWhatATraceSaysOfItself:
    def test_before_the_events(self, write):
        about = {
            "deviceProperties": [{"id": 0, "name": "A"}, {"id": 1, "name": "B"}],
            "distributedInfo": {"backend": "nccl", "rank": 3, "world_size": 8},
            "record_shapes": 1,
            "with_stack": 0,
        }
        kernel = event("k", cat="kernel", pid=1, args={"device": 1, "stream": 7})
        trace = read_trace(write([kernel], "rank5.json", **about))
        assert (trace.rank, trace.world_size) == (3, 8)
        assert trace.device_name == "B"
        assert trace.settings["record_shapes"] is True
        assert trace.settings["with_stack"] is False

    def test_after_the_events(self, write_text):
        text = json.dumps({"traceEvents": [event()]})[:-1]
        after = ', "INFO": ["a}, {\\"ph\\": 1"], "distributedInfo": {"rank": 1, "world_size": 2}}'
        trace = read_trace(write_text(text + after))
        assert (trace.rank, trace.world_size) == (1, 2)
        assert trace.warnings == ()

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
    def test_the_rank_by_the_file_name(self, write, name, rank, world_size):
        trace = read_trace(write([event()], name))
        assert (trace.rank, trace.world_size) == (rank, world_size)


class TestDamage:
    def whole(self, n=50, **layout):
        events = [event(f"op{i}", 10 * i, 5, args={"External id": i}) for i in range(n)]
        return json.dumps({"schemaVersion": 1, "traceEvents": events}, **layout)

    @pytest.mark.parametrize("layout", [{}, {"indent": 2}, {"separators": (",", ":")}])
    def test_cut_off_anywhere_it_is_read_up_to_the_cut(self, write_text, layout):
        text = self.whole(3, **layout)
        begin = text.index("[") + 1
        last_words = re.compile(r'"External id":\s*\d+\s*\}\s*\}')
        ends = np.array([found.end() for found in last_words.finditer(text)])
        before = 0
        for cut in range(begin, len(text)):
            path = write_text(text[:cut])
            if cut < ends[0]:
                with pytest.raises(InputError, match="cut off"):
                    read_trace(path)
                continue
            trace = read_trace(path)
            # One event more as soon as its last brace is there.
            assert len(trace) == len(ends[ends <= cut])
            assert [trace.text(i) for i in range(len(trace))] == [
                f"op{i}" for i in range(len(trace))
            ]
            assert trace.warnings == ("The file is cut off: what stands before the cut was read.",)
            before = len(trace)
        assert before == 3

    def test_a_packed_file_that_is_cut_off(self, write_text):
        packed = gzip.compress(self.whole(2000).encode())
        trace = read_trace(write_text(packed[: len(packed) // 2], "trace.json.gz"))
        assert 100 < len(trace) < 2000
        assert "cut off (its packing (gzip) ends too early)" in trace.warnings[0]

    def test_a_packed_file_that_is_damaged(self, write_text):
        packed = bytearray(gzip.compress(self.whole(20_000).encode()))
        packed[len(packed) // 2 :] = b"\xff" * (len(packed) - len(packed) // 2)
        trace = read_trace(write_text(bytes(packed), "trace.json"))
        assert 0 < len(trace) < 20_000
        assert "its packing (gzip)" in trace.warnings[0]

    def test_several_packed_files_in_one(self, write_text):
        text = self.whole().encode()
        packed = gzip.compress(text[:1000]) + gzip.compress(text[1000:]) + b"\0" * 100
        trace = read_trace(write_text(packed))
        assert len(trace) == 50
        assert trace.warnings == ()

    def test_control_characters_and_invalid_text(self, write_text):
        text = self.whole(3).encode()
        text = text.replace(b'"op1"', b'"a\x01b\n\x00c\xff\xfed\x1b[31m"')
        trace = read_trace(write_text(text))
        assert len(trace) == 3
        assert trace.text(1) == "a b  c\ufffd\ufffdd [31m"
        assert trace.warnings == (
            "The file has characters or numbers that JSON does not allow: put right.",
        )

    @pytest.mark.parametrize(
        ("written", "name"),
        [
            (r'"C:\Users\me"', "C:\\Users\\me"),
            (r'"a \ud800 b"', "a \ufffd b"),
            (r'"\ud83d\ude00 \\ \" \u00e9"', '\U0001f600 \\ " \u00e9'),
        ],
    )
    def test_escapes(self, write_text, written, name):
        trace = read_trace(write_text(self.whole(3).replace('"op1"', written)))
        assert len(trace) == 3
        assert trace.text(1) == name

    @pytest.mark.parametrize("value", ["inf", "-nan", "NaN", "Infinity", "-Infinity", "nan(ind)"])
    def test_numbers_that_are_none(self, write_text, value):
        text = self.whole(3).replace('"External id": 1', f'"bandwidth": {value}')
        trace = read_trace(write_text(text))
        assert len(trace) == 3
        assert len(trace.warnings) == 1

    def test_a_time_that_is_no_number(self, write_text):
        trace = read_trace(write_text(self.whole(3).replace('"ts": 10', '"ts": NaN')))
        assert len(trace) == 2
        assert "1 event has no time" in trace.warnings[-1]

    @pytest.mark.parametrize(
        ("good", "damaged"),
        [
            ('"name": "op2"', '"name": "say "hello" to } ] {"'),
            ('"ts": 20, "dur": 5', '"ts": 20, "dur": '),
            ('{"External id": 2}', '{"External id": 2'),
        ],
    )
    def test_an_event_that_cannot_be_decoded_is_left_out_alone(self, write_text, good, damaged):
        text = self.whole(6)
        assert good in text
        trace = read_trace(write_text(text.replace(good, damaged)))
        assert [trace.text(i) for i in range(len(trace))] == ["op0", "op1", "op3", "op4", "op5"]
        assert "At least 1 event could not be decoded and was left out." in trace.warnings

    def test_numbers_and_names_of_another_type(self, write):
        odd = [
            event(ts="100.5", dur="7"),
            event(ts=200, args=None),
            event(ts=300, args={"stream": "7", "correlation": 5.0, "bytes": "many"}),
            event(ts=400, name=None, tid=None, pid=1.5),
            event(ts=500, args={"correlation": 10**30}),
            event(ts=600, args=[1, 2]),
            7,
            None,
            ["x"],
        ]
        trace = read_trace(write(odd))
        assert trace.begin.tolist() == [0, 99_500, 199_500, 299_500, 399_500, 499_500]
        assert trace.duration.tolist() == [7_000] + [10_000] * 5
        assert trace.correlation.tolist() == [NOTHING, NOTHING, 5, NOTHING, NOTHING, NOTHING]
        assert trace.warnings == ("At least 3 events could not be decoded and were left out.",)

    def test_numbers_too_large_for_a_column(self, write):
        trace = read_trace(write([event(args={"correlation": 10**30}), event(ts=200)]))
        assert trace.correlation.tolist() == [NOTHING, NOTHING]

    def test_a_name_like_the_text_between_events(self, write):
        hostile = 'x}, {"ph": "X", "name": "fake", "ts": 1, "dur": 1}, {"ph": "X"'
        args = {"list": [{"name": 1}, {"name": 2}]}
        made = [event(hostile, i, 1, args=args) for i in range(5)]
        trace = read_trace(write(made))
        assert trace.names == (hostile,)
        assert len(trace) == 5
        assert trace.warnings == ()

    def test_a_file_that_grows_while_it_is_read(self, write_text):
        path = write_text(self.whole())
        text = path.read_bytes()
        path.write_bytes(text[:1000])

        def grow(label, done, total):
            with path.open("ab") as file:
                file.write(b"x" * 1000)

        trace = read_trace(path, progress=grow)
        assert len(trace) < 50
        assert "cut off" in trace.warnings[0]
        assert "grew by" in trace.warnings[1]

    def test_a_file_that_shrinks_while_it_is_read(self, write_text, monkeypatch):
        monkeypatch.setattr(decode, "PIECE", 500)
        path = write_text(self.whole())

        def shrink(label, done, total):
            path.write_bytes(path.read_bytes()[:1200])

        trace = read_trace(path, progress=shrink)
        assert 0 < len(trace) < 50
        assert "lost" in trace.warnings[1]


class TestNoTrace:
    @pytest.mark.parametrize(
        ("text", "said"),
        [
            (b"", "is empty"),
            (b"  \n ", "is empty"),
            (b"hello", "not a trace: it begins with b'hello'"),
            (b"PK\x03\x04", "not a trace"),
            (b'{"a": 1}', "no list of traceEvents"),
            (b'{"traceEvents": {}}', "no list of traceEvents"),
            (b'{"traceEvents"', "no list of traceEvents"),
            (b'{"traceEvents": []}', "no event with a duration"),
            (b'{"traceEvents": [', "no event with a duration"),
            (b"[1, 2, 3]", "no event with a duration"),
            (b"[]", "no event with a duration"),
            (b'[{"a": 1}]', "no event with a duration"),
            (b"\x1f\x8b\x08", "is empty"),
            (b"[[[[[[[[", "no event with a duration"),
            (b"[" * 100_000, "no event with a duration"),
            (b'{"a": ' * 50_000, "no list of traceEvents"),
            (b'{"traceEvents": [' + b'{"a":' * 50_000, "no event with a duration"),
        ],
    )
    def test_is_said(self, write_text, text, said):
        with pytest.raises(InputError) as error:
            read_trace(write_text(text))
        assert said in str(error.value)

    def test_nothing_there(self, tmp_path):
        with pytest.raises(InputError, match="No such file"):
            read_trace(tmp_path / "none.json")

    def test_a_directory(self, tmp_path):
        with pytest.raises(InputError, match="is a directory"):
            read_trace(tmp_path)

    def test_one_event_is_a_trace(self, write):
        trace = read_trace(write([event()]))
        assert rows(trace) == [("aten::add", "operator", 0, 10_000)]
        assert not trace.has_device


class TestInPieces:
    @pytest.mark.parametrize("piece", [64, 301, 1000, 5000, 1 << 20])
    @pytest.mark.parametrize("layout", [{}, {"indent": 1}, {"separators": (",", ":")}])
    def test_the_size_of_a_piece_changes_nothing(self, write_text, monkeypatch, piece, layout):
        made = [
            event(f"op{i % 7}", 3 * i + 0.25, i % 5, tid=i % 3, args={"correlation": i})
            for i in range(200)
        ]
        made.insert(50, event('}, {"ph": ]', 1, 1))
        text = json.dumps({"a": [{"name": 1}], "traceEvents": made, "b": "]}"}, **layout)
        path = write_text(text)
        once = read_trace(path)
        monkeypatch.setattr(decode, "PIECE", piece)
        again = read_trace(path)
        assert rows(again) == rows(once)
        assert len(again) == 201
        assert np.array_equal(again.correlation, once.correlation)
        assert again.warnings == ()

    def test_an_event_longer_than_a_piece(self, write, monkeypatch):
        monkeypatch.setattr(decode, "PIECE", 1000)
        made = [event(), event("x" * 20_000, 200), event(ts=300)]
        assert len(read_trace(write(made))) == 3

    def test_progress_ends_at_all(self, write):
        told = []
        path = write([event(ts=i) for i in range(100)], "trace.json.gz")
        read_trace(path, progress=lambda *said: told.append(said))
        assert told[-1] == ("reading trace.json.gz", path.stat().st_size, path.stat().st_size)
