"""Explain where the time of a training goes, or why one training is slower than another."""

from __future__ import annotations

import operator
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from deltacell.errors import InputError, did_you_mean
from deltacell.profile.explain import judge
from deltacell.profile.explain import subject as subjects
from deltacell.profile.explain.account import (
    OUTSIDE,
    Account,
    Comparison,
    Table,
    Waterfall,
    compare,
)
from deltacell.profile.explain.judge import FEW, MUCH, Cause, Difference, View, difference
from deltacell.profile.explain.subject import CATEGORIES, DEVICE_PARTS, Subject
from deltacell.profile.explain.timeline import typical_steps
from deltacell.profile.say import has, say
from deltacell.profile.trace.attribution import Attribution, RanksAttribution
from deltacell.profile.trace.device import PARTS
from deltacell.profile.trace.host import NOT_RECORDED
from deltacell.profile.trace.trace import Kind
from deltacell.words import Progress, capital, short_name

WITHIN = 0.01  # parts that differ from the wall time by a larger share are doubted
ONE_PROGRAM = 0.5  # traces of one program share at least this much time in operations of one name
AGAINST = 0.25  # parts of the host that change against the gap by a larger share of it are doubted
LOST = 0.02  # a larger share of launches without a kernel means that events were lost
ROWS = 50  # the largest number of rows in a table of a trace
SAME = 0.02  # times that differ by at most this share are the same

# How much slower B is than A; plain ``slower`` is per sample if samples are known.
SLOWER = ("slower", "slower per sample", "slower per step", "slower per epoch")


@dataclass(frozen=True, eq=False, kw_only=True)
class Explanation:
    """Where the time of one training goes, or why one is slower than another.

    ``comparison`` and ``noise`` are None for a single training, ``timeline`` without a trace.
    """

    sentence: str  # the cause and how much it explains
    accounts: Sequence[Account]
    evidence: Sequence[str] = ()
    advice: Sequence[str] = ()
    doubts: Sequence[str] = ()  # reasons for low confidence
    warnings: Sequence[str] = ()
    causes: Sequence[Cause] = ()  # the largest first
    noise: Difference | None = None
    comparison: Comparison | None = None
    tables: Sequence[Table] = ()
    facts: Sequence[Mapping[str, Any]] = ()  # settings and versions, one mapping per account
    timeline: Any = field(default=None, repr=False)

    @property
    def confidence(self) -> str:
        """``low`` if there is any doubt, otherwise ``high``."""
        return "low" if self.doubts else "high"

    def table(self, key: str) -> pl.DataFrame:
        return {table.key: table.frame for table in self.tables}[key]

    def to_json(self) -> dict[str, Any]:
        """Return the explanation as a JSON-serialisable dict."""
        none: dict[str, Any] = {"waterfalls": [], "epoch_ratio": None, "unequal": []}
        lists = ("evidence", "advice", "doubts", "warnings")
        return {
            "sentence": self.sentence,
            "confidence": self.confidence,
            **{name: list(getattr(self, name)) for name in lists},
            "causes": [asdict(cause) for cause in self.causes],
            "noise": None if self.noise is None else asdict(self.noise),
            "accounts": [account.to_json() for account in self.accounts],
            **(none if self.comparison is None else self.comparison.to_json()),
            "tables": [table.to_json() for table in self.tables],
            "facts": [dict(facts) for facts in self.facts],
            "timeline": self.timeline,
        }


def explain(
    a: str | os.PathLike[str],
    b: str | os.PathLike[str] | None = None,
    *,
    progress: Progress | None = None,
) -> Explanation:
    """Explain where the time of a run or trace goes, or why B takes longer than A."""
    same = b is not None and subjects.run_name(Path(a)) == subjects.run_name(Path(b))
    first = subjects.open_subject(a, name="A" if same else None, progress=progress)
    if b is None:
        return _explain_one(first)
    other = subjects.open_subject(b, name="B" if same else None, progress=progress)
    return _explain_two(first, other)


def _explain_one(subject: Subject) -> Explanation:
    account, traces, run = subject.account, subject.traces, subject.run
    tables = [Table("categories", "where the time goes", _category_table(account))]
    evidence, causes, sentence = [], [], ""
    if traces is not None:
        view, late = View(subject.name, traces.ranks), judge.late_rank(traces)
        causes = judge.causes_of_one(view, account.parts, late)
        lead = [cause.text for i, cause in enumerate(causes[:2]) if i == 0 or cause.share > MUCH]
        sentence = f"{capital('; '.join(lead))}."
        tables += _trace_tables(traces)
        about = "" if run is None else "By its trace, with the profiler on: "
        evidence = [f"{about}{one}" for one in _trace_evidence(traces, view, late)]
    if run is not None:
        sentence, by_rank = run.summary.sentence, run.by_rank()
        if (late_in_run := judge.straggler(by_rank)) is not None:
            sentence = f"{capital(late_in_run)}. {sentence}"
        empty = [part for part in CATEGORIES if not by_rank[part].sum()]
        tables.append(Table("ranks", "ms per step of each rank", by_rank.drop(empty)))
    return _explanation(
        [subject],
        sentence=sentence,
        evidence=evidence,
        advice=_advice(_shares(account, causes), of_run=run is not None),
        causes=causes[:5],
        tables=tables,
    )


def _explain_two(a: Subject, b: Subject) -> Explanation:
    compared, tables = compare(a.account, b.account), []
    views = [View(one.name, one.traces.ranks) for one in (a, b) if one.traces is not None]
    only_traces = len(views) == 2 and a.run is None and b.run is None
    causes = judge.causes_of_two(views[0], views[1], compared.steps) if only_traces else []
    noise = _noise(a, b, views if only_traces else [])
    sentence, ranks = _pair_sentence(compared, noise, causes), _rank_difference(a, b)
    if ranks is not None:
        sentence += f" {say('ranks differ', ranks=ranks)}"
    for one, key in ((a, "categories_a"), (b, "categories_b")):
        title = f"where the time of {one.name} goes"
        tables.append(Table(key, title, _category_table(one.account)))
    if len(views) == 2:
        tables += _changes(views[0], views[1])
    slower: dict[str, float] = {}
    if noise is None or noise.is_beyond:
        slower |= {cause.kind: 1.0 for cause in causes[:1] if cause.seconds > 0}
        larger = [fall for fall in compared.falls if fall.gap > 0 and fall.gap >= SAME * fall.a]
        for bar in (bar for fall in larger for bar in fall.bars[:4]):
            slower[bar.part] = max(slower.get(bar.part, 0.0), bar.share or 0.0)
    return _explanation(
        [a, b],
        sentence=sentence,
        evidence=list(_pair_evidence(compared, noise, views)),
        advice=_advice(slower, of_run=b.run is not None),
        doubts=list(_pair_doubts(a, b, compared.steps, noise)),
        causes=causes[:5],
        noise=noise,
        comparison=compared,
        tables=tables,
    )


def _explanation(
    given: list[Subject],
    *,
    advice: list[str],
    doubts: Sequence[str] = (),
    **rest: Any,
) -> Explanation:
    doubts, warnings = [*doubts], []
    for one in given:
        about = f"{one.name}: " if len(given) > 1 else ""
        for uneven in one.run.uneven(everywhere=True) if one.run is not None else ():
            doubts.insert(0, f"{about}{uneven}")
            advice = [*advice, *_advice({"the machine": 1.0})]
        doubts += dict.fromkeys(f"{about}{doubt}" for doubt in _doubts(one))
        warnings += [f"{about}{warning}" for warning in one.account.warnings]
    low = [f"Confidence is low: {doubt}." for doubt in doubts]
    traces = [(one.name, one.traces) for one in given if one.traces is not None]
    return Explanation(
        **rest,
        accounts=[one.account for one in given],
        advice=list(dict.fromkeys(advice)),
        doubts=doubts,
        warnings=list(dict.fromkeys([*low, *warnings])),
        facts=[one.facts for one in given],
        timeline=typical_steps(traces),
    )


def _noise(a: Subject, b: Subject, views: list[View]) -> Difference | None:
    if views:
        paced_by = "device" if views[0].parts and views[1].parts else "host"
        return difference(views[0].times, views[1].times, paced_by=paced_by)
    runs = [(one.run.summary, one.account) for one in (a, b) if one.run is not None]
    if len(runs) < 2 or any(summary.samples_per_s is None for summary, _ in runs):
        return None
    return difference(
        *(x.steady["wall_s"].to_numpy() / (of.samples_per_step or 1.0) for x, of in runs),
    )


def _pair_sentence(compared: Comparison, noise: Difference | None, causes: list[Cause]) -> str:
    fall, names = compared.steps, {"a": compared.a.name, "b": compared.b.name}
    is_noise = noise is not None and not noise.is_beyond
    if fall.ratio is None:
        return f"{say('no time', **names)}."
    if is_noise or abs(fall.ratio - 1) <= SAME:
        said = say("noise", fall=fall, noise=noise, **names)
    else:
        lead, *others = [bar for bar in fall.bars if bar.change * fall.gap > 0]
        cause = judge.of_gap(lead, fall.gap) + say("others", lead=lead, others=others[:2])
        cause = causes[0].text if causes else cause
        said = say("slower", fall=fall, noise=noise, cause=cause, **names)
    epochs, ratio, close = compared.epochs, compared.epoch_ratio, 0.25 if is_noise else SAME
    if epochs is None or ratio is None or abs(ratio.epoch / fall.ratio - 1) <= close:
        return f"{said}."
    most = max(epochs.bars, key=lambda bar: bar.change * (1 if epochs.gap >= 0 else -1))
    is_most = most.part.startswith(OUTSIDE) and abs(most.change) > abs(epochs.gap) / 2 > 0
    return f"{said}. {say('epochs', fall=epochs, ratio=ratio, most=most if is_most else None)}"


def _changes(a: View, b: View) -> list[Table]:
    tables = []
    if a.parts and b.parts:
        in_a, in_b = ({DEVICE_PARTS[part]: s for part, s in v.parts.items()} for v in (a, b))
        title = f"the device, from {a.name} to {b.name}, seconds per step"
        tables.append(Table("device", title, Waterfall.between("step", in_a, in_b).frame()))
    for key, title, group in (
        ("operations", "what the host does", ""),
        ("operators", "device time by operator", ""),
        ("kernels", "device time by kernel", "compute"),
        ("modules", "time by module", ""),
    ):
        in_a, in_b = (view.by(key, group) for view in (a, b))
        if in_a or in_b:
            changes = Waterfall.between("step", in_a, in_b).frame().head(ROWS)
            title = f"{title}, by change, seconds per step"
            tables.append(Table(key, title, changes.rename({"part": "name"})))
    return tables


def _pair_evidence(
    compared: Comparison,
    noise: Difference | None,
    views: list[View],
) -> Iterator[str]:
    if noise is not None:
        yield say("bootstrap", x=noise)
    if compared.epoch_ratio is not None:
        yield f"{compared.epoch_ratio.line}."
    loaders = [view.ranks[0].loader for view in views]
    if len(views) == 2 and all(one.names for one in loaders):
        yield say("loaders", a=loaders[0], b=loaders[1])
    if len(views) == 2 and all(view.parts for view in views):
        yield say("kernels", a=views[0].kernels, b=views[1].kernels)


def _shares(account: Account, causes: list[Cause]) -> dict[str, float]:
    """Return the shares of what could be made faster: the causes, then the largest parts.

    With a device, the host's work is not what takes the time, except for the loader.
    """
    shares = {f"idle {one.name}" if one.kind == "idle" else one.kind: one.share for one in causes}
    parts = sorted(account.parts, key=lambda name: -account.parts[name])[:3]
    if account.source == "trace" and account.facts["has a device"]:
        parts = ["data loading"]
    shares |= {part: account.parts.get(part, 0.0) / (account.step_s or 1.0) for part in parts}
    outside = sorted(account.outside.items(), key=lambda item: -item[1])
    return shares | {f"{OUTSIDE}{part}": s / (account.epoch_s or 1.0) for part, s in outside}


def _advice(shares: Mapping[str, float], *, of_run: bool = False) -> list[str]:
    """Return what to try about the parts with a large share."""
    found = []
    for part in (part.removeprefix(OUTSIDE) for part, share in shares.items() if share > MUCH):
        keys = [f"run advice {part}"] if of_run else []
        known = [key for key in (*keys, f"advice {part}") if has(key)]
        found += [f"{part}: {say(key)}" for key in known[:1]]
    return found


def _trace_evidence(traces: RanksAttribution, view: View, late: Cause | None) -> Iterator[str]:
    loader, whole = traces.ranks[0].loader, sum(view.parts.values())
    if view.parts:
        named = [(DEVICE_PARTS[part], s, s / whole) for part, s in view.parts.items()]
        said = [say("device part", part=part, seconds=s, share=x) for part, s, x in named]
        yield say("device parts", parts=said)
    if view.parts and len(traces.ranks) > 1:
        shares = traces.device.select(pl.col(part) / pl.col("wall") for part in PARTS)
        yield say("device of ranks", x=shares.mean().row(0, named=True))
    if late is not None and 0.01 < late.share <= MUCH:
        yield f"{capital(late.text)}."
    yield say("loader" if loader.names else "no loader", x=loader)


def _pair_doubts(
    a: Subject,
    b: Subject,
    fall: Waterfall,
    noise: Difference | None,
) -> Iterator[str]:
    accounts = {"a": a.account, "b": b.account}
    if a.account.source != b.account.source:
        yield say("sources differ", **accounts)
        return
    if a.account.facts.get("mode") != b.account.facts.get("mode"):
        yield say("modes differ", **accounts)
    if a.run is not None or a.traces is None or b.traces is None:
        return
    one, other = a.traces.ranks[0], b.traces.ranks[0]
    if min(_known(one, other), _known(other, one)) < ONE_PROGRAM:
        yield say("programs differ", **accounts)
    devices = (one.trace.device_name, other.trace.device_name)
    if devices[0] != devices[1] and None not in devices:
        yield say("devices differ", a=devices[0], b=devices[1])
    if ranks := _rank_difference(a, b):
        yield ranks
    on_host = one.device is None and other.device is None
    against = sum(abs(bar.change) for bar in fall.bars if bar.change * fall.gap < 0)
    if on_host and noise and noise.is_beyond and against > AGAINST * abs(fall.gap):
        yield say("both ways", against=against, gap=abs(fall.gap))


def _rank_difference(a: Subject, b: Subject) -> str | None:
    if a.traces is None or b.traces is None:
        return None
    seen = [(v.world_size, [o.trace.rank for o in v.ranks]) for v in (a.traces, b.traces)]
    which = [say("which ranks", size=size, ranks=ranks) for size, ranks in seen]
    return None if seen[0] == seen[1] else f"{a.name} is {which[0]}, {b.name} is {which[1]}"


def _doubts(subject: Subject) -> Iterator[str]:
    if subject.account.residual > WITHIN:
        yield say("parts miss", x=subject.account)
    for one in subject.traces.ranks if subject.traces and subject.run is None else ():
        trace, steps = one.trace, one.steps
        launches = trace.named(lambda name: name.endswith("LaunchKernel"))
        calls = np.flatnonzero(launches & (trace.kind == Kind.runtime) & (trace.correlation >= 0))
        lost = ~np.isin(calls, one.launch)
        if trace.damage:
            yield say("events lost", damage=trace.damage)
        elif one.device is not None and lost.sum() > LOST * len(lost):
            yield say("kernels lost", share=float(lost.mean()))
        if steps.how != "ProfilerStep":
            yield say("steps not marked", how=steps.how)
        if one.n_counted < FEW:
            yield say("few steps", count=one.n_counted)
        if trace.strange:
            events = [f"{count:,} of '{short_name(name)}'" for name, count in trace.strange.items()]
            yield say("strange events", events=events[:3])


def _known(one: Attribution, other: Attribution) -> float:
    """Return the share of the time of one trace in operations that the other has too."""
    unnamed = pl.col("name").str.starts_with("code that records nothing")
    named = one.doing.filter(~unnamed, pl.col("name") != NOT_RECORDED)
    known = named.join(other.doing, on="name", how="semi")
    whole = int(named["time"].sum())
    return int(known["time"].sum()) / whole if whole else 0.0


def _category_table(account: Account) -> pl.DataFrame:
    samples, steps, epoch = account.samples_per_step, account.steps_per_epoch, account.epoch_s
    rows: list[dict[str, Any]] = []
    for part in dict.fromkeys([*CATEGORIES, *account.parts, *account.outside]):
        seconds, outside = account.parts.get(part, 0.0), account.outside.get(part, 0.0)
        row: dict[str, Any] = {"category": part, "ms per step": 1e3 * seconds}
        if samples:
            row["µs per sample"] = 1e6 * seconds / samples
        row["share of a step"] = seconds / (account.step_s or 1.0)
        if steps and epoch:
            row["s per epoch"] = steps * seconds + outside
            row["share of an epoch"] = (steps * seconds + outside) / epoch
        if seconds or outside:
            rows.append(row)
    return pl.DataFrame(rows)


# Human-readable names of columns; times are in nanoseconds before they are renamed.
_COLUMNS = {
    "time": "ms per step",
    "total": "ms per step with all inside",
    "least": "ms per step at the peak",
    "count": "times per step",
    "wall": "ms",
    "loader": "ms in the loader",
    "busy": "ms busy",
    "late_by": "ms late",
    "late_before": "ms late at the start of the step",
    "waited": "ms waited",
    "waited_for": "ms it was waited for",
    "last": "times last",
}


def _trace_tables(traces: RanksAttribution) -> list[Table]:
    """Return the non-empty tables; those of one host or device are those of the first rank."""
    one, aligned = traces.ranks[0], traces.alignment
    idle = pl.DataFrame() if one.device is None else one.device.idle
    of_rank = f", rank {one.trace.rank}" if len(traces.ranks) > 1 else ""
    # The key, the title, the rows, and the name of a column of shares of the time, if any.
    found = [
        ("operators", "device time by operator", one.work.operators, ""),
        ("kernels", "device time by kernel", one.work.kernels, "share of device time"),
        ("modules", "time by module", one.work.modules, ""),
        ("operations", "operations of the host by self time", one.doing, "share of a step"),
        ("roofline", "estimated roofline of products", one.work.roofline, ""),
        ("idle", "why the device is idle", idle, "share of idle"),
        ("syncs", "where the host waits for the device", one.syncs, ""),
        ("steps", "steps", one.per_step, ""),
        ("workers", "threads of the loader", one.loader.workers, ""),
        ("critical_path", "critical path of a typical step", one.critical_path, "share of a step"),
    ]
    found = [(key, f"{title}{of_rank}", frame, share) for key, title, frame, share in found]
    shares = [(pl.col(part) / pl.col("wall")).alias(f"share {part}") for part in PARTS]
    title = "the device of each rank, from its first event to its last"
    found.append(("device", title, traces.device.select("rank", "wall", *shares), ""))
    if aligned is not None:
        late = aligned.collectives.drop("came").sort("late_by", descending=True)
        found.append(("waited_for", "ranks that the others wait for", aligned.ranks, ""))
        found.append(("collectives", "collectives by how late the last rank comes", late, ""))
    tables = []
    for key, title, frame, share in found:
        steps, shown = 1 if key == "critical_path" else one.n_counted, []
        for column in frame.columns:
            name = _COLUMNS.get(column, column)
            scale = (1e6 if name.startswith("ms") else 1) * (steps if "per step" in name else 1)
            shown.append((pl.col(column) / scale if scale > 1 else pl.col(column)).alias(name))
        if share:
            shown.append((pl.col("time") / pl.max_horizontal(pl.sum("time"), 1)).alias(share))
        if len(frame):
            tables.append(Table(key, title, frame.select(shown).head(ROWS)))
    return tables


_SIGNS = {">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le}
_CONDITION = re.compile(
    r"([a-z][a-z _]{0,60}?) ?(>=|<=|>|<) ?([+-]?\d{1,12}(?:\.\d{1,12})?) ?(%|x)?",
)


@dataclass(frozen=True)
class Condition:
    """``what > limit`` or one of ``>= < <=``, with the limit as a share: 10 % is 0.1.

    ``what`` is one of `SLOWER`, or a category: its share of a step of the last account.
    """

    text: str
    what: str
    sign: str
    limit: float

    def check(self, explanation: Explanation) -> tuple[bool, str]:
        """Return whether the condition holds beyond noise, and a sentence."""
        compared, account = explanation.comparison, explanation.accounts[-1]
        value, noise = account.parts.get(self.what, 0.0) / (account.step_s or 1.0), None
        if self.what in SLOWER:
            ratios: dict[str, float | None] = {}
            if compared is not None and compared.a.step_s > 0:
                ratios = {"step": compared.b.step_s / compared.a.step_s}
                ratios |= {fall.per: fall.ratio for fall in compared.falls}
                ratios[""] = compared.steps.ratio
            per = self.what.removeprefix("slower").removeprefix(" per ")
            if (ratio := ratios.get(per)) is None:
                what = f"'{self.text}' cannot be checked here"
                fix = "It compares two runs; traces do not record samples or epochs."
                raise InputError(what, code="condition-unknown", fix=fix)
            value, noise = ratio - 1, None if per == "epoch" else explanation.noise
        is_noise = noise is not None and not noise.is_beyond and self.sign in (">", ">=")
        uniform = [c for c in explanation.causes[:1] if c.kind in ("machine", "uniform")]
        said = say("condition", text=self.text, value=value, noise=noise, uniform=uniform)
        return not is_noise and bool(_SIGNS[self.sign](value, self.limit)), said


def read_condition(text: str) -> Condition:
    text = " ".join(text.split())
    found = _CONDITION.fullmatch(text.lower())
    if found is None or (found[4] == "x" and found[1] not in SLOWER):
        fix = 'Write a quantity, a sign and a number, such as --fail-if "slower > 10%".'
        raise InputError(f"'{text}' is not a condition", code="condition-form", fix=fix)
    what, known, number = found[1].replace("_", " "), [*SLOWER, *CATEGORIES], float(found[3])
    if what not in known:
        about = f"'{text}' has an unknown quantity '{what}'{did_you_mean(what, known)}"
        fix = f"Use one of: {', '.join(known)}."
        raise InputError(about, code="condition-about", fix=fix)
    limit = {"%": number / 100, "x": number - 1}.get(found[4], number)
    return Condition(text, what, found[2], limit)
