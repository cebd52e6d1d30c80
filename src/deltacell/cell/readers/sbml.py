"""Metabolic models in SBML, read by cobra."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
import warnings
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl

from deltacell.base.errors import InputError, need
from deltacell.cell.genes import Genes
from deltacell.cell.metabolism import Metabolism
from deltacell.cell.readers.names import OnUnresolved, Reader, account_for_names
from deltacell.storage.provenance import Counts, Source
from deltacell.storage.tables import File, open_text

_KEGG_LINES = Path(__file__).with_name("kegg_pathways.tsv").read_text("utf-8").splitlines()
#: The names of KEGG pathway maps by number, without overviews (01100 to 01299).
_KEGG: dict[str, str] = dict(line.split("\t") for line in _KEGG_LINES)
_OVERVIEWS = range(1100, 1300)
_KEGG_MAP = re.compile(r"[a-z]{2,4}(\d{5})")
_TRY = "import libsbml, sys; libsbml.readSBMLFromString(sys.stdin.buffer.read().decode())"


class WrittenMetabolism(NamedTuple):
    """A metabolic model with gene names as in the file, not yet resolved."""

    parts: Mapping[str, Any]  # arguments of Metabolism.build
    gene_names: list[str]
    path: Path
    sha256: str
    notes: Mapping[str, int | str]

    def on(self, genes: Genes, on_unknown: OnUnresolved = "error") -> tuple[Metabolism, Source]:
        """Return the metabolism of a cell with the given genes; the counts are of genes."""
        names = pl.Series(self.gene_names, dtype=pl.String)
        index = genes.resolve(names)
        not_found = account_for_names(genes, names, index, on_unknown, self.path)
        counts = Counts(len(names), int((index >= 0).sum()), not_found.dropped)
        notes = {**self.notes, **not_found.notes}
        source = Source(self.path.name, self.sha256, reader.name, counts, "metabolism", notes)
        return Metabolism.build(genes, **self.parts, on_unknown="drop"), source


def _read(file: File) -> WrittenMetabolism:
    """Read a metabolic model; its genes are looked up by `WrittenMetabolism.on`."""
    content = open_text(file.path)
    model = _cobra_model(file.path, content.data)
    if not model.reactions:
        raise InputError("the model has no reactions", code="empty-file", where=file.path)
    pathways = _pathways(model)
    parts = {
        "reactions": [reaction.id for reaction in model.reactions],
        "metabolites": [metabolite.id for metabolite in model.metabolites],
        "stoichiometry": _stoichiometry(model),
        "rules": [reaction.gene_reaction_rule for reaction in model.reactions],
        "lower": [float(reaction.lower_bound) for reaction in model.reactions],
        "upper": [float(reaction.upper_bound) for reaction in model.reactions],
        "pathways": pathways,
    }
    notes = {
        "reactions": len(model.reactions),
        "metabolites": len(model.metabolites),
        "pathways": len(set(chain.from_iterable(pathways))),
    }
    gene_names = [gene.id for gene in model.genes]
    return WrittenMetabolism(parts, gene_names, file.path, content.sha256, notes)


def _stoichiometry(model: Any) -> list[tuple[int, int, float]]:
    """Return the reaction, the metabolite and the coefficient of each entry, by their numbers."""
    number = {metabolite.id: i for i, metabolite in enumerate(model.metabolites)}
    entries = []
    for i, reaction in enumerate(model.reactions):
        for metabolite, coefficient in reaction.metabolites.items():
            entries.append((i, number[metabolite.id], float(coefficient)))
    return entries


def _pathways(model: Any) -> list[list[str]]:
    """Return the pathways of each reaction: its groups, subsystem and KEGG maps."""
    pathways: dict[str, set[str]] = {reaction.id: set() for reaction in model.reactions}
    for group in model.groups:
        for member in group.members:
            if member.id in pathways:
                pathways[member.id].add((group.name or group.id).strip())
    for reaction in model.reactions:
        maps = reaction.annotation.get("kegg.pathway", ())
        names = [reaction.subsystem, *([maps] if isinstance(maps, str) else maps)]
        pathways[reaction.id].update(filter(None, map(_pathway_name, names)))
    return [sorted(names) for names in pathways.values()]


def _pathway_name(written: str) -> str:
    """Return the name of a pathway or of a KEGG map; empty for an overview of many pathways."""
    name = written.strip()
    match = _KEGG_MAP.fullmatch(name)
    if match is None:
        return name
    number = match[1]
    return "" if int(number) in _OVERVIEWS else _KEGG.get(number, name)


def _cobra_model(path: Path, data: bytes) -> Any:
    """Return a model as cobra reads it, without its messages."""
    need("cobra", "reading metabolism from SBML", "metabolism")
    import cobra

    disabled = logging.root.manager.disable
    logging.disable()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.filterwarnings("error", "Malformed gene_reaction_rule")
            text = data.decode("utf-8-sig", errors="replace")
            if _crashes_libsbml(text):
                raise ValueError("libSBML crashed")
            return cobra.io.read_sbml_model(text)
    except Exception as error:
        # cobra wraps errors in a general hint; the reason is the cause.
        reason = str(error.__cause__ or error).strip().splitlines()[0]
        message = f"cobra cannot read it: {reason}"
        fix = "Check the file with cobra.io.validate_sbml_model."
        raise InputError(message, code="not-sbml", where=path, fix=fix) from error
    finally:
        logging.disable(disabled)


def _crashes_libsbml(text: str) -> bool:
    """Try in another process whether libSBML crashes on a text, as on some damaged files."""
    # -P: do not import modules from the working directory.
    command = [sys.executable, "-P", "-c", _TRY]
    finished = subprocess.run(
        command,
        input=text.encode(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    return finished.returncode < 0


def _find(file: File) -> File | None:
    return file if any("<sbml" in line for line in file.head) else None


reader = Reader("sbml", "metabolism", _find, _read)
