"""The script of a Slurm job that trains, saves when Slurm stops it, and resumes when requeued."""

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
"""Seconds that a job which was told to stop leaves Slurm to requeue it."""


@dataclass(frozen=True)
class Job:
    """What is asked of Slurm; None leaves it to the config or to Slurm."""

    nodes: int | None = None
    gpus_per_node: int | None = None  # one process each; without, it trains on CPUs
    cpus_per_task: int | None = None  # cores and threads of each process
    time: str = "24:00:00"
    partition: str | None = None
    account: str | None = None
    mem: str | None = None  # of a node
    seeds: str | None = None  # an array with one job per seed: 0-4, 1,5,7 or 0-8:2%2
    requeue: bool = False
    name: str | None = None


def job_overrides(config: Config, overrides: Sequence[str], job: Job) -> list[str]:
    """Return the overrides with those that follow from the job; a contradiction is an error."""
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
        if typed.get(key, "auto") not in (str(value), "auto"):
            raise _conflict(f"{key}={typed[key]}", f"{option}, which would make it {value}")
    if job.seeds is not None and "seed" in typed:
        raise _conflict(f"seed={typed['seed']}", f"--seeds {job.seeds}")
    # The last of two counts.
    return [*overrides, *(f"{key}={value}" for key, (_, value) in added.items())]


def _conflict(one: str, other: str) -> InputError:
    what = f"{one} was given together with {other}"
    return InputError(what, code="conflicting-settings", fix="Leave out one of them.")


def job_script(
    config: Config,
    overrides: Sequence[str],
    job: Job,
    *,
    program: Sequence[str] = ("deltacell",),
    folder: Path | None = None,
) -> str:
    """Return the text of a script for ``sbatch``.

    One task is one device, as Lightning expects of Slurm. The run directory is named after the
    job, and the seed in an array, so that a requeued job finds what it saved.

    The shell is warned with SIGUSR1 before the time limit and passes it to ``srun``, which passes
    it to every rank; SIGTERM it must not pass on, because ``srun`` would kill its tasks at once.
    When Slurm pre-empts or cancels a job, the ranks get SIGTERM from Slurm itself. Either way they
    save and exit with 128 + the signal's number.
    """
    name = _checked_name(config, job)
    folders = [] if folder is None else ["--config-dir", str(folder)]
    for text in (*overrides, *program, *folders, config.directory or ""):
        if not text.isprintable():
            raise _unusable("a word of the command", text, "one line of printable characters")
    array, trainer = job.seeds is not None, config.trainer
    gpus = trainer.devices if trainer.accelerator == "cuda" else 0
    cpus = job.cpus_per_task or (None if gpus else trainer.threads or 1)
    options = {
        "job-name": name,
        "nodes": trainer.nodes,
        "ntasks-per-node": trainer.devices,
        "gpus-per-node": gpus or None,
        "cpus-per-task": cpus,
        "time": job.time,
        "partition": job.partition,
        "account": job.account,
        "mem": job.mem,
        "array": job.seeds,
        "signal": f"B:USR1@{WARNING_S}",
    }
    head = [f"{option}={value}" for option, value in options.items() if value is not None]
    # The output of a requeued job is appended.
    head += ["requeue" if job.requeue else "no-requeue", "open-mode=append"]
    seed = ' "seed=$SLURM_ARRAY_TASK_ID"' if array else ""
    # Newer versions of srun do not take the cores from the job. Bound to its own cores, a rank
    # would count fewer of them than there are ranks.
    step = "--kill-on-bad-exit=1" + ("" if cpus is None else f" --cpus-per-task={cpus}")
    step += "" if gpus else " --cpu-bind=none"
    return "\n".join(
        [
            "#!/bin/bash",
            *(f"#SBATCH --{option}" for option in head),
            "",
            f"deltacell=({shlex.join(program)})",
            f"words=({shlex.join(['train', *folders, *overrides])}{seed})",
            f"run={_run_directory(config, name, array)}",
            _RESUME,
            *([_PORT] if config.ranks > 1 else []),
            _TRAIN.replace("OPTIONS", step),
            *([_REQUEUE] if job.requeue else []),
            'exit "$code"\n',
        ]
    )


_INDEX = f"{CHECKPOINTS}/{INDEX}"

_RESUME = f"""
# A run that has saved is resumed. A run that never saved is put aside, and begun again.
if [ -e "$run/{_INDEX}" ]; then
  words=(train --resume "$run")
else
  if [ -e "$run/{RUN_FILE}" ]; then mv -- "$run" "$run-unsaved-$(date +%s)" || exit 1; fi
  words+=("directory='$run'")
fi
"""

_PORT = """\
# The ranks meet on this node, at a port where nobody listens: jobs may share a node.
if [ -z "${MASTER_PORT:-}" ]; then
  MASTER_PORT=$((15000 + SLURM_JOB_ID % 10000))
  while (: < "/dev/tcp/127.0.0.1/$MASTER_PORT") 2> /dev/null; do
    MASTER_PORT=$((MASTER_PORT + 1))
  done
  export MASTER_PORT
fi
"""

_TRAIN = """\
warned=0
step=
# Before the time limit Slurm tells this shell, and srun tells every rank: they save.
trap 'heard=1; warned=1; [ -z "$step" ] || kill -USR1 "$step"' USR1
# The ranks have this one from Slurm; the shell only has to outlive them.
trap 'heard=1' TERM
srun OPTIONS "${deltacell[@]}" "${words[@]}" &
step=$!
# A signal ends the waiting, not the step.
while heard=0; wait "$step"; code=$?; [ "$heard" = 1 ]; do :; done
"""

_REQUEUE = f"""\
job=$SLURM_JOB_ID
if [ -n "${{SLURM_ARRAY_JOB_ID:-}}" ]; then job=${{SLURM_ARRAY_JOB_ID}}_$SLURM_ARRAY_TASK_ID; fi
if [ "$warned" = 1 ] && [ "$code" = 138 ] && [ -e "$run/{_INDEX}" ]; then
  scontrol requeue "$job"
elif [ "$code" = 143 ]; then
  # Slurm requeues a pre-empted job only if it is still there when its grace is over.
  sleep {GRACE_S} &
  wait "$!"
  kill "$!" 2> /dev/null
fi
"""


def _run_directory(config: Config, name: str, array: bool) -> str:
    """Return the run directory as a word of the shell."""
    if config.directory is None:
        stem = f'runs/{name}-"{"$SLURM_ARRAY_JOB_ID" if array else "$SLURM_JOB_ID"}"'
    elif re.search(r"['\\$]", config.directory):
        raise _unusable("directory", config.directory, "no quote, backslash or dollar")
    else:
        stem = shlex.quote(config.directory)
    return f'{stem}-seed"$SLURM_ARRAY_TASK_ID"' if array else stem


_RANGE = r"\d+(-\d+(:\d+)?)?"


def _checked_name(config: Config, job: Job) -> str:
    """Raise if something is not what Slurm takes; return the name of the job."""
    name = job.name
    if name is None:
        name = re.sub(r"[^\w.-]+", "-", config.name, flags=re.ASCII).strip("-.") or "run"
    for option, value, form, such_as in (
        ("--nodes", job.nodes, r"[1-9]\d*", "2"),
        ("--gpus-per-node", job.gpus_per_node, r"[1-9]\d*", "4"),
        ("--cpus-per-task", job.cpus_per_task, r"[1-9]\d*", "8"),
        # Lightning takes jobs of these names for sessions without ranks.
        ("--job-name", name, r"(?!(bash|interactive)$)\w[\w.-]*", "demo-1"),
        ("--time", job.time, r"(\d+-)?\d+(:\d+){0,2}", "24:00:00 or 2-12:00:00"),
        ("--partition", job.partition, r"\w[\w.,-]*", "gpu or gpu,long"),
        ("--account", job.account, r"\w[\w.@-]*", "lab42"),
        ("--mem", job.mem, r"\d+[KMGT]?", "32G"),
        ("--seeds", job.seeds, rf"{_RANGE}(,{_RANGE})*(%\d+)?", "0-4 or 1,5,7"),
    ):
        if value is not None and not re.fullmatch(form, str(value), flags=re.ASCII):
            raise _unusable(option, value, f"something such as {such_as}")
    return name


def _unusable(what: str, value: object, expected: str) -> InputError:
    return InputError(f"{what} is {value!r}; expected {expected}", code="not-for-slurm")
