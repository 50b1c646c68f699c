"""How far does a bag of small image patches get, which knows no place beyond a quarter of the image?

    python exp_patches.py --task image --patch 6x6 --pool all quarters    a quarter of an hour of one core
    python exp_patches.py --task image --patch 1x25 3x3                   5 minutes
    python exp_patches.py --task image --patch 6x6 --centres 1600         more centres: 19 minutes, 3 GB
    python exp_patches.py --task pathfinder --patch 6x6                   4 minutes, 3 GB
    python exp_patches.py --report                                        tables, and a figure in OUT

Every patch of h x w pixels of an image (1 x K: K consecutive pixels of a row) loses its mean, is divided by
its contrast, whitened, and compared with the centres that k-means finds in patches of the training images.
What it gives to a centre is max(0, its mean distance to all centres - its distance to this one). The image is
the average of its patches ("all"), or of those in each quarter ("quarters"), and logistic regression
reads it. This is Coates, Ng and Lee (2011), "An Analysis of Single-Layer Networks in Unsupervised Feature
Learning"; here it is a control: no feature sees more than a patch.

Expect 58.9 % (all) and 65.8 % (quarters) from the first command, which needs 1.4 GB; 38.3 and 52.7 % from the
second; 62.6 % from the third; Pathfinder stays at chance. In the order of pixels a patch of h x w spans
32 (h - 1) + w positions, the axis of the figure.
"""

import argparse
import contextlib
import io
import math
import re
import textwrap
import time
import warnings
from itertools import product
from typing import NamedTuple

import torch
from tqdm import tqdm

import common
import data
import machine
import records
import tables
from exp_locality import TABLE1, TASKS7
from exp_ngrams import COLUMNS, TRANSFORMERS

TASKS = ("image", "scifar", "pathfinder")
POOLS = ("all", "quarters")
CONTRAST = 10.0  # added to a patch's variance (grey values 0 to 255), and
RIDGE = 0.1  # to the eigenvalues that whitening divides by: both are Coates's
SAMPLE = 400_000  # training patches that k-means and whitening are made of
PENALTIES = (10_000, 1_000, 100, 10, 1, 0.1)  # of sum(losses) + penalty / 2 * sum(weights^2)
SLOW = 10  # Fits with this penalty and weaker ones take long: one that brings less than
GAIN = 0.001  # of validation is the last. Stronger ones are all tried: near chance they differ by luck.
BOUND = 1e-5  # of the largest slope of the mean loss, where a fit ends; rounding of float32 may end it above
ENOUGH = 1e-4  # of the slope: a fit that ends above has not converged and is started again
MOST = 2_000  # steps of a fit, and
STARTS = 4  # how often it is started from where it ended
LAYERS = 6  # of paper A's convolutions of Table 1 on Image and Pathfinder

# ------------------------------------------------------------------------------------------ the features


class Dictionary(NamedTuple):
    """What is learnt of a task's patches without labels; D = channels * h * w."""

    size: tuple  # (h, w)
    mean: torch.Tensor  # (D,) of normalised patches
    whiten: torch.Tensor  # (D, D)
    centres: torch.Tensor  # (K, D), of whitened patches


def images_of(task, split):
    """The images of a split, (n, side, side, channels) uint8."""
    tokens, _, label = task.splits[split]
    side = side_of(task)
    return tokens.view(len(label), side, side, task.channels)


def side_of(task):
    return math.isqrt(task.max_length // task.channels)


def windows(images, size):
    """All patches of images (n, side, side, channels): a view (n, rows, columns, channels, h, w)."""
    return images.unfold(1, size[0], 1).unfold(2, size[1], 1)


def normalised(patches):
    """Patches (..., channels, h, w) as vectors (m, D) float32 without mean and contrast. A patch of one pixel
    has nothing else and keeps both."""
    x = patches.reshape(-1, math.prod(patches.shape[-3:])).float()
    if patches.shape[-1] * patches.shape[-2] == 1:
        return x
    x -= x.mean(1, keepdim=True)  # var_mean takes six times as long
    return x.div_((x.square().mean(1, keepdim=True) + CONTRAST).sqrt_())


def sampled(task, size, seed, n):
    """n random patches of the training images, normalised, (n, D)."""
    images = images_of(task, "train")
    draw = torch.Generator().manual_seed(common.stream(seed, "patches"))
    rows, columns = (side_of(task) - length + 1 for length in size)
    place = [torch.randint(most, (n,), generator=draw) for most in (len(images), rows, columns)]
    return normalised(windows(images, size)[tuple(place)])


def distinct(patches, enough):
    """How many of the patches (n, D) differ; a count of at least `enough` may be of a part of them."""
    for part in (patches[: 20 * enough], patches):
        count = len(torch.unique((1000 * part).round().int(), dim=0))
        if count >= enough:
            break
    return count


def learn_dictionary(patches, size, centres, seed):
    """Whitening (ZCA) and the centres of k-means of normalised patches (n, D)."""
    mean = patches.mean(0)
    x = patches - mean
    values, vectors = torch.linalg.eigh((x.T @ x / len(x)).double())
    whiten = (vectors / (values.clamp_min(0) + RIDGE).sqrt() @ vectors.T).float()
    kind = machine.scikit_learn().cluster.MiniBatchKMeans
    found = kind(centres, batch_size=10_000, n_init=1, max_iter=20, random_state=seed)
    found.fit((x @ whiten).numpy())
    return Dictionary(size, mean, whiten, torch.from_numpy(found.cluster_centers_).float())


def quarters_of(side, size):
    """(4, patches): 1 where a patch lies in a quarter of the image, by its middle."""
    lower, right = (2 * torch.arange(side - length + 1) + length >= side for length in size)
    quarter = (2 * lower[:, None] + right.long()).flatten()
    return (quarter == torch.arange(4)[:, None]).float()


def summed(images, known, words):
    """Activations of all patches of each image, summed over its quarters, (n, 4, K): an image at a time, so
    that nothing large is kept and what is worked on fits a core's cache."""
    inside = quarters_of(images.shape[1], known.size)
    shift = known.mean @ known.whiten
    turn = torch.cat([-2 * known.centres.T, known.centres.square().sum(1)[None]])  # (D + 1, K)
    ones = torch.ones(inside.shape[1], 1)
    sums = torch.zeros(len(images), 4, len(known.centres))
    for image, place in zip(tqdm(images, words, leave=False, disable=None), sums):
        x = torch.addmm(shift, normalised(windows(image[None], known.size)), known.whiten, beta=-1)
        squares = torch.addmm(x.square().sum(1, keepdim=True), torch.cat([x, ones], 1), turn)
        distance = squares.clamp_min_(0).sqrt_()  # rounding may leave a little below 0
        near = distance.sub_(distance.mean(1, keepdim=True)).clamp_max_(0)
        torch.mm(inside, near, out=place)
    return sums.neg_()


def pooled(sums, inside, pool):
    """Averages over the image (n, K), or over each quarter (n, 4 K): these take the memory of the sums."""
    if pool == "all":
        return sums.sum(1) / inside.sum()
    return sums.div_(inside.sum(1)[:, None]).flatten(1)


# ------------------------------------------------------------------------------------------ the classifier


def steepest(model, x, label, penalty):
    """The largest slope of the mean loss and penalty, by a weight of a model fitted to x (n, columns)."""
    weight, bias = torch.from_numpy(model.coef_), torch.from_numpy(model.intercept_)
    total = penalty * weight
    for part, own in zip(torch.from_numpy(x).split(4096), torch.from_numpy(label).split(4096)):
        scores = part @ weight.T + bias
        if len(weight) == 1:  # two classes
            error = scores.sigmoid() - own[:, None]
        else:
            error = scores.softmax(1) - torch.nn.functional.one_hot(own, len(weight))
        total = total + error.to(part.dtype).T @ part
    return float(total.abs().max()) / len(x)


def fit(features, task):
    """Logistic regression on features {split: (n, columns)}, which are standardised in place. Penalties are
    tried in turn, strong ones first, until a weak one validates hardly better than the best -> rows of the
    record of the best."""
    mean, spread = features["train"].mean(0), features["train"].std(0, correction=0)
    for x in features.values():
        x.sub_(mean).div_(torch.where(spread > 0, spread, 1))
    arrays = {split: (x.numpy(), task.splits[split].label.numpy()) for split, x in features.items()}
    kind = machine.scikit_learn().linear_model.LogisticRegression
    model, best, tried = kind(tol=BOUND, max_iter=MOST, warm_start=True), {"val_acc": -1}, {}
    for penalty in PENALTIES:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that it has not converged is said below
            steps, slope = 0, math.inf
            for _ in range(STARTS):
                if slope > ENOUGH and steps < MOST:
                    model.set_params(C=1 / penalty).fit(*arrays["train"])
                    steps += int(model.n_iter_.max())
                    slope = steepest(model, *arrays["train"], penalty)
        got = {f"{split}_acc": float(model.score(*array)) for split, array in arrays.items()}
        got |= {"penalty": penalty, "steps": steps, "slope": slope, "converged": slope <= ENOUGH}
        tried[str(penalty)] = round(got["val_acc"], 4)
        how = f"{steps} steps, slope {slope:.1e}" + ("" if got["converged"] else ", not converged")
        scores = f"val {got['val_acc']:.2%}, train {got['train_acc']:.2%}"
        print(f"  penalty {penalty:g}: {scores}; {how}", flush=True)
        gain = got["val_acc"] - best["val_acc"]
        if gain > 0:
            best = got | {"params": model.coef_.size + model.intercept_.size}
        if gain < GAIN and penalty <= SLOW:
            break
    return best | {"tried": tried}


# ------------------------------------------------------------------------------------------ one cell


def size_of(patch):
    """ "6x6" -> (6, 6)"""
    h, w = map(int, patch.split("x"))
    return h, w


def span(patch, side=32):
    """Positions from the first pixel of a patch to its last, in the order of pixels."""
    h, w = size_of(patch)
    return side * (h - 1) + w


def label_of(cell):
    """The name of a cell's row, e.g. "6x6, 400 centres, quarters"."""
    return f"{cell['patch']}, {cell['centres']:,} centres, {cell['pool']}"


def refuse(task, cell):
    """Raise UserError for a patch that its image or quarter has no room for."""
    side = side_of(task)
    what, most = ("image", side) if cell["pool"] == "all" else ("quarter of the image", side // 2)
    if max(size_of(cell["patch"])) > most:
        advice = f"{most} x {most} pixels; give a smaller --patch" + (
            "" if cell["pool"] == "all" else ", or --pool all"
        )
        raise common.UserError(f"{task.name}: a patch of {cell['patch']} is larger than the {what}, {advice}")


def run_cell(args, task, kept, cell, seed):
    """One cell of the table: nothing where it is done; else it ends with its record."""
    refuse(task, cell)
    sample = 20_000 if args.smoke else SAMPLE
    hp = {"contrast": CONTRAST, "ridge": RIDGE, "sample": sample, "grid": PENALTIES, "bound": BOUND}
    identity = records.make_identity(args, __file__, task, "linear", cell, seed, hp)
    name = records.run_name(identity)
    if records.is_done(args, __file__, name):
        return
    began = time.monotonic(), time.process_time()
    common.reset_peak(torch.device("cpu"))
    key, patches = (task.name, cell["patch"], cell["centres"], seed), None
    if key not in kept:
        patches = sampled(task, size_of(cell["patch"]), seed, sample)
        if (found := distinct(patches, cell["centres"])) < cell["centres"]:
            what = f"{task.name}: {found:,} of {sample:,} training patches of {cell['patch']} are distinct"
            raise common.UserError(f"{what}; give at most {found:,} --centres")
    with records.claim(args, name) as folder:
        print(f"\n{folder}\n  {label_of(cell)}: {len(task.train.label):,} examples", flush=True)
        ran = records.where_it_ran(args, __file__)
        got = measure(task, cell, seed, patches, kept, began)
        changes = {"limit": args.limit} if args.limit else {}
        line = identity | {"row": label_of(cell), "changes": changes, "run": name}
        line |= {"tier": records.tier_of(args, changes)} | ran | got
        line |= {"chance": round(common.chance(task.test), 4), "data": task.source}
        records.append_record(args.out / "results.jsonl", line)
    took = f"{got['cpu_seconds']:.0f} core s, {got['peak_gb'] or 0:.1f} GB"
    print(f"test accuracy {got['test_acc']:.2%} ({took})", flush=True)


def measure(task, cell, seed, patches, kept, began):
    """The rows of a cell's record about its numbers and their cost. `kept`: {(task, patch, centres, seed):
    sums and their cost}, which the pools share; of the last patches alone, for they are large."""
    key = task.name, cell["patch"], cell["centres"], seed
    size = size_of(cell["patch"])
    if patches is not None:
        kept.clear()
        known = learn_dictionary(patches, size, cell["centres"], seed)
        del patches
        sums = {split: summed(images_of(task, split), known, f"patches, {split}") for split in data.SPLITS}
        kept[key] = sums, time.monotonic() - began[0], time.process_time() - began[1]
        earlier = 0, 0
    else:
        earlier = kept[key][1:]
    sums = kept[key][0] if cell["pool"] == "all" else kept.pop(key)[0]
    inside, device = quarters_of(side_of(task), size), torch.device("cpu")
    features = {split: pooled(sums.pop(split) if cell["pool"] != "all" else sums[split], inside, cell["pool"])
                for split in data.SPLITS}  # fmt: skip
    got = fit(features, task)
    got |= {"features": features["train"].shape[1], "peak_gb": common.peak_gb(device)}
    clocks = time.monotonic(), time.process_time()
    for row, clock, start, before in zip(("seconds", "cpu_seconds"), clocks, began, earlier):
        got[row] = round(clock - start + before, 1)
    return got | {"device": common.device_name(device)}


# ------------------------------------------------------------------------------------------ the report


MEANINGS = {
    "centres": "kinds of patches, found by k-means; a patch is described by its likeness to each",
    "pool": "averaged over all of the image, or over each of its quarters",
    "span": "positions from a patch's first pixel to its last",
    "chance": "the constant answer that is right most often on test",
    "CPU time": "of one core",
}


def report(args):
    """A table and a sentence a task, and the figure, of your runs and this repository's; of a run that both
    have, yours."""
    exp, (yours, ours) = records.experiment(__file__), records.yours_and_ours(args.out)
    wanted = common.chosen(args.task or ["all"], TASKS)
    found = [r for r in {r["run"]: r for r in ours + yours}.values() if r["task"] in wanted]
    found = [r for r in found if r["exp"] == exp and (r["tier"] == "mini") == args.mini]
    if not found:
        hint = "leave out --mini for full size" if args.mini else "train one first"
        return print(f"no run yet; {hint}")
    found.sort(key=in_order)
    tier = " (mini tier)" if args.mini else ""
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        print(f"### A bag of image patches and logistic regression{tier}\n")
        if any(r in yours for r in found):
            print("Rows that you have run show your numbers.\n")
        groups = records.grouped(found, lambda r: (r["task"], r["tier"], records.in_words(r["changes"])))
        floors = tables.floors_of(found, wanted, "mini" if args.mini else "paper", data.FLOORS)
        floors = [
            f"{data.TITLES[task]} {100 * r['test_acc']:.1f}" for task, rule in floors.items() for r in rule
        ]
        tables.print_list("The best by validation:", [worth(best_of(group)) for group in groups.values()])
        for group in groups.values():
            print_task(group)
        if floors:
            words = (
                f'In the reports of networks 6x6, 400, quarters is called "no network": {", ".join(floors)}. '
            )
            words += "Its 400 kinds of patches, the cheaper choice, were chosen with results in sight."
            print(textwrap.fill(words, 80) + "\n")
    tables.explain(
        printed.getvalue(), MEANINGS, "accuracy in %, and its standard error by the size of the test"
    )
    if plain := [r for r in found if r["tier"] == "paper"]:
        name = "-".join(["patches", *(wanted if len(wanted) < len(TASKS) else [])])
        plot(plain, args.out / f"{name}.png")
    tables.print_elsewhere(args, __file__, {"paper"}, {r["tier"] for r in ours if r["exp"] == exp})


def in_order(record):
    """A key to sort by: tasks, changes, then centres, pools and spans."""
    cell = record["cell"]
    changes = records.in_words(record["changes"])
    place = cell["centres"], POOLS.index(cell["pool"]), span(cell["patch"], side_in(record)), record["seed"]
    return TASKS.index(record["task"]), record["tier"], changes, *place


def side_in(record):
    """Pixels a side of the images of a record."""
    return 16 if record["tier"] == "mini" else 32


def print_task(group):
    """The table of one task."""
    best, rows = best_of(group), []
    for r in group:
        mean, error = records.mean_and_error([r])
        numbers = [f"{100 * mean:.2f} ± {100 * error:.2f}", f"{100 * r['val_acc']:.2f}"]
        cell = r["cell"]
        row = [f"{cell['patch']}, {cell['centres']:,}, {cell['pool']}", span(cell["patch"], side_in(r))]
        rows.append([*row, *numbers, common.hours(r["cpu_seconds"])])
    tier = "mini tier" if best["tier"] == "mini" else ""
    print(", ".join(filter(None, [data.title_of(best), records.in_words(best["changes"]), tier])) + ":\n")
    header = ["patch, centres, pool", "span", "test ± s.e.", "validation", "CPU time"]
    tables.show(header, rows)
    if short := [r["row"] for r in group if not r["converged"]]:
        print(textwrap.fill(f"Not converged: {'; '.join(short)}.", 80) + "\n")


def best_of(group):
    return max(group, key=lambda r: r["val_acc"])


def worth(record):
    """Sentences about a record: what it sees and gets, and whose published accuracy it is ahead of, level
    with or behind, by two standard errors of the difference, if both have the error of this test."""
    accuracy, cell = 100 * record["test_acc"], record["cell"]
    h, w = size_of(cell["patch"])
    text = "mini " if record["tier"] == "mini" else ""
    text += f"{data.TITLES[record['task']]}: {cell['centres']:,} kinds of patches of {h} x {w} pixels, "
    text += "averaged over " + ("the whole image" if cell["pool"] == "all" else "each quarter of the image")
    text += f", get {accuracy:.1f} (chance {100 * record['chance']:.1f})"
    if record["tier"] != "paper" or record["task"] not in COLUMNS:
        return f"{text}; {tables.best_network(record) or 'nothing published is comparable'}."
    band, error = transformers(record["task"]), 100 * records.mean_and_error([record])[1]

    def side(value):
        return records.side(accuracy - value, math.hypot(error, error))

    sides = [side(value) for value in band]
    counted = tables.by_side(tables.counts(sides))
    text += f", {counted} Transformers of LRA's table ({min(band):.2f} to {max(band):.2f})"
    if records.side(accuracy - 100 * record["chance"], error) == "level":
        return f"{text}. It is level with always the same answer: at chance."
    names = {}
    for kernel, value in convolutions_of(record["task"]).items():
        names.setdefault(side(value), []).append(f"K = {kernel} ({value:.2f})")
    return f"{text}. Beside paper A's convolutions it is {tables.by_side(names)}."


def transformers(task):
    """The accuracies of LRA's Transformers on a task, in percent."""
    return [row[COLUMNS.index(task)] for row in TRANSFORMERS.values()]


def convolutions_of(task):
    """{K: accuracy in percent} of paper A's Table 1."""
    rows = {row: re.fullmatch(r"K=(\d+)", row) for row in TABLE1}
    return {int(found[1]): TABLE1[row][TASKS7.index(task)] for row, found in rows.items() if found}


COLOURS = {"all": tables.BLUE, "quarters": tables.ORANGE}
MARKS = "os^Dv"  # of the numbers of centres
TICKS = (5, 10, 25, 50, 100, 200, 400)


def plot(found, path):
    """Accuracy against the span of a patch, a line for each pool and number of centres; paper A's
    convolutions by the span that their layers see together, LRA's Transformers as a band."""
    groups = records.grouped([r for r in found if not r["changes"]], lambda r: r["task"])
    numbers = sorted({r["cell"]["centres"] for r in found})
    titles = [data.title_of(group[0]) for group in groups.values()]
    size = (6 if len(titles) > 1 else 9, 4.2)  # the legend needs its room
    figure, axes = tables.panels(titles, size=size, columns=2)
    figure.suptitle("What does a bag of patches know, averaged over the image (all) or its quarters?")
    for (task, group), axis in zip(groups.items(), axes):
        for (pool, centres), line in lines_of(group).items():
            look = dict(color=COLOURS[pool], markerfacecolor="white" if centres > numbers[0] else None)
            mark = MARKS[numbers.index(centres) % len(MARKS)]
            tables.errorbars(
                axis, list(line), list(line.values()), fmt=f"{mark}-", zorder=3, **look,
                label=f"patches, {centres:,} centres, {pool}",
            )  # fmt: skip
        names = dict(textcoords="offset points", ha="center")
        for patch, same in records.grouped(group, lambda r: r["cell"]["patch"]).items():
            low = span(patch), min(100 * r["test_acc"] for r in same)
            axis.annotate(patch, low, (0, -8), color="0.3", va="top", fontsize=8, **names)
        if task in COLUMNS:
            band, convolutions = transformers(task), convolutions_of(task)
            axis.axhspan(min(band), max(band), color="0.9", label="LRA's own Transformers", zorder=0)
            x = [2 * LAYERS * (kernel // 2) + 1 for kernel in convolutions]
            look = dict(color=tables.GREEN, linewidth=1, label="paper A's convolutions, Table 1")
            axis.plot(x, convolutions.values(), "x--", **look)
            for kernel, at in zip(convolutions, x):
                place = at, convolutions[kernel]
                axis.annotate(f"K={kernel}", place, (0, 6), color=tables.GREEN, fontsize=7, **names)
        axis.axhline(100 * group[0]["chance"], color=tables.GREY, linestyle=":", label="chance")
        axis.set(xscale="log", xlabel="positions from the first pixel seen to the last")
        axis.set_xticks(TICKS, map(str, TICKS))
        axis.minorticks_off()
        axis.margins(y=0.12)
    axes[0].set_ylabel("test accuracy (%)")
    tables.legend_below(figure, axes)
    tables.save_figure(figure, path)


def lines_of(group):
    """{(pool, centres): {span: records}} of one task, spans ascending."""
    ordered = sorted(group, key=in_order)
    lines = records.grouped(ordered, lambda r: (r["cell"]["pool"], r["cell"]["centres"]))
    return {key: records.grouped(line, lambda r: span(r["cell"]["patch"])) for key, line in lines.items()}


# ------------------------------------------------------------------------------------------ command line


def patch_size(text):
    """ "6x6" -> the same without leading zeros, for argparse."""
    found = re.fullmatch(r"([0-9]{1,4})x([0-9]{1,4})", text)
    if not found or 0 in (int(found[1]), int(found[2])):
        raise argparse.ArgumentTypeError(f"must be height x width in pixels, such as 6x6, not {text!r}")
    return f"{int(found[1])}x{int(found[2])}"


def main(argv=None):
    parser = argparse.ArgumentParser(
        usage="python %(prog)s --task TASK [TASK ...] [flags]", description=common.for_terminals(__doc__),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    # fmt: off
    add = parser.add_argument_group("what to run").add_argument
    add("--task", nargs="+", choices=[*TASKS, "all"], metavar="TASK", help=f"{', '.join(TASKS)}, or all")
    add("--patch", nargs="+", type=patch_size, default=["6x6"], metavar="HxW",
        help="pixels of a patch, height x width (default 6x6)")
    add("--centres", nargs="+", type=common.positive_int, default=[400], metavar="N",
        help="kinds of patches: centres of k-means (default 400)")
    add("--pool", nargs="+", choices=POOLS, default=["all"], metavar="P",
        help="average over all of the image, or over its quarters (default all)")
    add("--seed", type=common.natural_int, default=0, help="of the patches and of k-means (default 0)")
    add("--limit", type=common.positive_int, metavar="N", help="train on N examples")
    add("--mini", action="store_true", help="the small data of the mini tier")
    add("--smoke", action="store_true", help="check that it runs: seconds, no result")
    add("--report", "--figure", action="store_true", help="print the tables, draw the figure, and exit")
    # fmt: on
    common.add_execution(parser)
    parser.set_defaults(seeds=1)
    args = common.read_args(parser, argv)
    with common.exit_cleanly():
        if args.report:
            return report(args)
        machine.scikit_learn()  # now, and not after the features
        pools = [pool for pool in POOLS if pool in args.pool]
        cells = product(dict.fromkeys(args.patch), dict.fromkeys(args.centres), pools)
        cells = [{"patch": patch, "centres": centres, "pool": pool} for patch, centres, pool in cells]
        how = dict(mini=args.mini, smoke=args.smoke, limit=args.limit)
        tasks = [data.load(name, args.data_dir, **how) for name in common.chosen(args.task, TASKS)]
        records.run_cells(args, product(tasks, [{}], cells), run_cell)


if __name__ == "__main__":
    main()
