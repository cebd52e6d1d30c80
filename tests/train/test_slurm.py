"""The script of a Slurm job: what it asks for, and that no value of a user gets out of it."""

import os
import socket
import subprocess
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest

from deltacell.base.errors import InputError
from deltacell.train.config.compose import compose
from deltacell.train.slurm import Job, job_script


@pytest.fixture(scope="module", autouse=True)
def _composed_once():
    """The same overrides are asked for again and again."""
    with pytest.MonkeyPatch.context() as patch:
        known = cache(lambda words, folder: compose(words, folder=folder))
        patch.setattr(
            "deltacell.train.slurm.compose",
            lambda words, folder=None: known(tuple(words), folder),
        )
        yield


def script(*overrides: str, folder: Path | None = None, **asked: object) -> str:
    job = Job(**asked)  # type: ignore[arg-type]
    text = job_script(overrides or ["experiment=demo"], job, ["deltacell"], folder)
    done = subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return text


def head(text: str) -> dict[str, str]:
    begin = "#SBATCH --"
    options = [line[len(begin) :] for line in text.splitlines() if line.startswith(begin)]
    return {name: value for name, _, value in (option.partition("=") for option in options)}


def started(text, folder, code=0, **environment):
    """Run a script whose `srun` only says where ranks meet and what it was given; return both."""
    said = folder / "said"
    srun = f'#!/bin/bash\nprintf "%s\\0" "$MASTER_PORT" "$@" > {said}\nexit {code}\n'
    (folder / "srun").write_text(srun)
    (folder / "srun").chmod(0o755)
    own = {name: value for name, value in os.environ.items() if name != "MASTER_PORT"}
    own |= {"PATH": f"{folder}:{os.environ['PATH']}", "SLURM_JOB_ID": "77", **environment}
    command = ["bash", "-c", text]
    done = subprocess.run(command, cwd=folder, env=own, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (code, "")
    port, *words = said.read_text().split("\0")[:-1]
    return port, words[words.index("deltacell") + 1 :]


def run(text, folder, **environment):
    return started(text, folder, **environment)[1]


def test_a_task_is_a_device_and_only_a_requeued_job_comes_back():
    text = script(gpus_per_node=4, nodes=2, partition="gpu,long", mem="64G", account="lab")
    assert text.startswith("#!/bin/bash\n#SBATCH --job-name=demo\n")
    options = head(text)
    assert options["nodes"] == "2"
    assert options["ntasks-per-node"] == options["gpus-per-node"] == "4"
    asked = tuple(options[name] for name in ("partition", "mem", "time", "account"))
    assert asked == ("gpu,long", "64G", "24:00:00", "lab")
    assert "trainer.nodes=2 trainer.devices=4 trainer.accelerator=cuda" in text
    assert "--cpu-bind" not in text
    cpus = script("model=dango", "data.synthetic=demo", "trainer.devices=3", cpus_per_task=2)
    options = head(cpus)
    assert (options["ntasks-per-node"], options["cpus-per-task"]) == ("3", "2")
    assert "gpus-per-node" not in options
    assert "trainer.accelerator=cpu trainer.threads=2" in cpus
    assert "srun --kill-on-bad-exit=1 --cpus-per-task=2 --cpu-bind=none" in cpus
    options = head(script("experiment=demo", "trainer.accelerator=cuda", "trainer.devices=2"))
    assert options["gpus-per-node"] == options["ntasks-per-node"] == "2"
    plain, again = script(), script(requeue=True)
    assert head(plain)["signal"] == "B:USR1@120"
    assert ("no-requeue" in head(plain), "scontrol" in plain) == (True, False)
    assert ("requeue" in head(again), "scontrol requeue" in again) == (True, True)


def test_the_directory_is_made_of_the_job_and_a_saved_run_is_resumed(tmp_path):
    assert run(script(), tmp_path)[-1] == "directory='runs/demo-77'"
    array = {"SLURM_ARRAY_JOB_ID": "70", "SLURM_ARRAY_TASK_ID": "3"}
    seeds = run(script(seeds="0-4%2"), tmp_path, **array)
    assert seeds[-2:] == ["seed=3", "directory='runs/demo-70-seed3'"]
    # Hydra takes the last of two.
    words = run(script("experiment=demo", "directory='my runs/a'", seeds="3"), tmp_path, **array)
    assert (compose(words[1:]).directory, compose(words[1:]).seed) == ("my runs/a-seed3", 3)
    folder = tmp_path / "runs" / "demo-77" / "checkpoints"
    folder.mkdir(parents=True)
    (folder.parent / "run.json").write_text("{}")
    # Without a checkpoint it starts again.
    assert run(script(), tmp_path)[-1] == "directory='runs/demo-77'"
    (folder / "step-00000001.ckpt").write_text("x")
    assert run(script(), tmp_path) == ["train", "--resume", "runs/demo-77"]
    # What it fails with is the code of the job, which is not requeued.
    run(script(requeue=True), tmp_path, code=2)


def test_ranks_meet_where_nobody_listens(tmp_path):
    several = script("experiment=demo", "trainer.devices=2")
    with socket.socket() as other:
        taken = bind_from(other, 15000 + 4577)
        number = str(1230000 + taken - 15000)
        other.listen()
        assert int(started(several, tmp_path, SLURM_JOB_ID=number)[0]) > taken
    assert started(several, tmp_path, SLURM_JOB_ID=number)[0] == str(taken)
    # What a user has chosen is theirs; one process meets nobody.
    assert started(several, tmp_path, MASTER_PORT="4000")[0] == "4000"
    assert started(script(), tmp_path)[0] == ""


def bind_from(other: socket.socket, first: int) -> int:
    """Take the first port from there on that is free; return it."""
    for number in range(first, first + 100):
        with suppress(OSError):
            other.bind(("127.0.0.1", number))
            return number
    raise AssertionError("no port is free")


@pytest.mark.parametrize(
    "override",
    [
        "name='$(touch got-out)'",
        'name="a\\" && `touch got-out`; \\""',
        "data.folder='x | touch got-out & > got-out'",
        "loggers.project='!! ~ * ? [a] {b,c} \\t'",
        "name='#SBATCH --wrap=x'",
    ],
)
def test_values_stay_values(override, tmp_path):
    folder = tmp_path / "my configs $HOME"
    (folder / "experiment").mkdir(parents=True)
    typed = ["model=dango", override]
    if "folder" not in override:
        typed.append("data.synthetic=demo")
    text = script(*typed, folder=folder)
    words = run(text, tmp_path)
    assert words[: len(typed) + 3] == ["train", "--config-dir", str(folder), *typed]
    assert not (tmp_path / "got-out").exists()
    assert "wrap" not in head(text)


@pytest.mark.parametrize(
    ("overrides", "asked"),
    [
        *(((), {"job_name": name}) for name in ("a b", "a\n#SBATCH --wrap=x", "-x", "interactive")),
        *(((), {"time": time}) for time in ("$(date)", "1:00:00\n")),
        *(((), {"seeds": seeds}) for seeds in ("0;", "0-4 1")),
        ((), {"partition": "gpu;ls"}),
        ((), {"account": "$(ls)"}),
        ((), {"mem": "`ls`"}),
        *(((), {option: 0}) for option in ("nodes", "cpus_per_task")),
        ((), {"gpus_per_node": -1}),
        # What cannot be a line of a script.
        (("name='a\nb'",), {}),
        (("name='a\x1b[2Jb'",), {}),
        (('directory="it\'s"',), {}),
        (("directory='a\\b'",), {}),
    ],
)
def test_options_that_slurm_does_not_take_are_refused(overrides, asked, refused):
    codes = ("not-for-slurm", "out-of-range", "unreadable-override")
    refused(codes, script, "experiment=demo", *overrides, **asked)


def test_a_capture_window_that_is_never_reached_is_found_when_the_script_is_written():
    words = ("experiment=demo", "data.synthetic_genotypes=150", "profiler.trace=true")
    with pytest.raises(InputError) as error:
        script(*words, "trainer.epochs=1", "profiler.window=[500,2,5,1]")
    assert error.value.code == "window-not-reached"
    assert "profiler.trace=true" in script(*words, "profiler.window=[0,1,2,1]")
