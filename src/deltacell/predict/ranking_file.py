"""A ranking as a file: sealed Parquet, plain data for a page, tables and networks for others."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import combinations
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any, cast
from zipfile import BadZipFile

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from deltacell.errors import InputError, StoreError, need
from deltacell.files import written

LOWEST, HIGHEST = "lowest", "highest"
NAMES = pa.list_(pa.string())
_LINK = pa.struct([("first", pa.string()), ("second", pa.string()), ("relation", pa.string())])
SCHEMA = pa.schema(
    {
        "end": pa.string(),
        "rank": pa.int32(),
        "genes": NAMES,
        "names": NAMES,
        "score": pa.float32(),
        "spread": pa.float32(),
        "status": pa.string(),
        "measured": pa.float32(),
        "linked": pa.bool_(),
        "relations": NAMES,
        "links": pa.list_(_LINK),
        "pathways": NAMES,
        "complexes": NAMES,
    }
)
KEY = b"deltacell"  # of what a file says about itself
ROWS_PER_GROUP = 50_000
SHOWN = 2_000  # rows of each end that `Ranking.to_json` returns
VERSION = 2
NO_SEAL = 64 * "-"  # what stands in a file in place of its seal until that is known

DAMAGE: tuple[type[Exception], ...] = (
    *(OSError, pa.ArrowException, ValueError, TypeError, KeyError, IndexError),
    *(AttributeError, RuntimeError, MemoryError, EOFError, BadZipFile),
)
"""What reading a damaged file may raise."""


@dataclass(frozen=True, eq=False)
class Ranking:
    """Gene sets with their scores, the lowest first; docs/how-to/predict.md has the columns."""

    path: Path
    about: Mapping[str, Any]

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Ranking:
        return cls(Path(path), read_about(path))

    def to_json(self, most: int = SHOWN) -> dict[str, Any]:
        """Return it as a JSON-serialisable dict, with the first ``most`` rows of each end."""
        counts, rows, first = self.about["counts"], [], 0
        for end in ("listed", LOWEST, HIGHEST):
            rows += read_rows(self.path, first, min(most, counts[end])).to_dicts()
            first += counts[end]
        names = ("title", "request", "runs", "counts", "relations")
        return {
            **{name: self.about[name] for name in names},
            "sentences": list(self.about["sentences"]),
            "file": self.path.name,
            "rows": rows,
            "rows_not_here": counts["rows"] - len(rows),
            "measured": [],
            "agreement": [],
        }


def write_ranking(path: Path, tables: Iterable[pa.Table], about: Mapping[str, Any]) -> None:
    """Write a ranking whole or not at all; each table becomes a group of rows."""
    said = json.dumps({"schema": VERSION, **about, "seal": NO_SEAL}, sort_keys=True)
    with written(path, "the ranking") as temporary:
        with pq.ParquetWriter(temporary, SCHEMA, write_page_checksum=True) as writer:
            for rows in tables:
                writer.write_table(rows)
            writer.add_key_value_metadata({KEY.decode(): said})
        place, seal = _seal_of(temporary, NO_SEAL)
        with temporary.open("r+b") as file:
            file.seek(place)
            file.write(seal.encode())


def read_about(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return what a ranking says about itself, after its checksum was compared."""
    try:
        about: Any = json.loads((pq.read_metadata(path).metadata or {}).get(KEY, b"{}"))
        is_ranking = about.get("schema") == VERSION
        intact = is_ranking and _seal_of(Path(path), about["seal"])[1] == about.pop("seal")
    except DAMAGE as error:
        raise _damaged(path, f"not a readable Parquet file ({error})") from error
    if not is_ranking:
        what = "not a ranking of `deltacell predict`; choose another --out, or give --overwrite"
        raise InputError(what, code="not-a-ranking", where=path)
    if not intact:
        raise _damaged(path, "its checksum does not match")
    return cast(dict[str, Any], about)


def _damaged(path: str | os.PathLike[str], why: str) -> StoreError:
    what = f"the ranking is damaged: {why}; choose another --out, or rerun with --overwrite"
    return StoreError(what, code="damaged-ranking", where=path)


def _seal_of(path: Path, seal: str) -> tuple[int, str]:
    """Return where a seal stands in a file, and the SHA-256 of everything before and after it."""
    with (
        path.open("rb") as file,
        mmap(file.fileno(), 0, access=ACCESS_READ) as mapped,
        memoryview(mapped) as content,
    ):
        place = mapped.rfind(seal.encode())
        digest = hashlib.sha256(content[:place])
        digest.update(content[place + len(seal) :])
        return place, digest.hexdigest()


def read_rows(path: Path, first: int = 0, n: int | None = None) -> pl.DataFrame:
    """Return rows of a ranking, ``n`` from the ``first`` on; no others are kept in memory."""
    return pl.scan_parquet(path, glob=False).slice(first, n).collect()


_LISTS = ("genes", "names", "relations", "links", "pathways", "complexes")
# A spreadsheet would take a text that begins like this for a formula, and run it.
_FORMULA = r"^([=+@\-\t\r])"
_MOST_ROWS_OF_A_SHEET = 1_048_576


def write_table(ranking: Path, path: Path) -> None:
    """Write all rows of a ranking as a table: .xlsx, .tsv, or with commas.

    The genes of a set have columns of their own, by both names, and lists are one text. A text
    that a spreadsheet would take for a formula has an apostrophe before it.
    """
    suffix, rows = path.suffix.lower(), read_rows(ranking)
    if suffix == ".xlsx" and len(rows) >= _MOST_ROWS_OF_A_SHEET:
        what = f"a sheet holds {_MOST_ROWS_OF_A_SHEET:,} rows and the ranking has more; use --csv"
        raise InputError(what, code="too-many-rows", where=path)
    link = pl.element().struct
    links = pl.format("{} {} ({})", *(link.field(name) for name in ("first", "second", "relation")))
    widest = rows["genes"].list.len().max() if len(rows) else 0
    single = {
        f"{label}{i + 1}": pl.col(column).list.get(i, null_on_oob=True)
        for label, column in (("gene", "names"), ("systematic", "genes"))
        for i in range(cast(int, widest))
    }
    rows = rows.with_columns(pl.col("links").list.eval(links)).with_columns(**single)
    joined = rows.with_columns(pl.col(name).list.join("; ") for name in _LISTS)
    safe = (pl.col(name).str.replace(_FORMULA, "'$1") for name in (*_LISTS, *single))
    table = joined.with_columns(safe).select("end", "rank", *single, *SCHEMA.names[2:])
    with written(path, "the table") as temporary:
        if suffix == ".xlsx":
            _write_workbook(table, temporary)
        else:
            table.write_csv(temporary, separator="\t" if suffix == ".tsv" else ",")


def _write_workbook(table: pl.DataFrame, path: Path) -> None:
    need("openpyxl", "Writing xlsx", "xlsx")
    from openpyxl import Workbook
    from openpyxl.cell.cell import ILLEGAL_CHARACTERS_RE

    book = Workbook(write_only=True)
    sheet = book.create_sheet("ranking")
    for row in (table.columns, *table.iter_rows()):
        sheet.append([ILLEGAL_CHARACTERS_RE.sub("", v) if type(v) is str else v for v in row])
    book.save(path)


def write_network(ranking: Path, edges: Path, nodes: Path) -> None:
    """Write a ranking as two tables that Cytoscape imports: its edges and its nodes.

    Each two genes of a ranked set are an edge of the interaction ``predicted``, and those that a
    relation connects an edge of its name. A node has the number and scores of its ranked sets.
    """
    rows = read_rows(ranking)
    columns = ["end", "rank", "score", "spread", "status"]
    found: list[tuple[Any, ...]] = []
    known: dict[tuple[Any, ...], None] = {}
    for genes, links, *values in rows.select("genes", "links", *columns).iter_rows():
        found += [(a, "predicted", b, *values) for a, b in combinations(genes, 2)]
        known |= {(x["first"], x["relation"], x["second"], *[None] * 5): None for x in links}
    schema: dict[str, Any] = dict.fromkeys(("source", "interaction", "target"), pl.String)
    schema |= {name: rows.schema[name] for name in columns}
    score = pl.col("score")
    described = (
        rows.select("score", id="genes", name="names")
        .explode("id", "name")
        .group_by("id", maintain_order=True)
        .agg(pl.first("name"), sets=pl.len(), lowest_score=score.min(), highest_score=score.max())
    )
    table = pl.DataFrame([*found, *known], schema, orient="row")
    for path, frame in ((edges, table), (nodes, described)):
        with written(path, "the table") as temporary:
            frame.write_csv(temporary, separator="\t")
