"""Explain where the time of a training goes, or why one training is slower than another.

The steps are: read both (`subject`), account for their time (`account`), judge it (`judge`), and
only then write sentences (`sentences`), advice and doubts.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import polars as pl

from deltacell.base.errors import InputError
from deltacell.base.files import JsonObject
from deltacell.base.text import Progress, capital
from deltacell.profile.explain import judge, run_sentences, sentences
from deltacell.profile.explain import subject as subjects
from deltacell.profile.explain.account import (
    FIT,
    OUTSIDE,
    Account,
    Comparison,
    EvidenceTable,
    Waterfall,
    compare,
)
from deltacell.profile.explain.advice import UNEVEN_RUN, advice_on
from deltacell.profile.explain.causes import Cause, CauseKind, NoSetting
from deltacell.profile.explain.certain import Certain, certain_differences
from deltacell.profile.explain.changes import MOSTLY
from deltacell.profile.explain.doubts import doubts_of_one, doubts_of_two, rank_difference
from deltacell.profile.explain.judge import MUCH
from deltacell.profile.explain.noise import Difference, Pace, difference
from deltacell.profile.explain.programs import ProgramPair
from deltacell.profile.explain.ranks import late_rank, straggler
from deltacell.profile.explain.run_components import (
    ComponentGap,
    StepParts,
    leading_component,
    parts_table,
    step_parts,
)
from deltacell.profile.explain.runs import SAME, RatioReason, RunsJudgement, judge_runs
from deltacell.profile.explain.setting_advice import advice_on_changes, advice_on_settings
from deltacell.profile.explain.setting_sentences import changes_sentence, value_texts
from deltacell.profile.explain.settings import SettingChange
from deltacell.profile.explain.split import kernel_changes, split_of
from deltacell.profile.explain.step_cost import EqualBatch, at_equal_batch, step_cost
from deltacell.profile.explain.subject import CATEGORIES, RunTimes, Subject
from deltacell.profile.explain.tables import (
    category_table,
    change_tables,
    components_table,
    phase_table,
    trace_tables,
)
from deltacell.profile.explain.timeline import typical_steps
from deltacell.profile.explain.trace_pair_sentences import TracePair, differ_in_samples, headline
from deltacell.profile.explain.view import View
from deltacell.profile.limits import limits_of_fit, limits_sentence
from deltacell.profile.trace.attribution import RanksAttribution
from deltacell.profile.trace.device import PARTS
from deltacell.profile.trace.host_names import records_nothing


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
    certain: Sequence[Certain] = ()  # what differs between two traces that take equally long
    noise: Difference | None = None
    comparison: Comparison | None = None
    changes: Sequence[SettingChange] = ()  # settings that differ between two runs
    reasons: Sequence[RatioReason] = ()  # why medians or epochs of two runs differ otherwise
    component: ComponentGap | None = None  # that makes most of the gap between two runs
    equal_batch: EqualBatch | None = None  # of two runs with different batches, if it is known
    lead: str | None = None  # what the sentence of two compares: sample, step or epoch
    ratios: Sequence[str] = ()  # other ratios than that of the sentence
    tables: Sequence[EvidenceTable] = ()
    facts: Sequence[Mapping[str, Any]] = ()  # settings and versions, one mapping per account
    timeline: Any = field(default=None, repr=False)

    @property
    def confidence(self) -> str:
        """``low`` if there is any doubt, otherwise ``high``."""
        return "low" if self.doubts else "high"

    def table(self, key: str) -> pl.DataFrame:
        """Return the rows of the table with a key, such as ``operators``."""
        return {table.key: table.frame for table in self.tables}[key]

    def to_json(self) -> JsonObject:
        """Return the explanation as a JSON-serialisable dict."""
        none: dict[str, Any] = {"waterfalls": [], "epoch_ratio": None, "unequal": []}
        lists = ("evidence", "ratios", "advice", "doubts", "warnings")
        name = self.accounts[0].name
        return {
            "sentence": self.sentence,
            "confidence": self.confidence,
            **{name: list(getattr(self, name)) for name in lists},
            "causes": [
                {**asdict(cause), "text": sentences.cause_clause(cause, name)}
                for cause in self.causes
            ],
            "certain": [asdict(difference) for difference in self.certain],
            "changes": [
                {**asdict(change), "texts": list(value_texts(change))} for change in self.changes
            ],
            "lead": self.lead,
            "component": None if self.component is None else asdict(self.component),
            "equal_batch": None if self.equal_batch is None else asdict(self.equal_batch),
            "differences": changes_sentence(self.changes) if self.changes else None,
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
    if b is None:
        subject = subjects.open_subject(a, progress=progress)
        return _explain_fit(subject) if subject.account.source == FIT else _explain_one(subject)
    name_a, name_b = subjects.names_of(Path(a), Path(b))
    first = subjects.open_subject(a, name=name_a, progress=progress)
    second = subjects.open_subject(b, name=name_b, progress=progress)
    for subject in (first, second):
        if subject.account.source == FIT:
            what = f"{subject.name} was fitted in one call, without steps to compare"
            fix = f"Explain it alone: deltacell explain {subject.path}."
            raise InputError(what, code="fitted-run", where=subject.path, fix=fix)
    return _explain_two(first, second)


def _explain_fit(subject: Subject) -> Explanation:
    account = subject.account
    table = EvidenceTable("phases", "where the time of the fit goes", phase_table(account))
    return _complete([subject], sentence=limits_of_fit(account.parts), advice=[], tables=[table])


def _explain_one(subject: Subject) -> Explanation:
    account = subject.account
    run = subject.run
    advice = [] if run is None else advice_on_settings(run.settings)
    tables = [EvidenceTable("categories", "where the time goes", category_table(account))]
    evidence: list[str] = []
    causes: list[Cause] = []
    sentence = ""
    if subject.traces is not None:
        view = View(subject.name, subject.traces.ranks)
        late = late_rank(subject.traces)
        causes = judge.causes_of_one(view, account.parts, late)
        sentence = _lead_sentence(causes, subject.name, [account])
        tables += trace_tables(subject.traces)
        source = "" if run is None else "By its trace, with the profiler on: "
        evidence = [f"{source}{text}" for text in _trace_evidence(subject.traces, view, late)]
    if run is not None:
        by_rank = run.by_rank()
        late_in_run = straggler(by_rank)
        sentence = limits_sentence(run.summary)
        if late_in_run is not None:
            sentence = f"{capital(sentences.straggler_clause(late_in_run))}. {sentence}"
        empty = [part for part in CATEGORIES if not by_rank[part].sum()]
        parts = _parts_of(subject, run)
        if parts is not None:
            samples = account.samples_per_step
            tables.append(parts_table(parts, subject.name, "step_components", samples))
        tables.append(EvidenceTable("ranks", "ms per step of each rank", by_rank.drop(empty)))
    return _complete(
        [subject],
        sentence=sentence,
        evidence=evidence,
        advice=[*advice, *advice_on(_large(_shares(account, causes)), of_run=run is not None)],
        causes=causes[:5],
        tables=tables,
    )


def _lead_sentence(causes: Sequence[Cause], name: str, accounts: Sequence[Account]) -> str:
    """Return the first cause, and the second one if it has a large share."""
    leading = [cause for place, cause in enumerate(causes[:2]) if place == 0 or cause.share > MUCH]
    clauses = [sentences.cause_clause(cause, name) for cause in leading]
    return f"{capital('; '.join(clauses))}{_record_stacks(leading, accounts)}."


def _record_stacks(causes: Sequence[Cause], accounts: Sequence[Account]) -> str:
    """Return a clause on how to see code that records nothing, if a cause is such code."""
    is_hidden = any(cause.name is not None and records_nothing(cause.name) for cause in causes)
    has_stacks = all(account.facts.get("with stacks") for account in accounts)
    return sentences.RECORD_STACKS if is_hidden and not has_stacks else ""


def _explain_two_runs(a: Subject, run_a: RunTimes, b: Subject, run_b: RunTimes) -> Explanation:
    compared = compare(a.account, b.account)
    noise = _noise(a, b, [])
    judged = judge_runs(run_a, run_b, compared, noise)
    fall = judged.lead
    if fall.ratio is None:
        sentence = sentences.no_time_sentence(a.name, b.name)
    elif judged.cause is None:
        sentence = run_sentences.same_sentence(
            fall,
            judged.changes,
            a.name,
            b.name,
            is_recorded=judged.is_recorded,
        )
    else:
        sentence = run_sentences.slower_sentence(fall, fall.ratio, judged.cause, a.name, b.name)
    views = [View(side.name, side.traces.ranks) for side in (a, b) if side.traces is not None]
    ranks = rank_difference(a, b)
    reasons = [run_sentences.reason_sentence(reason) for reason in judged.reasons]
    if fall.per == "epoch":
        reasons = [run_sentences.NO_DIFFERENCE_PER_SAMPLE]
    ratios = [] if noise is None else [run_sentences.interval_sentence(noise)]
    if compared.epoch_ratio is not None:
        ratios.append(f"{compared.epoch_ratio.line}.")
    equal = _equal_batch(a, run_a, b, run_b)
    if equal is not None:
        ratios.append(run_sentences.equal_batch_sentence(equal, a.name, b.name))
    parts_a = _parts_of(a, run_a)
    parts_b = _parts_of(b, run_b)
    component = None
    if parts_a is not None and parts_b is not None and judged.cause is not None:
        component = _leading_component(compared, parts_a, parts_b)
    return _complete(
        [a, b],
        sentence=sentence,
        evidence=[
            *([] if component is None else [run_sentences.component_sentence(component)]),
            *reasons,
            *([] if ranks is None else [sentences.ranks_differ_sentence(ranks)]),
            *_trace_pair_evidence(views, None if judged.cause is None else judged.cause.kind),
        ],
        ratios=ratios,
        advice=_run_advice(judged, a.name, run_a, run_b),
        doubts=list(doubts_of_two(a, b, compared.steps, noise)),
        causes=[] if judged.cause is None else [judged.cause],
        noise=noise,
        comparison=compared,
        lead=fall.per,
        changes=judged.changes,
        reasons=judged.reasons,
        component=component,
        equal_batch=equal,
        tables=[*_pair_tables(a, b, views), *_component_tables((a, parts_a), (b, parts_b))],
    )


def _parts_of(subject: Subject, run: RunTimes) -> StepParts | None:
    return step_parts(run.components, run.steady_rows, subject.account)


def _leading_component(compared: Comparison, a: StepParts, b: StepParts) -> ComponentGap | None:
    per = compared.steps.per
    sizes = (1.0, 1.0)
    if per == "sample":
        sizes = (compared.a.samples_per_step or 1.0, compared.b.samples_per_step or 1.0)
    return leading_component(a, b, sizes, per)


def _component_tables(
    a: tuple[Subject, StepParts | None],
    b: tuple[Subject, StepParts | None],
) -> list[EvidenceTable]:
    tables = []
    for (subject, parts), key in ((a, "step_components_a"), (b, "step_components_b")):
        if parts is not None:
            samples = subject.account.samples_per_step
            tables.append(parts_table(parts, subject.name, key, samples))
    return tables


def _equal_batch(a: Subject, run_a: RunTimes, b: Subject, run_b: RunTimes) -> EqualBatch | None:
    """Return how long steps would take at an equal batch, if the batches differ."""
    samples_a = a.account.samples_per_step
    samples_b = b.account.samples_per_step
    if not samples_a or not samples_b or not differ_in_samples(a.account, b.account):
        return None
    return at_equal_batch(
        (a.name, step_cost(run_a.summary.steady), samples_a, a.account.step_s),
        (b.name, step_cost(run_b.summary.steady), samples_b, b.account.step_s),
    )


def _run_advice(judged: RunsJudgement, name_a: str, a: RunTimes, b: RunTimes) -> list[str]:
    """Return what to try about the slower one of two runs: its settings, then its parts.

    Settings of the faster run are advised only if they explain the difference.
    """
    if judged.cause is None:
        return []
    changes = () if isinstance(judged.cause.evidence, NoSetting) else judged.changes
    if judged.lead.gap < 0:
        backwards = [replace(change, a=change.b, b=change.a) for change in changes]
        return [f"{name_a}: {text}" for text in advice_on_changes(a.settings, backwards)]
    parts = advice_on(_large(_slower_parts([judged.lead], [])), of_run=True)
    return [*advice_on_changes(b.settings, changes), *parts]


def _pair_tables(a: Subject, b: Subject, views: list[View]) -> list[EvidenceTable]:
    tables = []
    if len(views) == 2 and ProgramPair(*views).are_two_programs:
        samples_a = a.account.samples_per_step
        samples_b = b.account.samples_per_step
        tables.append(components_table(views[0], views[1], samples_a, samples_b))
    for subject, key in ((a, "categories_a"), (b, "categories_b")):
        title = f"where the time of {subject.name} goes"
        tables.append(EvidenceTable(key, title, category_table(subject.account)))
    if len(views) == 2:
        tables += change_tables(views[0], views[1])
    return tables


def _explain_two(a: Subject, b: Subject) -> Explanation:
    if a.run is not None and b.run is not None:
        return _explain_two_runs(a, a.run, b, b.run)
    compared = compare(a.account, b.account)
    views = [View(side.name, side.traces.ranks) for side in (a, b) if side.traces is not None]
    only_traces = len(views) == 2 and a.run is None and b.run is None
    causes = judge.causes_of_two(views[0], views[1], compared.steps) if only_traces else []
    noise = _noise(a, b, views if only_traces else [])
    trace_pair = TracePair(
        compared,
        noise,
        causes[0] if causes else None,
        ranks=rank_difference(a, b),
        stacks=_record_stacks(causes[:1], [a.account, b.account]),
    )
    if only_traces and trace_pair.is_alike:
        programs = ProgramPair(*views)
        trace_pair = replace(
            trace_pair,
            certain=certain_differences(programs),
            # Two programs have other operations anyway.
            alike=judge.two_programs(programs) if programs.are_two_programs else None,
        )
    first = headline(trace_pair)
    per_sample = sentences.per_sample_sentence(a.account, b.account)
    is_per_step = per_sample is not None and compared.steps.per == "step"
    slower = {} if trace_pair.is_noise else _slower_parts(compared.falls, causes)
    return _complete(
        [a, b],
        sentence=first.sentence,
        evidence=[*first.left_out, *_pair_evidence(compared, noise, views, causes)],
        ratios=[per_sample] if per_sample is not None and is_per_step else [],
        advice=advice_on(_large(slower), of_run=b.run is not None),
        doubts=list(doubts_of_two(a, b, compared.steps, noise)),
        causes=causes[:5],
        certain=trace_pair.certain,
        noise=noise,
        comparison=compared,
        lead=compared.steps.per,
        tables=_pair_tables(a, b, views),
    )


def _complete(
    subjects: list[Subject],
    *,
    advice: list[str],
    doubts: Sequence[str] = (),
    **rest: Any,
) -> Explanation:
    """Return an explanation with the doubts, warnings and facts of each subject."""
    doubts = [*doubts]
    warnings: list[str] = []
    for subject in subjects:
        prefix = f"{subject.name}: " if len(subjects) > 1 else ""
        for uneven in subject.run.uneven(everywhere=True) if subject.run is not None else ():
            doubts.insert(0, f"{prefix}{uneven}")
            advice = [*advice, UNEVEN_RUN]
        doubts += dict.fromkeys(f"{prefix}{doubt}" for doubt in doubts_of_one(subject))
        warnings += [f"{prefix}{warning}" for warning in subject.account.warnings]
    low = [f"Confidence is low: {doubt}." for doubt in doubts]
    traces = [(subject.name, subject.traces) for subject in subjects if subject.traces is not None]
    return Explanation(
        **rest,
        accounts=[subject.account for subject in subjects],
        advice=list(dict.fromkeys(advice)),
        doubts=doubts,
        warnings=list(dict.fromkeys([*low, *warnings])),
        facts=[subject.facts for subject in subjects],
        timeline=typical_steps(traces),
    )


def _noise(a: Subject, b: Subject, views: list[View]) -> Difference | None:
    """Compare the steps of two traces, or of two runs per sample; None if that is impossible."""
    if views:
        return difference(views[0].times, views[1].times, _pace(*views))
    if a.run is None or b.run is None:
        return None
    if a.run.summary.samples_per_s is None or b.run.summary.samples_per_s is None:
        return None
    seconds_a = a.run.summary.steady["wall_s"].to_numpy() / (a.account.samples_per_step or 1.0)
    seconds_b = b.run.summary.steady["wall_s"].to_numpy() / (b.account.samples_per_step or 1.0)
    return difference(seconds_a, seconds_b)


def _pace(a: View, b: View) -> Pace:
    """Return what sets the pace of the steps of two traces.

    A step whose device mostly waits is as steady as the host.
    """
    if not a.parts or not b.parts:
        return Pace("host", a.operator_spread, b.operator_spread)
    if min(a.computing_share, b.computing_share) >= MOSTLY:
        return Pace("device", a.kernel_spread, b.kernel_spread)
    return Pace("device")


def _pair_evidence(
    compared: Comparison,
    noise: Difference | None,
    views: list[View],
    causes: list[Cause],
) -> Iterator[str]:
    if noise is not None:
        yield sentences.bootstrap_sentence(noise)
    if compared.epoch_ratio is not None:
        yield f"{compared.epoch_ratio.line}."
    yield from _trace_pair_evidence(views, causes[0].kind if causes else None)


def _trace_pair_evidence(views: list[View], lead: CauseKind | None) -> Iterator[str]:
    if len(views) < 2:
        return
    loader_a = views[0].ranks[0].loader
    loader_b = views[1].ranks[0].loader
    if loader_a.names and loader_b.names:
        yield sentences.loaders_sentence(loader_a.per_step / 1e9, loader_b.per_step / 1e9)
    has_devices = bool(views[0].parts and views[1].parts)
    if has_devices:
        yield sentences.kernels_sentence(views[0].kernels, views[1].kernels)
    if lead not in (CauseKind.programs, CauseKind.model):
        # Calls of one name in two programs need not have anything in common.
        changes = kernel_changes(*views) if has_devices else ProgramPair(*views).operators
        split = split_of(changes)
        if split.change:
            yield sentences.split_sentence(split, "kernels" if has_devices else "operators")
    if lead in (CauseKind.machine, CauseKind.unknown):
        yield sentences.THREADS_UNKNOWN


def _trace_evidence(traces: RanksAttribution, view: View, late: Cause | None) -> Iterator[str]:
    if view.parts:
        yield sentences.device_parts_sentence(view.parts)
    if view.parts and len(traces.ranks) > 1:
        shares = traces.device.select(pl.col(part) / pl.col("wall") for part in PARTS)
        yield sentences.device_of_ranks_sentence(shares.mean().row(0, named=True))
    if late is not None and 0.01 < late.share <= MUCH:
        yield f"{capital(sentences.cause_clause(late, view.name))}."
    loader = traces.ranks[0].loader
    if loader.names:
        yield sentences.loader_sentence(loader.per_step / 1e9, loader.share)
    else:
        yield sentences.NO_LOADER


def _shares(account: Account, causes: list[Cause]) -> dict[str, float]:
    """Return the shares of what could be made faster: the causes, then the largest parts.

    With a device, the host's work is not what takes the time, except for the loader.
    """
    shares: dict[str, float] = {cause.kind: cause.share for cause in causes}
    parts = sorted(account.parts, key=lambda name: -account.parts[name])[:3]
    if account.source == "trace" and account.facts["has a device"]:
        parts = ["data loading"]
    shares |= {part: account.parts.get(part, 0.0) / (account.step_s or 1.0) for part in parts}
    outside = sorted(account.outside.items(), key=lambda item: -item[1])
    for part, seconds in outside:
        shares[f"{OUTSIDE}{part}"] = seconds / (account.epoch_s or 1.0)
    return shares


def _slower_parts(falls: Sequence[Waterfall], causes: list[Cause]) -> dict[str, float]:
    """Return the shares of the gap of the first cause and of the parts that take longer in B."""
    shares: dict[str, float] = {cause.kind: 1.0 for cause in causes[:1] if cause.seconds > 0}
    for fall in falls:
        if _is_slower(fall):
            for bar in fall.bars[:4]:
                shares[bar.part] = max(shares.get(bar.part, 0.0), bar.share or 0.0)
    return shares


def _is_slower(fall: Waterfall) -> bool:
    return fall.gap > 0 and fall.gap >= SAME * fall.a


def _large(shares: Mapping[str, float]) -> list[str]:
    """Return the names of large shares, without saying whether they lie outside the steps."""
    return [part.removeprefix(OUTSIDE) for part, share in shares.items() if share > MUCH]
