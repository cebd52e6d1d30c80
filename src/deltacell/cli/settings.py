"""Commands whose settings are words, such as ``trainer.epochs=3``, and not options."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand

from deltacell.errors import InputError


class WithSettings(TyperCommand):
    """A command that tells how a setting is given where it was typed as an option."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Take the arguments."""
        typed = list(args)
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            # The parser's own kinds of errors have no name that typer promises to keep.
            option = str(getattr(error, "option_name", ""))
            others = getattr(error, "possibilities", None)
            meant = _setting(option, only_exact=bool(others)) if option else None
            if meant is None:
                raise
            raise InputError(
                f"there is no option {option}; settings are words of the form key=value",
                fix=f"Such as: {ctx.command_path} {meant}={_value(option, typed)}",
            ) from None


def _setting(option: str, *, only_exact: bool) -> str | None:
    """Return the key that an option may be meant for."""
    from deltacell.train.config_keys import ANY_KEYS, nearest

    name = option.lstrip("-").replace("-", "_")
    if only_exact and name not in {key.field for key in ANY_KEYS.values()}:
        return None
    return nearest(name, list(ANY_KEYS))


def _value(option: str, typed: list[str]) -> str:
    """Return the value that was typed with an option."""
    for word, after in zip(typed, [*typed[1:], "..."], strict=True):
        if word == option:
            return after if not after.startswith("-") and "=" not in after else "..."
        if word.startswith(f"{option}="):
            return word.partition("=")[2]
    return "..."
