from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltacell.cell import Genes
from deltacell.cell.readers.edges import NamedEdges, names_of, relation_of
from deltacell.counts import AMBIGUOUS_NAME, UNKNOWN_GENE
from deltacell.errors import GeneNameError


def edges_of(pairs, *, directed=False, weight=None, left_out=None) -> NamedEdges:
    return NamedEdges(
        "net",
        pl.Series([a for a, _ in pairs], dtype=pl.String),
        pl.Series([b for _, b in pairs], dtype=pl.String),
        weight,
        directed,
        Path("folder/net.tsv"),
        np.arange(2, len(pairs) + 2),
        "abc",
        "edge_list",
        {"rows in the file": 9},
        left_out or {},
    )


def test_names_of_every_kind_resolve(genes):
    edges = edges_of([("yal001c", "VPS8"), ("TSV115", "HO")], weight=np.array([0.5, 0.25]))
    relation, source = relation_of(edges, genes)
    assert relation.name == "net"
    assert [list(column) for column in relation.edges()] == [[0, 0], [1, 3], [0.5, 0.25]]
    assert (source.file, source.sha256, source.reader) == ("net.tsv", "abc", "edge_list")
    assert source.into == "net"
    assert source.notes == {"rows in the file": 9}
    assert source.counts == relation.counts


def test_unknown_gene_is_an_error_with_file_line_and_name(genes):
    edges = edges_of([("YAL001C", "YAL002W"), ("YAL001C", "NOPE1"), ("NOPE2", "YAL001C")])
    with pytest.raises(GeneNameError, match="'NOPE1'") as caught:
        relation_of(edges, genes)
    assert caught.value.where == Path("folder/net.tsv")
    assert caught.value.line == 3
    assert "2 such rows" in str(caught.value)
    assert "drop or add" in str(caught.value)


def test_ambiguous_gene_is_an_error_that_lists_the_candidates(genes):
    with pytest.raises(GeneNameError, match="line 2") as caught:
        relation_of(edges_of([("BOTH", "YAL001C")]), genes)
    assert "YAL002W (VPS8)" in str(caught.value)
    assert "YAL003W (EFB1)" in str(caught.value)


def test_unresolved_rows_are_dropped_with_a_count_by_reason(genes):
    pairs = [
        ("YAL001C", "YAL002W"),
        ("YAL002W", "YAL001C"),
        ("YAL001C", "YAL001C"),
        ("NOPE", "YAL001C"),
        ("NOPE", "BOTH"),
        ("BOTH", "YAL001C"),
        ("YAL001C", "TFC3"),
        ("YAL001C", "VPS8"),
    ]
    relation, source = relation_of(edges_of(pairs, left_out={"score 0": 4}), genes, "drop")
    assert source.notes["unknown_genes"] == "NOPE"
    assert source.notes["ambiguous_gene_names"] == "BOTH"
    assert relation.n_edges == 1
    assert relation.counts.read == 12
    assert relation.counts.resolved == 9
    assert relation.counts.dropped == {
        "score 0": 4,
        UNKNOWN_GENE: 2,
        AMBIGUOUS_NAME: 1,
        "self loop": 2,
        "duplicate": 1,
        "other direction of an edge": 1,
    }


def test_unknown_genes_can_be_added_first(genes):
    edges = edges_of([("YAL001C", "YNEW1"), ("ynew1", "YNEW2"), ("YNEW2", "vps8")])
    names = names_of(edges)
    assert sorted(names) == ["YAL001C", "YNEW2", "vps8", "ynew1"]
    unknown = [n for n, found in zip(names, genes.resolve(names).found, strict=True) if not found]
    extended = genes.extended(unknown)
    assert len(extended) == len(genes) + 2
    relation, _ = relation_of(edges, extended)
    assert relation.n_edges == 3


def test_adding_is_not_for_the_reader(genes):
    with pytest.raises(ValueError, match="'add'"):
        relation_of(edges_of([("YAL001C", "VPS8")]), genes, "add")  # type: ignore[arg-type]


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("ABCDX?"), st.sampled_from("ABCDX?")), max_size=30),
    st.booleans(),
    st.integers(0, 5),
)
def test_every_row_is_accounted_for(pairs, directed, n_left_out):
    genes = Genes("ABCD", aliases=[["?"], ["?"], [], []])
    edges = edges_of(pairs, directed=directed, left_out={"score 0": n_left_out})
    relation, source = relation_of(edges, genes, "drop")
    counts = source.counts
    assert counts.read == len(pairs) + n_left_out
    assert counts.kept == relation.n_edges
    assert counts.read == counts.kept + sum(counts.dropped.values())
    inside = [(a, b) for a, b in pairs if a in "ABCD" and b in "ABCD" and a != b]
    distinct = set(inside) if directed else {frozenset(pair) for pair in inside}
    assert relation.n_edges == len(distinct)
