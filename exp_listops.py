"""Appendix B of paper A: what has a model that reaches 63 % on ListOps learnt?

    python exp_listops.py                        the rules below on our data, and the figure
    python exp_listops.py --mini                 the same for expressions of 20 to 96 tokens
    python exp_listops.py --figure 3 --checkpoint runs/.../best.pt   the figure alone, of one model
    python exp_listops.py --report               the rules beside the paper's numbers

The rules put 63 % in its place: always 0 gets 17 %, the root rule, which answers the root operation's
commonest label, 36 %; solving the root exactly and guessing its arguments by THEIR operation gets 59 %,
solving two levels 73 %. Expressions are ten levels deep. A minute on a CPU, the first time with ListOps to
generate; `--smoke` seconds.

The figure (the paper's Figure 3): a model's accuracy by root operation and label. The model is --checkpoint,
or the best finished ListOps run in --out.
"""

import statistics
import time
from itertools import product
from pathlib import Path

import numpy as np
import torch

import common
import data
import listops
import models
import records

# ------------------------------------------------------------------------------------------ the idea

OPERATIONS = ("MAX", "MED", "MIN", "SM")  # in the order of their symbols, which is the paper's
GREEDY = np.array([9, 4, 0, -1])  # the commonest label of each; SM has none, -1 stands for a random digit
# {rule: (levels worked out, words, Appendix B's accuracy in percent, which it rounds)}
RULES = {
    "always-0": (None, "always 0", 17),
    "root": (0, "root operation's commonest label", 36),
    "top-1": (1, "top level exact, the rest guessed by operation", None),
} | {f"top-{d}": (d, f"top {d} levels exact", None) for d in range(2, 6)}


def solve_top(tokens, offsets, depth, draw):
    """Values (n,) of expressions of which only the top `depth` levels of operators are worked out: every
    operator just below them is guessed by its operation. depth = 0 is the rule that looks at the root alone.

    tokens (total,) uint8 symbols, offsets (n + 1,), draw a numpy generator for SM.
    """
    opens = (tokens >= data.MAX_OP) & (tokens < data.CLOSE)
    closes = tokens == data.CLOSE
    level = np.cumsum(opens.astype(np.int8) - closes, dtype=np.int32)  # operators open after the token
    # A guessed operator opens to level depth + 1 and its bracket closes to level depth. None of them lies
    # inside another, so the k-th bracket belongs to the k-th operator.
    guess = GREEDY[tokens[opens & (level == depth + 1)] - data.MAX_OP]
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


def counted(roots, labels):
    """(4, 10) number of examples for each root operation and label."""
    return np.bincount(roots * 10 + labels, minlength=40).reshape(4, 10)


# ------------------------------------------------------------------------------------------ one cell


def run_cell(args, task, rule, seed):
    """Measure one rule on all three splits and record it as a run that was trained on nothing."""
    nothing = {"model": {}, "train": {"technique": None}}
    identity = records.make_identity(args, __file__, task, "rule", {"rule": rule}, seed, nothing)
    name = records.run_name(identity)
    if records.is_done(args, __file__, name):
        return
    started = time.monotonic()
    line = identity | {"row": rule, "terms": "", "run": name, "budget": records.budget(args, "")}
    line |= {f"{part}_acc": rule_accuracy(split, rule, seed) for part, split in task.splits.items()}
    line |= {"seconds": round(time.monotonic() - started, 1), "data": task.source}
    line |= {"device": common.device_name(torch.device("cpu")), **records.where_it_ran(args, __file__)}
    records.append_record(args.out / "results.jsonl", line)
    train, test = line["train_acc"], line["test_acc"]
    print(f"{name}: {train:.2%} of the training examples, {test:.2%} of the test examples", flush=True)


def trained_model(args):
    """(name, model) of a finished ListOps run; None where there is none. Of several runs a full one, of these
    a Transformer's (the paper's), of these the one that validated best."""

    def rank(r):
        return r["budget"] == "paper", r["model"] in ("transformer", "rotary"), r["val_acc"]

    exps = "locality", "multitask", "kernels", "positional", "spt"
    best = max(records.finished_runs(args, "listops", exps), key=rank, default=None)
    return best and rebuilt(args.out / best["run"] / "best.pt")


def rebuilt(path):
    """(name, model) of a best.pt that any of the scripts has written. Raises UserError for that of another
    task, of a pretraining, or of symbols in another order."""
    model, state = records.rebuilt(path, models.SequenceModel)
    arguments, hp = model.arguments, state.get("hp", {})
    listops = arguments["classes"] == 10 and arguments["vocab"] in (17, 18)  # 18: with a mask (exp_spt)
    if not listops or "objective" in hp or hp.get("stride", 1) != 1:
        raise common.UserError(f"{path} is no trained classifier of ListOps; give the best.pt of another run")
    return arguments["block"], model


@torch.no_grad()
def predictions(model, task, split, args):
    """(root operation, label, prediction), each (n,) numpy, of a split."""
    device, rows = common.resolve_device(args.device), []
    autocast = common.autocast_on(device, args.amp)
    task, model = task.to(device), model.to(device).eval()
    for batch in task.evaluation_batches(split):
        with autocast:
            logits = model.classify(model(batch.tokens, batch.mask), batch.mask)
        root = batch.tokens[:, 0] - task.first_id - data.MAX_OP
        rows.append(torch.stack([root, batch.label, logits.float().argmax(1)]))
    return torch.cat(rows, 1).cpu().numpy()


# ------------------------------------------------------------------------------------------ the report


def report(args):
    """The rules, yours and this repository's beside the paper's, which are of the training examples."""
    exp, both = records.experiment(__file__), records.yours_and_ours(args.out)
    if args.against:
        return records.compare(args, exp, records.experiment(args.against))
    for tier in ["mini"] if args.mini else ["paper", "mini"]:
        print(f"### Appendix B: what simple rules get on ListOps ({records.TIERS[tier]})\n")
        rows = []
        for rule, (_, words, paper) in RULES.items():
            rows.append([words, f"≈ {paper}" if paper else ""])
            for found in both:
                wanted = {"exp": exp, "row": rule, "budget": tier}.items()
                group = records.best_recipe([r for r in found if wanted <= r.items()])
                train = f"{100 * statistics.mean(r['train_acc'] for r in group):.2f} / " if group else ""
                rows[-1].append(train + records.summary(group))
        header = ["Rule", "paper, train", "yours, train / test", "this repository"]
        print(records.markdown(header, rows) + "\n")
    print("Accuracy in % (seeds, which draw the guesses). — = not run. On test examples the paper's")
    print("Transformer has 62.90 (Table 2). Guesses by operation: MIN 0, MAX 9, MED 4 (the median of an even")
    print("number of arguments is cut to a whole number, as in the data), SM a random digit.")


# ------------------------------------------------------------------------------------------ the figure

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7")  # of OPERATIONS (Okabe and Ito)


def draw(args, task, chosen):
    """Figure 3: accuracy of a model for each root operation and label; the numbers are examples."""
    name, model = chosen
    roots, labels, predicted = predictions(model, task, "test", args)
    right = predicted == labels
    counts, hits = counted(roots, labels), counted(roots[right], labels[right])
    shares = hits.sum(1) / counts.sum(1).clip(1)
    figure, axes = records.pyplot().subplots(1, 4, figsize=(14, 3.4), sharey=True, layout="constrained")
    for i, axis in enumerate(axes):
        title = f"root {OPERATIONS[i]}: {shares[i]:.1%} right"
        axis.set(xticks=range(10), xlabel="label", axisbelow=True, title=title)
        axis.grid(axis="y", alpha=0.3)
        hatch = ["//" if label == GREEDY[i] else "" for label in range(10)]
        heights = 100 * hits[i] / counts[i].clip(1)
        bars = axis.bar(range(10), heights, color=COLOURS[i], hatch=hatch, edgecolor="white")
        axis.bar_label(bars, counts[i], padding=2, fontsize=7)
        axis.margins(y=0.1)
    axes[0].set_ylabel("accuracy (%)")
    title = f"Accuracy by root operation and label: {name}, {right.mean():.1%} on test"
    figure.suptitle(f"{title} (hatched: the greedy answer)")
    records.save_figure(figure, args.out / "listops-figure3.png")


# ------------------------------------------------------------------------------------------ command line


def main(argv=None):
    parser = common.make_parser(__doc__, ("listops",), techniques=False, trains=False)
    # fmt: off
    parser.add_argument("--figure", type=int, choices=(3,),
        help="draw Figure 3 only (default: measure the rules and draw it)")
    parser.add_argument("--checkpoint", type=Path, metavar="FILE",
        help="best.pt of the ListOps model for the figure")
    # fmt: on
    parser.set_defaults(task=["listops"])
    args = common.parse_args(parser, argv)
    with common.exit_cleanly():
        if args.report:
            return report(args)
        chosen = rebuilt(args.checkpoint) if args.checkpoint else trained_model(args)
        missing = f"the figure needs a trained model and {args.out} has no finished ListOps run: give "
        missing += "--checkpoint, or train one: python exp_multitask.py --task listops --model transformer"
        if args.figure and not chosen:
            raise common.UserError(missing)
        task = data.load_for(args, "listops", {"train": {"technique": None}}, args.seed)
        if chosen and (chosen[1].arguments["max_length"] or task.max_length) < task.max_length:
            raise common.UserError(f"{args.checkpoint} is for shorter expressions; give --mini")
        if not args.figure:
            records.run_cells(args, product([task], RULES), run_cell)
        if chosen:
            draw(args, task, chosen)
        else:
            print(missing)


if __name__ == "__main__":
    main()
