"""`deltacell predict --part` and `--merge`, their jobs on a cluster, and parts that are killed."""

import os
import random
import shlex
import subprocess
import sys

import pytest
from ranking_parts import Parts

N_PARTS = 4

SBATCH = f"""#!{sys.executable}
import os, re, subprocess, sys

script = sys.stdin.read()
with open("submitted.txt", "a") as file:
    file.write(" ".join(sys.argv[1:]) + "\\n")
array = re.search("--array=1-([0-9]+)", script)
for number in range(1, 1 + int(array[1]) if array else 2):
    if array and str(number) == os.environ.get("LOST"):
        continue
    environment = dict(os.environ, SLURM_ARRAY_TASK_ID=str(number))
    done = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True)
    with open("slurm.out", "a") as file:
        file.write(done.stdout + done.stderr)
print("71;cluster" if array else "Submitted batch job 72")
"""
SRUN = '#!/bin/bash\nwhile [[ $1 == --* ]]; do shift; done\nexec "$@"\n'


@pytest.fixture
def few(tmp_path, runs):
    """Some genes, and the words of a ranking of their pairs."""
    from deltacell.train.loaded_runs import load_run

    genes = list(load_run(runs["hetero"]).data.cell.genes)[::8]
    (tmp_path / "few.txt").write_text("\n".join(genes))
    return ("predict", runs["hetero"], "--sets", "pairs", "--top", "20", "--genes", "few.txt")


def test_parts_merge_into_the_file_of_one_process(few, tmp_path, deltacell, mistake):
    deltacell(*few, "--out", "one.parquet")
    mistake("no-parts", *few, "--out", "parts.parquet", "--merge")
    for number in (3, 1):
        said = deltacell(*few, "--out", "parts.parquet", "--part", f"{number}/3").stderr
        assert f"part {number} of 3" in said
    mistake("other-request", *few, "--out", "parts.parquet", "--part", "2/4")
    damaged = tmp_path / "parts.parquet.partial" / "part-3-of-3.state"
    damaged.write_bytes(damaged.read_bytes()[:100])
    merged = deltacell(*few, "--out", "parts.parquet", "--merge", "--csv", "rows.csv")
    assert "part 2 is missing" in merged.stderr
    assert "part 3 is damaged" in merged.stderr
    whole = (tmp_path / "one.parquet").read_bytes()
    assert (tmp_path / "parts.parquet").read_bytes() == whole
    assert (tmp_path / "rows.csv").is_file()
    assert not (tmp_path / "parts.parquet.partial").exists()


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--part", "5/4"], "invalid-part"),
        (["--part", "1/4", "--merge"], "conflicting-settings"),
        (["--part", "1/4", "--html", "p.html"], "conflicting-settings"),
    ],
)
def test_wrong_parts_are_refused(words, code, few, mistake, tmp_path):
    mistake(code, *few, *words)
    assert [path.name for path in tmp_path.iterdir()] == ["few.txt"]


def test_a_mistake_in_a_job_is_found_before_it_is_queued(few, mistake, capsys):
    _, run, *words = few
    jobs = ("slurm", "predict", "--parts", "3")
    mistake("not-a-run", *jobs, "none", *words)
    mistake("unknown-sets", *jobs, run, "--sets", "tripels")
    mistake("conflicting-settings", *jobs, run, *words, "--part", "1/3")
    mistake("not-for-slurm", *jobs, run, *words, "--time", "1 day")
    mistake("not-a-run", "slurm", "evaluate", "none")
    assert capsys.readouterr().out == ""


def test_the_job_of_an_evaluation_has_its_options(runs, deltacell):
    words = ("--json", "my scores.json", "--mem", "16G", "--baselines", "additive")
    script = deltacell("slurm", "evaluate", runs["seed0"], *words).stdout
    assert "#SBATCH --mem=16G" in script
    [line] = [line for line in script.splitlines() if line.startswith("exec srun")]
    typed = shlex.split(line)
    assert typed[typed.index("evaluate") :] == [
        *("evaluate", str(runs["seed0"]), "--baselines=additive", "--device=cpu"),
        "--json=my scores.json",
    ]


@pytest.mark.slow
def test_an_array_and_a_job_that_merges_make_the_ranking(few, tmp_path, deltacell):
    deltacell(*few, "--out", "one.parquet")
    _, *words = few
    asked = ("--out", "parts.parquet", "--html", "the page.html", "--parts", "3")
    (tmp_path / "rank.sh").write_text(deltacell("slurm", "predict", *words, *asked).stdout)
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in (("sbatch", SBATCH), ("srun", SRUN)):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    path = f"{programs}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "LOST": "2", "NO_COLOR": "1"}
    subprocess.run(["bash", "rank.sh"], cwd=tmp_path, env=environment, check=True)
    submitted = (tmp_path / "submitted.txt").read_text().splitlines()
    assert submitted == ["--parsable", "--dependency=afterany:71"]
    assert "part 2 is missing" in (tmp_path / "slurm.out").read_text()
    whole = (tmp_path / "one.parquet").read_bytes()
    assert (tmp_path / "parts.parquet").read_bytes() == whole
    assert (tmp_path / "the page.html").is_file()


@pytest.mark.parametrize(
    "n_kills",
    [pytest.param(4, marks=pytest.mark.slow), pytest.param(50, marks=pytest.mark.full)],
)
def test_parts_that_are_killed_at_random_merge_into_the_same_file(
    n_kills,
    few,
    tmp_path,
    deltacell,
):
    """Parts are killed without warning, at random times, and so is the merge."""
    deltacell(*few, "--out", "one.parquet")
    out = tmp_path / "parts.parquet"
    genes = str(tmp_path / "few.txt")
    parts = Parts(N_PARTS, runs=few[1], sets="pairs", top=20, genes=genes)
    seconds = parts.seconds_of_a_part(tmp_path / "timed.parquet")
    draw = random.Random(n_kills)
    n_hit = 0
    for _ in range(n_kills):
        n_hit += parts.killed(out, draw.randint(1, N_PARTS), draw.uniform(0, seconds))
    assert n_hit >= n_kills / 2
    deltacell(*few, "--out", out, "--part", f"2/{N_PARTS}")
    parts.killed(out, None, draw.uniform(0, seconds))
    deltacell(*few, "--out", out, "--merge")
    assert out.read_bytes() == (tmp_path / "one.parquet").read_bytes()
    assert not (tmp_path / "parts.parquet.partial").exists()
