"""A model of another package works in every command; the package is that of the how-to."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import deltacell as dc
from deltacell.cli.program import complete_override
from deltacell.models import registry
from deltacell.profile.record import Status
from deltacell.train.config.checks import check
from deltacell.train.config.compose import compose, refresh
from deltacell.train.loaded_runs import load_run
from deltacell.train.run import train
from deltacell.train.run_config import resumed_config

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "how-to" / "add-a-model.md"
DATA = ("data.synthetic=demo", "data.synthetic_genotypes=150", "trainer.threads=1")
QUIET = ("trainer.progress=false", "loggers.tensorboard=false", "trainer.figures_every=0")
ENTRIES = "[deltacell.models]\ntiny = tiny:TinyConfig\nsize_mean = tiny:SizeMeanConfig\n"
LONGEST = 80  # lines of the model in the how-to


def code_of_page() -> str:
    (code,) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    return code


def install(folder: Path, package: str, entries: str) -> None:
    """Write what pip leaves behind: a folder with the name and the entry points of a package."""
    about = folder / f"{package}-1.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1\n")
    (about / "entry_points.txt").write_text(entries)


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder on the path of modules, into which a test installs packages."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    yield folder
    sys.modules.pop("tiny", None)
    monkeypatch.undo()
    refresh()


@pytest.fixture
def installed(site):
    (site / "tiny.py").write_text(code_of_page())
    install(site, "tiny", ENTRIES)
    refresh()
    return site


def test_the_model_of_the_how_to_is_short():
    assert len(code_of_page().splitlines()) <= LONGEST


@pytest.mark.parametrize("model", ["tiny", "size_mean"])
def test_a_foreign_model_trains_and_predicts_like_a_model_that_ships(installed, tmp_path, model):
    words = [f"model={model}", *DATA, *QUIET, f"directory={tmp_path / 'run'}"]
    if model == "tiny":
        words += ["model.hidden=4", "trainer.epochs=1", "data.batch_size=16"]
    train(compose(words))
    run = dc.Run(tmp_path / "run")
    assert run.record.status is Status.finished
    genes = run.loaded.data.cell.genes
    sets = [[genes[0], genes[1]], [genes[2], genes[3], genes[4]]]
    table = run.predict(sets)
    assert table["score"].notna().all()
    ranked = dc.rank(run, "pairs", genes="screen", top=5, progress=False)
    # All pairs have one score by their size, so they stand at one end.
    ends = {row["end"] for row in ranked.to_json()["rows"]}
    assert ends == ({"lowest", "highest"} if model == "tiny" else {"lowest"})
    explained = run.why(*sets[0])
    assert explained.score == pytest.approx(table["score"][0], rel=1e-5)
    evaluated = dc.evaluate([run, "global_mean"], progress=False)
    assert len(evaluated.evaluation.predictors) == 2


def test_a_network_resumes_where_it_stopped(installed, tmp_path):
    words = ["model=tiny", *DATA, *QUIET, "data.batch_size=16"]
    whole = train(compose([*words, "trainer.epochs=2", f"directory={tmp_path / 'whole'}"])).path
    path = train(compose([*words, "trainer.epochs=1", f"directory={tmp_path / 'run'}"])).path
    train(resumed_config(path, ["trainer.epochs=2"]), resume=path)
    runs = [load_run(run, which="last") for run in (path, whole)]
    first, second = (run.predictor(run.data.screen.genotypes) for run in runs)
    assert first.tolist() == second.tolist()


@pytest.mark.parametrize(("name", "settings"), [("tiny", {"hidden": 3}), ("size_mean", {})])
def test_fit_takes_its_name_or_an_object(installed, tmp_path, name, settings):
    import tiny

    cell = dc.Cell.synthetic("demo")
    screen = dc.Screen.synthetic(cell, n=120)
    by_hand = tiny.Tiny(cell, **settings) if name == "tiny" else tiny.SizeMean(shrinkage=2.0)
    options = {"progress": False, "settings": {"loggers.tensorboard": False}}
    if name == "tiny":
        options["epochs"] = 1
    named = dc.fit(name, cell, screen, directory=tmp_path / "named", **options, **settings)
    made = dc.fit(by_hand, cell, screen, directory=tmp_path / "made", **options)
    assert named.config.model.name == made.config.model.name == name
    if name == "tiny":
        assert named.config.model.hidden == made.config.model.hidden == 3
        assert named.config.loss.name == "log_cosh"
    else:
        assert made.config.model.shrinkage == 2.0


def test_its_keys_are_checked_and_completed(installed, refused):
    refused("out-of-range", compose, ["model=tiny", *DATA, "model.hidden=0"])
    refused("unknown-key", compose, ["model=tiny", *DATA, "model.hiden=4"])
    refused("conflicting-settings", compose, ["model=tiny", *DATA, "loss=dango"])
    assert compose(["model=size_mean", *DATA]).loss.name == "none"
    check(compose(["model=tiny", *DATA, "loss=point_distribution_contrast", "loss.lambda_c=1"]))
    assert "model=tiny" in complete_override("model=")
    assert "model.shrinkage=" in complete_override("model.shr")
    assert "tiny" not in sys.modules or complete_override("model=t") == ["model=tiny"]


def test_completion_imports_no_model(installed):
    assert complete_override("trainer.ep") == ["trainer.epochs="]
    assert "model=tiny" in complete_override("model=")
    assert "tiny" not in sys.modules


def test_a_run_whose_model_is_gone_says_what_is_missing(installed, tmp_path, refused):
    words = ["model=size_mean", *DATA, *QUIET, f"directory={tmp_path / 'run'}"]
    path = train(compose(words)).path
    (installed / "tiny-1.dist-info" / "entry_points.txt").unlink()
    refresh()
    error = refused("model-not-installed", load_run, path)
    assert "'size_mean'" in str(error)
    assert registry.GROUP in str(error)


def test_names_in_two_packages_and_broken_ones(installed, refused):
    install(installed, "other", "[deltacell.models]\ntiny = other:Config\ndango = other:Config\n")
    install(installed, "broken", "[deltacell.models]\nbad = nowhere:Config\nplain = json:loads\n")
    refresh()
    error = refused("ambiguous-model", compose, ["model=tiny", *DATA])
    assert error.fields["packages"] == ["other", "tiny"]
    error = refused("ambiguous-model", compose, ["model=dango", *DATA])
    assert error.fields["packages"] == ["deltacell", "other"]
    for name in ("bad", "plain"):
        assert "broken" in str(refused("broken-model", compose, [f"model={name}", *DATA]))
    # They stand in the way of nothing else.
    assert compose(["model=additive", *DATA]).model.name == "additive"


def test_configs_of_models_do_not_import_pytorch():
    code = (
        "import sys\n"
        "from deltacell.models import registry\n"
        "for name in registry.names(): registry.config_class(name)()\n"
        "for name in registry.LOSSES: registry.loss_class(name)()\n"
        "assert not {'torch', 'lightgbm', 'scipy'} & sys.modules.keys(), sorted(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
