"""The scripts of Slurm jobs: one that trains, saves when it is stopped and resumes, and others."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from jinja2 import Environment, StrictUndefined, Template

from deltacell.base.errors import InputError
from deltacell.train.capture_window import check_window_of
from deltacell.train.config.compose import compose

_VALUE = re.compile(r"\w[\w.,:%@-]*", re.ASCII)
_PATH = re.compile(r"[\w./][\w.,:%@/+-]*", re.ASCII)
_MAIL_TYPE = "END,FAIL,REQUEUE"


@dataclass(frozen=True)
class Job:
    """The options of a job; None leaves an option to the config or to Slurm."""

    nodes: int | None = None
    gpus_per_node: int | None = None  # one process each; None for CPUs
    cpus_per_task: int | None = None
    time: str = "24:00:00"
    partition: str | None = None
    account: str | None = None
    mem: str | None = None  # per node
    seeds: str | None = None  # an array with one job per seed, such as 0-4 or 1,5,7
    job_name: str | None = None
    requeue: bool = False
    mail: str | None = None  # the address that is told when the job ends or fails
    output: str | None = None  # the file of its output


def job_script(
    overrides: Sequence[str],
    job: Job,
    program: Sequence[str],
    folder: Path | None = None,
) -> str:
    """Return a script for ``sbatch``; one task is one device, as Lightning expects.

    The run directory is named after the job, and the seed in an array, so that a requeued job
    finds its checkpoints. Before the time limit, the shell passes SIGUSR1 on to ``srun`` and so to
    every rank. It does not pass on SIGTERM, at which ``srun`` would kill its tasks: Slurm sends
    that to the ranks itself. Either way they save and exit with 128 + the signal's number.
    """
    added: dict[str, int | str | None] = {"trainer.nodes": job.nodes}
    if job.gpus_per_node is not None:
        added |= {"trainer.devices": job.gpus_per_node, "trainer.accelerator": "cuda"}
    else:
        # A node may have GPUs that this job did not request.
        is_open = compose(overrides, folder=folder).trainer.accelerator == "auto"
        added["trainer.accelerator"] = "cpu" if is_open else None
        added["trainer.threads"] = job.cpus_per_task
    # The last override of a key counts.
    overrides = [*overrides, *(f"{k}={v}" for k, v in added.items() if v is not None)]
    config = compose(overrides, folder=folder)
    _check_options(job)
    if config.profiler.trace:
        check_window_of(config)
    name = job.job_name
    if name is None:
        name = re.sub(r"[^\w.-]+", "-", config.name, flags=re.ASCII).strip("-.") or "run"
    if name in ("bash", "interactive"):
        why = "another name: in a job of this name, Lightning does not start several processes"
        raise _unusable("--job-name", name, why)
    folders = [] if folder is None else ["--config-dir", str(folder)]
    directory = config.directory or ""
    is_array = job.seeds is not None
    trainer = config.trainer
    _check_words((*overrides, *program, *folders, directory))
    if re.search(r"['\\$]", directory):
        raise _unusable("directory", directory, "no quote, backslash or dollar")
    number = "$SLURM_ARRAY_JOB_ID" if is_array else "$SLURM_JOB_ID"
    run = shlex.quote(directory) if directory else f'runs/{name}-"{number}"'
    gpus = trainer.devices if trainer.accelerator == "cuda" else None
    cpus = job.cpus_per_task or (None if gpus else trainer.threads or 1)
    return _template("slurm_job.sh").render(
        name=name,
        job=job,
        mail_and_output=_mail_and_output(job),
        trainer=trainer,
        gpus=gpus,
        cpus=cpus,
        program=shlex.join(program),
        words=shlex.join(["train", *folders, *overrides]),
        run=f'{run}-seed"$SLURM_ARRAY_TASK_ID"' if is_array else run,
    )


def command_script(
    words: Sequence[str],
    job: Job,
    program: Sequence[str],
    *,
    n_parts: int | None = None,
    at_a_time: int | None = None,
) -> str:
    """Return a script for ``sbatch`` that runs a command in one process.

    With ``n_parts=64``, it is an array of 64 jobs, ``at_a_time`` of which run at a time; each runs
    the command with ``--part NUMBER/64``.
    """
    _check_options(job)
    _check_words((*words, *program))
    array = None
    command = shlex.join([*program, *words])
    if n_parts is not None:
        array = f"1-{n_parts}" if at_a_time is None else f"1-{n_parts}%{at_a_time}"
        command += f' --part "$SLURM_ARRAY_TASK_ID/{n_parts}"'
    cpus = job.cpus_per_task or 1
    options = {
        "job-name": job.job_name or words[0],
        "array": array,
        "ntasks": 1,
        "gpus-per-node": job.gpus_per_node,
        "cpus-per-task": cpus,
        "time": job.time,
        "partition": job.partition,
        "account": job.account,
        "mem": job.mem,
        **_mail_and_output(job),
    }
    return _template("slurm_command.sh").render(options=options, cpus=cpus, command=command)


def parts_script(
    words: Sequence[str],
    outputs: Sequence[str],
    job: Job,
    program: Sequence[str],
    *,
    n_parts: int,
    at_a_time: int | None = None,
) -> str:
    """Return a script for bash that submits a ranking in parts, and a job that merges them.

    The merge job starts when all parts have ended, also if some failed; it names these and scores
    them. ``words`` are those of the command, and ``outputs`` those that only the merge job has.
    """
    part = command_script(words, job, program, n_parts=n_parts, at_a_time=at_a_time)
    merge = command_script([*words, "--merge", *outputs], job, program)
    template = _template("slurm_parts.sh")
    return template.render(n_parts=n_parts, part=part.rstrip(), merge=merge.rstrip())


def _mail_and_output(job: Job) -> dict[str, str | None]:
    return {
        "mail-user": job.mail,
        "mail-type": None if job.mail is None else _MAIL_TYPE,
        "output": job.output,
    }


def _template(name: str) -> Template:
    text = resources.files("deltacell.conf").joinpath(name).read_text("utf-8")
    shell = Environment(undefined=StrictUndefined, trim_blocks=True, keep_trailing_newline=True)
    return shell.from_string(text)


def _check_options(job: Job) -> None:
    """Raise for a value that could break out of its line; sbatch checks the rest."""
    for option, value in vars(job).items():
        allowed = _PATH if option == "output" else _VALUE
        if value is not None and not allowed.fullmatch(str(value)):
            raise _unusable(f"--{option.replace('_', '-')}", value, "one word")


def _check_words(words: Sequence[str]) -> None:
    for word in words:
        if not word.isprintable():
            raise _unusable("a word of the command", word, "one line of printable characters")


def _unusable(what: str, value: object, expected: str) -> InputError:
    return InputError(f"{what} is {value!r}; expected {expected}", code="not-for-slurm")
