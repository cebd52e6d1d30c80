"""Files of genes: SGD's features, STRING's names of proteins, and tables of any organism."""

import pytest

from deltacell.cell.readers.genes import GENE_READERS
from deltacell_dev.bench.faults import SAMPLES

READERS = {reader.name: reader for reader in GENE_READERS}


@pytest.mark.parametrize("name", READERS)
def test_a_file_of_genes_is_known_by_its_content_and_bad_rows_are_named(
    name,
    write,
    reader_of,
    refused,
):
    sample, separator = SAMPLES[name], "," if name == "gene_table" else "\t"
    for path in (write(sample, "any.dat"), write(sample, "any.txt.gz")):
        assert reader_of(path) == name
        genes, source = READERS[name].read(path)
        assert (genes.standard[0], source.into, source.counts.kept) == ("TFC3", "genes", len(genes))
    ragged = write(sample + sample.splitlines()[-1] + separator + "1\n")
    assert refused("bad-rows", lambda: READERS[name].read(ragged)).line == sample.count("\n") + 1


def test_protein_info_gives_standard_names(write):
    header = SAMPLES["string_info"].splitlines()[0] + "\n"
    rows = '4932.YAL001C\tTFC3\t1160\tSays "this"; and that\n4932.Q0010\tQ0010\t128\t\n'
    found, source = READERS["string_info"].read(write(header + rows + rows.lower()))
    assert (list(found), found.standard) == (["YAL001C", "Q0010"], ("TFC3", None))
    assert source.counts.dropped == {"gene given before": 2}


def sgd(sgdid, kind, systematic="", standard="", aliases="", chromosome="1", start="", stop=""):
    fields = [sgdid, kind, "", systematic, standard, aliases, "", "", chromosome, start, stop]
    return "\t".join([*fields, *[""] * 5])


SGD = [
    sgd("S000000001", "ORF", "YAL001C", "TFC3", "TSV115|FUN24", "1", "151166", "147594"),
    sgd("S000000002", "CDS", start="1", stop="2"),
    sgd("S000000003", "pseudogene", "YAL002W", "", "", "2", "10", "20"),
    sgd("S000000004", "transposable_element_gene", "YAR009C"),
    sgd("S000000006", "tRNA_gene", "tA(AGC)D", "", "", "4", "1", "2"),
    sgd("S000000008", "ORF"),
]


def test_sgd_features_are_genes_with_names_and_places(write):
    path = write("\n".join(SGD) + "\n", "SGD_features.tab.gz")
    genes, source = READERS["sgd_features"].read(path)
    assert list(genes) == ["YAL001C", "YAL002W", "YAR009C"]
    assert (genes.standard, genes.aliases[0]) == (("TFC3", None, None), ("TSV115", "FUN24"))
    assert genes.chromosome == ("1", "2", "1")
    assert (list(genes.start), list(genes.end)) == ([147594, 10, -1], [151166, 20, -1])
    dropped = {"feature type CDS": 1, "feature type tRNA_gene": 1, "no systematic name": 1}
    assert (source.counts.kept, source.counts.dropped) == (3, dropped)


@pytest.mark.parametrize(
    ("bad", "at"),
    [
        (sgd("SGDID", "type", "name"), 0),
        (sgd("x", "ORF", "YAL009W"), 3),
        (sgd("S000000009", "ORF", "YAL009W", start="near 5"), 2),
    ],
)
def test_sgd_features_with_a_bad_row(bad, at, write, refused):
    path = write("\n".join([*SGD[:at], bad, *SGD[at:]]) + "\n")
    assert refused("bad-rows", lambda: READERS["sgd_features"].read(path)).line == at + 1


def test_genes_of_any_organism(write):
    text = (
        "systematic_id\tgene_name\tsynonyms\tchromosome\tstart\tend\n"
        "SPAC644.14c\trad51\trhp51|x\tI\t2938500\t2937000\n"
        "\tx\t\tI\t1\t2\nSPAC644.14C\t\t\tI\t1\t2\nSPBC1\tNA\t\tII\t\t\n"
    )
    genes, source = READERS["gene_table"].read(write(text))
    assert genes.systematic == ("SPAC644.14c", "SPBC1")
    assert (genes.standard, genes.aliases) == (("rad51", None), (("rhp51", "x"), ()))
    assert (genes.start.tolist(), genes.end.tolist()) == ([2937000, -1], [2938500, -1])
    assert source.counts.dropped == {"no systematic name": 1, "gene given before": 1}
