"""What is said of the simulated cases does not change by accident."""

from pathlib import Path

import golden
import pytest

from deltacell.profile.explain import explain
from deltacell_dev.bench.explain import cases
from deltacell_dev.bench.simulate import write


@pytest.mark.slow
def test_sentences_of_the_simulated_cases(tmp_path: Path) -> None:
    sentences = {}
    for number, case in enumerate(cases()):
        folder = tmp_path / str(number)
        first = write(case.a, folder / "one", 2 * case.seed)
        second = None if case.b is None else write(case.b, folder / "two", 2 * case.seed + 1)
        explanation = explain(first, second)
        sentences[f"{number} {case.kind}"] = {
            "sentence": explanation.sentence,
            "kinds": [cause.kind for cause in explanation.causes[:2]],
            "advice": list(explanation.advice),
            "doubts": list(explanation.doubts),
        }
    golden.check("explain/simulated", sentences)
