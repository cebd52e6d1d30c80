"""What a comparison tries: both trainings, each change made alone, modes, and variations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Literal

from deltacell.base.errors import InputError
from deltacell.models.variation import Variation, VariationKind
from deltacell.train.comparing.differences import ConfigDifference, differences
from deltacell.train.comparing.sides import TriedSide
from deltacell.train.config import Config
from deltacell.train.config.compose import with_settings
from deltacell.train.places import flat_values

SideName = Literal["a", "b"]
ALL = "all changes"
PART_MODES = ("data", "forward", "step")  # beside the mode of a whole training


@dataclass(frozen=True)
class TriedArm:
    """A config that is tried in a mode."""

    name: str  # unique in a comparison
    side: SideName  # the training that it is a variant of
    config: Config
    mode: str = "train"
    difference: ConfigDifference | None = None  # the only one in which it equals the other side
    variation: Variation | None = None


def base_arm(side: SideName, config: Config) -> TriedArm:
    """Return the arm of a training as it is."""
    return TriedArm(side, side, config)


def arms_of(a: TriedSide, b: TriedSide) -> tuple[list[ConfigDifference], list[TriedArm]]:
    """Return in what two trainings differ, and what to try, the most important first.

    Variants that no longer compose, such as a strategy that cannot be used with a setting of the
    other side, are left out.
    """
    changes = differences(a.config, b.config)
    arms = [base_arm("a", a.config), base_arm("b", b.config)]
    arms += _made_alone(a.config, b.config, changes)
    # The second one is the slower one, as in `deltacell explain`.
    sides: tuple[tuple[SideName, Config], ...] = (("b", b.config), ("a", a.config))
    for side, config in sides:
        _add_variations(arms, side, config, same_model=True)
    for mode in PART_MODES:
        for side, config in sides:
            arms.append(TriedArm(f"{side}, mode {mode}", side, config, mode=mode))
    for side, config in sides:
        _add_variations(arms, side, config, same_model=False)
    return changes, arms


def _add_variations(
    arms: list[TriedArm],
    side: SideName,
    config: Config,
    *,
    same_model: bool,
) -> None:
    """Add the variations of a training that leave its predictions the same, or the others."""
    for variation in variations_of(config):
        if variation.is_same_model != same_model:
            continue
        varied = _composed(config, variation)
        if varied is not None:
            _add_variation(arms, side, varied, variation)


def _add_variation(
    arms: list[TriedArm],
    side: SideName,
    varied: Config,
    variation: Variation,
) -> None:
    """Add a variation; one that is tried for another reason is not tried twice."""
    for place, arm in enumerate(arms):
        if arm.side == side and arm.mode == "train" and arm.config == varied:
            arms[place] = replace(arm, variation=arm.variation or variation)
            return
    name = f"{side} with {settings_text(variation.settings)}"
    arms.append(TriedArm(name, side, varied, variation=variation))


def _made_alone(a: Config, b: Config, changes: Sequence[ConfigDifference]) -> Iterator[TriedArm]:
    """Yield A with each change made alone and with all of them, and B with each one undone."""
    every = a
    for change in changes:
        every = change.made_in(every, b, to_b=True)
        # With one change, A with it is B, whose other keys have no effect on time.
        if len(changes) == 1:
            continue
        for side, config, other in (("b", b, a), ("a", a, b)):
            name = f"{side} with {change.name} of {'a' if side == 'b' else 'b'}"
            try:
                varied = change.made_in(config, other, to_b=side == "a")
            except InputError:
                continue
            yield TriedArm(name, "a" if side == "a" else "b", varied, difference=change)
    if changes:
        yield TriedArm(ALL, "a", every)


def variations_of(config: Config) -> Iterator[Variation]:
    """Yield what can be varied: what the model and the loss say, and what every training has."""
    yield from chain(config.model.variations(), config.loss.variations())
    channels = [name for name in config.data.relations or () if name.startswith("string_")]
    if len(channels) > 1 and not config.data.merge_relations:
        merged = {"data.merge_relations": {"string": channels}}
        yield Variation(VariationKind.relations, merged)
    double = {"data.batch_size": 2 * config.data.batch_size}
    yield Variation(VariationKind.batch, double)
    if config.ranks > 1:
        yield Variation(VariationKind.ranks, {"trainer.devices": 1, "trainer.nodes": 1})
    if config.trainer.threads is not None and config.trainer.threads > 1:
        one = {"trainer.threads": 1}
        yield Variation(VariationKind.threads, one, is_same_model=True)


def _composed(config: Config, variation: Variation) -> Config | None:
    try:
        return with_settings(config, variation.settings)
    except InputError:
        return None


def settings_text(settings: Mapping[str, object]) -> str:
    """Return settings as they would be typed, such as ``model.propagation=auto``."""
    known = {key: value for key, value in settings.items() if value is not None}
    return " ".join(f"{key}={_value_text(value)}" for key, value in known.items())


def _value_text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return f"[{','.join(map(str, value))}]"
    if isinstance(value, dict):
        entries = [f"{key}:{_value_text(item)}" for key, item in value.items()]
        return f"{{{','.join(entries)}}}"
    return "null" if value is None else str(value)


def for_trials(config: Config) -> Config:
    """Return a config without what a trial sets itself, so that equal work is an equal config."""
    return replace(config, name="trial", directory=None, mode="train", mode_steps=None)


def meaning_of(a: TriedSide, b: TriedSide, steps: int) -> dict[str, object]:
    """Return what a table of trials belongs to, as JSON values."""
    values = {"a": flat_values(for_trials(a.config)), "b": flat_values(for_trials(b.config))}
    return {**values, "steps": steps}
