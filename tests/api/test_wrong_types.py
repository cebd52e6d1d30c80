"""What a public function is given by mistake is an error that says what it takes."""

import pandas as pd
import pytest

import deltacell as dc

FRAME = pd.DataFrame({"gene1": ["A"], "gene2": ["B"], "score": [0.5]})


@pytest.fixture(scope="module")
def data():
    cell = dc.Cell.synthetic("demo")
    return cell, dc.Screen.synthetic(cell, n=60)


def test_a_wrong_type_is_named_with_what_is_accepted(data, refused):
    cell, screen = data
    for call, arguments in [
        (dc.evaluate, (3,)),
        (dc.evaluate, (None,)),
        (dc.evaluate, ([screen],)),
        (dc.fit, ("additive", "cell", screen)),
        (dc.fit, ("additive", cell, FRAME)),
        (dc.fit, ("additive", screen, cell)),
        (dc.fit, ("additive", cell, screen, "random")),
        (dc.Screen.from_pandas, (FRAME, "cell")),
        (dc.Screen.from_pandas, ("screen.csv", cell)),
        (dc.Screen.from_pandas, (None, cell)),
    ]:
        assert "expected a" in refused("wrong-type", call, *arguments).message


def test_a_run_has_its_cell_screen_and_split_and_the_split_is_read_alone(runs):
    run = dc.Run(runs["mean"])
    assert run.cell.checksum == run.loaded.data.cell.checksum
    split = dc.Split.load(runs["mean"] / "split")
    assert split.equals(run.split)
    split.check(run.screen)
