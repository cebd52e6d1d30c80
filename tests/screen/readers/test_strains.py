"""What a strain ID and an allele name say."""

from __future__ import annotations

import polars as pl
import pytest

from deltacell.screen.readers.strains import crossed, parse_strains, perturbation_of


@pytest.mark.parametrize(
    ("strain", "allele", "genes", "perturbations"),
    [
        ("YKL051W+YDL227C_tm3059", "", ["YKL051W", "YDL227C"], ["deletion", "deletion"]),
        ("YKL051W+YDL227C_tm3059", "sfk1Δ+hoΔ", ["YKL051W", "YDL227C"], ["deletion", "deletion"]),
        ("YBL041W+YDL227C_tm2790", "pre7-5001+hoΔ", ["YBL041W", "YDL227C"], ["allele", "deletion"]),
        ("YBL041W+YHL002W_tm2", "cdc60-ts2+hse1delta", ["YBL041W", "YHL002W"], ["ts", "deletion"]),
        ("YDR108W_dma909", "trs85", ["YDR108W"], ["deletion"]),
        ("YOR106W_sn514", "vam3", ["YOR106W"], ["deletion"]),
        ("YBR087W_tsa887", "rfc5-1", ["YBR087W"], ["ts"]),
        ("YNR016C_tsq2276", "acc1-5009-supp1", ["YNR016C"], ["ts"]),
        ("YFL034C-B_tsa609", "mob2-11", ["YFL034C-B"], ["ts"]),
        ("YAL043C_damp", "PTA1_damp", ["YAL043C"], ["damp"]),
        ("YAL043C_damp5001", "", ["YAL043C"], ["damp"]),
        ("YBR282W_S253", "mrpl27-supp1", ["YBR282W"], ["allele"]),
        ("YAL063C", "", ["YAL063C"], ["deletion"]),
        ("YAL063C_new7", "flo9-3", ["YAL063C"], ["allele"]),
        ("YAL063C_new7", "flo9", ["YAL063C"], ["deletion"]),
        ("YAL063C_new7", "yal063c", ["YAL063C"], ["deletion"]),
    ],
)
def test_strain_tells_genes_and_perturbations(strain, allele, genes, perturbations):
    strains = parse_strains(pl.Series([strain]), pl.Series([allele]))
    assert strains.names.to_list() == genes
    assert strains.perturbation.to_list() == perturbations


def test_alleles_that_do_not_match_the_genes_are_left_out():
    strains = parse_strains(pl.Series(["A+B_tm1"]), pl.Series(["a-1"]))
    assert strains.allele.to_list() == ["", ""]


@pytest.mark.parametrize(
    ("allele", "perturbation"),
    [
        ("", "deletion"),
        ("ost3Δ", "deletion"),
        ("ost3∆", "deletion"),
        ("ygr174w-aΔ", "deletion"),
        ("iml3delta", "deletion"),
        ("rpl26a", "deletion"),
        ("arg5,6", "deletion"),
        ("yfl034c-b", "deletion"),
        ("act1-129", "allele"),
        ("SPP381-ph", "allele"),
        ("sec26-F856AW860A", "allele"),
        ("gaa1-ts", "ts"),
        ("nse5-ts4", "ts"),
        ("PTA1_damp", "damp"),
    ],
)
def test_allele_name_tells_perturbation(allele, perturbation):
    assert pl.select(perturbation_of(pl.lit(allele))).item() == perturbation


def test_crosses_put_the_query_genes_before_the_array_gene():
    query = parse_strains(pl.Series(["A+B_tm1", "C_sn2", "A+B_tm1"])).without("B")
    array = parse_strains(pl.Series(["D_tsa1", "D_tsa1", "E_dma3"]))
    crosses = crossed(query, array)
    assert crosses.names.to_list() == ["A", "D", "C", "D", "A", "E"]
    assert crosses.role.to_list() == ["query", "array"] * 3
    assert crosses.perturbation.to_list() == [
        *("deletion", "ts"),
        *("deletion", "ts"),
        *("deletion", "deletion"),
    ]
    assert crosses.offsets.tolist() == [0, 2, 4, 6]
