"""Annotations: SGD's GO slim, GAF, GMT and tables of genes and terms."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

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

#: Reasons to drop a row.
NO_TERM = "no term"
ROOT = "root of the ontology, which says that nothing is known"

_ASPECTS = {"P": "process", "F": "function", "C": "component"}
_ROOTS = ("GO:0008150", "GO:0003674", "GO:0005575")
_GO = re.compile(r"GO:\d{7}")
_SLIM_COLUMNS = ("orf", "gene", "sgdid", "aspect", "term", "id", "type")
_KEPT = pl.lit(None, pl.String)
_GENE_WORD, _TERM_WORD = pattern("terms", "gene"), pattern("terms", "term")


@dataclass(frozen=True)
class NamedTerms:
    """Pairs of a gene and a term as in the file, not yet resolved.

    Of several names of a gene, separated by ``|``, the first one known is used.
    """

    name: str
    rows: pl.DataFrame  # gene, term, id of the term, line, and why a pair is dropped, or null
    table: Table
    reader: str

    def on(self, genes: Genes, on_unknown: OnUnresolved = "drop") -> tuple[Annotation, Source]:
        """Look up the names and return the annotation; dropped pairs are counted by reason."""
        pairs = self.rows.filter(pl.col("why").is_null())
        left_out, names = Counter(self.rows["why"].drop_nulls()), pairs["gene"]
        first = names.str.extract(r"^([^|]*)")
        index = resolve_strains(genes, first)
        several = names.str.contains("|", literal=True).to_numpy()
        for row in np.flatnonzero((index < 0) & several).tolist():
            found = genes.resolve(names[row].split("|"))
            index[row] = next((i for i in found if i >= 0), index[row])
        lines, known, path = pairs["line"].to_numpy(), index >= 0, self.table.path
        dropped, unresolved = account_for_names(genes, first, index, on_unknown, path, lines)
        terms, code = np.unique(pairs["term"].filter(pl.Series(known)), return_inverse=True)
        named, id_of = terms.tolist(), dict(zip(pairs["term"], pairs["id"], strict=True))
        facts: dict[str, Any] = {"n_genes": len(genes), "ids": [id_of[term] for term in named]}
        annotation = Annotation.from_pairs(self.name, index[known], code, named, **facts)
        kept = annotation.matrix.nnz
        repeated = {"pair of gene and term given before": int(known.sum()) - kept}
        counts = Counts(len(self.rows), kept, {**left_out, **dropped, **repeated})
        numbers = {"terms": len(named), "genes": int(annotation.known.sum())}
        notes = {**numbers, **self.table.notes, **unresolved}
        return annotation, Source(
            path.name,
            self.table.sha256,
            self.reader,
            counts,
            self.name,
            notes,
        )


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
        # Terms inferred from screens must not be used to predict screens.
        .when(code.is_in(["IGI", "HGI"]))
        .then(pl.lit("inferred from genetic interactions"))
    )
    # SGD's files have the systematic name as first synonym; others have the symbol.
    names = pl.concat_str("field_2", "field_10", "field_1", separator="|").str.strip_chars("|")
    rows = fields.select(gene=names, term=term, id=term, aspect="field_8", why=why)
    return _by_aspect("go", "gaf", table, rows)


def _by_aspect(prefix: str, reader: str, table: Table, rows: pl.DataFrame) -> list[NamedTerms]:
    table.refuse()
    rows = rows.with_columns(line=pl.Series(table.lines))
    named = {
        f"{prefix}_{aspect}": rows.filter(aspect=letter) for letter, aspect in _ASPECTS.items()
    }
    with_a_pair = {name: part for name, part in named.items() if part["why"].null_count()}
    return [NamedTerms(name, part, table, reader) for name, part in with_a_pair.items()]


def _find_gmt(file: File) -> File | None:
    """Find lines of a term, its description or link, and its genes."""
    rows = [line.split("\t") for line in file.head if line.strip()]
    if not rows or any(len(row) < 3 for row in rows):
        return None
    linked = all(row[1].startswith("http") or row[1].lower() == "na" for row in rows)
    of_that_name = file.path.name.lower().removesuffix(".gz").endswith(".gmt")
    return file if of_that_name or (linked and len({len(row) for row in rows}) > 2) else None


def _read_gmt(file: File) -> list[NamedTerms]:
    table = file.lines()
    lines = table.frame["text"].str.split("\t")
    # Enrichr appends a weight to the gene name.
    genes = lines.list.slice(2).list.eval(pl.element().str.strip_chars().str.extract(r"^([^,]*)"))
    terms = lines.list.first().str.strip_chars()
    ids = lines.list.slice(0, 2).list.join(" ").str.extract(f"({_GO.pattern})").fill_null("")
    frame = pl.DataFrame({"term": terms, "gene": genes, "id": ids, "line": table.lines})
    pairs = frame.explode("gene").filter(pl.col("gene") != "").with_columns(why=_KEPT)
    wrong = (terms == "") | ~frame["line"].is_in(pairs["line"].implode())
    table.bad("no term or no gene", "text", wrong)
    table.refuse("A line is a term, its description and its genes, separated by tabs.")
    return [NamedTerms(stem_of(file.path.name), pairs, table, "gmt")]


def _find_table(file: File) -> Callable[..., list[NamedTerms]] | None:
    for sheet in (sheet for sheet in file.sheets if sheet.separator != " "):
        for at, _, words in sheet.headers[: min(len(sheet.rows) - 1, 10)]:
            genes = [i for i, w in enumerate(words) if _GENE_WORD.fullmatch(w)]
            terms = [i for i, w in enumerate(words) if _TERM_WORD.fullmatch(w)]
            rows = [row for row in sheet.rows[at + 1 :] if len(row) == len(words)]
            terms = [i for i in terms if rows and not all(is_number(row[i]) for row in rows)]
            if genes and terms and not set(genes) & set(terms):
                # The systematic name is preferred.
                genes.sort(key=lambda i: not re.search("orf|systematic|locus", words[i]))
                of_go = [i for i in terms if all(_GO.fullmatch(row[i]) for row in rows)]
                named = [i for i in terms if i not in of_go]
                return partial(_read_table, sheet, at, genes[0], [*named[:1], *of_go[:1]])
        if all(len(row) == 2 and _GO.fullmatch(row[1]) for row in sheet.rows):
            return partial(_read_table, sheet, None, 0, [1])
    return None


def _read_table(sheet: Sheet, at: int | None, gene: int, terms: list[int]) -> list[NamedTerms]:
    """Read terms from the first of the given columns, and their identifiers from the second."""
    table = sheet.below(at)
    columns = table.frame.get_columns()
    absent = is_missing(columns[terms[0]])
    name = columns[gene].name
    table.bad(f"no gene name in column '{name}'", name, is_missing(columns[gene]) & ~absent)
    table.refuse()
    ids = columns[terms[-1]].str.extract(f"^({_GO.pattern})$").fill_null("")
    rows = {"gene": columns[gene], "term": columns[terms[0]], "id": ids, "line": table.lines}
    why = pl.when(pl.Series(absent)).then(pl.lit(NO_TERM)).otherwise(_KEPT)
    named = pl.DataFrame(rows).with_columns(why=why)
    return [NamedTerms(stem_of(table.path.name), named, table, "term_table")]


TERM_READERS = (
    table_reader("go_slim", "terms", without_header(_SLIM_COLUMNS, _is_slim), _read_slim),
    Reader("gaf", "terms", _find_gaf, _read_gaf),
    Reader("gmt", "terms", _find_gmt, _read_gmt),
    Reader("term_table", "terms", _find_table, lambda read: read()),
)
