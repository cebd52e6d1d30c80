"""The check that a training reaches the steps that are traced, before it is queued."""

from __future__ import annotations

from deltacell.profile.capture import Window, check_window
from deltacell.train.config import Config
from deltacell.train.data import load_data


def check_window_of(config: Config) -> None:
    """Load the data of a config, and raise if its training ends before the window does."""
    data = load_data(config)
    samples = config.data.samples_per_epoch or len(data.split.train)
    check_window(
        Window.of(config.profiler.window),
        samples=samples,
        batch_size=config.data.batch_size,
        accumulate=config.optimizer.accumulate,
        epochs=config.trainer.epochs,
        world_size=config.ranks,
        steps=config.mode_steps,
    )
