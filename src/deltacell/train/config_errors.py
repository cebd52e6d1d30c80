"""What is wrong with a config, in words: which key or name was meant, which value was expected."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from hydra.core.override_parser.types import Override
from omegaconf.errors import (
    ConfigAttributeError,
    ConfigKeyError,
    GrammarParseError,
    InterpolationResolutionError,
    OmegaConfBaseException,
    ValidationError,
)

from deltacell.errors import InputError
from deltacell.train.config import LossConfig, ModelConfig
from deltacell.train.config_keys import Key, expected, keys_of, keys_of_class, nearest
from deltacell.train.registry import LOSS_CONFIGS, MODEL_CONFIGS


def unreadable_override(text: str) -> InputError:
    """Return the error of an override that cannot be read."""
    if "=" not in text:
        return InputError(
            f"'{text}' has no '='; expected KEY=VALUE",
            fix="Write it without spaces around the '=', such as experiment=demo",
        )
    key, _, value = text.partition("=")
    if key.rstrip() != key or " " in key:
        return InputError(f"'{text}' has a space before the '='", fix="Write KEY=VALUE")
    if not key or not value:
        return InputError(f"'{text}' has no value", fix=f"Write {key}=VALUE, or {key}=null")
    quoted = value.replace("'", "\\'")
    return InputError(
        f"'{text}' cannot be read as KEY=VALUE",
        fix="Put a value with special characters into quotes, and all of it into others for the "
        f"""shell: "{key}='{quoted}'\"""",
    )


def unknown_key(
    name: str,
    keys: Mapping[str, Key],
    *,
    groups: Sequence[str] = (),
    where: str | os.PathLike[str] | None = None,
) -> InputError:
    """Return the error of a key that there is not.

    Parameters
    ----------
    name
        As it was given.
    keys
        Those there are.
    groups
        Names that can be given a choice of files.
    where
        The file it was found in.
    """
    what = f"there is no key '{name}'"
    owner = _other_owner(name)
    if owner is not None and name not in keys:
        part, owners = owner
        here = keys[f"{part}.name"].default
        has = "has" if len(owners) == 1 else "have"
        return InputError(
            f"{what} in the {part} '{here}'; {' and '.join(owners)} {has} it",
            where=where,
            fix=f"Leave it out, or choose {part}={owners[0]}",
        )
    near = nearest(name, [*keys, *groups])
    if near is not None:
        return InputError(f"{what}; did you mean '{near}'?", where=where)
    part = name.partition(".")[0]
    there = [key for key in keys if key.startswith(f"{part}.")] or [
        *dict.fromkeys([*groups, *_parts(keys)])
    ]
    return InputError(what, where=where, fix=f"There are: {', '.join(there)}")


def no_option(
    group: str, name: Any, names: Sequence[str], *, where: str | os.PathLike[str] | None = None
) -> InputError:
    """Return the error of a name that a group does not have."""
    if not isinstance(name, str):
        return InputError(
            f"{group} takes one name, and {name} was given",
            where=where,
            fix=f"There are {', '.join(names)}",
        )
    near = nearest(name, names)
    hint = "" if near is None else f"; did you mean '{near}'?"
    return InputError(
        f"there is no {group} '{name}'{hint}", where=where, fix=f"There are {', '.join(names)}"
    )


def config_error(
    error: Exception,
    given: Sequence[Override] = (),
    *,
    groups: Sequence[str] = (),
    where: str | os.PathLike[str] | None = None,
) -> InputError:
    """Return an error of Hydra or OmegaConf in words.

    Parameters
    ----------
    error
        Theirs.
    given
        The overrides it may come from.
    groups
        Names that can be given a choice of files.
    where
        The file it may come from.
    """
    cause = _cause(error)
    file = re.match(r"In '([^']+)'", str(error))
    if file is not None and where is None:
        where = file[1]
    if cause is None:
        return InputError(_first_line(error), where=where)
    name = re.sub(r"\[.*", "", str(cause.full_key or ""))
    keys = _keys_at(cause)
    if isinstance(cause, (ConfigAttributeError, ConfigKeyError)):
        return unknown_key(name, keys, groups=groups, where=where)
    if isinstance(cause, (InterpolationResolutionError, GrammarParseError)):
        what = f"the value of {name if name in keys else 'a key'} refers to what there is not"
        return InputError(f"{what}: {_first_line(cause)}", where=where)
    if isinstance(cause, ValidationError) and name in keys:
        value = next((_text(o) for o in given if o.key_or_group == name), None)
        was = "has a value of another kind" if value is None else f"is {value}"
        return InputError(f"{name} {was}; expected {expected(keys[name].annotation)}", where=where)
    if isinstance(cause, ValidationError) and any(key.startswith(f"{name}.") for key in keys):
        return InputError(
            f"{name} has keys of its own, and was given a value",
            where=where,
            fix=f"Give them one by one: {', '.join(k for k in keys if k.startswith(f'{name}.'))}",
        )
    return InputError(f"{name}: {_first_line(cause)}" if name else _first_line(cause), where=where)


def _cause(error: BaseException) -> OmegaConfBaseException | None:
    """Return the error of OmegaConf that one of Hydra was made of."""
    found: BaseException | None = error
    while found is not None and not isinstance(found, OmegaConfBaseException):
        found = found.__cause__ or found.__context__
    return found


def _keys_at(error: OmegaConfBaseException) -> dict[str, Key]:
    """Return the keys of a config with the model or the loss that an error is about."""
    owner = error.object_type
    if isinstance(owner, type) and issubclass(owner, ModelConfig):
        return keys_of(model=owner)
    if isinstance(owner, type) and issubclass(owner, LossConfig):
        return keys_of(loss=owner)
    return keys_of()


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _text(override: Override) -> str:
    return str(override.input_line).partition("=")[2] or "empty"


def _parts(keys: Mapping[str, Key]) -> list[str]:
    return list(dict.fromkeys(key.partition(".")[0] for key in keys))


def _other_owner(name: str) -> tuple[str, list[str]] | None:
    """Return ``model`` or ``loss`` and which of them have the key."""
    part, _, field = name.partition(".")
    kinds: Mapping[str, type]
    if part == "model":
        kinds = MODEL_CONFIGS
    elif part == "loss":
        kinds = LOSS_CONFIGS
    else:
        return None
    owners = [
        kind for kind, owner in kinds.items() if field in {k.name for k in keys_of_class(owner)}
    ]
    return (part, owners) if owners else None
