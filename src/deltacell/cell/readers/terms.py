"""Annotations: SGD's GO slim, GAF, GMT, the Complex Portal, and tables of genes and terms."""

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
from deltacell.cell.genes import UNKNOWN, Genes
from deltacell.cell.readers.names import (
    OnUnresolved,
    Reader,
    account_for_names,
    pattern,
    resolve_strains,
    stem_of,
    table_reader,
    with_header,
    without_header,
)
from deltacell.storage.provenance import Counts, Source
from deltacell.storage.tables import File, Sheet, Table, is_missing, is_number

#: Reasons to drop a row.
NO_TERM = "no term"
NO_PROTEIN = "not a protein"
ROOT = "root of the ontology, which says that nothing is known"

_ASPECTS = {"P": "process", "F": "function", "C": "component"}
_ROOTS = ("GO:0008150", "GO:0003674", "GO:0005575")
_GO = re.compile(r"GO:\d{7}")
_SLIM_COLUMNS = ("orf", "gene", "sgdid", "aspect", "term", "id", "type")
_KEPT = pl.lit(None, pl.String)
# The columns of the Complex Portal's tables; the second list of members has those of the complexes
# within a complex, too, but may be missing.
_COMPLEX, _COMPLEX_NAME = "Complex ac", "Recommended name"
_MEMBERS = "Identifiers (and stoichiometry) of molecules in complex"
_ALL_MEMBERS = "Expanded participant list"
# An accession of UniProt, which an isoform (-2) or a chain (-PRO_0000006127) may follow.
_PROTEIN = r"^([OPQ]\d[A-Z0-9]{3}\d|[A-NR-Z]\d(?:[A-Z][A-Z0-9]{2}\d){1,2})(?:-.+)?$"
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

    def on(
        self,
        genes: Genes,
        on_unknown: OnUnresolved = "drop",
        proteins: pl.DataFrame | None = None,
    ) -> tuple[Annotation, Source]:
        """Look up the names and return the annotation; dropped pairs are counted by reason.

        ``proteins`` gives the genes of proteins that are not names of genes. A protein of several
        genes gives a pair for each, which counts as read.
        """
        pairs = self.rows.filter(pl.col("why").is_null())
        if proteins is not None:
            pairs = _by_gene(pairs, genes, proteins)
        n_read = len(pairs) + self.rows["why"].count()
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
        counts = Counts(n_read, kept, {**left_out, **dropped, **repeated})
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


def _by_gene(pairs: pl.DataFrame, genes: Genes, proteins: pl.DataFrame) -> pl.DataFrame:
    """Return the pairs with the genes of each protein in place of its accession."""
    is_unknown = pl.Series(genes.resolve(pairs["gene"]) == UNKNOWN)
    found = pairs.with_columns(protein=pl.when(is_unknown).then("gene")).join(
        proteins.rename({"gene": "of_protein"}),
        on="protein",
        how="left",
        maintain_order="left_right",
    )
    return found.with_columns(gene=pl.coalesce("of_protein", "gene")).select(pairs.columns)


def _is_slim(sheet: Sheet) -> bool:
    return all(len(row) == len(_SLIM_COLUMNS) and row[3] in _ASPECTS for row in sheet.rows)


def _read_slim(table: Table) -> list[NamedTerms]:
    aspect = table.frame["aspect"]
    table.mark_bad("the aspect is not C, F or P", "aspect", ~aspect.is_in(list(_ASPECTS)))
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
    table.mark_bad("not a row of GAF", "text", [not _is_gaf(line) for line in text])
    table.raise_if_bad("A row has 15 to 17 columns, the fifth a GO identifier.")
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
    table.raise_if_bad()
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
    table.mark_bad("no term or no gene", "text", wrong)
    table.raise_if_bad("A line is a term, its description and its genes, separated by tabs.")
    return [NamedTerms(stem_of(file.path.name), pairs, table, "gmt")]


def _read_complexes(table: Table) -> list[NamedTerms]:
    """Read the proteins of each complex, such as ``P32797(1)|[P0CX84,P0CX85](0)|CHEBI:9532(2)``.

    A number in parentheses is that of copies, and brackets hold proteins that replace each other,
    all of which are members.
    """
    names = table.frame.columns
    table.mark_bad("no name of a complex", _COMPLEX_NAME, is_missing(table.frame[_COMPLEX_NAME]))
    table.raise_if_bad()
    members = table.frame[_ALL_MEMBERS if _ALL_MEMBERS in names else _MEMBERS]
    rows = pl.DataFrame(
        {
            "member": members.str.split("|"),
            "term": table.frame[_COMPLEX_NAME],
            "id": table.frame[_COMPLEX] if _COMPLEX in names else "",
            "line": table.lines,
        },
    ).explode("member")
    without_copies = pl.col("member").str.strip_chars().str.replace(r"\(\d+\)$", "")
    rows = rows.with_columns(member=without_copies.str.strip_chars("[]").str.split(","))
    rows = rows.explode("member").with_columns(gene=pl.col("member").str.extract(_PROTEIN))
    why = pl.when(pl.col("gene").is_null()).then(pl.lit(NO_PROTEIN)).otherwise(_KEPT)
    named = rows.select("gene", "term", "id", "line", why=why)
    return [NamedTerms("complex_portal", named, table, "complex_portal")]


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
    table.mark_bad(f"no gene name in column '{name}'", name, is_missing(columns[gene]) & ~absent)
    table.raise_if_bad()
    ids = columns[terms[-1]].str.extract(f"^({_GO.pattern})$").fill_null("")
    rows = {"gene": columns[gene], "term": columns[terms[0]], "id": ids, "line": table.lines}
    why = pl.when(pl.Series(absent)).then(pl.lit(NO_TERM)).otherwise(_KEPT)
    named = pl.DataFrame(rows).with_columns(why=why)
    return [NamedTerms(stem_of(table.path.name), named, table, "term_table")]


TERM_READERS = (
    table_reader("go_slim", "terms", without_header(_SLIM_COLUMNS, _is_slim), _read_slim),
    table_reader("complex_portal", "terms", with_header(_COMPLEX_NAME, _MEMBERS), _read_complexes),
    Reader("gaf", "terms", _find_gaf, _read_gaf),
    Reader("gmt", "terms", _find_gmt, _read_gmt),
    Reader("term_table", "terms", _find_table, lambda read: read()),
)
