"""What a shell offers for the words of a config, such as ``experiment=demo``."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.resources import files

import typer

GROUPS = ("experiment", "model", "loss", "schedule", "ablation")
"""Groups of the configs that ship, of which one is chosen by its name."""


def complete_override(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the words that a begun override may become.

    Parameters
    ----------
    ctx
        The command as it is typed up to there.
    incomplete
        What there is of the word. Bash takes ``experiment=de`` for three words, the last of
        them ``de``.
    """
    before = list(ctx.params.get("overrides") or [])
    if before and before[-1] in GROUPS:
        # The word that is begun is the sign alone, and click takes it for nothing.
        before.append("=")
    if len(before) > 1 and before[-1] == "=":
        return [name for name in _names(before[-2]) if name.startswith(incomplete)]
    words = [f"{group}={name}" for group in GROUPS for name in _names(group)]
    if incomplete:
        words += _defaults()
    return [word for word in words if word.startswith(incomplete)]


def _names(group: str) -> Iterable[str]:
    if group not in GROUPS:
        return []
    entries = (entry.name for entry in (files("deltacell.conf") / group).iterdir())
    # A loss "of" a model is what the model takes where none is chosen.
    return sorted(
        name.removesuffix(".yaml")
        for name in entries
        if name.endswith(".yaml") and not name.startswith("of_")
    )


def _defaults() -> Iterable[str]:
    """Return every key with its value where none is given."""
    from enum import Enum

    from deltacell.train.config_keys import ANY_KEYS

    for name, key in ANY_KEYS.items():
        value = key.default
        if value is None:
            yield f"{name}=null"
        elif isinstance(value, bool):
            yield f"{name}={'true' if value else 'false'}"
        elif isinstance(value, Enum):
            yield f"{name}={value.name}"
        elif isinstance(value, int | float | str):
            yield f"{name}={value}"
