"""Configs: from overrides, from files, what they refuse, and what ships."""

from __future__ import annotations

import threading
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, get_args

import pytest
from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra

from deltacell import Cell
from deltacell.errors import InputError
from deltacell.models import STRING_RELATIONS
from deltacell.propagate import STRATEGIES
from deltacell.screen.import_folder import import_folder
from deltacell.screen.split import Method
from deltacell.train.check import ANY_KEYS, check, keys_of, nearest
from deltacell.train.compose import GROUPS, compose, from_yaml, options, to_dict, to_yaml
from deltacell.train.config import LOSSES, MODELS, Config, Mode
from deltacell.train.config_reference import PAGE, reference

ROOT = Path(__file__).resolve().parents[2]
DEMO = "experiment=demo"
ABLATIONS = ["no_gather", "no_metabolism", "one_relation", "string_merged"]
# What an experiment has, so that it can be taken away.
CAN_TAKE = {
    "costanzo2010_dango": ("no_gather", "one_relation", "string_merged"),
    "costanzo2010_hetero": ("no_metabolism", "one_relation", "string_merged"),
    "costanzo2010_pair_cell": ("no_gather",),
    "costanzo2010_pairs": (),
    "demo": ("one_relation", "string_merged"),
    "demo_hetero": ("one_relation", "string_merged"),
    "demo_pairs": (),
    "kuzmin2018_dango": ("one_relation", "string_merged"),
    "kuzmin2018_hetero": ("no_gather", "one_relation", "string_merged"),
}


@cache
def shipped(experiment: str) -> Config:
    return compose([f"experiment={experiment}"])


def fits(config: Any, cell: Cell) -> bool:
    """Return whether a cell has the relations and features that a config names."""
    if config.data.relations is not None:
        cell = cell.with_relations(config.data.relations)
    there = set(cell.merge_relations(config.data.merge_relations).relations)
    wanted = config.model.relations
    if wanted is None:
        wanted = list(STRING_RELATIONS) if config.model.name == "dango" else []
    return set(wanted) <= there and set(config.model.features or ()) <= set(cell.features)


def test_overrides_reach_the_config() -> None:
    config: Any = compose(
        [
            f"+{DEMO}",
            "++trainer.devices=4",
            "data.batch_size=256",
            "mode=step",
            "profiler.window=[5,2,6,1]",
            "trainer.precision=64",
            "optimizer.clip=null",
            "schedule=warm_restarts",
            "model.relations=[string_fusion,physical,tflink]",
            "model.lambdas.physical=0.5",
            "model.lambdas={tflink:1}",
            "data.merge_relations.all=[physical,regulatory]",
        ]
    )
    assert (config.trainer.devices, config.data.batch_size, config.mode) == (4, 256, Mode.step)
    assert (config.profiler.window, config.trainer.precision) == ([5, 2, 6, 1], "64")
    assert (config.optimizer.clip, config.schedule.name) == (None, "warm_restarts")
    assert (config.model.lambdas["physical"], config.model.lambdas["tflink"]) == (0.5, 1.0)
    assert config.data.merge_relations == {"all": ["physical", "regulatory"]}
    assert to_dict(config)["mode"] == "step"


@pytest.mark.parametrize(
    ("overrides", "loss"),
    [
        (["model=dango"], "dango"),
        (["model=hetero_cell"], "point_distribution_contrast"),
        (["model=hetero_cell", "loss=log_cosh"], "log_cosh"),
        (["model=additive"], "none"),
    ],
)
def test_the_loss_follows_the_model_unless_it_is_given(overrides: list[str], loss: str) -> None:
    assert compose(["data.synthetic=demo", *overrides]).loss.name == loss


@pytest.mark.parametrize(
    ("override", "code", "key"),
    [
        ("trainer.device=4", "unknown-key", "trainer.device"),
        ("+trainer.device=4", "unknown-key", "trainer.device"),
        ("data={batchsize:3}", "unknown-key", "data.batchsize"),
        ("frobnicate=1", "unknown-key", "frobnicate"),
        ("hydra.run.dir=x", "unknown-key", "hydra.run.dir"),
        ("data.folder.x=1", "unknown-key", "data.folder.x"),
        ("model.name=hetero_cell", "unknown-key", None),
        ("model.gin_layers=2", "unknown-key", "model.gin_layers"),
        ("loss.buffer=2", "unknown-key", "loss.buffer"),
        ("experiment=dmeo", "unknown-name", "experiment"),
        ("model=gcn", "unknown-name", "model"),
        ("model=[dango,hetero_cell]", "unknown-name", "model"),
        ("model=null", "unknown-name", "model"),
        ("ablation=no_metabolsm", "unknown-name", "ablation"),
        ("trainer.devices=four", "wrong-type", "trainer.devices"),
        ("trainer.devices=null", "wrong-type", "trainer.devices"),
        ("data.batch_size=1.5", "wrong-type", "data.batch_size"),
        ("data.standardise=maybe", "wrong-type", "data.standardise"),
        ("mode=stop", "wrong-type", "mode"),
        ("profiler.window=[1,a]", "wrong-type", "profiler.window"),
        ("profiler.window=5", "wrong-type", "profiler.window"),
        ("model.lambdas.physical=high", "invalid-config", "model.lambdas.physical"),
        ("trainer=cpu", "invalid-config", "trainer"),
        ("data.folder=${no.such}", "invalid-config", ""),
        *((text, "unreadable-override", None) for text in ("demo", "data.batch_size =3")),
        *((text, "unreadable-override", None) for text in ("data.folder=a=b", "data.folder=(")),
        *((text, "unreadable-override", None) for text in ("~data", "model@x=dango", "seed=1,2")),
    ],
)
def test_mistakes_are_named(override: str, code: str, key: str | None) -> None:
    with pytest.raises(InputError) as caught:
        compose([DEMO, override])
    assert (caught.value.code, caught.value.fields.get("key")) == (code, key)
    assert "full_key" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("trainer.device", "trainer.devices"),
        ("epochs", "trainer.epochs"),
        ("optimiser.lr", "optimizer.lr"),
        ("batchsize", "data.batch_size"),
        ("frobnicate", None),
    ],
)
def test_the_key_that_was_meant(given: str, meant: str | None) -> None:
    assert nearest(given, list(ANY_KEYS)) == meant


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        ("epochs: 24", "epoch: 24", "unknown-key"),
        ("epochs: 24", "epochs: many", "wrong-type"),
        ("epochs: 24", "epochs: 0", "out-of-range"),
        ("heads: 4", "gin_layers: 4", "unknown-key"),
        ("  name: dango\n  relations", "  name: dago\n  relations", "unknown-name"),
        ("model:", "modle:", "unknown-name"),
        ("epochs: 24", "epochs: [24", "unreadable-config"),
        ("seed: 0", "seed: 0\nseed: 1", "unreadable-config"),
        ("seed: 0", "seed: !!python/object/apply:os.getcwd []", "unreadable-config"),
    ],
)
def test_a_damaged_saved_config_is_refused(old: str, new: str, code: str) -> None:
    text = to_yaml(shipped("demo"))
    assert old in text
    with pytest.raises(InputError) as caught:
        from_yaml(text.replace(old, new, 1), where="run/config.yaml")
    assert (caught.value.code, str(caught.value.where)) == (code, "run/config.yaml")


BOMB = "a: &a [x, x]\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} [{', '.join(9 * ['*' + chr(97 + i)])}]\n" for i in range(9)
)


@pytest.mark.parametrize(
    "text", [BOMB, "x: 1\n" * 300_000, "name: ${oc.env:HOME}\n", "name: [\n" * 5_000, "- a\n"]
)
def test_a_config_that_is_made_to_harm_is_refused(text: str) -> None:
    with pytest.raises(InputError) as caught:
        from_yaml(text)
    assert caught.value.code == "unreadable-config"


def test_a_folder_of_ones_own_has_experiments_too(tmp_path: Path) -> None:
    (tmp_path / "experiment").mkdir()
    mine = tmp_path / "experiment" / "mine.yaml"
    mine.write_text("# @package _global_\ndefaults: [demo, _self_]\ntrainer: {epochs: 2}\n")
    assert compose(["experiment=mine"], folder=tmp_path).trainer.epochs == 2
    mine.write_text("# @package _global_\ntrainer: {epoch: 2}\n")
    with pytest.raises(InputError) as caught:
        compose(["experiment=mine"], folder=tmp_path)
    assert (caught.value.code, caught.value.where) == ("unknown-key", "experiment/mine")
    mine.write_bytes(b"# @package _global_\nname: \xff\n")
    with pytest.raises(InputError) as caught:
        compose(["experiment=mine"], folder=tmp_path)
    assert caught.value.code == "unreadable-config"
    with pytest.raises(InputError) as caught:
        compose([DEMO], folder=tmp_path / "none")
    assert caught.value.code == "no-directory"


def test_a_hydra_in_use_is_left_as_it_was_and_threads_do_not_mix(tmp_path: Path) -> None:
    (tmp_path / "theirs.yaml").write_text("x: 1\n")
    with initialize_config_dir(str(tmp_path), version_base="1.2"):
        compose([DEMO])
        assert hydra_compose("theirs").x == 1
    assert not GlobalHydra.instance().is_initialized()
    found: dict[int, int] = {}

    def one(epochs: int) -> None:
        found[epochs] = compose([DEMO, f"trainer.epochs={epochs}"]).trainer.epochs

    threads = [threading.Thread(target=one, args=(epochs,)) for epochs in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {1: 1, 2: 2, 3: 3}


def test_what_ships_is_known() -> None:
    assert options("experiment") == list(CAN_TAKE)
    assert options("ablation") == ABLATIONS
    assert (options("model"), options("loss")) == (list(MODELS), list(LOSSES))
    assert sorted(options("schedule")) == sorted(ANY_KEYS["schedule.name"].choices)
    assert ANY_KEYS["propagation"].choices == tuple(STRATEGIES)
    assert ANY_KEYS["split.method"].choices == (*get_args(Method), "saved")
    for name, config in MODELS.items():
        assert config().name == name
        assert set(keys_of(config)) <= set(ANY_KEYS)


@pytest.mark.parametrize("experiment", CAN_TAKE)
def test_an_experiment_comes_back_from_its_file_and_its_ablations_take_away(
    experiment: str,
) -> None:
    config = shipped(experiment)
    assert config.name == experiment
    assert from_yaml(to_yaml(config)) == config
    assert "${" not in to_yaml(config)
    cell = Cell.synthetic("demo") if config.data.synthetic else None
    assert cell is None or not hasattr(config.model, "relations") or fits(config, cell)
    for ablation in ABLATIONS:
        words = [f"experiment={experiment}", f"ablation={ablation}"]
        if ablation in CAN_TAKE[experiment]:
            less = compose(words)
            assert less != config
            assert cell is None or fits(less, cell)
        else:
            with pytest.raises(InputError) as caught:
                compose(words)
            assert caught.value.code in ("unknown-key", "ablation-without-effect")


def test_several_ablations_go_together() -> None:
    both = "ablation=[string_merged,no_metabolism]"
    config: Any = compose(["experiment=costanzo2010_hetero", both])
    assert not config.model.metabolism
    assert list(config.data.merge_relations) == ["string"]


@pytest.mark.real
def test_the_costanzo_experiments_fit_the_real_networks(shared_data: Path) -> None:
    cell = import_folder(shared_data / "networks").cell
    assert set(shipped("costanzo2010_dango").data.relations or ()) == set(cell.relations)
    for experiment in ("costanzo2010_dango", "costanzo2010_hetero"):
        for more in ([], ["ablation=one_relation"], ["ablation=string_merged"]):
            assert fits(compose([f"experiment={experiment}", *more]), cell)


HETERO = "kuzmin2018_hetero"


@pytest.mark.parametrize(
    ("experiment", "part", "changes", "code"),
    [
        ("demo", "data", {"batch_size": 0}, "out-of-range"),
        ("demo", "data", {"synthetic": None}, "no-data"),
        ("demo", "data", {"synthetic": "human"}, "unknown-name"),
        ("demo", "data", {"folder": "x"}, "conflicting-settings"),
        ("demo", "data", {"synthetic": None, "cell": "x"}, "conflicting-settings"),
        ("demo", "data", {"screen": "x"}, "conflicting-settings"),
        ("demo", "data", {"relations": []}, "bad-names"),
        ("demo", "data", {"relations": ["a", "b", "a"]}, "bad-names"),
        ("demo", "data", {"merge_relations": {"x": []}}, "bad-names"),
        ("demo", "split", {"method": "gen"}, "unknown-name"),
        ("demo", "split", {"test": float("nan")}, "out-of-range"),
        ("demo", "split", {"method": "random", "test": 0.95}, "conflicting-settings"),
        ("demo", "split", {"method": "source"}, "conflicting-settings"),
        ("demo", "split", {"studies": ["a"]}, "conflicting-settings"),
        ("demo", "model", {"heads": 5}, "conflicting-settings"),
        ("demo", "model", {"relations": ["physical"]}, "conflicting-settings"),
        ("demo", "model", {"lambdas": {"x": -1.0}}, "out-of-range"),
        (HETERO, "model", {"z_norm": "layer"}, "unknown-name"),
        (HETERO, "model", {"dropout": 1.0}, "out-of-range"),
        (HETERO, "model", {"output": "mean", "local_heads": 7}, "conflicting-settings"),
        (HETERO, "model", {"mutant_layers": 9}, "conflicting-settings"),
        (HETERO, "model", {"mutants": "none"}, "conflicting-settings"),
        (HETERO, "model", {"features": ["a", "a"]}, "bad-names"),
        (HETERO, "loss", {"lambda_mse": 0.0, "lambda_w": 0.0}, "conflicting-settings"),
        (HETERO, "loss", {"stable": 3}, "conflicting-settings"),
        ("demo", "optimizer", {"lr": float("inf")}, "out-of-range"),
        ("demo", "schedule", {"min_lr": 1.0}, "conflicting-settings"),
        ("demo", "trainer", {"devices": 100, "nodes": 2}, "conflicting-settings"),
        ("demo", "profiler", {"window": [1, 2, 3]}, "out-of-range"),
        ("demo", "profiler", {"window": [1, 2, 0, 1]}, "out-of-range"),
        ("demo", None, {"propagation": "dense", "max_bytes": 9}, "conflicting-settings"),
        ("demo", None, {"name": "a/b"}, "bad-name"),
        ("demo_pairs", None, {"mode": Mode.step}, "conflicting-settings"),
        ("demo_pairs", "trainer", {"devices": 2}, "conflicting-settings"),
        ("demo_pairs", None, {"loss": LOSSES["log_cosh"]()}, "conflicting-settings"),
        (HETERO, None, {"loss": LOSSES["dango"]()}, "conflicting-settings"),
    ],
)
def test_values_that_contradict_each_other_are_refused(
    experiment: str, part: str | None, changes: dict[str, Any], code: str
) -> None:
    config = shipped(experiment)
    if part is not None:
        changes = {part: replace(getattr(config, part), **changes)}
    with pytest.raises(InputError) as caught:
        check(replace(config, **changes))
    assert caught.value.code == code


def test_every_key_is_documented_and_every_number_has_a_range() -> None:
    page = (ROOT / PAGE).read_text(encoding="utf-8")
    assert page == reference(), "run deltacell.train.config_reference.write_reference()"
    for name, key in ANY_KEYS.items():
        assert key.meaning, name
        assert f"| `{name}` |" in page
        if key.annotation in (int, float, int | None, float | None):
            assert key.within is not None, name
    choices = page.split("## The run")[0]
    assert "|  |" not in choices
    assert all(f"`{group}={name}`" in choices for group in GROUPS for name in options(group))


def test_the_wheel_has_every_config() -> None:
    wheel = pytest.importorskip("hatchling.builders.wheel", reason="hatchling is not installed")
    builder = wheel.WheelBuilder(str(ROOT))
    packed = {file.distribution_path for file in builder.recurse_included_files()}
    folder = ROOT / "src" / "deltacell" / "conf"
    configs = {str(path.relative_to(ROOT / "src")) for path in folder.rglob("*.yaml")}
    assert len(configs) > 15
    assert configs | {"deltacell/conf/__init__.py"} <= packed
