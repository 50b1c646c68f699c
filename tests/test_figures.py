"""Figures: the numbers, labels and errors that matplotlib is given, never pictures."""

import json
import math
import re

import numpy as np
import pytest
import torch

import common
import exp_kernels
import exp_listops
import exp_locality
import exp_multitask
import exp_spt
import records
import tables
from exp_spt import Cell


def record(exp, task, model, cell, acc, seed=0, **rows):
    """A record as far as figures read it. Its validation is far off: a figure must not show it."""
    made = dict(
        exp=exp, task=task, model=model, cell=cell, seed=seed, test_acc=acc, val_acc=0.125, limit=None
    )
    made |= dict(
        run=f"{exp} {task} {model} {cell} {rows} {seed}", row="", changes={}, tier="paper", smoke=False
    )
    made |= dict(date="2026-01-01", seconds=60.0, hp={}, data={"hash": "a", "counts": {"test": 10_000}})
    return made | rows


@pytest.fixture
def drawn(tmp_path, monkeypatch):
    """drawn(main, lines) -> the figures of a script's --report on these records of yours, none of ours."""
    figures = []
    monkeypatch.setattr(records, "RESULTS", tmp_path / "none")
    monkeypatch.setattr(tables, "save_figure", lambda figure, path: figures.append(figure))

    def draw(main, lines, *flags):
        (tmp_path / "results.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        main(["--report", *flags, "--out", str(tmp_path)])
        return figures

    return draw


def dots(axis):
    """{label: [(x, y, error)]} of the error bars of a panel."""
    found = {}
    for bars in axis.containers:
        if hasattr(bars, "lines"):
            (line, _, (segments,)) = bars.lines
            ends = [segment[:, 1] for segment in segments.get_segments()]
            errors = [(high - low) / 2 for low, high in ends]
            found[bars.get_label()] = [(*xy, e) for xy, e in zip(line.get_xydata().tolist(), errors)]
    return found


def test_table_1_draws_test_accuracies_of_the_papers_recipe_alone(drawn):
    """Not validations, not runs with a change in the recipe or beside the kernel. Two seeds: 60 ± 10."""
    lines = [
        record("locality", "text", "conv", {"kernel": 5}, acc, seed) for seed, acc in enumerate((0.5, 0.7))
    ]
    lines += [record("locality", "text", "conv", {"kernel": 7, "techniques": "no"}, 0.1)]
    lines += [record("locality", "text", "conv", {"kernel": 9}, 0.2, tier="reduced", changes={"epochs": 3})]
    (figure,) = drawn(exp_locality.main, lines)
    (shown,) = [found for axis in figure.axes if (found := dots(axis))]
    assert shown == {"ours, full size": [pytest.approx((5, 60, 10))]}
    curve = dict(figure.axes[2].lines[1].get_xydata().tolist())
    assert curve == {5: 88.96, 7: 90.61, 11: 90.56, 21: 90.26, 31: 89.33, 61: 85.41}


def test_shuffling_is_named_as_it_was_and_of_the_mini_tier(drawn, capsys):
    cells = ((3_000, {}, 0.6), (12_000, {}, 0.7), (3_000, {"techniques": "no"}, 0.3))
    changed = [{"changes": {"limit": n, "steps": 6_000}} for n, *_ in cells]
    how = dict(tier="mini", hp={"train": {"batch_size": 32}})
    lines = [
        record("multitask", "listops", "transformer", cell, acc, **how, **changes)
        for (_, cell, acc), changes in zip(cells, changed)
    ]
    lines.append(lines[0] | {"run": "full", "tier": "reduced", "test_acc": 0.9})
    (figure,) = drawn(exp_multitask.main, lines, "--mini")
    shown = {words: [point[:2] for point in points] for words, points in dots(figure.axes[0]).items()}
    assert shown == {"with shuffling": [(3_000, 60), (12_000, 70)], "without": [(3_000, 30)]}
    rows = [re.split(r" *\| *", line)[1:-1] for line in capsys.readouterr().out.splitlines()]
    assert ["3,000", "64 x", "60.0 ± 0.5 (1)", "30.0 ± 0.5 (1)", "+30.0 ± 0.7"] in rows


def spt(task, cell, acc, **rows):
    first = (
        {}
        if not cell.way.pretrains
        else dict(pretraining=dict(run="r", restored=0.5, train_curve=[0.1, 0.2]))
    )
    return record(
        "spt", task, cell.model, cell.label(), acc, row=cell.row(), train_curve=[0.3, acc], **first, **rows
    )


def test_figures_of_paper_b(drawn):
    """Bars: from scratch on the left, after SPT on the right; ours are dots on them. Figure 3's gain is what
    SPT adds, as a share of what there was from scratch."""
    scratch, masked = (Cell("s4", objective) for objective in ("none", "masked"))
    lines = [spt(task, cell, acc) for task in exp_spt.MEAN6 for cell, acc in ((scratch, 0.5), (masked, 0.75))]
    tenth = dict(fraction=0.1)
    lines += [spt("image", scratch._replace(**tenth), 0.4), spt("image", masked._replace(**tenth), 0.5)]
    share = Cell("transformer", "masked", share=0.4)
    lines += [spt("text", share, 0.6)]
    figure = drawn(exp_spt.main, lines)[-1]
    bars, accuracy, gain, training, _ = figure.axes
    heights = {round(bar.get_x() + bar.get_width() / 2, 6): bar.get_height() for bar in bars.patches}
    assert [heights[x] for x in (-0.2, 0.2, 0.8, 1.2)] == [53.66, 86.21, 86.09, 86.75]
    ours = {x: y for line in bars.lines for x, y in line.get_xydata().tolist() if y == y}
    assert ours == pytest.approx({0.8: 50, 1.2: 75, 1.8: 50, 2.2: 75})  # of six tasks, and of four
    lines = {line.get_label(): dict(line.get_xydata().tolist()) for line in accuracy.lines}
    assert lines["Image, from scratch"][0.1] == pytest.approx(40)
    assert lines["Image, masked SPT"][0.1] == pytest.approx(50)
    gains = [dict(line.get_xydata().tolist()).get(0.1) for line in gain.lines]
    assert [y for y in gains if y == y] == pytest.approx([25])  # 0.5 / 0.4 - 1
    curves = {line.get_label(): line.get_xydata().tolist() for line in training.lines}
    assert np.allclose(curves["restoring masked symbols"], [[1, 10], [2, 20]])
    assert np.allclose(curves["fine-tuning"], [[3, 30], [4, 60]])


def test_the_small_figure_has_an_arm_a_line_and_the_objectives_by_name(drawn):
    cells = [(Cell("s4", "none"), 0.6), (Cell("s4", "masked"), 0.7), (Cell("rotary", "none-causal"), 0.5)]
    half = {"train": {"epochs": 2}}
    both = [half | ({"pretrain": {}} if cell.way.pretrains else {}) for cell, _ in cells]
    lines = [spt("text", *cell, tier="mini", hp=hp) for cell, hp in zip(cells, both)]
    (figure,) = drawn(exp_spt.main, lines, "--mini")
    (axis,) = figure.axes
    names = [label.get_text() for label in axis.get_yticklabels()]
    shown = {}
    for bars in axis.containers:
        x, y = bars.lines[0].get_xydata()[0]
        shown[names[round(y)], bars.get_label()] = x
    s4 = "S4,\n2+2 epochs"  # "rotary, one way" has one arm alone and is left out
    assert shown == pytest.approx({(s4, "from scratch"): 60, (s4, "masked SPT"): 70})


def test_the_figure_of_the_start_has_the_lead_of_each_training_with_a_twin(drawn):
    """By hand: errors .490 (60 %), .458 (70 %) and .497 (55 %) points; the fewest epochs of SPT on top."""
    s4 = Cell("s4", "masked")
    cells = [(s4, 0.6, {}), (s4._replace(init="random"), 0.55, {}), (s4._replace(share=0.9), 0.7, {})]
    cells += [(s4, 0.7, {"epochs": 9}), (s4._replace(init="random"), 0.6, {"epochs": 9})]
    half = {"train": {"epochs": 2}, "pretrain": {}}
    longer = {"train": {"epochs": 1}, "pretrain": {"epochs": 8}}
    lines = [
        spt("image", cell, acc, tier="mini", changes=changes, hp=longer if changes else half)
        for cell, acc, changes in cells
    ]
    (axis,) = drawn(exp_spt.main, lines, "--mini")[-1].axes
    names = [label.get_text() for label in axis.get_yticklabels()]  # from below
    assert names == ["S4, masked SPT, 8+1 epochs", "S4, masked SPT, 2+2 epochs"]
    assert [bars.lines[0].get_xdata()[0] for bars in axis.containers] == pytest.approx([10, 5])
    (ends,) = axis.containers[1].lines[2][0].get_segments()
    assert ends[:, 0] == pytest.approx([5 - 0.698, 5 + 0.698], abs=1e-3)


def test_the_energy_within_k_positions_counts_position_k():
    """By hand: energies 1 at distances 0 to 9, so k = 0, 2, 5 hold 1, 3, 6 tenths."""
    shares = exp_kernels.energy_within([(None, np.ones(10))])
    assert exp_kernels.WITHIN[:3] == (0, 2, 5) and shares[:3] == ["10.0", "30.0", "60.0"]
    both = exp_kernels.energy_within([(None, np.ones(10)), (None, np.eye(1, 10)[0])])
    assert both[:2] == ["55.0", "65.0"]  # the mean of two layers, the other has all at distance 0


def test_kernels_are_drawn_relative_to_the_largest_of_all_layers_with_the_rows_of_the_image(monkeypatch):
    figures = []
    monkeypatch.setattr(tables, "save_figure", lambda figure, path: figures.append(figure))
    peaks = [np.array([4.0, 2, 1, 1]), np.array([2.0, 1, 1, 1])]
    exp_kernels.plot([("gMLP", [(peaks[1], None)], [(peak, None) for peak in peaks])], "", 2, None)
    lines = {line.get_label(): line.get_xydata()[:, 1].tolist() for line in figures[0].axes[0].lines}
    assert lines["each layer at initialisation"] == [1, 0.5, 0.5, 0.5]
    assert (lines["layer 1, trained"], lines["layer 2, trained"]) == (
        [1, 0.5, 0.25, 0.25],
        [0.5, 0.25, 0.25, 0.25],
    )
    rows = [line.get_xdata()[0] for line in figures[0].axes[0].lines if "row" in line.get_label()]
    assert rows == [2, 4]


def test_listops_bars_are_shares_of_enough_examples_with_their_errors(monkeypatch):
    """Root MAX: of 20 examples with label 9 a quarter is wrong; of label 8 there are 9, too few for a bar."""
    figures = []
    monkeypatch.setattr(tables, "save_figure", lambda figure, path: figures.append(figure))
    roots, labels = np.zeros(29, int), np.array([9] * 20 + [8] * 9)
    predicted = np.where(np.arange(29) < 15, 9, 0)
    exp_listops.plot_breakdown(roots, labels, predicted, "a model", None)
    bars = figures[0].axes[0].patches
    assert bars[9].get_height() == 75 and bars[8].get_height() == 0
    assert [text.get_text() for text in figures[0].axes[0].texts[8:]] == ["", "20"]
    (low, high) = figures[0].axes[0].containers[0].lines[2][0].get_segments()[9][:, 1]
    assert (high - low) / 2 == pytest.approx(100 * math.sqrt(0.75 * 0.25 / 20))
    exp_listops.plot_gain(roots, labels, predicted, "a model", None)
    gain = figures[1].axes[0].patches[0].get_height()
    assert gain == pytest.approx(100 * (15 / 29 - 20 / 29))  # the greedy answer to MAX is 9: 20 of 29


def test_the_schedules_and_warnings_of_a_run():
    """PERIODS, the plateau's lowest rate and the warning at chance, by hand."""
    task = type("", (), {})()
    task.train = type("", (), {"label": range(1000)})()
    assert common.training_length(task, {"steps": 100, "batch_size": 10}) == (100, 5)  # 20 parts
    assert common.training_length(task, {"epochs": 3, "batch_size": 30}) == (102, 34)
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.AdamW([weight], lr=1e-3)
    schedule = common.make_schedule(optimizer, {}, steps=10**9)
    for _ in range(60):
        schedule.on_epoch(1.0)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(1e-7)


@pytest.mark.parametrize("best, validations, warns", [
    (0.52, 5, True), (0.60, 5, False), (0.52, 4, False), (0.52, 6, False),
])  # fmt: skip
def test_a_run_at_chance_is_warned_of_once(best, validations, warns, capsys):
    """Of 1,000 examples, half of them of a class, 0.5 + 2 * sqrt(0.25 / 1000) = 0.532 is above chance."""
    split = type("", (), {"label": torch.arange(1000) % 2})()
    task = type("", (), {"val": split})()
    curve = [{"val": {"acc": 0.5}}] * (validations - 1) + [{"val": {"acc": best}}]
    common.warn_at_chance(curve, task, epochs=50)
    assert ("still at chance (50.0%)" in capsys.readouterr().out) == warns
