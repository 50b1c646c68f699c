"""Appendix B of paper A: what has a model that reaches 63 % on ListOps learnt?

    python exp_listops.py                        the rules below on our data, and the three figures
    python exp_listops.py --mini                 the same for expressions of 20 to 96 tokens
    python exp_listops.py --figure 3 --checkpoint runs/.../best.pt   one figure, of one model
    python exp_listops.py --rule window prefix --W 0 16 --P 64    how far must a rule see? any sizes
    python exp_listops.py --report               the rules beside the paper's numbers, and their figure

The paper finds that its model guesses SM, but "is greatly improving the accuracy in the rest of the
operations"; how far local patterns explain its 63 % "escapes our analysis". Three kinds of rule, which have
no network, say how far one must see (--rule). "top-D" works out the top D levels of an expression and guesses
what lies deeper. "window" works out the root's arguments of at most W symbols and guesses longer ones.
"prefix" sees the first P symbols; what is missing is drawn from the training examples.

Figure 1: labels by root operation. Figure 2: accuracy of a trained model minus that of a greedy rule that
answers the root operation's commonest label (MIN 0, MAX 9, MED 4; SM at random). Figure 3: the model's
accuracy by root operation and label. The model is --checkpoint, or the best finished ListOps run in --out.
Rules and Figure 1 take minutes on a CPU, the first time with ListOps to generate; `--smoke` seconds.
"""

import functools
import math
import statistics
import textwrap
import time
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

import common
import data
import listops
import models
import records
import tables
from exp_multitask import COLUMNS
from exp_multitask import TABLE2 as PAPER_A
from exp_spt import PAPER as PAPER_B
from exp_spt import TASKS as TASKS_B

# ------------------------------------------------------------------------------------------ the idea

OPERATIONS = ("MAX", "MED", "MIN", "SM")  # in the order of their symbols, which is the paper's
GREEDY = np.array([9, 4, 0, -1])  # the commonest label of each; SM has none, -1 stands for a random digit
# {rule: (levels worked out, words, Appendix B's accuracy in percent, which it rounds)}
RULES = {
    "always-0": (None, "always 0", 17),
    "root": (0, "majority class per root (greedy)", 36),
    "top-1": (1, "top level exact, the rest guessed", None),
} | {f"top-{d}": (d, f"top {d} levels exact", None) for d in range(2, 6)}
DEEPER = {"top-3", "top-4", "top-5"}  # printed with --all-tiers


def solve_top(tokens, offsets, depth, draw):
    """Values (n,) of expressions of which only the top `depth` levels of operators are worked out: every
    operator just below them is guessed by its operation. depth = 0 is the rule that looks at the root alone.

    tokens (total,) uint8 symbols, offsets (n + 1,), draw a numpy generator for SM.
    """
    opens = (tokens >= listops.MAX_OP) & (tokens < listops.CLOSE)
    closes = tokens == listops.CLOSE
    level = np.cumsum(opens.astype(np.int8) - closes, dtype=np.int32)  # operators open after the token
    # A guessed operator opens to level depth + 1 and its bracket closes to level depth. None of them lies
    # inside another, so the k-th bracket belongs to the k-th operator.
    guess = GREEDY[tokens[opens & (level == depth + 1)] - listops.MAX_OP]
    guess = np.where(guess < 0, draw.integers(0, 10, len(guess)), guess)
    shallow = tokens.copy()
    shallow[closes & (level == depth)] = guess  # the bracket becomes a digit; what it closed is left out
    keep = level <= depth
    sizes = np.add.reduceat(keep, offsets[:-1], dtype=np.int64)
    return listops.evaluate_listops(shallow[keep], np.concatenate([[0], np.cumsum(sizes)]))


def rule_accuracy(split, rule, seed, chunk=4_096):
    """Accuracy of a rule of RULES on a split."""
    (tokens, offsets, label), (depth, *_) = (t.numpy() for t in split), RULES[rule]
    if depth is None:
        return float((label == 0).mean())
    draw, right = np.random.default_rng([seed, depth]), 0
    for start in range(0, len(label), chunk):  # bounds the memory
        edges = offsets[start : start + chunk + 1]
        values = solve_top(tokens[edges[0] : edges[-1]], edges - edges[0], depth, draw)
        right += int((values == label[start : start + chunk]).sum())
    return right / len(label)


# ------------------------------------------------------------------------------ how far must a rule see?

WINDOWS = (0, *(4 << i for i in range(9)))  # W up to 1,024
PREFIXES = tuple(1 << i for i in range(11))  # P up to 1,024
SIZES = {"window": "W", "prefix": "P"}
SM = ("known", "guessed")
DRAWS = 1_000  # of what a prefix does not show


class Arguments(NamedTuple):
    """The m arguments of the roots of n expressions, in reading order."""

    root: np.ndarray  # (n,) symbol of the root
    length: np.ndarray  # (n,) symbols of the expression
    edges: np.ndarray  # (n + 1,): the arguments of expression i are edges[i] to edges[i + 1]
    symbol: np.ndarray  # (m,) an argument's first symbol: a digit or an operator
    size: np.ndarray  # (m,) its symbols
    end: np.ndarray  # (m,) symbols of the expression up to its last
    value: np.ndarray  # (m,) what it is worth


def root_arguments(tokens, offsets):
    """Arguments of expressions: tokens (total,) uint8 symbols, offsets (n + 1,)."""
    opens = (tokens >= listops.MAX_OP) & (tokens < listops.CLOSE)
    closes = tokens == listops.CLOSE
    step = opens.astype(np.int8) - closes
    after = np.cumsum(step, dtype=np.int32)  # operators open after a symbol
    before = after - step
    first = np.flatnonzero((before == 1) & ~closes)
    last = np.flatnonzero((after == 1) & ~opens)
    size, edges = last - first + 1, np.searchsorted(first, offsets)
    inner = tokens[(before > 0) & (after > 0)]  # without the roots and their brackets
    value = listops.evaluate_listops(inner, np.concatenate([[0], np.cumsum(size)]))
    end = last + 1 - np.repeat(offsets[:-1], np.diff(edges))
    return Arguments(tokens[offsets[:-1]], np.diff(offsets), edges, tokens[first], size, end, value)


@functools.lru_cache(maxsize=3)  # the splits of a task: every size of a rule asks for them
def arguments_of(split, chunk=4_096):
    """Arguments of a split."""
    tokens, offsets, label = (t.numpy() for t in split)
    parts = []
    for start in range(0, len(label), chunk):  # bounds the memory
        edges = offsets[start : start + chunk + 1]
        parts.append(root_arguments(tokens[edges[0] : edges[-1]], edges - edges[0]))
    columns = dict(zip(Arguments._fields, zip(*parts)))
    columns["edges"] = [[0], np.cumsum(np.concatenate([np.diff(part.edges) for part in parts]))]
    return Arguments(**{name: np.concatenate(column) for name, column in columns.items()})


def window(of, W, draw):
    """Values (n,) of roots whose arguments of more than W symbols are guessed by their operation. W = 0 is
    top-1."""
    operator = of.symbol >= listops.MAX_OP
    guess = GREEDY[of.symbol[operator] - listops.MAX_OP]
    guess = np.where(guess < 0, draw.integers(0, 10, len(guess)), guess)  # for all: each W draws the same
    value = of.value.copy()
    value[operator] = np.where(of.size[operator] > W, guess, value[operator])
    n = len(of.root)
    opens, closes = of.edges[:-1] + 2 * np.arange(n), of.edges[1:] + 2 * np.arange(n) + 1
    flat = np.full(len(value) + 2 * n, 255, np.uint8)
    flat[opens], flat[closes] = of.root, listops.CLOSE
    flat[flat == 255] = value
    return listops.evaluate_listops(flat, np.concatenate([opens, [len(flat)]]))


def prefix(of, P, training, draw):
    """Values (n,) that roots most likely have by their first P symbols: the commonest of DRAWS draws.
    training: Arguments.

    An argument that is cut in the middle has a value drawn from those training arguments that have its
    operation. Where the closing bracket is not seen, the number of arguments is drawn from the training roots
    with at least as many as were seen to begin, and arguments that were not seen from all training arguments
    (independent of the length: a simplification).
    """
    numbers, chance = np.sort(np.diff(training.edges)), draw.random(DRAWS)
    unseen = draw.choice(training.value, (DRAWS, 10))
    cut_values = {}
    for symbol in listops.OPERATIONS:
        pool = training.value[training.symbol == symbol]
        cut_values[symbol] = draw.choice(pool if len(pool) else training.value, (DRAWS, 1))

    @functools.cache
    def likeliest(root, seen, begun, cut):
        """seen: values; begun: how many arguments have begun; cut: the operator of one that has not ended."""
        possible = numbers[np.searchsorted(numbers, begun) :]
        number = possible[(chance * len(possible)).astype(int)] if len(possible) else np.full(DRAWS, begun)
        known = np.tile(np.array(seen, np.int64), (DRAWS, 1))
        known = np.concatenate([known, cut_values[cut]] if cut else [known], 1)
        size = known.shape[1] + number - begun  # `seen` may be worked out, then it is one value
        value = np.concatenate([known, unseen[:, : max(0, 10 - begun)]], 1)
        return np.bincount(combined(root, value, size)).argmax()

    ended = np.add.reduceat(of.end <= P, of.edges[:-1], dtype=np.int64)
    begun = np.add.reduceat(of.end - of.size < P, of.edges[:-1], dtype=np.int64)
    answers = np.empty(len(of.root), np.int64)
    columns = (column.tolist() for column in (of.root, of.edges[:-1], ended, begun, of.length))
    for i, (root, start, whole, some, length) in enumerate(zip(*columns)):
        seen = of.value[start : start + whole].tolist()
        cut = int(of.symbol[start + whole]) if some > whole else None
        if root == listops.MED_OP:
            seen = sorted(seen)
        elif seen:
            seen = [listops.OPERATIONS[root](seen)]
        if length <= P:
            answers[i] = listops.OPERATIONS[root](seen)
        else:
            answers[i] = likeliest(root, tuple(seen), some, cut)
    return answers


def combined(root, value, size):
    """Values (K,) of an operator: value (K, most) of its arguments, of which the first size (K,) count."""
    counts = np.arange(value.shape[1]) < size[:, None]
    if root == listops.MAX_OP:
        return np.where(counts, value, -1).max(1)
    if root == listops.MIN_OP:
        return np.where(counts, value, 10).min(1)
    if root == listops.SM_OP:
        return np.where(counts, value, 0).sum(1) % 10
    value = np.sort(np.where(counts, value, 10), 1)
    middle = np.stack([(size - 1) // 2, size // 2], 1)
    return np.take_along_axis(value, middle, 1).sum(1) // 2


def range_accuracy(task, split, cell, seed):
    """Accuracy of a window or a prefix on a split of a task."""
    of, label = arguments_of(split), split.label.numpy()
    if cell["rule"] == "window":
        values = window(of, cell["W"], np.random.default_rng([seed, 1]))  # top-1 draws the same
    else:
        values = prefix(of, cell["P"], arguments_of(task.train), np.random.default_rng([seed, 2]))
    if cell["sm"] == "guessed":
        guess = np.random.default_rng([seed, 3]).integers(0, 10, len(label))
        values = np.where(of.root == listops.SM_OP, guess, values)
    return float((values == label).mean())


def counted(roots, labels):
    """(4, 10) number of examples for each root operation and label."""
    return np.bincount(roots * 10 + labels, minlength=40).reshape(4, 10)


# ------------------------------------------------------------------------------------------ one cell


def cells_of(args, longest):
    """The cells of a command, where expressions have at most `longest` symbols."""
    for rule in args.rule or [*RULES, *SIZES]:
        if rule in RULES:
            yield {"rule": rule}
            continue
        letter = SIZES[rule]
        sizes = [size for size in {"W": WINDOWS, "P": PREFIXES}[letter] if size < longest] + [longest]
        for size, sm in product(getattr(args, letter) or sizes, SM):
            yield {"rule": rule, letter: size, "sm": sm}


def label_of(cell):
    """The name of a cell's row, e.g. "top-1" or "window of 16, SM guessed"."""
    if cell["rule"] in RULES:
        return cell["rule"]
    rule, size, sm = place_of(cell)
    return f"{rule} of {size:,}, SM {sm}"


def run_cell(args, task, cell, seed):
    """Measure one rule on all three splits and record it as a run that was trained on nothing."""
    rule, started, cpu = cell["rule"], time.monotonic(), time.process_time()
    nothing = {"model": {"draws": DRAWS} if rule == "prefix" else {}, "train": {"technique": None}}
    identity = records.make_identity(args, __file__, task, "rule", cell, seed, nothing)
    name = records.run_name(identity)
    if records.is_done(args, __file__, name):
        return
    line = identity | {"row": label_of(cell), "changes": {}, "run": name, "tier": records.tier_of(args, {})}
    line |= records.where_it_ran(args, __file__)
    for part, split in task.splits.items():
        old = rule in RULES
        line[f"{part}_acc"] = (
            rule_accuracy(split, rule, seed) if old else range_accuracy(task, split, cell, seed)
        )
    line |= {"seconds": round(time.monotonic() - started, 1), "data": task.source}
    line["chance"] = round(common.chance(task.test), 4)
    line["cpu_seconds"] = round(time.process_time() - cpu, 1)
    line["device"] = common.device_name(torch.device("cpu"))
    records.append_record(args.out / "results.jsonl", line)
    train, test = line["train_acc"], line["test_acc"]
    print(f"{name}: {train:.2%} of the training examples, {test:.2%} of the test examples", flush=True)


def trained_model(args):
    """(name, model) of a finished ListOps run; None where there is none. Of several runs a full one, of these
    a Transformer's (the paper's), of these the one that validated best."""

    def rank(r):
        return r["tier"] == "paper", r["model"] in ("transformer", "rotary"), r["val_acc"]

    exps = "locality", "multitask", "kernels", "positional", "spt"
    best = max(records.finished_runs(args, "listops", exps), key=rank, default=None)
    return best and rebuilt(args.out / best["run"] / "best.pt")


def rebuilt(path):
    """(name, model) of a best.pt that any of the scripts has written. Raises UserError for another task's."""
    model, state = records.rebuild(path)
    arguments, hp, why = model.arguments, state.get("hp", {}), ""
    if arguments["classes"] != 10 or arguments["vocab"] not in (17, 18):  # 18: with a mask (exp_spt)
        why = "is of another task"
    elif "objective" in hp:
        why = "is pretrained only and has no trained classifier"
    elif hp.get("stride", 1) != 1:
        why = "was trained on symbols in another order"
    if why:
        raise common.UserError(f"{path} {why}; give the best.pt of another ListOps run")
    return arguments["block"].capitalize(), model


@torch.no_grad()
def predictions(model, task, split, args):
    """(root operation, label, prediction), each (n,) numpy, of a split."""
    device, rows = common.resolve_device(args.device), []
    autocast = common.autocast_on(device, args.amp)
    task, model = task.to(device), model.to(device).eval()
    for batch in task.evaluation_batches(split):
        with autocast:
            logits = model.classify(model(batch.tokens, batch.mask), batch.mask)
        root = batch.tokens[:, 0] - task.first_id - listops.MAX_OP
        rows.append(torch.stack([root, batch.label, logits.float().argmax(1)]))
    return torch.cat(rows, 1).cpu().numpy()


# ------------------------------------------------------------------------------------------ the report


RANGES = {
    "window": "A window works out each argument of the root that has at most W symbols, wherever it stands. "
    "It guesses longer ones. With W = 0 it is the top level exact. (In the reports of networks W = "
    f'{data.FLOORS["listops"]["cell"]["W"]}, sums computed, is called "no network".)',
    "prefix": "A prefix sees the first P symbols. The rest is drawn from the training examples, many times, "
    "and the most frequent answer is given.",
}
LEGEND = """\
    top 2 levels: deeper ones are guessed; sums of these levels are computed
    train / test: accuracy in %, on the training / the test examples. A window
             learns nothing from the training examples; a prefix takes from them
             what it does not see. ±: the standard error by the size of the test
             set
    computed a sum at the root is worked out, as the other operations are
    SM       the sum modulo 10; MED: the median, of an even number of arguments
             cut to a whole number, as in the data
    greedy   the answer that the root's operation has most often; of SM a random
             digit (in the reports of networks the commonest digit)
    guessed  a long argument: by its operation, MIN 0, MAX 9, MED 4, of SM a
             random digit; a sum at the root: a random digit. Sums within a
             window are worked out.
"""


def report(args):
    """The rules, yours and this repository's beside the paper's, which are of the training examples."""
    exp, both = records.experiment(__file__), records.yours_and_ours(args.out)
    if args.against:
        return tables.compare(args, exp, data.TITLES)
    ranges = {}
    tiers = tables.tiers_of(args, *({r["tier"] for r in found if r["exp"] == exp} for found in both))
    for tier in filter(lambda tier: tier != "reduced", tiers):  # rules have no budget
        print(f"### Paper A, Appendix B: what simple rules get on ListOps ({records.TIERS[tier]})\n")
        rows, rules = [], [rule for rule in RULES if args.all_tiers or rule not in DEEPER]
        for rule in rules:
            _, words, paper = RULES[rule]
            wanted = {"exp": exp, "cell": {"rule": rule}, "tier": tier}.items()
            groups = [records.best_recipe([r for r in found if wanted <= r.items()]) for found in both]
            numbers = (f"{train_percent(g):.2f} / {tables.summary(g)}" if g else "" for g in groups)
            rows.append([words, *numbers, f"≈ {paper}" if paper else ""])
        there = "paper, train" if tier == "paper" else "paper, full, train"
        tables.print_table(["rule", "yours", "train / test", there], rows)
        if tier == "paper":
            print(f"On test {tables.listed([f'{name} has {x:.2f}' for name, x in NETWORKS.items()])}.\n")
        if groups := range_groups(*both, tier):
            print_ranges(groups, tier, args.all_tiers)
            ranges[tier] = groups
    print(f"{tables.WORDS}\n\n{LEGEND}")
    for tier, groups in ranges.items():
        plot_ranges(groups, tier, args.out / f"listops-rules{'-mini' * (tier == 'mini')}.png")


def print_ranges(groups, tier, everything):
    """How far must a rule see? From which size on is it as good as the best network, and a table of its
    accuracies for each rule. everything: with small sizes."""
    name, network, errors = best_network(groups, tier)
    sides = {place: beside(group, network, errors) for place, group in groups.items()}
    print(f"### How far must a rule see on ListOps? ({records.TIERS[tier]})\n")
    shown = {rule for rule, *_ in groups}
    tables.print_list("", [words for rule, words in RANGES.items() if rule in shown])
    if name:
        good, found = [place for place, side in sides.items() if side != "behind"], []
        for rule, sm in product(SIZES, SM):
            if sizes := [size for of_rule, size, of_sm in good if (of_rule, of_sm) == (rule, sm)]:
                start = f"{SIZES[rule]} = {min(sizes):,}"
                accuracy = train_percent(groups[rule, min(sizes), sm])
                ahead = [size for size in sizes if sides[rule, size, sm] == "ahead"]
                side = sides[rule, min(sizes), sm]
                more = f", ahead from {min(ahead):,} on" if ahead and side == "level" else ""
                found.append(f"{rule}, sums {OF_ROOT[sm]}: {side} from {start} on ({accuracy:.1f}){more}")
        ours, test = errors
        words = (
            "A rule is judged by its accuracy on the training examples, for there its error is "
            f"{ours:.1f} points; on the fewer test examples it is {test:.1f}. Level: at most "
            f"{2 * math.hypot(*errors):.2f} points apart, two errors of the difference."
        )
        print(textwrap.fill(words, 80) + "\n")
        heading = (
            f"Level with the best network ({name}, {network:.2f} on test) or ahead, by training; sums at the "
            "root computed or guessed:"
        )
        tables.print_list(heading, found)
    for rule in RANGES:
        rows = []
        for size in sizes_of(groups, rule, everything):
            here = (groups.get((rule, size, sm)) for sm in SM)
            rows.append([f"{size:,}", *(number for group in here for number in of_both(group))])
        if rows:
            tables.print_table(
                [SIZES[rule], *(f"{OF_ROOT[sm]}, {part}" for sm in SM for part in PARTS)], rows
            )


PARTS = "test", "train"
OF_ROOT = dict(known="computed", guessed="guessed")  # the sum at the root


def of_both(group):
    """A rule's accuracies in PARTS, in percent; "" for no records."""
    if not group:
        return ["", ""]
    return [f"{100 * records.mean_and_error(group)[0]:.1f}", f"{train_percent(group):.1f}"]


def sizes_of(groups, rule, everything=False):
    """The sizes of a rule's records: 0, and from 4 on; everything: all."""
    return sorted(
        {size for of_rule, size, _ in groups if of_rule == rule and (everything or not 0 < size < 4)}
    )


def range_groups(yours, ours, tier):
    """{(rule, size, sm): its records}, yours or else this repository's."""
    wanted, found = {"exp": records.experiment(__file__), "tier": tier}.items(), {}
    for whose in (ours, yours):
        here = [r for r in whose if wanted <= r.items() and r["cell"].get("rule") in SIZES]
        groups = records.grouped(here, lambda r: place_of(r["cell"]))
        found |= {place: records.best_recipe(group) for place, group in groups.items()}
    return found


def place_of(cell):
    """(rule, size, sm) of a window's or a prefix's cell."""
    return cell["rule"], cell[SIZES[cell["rule"]]], cell["sm"]


def train_percent(group):
    return 100 * statistics.mean(r["train_acc"] for r in group)


def beside(group, network, errors):
    """ "ahead", "level" or "behind": a rule's accuracy in training beside a network's, see best_network."""
    return records.side(train_percent(group) - network, math.hypot(*errors))


NETWORKS = {  # test accuracies in percent
    "S4 (Gu et al.)": tables.paper_number(PAPER_B, "S4, from scratch", TASKS_B, "listops"),
    "MEGA": tables.paper_number(PAPER_A, "MEGA, no techniques", COLUMNS, "listops"),
}


def best_network(groups, tier):
    """(the best network's name, its percent on test, the errors of such a number in training and on test); at
    the mini tier this repository's, "" and zeros where it has none."""
    name, network = max(NETWORKS.items(), key=lambda item: item[1])
    examples = data.EXPECTED["listops"]
    if tier == "mini":
        first, *_ = next(iter(groups.values()))
        name, network = tables.best_rows(tables.mini_networks("listops")).get("listops", ("", 0.0))
        examples = first["data"]["counts"]
    errors = [(network * (100 - network) / examples[split]) ** 0.5 for split in ("train", "test")]
    return name, network, errors


# ------------------------------------------------------------------------------------------ the figures

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7")  # of OPERATIONS (Okabe and Ito)


def four_panels(heights, titles, numbers, ylabel, title, path, errors=None):
    """Bars (4, 10), a panel for each root operation, a bar for each label; `numbers` above them. A height
    that is no number has no bar."""
    titles = [f"root {operation}: {words}" for operation, words in zip(OPERATIONS, titles)]
    figure, axes = tables.panels(titles, size=(3.6, 3), sharey=True)
    for i, axis in enumerate(axes):
        hatch = ["//" if label == GREEDY[i] else "" for label in range(10)]
        style = dict(color=COLOURS[i], hatch=hatch, edgecolor="white", ecolor="0.2", capsize=2)
        shown = np.nan_to_num(heights[i])  # matplotlib 3.7 fails where none is a number
        bars = axis.bar(range(10), shown, yerr=None if errors is None else errors[i], **style)
        axis.bar_label(
            bars, [n if h == h else "" for n, h in zip(numbers[i], heights[i])], padding=2, fontsize=7
        )
        axis.set(xticks=range(10), xlabel="label", axisbelow=True)
        axis.margins(y=0.1)
    axes[0].set_ylabel(ylabel)
    figure.suptitle(f"{title} (numbers: examples; hatched: the commonest label of the root)")
    tables.save_figure(figure, path)


def plot_labels(task, path):
    """Figure 1: training examples with each label, by root operation."""
    roots = task.train.tokens[task.train.offsets[:-1]].long() - listops.MAX_OP
    counts = counted(roots.numpy(), task.train.label.numpy())
    titles = [f"{row.max() / max(1, row.sum()):.1%} are {row.argmax()}" for row in counts]
    title = "ListOps: the root operation alone tells much about the label, except for SM"
    four_panels(counts, titles, counts, "training examples", title, path)


def plot_gain(roots, labels, predicted, name, path):
    """Figure 2: accuracy of the model minus that of the greedy rule, by root operation."""
    title = f"One {name}, {(predicted == labels).mean():.1%} on test: gain over the greedy rule"
    figure, (axis,) = tables.panels([title], size=(6.4, 3.6))
    for operation, greedy_label in enumerate(GREEDY):
        here = roots == operation
        n = max(1, here.sum())
        model = (predicted == labels)[here].sum() / n
        greedy = (labels[here] == greedy_label).sum() / n if greedy_label >= 0 else 0.1
        error = 100 * math.sqrt(model * (1 - model) / n)
        bar = axis.bar(operation, 100 * (model - greedy), yerr=error, capsize=4, color=COLOURS[operation])
        axis.bar_label(bar, [f"{100 * model:.1f} %, greedy {100 * greedy:.1f} %"], padding=3, fontsize=8)
    axis.axhline(0, color="black", linewidth=0.8)
    axis.margins(y=0.15)
    axis.set_xticks(range(4), [f"{title} (n={(roots == i).sum()})" for i, title in enumerate(OPERATIONS)])
    axis.set(xlabel="root operation", ylabel="model − greedy (SM: a random digit; points)")
    tables.save_figure(figure, path)


LOOKS = {"known": ("o-", tables.BLUE), "guessed": ("s-", tables.ORANGE)}  # SM
AXES = {"window": "W: symbols of an argument that is worked out", "prefix": "P: symbols that are seen"}


def plot_ranges(groups, tier, path):
    """Test accuracy of windows and prefixes against their size; at full size published networks as lines."""
    rules = [rule for rule in SIZES if any(key[0] == rule for key in groups)]
    figure, axes = tables.panels([f"{rule} of {SIZES[rule]}" for rule in rules], size=(5, 4), sharey=True)
    for rule, axis in zip(rules, axes):
        sizes = sizes_of(groups, rule)
        for sm, (style, colour) in LOOKS.items():
            if dots := [(size, groups[rule, size, sm]) for size in sizes if (rule, size, sm) in groups]:
                look = dict(fmt=style, color=colour, markersize=4, label=f"sum at the root {OF_ROOT[sm]}")
                tables.errorbars(axis, *zip(*dots), **look)
        lines = NETWORKS if tier == "paper" else {}
        for (name, value), line in zip(lines.items(), ("-", "--", ":")):
            axis.axhline(value, color="0.4", linewidth=1, linestyle=line, label=f"{name}: {value:.2f}")
        axis.set_xscale("symlog", base=2, linthresh=2)  # W may be 0
        axis.set_xlim(min(sizes) - 0.5, 1.4 * max(sizes) + 0.5)
        axis.set_xticks(sizes, [f"{size:,}" for size in sizes], fontsize=7, rotation=45)
        axis.minorticks_off()
        axis.set_xlabel(AXES[rule])
    axes[0].set_ylabel("test accuracy (%)")
    size = "full size" if tier == "paper" else "mini tier"
    figure.suptitle(f"ListOps, {size}: how far must a rule see?", fontsize=11)
    tables.legend_below(figure, axes)
    tables.save_figure(figure, path)


FEW = 10  # a share of fewer examples is no bar


def plot_breakdown(roots, labels, predicted, name, path):
    """Figure 3: accuracy of the model for each root operation and label, with its standard error; the numbers
    are examples."""
    right = predicted == labels
    counts, hits = counted(roots, labels), counted(roots[right], labels[right])
    shares = np.where(counts >= FEW, hits / counts.clip(1), np.nan)
    errors = np.sqrt(shares * (1 - shares) / counts.clip(1))
    titles = [f"{share:.1%} right" for share in hits.sum(1) / counts.sum(1).clip(1)]
    title = f"Accuracy by root operation and label: one {name}, {right.mean():.1%} on test"
    four_panels(100 * shares, titles, counts, "accuracy (%)", title, path, 100 * errors)


def draw(args, task, figures, chosen):
    """`chosen`: (name, model) for Figures 2 and 3, or None for the best finished run's."""
    if 1 in figures:
        plot_labels(task, args.out / "listops-figure1.png")
    if figures == {1}:
        return
    chosen = chosen or trained_model(args)
    if not chosen and args.smoke:
        size = dict(depth=2, d_model=16, d_hidden=16, kernel=5, vocab=task.vocab, classes=task.classes)
        chosen = "conv, untrained", models.SequenceModel("conv", **size)
    if not chosen:
        missing = f"Figures 2 and 3 need a trained model and {args.out} has no finished ListOps run: give "
        missing += "--checkpoint, or train one: python exp_multitask.py --task listops --model transformer"
        if args.figure:  # it was asked for
            raise common.UserError(missing)
        return print(missing)
    answers = predictions(chosen[1], task, "test", args)
    name = f"{chosen[0]}, mini tier" if args.mini else chosen[0]
    for number, plot in ((2, plot_gain), (3, plot_breakdown)):
        if number in figures:
            plot(*answers, name, args.out / f"listops-figure{number}.png")


# ------------------------------------------------------------------------------------------ command line


def main(argv=None):
    parser = common.make_parser(__doc__, ("listops",), techniques=False, trains=False)
    # fmt: off
    parser.add_argument("--figure", nargs="+", type=int, choices=(1, 2, 3),
        help="draw only these (default: measure the rules and draw all)")
    parser.add_argument("--checkpoint", type=Path, metavar="FILE",
        help="best.pt of the ListOps model for Figures 2 and 3")
    parser.add_argument("--rule", nargs="+", choices=[*RULES, *SIZES], metavar="RULE",
        help=f"{', '.join([*RULES, *SIZES])}; with it Figures 1 to 3 are not drawn (default all)")
    parser.add_argument("--W", nargs="+", type=common.natural_int, metavar="W",
        help="of the window, in symbols (default 0, 4, powers of two and the longest expression's)")
    parser.add_argument("--P", nargs="+", type=common.positive_int, metavar="P",
        help="of the prefix, in symbols (default powers of two and the longest expression's)")
    # fmt: on
    parser.set_defaults(task=["listops"])
    args = common.parse_args(parser, argv)
    with common.exit_cleanly():
        for rule, letter in SIZES.items():
            if getattr(args, letter) and rule not in (args.rule or SIZES):
                raise common.UserError(f"--{letter} is for the rule {rule}; add it to --rule")
        if args.rule and (args.figure or args.checkpoint):
            raise common.UserError("--rule measures, --figure and --checkpoint draw; leave one out")
        if args.report:
            return report(args)
        figures = {*(args.figure or (1, 2, 3))}
        chosen = rebuilt(args.checkpoint) if args.checkpoint else None  # refused now, not after the rules
        task = data.load_for(args, "listops", {"train": {"technique": None}}, args.seed)
        if chosen and (chosen[1].arguments["max_length"] or task.max_length) < task.max_length:
            raise common.UserError(f"{args.checkpoint} is for shorter expressions; give --mini")
        if not args.figure:
            records.run_cells(args, product([task], cells_of(args, task.max_length)), run_cell)
        if not args.rule:
            draw(args, task, figures, chosen)


if __name__ == "__main__":
    main()
