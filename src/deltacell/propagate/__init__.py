r"""Message passing on many mutants of one cell.

**The problem.** A cell is a graph of genes with a vector x_i each. One *hop* of message passing
over a relation with the adjacency matrix A (row = target, column = source) gives each gene what its
neighbours send, ``a_i = sum_j A_ij x_j``, and a new vector, ``x_i + m(x_i, a_i)`` or just the
message m. The *wild type* is the whole cell. A *mutant* lacks a set S of genes, and with them all
edges that touch them, and there are hundreds of mutants in a batch.

**Four genes.** On the path 0 - 1 - 2 - 3, let every vector be one number:

>>> import torch
>>> from deltacell.propagate.product import SparseMatrix, product
>>> A = SparseMatrix([0, 1, 3, 5, 6], [1, 0, 2, 1, 3, 2])
>>> X = torch.tensor([[1.0], [2.0], [4.0], [8.0]])
>>> product(A, X).flatten().tolist()
[2.0, 5.0, 10.0, 4.0]

Gene 1 receives 1 + 4 = 5. In the mutant without gene 2 it receives 1, and gene 3 receives nothing.
No edge has to be removed for this. With K the diagonal matrix with 1 for living genes and 0 for
deleted ones, it is the product ``K A K X`` (`shared`):

>>> K = torch.tensor([[1.0], [1.0], [0.0], [1.0]])
>>> (K * product(A, K * X)).flatten().tolist()
[2.0, 1.0, 0.0, 0.0]

Nor has everything to be computed again. With ``X' = X + dX`` the vectors of the mutant, the sums
are ``A X' = A X + A dX``. ``A X`` is the wild type's, computed once for all mutants, and dX is 0
but for gene 2 (`delta`):

>>> dX = K * X - X
>>> (K * (product(A, X) + product(A, dX))).flatten().tolist()
[2.0, 1.0, 0.0, 0.0]

After this hop the genes 1 and 3 have changed, too: one more hop, and so has gene 0. If only the
last hop sees the deletion, the rows that gene 2 touches are 1, 2 and 3 in every mutant without
gene 2, whatever else it lacks, unless another deleted gene touches them too. Then a batch needs
each row once per gene, and not per mutant (`late`).

**Plan, then execute.** A `Strategy` does it in three calls:

1. ``plan(shapes, deleted, device)`` on the host: which rows of which mutants are computed, and how.
   A plan is tensors and numbers. `HopShape` has the matrices and widths of a hop and is made once
   per cell, so planning needs no parameters.
2. ``wild_type(hops, state)`` once per step: vectors, sums and messages of the whole cell. A `Hop`
   has the functions of the step, one `Message` per relation, with ``forward`` and ``backward``.
3. ``mutants(plan, hops, wild_type, readout)``: what is different, read out as
   ``z = pool(wild type) - pool(mutant)``, see `pool`.

**Where to read on.** `hop` says what message passing is, `strategy` what a strategy is. `tiles`,
`shared`, `delta_plan` and `delta` compute mutants tile by tile, and `late` row by row. `choose` is
the rule of ``model.propagation=auto``. `reference` has the slow strategies that came first,
`parallel` the threads and the recomputation that make the fast ones fast on a CPU, `transfer` the
way to a device.
docs/why/mutants-as-differences.md derives the formulas in the same notation.
"""

from deltacell.propagate.choose import NAMES, STRATEGIES, Auto, Choice, Reason, choose, strategy
from deltacell.propagate.deleted import Deleted, DeletedNodes
from deltacell.propagate.delta import Delta
from deltacell.propagate.hop import (
    GENE,
    METABOLITE,
    REACTION,
    Aggregate,
    Hop,
    HopShape,
    Message,
    MessageShape,
)
from deltacell.propagate.late import Late
from deltacell.propagate.pool import Terms
from deltacell.propagate.product import SparseMatrix
from deltacell.propagate.shared import Shared
from deltacell.propagate.strategy import Mutants, Plan, Readout, Strategy, WildType

__all__ = [
    "GENE",
    "METABOLITE",
    "NAMES",
    "REACTION",
    "STRATEGIES",
    "Aggregate",
    "Auto",
    "Choice",
    "Deleted",
    "DeletedNodes",
    "Delta",
    "Hop",
    "HopShape",
    "Late",
    "Message",
    "MessageShape",
    "Mutants",
    "Plan",
    "Readout",
    "Reason",
    "Shared",
    "SparseMatrix",
    "Strategy",
    "Terms",
    "WildType",
    "choose",
    "strategy",
]
