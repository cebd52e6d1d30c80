"""What the demonstration does, where it refuses to, and that it finds what was planted."""

from __future__ import annotations

from functools import partial
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from deltacell import Cell, Screen
from deltacell.cli.app import app
from deltacell.demo import steps as module
from deltacell.demo.steps import FIRST, clear, head_of_ranking, recovered, steps
from deltacell.errors import InputError
from deltacell.predict.gene_sets import Combinations
from deltacell.screen import Genotypes
from deltacell.screen.import_folder import Imported
from deltacell.screen.synthetic import Planted
from deltacell.train.data import load_data
from deltacell.train.run_directory import resumed_config

SEED = 3
QUIET = ["trainer.figures_every=0", "trainer.progress=false", "loggers.tensorboard=false"]


def test_every_step_is_a_command_that_exists(tmp_path: Path) -> None:
    for step in steps(tmp_path / "demo", seed=1):
        words = [word for word in step.command if not word.startswith("-")]
        command = words[:2] if words[0] == "data" else words[:1]
        assert CliRunner().invoke(app, [*command, "--help"]).exit_code == 0, step.command
    quoted = steps(tmp_path / "my demo", seed=0)[1].command
    assert f"data.folder='{tmp_path / 'my demo'}'" in quoted
    assert {"data.folder=demo", "directory=demo/pairs"} < set(steps("demo", seed=0)[1].command)


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    """A folder as a demonstration that was stopped near its end leaves it, without its runs."""
    folder = tmp_path / "demo"
    app(list(steps(folder, seed=0)[0].command), standalone_mode=False)
    for name in ("evaluation.json", "ranking.parquet", "index.html", ".ranking.html.abc.tmp"):
        (folder / name).write_text("of before")
    (folder / "figures").mkdir()
    (folder / "ranking.parquet.partial").mkdir()
    return folder


def test_an_earlier_one_is_replaced(filled: Path) -> None:
    clear(filled)
    kept = {"cell", "screens", "manifest.json", "account.json"}
    assert {entry.name for entry in filled.iterdir()} == kept
    clear(filled.parent / "new")


@pytest.mark.parametrize("foreign", ["thesis.txt", "dango/notes"])
def test_nothing_is_removed_where_something_else_is_too(filled: Path, foreign: str) -> None:
    (filled / foreign).parent.mkdir(exist_ok=True)
    (filled / foreign).write_text("years of work")
    before = sorted(entry.name for entry in filled.rglob("*"))
    with pytest.raises(InputError):
        clear(filled)
    assert sorted(entry.name for entry in filled.rglob("*")) == before


def test_data_of_a_user_are_not_replaced(tmp_path: Path) -> None:
    cell = Cell.synthetic("demo")
    Imported(cell, {"kuzmin2018": Screen.synthetic(cell, n=60)}).save(tmp_path / "data")
    with pytest.raises(InputError) as caught:
        clear(tmp_path / "data")
    assert caught.value.code == "not-a-demo"


def part(n: int, n_genes: int) -> tuple[Cell, Screen]:
    whole = Cell.synthetic("demo", seed=SEED)
    screen = Screen.synthetic(whole, n=n, seed=SEED)
    cell = whole.subset(np.unique(screen.genotypes.genes.numpy())[:n_genes])
    return cell, screen.on(cell, on_unknown="drop")


def ranked_one_by_one(cell: Cell, screen: Screen) -> list[tuple[int, ...]]:
    """Every triple that a ranking of untested sets has, found without the code of rankings."""
    measured = {tuple(sorted(genotype.tolist())) for genotype in screen.genotypes}
    genes, found = cell.genes, []
    for triple in combinations(np.unique(screen.genotypes.genes.numpy()).tolist(), 3):
        near = any(
            genes.chromosome[a] == genes.chromosome[b]
            and max(genes.start[b] - genes.end[a], genes.start[a] - genes.end[b]) < 200_000
            for a, b in combinations(triple, 2)
        )
        tested = screen.coverage.tested(np.array(triple), np.array([0, 3]), cell.n_genes)[0]
        if not near and not tested and triple not in measured:
            found.append(triple)
    return found


def test_chance_is_the_share_of_planted_sets_among_all_that_are_ranked() -> None:
    cell, screen = part(300, 24)
    ranked = ranked_one_by_one(cell, screen)
    planted = Planted.of(cell, SEED).is_planted(Genotypes.of(ranked))
    assert 0 < planted.sum() < len(ranked)
    head = [[cell.genes[gene] for gene in ranked[i]] for i in range(30)]
    found = recovered(cell, screen, head, SEED)
    assert (found.sets, found.planted_sets) == (len(ranked), planted.sum())
    assert found.planted == tuple(planted[:FIRST])
    assert found.chance == pytest.approx(FIRST * planted.mean())
    with pytest.raises(InputError):
        recovered(cell, screen, [["NOWHERE", cell.genes[0], cell.genes[1]]], SEED)


def test_chance_is_the_same_however_the_sets_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    cell, screen = part(2_000, 60)
    head = [[cell.genes[gene] for gene in (0, 1, 2)]]
    whole = recovered(cell, screen, head, SEED)
    # Tiles are mixed, so that the genes of a set do not ascend.
    monkeypatch.setattr(module, "Combinations", partial(Combinations, sets_per_piece=8**3))
    assert recovered(cell, screen, head, SEED) == whole


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_the_head_of_the_ranking_is_planted(seed: int, tmp_path: Path) -> None:
    folder = tmp_path / "demo"
    # The networks take longer, and do not rank.
    others = (f"{folder}/dango", f"{folder}/hetero_cell")
    for step in steps(folder, seed):
        if step.command[0] in ("data", "predict"):
            app([w for w in step.command if w not in others], standalone_mode=False)
        elif "experiment=demo_pairs" in step.command:
            app([*step.command, *QUIET], standalone_mode=False)
    data = load_data(resumed_config(folder / "pairs"))
    head = [row["genes"] for row in head_of_ranking(folder)]
    found = recovered(data.cell, data.screen, head, seed)
    assert len(found.planted) == FIRST == 20
    assert found.chance < 2
    assert found.found >= 15
