"""The text of boosted trees from a checkpoint, checked before LightGBM reads it.

LightGBM trusts its own text: a child that does not exist is read from foreign memory, and a cycle
is followed for ever. So the text is taken apart into the values that a prediction depends on, they
are checked, and a new text is written from them, which is all that LightGBM sees.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from deltacell.base.arrays import AnyArray, Ints
from deltacell.base.errors import StoreError

OBJECTIVES = ("regression", "binary sigmoid:1")
_HEADER: Mapping[str, str] = {
    "version": "v4",
    "num_class": "1",
    "num_tree_per_iteration": "1",
    "label_index": "0",
}
_OF_SPLITS = ("split_feature", "threshold", "decision_type", "left_child", "right_child")
_INTEGERS = ("split_feature", "decision_type", "left_child", "right_child")
_NUMBERS = re.compile(r"[0-9eE+. -]*")
# LightGBM itself writes such a threshold for a split of missing values from all others.
_THRESHOLDS = re.compile(r"[0-9eE+. -]*((?<![^ ])-?(nan|inf)(?![^ ])[0-9eE+. -]*)*")
# How a split treats missing values; odd numbers would be splits of categories.
_DECISIONS = (0, 2, 4, 6, 8, 10)


@dataclass(frozen=True)
class TreeText:
    """Boosted trees that LightGBM can predict with safely, see `read_trees`."""

    text: str
    n_features: int
    n_trees: int


def read_trees(text: str) -> TreeText:
    """Check the text that LightGBM wrote of its trees, and write it anew from what was checked.

    Every child is a later split or a leaf and has one parent, so that each path ends in a leaf;
    features are among the columns, sizes agree, and leaves are finite. The new text gives the same
    predictions to the last bit.
    """
    before, *blocks = re.split(r"^Tree=(?=\d+$)", text, flags=re.M)
    header = _keys(before)
    for key, value in _HEADER.items():
        _require(header.get(key) == value, f"{key} is not {value}")
    objective = header.get("objective", "")
    _require(objective in OBJECTIVES, "an unknown objective")
    n_features = len(header.get("feature_names", "").split())
    is_counted = header.get("max_feature_idx") == str(n_features - 1)
    _require(n_features > 0 and is_counted, "the number of features is not that of their names")
    _require(text.count("\nend of trees\n") == 1, "its end is missing")
    trees: list[str] = []
    for number, block in enumerate(blocks):
        index, _, fields = block.partition("\n")
        _require(index == str(number), f"tree {number} is missing")
        lines = _checked_tree(_keys(fields.partition("\nend of trees\n")[0]), n_features)
        trees.append("\n".join((f"Tree={number}", *lines)) + "\n\n\n")
    _require(len(header.get("tree_sizes", "").split()) == len(trees), "trees are missing")
    names = " ".join(f"Column_{i}" for i in range(n_features))
    no_ranges = " ".join(["none"] * n_features)
    sizes = " ".join(str(len(tree)) for tree in trees)
    begin = (
        "tree",
        *(f"{key}={value}" for key, value in _HEADER.items()),
        f"max_feature_idx={n_features - 1}",
        f"objective={objective}",
        f"feature_names={names}",
        f"feature_infos={no_ranges}",
        f"tree_sizes={sizes}",
    )
    whole = "\n".join(begin) + "\n\n" + "".join(trees) + "end of trees\n"
    return TreeText(whole, n_features, len(trees))


def damaged_trees(what: str) -> StoreError:
    """Return the error for trees that no fit has written."""
    fix = "Restore the checkpoint from a copy, or train the run again."
    message = f"the trees of the checkpoint were edited or damaged: {what}"
    return StoreError(message, code="damaged-trees", fix=fix)


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise damaged_trees(otherwise)


def _keys(text: str) -> dict[str, str]:
    """Return the lines KEY=VALUE of a text; a repeated key is an error."""
    keys: dict[str, str] = {}
    for line in text.splitlines():
        key, sign, value = line.partition("=")
        _require(key not in keys or not sign, f"'{key[:40]}' occurs twice")
        if sign:
            keys[key] = value
    return keys


def _checked_tree(fields: Mapping[str, str], n_features: int) -> Iterator[str]:
    """Yield the lines of a tree that a prediction needs."""
    for key in ("num_cat", "is_linear"):
        _require(fields.get(key) == "0", f"{key} is not 0")
    leaf_values = _numbers(fields, "leaf_value")
    n_leaves = len(leaf_values)
    _require(n_leaves > 0 and fields.get("num_leaves") == str(n_leaves), "leaves are missing")
    splits = {name: _numbers(fields, name) for name in _OF_SPLITS}
    for name, values in splits.items():
        _require(len(values) == n_leaves - 1, f"the length of {name} is not that of the tree")
    if n_leaves > 1:
        feature = splits["split_feature"]
        is_column = (feature >= 0) & (feature < n_features)
        _require(bool(is_column.all()), f"a feature is not among the {n_features} columns")
        _require(bool(np.isin(splits["decision_type"], _DECISIONS).all()), "an unknown decision")
        _check_children(splits["left_child"], splits["right_child"])
    yield f"num_leaves={n_leaves}"
    yield "num_cat=0"
    for name in (*_OF_SPLITS, "leaf_value"):
        # The digits as they are, so that LightGBM reads the same numbers.
        yield f"{name}={fields[name]}"
    yield "is_linear=0"
    yield "shrinkage=1"


def _numbers(fields: Mapping[str, str], name: str) -> AnyArray:
    """Return the numbers of a field, which are finite, and integers where they number something.

    A threshold may be NaN or infinite.
    """
    text = fields.get(name)
    is_threshold = name == "threshold"
    allowed = _THRESHOLDS if is_threshold else _NUMBERS
    _require(text is not None and allowed.fullmatch(text) is not None, f"{name} has no numbers")
    words = str(text).split(" ") if text else []
    convert, kind = (int, np.int32) if name in _INTEGERS else (float, np.float64)
    try:
        values: AnyArray = np.array([convert(word) for word in words], dtype=kind)
    except (ValueError, OverflowError) as error:
        raise damaged_trees(f"{name} has no numbers") from error
    is_finite = is_threshold or bool(np.isfinite(values).all())
    _require(is_finite, f"a number of {name} is not finite")
    return values


def _check_children(left: Ints, right: Ints) -> None:
    """Raise unless splits 0, 1, ... form a tree with root 0; a negative child c is leaf -c - 1.

    A child split has a larger number than its parent, as LightGBM numbers splits when it makes
    them, so that there is no cycle.
    """
    children = np.concatenate([left, right])
    parents = np.tile(np.arange(len(left)), 2)
    is_split = children >= 0
    _require(bool((children[is_split] > parents[is_split]).all()), "a path has no end")
    expected = np.concatenate([np.arange(-len(left) - 1, 0), np.arange(1, len(left))])
    _require(np.array_equal(np.sort(children), expected), "a child is missing or has two parents")
