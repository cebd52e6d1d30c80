"""Sentences of explanations, made from values.

Names of operations come from untrusted files, so they are shown with `short_name`.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence

from deltacell.base.text import (
    capital,
    change_text,
    count_text,
    listed,
    ratio_text,
    seconds_text,
    share_text,
    short_name,
)
from deltacell.profile.explain.account import OUTSIDE, Account, Bar, EpochRatio, Waterfall
from deltacell.profile.explain.causes import (
    DEVICE_PARTS,
    BatchCause,
    BusyTime,
    CannotTell,
    Cause,
    CauseKind,
    DataType,
    Detail,
    Execution,
    GapShare,
    IdleReason,
    IdleShare,
    LargerInputs,
    LateRank,
    LongerOperation,
    MoreCalls,
    MorePasses,
    NoSetting,
    OnlyOne,
    Operation,
    OtherOperations,
    OtherSettings,
    OtherWork,
    SlowerMachine,
    StepShare,
    Straggler,
    Timed,
    TwoPrograms,
    UniformOperations,
    UnlikeCalls,
)
from deltacell.profile.explain.noise import Difference
from deltacell.profile.explain.setting_sentences import (
    settings_clause,
    unexplained_clause,
    work_clause,
)
from deltacell.profile.explain.split import DifferenceSplit
from deltacell.profile.phase_rows import Uneven

MORE_THAN_ALL = 1.005  # a larger share of a gap means that other parts change the other way

# A cause of one trace: where its step goes.


def cause_clause(cause: Cause, of: str) -> str:
    """Return a clause about a cause of one trace, whose name is ``of``, or of a pair."""
    match cause.evidence:
        case StepShare() as part:
            return _step_share(part, cause, of)
        case IdleShare() as idle:
            return _idle_share(idle, cause, of)
        case LateRank() as late:
            return _late_rank(late, cause.share)
        case SlowerMachine() as slower:
            return _slower_machine(slower)
        case GapShare() as part:
            return gap_share(part)
        case TwoPrograms() as programs:
            return _two_programs(programs)
        case MorePasses() as passes:
            return more_passes(passes)
        case CannotTell() as unknown:
            return _cannot_tell(unknown)
        case UnlikeCalls() as unlike:
            return _unlike_calls(unlike)
        case OtherWork() as work:
            return work_clause(work)
        case OtherSettings(changes):
            return settings_clause(changes)
        case NoSetting(part, changes):
            return f"{gap_share(part)}{unexplained_clause(changes)}"


def _of_step(cause: Cause) -> str:
    whole = cause.seconds / cause.share if cause.share else 0.0
    return f"({seconds_text(cause.seconds)} of {seconds_text(whole)})"


def _step_share(part: StepShare, cause: Cause, of: str) -> str:
    share = share_text(cause.share)
    text = f"{short_name(part.part)} takes {share} of a step of {of} {_of_step(cause)}"
    if part.operation is not None:
        name = operation_text(part.operation.name, on_device=part.part in DEVICE_PARTS.values())
        text += f", mainly in {name} ({seconds_text(part.operation.seconds)})"
    if part.module is not None:
        text += f"; the module with the most time is {short_name(part.module.name)}"
        text += f" ({seconds_text(part.module.seconds)})"
    return text


def _idle_share(idle: IdleShare, cause: Cause, of: str) -> str:
    share = share_text(cause.share)
    text = f"the device of {of} is idle for {share} of a step {_of_step(cause)}"
    clauses = [_idle_reason(reason) for reason in idle.reasons]
    return f"{text}: {' and '.join(clauses)}" if clauses else text


def _idle_reason(reason: IdleReason) -> str:
    why = idle_text(CauseKind.idle(reason.reason), reason.operation)
    return f"{seconds_text(reason.seconds)} {why}"


def idle_text(kind: CauseKind, operation: str | None) -> str:
    """Return why a device is idle, with what the host did or had waited for meanwhile."""
    meanwhile = short_name(operation or "something else")
    match kind:
        case CauseKind.idle_data:
            return "waiting for the loader"
        case CauseKind.idle_sync:
            return f"with no work queued after {meanwhile} made the host wait for the device"
        case CauseKind.idle_launch:
            mostly = f" (mostly in {meanwhile})" if operation else ""
            return f"while the host launches kernels{mostly}"
        case CauseKind.idle_host:
            return f"while the host is busy with {meanwhile}"
        case CauseKind.idle_device:
            return "waiting for another stream or rank"
        case CauseKind.idle_queued:
            return "between kernels that were already queued"
        case CauseKind.idle_unlaunched:
            return "before kernels whose launch is not in the trace"
        case CauseKind.idle_end:
            return "at the end of the trace"
    raise ValueError(f"{kind} is not a reason for idle time")


def operation_text(name: str, *, on_device: bool) -> str:
    """Return the name of an operation; that of a kernel without its template arguments."""
    return kernel_name(name) if on_device else short_name(name)


def kernel_name(name: str) -> str:
    """Return the name of a kernel as a person says it, or that of an operator as it is.

    Left out are template arguments, namespaces and the suffixes of variants; what a generic kernel
    of PyTorch computes is added, such as ``elementwise_kernel (add)``.
    """
    plain = name[:MOST_OF_NAME].removeprefix("void ").replace("(anonymous namespace)::", "")
    short = re.split(r"[<(]", plain, maxsplit=1)[0].strip()
    if not short or plain.startswith(("Memcpy", "Memset")):
        return short_name(plain)
    collective = _COLLECTIVE.match(short)
    if collective is not None:
        return short_name(f"{collective['library'].upper()} {collective['name']}")
    if "::" in short and short != plain:
        short = short.rpartition("::")[2]
    functor = _FUNCTOR.search(plain) if short in _GENERIC else None
    if functor is None:
        return short_name(short)
    computes = functor["cuda"] or functor["camel"] or functor["snake"]
    return short_name(f"{short} ({computes.lower()})")


MOST_OF_NAME = 2000  # characters of a name that are looked at
_COLLECTIVE = re.compile(r"^(?P<library>[nr]ccl)(?:Dev)?Kernel_(?P<name>[A-Za-z]+?)_")
_GENERIC = {
    "elementwise_kernel",
    "vectorized_elementwise_kernel",
    "unrolled_elementwise_kernel",
    "reduce_kernel",
    "multi_tensor_apply_kernel",
}
# The functor of a generic kernel, such as CUDAFunctor_add, MulFunctor, MeanOps or relu_kernel_cuda.
_FUNCTOR = re.compile(
    r"CUDAFunctor(?:On\w+?)?_(?P<cuda>\w+)"
    r"|\b(?P<camel>[A-Za-z]+)(?:Functor|Ops)\b"
    r"|\b(?P<snake>\w+?)_(?:kernel_)?cuda\b",
)


# Ranks.


def _late_rank(late: LateRank, share: float) -> str:
    starts = ""
    if late.starts_late:
        starts = f", which starts its step {seconds_text(late.late_before_s)} late"
    which = "the first" if late.index == 0 else f"call {late.index + 1} of"
    enters = f"it enters {which} {short_name(late.collective)} {seconds_text(late.late_by_s)}"
    if late.starts_late:
        link = " and"
    elif late.category is not None:
        doing = short_name(late.operation or "")
        link = f", spends {seconds_text(late.more_s)} more than they do in {late.category}"
        link += f" ({doing}), and"
    else:
        link = ", and"
    times = f"{late.times_last} of {count_text(late.n_collectives, 'collective')}"
    return (
        f"the ranks wait for rank {late.rank}{starts}: {enters} after rank {late.first_rank}{link}"
        f" arrives last at {times}; waiting for it takes {share_text(share)} of the time of all"
        " ranks"
    )


def straggler_clause(late: Straggler) -> str:
    """Return which rank of a run the others wait for, and what it spends more time on."""
    return (
        f"rank {late.rank} arrives last at the exchange of gradients,"
        f" {seconds_text(late.late_s)} per step after the others, and spends"
        f" {seconds_text(late.more_s)} more than they do in {late.part}"
    )


def which_ranks(world_size: int, ranks: Sequence[int | None]) -> str:
    """Return which ranks of how many a trace has."""
    if len(ranks) > 1:
        return f"{len(ranks)} of {count_text(world_size, 'rank')}"
    return f"rank {ranks[0] or 0} of {world_size}"


# A cause of a difference between two.


def gap_share(part: GapShare) -> str:
    """Return how much of the gap a part accounts for, and what is behind it."""
    if part.part in DEVICE_PARTS:
        label = DEVICE_PARTS[part.part]
    elif part.part in _IDLE_KINDS:
        label = f"idle time {idle_text(CauseKind(part.part), part.operation)}"
    else:
        return _host_gap_share(part)
    text = part_of_gap(label, part.change, part.gap)
    return text if part.detail is None else f"{text}: {detail_clause(part.detail)}"


_IDLE_KINDS = frozenset(kind for kind in CauseKind if kind.is_idle)


def _host_gap_share(part: GapShare) -> str:
    text = f"{_host_label(part)} accounts for {change_text(part.change)}"
    if part.operation is not None and part.part not in ("other", "data loading"):
        text += f", mostly in {short_name(part.operation)}"
    text += _rest_of_gap(part.change, part.gap)
    return text if part.detail is None else f"{detail_clause(part.detail)}; {text}"


def _host_label(part: GapShare) -> str:
    """Return the name of a category of the host, or of the operation if it has no category."""
    if part.part == "other" and part.operation is not None:
        return short_name(part.operation)
    return _outside_text(part.part)


def part_of_gap(label: str, change: float, gap: float) -> str:
    """Return how much of a gap a part accounts for."""
    return f"{_outside_text(label)} accounts for {change_text(change)}{_rest_of_gap(change, gap)}"


def _outside_text(label: str) -> str:
    """Return the name of a part of a step or of an epoch as the subject of a sentence."""
    if not label.startswith(OUTSIDE):
        return label
    return f"time outside the steps ({label.removeprefix(OUTSIDE)})"


def _rest_of_gap(change: float, gap: float) -> str:
    share = change / gap
    if share > MORE_THAN_ALL:
        return f", and all other parts together for {change_text(gap - change)}"
    return f", {share_text(share)} of the gap"


def detail_clause(detail: Detail) -> str:
    """Return what is behind the change of a part."""
    match detail:
        case BatchCause() as batch:
            return _other_batch(batch)
        case DataType(old, new):
            return f"the data type differs ({old} -> {new})"
        case Execution(kind, program):
            return _execution(kind, program)
        case MoreCalls() as more:
            return _more_calls(more)
        case LargerInputs() as inputs:
            return _larger_inputs(inputs)
        case UniformOperations(ratio):
            return f"every operation takes about {ratio_text(ratio)} as long on the device"
        case OnlyOne(program, operation):
            name = kernel_name(operation.name)
            return f"only {program} has {name} ({seconds_text(operation.seconds)})"
        case LongerOperation() as longer:
            return _longer_operation(longer)
        case Operation(name):
            return kernel_name(name)
        case CannotTell():
            return f"the traces do not tell why the same calls take longer: {_RECORD_SHAPES}"
        case None:
            return ""


def _other_batch(batch: BatchCause) -> str:
    factor = ratio_text(batch.new / batch.old)
    per_sample = ratio_text(batch.ratio * batch.old / batch.new)
    text = f"the batch is {factor} as large ({batch.old} -> {batch.new})"
    return f"{text}, so a sample takes {per_sample} as long"


def _larger_inputs(inputs: LargerInputs) -> str:
    sizes = f"{short_name(inputs.sizes_a)} -> {short_name(inputs.sizes_b)}"
    factor = ratio_text(inputs.ratio)
    where = f"{short_name(inputs.name)}: {sizes}"
    return f"the inputs of the same calls are {factor} as large ({where})"


def _longer_operation(longer: LongerOperation) -> str:
    factor = ratio_text(longer.after / longer.before)
    change = change_text(longer.after - longer.before)
    text = f"{kernel_name(longer.name)} takes {factor} as long ({change})"
    return f"{text}, most of it in {short_name(longer.module)}" if longer.module else text


def _more_calls(more: MoreCalls) -> str:
    name = short_name(more.name)
    if not more.calls_a or not more.calls_b:
        times = f"{max(more.calls_a, more.calls_b):,.4g}"
        return f"only {more.slower} calls {name} ({times} times per step)"
    return f"{name} is called {more.calls_b:,.4g} times per step instead of {more.calls_a:,.4g}"


def _execution(kind: CauseKind, program: str) -> str:
    match kind:
        case CauseKind.recompute:
            what = "recomputes the forward inside the backward (activation checkpointing)"
            return f"{program} {what}"
        case CauseKind.compiled:
            return f"only {program} runs compiled code (torch.compile)"
        case CauseKind.graphs:
            return f"only {program} launches CUDA graphs"
    raise ValueError(f"{kind} is not a way to execute a program")


def _slower_machine(slower: SlowerMachine) -> str:
    how = "slower or busier" if slower.ratio > 1 else "faster or quieter"
    ratio = ratio_text(slower.ratio)
    text = f"every part takes about {ratio} as long, as on a {how} machine"
    if slower.competing_workers:
        text += ", and the workers of its loader compete with it for the same cores"
    if slower.beyond is not None:
        label = _host_label(slower.beyond)
        text += f"; beyond that, {label} accounts for {change_text(slower.beyond.change)}"
    return text


def _two_programs(programs: TwoPrograms) -> str:
    clauses = []
    if programs.only_b:
        clauses.append(_components(programs.only_b, programs.b, programs.step_b))
    if programs.only_a:
        clauses.append(_components(programs.only_a, programs.a, programs.step_a))
    if clauses:
        components = f"{' and '.join(clauses)}, without a counterpart in the other"
        return f"they are different programs; {components}{_beside(programs)}"
    if programs.changed is not None:
        name = short_name(programs.changed.name)
        before = seconds_text(programs.changed.before)
        after = seconds_text(programs.changed.after)
        work = f"{name} takes {after} against {before}, with other operators"
        return f"they do the same in different ways; {work}"
    return "they are different programs, with other operators, called in other numbers"


def two_programs_in_short(programs: TwoPrograms, *, of_both: bool, a: str, b: str) -> str:
    """Return that there are two programs, with what only one of them has, or only each of both.

    Of one of them it is what only B has, if it has anything that A has not. ``a`` and ``b`` are
    what the programs are called.
    """
    clauses = _own_clauses(programs, a, b, n_kinds=1)
    if not clauses:
        return _two_programs(programs)
    own = listed(clauses if of_both else clauses[:1])
    return f"they are different programs; {own}"


def own_components_sentence(programs: TwoPrograms) -> str:
    """Return the components of each of two programs that the other one does not have."""
    clauses = _own_clauses(programs, programs.a, programs.b, n_kinds=2)
    if not clauses:
        return f"{capital(_two_programs(programs))}."
    return f"{capital('; '.join(clauses))}."


def _own_clauses(programs: TwoPrograms, a: str, b: str, n_kinds: int) -> list[str]:
    """Return what only B has and what only A has, as far as there is anything."""
    clauses = []
    for name, own, step in (
        (b, programs.only_b, programs.step_b),
        (a, programs.only_a, programs.step_a),
    ):
        if own:
            share = share_text(math.fsum(component.seconds for component in own) / step)
            named = listed(_named_components(own, n_kinds))
            clauses.append(f"only {name} has {named}, {share} of its step")
    return clauses


def beside_components_sentence(beside: Timed) -> str:
    """Return the part of a gap that belongs to no component."""
    label = DEVICE_PARTS.get(beside.name, beside.name)
    return f"Beside these components, {label} accounts for {change_text(beside.seconds)}."


def pass_sentence(passes: MorePasses) -> str:
    """Return how many times as long a pass takes."""
    return f"A pass takes {ratio_text(passes.ratio / passes.factor)} as long."


def _beside(programs: TwoPrograms) -> str:
    """Return a clause about the part of the gap that belongs to no component, or nothing."""
    if programs.beside is None:
        return ""
    label = DEVICE_PARTS.get(programs.beside.name, programs.beside.name)
    return f"; beside them, {label} accounts for {change_text(programs.beside.seconds)}"


def _components(components: Sequence[Timed], program: str, step: float) -> str:
    """Return how much of a step the components of one program take, with the longest two."""
    seconds = math.fsum(component.seconds for component in components)
    takes = "takes" if len(components) == 1 else "take"
    share = share_text(seconds / step)
    named = listed(_named_components(components, 2))
    return f"{named} {takes} {share} of a step of {program} ({seconds_text(seconds)})"


def _named_components(components: Sequence[Timed], n_kinds: int) -> list[str]:
    """Return the longest kinds of components, and how many other kinds there are."""
    # Layers differ in their number alone.
    kinds = Counter(re.sub(r"[_.]?\d+$", "", component.name) for component in components)
    named = [
        short_name(components[0].name if len(components) == 1 else kind)
        + (f" ({number} times)" if number > 1 else "")
        for kind, number in [*kinds.items()][:n_kinds]
    ]
    if len(kinds) > n_kinds:
        named.append(f"{len(kinds) - n_kinds} more")
    return named


def more_passes(passes: MorePasses) -> str:
    """Return how many times as many passes a step of B has, and how long one takes."""
    times = ratio_text(passes.factor)
    each = ratio_text(passes.ratio / passes.factor)
    step = f"a step of {passes.b}"
    match passes.kind:
        case CauseKind.passes:
            what = "as many forward and backward passes, as with gradient accumulation"
            return f"{step} has {times} {what}; a pass takes {each} as long"
        case CauseKind.backward_passes:
            return f"{step} runs the backward {times} as often over the same forward"
        case CauseKind.forward_passes:
            what = (
                "as many forward passes and the same backward, as with validation inside the step"
            )
            return f"{step} has {times} {what}"
    raise ValueError(f"{passes.kind} is not a number of passes")


def more_passes_in_short(passes: MorePasses) -> str:
    """Return how many times as many passes a step of B has."""
    times = ratio_text(passes.factor)
    match passes.kind:
        case CauseKind.passes:
            what = "as many forward and backward passes, as with gradient accumulation"
            return f"its step has {times} {what}"
        case CauseKind.backward_passes:
            return f"its step runs the backward {times} as often over the same forward"
        case CauseKind.forward_passes:
            return f"its step has {times} as many forward passes, as with validation inside it"
    raise ValueError(f"{passes.kind} is not a number of passes")


_RECORD_SHAPES = "record both with record_shapes=True to tell larger inputs from a slower machine"


def _cannot_tell(unknown: CannotTell) -> str:
    text = f"every part takes about {ratio_text(unknown.ratio)} as long"
    if not unknown.has_shapes:
        return f"{text} with the same calls, and the traces do not tell why: {_RECORD_SHAPES}"
    return (
        f"{text}, and neither the calls nor their inputs tell why: compare the threads, the clock"
        " rate and the load of both"
    )


def _unlike_calls(unlike: UnlikeCalls) -> str:
    calls = f"({unlike.calls_b:,.4g} against {unlike.calls_a:,.4g} per step)"
    more = f"{unlike.b} calls {ratio_text(unlike.calls_b / unlike.calls_a)} as many operators"
    where = unlike.part
    if unlike.operation is not None:
        where += f" ({short_name(unlike.operation)})"
    return (
        f"{more} as {unlike.a} {calls}, but this does not explain the change, most of which is in"
        f" {where}: record more steps of both on a quiet machine"
    )


RECORD_STACKS = "; record with_stack=True to see it"

# The comparison of two.


def no_time_sentence(a: str, b: str) -> str:
    """Return that A has no time to compare with."""
    return f"No time of {a} was measured, so {b} cannot be compared with it."


def against(fall: Waterfall) -> str:
    """Return both times in parentheses, that of B first."""
    return f"({seconds_text(fall.b)} against {seconds_text(fall.a)})"


def noise_clause(fall: Waterfall, noise: Difference | None, a: str, b: str) -> str:
    """Return that two take equally long, with the least difference that would have shown."""
    between = f"between {b} and {a} per {fall.per}"
    text = f"There is no difference beyond noise {between} {against(fall)}"
    if noise is not None:
        least = share_text(noise.detectable)
        text += f"; a difference of {least} or more would have been detected"
    return text


def slower_clause(
    fall: Waterfall,
    ratio: float,
    noise: Difference | None,
    cause: str,
    a: str,
    b: str,
) -> str:
    """Return by how much B takes longer than A, and why."""
    some_steps = ""
    if noise is not None and noise.of == "mean":
        some_steps = ", because of some of its steps"
    longer = f"{b} takes {ratio_text(ratio)} as long per {fall.per} as {a}"
    return f"{longer} {against(fall)}{some_steps}: {cause}"


def per_sample_sentence(a: Account, b: Account) -> str | None:
    """Return how long a sample takes in two accounts; None if the samples of one are unknown."""
    if not a.sample_s or not b.sample_s:
        return None
    ratio = ratio_text(b.sample_s / a.sample_s)
    times = f"{seconds_text(b.sample_s)} against {seconds_text(a.sample_s)}"
    sizes = f"{b.samples_per_step:,.4g} and {a.samples_per_step:,.4g} samples per step"
    if a.samples_per_step == b.samples_per_step:
        sizes = f"both have {a.samples_per_step:,.4g} samples per step"
    return f"Per sample, {b.name} takes {ratio} as long as {a.name} ({times}; {sizes})."


def all_the_same_sentence(programs: TwoPrograms) -> str:
    """Return that two programs differ although their times do not."""
    return f"{capital(_two_programs(programs))}."


def certain_sentence(certain: BusyTime | OtherOperations) -> str:
    """Return what differs between two traces although their steps take equally long."""
    match certain:
        case BusyTime(a, b, seconds_a, seconds_b, detail):
            ratio = ratio_text(seconds_b / seconds_a)
            times = f"{seconds_text(seconds_b)} against {seconds_text(seconds_a)}"
            because = detail_clause(detail)
            text = f"The device of {b} computes {ratio} as long per step as that of {a} ({times})"
            return f"{text}: {because}." if because else f"{text}."
        case OtherOperations(what, a, b, only_a, only_b):
            clauses = [
                f"only {name} runs {listed([_operation_time(operation) for operation in only])}"
                for name, only in ((a, only_a), (b, only_b))
                if only
            ]
            return f"They run different {what}: {' and '.join(clauses)}."


def certain_in_short(certain: BusyTime | OtherOperations) -> str:
    """Return a clause on what differs between two traces although their steps take equally long."""
    match certain:
        case BusyTime(a, b, seconds_a, seconds_b):
            times = f"{seconds_text(seconds_b)} against {seconds_text(seconds_a)}"
            longer = f"computes {ratio_text(seconds_b / seconds_a)} as long as that of {a}"
            return f"the device of {b} {longer} ({times})"
        case OtherOperations(what):
            return f"they run different {what}"


def _operation_time(operation: Timed) -> str:
    return f"{kernel_name(operation.name)} ({seconds_text(operation.seconds)})"


def parts_clause(fall: Waterfall) -> str:
    """Return the parts that make the gap, the largest first."""
    lead, *others = [bar for bar in fall.bars if bar.change * fall.gap > 0]
    text = part_of_gap(lead.part, lead.change, fall.gap)
    if lead.change / fall.gap > MORE_THAN_ALL:
        return text
    links = iter((", followed by ", " and "))
    for bar in others[:2]:
        share = bar.change / fall.gap
        if share >= 0.05:
            text += f"{next(links)}{bar.part} {change_text(bar.change)} ({share_text(share)})"
    return text


def epochs_sentence(fall: Waterfall, ratio: EpochRatio, most: Bar | None) -> str:
    """Return how epochs differ otherwise than steps, with the part that makes most of it."""
    text = f"Per epoch it takes {ratio_text(ratio.epoch)} as long ({ratio.line})"
    if most is not None:
        text += f", and most of the change lies {most.part} ({change_text(most.change)})"
    return f"{text}."


def ranks_differ_sentence(ranks: str) -> str:
    """Return that two sides do not have the same ranks."""
    return f"The ranks compared differ: {ranks}."


# Evidence.


def bootstrap_sentence(noise: Difference) -> str:
    """Return the ratio of two averages of steps with its interval."""
    low = ratio_text(noise.low)
    high = ratio_text(noise.high)
    steps_a, steps_b = noise.steps
    return (
        f"The {noise.of} step of B takes {ratio_text(noise.ratio)} as long as that of A, with an"
        f" interval from {low} to {high} (bootstrap over {steps_a:,} and {steps_b:,} steps)."
    )


def detectable_sentence(noise: Difference) -> str:
    """Return the smallest difference that would have shown."""
    least = share_text(noise.detectable)
    return f"A difference of {least} or more would have been detected."


def device_parts_sentence(parts: Mapping[str, float]) -> str:
    """Return the parts of the device's time in a step."""
    whole = sum(parts.values())
    clauses = [
        f"{DEVICE_PARTS[part]} {seconds_text(seconds)} ({share_text(seconds / whole)})"
        for part, seconds in parts.items()
    ]
    return f"A step of the device consists of {listed(clauses)}."


def device_of_ranks_sentence(shares: Mapping[str, float]) -> str:
    """Return the parts of the device's time, averaged over ranks."""
    exposed = shares["communication"] + shares["copies"]
    return (
        "From the first event of the device to the last, on average over ranks: idle"
        f" {100 * shares['idle']:.1f} %, exposed communication and copies {100 * exposed:.1f} %,"
        f" compute {100 * shares['compute']:.1f} %."
    )


def loader_sentence(seconds: float, share: float) -> str:
    """Return how long a step waits for its loader."""
    return (
        f"The training waits {seconds_text(seconds)} per step for its loader ({share_text(share)})."
    )


NO_LOADER = "The trace does not record a loader, so waiting for batches is not visible in it."


def loaders_sentence(a: float, b: float) -> str:
    """Return how long the steps of two programs wait for their loaders."""
    against = f"{seconds_text(a)} against {seconds_text(b)}"
    return f"Waiting for the loader takes {against} per step."


def split_sentence(split: DifferenceSplit, of: str) -> str:
    """Return how much of a change comes from more, from larger and from slower calls."""
    reasons = [f"{change_text(split.more)} from more calls"]
    if split.larger is not None:
        reasons.append(f"{change_text(split.larger)} from larger inputs")
    reasons.append(f"{change_text(split.slower)} from slower calls")
    return f"The {of} change by {change_text(split.change)} per step: {listed(reasons)}."


THREADS_UNKNOWN = (
    "A trace does not record the number of threads, so compare OMP_NUM_THREADS and"
    " torch.get_num_threads() of both."
)


def kernels_sentence(a: float, b: float) -> str:
    """Return how long the kernels of a step take in two programs."""
    text = f"The kernels launched in a step take {seconds_text(a)} against {seconds_text(b)}"
    is_same = abs(a - b) <= 0.02 * max(a, b)
    return f"{text}: the work of the device is the same." if is_same else f"{text}."


# Doubts, without a full stop.


def parts_miss_doubt(account: Account) -> str:
    """Return that the parts of an account do not add up to the wall time."""
    residual = share_text(account.residual)
    return f"the parts of {account.name} differ from its wall time by {residual}"


def sources_differ_doubt(a: Account, b: Account) -> str:
    """Return that a run is compared with a trace."""
    return f"{a.name} is a {a.source} and {b.name} is a {b.source}, which are measured differently"


def modes_differ_doubt(a: Account, b: Account) -> str:
    """Return that two runs were made in different modes."""
    return (
        f"{a.name} was run in mode '{a.facts.get('mode', '')}' and {b.name} in mode"
        f" '{b.facts.get('mode', '')}', so the gap is a marginal cost, which is a share of the step"
        " only if nothing overlaps"
    )


def programs_differ_doubt(a: Account, b: Account) -> str:
    """Return that two traces are of different programs."""
    return f"{a.name} and {b.name} are different programs"


def both_ways_doubt(against: float, gap: float) -> str:
    """Return that some parts of a step changed against the gap."""
    return (
        f"parts of a step changed by {seconds_text(against)} in the opposite direction of the gap"
        f" of {seconds_text(gap)}, so the machine may have changed too; record both again, in turns"
    )


def devices_differ_doubt(a: str, b: str) -> str:
    """Return that two traces are of different devices."""
    return f"the devices differ ({short_name(a)} and {short_name(b)})"


def events_lost_doubt(damage: str) -> str:
    """Return why events of a trace are missing."""
    return f"events were lost ({damage})"


def kernels_lost_doubt(share: float) -> str:
    """Return the share of launches whose kernel is missing."""
    return f"{share_text(share)} of the launches have no kernel in the trace, so events were lost"


def steps_not_marked_doubt(how: str) -> str:
    """Return from what the steps of a trace were derived."""
    return f"the trace does not mark its steps; they were derived from {short_name(how)}"


def few_steps_doubt(count: int) -> str:
    """Return how few steps were measured."""
    return f"only {count_text(count, 'step was', 'steps were')} measured"


def strange_events_doubt(events: Mapping[str, int]) -> str:
    """Return which events of unknown categories were left out."""
    named = [f"{count:,} of '{short_name(name)}'" for name, count in events.items()]
    return f"events of unknown categories were left out ({listed(named[:3])})"


# Warnings about a run.


def mode_warning(mode: str) -> str:
    """Return that a run did not carry out whole training steps."""
    return f"The run used mode '{mode}', so this is not a whole training step."


def unfinished_warning(status: str) -> str:
    """Return that a run is not finished."""
    return f"The run is {status}, so this covers only its steps so far."


def few_steady_steps_warning(count: int) -> str:
    """Return how few steady steps a run has."""
    return f"Only {count_text(count, 'steady step was timed', 'steady steps were timed')}."


PROFILED = "A profiler was on in all steady steps, which makes them longer."


def steps_cut_warning(*, steady: int, warmup: int, profiled: int, seconds: float) -> str:
    """Return how many steps of a run do not count, and why."""
    every = count_text(steady + warmup + profiled, "step")
    cut = count_text(warmup, "was", "were")
    return (
        f"Of {every}, {cut} cut as warm-up and {profiled} because a profiler was on"
        f" ({seconds_text(seconds)})."
    )


def uneven_clause(uneven: Uneven, parts: Sequence[str]) -> str:
    """Return how a run became slower, and in which parts of a step."""
    text = (
        f"its steps took {seconds_text(uneven.slow_s)} from step {uneven.first:,} to"
        f" {uneven.last:,} and {seconds_text(uneven.fast_s)} in another part of the run"
    )
    if parts:
        text += f"; the slower parts are {listed(parts)}"
    if uneven.is_everywhere:
        text += (
            ", which are all of the large parts, so something outside the program changed, such as"
            " the load of the machine"
        )
    return text
