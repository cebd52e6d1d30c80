"""Fit pair trees on a synthetic screen and print digests: equal lines are equal to the bit.

Run it in two environments to see which numbers depend on the version of a package:

    OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 python -m deltacell_dev.same_numbers
"""

import argparse
import hashlib
import platform
from importlib.metadata import version

import numpy as np
import torch

from deltacell.cell import Cell
from deltacell.models.pairs import PairTrees
from deltacell.screen import Screen, Split

PACKAGES = ("numpy", "scipy", "lightgbm", "polars", "torch")


def digest(content: bytes) -> str:
    """Return the first twelve digits of the SHA-256."""
    return hashlib.sha256(content).hexdigest()[:12]


def main() -> None:
    """Fit, and print a line for each stage."""
    parser = argparse.ArgumentParser(description="Digests of a fit of pair trees.")
    parser.add_argument("--genotypes", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--leaves", type=int, default=7)
    parser.add_argument("--scores", help="write the scores of the test sets to this .npy file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    cell = Cell.synthetic("demo")
    screen = Screen.synthetic(cell, n=options.genotypes)
    split = Split.random(screen)
    targets = screen.column("score").astype(np.float64)
    training = screen.genotypes.take(torch.tensor(split.train))
    held_out = screen.genotypes.take(torch.tensor(split.validation))
    validation = (held_out, targets[split.validation])
    predictor = PairTrees(rounds=options.rounds, leaves=options.leaves)
    predictor.fit(cell, training, targets[split.train], validation=validation)
    state = predictor.state_dict()
    scores = predictor(cell, screen.genotypes.take(torch.tensor(split.test))).score
    print("python", platform.python_version(), *(f"{name} {version(name)}" for name in PACKAGES))
    print("training targets", digest(targets[split.train].tobytes()))
    print("embeddings of networks and features", digest(state["components"].numpy().tobytes()))
    print("factors of the measured pairs", digest(state["factors"].numpy().tobytes()))
    print("trees", digest(state["size"].encode()))
    print("scores of test sets", digest(scores.numpy().tobytes()))
    if options.scores is not None:
        np.save(options.scores, scores.double().numpy())


if __name__ == "__main__":
    main()
