"""Models of gene-deletion phenotypes: the wild type once, every mutant as an exact difference."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deltacell.api.evaluate import evaluate
    from deltacell.api.fit import fit
    from deltacell.api.rank import Ranked, rank
    from deltacell.api.run import Run
    from deltacell.api.start import Started, start
    from deltacell.api.why import ScoreExplanation, why
    from deltacell.base.errors import DeltacellError, InputError
    from deltacell.cell import Cell, Feature, Genes, Metabolism, Relation
    from deltacell.data.knowledge import Knowledge
    from deltacell.models import Dango, HeteroCell
    from deltacell.models.pairs import PairCell, PairTrees
    from deltacell.profile.explain import Explanation, explain
    from deltacell.screen import Batch, Coverage, Genotypes, Loader, Screen, Split, StudyCoverage

_HOME = {
    "cell": ("Cell", "Feature", "Genes", "Metabolism", "Relation"),
    "base.errors": ("DeltacellError", "InputError"),
    "data.knowledge": ("Knowledge",),
    "models": ("Dango", "HeteroCell"),
    "models.pairs": ("PairCell", "PairTrees"),
    "profile.explain": ("Explanation", "explain"),
    "screen": ("Batch", "Coverage", "Genotypes", "Loader", "Screen", "Split", "StudyCoverage"),
    "api.evaluate": ("evaluate",),
    "api.fit": ("fit",),
    "api.rank": ("Ranked", "rank"),
    "api.run": ("Run",),
    "api.start": ("Started", "start"),
    "api.why": ("ScoreExplanation", "why"),
}
_MODULE = {name: module for module, names in _HOME.items() for name in names}

__all__ = ["Batch", "Cell", "Coverage", "Dango", "DeltacellError", "Explanation", "Feature"]
__all__ += ["Genes", "Genotypes", "HeteroCell", "InputError", "Knowledge", "Loader", "Metabolism"]
__all__ += [
    "PairCell",
    "PairTrees",
    "Ranked",
    "Relation",
    "Run",
    "ScoreExplanation",
    "Screen",
    "Split",
    "Started",
    "StudyCoverage",
]
__all__ += ["evaluate", "explain", "fit", "rank", "start", "why"]


def __getattr__(name: str) -> Any:
    # Lazy, so that `deltacell --help` does not import PyTorch.
    if name not in _MODULE:
        raise AttributeError(f"module 'deltacell' has no attribute '{name}'")
    return getattr(import_module(f"deltacell.{_MODULE[name]}"), name)


def __dir__() -> list[str]:
    return list(__all__)
