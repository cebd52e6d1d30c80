"""The real screens, with exact counts."""

from functools import cache

import numpy as np
import polars as pl
import pytest

from deltacell.base.errors import PhenotypeError

pytestmark = pytest.mark.real

FILES = {
    "kuzmin2018_digenic_hits.tsv.gz": 14_090,
    "kuzmin2018_fitness_slice.tsv.gz": 15_095,
    "kuzmin2018_trigenic_negative_hits.tsv": 3_195,
    "sample_SGA_ExE.txt": 50,
    "sample_SGA_ExN_NxE.txt": 50,
    "sample_SGA_NxN.txt": 50,
}


def perturbations(written, role):
    mine = written.deleted.filter(pl.col("role") == role)
    return dict(mine["perturbation"].value_counts().iter_rows())


@pytest.fixture(scope="module")
def screen_of(read):
    return cache(lambda name, **options: read(f"screens/{name}", **options)[0])


@pytest.mark.parametrize("name", FILES)
def test_every_file_is_read_whole(screen_of, genes, name):
    written = screen_of(name)
    assert len(written) == written.on(genes, "drop").sources[0].counts.read == FILES[name]
    assert not sum(written.dropped.values())


def test_costanzo_2010_with_unknown_genes_left_out_or_added(costanzo2010, genes):
    screen = costanzo2010.on(genes, "drop")
    (source,) = screen.sources
    assert source.notes == {
        "distinct_sets_as_written": 165_947,
        "genes_as_written": 4_414,
        "distinct_sets": 165_692,
        "genes": 4_385,
        # ORFs that SGD merged away and keeps no alias for.
        "unknown_genes": "YCL006C, YAR043C, YCL026C, YCL013W",
    }
    assert source.counts.to_json() == {
        "read": 191_309,
        "resolved": 191_207,
        "kept": 191_207,
        "dropped": {"unknown gene": 102},
    }
    stats = screen.stats()
    assert (stats["distinct_genotypes"], stats["genes"]) == (165_590, 4_381)
    assert np.abs(screen.column("score")).min() >= np.float32(0.08)
    assert screen.column("p_value").max() <= 0.05
    assert screen.column("source_row")[0] == 1
    (coverage,) = screen.coverage.studies
    assert not coverage.complete
    role, gene = screen.column("role"), screen.genotypes.genes.numpy()
    assert np.isin(gene[role == "query"], coverage.query_genes).all()
    assert np.isin(gene[role == "array"], coverage.array_genes).all()
    index = genes.resolve(costanzo2010.gene_names)
    added = [n for n, i in zip(costanzo2010.gene_names, index, strict=True) if i < 0]
    screen = costanzo2010.on(genes.extended(added))
    stats = screen.stats()
    assert (len(screen), stats["distinct_genotypes"], stats["genes"]) == (191_309, 165_692, 4_385)
    queries = {"deletion": 145_905, "ts": 32_625, "damp": 12_779}
    assert perturbations(costanzo2010, "query") == queries
    assert perturbations(costanzo2010, "array") == {"deletion": 191_309}
    assert len(screen.merge("best-p")) == 165_692


def test_kuzmin_slice_has_61_true_triples(screen_of, genes):
    screen = screen_of("kuzmin2018_fitness_slice.tsv.gz").on(genes)
    stats = screen.stats()
    assert stats["kinds"] == {"digenic": 15_034, "trigenic": 61}
    assert stats["phenotypes"] == {"fitness": 15_095}
    assert stats["studies"] == {"kuzmin2018": 15_095}
    assert stats["perturbations"] == {"deletion": 28_165, "ts": 2_086}
    first = screen.take([0]).to_polars().row(0, named=True)
    assert first["genes"] == ["YKL051W", "YDR108W"]
    assert first["roles"] == ["query", "array"]
    assert first["source_row"] == 2
    assert first["score"] == pytest.approx(0.835)
    assert first["standard_deviation"] == pytest.approx(0.0464)
    assert "YDL227C" not in {genes[i] for i in screen.genotypes.genes.unique().tolist()}
    # A part of the rows is not taken for all that was crossed.
    assert [c.complete for c in screen.coverage.studies] == [False]
    with pytest.raises(PhenotypeError):
        screen_of("kuzmin2018_fitness_slice.tsv.gz", phenotype="interaction")


def test_hits(screen_of, genes):
    trigenic = screen_of("kuzmin2018_trigenic_negative_hits.tsv").on(genes)
    assert trigenic.stats()["kinds"] == {"trigenic": 3_195}
    assert set(trigenic.column("sign")) == {-1}
    digenic = screen_of("kuzmin2018_digenic_hits.tsv.gz").on(genes)
    signs = dict(zip(*np.unique(digenic.column("sign"), return_counts=True), strict=True))
    assert signs == {-1: 9_090, 0: 4, 1: 4_996}
    assert np.isnan(digenic.column("score")).all()
    assert set(digenic.column("role")) == {"unknown"}
    alleles = digenic.column("allele")
    deleted = digenic.column("perturbation") == "deletion"
    assert deleted.tolist() == [a.endswith("Δ") for a in alleles]


@pytest.mark.parametrize(
    ("name", "query", "array"),
    [
        ("sample_SGA_NxN.txt", {"deletion": 48, "allele": 2}, {"deletion": 50}),
        ("sample_SGA_ExE.txt", {"ts": 50}, {"ts": 50}),
        ("sample_SGA_ExN_NxE.txt", {"deletion": 13, "ts": 37}, {"deletion": 37, "ts": 13}),
    ],
)
def test_sga_samples_have_the_right_perturbations(screen_of, name, query, array):
    written = screen_of(name)
    for role, expected in (("query", query), ("array", array)):
        assert perturbations(written, role) == expected
    assert written.study == "costanzo2016"
    assert written.rows["score"].is_finite().all()
    assert written.rows["line"].to_list() == list(range(2, 52))
