"""`start` uses a public study of which a checked copy is kept, says so, and does without."""

import hashlib

import numpy as np
import pytest

import deltacell as dc
from deltacell.api.start import StartObserver
from deltacell.base.errors import InputError
from deltacell.data import public_studies
from deltacell.data.download import DOWNLOADS
from deltacell.data.public_studies import CACHE, keep_copy, kept_studies, public_study
from deltacell.profile.record import read_run

GENES = [f"YAL{i:03}W" for i in range(1, 15)]
PAIRS = [(a, b) for a in range(14) for b in range(a + 1, 14)]


class Sentences(StartObserver):
    """Keeps the sentences that it is told."""

    def __init__(self):
        self.told = []

    def tell(self, sentence):
        self.told.append(sentence)


def table_of(pairs, scores):
    rows = [f"{GENES[a]}\t{GENES[b]}\t{score}" for (a, b), score in zip(pairs, scores, strict=True)]
    return "gene1\tgene2\tscore\n" + "\n".join(rows) + "\n"


@pytest.fixture
def folder(tmp_path):
    """A table of 40 pairs."""
    rng = np.random.default_rng(0)
    folder = tmp_path / "tables"
    folder.mkdir()
    chosen = [PAIRS[i] for i in rng.permutation(len(PAIRS))[:40]]
    (folder / "mine.tsv").write_text(table_of(chosen, rng.normal(size=40).round(4)))
    return folder


@pytest.fixture
def keep(tmp_path, monkeypatch):
    """Return a function that keeps a table as the public study ``known2010``."""
    monkeypatch.setenv(CACHE, str(tmp_path / "cache"))

    def kept(text):
        path = tmp_path / "known2010.tsv"
        path.write_text(text)
        sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
        about = {"name": "known2010", "file": path.name, "sha256": sha256}
        download = DOWNLOADS["costanzo2010"]._replace(**about)
        monkeypatch.setitem(DOWNLOADS, "known2010", download)
        monkeypatch.setattr(public_studies, "PUBLIC_STUDIES", ("known2010",))
        return keep_copy(download, path)

    return kept


def others(seed=1):
    rng = np.random.default_rng(seed)
    return table_of(PAIRS[:60], (5 - 3 * rng.normal(size=60)).round(4))


def started(folder, out, observer=None, **options):
    settings = ["model.rounds=3", "trainer.progress=false"]
    words = {"settings": settings, "refit": False, "top": 3, "progress": False, **options}
    return dc.start(folder, out, observer=observer, **words)


def test_a_kept_study_of_the_same_genes_is_used_told_and_recorded(folder, keep, tmp_path):
    copy = keep(others())
    observer = Sentences()
    out = tmp_path / "results"
    run = started(folder, out, observer).run
    [facts] = run.record.context
    assert facts.name == "known2010"
    assert facts.checksum == dc.Screen.load(out / "context" / "known2010").checksum
    [source] = dc.Screen.load(out / "context" / "known2010").sources
    assert source.sha256 == hashlib.sha256(copy.read_bytes()).hexdigest()
    assert any("known2010" in sentence for sentence in observer.told)
    # A later call needs no copy.
    copy.unlink()
    assert started(folder, out).run.record.context == (facts,)
    without = started(folder, tmp_path / "without", context=[])
    assert without.run.record.context == ()


def test_a_kept_study_can_be_named_and_is_left_out_by_none(folder, keep, tmp_path):
    keep(others())
    named = started(folder, tmp_path / "named", context=["known2010"])
    assert [facts.name for facts in named.run.record.context] == ["known2010"]
    alone = started(folder, tmp_path / "alone", context=[])
    assert read_run(alone.run.path).context == ()


@pytest.mark.parametrize("kind", ["repeated", "foreign"])
def test_a_study_that_repeats_the_target_or_has_other_genes_is_not_used(
    folder, keep, tmp_path, kind
):
    own = (folder / "mine.tsv").read_text()
    keep(own if kind == "repeated" else others().replace("YAL", "SPAC"))
    observer = Sentences()
    run = started(folder, tmp_path / "results", observer).run
    assert run.record.context == ()
    assert any("known2010" in sentence for sentence in observer.told) == (kind == "repeated")


def test_a_damaged_copy_is_an_error(keep, refused):
    copy = keep(others())
    [study] = kept_studies()
    genes = dc.Cell(GENES, []).genes
    assert len(public_study("known2010", genes)) == len(study.screen_on(genes)) == 60
    copy.write_text("damaged")
    refused("wrong-checksum", kept_studies)
    copy.unlink()
    with pytest.raises(InputError) as error:
        public_study("known2010", genes)
    assert error.value.code == "no-public-study"
