"""Annotations: SGD's GO slim, GAF, GMT, the Complex Portal, and tables of genes and terms."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from deltacell.base.arrays import Ints
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
from deltacell.storage.tables import File, Header, Sheet, Table, is_missing, is_number

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
_COMPLEX = "Complex ac"
_COMPLEX_NAME = "Recommended name"
_MEMBERS = "Identifiers (and stoichiometry) of molecules in complex"
_ALL_MEMBERS = "Expanded participant list"
# An accession of UniProt, which an isoform (-2) or a chain (-PRO_0000006127) may follow.
_PROTEIN = r"^([OPQ]\d[A-Z0-9]{3}\d|[A-NR-Z]\d(?:[A-Z][A-Z0-9]{2}\d){1,2})(?:-.+)?$"
_GENE_WORD = pattern("terms", "gene")
_TERM_WORD = pattern("terms", "term")
_MOST_HEADERS = 10  # rows in which the header of a table of terms is searched for


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

        Args:
            genes: The genes of the cell.
            on_unknown: Whether a name that is not found is an error.
            proteins: The genes (``gene``) of proteins (``protein``) that are not names of genes. A
                protein of several genes gives a pair for each, which counts as read.
        """
        pairs = self.rows.filter(pl.col("why").is_null())
        if proteins is not None:
            pairs = _by_gene(pairs, genes, proteins)
        first_names = pairs["gene"].str.extract(r"^([^|]*)")
        index = _first_known(genes, pairs["gene"], first_names)
        lines = pairs["line"].to_numpy()
        path = self.table.path
        not_found = account_for_names(genes, first_names, index, on_unknown, path, lines)
        annotation = self._annotation(pairs, index, genes)
        n_kept = annotation.matrix.nnz
        n_read = len(pairs) + self.rows["why"].count()
        dropped = {
            **Counter(self.rows["why"].drop_nulls()),
            **not_found.dropped,
            "pair of gene and term given before": int((index >= 0).sum()) - n_kept,
        }
        notes = {
            "terms": len(annotation.terms),
            "genes": int(annotation.known.sum()),
            **self.table.notes,
            **not_found.notes,
        }
        counts = Counts(n_read, n_kept, dropped)
        sha256 = self.table.sha256
        return annotation, Source(path.name, sha256, self.reader, counts, self.name, notes)

    def _annotation(self, pairs: pl.DataFrame, index: Ints, genes: Genes) -> Annotation:
        """Return the annotation with the pairs whose gene, at `index` [pairs], is known."""
        is_known = index >= 0
        known_terms = pairs["term"].filter(pl.Series(is_known))
        terms, code = np.unique(known_terms, return_inverse=True)
        names = terms.tolist()
        id_of = dict(zip(pairs["term"], pairs["id"], strict=True))
        return Annotation.from_pairs(
            self.name,
            index[is_known],
            code,
            names,
            n_genes=len(genes),
            ids=[id_of[name] for name in names],
        )


def _first_known(genes: Genes, names: pl.Series, first_names: pl.Series) -> Ints:
    """Return the gene of each field, [fields]: that of the first of its names that is known."""
    index = resolve_strains(genes, first_names)
    has_several = names.str.contains("|", literal=True).to_numpy()
    for row in np.flatnonzero((index < 0) & has_several).tolist():
        candidates = genes.resolve(names[row].split("|"))
        known = candidates[candidates >= 0]
        if len(known):
            index[row] = known[0]
    return index


def _by_gene(pairs: pl.DataFrame, genes: Genes, proteins: pl.DataFrame) -> pl.DataFrame:
    """Return the pairs with the genes of each protein in place of its accession."""
    is_unknown = pl.Series(genes.resolve(pairs["gene"]) == UNKNOWN)
    with_protein = pairs.with_columns(protein=pl.when(is_unknown).then("gene"))
    with_genes = with_protein.join(
        proteins.rename({"gene": "of_protein"}),
        on="protein",
        how="left",
        maintain_order="left_right",
    )
    return with_genes.with_columns(gene=pl.coalesce("of_protein", "gene")).select(pairs.columns)


def _is_slim(sheet: Sheet) -> bool:
    """Whether all rows have the columns of SGD's GO slim."""
    return all(len(row) == len(_SLIM_COLUMNS) and row[3] in _ASPECTS for row in sheet.rows)


def _read_slim(table: Table) -> list[NamedTerms]:
    """Read SGD's GO slim; the systematic name of a gene is preferred."""
    aspect = table.frame["aspect"]
    table.mark_bad("the aspect is not C, F or P", "aspect", ~aspect.is_in(list(_ASPECTS)))
    is_root = pl.col("id").is_in(_ROOTS)
    is_empty = pl.col("id") == ""
    why = pl.when(is_root).then(pl.lit(ROOT)).when(is_empty).then(pl.lit(NO_TERM))
    rows = table.frame.with_columns(gene=pl.col("orf") + "|" + pl.col("gene"), why=why)
    return _by_aspect("go_slim", "go_slim", table, rows)


def _is_gaf(line: str) -> bool:
    fields = line.split("\t")
    if len(fields) not in (15, 16, 17):
        return False
    return _GO.fullmatch(fields[4]) is not None and fields[8] in _ASPECTS


def _find_gaf(file: File) -> File | None:
    """Find a file that says that it is GAF, or that has a row of it."""
    says_so = bool(file.head) and file.head[0].startswith("!gaf-version")
    return file if says_so or any(map(_is_gaf, file.head)) else None


def _read_gaf(file: File) -> list[NamedTerms]:
    """Read GAF, without negated terms, roots, and terms inferred from genetic interactions."""
    table = file.lines()
    table = table.take(~table.frame["text"].str.starts_with("!").to_numpy())
    text = table.frame["text"]
    table.mark_bad("not a row of GAF", "text", [not _is_gaf(line) for line in text])
    table.raise_if_bad("A row has 15 to 17 columns, the fifth a GO identifier.")
    fields = text.str.split_exact("\t", 16).struct.unnest()
    relation = pl.col("field_3")
    term = pl.col("field_4")
    code = pl.col("field_6")  # of the evidence
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
    """Return the terms of each aspect of GO that has a pair, named ``PREFIX_ASPECT``."""
    table.raise_if_bad()
    rows = rows.with_columns(line=pl.Series(table.lines))
    annotations = []
    for letter, aspect in _ASPECTS.items():
        of_aspect = rows.filter(aspect=letter)
        if of_aspect["why"].null_count():
            annotations.append(NamedTerms(f"{prefix}_{aspect}", of_aspect, table, reader))
    return annotations


def _find_gmt(file: File) -> File | None:
    """Find lines of a term, its description or link, and its genes."""
    rows = [line.split("\t") for line in file.head if line.strip()]
    if not rows or any(len(row) < 3 for row in rows):
        return None
    if file.path.name.lower().removesuffix(".gz").endswith(".gmt"):
        return file
    has_links = all(row[1].startswith("http") or row[1].lower() == "na" for row in rows)
    n_lengths = len(set(map(len, rows)))
    return file if has_links and n_lengths > 2 else None


def _read_gmt(file: File) -> list[NamedTerms]:
    """Read gene sets in GMT."""
    table = file.lines()
    lines = table.frame["text"].str.split("\t")
    # Enrichr appends a weight to the gene name.
    genes = lines.list.slice(2).list.eval(pl.element().str.strip_chars().str.extract(r"^([^,]*)"))
    terms = lines.list.first().str.strip_chars()
    ids = lines.list.slice(0, 2).list.join(" ").str.extract(f"({_GO.pattern})").fill_null("")
    frame = pl.DataFrame({"term": terms, "gene": genes, "id": ids, "line": table.lines})
    pairs = frame.explode("gene").filter(pl.col("gene") != "").with_columns(why=_KEPT)
    has_gene = frame["line"].is_in(pairs["line"].implode())
    table.mark_bad("no term or no gene", "text", (terms == "") | ~has_gene)
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
    complexes = pl.DataFrame(
        {
            "member": table.frame[_ALL_MEMBERS if _ALL_MEMBERS in names else _MEMBERS],
            "term": table.frame[_COMPLEX_NAME],
            "id": table.frame[_COMPLEX] if _COMPLEX in names else "",
            "line": table.lines,
        },
    )
    members = complexes.with_columns(pl.col("member").str.split("|")).explode("member")
    without_copies = pl.col("member").str.strip_chars().str.replace(r"\(\d+\)$", "")
    substitutes = without_copies.str.strip_chars("[]").str.split(",")
    members = members.with_columns(member=substitutes).explode("member")
    members = members.with_columns(gene=pl.col("member").str.extract(_PROTEIN))
    why = pl.when(pl.col("gene").is_null()).then(pl.lit(NO_PROTEIN)).otherwise(_KEPT)
    rows = members.select("gene", "term", "id", "line", why=why)
    return [NamedTerms("complex_portal", rows, table, "complex_portal")]


@dataclass(frozen=True)
class TermColumns:
    """Where the genes and terms of a table are."""

    sheet: Sheet
    header_row: int | None
    gene: int  # the position of the column of genes
    term: int
    id: int  # of a column with identifiers of GO, or that of the terms


def _find_table(file: File) -> TermColumns | None:
    """Find a table with genes and terms under common headers, or of genes and GO identifiers."""
    for sheet in file.sheets:
        if sheet.separator == " ":
            continue
        n_headers = min(len(sheet.rows) - 1, _MOST_HEADERS)
        for header in sheet.headers[:n_headers]:
            columns = _columns_by_words(sheet, header)
            if columns is not None:
                return columns
        if all(len(row) == 2 and _GO.fullmatch(row[1]) for row in sheet.rows):
            return TermColumns(sheet, None, gene=0, term=1, id=1)
    return None


def _columns_by_words(sheet: Sheet, header: Header) -> TermColumns | None:
    """Return the columns under a header; a column of numbers has no terms.

    Of the columns of genes, that of systematic names is preferred. Of the terms, those that are all
    identifiers of GO are the identifiers of the others.
    """
    words = header.words
    rows = [row for row in sheet.rows[header.row + 1 :] if len(row) == len(words)]
    genes = [i for i, word in enumerate(words) if _GENE_WORD.fullmatch(word)]
    terms = [i for i, word in enumerate(words) if _TERM_WORD.fullmatch(word)]
    terms = [i for i in terms if not _all_numbers(rows, i)]
    if not genes or not terms or not set(genes).isdisjoint(terms):
        return None
    ids = [i for i in terms if _all_of_go(rows, i)]
    names = [i for i in terms if i not in ids]
    systematic = [i for i in genes if re.search("orf|systematic|locus", words[i])]
    gene = (systematic or genes)[0]
    return TermColumns(sheet, header.row, gene, term=(names or ids)[0], id=(ids or names)[0])


def _all_numbers(rows: Sequence[Sequence[str]], column: int) -> bool:
    """Whether a column has only numbers, or is empty."""
    return all(is_number(row[column]) for row in rows)


def _all_of_go(rows: Sequence[Sequence[str]], column: int) -> bool:
    return all(_GO.fullmatch(row[column]) for row in rows)


def _read_table(columns: TermColumns) -> list[NamedTerms]:
    """Read a table with a pair of a gene and a term per row."""
    table = columns.sheet.below(columns.header_row)
    gene = table.frame.to_series(columns.gene)
    term = table.frame.to_series(columns.term)
    no_term = is_missing(term)
    no_gene = is_missing(gene)
    table.mark_bad(f"no gene name in column '{gene.name}'", gene.name, no_gene & ~no_term)
    table.raise_if_bad()
    ids = table.frame.to_series(columns.id).str.extract(f"^({_GO.pattern})$").fill_null("")
    rows = pl.DataFrame({"gene": gene, "term": term, "id": ids, "line": table.lines})
    why = pl.when(pl.Series(no_term)).then(pl.lit(NO_TERM)).otherwise(_KEPT)
    name = stem_of(table.path.name)
    return [NamedTerms(name, rows.with_columns(why=why), table, "term_table")]


TERM_READERS: tuple[Reader[Any, list[NamedTerms]], ...] = (
    table_reader("go_slim", "terms", without_header(_SLIM_COLUMNS, _is_slim), _read_slim),
    table_reader("complex_portal", "terms", with_header(_COMPLEX_NAME, _MEMBERS), _read_complexes),
    Reader("gaf", "terms", _find_gaf, _read_gaf),
    Reader("gmt", "terms", _find_gmt, _read_gmt),
    Reader("term_table", "terms", _find_table, _read_table),
)
