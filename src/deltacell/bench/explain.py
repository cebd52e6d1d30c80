"""How often the first sentence of an explanation names the true cause, by kind of cause."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from deltacell.bench.process import machine
from deltacell.bench.simulate import Program, write
from deltacell.profile.explain import explain
from deltacell.words import Progress

BAR = 0.95  # the share of cases in which the sentence has to be right
NOISE = (0.02, 0.05, 0.15)  # spread of the time per step of pairs that differ by noise alone


@dataclass(frozen=True)
class Case:
    """One trace, or a pair, with its true cause.

    ``right`` are patterns that the first sentence must have, all of them, without regard to case;
    ``vague`` is one that points to the right area without naming the cause.
    """

    kind: str
    a: Program
    b: Program | None
    right: tuple[str, ...]
    vague: str
    seed: int = 0


def run(
    *, seed: int = 0, only: str | None = None, progress: Progress | None = None
) -> dict[str, Any]:
    """Explain every case and count the right, vague and wrong first sentences by kind."""
    chosen = [case for case in cases(seed) if only is None or only in case.kind]
    rows: dict[str, dict[str, Any]] = {}
    missed = []
    with tempfile.TemporaryDirectory() as folder:
        for number, case in enumerate(chosen):
            if progress is not None:
                progress(case.kind, number, len(chosen))
            a, b = (Path(folder) / str(number) / name for name in ("one", "two"))
            one = write(case.a, a, 2 * case.seed)
            other = None if case.b is None else write(case.b, b, 2 * case.seed + 1)
            sentence = explain(one, other).sentence
            verdict = judge(case, sentence)
            new = {"kind": case.kind, "cases": 0, "right": 0, "vague": 0, "wrong": 0}
            row = rows.setdefault(case.kind, new)
            row["cases"] += 1
            row[verdict] += 1
            if verdict != "right":
                missed.append({"kind": case.kind, "verdict": verdict, "sentence": sentence})
    bars = {}
    for name, is_noise in (("right", False), ("no difference", True)):
        mine = [row for row in rows.values() if ("noise" in row["kind"]) == is_noise]
        if mine:
            share = sum(row["right"] for row in mine) / sum(row["cases"] for row in mine)
            bars[name] = {"at_least": BAR, "measured": share, "met": share >= BAR}
    return {
        "benchmark": "explain",
        "command": "deltacell bench explain",
        "cases": len(chosen),
        "seed": seed,
        "rows": list(rows.values()),
        "missed": missed,
        "bars": bars,
        "machine": machine(),
    }


def judge(case: Case, sentence: str) -> str:
    """Return whether a first sentence is ``right``, ``vague`` or ``wrong``."""
    lead = re.split(r"\.\s+(?=[A-Z])", sentence)[0]
    if all(re.search(pattern, lead, re.IGNORECASE) for pattern in case.right):
        return "right"
    return "vague" if re.search(case.vague, lead, re.IGNORECASE) else "wrong"


def cases(seed: int = 0) -> Iterator[Case]:
    """Give all cases: single traces, pairs, and pairs that differ by noise alone."""
    for number, (kind, a, b, right, vague) in enumerate([*_single(), *_pairs()]):
        vary = _varied(np.random.default_rng([seed, number]))
        other = None if b is None else vary(b)
        yield Case(kind, vary(a), other, right, vague, 10_000 * seed + number)
    for noise in NOISE:
        for number in range(20):
            base = (GPU, CPU, replace(GPU, sync=False), replace(GPU, steps=25))[number % 4]
            vary = _varied(np.random.default_rng([seed, 500 + number]))
            program = replace(vary(base) if number % 4 < 3 else base, noise=noise)
            kind, said = f"pair: noise of {100 * noise:.0f} % alone", "no difference beyond noise"
            yield Case(kind, program, program, (said,), "^$", 10_000 * seed + 5000 + number)


def _varied(rng: np.random.Generator) -> Callable[[Program], Program]:
    """Return a function that varies what has nothing to do with a cause, the same for A and B."""
    size, host = np.exp(rng.uniform(-0.3, 0.3, 2))
    layers, steps = int(rng.integers(3, 7)), int(rng.integers(8, 20))
    noise, stacked = float(rng.uniform(0.01, 0.04)), bool(rng.integers(0, 2))

    def vary(program: Program) -> Program:
        return replace(
            program,
            attention=program.attention * size,
            gemm=program.gemm * size,
            host=program.host * host,
            layers=layers,
            steps=min(program.steps, steps),
            noise=noise,
            stacks=program.stacks or (stacked and program.work_before is None),
        )

    return vary


GPU = Program()
CPU = Program(device=None, attention=900.0, gemm=1100.0, loader=300.0)
DDP = Program(world=2, allreduce=500.0)
_Planted = tuple[str, Program, Program | None, tuple[str, ...], str]


def _single() -> Iterator[_Planted]:
    for kind, program, right, vague in _singles():
        yield kind, program, None, right, vague


def _singles() -> Iterator[tuple[str, Program, tuple[str, ...], str]]:
    idle = "idle"
    for times in (1, 2, 4):
        wait = 8000.0 * times
        yield "loader", replace(GPU, loader=wait), ("loader",), idle
        yield "loader", replace(CPU, loader=6 * wait, workers=False), ("data loading",), "other"
    for items in (40, 80):
        yield "sync", replace(GPU, items=items, attention=20, gemm=20), ("aten::item",), idle
    for count in (60, 120):
        small = replace(GPU, small_kernels=count, attention=30, gemm=30)
        yield "launches", small, ("launch",), idle
    for times in (3, 6):
        heavy = replace(GPU, attention=300.0 * times)
        yield "kernel", heavy, ("comput", "attention"), "comput"
        yield "kernel", replace(GPU, gemm=350.0 * times), ("comput", "aten::(mm|linear)"), "comput"
        busy = replace(heavy, loader=1200.0 * times)
        yield "kernel before a small idle", busy, ("^comput", "attention"), "comput|idle"
        yield "operator", replace(CPU, gemm=2000.0 * times), ("aten::(mm|linear)",), "ward"
        yield "operator", replace(CPU, attention=2000.0 * times), ("attention",), "ward"
    for times in (1, 2):
        exposed = replace(DDP, allreduce=15000.0 * times, ranks=(0,))
        yield "communication", exposed, ("communication", "all_?reduce"), "communication"
        yield "copies", replace(GPU, copy=20000.0 * times), ("cop(y|ies)", "HtoD"), "copies"
        back = replace(GPU, to_host=15000.0 * times)
        yield "copies", back, ("cop(y|ies)", "DtoH"), "copies|idle"
        before = ("augment", 40000.0 * times)
        for base in (CPU, GPU):
            known = replace(base, work_before=before, stacks=True)
            yield "Python before the model", known, ("augment",), "other|records nothing|busy"
            hidden = ("records nothing", "randperm")
            unknown = replace(base, work_before=before)
            yield "work that records nothing", unknown, hidden, "other|records nothing|busy"
            saves = replace(base, save=50000.0 * times, stacks=True)
            yield "torch.save", saves, ("serialization|torch.save",), "checkpoint|busy"
        yield "recompilation", replace(GPU, recompile=60000.0 * times), ("compil",), idle
        late = replace(DDP, world=4, steps=1, skew={3: 9000.0 * times})
        yield "rank starts late", late, ("rank 3", "starts", "late"), "rank|communication"
        slow = replace(DDP, world=4, slow={2: 8000.0 * times})
        yield "slow rank", slow, ("rank 2", "data loading|loader"), "rank|communication"
        queued = replace(GPU, sync=False, device_factor=1.0 + times)
        yield "queued device", queued, ("comput", "aten::|attention"), "comput"
        server = replace(GPU, graph=True, marks=False, sync=False, device_factor=2.0 * times)
        yield "no steps", server, ("comput", "flash|sgemm"), "comput"


def _pairs() -> Iterator[_Planted]:
    for times in (1, 2):
        for base in (GPU, replace(GPU, sync=False), DDP):
            slow = replace(base, attention=5 * base.attention * times)
            yield "pair: kernel", base, slow, ("attention",), "comput"
        slow = replace(GPU, gemm=3 * GPU.gemm * times)
        yield "pair: kernel", GPU, slow, ("aten::(mm|linear)|sgemm",), "comput"
        late = replace(DDP, allreduce=DDP.allreduce + 6000.0 * times)
        yield "pair: communication", DDP, late, ("communication", "all_?reduce"), "communication"
        slower = replace(GPU, sync=False, device_factor=1.7 * times)
        every = "every (operation|kernel|part)"
        yield "pair: slower device", replace(GPU, sync=False), slower, (every,), "comput"
        yield "pair: slower device", GPU, replace(GPU, device_factor=1.7 * times), (every,), "comp"
        yield "pair: slower machine", CPU, replace(CPU, host_factor=1.4 * times), (every,), "ward"
        waits = replace(GPU, loader=9000.0 * times, workers=False)
        yield "pair: loader", GPU, waits, ("loader|data loading",), "idle"
        host = replace(CPU, loader=20000.0 * times, workers=False)
        yield "pair: loader", CPU, host, ("loader|data loading",), "idle"
        yield "pair: sync", GPU, replace(GPU, items=25 * times), ("aten::item",), "idle"
        sends = replace(GPU, copy=5000.0 * times)
        yield "pair: copies", GPU, sends, ("cop(y|ies)", "HtoD"), "cop(y|ies)"
        back = replace(GPU, to_host=6000.0 * times)
        yield "pair: copies", GPU, back, ("cop(y|ies)", "DtoH"), "cop(y|ies)|idle"
        for base in (GPU, CPU):
            larger = replace(base, batch=32 * 2 * times)
            yield "pair: batch", base, larger, (f"batch.*32 -> {64 * times}",), "comput|ward"
            double = replace(base, dtype="double", batch=32)
            yield "pair: type", base, double, ("float -> double",), "comput|ward"
            again = replace(base, checkpointing=True, gemm=base.gemm * times)
            plain = replace(base, gemm=base.gemm * times)
            yield "pair: checkpointing", plain, again, ("recompute",), "comput|ward|attention"
            saves = replace(base, save=20000.0 * times, stacks=True)
            plain = replace(base, stacks=True)
            yield "pair: torch.save", plain, saves, ("serialization|torch.save",), "check|idle"
            work = replace(plain, work_before=("augment", 20000.0 * times))
            yield "pair: Python", plain, work, ("augment",), "other|idle|records nothing"
        loop = replace(CPU, foreach=False, parameters=2000 * times)
        yield "pair: optimizer", CPU, loop, ("aten::(add_|mul_|addcdiv_)",), "optimizer"
        single = replace(GPU, foreach=False, parameters=300 * times)
        yield "pair: optimizer", GPU, single, ("optimizer|aten::(add_|mul_|addcdiv_)",), "idle|comp"
        tuned = replace(GPU, compiled=True, attention=100.0, gemm=120.0)
        yield "pair: compiled", tuned, GPU, ("compiled",), "comput"
        again = replace(tuned, recompile=30000.0 * times)
        yield "pair: recompilation", tuned, again, ("compil",), "idle"
        # The same program on other hardware.
        other = replace(GPU, vendor="hip", device="AMD Instinct MI250X", device_factor=1.5 * times)
        yield "pair: other hardware", GPU, other, (every,), "comput"
