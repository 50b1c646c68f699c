"""The rule by which claims are judged: it reads claims.tsv, the papers' tables and the mini tier's records.

docs/claims.md says the rule in words. A line of claims.tsv is a name, words, what is expected (see Row), the
day it was entered, and cells; "#" begins a Heading. A cell is a sign, a script, a task, a model, what a
record's "cell" says and, after "with", its "changes":

    + locality text conv kernel=31,techniques=no with epochs=30
"""

import collections
import datetime
import json
import math
import re
import statistics
from typing import NamedTuple

import numpy

import common
import exp_kernels
import exp_locality
import exp_multitask
import exp_positional
import exp_range
import exp_spt
import records
import tables
from machine import UserError
from records import FEW, NOT_RUN, SEEDS, read_interval

SAYS = {
    "A": "Paper A",
    "B": "Paper B",
    "ours": "Ours",
    "rivals": "Our rival guesses",
    "control": "Controls",
    "exploratory": "Exploratory",
}

# ------------------------------------------------------------------------------------------ claims.tsv

PLAIN, ODD, COLUMNS = {"techniques": ("no",)}, range(1, 1000, 2), exp_multitask.COLUMNS
PARTS, STRIDES = [n / 1000 for n in range(1, 1000)], (*range(1, 1001), *exp_range.ORDERS)
SPT = {"objective": exp_spt.OBJECTIVES, "init": exp_spt.INITS}
SPT_TOO = {"fraction": PARTS, "share": PARTS, "pooling": exp_spt.POOLINGS, "stride": STRIDES}
CELLS = {  # {script: its tasks, its models, what each of its cells says, what some say}
    "locality": (exp_locality.TASKS7, ("conv",), {"kernel": ODD}, PLAIN | {"norm_place": ("post", "after")}),
    "multitask": (COLUMNS, exp_multitask.TABLES, {}, PLAIN),
    "kernels": (COLUMNS, exp_kernels.TABLES, {}, PLAIN),
    "positional": (COLUMNS, ("transformer",), {"position": exp_positional.POSITIONS}, PLAIN),
    "spt": (exp_spt.TASKS, exp_spt.BLOCKS, SPT, SPT_TOO),
    "range": (exp_range.TASKS, exp_range.MODELS, {"stride": STRIDES}, PLAIN | {"kernel": ODD}),
}
CHANGES = {*common.FLAGS, "limit", "technique", "lr_pretrain", "ssm_lr"}


class Key(NamedTuple):
    """What makes records one cell: the script and records.row_key."""

    exp: str
    task: str
    model: str
    cell: str  # what the record says, as JSON
    changes: str  # the same; PLAIN_RECIPE: the table's own recipe


PLAIN_RECIPE = "{}"


class Heading(NamedTuple):
    """Who says what, and where."""

    who: str  # of SAYS
    sentence: str
    place: str
    short: str  # the sentence in at most 36 letters
    side: str = ""  # of a one-sided sentence + or -: differences on this side are in its favour


class Row(NamedTuple):
    """A line of claims.tsv. Its third field is +, -, 0, a number of points or ?; it is empty where the papers
    print a number for every cell."""

    heading: Heading | str  # of a pair: the script with the paper's table
    name: str
    words: str
    expected: float | None  # points; infinite: a direction; None: nothing
    day: str
    cells: tuple  # of (sign, Key)


def key_of(record):
    """The Key of a record. Table 4's rotary row is Table 2's row."""
    if record["exp"] == "positional" and (row := exp_multitask.of_table_4(record)):
        record = record | row | {"exp": "multitask"}
    return Key(record["exp"], *records.row_key(record))


def facts(text):
    """ "kernel=31,techniques=no" as a dict. Raises ValueError."""
    pairs = dict(fact.split("=") for fact in text.split(",")) if text else {}
    return {k: json.loads(v) if re.fullmatch(r"\d[\d.e-]*|true|false", v) else v for k, v in pairs.items()}


def parse_cell(text):
    """(sign, key) of a cell. Raises ValueError for one that no script can have."""
    try:
        place, _, changes = text.partition(" with ")
        sign, exp, task, model, *cell = place.split(" ")
        cell, changes, (tasks, models, must, may) = facts(",".join(cell)), facts(changes), CELLS[exp]
        fits = task in tasks and model in models and must.keys() <= cell.keys() and changes.keys() <= CHANGES
        fits &= all(str(value) in map(str, (must | may)[fact]) for fact, value in cell.items())
        fits &= all(isinstance(value, str) == (fact == "technique") for fact, value in changes.items())
        key = key_of({"exp": exp, "task": task, "model": model, "cell": cell, "changes": changes})
        sign = {"+": 1, "-": -1}[sign]
    except (KeyError, ValueError):
        fits = False
    if not fits:
        raise ValueError(f'no script can have the cell "{text}"')
    return sign, key


def parse_row(line, heading, names, printed):
    """A Row. Raises ValueError with half a sentence."""
    fields = line.split("\t")
    if len(fields) != 5 or not heading:
        raise ValueError("give 5 fields with tabs between them, below a heading")
    name, words, stated, day, cells = fields
    if name in names:
        raise ValueError(f"the name {name} stands twice")
    try:
        datetime.date.fromisoformat(day)
    except ValueError:
        raise ValueError(f'"{day}" is no day; write it as 2026-11-26') from None
    signed = tuple(map(parse_cell, re.split(" (?=[+-] )", cells)))
    expected = {"+": math.inf, "-": -math.inf, "?": None}.get(stated, in_paper(signed, printed))
    if re.fullmatch(r"0|[+-]\d+(\.\d+)?", stated):
        expected = float(stated)
    elif stated not in ("", "+", "-", "?") or (not stated and expected is None):
        raise ValueError("the papers do not print all its cells; expect a number, +, -, 0 or ?")
    return Row(heading, name, words, expected, day, signed)


def read_rows(path, printed):
    """The rows of claims.tsv; printed: see printed_cells. Raises UserError for the first bad line."""
    rows, heading = [], None
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines()[1:], 2):
        try:
            if not line.startswith("# "):
                rows.append(parse_row(line, heading, {row.name for row in rows}, printed))
                continue
            fields = line[2:].split("\t")
            if len(fields) not in (4, 5) or fields[0] not in SAYS or fields[4:] not in ([], ["+"], ["-"]):
                raise ValueError(
                    f"a heading is one of {', '.join(SAYS)}, a sentence, its place, the sentence in short, "
                    "and + or - if it is one-sided"
                )
            heading = Heading(*fields)
        except ValueError as error:
            raise UserError(f"{path.name}, line {number}: {error}") from None
    return rows


# ------------------------------------------------------------------------------------------ the papers

TABLES = {  # {script: the paper's numbers, their columns}
    "locality": (exp_locality.TABLE1, exp_locality.TASKS7),
    "multitask": (exp_multitask.TABLE2, COLUMNS),
    "kernels": (exp_kernels.TABLE3, exp_kernels.COLUMNS),
    "positional": (exp_positional.TABLE4, COLUMNS),
    "spt": (exp_spt.PAPER, exp_spt.TASKS),
}
SAME_CELL = {  # rows of a table that no record has as its label
    ("positional", "rotary, no techniques"): ("multitask", "transformer", '{"techniques": "no"}'),
}


def printed_cells():
    """{script: {Key of a cell by its table's own recipe: (the paper's label, its accuracy in percent)}}. Mini
    Pathfinder is another task than the papers'."""
    places, found = {}, {exp: {} for exp in TABLES}
    for r in records.published():
        key = key_of(r)
        places[r["exp"], r["row"]] = key.exp, key.model, key.cell
    places |= SAME_CELL
    for exp, (table, columns) in TABLES.items():
        for label in (label for label in table if (exp, label) in places):
            script, model, cell = places[exp, label]
            for task, value in zip(columns, table[label]):
                if isinstance(value, float) and ("mini", task) not in tables.OTHER_TASK:
                    found[exp][Key(script, task, model, cell, PLAIN_RECIPE)] = label, value
    return found


def in_paper(cells, printed):
    """The paper's points of signed cells, whatever was changed in them; None unless it prints them all. Of
    different budgets of the same cells, which cancel, it says nothing."""
    values = {key: value for table in printed.values() for key, (_, value) in table.items()}
    signs = collections.Counter()
    for sign, key in cells:
        signs[key._replace(changes=PLAIN_RECIPE)] += sign
    if not any(signs.values()) or not signs.keys() <= values.keys():
        return None
    return round(sum(sign * values[key] for key, sign in signs.items()), 2)


# ------------------------------------------------------------------------------------------ the rule


class Mini(NamedTuple):
    cells: dict  # {Key: the records of its first SEEDS seeds}
    curves: dict  # {run: the lines of its log}


class Judged(NamedTuple):
    row: Row
    seeds: int  # of the cell that has fewest
    numbers: tuple | None  # points, standard error, the ends of the 95 % interval
    reading: str
    marks: dict  # {mark: the numbers of the cells that have it}

    @property
    def answer(self):
        """Whether it came as expected, yes, better, no or open; else why there is none."""
        side = getattr(self.row.heading, "side", "")  # a pair has no Heading
        return records.as_there(self.reading, side) or self.reading


def read(out):
    """The Mini of the records in `out`, None: of results/."""
    paths = [out / "results.jsonl"] if out else sorted(records.RESULTS.glob("*.jsonl"))
    found = [r for r in records.newest(paths) if r["tier"] == "mini" and r["exp"] in CELLS]
    if not found:
        raise UserError(f"{out or records.RESULTS}: no record of the mini tier; train with --mini")
    cells, curves = {}, records.curves()
    for key, group in records.grouped(found, key_of).items():
        seeds = {r["seed"]: r for r in records.best_recipe(group)}  # of what two scripts trained, one
        cells[key] = [seeds[seed] for seed in sorted(seeds)[:SEEDS]]
    for run in (r["run"] for r in found if out and (out / r["run"] / "log.jsonl").is_file()):
        curves[run] = records.curve_of(out / run, {})
    return Mini(cells, curves)


def measure(cells, mini):
    """(points, standard error, ends of the 95 % interval) of signed cells, whose seeds are independent."""
    parts = [(s, *records.mean_and_error(mini.cells[key])) for s, key in cells]
    points = 100 * sum(sign * mean for sign, mean, _ in parts)
    error = 100 * math.hypot(*(error for *_, error in parts))
    return points, error, *records.interval(points, error, "mini", [key.task for _, key in cells])


def at_bag(group, mini):
    """records.at_bag of the records of a cell, by the K = 1 of its task."""
    keys = [key_of(bag) for bag in records.bags_of(group[0])] if group else []
    return records.at_bag(group, next((mini.cells[key] for key in keys if key in mini.cells), None))


def rising(group, curves):
    """Whether validation gained more than 1 point in the last fifth of the training, mean of the seeds."""
    gains = []
    for curve in (curves[r["run"]] for r in group if r["run"] in curves):
        steps, accuracies = zip(*((line["step"], line["val"]["acc"]) for line in curve))
        gains.append(accuracies[-1] - numpy.interp(0.8 * steps[-1], steps, accuracies))
    return bool(gains) and statistics.mean(gains) > 0.01


def judge(row, mini):
    """A row, Judged."""
    keys = [key for _, key in row.cells]
    groups = [mini.cells.get(key, []) for key in keys]
    true = {
        "rising": [rising(group, mini.curves) for group in groups],
        "bag": [at_bag(group, mini) for group in groups],
        "nothing restored": [g and g[0].get("pretraining") and exp_spt.learnt_nothing(g) for g in groups],
    }
    marks = {mark: [i for i, is_so in enumerate(which, 1) if is_so] for mark, which in true.items()}
    seeds = min(map(len, groups))
    numbers = measure(row.cells, mini) if seeds else None
    reading = FEW if seeds else NOT_RUN
    if seeds >= SEEDS:
        reading = read_interval(row.expected, *numbers[2:], all(true["bag"]))
    return Judged(row, seeds, numbers, reading, marks)
