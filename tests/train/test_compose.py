"""From overrides to a config, and every mistake in words."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra

from deltacell.errors import InputError
from deltacell.train.compose import compose, compose_dict, from_yaml, options, to_yaml
from deltacell.train.config import (
    DangoConfig,
    DangoLossConfig,
    HeteroCellConfig,
    LogCoshConfig,
    Mode,
    PointDistributionContrastConfig,
)

DEMO = "experiment=demo"


def test_the_overrides_of_a_user_reach_the_config() -> None:
    config = compose(
        [
            DEMO,
            "trainer.devices=4",
            "data.batch_size=256",
            "data.subset=10000",
            "propagation=delta",
            "mode=step",
            "profiler.window=[5,2,6,1]",
            "trainer.precision=64",
            "optimizer.clip=null",
            "data.folder=null",
            "schedule=warm_restarts",
        ]
    )
    assert config.trainer.devices == 4
    assert (config.data.batch_size, config.data.subset) == (256, 10_000)
    assert config.propagation == "delta"
    assert config.mode is Mode.step
    assert config.profiler.window == [5, 2, 6, 1]
    assert config.trainer.precision == "64"
    assert config.optimizer.clip is None
    assert config.schedule.name == "warm_restarts"


@pytest.mark.parametrize("text", ["trainer.epochs=3", "+trainer.epochs=3", "++trainer.epochs=3"])
def test_a_plus_before_a_known_key_changes_nothing(text: str) -> None:
    assert compose([f"+{DEMO}", text]).trainer.epochs == 3


@pytest.mark.parametrize(
    ("overrides", "model", "loss"),
    [
        (["model=dango"], DangoConfig, DangoLossConfig),
        (["model=hetero_cell"], HeteroCellConfig, PointDistributionContrastConfig),
        (["model=hetero_cell", "loss=log_cosh"], HeteroCellConfig, LogCoshConfig),
        (["loss=log_cosh"], DangoConfig, LogCoshConfig),
    ],
)
def test_the_loss_follows_the_model_unless_it_is_given(
    overrides: list[str], model: type, loss: type
) -> None:
    config = compose(["data.synthetic=demo", *overrides])
    assert type(config.model) is model
    assert type(config.loss) is loss
    assert config.loss.name in options("loss")


def test_names_of_a_mapping_may_be_any() -> None:
    config = compose(
        [
            DEMO,
            "model.relations=[string_fusion,physical]",
            "model.lambdas.physical=0.5",
            "data.merge_relations.all=[physical,regulatory]",
        ]
    )
    assert config.model.lambdas["physical"] == 0.5
    assert config.data.merge_relations == {"all": ["physical", "regulatory"]}


def test_a_mapping_in_braces_is_that_of_its_names_one_by_one() -> None:
    chosen = ["experiment=demo", "model.relations=[physical,tflink]"]
    in_braces = compose([*chosen, "model.lambdas={physical:0.5,tflink:1}"])
    assert in_braces == compose([*chosen, "model.lambdas.physical=0.5", "model.lambdas.tflink=1"])
    assert in_braces.model.lambdas["tflink"] == 1.0  # type: ignore[attr-defined]
    where = compose(["experiment=demo", "data.where={study:[synthetic]}"]).data.where
    assert where == {"study": ["synthetic"]}


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["trainer.device=4"], "no key 'trainer.device'; did you mean 'trainer.devices'?"),
        (["+trainer.device=4"], "no key 'trainer.device'; did you mean 'trainer.devices'?"),
        (["epochs=4"], "did you mean 'trainer.epochs'?"),
        (["optimiser.lr=1"], "did you mean 'optimizer.lr'?"),
        (["experimnt=demo"], "did you mean 'experiment'?"),
        (["data={batchsize:3}"], "no key 'data.batchsize'; did you mean 'data.batch_size'?"),
        (["frobnicate=1"], "There are: experiment, model"),
        (["hydra.run.dir=x"], "no key 'hydra.run.dir'"),
        (["data.folder.x=1"], "no key 'data.folder.x'"),
        (["experiment=dmeo"], "no experiment 'dmeo'; did you mean 'demo'?"),
        (["experiment=dmeo"], "There are "),
        (["model=gcn"], "no model 'gcn'\n  There are additive, boosted_trees, dango"),
        (["loss=mse"], "There are dango, log_cosh, none, point_distribution_contrast"),
        (["schedule=cosin"], "did you mean 'cosine'?"),
        (["ablation=no_metabolsm"], "did you mean 'no_metabolism'?"),
        (["model={name:dango}"], "model takes one name"),
        (["model=[dango,hetero_cell]"], "model takes one name"),
        (["model=null"], "model takes one name"),
        (["model.name=hetero_cell"], "Write model=NAME"),
        (
            ["model=hetero_cell", "model.heads=2"],
            "in the model 'hetero_cell'; dango and pair_cell have it",
        ),
        (["loss=log_cosh", "loss.turn=2"], "in the loss 'log_cosh'; dango has it"),
        (["trainer.devices=four"], "trainer.devices is four; expected a whole number"),
        (["trainer.devices=null"], "trainer.devices is null; expected a whole number"),
        (["data.batch_size=1.5"], "data.batch_size is 1.5; expected a whole number"),
        (["data.subset=all"], "expected a whole number or null"),
        (["optimizer.lr=fast"], "optimizer.lr is fast; expected a number"),
        (["data.standardise=maybe"], "expected true or false"),
        (["mode=stop"], "mode is stop; expected one of train, step"),
        (["profiler.window=[1,a]"], "profiler.window is [1,a]; expected a list of whole numbers"),
        (["profiler.window=5"], "expected a list of whole numbers"),
        (["model.lambdas.physical=high"], "model.lambdas"),
        (["trainer=cpu"], "trainer has keys of its own"),
        (["demo"], "'demo' has no '='"),
        (["data.batch_size =3"], "a space before the '='"),
        (["data.folder=a=b"], "\"data.folder='a=b'\""),
        (["data.folder=("], "into quotes"),
        (["=3"], "no key ''"),
        (["~data"], "cannot be removed"),
        (["model@x=dango"], "'@' has no meaning"),
        (["seed=1,2"], "several values"),
        (["seed=range(1,3)"], "several values"),
        (["data.folder=${no.such}"], "Interpolation key 'no.such' not found"),
        (["data.folder=${"], "data.folder"),
    ],
)
def test_a_mistake_is_said_in_words(overrides: list[str], said: str) -> None:
    with pytest.raises(InputError) as caught:
        compose([DEMO, *overrides] if "experiment" not in overrides[0] else overrides)
    assert said in str(caught.value)
    assert "hydra.errors" not in str(caught.value)
    assert "full_key" not in str(caught.value)
    assert "_type=" not in str(caught.value)


def test_a_saved_config_comes_back() -> None:
    for overrides in ([DEMO], ["experiment=demo_hetero", "mode=data", "trainer.precision=bf16"]):
        config = compose(overrides)
        assert from_yaml(to_yaml(config)) == config


def test_plain_values_are_what_is_saved() -> None:
    plain = compose_dict([DEMO, "mode=step"])
    assert plain["mode"] == "step"
    assert plain["profiler"]["window"] == [5, 2, 5, 1]
    assert plain["model"]["name"] == "dango"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("epochs: 24", "epoch: 24"), "no key 'trainer.epoch'; did you mean 'trainer.epochs'?"),
        (("epochs: 24", "epochs: many"), "expected a whole number"),
        (("epochs: 24", "epochs: 0"), "trainer.epochs is 0; expected 1 or more"),
        (("heads: 4", "gin_layers: 4"), "no key 'model.gin_layers' in the model 'dango'"),
        (("  name: dango\n  relations", "  name: dago\n  relations"), "no model 'dago'"),
        (("model:", "modle:"), "no key 'model.name'"),
        (("epochs: 24", "epochs: [24"), "cannot be read"),
        (("seed: 0", "seed: 0\nseed: 1"), "cannot be read"),
        (("seed: 0", "seed: !!python/object/apply:os.getcwd []"), "cannot be read"),
    ],
)
def test_a_damaged_saved_config_is_named(change: tuple[str, str], said: str) -> None:
    text = to_yaml(compose([DEMO]))
    assert change[0] in text
    with pytest.raises(InputError) as caught:
        from_yaml(text.replace(change[0], change[1], 1), where="run/config.yaml")
    assert said in str(caught.value)
    assert str(caught.value).startswith("run/config.yaml")


def test_a_list_is_no_config() -> None:
    with pytest.raises(InputError, match="found a list"):
        from_yaml("- a\n- b\n")


def test_a_folder_of_ones_own_has_experiments_too(tmp_path: Path) -> None:
    (tmp_path / "experiment").mkdir()
    mine = tmp_path / "experiment" / "mine.yaml"
    mine.write_text("# @package _global_\ndefaults: [demo, _self_]\ntrainer: {epochs: 2}\n")
    assert compose(["experiment=mine"], folder=tmp_path).trainer.epochs == 2
    mine.write_text("# @package _global_\ntrainer: {epoch: 2}\n")
    with pytest.raises(InputError, match=r"experiment/mine: there is no key 'trainer.epoch'"):
        compose(["experiment=mine"], folder=tmp_path)
    with pytest.raises(InputError, match="no such folder"):
        compose([DEMO], folder=tmp_path / "none")


def test_a_hydra_in_use_is_left_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "theirs.yaml").write_text("x: 1\n")
    with initialize_config_dir(str(tmp_path), version_base="1.2"):
        compose([DEMO])
        assert hydra_compose("theirs").x == 1
    compose([DEMO])
    assert not GlobalHydra.instance().is_initialized()


def test_threads_do_not_mix_their_configs() -> None:
    found: dict[int, int] = {}

    def one(epochs: int) -> None:
        found[epochs] = compose([DEMO, f"trainer.epochs={epochs}"]).trainer.epochs

    threads = [threading.Thread(target=one, args=(epochs,)) for epochs in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {epochs: epochs for epochs in range(1, 5)}


BOMB = "a: &a [x, x]\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} [{', '.join(9 * ['*' + chr(97 + i)])}]\n" for i in range(9)
)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (BOMB, "the alias"),
        ("x: 1\n" * 300_000, "characters"),
        ("name: ${oc.env:HOME}\n", "not resolved"),
        ("name: [\n" * 5_000, "cannot be read"),
    ],
)
def test_a_config_that_is_made_to_harm_is_refused(text, said):
    with pytest.raises(InputError, match=said):
        from_yaml(text)


def test_an_own_config_that_is_no_text_is_said(tmp_path):
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_bytes(b"# @package _global_\nname: \xff\n")
    with pytest.raises(InputError, match="cannot be read"):
        compose(["experiment=mine"], folder=tmp_path)
