"""Configs: from overrides, from files, what they refuse, and what ships."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, get_args, get_type_hints

import golden
import pytest
import yaml
from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra

from deltacell.models import registry
from deltacell.models.hetero_cell.config import PROPAGATIONS
from deltacell.propagate import NAMES
from deltacell.screen.split import Method
from deltacell.train.config import Config, ScheduleConfig, SplitConfig
from deltacell.train.config.checks import check
from deltacell.train.config.compose import compose, with_settings
from deltacell.train.config.keys import all_keys, choices
from deltacell.train.config.saved import from_yaml, saved_yaml, to_yaml
from deltacell.train.data import load_data
from deltacell.train.predictor import build_model
from deltacell_dev import config_reference

ROOT = Path(__file__).resolve().parents[2]
DEMO = "experiment=demo"
ABLATIONS = ["no_gather", "no_metabolism", "one_relation", "string_merged"]
# What an experiment has, so that it can be taken away.
CAN_TAKE = {
    "costanzo2010_dango": ("no_gather", "one_relation", "string_merged"),
    "costanzo2010_dango_published": ("one_relation", "string_merged"),
    "costanzo2010_hetero": ("no_metabolism", "one_relation", "string_merged"),
    "costanzo2010_pair_cell": ("no_gather",),
    "costanzo2010_pairs": (),
    "demo": ("one_relation", "string_merged"),
    "demo_hetero": ("one_relation", "string_merged"),
    "demo_pairs": (),
    "kuzmin2018_dango": ("one_relation", "string_merged"),
    "kuzmin2018_hetero": ("no_gather", "one_relation", "string_merged"),
    "kuzmin2018_hetero_full": ("no_gather", "no_metabolism", "one_relation", "string_merged"),
}


@cache
def shipped(experiment: str) -> Config:
    return compose([f"experiment={experiment}"])


def test_overrides_reach_the_config_and_the_loss_follows_the_model():
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
        ],
    )
    assert (config.trainer.devices, config.data.batch_size, config.mode) == (4, 256, "step")
    assert (config.profiler.window, config.trainer.precision) == ([5, 2, 6, 1], "64")
    assert (config.optimizer.clip, config.schedule.name) == (None, "warm_restarts")
    assert (config.model.lambdas["physical"], config.model.lambdas["tflink"]) == (0.5, 1.0)
    assert config.data.merge_relations == {"all": ["physical", "regulatory"]}
    of = {"dango": "dango", "hetero_cell": "point_distribution_contrast", "additive": "none"}
    for model, loss in of.items():
        assert compose(["data.synthetic=demo", f"model={model}"]).loss.name == loss
    given = ["model=hetero_cell", "loss=log_cosh"]
    assert compose(["data.synthetic=demo", *given]).loss.name == "log_cosh"


UNREADABLE = (
    *("demo", "data.batch_size =3", "data.folder=a=b", "data.folder=(", "~data", "model@x=dango"),
    *("seed=1,2", "model=[dango,hetero_cell]", "model=null"),
)


@pytest.mark.parametrize(
    ("override", "code", "key"),
    [
        ("trainer.device=4", "unknown-key", "trainer.device"),
        ("data={batchsize:3}", "unknown-key", "data.batchsize"),
        ("frobnicate=1", "unknown-key", "frobnicate"),
        ("patience=1", "unknown-key", "patience"),
        ("hydra.run.dir=x", "unknown-key", "hydra.run.dir"),
        ("model.name=hetero_cell", "unknown-key", "model.name"),
        ("model.gin_layers=2", "unknown-key", "model.gin_layers"),
        ("loss.buffer=2", "unknown-key", "loss.buffer"),
        ("experiment=dmeo", "unknown-name", "experiment"),
        ("model=gcn", "unknown-name", "model"),
        ("ablation=no_metabolsm", "unknown-name", "ablation"),
        ("mode=stop", "unknown-name", "mode"),
        ("trainer.devices=four", "wrong-type", "trainer.devices"),
        ("profiler.window=[1,a]", "wrong-type", "profiler.window"),
        ("model.lambdas.physical=high", "invalid-config", "model.lambdas.physical"),
        ("trainer=cpu", "invalid-config", "trainer"),
        ("data.folder=${no.such}", "interpolation", "data.folder"),
        *((text, "unreadable-override", None) for text in UNREADABLE),
    ],
)
def test_mistakes_are_named(override, code, key, refused):
    error = refused(code, compose, [DEMO, override])
    assert error.fields.get("key") == key
    assert "full_key" not in str(error)
    meant = {"trainer.device=4": "trainer.devices", "patience=1": "schedule.patience"}
    assert meant.get(override, "") in str(error)


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        ("epochs: 24", "epoch: 24", "unknown-key"),
        ("epochs: 24", "epochs: 0", "out-of-range"),
        ("heads: 4", "gin_layers: 4", "unknown-key"),
        ("  name: dango\n  relations", "  name: dago\n  relations", "model-not-installed"),
        ("model:", "modle:", "unknown-name"),
        ("epochs: 24", "epochs: [24", "unreadable-config"),
        ("seed: 0", "seed: 0\nseed: 1", "unreadable-config"),
        ("seed: 0", "seed: !!python/object/apply:os.getcwd []", "unreadable-config"),
    ],
)
def test_a_damaged_saved_config_is_refused(old, new, code, refused):
    text = to_yaml(shipped("demo"))
    assert old in text
    error = refused(code, from_yaml, text.replace(old, new, 1), where="run/config.yaml")
    assert str(error.where) == "run/config.yaml"


BOMB = "a: &a [x, x]\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} [{', '.join(9 * ['*' + chr(97 + i)])}]\n" for i in range(9)
)


@pytest.mark.parametrize(
    "text",
    [BOMB, "x: 1\n" * 300_000, "name: ${oc.env:HOME}\n", "name: [\n" * 5_000, "- a\n"],
)
def test_a_config_that_is_made_to_harm_is_refused(text, refused):
    refused("unreadable-config", from_yaml, text)


def test_a_folder_of_ones_own_has_experiments_too(tmp_path, refused):
    (tmp_path / "experiment").mkdir()
    mine = tmp_path / "experiment" / "mine.yaml"
    mine.write_text("# @package _global_\ndefaults: [demo, _self_]\ntrainer: {epochs: 2}\n")
    assert compose(["experiment=mine"], folder=tmp_path).trainer.epochs == 2
    mine.write_text("# @package _global_\ntrainer: {epoch: 2}\n")
    error = refused("unknown-key", compose, ["experiment=mine"], folder=tmp_path)
    assert error.where == "experiment/mine"
    mine.write_bytes(b"# @package _global_\nname: \xff\n")
    refused("unreadable-config", compose, ["experiment=mine"], folder=tmp_path)
    refused("no-directory", compose, [DEMO], folder=tmp_path / "none")


def test_a_hydra_in_use_is_left_as_it_was_and_threads_compose_too(tmp_path):
    (tmp_path / "theirs.yaml").write_text("x: 1\n")
    with initialize_config_dir(str(tmp_path), version_base="1.2"):
        compose([DEMO])
        assert hydra_compose("theirs").x == 1
    assert not GlobalHydra.instance().is_initialized()
    asked = [f"seed={seed}" for seed in range(8)]
    with ThreadPoolExecutor(4) as pool:
        found = pool.map(lambda one: compose(["data.synthetic=demo", one]).seed, asked)
        assert list(found) == [*range(8)]


def allowed(owner: type, key: str) -> list[str]:
    (meta,) = get_args(get_type_hints(owner, include_extras=True)[key])[1:]
    return str(meta.pattern)[2:-2].split("|")


def test_every_shipped_choice_is_a_known_one():
    assert choices("experiment") == list(CAN_TAKE)
    assert choices("ablation") == ABLATIONS
    assert (choices("model"), choices("loss")) == (registry.names(), list(registry.LOSSES))
    assert sorted(choices("schedule")) == sorted(allowed(ScheduleConfig, "name"))
    # The stored ones need the path of a store, which a config cannot give.
    named = [name for name in NAMES if not name.startswith("stored_")]
    assert str(PROPAGATIONS.pattern) == f"^({'|'.join(named)})$"
    # A predictor is fitted on everything by `refit` alone, after its test.
    by_config = [name for name in get_args(Method) if name != "everything"]
    assert allowed(SplitConfig, "method") == [*by_config, "saved"]
    assert all(registry.config_class(name)().name == name for name in registry.names())


@pytest.mark.parametrize("experiment", CAN_TAKE)
def test_an_experiment_comes_back_from_its_file_and_its_ablations_take_away(experiment):
    config = shipped(experiment)
    assert config.name == experiment
    text = saved_yaml(config)
    # Changing a config that was read does not change the next one.
    from_yaml(text).data.where["phenotype"] = ["none"]
    assert from_yaml(text) == config
    assert "${" not in to_yaml(config)
    is_made = config.data.synthetic and hasattr(config.model, "relations")
    if is_made:
        build_model(config, load_data(config))
    for ablation in ABLATIONS:
        words = [f"experiment={experiment}", f"ablation={ablation}"]
        if ablation in CAN_TAKE[experiment]:
            less = compose(words)
            assert less != config
            if is_made:
                build_model(less, load_data(less))
    both = "ablation=[string_merged,no_metabolism]"
    assert experiment != "costanzo2010_hetero" or not compose([words[0], both]).model.metabolism  # type: ignore[attr-defined]


@pytest.mark.parametrize("experiment", CAN_TAKE)
def test_an_experiment_and_its_ablations_are_composed_as_recorded(experiment):
    """An ablation is recorded as the keys that it changes."""
    config = yaml.safe_load(to_yaml(shipped(experiment)))
    golden.check(f"config/{experiment}", config)
    changes = {}
    for ablation in CAN_TAKE[experiment]:
        ablated = compose([f"experiment={experiment}", f"ablation={ablation}"])
        changes[ablation] = changed_keys(config, yaml.safe_load(to_yaml(ablated)))
    golden.check(f"config/{experiment}.ablations", changes)


@pytest.mark.parametrize(
    ("experiment", "settings", "largest"),
    [
        ("demo_hetero", [], "string_coexpression"),
        ("demo_hetero", ["data.relations=[string_database,physical]"], "physical"),
        # The largest of all, which DANGO has no lambda for, unless it is given one.
        ("demo", ["data.relations=[physical,string_database]"], "string_database"),
        (
            "demo",
            ["data.relations=[physical,string_database]", "model.lambdas={physical:1.0}"],
            "physical",
        ),
    ],
)
def test_one_relation_is_the_largest_of_the_data(experiment, settings, largest):
    config = compose([f"experiment={experiment}", "ablation=one_relation", *settings])
    data = load_data(config)
    model: Any = build_model(config, data)
    assert model.relations == (largest,)
    sizes = {name: relation.n_edges for name, relation in data.cell.relations.items()}
    others = [sizes[name] for name in sizes if name != "physical" or largest == "physical"]
    assert sizes[largest] == max(others)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("experiment", "settings", "parameters"),
    [
        ("kuzmin2018_hetero", [], 669_917),
        ("kuzmin2018_hetero_full", ["ablation=no_metabolism"], 1_781_187),
        ("kuzmin2018_hetero_full", [], 2_300_227),
    ],
)
def test_the_parameters_are_as_many_as_the_experiment_says(experiment, settings, parameters):
    on_yeast = ["data.folder=null", "data.screen=null", "data.synthetic=yeast", "data.where={}"]
    config = compose([f"experiment={experiment}", *settings, *on_yeast])
    config = replace(config, data=replace(config.data, where={}, synthetic_genotypes=200))
    model = build_model(config, load_data(config))
    assert sum(weight.numel() for weight in model.parameters()) == parameters
    file = ROOT / "src" / "deltacell" / "conf" / "experiment" / f"{experiment}.yaml"
    assert f"{parameters:,}" in file.read_text(encoding="utf-8")
    page = ROOT / "docs" / "how-to" / "coming-from-torchcell.md"
    assert f"{parameters:,}" in page.read_text(encoding="utf-8")


def changed_keys(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """Return the keys whose values differ, such as ``model.hidden``, with the new values."""
    changes = {}
    for key in sorted({*before, *after}):
        old = before.get(key)
        new = after.get(key)
        if isinstance(old, dict) and isinstance(new, dict):
            inner = changed_keys(old, new)
            changes.update({f"{key}.{name}": value for name, value in inner.items()})
        elif old != new:
            changes[key] = new
    return changes


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
        ("demo", "split", {"method": "gen"}, "unknown-name"),
        ("demo", "split", {"test": float("nan")}, "out-of-range"),
        ("demo", "split", {"method": "source"}, "conflicting-settings"),
        ("demo", "split", {"studies": ["a"]}, "conflicting-settings"),
        (HETERO, "model", {"z_norm": "layer"}, "unknown-name"),
        (HETERO, "model", {"dropout": 1.0}, "out-of-range"),
        ("demo", "optimizer", {"lr": float("inf")}, "out-of-range"),
        ("demo", "schedule", {"min_lr": 1.0}, "conflicting-settings"),
        ("demo", "trainer", {"devices": 100, "nodes": 2}, "conflicting-settings"),
        (HETERO, "model", {"propagation": "shared", "max_bytes": 9}, "conflicting-settings"),
        (HETERO, "model", {"propagation": "stored_edges"}, "unknown-name"),
        ("demo", None, {"name": "a/b"}, "bad-name"),
        ("demo_pairs", None, {"mode": "step"}, "conflicting-settings"),
        ("demo_pairs", "trainer", {"devices": 2}, "conflicting-settings"),
        ("demo_pairs", None, {"loss": registry.loss_class("log_cosh")()}, "conflicting-settings"),
        (HETERO, None, {"loss": registry.loss_class("dango")()}, "conflicting-settings"),
    ],
)
def test_values_that_contradict_each_other_are_refused(experiment, part, changes, code, refused):
    config = shipped(experiment)
    if part is not None:
        changes = {part: replace(getattr(config, part), **changes)}
    refused(code, check, replace(config, **changes))


def test_every_key_is_documented_and_every_number_has_a_range():
    page = config_reference.PAGE.read_text(encoding="utf-8")
    assert page == config_reference.reference(page), "run python -m deltacell_dev.config_reference"
    assert f"| {config_reference.UNKNOWN} |" not in page
    for name, kind in all_keys().items():
        assert f"| `{name}` |" in page
        assert kind.removesuffix(" | None") not in ("int", "float"), name
    assert "|  |" not in page.split("## The run")[0]


def test_the_wheel_has_every_config():
    wheel = pytest.importorskip("hatchling.builders.wheel", reason="hatchling is not installed")
    builder = wheel.WheelBuilder(str(ROOT))
    packed = {file.distribution_path for file in builder.recurse_included_files()}
    folder = ROOT / "src" / "deltacell" / "conf"
    configs = {str(path.relative_to(ROOT / "src")) for path in folder.rglob("*.yaml")}
    assert len(configs) > 15
    scripts = {str(path.relative_to(ROOT / "src")) for path in folder.glob("*.sh")}
    assert len(scripts) == 3
    others = {*scripts, "deltacell/demo/demo.yaml"}
    assert configs | others | {"deltacell/conf/__init__.py"} <= packed


def test_the_former_module_warns_and_gives_the_same():
    from deltacell.train import compose as former

    with pytest.warns(DeprecationWarning, match=r"deltacell\.train\.config\.compose\.compose"):
        assert former.compose is compose
    with pytest.warns(DeprecationWarning, match=r"deltacell\.train\.config\.saved\.from_yaml"):
        assert former.from_yaml is from_yaml
    with pytest.raises(AttributeError):
        former.check  # noqa: B018


MOVED = ["propagation=delta", "max_bytes=5000"]
HETERO_WORDS = ["model=hetero_cell", "data.synthetic=demo"]


def test_former_keys_of_propagation_warn_and_mean_the_same(tmp_path):
    expected = compose([*HETERO_WORDS, "model.propagation=delta", "model.max_bytes=5000"])
    with pytest.warns(DeprecationWarning, match=r"'propagation' is now 'model\.propagation'"):
        assert compose([*HETERO_WORDS, *MOVED]) == expected
    (tmp_path / "experiment").mkdir()
    file = tmp_path / "experiment" / "mine.yaml"
    file.write_text("# @package _global_\npropagation: delta\nmax_bytes: 5000\n")
    with pytest.warns(DeprecationWarning, match="max_bytes"):
        composed = compose([*HETERO_WORDS, "experiment=mine"], folder=tmp_path)
    assert composed == expected
    settings = {"propagation": "delta", "max_bytes": 5000}
    with pytest.warns(DeprecationWarning, match="max_bytes"):
        assert with_settings(compose(HETERO_WORDS), settings) == expected
    # A model that propagates nothing ignores them, as it did before.
    dango = ["model=dango", "data.synthetic=demo"]
    with pytest.warns(DeprecationWarning, match="max_bytes"):
        assert compose([*dango, *MOVED]) == compose(dango)


@pytest.mark.parametrize("saved_format", [1, 2])
@pytest.mark.parametrize("model", ["hetero_cell", "dango"])
def test_former_keys_of_saved_runs_keep_their_meaning_for_good(model, saved_format, recwarn):
    present = {"hetero_cell": ["model.propagation=delta", "model.max_bytes=5000"], "dango": []}
    expected = compose([f"model={model}", "data.synthetic=demo", *present[model]])
    values = yaml.safe_load(to_yaml(expected))
    for key in ("propagation", "max_bytes"):
        values["model"].pop(key, None)
    values |= {"propagation": "delta", "max_bytes": 5000, "format": saved_format}
    assert from_yaml(yaml.safe_dump(values)) == expected
    assert not recwarn.list
    assert from_yaml(saved_yaml(expected)) == expected


def test_former_keys_are_unknown_in_runs_that_are_saved_now(refused):
    text = saved_yaml(compose(HETERO_WORDS))
    refused("unknown-key", from_yaml, f"propagation: delta\n{text}")
