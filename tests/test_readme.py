"""What README.md tells newcomers to type is run as it stands there. pytest tests/test_readme.py"""

import importlib
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import SCRIPTS

import common
import data
import exp_locality

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
EXAMPLE, TASK = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def run(code, folder, *flags):
    """The record of the one cell that a script with this code trains in `folder`."""
    (folder / "exp_mine.py").write_text(code)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "exp_mine.py", "--task", "listops", "--smoke", *flags]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (line,) = (folder / "runs" / "results.jsonl").read_text().splitlines()
    return json.loads(line)


def test_the_worked_example_is_an_experiment(tmp_path):
    record = run(EXAMPLE, tmp_path, "--epochs", "2")
    assert record["exp"] == "mine" and record["hp"]["epochs"] == 2 and record["smoke"]
    assert record["data"]["from"] == "generated" and 0 < record["test_acc"] < 1


def test_the_worked_task_is_a_task(tmp_path):
    """Running means see a majority: it is learnt within seconds."""
    head, definition, rest = re.split(r"^(parser = .*)$", EXAMPLE, maxsplit=1, flags=re.MULTILINE)
    rest, calls = re.subn(r"data\.load\(.*\)", "majority()", rest)
    assert calls == 1
    record = run(head + TASK + definition + rest, tmp_path, "--epochs", "6", "--lr", "3e-3")
    assert record["task"] == "majority" and record["data"]["from"] == "generated"
    assert record["test_acc"] > 0.9


@pytest.mark.parametrize("code", [EXAMPLE, TASK], ids=["experiment", "task"])
def test_the_examples_stay_short(code):
    assert len([line for line in code.splitlines() if line.strip()]) < 32


def readme_commands():
    """Every `python <script>.py ...` of README, in fenced blocks and in backticks, as (script, argv)."""
    text = README.replace("$SLURM_ARRAY_TASK_ID", "5")
    blocks = re.findall(r"```(?:bash|sh)\n(.*?)```", text, re.DOTALL)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    lines += re.findall(r"`(python \w+\.py[^`]*)`", text)
    found = [re.search(r"(?:^|\s)python (\w+)\.py(.*)", re.sub(r"\s+#.*", "", line)) for line in lines]
    return sorted({(m[1], *shlex.split(m[2])) for m in found if m})


def test_readme_quotes_a_command_of_every_script():
    assert {"data", "bench", *SCRIPTS} == {command[0] for command in readme_commands()}


def test_readme_shows_what_the_recorded_results_say(tmp_path, capsys):
    files = sorted(map(str, (ROOT / "results").glob("*.jsonl")))
    records = common.read_records(map(Path, files))
    assert records and not any(r["smoke"] or r["dirty"] for r in records)
    exp_locality.main(["--report", *files, "--out", str(tmp_path)])
    reduced = capsys.readouterr().out.split("### Table 1 at reduced budgets")[1]
    table = [line for line in reduced.splitlines() if line.startswith("|")]
    assert len(table) > 2 and "\n".join(table) in README


@pytest.mark.parametrize("command", readme_commands(), ids=" ".join)
def test_every_command_in_the_readme_parses(command, reached, monkeypatch, capsys):
    script, *argv = command
    module = importlib.import_module(script)

    def begun(*args):
        raise reached

    monkeypatch.setattr(data, "require", lambda *args: None)  # as if Retrieval had been fetched
    if script == "bench":
        monkeypatch.setattr(module, "PARTS", dict.fromkeys(module.PARTS, begun))
    if "--report" in argv or "--check" in argv:
        module.main(argv)
    else:
        with pytest.raises(reached):
            module.main(argv)
