"""The one call: where the time goes, or why B is slower than A."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from deltacell.errors import InputError
from deltacell.profile.explain.account import (
    OUTSIDE,
    Account,
    Bar,
    Comparison,
    Table,
    Waterfall,
    change_text,
    compare,
    listed,
    ratio_text,
    seconds_text,
    share_text,
    short_name,
    waterfall,
)
from deltacell.profile.explain.evidence import (
    CAUSE_ADVICE,
    MACHINE_ADVICE,
    MUCH,
    advice_on,
    change_table,
    doubt_sentences,
    doubts_of_one,
    doubts_of_two,
    kernels_sentence,
    loader_sentence,
    rank_difference,
    trace_advice,
    trace_evidence,
    trace_tables,
)
from deltacell.profile.explain.judge import (
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
    RunTimes,
    Subject,
    device_parts,
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
from deltacell.profile.trace.decode import Progress
from deltacell.words import count_text


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
        Each a run's directory, a trace (plain or packed with gzip), or a directory with one trace
        a rank; of this program or of any PyTorch program.
    progress
        Called with a label, what is done and what there is.

    Returns
    -------
    The cause in a sentence, evidence, what to try, and the numbers as dataclasses and frames.
    """
    first = open_subject(
        a, name="A" if b is not None and _same_name(a, b) else None, progress=progress
    )
    if b is None:
        return explain_one(first)
    second = open_subject(b, name="B" if _same_name(a, b) else None, progress=progress)
    return explain_two(first, second)


def _same_name(a: str | os.PathLike[str], b: str | os.PathLike[str]) -> bool:
    return run_name(Path(a)) == run_name(Path(b))


@dataclass(frozen=True, eq=False)
class Explanation:
    """Where the time of one training goes, or why one is slower than another.

    Parameters
    ----------
    sentence
        The cause, how much it explains, and the number.
    evidence
        Where that comes from, in sentences.
    advice
        What to try, in sentences.
    confidence
        ``high`` or ``low``; why it is low is in ``doubts``.
    accounts
        The time of each in parts that add up: one, or A and B.
    comparison
        From A to B; None for one.
    tables
        Numbers, by what they show.
    facts
        What each was: settings, versions, where it was read from. One mapping for each account.
    doubts
        Every reason for a low confidence.
    causes
        What takes the time, or makes the difference, of traces; the largest first.
    noise
        How the steps of two differ beside noise; None where it is not known.
    warnings
        What a person should know before relying on it, in sentences.
    timeline
        A typical step of each rank, for a page to draw; None without a trace.
    attributions
        Where the time of the traces goes, one for each that has any; not in the JSON.
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
        for table in self.tables:
            if table.key == key:
                return table.frame
        there = ", ".join(table.key for table in self.tables)
        raise KeyError(f"there is no table '{key}'; there are {there or 'none'}")

    def to_json(self) -> dict[str, Any]:
        """Return all of it as a JSON-serialisable dict."""
        compared = None if self.comparison is None else self.comparison.to_json()
        return {
            "sentence": self.sentence,
            "evidence": list(self.evidence),
            "advice": list(self.advice),
            "confidence": self.confidence,
            "doubts": list(self.doubts),
            "causes": [cause.to_json() for cause in self.causes],
            "noise": None if self.noise is None else self.noise.to_json(),
            "accounts": [account.to_json() for account in self.accounts],
            "waterfalls": [] if compared is None else compared["waterfalls"],
            "epoch_ratio": None if compared is None else compared["epoch_ratio"],
            "unequal": [] if compared is None else compared["unequal"],
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
            "warnings": list(self.warnings),
            "timeline": self.timeline,
        }


SLOWER = ("slower", "slower per sample", "slower per step", "slower per epoch")
"""How much slower B is than A; plain ``slower`` is per sample where samples are known."""


@dataclass(frozen=True)
class Condition:
    """``what > limit`` or one of ``>= < <=``.

    Parameters
    ----------
    text
        As it was given.
    what
        One of `SLOWER`, or a category: its share of a step of the last one given.
    sign
        Of the comparison.
    limit
        As a share: 10 % is 0.1.
    """

    text: str
    what: str
    sign: str
    limit: float

    def value(self, explanation: Explanation) -> float:
        """Return what an explanation has for it, as a share.

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
        if per == "step":
            ratio = compared.b.step_s / compared.a.step_s if compared.a.step_s > 0 else None
        elif per == "epoch":
            ratio = None if compared.epochs is None else compared.epochs.ratio
        elif per == "sample" and compared.steps.per != "sample":
            ratio = None
        else:
            ratio = compared.steps.ratio
        if ratio is None:
            raise InputError(
                f"'{self.text}' cannot be told: the {per or 'time'} of one of the two is not known",
                fix="Traces do not say their samples or epochs: use 'slower per step'.",
            )
        return ratio - 1

    def holds(self, explanation: Explanation) -> bool:
        """Return whether it is so, and a check should fail.

        That B is slower holds only where it is more than noise, and where it is not every part of
        a program on the CPU alike, which is how a busy machine looks.
        """
        value = self.value(explanation)
        if self.what in SLOWER[:3] and self.sign in (">", ">=") and not _is_beyond(explanation):
            return False
        return {
            ">": value > self.limit,
            ">=": value >= self.limit,
            "<": value < self.limit,
            "<=": value <= self.limit,
        }[self.sign]

    def told(self, explanation: Explanation) -> str:
        """Return the condition with the value that an explanation has for it."""
        said = f"{self.text}: it is {share_text(self.value(explanation))}"
        noise = explanation.noise
        if self.what not in SLOWER[:3] or noise is None:
            return said
        beyond = "" if _is_beyond(explanation) else ", which is not beyond noise"
        if noise.is_beyond and beyond:
            beyond = ", but of every part alike, as on a busier machine"
        return f"{said}{beyond}; {share_text(noise.detectable)} or more could have been detected"


def _is_beyond(explanation: Explanation) -> bool:
    if explanation.noise is None:
        return True
    is_machine = bool(explanation.causes) and explanation.causes[0].kind == "machine"
    return explanation.noise.is_beyond and not is_machine


def read_condition(text: str) -> Condition:
    """Read a condition."""
    found = _CONDITION.fullmatch(text)
    if found is None:
        raise InputError(
            f"'{text}' is not a condition",
            fix='Write what, a sign and a number, such as --fail-if "slower > 10%"',
        )
    what = " ".join(found["what"].lower().split()).replace("_", " ")
    known = [*SLOWER, *CATEGORIES]
    if what not in known:
        near = difflib.get_close_matches(what, known, 1, 0.6)
        hint = f"; did you mean '{near[0]}'?" if near else ""
        raise InputError(
            f"'{text}' is about '{what}', which is unknown{hint}",
            fix=f"There are: {', '.join(known)}",
        )
    number, unit = float(found["number"]), found["unit"]
    if unit == "x" and what not in SLOWER:
        raise InputError(f"'{text}' gives a share in x", fix="Write it in %")
    limit = number / 100 if unit == "%" else number - 1 if unit == "x" else number
    return Condition(" ".join(text.split()), what, found["sign"], limit)


_CONDITION = re.compile(
    r"\s*(?P<what>[A-Za-z][A-Za-z _]{0,60}?)\s*(?P<sign>>=|<=|>|<)\s*"
    r"(?P<number>[+-]?[0-9]{1,12}(?:\.[0-9]{1,12})?)\s*(?P<unit>%|x)?\s*"
)


def explain_one(subject: Subject) -> Explanation:
    """Return where the time of one run or trace goes."""
    account, traces = subject.account, subject.traces
    evidence = [parts_sentence(account), *epoch_sentences(account)]
    advice = category_advice(subject)
    tables = [Table("categories", "where the time goes", category_table(account))]
    sentence = _sentence_of_one(account)
    causes: list[Cause] = []
    doubts = doubts_of_one(subject)
    warnings = one_warnings(account)
    if subject.run is not None and (uneven := uneven_doubt(subject.run, subject.name)) is not None:
        doubts.insert(0, uneven)
        advice.insert(0, MACHINE_ADVICE)
    if traces is not None:
        causes = causes_of_one(View(subject.name, traces), account.parts)
        told = trace_evidence(traces)
        advice = [*trace_advice(traces), *advice]
        tables += trace_tables(traces)
        if subject.run is None:
            sentence = sentence_of_one(causes) if causes else sentence
            evidence += told
        else:
            evidence += [f"By its trace, with the profiler on: {one}" for one in told]
            warnings += [f"Trace: {notice}" for notice in trace_notices(traces)]
    if subject.run is not None:
        sentence, late = _of_run(subject.run, sentence)
        evidence += late
        why = propagation_lines(subject.run.record)
        evidence += why[:2]
        if len(why) > 2:
            lines = pl.DataFrame({"line": why})
            tables.append(Table("propagation", "the chosen propagation, and why", lines))
        tables.append(
            Table("ranks", "ms per step of each rank", _filled(phases_by_rank(subject.run)))
        )
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
        warnings=tuple(dict.fromkeys([*doubt_sentences(doubts), *warnings])),
        timeline=typical_steps(() if traces is None else ((subject.name, traces),)),
        attributions=() if traces is None else (traces,),
    )


def one_warnings(account: Account) -> list[str]:
    """Return what a person should know of an account before relying on it."""
    found = list(account.warnings)
    mode = account.facts.get("mode")
    if mode not in (None, "train"):
        found.append(f"{account.name} was run in mode '{mode}', so this is no whole training step.")
    return found


def parts_sentence(account: Account) -> str:
    """Return what a step is made of, the largest parts first."""
    parts = sorted(account.parts.items(), key=lambda item: -item[1])
    told = [
        f"{part} {seconds_text(seconds)} ({share_text(seconds / account.step_s)})"
        for part, seconds in parts
        if seconds >= 0.01 * account.step_s
    ]
    rest = account.step_s - sum(s for _, s in parts if s >= 0.01 * account.step_s)
    if rest > 1e-12 + 1e-9 * account.step_s:
        told.append(f"all else {seconds_text(rest)}")
    return f"A step of {account.name} takes {seconds_text(account.step_s)}: {listed(told)}."


def epoch_sentences(account: Account) -> list[str]:
    """Return what an epoch is made of; nothing where it is not known."""
    if account.epoch_s is None or account.steps_per_epoch is None:
        return []
    outside = sorted(account.outside.items(), key=lambda item: -item[1])
    told = [f"{part} {seconds_text(seconds)}" for part, seconds in outside[:4]]
    between = f" ({', '.join(told)})" if told else ""
    return [
        f"An epoch of {account.name} takes {seconds_text(account.epoch_s)}: "
        f"{count_text(round(account.steps_per_epoch), 'step is', 'steps are')} "
        f"{share_text(1 - account.outside_s / account.epoch_s)}, what lies outside is "
        f"{share_text(account.outside_s / account.epoch_s)}{between}."
    ]


def category_table(account: Account) -> pl.DataFrame:
    """Return the time of each category: per step, per sample, per epoch, and its shares."""
    rows = []
    samples, steps, epoch = account.samples_per_step, account.steps_per_epoch, account.epoch_s
    for part in dict.fromkeys([*CATEGORIES, *account.parts, *account.outside]):
        seconds = account.parts.get(part, 0.0)
        outside = account.outside.get(part, 0.0)
        if not seconds and not outside:
            continue
        in_epoch = None if not steps else steps * seconds + outside
        rows.append(
            {
                "category": part,
                "ms per step": 1e3 * seconds,
                "µs per sample": 1e6 * seconds / samples if samples else None,
                "share of a step": seconds / account.step_s if account.step_s else 0.0,
                "s per epoch": in_epoch,
                "share of an epoch": in_epoch / epoch if in_epoch is not None and epoch else None,
            }
        )
    schema = {
        "category": pl.String(),
        "ms per step": pl.Float64(),
        "µs per sample": pl.Float64(),
        "share of a step": pl.Float64(),
        "s per epoch": pl.Float64(),
        "share of an epoch": pl.Float64(),
    }
    found = pl.DataFrame(rows, schema=schema)
    empty = [name for name in found.columns if found[name].null_count() == len(found)]
    return found.drop(empty)


def category_advice(subject: Subject) -> list[str]:
    """Return what to try in the largest categories.

    With a device, what the host is busy with is not what takes the time, but for the loader.
    """
    account, of_run = subject.account, subject.run is not None
    traces = subject.traces
    if not of_run and traces is not None and traces.ranks[0].device is not None:
        seconds = account.parts.get("data loading", 0.0)
        worth = ["data loading"] if seconds > MUCH * account.step_s else []
        return [f"{part}: {advice_on(part, of_run=False)}" for part in worth]
    parts = sorted(account.parts, key=lambda name: -account.parts[name])
    worth = [part for part in parts[:3] if account.parts[part] > MUCH * account.step_s]
    epoch = account.epoch_s
    if epoch:
        outside = sorted(account.outside, key=lambda name: -account.outside[name])
        worth += [part for part in outside if account.outside[part] > MUCH * epoch]
    return [f"{part}: {advice_on(part, of_run=of_run)}" for part in dict.fromkeys(worth)]


def _sentence_of_one(account: Account) -> str:
    part = max(account.parts, key=lambda name: account.parts[name])
    seconds = account.parts[part]
    per_sample = ""
    if account.samples_per_step:
        per_sample = f", {seconds_text(seconds / account.samples_per_step)} per sample"
    return (
        f"{part[0].upper()}{part[1:]} takes {share_text(seconds / account.step_s)} of a step of "
        f"{account.name} ({seconds_text(seconds)} of {seconds_text(account.step_s)}{per_sample})."
    )


def _of_run(times: RunTimes, sentence: str) -> tuple[str, list[str]]:
    late = straggler(phases_by_rank(times))
    if times.summary.steps:
        sentence = times.summary.sentence
    if late is None:
        return sentence, []
    text = late.sentence
    if late.share > MUCH:
        return f"{text[0].upper()}{text[1:]}. {sentence}", []
    return sentence, [f"{text[0].upper()}{text[1:]}."]


def _filled(by_rank: pl.DataFrame) -> pl.DataFrame:
    empty = [part for part in CATEGORIES if not by_rank[part].sum()]
    return by_rank.drop(empty)


SAME = 0.02
"""Times that differ by less than this share are called the same."""


def explain_two(a: Subject, b: Subject) -> Explanation:
    """Return why B takes longer than A, or less."""
    compared = compare(a.account, b.account)
    uneven = _uneven(a, b)
    doubts = [*uneven.values(), *doubts_of_two(a, b)]
    noise = _noise(a, b)
    traced, tables = _of_traces(a, b)
    causes = _causes(a, b, compared)
    evidence = _evidence(compared, traced)
    if noise is not None:
        evidence.insert(0, _noise_text(noise))
    ranks = rank_difference(a, b)
    return Explanation(
        _sentence_of_two(compared, noise, causes)
        + ("" if ranks is None else f" Compared are unlike ranks: {ranks}.")
        + _uneven_sentence(uneven),
        tuple(evidence),
        (
            *_advice(compared, causes, noise, of_run=b.run is not None),
            *((MACHINE_ADVICE,) if uneven else ()),
        ),
        "low" if doubts else "high",
        (a.account, b.account),
        comparison=compared,
        tables=(
            *(
                Table(f"waterfall_{fall.per}", _title(compared, fall), waterfall_table(fall))
                for fall in (compared.steps, compared.epochs)
                if fall is not None
            ),
            Table("categories_a", f"where the time of {a.name} goes", category_table(a.account)),
            Table("categories_b", f"where the time of {b.name} goes", category_table(b.account)),
            *tables,
        ),
        facts=(a.facts, b.facts),
        doubts=tuple(doubts),
        causes=tuple(causes[:5]),
        noise=noise,
        warnings=(
            *doubt_sentences(doubts),
            *(
                f"{account.name}: {warning}"
                for account in (a.account, b.account)
                for warning in one_warnings(account)
            ),
        ),
        timeline=typical_steps(
            [(one.name, one.traces) for one in (a, b) if one.traces is not None]
        ),
        attributions=tuple(one.traces for one in (a, b) if one.traces is not None),
    )


def waterfall_table(fall: Waterfall) -> pl.DataFrame:
    """Return the bars of a waterfall, the largest change first, and their sum."""
    bars = [*fall.bars, Bar("all", fall.a, fall.b)]
    gap = fall.gap
    return pl.DataFrame(
        {
            "part": [bar.part for bar in bars],
            "a_s": [bar.a for bar in bars],
            "b_s": [bar.b for bar in bars],
            "change_s": [*(bar.change for bar in fall.bars), gap],
            "share of the gap": [bar.change / gap if gap else None for bar in fall.bars]
            + [1.0 if gap else None],
        },
        schema={
            "part": pl.String(),
            "a_s": pl.Float64(),
            "b_s": pl.Float64(),
            "change_s": pl.Float64(),
            "share of the gap": pl.Float64(),
        },
    )


def _title(compared: Comparison, fall: Waterfall) -> str:
    return f"from {compared.a.name} to {compared.b.name}, seconds per {fall.per}"


def _sentence_of_two(compared: Comparison, noise: Difference | None, causes: list[Cause]) -> str:
    fall, a, b = compared.steps, compared.a.name, compared.b.name
    ratio = fall.ratio
    times = f"{seconds_text(fall.b)} against {seconds_text(fall.a)}"
    if ratio is None:
        return f"No time of {a} was measured, so {b} cannot be compared with it."
    is_noise = noise is not None and not noise.is_beyond
    if is_noise or abs(ratio - 1) <= SAME:
        said = f"There is no difference beyond noise between {b} and {a} per {fall.per} ({times})"
        if noise is not None:
            said += f"; {share_text(noise.detectable)} or more would have shown"
    else:
        said = f"{b} takes {ratio_text(ratio)} as long per {fall.per} as {a} ({times})"
        if noise is not None and noise.of == "mean":
            said += ", because of some of its steps"
        said += f": {causes[0].text if causes else _cause(fall)}"
    epochs = _epochs(compared, close=_NOISE if is_noise else SAME)
    return f"{said}.{epochs}{_threads(compared)}"


def _causes(a: Subject, b: Subject, compared: Comparison) -> list[Cause]:
    if a.traces is None or b.traces is None or a.run is not None or b.run is not None:
        return []
    views = View(a.name, a.traces), View(b.name, b.traces)
    return causes_of_two(*views, compared.steps)


def _cause(fall: Waterfall) -> str:
    along = [bar for bar in fall.bars if bar.change * fall.gap > 0]
    lead = along[0]
    share = lead.change / fall.gap
    said = f"{lead.part} is {of_gap(lead.change, fall.gap)}"
    others = [
        f"{bar.part} {change_text(bar.change)} ({share_text(bar.change / fall.gap)})"
        for bar in along[1:3]
        if bar.change / fall.gap >= 0.05 and share <= 1.005
    ]
    return f"{said}, then {listed(others)}" if others else said


def _noise(a: Subject, b: Subject) -> Difference | None:
    if a.run is not None and b.run is not None:
        rates = (a.run.summary.samples_per_s, b.run.summary.samples_per_s)
        times = [steady_steps(one.run.rows)["wall_s"].to_numpy() for one in (a, b) if one.run]
        if rates[0] is None or rates[1] is None or not all(len(one) for one in times):
            return None
        samples = [one.account.samples_per_step or 1.0 for one in (a, b)]
        return difference(times[0] / samples[0], times[1] / samples[1])
    if a.traces is None or b.traces is None or a.run is not None or b.run is not None:
        return None
    views = View(a.name, a.traces), View(b.name, b.traces)
    paced_by = "device" if views[0].parts and views[1].parts else "host"
    return difference(views[0].times, views[1].times, paced_by=paced_by)


def _noise_text(noise: Difference) -> str:
    return (
        f"The {noise.of} of the steps of B is {ratio_text(noise.ratio)} that of A, between "
        f"{ratio_text(noise.low)} and {ratio_text(noise.high)} by a bootstrap of "
        f"{noise.steps[0]:,} and {noise.steps[1]:,} steps."
    )


_NOISE = 0.25


def _epochs(compared: Comparison, *, close: float) -> str:
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
        f" {compared.b.name} computed with {count_text(b, 'thread')} a process and "
        f"{compared.a.name} with {a}, which can change every part."
    )


def _uneven(a: Subject, b: Subject) -> dict[str, str]:
    doubts = {one.name: uneven_doubt(one.run, one.name) for one in (a, b) if one.run is not None}
    return {name: doubt for name, doubt in doubts.items() if doubt is not None}


def _uneven_sentence(uneven: Mapping[str, str]) -> str:
    if not uneven:
        return ""
    return (
        f" Within {listed(list(uneven))} the time of a step changed in every large part, so it may "
        "be the machine."
    )


def _of_traces(a: Subject, b: Subject) -> tuple[list[str], list[Table]]:
    if a.traces is None or b.traces is None:
        return [], []
    sentences = [loader_sentence(a.traces, b.traces), kernels_sentence(a.traces, b.traces)]
    tables = []
    on_device = device_fall(a.traces, b.traces)
    if on_device is not None:
        tables.append(
            Table(
                "device",
                f"the device, from {a.name} to {b.name}, seconds per step",
                waterfall_table(on_device),
            )
        )
        told = [f"{bar.part} {change_text(bar.change)}" for bar in on_device.bars]
        sentences.append(
            f"Of the device, the gap of {change_text(on_device.gap)} per step is {listed(told)}."
        )
    views = View(a.name, a.traces), View(b.name, b.traces)
    for key, title, (in_a, in_b) in (
        ("operations", "what the host does", [_flat(view) for view in views]),
        ("operators", "device time by operator", [view.operators for view in views]),
        ("kernels", "device time by kernel", [view.kernels("compute") for view in views]),
        ("modules", "device time by module", [view.modules for view in views]),
    ):
        if in_a or in_b:
            changes = change_table(in_a, in_b)
            tables.append(Table(key, f"{title}, by change, seconds per step", changes))
    sentences += _only_in_one(views[0], views[1])
    tables += trace_tables(a.traces, suffix="_a", of=f": {a.name}")
    tables += trace_tables(b.traces, suffix="_b", of=f": {b.name}")
    return [sentence for sentence in sentences if sentence is not None], tables


def device_fall(a: RanksAttribution, b: RanksAttribution) -> Waterfall | None:
    """Return the waterfall of what the devices did in a step; None where one has none."""
    parts_a, parts_b = device_parts(a), device_parts(b)
    if not parts_a or not parts_b:
        return None
    named = [{DEVICE_PARTS[part]: s for part, s in parts.items()} for parts in (parts_a, parts_b)]
    return waterfall("step", named[0], named[1], scale=(1.0, 1.0))


def _flat(view: View) -> dict[str, float]:
    found: dict[str, float] = {}
    for named in view.host.values():
        for name, seconds in named.items():
            found[name] = found.get(name, 0.0) + seconds
    return found


def _only_in_one(a: View, b: View) -> list[str]:
    found = []
    for one, other in ((a, b), (b, a)):
        mine, theirs = _flat(one), _flat(other)
        alone = {name: s for name, s in mine.items() if name not in theirs}
        seconds = sum(alone.values())
        if seconds > 0.01 * sum(mine.values()):
            most = sorted(alone, key=lambda name: (-alone[name], name))[:3]
            told = listed([short_name(name) for name in most])
            found.append(f"Only {one.name} has {told} ({seconds_text(seconds)} per step in all).")
    return found


def _evidence(compared: Comparison, traced: list[str]) -> list[str]:
    fall = compared.steps
    found = []
    if fall.bars and fall.gap:
        bars = [f"{bar.part} {change_text(bar.change)}" for bar in fall.bars]
        shown = bars if len(bars) <= 6 else [*bars[:5], f"{len(bars) - 5} smaller ones"]
        found.append(
            f"The gap of {change_text(fall.gap)} per {fall.per} is the sum of {listed(shown)}."
        )
    if compared.epoch_ratio is not None:
        found.append(f"{compared.epoch_ratio.line}.")
    for only, has in ((compared.a, "a"), (compared.b, "b")):
        parts = [
            f"{bar.part} ({seconds_text(getattr(bar, has))})"
            for bar in fall.bars
            if (bar.b if has == "a" else bar.a) == 0 and getattr(bar, has) > 0.01 * fall.a
        ]
        if parts:
            found.append(f"Only {only.name} has {listed(parts)}.")
    found += traced
    found += [parts_sentence(compared.a), parts_sentence(compared.b)]
    return [*found, *epoch_sentences(compared.a), *epoch_sentences(compared.b)]


def _advice(
    compared: Comparison, causes: list[Cause], noise: Difference | None, *, of_run: bool
) -> list[str]:
    found = []
    if _threads(compared):
        found.append("threads: Train both with the same trainer.threads, and compare again.")
    if noise is not None and not noise.is_beyond:
        return found
    if causes and causes[0].seconds > 0 and causes[0].kind in CAUSE_ADVICE:
        found.append(f"{causes[0].kind}: {CAUSE_ADVICE[causes[0].kind]}")
    for fall in (compared.steps, compared.epochs):
        if fall is None or not fall.gap or fall.gap < SAME * fall.a:
            continue
        for bar in fall.bars[:4]:
            if bar.change > 0.1 * fall.gap:
                part = bar.part.removeprefix(OUTSIDE)
                found.append(f"{part}: {advice_on(part, of_run=of_run)}")
    return list(dict.fromkeys(found))
