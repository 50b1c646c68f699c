"""How long does a training step take, and how much memory? Prints a Markdown table, and with --out one JSON
line a row.

    python bench.py step                       cells of Tables 1 to 3, and their projected hours
    python bench.py step --model conv-5 transformer --task text --compile
    python bench.py memory                     which cells fit cards of 8, 12 and 24 GB

`step` takes the cell's own recipe and model and the step of common.fit. The examples are random, of the
task's lengths, in batches evenly spaced by length. The fastest of three rounds counts. On a CPU choose cells.

    ms, ex/s  of a step, its batch included; examples a second
    hours     of the whole cell; a batch evaluated counts as a third of a step

`memory` calculates on fake tensors: 16 bytes a parameter, and what the graph of one step at the longest
length keeps for the backward pass.
"""

import argparse
import contextlib
import itertools
import json
import math
import sys
import time
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F

import common
import data
import exp_kernels
import exp_locality
import exp_multitask
import listops
import models
import records

CONV = {f"conv-{kernel}": kernel for kernel in exp_locality.KERNELS}
MODELS = (*CONV, *exp_multitask.TABLES, *exp_kernels.PRINTED)
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


def projected_steps(name, hp):
    """Of a whole cell; a third of a step for each batch of validation (every epoch) and test (twice)."""
    train, val, test = SIZES[name]
    evaluations = (hp["epochs"] * val + 2 * test) / hp["batch_size"]
    return math.ceil(train / hp["batch_size"]) * hp["epochs"] + evaluations / 3


@common.flushed_denormals()
def measure_step(model, name, args):
    """The row of one cell."""
    device, cell = common.resolve_device(args.device), recipe(model, name)
    hp, autocast = cell["train"], common.autocast_on(device, args.amp)
    batch_size, on_cpu = hp["batch_size"], device.type == "cpu"
    task = stand_in(name, cell, 20 * batch_size).to(device)
    noise = torch.Generator(device).manual_seed(1)
    torch.manual_seed(0)
    network = exp_multitask.build(task, cell).to(device).train()
    optimizer = common.make_optimizer(network, hp)
    gradients = common.gradient_function(network, common.multitask_loss, autocast, args)
    plan = task.plan(batch_size, torch.Generator().manual_seed(0), True)
    chosen, longest = sample(task, plan, 4 if on_cpu else len(plan))

    def seconds(plan):
        totals, start = {}, time.perf_counter()
        for batch in task.training_batches(plan, noise, 0):
            common.train_step(network, optimizer, batch, gradients, hp, totals)
        getattr(torch, device.type).synchronize()
        return time.perf_counter() - start

    seconds([longest])  # memory is allocated, the optimiser has its state
    if args.compile:
        common.compile_for(task, network, device)
    common.reset_peak(device)
    common.keep_pages(device)
    if args.compile or not on_cpu:  # every shape once more, as it will be timed
        seconds(chosen)
    ms = 1000 * min(seconds(chosen) for _ in range(3)) / len(chosen)
    row = {"batch": batch_size, "ms": ms, "ex/s": 1000 * batch_size / ms, "peak GB": common.peak_gb(device)}
    return row | {"hours": projected_steps(name, hp) * ms / 3.6e6}


# ------------------------------------------------------------------------------------------ memory

CARDS = (8, 12, 24)  # GB


def conv1d(x, weight, bias=None, groups=1):
    """What a GPU does in place of models.chunked_conv1d."""
    return F.conv1d(x.mT, weight, bias, padding="same", groups=groups).mT


def kept_for_backward(network, task, batch_size):
    """Bytes that a step keeps until its backward pass, for a batch without padding: storages that the
    graph holds, parameters apart, each counted once. Tensors are fake: nothing is allocated or computed."""
    own = {p.untyped_storage()._cdata for p in network.parameters()}
    storages = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage._cdata not in own:
            storages[storage._cdata] = storage  # held, or its address might be given out again
        return tensor

    with FakeTensorMode(allow_non_fake_inputs=True), torch.autocast("cpu", torch.bfloat16):
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            mask = torch.ones(batch_size * task.docs, task.max_length, dtype=torch.bool)
            features = network(mask.long(), mask)
            network.classify(features, mask, task.docs)
            if network.denoise_head is not None:
                for (logits,) in common.denoised(network, features):
                    F.cross_entropy(logits, torch.zeros(len(logits), dtype=torch.int64))
    return sum(storage.nbytes() for storage in storages.values())


def count_memory(model, name, args):
    """The row of one cell: GB of state, GB kept for the backward pass, what each card can compute at once:
    "all", a --micro-batch, or nothing (None).

    1 GB for the libraries and twice what is kept: the peak of a step measured 1.1 (S4) to 2.0 (Transformer)
    times that on a CPU, gradients on their way and scratch space included.
    """
    cell = recipe(model, name)
    batch_size = cell["train"]["batch_size"]
    on_gpu = {"chunked_conv1d": conv1d, "surely_full": lambda mask: False, "MOST_SCORES": {}}
    with mock.patch.multiple(models, **on_gpu):
        task = stand_in(name, cell)
        network = exp_multitask.build(task, cell)
        halvings = 0 if common.batch_norms(network) else batch_size.bit_length() - 1
        parts = [batch_size >> i for i in range(halvings + 1)]
        kept = {part: kept_for_backward(network, task, part) for part in parts}
    state = 16 * sum(p.numel() for p in network.parameters())  # weight, gradient, two moments
    row = {"batch": batch_size, "state GB": state / 1e9, "kept GB": kept[batch_size] / 1e9}
    for card in CARDS:
        part = max((p for p in parts if 1 + (state + 2 * kept[p]) / 1e9 <= card), default=None)
        row[f"{card} GB"] = "all" if part == batch_size else part and f"--micro-batch {part}"
    return row


# ------------------------------------------------------------------------------------------ output

PARTS = {"step": measure_step, "memory": count_memory}


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
    add("--task", nargs="+", choices=SIZES, default=[*SIZES], metavar="TASK", help=f"of {', '.join(SIZES)}")
    add("--device", choices=("auto", "cpu", "cuda", "mps"), default="auto", help="(default auto)")
    add("--amp", choices=("auto", "bf16", "off"), default="auto", help="bf16 autocast (default auto)")
    add("--compile", action="store_true", help="compile the model")
    add("--no-graphs", dest="graphs", action="store_false", help="no CUDA graphs")
    add("--out", type=Path, metavar="FILE", help="append one JSON line a row")
    # fmt: on
    common.print_anywhere()
    args = parser.parse_args(argv)
    args.micro_batch = None
    with common.exit_cleanly():
        run_part(args)


def run_part(args):
    """Measure one part and print its table; rows go to --out as they come."""
    device, rows = common.resolve_device(args.device), []
    where = {"torch": torch.__version__, "device": common.device_name(device)}
    where |= {"bf16": common.use_bf16(args.amp, device), "compile": args.compile}
    for model, name in itertools.product(args.model, args.task):
        row = {"model": model, "task": name}
        try:
            with contextlib.redirect_stdout(sys.stderr):
                row |= PARTS[args.part](model, name, args)
        except (MemoryError, RuntimeError) as error:  # the other cells are worth having
            row |= {"note": str(error).splitlines()[0][:60]}
        rows.append(row)
        print(*map(text, row.values()), file=sys.stderr)
        if args.out:
            with open(args.out, "a") as f:
                f.write(json.dumps({"part": args.part} | where | row) + "\n")
    print(f"### {args.part}\n\n{', '.join(f'{key} {value}' for key, value in where.items())}\n")
    columns = dict.fromkeys(key for row in rows for key in row)
    print(records.markdown(columns, [[text(row.get(key)) for key in columns] for row in rows]) + "\n")


if __name__ == "__main__":
    main()
