"""The verb `fit`: from a cell and a screen to a run."""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from deltacell import storage
from deltacell.api.run import Run
from deltacell.api.showing import training_rendering
from deltacell.base.errors import InputError, check_type, did_you_mean
from deltacell.cell import Cell
from deltacell.models import registry
from deltacell.screen import Screen, Split
from deltacell.train.config import Config, SplitConfig
from deltacell.train.config.choose_settings import MODEL
from deltacell.train.config.compose import compose, with_settings
from deltacell.train.data import TrainingData, load_data, sources
from deltacell.train.loaded_runs import AnyRun, LoadedRun
from deltacell.train.run import train
from deltacell.train.run_directory import new_path

PAIRS = "pairs"  # the name in `fit` for the model of the experiment costanzo2010_pairs


def fit(
    model: Any,
    cell: Cell,
    screen: Screen,
    split: Split | None = None,
    *,
    epochs: int | None = None,
    seed: int = 0,
    directory: str | os.PathLike[str] | None = None,
    settings: Mapping[str, Any] | None = None,
    progress: bool = True,
    context: Sequence[Screen | AnyRun] = (),
    **options: Any,
) -> Run:
    """Train a predictor, and return its run.

    ``model`` is ``pairs``, boosted trees on the scores measured next to a set, with settings for
    the size of the screen; the name of any model (``dango``, ``boosted_trees``); or a model such
    as ``PairCell(cell, hidden=32)``, whose settings are used but not its weights. Every row
    of the screen needs a score; the split is random by default. ``epochs`` is for networks,
    ``options`` are keys of the model (``hidden=32``), and ``settings`` are other keys of the config
    (``{"optimizer.lr": 1e-3}``).

    ``context`` are other screens and finished runs, on scales of their own and on any cell of the
    same organism. A study that repeats scores of the screen is an error.

    The run directory is by default a new one in ``runs``. A cell or screen that was not loaded from
    a directory is saved next to it, in ``data``, so that the run can be loaded later.
    """
    name, of_model = _model_settings(model)
    check_type(cell, Cell, "cell", "a Cell, as of Cell.load('data/cell')")
    check_type(screen, Screen, "screen", "a Screen, as of Screen.load or Screen.from_pandas")
    if split is not None:
        check_type(split, Split, "split", "a Split, such as Split.random(screen), or nothing")
    if not np.isfinite(screen.column("score")).all():
        fix = "Drop them: screen.take(np.isfinite(screen.column('score')))"
        raise InputError("some genotypes have no score", code="missing-target", fix=fix)
    split = Split.random(screen) if split is None else split
    split.check(screen)
    config = compose([f"model={name}", "data.synthetic=demo"])
    chosen = config.model.settings_for(cell, screen)
    chosen |= {f"model.{key}": value for key, value in {**of_model, **options}.items()}
    if epochs is not None:
        if config.model.trained_by == "fit":
            warnings.warn(f"{name} has no epochs; use rounds= for its trees", stacklevel=2)
        else:
            chosen["trainer.epochs"] = epochs
    chosen |= {"name": PAIRS if model == PAIRS else name, "seed": seed}
    chosen |= {"trainer.progress": progress, **dict(settings or {})}
    chosen |= {} if directory is None else {"directory": str(directory)}
    config = with_settings(config, chosen)
    path = new_path(config)
    home = path.absolute().parent / "data"
    places = [str(_place_of(study, home)) for study in context]
    config = with_settings(config, {"data.context": places})
    config, data = _data_of(config, home, cell, screen, split)
    config = with_settings(config, {"directory": str(path)})
    outcome = train(
        config,
        data=data,
        command=("deltacell.fit", name),
        rendering=training_rendering(),
    )
    if outcome.signal:
        warnings.warn(f"stopped; resume with Run('{path}').resume()", stacklevel=2)
    return Run(outcome.path)


def _data_of(
    config: Config,
    home: Path,
    cell: Cell,
    screen: Screen,
    split: Split,
) -> tuple[Config, TrainingData]:
    """Return the config and the data of objects, which are saved if they are not on disk."""
    objects: dict[str, Cell | Screen] = {"cell": cell, "screen": screen}
    places = {f"data.{kind}": str(_on_disk(one, home, kind)) for kind, one in objects.items()}
    config = with_settings(config, {"data.synthetic": None, **places})
    settings = _settings_of(split)
    if settings is not None:
        drawn = with_settings(config, {"split": settings})
        data = load_data(drawn)
        parts = ("train", "validation", "test")
        if all(np.array_equal(getattr(data.split, part), getattr(split, part)) for part in parts):
            return drawn, data
    # A split that its settings do not reproduce, such as one made by hand, is saved.
    saved_cell, saved_screen = sources(config.data)
    same = split.on(saved_screen.on(saved_cell), screen)
    # Two screens can have splits with the same rows.
    digest = hashlib.sha256(f"{same.screen_checksum} {same.checksum}".encode()).hexdigest()
    path = home / f"split-{digest[:12]}"
    if not path.exists():
        same.save(path)
    config = with_settings(config, {"split": SplitConfig("saved", split.seed, path=str(path))})
    return config, load_data(config)


def _place_of(study: Screen | AnyRun, home: Path) -> Path:
    """Return the directory of a screen, which is saved if it is not on disk, or of a run."""
    if isinstance(study, Screen):
        return _on_disk(study, home, "screen")
    loaded = getattr(study, "loaded", study)
    if isinstance(loaded, LoadedRun):
        return loaded.record.path.absolute()
    return Path(loaded).absolute()


def _settings_of(split: Split) -> SplitConfig | None:
    """Return the settings that draw a split; None for one by names or of everything."""
    if split.method in ("named", "everything"):
        return None
    options = dict(split.options)
    studies = options.pop("test", []) if split.method == "source" else []
    return SplitConfig(split.method, split.seed, studies=list(studies), **options)


def _on_disk(one: Cell | Screen, home: Path, kind: str) -> Path:
    path = home / f"{kind}-{one.checksum[:12]}"
    for place in (one.path, path):
        with suppress(InputError):
            if place and storage.read(place, kind, verify=False).checksum == one.checksum:
                return place
    one.save(path, overwrite=True)
    return path


def _model_settings(model: Any) -> tuple[str, dict[str, Any]]:
    if isinstance(model, str):
        name = MODEL if model == PAIRS else model
        if name in registry.names():
            return name, {}
    elif (settings := registry.settings_of(model)) is not None:
        return settings
    text = model if isinstance(model, str) else type(model).__name__
    what = f"unknown model '{text}'{did_you_mean(text, registry.names())}; expected one of "
    fix = "To add a model of your own, see docs/how-to/add-a-model.md."
    raise InputError(what + ", ".join((PAIRS, *registry.names())), code="unknown-model", fix=fix)
