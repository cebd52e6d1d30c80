"""Annotations: SGD's GO slim, GAF, GMT and tables of genes and terms."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import polars as pl

from deltacell.cell.annotation import Annotation
from deltacell.cell.genes import AMBIGUOUS, UNKNOWN, Genes
from deltacell.cell.readers.features import resolve_strains
from deltacell.cell.readers.head import stem_of
from deltacell.cell.readers.names import OnUnresolved, name_error, unresolved_notes
from deltacell.counts import AMBIGUOUS_NAME, UNKNOWN_GENE, Counts, Source
from deltacell.errors import InputError
from deltacell.sheet import BadRows, Sheet, as_utf8, is_missing, is_number, sheets, word
from deltacell.table import open_text, peek, read_table

NAMES = ("go_slim", "gaf", "gmt", "obo", "term_table")

#: Why a row is left out.
NO_TERM = "no term"
ROOT = "root of the ontology, which says that nothing is known"
NOT = "says that the gene does not have the term"
GENETIC = "inferred from genetic interactions"
REPEATED = "pair of gene and term given before"

_ASPECTS = {"P": "process", "F": "function", "C": "component"}
_ROOTS = ("GO:0008150", "GO:0003674", "GO:0005575")
# What a screen is to be predicted from must not have been told by a screen.
_GENETIC = ("IGI", "HGI")
_GO = re.compile(r"GO:\d{7}")
_SLIM_COLUMNS = ["orf", "gene", "sgdid", "aspect", "term", "id", "type"]
_GENE_WORD = re.compile(
    r"(?:gene|orf|locus|systematic|symbol|protein|uniprot)(?:name|id|symbol|tag)*"
)
_TERM_WORD = re.compile(
    r"(?:go)?(?:terms?|process|function|component)(?:name)?|go|goids?|gonames?|annotations?"
    r"|complex(?:es|name)?|proteincomplex|pathways?(?:name)?|famil(?:y|ies)|categor(?:y|ies)"
    r"|gene?sets?(?:name)?|module|locali[sz]ation|compartment|domains?|keywords?"
)


@dataclass(frozen=True)
class NamedTerms:
    """Pairs of a gene and a term as a file writes them, not yet resolved.

    Parameters
    ----------
    name
        What the annotation is called.
    genes
        Names of the gene of each pair; of several, separated by ``|``, the first that the cell
        knows counts.
    terms
        The term of each pair.
    ids
        The identifier of each term, where it has one.
    lines
        The line that each pair is written in.
    path, sha256, reader
        The file, and the reader that understood it.
    left_out
        Pairs that were left out, by reason.
    notes
        What else to say of the file.
    """

    name: str
    genes: pl.Series
    terms: pl.Series
    ids: Mapping[str, str]
    lines: np.ndarray
    path: Path
    sha256: str
    reader: str
    left_out: Mapping[str, int] = field(default_factory=dict)
    notes: Mapping[str, int | str] = field(default_factory=dict)

    def on(self, genes: Genes, on_unknown: OnUnresolved = "drop") -> tuple[Annotation, Source]:
        """Look up the names and return the annotation, with what became of every pair.

        Parameters
        ----------
        genes
            The cell's genes.
        on_unknown
            What to do with a pair whose gene is unknown or ambiguous: ``error``, or ``drop`` it
            with a count.
        """
        index = resolve_strains(genes, self.genes.str.extract(r"^([^|]*)")).index.copy()
        several = self.genes.str.contains("|", literal=True).to_numpy()
        for row in np.flatnonzero((index < 0) & several).tolist():
            found = genes.resolve(self.genes[row].split("|")).index
            index[row] = next((i for i in found if i >= 0), index[row])
        known = index >= 0
        first = self.genes.str.extract(r"^([^|]*)")
        if on_unknown == "error" and not known.all():
            unknown = int(np.argmin(known))
            raise name_error(genes, first[unknown], self.path, line=int(self.lines[unknown]))
        named = self.terms.filter(pl.Series(known)).unique(maintain_order=True).sort()
        code = self.terms.replace_strict(
            named, pl.Series(range(len(named)), dtype=pl.Int64), default=-1, return_dtype=pl.Int64
        ).to_numpy()
        annotation = Annotation.from_pairs(
            self.name,
            index[known],
            code[known],
            named.to_list(),
            n_genes=len(genes),
            ids=[self.ids.get(term, "") for term in named],
        )
        read = len(index) + sum(self.left_out.values())
        counts = Counts(
            read,
            len(annotation.indices),
            {
                **self.left_out,
                UNKNOWN_GENE: int((index == UNKNOWN).sum()),
                AMBIGUOUS_NAME: int((index == AMBIGUOUS).sum()),
                REPEATED: int(known.sum()) - len(annotation.indices),
            },
        )
        notes = {
            "terms": len(annotation.terms),
            "genes": int(annotation.known.sum()),
            **self.notes,
            **unresolved_notes(first, index),
        }
        source = Source(
            self.path.name, self.sha256, self.reader, counts, into=self.name, notes=notes
        )
        return annotation, source


def recognise(path: str | os.PathLike[str]) -> str | None:
    """Return which of `NAMES` a file is; None if none.

    Parameters
    ----------
    path
        The file, plain or packed.
    """
    head = [line for line in peek(path, 40) if line.strip()]
    if not head:
        return None
    if head[0].startswith("!gaf-version") or any(map(_is_gaf, head)):
        return "gaf"
    if any(line.strip() == "[Term]" for line in head) and head[0].startswith("format-version"):
        return "obo"
    rows = [line.split("\t") for line in head]
    if all(len(row) == 7 and row[3].strip() in _ASPECTS for row in rows):
        return "go_slim"
    if _is_gmt(path, rows):
        return "gmt"
    return "term_table" if _form(path) is not None else None


def read(path: str | os.PathLike[str], ontology: Ontology | None = None) -> list[NamedTerms]:
    """Return the annotations of a file: one per aspect of GO, or one in all.

    Parameters
    ----------
    path
        A file that `recognise` knows.
    ontology
        The names and parents of GO terms, for files that have only their identifiers.
    """
    path = Path(path)
    kind = recognise(path)
    if kind == "go_slim":
        return _read_slim(path)
    if kind == "gaf":
        return _read_gaf(path, ontology)
    if kind == "gmt":
        return [_read_gmt(path)]
    if kind == "term_table":
        return [_read_table(path, ontology)]
    raise InputError(
        "this is not an annotation",
        where=path,
        fix="Read are SGD's go_slim_mapping, GAF, GMT and tables with the columns gene and term.",
    )


@dataclass(frozen=True)
class Ontology:
    """Names and parents of terms, from an OBO file such as ``go-basic.obo``."""

    names: Mapping[str, str]
    parents: Mapping[str, tuple[str, ...]]

    def with_ancestors(self, term: str) -> set[str]:
        """Return a term and all that it is a kind or a part of, but the roots."""
        found: set[str] = set()
        left = [term]
        while left:
            one = left.pop()
            if one not in found:
                found.add(one)
                left += self.parents.get(one, ())
        return found - set(_ROOTS)


def read_ontology(path: str | os.PathLike[str]) -> Ontology:
    """Read an OBO file: ``id``, ``name``, ``is_a`` and ``relationship: part_of`` of its terms."""
    data, _ = as_utf8(open_text(path).data)
    names: dict[str, str] = {}
    parents: dict[str, tuple[str, ...]] = {}
    for stanza in data.decode().split("\n[Term]\n")[1:]:
        stanza = stanza.split("\n[", 1)[0]
        facts = [line.partition(": ")[::2] for line in stanza.splitlines()]
        identifier = next((value for key, value in facts if key == "id"), "").strip()
        names[identifier] = next((value for key, value in facts if key == "name"), identifier)
        above = [v for k, v in facts if k == "is_a"]
        above += [
            v.removeprefix("part_of ")
            for k, v in facts
            if k == "relationship" and v.startswith("part_of ")
        ]
        parents[identifier] = tuple(value.split(" ! ")[0].strip() for value in above)
        for alternative in (value for key, value in facts if key == "alt_id"):
            names[alternative.strip()] = names[identifier]
            parents[alternative.strip()] = (identifier,)
    return Ontology(names, parents)


def _read_slim(path: Path) -> list[NamedTerms]:
    table = read_table(path, columns=_SLIM_COLUMNS)
    frame = table.frame.with_columns(pl.all().str.strip_chars(), line=pl.Series(table.lines))
    found = []
    for letter, aspect in _ASPECTS.items():
        rows = frame.filter(pl.col("aspect") == letter)
        if not rows.height:
            continue
        root = rows["id"].is_in(_ROOTS)
        without = rows["id"] == ""
        kept = rows.filter(~root & ~without)
        found.append(
            NamedTerms(
                f"go_slim_{aspect}",
                kept["orf"] + "|" + kept["gene"],
                kept["term"],
                dict(zip(kept["term"], kept["id"], strict=True)),
                kept["line"].to_numpy(),
                path,
                table.sha256,
                "go_slim",
                {ROOT: int(root.sum()), NO_TERM: int((without & ~root).sum())},
            )
        )
    strange = frame.filter(~pl.col("aspect").is_in(list(_ASPECTS)))
    if strange.height:
        raise InputError(
            f"the aspect {strange['aspect'][0]!r} is none of C, F, P, in {strange.height:,} rows",
            where=path,
            line=int(strange["line"][0]),
        )
    return found


def _is_gaf(line: str) -> bool:
    row = line.split("\t")
    return len(row) in (15, 16, 17) and _GO.fullmatch(row[4]) is not None and row[8] in _ASPECTS


def _read_gaf(path: Path, ontology: Ontology | None) -> list[NamedTerms]:
    text = open_text(path)
    data, _ = as_utf8(text.data)
    rows: dict[str, list[tuple[str, str, int]]] = {letter: [] for letter in _ASPECTS}
    left_out = {letter: dict.fromkeys((ROOT, NOT, GENETIC), 0) for letter in _ASPECTS}
    bad = BadRows(path)
    for number, line in enumerate(data.decode().split("\n"), 1):
        if not line.strip() or line.startswith("!"):
            continue
        if not _is_gaf(line):
            bad.add("not a row of GAF", np.array([number]), [line[:60]])
            continue
        row = line.split("\t")
        aspect, evidence = row[8], row[6]
        why = (
            NOT
            if "NOT" in row[3].upper().split("|")
            else ROOT
            if row[4] in _ROOTS or evidence == "ND"
            else GENETIC
            if evidence in _GENETIC
            else None
        )
        if why is not None:
            left_out[aspect][why] += 1
            continue
        # The systematic name is the first synonym in SGD's files; others know the symbol.
        names = [row[2], *row[10].split("|"), row[1]]
        rows[aspect].append(("|".join(filter(None, names)), row[4], number))
    bad.refuse("A row has 15 to 17 columns, the fifth a GO identifier.")
    found = []
    for letter, aspect in _ASPECTS.items():
        if not rows[letter]:
            continue
        genes, terms, lines = zip(*rows[letter], strict=True)
        found.append(
            _named(
                NamedTerms(
                    f"go_{aspect}",
                    pl.Series(genes, dtype=pl.String),
                    pl.Series(terms, dtype=pl.String),
                    {},
                    np.array(lines, dtype=np.int64),
                    path,
                    text.sha256,
                    "gaf",
                    left_out[letter],
                ),
                ontology,
            )
        )
    return found


def _named(given: NamedTerms, ontology: Ontology | None) -> NamedTerms:
    """Return the terms by their names, and those above them, where an ontology tells."""
    ids = {term: term for term in given.terms.unique() if _GO.fullmatch(term)}
    if not ids:
        return given
    if ontology is None:
        note = "terms are known by their identifiers; put go-basic.obo into the folder for names"
        return _replaced(given, ids=ids, notes={**given.notes, "names_of_terms": note})
    above = {term: sorted(ontology.with_ancestors(term)) for term in ids}
    lists = [above.get(term, [term]) for term in given.terms]
    times = np.array([len(terms) for terms in lists], dtype=np.int64)
    flat = [term for terms in lists for term in terms]
    at = np.repeat(np.arange(len(lists)), times)
    names = pl.Series([ontology.names.get(term, term) for term in flat], dtype=pl.String)
    return _replaced(
        given,
        genes=given.genes.gather(at),
        terms=names,
        ids=dict(zip(names, flat, strict=True)),
        lines=given.lines[at],
        notes={**given.notes, "pairs_before_parent_terms": len(lists)},
    )


def _replaced(given: NamedTerms, **changed: object) -> NamedTerms:
    return NamedTerms(**{**given.__dict__, **changed})


def _is_gmt(path: str | os.PathLike[str], rows: Sequence[Sequence[str]]) -> bool:
    """Whether lines are a term, what it is, and its genes, as the file's name or a link tells."""
    if not all(len(row) > 2 for row in rows):
        return False
    linked = all(row[1].startswith("http") or row[1].lower() == "na" for row in rows)
    return Path(path).name.lower().removesuffix(".gz").endswith(".gmt") or (
        linked and len({len(row) for row in rows}) > 2
    )


def _read_gmt(path: Path) -> NamedTerms:
    text = open_text(path)
    data, _ = as_utf8(text.data)
    genes, terms, lines = [], [], []
    ids: dict[str, str] = {}
    bad = BadRows(path)
    for number, line in enumerate(data.decode().split("\n"), 1):
        if not line.strip():
            continue
        term, *rest = (name.strip() for name in line.split("\t"))
        # Enrichr leaves a weight behind the gene's name.
        members = [name.split(",")[0] for name in rest[1:] if name]
        if not term or not members:
            bad.add("no term or no gene", np.array([number]), [line[:60]])
            continue
        found = _GO.search(term) or _GO.search(rest[0])
        ids[term] = found[0] if found else ""
        genes += members
        terms += [term] * len(members)
        lines += [number] * len(members)
    bad.refuse("A line is a term, its description and its genes, separated by tabs.")
    return NamedTerms(
        stem_of(path.name),
        pl.Series(genes, dtype=pl.String),
        pl.Series(terms, dtype=pl.String),
        ids,
        np.array(lines, dtype=np.int64),
        path,
        text.sha256,
        "gmt",
    )


def _form(path: str | os.PathLike[str]) -> tuple[Sheet, int | None, int, int, int | None] | None:
    """Return the sheet, the row of the header, and the columns of gene, term and identifier."""
    for sheet in sheets(path):
        if sheet.separator == " ":
            continue
        for at in range(min(len(sheet.rows) - 1, 10)):
            words = [word(name) for name in sheet.header(at)]
            genes = [i for i, w in enumerate(words) if _GENE_WORD.fullmatch(w)]
            terms = [i for i, w in enumerate(words) if _TERM_WORD.fullmatch(w)]
            rows = [row for row in sheet.rows[at + 1 :] if len(row) == len(words)]
            terms = [i for i in terms if rows and not all(is_number(row[i]) for row in rows)]
            if genes and terms and not set(genes) & set(terms):
                of_go = [i for i in terms if all(_GO.fullmatch(row[i]) for row in rows)]
                named = [i for i in terms if i not in of_go]
                # The systematic name says most where a gene has several columns.
                exact = [i for i in genes if re.search("orf|systematic|locus", words[i])]
                return (
                    sheet,
                    at,
                    (exact or genes)[0],
                    (named or of_go)[0],
                    of_go[0] if of_go and named else None,
                )
        if all(len(row) == 2 and _GO.fullmatch(row[1]) for row in sheet.rows):
            return sheet, None, 0, 1, None
    return None


def _read_table(path: Path, ontology: Ontology | None) -> NamedTerms:
    form = _form(path)
    assert form is not None
    sheet, at, gene, term, identifier = form
    bad = BadRows(path)
    table, notes = sheet.below(at, bad)
    columns = table.frame.columns
    genes = table.frame[columns[gene]].str.strip_chars()
    terms = table.frame[columns[term]].str.strip_chars()
    without, unnamed = is_missing(terms), is_missing(genes)
    bad.add(
        f"column '{columns[gene]}' holds no gene name",
        table.lines[unnamed & ~without],
        [""] * int((unnamed & ~without).sum()),
    )
    bad.refuse()
    kept = pl.Series(~without)
    ids = (
        {}
        if identifier is None
        else dict(
            zip(terms.filter(kept), table.frame[columns[identifier]].filter(kept), strict=True)
        )
    )
    return _named(
        NamedTerms(
            stem_of(path.name),
            genes.filter(kept),
            terms.filter(kept),
            ids,
            table.lines[~without],
            path,
            table.sha256,
            "term_table",
            {NO_TERM: int(without.sum())},
            notes,
        ),
        ontology,
    )
