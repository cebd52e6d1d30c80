"""The real networks, genes and metabolism: what is read, kept and dropped, number for number."""

import numpy as np
import pytest

from deltacell.cell import Genes

pytestmark = pytest.mark.real

BOTH = "other direction of an edge"
STRING_EDGES = {"neighborhood": 45_610, "database": 33_486, "cooccurence": 2_664, "fusion": 1_361}


def relations_of(written):
    """Make relations on their own names."""
    found = [edges.on(Genes(edges.gene_names))[0] for edges in written]
    return {relation.name: relation for relation in found}


@pytest.mark.parametrize(
    ("file", "name", "rows", "dropped", "directed"),
    [
        *(
            (f"yeast_string_{one}_adjacency.txt.gz", f"string_{one}", 2 * n, (BOTH, n), False)
            for one, n in STRING_EDGES.items()
        ),
        ("4932.protein.physical.links.v12.0.txt.gz", "physical", 352_606, (BOTH, 176_303), False),
        ("yeastract_2020_edges.tsv.gz", "regulatory", 178_837, ("self loop", 143), True),
        ("biogrid_3.4.156_cocomplex_edges.tsv.gz", "biogrid", 59_377, ("self loop", 1_117), False),
    ],
)
def test_every_row_of_a_network_is_accounted_for(file, name, rows, dropped, directed, read):
    [relation] = relations_of(read(f"networks/{file}")).values()
    assert (relation.name, relation.directed) == (name, directed)
    assert relation.counts.read == rows
    assert relation.counts.dropped == dict([dropped])
    assert relation.n_edges == rows - dropped[1]
    if name.startswith("string"):
        assert 0 < relation.weights.min() <= relation.weights.max() <= 1
    if name == "regulatory":
        assert set(np.unique(relation.weights)) == {1, 2, 3}


def test_actions_of_string_have_the_rows_of_the_file(read):
    found = relations_of(read("networks/4932.protein.actions.v11.0.txt.gz"))
    assert {name: relation.counts.read for name, relation in found.items()} == {
        **{"action_activation": 21_634, "action_binding": 211_170, "action_catalysis": 183_844},
        **{"action_expression": 546, "action_inhibition": 6_778, "action_ptmod": 6_394},
        "action_reaction": 338_662,
    }
    catalysis = found["action_catalysis"]
    assert catalysis.directed
    assert catalysis.counts.dropped == {"mirrored half of a directional row": 91_922}


def test_genes_of_sgd_and_of_string(sgd, read):
    genes, source = sgd
    assert (source.counts.read, source.notes["feature type ORF"]) == (16_454, 6_604)
    assert len(genes) == source.counts.kept == 6_713
    ho = genes.index("ho")
    assert genes.label(ho) == "YDL227C (HO)"
    assert (genes.chromosome[ho], genes.start[ho] < genes.end[ho]) == ("4", True)
    assert genes.has_position.all()
    genes, source = read("genes/4932.protein.info.v12.0.txt.gz")
    assert len(genes) == source.counts.read == 6_600
    assert genes.label(genes.index("HO")) == "YDL227C (HO)"


def test_go_slim_is_three_annotations_and_every_row_is_accounted_for(read, genes):
    found = [written.on(genes) for written in read("annotations/go_slim_mapping.tab.gz")]
    names = [f"go_slim_{aspect}" for aspect in ("process", "function", "component")]
    assert [annotation.name for annotation, _ in found] == names
    assert sum(source.counts.read for _, source in found) == 41_830
    assert [len(annotation.terms) for annotation, _ in found] == [100, 42, 22]
    process = found[0][0]
    assert process.matrix[genes.index("RAD52"), process.terms.index("DNA repair")]
