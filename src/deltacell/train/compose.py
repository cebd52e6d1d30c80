"""From overrides, as they are typed, to a config; and a config as text and back."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import yaml  # type: ignore[import-untyped]
from hydra import compose as hydra_compose
from hydra import initialize_config_module
from hydra.core.config_loader import ConfigLoader
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from deltacell.errors import InputError
from deltacell.train.config import Config, NoLossConfig
from deltacell.train.config_errors import config_error, no_option, unknown_key, unreadable_override
from deltacell.train.config_keys import ANY_KEYS
from deltacell.train.registry import LOSS_CONFIGS, MODEL_CONFIGS, MODELS

GROUPS = ("experiment", "model", "loss", "schedule", "ablation")
"""What is chosen by the name of a file that ships, such as ``experiment=demo``."""


def compose(
    overrides: Sequence[str] = (), *, folder: str | os.PathLike[str] | None = None
) -> Config:
    """Return the config that overrides make, checked.

    Parameters
    ----------
    overrides
        As Hydra knows them: ``experiment=demo``, ``trainer.devices=4``.
    folder
        Of a user's own configs beside those that ship, such as ``FOLDER/experiment/mine.yaml``.
    """
    with _hydra() as loader:
        search = [] if folder is None else [_search_path(folder)]
        given = [_parsed(text) for text in overrides]
        for override in given:
            _check_form(override)
        choices = [o for o in given if o.key_or_group in GROUPS]
        for override in choices:
            _check_choice(override, options(override.key_or_group, loader, search))
        chosen = [_choice(o) for o in choices]
        values = [_value(o) for o in given if o.key_or_group not in GROUPS]
        composed = _composed([*search, *chosen, *values], given)
        _check_ablation(composed, choices, [*search, *values])
    return _checked(composed)


def compose_dict(
    overrides: Sequence[str] = (), *, folder: str | os.PathLike[str] | None = None
) -> dict[str, Any]:
    """Return what `compose` does as plain dicts, lists, text and numbers."""
    return to_dict(compose(overrides, folder=folder))


def to_dict(config: Config) -> dict[str, Any]:
    """Return a config as plain dicts, lists, text and numbers."""
    found = OmegaConf.to_container(OmegaConf.structured(config), enum_to_str=True)
    return cast(dict[str, Any], found)


def to_yaml(config: Config) -> str:
    """Return a config as the text of a file; `from_yaml` reads it."""
    return OmegaConf.to_yaml(OmegaConf.structured(config))


def from_yaml(text: str, *, where: str | os.PathLike[str] | None = None) -> Config:
    """Return the config of a text; an unknown key is an error.

    Parameters
    ----------
    text
        As `to_yaml` writes it.
    where
        The file it is from, for errors.
    """
    given = _read_yaml(text, where)
    model = _kind(given, "model", MODEL_CONFIGS, where)
    loss = _kind(given, "loss", LOSS_CONFIGS, where)
    schema = OmegaConf.structured(Config(model=model(), loss=loss()))
    try:
        return _checked(cast(DictConfig, OmegaConf.merge(schema, given)), where)
    except OmegaConfBaseException as error:
        raise config_error(error, where=where) from error


def options(
    group: str, loader: ConfigLoader | None = None, search: Sequence[str] = ()
) -> list[str]:
    """Return the names that a group has, such as the experiments.

    Parameters
    ----------
    group
        One of `GROUPS`.
    loader, search
        Of a composing that is under way.
    """
    if loader is None:
        with _hydra() as loader:
            return options(group, loader)
    found = loader.get_group_options(group, config_name="config", overrides=list(search))
    # The defaults that follow the model are found by it and not by a user.
    return [name for name in found if not name.startswith("of_")]


_LOCK = threading.RLock()


@contextmanager
def _hydra() -> Iterator[ConfigLoader]:
    """Have Hydra look into the configs that ship; a Hydra that is in use is put back after."""
    with _LOCK:
        _store_schemas()
        _register_resolvers()
        ours = GlobalHydra.instance()
        theirs, ours.hydra = ours.hydra, None
        try:
            with initialize_config_module("deltacell.conf", version_base="1.3"):
                yield GlobalHydra.instance().config_loader()
        finally:
            GlobalHydra.instance().hydra = theirs


def _store_schemas() -> None:
    store = ConfigStore.instance()
    if "deltacell" in store.repo:
        return
    whole = OmegaConf.structured(Config)
    # Left open, or the keys of one model would stay when another is chosen.
    whole.model = whole.loss = "???"
    store.store(group="deltacell", name="config", node=whole)
    for name, model in MODEL_CONFIGS.items():
        store.store(group="deltacell/model", name=name, node=model)
    for name, loss in LOSS_CONFIGS.items():
        store.store(group="deltacell/loss", name=name, node=loss)
    for name, registered in MODELS.items():
        if registered.fitted:
            store.store(group="loss", name=f"of_{name}", node=NoLossConfig)


def _register_resolvers() -> None:
    OmegaConf.register_new_resolver("deltacell.string_channels", _string_channels, replace=True)
    OmegaConf.register_new_resolver("deltacell.string_merged", _string_merged, replace=True)


def _string_channels(_root_: DictConfig) -> list[str]:
    """Return the channels of STRING among the cell's relations; all six where none is named."""
    return [name for name in _named_relations(_root_) if name in _string_relations()]


def _string_merged(_root_: DictConfig) -> list[str] | None:
    """Return the model's relations with one, ``string``, in place of the channels of STRING."""
    if OmegaConf.select(_root_, "model.name") != "dango":
        # All that the cell has after the merge.
        return None
    named = _named_relations(_root_)
    string = _string_relations()
    return list(dict.fromkeys("string" if n in string else n for n in named))


def _named_relations(root: DictConfig) -> Sequence[str]:
    # Asked for by what Hydra merges too, which is not all of the config; hence select.
    named = OmegaConf.select(root, "data.relations")
    return _string_relations() if named is None else named


def _string_relations() -> tuple[str, ...]:
    from deltacell.models.dango import STRING_RELATIONS

    return STRING_RELATIONS


def _search_path(folder: str | os.PathLike[str]) -> str:
    path = Path(folder).resolve()
    if not path.is_dir():
        raise InputError("there is no such folder of configs", where=folder)
    quoted = str(path).replace("\\", "\\\\").replace("'", "\\'")
    return f"hydra.searchpath=['file://{quoted}']"


def _parsed(text: str) -> Override:
    try:
        if "=" not in text and not text.startswith("~"):
            raise unreadable_override(text)
        return OverridesParser.create().parse_override(text)
    except HydraException as error:
        raise unreadable_override(text) from error


def _check_form(override: Override) -> None:
    key, text = override.key_or_group, override.input_line
    if override.is_delete():
        raise InputError(
            f"'{text}': a key cannot be removed", fix=f"Give it another value: {key}=VALUE"
        )
    if override.package is not None:
        raise InputError(f"'{text}': '@' has no meaning here", fix=f"Write {key}=VALUE")
    if override.is_sweep_override():
        raise InputError(
            f"'{text}' has several values, and one training takes one",
            fix=f"Start one for each, or give a list in brackets: {key}=[...]",
        )


def _check_choice(override: Override, names: Sequence[str]) -> None:
    group, value = override.key_or_group, override.value()
    if value is None and group in ("experiment", "ablation"):
        return
    for name in value if group == "ablation" and isinstance(value, list) else [value]:
        if name not in names:
            raise no_option(group, name, names)


def _choice(override: Override) -> str:
    return str(override.input_line).lstrip("+")


def _value(override: Override) -> str:
    """Return the override of a key with the pluses that Hydra wants, and no others."""
    name, text = override.key_or_group, str(override.input_line).lstrip("+")
    group = name.removesuffix(".name")
    if group in ("model", "loss") and group != name:
        raise InputError(f"'{text}': a {group} is chosen as a whole", fix=f"Write {group}=NAME")
    if f"{name}.".startswith(_MAPPINGS):
        # Of a mapping new names are welcome, which Hydra takes with pluses only.
        return f"++{text}"
    if name not in ANY_KEYS and not any(key.startswith(f"{name}.") for key in ANY_KEYS):
        raise unknown_key(name, ANY_KEYS, groups=GROUPS)
    return text


_MAPPINGS = tuple(f"{key.name}." for key in ANY_KEYS.values() if key.holds_names)


def _composed(overrides: Sequence[str], given: Sequence[Override]) -> DictConfig:
    try:
        composed = hydra_compose("config", overrides=list(overrides))
        OmegaConf.resolve(composed)
    except (HydraException, OmegaConfBaseException) as error:
        raise config_error(error, given, groups=GROUPS) from error
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise InputError(
            f"a file of configs cannot be read: {' '.join(str(error).split())}",
            fix="Write it as YAML in UTF-8; see --config-dir.",
        ) from error
    return composed


def _check_ablation(
    composed: DictConfig, choices: Sequence[Override], values: Sequence[str]
) -> None:
    """Raise where an ablation takes nothing away: the run would pass for one that it is not."""
    for ablation in choices:
        if ablation.key_or_group != "ablation" or ablation.value() is None:
            continue
        others = [_choice(o) for o in choices if o.key_or_group != "ablation"]
        if _composed([*others, *values], ()) == composed:
            raise InputError(
                f"the ablation '{ablation.value()}' changes nothing here: what it would take away "
                "is not there",
                fix="Leave it out, or choose an experiment that has it.",
            )


def _checked(composed: DictConfig, where: str | os.PathLike[str] | None = None) -> Config:
    # It asks the models what they take; a mistyped key is told before PyTorch is loaded for that.
    from deltacell.train.check import check

    config = OmegaConf.to_object(composed)
    assert isinstance(config, Config)
    check(config, where=where)
    return config


_LONGEST = 1_000_000


def _read_yaml(text: str, where: str | os.PathLike[str] | None) -> DictConfig:
    if len(text) > _LONGEST:
        raise InputError(
            f"{len(text):,} characters; a config has at most {_LONGEST:,}", where=where
        )
    try:
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            if isinstance(event, yaml.AliasEvent):
                # A few of them, one within the other, would fill any memory.
                raise InputError(
                    f"the alias '*{event.anchor}' is not allowed here",
                    where=where,
                    line=event.start_mark.line + 1,
                    fix="Write out what it stands for.",
                )
            if isinstance(event, yaml.ScalarEvent) and "${" in event.value:
                raise InputError(
                    f"'{event.value}' is not resolved; a saved config holds values alone",
                    where=where,
                    line=event.start_mark.line + 1,
                )
        given = OmegaConf.create(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = None if mark is None else mark.line + 1
        problem = getattr(error, "problem", None) or "it is not YAML"
        raise InputError(f"cannot be read: {problem}", where=where, line=line) from error
    except (OmegaConfBaseException, ValueError, RecursionError) as error:
        raise InputError(f"cannot be read: {error}", where=where) from error
    if not isinstance(given, DictConfig):
        raise InputError("expected keys with values, and found a list", where=where)
    return given


def _kind(
    given: DictConfig, group: str, kinds: Any, where: str | os.PathLike[str] | None
) -> type[Any]:
    part = OmegaConf.select(given, group)
    if not isinstance(part, DictConfig) or "name" not in part:
        raise InputError(f"there is no key '{group}.name'", where=where)
    if part["name"] not in kinds:
        raise no_option(group, part["name"], list(kinds), where=where)
    return cast(type[Any], kinds[part["name"]])
