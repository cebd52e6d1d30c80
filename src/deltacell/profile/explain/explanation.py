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
from deltacell.profile.explain.account import (
    OUTSIDE,
    Account,
    Comparison,
    Table,
    Waterfall,
    compare,
    waterfall,
)
from deltacell.profile.explain.evidence import (
    CAUSE_ADVICE,
    MACHINE_ADVICE,
    advice_on,
    category_advice,
    category_table,
    change_table,
    doubts_of_one,
    doubts_of_two,
    pair_evidence,
    rank_difference,
    trace_advice,
    trace_evidence,
    trace_tables,
)
from deltacell.profile.explain.judge import (
    MUCH,
    Cause,
    Difference,
    View,
    causes_of_one,
    causes_of_two,
    difference,
    of_gap,
    sentence_of_one,
    straggler,
)
from deltacell.profile.explain.subject import (
    CATEGORIES,
    DEVICE_PARTS,
    THREADS,
    Subject,
    open_subject,
    phases_by_rank,
    propagation_lines,
    run_name,
    trace_notices,
    uneven_doubt,
)
from deltacell.profile.explain.timeline import typical_steps
from deltacell.profile.phase_rows import steady_steps
from deltacell.profile.trace.attribution import RanksAttribution
from deltacell.words import (
    Progress,
    capital,
    change_text,
    count_text,
    listed,
    ratio_text,
    seconds_text,
    share_text,
    short_name,
)

SAME = 0.02
"""Times that differ by less than this share are called the same."""

SLOWER = ("slower", "slower per sample", "slower per step", "slower per epoch")
"""How much slower B is than A; plain ``slower`` is per sample where samples are known."""


@dataclass(frozen=True, eq=False)
class Explanation:
    """Where the time of one training goes, or why one is slower than another.

    Parameters
    ----------
    sentence
        The cause, how much it explains, and the number.
    evidence, advice, warnings
        In sentences: what it follows from, what to try, and what to know before relying on it.
    confidence, doubts
        ``high`` or ``low``, and every reason for a low one.
    accounts, comparison
        One account, or those of A and B and what changes from A to B.
    tables, facts
        Numbers; settings and versions, one mapping per account.
    causes
        What takes the time of traces, or makes the difference; the largest first.
    noise
        How the steps of two differ compared with noise; None where unknown.
    timeline
        A typical step of each rank, for a page to draw; None without a trace.
    attributions
        Where the time of the traces goes, one for each side that has any; not in the JSON.
    """

    sentence: str
    evidence: tuple[str, ...]
    advice: tuple[str, ...]
    confidence: str
    accounts: tuple[Account, ...]
    comparison: Comparison | None = None
    tables: tuple[Table, ...] = ()
    facts: tuple[Mapping[str, Any], ...] = ()
    doubts: tuple[str, ...] = ()
    causes: tuple[Cause, ...] = ()
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
        compared: dict[str, Any] = {"waterfalls": [], "epoch_ratio": None, "unequal": []}
        if self.comparison is not None:
            compared = self.comparison.to_json()
        lists = ("evidence", "advice", "doubts", "warnings")
        return {
            "sentence": self.sentence,
            "confidence": self.confidence,
            **{name: list(getattr(self, name)) for name in lists},
            "causes": [asdict(cause) for cause in self.causes],
            "noise": None if self.noise is None else self.noise.to_json(),
            "accounts": [account.to_json() for account in self.accounts],
            **compared,
            "tables": [
                {
                    "key": table.key,
                    "title": table.title,
                    "columns": table.frame.columns,
                    "rows": [list(row) for row in table.frame.rows()],
                }
                for table in self.tables
            ],
            "facts": [dict(facts) for facts in self.facts],
            "timeline": self.timeline,
        }


def explain(
    a: str | os.PathLike[str],
    b: str | os.PathLike[str] | None = None,
    *,
    progress: Progress | None = None,
) -> Explanation:
    """Explain where the time of a training goes, or why B takes longer than A.

    Parameters
    ----------
    a, b
        Each a run's directory, a trace (plain or gzip), or a directory with one trace per rank;
        of this program or of any PyTorch program.
    progress
        Called with a label, what is done and the total.
    """
    same = b is not None and run_name(Path(a)) == run_name(Path(b))
    first = open_subject(a, name="A" if same else None, progress=progress)
    if b is None:
        return _explain_one(first)
    return _explain_two(first, open_subject(b, name="B" if same else None, progress=progress))


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
        """Return the value of an explanation, as a share.

        Raises
        ------
        InputError
            Where the explanation does not know it.
        """
        if self.what not in SLOWER:
            account = explanation.accounts[-1]
            return account.parts.get(self.what, 0.0) / account.step_s if account.step_s else 0.0
        compared = explanation.comparison
        if compared is None:
            raise InputError(
                f"'{self.text}' compares two, and one was given",
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
                fix="Traces do not record samples or epochs: use 'slower per step'.",
            )
        return ratio - 1

    def holds(self, explanation: Explanation) -> bool:
        """Return whether it holds, and a check should fail; B is slower only beyond noise."""
        value, noise = self.value(explanation), explanation.noise
        if self._is_of_noise and noise is not None and not noise.is_beyond:
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
            said += ", a uniform slowdown of every part, which may be another load of the machine"
        return f"{said}; {share_text(noise.detectable)} or more could have been detected"

    @property
    def _is_of_noise(self) -> bool:
        return self.what in SLOWER[:3] and self.sign in (">", ">=")


_SIGNS = {">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le}
_CONDITION = re.compile(
    r"\s*(?P<what>[A-Za-z][A-Za-z _]{0,60}?)\s*(?P<sign>>=|<=|>|<)\s*"
    r"(?P<number>[+-]?[0-9]{1,12}(?:\.[0-9]{1,12})?)\s*(?P<unit>%|x)?\s*"
)


def read_condition(text: str) -> Condition:
    """Read a condition under which a check fails, such as ``slower > 10%``."""
    found = _CONDITION.fullmatch(text)
    if found is None:
        raise InputError(
            f"'{text}' is not a condition",
            fix='Write what, a sign and a number, such as --fail-if "slower > 10%"',
        )
    what = " ".join(found["what"].lower().split()).replace("_", " ")
    known = [*SLOWER, *CATEGORIES]
    if what not in known:
        raise InputError(
            f"'{text}' is about '{what}', which is unknown{did_you_mean(what, known)}",
            fix=f"Known are: {', '.join(known)}",
        )
    number, unit = float(found["number"]), found["unit"]
    if unit == "x" and what not in SLOWER:
        raise InputError(f"'{text}' gives a share in x", fix="Write it in %")
    limit = number / 100 if unit == "%" else number - 1 if unit == "x" else number
    return Condition(" ".join(text.split()), what, found["sign"], limit)


def _explain_one(subject: Subject) -> Explanation:
    account, traces, run = subject.account, subject.traces, subject.run
    evidence = [_parts_sentence(account), *_epoch_sentences(account)]
    advice = category_advice(subject)
    tables = [Table("categories", "where the time goes", category_table(account))]
    part = max(account.parts, key=lambda name: account.parts[name])
    seconds, per_sample = account.parts[part], ""
    if account.samples_per_step:
        per_sample = f", {seconds_text(seconds / account.samples_per_step)} per sample"
    sentence = (
        f"{capital(part)} takes {share_text(seconds / account.step_s)} of a step of "
        f"{account.name} ({seconds_text(seconds)} of {seconds_text(account.step_s)}{per_sample})."
    )
    causes: list[Cause] = []
    doubts = doubts_of_one(subject)
    warnings = _account_warnings(account)
    if run is not None and (uneven := uneven_doubt(run, subject.name)) is not None:
        doubts.insert(0, uneven)
        advice.insert(0, MACHINE_ADVICE)
    if traces is not None:
        causes = causes_of_one(View(subject.name, traces), account.parts)
        told = trace_evidence(traces)
        advice = [*trace_advice(traces), *advice]
        tables += trace_tables(traces)
        if run is None:
            sentence = sentence_of_one(causes) if causes else sentence
            evidence += told
        else:
            evidence += [f"By its trace, with the profiler on: {one}" for one in told]
            warnings += [f"Trace: {notice}" for notice in trace_notices(traces)]
    if run is not None:
        by_rank = phases_by_rank(run)
        sentence = run.summary.sentence if run.summary.steps else sentence
        late = straggler(by_rank)
        if late is not None and late[0] > MUCH:
            sentence = f"{capital(late[1])}. {sentence}"
        elif late is not None:
            evidence.append(f"{capital(late[1])}.")
        why = propagation_lines(run.record)
        evidence += why[:2]
        if len(why) > 2:
            lines = pl.DataFrame({"line": why})
            tables.append(Table("propagation", "the chosen propagation, and why", lines))
        empty = [part for part in CATEGORIES if not by_rank[part].sum()]
        tables.append(Table("ranks", "ms per step of each rank", by_rank.drop(empty)))
    return Explanation(
        sentence,
        tuple(evidence),
        tuple(advice),
        "low" if doubts else "high",
        (account,),
        tables=tuple(tables),
        facts=(subject.facts,),
        doubts=tuple(doubts),
        causes=tuple(causes[:5]),
        warnings=tuple(dict.fromkeys([*_low(doubts), *warnings])),
        timeline=typical_steps(() if traces is None else ((subject.name, traces),)),
        attributions=() if traces is None else (traces,),
    )


def _low(doubts: list[str]) -> list[str]:
    return [f"Confidence is low: {doubt}." for doubt in doubts]


def _account_warnings(account: Account) -> list[str]:
    mode = account.facts.get("mode")
    partial = f"{account.name} was run in mode '{mode}', so this is not a whole training step."
    return [*account.warnings, *([] if mode in (None, "train") else [partial])]


def _parts_sentence(account: Account) -> str:
    parts = sorted(account.parts.items(), key=lambda item: -item[1])
    large = [(part, s) for part, s in parts if s >= 0.01 * account.step_s]
    told = [f"{part} {seconds_text(s)} ({share_text(s / account.step_s)})" for part, s in large]
    rest = account.step_s - sum(s for _, s in large)
    if rest > 1e-12 + 1e-9 * account.step_s:
        told.append(f"all else {seconds_text(rest)}")
    return f"A step of {account.name} takes {seconds_text(account.step_s)}: {listed(told)}."


def _epoch_sentences(account: Account) -> list[str]:
    if account.epoch_s is None or account.steps_per_epoch is None:
        return []
    outside = sorted(account.outside.items(), key=lambda item: -item[1])
    told = ", ".join(f"{part} {seconds_text(seconds)}" for part, seconds in outside[:4])
    between = f" ({told})" if told else ""
    return [
        f"An epoch of {account.name} takes {seconds_text(account.epoch_s)}: "
        f"{count_text(round(account.steps_per_epoch), 'step is', 'steps are')} "
        f"{share_text(1 - account.outside_s / account.epoch_s)}, what lies outside is "
        f"{share_text(account.outside_s / account.epoch_s)}"
        f"{between}."
    ]


def _explain_two(a: Subject, b: Subject) -> Explanation:
    compared = compare(a.account, b.account)
    doubted = {one.name: uneven_doubt(one.run, one.name) for one in (a, b) if one.run is not None}
    uneven = {name: doubt for name, doubt in doubted.items() if doubt is not None}
    doubts = [*uneven.values(), *doubts_of_two(a, b)]
    traces = [(one.name, one.traces) for one in (a, b) if one.traces is not None]
    views = [View(name, found) for name, found in traces]
    only_traces = len(views) == 2 and a.run is None and b.run is None
    causes = causes_of_two(views[0], views[1], compared.steps) if only_traces else []
    noise = _noise(a, b, views if only_traces else [])
    traced: list[str] = []
    tables: list[Table] = []
    if len(views) == 2:
        traced, tables = _of_traces(views[0], views[1])
    ranks = rank_difference(a, b)
    sentence = _pair_sentence(compared, noise, causes)
    if ranks is not None:
        sentence += f" The ranks compared differ: {ranks}."
    if uneven:
        sentence += (
            f" Within {listed(list(uneven))} the time of a step changed in every large part, so it "
            "may be the machine."
        )
    warnings = [
        f"{one.name}: {w}" for one in (a.account, b.account) for w in _account_warnings(one)
    ]
    return Explanation(
        sentence,
        tuple(_pair_evidence(compared, noise, traced)),
        (
            *_pair_advice(compared, causes, noise, of_run=b.run is not None),
            *((MACHINE_ADVICE,) if uneven else ()),
        ),
        "low" if doubts else "high",
        (a.account, b.account),
        comparison=compared,
        tables=(
            *(
                Table(
                    f"waterfall_{fall.per}",
                    f"from {a.name} to {b.name}, seconds per {fall.per}",
                    fall.frame(),
                )
                for fall in compared.falls
            ),
            Table("categories_a", f"where the time of {a.name} goes", category_table(a.account)),
            Table("categories_b", f"where the time of {b.name} goes", category_table(b.account)),
            *tables,
        ),
        facts=(a.facts, b.facts),
        doubts=tuple(doubts),
        causes=tuple(causes[:5]),
        noise=noise,
        warnings=(*_low(doubts), *warnings),
        timeline=typical_steps(traces),
        attributions=tuple(found for _, found in traces),
    )


def _pair_sentence(compared: Comparison, noise: Difference | None, causes: list[Cause]) -> str:
    fall, a, b = compared.steps, compared.a.name, compared.b.name
    times = f"{seconds_text(fall.b)} against {seconds_text(fall.a)}"
    if fall.ratio is None:
        return f"No time of {a} was measured, so {b} cannot be compared with it."
    is_noise = noise is not None and not noise.is_beyond
    if is_noise or abs(fall.ratio - 1) <= SAME:
        said = f"There is no difference beyond noise between {b} and {a} per {fall.per} ({times})"
        if noise is not None:
            said += f"; {share_text(noise.detectable)} or more would have shown"
    else:
        said = f"{b} takes {ratio_text(fall.ratio)} as long per {fall.per} as {a} ({times})"
        if noise is not None and noise.of == "mean":
            said += ", because of some of its steps"
        said += f": {causes[0].text if causes else _largest_bars(fall)}"
    epochs = _epochs(compared, close=0.25 if is_noise else SAME)
    return f"{said}.{epochs}{_threads(compared)}"


def _largest_bars(fall: Waterfall) -> str:
    lead, *others = [bar for bar in fall.bars if bar.change * fall.gap > 0]
    share = lead.change / fall.gap
    told = [
        f"{bar.part} {change_text(bar.change)} ({share_text(bar.change / fall.gap)})"
        for bar in others[:2]
        if bar.change / fall.gap >= 0.05 and share <= 1.005
    ]
    then = f", then {listed(told)}" if told else ""
    return f"{lead.part} is {of_gap(lead.change, fall.gap)}{then}"


def _noise(a: Subject, b: Subject, views: list[View]) -> Difference | None:
    if a.run is not None and b.run is not None:
        if any(one.summary.samples_per_s is None for one in (a.run, b.run)):
            return None
        times = [
            steady_steps(run.rows)["wall_s"].to_numpy() / (one.account.samples_per_step or 1.0)
            for one, run in ((a, a.run), (b, b.run))
        ]
        return difference(times[0], times[1])
    if len(views) < 2:
        return None
    paced_by = "device" if views[0].parts and views[1].parts else "host"
    return difference(views[0].times, views[1].times, paced_by=paced_by)


def _epochs(compared: Comparison, *, close: float) -> str:
    """Return what to add on epochs, where their ratio is not that of the steps."""
    ratio, fall = compared.epoch_ratio, compared.epochs
    if ratio is None or fall is None or fall.ratio is None or compared.steps.ratio is None:
        return ""
    if abs(fall.ratio / compared.steps.ratio - 1) <= close:
        return ""
    lead = max(fall.bars, key=lambda bar: bar.change * (1 if fall.gap >= 0 else -1))
    said = f" Per epoch it is {ratio_text(fall.ratio)} ({ratio.line})"
    if lead.part.startswith(OUTSIDE) and abs(lead.change) > abs(fall.gap) / 2 > 0:
        said += f", and most of that lies {lead.part} ({change_text(lead.change)})"
    return f"{said}."


def _threads(compared: Comparison) -> str:
    a, b = (account.facts.get(THREADS) for account in (compared.a, compared.b))
    if a is None or b is None or a == b:
        return ""
    return (
        f" {compared.b.name} computed with {count_text(b, 'thread')} per process and "
        f"{compared.a.name} with {a}, which can change every part."
    )


def _of_traces(a: View, b: View) -> tuple[list[str], list[Table]]:
    sentences = list(pair_evidence(a.traces, b.traces))
    tables = []
    if a.parts and b.parts:
        named = [{DEVICE_PARTS[part]: s for part, s in view.parts.items()} for view in (a, b)]
        fall = waterfall("step", named[0], named[1])
        title = f"the device, from {a.name} to {b.name}, seconds per step"
        tables.append(Table("device", title, fall.frame()))
        told = listed([f"{bar.part} {change_text(bar.change)}" for bar in fall.bars])
        sentences.append(f"On the device, the gap of {change_text(fall.gap)} per step is {told}.")
    did = _by_name(a), _by_name(b)
    for key, title, in_a, in_b in (
        ("operations", "what the host does", did[0], did[1]),
        ("operators", "device time by operator", a.operators, b.operators),
        ("kernels", "device time by kernel", a.kernels("compute"), b.kernels("compute")),
        ("modules", "device time by module", a.modules, b.modules),
    ):
        if in_a or in_b:
            changes = change_table(in_a, in_b)
            tables.append(Table(key, f"{title}, by change, seconds per step", changes))
    for view, mine, theirs in ((a, did[0], did[1]), (b, did[1], did[0])):
        alone = {name: s for name, s in mine.items() if name not in theirs}
        seconds = sum(alone.values())
        if seconds > 0.01 * sum(mine.values()):
            most = sorted(alone, key=lambda name, own=alone: (-own[name], name))[:3]  # type: ignore[misc]
            told = listed([short_name(name) for name in most])
            sentences.append(f"Only {view.name} has {told} ({seconds_text(seconds)} per step).")
    for view, suffix in ((a, "_a"), (b, "_b")):
        tables += trace_tables(view.traces, suffix=suffix, of=f": {view.name}")
    return sentences, tables


def _by_name(view: View) -> dict[str, float]:
    found: dict[str, float] = {}
    for named in view.host.values():
        for name, seconds in named.items():
            found[name] = found.get(name, 0.0) + seconds
    return found


def _pair_evidence(
    compared: Comparison, noise: Difference | None, traced: list[str]
) -> Iterator[str]:
    fall = compared.steps
    if noise is not None:
        yield (
            f"The {noise.of} step of B takes {ratio_text(noise.ratio)} as long as that of A, "
            f"between {ratio_text(noise.low)} and {ratio_text(noise.high)} by a bootstrap of "
            f"{noise.steps[0]:,} and {noise.steps[1]:,} steps."
        )
    if fall.bars and fall.gap:
        bars = [f"{bar.part} {change_text(bar.change)}" for bar in fall.bars]
        shown = bars if len(bars) <= 6 else [*bars[:5], f"{len(bars) - 5} smaller ones"]
        yield f"The gap of {change_text(fall.gap)} per {fall.per} is the sum of {listed(shown)}."
    if compared.epoch_ratio is not None:
        yield f"{compared.epoch_ratio.line}."
    for account, bars_of in (
        (compared.a, [(bar.part, bar.a, bar.b) for bar in fall.bars]),
        (compared.b, [(bar.part, bar.b, bar.a) for bar in fall.bars]),
    ):
        only = [
            f"{part} ({seconds_text(mine)})"
            for part, mine, theirs in bars_of
            if theirs == 0 and mine > 0.01 * fall.a
        ]
        if only:
            yield f"Only {account.name} has {listed(only)}."
    yield from traced
    yield from (_parts_sentence(one) for one in (compared.a, compared.b))
    yield from (s for one in (compared.a, compared.b) for s in _epoch_sentences(one))


def _pair_advice(
    compared: Comparison, causes: list[Cause], noise: Difference | None, *, of_run: bool
) -> list[str]:
    found = []
    if _threads(compared):
        found.append("threads: Train both with the same trainer.threads, and compare again.")
    if noise is not None and not noise.is_beyond:
        return found
    if causes and causes[0].seconds > 0 and causes[0].kind in CAUSE_ADVICE:
        found.append(f"{causes[0].kind}: {CAUSE_ADVICE[causes[0].kind]}")
    for fall in compared.falls:
        if fall.gap and fall.gap >= SAME * fall.a:
            parts = [bar.part for bar in fall.bars[:4] if bar.change > 0.1 * fall.gap]
            plain = [part.removeprefix(OUTSIDE) for part in parts]
            found += [f"{part}: {advice_on(part, of_run=of_run)}" for part in plain]
    return list(dict.fromkeys(found))
