"""Network files: STRING links, actions and adjacency lists, BioGRID, YEASTRACT, TFLink, edge lists.

A plain edge list has two genes per row, and optionally a weight.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import polars as pl

from deltacell.base.arrays import Bools, Doubles, Ints
from deltacell.base.errors import InputError
from deltacell.cell.genes import UNKNOWN, Genes
from deltacell.cell.readers.names import (
    FindTable,
    OnUnresolved,
    Reader,
    ReadTable,
    UnclearColumns,
    account_for_names,
    check_lengths,
    check_number,
    is_systematic,
    names_in,
    pattern,
    stem_of,
    table_reader,
    unresolved_notes,
    with_header,
    without_header,
)
from deltacell.cell.relation import Relation
from deltacell.storage.provenance import Counts, Source
from deltacell.storage.tables import MISSING, File, Sheet, Table, is_missing, is_number, open_text

CHANNELS = ("neighborhood", "fusion", "cooccurence", "coexpression", "experimental", "database")

_LINK = ("protein1", "protein2", "combined_score")
_ACTION = ("item_id_a", "item_id_b", "mode", "is_directional", "a_is_acting", "score")
_CHANNEL = re.compile(r"(?:^|_)string_(.+?)_adjacency", re.IGNORECASE)
_GENE = re.compile(r"[A-Za-z0-9](?:[\w.:@'()-]*[\w')])?")
_GENE_WORD = pattern("edges", "gene")
_NODE_WORD = pattern("edges", "node")
_WEIGHT_WORD = pattern("edges", "weight")


@dataclass(frozen=True)
class NamedEdges:
    """The edges of one relation with gene names as in the file, not yet resolved."""

    name: str
    frame: pl.DataFrame  # source, target, line and optionally weight
    path: Path
    sha256: str
    reader: str
    directed: bool = False
    notes: Mapping[str, int | str] = field(default_factory=dict)
    left_out: Mapping[str, int] = field(default_factory=dict)  # number of dropped rows, by reason
    proteins: pl.DataFrame | None = None  # accessions of UniProt (protein) and names (gene)

    @property
    def gene_names(self) -> list[str]:
        """The distinct names, ignoring case, as first written."""
        names = pl.concat([self.frame["source"], self.frame["target"]]).unique(maintain_order=True)
        return names.filter(names.str.to_uppercase().is_first_distinct()).to_list()

    def on(self, genes: Genes, on_unknown: OnUnresolved = "error") -> tuple[Relation, Source]:
        """Look up the names and return the relation; dropped rows are counted by reason."""
        source = genes.resolve(self.frame["source"])
        target = genes.resolve(self.frame["target"])
        dropped = self._rows_without_a_gene(genes, source, target, on_unknown)
        has_genes = (source >= 0) & (target >= 0)
        has_weight = "weight" in self.frame.columns
        relation = Relation.from_edges(
            self.name,
            source[has_genes],
            target[has_genes],
            self.frame["weight"].to_numpy()[has_genes] if has_weight else None,
            n_genes=len(genes),
            directed=self.directed,
        )
        n_read = self.frame.height + sum(self.left_out.values())
        reasons = {**self.left_out, **dropped, **relation.counts.dropped}
        relation.counts = Counts(n_read, relation.n_edges, reasons)
        names = pl.concat([self.frame["source"], self.frame["target"]])
        unresolved = unresolved_notes(names, np.concatenate([source, target]), genes)
        return relation, Source(
            self.path.name,
            self.sha256,
            self.reader,
            relation.counts,
            self.name,
            {**self.notes, **unresolved},
        )

    def _rows_without_a_gene(
        self,
        genes: Genes,
        source: Ints,
        target: Ints,
        on_unknown: OnUnresolved,
    ) -> dict[str, int]:
        """Return the number of rows with a name that was not found, by reason.

        A row with an unknown and an ambiguous gene counts as unknown.
        """
        any_unknown = (source == UNKNOWN) | (target == UNKNOWN)
        worst = np.where(any_unknown, UNKNOWN, np.minimum(source, target))
        is_source = pl.Series(source == worst)
        names = self.frame["source"].zip_with(is_source, self.frame["target"])
        lines = self.frame["line"].to_numpy()
        return account_for_names(genes, names, worst, on_unknown, self.path, lines).dropped


EdgeReader = Reader[ReadTable, list[NamedEdges]]


def _reader(
    name: str,
    find: FindTable,
    make: Callable[[Table], Iterator[NamedEdges]],
) -> EdgeReader:
    """Return the reader of a format, of which `make` yields the relations in a table."""

    def read(table: Table) -> list[NamedEdges]:
        relations = [replace(edges, reader=name) for edges in make(table)]
        table.raise_if_bad()
        return relations

    return table_reader(name, "edges", find, read)


def _frame(
    table: Table,
    source: pl.Series,
    target: pl.Series,
    weight: Doubles | None = None,
) -> pl.DataFrame:
    """Return the rows of a table as edges with their lines."""
    columns = {"source": source, "target": target, "line": table.lines}
    return pl.DataFrame(columns if weight is None else {**columns, "weight": weight})


def _edges(
    table: Table,
    name: str,
    frame: pl.DataFrame,
    *,
    directed: bool = False,
    left_out: Mapping[str, int] | None = None,
    notes: Mapping[str, int | str] | None = None,
    proteins: pl.DataFrame | None = None,
) -> NamedEdges:
    """Return the edges of a table; `_reader` adds the name of the reader."""
    return NamedEdges(
        name,
        frame,
        table.path,
        table.sha256,
        reader="",
        directed=directed,
        notes={**table.notes, **(notes or {})},
        left_out=left_out or {},
        proteins=proteins,
    )


def _biogrid(table: Table) -> Iterator[NamedEdges]:
    frame = _frame(table, names_in(table, "orf1"), names_in(table, "orf2"))
    yield _edges(table, "biogrid", frame)


def _yeastract(table: Table) -> Iterator[NamedEdges]:
    """Yield the edges from regulator to target, weighted by the number of kinds of evidence."""
    kinds = [name for name in table.frame.columns if name not in ("tf_orf", "target_orf")]
    evidence = np.array([_is(table, kind, "1", "0") for kind in kinds], dtype=np.float64)
    regulator = names_in(table, "tf_orf")
    target = names_in(table, "target_orf")
    frame = _frame(table, regulator, target, evidence.sum(axis=0))
    kept = frame.filter(pl.col("weight") > 0)
    left_out = {"no evidence": len(table) - kept.height}
    yield _edges(table, "regulatory", kept, directed=True, left_out=left_out)


def _tflink(table: Table) -> Iterator[NamedEdges]:
    """Yield the edges from factor to target.

    A protein encoded by several genes has names joined by ``;``; such a row gives one edge per
    gene, and each counts as read. Rows with ``-`` as a name are dropped.
    """
    factor = names_in(table, "Name.TF").str.split(";")
    target = names_in(table, "Name.Target").str.split(";")
    edges = _frame(table, factor, target).explode("source").explode("target")
    edges = edges.with_columns(pl.col("source", "target").str.strip_chars())
    named = edges.filter(*(~pl.col(end).is_in(["", "-"]) for end in ("source", "target")))
    left_out = {"no gene name": len(edges) - len(named)}
    proteins = _proteins(table)
    yield _edges(table, "tflink", named, directed=True, left_out=left_out, proteins=proteins)


def _proteins(table: Table) -> pl.DataFrame | None:
    """Return the proteins of TFLink and their genes; None without columns of UniProt."""
    ends = [end for end in ("TF", "Target") if f"UniprotID.{end}" in table.frame.columns]
    if not ends:
        return None
    columns = [
        table.frame.select(protein=f"UniprotID.{end}", gene=pl.col(f"Name.{end}").str.split(";"))
        for end in ends
    ]
    rows = pl.concat(columns).unique(maintain_order=True).explode("gene")
    rows = rows.with_columns(pl.col("gene").str.strip_chars())
    lacks_a_name = pl.any_horizontal(pl.all().is_in(["", "-"]))
    return rows.filter(~lacks_a_name).unique(maintain_order=True)


def _detailed(table: Table) -> Iterator[NamedEdges]:
    """Yield one undirected relation per channel, ``string_<channel>``, of the pairs above 0.

    The channel ``textmining`` is not read: it is derived from the papers that publish screens.
    """
    frame = _frame(table, orf_names(table, "protein1"), orf_names(table, "protein2"))
    for channel in CHANNELS:
        kept = frame.with_columns(weight=_scores(table, channel)).filter(pl.col("weight") > 0)
        left_out = {"score 0": len(table) - kept.height}
        yield _edges(table, f"string_{channel}", kept, left_out=left_out)


def _physical(table: Table) -> Iterator[NamedEdges]:
    # The full network has the same columns; only the file name tells them apart.
    name = "string_combined" if "protein.links" in table.path.name else "physical"
    first = orf_names(table, "protein1")
    second = orf_names(table, "protein2")
    yield _edges(table, name, _frame(table, first, second, _scores(table, "combined_score")))


def _actions(table: Table) -> Iterator[NamedEdges]:
    """Yield one relation per mode, ``action_<mode>``, which is directed if any of its rows is.

    A row ``a, b`` is the edge a -> b. A directional row in which b acts on a repeats the row
    ``b, a`` and is dropped; a pair that is not directional is listed in both directions.
    """
    table.mark_bad("no mode", "mode", table.frame["mode"] == "")
    first = orf_names(table, "item_id_a")
    second = orf_names(table, "item_id_b")
    rows = _frame(table, first, second, _scores(table, "score")).with_columns(
        mode=table.frame["mode"],
        directional=_is(table, "is_directional", "t", "f"),
        acting=_is(table, "a_is_acting", "t", "f"),
    )
    rows = rows.sort("mode", maintain_order=True)
    for of_mode in rows.partition_by("mode", maintain_order=True):
        edges = of_mode.filter(~pl.col("directional") | pl.col("acting"))
        yield _edges(
            table,
            f"action_{of_mode['mode'][0]}",
            edges.drop("mode", "directional", "acting"),
            directed=bool(of_mode["directional"].any()),
            left_out={"mirrored half of a directional row": of_mode.height - edges.height},
        )


def _are_numbered(sheet: Sheet) -> bool:
    """Whether rows are two integers and a score; a header is allowed in an adjacency file."""
    may_have_header = "adjacency" in sheet.file.path.name.lower()
    fits = [len(row) == 3 and row[0].isdigit() and row[1].isdigit() for row in sheet.rows]
    return sheet.separator == "\t" and (fits[0] or (may_have_header and any(fits)))


def _adjacency(table: Table) -> Iterator[NamedEdges]:
    """Yield the relation ``string_<channel>``, named after the file."""
    gene_list = _gene_list_beside(table.path)
    genes = pl.Series(string_genes.read(gene_list), dtype=pl.String)
    kind = f"not a line of '{gene_list.name}', 1 to {len(genes)}"
    first = _genes_by_number(table, "first", genes, kind)
    second = _genes_by_number(table, "second", genes, kind)
    channel = _CHANNEL.search(table.path.name)
    name = f"string_{channel[1].lower()}" if channel else stem_of(table.path.name)
    notes = {"gene list": gene_list.name, "gene list sha256": open_text(gene_list).sha256}
    frame = _frame(table, first, second, table.numbers("score", required=True))
    yield _edges(table, name, frame, notes=notes)


def _gene_list_beside(path: Path) -> Path:
    """Return the only gene list in the folder of a file."""
    files = [other for other in sorted(path.parent.iterdir()) if other.is_file()]
    lists = [other for other in files if other != path and _is_gene_list(other)]
    if len(lists) != 1:
        message = (
            f"its genes are lines of a gene list; expected one in the folder, found {len(lists)}"
        )
        fix = "Put the gene list into the folder, one systematic name per line."
        raise InputError(message, code="no-gene-list", where=path, fix=fix)
    return lists[0]


def _genes_by_number(table: Table, column: str, genes: pl.Series, kind: str) -> pl.Series:
    """Return the genes of a column of line numbers; others are bad, of the given kind."""
    numbers = table.frame[column].cast(pl.Int64, strict=False)
    is_inside = numbers.fill_null(0).is_between(1, len(genes))
    table.mark_bad(kind, column, ~is_inside)
    return genes.gather((numbers - 1).set(~is_inside, 0))


def _is_gene_list(path: Path) -> bool:
    try:
        return _find_genes(File(path)) is not None
    except InputError:
        return False


def _find_genes(file: File) -> File | None:
    """Find lines that are systematic names."""
    names = [line.strip() for line in file.head if line.strip()]
    return file if names and all(map(is_systematic, names)) else None


def _read_genes(file: File) -> list[str]:
    """Read a gene list, in which each line has one name: its number is that of the line."""
    table = file.lines()
    names = table.frame["text"].str.strip_chars()
    is_after_a_blank = table.lines != np.arange(1, len(table) + 1)
    is_repeated = ~names.str.to_uppercase().is_first_distinct()
    is_no_name = names.str.contains(r"\s|^$")
    is_bad = (is_repeated | is_no_name).to_numpy() | is_after_a_blank
    table.mark_bad("blank line, several names or a repeated name", "text", is_bad)
    table.raise_if_bad()
    return names.to_list()


def orf_names(table: Table, column: str) -> pl.Series:
    """Return a column of STRING identifiers without their taxon: ``4932.YDL227C`` is YDL227C."""
    return names_in(table, column).str.replace(r"^\d+\.", "")


def _scores(table: Table, column: str) -> Doubles:
    """Return a column of scores from 0 to 1000, divided by 1000."""
    scores = table.numbers(column, required=True)
    is_outside = (scores < 0) | (scores > 1000)
    table.mark_bad(f"column '{column}' is not between 0 and 1000", column, is_outside)
    return scores / 1000


def _is(table: Table, column: str, yes: str, no: str) -> Bools:
    """Return which rows of a column are `yes`; all others must be `no`."""
    fields = table.frame[column]
    is_neither = ~fields.is_in([yes, no])
    table.mark_bad(f"column '{column}' is neither {yes} nor {no}", column, is_neither)
    return (fields == yes).to_numpy()


string_genes = Reader("string_genes", "numbers of genes", _find_genes, _read_genes)
EDGE_READERS: tuple[EdgeReader, ...] = (
    _reader("string_detailed", with_header("protein1", "protein2", *CHANNELS), _detailed),
    _reader("string_physical", with_header(*_LINK, alone=True), _physical),
    _reader("string_actions", with_header(*_ACTION), _actions),
    _reader(
        "string_adjacency",
        without_header(("first", "second", "score"), _are_numbered),
        _adjacency,
    ),
    _reader("yeastract", with_header("tf_orf", "target_orf"), _yeastract),
    _reader("tflink", with_header("Name.TF", "Name.Target"), _tflink),
    _reader("biogrid", with_header("orf1", "orf2", alone=True), _biogrid),
)


@dataclass(frozen=True)
class EdgeColumns:
    """Where the edges of a plain list are."""

    sheet: Sheet
    header_row: int | None
    positions: tuple[int, ...]  # of the columns of source, target and optionally weight


def unclear(file: File) -> UnclearColumns | None:
    """Return the columns of a table of gene, gene and number that is not read as a network.

    Its number may be the score of a screen, which must not be used as a network.
    """
    for sheet in file.sheets:
        for header in sheet.headers:
            rows = sheet.rows[header.row :]
            if len(rows[0]) != 3 or (sheet.separator == " " and len(rows) < 3):
                continue
            if _are_edges(rows, 3, sheet.separator):
                return UnclearColumns("it has no header", ["1", "2"], "3")
            if not is_number(rows[0][2]) and _are_edges(rows[1:], 3, sheet.separator):
                number = header.names[2]
                reason = f"the meaning of '{number}' is unknown"
                return UnclearColumns(reason, header.names[:2], number)
    return None


def _read_lists(forms: Sequence[EdgeColumns]) -> list[NamedEdges]:
    """Read the plain edge lists of a file: one, or one per sheet of a workbook."""
    relations = []
    for form in forms:
        table = form.sheet.below(form.header_row)
        name = stem_of(form.sheet.file.path.name)
        if len(forms) > 1:
            name = f"{name}_{form.sheet.name}"
        columns = [table.frame.columns[position] for position in form.positions]
        relations.append(edges_of(table, columns, name, edge_list.name))
    return relations


def edges_of(
    table: Table,
    columns: Sequence[str],
    name: str,
    reader: str,
    *,
    directed: bool = False,
) -> NamedEdges:
    """Return the edges of two gene columns and an optional weight; rows without one are dropped."""
    source, target = columns[:2]
    weight = columns[2] if len(columns) > 2 else None
    for column in (source, target):
        check_number(table, column)
        no_name = is_missing(table.frame[column])
        table.mark_bad(f"no gene name in column '{column}'", column, no_name)
        check_lengths(table, column)
    numbers = None
    if weight is not None:
        table.check_not_repeated(weight)
        numbers = table.numbers(weight)
    table.raise_if_bad()
    frame = _frame(table, table.frame[source], table.frame[target], numbers)
    kept = frame if weight is None else frame.filter(pl.col("weight").is_not_nan())
    if not len(kept):
        raise InputError("no row has two genes", code="empty-file", where=table.path)
    left_out = {"no weight": len(frame) - len(kept)}
    edges = _edges(table, name, kept, directed=directed, left_out=left_out)
    return replace(edges, reader=reader)


def _by_names(sheet: Sheet) -> EdgeColumns | None:
    """Return the columns that the user named."""
    for columns in sheet.file.columns:
        places = columns.find(sheet) if "weight" in columns.names else None
        if places is not None:
            positions = tuple(places.position[key] for key in (*columns.genes, "weight"))
            return EdgeColumns(sheet, places.header_row, positions)
    return None


def _by_words(sheet: Sheet) -> EdgeColumns | None:
    """Return the columns whose headers are common words, above rows that are edges."""
    for header in sheet.headers:
        words = list(header.words)
        while words and words[-1].startswith("column"):  # without a header
            words.pop()
        positions = _positions_by_words(words)
        if positions is None:
            continue
        below = [row for row in sheet.rows[header.row + 1 :] if len(row) >= len(words)]
        rows = [[row[i] for i in positions] for row in below]
        is_only_a_header = header.row == 0 and len(sheet.rows) == 1
        if is_only_a_header or _are_edges(rows, len(positions), sheet.separator):
            return EdgeColumns(sheet, header.row, positions)
    return None


def _positions_by_words(words: Sequence[str]) -> tuple[int, ...] | None:
    """Return the positions of two columns of genes and, if there is one, of weights.

    A table with further columns must have one of weights. Between nodes, a score is a weight;
    between genes, it is the score of a screen.
    """
    nodes = [i for i, word in enumerate(words) if _NODE_WORD.fullmatch(word)]
    genes = [i for i, word in enumerate(words) if i in nodes or _GENE_WORD.fullmatch(word)]
    if len(genes) != 2:
        genes = genes[:2] if genes[:2] == [0, 1] else []
    weights = [i for i, word in enumerate(words) if _WEIGHT_WORD.fullmatch(word)]
    if len(genes) == len(nodes) == 2 and not weights:
        weights = [i for i, word in enumerate(words) if word == "score"]
    if len(genes) != 2 or len(weights) > 1:
        return None
    if len(words) > 2 and not weights:
        return None
    return (*genes, *weights)


def _without_header(sheet: Sheet) -> EdgeColumns | None:
    """Return the columns of a list of two or three; a negative number means that it is a score."""
    n_columns = len(sheet.rows[0])
    if n_columns not in (2, 3):
        return None
    if sheet.separator in (" ", "") and len(sheet.rows) < 2:
        return None
    numbers = [row[2] for row in sheet.rows if len(row) == 3 and is_number(row[2])]
    if any(number[0] in "-\u2212" for number in numbers):
        return None
    if not _are_edges(sheet.rows, n_columns, sheet.separator):
        return None
    return EdgeColumns(sheet, None, tuple(range(n_columns)))


def _are_edges(rows: Sequence[Sequence[str]], n_columns: int, separator: str) -> bool:
    """Whether 80 % of the rows are edges; a missing weight is accepted if another row has one."""
    n_whole = 0
    n_without_weight = 0
    for row in rows:
        if len(row) != n_columns or not all(map(_is_gene_name, row[:2])):
            continue
        weights = row[2:]
        n_whole += all(map(is_number, weights))
        n_without_weight += any(weight.lower() in MISSING for weight in weights)
    most_others = 0 if separator == " " else len(rows) // 5
    return n_whole > 0 and len(rows) - n_whole - n_without_weight <= most_others


def _is_gene_name(field: str) -> bool:
    return _GENE.fullmatch(field) is not None and not is_number(field)


_WAYS = (_by_names, _by_words, _without_header)
edge_list = Reader(
    "edge_list",
    "edges",
    lambda file: file.forms(_WAYS) or None,
    _read_lists,
)
