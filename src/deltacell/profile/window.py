"""The window of a capture, and whether a training is long enough for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from deltacell.errors import InputError


@dataclass(frozen=True)
class Window:
    """Optimizer steps to wait, to warm up and to record, and how often.

    Parameters
    ----------
    wait
        Steps before, in which nothing is on.
    warmup
        Steps in which the profiler is on and what it sees is thrown away.
    active
        Steps that are recorded.
    repeat
        How often all that is done; 0 for as often as the training lasts.
    """

    wait: int
    warmup: int
    active: int
    repeat: int = 1

    def __post_init__(self) -> None:
        lowest = {"wait": 0, "warmup": 0, "active": 1, "repeat": 0}
        for name, least in lowest.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise InputError(
                    f"the window's {name} is {value!r}, and a whole number of at least {least} "
                    "was expected",
                    fix=_HOW,
                )

    @classmethod
    def of(cls, numbers: Sequence[int]) -> Window:
        """Return the window of four numbers: wait, warmup, active, repeat."""
        if len(numbers) != 4:
            raise InputError(
                f"the window has {len(numbers)} numbers ({list(numbers)}), and 4 were expected",
                fix=_HOW,
            )
        return cls(*numbers)

    @property
    def cycle(self) -> int:
        """Steps from the beginning of one wait to the next."""
        return self.wait + self.warmup + self.active

    @property
    def steps(self) -> int:
        """Optimizer steps after which all that was asked for is recorded."""
        return self.cycle * max(self.repeat, 1)

    def __str__(self) -> str:
        return f"[{self.wait},{self.warmup},{self.active},{self.repeat}]"


def steps_per_epoch(
    samples: int, batch_size: int, accumulate: int = 1, *, drop_last: bool = False
) -> int:
    """Return the optimizer steps of one epoch.

    That is ``ceil(ceil(samples / batch_size) / accumulate)``: what is left of the samples is a
    smaller batch, and what is left of the batches a step of fewer.

    Parameters
    ----------
    samples
        Training samples an epoch.
    batch_size
        Samples a batch over all processes.
    accumulate
        Batches a step.
    drop_last
        Whether the smaller batch is left out.
    """
    _check_counts(samples=samples, batch_size=batch_size, accumulate=accumulate)
    return _up(_batches(samples, batch_size, drop_last), accumulate)


def optimizer_steps(
    samples: int,
    batch_size: int,
    accumulate: int = 1,
    epochs: int = 1,
    *,
    drop_last: bool = False,
) -> int:
    """Return the optimizer steps of a training: `steps_per_epoch` times the epochs."""
    _check_counts(epochs=epochs)
    return steps_per_epoch(samples, batch_size, accumulate, drop_last=drop_last) * epochs


def check_window(
    window: Window,
    *,
    samples: int,
    batch_size: int,
    accumulate: int = 1,
    epochs: int = 1,
    world_size: int = 1,
    drop_last: bool = False,
    steps: int | None = None,
) -> None:
    """Raise an error with the arithmetic where the training ends before the window does.

    Parameters
    ----------
    window
        What is to be recorded.
    samples, batch_size, accumulate, epochs, drop_last
        As in `optimizer_steps`.
    world_size
        Processes that share a batch.
    steps
        How many steps there are, where that is set and not the epochs.
    """
    _check_counts(world_size=world_size)
    an_epoch = steps_per_epoch(samples, batch_size, accumulate, drop_last=drop_last)
    if steps is None:
        total = optimizer_steps(samples, batch_size, accumulate, epochs, drop_last=drop_last)
    else:
        _check_counts(steps=steps)
        total = steps if an_epoch else 0
    if total >= window.steps:
        return
    arithmetic = _steps_sentence(samples, batch_size, accumulate, world_size, drop_last)
    if steps is None:
        arithmetic += f" x {_count(epochs, 'epoch')} = {total} < {window.steps}"
    elif an_epoch:
        arithmetic = f"{_count(steps, 'step')} in all < {window.steps}"
    raise InputError(
        f"the window {window} is never reached: {arithmetic}",
        fix=_smallest_change(window, an_epoch, total, steps is None),
    )


_HOW = "Write profiler.window=[wait,warmup,active,repeat], for example [5,2,5,1]."


def _batches(samples: int, batch_size: int, drop_last: bool) -> int:
    return samples // batch_size if drop_last else _up(samples, batch_size)


def _up(count: int, size: int) -> int:
    return -(-count // size)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s" if noun != "batch" else "es")


def _check_counts(**counts: int) -> None:
    may_be_nothing = {"samples", "epochs", "steps"}
    for name, value in counts.items():
        least = 0 if name in may_be_nothing else 1
        if value < least:
            raise InputError(f"{name} is {value}, and at least {least} was expected")


def _steps_sentence(
    samples: int, batch_size: int, accumulate: int, world_size: int, drop_last: bool
) -> str:
    ranks = ""
    if world_size > 1:
        share, left = divmod(batch_size, world_size)
        ranks = f" (over {world_size} ranks)" if left else f" ({world_size} ranks x {share})"
    batches = _batches(samples, batch_size, drop_last)
    text = f"{_count(samples, 'sample')} / {batch_size} a batch{ranks} = "
    if accumulate > 1:
        text += f"{_count(batches, 'batch')} / {accumulate} a step = "
    return text + _count(_up(batches, accumulate), "step")


def _smallest_change(window: Window, an_epoch: int, total: int, by_epochs: bool) -> str:
    if not an_epoch:
        return "There is no step in an epoch: give it more samples or a smaller batch."
    longer = (
        f"trainer.epochs={_up(window.steps, an_epoch)}"
        if by_epochs
        else f"mode_steps={window.steps}"
    )
    nearer = _nearest(window, total)
    return f"Set {longer}" + ("." if nearer is None else f", or profiler.window={nearer}.")


def _nearest(window: Window, total: int) -> Window | None:
    """Return the window most like this one that is reached, changing what matters least first."""
    repeats = max(window.repeat, 1)
    recorded = window.warmup + window.active
    if total // repeats >= recorded:
        return replace(window, wait=total // repeats - recorded)
    if total >= recorded:
        return replace(window, wait=0, repeat=total // recorded)
    if total > window.warmup:
        return replace(window, wait=0, active=total - window.warmup, repeat=1)
    return Window(0, total - 1, 1, 1) if total else None
