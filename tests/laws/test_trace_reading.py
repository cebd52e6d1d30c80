"""Laws of reading a trace: how it was written changes nothing of what is read."""

from __future__ import annotations

import gzip
import json
import re
import tempfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltacell.errors import InputError
from deltacell.profile.trace import decode
from deltacell.profile.trace.read import read_trace

ORIGINS = (0, 5, 4_458_676_522_690_655, 1_716_423_322_690_655_123, -7_000)

names = st.text(max_size=12) | st.sampled_from(
    ['}, {"ph": "X"', '{"ph":"B"}]', "\\", '"', "]}", "a\\u0041", "\ud7ff\U0001f600", "[memory]"]
)
events = st.lists(
    st.tuples(
        names,
        # Few begins, so that of many events some begin together.
        st.integers(0, 3) | st.integers(0, 10**13),
        st.integers(0, 10**12),
        st.integers(0, 2),
        st.integers(1, 2**53),
    ),
    min_size=1,
    max_size=30,
)
layouts = st.sampled_from([{}, {"indent": 2}, {"separators": (",", ":")}, {"ensure_ascii": False}])


def microseconds(nanoseconds):
    """Return a mark that `text_of` makes a number with three places, as no double would be."""
    sign = "-" if nanoseconds < 0 else ""
    whole, rest = divmod(abs(nanoseconds), 1000)
    return f"@{sign}{whole}.{rest:03}@"


def written(made, origin):
    return [
        {
            "ph": "X",
            "cat": "cpu_op",
            "name": name,
            "pid": 1,
            "tid": tid,
            "ts": microseconds(begin + origin),
            "dur": microseconds(duration),
            "args": {"correlation": correlation, "Input Dims": [[], [1, {"name": 2}]]},
        }
        for name, begin, duration, tid, correlation in made
    ]


def text_of(listed, **layout):
    document = {"schemaVersion": 1, "traceEvents": listed, "traceName": 'x"], }'}
    return re.sub(r'"@(-?[0-9.]+)@"', r"\1", json.dumps(document, **layout)).encode()


def read(text, piece=decode.PIECE):
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(decode, "PIECE", piece)
        path = Path(folder) / "trace.json"
        path.write_bytes(text)
        return read_trace(path)


def rows(trace):
    """All that is known of each event, with no order among those that are the same."""
    threads = [trace.threads[code].tid for code in trace.thread]
    texts = [trace.text(row) for row in range(len(trace))]
    columns = (trace.begin, trace.duration, trace.correlation)
    return sorted(zip(texts, threads, *(c.tolist() for c in columns), strict=True))


@settings(max_examples=40, deadline=None)
@given(events, st.sampled_from(ORIGINS), layouts, st.integers(40, 3000), st.booleans())
def test_what_was_written_is_read(made, origin, layout, piece, packed):
    text = text_of(written(made, origin), **layout)
    trace = read(gzip.compress(text) if packed else text, piece)
    first = min(begin for _, begin, *_ in made)
    assert trace.origin == first + origin
    assert rows(trace) == sorted(
        (name, str(tid), begin - first, duration, correlation)
        for name, begin, duration, tid, correlation in made
    )
    assert trace.warnings == ()
    assert trace.text_bytes == len(text)


@settings(max_examples=40, deadline=None)
@given(events, st.sampled_from(ORIGINS), st.randoms())
def test_order_and_clock_of_the_file_change_nothing(made, origin, random):
    mixed = list(made)
    random.shuffle(mixed)
    here, there = read(text_of(written(made, 0))), read(text_of(written(mixed, origin)))
    assert rows(here) == rows(there)
    assert there.origin - here.origin == origin
    later = np.diff(here.begin)
    assert here.begin[0] == 0
    assert (later >= 0).all()
    assert (np.diff(here.duration)[later == 0] <= 0).all()


@settings(max_examples=40, deadline=None)
@given(events, layouts, st.integers(40, 3000), st.floats(0, 1))
def test_a_file_that_is_cut_off_is_read_up_to_the_cut(made, layout, piece, share):
    text = text_of(written(made, 0), **layout)
    begin = text.index(b"[") + 1
    cut = begin + int(share * (len(text) - 1 - begin))
    whole = whole_events(text[:cut])
    if not whole:
        with pytest.raises(InputError) as caught:
            read(text[:cut], piece)
        assert caught.value.code == "no-events"
        return
    trace = read(text[:cut], piece)
    assert sorted(trace.correlation.tolist()) == sorted(c for *_, c in made[:whole])
    assert trace.damage == "the file is cut off"


def whole_events(text):
    """Count the events before a cut with a decoder that knows nothing of pieces."""
    decoder = json.JSONDecoder()
    rest = text.decode("utf-8", "replace").split("[", 1)[1]
    count = 0
    while True:
        rest = rest.lstrip(", \n")
        try:
            _, end = decoder.raw_decode(rest)
        except ValueError:
            return count
        count += 1
        rest = rest[end:]


trees = st.recursive(st.just([]), lambda children: st.lists(children, max_size=3), max_leaves=8)


@settings(max_examples=40, deadline=None)
@given(st.lists(trees, min_size=1, max_size=3), st.booleans())
def test_beginnings_and_ends_are_the_same_as_durations(forests, named_ends):
    halves, wholes = [], []
    for tid, tree in enumerate(forests):
        clock = iter(range(1, 10_000))
        pair_up(tree, tid, clock, halves, wholes, named_ends)
    assert rows(read(text_of(halves))) == rows(read(text_of(wholes)))


def pair_up(children, tid, clock, halves, wholes, named_ends):
    name = f"with {len(children)}"
    common = {"pid": 1, "tid": tid, "cat": "cpu_op"}
    begin = next(clock)
    halves.append({"ph": "B", "name": name, "ts": begin, **common})
    for child in children:
        pair_up(child, tid, clock, halves, wholes, named_ends)
    end = next(clock)
    halves.append({"ph": "E", **({"name": name} if named_ends else {}), "ts": end, **common})
    wholes.append({"ph": "X", "name": name, "ts": begin, "dur": end - begin, **common})


@settings(max_examples=40, deadline=None)
@given(st.binary(max_size=300), st.integers(20, 200))
def test_any_bytes_are_read_or_refused_in_a_sentence(junk, piece):
    for text in (
        junk,
        b'{"traceEvents": [' + junk,
        b'[{"ph":"X","name":"a","ts":1,"dur":1},' + junk,
    ):
        with suppress(InputError):
            read(text, piece)


@settings(max_examples=40, deadline=None)
@given(events, st.data())
def test_damage_costs_no_more_than_a_few_events(made, data):
    text = bytearray(text_of(written(made, 0)))
    begin = text.index(b"[") + 1
    end = text.rindex(b', "traceName"') - 1
    at = data.draw(st.integers(begin, max(begin, end - 1)))
    text[at] = data.draw(st.integers(0, 255))
    try:
        trace = read(bytes(text))
    except InputError:
        assert len(made) <= 2
        return
    lost = len(made) - len(trace)
    assert lost <= 2
    assert bool(trace.warnings) >= bool(lost)
