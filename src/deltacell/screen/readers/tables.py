"""Tables of screens: published formats, and any table whose headers are common words.

The published formats are Costanzo 2010 and 2016, Kuzmin 2018 and 2020, and lists of hits. A strain
ID such as ``YKL051W+YDL227C_tm3059`` is one ORF or several joined by ``+``, then ``_`` and the ID
in a strain collection, whose letters determine the perturbation.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Any, NamedTuple, Self

import numpy as np
import polars as pl

from deltacell.base.arrays import Bools, Doubles, Ints
from deltacell.base.errors import InputError
from deltacell.cell.readers.names import (
    HEADERS,
    Reader,
    UnclearColumns,
    bare_name,
    is_systematic,
    pattern,
    stem_of,
    table_reader,
    with_header,
    without_header,
)
from deltacell.screen.hit_rule import SGA_HITS
from deltacell.screen.readers.joined import IsKnown, Joins, may_be_pair, split_field
from deltacell.screen.readers.written import (
    NO_SCORE,
    GeneColumn,
    NamedParts,
    WrittenScreen,
    chosen_phenotype,
    deleted_genes,
    measured,
)
from deltacell.storage.tables import (
    MISSING,
    File,
    Header,
    Sheet,
    Table,
    is_missing,
    is_number,
    present,
    word,
)

#: The control locus, whose deletion has no effect; as a query it means "no second gene".
HO = "YDL227C"
#: Reasons to drop a row or a field of a matrix. A control alone has no interaction, but a fitness.
CONTROL_ALONE = "control locus alone as query"
DIAGONAL = "diagonal of the matrix"
ALLELES = "two rows or columns of one gene"
OTHER_HALF = "other half of a symmetric matrix"
OTHER_CONDITION = "another condition"
#: The key of a note on the condition of a screen, if a table has several.
CONDITION = "condition"
#: The words for the parts of a split.
PARTS: dict[str, str] = HEADERS["screen"]["parts"]

_ORF = re.compile(r"[YQ][A-Z0-9]+(-[A-Z])?(_[A-Za-z]+\d*)?", re.ASCII)
_ROLE_NAMES = ("query", "array")
_GENE = pattern("screen", "gene")
_REPEATED_NUMBER = re.compile(r".*\d \(\d+\)")  # as `Sheet.header` names the second gene2
_ROLE = pattern("screen", "role")
_JOINED = pattern("screen", "genes")
_PLAIN_GENE = re.compile("gene(name|id|symbol)?|symbol", re.IGNORECASE)
_ROLES = {"anchor": "query", "donor": "query", "library": "array", "recipient": "array"}
# The preferred header of each phenotype, and the patterns of all its headers.
_SCORES = {"interaction": "score", "fitness": "fitness"}
_KEYS = {"interaction": "score", "fitness": "fitness"}  # of the option --columns
_SCORE_WORDS = {phenotype: pattern("screen", phenotype) for phenotype in _SCORES}
_OTHERS: dict[str, list[str]] = HEADERS["screen"]["others"]
_NO_SCORE_WORD = re.compile("|".join(HEADERS["screen"]["wide"]["not"]), re.IGNORECASE)
_REPLICATE = re.compile("|".join(HEADERS["screen"]["wide"]["replicate"]), re.IGNORECASE)
_NO_HEADER = re.compile(r"column 1|unnamed: 0|x|v1|row_?names?|index", re.IGNORECASE)
_MOST_TITLES = 6  # rows in which the header of a matrix is searched for


@dataclass(frozen=True)
class ScreenForm:
    """The layout of a sheet: the row of its header and the names of its columns."""

    sheet: Sheet
    header_row: int | None = None
    genes: Sequence[GeneColumn] = ()
    scores: Mapping[str, Sequence[str]] = field(default_factory=dict)  # by phenotype
    others: Mapping[str, str] = field(default_factory=dict)
    numbers: Sequence[str] = ()  # all columns of numbers
    counts: bool = False  # whether the first column is the number of genes, as DCell writes it
    matrix: bool = False
    conditions: Mapping[str, str] = field(default_factory=dict)  # the scores of each, if several

    of_several: ScreenForm | None = None  # that of all conditions, if this is that of one

    def of_condition(self, name: str) -> ScreenForm:
        """Return the layout with the scores of one condition."""
        scores = {"interaction": [self.conditions[name]]}
        return replace(self, scores=scores, conditions={}, of_several=self)

    @property
    def as_columns(self) -> str:
        """The layout as the option ``--columns`` says it, of a table with genes in one column."""
        whole = self.of_several or self
        parts = [f"genes={column.name}" for column in whole.genes]
        if whole.conditions:
            columns = enumerate(whole.conditions.values(), 1)
            parts += [f"score{number}={name}" for number, name in columns]
        else:
            parts += [f"{_KEYS[kind]}={names[0]}" for kind, names in whole.scores.items()]
        return ",".join(parts)


def _read(
    forms: Sequence[ScreenForm],
    phenotype: str | None = None,
    is_known: IsKnown | None = None,
) -> list[WrittenScreen]:
    """Read the screens of a file: one, or one per sheet of a workbook."""
    file = forms[0].sheet.file
    stem = stem_of(file.path.name)
    sheets_read = {form.sheet.name for form in forms}
    sheets_left_out = sorted({sheet.name for sheet in file.sheets} - sheets_read)
    screens = []
    for form in forms:
        study = f"{stem}_{form.sheet.name}" if len(forms) > 1 else stem
        if form.matrix:
            screens_of_form = [_read_matrix(form, study, phenotype)]
        else:
            screens_of_form = list(_read_conditions(form, study, phenotype, is_known))
        for screen in screens_of_form:
            if sheets_left_out:
                screen.notes["sheets_left_out"] = ", ".join(sheets_left_out)
        screens += screens_of_form
    return screens


def _read_conditions(
    form: ScreenForm,
    study: str,
    phenotype: str | None,
    is_known: IsKnown | None,
) -> Iterator[WrittenScreen]:
    """Yield the screens of a table with one genotype per row: one for each condition.

    A condition, such as a cell line, is no replicate: its scores are never averaged with others.
    """
    for name in form.conditions:
        screen = _read_rows(form.of_condition(name), f"{study}_{name}", phenotype, is_known)
        screen.notes[CONDITION] = name
        yield screen
    if form.conditions:
        return
    column = form.others.get("condition")
    values = [] if column is None else _values(form, column)
    if len(values) < 2:
        yield _read_rows(form, study, phenotype, is_known)
        return
    for value in values:
        name = _folder_name(value)
        screen = _read_rows(form, f"{study}_{name}", phenotype, is_known, condition=value)
        screen.notes[CONDITION] = name
        yield screen


def _values(form: ScreenForm, column: str) -> list[str]:
    """Return the distinct values of a column, in order of first appearance."""
    fields = present(form.sheet.below(form.header_row).frame[column])
    return fields.unique(maintain_order=True).to_list()


def _folder_name(condition: str) -> str:
    """Return the name of a condition as a part of the name of a screen, which is a folder."""
    return re.sub(r"[^\w.+-]+", "_", condition).strip("_.") or "none"


def _find_split(file: File) -> ScreenForm | None:
    """Find a table with genes and the parts of a split."""
    forms = chain.from_iterable(map(_candidates, file.sheets))
    return next((form for form in forms if "split" in form.others), None)


def _read_split(form: ScreenForm, is_known: IsKnown | None = None) -> list[NamedParts]:
    """Return the gene sets of the table, and the part of each."""
    table = form.sheet.below(form.header_row)
    table.check_not_repeated(form.others["split"])
    parts = _parts(table, form.others["split"])
    genes = deleted_genes(table, form.genes, is_known=is_known)
    table.raise_if_bad()
    names_of_row = dict(genes.group_by("row", maintain_order=True).agg("name").iter_rows())
    rows = [row for row, part in enumerate(parts) if part]
    return [NamedParts([names_of_row.get(row, []) for row in rows], [parts[row] for row in rows])]


def unclear(file: File) -> UnclearColumns | None:
    """Return the columns of a table of two genes and numbers per row that is not read."""
    forms = chain.from_iterable(map(_candidates, file.sheets))
    form = next((form for form in forms if _possible_scores(form)), None)
    if form is None:
        return None
    genes = [column.name for column in form.genes]
    for phenotype, names in form.scores.items():
        if len(names) > 1:
            return UnclearColumns(f"it has two columns of {phenotype}", genes, names[0])
    number = _possible_scores(form)[0]
    return UnclearColumns("no column is known as a score or a weight", genes, number)


def _possible_scores(form: ScreenForm) -> list[str]:
    """Return the columns of numbers that are not counts, p-values and the like."""
    return [name for name in form.numbers if not any(map(_NO_SCORE_WORD.fullmatch, _words(name)))]


def _by_names(sheet: Sheet) -> ScreenForm | None:
    """Return the form with the columns that the user named."""
    for columns in sheet.file.columns:
        if columns.names.keys().isdisjoint({"score", "fitness", *columns.scores}):
            continue
        places = columns.find(sheet)
        if places is None:
            continue
        header = sheet.names(places.header_row)
        name_of = {key: header[position] for key, position in places.position.items()}
        if "sd" in name_of:
            name_of["standard_deviation"] = name_of.pop("sd")
        return ScreenForm(
            sheet,
            places.header_row,
            [_gene_column(key, name_of[key]) for key in columns.genes],
            {phenotype: [name_of[key]] for phenotype, key in _SCORES.items() if key in name_of},
            {key: name_of[key] for key in _OTHERS if key in name_of},
            conditions=_named_conditions([name_of[key] for key in columns.scores]),
        )
    return None


def _gene_column(key: str, name: str) -> GeneColumn:
    """Return a column of genes that the user named with a key such as ``gene1`` or ``query``."""
    role = re.sub(r"\d|gene.*", "", key) or "unknown"
    joins = Joins.always if key.startswith("genes") else Joins.never
    return GeneColumn(name, role, is_strain=True, joins=joins)


def _by_words(sheet: Sheet) -> ScreenForm | None:
    """Return the first form with a score, of which no phenotype has two."""
    for form in _candidates(sheet):
        if form.scores and max(map(len, form.scores.values())) == 1:
            return form
        conditions = {} if form.scores else _conditions_of(form.numbers)
        if conditions:
            return replace(form, scores={"interaction": form.numbers}, conditions=conditions)
    return None


def _conditions_of(names: Sequence[str]) -> dict[str, str]:
    """Return the columns of interactions in several conditions, by condition; none without two.

    Their headers are a word of an interaction with the name of the condition before or after it,
    such as ``A549.zdLFC`` or ``k562_rep_avg_gi``. Words of all of them are left out of the name.
    """
    rest_of = {name: rest for name in names if (rest := _beside_interaction(_words(name)))}
    return _named_by(rest_of)


def _named_conditions(names: Sequence[str]) -> dict[str, str]:
    """Return columns that the user named as scores of conditions, by condition."""
    return _named_by({name: _words(name) for name in names})


def _named_by(words_of: Mapping[str, Sequence[str]]) -> dict[str, str]:
    """Return columns by what tells them apart; none if that is nothing, or not distinct."""
    if len(words_of) < 2:
        return {}
    common = set.intersection(*({word.lower() for word in words} for words in words_of.values()))
    columns = {}
    for name, words in words_of.items():
        own = [word for word in words if word.lower() not in common]
        columns[_folder_name("_".join(own))] = name
    is_clear = len(columns) == len(words_of) and "none" not in columns
    return columns if is_clear else {}


def _words(name: str) -> list[str]:
    return [word for word in re.split(r"[\s._:|/()-]+", name) if word]


def _beside_interaction(words: Sequence[str]) -> list[str]:
    """Return the words of a header beside that of an interaction; none if it is no score."""
    known = _SCORE_WORDS["interaction"]
    for length in range(len(words) - 1, 0, -1):
        for first in range(len(words) - length + 1):
            if known.fullmatch(word("".join(words[first : first + length]))):
                rest = [*words[:first], *words[first + length :]]
                is_other = any(map(_NO_SCORE_WORD.fullmatch, rest))
                is_replicate = any(map(_REPLICATE.fullmatch, rest))
                return [] if is_other or is_replicate else rest
    return []


class _Column(NamedTuple):
    """The first fields of a column."""

    name: str
    word: str
    fields: list[str]  # those below the header that are not missing

    @property
    def is_numeric(self) -> bool:
        """Whether more than half of the fields are numbers."""
        return 2 * sum(map(is_number, self.fields)) > len(self.fields)

    @property
    def may_be_measured(self) -> bool:
        """Whether it has a number or is empty; a bad number is reported by `_read_rows`."""
        return not self.fields or any(map(is_number, self.fields))


def _candidates(sheet: Sheet) -> Iterator[ScreenForm]:
    """Yield the headers with gene columns, with any number of scores.

    Text may contain the words of a header, but the lines below it have other numbers of words.
    """
    for header in sheet.headers:
        if not any(map(_is_word_for_genes, header.words)):
            continue
        rows = [row for row in sheet.rows[header.row + 1 :] if any(row)]
        n_whole = sum(len(row) == len(header.names) for row in rows)
        if 2 * n_whole < len(rows):
            continue
        columns = _columns(sheet, header)
        genes = _genes(columns)
        if genes:
            numbers = [column.name for column in columns if column.is_numeric]
            scores = _scores_of(columns)
            yield ScreenForm(sheet, header.row, genes, scores, _others_of(columns), numbers)


def _is_word_for_genes(word: str) -> bool:
    return any(known.fullmatch(word) for known in (_GENE, _ROLE, _JOINED, _PLAIN_GENE))


def _columns(sheet: Sheet, header: Header) -> list[_Column]:
    """Return the columns of a sheet below a header."""
    rows = sheet.rows[header.row + 1 :]
    columns = []
    for i, name in enumerate(header.names):
        fields = [row[i].strip() for row in rows if i < len(row)]
        present_fields = [field for field in fields if field.lower() not in MISSING]
        columns.append(_Column(name, header.words[i], present_fields))
    return columns


def _scores_of(columns: Sequence[_Column]) -> dict[str, list[str]]:
    """Return the columns of scores by phenotype; the preferred header excludes others."""
    scores = {}
    for phenotype, preferred in _SCORES.items():
        known = _SCORE_WORDS[phenotype]
        candidates = [c for c in columns if c.may_be_measured and known.fullmatch(c.word)]
        chosen = [c for c in candidates if c.word == preferred] or candidates
        if chosen:
            scores[phenotype] = [column.name for column in chosen]
    return scores


def _others_of(columns: Sequence[_Column]) -> dict[str, str]:
    """Return the further columns of a screen by key; one of a split has only the words of parts."""
    others = {}
    by_word = {column.word: column for column in reversed(columns)}  # the first of equals
    for key, known in _OTHERS.items():
        column = next((by_word[name] for name in known if name in by_word), None)
        if column is None:
            continue
        if key != "split" or all(word(field) in PARTS for field in column.fields):
            others[key] = column.name
    return others


class _GeneCandidate(NamedTuple):
    """A column of genes; the most exact one, or the first of equals, is the smallest."""

    inexactness: int  # -2 for strain IDs, -1 for systematic names
    position: int
    is_strain: bool


def _genes(columns: Sequence[_Column]) -> list[GeneColumn]:
    """Return the gene columns; if several name the same gene, the most exact one."""
    candidates: dict[tuple[str, str], list[_GeneCandidate]] = {}  # by role and number
    for position, column in enumerate(columns):
        match = _ROLE.fullmatch(column.word) or _GENE.fullmatch(column.word)
        if match is None or column.is_numeric or _REPEATED_NUMBER.fullmatch(column.name):
            continue
        groups = match.groupdict()
        role = groups.get("role") or ""
        kind = groups["kind"] + groups.get("before", "")
        candidate = _GeneCandidate(-_exactness(kind), position, "strain" in kind)
        gene = (_ROLES.get(role, role), groups["number"] or "")
        candidates.setdefault(gene, []).append(candidate)
    n_with_role = sum(bool(role) for role, _ in candidates)
    if 2 <= n_with_role <= len(candidates) - 2:
        return []
    if len(candidates) >= 2:
        chosen = {min(candidates[gene]): gene[0] for gene in candidates}
        in_order = sorted(chosen, key=lambda candidate: candidate.position)
        return [
            GeneColumn(
                columns[candidate.position].name,
                chosen[candidate] or "unknown",
                candidate.is_strain,
                joins=Joins.of_strains if candidate.is_strain else Joins.never,
            )
            for candidate in in_order
        ]
    joined = [column for column in columns if _JOINED.fullmatch(column.word)]
    if len(joined) == 1 and not candidates and any(map(may_be_pair, joined[0].fields)):
        return [GeneColumn(joined[0].name, joins=Joins.of_known_genes)]
    plain = [column for column in columns if _PLAIN_GENE.fullmatch(column.word)]
    if len(plain) == 1 and not (candidates or joined) and _are_pairs(plain[0], columns):
        return [GeneColumn(plain[0].name, joins=Joins.of_known_genes)]
    return []


def _are_pairs(genes: _Column, columns: Sequence[_Column]) -> bool:
    """Return whether every field of the only column of genes may be a pair, and pairs are scored.

    A table with one gene or strain per row is a feature, so a word of an interaction is required.
    """
    if not genes.fields or not all(map(may_be_pair, genes.fields)):
        return False
    numbers = [column.name for column in columns if column.is_numeric]
    return bool(_conditions_of(numbers) or _scores_of(columns).get("interaction"))


def _exactness(kind: str) -> int:
    """Return how exact the names in a column are, by the words of its header."""
    if "strain" in kind:
        return 2
    return 1 if re.search("orf|systematic|locus", kind) else 0


def _counted(sheet: Sheet) -> ScreenForm | None:
    """Return the form of rows that begin with the number of their genes, as in DCell."""
    if len(sheet.rows) < 2 or not all(map(_is_counted, sheet.rows)):
        return None
    names = sheet.names(None)
    genes = [GeneColumn(name) for name in names[1:-1]]
    scores = {phenotype: [names[-1]] for phenotype in _SCORES}
    return ScreenForm(sheet, None, genes, scores, counts=True)


def _is_counted(row: Sequence[str]) -> bool:
    """Whether a row is the number of its genes, the genes, and a score, which may be missing."""
    if len(row) < 3 or not row[0].isdigit() or int(row[0]) != len(row) - 2:
        return False
    has_score = is_number(row[-1]) or row[-1].lower() in MISSING
    return has_score and not any(map(is_number, row[1:-1]))


def _matrix(sheet: Sheet) -> ScreenForm | None:
    """Return the form of a matrix of scores: genes in the header and in the first column."""
    for header_row in range(min(len(sheet.rows) - 1, _MOST_TITLES)):
        genes = sheet.header(header_row)[1:]
        if _is_matrix(genes, sheet.rows[header_row + 1 :]):
            return ScreenForm(sheet, header_row, matrix=True)
    return None


def _is_matrix(genes: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
    """Whether a header of genes and the rows below it are a matrix of scores.

    Either all names are systematic, or most genes of the rows are in the header too.
    """
    labels = [row[0] for row in rows if row and row[0]]
    if len(genes) < 2 or not labels or any(len(row) != len(genes) + 1 for row in rows):
        return False
    fields = chain.from_iterable(row[1:] for row in rows)
    scores = [field for field in fields if field.lower() not in MISSING]
    if not scores or not all(map(is_number, scores)) or any(map(is_number, genes)):
        return False
    names = {bare_name(gene) for gene in genes}
    n_in_both = sum(bare_name(label) in names for label in labels)
    all_systematic = all(is_systematic(bare_name(name)) for name in (*genes, *labels))
    return all_systematic or 2 * n_in_both > len(labels)


def _pairs_by_condition(sheet: Sheet) -> ScreenForm | None:
    """Return the form of a matrix of scores with pairs in its rows and conditions in its columns.

    This is how GEMINI's scores are saved: the first column has no header, and ``A;B`` in each row.
    """
    if len(sheet.rows) < 2:
        return None
    header = sheet.header(0)
    rows = [row for row in sheet.rows[1:] if any(row)]
    if not _NO_HEADER.fullmatch(header[0]) or any(len(row) != len(header) for row in rows):
        return None
    are_pairs = all(len(split_field(row[0], Joins.always, _no_gene)) == 2 for row in rows)
    numbers = [field for row in rows for field in row[1:] if field.lower() not in MISSING]
    is_numeric = bool(numbers) and all(map(is_number, numbers))
    if not (are_pairs and is_numeric) or all(map(str.isdigit, numbers)):
        return None
    scores = header[1:]
    if any(map(_NO_SCORE_WORD.fullmatch, chain.from_iterable(map(_words, scores)))):
        return None
    conditions = _named_conditions(scores)
    if len(scores) > 1 and not conditions:
        return None
    genes = [GeneColumn(header[0], joins=Joins.always)]
    return ScreenForm(sheet, 0, genes, {"interaction": scores}, conditions=conditions)


def _no_gene(name: str) -> bool:
    return False


def why_no_screen(file: File) -> str | None:
    """Return why a table with the genes of sets is no screen; None if it has a possible score."""
    forms = list(chain.from_iterable(map(_candidates, file.sheets)))
    if not forms or any(map(_possible_scores, forms)):
        return None
    names = ", ".join(column.name for column in forms[0].genes)
    if forms[0].numbers:
        return (
            f"it has genes ({names}) and no score: its numbers ({', '.join(forms[0].numbers)}) are "
            "read counts, p-values and the like. Scores are computed from counts by other programs"
        )
    return (
        f"it has sets of genes ({names}) and no score, like a list of hits. What is missing is "
        "what was tested without a hit: add these sets and a column score, with what was measured, "
        "or with 1 for a hit and 0 for a set that was tested and is none"
    )


def _parts(table: Table, column: str) -> pl.Series:
    """Return the part of a split of each row, empty if there is none."""
    words = present(table.frame[column]).map_elements(word, return_dtype=pl.String)
    parts = ", ".join(dict.fromkeys(PARTS.values()))
    is_unknown = ~words.is_in([*PARTS, ""])
    table.mark_bad(f"column '{column}' is not one of {parts}", column, is_unknown)
    return words.replace_strict(PARTS, default="")


def _read_rows(
    form: ScreenForm,
    study: str,
    phenotype: str | None,
    is_known: IsKnown | None = None,
    condition: str | None = None,
) -> WrittenScreen:
    """Read a table with one genotype per row; with a condition, only the rows of this one."""
    phenotype = chosen_phenotype(phenotype, list(form.scores), form.sheet.file.path)
    table = form.sheet.below(form.header_row)
    if form.counts:
        table.raise_if_bad(
            "Every row must have the same number of genes: "
            "put pairs and triples in separate files.",
        )
        table.notes["form"] = f"{len(form.genes)} genes per row, after their number"
    columns: dict[str, Any] = {"phenotype": phenotype}
    for key, name in {"score": form.scores[phenotype][0], **form.others}.items():
        table.check_not_repeated(name)
        if key == "study":
            columns["study"] = present(table.frame[name]).replace("", study)
        elif key == "split":
            columns["part"] = _parts(table, name)
        elif key != CONDITION:
            columns[key] = measured(table, key, name)
    genes = deleted_genes(table, form.genes, is_known=is_known, told=form.as_columns)
    n_genes = np.bincount(genes["row"].to_numpy(), minlength=len(table))
    has_score = ~np.isnan(columns["score"])
    if form.counts:
        first = table.frame.columns[0]
        differs = table.frame[first] != pl.Series(n_genes).cast(pl.String)
        table.mark_bad("the number of genes differs from the first column", first, differs)
    else:
        names = ", ".join(column.name for column in form.genes)
        table.mark_bad(f"no gene in {names}", form.genes[0].name, has_score & (n_genes == 0))
    dropped = {NO_SCORE: ~has_score}
    if condition is not None:
        of_row = present(table.frame[form.others[CONDITION]])
        dropped = {OTHER_CONDITION: (of_row != condition).to_numpy(), **dropped}
    return WrittenScreen(table, genes, reader.name, study, columns, dropped=dropped)


@dataclass(frozen=True, eq=False)
class _MatrixFields:
    """The fields of a matrix of scores, row by row; all arrays are [rows * columns]."""

    row: Ints  # in the matrix
    column: Ints
    row_gene: Ints  # the number of the gene; equal names have equal numbers
    column_gene: Ints
    score: Doubles  # NaN for an empty field

    @classmethod
    def of(cls, row_names: pl.Series, column_names: Sequence[str], scores: Doubles) -> Self:
        """Return the fields of a matrix [rows, columns]."""
        row, column = np.indices(scores.shape).reshape(2, -1)
        names = [bare_name(name) for name in (*row_names, *column_names)]
        number = {name: i for i, name in enumerate(dict.fromkeys(names))}
        genes = np.array([number[name] for name in names])
        return cls(row, column, genes[row], genes[len(row_names) + column], scores.ravel())

    @property
    def is_one_gene(self) -> Bools:
        """Which fields are of a gene with itself, or of two rows or columns of one gene."""
        is_one_gene: Bools = self.row_gene == self.column_gene
        return is_one_gene

    @property
    def on_diagonal(self) -> Bools:
        """Which fields are of a row and the column of the same name.

        If several rows are of one gene, such as its alleles, the first is that of the first column.
        """
        n_fields = len(self.score)
        n_columns = int(self.column.max()) + 1
        nth_row = _nth_of_its_gene(self.row_gene[np.arange(0, n_fields, n_columns)])
        nth_column = _nth_of_its_gene(self.column_gene[:n_columns])
        on_diagonal: Bools = self.is_one_gene & (nth_row[self.row] == nth_column[self.column])
        return on_diagonal

    @property
    def is_empty(self) -> Bools:
        """Which fields have no score."""
        return np.isnan(self.score)

    def repeats_its_mirror(self) -> Bools:
        """Return which fields below the diagonal have the score of the field across it.

        A symmetric matrix lists every pair twice, and only one of the two is read.
        """
        is_measured = ~self.is_one_gene & ~self.is_empty
        n_genes = int(max(self.row_gene.max(), self.column_gene.max())) + 1
        score_of_pair = np.full((n_genes, n_genes), np.nan)
        rows = self.row_gene[is_measured]
        score_of_pair[rows, self.column_gene[is_measured]] = self.score[is_measured]
        across = score_of_pair[self.column_gene, self.row_gene]
        is_below = self.row_gene > self.column_gene
        repeats: Bools = is_measured & is_below & (across == self.score)
        return repeats


def _nth_of_its_gene(genes: Ints) -> Ints:
    """Return how many earlier entries have the same gene, [n]."""
    order = np.argsort(genes, kind="stable")
    in_order = genes[order]
    nth = np.empty(len(genes), dtype=np.int64)
    nth[order] = np.arange(len(genes)) - np.searchsorted(in_order, in_order)
    return nth


def _read_matrix(form: ScreenForm, study: str, phenotype: str | None) -> WrittenScreen:
    """Read a matrix of scores; a symmetric one has no queries and arrays."""
    table = form.sheet.below(form.header_row)
    label, *column_names = table.frame.columns
    row_names = table.frame[label]
    table.mark_bad("no gene in the first column", label, is_missing(row_names))
    scores = np.stack([table.numbers(name) for name in column_names], axis=1)
    table.raise_if_bad()
    fields = _MatrixFields.of(row_names, column_names, scores)
    diagonal_scores = fields.score[fields.on_diagonal]
    if len(diagonal_scores) and (diagonal_scores == 1).all():
        message = "the matrix has 1 on its diagonal, like correlations: it is not a screen"
        fix = "Write it as a network of gene1, gene2, weight; or empty the diagonal."
        raise InputError(message, code="correlation-matrix", where=table.path, fix=fix)
    is_repeated = fields.repeats_its_mirror()
    is_symmetric = bool(is_repeated.any())
    roles = ("unknown", "unknown") if is_symmetric else ("query", "array")
    table.notes["form"] = f"matrix of {scores.shape[0]:,} x {scores.shape[1]:,} genes"
    first = row_names.gather(fields.row)
    second = pl.Series(column_names).gather(fields.column)
    pairs = pl.DataFrame({"1": first, "2": second})
    table = replace(table, frame=pairs, lines=table.lines[fields.row])
    columns = [GeneColumn("1", roles[0], is_strain=True), GeneColumn("2", roles[1], is_strain=True)]
    return WrittenScreen(
        table,
        deleted_genes(table, columns),
        reader.name,
        study,
        {"phenotype": phenotype or "interaction", "score": fields.score},
        dropped={
            DIAGONAL: fields.on_diagonal,
            ALLELES: fields.is_one_gene,
            NO_SCORE: fields.is_empty,
            OTHER_HALF: is_repeated,
        },
        complete_coverage=not is_symmetric,
    )


_KUZMIN = HEADERS["kuzmin2018"]
_COSTANZO2016 = HEADERS["costanzo2016"]
_COSTANZO2010 = HEADERS["costanzo2010"]
_FITNESS2020 = "Double/triple mutant fitness"


def _is_costanzo2010(sheet: Sheet) -> bool:
    """Whether one of the first rows is two ORFs with their names, then three numbers.

    A name that is the ORF of another gene is a gene of its own, as in a table of triples.
    """
    return any(map(_is_row_of_costanzo2010, sheet.rows[:3]))


def _is_row_of_costanzo2010(row: Sequence[str]) -> bool:
    if len(row) != len(_COSTANZO2010) or not all(map(is_number, row[4:])):
        return False
    for orf, name in (row[:2], row[2:4]):
        is_other_gene = is_systematic(name) and bare_name(name) != bare_name(orf)
        if not _ORF.fullmatch(orf) or is_other_gene:
            return False
    return True


def _read_crosses(
    format: str,
    table: Table,
    phenotype: str | None = None,
    is_known: IsKnown | None = None,
) -> list[WrittenScreen]:
    """Read a published table of query strains crossed with array strains.

    Unless it has a separate column, the standard deviation is that of the combined mutant's fitness
    and that of an interaction score is missing. The p-value is always that of the interaction.
    `is_known` is not needed, because the format says which fields have several genes.
    """
    is_costanzo2010 = format == "costanzo2010"
    if is_costanzo2010:
        table = replace(table, frame=_with_alleles_only(table.frame))
    published = _Published.of(format, table.frame.columns)
    columns = published.columns
    phenotypes = [name for name in _SCORES if columns.get(name) in table.frame.columns]
    phenotype = chosen_phenotype(phenotype, phenotypes, table.path)
    if phenotype == "fitness":
        columns["standard_deviation"] = f"{columns['fitness']} standard deviation"
    strains = [
        GeneColumn(columns[role], role, True, columns[f"{role}_allele"], Joins.always)
        for role in _ROLE_NAMES
    ]
    genes = deleted_genes(table, strains, required=True)
    score = measured(table, "score", columns[phenotype], required=is_costanzo2010)
    values: dict[str, Any] = {"phenotype": phenotype, "score": score}
    dropped = {NO_SCORE: np.isnan(score)}
    for name in ("standard_deviation", "p_value", "query_fitness", "array_fitness"):
        if columns.get(name) in table.frame.columns:
            values[name] = measured(table, name, columns[name])
    if "panel" in columns:
        # The two temperatures (DMA26, DMA30) use the same array.
        values["panel"] = table.frame[columns["panel"]].str.extract(r"^([A-Za-z]*)")
    if format == "kuzmin":
        is_query = pl.col("role") == "query"
        genes = genes.filter(~is_query | (pl.col("name") != HO))
        if phenotype == "interaction":
            queries = genes.filter(is_query)["row"].to_numpy()
            dropped[CONTROL_ALONE] = np.bincount(queries, minlength=len(table)) == 0
    # Costanzo 2010 is a list of hits.
    return [
        WrittenScreen(
            table,
            genes,
            format,
            published.study,
            values,
            dropped=dropped,
            complete_coverage=not is_costanzo2010,
            hits=SGA_HITS if phenotype == "interaction" else None,
        ),
    ]


class _Published(NamedTuple):
    """A published study and its columns, by their keys in headers.toml."""

    study: str
    columns: dict[str, str]

    @classmethod
    def of(cls, format: str, names: Sequence[str]) -> _Published:
        """Return the study of a format; Kuzmin 2020 is Kuzmin 2018 with another column.

        The columns are as `names` spells them: files of one format differ in upper and lower case.
        """
        spelled: dict[str, str] = {name.lower(): name for name in names}
        study = "kuzmin2018" if format == "kuzmin" else format
        expected: dict[str, str] = dict(HEADERS[study])
        if format == "kuzmin" and _FITNESS2020.lower() in spelled:
            study = "kuzmin2020"
            expected["fitness"] = _FITNESS2020
        columns = {key: spelled.get(name.lower(), name) for key, name in expected.items()}
        return cls(study, columns)


def _with_alleles_only(frame: pl.DataFrame) -> pl.DataFrame:
    """Return Costanzo 2010 without the names of genes in its columns of alleles.

    The second column is a gene name for a deletion, without suffix, and otherwise an allele.
    """
    for role in _ROLE_NAMES:
        name = f"{role} gene"
        is_allele = pl.col(f"{role} ORF").str.contains("_", literal=True)
        allele = pl.when(is_allele).then(name).otherwise(pl.lit(""))
        frame = frame.with_columns(allele.alias(name))
    return frame


def _read_hits(
    table: Table,
    phenotype: str | None = None,
    is_known: IsKnown | None = None,
) -> list[WrittenScreen]:
    """Read a list of Kuzmin 2018 hits: gene sets and the sign of their interaction.

    Trigenic hits are all negative. The query genes are unknown, and so is the coverage. `is_known`
    is not needed, because every column has one gene.
    """
    chosen_phenotype(phenotype, ["interaction"], table.path)
    is_trigenic = "orf3" in table.frame.columns
    sign = -1 if is_trigenic else _signs(table)
    counts = ("n_rows",) if is_trigenic else ("n_negative_rows", "n_positive_rows")
    replicates = np.sum([table.numbers(column, required=True) for column in counts], axis=0)
    numbers = (1, 2, 3) if is_trigenic else (1, 2)
    gene_columns = [GeneColumn(f"orf{i}", alleles=f"allele{i}") for i in numbers]
    genes = deleted_genes(table, gene_columns, required=True)
    columns = {"sign": sign, "replicates": np.nan_to_num(replicates).astype(np.int32)}
    return [WrittenScreen(table, genes, "hits", "kuzmin2018", columns, hits=SGA_HITS)]


def _signs(table: Table) -> pl.Series:
    """Return the column of signs; a pair that is a hit of both signs has none."""
    signs = {"negative": -1, "positive": 1, "both": 0}
    words = table.frame["sign"].str.to_lowercase()
    is_unknown = ~words.is_in(list(signs))
    table.mark_bad(f"the sign is not one of {', '.join(signs)}", "sign", is_unknown)
    return words.replace_strict(signs, default=0, return_dtype=pl.Int8)


_FIX = "Name the columns gene1, gene2 and score (or split): docs/how-to/screen.md."
_WAYS = (_by_names, _by_words, _counted, _matrix, _pairs_by_condition)
_FORMATS = {
    "kuzmin": with_header(
        *(_KUZMIN["query"], _KUZMIN["array"]),
        any_of=(_KUZMIN["interaction"], _KUZMIN["fitness"], _FITNESS2020),
        ignore_case=True,
    ),
    "costanzo2016": with_header(
        *(_COSTANZO2016[name] for name in ("query", "array", "interaction", "panel")),
    ),
    "costanzo2010": without_header([*_COSTANZO2010.values()], _is_costanzo2010),
}
_HITS = (
    ("orf1", "orf2", "orf3", "allele1", "allele2", "allele3", "n_rows"),
    ("orf1", "orf2", "allele1", "allele2", "n_negative_rows", "n_positive_rows", "sign"),
)
reader = Reader("table", "screens", lambda file: file.forms(_WAYS) or None, _read, _FIX)
split_reader = Reader("split", "parts", _find_split, _read_split, _FIX)
SCREEN_READERS: tuple[Reader[Any, Any], ...] = (
    *(
        table_reader(name, "screens", find, partial(_read_crosses, name))
        for name, find in _FORMATS.items()
    ),
    *(table_reader("hits", "screens", with_header(*header), _read_hits) for header in _HITS),
    *(reader, split_reader),
)
