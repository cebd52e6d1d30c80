"""A ranking as a file: sealed Parquet, plain data for a page, tables and networks for others."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
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
KEY = b"deltacell"  # of what a file says about itself
ROWS_PER_GROUP = 50_000
SHOWN = 2_000  # rows of each end that `Ranking.to_json` returns
VERSION = 1

DAMAGE: tuple[type[Exception], ...] = (
    *(OSError, pa.ArrowException, ValueError, TypeError, KeyError, IndexError),
    *(AttributeError, RecursionError, MemoryError),
)
"""What reading a damaged Arrow or Parquet file may raise."""


@contextmanager
def written(path: str | os.PathLike[str], what: str) -> Iterator[Path]:
    """Give a temporary file to fill, see `new_file`; raise a `StoreError` where that fails."""
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        with new_file(path) as temporary:
            yield temporary
    except OSError as error:
        raise StoreError(
            f"{what} could not be written: {error.strerror or error}",
            code="cannot-write",
            where=path,
            fix="Free some space or choose another place; rerun the command to resume.",
        ) from error


def differences(was: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return how two requests, as JSON, differ, in words."""
    return [
        f"{name} was {_shown(was.get(name))} and is {_shown(now.get(name))}"
        for name in dict.fromkeys([*was, *now])
        if was.get(name) != now.get(name)
    ]


def _shown(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(_shown, value)) or "none"
    if isinstance(value, Mapping):
        return " ".join(map(_shown, value.values()))
    if isinstance(value, str) and len(value) == 64:
        return value[:12]
    return "not given" if value is None else str(value)


def write_ranking(
    path: str | os.PathLike[str], tables: Iterable[pa.Table], about: Callable[[], Mapping[str, Any]]
) -> None:
    """Write a ranking whole or not at all; how its rows are cut leaves no trace in the file.

    ``about`` returns what is said of the ranking, as JSON, after all rows have passed.
    """
    with (
        written(path, "the ranking") as temporary,
        pq.ParquetWriter(temporary, SCHEMA, write_page_checksum=True) as writer,
    ):
        groups = []
        for table in _regrouped(tables):
            rows = table.cast(SCHEMA)
            groups.append(_sha256(rows))
            writer.write_table(rows, row_group_size=ROWS_PER_GROUP)
        said: dict[str, Any] = {"schema": VERSION, **about(), "sha256": groups}
        said["seal"] = seal_of(said)
        text = json.dumps(said, ensure_ascii=False, sort_keys=True)
        writer.add_key_value_metadata({KEY.decode(): text})


def read_about(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return what a ranking says about itself."""
    about: Any = None
    try:
        held = pq.read_metadata(path).metadata or {}
        about = json.loads(held[KEY]) if KEY in held else None
    except DAMAGE as error:
        raise InputError(
            f"not a readable ranking ({error})", code="unreadable-ranking", where=path
        ) from error
    if not isinstance(about, dict) or about.get("schema") != VERSION:
        raise InputError(
            "not a ranking of `deltacell predict`",
            code="not-a-ranking",
            where=path,
            fix="Choose another file with --out, or replace this one with --overwrite.",
        )
    if about.get("seal") != seal_of(about):
        raise _damaged(path)
    del about["schema"], about["seal"]
    return about


def sealed_rows(
    path: str | os.PathLike[str], groups: Iterable[int] | None = None
) -> Iterator[pa.Table]:
    """Yield the rows of a ranking by group, each after its checksum was compared."""
    sealed = read_about(path)["sha256"]
    for group in range(len(sealed)) if groups is None else groups:
        try:
            with pq.ParquetFile(Path(path), page_checksum_verification=True) as file:
                rows = file.read_row_group(group).replace_schema_metadata(None).cast(SCHEMA)
                intact = file.num_row_groups == len(sealed) and _sha256(rows) == sealed[group]
        except DAMAGE as error:
            raise _damaged(path) from error
        if not intact:
            raise _damaged(path)
        yield rows


def read_rows(path: str | os.PathLike[str], slices: Sequence[tuple[int, int]]) -> pa.Table:
    """Return slices (first row, number of rows) of a ranking; only their groups are read."""
    pieces = [SCHEMA.empty_table()]
    for first, n in slices:
        groups = range(first // ROWS_PER_GROUP, -(-(first + n) // ROWS_PER_GROUP))
        if n:
            table = pa.concat_tables(sealed_rows(path, groups))
            pieces.append(table.slice(first - groups[0] * ROWS_PER_GROUP, n))
    return pa.concat_tables(pieces)


def _damaged(path: str | os.PathLike[str]) -> StoreError:
    return StoreError(
        "the ranking is damaged: its contents do not match its checksums",
        code="damaged-ranking",
        where=path,
        fix="Restore it from a copy, or rerun the command with --overwrite.",
    )


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


def _regrouped(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Cut a stream of tables anew, so that every one but the last is a full group."""
    waiting = SCHEMA.empty_table()
    for table in tables:
        waiting = pa.concat_tables([waiting, table])
        while waiting.num_rows >= ROWS_PER_GROUP:
            yield waiting.slice(0, ROWS_PER_GROUP).combine_chunks()
            waiting = waiting.slice(ROWS_PER_GROUP)
    if waiting.num_rows:
        yield waiting.combine_chunks()


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
    """

    path: Path
    about: Mapping[str, Any]

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Ranking:
        """Return the ranking of a file that `deltacell predict` wrote."""
        return cls(Path(path), read_about(path))

    def to_json(self, most: int = SHOWN) -> dict[str, Any]:
        """Return it as a JSON-serialisable dict, with the first ``most`` rows of each end.

        - ``title``, ``sentences``: what was ranked by which runs, what was left out, and caveats.
        - ``file``: the name of the Parquet file.
        - ``request``: what was asked for, by name (``sets``, ``size``, ``top``, ``above``, …).
        - ``runs``: of each ``name``, ``seed``, ``model``, ``finished``, ``checkpoint``, ``sha256``
          and ``validation_pearson`` (a number or null).
        - ``counts``: ``genes`` and ``sets`` that were ranked, ``rows`` of the file, and those of
          each end: ``lowest``, ``highest``, ``listed``.
        - ``relations``: the names of the cell's relations.
        - ``rows``: each a dict of the columns above; ``rows_not_here``: how many more there are.
        - ``measured``, ``agreement``: predicted against measured, empty here; see
          `deltacell.predict.verbs.Ranked.page_data`.
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
            "measured": [],
            "agreement": [],
        }


_TEXTS = ("genes", "names", "relations", "links", "pathways", "complexes")
# A spreadsheet would take a text that begins like this for a formula, and run it.
_FORMULA = r"^([=+@\-\t\r])"
_MOST_ROWS_OF_A_SHEET = 1_048_576


def write_table(ranking: Path, path: Path) -> None:
    """Write all rows of a ranking as a table: .xlsx, .tsv, or with commas.

    First come ``end`` and ``rank``, the genes one by one (``gene1``, ``gene2``, … by standard
    name, ``systematic1``, … by systematic name), and then the other columns of the Parquet file;
    lists are one text with ``; `` between the entries. A text that a spreadsheet would take for a
    formula has an apostrophe before it.
    """
    is_workbook = path.suffix.lower() == ".xlsx"
    if is_workbook and pq.read_metadata(ranking).num_rows >= _MOST_ROWS_OF_A_SHEET:
        raise InputError(
            f"a sheet holds {_MOST_ROWS_OF_A_SHEET:,} rows, and the ranking has more",
            code="too-many-rows",
            where=path,
            fix="Write it with --csv, or keep fewer sets with --top.",
        )
    pieces = _texts(ranking)
    with written(path, "the table") as temporary:
        if is_workbook:
            _write_workbook(pieces, temporary)
            return
        separator = "\t" if path.suffix.lower() == ".tsv" else ","
        with temporary.open("wb") as to:
            for i, rows in enumerate(pieces):
                to.write(rows.write_csv(include_header=not i, separator=separator).encode())


def write_network(ranking: Path, edges: Path, nodes: Path) -> None:
    """Write a ranking as two tables that Cytoscape imports: its edges and its nodes.

    Two genes of a ranked set are an edge of the interaction ``predicted``, with the set's end,
    rank, score, spread and status; a set of three genes has three such edges. Two of its genes
    that a relation connects are an edge of that name. The nodes have the standard name, the number
    of ranked sets that the gene is in, and the lowest and highest of their scores.
    """
    rows = pl.DataFrame(pa.concat_tables([SCHEMA.empty_table(), *sealed_rows(ranking)]))
    columns = ["end", "rank", "score", "spread", "status"]
    place = pl.int_range(pl.len()).over("set")
    genes = rows.with_row_index("set").select("set", *columns, source="genes").explode("source")
    predicted = (
        genes.with_columns(before=place)
        .join(
            genes.select("set", target="source", after=place), on="set", maintain_order="left_right"
        )
        .filter(pl.col("before") < pl.col("after"))
        .with_columns(interaction=pl.lit("predicted"))
    )
    links = rows.select(pl.col("links").explode(empty_as_null=True)).unnest("links").drop_nulls()
    known = links.unique(maintain_order=True).select(
        source="first", interaction="relation", target="second"
    )
    order = ["source", "interaction", "target", *columns]
    table = pl.concat([predicted.select(order), known], how="diagonal").select(order)
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
        with written(path, "the table") as temporary:
            frame.write_csv(temporary, separator="\t")


def _texts(ranking: Path) -> Iterator[pl.DataFrame]:
    """Yield the rows of a ranking as texts and numbers, in pieces; at least one."""
    lengths = (pc.max(pc.list_value_length(table["genes"])) for table in sealed_rows(ranking))
    widest = max((length.as_py() or 0 for length in lengths), default=0)
    single = {
        f"{label}{i + 1}": pl.col(column).list.get(i, null_on_oob=True)
        for label, column in (("gene", "names"), ("systematic", "genes"))
        for i in range(widest)
    }
    link = pl.element().struct
    links = pl.col("links").list.eval(
        pl.format("{} {} ({})", link.field("first"), link.field("second"), link.field("relation"))
    )
    rest = [name for name in SCHEMA.names if name not in ("end", "rank")]
    tables = sealed_rows(ranking)
    for table in chain([next(tables, SCHEMA.empty_table())], tables):
        rows = pl.DataFrame(table).with_columns(links).with_columns(**single)
        joined = rows.with_columns(pl.col(name).list.join("; ") for name in _TEXTS)
        safe = (pl.col(name).str.replace(_FORMULA, "'$1") for name in (*_TEXTS, *single))
        yield joined.with_columns(safe).select("end", "rank", *single, *rest)


def _write_workbook(pieces: Iterator[pl.DataFrame], path: Path) -> None:
    from openpyxl import Workbook
    from openpyxl.cell.cell import ILLEGAL_CHARACTERS_RE

    book = Workbook(write_only=True)
    sheet = book.create_sheet("ranking")
    for i, rows in enumerate(pieces):
        if not i:
            sheet.append(rows.columns)
        for row in rows.iter_rows():
            sheet.append(
                [ILLEGAL_CHARACTERS_RE.sub("", v) if isinstance(v, str) else v for v in row]
            )
    book.save(path)
