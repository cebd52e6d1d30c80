"""`deltacell slurm train`: the script of a job."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from deltacell.cli.program import complete_override


def train(
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            help="As for `deltacell train`: experiment=demo.", autocompletion=complete_override
        ),
    ] = None,
    nodes: Annotated[int | None, typer.Option(help="Nodes; trainer.nodes.")] = None,
    gpus_per_node: Annotated[
        int | None, typer.Option(help="GPUs, one process each; without, it trains on CPUs.")
    ] = None,
    cpus_per_task: Annotated[
        int | None, typer.Option(help="Cores and threads per process.")
    ] = None,
    time: Annotated[
        str, typer.Option(help="Time limit; it saves two minutes before.")
    ] = "24:00:00",
    partition: Annotated[str | None, typer.Option(help="One or more, with commas.")] = None,
    account: Annotated[str | None, typer.Option(help="The account to charge.")] = None,
    mem: Annotated[str | None, typer.Option(help="Memory per node: 32G.")] = None,
    seeds: Annotated[
        str | None, typer.Option(help="An array of jobs, one per seed: 0-4 or 1,5,7.")
    ] = None,
    requeue: Annotated[
        bool, typer.Option("--requeue", help="Requeue and resume when stopped.")
    ] = False,
    job_name: Annotated[str | None, typer.Option(help="By default the config's name.")] = None,
    config_dir: Annotated[
        Path | None, typer.Option(help="Your own configs, as for `deltacell train`.")
    ] = None,
) -> None:
    """Write the script of a Slurm job that trains to the standard output.

    The config is checked here, so that a mistake is found before the job waits in a queue.

    Example: deltacell slurm train experiment=demo --seeds 0-4 > job.sbatch
    """
    from deltacell.train.compose import compose
    from deltacell.train.slurm import Job, job_overrides, job_script

    job = Job(
        nodes=nodes,
        gpus_per_node=gpus_per_node,
        cpus_per_task=cpus_per_task,
        time=time,
        partition=partition,
        account=account,
        mem=mem,
        seeds=seeds,
        requeue=requeue,
        name=job_name,
    )
    folder = None if config_dir is None else config_dir.absolute()
    words = job_overrides(compose(overrides or [], folder=folder), overrides or [], job)
    config = compose(words, folder=folder)
    # By its path, because a job may not have the environment that is active here.
    program = [sys.executable, "-m", "deltacell"]
    typer.echo(job_script(config, words, job, program=program, folder=folder), nl=False)
