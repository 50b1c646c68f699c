"""How is it trained: flags, losses, optimiser, schedules, one loop, ranks. Knows no task and no model.

Randomness is a function of (seed, what it is for, step): nothing has to be saved for a stopped run to end
like an unbroken one, and a change of the model does not reshuffle the data.

Started by torchrun, a script trains one cell on all ranks: each computes its share of every batch, gradients
are summed. Rank 0 alone writes and prints. All ranks need the same --data-dir and --out.
"""

import argparse
import atexit
import contextlib
import ctypes
import difflib
import functools
import hashlib
import importlib
import io
import json
import math
import os
import platform
import re
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import dataclass, field, fields
from pathlib import Path

try:
    import torch
except ModuleNotFoundError:
    sys.exit("error: torch is not installed for this Python; use .venv/bin/python (README, Start)")
import torch.distributed as dist
from torch.nn import functional as F
from torch.optim.lr_scheduler import LambdaLR, ReduceLROnPlateau
from tqdm import tqdm

from machine import UserError

CHECKPOINT_SECONDS = 300  # a kill costs at most this much training (the tests shorten it)
LOOK_STEPS = 50  # steps between looks at the loss: each look makes the host wait for the device
PERIODS = 20  # --steps: the training is cut into at most so many parts, each of which ends like an epoch
CONTINUES = "the same command continues (without --fresh)"


class Diverged(UserError):
    """The loss or a weight is no number any more."""


class Interrupted(BaseException):
    """SIGTERM or the time limit: what is trained is saved. Like KeyboardInterrupt it may come anywhere."""


def raise_interrupted(*_):
    raise Interrupted(f"stopped; {CONTINUES}")


@contextlib.contextmanager
def exit_cleanly():
    """Turn mistakes into one sentence and exit code 2, SIGTERM and the time limit into 75 (EX_TEMPFAIL),
    Ctrl-C into 130. Anything else is our bug: traceback."""
    before = signal.signal(signal.SIGTERM, raise_interrupted)
    try:
        yield
        return
    except Interrupted as stop:
        text, code = stop, 75
    except KeyboardInterrupt:
        text, code = f"interrupted; {CONTINUES}", 130
    except UserError as error:
        text, code = f"error: {error}", 2
    except BrokenPipeError:  # `| head`: nobody reads on
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes it at the end
        raise SystemExit(141) from None
    except OSError as error:  # its file and its reason: a full disk, a folder that is read-only
        why = f"{error.strerror or error}: {error.filename}" if error.filename else error
        text, code = f"error: {why}; mend that, then {CONTINUES}", 2
    finally:
        signal.signal(signal.SIGTERM, before)
    with contextlib.suppress(OSError):  # with `2>&1 | tee log` Ctrl-C has ended tee before us
        print(text, file=sys.stderr, flush=True)
    raise SystemExit(code)


@contextlib.contextmanager
def finish_step():
    """Delay Ctrl-C and SIGTERM until the block ends, then raise them on all ranks alike. Yields the list of
    signals that arrived, to which the block may add. A second Ctrl-C does not wait."""
    arrived = []

    def note(number, frame):
        arrived.append(number)
        if number == signal.SIGINT:
            signal.signal(number, before[number])
            with contextlib.suppress(OSError):
                os.write(2, b"\nstopping after this step; once more to stop at once\n")

    numbers = [n for n in (signal.SIGTERM, signal.SIGINT) if signal.getsignal(n) is not signal.SIG_IGN]
    before = {number: signal.signal(number, note) for number in numbers}
    try:
        yield arrived
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    stopped, by_hand = any_rank(bool(arrived), signal.SIGINT in arrived)
    if by_hand:
        raise KeyboardInterrupt
    if stopped:
        raise_interrupted()


# ------------------------------------------------------------------------------------------ flags


def number(kind, what, fits):
    """A parser of flags for argparse: the value as int or float where fits(value), else "must be `what`"."""

    def parse(text):
        with contextlib.suppress(ValueError, OverflowError):
            value = kind(text)
            if fits(value):
                return value
        raise argparse.ArgumentTypeError(f"must be {what}, not {text!r}")

    return parse


positive_int = number(int, "a whole number, 1 or more", lambda n: 0 < n < 10**9)
natural_int = number(int, "a whole number, 0 or more", lambda n: 0 <= n < 10**9)
odd_int = number(int, "an odd whole number from 1, to have a middle", lambda n: 0 < n < 10**9 and n % 2)
positive_float = number(float, "a number above 0", lambda x: 0 < x < math.inf)
non_negative_float = number(float, "0 or a number above it", lambda x: 0 <= x < math.inf)


def seconds(text):
    """ "90s", "9m", "1.5h" or plain seconds -> seconds."""
    unit = {"s": 1, "m": 60, "h": 3600}.get(text[-1:])
    return float(text[:-1]) * unit if unit else float(text)


duration = number(seconds, "a time such as 90s, 9m or 1.5h", lambda t: 0 < t < math.inf)


def for_terminals(docstring, width=80):
    """A docstring as -h shows it: paragraphs filled; of an example that is too long the explanation, which
    two spaces set apart, on a line of its own."""
    blocks = [b if b.startswith(" ") else textwrap.fill(b, width) for b in docstring.split("\n\n")]
    lines = "\n\n".join(blocks).splitlines()
    return "\n".join(x if len(x) <= width else re.sub(r"(?<=\S)  +", "\n        ", x) for x in lines)


def make_parser(description, tasks, techniques=True, trains=True):
    """A parser with the flags of every experiment; `tasks` are the columns of its table. techniques: with the
    flags of paper A's training techniques; trains: with those that change a recipe."""
    parser = argparse.ArgumentParser(
        usage="python %(prog)s " + ("--task TASK [TASK ...] [flags]" if trains else "[flags]"),
        description=for_terminals(description),
        formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(
            prog, max_help_position=22, width=80
        ),
    )
    # fmt: off
    add = parser.add_argument_group("what to run").add_argument
    add("--task", nargs="+", choices=[*tasks, "all"], metavar="TASK", help=f"{', '.join(tasks)}, or all")
    add("--mini", action="store_true", help="small data, small model: minutes (some an hour) on one CPU core")
    slow = " (Path-X: minutes)" if "pathx" in tasks else ""
    add("--smoke", action="store_true", help=f"check that it runs: seconds{slow}, no result")
    add("--seed", type=natural_int, default=0, help="first seed (default 0)")
    add("--seeds", type=number(int, "a whole number from 1 to 1000", lambda n: 0 < n <= 1000), default=1,
        metavar="N", help="so many seeds: seed, seed + 1, ... (default 1)")
    add("--report", action="store_true",
        help="print the tables, yours and this repository's; with --mini those of the mini tier")
    add("--all-tiers", action="store_true", help="with --report: all rows of all tiers")
    add("--against", type=Path, metavar="SCRIPT[:ROW]",
        help="with --report: compare your copy of a script with SCRIPT")

    parser.set_defaults(**dict.fromkeys((*FLAGS, "limit", "augment")), no_techniques=False)
    group = parser.add_argument_group("changes of the recipe (another run, set apart in tables)")
    add = group.add_argument if trains else lambda *flags, **how: None
    add("--epochs", type=positive_int, metavar="N", help="training epochs")
    add("--steps", type=positive_int, metavar="N", help="train for N steps, whatever the number of examples")
    add("--lr", type=positive_float, help="learning rate")
    add("--batch-size", type=positive_int, metavar="B", help="examples per step, of all GPUs together")
    add("--weight-decay", type=non_negative_float, metavar="WD", help="AdamW's weight decay")
    add("--set-last-tenth", action="store_true", default=None,
        help="at 90 %% of the steps set the rate to 0.1 x LR, even if it was lower")
    add("--no-bucket", dest="bucket", action="store_false", default=None, help="mix all lengths: slower")
    add("--limit", type=positive_int, metavar="N", help="train on N examples (a larger N has them, too)")
    add("--max-length", type=positive_int, metavar="L", help="cut texts after L bytes")
    if techniques:
        add("--no-techniques", action="store_true", help="none of the training techniques of the table")
        add("--augment", choices=("paper", "flip", "none"), help="training augmentation of images")

    add = add_execution(parser)

    def of_training(words):
        return words if trains else argparse.SUPPRESS

    add("--device", choices=("auto", "cpu", "cuda", "mps"), default="auto", metavar="D",
        help="auto (cuda, mps or cpu), cpu, cuda, mps")
    add("--amp", choices=("auto", "bf16", "off"), default="auto", metavar="A",
        help="auto (bf16 where it is fast; not --mini), bf16, off")
    add("--compile", action="store_true", help=of_training("compile the model (for GPUs)"))
    add("--no-graphs", dest="graphs", action="store_false",
        help=of_training("on a GPU no CUDA graphs: 3 to 4 times slower"))
    add("--micro-batch", type=positive_int, metavar="B",
        help=of_training("split each batch to save memory; same result"))
    add("--time-limit", type=duration, metavar="T",
        help="save, exit with 75 after T (9m, 1.5h); repeat to continue")
    # fmt: on
    return parser


def add_execution(parser):
    """Add the flags that every script has and that do not change which run this is -> add_argument of their
    group."""
    add = parser.add_argument_group("execution (does not change which run this is)").add_argument
    add("--data-dir", type=Path, default=Path("data"), metavar="DIR", help="data (default data)")
    add("--out", type=Path, default=Path("runs"), metavar="DIR", help="records, checkpoints (default runs)")
    add("--fresh", action="store_true", help="start over: ignore checkpoint and record")
    return add


def print_anywhere():
    """Let no "—" end a command where the terminal is not UTF-8."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a notebook's has not
            stream.reconfigure(errors="replace")


def read_args(parser, argv):
    """The command line of an experiment, trained or not; adds args.git and args.argv."""
    print_anywhere()
    args, unknown = parser.parse_known_args(argv)
    if unknown:
        parser.error(unknown_flags(unknown, [flag(name) for name in vars(args)]))
    if not args.task and not args.report:
        parser.error("give --task, or --report to print the table")
    if args.mini and args.smoke:
        parser.error("--mini is a real training and --smoke is none; give one of them")
    if os.path.isfile(args.out):  # Path.is_file raises for a name that is too long
        parser.error(f"--out {args.out} is a file; give a folder")
    if (
        args.report
        and args.out != parser.get_default("out")
        and not os.path.exists(args.out / "results.jsonl")
    ):
        print(f"note: there is no finished run of yours in {args.out}", file=sys.stderr)
    args.git = git_state()  # now: hours later the commit may be another
    args.argv = [Path(sys.argv[0]).name, *(sys.argv[1:] if argv is None else argv)]
    return args


def unknown_flags(words, flags):
    """What is said of words of a command line that are not understood: of a misspelt flag the nearest one."""
    for word in (word for word in words if word.startswith("-")):
        name, *_ = word.partition("=")
        if near := difflib.get_close_matches(name, flags, n=1):
            return f"there is no flag {name}; did you mean {near[0]}? (-h lists all)"
    return f"not understood: {' '.join(words)} (-h lists all flags)"


def parse_args(parser, argv):
    """read_args for make_parser's flags; adds args.deadline, and joins torchrun's processes."""
    args = read_args(parser, argv)
    if args.steps and args.epochs:
        parser.error("--steps and --epochs both say how long to train; give one of them")
    if args.against and not args.report:
        parser.error("--against compares records; give --report too")
    if args.report:
        refuse_training_flags(parser, args)
    else:
        join_ranks(parser, args.device)
        try:
            resolve_device(args.device)  # now: a run that is done would not ask for it
        except UserError as error:
            parser.error(str(error))
    if args.mini and args.amp == "auto":
        args.amp = "off"  # small layers gain nothing by bf16, and narrow convolutions lose a lot on a CPU
    limit = args.time_limit or math.inf
    args.deadline = time.monotonic() + limit - min(10, 0.05 * limit)  # time to write the checkpoint
    return args


def refuse_training_flags(parser, args):
    """End the command where flags were given that --report does not read."""
    read = ("report", "task", "mini", "all_tiers", "figure", "out", "against", "git", "argv")
    flags = [name for name in vars(args) if name not in read]
    if given := [flag(name) for name in flags if getattr(args, name) != parser.get_default(name)]:
        parser.error(f"--report reads records and trains nothing; leave {', '.join(given)} out")


def chosen(values, every):
    """The values given to a flag, "all" spelled out, each once, in the table's order."""
    return list(every) if "all" in values else sorted({*values}, key=list(every).index)


def flag(name):
    """What is typed for a name in args: batch_size -> --batch-size."""
    return f"--no-{name}" if name in ("bucket", "graphs") else f"--{name.replace('_', '-')}"


# ------------------------------------------------------------------------------------------ recipes

# A recipe is {"model": arguments of the model, "train": what `fit` and the task read}. A table of recipes has
# the same two parts; a row is a tuple, one value for each task of its columns, or one value for all of them.
# Its part "plain", if it has one, are rows of "train" that are others without the techniques.

# Rows of "train" that a flag of the same name changes.
FLAGS = "epochs steps lr batch_size weight_decay set_last_tenth bucket max_length".split()


def column(table, tasks, task):
    """The recipe of one task: its column of a table whose columns are `tasks`."""
    at = tasks.index(task)

    def value(row):
        if isinstance(row, tuple) and len(row) != len(tasks):
            raise UserError(f"a row of the table has {len(row)} values for {len(tasks)} tasks: {row}")
        return row[at] if isinstance(row, tuple) else row

    return {part: {name: value(row) for name, row in rows.items()} for part, rows in table.items()}


def with_rows(recipe, other):
    """A copy of a recipe with the values of `other`. Of "model", rows that the recipe does not have are left
    out: they are those of another model. Raises UserError for such a row of "train"."""
    if spare := [name for name in other.get("train", {}) if name not in recipe["train"]]:
        raise UserError(f"{', '.join(spare)}: MINI or SMOKE sets what the table has not; add it there")
    return {
        part: rows | {name: value for name, value in other.get(part, {}).items() if name in rows}
        for part, rows in recipe.items()
    }


def recipe_for(args, task, table, mini=None, *, smoke, rate=None, model=None):
    """(the recipe of a run as the flags want it, what the table has in its place: with --mini the mini tier).

    table   (the paper's table, its columns)
    mini    the same, of the rows that differ at the mini tier
    smoke   what a smoke run changes
    rate    the learning rate of the mini tier where a search found another
    model   further rows of "model", such as {"kernel": 5}, in both recipes
    """
    recipe = column(*table, task)
    plain = {"technique": None} | recipe.pop("plain", {})
    if args.mini and mini:
        recipe = with_rows(recipe, column(*mini, task))
        recipe["train"]["lr"] = rate or recipe["train"]["lr"]
        plain = {"technique": None}
    if args.no_techniques:
        recipe["train"] |= plain
    recipe["model"] |= model or {}
    return with_flags(args, recipe, smoke), recipe


def with_flags(args, recipe, smoke):
    """A copy of a recipe as the flags want it: with --smoke the values of `smoke`, then what was typed."""
    recipe = with_rows(recipe, smoke if args.smoke else {})
    typed = {row: value for row in FLAGS if (value := getattr(args, row, None)) is not None}
    if args.augment and args.augment != "none":
        typed["technique"] = f"augment {args.augment}"
    elif args.augment and str(recipe["train"]["technique"]).startswith("augment"):
        typed["technique"] = None
    return recipe | {"train": recipe["train"] | typed}


# ------------------------------------------------------------------------------------------ machine


def resolve_device(name):
    """ "auto" -> the first of cuda, mps, cpu that is there. Raises UserError for a device that is not."""
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


def use_bf16(amp, device):
    """Whether to autocast to bfloat16. Without hardware instructions a CPU would only get slower."""
    if amp != "auto":
        return amp == "bf16"
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    found = linux_says("cpuinfo", "flags") or linux_says("cpuinfo", "Features") or ""  # x86, ARM
    return device.type == "cpu" and not {"avx512_bf16", "amx_bf16", "bf16"}.isdisjoint(found.split())


def autocast_on(device, amp):
    """The context of a training step or an evaluation: bfloat16, or what the tensors are; see use_bf16."""
    return torch.autocast(device.type, torch.bfloat16, enabled=use_bf16(amp, device))


def linux_says(file, name):
    """What stands behind "name:" in a file of /proc; None on other systems."""
    with contextlib.suppress(OSError, StopIteration):
        rows = Path("/proc", file).read_text().splitlines()
        return next(row.partition(":")[2].strip() for row in rows if row.startswith(name))


def device_name(device):
    """What a record calls the machine: the GPU's name, or the processor's with its threads."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    name = linux_says("cpuinfo", "model name") or platform.processor() or platform.machine()
    if device.type != "cpu":
        return f"{device.type} {name}"
    threads = torch.get_num_threads()
    return f"{name}, 1 thread" if threads == 1 else f"{name}, {threads} threads"


def git_state():
    """(commit, dirty) of the code that runs, or (None, None) outside a repository. dirty: some script is not
    as in the commit, or in none."""
    git = dict(cwd=Path(__file__).parent, capture_output=True, text=True, check=True)
    try:
        commit = subprocess.run("git rev-parse --short=12 HEAD".split(), **git).stdout.strip()
        return commit, bool(subprocess.run("git status --porcelain -uall -- *.py".split(), **git).stdout)
    except (OSError, subprocess.CalledProcessError):
        return None, None


def keep_pages(device):
    """Let glibc keep freed memory on a CPU: given back to the kernel, pages of large tensors are zeroed again
    in each step, a third of a full-size step."""
    if device.type == "cpu" and sys.platform == "linux":
        with contextlib.suppress(AttributeError, OSError):  # another C library
            libc = ctypes.CDLL(None)
            if not libc.mallopt(-3, 2**30):  # M_MMAP_THRESHOLD; older versions refuse more than 32 MB
                libc.mallopt(-4, 0)  # M_MMAP_MAX: no tensor in pages of its own
            libc.mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD


@contextlib.contextmanager
def flushed_denormals():
    """Inside, a CPU takes numbers below 1.2e-38 (float32), the denormal ones, for 0; afterwards as before.
    DLR's table of powers has 1.4 % of them at 4,096 positions. Without them an Intel processor takes 0.15 of
    the time for a step; one of AMD's notices no difference."""
    before = not torch.tensor(1e-40).mul(1).view(torch.int32)
    on_all_threads(torch.set_flush_denormal, True)
    try:
        yield
    finally:
        on_all_threads(torch.set_flush_denormal, before)


def on_all_threads(function, *args):
    """function(*args) on this thread and on torch's others: they take its settings only when they start."""
    function(*args)
    if sys.platform == "linux":
        with contextlib.suppress(AttributeError, OSError):  # another OpenMP
            task = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: function(*args))
            ctypes.CDLL(None).GOMP_parallel(task, None, torch.get_num_threads(), 0)


def reset_peak(device):
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    elif sys.platform == "linux":
        with contextlib.suppress(AttributeError):
            ctypes.CDLL(None).malloc_trim(0)  # what an earlier run of this process has left, see keep_pages
        with contextlib.suppress(OSError):  # only Linux has it
            Path("/proc/self/clear_refs").write_text("5")


def peak_gb(device):
    """Peak memory since reset_peak: of the GPU, or of this process on a CPU under Linux; else None."""
    if device.type == "cuda":
        return round(torch.cuda.max_memory_allocated(device) / 1e9, 2)
    peak = linux_says("self/status", "VmHWM")  # "123456 kB"
    return peak and round(1024 * int(peak.split()[0]) / 1e9, 2)


# ------------------------------------------------------------------------------------------ ranks


def join_ranks(parser, device):
    """Under torchrun, join the other processes, each with a GPU of its own where there are any."""
    if not {"RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR"} <= os.environ.keys() or dist.is_initialized():
        return
    cuda = device in ("auto", "cuda") and torch.cuda.is_available()
    if cuda:
        local, gpus = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
        if local >= gpus:
            parser.error(f"this machine has {gpus} GPUs; give torchrun no more processes")
        torch.cuda.set_device(local)
    # Imported later, by an optimiser, its default arguments keep the group for good: gloo's threads live on,
    # and torch sometimes aborts a process that has done its work.
    importlib.import_module("torch.distributed.nn")
    # Gradients travel between the devices; what the hosts agree on must not wait for those.
    dist.init_process_group("cpu:gloo,cuda:nccl" if cuda else "gloo")
    atexit.register(dist.destroy_process_group)
    if rank():
        sys.stdout = open(os.devnull, "w")


def rank():
    return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0


def ranks():
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def on_first_rank(function, *args):
    """function(*args), called on rank 0 alone; every rank gets its result."""
    answer = [function(*args) if rank() == 0 else None]
    if ranks() > 1:
        dist.broadcast_object_list(answer)
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
    dist.all_gather_object(everyone, {name: (float(a), float(b)) for name, (a, b) in totals.items()})
    for part in everyone:
        add_up(together, part)
    return together


def sum_gradients(model, loss):
    """Replace gradients by their sums over the ranks -> the sum of the losses. Sums, not means: a loss is
    divided by the counts of the global batch already. One message: these models are small."""
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
    embedding never decay; other weights do, a learned positional table among them; the rest does not."""
    never, always = ("bias", "norm", "embedding"), ("linear", "conv", "kernel", "weight")
    return not any(part in name for part in never) and any(part in name for part in always)


def parameter_groups(model, hp):
    """Every parameter in one AdamW group of equal (lr, weight decay). hp["decay"]: "weights" = the rule of
    `decays` (paper A), "all" = every parameter (paper B). A parameter's own wish, `p.optim = {"lr": ...,
    "weight_decay": ...}` on SSM states, comes first."""
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


class PlateauSchedule(ReduceLROnPlateau):
    """Paper A: lr x 0.2 after the 4th epoch in a row without a better training loss; for the last 10 % of the
    steps at most 0.1 x the initial rate, which is how the paper puts it. With hp["set_last_tenth"] that rate
    itself, even where it is higher, as the authors' code does. Both count as the paper's."""

    def __init__(self, optimizer, hp, steps):
        super().__init__(optimizer, factor=0.2, patience=3, min_lr=1e-7)
        self.initial = [group["lr"] for group in optimizer.param_groups]
        self.steps, self.drop = 0, int(0.9 * steps)
        self.set_last_tenth = hp.get("set_last_tenth", False)

    def on_step(self):
        self.steps += 1
        if self.steps == self.drop:
            for group, initial in zip(self.optimizer.param_groups, self.initial):
                group["lr"] = 0.1 * initial if self.set_last_tenth else min(group["lr"], 0.1 * initial)

    def on_epoch(self, train_loss):
        self.step(train_loss)


class WarmupSchedule(LambdaLR):
    """Paper B: linear warm-up over hp["warmup"] steps, then constant, or half a cosine down to 0 at
    hp["horizon"] steps (default: the end of training). It scales the rate of every group."""

    def __init__(self, optimizer, hp, steps):
        warmup, horizon = hp.get("warmup", 0), hp.get("horizon", steps)

        def factor(step):
            if step < warmup:
                return step / warmup
            if hp["schedule"] == "constant":
                return 1.0
            progress = (step - warmup) / max(1, horizon - warmup)
            return 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))

        super().__init__(optimizer, factor)

    def on_step(self):
        self.step()

    def on_epoch(self, train_loss):
        pass


def make_schedule(optimizer, hp, steps):
    """hp["schedule"]: "plateau" (paper A, default), "constant" or "cosine" (paper B)."""
    plateau = hp.get("schedule", "plateau") == "plateau"
    return (PlateauSchedule if plateau else WarmupSchedule)(optimizer, hp, steps)


# ------------------------------------------------------------------------------------------ losses


def classify_loss(model, batch):
    """(loss, {"acc": (sum, count)}) of a batch, or of a part of one. A loss is a sum divided by the counts of
    the WHOLE batch (batch.examples): the losses of parts and ranks add up to the loss of the batch."""
    features = model(batch.tokens, batch.mask)
    return class_loss(model.classify(features, batch.mask, batch.docs), batch)


def class_loss(logits, batch):
    """Cross-entropy, or binary cross-entropy where two classes share one logit; at least float32."""
    logits, label = logits.to(torch.promote_types(logits.dtype, torch.float32)), batch.label
    if logits.shape[1] == 1:
        loss = F.binary_cross_entropy_with_logits(logits[:, 0], label.to(logits.dtype), reduction="sum")
        correct = (logits[:, 0] > 0) == label.bool()
    else:
        loss = F.cross_entropy(logits, label, reduction="sum")
        correct = logits.argmax(1) == label
    return loss / batch.examples, {"acc": (correct.sum(), len(label))}


DENOISE_CHUNK = 1 << 15  # positions whose logits are made at one time
IGNORED = -100  # a target that is no id


def denoised(model, features, *others, chosen=None):
    """The denoising head's logits of features (B, L, D), float32, chunk by chunk (they are the largest tensor
    of the text runs), each with those positions of `others` (B * L, ...). chosen (B * L,) bool: leave out the
    other positions; only on a CPU, as a GPU's host would have to wait for their number."""
    rows = features.flatten(0, 1), *others
    if chosen is not None and chosen.device.type == "cpu" and not torch.compiler.is_compiling():
        at = chosen.nonzero().squeeze(1)
        rows = [x.index_select(0, at) for x in rows]
    for chunk, *rest in zip(*(x.split(DENOISE_CHUNK) for x in rows)):
        yield model.denoise(chunk).float(), *rest


def restored(logits, ids):
    """(n,) bool: has the id, which may be IGNORED, the largest of its logits (n, vocab)? argmax would take a
    CPU ten times as long."""
    own = logits.gather(1, ids.clamp(min=0).unsqueeze(1)).squeeze(1)
    return (own == logits.amax(1)) & (ids != IGNORED)


def multitask_loss(model, batch):
    """Paper A's unweighted sum of the classification loss and the denoising loss (Section 3, A.4):
    cross-entropy of the clean ids over ALL real positions, corrupted or not. The classifier reads the
    corrupted sequence. Without a corrupted batch (evaluation) this is classify_loss.

    deviation: the sum is divided by the number of examples times the mean length of the training set
    (batch.positions). By the batch's own number of positions the bytes of short texts, which bucketing puts
    together, would weigh up to ten times as much.
    """
    features = model(batch.tokens, batch.mask)
    loss, metrics = class_loss(model.classify(features, batch.mask, batch.docs), batch)
    if batch.target is None:
        return loss, metrics
    # Padding goes along and is ignored: to pick the real positions the host would wait for the device.
    real, selected = batch.mask.flatten(), batch.selected.flatten()
    target = batch.target.flatten().masked_fill(~real, IGNORED)
    right = torch.zeros(2, device=real.device)
    for logits, ids, corrupted in denoised(model, features, target, selected):
        lost = F.cross_entropy(logits, ids, reduction="sum", ignore_index=IGNORED)
        loss = loss + lost / batch.positions
        hit = restored(logits.detach(), ids)
        right += torch.stack([hit.sum(), (hit & corrupted).sum()])
    metrics["denoise_acc"] = right[0], real.sum()
    metrics["masked_acc"] = right[1], selected.sum()
    return loss, metrics


# ------------------------------------------------------------------------------------------ the loop


@dataclass
class State:
    """How far a run has come: what last.pt holds beside model, optimiser and schedule."""

    step: int = 0  # steps done
    totals: dict = field(default_factory=dict)  # {metric: (sum, count)} of the epoch so far
    curve: list = field(default_factory=list)  # the lines of log.jsonl, one for each validation
    seconds: float = 0.0  # that all starts of this run have spent on it, this rank alone
    cpu_seconds: float = 0.0
    starts: list = field(default_factory=list)  # a note for each start

    def __post_init__(self):
        self.begun = time.monotonic() - self.seconds
        self.cpu_begun = time.process_time() - self.cpu_seconds

    def tick(self):
        """Note the time -> now."""
        now = time.monotonic()
        self.seconds = now - self.begun
        self.cpu_seconds = time.process_time() - self.cpu_begun
        return now

    def time_left(self, steps):
        """Of the whole run of so many steps, in words, if it goes on as fast."""
        return f"{hours(self.seconds / self.step * (steps - self.step))} left"

    def progress(self, steps):
        return f"loss {mean(self.totals['loss']):.3f}  {self.time_left(steps)}"


@flushed_denormals()
def fit(model, task, loss_fn, hp, args, folder, seed=0, note=None):
    """Train `model` on `task` as hp says, keep the weights of the best validation, and test them.

    loss_fn   (model, batch) -> (loss, {name: (sum, count)} with at least "acc"), as classify_loss
    hp        lr, weight_decay, epochs (or steps), batch_size; and, where not the default: betas (0.9, 0.98),
              decay ("weights"), clip, bucket (True), schedule ("plateau", with set_last_tenth; "constant" or
              "cosine", with warmup, horizon), hours (end at the first validation after so many)
    folder    of this run: last.pt (whole state; a stopped run continues from it), best.pt, log.jsonl
    note      a dict about this process, with the hash of its "code"; "starts" lists those of a run

    -> dict of accuracies and costs; "test_acc" is at the (first) best validation. Raises Interrupted (time
    limit, SIGTERM) and KeyboardInterrupt, with the state saved; Diverged for a loss that is no number."""
    require_splittable(model, hp["batch_size"], args)
    device = resolve_device(args.device)
    require_compiler(args.compile, device)
    autocast = autocast_on(device, args.amp)
    task, model = task.to(device), model.to(device)
    reset_peak(device)
    keep_pages(device)
    if args.compile:
        compile_for(task, model, device)
    optimizer = make_optimizer(model, hp)
    steps, period = training_length(task, hp)
    schedule = make_schedule(optimizer, hp, steps)
    parts, noise = dict(model=model, optimizer=optimizer, schedule=schedule), torch.Generator(device)
    state = restore(folder, parts, device, args.fresh, note)
    measure = functools.partial(evaluate, model, task, loss_fn, hp, autocast, args.micro_batch)
    gradients = gradient_function(model, loss_fn, autocast, args)
    batches = endless_batches(task, hp, seed, state.step, noise)
    if state.step:
        print(f"continuing after step {state.step:,} of {steps:,}", flush=True)
    else:
        save_state(folder, parts, state)  # from here on the run counts as begun, whatever record it had
    saved = said = time.monotonic()
    over = False
    with contextlib.closing(batches):  # or workers that augment images would stay
        while not over:
            start = len(state.curve) * period
            end, stopped = min(steps, start + period), False
            name = f"epoch {len(state.curve) + 1}/{math.ceil(steps / period)}"
            bar = progress_bar(None, name, total=end - start, initial=state.step - start)
            model.train()
            with bar, finish_step() as signals:
                while state.step < end and not stopped:
                    reseed(seed, state.step, noise)
                    batch = next(batches)
                    train_step(model, optimizer, batch, gradients, hp, state.totals, args.micro_batch)
                    schedule.on_step()
                    state.step += 1
                    bar.update()
                    now = state.tick()
                    if now > args.deadline:
                        signals.append(signal.SIGTERM)  # as if it had come
                    stopped, due = any_rank(bool(signals), now - saved > CHECKPOINT_SECONDS)
                    if stopped or due or state.step == end:
                        save_state(folder, parts, state)
                        saved = now
                    elif state.step % LOOK_STEPS == 0:
                        require_finite(state, **parts)
                        bar.set_postfix_str(state.progress(steps))
                    if bar.disable and (stopped or now - said > 60):  # a log file
                        print(f"step {state.step:,} of {steps:,}  {state.progress(steps)}", flush=True)
                        said = now
            train, val = means(state.totals), measure("val")
            state.tick()
            keep_validation(folder, state, steps, train, val, model, learning_rate(optimizer), hp)
            warn_at_chance(state.curve, task, math.ceil(steps / period))
            schedule.on_epoch(train["loss"])
            state.totals = {}
            over = state.step == steps or any_rank(state.seconds > 3600 * (hp.get("hours") or math.inf))[0]

        print(f"testing on {len(task.test.label):,} examples", flush=True)
        test = last = measure("test")
        best = load_checkpoint(folder / "best.pt", device)
        if best["epoch"] < len(state.curve):
            model.load_state_dict(best["model"])
            test = measure("test")
    state.tick()
    result = {"test_acc": test["acc"], "val_acc": state.curve[best["epoch"] - 1]["val"]["acc"]}
    result |= {"best_epoch": best["epoch"], "test_acc_last": last["acc"], "train_acc": train["acc"]}
    result |= {"chance": round(chance(task.test), 4), "epochs": len(state.curve), "steps": state.step}
    return result | costs(state, model, device)


def costs(state, model, device):
    """The rows of a record about what its training took, and of what."""
    rows = {"params": sum(p.numel() for p in model.parameters()), "peak_gb": peak_gb(device)}
    rows |= {"seconds": round(state.seconds, 1)}
    rows |= {"epoch_seconds": round(state.seconds / len(state.curve), 2)}
    rows |= {"device": device_name(device), "ranks": ranks(), "starts": state.starts}
    return rows | ({"cpu_seconds": round(state.cpu_seconds, 1)} if device.type == "cpu" else {})


def training_length(task, hp):
    """(steps of the training, steps of a period): a period ends with a validation. It is an epoch, or with
    hp["steps"] a fixed share of them, so that the amount of data changes nothing else."""
    epoch = math.ceil(len(task.train.label) / hp["batch_size"])
    if hp.get("steps"):
        return hp["steps"], math.ceil(hp["steps"] / PERIODS)
    return hp["epochs"] * epoch, epoch


def progress_bar(batches, name, **how):
    """A bar on the terminal of rank 0, which disappears at its end; none in a log file."""
    return tqdm(batches, name, leave=False, disable=rank() > 0 or None, **how)


def hours(seconds):
    """A time in words: "40 s", "4 min", "2.5 h"."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def keep_validation(folder, state, steps, train, val, model, lr, hp):
    """Enter a validation into the curve and print it; keep the weights if it is the best so far."""
    best = max((line["val"]["acc"] for line in state.curve), default=-1)
    epoch = len(state.curve) + 1
    line = {"epoch": epoch, "step": state.step, "lr": lr, "train": train, "val": val}
    state.curve.append(line | {"seconds": round(state.seconds, 1)})
    if epoch == 1 or val["acc"] > best:
        weights = {"model": model.state_dict(), "epoch": epoch, "hp": hp}
        weights["arguments"] = getattr(model, "arguments", None)  # what rebuilds the model, where it says
        on_first_rank(save_checkpoint, folder / "best.pt", weights)
    log = "".join(json.dumps(line) + "\n" for line in state.curve).encode()
    on_first_rank(write_atomically, folder / "log.jsonl", log)
    scores = f"loss {train['loss']:.3f}  train {train['acc']:6.2%}  val {val['acc']:6.2%}"
    part = "part" if hp.get("steps") else "epoch"
    print(f"{part} {epoch:3d}  {scores}  lr {lr:.0e}  {state.time_left(steps)}", flush=True)


def save_state(folder, parts, state):
    """Write last.pt: the parts, and how far the run has come. Never one with a NaN in it."""
    require_finite(state, **parts)
    saved = {name: part.state_dict() for name, part in parts.items()}
    saved |= {row.name: getattr(state, row.name) for row in fields(State)}
    on_first_rank(save_checkpoint, folder / "last.pt", saved | {"totals": sum_totals(state.totals)})


def stream(*key):
    """A seed for one purpose, such as (seed, "order", epoch)."""
    digest = hashlib.blake2b(repr(key).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def reseed(seed, step, noise):
    """What is drawn in step number `step`: by `noise` (augmentation, masks; alike on all ranks, which draw
    for the whole batch) and by torch's global generators (dropout; a stream for each rank)."""
    noise.manual_seed(stream(seed, "noise", step))
    dropout = stream(seed, "dropout", step, rank())
    torch.default_generator.manual_seed(dropout)  # torch.manual_seed takes a hundred times as long
    if noise.device.type == "cuda":
        torch.cuda.default_generators[noise.device.index].manual_seed(dropout)
    elif noise.device.type == "mps":
        torch.mps.manual_seed(dropout)


def endless_batches(task, hp, seed, step, noise):
    """Training batches from step number `step` on, epoch after epoch."""
    n = math.ceil(len(task.train.label) / hp["batch_size"])
    while True:
        epoch, done = divmod(step, n)
        order = torch.Generator().manual_seed(stream(seed, "order", epoch))
        plan = task.plan(hp["batch_size"], order, hp.get("bucket", True))
        for batch in task.training_batches(plan[done:], noise, epoch, rank(), ranks()):
            step += 1
            yield batch


def restore(folder, parts, device, fresh, note):
    """Put every part where it was when last.pt was saved (not if fresh) -> State."""
    saved, state = None if fresh else load_checkpoint(folder / "last.pt", device), State()
    if saved:
        try:
            for name, part in parts.items():
                part.load_state_dict(saved[name])
            state = State(**{row.name: saved[row.name] for row in fields(State)})
        except (RuntimeError, ValueError, KeyError) as error:
            fault = "is of another model, since the code changed; start over with --fresh"
            raise UserError(f"{folder / 'last.pt'} {fault}") from error
        if state.curve and not (folder / "best.pt").exists():
            raise UserError(
                f"{folder / 'best.pt'}, the best weights so far, is gone; start over with --fresh"
            )
    if rank():
        state.totals = {}  # up to here they are with rank 0
    if note and note not in state.starts:
        if state.starts and state.starts[-1]["code"] != note["code"]:
            print("note: the code has changed since this run began; --fresh starts it over")
        state.starts.append(note)
    return state


def train_step(model, optimizer, batch, gradients, hp, totals, micro_batch=None):
    """One step of the optimiser on a (rank's share of a) batch, in parts -> the loss of the global batch.
    gradients: see gradient_function. Metrics, and the loss, are added to totals {name: (sum, count)}."""
    optimizer.zero_grad(set_to_none=True)
    batch_loss = 0.0
    for part in batch.parts(micro_batch or hp["batch_size"]):
        loss, metrics = gradients(part)
        batch_loss += loss
        add_up(totals, metrics)
    batch_loss = sum_gradients(model, batch_loss)
    if hp.get("clip"):
        torch.nn.utils.clip_grad_norm_(model.parameters(), hp["clip"])
    optimizer.step()
    add_up(totals, {"loss": (batch_loss * batch.examples, batch.examples)})
    return batch_loss


def gradient_function(model, loss_fn, autocast, args):
    """batch -> (its loss, its metrics), which adds the gradients of the loss to those of the parameters."""

    def gradients(batch):
        with autocast:
            loss, metrics = loss_fn(model, batch)
        loss.backward()
        return loss.detach(), metrics

    on_gpu = next(model.parameters()).device.type == "cuda"
    if on_gpu and args.graphs and not (args.compile or args.micro_batch or ranks() > 1):
        return CapturedGradients(gradients, model)
    return gradients


class CapturedGradients:
    """A gradient function as CUDA graphs, one for each shape of a batch: hundreds of operations are launched
    at once. Launched one by one they take a GPU several times as long as their work (docs/gpu.md).

    What a graph reads and writes stays where it is: a batch is copied into `inputs`, gradients are handed to
    the parameters. All graphs share one pool of memory, since they never run at the same time.
    """

    def __init__(self, gradients, model):
        self.gradients, self.model = gradients, model
        self.graphs, self.pool = {}, torch.cuda.graph_pool_handle()

    def __call__(self, batch):
        given = {name: x for name, x in batch._asdict().items() if isinstance(x, torch.Tensor)}
        # A mask that is one stored True stays as it is: by that models.surely_full knows it.
        repeated = {name for name, x in given.items() if x.dtype == torch.bool and not any(x.stride())}
        key = batch.examples, *((name, x.shape, x.dtype, name in repeated) for name, x in given.items())
        if key not in self.graphs:
            inputs = {name: x if name in repeated else x.clone() for name, x in given.items()}
            self.graphs[key] = inputs, *self.capture(batch._replace(**inputs))
        inputs, graph, gradients, result = self.graphs[key]
        for name in given.keys() - repeated:
            inputs[name].copy_(given[name])
        graph.replay()
        for parameter, gradient in zip(self.model.parameters(), gradients):
            parameter.grad = gradient
        return result

    def capture(self, batch):
        """(graph, gradients of the parameters, (loss, metrics)) of a batch that stays in its place. Trains
        nothing: buffers and the random stream are as before."""
        noise = torch.cuda.default_generators[torch.cuda.current_device()]
        offset, buffers = noise.get_offset(), [x.clone() for x in self.model.buffers()]
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):  # once as usual: libraries choose their plans, tables are made
            self.gradients(batch)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        self.model.zero_grad(set_to_none=True)
        try:
            with torch.cuda.graph(graph, pool=self.pool):
                result = self.gradients(batch)
        except RuntimeError as error:
            why = str(error).splitlines()[0]
            raise UserError(f"a step of this model is no CUDA graph ({why}); give --no-graphs") from error
        with torch.no_grad():
            for x, before in zip(self.model.buffers(), buffers):
                x.copy_(before)
        noise.set_offset(offset)
        return graph, [p.grad for p in self.model.parameters()], result


@torch.no_grad()
def evaluate(model, task, loss_fn, hp, autocast, micro_batch, split):
    """Metrics of a whole split, {name: mean}, in eval mode and in large batches. May be stopped anywhere:
    the checkpoint before it stands."""
    model.eval()
    totals = {}
    # Positions at once: those of a part of a training batch fit into memory; a CPU is slower with over 2^14.
    most = (micro_batch or hp["batch_size"]) * task.docs * task.max_length
    if task.test.label.device.type == "cpu":
        most = min(most, 1 << 14)
    with finish_step() if ranks() > 1 else contextlib.nullcontext():  # or one rank leaves the others
        batches = task.evaluation_batches(split, most, rank(), ranks())
        for batch in progress_bar(batches, split):
            with autocast:
                loss, metrics = loss_fn(model, batch)
            add_up(totals, metrics | {"loss": (loss * batch.examples, batch.examples)})
    return means(totals)


def add_up(totals, metrics):
    """Add metrics {name: (sum, count)} to totals, on the device: to read them the host would wait."""
    for name, (more, examples) in metrics.items():
        total, count = totals.get(name, (0.0, 0))
        totals[name] = total + more, count + examples


def mean(total):
    return float(total[0]) / max(1.0, float(total[1]))


def means(totals):
    """{name: mean} over what all ranks have added up."""
    return {name: mean(total) for name, total in sum_totals(totals).items()}


def learning_rate(optimizer):
    """The rate of the run as it is now: that of the input's embedding. SSM states may have others."""
    return optimizer.param_groups[0]["lr"]


def require_finite(state, model, optimizer, schedule):
    """Raise Diverged where a weight, or the loss, whose sum stays NaN after one NaN, is no number."""
    weights = torch.cat([p.detach().flatten() for p in model.parameters()]).isfinite().all()
    if not (weights and math.isfinite(mean(state.totals.get("loss", (0.0, 1))))):
        where = f"at step {state.step}, lr {learning_rate(optimizer):.1e}"
        raise Diverged(f"the loss or a weight is no longer a number {where}; try a lower --lr")


def chance(split):
    """Accuracy of always answering the commonest class of a split."""
    return float(torch.bincount(split.label).max()) / len(split.label)


def warn_at_chance(curve, task, epochs):
    """Warn once, after a tenth of the epochs (at least 5), if no accuracy so far was clearly above chance."""
    share = chance(task.val)
    enough = share + 2 * math.sqrt(share * (1 - share) / len(task.val.label))
    if len(curve) == max(5, epochs // 10) and max(line["val"]["acc"] for line in curve) < enough:
        print(f"warning: still at chance ({share:.1%}) after {len(curve)} validations. Some tasks start")
        print("with a plateau: go on. Or try another --seed or a lower --lr.", flush=True)


def require_compiler(mode, device):
    """Raise UserError for --compile where torch compiles wrong gradients: of an embedding on a CPU they keep
    one of those of a symbol that occurs several times."""
    if mode and device.type == "cpu" and torch.__version__ < (2, 11):
        raise UserError("--compile: on a CPU torch below 2.11 gives wrong gradients; leave the flag out")


def compile_for(task, model, device):
    """Compile a model in place. All models share one forward(), whose 8 graphs earlier ones would use up."""
    if device.type == "cpu":
        print(
            "note: on a CPU --compile takes minutes to begin, a step 1.2 (AMD) or 2.1 (Intel) times as long"
        )
    torch.compiler.reset()
    model.one_length = task.one_length  # as images have: models.SequenceModel then is one graph
    model.compile()


@contextlib.contextmanager
def out_of_memory_advice(model, batch_size, micro_batch):
    """Raise a UserError that names what helps where memory runs out; for the callers of fit."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        known = isinstance(error, (MemoryError, torch.OutOfMemoryError))
        if not known and "can't allocate memory" not in str(error):  # a CPU's words
            raise
        part = min(micro_batch or batch_size, math.ceil(batch_size / ranks())) // 2
        advice = f"continue with --micro-batch {part} (the result is the same)"
        if part == 0 or batch_norms(model):  # whose statistics need the whole batch
            advice = "share the batch between GPUs with torchrun, or give a smaller --batch-size"
        raise UserError(f"out of memory on the device; {advice}") from None


def batch_norms(model):
    """The norms of a model that look across examples: models.Norm, which has a `kind`, or torch's."""
    torchs = torch.nn.modules.batchnorm._BatchNorm
    return [m for m in model.modules() if isinstance(m, torchs) or getattr(m, "kind", None) == "batch"]


def require_splittable(model, batch_size, args):
    """Raise UserError where parts of a batch would not be the same mathematics as the batch."""
    norms, splits = batch_norms(model), (args.micro_batch or batch_size) < batch_size
    if ranks() > 1 and not all(hasattr(norm, "kind") for norm in norms):
        raise UserError("torch's own batch norm is not synchronised here; use models.Norm('batch', ...)")
    if splits and norms:
        raise UserError(
            "--micro-batch: this model's norm needs the whole batch; leave it out, or use torchrun"
        )


# ------------------------------------------------------------------------------------------ checkpoints


def write_atomically(path, content):
    """Write bytes so that `path` holds either the old content or the new one, whatever happens in between."""
    temporary = path.with_name(path.name + ".tmp")
    with open(temporary, "wb") as f:
        f.write(content)
        f.flush()
        os.fsync(f.fileno())
    os.replace(temporary, path)


def save_checkpoint(path, state):
    buffer = io.BytesIO()
    torch.save(state, buffer)
    write_atomically(path, buffer.getvalue())


def load_checkpoint(path, device, remedy="start over with --fresh"):
    """The plain dict in `path`, or None where there is no file. Raises UserError for a damaged one."""
    if not path.exists():
        return None
    try:
        return dict(torch.load(path, map_location=device, weights_only=True))
    except Exception as error:  # torch raises a dozen types for a damaged file
        raise UserError(f"checkpoint {path} cannot be read ({type(error).__name__}); {remedy}") from error
