"""What is a run, where is its record, and how far is one cell ahead of another?

A cell of a table is one run per seed. Its identity is everything that makes the result what it is; its
folder is named after a hash of that, and it is finished when OUT/results.jsonl has a record with that name.
A record says its place in the tables: `task`, `model` and `cell` say which row, `changes` what differs from
the table's recipe. `row` is the row's label: people read it, and the papers' tables are
found by it. A new script needs
`run_cell` and `run_cells`, and `tables.report`.
"""

import contextlib
import datetime
import functools
import hashlib
import itertools
import json
import math
import platform
import statistics
import sys
import textwrap
from pathlib import Path

import numpy
import torch

import common
import models
from machine import UserError, fcntl

RESULTS = Path(__file__).with_name("results")  # this repository's records
TIERS = {"paper": "full size", "reduced": "at reduced budgets", "mini": "mini tier"}
SEEDS = 3  # declared for every cell of the mini tier: of more the first count
WITHOUT_NETWORK = "linear", "rule"  # "model" of their records


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


# Paper A's training techniques (Section 3) in words.
TECHNIQUES = {"denoise": "denoising", "shuffle": "shuffled arguments", "three sets": "all three sets"}
TECHNIQUES |= {"augment paper": "A's augmentation", "augment flip": "flips"}


def in_words(changes):
    """changes_of as people read it: "3,000 examples, 40 epochs, lr 0.01"."""
    known = {
        "limit": lambda n: f"{n:,} examples",
        "epochs": lambda n: "1 epoch" if n == 1 else f"{n} epochs",
        "steps": lambda n: f"{n:,} steps",
        "max_length": lambda n: f"{n:,} bytes",
        "technique": lambda name: TECHNIQUES.get(name, "no augmentation"),
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
    return list(published_in(files_of_results()))


def files_of_results():
    """((path, time of change), ...) of the records in results/: what a cache of them goes by."""
    return tuple((path, path.stat().st_mtime_ns) for path in sorted(RESULTS.glob("*.jsonl")))


@functools.cache
def published_in(files):
    """published, of some files: a report asks often, and to read them takes 0.1 s."""
    found = newest(path for path, _ in files)
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


# ------------------------------------------------------------------------------------------ rows and cells


def grouped(records, key):
    """{key(record): the records that have it}"""
    groups = {}
    for r in records:
        groups.setdefault(key(r), []).append(r)
    return groups


def row_key(record):
    """What makes records one row of a task's tables, whatever their labels say, as something to group by."""
    facts = (json.dumps(record[part], sort_keys=True) for part in ("cell", "changes"))
    return record["task"], record["model"], *facts


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


def seconds_of(record):
    """CPU seconds if recorded, else wall seconds."""
    return record.get("cpu_seconds") or record["seconds"]


# ------------------------------------------------------------------------------------------ errors


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


GAP = 2.0  # points: up to this is level
FAR = 10.0  # points: of gaps above this mini runs mostly tell the sign
# Readings. Where a gap is expected:
SAME, OPPOSITE, NO_GAP, BAG = "same sign", "opposite", "no gap", "no order"
# where none is, ABOVE and BELOW being perhaps level:
EQUAL, AHEAD, BEHIND, ABOVE, BELOW = "level", "ahead", "behind", "maybe ahead", "maybe behind"
OPEN, FEW, NOT_RUN = "open", "too few seeds", "not run"  # of any
AS_THERE = {  # is it as expected? {answer: readings}
    "yes": (SAME, EQUAL),
    "no": (OPPOSITE, NO_GAP, AHEAD, BEHIND),
    "open": (OPEN, ABOVE, BELOW, BAG),
}
# Student's t: {degrees of freedom: its quantile 0.975}.
T = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 8: 2.306, 10: 2.228, 12: 2.179, 15: 2.131}
T |= {20: 2.086, 30: 2.042, 40: 2.021, 60: 2.000, 120: 1.980}


def interval(points, error, tier, tasks):
    """The ends of the 95 % interval of a sum of accuracies on some tasks, by Student's t."""
    df = max(1, min(pooled_variance(tier, task)[1] for task in tasks))
    reach = error * T[max(known for known in T if known <= df)]
    return points - reach, points + reach


def read_interval(expected, low, high, at_bag=False):
    """What the interval low..high says where `expected` points are expected, inf for a direction alone, by
    the rule of docs/claims.md; at_bag: whether every cell is at the level of a bag of symbols."""
    if expected is None:
        return ""
    if abs(expected) <= GAP:
        if -GAP <= low and high <= GAP:
            return EQUAL
        if low > 0:
            return AHEAD if low > GAP else ABOVE
        return OPEN if high >= 0 else BEHIND if high < -GAP else BELOW
    low, high = (low, high) if expected > 0 else (-high, -low)
    if at_bag:
        return BAG
    return SAME if low > 0 else OPPOSITE if high < 0 else NO_GAP if -GAP <= low and high <= GAP else OPEN


def as_there(reading, side=""):
    """ "yes", "no" or "open" of a reading, see AS_THERE; "" where there is none to be had. "better" for a gap
    on the side, "+" above 0 or "-" below, that suits a sentence even more than no gap."""
    if reading == {"+": AHEAD, "-": BEHIND}.get(side):
        return "better"
    return next((answer for answer, readings in AS_THERE.items() if reading in readings), "")


def side(gap, error):
    """ "ahead", "level" or "behind": level is what lies within two standard errors of a gap."""
    return "level" if abs(gap) < 2 * error else "ahead" if gap > 0 else "behind"


def bags_of(record):
    """What the records of the bag of symbols have that a record of the mini tier is compared with, the best
    first: K = 1 without techniques, exp_range's, if it was trained without; exp_locality's K = 1."""
    same = {"task": record["task"], "tier": "mini", "changes": {}}
    with_them = same | {"exp": "locality", "model": "conv", "cell": {"kernel": 1}}
    without = same | {"exp": "range", "model": "bag", "cell": {"stride": 1, "techniques": "no"}}
    return [with_them] if record["hp"].get("train", {}).get("technique") else [without, with_them]


def is_bag(record):
    """Whether a record is of a bag of symbols, K = 1."""
    return record["model"] == "bag" or record["cell"].get("kernel") == 1


def at_bag(group, bag):
    """Whether a cell has learnt little: its mean is at most GAP points above that of a bag of symbols, K = 1,
    and it is no bag itself. False where either has no records."""
    if not group or not bag or is_bag(group[0]):
        return False
    return mean_and_error(group)[0] <= mean_and_error(bag)[0] + GAP / 100


def pooled_variance(tier, task):
    """(variance of accuracies over seeds, pooled over this repository's cells; its degrees of freedom)"""
    return pooled_variances(files_of_results()).get((tier, task), (0.0, 0))


@functools.cache
def pooled_variances(files):
    """{(tier, task): pooled_variance} of the records in some files. The first SEEDS seeds of a cell count,
    and once what two scripts have in their tables."""
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
