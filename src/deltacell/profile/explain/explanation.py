"""An explanation: the answer to where the time goes, or why this is slower than that."""

from __future__ import annotations

import operator
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from deltacell.errors import InputError, did_you_mean
from deltacell.profile.explain import evidence, judge
from deltacell.profile.explain.account import (
    OUTSIDE,
    Account,
    Comparison,
    Table,
    Waterfall,
    compare,
)
from deltacell.profile.explain.judge import MUCH, Cause, Difference, Seconds, View, difference
from deltacell.profile.explain.sentences import ADVICE, MACHINE_ADVICE, say
from deltacell.profile.explain.subject import (
    CATEGORIES,
    DEVICE_PARTS,
    THREADS,
    RunTimes,
    Subject,
    chosen,
    open_subject,
    run_name,
    trace_notices,
)
from deltacell.profile.explain.timeline import typical_steps
from deltacell.profile.phase_rows import steady_steps
from deltacell.profile.trace.attribution import RanksAttribution
from deltacell.words import Progress, capital, seconds_text, share_text, short_name

SAME = 0.02  # times that differ by less than this share are called the same

SLOWER = ("slower", "slower per sample", "slower per step", "slower per epoch")
"""How much slower B is than A; plain ``slower`` is per sample where samples are known."""


@dataclass(frozen=True, eq=False)
class Explanation:
    """Where the time of one training goes, or why one is slower than another.

    ``comparison`` and ``noise`` are None where there is one, ``timeline`` without a trace.
    ``attributions`` holds the traces of each side that has any; it is not in the JSON.
    """

    sentence: str  # the cause, how much it explains, and the number
    evidence: tuple[str, ...]
    advice: tuple[str, ...]
    confidence: str  # high or low
    accounts: tuple[Account, ...]
    comparison: Comparison | None = None
    tables: tuple[Table, ...] = ()
    facts: tuple[Mapping[str, Any], ...] = ()  # settings and versions, one mapping per account
    doubts: tuple[str, ...] = ()  # every reason for a low confidence
    causes: tuple[Cause, ...] = ()  # the largest first
    noise: Difference | None = None
    warnings: tuple[str, ...] = ()
    timeline: Any = field(default=None, repr=False)
    attributions: tuple[RanksAttribution, ...] = field(default=(), repr=False)

    def table(self, key: str) -> pl.DataFrame:
        """Return the rows of the table with this key."""
        found = {table.key: table.frame for table in self.tables}
        if key not in found:
            raise KeyError(f"unknown table '{key}'; the tables are {', '.join(found) or 'none'}")
        return found[key]

    def to_json(self) -> dict[str, Any]:
        """Return it as a JSON-serialisable dict."""
        none: dict[str, Any] = {"waterfalls": [], "epoch_ratio": None, "unequal": []}
        lists = ("evidence", "advice", "doubts", "warnings")
        return {
            "sentence": self.sentence,
            "confidence": self.confidence,
            **{name: list(getattr(self, name)) for name in lists},
            "causes": [asdict(cause) for cause in self.causes],
            "noise": None if self.noise is None else self.noise.to_json(),
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
    """Explain where the time of a training goes, or why B takes longer than A."""
    same = b is not None and run_name(Path(a)) == run_name(Path(b))
    first = open_subject(a, name="A" if same else None, progress=progress)
    if b is None:
        return _explain_one(first)
    return _explain_two(first, open_subject(b, name="B" if same else None, progress=progress))


def _explain_one(subject: Subject) -> Explanation:
    account, traces, run = subject.account, subject.traces, subject.run
    said = list(_account_evidence(account))
    advice, doubts, causes = evidence.category_advice(subject), evidence.doubts_of_one(subject), []
    tables = [Table("categories", "where the time goes", evidence.category_table(account))]
    warnings = list(_account_warnings(account))
    part, seconds = max(account.parts.items(), key=lambda item: item[1])
    samples = account.samples_per_step
    more = say("per sample", seconds=seconds / samples) if samples else ""
    sentence = f"{capital(judge.takes(part, seconds, account.step_s, account.name, more))}."
    if traces is not None:
        causes = judge.causes_of_one(View(subject.name, traces), account.parts)
        advice = [*evidence.trace_advice(traces), *advice]
        tables += evidence.trace_tables(traces)
        if run is None:
            sentence = judge.sentence_of_one(causes) if causes else sentence
            said += evidence.trace_evidence(traces)
        else:
            traced = evidence.trace_evidence(traces)
            said += [f"By its trace, with the profiler on: {one}" for one in traced]
            warnings += [f"Trace: {notice}" for notice in trace_notices(traces)]
    if run is not None:
        if (uneven := run.doubt(subject.name)) is not None:
            doubts.insert(0, uneven)
            advice.insert(0, MACHINE_ADVICE)
        sentence = run.summary.sentence if run.summary.steps else sentence
        by_rank = run.by_rank()
        late = judge.straggler(by_rank)
        if late is not None and late[0] > MUCH:
            sentence = f"{capital(late[1])}. {sentence}"
        elif late is not None:
            said.append(f"{capital(late[1])}.")
        why = _propagation(run)
        said += why[:2]
        if len(why) > 2:
            lines = pl.DataFrame({"line": why})
            tables.append(Table("propagation", "the chosen propagation, and why", lines))
        empty = [part for part in CATEGORIES if not by_rank[part].sum()]
        tables.append(Table("ranks", "ms per step of each rank", by_rank.drop(empty)))
    return Explanation(
        sentence,
        tuple(said),
        tuple(advice),
        "low" if doubts else "high",
        (account,),
        tables=tuple(tables),
        facts=(subject.facts,),
        doubts=tuple(doubts),
        causes=tuple(causes[:5]),
        warnings=tuple(dict.fromkeys([*(say("low", doubt=d) for d in doubts), *warnings])),
        timeline=typical_steps(() if traces is None else ((subject.name, traces),)),
        attributions=() if traces is None else (traces,),
    )


def _propagation(run: RunTimes) -> list[str]:
    """Return how mutants were propagated and why; nothing where it is unknown."""
    propagation = run.record.propagation
    if propagation is None or not isinstance(propagation.get("why"), str):
        return []
    first, *rest = propagation["why"].splitlines() or [""]
    return [f"propagation {chosen(propagation)}: {first}", *rest]


def _account_warnings(account: Account) -> Iterator[str]:
    yield from account.warnings
    mode = account.facts.get("mode")
    if mode not in (None, "train"):
        yield say("mode", of=account.name, mode=mode)


def _account_evidence(account: Account) -> Iterator[str]:
    step, epoch = account.step_s, account.epoch_s
    parts = sorted(account.parts.items(), key=lambda item: -item[1])
    large = [(part, s) for part, s in parts if s >= 0.01 * step]
    said = [say("part", part=part, seconds=s, share=s / step) for part, s in large]
    rest = step - sum(s for _, s in large)
    if rest > 1e-12 + 1e-9 * step:
        said.append(f"all else {seconds_text(rest)}")
    yield say("parts", of=account.name, step=step, parts=said)
    if epoch is not None and account.steps_per_epoch is not None:
        outside = sorted(account.outside.items(), key=lambda item: -item[1])[:4]
        said = [f"{part} {seconds_text(seconds)}" for part, seconds in outside]
        yield say(
            "epoch",
            of=account.name,
            epoch=epoch,
            steps=round(account.steps_per_epoch),
            within=1 - account.outside_s / epoch,
            outside=account.outside_s / epoch,
            parts=f" ({', '.join(said)})" if said else "",
        )


def _explain_two(a: Subject, b: Subject) -> Explanation:
    compared = compare(a.account, b.account)
    runs = [(one.name, one.run.doubt(one.name)) for one in (a, b) if one.run is not None]
    uneven = {name: doubt for name, doubt in runs if doubt is not None}
    doubts = [*uneven.values(), *evidence.doubts_of_two(a, b)]
    traces = [(one.name, one.traces) for one in (a, b) if one.traces is not None]
    views = [View(name, found) for name, found in traces]
    only_traces = len(views) == 2 and a.run is None and b.run is None
    causes = judge.causes_of_two(views[0], views[1], compared.steps) if only_traces else []
    noise = _noise(a, b, views if only_traces else [])
    sentence = _pair_sentence(compared, noise, causes)
    if (ranks := evidence.rank_difference(a, b)) is not None:
        sentence += say("other ranks", ranks=ranks)
    if uneven:
        sentence += say("uneven", names=list(uneven))
    tables = [
        Table(f"waterfall_{x.per}", f"from {a.name} to {b.name}, seconds per {x.per}", x.frame())
        for x in compared.falls
    ]
    for one, key in ((a, "categories_a"), (b, "categories_b")):
        title = f"where the time of {one.name} goes"
        tables.append(Table(key, title, evidence.category_table(one.account)))
    if len(views) == 2:
        tables += _changes(views[0], views[1])
    advice = _pair_advice(compared, causes, noise, of_run=b.run is not None)
    warnings = [f"{one.name}: {w}" for one in (a, b) for w in _account_warnings(one.account)]
    return Explanation(
        sentence,
        tuple(_pair_evidence(compared, noise, views)),
        (*advice, MACHINE_ADVICE) if uneven else tuple(advice),
        "low" if doubts else "high",
        (a.account, b.account),
        comparison=compared,
        tables=tuple(tables),
        facts=(a.facts, b.facts),
        doubts=tuple(doubts),
        causes=tuple(causes[:5]),
        noise=noise,
        warnings=(*(say("low", doubt=doubt) for doubt in doubts), *warnings),
        timeline=typical_steps(traces),
        attributions=tuple(found for _, found in traces),
    )


def _noise(a: Subject, b: Subject, views: list[View]) -> Difference | None:
    if a.run is not None and b.run is not None:
        if any(one.summary.samples_per_s is None for one in (a.run, b.run)):
            return None
        in_a, in_b = (
            steady_steps(run.rows)["wall_s"].to_numpy() / (one.account.samples_per_step or 1.0)
            for one, run in ((a, a.run), (b, b.run))
        )
        return difference(in_a, in_b)
    if not views:
        return None
    paced_by = "device" if views[0].parts and views[1].parts else "host"
    return difference(views[0].times, views[1].times, paced_by=paced_by)


def _pair_sentence(compared: Comparison, noise: Difference | None, causes: list[Cause]) -> str:
    fall, a, b = compared.steps, compared.a.name, compared.b.name
    if fall.ratio is None:
        return say("not measured", a=a, b=b)
    is_noise = noise is not None and not noise.is_beyond
    values: dict[str, Any] = {"a": a, "b": b, "per": fall.per, "time_a": fall.a, "time_b": fall.b}
    if is_noise or abs(fall.ratio - 1) <= SAME:
        said = say("no difference", **values)
        said += say("detectable", detectable=noise.detectable) if noise is not None else ""
    else:
        of_some = noise is not None and noise.of == "mean"
        some = ", because of some of its steps" if of_some else ""
        cause = causes[0].text if causes else _largest_bars(fall)
        said = say("longer", ratio=fall.ratio, some=some, cause=cause, **values)
    return f"{said}.{_epochs(compared, close=0.25 if is_noise else SAME)}{_threads(compared)}"


def _largest_bars(fall: Waterfall) -> str:
    lead, *others = [bar for bar in fall.bars if bar.change * fall.gap > 0]
    said = judge.of_gap(lead.part, lead.change, fall.gap)
    shares = [(bar, bar.change / fall.gap) for bar in others[:2]]
    parts = [say("change", part=x.part, change=x.change, share=s) for x, s in shares if s >= 0.05]
    return said + (say("then", parts=parts) if parts and lead.change / fall.gap <= 1.005 else "")


def _epochs(compared: Comparison, *, close: float) -> str:
    """Return what to add on epochs, where their ratio is not that of the steps."""
    ratio, fall, of_steps = compared.epoch_ratio, compared.epochs, compared.steps.ratio
    if ratio is None or fall is None or fall.ratio is None or of_steps is None:
        return ""
    if abs(fall.ratio / of_steps - 1) <= close:
        return ""
    lead = max(fall.bars, key=lambda bar: bar.change * (1 if fall.gap >= 0 else -1))
    is_most = lead.part.startswith(OUTSIDE) and abs(lead.change) > abs(fall.gap) / 2 > 0
    most = say("most outside", part=lead.part, change=lead.change) if is_most else ""
    return say("per epoch", ratio=fall.ratio, line=ratio.line, most=most)


def _threads(compared: Comparison) -> str:
    a, b = (account.facts.get(THREADS) for account in (compared.a, compared.b))
    if a is None or b is None or a == b:
        return ""
    return say("threads", a=compared.a.name, b=compared.b.name, in_a=a, in_b=b)


def _changes(a: View, b: View) -> list[Table]:
    """Return what two traces do, by change, and what each does alone."""
    tables = []
    if a.parts and b.parts:
        in_a, in_b = ({DEVICE_PARTS[part]: s for part, s in v.parts.items()} for v in (a, b))
        title = f"the device, from {a.name} to {b.name}, seconds per step"
        tables.append(Table("device", title, Waterfall.between("step", in_a, in_b).frame()))
    kernels_a, kernels_b = (view.by("kernels", "compute") for view in (a, b))
    for key, title, in_a, in_b in (
        ("operations", "what the host does", _by_name(a), _by_name(b)),
        ("operators", "device time by operator", a.by("operators"), b.by("operators")),
        ("kernels", "device time by kernel", kernels_a, kernels_b),
        ("modules", "device time by module", a.by("modules"), b.by("modules")),
    ):
        if in_a or in_b:
            changes = evidence.change_table(in_a, in_b)
            tables.append(Table(key, f"{title}, by change, seconds per step", changes))
    for view, suffix in ((a, "_a"), (b, "_b")):
        tables += evidence.trace_tables(view.traces, suffix=suffix, of=f": {view.name}")
    return tables


def _by_name(view: View) -> Seconds:
    found: Seconds = {}
    for named in view.groups("host").values():
        for name, seconds in named.items():
            found[name] = found.get(name, 0.0) + seconds
    return found


def _pair_evidence(
    compared: Comparison, noise: Difference | None, views: list[View]
) -> Iterator[str]:
    if noise is not None:
        yield say("bootstrap", **asdict(noise))
    if compared.epoch_ratio is not None:
        yield f"{compared.epoch_ratio.line}."
    if len(views) == 2:
        a, b = views
        yield from evidence.pair_evidence(a.traces, b.traces)
        for view, mine, theirs in ((a, _by_name(a), _by_name(b)), (b, _by_name(b), _by_name(a))):
            own = sorted((-s, name) for name, s in mine.items() if name not in theirs)
            seconds = -sum(s for s, _ in own)
            if seconds > 0.01 * sum(mine.values()):
                names = [short_name(name) for _, name in own[:3]]
                yield say("only", of=view.name, names=names, seconds=seconds)
    for account in (compared.a, compared.b):
        yield from _account_evidence(account)


def _pair_advice(
    compared: Comparison, causes: list[Cause], noise: Difference | None, *, of_run: bool
) -> list[str]:
    found = []
    if _threads(compared):
        found.append("threads: Train both with the same trainer.threads, and compare again.")
    if noise is not None and not noise.is_beyond:
        return found
    if causes and causes[0].seconds > 0 and causes[0].kind in ADVICE:
        found.append(evidence.advice_on(causes[0].kind))
    for fall in compared.falls:
        if fall.gap and fall.gap >= SAME * fall.a:
            parts = [bar.part for bar in fall.bars[:4] if bar.change > 0.1 * fall.gap]
            found += [
                evidence.advice_on(part.removeprefix(OUTSIDE), of_run=of_run) for part in parts
            ]
    return list(dict.fromkeys(found))


_SIGNS = {">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le}
_CONDITION = re.compile(
    r"\s*(?P<what>[A-Za-z][A-Za-z _]{0,60}?)\s*(?P<sign>>=|<=|>|<)\s*"
    r"(?P<number>[+-]?[0-9]{1,12}(?:\.[0-9]{1,12})?)\s*(?P<unit>%|x)?\s*"
)


@dataclass(frozen=True)
class Condition:
    """``what > limit`` or one of ``>= < <=``; the limit as a share: 10 % is 0.1.

    ``what`` is one of `SLOWER`, or a category: its share of a step of the last one given.
    """

    text: str
    what: str
    sign: str
    limit: float

    def value(self, explanation: Explanation) -> float:
        """Return the value of an explanation, as a share."""
        if self.what not in SLOWER:
            account = explanation.accounts[-1]
            return account.parts.get(self.what, 0.0) / account.step_s if account.step_s else 0.0
        compared = explanation.comparison
        if compared is None:
            raise InputError(
                f"'{self.text}' compares two, and one was given",
                code="condition-needs-two",
                fix="Give A and B, or a condition on a category, such as 'data loading > 20%'.",
            )
        per = self.what.removeprefix("slower").removeprefix(" per ")
        ratio = compared.steps.ratio
        if per == "step":
            ratio = compared.b.step_s / compared.a.step_s if compared.a.step_s > 0 else None
        elif per == "epoch":
            ratio = None if compared.epochs is None else compared.epochs.ratio
        elif per == "sample" and compared.steps.per != "sample":
            ratio = None
        if ratio is None:
            raise InputError(
                f"'{self.text}' is unknown: the {per or 'time'} of one of the two is not recorded",
                code="condition-unknown",
                fix="Traces do not record samples or epochs: use 'slower per step'.",
            )
        return ratio - 1

    def holds(self, explanation: Explanation) -> bool:
        """Return whether it holds, and a check should fail; B is slower only beyond noise."""
        value, noise = self.value(explanation), explanation.noise
        of_noise = self.what in SLOWER[:3] and self.sign in (">", ">=")
        if of_noise and noise is not None and not noise.is_beyond:
            return False
        return bool(_SIGNS[self.sign](value, self.limit))

    def told(self, explanation: Explanation) -> str:
        """Return the condition with the value of an explanation."""
        said = f"{self.text}: it is {share_text(self.value(explanation))}"
        noise = explanation.noise
        if self.what not in SLOWER[:3] or noise is None:
            return said
        if not noise.is_beyond:
            said += ", which is not beyond noise"
        elif explanation.causes and explanation.causes[0].kind in ("machine", "uniform"):
            said += ", a uniform slowdown of every part, which may come from the machine's load"
        return f"{said}; {share_text(noise.detectable)} or more could have been detected"


def read_condition(text: str) -> Condition:
    """Read a condition under which a check fails, such as ``slower > 10%``."""
    found = _CONDITION.fullmatch(text)
    if found is None:
        raise InputError(
            f"'{text}' is not a condition",
            code="not-a-condition",
            fix='Write what, a sign and a number, such as --fail-if "slower > 10%".',
        )
    what = " ".join(found["what"].lower().split()).replace("_", " ")
    known = [*SLOWER, *CATEGORIES]
    if what not in known:
        raise InputError(
            f"'{text}' is about '{what}', which is unknown{did_you_mean(what, known)}",
            code="unknown-condition",
            fix=f"Use one of: {', '.join(known)}.",
        )
    number, unit = float(found["number"]), found["unit"]
    if unit == "x" and what not in SLOWER:
        raise InputError(f"'{text}' gives a share in x", code="condition-unit", fix="Use %.")
    limit = number / 100 if unit == "%" else number - 1 if unit == "x" else number
    return Condition(" ".join(text.split()), what, found["sign"], limit)
