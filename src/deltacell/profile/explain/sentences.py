"""Every sentence of an explanation as a template, and what to try by cause.

A field has a format of its own: ``{gap:time}``, ``{gap:change}``, ``{x:share}``, ``{x:ratio}``,
``{names:list}``, ``{name:name}`` (untrusted), ``{n:count step}``, ``{n:count step is/steps are}``.
"""

from __future__ import annotations

from collections.abc import Callable
from string import Formatter
from typing import Any

from deltacell.words import (
    change_text,
    count_text,
    listed,
    ratio_text,
    seconds_text,
    share_text,
    short_name,
)

_STYLES: dict[str, Callable[[Any], str]] = {
    "time": seconds_text,
    "change": change_text,
    "share": share_text,
    "percent": lambda share: f"{100 * share:.1f} %",
    "ratio": ratio_text,
    "list": listed,
    "name": short_name,
}


class _Sentences(Formatter):
    def format_field(self, value: Any, format_spec: str) -> str:
        if format_spec in _STYLES:
            return _STYLES[format_spec](value)
        if format_spec.startswith("count "):
            return count_text(value, *format_spec.removeprefix("count ").split("/"))
        return str(super().format_field(value, format_spec))


def say(template: str, **values: Any) -> str:
    """Return a template, by its key or itself, with its values."""
    return _Sentences().vformat(SENTENCES.get(template, template), (), values)


SENTENCES = {
    # What takes the time of one.
    "takes": "{what} takes {share:share} of a step of {of} ({seconds:time} of {whole:time}{more})",
    "per sample": ", {seconds:time} per sample",
    "led by": ", led by {name} ({seconds:time})",
    "module": "; {name} is the module that takes most ({seconds:time})",
    "idle": "the device of {of} is idle for {share:share} of a step ({seconds:time} of "
    "{whole:time})",
    "parts": "A step of {of} takes {step:time}: {parts:list}.",
    "part": "{part} {seconds:time} ({share:share})",
    "epoch": "An epoch of {of} takes {epoch:time}: {steps:count step is/steps are} {within:share} "
    "of it, and {outside:share} lies outside the steps{parts}.",
    # What makes the difference of two.
    "no difference": "There is no difference beyond noise between {b} and {a} per {per} "
    "({time_b:time} against {time_a:time})",
    "detectable": "; a difference of {detectable:share} or more would have shown",
    "longer": "{b} takes {ratio:ratio} as long per {per} as {a} ({time_b:time} against "
    "{time_a:time}){some}: {cause}",
    "not measured": "No time of {a} was measured, so {b} cannot be compared with it.",
    "of the gap": "{part} accounts for {change:change}{detail}, {share:share} of the gap",
    "more than all": ", which is more than all of it; the other parts account for {rest:change}",
    "then": ", followed by {parts:list}",
    "change": "{part} {change:change} ({share:share})",
    "as long": "{name} takes {ratio:ratio} as long ({change:change})",
    "uniform": "every operation takes about {ratio:ratio} as long on the device",
    "machine": "every part takes about {ratio:ratio} as long, as on a {how} machine",
    "batch": "the batch is {times:ratio} as large ({a} -> {b}), so a sample takes {ratio:ratio} as "
    "long",
    "type": "it computes in another type ({a} -> {b})",
    "recompute": "{of} recomputes the forward inside the backward (activation checkpointing)",
    "compiled": "only {of} runs compiled code (torch.compile)",
    "graphs": "only {of} launches graphs",
    "per epoch": " Per epoch it takes {ratio:ratio} as long ({line}){most}.",
    "most outside": ", and most of that lies {part} ({change:change})",
    "threads": " {b} computed with {in_b:count thread} per process and {a} with {in_a}, which can "
    "change every part.",
    "other ranks": " The ranks compared differ: {ranks}.",
    "uneven": " Within {names:list} the time of a step changed in every large part, so the machine "
    "may be the cause.",
    "bootstrap": "The {of} step of B takes {ratio:ratio} as long as that of A, between {low:ratio} "
    "and {high:ratio} by a bootstrap of {steps[0]:,} and {steps[1]:,} steps.",
    "only": "Only {of} has {names:list} ({seconds:time} per step).",
    "loaders": "Waiting for the loader takes {a:time} against {b:time} per step.",
    "kernels": "The kernels launched in a step take {a:time} against {b:time}{same}.",
    # Ranks.
    "straggler": "rank {rank} arrives last at the exchange of gradients, {late:time} per step "
    "after the others, and spends {more:time} more than they do in {part}",
    "late start": "the ranks wait for rank {rank}, which starts its step {late:time} late: it "
    "{entered} and {last}",
    "late": "the ranks wait for rank {rank}: it {entered}{busy}, and {last}",
    "busy": ", spends {more:time} more than they do in {category}{doing}",
    "entered": "enters {which} {name:name} {late:time} after rank {first}",
    "last": "comes last to {count} of {collectives:count collective}; waiting for it takes "
    "{share:share} of the time of all ranks",
    # What else a trace shows.
    "device": "The step of the device is {parts:list}; these add up to it.",
    "shares": "From the first event of the device to the last, on average over ranks: idle "
    "{idle:percent}, exposed communication and copies {non_compute:percent}, compute "
    "{compute:percent}.",
    "loader": "The training waits {seconds:time} per step for its loader ({share:share}).",
    "no loader": "The trace has no range of a loader, so waiting for batches is not visible in it.",
    # Doubts.
    "residual": "the parts of {of} miss its wall time by {share:share}",
    "machine changed": "the steps of {of} took {steps}, in every large part ({parts:list}): "
    "something outside of the program, or the machine, changed",
    "other source": "{a} is a {source_a} and {b} is a {source_b}, which are measured differently",
    "other mode": "{a} was run in mode '{mode_a}' and {b} in mode '{mode_b}', so the gap is a "
    "marginal cost, which is a share of the step only where nothing overlaps",
    "other program": "{a} and {b} are different programs",
    "other device": "the devices differ ({devices:list})",
    "damage": "events were lost ({damage})",
    "lost": "{share:share} of the launches have no kernel in the trace, so events were lost",
    "no marks": "the trace does not mark its steps; they were found from {how:name}",
    "few steps": "only {steps:count step was/steps were} measured",
    "unknown events": "events of unknown categories were left out ({events:list})",
    "low": "Confidence is low: {doubt}.",
    # Warnings on a run.
    "mode": "{of} was run in mode '{mode}', so this is not a whole training step.",
    "unfinished": "The run is {status}, so this covers what it has done so far.",
    "few timed": "Only {steps:count steady step was timed/steady steps were timed}.",
    "unreadable": "{rows:count row of phases has/rows of phases have} no time.",
    "steps took": "Its steps took {steps}{changed}.",
    "all profiled": "A profiler was on in all steady steps, which makes them longer.",
    "cut": "Of {steps:count step}, {warmup:count was/were} cut as warm-up and {profiled} because a "
    "profiler was on ({seconds:time}).",
}

IDLE = {
    "data": "waiting for the loader",
    "sync": "with nothing ready after {name} made the host wait for the device",
    "launch": "while the host launches kernels, mostly in {name}",
    "host": "while the host is busy with {name}",
    "device": "waiting for another stream or rank",
    "end": "at the end of the trace",
}
"""Why a device is idle."""

MACHINE_ADVICE = "the machine: Check what else ran on it, and train again while it is quiet."

ADVICE = {
    # Parts of a step.
    "data loading": "Let more loader workers read ahead, or make samples smaller: data shared by "
    "all samples need not pass through the loader.",
    "transfer to device": "Pin the memory of batches and send them without blocking; send indices "
    "and keep what they point to on the device.",
    "graph preparation": "Prepare graphs once and keep them, instead of for every batch.",
    "forward": "Find the slow part of the model with named ranges; try a larger batch, lower "
    "precision or torch.compile.",
    "loss": "Look for what the loss computes over all pairs, and for values copied to the host.",
    "backward": "A cheaper forward makes the backward cheaper; recomputing activations costs time "
    "here.",
    "gradient communication": "Accumulate gradients over several batches, use larger buckets, or "
    "find the rank that the others wait for.",
    "optimizer": "Use the fused or foreach variant of the optimizer.",
    "logging and callbacks": "Log less often, and do not copy values to the host in every step.",
    "validation": "Validate less often, or on fewer samples.",
    "checkpoints and figures": "Draw figures and write checkpoints less often.",
    "other": "Name the work with torch.profiler.record_function, or record stacks.",
    # Causes of a difference, and parts of the device's time.
    "compute": "Profile the named operation alone: its sizes, types and algorithm.",
    "computing": "Only less or cheaper work helps a busy device: lower precision, torch.compile.",
    "communication": "Overlap it with the backward, reduce it, or find the rank that comes late.",
    "copies": "Pin the memory of batches, copy without blocking, and keep constants on the device.",
    "idle": "Move the work that the host does meanwhile out of the step, or to workers.",
    "uniform": "Compare the clocks, the power limits and the load of both machines.",
    "machine": "Check what else ran on the machine, and record both again while it is quiet.",
    "batch": "Compare per sample, or with the same batch.",
    "type": "Compare with the same precision.",
    "recompute": "Checkpoint fewer layers where memory allows it.",
    # Why a device is idle.
    "idle sync": "Remove what makes the host wait for the device, such as .item() in a step.",
    "idle launch": "Launch fewer and larger kernels: a larger batch, torch.compile, CUDA graphs.",
    "idle host": "Move the work of the host out of the step, or to workers.",
}
"""What to try by what is slow."""

RUN_ADVICE = {
    "data loading": "`deltacell train ... mode=data` times the loader alone.",
    "gradient communication": "Try a larger data.batch_size, optimizer.accumulate, or fewer ranks.",
    "validation": "Try a larger trainer.validate_every.",
    "checkpoints and figures": "trainer.figures_every=0 draws no figures, and a larger "
    "trainer.checkpoint_every_minutes writes fewer checkpoints.",
    "other": "`deltacell train ... profiler.trace=true` records what is in it.",
}
"""What to try with a run of this program instead."""
