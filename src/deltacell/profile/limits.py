"""A sentence on what limits a run, by its phases."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from deltacell.base.text import capital, seconds_text, share_text
from deltacell.profile.phase_rows import PhaseSummary, PhaseTime, Uneven

NO_STEP = "No training step was timed, so it is unknown what limits this run."
_SUBJECTS = {
    "data_wait": "waiting for data takes",
    "transfer": "transfer to the device takes",
    "loss": "the loss takes",
    "communication": "communication of gradients takes",
    "optimizer": "the optimizer takes",
    "checkpoint": "checkpoints and figures take",
    "other": "work in no named phase takes",
}


def limits_sentence(summary: PhaseSummary) -> str:
    """Return what takes the time of a run, the largest part first."""
    if not summary.steps or not summary.wall_s > 0:
        return NO_STEP
    return f"{capital('; '.join(_clauses(summary)))}."


def limits_of_fit(seconds: Mapping[str, float]) -> str:
    """Return what takes the time of a fit, given the seconds of its phases; the largest first."""
    whole = sum(seconds.values())
    first, *others = sorted(seconds, key=lambda phase: -seconds[phase])
    times = f"{seconds_text(seconds[first])} of {seconds_text(whole)}"
    share = seconds[first] / whole if whole > 0 else 0.0
    clauses = [f"phase '{first}' takes {share_text(share)} of the fit ({times})"]
    if others and whole > 0:
        clauses.append(f"phase '{others[0]}' takes {share_text(seconds[others[0]] / whole)}")
    return f"{capital('; '.join(clauses))}."


def _clauses(summary: PhaseSummary) -> Iterator[str]:
    largest, second = sorted(summary.phases, key=lambda time: -time.share)[:2]
    validation = summary.of("validation").run_share
    checkpoint = summary.of("checkpoint").run_share
    outside = validation + checkpoint
    lead = _takes(largest, of=_of_step(largest, summary, outside))
    if outside > 0.25:
        beside = _outside_steps(outside, validates=validation >= checkpoint)
        is_first = outside > largest.run_share
        yield from (beside, lead) if is_first else (lead, beside)
    else:
        yield lead
    for phase, least in (("communication", 0.20), ("other", 0.10)):
        if summary.of(phase) is not largest and summary.of(phase).share > least:
            yield _takes(summary.of(phase))
    yield _takes(second if largest.phase == "data_wait" else summary.of("data_wait"))
    if summary.steps == 1:
        yield "this is based on a single step"
    if summary.residual > 0.01:
        yield f"beware that the phases differ from the wall time by {share_text(summary.residual)}"
    if summary.uneven is not None and summary.uneven.is_everywhere:
        yield _machine_changed(summary.uneven)


def _takes(time: PhaseTime, of: str = "") -> str:
    subject = _SUBJECTS.get(time.phase, f"{time.phase} takes")
    return f"{subject} {share_text(time.share)}{of}{_what_to_do(time)}"


def _what_to_do(time: PhaseTime) -> str:
    if time.phase == "data_wait" and time.share > 0.1:
        return ", and mode=data shows the loader alone"
    if time.phase == "communication" and time.share > 0.2:
        return ", which a larger data.batch_size or fewer ranks reduce"
    if time.phase == "other" and time.share > 0.1:
        return ", and profiler.trace=true shows what it is"
    return ""


def _of_step(time: PhaseTime, summary: PhaseSummary, outside: float) -> str:
    whole = "a step" if outside > 0.25 else "the time"
    step = f"{seconds_text(time.ms_per_step / 1e3)} of {seconds_text(summary.ms_per_step / 1e3)}"
    sample = f", {seconds_text(time.us_per_sample / 1e6)} per sample" if summary.samples else ""
    return f" of {whole} ({step} per step{sample})"


def _outside_steps(share: float, *, validates: bool) -> str:
    if validates:
        lever = "a larger trainer.validate_every reduces"
    else:
        lever = "trainer.figures_every=0 or a larger trainer.checkpoint_every_minutes reduces"
    return f"validation, checkpoints and figures take {share_text(share)} of the run, which {lever}"


def _machine_changed(uneven: Uneven) -> str:
    times = f"{seconds_text(uneven.fast_s)} to {seconds_text(uneven.slow_s)} per step"
    return (
        f"beware that every large part of the steps slowed down during the run ({times}), so the"
        " load of the machine probably changed"
    )
