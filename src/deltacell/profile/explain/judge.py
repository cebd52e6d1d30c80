"""The judgement: what takes the time of one trace, and what makes the difference of two.

With a device its account leads: compute, communication and copies that nothing hides, and idle
with its reasons; then comes the operation behind it. The host's categories lead without a device.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from deltacell.profile.explain.account import Bar, Waterfall
from deltacell.profile.explain.subject import (
    CATEGORIES,
    CATEGORY_OF,
    DEVICE_PARTS,
    device_parts,
    title_of,
)
from deltacell.profile.trace.attribution import Attribution, RanksAttribution
from deltacell.profile.trace.work import NO_OPERATOR
from deltacell.words import capital, change_text, ratio_text, seconds_text, share_text, short_name

MUCH = 0.10
"""The share of a step that is worth a clause."""

UNIFORM = 0.85
"""The share of the time in operations of one ratio from which on a slowdown is uniform."""

WORTH_NAMING = 0.05
"""The share of a step by which a rank has to be late to be named."""

BETWEEN = {"device": 0.025, "host": 0.08}
"""The share by which two runs of one program differ even where their steps hardly vary, where a
device or where a host sets the pace, which has other things to do."""

FEW = 5
"""With fewer steps than this, noise is assumed and not measured."""

Seconds = dict[str, float]
Shapes = Mapping[str, tuple[str, str]]


@dataclass(frozen=True)
class Difference:
    """The time per step of B by that of A, with the interval that noise leaves for it.

    It is the ratio of the medians, or ``of`` the means where only these differ: then a few steps
    do. ``steps`` is how many there were in A and in B.
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
            **asdict(self),
            "steps": list(self.steps),
            "is_beyond": self.is_beyond,
            "detectable": self.detectable,
        }


def difference(
    a: npt.ArrayLike, b: npt.ArrayLike, *, paced_by: str = "device"
) -> Difference | None:
    """Compare times of steps by a bootstrap; None where there is none, or one takes no time.

    Parameters
    ----------
    a, b
        One time per step, in any unit.
    paced_by
        ``device`` or ``host``; see `BETWEEN`.
    """
    times = [np.asarray(one, dtype=np.float64) for one in (a, b)]
    if any(not len(one) or not (one > 0).all() for one in times):
        return None
    medians, means = (_compare(times, of, BETWEEN[paced_by]) for of in ("median", "mean"))
    return means if means.is_beyond and not medians.is_beyond else medians


_DRAWS = 2000
# Half the width of the interval in standard deviations, with something for few draws.
_WIDE = 2.9


def _compare(times: list[npt.NDArray[np.float64]], of: str, between: float) -> Difference:
    middle: Callable[..., Any] = np.median if of == "median" else np.mean
    ratio = math.log(float(middle(times[1])) / float(middle(times[0])))
    variance, assumed = 0.0, 0.0
    for one in times:
        # The same draws for A and B, so that swapping them gives the inverse.
        draws = np.random.default_rng(7).integers(0, len(one), (_DRAWS, len(one)))
        variance += float(np.var(np.log(middle(one[draws], 1))))
        least = 0.10 if len(one) == 1 else 0.06 if len(one) < FEW else 0.015
        assumed += least**2 / len(one)
    half = max(_WIDE * math.sqrt(max(variance, assumed)), between)
    low, high = math.exp(ratio - half), math.exp(ratio + half)
    return Difference(math.exp(ratio), low, high, of, (len(times[0]), len(times[1])))


@dataclass(frozen=True)
class Cause:
    """What takes time, or makes a difference.

    ``kind`` is ``compute``, ``communication``, ``copies``, ``idle``, ``rank`` or ``host``; of a
    pair also ``batch``, ``type``, ``compiled``, ``recompute``, ``graphs``, ``uniform`` (every
    operation of the device alike) and ``machine`` (of the host). ``name`` is the operation, kernel
    or reason behind it, or None; ``seconds`` are per step, or from A to B; ``share`` is of a step
    or of the gap.
    """

    kind: str
    name: str | None
    seconds: float
    share: float
    text: str


@dataclass(frozen=True, eq=False)
class View:
    """Seconds of a counted step, the mean over ranks, in the ways that a judgement needs."""

    name: str
    traces: RanksAttribution

    @cached_property
    def parts(self) -> Seconds:
        """The parts of the device's time; empty without one."""
        return device_parts(self.traces)

    @cached_property
    def idle(self) -> Seconds:
        """Idle time of the device by reason."""
        return self._sum(lambda one: None if one.device is None else one.device.idle, "reason")

    @cached_property
    def operators(self) -> Seconds:
        """Computation of the device by operator."""
        return self._sum(lambda one: one.work.operators, "name")

    @cached_property
    def modules(self) -> Seconds:
        """Computation of the device by module."""
        return self._sum(lambda one: one.work.modules, "name")

    def kernels(self, part: str) -> Seconds:
        """Return a part of the device's time by kernel."""
        return self._kernels.get(part, {})

    def meanwhile(self, reason: str) -> Seconds:
        """Return what the host did while the device was idle for a reason."""
        return self._meanwhile.get(reason, {})

    @cached_property
    def host(self) -> dict[str, Seconds]:
        """The time of the host by category and name."""
        return self._sums(lambda one: one.doing, "name", "category")

    @cached_property
    def times(self) -> npt.NDArray[np.float64]:
        """Nanoseconds of each counted step, the mean over ranks where they have equally many."""
        times = [one.step_times for one in self.traces.ranks]
        alike = len({len(one) for one in times}) == 1
        return np.asarray(np.mean(times, axis=0) if alike else times[0], dtype=np.float64)

    @cached_property
    def _kernels(self) -> dict[str, Seconds]:
        return self._sums(lambda one: one.work.kernels, "name", "part")

    @cached_property
    def _meanwhile(self) -> dict[str, Seconds]:
        return self._sums(lambda one: one.device and one.device.idle_by_name, "name", "reason")

    def _sum(self, rows: Callable[[Attribution], Any], key: str) -> Seconds:
        return self._sums(rows, key).get("", {})

    def _sums(
        self, rows: Callable[[Attribution], Any], key: str, by: str | None = None
    ) -> dict[str, Seconds]:
        """Return the mean seconds per step over ranks of the rows of a frame, by two columns."""
        found: dict[str, Seconds] = defaultdict(lambda: defaultdict(float))
        for one in self.traces.ranks:
            frame = rows(one)
            if frame is None:
                continue
            steps = one.n_counted * len(self.traces.ranks) * 1e9
            groups = [""] * len(frame) if by is None else frame[by].to_list()
            for group, name, time in zip(
                groups, frame[key].to_list(), frame["time"].to_list(), strict=True
            ):
                found[group][name] += time / steps
        return {group: dict(sums) for group, sums in found.items()}


def _largest(found: Mapping[str, float]) -> str | None:
    return max(found, key=lambda key: (found[key], key), default=None)


def causes_of_one(view: View, host: Mapping[str, float]) -> list[Cause]:
    """Return what takes the time of a trace, the largest first."""
    causes = _on_device(view) if view.parts else _on_host(view, host)
    causes.sort(key=lambda cause: -cause.seconds)
    late = late_rank(view.traces)
    if late is not None and late.waited_share > MUCH:
        computing = next((c.share for c in causes if c.kind in ("compute", "host")), 0.0)
        place = 0 if late.waited_share >= min(computing, 0.25) else 1
        step, share = sum(view.parts.values()) or sum(host.values()), late.waited_share
        causes.insert(place, Cause("rank", str(late.rank), share * step, share, late.sentence))
    return causes


def sentence_of_one(causes: list[Cause]) -> str:
    """Return the largest cause, and the next where it is large too."""
    said = [cause.text for i, cause in enumerate(causes[:2]) if i == 0 or cause.share > MUCH]
    return f"{capital('; '.join(said))}."


def _takes(what: str, seconds: float, whole: float, of: str) -> str:
    return (
        f"{what} takes {share_text(seconds / whole)} of a step of {of} "
        f"({seconds_text(seconds)} of {seconds_text(whole)})"
    )


def _mostly(named: Seconds, name: str, whole: float, label: str) -> str:
    most = "most of it" if 2 * named.get(name, 0.0) > whole else "the largest part"
    return f", {most} in {label} ({seconds_text(named.get(name, 0.0))})"


def _on_device(view: View) -> list[Cause]:
    parts, whole = view.parts, sum(view.parts.values())
    causes = []
    for part in ("compute", "communication", "copies"):
        seconds = parts[part]
        if seconds > 0:
            name, text = _behind(view, part)
            said = _takes(DEVICE_PARTS[part], seconds, whole, view.name)
            causes.append(Cause(part, name, seconds, seconds / whole, f"{said}{text}"))
    idle = parts["idle"]
    if idle > 0:
        said = (
            f"the device of {view.name} is idle {share_text(idle / whole)} of a step "
            f"({seconds_text(idle)} of {seconds_text(whole)})"
        )
        reasons = sorted(view.idle.items(), key=lambda item: (-item[1], item[0]))
        enough = 0.2 * sum(view.idle.values())
        told = [_idle_text(view, why, s) for why, s in reasons[:2] if s >= enough]
        said += f": {', and '.join(told)}" if told else ""
        causes.append(Cause("idle", reasons[0][0] if reasons else None, idle, idle / whole, said))
    return causes


def _behind(view: View, part: str) -> tuple[str | None, str]:
    """Return the operation with most of a part of the device's time, and a clause."""
    found = kernels = view.kernels(part)
    if part == "compute" and any(name != NO_OPERATOR for name in view.operators):
        found = view.operators
    if (name := _largest(found)) == NO_OPERATOR:
        found, name = kernels, _largest(kernels)
    if name is None:
        return None, ""
    clause = _mostly(found, name, sum(found.values()), kernel_name(name))
    modules = {key: time for key, time in view.modules.items() if key != NO_OPERATOR}
    module = _largest(modules)
    if part == "compute" and module is not None:
        took = seconds_text(modules[module])
        clause += f"; of its modules {_module_name(module)} takes most, {took}"
    return name, clause


def _module_name(name: str) -> str:
    return short_name(name.removeprefix("nn.Module: "))


def _idle_text(view: View, reason: str, seconds: float) -> str:
    named = view.meanwhile(reason)
    name = _largest(named)
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
_IDLE = {
    "data": "the wait for the loader",
    "sync": "idle time after {name} made the host wait for the device",
    "launch": "idle time while the host launches kernels, mostly in {name},",
    "host": "idle time while the host is busy with {name}",
    "device": "idle time for another stream or rank",
    "end": "idle time at the end",
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
        most = _largest(named)
        assert most is not None
        said = _takes(category, seconds, whole, view.name)
        if named[most] > 0.1 * seconds:
            said += _mostly(named, most, seconds, short_name(most))
        causes.append(Cause("host", most, seconds, seconds / whole, said))
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
        loading = next((bar for bar in fall.bars if bar.part == "data loading"), None)
        if reason == "data" and loading is not None:
            # The device waits for the host, so that the host's own time is what counts.
            found.append(_of_bar(loading, fall))
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


def _detail(a: View, b: View, part: str, change: float) -> tuple[str | None, str, str | None]:
    """Return the operation behind a change, a clause on it, and the kind of cause it is."""
    kind, _, reason = part.partition(" ")
    if kind == "idle":
        name = _most_changed(a.meanwhile(reason), b.meanwhile(reason), change)
        return (None if name is None else short_name(name)), "", None
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
    before, after = (one.get(name, 0.0) for one in named)
    if not before or not after:
        only, seconds = (b, after) if after else (a, before)
        return name, f": only {only.name} has {kernel_name(name)} ({seconds_text(seconds)})", None
    module = _most_changed(a.modules, b.modules, after - before)
    named_one = module is not None and module != NO_OPERATOR
    where = f", most of it in {_module_name(str(module))}" if named_one else ""
    said = f"{kernel_name(name)} takes {ratio_text(after / before)} as long"
    return name, f": {said} ({change_text(after - before)}){where}", None


def _most_changed(a: Seconds, b: Seconds, change: float) -> str | None:
    sign = 1 if change >= 0 else -1
    changes = {name: sign * (b.get(name, 0.0) - a.get(name, 0.0)) for name in {**a, **b}}
    name = _largest(changes)
    return name if name is not None and changes[name] > 0 else None


def _host_changes(a: View, b: View, fall: Waterfall) -> list[Cause]:
    """Return what makes the difference on the host.

    What all parts have in common is the machine's, and a part is the cause by what it takes more
    than that.
    """
    along = [bar for bar in fall.bars if bar.change * fall.gap > 0]
    if not along:
        return []
    flat = [
        {(part, name): s for part, named in view.host.items() for name, s in named.items()}
        for view in (a, b)
    ]
    pace = common_ratio(flat[0], flat[1])
    sign = 1 if fall.gap > 0 else -1
    beyond = {bar.part: sign * (bar.b - pace * bar.a) for bar in along}
    along.sort(key=lambda bar: -beyond[bar.part])
    found = [_of_bar(bar, fall, a, b) for bar in along]
    first, lead = found[0], beyond[along[0].part]
    of_model = ("forward", "backward", "loss", "optimizer", "other")
    because = work_difference(a, b) if along[0].part in of_model else None
    if because is not None:
        text = f"{because[1]}; {first.text}"
        found[0] = Cause(because[0], because[1], first.seconds, first.share, text)
    elif (pace - 1) * fall.a / fall.gap >= 0.5 and lead < 0.5 * abs(fall.gap):
        text = f"every part takes about {ratio_text(pace)} as long, as on a "
        text += "slower or busier machine" if pace > 1 else "faster or quieter machine"
        if b.traces.ranks[0].traits.workers and not a.traces.ranks[0].traits.workers:
            text += ", and its loader's workers compete with it for the same cores"
        if lead > 0.1 * abs(fall.gap):
            text += f"; beyond that {first.text.partition(', ')[0]}"
        found.insert(0, Cause("machine", None, fall.gap, 1.0, text))
    return found


def common_ratio(a: Mapping[Any, float], b: Mapping[Any, float]) -> float:
    """Return by how much most of what both do takes longer in B: the median over operations.

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
    return Cause("host", name or bar.part, bar.change, fall.share(bar) or 0.0, said)


def uniform_ratio(a: Mapping[Any, float], b: Mapping[Any, float]) -> float | None:
    """Return by how much everything takes longer, where it is everything; else None."""
    whole = (sum(a.values()), sum(b.values()))
    shared = [name for name in a if name in b and a[name] > 0 and b[name] > 0]
    if len(shared) < 3 or min(whole) <= 0:
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
    slow, fast = (other, one) if ratio > 1 else (one, other)
    batch = _batches(one.shapes, other.shapes)
    if batch is not None and (batch[1] > batch[0]) == (ratio > 1):
        times = batch[1] / batch[0]
        said = f"the batch is {ratio_text(times)} as large ({batch[0]} -> {batch[1]})"
        return "batch", f"{said}, so that a sample takes {ratio_text(ratio / times)} as long"
    types = _types(one.shapes, other.shapes)
    if types is not None and (_width(types[1]) > _width(types[0])) == (ratio > 1):
        return "type", f"it computes in another type ({types[0]} -> {types[1]})"
    if slow.recomputes and not fast.recomputes:
        return "recompute", (
            f"{slower.name} recomputes the forward inside the backward (activation checkpointing)"
        )
    if fast.compiled and not slow.compiled:
        return "compiled", f"only {faster.name} runs compiled code (torch.compile)"
    if fast.graphs and not slow.graphs:
        return "graphs", f"only {faster.name} launches graphs"
    return None


def _batches(a: Shapes, b: Shapes) -> tuple[int, int] | None:
    """Return the first size of the inputs of both, where it differs and nothing else does."""
    votes: dict[tuple[int, int], int] = defaultdict(int)
    for name in a.keys() & b.keys():
        first, second = (_leading(shapes[name][0]) for shapes in (a, b))
        if not first or not second or first[1:] != second[1:]:
            continue
        if first[0] != second[0] and min(first[0], second[0]) > 0:
            votes[first[0], second[0]] += 1
    pair = max(votes, key=lambda pair: (votes[pair], pair), default=None)
    # One operator may be a matter of chance.
    return pair if pair is not None and votes[pair] > 1 else None


def _leading(dims: str) -> tuple[int, ...]:
    """Return the sizes of the first input of an operator that has any."""
    found = re.search(r"\[(\d[\d, ]*)\]", dims[:2000])
    return () if found is None else tuple(int(x) for x in found[1].split(",") if x.strip())


def _width(kind: str) -> int:
    return {"double": 64, "float": 32}.get(kind, 16)


_TYPE = re.compile(r"\b(double|float|c10::\w+|half|bfloat16)\b")


def _types(a: Shapes, b: Shapes) -> tuple[str, str] | None:
    """Return the type that most operators of each compute in, where they differ."""
    votes: dict[tuple[str, str], int] = defaultdict(int)
    for name in a.keys() & b.keys():
        kinds = [_TYPE.search(shapes[name][1]) for shapes in (a, b)]
        if kinds[0] is not None and kinds[1] is not None:
            votes[kinds[0][1], kinds[1][1]] += 1
    most = max(votes, key=lambda pair: (votes[pair], pair), default=("", ""))
    return most if most[0] != most[1] else None


def kernel_name(name: str) -> str:
    """Return a kernel's name without its type and what follows in brackets."""
    plain = name.removeprefix("void ")
    short = re.split(r"[<(]", plain, maxsplit=1)[0].strip()
    return short_name(plain if not short or plain.startswith(("Memcpy", "Memset")) else short)


def straggler(by_rank: pl.DataFrame) -> tuple[float, str] | None:
    """Return the rank of a run that the others wait for: the share of a step, and a clause.

    The barrier makes every rank's step equally long, so ranks are compared by the time until they
    arrive at it: the step without its communication. None where none is worth naming.
    """
    if len(by_rank) < 2:
        return None
    waiting = CATEGORY_OF["communication"]
    arrival = (by_rank["ms per step"] - by_rank[waiting]).to_numpy()
    last = int(arrival.argmax())
    others = np.arange(len(by_rank)) != last
    late, step = float(arrival[last] - arrival[others].mean()), _mean(by_rank, "ms per step")
    if not step or late < WORTH_NAMING * step:
        return None
    more = {
        part: float(by_rank[part][last] - by_rank[part].to_numpy()[others].mean())
        for part in CATEGORIES
        if part != waiting
    }
    part = max(more, key=lambda name: more[name])
    return late / step, (
        f"rank {by_rank['rank'][last]} arrives last at the exchange of gradients, "
        f"{seconds_text(late / 1e3)} per step after the others, and spends "
        f"{seconds_text(more[part] / 1e3)} more than they do in {part}"
    )


def _mean(frame: pl.DataFrame, column: str) -> float:
    return float(frame[column].to_numpy().mean())


@dataclass(frozen=True)
class LateRank:
    """The rank of traces that the others wait for.

    ``waited_share`` is the share of the time of all ranks that they waited where it was last;
    ``category`` is where it spends more time than the others do, or None.
    """

    rank: int
    category: str | None
    waited_share: float
    sentence: str


def late_rank(traces: RanksAttribution) -> LateRank | None:
    """Return the rank that the others wait for most; None where it is unknown."""
    if traces.alignment is None:
        return None
    counted = {n for one in traces.ranks for n in one.steps.number[one.steps.counted].tolist()}
    rows = traces.alignment.collectives.filter(pl.col("step").is_in(list(counted)))
    if not len(rows):
        return None
    by_rank = rows.group_by("last_rank").agg(pl.col("waited").sum(), pl.len().alias("last"))
    worst = by_rank.sort("waited", "last_rank", descending=[True, False]).row(0, named=True)
    wall = sum(int(one.steps.wall[one.steps.counted].sum()) for one in traces.ranks)
    rank = int(worst["last_rank"])
    mine = rows.filter(pl.col("last_rank") == rank)
    latest = mine.sort("late_by", descending=True).row(0, named=True)
    doing, category, more = _excess(traces, rank)
    if category is None:
        doing, category = latest["doing"], title_of(latest["category"])
    index = int(latest["index"])
    which = "the first" if index == 0 else f"number {index + 1} of its kind of"
    entered = (
        f"enters {which} {short_name(latest['name'])} {seconds_text(latest['late_by'] / 1e9)} "
        f"after rank {latest['first_rank']}"
    )
    share = worst["waited"] / wall if wall else 0.0
    rest = (
        f"comes last to {worst['last']} of {len(rows)} collectives; waiting for it is "
        f"{share_text(share)} of the time of all ranks"
    )
    said = f"the ranks wait for rank {rank}"
    if 2 * latest["late_before"] >= latest["late_by"]:
        late = seconds_text(latest["late_before"] / 1e9)
        said += f", which starts its step {late} late: it {entered} and {rest}"
    else:
        busy = "" if category is None else f", spends {seconds_text(more)} more than they do in "
        busy += "" if category is None else category
        busy += "" if category is None or doing is None else f" ({short_name(doing)})"
        said += f": it {entered}{busy}, and {rest}"
    return LateRank(rank, category, share, said)


def _excess(traces: RanksAttribution, rank: int) -> tuple[str | None, str | None, float]:
    """Return what a rank spends more time with than the mean of the others, per step."""
    spent = {}
    for place, one in enumerate(traces.ranks):
        steps = 1e9 * one.n_counted
        rows = one.doing.select("category", "name", "time").iter_rows()
        found = {(category, name): time / steps for category, name, time in rows}
        if one.device is not None:
            for name, time in one.work.operators.select("name", "time").iter_rows():
                found["computing", name] = time / steps
        spent[place if one.trace.rank is None else one.trace.rank] = found
    mine = spent.pop(rank)
    more = {
        key: time - sum(one.get(key, 0.0) for one in spent.values()) / len(spent)
        for key, time in mine.items()
    }
    by_category: Seconds = defaultdict(float)
    for (category, _), time in more.items():
        by_category[category] += time
    by_category.pop(CATEGORY_OF["communication"], None)
    best = max(by_category, key=lambda c: by_category[c], default=None)
    if best is None or by_category[best] < WORTH_NAMING * sum(mine.values()):
        return None, None, 0.0
    name = max((key for key in more if key[0] == best), key=lambda key: more[key])[1]
    return name, best, by_category[best]
