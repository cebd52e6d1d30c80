"""Tables of one's own: genes and a score under common words, matrices, rows as DCell writes them.

The form does not matter, see `deltacell.sheet`: text with any separator or an xlsx workbook, title
lines above the header, decimal commas, Latin-1.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import polars as pl

from deltacell.arrays import AnyArray, Bools, Ints, offsets_of
from deltacell.cell.readers.names import is_systematic, stem_of
from deltacell.errors import InputError, PhenotypeError
from deltacell.screen.readers.fields import NO_SCORE
from deltacell.screen.readers.strains import COLLECTIONS
from deltacell.screen.readers.written import WrittenScreen
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
# Of each phenotype, the first pattern counts before the other.
_GREEK = r"(?:ε|epsilon|eps|τ|tau|epsilonortau|π|pi)"
_SCORES = {
    "interaction": (
        re.compile("score"),
        re.compile(
            rf"(?:adjusted)?(?:genetic|gene)?interactions?(?:score)?{_GREEK}?|{_GREEK}(?:score)?"
            rf"|(?:sga|gi|s|gemini|bliss){_GREEK}?scores?{_GREEK}?|gis?|(?:d|δ|delta)lfc"
        ),
    ),
    "fitness": (
        re.compile("fitness"),
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
class _Columns:
    """The positions of the columns, by what they are; the role and the kind of each of genes."""

    genes: tuple[int, ...]
    roles: tuple[str, ...]
    strains: tuple[bool, ...]
    scores: Mapping[str, int] = field(default_factory=dict)
    others: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class _Form:
    """How a sheet is to be read."""

    kind: Literal["rows", "matrix", "counted"]
    sheet: Sheet
    at: int | None = None
    columns: _Columns | None = None


def recognise(path: str | os.PathLike[str], columns: Sequence[ColumnNames] = ()) -> bool:
    """Whether a file is a table of gene sets and scores.

    The header names two or more columns of genes (``gene1`` or ``orf_b``; ``Query ORF`` and
    ``Array ORF``; or ``genes``, joined by ``+`` or ``;``) and a column of scores (``score``,
    ``epsilon``, ``SGA score``, ``LFC``, …). A table with two scores of which none is called
    ``score`` is not guessed at. Matrices with genes in rows and columns, and rows such as
    ``2 YAL001C YBR160W -0.1``, need no header.

    Parameters
    ----------
    path
        Text, plain or packed, or a workbook.
    columns
        What the user says the columns are, for tables that have them.
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

    A field of a gene may be missing, as the third gene of a pair is. Rows without a score are
    dropped and counted. All rows that cannot be read are reported at once.

    Parameters
    ----------
    path
        The file.
    study
        What to call the study; the file's name without its ending where not given, and with the
        sheet's name where several sheets are read.
    phenotype
        ``interaction`` or ``fitness`` (of the mutant); where not given, the first that is there.
    columns
        What the user says the columns are, for tables that have them.
    """
    path = Path(path)
    forms = _forms(path, columns)
    if not forms:
        raise InputError(
            asks(path) or "the header does not name two columns of genes and one of scores",
            where=path,
            fix="Name them gene1, gene2, score, or see docs/how-to/screen.md.",
        )
    stem = study or stem_of(path.name)
    names = [f"{stem}_{f.sheet.name}" if len(forms) > 1 else stem for f in forms]
    unread = sorted({s.name for s in sheets(path)} - {f.sheet.name for f in forms} - {""})
    read_form = {"rows": _read_rows, "matrix": _read_matrix, "counted": _read_counted}
    return [
        read_form[form.kind](form, name, phenotype, {"sheets_left_out": ", ".join(unread)})
        if unread
        else read_form[form.kind](form, name, phenotype, {})
        for form, name in zip(forms, names, strict=True)
    ]


def read_parts(
    path: str | os.PathLike[str], columns: Sequence[ColumnNames] = ()
) -> tuple[list[list[str]], list[str]]:
    """Return the gene sets of a table that names their part of a split, and the parts.

    Parameters
    ----------
    path
        A table with columns of genes and one called ``split``; it needs no score.
    columns
        What the user says the columns are, for tables that have them.
    """
    form = _split_form(path)
    if form is None or form.columns is None:
        raise InputError(
            "there is no header with genes and a column 'split' of train, validation and test",
            where=path,
            fix="Call the columns gene1, gene2 and split.",
        )
    bad = BadRows(Path(path))
    table, _ = form.sheet.below(form.at, bad)
    split = _column(table, form.columns, "split")
    assert split is not None
    parts = _parts(table, split, bad)
    bad.refuse()
    lists = pl.DataFrame([_names(table, at).alias(str(at)) for at in form.columns.genes])
    names = lists.select(pl.concat_list(pl.all())).to_series()
    strains = np.zeros(int(names.list.len().sum()), dtype=bool)
    flat = _told_by_name(names.explode(), strains)[0].to_list()
    ends = np.cumsum(names.list.len().to_numpy()).tolist()
    sets = [flat[a:b] for a, b in zip([0, *ends], ends, strict=False)]
    kept = [i for i, part in enumerate(parts) if part]
    return [sets[i] for i in kept], [parts[i] for i in kept]


def is_split(path: str | os.PathLike[str]) -> bool:
    """Whether a table names genes and their part of a split, and no score."""
    return _split_form(path) is not None


def _split_form(path: str | os.PathLike[str]) -> _Form | None:
    for sheet in sheets(path):
        for at in range(min(len(sheet.rows), _HEADER_WITHIN)):
            header, rows = sheet.header(at), sheet.rows[at + 1 :]
            genes, others = _genes(header, rows), _other_columns(header, rows)
            if genes is not None and "split" in others:
                columns = _Columns(genes.genes, genes.roles, genes.strains, others=others)
                return _Form("rows", sheet, at, columns)
    return None


def _parts(table: Table, split: pl.Series, bad: BadRows) -> pl.Series:
    """Return the part of each row, empty where there is none; other words are bad."""
    part = split.map_elements(word, return_dtype=pl.String)
    strange = ~part.is_in([*PARTS, ""]).to_numpy()
    bad.add(
        f"column '{split.name}' is not train, validation or test",
        table.lines[strange],
        split.filter(pl.Series(strange)).to_list(),
    )
    return part.replace_strict({**PARTS, "": ""}, default="", return_dtype=pl.String)


def asks(path: str | os.PathLike[str]) -> str | None:
    """Return why a table of two genes and numbers per row is not read, and what to say of it.

    None where a file is not such a table.
    """
    for sheet in sheets(path):
        for at in range(min(len(sheet.rows), _HEADER_WITHIN)):
            header, rows = sheet.header(at), sheet.rows[at + 1 :]
            genes = _genes(header, rows)
            numbers = [i for i in range(len(header)) if _are_mostly_numbers(_below(rows, i))]
            if genes is None or not numbers:
                continue
            for phenotype, patterns in _SCORES.items():
                several = _scores(header, rows, patterns)
                if len(several) > 1:
                    one, other = header[several[0]], header[several[1]]
                    told = f"it has two columns of {phenotype}, '{one}' and '{other}'"
                    return f"{told}. {_example(header, genes.genes, several[0])}"
            return (
                "its header names genes, and no column that is known as a score or a weight. "
                + _example(header, genes.genes, numbers[0])
            )
    return None


def _example(header: Sequence[str], genes: Sequence[int], number: int) -> str:
    named = [f"gene{n}={header[i]}" for n, i in enumerate(genes, 1)]
    given = ",".join([*named, f"score={header[number]}"])
    return (
        f'Say which columns are meant: --columns "{given}" for a screen, with weight= in place of '
        "score= for a network"
    )


def _forms(path: str | os.PathLike[str], given: Sequence[ColumnNames]) -> list[_Form]:
    """Return how each sheet of a workbook is to be read, or the one way to read a text."""
    found = sheets(path)
    ways = [_told, _by_words, _counted, _matrix]
    if any(sheet.workbook is not None for sheet in found):
        each = [next((f for way in ways if (f := way(s, given))), None) for s in found]
        return [form for form in each if form is not None]
    first = next((form for way in ways for sheet in found if (form := way(sheet, given))), None)
    return [] if first is None else [first]


def _told(sheet: Sheet, given: Sequence[ColumnNames]) -> _Form | None:
    for names in given:
        if "score" not in names.names and "fitness" not in names.names:
            continue
        if names.are_numbers:
            numbered = [str(i) for i in range(1, len(sheet.rows[0]) + 1)]
            positions = names.at(numbered)
            if positions is not None and names.fit(sheet.rows[0], positions):
                return _Form("rows", sheet, None, _given_columns(names, positions))
        for at in range(min(len(sheet.rows), _HEADER_WITHIN)):
            positions = names.at(sheet.header(at))
            if positions is not None:
                return _Form("rows", sheet, at, _given_columns(names, positions))
    return None


def _given_columns(names: ColumnNames, at: Mapping[str, int]) -> _Columns:
    roles = [re.sub(r"\d|gene.*", "", key) or "unknown" for key in names.genes]
    scores = {"interaction": "score", "fitness": "fitness"}
    return _Columns(
        tuple(at[key] for key in names.genes),
        tuple(roles),
        (True,) * len(roles),
        {phenotype: at[key] for phenotype, key in scores.items() if key in at},
        {key: at[key] for key in _OTHERS if key in at},
    )


def _by_words(sheet: Sheet, given: Sequence[ColumnNames]) -> _Form | None:
    for at in range(min(len(sheet.rows), _HEADER_WITHIN)):
        header, rows = sheet.header(at), sheet.rows[at + 1 :]
        genes = _genes(header, rows)
        if genes is None:
            continue
        found = {p: _scores(header, rows, patterns) for p, patterns in _SCORES.items()}
        others = _other_columns(header, rows)
        if all(len(columns) <= 1 for columns in found.values()) and any(found.values()):
            scores = {p: columns[0] for p, columns in found.items() if columns}
            return _Form(
                "rows", sheet, at, _Columns(genes.genes, genes.roles, genes.strains, scores, others)
            )
    return None


def _genes(header: Sequence[str], rows: Sequence[Sequence[str]]) -> _Columns | None:
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
        return None
    if len(candidates) >= 2:
        chosen = sorted(min(columns)[1:] + key for key, columns in candidates.items())
        return _Columns(
            tuple(i for i, *_ in chosen),
            tuple(role or "unknown" for _, _, role, _ in chosen),
            tuple(strain for _, strain, *_ in chosen),
        )
    joined = [i for i, w in enumerate(words) if w in _JOINED]
    if len(joined) != 1 or candidates:
        return None
    if not any(re.search(_JOINS, name) for name in _below(rows, joined[0])):
        return None
    return _Columns((joined[0],), ("unknown",), (False,))


def _scores(
    header: Sequence[str], rows: Sequence[Sequence[str]], patterns: Sequence[re.Pattern[str]]
) -> list[int]:
    """Return the columns of scores: those of the first pattern, or else those of any."""
    words = [word(name) for name in header]
    there = [
        i
        for i, w in enumerate(words)
        if any(p.fullmatch(w) for p in patterns) and _may_be_numbers(_below(rows, i))
    ]
    return [i for i in there if patterns[0].fullmatch(words[i])] or there


def _other_columns(header: Sequence[str], rows: Sequence[Sequence[str]]) -> dict[str, int]:
    words = [word(name) for name in header]
    found = {}
    for key, known in _OTHERS.items():
        at = next((i for name in known for i, w in enumerate(words) if w == name), None)
        if at is None:
            continue
        if key == "split" and not all(word(name) in PARTS for name in _below(rows, at)):
            continue
        found[key] = at
    return found


def _below(rows: Sequence[Sequence[str]], column: int) -> list[str]:
    fields = [row[column].strip() for row in rows if column < len(row)]
    return [name for name in fields if name.lower() not in MISSING]


def _may_be_numbers(fields: Sequence[str]) -> bool:
    """Whether there is a number or nothing; one bad number among others is for `read` to name."""
    return not fields or any(map(is_number, fields))


def _are_mostly_numbers(fields: Sequence[str]) -> bool:
    return 2 * sum(map(is_number, fields)) > len(fields)


def _read_rows(
    form: _Form, study: str, phenotype: str | None, notes: Mapping[str, str]
) -> WrittenScreen:
    columns = form.columns
    assert columns is not None
    phenotype = next(iter(columns.scores)) if phenotype is None else phenotype
    if phenotype not in columns.scores:
        raise PhenotypeError(
            f"the header names {' and '.join(columns.scores)}, and no '{phenotype}'",
            where=form.sheet.path,
        )
    bad = BadRows(form.sheet.path)
    table, told = form.sheet.below(form.at, bad)
    if not len(table):
        bad.refuse()
        raise InputError("the screen is empty: there is a header and no row", where=table.path)
    numbers = {
        key: _numbers(table, at, form.sheet, bad)
        for key, at in {**columns.others, "score": columns.scores[phenotype]}.items()
        if key in ("score", "p_value", "sd")
    }
    score = numbers["score"]
    _check_p_values(table, columns, numbers, bad)
    scored = ~np.isnan(score)
    lists = [_names(table, at) for at in columns.genes]
    sizes = np.stack([names.list.len().to_numpy() for names in lists], axis=1).astype(np.int64)
    alone = scored & (sizes.sum(axis=1) == 0)
    named = [table.frame.columns[at] for at in columns.genes]
    bad.add(f"no gene in {', '.join(named)}", table.lines[alone], [""] * int(alone.sum()))
    split = _column(table, columns, "split")
    parts = None if split is None else _parts(table, split, bad)
    bad.refuse()
    rows = np.flatnonzero(scored)
    per_field = sizes[rows].ravel()
    fields = pl.concat([names.gather(rows) for names in lists])
    order = np.arange(len(fields)).reshape(len(lists), len(rows)).T.ravel()
    written = fields.gather(order)
    names = written.filter(written.list.len() > 0).explode()
    owner = np.repeat(np.arange(len(per_field)), per_field) % len(lists)
    names, perturbation, allele = _told_by_name(names, np.array(columns.strains)[owner])
    studies = _column(table, columns, "study")
    return WrittenScreen(
        names,
        offsets_of(sizes[rows].sum(axis=1)),
        pl.Series(columns.roles, dtype=pl.String).gather(owner),
        perturbation,
        allele,
        table.lines[rows],
        table.path,
        table.sha256,
        NAME,
        study,
        phenotype,
        score=score[rows],
        standard_deviation=numbers["sd"][rows] if "sd" in numbers else np.nan,
        p_value=numbers["p_value"][rows] if "p_value" in numbers else np.nan,
        studies=None if studies is None else _with_default(studies, study).gather(rows),
        parts=None if parts is None else parts.gather(rows),
        dropped={NO_SCORE: len(table) - len(rows)},
        notes={**told, **notes},
    )


def _numbers(table: Table, at: int, sheet: Sheet, bad: BadRows) -> AnyArray:
    column = table.frame.columns[at]
    values, wrong = numbers_of(table.frame[column], decimal_comma=sheet.decimal_comma)
    bad.add(
        f"column '{column}' is not a finite number",
        table.lines[wrong],
        table.frame[column].filter(pl.Series(wrong)).to_list(),
    )
    return values


def _check_p_values(
    table: Table, columns: _Columns, numbers: Mapping[str, AnyArray], bad: BadRows
) -> None:
    if "p_value" not in numbers:
        return
    column = table.frame.columns[columns.others["p_value"]]
    wrong: Bools = (numbers["p_value"] < 0) | (numbers["p_value"] > 1)
    bad.add(
        f"the p-value in column '{column}' is not between 0 and 1",
        table.lines[wrong],
        table.frame[column].filter(pl.Series(wrong)).to_list(),
    )


def _column(table: Table, columns: _Columns, key: str) -> pl.Series | None:
    if key not in columns.others:
        return None
    written = table.frame[table.frame.columns[columns.others[key]]].str.strip_chars()
    return (
        pl.select(
            pl.when(pl.lit(pl.Series(is_missing(written)))).then(pl.lit("")).otherwise(written)
        )
        .to_series()
        .alias(written.name)
    )


def _with_default(values: pl.Series, default: str) -> pl.Series:
    return values.replace("", default)


def _names(table: Table, at: int) -> pl.Series:
    """Return the names in each field of a column, none where it is missing."""
    written = table.frame[table.frame.columns[at]].str.strip_chars()
    present = pl.select(
        pl.when(pl.lit(pl.Series(is_missing(written)))).then(pl.lit("")).otherwise(written)
    ).to_series()
    split = present.str.replace_all(_JOINS, ";").str.split(";")
    return split.list.eval(pl.element().filter(pl.element() != ""))


def _told_by_name(names: pl.Series, strain: Bools) -> tuple[pl.Series, pl.Series, pl.Series]:
    """Return genes without what marks a deletion or a strain, the perturbation and the allele.

    What follows ``_`` is of a strain only in a column of strains, or behind a systematic name.
    """
    distinct = pl.DataFrame({"written": names, "strain": strain}).unique(maintain_order=True)
    rows = []
    for written, is_strain in distinct.iter_rows():
        gene, perturbation = re.sub(_DELETED, "", written), "deletion"
        # The digit of rad52delta is the gene's.
        if written.lower().endswith("delta") and written[:-5][-1:].isdigit():
            gene = written[:-5]
        found = re.fullmatch(_STRAIN, gene)
        if found and (is_strain or is_systematic(found[1])):
            gene, perturbation = found[1], COLLECTIONS.get(found[2].lower(), "deletion")
        gene = gene or written
        rows.append((gene, perturbation, written if gene != written else ""))
    told = pl.DataFrame(
        rows,
        schema={"gene": pl.String, "perturbation": pl.String, "allele": pl.String},
        orient="row",
    )
    keyed = distinct.with_columns(told)
    found_rows = pl.DataFrame({"written": names, "strain": strain}).join(
        keyed, on=["written", "strain"], how="left", maintain_order="left"
    )
    return found_rows["gene"], found_rows["perturbation"], found_rows["allele"]


def _counted(sheet: Sheet, given: Sequence[ColumnNames]) -> _Form | None:
    """Return the form of rows that begin with the number of their genes, such as DCell's."""
    rows = sheet.rows
    if len(rows) < 2 or not all(map(_is_counted, rows)):
        return None
    return _Form("counted", sheet)


def _is_counted(row: Sequence[str]) -> bool:
    if len(row) < 3 or not row[0].isdigit() or int(row[0]) != len(row) - 2:
        return False
    return not any(map(is_number, row[1:-1])) and (is_number(row[-1]) or row[-1].lower() in MISSING)


def _read_counted(
    form: _Form, study: str, phenotype: str | None, notes: Mapping[str, str]
) -> WrittenScreen:
    bad = BadRows(form.sheet.path)
    table, told = form.sheet.below(None, bad)
    bad.refuse("Every row must have as many genes: give pairs and triples in files of their own.")
    n = len(table.frame.columns) - 2
    strange = (table.frame["1"].str.strip_chars() != str(n)).to_numpy()
    bad.add(
        f"the number of genes is not {n}",
        table.lines[strange],
        table.frame["1"].filter(pl.Series(strange)).to_list(),
    )
    score = _numbers(table, n + 1, form.sheet, bad)
    genes = [table.frame[str(i)].str.strip_chars() for i in range(2, n + 2)]
    absent = np.logical_or.reduce([is_missing(names) for names in genes])
    bad.add("a gene is missing", table.lines[absent], [""] * int(absent.sum()))
    bad.refuse()
    rows = np.flatnonzero(~np.isnan(score))
    names = pl.DataFrame(genes)[rows].select(pl.concat_list(pl.all())).to_series().explode()
    names, perturbation, allele = _told_by_name(names, np.zeros(len(names), dtype=bool))
    return WrittenScreen(
        names,
        np.arange(0, n * len(rows) + 1, n),
        pl.repeat("unknown", len(names), eager=True),
        perturbation,
        allele,
        table.lines[rows],
        table.path,
        table.sha256,
        NAME,
        study,
        phenotype or "interaction",
        score=score[rows],
        dropped={NO_SCORE: len(table) - len(rows)},
        notes={**told, **notes, "form": f"{n} genes per row behind their number"},
    )


def _matrix(sheet: Sheet, given: Sequence[ColumnNames]) -> _Form | None:
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
            return _Form("matrix", sheet, at)
    return None


def _bare(name: str) -> str:
    return re.sub(_DELETED, "", name.strip()).split("_")[0].upper()


def _read_matrix(
    form: _Form, study: str, phenotype: str | None, notes: Mapping[str, str]
) -> WrittenScreen:
    bad = BadRows(form.sheet.path)
    assert form.at is not None
    table, told = form.sheet.below(form.at, bad)
    column_genes = form.sheet.header(form.at)[1:]
    row_genes = table.frame[table.frame.columns[0]].str.strip_chars()
    unnamed = is_missing(row_genes)
    bad.add(
        "no gene in the first column",
        table.lines[unnamed],
        row_genes.filter(pl.Series(unnamed)).to_list(),
    )
    score = np.stack(
        [_numbers(table, i, form.sheet, bad) for i in range(1, len(column_genes) + 1)], axis=1
    )
    bad.refuse()
    row, column = np.indices(score.shape).reshape(2, -1)
    codes = {
        name: i for i, name in enumerate(dict.fromkeys(map(_bare, [*row_genes, *column_genes])))
    }
    one = np.array([codes[_bare(name)] for name in row_genes])[row]
    other = np.array([codes[_bare(name)] for name in column_genes])[column]
    value = score.ravel()
    diagonal, absent = one == other, np.isnan(value)
    if diagonal.any() and (value[diagonal] == 1).all():
        raise InputError(
            "the matrix has 1 on its diagonal, as correlations have, so these are not scores of "
            "a screen",
            where=table.path,
            fix="Write it as a network of gene1, gene2, weight; or leave the diagonal empty.",
        )
    half = _other_half(one, other, value, ~diagonal & ~absent, len(codes))
    kept = np.flatnonzero(~(diagonal | absent | half))
    symmetric = bool(half.any())
    pairs = np.stack([row[kept], len(row_genes) + column[kept]], axis=1).ravel()
    names = pl.concat([row_genes, pl.Series(column_genes, dtype=pl.String)])
    names, perturbation, allele = _told_by_name(names, np.ones(len(names), dtype=bool))
    roles = ["unknown", "unknown"] if symmetric else ["query", "array"]
    return WrittenScreen(
        names.gather(pairs),
        np.arange(0, 2 * len(kept) + 1, 2),
        pl.Series(roles * len(kept), dtype=pl.String),
        perturbation.gather(pairs),
        allele.gather(pairs),
        table.lines[row[kept]],
        table.path,
        table.sha256,
        NAME,
        study,
        phenotype or "interaction",
        score=value[kept],
        dropped={
            NO_SCORE: int((absent & ~diagonal).sum()),
            DIAGONAL: int(diagonal.sum()),
            OTHER_HALF: int(half.sum()),
        },
        notes={**told, **notes, "form": f"matrix of {score.shape[0]:,} x {score.shape[1]:,} genes"},
        complete_coverage=not symmetric,
    )


def _other_half(one: Ints, other: Ints, value: AnyArray, there: Bools, n: int) -> Bools:
    """Return the fields below the diagonal whose mirrored field holds the same number."""
    mirrored = dict(zip((one * n + other)[there].tolist(), value[there].tolist(), strict=True))
    half: Bools = np.zeros(len(value), dtype=bool)
    for i in np.flatnonzero(there & (one > other)).tolist():
        half[i] = mirrored.get(int(other[i] * n + one[i])) == value[i]
    return half
