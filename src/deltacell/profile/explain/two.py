"""Explaining two: why B takes longer than A, as a waterfall that adds up."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from deltacell.profile.explain.advice import CAUSE_ADVICE, MACHINE_ADVICE, advice_on
from deltacell.profile.explain.compare import (
    OUTSIDE,
    Bar,
    Comparison,
    Waterfall,
    compare,
    waterfall,
)
from deltacell.profile.explain.confidence import doubt_sentences, doubts_of_two, rank_difference
from deltacell.profile.explain.explanation import Explanation, Table
from deltacell.profile.explain.judge import Cause, View, causes_of_two, of_gap
from deltacell.profile.explain.noise import Difference, difference
from deltacell.profile.explain.one import (
    category_table,
    epoch_sentences,
    one_warnings,
    parts_sentence,
)
from deltacell.profile.explain.run_account import THREADS, uneven_doubt
from deltacell.profile.explain.subject import Subject
from deltacell.profile.explain.timeline import typical_steps
from deltacell.profile.explain.trace_account import (
    DEVICE_PARTS,
    device_parts,
)
from deltacell.profile.explain.trace_evidence import kernels_sentence, loader_sentence
from deltacell.profile.explain.trace_tables import change_table, trace_tables
from deltacell.profile.explain.words import (
    change_text,
    listed,
    ratio_text,
    seconds_text,
    share_text,
    short_name,
)
from deltacell.profile.limits import steady_steps
from deltacell.profile.trace.attribution import RanksAttribution
from deltacell.words import count_text

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
        _sentence(compared, noise, causes)
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


def _sentence(compared: Comparison, noise: Difference | None, causes: list[Cause]) -> str:
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
    """Return what makes the difference of two traces; of runs the waterfall says it."""
    if a.traces is None or b.traces is None or a.run is not None or b.run is not None:
        return []
    views = View(a.name, a.traces), View(b.name, b.traces)
    return causes_of_two(*views, compared.steps)


def _cause(fall: Waterfall) -> str:
    """Return which bar explains the gap, how much of it, and what counteracts it."""
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
    """Return how the steps of both differ beside noise; None where they are not known."""
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
    """Return what is to be added of epochs, where it is another ratio than that of steps."""
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
    """Return that the two computed with unequal threads, which changes the time of every part."""
    a, b = (account.facts.get(THREADS) for account in (compared.a, compared.b))
    if a is None or b is None or a == b:
        return ""
    return (
        f" {compared.b.name} computed with {count_text(b, 'thread')} a process and "
        f"{compared.a.name} with {a}, which can change every part."
    )


def _uneven(a: Subject, b: Subject) -> dict[str, str]:
    """Return why the runs whose steps became slower in every part are doubted, by name."""
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
    """Return what the traces of both show, in sentences and as tables."""
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
    """Return what the host does by name, whatever it is for."""
    found: dict[str, float] = {}
    for named in view.host.values():
        for name, seconds in named.items():
            found[name] = found.get(name, 0.0) + seconds
    return found


def _only_in_one(a: View, b: View) -> list[str]:
    """Return what only one of them does, where it takes more than a hundredth of its step."""
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
