"""Benchmark of explanations: how often the first sentence names the true cause."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import yaml  # type: ignore[import-untyped]

from deltacell.bench import process
from deltacell.profile.explain import explain
from deltacell_dev.bench.simulate import Program, write

NOISE = (0.02, 0.05, 0.15)  # spread of the time per step in pairs that differ by noise alone

GPU = Program()
CPU = Program(device=None, attention=900.0, gemm=1100.0, loader=300.0)
DDP = Program(world=2, allreduce=500.0)
BASES = {"gpu": GPU, "cpu": CPU, "ddp": DDP}


@dataclass(frozen=True)
class Case:
    """One trace, or a pair, with its true cause; see ``causes.yaml`` and ``programs.yaml``."""

    kind: str
    a: Program
    b: Program | None
    right: tuple[str, ...]
    vague: str
    seed: int = 0


@dataclass
class Verdicts:
    """How many first sentences of one kind of case are right, vague or wrong."""

    kind: str
    cases: int = 0
    right: int = 0
    vague: int = 0
    wrong: int = 0

    @property
    def is_noise(self) -> bool:
        """Whether the two programs of these cases differ by noise alone."""
        return "noise" in self.kind

    def add(self, verdict: str) -> None:
        """Count one case."""
        self.cases += 1
        setattr(self, verdict, getattr(self, verdict) + 1)


def run(seed: int = 0, only: str | None = None) -> dict[str, Any]:
    """Judge the first sentence of every case, or of the kinds whose name contains ``only``."""
    chosen = [case for case in cases(seed) if only is None or only in case.kind]
    by_kind: dict[str, Verdicts] = {}
    missed = []
    with tempfile.TemporaryDirectory() as folder:
        for number, case in enumerate(chosen):
            process.progress(case.kind, number, len(chosen))
            sentence = sentence_of(case, Path(folder) / str(number))
            verdict = judge(case, sentence)
            by_kind.setdefault(case.kind, Verdicts(case.kind)).add(verdict)
            if verdict != "right":
                missed.append({"kind": case.kind, "verdict": verdict, "sentence": sentence})
    verdicts = list(by_kind.values())
    return {
        "rows": [asdict(row) for row in verdicts],
        "missed": missed,
        "measured": right_shares(verdicts),
    }


def sentence_of(case: Case, folder: Path) -> str:
    """Write the traces of a case and return the first sentence of their explanation."""
    first = write(case.a, folder / "one", 2 * case.seed)
    second = None if case.b is None else write(case.b, folder / "two", 2 * case.seed + 1)
    return explain(first, second).sentence


def right_shares(verdicts: Sequence[Verdicts]) -> dict[str, float]:
    """Return the share of right sentences about causes and about noise, of those with cases."""
    shares = {}
    for name, is_noise in (("right", False), ("no difference", True)):
        chosen = [row for row in verdicts if row.is_noise == is_noise]
        if chosen:
            n_right = sum(row.right for row in chosen)
            shares[name] = n_right / sum(row.cases for row in chosen)
    return shares


def judge(case: Case, sentence: str) -> str:
    """Return `right` if a sentence names the cause, `vague` if it hints at it, else `wrong`."""
    lead = re.split(r"\.\s+(?=[A-Z])", sentence)[0]
    if all(re.search(pattern, lead, re.IGNORECASE) for pattern in case.right):
        return "right"
    return "vague" if re.search(case.vague, lead, re.IGNORECASE) else "wrong"


def cases(seed: int = 0) -> Iterator[Case]:
    """Yield the cases of causes.yaml, pairs that differ by noise alone, and those of programs.yaml.

    What is drawn for a case depends on its number, so new cases come last.
    """
    yield from _drawn_cases("causes.yaml", seed, 0)
    yield from _noise_cases(seed)
    yield from _drawn_cases("programs.yaml", seed, 7000)


def _drawn_cases(file: str, seed: int, first: int) -> Iterator[Case]:
    for number, (case, ranges) in enumerate(_planted(file), start=first):
        b = None if case.b is None else _varied(case.b, seed, number)
        if b is not None:
            b = replace(b, **_drawn(ranges, seed, number))
        a = _varied(case.a, seed, number)
        yield replace(case, a=a, b=b, seed=10_000 * seed + number)


def _drawn(ranges: Mapping[str, tuple[int, int]], seed: int, number: int) -> dict[str, Any]:
    """Draw a number from each range, both ends included."""
    rng = np.random.default_rng([seed, number, 1])
    return {name: int(rng.integers(low, high + 1)) for name, (low, high) in ranges.items()}


def _noise_cases(seed: int) -> Iterator[Case]:
    for noise in NOISE:
        for number in range(20):
            base = (GPU, CPU, replace(GPU, sync=False), replace(GPU, steps=25))[number % 4]
            base = _varied(base, seed, 500 + number) if number % 4 < 3 else base
            program = replace(base, noise=noise)
            kind = f"pair: noise of {100 * noise:.0f} % alone"
            said = "no difference beyond noise"
            yield Case(kind, program, program, (said,), "^$", 10_000 * seed + 5000 + number)


def _varied(program: Program, seed: int, number: int) -> Program:
    """Vary the properties that are unrelated to the cause, in the same way for A and B."""
    rng = np.random.default_rng([seed, number])
    size, host = np.exp(rng.uniform(-0.3, 0.3, 2)).tolist()
    layers = int(rng.integers(3, 7))
    steps = int(rng.integers(8, 20))
    noise = float(rng.uniform(0.01, 0.04))
    stacked = bool(rng.integers(0, 2))
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


def _planted(file: str) -> Iterator[tuple[Case, Mapping[str, tuple[int, int]]]]:
    """Yield the cases of a file, and the ranges from which settings of the second are drawn."""
    text = files("deltacell_dev.bench").joinpath(file).read_text("utf-8")
    for block in yaml.safe_load(text):
        for times in block["times"]:
            for row in block["cases"]:
                both = row.get("both", {}) | _multiplied(row.get("both_by", {}), times)
                base = replace(BASES[row["base"]], **both)
                slow = replace(base, **row.get("with", {}), **_multiplied(row.get("by", {}), times))
                more = _multiplied(row.get("more", {}), times)
                slow = replace(slow, **{k: getattr(base, k) + v for k, v in more.items()})
                pair = replace(base, **row.get("first", {})), slow
                a, b = pair if row["kind"].startswith("pair: ") else (slow, None)
                right = tuple(pattern.format_map(vars(slow)) for pattern in row["right"])
                yield Case(row["kind"], a, b, right, row["vague"]), row.get("drawn", {})


def _multiplied(value: Any, times: int) -> Any:
    if isinstance(value, Mapping):
        return {key: _multiplied(one, times) for key, one in value.items()}
    if isinstance(value, list):
        return tuple(_multiplied(one, times) for one in value)
    return value if isinstance(value, str) else value * times
