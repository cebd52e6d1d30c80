import pyarrow as pa
import pytest

from deltacell.cell import Cell
from deltacell.cell.synthetic import plan_of

#: The table of the specification: genes with an edge, edges.
REFERENCE = {
    "regulatory": (3_632, 9_753),
    "physical": (5_721, 139_463),
    "tflink": (5_092, 201_898),
    "string_neighborhood": (2_204, 147_874),
    "string_fusion": (3_095, 11_810),
    "string_cooccurence": (2_615, 11_115),
    "string_coexpression": (6_503, 1_002_538),
    "string_experimental": (6_036, 825_101),
    "string_database": (4_044, 73_818),
}


@pytest.fixture(scope="module")
def yeast():
    return Cell.synthetic("yeast")


@pytest.fixture(scope="module")
def demo():
    return Cell.synthetic("demo")


def test_a_seed_gives_the_same_cell_on_every_machine_and_another_seed_another(demo, yeast):
    # Runs and documented figures refer to these cells by checksum.
    assert demo.checksum.startswith("2f45dc413a2f9970")
    assert Cell.synthetic("redundancy").checksum.startswith("a0d9f7bed440f9e7")
    assert yeast.checksum.startswith("b48aa035c6b7454f")
    other = Cell.synthetic("demo", seed=1)
    assert not other.equals(demo)
    sizes = [(r.name, r.n_connected, r.n_edges) for r in other.relations.values()]
    assert sizes == [(r.name, r.n_connected, r.n_edges) for r in demo.relations.values()]
    assert other.metabolism.split().n_reactions == demo.metabolism.split().n_reactions == 260


def test_the_yeast_cell_has_the_sizes_of_the_reference(yeast):
    stats = yeast.stats()
    found = {r["relation"]: (r["genes_with_an_edge"], r["edges"]) for r in stats["relations"]}
    assert list(found.items()) == list(REFERENCE.items())
    directed = {r["relation"] for r in stats["relations"] if r["directed"]}
    assert directed == {"regulatory", "tflink"}
    assert (stats["genes"], stats["edges"]) == (6_607, 2_423_370)
    assert list(stats["metabolism"].values()) == [4_131, 2_806, 1_161, 2_709]
    assert yeast.metabolism.split().n_reactions == 7_122


def test_loading_the_yeast_cell_maps_its_parts_and_copies_next_to_nothing(yeast, tmp_path):
    yeast.save(tmp_path / "yeast")
    on_disk = sum(file.stat().st_size for file in (tmp_path / "yeast").iterdir())
    before = pa.total_allocated_bytes()
    loaded = Cell.load(tmp_path / "yeast")
    assert pa.total_allocated_bytes() - before < on_disk / 100
    for relation in loaded.relations.values():
        for array in (relation.indptr, relation.indices, relation.weights):
            assert [array.flags.owndata, array.flags.writeable] == [False, False]
    assert loaded.equals(yeast)


@pytest.mark.parametrize(
    ("make", "code"),
    [
        (lambda: Cell.synthetic("mouse"), "unknown-cell"),
        (lambda: Cell.synthetic("demo", seed=-1), "invalid-number"),
        (lambda: plan_of(Cell(["A"], [])), "not-synthetic"),
        (lambda: plan_of(Cell(["A"], [], synthetic={"name": "demo", "seed": 0})), "not-synthetic"),
    ],
)
def test_impossible_options_of_synthetic_cells_are_refused(make, code, refused):
    refused(code, make)
