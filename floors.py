"""What is known without a network, at full size? README's first table and picture.

    python floors.py            the table, from this repository's records
    python floors.py --write    and the picture, results/figures/floors.png

A row is one rule of exp_ngrams.py, exp_patches.py or exp_listops.py; ROWS says which. Beside it stands
what the tables of both papers print: LRA's own eleven Transformers, S4, and the best of all their models. A
floor says what is enough for an accuracy. It does not say what a network does.
"""

import argparse
import textwrap
from pathlib import Path

import common
import data
import exp_spt
import records
import rule
import tables
from exp_ngrams import COLUMNS, TRANSFORMERS

GUESSING = data.FLOORS["listops"]["cell"] | {"sm": "guessed"}  # the sums, as A's models do
FIGURE = Path(__file__).parent / "results" / "figures" / "floors.png"
ROWS = [  # (task, the rule in words, what its record has)
    ("text", "linear model of byte 6-grams", data.FLOORS["text"]),
    ("image", "linear model of 400 kinds of 6 x 6 patches", data.FLOORS["image"]),
    ("listops", "root computed, arguments over 16 symbols guessed", data.FLOORS["listops"]),
    ("listops", "the same, but a sum at the root is guessed", {"exp": "listops", "cell": GUESSING}),
    ("pathfinder", "linear model of 400 kinds of 6 x 6 patches", data.FLOORS["pathfinder"]),
]
KINDS = {"linear": ("o", "ours: a linear model"), "rule": ("^", "ours: a rule that knows the grammar")}
BEST = "best number of papers A and B that we can read"
HEADER = ["task", "without a neural network", "accuracy", "LRA's Transformers", "S4", "best printed"]


def published(task):
    """Accuracies in percent that the papers print: (LRA's Transformers (11,), S4, the best of all tables)."""
    at = COLUMNS.index(task)
    best = [tables.paper_number(table, row, tasks, task)
            for table, tasks in rule.TABLES.values() if task in tasks for row in table]  # fmt: skip
    s4 = tables.paper_number(exp_spt.PAPER, "S4, from scratch", exp_spt.TASKS, task)
    return [row[at] for row in TRANSFORMERS.values()], s4, max(x for x in best if isinstance(x, float))


def floors():
    """[(task, the rule in words, its record)], in the order of ROWS; without those that have no record."""
    known = records.published()
    found = [(task, words, tables.floor_of(known, task, {task: has})) for task, words, has in ROWS]
    return [(task, words, group[0]) for task, words, group in found if group]


def rows_of(found):
    """The fields of HEADER for each rule, as text; of a task's second rule without what is published."""
    seen = set()
    for task, words, record in found:
        band, s4, best = published(task)
        accuracy, error = (100 * value for value in records.mean_and_error([record]))
        others = [f"{min(band):.2f} to {max(band):.2f}", f"{s4:.2f}", f"{best:.2f}"]
        title = data.TITLES[task]
        if task in seen:
            title, others = "", ["", "", ""]
        seen.add(task)
        yield [title, words, f"{accuracy:.1f} ± {error:.1f}", *others]


def table(found):
    """The table as Markdown."""
    return tables.markdown(HEADER, list(rows_of(found)))


def listed(found):
    """The table in 80 columns: a rule above its numbers."""
    lines = ["Test accuracy ± standard error. Beside it LRA's own Transformers, S4, and the"]
    lines += ["largest number of papers A and B that we have.", ""]
    for task, words, ours, theirs, s4, best in rows_of(found):
        lines.append(f"{task}: {words}" if task else f"  {words}")
        there = f"   LRA's {theirs}   S4 {s4}   best printed {best}" if task else ""
        lines.append(f"    {ours} %{there}")
    return "\n".join(lines)


def plot(found, path):
    """A line a task: chance, LRA's own Transformers as a band, ours, S4, and the papers' best."""
    figure, (axis,) = tables.panels(["What is known without a neural network, at full size"], (8, 4.4))
    tasks = list(dict.fromkeys(task for task, *_ in found))
    style, names = dict(linestyle="none", zorder=3), []
    for y, task in enumerate(tasks):
        band, s4, best = published(task)
        axis.barh(y, max(band) - min(band), left=min(band), height=0.3, color="0.85",
                  label="the Transformers of LRA's own table")  # fmt: skip
        axis.plot(s4, y, "s", color=tables.BLUE, label="S4 (Gu et al.)", markersize=9, **style)
        axis.plot(best, y, "D", color=tables.GREEN, label=BEST, markersize=12, **style)
        (rule_words, record), *others = [(words, record) for name, words, record in found if name == task]
        chance = 100 * record["chance"]
        axis.plot(
            chance,
            y,
            "|",
            color="0.3",
            label="chance (ListOps: the commonest answer)",
            markersize=16,
            zorder=3,
        )
        look = dict(color=tables.ORANGE, markersize=7, **style)
        accuracy = 100 * record["test_acc"]
        error = 100 * records.mean_and_error([record])[1]
        axis.errorbar(accuracy, y, xerr=error, color=tables.ORANGE, zorder=3)
        marker, label = KINDS[record["model"]]
        axis.plot(accuracy, y, marker, label=label, **look)
        place = dict(textcoords="offset points", fontsize=9, color=tables.ORANGE)
        words, side, align = f"{accuracy:.1f}", 0, "center"
        for _, other in others:  # of ListOps: one guesses sums
            words, side, align = f"{words}, sums known", -4, "left"
            other = 100 * other["test_acc"]
            axis.plot(other, y, marker, label="the same rule, sums guessed", markerfacecolor="white", **look)
            axis.annotate(f"{other:.1f}, sums guessed", (other, y), (4, 10), ha="right", **place)
        axis.annotate(words, (accuracy, y), (side, 10), ha=align, **place)
        names.append("\n".join(textwrap.fill(part, 26) for part in (data.title_of(record), rule_words)))
    axis.set_yticks(range(len(tasks)), names, fontsize=9)
    axis.set(xlim=(0, 100), ylim=(len(tasks) - 0.5, -0.5), xlabel="test accuracy (%)")
    for y in range(1, len(tasks)):
        axis.axhline(y - 0.5, color="0.8", linewidth=0.8)
    axis.grid(False, axis="y")
    tables.legend_below(figure, [axis])
    tables.save_figure(figure, path)


def main(argv=None):
    parser = argparse.ArgumentParser(
        description=common.for_terminals(__doc__), formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help="draw results/figures/floors.png as well")
    args = parser.parse_args(argv)
    found = floors()
    print(table(found) if args.write else listed(found))
    if args.write:
        plot(found, FIGURE)


if __name__ == "__main__":
    main()
