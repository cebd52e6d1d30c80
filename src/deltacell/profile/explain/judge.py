"""The judgement on traces: what takes the time of one, and what makes the difference of two.

With a device its account leads: compute, communication and copies that nothing hides, and idle
with its reasons; then comes the operation behind it. The host's categories lead without a device.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from deltacell.profile.explain.account import (
    Bar,
    Waterfall,
    change_text,
    ratio_text,
    seconds_text,
    share_text,
    short_name,
)
from deltacell.profile.explain.subject import (
    CATEGORIES,
    CATEGORY_OF,
    DEVICE_PARTS,
    counted_steps,
    device_parts,
    title_of,
)
from deltacell.profile.trace.attribution import Attribution, RanksAttribution
from deltacell.profile.trace.work import NO_OPERATOR

MUCH = 0.10
"""The share of a step that is worth a clause."""

UNIFORM = 0.85
"""The share of the time in operations of one ratio from which on a slowdown is uniform."""


@dataclass(frozen=True)
class Cause:
    """What takes time, or makes a difference.

    Parameters
    ----------
    kind
        A word for programs: ``compute``, ``communication``, ``copies``, ``idle``, ``rank``,
        ``host``; of a pair also ``batch``, ``type``, ``compiled``, ``recompute``, ``graphs``,
        ``uniform`` (every operation of the device alike) and ``machine`` (of the host).
    name
        The operation, kernel or reason behind it; None where nothing names one.
    seconds
        Per step; of a pair from A to B.
    share
        Of a step, or of the gap.
    text
        The clause that says it.
    """

    kind: str
    name: str | None
    seconds: float
    share: float
    text: str

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON-serialisable dict."""
        return {
            "kind": self.kind,
            "name": self.name,
            "seconds": self.seconds,
            "share": self.share,
            "text": self.text,
        }


Seconds = dict[str, float]


@dataclass(frozen=True, eq=False)
class View:
    """Seconds of a counted step, the mean over ranks, in the ways that a judgement needs.

    Parameters
    ----------
    name
        What it is called.
    traces
        Where its time goes.
    """

    name: str
    traces: RanksAttribution

    @cached_property
    def parts(self) -> Seconds:
        """What the device did; empty without one."""
        return device_parts(self.traces)

    @cached_property
    def idle(self) -> Seconds:
        """Why the device was idle."""
        return self._sum(lambda one: None if one.device is None else one.device.idle, "reason")

    @cached_property
    def operators(self) -> Seconds:
        """What the device computed, by operator."""
        return self._sum(lambda one: one.work.operators, "name")

    @cached_property
    def modules(self) -> Seconds:
        """What the device computed, by module."""
        return self._sum(lambda one: one.work.modules, "name")

    def kernels(self, part: str) -> Seconds:
        """Return what the device did of a part, by kernel."""
        return self._sum(lambda one: one.work.kernels.filter(part=part), "name")

    def meanwhile(self, reason: str) -> Seconds:
        """Return what the host did while the device was idle for a reason."""

        def rows(one: Attribution) -> pl.DataFrame | None:
            return None if one.device is None else one.device.idle_by_name.filter(reason=reason)

        return self._sum(rows, "name")

    @cached_property
    def host(self) -> dict[str, Seconds]:
        """What the host did, by category and name."""
        found: dict[str, Seconds] = defaultdict(dict)
        ranks = self.traces.ranks
        for one in ranks:
            steps = counted_steps(one) * len(ranks) * 1e9
            for name, category, time in one.doing.select("name", "category", "time").iter_rows():
                mine = found[category]
                mine[name] = mine.get(name, 0.0) + time / steps
        return dict(found)

    @cached_property
    def times(self) -> npt.NDArray[np.float64]:
        """Nanoseconds of each counted step, the mean over ranks where they have equally many."""
        times = [one.step_times for one in self.traces.ranks]
        if len({len(one) for one in times}) == 1:
            return np.asarray(np.mean(times, axis=0), dtype=np.float64)
        return np.asarray(times[0], dtype=np.float64)

    def _sum(self, rows: Callable[[Attribution], pl.DataFrame | None], key: str) -> Seconds:
        found: Seconds = defaultdict(float)
        ranks = self.traces.ranks
        for one in ranks:
            frame = rows(one)
            if frame is not None:
                steps = counted_steps(one) * len(ranks) * 1e9
                for name, time in frame.select(key, "time").iter_rows():
                    found[name] += time / steps
        return dict(found)


def causes_of_one(view: View, host: Mapping[str, float]) -> list[Cause]:
    """Return what takes the time of a trace, the largest first."""
    causes = _on_device(view) if view.parts else _on_host(view, host)
    causes.sort(key=lambda cause: -cause.seconds)
    late = late_rank(view.traces)
    if late is not None and late.waited_share > MUCH:
        computing = next((c.share for c in causes if c.kind in ("compute", "host")), 0.0)
        place = 0 if late.waited_share >= min(computing, 0.25) else 1
        step = sum(view.parts.values()) or sum(host.values())
        share = late.waited_share
        causes.insert(place, Cause("rank", str(late.rank), share * step, share, late.sentence))
    return causes


def sentence_of_one(causes: list[Cause]) -> str:
    """Return the largest cause, and the next where it is much too."""
    said = [cause.text for cause in causes[:1]]
    said += [cause.text for cause in causes[1:2] if cause.share > MUCH]
    text = "; ".join(said)
    return f"{text[0].upper()}{text[1:]}."


def _takes(what: str, seconds: float, whole: float, of: str) -> str:
    return (
        f"{what} takes {share_text(seconds / whole)} of a step of {of} "
        f"({seconds_text(seconds)} of {seconds_text(whole)})"
    )


def _on_device(view: View) -> list[Cause]:
    parts, whole = view.parts, sum(view.parts.values())
    causes = []
    for part in ("compute", "communication", "copies"):
        seconds = parts[part]
        if seconds > 0:
            name, text = _behind(view, part)
            said = _takes(DEVICE_PARTS[part], seconds, whole, view.name)
            causes.append(Cause(part, name, seconds, seconds / whole, f"{said}{text}"))
    if parts["idle"] > 0:
        name, text = _why_idle(view)
        said = (
            f"the device of {view.name} is idle {share_text(parts['idle'] / whole)} of a step "
            f"({seconds_text(parts['idle'])} of {seconds_text(whole)}){text}"
        )
        causes.append(Cause("idle", name, parts["idle"], parts["idle"] / whole, said))
    return causes


def _behind(view: View, part: str) -> tuple[str | None, str]:
    found = view.kernels(part)
    if part == "compute" and any(name != NO_OPERATOR for name in view.operators):
        found = view.operators
    if not found:
        return None, ""
    name = max(found, key=lambda key: (found[key], key))
    most = "most of it" if 2 * found[name] > sum(found.values()) else "the largest part"
    where = ""
    modules = {key: time for key, time in view.modules.items() if key != NO_OPERATOR}
    if part == "compute" and modules:
        module = max(modules, key=lambda key: (modules[key], key))
        label = module.removeprefix("nn.Module: ")
        where = f"; of its modules {short_name(label)} takes most, {seconds_text(modules[module])}"
    if name == NO_OPERATOR:
        kernels = view.kernels(part)
        name = max(kernels, key=lambda key: (kernels[key], key))
    return name, f", {most} in {kernel_name(name)} ({seconds_text(found.get(name, 0.0))}){where}"


def _why_idle(view: View) -> tuple[str | None, str]:
    reasons = sorted(view.idle.items(), key=lambda item: (-item[1], item[0]))
    whole = sum(view.idle.values())
    told = [
        _reason(view, reason, seconds) for reason, seconds in reasons[:2] if seconds >= 0.2 * whole
    ]
    return (reasons[0][0] if reasons else None), f": {', and '.join(told)}" if told else ""


def _reason(view: View, reason: str, seconds: float) -> str:
    named = view.meanwhile(reason)
    name = max(named, key=lambda key: (named[key], key)) if named else None
    text, with_name = _REASONS[reason]
    said = f"{text} ({seconds_text(seconds)})"
    # Launches are spread over many operators, of which none may be worth a name.
    if name is not None and named[name] >= (0.3 if reason == "launch" else 0.1) * seconds:
        said += with_name.format(name=short_name(name))
    return said


_REASONS = {
    "data": ("the host waits for the loader", ""),
    "sync": ("the host had to wait for the device and has nothing ready", ", after {name}"),
    "launch": ("the host takes longer to launch kernels than they run", ", mostly in {name}"),
    "host": ("the host is busy with something else", ", mostly with {name}"),
    "device": ("what was launched waits for another stream or rank", ""),
    "end": ("nothing follows in the trace", ""),
}


def _on_host(view: View, parts: Mapping[str, float]) -> list[Cause]:
    whole = math.fsum(parts.values())
    causes = []
    for category, seconds in parts.items():
        named = view.host.get(category, {})
        if not named or not whole:
            continue
        if category == "other":
            # What no category has is named by itself.
            for name, time in named.items():
                said = _takes(short_name(name), time, whole, view.name)
                causes.append(Cause("host", name, time, time / whole, said))
            continue
        name = max(named, key=lambda key: (named[key], key))
        said = _takes(category, seconds, whole, view.name)
        if named[name] > 0.1 * seconds:
            most = "most of it" if 2 * named[name] > seconds else "the largest part"
            said += f", {most} in {short_name(name)} ({seconds_text(named[name])})"
        causes.append(Cause("host", name, seconds, seconds / whole, said))
    return causes


def causes_of_two(a: View, b: View, fall: Waterfall) -> list[Cause]:
    """Return what makes B take longer or shorter than A, the largest first."""
    if not a.parts or not b.parts:
        return _host_changes(a, b, fall)
    gap = sum(b.parts.values()) - sum(a.parts.values())
    changes = {
        part: b.parts[part] - a.parts[part] for part in ("compute", "communication", "copies")
    }
    for reason in {**a.idle, **b.idle}:
        changes[f"idle {reason}"] = b.idle.get(reason, 0.0) - a.idle.get(reason, 0.0)
    along = {part: change for part, change in changes.items() if change * gap > 0}
    found = []
    for part, change in sorted(along.items(), key=lambda item: -abs(item[1])):
        kind, _, reason = part.partition(" ")
        if reason == "data":
            # The device waits for the host, so that the host's own time is what counts.
            bar = next((bar for bar in fall.bars if bar.part == "data loading"), None)
            if bar is not None:
                found.append(_of_bar(bar, fall))
                continue
        name, detail, because = _detail(a, b, part, change)
        label = DEVICE_PARTS.get(part) or _IDLE[reason].format(name=name)
        said = f"{label} is {of_gap(change, gap)}{detail}"
        found.append(Cause(because or kind, name, change, change / gap, said))
    return found


def of_gap(change: float, gap: float, detail: str = "") -> str:
    """Return a change and its share of a gap; a share above all of it is said as such."""
    share = change / gap
    said = f"{change_text(change)}{detail}, {share_text(share)} of the gap"
    if share > 1.005:
        rest = change_text(gap - change)
        said += f", which is more than all of it; the other parts are {rest}"
    return said


_IDLE = {
    "data": "the wait for the loader",
    "sync": "idle time after {name} made the host wait for the device",
    "launch": "idle time while the host launches kernels, mostly in {name},",
    "host": "idle time while the host is busy with {name}",
    "device": "idle time for another stream or rank",
    "end": "idle time at the end",
}


def _detail(a: View, b: View, part: str, change: float) -> tuple[str | None, str, str | None]:
    kind, _, reason = part.partition(" ")
    if kind == "idle":
        name = _most_changed(a.meanwhile(reason), b.meanwhile(reason), change)
        return (None, "", None) if name is None else (short_name(name), "", None)
    if kind != "compute":
        name = _most_changed(a.kernels(kind), b.kernels(kind), change)
        return name, "" if name is None else f": {kernel_name(name)}", None
    because = work_difference(a, b)
    if because is not None:
        return because[1], f": {because[1]}", because[0]
    uniform = uniform_ratio(a.operators, b.operators)
    if uniform is not None:
        text = f": every operation takes about {ratio_text(uniform)} as long on the device"
        return None, text, "uniform"
    named = [view.operators if len(view.operators) > 1 else view.kernels(kind) for view in (a, b)]
    name = _most_changed(named[0], named[1], change)
    if name is None:
        return None, "", None
    return name, f": {_how_changed(a, b, name, named[0], named[1])}", None


def _how_changed(a: View, b: View, name: str, in_a: Seconds, in_b: Seconds) -> str:
    said = kernel_name(name)
    before, after = in_a.get(name, 0.0), in_b.get(name, 0.0)
    if not before or not after:
        only = b if after else a
        return f"only {only.name} has {said} ({seconds_text(after or before)})"
    change = f"{ratio_text(after / before)} as long ({change_text(after - before)})"
    module = _most_changed(a.modules, b.modules, after - before)
    where = ""
    if module is not None and module != NO_OPERATOR:
        where = f", most of it in {short_name(module.removeprefix('nn.Module: '))}"
    return f"{said} takes {change}{where}"


def _most_changed(a: Seconds, b: Seconds, change: float) -> str | None:
    sign = 1 if change >= 0 else -1
    changes = {name: sign * (b.get(name, 0.0) - a.get(name, 0.0)) for name in {**a, **b}}
    name = max(changes, key=lambda key: (changes[key], key), default=None)
    return name if name is not None and changes[name] > 0 else None


def _host_changes(a: View, b: View, fall: Waterfall) -> list[Cause]:
    """Return what makes the difference on the host.

    What all parts have in common is the machine's, and a part is the cause by what it takes more
    than that.
    """
    along = [bar for bar in fall.bars if bar.change * fall.gap > 0]
    if not along:
        return []
    pace = common_ratio(*(_flat(view) for view in (a, b)))
    beyond = {bar.part: bar.b - pace * bar.a for bar in along}
    sign = 1 if fall.gap > 0 else -1
    along.sort(key=lambda bar: -sign * beyond[bar.part])
    found = [_of_bar(bar, fall, a, b) for bar in along]
    lead = sign * beyond[along[0].part]
    common = (pace - 1) * fall.a / fall.gap
    because = work_difference(a, b) if along[0].part in _OF_THE_MODEL else None
    if because is not None:
        first = found[0]
        text = f"{because[1]}; {first.text}"
        found[0] = Cause(because[0], because[1], first.seconds, first.share, text)
    elif common >= 0.5 and lead < 0.5 * abs(fall.gap):
        text = f"every part takes about {ratio_text(pace)} as long, as on a "
        text += "slower or busier machine" if pace > 1 else "faster or quieter machine"
        if b.traces.ranks[0].traits.workers and not a.traces.ranks[0].traits.workers:
            text += ", and its loader's workers compete with it for the same cores"
        if lead > 0.1 * abs(fall.gap):
            text += f"; beyond that {found[0].text.partition(', ')[0]}"
        found.insert(0, Cause("machine", None, fall.gap, 1.0, text))
    return found


_OF_THE_MODEL = ("forward", "backward", "loss", "optimizer", "other")


def _flat(view: View) -> dict[tuple[str, str], float]:
    return {(part, name): s for part, named in view.host.items() for name, s in named.items()}


def common_ratio(a: Mapping[Any, float], b: Mapping[Any, float]) -> float:
    """Return by how much most of what both do takes longer in B: the median over what they do.

    Each counts once, so that one operation that takes most of the time does not decide. It is 1
    where both have too little in common.
    """
    least = [0.005 * sum(one.values()) for one in (a, b)]
    shared = [name for name in a if name in b and a[name] > least[0] and b[name] > least[1]]
    if len(shared) < 4:
        return 1.0
    return math.exp(float(np.median([math.log(b[name] / a[name]) for name in shared])))


def _of_bar(bar: Bar, fall: Waterfall, a: View | None = None, b: View | None = None) -> Cause:
    name = None
    if a is not None and b is not None:
        before, after = a.host.get(bar.part, {}), b.host.get(bar.part, {})
        name = _most_changed(before, after, bar.change)
    label, detail = bar.part, ""
    if name is not None and bar.part == "other":
        label = short_name(name)
    elif name is not None and bar.part != "data loading":
        detail = f", most of it in {short_name(name)}"
    said = f"{label} is {of_gap(bar.change, fall.gap, detail)}"
    share = bar.change / fall.gap if fall.gap else 0.0
    return Cause("host", name or bar.part, bar.change, share, said)


def uniform_ratio(a: Mapping[Any, float], b: Mapping[Any, float]) -> float | None:
    """Return by how much everything takes longer, where it is everything; else None."""
    whole = (sum(a.values()), sum(b.values()))
    shared = [name for name in a if name in b and a[name] > 0 and b[name] > 0]
    if not shared or min(whole) <= 0 or len(shared) < 3:
        return None
    ratio = sum(b[name] for name in shared) / sum(a[name] for name in shared)
    if abs(math.log(ratio)) < 0.03:
        return None
    near = 0.25 * abs(math.log(ratio)) + 0.02
    alike = [name for name in shared if abs(math.log(b[name] / a[name] / ratio)) <= near]
    shares = [sum(x[name] for name in alike) / y for x, y in zip((a, b), whole, strict=True)]
    return ratio if min(shares) >= UNIFORM else None


def work_difference(a: View, b: View) -> tuple[str, str] | None:
    """Return what differs in the work itself: its kind and a clause.

    None where nothing does, or where it would make the other one slower.
    """
    one, other = a.traces.ranks[0].traits, b.traces.ranks[0].traits
    ratio = float(np.median(b.times) / np.median(a.times))
    slower, faster = (b, a) if ratio > 1 else (a, b)
    batch = _batches(one.shapes, other.shapes)
    if batch is not None and (batch[1] > batch[0]) == (ratio > 1):
        times = batch[1] / batch[0]
        per = ratio / times
        said = f"the batch is {ratio_text(times)} as large ({batch[0]} -> {batch[1]})"
        return "batch", f"{said}, so that a sample takes {ratio_text(per)} as long"
    types = _types(one.shapes, other.shapes)
    if types is not None and (_width(types[1]) > _width(types[0])) == (ratio > 1):
        return "type", f"it computes in another type ({types[0]} -> {types[1]})"
    if one.recomputes != other.recomputes and slower.traces.ranks[0].traits.recomputes:
        return "recompute", (
            f"{slower.name} recomputes the forward inside the backward (activation checkpointing)"
        )
    if one.compiled != other.compiled and faster.traces.ranks[0].traits.compiled:
        return "compiled", f"only {faster.name} runs compiled code (torch.compile)"
    if bool(one.graphs) != bool(other.graphs) and faster.traces.ranks[0].traits.graphs:
        return "graphs", f"only {faster.name} launches graphs"
    return None


def _batches(
    a: Mapping[str, tuple[str, str]], b: Mapping[str, tuple[str, str]]
) -> tuple[int, int] | None:
    votes: dict[tuple[int, int], int] = defaultdict(int)
    for name in a.keys() & b.keys():
        first, second = (_leading(shapes[name][0]) for shapes in (a, b))
        if first is None or second is None or not first or not second:
            continue
        if first[0] != second[0] and first[1:] == second[1:] and min(first[0], second[0]) > 0:
            votes[first[0], second[0]] += 1
    pair = max(votes, key=lambda pair: (votes[pair], pair), default=None)
    # One operator may be a matter of chance.
    return pair if pair is not None and votes[pair] > 1 else None


def _leading(dims: str) -> tuple[int, ...] | None:
    found = re.search(r"\[(\d[\d, ]*)\]", dims[:2000])
    return None if found is None else tuple(int(x) for x in found[1].split(",") if x.strip())


def _width(kind: str) -> int:
    return 64 if kind == "double" else 32 if kind == "float" else 16


_TYPE = re.compile(r"\b(double|float|c10::\w+|half|bfloat16)\b")


def _types(
    a: Mapping[str, tuple[str, str]], b: Mapping[str, tuple[str, str]]
) -> tuple[str, str] | None:
    votes: dict[tuple[str, str], int] = defaultdict(int)
    for name in a.keys() & b.keys():
        kinds = [_TYPE.search(shapes[name][1]) for shapes in (a, b)]
        if kinds[0] is not None and kinds[1] is not None:
            votes[kinds[0][1], kinds[1][1]] += 1
    if not votes:
        return None
    most = max(votes, key=lambda pair: (votes[pair], pair))
    return most if most[0] != most[1] else None


def kernel_name(name: str) -> str:
    """Return a kernel's name without its type and what follows in brackets."""
    plain = name.removeprefix("void ")
    short = re.split(r"[<(]", plain, maxsplit=1)[0].strip()
    return short_name(plain if not short or plain.startswith(("Memcpy", "Memset")) else short)


BETWEEN = {"device": 0.025, "host": 0.08}
"""The share by which two runs of one program differ even where their steps hardly vary: of steps
that a device paces, and of those that a host does, which has other things to do."""

FEW = 5
"""With fewer steps than this, noise is assumed and not measured."""

_DRAWS = 2000


@dataclass(frozen=True)
class Difference:
    """The time per step of B by that of A.

    Parameters
    ----------
    ratio
        Of the medians, or of the means where only these differ: then a few steps do.
    low, high
        The interval that noise leaves for the ratio.
    of
        ``median`` or ``mean``.
    steps
        How many there were in A and in B.
    """

    ratio: float
    low: float
    high: float
    of: str
    steps: tuple[int, int]

    @property
    def is_beyond(self) -> bool:
        """Whether it is more than noise."""
        return self.low > 1 or self.high < 1

    @property
    def detectable(self) -> float:
        """The smallest share by which B could have been slower for it to show."""
        return math.sqrt(self.high / self.low) - 1

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON-serialisable dict."""
        return {
            "ratio": self.ratio,
            "low": self.low,
            "high": self.high,
            "of": self.of,
            "steps": list(self.steps),
            "is_beyond": self.is_beyond,
            "detectable": self.detectable,
        }


def difference(
    a: npt.ArrayLike, b: npt.ArrayLike, *, paced_by: str = "device"
) -> Difference | None:
    """Compare the times of steps; None where there is none, or one takes no time.

    Parameters
    ----------
    a, b
        Of each step, in any unit.
    paced_by
        ``device`` or ``host``.
    """
    times = [np.asarray(one, dtype=np.float64) for one in (a, b)]
    if any(not len(one) or not (one > 0).all() for one in times):
        return None
    found = _compare(times[0], times[1], "median", BETWEEN[paced_by])
    if found.is_beyond:
        return found
    means = _compare(times[0], times[1], "mean", BETWEEN[paced_by])
    return means if means.is_beyond else found


def _compare(
    a: npt.NDArray[np.float64], b: npt.NDArray[np.float64], of: str, between: float
) -> Difference:
    middle: Callable[..., Any] = np.median if of == "median" else np.mean
    ratio = math.log(float(middle(b)) / float(middle(a)))
    # The same draws for A and B the other way round: what is said of one is said of the other.
    drawn = [
        np.log(middle(one[np.random.default_rng(7).integers(0, len(one), (_DRAWS, len(one)))], 1))
        for one in (a, b)
    ]
    spread = math.hypot(*(float(np.std(one)) for one in drawn))
    assumed = math.hypot(*(_assumed(len(one)) / math.sqrt(len(one)) for one in (a, b)))
    half = max(_WIDE * max(spread, assumed), between)
    return Difference(
        math.exp(ratio), math.exp(ratio - half), math.exp(ratio + half), of, (len(a), len(b))
    )


# Half the width of the interval in standard deviations, with something for few draws.
_WIDE = 2.9


def _assumed(steps: int) -> float:
    return 0.10 if steps == 1 else 0.06 if steps < FEW else 0.015


WORTH_NAMING = 0.05
"""The share of a step by which a rank has to be late to be named."""


@dataclass(frozen=True)
class Straggler:
    """The rank that arrives last where gradients are summed.

    The barrier makes every rank's step equally long, so ranks are compared by the time until
    they arrive: the step without its communication.

    Parameters
    ----------
    rank
        Its number.
    late_s
        Seconds a step by which it arrives after the mean of the others.
    share
        Of a step.
    part
        The category in which it spends the most time more than the others.
    part_s
        How much more.
    """

    rank: int
    late_s: float
    share: float
    part: str
    part_s: float

    @property
    def sentence(self) -> str:
        """What it is, with the numbers."""
        return (
            f"rank {self.rank} arrives last at the exchange of gradients, "
            f"{seconds_text(self.late_s)} a step after the others, and spends "
            f"{seconds_text(self.part_s)} more than they do in {self.part}"
        )


def straggler(by_rank: pl.DataFrame) -> Straggler | None:
    """Return the rank that the others wait for; None where there is none worth naming."""
    if len(by_rank) < 2:
        return None
    waiting = CATEGORY_OF["communication"]
    arrival = by_rank["ms per step"] - by_rank[waiting]
    last = int(arrival.arg_max() or 0)
    others = pl.Series(range(len(by_rank))) != last
    late = float(arrival[last]) - float(arrival.filter(others).mean() or 0.0)  # type: ignore[arg-type]
    step = float(by_rank["ms per step"].mean() or 0.0)  # type: ignore[arg-type]
    if not step or late < WORTH_NAMING * step:
        return None
    more = {
        part: float(by_rank[part][last]) - float(by_rank[part].filter(others).mean() or 0.0)  # type: ignore[arg-type]
        for part in CATEGORIES
        if part != waiting
    }
    part = max(more, key=lambda name: more[name])
    return Straggler(int(by_rank["rank"][last]), late / 1e3, late / step, part, more[part] / 1e3)


@dataclass(frozen=True)
class LateRank:
    """The rank that the others wait for.

    Parameters
    ----------
    rank, first
        Its number, and that of the one that came first to the collective it was latest to.
    late_s, before_s
        From the first arrival to the last, there; and what of it was before its step began.
    collective, index, step
        Which one that was: its name, the how-manieth of its kind in its step, and the step.
    doing, category, more_s
        What it spends more time with than the others do, of what kind, and how much per step.
    waited_share
        Of the time of all ranks: what they waited where it was last.
    last, collectives
        How often it came last, of how many.
    """

    rank: int
    first: int
    late_s: float
    before_s: float
    collective: str
    index: int
    step: int
    doing: str | None
    category: str | None
    more_s: float
    waited_share: float
    last: int
    collectives: int

    @property
    def sentence(self) -> str:
        """What it is, with the numbers."""
        which = "the first" if self.index == 0 else f"number {self.index + 1} of its kind of"
        busy = ""
        if self.category is not None:
            busy = f", spends {seconds_text(self.more_s)} more than they do in {self.category}"
            if self.doing is not None:
                busy += f" ({short_name(self.doing)})"
        entered = (
            f"enters {which} {short_name(self.collective)} {seconds_text(self.late_s)} after rank "
            f"{self.first}"
        )
        often = f"comes last to {self.last} of {self.collectives} collectives"
        share = f"waiting for it is {share_text(self.waited_share)} of the time of all ranks"
        if 2 * self.before_s >= self.late_s:
            return (
                f"the ranks wait for rank {self.rank}, which starts its step "
                f"{seconds_text(self.before_s)} late: it {entered} and {often}; {share}"
            )
        return f"the ranks wait for rank {self.rank}: it {entered}{busy}, and {often}; {share}"


def late_rank(traces: RanksAttribution) -> LateRank | None:
    """Return the rank that the others wait for most; None where it is not known or not much."""
    alignment = traces.alignment
    if alignment is None:
        return None
    counted = {
        int(number)
        for one in traces.ranks
        for number in one.steps.number[one.steps.counted].tolist()
    }
    rows = alignment.collectives.filter(pl.col("step").is_in(list(counted)))
    if not len(rows):
        return None
    by_rank = rows.group_by("last_rank").agg(pl.col("waited").sum(), pl.len().alias("last"))
    worst = by_rank.sort("waited", "last_rank", descending=[True, False]).row(0, named=True)
    wall = sum(int(one.steps.wall[one.steps.counted].sum()) for one in traces.ranks)
    mine = rows.filter(pl.col("last_rank") == worst["last_rank"])
    latest = mine.sort("late_by", descending=True).row(0, named=True)
    number = int(worst["last_rank"])
    doing, category, more = _excess(traces, number)
    if category is None:
        doing, category = latest["doing"], title_of(latest["category"])
    return LateRank(
        rank=number,
        first=int(latest["first_rank"]),
        late_s=latest["late_by"] / 1e9,
        before_s=latest["late_before"] / 1e9,
        collective=latest["name"],
        index=int(latest["index"]),
        step=int(latest["step"]),
        doing=doing,
        category=category,
        more_s=more,
        waited_share=worst["waited"] / wall if wall else 0.0,
        last=int(worst["last"]),
        collectives=len(rows),
    )


def _excess(traces: RanksAttribution, rank: int) -> tuple[str | None, str | None, float]:
    spent = [_spent(one) for one in traces.ranks]
    numbers = [
        i if one.trace.rank is None else one.trace.rank for i, one in enumerate(traces.ranks)
    ]
    mine = spent[numbers.index(rank)]
    others = [one for one, number in zip(spent, numbers, strict=True) if number != rank]
    more = {
        key: time - sum(one.get(key, 0.0) for one in others) / len(others)
        for key, time in mine.items()
    }
    by_category: dict[str, float] = {}
    for (category, _), time in more.items():
        by_category[category] = by_category.get(category, 0.0) + time
    waiting = CATEGORY_OF["communication"]
    best = max((c for c in by_category if c != waiting), key=lambda c: by_category[c], default=None)
    step = sum(mine.values())
    if best is None or by_category[best] < WORTH_NAMING * step:
        return None, None, 0.0
    name = max((key for key in more if key[0] == best), key=lambda key: more[key])[1]
    return name, best, by_category[best]


def _spent(one: Attribution) -> dict[tuple[str, str], float]:
    steps = 1e9 * int(one.steps.counted.sum())
    rows = one.doing.select("category", "name", "time").iter_rows()
    found = {(category, name): time / steps for category, name, time in rows}
    if one.device is not None:
        for name, time in one.work.operators.select("name", "time").iter_rows():
            found["computing", name] = time / steps
    return found
