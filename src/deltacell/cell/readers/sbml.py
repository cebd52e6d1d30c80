"""Metabolic models in SBML, read by cobra."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl

from deltacell.base.errors import InputError, need
from deltacell.cell.genes import Genes
from deltacell.cell.metabolism import Metabolism
from deltacell.cell.readers.names import OnUnresolved, Reader, account_for_names
from deltacell.storage.provenance import Counts, Source
from deltacell.storage.tables import File, open_text

# The names of KEGG pathway maps by number, without overviews (01100 to 01299).
_KEGG: dict[str, str] = dict(
    line.split("\t")
    for line in Path(__file__).with_name("kegg_pathways.tsv").read_text("utf-8").splitlines()
)
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
        dropped, unresolved = account_for_names(genes, names, index, on_unknown, self.path)
        counts = Counts(len(names), int((index >= 0).sum()), dropped)
        notes = {**self.notes, **unresolved}
        source = Source(self.path.name, self.sha256, reader.name, counts, "metabolism", notes)
        return Metabolism.build(genes, **self.parts, on_unknown="drop"), source


def _read(file: File) -> WrittenMetabolism:
    data, sha256 = open_text(file.path)
    model = _cobra_model(file.path, data)
    if not model.reactions:
        raise InputError("the model has no reactions", code="empty-file", where=file.path)
    metabolites = {metabolite.id: i for i, metabolite in enumerate(model.metabolites)}
    pathways = _pathways(model)
    parts = {
        "reactions": [reaction.id for reaction in model.reactions],
        "metabolites": list(metabolites),
        "stoichiometry": [
            (i, metabolites[metabolite.id], float(coefficient))
            for i, reaction in enumerate(model.reactions)
            for metabolite, coefficient in reaction.metabolites.items()
        ],
        "rules": [reaction.gene_reaction_rule for reaction in model.reactions],
        "lower": [float(reaction.lower_bound) for reaction in model.reactions],
        "upper": [float(reaction.upper_bound) for reaction in model.reactions],
        "pathways": pathways,
    }
    notes = {
        "reactions": len(model.reactions),
        "metabolites": len(metabolites),
        "pathways": len({name for names in pathways for name in names}),
    }
    return WrittenMetabolism(parts, [gene.id for gene in model.genes], file.path, sha256, notes)


def _pathways(model: Any) -> list[list[str]]:
    """Return the pathways of each reaction: its groups, subsystem and KEGG maps."""
    found: dict[str, set[str]] = {reaction.id: set() for reaction in model.reactions}
    for group in model.groups:
        for member in group.members:
            if member.id in found:
                found[member.id].add((group.name or group.id).strip())
    for reaction in model.reactions:
        maps = reaction.annotation.get("kegg.pathway", ())
        for written in [reaction.subsystem, *([maps] if isinstance(maps, str) else maps)]:
            name = written.strip()
            number = re.fullmatch(r"[a-z]{2,4}(\d{5})", name)
            is_overview = number is not None and 1100 <= int(number[1]) < 1300
            if name and not is_overview:
                found[reaction.id].add(_KEGG.get(number[1], name) if number else name)
    return [sorted(names) for names in found.values()]


def _cobra_model(path: Path, data: bytes) -> Any:
    need("cobra", "reading metabolism from SBML", "metabolism")
    import cobra

    disabled = logging.root.manager.disable
    logging.disable()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.filterwarnings("error", "Malformed gene_reaction_rule")
            written = data.decode("utf-8-sig", errors="replace")
            # libSBML crashes on some damaged files, so it is tried in another process first.
            # -P: do not import modules from the working directory.
            words, silent = [sys.executable, "-P", "-c", _TRY], subprocess.DEVNULL
            tried = subprocess.run(words, input=written.encode(), stdout=silent, stderr=silent)
            if tried.returncode < 0:
                raise ValueError("libSBML crashed")
            return cobra.io.read_sbml_model(written)
    except Exception as error:
        # cobra wraps errors in a general hint; the reason is the cause.
        what = f"cobra cannot read it: {str(error.__cause__ or error).strip().splitlines()[0]}"
        fix = "Check the file with cobra.io.validate_sbml_model."
        raise InputError(what, code="not-sbml", where=path, fix=fix) from error
    finally:
        logging.disable(disabled)


reader = Reader(
    "sbml",
    "metabolism",
    lambda file: any("<sbml" in line for line in file.head) and file,
    _read,
)
