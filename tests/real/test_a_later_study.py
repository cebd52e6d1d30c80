"""A predictor trained on Costanzo 2010 and tested on Kuzmin 2018, as docs/results.md does it."""

import contextlib
import json
import re
import sys
from pathlib import Path

import pytest

from deltacell.cli import main

ROOT = Path(__file__).resolve().parents[2]
SOURCES = (
    "genes/SGD_features.tab.gz",
    "networks/biogrid_3.4.156_cocomplex_edges.tsv.gz",
    "screens/sgadata_costanzo2009_intermediateCutoff_101120.txt.gz",
)


def run(*words: str) -> None:
    with pytest.MonkeyPatch.context() as patch, contextlib.suppress(SystemExit):
        patch.setattr(sys, "argv", ["deltacell", *words])
        main()


@pytest.mark.slow
@pytest.mark.real
def test_a_later_study_is_read_scored_and_left_out_where_it_was_trained_on(shared_data, tmp_path):
    (tmp_path / "sources").mkdir()
    (tmp_path / "later-tables").mkdir()
    for name in SOURCES:
        (tmp_path / "sources" / Path(name).name).symlink_to(shared_data / name)
    for name in (
        "features/costanzo2016_single_mutant_fitness.xlsx",
        "screens/kuzmin2018_fitness_slice.tsv.gz",
    ):
        (tmp_path / Path(name).name).symlink_to(shared_data / name)
    page = (ROOT / "docs" / "results.md").read_text()
    (code,) = re.findall(r"```text\n(import polars.*?)```", page, re.DOTALL)
    with contextlib.chdir(tmp_path):
        exec(compile(code, "docs/results.md", "exec"), {})  # what the page tells readers to run
        run("data", "import", "sources", "--out", "data")
        run("data", "import", "later-tables", "--out", "later")
        settings = ["data.folder=data", "data.screen_genes_only=true", "data.merge=mean"]
        run("train", "model=additive", "loss=none", *settings, "directory=run")
        on = ["--on", "later", "--baselines", "global_mean", "--json", "on.json"]
        run("evaluate", "run", *on)
    found = json.loads((tmp_path / "on.json").read_text())
    about = found["on"]
    assert about["read"] == 15_015
    assert about["kept"] == 11_693
    assert sorted(about["dropped"].values()) == [583, 2_739]
    everything = found["groups"][0]
    assert everything["rows"] == 11_693
    (additive,) = (s for name, s in everything["scores"].items() if name != "global_mean")
    assert additive["pearson"]["value"] == pytest.approx(-0.033, abs=5e-4)
