"""The real networks, genes and metabolism: what is read, kept and dropped, number for number."""

from __future__ import annotations

import numpy as np
import pytest

from deltacell.cell import Cell, Genes
from deltacell.predict.status import Evidence
from deltacell.screen.import_folder import READERS
from deltacell.table import File

pytestmark = pytest.mark.real

BOTH = "other direction of an edge"
STRING_EDGES = {"neighborhood": 45_610, "database": 33_486, "cooccurence": 2_664, "fusion": 1_361}


def read(path):
    file = File(path)
    reader = next(reader for reader in READERS if reader.find(file))
    return reader.read(path)


@pytest.fixture(scope="module")
def sgd(shared_data):
    return read(shared_data / "genes" / "SGD_features.tab.gz")


@pytest.fixture(scope="module")
def gem(shared_data, sgd):
    return read(shared_data / "metabolism" / "yeast-GEM_9.0.2.xml.gz").on(sgd[0])


def relations_of(path):
    """Read a file and make its relations on its own names."""
    found = {}
    for edges in read(path):
        relation, _ = edges.on(Genes(edges.gene_names))
        found[relation.name] = relation
    return found


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
def test_every_row_of_a_network_is_accounted_for(file, name, rows, dropped, directed, shared_data):
    [relation] = relations_of(shared_data / "networks" / file).values()
    assert (relation.name, relation.directed) == (name, directed)
    assert relation.counts.read == rows
    assert relation.counts.dropped == dict([dropped])
    assert relation.n_edges == rows - dropped[1]
    if name.startswith("string"):
        assert 0 < relation.weights.min() <= relation.weights.max() <= 1
    if name == "regulatory":
        assert set(np.unique(relation.weights)) == {1, 2, 3}


def test_actions(shared_data):
    found = relations_of(shared_data / "networks" / "4932.protein.actions.v11.0.txt.gz")
    assert {name: relation.counts.read for name, relation in found.items()} == {
        **{"action_activation": 21_634, "action_binding": 211_170, "action_catalysis": 183_844},
        **{"action_expression": 546, "action_inhibition": 6_778, "action_ptmod": 6_394},
        "action_reaction": 338_662,
    }
    catalysis = found["action_catalysis"]
    assert catalysis.directed
    assert catalysis.counts.dropped == {"mirrored half of a directional row": 91_922}


def test_genes_of_sgd_and_of_string(sgd, shared_data):
    genes, source = sgd
    assert (source.counts.read, source.notes["feature type ORF"]) == (16_454, 6_604)
    assert len(genes) == source.counts.kept == 6_713
    ho = genes.index("ho")
    assert genes.label(ho) == "YDL227C (HO)"
    assert (genes.chromosome[ho], genes.start[ho] < genes.end[ho]) == ("4", True)
    assert genes.has_position.all()
    genes, source = read(shared_data / "genes" / "4932.protein.info.v12.0.txt.gz")
    assert len(genes) == source.counts.read == 6_600
    assert genes.label(genes.index("HO")) == "YDL227C (HO)"


def test_yeast_gem(gem):
    metabolism, source = gem
    assert source.counts.read == source.counts.kept == 1_161
    assert (metabolism.n_reactions, metabolism.n_metabolites) == (4_131, 2_806)
    assert metabolism.split().n_reactions == 7_122
    assert source.notes["pathways"] == 85
    assert sum(map(bool, metabolism.pathways)) == 1_891
    lactate = metabolism.reactions.index("r_0001")
    assert metabolism.pathways[lactate] == ("Pyruvate metabolism", "Sulfur metabolism")
    unnamed = {name for names in metabolism.pathways for name in names if name.startswith("sce")}
    assert len(unnamed) == 4
    pairs, reactions = metabolism.pairs_lost_together()
    assert (len(pairs), reactions.sum(), len(np.unique(pairs))) == (196, 414, 308)


def test_the_evidence_of_the_fatty_acid_synthase(sgd, gem):
    evidence = Evidence(Cell(sgd[0], [], gem[0]))
    sets = np.array([[sgd[0].index(name) for name in ("FAS1", "FAS2", "HO")]])
    fas = {name: column[0] for name, column in evidence.columns(sets).items()}
    assert fas["pathways"] == ["Fatty acid biosynthesis"]
    assert fas["complexes"] == ["r_2140", "r_2141"]
    assert fas["links"] == fas["relations"] == []


def test_go_slim_is_three_annotations_and_every_row_is_accounted_for(shared_data, sgd):
    path = shared_data / "annotations" / "go_slim_mapping.tab.gz"
    found = [written.on(sgd[0]) for written in read(path)]
    names = [f"go_slim_{aspect}" for aspect in ("process", "function", "component")]
    assert [annotation.name for annotation, _ in found] == names
    assert sum(source.counts.read for _, source in found) == 41_830
    assert [len(annotation.terms) for annotation, _ in found] == [100, 42, 22]
    process = found[0][0]
    assert process.matrix[sgd[0].index("RAD52"), process.terms.index("DNA repair")]
