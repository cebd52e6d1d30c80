"""Laws of the loader: every genotype once an epoch, for any ranks, and resuming is not stopping."""

from itertools import islice

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deltacell.base.arrays import commonest
from deltacell.cell import Genes
from deltacell.screen import Batch, Genotypes, Loader, Screen
from deltacell.screen.loader import in_runs

N_GENES = 12
LAW = settings(max_examples=30, deadline=None)
seeds = st.integers(0, 2**32)


@st.composite
def screens(draw):
    gene = st.integers(0, N_GENES - 1)
    sets = draw(st.lists(st.lists(gene, min_size=1, max_size=5, unique=True), min_size=1))
    scores = np.random.default_rng(draw(seeds)).normal(size=len(sets))
    return Screen.build(
        Genes(f"g{i}" for i in range(N_GENES)),
        Genotypes.of(sets),
        score=scores.astype(np.float32),
    )


@st.composite
def settings_of(draw, screen):
    """All that decides the order, apart from the screen."""
    n = len(screen)
    rows = draw(st.none() | st.lists(st.integers(0, n - 1), min_size=1, unique=True))
    return {
        "rows": rows,
        "batch_size": draw(st.integers(1, 9)),
        "shuffle": draw(st.booleans()),
        "seed": draw(seeds),
        "batches_per_gather": draw(st.integers(1, 4)),
        "run_length": draw(st.none() | st.integers(1, 6)),
    }


def plain_batch(screen, rows, share):
    """A batch made row by row."""
    sets, scores = [genes.tolist() for genes in screen.genotypes], screen.column("score")
    return Batch(
        Genotypes.of([sets[row] for row in rows]),
        torch.tensor([float(scores[r]) for r in rows], dtype=torch.float32),
        torch.tensor(share, dtype=torch.float32),
        torch.tensor(rows, dtype=torch.int64),
    )


def assert_same(one, other):
    for a, b in (
        (one.genotypes.genes, other.genotypes.genes),
        (one.genotypes.offsets, other.genotypes.offsets),
        (one.targets, other.targets),
        (one.rows, other.rows),
    ):
        assert a.dtype == b.dtype
        assert torch.equal(a, b)
    torch.testing.assert_close(one.weights, other.weights)


def global_batches(screen, world_size, **how):
    """The rows of each step of an epoch, by rank."""
    ranks = [
        [b.rows.tolist() for b in Loader(screen, rank=r, world_size=world_size, **how)]
        for r in range(world_size)
    ]
    return [list(step) for step in zip(*ranks, strict=True)]


@LAW
@given(st.data(), screens(), st.integers(1, 5))
def test_every_genotype_once_an_epoch_in_the_same_global_batches(data, screen, world_size):
    how = data.draw(settings_of(screen))
    alone = [step[0] for step in global_batches(screen, 1, **how)]
    steps = global_batches(screen, world_size, **how)
    assert [[row for part in step for row in part] for step in steps] == alone
    wanted = range(len(screen)) if how["rows"] is None else how["rows"]
    assert sorted(row for step in alone for row in step) == sorted(wanted)
    assert all(len(step) == how["batch_size"] for step in alone[:-1])
    for step in steps:
        sizes = [len(part) for part in step]
        assert max(sizes) - min(sizes) <= 1


@LAW
@given(st.data(), screens(), st.integers(1, 5))
def test_batches_equal_slicing_row_by_row_and_weights_add_up_to_one_over_the_ranks(
    data,
    screen,
    world_size,
):
    how = data.draw(settings_of(screen))
    whole = [b.rows.tolist() for b in Loader(screen, **how)]
    loaders = [Loader(screen, rank=r, world_size=world_size, **how) for r in range(world_size)]
    for together, *step in zip(whole, *loaders, strict=True):
        assert np.isclose(sum(float(batch.weights.double().sum()) for batch in step), 1, atol=1e-6)
        for batch in step:
            rows = batch.rows.tolist()
            share = [1 / len(together)] * len(rows)
            assert_same(batch, plain_batch(screen, rows, share))


@LAW
@given(st.data(), screens(), st.integers(1, 4), st.integers(1, 4))
def test_resuming_equals_not_stopping(data, screen, world_before, world_after):
    """Stopped after any batch of three epochs, and gone on with any number of ranks."""
    how = data.draw(settings_of(screen))
    steps = len(Loader(screen, **how))
    stop = data.draw(st.integers(0, 3 * steps - 1))
    rank = data.draw(st.integers(0, world_after - 1))
    never_stopped = Loader(screen, rank=rank, world_size=world_after, **how)
    expected = [batch for _ in range(4) for batch in never_stopped][stop:]

    before = Loader(screen, rank=world_before - 1, world_size=world_before, **how)
    for _ in range(stop // steps):
        assert sum(1 for _ in before) == steps
    handed_out = list(islice(before, stop % steps))
    assert len(handed_out) == stop % steps
    state = before.state_dict()
    assert (state["epoch"], state["batch"]) == divmod(stop, steps)

    after = Loader(screen, rank=rank, world_size=world_after, **how)
    after.load_state_dict(state)
    resumed = [batch for _ in range(4 - stop // steps) for batch in after]
    for one, other in zip(resumed, expected, strict=True):
        assert_same(one, other)


@LAW
@given(seeds, st.integers(0, 100))
def test_other_epoch_or_seed_other_order(seed, epoch):
    # The chance that two orders of 40 genotypes agree is 1 in 40!.
    n = 40
    screen = Screen.build(
        Genes(f"g{i}" for i in range(n)),
        Genotypes.of([[i] for i in range(n)]),
        score=0.0,
    )

    def order(seed, epoch):
        loader = Loader(screen, seed=seed)
        loader.set_epoch(epoch)
        return next(iter(loader)).rows.tolist()

    assert order(seed, epoch) == order(seed, epoch)
    assert order(seed, epoch) != order(seed, epoch + 1)
    assert order(seed, epoch) != order(seed + 1, epoch)


@LAW
@given(groups=st.lists(st.integers(0, 4), max_size=40), length=st.integers(1, 9), seed=seeds)
def test_runs_are_an_order_in_which_groups_stand_together(groups, length, seed):
    given_groups = np.array(groups, dtype=np.int64)
    order = in_runs(given_groups, length, np.random.default_rng(seed))
    assert sorted(order.tolist()) == list(range(len(groups)))
    # No more runs than each group cut at random takes, one more than as few as can be.
    changes = np.count_nonzero(np.diff(given_groups[order]))
    at_most = sum(-(-n // length) + 1 for n in np.bincount(given_groups).tolist() if n)
    assert changes < max(at_most, 1)


def test_runs_favour_nobody():
    """Over many epochs every genotype is equally often in the first batch, whatever its group."""
    pairs = [[0, b] for b in range(1, 10)] + [[10, 11], [10, 9], [8, 11]]
    screen = Screen.build(
        Genes(f"g{i}" for i in range(N_GENES)),
        Genotypes.of(pairs),
        score=np.zeros(len(pairs), dtype=np.float32),
    )
    loader = Loader(screen, batch_size=4, samples_per_epoch=8, run_length=4, seed=3)
    epochs = 1000
    first, seen = np.zeros(len(pairs)), np.zeros(len(pairs))
    together = []
    for _ in range(epochs):
        for i, batch in enumerate(loader):
            seen[batch.rows.numpy()] += 1
            if i == 0:
                first[batch.rows.numpy()] += 1
                together.append(len(np.unique(batch.genotypes.genes.numpy())))
    deviation = np.sqrt(epochs * (2 / 3) * (1 / 3))
    assert np.abs(seen - epochs * 2 / 3).max() < 5 * deviation
    assert np.abs(first - epochs / 3).max() < 5 * deviation
    plain, apart = Loader(screen, batch_size=4, samples_per_epoch=8, seed=3), []
    for epoch in range(200):
        plain.set_epoch(epoch)
        apart.append(len(np.unique(next(iter(plain)).genotypes.genes.numpy())))
    assert np.mean(together) < np.mean(apart)


def test_the_commonest_gene_is_the_query():
    owner, genes = np.array([0, 0, 1, 1, 2, 2, 3]), np.array([7, 3, 3, 5, 3, 9, 1])
    assert genes[commonest(owner, genes)].tolist() == [3, 3, 3, 1]
