"""Tables of one's own: genes and a score under common words, matrices, rows as DCell writes them.

The form does not matter, see `deltacell.sheet`: text with any separator or an xlsx workbook, title
lines above the header, decimal commas, Latin-1.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import polars as pl

from deltacell.arrays import AnyArray, Bools, offsets_of
from deltacell.cell.readers.names import is_systematic, stem_of
from deltacell.errors import InputError, PhenotypeError
from deltacell.screen.readers.published import COLLECTIONS
from deltacell.screen.readers.written import NO_SCORE, WrittenScreen, deleted_genes, refuse_empty
from deltacell.sheet import (
    MISSING,
    BadRows,
    ColumnNames,
    Sheet,
    is_missing,
    is_number,
    numbers_of,
    sheets,
    word,
)
from deltacell.table import Table

NAME = "table"

#: Why a field of a matrix is left out.
DIAGONAL, OTHER_HALF = "diagonal of the matrix", "other half of a symmetric matrix"
#: The words for the parts of a split.
PARTS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validation", "dev"), "validation"),
    **dict.fromkeys(("test", "testing", "holdout", "heldout"), "test"),
}

_HEADER_WITHIN = 20
_TAIL = r"(?:strain|systematic|orf|locus|tag|symbol|gene|name|id)*"
_GENE = re.compile(
    rf"(?:target|deleted)?(?P<kind>(?:strain|systematic|orf|locus|symbol|gene){_TAIL})"
    rf"(?P<number>\d{{1,2}}|[a-eijxy]){_TAIL}"
)
_ROLE = re.compile(
    rf"(?P<before>{_TAIL})(?P<role>query|array|anchor|library|donor|recipient)"
    rf"(?P<kind>{_TAIL})(?P<number>\d{{1,2}}|[a-eijxy])?{_TAIL}"
)
_ROLES = {"anchor": "query", "donor": "query", "library": "array", "recipient": "array"}
_JOINED = ("genes", "genepair", "pair", "genotype", "deletedgenes")
_GREEK = r"(?:ε|epsilon|eps|τ|tau|epsilonortau|π|pi)"
# Of each phenotype, the word that counts before all others, and those.
_SCORES = {
    "interaction": (
        "score",
        re.compile(
            rf"score|(?:adjusted)?(?:genetic|gene)?interactions?(?:score)?{_GREEK}?"
            rf"|{_GREEK}(?:score)?|(?:sga|gi|s|gemini|bliss){_GREEK}?scores?{_GREEK}?|gis?"
            r"|(?:d|δ|delta)lfc"
        ),
    ),
    "fitness": (
        "fitness",
        re.compile(
            r"(?:(?:double|triple|combined|observed)?mutant)?fitness|[dt]mf"
            r"|(?:mean|median)?(?:lfc|log2?fc|log2?foldchange)"
        ),
    ),
}
_OTHERS = {
    "p_value": ("pvalue", "pval", "p"),
    "sd": ("standarddeviation", "stddev", "stdev", "std", "sd"),
    "study": ("study", "dataset", "publication", "reference", "pmid", "pubmedid", "screen"),
    "split": ("split", "partition", "part", "subset", "set", "fold"),
}
_JOINS = r"\s*[+;|/&]\s*|\s+"
# rad52Δ, rad52-delta, rad52Δ::kanMX, Δrad52
_DELETED = r"(?i)^[\u0394\u2206](?=\w)|(?:[-_ ]?[\u0394\u2206\u03b4]|[-_ ]delta)?(?:::\w+)?$"
_STRAIN = r"^([^_]+)_([A-Za-z]*)\w*$"


@dataclass(frozen=True)
class _Form:
    """How a sheet is to be read: the header's row and the positions of the columns."""

    sheet: Sheet
    at: int | None = None
    genes: tuple[tuple[int, str, bool], ...] = ()  # position, role, whether it holds strain IDs
    scores: Mapping[str, int] = field(default_factory=dict)  # by phenotype
    others: Mapping[str, int] = field(default_factory=dict)
    counts: bool = False  # whether the first column is the number of genes, as DCell writes it
    matrix: bool = False


def recognise(path: str | os.PathLike[str], columns: Sequence[ColumnNames] = ()) -> bool:
    """Whether a file is a table of gene sets and scores.

    The header names two or more columns of genes (``gene1`` or ``orf_b``; ``Query ORF`` and
    ``Array ORF``; or ``genes``, joined by ``+`` or ``;``) and a column of scores (``score``,
    ``epsilon``, ``SGA score``, ``LFC``, …). A table with two scores of which none is called
    ``score`` is not guessed at. Matrices with genes in rows and columns, and rows such as
    ``2 YAL001C YBR160W -0.1``, need no header. `columns` is what the user says the columns are,
    for tables that have them.
    """
    return bool(_forms(path, columns))


def read(
    path: str | os.PathLike[str],
    *,
    study: str | None = None,
    phenotype: str | None = None,
    columns: Sequence[ColumnNames] = (),
) -> list[WrittenScreen]:
    """Read a table; of a workbook, every sheet that is one.

    A gene may be missing, as the third of a pair is. Rows without a score are dropped and counted.
    All rows that cannot be read are reported at once.
    """
    path = Path(path)
    forms = _forms(path, columns)
    if not forms:
        raise InputError(
            asks(path) or "the header does not name two columns of genes and one of scores",
            code="not-a-screen",
            where=path,
            fix="Name them gene1, gene2, score, or see docs/how-to/screen.md.",
        )
    stem = study or stem_of(path.name)
    unread = sorted({s.name for s in sheets(path)} - {f.sheet.name for f in forms} - {""})
    notes = {"sheets_left_out": ", ".join(unread)} if unread else {}
    return [
        (_read_matrix if form.matrix else _read_rows)(
            form, f"{stem}_{form.sheet.name}" if len(forms) > 1 else stem, phenotype, notes
        )
        for form in forms
    ]


def read_parts(path: str | os.PathLike[str]) -> tuple[list[list[str]], list[str]]:
    """Return the gene sets of a table that names their part of a split, and the parts.

    The table has columns of genes and one called ``split``; it needs no score.
    """
    form = _split_form(path)
    if form is None:
        raise InputError(
            "there is no header with genes and a column 'split' of train, validation and test",
            code="not-a-split",
            where=path,
            fix="Call the columns gene1, gene2 and split.",
        )
    bad = BadRows(Path(path))
    table, _ = form.sheet.below(form.at, bad)
    parts = _parts(table, form, bad)
    bad.refuse()
    lists = pl.DataFrame([_names(table, at).alias(str(at)) for at, *_ in form.genes])
    names = lists.select(pl.concat_list(pl.all())).to_series()
    ends = offsets_of(names.list.len().to_numpy()).tolist()
    flat = _told_by_name(names.explode(), np.zeros(ends[-1], dtype=bool))["name"].to_list()
    kept = [i for i, part in enumerate(parts) if part]
    return [flat[ends[i] : ends[i + 1]] for i in kept], [parts[i] for i in kept]


def is_split(path: str | os.PathLike[str]) -> bool:
    """Whether a table names genes and their part of a split, and no score."""
    return _split_form(path) is not None


def asks(path: str | os.PathLike[str]) -> str | None:
    """Return why a table of two genes and numbers per row is not read, and what to say of it.

    None where a file is not such a table.
    """
    for sheet in sheets(path):
        for form, header, rows in _with_genes(sheet):
            numbers = [i for i in range(len(header)) if _are_mostly_numbers(_below(rows, i))]
            if not numbers:
                continue
            why = "its header names genes, and no column that is known as a score or a weight"
            for phenotype in _SCORES:
                several = _scores(header, rows, phenotype)
                if len(several) > 1:
                    numbers = several
                    one, other = (header[i] for i in several[:2])
                    why = f"it has two columns of {phenotype}, '{one}' and '{other}'"
                    break
            named = [f"gene{n}={header[at]}" for n, (at, *_) in enumerate(form.genes, 1)]
            given = ",".join([*named, f"score={header[numbers[0]]}"])
            return (
                f'{why}. Say which columns are meant: --columns "{given}" for a screen, with '
                "weight= in place of score= for a network"
            )
    return None


def _forms(path: str | os.PathLike[str], given: Sequence[ColumnNames]) -> list[_Form]:
    """Return how each sheet of a workbook is to be read, or the one way to read a text."""
    found = sheets(path)
    ways = (lambda sheet: _by_names(sheet, given), _by_words, _counted, _matrix)
    if any(sheet.workbook is not None for sheet in found):
        each = [next((f for way in ways if (f := way(s))), None) for s in found]
        return [form for form in each if form is not None]
    first = next((form for way in ways for sheet in found if (form := way(sheet))), None)
    return [] if first is None else [first]


def _by_names(sheet: Sheet, given: Sequence[ColumnNames]) -> _Form | None:
    """Return the form that the user says it has."""
    for names in given:
        if not {"score", "fitness"} & names.names.keys():
            continue
        headers = {at: sheet.header(at) for at in range(min(len(sheet.rows), _HEADER_WITHIN))}
        found: tuple[int | None, dict[str, int]] | None = next(
            ((at, p) for at, h in headers.items() if (p := names.at(h))), None
        )
        if names.are_numbers:
            positions = names.at([str(i) for i in range(1, len(sheet.rows[0]) + 1)])
            if positions is not None and names.fit(sheet.rows[0], positions):
                found = None, positions
        if found is not None:
            header_at, at = found
            roles = (re.sub(r"\d|gene.*", "", key) or "unknown" for key in names.genes)
            return _Form(
                sheet,
                header_at,
                tuple((at[k], role, True) for k, role in zip(names.genes, roles, strict=True)),
                {
                    phenotype: at[key]
                    for phenotype, key in (("interaction", "score"), ("fitness", "fitness"))
                    if key in at
                },
                {key: at[key] for key in _OTHERS if key in at},
            )
    return None


def _by_words(sheet: Sheet) -> _Form | None:
    for form, header, rows in _with_genes(sheet):
        found = {phenotype: _scores(header, rows, phenotype) for phenotype in _SCORES}
        if all(len(columns) <= 1 for columns in found.values()) and any(found.values()):
            return replace(form, scores={p: columns[0] for p, columns in found.items() if columns})
    return None


def _split_form(path: str | os.PathLike[str]) -> _Form | None:
    forms = (form for sheet in sheets(path) for form, *_ in _with_genes(sheet))
    return next((form for form in forms if "split" in form.others), None)


def _with_genes(sheet: Sheet) -> Iterator[tuple[_Form, list[str], list[list[str]]]]:
    """Yield the headers that name columns of genes, and the rows below each."""
    for at in range(min(len(sheet.rows), _HEADER_WITHIN)):
        header, rows = sheet.header(at), sheet.rows[at + 1 :]
        genes = _genes(header, rows)
        if genes:
            yield _Form(sheet, at, genes, others=_other_columns(header, rows)), header, rows


def _genes(
    header: Sequence[str], rows: Sequence[Sequence[str]]
) -> tuple[tuple[int, str, bool], ...]:
    """Return the columns of genes; of several that name one gene, the most exact."""
    words = [word(name) for name in header]
    candidates: dict[tuple[str, str], list[tuple[int, int, bool]]] = {}
    for i, w in enumerate(words):
        found = _ROLE.fullmatch(w) or _GENE.fullmatch(w)
        if found is None or _are_mostly_numbers(_below(rows, i)):
            continue
        groups = found.groupdict()
        role = groups.get("role") or ""
        kind = groups["kind"] + groups.get("before", "")
        exact = 2 if "strain" in kind else bool(re.search("orf|systematic|locus", kind))
        key = _ROLES.get(role, role), groups["number"] or ""
        candidates.setdefault(key, []).append((-exact, i, "strain" in kind))
    with_role = [key for key in candidates if key[0]]
    if 2 <= len(with_role) <= len(candidates) - 2:
        return ()
    if len(candidates) >= 2:
        chosen = sorted((*min(columns)[1:], key[0]) for key, columns in candidates.items())
        return tuple((i, role or "unknown", strain) for i, strain, role in chosen)
    joined = [i for i, w in enumerate(words) if w in _JOINED]
    if len(joined) != 1 or candidates:
        return ()
    if not any(re.search(_JOINS, name) for name in _below(rows, joined[0])):
        return ()
    return ((joined[0], "unknown", False),)


def _scores(header: Sequence[str], rows: Sequence[Sequence[str]], phenotype: str) -> list[int]:
    """Return the columns of scores: those with the word that counts first, or else with any.

    One bad number among others is for `read` to name.
    """
    first, pattern = _SCORES[phenotype]
    words = [word(name) for name in header]
    there = []
    for i, w in enumerate(words):
        fields = _below(rows, i)
        if pattern.fullmatch(w) and (not fields or any(map(is_number, fields))):
            there.append(i)
    return [i for i in there if words[i] == first] or there


def _other_columns(header: Sequence[str], rows: Sequence[Sequence[str]]) -> dict[str, int]:
    words = [word(name) for name in header]
    found = {}
    for key, known in _OTHERS.items():
        at = next((words.index(name) for name in known if name in words), None)
        if at is None:
            continue
        if key != "split" or all(word(name) in PARTS for name in _below(rows, at)):
            found[key] = at
    return found


def _below(rows: Sequence[Sequence[str]], column: int) -> list[str]:
    fields = [row[column].strip() for row in rows if column < len(row)]
    return [name for name in fields if name.lower() not in MISSING]


def _are_mostly_numbers(fields: Sequence[str]) -> bool:
    return 2 * sum(map(is_number, fields)) > len(fields)


def _counted(sheet: Sheet) -> _Form | None:
    """Return the form of rows that begin with the number of their genes, such as DCell's."""

    def is_counted(row: Sequence[str]) -> bool:
        if len(row) < 3 or not row[0].isdigit() or int(row[0]) != len(row) - 2:
            return False
        score = is_number(row[-1]) or row[-1].lower() in MISSING
        return score and not any(map(is_number, row[1:-1]))

    if len(sheet.rows) < 2 or not all(map(is_counted, sheet.rows)):
        return None
    last = len(sheet.rows[0]) - 1
    genes = tuple((i, "unknown", False) for i in range(1, last))
    return _Form(sheet, None, genes, {"interaction": last, "fitness": last}, counts=True)


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
        named = {_bare(name) for name in header}
        both = sum(_bare(label) in named for label in labels)
        systematic = all(is_systematic(_bare(name)) for name in (*header, *labels))
        if systematic or 2 * both > len(labels):
            return _Form(sheet, at, matrix=True)
    return None


def _read_rows(
    form: _Form, study: str, phenotype: str | None, notes: Mapping[str, int | str]
) -> WrittenScreen:
    phenotype = next(iter(form.scores)) if phenotype is None else phenotype
    if phenotype not in form.scores:
        raise PhenotypeError(
            f"the header names {' and '.join(form.scores)}, and no '{phenotype}'",
            code="missing-phenotype",
            where=form.sheet.path,
        )
    bad = BadRows(form.sheet.path)
    table, told = form.sheet.below(form.at, bad)
    if form.counts:
        bad.refuse("Every row must have as many genes: give pairs and triples in separate files.")
        told["form"] = f"{len(form.genes)} genes per row behind their number"
    if not len(table):
        bad.refuse()
    refuse_empty(table)
    score = _numbers(table, form.scores[phenotype], form.sheet, bad)
    numbers = {"score": score}
    for name, key in (("standard_deviation", "sd"), ("p_value", "p_value")):
        if key in form.others:
            numbers[name] = _numbers(table, form.others[key], form.sheet, bad)
    if "p_value" in numbers:
        outside = (numbers["p_value"] < 0) | (numbers["p_value"] > 1)
        column = table.frame.columns[form.others["p_value"]]
        _add(
            bad, f"the p-value in column '{column}' is not between 0 and 1", table, column, outside
        )
    lists = [_names(table, at) for at, *_ in form.genes]
    sizes = np.stack([names.list.len().to_numpy() for names in lists], axis=1).astype(np.int64)
    n_genes, scored = sizes.sum(axis=1), ~np.isnan(score)
    named = [table.frame.columns[at] for at, *_ in form.genes]
    if form.counts:
        wrong = (
            table.frame["1"].str.strip_chars() != pl.Series(n_genes).cast(pl.String)
        ).to_numpy()
        _add(bad, "the number of genes is not that of the first column", table, "1", wrong)
    else:
        alone = scored & (n_genes == 0)
        _add(bad, f"no gene in {', '.join(named)}", table, named[0], alone)
    parts = _parts(table, form, bad) if "split" in form.others else None
    bad.refuse()
    rows = np.flatnonzero(scored)
    per_field = sizes[rows].ravel()
    fields = pl.concat([names.gather(rows) for names in lists])
    written = fields.gather(np.arange(len(fields)).reshape(len(lists), len(rows)).T.ravel())
    names = written.filter(written.list.len() > 0).explode()
    owner = np.repeat(np.arange(len(per_field)), per_field) % len(lists)
    deleted = _told_by_name(names, np.array([strain for *_, strain in form.genes])[owner])
    roles = pl.Series([role for _, role, _ in form.genes], dtype=pl.String).gather(owner)
    studies = None
    if "study" in form.others:
        studies = _present(table, form.others["study"]).replace("", study).gather(rows)
    return WrittenScreen(
        table,
        rows,
        deleted.with_columns(role=roles),
        offsets_of(n_genes[rows]),
        NAME,
        study,
        phenotype,
        {name: values[rows] for name, values in numbers.items()},
        studies=studies,
        parts=None if parts is None else parts.gather(rows),
        dropped={NO_SCORE: len(table) - len(rows)},
        notes={**told, **notes},
    )


def _read_matrix(
    form: _Form, study: str, phenotype: str | None, notes: Mapping[str, int | str]
) -> WrittenScreen:
    bad = BadRows(form.sheet.path)
    assert form.at is not None
    table, told = form.sheet.below(form.at, bad)
    column_genes = form.sheet.header(form.at)[1:]
    first = table.frame.columns[0]
    row_genes = table.frame[first].str.strip_chars()
    _add(bad, "no gene in the first column", table, first, is_missing(row_genes))
    positions = range(1, len(column_genes) + 1)
    score = np.stack([_numbers(table, i, form.sheet, bad) for i in positions], axis=1)
    bad.refuse()
    row, column = np.indices(score.shape).reshape(2, -1)
    names = [*row_genes, *column_genes]
    bare = [_bare(name) for name in names]
    number = {name: i for i, name in enumerate(dict.fromkeys(bare))}
    codes = np.array([number[name] for name in bare])
    one, other, value = codes[row], codes[len(row_genes) + column], score.ravel()
    diagonal, absent = one == other, np.isnan(value)
    if diagonal.any() and (value[diagonal] == 1).all():
        raise InputError(
            "the matrix has 1 on its diagonal, as correlations have, so these are not scores of "
            "a screen",
            code="correlation-matrix",
            where=table.path,
            fix="Write it as a network of gene1, gene2, weight; or leave the diagonal empty.",
        )
    half: Bools = np.zeros(len(value), dtype=bool)
    there = ~diagonal & ~absent
    n = len(number)
    mirrored = dict(zip((one * n + other)[there].tolist(), value[there].tolist(), strict=True))
    for i in np.flatnonzero(there & (one > other)).tolist():
        half[i] = mirrored.get(int(other[i] * n + one[i])) == value[i]
    symmetric = bool(half.any())
    kept = np.flatnonzero(there & ~half)
    pairs = np.stack([row[kept], len(row_genes) + column[kept]], axis=1).ravel()
    deleted = _told_by_name(pl.Series(names, dtype=pl.String), np.ones(len(names), dtype=bool))
    roles = ["unknown", "unknown"] if symmetric else ["query", "array"]
    return WrittenScreen(
        table,
        row[kept],
        deleted[pairs].with_columns(role=pl.Series(roles * len(kept), dtype=pl.String)),
        np.arange(0, 2 * len(kept) + 1, 2),
        NAME,
        study,
        phenotype or "interaction",
        {"score": value[kept]},
        dropped={
            NO_SCORE: int((absent & ~diagonal).sum()),
            DIAGONAL: int(diagonal.sum()),
            OTHER_HALF: int(half.sum()),
        },
        notes={**told, **notes, "form": f"matrix of {score.shape[0]:,} x {score.shape[1]:,} genes"},
        complete_coverage=not symmetric,
    )


def _add(bad: BadRows, kind: str, table: Table, column: str, wrong: Bools) -> None:
    written = table.frame[column].filter(pl.Series(wrong, dtype=pl.Boolean)).to_list()
    bad.add(kind, table.lines[wrong], written)


def _numbers(table: Table, at: int, sheet: Sheet, bad: BadRows) -> AnyArray:
    column = table.frame.columns[at]
    values, wrong = numbers_of(table.frame[column], decimal_comma=sheet.decimal_comma)
    _add(bad, f"column '{column}' is not a finite number", table, column, wrong)
    return values


def _parts(table: Table, form: _Form, bad: BadRows) -> pl.Series:
    """Return the part of a split of each row, empty where there is none; other words are bad."""
    split = _present(table, form.others["split"])
    part = split.map_elements(word, return_dtype=pl.String)
    strange = ~part.is_in([*PARTS, ""]).to_numpy()
    column = table.frame.columns[form.others["split"]]
    _add(bad, f"column '{column}' is not train, validation or test", table, column, strange)
    return part.replace_strict({**PARTS, "": ""}, default="", return_dtype=pl.String)


def _present(table: Table, at: int) -> pl.Series:
    """Return the texts of a column, empty where they stand for a missing value."""
    written = table.frame[table.frame.columns[at]].str.strip_chars()
    missing = pl.lit(pl.Series(is_missing(written), dtype=pl.Boolean))
    return pl.select(pl.when(missing).then(pl.lit("")).otherwise(written)).to_series()


def _names(table: Table, at: int) -> pl.Series:
    """Return the names in each field of a column, none where it is missing."""
    split = _present(table, at).str.replace_all(_JOINS, ";").str.split(";")
    return split.list.eval(pl.element().filter(pl.element() != ""))


def _bare(name: str) -> str:
    return re.sub(_DELETED, "", name.strip()).split("_")[0].upper()


def _told_by_name(names: pl.Series, strain: Bools) -> pl.DataFrame:
    """Return genes without what marks a deletion or a strain, the perturbation and the allele.

    What follows ``_`` is of a strain only in a column of strains, or behind a systematic name.
    """
    fields = pl.DataFrame({"written": names, "strain": strain})
    distinct = fields.unique(maintain_order=True)
    told = []
    for written, is_strain in distinct.iter_rows():
        gene, perturbation = re.sub(_DELETED, "", written), "deletion"
        # The digit of rad52delta is the gene's.
        if written.lower().endswith("delta") and written[:-5][-1:].isdigit():
            gene = written[:-5]
        found = re.fullmatch(_STRAIN, gene)
        if found and (is_strain or is_systematic(found[1])):
            gene, perturbation = found[1], COLLECTIONS.get(found[2].lower(), "deletion")
        gene = gene or written
        told.append((gene, perturbation, written if gene != written else ""))
    schema = {"name": pl.String, "perturbation": pl.String, "allele": pl.String}
    keyed = distinct.with_columns(pl.DataFrame(told, schema=schema, orient="row"))
    joined = fields.join(keyed, on=["written", "strain"], how="left", maintain_order="left")
    return deleted_genes(
        joined["name"], perturbation=joined["perturbation"], allele=joined["allele"]
    )
