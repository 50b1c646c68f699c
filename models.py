"""Every layer of the two papers, one sequence model around them, and its heads; needs torch, nothing else.

Positions are mixed by attention, with decay or without, or by a convolution: short (ConvBlock), long with
a kernel(L) (gMLP, S4, S4D, DLR, SGConv, free taps, MEGA's average), or run as a recurrence (S5, LRU). To copy
a family take the first two sections along; DLR, SGConv, free taps, S5, LRU need S4's, MEGA attention's.

Paper A is "You Can Train from Scratch: Further Discussion on the Long Range Arena" (OpenReview YuFUUcSUgx),
paper B "Never Train from Scratch" (arXiv 2310.02980).

Glossary (symbols as in the papers)
    B        batch: sequences in it (two per example in Retrieval); as a parameter: input matrix
    L        length of a sequence in positions; position t, lag j; tap l of a kernel, from 0
    D        d_model, width of the residual stream; in y + D u: the skip connection of a layer
    H        hidden width of a layer (D -> H -> D); for state spaces H = D
    E, Z, F  widths: of MEGA's values, of its queries and keys, of a feed-forward layer
    K        kernel size in taps; K // 2 = reach to each side in positions; as a tensor: the kernel itself
    N, n     state size (real numbers per feature); n = N / 2 complex poles stored, one of each conjugate pair
    Ch, S    rows of a kernel: 1 = causal, 2 = forward and backward; sub-kernels of SGConv
    Lambda   complex poles of a state space, dt its step in units of the data's positions
    P        states of S5 and LRU; as a parameter of S4: the low-rank factor of A = diag(Lambda) - P P*
    mask     (B, L) bool, True at real positions, False at padding (padding is always a suffix)

Conventions
    - Complex parameters are real ones with a last axis (real, imaginary): fused optimisers refuse others.
    - FFTs, phases and scans run in at least float32 whatever the autocast; float64 stays float64.
    - A parameter's own learning rate or decay is its attribute p.optim; others are decayed by their name.
    - taps(L) of a block with a kernel(L) -> [(taps (channels, n), distance of the first one)] for each
      direction. For S5 and LRU, which have a kernel for each PAIR of channels: system().
"""

import functools
import inspect
import math

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

# ------------------------------------------------------------------------------------------ small parts


def zero_padding(x, mask):
    """x (B, L, D) with padding positions set to zero, so that a convolution over L never reads them."""
    return x if surely_full(mask) else x * mask.unsqueeze(-1)


def surely_full(mask):
    """True if the mask is known to be all True without waiting for a GPU: one stored value repeated, which is
    True in all that data.py makes, or seen on a CPU outside compiled graphs. Attention without a mask is
    faster."""
    if all(size == 1 or stride == 0 for size, stride in zip(mask.shape, mask.stride())):
        return True
    return mask.device.type == "cpu" and not torch.compiler.is_compiling() and bool(mask.all())


def pool_positions(x, mask, pooling="mean"):
    """Summary (B, D) of x (B, L, D) over the valid positions of mask (B, L): "mean", "max" or "last". In at
    least float32: a bf16 sum over 4,096 positions would lose the small contributions."""
    x = at_least_float32(x)
    if pooling == "mean":
        return zero_padding(x, mask).sum(1) / mask.sum(1, keepdim=True).clamp(min=1)
    if pooling == "max":
        largest = x.masked_fill(~mask.unsqueeze(-1), -torch.inf).amax(1)
        return largest.masked_fill(~mask.any(1, keepdim=True), 0.0)  # of an empty sequence, as the mean
    return x[torch.arange(len(x), device=x.device), mask.sum(1).clamp(min=1) - 1]


def at_least_float32(x):
    return x.to(torch.promote_types(x.dtype, torch.float32))


def full_precision(function):
    """Run `function` outside autocast, which would turn the matrix products of a kernel into bf16. The
    function itself casts what it is given with `at_least_float32`."""

    @functools.wraps(function)
    def wrapper(*args):
        with torch.autocast(args[0].device.type, enabled=False):
            return function(*args)

    return wrapper


CONSTANTS = {}


def constant(make, *arguments, device):
    """make(*arguments) on `device`, made once: a table is many launches, and copying it waits for a GPU."""
    key = make, arguments, device
    if key in CONSTANTS and not torch.compiler.is_compiling():
        return CONSTANTS[key]
    made = make(*arguments).to(device)
    if type(made) is torch.Tensor and not torch.compiler.is_compiling():  # fake tensors have no values
        CONSTANTS[key] = made
    return made


def as_complex(z):
    """A complex tensor of at least complex64 from a complex one or (..., 2) real and imaginary parts."""
    return z if z.is_complex() else torch.view_as_complex(at_least_float32(z).contiguous())


def real_parameter(z):
    """Parameter (..., 2) that holds a complex tensor, in the default type."""
    return nn.Parameter(torch.view_as_real(z.resolve_conj()).to(torch.get_default_dtype()).clone())


def log_uniform(low, high, *shape):
    return torch.empty(shape).uniform_(math.log(low), math.log(high))


def own_optimizer(parameters, lr=None):
    """State-space parameters do not decay and may have a learning rate of their own, None: the run's."""
    for p in parameters:
        p.optim = {"weight_decay": 0.0} | ({} if lr is None else {"lr": lr})


class WrongShape(ValueError):
    """A block gave something else than a (B, L, D) like its input."""


def require_shape(block, x, y):
    """Raise WrongShape for a y that is not shaped as x. (Compiled graphs would be made anew each length.)"""
    if not torch.compiler.is_compiling() and x.shape != y.shape:
        given, wanted = tuple(y.shape), tuple(x.shape)
        raise WrongShape(f"the block {type(block).__name__} made {given} of {wanted}; it must keep the shape")


def require_length(L, longest, what):
    if L > longest:
        raise ValueError(f"{what} for sequences of at most {longest} positions; got {L}")


class Norm(nn.Module):
    """The papers' three normalisations of x (B, L, D).

    "layer"  over D
    "batch"  per channel over all VALID positions of the batch and of all ranks; in eval mode by running
             averages. With it, splitting a batch into micro-batches is not the same mathematics.
    "scale"  g x / sqrt(mean x^2 + eps) with one scalar g (MEGA's)
    deviation: the originals of "batch" count padding positions too, so that a text's statistics depend on
    the longest text of its batch; we leave padding out.
    """

    def __init__(self, kind, d_model, momentum=0.1):
        super().__init__()
        self.kind, self.momentum, self.eps = kind, momentum, 1e-5
        self.weight = nn.Parameter(torch.ones(1 if kind == "scale" else d_model))
        self.bias = None if kind == "scale" else nn.Parameter(torch.zeros(d_model))
        if kind == "batch":
            self.register_buffer("running_mean", torch.zeros(d_model))
            self.register_buffer("running_var", torch.ones(d_model))

    def forward(self, x, mask):
        if self.kind == "layer":
            return F.layer_norm(x, x.shape[-1:], self.weight, self.bias, self.eps)
        x = at_least_float32(x)
        if self.kind == "scale":
            return self.weight * F.rms_norm(x, x.shape[-1:], eps=self.eps)
        if not self.training or (not several_ranks() and surely_full(mask) and mask.numel() > 1):
            state = self.running_mean, self.running_var, self.weight, self.bias
            return F.batch_norm(x.flatten(0, 1), *state, self.training, self.momentum, self.eps).view_as(x)
        valid = mask.unsqueeze(-1).to(x.dtype)
        count = sum_over_ranks(valid.sum()).clamp(min=1)
        mean = sum_over_ranks((x * valid).sum((0, 1))) / count
        var = sum_over_ranks(((x - mean).square() * valid).sum((0, 1))) / count
        with torch.no_grad():
            unbiased = var * count / (count - 1).clamp(min=1)
            self.running_mean.lerp_(mean.to(self.running_mean.dtype), self.momentum)
            self.running_var.lerp_(unbiased.to(self.running_var.dtype), self.momentum)
        return (x - mean) * (torch.rsqrt(var + self.eps) * self.weight) + self.bias


def several_ranks():
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def sum_over_ranks(x):
    """Sum of x over all ranks; its gradient is summed over the ranks too, as every rank's loss reads it."""
    if not several_ranks():
        return x
    from torch.distributed.nn.functional import all_reduce  # not in every build of torch

    return all_reduce(x)


class ResidualBlock(nn.Module):
    """Base of all blocks: x + drop(branch(norm(x))), or norm(x + drop(branch(x))).

    By default one branch, mix(x, mask), which the subclass defines and which reads zeros at padding.
    norm     "layer", "batch" or "scale", see Norm; norm_momentum is that of batch norm's running averages
    prenorm  norms stand in front of the branches ("pre"), else behind the sums ("post")
    dropout  probability; tie_dropout draws one mask for all positions (S4 on images, S5, LRU)
    deviation: in the authors' code S5, LRU and DLR read at padding positions what the norm makes of them.
    """

    def __init__(self, d_model, norm="layer", norm_momentum=0.1, prenorm=True, dropout=0, tie_dropout=False):
        super().__init__()
        self.norm_place = "pre" if prenorm else "post"
        self.dropout, self.tie_dropout = dropout, tie_dropout
        self.norm = norm and Norm(norm, d_model, norm_momentum)

    def forward(self, x, mask):  # (B, L, D), (B, L) -> (B, L, D)
        return self.residual(x, mask, self.norm, lambda z, mask: self.mix(zero_padding(z, mask), mask))

    def residual(self, x, mask, norm, branch):
        y = branch(norm(x, mask) if self.norm_place == "pre" else x, mask)
        require_shape(self, x, y)
        x = x + self.drop(y)
        return norm(x, mask) if self.norm_place == "post" else x

    def drop(self, x):
        if not self.tie_dropout:
            return F.dropout(x, self.dropout, self.training)
        return F.dropout1d(x.mT, self.dropout, self.training).mT if self.dropout else x

    def taps(self, L):  # see the top of this file
        return [(taps[:, : L - first], first) for first, taps in enumerate(self.kernel(L))]


# ------------------------------------------------------------------------------------------ long convolutions


def fft_size(minimum):
    """Smallest 2^a (1, 3, 5, 9 or 15) of at least `minimum`."""
    return min(odd << max(1, math.ceil(math.log2(minimum / odd))) for odd in (1, 3, 5, 9, 15))


def long_conv(u, k_fwd, k_bwd=None, skip=None):
    """y_t = sum_j k_fwd[j] u[t - j] + sum_j k_bwd[j] u[t + j + 1] + skip u_t, zero outside 0 .. L - 1.

    u (B, H, L); k_fwd, k_bwd (H, K), skip (H,), or C of them, channel h uses h mod C. -> as u. O(H L log L).
    By a circular convolution over n places, where lag -1 is place n - 1. With 3 taps forward, 2 backward and
    n = 8:
        place  0  1  2  3  4  5  6  7
        lag    0  1  2  .  .  . -2 -1
    n >= L + the longest reach keeps what wraps around away from the L positions that are read.
    """
    L = u.shape[2]
    k_fwd = at_least_float32(k_fwd[:, :L])
    k_bwd = k_fwd[:, :0] if k_bwd is None else at_least_float32(k_bwd[:, : L - 1])
    (C, a), b = k_fwd.shape, k_bwd.shape[1]
    if skip is not None:
        k_fwd = k_fwd + F.pad(skip.unsqueeze(1), (0, a - 1))
    n = fft_size(L + max(a - 1, b))
    kernel = torch.cat([k_fwd, k_fwd.new_zeros(C, n - a - b), k_bwd.flip(1)], 1)
    return ConvolveFFT.apply(at_least_float32(u), kernel)


class ConvolveFFT(torch.autograd.Function):
    """The first L places of the circular convolution of u (B, H, L) with a kernel (C, n), see long_conv.
    torch's own derivative takes twice as long. A GPU keeps u for it, whose spectrum is twice as large."""

    @staticmethod
    def forward(ctx, u, kernel):
        L, (C, n) = u.shape[2], kernel.shape
        spectrum_u, spectrum_k = torch.fft.rfft(u, n), torch.fft.rfft(kernel)
        ctx.save_for_backward(spectrum_u if u.device.type == "cpu" else u, spectrum_k)
        ctx.n = n
        product = spectrum_u.unflatten(1, (-1, C)) * spectrum_k  # (B, H / C, C, frequencies)
        return torch.fft.irfft(product.flatten(1, 2), n)[..., :L]

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        (u, spectrum_k), n = ctx.saved_tensors, ctx.n
        spectra = u if u.is_complex() else torch.fft.rfft(u, n), torch.fft.rfft(grad, n)
        spectrum_u, spectrum = (z.unflatten(1, (-1, len(spectrum_k))) for z in spectra)
        grad_u = torch.fft.irfft((spectrum * spectrum_k.conj()).flatten(1, 2), n)[..., : grad.shape[2]]
        return grad_u, torch.fft.irfft((spectrum * spectrum_u.conj()).sum((0, 1)), n)


def power_table(log_pole, exponents):
    """exp(log_pole e), log_pole (..., n) complex, exponents e (T,) -> (..., n, T), as log_pole. Angles are in
    float64: at L = 16,384 they reach 1e5, where float32 is off by 0.006."""
    wide = log_pole if log_pole.device.type == "mps" else log_pole.to(torch.complex128)  # Apple's has none
    return torch.exp(wide.unsqueeze(-1) * exponents).to(log_pole.dtype)


@full_precision
def power_sum(c, log_pole, L):
    """K[c, h, l] = Re sum_n c[c, h, n] exp(l log_pole[h, n]), l = 0 .. L - 1, by matrix products.

    c (Ch, H, n), log_pole (H, n), complex -> (Ch, H, L). With l = i T + j the exponential is
    exp(i T log_pole) exp(j log_pole): two tables of about sqrt(L) columns and one real product.
    """
    Ch, H, n = c.shape
    T = 1 << round(math.log2(L * Ch) / 2)
    blocks = math.ceil(L / T)
    left = power_table(log_pole, torch.arange(0, T * blocks, T, device=c.device))
    left = c.transpose(0, 1).unsqueeze(2) * left.mT.unsqueeze(1)  # (H, Ch, blocks, n)
    # Re(x y) = Re x Re y - Im x Im y: the short steps need no float64, and real tables are faster.
    left = torch.view_as_real(left.conj().resolve_conj()).flatten(3).flatten(1, 2)
    j = torch.arange(T, device=c.device)
    growth, angle = (torch.view_as_real(log_pole).unsqueeze(3) * j).unbind(2)
    right = (growth.exp().unsqueeze(2) * torch.stack([angle.cos(), angle.sin()], 2)).flatten(1, 2)
    return torch.bmm(left, right).view(H, Ch, blocks * T)[..., :L].transpose(0, 1)


def zero_order_hold(Lambda, dt):
    """x' = Lambda x + v, Lambda complex, v constant over steps dt -> (log pole, gain) of
    x_t = exp(log pole) x_(t-1) + gain v_t. gain = dt (exp(z) - 1) / z, z = dt Lambda; next to 0 by a series:
    there the terms of the quotient's derivative cancel, which in float32 would cost it three digits."""
    z = dt * Lambda
    small = z.abs() < 1e-2
    series = 1 + z / 2 * (1 + z / 3 * (1 + z / 4 * (1 + z / 5)))
    safe = z.masked_fill(small, 1)  # or the unused quotient's derivative would be NaN
    return z, dt * torch.where(small, series, torch.expm1(safe) / safe)


# ------------------------------------------------------------------------------------------ small kernels


# With these instructions a CPU multiplies bf16 matrices so fast that no FFT gains: a private name of torch.
HAS_AMX = getattr(torch.cpu, "_is_amx_tile_supported", bool)()


def direct_is_faster(x, K, groups, dilation):
    """Whether F.conv2d beats chunked_conv1d, or alone can do it. Measured: notebook, "Speeds"."""
    if x.device.type != "cpu" or dilation > 1:  # a GPU's tensor cores make the direct form cheap
        return True
    bf16 = torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") == torch.bfloat16
    return HAS_AMX and bf16 or K < (7 if groups <= 16 else 41)


def chunked_conv1d(x, weight, bias, groups=1):
    """F.conv1d with "same" padding, K odd, by short FFTs: in float32 a quarter of its CPU time for K = 31.

    x (B, L, C), weight (H, C / groups, K), bias (H,) -> (B, L, H) in at least float32. Overlap-save: windows
    of n positions, one every S = n - K + 1, meet the kernel; of the n sums S do not wrap around.
    """
    x, weight = at_least_float32(x), at_least_float32(weight)
    (B, L, _), (H, c, K) = x.shape, weight.shape
    n = fft_size(max(64, 3 * K))
    S = n - K + 1
    M = math.ceil(L / S)  # windows per sequence
    windows = F.pad(x, (0, 0, K // 2, M * S + K - 1 - L - K // 2)).unfold(1, n, S)  # (B, M, C, n)
    X = torch.fft.rfft(windows).flatten(0, 1).unflatten(1, (groups, c)).permute(3, 1, 0, 2)  # (f, g, B M, c)
    W = torch.fft.rfft(weight, n).unflatten(0, (groups, -1)).permute(3, 0, 2, 1).conj()  # conv1d correlates
    Y = (X @ W).permute(2, 1, 3, 0).reshape(B, M, H, -1)
    y = torch.fft.irfft(Y, n)[..., :S].transpose(2, 3).reshape(B, M * S, H)
    return y[:, :L] + bias


class ConvBlock(ResidualBlock):
    """Residual small convolution, paper A's "convolutional model": x + W ReLU(conv_K(LN(x))), D -> H -> D.

    kernel      K, odd: each position sees K // 2 neighbours on each side, dilation positions apart
    activation  name of a function of torch.nn.functional; the paper's is "relu"
    norm_place  the paper does not say it: "pre", x + W ReLU(conv(LN(x))), is our reading
                "post"   LN(x + W ReLU(conv(x)))
                "after"  x + W ReLU(LN(conv(x))), over the H channels ("each layer starts with a convolution")
    O(L K D H / groups), less for long kernels on a CPU. Sources: paper A, Section 8, Appendix A.2, Table 7.
    """

    def __init__(
        self, d_model, d_hidden=256, kernel=5, groups=1, dropout=0.0, norm_place="pre", activation="relu",
        dilation=1,
    ):  # fmt: skip
        super().__init__(d_hidden if norm_place == "after" else d_model, dropout=dropout)
        if kernel % 2 == 0 or norm_place not in ("pre", "post", "after"):
            raise ValueError(f"kernel is odd, norm_place pre, post or after; got {kernel}, {norm_place!r}")
        self.norm_place, self.activation = norm_place, getattr(F, activation)
        shape = dict(padding=dilation * (kernel // 2), dilation=dilation, groups=groups)
        self.conv = nn.Conv1d(d_model, d_hidden, kernel, **shape)
        self.linear = nn.Linear(d_hidden, d_model)

    def mix(self, z, mask):
        (K,), (dilation,), groups = self.conv.kernel_size, self.conv.dilation, self.conv.groups
        if direct_is_faster(z, K, groups, dilation):
            # As a 2-D convolution over one row in channels-last layout, (B, L, D) needs no transposed copies.
            place = dict(padding=(0, self.conv.padding[0]), dilation=(1, dilation), groups=groups)
            z = F.conv2d(z.mT.unsqueeze(2), self.conv.weight.unsqueeze(2), self.conv.bias, **place)
            z = z.squeeze(2).mT  # (B, L, H)
        else:
            z = chunked_conv1d(z, self.conv.weight, self.conv.bias, groups)
        if self.norm_place == "after":
            z = self.norm(z, mask)
        return self.linear(self.activation(z))


# ------------------------------------------------------------------------------------------ Transformer


def rotary_frequencies(width, base=10000.0, disable_half=False):
    """theta_m = base^(-2 m / width), m = 0 .. width / 2 - 1. disable_half (paper A, Table 5) sets those
    of EVEN m to zero, so that half of the channels carry no position."""
    theta = base ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    if disable_half:
        theta[::2] = 0
    return theta


def rotary_turns(L, dtype, *frequencies):
    """exp(i t theta_m), (L, width / 2) complex of the real type `dtype`."""
    phase = torch.outer(torch.arange(L, dtype=torch.float64), rotary_frequencies(*frequencies))
    return torch.polar(torch.ones_like(phase), phase).to(dtype.to_complex())


def rotate(x, *frequencies):
    """Rotary positions: turn the pair (2 m, 2 m + 1) of x (..., L, D) at position t by t theta_m, theta =
    rotary_frequencies(*frequencies). In bf16 phases would be wrong by whole turns at L = 4,096."""
    pairs, L = at_least_float32(x).unflatten(-1, (-1, 2)), x.shape[-2]
    if torch.compiler.is_compiling():  # the compiler fuses real arithmetic, and no complex one
        turned = turned_by(rotary_frequencies(*frequencies).to(x.device, pairs.dtype), pairs)
    else:
        longest = 1 << (L - 1).bit_length()  # few different tables
        turns = constant(rotary_turns, longest, pairs.dtype, *frequencies, device=x.device)
        turned = torch.view_as_real(torch.view_as_complex(pairs) * turns[:L])
    return turned.flatten(-2).to(x.dtype)


def turned_by(theta, pairs):
    """pairs (..., L, M, 2), pair m at position t turned by t theta_m, theta (M,); in real arithmetic."""
    phase = torch.outer(torch.arange(pairs.shape[-3], device=theta.device, dtype=theta.dtype), theta)
    (even, odd), cos, sin = pairs.unbind(-1), phase.cos(), phase.sin()
    return torch.stack([even * cos - odd * sin, even * sin + odd * cos], -1)


def sinusoidal_positions(L, width):
    """PE[t, 2 m] = sin(t theta_m), PE[t, 2 m + 1] = cos(t theta_m): (L, width) float64, of an even width."""
    return torch.view_as_real(rotary_turns(L, torch.float64, width)).flip(-1).flatten(1)


def keys_to_see(mask):
    """Which keys, real where mask (B, L) or (B, rows, L) is True, the queries may see: (B, 1, rows or 1, L)
    bool, or None for all. A query without any key, at padding, sees all: some kernels answer it with NaN."""
    if surely_full(mask):
        return None
    seen = mask if mask.ndim == 3 else mask.unsqueeze(1)
    return (seen | ~seen.any(-1, keepdim=True)).unsqueeze(1)


class Attention(nn.Module):
    """Multi-head attention, softmax(q k^T / sqrt(D / heads)) v, padded keys left out. O(L^2 D).

    rotary  "full": paper A's, before the split into heads, so that the first head turns fast and the last one
            slowly; "heads": paper B's, the usual one, every head has all frequencies
    window  None, or block-local attention for Path-X, see local_attention. O(L window D)
    deviation: paper B's code starts q, k, v and o with one matrix and lets padding be attended to.
    """

    def __init__(
        self, d_model, heads=4, rotary=None, disable_half=False, base=10000.0, causal=False, window=None
    ):
        super().__init__()
        self.heads, self.rotary, self.causal, self.window = heads, rotary, causal, window
        self.frequencies = d_model // heads if rotary == "heads" else d_model, base, disable_half
        self.qkv_linear = nn.Linear(d_model, 3 * d_model)
        self.output_linear = nn.Linear(d_model, d_model)

    def forward(self, x, mask):  # (B, L, D), (B, L) -> (B, L, D)
        D = x.shape[2]
        qk, v = self.qkv_linear(x).split((2 * D, D), -1)
        qk = qk.unflatten(-1, (2, D)).transpose(1, 2)  # (B, 2, L, D): q and k turn together
        if self.rotary == "full":
            qk = rotate(qk, *self.frequencies)
        qk, v = (z.unflatten(-1, (self.heads, -1)).transpose(-3, -2) for z in (qk, v))
        if self.rotary == "heads":
            qk = rotate(qk, *self.frequencies)
        q, k = qk.unbind(1)  # as v (B, heads, L, D / heads)
        if self.window is not None:
            y = local_attention(q, k, v, mask, self.window, self.causal)
        elif self.causal:  # padding is a suffix: no real position sees it
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=keys_to_see(mask))
        return self.output_linear(y.transpose(1, 2).flatten(2))


def local_attention(q, k, v, mask, block, causal=False):
    """Attention of each block of positions to itself, the previous and (unless causal) the next block. q, k,
    v and the result (B, heads, L, d), mask (B, L) of valid keys."""
    y = []
    for start in range(0, q.shape[2], block):
        rows = q[:, :, start : start + block]
        first = max(0, start - block)
        near = slice(first, start + (block if causal else 2 * block))
        seen = mask[:, near]
        if causal:
            seen = seen.unsqueeze(1).expand(-1, rows.shape[2], -1).tril(start - first)
        seen = keys_to_see(seen)
        y.append(F.scaled_dot_product_attention(rows, k[:, :, near], v[:, :, near], attn_mask=seen))
    return torch.cat(y, 2)


class TransformerBlock(ResidualBlock):
    """x + attention(LN(x)), then x + W2 act(W1 LN(x)), D -> F -> D; with prenorm=False LN(x + ...).

    activation  "relu" (paper A), "gelu" (paper B: exact)
    attention   a module to take the place of Attention, whose arguments are the **options
    Dropout on both branches, none inside the feed-forward layer, as in paper A's code.
    Sources: paper A, Table 5; paper B, Section 3.
    """

    def __init__(
        self, d_model, d_ff, activation="relu", prenorm=True, dropout=0.0, norm="layer", attention=None,
        **options,
    ):  # fmt: skip
        super().__init__(d_model, norm=None, prenorm=prenorm, dropout=dropout)
        self.activation = getattr(F, activation)
        self.norm1, self.norm2 = Norm(norm, d_model), Norm(norm, d_model)
        self.attention = attention or Attention(d_model, **options)
        self.input_linear = nn.Linear(d_model, d_ff)
        self.output_linear = nn.Linear(d_ff, d_model)

    def forward(self, x, mask):
        x = self.residual(x, mask, self.norm1, self.attention)
        return self.residual(x, mask, self.norm2, self.feed_forward)

    def feed_forward(self, x, mask):
        return self.output_linear(self.activation(self.input_linear(x)))


# ------------------------------------------------------------------------------------------ gMLP


class GMLPBlock(ResidualBlock):
    """Paper A's gMLP: x + V (Z1 * LN(conv(Z2) + b)), Z1, Z2 = GELU(U LN(x)), a free kernel of 2 L + 1 taps.

    d_hidden    H, the width of EACH of Z1 and Z2 (Table 6's H; the paper's shapes contradict its split)
    max_length  longest sequence; the kernel reaches that far to both sides
    channels    C distinct kernels, channel h uses number h mod C ("independent channels")
    The convolution is scaled by 1 / sqrt(n_fft), n_fft the power of two from max_length + taps on, as by the
    authors' orthonormal FFT: unscaled, the gate would be open within a few steps of AdamW.
    O(H L log L + L D H). Sources: paper A, Sections 2.5 and 5, Table 6; the authors' code.
    """

    def __init__(self, d_model, d_hidden=256, max_length=1024, channels=2, **residual):
        super().__init__(d_model, **residual)
        self.max_length, taps = max_length, 2 * max_length + 1
        self.scale = 2.0 ** (-math.ceil(math.log2(max_length + taps)) / 2)
        self.input_linear = nn.Linear(d_model, 2 * d_hidden)
        self.kernel_taps = nn.Parameter(1e-5 * torch.randn(channels, taps))
        self.kernel_bias = nn.Parameter(torch.ones(channels))
        self.norm_gate = nn.LayerNorm(d_hidden)
        self.output_linear = nn.Linear(d_hidden, d_model)

    def kernel(self, L):
        """Taps (C, L) at lags 0, 1, ... and (C, L - 1) at lags -1, -2, ..."""
        require_length(L, self.max_length, "gMLP was built")
        taps, zero = self.scale * self.kernel_taps, self.max_length  # zero: place of lag 0
        return [taps[:, zero : zero + L], taps[:, zero - L + 1 : zero].flip(1)]

    def mix(self, x, mask):
        gate, z = F.gelu(self.input_linear(x)).chunk(2, -1)
        z = zero_padding(z, mask)
        # The norm removes what the biases have in common, 1 at the start. Added to it, a convolution of 1e-6
        # would lose a tenth of itself to float32's rounding, and the gradients as much.
        bias = self.kernel_bias - self.kernel_bias.mean()
        z = long_conv(z.mT, *self.kernel(z.shape[1])).mT.unflatten(2, (-1, len(bias))) + bias
        return self.output_linear(gate * self.norm_gate(z.flatten(2)))


# ------------------------------------------------------------------------------------------ S4, S4D


class KernelBlock(ResidualBlock):
    """GLU(W GELU(k * u + D u)): S4's block, shared by S4, S4D, DLR, SGConv and free taps.

    kernel(L) -> (Ch, H, L): row 0 acts on lags 0, 1, ..., row 1, unless causal, on lags -1, -2, ... Dropout
    after GELU, too. O(H L log L + L H^2) plus the kernel.
    """

    def __init__(self, d_model, causal=False, **residual):
        super().__init__(d_model, **residual)
        self.rows = 1 if causal else 2
        self.skip_weight = nn.Parameter(torch.randn(d_model))
        self.output_linear = nn.Linear(d_model, 2 * d_model)

    def mix(self, x, mask):
        # Contiguous: GELU's derivative on two layouts at once is 14 times slower than on one (CPU).
        y = long_conv(x.mT, *self.kernel(x.shape[1]), skip=self.skip_weight).mT.contiguous()
        return F.glu(self.output_linear(self.drop(F.gelu(y))))


def legs_basis(N):
    """HiPPO-LegS where its normal part is diagonal: Lambda, P, B (n,) and V (N, n), complex128.

    A = -sqrt((2i+1)(2k+1)) below the diagonal, -(i+1) on it; A + p p^T = -1/2 + skew, p_i = sqrt(i + 1/2).
    The skew part has eigenvalues +-i w with unit vectors V; kept is the half of negative imaginary part.
    Lambda = -1/2 + i w, P = V* p, B = V* b, b_i = sqrt(2i+1). From version 4 on S4's code keeps |Im B| <= 2;
    version 3, behind both papers' numbers, does not.
    """
    i = torch.arange(N, dtype=torch.float64)
    b, p = torch.sqrt(2 * i + 1), torch.sqrt(i + 0.5)
    skew = torch.outer(b, b).tril(-1) * -0.5
    w, V = torch.linalg.eigh(-1j * (skew - skew.T))
    w, V = w[: N // 2], V[:, : N // 2]
    V = V * (V[0].abs() / V[0])  # unique up to a phase: the first component is real
    return torch.complex(torch.full_like(w, -0.5), w), V.mH @ p.to(V.dtype), V.mH @ b.to(V.dtype), V


def dplr_c_tilde(Lambda, P, C, dt, L):
    """C (I - Abar^L) in complex128, the form of the output matrix C that `dplr_kernel` reads and S4 trains.

    Lambda, P (H, n), C (Ch, H, n), dt (H,) -> (Ch, H, n). Abar: bilinear transform of diag(Lambda) - P P*
    over all conjugate pairs. Once, at the start: in float32 it would spoil the kernel's 4th digit.
    """
    Lambda, P, C = (torch.cat([z, z.conj()], -1).to(torch.complex128) for z in (Lambda, P, C))
    A = torch.diag_embed(Lambda) - P.unsqueeze(-1) * P.conj().unsqueeze(-2)
    half = A * (dt.double() / 2).view(-1, 1, 1)
    one = torch.eye(A.shape[-1], dtype=A.dtype)
    power = torch.linalg.matrix_power(torch.linalg.solve(one - half, one + half), L)
    return (C - torch.einsum("chn,hnm->chm", C, power))[..., : C.shape[-1] // 2]


def cauchy_sum(V, size, circle):
    """out[h, r, k] = sum_j V[h, r, j] / (x[h, j] c_k^2 - 4 s_k^2 - 4i s_k c_k y[h, j]), size = [x, y].

    V (H, R, n), size (H, n, 2), circle (3, 2 f) = [c^2, -4i s c, -4 s^2] -> (H, R, 2 f), f pairs (re, im).
    """
    denominator = torch.addmm(circle[2], size.flatten(0, 1), circle[:2]).unflatten(1, (-1, 2))
    cauchy = torch.view_as_real(torch.view_as_complex(denominator).reciprocal())
    return V @ cauchy.view(*size.shape[:2], -1)


def dplr_table(L, dtype):
    """Of dplr_kernel's frequencies: c^2, -4i s c, -4 s^2 of the denominators, then 2i s and -c, each times 2
    e^(i theta / 2) for the result and times 2 c for 1 + omega: (7, L / 2 + 1). In float64: as float32 powers
    of exp(2 pi i / L) they would cost three digits."""
    half = torch.arange(L // 2 + 1, dtype=torch.float64) * (math.pi / L)
    s, c = half.sin(), half.cos()
    sides = torch.stack([2 * torch.complex(c, s), 2 * c + 0j])
    rows = torch.stack([c * c + 0j, -4j * s * c, -4 * s * s + 0j])
    return torch.cat([rows, 2j * s * sides, -c * sides]).to(dtype.to_complex())


KEPT_TERMS = 1 << 24  # of dplr_kernel; where it has more, they are made again for the gradient


@full_precision
def dplr_kernel(Lambda, P, B, C_tilde, dt, L):
    """S4's kernel K[c, h, l] = C Abar^l Bbar, A = diag(Lambda) - P P*, bilinear, all conjugate pairs counted.

    Lambda, P, B (H, n), C_tilde = C (I - Abar^L) (Ch, H, n), all complex, dt (H,) -> (Ch, H, L) real.
    Its transform at omega = exp(-i theta), theta = 2 pi k / L, is
        2 [R_CB - (1 + omega) R_CP R_BP* / (1 + (1 + omega) R_PP*)],
        R_xy = dt sum_j x_j y_j / (2 (1 - omega) - dt Lambda_j (1 + omega)),
    the published form (Cauchy kernel, Woodbury) multiplied through by 1 + omega, so that omega = -1 is no
    singularity. With s = sin(theta / 2), c = cos(theta / 2), z = dt Lambda, v = dt x y conjugate poles make
        R = e^(i theta / 2) sum_j (2i s Re v_j - c Re(v_j z_j*)) / denominator_j
    with the denominators of cauchy_sum, x = |z|^2, y = Re z: all sums over j are real. O(Ch H n L).
    Source: Gu et al. 2021 (S4), Appendix C.
    """
    Lambda, P, B, C = (as_complex(z) for z in (Lambda, P, B, C_tilde))
    dt = at_least_float32(dt).unsqueeze(1)
    table = constant(dplr_table, L, dt.dtype, device=dt.device)
    circle, factors = torch.view_as_real(table[:3]).flatten(1), table[3:].view(2, 2, 1, -1)
    z = torch.view_as_real(dt * Lambda)
    left, right = torch.cat([C, P.conj().unsqueeze(0)]), dt * torch.stack([B, P])
    v = torch.view_as_real(right.unsqueeze(1) * left)  # (2, Ch + 1, H, n, 2): [C B, B P*], [C P, P P*]
    V = torch.stack([v[..., 0], (v * z).sum(-1)]).flatten(0, 2).transpose(0, 1)  # (H, 4 (Ch + 1), n)
    size = torch.stack([(z * z).sum(-1), z[..., 0]], -1)
    # Few features at once: the (H, n, f) terms fit into a CPU's cache.
    terms = P.shape[1] * (L // 2 + 1)  # of a feature
    once = max(1, (1 << 18 if dt.device.type == "cpu" else 1 << 24) // terms)
    again = functools.partial(checkpoint, cauchy_sum, use_reentrant=False, preserve_rng_state=False)
    summed = again if len(P) * terms > KEPT_TERMS else cauchy_sum
    sums = torch.cat([summed(*part, circle) for part in zip(V.split(once), size.split(once))])
    sums = torch.view_as_complex(sums.view(len(P), 2, 2, len(left), -1, 2))
    R = (sums * factors).sum(1).flatten(1, 2)
    CB, BP, CP, PP = R.split((len(C), 1) * 2, 1)
    return torch.fft.irfft(torch.addcmul(CB, CP, BP / (1 + PP), value=-1), n=L).transpose(0, 1)


class S4Block(KernelBlock):
    """S4: the kernel of x' = A x + B u, y = C x, A = diag(Lambda) - P P*, bilinear steps dt, from HiPPO-LegS.

    max_length  the kernel is always evaluated at this length and cut
    n_ssm       independent copies of (Lambda, P, B); feature h uses copy h mod n_ssm. None: one per feature
    dt_min/max  dt_h starts log-uniform in between
    ssm_lr      learning rate of Lambda, P, B; dt_lr: of dt; None: that of the run. Only C and D decay
    C is stored as C (I - Abar^max_length), a row for each direction. Source: Gu et al. 2021; s4, version 3.
    """

    low_rank = True  # whether A has P

    def __init__(
        self, d_model, d_state=64, max_length=1024, n_ssm=None, dt_min=0.001, dt_max=0.1, ssm_lr=0.001,
        dt_lr=None, **block,
    ):  # fmt: skip
        super().__init__(d_model, **block)
        self.max_length = max_length
        Lambda, P, B = (z.repeat(n_ssm or d_model, 1) for z in legs_basis(d_state)[:3])
        log_dt = log_uniform(dt_min, dt_max, d_model)
        C = torch.view_as_complex(torch.randn(self.rows, d_model, d_state // 2, 2) * math.sqrt(0.5))
        self.log_dt = nn.Parameter(log_dt)
        self.log_A_real = nn.Parameter((-Lambda.real).log().to(log_dt.dtype))
        self.A_imag = nn.Parameter(Lambda.imag.to(log_dt.dtype))
        if self.low_rank:
            C = dplr_c_tilde(*self.per_feature(Lambda, P), C, log_dt.exp(), max_length)
            self.P = real_parameter(P)
            own_optimizer([self.P], ssm_lr)
        self.B, self.kernel_C = real_parameter(B if self.low_rank else torch.ones_like(B)), real_parameter(C)
        own_optimizer([self.log_A_real, self.A_imag, self.B], ssm_lr)
        own_optimizer([self.log_dt], dt_lr)

    def per_feature(self, *copied):  # each (n_ssm, n) -> (H, n)
        return [z.repeat(len(self.log_dt) // len(z), 1) for z in copied]

    def kernel(self, L):
        require_length(L, self.max_length, "S4 was built")
        Lambda = torch.complex(-self.log_A_real.exp(), self.A_imag)
        system = self.per_feature(Lambda, as_complex(self.P), as_complex(self.B))
        return dplr_kernel(*system, self.kernel_C, self.log_dt.exp(), self.max_length)[..., :L]


class S4DBlock(S4Block):
    """S4D: S4 with a diagonal A, K[l] = 2 Re sum_n C_n Bbar_n exp(l dt Lambda_n), zero-order hold.

    Lambda starts at S4's ("legs"), B at 1. Arguments and rates as in S4Block, but any length will do.
    Source: Gu et al. 2022 (S4D); state-spaces/s4.
    """

    low_rank = False

    def kernel(self, L):
        Lambda = torch.complex(-self.log_A_real.exp(), self.A_imag)
        Lambda, B = self.per_feature(Lambda, as_complex(self.B))
        log_pole, gain = zero_order_hold(Lambda, self.log_dt.exp().unsqueeze(-1))
        return power_sum(as_complex(self.kernel_C) * (2 * gain * B), log_pole, L)


# ------------------------------------------------------------------------------------------ DLR


class DLRBlock(KernelBlock):
    """DLR, a diagonal linear RNN: dlr_kernel, no step size and no B.

    One Lambda (N,) for all features and both directions, Re Lambda = -A_root^2, twice that log-uniform in
    [dt_min, dt_max]. ssm_lr is that of Lambda and W, which do not decay.
    Sources: Gupta et al. 2022; paper B, Section 3.4.
    deviation: a slip in paper B's code leaves Re Lambda of the first layer at the global rate.
    """

    def __init__(self, d_model, d_state=1024, dt_min=0.0001, dt_max=0.1, ssm_lr=0.0001, **block):
        super().__init__(d_model, **block)
        self.A_root = nn.Parameter((0.5 * log_uniform(dt_min, dt_max, d_state).exp()).sqrt())
        self.A_imag = nn.Parameter(torch.arange(d_state) * (2 * math.pi / d_state))
        self.W = nn.Parameter(torch.randn(self.rows, d_model, d_state, 2) / d_state)
        own_optimizer([self.A_root, self.A_imag, self.W], ssm_lr)

    def kernel(self, L):
        return dlr_kernel(torch.complex(-self.A_root.square(), self.A_imag), as_complex(self.W), L)


@full_precision
def dlr_kernel(Lambda, W, L):
    """Re sum_j W[c, h, j] exp(l Lambda[j]) of Lambda (N,), W (Ch, H, N), complex -> (Ch, H, L). One
    (N, L) table of powers, the product of two short ones, serves all features."""
    T = 1 << round(math.log2(L) / 2)
    left = power_table(Lambda, torch.arange(0, L, T, device=W.device))
    right = power_table(Lambda, torch.arange(T, device=W.device))
    table = (left.unsqueeze(-1) * right.unsqueeze(1)).flatten(1)[:, :L]
    return torch.cat([W.real, -W.imag], -1) @ torch.cat([table.real, table.imag])  # Re(W table)


# ------------------------------------------------------------------------------------------ SGConv, free taps


class SGConvBlock(KernelBlock):
    """SGConv: S sub-kernels of d free taps one after the other, stretched by 1, 1, 2, 4, ... and ever weaker.

    kernel_dim      d; S = 1 + ceil(log2(max_length / d))
    position_decay  None: sub-kernel i has weight 2^-i; else tap l has (l + 1)^-position_decay (CIFAR)
    kernel_lr       that of the taps, which decay
    Taps are divided by the initial kernel's norm, over all lags. Source: Li et al. 2022; ctlllll/SGConv.
    """

    def __init__(self, d_model, kernel_dim=32, max_length=1024, position_decay=None, kernel_lr=1e-3, **block):
        super().__init__(d_model, **block)
        self.position_decay = position_decay
        scales = 1 + max(0, math.ceil(math.log2(max_length / kernel_dim)))
        self.full_length = kernel_dim << (scales - 1)
        self.kernel_taps = nn.Parameter(torch.randn(scales, self.rows, d_model, kernel_dim))
        self.kernel_taps.optim = {"lr": kernel_lr}
        self.register_buffer("kernel_scale", torch.ones(self.rows, d_model, 1))
        with torch.no_grad():
            self.kernel_scale.copy_(1 / self.kernel(self.full_length).norm(dim=-1, keepdim=True))

    def kernel(self, L):
        require_length(L, self.full_length, "SGConv was built")
        S, falling = len(self.kernel_taps), 2.0 if self.position_decay is None else 1.0
        K = [F.interpolate(w, scale_factor=2.0 ** max(0, i - 1), mode="linear") * falling ** (S - 1 - i)
             for i, w in enumerate(self.kernel_taps)]  # fmt: skip
        K = torch.cat(K, -1)[..., :L]
        if self.position_decay is not None:
            K = K * torch.arange(1, L + 1, device=K.device, dtype=K.dtype).pow(-self.position_decay)
        return K * self.kernel_scale


class FreeBlock(KernelBlock):
    """S4's block with free taps: k = sign(w) max(|w| - threshold, 0), w for each row, channel and lag.

    max_length      taps of each row
    threshold       lambda of the soft threshold: most taps start at zero
    kernel_dropout  probability that a tap is left out of a training step (the others grow accordingly)
    kernel_lr       that of the taps, which do not decay
    Source: Fu et al. 2023 ("Simple Hardware-Efficient Long Convolutions"); HazyResearch/safari.
    """

    def __init__(self, d_model, max_length=1024, threshold=3e-3, kernel_dropout=0.2, kernel_lr=1e-3, **block):
        super().__init__(d_model, **block)
        self.max_length, self.threshold, self.kernel_dropout = max_length, threshold, kernel_dropout
        self.kernel_taps = nn.Parameter(0.002 * torch.randn(self.rows, d_model, max_length))
        own_optimizer([self.kernel_taps], kernel_lr)

    def kernel(self, L):
        require_length(L, self.max_length, "the free taps were made")
        K = F.softshrink(self.kernel_taps[..., :L], self.threshold)
        return F.dropout(K, self.kernel_dropout, self.training)


# ------------------------------------------------------------------------------------------ S5, LRU


class DiagonalScan(torch.autograd.Function):
    """x_t = exp(log_pole) x_(t-1) + v_t along the last axis, x_(-1) = 0, for P states at once; from_the_end:
    x_t = exp(log_pole) x_(t+1) + v_t. v (P, B, L), log_pole (P,), complex -> as v. The gradient is the same
    scan the other way round, with the conjugate pole."""

    @staticmethod
    def forward(ctx, v, log_pole, from_the_end):
        tables = scan_tables(log_pole, v.shape[2])
        x = scan_blocks(v, *tables, from_the_end)
        ctx.save_for_backward(*tables, x)
        ctx.from_the_end = from_the_end
        return x

    @staticmethod
    @once_differentiable
    def backward(ctx, grad):
        *tables, x = ctx.saved_tensors
        steps, powers = (z.conj().resolve_conj() for z in tables)
        v = scan_blocks(grad, steps, powers, not ctx.from_the_end)
        x, later = (x[..., 1:], v[..., :-1]) if ctx.from_the_end else (x[..., :-1], v[..., 1:])
        return v, (x.conj() * later).sum((1, 2)) * powers[:, 0, 1], None


def scan_tables(log_pole, L):
    """Of scan_blocks: (steps (P, levels, T, T), powers (P, levels, T + 1)) of the poles p^(T^level)."""
    T, levels = min(32, L), 1
    while T**levels < L:
        levels += 1
    level, t = (torch.arange(n, device=log_pole.device) for n in (levels, T + 1))
    powers = power_table(log_pole, (T ** level[:, None] * t).flatten()).unflatten(1, (levels, T + 1))
    return F.pad(powers[..., :T], (T - 1, 0)).unfold(2, T, 1).flip(2), powers


def scan_blocks(v, steps, powers, from_the_end):
    """DiagonalScan by its tables. A block of T positions is a product with powers of the pole p, from the end
    with their transpose. For T = 3:
            1  p  p^2
            .  1   p
            .  .   1
    To it comes what the block before leaves behind, times p, p^2, p^3. These ends follow from each other by
    the same recurrence, T times shorter. O(P B L T) operations at the speed of matrix products.
    """
    P, B, L = v.shape
    T = min(L, steps.shape[2])
    step, power = steps[:, 0, :T, :T], powers[:, 0, None, None, 1:]
    v = F.pad(v, (0, -L % T)) if L % T else v
    x = torch.bmm(v.reshape(P, -1, T), step.mT if from_the_end else step).view(P, B, -1, T)
    if L > T:
        ends = x[..., 0 if from_the_end else -1]
        ends = scan_blocks(ends, steps[:, 1:], powers[:, 1:], from_the_end).unsqueeze(3)
        if from_the_end:
            x[:, :, :-1].addcmul_(ends[:, :, 1:], power.flip(3))
        else:
            x[:, :, 1:].addcmul_(ends[:, :, :-1], power)
    return x.flatten(2)[..., :L]


class StateSpaceBlock(ResidualBlock):
    """Base of S5 and LRU: one state space for all features, a batch norm, dropout tied over positions.

    system() -> (log pole (P,), B (P, H), C (H, P or 2 P)), complex, of x_t = exp(log pole) x_(t-1) + B u_t,
    y = Re(C x) + D u. Unless causal, x also runs from the end, C = [forward, backward], and both include
    position t. GELU in its tanh form, dense layers LeCun normal. O(P L H).
    """

    def __init__(self, d_model, causal=False, norm="batch", tie_dropout=True, **residual):
        super().__init__(d_model, norm, tie_dropout=tie_dropout, **residual)
        self.rows = 1 if causal else 2

    def mix_states(self, u):  # (B, L, H) -> (B, L, H)
        u, (log_pole, B, C) = at_least_float32(u), self.system()
        (batch, L, H), P = u.shape, len(log_pole)
        v = product(torch.view_as_real(B).mT.reshape(2 * P, H), u.reshape(-1, H).T)
        v = torch.view_as_complex(v.view(P, 2, batch, L).movedim(1, 3).contiguous())
        x = [DiagonalScan.apply(v, log_pole, from_the_end) for from_the_end in (False, True)[: self.rows]]
        x = torch.cat([torch.view_as_real(z).movedim(3, 1) for z in x]).flatten(2).flatten(0, 1)
        C = torch.view_as_real(C.conj().resolve_conj()).flatten(1)  # Re(C x) = Re C Re x - Im C Im x
        y = product(x.T, C.T).view(batch, L, H)
        return torch.addcmul(y, self.skip_weight, u)


def product(a, b):
    """a @ b in at least float32; on a GPU under autocast in its type, or it would be most of S5's step."""
    return at_least_float32(a @ b) if a.is_cuda else full_precision(torch.matmul)(a, b)


def lecun_normal_(weight, fan_in):
    """flax's LeCun normal: cut at two standard deviations, then rescaled to variance 1 / fan_in."""
    std = 1 / (math.sqrt(fan_in) * 0.87962566103423978)
    return nn.init.trunc_normal_(weight, std=std, a=-2 * std, b=2 * std)


def lecun_linear(inputs, outputs):
    linear = nn.Linear(inputs, outputs)
    lecun_normal_(linear.weight, inputs)
    nn.init.zeros_(linear.bias)
    return linear


class S5Block(StateSpaceBlock):
    """S5: x_t = Lbar x_(t-1) + Bbar u_t, y = 2 Re(C x) + D u, zero-order hold, then a gate.

    d_state         the paper's state size 2 P; P conjugate halves are stored, in `blocks` HiPPO-LegS blocks
    activation      q = GELU(y): "half_glu1" q * sigma(W q), "half_glu2" y * sigma(W q), "full_glu" GLU(W q)
    c_init          "lecun" or "trunc"; their scales differ by sqrt(H)
    clip_eigs       keep Re Lambda <= -1e-4
    fast_B          B at the run's learning rate and decay ("BfastandCdecay") instead of ssm_lr and none
    dt_global       log_step at the run's learning rate instead of ssm_lr
    Source: Smith et al. 2022; lindermanlab/S5.
    deviation: the authors' code decays norms, biases, with dt_global log_step too; ours by the run's recipe.
    deviation: their linear encoder of one-hot tokens starts 4 to 16 times smaller than our N(0, 1) embedding.
    """

    def __init__(
        self, d_model, d_state=256, blocks=1, activation="half_glu1", c_init="lecun", dt_min=0.001,
        dt_max=0.1, clip_eigs=False, ssm_lr=0.001, fast_B=False, dt_global=False, norm_momentum=0.05, **block,
    ):  # fmt: skip
        super().__init__(d_model, norm_momentum=norm_momentum, **block)
        self.activation, self.clip_eigs = activation, clip_eigs
        Lambda, _, _, V = legs_basis(d_state // blocks)
        wide = torch.get_default_dtype().to_complex()
        Lambda, V = Lambda.repeat(blocks), torch.block_diag(*[V] * blocks).to(wide)  # V (2 P, P)
        B = V.mH @ lecun_normal_(torch.empty(d_state, d_model), d_state).to(V.dtype)
        C = torch.empty(self.rows, d_model, d_state, 2)
        lecun_normal_(C, d_state if c_init == "trunc" else d_state * d_model)
        C = torch.cat(list(torch.view_as_complex(C) @ V), 1)
        self.Lambda_real = nn.Parameter(Lambda.real.to(torch.get_default_dtype()))
        self.Lambda_imag = nn.Parameter(Lambda.imag.to(torch.get_default_dtype()))
        self.log_step = nn.Parameter(log_uniform(dt_min, dt_max, d_state // 2))
        self.B_weight, self.C_weight = real_parameter(B), real_parameter(C)
        self.skip_weight = nn.Parameter(torch.randn(d_model))
        self.gate_linear = lecun_linear(d_model, (2 if activation == "full_glu" else 1) * d_model)
        own = ([] if dt_global else [self.log_step]) + ([] if fast_B else [self.B_weight])
        own_optimizer([self.Lambda_real, self.Lambda_imag, *own], ssm_lr)

    def system(self):
        real = self.Lambda_real.clamp(max=-1e-4) if self.clip_eigs else self.Lambda_real
        log_pole, gain = zero_order_hold(torch.complex(real, self.Lambda_imag), self.log_step.exp())
        return log_pole, gain.unsqueeze(-1) * as_complex(self.B_weight), 2 * as_complex(self.C_weight)

    def mix(self, u, mask):
        y = self.mix_states(u)
        q = self.drop(F.gelu(y, approximate="tanh"))
        if self.activation == "full_glu":
            return F.glu(self.gate_linear(q))
        return (y if self.activation == "half_glu2" else q) * torch.sigmoid(self.gate_linear(q))


class LRUBlock(StateSpaceBlock):
    """LRU: x_t = lambda x_(t-1) + exp(gamma_log) B u_t, y = Re(C x) + D u, then GLU(W GELU(y)), with
    lambda = exp(-exp(nu_log) + i exp(theta_log)) and no conjugate pairs.

    lambda starts uniform in area on the ring r_min .. r_max, its phase up to 6.28; gamma = sqrt(1 -
    |lambda|^2). d_state is P. ssm_lr is that of nu, theta, gamma and B, which do not decay.
    Source: Orvieto et al. 2023; NicolasZucchet/minimal-LRU.
    deviation: two directions as in S5, where the original has one (causal=True).
    deviation: the authors' code decays norms and biases too; ours leaves that to the recipe of the run.
    """

    def __init__(self, d_model, d_state=128, r_min=0.0, r_max=1.0, ssm_lr=0.001, **block):
        super().__init__(d_model, norm_momentum=0.01, **block)
        # Above zero, so that no logarithm is infinite; below one for the same reason when r_max = 1.
        u, v = torch.rand(2, d_state).clamp(1e-6, 1 - 1e-6)
        nu = -0.5 * torch.log(u * (r_max**2 - r_min**2) + r_min**2)
        self.nu_log = nn.Parameter(nu.log())
        self.theta_log = nn.Parameter((6.28 * v).log())
        self.gamma_log = nn.Parameter(0.5 * torch.log(-torch.expm1(-2 * nu)))
        self.B_weight = nn.Parameter(torch.randn(d_state, d_model, 2) / math.sqrt(2 * d_model))
        self.C_weight = nn.Parameter(torch.randn(d_model, self.rows * d_state, 2) / math.sqrt(d_state))
        self.skip_weight = nn.Parameter(torch.randn(d_model))
        self.output_linear = lecun_linear(d_model, 2 * d_model)
        own_optimizer([self.nu_log, self.theta_log, self.gamma_log, self.B_weight], ssm_lr)

    def system(self):
        B = self.gamma_log.exp().unsqueeze(-1) * as_complex(self.B_weight)
        return torch.complex(-self.nu_log.exp(), self.theta_log.exp()), B, as_complex(self.C_weight)

    def mix(self, u, mask):
        return F.glu(self.output_linear(self.drop(F.gelu(self.mix_states(u), approximate="tanh"))))


# ------------------------------------------------------------------------------------------ MEGA


class DampedEMA(nn.Module):
    """MEGA's multi-dimensional damped EMA of x (B, L, D): SiLU(k * x + omega x).

    kernel(L) -> (D', L), k[d, l] = scale n^(-1/2) sum_j p beta gamma q^l, q = 1 - p sigmoid(alpha),
    p = sigmoid(delta), n = dim exponentials. D' = 2 D: forward rows, then backward ones, both from lag 0.
    truncation cuts the kernel. At the start 99 % of its energy lies within 8 positions. O(D n L + D L log L).
    Source: Ma et al. 2022, Section 3.1; alpha and delta are those of their code, not of the paper.
    """

    def __init__(self, d_model, dim=16, truncation=None, scale=1.0):
        super().__init__()
        self.truncation, self.scale = truncation, scale
        shape = 2 * d_model, dim
        self.alpha, self.delta = (nn.Parameter(0.2 * torch.randn(shape)) for _ in range(2))
        self.beta = nn.Parameter(0.02 * torch.randn(shape) + (-1.0) ** torch.arange(dim))
        self.gamma = nn.Parameter(torch.randn(shape))
        self.omega = nn.Parameter(torch.randn(d_model))

    def kernel(self, L):
        p = torch.sigmoid(self.delta)
        weights = p * self.beta * self.gamma * (self.scale / math.sqrt(p.shape[1]))
        below_1 = 1 - torch.finfo(p.dtype).eps / 2  # of 1 itself the logarithm would be infinite
        forgotten = (p * torch.sigmoid(self.alpha)).clamp(max=below_1)
        taps = min(L, self.truncation or L)
        powers = torch.exp(torch.log1p(-forgotten).unsqueeze(2) * torch.arange(taps, device=p.device))
        return full_precision(torch.matmul)(weights.unsqueeze(1), powers).squeeze(1)

    def forward(self, x):
        past, future = self.kernel(x.shape[1]).chunk(2)
        y = long_conv(x.mT, past, future[:, 1:], future[:, 0])  # whose k_bwd starts at lag -1
        return F.silu(torch.addcmul(y.mT, self.omega, x))


MOST_SCORES = {"cpu": 1 << 24}  # made at once in a single-head attention, by device; elsewhere 2^28
QUERIES_AT_ONCE = 256


def attend(q, k, v, mask, bias=None, first=0):
    """softmax(q k^T / sqrt(Z) + bias) v, padded keys left out, of one head: q (B, 1, rows, Z) at positions
    first, first + 1, ..., k (B, 1, L, Z), v (B, 1, L, E). bias (2 M + 1,): number M + j - i is query i's
    for key j."""
    seen, rows, L = keys_to_see(mask), q.shape[2], k.shape[2]
    if bias is not None:
        last = len(bias) // 2 + 1 - first - rows  # where the last row's window begins
        bias = bias[last : last + rows + L - 1].unfold(0, L, 1).flip(0).to(v.dtype)
        seen = bias if seen is None else bias.masked_fill(~seen, -torch.inf)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=seen)


def attend_in_pieces(q, k, v, mask, bias=None):
    """attend() for 256 queries at a time where all scores would take more than 64 MB (GPU: 1 GB; without a
    bias its kernels make none). Pieces are made again for the gradient; they pay for it by fitting into a
    CPU's cache."""
    kind = mask.device.type
    few = mask.numel() * mask.shape[1] < MOST_SCORES.get(kind, 1 << 28)
    if few or (bias is None and kind != "cpu"):
        return attend(q, k, v, mask, bias)
    again = functools.partial(checkpoint, attend, use_reentrant=False, preserve_rng_state=False)
    pieces = enumerate(q.split(QUERIES_AT_ONCE, 2))
    return torch.cat([again(piece, k, v, mask, bias, QUERIES_AT_ONCE * i) for i, piece in pieces], 2)


class MegaBlock(ResidualBlock):
    """MEGA: moving-average-equipped gated attention, then a feed-forward layer, each with its own norm.

    m = EMA(x'), x' = norm(x) or x, [u | z r | h] = W m, q, k = z times, plus vectors, v = SiLU(W_v x'),
    x + sigma(u) * (SiLU(h + W_h (attention(q, k, v) * r)) - x), then x + W2 SiLU(W1 norm(x)).
    d_hidden     E, width of v, r and of the feed-forward layer; d_attention: Z, of q and k
    max_length   longest sequence: the relative bias has a number for each distance
    ema_dim, truncation: see DampedEMA. Dropout on m, too.
    O(L^2 (Z + E)). Source: Ma et al. 2022; facebookresearch/mega. Attention is softmax, as in paper A.
    """

    def __init__(
        self, d_model, d_hidden, d_attention, ema_dim=16, max_length=1024, truncation=None, norm="layer",
        prenorm=False, dropout=0.0,
    ):  # fmt: skip
        super().__init__(d_model, norm, prenorm=prenorm, dropout=dropout)
        D, E, Z = d_model, d_hidden, d_attention
        self.sizes, self.max_length = (D, Z, E, D), max_length
        self.norm_ff = Norm(norm, D)
        self.ema = DampedEMA(D, ema_dim, truncation)
        self.value_linear = nn.Linear(D, E)
        self.ema_linear = nn.Linear(D, sum(self.sizes))
        self.update_linear = nn.Linear(E, D)
        self.input_linear, self.output_linear = nn.Linear(D, E), nn.Linear(E, D)
        for linear in (m for m in self.children() if isinstance(m, nn.Linear)):
            nn.init.normal_(linear.weight, std=0.02)
            nn.init.zeros_(linear.bias)
        self.query_key_scale = nn.Parameter(0.02 * torch.randn(2, Z))
        self.query_key_bias = nn.Parameter(torch.zeros(2, Z))
        self.relative_bias = nn.Parameter(0.02 * torch.randn(2 * self.max_length - 1))

    def forward(self, x, mask):
        return self.residual(self.gated_attention(x, mask), mask, self.norm_ff, self.feed_forward)

    def feed_forward(self, x, mask):
        return self.output_linear(F.silu(self.input_linear(x)))

    def gated_attention(self, x, mask):
        require_length(x.shape[1], self.max_length, "MEGA was built")
        z = self.norm(x, mask) if self.norm_place == "pre" else x
        v = F.silu(self.value_linear(z))
        m = self.drop(self.ema(zero_padding(z, mask)))
        update, shared, h = self.ema_linear(m).split((x.shape[2], sum(self.sizes[1:3]), x.shape[2]), -1)
        shared, reset = F.silu(shared).split(self.sizes[1:3], -1)
        qk = torch.addcmul(self.query_key_bias, shared.unsqueeze(2), self.query_key_scale)
        q, k = qk.to(v.dtype).transpose(1, 2).split(1, 1)  # (B, 1, L, Z), of one head
        o = attend_in_pieces(q, k, v.unsqueeze(1), mask, self.relative_bias).squeeze(1)
        h = F.silu(h + self.update_linear(o * reset))
        # The gate moves the residual itself, not its normalised form.
        x = torch.lerp(x, self.drop(h).to(x.dtype), torch.sigmoid(update).to(x.dtype))
        return x if self.norm_place == "pre" else self.norm(x, mask)


class EMAAttention(nn.Module):
    """m = EMA(x), z = SiLU(W_z m), q and k = rotary(z times and plus learned vectors), v = SiLU(W_v x), o =
    softmax attention, g = SiLU(W_g m), h = SiLU(W_h m + U_h (g * o)), p = sigma(W_p m), p * h + (1 - p) * x,
    of x (B, L, D) that the norm has passed. Arguments: see EMAAttentionBlock.
    """

    def __init__(self, D, E, Z, ema_dim, max_length, truncation):
        super().__init__()
        self.sizes = Z, E, D, D
        taps = truncation or max_length + 1
        # deviation: the authors' factor follows each batch's length, ours max_length. Both count all lags.
        scale = 2.0 ** (-math.ceil(math.log2(max_length + 2 * taps - 1)) / 2)
        self.ema = DampedEMA(D, ema_dim, taps, scale)
        with torch.no_grad():
            self.ema.omega.mul_(0.02)
        self.value_linear, self.ema_linear = nn.Linear(D, E), nn.Linear(D, Z + E + 2 * D)
        self.update_linear = nn.Linear(E, D, bias=False)
        self.query_key_scale = nn.Parameter(0.02 * torch.randn(2, Z))
        self.query_key_bias = nn.Parameter(torch.zeros(2, Z))

    def forward(self, x, mask):
        x = zero_padding(x, mask)
        Z, E, D, _ = self.sizes
        zg, h, p = self.ema_linear(self.ema(x)).split((Z + E, D, D), -1)
        z, g = F.silu(zg).split((Z, E), -1)
        scale, bias = self.query_key_scale.unsqueeze(1), self.query_key_bias.unsqueeze(1)
        qk = torch.addcmul(bias, z.unsqueeze(1), scale)  # (B, 2, L, Z)
        v = F.silu(self.value_linear(x)).unsqueeze(1)
        q, k = rotate(qk, Z, 10000.0, True).to(v.dtype).split(1, 1)  # half of the frequencies are zero
        o = attend_in_pieces(q, k, v, mask).squeeze(1)
        h = F.silu(h + self.update_linear(g * o))
        return torch.lerp(x, h.to(x.dtype), torch.sigmoid(p).to(x.dtype))


class EMAAttentionBlock(TransformerBlock):
    """Paper A's MEGA, "MEGA ‡" of Table 2: a prenorm Transformer layer with EMAAttention.

    d_hidden, d_attention, d_ff: E of v, Z of q and k, F; truncation: taps of the EMA's kernel in each
    direction, None: max_length + 1. Dropout on both residual branches alone. Unlike in MegaBlock (Ma et al.)
    the gate moves the NORMED input, there is no relative bias, linear maps have torch's default init, omega ~
    N(0, 0.02^2), and the average is scaled by 1 / sqrt(n_fft), as in gMLP.
    Sources: paper A, Appendix A.2; the authors' public code, which is not its final one.
    """

    def __init__(
        self, d_model, d_ff, d_hidden, d_attention, ema_dim=16, max_length=1024, truncation=None, dropout=0.0
    ):
        attention = EMAAttention(d_model, d_hidden, d_attention, ema_dim, max_length, truncation)
        super().__init__(d_model, d_ff, dropout=dropout, attention=attention)


# ------------------------------------------------------------------------------------------ decay, Mamba-2


@full_precision
def linear_attention(x, b, c):
    """y_t = sum_s (c_t . b_s) x_s, in which the sum over s of b_s x_s is the same for all t. O(L N H).
    x (B, L, H), zero at padding, b, c (B, L, N) -> as x, at least float32."""
    x, b, c = (at_least_float32(z) for z in (x, b, c))
    return c @ (b.mT @ x)


@full_precision
def decayed_attention(x, b, c, log_a):
    """y_t = sum_s (c_t . b_s) x_s times a_(s+1) ... a_t for s <= t, times a'_t ... a'_(s-1) for s > t. No
    normaliser. O(L T (N + h P) + L N h P).

    x (B, L, h, P), zero at padding, of h heads; b, c (B, L, N), for all heads; log_a (2, B or 1, L, h), of a
    and a', none above 0 -> (B, L, h, P), at least float32. Inside a chunk of T as attention, with the matrix
    of all products of decays; a state (N, h P) goes from chunk to chunk. Sources: Dao and Gu 2024, arXiv
    2405.21060, Section 6; in both directions: Afzal et al. 2025, arXiv 2502.16249.
    """
    L, heads = x.shape[1:3]
    T = min(L, 32 if x.device.type == "cpu" else 128)  # a GPU waits for launches, two for each chunk
    given = (at_least_float32(z) for z in (x.flatten(2), b, c, *log_a))  # each (B or 1, L, ...)
    x, b, c, *log_a = (F.pad(z, (0, 0, 0, -L % T)).unflatten(1, (-1, T)) for z in given)
    x = x.unflatten(3, (heads, -1))  # (B, chunks, T, h, P)
    # From the start of the chunk up to t, and from t up to its end: their differences are the products above.
    sums = log_a[0].cumsum(2), log_a[1].flip(2).cumsum(2).flip(2)
    lags = [z.mT.unsqueeze(4) - z.mT.unsqueeze(3) for z in sums]  # (B or 1, chunks, h, t, s)
    past = torch.ones(T, T, dtype=torch.bool, device=x.device).tril()
    decay = torch.where(past, *lags).exp()
    y = ((c @ b.mT).unsqueeze(2) * decay @ x.transpose(2, 3)).transpose(2, 3)
    for backwards, z in enumerate(sums if x.shape[1] > 1 else ()):
        whole = z[:, :, :1] if backwards else z[:, :, -1:]
        left = b.mT @ ((whole - z).exp().unsqueeze(4) * x).flatten(3)  # what each chunk leaves behind
        state = hand_on(left.unflatten(3, x.shape[3:]), whole.exp().unsqueeze(4), backwards)
        y = y + z.exp().unsqueeze(4) * (c @ state.flatten(3)).unflatten(3, x.shape[3:])
    return y.flatten(1, 2)[:, :L]


def hand_on(left, decay, backwards):
    """state_k = decay_(k-1) state_(k-1) + left_(k-1), in which chunk k is reached, or the same from the end.
    left (B, chunks, N, h, P), decay (B or 1, chunks, 1, h, 1) -> as left."""
    state, reached = torch.zeros_like(left[:, 0]), []
    chunks = list(zip(left.unbind(1), decay.unbind(1)))
    for added, kept in reversed(chunks) if backwards else chunks:
        reached.append(state)
        state = torch.addcmul(added, kept, state)
    return torch.stack(reached[::-1] if backwards else reached, 1)


class DecayBlock(ResidualBlock):
    """Attention with decay in one residual block: x + W_out RMS(y), y = decayed_attention(X, b, c, a), with
    X (D -> H), b and c (D -> N) linear in norm(x), without bias. No feed-forward layer.

    decay     "none"       a = 1: linear_attention, whose order of positions only `position` can tell
              "fixed"      a learned a = exp(-softplus(dt)) for each head and direction
              "rotary"     a as "fixed"; b and c turn as in rotate, by learned angles theta. That is a complex
                           decay a exp(i theta_m) of the pair m of their channels. b_bias does not turn
              "selective"  a_t = exp(-softplus(w . norm(x)_t + dt)), as well: Mamba-2's
    d_state   N, width of b and c, which all heads and both directions share
    b_bias    b_s + beta_p in place of b_s for each channel p (Yu and Erichson 2025, arXiv 2505.09022)
    d_hidden  H, None: D; heads: of H / heads channels, each with decays of its own. A head's -log a starts
              between 0.001 and 1, evenly spread on a log scale; it reaches 1 / that many positions
    Sources: Katharopoulos et al. 2020 (linear attention; theirs has a feature map and a normaliser, here the
    RMS norm keeps the scale); decayed_attention's; "rotary": Mamba-3, arXiv 2603.15569.
    """

    def __init__(
        self, d_model, decay="selective", d_state=64, heads=4, d_hidden=None, b_bias=False, **residual
    ):
        super().__init__(d_model, **residual)
        H = d_hidden or d_model
        if decay not in ("none", "fixed", "rotary", "selective") or H % heads:
            known = "none, fixed, rotary or selective"
            raise ValueError(f"decay is {known}; heads divide {H}; got {decay!r}, {heads}")
        if decay == "rotary" and d_state % 2:
            raise ValueError(f"rotary decay turns pairs of channels: d_state is even; got {d_state}")
        self.decay, self.heads = decay, heads
        self.sizes = H, d_state, d_state, 2 * heads if decay == "selective" else 0
        self.input_linear = nn.Linear(d_model, sum(self.sizes), bias=False)
        if decay != "none":
            self.dt_bias = nn.Parameter(torch.logspace(-3, 0, heads).repeat(2, 1).expm1().log())
        if decay == "rotary":
            self.log_theta = nn.Parameter(rotary_frequencies(d_state).log().float())
        self.b_bias = nn.Parameter(torch.zeros(d_state, H)) if b_bias else None
        self.norm_output = nn.RMSNorm(H, eps=1e-5)
        self.output_linear = nn.Linear(H, d_model, bias=False)

    def mix(self, u, mask):
        x, b, c, dt = self.input_linear(u).split(self.sizes, -1)
        if self.decay == "rotary":
            theta = at_least_float32(self.log_theta).exp()
            b, c = (turned_by(theta, at_least_float32(z).unflatten(-1, (-1, 2))).flatten(-2) for z in (b, c))
        return self.output_linear(self.norm_output(self.attend(x, b, c, dt)))

    def attend(self, x, b, c, dt):
        """x (B, L, H), zero at padding, b, c (B, L, N), dt (B, L, 2 heads) or of no width -> as x."""
        y = self.weighted(x, b, c, dt)
        if self.b_bias is not None:  # (c . beta_p) is the same for all s
            one = torch.ones_like(b[..., :1])
            y = y + (at_least_float32(c) @ self.b_bias) * self.weighted(x, one, one, dt)
        return y

    def weighted(self, x, b, c, dt):
        if self.decay == "none":
            return linear_attention(x, b, c)
        dt = torch.stack(at_least_float32(dt).chunk(2, 2)) if dt.shape[2] else 0.0
        log_a = -F.softplus(dt + self.dt_bias[:, None, None]).expand(-1, -1, x.shape[1], -1)
        return decayed_attention(x.unflatten(2, (self.heads, -1)), b, c, log_a).flatten(2)


def causal_conv1d(x, weight, bias):
    """A depthwise convolution, y_t = bias + sum_k weight_k x_(t - K + 1 + k), as K shifted products: a step
    of Mamba2Block takes 0.86 of its time with F.conv1d on a CPU. x (B, L, C), weight (C, 1, K) -> as x."""
    K, L = weight.shape[2], x.shape[1]
    x, y = F.pad(x, (0, 0, K - 1, 0)), bias
    for k, tap in enumerate(weight[:, 0].T):
        y = torch.addcmul(y, tap, x[:, k : k + L])
    return y


class Mamba2Block(DecayBlock):
    """Selective decay inside Mamba-2's block: x + W_out RMS((y + D X) * SiLU(z)), where X, b and c have
    passed a depthwise convolution and SiLU, and the gate z is linear in norm(x).

    expand, d_conv  H = expand D; taps, of lags 0, 1, ... as published: only the mixer has two directions
    Source: Dao and Gu 2024, arXiv 2405.21060, Section 7; state-spaces/mamba.
    deviation: X is not multiplied by the step, which here each direction has; its factor A is 1.
    """

    def __init__(self, d_model, expand=2, d_conv=4, **options):
        super().__init__(d_model, "selective", d_hidden=expand * d_model, **options)
        H, N = self.sizes[:2]
        self.gate_linear = nn.Linear(d_model, H, bias=False)
        self.conv = nn.Conv1d(H + 2 * N, H + 2 * N, d_conv, groups=H + 2 * N)
        self.skip_weight = nn.Parameter(torch.ones(H))

    def mix(self, u, mask):
        H, N, _, rates = self.sizes
        xbc, dt = self.input_linear(u).split((H + 2 * N, rates), -1)
        xbc = F.silu(causal_conv1d(xbc, self.conv.weight, self.conv.bias))
        x, b, c = xbc.split(self.sizes[:3], -1)
        x = zero_padding(x, mask)  # the convolution has a bias
        y = torch.addcmul(self.attend(x, b, c, dt), x, self.skip_weight)
        return self.output_linear(self.norm_output(y * F.silu(self.gate_linear(u))))


# ------------------------------------------------------------------------------------------ the model

BLOCKS = {
    "conv": ConvBlock, "transformer": TransformerBlock, "gmlp": GMLPBlock, "mega": MegaBlock,
    "ema-attention": EMAAttentionBlock, "s4": S4Block, "s4d": S4DBlock, "s5": S5Block, "lru": LRUBlock,
    "dlr": DLRBlock, "sgconv": SGConvBlock, "free": FreeBlock,
    "decay-none": functools.partial(DecayBlock, decay="none"),
    "decay-fixed": functools.partial(DecayBlock, decay="fixed"),
    "decay-rotary": functools.partial(DecayBlock, decay="rotary"),
    "decay-selective": functools.partial(DecayBlock, decay="selective"), "mamba2": Mamba2Block,
}  # fmt: skip

# Functions that compute sizes from the length, as they are defined here: SequenceModel.compile replaces them.
SIZED_BY_LENGTH = {f.__name__: f for f in (long_conv, power_sum, dlr_kernel, decayed_attention)}

# How the vectors (B, 2, D) of two documents become one: paper A, paper B.
PAIRS = {"[x;y]": lambda x, y: [x, y], "[u,v,u-v,u*v]": lambda x, y: [x, y, x - y, x * y]}

CHOICES = {
    "block": BLOCKS,  # a script may enter blocks of its own
    "input": ("tokens", "pixels"),
    "position": ("none", "rotary", "rotary-heads", "sinusoidal", "learned"),
    "head": ("linear", "mlp"),
    "pair": PAIRS,
    "pooling": ("mean", "max", "last"),
}


class SequenceModel(nn.Module):
    """Embed -> `depth` equal blocks -> features; pooled for classification, position-wise for denoising.

    block       name of the blocks, one of BLOCKS; **block_args go to each of them
    vocab       number of token ids; id 0 is padding
    classes     number of classes; two classes share ONE logit (binary cross-entropy), as in paper A
    docs        sequences per example: 1, or 2 for Retrieval
    denoise     add the linear head D -> vocab of the denoising losses, or D -> denoise_outputs
    input       "tokens" (B, L) int64; "pixels" (B, L, input_channels) float through a linear layer (paper B)
    position    "none"; "sinusoidal" or "learned", added to the embeddings (learned: N(0, 1), max_length rows,
                decayed, as in paper A's code); "rotary", "rotary-heads": for the Transformer's attention
    max_length  longest sequence, for a learned position and for blocks that name it among their arguments
    final_norm  None (paper A), or the kind of one more norm behind the blocks (prenorm S4, MEGA; paper B)
    head        "linear", or "mlp": D -> D -> ReLU -> classes (paper B's Text and Image)
    pair        head of two documents: [x;y] -> 512 -> ReLU (paper A), [u,v,u-v,u*v] -> D -> GELU (paper B)
    embedding_std      of the token embedding's entries at the start; None: 1. MEGA (Ma et al.): 1 / sqrt(D)
    """

    def __init__(
        self, block, depth, d_model, vocab, classes, docs=1, denoise=False, pooling="mean", input="tokens",
        input_channels=2, position="none", max_length=None, final_norm=None, head="linear", pair="[x;y]",
        denoise_outputs=None, embedding_std=None, embedding_dropout=0.0, **block_args,
    ):  # fmt: skip
        given = dict(
            block=block, depth=depth, d_model=d_model, vocab=vocab, classes=classes, docs=docs,
            denoise=denoise, pooling=pooling, input=input, input_channels=input_channels, position=position,
            max_length=max_length, final_norm=final_norm, head=head, pair=pair,
            denoise_outputs=denoise_outputs, embedding_std=embedding_std, embedding_dropout=embedding_dropout,
        )  # fmt: skip
        super().__init__()
        self.arguments = given | block_args  # SequenceModel(**arguments): best.pt carries them
        for name, choices in CHOICES.items():
            if given[name] not in choices:
                own = "; add yours to models.BLOCKS" if name == "block" else ""
                raise ValueError(f"{name} must be one of {', '.join(choices)}; got {given[name]!r}{own}")
        if position.startswith("rotary"):
            if block != "transformer":
                raise ValueError(f"position {position} is for the transformer's attention; not for {block}")
            block_args["rotary"] = "full" if position == "rotary" else "heads"
        known = inspect.signature(BLOCKS[block]).parameters
        if max_length is not None and "max_length" in known:
            block_args["max_length"] = max_length
        takes_any = any(p.kind == p.VAR_KEYWORD for p in known.values())
        if not takes_any and (spare := [name for name in block_args if name not in known]):
            names = ", ".join(spare)
            raise ValueError(f"block {block} has no argument {names}; take the row out of the recipe")
        self.pooling, self.position, self.pair = pooling, position, pair
        self.embedding_dropout = embedding_dropout
        self.embedding = nn.Embedding(vocab, d_model, padding_idx=0) if input == "tokens" else None
        if self.embedding is not None and embedding_std is not None:
            self.embedding.weight.data.mul_(embedding_std)
        self.input_linear = nn.Linear(input_channels, d_model) if input == "pixels" else None
        self.position_table = nn.Embedding(max_length, d_model) if position == "learned" else None
        if position == "sinusoidal":  # grows where it is too short, and is not a part of checkpoints
            table = sinusoidal_positions(max_length or 0, d_model).to(torch.get_default_dtype())
            self.register_buffer("sinusoid", table, persistent=False)
        self.blocks = nn.ModuleList(BLOCKS[block](d_model, **block_args) for _ in range(depth))
        self.final_norm = Norm(final_norm, d_model) if final_norm else None
        outputs = 1 if classes == 2 else classes
        if docs == 2:
            width = len(PAIRS[pair](torch.zeros(1), torch.zeros(1))) * d_model
            hidden, activation = (d_model, nn.GELU()) if pair == "[u,v,u-v,u*v]" else (512, nn.ReLU())
            self.head = nn.Sequential(nn.Linear(width, hidden), activation, nn.Linear(hidden, outputs))
        elif head == "mlp":
            self.head = nn.Sequential(nn.Linear(d_model, d_model), nn.ReLU(), nn.Linear(d_model, outputs))
        else:
            self.head = nn.Linear(d_model, outputs)
        self.denoise_head = nn.Linear(d_model, denoise_outputs or vocab) if denoise else None

    def forward(self, tokens, mask):
        """tokens (B, L) int64 ids or (B, L, input_channels) pixels, mask (B, L) -> features (B, L, D)."""
        x = self.embedding(tokens) if self.input_linear is None else self.input_linear(tokens)
        x = at_least_float32(x)  # the residual stream of pixels, too, which autocast would make bf16
        L = x.shape[1]
        if self.position == "sinusoidal":
            if L > len(self.sinusoid):
                self.sinusoid = sinusoidal_positions(L, x.shape[2]).to(self.sinusoid)
            x = x + self.sinusoid[:L].to(x.dtype)
        elif self.position == "learned":
            require_length(L, len(self.position_table.weight), "the learned positions were made")
            x = x + self.position_table.weight[:L]
        x = F.dropout(x, self.embedding_dropout, self.training)
        for block in self.blocks:
            y = block(x, mask)
            require_shape(block, x, y)
            x = y
        return x if self.final_norm is None else self.final_norm(x, mask)

    one_length = False  # whether all sequences have the same; common.fit says it

    def compile(self, **options):
        """As nn.Module.compile. Unless all sequences have one length, functions that compute sizes from it
        stay out of the graphs: the compiler fails on them once it takes the length as a symbol."""
        for name, function in SIZED_BY_LENGTH.items():  # a decorator would import the compiler
            globals()[name] = function if self.one_length else torch.compiler.disable(function)
        super().compile(**options)

    def classify(self, features, mask, docs=1):
        """features (B * docs, L, D), a pair's documents adjacent -> logits (B, classes), of two (B, 1)."""
        pooled = pool_positions(features, mask, self.pooling)
        if docs == 2:
            pooled = torch.cat(PAIRS[self.pair](*pooled.unflatten(0, (-1, 2)).unbind(1)), -1)
        return self.head(pooled)

    def denoise(self, features):
        """features (n, D) of any positions -> logits (n, vocab), or (n, denoise_outputs) where given."""
        return self.denoise_head(features)
