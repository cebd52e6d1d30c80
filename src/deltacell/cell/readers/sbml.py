"""Metabolic models in SBML, read by cobra."""

from __future__ import annotations

import logging
import os
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from deltacell.cell.genes import Genes
from deltacell.cell.metabolism import Metabolism, clauses_of
from deltacell.cell.readers.names import (
    OnUnresolved,
    count_unresolved,
    name_error,
    unresolved_notes,
)
from deltacell.counts import Counts, Source
from deltacell.errors import InputError, MissingExtraError
from deltacell.table import Text, open_text, read_table

NAME = "sbml"


@dataclass(frozen=True)
class WrittenMetabolism:
    """A metabolic model with its genes' names as written, not yet resolved."""

    reactions: Sequence[str]
    metabolites: Sequence[str]
    stoichiometry: Sequence[tuple[int, int, float]]  # reaction, metabolite, coefficient
    rules: Sequence[str]
    lower: Sequence[float]
    upper: Sequence[float]
    genes: Sequence[str]
    path: Path
    sha256: str
    pathways: Sequence[Sequence[str]] = ()
    notes: Mapping[str, int | str] = field(default_factory=dict)

    @property
    def gene_names(self) -> list[str]:
        """The distinct names of its genes."""
        return list(dict.fromkeys(self.genes))

    def on(self, genes: Genes, on_unknown: OnUnresolved = "error") -> tuple[Metabolism, Source]:
        """Return the metabolism of a cell with the given genes; what is counted are the genes."""
        names = self.gene_names
        index = genes.resolve(names).index
        if on_unknown != "drop" and (index < 0).any():
            name = names[int((index < 0).argmax())]
            rules = zip(self.reactions, self.rules, strict=True)
            used = (r for r, rule in rules if any(name in clause for clause in clauses_of(rule)))
            place = f" (in the rule of reaction '{first}')" if (first := next(used, "")) else ""
            raise name_error(genes, name, self.path, place=place)
        metabolism = Metabolism.build(
            genes,
            self.reactions,
            self.metabolites,
            self.stoichiometry,
            self.rules,
            self.lower,
            self.upper,
            pathways=self.pathways,
            on_unknown="drop",
        )
        counts = Counts(len(names), int((index >= 0).sum()), count_unresolved(index))
        notes = {**self.notes, **unresolved_notes(names, index)}
        return metabolism, Source(
            self.path.name, self.sha256, NAME, counts, into="metabolism", notes=notes
        )


def recognise(head: Sequence[str], file_name: str) -> bool:
    """Whether the root element is ``sbml``."""
    return any("<sbml" in line for line in head)


def read(path: str | os.PathLike[str]) -> WrittenMetabolism:
    """Read a model, plain or compressed; what cobra rejects, also of a rule, is an error."""
    text = open_text(path)
    if not text.data.strip():
        raise InputError("the file is empty", code="empty-file", where=text.path)
    model, n_complaints = _cobra_model(text)
    if not model.reactions:
        raise InputError("the model has no reactions", code="empty-file", where=text.path)
    for reaction in model.reactions:
        try:
            clauses_of(reaction.gene_reaction_rule)
        except InputError as error:
            what = f"reaction '{reaction.id}': {error.what}"
            raise InputError(what, code=error.code, where=text.path) from error
    metabolites = {metabolite.id: i for i, metabolite in enumerate(model.metabolites)}
    pathways = _pathways(model)
    return WrittenMetabolism(
        reactions=[reaction.id for reaction in model.reactions],
        metabolites=list(metabolites),
        stoichiometry=[
            (i, metabolites[metabolite.id], float(coefficient))
            for i, reaction in enumerate(model.reactions)
            for metabolite, coefficient in reaction.metabolites.items()
        ],
        rules=[reaction.gene_reaction_rule for reaction in model.reactions],
        lower=[float(reaction.lower_bound) for reaction in model.reactions],
        upper=[float(reaction.upper_bound) for reaction in model.reactions],
        genes=[gene.id for gene in model.genes],
        path=text.path,
        sha256=text.sha256,
        pathways=pathways,
        notes={
            "reactions": len(model.reactions),
            "metabolites": len(model.metabolites),
            "pathways": len({name for names in pathways for name in names}),
            "warnings of cobra": n_complaints,
        },
    )


def pathway_name(written: str) -> str | None:
    """Return the name of a pathway; None where it is an overview of many pathways."""
    written = written.strip()
    number = re.fullmatch(r"[a-z]{2,4}(\d{5})", written)
    if not written or (number and 1100 <= int(number[1]) < 1300):
        return None
    return _kegg_names().get(number[1], written) if number else written


@cache
def _kegg_names() -> dict[str, str]:
    """Return the names of KEGG's maps by number; overviews, 01100 to 01299, are not in it."""
    table = read_table(Path(__file__).with_name("kegg_pathways.tsv"), columns=["map", "name"])
    return dict(table.frame.iter_rows())


def _pathways(model: Any) -> list[list[str]]:
    """Return the pathways of each reaction: its groups, subsystem and maps of KEGG."""
    found: dict[str, set[str]] = {reaction.id: set() for reaction in model.reactions}
    for group in model.groups:
        for member in group.members:
            if member.id in found:
                found[member.id].add((group.name or group.id).strip())
    for reaction in model.reactions:
        maps = reaction.annotation.get("kegg.pathway", ())
        written = [reaction.subsystem, *([maps] if isinstance(maps, str) else maps)]
        found[reaction.id] |= {name for name in map(pathway_name, written) if name}
    return [sorted(names) for names in found.values()]


def _cobra_model(text: Text) -> tuple[Any, int]:
    """Return cobra's model and the number of its complaints."""
    try:
        import cobra
    except ImportError:
        raise MissingExtraError("reading metabolism from SBML", "metabolism") from None
    try:
        xml = text.data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        what = f"the file is not UTF-8 text ({error})"
        raise InputError(what, code="not-utf8", where=text.path) from error
    if "<sbml" not in xml:
        what = "this is not SBML: it has no element <sbml>"
        raise InputError(what, code="not-sbml", where=text.path)
    with _quiet() as complaints:
        try:
            model = cobra.io.read_sbml_model(xml)
        except Exception as error:
            # cobra wraps whatever goes wrong in a general hint; the reason is what it wrapped.
            reason = str(error.__cause__ or error).strip().splitlines()[0]
            line, detail = _first_sbml_error(xml)
            raise InputError(
                f"cobra cannot read this as SBML: {reason}{detail}",
                code="not-sbml",
                where=text.path,
                line=line,
                fix="Check the file with cobra.io.validate_sbml_model.",
            ) from error
    malformed = next((c for c in complaints if c.startswith("Malformed gene_reaction_rule")), None)
    if malformed is not None:
        what = f"cobra cannot read a gene rule: {malformed}"
        raise InputError(what, code="bad-rule", where=text.path)
    return model, len(set(complaints))


def _first_sbml_error(xml: str) -> tuple[int | None, str]:
    from cobra.io.sbml import libsbml

    document = libsbml.readSBMLFromString(xml)
    for i in range(document.getNumErrors()):
        error = document.getError(i)
        if error.getSeverity() >= libsbml.LIBSBML_SEV_ERROR:
            return error.getLine() or None, f" {error.getShortMessage().strip()}"
    return None, ""


@contextmanager
def _quiet() -> Iterator[list[str]]:
    """Collect what cobra would log and warn, and leave logging and warnings as they were."""
    complaints: list[str] = []
    collector = logging.Handler(logging.WARNING)
    collector.emit = lambda record: complaints.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("cobra")
    propagated = logger.propagate
    logger.addHandler(collector)
    logger.propagate = False
    try:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            yield complaints
        complaints.extend(str(warning.message) for warning in warned)
    finally:
        logger.removeHandler(collector)
        logger.propagate = propagated
