"""What README.md and docs/ show is run, parsed and compared as it stands there.

PYTHONPATH=. python tests/test_readme.py    writes docs/tables-mini.md and docs/tables-full.md anew
"""

import ast
import contextlib
import importlib
import io
import json
import math
import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch

import claims
import common
import data
import models
import records

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
PAGES = {path.stem: path.read_text() for path in sorted((ROOT / "docs").glob("*.md"))}
WANTED = (ROOT / "NOTES.md").read_text().split("## Wanted runs")[1].split("\n## ")[0]
TEXT = "\n".join([README, WANTED, *PAGES.values()])
PRINTED = {  # pages that the scripts print, and their first lines
    "tables-mini": "# Tables of the mini tier\n\nSmall data and small models, trained to the end.",
    "tables-full": "# Tables of the papers' models\n\nAll runs so far have a fraction of the papers' steps.",
}
EXPERIMENTS = ("locality", "multitask", "kernels", "positional", "listops", "spt", "range")


def test_pages_stay_short():
    assert len(README.splitlines()) <= 160
    lines = {name: len(page.splitlines()) for name, page in PAGES.items() if name not in PRINTED}
    assert {name: n for name, n in lines.items() if n > 120} == {}


def test_links_lead_somewhere():
    for page, text in [("README.md", README), *((f"docs/{name}.md", text) for name, text in PAGES.items())]:
        for link in re.findall(r"\]\(([^)#]+)[^)]*\)", text):
            assert link.startswith("https://") or ((ROOT / page).parent / link).exists(), (page, link)


# ------------------------------------------------------------------------------------------ a new experiment

EXAMPLE, TSV, TASK = re.findall(r"```python\n(.*?)```", PAGES["new-experiment"], re.DOTALL)


def run(code, folder, *flags):
    """Run a script with this code in `folder` -> (its output, the records of all its runs)."""
    (folder / "exp_mine.py").write_text(code)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "exp_mine.py", *flags]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = (folder / "runs" / "results.jsonl").read_text().splitlines()
    return done.stdout, [json.loads(line) for line in lines]


def with_task(line, definition=""):
    """The example with another line in place of data.load(...)."""
    changed, calls = re.subn(r"task = data\.load\(.*\)\n", lambda _: line.strip() + "\n", EXAMPLE)
    assert calls == 1
    return changed.replace("def run_cell", definition + "\ndef run_cell")


def test_the_worked_example_is_an_experiment(tmp_path):
    _, (record,) = run(EXAMPLE, tmp_path, "--task", "listops", "--smoke", "--epochs", "2")
    assert record["exp"] == "mine" and record["hp"]["epochs"] == 2 and record["smoke"]
    assert record["data"]["from"] == "generated" and 0 < record["test_acc"] < 1


def test_the_worked_task_is_a_task(tmp_path):
    """Running means see a majority: it is learnt within seconds. The plain report shows it."""
    code = with_task("task = majority(args.limit)", TASK)
    _, (record,) = run(code, tmp_path, "--task", "listops", "--epochs", "6", "--lr", "3e-3", "--limit", "500")
    assert record["task"] == "majority" and record["data"]["from"] == "generated"
    assert record["test_acc"] > 0.9 and record["limit"] == 500 and record["steps"] == 6 * 16
    table, _ = run(code, tmp_path, "--report")
    assert re.search(r"majority .*500 examples.*\(n=1\)", table)


def test_the_worked_file_is_a_task(tmp_path):
    lines = (f"{'good' if i % 3 else 'bad'}\t{'so ' * (i % 5)}{i % 3}\n" for i in range(100))
    (tmp_path / "reviews.tsv").write_text("".join(lines))
    _, (record,) = run(with_task(TSV), tmp_path, "--task", "text", "--epochs", "1")
    assert record["task"] == "reviews" and record["data"]["counts"] == {"train": 80, "val": 10, "test": 10}


@pytest.mark.parametrize("code", [EXAMPLE, TASK], ids=["experiment", "task"])
def test_the_examples_stay_short(code):
    assert len([line for line in code.splitlines() if line.strip()]) < 40


def test_a_trained_model_loads_as_the_readme_says(tmp_path, monkeypatch):
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    model = models.SequenceModel("conv", 1, 4, 17, 10, d_hidden=4, kernel=3)
    (tmp_path / "runs" / "RUN").mkdir(parents=True)
    saved = {"model": model.state_dict(), "arguments": model.arguments}
    common.save_checkpoint(tmp_path / "runs" / "RUN" / "best.pt", saved)
    monkeypatch.chdir(tmp_path)
    exec(code, names := {})
    assert torch.equal(names["model"].embedding.weight, model.embedding.weight)


# ------------------------------------------------------------------------------------------ commands


def commands():
    """Every command that README, docs/ and the wanted runs quote, fenced or in backticks: (script, *argv)."""
    text = TEXT.replace("$SLURM_ARRAY_TASK_ID", "5")
    blocks = re.findall(r"```bash\n(.*?)```", text, re.DOTALL)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    lines += re.findall(r"`([^`\n]*\b\w+\.py[^`\n]*)`", text)
    start = r"(?:^|\s|/)(?:python|torchrun [-\w ]+?) (\w+)\.py(?!\w)(.*)"
    found = [re.search(start, re.sub(r"\s+(#.*|&$)", "", line)) for line in lines]
    quoted = {(m[1], *shlex.split(m[2])) for m in found if m}
    return sorted(command for command in quoted if command[0] != "exp_mine")


def test_every_script_is_quoted():
    scripts = {"data", "bench", "claims", *(f"exp_{name}" for name in EXPERIMENTS)}
    assert scripts == {name for name, *_ in commands()}


@pytest.mark.parametrize("command", commands(), ids=" ".join)
def test_every_command_parses(command, reached, monkeypatch):
    script, *argv = command
    module = importlib.import_module(script)

    def begun(*args):
        raise reached

    monkeypatch.setattr(data, "require", lambda names, args: names)  # as if Retrieval had been fetched
    monkeypatch.setattr(records, "report_records", begun)
    if script == "bench":
        monkeypatch.setattr(module, "PARTS", dict.fromkeys(module.PARTS, begun))
    if "--check" in argv:
        module.main(argv)
    else:
        with pytest.raises(reached):
            module.main(argv)


def test_the_first_commands_stand_alone():
    """Each makes its environment and installs what it needs."""
    first, second = re.findall(r"^(python3 -m venv .*requirements\.txt.*)$", README, re.MULTILINE)
    install = "python3 -m venv .venv && .venv/bin/pip install -r requirements.txt && .venv/bin/python "
    assert first == install + "exp_locality.py --task listops --kernel 5 31 --mini"
    assert second == install + "-m pytest"


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


def printed():
    """{page: text} of PRINTED: the sections with measured numbers ("n=") of what the scripts report of the
    records in results/."""
    files, sections = sorted(map(str, (ROOT / "results").glob("*.jsonl"))), []
    with tempfile.TemporaryDirectory() as out:
        for name in EXPERIMENTS:
            script = importlib.import_module(f"exp_{name}")
            with contextlib.redirect_stdout(io.StringIO()) as text:
                script.main(["--report", *files, "--out", out])
            text = re.sub(r"^figure: .*\n", "", text.getvalue(), flags=re.MULTILINE)
            sections += re.split(r"^(?=### )", text, flags=re.MULTILINE)
    pages = {
        page: f"{title} What the scripts print with `--report`.\n[How to read them](results.md).\n"
        for page, title in PRINTED.items()
    }
    for section in sections:
        if "n=" in section:
            pages["tables-mini" if "mini" in section.splitlines()[0] else "tables-full"] += (
                f"\n{section.strip()}\n"
            )
    return pages


def test_tables_show_what_the_scripts_print():
    read = records.read_records(sorted((ROOT / "results").glob("*.jsonl")))
    assert read and not any(r["smoke"] or r["dirty"] for r in read)
    shown = {page: PAGES[page] for page in PRINTED}
    assert shown == printed(), "PYTHONPATH=. python tests/test_readme.py writes them"


def test_the_picture_of_claims_shows_every_verdict(tmp_path):
    shown = [row for _, row in claims.decided(tmp_path)]
    verdicts = re.findall(r"(supports|CONTRADICTS|beyond this tier) *\|$", PAGES["tables-mini"], re.MULTILINE)
    assert [row.verdict for row in shown] == verdicts and len(verdicts) > 10
    sides = {row.claim: (row.low, row.high) for row in shown}
    assert sides["Image: K = 31 over K = 5"] == (5, math.inf)
    assert sides["Text: K = 31 against K = 5"] == (-1.5, 1.5)


def test_readme_has_no_number_of_its_own():
    """Measured accuracies in README's table of findings stand on the pages of results, too."""
    (table,) = (
        t for t in re.findall(r"(?:^\|.*\n)+", README, re.MULTILINE) if "verdict" in t.splitlines()[0]
    )
    evidence = [line.split("|")[3] for line in table.splitlines()[2:]]
    numbers = re.findall(r"\d\d\.\d+", " ".join(evidence))
    there = "".join(PAGES[page] for page in ("results", "dial", "self-pretraining", *PRINTED))
    assert numbers and {n for n in numbers if n not in there} == set()


# ------------------------------------------------------------------------------------------ deviations


def places():
    """(file, function or class or table) of every `deviation:` in the code."""
    found = []
    for path in sorted(ROOT.glob("*.py")):
        lines = path.read_text().splitlines()
        tops = [n for n in ast.parse("\n".join(lines)).body if isinstance(n, ast.stmt)]
        for number, line in enumerate(lines, 1):
            for _ in range(line.count("deviation:")):
                # the statement that holds the line, else, of a comment, the one below it
                top = next(node for node in tops if node.end_lineno >= number)
                found.append((path.name, getattr(top, "name", None) or top.targets[0].id))
    return found


def test_the_page_of_deviations_lists_those_of_the_code():
    listed = re.findall(r"^- `(\w+\.py)`, `(\w+)`: ", PAGES["deviations"], re.MULTILINE)
    assert sorted(listed) == sorted(places())


if __name__ == "__main__":
    for name, page in printed().items():
        (ROOT / "docs" / f"{name}.md").write_text(page)
