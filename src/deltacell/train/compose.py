"""From overrides, as they are typed, to a config; and a config as text and back."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
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
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException

from deltacell import store
from deltacell.cell import Cell
from deltacell.errors import InputError
from deltacell.screen import Screen
from deltacell.train.check import ANY_KEYS, check, keys_of, keys_of_class, nearest, unknown_name
from deltacell.train.config import LOSSES, MODELS, Config, LossConfig, ModelConfig, NoLossConfig
from deltacell.train.data import sources

GROUPS = ("experiment", "model", "loss", "schedule", "ablation")
"""What is chosen by the name of a file, such as ``experiment=demo``."""

Where = str | os.PathLike[str] | None


def compose(overrides: Sequence[str] = (), *, folder: Where = None) -> Config:
    """Return the config that overrides such as ``trainer.devices=4`` make, checked.

    `folder` is a directory of your own configs, such as ``FOLDER/experiment/mine.yaml``.
    """
    with _hydra() as loader:
        search = [] if folder is None else [_search_path(folder)]
        given = [_parsed(text) for text in overrides]
        choices = [override for override in given if override.key_or_group in GROUPS]
        for choice in choices:
            _check_choice(choice, options(choice.key_or_group, loader, search))
        values = [*search, *(_value(o) for o in given if o.key_or_group not in GROUPS)]
        composed = _composed([*map(_plain, choices), *values], given)
        for ablation in choices:
            if ablation.key_or_group == "ablation" and ablation.value() is not None:
                others = [_plain(o) for o in choices if o.key_or_group != "ablation"]
                if _composed([*others, *values]) == composed:
                    # The run would pass for one that it is not.
                    raise InputError(
                        f"the ablation '{ablation.value()}' changes nothing here",
                        code="ablation-without-effect",
                        fix="Leave it out, or choose an experiment that has what it removes.",
                    )
    return _checked(composed)


def to_dict(config: Config) -> dict[str, Any]:
    """Return a config as plain dicts, lists, text and numbers."""
    found = OmegaConf.to_container(OmegaConf.structured(config), enum_to_str=True)
    return cast(dict[str, Any], found)


def to_yaml(config: Config) -> str:
    """Return a config as YAML; `from_yaml` reads it."""
    return OmegaConf.to_yaml(OmegaConf.structured(config))


def from_yaml(text: str, *, where: Where = None) -> Config:
    """Return the config of a text that `to_yaml` made; an unknown key is an error."""
    given = _read_yaml(text, where)
    kinds: dict[str, Any] = {}
    for group, known in (("model", MODELS), ("loss", LOSSES)):
        name = OmegaConf.select(given, f"{group}.name")
        if name not in known:
            raise unknown_name(group, name, list(known), where)
        kinds[group] = known[name]()
    try:
        merged = OmegaConf.merge(OmegaConf.structured(Config(**kinds)), given)
        return _checked(cast(DictConfig, merged), where)
    except OmegaConfBaseException as error:
        raise config_error(error, where=where) from error


def with_settings(config: Config, settings: Mapping[str, Any]) -> Config:
    """Return a config with some keys changed, such as ``{"trainer.epochs": 20}``, checked."""
    changed = OmegaConf.structured(config)
    try:
        for key, value in settings.items():
            OmegaConf.update(changed, key, value, merge=False)
        return _checked(changed)
    except OmegaConfBaseException as error:
        raise config_error(error) from error


def options(
    group: str, loader: ConfigLoader | None = None, search: Sequence[str] = ()
) -> list[str]:
    """Return the names that a group has, such as the experiments."""
    if loader is None:
        with _hydra() as loader:
            return options(group, loader)
    found = loader.get_group_options(group, config_name="config", overrides=list(search))
    # The defaults that follow the model are chosen by it and not by a user.
    return [name for name in found if not name.startswith("of_")]


_LOCK = threading.RLock()


@contextmanager
def _hydra() -> Iterator[ConfigLoader]:
    """Initialise Hydra with the configs that ship; a Hydra in use is put back afterwards."""
    with _LOCK:
        _store_schemas()
        theirs, GlobalHydra.instance().hydra = GlobalHydra.instance().hydra, None
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
    for name, model in MODELS.items():
        store.store(group="deltacell/model", name=name, node=model)
        if model.fitted:
            store.store(group="loss", name=f"of_{name}", node=NoLossConfig)
    for name, loss in LOSSES.items():
        store.store(group="deltacell/loss", name=name, node=loss)
    OmegaConf.register_new_resolver("deltacell.string_channels", _string_channels, replace=True)
    OmegaConf.register_new_resolver("deltacell.string_merged", _string_merged, replace=True)


def _string_channels(_root_: DictConfig) -> list[str]:
    """Return the channels of STRING among the cell's relations; all six if none are named."""
    from deltacell.models import STRING_RELATIONS

    # Hydra also resolves parts of the config that lack the key; hence select.
    named = OmegaConf.select(_root_, "data.relations")
    return [n for n in (STRING_RELATIONS if named is None else named) if n in STRING_RELATIONS]


def _string_merged(_root_: DictConfig) -> list[str] | None:
    """Return the model's relations with one, ``string``, in place of the channels of STRING."""
    if OmegaConf.select(_root_, "model.name") != "dango":
        return None
    channels = _string_channels(_root_)
    named = OmegaConf.select(_root_, "data.relations") or channels
    return list(dict.fromkeys("string" if name in channels else name for name in named))


def _search_path(folder: str | os.PathLike[str]) -> str:
    path = Path(folder).resolve()
    if not path.is_dir():
        raise InputError("not a directory of configs", code="no-directory", where=folder)
    quoted = str(path).replace("\\", "\\\\").replace("'", "\\'")
    return f"hydra.searchpath=['file://{quoted}']"


def _parsed(text: str) -> Override:
    unreadable = InputError(
        f"'{text}' is not of the form KEY=VALUE, with one value",
        code="unreadable-override",
        fix="Write it without spaces around the '=', and quote a value with special characters "
        f"""twice, also for the shell: "{text.partition("=")[0].strip()}='VALUE'".""",
    )
    try:
        override = OverridesParser.create().parse_override(text)
    except HydraException as error:
        raise unreadable from error
    if override.is_delete() or override.package is not None or override.is_sweep_override():
        raise unreadable
    return override


def _check_choice(choice: Override, names: Sequence[str]) -> None:
    group, value = choice.key_or_group, choice.value()
    if value is None and group in ("experiment", "ablation"):
        return
    for name in value if group == "ablation" and isinstance(value, list) else [value]:
        if name not in names:
            raise unknown_name(group, name, names)


def _plain(override: Override) -> str:
    return str(override.input_line).lstrip("+")


def _value(override: Override) -> str:
    """Return the override of a key with the pluses that Hydra wants, and no others."""
    name, text = override.key_or_group, _plain(override)
    if name in ("model.name", "loss.name"):
        group = name.removesuffix(".name")
        what = f"'{text}': a {group} is chosen as a whole"
        raise InputError(what, code="unknown-key", fix=f"Write {group}=NAME.")
    if any(f"{name}.".startswith(f"{k.name}.") for k in ANY_KEYS.values() if k.is_mapping):
        # New names of a mapping are welcome, which Hydra takes with pluses only.
        return f"++{text}"
    if not any(f"{key}.".startswith(f"{name}.") for key in ANY_KEYS):
        raise unknown_key(name)
    return text


def _composed(overrides: Sequence[str], given: Sequence[Override] = ()) -> DictConfig:
    try:
        composed = hydra_compose("config", overrides=list(overrides))
        OmegaConf.resolve(composed)
    except (HydraException, OmegaConfBaseException) as error:
        raise config_error(error, given) from error
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise InputError(
            f"a config file cannot be read: {' '.join(str(error).split())}",
            code="unreadable-config",
            fix="Write it as YAML in UTF-8.",
        ) from error
    return composed


def _checked(composed: DictConfig, where: Where = None) -> Config:
    config = OmegaConf.to_object(composed)
    assert isinstance(config, Config)
    check(config, where=None if where is None else Path(where))
    return config


def unknown_key(name: str, where: Where = None, owner: Any = None) -> InputError:
    """Return the error of a key that does not exist, or not with the model or loss `owner`."""
    keys = keys_of()
    part, _, field = name.partition(".")
    if isinstance(owner, type) and issubclass(owner, ModelConfig | LossConfig):
        part = "model" if issubclass(owner, ModelConfig) else "loss"
        kinds: Mapping[str, type] = MODELS if part == "model" else LOSSES
        keys = keys_of(**{part: owner})  # type: ignore[arg-type]
        have = [kind for kind, c in kinds.items() if field in {k.name for k in keys_of_class(c)}]
        if have:
            return InputError(
                f"unknown key '{name}' in the {part} '{keys[f'{part}.name'].default}'",
                code="unknown-key",
                where=where,
                fix=f"Leave it out, or choose a {part} that has it: {', '.join(have)}.",
                key=name,
            )
    near = nearest(name, [*keys, *GROUPS])
    there = [key for key in keys if key.startswith(f"{part}.")] or [
        *dict.fromkeys([*GROUPS, *(key.partition(".")[0] for key in keys)])
    ]
    return InputError(
        f"unknown key '{name}'" + ("" if near is None else f" (did you mean '{near}'?)"),
        code="unknown-key",
        where=where,
        fix=f"The keys are {', '.join(there)}." if near is None else None,
        key=name,
    )


def config_error(
    error: BaseException, given: Sequence[Override] = (), where: Where = None
) -> InputError:
    """Return an error of Hydra or OmegaConf as one that names the key and what was expected."""
    file = re.match(r"In '([^']+)'", str(error))
    where = file[1] if file is not None and where is None else where
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, OmegaConfBaseException):
        cause = cause.__cause__ or cause.__context__
    name = re.sub(r"\[.*", "", str(getattr(cause, "full_key", None) or ""))
    if isinstance(cause, ConfigAttributeError | ConfigKeyError):
        return unknown_key(name, where, cause.object_type)
    first_line = (str(cause or error).strip() or type(error).__name__).splitlines()[0]
    if name in ANY_KEYS:
        typed = next((_plain(o) for o in given if o.key_or_group == name), name)
        what = f"{typed}: expected {ANY_KEYS[name].expected} ({first_line})"
        return InputError(what, code="wrong-type", where=where, key=name)
    return InputError(f"{name}: {first_line}", code="invalid-config", where=where, key=name)


_LONGEST = 1_000_000


def _read_yaml(text: str, where: Where) -> DictConfig:
    def refused(why: object, line: int | None = None) -> InputError:
        what = f"cannot be read: {why}"
        return InputError(what, code="unreadable-config", where=where, line=line)

    if len(text) > _LONGEST:
        raise refused(f"more than {_LONGEST:,} characters")
    try:
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            line = event.start_mark.line + 1
            # Nested aliases can fill any memory, and a saved config is resolved.
            if isinstance(event, yaml.AliasEvent):
                raise refused(f"the alias '*{event.anchor}' is not allowed", line)
            if isinstance(event, yaml.ScalarEvent) and "${" in event.value:
                raise refused(f"'{event.value}' is not a value", line)
        given = OmegaConf.create(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        why = getattr(error, "problem", None) or "not YAML"
        raise refused(why, None if mark is None else mark.line + 1) from error
    except (OmegaConfBaseException, ValueError, RecursionError) as error:
        raise refused(error) from error
    if not isinstance(given, DictConfig):
        raise refused("expected keys with values")
    return given


MODEL = "pair_trees"
"""The predictor that did best on every split of Costanzo 2010, see docs/results.md."""

LARGEST = 1_000_000
"""Maximum number of genotypes to train on; the columns of more would fill the memory."""

# By validation on one draw of Costanzo 2010 each, with one seed, among 7, 15 and 63 leaves: of
# 3,000 pairs 7 were best (Pearson 0.101 to 0.074 with 63), of 12,000 pairs 15 (0.251 to 0.243).
_ROWS_PER_LEAF, _LEAVES = 800, (7, 63)
_BATCHES, _BATCH = 100, (32, 4096)


class Suited(NamedTuple):
    """Settings by config key, such as ``{"model.leaves": 15}``, and why, in sentences."""

    settings: dict[str, Any]
    sentences: list[str]


def suited(cell: Cell, screen: Screen, model: str = MODEL) -> Suited:
    """Return settings of a model that suit the relations of a cell and the size of a screen."""
    n = min(len(screen), LARGEST)
    if model == "pair_trees":
        leaves = int(np.clip(n // _ROWS_PER_LEAF, *_LEAVES))
        return Suited({"model.leaves": leaves}, [f"Trees of {leaves} leaves suit {n:,} genotypes."])
    settings: dict[str, Any] = {}
    sentences = []
    if model in ("dango", "hetero_cell", "pair_cell"):
        batch = 2 ** int(np.log2(np.clip(n // _BATCHES, *_BATCH)))
        settings["data.batch_size"] = batch
        sentences.append(f"Batches of {batch:,} suit {n:,} genotypes.")
    if model == "dango":
        from deltacell.models import STRING_LAMBDAS

        there = [name for name in STRING_LAMBDAS if name in cell.relations]
        if not there:
            there = list(cell.relations)
            settings["model.lambdas"] = dict.fromkeys(there, 1.0)
        settings["model.relations"] = there
        sentences.append(f"DANGO uses {', '.join(there) or 'no relation'}.")
    return Suited(settings, sentences)


def suited_config(
    overrides: Sequence[str], folder: str | os.PathLike[str] | None = None
) -> tuple[Config, list[str]]:
    """Return the config for data without an experiment or a model, and what was chosen and why.

    Keys that the overrides set are left alone; `folder` is as in `compose`.
    """
    given = {text.partition("=")[0].lstrip("+") for text in overrides}
    config = compose([f"model={MODEL}", *overrides], folder=folder)
    sentences = [
        f"No experiment is named, so {MODEL} is fitted: boosted trees on what was measured next "
        "to a set, on gene features and on all networks. It did best on all splits of Costanzo "
        "2010; on triples it was not compared."
    ]
    chosen: dict[str, Any] = {}
    if config.data.folder is not None and config.data.screen is None:
        name, others = _largest_screen(Path(config.data.folder))
        if others:
            sentences.append(
                f"It is trained on {name}, the largest of the screens {', '.join([name, *others])};"
                f" data.screen={others[0]} chooses another."
            )
        chosen["data.screen"] = name or None
        config = with_settings(config, chosen)
    cell, screen = sources(config.data)
    if len(screen.stats()["phenotypes"]) > 1 and "data.where" not in given:
        chosen["data.where"] = {"phenotype": ["interaction"]}
        sentences.append("The screen has fitness too; it is trained on the interactions.")
    if len(np.unique(screen.keys)) < len(screen):
        chosen["data.merge"] = "mean"
        sentences.append("Repeated genotypes become one, with the mean of their scores.")
    if len(screen) > LARGEST:
        chosen["data.subset"] = LARGEST
        sentences.append(f"{LARGEST:,} of {len(screen):,} genotypes are drawn to fit into memory.")
    found = suited(cell, screen)
    chosen |= {"data.screen_genes_only": True, **found.settings}
    if config.data.folder is not None:
        chosen["name"] = f"{config.data.screen}_pairs"
    sentences += found.sentences
    return with_settings(config, {k: v for k, v in chosen.items() if k not in given}), sentences


def _largest_screen(folder: Path) -> tuple[str, list[str]]:
    there = sorted(path for path in (folder / "screens").glob("*") if path.is_dir())
    rows = {
        path.name: store.read(path, "screen", verify=False).parts["rows"].num_rows for path in there
    }
    names = sorted(rows, key=lambda name: (-rows[name], name))
    return (names[0], names[1:]) if names else ("", [])
