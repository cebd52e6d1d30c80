"""The typical step is typical in all its parts: no other step is nearer to their medians."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from traces import Event, make_trace, named, steps

from deltacell.profile.trace.attribution import Attribution
from deltacell.profile.trace.typical import nearest_to_medians

US = 1000
times = st.integers(0, 1000)
tables = arrays.arrays(
    np.int64,
    st.tuples(st.integers(1, 12), st.integers(1, 5)),
    elements=times,
)


@given(tables, st.randoms())
def test_law_no_other_step_is_nearer_in_all_parts(parts: np.ndarray, draw) -> None:
    place = nearest_to_medians(parts)
    apart = np.abs(parts - np.median(parts, axis=0))
    for other in apart:
        # No step is at least as near in every part and nearer in one.
        assert not ((other <= apart[place]).all() and (other < apart[place]).any())
    # The order of the parts does not matter, and that of the steps only among equally near ones.
    columns = draw.sample(range(parts.shape[1]), parts.shape[1])
    assert nearest_to_medians(parts[:, columns]) == place
    again = np.abs(parts[::-1] - np.median(parts, axis=0)).sum(axis=1)
    assert again[nearest_to_medians(parts[::-1])] == apart[place].sum()


@given(tables)
def test_law_a_step_of_medians_is_typical(parts: np.ndarray) -> None:
    both = np.concatenate([2 * parts, 2 * parts, np.median(2 * parts, axis=0)[None].astype(int)])
    assert (both[nearest_to_medians(both)] == np.median(both, axis=0)).all()


def test_a_step_of_usual_length_with_unusual_parts_is_not_typical() -> None:
    # The first is cut. The third has the median length, but its backward takes what its forward
    # does in the others.
    splits = [(60, 40), (60, 41), (20, 82), (60, 43), (60, 44)]
    ranges = steps([1000 * sum(split) for split in splits])
    events: list[Event] = list(ranges)
    for step, (forward, backward) in zip(ranges, splits, strict=True):
        middle = step.begin + forward * US
        events += [
            named("phase.forward", step.begin, forward * US),
            named("phase.backward", middle, backward * US),
            Event("aten::mm", step.begin, forward * US),
            Event("aten::mm", middle, backward * US),
        ]
    found = Attribution(make_trace(events))
    walls = found.steps.wall[found.steps.counted]
    usual = int(np.abs(walls - np.median(walls)).argmin())
    place = np.flatnonzero(found.steps.counted)[usual]
    assert splits[place] == (20, 82)
    assert splits[found.typical] in ((60, 41), (60, 43))
