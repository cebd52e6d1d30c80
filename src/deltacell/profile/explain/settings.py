"""The settings of a run that its time depends on, and how those of two runs differ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from deltacell.profile.record import Messages, RunRecord

Value = str | int | float | bool | tuple[str, ...] | None  # None if it is not recorded

# Keys of the config that are settings of their own, or do not change the time of a step.
_NO_OPTIONS = frozenset({"model.name", "model.relations", "model.propagation", "loss.name"})
_OPTIONS = ("model.", "loss.")
_OTHER_OPTIONS = ("data.run_length", "trainer.ema")
_FORMER_KEYS = {"max_bytes": "model.max_bytes"}  # in runs that an earlier version saved


class SettingKind(StrEnum):
    """A setting, in the order in which differences are listed."""

    model = "model"
    propagation = "propagation"
    loss = "loss"
    batch = "batch"
    ranks = "ranks"
    relations = "relations"
    parameters = "parameters"
    option = "option"  # a key of the model, the loss or the optimizer
    genes = "genes of the cell"
    cell = "cell"
    accumulated = "accumulated batches"
    precision = "precision"
    compiled = "compiled parts"
    device = "device"
    threads = "threads of a process"
    torch = "torch"
    mode = "mode"


@dataclass(frozen=True)
class SettingChange:
    """A setting with its values in A and in B."""

    kind: SettingKind
    name: str  # that of the kind, or the key of an option
    a: Value
    b: Value


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """What is recorded of a run's settings; None if it is not."""

    model: str | None = None
    messages: Messages | None = None
    propagation: str | None = None  # as in the config
    chosen_propagation: str | None = None  # by ``auto``
    loss: str | None = None
    batch: int | None = None  # of all processes together
    ranks: int | None = None
    relations: tuple[str, ...] | None = None
    parameters: int | None = None
    options: Mapping[str, Value] = field(default_factory=dict)
    cell: str | None = None  # its checksum
    n_genes: int | None = None
    accumulated: int | None = None
    precision: str | None = None
    compiled: bool | None = None
    device: str | None = None
    threads: int | None = None
    torch: str | None = None
    mode: str | None = None
    is_complete: bool = False  # if the config was recorded

    @classmethod
    def of(cls, record: RunRecord) -> RunSettings:
        """Return the settings of a run from its record and its resolved config."""
        config = _flat(record.config())
        facts = record.model
        propagation = record.propagation or {}
        return cls(
            model=_text(config.get("model.name")) if facts is None else facts.name,
            messages=None if facts is None else facts.messages,
            propagation=_text(propagation.get("name")),
            chosen_propagation=_chosen(propagation.get("choice")),
            loss=_text(config.get("loss.name")) if facts is None else facts.loss,
            batch=record.batch_size,
            ranks=record.world_size,
            relations=None if facts is None else facts.relations,
            parameters=record.n_parameters,
            options=_options(config),
            cell=None if record.cell is None else record.cell.checksum,
            n_genes=None if record.cell is None else record.cell.n_genes,
            accumulated=record.accumulate,
            precision=record.precision,
            compiled=_truth(config.get("trainer.compile")),
            device=record.device,
            threads=record.threads,
            torch=record.versions.get("torch"),
            mode=record.mode,
            is_complete=bool(config),
        )

    @property
    def propagation_text(self) -> str | None:
        """The propagation, with the strategy that ``auto`` chose: ``auto (delta)``."""
        if self.propagation is None or self.chosen_propagation is None:
            return self.propagation
        return f"{self.propagation} ({self.chosen_propagation})"

    @property
    def strategy(self) -> str | None:
        """The strategy that is used, whether it was set or chosen by ``auto``."""
        return self.chosen_propagation or self.propagation

    @property
    def values(self) -> dict[SettingKind, Value]:
        """The value by which each setting is compared, except for options."""
        return {
            SettingKind.model: self.model,
            SettingKind.propagation: self.strategy,
            SettingKind.loss: self.loss,
            SettingKind.batch: self.batch,
            SettingKind.ranks: self.ranks,
            SettingKind.relations: self.relations,
            SettingKind.parameters: self.parameters,
            SettingKind.genes: self.n_genes,
            SettingKind.cell: self.cell,
            SettingKind.accumulated: self.accumulated,
            SettingKind.precision: self.precision,
            SettingKind.compiled: self.compiled,
            SettingKind.device: self.device,
            SettingKind.threads: self.threads,
            SettingKind.torch: self.torch,
            SettingKind.mode: self.mode,
        }


def changes_between(a: RunSettings, b: RunSettings) -> list[SettingChange]:
    """Return the settings that differ, in the order of `SettingKind`.

    A setting that is unknown in one of them is not compared, but a model may have no propagation.
    Options are those of the same model or of the same loss.
    """
    changes = []
    values_a = a.values
    values_b = b.values
    for kind in SettingKind:
        if kind is SettingKind.option:
            changes += _option_changes(a, b)
            continue
        value_a = values_a[kind]
        value_b = values_b[kind]
        if kind is SettingKind.propagation and value_a != value_b:
            texts = (a.propagation_text, b.propagation_text)
            changes.append(SettingChange(kind, kind.value, *texts))
        elif value_a != value_b and None not in (value_a, value_b):
            changes.append(SettingChange(kind, kind.value, value_a, value_b))
    return _without_same_cell(changes)


def _without_same_cell(changes: list[SettingChange]) -> list[SettingChange]:
    """Leave out another checksum of the cell if its genes or relations say what differs."""
    kinds = {change.kind for change in changes}
    if not kinds & {SettingKind.genes, SettingKind.relations}:
        return changes
    return [change for change in changes if change.kind is not SettingKind.cell]


def _option_changes(a: RunSettings, b: RunSettings) -> list[SettingChange]:
    others: tuple[str, ...] = ()
    if a.model != b.model:
        others += ("model.",)
    if a.loss != b.loss:
        others += ("loss.",)
    changes = []
    for name in a.options.keys() & b.options.keys():
        is_comparable = not name.startswith(others)
        if is_comparable and a.options[name] != b.options[name]:
            change = SettingChange(SettingKind.option, name, a.options[name], b.options[name])
            changes.append(change)
    return sorted(changes, key=lambda change: change.name)


def _flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the values of a config by key, such as ``model.hidden``."""
    values: dict[str, Any] = {}
    for name, value in config.items():
        key = f"{prefix}{name}"
        if isinstance(value, Mapping):
            values |= _flat(value, f"{key}.")
        else:
            values[key] = value
    return values


def _options(config: Mapping[str, Any]) -> dict[str, Value]:
    """Return the options of the model and the loss, and others that change the time of a step."""
    options: dict[str, Value] = {}
    for written_key, value in config.items():
        key = _FORMER_KEYS.get(written_key, written_key)
        is_option = key.startswith(_OPTIONS) or key in _OTHER_OPTIONS
        if is_option and key not in _NO_OPTIONS:
            options[key] = _value(value)
    return options


def _value(value: object) -> Value:
    """Return a value of a YAML file as one of a setting."""
    if isinstance(value, list):
        return tuple(map(str, value))
    return value if value is None or isinstance(value, str | int | float) else str(value)


def _chosen(choice: object) -> str | None:
    return _text(choice.get("choice")) if isinstance(choice, dict) else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _truth(value: object) -> bool | None:
    return value if isinstance(value, bool) else None
