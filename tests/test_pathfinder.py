"""Pathfinder: the fast generator against the original's statistics, one real image, a follower of its paths;
sets on disk, and the official folders."""

import hashlib
import io
import resource
import shutil

import numpy as np
import pytest
from PIL import Image

import data
import pathfinder
from data import DataError
from pathfinder import generate_block, generate_set, pack_png_folder, parameters, read_png, tables

# Upstream's own program, instrumented: mean and standard error of tries of step B, distractors placed, pixels
# between the markers. Easy and intermediate: K recomputed.
UPSTREAM = {
    (32, "easy"): ((23.3, 0.7), (3.38, 0.05), (15.03, 0.12)),
    (32, "intermediate"): ((67.6, 2.2), (1.82, 0.04), (14.11, 0.15)),
    (32, "hard"): ((325.5, 7.0), (1.146, 0.021), (13.13, 0.11)),
    (128, "easy"): ((1.77, 0.07), (16.99, 0.01), (53.3, 0.6)),
    (128, "hard"): ((348, 33), (7.75, 0.03), (74.9, 1.1)),
    (256, "hard"): ((8.1, 0.6), (7.00, 0.01), (125.5, 2.1)),
}


def watched(monkeypatch, size, level, seed, blocks):
    """Images, labels and what was known while they were made: the tries of each, the distractors, the target
    paddles (slots, (angle, y, x), images) and the markers."""
    tries, distractors, targets, markers = [], [], [], []
    target_snakes, draw = pathfinder.target_snakes, pathfinder.render
    length = parameters(size, level)["distractor_length"]

    def snakes(*args):
        laid, counted = target_snakes(*args)
        tries.append(counted)
        return laid, counted

    def render(tab, laid, others, discs):
        targets.append(np.concatenate((tab.drawn[laid[:, :1]], laid[:, 1:]), axis=1))
        distractors.append((others[::length, 0] != tab.NOTHING).sum(0))
        markers.append(discs)
        return draw(tab, laid, others, discs)

    with monkeypatch.context() as patch:
        patch.setattr(pathfinder, "target_snakes", snakes)
        patch.setattr(pathfinder, "render", render)
        images, label = zip(*[generate_block(size, level, seed, k) for k in range(blocks)])
    parts = images, label, tries, distractors, markers
    return *map(np.concatenate, parts), np.concatenate(targets, axis=2)


@pytest.mark.parametrize("size, level", UPSTREAM)
def test_statistics_of_the_original(size, level, monkeypatch):
    _, label, tries, distractors, markers, _ = watched(monkeypatch, size, level, 1, 4 if size == 32 else 1)
    apart = np.linalg.norm(markers[:, 0].astype(float) - markers[:, 1], axis=1)
    for values, (mean, error) in zip((tries, distractors, apart, label), (*UPSTREAM[size, level], (0.5, 0))):
        assert abs(values.mean() - mean) < 4 * np.hypot(error, values.std() / len(values) ** 0.5)


GOLDEN = {  # sha256 of the first 20 images and labels of seed 0: what results/ and sets on disk were made of
    (16, "hard"): "01553c5c611c976a",
    (32, "hard"): "df1ced64b3bdb891",
    (128, "intermediate"): "e5d018713a08b9e1",
    (256, "easy"): "1dcc4471b3d7c9c2",
}


@pytest.mark.parametrize("size, level", GOLDEN)
def test_a_block_is_what_it_always_was(size, level):
    images, label = generate_block(size, level, seed=0, block=0, n=20)
    assert hashlib.sha256(images.tobytes() + label.tobytes()).hexdigest()[:16] == GOLDEN[size, level]


def test_grey_levels_of_the_real_image():
    """Levels read off the released pathfinder32-hard image: a disc, a target paddle, a distractor paddle."""
    tab = tables(32, 1)
    at = tab.A + 180  # drawn angle 0: to the right
    target, distractor = (np.array([[[at], [y], [12]]], np.int16) for y in (20, 26))
    image = pathfinder.render(tab, target, distractor, np.array([[[8, 8], [8, 8]]]))[0].astype(int)
    disc = [[206, 245, 117], [245, 255, 172], [117, 172, 42]]
    assert np.abs(image[7:10, 7:10] - disc).max() <= 1
    assert np.abs(image[8, 4:12] - [2, 1, 59, 245, 255, 172, 0, 1]).max() <= 1
    assert np.abs(image[20, 12:15] - [119, 171, 135]).max() <= 1
    assert np.abs(image[26, 12:15] - [159, 227, 179]).max() <= 1


@pytest.mark.parametrize("size, ends_meet", [(16, 0.03), (32, 0.01)])
def test_a_follower_decides_every_image_as_labelled(size, ends_meet, monkeypatch):
    """It walks the laid chains, and sees on the image which ends are marked: only disc centres are that
    bright.

    No follower can decide the images (about 0.2 % at 32 and 1.6 % at 16 pixels) in which both snakes end on
    the same pixel: upstream leaves the newest paddle of the other snake out of its map."""
    images, labels, _, _, _, targets = watched(monkeypatch, size, "hard", 4, 2)
    chains = targets.reshape(-1, 2, 3, len(labels)).transpose(3, 1, 0, 2)  # (image, snake, paddle, ...)
    p = parameters(size, "hard")
    (m,), undecided = p["paddle_margin_list"], 0
    for image, pair, label in zip(images, chains, labels):
        marked, ends = [], []
        for snake, chain in enumerate(pair):
            # The first paddle is drawn from the origin tip onwards, all others from their far end backwards.
            start, angle = chain[:, 1:], chain[:, :1]
            end = start + p["paddle_length"] * np.concatenate((np.sin(angle), np.cos(angle)), axis=1)
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
    assert undecided < ends_meet * len(labels)


def test_a_set_is_the_same_from_any_number_of_processes_and_whole_or_not_at_all(tmp_path):
    set_ = dict(size=16, level="easy", n=3500, seed=6)
    images, label, digest = generate_set(tmp_path / "one", workers=1, **set_)
    last = generate_block(16, "easy", 6, 3, n=500)
    assert np.array_equal(images[3000:], last[0].reshape(500, 256)) and np.array_equal(label[3000:], last[1])
    assert images.shape == (3500, 256) and len(label) == 3500
    assert digest == hashlib.sha256(images.tobytes() + label.tobytes()).hexdigest()
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, unlimited[1]))
    try:
        with pytest.raises(DataError, match="cannot make .*two .*File too large.*; free space"):
            generate_set(tmp_path / "two", workers=1, **set_)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
    assert not (tmp_path / "two").exists()
    assert generate_set(tmp_path / "two", workers=2, **set_)[2] == digest
    assert not [*tmp_path.glob("*.part")]


def test_a_damaged_set_and_one_of_something_else_are_refused(tmp_path):
    set_ = dict(folder=tmp_path / "set", size=16, level="easy", n=20)
    generate_set(**set_)
    faults = {"level easy instead of hard": dict(level="hard"), "n 20 instead of 9": dict(n=9)}
    for match, other in faults.items():
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


def test_the_hash_in_a_record(tmp_path, monkeypatch, capsys):
    """sha256 of the levels' sha256, each of the pixels and then the labels: as it was when results/ began."""
    assert pathfinder.OFFICIAL_IMAGES == 200_000
    monkeypatch.setattr(pathfinder, "OFFICIAL_IMAGES", 50)
    (tmp_path / "pathfinder32").symlink_to(tmp_path / "nowhere")
    levels = [generate_block(32, level, 0, 0, n=50) for level in ("easy", "intermediate", "hard")]
    digests = [hashlib.sha256(images.tobytes() + label.tobytes()).hexdigest() for images, label in levels]
    task = data.load("pathfinder", tmp_path, technique="three sets")
    told = f"is generated: there are no official files in {tmp_path / 'pathfinder32'}"
    assert capsys.readouterr().out.count(told) == 3
    hard, order = levels[2][0].reshape(50, -1), data.fixed_order(50)
    rows = [images.reshape(50, -1)[np.sort(order[:40])] for images, _ in levels]
    parts = dict(train=np.concatenate(rows), val=hard[np.sort(order[40:45])], test=hard[np.sort(order[45:])])
    for split, pixels in parts.items():
        assert np.array_equal(task.splits[split].tokens, pixels.reshape(-1))
    assert np.array_equal(task.test.label, levels[2][1][np.sort(order[45:])])
    counts, digest = {"train": 120, "val": 5, "test": 5}, hashlib.sha256("".join(digests).encode())
    assert task.source == {"from": "generated", "seed": 0, "hash": digest.hexdigest(), "counts": counts}
    hard = data.load("pathfinder", tmp_path)
    assert hard.source["hash"] == hashlib.sha256(digests[2].encode()).hexdigest()


def test_path_x_is_the_hard_level_and_mini_pathfinder_the_easy_one(tmp_path, monkeypatch):
    asked = []

    def blank(folder, size, level, n):
        asked.append((folder.name, size, level, n))
        return np.zeros((20, size**2), np.uint8), np.arange(20, dtype=np.uint8) % 2, "digest"

    monkeypatch.setattr(pathfinder, "generate_set", blank)
    data.load("pathx", tmp_path)
    assert data.load("pathfinder", tmp_path, technique="three sets", mini=True).max_length == 256
    assert asked == [("pathfinder128-hard", 128, "hard", 200_000), ("pathfinder16-easy", 16, "easy", 40_000)]


@pytest.fixture
def official(tmp_path, monkeypatch):
    """A miniature pathfinder32: easy with the release's empty image, hard with three metadata files."""
    monkeypatch.setattr(pathfinder, "OFFICIAL_IMAGES", 5)
    root = tmp_path / "pathfinder32"
    pixels, _ = generate_block(32, "hard", 0, 0, n=16)
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
    task = data.load("pathfinder", tmp_path)  # the folder is found, nothing is generated
    assert task.source["from"] == "lra_release" and len(task.train.label) == 4
    images, label, _ = pack_png_folder(tmp_path / "packed" / "pathfinder-hard", root, 32, "hard")
    assert np.array_equal(images, pixels[[0, 1, 2, 10, 11]]) and label.tolist() == [0, 1, 0, 0, 1]
    images, label, _ = pack_png_folder(tmp_path / "easy", root, 32, "easy")
    assert np.array_equal(images, pixels[[10, 11, 13, 14]]) and label.tolist() == [0, 1, 1, 0]
    shutil.rmtree(root)
    assert data.load("pathfinder", tmp_path).source == task.source
    with pytest.raises(DataError, match="curv_baseline.metadata lists 0 images, not 5"):
        data.load("pathfinder", tmp_path, technique="three sets")


def saved(mode, side, form):
    content = io.BytesIO()
    Image.new(mode, (side, side)).save(content, form)
    return content.getvalue()


PICTURE, NOT_IMGS = (
    "imgs/2/sample_0.png: missing or not a grey PNG of 32 x 32",
    "2.npy, line 1: listed before, or not `imgs",
)


@pytest.mark.parametrize("file, content, message", [
    ("imgs/2/sample_0.png", None, PICTURE),
    ("imgs/2/sample_0.png", b"", PICTURE),
    ("imgs/2/sample_0.png", saved("L", 64, "PNG"), PICTURE + r" pixels \(mode L, 64 x 64"),
    ("imgs/2/sample_0.png", saved("RGB", 32, "PNG"), PICTURE + r" pixels \(mode RGB"),
    ("imgs/2/sample_0.png", saved("L", 32, "EPS"), PICTURE + ".*cannot identify"),  # no Ghostscript
    ("metadata/2.npy", b"imgs/2 sample_0.png 0 7 1.0\n", NOT_IMGS),
    ("metadata/2.npy", b"imgs/2 sample_0.png 0 0.9 6\n", NOT_IMGS),
    ("metadata/2.npy", b"imgs/2 sample_0.png 1 1.0 6\n", NOT_IMGS),  # without the column of the number
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
    refused, places = 0, range(0, len(whole), 9)
    for i in places:
        path.write_bytes(whole[:i] + bytes([whole[i] ^ 1]) + whole[i + 1 :])
        try:
            assert np.array_equal(read_png(path, 32), image)
        except DataError:
            refused += 1
    assert refused > len(places) / 2
