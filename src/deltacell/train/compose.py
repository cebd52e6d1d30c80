"""The former place of composing and saving configs, kept for one release."""

from typing import Any

from deltacell.base.moved import moved

_FORMER = "deltacell.train.compose"
_PRESENT = {
    "compose": ("compose", "refresh", "with_settings"),
    "saved": ("from_yaml", "saved_yaml", "to_yaml"),
    "overrides": ("parse_override",),
    "choose_settings": ("MODEL", "suited_config"),
}


def __getattr__(name: str) -> Any:
    for module, names in _PRESENT.items():
        if name in names:
            return moved(_FORMER, f"deltacell.train.config.{module}")(name)
    raise AttributeError(f"module '{_FORMER}' has no attribute '{name}'")
