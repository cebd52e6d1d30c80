"""How every text format is recognised, unpacked and read, and refused when broken."""

from __future__ import annotations

import gzip
import hashlib

import numpy as np
import pytest

from deltacell.bench.faults_corpus import SAMPLES as ALL_SAMPLES
from deltacell.cell.readers import (
    EDGE_READERS,
    GENE_READERS,
    recognise,
    relation_of,
    sbml,
    string_genes,
)
from deltacell.errors import InputError

READERS = {r.NAME: r for r in (*EDGE_READERS, *GENE_READERS, string_genes, sbml)}
XML = '<?xml version="1.0" encoding="UTF-8"?>\n<sbml level="3" version="1">\n<model/>\n</sbml>\n'
SAMPLES = {name: ALL_SAMPLES.get(name, XML) for name in READERS}
# The field of the last line of a sample that must be a number, and one that must be a name.
SCORES = {
    "string_adjacency": 2,
    "string_detailed": 7,
    "string_physical": 2,
    "string_actions": 6,
    "yeastract": 2,
}
NAMES = {
    "string_physical": 0,
    "string_detailed": 1,
    "string_actions": 1,
    "biogrid": 1,
    "yeastract": 0,
    "tflink": 5,
}


def separator_of(name):
    spaced = name in ("string_detailed", "string_physical")
    return " " if spaced else "," if name == "gene_table" else "\t"


def read(name, path):
    return READERS[name].read(path)


def refused(name, path, code, line=None):
    with pytest.raises(InputError) as caught:
        read(name, path)
    assert (caught.value.code, caught.value.where, caught.value.line) == (code, path, line)


def edges_of(relation):
    return sorted(zip(*(column.tolist() for column in relation.edges()), strict=True))


@pytest.fixture
def beside(write):
    """A gene list in the same folder, for the adjacency format."""
    return write(SAMPLES["string_genes"], "genes.txt")


@pytest.mark.parametrize("name", SAMPLES)
def test_a_file_is_recognised_by_its_content_plain_or_packed(name, write, beside):
    def content(path):
        found = read(name, path)
        if name == "string_genes":
            return found
        if READERS[name] in GENE_READERS:
            return found[0]
        return [(list(e.source), list(e.target)) for e in found]

    paths = [write(SAMPLES[name], f"any{end}") for end in (".dat", ".txt.gz", ".txt.zip")]
    assert [recognise(path) for path in paths] == [name] * 3
    head = SAMPLES[name].splitlines()
    assert [o for o in READERS if READERS[o].recognise(head, "file.txt")] == [name]
    if name != "sbml":
        paths[0].rename(paths[0].with_name("alone.dat"))
        assert content(paths[0].with_name("alone.dat")) == content(paths[1]) == content(paths[2])


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n\n",
        "# A heading\n\nSome prose, which is not data. It goes on.\n",
        "sample,expression\nwater,0.5\nsalt,0.25\n",
        "YAL001C\tTFC3\tYBR266C\tSLM6\t-0.1071\t0.0184\t1.8780e-05\n",
        "orf1\torf2\tallele1\tsign\nYFL039C\tYOR085W\tact1-129\tnegative\n",
        '{"a": 1}\n',
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


@pytest.mark.parametrize("name", SAMPLES)
def test_empty_and_truncated_files(name, write, tmp_path, beside):
    for text in ("", "\n\n"):
        code = "missing-columns" if name == "gene_table" else "empty-file"
        refused(name, write(text, "empty.txt"), code)
    cut = tmp_path / "cut.txt.gz"
    cut.write_bytes(gzip.compress(SAMPLES[name].encode())[:-12])
    refused(name, cut, "unreadable")


@pytest.mark.parametrize("name", [n for n in SAMPLES if n not in ("sbml", "string_genes")])
def test_wrong_number_of_columns(name, write, beside):
    separator, last = separator_of(name), SAMPLES[name].splitlines()[-1]
    line = SAMPLES[name].count("\n") + 2
    for broken in (last + separator + "1", last.rsplit(separator, 1)[0]):
        path = write(f"{SAMPLES[name]}{last}\n{broken}\n", "broken.txt")
        refused(name, path, "wrong-width", line)


@pytest.mark.parametrize("score", ["high", "NaN", "", "inf"])
@pytest.mark.parametrize("name", SCORES)
def test_a_score_that_is_not_a_finite_number(name, score, write, beside):
    lines = SAMPLES[name].splitlines()
    fields = lines[-1].split(separator_of(name))
    fields[SCORES[name]] = score
    path = write("\n".join([*lines, "", separator_of(name).join(fields)]) + "\n", "bad.txt")
    refused(name, path, "bad-field" if name == "yeastract" else "not-a-number", len(lines) + 2)


@pytest.mark.parametrize("name", NAMES)
def test_a_row_without_a_gene_name_and_a_file_without_a_header(name, write):
    lines = SAMPLES[name].splitlines()
    fields = lines[-1].split(separator_of(name))
    fields[NAMES[name]] = ""
    path = write(SAMPLES[name] + separator_of(name).join(fields) + "\n", "bad.txt")
    refused(name, path, "bad-field", len(lines) + 1)
    refused(name, write("\n".join(lines[1:]) + "\n"), "missing-columns", 1)


def test_biogrid_is_undirected_without_weights(write, genes):
    [edges] = read("biogrid", write("orf1\torf2\nYAL001C\tYAL002W\nYAL003W\tYAL003W\n"))
    relation, source = relation_of(edges, genes)
    assert (relation.name, relation.directed) == ("biogrid", False)
    assert edges_of(relation) == [(0, 1, 1.0)]
    assert source.counts.dropped == {"self loop": 1}


def test_yeastract_is_directed_and_weighted_by_its_evidence(write, genes):
    header = "tf_orf\ttarget_orf\tdna_binding\texpr_activator\texpr_inhibitor\n"
    rows = ["YAL001C\tYAL002W\t1\t0\t1", "YAL002W\tYAL001C\t0\t1\t0", "YAL003W\tYAL003W\t1\t1\t1"]
    text = header + "\n".join([*rows, "YAL003W\tYAL001C\t0\t0\t0"]) + "\n"
    [edges] = read("yeastract", write(text))
    relation, source = relation_of(edges, genes)
    assert (relation.name, relation.directed) == ("regulatory", True)
    assert edges_of(relation) == [(0, 1, 2.0), (1, 0, 1.0)]
    assert source.counts.dropped == {"no evidence": 1, "self loop": 1}
    assert list(edges.lines) == [2, 3, 4]


def test_tflink_gives_an_edge_for_each_of_several_names(write, genes):
    header, row = SAMPLES["tflink"].splitlines()
    pairs = [("TFC3", "VPS8;EFB1"), ("HO", "-"), ("VPS8 ; EFB1", "HO")]
    rows = [row.replace("TFC3\tVPS8", f"{a}\t{b}") for a, b in pairs]
    [edges] = read("tflink", write("\n".join([header, *rows]) + "\n"))
    assert list(zip(edges.source, edges.target, edges.lines.tolist(), strict=True)) == [
        ("TFC3", "VPS8", 2),
        ("TFC3", "EFB1", 2),
        ("VPS8", "HO", 4),
        ("EFB1", "HO", 4),
    ]
    relation, source = relation_of(edges, genes)
    assert (relation.directed, relation.n_edges, source.counts.read) == (True, 4, 5)
    assert source.counts.dropped == {"no gene name": 1}
    assert source.notes == {"rows in the file": 3}


class TestString:
    ITEMS = "4932.YAL001C", "4932.YAL002W", "4932.YAL003W"

    def test_detailed_has_one_relation_per_channel(self, write, genes):
        header = SAMPLES["string_detailed"].splitlines()[0]
        a, b, c = self.ITEMS
        scores = {(a, b): "0 0 0 120 0 900 300 910", (a, c): "57 0 0 0 250 0 1 300"}
        rows = [f"{x} {y} {s}" for p, s in scores.items() for x, y in (p, p[::-1])]
        path = write("\n".join([header, *rows]) + "\n")
        by_name = {e.name.removeprefix("string_"): e for e in read("string_detailed", path)}
        found = {name: relation_of(e, genes) for name, e in by_name.items()}
        expected = {
            "neighborhood": [(0, 2, 0.057)],
            "fusion": [],
            "cooccurence": [],
            "coexpression": [(0, 1, 0.12)],
            "experimental": [(0, 2, 0.25)],
            "database": [(0, 1, 0.9)],
        }
        for name, (relation, source) in found.items():
            rounded = [(i, j, round(w, 6)) for i, j, w in edges_of(relation)]
            assert rounded == expected.pop(name)
            assert source.counts.read == source.notes["rows in the file"] == 4
            assert source.counts.dropped["score 0"] == 4 - 2 * relation.n_edges
        assert not expected
        assert list(by_name["experimental"].lines) == [4, 5]
        [edges] = READERS["string_detailed"].read(path, ["textmining"])
        assert (edges.name, len(edges)) == ("string_textmining", 4)
        with pytest.raises(InputError) as caught:
            READERS["string_detailed"].read(path, ["textming"])
        assert caught.value.code == "unknown-channel"
        rows[2] = rows[2].replace("250", "2500")
        refused("string_detailed", write("\n".join([header, *rows]) + "\n"), "bad-field", 4)

    def test_physical_and_combined_are_told_apart_by_name(self, write, genes):
        text = "protein1 protein2 combined_score\n{0} {1} 292\n{1} {0} 292\n".format(*self.ITEMS)
        [edges] = read("string_physical", write(text, "4932.protein.physical.links.v12.0.txt.gz"))
        relation, source = relation_of(edges, genes)
        assert (relation.name, relation.directed) == ("physical", False)
        assert edges_of(relation) == [(0, 1, pytest.approx(0.292))]
        assert source.counts.dropped == {"other direction of an edge": 1}
        [edges] = read("string_physical", write(text, "4932.protein.links.v12.0.txt"))
        assert edges.name == "string_combined"

    @pytest.mark.parametrize(
        ("rows", "arrows", "lines", "mirrored", "added"),
        [
            ("ab f f;ba f f", [(0, 1)], [2, 3], 0, 0),
            ("ab t t;ba t f;ac f f;ca f f", [(0, 1), (0, 2), (2, 0)], [2, 4, 5], 1, 0),
            ("ba t f;ac f f", [(0, 1), (0, 2), (2, 0)], [2, 3, 3], 0, 1),
        ],
    )
    def test_actions_point_from_the_acting_item(
        self, rows, arrows, lines, mirrored, added, write, genes
    ):
        [edges] = read("string_actions", write(self.actions(rows)))
        relation, source = relation_of(edges, genes)
        assert relation.directed == ("t" in rows)
        assert [(a, b) for a, b, _ in edges_of(relation)] == arrows
        assert list(edges.lines) == lines
        assert source.counts.dropped.get("mirrored half of a directional row", 0) == mirrored
        assert source.notes["directions added"] == added

    def actions(self, rows, modes="binding"):
        item = dict(zip("abc", self.ITEMS, strict=True))
        written = [
            f"{item[pair[0]]}\t{item[pair[1]]}\t{mode}\t\t{directional}\t{acting}\t900\n"
            for (pair, directional, acting), mode in zip(
                (row.split() for row in rows.split(";")), modes.split(",") * 9, strict=False
            )
        ]
        return SAMPLES["string_actions"].splitlines()[0] + "\n" + "".join(written)

    def test_actions_have_one_relation_per_mode_in_alphabetical_order(self, write):
        text = self.actions("ab f f;ab f f;ac f f", "reaction,binding,reaction")
        found = read("string_actions", write(text))
        assert [(e.name, list(e.lines)) for e in found] == [
            ("action_binding", [3]),
            ("action_reaction", [2, 4]),
        ]

    @pytest.mark.parametrize(
        ("rows", "modes"),
        [("ab f f;ab yes f", "x"), ("ab f f;ab t 1", "x"), ("ab f f;ab t t", "x,")],
    )
    def test_actions_with_fields_that_mean_nothing(self, rows, modes, write):
        refused("string_actions", write(self.actions(rows, modes)), "bad-field", 3)

    def test_adjacency_numbers_are_lines_of_the_gene_list(self, write):
        listed = write("YAL001C\nYAL002W\nYAL003W\n", "yeast_string_genes.txt")
        text = "1\t2\t0.5\n2\t1\t0.5\n3\t1\t0.25\n"
        path = write(text, "yeast_string_neighborhood_adjacency.txt.gz")
        [edges] = read("string_adjacency", path)
        assert (edges.name, edges.directed) == ("string_neighborhood", False)
        assert list(edges.source) == ["YAL001C", "YAL002W", "YAL003W"]
        assert list(edges.target) == ["YAL002W", "YAL001C", "YAL001C"]
        assert list(edges.weight) == [0.5, 0.5, 0.25]
        sha = hashlib.sha256(listed.read_bytes()).hexdigest()
        assert edges.notes == {"gene list": listed.name, "gene list sha256": sha}
        [edges] = read("string_adjacency", write("1\t2\t0.5\n", "mine.v1.tsv.gz"))
        assert edges.name == "mine.v1"
        other = write("Q0010\nQ0017\n", "other.txt")
        [edges] = READERS["string_adjacency"].read(path.with_name("mine.v1.tsv.gz"), other)
        assert (list(edges.source), list(edges.target)) == (["Q0010"], ["Q0017"])

    @pytest.mark.parametrize("lists", [[], ["a.txt", "b.txt.gz"]])
    def test_adjacency_needs_one_gene_list(self, lists, write):
        for name in lists:
            write(SAMPLES["string_genes"], name)
        write(b"\x1f\x8b broken", "broken.gz")
        refused("string_adjacency", write("1\t2\t0.5\n", "net.tsv"), "no-gene-list")

    @pytest.mark.parametrize("row", ["0\t1\t0.5", "1\t4\t0.5", "-1\t1\t1", "1.5\t2\t1", "i\tj\t1"])
    def test_adjacency_numbers_that_are_not_lines(self, row, write, beside):
        refused("string_adjacency", write(f"1\t2\t0.5\n\n{row}\n", "net.tsv"), "bad-field", 3)
        header = write("i\tj\tscore\n1\t2\t0.5\n", "yeast_string_fusion_adjacency.txt")
        assert recognise(header) == "string_adjacency"
        refused("string_adjacency", header, "bad-field", 1)

    @pytest.mark.parametrize(
        ("text", "code", "line"),
        [
            ("gene\nYAL001C\nYAL002W\n", "bad-field", 1),
            ("YAL001C\n\nYAL002W\n", "blank-line", 2),
            ("\nYAL001C\n", "blank-line", 1),
            ("YAL001C\n \nYAL002W\n", "bad-field", 2),
            ("YAL001C\nYAL002W\nyal001c\n", "bad-field", 3),
            ("YAL001C\nYAL002W\t1\n", "wrong-width", 2),
        ],
    )
    def test_gene_lists_whose_numbers_would_shift(self, text, code, line, write):
        refused("string_genes", write(text), code, line)

    def test_gene_lists_and_protein_info(self, write):
        text = "Q0010\r\nYAL001C-A\r\n\r\n"
        assert read("string_genes", write(text)) == ["Q0010", "YAL001C-A"]
        assert read("string_genes", write("b0001\nb0002\n")) == ["b0001", "b0002"]
        assert not string_genes.recognise(["b0001", "b0002"], "genes.txt")
        header = SAMPLES["string_info"].splitlines()[0] + "\n"
        row = '4932.YAL001C\tTFC3\t1160\tSays "this"; and that\n'
        found, source = read("string_info", write(header + row + "4932.Q0010\tQ0010\t128\t\n"))
        assert (list(found), found.standard) == (["YAL001C", "Q0010"], ("TFC3", None))
        assert (source.counts.read, source.counts.kept, source.into) == (2, 2, "genes")
        refused("string_info", write(header + row + row.lower()), "bad-field", 3)


def sgd(sgdid, kind, systematic="", standard="", aliases="", chromosome="1", start="", stop=""):
    fields = [sgdid, kind, "", systematic, standard, aliases, "", "", chromosome, start, stop]
    return "\t".join([*fields, *[""] * 5])


SGD = [
    sgd("S000000001", "ORF", "YAL001C", "TFC3", "TSV115|FUN24", "1", "151166", "147594"),
    sgd("S000000002", "CDS", start="1", stop="2"),
    sgd("S000000003", "pseudogene", "YAL002W", "", "", "2", "10", "20"),
    sgd("S000000004", "transposable_element_gene", "YAR009C"),
    sgd("S000000006", "tRNA_gene", "tA(AGC)D", "", "", "4", "1", "2"),
    sgd("S000000007", "CDS"),
    sgd("S000000008", "ORF"),
]


def test_sgd_features_are_genes_with_names_and_places(write):
    genes, source = read("sgd_features", write("\n".join(SGD) + "\n", "SGD_features.tab.gz"))
    assert list(genes) == ["YAL001C", "YAL002W", "YAR009C"]
    assert (genes.standard, genes.aliases[0]) == (("TFC3", None, None), ("TSV115", "FUN24"))
    assert genes.chromosome == ("1", "2", "1")
    assert (list(genes.start), list(genes.end)) == ([147594, 10, -1], [151166, 20, -1])
    assert (source.counts.read, source.counts.kept, source.into) == (7, 3, "genes")
    dropped = {"feature type CDS": 2, "feature type tRNA_gene": 1, "no systematic name": 1}
    assert source.counts.dropped == dropped


@pytest.mark.parametrize(
    ("bad", "at"),
    [
        (sgd("SGDID", "type", "name"), 0),
        (sgd("x", "ORF", "YAL009W"), 3),
        (sgd("S000000009", "ORF", "yal001c"), 4),
        (sgd("S000000009", "ORF", "YAL009W", start="near 5"), 2),
    ],
)
def test_sgd_features_with_a_bad_row(bad, at, write):
    text = "\n".join([*SGD[:at], bad, *SGD[at:]]) + "\n"
    refused("sgd_features", write(text), "bad-field", at + 1)


def test_genes_of_any_organism(write):
    text = (
        "systematic_id\tgene_name\tsynonyms\tchromosome\tstart\tend\n"
        "SPAC644.14c\trad51\trhp51|x\tI\t2938500\t2937000\n"
        "\tx\t\tI\t1\t2\nSPAC644.14C\t\t\tI\t1\t2\nSPBC1\tNA\t\tII\t\t\n"
    )
    genes, source = read("gene_table", write(text))
    assert genes.systematic == ("SPAC644.14c", "SPBC1")
    assert (genes.standard, genes.aliases) == (("rad51", None), (("rhp51", "x"), ()))
    assert (genes.start.tolist(), genes.end.tolist()) == ([2937000, -1], [2938500, -1])
    assert source.counts.dropped == {"no systematic name": 1, "gene given before": 1}
    refused("gene_table", write(text.replace("2938500", "far")), "bad-rows", 2)
