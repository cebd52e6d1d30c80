"""The time of a step by component: the outermost modules or named ranges of a program.

A component has the time of everything inside it and of the backward of its operators. What belongs
to no component has its category on the host, or its part on a device, so all parts add up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl

from deltacell.base.arrays import Bools, Indices, Ints
from deltacell.profile.trace.ancestors import climb, count_above
from deltacell.profile.trace.categories import Category, own_categories
from deltacell.profile.trace.device import PARTS, DeviceTime, device_part
from deltacell.profile.trace.host import HostTime
from deltacell.profile.trace.host_names import plain_names
from deltacell.profile.trace.self_time import Nesting
from deltacell.profile.trace.steps import Steps
from deltacell.profile.trace.trace import NOTHING, Kind, Trace


@dataclass(frozen=True)
class StepComponents:
    """Seconds of a counted step that add up to it.

    ``others`` are categories of the host, or the parts of a device's time. There, ``compute`` is
    that of no component; it is negative if kernels of components run at once.
    """

    components: Mapping[str, float]
    others: Mapping[str, float]


MODULE = "nn.Module: "  # the prefix of a module's name in a trace
WHOLE = 0.9  # a component with a larger share of all components' time is the model, and is opened
OPENED = 0.5  # if at least this share of its time lies in components inside it


def component_events(trace: Trace, steps: Steps) -> Bools:
    """Return which events are modules, or named ranges without a category if none is a module."""
    modules = trace.named(lambda name: name.startswith(MODULE))
    modules &= trace.kind == Kind.python
    if modules.any():
        return modules
    ranges = trace.named(lambda name: not name.startswith(("ProfilerStep#", "phase.")))
    ranges &= (own_categories(trace) == NOTHING) & (trace.kind == Kind.annotation)
    ranges &= trace.thread == steps.thread
    return ranges


def owner_of(wanted: Bools, nesting: Nesting) -> Indices:
    """Return the nearest of each event and its ancestors that is wanted, or `NOTHING`."""
    place = climb(~wanted, nesting.parent)
    owner: Indices = np.where(wanted[place], place, np.int32(NOTHING))
    return owner


def component_of(trace: Trace, nesting: Nesting, components: Bools) -> Indices:
    """Return the component of each event; a backward has that of its forward."""
    of = owner_of(components, nesting)
    numbered = (trace.kind == Kind.operator) & (trace.sequence >= 0)
    forward = np.flatnonzero(numbered & (of >= 0))
    # The last operator with a number is the one that created its node.
    last = dict(zip(trace.sequence[forward].tolist(), of[forward].tolist(), strict=True))
    holder = owner_of(numbered & (of < 0), nesting)
    orphans = np.flatnonzero((of < 0) & (holder >= 0))
    of[orphans] = [last.get(number, NOTHING) for number in trace.sequence[holder[orphans]].tolist()]
    return of


def host_parts(trace: Trace, nesting: Nesting, steps: Steps, host: HostTime) -> StepComponents:
    """Return what the host does in a step, by component and by category."""
    pieces = np.flatnonzero(steps.counted[host.step])
    length = (host.end - host.begin)[pieces]
    row = host.row[pieces]
    components = component_events(trace, steps)
    of = np.where(row >= 0, component_of(trace, nesting, components)[row], np.int32(NOTHING))
    by_component = _outermost(trace, nesting, components, of, length)
    rest = np.flatnonzero(of < 0)
    spent = np.bincount(host.category[pieces[rest]], weights=length[rest], minlength=len(Category))
    by_category = {category.title: int(spent[category]) for category in Category}
    n_steps = int(steps.counted.sum())
    return StepComponents(_seconds(by_component, n_steps), _seconds(by_category, n_steps))


def device_parts(
    trace: Trace,
    nesting: Nesting,
    steps: Steps,
    device: DeviceTime,
    launch: Indices,
) -> StepComponents:
    """Return what the device does in a step, by the component that launched it and by part."""
    kernels = np.flatnonzero((trace.kind == Kind.kernel) & (launch >= 0))
    kernels = kernels[device_part(trace)[kernels] == 0]
    kernels = kernels[steps.in_counted(trace.begin[launch[kernels]])]
    components = component_events(trace, steps)
    of = component_of(trace, nesting, components)[launch[kernels]]
    by_component = _outermost(trace, nesting, components, of, trace.duration[kernels])
    n_steps = int(steps.counted.sum())
    counted = device.steps.filter("counted")
    by_part = {part: int(counted[part].sum()) for part in PARTS}
    by_part["compute"] -= sum(by_component.values())
    return StepComponents(_seconds(by_component, n_steps), _seconds(by_part, n_steps))


def _seconds(nanoseconds: Mapping[str, int], n_steps: int) -> dict[str, float]:
    return {name: time / n_steps / 1e9 for name, time in nanoseconds.items() if time}


def _outermost(
    trace: Trace,
    nesting: Nesting,
    components: Bools,
    of: Indices,
    length: Ints,
) -> dict[str, int]:
    """Return the time by outermost component, below the module that is the whole model.

    ``of`` is the component of each stretch of time, or `NOTHING`, and ``length`` its nanoseconds.
    """
    inside = of >= 0
    of = of[inside]
    length = length[inside]
    if not len(of):
        return {}
    depth = count_above(components, nesting.parent)
    level = 0
    by_name = _times_at(level, trace, nesting, components, depth, of, length)
    while max(by_name.values()) > WHOLE * sum(by_name.values()):
        is_deeper = depth[of] > level
        if int(length[is_deeper].sum()) < OPENED * max(by_name.values()):
            break
        level += 1
        by_name = _times_at(level, trace, nesting, components, depth, of, length)
    return by_name


def _times_at(
    level: int,
    trace: Trace,
    nesting: Nesting,
    components: Bools,
    depth: Ints,
    of: Indices,
    length: Ints,
) -> dict[str, int]:
    """Return the time by name of the components that have at most ``level`` ones around them."""
    outer = climb(~components | (depth > level), nesting.parent)[of]
    plain = plain_names(trace)
    names = pl.Series([name.removeprefix(MODULE) for name in plain], dtype=pl.String)
    frame = pl.DataFrame({"name": names.gather(trace.name[outer]), "time": length})
    return dict(frame.group_by("name").agg(pl.sum("time")).sort("name").iter_rows())
