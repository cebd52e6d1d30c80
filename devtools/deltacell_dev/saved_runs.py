"""Write small runs and their predictions, which later versions have to load.

``python -m deltacell_dev.saved_runs tests/saved/VERSION`` imports a small folder, trains a model of
each kind on it, and writes the scores of some gene sets to ``predictions.json``.
tests/train/test_saved_runs.py loads the runs of every version in tests/saved. Only commands and the
verbs of Python are used, so the script also runs with the sources of an earlier version: put them
first on PYTHONPATH, and write to a folder such as /tmp/saved, whose name stays in the configs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

N_GENES = 24
N_PAIRS = 140
SETS = (("g0", "g1"), ("g2", "g9"), ("g3", "g4"), ("g7",), ("g23", "g11"))
NETWORK = ("trainer.epochs=1", "data.batch_size=16", "model.hidden=8", "model.relations=[physical]")
PROPAGATION = ("model=hetero_cell", *NETWORK)
QUIET = ("trainer.threads=1", "trainer.progress=false", "trainer.figures_every=0")
RUNS: dict[str, tuple[str, ...]] = {
    "global_mean": ("model=global_mean",),
    "additive": ("model=additive",),
    "query_pair_mean": ("model=query_pair_mean",),
    "boosted_trees": ("model=boosted_trees", "model.rounds=20"),
    "pair_trees": ("model=pair_trees", "model.rounds=20"),
    "pair_cell": ("model=pair_cell", *NETWORK[:3], "trainer.keep=1"),
    "dango": ("model=dango", *NETWORK, "model.lambdas={physical: 0.5}", "model.heads=2"),
    "hetero_delta": (*PROPAGATION, "propagation=delta", "max_bytes=1000000"),
    "hetero_late": (*PROPAGATION, "propagation=late", "model.mutant_layers=1"),
}
"""The settings of each run; keys that have moved are those of the first version in tests/saved."""


def write_tables(folder: Path) -> None:
    """Write a network and a screen whose scores depend on the genes and on their neighbours."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    effects = rng.normal(size=N_GENES)
    first, second = np.triu_indices(N_GENES, 1)
    chosen = rng.choice(len(first), N_PAIRS, replace=False)
    edges = rng.choice(len(first), 2 * N_GENES, replace=False)
    edge_lines = ["gene1\tgene2", *(f"g{first[i]}\tg{second[i]}" for i in edges)]
    lines = ["query\tarray\tinteraction_score\tp_value"]
    for i in chosen.tolist():
        score = 0.1 * effects[first[i]] * effects[second[i]] + 0.05 * (i in edges)
        lines.append(f"g{first[i]}\tg{second[i]}\t{score:.4f}\t0.01")
    (folder / "physical.tsv").write_text("\n".join(edge_lines) + "\n", encoding="utf-8")
    (folder / "screen.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")


def deltacell(*words: str | Path) -> None:
    """Run a command of the version that is imported; raise if it fails."""
    # Not -m, with which the record of a run would name the place of the sources.
    command = [sys.executable, "-c", "from deltacell.cli import main; main()", *map(str, words)]
    subprocess.run(command, check=True, env=os.environ | {"OMP_NUM_THREADS": "1"})


def write_runs(folder: Path) -> None:
    """Write the data, a run of each model, and the predictions of all runs."""
    write_tables(folder / "tables")
    deltacell("data", "import", folder / "tables", "--out", folder / "data")
    predictions = {}
    for name, settings in RUNS.items():
        path = folder / name
        data = (
            f"data.folder={folder / 'data'}",
            "loggers.tensorboard=false",
            "split.method=random",
        )
        deltacell("train", *settings, *data, *QUIET, f"directory={path}")
        predictions[name] = scores_of(path)
    text = json.dumps(predictions, indent=1)
    (folder / "predictions.json").write_text(text + "\n", encoding="utf-8")


def scores_of(run: Path, sets: Sequence[Sequence[str]] = SETS) -> list[float]:
    """Return the score of each gene set by a run, predicted one by one."""
    import deltacell as dc

    loaded = dc.Run(run)
    return [float(loaded.predict([genes])["score"][0]) for genes in sets]


def main() -> None:
    """Write the runs into the folder that the command names, which must not exist."""
    (folder,) = sys.argv[1:]
    write_runs(Path(folder).absolute())


if __name__ == "__main__":
    main()
