"""`deltacell explain` as it is typed, on runs that were really trained."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from deltacell.train.compose import compose
from deltacell.train.run import train

Run = Callable[..., "subprocess.CompletedProcess[str]"]
SMALL = [
    "experiment=demo",
    "data.synthetic_genotypes=150",
    "data.batch_size=8",
    "trainer.epochs=2",
    "trainer.threads=1",
    "trainer.figures_every=0",
    "loggers.tensorboard=false",
]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A run, and one of a model that is much larger."""
    folder = tmp_path_factory.mktemp("runs")
    for name, hidden in (("small", 8), ("large", 768)):
        train(compose([*SMALL, f"model.hidden={hidden}", f"directory={folder / name}"]))
    return folder / "small", folder / "large"


def test_one(deltacell: Run, runs: tuple[Path, Path]) -> None:
    said = " ".join(deltacell("explain", runs[0]).stdout.split())
    assert " takes " in said
    assert "where the time goes" in said
    brief = deltacell("explain", runs[0]).stdout.splitlines()
    assert len(brief) <= 25
    full = deltacell("explain", runs[0], "--full").stdout
    assert len(full.splitlines()) > len(brief)
    assert "A step of small takes" in full


def test_two_with_files_and_a_check_that_fails(
    deltacell: Run, runs: tuple[Path, Path], tmp_path: Path
) -> None:
    done = deltacell(
        "explain",
        *runs,
        "--json",
        "e.json",
        "--markdown",
        "e.md",
        "--fail-if",
        "slower > 20%",
        code=1,
    )
    assert done.stderr.startswith("failed: slower > 20%: it is ")
    said = " ".join(done.stdout.split())
    assert said.startswith("large takes ")
    assert "Not equal in both: " in said
    result = json.loads((tmp_path / "e.json").read_text())
    assert [facts["threads of a process"] for facts in result["facts"]] == [1, 1]
    assert any(one.startswith("parameters: ") for one in result["unequal"])
    fall = result["waterfalls"][0]
    assert fall["per"] == "sample"
    assert sum(bar["change_s"] for bar in fall["bars"]) == pytest.approx(fall["gap_s"])
    assert fall["a_s"] + fall["gap_s"] == pytest.approx(fall["b_s"])
    assert (tmp_path / "e.md").read_text().startswith("**large takes ")


def test_a_check_that_holds(deltacell: Run, runs: tuple[Path, Path]) -> None:
    deltacell("explain", *reversed(runs), "--fail-if", "slower > 20%")


def test_the_same_run_twice_is_not_slower(deltacell: Run, runs: tuple[Path, Path]) -> None:
    done = deltacell("explain", runs[0], runs[0], "--fail-if", "slower > 10%")
    assert "no difference beyond noise" in " ".join(done.stdout.split())
    assert "could have been detected" in " ".join(done.stdout.split())


def test_a_check_that_cannot_be_read(deltacell: Run, runs: tuple[Path, Path]) -> None:
    done = deltacell("explain", *runs, "--fail-if", "slower", code=2)
    assert done.stderr.startswith("error: 'slower' is not a condition")


def test_what_is_not_there(deltacell: Run) -> None:
    done = deltacell("explain", "none", code=2)
    assert done.stderr.startswith("error: none: no such file or directory")


HOSTILE = "<script>alert(1)</script>|[red]`x`\\x1b[31m"


def trace_of(*names: str) -> str:
    events = [
        {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": 10 * i, "dur": 9}
        for i, name in enumerate(names)
    ]
    return json.dumps({"schemaVersion": 1, "traceEvents": events})


def test_names_of_a_trace_are_shown_and_not_obeyed(deltacell: Run, tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text(trace_of("aten::mul", HOSTILE.replace("\\x1b", "\x1b")))
    (tmp_path / "u.json").write_text(trace_of("aten::mul", "aten::add"))
    for given in (["t.json"], ["u.json", "t.json"]):
        done = deltacell("explain", *given, "--markdown", "t.md", "--json", "t.out")
        assert "\x1b" not in done.stdout
        assert "alert(1)" in done.stdout
        text = (tmp_path / "t.md").read_text()
        assert "<script>" not in text
        assert "\x1b" not in text
        assert "&lt;script&gt;" in text
        json.loads((tmp_path / "t.out").read_text())


def test_what_is_no_trace_is_said(deltacell: Run, tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text("not a trace")
    done = deltacell("explain", "bad.json", code=2)
    assert done.stderr.startswith("error: bad.json")


@pytest.mark.parametrize(
    ("events", "said"),
    [
        ([{"cat": "devtools.timeline", "name": "RunTask"}], "not of PyTorch's profiler"),
        ([{"cat": "user_annotation", "name": "ProfilerStep#1"}], "recorded no operation"),
    ],
)
def test_a_trace_with_nothing_in_it_is_an_error(
    deltacell: Run, tmp_path: Path, events: list[dict[str, str]], said: str
) -> None:
    made = [{"ph": "X", "pid": 1, "tid": 1, "ts": 0, "dur": 9, **event} for event in events]
    (tmp_path / "t.json").write_text(json.dumps({"traceEvents": made}))
    assert said in deltacell("explain", "t.json", code=2).stderr
