"""What to try, by what is slow."""

from __future__ import annotations

MACHINE_ADVICE = (
    "the machine: See what else ran on it at that time, and train again while it is quiet."
)
"""Where a run became slower in every part."""

_ANYWHERE = {
    "data loading": "Let more loader workers read ahead, or make what a sample carries smaller: "
    "what is the same for all samples need not go through the loader.",
    "transfer to device": "Pin the memory of batches and send them without waiting; send indices "
    "and keep what they point to on the device.",
    "graph preparation": "Prepare graphs once and keep them, instead of for every batch.",
    "forward": "See which part of the model it is by named ranges; try a larger batch, lower "
    "precision or torch.compile.",
    "loss": "Look for what the loss computes over all pairs, and for values it copies to the host.",
    "backward": "Backward follows forward: what makes that cheaper helps here; recomputation of "
    "activations costs time here.",
    "gradient communication": "Accumulate gradients over several batches, use larger buckets, or "
    "find the rank that the others wait for.",
    "optimizer": "Use the fused or foreach variant of the optimizer.",
    "logging and callbacks": "Log less often, and do not copy values of the device to the host in "
    "every step.",
    "validation": "Validate less often, or on fewer samples.",
    "checkpoints and figures": "Draw figures and write checkpoints less often.",
    "other": "Record a trace with stacks to see what is in it.",
    "device idle": "The device waits for the host: launch fewer and larger kernels (a larger "
    "batch, torch.compile, CUDA graphs) and remove synchronisation.",
}
_HERE = {
    "data loading": "`deltacell train ... mode=data` shows the loader alone.",
    "gradient communication": "Try a larger data.batch_size, optimizer.accumulate, or fewer ranks.",
    "validation": "Try a larger trainer.validate_every.",
    "checkpoints and figures": "trainer.figures_every=0 draws no figures, and a larger "
    "trainer.checkpoint_every_minutes writes fewer checkpoints.",
    "other": "`deltacell train ... profiler.trace=true` shows what is in it.",
}


def advice_on(part: str, *, of_run: bool) -> str:
    """Return what to try where a part is slow.

    Parameters
    ----------
    part
        A category.
    of_run
        Whether it is of a run of this program, whose settings have names.
    """
    if of_run and part in _HERE:
        return _HERE[part]
    return _ANYWHERE[part] if part in _ANYWHERE else _ANYWHERE["other"]
