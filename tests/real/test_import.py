"""The import of all real files, as a user types it."""

import numpy as np
import pytest
import torch

from deltacell.cell.readers.features import MERGED, NO_VALUE, reader
from deltacell.data.import_folder import Imported, import_folder
from deltacell.models.config import LARGEST_RELATION
from deltacell.models.gene_vectors import feature_vectors
from deltacell.ranking.evidence import Evidence
from deltacell.screen import Genotypes
from deltacell.train.config.compose import compose

pytestmark = [pytest.mark.real, pytest.mark.slow]


@pytest.fixture(scope="module")
def imported(shared_data):
    return import_folder(shared_data)


def test_the_cell_has_the_networks_of_the_experiments_and_every_name_resolves(imported):
    cell = imported.cell
    assert cell.relation("physical").n_edges == 176_303
    assert cell.relation("regulatory").counts.dropped["self loop"] == 143
    for relation in cell.relations.values():
        assert relation.counts.resolved == relation.counts.read
    assert set(compose(["experiment=costanzo2010_dango"]).data.relations) == set(cell.relations)
    for name in ("dango", "hetero"):
        for more in ([], ["ablation=one_relation"], ["ablation=string_merged"]):
            config = compose([f"experiment=costanzo2010_{name}", *more])
            chosen = cell.with_relations(config.data.relations or list(cell.relations))
            merged = chosen.merge_relations(config.data.merge_relations)
            gone = {old for parts in config.data.merge_relations.values() for old in parts}
            named = set(config.model.relations or ()) - {LARGEST_RELATION}
            assert named - gone <= set(merged.relations)


def test_yeast_gem_and_the_evidence_of_the_fatty_acid_synthase(imported):
    cell, metabolism = imported.cell, imported.cell.metabolism
    (source,) = [source for source in cell.sources if source.into == "metabolism"]
    assert source.counts.read == source.counts.kept == 1_161
    assert (metabolism.n_reactions, metabolism.n_metabolites) == (4_131, 2_806)
    assert metabolism.split().n_reactions == 7_122
    assert source.notes["pathways"] == 85
    assert sum(map(bool, metabolism.pathways)) == 1_891
    lactate = metabolism.reactions.index("r_0001")
    assert metabolism.pathways[lactate] == ("Pyruvate metabolism", "Sulfur metabolism")
    unnamed = {name for names in metabolism.pathways for name in names if name.startswith("sce")}
    assert len(unnamed) == 4
    in_rules = np.unique(metabolism.clause_genes).astype(np.int64)
    pairs = in_rules[np.stack(np.triu_indices(len(in_rules), 1), axis=1)]
    genotypes = Genotypes(torch.from_numpy(pairs.ravel()), torch.arange(len(pairs) + 1) * 2)
    reactions = np.diff(metabolism.lost_together(genotypes).offsets)
    lost = reactions > 0
    assert (lost.sum(), reactions.sum(), len(np.unique(pairs[lost]))) == (196, 414, 308)
    evidence = Evidence(cell.with_relations([]))
    sets = np.array([cell.genes.indices(["FAS1", "FAS2", "HO"])])
    fas = {name: column[0] for name, column in evidence.columns(sets).items()}
    assert fas["pathways"] == ["Fatty acid biosynthesis"]
    assert fas["complexes"] == ["r_2140", "r_2141"]
    assert fas["links"] == fas["relations"] == []


def test_single_mutant_fitness_is_the_same_from_both_of_its_files(imported, shared_data):
    feature = imported.cell.features["costanzo2016_single_mutant_fitness"]
    (source,) = [s for s in imported.cell.sources if s.into == feature.name]
    counts = source.counts
    assert (counts.read, counts.kept, counts.resolved) == (10_859, 5_458, 10_852)
    assert source.counts.dropped == {"unknown gene": 7, NO_VALUE: 582, MERGED: 4_812}
    left = imported.left_alone
    workbook = "features/costanzo2016_single_mutant_fitness.xlsx"
    assert source.file in left[workbook]
    other, counted = reader.read(shared_data / workbook, genes=imported.cell.genes)
    assert counted.counts == source.counts
    columns = [f"Single mutant fitness ({at}°){of}" for at in (26, 30) for of in ("", " stddev")]
    assert list(other.columns) == list(feature.columns) == columns
    assert np.allclose(other.values, feature.values, rtol=1e-5, equal_nan=True)
    tfc3 = feature.values[imported.cell.genes.index("YAL001C")]
    assert tfc3[0] == pytest.approx((0.9395 + 0.8658 + 0.8658) / 3)


def test_phenotype_profiles_are_kept_whole_with_what_is_missing(imported):
    feature = imported.cell.features["yeastphenome_z"]
    assert feature.width == 1_028
    assert int(feature.known.sum()) == 6_265
    assert 0.31 < feature.missing < 0.32
    vps8 = feature.values[imported.cell.genes.index("YAL002W")]
    assert vps8[:6].tolist() == pytest.approx([0, 0, 0, 0.01, 0.6, 0.06])
    tfc3 = feature.values[imported.cell.genes.index("YAL001C")]
    assert np.isnan(tfc3[:10]).all()
    assert tfc3[10] == pytest.approx(-0.07)
    vectors = feature_vectors(feature, 16)
    assert vectors.shape == (imported.cell.n_genes, 17)
    assert np.isfinite(vectors).all()


def test_every_file_is_read_by_its_reader_or_left_alone(imported):
    assert {source["reader"] for source in imported.account()["sources"]} == {
        *("sgd_features", "sbml", "features_table", "go_slim", "yeastract", "biogrid"),
        *("string_actions", "string_physical", "string_adjacency", "string_info"),
        *("costanzo2010", "costanzo2016", "kuzmin", "hits"),
    }
    assert {file for file in imported.left_alone if not file.startswith("traces/")} == {
        "README.md",
        "features/costanzo2016_single_mutant_fitness.xlsx",
        "networks/yeast_string_genes.txt",
    }


def test_imported_data_are_the_same_after_saving(imported, tmp_path):
    imported.save(tmp_path / "out")
    loaded = Imported.load(tmp_path / "out")
    assert loaded.cell.equals(imported.cell)
    assert all(loaded.screens[n].equals(s) for n, s in imported.screens.items())
    assert loaded.account() == imported.account()
