"""Paddles, the choice of the next one, and the picture as drewlinsley/pathfinder makes them: with maps of the
whole image, one image at a time, slow on purpose.

It shares nothing with pathfinder.py but the parameter table; test_pathfinder.py compares the two.
"""

import math

import numpy as np
from PIL import Image, ImageDraw

from pathfinder import parameters


def move(c, t, d):
    return math.ceil(c[0] + d * math.sin(t)), math.ceil(c[1] + d * math.cos(t))


def flip(t):
    return t + math.pi if t < 0 else t - math.pi


def disc_element(radius):
    return [(y, x) for y in range(-radius, radius + 1) for x in range(-radius, radius + 1)
            if y * y + x * x <= radius * radius]  # fmt: skip


def dilate(image, offsets):
    """out[p] = max of image[p + d] over the in-image p + d."""
    h, w = image.shape
    out = np.zeros_like(image)
    for dy, dx in offsets:
        y0, y1, x0, x1 = max(0, -dy), min(h, h - dy), max(0, -dx), min(w, w - dx)
        out[y0:y1, x0:x1] = np.maximum(out[y0:y1, x0:x1], image[y0 + dy : y1 + dy, x0 + dx : x1 + dx])
    return out


class Reference:
    """One image in the making: its canvas (W, W), its occupancy map M (W, W) 0..255, at first the frame."""

    def __init__(self, size, m, rendering="upstream"):
        self.p = p = parameters(size, "hard")  # nothing here depends on the level
        self.W, self.m, self.rendering = size, m, rendering
        self.L, self.aa, self.T = p["paddle_length"], p["antialias_scale"], p["paddle_thickness"]
        self.canvas, self.M = np.zeros((size, size)), np.full((size, size), 255)
        self.M[p["padding"] : -p["padding"], p["padding"] : -p["padding"]] = 0

    def patch(self, start, t):
        """Line (float) and mask (8-bit) of one paddle pasted into an otherwise empty image."""
        k = self.L + math.ceil(self.T) + self.m
        c = k * self.aa
        end = move((c, c), t, self.L * self.aa)
        hires = Image.new("L", (2 * c + 1, 2 * c + 1))
        ImageDraw.Draw(hires).line([(c, c), (end[1], end[0])], fill=255, width=round(self.T * self.aa))
        small = (2 * k + 1, 2 * k + 1)
        line = hires.convert("F") if self.rendering == "lra" else hires
        line = np.asarray(line.resize(small, Image.Resampling.LANCZOS)) / 255.0
        thick = Image.fromarray(dilate(np.asarray(hires), disc_element(self.m * self.aa)))
        mask = np.asarray(thick.resize(small, Image.Resampling.LANCZOS)).astype(int)
        y, x = start
        out = []
        for patch in (line, mask):
            roomy = np.zeros((self.W + 2 * k, self.W + 2 * k), patch.dtype)
            roomy[y : y + 2 * k + 1, x : x + 2 * k + 1] = patch
            out.append(roomy[k:-k, k:-k])
        return out

    def candidates(self, q, t):
        """Heads round pivot q, their angles and weights, for a snake that comes in direction t."""
        R, W = self.L + self.m, self.W
        D = dilate(self.M, disc_element(self.m)) / 255
        heads = set()
        for degrees in np.arange(0, 360, 360 / (2 * math.pi * R)):
            y, x = q[0] + R * math.sin(degrees * math.pi / 180), q[1] + R * math.cos(degrees * math.pi / 180)
            if 0 <= y < W and 0 <= x < W:
                heads.add((int(y), int(x)))
        heads = sorted(heads)
        angles = [math.atan2(h[0] - q[0], h[1] - q[1]) for h in heads]
        weights = []
        for h, a in zip(heads, angles):
            delta = min(abs(a - t), 2 * math.pi - abs(a - t))
            weights.append(math.cos(min(self.p["continuity"] * delta, math.pi / 2)) ** 2 * (1 - D[h]))
        return heads, angles, weights

    def conflict(self, mask):
        return (self.M + mask).max() >= 459

    def disc(self, c):
        n, r = self.W * self.aa, self.p["marker_radius"] * self.aa
        y, x = np.mgrid[:n, :n]
        hires = 255 * ((y - self.aa * c[0]) ** 2 + (x - self.aa * c[1]) ** 2 <= r * r)
        hires = Image.fromarray(hires.astype(np.uint8))
        hires = hires.convert("F") if self.rendering == "lra" else hires
        return np.asarray(hires.resize((self.W, self.W), Image.Resampling.LANCZOS)) / 255.0

    def finish(self, markers):
        """The grey image of the canvas and the discs round `markers`."""
        if self.rendering == "lra":
            self.canvas = self.canvas / self.canvas.max()
        image = np.maximum.reduce([self.canvas, *(self.disc(c) for c in markers)])
        rounding = 0 if self.rendering == "lra" else 0.5
        return np.floor(255 * image / image.max() + rounding).astype(np.uint8)
