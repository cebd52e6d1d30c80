from __future__ import annotations

import pytest

from deltacell.cell.readers import relation_of, string_physical

TEXT = """\
protein1 protein2 combined_score
4932.YAL001C 4932.YBR001C-A 292
4932.YBR001C-A 4932.YAL001C 292
"""


def test_one_undirected_relation(write, genes):
    [edges] = string_physical.read(write(TEXT, "4932.protein.physical.links.v12.0.txt.gz"))
    relation, source = relation_of(edges, genes)
    assert (relation.name, relation.directed) == ("physical", False)
    assert [list(column) for column in relation.edges()[:2]] == [[0], [4]]
    assert relation.weights == pytest.approx([0.292, 0.292])
    assert source.counts.dropped == {"other direction of an edge": 1}


def test_the_full_network_is_told_by_its_name(write):
    [edges] = string_physical.read(write(TEXT, "4932.protein.links.v12.0.txt"))
    assert edges.name == "string_combined"
