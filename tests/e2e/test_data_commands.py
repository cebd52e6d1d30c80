"""The commands that get, import, make, show and query data."""

import gzip
import json
from itertools import combinations

import polars as pl
import pytest

from deltacell.screen import Screen


@pytest.fixture
def info(deltacell, tmp_path):
    """What `data info` says of a directory: in words, and in JSON."""

    def show(path):
        shown = deltacell("data", "info", path, "--json", "info.json").stdout
        return " ".join(shown.split()), json.loads((tmp_path / "info.json").read_text())

    return show


@pytest.fixture
def small(tmp_path):
    """A folder with a network, a screen and a file that is neither."""
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "mine.tsv").write_text("YAL001C\tYAL002W\t0.5\nYAL002W\tYAL003W\t0.25\n")
    rows = [
        "YAL001C\tTFC3\tYAL002W\tVPS8\t-0.2\t0.02\t1e-3",
        "YAL001C_tsq1\tTFC3\tYAL003W\tEFB1\t0.1\t0.03\t2e-2",
    ]
    with gzip.open(folder / "sga.txt.gz", "wt") as file:
        file.write("\n".join(rows) + "\n")
    (folder / "notes.md").write_text("# What I did\n\nNothing yet.\n")
    return folder


def test_synthetic_data_are_made_shown_queried_and_trained_on(deltacell, info, tmp_path):
    deltacell("data", "synthetic", "redundancy", "--out", "made", "--genotypes", "200")
    shown, found = info("made")
    assert "elsewhere" in shown
    assert found["screens"]["synthetic"]["genotypes"] == 200
    sql = "select kind, count(*) as n from screen group by kind order by kind"
    rows = json.loads(deltacell("data", "query", "made", sql, "--format", "json").stdout)
    assert {row["kind"]: row["n"] for row in rows} == found["screens"]["synthetic"]["kinds"]
    settings = "model=hetero_cell model.hidden=8 model.mutant_layers=1 model.epistasis=true "
    settings += "data.folder=made data.run_length=8 trainer.epochs=1 trainer.progress=false"
    deltacell("train", *settings.split(), "directory=run")
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert record["propagation"]["choice"]["choice"] == "late"


def test_an_import_tells_of_every_row_and_is_replaced_only_when_asked(deltacell, small, tmp_path):
    shown = deltacell("data", "import", "in", "--out", "out", "--json", "account.json").stdout
    account = json.loads((tmp_path / "account.json").read_text())
    assert [entry["file"] for entry in account["left_alone"]] == ["notes.md"]
    kept = {s["file"]: s["counts"]["kept"] for s in account["sources"]}
    assert kept == {"mine.tsv": 2, "sga.txt.gz": 2}
    assert "notes.md" in shown
    assert "sga.txt.gz: distinct sets as written: 2; genes as written: 3" in " ".join(shown.split())
    assert "costanzo2010" in deltacell("data", "info", "out", "--full").stdout
    sql = "select genes, score from screen order by score"
    csv = deltacell("data", "query", "out", sql, "--format", "csv").stdout
    assert csv.splitlines()[1] == "YAL001C YAL002W,-0.2"
    assert "--overwrite" in deltacell("data", "import", "in", "--out", "out", code=2).stderr
    deltacell("data", "import", "in", "--out", "out", "--overwrite")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["account.json", "in", "out"]


def test_a_network_a_screen_and_a_feature_of_ones_own_are_imported_and_trained_on(
    deltacell,
    info,
    tmp_path,
):
    names = [f"YAL{i:03}C" for i in range(1, 13)]
    pairs = list(combinations(names, 2))
    edges = [f"{a},{b},0.5" for a, b in pairs[::3]]
    rows = [f"{a},{b},,{i % 7 / 10 - 0.3:.1f},0.01" for i, (a, b) in enumerate(pairs)]
    rows += [f"{a},{b},YAL012C,0.1," for a, b in pairs[:5]]
    strains = [f"{name}_dma{i};0,{i}5;" for i, name in enumerate(names)] + ["YAL001C_tsq1;;0,5"]
    strains += ["YAL002C_sn1;1,0;0,75", "YZZ001W_sn1;1,0;0,75"]
    (tmp_path / "in").mkdir()
    for name, lines in {
        "ppi.csv": ["gene1,gene2,weight", *edges],
        "mine.csv": ["Gene 1,Gene 2,Gene 3,score,p-value", *rows],
        "fitness.csv": ["Strain ID;26;30", *strains],
    }.items():
        (tmp_path / "in" / name).write_text("\n".join(lines) + "\n")
    said = deltacell("data", "import", "in", "--out", "data").stdout
    assert "mine.csv was read as a screen" in " ".join(said.split())
    assert "YZZ001W_sn1" in said
    _, found = info("data")
    assert [r["relation"] for r in found["cell"]["relations"]] == ["ppi"]
    assert found["cell"]["features"] == [
        {"feature": "fitness", "width": 2, "known": 12, "missing": pytest.approx(10 / 24)},
    ]
    assert found["screens"]["mine"]["kinds"] == {"digenic": 66, "trigenic": 5}
    settings = "model=dango model.relations=[ppi] model.lambdas.ppi=1.0 model.hidden=8 "
    settings += "model.features=[fitness] trainer.epochs=1 trainer.threads=1 "
    settings += "trainer.figures_every=0 data.folder=data directory=run"
    deltacell("train", *settings.split())
    assert (tmp_path / "run").is_dir()


def test_genes_and_sets_are_counted_once_and_before_rows_were_dropped(deltacell, info, tmp_path):
    (tmp_path / "in").mkdir()
    pairs = list(combinations([f"GENE{i}" for i in range(5)], 2))
    rows = [f"{a},{b},0.5" for pair in pairs for a, b in (pair, pair[::-1])]
    rows += ["GENE1,,0.5", "GENE1,GENE1,2"]
    (tmp_path / "in" / "mine.csv").write_text("\n".join(["gene1,gene2,score", *rows]) + "\n")
    said = " ".join(deltacell("data", "import", "in", "--out", "out").stdout.split())
    assert "1 one gene has no interaction, 1 same gene twice" in said
    assert "There is no network" in said
    assert "distinct sets as written: 11; genes as written: 5" in said
    shown, found = info("out")
    assert "of 5 genes" in shown
    screen = found["screens"]["mine"]
    assert (found["cell"]["genes"], screen["genes"], screen["genotypes"]) == (5, 5, 20)


def test_unknown_genes_follow_the_policy(deltacell, mistake, small, tmp_path):
    header = "#string_protein_id\tpreferred_name\tprotein_size\tannotation\n"
    info = "".join(f"4932.{orf}\t{orf}\t100\tprotein\n" for orf in ("YAL001C", "YAL002W"))
    (small / "4932.protein.info.txt").write_text(header + info)
    arguments = ("data", "import", "in", "--out", "out", "--json", "account.json")
    error = mistake("unknown-gene", *arguments, "--unknown", "error")
    assert error.fields["unknown_genes"] == "YAL003W"
    assert not (tmp_path / "out").exists()
    deltacell(*arguments)
    sources = json.loads((tmp_path / "account.json").read_text())["sources"]
    mine = next(s for s in sources if s["file"] == "mine.tsv")["counts"]
    assert (mine["kept"], mine["dropped"]) == (1, {"unknown gene": 1})
    assert "unknown genes: YAL003W\n" in deltacell("data", "info", "out", "--full").stdout


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ("data info nowhere", "not-a-store"),
        ("data import nowhere --out out", "not-a-folder"),
        ("data get costanzo", "unknown-download"),
        ("data synthetic mouse --out out", "unknown-cell"),
        ("data synthetic demo --out out --genotypes -5", "no-room"),
        ("data get sgd-features --unchecked --out in/mine.tsv", "not-written"),
    ],
)
def test_mistaken_arguments_of_data_are_refused_with_a_code(
    mistake, small, tmp_path, arguments, code
):
    mistake(code, *arguments.split())
    assert not (tmp_path / "out").exists()


@pytest.mark.real
def test_a_phenotype_is_taken_where_a_file_has_it(deltacell, info, small, shared_data):
    sample = (shared_data / "screens" / "sample_SGA_NxN.txt").read_text()
    (small / "nxn.txt").write_text(sample)
    deltacell("data", "import", "in", "--out", "out", "--unknown", "add", "--phenotype", "fitness")
    screens = info("out")[1]["screens"]
    assert set(screens) == {"costanzo2016"}
    assert screens["costanzo2016"]["phenotypes"] == {"fitness": 50}


ROW = "YAL001C\tTFC3\tYAL002W\tVPS8\t-0.2\t0.02\t1e-3\n"


@pytest.mark.parametrize(
    ("header", "kind"),
    [
        ("a\tb\tc\td\teps\tsd\tp\n", "column 'epsilon' is not a finite number"),
        ("YAL001C\tYAL002W\n", "other than 7 columns"),
    ],
)
def test_a_bad_first_line_does_not_hide_the_file(mistake, small, tmp_path, header, kind):
    (small / "s.txt").write_text(header + ROW)
    error = mistake("bad-rows", "data", "import", "in", "--out", "out")
    assert (str(error.where), error.line) == ("in/s.txt", 1)
    assert error.fields["kinds"][kind] == 1
    assert not (tmp_path / "out").exists()


def test_names_are_shown_and_never_obeyed(deltacell, small, recwarn):
    (small / "\x1b[31m[red]x.txt").write_text("YAL001C\tYAL002W\n")
    done = deltacell("data", "import", "in", "--out", "out")
    assert (done.stderr, recwarn.list) == ("", [])
    shown = done.stdout + deltacell("data", "info", "out").stdout
    assert "\x1b" not in shown
    assert r"\x1b[31m[red]x" in shown
    error = deltacell("data", "info", "\x1b[31mx", code=2).stderr
    assert "\x1b[31mx" not in error


def test_any_result_of_a_query_is_shown(deltacell, mistake, small):
    deltacell("data", "import", "in", "--out", "out")
    # A title is not folded to the width of a narrow table.
    assert deltacell("data", "query", "out", "select 1 as a").stdout.startswith("1 rows\n")
    sql = "select [1, 2] as a, [[1], [2, 3]] as b, {'x': 1} as c, null::int[] as d, 2 as e"
    table = "a,b,c,d,e\n1 2,\"[1] [2, 3]\",{'x': 1},,2\n"
    assert deltacell("data", "query", "out", sql, "--format", "csv").stdout == table
    path = "out/screens/costanzo2010"
    mistake("unknown-screen", "data", "query", path, "select 1", "--screen", "x")


def test_the_version_needs_no_command(deltacell):
    assert deltacell("--version").stdout.startswith("deltacell ")


def test_tables_are_written_for_neo4j_and_results_as_files_and_screens(deltacell, tmp_path):
    deltacell("data", "synthetic", "demo", "--out", "demo")
    said = deltacell("data", "tables", "demo", "--out", "graph", "--format", "neo4j").stdout
    assert "measurements.csv" in said
    assert (tmp_path / "graph" / "import.sh").is_file()
    deltacell("data", "tables", "demo", "--out", "kb")
    sql = "select gene1, gene2, score from pairs where abs(score) > 0.05"
    deltacell("data", "query", "kb", sql, "--out", "hits.parquet")
    deltacell("data", "query", "kb", sql, "--out", "hits")
    rows = pl.read_parquet(tmp_path / "hits.parquet")
    screen = Screen.load(tmp_path / "hits")
    assert len(screen) == rows.height > 0
    assert sorted(screen.column("score").tolist()) == sorted(rows["score"].to_list())
    words = ("data.cell=demo/cell", "data.screen=hits", "model=additive", "directory=run")
    deltacell("train", *words)
