"""Laws of reading a trace: how it was written changes nothing of what is read."""

import gzip
import json
import os
import re
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltacell.base.errors import InputError
from deltacell.profile.trace import decode
from deltacell.profile.trace import read as reading
from deltacell.profile.trace.read import read_trace

law = settings(max_examples=40, deadline=None)
forking_law = settings(max_examples=15, deadline=None)
names = st.text(max_size=12) | st.sampled_from(
    ['}, {"ph": "X"', '{"ph":"B"}]', "\\", '"', "]}", "a\\u0041", "\ud7ff\U0001f600"],
)
# Few begins, so that of many events some begin together. All end within an hour, because a longer
# pause may be a jump of the clock, which is cut out.
begins = st.integers(0, 3) | st.integers(0, 10**12)
event = st.tuples(names, begins, st.integers(0, 10**12), st.integers(0, 2), st.integers(1, 2**53))
events = st.lists(event, min_size=1, max_size=30)
origins = st.sampled_from([0, 5, 4_458_676_522_690_655, 1_716_423_322_690_655_123, -7_000])
layouts = st.sampled_from([{}, {"indent": 2}, {"separators": (",", ":")}, {"ensure_ascii": False}])


def microseconds(nanoseconds):
    """Return a mark that `text_of` makes a number with three places, as no double would be."""
    whole, rest = divmod(abs(nanoseconds), 1000)
    return f"@{'-' * (nanoseconds < 0)}{whole}.{rest:03}@"


def written(made, origin):
    return [
        {
            **{"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": tid},
            **{"ts": microseconds(begin + origin), "dur": microseconds(duration)},
            "args": {"correlation": correlation, "Input Dims": [[], [1, {"name": 2}]]},
        }
        for name, begin, duration, tid, correlation in made
    ]


def text_of(listed, **layout):
    document = {"schemaVersion": 1, "traceEvents": listed, "traceName": 'x"], }'}
    return re.sub(r'"@(-?[0-9.]+)@"', r"\1", json.dumps(document, **layout)).encode()


def read(text, piece=decode.PIECE, processes=1):
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(decode, "PIECE", piece)
        patch.setattr(reading, "PART", 100)
        patch.setattr(os, "sched_getaffinity", lambda process: range(processes))
        path = Path(folder) / "trace.json"
        path.write_bytes(text)
        return read_trace(path)


def outcome_of(text, piece):
    """Return the events that are read and the warnings, or the code of the refusal."""
    try:
        trace = read(text, piece)
    except InputError as error:
        return error.code
    return rows(trace), trace.warnings, trace.damage


def rows(trace):
    """All that is known of each event, with no order among those that are the same."""
    threads = [trace.threads[code].tid for code in trace.thread]
    texts = [trace.text(row) for row in range(len(trace))]
    columns = (trace.begin, trace.duration, trace.correlation)
    return sorted(zip(texts, threads, *(c.tolist() for c in columns), strict=True))


@law
@given(events, origins, layouts, st.integers(40, 3000), st.booleans())
def test_events_read_equal_events_written_in_every_layout(made, origin, layout, piece, packed):
    text = text_of(written(made, origin), **layout)
    trace = read(gzip.compress(text) if packed else text, piece)
    first = min(begin for _, begin, *_ in made)
    assert (trace.origin, trace.warnings, trace.text_bytes) == (first + origin, (), len(text))
    assert rows(trace) == sorted(
        (name, str(tid), begin - first, duration, correlation)
        for name, begin, duration, tid, correlation in made
    )


@forking_law
@given(events, layouts, st.integers(2, 4), st.floats(0.5, 1), st.none() | st.integers(0, 255))
def test_several_processes_read_what_one_reads(made, layout, processes, share, damage):
    text = bytearray(text_of(written(made, 0), **layout))
    if damage is not None:
        text[int(share * len(text)) - 1] = damage
    elif share < 0.8:
        del text[int(share * len(text)) :]

    def all_of(processes):
        try:
            trace = read(bytes(text), processes=processes)
        except InputError as error:
            return error.code
        fields = vars(trace) | {"path": None}
        return {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in fields.items()}

    assert all_of(processes) == all_of(1)


@law
@given(events, origins, st.randoms())
def test_order_and_clock_of_the_file_change_nothing(made, origin, random):
    mixed = random.sample(made, len(made))
    here, there = read(text_of(written(made, 0))), read(text_of(written(mixed, origin)))
    assert rows(here) == rows(there)
    assert (here.begin[0], there.origin - here.origin) == (0, origin)
    later = np.diff(here.begin)
    assert (later >= 0).all()
    assert (np.diff(here.duration)[later == 0] <= 0).all()


@law
@given(events, layouts, st.integers(40, 3000), st.floats(0, 1))
def test_a_file_that_is_cut_off_is_read_up_to_the_cut(made, layout, piece, share):
    text = text_of(written(made, 0), **layout)
    begin = text.index(b"[") + 1
    cut = begin + int(share * (len(text) - 1 - begin))
    if not (whole := whole_events(text[:cut])):
        with pytest.raises(InputError) as caught:
            read(text[:cut], piece)
        assert caught.value.code == "no-events"
        return
    trace = read(text[:cut], piece)
    assert sorted(trace.correlation.tolist()) == sorted(c for *_, c in made[:whole])
    assert trace.damage == "the file is cut off"


def whole_events(text):
    """Count the events before a cut with a decoder that knows nothing of pieces."""
    rest = text.decode("utf-8", "replace").split("[", 1)[1].lstrip(", \n")
    try:
        end = json.JSONDecoder().raw_decode(rest)[1]
    except ValueError:
        return 0
    return 1 + whole_events(b"[" + rest[end:].encode())


trees = st.recursive(st.just([]), lambda children: st.lists(children, max_size=3), max_leaves=8)


@law
@given(st.lists(trees, min_size=1, max_size=3), st.booleans())
def test_beginnings_and_ends_are_the_same_as_durations(forests, named_ends):
    halves, wholes = [], []

    def pair_up(children, common, clock):
        begin, name = next(clock), {"name": f"with {len(children)}"}
        halves.append({"ph": "B", "ts": begin, **name, **common})
        for child in children:
            pair_up(child, common, clock)
        end = next(clock)
        halves.append({"ph": "E", "ts": end, **(name if named_ends else {}), **common})
        wholes.append({"ph": "X", "ts": begin, "dur": end - begin, **name, **common})

    for tid, tree in enumerate(forests):
        pair_up(tree, {"pid": 1, "tid": tid, "cat": "cpu_op"}, iter(range(1, 10_000)))
    assert rows(read(text_of(halves))) == rows(read(text_of(wholes)))


@law
@given(st.binary(max_size=300), st.integers(20, 200))
def test_any_bytes_are_read_or_refused_in_a_sentence(junk, piece):
    for begin in (b"", b'{"traceEvents": [', b'[{"ph":"X","name":"a","ts":1,"dur":1},'):
        assert outcome_of(begin + junk, piece) == outcome_of(begin + junk, piece)


@law
@given(events, st.data())
def test_damage_costs_no_more_than_a_few_events(made, data):
    text = bytearray(text_of(written(made, 0)))
    begin, end = text.index(b"[") + 1, text.rindex(b', "traceName"') - 2
    text[data.draw(st.integers(begin, max(begin, end)))] = data.draw(st.integers(0, 255))
    try:
        trace = read(bytes(text))
    except InputError:
        assert len(made) <= 2
        return
    lost = len(made) - len(trace)
    assert lost <= 2
    assert bool(trace.warnings) >= bool(lost)
