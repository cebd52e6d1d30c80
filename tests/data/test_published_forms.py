"""Tables of human screens as their programs write them, with several conditions in each."""

import numpy as np
import pytest

from deltacell.data.import_folder import import_folder

GENES = ["BRCA1", "HLA-A", "NKX2-5", "MAPK1", "TP53"]
PAIRS = [(a, b) for i, a in enumerate(GENES) for b in GENES[i + 1 :]]
SCORES = np.round(np.random.default_rng(0).normal(0, 1, (len(PAIRS), 2)), 3)
NETWORK = "gene1\tgene2\tweight\n" + "".join(f"{a}\t{b}\t0.5\n" for a, b in PAIRS[:4])


def table(header, row):
    lines = [row(a, b, *scores) for (a, b), scores in zip(PAIRS, SCORES, strict=True)]
    return "\n".join([header, *lines, ""])


WIDE = {
    "zdlfc.csv": table("GENE,A549.zdLFC,HT29.zdLFC", lambda a, b, x, y: f"{a}_{b},{x},{y}"),
    "gemini.csv": table('"","A549","HT29"', lambda a, b, x, y: f'"{a};{b}",{x},{y}'),
    "orthrus.tsv": table(
        "gene1\tgene2\tdifferential_combn_vs_single_A549\tpval1_A549\tfdr1_A549\t"
        "differential_combn_vs_single_HT29\tpval1_HT29\tfdr1_HT29",
        lambda a, b, x, y: f"{a}\t{b}\t{x}\t0.1\t0.2\t{y}\t0.3\t0.4",
    ),
    "chymera.csv": table(
        "Gene1,Gene2,A549_GI_score,A549_GI_FDR,HT29_GI_score,HT29_GI_FDR",
        lambda a, b, x, y: f"{a},{b},{x},0.1,{y},0.2",
    ),
    "shen2017.csv": table("geneA,geneB,A549 pi,HT29 pi", lambda a, b, x, y: f"{a},{b},{x},{y}"),
    "horlbeck2018.csv": table(
        "g1,g2,A549_rep_avg_gi,HT29_rep_avg_gi", lambda a, b, x, y: f"{a},{b},{x},{y}"
    ),
    "long.csv": table(
        "Gene 1,Gene 2,cell line,score",
        lambda a, b, x, y: f"{a},{b},A549,{x}\n{a},{b},HT29,{y}",
    ),
}


def imported(folder, *columns, network=True, **files):
    folder.mkdir()
    for name, text in files.items():
        (folder / name).write_text(text, "utf-8")
    if network:
        (folder / "network.tsv").write_text(NETWORK)
    return import_folder(folder, columns=columns)


def scores_of(screen):
    names = [screen.genes[gene] for gene in screen.genotypes.genes.tolist()]
    sets = [frozenset(pair) for pair in zip(names[::2], names[1::2], strict=True)]
    return dict(zip(sets, screen.column("score").tolist(), strict=True))


@pytest.mark.parametrize("name", WIDE)
def test_each_condition_is_a_screen_and_none_is_averaged(tmp_path, name):
    # Names of genes have dashes, so pairs joined by a mark need a list of genes.
    listed = "symbol,name\n" + "".join(f"{gene},about {gene}\n" for gene in GENES)
    study = name.split(".")[0]
    result = imported(tmp_path / "in", **{name: WIDE[name], "genes.csv": listed})
    assert list(result.screens) == [f"{study}_A549", f"{study}_HT29"]
    for number, screen in enumerate(result.screens.values()):
        expected = {frozenset(pair): row[number] for pair, row in zip(PAIRS, SCORES, strict=True)}
        assert scores_of(screen) == pytest.approx(expected, abs=1e-6)
    [note] = [note for note in result.notes if "conditions" in note]
    assert "--condition A549" in note


@pytest.mark.parametrize("mark", ["_", "|", ";", "-"])
def test_the_command_that_is_suggested_reads_pairs_in_one_column(tmp_path, mark, refused):
    pairs = [(a, b) for a, b in PAIRS if "-" not in a + b]
    text = "pair,score\n" + "".join(f"{a}{mark}{b},0.5\n" for a, b in pairs)
    error = refused("bad-rows", imported, tmp_path / "one", network=False, **{"a.csv": text})
    [told] = [part for part in str(error).split('"') if part.startswith("genes=")]
    result = imported(tmp_path / "two", told, network=False, **{"a.csv": text})
    assert set(scores_of(result.screens["a"])) == {frozenset(pair) for pair in pairs}


def test_the_user_names_the_scores_of_conditions(tmp_path):
    text = table("first,second,in PC9,in HeLa", lambda a, b, x, y: f"{a},{b},{x},{y}")
    columns = "gene1=first,gene2=second,score1=in PC9,score2=in HeLa"
    result = imported(tmp_path / "in", columns, **{"a.csv": text})
    assert list(result.screens) == ["a_HeLa", "a_PC9"]


@pytest.mark.parametrize(
    ("header", "row"),
    [
        ("gene1,gene2,T0_reads,T21_reads", "{},{},10,20"),
        ("gene1,gene2,plasmid count,RepA count", "{},{},10,20"),
        ("gene1,gene2,p-value,FDR", "{},{},0.5,0.7"),
        ("gene1,gene2,gene3", "{},{},TP53"),
    ],
)
def test_counts_p_values_and_hits_without_a_score_are_no_screen(tmp_path, header, row):
    pairs = [pair for pair in PAIRS if "TP53" not in pair]
    text = "\n".join([header, *(row.format(*pair) for pair in pairs), ""])
    result = imported(tmp_path / "in", **{"a.csv": text})
    assert not result.screens
    assert "no score" in result.left_alone["a.csv"]


def test_replicates_are_not_conditions(tmp_path, refused):
    text = table("gene1,gene2,A549_rep1_GI,A549_rep2_GI", lambda a, b, x, y: f"{a},{b},{x},{y}")
    refused("unknown-columns", imported, tmp_path / "in", **{"a.csv": text})


def test_the_diagonal_of_a_matrix_is_as_long_as_the_matrix(tmp_path):
    # Two rows and columns are alleles of one gene: their fields are no diagonal.
    names = ["YAL001C", "YAL002W_tsq1", "YAL002W_tsq2", "YAL003W"]
    rows = [
        ",".join([a, *(f"{0.1 * (i + j)}" for j, _ in enumerate(names))])
        for i, a in enumerate(names)
    ]
    text = "\n".join([",".join(["", *names]), *rows, ""])
    result = imported(tmp_path / "in", network=False, **{"m.csv": text})
    dropped = result.screens["m"].sources[0].counts.dropped
    assert dropped["diagonal of the matrix"] == 4
    assert dropped["two rows or columns of one gene"] == 2


def test_the_note_on_a_screen_counts_the_genotypes_that_were_kept(tmp_path):
    text = "gene1,gene2,score\nBRCA1,TP53,0.5\nBRCA1,nobody,0.5\nBRCA1,BRCA1,0.1\n"
    genes = "systematic name,standard name,aliases\nBRCA1,,x\nTP53,,y\n"
    result = imported(tmp_path / "in", network=False, **{"a.csv": text, "genes.csv": genes})
    assert len(result.screens["a"]) == 1
    assert any("a screen of 1 genotype" in note for note in result.notes)


def test_names_of_a_second_file_of_genes_are_aliases(tmp_path):
    genes = "systematic name,standard name,aliases\nYAL001C,TFC3,FUN24\nYAL002W,VPS8,\n"
    info = (
        "#string_protein_id\tpreferred_name\tprotein_size\tannotation\n"
        "4932.YAL001C\tNEW1\t10\tx\n4932.YAL002W\tTFC3\t10\ty\n"
    )
    text = "gene1,gene2,score\nNEW1,VPS8,0.5\nFUN24,TFC3,0.25\n"
    files = {"genes.csv": genes, "4932.info.txt": info, "a.csv": text}
    result = imported(tmp_path / "in", network=False, **files)
    assert result.cell.genes.index("fun24") == result.cell.genes.index("YAL001C")
    # A name that is known stays what it was.
    assert result.cell.genes.index("TFC3") == result.cell.genes.index("YAL002W")
    assert len(result.screens["a"]) == 2
