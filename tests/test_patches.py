"""exp_patches.py: features against a loop over patches in float64. pytest tests/test_patches.py"""

import math
import types

import numpy as np
import pytest
import torch
from conftest import ends_of, exit_code, lines_of

import data
import exp_patches
import records
import tables

pytest.importorskip("sklearn")


def task_of(images, labels, name="image"):
    """A Task of images (n, side, side, channels): half of them for training, a fourth each for the rest."""
    n, side, _, channels = images.shape
    cuts, splits = [0, n // 2, 3 * n // 4, n], {}
    for split, start, stop in zip(data.SPLITS, cuts, cuts[1:]):
        splits[split] = data.image_split(images[start:stop].reshape(stop - start, -1), labels[start:stop])
    shape = data.SHAPES[name] | {"max_length": side * side * channels}
    return data.Task(name, **shape, **splits, source={"hash": "0"})


def random_images(n, side, channels=1, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (n, side, side, channels), dtype=np.uint8)


def naive(image, h, w, mean, whiten, centres):
    """Activations of each patch by plain loops in float64 -> {(row, column): (K,)}"""
    found, side = {}, len(image)
    for row in range(side - h + 1):
        for column in range(side - w + 1):
            x = np.array([image[row + i, column + j, c] for c in range(image.shape[2])
                          for i in range(h) for j in range(w)], float)  # fmt: skip
            if h * w > 1:
                x = (x - x.mean()) / math.sqrt(((x - x.mean()) ** 2).mean() + 10)
            x = (x - mean) @ whiten
            distance = np.array([math.sqrt(((x - centre) ** 2).sum()) for centre in centres])
            found[row, column] = np.maximum(0, distance.mean() - distance)
    return found


@pytest.mark.parametrize("h, w, channels", [(3, 3, 1), (1, 4, 1), (4, 2, 3), (1, 1, 1), (1, 1, 3)])
def test_features_are_those_of_a_loop_over_patches(h, w, channels):
    """A patch lies in the quarter that has its middle; on the line between two, in the lower or right one."""
    side, images = 8, random_images(12, 8, channels)
    task = task_of(images, np.arange(12) % 10, "scifar" if channels == 3 else "image")
    patches = exp_patches.sampled(task, (h, w), 0, 500)
    known = exp_patches.learn_dictionary(patches, (h, w), 7, 0)
    mean, whiten, centres = (part.double().numpy() for part in known[1:])
    x = patches.double().numpy() - mean
    covariance = x.T @ x / len(x) + 0.1 * np.eye(x.shape[1])  # whitening is its symmetric inverse root
    assert np.allclose(whiten @ covariance @ whiten, np.eye(x.shape[1]), atol=1e-3)
    assert np.allclose(whiten, whiten.T) and np.allclose(x.mean(0), 0, atol=1e-4)
    got = exp_patches.summed(exp_patches.images_of(task, "train"), known, "")
    inside = exp_patches.quarters_of(side, (h, w))
    whole, parts = (exp_patches.pooled(got.clone(), inside, pool) for pool in exp_patches.POOLS)
    for i in range(6):
        found = naive(images[i].astype(float), h, w, mean, whiten, centres)
        quarters = [[], [], [], []]
        for (row, column), near in found.items():
            lower, right = (at + (length - 1) / 2 >= (side - 1) / 2 for at, length in ((row, h), (column, w)))
            quarters[2 * lower + right].append(near)
        wanted = np.concatenate([np.mean(quarter, 0) for quarter in quarters])
        assert np.allclose(parts[i], wanted, rtol=1e-3, atol=1e-3), (h, w, channels)
        assert np.allclose(whole[i], np.mean([*found.values()], 0), rtol=1e-3, atol=1e-3)


def test_sampled_patches_are_those_of_training_images_and_all_places_have_their_turn():
    images = np.arange(8 * 16, dtype=np.uint8).reshape(8, 4, 4, 1)  # no pixel twice
    task = task_of(images, np.zeros(8, int))
    assert {*exp_patches.sampled(task, (1, 1), 0, 2_000).flatten().tolist()} == {*range(64)}
    images = random_images(8, 4)
    every = {tuple(np.round(naive(image.astype(float), 2, 3, 0, np.eye(6), np.zeros((1, 6)))[0, 0], 3))
             for image in images[:4]}  # fmt: skip
    assert every == {(0.0,)}  # of one centre nothing is nearer than the mean
    x = exp_patches.sampled(task_of(images, np.zeros(8, int)), (2, 3), 0, 2_000)
    corners = [image[r : r + 2, c : c + 3, 0].astype(float).ravel() for image in images[:4] for r in range(3)
               for c in range(2)]  # fmt: skip
    wanted = {tuple(((p - p.mean()) / np.sqrt(p.var() + 10)).round(2) + 0.0) for p in corners}
    assert {tuple(row.round(2) + 0.0) for row in x.double().numpy()} == wanted and len(wanted) == 24


def test_centres_are_the_middles_of_planted_clusters_after_whitening():
    middles = torch.tensor([[0.0, 0, 0, 4], [4, 0, 0, 0], [0, 4, 0, 0], [0, 0, 4, 4]])
    patches = middles[torch.arange(4_000) % 4] + 0.05 * torch.randn(4_000, 4, generator=torch.Generator())
    known = exp_patches.learn_dictionary(patches, (2, 2), 4, 0)
    wanted = (middles - known.mean) @ known.whiten
    assert torch.cdist(wanted, known.centres).amin(1).max() < 0.02
    assert exp_patches.distinct(middles[torch.arange(4_000) % 4], 10) == 4


def test_a_bag_of_single_pixels_does_not_see_their_order_and_one_of_patches_does():
    images = random_images(12, 8)
    mixed = np.stack([np.random.default_rng(i).permutation(x.reshape(-1)) for i, x in enumerate(images)])
    mixed, change = mixed.reshape(images.shape), {}
    for size in ((1, 1), (2, 2)):
        task = task_of(images, np.arange(12) % 10)
        known = exp_patches.learn_dictionary(exp_patches.sampled(task, size, 0, 500), size, 5, 0)
        sums = [exp_patches.summed(torch.from_numpy(x), known, "") for x in (images, mixed)]
        inside = exp_patches.quarters_of(8, size)
        whole, other = (exp_patches.pooled(x.clone(), inside, "all") for x in sums)
        change[size] = (whole - other).abs().max()
        parts, turned = (exp_patches.pooled(x, inside, "quarters") for x in sums)
        assert (parts - turned).abs().max() > 0.01
    assert change[1, 1] < 1e-5 and change[2, 2] > 0.01


def test_the_classifier_is_newtons_on_features_standardised_by_training():
    """The same accuracies as Newton's method has in float64, on parts that are shifted against each other. A
    column that never changes is harmless."""
    draw, x, label = np.random.default_rng(0), {}, {}
    for split, shift in zip(data.SPLITS, (0, 0.5, -0.5)):
        z = draw.normal(size=(400, 5)) + shift
        label[split] = (z[:, 0] + z[:, 1] - 2 * shift + draw.normal(size=400) > 0).astype(int)
        x[split] = z * [1, 10, 0.1, 1, 0] + 3
    splits = {split: types.SimpleNamespace(label=torch.from_numpy(own)) for split, own in label.items()}
    task = types.SimpleNamespace(splits=splits)
    got = exp_patches.fit({split: torch.from_numpy(part).float() for split, part in x.items()}, task)
    mean, spread, ones = x["train"].mean(0), x["train"].std(0) + [0, 0, 0, 0, 1], np.ones((400, 1))
    x = {split: np.concatenate([(part - mean) / spread, ones], 1) for split, part in x.items()}
    w, decay = np.zeros(6), np.array([got["penalty"]] * 5 + [0])
    for _ in range(30):
        p = 1 / (1 + np.exp(-x["train"] @ w))
        slope = x["train"].T @ (p - label["train"]) + decay * w
        curve = (x["train"].T * (p * (1 - p))) @ x["train"] + np.diag(decay)
        w -= np.linalg.solve(curve, slope)
    assert got["converged"] and got["params"] == 6
    for split in data.SPLITS:
        assert got[f"{split}_acc"] == pytest.approx(((x[split] @ w > 0) == label[split]).mean(), abs=0.003)
    assert 0.6 < got["test_acc"] < 0.9 and got["val_acc"] == pytest.approx(max(got["tried"].values()))


@pytest.mark.parametrize("classes", [2, 3])
def test_the_slope_is_that_of_finite_differences(classes):
    draw = np.random.default_rng(0)
    x, label = draw.normal(size=(30, 4)), torch.arange(30) % classes
    outputs = 1 if classes == 2 else classes
    model = types.SimpleNamespace(coef_=draw.normal(size=(outputs, 4)), intercept_=draw.normal(size=outputs))

    def loss(weight):
        scores = torch.from_numpy(x @ weight.T + model.intercept_)
        scores = torch.cat([torch.zeros(30, 1), scores], 1) if classes == 2 else scores
        losses = torch.nn.functional.cross_entropy(scores, label, reduction="sum")
        return (float(losses) + 7 / 2 * (weight**2).sum()) / 30

    steps = 1e-5 * np.eye(4 * outputs).reshape(-1, outputs, 4)
    wanted = [(loss(model.coef_ + step) - loss(model.coef_ - step)) / 2e-5 for step in steps]
    found = exp_patches.steepest(model, x, label.numpy(), 7)
    assert found == pytest.approx(max(map(abs, wanted)), rel=1e-5)


@pytest.mark.parametrize("scores, last, best", [
    ([0.52, 0.51, 0.56, 0.55], 10, 100),  # a strong penalty that loses by luck ends nothing
    ([0.4, 0.5, 0.6, 0.7, 0.7003], 1, 1),
    ([0.4, 0.5, 0.6, 0.7, 0.8, 0.75], 0.1, 1),
])  # fmt: skip
def test_penalties_are_tried_until_a_weak_one_brings_little(scores, last, best, monkeypatch):
    def stand_in(**how):
        model = types.SimpleNamespace(coef_=np.zeros((1, 2)), intercept_=np.zeros(1), n_iter_=np.array([3]))
        tried = iter(scores)
        model.set_params = lambda C: setattr(model, "own", next(tried)) or model
        model.fit = lambda x, y: model
        model.score = lambda x, y: model.own
        return model

    kind = types.SimpleNamespace(linear_model=types.SimpleNamespace(LogisticRegression=stand_in))
    monkeypatch.setattr(exp_patches.machine, "scikit_learn", lambda: kind)
    monkeypatch.setattr(exp_patches, "steepest", lambda *how: 0.0)
    label = types.SimpleNamespace(label=torch.zeros(4))
    task = types.SimpleNamespace(splits=dict.fromkeys(data.SPLITS, label))
    got = exp_patches.fit({split: torch.rand(4, 2) for split in data.SPLITS}, task)
    assert ([*got["tried"]][-1], got["penalty"]) == (str(last), best)


# ------------------------------------------------------------------------------------------ cells


SMOKE = ("--task", "image", "--patch", "3x3", "--centres", "9")


@pytest.fixture
def short(tmp_path, monkeypatch):
    """The stand-in passes for the data, so that a run counts; in a folder of its own."""
    whole = data.load
    monkeypatch.setattr(data, "load", lambda *args, **how: whole(*args, **how | {"smoke": True}))
    monkeypatch.setattr(records, "RESULTS", tmp_path / "none")
    monkeypatch.setattr(exp_patches, "SAMPLE", 5_000)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "runs"


def test_a_killed_cell_is_taken_up_a_finished_one_skipped_and_pools_share_their_features(
    short, monkeypatch, capsys
):
    """Whatever the order of commands, the numbers are the same."""

    def killed(features, task):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(exp_patches, "fit", killed)
        assert exit_code(exp_patches.main, *SMOKE) == 130
    assert lines_of(short / "results.jsonl") == []
    counts, summed = [], exp_patches.summed
    monkeypatch.setattr(exp_patches, "summed", lambda *how: counts.append(1) or summed(*how))
    for pools in (["all", "quarters"], ["all", "quarters"]):
        assert exit_code(exp_patches.main, *SMOKE, "--pool", *pools) == 0
    assert len(counts) == 3 and capsys.readouterr().out.count("is done") == 2
    assert exit_code(exp_patches.main, *SMOKE, "--pool", "quarters", "--fresh") == 0
    found = lines_of(short / "results.jsonl")
    assert [r["cell"] for r in found] == [
        {"patch": "3x3", "centres": 9, "pool": pool} for pool in ("all", "quarters", "quarters")
    ]
    assert all(records.is_record(r) and r["tier"] == "paper" for r in found)
    assert [r["features"] for r in found] == [9, 36, 36] and found[1]["cpu_seconds"] > 0
    assert [found[1][k] for k in ("val_acc", "test_acc", "steps")] == [
        found[2][k] for k in ("val_acc", "test_acc", "steps")
    ]
    assert exit_code(exp_patches.main, "--report", "--task", "image") == 0
    out = capsys.readouterr().out
    assert f"| 3x3, 9, quarters     | 67   | {100 * found[2]['test_acc']:.2f} ±" in out
    assert max(map(len, out.splitlines())) <= 80


@pytest.mark.parametrize("words, said", [
    ("--patch 33x1", "image: a patch of 33x1 is larger than the image, 32 x 32 pixels; give a smaller"),
    ("--patch 1x25 --pool quarters", "larger than the quarter of the image, 16 x 16 pixels"),
    ("--patch 1x1 --centres 5001", "give at most"),
    ("--patch 6", "such as 6x6"),
    ("--patch 0x6", "such as 6x6"),
])  # fmt: skip
def test_what_cannot_be_is_one_sentence_and_nothing_is_left(words, said, short, capsys):
    assert exit_code(exp_patches.main, "--task", "image", *words.split()) == 2
    err = capsys.readouterr().err
    assert said in err and err.count("error: ") == 1 and "Traceback" not in err
    assert not short.exists() or not [*short.iterdir()]


def test_a_cell_that_another_process_has_is_left_to_it(short, monkeypatch, capsys):
    def busy(args, name):
        raise records.Busy(f"{name} is being trained by another process and is left to it")

    monkeypatch.setattr(records, "claim", busy)
    assert exit_code(exp_patches.main, *SMOKE) == 75
    assert "another process" in capsys.readouterr().err


# ------------------------------------------------------------------------------------------ the report


def record(patch, pool, accuracy, centres=400, task="image"):
    return {
        "task": task, "model": "linear", "tier": "paper", "changes": {}, "seed": 0,
        "test_acc": accuracy, "val_acc": accuracy,
        "cell": {"patch": patch, "centres": centres, "pool": pool}, "chance": 0.1, "data": {}, "row": "",
    }  # fmt: skip


def test_the_figure_has_the_spans_and_accuracies_of_the_records(monkeypatch, tmp_path):
    pytest.importorskip("matplotlib")
    drawn = []
    monkeypatch.setattr(tables, "save_figure", lambda figure, path: drawn.append(figure))
    found = [record("6x6", "all", 0.55), record("1x5", "all", 0.37), record("6x6", "quarters", 0.65)]
    exp_patches.plot(found, tmp_path / "x.png")
    (axis,) = drawn[0].axes
    lines = {}  # of a curve with errors the first: their caps have the same x
    for line in axis.get_lines():
        lines.setdefault(tuple(line.get_xdata()), [*line.get_ydata()])
    assert lines[5, 166] == pytest.approx([37, 55]) and lines[(166,)] == pytest.approx([65])
    # Six layers of K = 5, 7, 11, 21, 31, 61, 12 to 180 to each side and the middle itself.
    assert lines[25, 37, 61, 121, 181, 361] == [46.63, 49.05, 64.47, 70.25, 79.84, 83.62]
    band = next(patch for patch in axis.patches)
    assert ends_of(band) == pytest.approx([38.07, 44.24])
    spans = {"1x1": 1, "1x25": 25, "3x3": 67, "6x6": 166, "10x10": 298}
    assert {patch: exp_patches.span(patch) for patch in spans} == spans
    assert exp_patches.span("6x6", side=16) == 86


def test_the_sentence_counts_those_behind():
    """By hand: of 10,000 test examples 43 % is 1.4 points from what is level, so 41.6 counts as behind."""
    text = exp_patches.worth(record("6x6", "quarters", 0.6513))
    assert "400 kinds of patches of 6 x 6 pixels, averaged over each quarter of the image, get 65.1" in text
    assert "ahead of 11 of 11 Transformers of LRA's table (38.07 to 44.24)" in text
    places = "ahead of K = 5 (46.63), K = 7 (49.05); level with K = 11 (64.47); behind K = 21 (70.25), "
    assert text.endswith(f"Beside paper A's convolutions it is {places}K = 31 (79.84), K = 61 (83.62).")
    assert "ahead of 5 of 11" in (low := exp_patches.worth(record("1x5", "all", 0.43)))
    assert "; level with 6 of 11 Transformers" in low  # 41.61 and more
    assert "convolutions it is behind K = 5 (46.63), K = 7" in low
    chance = exp_patches.worth(record("6x6", "all", 0.105))  # ± 0.6, and one answer for all has 10 %
    assert chance.endswith(
        "of LRA's table (38.07 to 44.24). It is level with always the same answer: at chance."
    )
    assert exp_patches.worth(record("6x6", "all", 0.5, task="scifar")).endswith("comparable.")
