"""What users and machines do to a run: signals, wrong flags, full disks, closed pipes.

pytest tests/test_robust.py
"""

import contextlib
import errno
import importlib
import io
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from conftest import PROCESSES, SCRIPTS, TINY, command, comparable, exit_code, lines_of

import common
import exp_locality

ROOT = Path(__file__).parent.parent


def wait_for_checkpoint(process, out, since):
    """Until last.pt is newer than `since`, or the process has ended."""
    while process.is_alive():
        with contextlib.suppress(FileNotFoundError):
            if any(file.stat().st_mtime_ns > since for file in out.glob("*/last.pt")):
                return
        time.sleep(0.005)


@pytest.mark.processes
def test_killed_at_any_moment_it_ends_like_the_unbroken_run(tmp_path):
    """Promise 1: SIGKILL, SIGTERM and Ctrl-C to processes, in steps, evaluations and (they are frequent here)
    while checkpoints are written."""
    flags, log, draw = [*TINY, "--limit", 256, "--epochs", 20], tmp_path / "log", random.Random(0)

    def start(name, seconds=300):
        words = log, "exp_locality", [*flags, "--out", tmp_path / name], seconds
        process = PROCESSES.Process(target=command, args=words)
        process.start()
        return process

    for number, code in [(signal.SIGKILL, -9), (signal.SIGTERM, 75), (signal.SIGINT, 130)]:
        begun = time.time_ns()
        process = start("killed", 0.02)
        wait_for_checkpoint(process, tmp_path / "killed", begun)
        time.sleep(draw.uniform(0, 0.3))
        os.kill(process.pid, number)
        process.join(60)
        assert process.exitcode == code
    said = log.read_text()
    assert said.count("the same command continues") == 2 and "Traceback" not in said
    for process in (start("killed"), start("unbroken")):
        process.join(300)
        assert process.exitcode == 0
    said = log.read_text()
    stopped = [int(step) for step in re.findall(r"continuing after step (\d+) of 320", said)][-2:]
    assert len(stopped) == 2  # a log file tells how far it was, unless an epoch of 16 steps had just ended
    assert all(step % 16 == 0 or f"\nstep {step} of 320" in said for step in stopped)
    assert comparable(tmp_path / "killed") == comparable(tmp_path / "unbroken")


def test_a_full_disk_stops_the_run_with_a_sentence_and_it_continues_afterwards(tmp_path, monkeypatch, capsys):
    """Promise 4. The second checkpoint finds no room."""
    written, whole = [], common.write_atomically

    def write(path, content):
        written.append(path)
        if len(written) == 3:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        whole(path, content)

    monkeypatch.setattr(common, "write_atomically", write)
    for code in (2, 0):
        assert exit_code(exp_locality.main, *TINY, "--out", tmp_path) == code
        err = capsys.readouterr().err
        assert (err.count("error: "), "the same command continues" in err) == (code // 2, code == 2)
    assert len(lines_of(tmp_path / "results.jsonl")) == 1


# ------------------------------------------------------------------------------------------ wrong flags


@pytest.mark.parametrize("script", (*SCRIPTS, "data"))
def test_every_command_line_is_refused_in_a_sentence_or_understood(script, reached, capsys):
    """Promise 4: 200 random command lines a script."""
    module = importlib.import_module(script)
    assert exit_code(module.main, "--help") == 0
    words = {word.strip(",[]") for word in capsys.readouterr().out.split()}
    # --report and --figure without training are whole programs, tested elsewhere.
    programs = {"--help", "--report", "--check"} | ({"--figure"} if script != "exp_spt" else set())
    flags = sorted({word for word in words if word.startswith("--")} - programs) + ["--nonsense", "-x"]
    values = "text listops all 5 4 0 -1 61 1e-3 nan inf 1e999 9m soon cpu tpu bf16 / ../x é".split()
    values += ["9" * 20, "", " ", "\x00", "--", "[]", "none", "paper", "rotary", "s4"]
    draw, codes = random.Random(script), []
    for _ in range(200):
        argv = [draw.choice(draw.choice([flags, values])) for _ in range(draw.randint(0, 7))]
        if draw.random() < 0.7:
            argv = ["--task", draw.choice(["text", "listops", "image"]), *argv]
        try:
            codes.append(exit_code(module.main, *argv))
        except reached:
            codes.append("reached")
        assert codes[-1] in ("reached", 0) or (
            codes[-1] == 2 and capsys.readouterr().err.count("error: ") == 1
        ), argv
    assert codes.count(2) > 40 and codes.count(0) < 40


MISSING = "mps" if torch.cuda.is_available() else "cuda"  # a device that this machine does not have


@pytest.mark.parametrize(
    "words, said",
    [
        ("locality --task texts", "invalid choice"),
        ("locality --task text --kernel 4", "odd"),
        ("locality --task text --epochs 0", "whole number"),
        ("locality --task text --seeds 999999999", "1000"),
        ("locality --task text --lr nan", "above 0"),
        ("locality --task text --time-limit soon", "time"),
        ("locality --kernel 5", "--task"),
        ("locality --task text --smoke --mini", "--smoke"),
        ("locality --task text --steps 5 --epochs 5", "--epochs"),
        ("locality --task text --against exp_locality.py", "--report"),
        ("locality --report --kernel 5 --lr 1e-3", "--kernel"),
        ("locality --report --against exp_locality.py", "no finished run"),
        (f"locality --task text --device {MISSING} --smoke", f"--device {MISSING}"),
        ("locality --task text --smoke --limit 100000", "512"),
        ("locality --task text --smoke --out /proc/nowhere", "/proc/nowhere"),
        (f"locality --task text --smoke --out {'x' * 300}", "too long"),
        ("multitask --task text listops --smoke --max-length 64", "max-length"),
        ("multitask --task all --smoke --augment flip", "augment"),
        ("kernels --task text --figure kernels --checkpoint nowhere/best.pt", "no such file"),
        ("kernels --task text --smoke --checkpoint nowhere/best.pt", "--figure"),
        ("listops --figure 3 --smoke --checkpoint nowhere/best.pt", "no such file"),
        ("spt --task pathx --mini", "pathx"),
        ("spt --task scifar", "no such cell"),
        ("spt --task image --size 1M", "--size goes with"),
        ("spt --task text --figure 2 --share 1.0", "below 1"),
        ("spt --task text --fraction 0", "above 0"),
        ("spt --task text --share 0.5 --epochs-pretrain 3", "--epochs-pretrain"),
        ("spt --task image --figure 5 --epochs 1 --smoke", "at least 2"),
        ("spt --task image --set-last-tenth", "--set-last-tenth"),
        ("spt --task image --figure 6", "--figure"),
        ("spt --task scifar --model s4 --objective multitask --stride 4", "--stride"),
        ("spt --task text --stride backwards", "--stride"),
    ],
)
def test_mistakes_get_one_sentence_and_exit_code_2(words, said, tmp_path, monkeypatch, capsys):
    """Promise 4. Said before anything is trained."""
    monkeypatch.chdir(tmp_path)
    script, *argv = words.split()
    assert exit_code(importlib.import_module(f"exp_{script}").main, *argv) == 2
    err = capsys.readouterr().err
    assert said in err and err.count("error: ") == 1 and not list(tmp_path.glob("runs/*/*.pt"))
    assert not (tmp_path / "runs" / "results.jsonl").exists()


def test_a_model_that_cannot_be_built_gets_one_sentence_and_no_folder(tmp_path, monkeypatch, capsys):
    """Promise 4, of an edited recipe."""
    monkeypatch.setitem(exp_locality.TABLE7["model"], "kernal", 5)
    assert exit_code(exp_locality.main, "--task", "listops", "--smoke", "--out", str(tmp_path / "runs")) == 2
    assert "no argument kernal" in capsys.readouterr().err and not list(tmp_path.glob("runs/*"))


# ------------------------------------------------------------------------------------------ odd surroundings


@pytest.mark.processes
def test_a_reader_that_has_seen_enough_is_no_error():
    """`exp_locality.py --report | head -1`"""
    code = "import common\nwith common.exit_cleanly():\n    while True:\n        print('a row')\n"
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, **pipes) as process:
        assert process.stdout.readline() == "a row\n"
        process.stdout.close()
        assert process.stderr.read() == "" and process.wait() == 141


def test_a_report_prints_where_only_ascii_is_known(tmp_path, monkeypatch):
    printed = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", printed)
    assert exit_code(exp_locality.main, "--report", "--out", tmp_path) == 0
    printed.flush()
    assert b"Table 1" in printed.buffer.getvalue() and b"?" in printed.buffer.getvalue()  # for a dash
