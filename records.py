"""What is a run, where is its record, and how do records become tables and figures?

A cell of a table is one run per seed. Its identity is everything that makes the result what it is; its
folder is named after a hash of that, and it is finished when OUT/results.jsonl has a record with that name.
A record says its place in the tables: `task`, `model` and `cell` say which row, `changes` what differs from
the table's recipe. `row` is the row's label: people read it, and no code takes it apart. A new script needs
`run_cell`, `run_cells` and `report`.

    python records.py --plot RUN [RUN ...]      the curves of some runs, as a picture in OUT
"""

import argparse
import contextlib
import datetime
import functools
import hashlib
import itertools
import json
import math
import platform
import re
import shlex
import statistics
import sys
import textwrap
from itertools import pairwise
from pathlib import Path

import numpy
import torch

import common
import models
from machine import UserError, fcntl

RESULTS = Path(__file__).with_name("results")  # this repository's records


class Busy(common.Interrupted):
    """Another process is training this run; it is left to it."""


# ------------------------------------------------------------------------------------------ one run


def experiment(script):
    """The name of an experiment is that of its file, so a copied script has runs of its own."""
    return Path(script).stem.removeprefix("exp_")


def make_identity(args, script, task, model, cell, seed, hp):
    """What makes a run this run: two runs with the same identity are the same cell, and only those."""
    identity = {"exp": experiment(script), "task": task.name, "model": model, "cell": cell, "seed": seed}
    identity |= {"hp": hp, "limit": args.limit, "data": task.source["hash"]}
    identity |= {"smoke": args.smoke, "mini": args.mini}
    return json.loads(json.dumps(identity))  # tuples -> lists, as in a record


def run_name(identity):
    """exp-task-model-cell-s0-1a2b3c4d: the part that people read, and a hash of the whole."""
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:8]
    parts = [tier for tier in ("smoke", "mini") if identity[tier]]
    parts += [identity[k] for k in ("exp", "task", "model")]
    parts += [f"{k}{v}" for k, v in identity["cell"].items()] + [f"s{identity['seed']}", digest]
    return "-".join(part.replace(" ", "_") for part in parts)


def code_hash(script):
    """Of the script and of models.py: what a record's number belongs to, beyond its identity."""
    files = (Path(script), Path(__file__).with_name("models.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:12]


def finished(out):
    """{run: its newest record} of the runs under `out` that have no last.pt any more."""
    latest = {r["run"]: r for r in read_records([out / "results.jsonl"])}
    return {run: r for run, r in latest.items() if not (out / run / "last.pt").exists()}


def is_done(args, script, name):
    """Whether this run is finished and neither --fresh nor --smoke asks for it again; says so."""
    done = common.on_first_rank(lambda: finished(args.out).get(name))
    if not done or args.fresh or args.smoke:
        return False
    what = "pretrained" if "score" in done else f"{done['test_acc']:.2%}"
    print(f"{name}\n  is done: {what} ({done['date'][:10]}; --fresh trains it again)")
    if done["code"] != code_hash(script):
        print("  note: the code has changed since; --fresh trains it anew")
    return True


@contextlib.contextmanager
def claim(args, name):
    """The run's folder, held by this process alone. Raises Busy where another process has it: both would
    write the same last.pt. The system frees the lock of a process that is killed."""
    folder = args.out / name
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "a") as lock:
        taken = False
        try:
            if fcntl and common.rank() == 0:
                fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            taken = True
        if common.any_rank(taken)[0]:
            raise Busy(f"{name} is being trained by another process and is left to it")
        yield folder


def where_it_ran(args, script):
    """The rows of a record about code and libraries: to be asked before the work, lest the code be edited."""
    note = {"git": args.git[0], "dirty": args.git[1], "code": code_hash(script), "argv": args.argv}
    return note | {
        "torch": str(torch.__version__),
        "numpy": numpy.__version__,
        "python": platform.python_version(),
    }


def train(args, *, script, identity, row, changes, task, build, loss_fn, extra=None):
    """One training, from its folder to its record, a dict. The folder must not be done, see is_done.

    row, changes    the record's label, and what differs from its recipe, see changes_of
    build       () -> model; called after torch's global generator was seeded
    extra       () -> further rows of the record, called when the training has ended
    """
    name, seed, hp = run_name(identity), identity["seed"], identity["hp"]["train"]
    torch.manual_seed(common.stream(seed, "init"))
    model = build_model(build)  # first: a model that cannot be built must leave no folder
    bf16 = common.use_bf16(args.amp, common.resolve_device(args.device))
    with claim(args, name) as folder:
        announce(folder, identity, model, task, "bf16" if bf16 else "float32")
        note = where_it_ran(args, script)
        note |= {"amp": "bf16" if bf16 else "off"}
        note |= {"micro_batch": args.micro_batch, "compile": args.compile, "graphs": args.graphs}
        with faults_in_words(folder, model, hp["batch_size"], args.micro_batch):
            result = common.fit(model, task, loss_fn, hp, args, folder, seed, note)
        starts = result.pop("starts")
        line = {**identity, "row": row, "changes": changes, "run": name, "tier": tier_of(args, changes)}
        line |= result
        line |= (extra() if extra else {}) | {"data": task.source, **note}
        line["dirty"] = any(start["dirty"] for start in starts)
        if len(starts) > 1:
            line["starts"] = starts  # it was stopped and continued with other code or flags
        if common.rank() == 0:
            append_record(args.out / "results.jsonl", line)
            (folder / "last.pt").unlink(missing_ok=True)
    if args.smoke and not args.compile and (fault := reads_padding(model, task)):
        print(f"note: {fault}", flush=True)
    return line


DIVERGED = "diverged.txt"  # in a run's folder: why it has come to an end without a record


@contextlib.contextmanager
def faults_in_words(folder, model, batch_size, micro_batch):
    """What can go wrong in a training, as UserErrors. A run that diverges leaves a note in its folder."""
    (folder / DIVERGED).unlink(missing_ok=True)
    try:
        with common.out_of_memory_advice(model, batch_size, micro_batch):
            yield
    except models.WrongShape as error:
        raise UserError(str(error)) from error
    except common.Diverged as error:
        if common.rank() == 0:
            common.write_atomically(folder / DIVERGED, str(error).encode())
        raise


@torch.no_grad()
def reads_padding(model, task):
    """A sentence about a model that reads the padding behind a document, "" for others: the longest examples,
    cut to half of their length, must have the same features and logits when they are padded again."""
    if getattr(model, "embedding", None) is None:  # a model of pixels has no padding
        return ""
    longest = task.lengths["test"].argsort(descending=True)[:8]
    batch = task.to(next(model.parameters()).device).gather("test", longest)
    half = batch.tokens.shape[1] // 2
    answers = []
    for width in (half, batch.tokens.shape[1]):
        tokens, mask = batch.tokens[:, :width].clone(), batch.mask[:, :width].clone()
        tokens[:, half:], mask[:, half:] = 0, False
        features = model.eval()(tokens, mask)
        real = features[:, :half] * mask[:, :half].unsqueeze(2)  # pooling would hide what few positions read
        answers.append((real, model.classify(features, mask, task.docs)))
    for what, short, padded in zip(("features", "logits"), *answers):
        change = float((padded - short).abs().max())
        if change > 1e-3 * (1 + float(short.abs().max())):  # more than rounding
            block = type(model.blocks[0]).__name__
            words = f"{block} reads padding: longer padding changes its {what} by {change:.2g}"
            return f"{words}; what stands where the mask is False must not reach the other positions"
    return ""


def build_model(build):
    """build(), where a wrong argument or block gets one sentence."""
    try:
        return build()
    except ValueError as error:
        raise UserError(f"the model cannot be built: {error}") from error


def announce(folder, identity, model, task, precision):
    """The first lines of a training: its folder, its size, its data and length, its recipe."""
    hp = identity["hp"]
    steps, _ = common.training_length(task, hp["train"])
    print(f"\n{folder}\n  {sum(p.numel() for p in model.parameters()):,} parameters, {precision}")
    examples = f"{len(task.train.label):,} examples of at most {task.max_length:,} positions"
    print(f"  {examples} ({task.source['from']})\n  {steps:,} steps")
    rows = " ".join(f"{row}={value}" for part in hp.values() for row, value in part.items())
    print(textwrap.indent(textwrap.fill(rows, 78, break_on_hyphens=False), "  "), flush=True)


def changes_of(hp, table, limit=None):
    """{row: value} of what a run was trained with that its recipe in the table does not say; {} if nothing.
    hp and table are recipes, {"model": ..., "train": ...}; limit: how many examples, if not all."""
    before, after = ({**recipe["model"], **recipe["train"]} for recipe in (table, hp))
    changes = {row: value for row, value in after.items() if before.get(row) != value}
    return json.loads(json.dumps(({"limit": limit} if limit else {}) | changes))  # as a record has them


def in_words(changes):
    """changes_of as people read it: "3,000 examples, 40 epochs, lr 0.01"."""
    known = {
        "limit": lambda n: f"{n:,} examples",
        "epochs": lambda n: "1 epoch" if n == 1 else f"{n} epochs",
        "steps": lambda n: f"{n:,} steps",
        "max_length": lambda n: f"{n:,} bytes",
        "technique": lambda name: name or "augment none",
        "set_last_tenth": lambda _: "last tenth set",
        "bucket": lambda _: "--no-bucket",
        "weight of the denoising loss": lambda whose: f"{whose} denoising weight",
        "terms": str,  # of a line from before 2026-11-26
    }
    words = [text(changes[row]) for row, text in known.items() if row in changes]
    words += [f"{row} {value}" for row, value in sorted(changes.items()) if row not in known]
    return ", ".join(words)


def tier_of(args, changes):
    """ "mini" with --mini; else "paper" for a cell that is trained as the paper trained it (both readings of
    the last tenth count), else "reduced"."""
    if args.mini:
        return "mini"
    return "reduced" if args.smoke or changes.keys() - {"set_last_tenth"} else "paper"


def run_cell(args, script, *, row, task, model, cell, hp, table, build, loss_fn, seed, paper=None):
    """One cell of a table: nothing where it is done, else from the model to the record.

    script              __file__ of the caller, which names the experiment
    row                 its label in the table, e.g. "K=5"
    model, cell         how the record names it, e.g. "conv", {"kernel": 5}
    hp, table           its recipe, and what the table (of the mini tier with --mini) has in its place
    build, loss_fn      () -> model; (model, batch) -> (loss, metrics), see common.fit
    paper               the paper's accuracy in percent, printed beside ours
    """
    for flag, found in (("limit", len(task.train.label)), ("max_length", task.max_length)):
        if getattr(args, flag) not in (None, found):  # the record would say what was not done
            raise UserError(f"{common.flag(flag)}: the script does not cut its task; see data.load")
    identity = make_identity(args, script, task, model, cell, seed, hp)
    if is_done(args, script, run_name(identity)):
        return
    changes = changes_of(hp, table, args.limit)
    how = dict(row=row, changes=changes, task=task, build=build, loss_fn=loss_fn)
    line = train(args, script=script, identity=identity, **how)
    print(outcome(args, script, line, paper), flush=True)


def outcome(args, script, line, paper=None):
    """The last lines of a cell: its number, what it is worth, where it lies, and what comes next."""
    worth = ", ".join(filter(None, [TIERS[line["tier"]], in_words(line["changes"])]))
    if isinstance(paper, float):
        full = line["tier"] == "paper"
        worth += (
            f"; the paper: {paper:.2f}" if full else f" (not comparable: the paper at full size {paper:.2f})"
        )
    table = f"python {args.argv[0]} --report --out {args.out}"
    if line["smoke"]:
        worth, table = "a smoke run: it works, the accuracy means nothing", "smoke runs are in none"
    best = f"(best validation: {line['best_epoch']} of {line['epochs']})"
    weights = f'model, saved = records.rebuild("{args.out / line["run"] / "best.pt"}")'
    lines = [f"test accuracy {line['test_acc']:.2%} {best}", worth, f"record: {args.out / 'results.jsonl'}"]
    lines += [f"table: {table}", "model: in Python", f"  import {Path(script).stem}, records", f"  {weights}"]
    return "\n  ".join(lines)


def run_cells(args, cells, run):
    """run(args, *cell, seed) for each cell of a command and each of its seeds. A cell that cannot be trained
    does not keep the others from their turn. At the end this raises UserError if some failed, else Busy if
    other processes were at some."""
    args.out.mkdir(parents=True, exist_ok=True)
    runs = list(itertools.product(cells, range(args.seed, args.seed + args.seeds)))
    missing, told = [], set()
    for cell, seed in runs:
        try:
            run(args, *cell, seed)
        except (Busy, UserError) as reason:
            kind = type(reason)
            # A rank that went on alone would wait for the others.
            if len(runs) == 1 or (common.ranks() > 1 and kind != Busy):
                raise
            words = "the same again" if str(reason) in told else reason
            print(f"{'note' if kind == Busy else 'error'}: {words}", file=sys.stderr, flush=True)
            told.add(str(reason))
            missing.append(kind)
    if missing:
        kind = Busy if {*missing} == {Busy} else UserError
        raise kind(f"{len(missing)} of {len(runs)} cells did not finish, for the reasons above")


# ------------------------------------------------------------------------------------------ records


def append_record(path, line):
    """Append one JSON line, dated; safe with many processes. After a torn piece (a power cut) it starts
    a new line: reading leaves out the piece alone."""
    now = datetime.datetime.now(datetime.timezone.utc)  # Python 3.10 has no datetime.UTC
    line = {"date": now.isoformat(timespec="seconds")} | line
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "ab+") as f:
        if fcntl:
            fcntl.flock(f, fcntl.LOCK_EX)  # until the file is closed
        size = f.seek(0, 2)
        f.seek(max(0, size - 1))
        torn = size and f.read(1) != b"\n"
        f.write((b"\n" if torn else b"") + json.dumps(line).encode() + b"\n")


READ = dict.fromkeys(("run", "exp", "task", "model", "row", "tier", "date"), str)
READ |= {"val_acc": float, "test_acc": float, "seconds": float, "seed": int}
READ |= {"cell": dict, "changes": dict, "hp": dict, "data": dict}


def is_record(line):
    """Whether a JSON value has what every table reads of a record, each of its type."""
    return (
        isinstance(line, dict)
        and all(isinstance(line.get(row), kind) for row, kind in READ.items())
        and isinstance(line["data"].get("hash"), str)
        and line["test_acc"] <= 1
        and (line["test_acc"] >= 0 or line.get("score") == "R^2")
    )


def upgraded(line):
    """A line as it is written today. Before 2026-11-26 `changes` were words, `terms`, and a tier a `budget`:
    what the words say is kept and shown as it is."""
    if isinstance(line, dict) and {"terms", "budget"} <= line.keys() and "changes" not in line:
        words, tier = line["terms"], line["budget"]
        line = {key: value for key, value in line.items() if key not in ("terms", "budget")}
        line |= {"changes": {"terms": words} if words else {}, "tier": tier}
    return line


def read_records(paths):
    """All records of the files that exist; other lines are left out with one warning a file."""
    records = []
    for path in filter(Path.is_file, paths):
        strange = []
        for number, text in enumerate(path.read_bytes().split(b"\n"), 1):
            line = None
            with contextlib.suppress(ValueError, RecursionError):
                line = upgraded(json.loads(text))
            if is_record(line):
                records.append(line)
            elif text.strip():
                strange.append(str(number))
        if strange:
            numbers = ", ".join(strange[:5]) + (", ..." if len(strange) > 5 else "")
            print(f"warning: {path}: left out what is no record, line {numbers}", file=sys.stderr)
    return records


def newest(paths):
    """The records of some files that count: no smoke runs, of a run that was repeated the newest."""
    found = {r["run"]: r for r in sorted(read_records(paths), key=lambda r: r["date"])}
    return [r for r in found.values() if not r.get("smoke")]


def published():
    """This repository's records that count: of a cell with more than SEEDS seeds the first."""
    found = newest(sorted(RESULTS.glob("*.jsonl")))
    cells = grouped(found, lambda r: (r["exp"], r["tier"], *row_key(r), json.dumps(r["hp"], sort_keys=True)))
    return [r for group in cells.values() for r in sorted(group, key=lambda r: r["seed"])[:SEEDS]]


def yours_and_ours(out):
    """(your records, those in OUT; this repository's)."""
    ours = published()
    known = {(r["run"], r["date"]) for r in ours}
    return [r for r in newest([out / "results.jsonl"]) if (r["run"], r["date"]) not in known], ours


def finished_runs(args, task, exps):
    """The records of a task under --out by one of `exps` whose best.pt is there; smoke runs with --smoke,
    mini runs with --mini."""
    found = [r for r in finished(args.out).values() if r["task"] == task and r["exp"] in exps]
    found = [r for r in found if (r["smoke"], r["tier"] == "mini") == (args.smoke, args.mini)]
    return [r for r in found if (args.out / r["run"] / "best.pt").exists()]


def rebuild(path, model_class=models.SequenceModel):
    """(model in eval mode, checkpoint) of a best.pt. Raises UserError, with one sentence, for what is no such
    file. A block of one's own is known once the script that defines it is imported."""
    path = Path(path)
    state = common.load_checkpoint(path, "cpu", remedy="give another best.pt")
    if state is None:
        raise UserError(f"{path}: there is no such file; give a best.pt")
    try:
        if not state.get("arguments"):
            raise ValueError("it does not say how its model was built")
        model = model_class(**state["arguments"])
        model.load_state_dict(state["model"])
    except (AttributeError, KeyError, TypeError, ValueError, RuntimeError) as error:
        raise UserError(f"{path} is not a model for this ({str(error).splitlines()[0]})") from error
    return model.eval(), state


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


WITHOUT_NETWORK = "linear", "rule"  # "model" of their records
SEEDS = 3  # declared for every cell of the mini tier: of more the first count


def mean_and_error(records):
    """Mean test accuracy of the seeds of one cell and its standard error, by the root-n rule: of the largest
    of the variance over its seeds, that pooled over this repository's networks of its task and tier (a rule
    without a network has no such luck), and that which the size of the test set gives every accuracy."""
    accuracies = [r["test_acc"] for r in records]
    mean, n = statistics.mean(accuracies), len(accuracies)
    own = statistics.variance(accuracies) if n > 1 else 0.0
    tier, task, model = (records[0][key] for key in ("tier", "task", "model"))
    pooled = 0.0 if model in WITHOUT_NETWORK else pooled_variance(tier, task)[0]
    return mean, math.sqrt(max(own, pooled, test_set_variance(records)) / n)


def difference(records, others):
    """(how far one cell is ahead of another, its standard error), in points."""
    (a, e), (b, f) = map(mean_and_error, (records, others))
    return 100 * (a - b), 100 * math.hypot(e, f)


def lead(records, others, seeds=False):
    """ "+6.5 ± 0.7": how far one cell is ahead of another, in points; "+6.5 ± 0.7 (3)" with the smaller of
    their numbers of seeds; of one, "+6.5 (1)"."""
    (points, error), n = difference(records, others), min(len(records), len(others))
    if seeds:
        return f"{signed(points)}{f' ± {error:.1f}' if n > 1 else ''} ({n})"
    return f"{signed(points)} ± {error:.1f}"


def signed(points):
    """ "+6.5", and "+0.0" for what is nothing."""
    return f"{round(points, 1) + 0.0:+.1f}"


def pooled_variance(tier, task):
    """(variance of accuracies over seeds, pooled over this repository's cells; its degrees of freedom)"""
    files = sorted(RESULTS.glob("*.jsonl"))
    return pooled_variances(tuple((path, path.stat().st_mtime_ns) for path in files)).get(
        (tier, task), (0.0, 0)
    )


@functools.cache
def pooled_variances(files):
    """{(tier, task): pooled_variance} of the records in some files, given as (path, time of change). The
    first SEEDS seeds of a cell count, and once what two scripts have in their tables."""
    trainings = {(training_of(r), r["test_acc"]): r for r in newest(path for path, _ in files)}
    cells = grouped((r for r in trainings.values() if "score" not in r), lambda r: (r["tier"], *row_key(r)))
    squares = {}
    for (tier, task, *_), group in cells.items():
        seeds = {r["seed"]: r["test_acc"] for r in group}
        counted = [seeds[seed] for seed in sorted(seeds)[:SEEDS]]
        mean = statistics.mean(counted)
        squares.setdefault((tier, task), []).append([(x - mean) ** 2 for x in counted])
    df = {place: sum(len(cell) - 1 for cell in of_place) for place, of_place in squares.items()}
    return {place: (sum(map(sum, cells)) / max(1, df[place]), df[place]) for place, cells in squares.items()}


def test_set_variance(records):
    """The binomial variance of one accuracy, by the number of test examples."""
    mean = statistics.mean(r["test_acc"] for r in records)
    return mean * (1 - mean) / records[0]["data"].get("counts", {}).get("test", 10_000)


def summary(records):
    """ "88.96 ± 0.21 (3)": mean, standard error and number of seeds; a dash for none. Where some stayed at
    chance a mean alone would mislead: "70.12 ± 8.71 (5, 2 above chance)", "50.48 (1, at chance)"."""
    if not records:
        return "—"
    mean, error = mean_and_error(records)
    digits = 1 if records[0]["tier"] == "mini" else 2
    learnt = sum(r["test_acc"] > (r.get("chance") or 0) + 0.02 for r in records)
    count = f"{len(records)}"
    if learnt < len(records):
        count += f", {learnt} above chance" if learnt else ", at chance"
    spread = f" ± {100 * error:.{digits}f}"
    if records[0]["model"] in WITHOUT_NETWORK:  # no seed: the test set's error is all of it
        return f"{100 * mean:.{digits}f}{spread}"
    return f"{100 * mean:.{digits}f}{spread if len(records) > 1 else ''} ({count})"


def seeds_of(groups):
    """ "n = 2 to 3": how many seeds the cells of a figure have."""
    few, most = min(map(len, groups)), max(map(len, groups))
    return f"n = {few}" if few == most else f"n = {few} to {most}"


def seconds_of(record):
    """CPU seconds if recorded, else wall seconds."""
    return record.get("cpu_seconds") or record["seconds"]


def cost(records):
    """What a run took on average, in the tables of report() with its pretraining: "12 min", "5 min (GPU)", or
    a dash."""
    seconds = [r.get("both_halves") or seconds_of(r) for r in records]
    where = " (GPU)" if any("thread" not in r.get("device", "1 thread") for r in records) else ""
    return common.hours(statistics.mean(seconds)) + where if records else "—"


def grouped(records, key):
    """{key(record): the records that have it}"""
    groups = {}
    for r in records:
        groups.setdefault(key(r), []).append(r)
    return groups


def label_of(record):
    """ "K=5; 30 epochs": a record for people."""
    return "; ".join(filter(None, [record["row"], in_words(record["changes"])]))


def row_key(record):
    """What makes records one row of a task's tables, whatever their labels say, as something to group by."""
    facts = (json.dumps(record[part], sort_keys=True) for part in ("cell", "changes"))
    return record["task"], record["model"], *facts


def one_recipe(records):
    """Of the records of one row those of the recipe and data that validated best on average, and a footnote
    on the others, "" without any."""
    groups = grouped(records, lambda r: json.dumps([r["hp"], r["data"]["hash"]], sort_keys=True))
    best = max(groups.values(), key=lambda g: statistics.mean(r["val_acc"] for r in g), default=[])
    others = [group for group in groups.values() if group is not best]
    notes = [f"{len(group)} with {difference_in_words(group[0], best[0])}" for group in others]
    return best, f"{best[0]['row']}: not counted are {'; '.join(notes)}; validated worse." if notes else ""


def difference_in_words(one, other):
    """What one record has in its recipe or data that another one has not: "lr 0.001"."""

    def rows(record):
        for part, values in record["hp"].items():
            inner = values if isinstance(values, dict) else {part: values}  # a rule's recipe has no parts
            yield from ((f"pretraining {k}" if part == "pretrain" else k, v) for k, v in inner.items())

    mine, theirs = dict(rows(one)), dict(rows(other))
    words = [f"{row} {mine.get(row)}" for row in mine | theirs if mine.get(row) != theirs.get(row)]
    return ", ".join(words + (["other data"] if one["data"]["hash"] != other["data"]["hash"] else []))


def best_recipe(records):
    """one_recipe without its footnote."""
    return one_recipe(records)[0]


def naturally(text):
    """A key to sort by: K=5 stands before K=11."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", text.replace(",", ""))]


# ------------------------------------------------------------------------------------------ the report

TECHNIQUES = """\
    no techniques   without paper A's training techniques: on Text restoring
                    corrupted bytes ("denoising"), on ListOps shuffled
                    arguments, on Image augmentation (mini tier: flips)
"""
TIERS = {"paper": "as the paper ran it", "reduced": "at reduced budgets", "mini": "mini tier"}


def report(
    args,
    script,
    title,
    tasks,
    titles,
    paper,
    *,
    also=None,
    short=None,
    floors=None,
    inputs=None,
    leads=None,
    legend="",
):
    """Print the tables of a script, your records and this repository's in columns of their own.

    tasks, titles   the columns of the paper's table; {task: title}
    paper           {row: the paper's accuracies in percent, in the order of tasks, and their average}
    also            {another script: record -> its row here, see rows_of}: runs that this table needs too
    short           {task: a short title}, for a table with a column each
    floors          {task: what a record of a rule without a network has, such as its "exp" and "cell"}
    inputs          {task: how all models read an input, in words}, where the task's name does not say it
    leads           {name: (row, row)}: how far is the first ahead of the second?
    legend          what the names of rows mean
    """
    if args.smoke:
        return
    exp, chosen = experiment(script), args.task and "all" not in args.task and args.task
    if args.against:
        return compare(args, exp, titles)
    known = yours_and_ours(args.out)
    both = [rows_of(found, exp, also or {}) for found in known]
    shown = [task for task in tasks if not chosen or task in chosen]
    copied = both[0] and not both[1]  # of a copy this repository has no run: its own rows are enough
    print("Test accuracy in %: mean ± standard error (number of seeds); of one seed no")
    print("error is known. docs/claims.md says how errors are made. Cost: CPU time of a")
    print("run; on a GPU, and where that was not recorded, wall time.\n" + (legend and f"\n{legend}"))
    tiers = tiers_of(args, *both)
    for tier in tiers:
        yours, ours = ([r for r in found if r["tier"] == tier and r["task"] in shown] for found in both)
        full = tier == "paper" and paper and (yours or ours or not copied)
        if not (yours or ours or full):
            continue
        print(f"### {title} ({TIERS[tier]})\n")
        if tier == "mini" and paper:
            print("Small data and small models: compare a number with other rows, and not with the")
            print("paper's at full size. What these runs say about the papers: python claims.py\n")
        if tier == "reduced":
            print("Fewer epochs or examples than in the paper, mostly one seed: too little to judge")
            print("the paper by.\n")
        ran = [task for task in shown if any(r["task"] == task for r in (*yours, *ours))]
        rules = {task: floor_of(known[1], task, floors or {}) for task in shown} if full else {}
        of_tasks = {task: [r for r in (*ours, *yours) if r["task"] == task] for task in ran}
        said = (inputs or {}).get
        for task, found in of_tasks.items():
            print_task(task, titles[task], tasks, tier, yours, ours, paper, rules.get(task, []))
            if any(not r["changes"] for r in found):
                print_recipe(titles[task], recipe_rows(found), found, said(task))
        for task, found in of_tasks.items():
            print_changed(task, titles[task], tasks, yours, ours, paper, tier)
            if all(r["changes"] for r in found):
                print_recipe(titles[task], recipe_rows(found), found, said(task))
        if full:
            rest = [task for task in shown if task not in ran]
            print_papers([task for task in rest if task in tasks], tasks, short or titles, paper, rules)
            print_averages(tasks, yours, ours, paper, bare=False)
        print_leads(ran, titles, tasks, tier, yours or ours, paper, leads or {})
    print_mini_elsewhere(args, script, tiers, both[1])
    print(unfinished(args.out, exp), end="")


def tiers_of(args, yours, ours):
    """The tiers that a report shows: full size last, where the eye is, but first what has no runs. Without
    --mini that of small models is shown where you have trained some."""
    chosen = ["mini"] if args.mini else ["reduced", "paper"]
    if args.report and not args.mini and any(r["tier"] == "mini" for r in yours):
        chosen.insert(1, "mini")
    return sorted(chosen, key=lambda tier: any(r["tier"] == tier for r in (*yours, *ours)))


def print_mini_elsewhere(args, script, tiers, ours):
    """Where this repository's mini tier is, if the report has left it out."""
    if args.report and "mini" not in tiers and any(r["tier"] == "mini" for r in ours):
        print(f"The mini tier's tables: python {Path(script).name} --report --mini")


def unfinished(out, exp):
    """A line for each run of an experiment under `out` that was stopped, with its command; "" without any."""
    lines = ""
    for path in sorted(out.glob("*/last.pt")):
        command = path.parent.name
        if (diverged := path.with_name(DIVERGED)).exists():
            lines += f"Diverged: {path.parent}: {diverged.read_text(encoding='utf-8')}\n"
        elif command.removeprefix("mini-").startswith(f"{exp}-"):
            with contextlib.suppress(UserError, KeyError):  # of a damaged file the name must do
                starts = common.load_checkpoint(path, "cpu")["starts"]
                command = f"python {shlex.join(starts[-1]['argv'])}"
            lines += f"Not finished; repeat its command or delete {path.parent}: {command}\n"
    return lines


def training_of(record):
    """What makes two records of one row one training, whatever script names it."""
    same = [record[key] for key in ("tier", "task", "seed", "changes", "hp")]
    return json.dumps([*same, record["data"]["hash"]], sort_keys=True)


def rows_of(found, exp, also):
    """The records of an experiment, and those of others that stand in its table, as rows of it. A training
    that both have counts once.

    also    {another script: its record -> {"row", "model", "cell"} of the row here, or None}
    """
    once, halves = {}, {r["run"]: seconds_of(r) for r in found if "score" in r}
    for r in found:
        here = {} if r["exp"] == exp else also.get(r["exp"], lambda r: None)(r)
        if here is not None:
            place = r | here
            key = row_key(place), training_of(r)
            if key not in once or r["exp"] == exp:
                once[key] = place
                if first := halves.get((r.get("pretraining") or {}).get("run")):
                    once[key]["both_halves"] = first + seconds_of(r)
    return [*once.values()]


def table_order(record, paper):
    """A key to sort by: rows of the paper's table in its order, then others by model and cell."""
    rows = list(paper)
    at = rows.index(record["row"]) if record["row"] in paper else len(rows)
    return at, naturally(record["model"]), naturally(json.dumps(record["cell"], sort_keys=True))


def paper_number(paper, row, tasks, task):
    """The paper's accuracy of a row for a task, None without one; some cells are words ("infeasible")."""
    values, at = paper.get(row, ()), tasks.index(task)
    return values[at] if at < len(values) else None


def paper_value(paper, row, at):
    """What the paper's table has in a row at one place, as text, "" for nothing."""
    values = paper.get(row, ())
    value = values[at] if at < len(values) else None
    return f"{value:.2f}" if isinstance(value, float) else value or ""


def lines_of(yours, ours, paper, at, bare=()):
    """The lines of a table, a row's records as one, in table_order, and footnotes. bare: further labels, of
    rows that only the paper has."""
    rows = {label: ([], []) for label in bare}
    for whose, found in enumerate((yours, ours)):
        for r in found:
            rows.setdefault(row_key(r), ([], []))[whose].append(r)
    first = {key: (both[0] or both[1])[0] for key, both in rows.items() if any(both)}
    for label in bare:
        if any(r["row"] == label for r in first.values()):
            del rows[label]
        else:
            first[label] = {"row": label, "model": "", "cell": {}}
    lines, notes = [], []
    for key in sorted(rows, key=lambda key: table_order(first[key], paper)):
        (mine, note), (theirs, other) = map(one_recipe, rows[key])
        notes += filter(None, [note, other])
        label = first[key]["row"]
        numbers = [summary(mine), summary(theirs), cost(theirs or mine), paper_value(paper, label, at)]
        lines.append([label, *numbers])
    return lines, notes


RECIPE = {"epochs": "{} epochs", "examples": "{:,} examples", "batch_size": "batch {}"}  # row -> text
RECIPE |= {"lr": "lr {:g}", "lr_pretrain": "lr_pretrain {:g}"}


def print_recipe(title, rows, found, inputs=None):
    """Print the recipe of a task's tables, what few rows have instead in brackets, and what the records of
    that task say of the data: a paragraph. rows: {label: what RECIPE names, as the table has it}; inputs: how
    the models read an input, in words."""
    parts = []
    for row, text in RECIPE.items():
        values = {}
        for label, recipe in rows.items():
            if recipe.get(row):
                values.setdefault(recipe[row], []).append(label)
        usual, *rest = sorted(values, key=lambda value: -len(values[value])) or [None]
        if usual:
            others = [f"{value:g}: {'; '.join(values[value])}" for value in rest]
            parts.append(text.format(usual) + (f" ({'. '.join(others)})" if others else ""))
    if not parts:
        return
    words = f"Recipe, {title}: {', '.join([*parts, *filter(None, [inputs])])}."
    if any(r["data"].get("official") is False for r in found):
        words += " Not the official images."
    tier, task = found[0]["tier"], found[0]["task"]
    has_bag = any(r["model"] == "bag" or r["cell"].get("kernel") == 1 for r in found)
    if tier == "mini" and not has_bag and (bag := bag_of(task)):
        words += f" A bag of symbols (exp_locality.py, K=1), which sees no order, has {summary(bag)}."
    print(textwrap.fill(words, 80, break_on_hyphens=False) + "\n")


def unchanged(record):
    """What RECIPE names of a record's recipe, without what it changes of its table's."""
    rows = record["hp"].get("train", {}) | {"examples": record["data"].get("counts", {}).get("train")}
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


def print_task(task, title, tasks, tier, yours, ours, paper, floor):
    """The rows of one task that were trained by the script's recipe. Rows that only the paper has, and the
    rule without a network, are shown at full size alone."""
    at, full = tasks.index(task), tier == "paper"
    here = [[r for r in found if r["task"] == task and not r["changes"]] for found in (yours, ours)]
    bare = [row for row in paper if full and paper_value(paper, row, at)]
    lines, notes = lines_of(*here, paper, at, bare)
    if not lines:
        return
    lines += baseline_rows([*here[0], *here[1]])
    lines += [[f"no network: {floor[0]['row']}", "", summary(floor), cost(floor), ""]] if floor else []
    print_table([title, "yours", "this repository", "cost", "paper" if full else "paper, full"], lines, notes)


def print_papers(rest, tasks, short, paper, rules):
    """The paper's numbers for tasks that nobody has run at full size, and rules without a network."""
    if not rest:
        return
    places = [tasks.index(task) for task in rest] + [len(tasks)]
    lines = [[row, *(paper_value(paper, row, i) for i in places)] for row in paper]
    lines = [line for line in lines if any(line[1:])]
    lines += [[*line, ""] for line in floor_lines(rest, rules)]
    print("Not run at full size, the paper's numbers:\n")
    header, *lines = columns_in_use(["", *(short[task] for task in rest), "mean"], lines)
    show(header, lines)


def print_leads(ran, titles, tasks, tier, found, paper, leads):
    """A table: how far is one row ahead of another, wherever both were trained by one recipe?"""
    lines = []
    for name, pair in leads.items():
        of_pair = [r for r in found if r["task"] in ran and r["row"] in pair]
        lines += under(name, leads_of(pair, of_pair, ran, titles, tasks, paper))
    if lines:
        print_table(["in points", "here", "paper" if tier == "paper" else "paper, full"], lines)


def leads_of(pair, found, ran, titles, tasks, paper):
    """The lines of two rows in print_leads, a task and a recipe each. Rates that were tried are left out. A
    row without techniques is compared with all techniques that the other was given."""
    one, other = (grouped((r for r in found if r["row"] == row), place_of) for row in pair)
    lines = []
    for place in sorted(one, key=lambda place: (ran.index(place[0]), naturally(place[1]))):
        task, words = place
        changes = dict(one[place][0]["changes"])
        twin = other.get(place)
        if not twin and changes.pop("technique", None):
            twin = [r for r in other.get((task, in_words(changes)), ()) if not r["hp"]["train"]["technique"]]
        if twin and changes.keys() != {"lr"}:
            printed = [paper_number(paper, row, tasks, task) for row in pair]
            known = all(isinstance(value, float) for value in printed)
            *long, label = textwrap.wrap(
                ", ".join(filter(None, [titles[task], words])), 42, subsequent_indent="  "
            )
            here = lead(best_recipe(one[place]), best_recipe(twin), seeds=True)
            there = signed(printed[0] - printed[1]) if known else ""
            lines += [*([part, "", ""] for part in long), [label, here, there]]
    return lines


def place_of(record):
    """The task of a record and what was changed in its recipe, in words."""
    return record["task"], in_words(record["changes"])


def print_list(heading, lines):
    """A heading and lines below it, each with a dash; nothing without lines."""
    if lines:
        print(f"{textwrap.fill(heading, 80)}\n")
        print("\n".join(textwrap.fill(f"- {line}", 80, subsequent_indent="  ") for line in lines) + "\n")


def columns_in_use(header, lines):
    """The rows of a table without columns that are empty."""
    used = [i for i in range(len(header)) if i == 0 or any(line[i] for line in lines)]
    return [[line[i] for i in used] for line in (header, *lines)]


def floor_of(ours, task, floors):
    """The records of the rule that stands for "no network" on a task; [] without one."""
    wanted = {"task": task, "tier": "paper", "changes": {}} | floors.get(task, {})
    return [r for r in ours if task in floors and wanted.items() <= r.items()][:1]


def floor_lines(tasks, rules):
    """The line of a table with a column a task that has the rules without a network: one or none."""
    found = [f"{100 * mean_and_error(rules[task])[0]:.2f}" if rules.get(task) else "" for task in tasks]
    return [["no network, ours", *found]] if any(found) else []


def print_changed(task, title, tasks, yours, ours, paper, tier):
    """One table of the rows of a task that were not trained by the table's recipe, under what was changed."""
    here = [[r for r in found if r["task"] == task and r["changes"]] for found in (yours, ours)]
    changes = {in_words(r["changes"]): r["changes"] for found in here for r in found}
    lines, notes = [], []
    for words in sorted(changes, key=naturally):
        group = [[r for r in found if r["changes"] == changes[words]] for found in here]
        rows, more = lines_of(*group, paper, tasks.index(task))
        lines += under(words, rows)
        notes += more
    if lines:
        last = "paper" if tier == "paper" else "paper, full"
        header = [f"{title}, changed recipe", "yours", "this repository", "cost", last]
        print_table(header, lines, notes)


def under(words, rows):
    """Rows of a table under a line of words, such as what was changed in their recipe; none without rows."""
    if not rows:
        return []
    width = max(34, *(len(label) + 2 for label, *_ in rows))
    heading = [[part] + [""] * (len(rows[0]) - 1) for part in textwrap.wrap(f"{words}:", width)]
    return heading + [[f"  {label}", *numbers] for label, *numbers in rows]


def print_table(header, lines, notes=()):
    """Without the columns that nothing stands in; footnotes below."""
    lines = [["" if cell == "—" else cell for cell in line] for line in lines]
    header, *lines = columns_in_use(header, lines)
    print(markdown(header, lines))
    for note in notes:
        print(textwrap.fill(note, 80))
    print()


def baseline_rows(records):
    """What rules get that need no model, as far as the records say."""
    known = next((found for r in records if (found := r["data"].get("baselines"))), {})
    names = {"majority": "commonest training label", "root rule": "the same of each operation"}
    return [[names[rule], "", f"{100 * value:.1f}", "", ""] for rule, value in known.items()]


def print_averages(tasks, yours, ours, paper, bare=True):
    """Averages over all tasks: ours of rows that every task has, beside those that the paper prints; bare:
    the paper's other rows, too."""

    def averages(found):
        full = [r for r in found if r["tier"] == "paper" and not r["changes"]]
        for row, group in grouped(full, lambda r: r["row"]).items():
            cells = grouped(group, lambda r: r["task"])
            if {*tasks} <= cells.keys():
                means = [mean_and_error(best_recipe(cells[task]))[0] for task in tasks]
                yield row, f"{100 * statistics.mean(means):.2f}"

    found, n = [dict(averages(yours)), dict(averages(ours))], len(tasks)
    rows = [row for row in paper if bare and paper_value(paper, row, n)]
    rows = list(dict.fromkeys([*rows, *found[0], *found[1]]))
    lines = [[row, *(known.get(row, "") for known in found), paper_value(paper, row, n)] for row in rows]
    if lines:
        print_table([f"average of {n}", "yours", "this repository", "paper"], lines)


def compare(args, exp, titles):
    """Each row of a copied script beside the same row of its original, or beside the row that --against names
    after a colon: your runs of that, or ours."""
    script, _, named = str(args.against).partition(".py:")
    original, (yours, ours) = experiment(script), yours_and_ours(args.out)
    whose, known = "yours", [r for r in yours if r["exp"] == original]
    if not known:
        whose, known = "this repository's", [r for r in ours if r["exp"] == original]
    if not known:
        raise UserError(f"no run of {original} is known; give a script that has been run")
    rows = sorted({r["row"] for r in known}, key=naturally)
    if named and named not in rows:
        raise UserError(f"{original} has no row {named}; it has {', '.join(rows)}")
    mine = grouped([r for r in yours if r["exp"] == exp], lambda r: (r["tier"], row_key(r)))
    lines, notes, lacking = [], [], []
    for group in mine.values():
        group, first = best_recipe(group), group[0]
        same = {"tier": first["tier"], "task": first["task"], "changes": first["changes"]}
        same["row"] = named or first["row"]
        other = best_recipe([r for r in known if same.items() <= r.items()])
        where = ", ".join(filter(None, [titles.get(first["task"], first["task"]), first["row"]]))
        where = "; ".join(filter(None, [where, in_words(first["changes"])]))
        words = "—"
        if other:
            words = lead(group, other)
            now, was = (of[0]["hp"].get("train", {}) for of in (group, other))
            differ = [key for key in now | was if now.get(key) != was.get(key)]
            notes += [f"{where}: {k} is {now.get(k)}, in the original {was.get(k)}." for k in differ]
        else:
            lacking.append(first.get("argv", []))
        lines.append([where, TIERS[first["tier"]], summary(group), summary(other), words])
    if not lines:
        smoke = any(r["exp"] == exp for r in read_records([args.out / "results.jsonl"]))
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


def bag_of(task):
    """This repository's mini records of a task for a bag of symbols: exp_locality's K = 1."""
    wanted = dict(exp="locality", task=task, tier="mini", cell={"kernel": 1}, changes={})
    return [r for r in published() if wanted.items() <= r.items()]


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
    y, errors = zip(*((100 * value for value in mean_and_error(group)) for group in groups))
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
    logged, lines = curves(), {}
    known = published() + newest({run.parent / "results.jsonl" for run in runs})
    known = {r["run"]: r for r in known}
    for run in runs:
        record = known.get(run.name)  # of a run that has not ended there is none
        recipe = json.dumps([row_key(record), record["hp"]]) if record else run.name
        curve = curve_of(run, logged)
        _, _, seeds = lines.setdefault(
            (recipe, len(curve)), (record and label_of(record) or run.name, record, [])
        )
        drops = [before["epoch"] for before, line in pairwise(curve) if line["lr"] < before["lr"]]
        accuracies = [(line["epoch"], 100 * line["val"]["acc"], 100 * line["train"]["acc"]) for line in curve]
        seeds.append((accuracies, drops[-1] if drops else math.nan))
    figure, axis = pyplot().subplots(figsize=(8, 4.4), layout="constrained")
    for i, (label, record, seeds) in enumerate(lines.values()):
        accuracies, drops = zip(*seeds)
        (epochs, val, train), n = numpy.mean(accuracies, 0).T, len(seeds)
        error = numpy.std(accuracies, 0, ddof=1)[:, 1] / n**0.5 if n > 1 else None
        look = dict(color=colour(record["model"], record["cell"], i) if record else f"C{i}")
        axis.errorbar(epochs, val, yerr=error, fmt=".-", label=f"{label} (n = {n})", **look)
        axis.plot(epochs, train, linewidth=0.7, **look)
        axis.axvline(numpy.mean(drops), linewidth=1, linestyle=":", **look)
    axis.plot([], [], ".-", color="0.3", label="validation")
    axis.plot([], [], color="0.3", linewidth=0.7, label="training")
    axis.plot([], [], color="0.3", linewidth=1, linestyle=":", label="last fall of the learning rate")
    if paper is not None:
        axis.axhline(
            paper, color="0.3", linestyle="--", linewidth=1, label=f"the paper, on test: {paper:.2f}"
        )
    axis.set(xlabel="epoch", ylabel="accuracy (%)", title=title)
    axis.grid(alpha=0.3)
    legend_below(figure, [axis])
    save_figure(figure, path)


def curves():
    """{run: the lines of its log.jsonl, one for each validation} of this repository's runs."""
    paths = sorted((RESULTS / "curves").glob("*.jsonl"))
    lines = (json.loads(line) for path in paths for line in path.read_text(encoding="utf-8").splitlines())
    return {line["run"]: line["curve"] for line in lines}


def curve_of(run, logged):
    """The lines of a run's log.jsonl, or those of `logged`, see curves, that have its name."""
    log = run / "log.jsonl"
    if log.is_file():
        return [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    if run.name not in logged:
        raise UserError(
            f"{log}: there is no such file; give the folder of a run, or a name of results/curves"
        )
    return logged[run.name]


def main(argv=None):
    parser = argparse.ArgumentParser(
        description="Draw the accuracy of runs after each epoch, training and validation, to DIR/curves.png. "
        "Seeds of one recipe are averaged.",
        epilog="Example: python records.py --plot runs/mini-locality-listops-*",
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
