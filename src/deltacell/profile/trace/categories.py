"""Categories: what a moment of a training step was for."""

from __future__ import annotations

import re
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from deltacell.profile.trace.self_time import Nesting
from deltacell.profile.trace.trace import NOTHING, Ints, Kind, Trace


class Category(IntEnum):
    """What time is spent for; every moment of a step has one."""

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
        """What a person reads."""
        return _TITLES.get(self, self.name)


def classify(name: str, kind: Kind) -> Category | None:
    """Return the category that a name alone tells, or nothing."""
    if kind in _UNTOLD:
        return None
    if len(name) > _LONG:
        # Names are untrusted, and what tells is at an end of them.
        name = name[: _LONG // 2] + name[-_LONG // 2 :]
    if kind is Kind.python:
        return _first(_PYTHON, name)
    if name.startswith("phase."):
        return CATEGORY_OF_PHASE.get(name[6:])
    if kind is Kind.annotation:
        return _first(_RANGES, name)
    return _first(_OPERATORS, name)


def own_categories(trace: Trace) -> npt.NDArray[np.int8]:
    """Return the category that each event's own name tells, int8 [n]; `NOTHING` where none."""
    kinds = len(Kind)
    # As many as there are names and kinds fit into int32: names are many times fewer than events.
    pairs = trace.name * np.int32(kinds) + trace.kind
    there = np.zeros(len(trace.names) * kinds, dtype=bool)
    there[pairs] = True
    told = np.full(len(there), NOTHING, dtype=np.int8)
    for pair in np.flatnonzero(there).tolist():
        category = classify(trace.names[pair // kinds], Kind(pair % kinds))
        if category is not None:
            told[pair] = category
    found: npt.NDArray[np.int8] = told[pairs]
    return found


def categories(
    trace: Trace, nesting: Nesting, own: npt.NDArray[np.int8] | None = None
) -> npt.NDArray[np.int8]:
    """Return the category of the nearest classified ancestor of each event, itself included.

    Returns
    -------
    int8 [n]; `NOTHING` where no ancestor is classified. Calls that send a batch to the device
    are a transfer where nothing above them says otherwise.
    """
    own = own_categories(trace) if own is None else own
    found = nearest(own, nesting.parent)
    sends = _sends(trace, nesting, found)
    if len(sends):
        own = own.copy()
        own[sends] = Category.transfer
        found = nearest(own, nesting.parent)
    return found


def nearest(own: npt.NDArray[np.int8], parent: npt.NDArray[np.int32]) -> npt.NDArray[np.int8]:
    """Return of each event what the nearest of it and its ancestors has that has any, int8 [n]."""
    climb = (own == NOTHING) & (parent != NOTHING)
    place = np.where(climb, parent, np.arange(len(own), dtype=np.int32))
    while True:
        # Going up twice as far every time: the deepest stack takes a few rounds.
        further = place[place]
        if np.array_equal(further, place):
            return own[place]
        place = further


def is_collective(name: str) -> bool:
    """Return whether a name is that of a collective, of the device or of the host."""
    return bool(_COLLECTIVE.search(name))


def is_loader(name: str) -> bool:
    """Return whether a range is the wait of the training for its next batch."""
    return bool(_LOADER.search(name))


CATEGORY_OF_PHASE = {
    "data_wait" if one.name == "data_loading" else one.name: one for one in Category
}
"""The category of each phase of `deltacell.profile.phase_rows.PHASES`."""

_TITLES = {
    Category.data_loading: "data loading",
    Category.transfer: "transfer to device",
    Category.preparation: "graph preparation",
    Category.communication: "gradient communication",
    Category.logging: "logging and callbacks",
    Category.checkpoint: "checkpoints and figures",
}
_LONG = 1000
_MOVES = {"aten::copy_", "aten::_to_copy", "aten::to", "aten::pin_memory"}
_UNTOLD = (Kind.runtime, Kind.kernel, Kind.copy, Kind.fill, Kind.device_annotation, Kind.other)
_LOADER = re.compile(
    r"^enumerate\(DataLoader\)#|^phase\.data_wait$|dataloader_next|wait_for_(?:batch|data)"
    r"|\bdata_(?:load|wait)\b|DataLoaderIter\.__next__|^next\(.*[Ll]oader"
)
_COLLECTIVE = re.compile(
    r"^(?:nccl|gloo|mpi|ucc|xccl|rccl):|^c10d::|^_?c10d_functional::|[nr]cclKernel|[nr]cclDevKernel"
    r"|^(?:nccl|rccl|oneccl)|\ball_?to_?all|\ball_?reduce|\ball_?gather|\breduce_?scatter",
    re.IGNORECASE,
)
_BACKWARD = re.compile(
    r"^autograd::engine::|Backward\d*>?$|^torch::autograd::|^CompiledFunctionBackward"
)
_LOSS = re.compile(r"(?:_loss|cross_entropy|kl_div)\w*(?<!_backward)$")
_Rules = tuple[tuple[re.Pattern[str], Category], ...]


def _rules(*rules: tuple[str, Category]) -> _Rules:
    return tuple((re.compile(text, re.IGNORECASE), category) for text, category in rules)


_RANGES: _Rules = (
    (_LOADER, Category.data_loading),
    (re.compile(r"^Optimizer\.(?:step|zero_grad)#"), Category.optimizer),
    (_COLLECTIVE, Category.communication),
    (_BACKWARD, Category.backward),
    *_rules(
        (r"batch_to_(?:device|gpu)|\b(?:to_device|host_to_device|pin_memory)\b", Category.transfer),
        (r"collat|\bsubgraph\b|graph_prep|\bpreparation\b|preprocess", Category.preparation),
        (r"checkpoint|\bfigures?\b|\bplot(?:ting)?\b", Category.checkpoint),
        (
            r"\bvalid(?:ation)?\b|validation_step|\bval_|\beval(?:uat\w*)?\b|sanity_check|test_step",
            Category.validation,
        ),
        (
            r"\[callback\]|\blog(?:ging|ger)?\b|\bmetrics?\b|recmetrics|progress_?bar|\bon_train_",
            Category.logging,
        ),
        (r"zero_grad|\boptimi[sz]er\b|optimizer_step|\bopt(?:im)?[._ ]step\b", Category.optimizer),
        (r"\bbackward\b", Category.backward),
        (r"(?:^|[\W_])(?:loss|criterion)(?:$|[\W_])", Category.loss),
        (r"\bforward\b|\btraining_step\b", Category.forward),
    ),
)
_OPERATORS: _Rules = (
    (_LOADER, Category.data_loading),
    (re.compile(r"^Optimizer\.(?:step|zero_grad)#"), Category.optimizer),
    (_COLLECTIVE, Category.communication),
    (_BACKWARD, Category.backward),
    (_LOSS, Category.loss),
)
_PYTHON: _Rules = _rules(
    (r"torch/utils/data/dataloader\.py\(\d+\): __next__", Category.data_loading),
    (r"collat|torch_geometric/.*subgraph", Category.preparation),
    (
        r"torch/_tensor\.py\(\d+\): backward|torch/autograd/__init__\.py\(\d+\): backward",
        Category.backward,
    ),
    (r"torch/optim/\w+\.py\(\d+\): (?:step|zero_grad)", Category.optimizer),
    (r"torch/nn/modules/loss\.py|nn\.Module: \w*Loss_\d+", Category.loss),
    (
        r"torch/serialization\.py\(\d+\): save|matplotlib/|: savefig|: save_checkpoint",
        Category.checkpoint,
    ),
    (r"/(?:wandb|mlflow|tensorboard|tensorboardX|logging)/|/tqdm/", Category.logging),
    (r"nn\.Module: ", Category.forward),
)


def _first(rules: _Rules, name: str) -> Category | None:
    for pattern, category in rules:
        if pattern.search(name):
            return category
    return None


def _sends(trace: Trace, nesting: Nesting, found: npt.NDArray[np.int8]) -> Ints:
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
