"""What to try, by what is slow: a cause, or a category of the time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from deltacell.profile.explain.causes import CauseKind
from deltacell.profile.trace.categories import Category


@dataclass(frozen=True)
class Advice:
    """What to try; for a run of this program there may be a setting that does it."""

    text: str
    for_run: str | None = None


ADVICE: Mapping[CauseKind | Category, Advice | None] = {
    Category.data_loading: Advice(
        "Use more loader workers, or make samples smaller: data shared by all samples need not"
        " pass through the loader.",
        for_run="Run `deltacell train ... mode=data` to time the loader alone.",
    ),
    Category.transfer: Advice(
        "Use pinned memory and non-blocking copies; send indices and keep the data that they refer"
        " to on the device.",
    ),
    Category.preparation: Advice(
        "Prepare graphs once and reuse them instead of preparing them for every batch.",
    ),
    Category.forward: Advice(
        "Find the slow part of the model with named ranges; try a larger batch, lower precision or"
        " torch.compile.",
        for_run=(
            "Explain the traces of the run, which profiler.trace=true records: they name the module"
            " that takes the time."
        ),
    ),
    Category.loss: Advice(
        "Check whether the loss computes over all pairs or copies values to the host.",
    ),
    Category.backward: Advice(
        "A cheaper forward makes the backward cheaper; recomputing activations costs time here.",
    ),
    Category.communication: Advice(
        "Accumulate gradients over several batches, use larger buckets, or find the rank that the"
        " others wait for.",
        for_run="Try a larger data.batch_size, optimizer.accumulate, or fewer ranks.",
    ),
    Category.optimizer: Advice("Use the fused or foreach variant of the optimizer."),
    Category.logging: Advice(
        "Log less often, and do not copy values to the host in every step.",
    ),
    Category.validation: Advice(
        "Validate less often, or on fewer samples.",
        for_run="Try a larger trainer.validate_every.",
    ),
    Category.checkpoint: Advice(
        "Draw figures and write checkpoints less often.",
        for_run=(
            "Set trainer.figures_every=0 to draw no figures, and a larger"
            " trainer.checkpoint_every_minutes to write fewer checkpoints."
        ),
    ),
    Category.other: Advice(
        "Name the work with torch.profiler.record_function, or record stacks.",
        for_run="Run `deltacell train ... profiler.trace=true` to see what it is.",
    ),
    CauseKind.compute: Advice(
        "Try lower precision or torch.compile, and profile the named operation alone: its sizes,"
        " types and algorithm.",
    ),
    CauseKind.communication: Advice(
        "Overlap it with the backward, reduce it, or find the rank that arrives late.",
    ),
    CauseKind.copies: Advice(
        "Use pinned memory and non-blocking copies, and keep constants on the device.",
    ),
    CauseKind.idle_data: None,  # that of data loading
    CauseKind.idle_sync: Advice(
        "Avoid calls that make the host wait for the device in every step, such as .item().",
    ),
    CauseKind.idle_launch: Advice(
        "Launch fewer and larger kernels: a larger batch, torch.compile, CUDA graphs.",
    ),
    CauseKind.idle_host: Advice("Move the host's work out of the step or to loader workers."),
    CauseKind.idle_device: None,  # a wait for another stream or rank, whose cause is elsewhere
    CauseKind.idle_queued: Advice(
        "Launch fewer and larger kernels: what passes between two queued ones cannot be hidden.",
    ),
    CauseKind.idle_unlaunched: Advice(
        "Record the calls that launch kernels too: activities=[ProfilerActivity.CPU,"
        " ProfilerActivity.CUDA].",
    ),
    CauseKind.idle_end: None,
    CauseKind.host: None,  # that of its category
    CauseKind.rank: Advice("Give it less work, or find what delays it."),
    CauseKind.uniform: Advice(
        "Compare the clock rates, power limits and load of both machines.",
    ),
    CauseKind.machine: Advice(
        "Check what else ran on the machine, and record both again while it is idle.",
    ),
    CauseKind.batch: Advice("Compare per sample, or with the same batch."),
    CauseKind.type: Advice("Compare with the same precision."),
    CauseKind.recompute: Advice("Checkpoint fewer layers if memory allows it."),
    CauseKind.compiled: None,  # the sentence says it
    CauseKind.graphs: None,
    CauseKind.programs: Advice(
        "Compare both component by component, as the table does, and name what has no name with"
        " torch.profiler.record_function.",
    ),
    CauseKind.passes: Advice("Compare per sample: a step of one holds more samples."),
    CauseKind.forward_passes: Advice(
        "Move passes without a backward, such as validation, out of the step, or run them less"
        " often.",
    ),
    CauseKind.backward_passes: Advice(
        "Add up the losses and run one backward, unless the second one is needed.",
    ),
    CauseKind.calls: Advice("Call it less often, or on several inputs at once."),
    CauseKind.sizes: Advice("Compare programs of the same size, or per unit of work."),
    CauseKind.unknown: None,  # the sentence says what to record
    # `setting_advice` has what to try about the settings of runs.
    CauseKind.model: None,
    CauseKind.propagation: None,
    CauseKind.loss_function: None,
    CauseKind.ranks: None,
    CauseKind.relations: None,
    CauseKind.parameters: None,
    CauseKind.option: None,
    CauseKind.genes: None,
    CauseKind.cell: None,
    CauseKind.accumulated: None,
    CauseKind.precision: None,
    CauseKind.device: None,
    CauseKind.threads: None,
    CauseKind.torch: None,
    CauseKind.mode: None,
    CauseKind.settings: None,
    CauseKind.no_setting: None,
}
UNEVEN_RUN = "the machine: Check what else ran on it, and train again while it is idle."

_BY_TITLE = {
    key.title if isinstance(key, Category) else key.value: advice for key, advice in ADVICE.items()
}


def advice_on(parts: Iterable[str], *, of_run: bool = False) -> list[str]:
    """Return what to try about causes or categories, given by their titles.

    Those without advice are left out. A run of this program has advice of its own on some.
    """
    texts = []
    for part in parts:
        advice = _BY_TITLE.get(part)
        if advice is not None:
            text = advice.for_run if of_run and advice.for_run is not None else advice.text
            texts.append(f"{part}: {text}")
    return texts
