"""Tables of one's own, whose header says in common words where the genes and the score are."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from deltacell.arrays import Ints, offsets_of
from deltacell.cell.readers.head import first_line, stem_of
from deltacell.errors import InputError, PhenotypeError
from deltacell.screen.readers.fields import NO_SCORE, optional_floats, scored_rows
from deltacell.screen.readers.written import WrittenScreen
from deltacell.table import ABSENT, Table, fields_of, open_text, peek, read_quoted_table

NAME = "headed"

# A header is compared in lower case, without blanks and punctuation.
_JOINED = "genes"
# Of each phenotype, the first name counts before the others.
_NAMES = {
    "interaction": (
        *("score", "interactionscore", "geneticinteractionscore", "interaction"),
        *("epsilon", "eps", "ε", "tau", "τ"),
    ),
    "fitness": (
        "fitness",
        "mutantfitness",
        "doublemutantfitness",
        "triplemutantfitness",
        "dmf",
        "tmf",
    ),
}
_P_VALUES = ("pvalue", "pval", "p")
_DEVIATIONS = ("standarddeviation", "stddev", "stdev", "std", "sd")
_GENE = re.compile(
    r"(?:gene|orf)(?:name|id)?(\d{1,2}|[a-eijxy])(?:name|id|orf)?"
    r"|(query|array)(?:gene|orf)?(?:name|id)?(\d{1,2}|[a-eijxy])?(?:name|id|orf)?"
)
_SEPARATORS = ("\t", ";", ",", " ")
_JOINS = r"\s*[+;]\s*"


def recognise(head: Sequence[str], file_name: str) -> bool:
    """Whether the header names two or more columns of genes and a column of scores.

    Genes are ``gene1`` or ``orf_b``, ``query`` and ``array``, or ``genes``, whose names are joined
    by ``+`` or ``;``. The score is ``score``, ``epsilon``, ``tau`` or ``interaction``, and where
    there is none of these, ``fitness``. A table with two columns for one gene, or with two scores
    of which none is ``score``, is not guessed at.

    Parameters
    ----------
    head
        First lines of the file.
    file_name
        Not looked at.
    """
    return _understood(head) is not None


def why_not(head: Sequence[str]) -> str | None:
    """Return what a header that names genes lacks; None where it names none, or lacks nothing.

    Parameters
    ----------
    head
        First lines of the file.
    """
    if _understood(head) is not None:
        return None
    header, below = _header_and_rows(head)
    for separator in _SEPARATORS:
        fields = fields_of(header, separator)
        words = _words(fields)
        genes = [(i, found.groups()) for i, w in enumerate(words) if (found := _GENE.fullmatch(w))]
        if len(genes) < 2:
            continue
        which = [groups for _, groups in genes]
        twice = [fields[i].strip() for i, groups in genes if which.count(groups) > 1]
        if twice:
            return f"its columns '{twice[0]}' and '{twice[1]}' are of one gene; rename one"
        rows = [fields_of(line, separator) for line in below]
        return _lacking(fields, words, rows, genes[0][0])
    return None


def read(
    path: str | os.PathLike[str], *, study: str | None = None, phenotype: str | None = None
) -> WrittenScreen:
    """Read a table whose header is understood.

    A field of a gene may be empty or ``NA``, as the third gene of a pair is. Rows without a score
    are dropped and counted.

    Parameters
    ----------
    path
        The file, with tabs, semicolons, commas or spaces between columns.
    study
        What to call the study; the file's name without its ending where not given.
    phenotype
        ``interaction`` or ``fitness`` (of the mutant); where not given, the first that is there.
    """
    understood = _understood(peek(path))
    text = open_text(path)
    if understood is None:
        raise InputError(
            "the header does not name two columns of genes and one of scores",
            where=text.path,
            fix="Name them gene1, gene2, score, or see docs/how-to/screen.md.",
        )
    separator, columns = understood
    phenotype = next(iter(columns.scores)) if phenotype is None else phenotype
    if phenotype not in columns.scores:
        raise PhenotypeError(
            f"the header names {' and '.join(columns.scores)}, and no '{phenotype}'",
            where=text.path,
        )
    column = columns.scores[phenotype]
    table = read_quoted_table(text, separator)
    if not len(table):
        raise InputError("the screen is empty: there is a header and no row", where=table.path)
    named = table.frame.columns
    table = _without_absent(table, [named[i] for i in (*columns.genes, column)])
    score, rows = scored_rows(table, named[column])
    names, offsets, role = _genotypes(table, columns, rows)
    return WrittenScreen(
        names,
        offsets,
        role,
        pl.repeat("deletion", len(names), eager=True),
        pl.repeat("", len(names), eager=True),
        table.lines[rows],
        table.path,
        table.sha256,
        NAME,
        study or stem_of(table.path.name),
        phenotype,
        score=score,
        standard_deviation=optional_floats(table, _name(named, columns.deviation), rows),
        p_value=optional_floats(table, _name(named, columns.p_value), rows),
        dropped={NO_SCORE: len(table) - len(rows)},
    )


@dataclass(frozen=True)
class _Columns:
    """The positions of the columns, the role of each of genes and the phenotype of each score."""

    genes: tuple[int, ...]
    roles: tuple[str, ...]
    scores: Mapping[str, int]
    p_value: int | None
    deviation: int | None


def _understood(head: Sequence[str]) -> tuple[str, _Columns] | None:
    """Return what separates the columns, and what they are."""
    header, below = _header_and_rows(head)
    for separator in _SEPARATORS:
        columns = _columns(
            fields_of(header, separator), [fields_of(line, separator) for line in below]
        )
        if columns is not None:
            return separator, columns
    return None


def _header_and_rows(head: Sequence[str]) -> tuple[str, list[str]]:
    header = first_line(head)
    below = [line for line in head[head.index(header) + 1 :] if line.strip()] if header else []
    return header.removeprefix("#"), below


def _words(header: Sequence[str]) -> list[str]:
    return [re.sub(r"[\W_]+", "", field.lower()) for field in header]


def _lacking(
    fields: Sequence[str], words: Sequence[str], rows: Sequence[Sequence[str]], gene: int
) -> str | None:
    """Return what is wrong with the columns beside the genes, of which one is given."""
    for names in (*_NAMES.values(), ("weight",)):
        columns = _score(words, rows, names)
        if len(columns) > 1:
            one, other = (fields[i].strip() for i in columns[:2])
            return f"it has two scores, '{one}' and '{other}'; call the one that is meant score"
        named = [i for i, word in enumerate(words) if word in names]
        if named and not any(_is_number(field) for i in named for field in _below(rows, i)):
            return f"its column '{fields[named[0]].strip()}' holds no number"
    if any(map(_is_number, _below(rows, gene))):
        return "its genes are numbers, and names were expected"
    if len(fields) > 3 and "weight" in words:
        return "it has further columns; a network has two genes and a weight"
    if len(fields) > 2 and "weight" not in words:
        return "its header names genes and no score or weight; call that column so"
    return None


def _columns(header: Sequence[str], rows: Sequence[Sequence[str]]) -> _Columns | None:
    words = _words(header)
    genes = {i: found for i, word in enumerate(words) if (found := _GENE.fullmatch(word))}
    which = [found.groups(default="") for found in genes.values()]
    if len(set(which)) < len(which):
        return None
    at, roles = tuple(genes), tuple(role or "unknown" for _, role, _ in which)
    if len(at) < 2:
        if words.count(_JOINED) != 1 or at:
            return None
        at, roles = (words.index(_JOINED),), ("unknown",)
        if not any(re.search(_JOINS, field) for field in _below(rows, at[0])):
            return None
    scores = {}
    for phenotype, names in _NAMES.items():
        columns = _score(words, rows, names)
        if len(columns) > 1:
            return None
        if columns:
            scores[phenotype] = columns[0]
    if not scores:
        return None
    return _Columns(at, roles, scores, _first(words, _P_VALUES), _first(words, _DEVIATIONS))


def _score(words: Sequence[str], rows: Sequence[Sequence[str]], names: Sequence[str]) -> list[int]:
    """Return the columns of scores: those of the first name, or else those that any name is of."""
    there = [
        i for i, word in enumerate(words) if word in names and _may_be_numbers(_below(rows, i))
    ]
    return [i for i in there if words[i] == names[0]] or there


def _may_be_numbers(fields: Sequence[str]) -> bool:
    """Whether there is a number or nothing; one bad number among others is for `read` to name."""
    return not fields or any(_is_number(field) for field in fields)


def _is_number(field: str) -> bool:
    try:
        float(field)
    except ValueError:
        return False
    return True


def _below(rows: Sequence[Sequence[str]], column: int) -> list[str]:
    fields = [row[column].strip() for row in rows if column < len(row)]
    return [field for field in fields if field not in ABSENT]


def _first(words: Sequence[str], known: Sequence[str]) -> int | None:
    return next((i for word in known for i, w in enumerate(words) if w == word), None)


def _name(columns: Sequence[str], at: int | None) -> str | None:
    return None if at is None else columns[at]


def _without_absent(table: Table, columns: Sequence[str]) -> Table:
    stripped = pl.col(columns).str.strip_chars()
    cleared = pl.when(stripped.is_in(list(ABSENT))).then(pl.lit("")).otherwise(stripped)
    frame = table.frame.with_columns(cleared.name.keep())
    return Table(frame, table.path, table.lines, table.sha256)


def _genotypes(table: Table, columns: _Columns, rows: Ints) -> tuple[pl.Series, Ints, pl.Series]:
    """Return the names of all genes, row by row, where each row begins, and their roles."""
    n = len(columns.genes)
    written = [table.frame.columns[i] for i in columns.genes]
    fields = table.frame[rows].select(pl.concat_list(written)).to_series().explode()
    lists = (
        fields.str.replace_all(_JOINS, ";")
        .str.split(";")
        .list.eval(pl.element().filter(pl.element() != ""))
    )
    per_field = lists.list.len().to_numpy().astype(np.int64)
    sizes = per_field.reshape(len(rows), n).sum(axis=1)
    if (sizes == 0).any():
        row = int(rows[np.argmax(sizes == 0)])
        raise table.error(row, f"no gene in {', '.join(written)}")
    role = pl.Series(columns.roles * len(rows), dtype=pl.String)
    names = lists.filter(lists.list.len() > 0).explode()
    return names, offsets_of(sizes), role.gather(np.repeat(np.arange(len(role)), per_field))
