"""Planted pairs with real trials: what differs between two trainings is named by their times.

Threads, ranks, gather and propagation are planted in simulated trials only, see test_compare.py.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from deltacell.models.variation import VariationKind
from deltacell.train.comparing.compare import compare_trainings
from deltacell.train.comparing.result import StepPart
from deltacell.train.comparing.sides import TriedSide
from deltacell.train.comparing.trials import AnyArm, ProcessRunner, TrialRow
from deltacell.train.config.compose import compose

pytestmark = [pytest.mark.full, pytest.mark.timed]

DATA = ("data.synthetic_genotypes=3000", "trainer.threads=1", "data.screen_genes_only=false")
DANGO = ("experiment=demo", *DATA)
HETERO = ("experiment=demo_hetero", *DATA, "data.batch_size=16", "model.propagation=shared")
NETWORKS = "physical,regulatory,tflink,string_coexpression,string_database,string_fusion"
SIX = (f"data.relations=[{NETWORKS}]", "model.relations=null", "model.hidden=64")

# Both trainings, what B has in addition, and the kind of the cause.
PLANTED = {
    "batch": ((*DANGO, "data.batch_size=128"), ("data.batch_size=4",), VariationKind.batch),
    "relations": (
        (*HETERO, *SIX, "model.relations=[physical]"),
        ("model.relations=null",),
        VariationKind.relations,
    ),
    "metabolism": (
        (*HETERO, "model.relations=[physical]", "model.layers=3"),
        ("model.metabolism=true",),
        VariationKind.metabolism,
    ),
    "width": ((*HETERO, "model.hidden=8"), ("model.hidden=256",), VariationKind.width),
    "delay": (DANGO, (), StepPart.data),
}

DELAY = """
import time
from deltacell.screen import loader

gather = loader.Loader.__iter__

def delayed(self):
    for batch in gather(self):
        time.sleep(0.2)
        yield batch

loader.Loader.__iter__ = delayed
"""


@dataclass(frozen=True)
class DelayedRunner:
    """Runs trials in processes of their own; those of B wait in the collation of every batch."""

    processes: ProcessRunner
    patch: Path  # a folder with a module that Python imports when it starts

    def __call__(self, arm: AnyArm, turn: int, steps: int) -> TrialRow:
        before = os.environ.get("PYTHONPATH", "")
        if arm.name.startswith("b"):
            os.environ["PYTHONPATH"] = os.pathsep.join([str(self.patch), before])
        try:
            return self.processes(arm, turn, steps)
        finally:
            os.environ["PYTHONPATH"] = before


@pytest.mark.parametrize("name", PLANTED)
def test_what_was_planted_is_named(name: str, tmp_path: Path) -> None:
    common, added, kind = PLANTED[name]
    a = TriedSide("plain", compose(common))
    b = TriedSide("changed", compose([*common, *added]))
    folder = tmp_path / "compared"
    runner: ProcessRunner | DelayedRunner = ProcessRunner(folder)
    if not added:
        (tmp_path / "sitecustomize.py").write_text(DELAY)
        runner = DelayedRunner(ProcessRunner(folder), tmp_path)
    result = compare_trainings(a, b, folder, minutes=2, turns=1, steps=12, run=runner)
    sentence = result.to_json()["sentence"]
    assert result.cause is not None, sentence
    assert result.cause.kind is kind, sentence
    assert result.cause.share > 0.5, sentence
    assert result.ratio >= 2, sentence
