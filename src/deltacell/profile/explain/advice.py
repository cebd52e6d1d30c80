"""What to try, by what is slow."""

from __future__ import annotations

from deltacell.profile.explain.stragglers import late_rank
from deltacell.profile.explain.trace_account import counted_steps, device_parts
from deltacell.profile.trace.attribution import RanksAttribution

MUCH = 0.10
"""The share of a step that is worth advice."""

MACHINE_ADVICE = (
    "the machine: See what else ran on it at that time, and train again while it is quiet."
)
"""Where a run became slower in every part."""

CAUSE_ADVICE = {
    "compute": "Profile the named operation alone; look at its sizes, types and algorithm.",
    "communication": "Let it overlap with the backward, make it smaller, or find who comes late.",
    "copies": "Pin the memory of batches, copy without waiting, and keep on the device what stays.",
    "idle": "Take what the host does meanwhile out of the step, or let workers do it.",
    "uniform": "Compare the clocks, the power limits and the load of both machines.",
    "machine": "See what else ran on the machine, and record both again while it is quiet.",
    "batch": "Compare per sample, or with one batch.",
    "type": "Compare with one precision.",
    "recompute": "Checkpoint fewer layers where memory allows it.",
}
"""What to try, by the kind of cause."""

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
    "other": "Give the work a name with torch.profiler.record_function, or record stacks.",
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
    """Return what to try where a part is slow."""
    if of_run and part in _HERE:
        return _HERE[part]
    return _ANYWHERE[part] if part in _ANYWHERE else _ANYWHERE["other"]


def trace_advice(traces: RanksAttribution) -> list[str]:
    """Return what to try, by what the device waits for; categories are advised on elsewhere."""
    found = []
    device = traces.ranks[0].device
    parts = device_parts(traces)
    if device is not None and parts:
        wall = sum(parts.values())
        steps = counted_steps(traces.ranks[0])
        for reason, time in device.idle.select("reason", "time").rows():
            if time / 1e9 / steps > MUCH * wall and reason in _IDLE_ADVICE:
                found.append(f"idle device: {_IDLE_ADVICE[reason]}")
        if parts["communication"] > MUCH * wall:
            found.append(
                "communication: let it overlap with the backward (buckets), make it smaller, or "
                "find who comes late."
            )
        if parts["compute"] > 0.7 * wall:
            found.append(
                "computing: the device is busy, so only less or cheaper work helps: lower "
                "precision, torch.compile, a cheaper algorithm."
            )
    late = late_rank(traces)
    if late is not None and late.waited_share > MUCH / 2:
        found.append(
            f"rank {late.rank}: give it less work, or look at what delays it"
            + (f" ({late.category})." if late.category else ".")
        )
    return found


_IDLE_ADVICE = {
    "sync": "remove what makes the host wait for the device, such as .item() and .cpu() in a step.",
    "launch": "launch fewer and larger kernels: a larger batch, torch.compile, CUDA graphs, fused "
    "optimizers.",
    "host": "move the work of the host off the step, or to workers.",
}
