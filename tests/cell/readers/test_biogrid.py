from __future__ import annotations

from deltacell.cell.readers import biogrid, recognise, relation_of


def test_one_undirected_relation_without_weights(write, genes):
    path = write("orf1\torf2\nYAL001C\tYAL002W\nYAL003W\tYAL003W\n", "x.tsv.gz")
    assert recognise(path) == "biogrid"
    [edges] = biogrid.read(path)
    relation, source = relation_of(edges, genes)
    assert (relation.name, relation.directed, relation.n_edges) == ("biogrid", False, 1)
    assert list(relation.weights) == [1, 1]
    assert source.counts.dropped == {"self loop": 1}
