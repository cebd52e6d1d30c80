"""Reconcile measurements that disagree: what each supports, and what adds up to the epoch."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from typing import Any

from deltacell.profile.explain import reconcile_sentences as sentences
from deltacell.profile.explain.account import Account, Comparison, compare
from deltacell.profile.explain.contradictions import (
    CLOSE,
    Contradiction,
    DifferentData,
    OutsideTheSteps,
    StepsLongerThanEpoch,
    contradictions_of,
)
from deltacell.profile.explain.figures import Figure
from deltacell.profile.explain.measurements import Side, read_measurements

NOT_MEASURED = "not measured (validation, figures, checkpoints)"  # the rest of an epoch


def reconcile(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return one consistent account of the measurements in a YAML file, JSON-serialisable.

    ``comparison`` is the waterfall between the ``accounts`` of the two trainings, or None if no
    step of the real training was measured. ``advice`` lists what to measure.
    """
    content = read_measurements(path)
    a = content.a
    b = content.b
    figures = [Figure(measurement, content) for measurement in content.measurements]
    epoch = _first(figures, "epoch seconds")
    training = _first(figures, "it/s", "ms per step")
    accounts = _accounts(figures, epoch, training)
    comparison = compare(*accounts) if accounts else None
    same_data = _cover_same_data(a, b)
    contradictions: list[Contradiction] = []
    if same_data is False:
        contradictions.append(DifferentData(None, a, b))
    for figure in figures:
        contradictions += contradictions_of(figure, training)
    contradictions += _of_accounts(comparison, epoch)
    return {
        "sentence": _sentence(a, b, figures, comparison, epoch),
        "evidence": _evidence(a, b, comparison, same_data),
        "a": a.name,
        "b": b.name,
        "advice": _advice(comparison, epoch, training),
        "measurements": [figure.to_json() for figure in figures],
        "contradictions": [_to_json(contradiction) for contradiction in contradictions],
        "accounts": [account.to_json() for account in accounts],
        "comparison": None if comparison is None else comparison.to_json(),
    }


def _cover_same_data(a: Side, b: Side) -> bool | None:
    """Return whether epochs of both trainings have the same samples; None if unknown.

    The last step of an epoch may be short, so each number is known up to one step.
    """
    if not a.samples_per_epoch or not b.samples_per_epoch:
        return None
    more = a.samples_per_epoch - b.samples_per_epoch
    return -(b.samples_per_step or 0) < more < (a.samples_per_step or 0)


def _of_accounts(comparison: Comparison | None, epoch: Figure | None) -> Iterator[Contradiction]:
    if comparison is None or comparison.epoch_ratio is None or epoch is None:
        return
    a = comparison.a
    b = comparison.b
    ratio = comparison.epoch_ratio
    if min(a.outside_s, b.outside_s) < 0:
        yield StepsLongerThanEpoch(None, a if a.outside_s < 0 else b)
    elif not math.isclose(ratio.of_steps, ratio.epoch, rel_tol=CLOSE):
        yield OutsideTheSteps(None, a, b, ratio)


def _sentence(
    a: Side,
    b: Side,
    figures: list[Figure],
    comparison: Comparison | None,
    epoch: Figure | None,
) -> str:
    if comparison is None:
        return sentences.not_reconciled_sentence(a, b, figures)
    if comparison.epoch_ratio is None or epoch is None:
        return sentences.steps_sentence(comparison.a, comparison.b, comparison.steps)
    return sentences.epochs_sentence(comparison.a, comparison.b, comparison.epoch_ratio)


def _evidence(a: Side, b: Side, comparison: Comparison | None, same_data: bool | None) -> list[str]:
    evidence = []
    if comparison is not None and comparison.epoch_ratio is not None:
        evidence.append(f"{comparison.epoch_ratio.line}.")
    if comparison is not None and _has_parts(comparison):
        evidence += [sentences.step_sentence(comparison.a), sentences.step_sentence(comparison.b)]
        evidence.append(sentences.MARGINAL_COSTS)
    if same_data:
        evidence.append(sentences.same_data_sentence(a, b))
    return evidence


def _advice(
    comparison: Comparison | None,
    epoch: Figure | None,
    training: Figure | None,
) -> list[str]:
    advice = []
    ratio = None if comparison is None else comparison.epoch_ratio
    if ratio is not None and max(ratio.outside_share_a, ratio.outside_share_b) > 0.1:
        advice.append(sentences.TIME_OUTSIDE)
    if epoch is None:
        advice.append(sentences.MEASURE_EPOCH)
    if training is None:
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


def _first(figures: list[Figure], *measured: str) -> Figure | None:
    return next((figure for figure in figures if figure.measurement.measured in measured), None)


def _accounts(
    figures: list[Figure],
    epoch: Figure | None,
    training: Figure | None,
) -> list[Account]:
    """Return the accounts of both trainings; none if no step of them was measured.

    A step is split by the loader alone and by the loader with the forward, if these were measured
    with the models and batches of the real training.
    """
    if training is None or training.ratio("step") is None:
        return []
    usable = [figure for figure in figures if figure.supports is not None and figure.is_as_trained]
    loader = _first(usable, "loader only")
    forward = None if loader is None else _forward_like(loader, usable)
    accounts = []
    for index, reading in enumerate(training.sides):
        step = reading.times.step or 0.0
        parts = {"training step": step}
        if loader is not None:
            loading = loader.sides[index].times.step or 0.0
            both = loading
            parts = {"data loading": loading}
            if forward is not None:
                both = forward.sides[index].times.step or 0.0
                parts["forward"] = both - loading
            parts["rest of the step"] = step - both
        side = reading.side
        outside = {}
        epoch_s = None if epoch is None else epoch.sides[index].times.epoch
        if epoch_s is not None and side.steps_per_epoch:
            outside = {NOT_MEASURED: epoch_s - side.steps_per_epoch * step}
        facts = {"batch": side.batch, "ranks": side.ranks, "parameters": side.parameters}
        account = Account(
            side.name,
            "figures",
            parts,
            side.samples_per_step,
            side.steps_per_epoch,
            outside,
            facts=facts,
        )
        accounts.append(account)
    return accounts


def _forward_like(loader: Figure, usable: list[Figure]) -> Figure | None:
    """Return loader and forward, measured on as many ranks as the loader alone."""
    ranks = [side.reading.ranks for side in loader.sides]
    alike = [
        figure
        for figure in usable
        if figure.measurement.mode == "forward"
        and [side.reading.ranks for side in figure.sides] == ranks
    ]
    return _first(alike, "loader+model")
