"""What does a rule of short range know, at full size, without a network? README's first table and picture.

    python floors.py            the table, from this repository's records
    python floors.py --write    and the picture, results/figures/floors.png

A row is one rule of exp_ngrams.py, exp_patches.py or exp_listops.py; data.FLOORS says which. Beside it stands
what the tables of both papers print: LRA's own eleven Transformers, S4, and the best of all their models. A
floor says what is enough for an accuracy. It does not say what a network does.
"""

import argparse
from pathlib import Path

import common
import data
import exp_spt
import records
import rule
from exp_ngrams import COLUMNS, TRANSFORMERS

FIGURE = Path(__file__).parent / "results" / "figures" / "floors.png"
RULES = {  # in words
    "text": "linear model of pieces of 6 bytes",
    "image": "linear model of patches of 6 x 6 pixels",
    "listops": "root exact, arguments above 16 symbols guessed",
    "pathfinder": "linear model of patches of 6 x 6 pixels",
}
HEADER = ["task", "rule without a network", "accuracy", "LRA's Transformers", "S4", "best printed"]


def published(task):
    """Accuracies in percent that the papers print: (LRA's Transformers (11,), S4, the best of all tables)."""
    at = COLUMNS.index(task)
    best = [records.paper_number(table, row, tasks, task)
            for table, tasks in rule.TABLES.values() if task in tasks for row in table]  # fmt: skip
    s4 = records.paper_number(exp_spt.PAPER, "S4, from scratch", exp_spt.TASKS, task)
    return [row[at] for row in TRANSFORMERS.values()], s4, max(x for x in best if isinstance(x, float))


def floors():
    """{task: the record of its rule}, in the order of RULES; a task without one is left out."""
    known = records.published()
    found = {task: records.floor_of(known, task, data.FLOORS) for task in RULES}
    return {task: group[0] for task, group in found.items() if group}


def rows_of(found):
    """The fields of HEADER for each task, as text."""
    for task, record in found.items():
        band, s4, best = published(task)
        accuracy, error = (100 * value for value in records.mean_and_error([record]))
        ours, theirs = f"{accuracy:.1f} ± {error:.1f}", f"{min(band):.2f} to {max(band):.2f}"
        yield [data.TITLES[task], RULES[task], ours, theirs, f"{s4:.2f}", f"{best:.2f}"]


def table(found):
    """The table as Markdown."""
    return records.markdown(HEADER, list(rows_of(found)))


def listed(found):
    """The table in 80 columns: a rule above its numbers."""
    return "\n".join(
        f"{task}: {words}\n    {ours} %  LRA's Transformers {theirs}  S4 {s4}  best printed {best}"
        for task, words, ours, theirs, s4, best in rows_of(found)
    )


def plot(found, path):
    """A line a task: chance, LRA's own Transformers as a band, the rule, S4, and the papers' best."""
    figure, (axis,) = records.panels(
        ["What short range knows: a rule without a network, full size"], (8, 3.4)
    )
    for y, (task, record) in enumerate(found.items()):
        band, s4, best = published(task)
        rule_accuracy = 100 * record["test_acc"]
        style = dict(markersize=9, linestyle="none", zorder=3)
        axis.barh(y, max(band) - min(band), left=min(band), height=0.5, color="0.85",
                  label="LRA's own eleven Transformers")  # fmt: skip
        axis.plot(100 * record["chance"], y, "|", color="0.3", markersize=14, label="chance", zorder=3)
        axis.plot(s4, y, "s", color=records.BLUE, label="S4 (Gu et al.)", **style)
        axis.plot(best, y, "D", color=records.GREEN, label="best that A or B prints", **style)
        axis.plot(rule_accuracy, y, "o", color=records.ORANGE, label="a rule without a network", **style)
        words = f"{rule_accuracy:.1f}: {RULES[task]}"
        place = dict(textcoords="offset points", ha="right", fontsize=9)
        axis.annotate(words, (rule_accuracy, y), (25, 20), **place)
    axis.set_yticks(range(len(found)), [data.TITLES[task] for task in found])
    axis.set(xlim=(0, 100), ylim=(len(found) - 0.4, -0.8), xlabel="test accuracy (%)")
    records.legend_below(figure, [axis])
    records.save_figure(figure, path)


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
