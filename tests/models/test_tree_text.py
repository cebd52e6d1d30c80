"""Trees of a checkpoint that somebody edited are an error, and never reach LightGBM."""

import re

import lightgbm
import numpy as np
import pytest

from deltacell.models.baselines.boosted_trees import booster, predicted
from deltacell.models.baselines.tree_text import read_trees


@pytest.fixture(scope="module")
def columns():
    columns = np.random.default_rng(0).normal(size=(300, 6)).astype(np.float32)
    columns[columns > 1.5] = np.nan
    return columns


@pytest.fixture(scope="module")
def texts(columns):
    target = np.nan_to_num(columns[:, 0] * columns[:, 1])
    same = {"verbosity": -1, "num_leaves": 7, "min_data_in_leaf": 5, "seed": 0}
    data = {"regression": target, "binary": (target > 0).astype(float)}
    return {
        objective: lightgbm.train(
            {**same, "objective": objective},
            lightgbm.Dataset(columns, labels),
            20,
        ).model_to_string()
        for objective, labels in data.items()
    }


@pytest.mark.parametrize("objective", ["regression", "binary"])
def test_predictions_are_the_same_to_the_last_bit(texts, columns, objective):
    text = texts[objective]
    for raw in (False, True):
        expected = lightgbm.Booster(model_str=text).predict(columns, raw_score=raw)
        assert np.array_equal(predicted(booster(text), columns, raw_score=raw), expected)
    checked = read_trees(text)
    assert (checked.n_features, checked.n_trees) == (6, 20)
    assert read_trees(checked.text) == checked


def test_a_tree_of_one_leaf_is_read(columns):
    options = {"verbosity": -1, "min_data_in_leaf": 500}
    data = lightgbm.Dataset(columns, np.arange(len(columns)), free_raw_data=False)
    trees = lightgbm.train(options, data, 1)
    expected = trees.predict(columns)
    assert np.array_equal(predicted(booster(trees.model_to_string()), columns), expected)


EDITS = {
    "a child beyond the splits": (r"(?m)^(left_child=)\S+", r"\g<1>99"),
    "a leaf that does not exist": (r"(?m)^(right_child=)\S+", r"\g<1>-99"),
    "a cycle": (r"(?m)^(left_child=)\S+", r"\g<1>0"),
    "a leaf of two parents": (r"(?m)^((left|right)_child=.*)-\d+", r"\g<1>-1"),
    "a feature beyond the columns": (r"(?m)^(split_feature=)\S+", r"\g<1>6"),
    "a negative feature": (r"(?m)^(split_feature=)\S+", r"\g<1>-1"),
    "a fraction of a feature": (r"(?m)^(split_feature=)\S+", r"\g<1>1.5"),
    "a category": (r"(?m)^(decision_type=)\S+", r"\g<1>1"),
    "a threshold too many": (r"(?m)^(threshold=.*)$", r"\g<1> 1"),
    "a leaf too few": (r"(?m)^(leaf_value=.*) \S+$", r"\g<1>"),
    "an infinite leaf": (r"(?m)^(leaf_value=)\S+", r"\g<1>1e999"),
    "a leaf that is not a number": (r"(?m)^(leaf_value=)\S+", r"\g<1>nan"),
    "more leaves than there are": (r"(?m)^num_leaves=.*$", "num_leaves=2000000000"),
    "linear trees": (r"(?m)^is_linear=0$", "is_linear=1"),
    "more features than names": (r"(?m)^max_feature_idx=.*$", "max_feature_idx=2000000000"),
    "another objective": (r"(?m)^objective=.*$", "objective=regression sqrt"),
    "several classes": (r"(?m)^num_class=1$", "num_class=3"),
    "the mean of the trees": (r"(?m)^num_class=1$", "num_class=1\nnum_class=2"),
    "a tree twice": (r"(?m)^Tree=1$", "Tree=0"),
    "no end": (r"end of trees", "end"),
    "no trees": (r"(?s)Tree=0.*", "end of trees\n"),
}


@pytest.mark.parametrize("edit", EDITS)
def test_edited_trees_are_refused(texts, edit, refused):
    changed = re.sub(*EDITS[edit], texts["regression"], count=1)
    assert changed != texts["regression"]
    refused("damaged-trees", booster, changed)


def test_trees_of_other_columns_are_refused(texts, columns, refused):
    refused("damaged-trees", predicted, booster(texts["regression"]), columns[:, :5])
