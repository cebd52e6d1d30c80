"""The three stages of `late` together: a plan, and the z of a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from deltacell.base.errors import InputError
from deltacell.profile.record import Messages
from deltacell.propagate.deleted import Deleted
from deltacell.propagate.hop import GENE, Hop, HopShape, State
from deltacell.propagate.late import epistasis as stage3
from deltacell.propagate.late.shared_rows import (
    Members,
    SharedRows,
    SignedSum,
    corrections,
    shared_rows,
)
from deltacell.propagate.late.units import (
    UnitBuilder,
    Units,
    as_indices,
    relations_of,
    single_units,
    terms_of_units,
    touch_index,
)
from deltacell.propagate.parallel.chunks import Chunks
from deltacell.propagate.shared import wild_type_of
from deltacell.propagate.strategy import Mutants, Plan, Step, Strategy, WildType

MOST_GENES = 5  # per set, because a set of k genes has 2^k subsets


@dataclass(frozen=True, eq=False)
class GeneUnits:
    """The rows that each distinct gene of a batch touches, each without that gene."""

    units: Units
    gene: Tensor  # the number of the gene of each unit, ascending, int64 [u]
    n_genes: int


@dataclass(frozen=True, eq=False)
class LatePlan(Plan):
    """The units of a batch, and how they add up to the sums of each genotype.

    A genotype has one place for its sum. For epistasis it has 2^k places, one for the interaction
    of each subset of its genes; bit i of the place stands for gene i.
    """

    single: GeneUnits
    members: Tensor  # the numbers of all genes of all genotypes, int64 [total]
    member_places: Tensor  # the place of the sum over the units of that gene, int64 [total]
    # Rows that several genes of a genotype touch, with all of these genes; for epistasis, with each
    # subset.
    shared: Units
    # Further terms of units, which are counted after the single ones, unless for epistasis.
    further: SignedSum
    n_places: int  # of a genotype
    sizes: Mapping[int, Tensor]  # for epistasis, the genotypes of two genes and more by size
    epistasis: bool


@dataclass(frozen=True)
class Late(Strategy[LatePlan]):
    """Compute the rows that deletions touch, if only the last hop sees the deletions.

    In ``z = N / (1 + Q)``, see `pool_changes`, rows that no deletion touches add nothing to either
    sum, and the terms of a row depend only on the deletions that touch it. So both sums are
    computed once for each gene of the batch; a set adds those of its genes, and the interactions on
    rows that two or more of its genes touch. For epistasis these are computed in float64, see
    `interaction_of_quotient`. `rows_at_a_time` and `workers` are those of `Chunks.on`.
    """

    rows_at_a_time: int | None = None
    workers: int | None = None
    name: ClassVar[str] = "late"
    passes: ClassVar[Messages] = Messages.changes

    def plan(
        self,
        shapes: Sequence[HopShape],
        deleted: Deleted,
        device: torch.device,
        *,
        dtype: torch.dtype = torch.float32,
        epistasis: bool = False,
    ) -> LatePlan:
        """Return the units of each gene, and those of the rows that several genes touch."""
        if not is_late(shapes):
            raise InputError(
                "propagation 'late' requires deletions that act in one layer over the relations",
                code="not-late",
                fix="Set model.mutant_layers=1 and model.metabolism=false, or "
                "model.propagation=auto.",
            )
        (shape,) = shapes
        index = touch_index(*relations_of(shape.messages))
        members = Members.of(deleted.genes.to("cpu"))
        _check_sizes(members.largest, index.n_genes)
        single = single_units(index, members.genes)
        builder = UnitBuilder(shape, index, single)
        shared = shared_rows(single, members, index.n_genes)
        of_genes = GeneUnits(
            builder.of_single_genes(),
            as_indices(single.gene),
            len(single.genes),
        )
        if epistasis:
            return _plan_with_epistasis(len(deleted), of_genes, members, shared, builder)
        return LatePlan(
            len(deleted),
            of_genes,
            members=as_indices(members.number),
            member_places=as_indices(members.genotype),
            shared=builder.units(
                shared.rows,
                deleted_units=shared.touching_units,
                touching_units=shared.touching_units,
            ),
            further=corrections(shared, len(single)),
            n_places=1,
            sizes={},
            epistasis=False,
        )

    def wild_type(self, hops: Sequence[Hop], state: State) -> WildType:
        """Propagate the wild type, the messages of a hop in threads."""
        return wild_type_of(hops, state, self._chunks(state[GENE].device))

    def _mutants(self, plan: LatePlan, step: Step) -> Mutants:
        chunks = self._chunks(step.pool.value.device)
        single = terms_of_units(step, plan.single.units, chunks)
        shared = terms_of_units(step, plan.shared, chunks, in_double=plan.epistasis)
        n = _sums(plan, single.numerator, shared.numerator)
        q = _sums(plan, single.denominator, shared.denominator)
        denominator = (1 + q.sum(1)).to(n.dtype)
        z = (n.sum(1) / denominator).to(step.wild_type.last[GENE].dtype)
        if not plan.epistasis:
            return Mutants(z, step.pool.pooled)
        return Mutants(z, step.pool.pooled, _epistasis(plan, n, q.squeeze(2)))

    def _chunks(self, device: torch.device) -> Chunks:
        return Chunks.on(device, self.rows_at_a_time, self.workers)


def is_late(shapes: Sequence[HopShape]) -> bool:
    """Return whether mutants see one hop, from genes to genes over unweighted relations."""
    if len(shapes) != 1 or shapes[0].target != GENE:
        return False
    aggregates = shapes[0].aggregates
    # At most 62, because the relations that touch a row are bits of an int64.
    if not 0 < len(aggregates) <= 62:
        return False
    return all(a.source == GENE and a.matrix.values is None for a in aggregates)


def _check_sizes(largest: int, n_genes: int) -> None:
    if largest > min(MOST_GENES, n_genes - 1):
        raise InputError(
            f"a genotype deletes {largest} of {n_genes} genes; 'late' allows up to {MOST_GENES}, "
            "and fewer than all",
            code="too-many-deleted",
            fix="Remove the genotype, or set model.epistasis=false and model.propagation=delta.",
        )


def _plan_with_epistasis(
    n_mutants: int,
    single: GeneUnits,
    members: Members,
    shared: SharedRows,
    builder: UnitBuilder,
) -> LatePlan:
    terms = stage3.interaction_terms(shared)
    row = terms.units.row
    touching_units = shared.touching_units[row]
    n_places = 1 << members.largest
    place_of_gene = 1 << members.position
    return LatePlan(
        n_mutants,
        single,
        members=as_indices(members.number),
        member_places=as_indices(members.genotype * n_places + place_of_gene),
        shared=builder.units(
            shared.rows[row], deleted_units=terms.units.deleted_units, touching_units=touching_units
        ),
        further=terms.sums,
        n_places=n_places,
        sizes=_genotypes_by_size(members),
        epistasis=True,
    )


def _genotypes_by_size(members: Members) -> dict[int, Tensor]:
    """Return the genotypes of two genes and more by their number of genes."""
    sizes = [size for size in np.unique(members.sizes).tolist() if size > 1]
    return {size: as_indices(np.flatnonzero(members.sizes == size)) for size in sizes}


def _sums(plan: LatePlan, single: Tensor, shared: Tensor) -> Tensor:
    """Return the sums of each genotype, [b, places, width], from the terms of units."""
    of_gene = single.new_zeros(plan.single.n_genes, single.shape[1])
    of_gene = of_gene.index_add(0, plan.single.gene, single)
    terms = shared if plan.epistasis else torch.cat([single, shared])
    signs = plan.further.signs.to(terms.dtype)
    further = terms.index_select(0, plan.further.units) * signs
    of_members = of_gene.index_select(0, plan.members).to(terms.dtype)
    total = terms.new_zeros(plan.n_mutants * plan.n_places, terms.shape[1])
    total = total.index_add(0, plan.member_places, of_members)
    total = total.index_add(0, plan.further.places, further)
    return total.view(plan.n_mutants, plan.n_places, -1)


def _epistasis(plan: LatePlan, n: Tensor, q: Tensor) -> Tensor:
    """Return the epistasis of z from the interactions of N and Q, [b, hidden]."""
    result = torch.zeros_like(n[:, 0])
    for size, genotypes in plan.sizes.items():
        n_subsets = 1 << size
        n_of_size = n.index_select(0, genotypes)[:, :n_subsets]
        q_of_size = q.index_select(0, genotypes)[:, :n_subsets]
        interaction = stage3.interaction_of_quotient(n_of_size, q_of_size)
        result = result.index_copy(0, genotypes, interaction)
    return result
