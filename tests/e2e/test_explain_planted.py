"""Delays planted in this program's own training are found and named, by phases and by traces."""

import os
import time

import pytest

from deltacell.profile.explain import explain
from deltacell.screen import Loader
from deltacell.train.config.compose import compose
from deltacell.train.run import train
from deltacell.train.task import Task

# Far more than a step takes, so that what else runs on the machine does not decide.
DELAY = 0.3
TRACED = (
    *("data.synthetic_genotypes=150", "data.batch_size=8", "trainer.epochs=1"),
    *("profiler.trace=true", "profiler.window=[2,1,6,1]"),
)


@pytest.fixture(scope="module")
def plain(tmp_path_factory, training):
    """A run without any delay."""
    path = tmp_path_factory.mktemp("plain") / "plain"
    train(compose([*training.SMALL, *TRACED, f"directory={path}"]))
    return path


def delayed_loader(patch):
    through = Loader.__iter__

    def late(self):
        for batch in through(self):
            time.sleep(DELAY)
            yield batch

    patch.setattr(Loader, "__iter__", late)


def delayed_loss(patch):
    through = Task._loss
    patch.setattr(Task, "_loss", lambda *given: (time.sleep(DELAY), through(*given))[1])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("plant", "part"),
    [(delayed_loader, "data loading"), (delayed_loss, "loss")],
)
def test_a_delay_is_found_and_named(plant, part, plain, tmp_path, monkeypatch, training):
    plant(monkeypatch)
    train(compose([*training.SMALL, *TRACED, f"directory={tmp_path / 'late'}"]))
    by_phases = explain(plain, tmp_path / "late")
    by_traces = explain(plain / "traces", tmp_path / "late" / "traces")
    for found, per_sample in ((by_phases, 8), (by_traces, 1)):
        lead = max(found.comparison.steps.bars, key=lambda bar: bar.change)
        assert lead.part == part
        assert lead.change > 0.8 * DELAY / per_sample
        # On a busy machine, the sentence may begin with the machine.
        assert f"{part} accounts for +" in found.sentence
        assert found.advice[0].startswith(f"{part}: ")
    alone = explain(tmp_path / "late")
    assert max(alone.accounts[0].parts, key=lambda name: alone.accounts[0].parts[name]) == part


LATE_RANK = f"""
import os, time
if os.environ.get("RANK") == "1":
    import deltacell.train.task as task
    through = task.Task._loss
    def late(self, *given):
        time.sleep({DELAY})
        return through(self, *given)
    task.Task._loss = late
"""


# Ranks that wait are also simulated, in devtools/deltacell_dev/bench/causes.yaml.
@pytest.mark.slow
@pytest.mark.full
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="two processes need two cores here")
def test_a_late_rank_is_found_and_named(tmp_path, training):
    words = [*training.SMALL, *TRACED, "trainer.devices=2", f"directory={tmp_path / 'run'}"]
    training.end(training.start(tmp_path, "train", *words, first=LATE_RANK), 0)
    for path, said in (("run", "Rank 1 arrives last"), ("run/traces", "The ranks wait for rank 1")):
        found = explain(tmp_path / path)
        assert found.sentence.startswith(said)
        assert "more than they do in loss" in found.sentence
