"""Models of gene-deletion phenotypes: the wild type once, every mutant as an exact difference."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deltacell.cell import Cell, Feature, Genes, Metabolism, Relation
    from deltacell.errors import DeltacellError, InputError
    from deltacell.profile.explain import explain
    from deltacell.screen import (
        Batch,
        Coverage,
        GenotypeDataset,
        Genotypes,
        Loader,
        Screen,
        Split,
        StudyCoverage,
    )

_HOME = {
    "cell": ("Cell", "Feature", "Genes", "Metabolism", "Relation"),
    "errors": ("DeltacellError", "InputError"),
    "profile.explain": ("explain",),
    "screen": (
        "Batch",
        "Coverage",
        "GenotypeDataset",
        "Genotypes",
        "Loader",
        "Screen",
        "Split",
        "StudyCoverage",
    ),
}
_MODULE = {name: module for module, names in _HOME.items() for name in names}

__all__ = [
    "Batch",
    "Cell",
    "Coverage",
    "DeltacellError",
    "Feature",
    "Genes",
    "GenotypeDataset",
    "Genotypes",
    "InputError",
    "Loader",
    "Metabolism",
    "Relation",
    "Screen",
    "Split",
    "StudyCoverage",
    "explain",
]


def __getattr__(name: str) -> Any:
    # Names are looked up when used, so that `deltacell --help` does not wait for PyTorch.
    if name not in _MODULE:
        raise AttributeError(f"module 'deltacell' has no attribute '{name}'")
    return getattr(import_module(f"deltacell.{_MODULE[name]}"), name)


def __dir__() -> list[str]:
    return list(__all__)
