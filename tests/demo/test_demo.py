"""What the demonstration does, where it refuses to, and that it finds what was planted."""

from functools import partial
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from deltacell import Cell, Screen
from deltacell.base.errors import InputError
from deltacell.cli.app import app
from deltacell.data.import_folder import Imported
from deltacell.demo import steps as module
from deltacell.demo.steps import FIRST, clear, head_of_ranking, recovered, steps
from deltacell.profile.record import Reached, RunRecord, Status, write_run
from deltacell.ranking.gene_sets import Combinations
from deltacell.screen import Genotypes
from deltacell.screen.synthetic import Planted
from deltacell.train.data import load_data
from deltacell.train.run_config import resumed_config

SEED = 3
QUIET = ["trainer.figures_every=0", "trainer.progress=false", "loggers.tensorboard=false"]


def test_a_folder_is_quoted_for_hydra_where_it_needs_it(tmp_path):
    quoted = steps(tmp_path / "my demo", seed=0)[1].command
    assert f"data.folder='{tmp_path / 'my demo'}'" in quoted
    plain = steps(Path("demo"), seed=0)[1].command
    assert {"data.folder=demo", "directory=demo/pairs"} < set(plain)


def test_the_best_run_by_validation_ranks(tmp_path):
    about = {"started": "", "status": Status.finished, "mode": "train", "seed": 0, "command": ()}
    for name, value in {"pairs": 0.4, "dango": 0.5, "hetero_cell": 0.3}.items():
        (tmp_path / name).mkdir()
        best = Reached(epoch=1, step=1, file="x.ckpt", value=value)
        write_run(tmp_path / name, RunRecord(**about, name=name, best=best))
    assert steps(tmp_path)[-1].command[:2] == ("predict", f"{tmp_path}/dango")


def test_an_earlier_one_is_removed_and_nothing_where_something_else_is_too(tmp_path):
    folder = tmp_path / "demo"
    clear(folder)
    # As one that was stopped near its end leaves it, without its runs.
    app(list(steps(folder, seed=0)[0].command), standalone_mode=False)
    for name in ("evaluation.json", "ranking.parquet", ".ranking.html.abc.tmp"):
        (folder / name).write_text("of before")
    (folder / "ranking.parquet.partial").mkdir()
    for foreign in ("thesis.txt", "dango/notes"):
        (folder / foreign).parent.mkdir(exist_ok=True)
        (folder / foreign).write_text("years of work")
        before = sorted(entry.name for entry in folder.rglob("*"))
        with pytest.raises(InputError):
            clear(folder)
        assert sorted(entry.name for entry in folder.rglob("*")) == before
        (folder / foreign).unlink()
    (folder / "dango").rmdir()
    clear(folder)
    assert not folder.exists()
    # Data of a user are called a cell and screens too.
    cell = Cell.synthetic("demo")
    Imported(cell, {"kuzmin2018": Screen.synthetic(cell, n=60)}).save(folder)
    with pytest.raises(InputError) as caught:
        clear(folder)
    assert caught.value.code == "not-a-demo"


def test_a_kill_while_an_earlier_one_is_removed_does_not_block_the_next(tmp_path, monkeypatch):
    folder = tmp_path / "demo"
    app(list(steps(folder, seed=0)[0].command), standalone_mode=False)

    def killed(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(module.shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            clear(folder)
    assert not folder.exists()
    clear(folder)


def ranked_one_by_one(cell: Cell, screen: Screen) -> list[tuple[int, ...]]:
    """Every triple that a ranking of untested sets has, found without the code of rankings."""
    measured = {tuple(sorted(genotype.tolist())) for genotype in screen.genotypes}
    crossed = {
        tuple(sorted({*query.tolist(), array}))
        for study in screen.coverage.studies
        for query in np.split(study.query_genes, study.query_offsets[1:-1])
        for array in study.array_genes.tolist()
    }
    genes, found = cell.genes, []
    for triple in combinations(np.unique(screen.genotypes.genes.numpy()).tolist(), 3):
        near = any(
            genes.chromosome[a] == genes.chromosome[b]
            and max(genes.start[b] - genes.end[a], genes.start[a] - genes.end[b]) < 200_000
            for a, b in combinations(triple, 2)
        )
        if not near and triple not in crossed and triple not in measured:
            found.append(triple)
    return found


def test_chance_is_the_share_of_planted_sets_among_all_that_are_ranked(monkeypatch):
    whole = Cell.synthetic("demo", seed=SEED)
    screen = Screen.synthetic(whole, n=300, seed=SEED)
    cell = whole.subset(np.unique(screen.genotypes.genes.numpy())[:24])
    screen = screen.on(cell, on_unknown="drop")
    ranked = ranked_one_by_one(cell, screen)
    planted = Planted.of(cell, SEED).effect(Genotypes.of(ranked)) != 0
    assert 0 < planted.sum() < len(ranked)
    head = [[cell.genes[gene] for gene in ranked[i]] for i in range(30)]
    found = recovered(cell, screen, head, SEED)
    assert (found["sets"], found["planted"]) == (len(ranked), planted.sum())
    assert found["head"] == planted[:FIRST].tolist()
    assert found["chance"] == pytest.approx(FIRST * planted.mean(), abs=0.01)
    with pytest.raises(InputError):
        recovered(cell, screen, [["NOWHERE", cell.genes[0], cell.genes[1]]], SEED)
    # Tiles are mixed, so that the genes of a set do not ascend.
    monkeypatch.setattr(module, "Combinations", partial(Combinations, sets_per_piece=4**3))
    assert recovered(cell, screen, head, SEED) == found


@pytest.mark.slow
def test_the_head_of_the_ranking_is_planted(tmp_path):
    folder, seed = tmp_path / "demo", 0
    synthetic, pairs, *_, predict = (step.command for step in steps(folder, seed))
    app(list(synthetic), standalone_mode=False)
    app([*pairs, *QUIET], standalone_mode=False)
    data = load_data(resumed_config(folder / "pairs"))
    # The networks take longer, and do not rank; triples of a third of the genes are enough.
    third = np.unique(data.screen.genotypes.genes.numpy())[::3]
    (tmp_path / "third").write_text("".join(f"{data.cell.genes[gene]}\n" for gene in third))
    app([*predict, "--genes", str(tmp_path / "third")], standalone_mode=False)
    head = [row["genes"] for row in head_of_ranking(folder)]
    found = recovered(data.cell, data.screen, head, seed)
    assert found["of"] == FIRST == 20
    assert found["chance"] < 2
    assert found["found"] >= 15
