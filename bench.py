"""Time, memory and launches of what the experiments are made of: one Markdown table a part, and with --out
one JSON line a row.

    python bench.py step                       a training step of cells of Tables 1 to 3, and projected hours
    python bench.py step --model conv-5 transformer --task text listops --compile
    python bench.py layers                     every layer alone, forward + backward, milliseconds
    python bench.py memory                     which cells fit cards of 8, 12 and 24 GB, by calculation
    python bench.py all --out bench.jsonl      all of these: about ten minutes on a GPU

`step`: the cell's own recipe and model, and the step of common.fit, on random examples of the task's lengths
in batches evenly spaced by length. On a CPU choose cells.
    launches  operations that a step sends to the device: forward and loss, backward, optimiser. A GPU waits
              for them at these sizes, about 5 microseconds each
    ms        a step, its batch included;  ex/s: examples a second
    floor ms  the larger of FLOP / the rate of a matrix product and bytes / the rate of a copy, both measured
              here. FLOP: torch's counter and 2.5 n log2 n for each real FFT. bytes: input and output of
              embedding, blocks and heads once forward and twice backward, and 12 a parameter
    x floor   ms / floor ms: above 3 there is something to win
    hours     of the whole cell: all steps of the recipe, a third of a step for each batch evaluated

`layers`: B = 4, D = 128, the fastest of --repeats: on a shared machine a median would measure the neighbours.

`memory`: computed on fake tensors: 16 bytes a parameter, and what the graph of one step at the longest length
keeps for the backward pass.
"""

import argparse
import contextlib
import functools
import inspect
import itertools
import json
import math
import random
import sys
import time
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

import common
import data
import exp_kernels
import exp_locality
import exp_multitask
import listops
import models
import records

CONV = {f"conv-{kernel}": kernel for kernel in exp_locality.TABLE1}
SCRIPTS = dict.fromkeys(CONV, exp_locality) | dict.fromkeys(exp_multitask.TABLES, exp_multitask)  # of a model
SCRIPTS |= dict.fromkeys(exp_kernels.PRINTED, exp_kernels)
SIZES = {  # training, validation and test examples that the hours are for
    "image": (45_000, 5_000, 10_000),
    "pathfinder": (480_000, 20_000, 20_000),
    "text": (22_500, 2_500, 25_000),
    "retrieval": (147_086, 18_090, 17_437),
    "listops": (96_000, 2_000, 2_000),
}


def recipe(model, name):
    if model in CONV:
        return exp_locality.recipe(name, kernel=CONV[model])
    return SCRIPTS[model].recipe(model, name)


def stand_in(name, examples, hp):
    """A task of that many random examples whose lengths are those of the real one."""
    denoise = hp["technique"] == "denoising"
    task, draw = data.load(name, "", smoke=True, augment="none", denoise=denoise), np.random.default_rng(0)
    if name == "listops":
        tokens, offsets, _ = listops.generate_listops(examples, seed=0, progress=False)
    else:
        lengths = np.full(examples * task.docs, task.max_length)
        if name == "text":  # IMDB: mean 1,299, standard deviation 901, 2.9 % at the cap
            lengths = np.exp(draw.normal(6.96, 0.67, examples)).clip(1, task.max_length).astype(np.int64)
        offsets = np.concatenate([[0], lengths.cumsum()])
        tokens = draw.integers(0, 256, offsets[-1], dtype=np.uint8)
    label = torch.zeros(examples, dtype=torch.int64)
    return replace(task, train=data.Split(torch.from_numpy(tokens), torch.from_numpy(offsets), label))


def sample(task, plan, n):
    """(n batches, the longest one) of a plan: evenly spaced from the shortest to the longest, so that their
    mean cost is near that of the whole plan, and in random order."""
    full = max(map(len, plan))
    plan = [index for index in plan if len(index) == full]
    plan.sort(key=lambda index: int(task.lengths["train"][index].max()))
    n = min(n, len(plan))
    chosen = [plan[int((i + 0.5) * len(plan) / n)] for i in range(n)]
    return random.Random(0).sample(chosen, n), plan[-1]


def seconds_of(work, device):
    synchronize = getattr(torch, device.type).synchronize
    synchronize()
    start = time.perf_counter()
    work()
    synchronize()
    return time.perf_counter() - start


# ------------------------------------------------------------------------------------------ step


class Launches(TorchDispatchMode):
    """Counts the operations that reach the device. A view, memory without content or a question about a
    type launches nothing."""

    count = 0
    nothing = "_unsafe_view", "detach", "empty", "promote_types"

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += not (function.is_view or any(word in str(function) for word in self.nothing))
        return function(*args, **(kwargs or {}))


def count_launches(network, optimizer, batch, autocast):
    """[forward and loss, backward, optimiser]: operations of one step."""
    optimizer.zero_grad(set_to_none=True)  # as train_step does: gradients are not added to old ones
    with Launches() as mode:
        with autocast:
            loss, _ = common.multitask_loss(network, batch)
        forward = mode.count
        loss.backward()
        backward = mode.count - forward
        optimizer.step()
    return [forward, backward, mode.count - forward - backward]


def fft_flop(x_shape, dim, normalization, length, out_shape=None):
    """2.5 n log2 n for each real transform of n points; `length` is n, or whether rfft returns one side."""
    n = x_shape[dim[0]] if isinstance(length, bool) else length
    rows = math.prod(x_shape) // x_shape[dim[0]]
    return int(2.5 * rows * n * math.log2(n))


def convolution_backward_flop(grad_shape, x_shape, w_shape, *args, out_shape=None):
    """Twice the forward pass, in groups too (torch's own count is wrong there); once where only one
    gradient is asked for."""
    each = 2 * math.prod(grad_shape) * math.prod(w_shape[1:])
    return each * sum(shape is not None for shape in out_shape[:2])


FLOP = {
    torch.ops.aten._fft_r2c: fft_flop,
    torch.ops.aten._fft_c2r: fft_flop,
    torch.ops.aten.convolution_backward: convolution_backward_flop,
}


def count_work(network, batches, train, item_size):
    """Train on a list of batches -> {flop, bytes}, sums over them; see the docstring above."""
    work = {"bytes": 12 * sum(p.numel() for p in network.parameters()) * len(batches)}

    def count(module, inputs, output):
        tensors = [x for x in (*inputs, output) if x.is_floating_point()]
        work["bytes"] += 3 * item_size * sum(x.numel() for x in tensors)

    layers = {*network.children(), *network.blocks} - {network.blocks}
    hooks = [layer.register_forward_hook(count) for layer in layers]
    with FlopCounterMode(display=False, custom_mapping=FLOP) as counter:
        train(batches)
    for hook in hooks:
        hook.remove()
    return work | {"flop": counter.get_total_flops()}


def machine_rates(device, dtype):
    """(FLOP/s of a matrix product in this type, bytes/s read and written by a copy), the fastest of five."""
    n, size, calls = (2048, 1 << 25, 1) if device.type == "cpu" else (8192, 1 << 28, 10)
    a, b = torch.randn(2, n, n, device=device).to(dtype)
    x, y = torch.ones(2, size, device=device)

    def rate(work, amount):
        work()
        times = [seconds_of(lambda: [work() for _ in range(calls)], device) for _ in range(5)]
        return amount * calls / min(times)

    return rate(lambda: a @ b, 2 * n**3), rate(lambda: y.copy_(x), 8 * size)


def projected_steps(name, hp):
    """Of a whole cell; a third of a step for each batch of validation (every epoch) and test (twice)."""
    train, val, test = SIZES[name]
    evaluations = (hp["epochs"] * val + 2 * test) / hp["batch_size"]
    return math.ceil(train / hp["batch_size"]) * hp["epochs"] + evaluations / 3


def measure_step(model, name, args):
    """The row of one cell."""
    device, hp = common.resolve_device(args.device), recipe(model, name)
    dtype = torch.bfloat16 if common.use_bf16(args.amp, device) else torch.float32
    autocast = common.autocast_on(device, args.amp)
    if args.smoke:
        hp |= {row: value for row, value in exp_kernels.SMOKE.items() if row in hp}
    task = stand_in(name, (4 if args.smoke else 20) * hp["batch_size"], hp).to(device)
    flop_rate, copy_rate = machine_rates(device, dtype)
    noise = torch.Generator(device).manual_seed(1)
    torch.manual_seed(0)
    network = SCRIPTS[model].build(task, hp).to(device).train()
    optimizer = common.make_optimizer(network, hp)
    plan = task.plan(hp["batch_size"], torch.Generator().manual_seed(0), True)
    chosen, longest = sample(task, plan, args.steps or (4 if device.type == "cpu" else 20))

    def train(batches):
        at = {"totals": {}}
        for batch in batches:
            common.train_step(network, optimizer, batch, common.multitask_loss, hp, autocast, at)

    def epoch():
        train(task.training_batches(chosen, noise, 0))

    train(task.training_batches([longest], noise, 0))  # memory is allocated, the optimiser has its state
    launches = count_launches(network, optimizer, next(task.training_batches(chosen, noise, 0)), autocast)
    work = count_work(network, list(task.training_batches(chosen, noise, 0)), train, dtype.itemsize)
    if args.compile:
        network.one_length = task.one_length
        network.compile(mode=args.compile)
    common.reset_peak(device)
    if args.compile or device.type != "cpu":  # every shape once more, as it will be timed
        epoch()
    ms = 1000 * min(seconds_of(epoch, device) for _ in range(args.rounds)) / len(chosen)
    floor = 1000 * max(work["flop"] / flop_rate, work["bytes"] / copy_rate) / len(chosen)
    row = {"batch": hp["batch_size"], "launches": " + ".join(map(str, launches))}
    row |= {"GFLOP": work["flop"] / len(chosen) / 1e9, "ms": ms, "ex/s": 1000 * hp["batch_size"] / ms}
    row |= {"floor ms": floor, "x floor": ms / floor, "peak GB": common.peak_gb(device)}
    row |= {"hours": None if args.smoke else projected_steps(name, hp) * ms / 3.6e6}
    row |= {"device": common.device_name(device), "amp": str(dtype).removeprefix("torch.")}
    return row | {"compile": args.compile or False}


def bench_step(args):
    for model, name in itertools.product(args.model, args.task):
        row = {"model": model, "task": name}
        try:
            with contextlib.redirect_stdout(sys.stderr):
                row |= measure_step(model, name, args)
        except (MemoryError, RuntimeError) as error:  # the other cells are worth having
            row |= {"note": str(error).splitlines()[0][:60]}
        yield row


# ------------------------------------------------------------------------------------------ layers

LAYERS = dict(  # their arguments; those that have a max_length get the length
    s4={}, s4d={}, s5=dict(d_state=128, norm="layer"), lru=dict(norm="layer"), dlr={}, sgconv={}, free={},
    mingru=dict(d_hidden=128), gmlp=dict(d_hidden=128), conv=dict(kernel=61),
    transformer=dict(d_ff=256, rotary="full"), mega=dict(d_hidden=256, d_attention=64),
)  # fmt: skip
LAYERS["ema-attention"] = LAYERS["mega"] | {"d_ff": 256}


def bench_layers(args):
    """A row for each layer: milliseconds of a forward and backward pass at each length."""
    device = common.resolve_device(args.device)
    for name, arguments in LAYERS.items():
        row = {"layer": name}
        for L in args.lengths:
            torch.manual_seed(0)
            block = models.BLOCKS[name]
            length = {"max_length": L} if "max_length" in inspect.signature(block).parameters else {}
            layer = block(128, **arguments, **length).to(device)
            x = torch.randn(4, L, 128, device=device, requires_grad=True)
            mask = data.full_mask(4, L, device)

            def one_pass(layer=layer, x=x, mask=mask):
                layer(x, mask).square().sum().backward()

            one_pass()
            row[f"ms at L = {L}"] = 1000 * min(seconds_of(one_pass, device) for _ in range(args.repeats))
        yield row | {"device": common.device_name(device)}


# ------------------------------------------------------------------------------------------ memory

CARDS = (8, 12, 24)  # GB


def conv1d(x, weight, bias=None, groups=1):
    """What a GPU does in place of models.chunked_conv1d."""
    return F.conv1d(x.transpose(1, 2), weight, bias, padding="same", groups=groups).transpose(1, 2)


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


def largest_part(card, state, kept_by, batch_size, splittable):
    """What a card of that many GB is asked to compute at once: "all", a --micro-batch, or nothing (None).

    kept_by(examples) -> bytes. 1 GB for the libraries and twice what is kept: the peak of a step measured 1.1
    (S4) to 2.0 (Transformer) times that on a CPU, gradients on their way and scratch space included.
    """
    part = batch_size
    while 1 + (state + 2 * kept_by(part)) / 1e9 > card:
        part //= 2
        if not part or not splittable:
            return None
    return "all" if part == batch_size else f"--micro-batch {part}"


def bench_memory(args):
    """Rows {model, task, batch, GB of state, GB kept for the backward pass, what each card can compute}."""
    for model, name in itertools.product(args.model, args.task):
        hp = recipe(model, name)
        as_on_a_gpu = dict(chunked_conv1d=conv1d, surely_full=lambda mask: False, MOST_SCORES={})
        with contextlib.redirect_stdout(sys.stderr), mock.patch.multiple(models, **as_on_a_gpu):
            task = data.load(name, "", augment="none", denoise=hp["technique"] == "denoising", smoke=True)
            network = SCRIPTS[model].build(task, hp)
            kept_by = functools.cache(functools.partial(kept_for_backward, network, task))
            state = 16 * sum(p.numel() for p in network.parameters())  # weight, gradient, two moments
            asked = state, kept_by, hp["batch_size"], not common.batch_normed(network)
            row = {"model": model, "task": name, "batch": hp["batch_size"]}
            row |= {"state GB": state / 1e9, "kept GB": kept_by(hp["batch_size"]) / 1e9}
            row |= {f"{card} GB": largest_part(card, *asked) for card in CARDS}
        yield row


# ------------------------------------------------------------------------------------------ output

PARTS = {"step": bench_step, "layers": bench_layers, "memory": bench_memory}
SHARED = ("device", "amp", "compile")  # by all rows of a table


def text(value):
    if isinstance(value, float):
        return f"{value:.3g}" if value < 100 else f"{value:,.0f}"
    return "—" if value is None else str(value)


def run_part(part, args):
    """Measure one part and print its table; rows go to --out as they come."""
    rows = []
    for row in PARTS[part](args):
        rows.append(row)
        print(*map(text, row.values()), file=sys.stderr)
        if args.out:
            with open(args.out, "a") as f:
                f.write(json.dumps({"part": part, "torch": torch.__version__} | row) + "\n")
    shared = {key: value for row in rows for key, value in row.items() if key in SHARED}
    print(f"### {part}\n\n{', '.join(map(str, (f'torch {torch.__version__}', *shared.values())))}\n")
    columns = dict.fromkeys(key for row in rows for key in row if key not in SHARED)
    print(records.markdown(columns, [[text(row.get(key)) for key in columns] for row in rows]) + "\n")
    slow = [f"{row['model']} {row['task']}" for row in rows if row.get("x floor", 0) > 3]
    if slow:
        print(f"Slower than 3 x the floor: {', '.join(slow)}\n")


def main(argv=None):
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    some = [model for model in SCRIPTS if model not in list(CONV)[1:-1]]
    # fmt: off
    add = parser.add_argument
    add("part", choices=[*PARTS, "all"], help="what to measure")
    add("--model", nargs="+", choices=SCRIPTS, default=some, metavar="MODEL", help=f"of {', '.join(SCRIPTS)}")
    add("--task", nargs="+", choices=SIZES, default=[*SIZES], metavar="TASK", help=f"of {', '.join(SIZES)}")
    add("--device", choices=("auto", "cpu", "cuda", "mps"), default="auto", help="(default auto)")
    add("--amp", choices=("auto", "bf16", "off"), default="auto", help="bf16 autocast (default auto)")
    add("--compile", nargs="?", const="default", choices=("default", "reduce-overhead"), help="compile")
    add("--steps", type=common.positive_int, metavar="N", help="batches timed (default 20, on a CPU 4)")
    add("--rounds", type=common.positive_int, default=3, metavar="N", help="the fastest of N counts (3)")
    add("--lengths", nargs="+", type=common.positive_int, default=[1024, 4096], metavar="L", help="of layers")
    add("--repeats", type=common.positive_int, default=5, metavar="N", help="timed passes of a layer (5)")
    add("--smoke", action="store_true", help="tiny models and data: does it run at all?")
    add("--out", type=Path, metavar="FILE", help="append one JSON line a row")
    # fmt: on
    args = parser.parse_args(argv)
    with common.exit_cleanly():
        if args.out:
            open(args.out, "a").close()  # refused now, not after the first row
        for part in PARTS if args.part == "all" else [args.part]:
            run_part(part, args)


if __name__ == "__main__":
    main()
