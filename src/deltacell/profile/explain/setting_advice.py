"""What to try with the settings of a run of this program.

Figures are those of the README and docs/why/the-ladder.md, with the command that measures them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from deltacell.profile.explain.settings import RunSettings, SettingChange, SettingKind
from deltacell.profile.record import Messages

_BENCH = "deltacell bench propagation --batch 8 --layers 3"
# Speed-ups of `auto` over a strategy on the yeast-sized cell, on two cores, as in the tables of
# docs/why/the-ladder.md. With fewer mutants per step it is less, because each step computes the
# wild type.
_OVER_SUBGRAPH = "25x as fast"
_OVER_MASKS = "more than 40x as fast"


def advice_on_settings(settings: RunSettings) -> list[str]:
    """Return what to try about the settings of one run, the most effective first."""
    return [*_propagation(settings), *_epistasis(settings)]


def advice_on_changes(slow: RunSettings, changes: Sequence[SettingChange]) -> list[str]:
    """Return what to try about a run that is slower than another one, and how they differ."""
    kinds = {change.kind for change in changes}
    texts = advice_on_settings(slow)
    if SettingKind.model in kinds:
        texts += _late_mutants(slow)
    return [*texts, *_as_in_the_other(changes)]


def _propagation(settings: RunSettings) -> Iterator[str]:
    match settings.messages:
        case Messages.graph_per_mutant:
            yield _same_numbers(_OVER_SUBGRAPH, _BENCH)
        case Messages.masked_edges:
            yield _same_numbers(_OVER_MASKS, _BENCH)
        case Messages.whole_products if settings.device == "cpu":
            yield _same_numbers("1.5x as fast on a CPU", _BENCH)


def _same_numbers(speed: str, command: str) -> str:
    return (
        f"propagation: `model.propagation=auto` computes the same numbers {speed} on a yeast-sized"
        f" cell (3 layers, 8 mutants per step, two cores: `{command}`)."
    )


def _epistasis(settings: RunSettings) -> Iterator[str]:
    if settings.options.get("model.epistasis") is True:
        yield (
            "model.epistasis: a sample takes 6.1 times as long as one of DANGO with it and 4.1"
            " times without, at yeast size (`deltacell bench train --models"
            " dango,hetero_cell_late,hetero_cell_epistasis`)."
        )


def _late_mutants(settings: RunSettings) -> Iterator[str]:
    """Yield that fewer layers could see the deletions, which is another model."""
    layers = settings.options.get("model.layers")
    sees = settings.options.get("model.mutant_layers", layers)
    has_mutants = settings.messages not in (None, Messages.nothing, Messages.wild_type)
    is_late = (layers if sees is None else sees) == 1
    if has_mutants and not is_late:
        yield (
            "model.mutant_layers: with 1, deletions act in the last layer only: another model, of"
            " 4.1 times DANGO's time per sample at yeast size (`deltacell bench train --models"
            " dango,hetero_cell_late`)."
        )


def _as_in_the_other(changes: Sequence[SettingChange]) -> Iterator[str]:
    """Yield settings to try that the faster run has, if it has better ones.

    In ``changes``, A is the faster run and B the slower one.
    """
    for change in changes:
        match change.kind, change.a, change.b:
            case SettingKind.batch, int() as fast, int() as slow if slow < fast:
                yield f"batch: Try data.batch_size={fast}, as in the faster run."
            case SettingKind.threads, int() as fast, int() as slow if slow < fast:
                yield f"threads: Try trainer.threads={fast}, as in the faster run."
            case SettingKind.precision, str() as fast, "64":
                yield f"precision: Try trainer.precision={fast}, as in the faster run."
            case SettingKind.compiled, True, False:
                yield "compiled parts: Try trainer.compile=true, as in the faster run."
            case SettingKind.accumulated, int() as fast, int() as slow if slow < fast:
                yield f"accumulated batches: Try optimizer.accumulate={fast}."
