"""In what two configs differ that the time of a step can depend on, by kind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from deltacell.models.config import ModelConfig
from deltacell.models.variation import VariationKind
from deltacell.train.config import Config
from deltacell.train.config.compose import with_settings
from deltacell.train.places import flat_values

# Keys on which the time of a step does not depend, and groups of them.
_NO_EFFECT = frozenset(
    {
        *("name", "directory", "seed", "mode", "mode_steps", "optimizer.lr"),
        *("optimizer.weight_decay", "data.synthetic_seed", "data.standardise", "trainer.epochs"),
        *("trainer.patience", "trainer.validate_every", "trainer.validation_samples"),
        *("trainer.keep", "trainer.checkpoint_every_steps", "trainer.checkpoint_every_minutes"),
        *("trainer.figures_every", "trainer.progress"),
    },
)
_GROUPS_WITHOUT_EFFECT = ("loggers.", "profiler.", "schedule.", "split.")
_KINDS = {
    "data.batch_size": VariationKind.batch,
    "data.relations": VariationKind.relations,
    "data.merge_relations": VariationKind.relations,
    "optimizer.accumulate": VariationKind.accumulated,
    "trainer.devices": VariationKind.ranks,
    "trainer.nodes": VariationKind.ranks,
    "trainer.threads": VariationKind.threads,
    "trainer.precision": VariationKind.precision,
    "trainer.compile": VariationKind.compiled,
}
# Kinds all of whose keys are varied together; of the others, each key is a change of its own.
_TOGETHER = frozenset({VariationKind.relations, VariationKind.ranks, VariationKind.propagation})


@dataclass(frozen=True)
class ConfigDifference:
    """A change from A to B that can be made alone."""

    kind: VariationKind
    a: Mapping[str, object]  # the values of its keys in A
    b: Mapping[str, object]

    @property
    def name(self) -> str:
        """Its keys, which no other difference has."""
        return ", ".join(self.a)

    def made_in(self, config: Config, other: Config, *, to_b: bool) -> Config:
        """Return a config with the values of B, or of A; `other` is the whole config of that side.

        Another model has another config, so it is replaced as a whole, with its loss.
        """
        if self.kind is VariationKind.model:
            return replace(config, model=other.model, loss=other.loss)
        return with_settings(config, self.b if to_b else self.a)


def differences(a: Config, b: Config) -> list[ConfigDifference]:
    """Return the changes from A to B, those of the model first."""
    values_a = flat_values(a)
    values_b = flat_values(b)
    changed = [
        key
        for key in values_a.keys() | values_b.keys()
        if _has_effect(key) and values_a.get(key) != values_b.get(key)
    ]
    found = []
    if a.model.name != b.model.name:
        # A loss belongs to what a model gives.
        found.append(_of_names(VariationKind.model, "model.name", a, b))
        changed = [key for key in changed if not key.startswith(("model.", "loss."))]
    elif a.loss.name != b.loss.name:
        found.append(_of_names(VariationKind.loss, "loss.name", a, b))
        changed = [key for key in changed if not key.startswith("loss.")]
    groups: dict[tuple[VariationKind, str], list[str]] = {}
    for key in sorted(changed):
        kind = kind_of(key, a.model)
        groups.setdefault((kind, "" if kind in _TOGETHER else key), []).append(key)
    for (kind, _), keys in groups.items():
        of_a = {key: values_a[key] for key in keys}
        of_b = {key: values_b[key] for key in keys}
        found.append(ConfigDifference(kind, of_a, of_b))
    order = list(VariationKind)
    return sorted(found, key=lambda difference: (order.index(difference.kind), difference.name))


def _has_effect(key: str) -> bool:
    return key not in _NO_EFFECT and not key.startswith(_GROUPS_WITHOUT_EFFECT)


def _of_names(kind: VariationKind, key: str, a: Config, b: Config) -> ConfigDifference:
    values_a = flat_values(a)
    values_b = flat_values(b)
    return ConfigDifference(kind, {key: values_a[key]}, {key: values_b[key]})


def kind_of(key: str, model: ModelConfig) -> VariationKind:
    """Return what a key changes; a model says it of its own keys."""
    group, _, name = key.partition(".")
    if group == "model":
        return model.kinds_of_options.get(name, VariationKind.option)
    if key == "loss.gather_interval":
        return VariationKind.gather
    by_group = {
        "loss": VariationKind.loss,
        "data": VariationKind.data,
        "optimizer": VariationKind.optimizer,
    }
    return _KINDS.get(key, by_group.get(group, VariationKind.option))
