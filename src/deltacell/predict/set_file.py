"""Gene sets and genes that stand in a file."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from deltacell.arrays import Ints
from deltacell.errors import GeneNameError, InputError
from deltacell.predict.gene_names import GeneNames
from deltacell.table import open_text

_PARQUET = b"PAR1"
_HEADER = re.compile(r"(genes?|names?|orf|systematic|query|array)([ _]?(name|id|\d+|[a-d]))?", re.I)


def read_sets(path: Path, names: GeneNames) -> list[Ints]:
    """Return the sets of a file, of each size an array [m, size] of ascending genes.

    A text has one set a line: names of any kind with tabs, commas or spaces between. A first line
    that names the columns, blank lines and what comes after a ``#`` are passed over. A Parquet
    file has its sets in the column ``genes``. A set that is there twice counts once.

    Parameters
    ----------
    path
        The file.
    names
        Of the genes.
    """
    by_size: dict[int, list[list[int]]] = {}
    for line, words in _rows(path):
        if not words:
            raise InputError("a set of the file has no gene", where=path, line=line)
        genes = _looked_up(words, names, path, line)
        if len(genes) != len(set(genes)):
            twice = next(gene for gene in genes if genes.count(gene) > 1)
            raise InputError(
                f"the set names the gene {names.genes.label(twice)} twice", where=path, line=line
            )
        by_size.setdefault(len(genes), []).append(sorted(genes))
    if not by_size:
        raise InputError(
            "there is no gene set in the file",
            where=path,
            fix="Write one set a line, such as: HO STE2 MATALPHA1",
        )
    return [np.unique(np.array(sets, dtype=np.int64), axis=0) for sets in by_size.values()]


def read_genes(path: Path, names: GeneNames) -> Ints:
    """Return the genes of a file, ascending: all names that stand in it, each gene once.

    Parameters
    ----------
    path
        A file as `read_sets` takes it.
    names
        Of the genes.
    """
    found: set[int] = set()
    for line, words in _rows(path):
        found.update(_looked_up(words, names, path, line))
    if not found:
        raise InputError("there is no gene in the file", where=path, fix="Write one gene a line.")
    return np.array(sorted(found), dtype=np.int64)


def sets_checksum(by_size: list[Ints]) -> str:
    """Return a checksum of gene sets, whatever file they stood in."""
    digest = hashlib.sha256()
    for sets in sorted(by_size, key=lambda s: s.shape[1]):
        digest.update(f"{sets.shape}".encode() + np.ascontiguousarray(sets).tobytes())
    return digest.hexdigest()


def _rows(path: Path) -> Iterator[tuple[int | None, list[str]]]:
    """Give the names of each line, with its number."""
    if not path.is_file():
        raise InputError("there is no such file", where=path)
    with path.open("rb") as file:
        if file.read(4) == _PARQUET:
            yield from _parquet_rows(path)
            return
    try:
        text = open_text(path).data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"this is not text in UTF-8 ({error.reason})", where=path) from error
    if "\0" in text:
        raise InputError("this is no text: it holds zero bytes", where=path)
    first = True
    for number, line in enumerate(text.splitlines(), 1):
        words = re.split(r"[\s,;]+", line.partition("#")[0].strip().strip(",;"))
        words = [word.strip("\"'") for word in words]
        if not any(words):
            continue
        if first and all(_HEADER.fullmatch(word) for word in words):
            first = False
            continue
        first = False
        yield number, [word for word in words if word]


def _parquet_rows(path: Path) -> Iterator[tuple[None, list[str]]]:
    try:
        schema = pq.read_schema(path)
        if "genes" not in schema.names:
            raise InputError(
                f"the Parquet file has no column 'genes'; it has {', '.join(schema.names)}",
                where=path,
            )
        column = pq.read_table(path, columns=["genes"])["genes"].to_pylist()
    except (pa.ArrowInvalid, OSError) as error:
        raise InputError(f"this Parquet file cannot be read ({error})", where=path) from error
    for genes in column:
        if not isinstance(genes, list) or not all(isinstance(gene, str) for gene in genes):
            raise InputError(
                "the column 'genes' must hold lists of gene names, as `deltacell predict` writes",
                where=path,
            )
        yield None, genes


def _looked_up(words: list[str], names: GeneNames, path: Path, line: int | None) -> list[int]:
    try:
        return [names.index(word, path, line) for word in words]
    except GeneNameError as error:
        if line == 1 and not any(names.genes.resolve(words).found):
            raise GeneNameError(
                error.what,
                where=path,
                line=line,
                fix=f"{error.fix} A line with the names of columns begins with #.",
            ) from None
        raise
