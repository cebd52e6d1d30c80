"""Every block of the README and the docs runs as it is written, or says why it does not.

Python runs as it stands. The commands of a page run in order in a clean checkout, after what the
page takes for granted has been made (`STAGES`). All commands, of those that do not run too, are
held against the program: their options, and the configs they compose.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from types import MappingProxyType

import pytest

from deltacell.cli.reference import commands
from deltacell.train.compose import compose
from deltacell.train.run import train

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
NOT_RUN = MappingProxyType(
    {"docs/how-to/cluster.md": "needs a cluster; tests/e2e runs what it says in its stead"}
)
"""Pages whose commands do not run here, and why."""


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path, language: str) -> list[str]:
    found = re.findall(
        rf"^ *```{language}\n(.*?)^ *```$",
        page.read_text(encoding="utf-8"),
        re.DOTALL | re.MULTILINE,
    )
    # Those in lists are indented.
    return [textwrap.dedent(block) for block in found]


PYTHON = [
    pytest.param(code, id=f"{name_of(page)}:{number}")
    for page in PAGES
    for number, code in enumerate(blocks(page, "python"), 1)
]


def test_there_are_blocks_to_run() -> None:
    assert len(PYTHON) >= 3


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_block_says_what_it_is(page: Path) -> None:
    fences = re.findall(r"^ *```(.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert set(fences[::2]) <= {"python", "bash", "text"}
    assert set(fences[1::2]) <= {""}


@pytest.mark.parametrize("code", PYTHON)
def test_a_block_runs(code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "<docs>", "exec"), {"__name__": "__docs__"})


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)", page.read_text(encoding="utf-8")):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


# --- every command is one that the program takes ---

KNOWN = dict(commands())
PROGRAM = re.compile(r"^(?:\S*/)?deltacell |^torchrun .*? -m deltacell ")


def typed(page: Path) -> Iterator[str]:
    """Give the commands of a page without the program's name, a line each."""
    for block in blocks(page, "(?:bash|text)"):
        for line in block.replace("\\\n", " ").splitlines():
            if PROGRAM.match(line):
                yield PROGRAM.sub("", line)


COMMANDS = [(name_of(page), line) for page in PAGES for line in typed(page)]


@pytest.mark.parametrize(("page", "line"), COMMANDS)
def test_a_command_is_one(page: str, line: str) -> None:
    words = shlex.split(re.sub(r" > \S+$", "", line), comments=True)
    path: tuple[str, ...] = ()
    while words and (*path, words[0]) in KNOWN:
        path, words = (*path, words[0]), words[1:]
    assert path in KNOWN
    assert not hasattr(KNOWN[path], "commands"), f"{page}: {line}"
    given = KNOWN[path].make_context(" ".join(path), words).params
    if given.get("overrides") and given.get("resume") is None and given.get("config_dir") is None:
        compose(given["overrides"])


# --- the commands of a page run in order ---


def small_runs(folder: Path) -> None:
    """Make the runs and traces that the page of slow runs speaks of."""
    small = [
        "experiment=demo",
        "data.synthetic_genotypes=150",
        "data.batch_size=8",
        "model.hidden=8",
        "trainer.epochs=2",
        "trainer.threads=1",
        "trainer.figures_every=0",
        "trainer.progress=false",
        "loggers.tensorboard=false",
        "profiler.trace=true",
        "profiler.window=[4,2,8,1]",
    ]
    train(compose([*small, f"directory={folder / 'A'}"]))
    for name in ("B", "runs/mine", "runs/before", "runs/after"):
        shutil.copytree(folder / "A", folder / name)
    shutil.copytree(folder / "A" / "traces", folder / "traces")
    (trace,) = (folder / "traces").iterdir()
    shutil.copy(trace, folder / "trace.json.gz")


STAGES: dict[str, Callable[[Path], None]] = {"docs/how-to/slow-run.md": small_runs}
"""What makes what a page takes for granted."""


def checkout(folder: Path) -> None:
    """Copy what is in the repository, with the environment that there is already."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    found = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, found.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    # Older than the environment, which therefore need not be made again.
    for name in ("pyproject.toml", "constraints.txt"):
        os.utime(folder / name, (0, 0))
    (folder / ".venv").symlink_to(ROOT / ".venv")


def run_page(page: Path, folder: Path, **stand_ins: Path | None) -> str:
    """Run the commands of a page; blocks that name what is not here are left out."""
    script = []
    for block in blocks(page, "bash"):
        if not any(name in block for name, value in stand_ins.items() if value is None):
            for name, value in stand_ins.items():
                block = block.replace(name, shlex.quote(str(value)))
            script.append(block)
    # This is one of the tests that these would run.
    lines = re.sub(r"^(make (?:test|check)|bash \.ci/run).*$", "", "\n".join(script), flags=re.M)
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", lines],
        cwd=folder,
        env={
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(folder / "src"),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


OTHERS = [page for page in PAGES[1:] if blocks(page, "bash") and name_of(page) not in NOT_RUN]


@pytest.mark.slow
@pytest.mark.parametrize("page", OTHERS, ids=name_of)
def test_the_commands_of_a_page_run_as_written(page: Path, tmp_path: Path) -> None:
    checkout(tmp_path)
    if name_of(page) in STAGES:
        STAGES[name_of(page)](tmp_path)
    run_page(page, tmp_path)


# --- the README, once, because `make demo` takes its time ---


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkout")
    checkout(folder)
    return folder


@pytest.fixture(scope="module")
def said(folder: Path) -> str:
    data = ROOT.parent / "shared" / "data"
    return run_page(ROOT / "README.md", folder, FOLDER=data if data.is_dir() else None)


@pytest.mark.slow
def test_its_commands_run_as_written(said: str) -> None:
    assert "make demo" in "".join(blocks(ROOT / "README.md", "bash"))
    assert said


@pytest.mark.slow
@pytest.mark.real
def test_real_data_is_imported(said: str, shared_data: Path) -> None:
    assert shared_data.is_dir()
    if "FOLDER" in "".join(blocks(ROOT / "README.md", "bash")):
        assert "costanzo2010" in said


@pytest.mark.slow
def test_the_demo_is_made(said: str, folder: Path) -> None:
    found = re.search(r"^(\d+) of the 20 untested triples", said, re.MULTILINE)
    assert found is not None
    assert int(found[1]) >= 8
    page = folder / "demo" / "index.html"
    for target in re.findall(r'href="([^"#:]+)"', page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), target
