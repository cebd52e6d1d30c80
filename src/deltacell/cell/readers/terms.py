"""Annotations: SGD's GO slim, GAF, GMT and tables of genes and terms."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl

from deltacell.arrays import Ints
from deltacell.cell.annotation import Annotation
from deltacell.cell.genes import Genes
from deltacell.cell.readers.names import (
    OnUnresolved,
    count_unresolved,
    refuse_unresolved,
    resolve_strains,
    stem_of,
    unresolved_notes,
)
from deltacell.counts import Counts, Source
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

    Of several names of a gene, separated by ``|``, the first that the cell knows counts.
    """

    name: str
    genes: pl.Series
    terms: pl.Series
    ids: Mapping[str, str]  # of terms that have one
    lines: Ints
    path: Path
    sha256: str
    reader: str
    left_out: Mapping[str, int] = field(default_factory=dict)  # pairs by reason
    notes: Mapping[str, int | str] = field(default_factory=dict)

    def on(self, genes: Genes, on_unknown: OnUnresolved = "drop") -> tuple[Annotation, Source]:
        """Look up the names and return the annotation, with what became of every pair."""
        first = self.genes.str.extract(r"^([^|]*)")
        index = resolve_strains(genes, first).copy()
        several = self.genes.str.contains("|", literal=True).to_numpy()
        for row in np.flatnonzero((index < 0) & several).tolist():
            found = genes.resolve(self.genes[row].split("|")).index
            index[row] = next((i for i in found if i >= 0), index[row])
        refuse_unresolved(genes, first, index, on_unknown, self.path, self.lines)
        known = index >= 0
        named = self.terms.filter(pl.Series(known)).unique().sort()
        code = self.terms.filter(pl.Series(known)).replace_strict(
            named, pl.Series(range(len(named)), dtype=pl.Int64), return_dtype=pl.Int64
        )
        annotation = Annotation.from_pairs(
            self.name,
            index[known],
            code.to_numpy(),
            named.to_list(),
            n_genes=len(genes),
            ids=[self.ids.get(term, "") for term in named],
        )
        kept = len(annotation.indices)
        repeated = {REPEATED: int(known.sum()) - kept}
        dropped = {**self.left_out, **count_unresolved(index), **repeated}
        counts = Counts(len(index) + sum(self.left_out.values()), kept, dropped)
        notes = {
            "terms": len(annotation.terms),
            "genes": int(annotation.known.sum()),
            **self.notes,
            **unresolved_notes(first, index),
        }
        file = self.path.name, self.sha256, self.reader
        return annotation, Source(*file, counts, into=self.name, notes=notes)


def recognise(path: str | os.PathLike[str]) -> str | None:
    """Return which of `NAMES` a file is; None if none."""
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
    """Read the annotations of a file that `recognise` knows: one per aspect of GO, or one."""
    path = Path(path)
    kind = recognise(path)
    if kind == "go_slim":
        return _read_slim(path)
    if kind == "gaf":
        return [_named(terms, ontology) for terms in _read_gaf(path)]
    if kind == "gmt":
        return [_read_gmt(path)]
    if kind == "term_table":
        return [_named(_read_table(path), ontology)]
    raise InputError(
        "this is not an annotation",
        code="not-an-annotation",
        where=path,
        fix="Read are SGD's go_slim_mapping, GAF, GMT and tables with the columns gene and term.",
    )


class Ontology(NamedTuple):
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
    names: dict[str, str] = {}
    parents: dict[str, tuple[str, ...]] = {}
    for stanza in as_utf8(open_text(path).data)[0].decode().split("\n[Term]\n")[1:]:
        facts: dict[str, list[str]] = {}
        for line in stanza.split("\n[", 1)[0].splitlines():
            key, _, value = line.partition(": ")
            facts.setdefault(key, []).append(value)
        identifier = facts.get("id", [""])[0].strip()
        parts = [v for v in facts.get("relationship", ()) if v.startswith("part_of ")]
        above = [*facts.get("is_a", ()), *(v.removeprefix("part_of ") for v in parts)]
        names[identifier] = facts.get("name", [identifier])[0]
        parents[identifier] = tuple(value.split(" ! ")[0].strip() for value in above)
        for alternative in facts.get("alt_id", ()):
            names[alternative.strip()] = names[identifier]
            parents[alternative.strip()] = (identifier,)
    return Ontology(names, parents)


def _read_slim(path: Path) -> list[NamedTerms]:
    table = read_table(path, columns=_SLIM_COLUMNS)
    frame = table.frame.with_columns(pl.all().str.strip_chars(), line=pl.Series(table.lines))
    strange = ~frame["aspect"].is_in(list(_ASPECTS)).to_numpy()
    table.refuse("aspect", strange, f"is none of C, F, P, in {strange.sum():,} rows")
    found = []
    for letter, aspect in _ASPECTS.items():
        rows = frame.filter(pl.col("aspect") == letter)
        if not rows.height:
            continue
        root, without = rows["id"].is_in(_ROOTS), rows["id"] == ""
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
                {ROOT: int(root.sum()), NO_TERM: int(without.sum())},
            )
        )
    return found


def _is_gaf(line: str) -> bool:
    row = line.split("\t")
    return len(row) in (15, 16, 17) and _GO.fullmatch(row[4]) is not None and row[8] in _ASPECTS


def _read_gaf(path: Path) -> list[NamedTerms]:
    text = open_text(path)
    pairs: dict[str, list[tuple[str, str, int]]] = {letter: [] for letter in _ASPECTS}
    left_out = {letter: dict.fromkeys((ROOT, NOT, GENETIC), 0) for letter in _ASPECTS}
    bad = BadRows(path)
    for number, line in _lines(text.data):
        if line.startswith("!"):
            continue
        if not _is_gaf(line):
            bad.add("not a row of GAF", np.array([number]), [line[:60]])
            continue
        row = line.split("\t")
        why = None
        if "NOT" in row[3].upper().split("|"):
            why = NOT
        elif row[4] in _ROOTS or row[6] == "ND":
            why = ROOT
        elif row[6] in ("IGI", "HGI"):
            # What a screen is to be predicted from must not come from a screen.
            why = GENETIC
        if why is not None:
            left_out[row[8]][why] += 1
            continue
        # The systematic name is the first synonym in SGD's files; others know the symbol.
        names = [row[2], *row[10].split("|"), row[1]]
        pairs[row[8]].append(("|".join(filter(None, names)), row[4], number))
    bad.refuse("A row has 15 to 17 columns, the fifth a GO identifier.")
    file = path, text.sha256, "gaf"
    return [
        NamedTerms(f"go_{aspect}", *_columns(pairs[letter], {}), *file, left_out[letter])
        for letter, aspect in _ASPECTS.items()
        if pairs[letter]
    ]


def _lines(data: bytes) -> Iterator[tuple[int, str]]:
    lines = as_utf8(data)[0].decode().split("\n")
    return ((number, line) for number, line in enumerate(lines, 1) if line.strip())


def _columns(
    pairs: Sequence[tuple[str, str, int]], ids: Mapping[str, str]
) -> tuple[pl.Series, pl.Series, Mapping[str, str], Ints]:
    genes = pl.Series([gene for gene, _, _ in pairs], dtype=pl.String)
    terms = pl.Series([term for _, term, _ in pairs], dtype=pl.String)
    return genes, terms, ids, np.array([line for _, _, line in pairs], dtype=np.int64)


def _named(given: NamedTerms, ontology: Ontology | None) -> NamedTerms:
    """Return the terms by their names, and those above them, where an ontology has them."""
    ids = {term: term for term in given.terms.unique() if _GO.fullmatch(term)}
    if not ids:
        return given
    if ontology is None:
        note = "terms are known by their identifiers; put go-basic.obo into the folder for names"
        return replace(given, ids=ids, notes={**given.notes, "names_of_terms": note})
    above = {term: sorted(ontology.with_ancestors(term)) for term in ids}
    lists = [above.get(term, [term]) for term in given.terms]
    flat = [term for terms in lists for term in terms]
    at = np.repeat(np.arange(len(lists)), [len(terms) for terms in lists])
    names = pl.Series([ontology.names.get(term, term) for term in flat], dtype=pl.String)
    return replace(
        given,
        genes=given.genes.gather(at),
        terms=names,
        ids=dict(zip(names, flat, strict=True)),
        lines=given.lines[at],
        notes={**given.notes, "pairs_before_parent_terms": len(lists)},
    )


def _is_gmt(path: str | os.PathLike[str], rows: Sequence[Sequence[str]]) -> bool:
    """Whether lines are a term, what it is, and its genes, as the file's name or a link shows."""
    if not all(len(row) > 2 for row in rows):
        return False
    linked = all(row[1].startswith("http") or row[1].lower() == "na" for row in rows)
    return Path(path).name.lower().removesuffix(".gz").endswith(".gmt") or (
        linked and len({len(row) for row in rows}) > 2
    )


def _read_gmt(path: Path) -> NamedTerms:
    text = open_text(path)
    pairs, ids = [], {}
    bad = BadRows(path)
    for number, line in _lines(text.data):
        term, *rest = (name.strip() for name in line.split("\t"))
        # Enrichr leaves a weight behind the gene's name.
        members = [name.split(",")[0] for name in rest[1:] if name]
        if not term or not members:
            bad.add("no term or no gene", np.array([number]), [line[:60]])
            continue
        found = _GO.search(term) or _GO.search(rest[0])
        ids[term] = found[0] if found else ""
        pairs += [(gene, term, number) for gene in members]
    bad.refuse("A line is a term, its description and its genes, separated by tabs.")
    return NamedTerms(stem_of(path.name), *_columns(pairs, ids), path, text.sha256, "gmt")


class _Form(NamedTuple):
    sheet: Sheet
    at: int | None  # the row of the header
    gene: int
    term: int
    identifier: int | None = None


def _form(path: str | os.PathLike[str]) -> _Form | None:
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
                identifier = of_go[0] if of_go and named else None
                return _Form(sheet, at, (exact or genes)[0], (named or of_go)[0], identifier)
        if all(len(row) == 2 and _GO.fullmatch(row[1]) for row in sheet.rows):
            return _Form(sheet, None, 0, 1)
    return None


def _read_table(path: Path) -> NamedTerms:
    form = _form(path)
    assert form is not None
    bad = BadRows(path)
    table, notes = form.sheet.below(form.at, bad)
    genes, terms = (table.frame.to_series(i).str.strip_chars() for i in (form.gene, form.term))
    without = is_missing(terms)
    unnamed = is_missing(genes) & ~without
    what = f"column '{genes.name}' holds no gene name"
    bad.add(what, table.lines[unnamed], [""] * int(unnamed.sum()))
    bad.refuse()
    kept = pl.Series(~without)
    ids: dict[str, str] = {}
    if form.identifier is not None:
        identifiers = table.frame.to_series(form.identifier).filter(kept)
        ids = dict(zip(terms.filter(kept), identifiers, strict=True))
    return NamedTerms(
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
    )
