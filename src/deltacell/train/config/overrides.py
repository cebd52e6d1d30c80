"""Overrides such as ``trainer.devices=4``."""

from __future__ import annotations

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException

from deltacell.base.errors import InputError
from deltacell.train.config.errors import unknown_key
from deltacell.train.config.keys import GROUPS, keys_for
from deltacell.train.config.moved_keys import MOVED_KEYS


def is_in_mapping(key: str) -> bool:
    """Return whether a key belongs to a mapping, which accepts new names."""
    mappings = (known for known, kind in keys_for(key).items() if kind.startswith("dict"))
    return any(f"{key}.".startswith(f"{mapping}.") for mapping in mappings)


def parse_override(text: str) -> Override:
    """Parse an override without the pluses that Hydra asks for, and check its form and key."""
    try:
        override = OverridesParser.create().parse_override(text.lstrip("+"))
        name = override.key_or_group
        value = override.value()
        is_name = isinstance(value, str) or (name == "ablation" and isinstance(value, list))
        is_plain = not (override.is_delete() or override.package or override.is_sweep_override())
        if not is_plain or (name in GROUPS and not is_name):
            raise HydraException
        if "${" in text:
            what = f"'{text}' contains '${{', which would be replaced by something else"
            fix = "Write the value itself. Configs in --config-dir may refer to other keys."
            raise InputError(what, code="interpolation", fix=fix, key=name)
    except HydraException as error:
        what = f"'{text}' is not of the form KEY=VALUE, with one value and without spaces"
        fix = "Quote special characters for the shell and for Hydra: \"KEY='VALUE'\"."
        raise InputError(what, code="unreadable-override", fix=fix) from error
    known = any(f"{key}.".startswith(f"{name}.") for key in (*keys_for(name), *GROUPS, *MOVED_KEYS))
    known |= is_in_mapping(name)
    if not known or name in ("model.name", "loss.name"):
        raise unknown_key(name)
    return override
