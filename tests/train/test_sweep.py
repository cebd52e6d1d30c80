"""Sweeps by Hydra: every combination is trained once, and lists of runs say how they differ."""

import json
import math

import polars as pl
import pytest

from deltacell.profile.record import Status, read_run
from deltacell.report.runs import runs_page
from deltacell.train.config.compose import compose
from deltacell.train.listed_runs import differing_keys, runs_in, write_runs
from deltacell.train.run import train as train_config
from deltacell.train.sweep import SweepStopped, _trained, run_sweep

FAST = (
    *("data.synthetic=demo", "data.synthetic_genotypes=200", "model=additive"),
    "trainer.progress=false",
)


class Trainer:
    """Counts what is trained; `signals` are those that stop it, by the number of the run."""

    def __init__(self, signals=()):
        self.trained = []
        self.signals = dict(signals)

    def __call__(self, config, words):
        signal = self.signals.get(len(self.trained), 0)
        self.trained.append((config.seed, config.split.seed))
        assert compose(words) == config
        if not signal:
            train_config(config)
        return signal


@pytest.fixture
def sweep(tmp_path):
    """Run a sweep in a folder; return what was trained."""

    def run(*words, trainer=None, folder="sweep"):
        trainer = Trainer() if trainer is None else trainer
        place = tmp_path / folder
        told = run_sweep([*words, f"hydra.sweep.dir={place}"], compose, trainer)
        assert told == place
        return trainer.trained

    return run


def test_every_combination_is_a_run_and_a_rerun_skips_them(sweep, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = (*FAST, "seed=0,1", "split.seed=3,4")
    combinations = [(0, 3), (0, 4), (1, 3), (1, 4)]
    assert sweep(*words) == combinations
    listed = runs_in(tmp_path / "sweep")
    assert sorted(run.name for run in listed.runs) == [
        f"seed={seed},split.seed={of_split}" for seed, of_split in combinations
    ]
    assert listed.keys == ["seed", "split.seed"]
    assert sweep(*words) == []
    # Values that were added later are trained beside those that are there.
    assert sweep(*FAST, "seed=0,1,2", "split.seed=3,4") == [(2, 3), (2, 4)]
    path = tmp_path / "sweep" / "seed=1,split.seed=4"
    overrides = [*FAST, "seed=1", "split.seed=4"]
    best = _trained(path, overrides, compose, Trainer(signals={0: 9}))
    assert best == read_run(path).best.value
    assert math.isfinite(best)


def test_a_stopped_sweep_goes_on_where_it_stopped(sweep):
    trainer = Trainer(signals={1: 15})
    with pytest.raises(SweepStopped) as stopped:
        sweep(*FAST, "seed=0,1,2", trainer=trainer)
    assert stopped.value.args == (15,)
    assert [seed for seed, _ in trainer.trained] == [0, 1]
    assert [seed for seed, _ in sweep(*FAST, "seed=0,1,2")] == [1, 2]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("seed=0",), "nothing-to-sweep"),
        (("seed=0,1", "model=additive,additiv"), "unknown-name"),
        (("seed=0,1", "trainer.epohcs=3,4"), "unknown-key"),
        (("seed=0,-1",), "out-of-range"),
        (("seed=0,1", "name='"), "unreadable-override"),
        (("seed=interval(0,1)",), "unknown-sweep"),
    ],
)
def test_mistakes_are_found_before_the_first_training(words, code, sweep, refused, tmp_path):
    refused(code, sweep, *FAST, *words)
    assert list(tmp_path.iterdir()) == []


def test_runs_of_another_sweep_are_not_taken_for_its_own(sweep, refused):
    sweep(*FAST, "seed=0,1")
    refused("run-exists", sweep, *FAST, "data.synthetic_seed=1", "seed=0,1")


def test_a_list_has_the_best_first_and_names_what_cannot_be_read(sweep, tmp_path, refused):
    refused("no-runs", runs_in, tmp_path)
    refused("no-directory", runs_in, tmp_path / "nothing")
    sweep(*FAST, "seed=0,1,2", "split.seed=0,1")
    damaged = tmp_path / "sweep" / "seed=2,split.seed=0" / "run.json"
    damaged.write_text(json.dumps({}))
    listed = runs_in(tmp_path)
    values = [run.validation for run in listed.runs]
    assert values[-1] is None
    assert values[:-1] == sorted(values[:-1], reverse=True)
    assert [run.status == Status.finished.value for run in listed.runs] == [True] * 5 + [False]
    write_runs(listed, tmp_path / "runs.csv")
    table = pl.read_csv(tmp_path / "runs.csv", infer_schema=False)
    assert table.columns == ["run", "status", "validation_pearson", "epoch", "seed", "split.seed"]
    assert table["seed"].to_list()[-1] is None
    page = runs_page(listed, "<folder>")
    assert "<folder>" not in page
    assert page.count("<tr>") == 1 + len(listed.runs)


def test_keys_differ_if_one_config_lacks_them():
    settings = [{"a": 1, "b": None}, {"a": 1, "b": None, "c": 2}, {}]
    assert differing_keys(settings) == ["c"]
