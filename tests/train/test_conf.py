"""The configs that ship make sense, fit their data, are documented and reach the wheel."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from deltacell import Cell
from deltacell.errors import InputError
from deltacell.models import STRING_RELATIONS
from deltacell.screen.import_folder import import_folder
from deltacell.train.check import ANY_KEYS, CHOICES, RANGES, check, keys_of
from deltacell.train.compose import GROUPS, compose, from_yaml, options, to_yaml
from deltacell.train.config import LOSS_CONFIGS, MODEL_CONFIGS, Config, NetworkConfig
from deltacell.train.config_reference import PAGE, meaning, reference

ROOT = Path(__file__).resolve().parents[2]
EXPERIMENTS = [
    "costanzo2010_dango",
    "costanzo2010_hetero",
    "costanzo2010_pair_cell",
    "costanzo2010_pairs",
    "demo",
    "demo_hetero",
    "demo_pairs",
    "kuzmin2018_dango",
    "kuzmin2018_hetero",
]
ABLATIONS = ["no_gather", "no_metabolism", "one_relation", "string_merged"]
# What an experiment does not have cannot be taken away.
NOTHING_TO_TAKE = {
    ("costanzo2010_hetero", "no_gather"): "in the loss 'log_cosh'",
    ("demo", "no_gather"): "in the loss 'dango'",
    ("demo_hetero", "no_gather"): "in the loss 'log_cosh'",
    ("kuzmin2018_dango", "no_gather"): "in the loss 'dango'",
    ("costanzo2010_dango", "no_metabolism"): "in the model 'dango'",
    ("demo", "no_metabolism"): "in the model 'dango'",
    ("kuzmin2018_dango", "no_metabolism"): "in the model 'dango'",
    ("demo_hetero", "no_metabolism"): "changes nothing",
    ("kuzmin2018_hetero", "no_metabolism"): "changes nothing",
    ("costanzo2010_pairs", "no_gather"): "in the loss 'none'",
    ("demo_pairs", "no_gather"): "in the loss 'none'",
    **{
        (experiment, ablation): f"in the model '{model}'"
        for experiment, model in (
            ("costanzo2010_pairs", "pair_trees"),
            ("demo_pairs", "pair_trees"),
            ("costanzo2010_pair_cell", "pair_cell"),
        )
        # What these see of the relations is set by data.relations.
        for ablation in ("no_metabolism", "one_relation", "string_merged")
    },
}


@cache
def shipped(experiment: str) -> Config:
    return compose([f"experiment={experiment}"])


def relations(config: Config, cell: Cell) -> set[str]:
    """Return the names of a cell's relations after what the config does to them."""
    if config.data.relations is not None:
        cell = cell.with_relations(config.data.relations)
    return set(cell.merge_relations(config.data.merge_relations).relations)


def fits(config: Config, cell: Cell) -> bool:
    assert isinstance(config.model, NetworkConfig)
    wanted = config.model.relations
    if wanted is None:
        wanted = list(STRING_RELATIONS) if config.model.name == "dango" else []
    return set(wanted) <= relations(config, cell)


def test_what_ships_is_what_the_tests_know() -> None:
    assert options("experiment") == EXPERIMENTS
    assert options("ablation") == ABLATIONS
    assert options("model") == list(MODEL_CONFIGS)
    assert options("loss") == list(LOSS_CONFIGS)
    assert sorted(options("schedule")) == sorted(CHOICES["schedule.name"])


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_an_experiment_composes_and_comes_back_from_its_file(experiment: str) -> None:
    config = shipped(experiment)
    check(config)
    assert config.name == experiment
    assert from_yaml(to_yaml(config)) == config
    assert "${" not in to_yaml(config)


@pytest.mark.parametrize("experiment", EXPERIMENTS)
@pytest.mark.parametrize("ablation", ABLATIONS)
def test_an_ablation_takes_away_or_says_that_it_cannot(experiment: str, ablation: str) -> None:
    overrides = [f"experiment={experiment}", f"ablation={ablation}"]
    said = NOTHING_TO_TAKE.get((experiment, ablation))
    if said is not None:
        with pytest.raises(InputError, match=said):
            compose(overrides)
        return
    config = compose(overrides)
    check(config)
    assert config != shipped(experiment)
    if ablation == "one_relation":
        assert getattr(config.model, "relations", None) == ["string_database"]
    if config.data.synthetic is not None:
        assert fits(config, Cell.synthetic("demo"))


@pytest.mark.parametrize("model", ["dango", "hetero_cell"])
@pytest.mark.parametrize("loss", ["log_cosh", "point_distribution_contrast"])
def test_the_demo_composes_with_any_model_and_loss(model: str, loss: str) -> None:
    config = compose(["experiment=demo", f"model={model}", f"loss={loss}"])
    assert (config.model.name, config.loss.name) == (model, loss)
    assert isinstance(config.model, NetworkConfig)
    assert config.model.hidden == 32


def test_several_ablations_go_together() -> None:
    both = "ablation=[string_merged,no_metabolism]"
    config: Any = compose(["experiment=costanzo2010_hetero", both])
    assert not config.model.metabolism
    assert list(config.data.merge_relations) == ["string"]


@pytest.mark.parametrize("experiment", ["demo", "demo_hetero"])
def test_the_demos_fit_the_demo_cell(experiment: str) -> None:
    config: Any = shipped(experiment)
    cell = Cell.synthetic("demo")
    assert fits(config, cell)
    assert set(config.model.features or ()) <= set(cell.features)


@pytest.mark.real
def test_the_costanzo_experiments_fit_the_real_networks(shared_data: Path) -> None:
    cell = import_folder(shared_data / "networks").cell
    dango = shipped("costanzo2010_dango")
    assert set(dango.data.relations or ()) == set(cell.relations)
    for experiment in ("costanzo2010_dango", "costanzo2010_hetero"):
        for more in ([], ["ablation=one_relation"], ["ablation=string_merged"]):
            assert fits(compose([f"experiment={experiment}", *more]), cell)


DEMO = shipped("demo")
HETERO = shipped("kuzmin2018_hetero")


@pytest.mark.parametrize(
    ("config", "part", "changes", "said"),
    [
        (DEMO, "data", {"batch_size": 0}, "data.batch_size is 0; expected 1 or more"),
        (DEMO, "data", {"synthetic": None}, "nothing to train on"),
        (DEMO, "data", {"synthetic": "human"}, "no data.synthetic 'human'"),
        (DEMO, "data", {"folder": "x"}, "2 sources of data: data.folder=x and data.synthetic=demo"),
        (DEMO, "data", {"synthetic": None, "cell": "x"}, "there is no screen"),
        (DEMO, "data", {"screen": "x"}, "the made-up data has its own"),
        (DEMO, "data", {"merge": "max"}, "no data.merge 'max'"),
        (DEMO, "data", {"relations": []}, "data.relations is empty"),
        (DEMO, "data", {"relations": ["a", "b", "a"]}, "data.relations names 'a' twice"),
        (DEMO, "data", {"merge_relations": {"x": []}}, "data.merge_relations.x is empty"),
        (DEMO, "split", {"method": "gen"}, "no split.method 'gen'; did you mean 'gene'?"),
        (DEMO, "split", {"test": 0.0}, "split.test is 0.0; expected more than 0"),
        (DEMO, "split", {"test": float("nan")}, "split.test is nan"),
        (DEMO, "split", {"method": "random", "test": 0.95}, "nothing is left for training"),
        (DEMO, "split", {"method": "source"}, "no study is named, so there is no test part"),
        (DEMO, "split", {"studies": ["a"]}, "Give split.method=source"),
        (DEMO, "model", {"heads": 5}, "model.heads is 5, which does not divide model.hidden, 32"),
        (DEMO, "model", {"relations": ["physical"]}, "Give model.lambdas.physical=1.0"),
        (DEMO, "model", {"relations": ["a", "b"]}, "model.lambdas.a=1.0 model.lambdas.b=1.0"),
        (DEMO, "model", {"lambdas": {"x": -1.0}}, "model.lambdas.x is -1.0"),
        (HETERO, "model", {"z_norm": "layer"}, "There are scale, norm, none"),
        (HETERO, "model", {"dropout": 1.0}, "0 or more and less than 1"),
        (HETERO, "model", {"output": "mean", "local_heads": 7}, "does not divide"),
        (HETERO, "model", {"features": ["a", "a"]}, "model.features names 'a' twice"),
        (DEMO, "loss", {"schedule": "never"}, "no loss.schedule 'never'"),
        (HETERO, "loss", {"lambda_mse": 0.0, "lambda_w": 0.0}, "there is no loss"),
        (HETERO, "loss", {"stable": 3}, "loss.stable is epoch 3, before loss.warmup"),
        (DEMO, "optimizer", {"lr": 0.0}, "optimizer.lr is 0.0; expected more than 0"),
        (DEMO, "optimizer", {"lr": float("inf")}, "optimizer.lr is inf"),
        (DEMO, "schedule", {"name": "step"}, "no schedule.name 'step'"),
        (DEMO, "schedule", {"min_lr": 1.0}, "above optimizer.lr"),
        (DEMO, "trainer", {"epochs": 0}, "trainer.epochs is 0"),
        (DEMO, "trainer", {"precision": "16"}, "There are 32, 64, bf16"),
        (DEMO, "trainer", {"devices": 100, "nodes": 2}, "200 processes share it out"),
        (DEMO, "profiler", {"window": [1, 2, 3]}, "expected four whole numbers"),
        (DEMO, "profiler", {"window": [1, 2, 0, 1]}, "the last two 1 or more"),
        (DEMO, "profiler", {"kind": "perf"}, "no profiler.kind 'perf'"),
        (DEMO, None, {"propagation": "deltas"}, "did you mean 'delta'?"),
        (DEMO, None, {"propagation": "dense", "max_bytes": 9}, "has no such bound"),
        (DEMO, None, {"name": "a/b"}, "cannot be the name of a run"),
        (HETERO, None, {"loss": DEMO.loss}, "which the model hetero_cell does not make"),
    ],
)
def test_what_makes_no_sense_is_said(
    config: Config, part: str | None, changes: dict[str, Any], said: str
) -> None:
    check(config)
    if part is not None:
        changes = {part: replace(getattr(config, part), **changes)}
    with pytest.raises(InputError) as caught:
        check(replace(config, **changes))
    assert said in str(caught.value)


def test_every_number_and_choice_that_is_checked_is_a_key() -> None:
    assert set(RANGES) | set(CHOICES) <= set(ANY_KEYS)


def test_every_number_has_a_range() -> None:
    kinds = (int, float, int | None, float | None)
    numbers = {n for n, key in ANY_KEYS.items() if key.annotation in kinds}
    assert numbers <= set(RANGES)


@pytest.mark.parametrize("model", MODEL_CONFIGS.values())
@pytest.mark.parametrize("loss", LOSS_CONFIGS.values())
def test_every_key_has_a_meaning(model: Any, loss: Any) -> None:
    for key in keys_of(model, loss).values():
        assert meaning(key), key.name


def test_the_reference_page_is_up_to_date() -> None:
    page = (ROOT / PAGE).read_text(encoding="utf-8")
    assert page == reference(), (
        "write it anew: python -c 'from deltacell.train.config_reference import write_reference; "
        "write_reference()'"
    )
    for name in ANY_KEYS:
        assert f"| `{name}` |" in page


def test_every_file_begins_with_what_it_is() -> None:
    choices = (ROOT / PAGE).read_text(encoding="utf-8").split("## The run")[0]
    assert "|  |" not in choices
    assert all(f"`{group}={name}`" in choices for group in GROUPS for name in options(group))


def test_the_wheel_has_every_config() -> None:
    wheel = pytest.importorskip("hatchling.builders.wheel", reason="hatchling is not installed")
    builder = wheel.WheelBuilder(str(ROOT))
    packed = {file.distribution_path for file in builder.recurse_included_files()}
    configs = {
        str(path.relative_to(ROOT / "src"))
        for path in (ROOT / "src" / "deltacell" / "conf").rglob("*.yaml")
    }
    assert len(configs) > 15
    assert configs <= packed
    assert "deltacell/conf/__init__.py" in packed
