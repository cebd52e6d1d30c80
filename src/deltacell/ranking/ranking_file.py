"""The Parquet file of a ranking, sealed with a checksum."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from deltacell.base.errors import InputError, StoreError
from deltacell.base.files import JsonObject, written

LOWEST = "lowest"
HIGHEST = "highest"
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
        "low": pa.float32(),
        "high": pa.float32(),
        "status": pa.string(),
        "measured": pa.float32(),
        "linked": pa.bool_(),
        "relations": NAMES,
        "links": pa.list_(_LINK),
        "pathways": NAMES,
        "complexes": NAMES,
    },
)
KEY = b"deltacell"  # of the metadata
SHOWN = 2_000  # rows of each end that `Ranking.to_json` returns
VERSION = 3
NO_SEAL = 64 * "-"  # placeholder of the seal while a file is written


@dataclass(frozen=True, eq=False)
class Ranking:
    """Gene sets with their scores, the lowest first; docs/how-to/predict.md has the columns."""

    path: Path
    about: Mapping[str, Any]

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Ranking:
        """Read the metadata of a ranking and check its seal."""
        instead = "choose another --out, or rerun with --overwrite"
        try:
            metadata = pq.read_metadata(_no_address(path)).metadata or {}
            about: Any = json.loads(metadata.get(KEY, b"{}"))
            is_ranking = about.get("schema") == VERSION
            is_intact = is_ranking and _has_checksum(Path(path), about.pop("seal"))
        # A damaged file may raise almost anything.
        except Exception as error:
            message = f"not a readable Parquet file ({error}); {instead}"
            raise StoreError(message, code="damaged-ranking", where=path) from error
        if not is_ranking:
            message = f"not a ranking of `deltacell predict`; {instead}"
            raise InputError(message, code="not-a-ranking", where=path)
        if not is_intact:
            message = f"the ranking is damaged: its checksum does not match; {instead}"
            raise StoreError(message, code="damaged-ranking", where=path)
        return cls(Path(path), about)

    def to_json(self, most: int = SHOWN) -> JsonObject:
        """Return a JSON-serialisable dict, with the first ``most`` rows of each end."""
        counts = self.about["counts"]
        rows = []
        first = 0
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
            "gene_list": self.about.get("identity", {}).get("genes_of_cell", ""),
            "accuracy": [],
        }


def write_ranking(path: Path, tables: Iterable[pa.Table], about: Mapping[str, Any]) -> None:
    """Write a ranking atomically; each table becomes a row group."""
    metadata = json.dumps({"schema": VERSION, **about, "seal": NO_SEAL}, sort_keys=True)
    with written(path, "the ranking") as temporary:
        with pq.ParquetWriter(temporary, SCHEMA, write_page_checksum=True) as writer:
            for rows in tables:
                writer.write_table(rows)
            writer.add_key_value_metadata({KEY.decode(): metadata})
        place, seal = _seal_of(temporary, NO_SEAL)
        with temporary.open("r+b") as file:
            file.seek(place)
            file.write(seal.encode())


def _no_address(path: str | os.PathLike[str]) -> Path:
    """Return an absolute path: libraries take ``s3:x`` for an address, and ``~`` for a home."""
    return Path(path).absolute()


def _seal_of(path: Path, seal: str) -> tuple[int, str]:
    """Return the position of a seal in a file, and the SHA-256 of everything before and after."""
    with (
        path.open("rb") as file,
        mmap(file.fileno(), 0, access=ACCESS_READ) as mapped,
        memoryview(mapped) as content,
    ):
        place = mapped.rfind(seal.encode())
        digest = hashlib.sha256(content[:place])
        digest.update(content[place + len(seal) :])
        return place, digest.hexdigest()


def _has_checksum(path: Path, seal: str) -> bool:
    """Return whether the checksum of a file is the seal in it."""
    _, checksum = _seal_of(path, seal)
    return checksum == seal


def read_rows(path: Path, first: int = 0, n: int | None = None) -> pl.DataFrame:
    """Return ``n`` rows of a ranking from the ``first`` on, without loading the others."""
    return pl.scan_parquet(_no_address(path), glob=False).slice(first, n).collect()
