"""exp_locality.py: Table 1, its sizes, its figure. pytest tests/test_locality.py"""

import pytest
from conftest import exit_code, lines_of

import common
import data
import exp_locality


def test_table_1_agrees_with_the_percentages_printed_beside_it():
    """The paper prints each accuracy's share of MEGA's too: typed here independently, rows K = 5 ... 61."""
    shares = """51.56 53.95 98.37 98.98 71.65  54.23 53.56 100.20 99.16 78.02  71.28 53.70 100.14 99.08 80.12
    77.68 54.17 99.81 98.31 82.80  88.28 53.33 98.78 98.04 83.83  92.46 75.28 94.45 97.58 83.51"""
    ours = [100 * a / m for row in exp_locality.TABLE1.values() for a, m in zip(row, exp_locality.MEGA)]
    assert len(ours) == 30
    assert ours == pytest.approx([float(s) for s in shares.split()], abs=0.011)


def test_table_7_spot_values_and_keys():
    wanted = {"text": dict(depth=4, lr=1e-3, batch_size=16, weight_decay=0.2, epochs=80)}
    wanted |= {"retrieval": dict(lr=3e-4, batch_size=64, epochs=60), "pathfinder": dict(groups=32, epochs=67)}
    wanted |= {"listops": dict(depth=6, epochs=120), "image": dict(batch_size=64, epochs=200)}
    for task, rows in wanted.items():
        assert rows.items() <= exp_locality.recipe(task).items()
    for table in (exp_locality.TABLE7, exp_locality.MINI7):
        assert all(len(row) == len(exp_locality.TASKS7) for row in table.values())


@pytest.mark.parametrize(
    "kernel, millions",
    [(5, (1.218, 0.264, 0.822, 0.954, 1.187)), (61, (12.228, 0.608, 8.162, 8.294, 12.197))],
)
def test_parameter_counts_follow_from_the_papers_table(kernel, millions):
    """Sizes worked out by hand from Table 7 and the vocabularies; the denoising head is not counted."""
    for name, size in zip(exp_locality.TASKS7, millions):
        task, hp = data.load(name, "unused", smoke=True), exp_locality.recipe(name, "no", kernel=kernel)
        model = exp_locality.build(task, hp)
        assert round(sum(p.numel() for p in model.parameters()) / 1e6, 3) == size


def test_the_smoke_run_needs_nothing_but_the_repository(tmp_path, monkeypatch, capsys):
    """ListOps from its real generator, K = 5, in a folder without data."""
    monkeypatch.chdir(tmp_path)
    assert exit_code(exp_locality.main, "--task", "listops", "--smoke", "--epochs", 1) == 0
    [record] = lines_of(tmp_path / "runs" / "results.jsonl")
    assert record["cell"] == {"kernel": 5} and record["data"]["from"] == "generated"
    assert "test accuracy" in capsys.readouterr().out and [*tmp_path.iterdir()] == [tmp_path / "runs"]
    assert not record["dirty"] or common.git_state()[1]
