"""Explanations of predictors that are fitted in one call, by the phases of the fit."""

import json
import shutil

import pytest

from deltacell.cli.app import app
from deltacell.profile.explain import explain
from deltacell.profile.explain.condition import read_condition
from deltacell.profile.fit_phases import write_fit_phases
from deltacell.profile.limits import limits_of_fit
from deltacell.profile.record import read_run
from deltacell.report.explanation_page import explanation_page

SECONDS = {"reading": 1.0, "columns": 0.5, "trees": 6.0, "other": 0.5}


@pytest.fixture
def fitted(runs, tmp_path):
    """A fitted run whose last attempt had these phases, after one that was slower."""
    path = shutil.copytree(runs["mean"], tmp_path / "fitted")
    for file in (path / "phases").glob("fit-*"):
        file.unlink()
    write_fit_phases(path / "phases", 0, {"reading": 99.0})
    write_fit_phases(path / "phases", 1, SECONDS)
    return path


def test_a_fit_is_explained_by_its_phases(fitted):
    found = explain(fitted)
    [account] = found.accounts
    assert account.source == "fit"
    assert dict(account.parts) == SECONDS
    assert account.steps_per_epoch is None
    assert found.sentence == limits_of_fit(SECONDS)
    rows = found.table("phases").rows()
    assert rows[:2] == [("trees", 6.0, 0.75), ("reading", 1.0, 0.125)]
    assert sum(share for *_, share in rows) == pytest.approx(1)
    assert found.confidence == "high"
    [written] = found.to_json()["accounts"]
    assert written["fit_s"] == account.facts["seconds of the fit"] == 8.0
    assert "step_s" not in written


@pytest.mark.parametrize("name", ["trees", "mean"])
def test_the_phases_of_a_real_fit_add_up_to_its_time(runs, name):
    found = explain(runs[name])
    seconds = sum(found.table("phases")["seconds"])
    assert seconds == pytest.approx(found.facts[0]["seconds of the fit"])
    assert found.sentence == read_run(runs[name]).limits


def test_a_fit_is_printed_with_its_phases_and_drawn(fitted, tmp_path, capsys):
    file = tmp_path / "fit.json"
    app(["explain", str(fitted), "--json", str(file)], standalone_mode=False)
    printed = capsys.readouterr().out
    assert all(phase in printed for phase in SECONDS)
    result = json.loads(file.read_text())
    assert result == explain(fitted).to_json()
    page = explanation_page(result)
    assert "per fit" in page
    assert "per step" not in page


def test_a_fit_has_no_steps_to_compare(runs, fitted, refused):
    refused("fitted-run", explain, fitted, runs["mean"])
    refused("fitted-run", explain, runs["seed0"], fitted)
    refused("condition-unknown", read_condition("loss > 10%").check, explain(fitted))
