"""`deltacell train`: from a config to a run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deltacell.cli.completion import complete_override

if TYPE_CHECKING:
    from deltacell.errors import DeltacellError
    from deltacell.train.config import Config
    from deltacell.train.run_directory import Outcome


def train(
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            help="Such as experiment=demo model=hetero_cell trainer.devices=2.",
            autocompletion=complete_override,
        ),
    ] = None,
    resume: Annotated[
        Path | None, typer.Option(help="Resume this run from its last checkpoint.")
    ] = None,
    from_: Annotated[
        str, typer.Option("--from", help="With --resume: best, or the name of a checkpoint.")
    ] = "last",
    cfg: Annotated[
        str | None, typer.Option(help="Print the config and stop: job, all of it.")
    ] = None,
    config_dir: Annotated[
        Path | None, typer.Option(help="Of your own configs, such as DIR/experiment/mine.yaml.")
    ] = None,
) -> None:
    """Train or fit a predictor; the run is a directory that explains itself and can be resumed.

    With data.folder=FOLDER alone, the model and its settings are picked by what the data has.

    A signal (Ctrl-C, Slurm's pre-emption) saves first; the exit code is then 128 and its number.
    A predictor that is fitted in one call (model=boosted_trees) is fitted again when resumed.

    Example: deltacell train experiment=demo trainer.epochs=5 seed=1
    """
    from deltacell.errors import InputError
    from deltacell.train.changes import resumed_config
    from deltacell.train.compose import to_yaml

    if resume is not None:
        config = resumed_config(resume, overrides or [])
    else:
        if from_ != "last":
            raise InputError("--from is for --resume RUN")
        config = _composed(overrides or [], config_dir)
    if cfg is not None:
        if cfg != "job":
            raise InputError(f"--cfg is '{cfg}'; expected job")
        typer.echo(to_yaml(config), nl=False)
        return
    words = overrides or []
    if config_dir is not None:
        words = [*words, "--config-dir", str(config_dir)]
    _carry_out(config, resume, from_, words)


def _composed(overrides: list[str], folder: Path | None) -> Config:
    """Return the config that was typed; where that names no model, one that suits the data."""
    from deltacell.train.compose import compose

    named = {word.partition("=")[0].lstrip("+") for word in overrides}
    if named & {"experiment", "model", "loss", "ablation"} or not named & {
        "data.folder",
        "data.cell",
    }:
        return compose(overrides, folder=folder)
    from deltacell.train.suited import suited_config

    config, said = suited_config(overrides, folder)
    for sentence in said:
        typer.secho(sentence, err=True)
    return config


def _carry_out(config: Config, resume: Path | None, which: str, given: list[str]) -> None:
    from deltacell.train.registry import is_fitted
    from deltacell.train.signals import exit_code

    # What is fitted in one call is fitted by one process.
    fitted = is_fitted(config.model)
    from deltacell.train.devices import accelerator_of, check_devices
    from deltacell.train.launch import (
        RankError,
        end_with_parent,
        is_launched,
        launch,
        needs_launch,
        reported,
    )

    if not fitted and needs_launch(config.trainer):
        check_devices(config.trainer, accelerator_of(config.trainer))
        path, words = _words(config, resume, which, given)
        try:
            signal = launch(words, config.trainer.devices)
        except RankError as error:
            _record_first_error(path, error)
            raise
        if signal:
            raise typer.Exit(exit_code(signal))
        code = _code_of(path)
        if code:
            raise typer.Exit(code)
        return
    if not fitted and is_launched():
        end_with_parent()
        try:
            reported(_run)(config, resume, which)
        except Exception as error:
            # The launcher has it by now and says it once, for whichever rank was the first.
            raise typer.Exit(1) from error
        # It would take any code but 0 for a failure; it reads the run's record instead.
        return
    outcome = _run(config, resume, which)
    if outcome.signal:
        raise typer.Exit(exit_code(outcome.signal))


def _run(config: Config, resume: Path | None, which: str) -> Outcome:
    from deltacell.report.bench import print_rates
    from deltacell.report.progress import print_outcome
    from deltacell.train.config import Mode
    from deltacell.train.registry import is_fitted
    from deltacell.verbs import trained

    outcome = trained(config, resume=resume, which=which, command=sys.argv)
    for notice in outcome.notices:
        typer.secho(f"note: {notice}", err=True)
    if outcome.is_first:
        if outcome.phases is not None:
            print_rates([(config.mode.value, outcome.phases)])
        print_outcome(
            outcome.path,
            signal=outcome.signal,
            best=outcome.best,
            sentence=None if outcome.phases is None else outcome.phases.sentence,
            learned=config.mode is Mode.train,
            saved=not is_fitted(config.model),
        )
    return outcome


def _words(
    config: Config, resume: Path | None, which: str, given: list[str]
) -> tuple[Path, list[str]]:
    """Return the run's directory and the command of each rank, which all have the same one."""
    from deltacell.train.new_path import new_path

    if resume is not None:
        return resume, ["train", *given, "--resume", str(resume), "--from", which]
    path = new_path(config)
    return path, ["train", *given, f"directory='{path}'"]


def _record_first_error(path: Path, error: DeltacellError) -> None:
    """Let the record of a failed run say what failed first; the first rank may only know later."""
    from contextlib import suppress

    from deltacell.errors import DeltacellError
    from deltacell.profile.record import Status
    from deltacell.train.run_directory import RunDirectory

    with suppress(DeltacellError), RunDirectory.open(path) as directory:
        if directory.record.status is Status.failed:
            directory.update(error=str(error))
        elif directory.record.status is Status.running:
            # The first rank was killed and could not say so.
            directory.settle(Status.failed, error=str(error))


def _code_of(path: Path) -> int:
    """Return the exit code of a run whose ranks have all ended well."""
    from signal import SIGTERM

    from deltacell.profile.record import Status, read_run
    from deltacell.train.signals import exit_code

    return exit_code(SIGTERM) if read_run(path).status is Status.interrupted else 0
