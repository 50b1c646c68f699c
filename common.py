"""One training loop for every table, with its schedule, checkpoints, records, tables and flags. Knows
no task, no model.

A script does, for each cell of its table (exp_locality.py is the shortest example):

    paper = column(TABLE, TASKS, name)     the paper's column ...
    hp    = paper | overrides(args)        ... overridden by the flags that were given
    task  = data.load(name, ...)           ready tensors
    run_cell(args, exp, task, ...)         skip it if its record exists; else build, fit, record

`fit` is the loop. run_cell calls it once; a script whose cell is two trainings (exp_spt.py) calls open_run,
fit and record itself.

Started by torchrun, the same script trains one cell on all ranks: each computes its share of every batch,
gradients are summed, the global batch and the record stay what they are on one GPU. Rank 0 alone writes and
prints. All ranks need the same --data-dir and --out (on several machines: a shared file system).
"""

import argparse
import atexit
import contextlib
import datetime
import errno
import hashlib
import io
import itertools
import json
import math
import os
import platform
import re
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn import functional as F
from tqdm import tqdm

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

# A kill costs at most this much training, or an epoch where that is shorter (the tests shorten it); inside an
# evaluation, that evaluation.
CHECKPOINT_SECONDS = float(os.environ.get("LRA_CHECKPOINT_SECONDS", 300))
CHECK_STEPS = 50  # steps between looks at the loss: each look makes the host wait for the device
EXIT_USER = 2
EXIT_CONTINUE = 75  # EX_TEMPFAIL of sysexits.h: the same command continues
EXIT_CTRL_C, EXIT_NO_READER = 130, 141  # as shells say it


def same_command():
    """What continues a run that was stopped."""
    return "the same command" + " without --fresh" * ("--fresh" in sys.argv)


class UserError(Exception):
    """A mistake that the user can mend. The message is one sentence that says how."""


class Interrupted(Exception):
    """The time limit or SIGTERM: a checkpoint is written, the same command continues."""


@contextlib.contextmanager
def exit_cleanly(*expected):
    """Turn what a user can mend into one sentence on stderr and exit code 2, an interruption into exit
    code 75, Ctrl-C into 130; SIGTERM interrupts from here on, also where fit does not look after it.

    `expected` are further exception types whose message is such a sentence. Anything else is our bug:
    traceback.
    """
    before = {number: signal.getsignal(number) for number in STOPPING}
    answer_signals(STOPPING)
    try:
        yield
    except Interrupted as stop:
        last_words(stop)
        raise SystemExit(EXIT_CONTINUE) from None
    except KeyboardInterrupt as stop:
        last_words(str(stop) or f"interrupted; give {same_command()} again")
        raise SystemExit(EXIT_CTRL_C) from None
    except (UserError, *expected) as error:
        last_words(f"error: {error}")
        raise SystemExit(EXIT_USER) from None
    except BrokenPipeError:  # `| head`: nobody reads on
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes it at the end
        raise SystemExit(EXIT_NO_READER) from None
    finally:
        answer_signals(before)


def last_words(text):
    """To stderr, if anybody reads it: with `2>&1 | tee log` Ctrl-C has ended tee before us."""
    with contextlib.suppress(OSError):
        print(text, file=sys.stderr, flush=True)


# ------------------------------------------------------------------------------------------ flags


def positive_int(text):
    if not re.fullmatch(r"\d{1,9}", text) or int(text) == 0:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1 (to 999999999), not {text!r}")
    return int(text)


def natural_int(text):
    if not re.fullmatch(r"\d{1,9}", text):
        raise argparse.ArgumentTypeError(f"must be a whole number from 0 to 999999999, not {text!r}")
    return int(text)


def positive_float(text):
    with contextlib.suppress(ValueError):
        if 0 < float(text) < math.inf:
            return float(text)
    raise argparse.ArgumentTypeError(f"must be a positive number, not {text!r}")


def non_negative_float(text):
    with contextlib.suppress(ValueError):
        if 0 <= float(text) < math.inf:
            return float(text)
    raise argparse.ArgumentTypeError(f"must be 0 or a positive number, not {text!r}")


def duration(text):
    """ "90s", "9m", "1.5h" or plain seconds -> seconds."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text)
    if not match or float(match[1]) == 0:
        raise argparse.ArgumentTypeError(f"must be a time such as 90s, 9m or 1.5h, not {text!r}")
    return float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]]


def add_common_flags(parser, tasks):
    """The flags that every experiment has; `tasks` are the columns of its table."""
    what = parser.add_argument_group("what to run")
    what.add_argument(
        "--task",
        nargs="+",
        choices=[*tasks, "all"],
        metavar="TASK",
        help=f"one or more of {', '.join(tasks)}, or all",
    )
    what.add_argument("--seed", type=natural_int, default=0, help="first seed (default 0)")
    what.add_argument(
        "--seeds",
        type=positive_int,
        default=1,
        metavar="N",
        help="run N seeds: seed, seed + 1, ... (default 1)",
    )
    what.add_argument(
        "--limit",
        type=positive_int,
        metavar="N",
        help="train on N examples only (nested subsets), validate on at most N, test on all",
    )
    what.add_argument("--max-length", type=positive_int, metavar="L", help="cut texts after L bytes")
    what.add_argument(
        "--smoke",
        action="store_true",
        help="seconds on a CPU: tiny data, narrow model, a few epochs; never enters a table",
    )
    what.add_argument(
        "--report",
        nargs="*",
        metavar="FILE",
        help="print the table from records (default: OUT/results.jsonl and results/) and exit",
    )

    table = parser.add_argument_group(
        "overrides of the paper's table (as a rule the record is then marked reduced)"
    )
    table.add_argument("--epochs", type=positive_int, metavar="N", help="training epochs")
    table.add_argument("--lr", type=positive_float, help="learning rate")
    table.add_argument(
        "--batch-size",
        type=positive_int,
        metavar="B",
        help="examples per optimiser step, over all parts and ranks",
    )
    table.add_argument("--weight-decay", type=non_negative_float, metavar="WD", help="AdamW's weight decay")
    table.add_argument(
        "--set-last-tenth",
        action="store_true",
        default=None,  # not given; see overrides
        help="set the rate of the last 10 %% of the steps to 0.1 x LR, as paper A's code does, also where "
        "plateaus had brought it lower",
    )

    how = parser.add_argument_group("how to run it (no part of what makes a cell)")
    how.add_argument(
        "--data-dir",
        type=Path,
        default=Path("data"),
        metavar="DIR",
        help="where data is kept or made (default data)",
    )
    how.add_argument(
        "--out", type=Path, default=Path("runs"), metavar="DIR", help="records and checkpoints (default runs)"
    )
    how.add_argument(
        "--device",
        choices=("auto", "cpu", "cuda", "mps"),
        default="auto",
        help="auto: cuda, else mps, else cpu",
    )
    how.add_argument(
        "--amp",
        choices=("auto", "bf16", "off"),
        default="auto",
        help="bf16 autocast; auto: where the hardware has it",
    )
    how.add_argument(
        "--compile",
        nargs="?",
        const="default",
        choices=("default", "reduce-overhead"),
        help="compile the model: minutes to start; for GPUs, on a CPU steps became slower; reduce-overhead: "
        "into CUDA graphs, for small models on sequences of one length",
    )
    how.add_argument(
        "--micro-batch",
        type=positive_int,
        metavar="B",
        help="split each batch into parts of B examples to save memory",
    )
    how.add_argument(
        "--no-bucket", action="store_true", help="batches of random lengths: much padding, other batches"
    )
    how.add_argument(
        "--time-limit",
        type=duration,
        metavar="T",
        help="checkpoint and exit with code 75 after e.g. 9m (watched in training, not while data is made); "
        "the same command continues",
    )
    how.add_argument(
        "--fresh", action="store_true", help="start over: drop this cell's checkpoint, ignore its record"
    )


def add_technique_flags(parser):
    """The flags of paper A's training techniques."""
    parser.add_argument(
        "--no-techniques", action="store_true", help="no augmentation, shuffling, denoising or further sets"
    )
    add_augment_flag(parser, "paper, or none with --no-techniques")


def add_augment_flag(parser, default):
    """`default` says in words what is done without the flag."""
    parser.add_argument(
        "--augment",
        choices=("paper", "flip", "d4", "none"),
        help=f"training augmentation (default: {default})",
    )


def parse_args(parser, argv):
    """The command line, and what else a run has to know: .git and .argv for its record, .deadline (by
    time.monotonic). Unless it is for a report, joins torchrun's other processes."""
    for stream in (sys.stdout, sys.stderr):  # "—" must not end a command where the terminal is not UTF-8
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    args = parser.parse_args(argv)
    if not args.task and args.report is None:
        parser.error("give --task, or --report to print the table")
    if args.report is None:
        join_ranks(parser, args.device)
        args.git = git_state()  # now: hours later the commit may be another
    args.argv = [Path(sys.argv[0]).name, *(sys.argv[1:] if argv is None else argv)]
    limit = args.time_limit or math.inf
    args.deadline = time.monotonic() + limit - min(10, 0.05 * limit)  # time to write the checkpoint
    return args


def chosen(values, every):
    """The values given to a flag, "all" spelled out, each once, in the order of the table."""
    return list(every) if "all" in values else [v for v in every if v in values]


# Rows of a recipe that a flag of the same name overrides.
OVERRIDES = ("epochs", "lr", "batch_size", "weight_decay", "set_last_tenth", "augment", "max_length")
# Rows of a recipe that are not for the model.
TRAINING = ("lr", "batch_size", "weight_decay", "set_last_tenth", "epochs", "clip", "technique", "augment")


def column(table, tasks, task, args=None):
    """One column of a paper's table, {row: value}, overridden by the flags that were given."""
    hp = {row: values[tasks.index(task)] for row, values in table.items()}
    return hp | (overrides(args) if args else {})


def overrides(args):
    """What the flags say of a recipe, {row: value}; without those that were not given."""
    return {row: value for row in OVERRIDES if (value := getattr(args, row, None)) is not None}


def overriding_flags(args):
    """Those flags as they were typed, e.g. ["--lr"]: for messages."""
    return [f"--{row.replace('_', '-')}" for row in overrides(args)]


def model_rows(hp):
    """The rows of a recipe that are arguments of the model."""
    return {row: value for row, value in hp.items() if row not in TRAINING}


def budget(args, hp, paper):
    """ "paper" when a cell is trained as the paper trained it (`paper` = the table's column, with all that
    hp has), else "reduced"."""
    return "reduced" if hp != paper or args.limit or args.smoke else "paper"


# ------------------------------------------------------------------------------------------ machine


def resolve_device(name):
    """ "auto" -> the first of cuda, mps, cpu that is there. For CUDA also sets, for the whole process, what
    our training needs. Raises UserError for a device that is not there."""
    there = {"cuda": torch.cuda.is_available, "mps": torch.backends.mps.is_available, "cpu": lambda: True}
    if name == "auto":
        name = next(device for device, available in there.items() if available())
    if not there[name]():
        raise UserError(f"--device {name}: this machine or this build of torch has none; use --device cpu")
    if name == "cuda":
        # cuDNN's attention, which torch prefers on an H100 and its like from 2.11 on, builds a plan for each
        # length and can give NaN gradients with a mask where L % 128 is 64 (pytorch#196678).
        torch.backends.cuda.enable_cudnn_sdp(False)
        torch.backends.cudnn.allow_tf32 = False  # --amp off means float32, in convolutions too
        return torch.device("cuda", torch.cuda.current_device())
    return torch.device(name)


def require_device(args):
    """The device of --device. Raises UserError where there is none, or none that --compile is for."""
    device = resolve_device(args.device)
    if args.compile:
        require_sound_compiler(device)
    return device


def use_bf16(amp, device):
    """Whether to autocast to bfloat16. Without hardware instructions a CPU would only get slower."""
    if amp != "auto":
        return amp == "bf16"
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return device.type == "cpu" and torch.ops.mkldnn._is_mkldnn_bf16_supported()


def cpu_name():
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    return platform.processor() or platform.machine()


def device_name(device):
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = f"{cpu_name()}, {torch.get_num_threads()} threads"
    return threads if device.type == "cpu" else f"{device.type} {cpu_name()}"


def git_state():
    """(commit, dirty) of the code that runs, or (None, None) outside a repository. dirty: some script is not
    as in the commit, or in none."""

    def git(*args):
        return subprocess.run(
            ["git", "-C", Path(__file__).parent, *args], capture_output=True, text=True, check=True
        ).stdout.strip()

    try:
        return git("rev-parse", "--short=12", "HEAD"), bool(
            git("status", "--porcelain", "--untracked-files=all", "--", "*.py")
        )
    except (OSError, subprocess.CalledProcessError):
        return None, None


# ------------------------------------------------------------------------------------------ ranks


def join_ranks(parser, device):
    """Under torchrun (told by its environment variables), join the other processes, each with a GPU of its
    own where there are any."""
    if not {"RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR"} <= os.environ.keys() or dist.is_initialized():
        return
    cuda = device in ("auto", "cuda") and torch.cuda.is_available()
    if cuda:
        local = int(os.environ["LOCAL_RANK"])
        if local >= torch.cuda.device_count():
            parser.error(
                f"torchrun started more processes than this machine has GPUs; give it "
                f"--nproc-per-node {torch.cuda.device_count()}"
            )
        torch.cuda.set_device(local)
    # Gradients travel between the devices; what the hosts agree on (when to stop) must not wait for those.
    dist.init_process_group("cpu:gloo,cuda:nccl" if cuda else "gloo")
    atexit.register(dist.destroy_process_group)
    if rank():
        sys.stdout = open(os.devnull, "w")


def rank():
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def ranks():
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def on_first_rank(function, *args):
    """function(*args), called on rank 0 alone; every rank gets its result, or its UserError."""
    if ranks() == 1:
        return function(*args)
    answer = [None, None]
    if rank() == 0:
        try:
            answer[0] = function(*args)
        except UserError as error:
            answer[1] = error
    dist.broadcast_object_list(answer)
    if answer[1]:
        raise answer[1]
    return answer[0]


def any_rank(*flags):
    """For each flag, whether it is true on some rank: decisions that all must take together."""
    if ranks() == 1:
        return flags
    flags = torch.tensor(flags, dtype=torch.int32)
    dist.all_reduce(flags, dist.ReduceOp.MAX)
    return flags.bool().tolist()


def sum_totals(totals):
    """{name: (sum, count)} summed over the ranks, which may have seen different names."""
    if ranks() == 1:
        return totals
    everyone, together = [None] * ranks(), {}
    dist.all_gather_object(everyone, {name: [float(x) for x in total] for name, total in totals.items()})
    for part in everyone:
        add_up(together, part)
    return together


def sum_gradients(model, loss):
    """Replace gradients by their sums over the ranks -> the sum of the losses.

    Sums, not means: a loss is divided by the counts of the global batch already. One flat message instead of
    DistributedDataParallel, whose mean would have to be undone: these models have 0.1 to 20 million
    parameters, so that there is little to hide behind the backward pass.
    """
    if ranks() == 1:
        return loss
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    flat = torch.cat([loss.view(1), *(g.flatten() for g in gradients)])
    dist.all_reduce(flat)
    total, *sums = flat.split([1, *(g.numel() for g in gradients)])
    for g, s in zip(gradients, sums):
        g.copy_(s.view_as(g))
    return total[0].clone()  # a view would keep all of `flat`


# ------------------------------------------------------------------------------------------ optimiser


def decays(name):
    """Paper A's weight-decay rule, by parameter name (the authors' code): biases, norms and the token
    embedding never decay; linear, convolution, kernel and other weights do, a learned positional table
    among them; the rest does not."""
    if any(part in name for part in ("bias", "norm", "embedding")):
        return False
    return any(part in name for part in ("linear", "conv", "kernel", "weight"))


def parameter_groups(model, hp):
    """Every trainable parameter in exactly one AdamW group of equal (lr, weight decay).

    hp["decay"]: "weights" = the rule of `decays` (paper A), "all" = every parameter (paper B). A
    parameter's own wish, `p.optim = {"lr": ..., "weight_decay": ...}` on SSM states, comes first.
    """
    groups = {}
    for name, p in model.named_parameters():
        wish = getattr(p, "optim", {})
        decay = hp["weight_decay"] if hp.get("decay", "weights") == "all" or decays(name) else 0.0
        key = wish.get("lr", hp["lr"]), wish.get("weight_decay", decay)
        groups.setdefault(key, []).append(p)
    return [{"params": params, "lr": lr, "weight_decay": decay} for (lr, decay), params in groups.items()]


def make_optimizer(model, hp):
    fused = next(model.parameters()).device.type in ("cpu", "cuda")
    return torch.optim.AdamW(parameter_groups(model, hp), betas=hp.get("betas", (0.9, 0.98)), fused=fused)


class PlateauSchedule:
    """Paper A: lr x 0.2 after the 4th epoch in a row without a better training loss, and min(lr, 0.1 x
    initial) in each group for the last 10 % of the steps.

    deviation: the authors' code SETS 0.1 x initial there, which raises the rate after two plateaus; the
    paper's word is "reduce". hp["set_last_tenth"] does as the code does.
    """

    def __init__(self, optimizer, hp, steps):
        self.optimizer = optimizer  # not its param_groups: loading a state replaces that list
        self.initial = [group["lr"] for group in optimizer.param_groups]
        self.plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(
            optimizer, factor=0.2, patience=3, min_lr=1e-7
        )
        self.step, self.drop = 0, int(0.9 * steps)
        self.set_last_tenth = hp.get("set_last_tenth", False)

    def on_step(self):
        self.step += 1
        if self.step == self.drop:
            for group, initial in zip(self.optimizer.param_groups, self.initial):
                group["lr"] = 0.1 * initial if self.set_last_tenth else min(group["lr"], 0.1 * initial)

    def on_epoch(self, train_loss):
        self.plateau.step(train_loss)

    def state_dict(self):
        return {"step": self.step, "plateau": self.plateau.state_dict()}

    def load_state_dict(self, state):
        self.step = state["step"]
        self.plateau.load_state_dict(state["plateau"])


class WarmupSchedule:
    """Paper B: linear warm-up over hp["warmup"] steps, then constant, or half a cosine down to 0 at
    hp["horizon"] steps (default: the end of training). The factor scales every group, SSM states
    included."""

    def __init__(self, optimizer, hp, steps):
        warmup, horizon = hp.get("warmup", 0), hp.get("horizon", steps)

        def factor(step):
            if step < warmup:
                return step / warmup
            if hp["schedule"] == "constant":
                return 1.0
            progress = (step - warmup) / max(1, horizon - warmup)
            return 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))

        self.schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)

    def on_step(self):
        self.schedule.step()

    def on_epoch(self, train_loss):
        pass

    def state_dict(self):
        return self.schedule.state_dict()

    def load_state_dict(self, state):
        self.schedule.load_state_dict(state)


def make_schedule(optimizer, hp, steps):
    """hp["schedule"]: "plateau" (paper A, default), "constant" or "cosine" (paper B); `steps` of the
    whole training."""
    if hp.get("schedule", "plateau") == "plateau":
        return PlateauSchedule(optimizer, hp, steps)
    return WarmupSchedule(optimizer, hp, steps)


# ------------------------------------------------------------------------------------------ losses


def classify_loss(model, batch):
    """Classification loss of a batch (or of a part of one) and its accuracy.

    A loss is a sum divided by the counts of the WHOLE batch (batch.examples), so the losses of parts
    and ranks add up to the loss of the batch and splitting changes nothing. Metrics are pairs (sum,
    count).
    """
    features = model(batch.tokens, batch.mask)
    return class_terms(model.classify(features, batch.mask, batch.docs), batch)


def class_terms(logits, batch):
    """Cross-entropy, or binary cross-entropy where two classes share one logit; at least float32."""
    logits, label = logits.to(torch.promote_types(logits.dtype, torch.float32)), batch.label
    if logits.shape[1] == 1:
        loss = F.binary_cross_entropy_with_logits(logits[:, 0], label.to(logits.dtype), reduction="sum")
        correct = (logits[:, 0] > 0) == label.bool()
    else:
        loss = F.cross_entropy(logits, label, reduction="sum")
        correct = logits.argmax(1) == label
    return loss / batch.examples, {"acc": (correct.sum(), len(label))}


# Positions whose logits and their temporaries are made at one time; one float32 copy of all logits is kept
# for the backward pass.
DENOISE_CHUNK = 1 << 15
IGNORED = -100  # a target that is no id


def denoised(model, features, *others):
    """What the denoising head makes of features (B, L, D), float32, chunk by chunk because it is the largest
    tensor of the text runs, with the same positions of each of `others` (B * L, ...)."""
    for chunk, *rest in zip(*(x.split(DENOISE_CHUNK) for x in (features.flatten(0, 1), *others))):
        yield model.denoise(chunk).float(), *rest


def multitask_loss(model, batch):
    """Paper A's unweighted sum of the classification loss and the denoising loss (Section 3, A.4):
    cross-entropy of the clean ids, averaged over ALL real positions of the batch, corrupted or not. The
    classifier reads the corrupted sequence. Without a corrupted batch (evaluation) this is
    classify_loss.
    """
    features = model(batch.tokens, batch.mask)
    loss, metrics = class_terms(model.classify(features, batch.mask, batch.docs), batch)
    if batch.target is None:
        return loss, metrics
    # Padding goes along, 5 % of a bucketed batch, and is ignored: to pick the real positions the host would
    # wait for the device.
    real, selected = batch.mask.flatten(), batch.selected.flatten()
    target = batch.target.flatten().masked_fill(~real, IGNORED)
    right = torch.zeros(2, device=real.device)
    for logits, wanted, chosen in denoised(model, features, target, selected):
        lost = F.cross_entropy(logits, wanted, reduction="sum", ignore_index=IGNORED)
        loss = loss + lost / batch.positions
        hit = logits.argmax(1) == wanted
        right += torch.stack([hit.sum(), (hit & chosen).sum()])
    metrics["denoise_acc"] = right[0], real.sum()
    metrics["masked_acc"] = right[1], selected.sum()
    return loss, metrics


# ------------------------------------------------------------------------------------------ the loop


def fit(model, task, loss_fn, hp, args, folder, seed=0):
    """Train `model` on `task` as hp says, keep the weights of the best validation epoch, and test them.

    loss_fn     (model, batch) -> (loss, metrics): the loss of a part of a batch as classify_loss
                defines it, and {name: (sum, count)} with at least "acc"
    hp          lr, weight_decay, epochs, batch_size; and, where not the default: betas (0.9, 0.98), decay
                ("weights"), clip (none), schedule ("plateau"; with it set_last_tenth, False; with the others
                warmup, 0, and horizon, the end of training)
    folder      of this run: last.pt (whole state; a run that was stopped continues from it), best.pt,
                log.jsonl

    -> dict with the accuracies, the curve, and what it cost. The number to report is "test_acc": the
    test accuracy at the best validation epoch (the first one, among equals). Raises Interrupted at the
    time limit and on SIGTERM, KeyboardInterrupt on Ctrl-C, with the state saved, and UserError when the
    loss is no longer a number, memory runs out, or --micro-batch would change the mathematics.
    """
    require_splittable(model, hp["batch_size"], args)
    device = require_device(args)
    autocast = torch.autocast(device.type, torch.bfloat16, enabled=use_bf16(args.amp, device))
    with out_of_memory_advice(model, batch_size=1):  # no smaller part would help here
        task, model = task.to(device), model.to(device)
    reset_peak(device)  # earlier cells of the same command
    if args.compile:
        torch.compiler.reset()  # all cells share one forward(), whose 8 graphs earlier cells would use up
        model.compile(mode=args.compile)
    optimizer = make_optimizer(model, hp)
    steps_per_epoch = math.ceil(len(task.train.label) / hp["batch_size"])
    schedule = make_schedule(optimizer, hp, steps_per_epoch * hp["epochs"])
    # Data order, augmentation and masking, initialisation and dropout draw from separate generators:
    # changing the model does not reshuffle the data.
    order, noise = torch.Generator().manual_seed(seed), torch.Generator(device).manual_seed(seed + 1)
    epoch, step, totals, curve, spent = 0, 0, {}, [], 0.0
    recent = []  # losses since check() last looked, on the device
    state = load_checkpoint(folder / "last.pt", device)
    if state:
        restore(state, model, optimizer, schedule, order, noise)
        rows = ("epoch", "step", "totals", "curve", "seconds")
        epoch, step, totals, curve, spent = (state[row] for row in rows)
        print(f"continuing at epoch {epoch + 1}, step {step} of {steps_per_epoch}", flush=True)
    if rank():  # a stream of dropout of its own; totals up to here are with rank 0
        torch.manual_seed(seed + 10**9 * rank() + epoch * steps_per_epoch + step)
        totals = {}
    started = saved = time.monotonic()
    # No deadline before the first step: a run that is stopped inside an evaluation would be stopped there
    # again, each time it continues.
    stop, deadline = catch_signals(), math.inf

    def save():
        require_finite_weights(model, check(), epoch, step, optimizer)
        state = {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "schedule": schedule.state_dict(),
            "order": order_at_start,
            "noise": noise.get_state(),
            "noise_device": device.type,
            "rng": get_global_rng(device),
            "epoch": epoch,
            "step": step,
            "totals": sum_totals(totals),
            "curve": curve,
            "seconds": spent + time.monotonic() - started,
        }
        on_first_rank(save_checkpoint, folder / "last.pt", state)

    def check():
        """Look at the losses since the last look; no checkpoint is written after one that is no number."""
        losses = torch.stack(recent).tolist() if recent else []
        require_finite(losses, epoch, step, optimizer)
        recent.clear()
        return losses

    def measure(split):
        return evaluate(model, task, split, loss_fn, hp, autocast, args.micro_batch, stop, deadline)

    while epoch < hp["epochs"]:
        order_at_start = order.get_state()  # replays this epoch's plan when the run continues inside it
        plan = task.plan(hp["batch_size"], order, not args.no_bucket)
        title = f"epoch {epoch + 1}/{hp['epochs']}"
        bar = tqdm(total=len(plan), initial=step, desc=title, leave=False, disable=no_bar())
        model.train()
        for batch in task.training_batches(plan[step:], noise, epoch, rank(), ranks()):
            batch_loss = train_step(model, optimizer, batch, loss_fn, hp, autocast, totals, args.micro_batch)
            schedule.on_step()
            add_up(totals, {"loss": (batch_loss * len(plan[step]), len(plan[step]))})
            recent.append(batch_loss)
            step, deadline = step + 1, args.deadline
            bar.update()
            if step % CHECK_STEPS == 0:
                loss, accuracy = check()[-1], mean(totals["acc"])
                rate = learning_rate(optimizer)
                bar.set_postfix(loss=f"{loss:.3f}", acc=f"{accuracy:.3f}", lr=f"{rate:.1e}")
            now = time.monotonic()
            stopped, due = any_rank(bool(stop) or now > deadline, now - saved > CHECKPOINT_SECONDS)
            if stopped or due or step == len(plan):
                save()
                saved = now
            if due and bar.disable:  # a log file has no bar
                so_far = f"loss {mean(totals['loss']):.4f}, acc {mean(totals['acc']):.4f}"
                print(f"{title}, step {step} of {len(plan)}: {so_far}", flush=True)
            if stopped:
                leave(stop, f"stopped in {title} at step {step} of {len(plan)}")
        bar.close()

        train = {name: mean(total) for name, total in sum_totals(totals).items()}
        val = measure("val")
        line = {"epoch": epoch + 1, "lr": learning_rate(optimizer), "train": train, "val": val}
        if val["acc"] > max((past["val"]["acc"] for past in curve), default=-math.inf):
            weights = {"model": model.state_dict(), "epoch": epoch + 1, "hp": hp}
            weights["arguments"] = getattr(model, "arguments", None)  # what rebuilds the model, where it says
            on_first_rank(save_checkpoint, folder / "best.pt", weights)
        curve.append(line | {"seconds": round(spent + time.monotonic() - started, 1)})
        log = "".join(json.dumps(past) + "\n" for past in curve).encode()
        on_first_rank(write_atomically, folder / "log.jsonl", log)
        print(epoch_line(curve[-1], hp), flush=True)
        warn_at_chance(curve, task, hp)
        schedule.on_epoch(train["loss"])
        epoch, step, totals = epoch + 1, 0, {}

    test = last = measure("test")
    best = load_checkpoint(folder / "best.pt", device)
    if best["epoch"] < hp["epochs"]:
        model.load_state_dict(best["model"])
        test = measure("test")
    answer_signals(STOPPING)  # nothing to save from here on
    seconds = spent + time.monotonic() - started
    return {
        "test_acc": test["acc"],
        "val_acc": curve[best["epoch"] - 1]["val"]["acc"],
        "best_epoch": best["epoch"],
        "test_acc_last": last["acc"],
        "chance": round(chance(task.test), 4),
        "train_acc": curve[-1]["train"]["acc"],
        "epochs": hp["epochs"],
        "steps": steps_per_epoch * hp["epochs"],
        "params": sum(p.numel() for p in model.parameters()),
        "seconds": round(seconds, 1),
        "epoch_seconds": round(curve[-1]["seconds"] / hp["epochs"], 2),
        "peak_gb": peak_gb(device),
        "device": device_name(device),
        "ranks": ranks(),
        "amp": "bf16" if use_bf16(args.amp, device) else "off",
    }


def restore(state, model, optimizer, schedule, order, noise):
    """Put everything where it was when `state` was saved."""
    try:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        schedule.load_state_dict(state["schedule"])
    except (RuntimeError, ValueError, KeyError) as error:
        raise UserError(
            "the checkpoint is of another model, since the code changed; start over with --fresh"
        ) from error
    order.set_state(state["order"].cpu())
    if state["noise_device"] == noise.device.type:
        noise.set_state(state["noise"].cpu())
    else:  # begun on another kind of device, whose generator has another state: a new stream
        noise.manual_seed(noise.initial_seed() + 10**9 + 10**5 * state["epoch"] + state["step"])
    set_global_rng(state["rng"], noise.device)


def train_step(model, optimizer, batch, loss_fn, hp, autocast, totals, micro_batch=None):
    """One step of the optimiser on a (rank's share of a) batch, in parts -> the loss of the global batch.
    Metrics are added to `totals`."""
    optimizer.zero_grad(set_to_none=True)
    batch_loss = 0.0
    for part in batch.parts(micro_batch or hp["batch_size"]):
        with out_of_memory_advice(model, hp["batch_size"], micro_batch):
            with autocast:
                loss, metrics = loss_fn(model, part)
            loss.backward()
        batch_loss += loss.detach()
        add_up(totals, metrics)
    batch_loss = sum_gradients(model, batch_loss)
    if hp.get("clip"):
        torch.nn.utils.clip_grad_norm_(model.parameters(), hp["clip"])
    with out_of_memory_advice(model, hp["batch_size"], micro_batch):  # the first step allocates its state
        optimizer.step()
    return batch_loss


@torch.no_grad()
def evaluate(model, task, split, loss_fn, hp, autocast, micro_batch, stop, deadline):
    """Metrics of a whole split, {name: mean}, in eval mode and in large batches."""
    model.eval()
    totals, stopped = {}, False
    # As many positions at once as a part of a training batch has, for which memory suffices. On a CPU at most
    # 2^14: 2^16 take up to 1.6 times as long, because large blocks come from the system page by page, zeroed.
    most = (micro_batch or hp["batch_size"]) * task.docs * task.max_length
    if task.test.label.device.type == "cpu":
        most = min(most, 1 << 14)
    batches = task.evaluation_batches(split, most, rank(), ranks())
    for batch in tqdm(batches, split, leave=False, disable=no_bar()):
        with autocast, out_of_memory_advice(model, hp["batch_size"], micro_batch):
            loss, metrics = loss_fn(model, batch)
        add_up(totals, metrics | {"loss": (loss * batch.examples, batch.examples)})
        stopped = bool(stop) or time.monotonic() > deadline
        if stopped:
            break
    if any_rank(stopped)[0]:  # the checkpoint before this evaluation stands
        leave(stop, f"stopped while evaluating on {split}")
    return {name: mean(total) for name, total in sum_totals(totals).items()}


def add_up(totals, metrics):
    """Add metrics {name: (sum, count)} to totals, on the device: reading them here would make the host
    wait."""
    for name, (total, count) in metrics.items():
        before = totals.get(name, (0.0, 0))
        totals[name] = before[0] + total, before[1] + count


def mean(total):
    return float(total[0]) / max(1.0, float(total[1]))


def no_bar():
    """tqdm's `disable`: a bar on a terminal (None), none on the other ranks."""
    return True if rank() else None


def learning_rate(optimizer):
    """The rate of the group that most parameters are in (SSM states may have their own)."""
    return max(optimizer.param_groups, key=lambda g: sum(p.numel() for p in g["params"]))["lr"]


def epoch_line(line, hp):
    train = ", ".join(f"{name} {value:.4f}" for name, value in line["train"].items())
    where = f"epoch {line['epoch']:3d}/{hp['epochs']}"
    left = line["seconds"] / line["epoch"] * (hp["epochs"] - line["epoch"])
    times = f"{line['seconds']:.0f} s, {readable(left)} left"
    return f"{where}  train {train}  val acc {line['val']['acc']:.4f}  lr {line['lr']:.1e}  {times}"


def readable(seconds):
    """A duration for people: 50 s, 12 min, 3.4 h."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def require_finite(losses, epoch, step, optimizer):
    """Raise UserError at the first of `losses`, those of the last steps up to `step`, that is no number."""
    bad = next((i for i, loss in enumerate(losses) if not math.isfinite(loss)), None)
    if bad is not None:
        step -= len(losses) - bad - 1
        give_up("the loss is no longer a number", losses[: bad + 1], epoch, step, optimizer)


def require_finite_weights(model, losses, epoch, step, optimizer):
    """No checkpoint may hold what can never recover; the loss shows it a step too late."""
    if not torch.stack([p.isfinite().all() for p in model.parameters()]).all():
        give_up("some weights are no longer numbers", losses, epoch, step, optimizer)


def give_up(what, losses, epoch, step, optimizer):
    shown = ", ".join(f"{loss:.4g}" for loss in losses[-5:])
    raise UserError(
        f"{what} at epoch {epoch + 1}, step {step}, lr {learning_rate(optimizer):.1e} "
        f"(last losses {shown}); the last good checkpoint is kept: try a lower --lr"
    )


def chance(split):
    """Accuracy of always answering the commonest class of a split."""
    return float(torch.bincount(split.label).max()) / len(split.label)


def warn_at_chance(curve, task, hp):
    """Warn once, after a tenth of the epochs (at least 5), if no accuracy so far was clearly above that of
    always answering the commonest class."""
    if len(curve) != max(5, hp["epochs"] // 10):
        return
    share = chance(task.val)
    noise = math.sqrt(share * (1 - share) / len(task.val.label))
    if max(line["val"]["acc"] for line in curve) < share + 2 * noise:
        print(
            f"warning: still at chance ({share:.1%}) after {len(curve)} epochs; some tasks start with a "
            "plateau (others saw 3 of 5 Pathfinder seeds never leave it): go on, or try another --seed or "
            "a lower --lr",
            flush=True,
        )


# What a RuntimeError says when memory ran out: on a CPU, and in CUDA's libraries for FFT, matrix products and
# convolutions.
OUT_OF_MEMORY = ("can't allocate memory", "out of memory", "ALLOC_FAILED", "ALLOCATION_FAILED")
OUT_OF_MEMORY += ("unable to find an engine", "Unable to find a valid cuDNN algorithm")  # no workspace


def is_out_of_memory(error):
    known = isinstance(error, (MemoryError, torch.OutOfMemoryError))
    return known or any(words in str(error) for words in OUT_OF_MEMORY)


class OutOfMemory(UserError):
    """Memory ran out; the message says what to do about it."""


@contextlib.contextmanager
def out_of_memory_advice(model, batch_size, micro_batch=None):
    """Raise OutOfMemory where memory runs out in parts of `micro_batch` of `batch_size` examples."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        part = min(micro_batch or batch_size, math.ceil(batch_size / ranks()))
        advice = f"continue with --micro-batch {part // 2} (the result is the same)"
        if part == 1:
            advice = "the data and a single example do not fit, use a device with more memory"
        elif batch_normed(model):
            advice = "share the batch between GPUs with torchrun, or give a smaller --batch-size"
        raise OutOfMemory(f"out of memory on the device; {advice}") from None


def batch_normed(model):
    """Whether some norm of the model (models.Norm, which has a `kind`) looks across examples."""
    return any(getattr(module, "kind", None) == "batch" for module in model.modules())


def require_splittable(model, batch_size, args):
    """Raise UserError where --micro-batch would not be the same mathematics, or could not work."""
    if not args.micro_batch or args.micro_batch >= batch_size:
        return
    if args.compile == "reduce-overhead":
        raise UserError(
            "--micro-batch adds up gradients that a CUDA graph would overwrite; "
            "give --compile without reduce-overhead"
        )
    if batch_normed(model):
        raise UserError(
            "--micro-batch would change this model: its batch normalisation needs the whole batch at once; "
            "leave the flag out, share the batch between GPUs with torchrun, or give a smaller --batch-size"
        )


# For a CPU, torch 2.5 and 2.6 compile an embedding so that it keeps one of the gradients of a symbol that
# occurs several times, where it needs their sum. 2.11 and 2.15 are right; those between were not tried.
SOUND_COMPILER = "2.11"


def require_sound_compiler(device):
    """Raise UserError where --compile is known to compute something else."""
    if device.type == "cpu" and torch.__version__ < SOUND_COMPILER:  # compares as versions, not as text
        raise UserError(
            f"--compile on a CPU needs torch {SOUND_COMPILER} or newer, older ones compute wrong gradients "
            "of embeddings; leave the flag out"
        )


def interrupt(number, frame):
    raise Interrupted(f"interrupted; give {same_command()} again")


# What stops a run, and what is done about it where fit does not look after it.
STOPPING = {signal.SIGTERM: interrupt, signal.SIGINT: signal.default_int_handler}


def answer_signals(handlers):
    """Set {signal: handler}, but for signals that are ignored: a shell's background job ignores Ctrl-C."""
    for number, handler in handlers.items():
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, handler)


def catch_signals():
    """A list that stays empty until SIGTERM (a preempted job) or Ctrl-C arrives; the loop then saves and
    leaves. A second Ctrl-C does not wait for that."""
    arrived, advice = [], b"\nstopping after this step; once more to stop at once\n"

    def note(number, frame):
        if number == signal.SIGINT and arrived:
            raise KeyboardInterrupt
        arrived.append(number)
        if number == signal.SIGINT:
            with contextlib.suppress(OSError):  # see last_words
                os.write(2, advice)  # print is not reentrant

    answer_signals(dict.fromkeys(STOPPING, note))
    return arrived


def leave(stop, where):
    """Raise what ends a run whose state is saved. stop: the signals that arrived, none at the time limit."""
    if signal.SIGINT in stop:
        raise KeyboardInterrupt(f"interrupted; {same_command()} continues from the last checkpoint")
    raise Interrupted(f"{where}; {same_command()} continues")


def reset_peak(device):
    """Forget the peak memory up to here."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    else:
        with contextlib.suppress(OSError):  # only Linux has it
            Path("/proc/self/clear_refs").write_text("5")


def peak_bytes(device):
    """Peak memory since reset_peak: of the device, or of this process on a CPU under Linux; else None."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    with contextlib.suppress(OSError, StopIteration):
        rows = Path("/proc/self/status").read_text().splitlines()
        return 1024 * next(int(row.split()[1]) for row in rows if row.startswith("VmHWM"))
    return None


def peak_gb(device):
    peak = peak_bytes(device)
    return None if peak is None else round(peak / 1e9, 2)


# ------------------------------------------------------------------------------------------ checkpoints


def write_atomically(path, content):
    """Write bytes so that `path` holds either the old content or the new one, whatever happens in between."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        with open(temporary, "wb") as f:
            f.write(content)
            f.flush()
            os.fsync(f.fileno())
        os.replace(temporary, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise UserError(
            f"cannot write {path}: {error.strerror}; free space or choose another --out, "
            f"then {same_command()} continues"
        ) from error


def save_checkpoint(path, state):
    buffer = io.BytesIO()
    torch.save(state, buffer)
    write_atomically(path, buffer.getvalue())


def load_checkpoint(path, device, remedy="start over with --fresh"):
    """The plain dict in `path`, or None where there is no file. Raises UserError for a damaged one."""
    if not path.exists():
        return None
    try:
        state = torch.load(path, map_location=device, weights_only=True)
    except Exception as error:  # torch raises a dozen types for a damaged file
        raise UserError(f"checkpoint {path} cannot be read ({type(error).__name__}); {remedy}") from error
    if not isinstance(state, dict):
        raise UserError(f"checkpoint {path} holds a {type(state).__name__} and no dict; {remedy}")
    return state


def get_global_rng(device):
    """States of torch's global generators (dropout draws from them)."""
    return [torch.get_rng_state()] + ([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])


def set_global_rng(states, device):
    torch.set_rng_state(states[0].cpu())
    if device.type == "cuda" and len(states) > 1:
        torch.cuda.set_rng_state(states[1].cpu(), device)


# ------------------------------------------------------------------------------------------ runs and records


def make_identity(exp, task, model, cell, seed, hp, limit, data, smoke):
    """What makes a run this run: two runs with the same identity are the same cell, and only those.
    `data` is the content hash."""
    identity = {"exp": exp, "task": task, "model": model, "cell": cell, "seed": seed, "hp": hp}
    identity |= {"limit": limit, "data": data, "smoke": smoke}
    return json.loads(json.dumps(identity))  # tuples -> lists, as in a record


def run_name(identity):
    """exp-task-model-cell-s0-1a2b3c4d: the part that people read, and a hash of the whole."""
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:8]
    parts = ["smoke"] * identity["smoke"] + [identity[k] for k in ("exp", "task", "model")]
    parts += [f"{k}{v}" for k, v in identity["cell"].items()] + [f"s{identity['seed']}", digest]
    return "-".join(parts)


def open_run(out, identity, fresh=False):
    """The folder of this run, or None when its record exists already. Refuses a folder that holds
    another identity."""
    return on_first_rank(claim_folder, out, identity, fresh)


# In the folder of a recorded run that --fresh trains anew: until the new record is written, the old one does
# not count as its end, or what is stopped in between could not be continued.
AGAIN = "again"


def finished(out, name):
    """The newest record of a run whose training has ended, or None."""
    records = [r for r in read_records([out / "results.jsonl"]) if r["run"] == name]
    return records[-1] if records and not (out / name / AGAIN).exists() else None


def require_trainable(args, identity, *trainings):
    """Raise UserError now, and not when open_run has emptied the folder for --fresh or the first of a cell's
    `trainings`, pairs (() -> model, batch size), has taken its hours, where one of them cannot be done. A run
    that is finished needs none."""
    if not args.fresh and on_first_rank(finished, args.out, run_name(identity)):
        return
    require_device(args)
    if args.micro_batch:
        for build, batch_size in trainings:
            require_splittable(build(), batch_size, args)


def claim_folder(out, identity, fresh):
    name = run_name(identity)
    folder, done = out / name, finished(out, name)
    if done and not fresh:
        print(
            f"{name} is done: test accuracy {done['test_acc']:.2%} "
            f"(run on {done['date']}; --fresh runs it again)"
        )
        return None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        claim(folder)
        if done:
            (folder / AGAIN).touch()
        if fresh:
            for file in folder.iterdir():
                if file.name not in ("lock", AGAIN):
                    file.unlink()
        note = folder / "identity.json"
        if note.exists():
            found = json.loads(note.read_text())
            if found != identity:
                changed = [k for k in sorted({*found, *identity}) if found.get(k) != identity.get(k)]
                differences = "; ".join(f"{k} was {found.get(k)!r}, is {identity.get(k)!r}" for k in changed)
                raise UserError(
                    f"{folder} belongs to another run ({differences}); "
                    "start over with --fresh or use another --out"
                )
        else:
            write_atomically(note, json.dumps(identity, indent=1).encode())
    except (ValueError, AttributeError, TypeError) as error:
        raise UserError(
            f"{folder / 'identity.json'} is damaged ({error}); start over with --fresh"
        ) from error
    except OSError as error:
        raise UserError(
            f"cannot write to --out {out}: {error.strerror}; choose a folder you can write to"
        ) from error
    return folder


CLAIMED = {}  # folder: its open lock file, until its record is written


def claim(folder):
    """Refuse a folder that another process is training in: both would write the same last.pt. The system
    frees the lock of a process that is killed."""
    if not fcntl or folder in CLAIMED:
        return
    CLAIMED[folder] = open(folder / "lock", "w")
    try:
        # A lock of the process, which the workers that it forks do not inherit.
        fcntl.lockf(CLAIMED[folder], fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        del CLAIMED[folder]
        raise UserError(
            f"{folder} is being trained by another process; wait for it, or use another --out"
        ) from None


def release(*folders):
    """Let other processes have these folders."""
    for folder in folders:
        if lock := CLAIMED.pop(folder, None):
            lock.close()


def run_cell(args, exp, task, model, cell, hp, paper, build, loss_fn, seed, expected=None):
    """One cell of a table, from the check whether it is done to its record (a dict, or None where it
    was done).

    exp, model, cell    how the record names it, e.g. "locality", "conv", {"kernel": 5}
    hp, paper           what it is trained with, and the column of the paper's table (for `budget`)
    build               () -> model; called after torch's global generator was seeded
    expected            the paper's accuracy in percent, printed beside ours
    """
    identity = make_identity(
        exp, task.name, model, cell, seed, hp, args.limit, task.source["hash"], args.smoke
    )
    require_trainable(args, identity, (build, hp["batch_size"]))
    folder = open_run(args.out, identity, args.fresh)
    if folder is None:
        return None
    torch.manual_seed(seed)
    network = build()
    announce(folder, network, hp)
    result = fit(network, task, loss_fn, hp, args, folder, seed)
    line = record(args, folder, identity, result, budget(args, hp, paper), task.source)
    print(outcome(args, folder, result, percent(expected and expected / 100)), flush=True)
    return line


def announce(folder, model, hp):
    """The first lines of a training: its run, its size, its recipe."""
    print(f"\n{folder.name}: {sum(p.numel() for p in model.parameters()):,} parameters", flush=True)
    print("  " + "  ".join(f"{row} {value}" for row, value in hp.items()), flush=True)


def outcome(args, folder, result, paper):
    """The last line of a cell; `paper` is its number there as text."""
    aside = "a smoke run: it works, its accuracy means nothing" if args.smoke else f"paper: {paper}"
    return (
        f"{folder.name}: test accuracy {result['test_acc']:.2%} at the best validation epoch "
        f"({result['best_epoch']} of {result['epochs']}); {aside}"
    )


def run_cells(args, cells, run, *expected):
    """run(args, *cell, seed) for each cell of a command and each of its seeds.

    A cell that cannot be trained (its loss is no number, memory runs out, its model refuses a flag, another
    process is at it) does not keep the others from their turn. Raises UserError at the end if there was one;
    `expected` are further types of such errors.
    """
    runs, failed = list(itertools.product(cells, range(args.seed, args.seed + args.seeds))), 0
    for number, (cell, seed) in enumerate(runs, 1):
        try:
            run(args, *cell, seed)
        except (UserError, *expected) as error:
            if len(runs) == 1 or ranks() > 1:  # ranks that go on alone wait for each other
                raise
            print(f"error: {error}", file=sys.stderr, flush=True)
            failed += 1
            release(*CLAIMED)
            answer_signals(STOPPING)  # the next cell's data are made without a checkpoint
        except (Interrupted, KeyboardInterrupt):
            if args.fresh and number < len(runs):
                left = f"the {len(runs) - number} after it were not begun"
                print(f"note: {left}, give --fresh for those of them that have old records", file=sys.stderr)
            raise
    if failed:
        raise UserError(f"{failed} of {len(runs)} cells did not finish, for the reasons above")


def record(args, folder, identity, result, budget, source):
    """Append the finished run to OUT/results.jsonl, one line, and drop last.pt: best.pt and the record
    are kept. -> the line, a dict."""
    return on_first_rank(write_record, args, folder, identity, result, budget, source)


def write_record(args, folder, identity, result, budget, source):
    commit, dirty = args.git
    line = {
        **identity,
        "run": folder.name,
        "budget": budget,
        **result,
        "data": source,  # of which the identity has the hash alone
        "torch": torch.__version__,
        "git": commit,
        "dirty": dirty,
        "argv": args.argv,
        "compile": args.compile or False,
        "micro_batch": args.micro_batch,
        "bucket": not args.no_bucket,
        "date": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
    }
    append_record(args.out / "results.jsonl", line)
    for name in (AGAIN, "last.pt"):
        (folder / name).unlink(missing_ok=True)
    release(folder)
    return line


def append_record(path, line):
    """Append one JSON line; safe with many processes. A torn last line (a power cut) is set aside, with
    a warning."""
    try:
        with open(path, "ab+") as f, locked(f):
            size = f.seek(0, os.SEEK_END)
            if size:
                f.seek(size - 1)
                if f.read(1) != b"\n":
                    mend_last_line(f, path)
            content, end = json.dumps(line).encode() + b"\n", f.seek(0, os.SEEK_END)
            if os.write(f.fileno(), content) < len(content):  # as much as the disk had room for
                f.truncate(end)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(f.fileno())
    except OSError as error:
        raise UserError(
            f"cannot write {path}: {error.strerror}; free space, then {same_command()} continues"
        ) from error


@contextlib.contextmanager
def locked(file):
    """An exclusive lock where the system has one; a single O_APPEND write is all we rely on elsewhere."""
    if fcntl:
        fcntl.flock(file, fcntl.LOCK_EX)
    yield  # closing the file releases the lock


def mend_last_line(file, path):
    """Give a whole last line the end that an editor took away, or set a torn one aside, with a warning."""
    file.seek(0)
    content = file.read()
    keep = content.rfind(b"\n") + 1
    with contextlib.suppress(ValueError):
        json.loads(content[keep:])
        file.write(b"\n")
        return
    with open(path.with_name(path.name + ".torn"), "ab") as torn:
        torn.write(content[keep:] + b"\n")
    file.truncate(keep)
    print(
        f"warning: {path} ended in a torn line (a crash or power cut); it was moved to {path.name}.torn",
        file=sys.stderr,
    )


def finished_runs(args, task, exps):
    """The records of a task under --out by one of `exps` whose best.pt is there; smoke runs with --smoke.
    Of a run that was done again the last one, whose best.pt it is."""
    newest = {r["run"]: r for r in read_records([args.out / "results.jsonl"])}
    return [
        r
        for r in newest.values()
        if r["task"] == task
        and bool(r.get("smoke")) == args.smoke
        and r["exp"] in exps
        and (args.out / r["run"] / "best.pt").exists()
        and not (args.out / r["run"] / AGAIN).exists()
    ]


# What every report reads of a record.
RECORD_ROWS = {"run", "exp", "task", "model", "cell", "seed", "hp", "limit", "data", "budget", "date"}
RECORD_ROWS |= {"val_acc", "test_acc"}


def read_records(paths):
    """All records of the files that exist; a line that is no record is left out with a warning."""
    records = []
    for path in paths:
        try:
            content = path.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            raise UserError(f"cannot read {path}: {error.strerror}; mend it or leave it out") from error
        for number, text in enumerate(content.split(b"\n"), 1):
            if not text.strip():
                continue
            try:
                line = json.loads(text)
                if not RECORD_ROWS <= line.keys() or not isinstance(line["test_acc"], float):
                    raise ValueError
                moment(line)
                records.append(line)
            except (ValueError, TypeError, AttributeError):
                print(f"warning: {path}, line {number} is not a record and was left out", file=sys.stderr)
    return records


def moment(record):
    """When a record was written; dates as text would not compare across time zones."""
    return datetime.datetime.fromisoformat(record["date"]).astimezone()


def report_records(args, exp, tasks, models, cell, optional=()):
    """The records of one experiment for its table: no smoke runs, of identical cells the newest; and none of
    other tasks or models, or whose cell has not the keys `cell` and at most the `optional` ones besides: a
    changed script's runs are not this table's."""
    default = [args.out / "results.jsonl", *sorted((Path(__file__).parent / "results").glob("*.jsonl"))]
    paths = [Path(p) for p in args.report] or default
    missing = [str(p) for p in paths if args.report and (not p.exists() or p.is_dir())]
    if missing:
        raise UserError(f"no such records file: {', '.join(missing)}; give files such as results/*.jsonl")
    records = [r for r in read_records(paths) if r["exp"] == exp]
    smoke = sum(bool(r.get("smoke")) for r in records)
    if not records:
        print(f"no records of exp_{exp}.py yet", file=sys.stderr)
    newest = {r["run"]: r for r in sorted(records, key=moment) if not r.get("smoke")}
    older = len(records) - smoke - len(newest)
    fit_in = [
        r
        for r in newest.values()
        if r["task"] in tasks and r["model"] in models and {*cell} <= r["cell"].keys() <= {*cell, *optional}
    ]
    strange = len(newest) - len(fit_in)
    left_out = [f"{smoke} smoke runs"] * (smoke > 0) + [f"{older} older or repeated records"] * (older > 0)
    left_out += [f"{strange} of tasks, models or cells that are not this table's"] * (strange > 0)
    if left_out:
        print(f"left out: {', '.join(left_out)}", file=sys.stderr)
    return fit_in


# ------------------------------------------------------------------------------------------ tables, figures


def markdown(header, rows):
    """A Markdown table as text, columns aligned."""
    rows = [[str(cell) for cell in row] for row in (header, *rows)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(header))]
    lines = ["| " + " | ".join(cell.ljust(w) for cell, w in zip(row, widths)) + " |" for row in rows]
    lines.insert(1, "|" + "|".join("-" * (w + 2) for w in widths) + "|")
    return "\n".join(lines)


def pyplot():
    """matplotlib.pyplot, drawing into files: imported only where a figure is made."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt


def save_figure(figure, path):
    """Write a figure, say where, and free it. Raises UserError where `path` cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=120)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}; choose another --out") from error
    pyplot().close(figure)
    print(f"figure: {path}")


def percent(value, signed=False):
    """0.8896 -> "88.96"; None -> a dash."""
    return "—" if value is None else f"{100 * value:{'+' if signed else ''}.2f}"


def summary(records):
    """ "88.96 ± 0.21 (n=3)" over the seeds in `records`; a dash for none. Where some stayed at chance, as
    happens on Pathfinder and Path-X, a mean alone would mislead: "70.12 ± 17.42 (n=5, 2 learnt)"."""
    if not records:
        return "—"
    accuracies = [r["test_acc"] for r in records]
    spread = f" ± {100 * statistics.stdev(accuracies):.2f}" if len(accuracies) > 1 else ""
    learnt = sum(r["test_acc"] > r.get("chance", 0) + 0.02 for r in records)  # first records do not say
    count = f"n={len(records)}" + (f", {learnt} learnt" if learnt < len(records) else "")
    if records[0]["budget"] == "paper":  # a reduced run has these words beside it, see terms
        count = ", ".join([count, *unofficial(records[0])])
    return f"{percent(statistics.mean(accuracies))}{spread} ({count})"


def compared(label, paper, records, tasks):
    """Rows of a table for one model: the paper's numbers (or None), ours, and the difference; a column
    for each of `tasks` and one for the average, which is there only when all tasks are."""
    cells = {name: one_recipe([r for r in records if r["task"] == name]) for name in tasks}
    ours = [statistics.mean(r["test_acc"] for r in cells[name]) if cells[name] else None for name in tasks]
    ours.append(None if None in ours else statistics.mean(ours))
    rows = [[f"{label}, ours", *(summary(cells[name]) for name in tasks), percent(ours[-1])]]
    if paper is not None:
        difference = [None if x is None else x - p / 100 for x, p in zip(ours, paper)]
        rows.insert(0, [f"{label}, paper", *(f"{value:.2f}" for value in paper)])
        rows.append(["difference", *(percent(value, signed=True) for value in difference)])
    return rows


def one_recipe(records):
    """The records of that recipe that validated best: of a cell whose rate was lowered, one rate. Records of
    different data, say the official ones and generated ones, are not one recipe's. It says what it drops."""
    groups = {}
    for r in records:
        groups.setdefault(json.dumps([r["hp"], r["data"]["hash"]], sort_keys=True), []).append(r)
    best = max(groups.values(), key=lambda g: statistics.mean(r["val_acc"] for r in g), default=[])
    if len(best) < len(records):
        dropped = f"left out: {len(records) - len(best)} runs of the cell of {best[0]['run']}"
        print(f"{dropped}, of another recipe or on other data, that validated worse", file=sys.stderr)
    return best


def unofficial(record):
    """Words of a table's row for data that are not the official ones."""
    return ["not the official images"] if record["data"].get("official") is False else []


def terms(record, paper):
    """What a reduced run was trained with, in words; `paper` = its recipe. Runs with equal terms may be
    compared."""
    hp = record["hp"]
    words = [f"{record['limit']:,} examples" if record["limit"] else "all examples"]
    words += ["1 epoch" if hp["epochs"] == 1 else f"{hp['epochs']} epochs"]
    words += unofficial(record)
    words += [f"{hp['max_length']} bytes"] if hp.get("max_length") and "max_length" not in paper else []
    words += ["last tenth at 0.1 x lr"] if hp.get("set_last_tenth") else []
    changed = {
        row: hp.get(row) for row in paper if row not in ("epochs", "technique") and hp.get(row) != paper[row]
    }
    return ", ".join(words + [f"{row} {value}" for row, value in changed.items()])


def print_reduced(table, records, variant, recipe, titles):
    """Print the runs below the paper's budget, if there are any: a row for each task and equal terms, a
    column for each variant that was run.

    variant   {run: heading of its column}, in the order of the columns
    recipe    record -> the paper's full recipe of its cell
    titles    {task: title}, in the order of the rows
    """
    records = [r for r in records if r["budget"] == "reduced"]
    if not records:
        return
    used = {variant[r["run"]] for r in records}
    labels = [label for label in dict.fromkeys(variant.values()) if label in used]
    tasks, groups = list(titles), {}
    for r in records:
        group = groups.setdefault((tasks.index(r["task"]), terms(r, recipe(r))), {})
        group.setdefault(variant[r["run"]], []).append(r)
    rows = [
        [titles[tasks[i]], words, *(summary(one_recipe(group.get(label, []))) for label in labels)]
        for (i, words), group in sorted(groups.items())
    ]
    print(f"### {table} at reduced budgets\n\nTest accuracy in %; compare only inside one row\n")
    print(markdown(["Task", "trained on", *labels], rows) + "\n")
