"""`deltacell train` and `modes`: from a config to a run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deltacell.cli.program import ConfigDir, Json, Overrides, option, tell, write_json

if TYPE_CHECKING:
    from deltacell.train.config import Config
    from deltacell.train.outcome import Outcome


def train(
    overrides: Overrides = None,
    resume: Annotated[Path | None, option("Run directory to resume.")] = None,
    from_: Annotated[str, option("Checkpoint: last, best, best-mse or a file.", "--from")] = "last",
    cfg: Annotated[str | None, option("With job: print the complete config and exit.")] = None,
    multirun: Annotated[
        bool,
        option("Train every combination of values: seed=0,1,2.", "--multirun", "-m"),
    ] = False,
    config_dir: ConfigDir = None,
) -> None:
    """Train or fit a predictor; the result is a run directory.

    With data.folder=FOLDER and no model, the model and its settings are chosen for the data.

    On a signal (Ctrl-C, Slurm's pre-emption) it saves a checkpoint and exits with 128 + the signal.
    A predictor that is fitted in one call (model=boosted_trees) starts again when resumed.

    Example: deltacell train experiment=demo trainer.epochs=5 seed=1
    """
    from deltacell.base.errors import InputError
    from deltacell.train import launch
    from deltacell.train.config.saved import to_yaml
    from deltacell.train.run_config import resumed_config

    words = overrides or []
    if cfg not in (None, "job"):
        raise InputError(f"--cfg is '{cfg}'; expected job", code="unknown-name")
    if resume is None and from_ != "last":
        raise InputError("--from requires --resume RUN", code="conflicting-settings")
    if multirun:
        if resume is not None or cfg is not None:
            what = "--multirun excludes --resume and --cfg; rerun the command to resume a sweep"
            raise InputError(what, code="conflicting-settings")
        _sweep(words, config_dir)
        return
    config = _composed(words, config_dir) if resume is None else resumed_config(resume, words)
    several = config.model.trained_by == "loop"
    if cfg is not None:
        typer.echo(to_yaml(config), nl=False)
    elif several and launch.is_launched():
        _run_as_rank(config, resume, from_)
    else:
        signal = _run_or_launch(config, words, config_dir, resume, from_)
        if signal:
            raise typer.Exit(128 + signal)


def _run_or_launch(
    config: Config,
    words: list[str],
    config_dir: Path | None,
    resume: Path | None = None,
    which: str = "last",
) -> int:
    """Train in this process, or in several that it starts; return the signal that stopped it."""
    from deltacell.train import launch
    from deltacell.train.launch_training import launch_training

    if config.model.trained_by == "loop" and launch.needs_launch(config.trainer):
        typed = words if config_dir is None else [*words, "--config-dir", str(config_dir)]
        return launch_training(config, typed, resume, which)
    return _run(config, resume, which)


def _sweep(words: list[str], config_dir: Path | None) -> None:
    """Train every combination of values, and list the runs."""
    from deltacell.report.runs import print_runs
    from deltacell.train.config.compose import compose
    from deltacell.train.listed_runs import runs_in
    from deltacell.train.sweep import SweepStopped, run_sweep

    for_hydra = []
    if config_dir is not None:
        for_hydra.append(f"hydra.searchpath=['file://{config_dir.resolve()}']")
    try:
        folder = run_sweep(
            [*words, *for_hydra],
            lambda overrides: compose(overrides, folder=config_dir),
            lambda config, overrides: _run_or_launch(config, overrides, config_dir),
        )
    except SweepStopped as stopped:
        tell("Stopped; rerun the command to resume the sweep.")
        raise typer.Exit(128 + stopped.args[0]) from None
    print_runs(runs_in(folder), str(folder))


def _composed(overrides: list[str], folder: Path | None) -> Config:
    """Return the config of the overrides.

    If they name data but no model, the model and its settings are chosen to suit the data.
    """
    from deltacell.train.config.choose_settings import chosen_sentence, suited_config
    from deltacell.train.config.compose import compose

    named = {word.partition("=")[0].lstrip("+") for word in overrides}
    chosen = named & {"experiment", "model", "loss", "ablation"}
    if chosen or not named & {"data.folder", "data.cell"}:
        return compose(overrides, folder=folder)
    config, settings = suited_config(overrides, folder)
    tell(chosen_sentence(settings))
    return config


def _run_as_rank(config: Config, resume: Path | None, which: str) -> None:
    import faulthandler

    from deltacell.train.launch import end_with_parent, leave_error

    faulthandler.enable()
    end_with_parent()
    try:
        _run(config, resume, which)
    except Exception as error:
        # The launcher reports the first error of all ranks.
        leave_error(error)
        raise typer.Exit(1) from error


def _run(config: Config, resume: Path | None, which: str) -> int:
    from deltacell.report import training
    from deltacell.train.run import train

    outcome = train(config, resume=resume, which=which, command=sys.argv, rendering=training)
    show_outcome(outcome, config)
    return outcome.signal


def show_outcome(outcome: Outcome, config: Config) -> None:
    """Print how a training ended, its rates, and what to type next."""
    from deltacell.report.bench import print_rates
    from deltacell.report.progress import print_outcome
    from deltacell.train.mode import MODES

    for notice in outcome.notices:
        typer.secho(f"note: {notice}", err=True)
    if not outcome.is_first:
        return
    if outcome.phases is not None:
        print_rates([(config.mode, outcome.phases)])
    saved = config.model.trained_by == "loop"
    print_outcome(outcome, learned=MODES[config.mode].is_whole, saved=saved)


def modes(
    overrides: Overrides,
    steps: Annotated[int, option("Batches per mode.")] = 30,
    repeats: Annotated[int, option("Number of turns of all modes; more turns reduce noise.")] = 2,
    json: Json = None,
) -> None:
    """Run every execution mode of a config briefly, and compare their speed.

    Example: deltacell modes experiment=demo --steps 20
    """
    from deltacell.report.bench import print_marginals, print_phases, print_rates
    from deltacell.report.progress import progress_bar
    from deltacell.train.compare_modes import marginals, run_modes

    with progress_bar() as report:
        trials = run_modes(overrides or [], steps, report, repeats=repeats)
    parts = marginals(trials)
    times = {mode: of_mode.typical for mode, of_mode in trials.items()}
    print_rates(list(times.items()))
    print_marginals(parts)
    print_phases(times["train"])
    rows = [{"mode": mode, "summary": summary.to_json()} for mode, summary in times.items()]
    write_json(json, {"modes": rows, "marginals": parts})
