r"""The strategy `late`: deletions that only one hop sees, at the cost of the rows they touch.

A row is *touched* by a gene from which it receives over some relation, and by its own deletion. In
a mutant a row depends only on the deleted genes that touch it. So the *unit* of work is a row
together with deleted genes that touch it. In ``z = N / (1 + Q)``, see `pool_changes`, both sums
are over touched rows. They are computed in three stages:

1. `units`: the rows that each gene of the batch touches, each with that gene alone. Mutants that
   share a gene share its units.
2. `shared_rows`: the rows that two or more genes of one genotype touch, with all of these genes.
   There the terms of the single genes are replaced.
3. `epistasis`, on request: the part of z that no smaller set of deletions explains.

Take four genes on a path, 0 - 1 - 2 - 3, and the genotype {0, 2}. Gene 0 touches the rows 0 and 1,
gene 2 touches 1, 2 and 3: five units. Both touch row 1, which needs a sixth unit, row 1 without
{0, 2}. The modules continue this example.
"""

from deltacell.propagate.late.strategy import Late, LatePlan, is_late

__all__ = ["Late", "LatePlan", "is_late"]
