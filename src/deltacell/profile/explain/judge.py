"""The judgement: what takes the time of one trace, and what makes the difference of two.

With a device its account leads: compute, exposed communication and copies, and idle time with its
reasons; then comes the operation behind it. Without a device the host's categories lead.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from deltacell.profile.explain.account import Bar, Waterfall
from deltacell.profile.explain.sentences import IDLE, say
from deltacell.profile.explain.subject import (
    CATEGORIES,
    CATEGORY_OF,
    DEVICE_PARTS,
    TITLES,
    device_means,
)
from deltacell.profile.trace.attribution import Attribution, RanksAttribution
from deltacell.profile.trace.device import PARTS
from deltacell.profile.trace.work import NO_OPERATOR
from deltacell.words import capital, seconds_text, short_name

MUCH = 0.10  # the share of a step that is worth a clause

UNIFORM = 0.85
"""The share of the time in operations of one ratio from which on a slowdown is uniform."""

WORTH_NAMING = 0.05  # the share of a step by which a rank has to be late to be named

BETWEEN = {"device": 0.025, "host": 0.08}
"""The share by which two runs of one program differ even where their steps hardly vary, where a
device or where a host sets the pace, which has other things to do."""

FEW = 5  # with fewer steps than this, noise is assumed and not measured

Seconds = dict[str, float]


@dataclass(frozen=True)
class Difference:
    """The time per step of B by that of A, with the interval that noise leaves for it.

    It is the ratio ``of`` medians, or of means where only these differ: then a few steps do.
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
        steps = list(self.steps)
        more = {"is_beyond": self.is_beyond, "detectable": self.detectable}
        return {**asdict(self), "steps": steps, **more}


def difference(
    a: npt.ArrayLike, b: npt.ArrayLike, *, paced_by: str = "device"
) -> Difference | None:
    """Compare times of steps by a bootstrap; None where there are none, or one takes no time."""
    times = [np.asarray(one, dtype=np.float64) for one in (a, b)]
    if any(not len(one) or not (one > 0).all() for one in times):
        return None
    medians, means = (_bootstrap(times, of, BETWEEN[paced_by]) for of in ("median", "mean"))
    return means if means.is_beyond and not medians.is_beyond else medians


def _bootstrap(times: list[npt.NDArray[np.float64]], of: str, between: float) -> Difference:
    middle: Callable[..., Any] = np.median if of == "median" else np.mean
    variance, assumed = 0.0, 0.0
    for one in times:
        # The same draws for A and B, so that swapping them gives the inverse.
        draws = np.random.default_rng(7).integers(0, len(one), (2000, len(one)))
        variance += float(np.var(np.log(middle(one[draws], 1))))
        least = 0.10 if len(one) == 1 else 0.06 if len(one) < FEW else 0.015
        assumed += least**2 / len(one)
    # Half the width of the interval is 2.9 standard deviations, with something for few draws.
    half = max(2.9 * math.sqrt(max(variance, assumed)), between)
    ratio = math.log(float(middle(times[1])) / float(middle(times[0])))
    low, high = math.exp(ratio - half), math.exp(ratio + half)
    return Difference(math.exp(ratio), low, high, of, (len(times[0]), len(times[1])))


@dataclass(frozen=True)
class Cause:
    """What takes time, or makes a difference.

    ``kind`` is ``compute``, ``communication``, ``copies``, ``idle``, ``rank`` or ``host``; of a
    pair also ``batch``, ``type``, ``compiled``, ``recompute``, ``graphs``, ``uniform`` (every
    operation of the device alike) and ``machine`` (of the host). ``seconds`` are per step, or from
    A to B; ``share`` is of a step or of the gap.
    """

    kind: str
    name: str | None  # of the operation, kernel or reason behind it
    seconds: float
    share: float
    text: str


@dataclass(frozen=True, eq=False)
class View:
    """Seconds of a counted step, the mean over ranks, by what a judgement asks for."""

    name: str
    traces: RanksAttribution
    _found: dict[str, dict[str, Seconds]] = field(default_factory=dict, repr=False)

    @cached_property
    def parts(self) -> Seconds:
        """The parts of the device's time; empty without one."""
        return device_means(self.traces, PARTS)

    def by(self, what: str, group: str = "") -> Seconds:
        """Return the seconds of one of `_FRAMES` by name, of a group where it has groups."""
        return self.groups(what)[group]

    def groups(self, what: str) -> dict[str, Seconds]:
        """Return the seconds of one of `_FRAMES` by group and name."""
        if what not in self._found:
            rows, group, key = _FRAMES[what]
            sums: dict[str, Seconds] = defaultdict(lambda: defaultdict(float))
            for one in self.traces.ranks:
                if (frame := rows(one)) is None:
                    continue
                steps = one.n_counted * len(self.traces.ranks) * 1e9
                for of, name, time in frame.select(group, key, "time").iter_rows():
                    sums[of][name] += time / steps
            self._found[what] = sums
        return self._found[what]

    @cached_property
    def times(self) -> npt.NDArray[np.float64]:
        """Nanoseconds of each counted step, the mean over ranks where they have equally many."""
        times = [one.step_times for one in self.traces.ranks]
        alike = len({len(one) for one in times}) == 1
        return np.asarray(np.mean(times, axis=0) if alike else times[0], dtype=np.float64)


_NO_GROUP = pl.lit("").alias("group")
_FRAMES: dict[str, tuple[Callable[[Attribution], Any], str | pl.Expr, str]] = {
    "idle": (lambda one: one.device and one.device.idle, _NO_GROUP, "reason"),
    "meanwhile": (lambda one: one.device and one.device.idle_by_name, "reason", "name"),
    "operators": (lambda one: one.work.operators, _NO_GROUP, "name"),
    "modules": (lambda one: one.work.modules, _NO_GROUP, "name"),
    "kernels": (lambda one: one.work.kernels, "part", "name"),
    "host": (lambda one: one.doing, "category", "name"),
}
"""What a view sums up: the device's idle time by reason, what the host did meanwhile, the device's
computation by operator and module, its time by kernel, and the host's time by category."""


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


def takes(what: str, seconds: float, whole: float, of: str, more: str = "") -> str:
    """Return that a part takes its share of a step."""
    share = seconds / whole
    return say("takes", what=what, share=share, of=of, seconds=seconds, whole=whole, more=more)


def _on_device(view: View) -> list[Cause]:
    whole, causes = sum(view.parts.values()), []
    for part in ("compute", "communication", "copies"):
        if (seconds := view.parts[part]) > 0:
            name, clause = _behind(view, part)
            said = takes(DEVICE_PARTS[part], seconds, whole, view.name) + clause
            causes.append(Cause(part, name, seconds, seconds / whole, said))
    if (idle := view.parts["idle"]) > 0:
        idles = view.by("idle")
        said = say("idle", of=view.name, share=idle / whole, seconds=idle, whole=whole)
        reasons = sorted(idles.items(), key=lambda item: (-item[1], item[0]))
        enough = 0.2 * sum(idles.values())
        clauses = [_idle_clause(view, why, s) for why, s in reasons[:2] if s >= enough]
        said += f": {' and '.join(clauses)}" if clauses else ""
        causes.append(Cause("idle", reasons[0][0] if reasons else None, idle, idle / whole, said))
    return causes


def _behind(view: View, part: str) -> tuple[str | None, str]:
    """Return the operation with most of a part of the device's time, and a clause."""
    found = kernels = view.by("kernels", part)
    if part == "compute" and any(name != NO_OPERATOR for name in view.by("operators")):
        found = view.by("operators")
    if (name := _largest(found)) == NO_OPERATOR:
        found, name = kernels, _largest(kernels)
    if name is None:
        return None, ""
    clause = say("led by", name=kernel_name(name), seconds=found[name])
    modules = {key: time for key, time in view.by("modules").items() if key != NO_OPERATOR}
    if part == "compute" and (module := _largest(modules)) is not None:
        clause += say("module", name=_module_name(module), seconds=modules[module])
    return name, clause


def _module_name(name: str) -> str:
    return short_name(name.removeprefix("nn.Module: "))


def _idle_clause(view: View, reason: str, seconds: float) -> str:
    named = view.by("meanwhile", reason)
    name = _largest(named)
    # Launches are spread over many operators, of which none may be worth a name.
    worth = (0.3 if reason == "launch" else 0.1) * seconds
    is_worth = name is not None and named[name] >= worth
    return f"{seconds_text(seconds)} {_idle(reason, name if is_worth else None)}"


def _idle(reason: str, name: str | None) -> str:
    text = IDLE[reason] if name is not None else IDLE[reason].replace(", mostly in {name}", "")
    return text.format(name="something else" if name is None else short_name(name))


def _on_host(view: View, parts: Mapping[str, float]) -> list[Cause]:
    whole, causes = math.fsum(parts.values()), []
    for category, seconds in parts.items():
        named = view.by("host", category)
        if not named or not whole:
            continue
        if category == "other":
            # What no category has is named by itself.
            for name, time in named.items():
                said = takes(short_name(name), time, whole, view.name)
                causes.append(Cause("host", name, time, time / whole, said))
            continue
        most = max(named, key=lambda name: (named[name], name))
        said = takes(category, seconds, whole, view.name)
        if named[most] > 0.1 * seconds:
            said += say("led by", name=short_name(most), seconds=named[most])
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
    idle_a, idle_b = a.by("idle"), b.by("idle")
    for reason in {**idle_a, **idle_b}:
        changes[f"idle {reason}"] = idle_b.get(reason, 0.0) - idle_a.get(reason, 0.0)
    along = {part: change for part, change in changes.items() if change * gap > 0}
    loading = next((bar for bar in fall.bars if bar.part == "data loading"), None)
    found = []
    for part, change in sorted(along.items(), key=lambda item: -abs(item[1])):
        kind, _, reason = part.partition(" ")
        if reason == "data" and loading is not None:
            # The device waits for the host, so that the host's own time is what counts.
            found.append(_of_bar(loading, fall))
            continue
        name, detail, because = _detail(a, b, part, change)
        label = DEVICE_PARTS.get(part) or f"idle time {_idle(reason, name)}"
        said = of_gap(label, change, gap) + (f": {detail}" if detail else "")
        found.append(Cause(because or kind, name, change, change / gap, said))
    return found


def of_gap(part: str, change: float, gap: float, detail: str = "") -> str:
    """Return a change and its share of a gap; a share above all of it is said as such."""
    share = change / gap
    said = say("of the gap", part=part, change=change, detail=detail, share=share)
    return said + (say("more than all", rest=gap - change) if share > 1.005 else "")


def _detail(a: View, b: View, part: str, change: float) -> tuple[str | None, str, str | None]:
    """Return the operation behind a change, a clause on it, and the kind of cause it is."""
    kind, _, reason = part.partition(" ")
    if kind == "idle":
        name = _most_changed(a.by("meanwhile", reason), b.by("meanwhile", reason), change)
        return (None if name is None else short_name(name)), "", None
    if kind != "compute":
        name = _most_changed(a.by("kernels", kind), b.by("kernels", kind), change)
        return name, "" if name is None else kernel_name(name), None
    if (because := work_difference(a, b)) is not None:
        return because[1], because[1], because[0]
    if (uniform := uniform_ratio(a.by("operators"), b.by("operators"))) is not None:
        return None, say("uniform", ratio=uniform), "uniform"
    in_a, in_b = (
        view.by("operators") if len(view.by("operators")) > 1 else view.by("kernels", kind)
        for view in (a, b)
    )
    if (name := _most_changed(in_a, in_b, change)) is None:
        return None, "", None
    before, after, label = in_a.get(name, 0.0), in_b.get(name, 0.0), kernel_name(name)
    if not before or not after:
        only, seconds = (b, after) if after else (a, before)
        return name, f"only {only.name} has {label} ({seconds_text(seconds)})", None
    said = say("as long", name=label, ratio=after / before, change=after - before)
    module = _most_changed(a.by("modules"), b.by("modules"), after - before)
    if module not in (None, NO_OPERATOR):
        said += f", most of it in {_module_name(str(module))}"
    return name, said, None


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
    in_a, in_b = (
        {
            (part, name): s
            for part, named in view.groups("host").items()
            for name, s in named.items()
        }
        for view in (a, b)
    )
    pace, sign = common_ratio(in_a, in_b), 1 if fall.gap > 0 else -1
    beyond = {bar.part: sign * (bar.b - pace * bar.a) for bar in along}
    along.sort(key=lambda bar: -beyond[bar.part])
    found = [_of_bar(bar, fall, a, b) for bar in along]
    first, lead = found[0], beyond[along[0].part]
    of_model = ("forward", "backward", "loss", "optimizer", "other")
    because = work_difference(a, b) if along[0].part in of_model else None
    if because is not None:
        text = f"{because[1]}; {first.text}"
        found[0] = Cause(*because, first.seconds, first.share, text)
    elif (pace - 1) * fall.a / fall.gap >= 0.5 and lead < 0.5 * abs(fall.gap):
        how = "slower or busier" if pace > 1 else "faster or quieter"
        text = say("machine", ratio=pace, how=how)
        if b.traces.ranks[0].traits.workers and not a.traces.ranks[0].traits.workers:
            text += ", and the workers of its loader compete with it for the same cores"
        if lead > 0.1 * abs(fall.gap):
            text += f"; beyond that, {first.text.partition(', ')[0]}"
        found.insert(0, Cause("machine", None, fall.gap, 1.0, text))
    return found


def common_ratio(a: Mapping[Any, float], b: Mapping[Any, float]) -> float:
    """Return by how much most of what both do takes longer in B: the median over operations.

    Each counts once, so that one operation that takes most of the time does not decide. It is 1
    where both have too little in common.
    """
    least_a, least_b = (0.005 * sum(one.values()) for one in (a, b))
    ratios = [b[x] / a[x] for x in a if x in b and a[x] > least_a and b[x] > least_b]
    return math.exp(float(np.median(np.log(ratios)))) if len(ratios) >= 4 else 1.0


def _of_bar(bar: Bar, fall: Waterfall, a: View | None = None, b: View | None = None) -> Cause:
    name = None
    if a is not None and b is not None:
        name = _most_changed(a.by("host", bar.part), b.by("host", bar.part), bar.change)
    label, detail = bar.part, ""
    if name is not None and bar.part == "other":
        label = short_name(name)
    elif name is not None and bar.part != "data loading":
        detail = f", most of it in {short_name(name)}"
    said = of_gap(label, bar.change, fall.gap, detail)
    return Cause("host", name or bar.part, bar.change, fall.share(bar) or 0.0, said)


def uniform_ratio(a: Mapping[Any, float], b: Mapping[Any, float]) -> float | None:
    """Return by how much everything takes longer, where it is everything; else None."""
    shared = [name for name in a if name in b and a[name] > 0 and b[name] > 0]
    if len(shared) < 3:
        return None
    ratio = sum(b[name] for name in shared) / sum(a[name] for name in shared)
    if abs(math.log(ratio)) < 0.03:
        return None
    near = 0.25 * abs(math.log(ratio)) + 0.02
    alike = [name for name in shared if abs(math.log(b[name] / a[name] / ratio)) <= near]
    shares = [sum(one[name] for name in alike) / sum(one.values()) for one in (a, b)]
    return ratio if min(shares) >= UNIFORM else None


def work_difference(a: View, b: View) -> tuple[str, str] | None:
    """Return what differs in the work itself: its kind and a clause.

    None where nothing does, or where it would make the other one slower.
    """
    one, other = a.traces.ranks[0].traits, b.traces.ranks[0].traits
    ratio = float(np.median(b.times) / np.median(a.times))
    slower, faster = (b, a) if ratio > 1 else (a, b)
    slow, fast = (other, one) if ratio > 1 else (one, other)
    shapes = [(one.shapes[name], other.shapes[name]) for name in one.shapes.keys() & other.shapes]
    # Operators whose first input differs in its first size alone; one may be a matter of chance.
    sizes = [(_leading(in_a[0]), _leading(in_b[0])) for in_a, in_b in shapes]
    batches = Counter(
        (x[0], y[0]) for x, y in sizes if x and y and x[1:] == y[1:] and x != y and x[0] and y[0]
    )
    batch = max(batches, key=lambda pair: (batches[pair], pair), default=(0, 0))
    if batches[batch] > 1 and (batch[1] > batch[0]) == (ratio > 1):
        times = batch[1] / batch[0]
        return "batch", say("batch", times=times, a=batch[0], b=batch[1], ratio=ratio / times)
    kinds = [(_TYPE.search(in_a[1]), _TYPE.search(in_b[1])) for in_a, in_b in shapes]
    types = Counter((x[1], y[1]) for x, y in kinds if x and y)
    most = max(types, key=lambda pair: (types[pair], pair), default=("", ""))
    width = [{"double": 64, "float": 32}.get(kind, 16) for kind in most]
    if most[0] != most[1] and (width[1] > width[0]) == (ratio > 1):
        return "type", say("type", a=most[0], b=most[1])
    if slow.recomputes and not fast.recomputes:
        return "recompute", say("recompute", of=slower.name)
    if fast.compiled and not slow.compiled:
        return "compiled", say("compiled", of=faster.name)
    if fast.graphs and not slow.graphs:
        return "graphs", say("graphs", of=faster.name)
    return None


_TYPE = re.compile(r"\b(double|float|c10::\w+|half|bfloat16)\b")


def _leading(dims: str) -> tuple[int, ...]:
    """Return the sizes of the first input of an operator that has any."""
    found = re.search(r"\[(\d[\d, ]*)\]", dims[:2000])
    return () if found is None else tuple(int(x) for x in found[1].split(",") if x.strip())


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
    waiting = CATEGORY_OF["communication"]
    arrival = (by_rank["ms per step"] - by_rank[waiting]).to_numpy()
    last = int(arrival.argmax())
    others = np.arange(len(by_rank)) != last
    if not others.any():
        return None
    late = float(arrival[last] - arrival[others].mean())
    step = float(by_rank["ms per step"].to_numpy().mean())
    if not step or late < WORTH_NAMING * step:
        return None
    more = {
        part: float(by_rank[part][last] - by_rank[part].to_numpy()[others].mean())
        for part in CATEGORIES
        if part != waiting
    }
    part, rank = max(more, key=lambda name: more[name]), by_rank["rank"][last]
    said = say("straggler", rank=rank, late=late / 1e3, more=more[part] / 1e3, part=part)
    return late / step, said


@dataclass(frozen=True)
class LateRank:
    """The rank of traces that the others wait for."""

    rank: int
    category: str | None  # where it spends more time than the others do
    waited_share: float  # of the time of all ranks, waited where it was last
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
    rank, share = int(worst["last_rank"]), worst["waited"] / wall if wall else 0.0
    mine = rows.filter(pl.col("last_rank") == rank)
    latest = mine.sort("late_by", descending=True).row(0, named=True)
    doing, category, more = _excess(traces, rank)
    if category is None:
        doing, category = latest["doing"], TITLES.get(latest["category"], latest["category"])
    index, late = int(latest["index"]), latest["late_by"] / 1e9
    which = "the first" if index == 0 else f"number {index + 1} of its calls to"
    entered = say(
        "entered", which=which, name=latest["name"], late=late, first=latest["first_rank"]
    )
    last = say("last", count=worst["last"], collectives=len(rows), share=share)
    values = {"rank": rank, "entered": entered, "last": last}
    if 2 * latest["late_before"] >= latest["late_by"]:
        said = say("late start", late=latest["late_before"] / 1e9, **values)
    else:
        where = "" if doing is None else f" ({short_name(doing)})"
        busy = "" if category is None else say("busy", more=more, category=category, doing=where)
        said = say("late", busy=busy, **values)
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
