"""The import of the further studies, and the scale of the scores of all real screens."""

import numpy as np
import pytest

from deltacell.data.import_folder import import_folder
from deltacell.screen.outliers import beyond_any_scale, deviations_from_median

pytestmark = [pytest.mark.real, pytest.mark.slow]

HORLBECK = "gene1=g1,gene2=g2,score={}_rep_avg_gi"
FARTHEST_REAL = {
    "schuldiner2005_secretory_emap": 30.0,
    "collins2007_chromosome_emap": 23.9,
    "kuzmin2020_like_trigenic_tau_small": 22.0,
    "kuzmin_trigenic_tau_in_space": 16.2,
}


@pytest.fixture(scope="module")
def studies(shared_data):
    return import_folder(shared_data.parent / "studies", columns=[HORLBECK.format("k562")])


def test_every_study_is_read_and_the_table_of_linkage_left_alone(studies):
    linkage = "genes/sga_public_linkage_estimate_curated_160426.txt.gz"
    assert set(studies.left_alone) - {"README.md"} == {linkage}
    assert {name: len(screen) for name, screen in studies.screens.items()} == {
        "collins2007_chromosome_emap": 186_500,
        "horlbeck2018_gene_gi_scores": 100_128,
        "kuzmin2020_like_trigenic_tau_small": 10_432,
        "kuzmin_trigenic_tau_in_space": 4_746,
        "schuldiner2005_secretory_emap": 83_118,
    }


def test_the_triples_keep_their_split(studies):
    sets, parts = studies.splits["kuzmin_trigenic_tau_in_space"]
    assert len(sets) == 4_746
    numbers = {part: parts.count(part) for part in ("train", "validation", "test")}
    assert numbers == {"train": 3_841, "validation": 419, "test": 486}
    triples = studies.screens["kuzmin_trigenic_tau_in_space"]
    assert set(np.diff(triples.offsets)) == {3}


def test_complexes_have_the_genes_of_their_proteins(studies):
    annotation = studies.cell.annotations["complex_portal"]
    assert len(annotation.terms) == 620
    members = annotation.matrix[:, [annotation.terms.index("CST complex")]].nonzero()[0]
    assert [studies.cell.genes[gene] for gene in members] == ["CDC13", "STN1", "TEN1"]
    [source] = [s for s in studies.cell.sources if s.into == "complex_portal"]
    assert (source.counts.read, source.counts.kept) == (2_999, 2_986)


def test_no_score_of_a_real_screen_is_beyond_any_scale(studies, shared_data):
    jurkat = import_folder(
        shared_data.parent / "studies" / "screens",
        columns=[HORLBECK.format("jurkat")],
    )
    others = import_folder(shared_data)
    fitness = import_folder(shared_data / "screens", phenotype="fitness")
    for imported in (studies, jurkat, others, fitness):
        for name, screen in imported.screens.items():
            scores = screen.column("score")
            assert not beyond_any_scale(scores).any(), name
            known = scores[np.isfinite(scores)]
            if len(known):
                farthest = deviations_from_median(known).max()
                assert farthest == pytest.approx(FARTHEST_REAL.get(name, farthest), abs=0.1)
                assert farthest < 31, name
