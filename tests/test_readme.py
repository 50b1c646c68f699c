"""What README.md and docs/ show is run, parsed and compared as it stands there.

pytest tests/test_readme.py
"""

import argparse
import ast
import importlib
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import SCRIPTS, lines_of

import claims
import data
import exp_range
import exp_spt
import floors
import records
import rule
import tables

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text("utf-8")
PAGES = {path.stem: path.read_text("utf-8") for path in sorted((ROOT / "docs").glob("*.md"))}
WANTED = (ROOT / "NOTES.md").read_text("utf-8").split("## Wanted runs")[1].split("\n## ")[0]


def test_links_lead_somewhere_and_no_placeholder_is_left():
    for page, text in [("README.md", README), *((f"docs/{name}.md", text) for name, text in PAGES.items())]:
        assert not re.search("@[A-Z]+@", text), page
        for link in re.findall(r"\]\(([^)#]+)[^)]*\)", text):
            assert link.startswith("https://") or ((ROOT / page).parent / link).exists(), (page, link)


# ------------------------------------------------------------------------------------------ a new experiment

TEMPLATE = (ROOT / "exp_template.py").read_text("utf-8")


def run(code, folder, *flags):
    """Run a script with this code in `folder` -> (its output, the one record)."""
    (folder / "exp_mine.py").write_text(code)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "exp_mine.py", *flags]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    [record] = lines_of(folder / "runs" / "results.jsonl")
    return done.stdout, record


@pytest.mark.processes
def test_the_template_is_an_experiment(tmp_path):
    """Its task is learnt within seconds, and the plain report shows it."""
    flags = "--task majority --epochs 12 --limit 500 --lr 3e-3".split()
    _, record = run(TEMPLATE, tmp_path, *flags)
    assert (record["exp"], record["task"], record["limit"]) == ("mine", "majority", 500)
    assert record["data"]["from"] == "generated" and record["test_acc"] > 0.9
    table, _ = run(TEMPLATE, tmp_path, "--report")
    assert "| 500 examples, 12 epochs, lr " in table and "|   running mean " in table


@pytest.mark.processes
def test_a_file_is_a_task_by_the_line_of_the_page(tmp_path):
    lines = (f"{'good' if i % 3 else 'bad'}\t{'so ' * (i % 5)}{i % 3}\n" for i in range(100))
    (tmp_path / "reviews.tsv").write_text("".join(lines))
    line = "data." + re.search(r"load_tsv\(.*\)", PAGES["new-experiment"])[0]
    code = TEMPLATE.replace("task = majority(args.limit)", f"task = {line}").replace('"majority', '"reviews')
    _, record = run(code, tmp_path, "--task", "reviews", "--epochs", "1")
    assert record["task"] == "reviews" and record["data"]["counts"] == {"train": 80, "val": 10, "test": 10}


@pytest.mark.processes
def test_a_block_of_the_page_runs_in_a_copy_after_three_edits(tmp_path):
    block, name, recipe, *_ = re.findall(r"```python\n(.*?)```", PAGES["new-experiment"], re.DOTALL)
    code = (ROOT / "exp_kernels.py").read_text("utf-8")
    places = {
        "import records\n": f"import records\n\n{block}\n{name}",
        "# The mini tier": f"{recipe}# The mini tier",
    }
    for place, text in places.items():
        assert code.count(place) == 1
        code = code.replace(place, text)
    printed, record = run(code, tmp_path, "--task", "listops", "--model", "mine", "--smoke")
    assert (record["row"], record["model"], record["cell"]) == ("mine", "mine", {})
    assert "reads padding" not in printed
    assert record["data"]["from"] == "generated"  # a smoke run of ListOps needs nothing but the repository
    assert {path.name for path in tmp_path.iterdir()} == {"exp_mine.py", "runs"}  # and leaves nothing else


def test_a_trained_model_is_used_as_the_readme_says(monkeypatch, capsys):
    """Its two sentences; and two clear ones of ours, which it has not been chosen by."""
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    monkeypatch.chdir(ROOT)
    exec(code, names := {})
    assert capsys.readouterr().out.startswith("[[")
    clear = "One of the best films I have ever seen.", "One of the worst films I have ever seen."
    for sentences in (None, clear):
        ids, mask = data.encode(sentences) if sentences else (names["ids"], names["mask"])
        good, bad = names["model"].classify(names["model"](ids, mask), mask).sigmoid().flatten().tolist()
        assert good > 0.9 and bad < 0.1


def test_the_first_table_is_that_of_the_records():
    """And the numbers of the four points below the picture are its, a task's first rule each."""
    table = floors.table(floors.floors())
    assert table in README and table in PAGES["floors"]
    firsts = [line.split("|")[3].split("±")[0].strip() for line in table.splitlines()[2:] if line[2] != " "]
    assert re.findall(r"\*\*(\d+\.\d) %\*\*", README) == firsts
    (trained,) = re.findall(r"the rule learns nothing: (\S+), and (\S+) with sums guessed", README)
    assert [*trained] == re.findall(r"in training (\d+\.\d)", floors.listed(floors.floors()))


@pytest.mark.parametrize(
    "said, task, cell",
    [
        ("the first 512 symbols alone has", "listops", dict(rule="prefix", P=512, sm="known")),
        ("every nested argument guessed it still has", "listops", dict(rule="window", W=0, sm="known")),
        ("Words and pairs of words have", "text", dict(n=2, gap=1, weights="bayes", unit="word")),
        ("1,600 typical patches", "image", dict(patch="6x6", centres=1600, pool="quarters")),
    ],
)
def test_another_rule_has_what_its_record_has(said, task, cell):
    (record,) = tables.floor_of(records.published(), task, {"cell": cell})
    assert re.findall(rf"{said} (\d+\.\d)", README) == [f"{100 * record['test_acc']:.1f}"]


@pytest.fixture(scope="module")
def judged():
    """The rows of claims.tsv, judged by the records of this repository."""
    mini = rule.read(None)
    return [rule.judge(row, mini) for row in rule.read_rows(ROOT / "claims.tsv", rule.printed_cells())]


def test_what_the_mini_tier_is_worth_is_said_as_in_the_claims():
    """The signs of all pairs, the large ones here, and those that are close in a paper."""
    mini = rule.read(None)
    pairs = [rule.judge(pair, mini) for pair in claims.all_pairs(rule.printed_cells(), mini)]
    large = [pair for pair in pairs if abs(pair.numbers[0]) >= 5]
    level = [pair for pair in large if pair.row.expected <= 2]
    right = [pair for pair in large if pair not in level and pair.numbers[0] > 0]  # better in the paper, too
    counts = len(right), len(large) - len(right) - len(level), len(level)
    said = "Of {} pairs of rows {} are at least 5 points apart here. Of these, {} have the paper's sign and "
    said += "{} the other; {} are at most 2 points apart in the paper."
    assert said.format(len(pairs), len(large), *counts) in README
    page = " ".join(PAGES["claims"].split())
    assert "here, {} have the paper's sign and {} the other; for {} the".format(*counts) in page
    (image,) = (pair for pair in pairs if pair.row.words == "Image: K=31 over K=5")
    said = "in A, K = 31 is {:.1f} points above K = 5 on Image; here it is {:.1f} above."
    assert said.format(image.row.expected, image.numbers[0]) in README
    small = [pair.answer for pair in claims.by_size(pairs)[-1]]
    said = "Of all {} that are that close in the papers, {} are further apart here, and {} are open:"
    assert said.format(len(small), small.count("no"), small.count("open")) in README and "yes" not in small


def test_the_papers_sentences_came_as_often_as_in_the_claims(judged):
    """All of them; and of each sentence of the table its gaps between two rows, and their tasks."""
    kinds = ("yes", "better"), ("no",), ("open",)

    def counts(rows):
        return [sum(one.answer in kind for one in rows) for kind in kinds]

    papers = [one for one in judged if one.row.heading.who in claims.PAPERS]
    of_two = [one for one in papers if len(one.row.cells) == 2]
    every, twice = counts(papers), sum(counts(papers)) - sum(counts(of_two))
    said = "by {} gaps, some of longer runs, and {} differences of two gaps (does SPT help one model more "
    said += (
        "than another?): {} came as said or better, {} did not, and {} are open ({} of them can only be as "
    )
    said += "said or better)."
    either = sum(claims.suits_anyhow(one) for one in papers if one.numbers)
    assert said.format(sum(every) - twice, twice, *every, either) in README
    table = re.findall(r"^\| ([AB]): (.*?) \| (\d.*?) \| (\d.*?) \| (\d.*?) \|$", README, re.MULTILINE)
    sentences = {one.row.heading for one in papers}
    assert f"for the main sentences ({len(table)} of {len(sentences)}):" in README and len(table) == 8
    for who, sentence, *columns in table:
        rows = [one for one in of_two if (one.row.heading.who, one.row.heading.short) == (who, sentence)]
        for said, answers in zip(columns, kinds):
            names = [re.match(r"\w+", one.row.words)[0] for one in rows if one.answer in answers]
            number, *tasks = re.findall(r"\w+", said)
            assert int(number) == len(names) and {*tasks} == {*names}, (sentence, said)


def test_the_dial_loses_and_keeps_what_the_readme_says(judged):
    said = r"K = 5 loses (\S+) points: .*? loses (\S+) points \(95 % interval: (.*?)\):"
    (lost,) = re.findall(said, README)
    dial = {one.row.name: one.numbers for one in judged}
    (k5, *_), (gmlp, _, low, high) = dial["k5-text-16"], dial["gmlp-text-16"]
    assert lost == (f"{k5:.1f}", f"{gmlp:.1f}", f"{low:.1f} to {high:.1f}")
    (kept,) = re.findall(r"it keeps only (\d+ %) of its lead over the bag", README)
    assert f"S4 {kept}\n" in claims.report_of(exp_range, "--mini", "--task", "text")


def test_what_a_start_is_worth_is_said_as_in_the_report():
    pytest.importorskip("matplotlib")
    (table,) = re.findall(r"\| S4 \| .*?\n\n", PAGES["findings"], re.DOTALL)
    printed = claims.report_of(exp_spt, "--mini", "--all-tiers", "--task", "image")
    for line in table.strip().splitlines():
        name, *cells = re.split(r" *\| *", line)[1:-1]
        model = name.split(",")[0]
        (found,) = re.findall(rf"\| {model}'s start over a random one: .*\n((?:\|   .*\n)+)", printed)
        known = {*re.findall(r"\+?(-?\d+\.\d \[.*?\]) ", found)}
        known |= {numbers.split()[0] for numbers in known}  # from scratch they stand without an interval
        assert any(cells) and {*filter(None, cells)} <= known, name


# ------------------------------------------------------------------------------------------ commands


def commands():
    """Every command that README, docs/ (but its dated log) and the wanted runs quote: fenced, in backticks,
    or as flags beside a script in the first column of a table. -> (script, *argv)"""
    pages = [page for name, page in PAGES.items() if name != "notebook"]
    text = "\n".join([README, WANTED, *pages]).replace("$SLURM_ARRAY_TASK_ID", "5")
    blocks = re.findall(r"```bash\n(.*?)```", text, re.DOTALL)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    lines += [" ".join(code.split()) for code in re.findall(r"`([^`]*)`", prose)]
    rows = re.findall(r"^\| `(\w+\.py)` \|(.*)$", text, re.MULTILINE)
    lines += [f"python {script} {flags}" for script, row in rows for flags in re.findall("`(--[^`]+)`", row)]
    start = r"(?:^|\s|/)(?:python|torchrun [-\w ]+?) (\w+)\.py(?!\w)(.*)"
    found = [re.search(start, re.sub(r"\s+(#.*|&$)", "", line)) for line in lines]
    quoted = {(m[1], *shlex.split(m[2])) for m in found if m}
    return sorted(command for command in quoted if not command[0].startswith(("exp_mine", "my")))


def test_every_script_is_named_and_the_first_two_commands_install_what_they_need():
    assert [n for n in ("data", "bench", "claims", "floors", *SCRIPTS) if f"{n}.py" not in README] == []
    for block in re.findall(r"^```\w*\n(.*?)```", README, re.DOTALL | re.MULTILINE)[:2]:
        assert ".venv/bin/pip install -r requirements.txt && " in block


@pytest.mark.parametrize("command", commands(), ids=" ".join)
def test_every_command_parses(command, reached, monkeypatch):
    script, *argv = command
    module = importlib.import_module(script)

    def begun(*args, **more):
        raise reached

    monkeypatch.setattr(data, "require", lambda names, args: names)  # as if Retrieval had been fetched
    monkeypatch.setattr(records, "run_cell", begun)
    for name in ("report", "plot_curves"):
        monkeypatch.setattr(tables, name, begun)
    if script in ("bench", "claims", "data", "floors"):  # which begin at once
        parse = argparse.ArgumentParser.parse_args
        monkeypatch.setattr(argparse.ArgumentParser, "parse_args", lambda *words: begun(parse(*words)))
    with pytest.raises(reached):
        module.main(argv)


@pytest.mark.parametrize("code, requeued", [(0, False), (1, False), (75, True)])
def test_the_slurm_lines_keep_the_exit_code(code, requeued, tmp_path):
    """With stand-ins for python and scontrol: 75 is put back into the queue, a crash stays a crash."""
    (script,) = re.findall(r"```bash\n(#!/bin/bash\n#SBATCH.*?)```", PAGES["gpu"], re.DOTALL)
    for name, line in ((".venv/bin/python", f"exit {code}"), ("scontrol", 'echo "$@" > requeued')):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"#!/bin/bash\n{line}\n")
        (tmp_path / name).chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "SLURM_JOB_ID": "7"}
    assert subprocess.run(["bash", "-c", script], cwd=tmp_path, env=environment).returncode == code
    assert (tmp_path / "requeued").exists() == requeued


# ------------------------------------------------------------------------------------------ numbers


def test_records_of_this_repository_are_real_runs_of_committed_code():
    read = records.read_records(sorted((ROOT / "results").glob("*.jsonl")))
    assert read and not any(r["smoke"] or r["dirty"] for r in read)


@pytest.mark.parametrize("page", ["README.md", "docs/findings.md"])
def test_a_number_with_its_error_stands_in_a_written_page(page):
    """What a page says was measured, "+4.9 ± 0.8", stands in docs/claims.md or docs/results.md."""
    known = "\n".join(PAGES[name] for name in ("claims", "results"))
    text = (ROOT / page).read_text("utf-8") if (ROOT / page).exists() else ""
    signed, bare = r"[-+]\d+\.\d+ ± \d+\.\d+", r"\d+\.\d+ ± \d+\.\d+"
    assert {*re.findall(signed, text)} <= {*re.findall(signed, known)}
    assert {*re.findall(bare, text)} <= {*re.findall(bare, known)}


# ------------------------------------------------------------------------------------------ deviations


def places():
    """(file, function or class or table) of every `deviation:` in the code: the statement that holds it,
    else, of a comment, the one below it."""
    for path in sorted(ROOT.glob("*.py")):
        code = path.read_text("utf-8")
        tops = ast.parse(code).body
        for number, line in enumerate(code.splitlines(), 1):
            if "deviation:" in line:
                top = next(node for node in tops if node.end_lineno >= number)
                yield path.name, getattr(top, "name", None) or top.targets[0].id


def test_the_page_of_deviations_lists_those_of_the_code():
    listed = re.findall(r"^- `(\w+\.py)`, `(\w+)`: ", PAGES["deviations"], re.MULTILINE)
    assert sorted(listed) == sorted(places())
