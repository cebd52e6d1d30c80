from __future__ import annotations

from deltacell.cell.readers import relation_of, yeastract

TEXT = """\
tf_orf\ttarget_orf\tdna_binding\texpr_activator\texpr_inhibitor
YAL001C\tYAL002W\t1\t0\t1
YAL002W\tYAL001C\t0\t1\t0
YAL003W\tYAL003W\t1\t1\t1
YAL003W\tYAL001C\t0\t0\t0
"""


def test_directed_from_regulator_to_target(write, genes):
    [edges] = yeastract.read(write(TEXT))
    relation, source = relation_of(edges, genes)
    assert (relation.name, relation.directed) == ("regulatory", True)
    found = zip(*(column.tolist() for column in relation.edges()), strict=True)
    assert sorted(found) == [(0, 1, 2.0), (1, 0, 1.0)]
    assert source.counts.read == 4
    assert source.counts.dropped == {"no evidence": 1, "self loop": 1}
    assert list(edges.lines) == [2, 3, 4]
