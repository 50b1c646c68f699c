"""exp_locality.py: Table 1, its sizes, and what becomes of a copy. pytest tests/test_locality.py"""

import types
from pathlib import Path

import pytest
from conftest import TINY, exit_code, lines_of, stop_at

import common
import data
import exp_locality
import records

SCRIPT = Path(exp_locality.__file__)


@pytest.mark.parametrize(
    "kernel, millions",
    [(5, (1.218, 0.264, 0.822, 0.954, 1.187)), (61, (12.228, 0.608, 8.162, 8.294, 12.197))],
)
def test_parameter_counts_follow_from_the_papers_table(kernel, millions):
    """Sizes worked out by hand from Table 7 and the vocabularies; the denoising head is not counted."""
    for name, size in zip(exp_locality.TASKS7, millions):
        recipe = common.column(exp_locality.TABLE7, exp_locality.TASKS7, name)
        recipe["model"]["kernel"], recipe["train"]["technique"] = kernel, None
        model = exp_locality.build(data.load(name, "unused", smoke=True), recipe)
        assert round(sum(p.numel() for p in model.parameters()) / 1e6, 3) == size


BLOCK = """
class Mean(models.torch.nn.Module):
    def __init__(self, d_model, kernel, dropout):
        super().__init__()
        self.linear = models.torch.nn.Linear(d_model, d_model)

    def forward(self, x, mask):
        return x + self.linear(models.zero_padding(x, mask).cumsum(1) / x.shape[1])

models.BLOCKS["running mean"] = Mean
"""


CHANGES = {
    'block        = "conv"': 'block        = "running mean"',
    "        d_hidden     = (  256, 256,   256,    256,   256),\n": "",
    "        groups       = (    1,  32,     1,      1,     1),\n": "",
    "def reach(": BLOCK + "\n\ndef reach(",
    'row, cell = f"K={kernel}", {"kernel": kernel}': 'row, cell = f"mean {kernel}", {"mine": kernel}',
}


def test_a_copy_has_runs_and_rows_of_its_own_and_a_changed_one_says_so(
    tmp_path, monkeypatch, capsys, real_runs
):
    """`cp exp_locality.py my.py`, another kernel and another block in it. After a later edit there is one
    note, for a finished run and for one that continues; nothing is refused."""
    script, code = tmp_path / "my.py", SCRIPT.read_text("utf-8")
    for old, new in CHANGES.items():
        assert old in code
        code = code.replace(old, new)
    script.write_text(code, "utf-8")

    def mine(*flags):
        module = types.ModuleType("my")
        module.__file__ = str(script)
        exec(compile(script.read_text("utf-8"), script, "exec"), module.__dict__)
        return exit_code(module.main, *flags, "--out", tmp_path)

    assert mine(*TINY) == 0  # a smoke run
    cell = [*real_runs, "--kernel", 3]
    assert mine(*cell) == 0 and "the code has changed" not in capsys.readouterr().out
    stop_at(3, lambda: mine(*cell, "--seed", 1))
    script.write_text(code.replace("how far does", "how far then does"), "utf-8")
    for seed in (0, 1):
        assert mine(*cell, "--seed", seed) == 0
        assert capsys.readouterr().out.count("the code has changed since") == 1
    _, first, second = lines_of(tmp_path / "results.jsonl")
    assert (first["exp"], first["row"], first["cell"]) == ("my", "mean 3", {"mine": 3})
    assert [start["code"] for start in second["starts"]] == [first["code"], second["code"]]
    assert first["code"] != second["code"] and second["steps"] == 8
    monkeypatch.setattr(records, "RESULTS", tmp_path / "none")
    assert mine("--report", "--task", "text") == 0
    [row] = [line for line in capsys.readouterr().out.splitlines() if line.startswith("|   mean 3 ")]
    assert "(2" in row
