"""Sets of two to five genes have a score by every predictor, whatever sizes it was trained on."""

from functools import cache
from itertools import permutations

import numpy as np
import polars as pl
import pytest

import deltacell as dc
from deltacell.models import registry
from deltacell.train.config.compose import compose
from deltacell.train.run import train

SIZES = (2, 3, 4, 5)
NETWORKS = ("dango", "hetero_cell", "pair_cell")
# An ensemble is of other runs, each of which is here.
PREDICTORS = [name for name in registry.names() if name != "ensemble"]


@pytest.fixture(scope="module")
def trained_on_pairs(runs, tmp_path_factory):
    """A function that trains a predictor on the pairs of the demo cell."""
    folder = tmp_path_factory.mktemp("sizes")

    @cache
    def trained(name):
        words = ["data.where={kind:[digenic]}", f"model={name}", f"name={name}"]
        if name in NETWORKS:
            settings = [word for word in runs.small if not word.startswith("experiment=")]
            words = ["data.synthetic=demo", *settings, *words]
        else:
            words = [*runs.fitted, *words]
        if name == "hetero_cell":
            words += ["model.relations=[physical,tflink]", "model.layers=1"]
        config = registry.config_class(name)()
        if config.with_rounds(3) != config:
            words.append("model.rounds=3")
        return dc.Run(train(compose([*words, f"directory={folder / name}"])).path)

    return trained


@pytest.mark.parametrize("name", PREDICTORS)
def test_a_predictor_of_pairs_scores_sets_of_up_to_five_genes(trained_on_pairs, name, tmp_path):
    run = trained_on_pairs(name)
    draw = np.random.default_rng(0)
    genes = run.cell.genes.systematic
    sets = [sorted(draw.choice(genes, size, replace=False)) for size in SIZES for _ in range(3)]
    ranked = dc.rank(run, sets, out=tmp_path / "all.parquet", progress=False)
    rows = pl.read_parquet(ranked.path)
    assert sorted(map(sorted, rows["genes"].to_list())) == sorted(sets)
    assert rows["score"].is_finite().all()
    by_set = {frozenset(row["genes"]): row["score"] for row in rows.to_dicts()}
    # The order of the genes and the company of other sets change nothing.
    for genes_of_set in (sets[0], sets[-1]):
        some = [list(order) for order in permutations(genes_of_set)][-1]
        [score] = dc.rank(
            run, [some], out=tmp_path / f"{len(some)}.parquet", progress=False
        ).to_pandas()["score"]
        assert score == by_set[frozenset(some)]


def test_triples_and_larger_sets_are_ranked_and_explained_by_a_predictor_of_pairs(
    trained_on_pairs, tmp_path
):
    run = trained_on_pairs("pair_trees")
    genes = run.screen.genes.systematic
    first = genes[int(run.screen.genotypes.genes[0])]
    for size in (3, 4, 5):
        listed = tmp_path / "genes.txt"
        listed.write_text("\n".join([first, *[gene for gene in genes if gene != first][:7]]))
        out = tmp_path / f"{size}.parquet"
        asked = {"genes": str(listed), "size": size, "status": "any", "linked": True, "top": 4}
        ranked = dc.rank(run, f"with {first}", out=out, progress=False, **asked)
        rows = ranked.to_json()["rows"]
        assert len(rows) == 8
        assert {len(row["genes"]) for row in rows} == {size}
        # What the score rests on are measured pairs of its genes or next to them.
        explained = run.why(*rows[0]["genes"]).to_json()
        assert len(explained["genes"]) == size
