"""data.py: batches, corruption, packing, the official layouts, augmentation. pytest tests/test_data.py"""

import argparse
import errno
import hashlib
import json
import multiprocessing
import pickle
import shutil
import stat
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

import data

ROOT = Path(__file__).parent.parent


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


# ------------------------------------------------------------------------------------------ batches


@pytest.mark.parametrize("bucket", [True, False])
@pytest.mark.parametrize("name", ["text", "retrieval", "image"])
def test_an_epoch_covers_every_example_exactly_once(name, bucket):
    task = data.load(name, "unused", augment="none", smoke=True, limit=197)
    plan = task.plan(16, seeded(), bucket)
    assert sorted(torch.cat(plan).tolist()) == list(range(197))
    assert sorted(map(len, plan)) == [5] + [16] * 12
    assert [b.tolist() for b in plan] == [b.tolist() for b in task.plan(16, seeded(), bucket)]
    assert [b.tolist() for b in plan] != [b.tolist() for b in task.plan(16, seeded(1), bucket)]


def test_buckets_waste_less_and_are_not_the_same_batches_every_epoch():
    task, order = data.load("text", "unused", smoke=True), seeded()

    def padding(plan):
        lengths = [task.lengths["train"][index] for index in plan]
        return 1 - sum(int(n.sum()) for n in lengths) / sum(len(n) * int(n.max()) for n in lengths)

    first, second = task.plan(16, order), task.plan(16, order)
    assert padding(first) < 0.1 < 0.3 < padding(task.plan(16, order, bucket=False))
    assert {tuple(sorted(b.tolist())) for b in first} != {tuple(sorted(b.tolist())) for b in second}


def test_a_batch_holds_the_documents_and_nothing_else():
    task = data.load("retrieval", "unused", smoke=True, max_length=200)
    index = torch.tensor([7, 0, 30])
    batch = task.gather("train", index)
    rows = [row for i in index.tolist() for row in (2 * i, 2 * i + 1)]  # doc1, doc2, doc1, doc2, ...
    for row, tokens, mask in zip(rows, batch.tokens, batch.mask):
        start, stop = task.train.offsets[row : row + 2].tolist()
        document = task.train.tokens[start:stop][:200].long() + task.first_id
        assert torch.equal(tokens[mask], document) and mask[: len(document)].all()
        assert not tokens[~mask].any()  # padding is id 0
    assert torch.equal(batch.label, task.train.label[index])
    assert (batch.docs, batch.examples, int(batch.positions)) == (2, 3, int(batch.mask.sum()))
    assert batch.tokens.shape[1] == 200  # rounded up to a multiple of 64, but never beyond the task's length


@pytest.mark.parametrize("name, full", (("image", True), ("pathfinder", True), ("text", False)))
def test_a_batch_without_padding_says_so_by_its_strides(name, full):
    task = data.load(name, "unused", smoke=True, augment="none")
    plan = [task.lengths["train"].argsort()[:7]]  # of Text the shortest, which differ in length
    batch = next(task.training_batches(plan, seeded(), 0))
    for part in (batch, *batch.parts(3), batch.share(1, 2)):
        assert part.mask.shape == part.tokens.shape and bool(part.mask.all()) == full
        assert (part.mask.stride() == (0, 0)) == full


def test_evaluation_sees_every_example_once_within_its_budget():
    task = data.load("retrieval", "unused", smoke=True)
    batches = list(task.evaluation_batches("test", positions=2000))
    assert sum(len(b.label) for b in batches) == len(task.test.label)
    assert Counter(torch.cat([b.label for b in batches]).tolist()) == Counter(task.test.label.tolist())
    assert max(b.tokens.numel() for b in batches if len(b.label) > 1) <= 2000


def test_parts_never_cut_a_pair():
    task = data.load("retrieval", "unused", smoke=True, denoise=True)
    batch = next(task.training_batches([torch.arange(5)], seeded(), 0))
    parts = list(batch.parts(2))
    assert [len(p.label) for p in parts] == [2, 2, 1] and [len(p.tokens) for p in parts] == [4, 4, 2]
    for field in ("tokens", "mask", "target", "selected", "label"):
        assert torch.equal(torch.cat([getattr(p, field) for p in parts]), getattr(batch, field))
    assert {p.examples for p in parts} == {5} and {int(p.positions) for p in parts} == {int(batch.positions)}


def test_smaller_limits_are_nested_and_too_large_ones_are_refused():
    tasks = [data.load("text", "unused", smoke=True, limit=n) for n in (20, 50)]
    documents = [[bytes(d) for d in np.split(t.train.tokens.numpy(), t.train.offsets[1:-1])] for t in tasks]
    assert documents[0] == documents[1][:20]
    assert torch.equal(tasks[0].train.label, tasks[1].train.label[:20])
    assert [len(t.val.label) for t in tasks] == [20, 50] and len(tasks[0].test.label) > 50
    assert torch.equal(tasks[0].val.label, tasks[1].val.label[:20])
    with pytest.raises(data.DataError, match="more than the 512"):
        data.load("text", "unused", smoke=True, limit=513)
    with pytest.raises(data.DataError, match="listops cannot be cut"):
        data.load("listops", "unused", smoke=True, max_length=100)
    # Else the model would grow and the data would not.
    with pytest.raises(data.DataError, match="at most 4096 bytes"):
        data.load("text", "unused", smoke=True, max_length=5000)


def test_an_augmentation_that_a_task_does_not_have_is_refused():
    """It would stand in the record, and ListOps would lose its shuffling."""
    for name in ("listops", "text", "scifar"):
        with pytest.raises(data.DataError, match=f"flip is for grey images; {name} has none"):
            data.require(["image", name], argparse.Namespace(smoke=True, augment="flip", max_length=None))
    with pytest.raises(data.DataError, match="listops has none"):
        data.load("listops", "unused", augment="d4", smoke=True)
    assert len(data.load("pathx", "unused", augment="d4", smoke=True).transforms) == 1


def test_a_reduced_validation_set_holds_whole_pairs():
    whole, few = (data.load("retrieval", "unused", smoke=True, limit=n) for n in (None, 7))
    index = data.fixed_order(len(whole.val.label))[:7]
    want, got = whole.gather("val", index), few.gather("val", torch.arange(7))
    assert torch.equal(got.tokens, want.tokens) and torch.equal(got.label, want.label)


# ------------------------------------------------------------------------------------------ corrupt


def test_denoising_is_refused_where_the_mask_would_be_a_symbol():
    for name in ("listops", "pathfinder"):
        with pytest.raises(data.DataError, match="denoising is for the texts"):
            data.load(name, "unused", denoise=True, smoke=True)


def test_corruption_rates_and_places():
    ids = torch.randint(3, 259, (64, 1000), generator=seeded())
    mask = torch.arange(1000) < torch.arange(64)[:, None] * 15 + 20
    batch = data.corrupt(data.Batch(ids * mask, mask, torch.zeros(64)), seeded(), vocab=259)
    n = int(mask.sum())
    share = batch.selected.sum() / n
    assert abs(share - 0.3) < 4 * (0.3 * 0.7 / n) ** 0.5
    assert torch.equal(batch.target, ids * mask) and not batch.selected[~mask].any()
    assert torch.equal(batch.tokens[~batch.selected], batch.target[~batch.selected])
    masked = (batch.tokens[batch.selected] == data.MASK).double().mean()
    # Two thirds MASK, and of the random third one id in 259 is MASK as well.
    assert abs(masked - (2 / 3 + 1 / 3 / 259)) < 4 * (2 / 9 / (0.3 * n)) ** 0.5
    others = batch.tokens[batch.selected & (batch.tokens != data.MASK)]
    counts = torch.bincount(others, minlength=259).double()
    expected = counts.sum() / 258
    assert counts[data.MASK] == 0 and len(counts) == 259
    chi2 = ((counts - expected) ** 2 / expected).sum() - expected  # the empty bin of MASK
    assert abs(chi2 - 257) < 5 * (2 * 257) ** 0.5  # uniform over all ids, specials included


# ------------------------------------------------------------------------------------------ pack


def small_splits(task_seed=0):
    draw = np.random.default_rng(task_seed)
    splits = {}
    for name in ("train", "val", "test"):
        tokens, offsets = data.ragged([draw.bytes(n) for n in (3, 0, 200)])
        splits[name] = tokens, offsets, np.array([1, 0, 1])
    return splits


def test_pack_and_unpack_are_inverse_and_select_follows(tmp_path):
    splits = small_splits()
    data.pack(tmp_path / "t", "toy", splits, {"from": "test"})
    found, manifest = data.unpack(tmp_path / "t", "toy")
    for name, arrays in splits.items():
        assert all(np.array_equal(a, b.numpy()) for a, b in zip(arrays, found[name]))
    assert manifest["counts"] == {"train": 3, "val": 3, "test": 3} and manifest["from"] == "test"
    chosen = data.select(found["train"], [2, 0])
    assert chosen.offsets.tolist() == [0, 200, 203] and chosen.label.tolist() == [1, 1]
    assert bytes(chosen.tokens) == bytes(splits["train"][0][3:203]) + bytes(splits["train"][0][:3])
    assert data.unpack(tmp_path / "nothing", "toy") is None


@pytest.mark.parametrize("part", ["train_tokens", "val_offsets", "test_label"])
def test_flipped_bits_and_foreign_folders_are_refused(tmp_path, part):
    folder = tmp_path / "t"
    data.pack(folder, "toy", small_splits(), {})
    with pytest.raises(data.DataError, match="holds the data of task 'toy', not 'text'"):
        data.unpack(folder, "text")
    file = folder / f"{part}.npy"
    whole = file.read_bytes()
    file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(data.DataError, match="changed since it was written.*delete"):
        data.unpack(folder, "toy")
    file.write_bytes(whole[:-1])
    with pytest.raises(data.DataError, match="incomplete or unreadable.*delete"):
        data.unpack(folder, "toy")
    file.unlink()
    with pytest.raises(data.DataError, match="incomplete or unreadable.*delete"):
        data.unpack(folder, "toy")


def pack_once(folder, barrier):
    barrier.wait()
    data.pack(folder, "toy", small_splits(), {"from": "test"})


def test_two_processes_packing_at_once_leave_one_whole_result(tmp_path):
    fork = multiprocessing.get_context("fork")
    barrier = fork.Barrier(4)
    workers = [fork.Process(target=pack_once, args=(tmp_path / "t", barrier)) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0] * 4
    assert data.unpack(tmp_path / "t", "toy") is not None
    assert [f.name for f in tmp_path.iterdir()] == ["t"]  # no private copies are left


def test_a_half_written_pack_is_not_there(tmp_path, monkeypatch):
    def full(path, array):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "save", full)
    with pytest.raises(data.DataError, match="No space left on device; free space"):
        data.pack(tmp_path / "t", "toy", small_splits(), {})
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(data.DataError, match="choose another --data-dir"):
        data.pack("/proc/nowhere/t", "toy", small_splits(), {})


# ------------------------------------------------------------------------------------------ official layouts


def test_imdb_is_read_cut_and_split(tmp_path, monkeypatch):
    monkeypatch.setattr(data, "IMDB_PER_CLASS", 20)
    for split in ("train", "test"):
        for sentiment in ("neg", "pos"):
            folder = tmp_path / "aclImdb" / split / sentiment
            folder.mkdir(parents=True)
            for i in range(20):
                text = f"{split} {sentiment} {i} é".encode() + b"x" * (5000 if i == 3 else i)
                (folder / f"{i}_7.txt").write_bytes(text)
            (folder / "._0_7.txt").write_bytes(b"what macOS leaves beside a file")
    task = data.load("text", tmp_path)
    assert [len(getattr(task, s).label) for s in ("train", "val", "test")] == [36, 4, 40]
    seen = []
    for split in ("train", "val", "test"):
        tokens, offsets, label = getattr(task, split)
        for document, y in zip(np.split(tokens.numpy(), offsets[1:-1]), label.tolist()):
            words = bytes(document).split()
            assert words[0] == (b"test" if split == "test" else b"train")
            assert y == (words[1] == b"pos") and len(document) <= 4096
            seen.append(tuple(words[:3]))
    assert len(set(seen)) == 80  # splits are disjoint
    (tmp_path / "packed" / "text" / "manifest.json").unlink()
    (tmp_path / "aclImdb" / "test" / "pos" / "7_7.txt").write_bytes(b"")
    with pytest.raises(data.DataError, match="pos/7_7.txt is empty"):
        data.load("text", tmp_path)
    (tmp_path / "aclImdb" / "test" / "pos" / "7_7.txt").unlink()
    with pytest.raises(data.DataError, match="pos holds 19 reviews instead of 20"):
        data.load("text", tmp_path)


@pytest.mark.parametrize("content", ["[]", "1", "null", "{", '{"task": "toy"}'])
def test_a_manifest_of_something_else_is_named(content, tmp_path):
    data.pack(tmp_path / "t", "toy", small_splits(), {})
    (tmp_path / "t" / "manifest.json").write_text(content)
    with pytest.raises(data.DataError, match="is incomplete or unreadable"):
        data.unpack(tmp_path / "t", "toy")


def test_packed_data_are_as_readable_as_the_folder_they_are_in(tmp_path, monkeypatch):
    """A --data-dir may be shared by several people."""
    tmp_path.chmod(0o755)
    data.pack(tmp_path / "t", "toy", small_splits(), {})
    assert stat.S_IMODE((tmp_path / "t").stat().st_mode) == 0o755

    def closed(path):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    for look in ("exists", "is_dir"):
        monkeypatch.setattr(Path, look, closed)
    for name in data.TASKS:
        with pytest.raises(data.DataError, match="cannot read .*: Permission denied"):
            data.load(name, tmp_path)
        with pytest.raises(data.DataError, match="cannot read .*: Permission denied"):
            data.is_present(name, tmp_path)


@pytest.fixture(scope="module")
def cifar(tmp_path_factory):
    """A folder in the exact binary format: per record one label byte, then planes R, G, B."""
    root = tmp_path_factory.mktemp("cifar")
    folder = root / "cifar-10-batches-bin"
    folder.mkdir()
    draw = np.random.default_rng(0)
    for i, name in enumerate(
        ["data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch"]
    ):
        records = np.zeros((10_000, 3073), np.uint8)
        records[:, 0] = np.arange(10_000) % 10
        records[:, 1:17] = draw.integers(0, 256, (10_000, 16))  # the top left of the red plane
        records[:, 2000] = i
        records.tofile(folder / f"{name}.bin")
    return root


def test_cifar_planes_grey_split_and_warning(cifar, capsys):
    task = data.load("image", cifar, augment="none")
    assert "not the official CIFAR-10 pixels" in capsys.readouterr().out
    assert [len(getattr(task, s).label) for s in ("train", "val", "test")] == [45_000, 5_000, 10_000]
    raw = np.fromfile(cifar / "cifar-10-batches-bin" / "test_batch.bin", np.uint8).reshape(-1, 3073)[17]
    rgb = np.stack([raw[1:1025], raw[1025:2049], raw[2049:]], -1).reshape(32, 32, 3)
    assert np.array_equal(
        task.test.tokens[17 * 1024 : 18 * 1024].numpy(),
        np.asarray(Image.fromarray(rgb).convert("L")).reshape(-1),
    )
    order = torch.randperm(50_000, generator=seeded(42))
    assert task.train.label[:9].tolist() == (order[:9] % 10).tolist()


def test_labels_of_cifar_are_part_of_what_is_known_of_the_data(cifar, tmp_path, monkeypatch, capsys):
    folder = tmp_path / "cifar-10-batches-bin"
    shutil.copytree(cifar / folder.name, folder)
    records = np.fromfile(folder / "test_batch.bin", np.uint8).reshape(-1, 3073)
    official = data.load("image", cifar, augment="none")
    assert "not the official CIFAR-10 labels" in capsys.readouterr().out
    records[:2, 0] = records[1::-1, 0]  # the first two are of each other's class
    records.tofile(folder / "test_batch.bin")
    assert data.load("image", tmp_path, augment="none").source["hash"] != official.source["hash"]
    labels = np.tile(np.arange(10, dtype=np.uint8), 6000)
    monkeypatch.setattr(data, "CIFAR_LABELS", hashlib.sha256(labels).hexdigest())
    capsys.readouterr()
    rgb, _ = data.read_cifar(cifar / folder.name)
    pixels = hashlib.sha256(np.ascontiguousarray(rgb)).hexdigest()
    assert data.load("image", cifar, augment="none").source["hash"] == pixels
    assert "labels" not in capsys.readouterr().out


def test_grey_is_pillows_grey_for_every_colour_of_a_lattice():
    rgb = np.stack(np.meshgrid(*[np.arange(0, 256, 5)] * 3), -1).reshape(1, -1, 3).astype(np.uint8)
    assert np.array_equal(data.grey(rgb), np.asarray(Image.fromarray(rgb).convert("L")))


def test_damaged_cifar_is_named(cifar, tmp_path):
    folder = tmp_path / "cifar-10-batches-bin"
    folder.mkdir()
    for file in (cifar / "cifar-10-batches-bin").iterdir():
        (folder / file.name).symlink_to(file)
    (folder / "data_batch_3.bin").unlink()
    with pytest.raises(data.DataError, match="data_batch_3.bin is missing or not 30,730,000 bytes"):
        data.load("image", tmp_path)
    records = np.fromfile(cifar / "cifar-10-batches-bin" / "data_batch_3.bin", np.uint8)
    records[0] = 1
    records.tofile(folder / "data_batch_3.bin")
    with pytest.raises(data.DataError, match="5000 images of each of ten classes"):
        data.load("image", tmp_path)


# ------------------------------------------------------------------------------------------ augmentation


def test_augmentation_depends_on_seed_epoch_and_image_alone(cifar):
    task = data.load("image", cifar, limit=40)
    plan = [torch.arange(16), torch.arange(16, 40)]

    def pixels(plan, epoch, seed=0):
        task.seed = seed
        return torch.cat([b.tokens for b in data.augmented_images(task, plan, epoch)])

    whole = pixels(plan, 0)
    assert torch.equal(whole[16:], pixels(plan[1:], 0))  # an epoch taken up half-way
    assert not torch.equal(whole, pixels(plan, 1)) and not torch.equal(whole, pixels(plan, 0, seed=1))
    before = torch.get_rng_state()
    images = data.AugmentedImages(task.rgb, 0)
    view = images[(0, 3)]
    assert torch.equal(before, torch.get_rng_state())  # dropout's generator is left alone
    sent = pickle.loads(pickle.dumps(images))  # as to the workers of macOS and Windows
    assert torch.equal(sent[(0, 3)], view)


def test_colour_operations_fire_as_often_as_the_table_says(monkeypatch):
    import torchvision.transforms.functional as TF

    fired = Counter()
    table = dict(
        invert=0.008, adjust_contrast=0.032, adjust_sharpness=0.112, autocontrast=0.200, equalize=0.188
    )
    table |= dict(posterize=0.012, adjust_saturation=0.116, adjust_brightness=0.092, solarize=0.076)
    for name in table:
        monkeypatch.setattr(
            data if name == "posterize" else TF, name, lambda x, *args, name=name: fired.update([name]) or x
        )
    colours = data.paper_augmentation().transforms[2]
    torch.manual_seed(0)
    n = 4000
    for _ in range(n):
        colours(None)
    for name, probability in table.items():
        assert abs(fired[name] / n - probability) < 4 * (probability * (1 - probability) / n) ** 0.5, name


def test_posterize_keeps_the_upper_bits_down_to_none_at_all():
    pixels = np.arange(256, dtype=np.uint8).reshape(16, 16).repeat(3).reshape(16, 16, 3)
    for bits in range(9):
        found = np.asarray(data.posterize(Image.fromarray(pixels), bits))
        assert np.array_equal(found, pixels >> (8 - bits) << (8 - bits) if bits else 0 * pixels)


def test_the_eight_poses_are_equally_likely_and_flips_keep_rows():
    image = torch.arange(9).repeat(8000, 1)
    batch = data.Batch(image, torch.ones_like(image, dtype=torch.bool), None)
    square = torch.arange(9).view(3, 3)
    poses = {tuple(torch.rot90(p, k).flatten().tolist()) for p in (square, square.T) for k in range(4)}
    counts = Counter(map(tuple, data.dihedral_images(batch, seeded()).tokens.tolist()))
    assert set(counts) == poses and all(abs(c - 1000) < 5 * 30 for c in counts.values())
    counts = Counter(map(tuple, data.flip_images(batch, seeded()).tokens.tolist()))
    assert (
        set(counts) == {tuple(range(9)), (2, 1, 0, 5, 4, 3, 8, 7, 6)}
        and abs(min(counts.values()) - 4000) < 200
    )


def test_colours_grey_values_and_labels_are_of_the_same_images(cifar):
    order = torch.randperm(50_000, generator=seeded(42))
    whole = data.load("image", cifar)
    few, kept = data.limited(whole, 40), order[:45_000][data.fixed_order(45_000)[:40]]
    for task, numbers in ((whole, order[:45_000]), (few, kept)):
        assert torch.equal(task.train.label, numbers % 10)
        grey = data.grey(task.rgb[:40]).reshape(-1)
        assert np.array_equal(grey, task.train.tokens[: len(grey)].numpy())
    assert torch.equal(whole.val.label, order[45_000:] % 10)  # none of them is trained on
    colours = exp_spt.colour_images(cifar, 40, None, smoke=False)
    for split in ("train", "val", "test"):
        grey = data.grey(colours.splits[split].tokens.view(-1, 3)[: 40 * 1024].numpy())
        assert np.array_equal(grey, few.splits[split].tokens[: len(grey)].numpy())


def test_flips_mirror_and_d4_turns_what_is_trained_on():
    def images(augment):
        task = data.load("pathfinder", "unused", augment=augment, smoke=True)
        seen = next(task.training_batches([torch.arange(64)], seeded(), 0)).tokens.view(-1, 32, 32)
        return task.gather("train", torch.arange(64)).tokens.view(-1, 32, 32), seen

    clean, flipped = images("flip")
    same, mirrored = ((flipped == x).all((1, 2)) for x in (clean, clean.flip(2)))
    assert (same | mirrored).all() and 16 < mirrored.sum() < 48
    clean, turned = images("d4")
    assert 0 < (turned == clean.mT).all((1, 2)).sum() < 32


# ------------------------------------------------------------------------------------------ pathfinder


def test_three_sets_train_on_all_and_test_on_hard_alone():
    sets = {
        level: (np.full((100, 4), i, np.uint8), np.arange(100) % 2)
        for i, level in enumerate(("easy", "intermediate", "hard"))
    }
    for images, _ in sets.values():
        images[:, 1] = np.arange(100)
    splits = data.pathfinder_splits(sets)
    rows = {name: split.tokens.view(-1, 4).numpy() for name, split in splits.items()}
    assert {name: len(split.label) for name, split in splits.items()} == {"train": 240, "val": 10, "test": 10}
    assert Counter(rows["train"][:, 0].tolist()) == {0: 80, 1: 80, 2: 80}
    assert set(rows["val"][:, 0]) | set(rows["test"][:, 0]) == {2}
    hard = [int(r[1]) for name in rows for r in rows[name] if r[0] == 2]
    assert sorted(hard) == list(range(100))  # disjoint splits
    assert all(split.label[i] == rows[name][i, 1] % 2 for name, split in splits.items() for i in range(10))


# ------------------------------------------------------------------------------------------ recipes


def flags(root, smoke):
    return SimpleNamespace(data_dir=root, limit=None, max_length=None, smoke=smoke)


def test_pathfinder_with_techniques_trains_on_three_sets_and_watches_the_hard_one(tmp_path, monkeypatch):
    whole = data.pathfinder.generate_set
    few = dict(n=50, workers=1, progress=False)
    monkeypatch.setattr(data.pathfinder, "generate_set", lambda *where: whole(*where, **few))
    recipes = [data.technique_rows("pathfinder", techniques) for techniques in ("yes", "no")]
    three, hard = (data.load_recipe("pathfinder", flags(tmp_path, False), hp, 0) for hp in recipes)
    assert [len(task.train.label) for task in (three, hard)] == [120, 40]
    images = [{bytes(row) for row in task.train.tokens.view(-1, 1024).numpy()} for task in (three, hard)]
    assert images[1] < images[0]
    for split in ("val", "test"):
        assert torch.equal(getattr(three, split).tokens, getattr(hard, split).tokens)
        assert len(getattr(hard, split).label) == 5
    file = tmp_path / "pathfinder32-hard" / "label.npy"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1  # one label
    file.write_bytes(content)
    with pytest.raises(data.DataError, match="pathfinder32-hard is damaged"):
        data.load_recipe("pathfinder", flags(tmp_path, False), recipes[1], 0)


@pytest.mark.parametrize("name", ("text", "retrieval", "listops"))
def test_techniques_change_what_is_trained_on_and_nothing_that_is_evaluated(name):
    for techniques in ("yes", "no"):
        task = data.load_recipe(name, flags("unused", True), data.technique_rows(name, techniques), 0)
        seen = next(task.training_batches([torch.arange(8)], seeded(), 0))
        clean = task.gather("train", torch.arange(8))
        assert torch.equal(seen.tokens, clean.tokens) == (techniques == "no")
        assert (seen.target is not None) == (techniques == "yes" and name != "listops")
        assert next(task.evaluation_batches("test")).target is None


# ------------------------------------------------------------------------------------------ command line


def test_the_command_line_prepares_checks_shows_and_refuses(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(data, "LISTOPS_COUNTS", {"train": 300, "val": 40, "test": 40})
    data.main(["--task", "listops", "--data-dir", str(tmp_path), "--prepare"])
    data.main(["--task", "listops", "retrieval", "--data-dir", str(tmp_path), "--check"])
    out = capsys.readouterr().out
    assert "300 / 40 / 40" in out and "root rule" in out and "retrieval is not ready in" in out
    data.main(["--task", "listops", "--data-dir", str(tmp_path), "--show"])
    assert Image.open(tmp_path / "listops.png").width > 500
    with pytest.raises(SystemExit) as stop:
        data.main(["--task", "retrieval", "--data-dir", str(tmp_path), "--prepare"])
    assert stop.value.code == 2 and "8.2 GB" in capsys.readouterr().err
    manifest = tmp_path / "packed" / "listops" / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"task": "text"}))
    with pytest.raises(SystemExit) as stop:
        data.main(["--task", "listops", "--data-dir", str(tmp_path), "--prepare"])
    assert stop.value.code == 2 and "holds the data of task 'text'" in capsys.readouterr().err


@pytest.mark.parametrize(
    "whole, begun, levels",
    [(["packed/pathfinder-all"], [], "all")]
    + [(["pathfinder32-hard"], ["pathfinder32-easy", "pathfinder32-intermediate"], "hard")]
    + [([f"pathfinder32-{level}" for level in data.pathfinder.FOLDERS], [], "all")],
)
def test_a_check_only_looks_at_what_is_there(whole, begun, levels, tmp_path, monkeypatch):
    """It never asks for a set that would then be packed or generated, for an hour."""
    for folder in (*whole, *begun):
        (tmp_path / folder).mkdir(parents=True)
    for folder in whole:
        (tmp_path / folder / "manifest.json").touch()
    seen, task = [], data.load("pathfinder", "unused", smoke=True)
    monkeypatch.setattr(data, "load", lambda *args, **options: seen.append(options["levels"]) or task)
    assert data.is_present("pathfinder", tmp_path)
    assert data.check("pathfinder", tmp_path)["symbols"] and seen == [levels]


def test_nothing_heavy_is_imported_before_it_is_needed():
    code = "import sys, data; sys.exit(any(m in sys.modules for m in ('torchvision', 'matplotlib')))"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT).returncode == 0


def test_official_listops_is_read_from_the_inner_folder_and_not_passed_over_for_the_generated(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(data, "LISTOPS_COUNTS", {"train": 300, "val": 40, "test": 40})
    assert data.load("listops", tmp_path).source["from"] == "generated"
    for release, value in (("lra_release", 3), ("lra_release/lra_release", 7)):
        folder = tmp_path / release / "listops-1000"
        folder.mkdir(parents=True)
        for split in data.LISTOPS_COUNTS:
            row = f"( ( ( [MAX 1 ) {value} ) ] )\t{value}\n"
            (folder / f"basic_{split}.tsv").write_text("Source\tTarget\n" + row)
    task = data.load("listops", tmp_path)
    assert task.source["from"] == "lra_release" and task.train.label.tolist() == [7]
    own = data.load("listops", tmp_path / "lra_release")  # which holds the same inner folder
    assert own.source["hash"] == task.source["hash"]
    shutil.rmtree(tmp_path / "lra_release")  # packed, they are still what is loaded
    assert data.load("listops", tmp_path).source["hash"] == task.source["hash"]


def test_nothing_is_fetched_for_what_is_packed(tmp_path, monkeypatch, capsys):
    splits = {s: (*data.ragged([b"a", b"b"]), [1]) for s in ("train", "val", "test")}
    data.pack(tmp_path / "packed" / "retrieval", "retrieval", splits, {"from": "test"})
    monkeypatch.setattr(data, "Remote", None)
    data.main(["--task", "retrieval", "--fetch", "--data-dir", str(tmp_path)])
    assert "retrieval: {" in capsys.readouterr().out


def test_a_task_that_cannot_be_had_does_not_keep_the_others_from_their_turn(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(data, "LISTOPS_COUNTS", {"train": 30, "val": 4, "test": 4})
    monkeypatch.setattr(data, "TASKS", {name: data.TASKS[name] for name in ("retrieval", "listops")})
    with pytest.raises(SystemExit) as stop:
        data.main(["--prepare", "--data-dir", str(tmp_path)])
    shown = capsys.readouterr()
    assert (
        stop.value.code == 2 and shown.err.startswith("error: Retrieval needs") and "listops: {" in shown.out
    )
    data.main(["--fetch", "--task", "listops", "--data-dir", str(tmp_path)])
    assert "nothing to fetch" in capsys.readouterr().out


def test_check_counts_what_stands_in_two_splits(tmp_path):
    splits = {
        s: (*data.ragged(texts), [0, 1])
        for s, texts in (("train", [b"a", b"b"]), ("val", [b"c", b"b"]), ("test", [b"a", b"c"]))
    }
    data.pack(tmp_path / "packed" / "text", "text", splits, {"from": "test"})
    assert data.check("text", tmp_path)["already in an earlier split"] == "1 of val, 2 of test"
