"""The forms in which people have their tables, each made here and taken through the command."""

import io
import json

import openpyxl
import pytest
from typer.testing import CliRunner

from deltacell.cli.app import app
from deltacell.data.import_folder import Imported
from deltacell.screen import Screen

NETWORK = "gene1\tgene2\tweight\nYAL001C\tYAL002W\t0.5\nYAL002W\tYAL003W\t0.25\n"
PAIRS = {("YAL001C", "YAL002W"): -0.25, ("YAL001C", "YAL003W"): 0.5, ("YAL002W", "YAL003W"): 0.125}


def book(**sheets):
    made = openpyxl.Workbook()
    made.remove(made.active)
    for name, rows in sheets.items():
        sheet = made.create_sheet(name)
        for row in rows:
            sheet.append(row)
    out = io.BytesIO()
    made.save(out)
    return out.getvalue()


def rows_of(header, rename=lambda gene: gene):
    return [header, *([rename(a), rename(b), score] for (a, b), score in PAIRS.items())]


def text(rows, separator, comma=False):
    lines = [separator.join(str(field) for field in row) for row in rows]
    joined = "\n".join(lines) + "\n"
    return joined.replace(".", ",") if comma else joined


GENES = ["YAL001C", "YAL002W", "YAL003W"]
MATRIX = [
    ["", *GENES],
    ["YAL001C", "", -0.25, 0.5],
    ["YAL002W", -0.25, "NA", 0.125],
    ["YAL003W", 0.5, 0.125, ""],
]
HEADER = ["gene1", "gene2", "score"]
FORMS = {
    "Query ORF.tsv": text(rows_of(["Query ORF", "Array ORF", "SGA score"]), "\t"),
    "strain ids.tsv": text(
        rows_of(
            ["Query Strain ID", "Array Strain ID", "Genetic interaction score (ε)"],
            lambda gene: f"{gene}_dma12",
        ),
        "\t",
    ),
    **{
        f"{name}.csv": text(rows_of(["Gene A", "Gene B", name]), ",")
        for name in ("S-score", "GIS", "LFC", "epsilon", "tau", "Interaction score")
    },
    "sheets.xlsx": book(remarks=[["made in May"]], scores=[["A title"], [], *rows_of(HEADER)]),
    "semicolons.csv": text(rows_of(HEADER), ";", comma=True),
    "pipes.txt": text(rows_of(HEADER), "|"),
    "titles.csv": "Screen of May 2024\n\nmade by me, and others\n" + text(rows_of(HEADER), ","),
    "latin.csv": ("Größe der Kolonien\n" + text(rows_of(HEADER), ",")).encode("latin-1"),
    "missing.csv": text(
        [
            [*HEADER, "p_value"],
            *([*row, p] for row, p in zip(rows_of(HEADER)[1:], ("n/a", "NA", ""), strict=True)),
            ["YAL001C", "YAL003W", "n/a", ""],
            ["YAL001C", "YAL003W", "NA", ""],
            ["YAL001C", "YAL003W", "", ""],
        ],
        ",",
    ),
    "deltas.csv": text(rows_of(HEADER, lambda gene: f"{gene.lower()}Δ"), ","),
    "dashes.csv": text(rows_of(HEADER, lambda gene: f"{gene.lower()}-delta"), ","),
    "matrix.tsv": text(MATRIX, "\t"),
    "matrix.xlsx": book(scores=MATRIX),
    "dcell.txt": text([[2, *row] for row in rows_of(HEADER)[1:]], "\t"),
}


@pytest.fixture
def imported(tmp_path):
    def run(name, content, *options, **others):
        folder = tmp_path / "mine"
        folder.mkdir(exist_ok=True)
        for file, data in {"net.tsv": NETWORK, name: content, **others}.items():
            data = data.encode() if isinstance(data, str) else data
            (folder / file).write_bytes(data)
        out = tmp_path / "data"
        result = CliRunner().invoke(
            app,
            ["data", "import", str(folder), "--out", str(out), *options],
        )
        if result.exception is not None:
            assert not out.exists()
            raise result.exception
        return out

    return run


def scores(screen):
    frame = screen.to_polars()
    return {
        tuple(sorted(genes)): score
        for genes, score in zip(frame["genes"].to_list(), frame["score"].to_list(), strict=True)
    }


@pytest.mark.parametrize("name", FORMS)
def test_the_form_is_read(imported, name):
    there = Imported.load(imported(name, FORMS[name]))
    (screen,) = there.screens.values()
    assert scores(screen) == PAIRS
    assert list(there.cell.relations) == ["net"]
    source = screen.sources[0]
    assert source.counts.kept == 3
    assert source.counts.read == 3 + sum(source.counts.dropped.values())


@pytest.mark.parametrize(
    ("content", "columns"),
    [
        (
            text(rows_of(["first", "second", "effect"]), ","),
            "gene1=first,gene2=second,score=effect",
        ),
        (text(rows_of(HEADER)[1:], ","), "gene1=1,gene2=2,score=3"),
        (
            text(rows_of(["gene1", "gene2", "z"]), ";", comma=True),
            "gene1=gene1,gene2=gene2,score=z",
        ),
    ],
)
def test_a_number_of_unknown_meaning_is_asked_about_and_nothing_is_written(
    imported,
    content,
    columns,
    refused,
):
    assert refused("unknown-columns", imported, "mine.csv", content).fields == {
        "files": ["mine.csv"],
    }
    out = imported("mine.csv", content, "--columns", columns)
    assert scores(Screen.load(out / "screens" / "mine")) == PAIRS


def test_the_same_table_is_a_network_where_the_user_says_so(imported):
    content = text(rows_of(["first", "second", "effect"]), ",")
    out = imported("mine.csv", content, "--columns", "gene1=first,gene2=second,weight=effect")
    there = Imported.load(out)
    assert sorted(there.cell.relations) == ["mine", "net"]
    assert not there.screens


def test_two_sheets_are_two_screens_under_their_names(imported):
    out = imported("mine.xlsx", book(May=rows_of(HEADER), June=rows_of(HEADER)))
    assert sorted(Imported.load(out).screens) == ["mine_June", "mine_May"]


def test_a_column_of_studies_is_used(imported):
    rows = [
        [*row, study] for row, study in zip(rows_of(HEADER), ["study", "a", "b", ""], strict=True)
    ]
    screen = Screen.load(imported("mine.csv", text(rows, ",")) / "screens" / "mine")
    assert screen.stats()["studies"] == {"a": 1, "b": 1, "mine": 1}


PARTS = ["split", "train", "Validation", "test"]


@pytest.mark.parametrize("apart", [False, True])
def test_a_column_or_a_file_names_the_split(imported, apart):
    rows = rows_of(HEADER)
    named = [[*row, part] for row, part in zip(rows, PARTS, strict=True)]
    if apart:
        without = [[a, b, part] for a, b, _, part in named]
        out = imported("mine.csv", text(rows, ","), **{"parts.csv": text(without, ",")})
    else:
        out = imported("mine.csv", text(named, ","))
    from deltacell.train.config import SplitConfig
    from deltacell.train.data import make_split

    screen = Screen.load(out / "screens" / "mine")
    split = make_split(screen, SplitConfig(method="named"), out / "splits" / "mine")
    assert (split.train.tolist(), split.validation.tolist(), split.test.tolist()) == ([0], [1], [2])
    assert json.loads((out / "manifest.json").read_text())["meta"]["splits"] == ["mine"]


TERMS = {
    "go_slim_mapping.tab": (
        "go_slim_process",
        "YAL001C\tTFC3\tS1\tP\tDNA repair\tGO:0006281\tORF\n"
        "YAL002W\tVPS8\tS2\tP\tDNA repair\tGO:0006281\tORF\n"
        "YAL003W\tEFB1\tS3\tP\tbiological_process\tGO:0008150\tORF\n",
        "DNA repair",
    ),
    "sgd.gaf": (
        "go_process",
        "!gaf-version: 2.2\n"
        + "".join(
            f"SGD\tS{i}\t{gene}\tinvolved_in\tGO:0006281\tPMID:1\t{code}\t\tP\tname\t{orf}|x\t"
            "protein\ttaxon:559292\t20200101\tSGD\t\t\n"
            for i, (gene, orf, code) in enumerate(
                [
                    ("TFC3", "YAL001C", "IDA"),
                    ("VPS8", "YAL002W", "IMP"),
                    ("EFB1", "YAL003W", "IGI"),
                ],
            )
        ),
        "GO:0006281",
    ),
    "complexes.gmt": ("complexes", "TFIIIC\tna\tYAL001C\tYAL002W\n", "TFIIIC"),
    "mine.csv": ("mine", "gene,complex\nYAL001C,TFIIIC\nYAL002W,TFIIIC\nYAL003W,\n", "TFIIIC"),
    "go.tsv": ("go", "YAL001C\tGO:0006281\nYAL002W\tGO:0006281\n", "GO:0006281"),
}


@pytest.mark.parametrize("name", TERMS)
def test_annotations_are_stored_in_the_cell(imported, name):
    from deltacell.cell.annotation import shared_terms

    annotation, content, term = TERMS[name]
    cell = Imported.load(imported(name, content)).cell
    assert list(cell.annotations) == [annotation]
    assert shared_terms(cell, ["YAL001C", "YAL002W"]) == [(annotation, term, 2)]
    assert shared_terms(cell, ["YAL001C", "YAL003W"]) == []
    source = next(s for s in cell.sources if s.into == annotation)
    assert source.counts.kept == 2
    assert cell.feature(annotation).values[cell.genes.index("YAL001C")].tolist() == [1]
