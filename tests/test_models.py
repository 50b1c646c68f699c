"""models.py against naive versions written from each layer's definition, in float64."""

import math
from functools import partial
from unittest import mock

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import common
import models


def randn(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def crandn(*shape, seed=0):
    return torch.complex(randn(*shape, seed=seed), randn(*shape, seed=seed + 1))


def masked(*lengths):
    return torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]


def error(got, want):
    """Largest difference relative to the largest entry of the definition's answer, which may be 0."""
    return ((got - want).abs().max() / want.abs().max().clamp(min=torch.finfo(want.dtype).tiny)).item()


def drawn(block, *names):
    """`block` in float64 with all its parameters, or those named, far from the start."""
    torch.manual_seed(0)
    with torch.no_grad():
        for name, p in block.double().named_parameters():
            if not names or name in names:
                p.normal_()
    return block


def same_gradients(module, x, mask, naive, tolerance=1e-9):
    """module(x, mask) against naive(x, mask), written from the definition: outputs at real positions, and the
    gradient of the input and of every parameter."""
    weights, results = randn(*x.shape, seed=99).to(x.dtype), []
    for function in (module, naive):
        module.zero_grad()
        given = x.clone().requires_grad_()
        y = function(given, mask)[mask]
        (y * weights[mask]).sum().backward()
        results.append([y.detach(), given.grad[mask], *(p.grad for p in module.parameters())])
    for name, got, want in zip(["output", "input", *dict(module.named_parameters())], *results):
        assert error(got, want) < tolerance, name


# ------------------------------------------------------------------------------------------ long kernels


def direct_conv(u, k_fwd, k_bwd=None):
    """y_t = sum_j k_fwd[j] u[t - j] + sum_j k_bwd[j] u[t + j + 1], term by term."""
    y = torch.zeros_like(u)
    for t in range(u.shape[-1]):
        for j in range(min(t + 1, k_fwd.shape[1])):
            y[..., t] += k_fwd[:, j] * u[..., t - j]
    return y if k_bwd is None else y + direct_conv(u.flip(-1), F.pad(k_bwd, (1, 0))).flip(-1)


@pytest.mark.parametrize("length, taps", [(1, 1), (2, 3), (17, 5), (32, 32), (33, 50)])
def test_long_conv_is_the_direct_sum(length, taps):
    u, forward, backward = randn(2, 3, length), randn(3, taps, seed=1), randn(3, taps, seed=2)
    assert error(models.long_conv(u, forward), direct_conv(u, forward)) < 1e-12
    assert error(models.long_conv(u, forward, backward), direct_conv(u, forward, backward)) < 1e-12


@pytest.mark.parametrize("name", ["s4", "s4d", "dlr", "sgconv", "mega", "s5", "lru"])
def test_kernels_and_scans_do_not_notice_autocast(name):
    """Their matrix products would become bf16, two digits instead of seven."""
    block, u = small_model(name, 1).blocks[0], randn(2, 40, 16, dtype=torch.float32)
    compute = block.ema if name == "mega" else getattr(block, "mix_states", lambda u: block.kernel(40))
    with torch.autocast("cpu", torch.bfloat16):
        got = compute(u)
    assert got.dtype == torch.float32 and torch.equal(got, compute(u))


def dense_dplr(Lambda, P, B, C, dt, L, longest=None):
    """S4's kernel from dense matrices: K[l] = C Abar^l Bbar by the recurrence, over all conjugate pairs. With
    `longest` C is C~, what S4 trains: C = C~ (I - Abar^longest)^-1."""
    kernels = []
    for h in range(len(dt)):
        lam, p, b = (torch.cat([z[h], z[h].conj()]) for z in (Lambda, P, B))
        c = torch.cat([C[:, h], C[:, h].conj()], -1)
        A = torch.diag(lam) - torch.outer(p, p.conj())
        one = torch.eye(len(lam), dtype=A.dtype)
        inverse = torch.linalg.inv(one - dt[h] / 2 * A)
        Abar, x, taps = inverse @ (one + dt[h] / 2 * A), dt[h] * inverse @ b, []
        c = c if longest is None else c @ torch.linalg.inv(one - torch.linalg.matrix_power(Abar, longest))
        for _ in range(L):
            taps.append((c @ x).real)
            x = Abar @ x
        kernels.append(torch.stack(taps, 1))
    return torch.stack(kernels, 1)


@pytest.mark.parametrize("L, N", [(50, 16), (51, 64), (255, 8), (1024, 16), (4096, 4)])
def test_s4_kernel_is_the_dense_bilinear_recurrence(L, N):
    dt = torch.tensor([1e-4, 1e-3, 1e-2, 1e-1], dtype=torch.float64)
    Lambda, P, B = (z.repeat(len(dt), 1) for z in models.legs_basis(N)[:3])
    C = crandn(2, len(dt), N // 2)
    want = dense_dplr(Lambda, P, B, C, dt, L)
    C_tilde = models.dplr_c_tilde(Lambda, P, C, dt, L)
    got = models.dplr_kernel(Lambda, P, B, C_tilde, dt, L)
    for h in range(len(dt)):
        assert error(got[:, h], want[:, h]) < 1e-8
    single = models.dplr_kernel(*(z.to(torch.complex64) for z in (Lambda, P, B, C_tilde)), dt.float(), L)
    assert single.dtype == torch.float32 and error(single.double(), want) < 1e-4


@pytest.mark.parametrize("kept", [1 << 24, 1])
def test_s4_kernel_does_many_features_in_parts(kept, monkeypatch):
    """2^18 of its 20 x 32 x 513 terms at once, each part made again for the gradient where they are many."""
    monkeypatch.setattr(models, "KEPT_TERMS", kept)
    system = [z.repeat(20, 1) for z in models.legs_basis(64)[:3]]
    system += [crandn(1, 20, 32), torch.linspace(0.01, 0.1, 20).double()]
    results = []
    for cut in (20, 5):
        given = [z.clone().requires_grad_() for z in system]
        parts = zip(*(z.split(cut, -2 if z.ndim > 1 else 0) for z in given))
        kernel = torch.cat([models.dplr_kernel(*part, 1024) for part in parts], 1)
        (kernel * randn(1, 20, 1024)).sum().backward()
        results.append([kernel.detach(), *(z.grad for z in given)])
    for got, want in zip(*results):
        assert (got - want).abs().max() < 1e-11 * want.abs().max()


def test_hippo_is_the_normal_part_of_its_matrix():
    N = 16
    i = torch.arange(N, dtype=torch.float64)
    b, p = torch.sqrt(2 * i + 1), torch.sqrt(i + 0.5)
    A = -torch.outer(b, b).tril(-1) - torch.diag(i + 1)
    half, P, B, V = models.legs_basis(N)
    whole = torch.cat([V, V.conj()], 1)
    normal = whole @ torch.diag(torch.cat([half, half.conj()])) @ whole.mH
    assert (normal - (A + torch.outer(p, p))).abs().max() < 1e-11
    assert (whole @ torch.cat([P, P.conj()]) - p).abs().max() < 1e-11
    assert (whole @ torch.cat([B, B.conj()]) - b).abs().max() < 1e-11
    assert (half.imag < 0).all() and (V[0].imag.abs() < 1e-15).all()
    assert 40.7 < models.legs_basis(64)[2].imag.abs().max() < 40.8  # not clipped


@pytest.mark.parametrize("size", [0.0, 1e-6, 1e-4, 1e-3, 9e-3, 1.1e-2, 0.1, 1.0])
def test_the_gain_of_a_small_pole_has_the_slope_of_its_series(size):
    """In float32, against (exp(z) - 1) / z = 1 + z / 2! + z^2 / 3! + ... in float64: S5's and S4D's poles lie
    at 1e-4 to 1e-1, where the slope of the quotient is a difference of large numbers. At 0 the gain is 1."""
    z = (size * torch.exp(1j * torch.linspace(1.6, 4.7, 50))).to(torch.complex64).requires_grad_()
    exact = z.detach().to(torch.complex128).requires_grad_()
    _, gain = models.zero_order_hold(z, 1)
    gain.sum().real.backward()
    assert size > 0 or (gain == 1).all()
    sum(exact**k / math.factorial(k + 1) for k in range(20)).sum().real.backward()
    assert error(torch.view_as_real(z.grad), torch.view_as_real(exact.grad)) < (1e-6 if size < 1e-2 else 1e-4)


def test_long_kernels_keep_their_phase():
    """At lag 16,383 an undamped pole has turned 1e5 radians; float32 products of the two are off by 0.006."""
    L, Lambda = 16384, torch.complex(torch.zeros(3), torch.tensor([6.1, 3.3, 1.7]))
    W = torch.ones(1, 1, 3, dtype=torch.complex64)
    want = torch.exp(Lambda.to(torch.complex128)[:, None] * torch.arange(L)).sum(0).real
    block = models.DLRBlock(1, 3, causal=True)
    block.A_root.data, block.A_imag.data, block.W.data = Lambda.real, Lambda.imag, torch.view_as_real(W)
    assert error(block.kernel(L)[0, 0].double(), want) < 1e-5
    assert error(models.power_sum(W, Lambda[None], L)[0, 0].double(), want) < 2e-4
    impulse = torch.zeros(3, 1, L, dtype=torch.complex64)
    impulse[..., 0] = 1
    assert error(models.DiagonalScan.apply(impulse, Lambda, False).real.sum((0, 1)).double(), want) < 1e-5


def test_an_ema_that_forgets_at_once_is_a_single_tap():
    ema = models.DampedEMA(1, 2)
    for p, value in ((ema.alpha, 30.0), (ema.delta, 30.0), (ema.beta, 1.0), (ema.gamma, 1.0)):
        nn.init.constant_(p, value)
    k = ema.kernel(4)
    k.sum().backward()
    torch.testing.assert_close(k.detach(), torch.tensor([[math.sqrt(2), 0, 0, 0]] * 2))
    assert ema.alpha.grad.isfinite().all() and ema.delta.grad.isfinite().all()


@pytest.mark.parametrize("decay", [None, 1.0])
def test_sgconv_starts_normalised_over_its_full_length(decay):
    block = models.SGConvBlock(6, 4, 32, position_decay=decay)
    assert (block.kernel(32).norm(dim=-1) - 1).abs().max() < 1e-6
    assert torch.equal(block.kernel(20), block.kernel(32)[..., :20])


def test_c_of_s5_starts_on_the_scale_of_its_recipe():
    torch.manual_seed(0)
    for c_init, fan in (("lecun", 64 * 32), ("trunc", 64)):
        s5 = models.S5Block(32, 64, c_init=c_init)
        assert abs(s5.C_weight.square().mean() * fan - 1) < 0.1
    assert (s5.norm.momentum, models.LRUBlock(8).norm.momentum) == (0.05, 0.01)


# ------------------------------------------------------------------------------------------ blocks


def test_gmlp_block_is_its_equation():
    block = drawn(models.GMLPBlock(6, 8, 20, channels=4), "kernel_taps", "kernel_bias")

    def naive(x, mask):
        z1, z2 = F.gelu(block.input_linear(block.norm(x, mask))).split(8, -1)
        taps = (block.kernel_taps / 8).repeat(2, 1)  # n_fft = 64: the power of two from 20 + 41 on
        s = direct_conv((z2 * mask[..., None]).mT, taps[:, 20:], taps[:, :20].flip(1)).mT
        s = block.norm_gate(s + block.kernel_bias.repeat(2))
        return x + block.output_linear(z1 * s)

    same_gradients(block, randn(2, 11, 6), masked(11, 9), naive)


def test_gmlp_keeps_its_small_signals_in_float32():
    """The convolution starts at 1e-6 beside a bias of 1, which the norm behind it takes away again."""
    results = []
    for dtype in (torch.float64, torch.float32):
        torch.manual_seed(0)
        block = models.GMLPBlock(16, 24, max_length=64).to(dtype)
        x, mask = randn(2, 32, 16).to(dtype), torch.ones(2, 32, dtype=torch.bool)
        (block(x, mask) * randn(2, 32, 16, seed=1).to(dtype)).sum().backward()
        weights = block.input_linear, block.norm_gate, block.output_linear
        results.append([linear.weight.grad.double() for linear in weights])
    for exact, single in zip(*results):
        assert error(single, exact) < 1e-5


def turned(x, theta):
    """x (..., L, D), as D / 2 complex numbers at each position t, times exp(i t theta)."""
    turns = torch.exp(1j * torch.arange(x.shape[-2])[:, None] * theta)
    pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(pairs * turns).flatten(-2)


def test_the_phases_of_rotary_positions_are_not_bf16():
    x = randn(2, 50, 16).bfloat16()
    got, theta = models.rotate(x, 16), 10000.0 ** (-2 * torch.arange(8, dtype=torch.float64) / 16)
    assert got.dtype == torch.bfloat16 and error(got.double(), turned(x.double(), theta)) < 0.01


def naive_transformer(block, x, mask, rotary=None, causal=False, window=None):
    """A Transformer layer of 2 heads with explicit matrices; rotary frequencies of base 100."""
    pre, t = block.norm_place == "pre", torch.arange(x.shape[1])

    def residual(x, norm, branch):
        return x + branch(norm(x, mask)) if pre else norm(x + branch(x), mask)

    def turn(z, width):
        theta = 100.0 ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
        return turned(z, theta * (torch.arange(width // 2) % 2))  # half of them are disabled

    def attend(z):
        q, k, v = block.attention.qkv_linear(z).chunk(3, -1)
        q, k = (turn(z, 8) for z in (q, k)) if rotary == "full" else (q, k)
        q, k, v = (z.unflatten(-1, (2, 4)).transpose(1, 2) for z in (q, k, v))
        q, k = (turn(z, 4) for z in (q, k)) if rotary == "heads" else (q, k)
        seen = (t[:, None] >= t) | (not causal)
        seen = seen & ((t[:, None] // window - t // window).abs() <= 1) if window else seen
        seen = seen & mask[:, None, None] | (t[:, None] == t)
        weight = (q @ k.mT / 2).masked_fill(~seen, -torch.inf).softmax(-1)
        return block.attention.output_linear((weight @ v).transpose(1, 2).flatten(2))

    x = residual(x, block.norm1, attend)
    return residual(x, block.norm2, lambda z: block.output_linear(block.activation(block.input_linear(z))))


ATTENTIONS = [{}, {"rotary": "full"}, {"rotary": "heads"}, {"window": 4}, {"window": 64}, {"window": 5}]
ATTENTIONS += [options | {"causal": True} for options in ATTENTIONS]
REST = [dict(activation=f, prenorm=pre) for f in ("relu", "gelu") for pre in (True, False)]


@pytest.mark.parametrize("options", [*ATTENTIONS, *REST])
@pytest.mark.parametrize("real", [12, 9])
def test_transformers_are_their_explicit_matrices(options, real):
    half = {"base": 100.0, "disable_half": True} if "rotary" in options else {}
    block = drawn(models.TransformerBlock(8, 6, heads=2, **options, **half))
    assert block.activation is (F.gelu if options.get("activation") == "gelu" else F.relu)
    naive = partial(naive_transformer, block, **(options if options in ATTENTIONS else {}))
    same_gradients(block, randn(2, 12, 8), masked(12, real), naive)


def moving_average(ema, u, scale=1.0):
    """MEGA's damped EMA of u (B, L, D), both directions from lag 0, by its formula."""
    p, q = ema.delta.sigmoid(), 1 - ema.delta.sigmoid() * ema.alpha.sigmoid()
    powers = q[..., None] ** torch.arange(min(u.shape[1], ema.truncation or u.shape[1]))
    weight = scale * ema.gamma * ema.beta * p / ema.beta.shape[1] ** 0.5
    past, future = (weight[..., None] * powers).sum(1).split(u.shape[2])
    return (direct_conv(u.mT, past) + direct_conv(u.mT.flip(-1), future).flip(-1)).mT


def mega_reference(block, x, mask):
    """MEGA's equations with explicit matrices; x (1, L, D), all in float64."""
    L, D, E = x.shape[1], x.shape[2], block.value_linear.out_features
    z = block.norm(x, mask) if block.norm_place == "pre" else x
    v = F.silu(block.value_linear(z))
    u = z * mask[..., None]
    m = F.silu(moving_average(block.ema, u) + block.ema.omega * u)
    base = block.ema_linear(m)
    Z = base.shape[-1] - 2 * D - E
    update, zr, h = base.split([D, Z + E, D], -1)
    shared, reset = F.silu(zr).split([Z, E], -1)
    q, k = (shared * block.query_key_scale[i] + block.query_key_bias[i] for i in range(2))
    keys, want = [s for s in range(L) if mask[0, s]], []
    for t in range(L):
        bias = torch.stack([block.relative_bias[block.max_length - 1 + s - t] for s in keys])
        want.append(((q[0, t] * k[0, keys]).sum(-1) / Z**0.5 + bias).softmax(0) @ v[0, keys])
    h = F.silu(h + block.update_linear(torch.stack(want)[None] * reset))
    return x + update.sigmoid() * (h - x)


@pytest.mark.parametrize("prenorm", [False, True])
def test_mega_is_its_equations(prenorm, monkeypatch):
    """And again a few queries at a time, as long sequences attend."""
    block = drawn(models.MegaBlock(4, 6, 3, 2, 16, prenorm=prenorm))

    def naive(x, mask):
        x = torch.cat([mega_reference(block, x[i : i + 1], mask[i : i + 1]) for i in range(len(x))])
        x = x if prenorm else block.norm(x, mask)
        z = block.norm_ff(x, mask) if prenorm else x
        x = x + block.output_linear(F.silu(block.input_linear(z)))
        return x if prenorm else block.norm_ff(x, mask)

    x, mask = randn(2, 13, 4), masked(13, 10)
    same_gradients(block, x, mask, naive)
    monkeypatch.setattr(models, "MOST_SCORES", {"cpu": 1})
    monkeypatch.setattr(models, "QUERIES_AT_ONCE", 5)
    same_gradients(block, x, mask, naive)


def ema_attention_reference(block, x, mask):
    """Paper A's EMA attention, term by term; x (1, L, D)."""
    a, D = block.attention, x.shape[2]
    n = block.norm1(x, mask) * mask[..., None]
    # Their FFT has room for the longest sequence and a kernel of 2 taps - 1: 31 + 63, or 40 + 13, places.
    places = {32: 128, 7: 64}[a.ema.truncation]
    average = moving_average(a.ema, n, places**-0.5)
    m = F.silu(average + a.ema.omega * n)
    E, Z = a.value_linear.out_features, a.query_key_scale.shape[1]
    z, gamma, h, phi = a.ema_linear(m).split([Z, E, D, D], -1)
    theta = 1e4 ** (-torch.arange(0, Z, 2, dtype=torch.float64) / Z) * (torch.arange(Z // 2) % 2)
    q, k = (turned(F.silu(z)[0] * a.query_key_scale[i] + a.query_key_bias[i], theta) for i in range(2))
    scores = q @ k.mT / Z**0.5
    o = scores.masked_fill(~mask, -torch.inf).softmax(-1) @ F.silu(a.value_linear(n))[0]
    h = F.silu(h + F.silu(gamma) * o[None] @ a.update_linear.weight.T)
    x = x + phi.sigmoid() * h + (1 - phi.sigmoid()) * n
    return x + block.output_linear(F.relu(block.input_linear(block.norm2(x, mask))))


@pytest.mark.parametrize("truncation", [None, 7])
def test_ema_attention_is_its_formulas(truncation, monkeypatch):
    longest = 31 if truncation is None else 40
    options = dict(ema_dim=3, max_length=longest, truncation=truncation)
    block = drawn(models.EMAAttentionBlock(4, 5, 6, 8, **options))
    x, mask = randn(1, 13, 4), torch.arange(13)[None] < 10
    for most in (1 << 24, 1):
        monkeypatch.setattr(models, "MOST_SCORES", {"cpu": most})
        monkeypatch.setattr(models, "QUERIES_AT_ONCE", 4)
        same_gradients(block, x, mask, lambda x, mask: ema_attention_reference(block, x, mask))


def test_ema_attention_starts_on_its_authors_scale_and_drops_nothing_itself():
    """On ListOps their FFT has 8,192 places: 2,000 positions and a kernel of 4,001 taps."""
    options = dict(d_ff=4, d_hidden=4, d_attention=4, dropout=0.5)
    assert models.EMAAttentionBlock(4, max_length=2000, **options).attention.ema.scale == 8192**-0.5
    attention, x = models.EMAAttentionBlock(4, max_length=20, **options).attention, torch.randn(2, 9, 4)
    assert torch.equal(attention(x, masked(9, 9)), attention(x, masked(9, 9)))


def s4_taps(block, L):
    parts = [torch.complex(-block.log_A_real.exp(), block.A_imag), torch.view_as_complex(block.B)]
    parts += [torch.view_as_complex(block.P)] if block.low_rank else []
    Lambda, B, *P = (z.repeat(3, 1) for z in parts)  # two copies for six features
    C, dt = torch.view_as_complex(block.kernel_C), block.log_dt.exp()
    if P:
        return dense_dplr(Lambda, *P, B, C, dt, L, block.max_length)
    pole = (Lambda * dt[:, None]).exp()
    x, taps = (pole - 1) / Lambda * B, []
    for _ in range(L):
        taps.append(2 * (C * x).sum(-1).real)
        x = pole * x
    return torch.stack(taps, -1)


def dlr_taps(block, L):
    Lambda = torch.complex(-block.A_root.square(), block.A_imag)
    powers = (Lambda[:, None] * torch.arange(L)).exp()
    return (torch.view_as_complex(block.W)[..., None] * powers).sum(2).real


def sgconv_taps(block, L):
    (S, *_, d), pieces = block.kernel_taps.shape, []
    for i, taps in enumerate(block.kernel_taps):
        stretch = 2 ** max(0, i - 1)
        for x in range(d * stretch):  # sample at (x + 1/2) / stretch - 1/2 between the taps, held at the ends
            at = min(max((x + 0.5) / stretch - 0.5, 0), d - 1)
            low = min(int(at), d - 2)
            tap = (1 - (at - low)) * taps[..., low] + (at - low) * taps[..., low + 1]
            decay = block.position_decay
            pieces.append(tap * 2 ** (S - 1 - i) if decay is None else tap / (len(pieces) + 1) ** decay)
    return torch.stack(pieces[:L], -1) * block.kernel_scale


def free_taps(block, L):
    w = block.kernel_taps[..., :L]
    return w.sign() * torch.maximum(w.abs() - block.threshold, torch.zeros_like(w))


KERNELS = {
    "s4": (s4_taps, {"d_state": 8, "max_length": 19, "n_ssm": 2, "dt_min": 0.05, "dt_max": 0.5}),
    "s4d": (s4_taps, {"d_state": 8, "n_ssm": 2, "dt_min": 0.05, "dt_max": 0.5}),
    "dlr": (dlr_taps, {"d_state": 6}),
    "sgconv": (sgconv_taps, {"kernel_dim": 4, "max_length": 32}),
    "sgconv falling": (sgconv_taps, {"kernel_dim": 4, "max_length": 32, "position_decay": 1.0}),
    "free": (free_taps, {"max_length": 20, "threshold": 0.5, "kernel_dropout": 0.0}),
}


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", KERNELS)
def test_blocks_with_a_kernel_are_their_equations(name, causal):
    taps, options = KERNELS[name]
    torch.manual_seed(0)
    block = models.BLOCKS[name.split()[0]](6, causal=causal, **options).double()
    if name == "free":
        drawn(block, "kernel_taps")

    def naive(x, mask):
        z = block.norm(x, mask) * mask[..., None]
        y = direct_conv(z.mT, *taps(block, x.shape[1])).mT + block.skip_weight * z
        return x + F.glu(block.output_linear(F.gelu(y)))

    same_gradients(block, randn(2, 13, 6), masked(13, 8), naive)


def test_free_taps_are_dropped_in_training():
    block = drawn(models.FreeBlock(6, 20, threshold=0.5, kernel_dropout=0.3), "kernel_taps")
    dropped, whole = block.kernel(20), block.eval().kernel(20)
    kept = dropped != 0
    torch.testing.assert_close(dropped[kept], whole[kept] / 0.7)
    assert abs(kept.sum() / (whole != 0).sum() - 0.7) < 0.2


@pytest.mark.parametrize("length, causal", [(1, False), (31, True), (64, False), (70, False), (1030, True)])
@pytest.mark.parametrize("activation", ["half_glu1", "half_glu2", "full_glu", "lru"])
def test_s5_and_lru_are_their_loops(activation, length, causal):
    torch.manual_seed(0)
    options = {"d_state": 8, "causal": causal, "norm": "layer"}
    lru, s5_options = activation == "lru", {"blocks": 2, "activation": activation}
    block = (models.LRUBlock(6, **options) if lru else models.S5Block(6, **options, **s5_options)).double()

    def naive(x, mask):
        u = block.norm(x, mask) * mask[..., None]
        B, C = (torch.view_as_complex(p) for p in (block.B_weight, block.C_weight))
        if not lru:
            Lambda = torch.complex(block.Lambda_real, block.Lambda_imag)
            pole = (Lambda * block.log_step.exp()).exp()
            gain, factor = (pole - 1) / Lambda, 2  # one pole of each conjugate pair
        else:
            pole = torch.exp(torch.complex(-block.nu_log.exp(), block.theta_log.exp()))
            gain, factor = block.gamma_log.exp(), 1
        y = block.skip_weight * u
        for direction in range(1 if causal else 2):
            state, states = torch.zeros(len(x), len(B), dtype=B.dtype), [None] * length
            for t in range(length) if direction == 0 else reversed(range(length)):
                state = states[t] = pole * state + u[:, t].to(B.dtype) @ (gain[:, None] * B).T
            y = y + factor * (torch.stack(states, 1) @ C[:, direction * len(B) :][:, : len(B)].T).real
        q = F.gelu(y, approximate="tanh")
        if lru:
            return x + F.glu(block.output_linear(q))
        W = block.gate_linear(q)
        if block.activation == "full_glu":
            return x + W[..., :6] * W[..., 6:].sigmoid()
        return x + (y if block.activation == "half_glu2" else q) * W.sigmoid()

    same_gradients(block, randn(2, length, 6), masked(length, max(1, length - 9)), naive)


CONVOLUTIONS = [(1, 1, 50), (7, 1, 3), (5, 1, 50), (13, 4, 50), (31, 2, 1), (31, 32, 50), (61, 8, 200)]


@pytest.mark.parametrize(
    "place, activation, dilation", [("pre", "relu", 1), ("post", "gelu", 1), ("after", "relu", 3)]
)
@pytest.mark.parametrize("kernel, groups, length", CONVOLUTIONS)
def test_conv_blocks_are_their_equations(place, activation, dilation, kernel, groups, length):
    options = dict(norm_place=place, activation=activation, dilation=dilation)
    block = drawn(models.ConvBlock(32, 64, kernel, groups, **options))
    given = dict(padding=dilation * (kernel // 2), dilation=dilation, groups=groups)

    def naive(x, mask):
        z = (block.norm(x, mask) if place == "pre" else x) * mask[..., None]
        z = F.conv1d(z.mT, block.conv.weight, block.conv.bias, **given).mT
        y = x + block.linear(getattr(F, activation)(block.norm(z, mask) if place == "after" else z))
        return block.norm(y, mask) if place == "post" else y

    same_gradients(block, randn(2, length, 32), masked(length, max(1, length - 19)), naive)


def naive_decay(block, u, mask):
    """Attention with decay, one state after the other; Mamba-2's block with explicit shifts."""
    L, H, N, heads = u.shape[1], block.norm_output.weight.numel(), block.sizes[1], block.heads
    z = block.norm(u, mask) * mask[..., None]
    x, b, c, dt = (z @ block.input_linear.weight.T).split(block.sizes, -1)
    if block.decay == "rotary":  # as complex numbers
        turns = torch.exp(1j * torch.arange(L)[:, None] * block.log_theta.exp())
        b, c = (torch.complex(z[..., ::2], z[..., 1::2]) * turns for z in (b, c))
        b, c = (torch.stack([z.real, z.imag], -1).flatten(-2) for z in (b, c))
    if mamba2 := isinstance(block, models.Mamba2Block):
        xbc = F.pad(torch.cat([x, b, c], -1), (0, 0, 3, 0))
        xbc = sum(xbc[:, j : j + L] * block.conv.weight[:, 0, j] for j in range(4)) + block.conv.bias
        x, b, c = F.silu(xbc).split((H, N, N), -1)
        x = x * mask[..., None]
    b = b[..., None] + (0 if block.b_bias is None else block.b_bias)  # (B, L, N, H or 1)
    y = torch.zeros_like(x)
    for way in range(2):
        a = torch.ones_like(x)
        if block.decay != "none":
            rate = block.dt_bias[way] + (dt[..., way * heads :][..., :heads] if dt.shape[2] else 0)
            a = (1 / (1 + rate.exp())).expand(*u.shape[:2], heads).repeat_interleave(H // heads, 2)
        state, there = torch.zeros(len(u), N, H, dtype=u.dtype), [None] * L
        for t in range(L) if way == 0 else reversed(range(L)):
            state, new = a[:, t, None] * state, b[:, t] * x[:, t, None]
            # On the way back position t itself comes after its sum: the way there has counted it.
            state, there[t] = state + new, (c[:, t, :, None] * (state + new * (way == 0))).sum(1)
        y = y + torch.stack(there, 1)
    if mamba2:
        y = (y + block.skip_weight * x) * F.silu(z @ block.gate_linear.weight.T)
    y = y / (y.square().mean(-1, keepdim=True) + 1e-5).sqrt() * block.norm_output.weight
    return u + y @ block.output_linear.weight.T


@pytest.mark.parametrize("length", [1, 2, 31, 33, 300])
@pytest.mark.parametrize("name", ["decay-none", "decay-fixed", "decay-rotary", "decay-selective", "mamba2"])
@pytest.mark.parametrize("b_bias", [False, True])
def test_attention_with_decay_is_its_loop(name, length, b_bias):
    """Lengths within a chunk of 32, at its end and over several."""
    torch.manual_seed(0)
    block, ones = (
        models.BLOCKS[name](6, d_state=4 if name == "decay-rotary" else 3, heads=2, b_bias=b_bias),
        ("norm_output.weight", "skip_weight"),
    )
    block = drawn(block, *({*ones, "b_bias"} & dict(block.named_parameters()).keys()))
    mask = masked(length, max(1, length - 9))
    same_gradients(block, randn(2, length, 6), mask, partial(naive_decay, block))


# ------------------------------------------------------------------------------------------ norms, pooling


@pytest.mark.parametrize("lengths", [[7, 3, 5], [7, 7, 7]])
@pytest.mark.parametrize("kind", ["layer", "batch", "scale"])
def test_norms_are_torchs_and_batch_norm_leaves_padding_out(kind, lengths):
    (x, mask), norm = (randn(3, 7, 5), masked(*lengths)), models.Norm(kind, 5, 0.3).double()
    for p in norm.parameters():
        nn.init.uniform_(p, 0.5, 2)
    if kind == "layer":
        assert torch.allclose(norm(x, mask), F.layer_norm(x, (5,), norm.weight, norm.bias))
    elif kind == "scale":
        want = norm.weight * x / torch.sqrt(x.square().mean(-1, keepdim=True) + 1e-5)
        assert torch.allclose(norm(x, mask), want)
    else:
        reference = nn.BatchNorm1d(5, momentum=0.3).double()
        reference.load_state_dict(norm.state_dict() | {"num_batches_tracked": torch.tensor(0)})
        assert torch.allclose(norm(x, mask)[mask], reference(x[mask]))
        assert torch.allclose(norm.running_mean, reference.running_mean)
        assert torch.allclose(norm.running_var, reference.running_var)
        assert torch.allclose(norm.eval()(x, mask)[mask], reference.eval()(x[mask]))


def test_pooling_reads_valid_positions_only():
    x, mask = randn(2, 5, 3), torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]]).bool()
    assert torch.allclose(models.pool_positions(x, mask, "mean")[1], x[1, :2].mean(0))
    assert torch.allclose(models.pool_positions(x, mask, "max")[1], x[1, :2].amax(0))
    assert torch.equal(models.pool_positions(x, mask, "last"), torch.stack([x[0, 4], x[1, 1]]))
    assert models.pool_positions(x.bfloat16(), mask).dtype == torch.float32


def test_dropout_is_for_training_and_tied_over_positions_where_asked():
    x = torch.ones(8, 50, 64)
    for tied in (False, True):
        block = models.ResidualBlock(64, dropout=0.25, tie_dropout=tied)
        y = block.drop(x)
        assert torch.equal(block.eval().drop(x), x)
        kept = y != 0
        assert torch.allclose(y[kept], torch.tensor(4 / 3)) and abs(kept.float().mean() - 0.75) < 0.1
        assert (kept == kept[:, :1]).all() == tied and not (kept == kept[:1]).all()


# ------------------------------------------------------------------------------------------ models

# fmt: off
MEGA = {"d_hidden": 24, "d_attention": 8, "ema_dim": 4, "max_length": 64}
SMALL = {  # every block at a size that a test can afford
    "conv": {"d_hidden": 24, "kernel": 15, "groups": 2},
    "transformer": {"d_ff": 32, "heads": 4, "position": "rotary", "disable_half": True},
    "gmlp": {"d_hidden": 24, "max_length": 64},
    "mega": MEGA,
    "ema-attention": {"d_ff": 24, **MEGA},
    "s4": {"d_state": 8, "max_length": 64, "n_ssm": 2},
    "s4d": {"d_state": 8, "n_ssm": 2},
    "s5": {"d_state": 8, "blocks": 2},
    "lru": {"d_state": 8},
    "dlr": {"d_state": 8},
    "sgconv": {"kernel_dim": 4, "max_length": 64},
    "free": {"max_length": 64},
    "decay-none": {"d_state": 8},
    "decay-fixed": {"d_state": 8},
    "decay-rotary": {"d_state": 8},
    "decay-selective": {"d_state": 8},
    "mamba2": {"d_state": 8},
}
VARIANTS = {  # the block is the name's first word
    "transformer B": {"d_ff": 32, "activation": "gelu", "position": "rotary-heads", "final_norm": "layer"},
    "transformer learned": {"d_ff": 32, "position": "learned", "max_length": 64},
    "mega batch": MEGA | {"norm": "batch", "prenorm": True},
    "mega scale": MEGA | {"norm": "scale", "truncation": 16, "embedding_std": 0.25},
    "conv post": SMALL["conv"] | {"norm_place": "post"},
    "conv after": SMALL["conv"] | {"norm_place": "after"},
    "s4 batch": SMALL["s4"] | {"norm": "batch", "final_norm": "batch"},
    "s5 full glu": {"d_state": 8, "activation": "full_glu", "c_init": "trunc", "clip_eigs": True},
}
CAUSAL = ("transformer", "s4", "s4d", "s5", "lru", "dlr", "sgconv", "free")
VARIANTS |= {f"{name} causal": SMALL[name] | {"causal": True} for name in CAUSAL}
# fmt: on
ALL = {name: (name.split()[0], args) for name, args in (SMALL | VARIANTS).items()}


def small_model(name, depth=2, **overrides):
    torch.manual_seed(0)
    block, args = ALL[name]
    given = {"vocab": 20, "classes": 10, "denoise": True} | args | overrides
    return models.SequenceModel(block, depth, 16, **given)


def tokens_and_mask(*lengths):
    mask = masked(*lengths)
    return torch.randint(1, 20, mask.shape, generator=torch.Generator().manual_seed(1)) * mask, mask


# Of each block in SMALL: the sum of all |weights| drawn from seed 0, and a loss.
# fmt: off
GOLDEN = {
    "conv": (661.94, 2.29319), "transformer": (848.94, 2.39808), "gmlp": (655.06, 2.08498),
    "mega": (1020.90, 2.36444), "ema-attention": (1514.40, 2.04600), "s4": (1053.69, 2.34160),
    "s4d": (1042.81, 2.36525), "s5": (605.02, 2.70988), "lru": (964.50, 2.23289), "dlr": (621.50, 2.33651),
    "sgconv": (1494.50, 2.08259), "free": (487.46, 2.25386), "decay-none": (544.46, 2.42113),
    "decay-fixed": (601.67, 2.34996), "decay-rotary": (629.30, 2.38626),
    "decay-selective": (633.95, 2.26164), "mamba2": (1060.38, 2.28396),
}
# fmt: on


@pytest.mark.parametrize("name", GOLDEN)
def test_models_start_and_compute_as_they_always_did(name):
    """Training in progress and records must find the model that they began with."""
    if name in ("s5", "lru") and tuple(map(int, torch.__version__.split(".")[:2])) < (2, 12):
        pytest.skip("torch below 2.12 draws truncated normals otherwise")
    model, (tokens, mask) = small_model(name).eval(), tokens_and_mask(40, 23)
    loss = F.cross_entropy(model.classify(model(tokens, mask), mask), torch.tensor([1, 2])).item()
    found = sum(p.abs().sum() for p in model.parameters()).item(), loss
    assert found == pytest.approx(GOLDEN[name], rel=2e-4)


@pytest.mark.parametrize("name", ALL)
def test_padding_changes_nothing_and_gradients_reach_every_parameter(name):
    model, (tokens, mask) = small_model(name), tokens_and_mask(40, 23, 17)
    features = model(tokens, mask)
    loss = F.cross_entropy(model.classify(features, mask), torch.tensor([1, 2, 3]))
    (loss + F.cross_entropy(model.denoise(features[mask]), tokens[mask])).backward()
    for parameter, p in model.named_parameters():
        assert p.grad is not None and p.grad.isfinite().all() and p.grad.abs().max() > 0, parameter
    model.eval()
    with torch.no_grad():
        logits = model.classify(model(tokens, mask), mask)
        for rows, length in ((slice(1, 2), 23), (slice(2, 3), 17), (slice(None), 61)):
            given = [F.pad(z, (0, 21))[rows, :length] for z in (tokens, mask)]
            assert (model.classify(model(*given), given[1]) - logits[rows]).abs().max() < 1e-5


@pytest.mark.parametrize("name", SMALL)
def test_bf16_autocast_agrees_with_float32(name):
    """At L = 2,048: within 3 % of the features' scale (bf16 has 8 bits: 0.4 % a rounding, two layers)."""
    extra = {"window": 512} if name == "transformer" else {}
    model, (tokens, mask) = small_model(name, max_length=2048, **extra).eval(), tokens_and_mask(2048)
    with torch.no_grad():
        want = model(tokens, mask)
        with torch.autocast("cpu", torch.bfloat16):
            got = model(tokens, mask)
    assert (got.float() - want).square().mean().sqrt() < 0.03 * want.square().mean().sqrt()


@pytest.mark.parametrize("has_amx", [True, False])
def test_long_convolutions_in_bf16_on_both_kinds_of_cpu(monkeypatch, has_amx):
    """A processor with AMX takes the direct form, which rounds to bf16 (0.4 %); at a kink it may take the
    other side, so gelu."""
    monkeypatch.setattr(models, "HAS_AMX", has_amx)
    monkeypatch.setattr(models, "chunked_conv1d", by_fft := mock.Mock(wraps=models.chunked_conv1d))
    block, x = models.ConvBlock(16, 32, 31, activation="gelu"), randn(2, 100, 16).float()
    mask = masked(100, 81)
    want = torch.autograd.grad(block.double()(x.double(), mask).square().sum(), block.conv.weight)[0]
    with torch.autocast("cpu", torch.bfloat16):
        got = torch.autograd.grad(block.float()(x, mask).square().sum(), block.conv.weight)[0]
    assert by_fft.call_count == (1 if has_amx else 2)  # in float64 always
    assert (got - want).norm() < 0.03 * want.norm()


def test_parameter_counts_of_paper_a():
    """In millions, as Tables 5 and 6 imply with the papers' vocabularies and heads, denoising head left out;
    Table 7's convolutions: test_locality.py."""

    def millions(*args, **kwargs):
        with torch.device("meta"):
            model = models.SequenceModel(*args, **kwargs)
        return round(sum(p.numel() for p in model.parameters()) / 1e6, 3)

    # fmt: off
    for vocab, classes, docs, (width, depth, d_ff), (layers, channels, L), want in (
        ( 259, 10, 1, (160, 10, 320), (10, 2, 1024), (2.109, 1.073)),  # CIFAR-10
        ( 258,  2, 1, (128,  6, 256), ( 6, 2, 1024), (0.828, 0.656)),  # Pathfinder
        ( 259,  2, 1, (256,  8, 512), ( 6, 2, 4096), (4.283, 0.730)),  # Text
        ( 259,  2, 2, (128,  6, 256), ( 6, 2, 4096), (0.960, 0.862)),  # Retrieval
        (  17, 10, 1, (256,  6, 512), ( 6, 4, 2000), (3.170, 0.698)),  # ListOps
    ):
    # fmt: on
        task = {"vocab": vocab, "classes": classes, "docs": docs}
        gmlp = {"d_hidden": 256, "channels": channels, "max_length": L}
        transformer = millions("transformer", depth, width, d_ff=d_ff, **task)
        assert (transformer, millions("gmlp", layers, 128, **gmlp, **task)) == want


@pytest.mark.parametrize("pair, read", [("[x;y]", [2, 5]), ("[u,v,u-v,u*v]", [2, 5, -3, 10])])
def test_documents_of_a_pair_do_not_meet_before_the_head(pair, read):
    assert [float(z) for z in models.PAIRS[pair](torch.tensor(2.0), torch.tensor(5.0))] == read
    model = small_model("transformer", docs=2, classes=2, pair=pair)
    tokens, mask = tokens_and_mask(30, 20, 25, 30)
    together = model(tokens, mask)[mask]
    alone = [model(tokens[i : i + 1], mask[i : i + 1])[0][mask[i]] for i in range(4)]
    torch.testing.assert_close(together, torch.cat(alone), atol=1e-5, rtol=0)
    x = model(tokens, mask).detach().requires_grad_()
    logits = model.classify(x, mask, docs=2)
    (gradient,) = torch.autograd.grad(logits[0].sum(), x)
    assert logits.shape == (2, 1)
    assert (gradient[:2].abs().amax((1, 2)) > 0).all() and gradient[2:].abs().max() == 0


def test_wrong_choices_are_named():
    given = {"block": "conv", "depth": 1, "d_model": 8, "vocab": 9, "classes": 2}
    for name, value in dict(block="lstm", pooling="sum", position="rotary", pair="[x]", input="text").items():
        with pytest.raises(ValueError, match=name):
            models.SequenceModel(**given | {name: value})


@pytest.mark.parametrize("name", ["gmlp", "mega", "s4", "sgconv", "free", "transformer learned"])
def test_sequences_beyond_max_length_are_refused(name):
    with pytest.raises(ValueError, match="at most 64"):
        small_model(name)(*tokens_and_mask(65))


def test_an_own_block_is_told_the_longest_sequence_if_it_asks(monkeypatch):
    for block in (type("Mine", (models.GMLPBlock,), {}), partial(models.FreeBlock, threshold=0.1)):
        monkeypatch.setitem(models.BLOCKS, "mine", block)
        assert models.SequenceModel("mine", 1, 8, 9, 2, max_length=77).blocks[0].max_length == 77


def test_a_row_that_a_block_does_not_take_is_named():
    with pytest.raises(ValueError, match="no argument groups, width;"):
        sizes = dict(d_ff=8, d_hidden=8, d_attention=4)
        models.SequenceModel("ema-attention", 1, 8, 9, 2, **sizes, groups=1, width=2)


# Parameters that decay beside linear weights, by name (common.decays) and by what a block asks for itself.
# fmt: off
DECAYED = {
    "conv": "conv.weight", "gmlp": "kernel_taps", "s4": "kernel_C skip_weight", "s4d": "kernel_C skip_weight",
    "s5": "C_weight skip_weight", "lru": "C_weight skip_weight", "dlr": "skip_weight",
    "sgconv": "kernel_taps skip_weight", "free": "skip_weight", "mamba2": "conv.weight skip_weight",
}
STATES = {  # those with a learning rate of their own
    "s4": "log_A_real A_imag B P", "s4d": "log_A_real A_imag B", "dlr": "A_root A_imag W",
    "s5": "Lambda_real Lambda_imag log_step B_weight", "lru": "nu_log theta_log gamma_log B_weight",
    "sgconv": "kernel_taps", "free": "kernel_taps",
}
# fmt: on


def rates_and_decay(name, **overrides):
    """{parameter of the one block: (its rate, or 0.01, the run's; its weight decay)}"""
    model = small_model(name, 1, **overrides)
    groups = common.parameter_groups(model, dict(lr=0.01, weight_decay=0.2))
    found = {id(p): (g["lr"], g["weight_decay"]) for g in groups for p in g["params"]}
    return {n: found[id(p)] for n, p in model.blocks[0].named_parameters()}, model.blocks[0]


@pytest.mark.parametrize("name", SMALL)
def test_the_decay_and_the_rates_of_every_block(name):
    found, block = rates_and_decay(name)
    linear = {n + ".weight" for n, m in block.named_modules() if isinstance(m, nn.Linear)}
    assert {n for n, (_, decay) in found.items() if decay} == linear | {*DECAYED.get(name, "").split()}
    assert {n for n, (lr, _) in found.items() if lr != 0.01} == {*STATES.get(name, "").split()}
    assert {lr for lr, _ in found.values()} <= {0.01, 0.0001 if name == "dlr" else 0.001}


def test_the_rates_of_steps_are_flags_of_s4_and_s5():
    assert rates_and_decay("s4", dt_lr=0.0005)[0]["log_dt"] == (0.0005, 0.0)
    fast, _ = rates_and_decay("s5", fast_B=True, dt_global=True)
    assert fast["B_weight"] == (0.01, 0.2) and fast["log_step"] == (0.01, 0.0)


@pytest.mark.parametrize("pooling", ["mean", "max", "last"])
def test_an_empty_document_is_classified_without_nan(pooling):
    model = models.SequenceModel("conv", 1, 8, 9, 3, pooling=pooling)
    tokens, mask = torch.ones(2, 5, dtype=torch.long), torch.tensor([[True] * 3 + [False] * 2, [False] * 5])
    logits = model.classify(model(tokens, mask), mask)
    F.cross_entropy(logits, torch.tensor([1, 2])).backward()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    assert logits.isfinite().all() and all(g.isfinite().all() for g in gradients)


COMPILED = [("transformer", "aot_eager"), ("decay-selective", "aot_eager")]
COMPILED += [pytest.param(name, "inductor", marks=pytest.mark.slow)
             for name in ("conv", "transformer", "gmlp", "s4d", "dlr")]  # fmt: skip


@pytest.mark.processes
@pytest.mark.skipif(torch.__version__ < (2, 11), reason="--compile on a CPU is refused here")
@pytest.mark.parametrize("name, backend", COMPILED)
def test_compiled_models_train_as_eager_ones_at_several_lengths(name, backend):
    """From the second length on the compiler takes the length as a symbol and computes no logarithm of it."""
    losses, batches = [], [tokens_and_mask(length, 20) for length in (24, 40)]
    for compiled in (False, True):
        model = small_model(name, depth=1, denoise=False)
        if compiled:
            model.compile(backend=backend)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        for tokens, mask in batches:
            loss = F.cross_entropy(model.classify(model(tokens, mask), mask), torch.tensor([1, 2]))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        losses.append(loss.item())
    assert abs(losses[0] - losses[1]) < 1e-4


def test_a_model_of_one_length_is_one_graph_also_after_one_of_several_lengths():
    tokens, mask = tokens_and_mask(24, 20)
    for one_length in (False, True):
        torch.compiler.reset()
        model = small_model("gmlp", depth=1, denoise=False)
        model.one_length = one_length
        model.compile(backend="eager", fullgraph=one_length)  # raises where a graph breaks
        model(tokens, mask)


@pytest.mark.parametrize("name", ["transformer", "dlr"])
def test_the_residual_stream_of_pixels_is_float32_under_autocast(name):
    model = small_model(name, depth=2, input="pixels", input_channels=1)
    seen = []
    for block in model.blocks:
        block.register_forward_hook(lambda block, args, out: seen.append((args[0].dtype, out.dtype)))
    with torch.autocast("cpu", torch.bfloat16):
        model(randn(2, 16, 1, dtype=torch.float32), torch.ones(2, 16, dtype=torch.bool))
    assert set(seen) == {(torch.float32, torch.float32)}


def test_summed_sinusoidal_positions_grow_with_the_sequence_and_stay_out_of_checkpoints():
    model = models.SequenceModel("conv", 0, 6, 11, 10, position="sinusoidal", max_length=4)
    tokens = torch.randint(1, 11, (2, 9), generator=torch.Generator().manual_seed(0))
    for length in (3, 9, 5):
        features = model(tokens[:, :length], torch.ones(2, length, dtype=torch.bool))
        want = model.embedding(tokens[:, :length]) + models.sinusoidal_positions(length, 6).float()
        torch.testing.assert_close(features, want)
    assert not any("sinusoid" in name for name in model.state_dict())


def test_megas_embedding_starts_small_and_is_dropped_in_training():
    torch.manual_seed(0)
    model = models.SequenceModel("conv", 0, 400, 50, 2, embedding_std=0.05, embedding_dropout=0.1)
    assert abs(model.embedding.weight[1:].std() / 0.05 - 1) < 0.05 and (model.embedding.weight[0] == 0).all()
    tokens, mask = torch.randint(1, 50, (4, 30)), torch.ones(4, 30, dtype=torch.bool)
    features, embedded = model(tokens, mask), model.embedding(tokens)
    kept = features != 0
    torch.testing.assert_close(features[kept], embedded[kept] / 0.9)
    assert abs(kept.float().mean() - 0.9) < 0.02
    torch.testing.assert_close(model.eval()(tokens, mask), embedded)
