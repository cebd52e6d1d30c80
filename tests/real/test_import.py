"""The import of all real files, as a user types it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from deltacell.cell.readers import features_table
from deltacell.cell.readers.features import MERGED, NO_VALUE
from deltacell.models.gene_vectors import feature_vectors
from deltacell.screen.import_folder import Imported, import_folder


@pytest.fixture(scope="module")
def imported(shared_data: Path) -> Imported:
    return import_folder(shared_data)


@pytest.mark.real
def test_every_row_of_every_file_is_accounted_for(imported: Imported) -> None:
    sources = imported.account()["sources"]
    assert len(sources) >= 20
    for source in sources:
        counts = source["counts"]
        assert counts["read"] == counts["kept"] + sum(counts["dropped"].values())


@pytest.mark.real
def test_the_cell_has_the_networks_and_the_metabolism(imported: Imported) -> None:
    cell = imported.cell
    assert cell.relation("physical").n_edges == 176_303
    assert cell.relation("regulatory").counts.dropped["self loop"] == 143
    assert cell.metabolism is not None
    assert (cell.metabolism.n_reactions, cell.metabolism.n_metabolites) == (4_131, 2_806)
    assert cell.metabolism.split().n_reactions == 7_122


@pytest.mark.real
def test_costanzo2010_counts_before_and_after_aliases(imported: Imported) -> None:
    (source,) = imported.screens["costanzo2010"].sources
    assert source.counts.read == 191_309
    assert source.notes["distinct_sets_as_written"] == 165_947
    assert source.notes["genes_as_written"] == 4_414
    assert (source.notes["distinct_sets"], source.notes["genes"]) == (165_692, 4_385)


@pytest.mark.real
def test_the_kuzmin_slice_has_61_triples(imported: Imported) -> None:
    fitness = imported.screens["kuzmin2018"].where(phenotype="fitness")
    assert fitness.stats()["kinds"]["trigenic"] == 61


@pytest.mark.real
def test_single_mutant_fitness_is_the_same_from_both_of_its_files(
    imported: Imported, shared_data: Path
) -> None:
    feature = imported.cell.features["costanzo2016_single_mutant_fitness"]
    (source,) = [s for s in imported.cell.sources if s.into == feature.name]
    assert (source.counts.read, source.counts.kept, source.counts.resolved) == (
        *(10_859, 5_458, 10_852),
    )
    assert source.counts.dropped == {"unknown gene": 7, NO_VALUE: 582, MERGED: 4_812}
    left = {entry.file: entry.why for entry in imported.left_alone}
    workbook = "features/costanzo2016_single_mutant_fitness.xlsx"
    assert source.file in left[workbook]
    other, counted = features_table.read(shared_data / workbook, imported.cell.genes)
    assert counted.counts == source.counts
    assert (
        other.columns
        == feature.columns
        == (
            *("Single mutant fitness (26°)", "Single mutant fitness (26°) stddev"),
            *("Single mutant fitness (30°)", "Single mutant fitness (30°) stddev"),
        )
    )
    assert np.allclose(other.values, feature.values, rtol=1e-5, equal_nan=True)
    tfc3 = feature.values[imported.cell.genes.index("YAL001C")]
    assert tfc3[0] == pytest.approx((0.9395 + 0.8658 + 0.8658) / 3)


@pytest.mark.real
def test_phenotype_profiles_are_kept_whole_with_what_is_missing(imported: Imported) -> None:
    feature = imported.cell.features["yeastphenome_z"]
    assert feature.width == 1_028
    assert int(feature.known.sum()) == 6_265
    assert 0.31 < feature.missing < 0.32
    vps8 = feature.values[imported.cell.genes.index("YAL002W")]
    assert vps8[:6].tolist() == pytest.approx([0, 0, 0, 0.01, 0.6, 0.06])
    tfc3 = feature.values[imported.cell.genes.index("YAL001C")]
    assert np.isnan(tfc3[:10]).all()
    assert tfc3[10] == pytest.approx(-0.07)
    vectors = feature_vectors([feature], 16)
    assert vectors.shape == (imported.cell.n_genes, 17)
    assert np.isfinite(vectors).all()


@pytest.mark.real
def test_traces_and_notes_are_left_alone(imported: Imported) -> None:
    left = {entry.file for entry in imported.left_alone}
    assert "README.md" in left
    assert any(file.startswith("traces/") for file in left)


@pytest.mark.real
def test_what_is_imported_is_the_same_after_saving(imported: Imported, tmp_path: Path) -> None:
    imported.save(tmp_path / "out")
    loaded = Imported.load(tmp_path / "out")
    assert loaded.cell.equals(imported.cell)
    assert all(loaded.screens[n].equals(s) for n, s in imported.screens.items())
    assert loaded.account() == imported.account()


@pytest.mark.real
def test_edges_before_aliases_made_one_of_some_are_told(imported: Imported) -> None:
    notes = {source.into: source.notes for source in imported.cell.sources}
    assert notes["string_neighborhood"]["edges_as_written"] == 45_610
    assert notes["string_fusion"]["edges_as_written"] == 1_361
    assert "edges_as_written" not in notes["string_database"]
