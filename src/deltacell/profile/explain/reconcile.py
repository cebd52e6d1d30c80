"""Reconcile measurements that disagree: what each supports, and what adds up to the epoch."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from deltacell.profile.explain import reconcile_sentences as sentences
from deltacell.profile.explain.account import Account, Comparison, compare
from deltacell.profile.explain.contradictions import (
    CLOSE,
    Contradiction,
    DifferentData,
    LoaderAndModel,
    OtherConditions,
    OutsideTheSteps,
    StepsLongerThanEpoch,
    UnexplainedRest,
    contradictions_between,
    contradictions_of,
    fills_the_epoch,
    missing_backward,
)
from deltacell.profile.explain.figures import Figure, WallClock, wall_clocks
from deltacell.profile.explain.log_values import LogsOfFolder, LogUse, fill_from_logs
from deltacell.profile.explain.measurements import (
    Measurements,
    Side,
    complete_measurements,
    decode_measurements,
    read_yaml,
)

WITH_AROUND = "step with everything around it"
_OF_RATES = (OtherConditions, StepsLongerThanEpoch, UnexplainedRest)
Walls = tuple[WallClock, WallClock]
NOT_MEASURED = "not measured (validation, figures, checkpoints)"  # the rest of an epoch


def reconcile(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return one consistent account of the measurements in a YAML file, JSON-serialisable.

    ``comparison`` is the waterfall between the ``accounts`` of the two trainings, or None if
    neither their epochs nor their steps were measured. ``parts`` is the one between parts of a
    step that were measured on other ranks than the training, which its account leaves out.
    ``advice`` lists what to measure, and ``logs`` what was read from the logs that the file names.
    """
    path = Path(path)
    return reconcile_text(read_yaml(path), path, LogsOfFolder(path.parent))


def reconcile_text(text: bytes | str, path: Path, logs: LogsOfFolder) -> dict[str, Any]:
    """Return the account of the measurements in a YAML text; see `reconcile`."""
    content = decode_measurements(text, path)
    uses = fill_from_logs(content, logs, path)
    complete_measurements(content, path)
    return _reconciled(content, uses)


def _reconciled(content: Measurements, uses: Sequence[LogUse]) -> dict[str, Any]:
    a = content.a
    b = content.b
    walls = wall_clocks(content)
    figures = [Figure(measurement, *walls) for measurement in content.measurements]
    training = _training_steps(figures)
    parts = _parts(figures)
    accounts = _accounts(walls, training, parts)
    comparison = compare(*accounts) if accounts else None
    partial = _compared_parts(figures, parts)
    same_data = _cover_same_data(a, b)
    contradictions: list[Contradiction] = []
    if same_data is False:
        contradictions.append(DifferentData(None, a, b))
    for figure in figures:
        contradictions += contradictions_of(figure)
    contradictions += contradictions_between(figures, parts)
    contradictions += _of_accounts(comparison)
    return {
        "sentence": _sentence(a, b, figures, walls, comparison, partial),
        "evidence": _evidence(a, b, comparison, partial, same_data),
        "a": a.name,
        "b": b.name,
        "advice": _advice(comparison, walls, training, contradictions),
        "measurements": [figure.to_json() for figure in figures],
        "contradictions": [_to_json(contradiction) for contradiction in contradictions],
        "accounts": [account.to_json() for account in accounts],
        "comparison": None if comparison is None else comparison.to_json(),
        "parts": None if partial is None else partial.to_json(),
        "logs": [use.to_json() for use in uses],
    }


def _cover_same_data(a: Side, b: Side) -> bool | None:
    """Return whether epochs of both trainings have the same samples; None if unknown.

    The last step of an epoch may be short, so each number is known up to one step.
    """
    if not a.samples_per_epoch or not b.samples_per_epoch:
        return None
    more = a.samples_per_epoch - b.samples_per_epoch
    return -(b.samples_per_step or 0) < more < (a.samples_per_step or 0)


def _of_accounts(comparison: Comparison | None) -> Iterator[Contradiction]:
    if comparison is None or comparison.epoch_ratio is None:
        return
    a = comparison.a
    b = comparison.b
    ratio = comparison.epoch_ratio
    if (a.outside or b.outside) and not math.isclose(ratio.of_steps, ratio.epoch, rel_tol=CLOSE):
        yield OutsideTheSteps(None, a, b, ratio)


def _sentence(
    a: Side,
    b: Side,
    figures: list[Figure],
    walls: Walls,
    comparison: Comparison | None,
    partial: Comparison | None,
) -> str:
    if comparison is None:
        return sentences.not_reconciled_sentence(a, b, figures)
    if comparison.epoch_ratio is None or any(wall.epoch_s is None for wall in walls):
        sentence = sentences.steps_sentence(comparison.a, comparison.b, comparison.steps)
    elif comparison.a.outside:
        ratio = comparison.epoch_ratio
        sentence = sentences.epochs_sentence(comparison.a, comparison.b, ratio)
    else:
        ratio = comparison.epoch_ratio
        sentence = sentences.whole_epochs_sentence(comparison.a, comparison.b, ratio)
    if partial is None:
        return sentence
    return f"{sentence} {sentences.parts_sentence(partial, partial.b.facts['ranks'])}"


def _evidence(
    a: Side,
    b: Side,
    comparison: Comparison | None,
    partial: Comparison | None,
    same_data: bool | None,
) -> list[str]:
    evidence = []
    if comparison is not None and comparison.epoch_ratio is not None:
        evidence.append(f"{comparison.epoch_ratio.line}.")
    split = partial
    if comparison is not None and _has_parts(comparison):
        split = comparison
    if split is not None:
        evidence += [sentences.step_sentence(split.a), sentences.step_sentence(split.b)]
        evidence.append(sentences.MARGINAL_COSTS)
    if partial is not None and comparison is not None:
        for part, account in ((partial.a, comparison.a), (partial.b, comparison.b)):
            if account.epoch_s:
                evidence.append(sentences.parts_of_epoch_sentence(part, account))
    if same_data:
        evidence.append(sentences.same_data_sentence(a, b))
    return evidence


def _advice(
    comparison: Comparison | None,
    walls: Walls,
    training: Figure | None,
    contradictions: list[Contradiction],
) -> list[str]:
    advice = []
    doubted = {
        contradiction.side.side.name: contradiction.side.side
        for contradiction in contradictions
        if isinstance(contradiction, _OF_RATES)
    }
    if doubted:
        advice.append(sentences.deciding_sentence(list(doubted.values())))
    if any(wall.epoch_s is None for wall in walls):
        advice.append(sentences.MEASURE_EPOCH)
    if training is None and not doubted:
        advice.append(sentences.MEASURE_STEPS)
    if comparison is not None and _has_parts(comparison):
        advice.append(sentences.TIME_PHASES)
    return advice


def _has_parts(comparison: Comparison) -> bool:
    return "data loading" in comparison.a.parts


def _to_json(contradiction: Contradiction) -> dict[str, Any]:
    figure = contradiction.figure
    return {
        "kind": contradiction.kind,
        "measurement": None if figure is None else figure.measurement.name,
        "sentence": sentences.contradiction_sentence(contradiction),
    }


def _training_steps(figures: list[Figure]) -> Figure | None:
    """Return the first figure of steps of both trainings that agrees with the wall clock."""
    for figure in figures:
        is_rate = figure.measurement.measured in ("it/s", "ms per step")
        if is_rate and figure.supports is not None and fills_the_epoch(figure):
            return figure
    return None


def _parts(figures: list[Figure]) -> LoaderAndModel | None:
    """Return the loader alone and with the model, of the models and batches that trained.

    Both are of the same number of ranks; with that of the training, if there is a choice. Nothing
    is split by a loader that takes longer than loader and model together.
    """
    usable = [figure for figure in figures if figure.supports is not None and figure.is_as_trained]
    candidates = []
    for loader in usable:
        if loader.measurement.measured != "loader only":
            continue
        for forward in usable:
            parts = LoaderAndModel(loader, forward)
            is_both = forward.measurement.measured == "loader+model"
            is_alike = _ranks(forward) == _ranks(loader)
            if is_both and is_alike and min(parts.model_s(0), parts.model_s(1)) > 0:
                candidates.append(parts)
    candidates.sort(key=lambda parts: not parts.is_as_trained)
    return candidates[0] if candidates else None


def _ranks(figure: Figure) -> list[int | None]:
    return [side.reading.ranks for side in figure.sides]


def _compared_parts(figures: list[Figure], parts: LoaderAndModel | None) -> Comparison | None:
    """Return the parts of a step that were measured on other ranks than the training."""
    if parts is None or parts.is_as_trained:
        return None
    accounts = []
    for index, side in enumerate(parts.forward.sides):
        reading = side.reading
        account = Account(
            side.side.name,
            "figures",
            _seconds_of(figures, parts, index),
            reading.samples_per_step,
            facts={"batch": reading.batch, "ranks": reading.ranks},
        )
        accounts.append(account)
    return compare(*accounts)


def _seconds_of(figures: list[Figure], parts: LoaderAndModel, index: int) -> dict[str, float]:
    """Return the seconds of a step in the loader and in the model."""
    is_forward = parts.forward.measurement.mode == "forward"
    name = "forward" if is_forward or any(missing_backward(figures, parts)) else "model passes"
    loading = parts.loader.sides[index].times.step or 0.0
    return {"data loading": loading, name: parts.model_s(index)}


def _accounts(
    walls: Walls,
    training: Figure | None,
    parts: LoaderAndModel | None,
) -> list[Account]:
    """Return the accounts of both trainings, which add up to the wall clock.

    Only readings of the training itself are in them. Without a time of its steps that agrees with
    the epoch, a step is the epoch over its steps, with everything around it.
    """
    accounts = []
    for index, wall in enumerate(walls):
        side = wall.side
        step = wall.longest_step_s
        steps: dict[str, float] = {} if step is None else {WITH_AROUND: step}
        outside = {}
        if training is not None:
            step = training.sides[index].times.step or 0.0
            steps = {"training step": step}
            if wall.epoch_s is not None and side.steps_per_epoch:
                outside = {NOT_MEASURED: wall.epoch_s - side.steps_per_epoch * step}
        if step is None:
            return []
        if parts is not None and parts.is_as_trained:
            steps = _seconds_of([], parts, index)
            steps["rest of the step"] = step - math.fsum(steps.values())
        facts = {
            "batch": side.batch,
            "ranks": side.ranks,
            "parameters": side.parameters,
        }
        account = Account(
            side.name,
            "figures",
            steps,
            side.samples_per_step,
            side.steps_per_epoch,
            outside,
            facts=facts,
        )
        accounts.append(account)
    return accounts
