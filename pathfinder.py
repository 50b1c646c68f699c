"""Pathfinder images (32, 128 = Path-X, 256 pixels) from nothing, 200 to 1,000 times the original's speed.
And, of our own, 16 pixels: short and winding snakes that a small model learns to follow in minutes on a CPU.

Two target snakes of `contour_length` paddles and some short distractor snakes lie in an image; two discs mark
two ends of target snakes. Label 1: both ends belong to the same snake. The specification is
drewlinsley/pathfinder (snakes2.py, snakes.py) as the Long Range Arena ran it; its steps, in its order:

    A  label and margin m          D  (single paddles: LRA has none)
    B  two target snakes           E  two marker discs
    C  distractor snakes           F  8-bit grey image

The images are the same in distribution. The original spends its days on tries of step B that fail (325 an
image at 32 hard), each with maps of the whole image. Here what a laid paddle does to the next one, which
depends on their relative position only, is a row of bytes in a table; the occupancy map, a maximum over
paddles, becomes a minimum over rows, for thousands of tries in lockstep.

L is a paddle's length, T its thickness, m the margin between paddles, aa the antialias scale, R = L + m.
Coordinates are (y, x), y down; angle t points to (sin t, cos t). A paddle is drawn from its start pixel along
its drawn angle. The pivot of a snake lies m before its newest paddle. A direction g is an index into
Tables.angle.
"""

import functools
import hashlib
import itertools
import json
import math
import multiprocessing
import os
import re
import signal
import sys
import threading
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw
from tqdm import tqdm

from machine import DataError, making, usable_cores

BLOCK = 1000  # images a block; part of the identity of a set: another value gives other images
CHUNK = 8192  # attempts in lockstep, at most; likewise part of the identity

# fmt: off
SIZES = (                   32,     128,    256,    16)
PARAMETERS = dict(  # snakes2_wrapper.py, changed as LRA's builder doc strings say; the last column is ours
    padding              = (1,      1,      22,     1),       # blocked frame, pixels
    antialias_scale      = (2,      2,      2,      2),
    seed_distance        = (7,      20,     27,     3),       # between the two origin tips, pixels
    marker_radius        = (1.5,    3,      5,      1.5),
    paddle_length        = (2,      5,      5,      2),
    paddle_thickness     = (0.5,    1.5,    2,      0.5),
    paddle_margin_list   = ((1,),   (2, 3), (3,),   (1,)),    # one drawn per image
    continuity           = (1.0,    1.8,    1.8,    0.6),
    snake_contrast       = (2,      0.9,    1.0,    1.0),     # of distractors
    paddle_contrast      = (0.75,   1.0,    1.0,    0.75),    # times snake_contrast: of targets
    distractor_paddles   = (20,     35,     30,     3),       # K: makes K // distractor_length snakes
    contour_length       = (*[(6, 9, 14)] * 3,      (3, 4, 5)),  # paddles of a target, of each level
)
FOLDERS = {"easy": "curv_baseline", "intermediate": "curv_contour_length_9", "hard": "curv_contour_length_14"}
# fmt: on
OFFICIAL_IMAGES = 200_000  # of a level of the release
EMPTY_IMAGE = "/pathfinder32/curv_baseline/imgs/0/sample_172.png"  # one of them, of zero bytes
MAX_PADDLE_RETRIAL, MAX_DISTRACTOR_CONTOUR_RETRIAL = 2, 4  # so 3 and 5 tries
FREE, CONFLICT = 76, 459  # in 8 bits: occupancy <= 0.3 is free; occupancy + mask >= 1.8 is a conflict
LOBES = 3  # how far Lanczos-3 reaches, pixels


def parameters(size, level):
    """The column of PARAMETERS for a size and a level, as a dict."""
    p = {name: row[SIZES.index(size)] for name, row in PARAMETERS.items()}
    p["contour_length"] = p["contour_length"][list(FOLDERS).index(level)]
    p["distractor_length"] = p["contour_length"] // 3
    # deviation: recomputed for each level; whether LRA did so for easy and intermediate is not recorded.
    p["num_distractor_snakes"] = p["distractor_paddles"] // p["distractor_length"]
    return p


# ------------------------------------------------------------------------------------ geometry of one paddle


def move(c, t, d):
    """The pixel at distance d from pixel c in direction t, rounded UP (snakes.translate_coord). math.sin,
    because the last bit of np.sin depends on the machine."""
    return math.ceil(c[0] + d * math.sin(t)), math.ceil(c[1] + d * math.cos(t))


def vectors(d, angles):
    """Displacements (2, n) of length d in the given directions."""
    return np.array([[d * f(t) for t in angles] for f in (math.sin, math.cos)])


def disc(radius):
    """Offsets (n, 2) with y^2 + x^2 <= radius^2."""
    y, x = np.mgrid[-radius : radius + 1, -radius : radius + 1]
    return np.argwhere(y**2 + x**2 <= radius**2) - radius


def dilate(images, offsets):
    """Grey dilation of (..., h, w), zero near its rim: the maximum over the offsets."""
    return np.maximum.reduce([np.roll(images, (-dy, -dx), axis=(-2, -1)) for dy, dx in offsets])


def resize(image, side, kind):
    """Lanczos-3 of a 0..255 picture to side x side, 0..1, computed in `kind`: as floats or in 8 bits."""
    image = Image.fromarray(image.astype(kind))
    return np.asarray(image.resize((side, side), Image.Resampling.LANCZOS), np.float32) / np.float32(255)


def positive_pixels(patches, row):
    """Patches (P, s, s) -> offsets from the centre in images with rows of `row` pixels, values; (P, n) each,
    filled up with pixels of value 0. No offset comes twice, so that fancy indexing can paint them."""
    half = patches.shape[-1] // 2
    values = np.maximum(patches.reshape(len(patches), -1), 0)
    order = np.argsort(-values.astype(float), axis=1, kind="stable")[:, : (values > 0).sum(1).max()]
    y, x = np.divmod(order, patches.shape[-1])
    return (y - half) * row + x - half, np.take_along_axis(values, order, axis=1)


class Tables:
    """What steps B to F need to know about paddles of one size and margin; made once a process, by tables().

    Directions g: first the A candidate angles of `extend` in angular order, then 360 integer degrees from
    -180 (first paddles), last NOTHING, a paddle that is not there."""

    def __init__(self, size, m):
        p = parameters(size, "hard")  # nothing here depends on the level
        self.p, self.size, self.m, self.L = p, size, m, p["paddle_length"]
        aa, T, self.R = p["antialias_scale"], p["paddle_thickness"], self.L + m
        self.k = k = self.L + math.ceil(T) + m  # the patch of a paddle is (2k+1) x (2k+1) round its start
        # Canvases have a border, so that nothing needs cropping.
        self.border = max(k, math.ceil(p["marker_radius"]) + LOBES) + 1
        self.row = size + 2 * self.border

        # Candidate heads: pixels of the circle of radius R round a pivot (get_coords_cmf).
        t = np.arange(0, 360, 360 / (2 * math.pi * self.R)) * math.pi / 180
        heads = {(math.floor(self.R * math.sin(a)), math.floor(self.R * math.cos(a))) for a in t}
        self.heads = np.array(sorted(heads, key=lambda o: (math.atan2(*o), o)))
        self.A = A = len(heads)
        self.NOTHING = A + 360
        degrees = [d * math.pi / 180 for d in range(-180, 180)]
        self.angle = [math.atan2(*o) for o in self.heads.tolist()] + degrees + [0.0]
        # A paddle is drawn from its head back to the pivot, a first paddle from its tip onwards.
        turned = [t + math.pi if t < 0 else t - math.pi for t in self.angle]  # snakes.flip_by_pi
        self.drawn = np.array(turned[:A] + self.angle[A:])
        self.step = vectors(self.L + 2 * m, self.angle)  # from a pivot to the next
        self.ahead, self.back = vectors(self.L, degrees), vectors(self.R, turned[A : self.NOTHING])
        self.bearing = vectors(p["seed_distance"], [f * math.pi / 180 for f in range(360)])

        # Patches, one for each distinct end of the hi-res line (draw_line_n_mask), and an empty one.
        c = k * aa
        ends = [move((c, c), a, self.L * aa) for a in self.drawn[:-1]]
        distinct = sorted(set(ends))
        self.patch = np.array([distinct.index(e) for e in ends] + [len(distinct)])
        hires = [Image.new("L", (2 * c + 1, 2 * c + 1)) for _ in [*distinct, None]]
        for image, (y, x) in zip(hires, distinct):
            ImageDraw.Draw(image).line([(c, c), (x, y)], fill=255, width=round(T * aa))
        hires = np.stack(hires)
        wide = dilate(hires, disc(m * aa))
        mask = np.stack([np.rint(255 * resize(w, 2 * k + 1, np.uint8)) for w in wide]).astype(np.uint8)
        self.mask_pixels = positive_pixels(mask, self.row)
        self.line_pixels = positive_pixels(
            np.stack([resize(h, 2 * k + 1, np.float32) for h in hires]), self.row
        )
        self._weights()
        self._look_up(mask)
        self._seeds(mask)

    def _weights(self):
        """The weight of a candidate, cos(min(continuity * delta, pi/2))^2, is positive in a window of angles
        only: `window` (g, width) are its candidates, `first` (g,) the first of them, `weight` (g, width)
        their weights. These are multiples of 2^-36, so that their sums are exact in any order, and a seed
        gives the same images on every machine."""
        angle = np.array(self.angle)
        delta = np.abs(angle[:, None] - angle[: self.A])
        delta = np.minimum(delta, 2 * math.pi - delta)
        weight = np.cos(np.minimum(self.p["continuity"] * delta, math.pi / 2)) ** 2
        weight = np.rint(weight * 2**36) / 2**36
        self.first = np.argmax((weight > 0) & (np.roll(weight, 1, axis=1) == 0), axis=1)
        self.width = int((weight > 0).sum(1).max())
        self.window = (self.first[:, None] + np.arange(self.width)) % self.A
        self.weight = np.take_along_axis(weight, self.window, axis=1)

    def _look_up(self, mask):
        """Rows of byte pairs, a pair for each candidate head: 255 - D, where D is the occupancy dilated by m
        at the head, and the same again but 0 if the candidate's paddle is in conflict. There is a row for
        each laid patch and start - pivot, and, for the frame, one for each y and each x of a pivot. Rows
        combine by minimum."""
        A, P, k, m, W, padding = self.A, len(mask), self.k, self.m, self.size, self.p["padding"]
        reach = int(np.abs(self.heads).max()) + 2 * k
        table = np.full((P, 2 * reach + 1, 2 * reach + 1, A, 2), 255, np.uint8)
        clear = 255 - dilate(np.pad(mask, ((0, 0), (m, m), (m, m))), disc(m))[..., None]
        span = np.arange(2 * (k + m) + 1) - (k + m)
        strong = [np.argwhere(a >= CONFLICT - 255) - k for a in mask]  # pixels that can be in conflict at all
        value = [a[tuple((s + k).T)].astype(int) for a, s in zip(mask, strong)]
        for c, o in enumerate(self.heads):
            # Seen from the start of a laid patch the head is at o - (start - pivot).
            table[:, (o[0] - span + reach)[:, None], o[1] - span + reach, c] = clear
            own = self.patch[c]
            # Where pixel u of the laid patch meets pixel v of the candidate's, start - pivot = o - u + v.
            for i in range(P):
                hit = np.add.outer(value[i], value[own]) >= CONFLICT
                y, x = (o - strong[i][:, None] + strong[own])[hit].T + reach
                table[i, y, x, c, 1] = 0
        used = np.abs(np.argwhere((table != 255).any((0, 3, 4))) - reach).max() + 1  # + 1: the empty rim
        self.reach, self.side = int(used), 2 * int(used) + 1
        table = table[:, reach - used : reach + used + 1, reach - used : reach + used + 1]

        off = 2 * (self.R + m)  # pivots from -off to W + off
        frames = []
        for axis in (0, 1):
            h = np.arange(-off, W + off)[:, None] + self.heads[:, axis]
            low, high = (np.array([f(strong[i][:, axis]) for i in self.patch[:A]]) for f in (np.min, np.max))
            clear = (h - m >= padding) & (h + m < W - padding)
            fits = clear & (h + low >= padding) & (h + high < W - padding)
            frames.append(255 * np.stack((clear, fits), axis=-1).astype(np.uint8))

        rows = np.concatenate([table.reshape(-1, A, 2), *frames])
        rows = np.concatenate((rows, rows[:, : self.width]), axis=1)  # so that all windows are stretches
        self.row_bytes = rows[0].size
        self.base = self.patch * (self.side**2 * self.row_bytes)
        self.base_y = (P * self.side**2 + off) * self.row_bytes
        self.base_x = self.base_y + (W + 2 * off) * self.row_bytes
        stretch = 2 * self.width
        self.windows = np.ndarray(rows.size - stretch + 1, f"V{stretch}", rows, strides=1)  # from any byte

    def _seeds(self, mask):
        """Taps of the 360 first-paddle angles: a tip p is free if the map is <= 0.3 at p + d for every tap d.
        They are where the mask patch is exactly 255, one pixel off, cropped to R (seed_snake's struct). An
        angle without a tap in one of the closed quadrants always fails (at 32 pixels all but -150..-121
        degrees): upstream's dilation then finds a value of the image border, which poisons the map."""
        taps = [np.argwhere(mask[i] == 255) - self.k + 1 for i in self.patch[self.A : self.NOTHING]]
        taps = [t[(np.abs(t) <= self.R).all(1)] for t in taps]
        quadrants = [(1, 1), (1, -1), (-1, 1), (-1, -1)]
        self.seed_passes = np.array([all((t * s >= 0).all(1).any() for s in quadrants) for t in taps])
        most = max(map(len, taps))
        self.taps = np.stack([t[np.arange(most) % max(len(t), 1)] for t in taps])  # (360, most, 2), repeated
        self.tap_pixels = self.taps @ (self.row, 1)

        # First paddles of step B meet nothing but the frame and 2 * seed_distance blocked rows and columns:
        # free tips fill a rectangle, from `low` (2, 360) on, `span` (2, 360) pixels high and wide.
        blocked = max(self.p["padding"], 2 * self.p["seed_distance"])
        self.low = blocked - self.taps.min(1).T
        self.span = self.size - blocked - self.taps.max(1).T - self.low
        self.first_degrees = np.flatnonzero(self.seed_passes & (self.span > 0).all(0))

    def seed_pivot(self, tip, degree):
        """Head and pivot, (2, n) each, of first paddles with tips (2, n), angle indices (n,)."""
        head = np.ceil(tip + self.ahead[:, degree])
        return head, np.ceil(head + self.back[:, degree])


tables = functools.lru_cache(maxsize=4)(Tables)


# -------------------------------------------------------------------------------- steps B and C, in lockstep
# A `laid` array (slots, 3, n) int16 holds the (g, y, x) of the paddles of n images in the making, in the
# order of laying.


def occupancy(tab, q, g, laid):
    """What laid paddles and frame do to the candidates round new pivots q (2, n) in the windows of g (n,):
    the byte pairs (n, width, 2) of Tables._look_up."""
    y, x = q.astype(np.int16)
    # Differences below 0 are huge as uint16: what is out of reach meets the table's empty rim.
    dy = np.minimum((laid[:, 1] - (y - np.int16(tab.reach))).view(np.uint16), tab.side - 1)
    dx = np.minimum((laid[:, 2] - (x - np.int16(tab.reach))).view(np.uint16), tab.side - 1)
    # An array of one, not a scalar: numpy 1 leaves the products with a scalar as narrow as dy, and they wrap.
    first, row = 2 * tab.first[g], np.array([tab.row_bytes], np.intp)
    rows = tab.windows[tab.base_y + y * row + first].view(np.uint8)
    np.minimum(rows, tab.windows[tab.base_x + x * row + first].view(np.uint8), out=rows)
    for slot in (dy * np.uint16(tab.side) + dx) * row + tab.base[laid[:, 0]] + first:
        np.minimum(rows, tab.windows[slot].view(np.uint8), out=rows)
    return rows.reshape(len(g), tab.width, 2)


def extend(tab, rng, pivot, g, laid):
    """One more paddle (snakes.extend_snake) for snakes with pivots (2, n) and directions (n,). -> The indices
    (k,) of those that succeed, their new pivots (2, k), directions (k,), heads (2, k)."""
    q = np.ceil(pivot + tab.step[:, g])
    rows = occupancy(tab, q, g, laid)
    weight = tab.weight[g]
    total = np.einsum("nw,nw->n", weight, rows[..., 0].astype(float))  # 255 times upstream's
    weight *= rows[..., 1]
    fit = np.einsum("nw->n", weight)
    # Upstream draws up to 3 times until a head is not in conflict. With r the share of heads in conflict this
    # succeeds with 1 - r^3, and the head is then distributed as ONE draw among the others.
    conflict = 1 - fit / np.maximum(total, 1e-9)
    u = rng.random((2, len(g)))
    alive = np.flatnonzero((total >= 255e-4) & (u[0] < 1 - conflict ** (MAX_PADDLE_RETRIAL + 1)))
    target, cdf, pick = u[1, alive] * fit[alive], np.zeros(len(alive)), np.zeros(len(alive), np.intp)
    for share in weight[alive].T.copy():
        cdf += share
        pick += cdf <= target
    new, q = tab.window[g[alive], pick], q[:, alive]
    return alive, q, new, q.astype(np.int16) + tab.heads[new].T.astype(np.int16)


def target_snakes(tab, rng, c, n):
    """Step B until there are n pairs of snakes of c paddles: laid (2c, 3, n), paddles of snakes 0 and 1 in
    turn, and the tries (n,) each pair took. Tries with a first paddle that always fails are not made, only
    counted: by a draw that moves the random stream, so that without it the images would be others."""
    found, tries, since = [], [], 0  # since: tries after the last success
    made, got = 0, 0
    while got < n:
        size = min(CHUNK, 64 + int(1.1 * (n - got) * (made + 1) / (got + 1)))
        # B1, B2: two first paddles, the second anywhere round the tip of the first, overlapping or not.
        d = np.stack((rng.choice(tab.first_degrees, size), rng.integers(360, size=size)))
        tip = tab.low[:, d[0]] + (rng.random((2, size)) * tab.span[:, d[0]]).astype(int)
        tip = np.stack((tip, np.rint(tip + tab.bearing[:, rng.integers(360, size=size)])))
        pivot = np.stack([tab.seed_pivot(tip[s], d[s])[1] for s in (0, 1)])  # (snake, 2, n)
        laid = np.concatenate((d[:, None] + tab.A, tip), axis=1).astype(np.int16)
        ids = np.arange(size)
        # B3: extension e belongs to snake e % 2, whose newest paddle is slot e. The newest paddles of both
        # snakes are not in the map yet: occupied are slots 0 .. e-1.
        for e in range(2 * (c - 1)):
            alive, q, g, head = extend(tab, rng, pivot[e % 2], laid[e, 0], laid[:e])
            ids, pivot = ids[alive], pivot[:, :, alive]
            pivot[e % 2] = q
            paddle = np.concatenate((g[None], head), dtype=np.int16)
            laid = np.concatenate((laid.take(alive, axis=2), paddle[None]))
        found.append(laid)
        tries.append(np.diff(ids, prepend=-1 - since))
        since = size - 1 - ids[-1] if len(ids) else since + size
        made, got = made + size, got + len(ids)
    tries, share = np.concatenate(tries)[:n], len(tab.first_degrees) / 360
    if share < 1:
        tries += rng.negative_binomial(tries, share)
    return np.concatenate(found, axis=2)[..., :n], tries


def paint(canvas, laid, offsets, values, tab):
    """Put the pixels of laid paddles (slots, 3, n) onto canvases with border (n, row, row), by maximum."""
    flat, origin = canvas.reshape(-1), np.arange(len(canvas)) * tab.row**2
    for g, y, x in laid.astype(np.intp):
        patch = tab.patch[g]
        at = (origin + (y + tab.border) * tab.row + x + tab.border)[:, None] + offsets[patch]
        flat[at] = np.maximum(flat[at], values[patch])


def seed_distractors(tab, rng, occupied, who):
    """First paddles of distractors (snakes.seed_snake) in the maps `occupied[who]`. -> The indices into `who`
    of those that found a place, their tips (2, k), pivots (2, k), angle indices."""
    W, b, flat = tab.size, tab.border, occupied.reshape(-1)
    pending, out = np.arange(len(who)), []
    for _ in range(MAX_PADDLE_RETRIAL + 1):
        d = rng.integers(360, size=len(pending))
        pending, d = pending[tab.seed_passes[d]], d[tab.seed_passes[d]]
        # Uniform among the free pixels: the first free one of some random pixels, else one of all of them.
        y, x = rng.integers(W, size=(2, len(pending), max(2048 // W, 8)))
        u = rng.random(len(pending))
        at = (who[pending] * tab.row**2)[:, None] + (y + b) * tab.row + x + b
        free = np.maximum.reduce([flat[at + tap[:, None]] for tap in tab.tap_pixels[d].T]) <= FREE
        pixel = np.arange(len(pending)), free.argmax(1)
        tip, found = np.stack((y[pixel], x[pixel])), free.any(1)
        for i in np.flatnonzero(~found):
            padded = occupied[who[pending[i]]]
            shifted = [padded[b + dy : b + dy + W, b + dx : b + dx + W] for dy, dx in tab.taps[d[i]]]
            places = np.argwhere(np.maximum.reduce(shifted) <= FREE)
            if len(places):
                tip[:, i], found[i] = places[int(u[i] * len(places))], True
        pending, d, tip = pending[found], d[found], tip[:, found]
        head, pivot = tab.seed_pivot(tip, d)
        inside = ((np.minimum(head, pivot) >= 0) & (np.maximum(head, pivot) < W)).all(0)
        out.append((pending[inside], tip[:, inside], pivot[:, inside], d[inside]))
        pending = pending[~inside]  # these try another angle
    return [np.concatenate(parts, axis=-1) for parts in zip(*out)]


def distractor_snakes(tab, rng, laid, length, number):
    """Step C (snakes.make_many_snakes): up to `number` snakes of `length` paddles beside the targets `laid`.
    -> Their paddles (number * length, 3, n), NOTHING where one found no place."""
    n, b, rim = laid.shape[2], tab.border, tab.border + tab.p["padding"]
    occupied = np.zeros((n, tab.row, tab.row), np.uint8)
    occupied[:, b:-b, b:-b] = 255
    occupied[:, rim:-rim, rim:-rim] = 0
    # The last paddle of snake 0 never gets into the map: upstream merges the second snake's only.
    new = laid = np.delete(laid, len(laid) - 2, axis=0)
    targets = len(laid)
    for _ in range(number):
        paint(occupied, new, *tab.mask_pixels, tab)
        occupied[:, :b] = occupied[:, -b:] = 0  # what lies outside the image counts for nothing
        occupied[:, :, :b] = occupied[:, :, -b:] = 0
        new = np.zeros((length, 3, n), np.int16)
        new[:, 0] = tab.NOTHING
        for _ in range(MAX_DISTRACTOR_CONTOUR_RETRIAL + 1):
            todo = np.flatnonzero(new[0, 0] == tab.NOTHING)
            who, tip, pivot, d = seed_distractors(tab, rng, occupied, todo)
            who, own = todo[who], np.concatenate((d[None] + tab.A, tip), dtype=np.int16)[None]
            for e in range(length - 1):
                around = np.concatenate((laid[:, :, who], own[:e]))
                alive, pivot, g, head = extend(tab, rng, pivot, own[e, 0], around)
                paddle = np.concatenate((g[None], head), dtype=np.int16)
                who, own = who[alive], np.concatenate((own[:, :, alive], paddle[None]))
            new[:, :, who] = own
        laid = np.concatenate((laid, new))
    return laid[targets:]


# ------------------------------------------------------------------------------- steps E and F, and a block


@functools.lru_cache(maxsize=8)
def marker_patches(size):
    """Disc patches (2e+1, 2e+1, s, s), by the distance class of the centre's y and x (see render): within e
    pixels of the border Lanczos weights are renormalised. An image of 2e+1 pixels shows all."""
    p = parameters(size, "hard")
    aa, radius = p["antialias_scale"], p["marker_radius"]
    half = math.ceil(radius) + LOBES
    side = 2 * (half + LOBES) + 1
    y, x = np.mgrid[: side * aa, : side * aa]
    patches = np.empty((side, side, 2 * half + 1, 2 * half + 1), np.float32)
    for cy, cx in np.ndindex(side, side):
        hires = 255 * ((y - aa * cy) ** 2 + (x - aa * cx) ** 2 <= (radius * aa) ** 2)
        low = np.pad(resize(hires, side, np.float32), half)
        patches[cy, cx] = low[cy : cy + 2 * half + 1, cx : cx + 2 * half + 1]
    return patches


def render(tab, targets, distractors, markers):
    """Grey images (n, W, W) uint8 of laid paddles (slots, 3, n) and markers (n, 2, 2), as in the released
    images: float Lanczos, paddles scaled to a maximum of 1, then the discs, then floor(255 v / max)."""
    offsets, values = tab.line_pixels
    contrast = tab.p["snake_contrast"]
    canvas = np.zeros((len(markers), tab.row, tab.row), np.float32)
    paint(canvas, distractors, offsets, values * np.float32(contrast), tab)
    paint(canvas, targets, offsets, values * np.float32(contrast * tab.p["paddle_contrast"]), tab)
    image = canvas[:, tab.border : -tab.border, tab.border : -tab.border]
    # deviation: each image's own maximum; the one real image at hand cannot tell it from a fixed scale.
    image /= image.max((1, 2), keepdims=True)

    patches = marker_patches(tab.size)
    e, half = len(patches) // 2, patches.shape[-1] // 2
    span = np.arange(-half, half + 1)
    case = np.minimum(markers, e) + np.maximum(markers - (tab.size - 1 - e), 0)  # e: far from the border
    for s in (0, 1):
        y, x = markers[:, s].T[:, :, None, None] + tab.border
        at = np.arange(len(markers))[:, None, None], y + span[:, None], x + span
        canvas[at] = np.maximum(canvas[at], patches[case[:, s, 0], case[:, s, 1]])
    image *= 255 / image.max((1, 2), keepdims=True)
    return (image + np.float32(1e-4)).astype(np.uint8)  # 1e-4: in spite of single precision 255 is reached


def generate_block(size, level, seed, block, n=BLOCK):
    """The first n images (n, W, W) uint8 of a block, and their labels (n,) uint8. A block has its own random
    stream and grows all its snakes whatever n is: image i depends on (size, level, seed, block, i) alone."""
    p = parameters(size, level)
    c, margins = p["contour_length"], p["paddle_margin_list"]
    rng = np.random.default_rng([seed, size, c, block])
    label, origin = rng.integers(2, size=(2, BLOCK))  # A; and, for E, the snake whose origin tip is marked
    margin = np.array(margins)[rng.integers(len(margins), size=BLOCK)]
    images = np.zeros((n, size, size), np.uint8)
    for m in margins:
        tab, who = tables(size, m), np.flatnonzero(margin == m)
        targets, _ = target_snakes(tab, rng, c, len(who))
        others = distractor_snakes(tab, rng, targets, p["distractor_length"], p["num_distractor_snakes"])
        # E: a disc at an origin tip, which slots 0 and 1 begin with, and one at a terminal tip, the last two.
        first, all_ = origin[who], np.arange(len(who))
        last = np.where(label[who], first, 1 - first)
        markers = np.stack((targets[first, 1:, all_], targets[2 * (c - 1) + last, 1:, all_]), axis=1)
        wanted, few = int((who < n).sum()), max(1, 2**20 // size**2)  # few at a time, for the caches' sake
        for i in range(0, wanted, few):
            j = slice(i, min(i + few, wanted))
            images[who[j]] = render(tab, targets[..., j], others[..., j], markers[j])
    return images, label[:n].astype(np.uint8)


# ------------------------------------------------------------------------------------------ a set on disk
# A folder with images.npy (n, W * W) and label.npy (n,), uint8, and manifest.json.


def make_set(folder, identity, n, blocks):
    """The set in `folder`: images (n, W * W) uint8, memory-mapped, labels (n,) uint8 and the sha256 of both,
    which records keep. A missing one is written first. Raises DataError.

    identity  dict of what the manifest must say, `size` and `level` among it
    blocks    iterator of images (k, W, W) and labels (k,), together n; looked at only where they are needed
    """
    with making(folder) as private:
        if private:
            private.mkdir()
            labels, title = [], f"Pathfinder {identity['size']} {identity['level']}"
            bar = tqdm(total=n, desc=title, unit=" images", disable=None)
            with open(private / "images.npy", "wb") as file, bar:
                header = {"descr": "|u1", "fortran_order": False, "shape": (n, identity["size"] ** 2)}
                np.lib.format.write_array_header_1_0(file, header)
                # A plain write raises OSError on a full disk; a memory map would kill the process.
                for images, label in blocks:
                    file.write(images)
                    labels.append(label)
                    bar.update(len(label))
            np.save(private / "label.npy", np.concatenate(labels))
            manifest = identity | dict(numpy=np.__version__, sha256=read_set(private)[2])
            (private / "manifest.json").write_text(json.dumps(manifest, indent=1))
    try:
        manifest, found = json.loads((folder / "manifest.json").read_text()), read_set(folder)
        for key, value in json.loads(json.dumps(identity)).items():
            if manifest.get(key) != value:
                what = f"{key} {manifest.get(key)} instead of {value}"
                raise DataError(f"{folder} holds another Pathfinder set ({what}); choose another folder")
        if found[2] != manifest["sha256"]:
            raise ValueError("its hash is another")
    except (OSError, EOFError, ValueError, KeyError, AttributeError) as e:
        raise DataError(f"{folder} is damaged ({e}); remove it to have it made again") from e
    return found


def read_set(folder):
    """Images and labels of a folder, memory-mapped, and the sha256 of the pixels and then the labels."""
    images, label = (np.load(folder / f"{name}.npy", mmap_mode="r") for name in ("images", "label"))
    digest = hashlib.sha256(images)
    digest.update(label)
    return images, label, digest.hexdigest()


def generate_set(folder, size, level, n=OFFICIAL_IMAGES, seed=0, workers=None):
    """make_set of images 0 .. n-1 of (size, level, seed) by `workers` processes, default usable_cores()."""
    p = parameters(size, level)
    identity = dict(size=size, level=level, n=n, seed=seed, block=BLOCK, chunk=CHUNK, parameters=p)
    todo = [(size, level, seed, i // BLOCK, min(BLOCK, n - i)) for i in range(0, n, BLOCK)]
    workers = min(workers or usable_cores(), len(todo))
    few = 4 * workers  # blocks at a time: a slow disk would have them pile up in memory
    # Workers need nothing of the parent's state; fork spares them the imports of the caller's script.
    context = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    try:
        with ProcessPoolExecutor(workers, context, leave_with_parent) as pool:  # they start when asked
            stretches = (todo[i : i + few] for i in range(0, len(todo), few))
            made = (pool.map(generate_block, *zip(*stretch)) for stretch in stretches)
            return make_set(Path(folder), identity, n, itertools.chain.from_iterable(made))
    except BrokenProcessPool as e:
        raise DataError("a worker was killed (memory full?); the same call begins again") from e


def leave_with_parent():
    """Pool initializer. Ctrl-C is the parent's to answer; a worker that outlived it would keep the lock."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # the pool ends them so where one was killed
    parent = multiprocessing.parent_process()
    threading.Thread(target=lambda: (parent.join(), os._exit(1)), daemon=True).start()


# ----------------------------------------------------------------------------------- the official PNG folders


def pack_png_folder(folder, official, size, level):
    """make_set of one level of an official folder such as pathfinder32, which may go once it is packed."""
    listed = [] if folder.exists() else list_images(official.absolute() / FOLDERS[level])
    blocks = ((read_png(path, size), np.array([label], np.uint8)) for path, label in listed)
    return make_set(folder, {"from": "lra_release", "size": size, "level": level}, len(listed), blocks)


def list_images(top):
    """(path, label) of the images of one level of an official folder, by k and then by line of the TEXT files
    <top>/metadata/<k>.npy, as S4's loader has them. The release's empty image is skipped. Raises DataError
    for lines of another form or listed twice, and unless there are OFFICIAL_IMAGES."""
    line_format = re.compile(r"(imgs/\d+)\s+(\w+\.png)\s+\d+\s+([01])(?:\s.*)?")
    metadata = [path for path in top.glob("metadata/*.npy") if path.stem.isdigit()]
    listed = {}
    for path in sorted(metadata, key=lambda path: int(path.stem)):
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            field = line_format.fullmatch(line)
            if not field or top / field[1] / field[2] in listed:
                wrong = "listed before, or not `imgs/<k> sample_<i>.png <i> <label> ...`"
                raise DataError(f"{path}, line {number}: {wrong}: {line[:60]!r}; unpack the release again")
            listed[top / field[1] / field[2]] = int(field[3])
    if len(listed) != OFFICIAL_IMAGES:
        many = f"{len(listed):,} images, not {OFFICIAL_IMAGES:,}"
        raise DataError(f"{top / 'metadata'} lists {many}; unpack the release again")
    return [item for item in listed.items() if not item[0].as_posix().endswith(EMPTY_IMAGE)]


def read_png(path, size):
    """Pixels (size, size) uint8 of an 8-bit grey PNG. Raises DataError for any other file."""
    try:
        Image.open(path, formats=("PNG",)).verify()  # the checksums, which reading the pixels passes over
        with Image.open(path) as png:
            if (png.mode, png.size) != ("L", (size, size)):
                raise ValueError(f"mode {png.mode}, {png.width} x {png.height}")
            return np.asarray(png)
    except Exception as e:  # Pillow raises all kinds for a damaged file
        raise DataError(f"{path}: missing or not a grey PNG of {size} x {size} pixels ({e})") from e
