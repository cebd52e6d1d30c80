from __future__ import annotations

from deltacell.cell.readers import relation_of, tflink

COLUMNS = [
    "UniprotID.TF",
    "UniprotID.Target",
    "NCBI.GeneID.TF",
    "NCBI.GeneID.Target",
    "Name.TF",
    "Name.Target",
    "Detection.method",
    "PubmedID",
    "Organism",
    "Source.database",
    "Small-scale.evidence",
    "TF.TFLink.ortho",
    "TF.nonTFLink.ortho",
    "Target.TFLink.ortho",
    "Target.nonTFLink.ortho",
]


def text_of(*pairs: tuple[str, str]) -> str:
    rows = [
        ["P1", "P2", "1", "2", factor, target, "chip", "1", "S. cerevisiae", "X", "No", *"----"]
        for factor, target in pairs
    ]
    return "".join("\t".join(row) + "\n" for row in [COLUMNS, *rows])


def test_directed_from_factor_to_target(write, genes):
    [edges] = tflink.read(write(text_of(("TFC3", "VPS8"), ("VPS8", "HO")), "tflink.tsv.gz"))
    relation, _ = relation_of(edges, genes)
    assert (relation.name, relation.directed) == ("tflink", True)
    assert sorted(zip(*(c.tolist() for c in relation.edges()), strict=True)) == [
        (0, 1, 1.0),
        (1, 3, 1.0),
    ]


def test_several_names_give_an_edge_each(write, genes):
    text = text_of(("TFC3", "VPS8;EFB1"), ("HO", "-"), ("VPS8 ; EFB1", "HO"))
    [edges] = tflink.read(write(text))
    assert list(zip(edges.source, edges.target, edges.lines.tolist(), strict=True)) == [
        ("TFC3", "VPS8", 2),
        ("TFC3", "EFB1", 2),
        ("VPS8", "HO", 4),
        ("EFB1", "HO", 4),
    ]
    relation, source = relation_of(edges, genes)
    assert relation.n_edges == 4
    assert source.counts.read == 5
    assert source.counts.dropped == {tflink.NO_NAME: 1}
    assert source.notes == {"rows in the file": 3}
