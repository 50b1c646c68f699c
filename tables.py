"""How do records become tables and figures?

A script hands `report` its tasks, the paper's numbers and what its rows mean. The records, yours and this
repository's, are of records.py. Figures have one look: `panels`, `errorbars`, `legend_below`, `save_figure`.

    python tables.py --plot RUN [RUN ...]      the curves of some runs, as a picture in OUT
"""

import argparse
import contextlib
import io
import itertools
import json
import math
import re
import shlex
import statistics
import textwrap
from pathlib import Path
from typing import NamedTuple

import numpy

import common
import data
import records
from machine import UserError
from records import GAP

# ------------------------------------------------------------------------------------------ numbers as text


def markdown(header, rows):
    """A Markdown table as text, columns aligned."""
    rows = [[str(cell) for cell in row] for row in (header, *rows)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(header))]
    lines = ["| " + " | ".join(cell.ljust(w) for cell, w in zip(row, widths)) + " |" for row in rows]
    lines.insert(1, "|" + "|".join("-" * (w + 2) for w in widths) + "|")
    return "\n".join(lines)


def show(header, rows):
    """Print a table and an empty line."""
    print(markdown(header, rows) + "\n")


def number(value):
    """A number as people write it, 0.001 for 1e-3; words as they are."""
    return value if isinstance(value, str) else f"{value:g}"


def naturally(text):
    """A key to sort by: K=5 stands before K=11."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", text.replace(",", ""))]


def lead(group, others, seeds=False, digits=None):
    """ "+6.5 ± 0.7": how far one cell is ahead of another, in points; "+6.5 ± 0.7 (3)" with the smaller of
    their numbers of seeds. digits: of the mini tier 1, else 2."""
    points, error = records.difference(group, others)
    digits = digits or (1 if group[0]["tier"] == "mini" else 2)
    n = f" ({min(len(group), len(others))})" if seeds else ""
    return f"{signed(points, digits)} ± {error:.{digits}f}{n}"


def signed(points, digits=1):
    """ "+6.5", and "+0.0" for what is nothing."""
    return f"{round(points, digits) + 0.0:+.{digits}f}"


def ends(low, high):
    """ "[-1.2, 1.7]": an interval. An end near 0 or GAP has two digits: the answer depends on its side."""
    digits = (2 if abs(round(end, 1)) in (0, GAP) else 1 for end in (low, high))
    return "[{}, {}]".format(*(f"{round(end, n) + 0.0:.{n}f}" for end, n in zip((low, high), digits)))


def least_to_most(values, text):
    """ "0.18 to 0.31": the least and the greatest of some values by text(value); one if alike."""
    return " to ".join(dict.fromkeys(map(text, (min(values), max(values)))))


def summary(group, digits=None, sign=""):
    """ "88.96 ± 0.21 (3)": mean, standard error and number of seeds, at the mini tier if it is not SEEDS; a
    dash for none. Where some stayed at chance a mean alone would mislead: "70.12 ± 8.71 (5, 2 above
    chance)", "50.48 ± 0.35 (1, at chance)". digits: of the mini tier 1, else 2; sign: behind the numbers."""
    if not group:
        return "—"
    mean, error = records.mean_and_error(group)
    digits = digits or (1 if group[0]["tier"] == "mini" else 2)
    learnt = sum(r["test_acc"] > (r.get("chance") or 0) + 0.02 for r in group)
    count = f"{len(group)}"
    if learnt < len(group):
        count += f", {learnt} above chance" if learnt else ", at chance"
    numbers = f"{100 * mean:.{digits}f} ± {100 * error:.{digits}f}{sign}"
    no_seed = group[0]["model"] in records.WITHOUT_NETWORK
    usual = group[0]["tier"] == "mini" and len(group) == learnt == records.SEEDS
    return numbers if no_seed or usual else f"{numbers} ({count})"


def mean_of(group):
    """ "74.1", or "58.7 (2)" of another number of seeds than three; "" for none."""
    if not group:
        return ""
    mean, digits = 100 * records.mean_and_error(group)[0], 1 if group[0]["tier"] == "mini" else 2
    return f"{mean:.{digits}f}{f' ({len(group)})' if len(group) != records.SEEDS else ''}"


def seeds_of(groups):
    """ "n = 2 to 3": how many seeds the cells of a figure have."""
    few, most = min(map(len, groups)), max(map(len, groups))
    return f"n = {few}" if few == most else f"n = {few} to {most}"


def cost(group):
    """What a run took on average, in the tables of report() with its pretraining: "12 min", "5 min (GPU)", or
    a dash."""
    if not group:
        return "—"
    seconds = statistics.mean(r.get("both_halves") or records.seconds_of(r) for r in group)
    where = " (GPU)" if any("thread" not in r.get("device", "1 thread") for r in group) else ""
    return ("under 1 s" if seconds < 0.5 else common.hours(seconds)) + where


def label_of(record):
    """ "K=5; 30 epochs": a record for people."""
    return "; ".join(filter(None, [record["row"], records.in_words(record["changes"])]))


def paper_at(paper, row, at):
    """What the paper's table has in a row at one place: a percentage, a word ("infeasible") or None."""
    values = paper.get(row, ())
    return values[at] if at < len(values) else None


def paper_number(paper, row, tasks, task):
    """paper_at of a row for a task."""
    return paper_at(paper, row, tasks.index(task))


def paper_value(paper, row, at):
    """paper_at as text, "" for nothing."""
    value = paper_at(paper, row, at)
    return f"{value:.2f}" if isinstance(value, float) else value or ""


def to_paper(group, value):
    """ "+1.05 ± 0.20": how far a cell of full size is ahead of the paper's number, in points; "" without one.
    The error is ours alone; of one seed, which knows no other seeds, there is none."""
    if not group or group[0]["tier"] != "paper" or not isinstance(value, float):
        return ""
    mean, error = records.mean_and_error(group)
    return signed(100 * mean - value, 2) + f" ± {100 * error:.2f}" * (len(group) > 1)


def at_bag(group):
    """records.at_bag of a mini cell; False at other tiers, and for none."""
    return bool(group) and group[0]["tier"] == "mini" and records.at_bag(group, bag_of(group[0]))


def mark(*groups):
    """ "°" if one of some groups of records is at_bag."""
    return "°" * any(map(at_bag, groups))


def marked(group, digits=None):
    """summary of some records with their mark: "59.6 ± 0.5° (2)"."""
    return summary(group, digits, mark(group))


# ------------------------------------------------------------------------------------------ the report

NUMBERS = (
    f"standard error of {records.SEEDS} seeds, or of the number in brackets (how: docs/claims.md); "
    "accuracies on test in %, gaps of unrounded numbers"
)
OUR_READING = (
    'which row is "learned" and which has no techniques is our reading: the table is scrambled in our copy'
)
MORE = """\
Recipes, other trainings, further rows: --all-tiers
Further gaps, and differences of two: python claims.py --rows
"""
WORDS = "What the numbers and words mean:"
BEYOND, WITHOUT = "not in the paper's table", "no network"
AS_SAID = {  # what the answers of print_leads mean
    "yes": "the gap has the paper's sign (its size is not tested); where the paper has at most "
    f"{GAP:g} points or says that there is none, it is within ±{GAP:g}",
    "better": f'beyond ±{GAP:g} on the good side (the sentence says "as good", it is ahead)',
    "no": f"the other sign; or no gap (within ±{GAP:g}) where the paper has one; or a gap where it has none",
    "open": "the interval does not tell",
    "open°": "both models learnt no order",
}
MEANINGS = {f"| {answer} |": meaning for answer, meaning in AS_SAID.items()}
MEANINGS |= {  # of words in any report
    "cost": "CPU time of a run; (GPU): wall time",
    "no techniques": 'without A\'s training techniques: restoring corrupted bytes (Text: "denoising"), '
    "shuffled arguments (ListOps), augmentation (Image; mini tier: flips), three difficulty sets "
    "(Pathfinder)",
    "≈ 0": "what the paper says in words: there is no difference",
    "bag of symbols": "the model sees which symbols occur, not where",
    "commonest training label": "as the answer to every test example",
    "commonest of each operation": "the answer that is most frequent in training for the root's operation",
    "°": f"learnt no order: at most {GAP:g} points above K = 1, a bag of symbols; at a gap: one of its "
    "models, or both",
    "[95 %]": "the interval by seeds and test set",
    WITHOUT: "a linear model, or on ListOps a rule by hand: python floors.py",
}
MINI = """\
Small data, small models, most of them not trained to their end. Compare rows
with each other, and not with the paper's at full size. Of a large gap the sign
is mostly the paper's, but not always: python claims.py counts.
"""
REDUCED = """\
Fewer epochs or examples than in the paper, mostly one seed: too little to judge
the paper by.
"""


def explain(text, meanings, numbers=NUMBERS):
    """Print a text, and below it what its numbers and words mean, in the order in which they occur. meanings:
    {words: meaning}; of "S4D, LRU" only what stands in the text is explained; "same / other" as one."""
    print(text, end="")
    flat, found = " ".join(text.split()), []  # with words that a line's end parts
    for words, meaning in ({" ± ": numbers} | meanings).items():
        places = {word: [flat.find(w) for w in word.split(" / ") if w in flat] for word in words.split(", ")}
        if known := [word for word, at in places.items() if at]:
            # The answers stand together, where their column is first named.
            column = [flat.find("as said?")] if words.startswith("|") else []
            first = min(column or itertools.chain(*places.values()))
            found.append((first, ", ".join(known).strip(" |"), meaning))
    lines = []
    for _, known, meaning in sorted(found, key=lambda one: one[0]):
        indent = f"    {known:15} " if len(known) < 16 else f"    {known}: "
        lines.append(textwrap.fill(meaning, 80, initial_indent=indent, subsequent_indent=" " * 20))
    print("\n".join([WORDS, "", *lines, "\n"]) if lines else "", end="")


def report(
    args, script, title, tasks, titles, paper,
    *, also=None, short=None, floors=None, leads=None, apart=None, meanings=None, first="", more=None,
    labels=None, said="",
):  # fmt: skip
    """Print the tables of a script, your records and this repository's in columns of their own.

    tasks, titles   the columns of the paper's table; {task: title}
    paper           {row: the paper's accuracies in percent, in the order of tasks, and their average}
    also            {another script: record -> its row here, see rows_of}: runs that this table needs too
    short           {task: a short title}, for a table with a column each
    floors          {task: what the record of its rule without a network has, such as its "cell"}
    leads           {name: Lead}
    apart           record -> whether the script prints it in a table of its own
    meanings        {words: what they mean}; printed below the tables that they stand in
    first           the flags of a cell to begin with at full size
    more            what prints further tables of the script, before the words are explained
    labels          {row: another name for it in the table of the paper's numbers}
    said            what the paper says of the leads
    """
    if args.smoke:
        return
    exp, chosen = records.experiment(script), args.task and "all" not in args.task and args.task
    if args.against:
        return compare(args, exp, titles)
    known, leads = records.yours_and_ours(args.out), leads or {}
    both = [records.rows_of(found, exp, also or {}) for found in known]
    both = [[r for r in found if not (apart and apart(r))] for found in both]
    both = without_guests(both, exp)
    shown = [task for task in tasks if not chosen or task in chosen]
    copied = both[0] and not both[1]  # of a copy this repository has no run: its own rows are enough
    ran_at = [{r["tier"] for r in found} for found in both]
    tiers = tiers_of(args, *ran_at)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        for tier in tiers:
            yours, ours = ([r for r in found if r["tier"] == tier and r["task"] in shown] for found in both)
            shortly = tier == "mini" and paper and not args.all_tiers
            if shortly:
                ours = of_the_paper(ours, yours, paper, leads)
            full = tier == "paper" and paper and (yours or ours or not copied)
            if not (yours or ours or full):
                continue
            ran = [task for task in shown if any(r["task"] == task for r in (*yours, *ours))]
            not_run = ": not run" if full and not ran else ""
            print(f"### {title} ({records.TIERS[tier]}{not_run})\n")
            if words := {"mini": MINI if paper else "", "reduced": REDUCED}.get(tier):
                print(words)
            if not_run:
                print_first(script, first)
            rules = floors_of(known[1], shown, tier, floors or {})
            gaps = gaps_of(leads, yours or ours, tasks, paper)
            if tier == "mini":
                gaps = told(gaps) if shortly and not yours else gaps
                if said and any(gaps.values()):
                    print(textwrap.fill(said, 80) + "\n")
                print_short(gaps, titles)
                print_leads(gaps, titles)
            for task in ran:
                found = [r for r in (*ours, *yours) if r["task"] == task]
                beside = {} if (tier, task) in OTHER_TASK else paper
                print_task(task, titles[task], tasks, tier, yours, ours, beside, rules[task], args.all_tiers)
                print_recipe(titles[task], recipe_rows(found), found, short=shortly)
                print_rates(task, titles[task], yours, ours if args.all_tiers else ())
            if tier != "mini":
                print_leads(gaps, titles)
            if full:
                rest = [task for task in shown if task not in ran]
                known_as = {(labels or {}).get(row, row): numbers for row, numbers in paper.items()}
                print_papers(
                    [task for task in rest if task in tasks], tasks, short or titles, known_as, rules
                )
                print_averages(tasks, yours, ours, paper, bare=False)
        if more:
            more()
        if "mini" in tiers and paper and not args.all_tiers:
            print(MORE)
    explain(printed.getvalue(), MEANINGS | (meanings or {}))
    print_elsewhere(args, script, tiers, ran_at[1])
    print(unfinished(args.out, exp), end="")


def without_guests(both, exp):
    """Your records and ours without the mini ones of other scripts on tasks that this script has not run:
    alone they compare nothing that its table asks for."""
    own = {r["task"] for found in both for r in found if r["tier"] == "mini" and r["exp"] == exp}
    return [[r for r in found if r["tier"] != "mini" or r["task"] in own] for found in both]


def of_the_paper(ours, yours, paper, leads):
    """This repository's records of the mini tier without rows that the paper neither prints nor writes about
    (see leads), but with those that you have run and the bag of symbols. And, where a task has more, without
    tasks of one row, which is compared with none."""
    named = {row for lead in leads.values() if lead.said is not None for row in lead[:2]}
    named |= {r["row"] for r in yours}
    found = [r for r in ours if of_table(r["row"], paper) or r["row"] in named or records.is_bag(r)]
    by_task = records.grouped(found, lambda r: r["task"])

    def rows(group):
        return {r["row"] for r in group if not records.is_bag(r)}

    compared = {task for task, group in by_task.items() if len(rows(group)) > 1}
    return [r for r in found if not compared or r["task"] in compared | {r["task"] for r in yours}]


def print_first(script, flags, hours="Its hours on your machine: python bench.py step"):
    """What stands in place of ours where nobody has run a table at full size."""
    print(f"A cell to begin with, on a GPU:\npython {Path(script).name} {flags}\n{hours}\n")


def tiers_of(args, yours, ours):
    """The tiers that a report shows: full size, and others where you have runs or a flag asks for them; what
    has runs comes last, where the eye is. yours, ours: the tiers of the records."""
    if args.mini:
        return ["mini"]
    others = ["reduced", "mini"] if args.report else ["reduced"]
    chosen = [tier for tier in others if tier in yours or args.all_tiers] + ["paper"]
    return sorted(chosen, key=lambda tier: tier in yours | ours)


def print_elsewhere(args, script, tiers, ours):
    """Where those of this repository's tables are that the report has left out. ours: the tiers of its
    records."""
    left = {
        "mini": ("of the mini tier", "--mini"),
        "reduced": ("with fewer epochs or examples", "--all-tiers"),
    }
    if args.report and not args.mini:
        for where, flag in (words for tier, words in left.items() if tier in ours and tier not in tiers):
            print(f"Runs {where}: python {Path(script).name} --report {flag}")


def unfinished(out, exp):
    """A line for each run of an experiment under `out` that was stopped, with its command; "" without any."""
    lines = ""
    for path in sorted(out.glob("*/last.pt")):
        command = path.parent.name
        if (diverged := path.with_name(records.DIVERGED)).exists():
            lines += f"Diverged: {path.parent}: {diverged.read_text(encoding='utf-8')}\n"
        elif command.removeprefix("mini-").startswith(f"{exp}-"):
            with contextlib.suppress(UserError, KeyError):  # of a damaged file the name must do
                starts = common.load_checkpoint(path, "cpu")["starts"]
                command = f"python {shlex.join(starts[-1]['argv'])}"
            lines += f"Not finished; repeat its command or delete {path.parent}: {command}\n"
    return lines


def compare(args, exp, titles):
    """Each row of a copied script beside the same row of its original, or beside the row that --against names
    after a colon: your runs of that, or ours."""
    script, _, named = str(args.against).partition(".py:")
    original, (yours, ours) = records.experiment(script), records.yours_and_ours(args.out)
    whose, known = "yours", [r for r in yours if r["exp"] == original]
    if not known:
        whose, known = "this repository's", [r for r in ours if r["exp"] == original]
    if not known:
        raise UserError(f"no run of {original} is known; give a script that has been run")
    rows = sorted({r["row"] for r in known}, key=naturally)
    if named and named not in rows:
        raise UserError(f"{original} has no row {named}; it has {', '.join(rows)}")
    mine = records.grouped([r for r in yours if r["exp"] == exp], lambda r: (r["tier"], records.row_key(r)))
    lines, notes, lacking = [], [], []
    for group in mine.values():
        group, first = records.best_recipe(group), group[0]
        same = {"tier": first["tier"], "task": first["task"], "changes": first["changes"]}
        same["row"] = named or first["row"]
        other = records.best_recipe([r for r in known if same.items() <= r.items()])
        where = ", ".join(filter(None, [titles.get(first["task"], first["task"]), first["row"]]))
        where = "; ".join(filter(None, [where, records.in_words(first["changes"])]))
        words = "—"
        if other:
            words = lead(group, other)
            now, was = (of[0]["hp"].get("train", {}) for of in (group, other))
            differ = [key for key in now | was if now.get(key) != was.get(key)]
            notes += [f"{where}: {k} is {now.get(k)}, in the original {was.get(k)}." for k in differ]
        else:
            lacking.append(first.get("argv", []))
        lines.append([where, records.TIERS[first["tier"]], summary(group), summary(other), words])
    if not lines:
        smoke = any(r["exp"] == exp for r in records.read_records([args.out / "results.jsonl"]))
        kind = "only smoke runs" if smoke else "no finished run"
        raise UserError(
            f"{exp} has {kind} in {args.out}; train with --mini\n{unfinished(args.out, exp)}".rstrip()
        )
    print(f"### {exp} (yours) against {original} ({whose})\n")
    show(["", "tier", exp, original, "difference"], lines)
    if any(len(group) == 1 for group in mine.values()):
        print("±: of one seed the error is only that which the size of the test set gives.")
    for argv in lacking:
        command = [f"{Path(script).name.removesuffix('.py')}.py", *argv[1:]]
        print(f"— needs the original with the same flags: python {shlex.join(command)}")
    print("".join(f"{note}\n" for note in notes), end="")
    print(unfinished(args.out, exp))


# ------------------------------------------------------------------------------------------ its parts


def print_task(task, title, tasks, tier, yours, ours, paper, rule, searched):
    """The rows of one task that were trained by the script's recipe; those with another, under what was
    changed in it; the bag of symbols, and the rule without a network. Rows that only the paper has are shown
    at full size alone. searched: see changed_lines."""
    at, full = tasks.index(task), tier == "paper"
    usual = [[r for r in found if r["task"] == task and not r["changes"]] for found in (yours, ours)]
    bare = [row for row in paper if full and paper_value(paper, row, at)]
    lines, notes = lines_of(*usual, paper, at, bare)
    changed, more = changed_lines(task, tier, yours, ours, paper, at, searched)
    if lines:
        bag_rows = {r["row"] for found in usual for r in found if records.is_bag(r)}
        bags = [line for line in lines if line[0] in bag_rows]
        of_paper = [line for line in lines if of_table(line[0], paper)]
        others = [line for line in lines if line not in of_paper + bags]
        below = bags_below([*usual[0], *usual[1]]) if tier == "mini" else {}
        below |= {WITHOUT: rule} if rule else {}
        lines = of_paper + under(BEYOND if paper else "", others) + changed
        lines += baseline_rows([*usual[0], *usual[1]]) + bags
        lines += [[name, "", summary(group), cost(group), "", ""] for name, group in below.items()]
    last = [r for r in (*usual[0], *usual[1]) if bare and "test_acc_last" in r]
    if last:
        words = (f"{r['row']}, seed {r['seed']}, {100 * r['test_acc_last']:.2f}" for r in last)
        notes.append(f"Test accuracies at the best validation; after the last epoch: {'; '.join(words)}.")
        notes.append("± of one seed is the error of the test set alone; other seeds may stray by more.")
    if lines or changed:
        header = [title, "yours", "this repository", "cost", "paper" if full else "paper, full", "difference"]
        print_table(header, lines or changed, notes + more)


def changed_lines(task, tier, yours, ours, paper, at, searched):
    """Lines of the rows of a task that were not trained by the table's recipe, under what was changed, and
    footnotes. searched: with this repository's mini rows of few seeds; yours are there."""
    of_task = ((r for r in found if r["task"] == task) for found in (yours, ours))
    here = [[r for r in found if r["changes"] and not is_rate(r)] for found in of_task]
    if tier == "mini" and not searched:
        here[1] = [r for group in changed_of(here[1]).values() if not is_aside(group) for r in group]
    changes = {records.in_words(r["changes"]): r["changes"] for found in here for r in found}
    lines, notes = [], []
    for words in sorted(changes, key=naturally):
        same = ([r for r in found if r["changes"] == changes[words]] for found in here)
        rows, more = lines_of(*same, paper, at)
        lines += under(words, [[*row[:-2], "", ""] for row in rows] if tier == "mini" else rows)
        notes += more
    return lines, notes


def changed_of(found):
    """{(row, its recipe in words): records} of those that have not the table's recipe, without rates."""
    changed = (r for r in found if r["changes"] and not is_rate(r))
    return records.grouped(changed, lambda r: (records.row_key(r), records.in_words(r["changes"])))


def is_aside(group):
    """Whether a mini report leaves a row with a changed recipe to --all-tiers: it has few seeds."""
    return len(group) < records.SEEDS


def is_rate(record):
    """Whether a run of the mini tier differs from its table's recipe by the rate alone: it was a search."""
    return record["tier"] == "mini" and record["changes"].keys() == {"lr"}


def print_rates(task, title, yours, ours):
    """A sentence on the rates that were tried for rows of one task, yours or else ours."""
    tried = ([r for r in found if r["task"] == task and is_rate(r)] for found in (yours, ours))
    rates = {}
    for group in records.grouped(next(filter(None, tried), ()), records.row_key).values():
        group = records.best_recipe(group)
        rates.setdefault(group[0]["changes"]["lr"], []).append(f"{group[0]['row']} {summary(group)}")
    if rates:
        words = "; ".join(f"{', '.join(rows)} at lr {lr:g}" for lr, rows in sorted(rates.items()))
        print(textwrap.fill(f"Other rates, {title}: {words}.", 80, break_on_hyphens=False) + "\n")


def print_papers(rest, tasks, short, paper, rules):
    """The paper's numbers for tasks that nobody has run at full size, and the rules without a network."""
    if not rest:
        return
    places = [tasks.index(task) for task in rest] + [len(tasks)]
    lines = [[row, *(paper_value(paper, row, i) for i in places)] for row in paper]
    lines = [line for line in lines if any(line[1:])]
    lines += [[*floor_line(rest, rules), ""]] * any(rules[task] for task in rest)
    where = " of tasks not run here at full size" * (len(rest) < len(tasks))
    print(f"The paper's test accuracies in %{where}:\n")
    header, *lines = columns_in_use(["", *(short[task] for task in rest), "mean"], lines)
    show(header, lines)


def print_averages(tasks, yours, ours, paper, bare=True):
    """Averages over all tasks: ours of rows that every task has, beside those that the paper prints; bare:
    the paper's other rows, too."""

    def averages(found):
        full = [r for r in found if r["tier"] == "paper" and not r["changes"]]
        for row, group in records.grouped(full, lambda r: r["row"]).items():
            cells = records.grouped(group, lambda r: r["task"])
            if {*tasks} <= cells.keys():
                means = [records.mean_and_error(records.best_recipe(cells[task]))[0] for task in tasks]
                yield row, f"{100 * statistics.mean(means):.2f}"

    found, n = [dict(averages(yours)), dict(averages(ours))], len(tasks)
    rows = [row for row in paper if bare and paper_value(paper, row, n)]
    rows = list(dict.fromkeys([*rows, *found[0], *found[1]]))
    lines = [[row, *(known.get(row, "") for known in found), paper_value(paper, row, n)] for row in rows]
    if lines:
        print_table([f"average of {n}", "yours", "this repository", "paper"], lines)


class Lead(NamedTuple):
    """Two rows of a table: how far is the first ahead of the second?"""

    row: str
    other: str
    said: tuple | float | None = None  # what the paper has of it, if not these rows: two others, or points
    side: str = ""  # on which a gap suits the paper's sentence even more: "+" above 0, "-" below


class Gap(NamedTuple):
    """How far one row is ahead of another, on one task, both by one recipe."""

    task: str
    words: str  # what was changed in the table's recipe
    epochs: int  # how long it was
    groups: tuple  # the records of the one and of the other
    paper: float | None = None  # the paper's gap in points, whatever was changed
    kind: str = ""  # of trainings that are not one the longer of the other
    side: str = ""  # of its Lead

    @property
    def in_numbers(self):
        """ "+2.4 [0.4, 4.4]", points and their interval; of few seeds with an error and their number, of one
        seed at full size without an error, which would be that of the test set alone."""
        if self.tier == "paper" and self.seeds == 1:
            return f"{self.alone} (1 seed)"
        if self.tier != "mini" or self.few:
            return lead(*self.groups, seeds=True)
        return f"{self.alone} {ends(*self.interval)}"

    @property
    def points(self):
        return records.difference(*self.groups)[0]

    @property
    def alone(self):
        """ "+2.4": points without their error."""
        return signed(self.points, 1 if self.tier == "mini" else 2) + self.bag

    @property
    def length(self):
        """ "4 epochs" of the mini tier's tables, where `words` do not say it."""
        said = self.kind or self.groups[0][0]["changes"].keys() & {"epochs", "steps"}
        return f"{self.epochs} epochs" if self.tier == "mini" and not said else ""

    @property
    def reading(self):
        """What its interval says, by records.read_interval; of few seeds "" as where the paper has no gap."""
        bags = all(map(at_bag, self.groups))
        return "" if self.few else records.read_interval(self.paper, *self.interval, bags)

    @property
    def as_said(self):
        """Whether it is as the paper says: "yes", "better", "no" or "open"; "" without a reading."""
        return records.as_there(self.reading, self.side)

    @property
    def training(self):
        """ "masked, 4+4", "12 epochs, A's augmentation": its kind and what was changed in its recipe."""
        return ", ".join(filter(None, [self.kind, self.length, self.words]))

    def where(self, titles):
        """Its task in words, "Pathfinder, an easy level" where the paper has another."""
        return titles[self.task] + ", an easy level" * ((self.tier, self.task) in OTHER_TASK)

    @property
    def tier(self):
        return self.groups[0][0]["tier"]

    @property
    def seeds(self):
        """The smaller of their numbers of seeds."""
        return min(map(len, self.groups))

    @property
    def few(self):
        """Whether one of both has too few seeds for a reading."""
        return self.seeds < records.SEEDS

    @property
    def interval(self):
        return records.interval(*records.difference(*self.groups), self.tier, [self.task])

    @property
    def bag(self):
        """ "°" where one of both has learnt little, see mark."""
        return mark(*self.groups)


def gaps_of(leads, found, tasks, paper):
    """{name of a lead: its Gaps}, wherever both of its rows were trained by one recipe. Rates that were tried
    are left out. A row without techniques is compared with all techniques that the other was given."""
    gaps = {}
    for name, (*pair, said, side) in leads.items():
        one, other = (records.grouped((r for r in found if r["row"] == row), place_of) for row in pair)
        gaps[name] = []
        for place in sorted(one, key=lambda place: (tasks.index(place[0]), naturally(place[1]))):
            task, words = place
            changes = dict(one[place][0]["changes"])
            twin = other.get(place)
            if not twin and changes.pop("technique", None):
                twin = other.get((task, records.in_words(changes)), ())
                twin = [r for r in twin if not r["hp"]["train"]["technique"]]
            if twin and changes.keys() != {"lr"}:
                beside = {} if (one[place][0]["tier"], task) in OTHER_TASK else paper
                groups = tuple(records.best_recipe(group) for group in (one[place], twin))
                epochs = one[place][0]["hp"].get("train", {}).get("epochs", 0)
                gap = said if isinstance(said, float) else paper_gap(said or pair, beside, tasks, task)
                gaps[name].append(Gap(task, words, epochs, groups, gap, side=side))
    return gaps


def paper_gap(pair, paper, tasks, task):
    """How far the paper's table has one row ahead of another, in points; None where a number is missing."""
    printed = [paper_number(paper, row, tasks, task) for row in pair]
    return round(printed[0] - printed[1], 2) if all(isinstance(x, float) for x in printed) else None


def gap_in_words(points):
    """ "+12.65": a gap of a paper's table; "≈ 0" or "> 0" where it says that in words; "" for none."""
    if points is None or points == math.inf:
        return "" if points is None else "> 0"
    return f"{points:+.2f}" if points else "≈ 0"


def print_short(gaps, titles):
    """The lines of in_short below what they are."""
    print_list("In short: gaps in points, and how often they are as the paper says", in_short(gaps, titles))


def in_short(gaps, titles):
    """Of each lead of gaps_of, by those gaps that have an answer, the least and the largest of each task, and
    how often the paper says so: lines such as "gMLP over S5: Image -2.0 to +5.0; yes in 2 of 3, no in 1"."""
    lines = []
    for name, of_lead in gaps.items():
        if known := [gap for gap in of_lead if gap.as_said]:
            tasks = records.grouped(known, lambda gap: gap.task).items()
            points = (f"{titles[t]} {least_to_most([gap.points for gap in of], signed)}" for t, of in tasks)
            answers = [gap.as_said for gap in known]
            first, *more = (f"{word} in {answers.count(word)}" for word in AS_SAID if word in answers)
            lines.append(f"{name}: {', '.join(points)}; {', '.join([f'{first} of {len(known)}', *more])}")
    return lines


def sum_of_answers(gaps):
    """ "As the paper says, or better: 4 of 13; not: 5; open: 4.", of gaps_of; "" for a single one."""
    answers = [gap.as_said for of_lead in gaps.values() for gap in of_lead if gap.as_said]
    no, still = map(answers.count, ("no", "open"))
    yes = f"As the paper says, or better: {len(answers) - no - still} of {len(answers)}"
    return f"{yes}; not: {no}; open: {still}." if len(answers) > 1 else ""


def print_leads(gaps, titles):
    """A table of gaps_of: how far is one row ahead of another? At the mini tier with the 95 % interval."""
    lines = []
    for name, of_lead in gaps.items():
        rows = []
        for gap in of_lead:
            label = ", ".join(filter(None, [gap.where(titles), gap.training]))
            answer = gap.as_said + "°" * (gap.reading == records.BAG)
            rows += folded([label, gap.in_numbers, gap_in_words(gap.paper), answer])
        lines += under(name, rows)
    if lines:
        here = "here [95 %]" if any("[" in line[1] for line in lines) else "here"
        print_table(["how far ahead, in points", here, "paper", "as said?"], lines)
        if summed := sum_of_answers(gaps):
            print(f"{summed}\n")


def counts(sides):
    """{"ahead": ["7 of 11"], ...}, for by_side, of a list of sides."""
    return {side: [f"{sides.count(side)} of {len(sides)}"] for side in sides}


def by_side(names):
    """ "ahead of A, B; level with C", of {"ahead", "level" or "behind", see records.side: [names]}."""
    words = {"ahead": "ahead of", "level": "level with", "behind": "behind"}
    return "; ".join(f"{words[side]} {', '.join(names[side])}" for side in words if names.get(side))


def listed(words):
    """ "a, b and c" """
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def told(gaps):
    """Of Gaps, {name: [Gap]}, those that the paper has, too, without those of few seeds: what a report tells
    unless it is asked for more."""
    return {
        name: [gap for gap in of_lead if gap.paper is not None and not gap.few]
        for name, of_lead in gaps.items()
    }


def best_rows(found):
    """{task: (the row that has most on average, its percent)} of records: of a row the recipe that validated
    best, as its table has it."""
    bests = {}
    for group in map(records.best_recipe, records.grouped(found, records.row_key).values()):
        task, accuracy = group[0]["task"], 100 * records.mean_and_error(group)[0]
        if task not in bests or accuracy > bests[task][-1]:
            bests[task] = label_of(group[0]), accuracy
    return bests


def best_network(rule):
    """What the best of this repository's networks has where a rule of the mini tier was run, as half a
    sentence; "" at other tiers, and for none."""
    if rule["tier"] != "mini":
        return ""
    bests = best_rows(mini_networks(rule["task"]))
    if not bests:
        return ""
    name, accuracy = bests[rule["task"]]
    return f"the best network of the mini tier here has {accuracy:.1f} ({name})"


def mini_networks(task):
    """This repository's records of networks of the mini tier on a task."""
    same = {"task": task, "tier": "mini"}
    networks = [r for r in records.published() if same.items() <= r.items() and "score" not in r]
    return [r for r in networks if r["model"] not in records.WITHOUT_NETWORK]


def place_of(record):
    """The task of a record and what was changed in its recipe, in words."""
    return record["task"], records.in_words(record["changes"])


def lines_of(yours, ours, paper, at, bare=()):
    """The lines of a table, a row's records as one, in table_order, and footnotes. bare: further labels, of
    rows that only the paper has."""
    rows = {label: ([], []) for label in bare}
    for whose, found in enumerate((yours, ours)):
        for r in found:
            rows.setdefault(records.row_key(r), ([], []))[whose].append(r)
    first = {key: (both[0] or both[1])[0] for key, both in rows.items() if any(both)}
    for label in bare:
        if any(r["row"] == label for r in first.values()):
            del rows[label]
        else:
            first[label] = {"row": label, "model": "", "cell": {}}
    lines, notes = [], []
    for key in sorted(rows, key=lambda key: table_order(first[key], paper)):
        (mine, note), (theirs, other) = map(records.one_recipe, rows[key])
        notes += filter(None, [note, other])
        label = first[key]["row"]
        numbers = [marked(mine), marked(theirs), cost(theirs or mine), paper_value(paper, label, at)]
        lines.append([label, *numbers, to_paper(mine or theirs, paper_at(paper, label, at))])
    return lines, notes


def table_order(record, paper):
    """A key to sort by: rows of the paper's table in its order, beside each its twin with or without
    techniques, then others by model and cell."""
    rows, row, twin = list(paper), record["row"], twin_of(record["row"])
    at = rows.index(row) if row in paper else rows.index(twin) + 0.5 if twin in paper else len(rows)
    return at, naturally(record["model"]), naturally(json.dumps(record["cell"], sort_keys=True))


def twin_of(row):
    """The row without techniques of one with them, and the other way round."""
    without = ", no techniques"
    return row.removesuffix(without) if row.endswith(without) else row + without


def of_table(row, paper):
    """Whether the paper's table has a row or its twin_of."""
    return row in paper or twin_of(row) in paper


RECIPE = {"epochs": "{} epochs", "examples": "{:,} examples", "batch_size": "batch {}"}  # row -> text
RECIPE |= {"lr": "lr {:g}", "lr_pretrain": "lr of SPT {:g}", "depth": "{} layers", "d_model": "width {}"}
RECIPE |= {"weight_decay": "weight decay {:g}", "technique": "{}"}
FEW_WORDS = "epochs", "examples", "technique"
UNITS = {"text": "bytes", "retrieval": "bytes", "listops": "symbols"}  # of others pixels
OTHER_TASK = {("mini", "pathfinder")}  # an easy level of our own: the papers' numbers are of another task


def print_recipe(title, rows, found, inputs=None, more="", named="; ".join, short=False):
    """Print the recipe of a task's tables and what the records of that task say of the data: a paragraph.
    Below it a line for the rows that have something else instead. rows: {label: what RECIPE names, as the
    table has it}; inputs: how the models read an input, in words, if not as data.INPUTS says; more: further
    sentences; named: labels as text; short: only what a reader of the table needs."""
    usual, others = {}, {label: [] for label in rows}

    def said(row, value):
        return RECIPE[row].format(records.TECHNIQUES.get(value, value))

    for row in FEW_WORDS if short else RECIPE:
        of_row = {label: recipe[row] for label, recipe in rows.items() if recipe.get(row)}
        if of_row:
            usual[row] = statistics.mode(of_row.values())
        for label, value in of_row.items():
            if value != usual[row]:
                others[label].append(said(row, value))
    if not usual:
        return
    parts = [said(row, value) for row, value in usual.items()]
    tier, task = found[0]["tier"], found[0]["task"]
    full = data.SHAPES.get(task, {}).get("max_length")
    length = {"mini": data.MINI_LENGTHS.get(task), "paper": full}.get(tier)
    if length:  # a task of one's own is not in data.py
        parts.append(f"inputs of at most {length:,} {UNITS.get(task, 'pixels')}")
    parts += filter(None, [inputs or data.INPUTS.get(task)])
    words = f"{'' if short else 'Recipe, '}{title}: {', '.join(parts)}."
    if any(r["data"].get("official") is False for r in found):
        words += " Not the official images."
    if (tier, task) in OTHER_TASK:
        words += " An easy level of our own, which no paper has."
    print(textwrap.fill(words + more, 80, break_on_hyphens=False))
    for differs, labels in records.grouped(others, lambda label: ", ".join(others[label])).items():
        if differs and not short:
            line = f"- {named(labels)}: {differs}"
            print(textwrap.fill(line, 80, subsequent_indent="  ", break_on_hyphens=False))
    print()


def unchanged(record):
    """What RECIPE names of a record's recipe, without what it changes of its table's."""
    rows = record["hp"].get("model", {}) | record["hp"].get("train", {})
    rows |= {"examples": record["data"].get("counts", {}).get("train")}
    other = {"limit": "examples", "steps": "epochs"}
    changed = {other.get(row, row) for row in record["changes"]}
    return {row: rows.get(row) for row in RECIPE if row not in changed}


def recipe_rows(found):
    """{label: what print_recipe reads} of some records of a task; those by the table's recipe come first."""
    rows = {}
    for r in sorted(found, key=lambda r: len(r["changes"])):
        for row, value in unchanged(r).items():
            rows.setdefault(r["row"], {}).setdefault(row, value)
    return rows


def baseline_rows(found):
    """What rules get that need no model, as far as some records say."""
    known = next((rules for r in found if (rules := r["data"].get("baselines"))), {})
    names = {"majority": "commonest training label", "root rule": "commonest of each operation"}
    return [[names[rule], "", f"{100 * value:.1f}", "", "", ""] for rule, value in known.items()]


def floor_of(ours, task, has, tier="paper"):
    """The records of a rule without a network on a task: of a tier the one that has something, or []."""
    wanted = {"task": task, "tier": tier, "changes": {}} | has
    return [r for r in ours if wanted.items() <= r.items()][:1]


def floors_of(ours, tasks, tier, floors):
    """{task: floor_of it at a tier}. floors: {task: what the record of its rule has}."""
    return {task: floor_of(ours, task, floors[task], tier) if task in floors else [] for task in tasks}


def floor_line(tasks, rules):
    """The line of a table with a column a task that has the rules without a network, see floors_of."""
    percent = (f"{100 * records.mean_and_error(rules[task])[0]:.2f}" if rules[task] else "" for task in tasks)
    return [WITHOUT, *percent]


def under(words, rows, width=34):
    """Rows of a table under a line of words, such as what was changed in their recipe; without words the rows
    alone. width: how many letters the line may have, if no row has more."""
    if not rows or not words:
        return rows
    width = max(width, *(len(label) + 2 for label, *_ in rows))
    heading = [[part] + [""] * (len(rows[0]) - 1) for part in behind_commas(f"{words}:", width)]
    return heading + [[f"  {label}", *numbers] for label, *numbers in rows]


def behind_commas(text, width, indent=""):
    """The lines of a text that is cut behind commas alone."""
    whole = re.sub("(?<!,) ", "\xa0", text)
    lines = textwrap.wrap(whole, width, subsequent_indent=indent, break_long_words=False)
    return [part.replace("\xa0", " ") for part in lines]


def folded(row, width=28):
    """A row of a table as rows: its first cell has at most `width` letters a line."""
    *above, last = behind_commas(row[0], width, "  ")
    return [[part] + [""] * (len(row) - 1) for part in above] + [[last, *row[1:]]]


def print_table(header, lines, notes=()):
    """Without the columns that nothing stands in; footnotes below."""
    lines = [["" if cell == "—" else cell for cell in line] for line in lines]
    header, *lines = columns_in_use(header, lines)
    print(markdown(header, lines) + "\n" * bool(notes))
    for note in notes:
        print(textwrap.fill(note, 80))
    print()


def columns_in_use(header, lines):
    """The rows of a table without columns that are empty."""
    used = [i for i in range(len(header)) if i == 0 or any(line[i] for line in lines)]
    return [[line[i] for i in used] for line in (header, *lines)]


def print_list(heading, lines):
    """A heading and lines below it, each with a dash; nothing without lines."""
    if lines := [*lines]:
        print(f"{textwrap.fill(heading, 80)}\n\n" * bool(heading) + f"{bullets(lines, 80)}\n")


def bullets(lines, width):
    """Lines as text, each with a dash."""
    return "\n".join(textwrap.fill(f"- {line}", width, subsequent_indent="  ") for line in lines)


# ------------------------------------------------------------------------------------------ figures

BLUE, ORANGE, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "0.6"  # told apart by colour-blind readers

COLOURS = {("conv", 1): GREY, ("conv", 5): ORANGE, ("conv", 31): "#7A3B00", ("bag", None): GREY}
COLOURS |= {("gmlp", None): GREEN, ("s4", None): BLUE, ("s5", None): "#E69F00"}
COLOURS |= {("transformer", None): "#CC79A7"}  # of a model and its kernel


def colour(model, cell, i):
    """That of a model and its kernel, alike in all figures of lines; of others the i-th of matplotlib's."""
    return COLOURS.get((model, cell.get("kernel")), f"C{i}")


def pyplot():
    """matplotlib.pyplot, drawing into files: imported only where a figure is made."""
    try:
        import matplotlib

        matplotlib.use("Agg")
        import matplotlib.pyplot
    except ImportError:
        raise UserError("figures need matplotlib: pip install matplotlib") from None
    return matplotlib.pyplot


BAG = dict(color="0.4", linestyle="--", linewidth=1, label="a bag of symbols (K = 1)")


def bag_of(record):
    """This repository's records of the bag of symbols that a mini record is compared with, or []."""
    known = ([r for r in records.published() if bag.items() <= r.items()] for bag in records.bags_of(record))
    return next(filter(None, known), [])


def bags_below(found):
    """{label: records} of the bags of symbols that some mini records are compared with, without those that
    are rows of the same table."""
    rows = {r["row"] for r in found}
    bags = {bag[0]["row"]: bag for bag in map(bag_of, found) if bag}
    return {row.removesuffix(", s=1"): bag for row, bag in sorted(bags.items()) if row not in rows}


def panels(titles, size=(5, 3.6), columns=4, **how):
    """(figure, [axis]) of one panel a title, each of `size` inches, with a grid."""
    columns = min(columns, len(titles))
    lines = math.ceil(len(titles) / columns)
    inches = (max(6.5, size[0] * columns), 0.6 + size[1] * lines)
    figure, axes = pyplot().subplots(
        lines, columns, figsize=inches, squeeze=False, layout="constrained", **how
    )
    for axis in axes.flat[len(titles) :]:
        axis.remove()
    for axis, title in zip(axes.flat, titles):
        axis.set_title(title, fontsize=10)
        axis.grid(alpha=0.3)
    return figure, list(axes.flat[: len(titles)])


def errorbars(axis, x, groups, **style):
    """The accuracies of groups of records, in percent with their standard errors, against x."""
    y, errors = zip(*((100 * value for value in records.mean_and_error(group)) for group in groups))
    axis.errorbar(x, y, yerr=errors, capsize=3, **style)


def legend_below(figure, axes):
    """One legend for all panels, of what some panel shows."""
    handles = {}
    for axis in axes:
        handles |= dict(zip(*reversed(axis.get_legend_handles_labels())))
    fits = int(13 * figure.get_figwidth() / (6 + max(map(len, handles))))  # by the longest name
    style = dict(loc="outside lower center", ncols=max(1, min(4, fits)), frameon=False)
    figure.legend(handles.values(), handles.keys(), **style)


def save_figure(figure, path):
    """Write a figure, say where, and free it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    pyplot().close(figure)
    print(f"figure: {path}")


def plot_curves(runs, path, paper=None, title="Accuracy after each epoch"):
    """Accuracy of some runs after each epoch: validation, with its standard error over seeds, and training
    (thin). Runs that differ by the seed alone are one line, their mean. paper: a test accuracy in percent, or
    None; title: what the picture says."""
    logged, lines = records.curves(), {}
    known = records.published() + records.newest({run.parent / "results.jsonl" for run in runs})
    known = {r["run"]: r for r in known}
    for run in runs:
        record = known.get(run.name)  # of a run that has not ended there is none
        recipe = json.dumps([records.row_key(record), record["hp"]]) if record else run.name
        curve = records.curve_of(run, logged)
        _, _, seeds = lines.setdefault(
            (recipe, len(curve)), (record and label_of(record) or run.name, record, [])
        )
        drops = [
            before["epoch"] for before, line in itertools.pairwise(curve) if line["lr"] <= before["lr"] / 2
        ]
        accuracies = [(line["epoch"], 100 * line["val"]["acc"], 100 * line["train"]["acc"]) for line in curve]
        seeds.append((accuracies, drops))
    figure, axis = pyplot().subplots(figsize=(8, 4.4), layout="constrained")
    for i, (label, record, seeds) in enumerate(lines.values()):
        accuracies, drops = zip(*seeds)
        (epochs, val, train), n = numpy.mean(accuracies, 0).T, len(seeds)
        error = numpy.std(accuracies, 0, ddof=1)[:, 1] / n**0.5 if n > 1 else None
        look = dict(color=colour(record["model"], record["cell"], i) if record else f"C{i}")
        axis.errorbar(epochs, val, yerr=error, fmt=".-", label=f"{label} (n = {n})", **look)
        axis.plot(epochs, train, linewidth=0.7, **look)
        for epoch in {epoch for of_seed in drops for epoch in of_seed}:
            axis.axvline(epoch, linewidth=1, linestyle=":", **look)
    axis.plot([], [], ".-", color="0.3", label="validation")
    axis.plot([], [], color="0.3", linewidth=0.7, label="training")
    axis.plot(
        [], [], color="0.3", linewidth=1, linestyle=":", label="the learning rate falls to half or less"
    )
    if paper is not None:
        axis.axhline(
            paper, color="0.3", linestyle="--", linewidth=1, label=f"the paper, on test: {paper:.2f}"
        )
    axis.set(xlabel="epoch", ylabel="accuracy (%)", title=title)
    axis.grid(alpha=0.3)
    legend_below(figure, [axis])
    save_figure(figure, path)


# ------------------------------------------------------------------------------------------ command line


def main(argv=None):
    parser = argparse.ArgumentParser(
        description="Draw the accuracy of runs after each epoch, training and validation, to DIR/curves.png. "
        "Seeds of one recipe are averaged.",
        epilog="Example: python tables.py --plot runs/mini-locality-listops-*",
    )
    what = "folders of runs, or names of runs in results/curves"
    parser.add_argument("--plot", nargs="+", type=Path, required=True, metavar="RUN", help=what)
    parser.add_argument("--paper", type=float, metavar="N", help="draw the paper's test accuracy, N %%")
    parser.add_argument("--title", default="Accuracy after each epoch", help="what the picture says")
    parser.add_argument("--out", type=Path, default=Path("runs"), metavar="DIR", help="default runs")
    args = parser.parse_args(argv)
    with common.exit_cleanly():
        plot_curves(args.plot, args.out / "curves.png", args.paper, args.title)


if __name__ == "__main__":
    main()
