"""The export script of the page, run on a stand-in for a dataset of TorchCell."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch_geometric.data import HeteroData

from deltacell.cell import Cell
from deltacell.propagate.choose import STRATEGIES
from deltacell.screen import Screen
from deltacell.train.config.compose import compose

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "coming-from-torchcell.md"
EXPERIMENT = "experiment=kuzmin2018_hetero_full"
GENES = ["YAL001C", "YAL002W", "YAL003W", "YAL005C"]
GENOTYPES = [([0, 2], -0.5), ([1, 2, 3], 0.25), ([3, 0], float("nan"))]
TYPES = ["fitness", "gene_interaction"]


class StandIn(list):
    """A list of samples, as the processor `Perturbation` makes them, with a ``cell_graph``."""

    def __init__(self):
        for genes, score in GENOTYPES:
            sample = HeteroData()
            sample["gene"].perturbation_indices = torch.tensor(genes)
            sample["gene"].phenotype_values = torch.tensor([0.9, score])
            sample["gene"].phenotype_type_indices = torch.tensor([0, 1])
            sample["gene"].phenotype_types = TYPES
            self.append(sample)
        self.cell_graph = HeteroData()
        self.cell_graph["gene"].node_ids = GENES
        edges = torch.tensor([[0, 1, 2, 3], [1, 0, 3, 2]])
        self.cell_graph["gene", "physical", "gene"].edge_index = edges
        self.cell_graph["gene", "regulatory", "gene"].edge_index = edges
        self.cell_graph["gene", "gpr", "reaction"].edge_index = torch.tensor([[0], [0]])


@pytest.fixture(scope="module")
def page():
    """The functions of the page."""
    names = {}
    for code in re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL):
        exec(compile(code, str(PAGE), "exec"), names)
    return SimpleNamespace(**names)


@pytest.mark.parametrize(
    ("phenotype", "scores"),
    [("gene_interaction", [score for _, score in GENOTYPES]), ("fitness", [0.9] * 3)],
)
def test_an_exported_dataset_becomes_a_cell_and_a_screen(page, tmp_path, phenotype, scores):
    page.export(StandIn(), tmp_path / "data.pt", phenotype)
    places = tmp_path / "cell", tmp_path / "screen"
    page.convert(tmp_path / "data.pt", *places, directed=["regulatory"])
    cell, screen = Cell.load(places[0]), Screen.load(places[1])
    assert list(cell.genes) == GENES
    assert {r.name: (r.directed, r.n_edges) for r in cell.relations.values()} == {
        "physical": (False, 2),
        "regulatory": (True, 4),
    }
    assert [g.tolist() for g in screen.genotypes] == [genes for genes, _ in GENOTYPES]
    assert screen.column("score").tolist() == pytest.approx(scores, nan_ok=True)


def test_the_script_for_the_other_side_needs_pytorch_and_pyg_only():
    code = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)[0]
    assert set(re.findall(r"^(?:import|from) (\w+)", code, re.MULTILINE)) == {
        "torch",
        "torch_geometric",
    }


def test_settings_of_the_page_are_settings():
    text = PAGE.read_text(encoding="utf-8")
    settings = re.findall(r"`((?:\w+\.)*\w+=\w+)`", text)
    assert {"model.propagation=edge_mask", "mode=empty", "ablation=no_gather"} <= set(settings)
    for setting in settings:
        of_experiment = ["data.synthetic=demo"] if setting.startswith("model=") else [EXPERIMENT]
        assert compose([*of_experiment, setting])
    measured = re.search(r"--strategies ([\w,]+)`", text)
    assert measured is not None
    assert set(measured[1].split(",")) < set(STRATEGIES)
