"""`deltacell slurm train`, `predict`, `evaluate` and `compare`: scripts of Slurm jobs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from deltacell.base.errors import InputError
from deltacell.cli.program import ConfigDir, Overrides, option

if TYPE_CHECKING:
    from deltacell.train.slurm import Job

#: Settings of a command that passes options of another command on.
PASSES_ON = {"ignore_unknown_options": True, "allow_interspersed_args": True}
# What only the job that has the whole ranking can write.
_OUTPUTS = ("html", "csv", "xlsx", "cytoscape", "json", "link")

Words = Annotated[
    list[str],
    typer.Argument(help="Run directories, and any option of the command itself."),
]
Cores = Annotated[int | None, option("Cores and threads per job; 1 by default.")]
Gpus = Annotated[int | None, option("GPUs per job; CPUs if omitted.")]
Time = Annotated[str, option("Time limit of a job.")]
Partition = Annotated[str | None, option("Partitions, comma-separated.")]
Account = Annotated[str | None, option("Account to charge.")]
Memory = Annotated[str | None, option("Memory per job, such as 32G.")]
JobName = Annotated[str | None, option("Job name; by default the command's.")]
Mail = Annotated[str | None, option("Address that Slurm mails when the job ends or fails.")]
Output = Annotated[str | None, option("File of the job's output, such as logs/%x-%j.out.")]


def train(
    overrides: Overrides = None,
    nodes: Annotated[int | None, option("Number of nodes.")] = None,
    gpus_per_node: Annotated[int | None, option("GPUs, one process each; CPUs if omitted.")] = None,
    cpus_per_task: Annotated[int | None, option("Cores and threads per process.")] = None,
    time: Annotated[str, option("Time limit; the job saves two minutes before it.")] = "24:00:00",
    partition: Annotated[str | None, option("Partitions, comma-separated.")] = None,
    account: Annotated[str | None, option("Account to charge.")] = None,
    mem: Annotated[str | None, option("Memory per node, such as 32G.")] = None,
    seeds: Annotated[str | None, option("Job array with one job per seed: 0-4 or 1,5,7.")] = None,
    requeue: Annotated[bool, option("Requeue and resume when stopped.", "--requeue")] = False,
    job_name: Annotated[str | None, option("Job name; by default the config's.")] = None,
    mail: Mail = None,
    output: Output = None,
    config_dir: ConfigDir = None,
) -> None:
    """Print the script of a Slurm job that trains.

    The config is checked now, so that mistakes are found before the job is queued.

    Example: deltacell slurm train experiment=demo --seeds 0-4 > job.sbatch
    """
    from deltacell.train.slurm import Job, job_script

    asked = (nodes, gpus_per_node, cpus_per_task, time, partition, account, mem, seeds, job_name)
    job = Job(*asked, requeue=requeue, mail=mail, output=output)
    folder = None if config_dir is None else config_dir.absolute()
    typer.echo(job_script(overrides or [], job, _program(), folder), nl=False)


def predict(
    words: Words,
    parts: Annotated[int, option("Number of parts, which is fixed from then on.", min=1)],
    at_a_time: Annotated[int | None, option("Parts that run at a time.", min=1)] = None,
    cpus_per_task: Cores = None,
    gpus_per_node: Gpus = None,
    time: Time = "24:00:00",
    partition: Partition = None,
    account: Account = None,
    mem: Memory = None,
    job_name: JobName = None,
) -> None:
    """Print a script that ranks gene sets in parts: a job array, and a job that merges them.

    Takes the options of `deltacell predict`. Run the script with bash. When all parts have ended,
    the second job scores those that are missing or damaged.

    Example: deltacell slurm predict runs/demo --sets triples --parts 64 > rank.sh
    """
    from deltacell.train.slurm import Job, parts_script

    asked = (None, gpus_per_node, cpus_per_task, time, partition, account, mem)
    job = Job(*asked, job_name=job_name)
    typed = _parsed("predict", words)
    if typed["part"] is not None or typed["merge"]:
        what = "the script sets --part and --merge itself; leave them out"
        raise InputError(what, code="conflicting-settings")
    _check_ranking(typed)
    outputs = {name: value for name, value in typed.items() if name in _OUTPUTS}
    rest = {name: value for name, value in typed.items() if name not in _OUTPUTS}
    script = parts_script(
        _command("predict", rest, job),
        _option_words("predict", outputs),
        job,
        _program(),
        n_parts=parts,
        at_a_time=at_a_time,
    )
    typer.echo(script, nl=False)


def evaluate(
    words: Words,
    cpus_per_task: Cores = None,
    gpus_per_node: Gpus = None,
    time: Time = "24:00:00",
    partition: Partition = None,
    account: Account = None,
    mem: Memory = None,
    job_name: JobName = None,
) -> None:
    """Print the script of a Slurm job that tests runs and baselines.

    Takes the options of `deltacell evaluate`.

    Example: deltacell slurm evaluate runs/demo --mem 16G > job.sbatch
    """
    from deltacell.profile.record import read_run
    from deltacell.train.slurm import Job, command_script

    asked = (None, gpus_per_node, cpus_per_task, time, partition, account, mem)
    job = Job(*asked, job_name=job_name)
    typed = _parsed("evaluate", words)
    for run in typed["runs"]:
        read_run(run)
    typer.echo(command_script(_command("evaluate", typed, job), job, _program()), nl=False)


def compare(
    words: Words,
    cpus_per_task: Cores = None,
    gpus_per_node: Gpus = None,
    time: Time = "02:00:00",
    partition: Partition = None,
    account: Account = None,
    mem: Memory = None,
    job_name: JobName = None,
    mail: Mail = None,
    output: Output = None,
) -> None:
    """Print the script of a Slurm job that compares two trainings by trials.

    Takes the options of `deltacell compare`. A requeued job resumes.

    Example: deltacell slurm compare runs/before runs/after > job.sbatch
    """
    from deltacell.train.comparing.sides import read_sides
    from deltacell.train.slurm import Job, command_script

    asked = (None, gpus_per_node, cpus_per_task, time, partition, account, mem)
    job = Job(*asked, job_name=job_name, mail=mail, output=output)
    typed = _parsed("compare", words)
    a = typed.pop("a")
    b = typed.pop("b")
    read_sides(a, b, typed["config_dir"])
    command = ["compare", a, b, *_option_words("compare", typed)]
    typer.echo(command_script(command, job, _program()), nl=False)


def _program() -> list[str]:
    # The full path, because a job may not have the active environment.
    return [sys.executable, "-m", "deltacell"]


def _parsed(name: str, words: Sequence[str]) -> dict[str, Any]:
    """Return the parameters of a command as it parses words; raise as it would."""
    return dict(_command_named(name).make_context(name, list(words)).params)


def _command_named(name: str) -> Any:
    from deltacell.cli.app import app

    program = typer.main.get_command(app)
    assert isinstance(program, TyperGroup)
    return program.commands[name]


def _check_ranking(typed: dict[str, Any]) -> None:
    """Raise for runs and sets that `deltacell predict` would not rank."""
    from deltacell.cli.predict import runs_and_sets
    from deltacell.profile.record import read_run
    from deltacell.ranking.request import Request

    runs, sets = runs_and_sets(typed["runs"], typed["sets"])
    for run in runs:
        read_run(run)
    options = ("genes", "top", "above", "below", "status", "linked", "distance", "size")
    Request.of_words(sets, **{name: typed[name] for name in options})


def _command(command: str, typed: dict[str, Any], job: Job) -> list[str]:
    """Return the words of a command, on the device that the job has."""
    device = typed["device"]
    if device == "auto":
        # A node may have GPUs that this job did not request.
        device = "cpu" if job.gpus_per_node is None else "cuda"
    runs = list(map(str, typed["runs"]))
    options = {name: value for name, value in typed.items() if name != "runs"}
    return [command, *runs, *_option_words(command, {**options, "device": device})]


def _option_words(command: str, values: dict[str, Any]) -> list[str]:
    """Return the options of a command that differ from their defaults, as typed."""
    words: list[str] = []
    for parameter in _command_named(command).params:
        value = values.get(parameter.name or "")
        if value is None or value == parameter.default:
            continue
        name = max(parameter.opts, key=len)
        if value is True:
            words.append(name)
        else:
            several = value if isinstance(value, list | tuple) else [value]
            words += [f"{name}={text}" for text in several]
    return words
