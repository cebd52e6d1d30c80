"""Metabolic models in SBML, read by cobra."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from deltacell.cell.genes import AMBIGUOUS, UNKNOWN, Genes
from deltacell.cell.metabolism import Metabolism
from deltacell.cell.readers.kegg_pathways import pathway_name
from deltacell.cell.readers.names import OnUnresolved, check_policy, name_error, unresolved_notes
from deltacell.cell.rule import clauses_of
from deltacell.counts import AMBIGUOUS_NAME, UNKNOWN_GENE, Counts, Source
from deltacell.errors import InputError, MissingExtraError
from deltacell.table import Text, open_text

NAME = "sbml"


@dataclass(frozen=True)
class WrittenMetabolism:
    """A metabolic model with its genes' names as written, not yet resolved.

    Parameters
    ----------
    reactions, metabolites
        Their identifiers.
    stoichiometry
        Triples of reaction, metabolite and coefficient.
    rules
        One Boolean rule a reaction, empty where it needs no gene.
    lower, upper
        Bounds of each reaction's flux.
    genes
        The genes of the model.
    path
        The file.
    sha256
        Its checksum.
    pathways
        For each reaction the names of its pathways; empty where none is known.
    notes
        Further counts worth knowing.
    """

    reactions: Sequence[str]
    metabolites: Sequence[str]
    stoichiometry: Sequence[tuple[int, int, float]]
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
        """Return the metabolism of a cell with the given genes; what is counted are the genes.

        Parameters
        ----------
        genes
            The cell's genes.
        on_unknown
            What to do with a gene that is unknown or ambiguous: ``error``, or ``drop``, which
            takes it as always living.
        """
        check_policy(on_unknown)
        names = self.gene_names
        resolved = genes.resolve(names)
        if on_unknown == "error" and not resolved.found.all():
            name = names[int(np.argmin(resolved.found))]
            raise name_error(genes, name, self.path, place=self._place_of(name))
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
        counts = Counts(
            len(names),
            int(resolved.found.sum()),
            {
                UNKNOWN_GENE: int((resolved.index == UNKNOWN).sum()),
                AMBIGUOUS_NAME: int((resolved.index == AMBIGUOUS).sum()),
            },
        )
        not_found = unresolved_notes(names, resolved.index)
        notes = {**self.notes, **not_found}
        source = Source(self.path.name, self.sha256, NAME, counts, "metabolism", notes)
        return metabolism, source

    def _place_of(self, gene: str) -> str:
        for reaction, rule in zip(self.reactions, self.rules, strict=True):
            if any(gene in clause for clause in clauses_of(rule)):
                return f" (in the rule of reaction '{reaction}')"
        return ""


def recognise(head: Sequence[str], file_name: str) -> bool:
    """Whether the root element is ``sbml``."""
    return any("<sbml" in line for line in head)


def read(path: str | os.PathLike[str]) -> WrittenMetabolism:
    """Read a model: plain, gzip or zip.

    Parameters
    ----------
    path
        SBML that cobra accepts. What it rejects, and a rule that it cannot read, is an error.
    """
    text = open_text(path)
    if not text.data.strip():
        raise InputError("the file is empty", where=text.path)
    model, n_complaints = _cobra_model(text)
    if not model.reactions:
        raise InputError("the model has no reactions", where=text.path)
    metabolite_index = {metabolite.id: i for i, metabolite in enumerate(model.metabolites)}
    pathways = _pathways(model)
    written = WrittenMetabolism(
        reactions=[reaction.id for reaction in model.reactions],
        metabolites=list(metabolite_index),
        stoichiometry=[
            (i, metabolite_index[metabolite.id], float(coefficient))
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
    _check_rules(written)
    return written


def _pathways(model: Any) -> list[list[str]]:
    """Return the pathways of each reaction: its groups, subsystem and maps of KEGG."""
    found: dict[str, dict[str, None]] = {reaction.id: {} for reaction in model.reactions}
    for group in model.groups:
        for member in group.members:
            if member.id in found:
                found[member.id][(group.name or group.id).strip()] = None
    for reaction in model.reactions:
        maps = reaction.annotation.get("kegg.pathway", ())
        written = [reaction.subsystem, *([maps] if isinstance(maps, str) else maps)]
        for name in map(pathway_name, written):
            if name:
                found[reaction.id][name] = None
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
        raise InputError(f"the file is not UTF-8 text ({error})", where=text.path) from error
    if "<sbml" not in xml:
        raise InputError("this is not SBML: it has no element <sbml>", where=text.path)
    with _quiet() as complaints:
        try:
            model = cobra.io.read_sbml_model(xml)
        except Exception as error:
            # cobra wraps whatever goes wrong in a general hint; the reason is what it wrapped.
            reason = str(error.__cause__ or error).strip().splitlines()[0]
            line, detail = _first_sbml_error(xml)
            raise InputError(
                f"cobra cannot read this as SBML: {reason}{detail}",
                where=text.path,
                line=line,
                fix="Check the file with cobra.io.validate_sbml_model.",
            ) from error
    malformed = next((c for c in complaints if c.startswith("Malformed gene_reaction_rule")), None)
    if malformed is not None:
        raise InputError(f"cobra cannot read a gene rule: {malformed}", where=text.path)
    return model, len(set(complaints))


def _first_sbml_error(xml: str) -> tuple[int | None, str]:
    """Return the line and message of the first error that the SBML library finds, if any."""
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


def _check_rules(written: WrittenMetabolism) -> None:
    for reaction, rule in zip(written.reactions, written.rules, strict=True):
        try:
            clauses_of(rule)
        except InputError as error:
            raise InputError(
                f"reaction '{reaction}': {error.what}", where=written.path, fix=error.fix
            ) from error
