"""A run that may only be read, such as a colleague's, can be tested, ranked with and explained."""

import errno
import os
import shutil
import sys
from pathlib import Path

import pytest

from deltacell.cli.app import app

WRITES = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.link", "os.chmod")
read_only: set[str] = set()
"""Folders in which this process may write nothing; the tests may run as root, who may always."""


def refuse(event, arguments):
    if not read_only:
        return
    paths = arguments[:2] if event in ("os.rename", "os.link") else arguments[:1]
    if event == "open":
        flags = arguments[2]
        if not isinstance(flags, int) or not flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            return
    elif event not in WRITES:
        return
    for path in paths:
        if isinstance(path, str | bytes | os.PathLike):
            place = os.path.realpath(os.fsdecode(path))
            if any(place == folder or place.startswith(f"{folder}/") for folder in read_only):
                raise OSError(errno.EROFS, os.strerror(errno.EROFS), place)


@pytest.fixture(scope="module")
def watched():
    sys.addaudithook(refuse)


@pytest.fixture
def kept(tmp_path, watched):
    """A function that copies a run to where nothing may be written."""

    def copy(run: Path) -> Path:
        place = Path(shutil.copytree(run, tmp_path / "colleague" / run.name))
        read_only.add(os.path.realpath(place.parent))
        return place

    yield copy
    read_only.clear()


def contents(folder):
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_folder_cannot_be_written(runs, kept):
    run = kept(runs["trees"])
    for write in (
        lambda: (run / "new").write_text("x"),
        lambda: (run / "run.json").unlink(),
        lambda: (run / "new").mkdir(),
        lambda: (run / "run.json").rename(run.parent.parent / "taken"),
    ):
        with pytest.raises(OSError, match="Read-only"):
            write()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["trees", "seed0"])
def test_every_command_that_reads_a_run_works(runs, kept, tmp_path, name):
    run = kept(runs[name])
    before = contents(run)
    gene_pair = "YAL0009C YAL0008C"
    out = tmp_path / "elsewhere"
    out.mkdir()
    ranking = ("--out", out / "ranking.parquet", "--html", out / "r.html")
    commands = [
        ["evaluate", run, "--baselines", "additive", "--json", out / "evaluation.json"],
        ["predict", run, "--sets", "pairs", "--top", "3", *ranking],
        ["why", run, gene_pair, "--html", out / "why.html"],
    ]
    names = {"evaluation.json", "ranking.parquet", "r.html", "why.html"}
    if name == "seed0":  # A predictor that is fitted in one call has no steps to explain.
        commands.append(["explain", run, "--html", out / "explanation.html"])
        names.add("explanation.html")
    for words in commands:
        assert (app([str(word) for word in words], standalone_mode=False) or 0) == 0, words
    assert {path.name for path in out.iterdir()} == names
    assert contents(run) == before


@pytest.mark.slow
def test_training_it_further_is_refused(runs, kept, refused):
    run = kept(runs["seed0"])
    before = contents(run)
    refused("not-written", app, ["train", "--resume", str(run), "trainer.epochs=2"])
    assert contents(run) == before
