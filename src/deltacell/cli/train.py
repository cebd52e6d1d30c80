"""`deltacell train`, `modes` and `slurm`: from a config to a run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deltacell.cli.program import complete_override, write_json

if TYPE_CHECKING:
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
    cfg: Annotated[str | None, typer.Option(help="Print the whole config and exit: job.")] = None,
    config_dir: Annotated[
        Path | None, typer.Option(help="Your own configs, such as DIR/experiment/mine.yaml.")
    ] = None,
) -> None:
    """Train or fit a predictor; the run is a directory that explains itself and can be resumed.

    With data.folder=FOLDER alone, the model and its settings are chosen to suit the data.

    A signal (Ctrl-C, Slurm's pre-emption) saves first; the exit code is then 128 + its number. A
    predictor that is fitted in one call (model=boosted_trees) is fitted again when resumed.

    Example: deltacell train experiment=demo trainer.epochs=5 seed=1
    """
    from deltacell.errors import InputError
    from deltacell.train.compose import to_yaml
    from deltacell.train.run_directory import resumed_config

    words = overrides or []
    if resume is not None:
        config = resumed_config(resume, words)
    elif from_ != "last":
        raise InputError("--from needs --resume RUN", code="conflicting-settings")
    else:
        config = _composed(words, config_dir)
    if cfg is not None:
        if cfg != "job":
            raise InputError(f"--cfg is '{cfg}'; expected job", code="unknown-name")
        typer.echo(to_yaml(config), nl=False)
        return
    if config_dir is not None:
        words = [*words, "--config-dir", str(config_dir)]
    _carry_out(config, resume, from_, words)


def _composed(overrides: list[str], folder: Path | None) -> Config:
    """Return the config that was typed; if that names no model, one that suits the data."""
    from deltacell.train.compose import compose

    named = {word.partition("=")[0].lstrip("+") for word in overrides}
    chosen = named & {"experiment", "model", "loss", "ablation"}
    if chosen or not named & {"data.folder", "data.cell"}:
        return compose(overrides, folder=folder)
    from deltacell.train.compose import suited_config

    config, sentences = suited_config(overrides, folder)
    for sentence in sentences:
        typer.secho(sentence, err=True)
    return config


def _carry_out(config: Config, resume: Path | None, which: str, words: list[str]) -> None:
    from deltacell.train import processes
    from deltacell.train.config import is_fitted

    if not is_fitted(config.model) and processes.needs_launch(config.trainer):
        signal = _launched(config, resume, which, words)
    elif not is_fitted(config.model) and processes.is_launched():
        processes.end_with_parent()
        try:
            processes.reported(_run)(config, resume, which)
        except Exception as error:
            # The launcher has it by now and says it once, for whichever rank was the first.
            raise typer.Exit(1) from error
        # The launcher takes any code but 0 for a failure; it reads the run's record instead.
        return
    else:
        signal = _run(config, resume, which).signal
    if signal:
        raise typer.Exit(processes.exit_code(signal))


def _launched(config: Config, resume: Path | None, which: str, words: list[str]) -> int:
    """Train in several processes, which all get the same directory; return the signal, or 0."""
    from contextlib import suppress
    from signal import SIGTERM

    from deltacell.errors import DeltacellError
    from deltacell.profile.record import Status, read_run
    from deltacell.train.processes import RankError, accelerator_of, launch
    from deltacell.train.run_directory import RunDirectory, new_path

    accelerator_of(config.trainer)
    path = new_path(config) if resume is None else resume
    where = [f"directory='{path}'"] if resume is None else ["--resume", str(path), "--from", which]
    try:
        signal = launch(["train", *words, *where], config.trainer.devices)
    except RankError as error:
        # The first rank may only know later what failed first, or was killed.
        with suppress(DeltacellError), RunDirectory.open(path) as directory:
            if directory.record.status is Status.failed:
                directory.update(error=str(error))
            elif directory.record.status is Status.running:
                directory.end(Status.failed, error=str(error))
        raise
    return signal or (SIGTERM if read_run(path).status is Status.interrupted else 0)


def _run(config: Config, resume: Path | None, which: str) -> Outcome:
    from deltacell.report.bench import print_rates
    from deltacell.report.progress import print_outcome
    from deltacell.train.config import Mode, is_fitted
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


def modes(
    overrides: Annotated[
        list[str],
        typer.Argument(
            help="A config as for `deltacell train`: experiment=demo.",
            autocompletion=complete_override,
        ),
    ],
    steps: Annotated[int, typer.Option(help="Batches per mode.")] = 30,
    json: Annotated[Path | None, typer.Option(help="Also write it to a file.")] = None,
) -> None:
    """Run every execution mode of a config briefly: rates, marginal costs, exposed times.

    Example: deltacell modes experiment=demo --steps 20
    """
    from dataclasses import asdict

    from deltacell.report.bench import print_marginals, print_phases, print_rates
    from deltacell.report.progress import progress_bar
    from deltacell.train.compose import compose
    from deltacell.train.run import marginals, run_modes

    compose(overrides)
    with progress_bar() as report:
        times = run_modes(overrides, steps, report)
    parts = marginals(times)
    print_rates([(time.mode, time.summary) for time in times])
    print_marginals(parts)
    print_phases(next(time.summary for time in times if time.mode == "train"))
    write_json(json, {"modes": [*map(asdict, times)], "marginals": [*map(asdict, parts)]})
