"""Pathfinder: the fast generator against the original's statistics, a step-by-step version, and one real
image."""

import errno
import hashlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image
from reference_pathfinder import Reference, flip, move

import pathfinder
from pathfinder import (
    BLOCK,
    PathfinderError,
    generate_block,
    generate_set,
    parameters,
    read_png_folder,
    tables,
)

# Upstream's own program, instrumented: mean and standard error of tries of step B, distractors placed, % of
# pixels that are 0, mean grey, distance of the markers in pixels. Easy and intermediate: K //
# distractor_length recomputed.
UPSTREAM = {
    (32, "easy"): ((23.3, 0.7), (3.38, 0.05), (76.98, 0.11), (13.10, 0.06), (15.03, 0.12)),
    (32, "intermediate"): ((67.6, 2.2), (1.82, 0.04), (73.21, 0.12), (15.52, 0.06), (14.11, 0.15)),
    (32, "hard"): ((325.5, 7.0), (1.146, 0.021), (65.95, 0.09), (20.14, 0.05), (13.13, 0.11)),
    (64, "easy"): ((11.06, 0.28), (7.96, 0.04), (80.08, 0.05), (10.27, 0.03), (33.95, 0.16)),
    (128, "easy"): ((1.77, 0.07), (16.99, 0.01), (89.01, 0.02), (6.318, 0.009), (53.3, 0.6)),
    (128, "hard"): ((348, 33), (7.75, 0.03), (86.26, 0.03), (7.94, 0.02), (74.9, 1.1)),
}


def statistics(attempts, distractors, images, distance):
    """Rows of UPSTREAM: (mean, standard error) of the five statistics over n images."""
    images = np.asarray(images)
    columns = attempts, distractors, 100 * (images == 0).mean((1, 2)), images.mean((1, 2)), distance
    return [(np.mean(a), np.std(a) / len(a) ** 0.5) for a in columns]


def blocks(size, level, seed, numbers, **options):
    """The fields of several blocks, joined."""
    parts = [generate_block(size, level, seed, k, **options) for k in numbers]
    return pathfinder.Block(*(np.concatenate(f) if f[0] is not None else None for f in zip(*parts)))


def distance(markers):
    return np.linalg.norm(np.diff(markers.astype(float), axis=1)[:, 0], axis=1)


def close(ours, theirs, sigmas=4):
    return [abs(a - b) < sigmas * np.hypot(ea, eb) for (a, ea), (b, eb) in zip(ours, theirs)]


@pytest.mark.parametrize("size, level", UPSTREAM)
def test_statistics_of_the_original(size, level):
    few = {32: 4, 64: 1, 128: 1}[size]
    b = blocks(size, level, 1, range(few), rendering="upstream")
    ours = statistics(b.attempts, b.distractors, b.images, distance(b.markers))
    assert all(close(ours, UPSTREAM[size, level])), ours
    assert abs(b.label.mean() - 0.5) < 4 * 0.5 / len(b.label) ** 0.5


def test_agrees_with_the_step_by_step_version():
    rng = np.random.default_rng(0)
    slow = [Reference(32, "easy", rng).generate() for _ in range(120)]
    names = "attempts", "distractors", "image", "distance"
    theirs = statistics(*([getattr(r, name) for r in slow] for name in names))
    b = blocks(32, "easy", 2, range(2), rendering="upstream")
    ours = statistics(b.attempts, b.distractors, b.images, distance(b.markers))
    assert all(close(ours, theirs)), (ours, theirs)


@pytest.mark.parametrize("size, m", [(16, 1), (32, 1), (64, 1), (128, 3), (256, 3)])
def test_table_rows_are_what_maps_say(size, m):
    """Weights and conflicts of all candidates at random moments of growth: tables against maps."""
    level = "easy" if size == 64 else "hard"  # 64 hard takes the most tries of all
    tab, rng = tables(size, m), np.random.default_rng(size)
    c = parameters(size, level)["contour_length"]
    laid, _ = pathfinder.target_snakes(tab, rng, c, 12)
    conflicts = 0
    for i in range(12):
        e = int(rng.integers(2, 2 * c - 2))  # slots 0..e are laid, e grows, the others of 0..e are occupied
        ref = Reference(size, level, rng)
        ref.m, ref.M = m, np.full((size, size), 255)
        pad = ref.p["padding"]
        ref.M[pad:-pad, pad:-pad] = 0
        for g, y, x in laid[:e, :, i]:
            ref.M = np.maximum(ref.M, ref.patch((y, x), tab.drawn[g], ref.M.shape, "upstream")[1])
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
                mask = ref.patch(head, flip(angle), ref.M.shape, "upstream")[1]
                assert row[1] == (0 if ref.conflict(mask) else row[0])
                conflicts += ref.conflict(mask)
        assert not any(weight for weight, _ in seen.values())  # heads outside the image have none
    assert conflicts > 0


def test_distractors_see_what_upstream_shows_them(monkeypatch):
    """The frame, all target paddles but the last of snake 0, and the whole of the distractors before."""
    tab, rng, n = tables(32, 1), np.random.default_rng(0), 20
    laid, _ = pathfinder.target_snakes(tab, rng, 14, n)
    maps, slots = [], []
    seed, extend = pathfinder.seed_distractors, pathfinder.extend

    def watched_seed(tab, rng, occupied, who):
        maps.append(occupied.copy())
        return seed(tab, rng, occupied, who)

    def watched_extend(tab, rng, pivot, g, laid):
        slots.append(len(laid))
        return extend(tab, rng, pivot, g, laid)

    monkeypatch.setattr(pathfinder, "seed_distractors", watched_seed)
    monkeypatch.setattr(pathfinder, "extend", watched_extend)
    others, placed = pathfinder.distractor_snakes(tab, rng, laid, 4, 5)
    assert len(maps) == 5 * 5 and placed.any()
    assert slots == [27 + 4 * snake + e for snake in range(5) for _ in range(5) for e in range(3)]
    b, ref = tab.border, Reference(32, "hard", rng)
    for i in range(n):
        M = np.full((32, 32), 255)
        M[1:-1, 1:-1] = 0
        before = [*laid[:26, :, i], laid[27, :, i]]
        for seen, more in ((maps[0], before), (maps[-1], others[:-4, :, i])):
            for g, y, x in more:
                if g != tab.NOTHING:
                    M = np.maximum(M, ref.patch((y, x), tab.drawn[g], M.shape, "upstream")[1])
            assert np.array_equal(seen[i], np.pad(M, b))


def test_seed_elements_and_angles_that_pass():
    def element(tab, degree):
        return set(map(tuple, tab.taps[degree + 180].tolist()))

    t32, t64 = tables(32, 1), tables(64, 1)
    assert element(t32, -150) == element(t32, -139) == {(0, -1), (0, 0), (1, 1)}
    assert element(t32, -138) == element(t32, -121) == {(0, 0), (1, 1)}
    assert element(t32, 0) == {(1, 1), (1, 2), (1, 3)}
    assert element(t64, -100) == {(-4, 0), (-3, 1), (-2, 0), (-1, 1), (0, 0), (1, 1)}
    passing = [np.flatnonzero(tables(size, m).seed_passes) - 180 for size, m in ((32, 1), (64, 1), (128, 2))]
    assert passing[0].tolist() == list(range(-150, -120))
    assert passing[1].tolist() == [*range(-180, -135), *range(-134, -84)]
    assert sorted(set(range(-180, 180)) - set(passing[2].tolist())) == list(range(-59, -53))
    assert tables(128, 3).seed_passes.all()
    free = tables(32, 1).span[:, passing[0] + 180].prod(0)
    assert sorted(set(free.tolist())) == [6, 9]


@pytest.mark.parametrize("size, rendering", [(16, "lra"), (32, "lra"), (32, "upstream"), (128, "upstream")])
def test_images_are_the_recorded_paddles_and_markers(size, rendering):
    """Drawn again by the step-by-step version, which knows no distractors: to 32 pixels where there are none,
    at 128 they can only add."""
    b = generate_block(size, "hard", 3, 0, rendering=rendering, masks=True)
    ids = np.flatnonzero(b.distractors == 0)[:20] if size <= 32 else range(2)
    for i in ids:
        ref = Reference(size, "hard", np.random.default_rng(0), rendering)
        ref.m, ref.canvas, ref.markers = int(b.margin[i]), np.zeros((size, size)), b.markers[i].tolist()
        contrast = ref.p["snake_contrast"] * ref.p["paddle_contrast"]
        for s, start, angle in zip((b.masks[i] & 1, b.masks[i] & 2), b.paddles[i], b.angles[i]):
            for yx, t in zip(start.tolist(), angle):
                line, _ = ref.draw(yx, t, contrast)
                ref.canvas = np.maximum(ref.canvas, line)
                assert s[line > 0.9 * line.max()].all()
        ref.finish()
        difference = b.images[i].astype(int) - ref.image
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


def test_a_follower_decides_every_image_as_labelled():
    """It walks the recorded chains, and sees on the image which ends are marked: only disc centres are that
    bright.

    No follower can decide the about 0.2 % of images in which both snakes end on the same pixel: upstream
    leaves the newest paddle of the other snake out of its map."""
    b = blocks(32, "hard", 4, range(2))
    along = np.stack((np.sin(b.angles), np.cos(b.angles)), axis=-1) * parameters(32, "hard")["paddle_length"]
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
    assert undecided < 0.01 * len(b.label)


def logistic_accuracy(x, y):
    """Two-fold accuracy of a logistic classifier on standardised features, Newton steps."""
    x = np.column_stack(((x - x.mean(0)) / x.std(0), np.ones(len(x))))
    right = 0
    for test in (slice(0, None, 2), slice(1, None, 2)):
        train = slice(1 - test.start, None, 2)
        w = np.zeros(x.shape[1])
        for _ in range(20):
            p = 1 / (1 + np.exp(-x[train] @ w))
            hessian = x[train].T @ (x[train] * (p * (1 - p))[:, None]) + 1e-3 * np.eye(len(w))
            w += np.linalg.solve(hessian, x[train].T @ (y[train] - p) - 1e-3 * w)
        right += ((x[test] @ w > 0) == y[test]).sum()
    return right / len(y)


@pytest.mark.parametrize("size, level", [(32, "hard"), *((16, level) for level in pathfinder.FOLDERS)])
def test_simple_features_do_not_tell_the_label(size, level):
    b = blocks(size, level, 5, range(10 if size == 16 else 4))
    d, lit = distance(b.markers), ((b.images > limit).mean((1, 2)) for limit in (0, 127))
    features = np.column_stack((d, d**2, *lit, b.images.mean((1, 2))))
    assert abs(b.label.mean() - 0.5) < 4 * 0.5 / len(b.label) ** 0.5
    assert logistic_accuracy(features, b.label) < 0.56
    features[:, 2] += 0.1 * b.label  # the same classifier notices a leak
    assert logistic_accuracy(features, b.label) > 0.8


# ------------------------------------------------------------------------------------------------------------
# Sets on disk


def folder_hash(folder):
    """Of all arrays of a complete set."""
    manifest = json.loads((folder / "manifest.json").read_text())
    names = pathfinder.array_specs(manifest["size"], manifest["level"], manifest["n"])
    return hashlib.sha256(b"".join((folder / f"{name}.npy").read_bytes() for name in names)).hexdigest()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """3,500 images in one go."""
    folder = tmp_path_factory.mktemp("whole") / "set"
    generate_set(folder, 32, "easy", 3500, seed=6, workers=1, progress=False)
    return folder


def test_set_is_its_blocks_whatever_the_workers(whole, tmp_path):
    manifest = generate_set(tmp_path, 32, "easy", 3500, seed=6, workers=2, progress=False)
    assert folder_hash(tmp_path) == folder_hash(whole)
    assert manifest["sha256"] == json.loads((whole / "manifest.json").read_text())["sha256"]
    assert generate_set(tmp_path, 32, "easy", 3500, seed=6) == manifest  # nothing to do
    assert not (tmp_path / "unfinished.json").exists()
    last = generate_block(32, "easy", 6, 3, n=500)
    for name, dtype_shape in pathfinder.array_specs(32, "easy", 3500).items():
        stored = np.load(whole / f"{name}.npy")
        assert stored.shape == dtype_shape[1]
        assert np.array_equal(stored[3 * BLOCK :], getattr(last, name).reshape(500, *stored.shape[1:])), name
    images, label = (np.load(whole / f"{name}.npy") for name in ("images", "label"))
    assert manifest["sha256"] == hashlib.sha256(images.tobytes() + label.tobytes()).hexdigest()
    assert manifest["positive"] == label.sum()
    few = generate_block(32, "easy", 6, 3, n=7)
    assert np.array_equal(few.images, last.images[:7]) and np.array_equal(few.paddles, last.paddles[:7])


def test_seeds_blocks_and_levels_differ():
    a = generate_block(32, "easy", 0, 0, n=50).images
    assert np.array_equal(a, generate_block(32, "easy", 0, 0, n=50).images)
    for other in ((32, "easy", 1, 0), (32, "easy", 0, 1), (32, "intermediate", 0, 0)):
        assert not np.array_equal(a, generate_block(*other, n=50).images)
    assert len(np.unique(a, axis=0)) == 50


def test_killed_and_continued_is_the_same_set(whole, tmp_path):
    code = (
        "import sys, time, pathfinder; plain = pathfinder.generate_block\n"
        "def slow(*a): time.sleep(0.5); return plain(*a)\n"
        "pathfinder.generate_block = slow\n"
        "pathfinder.generate_set(sys.argv[1], 32, 'easy', 3500, seed=6, workers=2)"
    )
    root = Path(pathfinder.__file__).parent
    child = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], cwd=root, stderr=subprocess.PIPE)
    marks, deadline = tmp_path / "blocks_done", time.time() + 60
    while not (marks.exists() and b"1" in marks.read_bytes()):
        assert child.poll() is None and time.time() < deadline, child.stderr.read()
        time.sleep(0.02)
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    assert marks.read_bytes().count(b"1") < 4 and not (tmp_path / "manifest.json").exists()
    done = [k for k, mark in enumerate(marks.read_bytes()) if mark == ord("1")]
    before = (tmp_path / "attempts.npy").read_bytes()
    made = []
    write_block = pathfinder.write_block

    def noting(folder, identity, block):
        made.append(block)
        return write_block(folder, identity, block)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pathfinder, "write_block", noting)
        generate_set(tmp_path, 32, "easy", 3500, seed=6, workers=1, progress=False)
    assert before and not set(made) & set(done)  # what was done is kept
    assert folder_hash(tmp_path) == folder_hash(whole)


def test_two_processes_at_once(whole, tmp_path):
    context = multiprocessing.get_context("spawn")
    children = [
        context.Process(target=generate_set, args=(tmp_path, 32, "easy", 3500, 6, 1, False)) for _ in range(2)
    ]
    for child in children:
        child.start()
    for child in children:
        child.join()
    assert [child.exitcode for child in children] == [0, 0]
    assert folder_hash(tmp_path) == folder_hash(whole)


def test_folder_of_another_set_is_refused(whole, tmp_path):
    with pytest.raises(PathfinderError, match="level easy instead of hard"):
        generate_set(whole, 32, "hard", 3500, seed=6)
    with pytest.raises(PathfinderError, match="n 3500 instead of 10"):
        generate_set(whole, 32, "easy", 10, seed=6)
    (tmp_path / "images.npy").write_bytes(b"something")
    with pytest.raises(PathfinderError, match="no manifest.json"):
        generate_set(tmp_path, 32, "easy", 10)
    assert (tmp_path / "images.npy").read_bytes() == b"something"
    for bad in ((33, "easy"), (32, "difficult")):
        with pytest.raises(PathfinderError, match="no Pathfinder set"):
            generate_set(tmp_path, *bad)


def test_damaged_set_is_refused(tmp_path):
    generate_set(tmp_path, 32, "easy", 20, progress=False)
    with open(tmp_path / "images.npy", "r+b") as file:
        file.truncate(1000)
    with pytest.raises(PathfinderError, match="images.npy"):
        generate_set(tmp_path, 32, "easy", 20)
    for content in ("[1]", "{", "1"):
        (tmp_path / "manifest.json").write_text(content)
        with pytest.raises(PathfinderError, match="manifest.json is damaged"):
            generate_set(tmp_path, 32, "easy", 20)


def test_full_disk_is_one_sentence_and_the_rest_follows(whole, tmp_path, monkeypatch):
    fsync, calls = os.fsync, []

    def full(descriptor):
        calls.append(descriptor)
        if len(calls) == 12:  # in the second block
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(PathfinderError, match="No space left on device"):
        generate_set(tmp_path, 32, "easy", 3500, seed=6, workers=1, progress=False)
    assert (tmp_path / "blocks_done").read_bytes() == b"1" and not (tmp_path / "manifest.json").exists()
    generate_set(tmp_path, 32, "easy", 3500, seed=6, workers=1, progress=False)
    assert folder_hash(tmp_path) == folder_hash(whole)
    (tmp_path / "manifest.json").rename(tmp_path / "unfinished.json")
    for name in ("images", "label"):  # as it is when the disk was full before the first block
        with open(tmp_path / f"{name}.npy", "r+b") as file:
            file.seek(128)
            file.write(bytes((tmp_path / f"{name}.npy").stat().st_size - 128))
    (tmp_path / "blocks_done").touch()
    generate_set(tmp_path, 32, "easy", 3500, seed=6, workers=1, progress=False)
    assert folder_hash(tmp_path) == folder_hash(whole)
    monkeypatch.setattr(pathfinder.shutil, "disk_usage", lambda folder: SimpleNamespace(free=1000))
    with pytest.raises(PathfinderError, match="0.00 GB free"):
        generate_set(tmp_path / "other", 32, "easy", 3500)


# ------------------------------------------------------------------------------------------------------------
# The official layout


@pytest.fixture
def official(tmp_path):
    """A miniature pathfinder32: easy with the release's empty image, hard with two metadata files."""
    root = tmp_path / "pathfinder32"
    pixels = np.random.default_rng(0).integers(0, 256, (14, 32, 32), np.uint8)
    hard = {0: [0, 1], 2: [0], 10: [0, 1]}
    layout = {"curv_baseline": {0: [171, 172, 173]}, "curv_contour_length_14": hard}
    for level, batches in layout.items():
        (root / level / "metadata").mkdir(parents=True)
        for k, samples in batches.items():
            (root / level / f"imgs/{k}").mkdir(parents=True)
            lines = []
            for i in samples:
                path = root / level / f"imgs/{k}/sample_{i}.png"
                Image.fromarray(pixels[(k + i) % 14]).save(path)
                lines.append(f"imgs/{k} sample_{i}.png {i} {(k + i) % 2} 1.0 6 2 2 0.5 1 1\n")
            (root / level / f"metadata/{k}.npy").write_text("".join(lines))
    (root / "curv_baseline/imgs/0/sample_172.png").write_bytes(b"")
    return root, pixels


def test_png_folder(official):
    root, pixels = official
    images, label = read_png_folder(root, "hard", progress=False)
    assert np.array_equal(images, pixels[[0, 1, 2, 10, 11]].reshape(5, 1024))
    assert label.tolist() == [0, 1, 0, 0, 1] and images.dtype == label.dtype == np.uint8
    images, label = read_png_folder(root, "easy", progress=False)  # 172 is empty, and known to be
    assert np.array_equal(images, pixels[[171 % 14, 173 % 14]].reshape(2, 1024)) and label.tolist() == [1, 1]


@pytest.mark.parametrize(
    "file, content, message",
    [
        ("imgs/2/sample_0.png", b"", "imgs/2/sample_0.png: missing or unreadable"),
        ("imgs/10/sample_1.png", None, "imgs/10/sample_1.png: missing or unreadable"),
        ("imgs/0/sample_1.png", b"\x89PNG\r\n", "imgs/0/sample_1.png: missing or unreadable"),
        ("metadata/0.npy", b"imgs/0 sample_0.png 0 1 1.0\nimgs/0 sample_1.png 1\n", "metadata/0.npy, line 2"),
        ("metadata/0.npy", b"imgs/0 sample_0.png 0 7 1.0\n", "metadata/0.npy, line 1"),
        ("metadata/0.npy", b"", "metadata lists no images"),
        ("metadata/0.npy", b"imgs/0 ../../../secret.png 0 1\n", "metadata/0.npy, line 1"),
    ],
)
def test_png_folder_names_what_is_wrong(official, file, content, message):
    path = official[0] / "curv_contour_length_14" / file
    path.unlink() if content is None else path.write_bytes(content)
    if content == b"" and "metadata" in file:
        for other in ("2.npy", "10.npy"):
            path.with_name(other).write_bytes(b"")
    with pytest.raises(PathfinderError, match=message.replace("/", "[/\\\\]")):
        read_png_folder(official[0], "hard", progress=False)


def test_a_damaged_png_is_never_another_image(official):
    """Its checksums are looked at: reading the pixels passes over them."""
    path = official[0] / "curv_contour_length_14" / "imgs/2/sample_0.png"
    Image.fromarray(generate_block(32, "hard", seed=0, block=0, n=1).images[0]).save(path)
    whole = path.read_bytes()
    images, _ = read_png_folder(official[0], "hard", progress=False)
    for i in range(0, len(whole), 7):
        flipped, torn = bytes([whole[i] ^ 1]) + whole[i + 1 :], bytes(len(whole) - i)
        for rest in (flipped, torn):
            path.write_bytes(whole[:i] + rest)
            try:
                found, _ = read_png_folder(official[0], "hard", progress=False)
            except PathfinderError as error:
                assert "sample_0.png: missing or unreadable" in str(error)
            else:
                assert np.array_equal(found, images)


def test_workers_are_as_many_as_the_cores_that_may_be_used(monkeypatch):
    for cores in ({3}, set(range(os.cpu_count() + 1))):  # one or the other is not the number of all
        monkeypatch.setattr(os, "sched_getaffinity", lambda process, cores=cores: cores, raising=False)
        assert pathfinder.usable_cores() == len(cores)
    monkeypatch.delattr(os, "sched_getaffinity")  # as on macOS and Windows
    assert pathfinder.usable_cores() == os.cpu_count()


def test_png_folder_of_something_else(tmp_path):
    with pytest.raises(PathfinderError, match="not an official folder"):
        read_png_folder(tmp_path, "hard")
