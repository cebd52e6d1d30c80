"""A ranking as a file: what it says of itself, and its table for a spreadsheet."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from deltacell.errors import InputError, StoreError
from deltacell.files import new_file, seal_of

LOWEST, HIGHEST = "lowest", "highest"
LINK = pa.struct([("first", pa.string()), ("second", pa.string()), ("relation", pa.string())])
SCHEMA = pa.schema(
    [
        ("end", pa.string()),
        ("rank", pa.int32()),
        ("genes", pa.list_(pa.string())),
        ("names", pa.list_(pa.string())),
        ("score", pa.float32()),
        ("spread", pa.float32()),
        ("status", pa.string()),
        ("measured", pa.float32()),
        ("linked", pa.bool_()),
        ("relations", pa.list_(pa.string())),
        ("links", pa.list_(LINK)),
        ("pathways", pa.list_(pa.string())),
        ("complexes", pa.list_(pa.string())),
    ]
)
"""The columns; `deltacell.predict.ranking.Ranking` says what each holds."""

ROWS_A_GROUP = 50_000
_KEY = b"deltacell"
_GROUPS = "sha256"
_VERSION = 1


def write_ranking(
    path: str | os.PathLike[str], tables: Iterable[pa.Table], about: Callable[[], Mapping[str, Any]]
) -> None:
    """Write a ranking whole or not at all.

    Parameters
    ----------
    path
        The file; what was there is replaced.
    tables
        Its rows in order, in pieces of any size; how they are cut leaves no trace in the file.
    about
        Gives what is said of it, as JSON, once all rows went by.
    """
    try:
        with (
            new_file(path) as temporary,
            pq.ParquetWriter(temporary, SCHEMA, write_page_checksum=True) as writer,
        ):
            groups = []
            for table in _regrouped(tables, ROWS_A_GROUP):
                rows = table.cast(SCHEMA)
                groups.append(_sha256(rows))
                writer.write_table(rows, row_group_size=ROWS_A_GROUP)
            said: dict[str, Any] = {"schema": _VERSION, **about(), _GROUPS: groups}
            said["seal"] = seal_of(said)
            writer.add_key_value_metadata(
                {_KEY.decode(): json.dumps(said, ensure_ascii=False, sort_keys=True)}
            )
    except OSError as error:
        raise StoreError(
            f"the ranking could not be written: {error.strerror or error}",
            where=path,
            fix="Free some space or name another place with --out; the same command goes on.",
        ) from error


def read_about(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return what is said of a ranking.

    Parameters
    ----------
    path
        A file of `write_ranking`.
    """
    about: dict[str, Any] | None = None
    try:
        held = pq.read_metadata(path).metadata or {}
        if _KEY in held:
            about = json.loads(held[_KEY])
    except DAMAGE as error:
        raise InputError(f"this is no ranking that can be read ({error})", where=path) from error
    if not isinstance(about, dict) or about.get("schema") != _VERSION:
        raise InputError(
            "this is no ranking of `deltacell predict`",
            where=path,
            fix="Name another file with --out, or replace this one with --overwrite.",
        )
    if about.get("seal") != seal_of(about):
        raise _damaged(path)
    del about["schema"], about["seal"]
    return about


def is_ranking(schema: pa.Schema) -> bool:
    """Return whether a Parquet file of this schema says that `write_ranking` wrote it."""
    return _KEY in (schema.metadata or {})


def sealed_rows(
    path: str | os.PathLike[str], groups: Iterable[int] | None = None
) -> Iterator[pa.Table]:
    """Return the rows of a ranking, each group after its checksum was compared.

    Parameters
    ----------
    path
        A file of `write_ranking`.
    groups
        Numbers of groups of `ROWS_A_GROUP` rows; all where not given.
    """
    sealed = read_about(path)[_GROUPS]
    for group in range(len(sealed)) if groups is None else groups:
        try:
            with pq.ParquetFile(Path(path), page_checksum_verification=True) as file:
                if file.num_row_groups != len(sealed):
                    raise _damaged(path)
                rows = file.read_row_group(group).replace_schema_metadata(None).cast(SCHEMA)
            intact = _sha256(rows) == sealed[group]
        except DAMAGE as error:
            raise _damaged(path) from error
        if not intact:
            raise _damaged(path)
        yield rows


def read_rows(path: str | os.PathLike[str], slices: Sequence[tuple[int, int]]) -> pa.Table:
    """Return some rows of a ranking; of a large file no more is read than they are in.

    Parameters
    ----------
    path
        A file of `write_ranking`.
    slices
        The first row of each piece, and how many rows it has.
    """
    pieces = [SCHEMA.empty_table()]
    for first, n in slices:
        groups = range(first // ROWS_A_GROUP, -(-(first + n) // ROWS_A_GROUP))
        if n:
            table = pa.concat_tables(sealed_rows(path, groups))
            pieces.append(table.slice(first - groups[0] * ROWS_A_GROUP, n))
    return pa.concat_tables(pieces)


def _damaged(path: str | os.PathLike[str]) -> StoreError:
    return StoreError(
        "the ranking is damaged: its contents do not match its checksums",
        where=path,
        fix="Restore it from a copy, or make it again: the same command with --overwrite.",
    )


DAMAGE: tuple[type[Exception], ...] = (
    *(OSError, pa.ArrowException, ValueError, TypeError, KeyError, IndexError),
    *(RecursionError, MemoryError),
)
"""What reading a damaged Parquet file may raise."""


def _sha256(rows: pa.Table) -> str:
    """Return the SHA-256 of what rows say, however Arrow holds them."""
    digest = hashlib.sha256()
    for column in rows.columns:
        _digest(column.combine_chunks(), digest.update)
    return digest.hexdigest()


def _digest(values: Any, update: Callable[[Any], object]) -> None:
    if isinstance(values, pa.ChunkedArray):
        values = pa.concat_arrays(values.chunks) if values.chunks else pa.array([], values.type)
    update(np.packbits(values.is_null().to_numpy(zero_copy_only=False)))
    if pa.types.is_list(values.type):
        update(pc.list_value_length(values).fill_null(0).to_numpy(zero_copy_only=False))
        _digest(pc.list_flatten(values), update)
    elif pa.types.is_struct(values.type):
        for field in values.flatten():
            _digest(field, update)
    elif pa.types.is_string(values.type):
        update(pc.binary_length(values).fill_null(0).to_numpy(zero_copy_only=False))
        update("".join(values.drop_null().to_pylist()).encode())
    else:
        update(np.ascontiguousarray(values.drop_null().to_numpy(zero_copy_only=False)))


def _regrouped(tables: Iterable[pa.Table], rows: int) -> Iterator[pa.Table]:
    """Cut a stream of tables anew, so that every one but the last has as many rows."""
    waiting: list[pa.Table] = []
    held = 0
    for table in tables:
        waiting.append(table)
        held += table.num_rows
        while held >= rows:
            whole = pa.concat_tables(waiting)
            yield whole.slice(0, rows).combine_chunks()
            waiting, held = [whole.slice(rows)], held - rows
    if held:
        yield pa.concat_tables(waiting).combine_chunks()


SHOWN = 2_000
"""Rows of each end that `Ranking.to_json` holds; the file has all."""


@dataclass(frozen=True, eq=False)
class Ranking:
    """Gene sets with their scores, the lowest first.

    The columns of its file: ``end`` (``lowest``, ``highest``; null where all of a file of sets is
    listed), ``rank`` (from 1, within its end), ``genes`` and ``names`` (systematic, and standard
    where there is one), ``score`` (in the unit of the screen; the mean over runs), ``spread`` (the
    standard deviation over runs; null for one), ``status`` (``measured``, ``tested`` and not
    significant, ``untested``), ``measured`` (the mean of what was measured, or null), ``linked``
    (too near on a chromosome to be combined; null where not known), and the evidence:
    ``relations`` (names of those that connect two of the genes), ``links`` (which two, by which
    relation), ``pathways`` and ``complexes`` (names of those that two of the genes share).

    Parameters
    ----------
    path
        The Parquet file.
    about
        What the file says of itself.
    measured
        Predicted against measured, see `to_json`.
    agreement
        How near they are, see `to_json`.
    """

    path: Path
    about: Mapping[str, Any]
    measured: Sequence[Mapping[str, Any]] = ()
    agreement: Sequence[Mapping[str, Any]] = ()

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Ranking:
        """Return the ranking of a file that `deltacell predict` wrote."""
        return cls(Path(path), read_about(path))

    def to_json(self, most: int = SHOWN) -> dict[str, Any]:
        """Return it as plain data, for a page or another program.

        - ``title``: what was ranked, in a few words.
        - ``sentences``: what was ranked by which runs, what was left out and why, what to beware
          of; a list of sentences, the most important first.
        - ``file``: the name of the Parquet file.
        - ``request``: what was asked for, by name (``sets``, ``size``, ``top``, ``above``, …).
        - ``runs``: of each ``name``, ``seed``, ``model`` (``dango`` or ``hetero_cell``),
          ``finished`` (whether its training came to its end), ``checkpoint``, ``sha256`` and
          ``validation_pearson`` (a number or null).
        - ``counts``: ``genes`` (that sets are made of), ``sets`` (that were gone through),
          ``rows`` (of the file), ``lowest``, ``highest`` and ``listed`` (rows of each end; those
          of a file of sets are ``listed``).
        - ``relations``: the names of the cell's relations, in its order.
        - ``rows``: the first of each end; each a dict of the columns above, ``links`` a list of
          ``{first, second, relation}`` with systematic names. What is missing is null.
        - ``rows_not_here``: how many more rows the file has.
        - ``measured``: up to 2,000 measured sets of the sizes that were ranked, the test part
          first: ``{genes, names, predicted, measured, part}`` with the part of the split that
          they were in, ``test``, ``validation`` or ``training``. Empty where it was not asked for.
        - ``agreement``: for each part that is there ``{part, sets, pearson}``; ``pearson`` is null
          where it is not defined.

        Parameters
        ----------
        most
            Rows of each end.
        """
        counts = self.about["counts"]
        slices, first = [], 0
        for end in ("listed", LOWEST, HIGHEST):
            slices.append((first, min(most, counts[end])))
            first += counts[end]
        rows = read_rows(self.path, slices).to_pylist()
        return {
            "title": self.about["title"],
            "sentences": list(self.about["sentences"]),
            "file": self.path.name,
            "request": dict(self.about["request"]),
            "runs": list(self.about["runs"]),
            "counts": dict(counts),
            "relations": list(self.about["relations"]),
            "rows": rows,
            "rows_not_here": counts["rows"] - len(rows),
            "measured": [dict(one) for one in self.measured],
            "agreement": [dict(one) for one in self.agreement],
        }


_TEXTS = ("genes", "names", "relations", "links", "pathways", "complexes")
# A spreadsheet would take a text that begins so for a formula, and run it.
_FORMULA = r"^([=+@\-\t\r])"
_MOST_ROWS_OF_A_SHEET = 1_048_576


def write_table(ranking: Path, path: Path) -> None:
    """Write all rows of a ranking as a table, whole or not at all.

    First come ``end`` and ``rank``, the genes one by one (``gene1``, ``gene2``, … by standard
    name, ``systematic1``, … by systematic name), and then the other columns of the Parquet file;
    several genes, relations, links, pathways or complexes are one text with ``; `` between them.
    A text that a spreadsheet would take for a formula has an apostrophe before it.

    Parameters
    ----------
    ranking
        Its Parquet file.
    path
        The table: a workbook where its name ends in ``.xlsx``, text with tabs where it ends in
        ``.tsv``, with commas otherwise.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with new_file(path) as temporary:
            if path.suffix.lower() == ".xlsx":
                _write_workbook(ranking, temporary, path)
                return
            separator = "\t" if path.suffix.lower() == ".tsv" else ","
            with temporary.open("wb") as to:
                for i, rows in enumerate(_spread(ranking)):
                    text = rows.write_csv(include_header=not i, separator=separator)
                    to.write(text.encode())
    except OSError as error:
        raise InputError(
            f"the table could not be written: {error.strerror or error}", where=path
        ) from error


def write_network(ranking: Path, edges: Path, nodes: Path) -> None:
    """Write a ranking as two tables that Cytoscape imports: its edges and its nodes.

    Two genes of a ranked set are an edge of the interaction ``predicted``, with the set's end,
    rank, score, spread and status; a set of three genes has three such edges. Two of its genes
    that a relation connects are an edge of that name. The nodes have the standard name, the number
    of ranked sets that the gene is in, and the lowest and highest of their scores.

    Parameters
    ----------
    ranking
        Its Parquet file.
    edges, nodes
        The tables, with tabs; the column ``source`` or ``id`` is the systematic name.
    """
    none = SCHEMA.empty_table()
    rows = pl.DataFrame(pa.concat_tables([none, *sealed_rows(ranking)]))
    ranked = rows.with_row_index("set").select(
        "set", "end", "rank", "score", "spread", "status", gene="genes"
    )
    of_genes = ranked.explode("gene")
    at = of_genes.select("set", target="gene", place=pl.int_range(pl.len()).over("set"))
    pairs = (
        of_genes.with_columns(before=pl.int_range(pl.len()).over("set"))
        .join(at, on="set", how="inner", maintain_order="left_right")
        .filter(pl.col("before") < pl.col("place"))
    )
    predicted = pairs.select(
        "end",
        "rank",
        "score",
        "spread",
        "status",
        source="gene",
        interaction=pl.lit("predicted"),
        target="target",
    )
    links = rows.select(pl.col("links").explode(empty_as_null=True)).unnest("links").drop_nulls()
    known = links.unique(maintain_order=True).select(
        source="first", interaction="relation", target="second"
    )
    order = ["source", "interaction", "target", "end", "rank", "score", "spread", "status"]
    table = pl.concat([predicted, known], how="diagonal").select(order)
    described = (
        rows.select("score", id="genes", name="names")
        .explode("id", "name")
        .group_by("id", maintain_order=True)
        .agg(
            pl.col("name").first(),
            sets=pl.len(),
            lowest_score=pl.col("score").min(),
            highest_score=pl.col("score").max(),
        )
    )
    for path, frame in ((edges, table), (nodes, described)):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with new_file(path) as temporary:
                frame.write_csv(temporary, separator="\t")
        except OSError as error:
            raise InputError(
                f"the table could not be written: {error.strerror or error}", where=path
            ) from error


def _spread(ranking: Path) -> Iterator[pl.DataFrame]:
    """Give the rows of a ranking as texts and numbers, in pieces; an empty one where none is."""
    widest, given = 0, 0
    for table in sealed_rows(ranking):
        longest = pl.DataFrame(table.select(["genes"]))["genes"].list.len().max()
        widest = max(widest, int(longest) if isinstance(longest, int) else 0)
    for table in sealed_rows(ranking):
        given += table.num_rows
        yield _as_texts(pl.DataFrame(table), widest)
    if not given:
        yield _as_texts(pl.DataFrame(SCHEMA.empty_table()), widest)


def _as_texts(rows: pl.DataFrame, widest: int) -> pl.DataFrame:
    link = pl.element().struct
    links = pl.col("links").list.eval(
        pl.format("{} {} ({})", link.field("first"), link.field("second"), link.field("relation"))
    )
    single = {
        f"{label}{i + 1}": pl.col(column).list.get(i, null_on_oob=True)
        for label, column in (("gene", "names"), ("systematic", "genes"))
        for i in range(widest)
    }
    joined = (
        rows.with_columns(links)
        .with_columns(**single)
        .with_columns(pl.col(name).list.join("; ") for name in _TEXTS)
    )
    safe = joined.with_columns(
        pl.col(name).str.replace(_FORMULA, "'$1") for name in (*_TEXTS, *single)
    )
    rest = [name for name in SCHEMA.names if name not in ("end", "rank")]
    return safe.select("end", "rank", *single, *rest)


def _write_workbook(ranking: Path, temporary: Path, path: Path) -> None:
    from openpyxl import Workbook
    from openpyxl.cell.cell import ILLEGAL_CHARACTERS_RE

    book = Workbook(write_only=True)
    sheet = book.create_sheet("ranking")
    written = 1
    for i, rows in enumerate(_spread(ranking)):
        if not i:
            sheet.append(rows.columns)
        written += rows.height
        if written > _MOST_ROWS_OF_A_SHEET:
            raise InputError(
                f"a sheet holds {_MOST_ROWS_OF_A_SHEET:,} rows, and the ranking has more",
                where=path,
                fix="Write it with --csv, or keep fewer sets with --top.",
            )
        for row in rows.iter_rows():
            sheet.append(
                [ILLEGAL_CHARACTERS_RE.sub("", v) if isinstance(v, str) else v for v in row]
            )
    book.save(temporary)
