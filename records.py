"""What is a run, where is its record, and how do records become tables and figures?

A cell of a table is one run per seed. Its identity is everything that makes the result what it is (script,
task, model, cell, seed, recipe, examples); the run's folder is named after a hash of it, and it is finished
when OUT/results.jsonl has a record with that name. An experimenter needs `run_cell` and can skip the rest.
"""

import contextlib
import datetime
import hashlib
import itertools
import json
import math
import re
import statistics
import sys
import textwrap
from pathlib import Path
from typing import NamedTuple

import torch

import common
from common import UserError
from fetch import fcntl  # None on Windows: nobody waits for anybody


class Busy(common.Interrupted):
    """Another process is training this run; it is left to it."""


# ------------------------------------------------------------------------------------------ one run


def make_identity(args, script, task, model, cell, seed, hp):
    """What makes a run this run: two runs with the same identity are the same cell, and only those. The
    experiment's name is that of the file `script`, so a copied script has runs of its own."""
    identity = {"exp": Path(script).stem.removeprefix("exp_"), "task": task.name, "model": model}
    identity |= {"cell": cell, "seed": seed, "hp": hp, "limit": args.limit, "data": task.source["hash"]}
    identity |= {"smoke": args.smoke} | ({"mini": True} if args.mini else {})
    return json.loads(json.dumps(identity))  # tuples -> lists, as in a record


def run_name(identity):
    """exp-task-model-cell-s0-1a2b3c4d: the part that people read, and a hash of the whole."""
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:8]
    parts = ["smoke"] * identity["smoke"] + ["mini"] * identity.get("mini", False)
    parts += [identity[k] for k in ("exp", "task", "model")]
    parts += [f"{k}{v}" for k, v in identity["cell"].items()] + [f"s{identity['seed']}", digest]
    return "-".join(parts)


def code_hash(script):
    """Of the script and of models.py: what a record's number belongs to, beyond its identity."""
    files = (Path(script), Path(__file__).with_name("models.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:12]


def finished(out):
    """{run: its newest record} of the runs under `out` that have no last.pt any more."""
    newest = {r["run"]: r for r in read_records([out / "results.jsonl"])}
    return {run: r for run, r in newest.items() if not (out / run / "last.pt").exists()}


def is_done(args, script, name):
    """Whether this run is finished and --fresh does not ask for it again; says so."""
    done = common.on_first_rank(lambda: finished(args.out).get(name))
    if not done or args.fresh:
        return False
    what = f"{done['test_acc']:.2%}" if done.get("score", "accuracy") == "accuracy" else "pretrained"
    print(f"{name}\n  is done: {what} ({done['date'][:10]}; --fresh trains it again)")
    if done.get("code", code_hash(script)) != code_hash(script):
        print("  note: the code has changed since; --fresh trains it anew")
    return True


@contextlib.contextmanager
def claimed(args, name):
    """The run's folder, held by this process alone. Raises Busy where another process has it: both would
    write the same last.pt. The system frees the lock of a process that is killed."""
    folder, taken = args.out / name, False
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "a") as lock:
        try:
            if fcntl and common.rank() == 0:
                fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            taken = True
        if common.any_rank(taken)[0]:
            raise Busy(f"{name} is being trained by another process and is left to it")
        yield folder


def train(args, *, script, identity, task, hp, build, loss_fn, budget, extra=None):
    """One training, from its folder to its record, a dict. The folder must not be done, see is_done.

    build       () -> model; called after torch's global generator was seeded
    extra       () -> further rows of the record, called when the training has ended
    """
    name, seed = run_name(identity), identity["seed"]
    with claimed(args, name) as folder:
        torch.manual_seed(common.stream(seed, "init"))
        model = build()
        announce(args, folder, model, task, hp)
        bf16 = common.use_bf16(args.amp, common.resolve_device(args.device))
        note = {"git": args.git[0], "dirty": args.git[1], "code": code_hash(script), "argv": args.argv}
        note |= {"amp": "bf16" if bf16 else "off", "micro_batch": args.micro_batch}
        note |= {"compile": args.compile or False}
        with common.out_of_memory_advice(model, hp["batch_size"], args.micro_batch):
            result = common.fit(model, task, loss_fn, hp, args, folder, seed, note)
        starts = result.pop("starts")
        line = {**identity, "run": name, "budget": budget, **result, **(extra() if extra else {})}
        line |= {"data": task.source, "torch": torch.__version__, **note}  # the identity has data's hash
        line["dirty"] = any(start["dirty"] for start in starts)
        if len(starts) > 1:
            line["starts"] = starts  # it was stopped and continued with other code or flags
        line["date"] = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        if common.rank() == 0:
            append_record(args.out / "results.jsonl", line)
            (folder / "last.pt").unlink(missing_ok=True)
    return line


def announce(args, folder, model, task, hp):
    """The first lines of a training: its run, its data, its size, its recipe."""
    device = common.resolve_device(args.device)
    precision = "bf16" if common.use_bf16(args.amp, device) else "float32"
    n, length = len(task.train.label), hp.get("max_length") or task.max_length
    steps, _ = common.training_length(task, hp)
    print(f"\n{folder}")
    print(f"  {sum(p.numel() for p in model.parameters()):,} parameters, {precision} on {device}")
    print(f"  {n:,} examples of at most {length:,} positions ({task.source['from']}), {steps:,} steps")
    rows = " ".join(f"{row}={value}" for row, value in hp.items())
    print(textwrap.indent(textwrap.fill(rows, 78, break_on_hyphens=False), "  "), flush=True)


def budget(args, hp, paper):
    """ "mini" with --mini; else "paper" when a cell is trained as the paper trained it (`paper` = the table's
    column, with all that hp has; both readings of the last tenth count), else "reduced"."""
    if args.mini:
        return "mini"
    same = {k: v for k, v in hp.items() if k != "set_last_tenth"} == paper
    return "paper" if same and not args.limit and not args.smoke else "reduced"


def run_cell(args, *, script, task, model, cell, hp, paper, build, loss_fn, seed, expected=None):
    """One cell of a table: nothing where it is done, else from the model to the record.

    script              __file__ of the caller, which names the experiment
    model, cell         how the record names it, e.g. "conv", {"kernel": 5}
    hp, paper           what it is trained with, and the column of the table (of the mini table with --mini)
    expected            the paper's accuracy in percent, printed beside ours
    """
    for row, found in (("limit", len(task.train.label)), ("max_length", task.max_length)):
        if getattr(args, row) not in (None, found):  # the record would say what was not done
            raise UserError(f"{common.flag(row)}: the script does not cut its task; see data.limited")
    identity = make_identity(args, script, task, model, cell, seed, hp)
    if is_done(args, script, run_name(identity)):
        return
    how = dict(task=task, hp=hp, build=build, loss_fn=loss_fn, budget=budget(args, hp, paper))
    line = train(args, script=script, identity=identity, **how)
    print(outcome(args, line, paper, expected), flush=True)


def outcome(args, line, paper, expected):
    """The last lines of a cell: its number, what it is worth, where it lies, and what comes next."""
    worth = ", ".join(filter(None, [f"{line['budget']} budget", terms(line, paper)]))
    worth += "" if expected is None else f"; the paper's full run: {expected:.2f}"
    report = f"python {args.argv[0]} --report" + f" --out {args.out}" * (args.out != Path("runs"))
    if line["smoke"]:
        worth, report = "a smoke run: it works, the accuracy means nothing", "smoke runs are in none"
    best = f"(best validation: {line['best_epoch']} of {line['epochs']})"
    places = f"weights: {args.out / line['run'] / 'best.pt'}", f"record: {args.out / 'results.jsonl'}"
    return "\n  ".join([f"test accuracy {line['test_acc']:.2%} {best}", worth, *places, f"table: {report}"])


def run_cells(args, cells, run, report=None):
    """run(args, *cell, seed) for each cell of a command and each of its seeds; at the mini tier report(args).
    A cell that cannot be trained does not keep the others from their turn. At the end this raises UserError
    if some failed, else Busy if other processes were at some."""
    runs, missing = list(itertools.product(cells, range(args.seed, args.seed + args.seeds))), []
    for cell, seed in runs:
        try:
            run(args, *cell, seed)
        except (Busy, UserError) as reason:
            busy = isinstance(reason, Busy)
            if len(runs) == 1 or (common.ranks() > 1 and not busy):  # ranks that go on alone wait for others
                raise
            print(f"{'note' if busy else 'error'}: {reason}", file=sys.stderr, flush=True)
            missing.append(type(reason))
    if missing:
        kind = Busy if {*missing} == {Busy} else UserError
        raise kind(f"{len(missing)} of {len(runs)} cells did not finish, for the reasons above")
    if report and args.mini:
        report(args)


# ------------------------------------------------------------------------------------------ records


def append_record(path, line):
    """Append one JSON line; safe with many processes. After a torn piece (a power cut) it starts a new line:
    reading leaves out the piece alone."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "ab+") as f:
        if fcntl:
            fcntl.flock(f, fcntl.LOCK_EX)  # until the file is closed
        size = f.seek(0, 2)
        f.seek(max(0, size - 1))
        torn = size and f.read(1) != b"\n"
        f.write(b"\n" * bool(torn) + json.dumps(line).encode() + b"\n")


READ = dict.fromkeys(("run", "exp", "task", "model", "budget", "date"), str)  # what tables read of a record
READ |= dict.fromkeys(("val_acc", "test_acc", "seconds"), float) | dict(seed=int, limit=(int, type(None)))
READ |= dict.fromkeys(("cell", "hp", "data"), dict)


def is_record(line):
    """Whether a JSON value has what every table reads of a record, each of its type."""
    return (
        isinstance(line, dict)
        and all(isinstance(line.get(row), kind) for row, kind in READ.items())
        and isinstance(line["data"].get("hash"), str)
        and line["test_acc"] <= 1
        and (line["test_acc"] >= 0 or line.get("score") == "R^2")
        and not any(isinstance(v, (list, dict)) for v in line["cell"].values())
    )


def parsed(text):
    """The value of a line of JSON; None where it is none."""
    with contextlib.suppress(ValueError, RecursionError):
        return json.loads(text)


def read_records(paths):
    """All records of the files that exist; other lines are left out with one warning a file."""
    records = []
    for path in filter(Path.is_file, paths):
        lines = {i: parsed(x) for i, x in enumerate(path.read_bytes().split(b"\n"), 1) if x.strip()}
        records += filter(is_record, lines.values())
        if strange := [str(i) for i, line in lines.items() if not is_record(line)]:
            numbers = ", ".join(strange[:5]) + ", ..." * (len(strange) > 5)
            print(f"warning: {path}: left out what is no record, line {numbers}", file=sys.stderr)
    return records


def report_records(args, script, tasks=None, models=None, cell=None):
    """The records for one script's tables: no smoke runs, of identical cells the newest. tasks, models, cell:
    what the table has; cells with other keys than `cell` are not its."""
    exp, given = Path(script).stem.removeprefix("exp_"), [Path(p) for p in args.report or []]
    if missing := [str(p) for p in given if not p.is_file()]:
        raise UserError(f"no such records file: {', '.join(missing)}; give files such as results/*.jsonl")
    default = [args.out / "results.jsonl", *sorted(Path(__file__).with_name("results").glob("*.jsonl"))]
    newest = {r["run"]: r for r in sorted(read_records(given or default), key=lambda r: r["date"])}
    wanted = tasks if not args.task or "all" in args.task else args.task
    found = [r for r in newest.values() if r["exp"] == exp and not r.get("smoke")]
    found = [r for r in found if wanted is None or r["task"] in wanted]
    found = [r for r in found if models is None or r["model"] in models]
    return [r for r in found if cell is None or r["cell"].keys() <= {*cell}]


def finished_runs(args, task, exps):
    """The records of a task under --out by one of `exps` whose best.pt is there; smoke runs with --smoke,
    mini runs with --mini."""
    found = [r for r in finished(args.out).values() if r["task"] == task and r["exp"] in exps]
    found = [r for r in found if (r.get("smoke", False), r.get("mini", False)) == (args.smoke, args.mini)]
    return [r for r in found if (args.out / r["run"] / "best.pt").exists()]


def rebuilt(path, model_class):
    """(model, checkpoint) of a best.pt. Raises UserError, with one sentence, for what is no such file."""
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


def percent(value, signed=False):
    """0.8896 -> "88.96"; None -> a dash."""
    return "—" if value is None else f"{100 * value:{'+' if signed else ''}.2f}"


def from_to(counts):
    """ "2", or "2 to 3" where they differ."""
    counts = [*counts]
    least, most = min(counts), max(counts)
    return f"{least}" + f" to {most}" * (most > least)


def summary(records):
    """ "88.96 ± 0.21 (n=3)", mean and standard deviation over the seeds in `records`; a dash for none. Where
    some stayed at chance a mean alone would mislead: "70.12 ± 17.42 (n=5, 2 learnt)"."""
    if not records:
        return "—"
    accuracies = [r["test_acc"] for r in records]
    spread = f" ± {100 * statistics.stdev(accuracies):.2f}" if len(accuracies) > 1 else ""
    learnt = sum(r["test_acc"] > r.get("chance", 0) + 0.02 for r in records)  # first records do not say
    count = f"n={len(records)}" + (f", {learnt} learnt" if learnt < len(records) else "")
    if records[0]["budget"] == "paper":  # other runs have these words beside them, see terms
        count = ", ".join([count, *marks(records[0])])
    return f"{percent(statistics.mean(accuracies))}{spread} ({count})"


def mean_and_error(records):
    """Mean test accuracy of the seeds of one cell and its standard error, by the root-n rule: of the variance
    over seeds or, where it is larger, of that which the size of the test set gives every accuracy."""
    accuracies = [r["test_acc"] for r in records]
    mean, n = statistics.mean(accuracies), len(accuracies)
    tested = records[0]["hp"].get("limit_test") or records[0]["data"].get("counts", {}).get("test", 10_000)
    variance = max(mean * (1 - mean) / tested, statistics.variance(accuracies) if n > 1 else 0.0)
    return mean, math.sqrt(variance / n)


def marks(record):
    """Words of a table about what is not told by the recipe's rows."""
    words = ["not the official images"] if record["data"].get("official") is False else []
    return words + ["last tenth set"] * bool(record["hp"].get("set_last_tenth"))


def terms(record, paper):
    """What a run was trained with, in words, as far as it is not in `paper`, its recipe. Runs with equal
    terms may be compared."""
    hp, words = record["hp"], [f"{record['limit']:,} examples"] if record["limit"] else []
    changed = {k: hp.get(k) for k in {**paper, **hp} if hp.get(k) != paper.get(k) and k != "set_last_tenth"}
    if epochs := changed.pop("epochs", None):
        fewer = epochs < paper.get("epochs", 0)
        words.append(f"{epochs} of {paper['epochs']} epochs" if fewer else f"{epochs} epochs")
    for row, sentence in (("steps", "{:,} steps"), ("limit_test", "tested on {:,}")):
        words += [sentence.format(changed.pop(row))] if changed.get(row) else []
    words += marks(record)
    words += [common.flag(row) if value is False else f"{row} {value}" for row, value in changed.items()]
    return ", ".join(words)


def spent(record):
    """Seconds of one core; the first records have those of the clock alone."""
    return record.get("cpu_seconds", record["seconds"])


def grouped(records, key):
    """{key(record): the records that have it}"""
    groups = {}
    for r in records:
        groups.setdefault(key(r), []).append(r)
    return groups


def best_recipe(records):
    """Of several recipes or data sets the records of the one with the best mean validation accuracy; says
    what is left out."""
    groups = grouped(records, lambda r: json.dumps([r["hp"], r["data"]["hash"]], sort_keys=True))
    best = max(groups.values(), key=lambda g: statistics.mean(r["val_acc"] for r in g), default=[])
    if left := len(records) - len(best):
        print(f"left out: {left} runs beside {best[0]['run']}, another recipe that\nvalidated worse")
    return best


def paper_and_ours_rows(label, paper, records, tasks):
    """Rows of a table for one model: the paper's numbers (or None), ours, and the difference; a column for
    each of `tasks` and one for the average of all."""
    cells = {name: best_recipe([r for r in records if r["task"] == name]) for name in tasks}
    ours = [statistics.mean(r["test_acc"] for r in cells[name]) if cells[name] else None for name in tasks]
    ours.append(None if None in ours else statistics.mean(ours))
    rows = [] if paper is None else [[f"{label}, paper", *(f"{value:.2f}" for value in paper)]]
    if any(cells.values()):
        rows.append([f"{label}, ours", *(summary(cells[name]) for name in tasks), percent(ours[-1])])
        if paper is not None:
            difference = [None if x is None else x - p / 100 for x, p in zip(ours, paper)]
            rows.append(["difference", *(percent(value, signed=True) for value in difference)])
    return rows


def numbers(words):
    """Of a text, to sort by: 4 epochs stand before 16."""
    return [int(n) for n in re.findall(r"\d+", words.replace(",", ""))]


def print_reduced(table, records, variant, recipe, titles):
    """Print the runs below the paper's budget, if there are any; those of one task on equal terms together.

    variant, titles   {run: name of its row}, {task: title}, in the order of the rows
    recipe            record -> the paper's full recipe of its cell
    """
    tasks, names = list(titles), list(dict.fromkeys(variant.values()))
    reduced = [r for r in records if r["budget"] == "reduced"]
    groups = grouped(reduced, lambda r: (r["task"], terms(r, recipe(r)), variant[r["run"]]))
    order = lambda key: (tasks.index(key[0]), numbers(key[1]), key[1], names.index(key[2]))  # noqa: E731
    rows = []
    for task, words, name in sorted(groups, key=order):
        rows.append([titles[task], name, summary(best_recipe(groups[task, words, name])), words])
    if rows:
        print(f"### {table} at reduced budgets\n\nCompare rows with equal terms only\n")
        print(markdown(["Task", "", "test accuracy (%)", "trained on"], rows) + "\n")


def report_plain(args, script):
    """The table of a script without a paper: a row for each task, model, cell and recipe."""
    first = {}

    def row(r):
        cell = ", ".join(f"{k} {v}" for k, v in r["cell"].items()) or "—"
        key = r["task"], r["model"], cell, r["budget"]
        return *key, terms(r, first.setdefault(key, r["hp"] | {"steps": None, "limit_test": None})) or "—"

    groups = grouped(report_records(args, script), row)
    rows = [[*key, summary(best_recipe(groups[key]))] for key in sorted(groups)]
    print(markdown(["task", "model", "cell", "budget", "changed", "test accuracy (%)"], rows))
    print("\nSmoke runs are left out: their accuracy means nothing." if not rows else "")


# ------------------------------------------------------------------------------------------ the mini tier

ERRORS = 2.5  # standard errors to each side of a difference


class Judged(NamedTuple):
    """A claim about a difference of accuracies, in points, and what became of it."""

    claim: str
    low: float  # the difference is claimed to lie between low and high
    high: float
    difference: float
    error: float  # standard error
    verdict: str
    measured: str  # the difference and the claimed range in words
    bounds: str


def verdict(difference, error, low, high):
    """What becomes of the claim that a difference lies between low and high: supported if all of the interval
    of `ERRORS` standard errors around what was measured does, contradicted if none of it does."""
    left, right = difference - ERRORS * error, difference + ERRORS * error
    if low <= left and right <= high:
        return "supports"
    return "CONTRADICTS" if right < low or left > high else "beyond this tier"


def lead(task, one, other, sign=1):
    """The signed cells of a claim, see judged: how far row `one` of a task is ahead of row `other`."""
    return [(sign, task, one), (-sign, task, other)]


def judged(claims, cells):
    """[Judged] of claims.

    claims   [(words, [(sign, task, label), ...], low, high)]: the sum of the signed accuracies, in points, is
             claimed to lie between low and high (None: no bound)
    cells    {(task, label): records}, of at least two seeds each to be judged
    """
    rows = []
    for words, signed, low, high in claims:
        bounds = f"≥ {low:g}" if high is None else f"≤ {high:g}" if low is None else f"{low:g} to {high:g}"
        low, high = -math.inf if low is None else low, math.inf if high is None else high
        groups = [(sign, cells.get((task, label), [])) for sign, task, label in signed]
        seeds = [len(group) for _, group in groups]
        difference, error, measured, answer = math.nan, math.nan, "—", "not yet"
        if min(seeds):
            found = [(sign, *mean_and_error(group)) for sign, group in groups]
            difference = 100 * sum(sign * mean for sign, mean, _ in found)
            error = 100 * math.sqrt(sum(error**2 for _, _, error in found))
            measured = f"{difference:+.1f} ± {error:.1f} (n={from_to(seeds)})"
            answer = verdict(difference, error, low, high) if min(seeds) > 1 else "one seed: not yet"
        rows.append(Judged(words, low, high, difference, error, answer, measured, bounds))
    return rows


def print_claims(claims, cells):
    """Print the table of claims and what its verdicts mean -> [Judged]; arguments as in judged."""
    rows = judged(claims, cells)
    header = ["claim", "measured (points)", "claimed", "verdict"]
    print(markdown(header, [[row.claim, row.measured, row.bounds, row.verdict] for row in rows]) + "\n")
    print(f"supports: all of measured ± {ERRORS} standard errors lies in the claimed range;")
    print("CONTRADICTS: none of it\n")
    return rows


def report_mini(args, records, *, title, tasks, titles, variants, label, recipe, paper, claims, figure,
                words=str):  # fmt: skip
    """Print a script's mini tier, with what a cell costs and the claims' verdicts, and draw its figure ->
    [Judged].

    variants   labels of the rows, in their order; more are added as records have them
    label      record -> label of its row
    recipe     record -> the recipe of its cell in the mini table
    paper      (task, label) -> the paper's accuracy at full size, or None
    words      label -> what readers see of it
    """

    def cell(r):
        changed = terms(r | {"data": r["data"] | {"official": None}}, recipe(r))
        return r["task"], label(r) + (f"; {changed}" if changed else "")

    cells = grouped([r for r in records if r["budget"] == "mini"], cell)
    tasks = [name for name in tasks if any(task == name for task, _ in cells)]
    print(f"### {title} (mini tier)\n")
    if not cells:
        print(f"not run yet: python {args.argv[0]} --task ... --mini\n")
    else:
        print("Test accuracy in % ± standard error, n seeds, minutes of one core, parameters (paper: full)\n")
        labels = list(dict.fromkeys([*variants, *(row for _, row in cells)]))
        labels.sort(key=lambda row: numbers(row.partition("; ")[2]))  # the table's own first
        there = [name for name in labels if any((task, name) in cells for task in tasks)]
        rows = [
            [words(x), *(mini_text(cells.get((task, x)), paper(task, x)) for task in tasks)] for x in there
        ]
        rows.append(["chance", *(baseline_text(cells, task, "majority") for task in tasks)])
        if "listops" in tasks:
            rule = baseline_text(cells, "listops", "root rule")
            rows.append(["root rule", *(rule if task == "listops" else "" for task in tasks)])
        print(markdown(["", *(titles[name] for name in tasks)], rows) + "\n")
        if unofficial := {titles[t] for (t, _), g in cells.items() if g[0]["data"].get("official") is False}:
            print(f"{', '.join(sorted(unofficial))}: not the official images.\n")
        if unchanged := [name for name in there if "; " not in name]:
            plot_mini(cells, tasks, titles, unchanged, paper, title, words, args.out / figure)
    if args.task and "all" not in args.task:  # the records of the others were left out
        claims = [claim for claim in claims if all(task in args.task for _, task, _ in claim[1])]
    return print_claims(claims, cells) if claims else []


def mini_text(records, paper):
    if not records:
        return "—"
    mean, error = mean_and_error(records)
    minutes = statistics.mean(map(spent, records)) / 60
    beside = "" if paper is None else f" (paper {paper:.1f})"
    size = f" {records[0]['params'] / 1000:,.0f}k" if "params" in records[0] else ""
    return f"{100 * mean:.1f} ± {100 * error:.1f} n={len(records)} {minutes:.0f} min{size}{beside}"


def baseline_text(cells, task, name):
    first = next(group[0] for (t, _), group in cells.items() if t == task)
    known = {"majority": first.get("chance")} | first["data"].get("baselines", {})
    return "—" if known.get(name) is None else f"{100 * known[name]:.1f}"


def plot_mini(cells, tasks, titles, labels, paper, title, words, path):
    """Ours (dots with standard errors) and the paper's at full size (circles), a panel a task."""
    size = dict(figsize=(2.2 + 2.6 * len(tasks), 1.4 + 0.3 * len(labels)), layout="constrained")
    figure, axes = pyplot().subplots(1, len(tasks), sharey=True, squeeze=False, **size)
    for task, axis in zip(tasks, axes[0]):
        for y, name in enumerate(labels):
            if (task, name) in cells:
                mean, error = mean_and_error(cells[task, name])
                axis.errorbar(100 * mean, y, xerr=100 * error, fmt="o", color=ORANGE, label="ours, mini tier")
            else:
                place = dict(transform=axis.get_yaxis_transform(), va="center", fontsize=8)
                axis.text(0.02, y, "not run", color=GREY, **place)
            if (value := paper(task, name)) is not None:
                axis.plot(value, y, "o", fillstyle="none", color=BLUE, label="paper, full size")
        axis.set(title=titles[task], xlabel="test accuracy (%)")
        axis.set_yticks(range(len(labels)), map(words, labels))
        axis.grid(alpha=0.3)
    axes[0, 0].set_ylim(len(labels) - 0.5, -0.5)
    legend_below(figure, axes[0])
    figure.suptitle(title)
    save_figure(figure, path)


# ------------------------------------------------------------------------------------------ figures

BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "0.6"  # told apart by colour-blind readers


def pyplot():
    """matplotlib.pyplot, drawing into files: imported only where a figure is made."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt


def legend_below(figure, axes):
    """One legend for all panels, of what some panel shows."""
    handles = {}
    for axis in axes:
        handles |= dict(zip(*reversed(axis.get_legend_handles_labels())))
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=4, frameon=False)


def save_figure(figure, path):
    """Write a figure, say where, and free it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    pyplot().close(figure)
    print(f"figure: {path}")
