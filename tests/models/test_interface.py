"""What all predictors share, and that nothing outside the models knows one of them."""

import ast
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from cells import random_cell
from torch._dynamo.testing import CompileCounterWithBackend

import deltacell
from deltacell.cell import Feature
from deltacell.models import Dango, HeteroCell, registry
from deltacell.models.baselines import Additive
from deltacell.models.config import LossConfig
from deltacell.models.interface import LabelledSets, Prediction, Predictor, TargetScale
from deltacell.models.pairs import PairCell
from deltacell.screen import Genotypes
from deltacell.train.config.compose import compose
from deltacell.train.config.saved import from_yaml, saved_yaml, to_yaml
from deltacell.train.predictor import TrainedPredictor

PACKAGE = Path(deltacell.__file__).parent
NAMES = set(registry.BUILT_IN)
CLASSES = {
    part
    for name in registry.BUILT_IN
    for config in [registry.config_class(name)]
    for part in (config.__name__, config.predictor.partition(":")[2])
}
FEATURES = [Feature(name, np.random.default_rng(0).normal(size=(12, 2))) for name in "fg"]
LOSS_CLASSES = {registry.loss_class(name).__name__ for name in registry.LOSSES}


def checks_of(tree: ast.AST) -> Iterator[str]:
    """Yield the checks of a syntax tree that ask which model it has."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("isinstance", "type"):
            asked = {n.id for a in node.args[1:] for n in ast.walk(a) if isinstance(n, ast.Name)}
            yield from asked & (CLASSES | LOSS_CLASSES)
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            words = {n.value for s in sides for n in ast.walk(s) if isinstance(n, ast.Constant)}
            yield from {word for word in words if isinstance(word, str)} & NAMES
        if isinstance(node, ast.MatchValue) and isinstance(node.value, ast.Constant):
            yield from {node.value.value} & NAMES


@pytest.mark.parametrize("file", sorted(PACKAGE.rglob("*.py")), ids=lambda f: f.name)
def test_nothing_outside_the_models_asks_which_one_it_has(file: Path) -> None:
    if file.relative_to(PACKAGE).parts[0] != "models":
        assert not list(checks_of(ast.parse(file.read_text(encoding="utf-8"))))


@pytest.mark.parametrize(
    "code",
    [
        "isinstance(model, Dango)",
        "isinstance(run.config.model, (EnsembleConfig, HeteroCellConfig))",
        "isinstance(model, Dango | HeteroCell)",
        "x = config.model.name == 'pair_trees'",
        "if name in ('dango', 'x'): pass",
        "match name:\n    case 'additive': pass",
    ],
)
def test_a_check_of_a_model_is_found(code: str) -> None:
    assert list(checks_of(ast.parse(code)))


class Counted(Predictor):
    """Scores a genotype by its size, and counts the genotypes of each call."""

    def __init__(self) -> None:
        self.calls: list[int] = []

    def __call__(self, cell, genotypes, *, wanted=()):
        self.calls.append(len(genotypes))
        size = genotypes.sizes.float()
        return Prediction(size, hit=size / 10, given_hit=2 * size, spread=size)


def test_a_model_that_only_has_a_call_predicts_in_batches_and_on_its_scale():
    cell, model = random_cell(6, {"a": 5}), Counted()
    predictor = TrainedPredictor(model, cell, TargetScale(1.0, 2.0), batch_size=2)
    genotypes = Genotypes.of([[0], [1, 2], [3, 4, 5], [0, 1], [2]])
    found = predictor.predict(genotypes)
    assert model.calls == [2, 2, 1]
    assert found.score.tolist() == [3.0, 5.0, 7.0, 5.0, 3.0]
    assert found.given_hit.tolist() == [5.0, 9.0, 13.0, 9.0, 5.0]
    assert found.among_hits is found.given_hit
    assert found.spread.tolist() == [2.0, 4.0, 6.0, 4.0, 2.0]
    scorer = predictor.scorer()
    assert scorer.scores(torch.tensor([[0, 1], [2, 3]]).numpy()).tolist() == [5.0, 5.0]
    assert scorer.prunes is False
    assert model.gated(cell, [0]) is None
    assert model.relation_weights(cell, torch.tensor([0])) is None
    assert (model.evidence(cell, [0]), model.facts(), model.relations) == ([], {}, None)


def test_conditions_are_kept_and_not_ignored(refused):
    sets = [[0], [1, 2], [3]]
    plain = Genotypes.of(sets)
    genotypes = Genotypes(plain.genes, plain.offsets, torch.tensor([0, 1, 1]))
    assert genotypes.take(torch.tensor([2, 0])).condition.tolist() == [1, 0]
    assert genotypes.to("cpu").condition.tolist() == [0, 1, 1]
    both = Genotypes.concat([genotypes, genotypes.take(torch.tensor([0]))])
    assert both.condition.tolist() == [0, 1, 1, 0]
    refused("bad-genotypes", Genotypes.concat, [genotypes, plain])
    predictor = TrainedPredictor(Counted(), random_cell(6, {"a": 5}), TargetScale())
    refused("no-conditions", predictor.predict, genotypes)
    refused("no-conditions", Additive().fit, predictor.cell, genotypes, [1.0, 2.0, 3.0])


@pytest.mark.parametrize("kind", [Dango, HeteroCell])
def test_null_is_all_features_and_an_empty_list_none(kind):
    cell = random_cell(12, {"a": 20}, features=FEATURES)
    options = {"relations": ["a"], "hidden": 8}
    options |= {"lambdas": {"a": 1.0}} if kind is Dango else {"local_heads": 2}

    def n_parameters(**features):
        return sum(weight.numel() for weight in kind(cell, **options, **features).parameters())

    assert n_parameters(features=["f", "g"]) == n_parameters(features=None) > n_parameters()
    assert n_parameters(features=[]) == n_parameters()


@pytest.mark.parametrize("model", ["dango", "hetero_cell", "pair_cell", "pair_trees"])
def test_a_config_of_the_old_form_keeps_its_meaning(model):
    """Without a format, null was no feature for DANGO and HeteroCell, and all for the others."""
    config = compose([f"model={model}", "data.synthetic=demo", "model.features=null"])
    old, new = to_yaml(config), saved_yaml(config)
    assert "features: null" in old
    assert from_yaml(new).model.features is None
    meant = [] if model in ("dango", "hetero_cell") else None
    assert from_yaml(old).model.features == meant
    named = old.replace("features: null", "features: [f]")
    assert from_yaml(named).model.features == ["f"]


def test_a_config_of_a_later_form_is_refused(refused):
    text = to_yaml(compose(["model=additive", "data.synthetic=demo"]))
    refused("newer-config", from_yaml, f"{text}format: 4\n")


def test_a_loss_fits_what_gives_it_what_it_reads():
    def fits(loss: str, model: str, **settings) -> bool:
        config: LossConfig = registry.loss_class(loss)(**settings)
        return config.fits(registry.config_class(model)())

    assert fits("dango", "dango")
    assert not fits("dango", "hetero_cell")
    assert fits("point_distribution_contrast", "pair_cell")
    assert not fits("point_distribution_contrast", "pair_cell", lambda_c=1.0)
    assert fits("point_distribution_contrast", "hetero_cell", lambda_c=1.0)
    assert fits("none", "additive")
    assert not fits("none", "dango")
    assert not fits("log_cosh", "additive")


def test_pair_cell_is_called_with_one_batch_size_and_compiles_its_networks():
    cell = random_cell(12, {"a": 30}, features=FEATURES[:1])
    sets = [[i, j] for i in range(12) for j in range(i)]
    torch.manual_seed(0)
    model = PairCell(cell, hidden=8, heads=2, nearest=4, nearest_both=2)
    model.begin(cell, LabelledSets(Genotypes.of(sets), torch.linspace(-1, 1, len(sets))))
    torch.nn.init.normal_(model.read_set.weight)
    genotypes = Genotypes.of([*sets[:5], [0, 1, 2]])
    plain = model.eval()(cell, genotypes).score.detach()
    compiler = CompileCounterWithBackend("eager")
    model.compile_parts(backend=compiler)
    torch.testing.assert_close(model(cell, genotypes).score.detach(), plain)
    assert compiler.frame_count > 0
    assert model.sets_per_call is not None


def test_the_baselines_read_all_relations_and_share_a_first_gene():
    assert Additive().relations is None
    assert Additive.shares_first_gene
    assert not Dango.shares_first_gene
