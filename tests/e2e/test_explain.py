"""`deltacell explain` and `reconcile` as typed, on runs really trained and on hostile files."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from deltacell.base.errors import InputError
from deltacell.profile.phase_rows import PHASES, read_phases
from deltacell.train.config.compose import compose
from deltacell.train.run import train

Run = Callable[..., "subprocess.CompletedProcess[str]"]
CASE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "dango-against-hetero.yaml"
SMALL = [
    *("experiment=demo", "data.synthetic_genotypes=150", "data.batch_size=8", "trainer.epochs=1"),
    *("trainer.threads=1", "trainer.figures_every=0", "loggers.tensorboard=false"),
]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A run, and one of a larger model that takes three times as long.

    Their times are medians of the first run's, so that what else runs here does not decide.
    """
    folder, names = tmp_path_factory.mktemp("runs"), [f"{phase}_s" for phase in PHASES]
    for name, hidden in (("small", 8), ("large", 16)):
        train(compose([*SMALL, f"model.hidden={hidden}", f"directory={folder / name}"]))
    rows = read_phases(folder / "small" / "phases")
    for name, times in (("small", 1), ("large", 3)):
        spent = rows.with_columns(pl.col(names).median().over("kind") * times)
        spent = spent.with_columns(wall_s=pl.sum_horizontal(names))
        spent = spent.with_columns(begin_s=pl.col("wall_s").cum_sum() - pl.col("wall_s"))
        for part in (folder / name / "phases").iterdir():
            part.unlink()
        spent.write_parquet(folder / name / "phases" / "rank0-attempt0-part0.parquet")
    return folder / "small", folder / "large"


def test_explaining_one_run_is_brief_and_full_tells_more(deltacell, runs):
    brief = deltacell("explain", runs[0]).stdout
    assert " takes " in brief
    assert "where the time goes" in brief
    assert len(brief.splitlines()) <= 25
    full = deltacell("explain", runs[0], "--full").stdout
    assert len(full.splitlines()) > len(brief.splitlines())
    assert "facts of small" in full
    done = deltacell("explain", runs[0], runs[0], "--fail-if", "slower > 10%")
    assert "no difference beyond noise" in " ".join(done.stdout.split())


def test_two_with_files_and_checks(deltacell: Run, runs: tuple[Path, Path], tmp_path: Path) -> None:
    files = ("--json", "e.json", "--markdown", "e.md", "--html", "e.html")
    done = deltacell("explain", *runs, *files, "--fail-if", "slower > 20%", code=1)
    assert done.stderr.startswith("failed: slower > 20%: it is 200 %")
    assert done.stdout.startswith("large takes ")
    assert len(done.stdout.splitlines()) <= 25
    result = json.loads((tmp_path / "e.json").read_text())
    assert [facts["threads of a process"] for facts in result["facts"]] == [1, 1]
    assert any(one.startswith("parameters: ") for one in result["unequal"])
    fall = result["waterfalls"][0]
    assert fall["per"] == "sample"
    assert sum(bar["change_s"] for bar in fall["bars"]) == pytest.approx(fall["gap_s"])
    assert fall["a_s"] + fall["gap_s"] == pytest.approx(fall["b_s"])
    assert (tmp_path / "e.md").read_text().startswith("**large takes ")
    assert (tmp_path / "e.html").read_text().rstrip().endswith("</html>")
    assert "passed: " in deltacell("explain", *reversed(runs), "--fail-if", "slower > 20%").stdout


def trace_of(*names: str, **more: str) -> str:
    event = {"ph": "X", "cat": "cpu_op", "pid": 1, "tid": 1, "dur": 9, **more}
    events = [{**event, "name": name, "ts": 10 * i} for i, name in enumerate(names)]
    return json.dumps({"schemaVersion": 1, "traceEvents": events})


def test_names_of_a_trace_are_shown_and_not_obeyed(deltacell: Run, tmp_path: Path) -> None:
    hostile = "<script>alert(1)</script>|[red]`x`\x1b[31m"
    (tmp_path / "t.json").write_text(trace_of("aten::mul", hostile))
    (tmp_path / "u.json").write_text(trace_of("aten::mul", "aten::add"))
    files = ("--markdown", "t.md", "--json", "t.out", "--html", "t.html")
    for given in (["t.json"], ["u.json", "t.json"]):
        done = deltacell("explain", *given, *files, "--full")
        assert "alert(1)" in done.stdout
        json.loads((tmp_path / "t.out").read_text())
        for text in (done.stdout, *((tmp_path / name).read_text() for name in ("t.md", "t.html"))):
            assert "\x1b" not in text
            assert text is done.stdout or "<script>alert" not in text


def test_the_file_to_look_at_is_named(deltacell: Run, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}-rank0.json").write_text(trace_of("aten::mul", "aten::add"))
    assert "drop a/a-rank0.json on https://ui.perfetto.dev" in deltacell("explain", "a").stdout
    assert "drop b/b-rank0.json on https://ui.perfetto.dev" in deltacell("explain", "a", "b").stdout


HTML = ("t.json", "--html", "t.json/page.html")
NOT_TRACES = {
    "text.json": "not a trace",
    "other.json": trace_of("RunTask", cat="devtools.timeline"),
    "empty.json": trace_of("ProfilerStep#1", cat="user_annotation"),
}


@pytest.mark.parametrize(
    ("words", "code", "where"),
    [
        (("text.json",), "not-a-trace", "text.json"),
        (("other.json",), "nothing-recorded", "other.json"),
        (("empty.json",), "nothing-recorded", "empty.json"),
        (("none",), "no-such-file", "none"),
        (("t.json", "--fail-if", "slower"), "condition-form", None),
        (HTML, "not-written", "t.json/page.html"),
    ],
)
def test_explain_refuses_files_that_cannot_be_read_or_written(
    mistake: Callable[..., InputError],
    tmp_path: Path,
    words: tuple[str, ...],
    code: str,
    where: str | None,
) -> None:
    for name, text in (NOT_TRACES | {"t.json": trace_of("aten::mul")}).items():
        (tmp_path / name).write_text(text)
    error = mistake(code, "explain", *words)
    assert error.where == (None if where is None else Path(where))


def test_measurements_that_disagree_are_one_account_with_names_as_they_are(deltacell, tmp_path):
    done = deltacell("reconcile", CASE, "--json", "r.json", "--markdown", "r.md")
    said = " ".join(done.stdout.split())
    assert said.startswith("An epoch of hetero takes 40x as long as one of DANGO")
    assert "data loading 67 % (763 ms) and forward 33 %" in said
    result = json.loads((tmp_path / "r.json").read_text())
    assert {one["kind"] for one in result["contradictions"]} >= {"nested_sum", "warmup_average"}
    text = (tmp_path / "r.md").read_text()
    assert text.startswith("**An epoch of hetero")
    assert "| trace categories | 875x |" in text
    text = CASE.read_text().replace("name: hetero", 'name: "[red]|<b>\\e[31m"')
    (tmp_path / "hostile.yaml").write_text(text)
    done = deltacell("reconcile", "hostile.yaml", "--markdown", "r.md")
    assert "[red]|<b>\\x1b[31m" in done.stdout
    assert "\x1b" not in done.stdout
    assert "<b>" not in (tmp_path / "r.md").read_text()
