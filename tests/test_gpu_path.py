"""Every cell for two steps. Before them its forward on a GPU that is not there: on fake CUDA tensors, which
have shapes, types and a device but no numbers, under bf16 autocast. An operation between two devices, a
question to the device (.item(), an `if`, nonzero), an FFT in bf16 or a loss that is not float32 fails."""

import contextlib
import copy
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from conftest import exit_code, flags_of_fit
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

import common
import data
import exp_kernels
import exp_locality
import exp_multitask
import exp_positional
import exp_range
import exp_spt
import models

OLD = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 11)
REASON = "fake CUDA tensors of torch below 2.11 refuse parameters without data"
pytestmark = [pytest.mark.skipif(OLD, reason=REASON), pytest.mark.processes]

COMMANDS = [
    (exp_locality, "--task text retrieval listops pathfinder --kernel 5", 4),
    (exp_locality, "--task image --kernel 5 --norm-place post", 1),
    (exp_multitask, "--task text retrieval --model all", 6),
    (exp_multitask, "--task image --model all --no-techniques", 3),
    (exp_kernels, "--task text --model all", 12),
    (exp_positional, "--task listops --position all", 5),
    (exp_range, "--task text --model all --stride random", 6),
    (exp_spt, "--task retrieval --model all --objective all", 24),
    (exp_spt, "--task image --model all --objective all", 24),
    (exp_spt, "--task listops scifar --model rotary --objective all", 12),
]


class NoHalfFFT(TorchDispatchMode):
    """cuFFT knows no bfloat16."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if "fft" in str(function):
            assert args[0].dtype in (torch.float32, torch.complex64), f"{function} of {args[0].dtype}"
        return function(*args, **(kwargs or {}))


@contextlib.contextmanager
def cuda_autocast():
    """As torch.autocast("cuda", torch.bfloat16), which refuses where there is no GPU."""
    before = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
    torch.set_autocast_enabled("cuda", True)
    torch.set_autocast_dtype("cuda", torch.bfloat16)
    try:
        yield
    finally:
        torch.clear_autocast_cache()
        torch.set_autocast_enabled("cuda", before[0])
        torch.set_autocast_dtype("cuda", before[1])


def on_fake_gpu(mode, x):
    """A tensor like x, of its strides, that seems to be on a GPU. Anything else as it is."""
    if not isinstance(x, torch.Tensor):
        return x
    return FakeTensor(mode, torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta"), "cuda:0")


def forward_on_fake_gpu(model, batch, loss_fn):
    mode = FakeTensorMode()
    model = copy.deepcopy(model)._apply(lambda x: on_fake_gpu(mode, x))
    batch = batch._replace(**{name: on_fake_gpu(mode, x) for name, x in batch._asdict().items()})
    with mode, NoHalfFFT(), cuda_autocast(), torch.no_grad():
        loss, metrics = loss_fn(model, batch)
    assert (loss.device.type, loss.dtype) == ("cuda", torch.float32) and "acc" in metrics
    return loss


@pytest.mark.parametrize("script, words, least", COMMANDS, ids=lambda x: getattr(x, "__name__", str(x))[:40])
def test_every_cell_walks_the_path_of_a_gpu_and_takes_two_steps(script, words, least, tmp_path, monkeypatch):
    """On the four shortest training examples of the stand-ins. In two steps gradients reach all parameters,
    where there is a pretraining but for the head of the other half."""
    load, whole, made, walked = data.load, common.train_step, {}, []
    gradients_of, losses = common.gradient_function, {}

    def short(name, root, **given):
        if str(given) not in made.setdefault(name, {}):
            technique = given.get("technique")
            plain = {"technique": None} if str(technique).startswith("augment") else {}
            task = load(name, root, **given | plain)
            chosen = task.lengths["train"].argsort()[:4]
            made[name][str(given)] = replace(task, train=data.select(task.train, chosen, task.docs))
        return made[name][str(given)]

    def gradient_function(model, loss_fn, *rest):
        losses[model] = loss_fn
        return gradients_of(model, loss_fn, *rest)

    def train_step(model, optimizer, batch, gradients, hp, *rest, **more):
        if script is not exp_spt:
            assert (hp["technique"] is None) == ("--no-techniques" in words)
            assert (batch.target is not None) == (hp["technique"] == "denoise")
        if model not in walked:
            forward_on_fake_gpu(model, batch, losses[model])
            walked.append(model)
        loss = whole(model, optimizer, batch, gradients, hp, *rest, **more)
        assert loss.isfinite()
        return loss

    monkeypatch.setattr(data, "load", short)
    monkeypatch.setattr(common, "gradient_function", gradient_function)
    monkeypatch.setattr(common, "train_step", train_step)
    monkeypatch.setattr(common, "evaluate", lambda *_: {"loss": 1.0, "acc": 0.0})
    flags = "--smoke --epochs 1 --batch-size 2 --device cpu --amp off".split()
    assert exit_code(script.main, *words.split(), *flags, "--out", tmp_path) == 0
    assert len(walked) >= least
    for model in walked:
        missed = [n for n, p in model.named_parameters() if p.grad is None or not p.grad.isfinite().all()]
        other_half = "head.", "denoise_head."
        assert all(script is exp_spt and n.startswith(other_half) for n in missed), (missed, model.arguments)


FAULTS = {
    "two devices": lambda x: (x + torch.ones(2, 2)).sum(),
    "question": lambda x: x.sum() if x.sum() > 0 else -x.sum(),
    "nonzero": lambda x: x[x > 0].sum(),
    "fft": lambda x: torch.fft.rfft(x.bfloat16()).abs().sum().float(),
    "loss": lambda x: x.sum().bfloat16(),
}


@pytest.mark.parametrize("fault", [None, *FAULTS])
def test_the_check_sees_what_a_gpu_does_not_forgive(fault):
    def loss_fn(model, batch):
        logits = model(batch.tokens.float())
        return FAULTS.get(fault, torch.sum)(logits), {"acc": (0, 1)}

    batch = data.Batch(torch.ones(2, 3, dtype=torch.long), torch.ones(2, 3, dtype=torch.bool), torch.ones(2))
    with pytest.raises((AssertionError, RuntimeError)) if fault else contextlib.nullcontext():
        forward_on_fake_gpu(torch.nn.Linear(3, 2), batch, loss_fn)


class Replayed(common.CapturedGradients):
    """Without a GPU: a "graph" computes again, from the tensors of its capture into those of its result."""

    def __init__(self, gradients, model):
        self.gradients, self.model, self.graphs = gradients, model, {}

    def capture(self, batch):
        self.model.zero_grad(set_to_none=True)
        loss, metrics = self.gradients(batch)
        kept = [p.grad for p in self.model.parameters()]

        def replay():
            self.model.zero_grad(set_to_none=True)
            again, more = self.gradients(batch)
            loss.copy_(again)
            for name, values in metrics.items():
                for old, new in zip(values, more[name]):
                    if isinstance(old, torch.Tensor):
                        old.copy_(new)
            for old, p in zip(kept, self.model.parameters()):
                old.copy_(p.grad)

        return SimpleNamespace(replay=replay), kept, (loss, metrics)


@pytest.mark.parametrize("name, technique", [("text", "denoise"), ("image", None)])
def test_captured_steps_train_as_steps_launched_one_by_one(name, technique):
    task = data.load(name, "", smoke=True, technique=technique)
    ends = []
    for kind in (None, Replayed):
        torch.manual_seed(0)
        model = models.SequenceModel("conv", depth=1, d_model=8, d_hidden=8, kernel=3, **task.sizes)
        hp, totals = dict(lr=1e-2, weight_decay=0.1, batch_size=16), {}
        gradients = common.gradient_function(
            model, common.multitask_loss, contextlib.nullcontext(), flags_of_fit(graphs=True)
        )
        gradients = kind(gradients, model) if kind else gradients
        optimizer, noise = common.make_optimizer(model, hp), torch.Generator().manual_seed(0)
        plan = task.plan(16, torch.Generator().manual_seed(0))
        for batch in task.training_batches(plan, noise, 0):
            common.train_step(model, optimizer, batch, gradients, hp, totals)
        ends.append(([p.detach().clone() for p in model.parameters()], common.means(totals)))
    assert 1 < len(gradients.graphs) < len(plan)  # shapes come again, and not all are alike
    (one, means), (other, same) = ends
    assert means == same and all(map(torch.equal, one, other))
