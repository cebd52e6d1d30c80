"""The first sentence about two traces, or about a run and a trace, made from values.

It takes at most two lines of a terminal if it says that there are two programs, or more passes of
one; what it leaves out then follows as evidence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from deltacell.base.text import fitting_text, ratio_text
from deltacell.profile.explain import sentences
from deltacell.profile.explain.account import OUTSIDE, SAME_SAMPLES, Account, Comparison
from deltacell.profile.explain.causes import BusyTime, Cause, CauseKind, MorePasses, TwoPrograms
from deltacell.profile.explain.certain import Certain
from deltacell.profile.explain.noise import Difference
from deltacell.profile.explain.runs import SAME


@dataclass(frozen=True)
class Headline:
    """The first sentence about two traces, and the sentences that did not fit into its lines."""

    sentence: str
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True)
class TracePair:
    """What is known of the difference between two traces, or between a run and a trace.

    ``alike`` are the two programs if both take equally long, and ``stacks`` is a clause that asks
    for recorded stacks.
    """

    compared: Comparison
    noise: Difference | None
    cause: Cause | None
    certain: Sequence[Certain] = ()
    alike: TwoPrograms | None = None
    ranks: str | None = None  # which ranks each of them has, if these differ
    stacks: str = ""

    @property
    def is_alike(self) -> bool:
        """Whether both take the same time, as far as noise allows to tell."""
        ratio = self.compared.steps.ratio
        return self.is_noise or (ratio is not None and abs(ratio - 1) <= SAME)

    @property
    def is_noise(self) -> bool:
        """Whether the difference is not beyond noise."""
        return self.noise is not None and not self.noise.is_beyond

    @property
    def sample_ratio(self) -> float | None:
        """The ratio of B to A per sample, if steps are compared and differ in their samples."""
        a = self.compared.a
        b = self.compared.b
        is_known = self.compared.steps.per == "step" and a.sample_s and b.sample_s
        if not is_known or not differ_in_samples(a, b):
            return None
        return (b.sample_s or 0.0) / (a.sample_s or 1.0)


def differ_in_samples(a: Account, b: Account) -> bool:
    """Return whether a step of one has more samples, by more than a short last batch explains."""
    samples_a = a.samples_per_step or 0.0
    samples_b = b.samples_per_step or 0.0
    return abs(samples_a - samples_b) > SAME_SAMPLES * max(samples_a, samples_b)


def headline(pair: TracePair) -> Headline:
    """Return the first sentence about two traces: how much longer B takes, and why.

    That the ranks differ stays in it, unless it is about two programs or more passes.
    """
    clause = f"{_clause(pair)}."
    details = _details(pair)
    ranks = [] if pair.ranks is None else [sentences.ranks_differ_sentence(pair.ranks)]
    whole = " ".join([clause, *details, *ranks])
    if pair.compared.steps.ratio is None:
        return Headline(whole)
    short = _alike_in_short(pair) if pair.is_alike else _slower_in_short(pair)
    if short:
        left_out = [*_left_out_of_short(pair), *_details(pair, with_programs=False), *ranks]
    else:
        short = [" ".join([clause, *ranks])]
        left_out = details
    sentence = fitting_text(whole, *short)
    return Headline(sentence, () if sentence == whole else tuple(left_out))


def _clause(pair: TracePair) -> str:
    """Return by how much the two differ and why, without a full stop."""
    fall = pair.compared.steps
    a = pair.compared.a.name
    b = pair.compared.b.name
    if fall.ratio is None:
        return sentences.no_time_sentence(a, b).removesuffix(".")
    if pair.is_alike:
        return sentences.noise_clause(fall, pair.noise, a, b)
    cause = sentences.parts_clause(fall)
    if pair.cause is not None:
        cause = sentences.cause_clause(pair.cause, a)
    return sentences.slower_clause(fall, fall.ratio, pair.noise, f"{cause}{pair.stacks}", a, b)


def _details(pair: TracePair, *, with_programs: bool = True) -> list[str]:
    """Return the sentences that follow the first clause: epochs, programs and samples."""
    details = []
    epochs = _epochs(pair)
    if epochs is not None:
        details.append(epochs)
    certain = pair.certain
    if pair.alike is not None:
        if with_programs:
            details.append(sentences.all_the_same_sentence(pair.alike))
        certain = [part for part in pair.certain if isinstance(part, BusyTime)]
    details += [sentences.certain_sentence(part) for part in certain]
    per_sample = sentences.per_sample_sentence(pair.compared.a, pair.compared.b)
    if per_sample is not None and pair.sample_ratio is not None:
        details.append(per_sample)
    return details


def _epochs(pair: TracePair) -> str | None:
    """Return how epochs differ otherwise than steps; None if they do not."""
    epochs = pair.compared.epochs
    ratio = pair.compared.epoch_ratio
    of_steps = pair.compared.steps.ratio
    close = 0.25 if pair.is_noise else SAME
    if epochs is None or ratio is None or of_steps is None:
        return None
    if abs(ratio.epoch / of_steps - 1) <= close:
        return None
    sign = 1 if epochs.gap >= 0 else -1
    most = max(epochs.bars, key=lambda bar: bar.change * sign)
    is_most = most.part.startswith(OUTSIDE) and abs(most.change) > abs(epochs.gap) / 2 > 0
    return sentences.epochs_sentence(epochs, ratio, most if is_most else None)


def _slower_in_short(pair: TracePair) -> list[str]:
    """Return shorter first sentences about two programs or more passes; none of other causes."""
    evidence = None if pair.cause is None else pair.cause.evidence
    match evidence:
        case TwoPrograms() as programs:
            reasons = [_programs(programs, of_both=of_both) for of_both in (True, False)]
        case MorePasses() as passes:
            reasons = [sentences.more_passes_in_short(passes)]
        case _:
            return []
    fall = pair.compared.steps
    ratio = ratio_text(fall.ratio or 0.0)
    a = pair.compared.a.name
    b = pair.compared.b.name
    per_sample = ""
    if pair.sample_ratio is not None:
        per_sample = f", and {ratio_text(pair.sample_ratio)} as long per sample"
    heads = [
        f"{b} takes {ratio} as long per {fall.per} as {a} {sentences.against(fall)}{per_sample}",
        f"{b} takes {ratio} as long per {fall.per} as {a}{per_sample}",
        f"The second takes {ratio} as long per {fall.per} as the first{per_sample}",
    ]
    return [f"{head}: {reason}." for head in heads for reason in reasons]


def _alike_in_short(pair: TracePair) -> list[str]:
    """Return shorter first sentences about two traces that take equally long and yet differ."""
    if pair.alike is not None:
        reasons = [_programs(pair.alike, of_both=of_both) for of_both in (True, False)]
        last_reason = sentences.two_programs_in_short(
            pair.alike,
            of_both=False,
            a="the first",
            b="the second",
        )
    elif pair.certain:
        last_reason = sentences.certain_in_short(pair.certain[0])
        reasons = [last_reason]
    else:
        return []
    fall = pair.compared.steps
    none = "There is no difference beyond noise"
    times = sentences.against(fall)
    both = f"{pair.compared.b.name} and {pair.compared.a.name}"
    heads = [
        f"{none} between {both} per {fall.per} {times}",
        f"{none} between the two per {fall.per} {times}",
        f"{none} between the two per {fall.per}",
    ]
    texts = [f"{head}, but {reason}." for head in heads for reason in reasons]
    return [*texts, f"{heads[-1]}, but {last_reason}."]


def _programs(programs: TwoPrograms, *, of_both: bool) -> str:
    return sentences.two_programs_in_short(
        programs,
        of_both=of_both,
        a=programs.a,
        b=programs.b,
    )


def _left_out_of_short(pair: TracePair) -> list[str]:
    """Return what a shorter first sentence leaves out of the clause that it replaces."""
    evidence = None if pair.cause is None else pair.cause.evidence
    texts = []
    if pair.is_alike:
        evidence = pair.alike
        texts += [] if pair.noise is None else [sentences.detectable_sentence(pair.noise)]
    match evidence:
        case TwoPrograms() as programs:
            texts.append(sentences.own_components_sentence(programs))
            if programs.beside is not None:
                texts.append(sentences.beside_components_sentence(programs.beside))
        case MorePasses(kind=CauseKind.passes) as passes:
            texts.append(sentences.pass_sentence(passes))
    return texts
