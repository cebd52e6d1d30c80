"""Every block of the README and the docs runs as it is written, or says why it does not.

Python runs as it stands. The commands of a page run in order in an empty folder, in this process,
on a smaller synthetic screen and for a few epochs, after what the page takes for granted has been
made; lines that are no commands of the program are run by bash. All commands, of those that do not
run too, are held against the program: their options, and the configs they compose.
"""

import ast
import json
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import matplotlib
import pytest
import torch
from typer.main import get_command
from typer.testing import CliRunner

from deltacell import Screen
from deltacell.cli.app import app
from deltacell.evaluation import fitted_baselines
from deltacell.models import DangoLoss, LossValue
from deltacell.train import run as running
from deltacell.train.comparing import trials
from deltacell.train.config.compose import compose
from deltacell.train.sweep import combinations_of

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
NOT_RUN = {"docs/how-to/cluster.md": "needs a cluster; tests/e2e runs what it says in its stead"}
"""Pages whose commands do not run here, and why."""

SMALL_RUN = (
    "deltacell train experiment=demo data.synthetic_genotypes=150 data.batch_size=8 model.hidden=8 "
    "trainer.epochs=2 trainer.figures_every=0 trainer.progress=false loggers.tensorboard=false "
    "profiler.trace=true profiler.window=[4,2,8,1] directory=A\n"
    "mkdir runs; for run in B runs/mine runs/before runs/after; do cp -r A $run; done\n"
    f"cp -r A/traces traces; cp traces/* trace.json.gz; ln -s {ROOT}/docs docs"
)
STAGES = {"docs/how-to/slow-run.md": SMALL_RUN}
"""What makes what a page takes for granted."""

IMPORTED = (
    "genes/SGD_features.tab.gz",
    "networks/biogrid_3.4.156_cocomplex_edges.tsv.gz",
    "screens/sgadata_costanzo2009_intermediateCutoff_101120.txt.gz",
)
"""Real files that stand for the FOLDER of the README; tests/real imports them all."""


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path, language: str) -> list[str]:
    text = page.read_text(encoding="utf-8")
    found = re.findall(rf"^ *```{language}\n(.*?)^ *```$", text, re.DOTALL | re.MULTILINE)
    # Those in lists are indented.
    return [textwrap.dedent(block) for block in found]


PYTHON = [
    pytest.param(code, id=f"{name_of(page)}:{number}")
    for page in PAGES
    for number, code in enumerate(blocks(page, "python"), 1)
    if page.name != "plain-loop.md"
]


@pytest.mark.slow
@pytest.mark.parametrize("code", PYTHON)
def test_each_python_block_of_the_docs_runs(
    code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "<docs>", "exec"), {"__name__": "__docs__"})


@pytest.mark.slow
def test_the_plain_loop_has_ten_lines_and_learns() -> None:
    (code,) = blocks(ROOT / "docs" / "how-to" / "plain-loop.md", "python")
    imports = [n for n in ast.parse(code).body if isinstance(n, ast.Import | ast.ImportFrom)]
    assert len([line for line in code.splitlines() if line.strip()]) - len(imports) == 10
    torch.manual_seed(0)
    seen: list[LossValue] = []

    class Watched(DangoLoss):
        def __call__(self, *args: Any, **settings: Any) -> LossValue:
            seen.append(super().__call__(*args, **settings))
            return seen[-1]

    exec(code.replace("DangoLoss()", "Watched()"), {"__name__": "__docs__", "Watched": Watched})
    reconstruction = [float(value.parts["reconstruction"]) for value in seen]
    assert len(seen) == 5 * 16
    assert reconstruction[-1] < 0.8 * reconstruction[0]
    assert all(torch.isfinite(value.total) for value in seen)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_blocks_say_what_they_are_and_links_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    fences = re.findall(r"^ *```(.*)$", text, re.MULTILINE)
    assert set(fences[::2]) <= {"python", "bash", "sql", "text"}
    assert set(fences[1::2]) <= {""}
    for target in re.findall(r"\]\(([^)#]+)", text):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


# --- every command is one that the program takes ---

PROGRAM = re.compile(r"^(?:\S*/)?deltacell |^torchrun .*? -m deltacell ")


def typed(page: Path) -> Iterator[str]:
    """Give the commands of a page without the program's name, a line each."""
    for block in blocks(page, "(?:bash|text)"):
        for line in block.replace("\\\n", " ").splitlines():
            if PROGRAM.match(line):
                yield PROGRAM.sub("", line)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_are_those_of_the_program(page: Path) -> None:
    for line in typed(page):
        words = shlex.split(re.sub(r" > \S+$", "", line), comments=True)
        command: Any = get_command(app)
        while words and words[0] in getattr(command, "commands", {}):
            command, words = command.commands[words[0]], words[1:]
        assert not hasattr(command, "commands"), line
        given = command.make_context("deltacell", words).params
        resumed, other = given.get("resume"), given.get("config_dir")
        if given.get("overrides") and resumed is None and other is None:
            is_sweep = given.get("multirun", False)
            overrides = given["overrides"]
            for combination in combinations_of(overrides) if is_sweep else [overrides]:
                compose(combination)


# --- the commands of a page run in order ---


RUN = [page for page in PAGES[1:] if blocks(page, "bash") and name_of(page) not in NOT_RUN]


@pytest.fixture
def run_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Run lines in an empty folder and return what the program printed.

    Synthetic screens have so many genotypes, unless a line asks for another number, and trainings
    have no more epochs, or 100 trees.
    """
    whole, most = Screen.synthetic, [1]

    def shorter(train: Callable[..., Any], config: Any, **options: Any) -> Any:
        trainer = replace(config.trainer, epochs=min(config.trainer.epochs, most[0]))
        model = config.model
        if hasattr(model, "rounds"):
            model = replace(model, rounds=min(model.rounds, 100))
        return train(replace(config, trainer=trainer, model=model), **options)

    def mode(command: list[str], **options: Any) -> Any:
        # One in a process of its own, as all are; to load PyTorch for each would take long.
        if "mode=empty" in command:
            return subprocess.run(command, **options)
        done = CliRunner().invoke(app, command[3:])
        return subprocess.CompletedProcess(command, done.exit_code, done.output, "")

    def run(lines: str, genotypes: int, epochs: int) -> str:
        most[0] = epochs

        def smaller(cell: Any, n: int | None = None, **options: Any) -> Screen:
            return whole(cell, n=genotypes if n is None else n, **options)

        monkeypatch.setattr(Screen, "synthetic", smaller)
        said, others = "", ""
        # Before each command bash runs what stands above it; the last is for what stands below.
        for line in [*lines.splitlines(), "deltacell --version"]:
            if not PROGRAM.match(line):
                others += f"{line}\n"
                continue
            subprocess.run(["bash", "-euo", "pipefail", "-c", others], check=True)
            words = shlex.split(PROGRAM.sub("", line), comments=True)
            done, others = CliRunner().invoke(app, words), ""
            assert done.exit_code == 0, f"{line}\n{done.output}\n{done.exception!r}"
            said += done.output
        return said

    for module, name in ((running, "train"), (fitted_baselines, "fit_predictor")):
        monkeypatch.setattr(module, name, partial(shorter, getattr(module, name)))
    monkeypatch.setattr(trials, "subprocess", SimpleNamespace(run=mode))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=":")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return run


@pytest.mark.slow
@pytest.mark.parametrize("page", RUN, ids=name_of)
def test_the_commands_of_a_page_run_as_written(page: Path, run_lines: Any) -> None:
    run_lines(
        "\n".join([STAGES.get(name_of(page), ""), *blocks(page, "bash")]),
        genotypes=4000,
        epochs=3,
    )


@pytest.mark.slow
def test_the_readme_runs_as_written_and_its_demo_finds_what_was_planted(
    tmp_path: Path,
    run_lines: Any,
) -> None:
    written = blocks(ROOT / "README.md", "bash")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert "demo: setup\n\t$(BIN)/deltacell demo --out $(DEMO)\n" in makefile
    # The other target runs this test.
    assert re.fullmatch("make demo .*\nmake test .*\n", written[0])
    written[0] = "deltacell demo --out demo"
    data, sources = ROOT.parent / "shared" / "data", tmp_path / "sources"
    if data.is_dir():
        sources.mkdir()
        for name in IMPORTED:
            shutil.copy(data / name, sources)
        written = [block.replace("FOLDER", str(sources)) for block in written]
    known = [block for block in written if "FOLDER" not in block]
    said = run_lines("\n".join(known), genotypes=2000, epochs=1)
    assert not data.is_dir() or "costanzo2010" in said
    found = re.search(r"^(\d+) of the 20 untested triples", said, re.MULTILINE)
    assert found is not None
    assert int(found[1]) >= 8
    page = tmp_path / "demo" / "index.html"
    for target in re.findall(r'href="([^"#:]+)"', page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target


# --- notebooks run from top to bottom, and what they end cells with can be shown ---

NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


def run_cell(source: str, names: dict[str, Any]) -> Any:
    """Run a cell as Jupyter does, and return the value of its last expression."""
    tree = ast.parse(source)
    last = tree.body[-1]
    names.pop("_shown", None)
    if isinstance(last, ast.Expr):
        tree.body[-1] = ast.Assign([ast.Name("_shown", ast.Store())], last.value)
    exec(compile(ast.fix_missing_locations(tree), "<cell>", "exec"), names)
    return names.get("_shown")


def test_there_are_notebooks_without_stale_results() -> None:
    notebooks = [json.loads(path.read_text(encoding="utf-8")) for path in NOTEBOOKS]
    assert [notebook["nbformat"] for notebook in notebooks] == [4, 4]
    assert not any(cell.get("outputs") for one in notebooks for cell in one["cells"])


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path, tmp_path, monkeypatch, request) -> None:
    if path.stem == "costanzo2010":
        sources = request.getfixturevalue("shared_data")
        monkeypatch.setenv("DELTACELL_SOURCES", str(sources))
    matplotlib.use("Agg")
    monkeypatch.chdir(tmp_path)
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    names: dict[str, Any] = {"__name__": "__main__"}
    shown = [run_cell(source, names) for source in code]
    tables = [value for value in shown if hasattr(value, "_repr_html_")]
    assert sum("<table" in value._repr_html_() for value in tables) >= 5
