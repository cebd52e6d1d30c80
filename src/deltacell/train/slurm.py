"""The script of a Slurm job that trains, saves when Slurm stops it, and goes on when it is back."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from deltacell.errors import InputError
from deltacell.profile.record import CHECKPOINTS, RUN_FILE
from deltacell.train.checkpoints import INDEX
from deltacell.train.config import Config

WARNING_S = 120
"""Seconds before the time limit at which a job is told to save."""

GRACE_S = 600
"""Seconds that a job which was told to stop leaves Slurm to queue it again."""


@dataclass(frozen=True)
class Job:
    """What is asked of Slurm.

    Parameters
    ----------
    nodes
        The config's where not given.
    gpus_per_node
        One process each; with none it trains on CPUs.
    cpus_per_task
        Of each process, which has as many threads.
    time
        Limit as Slurm writes it: ``24:00:00``, ``2-00:00:00`` or minutes.
    partition, account, mem
        As Slurm knows them; its defaults where not given. Memory is that of a node.
    seeds
        An array of jobs, one a seed: ``0-4``, ``1,5,7`` or ``0-8:2``; ``%2`` after it lets two run
        at a time.
    requeue
        Whether it queues again and goes on when it was stopped by the time limit or pre-empted.
    name
        Of the job; made of the config's where not given.
    """

    nodes: int | None = None
    gpus_per_node: int | None = None
    cpus_per_task: int | None = None
    time: str = "24:00:00"
    partition: str | None = None
    account: str | None = None
    mem: str | None = None
    seeds: str | None = None
    requeue: bool = False
    name: str | None = None


def job_overrides(config: Config, overrides: Sequence[str], job: Job) -> list[str]:
    """Return the overrides with those that follow from the job; two that differ are an error.

    Parameters
    ----------
    config
        What the overrides make.
    overrides
        As they are typed for `deltacell train`.
    job
        What is asked of Slurm.
    """
    added: dict[str, tuple[str, int | str]] = {}
    if job.nodes is not None:
        added["trainer.nodes"] = ("--nodes", job.nodes)
    if job.gpus_per_node is not None:
        added["trainer.devices"] = ("--gpus-per-node", job.gpus_per_node)
        added["trainer.accelerator"] = ("--gpus-per-node", "cuda")
    else:
        if config.trainer.accelerator == "auto":
            # A node may have GPUs that this job did not ask for.
            added["trainer.accelerator"] = ("no --gpus-per-node", "cpu")
        if job.cpus_per_task is not None:
            added["trainer.threads"] = ("--cpus-per-task", job.cpus_per_task)
    words = (text.lstrip("+").partition("=") for text in overrides)
    typed = {key: value for key, _, value in words}
    for key, (option, value) in added.items():
        if key in typed and typed[key] not in (str(value), "auto"):
            raise InputError(
                f"{key}={typed[key]} was given, and {option} would make it {value}",
                fix=f"Leave out {key} or {option}.",
            )
    if job.seeds is not None and "seed" in typed:
        raise InputError(
            f"seed={typed['seed']} was given, and --seeds {job.seeds} too",
            fix="Leave out one of them.",
        )
    # The last of two counts.
    return [*overrides, *(f"{key}={value}" for key, (_, value) in added.items())]


def job_script(
    config: Config,
    overrides: Sequence[str],
    job: Job,
    *,
    program: Sequence[str] = ("deltacell",),
    folder: Path | None = None,
) -> str:
    """Return the text of a script for ``sbatch``.

    One task is one device, as Lightning expects of Slurm. The run's directory is made of the job's
    number, and of the seed in an array, so that a job which is queued again finds what it saved;
    where the config names a directory it is that one.

    The shell is warned with SIGUSR1 before the time limit and hands it to ``srun``, which hands it
    to every rank; SIGTERM it must not hand on, because ``srun`` would kill its tasks at once. When
    Slurm pre-empts or cancels a job the ranks get SIGTERM from Slurm itself. Either way they save
    and exit with 128 and the signal's number.

    Parameters
    ----------
    config
        What the overrides make.
    overrides
        Those of `job_overrides`, in any form that Hydra takes.
    job
        What is asked of Slurm.
    program
        The words that start deltacell on the nodes.
    folder
        Of a user's own configs.
    """
    name = _check(config, job)
    for text in (*overrides, *program, *([] if folder is None else [str(folder)])):
        _one_line("an override" if text in overrides else "a path", text)
    run = _run_directory(config, name, job.seeds is not None)
    words = ["train", *([] if folder is None else ["--config-dir", str(folder)]), *overrides]
    seed = ' "seed=$SLURM_ARRAY_TASK_ID"' if job.seeds is not None else ""
    head = ["#!/bin/bash", *(f"#SBATCH --{option}" for option in _options(config, job, name))]
    values = [
        f"deltacell=({shlex.join(program)})",
        f"words=({shlex.join(words)}{seed})",
        f"run={run}",
    ]
    parts = ["\n".join(head), "\n".join(values), _RESUME]
    if config.trainer.devices * config.trainer.nodes > 1:
        parts.append(_PORT)
    parts.append(_train(_step_options(config, job)))
    if job.requeue:
        parts.append(_REQUEUE)
    return "\n\n".join([*parts, 'exit "$code"']) + "\n"


_INDEX = f"{CHECKPOINTS}/{INDEX}"

_RESUME = f"""\
# What was saved is gone on with. A run that never saved is put aside, and begun again.
if [ -e "$run/{_INDEX}" ]; then
  words=(train --resume "$run")
else
  if [ -e "$run/{RUN_FILE}" ]; then mv -- "$run" "$run-unsaved-$(date +%s)" || exit 1; fi
  words+=("directory='$run'")
fi"""

_PORT = """\
# The ranks meet on this node, at a port where nobody listens: jobs may share a node.
if [ -z "${MASTER_PORT:-}" ]; then
  MASTER_PORT=$((15000 + SLURM_JOB_ID % 10000))
  while (: < "/dev/tcp/127.0.0.1/$MASTER_PORT") 2> /dev/null; do
    MASTER_PORT=$((MASTER_PORT + 1))
  done
  export MASTER_PORT
fi"""

_REQUEUE = f"""\
job=$SLURM_JOB_ID
if [ -n "${{SLURM_ARRAY_JOB_ID:-}}" ]; then job=${{SLURM_ARRAY_JOB_ID}}_$SLURM_ARRAY_TASK_ID; fi
if [ "$warned" = 1 ] && [ "$code" = 138 ] && [ -e "$run/{_INDEX}" ]; then
  scontrol requeue "$job"
elif [ "$code" = 143 ]; then
  # Slurm queues a pre-empted job again only if it is still there when its grace is over.
  sleep {GRACE_S} &
  wait "$!"
  kill "$!" 2> /dev/null
fi"""


def _train(options: Sequence[str]) -> str:
    return f"""\
warned=0
step=
# Before the time limit Slurm tells this shell, and srun tells every rank: they save.
trap 'heard=1; warned=1; [ -z "$step" ] || kill -USR1 "$step"' USR1
# The ranks have this one from Slurm; the shell only has to outlive them.
trap 'heard=1' TERM
srun {" ".join(options)} "${{deltacell[@]}}" "${{words[@]}}" &
step=$!
# A signal ends the waiting, not the step.
while heard=0; wait "$step"; code=$?; [ "$heard" = 1 ]; do :; done"""


def _options(config: Config, job: Job, name: str) -> list[str]:
    """Return what Slurm reads in the head of the script; all of it was checked to be plain."""
    gpus = _gpus(config)
    options = [
        f"job-name={name}",
        f"nodes={config.trainer.nodes}",
        f"ntasks-per-node={config.trainer.devices}",
    ]
    if gpus:
        options.append(f"gpus-per-node={gpus}")
    cpus = _cpus(config, job)
    if cpus is not None:
        options.append(f"cpus-per-task={cpus}")
    options.append(f"time={job.time}")
    given = {"partition": job.partition, "account": job.account, "mem": job.mem}
    given["array"] = job.seeds
    options += [f"{option}={value}" for option, value in given.items() if value is not None]
    return [
        *options,
        f"signal=B:USR1@{WARNING_S}",
        "requeue" if job.requeue else "no-requeue",
        # The output of a job that is queued again goes on too.
        "open-mode=append",
    ]


def _step_options(config: Config, job: Job) -> list[str]:
    options = ["--kill-on-bad-exit=1"]
    cpus = _cpus(config, job)
    if cpus is not None:
        # Newer versions of srun do not take this from the job.
        options.append(f"--cpus-per-task={cpus}")
    if not _gpus(config):
        # Bound to its own cores, a rank would count fewer of them than there are ranks.
        options.append("--cpu-bind=none")
    return options


def _gpus(config: Config) -> int:
    return config.trainer.devices if config.trainer.accelerator == "cuda" else 0


def _cpus(config: Config, job: Job) -> int | None:
    if job.cpus_per_task is not None or _gpus(config):
        return job.cpus_per_task
    return config.trainer.threads or 1


def _run_directory(config: Config, name: str, of_array: bool) -> str:
    """Return the run's directory as a word of the shell."""
    if config.directory is None:
        number = "$SLURM_ARRAY_JOB_ID" if of_array else "$SLURM_JOB_ID"
        stem = f'runs/{name}-"{number}"'
    else:
        _one_line("the directory", config.directory)
        if re.search(r"['\\$]", config.directory):
            raise InputError(
                f"the directory is '{config.directory}'; a job's has no quote, backslash or dollar"
            )
        stem = shlex.quote(config.directory)
    return f'{stem}-seed"$SLURM_ARRAY_TASK_ID"' if of_array else stem


def _check(config: Config, job: Job) -> str:
    """Raise where something is not what Slurm takes; return the name of the job."""
    for option, number in (
        ("--nodes", job.nodes),
        ("--gpus-per-node", job.gpus_per_node),
        ("--cpus-per-task", job.cpus_per_task),
    ):
        if number is not None and number < 1:
            raise InputError(f"{option} is {number}; expected 1 or more")
    name = job.name
    if name is None:
        name = re.sub(r"[^\w.-]+", "-", config.name, flags=re.ASCII).strip("-.") or "run"
    for option, value, form, such_as in (
        ("--job-name", name, r"\w[\w.-]*", "demo-1"),
        ("--time", job.time, r"(\d+-)?\d+(:\d+){0,2}", "24:00:00 or 2-12:00:00"),
        ("--partition", job.partition, r"\w[\w.,-]*", "gpu or gpu,long"),
        ("--account", job.account, r"\w[\w.@-]*", "lab42"),
        ("--mem", job.mem, r"\d+[KMGT]?", "32G"),
        ("--seeds", job.seeds, rf"{_RANGE}(,{_RANGE})*(%\d+)?", "0-4 or 1,5,7"),
    ):
        if value is not None and not re.fullmatch(form, value, flags=re.ASCII):
            raise InputError(f"{option} is {value!r}; expected something such as {such_as}")
    if name in _INTERACTIVE:
        raise InputError(
            f"--job-name is '{name}', which Lightning takes for a session without ranks",
            fix="Choose another name.",
        )
    return name


_RANGE = r"\d+(-\d+(:\d+)?)?"
_INTERACTIVE = ("bash", "interactive")


def _one_line(what: str, text: str) -> None:
    if not text.isprintable():
        raise InputError(
            f"{what} is {text!r}; in a job's script it has to be one line of printable characters"
        )
