"""The commands that get, import, make, show and query data."""

from __future__ import annotations

import gzip
import json
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

SPEC_TABLE = {
    "regulatory": (3632, 9753),
    "physical": (5721, 139463),
    "tflink": (5092, 201898),
    "string_neighborhood": (2204, 147874),
    "string_fusion": (3095, 11810),
    "string_cooccurence": (2615, 11115),
    "string_coexpression": (6503, 1002538),
    "string_experimental": (6036, 825101),
    "string_database": (4044, 73818),
}


def small_folder(folder: Path) -> Path:
    """A network, a screen and a file that is neither."""
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


def test_the_demo_is_made_shown_and_queried(deltacell: Any, tmp_path: Path) -> None:
    deltacell("data", "synthetic", "demo", "--out", "demo")
    shown = deltacell("data", "info", "demo", "--json", "info.json").stdout
    info = json.loads((tmp_path / "info.json").read_text())
    assert "string_coexpression" in shown
    assert info["cell"]["genes"] < 1000
    assert info["screens"]["synthetic"]["genotypes"] > 1000
    sql = "select kind, count(*) as n from screen group by kind order by kind"
    rows = json.loads(deltacell("data", "query", "demo", sql, "--format", "json").stdout)
    kinds = info["screens"]["synthetic"]["kinds"]
    assert {row["kind"]: row["n"] for row in rows} == kinds


def test_a_screen_where_mutants_matter(deltacell: Any, tmp_path: Path) -> None:
    deltacell("data", "synthetic", "redundancy", "--out", "made", "--genotypes", "600")
    deltacell("data", "info", "made", "--json", "info.json")
    info = json.loads((tmp_path / "info.json").read_text())
    assert info["screens"]["synthetic"]["genotypes"] == 600
    deltacell(
        "train",
        "model=hetero_cell",
        "data.folder=made",
        "data.run_length=8",
        "model.hidden=8",
        "model.mutant_layers=1",
        "model.epistasis=true",
        "trainer.epochs=1",
        "trainer.progress=false",
        "directory=run",
    )
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert record["propagation"]["choice"]["choice"]["strategy"] == "late"


def test_the_synthetic_yeast_cell_has_the_numbers_of_the_reference(
    deltacell: Any, tmp_path: Path
) -> None:
    deltacell("data", "synthetic", "yeast", "--out", "yeast", "--genotypes", "1000")
    shown = deltacell("data", "info", "yeast/cell", "--json", "info.json").stdout
    cell = json.loads((tmp_path / "info.json").read_text())["cell"]
    assert cell["genes"] == 6607
    assert {r["relation"]: (r["genes_with_an_edge"], r["edges"]) for r in cell["relations"]} == (
        SPEC_TABLE
    )
    for name, (genes, edges) in SPEC_TABLE.items():
        line = next(line for line in shown.splitlines() if line.split()[:1] == [name])
        assert f"{genes:,}" in line.split()
        assert f"{edges:,}" in line.split()
    assert "2,423,370" in shown


def test_an_import_says_what_became_of_every_row(deltacell: Any, tmp_path: Path) -> None:
    small_folder(tmp_path / "in")
    shown = deltacell("data", "import", "in", "--out", "out", "--json", "account.json").stdout
    account = json.loads((tmp_path / "account.json").read_text())
    assert [entry["file"] for entry in account["left_alone"]] == ["notes.md"]
    assert {s["file"]: s["counts"]["kept"] for s in account["sources"]} == {
        "mine.tsv": 2,
        "sga.txt.gz": 2,
    }
    assert "notes.md" in shown
    assert "sga.txt.gz: distinct sets and genes as written: 2 and 3, after aliases" in shown
    assert "costanzo2010" in deltacell("data", "info", "out", "--full").stdout
    csv = deltacell(
        "data", "query", "out", "select genes, score from screen order by score", "--format", "csv"
    ).stdout
    assert csv.splitlines()[1] == "YAL001C YAL002W,-0.2"


def test_a_network_a_screen_and_a_feature_of_ones_own_are_imported_and_trained_on(
    deltacell: Any, tmp_path: Path
) -> None:
    names = [f"YAL{i:03}C" for i in range(1, 13)]
    pairs = list(combinations(names, 2))
    (tmp_path / "in").mkdir()
    edges = [f"{a},{b},0.5" for a, b in pairs[::3]]
    (tmp_path / "in" / "ppi.csv").write_text("\n".join(["gene1,gene2,weight", *edges]) + "\n")
    rows = [f"{a},{b},,{i % 7 / 10 - 0.3:.1f},0.01" for i, (a, b) in enumerate(pairs)]
    rows += [f"{a},{b},YAL012C,0.1," for a, b in pairs[:5]]
    header = "Gene 1,Gene 2,Gene 3,score,p-value"
    (tmp_path / "in" / "mine.csv").write_text("\n".join([header, *rows]) + "\n")
    strains = [f"{name}_dma{i};0,{i}5;" for i, name in enumerate(names)] + ["YAL001C_tsq1;;0,5"]
    strains += ["YAL002C_sn1;1,0;0,75", "YZZ001W_sn1;1,0;0,75"]
    (tmp_path / "in" / "fitness.csv").write_text("\n".join(["Strain ID;26;30", *strains]) + "\n")
    said = deltacell("data", "import", "in", "--out", "data").stdout
    assert "mine.csv was read as a screen" in " ".join(said.split())
    assert "mine" in deltacell("data", "info", "data", "--json", "info.json").stdout
    info = json.loads((tmp_path / "info.json").read_text())
    assert [r["relation"] for r in info["cell"]["relations"]] == ["ppi"]
    assert info["cell"]["features"] == [
        {"feature": "fitness", "width": 2, "known": 12, "missing": pytest.approx(10 / 24)}
    ]
    assert "YZZ001W_sn1" in said
    assert info["screens"]["mine"]["kinds"] == {"digenic": 66, "trigenic": 5}
    arguments = ("model=dango", "model.relations=[ppi]", "model.lambdas.ppi=1.0", "model.hidden=8")
    small = ("trainer.epochs=1", "trainer.threads=1", "trainer.figures_every=0")
    arguments += ("model.features=[fitness]",)
    deltacell("train", *arguments, *small, "data.folder=data", "directory=run")
    assert (tmp_path / "run").is_dir()


def test_a_damaged_file_stops_the_import_and_nothing_is_written(
    deltacell: Any, tmp_path: Path
) -> None:
    folder = small_folder(tmp_path / "in")
    with gzip.open(folder / "sga.txt.gz", "at") as file:
        file.write("YAL001C\tTFC3\tYAL003W\tEFB1\tnan\t0.03\t2e-2\n")
    error = deltacell("data", "import", "in", "--out", "out", code=2).stderr
    assert "sga.txt.gz, line 3" in error
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in"]


def test_a_directory_that_holds_something_else_is_not_touched(
    deltacell: Any, tmp_path: Path
) -> None:
    small_folder(tmp_path / "in")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("ten years")
    error = deltacell("data", "import", "in", "--out", "out", "--overwrite", code=2).stderr
    assert "already holds something else" in error
    assert (tmp_path / "out" / "thesis.txt").read_text() == "ten years"


def test_an_import_is_replaced_only_when_asked(deltacell: Any, tmp_path: Path) -> None:
    small_folder(tmp_path / "in")
    deltacell("data", "import", "in", "--out", "out")
    assert "--overwrite" in deltacell("data", "import", "in", "--out", "out", code=2).stderr
    deltacell("data", "import", "in", "--out", "out", "--overwrite")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in", "out"]


def test_every_gene_is_counted_once_however_many_pairs_name_it(
    deltacell: Any, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    pairs = list(combinations([f"GENE{i}" for i in range(5)], 2))
    rows = [f"{a},{b},0.5" for pair in pairs for a, b in (pair, pair[::-1])]
    (tmp_path / "in" / "mine.csv").write_text("\n".join(["gene1,gene2,score", *rows]) + "\n")
    deltacell("data", "import", "in", "--out", "out")
    said = deltacell("data", "info", "out", "--json", "info.json").stdout
    info = json.loads((tmp_path / "info.json").read_text())
    screen = info["screens"]["mine"]
    assert (info["cell"]["genes"], screen["genes"], screen["genotypes"]) == (5, 5, 20)
    assert screen["sources"][0]["notes"] == {
        "distinct_sets_as_written": 10,
        "genes_as_written": 5,
        "distinct_sets": 10,
        "genes": 5,
    }
    assert "of 5 genes" in " ".join(said.split())


def test_what_was_counted_before_rows_were_dropped_is_called_so(
    deltacell: Any, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    rows = ["gene1,gene2,score", "RAD51,RAD52,1", "RAD51,,0.5", "HO,HO,2"]
    (tmp_path / "in" / "mine.csv").write_text("\n".join(rows) + "\n")
    said = " ".join(deltacell("data", "import", "in", "--out", "out").stdout.split())
    assert "1 one gene has no interaction, 1 same gene twice" in said
    assert "before rows were dropped for their genes, distinct sets and genes as written: 2" in said
    assert "There is no network" in said
    info = " ".join(deltacell("data", "info", "out", "--full").stdout.split())
    assert "before rows were dropped for their genes" in info
    account = json.loads((tmp_path / "out" / "account.json").read_text())
    assert account["sources"][0]["counts"]["kept"] == 1


@pytest.mark.parametrize("policy", ["error", "drop", "add"])
def test_unknown_genes_follow_the_policy(deltacell: Any, tmp_path: Path, policy: str) -> None:
    folder = small_folder(tmp_path / "in")
    header = "#string_protein_id\tpreferred_name\tprotein_size\tannotation\n"
    info = "".join(f"4932.{orf}\t{orf}\t100\tprotein\n" for orf in ("YAL001C", "YAL002W"))
    (folder / "4932.protein.info.txt").write_text(header + info)
    arguments = ("data", "import", "in", "--out", "out", "--unknown", policy)
    if policy == "error":
        error = deltacell(*arguments, code=2).stderr
        assert "YAL003W" in error
        assert "line 2" in error
        assert not (tmp_path / "out").exists()
        return
    deltacell(*arguments, "--json", "account.json")
    sources = json.loads((tmp_path / "account.json").read_text())["sources"]
    mine = next(s for s in sources if s["file"] == "mine.tsv")["counts"]
    if policy == "drop":
        assert (mine["kept"], mine["dropped"]) == (1, {"unknown gene": 1})
        assert "unknown genes: YAL003W\n" in deltacell("data", "info", "out", "--full").stdout
    else:
        assert (mine["kept"], mine["dropped"]) == (2, {})


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("data", "info", "nowhere"), "no such directory"),
        (("data", "import", "nowhere", "--out", "out"), "no such folder"),
        (("data", "get", "costanzo"), "(did you mean 'costanzo20"),
        (("data", "synthetic", "mouse", "--out", "out"), "demo"),
    ],
)
def test_mistakes_are_answered_with_a_sentence(deltacell: Any, arguments: Any, said: str) -> None:
    assert said in deltacell(*arguments, code=2).stderr


@pytest.mark.real
def test_a_phenotype_is_taken_where_a_file_has_it(
    deltacell: Any, tmp_path: Path, shared_data: Path
) -> None:
    folder = small_folder(tmp_path / "in")
    sample = (shared_data / "screens" / "sample_SGA_NxN.txt").read_text()
    (folder / "nxn.txt").write_text(sample)
    deltacell("data", "import", "in", "--out", "out", "--unknown", "add", "--phenotype", "fitness")
    info = deltacell("data", "info", "out", "--json", "info.json")
    assert info.stdout
    screens = json.loads((tmp_path / "info.json").read_text())["screens"]
    assert screens["costanzo2016"]["phenotypes"] == {"fitness": 50}
    assert screens["costanzo2010"]["phenotypes"] == {"interaction": 2}


def test_the_version_needs_no_command(deltacell: Any) -> None:
    assert deltacell("--version", fresh=True).stdout.startswith("deltacell ")
