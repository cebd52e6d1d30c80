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
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from deltacell.base.errors import InputError
from deltacell.cell.readers.names import (
    HEADERS,
    Reader,
    bare_name,
    is_systematic,
    pattern,
    stem_of,
    table_reader,
    with_header,
    without_header,
)
from deltacell.screen.readers.joined import IsKnown, Joins, may_be_joined
from deltacell.screen.readers.written import (
    NO_SCORE,
    GeneColumn,
    WrittenScreen,
    chosen_phenotype,
    deleted_genes,
    measured,
)
from deltacell.storage.tables import (
    MISSING,
    File,
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
DIAGONAL, OTHER_HALF = "diagonal of the matrix", "other half of a symmetric matrix"
#: The words for the parts of a split.
PARTS: dict[str, str] = HEADERS["screen"]["parts"]

_ORF = re.compile(r"[YQ][A-Z0-9]+(-[A-Z])?(_[A-Za-z]+\d*)?", re.ASCII)
_ROLE_NAMES = ("query", "array")
_GENE, _ROLE, _JOINED = (pattern("screen", key) for key in ("gene", "role", "genes"))
_ROLES = {"anchor": "query", "donor": "query", "library": "array", "recipient": "array"}
# The preferred header of each phenotype, and the patterns of all its headers.
_SCORES = {"interaction": "score", "fitness": "fitness"}
_SCORE_WORDS = {phenotype: pattern("screen", phenotype) for phenotype in _SCORES}
_OTHERS: dict[str, list[str]] = HEADERS["screen"]["others"]


@dataclass(frozen=True)
class _Form:
    """The layout of a sheet: the row of its header and the names of its columns."""

    sheet: Sheet
    at: int | None = None
    genes: Sequence[GeneColumn] = ()
    scores: Mapping[str, Sequence[str]] = field(default_factory=dict)  # by phenotype
    others: Mapping[str, str] = field(default_factory=dict)
    numbers: Sequence[str] = ()  # all columns of numbers
    counts: bool = False  # whether the first column is the number of genes, as DCell writes it
    matrix: bool = False


def _read(
    forms: Sequence[_Form],
    phenotype: str | None = None,
    is_known: IsKnown | None = None,
) -> list[WrittenScreen]:
    file = forms[0].sheet.file
    stem, read = stem_of(file.path.name), {form.sheet.name for form in forms}
    unread = sorted({sheet.name for sheet in file.sheets} - read)
    found = []
    for form in forms:
        name = f"{stem}_{form.sheet.name}" if len(forms) > 1 else stem
        read_form = _read_matrix if form.matrix else partial(_read_rows, is_known=is_known)
        found.append(read_form(form, name, phenotype))
        found[-1].notes |= {"sheets_left_out": ", ".join(unread)} if unread else {}
    return found


def _find_split(file: File) -> _Form | None:
    forms = chain.from_iterable(map(_candidates, file.sheets))
    return next((form for form in forms if "split" in form.others), None)


def _read_split(
    form: _Form,
    is_known: IsKnown | None = None,
) -> list[tuple[list[list[str]], list[str]]]:
    """Return the gene sets of the table, and the part of each."""
    table = form.sheet.below(form.at)
    table.check_not_repeated(form.others["split"])
    parts = _parts(table, form.others["split"])
    genes = deleted_genes(table, form.genes, is_known=is_known)
    table.raise_if_bad()
    by_row = dict(genes.group_by("row", maintain_order=True).agg("name").iter_rows())
    kept = [row for row, part in enumerate(parts) if part]
    return [([by_row.get(row, []) for row in kept], [parts[row] for row in kept])]


def unclear(file: File) -> tuple[str, list[str], str] | None:
    """Return why a table of two genes and numbers per row is not read, and its columns."""
    forms = chain.from_iterable(map(_candidates, file.sheets))
    form = next((form for form in forms if form.numbers), None)
    if form is None:
        return None
    genes = [column.name for column in form.genes]
    for phenotype, several in form.scores.items():
        if len(several) > 1:
            return f"it has two columns of {phenotype}", genes, several[0]
    return "no column is known as a score or a weight", genes, form.numbers[0]


def _by_names(sheet: Sheet) -> _Form | None:
    for names in sheet.file.columns:
        found = names.find(sheet) if {"score", "fitness"} & names.names.keys() else None
        if found is not None:
            row, places = found
            header = sheet.names(row)
            at = {"standard_deviation" if k == "sd" else k: header[i] for k, i in places.items()}
            roles = {key: re.sub(r"\d|gene.*", "", key) or "unknown" for key in names.genes}
            genes = [
                GeneColumn(
                    at[key],
                    role,
                    is_strain=True,
                    joins=Joins.always if key.startswith("genes") else Joins.never,
                )
                for key, role in roles.items()
            ]
            return _Form(
                sheet,
                row,
                genes,
                {phenotype: [at[key]] for phenotype, key in _SCORES.items() if key in at},
                {key: at[key] for key in _OTHERS if key in at},
            )
    return None


def _by_words(sheet: Sheet) -> _Form | None:
    clear = (f for f in _candidates(sheet) if f.scores and max(map(len, f.scores.values())) == 1)
    return next(clear, None)


class _Column(NamedTuple):
    name: str
    word: str
    fields: list[str]  # those below the header that are not missing

    @property
    def is_numeric(self) -> bool:
        return 2 * sum(map(is_number, self.fields)) > len(self.fields)


def _candidates(sheet: Sheet) -> Iterator[_Form]:
    """Yield the headers with gene columns, with any number of scores.

    Text may contain the words of a header, but the lines below it have other numbers of words.
    """
    for at, header, words in sheet.headers:
        if not any(known.fullmatch(w) for w in words for known in (_GENE, _ROLE, _JOINED)):
            continue
        rows = [row for row in sheet.rows[at + 1 :] if any(row)]
        if 2 * sum(len(row) == len(header) for row in rows) < len(rows):
            continue
        columns = []
        for i, (name, w) in enumerate(zip(header, words, strict=True)):
            below = [row[i].strip() for row in sheet.rows[at + 1 :] if i < len(row)]
            fields = [field for field in below if field.lower() not in MISSING]
            columns.append(_Column(name, w, fields))
        genes = _genes(columns)
        if not genes:
            continue
        scores: dict[str, list[str]] = {}
        # A bad number among others is reported by `_read_rows`.
        measured_in = [c for c in columns if not c.fields or any(map(is_number, c.fields))]
        for phenotype, first in _SCORES.items():
            there = [c for c in measured_in if _SCORE_WORDS[phenotype].fullmatch(c.word)]
            chosen = [c for c in there if c.word == first] or there
            scores |= {phenotype: [c.name for c in chosen]} if chosen else {}
        others = {}
        for key, known in _OTHERS.items():
            column = next((c for name in known for c in columns if c.word == name), None)
            if column and (key != "split" or all(word(f) in PARTS for f in column.fields)):
                others[key] = column.name
        yield _Form(sheet, at, genes, scores, others, [c.name for c in columns if c.is_numeric])


def _genes(columns: Sequence[_Column]) -> list[GeneColumn]:
    """Return the gene columns; if several name the same gene, the most exact one."""
    candidates: dict[tuple[str, str], list[tuple[int, int, bool]]] = {}
    for at, column in enumerate(columns):
        found = _ROLE.fullmatch(column.word) or _GENE.fullmatch(column.word)
        if found is None or column.is_numeric:
            continue
        groups = found.groupdict()
        role = groups.get("role") or ""
        kind = groups["kind"] + groups.get("before", "")
        exact = 2 if "strain" in kind else bool(re.search("orf|systematic|locus", kind))
        key = _ROLES.get(role, role), groups["number"] or ""
        candidates.setdefault(key, []).append((-exact, at, "strain" in kind))
    with_role = [key for key in candidates if key[0]]
    if 2 <= len(with_role) <= len(candidates) - 2:
        return []
    if len(candidates) >= 2:
        chosen = sorted((*min(found)[1:], key[0]) for key, found in candidates.items())
        return [
            GeneColumn(
                columns[at].name,
                role or "unknown",
                is_strain,
                joins=Joins.of_strains if is_strain else Joins.never,
            )
            for at, is_strain, role in chosen
        ]
    joined = [c for c in columns if _JOINED.fullmatch(c.word)]
    if len(joined) == 1 and not candidates and any(map(may_be_joined, joined[0].fields)):
        return [GeneColumn(joined[0].name, joins=Joins.of_known_genes)]
    return []


def _counted(sheet: Sheet) -> _Form | None:
    """Return the form of rows that begin with the number of their genes, as in DCell."""

    def is_counted(row: Sequence[str]) -> bool:
        if len(row) < 3 or not row[0].isdigit() or int(row[0]) != len(row) - 2:
            return False
        score = is_number(row[-1]) or row[-1].lower() in MISSING
        return score and not any(map(is_number, row[1:-1]))

    if len(sheet.rows) < 2 or not all(map(is_counted, sheet.rows)):
        return None
    _, *genes, last = sheet.names(None)
    scores = {phenotype: [last] for phenotype in _SCORES}
    return _Form(sheet, None, [GeneColumn(name) for name in genes], scores, counts=True)


def _matrix(sheet: Sheet) -> _Form | None:
    """Return the form of a matrix of scores: genes in the header and in the first column."""
    for at in range(min(len(sheet.rows) - 1, 6)):
        header, rows = sheet.header(at)[1:], sheet.rows[at + 1 :]
        labels = [row[0] for row in rows if row and row[0]]
        if len(header) < 2 or not labels or any(len(row) != len(header) + 1 for row in rows):
            continue
        values = [name for row in rows for name in row[1:] if name.lower() not in MISSING]
        if not values or not all(map(is_number, values)) or any(map(is_number, header)):
            continue
        named = {bare_name(name) for name in header}
        both = sum(bare_name(label) in named for label in labels)
        systematic = all(is_systematic(bare_name(name)) for name in (*header, *labels))
        if systematic or 2 * both > len(labels):
            return _Form(sheet, at, matrix=True)
    return None


def _parts(table: Table, column: str) -> pl.Series:
    """Return the part of a split of each row, empty if there is none."""
    words = present(table.frame[column]).map_elements(word, return_dtype=pl.String)
    known = f"column '{column}' is not one of {', '.join(dict.fromkeys(PARTS.values()))}"
    table.mark_bad(known, column, ~words.is_in([*PARTS, ""]))
    return words.replace_strict(PARTS, default="")


def _read_rows(
    form: _Form,
    study: str,
    phenotype: str | None,
    is_known: IsKnown | None = None,
) -> WrittenScreen:
    phenotype = chosen_phenotype(phenotype, list(form.scores), form.sheet.file.path)
    table = form.sheet.below(form.at)
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
        else:
            columns[key] = measured(table, key, name)
    genes = deleted_genes(table, form.genes, is_known=is_known)
    n_genes = np.bincount(genes["row"].to_numpy(), minlength=len(table))
    scored, first = ~np.isnan(columns["score"]), table.frame.columns[0]
    if form.counts:
        wrong = table.frame[first] != pl.Series(n_genes).cast(pl.String)
        table.mark_bad("the number of genes differs from the first column", first, wrong)
    else:
        named = ", ".join(column.name for column in form.genes)
        table.mark_bad(f"no gene in {named}", form.genes[0].name, scored & (n_genes == 0))
    return WrittenScreen(table, genes, reader.name, study, columns, dropped={NO_SCORE: ~scored})


def _read_matrix(form: _Form, study: str, phenotype: str | None) -> WrittenScreen:
    table = form.sheet.below(form.at)
    first, *column_genes = table.frame.columns
    row_genes = table.frame[first]
    table.mark_bad("no gene in the first column", first, is_missing(row_genes))
    score = np.stack([table.numbers(name) for name in column_genes], axis=1)
    table.raise_if_bad()
    row, column = np.indices(score.shape).reshape(2, -1)
    names = [*row_genes, *column_genes]
    number = {name: i for i, name in enumerate(dict.fromkeys(map(bare_name, names)))}
    codes = np.array([number[bare_name(name)] for name in names])
    one, other, value = codes[row], codes[len(row_genes) + column], score.ravel()
    diagonal, absent = one == other, np.isnan(value)
    if diagonal.any() and (value[diagonal] == 1).all():
        what = "the matrix has 1 on its diagonal, like correlations: it is not a screen"
        fix = "Write it as a network of gene1, gene2, weight; or empty the diagonal."
        raise InputError(what, code="correlation-matrix", where=table.path, fix=fix)
    there, square = ~diagonal & ~absent, np.full((len(number), len(number)), np.nan)
    square[one[there], other[there]] = value[there]
    half = there & (one > other) & (square[other, one] == value)
    symmetric = bool(half.any())
    roles = ("unknown", "unknown") if symmetric else ("query", "array")
    table.notes["form"] = f"matrix of {score.shape[0]:,} x {score.shape[1]:,} genes"
    pairs = {"1": row_genes.gather(row), "2": pl.Series(column_genes).gather(column)}
    table = replace(table, frame=pl.DataFrame(pairs), lines=table.lines[row])
    return WrittenScreen(
        table,
        deleted_genes(table, [GeneColumn(*one, True) for one in zip(pairs, roles, strict=True)]),
        reader.name,
        study,
        {"phenotype": phenotype or "interaction", "score": value},
        dropped={DIAGONAL: diagonal, NO_SCORE: absent, OTHER_HALF: half},
        complete_coverage=not symmetric,
    )


_KUZMIN, _COSTANZO2016, _COSTANZO2010 = (
    HEADERS[study] for study in ("kuzmin2018", "costanzo2016", "costanzo2010")
)
_FITNESS2020 = "Double/triple mutant fitness"


def _is_costanzo2010(sheet: Sheet) -> bool:
    """Whether one of the first rows is two ORFs with their names, then three numbers.

    A name that is the ORF of another gene is a gene of its own, as in a table of triples.
    """
    return any(
        len(row) == len(_COSTANZO2010)
        and all(_ORF.fullmatch(row[i]) for i in (0, 2))
        and not any(
            is_systematic(name) and bare_name(name) != bare_name(orf)
            for orf, name in (row[:2], row[2:4])
        )
        and all(map(is_number, row[4:]))
        for row in sheet.rows[:3]
    )


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
    only_hits, of_kuzmin, frame = format == "costanzo2010", format == "kuzmin", table.frame
    study = "kuzmin2018" if of_kuzmin else format
    columns = dict(HEADERS[study])
    if of_kuzmin and _FITNESS2020 in frame.columns:
        study, columns["fitness"] = "kuzmin2020", _FITNESS2020
    for role in _ROLE_NAMES if only_hits else ():
        # The second column is a gene name for a deletion, without suffix, and otherwise an allele.
        name, is_strain = f"{role} gene", pl.col(f"{role} ORF").str.contains("_", literal=True)
        frame = frame.with_columns(pl.when(is_strain).then(name).otherwise(pl.lit("")).alias(name))
    table = replace(table, frame=frame)
    there = [p for p in _SCORES if columns.get(p) in frame.columns]
    phenotype = chosen_phenotype(phenotype, there, table.path)
    if phenotype == "fitness":
        columns["standard_deviation"] = f"{columns['fitness']} standard deviation"
    strains = (
        GeneColumn(columns[r], r, True, columns[f"{r}_allele"], Joins.always) for r in _ROLE_NAMES
    )
    genes, is_query = deleted_genes(table, [*strains], required=True), pl.col("role") == "query"
    score = measured(table, "score", columns[phenotype], required=only_hits)
    values, dropped = {"phenotype": phenotype, "score": score}, {NO_SCORE: np.isnan(score)}
    for name in ("standard_deviation", "p_value", "query_fitness", "array_fitness"):
        if columns.get(name) in frame.columns:
            values[name] = measured(table, name, columns[name])
    if "panel" in columns:
        # The two temperatures (DMA26, DMA30) use the same array.
        values["panel"] = frame[columns["panel"]].str.extract(r"^([A-Za-z]*)")
    if of_kuzmin:
        genes = genes.filter(~is_query | (pl.col("name") != HO))
        if phenotype == "interaction":
            queries = genes.filter(is_query)["row"].to_numpy()
            dropped[CONTROL_ALONE] = np.bincount(queries, minlength=len(table)) == 0
    facts = table, genes, format, study, values
    return [WrittenScreen(*facts, dropped=dropped, complete_coverage=not only_hits)]


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
    n = 3 if "orf3" in table.frame.columns else 2
    rows = ("n_rows",) if n == 3 else ("n_negative_rows", "n_positive_rows")
    sign: pl.Series | int = -1
    if n == 2:
        # A pair that is a hit of both signs has none.
        signs = {"negative": -1, "positive": 1, "both": 0}
        written = table.frame["sign"].str.to_lowercase()
        table.mark_bad(
            f"the sign is not one of {', '.join(signs)}", "sign", ~written.is_in(list(signs))
        )
        sign = written.replace_strict(signs, default=0, return_dtype=pl.Int8)
    replicates = np.sum([table.numbers(column, required=True) for column in rows], axis=0)
    each = [GeneColumn(f"orf{i}", alleles=f"allele{i}") for i in range(1, n + 1)]
    genes = deleted_genes(table, each, required=True)
    columns = {"sign": sign, "replicates": np.nan_to_num(replicates).astype(np.int32)}
    return [WrittenScreen(table, genes, "hits", "kuzmin2018", columns)]


_FIX = "Name the columns gene1, gene2 and score (or split): docs/how-to/screen.md."
_WAYS = _by_names, _by_words, _counted, _matrix
_FORMATS = {
    "kuzmin": with_header(
        *(_KUZMIN["query"], _KUZMIN["array"]),
        any_of=(_KUZMIN["interaction"], _KUZMIN["fitness"], _FITNESS2020),
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
reader = Reader("table", "screens", lambda file: file.forms(_WAYS), _read, _FIX)
split_reader = Reader("split", "parts", _find_split, _read_split, _FIX)
SCREEN_READERS = (
    *(table_reader(n, "screens", find, partial(_read_crosses, n)) for n, find in _FORMATS.items()),
    *(table_reader("hits", "screens", with_header(*header), _read_hits) for header in _HITS),
    *(reader, split_reader),
)
