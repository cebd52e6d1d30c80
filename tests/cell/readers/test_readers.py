"""What holds of every format: how it is recognised, unpacked, and refused when broken."""

from __future__ import annotations

import gzip

import numpy as np
import pytest

from deltacell.cell.readers import EDGE_READERS, GENE_READERS, recognise, sbml, string_genes
from deltacell.errors import InputError

SAMPLES = {
    "string_adjacency": "1\t2\t0.5\n2\t1\t0.5\n",
    "string_detailed": (
        "protein1 protein2 neighborhood fusion cooccurence coexpression experimental database "
        "textmining combined_score\n"
        "4932.YAL001C 4932.YAL002W 0 0 0 120 0 900 300 910\n"
    ),
    "string_physical": "protein1 protein2 combined_score\n4932.YAL001C 4932.YAL002W 292\n",
    "string_actions": (
        "item_id_a\titem_id_b\tmode\taction\tis_directional\ta_is_acting\tscore\n"
        "4932.YAL001C\t4932.YAL002W\tbinding\t\tf\tf\t900\n"
    ),
    "biogrid": "orf1\torf2\nYAL001C\tYAL002W\n",
    "yeastract": (
        "tf_orf\ttarget_orf\tdna_binding\texpr_activator\texpr_inhibitor\n"
        "YAL001C\tYAL002W\t1\t0\t1\n"
    ),
    "tflink": (
        "UniprotID.TF\tUniprotID.Target\tNCBI.GeneID.TF\tNCBI.GeneID.Target\tName.TF\t"
        "Name.Target\tDetection.method\tPubmedID\tOrganism\tSource.database\t"
        "Small-scale.evidence\tTF.TFLink.ortho\tTF.nonTFLink.ortho\tTarget.TFLink.ortho\t"
        "Target.nonTFLink.ortho\n"
        "P1\tP2\t1\t2\tTFC3\tVPS8\tchip\t1\tS. cerevisiae\tX\tNo\t-\t-\t-\t-\n"
    ),
    "string_genes": "YAL001C\nYAL002W\nQ0010\n",
    "string_info": (
        "#string_protein_id\tpreferred_name\tprotein_size\tannotation\n"
        "4932.YAL001C\tTFC3\t1160\tLargest of six subunits\n"
    ),
    "gene_table": (
        "systematic_id\tgene_name\tsynonyms\tchromosome\tstart\tend\n"
        "SPAC644.14c\trad51\trhp51|x\tI\t2938500\t2937000\n"
    ),
    "sgd_features": (
        "S000000001\tORF\tVerified\tYAL001C\tTFC3\tTSV115|FUN24\tchromosome 1\tL1\t1\t151166\t"
        "147594\tC\t\t1996\t1996\tSubunit\n"
    ),
    "sbml": (
        '<?xml version="1.0" encoding="UTF-8"?>\n<sbml level="3" version="1">\n<model/>\n</sbml>\n'
    ),
}

READERS = {r.NAME: r for r in (*EDGE_READERS, *GENE_READERS, string_genes, sbml)}
# Name of the format, and the field of the last line of its sample that must be a number.
SCORES = {
    "string_adjacency": ("\t", 2),
    "string_detailed": (" ", 7),
    "string_physical": (" ", 2),
    "string_actions": ("\t", 6),
    "yeastract": ("\t", 2),
}


@pytest.fixture
def beside(write):
    """A gene list in the same folder, for the adjacency format."""
    return write(SAMPLES["string_genes"], "genes.txt")


def test_every_text_format_has_a_sample():
    assert set(SAMPLES) == set(READERS)


@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.parametrize("ending", [".txt", ".txt.gz", ".txt.zip"])
def test_a_file_is_recognised_by_its_content(name, ending, write):
    assert recognise(write(SAMPLES[name], "anything" + ending)) == name


@pytest.mark.parametrize("name", SAMPLES)
def test_no_two_formats_overlap(name):
    head = SAMPLES[name].splitlines()
    assert [o for o in READERS if READERS[o].recognise(head, "file.txt")] == [name]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n\n",
        "# A heading\n\nSome prose, which is not data. It goes on.\n",
        "sample,expression\nwater,0.5\nsalt,0.25\n",
        "YAL001C\tTFC3\tYBR266C\tSLM6\t-0.1071\t0.0184\t1.8780e-05\n",
        "orf1\torf2\torf3\tallele1\tallele2\tallele3\tn_rows\nYHL002W\tYBR107C\tYLR360W\ta\tb\tc\t1\n",
        "orf1\torf2\tallele1\tsign\nYFL039C\tYOR085W\tact1-129\tnegative\n",
        '{"a": 1}\n',
        "seed: 0\nname: x\n",
        "0.5\t0.25\n0.125\t1\n",
    ],
)
def test_other_text_is_not_recognised(text, write):
    assert recognise(write(text)) is None


def test_arrays_are_recognised_and_other_binaries_not(tmp_path):
    np.savez(tmp_path / "a.bin.npz", genes=np.array(["A"]), values=np.ones((1, 2)))
    assert recognise(tmp_path / "a.bin.npz") == "features_npz"
    (tmp_path / "noise.bin").write_bytes(bytes(range(256)) * 8)
    assert recognise(tmp_path / "noise.bin") is None


@pytest.mark.parametrize("name", [n for n in SAMPLES if n != "sbml"])
@pytest.mark.parametrize("ending", [".txt", ".txt.gz", ".txt.zip"])
def test_plain_and_packed_files_read_alike(name, ending, write, beside):
    def content(path):
        result = READERS[name].read(path)
        if name == "string_genes":
            return result
        if name in ("string_info", "sgd_features", "gene_table"):
            return result[0]
        return [(e.name.replace("packed", "plain"), list(e.source), list(e.target)) for e in result]

    plain = content(write(SAMPLES[name], "plain.dat"))
    assert content(write(SAMPLES[name], "packed" + ending)) == plain


@pytest.mark.parametrize("name", SAMPLES)
def test_empty_file(name, write, beside):
    for text in ("", "\n\n"):
        path = write(text, "empty.txt")
        with pytest.raises(InputError, match=r"empty\.txt: the file is empty"):
            READERS[name].read(path)


def test_genes_of_any_organism(write):
    text = SAMPLES["gene_table"] + "\tx\t\tI\t1\t2\nSPAC644.14C\t\t\tI\t1\t2\nSPBC1\tNA\t\tII\t\t\n"
    genes, source = READERS["gene_table"].read(write(text))
    assert genes.systematic == ("SPAC644.14c", "SPBC1")
    assert (genes.standard, genes.aliases) == (("rad51", None), (("rhp51", "x"), ()))
    assert (genes.start.tolist(), genes.end.tolist()) == ([2937000, -1], [2938500, -1])
    assert source.counts.dropped == {"no systematic name": 1, "gene given before": 1}
    with pytest.raises(InputError, match="'start' is not a number"):
        READERS["gene_table"].read(write(SAMPLES["gene_table"].replace("2938500", "far")))


@pytest.mark.parametrize("name", SAMPLES)
def test_truncated_gzip(name, tmp_path, beside):
    packed = gzip.compress(SAMPLES[name].encode())
    path = tmp_path / "cut.txt.gz"
    path.write_bytes(packed[:-12])
    with pytest.raises(InputError, match=r"cut\.txt\.gz: the gzip file is cut off or damaged"):
        READERS[name].read(path)


@pytest.mark.parametrize("name", [n for n in SAMPLES if n not in ("sbml", "string_genes")])
def test_wrong_number_of_columns(name, write, beside):
    separator = " " if name in ("string_detailed", "string_physical") else "\t"
    last = SAMPLES[name].splitlines()[-1]
    line = SAMPLES[name].count("\n") + 2
    for broken in (last + separator + "1", last.rsplit(separator, 1)[0]):
        path = write(f"{SAMPLES[name]}{last}\n{broken}\n", "broken.txt")
        with pytest.raises(InputError, match="columns where") as caught:
            READERS[name].read(path)
        assert caught.value.where == path
        assert caught.value.line == line


# An edge list may lack weights: its own tests say what becomes of such rows.
@pytest.mark.parametrize(
    ("name", "score"),
    [(name, score) for name in SCORES for score in ["high", "NaN", "nan", "", "inf"]],
)
def test_score_that_is_not_a_finite_number(name, score, write, beside):
    separator, column = SCORES[name]
    lines = SAMPLES[name].splitlines()
    fields = lines[-1].split(separator)
    fields[column] = score
    path = write("\n".join([*lines, "", separator.join(fields)]) + "\n", "bad.txt")
    with pytest.raises(InputError) as caught:
        READERS[name].read(path)
    assert caught.value.where == path
    assert caught.value.line == len(lines) + 2
    assert f"'{score}'" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "column"),
    [
        ("string_physical", 0),
        ("string_detailed", 1),
        ("string_actions", 1),
        ("biogrid", 1),
        ("yeastract", 0),
        ("tflink", 5),
    ],
)
def test_row_without_a_gene_name(name, column, write):
    separator = " " if name in ("string_detailed", "string_physical") else "\t"
    fields = SAMPLES[name].splitlines()[-1].split(separator)
    fields[column] = ""
    path = write(SAMPLES[name] + separator.join(fields) + "\n", "bad.txt")
    with pytest.raises(InputError, match="no gene name") as caught:
        READERS[name].read(path)
    assert caught.value.line == SAMPLES[name].count("\n") + 1


@pytest.mark.parametrize(
    "name",
    ["string_detailed", "string_physical", "string_actions", "biogrid", "yeastract", "tflink"],
)
def test_missing_header(name, write):
    rows = SAMPLES[name].splitlines()[1:]
    with pytest.raises(InputError, match="the header lacks") as caught:
        READERS[name].read(write("\n".join(rows) + "\n"))
    assert caught.value.line == 1
