"""Measurements that disagree, as one account: what each supports, and what adds up to the epoch."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

from deltacell.profile.explain.account import Account
from deltacell.profile.explain.compare import Comparison, compare
from deltacell.profile.explain.contradictions import (
    Contradiction,
    contradictions_of,
    different_data,
    is_close,
)
from deltacell.profile.explain.figures import Figure, figure
from deltacell.profile.explain.measurements import (
    Measured,
    Measurements,
    Mode,
    read_measurements,
)
from deltacell.profile.explain.words import (
    change_text,
    listed,
    ratio_text,
    seconds_text,
    share_text,
)

NOT_MEASURED = "not measured (validation, figures, checkpoints)"
"""The part of an epoch that its steps leave over."""

MARGINAL = (
    "Loader alone, and loader and forward less loader, are marginal costs. Each equals a share of "
    "the step only where loader and compute do not overlap; the rest of the step is what is left "
    "of the real step, waiting for other ranks included."
)


@dataclass(frozen=True)
class Reconciliation:
    """One consistent account of measurements that disagree.

    Parameters
    ----------
    given
        The measurements.
    figures
        What each says, and which ratio it really supports; in the order of the file.
    contradictions
        What is wrong or missing, each in a sentence.
    comparison
        The two trainings as accounts that add up, and the waterfall between them; None where no
        step of the real training was measured.
    sentence
        The answer.
    evidence
        Where it comes from, in sentences.
    advice
        What to measure next.
    """

    given: Measurements
    figures: tuple[Figure, ...]
    contradictions: tuple[Contradiction, ...]
    comparison: Comparison | None
    sentence: str
    evidence: tuple[str, ...]
    advice: tuple[str, ...]

    def of(self, name: str) -> Figure:
        """Return what the measurement of this name says."""
        return next(one for one in self.figures if one.measurement.name == name)

    def kinds(self) -> set[str]:
        """Return which kinds of contradictions there are."""
        return {one.kind for one in self.contradictions}

    def to_json(self) -> dict[str, Any]:
        """Return it as what JSON can hold."""
        compared = self.comparison
        return {
            "sentence": self.sentence,
            "evidence": list(self.evidence),
            "advice": list(self.advice),
            "a": self.given.a.name,
            "b": self.given.b.name,
            "measurements": [one.to_json() for one in self.figures],
            "contradictions": [one.to_json() for one in self.contradictions],
            "accounts": [] if compared is None else [compared.a.to_json(), compared.b.to_json()],
            "comparison": None if compared is None else compared.to_json(),
        }


def reconcile(measurements: Measurements | str | os.PathLike[str]) -> Reconciliation:
    """Return one account of measurements that disagree.

    Parameters
    ----------
    measurements
        From `read_measurements`, or the file.
    """
    given = (
        measurements if isinstance(measurements, Measurements) else read_measurements(measurements)
    )
    figures = tuple(figure(one, given) for one in given.measurements)
    epoch = _first(figures, (Measured.epoch,))
    whole = _first(figures, (Measured.rate, Measured.step))
    compared = _comparison(given, figures, epoch, whole)
    found = [one for each in figures for one in contradictions_of(each, given, whole)]
    data = different_data(given)
    if data is not None:
        found.insert(0, data)
    found += _residual(given, compared, epoch)
    return Reconciliation(
        given,
        figures,
        tuple(found),
        compared,
        _sentence(given, figures, compared, epoch),
        tuple(_evidence(given, compared, epoch)),
        tuple(_advice(compared, epoch, whole)),
    )


def _first(figures: tuple[Figure, ...], kinds: tuple[Measured, ...]) -> Figure | None:
    return next((one for one in figures if one.measurement.measured in kinds), None)


def _comparison(
    given: Measurements,
    figures: tuple[Figure, ...],
    epoch: Figure | None,
    whole: Figure | None,
) -> Comparison | None:
    """Return the two trainings as accounts that add up to the epoch, as far as it is known."""
    if whole is None or whole.a.step is None or whole.b.step is None:
        return None
    loader, forward = _parts(given, figures)
    accounts = []
    for place, side in enumerate((given.a, given.b)):
        step = (whole.a.step, whole.b.step)[place]
        parts = {"training step": step}
        if loader is not None:
            alone = (loader.a.step, loader.b.step)[place] or 0.0
            parts = {"data loading": alone, "rest of the step": step - alone}
            if forward is not None:
                both = (forward.a.step, forward.b.step)[place] or 0.0
                parts = {
                    "data loading": alone,
                    "forward": both - alone,
                    "rest of the step": step - both,
                }
        outside = {}
        if epoch is not None and side.steps_per_epoch:
            all_of_it = (epoch.a.epoch, epoch.b.epoch)[place] or 0.0
            outside = {NOT_MEASURED: all_of_it - side.steps_per_epoch * step}
        samples = side.batch * side.ranks if side.batch and side.ranks else None
        accounts.append(
            Account(
                side.name,
                "figures",
                parts,
                samples_per_step=samples,
                steps_per_epoch=side.steps_per_epoch,
                outside=outside,
                facts={"batch": side.batch, "ranks": side.ranks, "parameters": side.parameters},
            )
        )
    return compare(accounts[0], accounts[1])


def _parts(given: Measurements, figures: tuple[Figure, ...]) -> tuple[Figure | None, Figure | None]:
    """Return the loader alone, and loader and forward, where they are of the batch that trained."""

    def fits(one: Figure) -> bool:
        sides = ((given.a, one.measurement.a), (given.b, one.measurement.b))
        return one.supports is not None and all(
            side.batch == reading.batch and side.parameters == reading.parameters
            for side, reading in sides
        )

    usable = [one for one in figures if fits(one)]
    loader = _first(tuple(usable), (Measured.loader,))
    if loader is None:
        return None, None
    ranks = (loader.measurement.a.ranks, loader.measurement.b.ranks)
    for one in usable:
        if (
            one.measurement.measured is Measured.loader_and_model
            and one.measurement.mode is Mode.forward
            and (one.measurement.a.ranks, one.measurement.b.ranks) == ranks
        ):
            return loader, one
    return loader, None


def _residual(
    given: Measurements, compared: Comparison | None, epoch: Figure | None
) -> list[Contradiction]:
    if compared is None or epoch is None or compared.epoch_ratio is None:
        return []
    ratio = compared.epoch_ratio
    for account in (compared.a, compared.b):
        if account.outside_s < 0:
            steps = (account.steps_per_epoch or 0) * account.step_s
            return [
                Contradiction(
                    "steps_longer_than_epoch",
                    None,
                    f"The training steps of {account.name} take {seconds_text(steps)} by the time "
                    f"of a step, and its epoch {seconds_text(account.epoch_s or 0.0)}: they are "
                    "not of the same training.",
                )
            ]
    if is_close(ratio.of_steps, ratio.epoch):
        return []
    return [
        Contradiction(
            "outside_the_steps",
            None,
            f"The training steps predict {ratio_text(ratio.of_steps)} per epoch where "
            f"{ratio_text(ratio.epoch)} was observed. The rest lies outside the steps: "
            f"{share_text(ratio.outside_a)} of an epoch of {given.a.name} "
            f"({seconds_text(compared.a.outside_s)}) and {share_text(ratio.outside_b)} of one of "
            f"{given.b.name} ({seconds_text(compared.b.outside_s)}).",
        )
    ]


def _sentence(
    given: Measurements,
    figures: tuple[Figure, ...],
    compared: Comparison | None,
    epoch: Figure | None,
) -> str:
    a, b = given.a.name, given.b.name
    if compared is not None and compared.epoch_ratio is not None and epoch is not None:
        ratio = compared.epoch_ratio
        return (
            f"An epoch of {b} takes {ratio_text(ratio.epoch)} as long as one of {a}, "
            f"{seconds_text(compared.b.epoch_s or 0)} against "
            f"{seconds_text(compared.a.epoch_s or 0)}: {ratio.steps:.3g} times as many steps, each "
            f"{ratio.step:.3g} times as long, predict {ratio_text(ratio.of_steps)}, and the rest "
            f"lies outside the steps, {share_text(ratio.outside_a)} of an epoch of {a} and "
            f"{share_text(ratio.outside_b)} of one of {b}."
        )
    if compared is not None and compared.steps.ratio is not None:
        waterfall = compared.steps
        return (
            f"A {waterfall.per} of {b} takes {ratio_text(compared.steps.ratio)} as long as one of "
            f"{a} in the training steps, {seconds_text(waterfall.b)} against "
            f"{seconds_text(waterfall.a)}; what an epoch takes as a whole was not measured."
        )
    if epoch is not None and epoch.supports is not None:
        return (
            f"An epoch of {b} takes {ratio_text(epoch.supports)} as long as one of {a}; no step "
            "of the training was measured, so where that lies cannot be said."
        )
    valid = [one.support_text for one in figures if one.supports is not None]
    told = f"They support {listed(valid)}" if valid else "None of them supports a ratio"
    return f"{told}; neither an epoch nor a step of the real training of {b} and {a} was measured."


def _evidence(given: Measurements, compared: Comparison | None, epoch: Figure | None) -> list[str]:
    if compared is None:
        return []
    found = []
    if compared.epoch_ratio is not None:
        found.append(f"{compared.epoch_ratio.line}.")
    waterfall = compared.epochs if compared.epochs is not None else compared.steps
    if len(waterfall.bars) > 1 and waterfall.gap:
        bars = [
            f"{bar.part} {change_text(bar.change)} ({share_text(waterfall.share(bar) or 0.0)})"
            for bar in waterfall.bars
        ]
        found.append(
            f"The gap of {seconds_text(waterfall.gap)} per {waterfall.per} is {listed(bars)}."
        )
    if "data loading" in compared.a.parts:
        for account in (compared.a, compared.b):
            terms = [f"{seconds_text(s)} {part}" for part, s in account.parts.items()]
            found.append(
                f"A step of {account.name} takes {seconds_text(account.step_s)} = "
                f"{' + '.join(terms)}."
            )
        found.append(MARGINAL)
    same = different_data(given)
    if same is None and given.a.samples_per_epoch and given.b.samples_per_epoch:
        found.append(
            f"Both epochs go through the same data: {given.a.samples_per_epoch:,.0f} and "
            f"{given.b.samples_per_epoch:,.0f} samples by steps * batch * ranks, which agree but "
            "for the last step."
        )
    return found


def _advice(compared: Comparison | None, epoch: Figure | None, whole: Figure | None) -> list[str]:
    found = []
    if epoch is None:
        found.append("Measure the seconds of an epoch from begin to begin: it is what to explain.")
    if whole is None:
        found.append("Measure steps a second of the real training, after the warm-up.")
    ratio = None if compared is None else compared.epoch_ratio
    if epoch is not None and ratio is not None and max(ratio.outside_a, ratio.outside_b) > 0.1:
        found.append("Time what lies outside the steps: validation, figures, checkpoints.")
    if compared is not None and "data loading" in compared.a.parts:
        found.append(
            "Time the phases of full steps, which add up, in place of differences between modes."
        )
    return found
