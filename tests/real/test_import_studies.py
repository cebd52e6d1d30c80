"""The import of the further studies, and the scale of the scores of all real screens."""

import numpy as np
import pytest

from deltacell.data.import_folder import import_folder
from deltacell.evaluation.hits import positives
from deltacell.screen.hit_rule import HitOrigin
from deltacell.screen.outliers import beyond_any_scale, deviations_from_median

pytestmark = [pytest.mark.real, pytest.mark.slow]

HORLBECK = "gene1=g1,gene2=g2,score={}_rep_avg_gi"
FARTHEST_REAL = {
    "schuldiner2005_secretory_emap": 30.0,
    "collins2007_chromosome_emap": 23.9,
    "kuzmin2020": 22.0,
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
        "kuzmin2020": 10_432,  # named for the form of its columns
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


def test_hits_are_those_of_each_study_and_few_pairs_of_schuldiner_2005_are_low(studies):
    rules = {name: screen.hit_rule for name, screen in studies.screens.items()}
    s_scores = ("collins2007_chromosome_emap", "schuldiner2005_secretory_emap")
    for name in (*s_scores, "horlbeck2018_gene_gi_scores"):
        assert (rules[name].low, rules[name].high) == (-2.5, 2.0)
        assert rules[name].origin is HitOrigin.S_SCALE
    for name in ("kuzmin2020", "kuzmin_trigenic_tau_in_space"):
        assert (rules[name].low, rules[name].high) == (-0.08, 0.08)
    low_share = {}
    for name in s_scores:
        screen = studies.screens[name]
        labels = positives(screen, np.arange(len(screen)), screen.hit_rule)
        low_share[name] = labels.facts.positives / labels.facts.rows
    # As the source describes them: 3.3 % of Schuldiner 2005.
    assert low_share["schuldiner2005_secretory_emap"] == pytest.approx(0.033, abs=0.002)
    assert low_share["collins2007_chromosome_emap"] < 0.07


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
