"""What is known without a network, at full size? README's first table and picture.

    python floors.py            the table, from this repository's records
    python floors.py --write    and the picture, results/figures/floors.png

A row is one rule of exp_ngrams.py, exp_patches.py or exp_listops.py; ROWS says which. Beside it stands
what the tables of both papers print: LRA's own eleven Transformers, S4 (the one that both cite, and A's own),
and the best of all their models. A floor says what is enough for an accuracy. It does not say what a network
does.
"""

import argparse
import math
import textwrap
from pathlib import Path

import common
import data
import exp_kernels
import exp_listops
import exp_spt
import records
import rule
import tables
from exp_ngrams import COLUMNS, TRANSFORMERS

FIGURE = Path(__file__).parent / "results" / "figures" / "floors.png"
ROWS = [  # (task, the rule in short, in words, what its record has)
    ("text", "6-grams of bytes", "linear model of byte 6-grams", data.FLOORS["text"]),
    ("image", "6 x 6 patches", "linear model of 6 x 6 patches, by quarters", data.PATCHES),
    ("listops", "arguments ≤ 16", "solves arguments up to 16 symbols, guesses longer", data.WINDOW),
    ("listops", "+ sums guessed", "the same, but a sum at the root is guessed", data.GUESSING),
    ("pathfinder", "6 x 6 patches", "linear model of 6 x 6 patches, by quarters", data.PATCHES),
]
KINDS = {"linear": ("o", "ours: a linear model"), "rule": ("^", "ours: a rule that knows the grammar")}
BEST = "best number printed in papers A and B"
HEADER = ["task", "our rule", "accuracy", "chance", "LRA's", "S4", "best"]


def published(task):
    """Accuracies in percent that the papers print: (LRA's Transformers (11,), the S4 that both cite, A's own
    S4, the best of all tables)."""
    at = COLUMNS.index(task)
    best = [tables.paper_number(table, row, tasks, task)
            for table, tasks in rule.TABLES.values() if task in tasks for row in table]  # fmt: skip
    s4 = tables.paper_number(exp_spt.PAPER, "S4, from scratch", exp_spt.TASKS, task)
    own = tables.paper_number(exp_kernels.TABLE3, "S4", exp_kernels.COLUMNS, task)
    return [row[at] for row in TRANSFORMERS.values()], s4, own, max(x for x in best if isinstance(x, float))


def floors():
    """[(task, the rule in short, in words, its record)], in the order of ROWS; without those that have no
    record."""
    known = records.published()
    found = [(*row, tables.floor_of(known, row[0], has)) for *row, has in ROWS]
    return [(*row, group[0]) for *row, group in found if group]


def firsts(found):
    """Of each rule of floors whether it is the first of its task."""
    tasks = [task for task, *_ in found]
    return [tasks.index(task) == at for at, task in enumerate(tasks)]


def table(found):
    """The table as Markdown, in 80 columns; of a task's second rule without what is published."""
    lines = []
    for first, (task, short, _, record) in zip(firsts(found), found):
        band, s4, _, best = published(task)
        accuracy, error = (100 * value for value in records.mean_and_error([record]))
        theirs = [f"{100 * record['chance']:.1f}", *(f"{number:.2f}" for number in (max(band), s4, best))]
        title, *theirs = [text * first for text in (data.TITLES[task], *theirs)]
        lines.append([title, short, f"{accuracy:.1f} ± {error:.1f}", *theirs])
    return tables.markdown(HEADER, lines)


def listed(found):
    """The table, and below it its rules in words, with what stands in no column."""
    rules = []
    for first, (task, short, words, record) in zip(firsts(found), found):
        band, _, own, _ = published(task)
        if not learns(record):
            words += f"; in training {100 * record['train_acc']:.1f}"
        others = f" (LRA's {min(band):.2f} to {max(band):.2f}; A's own S4: {own:.2f})"
        rules.append(f"{data.TITLES[task]}: {words}{others}" if first else f"{short}: {words}")
    short, note = (textwrap.fill(words, 80) for words in (in_short(found), NOTE))
    return "\n\n".join([f"### {TITLE}", short, table(found), tables.bullets(rules, 80), note])


def in_short(found):
    """ "Beside the best network: level on Text; behind on Image.": each rule, by two standard errors of the
    difference."""
    places = {}
    for first, (task, *_, record) in zip(firsts(found), found):
        name = data.TITLES[task] + " with guessed sums" * (not first)
        places.setdefault(beside_the_best(task, record), []).append(name)
    words = (f"{side} on {tables.listed(on)}" for side, on in places.items())
    return f"Beside the best network: {'; '.join(words)}."


def learns(record):
    """Whether a rule learns from the training examples."""
    return record["cell"].get("rule") != "window"


def beside_the_best(task, record):
    """ "ahead", "level" or "behind"; the network's error is that of the same test set. A rule that learns
    nothing is judged as in exp_listops.py, by the training examples."""
    best = published(task)[-1]
    if not learns(record):
        _, _, errors = exp_listops.best_network({}, "paper")
        return exp_listops.beside([record], best, errors)
    accuracy, error = (100 * value for value in records.mean_and_error([record]))
    return records.side(accuracy - best, math.hypot(error, error))


TITLE = "What one gets without a neural network, at full size"
NOTE = (
    "Full size; test accuracy in % ± standard error. LRA's: the best of its own paper's eleven Transformers "
    "(of a review they read 4,000 bytes by that paper, 1,000 by its code); S4: the one that A and B cite; "
    "best: the largest number of papers A and B that we have; level: within two standard errors of the "
    "difference (of ListOps' rules in training: they learn nothing from these lists, and these are more). "
    "Image is a JPEG copy of CIFAR-10; ListOps and Pathfinder are generated by LRA's rules. A rule shows "
    "what is enough, not what networks do."
)


def plot(found, path):
    """A line a task: chance, LRA's own Transformers as a band; above the line ours, below it S4 and the
    papers' best, and A's own S4, so that none hides another."""
    figure, (axis,) = tables.panels([TITLE], (8, 4.6))
    tasks = list(dict.fromkeys(task for task, *_ in found))
    style, names = dict(linestyle="none", zorder=3), []
    for y, task in enumerate(tasks):
        band, s4, own, best = published(task)
        axis.barh(y, max(band) - min(band), left=min(band), height=0.3, color="0.85",
                  label="LRA's Transformers")  # fmt: skip
        ours, theirs = y - 0.14, y + 0.14
        axis.plot(s4, theirs, "s", color=tables.BLUE, label="S4 (Gu et al.)", markersize=8, **style)
        look = dict(color=tables.BLUE, markerfacecolor="white", markersize=6, **style)
        axis.plot(own, y + 0.34, "s", label="A's own S4", **look)
        axis.plot(best, theirs, "D", color=tables.GREEN, label=BEST, markersize=8, **style)
        number = dict(textcoords="offset points", fontsize=9, va="center")
        axis.annotate(f"{own:.1f}", (own, y + 0.34), (-8, 0), ha="right", color=tables.BLUE, **number)
        axis.annotate(f"{s4:.1f}", (s4, theirs), (-8, 0), ha="right", color=tables.BLUE, **number)
        axis.annotate(f"{best:.1f}", (best, theirs), (8, 0), ha="left", color=tables.GREEN, **number)
        (rule_words, record), *others = [row for name, _, *row in found if name == task]
        chance = 100 * record["chance"]
        axis.plot(
            chance,
            y,
            "|",
            color="0.3",
            label="chance: always the commonest answer",
            markersize=12,
            zorder=3,
        )
        look = dict(color=tables.ORANGE, markersize=7, **style)
        accuracy = 100 * record["test_acc"]
        error = 100 * records.mean_and_error([record])[1]
        axis.errorbar(accuracy, ours, xerr=error, color=tables.ORANGE, zorder=3)
        marker, label = KINDS[record["model"]]
        axis.plot(accuracy, ours, marker, label=label, **look)
        place, words = number | {"color": tables.ORANGE}, f"{accuracy:.1f}"
        for _, other in others:  # of ListOps: one guesses sums
            words = f"{words}, sum computed"
            other = 100 * other["test_acc"]
            axis.plot(
                other,
                ours,
                marker,
                label="the same rule, root sums guessed",
                markerfacecolor="white",
                **look,
            )
            small = place | {"fontsize": 8}  # left of it is the band
            axis.annotate(f"{other:.1f}, sum guessed", (other, ours), (-8, 0), ha="right", **small)
        axis.annotate(words, (accuracy, ours), (8, 0), ha="left", **place)
        copy = " (a JPEG copy)" if record["data"].get("official") is False else ""
        names.append("\n".join(textwrap.fill(part, 26) for part in (data.TITLES[task] + copy, rule_words)))
    axis.set_yticks(range(len(tasks)), names, fontsize=9)
    axis.set(xlim=(0, 105), ylim=(len(tasks) - 0.5, -0.5), xlabel="test accuracy (%)")
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
    with common.exit_cleanly():
        found = floors()
        print(table(found) if args.write else listed(found))
        if args.write:
            plot(found, FIGURE)


if __name__ == "__main__":
    main()
