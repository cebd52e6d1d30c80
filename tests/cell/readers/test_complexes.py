"""Tables of the Complex Portal: complexes, their proteins, and the genes of these."""

import polars as pl
import pytest

from deltacell.cell import Genes
from deltacell.cell.readers.terms import NO_PROTEIN
from deltacell.data.import_folder import READERS, import_folder
from deltacell.storage.provenance import UNKNOWN_GENE
from deltacell.storage.tables import File

IDENTIFIERS = "Identifiers (and stoichiometry) of molecules in complex"
HEADER = ("#Complex ac", "Recommended name", IDENTIFIERS, "Description")
# Prose with the words of a screen's header, as some descriptions have.
PROSE = "a complex of genes whose interaction was measured"
ROWS = (
    ("CPX-15", "CST complex", "P32797(1)|P38960-2(0)|CHEBI:58937(1)", PROSE),
    ("CPX-2", "ribosome", "[P0CX84,P0CX85](1)|P02309-PRO_0000006127(2)|CPX-15(1)", "-"),
    ("CPX-3", "RNA", "URS00001CAAE9_559292(1)|P99999(1)", "genes interaction"),
)
TFLINK = (
    ("UniprotID.TF", "UniprotID.Target", "Name.TF", "Name.Target"),
    ("P32797", "P38960", "CDC13", "STN1"),
    ("P0CX84", "P02309", "RPL35A", "HHF1;HHF2"),
    ("P0CX85", "-", "RPL35B", "CDC13"),
)


def tabs(*rows):
    return "".join("\t".join(row) + "\n" for row in rows)


@pytest.fixture
def written(write):
    file = File(write(tabs(HEADER, *ROWS), "complexes.tsv"))
    reader = next(reader for reader in READERS if reader.find(file))
    assert reader.name == "complex_portal"
    [written] = reader.read(file.path)
    return written


def test_the_members_of_a_complex_are_its_proteins(written):
    kept = written.rows.filter(pl.col("why").is_null())
    assert kept.select("gene", "id").rows() == [
        ("P32797", "CPX-15"),
        ("P38960", "CPX-15"),
        ("P0CX84", "CPX-2"),
        ("P0CX85", "CPX-2"),
        ("P02309", "CPX-2"),
        ("P99999", "CPX-3"),
    ]
    assert written.rows["why"].drop_nulls().to_list() == [NO_PROTEIN] * 3


def test_a_protein_of_several_genes_gives_each_and_names_of_genes_come_first(written):
    genes = Genes(["CDC13", "STN1", "HHF1", "HHF2"], aliases=[(), (), (), ("P0CX84",)])
    proteins = pl.DataFrame(
        {
            "protein": ["P32797", "P02309", "P02309", "P0CX84"],
            "gene": ["CDC13", "HHF1", "HHF2", "STN1"],
        },
    )
    annotation, source = written.on(genes, "drop", proteins)
    assert annotation.terms == ("CST complex", "ribosome")
    assert annotation.ids == ("CPX-15", "CPX-2")
    assert annotation.matrix.toarray().tolist() == [
        [True, False],
        [False, False],
        [False, True],
        [False, True],
    ]
    counts = source.counts
    assert (counts.read, counts.kept) == (10, 3)
    assert counts.dropped[UNKNOWN_GENE] == 3
    assert counts.dropped[NO_PROTEIN] == 3


def test_an_import_takes_the_genes_of_proteins_from_tflink(tmp_path):
    (tmp_path / "complexes.tsv").write_text(tabs(HEADER, *ROWS))
    (tmp_path / "edges.csv").write_text("gene1,gene2,weight\nYAL001C,YAL002W,1\n")
    alone = import_folder(tmp_path)
    assert not alone.cell.annotations
    assert "'P32797'" in alone.left_alone["complexes.tsv"]
    (tmp_path / "tflink.tsv").write_text(tabs(*TFLINK))
    found = import_folder(tmp_path)
    assert not found.left_alone
    annotation = found.cell.annotations["complex_portal"]
    members = annotation.matrix.toarray()
    named = [
        {found.cell.genes.label(gene) for gene in members[:, term].nonzero()[0]}
        for term in range(len(annotation.terms))
    ]
    assert named == [{"CDC13", "STN1"}, {"RPL35A", "RPL35B", "HHF1", "HHF2"}]
