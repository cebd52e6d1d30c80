"""The walk of a training step through the source, as a tracer sees it."""

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import golden

import deltacell
from deltacell.train.build import build_loop, build_training
from deltacell.train.config import Config
from deltacell.train.data import load_data
from deltacell.train.devices import make_fabric
from deltacell.train.signals import StopSignals
from deltacell.train.step import OptimizerStep

Small = Callable[..., Config]
SOURCE = Path(deltacell.__file__).parent
FOLDER = "train/"


class Walk:
    """The functions of train/ that were called, and how often each file was entered."""

    def __init__(self) -> None:
        self.functions: dict[str, None] = {}
        self.entries: Counter[str] = Counter()

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        file = file_of(frame)
        if event != "call" or file is None or not file.startswith(FOLDER):
            return
        # Comprehensions are functions in some versions of Python only.
        if not frame.f_code.co_name.startswith("<"):
            self.functions.setdefault(f"{file} {frame.f_code.co_qualname}")
        caller = frame.f_back
        while caller is not None and file_of(caller) is None:
            caller = caller.f_back
        if caller is not None and file_of(caller) != file:
            self.entries[file] += 1


def file_of(frame: FrameType) -> str | None:
    """Return the file of a function of deltacell, from the package on."""
    path = Path(frame.f_code.co_filename)
    if not path.is_relative_to(SOURCE):
        return None
    return path.relative_to(SOURCE).as_posix()


def test_a_training_step_goes_straight_down_and_back(small: Small, monkeypatch):
    """The list of functions is the page's walk, written here so that it cannot be out of date."""
    config = small("mode_steps=2")
    place = Path(str(config.directory))
    training = build_training(make_fabric(config), config, load_data(config), place)
    loop = build_loop(training, None, StopSignals())
    walks = []
    step = OptimizerStep.__call__

    def traced(*arguments: Any) -> Any:
        walk = Walk()
        walks.append(walk)
        sys.setprofile(walk)
        try:
            return step(*arguments)
        finally:
            sys.setprofile(None)

    monkeypatch.setattr(OptimizerStep, "__call__", traced)
    loop.run()
    # The second step is a typical one: the first also makes the state of the optimizer.
    _, walk = walks
    golden.check("walks/training_step", list(walk.functions))
    # Once, and two returns.
    assert max(walk.entries.values()) <= 3, walk.entries
    page = (Path(__file__).parents[2] / "docs" / "architecture.md").read_text(encoding="utf-8")
    walk_of_page = page.partition("## A training step")[2].partition("\n## ")[0]
    for file in walk.entries:
        assert file in walk_of_page, f"{file} is not in the walk of docs/architecture.md"
