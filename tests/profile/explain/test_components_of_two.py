"""Two programs: what each does in a step, and how long a sample takes, whatever the noise."""

import textwrap
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import polars as pl
import pytest

from deltacell.profile.explain import Explanation, explain
from deltacell.profile.explain.causes import CauseKind, OtherOperations, TwoPrograms
from deltacell.profile.explain.programs import ProgramPair, passes_change
from deltacell.profile.trace.calls import CallGroup, Calls
from deltacell.profile.trace.trace import SAMPLES_PER_STEP
from deltacell_dev.bench.simulate import Program, write

HOST = Program(device=None, attention=900.0, gemm=1100.0, stacks=True)
CONVOLUTIONS = replace(HOST, model="convolutions", attention=2700.0, gemm=3300.0)


def with_samples(file: Path, samples: object) -> Path:
    """Write into a trace how many samples a step has."""
    trace = msgspec.json.decode(file.read_bytes())
    trace[SAMPLES_PER_STEP] = samples
    file.write_bytes(msgspec.json.encode(trace))
    return file


def explained(folder: Path, a: Program, b: Program) -> Explanation:
    return explain(write(a, folder / "one", 3), write(b, folder / "two", 4))


@pytest.mark.parametrize("device", [None, "NVIDIA A100-SXM4-80GB"])
def test_the_components_of_each_program_add_up_to_its_step(tmp_path: Path, device: Any) -> None:
    a = replace(HOST, device=device)
    b = replace(CONVOLUTIONS, device=device)
    explanation = explained(tmp_path, a, b)
    evidence = explanation.causes[0].evidence
    assert isinstance(evidence, TwoPrograms)
    assert {one.name.partition("_")[0] for one in evidence.only_a} == {"Attention", "Linear"}
    assert {one.name.partition("_")[0] for one in evidence.only_b} == {"Conv2d"}
    table = explanation.table("components")
    for column, step in (("ms per step of A", evidence.step_a), ("of B", evidence.step_b)):
        whole = table[column][-1]
        assert table["component"][-1] == "all"
        assert table[column][:-1].sum() == pytest.approx(whole)
        assert whole == pytest.approx(1e3 * step, rel=0.01)


def test_that_ranks_wait_is_said_beside_the_components(tmp_path: Path) -> None:
    a = replace(HOST, device="NVIDIA A100-SXM4-80GB", world=2)
    b = replace(CONVOLUTIONS, device=a.device, world=2, allreduce=30_000.0)
    evidence = explained(tmp_path, a, b).causes[0].evidence
    assert isinstance(evidence, TwoPrograms)
    assert evidence.beside is not None
    assert evidence.beside.name == "communication"


def test_two_programs_are_named_though_they_take_the_same_time(tmp_path: Path) -> None:
    a = replace(HOST, noise=0.3, steps=4)
    b = replace(CONVOLUTIONS, noise=0.3, steps=4, attention=950.0, gemm=1150.0)
    explanation = explained(tmp_path, a, b)
    assert explanation.noise is not None
    assert not explanation.noise.is_beyond
    assert any(isinstance(one, OtherOperations) for one in explanation.certain)
    assert explained(tmp_path / "same", a, a).certain == []


def test_two_traces_are_also_compared_per_sample(tmp_path: Path) -> None:
    slow = replace(HOST, attention=1800.0, gemm=2200.0, batch=32)
    one = with_samples(write(HOST, tmp_path / "one", 3), 32)
    two = with_samples(write(slow, tmp_path / "two", 4), 64)
    explanation = explain(one, two)
    a, b = explanation.accounts
    assert (a.samples_per_step, b.samples_per_step) == (32, 64)
    assert explanation.comparison is not None
    assert explanation.comparison.steps.per == "step"
    (per_sample,) = explanation.ratios
    assert per_sample in (explanation.sentence, *explanation.evidence)
    same = with_samples(two, 32)
    explanation = explain(one, same)
    assert explanation.ratios[0] not in (explanation.sentence, *explanation.evidence)


PASSES = replace(HOST, stacks=False, steps=6)
LONG_NAME = "a_training_whose_name_is_rather_long"


@pytest.mark.parametrize("name", ["two", LONG_NAME])
@pytest.mark.parametrize(
    ("a", "b"),
    [
        (HOST, CONVOLUTIONS),
        (CONVOLUTIONS, HOST),
        (replace(HOST, noise=0.3, steps=4), replace(CONVOLUTIONS, noise=0.3, steps=4)),
        (HOST, replace(CONVOLUTIONS, attention=900.0, gemm=1100.0)),
        (PASSES, replace(PASSES, accumulate=4)),
        (replace(PASSES, accumulate=4), PASSES),
        (PASSES, replace(PASSES, backwards=3)),
        (PASSES, replace(PASSES, validations=9)),
    ],
)
def test_the_first_sentence_takes_two_lines(
    tmp_path: Path, a: Program, b: Program, name: str
) -> None:
    one = with_samples(write(a, tmp_path / f"one_{name}", 3), 32)
    two = with_samples(write(b, tmp_path / name, 4), 32 * b.accumulate // a.accumulate)
    explanation = explain(one, two)
    assert explanation.causes[0].kind in {
        CauseKind.programs,
        CauseKind.passes,
        CauseKind.backward_passes,
        CauseKind.forward_passes,
    }
    assert len(textwrap.wrap(explanation.sentence, 100)) <= 2


def test_the_evidence_names_the_components_that_the_first_sentence_does_not(tmp_path: Path) -> None:
    explanation = explained(tmp_path, HOST, CONVOLUTIONS)
    assert "Conv2d" in explanation.sentence
    assert "Attention" in explanation.evidence[0]


@pytest.mark.parametrize("samples", ["many", -1, None, [3], 0, 1e999])
def test_a_number_of_samples_that_is_none_is_unknown(tmp_path: Path, samples: object) -> None:
    file = with_samples(write(HOST, tmp_path / "one", 3), samples)
    assert explain(file).accounts[0].samples_per_step is None


def calls_of(nodes: dict[str, float], forward: float) -> Any:
    """Return what `passes_change` reads of a trace."""
    operators = pl.DataFrame(
        {
            "name": ["aten::mm"],
            "group": [int(CallGroup.forward)],
            "calls": [forward],
            "time": [1e6],
            "elements": [float("nan")],
            "sizes": [None],
        },
        schema_overrides={"sizes": pl.String},
    )
    calls = Calls(operators, nodes, {}, runs_per_node=1.0, has_shapes=False)
    return SimpleNamespace(name="x", calls=calls)


def test_passes_are_counted_though_a_few_nodes_depend_on_the_data() -> None:
    a = calls_of({"Mm": 50.0, "Mean": 1.0, "Select": 2.0}, forward=50.0)
    four_passes = calls_of({"Mm": 200.0, "Mean": 4.0, "Select": 7.0}, forward=200.0)
    more_layers = calls_of({"Mm": 200.0, "Mean": 1.0, "Select": 8.0}, forward=200.0)
    assert passes_change(ProgramPair(a, four_passes), 4.0) == (CauseKind.passes, 4.0)
    assert passes_change(ProgramPair(a, more_layers), 4.0) is None
