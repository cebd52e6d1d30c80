"""The walk of an optimizer step through train/, as a tracer sees it."""

from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

import golden

from deltacell.train.build import build_loop, build_training
from deltacell.train.config import Config
from deltacell.train.data import load_data
from deltacell.train.devices import make_fabric
from deltacell.train.loop import Loop
from deltacell.train.signals import StopSignals
from deltacell_dev.walks import Step, steps_of

Small = Callable[..., Config]
FOLDER = "train/"
ARCHITECTURE = Path(__file__).parents[2] / "docs" / "architecture.md"


def loop_of(config: Config) -> Loop:
    place = Path(str(config.directory))
    training = build_training(make_fabric(config), config, load_data(config), place)
    return build_loop(training, None, StopSignals())


def walk_of_second_step(loop: Loop) -> list[Step]:
    """Return the first call of each function of train/; the first step also makes caches."""
    batches = loop.loaders.steps(loop.state.position)
    loop.step(next(batches))
    steps = steps_of(partial(loop.step, next(batches)))
    return [step for step in steps if step.function.file.startswith(FOLDER)]


def test_a_training_step_goes_straight_down_and_back(small: Small):
    walk = walk_of_second_step(loop_of(small()))
    golden.check(
        "walks/training_step",
        [f"{step.function.file} {step.function.name}" for step in walk],
    )
    entries = Counter(step.function.file for step in walk if step.enters_file)
    # Once, and two returns.
    assert max(entries.values()) <= 3, entries
    page = ARCHITECTURE.read_text(encoding="utf-8")
    section = page.partition("## A training step")[2].partition("\n## ")[0]
    for file in entries:
        assert file in section, f"{file} is not in the walk of {ARCHITECTURE}"
