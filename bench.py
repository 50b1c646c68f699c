"""Speed and memory of what the experiments are made of: one Markdown table a part, and one JSON line a row.

    python bench.py layers            every layer beside its naive form (below), forward + backward
    python bench.py layers --only s4 s4d --lengths 1024 --memory-length 0
    python bench.py data              generators, shuffling, augmentation; padding of what is in --data-dir
    python bench.py loop              Text, K = 5: a loop as tutorials write it beside ours, and ours without
                                      each of its optimisations
    python bench.py memory            which cells fit cards of 8, 12 and 24 GB, by calculation
    python bench.py step              one training step of the cells of Tables 1 (K = 5 and 61) to 3, and
                                      projected hours
    python bench.py step --model conv-5 transformer --task text listops --compile
    python bench.py all --out bench.jsonl

`layers`: B = 4 (1 for the two attention layers), D = 128, milliseconds a pass, the fastest of --repeats (on
a shared machine the median would measure the neighbours); the naive form is the same layer with functions
of models.py replaced by the textbook versions kept here, timed in the same run. Peak memory is that of one
forward + backward pass in a process of its own, over what the process held before. Expected on two CPU cores:
see NOTES.md. 5 minutes, 5 GB.

`data`: items a second of one process, by its own CPU time and by the wall clock. 2 minutes.

`memory`: computed, not measured: 16 bytes a parameter, and what the graph of one step at the longest length
keeps for the backward pass; nothing is allocated. 1 minute.

`loop`: real bytes a second on 800 reviews of IMDB in batches of 16, all variants from the same weights, timed
in turn, the fastest of --rounds. One busy CPU core, --steps 5 --rounds 2: 7 minutes; no GPU has run it yet.

`step`: the recipe and model of the cell's own script, the step as common.fit makes it, batches evenly spaced
by length; a process for each cell: one that does not fit in memory says so and the table goes on. Texts and
ListOps come from --data-dir where they are; the row names what stands in for them, and for images (random
pixels cost the same). On a CPU choose cells, a step may take minutes; no GPU has run it yet.
    ms        a step, making its batch included; "input ms": what CIFAR-10's augmentation, in other
              processes, needs for one
    tokens/s  real positions;  pad %: the others
    peak GB   of the device, or of the whole process on a CPU
    floor ms  the larger of FLOP / the rate of a matrix product and bytes / the rate of a copy, both measured
              beside the cell in its type. FLOP: torch's counter (matrix products, convolutions, attention;
              padding too) and, which it leaves out, 2.5 n log2 n for each real FFT; nothing elementwise.
              bytes: input and output of embedding, blocks and heads once forward and twice backward in the
              autocast type, and 12 a parameter (its own and the optimiser's) once.  floor %: of ms
    hours     of the whole cell: all steps of the recipe, a third of a step for each batch evaluated. Tables:
              all cells; kernels of Table 1 that were not measured by interpolation between those that were
"""

import argparse
import contextlib
import functools
import importlib.util
import itertools
import json
import math
import os
import random
import shutil
import subprocess
import sys
import time
import traceback
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

import common
import data
import exp_kernels
import exp_locality
import exp_multitask
import listops
import models
import pathfinder

# ------------------------------------------------------------------------------------------ naive versions
#
# Each has the arguments and results of the function of models.py whose name it carries.


def as_complex(z):
    return z if z.is_complex() else torch.view_as_complex(z.contiguous())


def dplr_kernel(Lambda, P, B, C_tilde, dt, L):
    """S4's published form: the full (rows, H, N, L / 2 + 1) Cauchy tensor over all conjugate pairs."""
    Lambda, P, B, C = (as_complex(z) for z in (Lambda, P, B, C_tilde))
    Lambda, P, B, C = (torch.cat([z, z.conj()], -1) for z in (Lambda, P, B, C))
    omega = torch.exp(-2j * torch.pi * torch.arange(L // 2 + 1) / L)
    dt = dt[:, None]
    denominator = 2 * (1 - omega) - (dt * Lambda)[..., None] * (1 + omega)  # (H, N, L / 2 + 1)

    def cauchy(v):
        return dt * (v[..., None] / denominator).sum(-2)

    left = torch.cat([C, P.conj()[None]])  # (Ch + 1, H, N)
    to_B, to_P = cauchy(left * B), cauchy(left * P)
    correction = (1 + omega) * to_P[:-1] * to_B[-1] / (1 + (1 + omega) * to_P[-1])
    return torch.fft.irfft(2 * (to_B[:-1] - correction), n=L)


def diagonal_kernel(Lambda, B, C, dt, L, discretization="zoh"):
    """S4D with the (H, n, L) exponential materialised; zoh only."""
    Lambda, B, C = (as_complex(z) for z in (Lambda, B, C))
    z = Lambda * dt[:, None]
    powers = torch.exp(z[..., None] * torch.arange(L))
    return 2 * torch.einsum("chn,hnl->chl", C * B * (z.exp() - 1) / Lambda, powers).real


def ema_kernel(alpha, delta, beta, gamma, L):
    """MEGA's EMA with the (D', n, L) powers materialised."""
    p = delta.sigmoid()
    powers = torch.exp(torch.log(1 - p * alpha.sigmoid())[..., None] * torch.arange(L))
    return torch.einsum("dn,dnl->dl", p * beta * gamma / alpha.shape[1] ** 0.5, powers)


def dlr_kernel(Lambda, W, L):
    """DLR as one complex product with the (N, L) exponential."""
    powers = torch.exp(as_complex(Lambda)[:, None] * torch.arange(L))
    return (as_complex(W) @ powers).real


def state_space(u, pole, B, C, bidirectional):
    """S5 and LRU step by step."""
    pole, B, C = torch.exp(torch.complex(*pole)), torch.complex(*B), torch.complex(*C)
    v = u.to(B.dtype) @ B.T
    states = []
    for w in (v, v.flip(1))[: 1 + bidirectional]:
        x, steps = torch.zeros_like(w[:, 0]), []
        for step in w.unbind(1):
            x = pole * x + step
            steps.append(x)
        states.append(torch.stack(steps, 1))
    if bidirectional:
        states[1] = states[1].flip(1)
    return (torch.cat(states, -1) @ C.T).real


def long_conv(u, k_fwd, k_bwd=None, bwd_lag=1):
    """The direct sum: every output reads every input."""
    L = u.shape[2]
    kernel = torch.cat([k_fwd[:, :L].flip(1), k_bwd[:, : L - bwd_lag]], 1)  # lags L - 1 ... -(L - 1)
    return F.conv1d(F.pad(u, (L - 1, L - 1)), kernel.unsqueeze(1), groups=u.shape[1])[..., :L]


def fft_conv(u, k_fwd, k_bwd=None, bwd_lag=1):
    """The textbook FFT convolution, torch's own derivatives, one direction after the other."""
    L = u.shape[2]

    def one(v, k):
        return torch.fft.irfft(torch.fft.rfft(v, n=2 * L) * torch.fft.rfft(k, n=2 * L), n=2 * L)[..., :L]

    y = one(u, k_fwd)
    if k_bwd is None:
        return y
    return y + one(F.pad(u, (0, bwd_lag))[..., bwd_lag:].flip(2), k_bwd).flip(2)


def toeplitz_gate_conv(z, kernel, bias):
    """gMLP with its dense (C, L, L) Toeplitz matrices."""
    (B, H, L), C, centre = z.shape, len(kernel), kernel.shape[1] // 2
    t = torch.arange(L)
    matrix = kernel[:, centre + t[:, None] - t[None]]
    y = torch.einsum("cts,bgcs->bgct", matrix, z.view(B, H // C, C, L)).reshape(B, H, L)
    return y + bias.repeat(H // C)[:, None]


def attention(q, k, v, attn_mask=None):
    """Softmax attention with its matrix of scores."""
    scores = q @ k.mT / q.shape[-1] ** 0.5
    if attn_mask is not None:
        scores = scores.masked_fill(~attn_mask, -torch.inf)
    return scores.softmax(-1) @ v


def conv1d(x, weight, bias=None, groups=1):
    """The library's direct convolution."""
    return F.conv1d(x.mT, weight, bias, padding=weight.shape[2] // 2, groups=groups).mT


# ------------------------------------------------------------------------------------------ layers

SDPA = "torch.nn.functional.scaled_dot_product_attention"
MEGA = {"d_hidden": 256, "d_attention": 64}
FFT = {"models.long_conv": fft_conv}

# name: (batch, block, its arguments at length L, {what is replaced: by what} in its naive form)
LAYERS = {
    "S4 N=64": (4, "s4", lambda L: {"max_length": L}, FFT | {"models.dplr_kernel": dplr_kernel}),
    "S4D N=64": (4, "s4d", lambda L: {}, FFT | {"models.diagonal_kernel": diagonal_kernel}),
    "S5 P=64": (4, "s5", lambda L: {"d_state": 128, "norm": "layer"}, {"models.state_space": state_space}),
    "LRU N=128": (4, "lru", lambda L: {"norm": "layer"}, {"models.state_space": state_space}),
    "DLR N=1024": (4, "dlr", lambda L: {}, FFT | {"models.dlr_kernel": dlr_kernel}),
    "MEGA EMA n=16": (4, "ema", lambda L: {}, FFT | {"models.ema_kernel": ema_kernel}),
    "SGConv d=32": (4, "sgconv", lambda L: {"max_length": L}, {"models.long_conv": long_conv}),
    "gMLP H=128": (
        4,
        "gmlp",
        lambda L: {"max_length": L, "d_hidden": 128},
        {"models.toeplitz_gate_conv": toeplitz_gate_conv},
    ),
    "conv K=61": (4, "conv", lambda L: {"kernel": 61}, {"models.chunked_conv1d": conv1d}),
    "MEGA block": (1, "mega", lambda L: {"max_length": L} | MEGA, FFT | {"models.ema_kernel": ema_kernel}),
    "rotary attention": (1, "attention", lambda L: {"rotary": "full"}, {SDPA: attention}),
}


def make_layer(name, L, d_model=128):
    batch, block, arguments, _ = LAYERS[name]
    torch.manual_seed(0)
    classes = models.BLOCKS | {"ema": models.DampedEMA, "attention": models.Attention}
    layer, mask = classes[block](d_model, **arguments(L)), torch.ones(batch, L, dtype=torch.bool)
    x = torch.randn(batch, L, d_model, requires_grad=True)
    return (lambda: layer(x)) if block == "ema" else (lambda: layer(x, mask))


def one_pass(layer):
    y = layer()
    y.backward(torch.ones_like(y))
    return y


def milliseconds(layer, args, repeats):
    clock = {"wall": time.perf_counter, "cpu": time.process_time}[args.clock]
    one_pass(layer)
    times = []
    for _ in range(repeats):
        start = clock()
        one_pass(layer)
        times.append(clock() - start)
    return 1000 * min(times)


def measure_memory(name, L):
    """Peak over the state before the pass, in 10^6 bytes; meant for a process of its own."""
    layer, cpu = make_layer(name, L), torch.device("cpu")
    one_pass(make_layer(name, 64))  # libraries, threads, FFT plans
    common.reset_peak(cpu)
    before = common.peak_bytes(cpu)
    one_pass(layer)
    return (common.peak_bytes(cpu) - before) / 1e6


def bench_layers(args):
    """A row for each layer: ms_<L>, naive_ms_<L> and ratio_<L> for each length L, and peak_mb_<L> at
    --memory-length, None where that process failed."""
    chosen = [
        name for name in LAYERS if not args.only or any(name.lower().startswith(o.lower()) for o in args.only)
    ]
    if not chosen:
        raise common.UserError(f"--only: no layer begins so; there are {', '.join(LAYERS)}")
    for name in chosen:
        row = {"part": "layers", "layer": name, "batch": LAYERS[name][0], "d_model": 128}
        for L in args.lengths:
            layer = make_layer(name, L)
            with torch.no_grad():
                want = layer()
            row[f"ms_{L}"] = milliseconds(layer, args, args.repeats)
            with contextlib.ExitStack() as stack:
                for target, naive in LAYERS[name][3].items():
                    stack.enter_context(mock.patch(target, naive))
                with torch.no_grad():
                    got = layer()
                # float32, and the naive forms are the less exact ones: a check that both compute the same
                # thing.
                if (got - want).abs().max() > 0.01 * want.abs().max():
                    raise SystemExit(f"{name}: the naive version computes something else at L = {L}")
                row[f"naive_ms_{L}"] = milliseconds(layer, args, max(1, args.repeats // 3))
            row[f"ratio_{L}"] = row[f"naive_ms_{L}"] / row[f"ms_{L}"]
        if args.memory_length:
            command = [
                sys.executable,
                __file__,
                "layers",
                "--memory-of",
                name,
                "--memory-length",
                str(args.memory_length),
            ]
            done = subprocess.run(command, capture_output=True, text=True)
            row[f"peak_mb_{args.memory_length}"] = float(done.stdout) if done.returncode == 0 else None
        yield row


# ------------------------------------------------------------------------------------------ data


def per_second(work, seconds):
    """work() -> items made; called for about `seconds` after one call to warm up. -> (items per second of
    this process's CPU time, which neighbours do not change much, and per second of wall time)."""
    work()
    items, cpu, wall = 0, time.process_time(), time.perf_counter()
    while time.perf_counter() - wall < seconds:
        items += work()
    return items / (time.process_time() - cpu), items / (time.perf_counter() - wall)


def bench_data(args):
    """Rows {what, unit, per CPU second, per wall second} of generators and augmentations, in this process;
    and the share of padding in an epoch of the texts and of ListOps where they are in --data-dir."""
    block = itertools.count()

    def images(size, level):
        return len(pathfinder.generate_block(size, level, 0, next(block)).label)

    for size, level in ((32, "easy"), (32, "intermediate"), (32, "hard"), (128, "hard"), (256, "hard")):
        yield data_row(
            f"Pathfinder {size} {level}",
            "images",
            per_second(functools.partial(images, size, level), args.seconds),
        )

    tokens, offsets, label = data.generate_listops(2000, seed=0, progress=False)
    seed = itertools.count(1)

    def expressions():
        return len(data.generate_listops(2000, seed=next(seed), progress=False)[2])

    yield data_row("ListOps generator", "examples", per_second(expressions, args.seconds))
    split = data.Split(*map(torch.from_numpy, (tokens, offsets, label)))
    task = data.Task("listops", 10, 17, data.LISTOPS_FIRST_ID, 2000, split, split, split, source={})
    noise, batches = (
        torch.Generator(),
        [task.gather("train", index) for index in task.plan(64, torch.Generator())],
    )

    def shuffled():
        for batch in batches:
            listops.shuffle_listops(batch.tokens, batch.mask, noise)
        return len(label)

    yield data_row("ListOps shuffling, batch 64", "examples", per_second(shuffled, args.seconds))
    symbols = [data.LISTOPS_SYMBOLS[token] for token in tokens.tolist()]
    texts = [symbols[start:stop] for start, stop in itertools.pairwise(offsets.tolist())]
    by_stack = per_second(lambda: len([shuffle_with_a_stack(text) for text in texts]), args.seconds)
    yield data_row("ListOps shuffling, the usual way", "examples", by_stack)
    views = data.AugmentedImages(torch.randint(256, (64, 32, 32, 3), dtype=torch.uint8).numpy(), seed=0)
    epoch = itertools.count()

    def augmented():
        e = next(epoch)
        return len([views[(e, i)] for i in range(64)])

    yield data_row("CIFAR-10 augmentation, one worker", "images", per_second(augmented, args.seconds))
    for name, batch_size in (("text", 16), ("listops", 32)):
        if not data.is_present(name, args.data_dir):
            continue
        task = data.load(name, args.data_dir, augment="none")
        for bucket in (False, True):
            plan = task.plan(batch_size, torch.Generator().manual_seed(0), bucket)
            order = "bucketed" if bucket else "random"
            share = f"{padding(task, plan, rounded=True):.1f}% padding"
            yield data_row(f"{name}, batch {batch_size}, {order}", share, (None, None))


def shuffle_with_a_stack(symbols):
    """ListOps shuffling as it is usually written: one pass over one expression, a stack of finished
    arguments."""
    stack = []
    for symbol in symbols:
        if symbol == "]":
            operator, *arguments = stack.pop()
            random.shuffle(arguments)
            done = f"{operator} {' '.join(arguments)} ]"
            if not stack:
                return done
            stack[-1].append(done)
        elif symbol[0] == "[":
            stack.append([symbol])
        else:
            stack[-1].append(symbol)


def data_row(what, unit, rates):
    return {
        "part": "data",
        "what": what,
        "unit": unit,
        "per CPU second": rates[0],
        "per wall second": rates[1],
    }


# ------------------------------------------------------------------------------------------ cells

CONV = {f"conv-{kernel}": kernel for kernel in exp_locality.TABLE1}
CELLS = {  # model: (its table, its script)
    **dict.fromkeys(CONV, ("Table 1", exp_locality)),
    **dict.fromkeys(exp_multitask.TABLES, ("Table 2", exp_multitask)),
    **dict.fromkeys(exp_kernels.PRINTED, ("Table 3", exp_kernels)),
}
SIZES = {  # training, validation and test examples that the hours are for, whatever was loaded
    "image": (45_000, 5_000, 10_000),
    "pathfinder": (480_000, 20_000, 20_000),
    "text": (22_500, 2_500, 25_000),
    "retrieval": (147_086, 18_090, 17_437),
    "listops": (96_000, 2_000, 2_000),
}


def recipe(model, name):
    if model in CONV:
        return exp_locality.recipe(name) | {"kernel": CONV[model]}
    return CELLS[model][1].recipe(model, name)


def load_cell(name, hp, args, limit=None):
    """(task, where its examples come from)"""
    options = {"augment": hp["augment"], "denoise": hp["technique"] == "denoising"}
    if args.smoke:
        return data.load(name, args.data_dir, smoke=True, **options), "smoke"
    if name in ("text", "retrieval", "listops") and data.is_present(name, args.data_dir):
        return data.load(name, args.data_dir, limit=limit, **options), "real"
    return stand_in(name, limit or 50 * hp["batch_size"], options)


def stand_in(name, examples, options):
    """A task of that many random examples whose lengths are those of the real one."""
    task, draw = data.load(name, "", smoke=True, **options), np.random.default_rng(0)
    lengths, origin = np.full(examples * task.docs, task.max_length), f"random, all {task.max_length} long"
    if name == "text":  # IMDB: mean 1,299, standard deviation 901, 2.9 % at the cap
        lengths = np.exp(draw.normal(6.96, 0.67, examples)).clip(1, task.max_length).astype(np.int64)
        origin = f"random, log-normal lengths, mean {lengths.mean():.0f}"
    offsets = np.concatenate([[0], lengths.cumsum()])
    tokens = draw.integers(0, 256, offsets[-1], dtype=np.uint8)
    if name == "listops":
        tokens, offsets, _ = data.generate_listops(examples, seed=0, progress=False)
        origin = "generated"
    label = torch.zeros(examples, dtype=torch.int64)
    train = data.Split(torch.from_numpy(tokens), torch.from_numpy(offsets), label)
    colours = (examples, 32, 32, 3)
    rgb = draw.integers(0, 256, colours, dtype=np.uint8) if name == "image" else None
    return replace(task, train=train, rgb=rgb), origin


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


def train_batches(network, optimizer, batches, hp, autocast):
    """What common.fit does with the batches of an epoch, bookkeeping on the device included -> losses."""
    totals, losses = {}, []
    for batch in batches:
        batch_loss = common.train_step(network, optimizer, batch, common.multitask_loss, hp, autocast, totals)
        common.add_up(totals, {"loss": (batch_loss * batch.examples, batch.examples)})
        losses.append(batch_loss)
    return losses


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
    """Train on `batches` -> {flop, bytes, positions, padded}, sums over them; see the docstring above."""
    work = {"flop": 0, "bytes": 0, "positions": 0, "padded": 0}

    def count(module, inputs, output):
        tensors = [x for x in (*inputs, output) if x.is_floating_point()]
        work["bytes"] += 3 * item_size * sum(x.numel() for x in tensors)

    def counted():
        for batch in batches:
            work["positions"] += int(batch.positions)
            work["padded"] += batch.mask.numel()
            work["bytes"] += 12 * sum(p.numel() for p in network.parameters())
            yield batch

    hooks = [layer.register_forward_hook(count) for layer in (*network.children(), *network.blocks)]
    with FlopCounterMode(display=False, custom_mapping=FLOP) as counter:
        train(counted())
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


def augmentation_milliseconds(task, batch_size):
    """ms a batch from the worker processes, when nothing holds them up and all are busy."""
    n = 8 * max(2, min(8, pathfinder.usable_cores()))
    plan = list(itertools.islice(itertools.cycle(task.plan(batch_size, torch.Generator())), n))
    arrived = [time.perf_counter() for _ in task.training_batches(plan, torch.Generator(), 0)]
    return 1000 * (arrived[-1] - arrived[n // 2 - 1]) / (n // 2)


def projected_steps(name, hp):
    """Of a whole cell; a third of a step for each batch of validation (every epoch) and test (twice)."""
    train, val, test = SIZES[name]
    evaluations = (hp["epochs"] * val + 2 * test) / hp["batch_size"]
    return math.ceil(train / hp["batch_size"]) * hp["epochs"] + evaluations / 3


def measure_step(model, name, args):
    """The row of one cell."""
    device, hp = common.resolve_device(args.device), recipe(model, name)
    dtype = torch.bfloat16 if common.use_bf16(args.amp, device) else torch.float32
    autocast = torch.autocast(device.type, torch.bfloat16, enabled=dtype == torch.bfloat16)
    if args.smoke:
        hp |= {row: value for row, value in exp_kernels.SMOKE.items() if row in hp}
    task, origin = load_cell(name, hp, args)
    input_ms = None if task.rgb is None else augmentation_milliseconds(task, hp["batch_size"])
    flop_rate, copy_rate = machine_rates(device, dtype)
    task, noise = replace(task, rgb=None).to(device), torch.Generator(device).manual_seed(1)
    torch.manual_seed(0)
    network = CELLS[model][1].build(task, hp).to(device).train()
    optimizer = common.make_optimizer(network, hp)
    train = functools.partial(train_batches, network, optimizer, hp=hp, autocast=autocast)
    plan = task.plan(hp["batch_size"], torch.Generator().manual_seed(0), True)
    chosen, longest = sample(task, plan, args.steps or (4 if device.type == "cpu" else 20))

    def epoch(plan=chosen):
        return train(task.training_batches(plan, noise, 0))

    work = count_work(network, task.training_batches(chosen, noise, 0), train, dtype.itemsize)
    if args.compile:
        network.compile()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    common.reset_peak(device)
    epoch([longest])
    if args.compile or device.type != "cpu":  # every shape once more, as it will be timed
        epoch()
    seconds = min(seconds_of(epoch, device) for _ in range(args.rounds))
    work, ms = {key: value / len(chosen) for key, value in work.items()}, 1000 * seconds / len(chosen)
    floor = 1000 * max(work["flop"] / flop_rate, work["bytes"] / copy_rate)
    hours = projected_steps(name, hp) * max(ms, input_ms or 0) / 3.6e6
    return {
        "examples": origin,
        "batch": hp["batch_size"],
        "ms": ms,
        "input ms": input_ms,
        "tokens/s": 1000 * work["positions"] / ms,
        "pad %": 100 * (1 - work["positions"] / work["padded"]),
        "peak GB": common.peak_gb(device),
        "GFLOP": work["flop"] / 1e9,
        "GB": work["bytes"] / 1e9,
        "floor ms": floor,
        "floor %": 100 * floor / ms,
        "hours": None if args.smoke else hours,
        "amp": str(dtype).removeprefix("torch."),
        "compiled": bool(args.compile),
        "steps timed": len(chosen),
        "params": sum(p.numel() for p in network.parameters()),
        "TFLOP/s": flop_rate / 1e12,
        "copy GB/s": copy_rate / 1e9,
        "device": common.device_name(device),
    }


STEP_COLUMNS = ("model", "task", "examples", "batch", "ms", "input ms", "tokens/s", "pad %", "peak GB")
STEP_COLUMNS += ("GFLOP", "floor ms", "floor %", "hours", "note")


def print_step(args):
    """The child process of one cell: its row as the last line."""
    try:
        with contextlib.redirect_stdout(sys.stderr):
            row = measure_step(*args.cell, args)
    except (common.OutOfMemory, MemoryError, RuntimeError) as error:
        if not common.is_out_of_memory(error):
            raise
        row = {"note": "out of memory"}
    print(json.dumps(row))


def bench_step(args):
    """Rows of STEP_COLUMNS and more. This process stays off the device, which belongs to the cells'."""
    flags = ["--device", args.device, "--amp", args.amp, "--rounds", args.rounds, "--threads", args.threads]
    flags += ["--data-dir", args.data_dir] + (["--steps", args.steps] if args.steps else [])
    flags += ["--compile"] * bool(args.compile) + ["--smoke"] * args.smoke
    for model, name in itertools.product(args.model, args.task):
        command = [sys.executable, __file__, "step", "--cell", model, name, *map(str, flags)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode == 0:
            row = json.loads(done.stdout.splitlines()[-1])
        elif done.returncode == -9:
            row = {"note": "out of memory: killed by the system"}
        else:  # the cause of a CUDA error stands above its last line
            print(f"{model}, {name} failed:", *done.stderr.splitlines()[-40:], sep="\n", file=sys.stderr)
            row = {"note": f"failed: {(done.stderr.splitlines() or ['?'])[-1][:120]}"}
        row = {"part": "step", "table": CELLS[model][0], "model": model, "task": name} | row
        yield dict.fromkeys(STEP_COLUMNS) | row


def hours_rows(rows):
    """Projected hours of each cell, and of each table all of whose cells are known."""
    hours = {(row["model"], row["task"]): row["hours"] for row in rows}
    tasks = [name for name in SIZES if any(row["task"] == name for row in rows)]

    def line(title, values):
        values = {name: values(name) for name in tasks}
        total = None if None in values.values() else sum(values.values())
        return {"part": "hours", "hours": title} | values | {"sum": total}

    def table_hours(table, name):
        every = [model for model in CELLS if CELLS[model][0] == table]
        known = {model: hours[model, name] for model in every if hours.get((model, name)) is not None}
        if table == "Table 1" and {"conv-5", "conv-61"} <= known.keys():
            kernels = [CONV[model] for model in known]
            return float(np.interp(list(CONV.values()), kernels, list(known.values())).sum())
        return sum(known.values()) if len(known) == len(every) else None

    cells = [line(m, lambda name, m=m: hours.get((m, name))) for m in dict.fromkeys(r["model"] for r in rows)]
    tables = dict.fromkeys(row["table"] for row in rows)
    return cells + [line(f"{t}, all of it", lambda name, t=t: table_hours(t, name)) for t in tables]


# ------------------------------------------------------------------------------------------ memory

CARDS = (8, 12, 24)  # GB


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
        with contextlib.ExitStack() as as_on_a_gpu:
            as_on_a_gpu.enter_context(contextlib.redirect_stdout(sys.stderr))
            as_on_a_gpu.enter_context(mock.patch("models.chunked_conv1d", conv1d))
            as_on_a_gpu.enter_context(mock.patch("models.surely_full", lambda mask: False))
            as_on_a_gpu.enter_context(mock.patch("models.MOST_SCORES", {}))
            task = data.load(name, "", augment="none", denoise=hp["technique"] == "denoising", smoke=True)
            network = CELLS[model][1].build(task, hp)
            kept_by = functools.cache(functools.partial(kept_for_backward, network, task))
            state = 16 * sum(p.numel() for p in network.parameters())  # weight, gradient, two moments
            asked = state, kept_by, hp["batch_size"], not common.batch_normed(network)
            row = {"part": "memory", "model": model, "task": name, "batch": hp["batch_size"]}
            row |= {"state GB": state / 1e9, "kept GB": kept_by(hp["batch_size"]) / 1e9}
            row |= {f"{card} GB": largest_part(card, *asked) for card in CARDS}
        yield row


# ------------------------------------------------------------------------------------------ loop


def transposing(network):
    """The same model with its convolutions as a tutorial writes them: Conv1d wants (B, D, L)."""

    def forward(block, x, mask):
        z = block.norm(x) * mask.unsqueeze(-1)
        z = F.relu(block.conv(z.transpose(1, 2)).transpose(1, 2))
        return x + block.dropout(block.linear(z))

    for block in network.blocks:
        block.forward = functools.partial(forward, block)
    return network


def plain_loss(network, batch):
    """common.multitask_loss as a tutorial writes it: the logits of padding are made, then ignored."""
    features, mask = network(batch.tokens, batch.mask), batch.mask.unsqueeze(-1)
    pooled = (features * mask).sum(1) / mask.sum(1)
    loss = F.binary_cross_entropy_with_logits(network.head(pooled)[:, 0], batch.label.float())
    logits = network.denoise_head(features)
    return loss + F.cross_entropy(logits.mT, batch.target, ignore_index=data.PAD)


class Reviews(torch.utils.data.Dataset):
    """Item i -> (ids, label) of training document i."""

    def __init__(self, task):
        self.documents = [
            ids[: task.max_length].long() + task.first_id
            for ids in task.train.tokens.split(task.train.offsets.diff().tolist())
        ]
        self.label = task.train.label

    def __len__(self):
        return len(self.label)

    def __getitem__(self, i):
        return self.documents[i], self.label[i]


def collate(vocab, examples):
    """Pad to the longest, then corrupt."""
    documents, label = zip(*examples)
    tokens = torch.nn.utils.rnn.pad_sequence(documents, batch_first=True, padding_value=data.PAD)
    batch = data.Batch(tokens, tokens != data.PAD, torch.stack(label), examples=len(label))
    return data.corrupt(batch, None, vocab)


def plain_batches(task, plan, device):
    """Batches of a plan from a DataLoader, with workers where there is a device to keep busy."""
    workers = {"num_workers": 4, "persistent_workers": True, "pin_memory": True}
    loader = torch.utils.data.DataLoader(
        Reviews(task),
        batch_sampler=[index.tolist() for index in plan],
        collate_fn=functools.partial(collate, task.vocab),
        **(workers if device.type == "cuda" else {}),
    )
    while True:
        for batch in loader:
            there = (x.to(device, non_blocking=True) if torch.is_tensor(x) else x for x in batch)
            yield data.Batch(*there)


def plain_epoch(network, optimizer, batches):
    """The loop of a tutorial -> losses."""
    losses = []
    for batch in batches:
        optimizer.zero_grad()
        loss = plain_loss(network, batch)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


VARIANTS = {
    "(a) tutorial": {"plain": True},
    "(b) ours": {},
    "(c) ours, compiled": {"compiled": True},
    "(b) without buckets": {"bucket": False},
    "(b) without bf16": {"amp": False},
    "(b) without fused AdamW": {"fused": False},
    "(b) with Conv1d on transposed copies": {"transposed": True},
    "(b) waiting for every loss": {"wait": True},
}


def make_variant(
    task, device, args, plain=False, compiled=False, bucket=True, amp=True, fused=True, transposed=False,
    wait=False,
):  # fmt: skip
    """(epoch, plan): epoch(n) trains on the first n batches of the plan, a sample of an epoch, or on all."""
    hp = recipe("conv-5", "text") | ({"batch_size": 16, "d_model": 32} if args.smoke else {})
    plan = task.plan(hp["batch_size"], torch.Generator().manual_seed(0), bucket and not plain)
    plan, _ = sample(task, plan, args.steps or (8 if device.type == "cpu" else 50))
    torch.manual_seed(0)
    network = exp_locality.build(task, hp).to(device).train()
    if plain or transposed:
        transposing(network)

    if plain:
        optimizer = torch.optim.AdamW(network.parameters(), lr=hp["lr"], weight_decay=hp["weight_decay"])
        batches = plain_batches(task, plan, device)

        def epoch(n=None):
            plain_epoch(network, optimizer, itertools.islice(batches, n or len(plan)))
    else:
        optimizer = common.make_optimizer(network, hp)
        if not fused:
            groups = common.parameter_groups(network, hp)
            optimizer = torch.optim.AdamW(groups, betas=optimizer.defaults["betas"])
        amp = amp and common.use_bf16(args.amp, device)
        autocast = torch.autocast(device.type, torch.bfloat16, enabled=amp)
        there, noise = task.to(device), torch.Generator(device).manual_seed(1)
        if compiled:
            network.compile()

        def epoch(n=None):
            for part in [[index] for index in plan[:n]] if wait else [plan[:n]]:
                batches = there.training_batches(part, noise, 0)
                losses = train_batches(network, optimizer, batches, hp, autocast)
                if wait:
                    losses[-1].item()

    return epoch, plan


def can_compile(device):
    if device.type == "cuda":
        return importlib.util.find_spec("triton") is not None
    return any(map(shutil.which, ("g++", "clang++", "c++")))


def start_variants(task, device, args):
    """({variant: (epoch, plan)}, warmed up, {variant: why it is not among them})"""
    variants, notes = {}, {}
    compiler = can_compile(device) if args.compile is None else args.compile
    for name, options in VARIANTS.items():
        if options.get("compiled") and not compiler:
            notes[name] = "not compiled here"
        elif "amp" in options and not common.use_bf16(args.amp, device):
            notes[name] = "as (b): no bf16 here"
        else:
            print(f"warming up {name}", file=sys.stderr)
            epoch, plan = make_variant(task, device, args, **options)
            try:
                epoch(2 if device.type == "cpu" else None)
                variants[name] = epoch, plan
            except Exception as error:  # compilers fail in many ways: the other rows are worth having
                if not options.get("compiled"):
                    raise
                traceback.print_exc()
                notes[name] = f"failed: {type(error).__name__}"
    return variants, notes


def bench_loop(args):
    """Rows {variant, bytes/s, its ratio to (a) and (b), ...}, all variants timed in turn."""
    device, hp = common.resolve_device(args.device), recipe("conv-5", "text")
    task, origin = load_cell("text", hp, args, limit=50 * hp["batch_size"])
    variants, notes = start_variants(task, device, args)
    times, peaks, rates = {name: [] for name in variants}, {}, {}
    for name in [*variants] * args.rounds:
        common.reset_peak(device)
        times[name].append(seconds_of(variants[name][0], device))
        peaks[name] = common.peak_gb(device) if device.type == "cuda" else None
    for name, (_, plan) in variants.items():
        rates[name] = sum(int(task.lengths["train"][index].sum()) for index in plan) / min(times[name])
    for name in VARIANTS:
        row = {"part": "loop", "variant": name, "examples": origin, "device": common.device_name(device)}
        row |= dict.fromkeys(("bytes/s", "to (a)", "to (b)", "ms", "pad %", "peak GB")) | {
            "note": notes.get(name)
        }
        if name in variants:
            plan, (a, b) = variants[name][1], itertools.islice(rates.values(), 2)
            row |= {"bytes/s": rates[name], "to (a)": rates[name] / a, "to (b)": rates[name] / b}
            row |= {"ms": 1000 * min(times[name]) / len(plan), "peak GB": peaks[name]}
            row["pad %"] = padding(task, plan, rounded=not VARIANTS[name].get("plain"))
        yield row


def padding(task, plan, rounded):
    """Percent of the positions of a plan's batches."""
    lengths = [task.lengths["train"][index] for index in plan]
    longest = [task.padded(x.max()) if rounded else x.max() for x in lengths]
    return 100 * (
        1 - sum(int(x.sum()) for x in lengths) / sum(len(x) * int(m) for x, m in zip(lengths, longest))
    )


PARTS = {
    "data": bench_data,
    "layers": bench_layers,
    "memory": bench_memory,
    "loop": bench_loop,
    "step": bench_step,
}

# ------------------------------------------------------------------------------------------ output


def machine():
    load = f"{os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else "unknown"
    return {
        "cpu": common.cpu_name(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "load": load,
    }


def markdown(rows, columns=None):
    """A Markdown table of rows with equal keys, numbers with as many digits as they deserve."""
    columns = columns or [key for key in rows[0] if key not in ("part", "device")]

    def cell(value):
        if isinstance(value, float):
            return f"{value:.3g}" if value < 100 else f"{value:,.0f}"
        return "—" if value is None else str(value)

    lines = [columns, ["---"] * len(columns)] + [[cell(row[key]) for key in columns] for row in rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def require_writable(path):
    """Raise UserError, now and not after the first row, where rows cannot be appended to `path` or None."""
    try:
        if path:
            path.parent.mkdir(parents=True, exist_ok=True)
            open(path, "a").close()
    except OSError as error:
        raise common.UserError(f"cannot write --out {path}: {error.strerror}; give another file") from error


def run_part(part, args):
    """Measure one part and print its tables; rows go to --out as they come."""
    where, rows = machine(), []
    for row in PARTS[part](args):
        rows.append(row)
        print(f"\r{len(rows)} rows, {row}", file=sys.stderr)
        if args.out:
            with open(args.out, "a") as f:
                f.write(json.dumps(row | where) + "\n")
    device = next((row["device"] for row in rows if row.get("device")), None)
    where |= {"device": device} if device else {}
    print(f"### {part}\n\n" + ", ".join(f"{key} {value}" for key, value in where.items()) + "\n")
    print(markdown(rows, STEP_COLUMNS if part == "step" else None) + "\n")
    if part == "step":
        print("Projected hours on this machine\n\n" + markdown(hours_rows(rows)) + "\n")
        failed = sum((row["note"] or "").startswith("failed") for row in rows)
        if failed:
            raise common.UserError(f"{failed} of {len(rows)} cells failed, for the reasons above")


def add_flags(parser, parts):
    """The flags of these parts, each once."""
    add, here = parser.add_argument, {*parts}.intersection
    if here({"layers"}):
        add("--only", nargs="+", metavar="NAME", help="layers whose name starts so, e.g. s4 dlr mega")
        text = "(default 1024 4096)"
        add("--lengths", nargs="+", type=common.positive_int, default=[1024, 4096], metavar="L", help=text)
        text = "timed passes, naive form a third (default 9)"
        add("--repeats", type=common.positive_int, default=9, metavar="N", help=text)
        text = "(default 16384; 0: leave it out)"
        add("--memory-length", type=common.natural_int, default=16384, metavar="L", help=text)
        text = "cpu: for a busy machine, 1 thread"
        add("--clock", choices=("wall", "cpu"), default="wall", help=text)
        add("--memory-of", help=argparse.SUPPRESS)
    if here({"data"}):
        add("--seconds", type=common.positive_float, default=10.0, metavar="S", help="a row (default 10)")
    if here({"data", "loop", "step"}):
        add("--data-dir", type=Path, default=Path("data"), metavar="DIR", help="(default data)")
    if here({"memory", "step"}):
        some = [model for model in CELLS if model not in list(CONV)[1:-1]]
        text = f"of {', '.join(CELLS)} (default: of the convolutions the shortest and the longest)"
        add("--model", nargs="+", choices=CELLS, default=some, metavar="MODEL", help=text)
        text = f"of {', '.join(SIZES)} (default: all)"
        add("--task", nargs="+", choices=SIZES, default=[*SIZES], metavar="TASK", help=text)
    if here({"step"}):
        add("--cell", nargs=2, help=argparse.SUPPRESS)
    if here({"loop", "step"}):
        add("--device", choices=("auto", "cpu", "cuda", "mps"), default="auto", help="(default auto)")
        add("--amp", choices=("auto", "bf16", "off"), default="auto", help="bf16 autocast (default auto)")
        text = "compile the models (default: only in loop's variant (c), where there is a compiler)"
        add("--compile", action=argparse.BooleanOptionalAction, help=text)
        text = "batches timed (default: loop 50 and step 20, on a CPU 8 and 4)"
        add("--steps", type=common.positive_int, metavar="N", help=text)
        text = "times that they are timed, the fastest counts (default 3)"
        add("--rounds", type=common.positive_int, default=3, help=text)
        add("--smoke", action="store_true", help="tiny models and data: does it run at all?")
    text = "CPU threads (default: all)"
    add("--threads", type=common.positive_int, default=torch.get_num_threads(), metavar="N", help=text)
    add("--out", "--json", type=Path, metavar="FILE", help="append one JSON line a row")


def main(argv=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parts = parser.add_subparsers(dest="part", required=True, metavar="PART")
    about = {
        "data": "how fast data is made, shuffled, augmented",
        "layers": "every layer beside its naive form, on the CPU",
        "memory": "which cells fit cards of 8, 12 and 24 GB, by calculation",
        "loop": "a tutorial's training loop beside ours",
        "step": "one training step of the cells of Tables 1 to 3",
    }
    for part, words in about.items():
        add_flags(parts.add_parser(part, help=words), [part])
    add_flags(parts.add_parser("all", help="all of these, one after the other"), [*about])
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    if getattr(args, "memory_of", None):
        print(measure_memory(args.memory_of, args.memory_length))
        return
    with common.exit_cleanly(data.DataError):
        if getattr(args, "cell", None):
            return print_step(args)
        require_writable(args.out)
        for part in PARTS if args.part == "all" else [args.part]:
            run_part(part, args)


if __name__ == "__main__":
    main()
