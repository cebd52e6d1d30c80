"""`fit` and `start` with what others measured."""

import numpy as np
import pytest

import deltacell as dc
from deltacell.api.start import _Screens
from deltacell.base.errors import InputError
from deltacell.data.import_folder import Imported


@pytest.fixture(scope="module")
def studies():
    """A cell, a screen, and further pairs of the same cell on another scale."""
    cell = dc.Cell.synthetic("demo")
    screen = dc.Screen.synthetic(cell, n=500)
    is_own = np.random.default_rng(0).permutation(len(screen)) % 2 == 0
    others = screen.take(~is_own)
    return cell, screen.take(is_own), others.with_scores(5 - 20 * others.column("score"))


def test_screens_and_runs_are_context_in_memory(studies, tmp_path):
    cell, own, others = studies
    quick = {"rounds": 8, "progress": False}
    alone = dc.fit("pairs", cell, own, directory=tmp_path / "alone", **quick)
    with_screen = dc.fit("pairs", cell, own, context=[others], directory=tmp_path / "s", **quick)
    assert alone.record.context == ()
    [facts] = with_screen.record.context
    assert facts.genotypes == len(others)
    of_others = dc.fit("pairs", cell, others, directory=tmp_path / "of-others", **quick)
    for number, study in enumerate((of_others, tmp_path / "of-others")):
        place = tmp_path / f"with-run-{number}"
        with_run = dc.fit("pairs", cell, own, context=[study], directory=place, **quick)
        [facts] = with_run.record.context
        assert facts.predictor
    sets = [(cell.genes[0], gene) for gene in cell.genes.systematic[1:]]
    scores = [list(run.predict(sets)["score"]) for run in (alone, with_screen)]
    assert scores[0] != scores[1]
    # Another process loads it from disk.
    assert list(dc.Run(tmp_path / "s").predict(sets)["score"]) == scores[1]
    with pytest.raises(InputError) as error:
        dc.fit("pairs", cell, own, context=[own], directory=tmp_path / "again", **quick)
    assert error.value.code == "repeated-study"


@pytest.fixture(scope="module")
def imported(studies, tmp_path_factory):
    cell, own, others = studies
    place = tmp_path_factory.mktemp("start") / "data"
    Imported(cell, {"mine": own, "others": others}).save(place)
    return place


def test_a_folder_with_several_screens_asks_which(imported):
    with pytest.raises(InputError) as error:
        _Screens(None, None).settings(imported, [])
    assert error.value.code == "several-screens"
    assert error.value.fields["screens"] == ["mine", "others"]
    with pytest.raises(InputError) as error:
        _Screens("yours", None).settings(imported, [])
    assert error.value.code == "unknown-screen"


@pytest.mark.parametrize(
    ("screens", "given", "expected"),
    [
        (_Screens("mine", None), [], ["data.screen=mine", "data.context=[others]"]),
        (_Screens("mine", ()), [], ["data.screen=mine"]),
        (_Screens("mine", None), ["model=dango"], ["data.screen=mine"]),
        (
            _Screens("mine", ("runs/a", "others")),
            [],
            ["data.screen=mine", "data.context=['runs/a',others]"],
        ),
        (_Screens(None, None), ["data.screen=mine"], []),
    ],
)
def test_the_other_screens_are_the_context(imported, screens, given, expected):
    settings = screens.settings(imported, given)
    assert [text.replace("'", "") for text in settings] == [
        text.replace("'", "") for text in expected
    ]


def test_one_screen_needs_no_target(studies, tmp_path):
    cell, own, _ = studies
    Imported(cell, {"mine": own}).save(tmp_path / "data")
    assert _Screens(None, None).settings(tmp_path / "data", []) == []
