"""The model and the loss that a config describes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from deltacell.errors import InputError
from deltacell.models import Dango, DangoLoss, HeteroCell, LogCosh, PointDistributionContrast
from deltacell.propagate.auto import Auto
from deltacell.train.build import (
    build_loss,
    build_model,
    build_propagation,
    propagation_record,
    recorded_propagation,
)
from deltacell.train.config import Config, LossConfig, ModelConfig
from deltacell.train.data import load_data

Small = Callable[..., Config]


def test_dango_takes_the_six_of_string_unless_told_otherwise(small: Small) -> None:
    config = small()
    model = build_model(config, load_data(config).cell, 3)
    assert isinstance(model, Dango)
    assert len(model.relations) == 6
    lambdas = ["model.lambdas.physical=0.25", "model.lambdas.regulatory=0.5"]
    config = small("model.relations=[physical,regulatory]", *lambdas)
    model = build_model(config, load_data(config).cell, 3)
    assert list(model.relations) == ["physical", "regulatory"]  # type: ignore[arg-type]
    assert model.reconstruction.lambdas == {"physical": 0.25, "regulatory": 0.5}  # type: ignore[union-attr]


def test_dango_on_a_cell_without_string_says_what_to_set(small: Small) -> None:
    config = small("data.relations=[physical,regulatory]")
    set_this = r"Set model\.relations=\[physical,regulatory\].*model\.lambdas\.physical=1\.0"
    with pytest.raises(InputError, match=rf"(?s)one of the six of STRING.*{set_this}"):
        build_model(config, load_data(config).cell, 3)
    config = small("model.relations=[psychical]", "model.lambdas.psychical=1")
    with pytest.raises(InputError, match="psychical"):
        build_model(config, load_data(config).cell, 3)


def test_hetero_cell_is_as_the_config_says(small: Small) -> None:
    config = small(hetero=True)
    model = build_model(config, load_data(config).cell, 3)
    assert isinstance(model, HeteroCell)
    assert isinstance(model.propagation, Auto)


def test_models_and_losses_that_are_not_there(small: Small) -> None:
    config = small()
    cell = load_data(config).cell
    config.model = ModelConfig(name="oracle")
    with pytest.raises(InputError, match=r"no model 'oracle'; there are additive, .*dango"):
        build_model(config, cell, 3)
    config.loss = LossConfig(name="regret")
    with pytest.raises(InputError, match="no loss 'regret'; there are dango, log_cosh"):
        build_loss(config)


def test_losses(small: Small) -> None:
    assert isinstance(build_loss(small("loss=log_cosh")), LogCosh)
    assert isinstance(build_loss(small("loss=dango")), DangoLoss)
    contrast = build_loss(small("loss=point_distribution_contrast", "trainer.epochs=17"))
    assert isinstance(contrast, PointDistributionContrast)
    assert contrast.max_epochs == 17


def test_a_bound_on_memory_is_for_those_that_keep_to_one(small: Small) -> None:
    config = small(hetero=True)
    config.max_bytes = 10**6
    config.propagation = "delta"
    assert build_propagation(config).name == "delta"
    config.propagation = "shared"
    with pytest.raises(InputError, match="max_bytes is for the propagations delta and auto"):
        build_propagation(config)


@pytest.mark.parametrize("name", ["auto", "delta", "shared"])
def test_a_recorded_propagation_is_taken_again(small: Small, name: str) -> None:
    config = small(f"propagation={name}", hetero=True)
    data = load_data(config)
    model = build_model(config, data.cell, 3)
    assert isinstance(model, HeteroCell)
    model.prepare(data.cell, data.screen.genotypes)
    record = propagation_record(model)
    assert record is not None
    assert record["name"] == name
    assert record["why"]
    model.propagation = recorded_propagation(record, config)
    assert propagation_record(model) == record


def test_dango_has_no_propagation_to_record(small: Small) -> None:
    config = small()
    assert propagation_record(build_model(config, load_data(config).cell, 3)) is None
