"""A training by several processes of this machine, each of which is started by this one."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from signal import SIGTERM

from deltacell.base.errors import DeltacellError
from deltacell.base.text import hydra_text
from deltacell.profile.record import Status, read_run
from deltacell.train.config import Config
from deltacell.train.devices import accelerator_of
from deltacell.train.launch import RankError, launch
from deltacell.train.run_directory import new_path, opened


def launch_training(
    config: Config,
    words: Sequence[str],
    resume: Path | None = None,
    which: str = "last",
) -> int:
    """Run `deltacell train` in as many processes as a config has devices.

    `words` are the arguments that compose the config, and `which` is the checkpoint of a resumed
    run. Returns the signal that stopped the training, or 0.
    """
    accelerator_of(config.trainer)
    path = new_path(config) if resume is None else resume
    if resume is None:
        where = [f"directory={hydra_text(path)}"]
    else:
        where = ["--resume", str(path), "--from", which]
    try:
        signal = launch(["train", *words, *where], config.trainer.devices)
    except RankError as error:
        # Rank 0 does not know which rank failed first, or may have been killed.
        with suppress(DeltacellError), opened(path) as directory:
            if directory.record.status in (Status.running, Status.failed):
                directory.end(Status.failed, error=str(error))
        raise
    was_interrupted = read_run(path).status is Status.interrupted
    return signal or (SIGTERM if was_interrupted else 0)
