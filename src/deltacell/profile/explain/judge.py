"""The causes: what takes the time of one trace, and what makes the difference between two.

With a device, causes are the parts of its time (compute, exposed communication and copies, and idle
time by reason) and the operations behind them. Without one, they are the host's categories.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from deltacell.profile.explain.account import Bar, Waterfall
from deltacell.profile.explain.subject import CATEGORIES, DEVICE_PARTS
from deltacell.profile.say import say
from deltacell.profile.trace.attribution import Attribution, RanksAttribution
from deltacell.profile.trace.device import PARTS
from deltacell.profile.trace.work import NO_OPERATOR
from deltacell.words import seconds_text, short_name

MUCH = 0.10  # a larger share of a step is worth a clause
UNIFORM = 0.85  # a slowdown is uniform if this share of the time has about the same ratio
WORTH_NAMING = 0.05  # the share of a step that a rank spends more on something worth naming
FEW = 5  # with fewer steps, noise is assumed and not measured
# The share by which two runs of one program differ even if their steps hardly vary, by what sets
# the pace.
BETWEEN = {"device": 0.025, "host": 0.08}
WAITING = "gradient communication"

Seconds = dict[str, float]


@dataclass(frozen=True)
class Difference:
    """The ratio of the time per step of B to that of A, with its interval under noise.

    It is the ratio ``of`` medians, or of means if only these differ, because of a few steps.
    ``detectable`` is the smallest slowdown of B that would have shown, as a share.
    """

    ratio: float
    low: float
    high: float
    of: str
    steps: tuple[int, int]
    is_beyond: bool  # more than noise
    detectable: float


def difference(
    a: npt.ArrayLike,
    b: npt.ArrayLike,
    *,
    paced_by: str = "device",
) -> Difference | None:
    """Compare times of steps by a bootstrap; None if there are none or one is 0."""
    times = [np.asarray(one, dtype=np.float64) for one in (a, b)]
    if any(not len(one) or not (one > 0).all() for one in times):
        return None
    medians, means = (_bootstrap(times, of, BETWEEN[paced_by]) for of in ("median", "mean"))
    return means if means.is_beyond and not medians.is_beyond else medians


def _bootstrap(times: list[npt.NDArray[np.float64]], of: str, between: float) -> Difference:
    middle: Callable[..., Any] = np.median if of == "median" else np.mean
    variance, assumed = 0.0, 0.0
    for one in times:
        # A and B have the same draws, so that swapping them gives the inverse.
        draws = np.random.default_rng(7).integers(0, len(one), (2000, len(one)))
        # Consecutive steps under a varying load resemble each other, so they carry less
        # information than independent steps.
        logs = np.log(one) - np.log(one).mean()
        alike = min(max(float(logs[1:] @ logs[:-1]), 0.0) / max(float(logs @ logs), 1e-30), 0.5)
        variance += float(np.var(np.log(middle(one[draws], 1)))) * (1 + alike) / (1 - alike)
        least = 0.10 if len(one) == 1 else 0.06 if len(one) < FEW else 0.015
        assumed += least**2 / len(one)
    # Half the width of the interval is 2.9 standard deviations, with a margin for few draws.
    half = max(2.9 * math.sqrt(max(variance, assumed)), between)
    ratio = math.log(float(middle(times[1])) / float(middle(times[0])))
    low, high = math.exp(ratio - half), math.exp(ratio + half)
    steps, is_beyond = (len(times[0]), len(times[1])), low > 1 or high < 1
    return Difference(math.exp(ratio), low, high, of, steps, is_beyond, math.exp(half) - 1)


@dataclass(frozen=True)
class Cause:
    """What takes time, or makes a difference.

    ``kind`` is ``compute``, ``communication``, ``copies``, ``idle``, ``rank`` or ``host``; for a
    pair also ``batch``, ``type``, ``compiled``, ``recompute``, ``graphs``, ``uniform`` (all
    operations of the device changed alike) or ``machine`` (those of the host did). ``seconds`` are
    per step, or the change from A to B; ``share`` is of the step or of the gap.
    """

    kind: str
    name: str | None  # the operation, kernel or reason behind it
    seconds: float
    share: float
    text: str


class View:
    """Seconds of a counted step in several breakdowns, averaged over ranks.

    ``parts`` divide the device's time and are empty without one; ``kernels`` is the time of the
    kernels launched in the step. ``times`` are nanoseconds of each counted step, averaged over
    ranks if they have equally many steps.
    """

    def __init__(self, name: str, ranks: Sequence[Attribution]) -> None:
        self.name, self.ranks, self.traits = name, ranks, ranks[0].traits
        devices = [one.device.steps.filter("counted") for one in ranks if one.device is not None]
        # The mean over steps, and then over ranks.
        means = pl.concat([frame.mean() for frame in devices]).mean() if devices else pl.DataFrame()
        self.parts = {part: means[part].item() / 1e9 for part in PARTS if devices}
        self.kernels = means["kernels"].item() / 1e9 if devices else 0.0
        times = [one.step_times for one in ranks]
        alike = len({len(one) for one in times}) == 1
        self.times = np.mean(times, axis=0) if alike else times[0].astype(np.float64)
        self._sums: dict[tuple[str, str], Seconds] = defaultdict(lambda: defaultdict(float))
        for one in ranks:
            steps = one.n_counted * len(ranks) * 1e9
            frames = {"host category": one.doing, "operations": one.doing}
            frames |= {"kernels part": one.work.kernels}
            frames |= {"operators": one.work.operators, "modules": one.work.modules}
            if one.device is not None:
                frames |= {"idle": one.device.idle.rename({"reason": "name"})}
                frames |= {"meanwhile reason": one.device.idle_by_name}
            for key, frame in frames.items():
                what, _, group = key.partition(" ")
                groups = pl.col(group) if group else pl.lit("").alias("group")
                for of, called, time in frame.select(groups, "name", "time").iter_rows():
                    self._sums[what, of][called] += time / steps

    def by(self, what: str, group: str = "") -> Seconds:
        """Return seconds by name; the group is a category, part or reason."""
        return self._sums[what, group]

    @property
    def host(self) -> dict[tuple[str, str], float]:
        found = [(of, named) for (what, of), named in self._sums.items() if what == "host"]
        return {(of, name): seconds for of, named in found for name, seconds in named.items()}


def _largest(found: Mapping[str, float]) -> str | None:
    return max(found, key=lambda key: (found[key], key), default=None)


def causes_of_one(view: View, host: Mapping[str, float], late: Cause | None) -> list[Cause]:
    causes = _on_device(view) if view.parts else _on_host(view, host)
    causes.sort(key=lambda cause: -cause.seconds)
    if late is not None and late.share > MUCH:
        computing = next((c.share for c in causes if c.kind in ("compute", "host")), 0.0)
        causes.insert(0 if late.share >= min(computing, 0.25) else 1, late)
    return causes


def _on_device(view: View) -> list[Cause]:
    whole, causes = sum(view.parts.values()), []
    for part, seconds in view.parts.items():
        times = {"seconds": seconds, "whole": whole, "of": view.name}
        if part == "idle":
            name, clauses = _why_idle(view)
            said = say("idle", clauses=clauses, **times)
        else:
            name, clause = _behind(view, part)
            said = say("takes", what=DEVICE_PARTS[part], **times) + clause
        if seconds:
            causes.append(Cause(part, name, seconds, seconds / whole, said))
    return causes


def _why_idle(view: View) -> tuple[str | None, list[str]]:
    """Return the largest reason for idle time, and clauses about the largest two."""
    idle, clauses = view.by("idle"), []
    reasons = sorted(idle, key=lambda reason: (-idle[reason], reason))
    for reason in reasons[:2]:
        if idle[reason] >= 0.2 * sum(idle.values()):
            named = view.by("meanwhile", reason)
            name = _largest(named)
            # Launches are spread over many operators, of which none may be worth naming.
            worth = (0.3 if reason == "launch" else 0.1) * idle[reason]
            name = name if name is not None and named[name] >= worth else None
            clauses.append(f"{seconds_text(idle[reason])} {say(f'idle {reason}', operation=name)}")
    return next(iter(reasons), None), clauses


def _behind(view: View, part: str) -> tuple[str | None, str]:
    found = kernels = view.by("kernels", part)
    if part == "compute" and any(name != NO_OPERATOR for name in view.by("operators")):
        found = view.by("operators")
    if (name := _largest(found)) == NO_OPERATOR:
        found, name = kernels, _largest(kernels)
    if name is None:
        return None, ""
    clause = say("led by", operation=kernel_name(name), seconds=found[name])
    modules = {key: time for key, time in view.by("modules").items() if key != NO_OPERATOR}
    if part == "compute" and (module := _largest(modules)) is not None:
        seconds = modules[module]
        clause += say("module", module=module.removeprefix(_MODULE), seconds=seconds)
    return name, clause


def _on_host(view: View, parts: Mapping[str, float]) -> list[Cause]:
    whole, causes = math.fsum(parts.values()), []
    for category, seconds in parts.items():
        named = view.by("host", category)
        times = {"whole": whole, "of": view.name}
        if category == "other":
            # Operations without a category are causes of their own.
            for name, time in named.items():
                said = say("takes", what=short_name(name), seconds=time, **times)
                causes.append(Cause("host", name, time, time / whole, said))
        elif (most := _largest(named)) is not None:
            said = say("takes", what=category, seconds=seconds, **times)
            if named[most] > 0.1 * seconds:
                said += say("led by", operation=most, seconds=named[most])
            causes.append(Cause("host", most, seconds, seconds / whole, said))
    return causes


def causes_of_two(a: View, b: View, fall: Waterfall) -> list[Cause]:
    if not a.parts or not b.parts:
        return _host_changes(a, b, fall)
    busy = [{part: s for part, s in v.parts.items() if part != "idle"} for v in (a, b)]
    idle = [{f"idle {reason}": s for reason, s in v.by("idle").items()} for v in (a, b)]
    device = Waterfall.between("step", busy[0] | idle[0], busy[1] | idle[1])
    loading = next((bar for bar in fall.bars if bar.part == "data loading"), None)
    found = []
    for bar in device.bars:
        if bar.change * device.gap <= 0:
            continue
        kind, _, reason = bar.part.partition(" ")
        if reason == "data" and loading is not None:
            # The device waits for the host, so the host's time is what counts.
            found.append(_of_bar(loading, fall, a, b))
            continue
        name, detail, because = _detail(a, b, bar.part, bar.change)
        label = DEVICE_PARTS.get(bar.part) or f"idle time {say(bar.part, operation=name)}"
        said = of_gap(bar, device.gap, label) + (f": {detail}" if detail else "")
        found.append(Cause(because or kind, name, bar.change, bar.change / device.gap, said))
    return found


def of_gap(bar: Bar, gap: float, label: str = "", detail: str = "") -> str:
    return say("of the gap", part=label or bar.part, change=bar.change, gap=gap, detail=detail)


def _detail(a: View, b: View, part: str, change: float) -> tuple[str | None, str, str | None]:
    kind, _, reason = part.partition(" ")
    if kind == "idle":
        name = _most_changed(a.by("meanwhile", reason), b.by("meanwhile", reason), change)
        return name, "", None
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
        return name, say("only one", of=only.name, operation=label, seconds=seconds), None
    module = _most_changed(a.by("modules"), b.by("modules"), after - before)
    module = None if module == NO_OPERATOR else module and module.removeprefix(_MODULE)
    said = say("longer", operation=label, before=before, after=after, module=module)
    return name, said, None


def _most_changed(a: Seconds, b: Seconds, change: float) -> str | None:
    sign = 1 if change >= 0 else -1
    changes = {name: sign * (b.get(name, 0.0) - a.get(name, 0.0)) for name in {**a, **b}}
    return _largest({name: more for name, more in changes.items() if more > 0})


def _host_changes(a: View, b: View, fall: Waterfall) -> list[Cause]:
    """Return what makes the difference on the host.

    A change that all parts share is due to the machine; a part is a cause by its change beyond it.
    """
    along = [bar for bar in fall.bars if bar.change * fall.gap > 0]
    if not along:
        return []
    pace, sign = common_ratio(a.host, b.host), 1 if fall.gap > 0 else -1
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
        workers = b.traits.workers and not a.traits.workers
        rest = first.text.partition(", ")[0] if lead > 0.1 * abs(fall.gap) else ""
        text = say("machine", ratio=pace, workers=workers, beyond=rest)
        found.insert(0, Cause("machine", None, fall.gap, 1.0, text))
    return found


def common_ratio(a: Mapping[Any, float], b: Mapping[Any, float]) -> float:
    """Return the median ratio of B to A over the operations that both have.

    Each operation counts once, so a single long one does not decide. The ratio is 1 if they have
    too few operations in common.
    """
    least_a, least_b = (0.005 * sum(one.values()) for one in (a, b))
    ratios = [b[x] / a[x] for x in a if x in b and a[x] > least_a and b[x] > least_b]
    return math.exp(float(np.median(np.log(ratios)))) if len(ratios) >= 4 else 1.0


def _of_bar(bar: Bar, fall: Waterfall, a: View, b: View) -> Cause:
    name = _most_changed(a.by("host", bar.part), b.by("host", bar.part), bar.change)
    label, detail = bar.part, ""
    if name is not None and bar.part == "other":
        label = short_name(name)
    elif name is not None and bar.part != "data loading":
        detail = f", mostly in {short_name(name)}"
    said = of_gap(bar, fall.gap, label, detail)
    return Cause("host", name or bar.part, bar.change, bar.share or 0.0, said)


def uniform_ratio(a: Mapping[Any, float], b: Mapping[Any, float]) -> float | None:
    """Return the ratio of B to A if nearly everything changed by it; otherwise None."""
    shared = [name for name in a if name in b and a[name] > 0 and b[name] > 0]
    ratio = sum(b[name] for name in shared) / (sum(a[name] for name in shared) or 1.0)
    if len(shared) < 3 or abs(math.log(ratio)) < 0.03:
        return None
    near = 0.25 * abs(math.log(ratio)) + 0.02
    alike = [name for name in shared if abs(math.log(b[name] / a[name] / ratio)) <= near]
    shares = [sum(one[name] for name in alike) / sum(one.values()) for one in (a, b)]
    return ratio if min(shares) >= UNIFORM else None


def work_difference(a: View, b: View) -> tuple[str, str] | None:
    """Return the kind of a difference in the work itself, and a clause.

    None if there is none, or if it would make the other one slower.
    """
    ratio = float(np.median(b.times) / np.median(a.times))
    slow, fast = (b, a) if ratio > 1 else (a, b)
    named = a.traits.shapes.keys() & b.traits.shapes
    shapes = [(a.traits.shapes[name], b.traits.shapes[name]) for name in named]
    # Operators whose first input differs only in its first size; a single one may be chance.
    sizes = [(_leading(in_a[0]), _leading(in_b[0])) for in_a, in_b in shapes]
    (old, new), count = _most_common(
        (x[0], y[0]) for x, y in sizes if x and y and x[1:] == y[1:] and x != y and x[0] and y[0]
    )
    if count > 1 and (new > old) == (ratio > 1):
        return "batch", say("batch", old=old, new=new, ratio=ratio)
    types = [(_TYPE.search(in_a[1]), _TYPE.search(in_b[1])) for in_a, in_b in shapes]
    (old, new), _ = _most_common((x[1], y[1]) for x, y in types if x and y)
    width = [{"double": 64, "float": 32}.get(kind, 16) for kind in (old, new)]
    if old != new and (width[1] > width[0]) == (ratio > 1):
        return "type", say("type", old=old, new=new)
    if slow.traits.recomputes and not fast.traits.recomputes:
        return "recompute", say("recompute", slow=slow.name)
    for kind in ("compiled", "graphs"):
        if getattr(fast.traits, kind) and not getattr(slow.traits, kind):
            return kind, say(kind, fast=fast.name)
    return None


_MODULE = "nn.Module: "
_TYPE = re.compile(r"\b(double|float|c10::\w+|half|bfloat16)\b")


def _leading(dims: str) -> tuple[int, ...]:
    found = re.search(r"\[(\d[\d, ]*)\]", dims[:2000])
    return () if found is None else tuple(int(x) for x in found[1].split(",") if x.strip())


def _most_common(pairs: Iterator[tuple[Any, Any]]) -> tuple[tuple[Any, Any], int]:
    counts = Counter(pairs)
    most = max(counts, key=lambda pair: (counts[pair], pair), default=(0, 0))
    return most, counts[most]


def kernel_name(name: str) -> str:
    plain = name.removeprefix("void ")
    short = re.split(r"[<(]", plain, maxsplit=1)[0].strip()
    return short_name(plain if not short or plain.startswith(("Memcpy", "Memset")) else short)


def straggler(by_rank: pl.DataFrame) -> str | None:
    """Return a clause about the rank of a run that the others wait for, if they wait long.

    The barrier makes the steps of all ranks equally long, so ranks are compared by the time until
    they reach it: the step without its communication.
    """
    if len(by_rank) < 2:
        return None
    arrival = (by_rank["ms per step"] - by_rank[WAITING]).to_numpy()
    last = int(arrival.argmax())
    parts = [part for part in CATEGORIES if part != WAITING]
    times = by_rank.select(parts).to_numpy()
    late, more = (x[last] - np.delete(x, last, 0).mean(axis=0) for x in (arrival, times))
    if late <= MUCH * by_rank["ms per step"].to_numpy().mean():
        return None
    parts_of = {"part": parts[more.argmax()], "more": more.max() / 1e3, "late": late / 1e3}
    return say("straggler", rank=by_rank["rank"][last], **parts_of)


def late_rank(traces: RanksAttribution) -> Cause | None:
    """Return the rank that the others wait for most; None if it is unknown.

    The share is the time that ranks wait for it, of the time of all ranks.
    """
    if traces.alignment is None or not traces.alignment.collectives["counted"].any():
        return None
    rows = traces.alignment.collectives.filter("counted")
    worst = traces.alignment.ranks.sort("waited_for", descending=True, maintain_order=True)
    rank, count, waited, _ = worst.row(0)
    share = waited / sum(int(one.steps.wall[one.steps.counted].sum()) for one in traces.ranks)
    mine = rows.filter(last_rank=rank).sort("late_by", descending=True, maintain_order=True)
    latest = mine.row(0, named=True)
    doing, category, more = _excess(traces, rank)
    what: dict[str, Any] = {"doing": doing, "category": category, "more": more}
    what |= {"x": latest, "starts_late": 2 * latest["late_before"] >= latest["late_by"]}
    said = say("late rank", rank=rank, last=count, count=len(rows), share=share, **what)
    step = float(np.mean([one.step_times.mean() for one in traces.ranks])) / 1e9
    return Cause("rank", str(rank), share * step, share, said)


def _excess(traces: RanksAttribution, rank: int) -> tuple[str | None, str | None, float]:
    """Return what a rank spends more time on than the mean of the others, per step."""
    spent = {}
    for number, one in traces.by_rank.items():
        view = View("", [one])
        computing = {("computing", name): time for name, time in view.by("operators").items()}
        spent[number] = view.host | computing
    mine = spent.pop(rank)
    more: dict[str, Seconds] = defaultdict(dict)
    for (category, name), time in mine.items():
        others = sum(one.get((category, name), 0.0) for one in spent.values()) / len(spent)
        if category != WAITING:
            more[category][name] = time - others
    best = max(more, key=lambda category: sum(more[category].values()), default="")
    seconds = sum(more[best].values())
    if seconds < WORTH_NAMING * sum(mine.values()):
        return None, None, 0.0
    return max(more[best], key=more[best].__getitem__), best, seconds
