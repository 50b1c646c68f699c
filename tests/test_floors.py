"""floors.py: the table and the picture of README, against numbers typed from the papers.

pytest tests/test_floors.py
"""

import pytest

import data
import floors
import records
import tables

PAPERS = {  # LRA's Transformers from, to; S4; A's own S4; the best of A's and B's tables
    "text": (52.98, 65.90, 86.82, 91.01, 91.02),
    "image": (38.07, 44.24, 88.65, 89.59, 90.44),
    "listops": (15.82, 37.27, 59.60, 56.00, 63.14),
    "pathfinder": (66.63, 77.05, 94.20, 93.61, 97.26),
}


@pytest.fixture
def found(monkeypatch):
    """One record a task, 0.6, 0.7, ... right of 10,000, with sums guessed 0.75; others must not count."""
    lines = []
    for i, task in enumerate(PAPERS):
        line = {
            "task": task,
            "model": "rule",
            "tier": "paper",
            "changes": {},
            "row": task,
            "chance": 0.1,
            "run": str(i),
        }
        line |= data.FLOORS[task] | {
            "test_acc": 0.6 + i / 10,
            "train_acc": 0.8,
            "data": {"counts": {"train": 90_000, "test": 10_000}},
            "seed": 0,
        }
        lines += [
            line | {"tier": "mini", "test_acc": 0.1},
            line | {"changes": {"limit": 9}, "test_acc": 0.1},
            line,
        ]
        lines += [line | {"cell": {"n": 1}, "test_acc": 0.1}]
        if task == "listops":
            lines.append(line | {"cell": {"rule": "window", "W": 16, "sm": "guessed"}, "test_acc": 0.75})
            lines[-1]["train_acc"] = 0.63
    monkeypatch.setattr(records, "published", lambda: lines)
    return floors.floors()


@pytest.mark.parametrize("task", PAPERS)
def test_the_papers_numbers(task):
    band, *rest = floors.published(task)
    assert len(band) == 11 and (min(band), max(band), *rest) == PAPERS[task]


def test_the_first_line_says_which_rules_are_as_good_as_the_best(found):
    """Text 60 of 91, Image 70 of 90, ListOps 80 of 63, guessed 63 in training, Pathfinder 90 of 97; then Text
    0.5 points behind, of which two errors are 0.8."""
    words = "Beside the best network: behind on Text, Image and Pathfinder; ahead on ListOps; "
    words += "level on ListOps with guessed sums."
    assert floors.in_short(found) == words and words in " ".join(floors.listed(found).split())
    found[0][-1]["test_acc"] = 0.905
    assert floors.in_short(found[:2]) == "Beside the best network: level on Text; behind on Image."


def test_the_table_has_the_accuracy_of_each_rule(found):
    """By hand: sqrt(.6 * .4 / 10,000) = .49 points."""
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in floors.table(found).splitlines()]
    assert lines[2][2:] == ["60.0 ± 0.5", "10.0", "65.90", "86.82", "91.02"]
    assert max(map(len, floors.table(found).splitlines())) <= 80
    assert "(LRA's 52.98 to 65.90; A's own S4: 91.01)" in floors.listed(found)
    assert [line[2][:4] for line in lines[2:]] == ["60.0", "70.0", "80.0", "75.0", "90.0"]
    assert lines[5][0] == "" and lines[5][3:] == [""] * 4  # what is published stands in the line above


def test_the_picture_has_the_numbers_of_the_table(found, monkeypatch, tmp_path):
    pytest.importorskip("matplotlib")
    drawn = []
    monkeypatch.setattr(tables, "save_figure", lambda figure, path: drawn.append(figure))
    floors.plot(found, tmp_path / "x.png")
    axis = drawn[0].axes[0]
    dots = {}
    for line in axis.lines:
        label = line.get_label()
        dots.setdefault(label, []).append((line.get_xdata()[0], line.get_ydata()[0]))
    for y, (low, high, s4, own, best) in enumerate(PAPERS.values()):
        ours = [dot for _, label in floors.KINDS.values() for dot in dots.get(label, ())]
        assert (pytest.approx(60 + 10 * y), y - 0.14) in ours  # above the line of the task
        assert dots["S4 (Gu et al.)"][y] == (s4, y + 0.14) and dots["A's own S4"][y] == (own, y + 0.34)
        assert dots[floors.BEST][y] == (best, y + 0.14)
        bar = axis.patches[y]
        assert (bar.get_x(), bar.get_width()) == pytest.approx((low, high - low))
    assert dots["the same rule, root sums guessed"] == [(75, 2 - 0.14)]
    ends = [bar.lines[2][0].get_segments()[0][:, 0] for bar in axis.containers if hasattr(bar, "has_xerr")]
    assert ends[0] == pytest.approx([60 - 0.49, 60 + 0.49], abs=0.01)
    names = [label.get_text().split("\n")[0] for label in axis.get_yticklabels()]
    assert names == [data.TITLES[task] for task in PAPERS]
    ours, words = iter((["60.0"], ["70.0"], ["75.0, sum guessed", "80.0, sum computed"], ["90.0"])), []
    for *_, s4, own, best in PAPERS.values():
        words += [f"{own:.1f}", f"{s4:.1f}", f"{best:.1f}", *next(ours)]
    assert [text.get_text() for text in axis.texts] == words
