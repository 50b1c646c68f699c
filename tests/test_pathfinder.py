"""Pathfinder: the fast generator against the original's statistics, its steps done slowly, one real image."""

import argparse
import hashlib
import io
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from reference_pathfinder import Reference, flip, move

import data
import pathfinder
from data import DataError
from pathfinder import generate_block, generate_set, pack_png_folder, parameters, read_png, tables

ROOT = Path(pathfinder.__file__).parent

# Upstream's own program, instrumented: mean and standard error of tries of step B, distractors placed, % of
# pixels that are 0, mean grey, distance of the markers in pixels. Easy and intermediate: K recomputed.
UPSTREAM = {
    (32, "easy"): ((23.3, 0.7), (3.38, 0.05), (76.98, 0.11), (13.10, 0.06), (15.03, 0.12)),
    (32, "intermediate"): ((67.6, 2.2), (1.82, 0.04), (73.21, 0.12), (15.52, 0.06), (14.11, 0.15)),
    (32, "hard"): ((325.5, 7.0), (1.146, 0.021), (65.95, 0.09), (20.14, 0.05), (13.13, 0.11)),
    (64, "easy"): ((11.06, 0.28), (7.96, 0.04), (80.08, 0.05), (10.27, 0.03), (33.95, 0.16)),
    (128, "easy"): ((1.77, 0.07), (16.99, 0.01), (89.01, 0.02), (6.318, 0.009), (53.3, 0.6)),
    (128, "hard"): ((348, 33), (7.75, 0.03), (86.26, 0.03), (7.94, 0.02), (74.9, 1.1)),
    (256, "hard"): ((8.1, 0.6), (7.00, 0.01), (96.12, 0.01), (2.947, 0.005), (125.5, 2.1)),
}


def blocks(size, level, seed, numbers, **options):
    """The fields of several blocks, joined."""
    parts = [generate_block(size, level, seed, k, **options) for k in numbers]
    return pathfinder.Block(*(np.concatenate(f) if f[0] is not None else None for f in zip(*parts)))


@pytest.mark.parametrize("size, level", UPSTREAM)
def test_statistics_of_the_original(size, level):
    b = blocks(size, level, 1, range(4 if size == 32 else 1), rendering="upstream")
    black, grey = 100 * (b.images == 0).mean((1, 2)), b.images.mean((1, 2))
    apart = np.linalg.norm(b.markers[:, 0].astype(float) - b.markers[:, 1], axis=1)
    ours = b.attempts, b.distractors, black, grey, apart
    for values, (mean, error) in zip(ours, UPSTREAM[size, level]):
        assert abs(values.mean() - mean) < 4 * np.hypot(error, values.std() / len(values) ** 0.5)
    assert abs(b.label.mean() - 0.5) < 4 * 0.5 / len(b.label) ** 0.5


@pytest.mark.parametrize("size, m", [(16, 1), (32, 1), (64, 1), (128, 3), (256, 3)])
def test_table_rows_are_what_maps_say(size, m):
    """Weights and conflicts of all candidates at random moments of growth: tables against maps."""
    level = "easy" if size == 64 else "hard"  # 64 hard takes the most tries of all
    tab, rng = tables(size, m), np.random.default_rng(7)
    c = parameters(size, level)["contour_length"]
    laid, _ = pathfinder.target_snakes(tab, rng, c, 12)
    conflicts = 0
    for i in range(12):
        e = int(rng.integers(2, 2 * c - 2))  # slots 0..e are laid, e grows, the others of 0..e are occupied
        ref = Reference(size, m)
        for g, y, x in laid[:e, :, i]:
            ref.M = np.maximum(ref.M, ref.patch((y, x), tab.drawn[g])[1])
        # from the recorded pivot, or from anywhere, at times near or beyond the border
        g, y, x = (int(v) for v in laid[e, :, i])
        t = tab.angle[g]
        q = move((y, x), t, m) if i % 2 else tuple(rng.integers(0, size, 2).tolist())
        around = laid[:e, :, i : i + 1]
        rows = pathfinder.occupancy(tab, np.array(q, float)[:, None], np.array([g]), around)[0]
        seen = {}
        for j, candidate in enumerate(tab.window[g]):
            head = tuple((np.array(q) + tab.heads[candidate]).tolist())
            seen[head] = tab.weight[g, j] * rows[j, 0] / 255, rows[j]
        for head, angle, weight in zip(*ref.candidates(q, t)):
            fast, row = seen.pop(head, (0, (0, 0)))
            assert abs(fast - weight) < 1e-9
            if weight > 1e-9:
                mask = ref.patch(head, flip(angle))[1]
                assert row[1] == (0 if ref.conflict(mask) else row[0])
                conflicts += ref.conflict(mask)
        assert not any(weight for weight, _ in seen.values())  # heads outside the image have none
    assert conflicts > 0


GOLDEN = {  # sha256 of the first 20 images and labels of seed 0: what results/ and sets on disk were made of
    (16, "hard"): "01553c5c611c976a",
    (32, "hard"): "df1ced64b3bdb891",
    (64, "easy"): "d1f0474004b35277",
    (128, "intermediate"): "e5d018713a08b9e1",
    (256, "easy"): "1dcc4471b3d7c9c2",
}


@pytest.mark.parametrize("size, level", GOLDEN)
def test_a_block_is_what_it_always_was(size, level):
    b = generate_block(size, level, seed=0, block=0, n=20)
    assert hashlib.sha256(b.images.tobytes() + b.label.tobytes()).hexdigest()[:16] == GOLDEN[size, level]


@pytest.mark.parametrize("size, rendering", [(16, "lra"), (32, "lra"), (32, "upstream"), (128, "upstream")])
def test_images_are_the_recorded_paddles_and_markers(size, rendering):
    """Drawn again by the step-by-step version, which knows no distractors: to 32 pixels where there are none,
    at 128 they can only add."""
    b = generate_block(size, "hard", 3, 0, rendering=rendering, masks=True)
    ids = np.flatnonzero(b.distractors == 0)[:20] if size <= 32 else range(2)
    for i in ids:
        ref = Reference(size, int(b.margin[i]), rendering)
        contrast = ref.p["snake_contrast"] * ref.p["paddle_contrast"]
        for s, start, angle in zip((b.masks[i] & 1, b.masks[i] & 2), b.paddles[i], b.angles[i]):
            for yx, t in zip(start.tolist(), angle):
                line = ref.patch(yx, t)[0] * contrast
                ref.canvas = np.maximum(ref.canvas, line)
                assert s[line > 0.9 * line.max()].all()
        difference = b.images[i].astype(int) - ref.finish(b.markers[i].tolist())
        if size <= 32:
            assert not b.masks[i].max() & 4
            # single precision; upstream's rounding to nearest has many ties, such as 1.5 * 147
            assert np.abs(difference).max() <= 1
            assert (difference != 0).mean() < (0.005 if rendering == "lra" else 0.05)
        else:
            assert b.distractors[i] and difference.min() >= -1 and difference.max() > 50


def test_grey_levels_of_the_real_image():
    """Levels read off the released pathfinder32-hard image: a disc, a target paddle, a distractor paddle."""
    tab = tables(32, 1)
    at = tab.A + 180  # drawn angle 0: to the right
    target, distractor = (np.array([[[at], [y], [12]]], np.int16) for y in (20, 26))
    image = pathfinder.render(tab, target, distractor, np.array([[[8, 8], [8, 8]]]), "lra")[0].astype(int)
    disc = [[206, 245, 117], [245, 255, 172], [117, 172, 42]]
    assert np.abs(image[7:10, 7:10] - disc).max() <= 1
    assert np.abs(image[8, 4:12] - [2, 1, 59, 245, 255, 172, 0, 1]).max() <= 1
    assert np.abs(image[20, 12:15] - [119, 171, 135]).max() <= 1
    assert np.abs(image[26, 12:15] - [159, 227, 179]).max() <= 1


@pytest.mark.parametrize("size, ends_meet", [(16, 0.03), (32, 0.01)])
def test_a_follower_decides_every_image_as_labelled(size, ends_meet):
    """It walks the recorded chains, and sees on the image which ends are marked: only disc centres are that
    bright.

    No follower can decide the images (about 0.2 % at 32 and 1.6 % at 16 pixels) in which both snakes end on
    the same pixel: upstream leaves the newest paddle of the other snake out of its map."""
    b = blocks(size, "hard", 4, range(2))
    along = np.stack((np.sin(b.angles), np.cos(b.angles)), -1) * parameters(size, "hard")["paddle_length"]
    undecided = 0
    for image, chains, vectors, m, label in zip(b.images, b.paddles.astype(float), along, b.margin, b.label):
        marked, ends = [], []
        for snake in (0, 1):
            # The first paddle is drawn from the origin tip onwards, all others from their far end backwards.
            start, end = chains[snake], chains[snake] + vectors[snake]
            here = end[0]
            for far, near in zip(start[1:], end[1:]):
                assert np.linalg.norm(near - here) < 2 * m + 2 * 2**0.5  # 2m and rounding
                assert image[tuple(far.astype(int))] > 0
                here = far
            ends.append(tuple(here))
            marked += [snake for tip in (start[0], here) if image[tuple(tip.astype(int))] > 250]
        if ends[0] == ends[1]:
            undecided += 1
        else:
            assert len(marked) == 2 and (marked[0] == marked[1]) == label
    assert undecided < ends_meet * len(b.label)


def test_pairs_differ_by_one_paddle_between_the_discs():
    whole, cut, distance = pathfinder.cut_pairs(32, "hard", seed=0, block=0, n=200)
    b = generate_block(32, "hard", seed=0, block=0, n=200)
    connected = np.flatnonzero(b.label)
    assert np.array_equal(whole, b.images[connected]) and set(distance) == set(range(1, 7))
    scaled = 0
    for i, before, after, d in zip(connected, whole.astype(int), cut.astype(int), distance):
        marked = int((b.paddles[i, 1, 0] == b.markers[i, 0]).all())  # the snake whose origin tip bears a disc
        changed, darker = np.argwhere(before != after), np.argwhere(before > after + 20)
        starts = b.paddles[i, marked, [d, 13 - d]]
        assert len(darker) and min(np.abs(darker - start).max() for start in starts) <= 4
        scaled += min(np.abs(changed - start).max() for start in starts) > 4
    assert scaled < 0.2 * len(whole)


def test_a_broken_run_continues_to_the_same_set(tmp_path):
    """After a disk that was full, and after SIGKILL in the middle of a run of two workers."""
    set_ = dict(size=32, level="easy", n=3500, seed=6)
    images, label, digest = generate_set(tmp_path / "unbroken", workers=1, **set_)
    block = generate_block(32, "easy", 6, 3, n=500)
    assert np.array_equal(images[3000:], block.images.reshape(500, 1024))
    assert images.shape == (3500, 1024) and np.array_equal(label[3000:], block.label)
    assert digest == hashlib.sha256(images.tobytes() + label.tobytes()).hexdigest()

    def done():
        return sum(part.stat().st_size // 1_024_000 for part in tmp_path.glob("broken-*.part/images.npy"))

    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_500_000, unlimited[1]))
    try:
        with pytest.raises(DataError, match="cannot make .*broken .*File too large.*; free space"):
            generate_set(tmp_path / "broken", workers=1, **set_)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
    assert done() == 1
    code = (
        "import sys, time, pathfinder; plain = pathfinder.generate_block\n"
        "def slow(*a): time.sleep(0.5); return plain(*a)\n"
        "pathfinder.generate_block = slow\n"
        f"pathfinder.generate_set(sys.argv[1], workers=2, **{set_})"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "broken")]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE) as child:
        while done() < 2:
            assert child.poll() is None, child.stderr.read()
            time.sleep(0.02)
        child.kill()
    assert not (tmp_path / "broken").exists()
    made = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pathfinder, "generate_block", lambda *a: made.append(a[3]) or generate_block(*a))
        assert generate_set(tmp_path / "broken", workers=1, **set_)[2] == digest
    assert made in ([2, 3], [3])  # what was done is kept
    assert generate_set(tmp_path / "two", workers=2, **set_)[2] == digest
    assert not [*tmp_path.glob("*.part")]


def test_a_damaged_set_and_one_of_something_else_are_refused(tmp_path):
    set_ = dict(folder=tmp_path / "set", size=16, level="easy", n=20)
    generate_set(**set_)
    faults = {"level easy instead of hard": dict(level="hard"), "n 20 instead of 9": dict(n=9)}
    for match, other in (faults | {"no Pathfinder set 33": dict(size=33)}).items():
        with pytest.raises(DataError, match=match):
            generate_set(**set_ | other)
    for name in ("label.npy", "images.npy", "manifest.json"):
        path = tmp_path / "set" / name
        content = path.read_bytes()
        for damaged in (content[:-9], content[:-9] + b"[" + content[-8:], b"[1]", b""):
            path.write_bytes(damaged)
            with pytest.raises(DataError, match=f"{tmp_path}/set is damaged"):
                generate_set(**set_)
        path.write_bytes(content)
    generate_set(**set_)


def test_the_hash_in_a_record(tmp_path, monkeypatch):
    """sha256 of the levels' sha256, each of the pixels and then the labels: as it was when results/ began."""
    monkeypatch.setattr(pathfinder, "OFFICIAL_IMAGES", 50)
    levels = [generate_block(32, level, 0, 0, n=50) for level in pathfinder.FOLDERS]
    digests = [hashlib.sha256(b.images.tobytes() + b.label.tobytes()).hexdigest() for b in levels]
    task = data.load("pathfinder", tmp_path)
    hard, order = levels[2].images.reshape(50, -1), data.fixed_order(50)
    rows = [b.images.reshape(50, -1)[np.sort(order[:40])] for b in levels]
    parts = dict(train=np.concatenate(rows), val=hard[np.sort(order[40:45])], test=hard[np.sort(order[45:])])
    for split, pixels in parts.items():
        assert np.array_equal(task.splits[split].tokens, pixels.reshape(-1))
    assert np.array_equal(task.test.label, levels[2].label[np.sort(order[45:])])
    counts, digest = {"train": 120, "val": 5, "test": 5}, hashlib.sha256("".join(digests).encode())
    assert task.source == {"from": "generated", "seed": 0, "hash": digest.hexdigest(), "counts": counts}
    hard = data.load("pathfinder", tmp_path, levels="hard")
    assert hard.source["hash"] == hashlib.sha256(digests[2].encode()).hexdigest()
    flags = argparse.Namespace(data_dir=tmp_path, limit=None, max_length=None, smoke=False, mini=False)
    for techniques, n in (("yes", 120), ("no", 40)):
        recipe = data.technique_rows("pathfinder", techniques)
        assert len(data.load_recipe("pathfinder", flags, recipe, 0).train.label) == n
    assert data.check("pathfinder", tmp_path)["train / val / test"] == "120 / 5 / 5"
    shutil.rmtree(tmp_path / "pathfinder32-easy")  # a check makes no set, which may take an hour
    assert data.check("pathfinder", tmp_path)["train / val / test"] == "40 / 5 / 5"


@pytest.fixture
def official(tmp_path, monkeypatch):
    """A miniature pathfinder32: easy with the release's empty image, hard with three metadata files."""
    monkeypatch.setattr(pathfinder, "OFFICIAL_IMAGES", 5)
    root = tmp_path / "pathfinder32"
    pixels = generate_block(32, "hard", 0, 0, n=16).images
    hard = {0: [0, 1], 2: [0], 10: [0, 1]}
    for level, samples in (("curv_baseline", {0: range(170, 175)}), ("curv_contour_length_14", hard)):
        (root / level / "metadata").mkdir(parents=True)
        for k, numbers in samples.items():
            (root / level / f"imgs/{k}").mkdir(parents=True)
            for i in numbers:
                Image.fromarray(pixels[(k + i) % 16]).save(root / level / f"imgs/{k}/sample_{i}.png")
            lines = [f"imgs/{k} sample_{i}.png {i} {(k + i) % 2} 1.0 6 2 2 0.5 1 1\n" for i in numbers]
            (root / level / f"metadata/{k}.npy").write_text("".join(lines))
    (root / "curv_baseline/imgs/0/sample_172.png").write_bytes(b"")
    return root, pixels.reshape(16, 1024)


def test_official_images_are_packed_level_by_level_and_stay_official(official, tmp_path):
    root, pixels = official
    images, label, _ = pack_png_folder(tmp_path / "packed" / "pathfinder-hard", root, 32, "hard")
    assert np.array_equal(images, pixels[[0, 1, 2, 10, 11]]) and label.tolist() == [0, 1, 0, 0, 1]
    images, label, _ = pack_png_folder(tmp_path / "easy", root, 32, "easy")
    assert np.array_equal(images, pixels[[10, 11, 13, 14]]) and label.tolist() == [0, 1, 1, 0]
    shutil.rmtree(root)
    task = data.load("pathfinder", tmp_path, levels="hard")
    assert task.source["from"] == "lra_release" and len(task.train.label) == 4
    with pytest.raises(DataError, match="curv_baseline.metadata lists 0 images, not 5"):
        data.load("pathfinder", tmp_path)


def saved(mode, side, form):
    content = io.BytesIO()
    Image.new(mode, (side, side)).save(content, form)
    return content.getvalue()


PICTURE, NOT_IMGS = "imgs/2/sample_0.png: missing or not a grey PNG of 32 x 32", "2.npy, line 1: not `imgs"


@pytest.mark.parametrize("file, content, message", [
    ("imgs/2/sample_0.png", None, PICTURE),
    ("imgs/2/sample_0.png", b"", PICTURE),
    ("imgs/2/sample_0.png", saved("L", 64, "PNG"), PICTURE + r" pixels \(mode L, 64 x 64"),
    ("imgs/2/sample_0.png", saved("RGB", 32, "PNG"), PICTURE + r" pixels \(mode RGB"),
    ("imgs/2/sample_0.png", saved("L", 32, "EPS"), PICTURE + ".*cannot identify"),  # no Ghostscript
    ("metadata/2.npy", b"imgs/2 sample_0.png 0 7 1.0\n", NOT_IMGS),
    ("metadata/2.npy", b"imgs/2 ../../../secret.png 0 1\n", NOT_IMGS),
    ("metadata/2.npy", b"imgs/0 sample_1.png 0 1\n", "metadata/2.npy, line 1: listed before"),
    ("metadata/2.npy", None, "metadata lists 4 images, not 5"),
])  # fmt: skip
def test_png_folder_names_what_is_wrong(official, tmp_path, file, content, message):
    path = official[0] / "curv_contour_length_14" / file
    path.unlink() if content is None else path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        pack_png_folder(tmp_path / "packed", official[0], 32, "hard")
    assert not (tmp_path / "packed").exists()


def test_a_damaged_png_is_never_another_image(official):
    """Its checksums are looked at: reading the pixels passes over them."""
    path = official[0] / "curv_contour_length_14/imgs/2/sample_0.png"
    whole, image = path.read_bytes(), read_png(path, 32)
    refused = 0
    for i in range(0, len(whole), 5):
        flipped, torn = bytes([whole[i] ^ 1]) + whole[i + 1 :], bytes(len(whole) - i)
        for rest in (flipped, torn):
            path.write_bytes(whole[:i] + rest)
            try:
                assert np.array_equal(read_png(path, 32), image)
            except DataError:
                refused += 1
    assert refused > len(whole) / 5
