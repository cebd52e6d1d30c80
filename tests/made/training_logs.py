"""Logs of trainings whose times are known, as Slurm and terminals write them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator


def clock(seconds: float) -> str:
    """Return an elapsed time as progress bars write it: whole seconds, rounded down."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes:02d}:{rest:02d}"


def bar(name: str, done: int, total: int, elapsed_s: float) -> str:
    """Return a state of a bar of tqdm, with the average rate that Lightning displays."""
    rate = done / elapsed_s if elapsed_s and done else 0.0
    shown = "?it/s" if not rate else f"{rate:.2f}it/s" if rate >= 1 else f"{1 / rate:.2f}s/it"
    share = done * 100 // total
    filled = "#" * (share // 10)
    left = clock((total - done) / rate) if rate else "?"
    times = f"{clock(elapsed_s)}<{left}"
    return f"{name}: {share:3d}%|{filled:10}| {done}/{total} [{times}, {shown}, v_num=0]"


def states(name: str, step_s: Iterable[float], total: int, every_s: float) -> Iterator[str]:
    """Yield the states of a bar that is drawn at most every so many seconds."""
    elapsed_s = 0.0
    drawn_s = 0.0
    yield bar(name, 0, total, 0.0)
    for done, seconds in enumerate(step_s, start=1):
        elapsed_s += seconds
        if elapsed_s - drawn_s >= every_s or done == total:
            drawn_s = elapsed_s
            yield bar(name, done, total, elapsed_s)


def lightning_log(
    step_s: float,
    *,
    n_steps: int = 200,
    n_epochs: int = 3,
    warmup: Iterable[float] = (),
    every_s: float = 0.5,
    line_end: str = "\r",
) -> str:
    """Return a log with a sanity check, epochs and validation; all steps take the same time.

    ``warmup`` are the times of the first steps of the first epoch.
    """
    lines = ["batch_size: 28", "You are using a CUDA device", "  | Name | Type | Params"]
    lines += [*states("Sanity Checking DataLoader 0", [9.0, 9.0], 2, 0.1)]
    for epoch in range(n_epochs):
        times = [step_s] * n_steps
        if epoch == 0:
            first = list(warmup)
            times[: len(first)] = first
        lines += [*states(f"Epoch {epoch}", times, n_steps, every_s)]
        lines += [*states("Validation DataLoader 0", [0.001] * 50, 50, 0.01)]
        # After validation the bar of the epoch is drawn again; its time has gone on.
        lines.append(bar(f"Epoch {epoch}", n_steps, n_steps, sum(times) + 30))
    return line_end.join(lines) + "\n`Trainer.fit` stopped: `max_epochs` reached.\n"


SIMPLE_PROFILE = """\
FIT Profiler Report

-----------------------------------------------------------------------------------------------
|  Action  |  Mean duration (s)\t|  Num calls\t|  Total time (s) |  Percentage % |
-----------------------------------------------------------------------------------------------
|  Total                           |  -              \t|  3721       \t|  26.0  \t|  100 %  \t|
-----------------------------------------------------------------------------------------------
|  run_training_epoch              |  12.5   \t|  2   \t|  25.0   \t|  96.1   \t|
|  run_training_batch              |  0.1    \t|  200 \t|  20.0   \t|  76.9   \t|
|  [_TrainingEpochLoop].train_dataloader_next   |  0.02   \t|  200 \t|  4.0   \t|  15.4   \t|
|  [_EvaluationLoop].val_next      |  0.5    \t|  2 \t|  1.0   \t|  3.8   \t|
"""

OLD_PROFILE = """\
Profiler Report

Action                  |  Mean duration (s)    |  Total time (s)
-----------------------------------------------------------------
run_training_epoch      |  12.5         |  25.0
run_training_batch      |  0.1          |  20.0
get_train_batch         |  0.02         |  4.0
"""

ADVANCED_PROFILE = """\
Profile stats for: run_training_batch rank: 0
         91234 function calls (90000 primitive calls) in 20.1 seconds

   Ordered by: cumulative time
   List reduced from 200 to 20 due to restriction <20>

   ncalls  tottime  percall  cumtime  percall filename:lineno(function)
      200    0.010    0.000   20.000    0.100 automatic.py:163(run)
      600    0.010    0.000    9.000    0.015 module.py:1511(_call_impl)
Profile stats for: [_TrainingEpochLoop].train_dataloader_next rank: 0
         5123 function calls in 4.0 seconds

   ncalls  tottime  percall  cumtime  percall filename:lineno(function)
  400/200    0.100    0.000    4.000    0.020 fetchers.py:100(__next__)
"""

_NAMES = ("Self CPU %", "Self CPU", "CPU total %", "CPU total", "CPU time avg", "# of Calls")


def torch_table(step_ms: float, n_steps: int, *, self_total: str) -> str:
    """Return a table of `torch.profiler` with its fixed columns."""
    rule = "  ".join(["-" * 50, *["-" * 12] * len(_NAMES)])
    steps_ms = f"{step_ms * n_steps:.3f}ms"
    rows = [
        ("Name", *_NAMES),
        ("ProfilerStep*", "10.00%", "1.0ms", "90%", steps_ms, f"{step_ms:.3f}ms", str(n_steps)),
        ("ProfilerStep*", "0.00%", "0.000us", "0%", "0.000us", "0.000us", str(n_steps)),
        (
            "enumerate(DataLoader)#_SingleProcessDataLoaderIter...",
            *("1.00%", "900us", "9.0%", f"{2 * n_steps:.3f}ms", "2.000ms", str(n_steps)),
        ),
        ("aten::addmm", "10.00%", "1.0ms", "12%", "3.000ms", "10.000us", "300"),
    ]
    lines = [rule]
    for row in rows:
        lines.append("  ".join([f"{row[0]:>50}", *(f"{cell:>12}" for cell in row[1:])]))
    return "\n".join([*lines, rule, f"Self CPU time total: {self_total}"]) + "\n"
