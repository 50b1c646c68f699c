"""How long does a training step take, and how much memory? Prints a Markdown table, and with --out one JSON
line a row.

    python bench.py step                       cells of every block, and their projected hours
    python bench.py step --model conv-5 transformer --task text --compile
    python bench.py length                     how time and memory grow from 1,024 to 16,384 positions

Both take the cell's own recipe and model and the step of common.fit, in float32 and, where the device has it,
in bfloat16. The examples are random. The median of the repetitions counts, with the fastest and the slowest.

`step` takes examples of the task's lengths, in batches evenly spaced by length. On a CPU choose cells.

    ms, ex/s  of a step, its batch included; examples a second
    eval ms   of an example in an evaluation
    hours     of the whole cell: its steps, a validation each epoch, two tests

`length` takes one example that is as long as said. Its slope is that of log time over log length, from the
row above: 1 is linear, 2 quadratic.
"""

import argparse
import contextlib
import itertools
import json
import math
import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

import common
import data
import exp_kernels
import exp_locality
import exp_multitask
import listops
import tables

CONV = {f"conv-{kernel}": kernel for kernel in exp_locality.KERNELS}
MODELS = (*CONV, *exp_multitask.TABLES, *exp_kernels.TABLES)
LENGTHS = (1 << 10, 1 << 12, 1 << 14)  # positions of `length`
# Training, validation and test examples that the hours are for.
SIZES = {"image": (45_000, 5_000, 10_000), "pathfinder": (480_000, 20_000, 20_000)}
SIZES |= {name: (*data.EXPECTED[name].values(),) for name in ("text", "retrieval", "listops")}


def recipe(model, name):
    """The paper's recipe of a cell."""
    if model in CONV:
        table = exp_locality.TABLE7, exp_locality.TASKS7
    else:
        table = (exp_multitask.TABLES | exp_kernels.TABLES)[model]
    found = common.column(*table, name)
    if model in CONV:
        found["model"]["kernel"] = CONV[model]
    return found


def stand_in(name, recipe, examples=0):
    """The smoke stand-in of a task, with the techniques of a recipe; with `examples`, that many random ones
    whose lengths are those of the real task."""
    whole = data.length(name) if name in data.TEXTS else None  # stand-ins of texts are short
    flags = argparse.Namespace(data_dir=Path(), limit=None, max_length=whole, smoke=True, mini=False)
    task, draw = data.load_for(flags, name, recipe, seed=0), np.random.default_rng(0)
    if not examples:
        return task
    if name == "listops":
        tokens, offsets, _ = listops.generate_listops(examples, seed=0)
    else:
        lengths = np.full(examples * task.docs, task.max_length)
        if name == "text":  # IMDB: mean 1,299, standard deviation 901, 2.9 % at the cap
            lengths = np.exp(draw.normal(6.96, 0.67, examples)).clip(1, task.max_length).astype(np.int64)
        offsets = np.concatenate([[0], lengths.cumsum()])
        tokens = draw.integers(0, 256, offsets[-1], dtype=np.uint8)
    label = torch.zeros(examples, dtype=torch.int64)
    train = data.Split(torch.from_numpy(tokens), torch.from_numpy(offsets), label)
    return replace(task, train=train, rgb=None)  # other processes augment, while the step computes


# ------------------------------------------------------------------------------------------ step


def sample(task, plan, n):
    """(n full batches, the longest one) of a plan: evenly spaced from the shortest to the longest, so that
    their mean cost is near that of the whole plan."""
    full = max(map(len, plan))
    plan = [index for index in plan if len(index) == full]
    plan.sort(key=lambda index: int(task.lengths["train"][index].max()))
    return [plan[int((i + 0.5) * len(plan) / n)] for i in range(n)], plan[-1]


def projected_hours(name, hp, step_ms, example_ms):
    """Of a whole cell, from the ms of a step and of an example evaluated: all examples in every epoch, in
    batches; a validation at its end; the test of the last weights and of the best ones."""
    train, val, test = SIZES[name]
    steps = math.ceil(train / hp["batch_size"]) * hp["epochs"]
    return (steps * step_ms + (hp["epochs"] * val + 2 * test) * example_ms) / 3.6e6


class Cell:
    """A cell ready to train, on random examples."""

    def __init__(self, task, cell, amp, args):
        self.device, self.hp, self.args = common.resolve_device(args.device), cell["train"], args
        self.task, self.amp = task.to(self.device), common.autocast_on(self.device, amp)
        torch.manual_seed(0)
        self.network = exp_multitask.build(task, cell).to(self.device)
        self.optimizer = common.make_optimizer(self.network, self.hp)
        self.gradients = common.gradient_function(self.network, common.multitask_loss, self.amp, args)
        self.noise = torch.Generator(self.device).manual_seed(1)

    def train(self, plan):
        """Seconds of the steps of a plan."""
        totals, start = {}, time.perf_counter()
        self.network.train()
        for batch in self.task.training_batches(plan, self.noise, 0):
            common.train_step(self.network, self.optimizer, batch, self.gradients, self.hp, totals)
        getattr(torch, self.device.type).synchronize()
        return time.perf_counter() - start

    def evaluate(self):
        """Seconds of a validation."""
        start = time.perf_counter()
        common.evaluate(
            self.network, self.task, common.multitask_loss, self.hp, self.amp, self.args.micro_batch, "val"
        )
        return time.perf_counter() - start

    def warm_up(self, longest, chosen):
        """Until memory is allocated and the optimiser has its state; then every shape that needs it."""
        common.reset_peak(self.device)
        common.keep_pages(self.device)
        self.train([longest])
        if self.args.compile:
            common.compile_for(self.task, self.network, self.device)
        if self.args.compile or self.device.type != "cpu":
            self.train(chosen)


def spread(seconds, n):
    """The columns of a time in ms: median, fastest and slowest of the repetitions, each of n steps."""
    each = [1000 * s / n for s in seconds]
    return {"ms": statistics.median(each), "fastest": min(each), "slowest": max(each)}


def measure_step(model, name, amp, args):
    """The row of one cell."""
    found = recipe(model, name)
    batch_size, on_cpu = found["train"]["batch_size"], common.resolve_device(args.device).type == "cpu"
    task = stand_in(name, found, 20 * batch_size)
    plan = task.plan(batch_size, torch.Generator().manual_seed(0), True)
    chosen, longest = sample(task, plan, 4 if on_cpu else len(plan))
    task = replace(task, val=data.select(task.train, torch.cat(chosen), task.docs))
    cell = Cell(task, found, amp, args)
    cell.warm_up(longest, chosen)
    cell.evaluate()
    steps, evaluations = zip(*((cell.train(chosen), cell.evaluate()) for _ in range(args.repeat)))
    row = {"batch": batch_size} | spread(steps, len(chosen))
    row |= {"ex/s": 1000 * batch_size / row["ms"], "peak GB": common.peak_gb(cell.device)}
    row["eval ms"] = spread(evaluations, len(task.val.label))["ms"]
    row["hours"] = projected_hours(name, cell.hp, row["ms"], row["eval ms"])
    yield row


# ------------------------------------------------------------------------------------------ length


def measure_length(model, name, amp, args):
    """A row for each length."""
    before = None
    for length in LENGTHS:
        found = recipe(model, name)
        task = stand_in(name, found)
        # Symbols that every task has.
        symbols = np.random.default_rng(0).integers(0, 10, length * task.docs, dtype=np.uint8)
        offsets = torch.arange(0, len(symbols) + 1, length)
        one = data.Split(torch.from_numpy(symbols), offsets, torch.zeros(1, dtype=torch.int64))
        found["train"]["batch_size"] = 1
        # Without augmentation, which wants squares; corrupted, where a head restores what was corrupted.
        transforms = task.transforms if task.denoise else []
        task = replace(task, train=one, val=one, test=one, max_length=length, rgb=None, transforms=transforms)
        cell, plan = Cell(task, found, amp, args), [torch.arange(1)]
        cell.warm_up(plan[0], plan)
        row = {"length": length} | spread([cell.train(plan) for _ in range(args.repeat)], 1)
        row["slope"] = before and math.log(row["ms"] / before["ms"], length / before["length"])
        before = row
        yield row | {"peak GB": common.peak_gb(cell.device)}


# ------------------------------------------------------------------------------------------ output

PARTS = {"step": measure_step, "length": measure_length}


def text(value):
    if isinstance(value, float):
        return f"{value:.3g}" if value < 100 else f"{value:,.0f}"
    return "—" if value is None else str(value)


def main(argv=None):
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=common.for_terminals(__doc__), formatter_class=formatter)
    # fmt: off
    add = parser.add_argument
    add("part", choices=PARTS, help="what to measure")
    add("--model", nargs="+", choices=MODELS, default=MODELS, metavar="MODEL", help=f"of {', '.join(MODELS)}")
    add("--task", nargs="+", choices=SIZES, metavar="TASK", help=f"of {', '.join(SIZES)}; length: text")
    add("--device", choices=("auto", "cpu", "cuda", "mps"), default="auto", help="(default auto)")
    add("--amp", choices=("auto", "bf16", "off"), default="auto", help="auto: off, and bf16 where it is fast")
    add("--repeat", type=common.positive_int, default=7, metavar="N", help="repetitions (default 7)")
    add("--compile", action="store_true", help="compile the model")
    add("--no-graphs", dest="graphs", action="store_false", help="no CUDA graphs")
    add("--out", type=Path, metavar="FILE", help="append one JSON line a row")
    # fmt: on
    common.print_anywhere()
    args = parser.parse_args(argv)
    args.micro_batch = None
    with common.exit_cleanly():
        run_part(args)


@common.flushed_denormals()
def run_part(args):
    """Measure one part and print its table; rows go to --out as they come."""
    device, rows = common.resolve_device(args.device), []
    where = {"torch": torch.__version__, "device": common.device_name(device)}
    where |= {"threads": torch.get_num_threads(), "repetitions": args.repeat, "compile": args.compile}
    tasks = args.task or ([*SIZES] if args.part == "step" else ["text"])
    kinds = {"auto": ["off", "bf16"][: 1 + common.use_bf16("auto", device)]}.get(args.amp, [args.amp])
    for model, name, amp in itertools.product(args.model, tasks, kinds):
        for row in measured(model, name, amp, args):
            rows.append(row)
            print(*map(text, row.values()), file=sys.stderr)
            if args.out:
                with open(args.out, "a") as f:
                    f.write(json.dumps({"part": args.part} | where | row) + "\n")
    print(f"### {args.part}\n\n{', '.join(f'{key} {value}' for key, value in where.items())}\n")
    columns = dict.fromkeys(key for row in rows for key in row)
    print(tables.markdown(columns, [[text(row.get(key)) for key in columns] for row in rows]) + "\n")


def measured(model, name, amp, args):
    """The rows of a part; where it fails, one that says why: the other cells are worth having."""
    what = {"model": model, "task": name, "type": "bf16" if amp == "bf16" else "float32"}
    try:
        with contextlib.redirect_stdout(sys.stderr):
            for row in PARTS[args.part](model, name, amp, args):
                yield what | row
    except (MemoryError, RuntimeError) as error:
        yield what | {"note": str(error).splitlines()[0][:60]}


if __name__ == "__main__":
    main()
