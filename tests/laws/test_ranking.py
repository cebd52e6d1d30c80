"""A ranking is what scoring every set and sorting gives, however it was come by."""

import tempfile
from contextlib import contextmanager, suppress
from itertools import combinations, pairwise
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from cells import screen_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from deltacell.cell import Cell, Genes, Relation
from deltacell.models import Dango
from deltacell.models.interface import TargetScale
from deltacell.ranking import search
from deltacell.ranking.ensemble import scorer_of_predictors
from deltacell.ranking.filter import STATUSES, Linkage, Statuses
from deltacell.ranking.gene_sets import Block, Combinations, Listed, Scored
from deltacell.ranking.ranking_file import SCHEMA
from deltacell.ranking.request import FILE, PAIRS, TRIPLES, WITH, Request
from deltacell.ranking.request_on_runs import RequestOnRuns, RunFacts
from deltacell.ranking.search import Contact, merge_parts, rank_sets, score_part
from deltacell.ranking.work import read_scored
from deltacell.screen import Genotypes, Screen
from deltacell.train.predictor import TrainedPredictor

LAW = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.fixture(autouse=True, scope="module")
def as_if_there_were_many():
    """Let sets be drawn and blocks be tried beforehand, however few there are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search, "SHARE_DRAWN", 2)
        patch.setattr(search, "SHARE_TRIED", 4)
        yield


class Additive:
    """Scores a set by the rounded sum of its genes' values: equal scores are the rule."""

    def __init__(self, values, spread, prunes=True):
        self.values, self.spread = np.array(values, dtype=np.float32), np.float32(spread)
        self.asked, self.prunes = 0, prunes

    def score(self, sets):
        self.asked += 1
        ascending = np.sort(sets, axis=1)
        score = np.round(self.values[ascending].sum(axis=1), 1)
        return Scored(ascending, score, self.spread * (ascending[:, 0] % 3).astype(np.float32))

    def candidates(self, piece, above, below):
        found = self.score(piece.sets() if isinstance(piece, Block) else piece)
        wanted = (found.score >= above) | (found.score <= below)
        return Scored(*(column[wanted] for column in found))


class Killed(Exception):
    pass


class Mortal(Additive):
    """Dies at the nth block."""

    def __init__(self, scorer, at):
        super().__init__(scorer.values, scorer.spread, scorer.prunes)
        self.left = at

    def score(self, sets):
        self.left -= 1
        if self.left < 0:
            raise Killed
        return super().score(sets)


RUN = RunFacts("r", 0, "additive", "best.pt", "0" * 64, True, 0.5)


def subject_of(request, cell, genes, sets, screen):
    linkage, statuses = Linkage(cell.genes, request.distance), Statuses([screen], ["interaction"])
    found = (request, cell, np.array(genes), sets, linkage, statuses)
    return RequestOnRuns(*found, [RUN], request.to_json(), 0, {2, 3})


@st.composite
def cells(draw):
    n = draw(st.integers(5, 9))
    chromosome = draw(st.lists(st.sampled_from(["", "I", "I", "II"]), min_size=n, max_size=n))
    start = [draw(st.sampled_from([-1, 0, 100, 250, 900])) for _ in range(n)]
    end = [-1 if at < 0 else at + draw(st.sampled_from([10, 200])) for at in start]
    names = [f"Y{i:02d}" for i in range(n)], [None if i % 2 else f"ABC{i}" for i in range(n)]
    genes = Genes(*names, chromosome=chromosome, start=start, end=end)
    ring = np.arange(n), (np.arange(n) + 1) % n
    return Cell(genes, [Relation.from_edges("ring", *ring, n_genes=n, directed=False)])


@st.composite
def screens(draw, cell, every):
    rows = draw(st.lists(st.sampled_from(every), min_size=1, max_size=12))
    roles = [role for row in rows for role in ["query"] * (len(row) - 1) + ["array"]]
    scores = st.floats(-1, 1, width=16) | st.just(float("nan"))
    score = draw(st.lists(scores, min_size=len(rows), max_size=len(rows)))
    return screen_of(cell.genes, rows, score, roles, ["s"] * len(rows), complete=True)


@st.composite
def requests(draw, cell):
    kind = draw(st.sampled_from([PAIRS, TRIPLES, WITH, FILE]))
    asked = {"top": draw(st.none() | st.integers(1, 6)), "linked": draw(st.booleans())}
    limits = [(None, None), (-0.5, None), (None, 0.2), (0.3, -0.3), (0.0, -0.3), (0.3, 0.2)]
    asked["above"], asked["below"] = draw(st.just((None, None)) | st.sampled_from(limits))
    if kind == WITH:
        names = st.sampled_from(list(cell.genes))
        given = draw(st.lists(names, min_size=1, max_size=2, unique=True))
        asked |= {"given": tuple(given), "size": len(given) + draw(st.integers(1, 2))}
    if kind == FILE:
        asked["file"] = Path("mine.txt")
    return Request(
        kind,
        **asked,
        status=draw(st.none() | st.sets(st.sampled_from(STATUSES), min_size=1).map(tuple)),
        distance=draw(st.sampled_from([0, 100, 500])),
    )


@st.composite
def subjects(draw):
    """Return a subject, its scorer, the screen, and all sets that are to be ranked."""
    cell = draw(cells())
    n = cell.n_genes
    every = [c for s in (2, 3) for c in combinations(range(n), s)]
    screen = draw(screens(cell, every))
    spread = draw(st.sampled_from([0.1, float("nan")]))
    request = draw(requests(cell))
    genes = np.array(sorted(draw(st.sets(st.integers(0, n - 1), min_size=4))))
    a_piece = draw(st.integers(1, 30))
    if request.sets == FILE:
        expected = draw(st.lists(st.sampled_from(every), min_size=1, max_size=20, unique=True))
        by_size = [np.array([s for s in expected if len(s) == size]) for size in (2, 3)]
        sets = Listed([s for s in by_size if len(s)], sets_per_piece=a_piece)
    else:
        given = [cell.genes.index(name) for name in request.given]
        sets = Combinations(genes, request.size, given, sets_per_piece=a_piece)
        others = [g for g in genes.tolist() if g not in given]
        free = request.size - len(given)
        expected = [tuple(sorted((*given, *c))) for c in combinations(others, free)]
    values = draw(st.lists(st.sampled_from([-0.3, -0.1, 0.0, 0.1, 0.2]), min_size=n, max_size=n))
    scorer = Additive(values, spread, prunes=draw(st.booleans()))
    return subject_of(request, cell, genes, sets, screen), scorer, screen, expected


def linked_by_hand(genes, chosen, distance):
    """Return True, False, or None where it is not known."""
    answers = []
    for pair in combinations(chosen, 2):
        (ca, sa, ea), (cb, sb, eb) = (
            (genes.chromosome[g], genes.start[g], genes.end[g]) for g in pair
        )
        if ca and cb and ca != cb:
            answers.append(False)
        elif not ca or not cb or sa < 0 or sb < 0:
            answers.append(None)
        else:
            answers.append(max(sb - ea, sa - eb, 0) < distance)
    return True if True in answers else None if None in answers else False


def by_hand(subject, scorer, screen, expected):
    """Score every set, one at a time, and sort."""
    request, genes = subject.request, subject.cell.genes
    rows = [tuple(sorted(r.tolist())) for r in screen.genotypes]
    crossed = set()
    for study in screen.coverage.studies[:1]:
        for a, b in pairwise(study.query_offsets):
            query = study.query_genes[a:b].tolist()
            crossed |= {frozenset([*query, g]) for g in study.array_genes if g not in query}
    found = {}
    for chosen in expected:
        mine = [s for r, s in zip(rows, screen.column("score"), strict=True) if r == chosen]
        status = "measured" if mine else "tested" if frozenset(chosen) in crossed else "untested"
        known = [s for s in mine if not np.isnan(s)]
        linked = linked_by_hand(genes, chosen, request.distance)
        _, (score,), (spread,) = scorer.score(np.array([chosen]))
        if status in request.status and (request.linked or not linked):
            found[chosen] = {
                **{"lowest": score, "highest": -score},
                "genes": [genes[g] for g in chosen],
                "score": score,
                "spread": None if np.isnan(spread) else spread,
                "status": status,
                "measured": None if not known else pytest.approx(np.mean(known), abs=1e-6),
                "linked": linked,
            }
    places = {}
    for end in request.ends:
        limit, sign, key = request.limit(end), -1 if end == "highest" else 1, end or "lowest"
        # Sets of one list that are of several sizes: the smaller come first among equals.
        order = sorted(found, key=lambda one, key=key: (found[one][key], len(one), one))
        reached = [s for s in order if limit is None or found[s][key] <= sign * limit]
        places[end] = {one: i for i, one in enumerate(reached[: request.top])}
    listed = []
    for end, mine in places.items():
        other = next((places[one] for one in places if one != end), {})
        # A set that both ends hold is where it comes sooner, and with the lowest where level.
        kept = [s for s, i in mine.items() if i < other.get(s, i + 1) + (end == "lowest")]
        listed += [{"end": end, "rank": rank, **found[one]} for rank, one in enumerate(kept, 1)]
    return listed


NAMES = ("end", "rank", "genes", "score", "spread", "status", "measured", "linked")


def columns(rows, names=NAMES):
    return [{name: row[name] for name in names} for row in rows]


@contextmanager
def folder():
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


@contextmanager
def saving(every):
    """Save every so many seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search, "SAVED_EVERY", every)
        yield


def bytes_of(subject, scorer, **options):
    with folder() as at:
        ranking = rank_sets(subject, scorer, at / "out.parquet", **options)
        assert ranking is not None
        assert sorted(p.name for p in at.iterdir()) == ["out.parquet"]
        return (at / "out.parquet").read_bytes()


@settings(LAW, max_examples=60)
@given(subjects())
def test_a_ranking_equals_scoring_every_set_and_sorting(case):
    subject, scorer, screen, expected = case
    with folder() as at:
        ranking = rank_sets(subject, scorer, at / "out.parquet")
        rows = ranking.to_json()["rows"]
        assert pl.read_parquet(at / "out.parquet").columns == SCHEMA.names
    truth = by_hand(subject, scorer, screen, expected)
    assert columns(rows) == columns(truth)
    assert len({tuple(row["genes"]) for row in rows}) == len(rows)
    assert ranking.about["counts"]["rows"] == len(truth)
    assert ranking.about["counts"]["sets"] == len(expected)


LIVES = st.tuples(st.booleans(), st.integers(0, 12), st.sampled_from([0.0, 1e9]))


@settings(LAW, max_examples=30)
@given(subjects(), st.lists(LIVES, max_size=6))
def test_stopped_or_killed_at_any_block_and_resumed_it_is_the_same_file(case, lives):
    subject, scorer, _, _ = case
    whole = bytes_of(subject, scorer)
    with folder() as at:
        out = at / "out.parquet"
        for is_killed, blocks, every in lives:
            left = iter([False] * blocks)
            contact = Contact() if is_killed else Contact(stop=lambda left=left: next(left, True))
            mortal = Mortal(scorer, blocks if is_killed else 10**9)
            with suppress(Killed), saving(every):
                if rank_sets(subject, mortal, out, contact=contact) is None:
                    assert not out.exists()
        rank_sets(subject, scorer, out)
        assert out.read_bytes() == whole
        assert [p.name for p in at.iterdir()] == ["out.parquet"]


@LAW
@given(subjects(), st.integers(2, 4), st.integers(0, 3))
def test_any_number_of_processes_gives_the_same_file(case, world, dies):
    subject, scorer, _, _ = case
    whole = bytes_of(subject, scorer)
    with folder() as at:
        out = at / "out.parquet"
        # The first puts all together, so it comes last here, where no other runs beside it.
        for number in reversed(range(world)):
            if number == dies:
                with suppress(Killed), saving(0):
                    rank_sets(subject, Mortal(scorer, 1), out, ranks=(number, world))
            rank_sets(subject, scorer, out, ranks=(number, world))
        assert out.read_bytes() == whole
        # Given again, the first one alone has something to show.
        again = [rank_sets(subject, scorer, out, ranks=(n, world)) for n in range(world)]
        assert [ranking is not None for ranking in again] == [n == 0 for n in range(world)]
        assert [p.name for p in at.iterdir()] == ["out.parquet"]


@LAW
@given(subjects(), st.integers(1, 5), st.data())
def test_parts_that_were_killed_damaged_or_lost_merge_into_the_same_file(case, n_parts, data):
    subject, scorer, _, _ = case
    whole = bytes_of(subject, scorer)
    fates = st.sampled_from(["whole", "killed", "damaged", "lost"])
    fate_of = dict.fromkeys(range(n_parts), "whole")
    fate_of |= {part: data.draw(fates) for part in range(1, n_parts)}
    told = []
    with folder() as at:
        out = at / "out.parquet"
        for part, fate in fate_of.items():
            is_killed = fate == "killed"
            with suppress(Killed), saving(0 if is_killed else 1e9):
                mortal = Mortal(scorer, 1) if is_killed else scorer
                assert score_part(subject, mortal, out, (part, n_parts))
            state = at / "out.parquet.partial" / f"part-{part + 1}-of-{n_parts}.state"
            if fate == "damaged":
                state.write_bytes(state.read_bytes()[:-20])
            elif fate == "lost":
                state.unlink()
        merge_parts(subject, scorer, out, contact=Contact(tell=told.append))
        assert out.read_bytes() == whole
        assert [p.name for p in at.iterdir()] == ["out.parquet"]
        # A part that comes late finds the ranking.
        assert score_part(subject, scorer, out, (0, n_parts))
        assert [p.name for p in at.iterdir()] == ["out.parquet"]
    named = " ".join(sentence for sentence in told if sentence.startswith("Of "))
    for part, fate in fate_of.items():
        words = named.replace(",", "").split()
        if fate in ("damaged", "lost"):
            assert str(part + 1) in words


def test_every_part_begins_with_the_same_sets():
    n = 14
    cell = Cell([f"Y{i:02d}" for i in range(n)], [])
    screen = Screen.build(cell.genes, Genotypes.of([[0, 1]]), score=1.0)
    sets = Combinations(np.arange(n), 3, sets_per_piece=8)
    subject = subject_of(Request(TRIPLES, top=3), cell, range(n), sets, screen)
    first_scored = []
    for part in range(4):
        scorer = Additive(np.linspace(-1, 1, n), float("nan"))
        pieces = []
        candidates = scorer.candidates
        scorer.candidates = lambda piece, above, below, into=pieces, real=candidates: (
            into.append(piece) or real(piece, above, below)
        )
        with folder() as at:
            score_part(subject, scorer, at / "out", (part, 4))
        first_scored.append(pieces[0])
    assert len(first_scored[0]) > 10
    assert all(np.array_equal(sets, first_scored[0]) for sets in first_scored)


@LAW
@given(subjects(), st.integers(1, 4))
def test_a_finished_ranking_is_not_scored_again_and_leaves_no_partial_folder(case, world):
    subject, scorer, _, _ = case
    with folder() as at:
        out = at / "out.parquet"
        first = [rank_sets(subject, scorer, out, ranks=(n, world)) for n in range(world)[::-1]]
        asked = scorer.asked
        (at / "out.parquet.partial").mkdir()
        again = rank_sets(subject, scorer, out)
        assert again.to_json() == first[-1].to_json()
        # A process that looked for the file just before the first process wrote it.
        with pytest.MonkeyPatch.context() as patch:
            looks, finished = iter([lambda *_: None]), search._finished
            patch.setattr(search, "_finished", lambda *words: next(looks, finished)(*words))
            rank_sets(subject, scorer, out, ranks=(world - 1, world))
        assert scorer.asked == asked
        assert [p.name for p in at.iterdir()] == ["out.parquet"]


def test_progress_of_a_killed_ranking_is_on_the_disk():
    n = 14
    cell = Cell([f"Y{i:02d}" for i in range(n)], [])
    screen = Screen.build(cell.genes, Genotypes.of([[0, 1]]), score=1.0)
    sets = Combinations(np.arange(n), 3, sets_per_piece=8)
    subject = subject_of(Request(TRIPLES, top=3), cell, range(n), sets, screen)
    scorer = Additive(np.linspace(-1, 1, n), float("nan"), prunes=False)
    with folder() as at:
        with pytest.raises(Killed), saving(0):
            # The trial of a quarter of the blocks comes first.
            rank_sets(subject, Mortal(scorer, 30 + subject.sets.n_pieces // 4), at / "out")
        done = read_scored(at / "out.partial" / "part-1-of-1.state")[1]["done"]
        assert done == 30


def test_a_score_that_is_not_finite_is_an_error_even_of_a_set_that_is_left_out(refused):
    cell = Cell([f"Y{i:02d}" for i in range(4)], [])
    screen = Screen.build(cell.genes, Genotypes.of([[0, 1]]), score=1.0)
    subject = subject_of(Request(PAIRS), cell, range(4), Combinations(np.arange(4), 2), screen)
    scorer = Additive(np.zeros(4), 0.0)
    scorer.candidates = lambda *_: Scored(np.array([[0, 1]]), np.float32([np.nan]), np.float32([0]))
    with folder() as at:
        refused("score-not-finite", rank_sets, subject, scorer, at / "out.parquet")
        assert not (at / "out.parquet").exists()


@pytest.mark.parametrize("betas", [(0.25, 0.001), (0.25, 0.25)])
@pytest.mark.parametrize("size", [2, 3])
def test_a_model_ranks_as_scoring_every_set_does(betas, size):
    """Of a DANGO in which the last six of 15 genes cannot be told apart."""
    edges, genes = np.random.default_rng(0).integers(0, 9, (2, 40)), np.arange(15)
    relation = Relation.from_edges("a", *edges, n_genes=15, directed=False)
    cell = Cell([f"Y{i:02d}" for i in genes], [relation])
    torch.manual_seed(1)
    model = Dango(cell, ("a",), {"a": 1.0}, hidden=16, heads=2, layers=2)
    with torch.no_grad():
        model.embedding.mul_(30.0)
        model.embedding[9:] = model.embedding[-1]
        for layer, beta in zip(model.hyper_sagnn.sets.attention, betas, strict=True):
            layer.beta.fill_(beta)
    scorer = scorer_of_predictors([TrainedPredictor(model, cell, TargetScale(-0.05, 0.15))])
    request = Request({2: PAIRS, 3: TRIPLES}[size], top=25)
    screen = Screen.build(cell.genes, Genotypes.of([[0, 1]]), score=1.0)
    sets = Combinations(genes, size, sets_per_piece=5**size)
    subject = subject_of(request, cell, genes, sets, screen)
    expected = list(combinations(range(15), size))
    score = scorer.score(np.array(expected)).score
    assert len(np.unique(score)) < 0.6 * len(score)
    with folder() as at:
        rows = rank_sets(subject, scorer, at / "out.parquet").to_json()["rows"]
    truth = by_hand(subject, scorer, screen, expected)
    assert columns(rows, NAMES[:4]) == columns(truth, NAMES[:4])
