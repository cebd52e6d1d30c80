"""The real networks, genes and metabolism: what is read, kept and dropped, number for number."""

from __future__ import annotations

import numpy as np
import pytest

from deltacell.cell import Cell, Genes
from deltacell.cell.readers import (
    EDGE_READERS,
    features_table,
    names_of,
    recognise,
    relation_of,
    sbml,
    sgd_features,
    string_genes,
    string_info,
    terms,
)
from deltacell.predict.status import Evidence

pytestmark = pytest.mark.real

READERS = {reader.NAME: reader for reader in EDGE_READERS}

FORMATS = {
    "networks/4932.protein.actions.v11.0.txt.gz": "string_actions",
    "networks/4932.protein.physical.links.v12.0.txt.gz": "string_physical",
    "networks/biogrid_3.4.156_cocomplex_edges.tsv.gz": "biogrid",
    "networks/yeast_string_cooccurence_adjacency.txt.gz": "string_adjacency",
    "networks/yeast_string_database_adjacency.txt.gz": "string_adjacency",
    "networks/yeast_string_fusion_adjacency.txt.gz": "string_adjacency",
    "networks/yeast_string_neighborhood_adjacency.txt.gz": "string_adjacency",
    "networks/yeast_string_genes.txt": "string_genes",
    "networks/yeastract_2020_edges.tsv.gz": "yeastract",
    "genes/SGD_features.tab.gz": "sgd_features",
    "genes/4932.protein.info.v12.0.txt.gz": "string_info",
    "metabolism/yeast-GEM_9.0.2.xml.gz": "sbml",
    "features/costanzo2016_single_mutant_fitness.csv": "features_table",
    "features/costanzo2016_single_mutant_fitness.xlsx": "features_table",
    "features/yeastphenome_z.tsv.gz": "features_table",
}


@pytest.fixture(scope="module")
def sgd(shared_data):
    return sgd_features.read(shared_data / "genes" / "SGD_features.tab.gz")


def relations_of(path, genes=None):
    """Read a file and make its relations, on its own names where no genes are given."""
    found = {}
    for edges in READERS[recognise(path)].read(path):
        relation, source = relation_of(edges, genes or Genes(names_of(edges)))
        assert source.counts.read == source.counts.kept + sum(source.counts.dropped.values())
        found[relation.name] = relation
    return found


def test_every_file_is_recognised_by_its_content(shared_data):
    assert {name: recognise(shared_data / name) for name in FORMATS} == FORMATS


def test_no_screen_is_taken_for_a_part_of_a_cell(shared_data):
    assert {recognise(path) for path in (shared_data / "screens").iterdir()} == {None}


def test_nothing_but_a_feature_is_taken_for_one(shared_data):
    folders = ("screens", "networks", "genes", "annotations", "metabolism")
    paths = [path for folder in folders for path in (shared_data / folder).iterdir()]
    assert len(paths) > 15
    assert not [path.name for path in paths if features_table.recognise(path)]


@pytest.mark.parametrize(
    ("channel", "rows", "edges"),
    [
        ("neighborhood", 91_220, 45_610),
        ("database", 66_972, 33_486),
        ("cooccurence", 5_328, 2_664),
        ("fusion", 2_722, 1_361),
    ],
)
def test_string_channels(channel, rows, edges, shared_data):
    folder = shared_data / "networks"
    genes = Genes(string_genes.read(folder / "yeast_string_genes.txt"))
    assert len(genes) == 6_400
    found = relations_of(folder / f"yeast_string_{channel}_adjacency.txt.gz", genes)
    relation = found[f"string_{channel}"]
    assert relation.counts.read == rows
    assert relation.n_edges == edges
    assert relation.counts.dropped == {"other direction of an edge": edges}
    assert 0 < relation.weights.min() <= relation.weights.max() <= 1


def test_physical(shared_data):
    path = shared_data / "networks" / "4932.protein.physical.links.v12.0.txt.gz"
    relation = relations_of(path)["physical"]
    assert relation.counts.read == 352_606
    assert relation.n_edges == 176_303
    assert not relation.directed


def test_yeastract(shared_data):
    path = shared_data / "networks" / "yeastract_2020_edges.tsv.gz"
    relation = relations_of(path)["regulatory"]
    assert relation.counts.read == 178_837
    assert relation.counts.dropped == {"self loop": 143}
    assert relation.directed
    assert set(np.unique(relation.weights)) == {1, 2, 3}


def test_biogrid(shared_data):
    path = shared_data / "networks" / "biogrid_3.4.156_cocomplex_edges.tsv.gz"
    relation = relations_of(path)["biogrid"]
    assert relation.counts.read == 59_377
    assert relation.counts.dropped == {"self loop": 1_117}


def test_actions(shared_data):
    found = relations_of(shared_data / "networks" / "4932.protein.actions.v11.0.txt.gz")
    assert sum(relation.counts.read for relation in found.values()) == 769_028
    assert {name: relation.counts.read for name, relation in found.items()} == {
        "action_activation": 21_634,
        "action_binding": 211_170,
        "action_catalysis": 183_844,
        "action_expression": 546,
        "action_inhibition": 6_778,
        "action_ptmod": 6_394,
        "action_reaction": 338_662,
    }
    catalysis = found["action_catalysis"]
    assert catalysis.directed
    assert catalysis.counts.dropped == {"mirrored half of a directional row": 91_922}


def test_sgd(sgd):
    genes, source = sgd
    assert source.counts.read == 16_454
    assert source.notes["feature type ORF"] == 6_604
    assert len(genes) == source.counts.kept == 6_713
    assert genes.label(genes.index("ho")) == "YDL227C (HO)"
    ho = genes.index("HO")
    assert (genes.chromosome[ho], genes.start[ho] < genes.end[ho]) == ("4", True)
    assert genes.has_position.all()


def test_string_info(shared_data, sgd):
    path = shared_data / "genes" / "4932.protein.info.v12.0.txt.gz"
    genes, source = string_info.read(path)
    assert len(genes) == source.counts.read == 6_600
    assert genes.label(genes.index("HO")) == "YDL227C (HO)"


def test_every_network_resolves_on_the_names_of_sgd(shared_data, sgd):
    genes, _ = sgd
    folder = shared_data / "networks"
    for path in folder.iterdir():
        if recognise(path) in READERS:
            for relation in relations_of(path, genes).values():
                assert relation.counts.resolved == relation.counts.read


def test_yeast_gem(shared_data, sgd):
    genes, _ = sgd
    written = sbml.read(shared_data / "metabolism" / "yeast-GEM_9.0.2.xml.gz")
    metabolism, source = written.on(genes)
    assert source.counts.read == source.counts.kept == 1_161
    assert metabolism.n_reactions == 4_131
    assert metabolism.n_metabolites == 2_806
    assert metabolism.split().n_reactions == 7_122
    assert source.notes["pathways"] == 85
    with_pathway = [r for r, names in enumerate(metabolism.pathways) if names]
    assert len(with_pathway) == 1_891
    lactate = metabolism.reactions.index("r_0001")
    assert metabolism.pathways[lactate] == ("Pyruvate metabolism", "Sulfur metabolism")
    unnamed = {name for names in metabolism.pathways for name in names if name.startswith("sce")}
    assert len(unnamed) == 4


def test_the_evidence_of_the_fatty_acid_synthase(shared_data, sgd):
    genes, _ = sgd
    metabolism, _ = sbml.read(shared_data / "metabolism" / "yeast-GEM_9.0.2.xml.gz").on(genes)
    evidence = Evidence(Cell(genes, [], metabolism))
    fas = evidence.of_set([genes.index(name) for name in ("FAS1", "FAS2", "HO")])
    assert fas["pathways"] == ["Fatty acid biosynthesis"]
    assert fas["complexes"] == ["r_2140", "r_2141"]
    assert fas["links"] == fas["relations"] == []


def test_go_slim_is_three_annotations_and_every_row_is_accounted_for(shared_data):
    path = shared_data / "annotations" / "go_slim_mapping.tab.gz"
    assert recognise(path) == "go_slim"
    genes, _ = sgd_features.read(shared_data / "genes" / "SGD_features.tab.gz")
    found = [written.on(genes) for written in terms.read(path)]
    assert [annotation.name for annotation, _ in found] == [
        *("go_slim_process", "go_slim_function", "go_slim_component")
    ]
    assert sum(source.counts.read for _, source in found) == 41_830
    assert [len(annotation.terms) for annotation, _ in found] == [100, 42, 22]
    repair = found[0][0].genes_of("DNA repair")
    assert genes.index("RAD52") in repair
