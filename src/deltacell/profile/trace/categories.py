"""Categories: what a moment of a training step was for, by the names of events."""

from __future__ import annotations

import re
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from deltacell.arrays import Ints
from deltacell.profile.trace.self_time import Nesting, climb
from deltacell.profile.trace.trace import NOTHING, Kind, Trace

Categories = npt.NDArray[np.int8]


class Category(IntEnum):
    """What time is spent on; every moment of a step has one category."""

    data_loading = 0
    transfer = 1
    preparation = 2
    forward = 3
    loss = 4
    backward = 5
    communication = 6
    optimizer = 7
    logging = 8
    validation = 9
    checkpoint = 10
    other = 11

    @property
    def title(self) -> str:
        """The name for people."""
        return _TITLES.get(self, self.name)


_TITLES = {
    Category.data_loading: "data loading",
    Category.transfer: "transfer to device",
    Category.preparation: "graph preparation",
    Category.communication: "gradient communication",
    Category.logging: "logging and callbacks",
    Category.checkpoint: "checkpoints and figures",
}
CATEGORY_OF_PHASE = {
    "data_wait" if one is Category.data_loading else one.name: one for one in Category
}
"""The category of each phase of `deltacell.profile.phase_rows.PHASES`."""


def classify(name: str, kind: Kind) -> Category | None:
    """Return the category that a name alone implies, if any."""
    if kind not in _RULES:
        return None
    if len(name) > _LONG:
        # Names are untrusted, and the telling part is at an end.
        name = name[: _LONG // 2] + name[-_LONG // 2 :]
    if name.startswith("phase.") and kind is not Kind.python:
        return CATEGORY_OF_PHASE.get(name[6:])
    return next((category for rule, category in _RULES[kind] if rule.search(name)), None)


def own_categories(trace: Trace) -> Categories:
    """Return the category that each event's own name implies; `NOTHING` where none."""
    kinds = len(Kind)
    # There are many times fewer names than events, so these fit into int32.
    pairs = trace.name * np.int32(kinds) + trace.kind
    found = np.full(len(trace.names) * kinds, NOTHING, dtype=np.int8)
    there = np.zeros(len(found), dtype=bool)
    there[pairs] = True
    for pair in np.flatnonzero(there).tolist():
        category = classify(trace.names[pair // kinds], Kind(pair % kinds))
        if category is not None:
            found[pair] = category
    own: Categories = found[pairs]
    return own


def categories(trace: Trace, nesting: Nesting, own: Categories) -> Categories:
    """Return the category of the nearest classified ancestor of each event, itself included.

    Calls that send a batch to the device are a transfer where no ancestor is classified.
    """
    found = nearest(own, nesting)
    sends = _sends(trace, nesting, found)
    if len(sends):
        own = own.copy()
        own[sends] = Category.transfer
        found = nearest(own, nesting)
    return found


def nearest(own: Categories, nesting: Nesting) -> Categories:
    """Return the category of each event, or of its nearest ancestor that has one."""
    return own[climb(own == NOTHING, nesting.parent)]


def is_collective(name: str) -> bool:
    """Return whether a name is that of a collective, on the device or the host."""
    return bool(_COLLECTIVE.search(name))


def is_loader(name: str) -> bool:
    """Return whether a range is the wait of the training for its next batch."""
    return bool(_LOADER.search(name))


def _sends(trace: Trace, nesting: Nesting, found: Categories) -> Ints:
    to_device = trace.named(lambda name: "HtoD" in name or "HostToDevice" in name)
    copies = trace.correlation[to_device & (trace.kind == Kind.copy)]
    rows = np.flatnonzero((trace.kind == Kind.runtime) & (found == NOTHING))
    rows = rows[np.isin(trace.correlation[rows], copies[copies >= 0])]
    sends = [rows]
    moves = trace.named(_MOVES.__contains__)
    while len(rows):
        above = nesting.parent[rows]
        above = above[above >= 0]
        rows = np.unique(above[moves[above]]).astype(np.int64)
        sends.append(rows)
    return np.concatenate(sends)


_LONG = 1000
_MOVES = {"aten::copy_", "aten::_to_copy", "aten::to", "aten::pin_memory"}
_LOADER = re.compile(
    r"^enumerate\(DataLoader\)#|^phase\.data_wait$|dataloader_next|wait_for_(?:batch|data)"
    r"|\bdata_(?:load|wait)\b|DataLoaderIter\.__next__|^next\(.*[Ll]oader"
)
_COLLECTIVE = re.compile(
    r"^(?:nccl|gloo|mpi|ucc|xccl|rccl):|^c10d::|^_?c10d_functional::|[nr]cclKernel|[nr]cclDevKernel"
    r"|^(?:nccl|rccl|oneccl)|\ball_?to_?all|\ball_?reduce|\ball_?gather|\breduce_?scatter",
    re.IGNORECASE,
)
_BACKWARD = r"^autograd::engine::|Backward\d*>?$|^torch::autograd::|^CompiledFunctionBackward"
_LOSS = r"(?:_loss|cross_entropy|kl_div)\w*(?<!_backward)$"
_ANYWHERE = (
    (_LOADER, Category.data_loading),
    (re.compile(r"^Optimizer\.(?:step|zero_grad)#"), Category.optimizer),
    (_COLLECTIVE, Category.communication),
    (re.compile(_BACKWARD), Category.backward),
)
_RANGES = {
    r"batch_to_(?:device|gpu)|\b(?:to_device|host_to_device|pin_memory)\b": Category.transfer,
    r"collat|\bsubgraph\b|graph_prep|\bpreparation\b|preprocess": Category.preparation,
    r"checkpoint|\bfigures?\b|\bplot(?:ting)?\b": Category.checkpoint,
    r"\bvalid(?:ation)?\b|validation_step|\bval_|\beval(?:uat\w*)?\b|sanity_check|test_step": (
        Category.validation
    ),
    r"\[callback\]|\blog(?:ging|ger)?\b|\bmetrics?\b|recmetrics|progress_?bar|\bon_train_": (
        Category.logging
    ),
    r"zero_grad|\boptimi[sz]er\b|optimizer_step|\bopt(?:im)?[._ ]step\b": Category.optimizer,
    r"\bbackward\b": Category.backward,
    r"(?:^|[\W_])(?:loss|criterion)(?:$|[\W_])": Category.loss,
    r"\bforward\b|\btraining_step\b": Category.forward,
}
_PYTHON = {
    r"torch/utils/data/dataloader\.py\(\d+\): __next__": Category.data_loading,
    r"collat|torch_geometric/.*subgraph": Category.preparation,
    r"torch/(?:_tensor|autograd/__init__)\.py\(\d+\): backward": Category.backward,
    r"torch/optim/\w+\.py\(\d+\): (?:step|zero_grad)": Category.optimizer,
    r"torch/nn/modules/loss\.py|nn\.Module: \w*Loss_\d+": Category.loss,
    r"torch/serialization\.py\(\d+\): save|matplotlib/|: savefig|: save_checkpoint": (
        Category.checkpoint
    ),
    r"/(?:wandb|mlflow|tensorboard|tensorboardX|logging)/|/tqdm/": Category.logging,
    r"nn\.Module: ": Category.forward,
}


def _rules(rules: dict[str, Category]) -> tuple[tuple[re.Pattern[str], Category], ...]:
    return tuple((re.compile(text, re.IGNORECASE), category) for text, category in rules.items())


_RULES = {
    Kind.annotation: (*_ANYWHERE, *_rules(_RANGES)),
    Kind.operator: (*_ANYWHERE, (re.compile(_LOSS), Category.loss)),
    Kind.python: _rules(_PYTHON),
}
"""Of each kind whose names tell anything: patterns and what they mean, the first match counts."""
