"""Annotations: SGD's GO slim, GAF, GMT and tables of genes and terms."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl

from deltacell.cell.annotation import Annotation
from deltacell.cell.genes import Genes
from deltacell.cell.readers.names import (
    OnUnresolved,
    Reader,
    account_for_names,
    pattern,
    resolve_strains,
    stem_of,
    table_reader,
    without_header,
)
from deltacell.counts import Counts, Source
from deltacell.table import File, Sheet, Table, is_missing, is_number

#: Why a row is left out.
NO_TERM = "no term"
ROOT = "root of the ontology, which says that nothing is known"

_ASPECTS = {"P": "process", "F": "function", "C": "component"}
_ROOTS = ("GO:0008150", "GO:0003674", "GO:0005575")
_GO = re.compile(r"GO:\d{7}")
_SLIM_COLUMNS = ("orf", "gene", "sgdid", "aspect", "term", "id", "type")
_GENE_WORD, _TERM_WORD = pattern("terms", "gene"), pattern("terms", "term")


@dataclass(frozen=True)
class NamedTerms:
    """Pairs of a gene and a term as a file writes them, not yet resolved.

    Of several names of a gene, separated by ``|``, the first that the cell knows counts.
    """

    name: str
    pairs: pl.DataFrame  # gene, term, line
    ids: Mapping[str, str]  # of terms that have one
    path: Path
    sha256: str
    reader: str
    left_out: Mapping[str, int] = field(default_factory=dict)  # pairs by reason
    notes: Mapping[str, int | str] = field(default_factory=dict)

    def on(self, genes: Genes, on_unknown: OnUnresolved = "drop") -> tuple[Annotation, Source]:
        """Look up the names and return the annotation, with what became of every pair."""
        names = self.pairs["gene"]
        first = names.str.extract(r"^([^|]*)")
        index = resolve_strains(genes, first)
        several = names.str.contains("|", literal=True).to_numpy()
        for row in np.flatnonzero((index < 0) & several).tolist():
            found = genes.resolve(names[row].split("|"))
            index[row] = next((i for i in found if i >= 0), index[row])
        lines, known = self.pairs["line"].to_numpy(), index >= 0
        dropped, unresolved = account_for_names(first, index, on_unknown, self.path, lines)
        kept_terms = self.pairs["term"].filter(pl.Series(known)).to_list()
        terms, code = np.unique(kept_terms, return_inverse=True)
        named = terms.tolist()
        ids = [self.ids.get(term, "") for term in named]
        annotation = Annotation.from_pairs(
            self.name, index[known], code, named, n_genes=len(genes), ids=ids
        )
        kept = annotation.matrix.nnz
        repeated = {"pair of gene and term given before": int(known.sum()) - kept}
        read = len(index) + sum(self.left_out.values())
        counts = Counts(read, kept, {**self.left_out, **dropped, **repeated})
        numbers = {"terms": len(named), "genes": int(annotation.known.sum())}
        notes = {**numbers, **self.notes, **unresolved}
        file = self.path.name, self.sha256, self.reader
        return annotation, Source(*file, counts, into=self.name, notes=notes)


def _is_slim(sheet: Sheet) -> bool:
    return all(len(row) == len(_SLIM_COLUMNS) and row[3] in _ASPECTS for row in sheet.rows)


def _read_slim(table: Table) -> list[NamedTerms]:
    aspect = table.frame["aspect"]
    table.bad("the aspect is not C, F or P", "aspect", ~aspect.is_in(list(_ASPECTS)))
    is_root, is_empty = pl.col("id").is_in(_ROOTS), pl.col("id") == ""
    why = pl.when(is_root).then(pl.lit(ROOT)).when(is_empty).then(pl.lit(NO_TERM))
    rows = table.frame.with_columns(gene=pl.col("orf") + "|" + pl.col("gene"), why=why)
    return _by_aspect("go_slim", "go_slim", table, rows)


def _is_gaf(line: str) -> bool:
    row = line.split("\t")
    return len(row) in (15, 16, 17) and _GO.fullmatch(row[4]) is not None and row[8] in _ASPECTS


def _find_gaf(file: File) -> File | None:
    starts = bool(file.head) and file.head[0].startswith("!gaf-version")
    return file if starts or any(map(_is_gaf, file.head)) else None


def _read_gaf(file: File) -> list[NamedTerms]:
    table = file.lines()
    table = table.take(~table.frame["text"].str.starts_with("!").to_numpy())
    text = table.frame["text"]
    table.bad("not a row of GAF", "text", [not _is_gaf(line) for line in text])
    table.refuse("A row has 15 to 17 columns, the fifth a GO identifier.")
    fields = text.str.split_exact("\t", 16).struct.unnest()
    relation, term, code = (pl.col(f"field_{i}") for i in (3, 4, 6))
    why = (
        pl.when(relation.str.to_uppercase().str.split("|").list.contains("NOT"))
        .then(pl.lit("says that the gene does not have the term"))
        .when(term.is_in(_ROOTS) | (code == "ND"))
        .then(pl.lit(ROOT))
        # What a screen is to be predicted from must not come from a screen.
        .when(code.is_in(["IGI", "HGI"]))
        .then(pl.lit("inferred from genetic interactions"))
    )
    # The systematic name is the first synonym in SGD's files; others know the symbol.
    names = pl.concat_str("field_2", "field_10", "field_1", separator="|").str.strip_chars("|")
    rows = fields.select(gene=names, term=term, id=term, aspect="field_8", why=why)
    return _by_aspect("go", "gaf", table, rows)


def _by_aspect(prefix: str, reader: str, table: Table, rows: pl.DataFrame) -> list[NamedTerms]:
    """Return an annotation per aspect of GO; rows with a reason `why` are left out and counted."""
    table.refuse()
    rows = rows.with_columns(line=pl.Series(table.lines))
    found = []
    for letter, aspect in _ASPECTS.items():
        of_aspect = rows.filter(pl.col("aspect") == letter)
        kept = of_aspect.filter(pl.col("why").is_null())
        if len(kept):
            left_out = Counter(of_aspect["why"].drop_nulls())
            ids = {term: id for term, id in zip(kept["term"], kept["id"], strict=True) if id}
            file, pairs = (table.path, table.sha256, reader), kept.select("gene", "term", "line")
            found.append(NamedTerms(f"{prefix}_{aspect}", pairs, ids, *file, left_out))
    return found


def _find_gmt(file: File) -> File | None:
    """Find lines of a term, what it is, and its genes, as the file's name or a link shows."""
    rows = [line.split("\t") for line in file.head if line.strip()]
    if not rows or any(len(row) < 3 for row in rows):
        return None
    linked = all(row[1].startswith("http") or row[1].lower() == "na" for row in rows)
    of_that_name = file.path.name.lower().removesuffix(".gz").endswith(".gmt")
    return file if of_that_name or (linked and len({len(row) for row in rows}) > 2) else None


def _read_gmt(file: File) -> list[NamedTerms]:
    table = file.lines()
    lines = table.frame["text"].str.split("\t")
    # Enrichr leaves a weight behind the gene's name.
    genes = lines.list.slice(2).list.eval(pl.element().str.strip_chars().str.extract(r"^([^,]*)"))
    frame = pl.DataFrame({"term": lines.list.first().str.strip_chars(), "gene": genes})
    pairs = frame.with_columns(line=pl.Series(table.lines)).explode("gene")
    pairs = pairs.filter(pl.col("gene") != "").select("gene", "term", "line")
    wrong = (frame["term"] == "") | ~pl.Series(table.lines).is_in(pairs["line"].implode())
    table.bad("no term or no gene", "text", wrong)
    table.refuse("A line is a term, its description and its genes, separated by tabs.")
    found = lines.list.slice(0, 2).list.join(" ").str.extract(f"({_GO.pattern})").fill_null("")
    ids = dict(zip(frame["term"], found, strict=True))
    return [NamedTerms(stem_of(file.path.name), pairs, ids, file.path, table.sha256, "gmt")]


def _find_table(file: File) -> Callable[..., list[NamedTerms]] | None:
    for sheet in (sheet for sheet in file.sheets if sheet.separator != " "):
        for at, _, words in sheet.headers[: min(len(sheet.rows) - 1, 10)]:
            genes = [i for i, w in enumerate(words) if _GENE_WORD.fullmatch(w)]
            terms = [i for i, w in enumerate(words) if _TERM_WORD.fullmatch(w)]
            rows = [row for row in sheet.rows[at + 1 :] if len(row) == len(words)]
            terms = [i for i in terms if rows and not all(is_number(row[i]) for row in rows)]
            if genes and terms and not set(genes) & set(terms):
                # The systematic name says most if a gene has several columns.
                genes.sort(key=lambda i: not re.search("orf|systematic|locus", words[i]))
                of_go = [i for i in terms if all(_GO.fullmatch(row[i]) for row in rows)]
                named = [i for i in terms if i not in of_go]
                return partial(_read_table, sheet, at, genes[0], [*named[:1], *of_go[:1]])
        if all(len(row) == 2 and _GO.fullmatch(row[1]) for row in sheet.rows):
            return partial(_read_table, sheet, None, 0, [1])
    return None


def _read_table(sheet: Sheet, at: int | None, gene: int, terms: list[int]) -> list[NamedTerms]:
    """Read the terms of the first of the given columns, with their identifiers if there are two."""
    table = sheet.below(at)
    columns = table.frame.get_columns()
    absent = is_missing(columns[terms[0]])
    name = columns[gene].name
    table.bad(f"column '{name}' holds no gene name", name, is_missing(columns[gene]) & ~absent)
    table.refuse()
    rows = {"gene": columns[gene], "term": columns[terms[0]], "id": columns[terms[-1]]}
    kept = pl.DataFrame({**rows, "line": table.lines}).filter(~absent)
    named = zip(kept["term"], kept["id"], strict=True)
    ids = {term: id for term, id in named if term != id or _GO.fullmatch(id)}
    file, left_out = (table.path, table.sha256, "term_table"), {NO_TERM: int(absent.sum())}
    name, pairs = stem_of(table.path.name), kept.drop("id")
    return [NamedTerms(name, pairs, ids, *file, left_out, table.notes)]


TERM_READERS = (
    table_reader("go_slim", "terms", without_header(_SLIM_COLUMNS, _is_slim), _read_slim),
    Reader("gaf", "terms", _find_gaf, _read_gaf),
    Reader("gmt", "terms", _find_gmt, _read_gmt),
    Reader("term_table", "terms", _find_table, lambda read: read()),
)
