"""Explaining one: the limiting cause in a sentence, then evidence, what to try, and tables."""

from __future__ import annotations

import polars as pl

from deltacell.profile.explain.account import Account
from deltacell.profile.explain.advice import MACHINE_ADVICE, MUCH, advice_on, trace_advice
from deltacell.profile.explain.confidence import doubt_sentences, doubts_of_one
from deltacell.profile.explain.explanation import Explanation, Table
from deltacell.profile.explain.judge import Cause, View, causes_of_one, sentence_of_one
from deltacell.profile.explain.run_account import (
    CATEGORIES,
    RunTimes,
    phases_by_rank,
    propagation_lines,
    uneven_doubt,
)
from deltacell.profile.explain.stragglers import straggler
from deltacell.profile.explain.subject import Subject
from deltacell.profile.explain.timeline import typical_steps
from deltacell.profile.explain.trace_account import trace_notices
from deltacell.profile.explain.trace_evidence import trace_evidence
from deltacell.profile.explain.trace_tables import trace_tables
from deltacell.profile.explain.words import listed, seconds_text, share_text
from deltacell.words import count_text


def explain_one(subject: Subject) -> Explanation:
    """Return where the time of one run or trace goes."""
    account, traces = subject.account, subject.traces
    evidence = [parts_sentence(account), *epoch_sentences(account)]
    advice = category_advice(subject)
    tables = [Table("categories", "where the time goes", category_table(account))]
    sentence = _sentence(account)
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


def _sentence(account: Account) -> str:
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
    """Leave out categories that no rank has."""
    empty = [part for part in CATEGORIES if not by_rank[part].sum()]
    return by_rank.drop(empty)
