"""The seven tasks of the Long Range Arena: fetch or generate -> pack -> batch -> augment -> corrupt.
Knows no model.

    task = data.load("listops", "data")     # ready tensors: made or fetched once, then read back
    plan = task.plan(batch_size, order)     # an epoch: index tensors, neighbours in length together
    for batch in task.training_batches(plan, noise, epoch):
        batch.tokens, batch.mask, batch.label

Every data set is small enough to live on the device: symbols end to end as uint8 with offsets
("ragged"), so a batch is one index gather and padding exists only inside a batch. Ids given to models
are `symbol + first_id`; id 0 is padding.

| task       | what it is                        | train / val / test       | positions | classes | ids     |
|------------|-----------------------------------|--------------------------|-----------|---------|---------|
| listops    | nested MIN MAX MED SM expressions | 96,000 / 2,000 / 2,000   | <= 2,000  | 10      | 2 + 15  |
| text       | IMDB reviews as bytes             | 22,500 / 2,500 / 25,000  | <= 4,096  | 2       | 3 + 256 |
| retrieval  | pairs of AAN papers as bytes      | 147,086 / 18,090 / 17,437| <= 4,096  | 2       | 3 + 256 |
| image      | CIFAR-10, grey, as a sequence     | 45,000 / 5,000 / 10,000  | 1,024     | 10      | 3 + 256 |
| pathfinder | 32 x 32, are the discs connected? | 480,000 / 20,000 / 20,000| 1,024     | 2       | 2 + 256 |
| pathx      | the same at 128 x 128             | 160,000 / 20,000 / 20,000| 16,384    | 2       | 2 + 256 |
| pathx256   | the same at 256 x 256             | 160,000 / 20,000 / 20,000| 65,536    | 2       | 2 + 256 |
"""

import argparse
import contextlib
import gzip
import hashlib
import http.client
import json
import os
import re
import shutil
import signal
import sys
import tarfile
import tempfile
import time
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from tqdm import tqdm

import pathfinder

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None

PAD, MASK = 0, 2  # id 1 is CLS in the authors' code and unused in both papers' tables
PATHFINDER_SIZE = {"pathfinder": 32, "pathx": 128, "pathx256": 256}  # pixels a side
SHAPES = {  # of each task: arguments of Task
    "listops": dict(classes=10, vocab=17, first_id=2, max_length=2000),
    "text": dict(classes=2, vocab=259, first_id=3, max_length=4096),
    "retrieval": dict(classes=2, vocab=259, first_id=3, max_length=4096, docs=2),
    "image": dict(classes=10, vocab=259, first_id=3, max_length=1024),
    **{name: dict(classes=2, vocab=258, first_id=2, max_length=w * w) for name, w in PATHFINDER_SIZE.items()},
}


class DataError(Exception):
    """Data that is missing, damaged or not what it claims to be. The message is one sentence that says
    what to do."""


# ------------------------------------------------------------------------------------------ shapes of things


class Split(NamedTuple):
    """One split, ragged. Document i is tokens[offsets[i] : offsets[i + 1]]."""

    tokens: torch.Tensor  # (total,) uint8 symbols
    offsets: torch.Tensor  # (docs * n + 1,) int64
    label: torch.Tensor  # (n,) int64


class Batch(NamedTuple):
    """B examples; with docs = 2 the rows are doc1, doc2, doc1, doc2, ..."""

    tokens: torch.Tensor  # (B * docs, L) int64 ids, corrupted where the task corrupts
    mask: torch.Tensor  # (B * docs, L) bool, True at real positions
    label: torch.Tensor  # (B,) int64
    docs: int = 1
    target: torch.Tensor | None = None  # (B * docs, L) int64 ids before corruption
    selected: torch.Tensor | None = None  # (B * docs, L) bool, positions chosen for corruption
    # What losses are divided by: examples in the whole global batch, and the real positions that so many
    # examples of the training set have on average (common.multitask_loss says why not the batch's own).
    examples: int = 0
    positions: torch.Tensor | None = None

    def cut(self, start, stop):
        """Examples start to stop, never inside a pair. A part keeps the counts of the whole, so that the
        losses of the parts add up to the loss of the batch."""
        rows = slice(start * self.docs, stop * self.docs)
        whole = {k: getattr(self, k) for k in ("tokens", "mask", "target", "selected")}
        cut = {k: x[rows] for k, x in whole.items() if x is not None}
        return self._replace(label=self.label[start:stop], **cut)

    def parts(self, size):
        """The batch cut into batches of at most `size` examples."""
        for i in range(0, len(self.label), size):
            yield self.cut(i, i + size)

    def share(self, rank, ranks):
        """What process `rank` of `ranks` computes of this batch."""
        start, stop, copies = share_of(len(self.label), rank, ranks)
        return self.cut(start, stop)._replace(
            examples=copies * self.examples, positions=copies * self.positions
        )


def share_of(n, rank, ranks):
    """(start, stop, copies): the examples of a batch of n that process `rank` of `ranks` computes, and how
    many processes compute the same ones. A batch smaller than `ranks` is computed whole by every one, and
    counted for a part of it, because an empty share would leave the others waiting."""
    return (0, n, ranks) if n < ranks else (rank * n // ranks, (rank + 1) * n // ranks, 1)


@dataclass
class Task:
    """A task ready to train on. `transforms` are applied to training batches on the device, in order."""

    name: str
    classes: int
    vocab: int  # number of ids, specials included
    first_id: int  # id of symbol 0
    max_length: int  # positions; longer documents are cut at the end
    train: Split
    val: Split
    test: Split
    source: dict  # where the examples came from, counts, content hash: goes into the record
    docs: int = 1
    transforms: list[Callable] = field(default_factory=list)  # (Batch, torch.Generator) -> Batch
    rgb: np.ndarray | None = None  # (n, 32, 32, 3) uint8 training images where augmentation needs colour
    seed: int = 0  # of the per-image augmentation streams

    def __post_init__(self):
        # Positions of each example (n,), of a pair the longer document's; on the CPU, where batches are
        # planned.
        self.lengths = {}
        for name, split in self.splits.items():
            documents = split.offsets.cpu().diff().clamp(max=self.max_length)
            self.lengths[name] = documents.view(-1, self.docs).amax(1)
            if name == "train":
                self.mean_positions = float(documents.sum()) / max(1, len(split.label))  # of an example

    @property
    def splits(self):
        return {"train": self.train, "val": self.val, "test": self.test}

    def to(self, device):
        splits = {name: Split(*(t.to(device) for t in split)) for name, split in self.splits.items()}
        return replace(self, **splits)

    def plan(self, batch_size, order, bucket=True):
        """One training epoch as a list of index tensors that covers every example exactly once.

        With `bucket`, a shuffled epoch is sorted by length inside pools of 50 batches and the batches
        are shuffled: neighbours in length share a batch (IMDB in random batches of 16 is 62 % padding),
        while what meets in a batch still changes every epoch. `order` is a CPU generator of its own, so
        that no model change reshuffles the data.
        """
        lengths = self.lengths["train"]
        index = torch.randperm(len(lengths), generator=order)
        if bucket and lengths.min() < lengths.max():
            pools = [pool[lengths[pool].argsort(stable=True)] for pool in index.split(50 * batch_size)]
            batches = [batch for pool in pools for batch in pool.split(batch_size)]
            return [batches[i] for i in torch.randperm(len(batches), generator=order)]
        return list(index.split(batch_size))

    def training_batches(self, plan, noise, epoch, rank=0, ranks=1):
        """Augmented (and corrupted) batches of a plan; of each, the share of process `rank` of `ranks`.

        `noise` is a generator on the data's device. All ranks draw for the whole batch and then take their
        share, so that their number does not change what is drawn. With colour augmentation, which costs
        most, each image draws from its own stream (seed, epoch, index) instead, and only on its own rank.
        """
        if self.rgb is not None:
            batches = augmented_images(self, plan, epoch, rank, ranks)
        else:
            batches = (self.gather("train", index) for index in plan)
        for batch in batches:
            for transform in self.transforms:
                batch = transform(batch, noise)
            yield batch if self.rgb is not None or ranks == 1 else batch.share(rank, ranks)

    def evaluation_batches(self, split, positions=1 << 16, rank=0, ranks=1):
        """Clean batches of about `positions` padded positions each, shortest documents first: hardly
        any padding. Each of `ranks` processes gets every ranks-th."""
        lengths = self.lengths[split]
        index, plan = lengths.argsort(stable=True), []
        while len(index):
            # Lengths ascend, so the first n cost n * lengths[n - 1]: take the largest n that fits.
            cost = torch.arange(1, len(index) + 1) * self.padded(lengths[index]) * self.docs
            n = max(1, int((cost <= positions).sum()))
            plan.append(index[:n])
            index = index[n:]
        for index in plan[rank::ranks]:
            yield self.gather(split, index)

    def padded(self, lengths):
        """Lengths rounded up to a multiple of 64, so that batches come in few shapes."""
        return ((lengths + 63) // 64 * 64).clamp(max=self.max_length)

    def gather(self, split, index):
        """The examples `index` (B,) of a split as one padded Batch."""
        tokens, offsets, label = self.splits[split]
        lengths = self.lengths[split][index]  # on the CPU: choosing L must not wait for the device
        length = int(self.padded(lengths.max()))
        index = index.to(tokens.device, non_blocking=True)
        rows = document_rows(index, self.docs)
        start, stop = offsets[rows], offsets[rows + 1]
        column = torch.arange(length, device=tokens.device)
        if self.docs == 1 and lengths.min() == length:
            mask = full_mask(len(rows), length, tokens.device)
        else:
            mask = column < (stop - start)[:, None]
        ids = tokens[(start[:, None] + column).clamp_(max=len(tokens) - 1)].long() + self.first_id
        positions = torch.full((), len(index) * self.mean_positions, device=tokens.device)
        return Batch(ids * mask, mask, label[index], self.docs, examples=len(index), positions=positions)


def document_rows(index, docs):
    """Numbers (B * docs,) of the documents of the examples `index` (B,), those of an example together."""
    if docs == 1:
        return index
    return (index[:, None] * docs + torch.arange(docs, device=index.device)).view(-1)


def full_mask(rows, length, device):
    """A mask (rows, length) that is True everywhere: one stored value, repeated by strides of 0, which tell
    models.surely_full on the host that there is nothing to mask."""
    return torch.ones(1, 1, dtype=torch.bool, device=device).expand(rows, length)


# ------------------------------------------------------------------------------------------ corrupt


def corrupt(batch, noise, vocab):
    """Paper A's corruption for denoising: each real position is selected with probability 0.3; of the
    selected, a third becomes a random id and the rest MASK. Fresh every time. The clean ids stay in
    `batch.target`.

    Random ids are drawn from all ids, specials included, as the authors' code does (paper A, Section 3, A.4).
    """
    shape, device = batch.tokens.shape, batch.tokens.device
    selected = (torch.rand(shape, generator=noise, device=device) < 0.3) & batch.mask
    random = torch.rand(shape, generator=noise, device=device) < 1 / 3
    ids = torch.randint(vocab, shape, generator=noise, device=device)
    tokens = torch.where(selected, torch.where(random, ids, MASK), batch.tokens)
    return batch._replace(tokens=tokens, target=batch.tokens, selected=selected)


# ------------------------------------------------------------------------------------------ pack


def content_hash(splits):
    """sha256 over the bytes of all splits' arrays, in order: what two runs must share to have seen the
    same data."""
    digest = hashlib.sha256()
    for name in ("train", "val", "test"):
        for array in splits[name]:
            digest.update(np.ascontiguousarray(array))
    return digest.hexdigest()


def pack(folder, task, splits, source):
    """Write ragged splits {name: (tokens uint8, offsets int64, label)} to `folder`, whole or not at all.

    Everything goes into a private sibling folder, the manifest last, and one rename publishes it. Of
    two processes packing at once the second finds the folder there and drops its own copy.
    """
    folder, private = Path(folder), None
    splits = {
        name: (np.asarray(t, np.uint8), np.asarray(o, np.int64), np.asarray(y, np.int64))
        for name, (t, o, y) in splits.items()
    }
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        private = Path(tempfile.mkdtemp(prefix=folder.name + ".", dir=folder.parent))
        for name, arrays in splits.items():
            for part, array in zip(Split._fields, arrays):
                np.save(private / f"{name}_{part}.npy", array)
        counts = {name: len(label) for name, (_, _, label) in splits.items()}
        manifest = {"task": task, "counts": counts, "hash": content_hash(splits), **source}
        (private / "manifest.json").write_text(json.dumps(manifest, indent=1))
        private.chmod(folder.parent.stat().st_mode)  # mkdtemp's is readable by one user only
        try:
            os.rename(private, folder)
        except OSError:
            if not is_whole(folder):
                raise
    except OSError as error:
        raise DataError(
            f"cannot write the packed data to {folder}: {error.strerror or error}; "
            "free space or choose another --data-dir"
        ) from error
    finally:
        if private:
            shutil.rmtree(private, ignore_errors=True)


def unpack(folder, task):
    """-> ({split: Split}, manifest) from a packed folder, or None where there is none. Raises DataError
    for a folder of another task or with bytes that differ from its manifest."""
    folder = Path(folder)
    if not is_whole(folder):
        return None
    remedy = f"delete {folder} to have it made again"
    try:
        manifest = json.loads((folder / "manifest.json").read_text())
        if manifest["task"] != task:
            raise DataError(
                f"{folder} holds the data of task '{manifest['task']}', not '{task}'; "
                f"{remedy} or choose another --data-dir"
            )
        splits = {
            name: tuple(np.load(folder / f"{name}_{part}.npy", allow_pickle=False) for part in Split._fields)
            for name in ("train", "val", "test")
        }
        wanted = manifest["hash"]
    except (OSError, ValueError, KeyError, TypeError, EOFError) as error:
        raise DataError(
            f"the packed data in {folder} is incomplete or unreadable ({error}); {remedy}"
        ) from error
    if content_hash(splits) != wanted:
        raise DataError(
            f"the packed data in {folder} has changed since it was written (its hash differs); {remedy}"
        )
    return {name: Split(*map(torch.from_numpy, arrays)) for name, arrays in splits.items()}, manifest


def is_whole(folder):
    """Whether the files of `folder` are all there: its manifest is written last. Raises DataError for a
    folder that cannot be looked into."""
    return is_there(folder / "manifest.json")


def is_there(path):
    try:
        return path.exists()
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}; choose another --data-dir") from error


def packed(root, task, make):
    """({split: Split}, manifest) of root/packed/<task>; `make` () -> (splits, source) is called where
    it is missing."""
    folder = root / "packed" / task
    found = unpack(folder, task)
    if found is None:
        splits, source = make()
        pack(folder, task, splits, source)
        found = unpack(folder, task)
    return found


def release_folders(root):
    """Where the folders of an unpacked LRA release may lie, `root` itself being one: it holds itself once
    more, and everyone uses the inner one."""
    outer = root / "lra_release"
    return (outer, root) if root.name == outer.name else (root, outer / outer.name, outer)


def ragged(documents):
    """List of bytes -> (tokens uint8 (total,), offsets int64 (n + 1,))."""
    offsets = np.concatenate([[0], np.cumsum([len(d) for d in documents])]).astype(np.int64)
    return np.frombuffer(b"".join(documents), np.uint8).copy(), offsets


def fixed_order(n):
    """The permutation of n examples that splits and smaller training sets are cut from: always the same
    one, so that splits never change and smaller sets are nested."""
    return torch.randperm(n, generator=torch.Generator().manual_seed(42))


def joined(first, second):
    """Two ragged splits, one after the other."""
    offsets = torch.cat([first.offsets, second.offsets[1:] + first.offsets[-1]])
    return Split(torch.cat([first.tokens, second.tokens]), offsets, torch.cat([first.label, second.label]))


def select(split, index, docs=1):
    """The examples `index` of a ragged split, in that order, as a new Split."""
    index = torch.as_tensor(index)
    rows = document_rows(index, docs)
    bounds = zip(split.offsets[rows].tolist(), split.offsets[rows + 1].tolist())
    # Document by document: an index for each token would take 24 times the memory of the tokens.
    tokens = torch.cat([split.tokens[:0], *(split.tokens[start:stop] for start, stop in bounds)])
    lengths = split.offsets.diff()[rows]
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    return Split(tokens, offsets, split.label[index])


# ------------------------------------------------------------------------------------------ fetch

LRA_RELEASE_URL = "https://storage.googleapis.com/long-range-arena/lra_release.gz"


class Archive(NamedTuple):
    """A gzipped tar on the web and what to take out of it."""

    url: str
    size: int  # bytes
    md5: str
    folder: str  # its top folder, which is also the folder that is made
    wanted: str  # regular expression of the member names to take
    limit: int  # bytes that the whole tar may unpack to


IMDB = Archive(
    "https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz",
    84_125_825,
    "7c2ac02c03563afcf9b574c7e56c153a",
    "aclImdb",
    r"aclImdb/(train|test)/(pos|neg)/\d+_\d+\.txt",
    1 << 30,
)
CIFAR = Archive(
    "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    170_052_171,
    "c32a1d4ab5d03f1284b67883e8d87530",
    "cifar-10-batches-bin",
    r"cifar-10-batches-bin/(data_batch_[1-5]|test_batch)\.bin",
    1 << 28,
)


def fetch_imdb(root, archive=IMDB):
    """Make root/aclImdb/{train,test}/{pos,neg}/*.txt out of root/aclImdb_v1.tar.gz, fetched unless it is
    there. The unlabelled reviews stay packed. Raises DataError."""
    fetch_archive(root, archive)


def fetch_cifar(root, archive=CIFAR):
    """Make root/cifar-10-batches-bin/*.bin out of root/cifar-10-binary.tar.gz, fetched unless it is there:
    plain bytes, where the better-known Python version is a pickle. Raises DataError."""
    fetch_archive(root, archive)


def fetch_archive(root, archive):
    path = Path(root) / archive.url.rsplit("/", 1)[1]
    download(archive.url, path, archive.size, archive.md5)
    extract(path, Path(root) / archive.folder, archive.wanted, archive.limit)


@contextlib.contextmanager
def claim(path):
    """While it is held this process alone makes `path`; others wait here (on Windows, without fcntl, nobody
    does). What the file system refuses inside (disk full, read-only) comes out as a DataError about
    `path`."""
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path.parent / f".{path.name}.lock", "w") as lock:
            if fcntl:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    print(f"waiting for another process that is making {path}")
                    fcntl.flock(lock, fcntl.LOCK_EX)
            yield
    except OSError as error:
        why = error.strerror or error
        raise DataError(f"cannot write {path} ({why}); free space or choose another --data-dir") from error


def download(url, path, size=None, md5=None, timeout=30.0, retries=5):
    """Fetch `url` to `path`; a file that is there already is kept if its size (bytes) and md5 are right.

    Bytes go to `path`.part, which a later run continues, and are renamed once verified. timeout (seconds) and
    retries are those of Remote. Raises DataError when the server fails or sends something else, or the disk
    is full.
    """
    part = Path(f"{path}.part")
    about = f"the file ({tqdm.format_sizeof(size, 'B')})" if size else "the file"
    advice = f"put {about} at {path} by hand, or run the same command again"
    with claim(path):
        if os.path.exists(path):
            if wrong := mismatch(path, size, md5):
                raise DataError(f"{path} is not the file of {url}: {wrong}; delete it and try again")
            return
        while True:
            with open(part, "ab") as out:
                start = out.tell()
                print(f"fetching {url} to {path}" + (f", from byte {start:,} on" if start else ""))
                remote = Remote(url, advice, start, size, timeout, retries)
                with contextlib.closing(remote), progress(remote, remote.total, start) as stream:
                    shutil.copyfileobj(stream, out, 1 << 20)
                out.flush()
                os.fsync(out.fileno())
            wrong = mismatch(part, size or remote.total, md5)
            if not wrong:
                break
            part.unlink()
            if start == 0:
                raise DataError(f"{url} gave a wrong file: {wrong}; {advice}")
            # Otherwise an earlier run's part may have spoilt it: once more, from the first byte.
        os.replace(part, path)


def progress(stream, total, start=0):
    """`stream` with a bar that follows its read()."""
    return tqdm.wrapattr(stream, "read", total=total, initial=start, leave=False, disable=None)


def mismatch(path, size, md5):
    """What is wrong with a file, in words; None if nothing is."""
    actual = os.path.getsize(path)
    if size is not None and actual != size:
        return f"{actual:,} bytes instead of {size:,}"
    if md5 is not None:
        digest = hashlib.md5(usedforsecurity=False)
        with open(path, "rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
        if digest.hexdigest() != md5:
            return f"md5 {digest.hexdigest()} instead of {md5}"
    return None


class Remote:
    """A file on the web as a stream that outlives its connections.

    read(n) gives 1 to n bytes, b"" at the end. A connection that breaks, or in `timeout` seconds brings
    nothing or next to nothing, is replaced by one that continues at the same byte (HTTP Range; a server that
    ignores it sends the beginning again, which is dropped). More than `retries` failures without a megabyte
    between them, or two before the first answer, are a DataError that ends with `advice`; so are refusals,
    web pages and wrong sizes.
    """

    def __init__(self, url, advice, position=0, size=None, timeout=30.0, retries=5):
        self.url, self.advice, self.position, self.total = url, advice, position, size
        self.timeout, self.retries = timeout, retries
        self.response, self.answered, self.failures, self.failed_at = None, False, 0, position
        if size is None or position < size:
            self._insist(self._connect)

    def read(self, n):
        return self._insist(self._receive, n)

    def close(self):
        if self.response is not None:
            self.response.close()
        self.response = None

    def _insist(self, action, *args):
        while True:
            try:
                return action(*args)
            except urllib.error.HTTPError as error:
                end = re.fullmatch(r"bytes \*/(\d+)", error.headers.get("Content-Range", ""))
                error.close()
                if error.code == 416 and end:  # nothing from our position on: that was all, or too much
                    self._expect(int(end[1]))
                    return b""
                if error.code < 500 and error.code not in (408, 429):
                    self._fail(f"the server answered {error.code} {error.reason}")
                problem = f"{error.code} {error.reason}"
            except (OSError, http.client.HTTPException) as error:
                problem = getattr(error, "reason", None) or error
            except ValueError as error:  # not a URL
                self._fail(error)
            self.close()
            self.failures = 1 if self.position - self.failed_at >= 1 << 20 else self.failures + 1
            self.failed_at = self.position
            if self.failures > (self.retries if self.answered else 1):
                self._fail(f"{problem}, at byte {self.position:,}, after {self.failures} tries")
            time.sleep(min(2.0 ** (self.failures - 1), self.timeout))

    def _fail(self, why):
        raise DataError(f"could not fetch {self.url}: {why}; {self.advice}")

    def _expect(self, total):
        if self.total not in (None, total):
            self._fail(f"the server's file has {total:,} bytes instead of {self.total:,}")
        self.total = total

    def _connect(self):
        headers = {"User-Agent": "data.py", "Accept-Encoding": "identity"}
        if self.position:
            headers["Range"] = f"bytes={self.position}-"
        request = urllib.request.Request(self.url, headers=headers)
        self.response = urllib.request.urlopen(request, timeout=self.timeout)
        self.answered, self.window, self.deadline = True, 0, time.monotonic() + self.timeout
        if self.response.headers.get_content_type() == "text/html":
            self._fail("the server answered with a web page")
        length, dropped = self.response.headers.get("Content-Length"), self.position
        if self.response.status == 206:
            span = re.fullmatch(r"bytes (\d+)-\d+/(\d+)", self.response.headers.get("Content-Range", ""))
            if not span or int(span[1]) != self.position:
                raise ConnectionError("the server sent another range than asked for")
            length, dropped = span[2], 0
        if length is not None:
            self._expect(int(length))
        while dropped:
            block = self._block(min(dropped, 1 << 20))
            if not block:
                raise ConnectionError("the connection closed early")
            dropped -= len(block)

    def _receive(self, n):
        if self.total is not None and self.position >= self.total:
            return b""
        if self.response is None:
            self._connect()
        block = self._block(n)
        self.position += len(block)
        return block

    def _block(self, n):
        block = self.response.read1(n)
        if not block and self.total is not None:
            raise ConnectionError("the connection closed early")
        self.window += len(block)
        if time.monotonic() > self.deadline:
            if self.window < 100 * self.timeout:
                raise TimeoutError("less than 100 bytes a second")
            self.window, self.deadline = 0, time.monotonic() + self.timeout
        return block


HEADERS = 4 << 20  # bytes of headers and read-ahead allowed before a tar member; tarfile holds them in memory


class Metered:
    """The bytes of a stream up to `limit`, which may be moved; beyond it a DataError: small archives must not
    unpack to big ones."""

    def __init__(self, stream, name, limit):
        self.stream, self.name, self.limit, self.count = stream, name, limit, 0

    def read(self, n):
        block = self.stream.read(n)
        self.count += len(block)
        if self.count > self.limit:
            raise DataError(f"{self.name} unpacks to more than the official archive; fetch it again")
        return block


def untar(stream, name, choose, limit, enough=None):
    """Copy members of a gzipped tar, read once from front to back, to the paths that choose(TarInfo) gives.

    choose returns None for members to skip. name stands for the archive in messages, limit is the bytes it
    may unpack to with all that is skipped, enough the number of copies after which to stop. Returns the
    number of copies. Raises DataError for an archive that is damaged or too big, OSError when a copy cannot
    be written.
    """
    plain = Metered(gzip.GzipFile(fileobj=stream), name, HEADERS)
    copied = 0
    try:
        with tarfile.open(fileobj=plain, mode="r|", bufsize=1 << 20) as tar:
            while copied != enough and (member := tar.next()) is not None:
                tar.members.clear()  # tarfile remembers every header; the LRA release has millions
                plain.limit = min(limit, plain.count + member.size + HEADERS)
                path = choose(member)
                if path is not None:
                    with open(path, "xb") as out:
                        shutil.copyfileobj(tar.extractfile(member), out, 1 << 20)
                    copied += 1
            plain.limit = limit
            while enough is None and plain.read(1 << 20):
                pass  # gzip's checksum stands at the very end
    except (tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError, ValueError, RecursionError) as error:
        raise DataError(f"{name} is damaged ({error}); fetch it again") from error
    return copied


def extract(archive, folder, wanted, max_bytes):
    """Unpack those members of a gzipped tar whose names match the regular expression `wanted` as `folder`.

    Only plain files under the tar's top folder of the same name are ever written; links, devices, sparse
    files and paths that are absolute or climb out (`..`) condemn the archive. max_bytes bounds what the whole
    tar may unpack to. The folder appears whole or not at all; one that is there already is left alone. Raises
    DataError.
    """
    folder = Path(folder)
    private = folder.with_name(folder.name + ".part")

    def choose(member):
        parts = member.name.removeprefix("./").split("/")
        plain = (member.isreg() or member.isdir()) and not member.issparse()
        if not plain or member.name.startswith("/") or ".." in parts or "\\" in member.name:
            raise DataError(f"{archive} holds {member.name!r}, not a plain file inside it; fetch it again")
        if member.isdir() or parts[0] != folder.name or not re.fullmatch(wanted, "/".join(parts)):
            return None
        path = private.joinpath(*parts[1:])
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    with claim(folder):
        if folder.exists():
            return
        shutil.rmtree(private, ignore_errors=True)  # left by a killed run
        try:
            private.mkdir()
            with open(archive, "rb") as file, progress(file, os.path.getsize(archive)) as stream:
                copied = untar(stream, archive, choose, max_bytes)
            if not copied:
                raise DataError(f"{archive} holds none of the files of {folder.name}; fetch it again")
            os.rename(private, folder)
        finally:
            shutil.rmtree(private, ignore_errors=True)


# ------------------------------------------------------------------------------------------ listops

LISTOPS_COUNTS = {"train": 96_000, "val": 2_000, "test": 2_000}
MINI_LISTOPS_COUNTS, MINI_LISTOPS = {"train": 48_000, "val": 2_000, "test": 10_000}, (20, 96)  # ours
LISTOPS_SYMBOLS = (*"0123456789", "[MAX", "[MED", "[MIN", "[SM", "]")  # symbol = index
MAX_OP, MED_OP, MIN_OP, SM_OP, CLOSE = range(10, 15)  # symbols; those below MAX_OP are digits
LISTOPS_FIRST_ID = SHAPES["listops"]["first_id"]
LISTOPS_BLOCK = 4_096  # trees started per random stream: with another number the data are others


def generate_listops(n, seed, progress=True, lengths=(501, 1_999)):
    """n distinct expressions, distributed as by LRA's generator (basic task: at most 10 levels, 2 to 10
    arguments, more than 500 and fewer than 2,000 tokens, round parentheses not counted; `lengths` are the
    fewest and the most).

    -> tokens (total,) uint8 symbols, offsets (n + 1,) int64, label (n,) int64. Examples come in order of
    generation, so a request for fewer gives the first of them. Block b of trees has a random stream of its
    own, (seed, b), and beside the result only one block is in memory. `progress` shows a bar on a terminal.
    Source: google-research/long-range-arena, lra_benchmarks/data/listops.py, written anew from a description.
    """
    seen = set()
    tokens, sizes, labels, block = [], [], [], 0
    with tqdm(total=n, desc="generate listops", unit="ex", disable=None if progress else True) as bar:
        while len(seen) < n:
            block_tokens, offsets = _listops_block(np.random.default_rng([seed, block]), *lengths)
            block_labels = evaluate_listops(block_tokens, offsets)
            for row, label in enumerate(block_labels):
                example = block_tokens[offsets[row] : offsets[row + 1]]
                digest = hashlib.blake2b(example, digest_size=16).digest()
                if digest not in seen and len(seen) < n:
                    seen.add(digest)
                    tokens.append(example)
                    sizes.append(len(example))
                    labels.append(label)
            block += 1
            bar.update(len(seen) - bar.n)
    flat = np.concatenate(tokens) if tokens else np.zeros(0, np.uint8)
    return flat, np.cumsum([0, *sizes], dtype=np.int64), np.array(labels, np.int64)


def _listops_block(rng, shortest, longest):
    """The accepted trees of one block: tokens (total,) uint8 symbols, offsets (accepted + 1,) int64.

    Operators alone decide a tree's shape and length, so only they are grown, level by level and all trees at
    once; digits and operator names are drawn for accepted trees. The original's first draw is a bare digit
    three times in four, so too short; here every tree starts with an operator, which changes no accepted one.
    """
    # Per level, one entry per operator: its tree, number of arguments, parent (index into the level above)
    # and place among the parent's arguments; always in reading order.
    levels = []
    tree = np.arange(LISTOPS_BLOCK)
    parent, place, length = np.zeros_like(tree), np.zeros_like(tree), np.zeros_like(tree)
    for depth in range(1, 10):  # level 10 holds digits only
        arity = rng.integers(2, 11, len(tree))
        levels.append((tree, arity, parent, place))
        # Bit j: argument j is an operator. Two fair bits that must both be set give LRA's 0.25 exactly.
        bits = rng.integers(0, 1 << 20, len(tree)) if depth < 9 else np.zeros_like(tree)
        bits &= (bits >> 10) & ((1 << arity) - 1)
        parent, place = np.nonzero((bits[:, None] >> np.arange(10)) & 1)
        own = 2 + arity - np.bincount(parent, minlength=len(tree))  # operator, bracket, digits
        length += np.bincount(tree, own, LISTOPS_BLOCK).astype(np.int64)
        # A tree that is too long already stops growing (and is dropped below): full ones have 10^9 tokens.
        short = length[tree[parent]] <= longest
        parent, place = parent[short], place[short]
        tree = tree[parent]
    accepted = (length >= shortest) & (length <= longest)

    kept, number = [], None  # number: index of an operator in its level -> index among those kept
    for tree, arity, parent, place in levels:
        keep = accepted[tree]
        kept.append((arity[keep], number[parent[keep]] if kept else None, place[keep]))
        number = np.cumsum(keep) - 1
    sizes = [2 + arity for arity, _, _ in kept]  # tokens in each operator's subtree, summed from below
    for depth in range(8, 0, -1):
        parent = kept[depth][1]
        sizes[depth - 1] += np.bincount(parent, sizes[depth] - 1, len(sizes[depth - 1])).astype(np.int64)

    offsets = np.concatenate([[0], np.cumsum(sizes[0])])
    tokens = rng.integers(0, 10, offsets[-1], dtype=np.uint8)  # digits wherever nothing is written below
    start = offsets[:-1]
    for (_, parent, place), size in zip(kept, sizes):
        if parent is not None:
            before = np.cumsum(size - 1) - (size - 1)  # what earlier operators take beyond one token each ...
            first = np.searchsorted(parent, np.arange(len(start)))  # ... counted from the parent's first
            start = start[parent] + 1 + place + before - before[first[parent]]
        tokens[start] = rng.integers(MAX_OP, SM_OP + 1, len(start), dtype=np.uint8)
        tokens[start + size - 1] = CLOSE
    return tokens, offsets


def evaluate_listops(tokens, offsets=None):
    """Values (n,) uint8 of whole expressions: tokens (total,) uint8 symbols, offsets (n + 1,) int64. Without
    offsets `tokens` is one expression and its value an int. Depth and number of arguments are not limited.

    MED is LRA's median: of an even number of arguments the mean of the middle two, cut to an integer. SM is
    the sum modulo 10. All expressions at once, level by level from below, in some 30 bytes of memory a token.
    """
    ends = np.array([len(tokens)]) if offsets is None else offsets[1:]
    opens = (tokens >= MAX_OP) & (tokens < CLOSE)
    # Level = operators open after the token. In a stable order by level, an operator (a head) is followed by
    # its arguments: digits, and the closing brackets of inner operators, which stand for their values. And
    # the k-th bracket of level d - 1 closes the k-th operator of level d.
    level = np.cumsum(opens.astype(np.int8) - (tokens == CLOSE), dtype=np.int32)
    deepest = int(level.max(initial=0))
    order = np.argsort(level.astype(np.min_scalar_type(deepest)), kind="stable")  # small integers: radix sort
    by_level = np.split(order, np.cumsum(np.bincount(level, minlength=deepest + 1))[:-1])
    value = tokens.copy()  # digits are their own value; brackets get theirs on the way up
    for depth in range(deepest, 0, -1):
        here = by_level[depth]
        head = opens[here]
        operator = tokens[here[head]]
        argument = value[here[~head]].astype(np.int32)
        first = np.flatnonzero(head) - np.arange(len(operator))  # first argument of each operator
        count = np.diff(first, append=len(argument))
        # Sorted within each operator: MIN is the first, MAX the last, MED the middle.
        ranked = np.sort(argument + 16 * np.repeat(np.arange(len(operator), dtype=np.int32), count)) & 15
        middle = (ranked[first + (count - 1) // 2] + ranked[first + count // 2]) // 2
        answers = (ranked[first + count - 1], middle, ranked[first], np.add.reduceat(argument, first) % 10)
        above = by_level[depth - 1]
        value[above[tokens[above] == CLOSE]] = np.choose(operator - MAX_OP, answers)
    values = value[ends - 1]
    return int(values[0]) if offsets is None else values


def read_listops_tsv(path):
    """LRA's basic_{train,val,test}.tsv -> tokens (total,) uint8 symbols, offsets (n + 1,), label (n,) int64.

    Round parentheses are dropped: they repeat what the brackets say and triple the length. Every expression
    is checked and evaluated; DataError names file and line of one that is no tree or not worth its target.
    """
    symbol_of = {word.encode(): symbol for symbol, word in enumerate(LISTOPS_SYMBOLS)}
    remedy = f"fetch the file again, or remove {path.parent} to have ListOps generated"
    tokens, lengths, labels = [], [], []

    def fail(line, fault):
        raise DataError(f"{path}, line {line}: {fault}; {remedy}")

    if not path.is_file():
        raise DataError(f"{path} is missing; {remedy}")
    bar = tqdm(desc=path.name, total=path.stat().st_size, unit="B", unit_scale=True, disable=None)
    with open(path, "rb") as file, bar:
        if file.readline().split() != [b"Source", b"Target"]:
            fail(1, "the header is not 'Source<TAB>Target'")
        while rows := list(islice(file, 1_000)):  # bounds the evaluator's memory
            start, expressions, targets = 2 + len(labels), [], []
            for line, row in enumerate(rows, start):
                source, _, target = row.rstrip(b"\r\n").partition(b"\t")
                words = source.translate(None, b"()").split()
                if not words or len(target) != 1 or not target.isdigit():
                    fail(line, "this is not an expression, a tab and one digit")
                try:
                    expressions.append(bytes([symbol_of[word] for word in words]))
                except KeyError as error:
                    fail(line, f"{error.args[0][:20].decode(errors='replace')!r} is not a ListOps symbol")
                if len(words) > SHAPES["listops"]["max_length"]:
                    fail(line, f"{len(words):,} symbols are more than any expression of the task has")
                targets.append(int(target))
            flat = np.frombuffer(b"".join(expressions), np.uint8)
            sizes = [len(expression) for expression in expressions]
            offsets = np.cumsum([0, *sizes])
            sound = _listops_sound(flat, offsets)
            if not sound.all():
                fail(start + int(sound.argmin()), "the brackets do not form one tree")
            values = evaluate_listops(flat, offsets)
            if (values != targets).any():
                row = int((values != targets).argmax())
                fail(start + row, f"the target is {targets[row]} but the expression is worth {values[row]}")
            tokens.append(flat)
            lengths += sizes
            labels += targets
            bar.update(sum(map(len, rows)))
        if not labels:
            fail(2, "there are no examples")
    return np.concatenate(tokens), np.cumsum([0, *lengths], dtype=np.int64), np.array(labels, np.int64)


def _listops_sound(tokens, offsets):
    """(n,) bool: is each row one tree: an operator, one or more arguments and its bracket at the end?"""
    opens = (tokens >= MAX_OP) & (tokens < CLOSE)
    closes = tokens == CLOSE
    level = np.cumsum(opens.astype(np.int64) - closes)
    level -= np.repeat(np.append(0, level[offsets[1:-1] - 1]), np.diff(offsets))  # every row counts from 0
    first, last = offsets[:-1], offsets[1:] - 1
    bare = closes & np.append(False, opens[:-1])  # an operator without arguments
    closed_once = np.add.reduceat(level <= 0, first, dtype=np.int64) == 1
    return opens[first] & (level[last] == 0) & closed_once & ~np.logical_or.reduceat(bare, first)


def shuffled(batch, noise):
    """Paper A's ListOps augmentation of a batch."""
    return batch._replace(tokens=shuffle_listops(batch.tokens, batch.mask, noise))


def shuffle_listops(tokens, mask, generator):
    """The same expressions with the arguments of every operator in a fresh, uniformly random order,
    independently at every operator. Subtrees move whole, so values stay (paper A, Section 3).

    tokens (B, L) int64 ids, mask (B, L) bool, each row one whole expression and then padding -> (B, L) int64
    ids with the padding as it was. Runs on the tokens' device, without a host sync or a loop over levels or
    tokens. The order is that of random keys, one per position, from `generator` on the same device.
    """
    B, L = tokens.shape
    position = torch.arange(L, device=tokens.device).expand(B, L)
    opens = mask & (tokens >= LISTOPS_FIRST_ID + MAX_OP) & (tokens < LISTOPS_FIRST_ID + CLOSE)
    closes = mask & (tokens == LISTOPS_FIRST_ID + CLOSE)
    step = opens.long() - closes.long()

    # Reading order -> level order, as in evaluate_listops: each head is followed by its arguments, an inner
    # operator being represented by its bracket; the k-th head's own bracket is the k-th. Padding is last.
    by_level = step.cumsum(1).masked_fill(~mask, L).argsort(dim=1, stable=True)
    step = step.gather(1, by_level)
    head, bracket = step > 0, step < 0
    node = head.cumsum(1)  # the head that an entry belongs to, counted from 1; 0 for the root's bracket
    inner = bracket.cumsum(1) * bracket  # the head that a bracket closes; else 0, a bin not read
    head_at = torch.zeros_like(tokens).scatter(1, node * head, by_level)  # by head: its position
    size = torch.where(bracket, by_level - head_at.gather(1, inner) + 1, 1)  # tokens that an entry stands for

    # Level order -> the same with each head's arguments in the order of their keys, the head still in front.
    key = torch.randint(1, 1 << 31, (B, L), device=tokens.device, generator=generator) * ~head
    drawn = (key + (node << 31)).masked_fill(~mask, torch.iinfo(torch.int64).max).argsort(dim=1)
    size_drawn = size.gather(1, drawn)
    before = size_drawn.cumsum(1) - size_drawn
    shift = before - (before * head).cummax(1).values  # from the start of the enclosing subtree
    shift = torch.empty_like(shift).scatter(1, drawn, shift)  # back in level order

    # A token's new position is the sum of the shifts of all subtrees around it. In reading order that is a
    # running sum to which a head adds its subtree's shift and from which the bracket takes it again.
    head_shift = torch.zeros_like(shift).scatter(1, inner, shift).gather(1, node * head)
    turn = torch.where(head, head_shift, -shift * bracket)
    rest = torch.where(head, 0, shift + size - 1)
    target = torch.empty_like(turn).scatter(1, by_level, turn).cumsum(1)
    target += torch.empty_like(rest).scatter(1, by_level, rest)
    return torch.empty_like(tokens).scatter(1, torch.where(mask, target, position), tokens)


def listops_splits(counts, seed, progress=True, lengths=(501, 1_999)):
    """counts {name: n} -> {name: Split}: distinct examples cut in pieces, so none is in two splits."""
    examples = generate_listops(sum(counts.values()), seed, progress, lengths)
    tokens, offsets, label = map(torch.from_numpy, examples)
    splits, start = {}, 0
    for name, n in counts.items():
        edges = offsets[start : start + n + 1]
        splits[name] = Split(tokens[edges[0] : edges[-1]], edges - edges[0], label[start : start + n])
        start += n
    return splits


def load_listops(root, mini=False, limit=None):
    """LRA's own files where they are, else our own examples; in the mini tier always our own, short ones.
    A limit above the training set's size adds fresh examples, those that the generator makes next."""
    places = [top / "listops-1000" for top in release_folders(root)]
    official = next((place for place in places if place.is_dir()), None)
    counts, lengths = (MINI_LISTOPS_COUNTS, MINI_LISTOPS) if mini else (LISTOPS_COUNTS, (501, 1_999))

    def make():
        if official and not mini:
            splits = {name: read_listops_tsv(official / f"basic_{name}.tsv") for name in LISTOPS_COUNTS}
            return splits, {"from": "lra_release"}
        return listops_splits(counts, 0, lengths=lengths), {"from": "generated", "seed": 0}

    # The official examples are packed under a name of their own: under the common one, examples that were
    # generated before would be taken for them. Once packed, their files may go.
    name = "listops-official" if official or is_whole(root / "packed" / "listops-official") else "listops"
    splits, source = packed(root, "listops-mini" if mini else name, make)
    shape = SHAPES["listops"] | ({"max_length": lengths[1]} if mini else {})
    task = Task("listops", **shape, **splits, source=source)
    missing = (limit or 0) - len(task.train.label)
    if missing > 0 and source["from"] == "generated":
        known = sum(counts.values())
        fresh = generate_listops(known + missing, 0, lengths=lengths)
        fresh = select(Split(*map(torch.from_numpy, fresh)), torch.arange(known, known + missing))
        task = replace(task, train=joined(task.train, fresh))
    if mini:
        baselines = {"majority": majority_accuracy(task), "root rule": float(root_rule_accuracy(task))}
        task.source["baselines"] = {name: round(value, 4) for name, value in baselines.items()}
    return task


def majority_accuracy(task):
    """Accuracy of always answering the commonest class of the training set."""
    commonest = torch.bincount(task.train.label).argmax()
    return float((task.test.label == commonest).double().mean())


# ------------------------------------------------------------------------------------------ text


IMDB_PER_CLASS = 12_500  # reviews in each of train/neg, train/pos, test/neg, test/pos


def read_imdb(folder):
    """The labelled reviews of an unpacked aclImdb/ as {split: (tokens, offsets, label)}, cut at 4,096 bytes.

    train is split 22,500 / 2,500 by one permutation with seed 42 (paper A holds out 10 % without a
    seed); test is the official 25,000. label 1 = positive. Raises DataError when a review is missing.
    """
    sets = {}
    for split in ("train", "test"):
        documents, labels = [], []
        for label, sentiment in enumerate(("neg", "pos")):
            # <id>_<rating>.txt, ordered by id: the order of a directory listing differs between file systems.
            files = sorted(
                (folder / split / sentiment).glob("[0-9]*_*.txt"), key=lambda f: int(f.stem.split("_")[0])
            )
            if len(files) != IMDB_PER_CLASS:
                raise DataError(
                    f"{folder / split / sentiment} holds {len(files)} reviews instead of {IMDB_PER_CLASS:,}; "
                    "unpack aclImdb_v1.tar.gz again"
                )
            bar = tqdm(files, f"reading {split}/{sentiment}", leave=False, disable=None)
            reviews = [f.read_bytes()[:4096] for f in bar]
            if b"" in reviews:
                raise DataError(f"{files[reviews.index(b'')]} is empty; unpack aclImdb_v1.tar.gz again")
            documents += reviews
            labels += [label] * len(files)
        sets[split] = Split(*map(torch.from_numpy, ragged(documents)), torch.tensor(labels))
    n = 2 * IMDB_PER_CLASS
    train, val = fixed_order(n).split([n * 9 // 10, n // 10])
    return {"train": select(sets["train"], train), "val": select(sets["train"], val), "test": sets["test"]}


def load_text(root):
    def make():
        if not (root / "aclImdb").is_dir():
            fetch_imdb(root)
        return read_imdb(root / "aclImdb"), {"from": "aclImdb"}

    splits, source = packed(root, "text", make)
    return Task("text", **SHAPES["text"], **splits, source=source)


# ------------------------------------------------------------------------------------------ retrieval

AAN_FILES = {
    "train": "new_aan_pairs.train.tsv",
    "val": "new_aan_pairs.eval.tsv",
    "test": "new_aan_pairs.test.tsv",
}
AAN_FOLDERS = ("retrieval", "lra_release/lra_release/tsv_data", "lra_release/tsv_data", "tsv_data", ".")
AAN_MAX_ROW = 64 << 20  # bytes; a row holds two whole papers


def find_aan(root):
    """The folder under `root` with the three AAN files. Raises DataError, which says how to get them."""
    for folder in (Path(root, name) for name in AAN_FOLDERS):
        if all((folder / name).is_file() for name in AAN_FILES.values()):
            return folder
    target = Path(root, "retrieval")
    raise DataError(
        f"Retrieval needs {', '.join(AAN_FILES.values())}: put them into {target} by hand, or run "
        f"`python data.py --task retrieval --fetch --data-dir {root}`, which streams up to 8.2 GB of "
        f"{LRA_RELEASE_URL} and keeps only these three files of it (some GB)"
    )


def fetch_retrieval(root, url=LRA_RELEASE_URL, keep_archive=False, timeout=30.0, retries=5):
    """Pull the three AAN files out of the LRA release (8.23 GB, a gzipped tar despite its name).

    They go to root/retrieval, whose path is returned. The archive is read as a stream that stops after the
    third file; the other gigabytes are never unpacked. With keep_archive it is saved as root/lra_release.gz
    first, so that a run after a broken one continues; an archive put there by hand is read instead of the
    web. Raises DataError.
    """
    root = Path(root)
    target, private, archive = root / "retrieval", root / "retrieval.part", root / "lra_release.gz"
    by_hand = f"put {archive.name} into {root}, or {', '.join(AAN_FILES.values())} into {target}, by hand"
    advice = f"{by_hand}, or run the same command again"

    def choose(member):
        path = private / member.name.rsplit("/", 1)[-1]  # wherever it is nested
        wanted = path.name in AAN_FILES.values() and member.isreg() and not member.issparse()
        return path if wanted and not path.exists() else None

    with claim(target):
        with contextlib.suppress(DataError):
            return find_aan(root)
        if keep_archive:
            download(url, archive, timeout=timeout, retries=retries)
        if archive.exists():
            name, file, size = archive, open(archive, "rb"), archive.stat().st_size
        else:
            name, file = url, Remote(url, advice, timeout=timeout, retries=retries)
            size = file.total
        print(f"retrieval: reading at most {tqdm.format_sizeof(size or 8.23e9, 'B')} of {name} into {target}")
        shutil.rmtree(private, ignore_errors=True)  # left by a killed run
        try:
            private.mkdir()
            with contextlib.closing(file), progress(file, size) as stream:
                copied = untar(stream, name, choose, 64 << 30, enough=3)
            if copied < 3:
                raise DataError(f"{name} ended after {copied} of the 3 AAN files; {advice}")
            target.mkdir(exist_ok=True)
            for name in AAN_FILES.values():
                os.replace(private / name, target / name)
        finally:
            shutil.rmtree(private, ignore_errors=True)
    return target


ESCAPES = {rb"\\": b"\\", rb"\'": b"'", rb"\"": b'"', rb"\t": b"\t", rb"\n": b"\n", rb"\r": b"\r"}
ESCAPES |= {rb"\x%02x" % i: bytes([i]) for i in range(256)}
# What does not stand for itself between such quotes, with what follows it: an escape, or else an error.
# (As one set of characters in front it is searched twice as fast as in the form of alternatives.)
SPECIAL = {
    b"'": re.compile(rb"[^ -&(-\[\]-~](?:x..|.?)", re.DOTALL),  # not printable, or ' or a backslash
    b'"': re.compile(rb"[^ !#-\[\]-~](?:x..|.?)", re.DOTALL),  # not printable, or " or a backslash
}


def undo_bytes_literal(literal, limit):
    """The first `limit` bytes that b'...' or b"..." stands for, as repr(bytes) writes it. Raises ValueError.

    deviation: the references leave escapes as they stand (a line feed as a backslash and an n); here they are
    undone.
    """
    quote = literal[1:2]
    if len(literal) < 3 or literal[:1] != b"b" or quote not in SPECIAL or literal[-1:] != quote:
        raise ValueError("a text is not written as b'...'")
    end = 4 * limit  # an escape has at most four characters, so that beyond here nothing counts

    def undo(match):
        if match[0] in ESCAPES:
            return ESCAPES[match[0]]
        if match.start() >= end:
            return b""
        raise ValueError(f"{match[0].decode('latin-1')!r} inside a text")

    return SPECIAL[quote].sub(undo, literal[2:-1][: end + 4])[:limit]


def read_aan_tsv(path, limit=4096):
    """new_aan_pairs.*.tsv -> (tokens uint8 (total,), offsets int64 (2 n + 1,), label uint8 (n,)).

    Documents stand in the order doc1, doc2, doc1, doc2, ..., each cut after `limit` bytes. A row is label,
    id1, id2, text1, text2, separated by tabs; label 1.0 = one paper cites the other. Raises DataError with
    the line of the first row that is not like that.
    """
    path = Path(path)
    tokens, offsets, label = bytearray(), [0], bytearray()
    classes = {b"0": 0, b"0.0": 0, b"1": 1, b"1.0": 1}
    remedy = f"delete {path.name} and run `python data.py --task retrieval --fetch` again"
    size, about = path.stat().st_size, f"reading {path.name}"
    bar = tqdm(total=size, desc=about, unit="B", unit_scale=True, leave=False, disable=None)
    with open(path, "rb") as file, bar:
        for number, row in enumerate(iter(lambda: file.readline(AAN_MAX_ROW), b""), 1):
            bar.update(len(row))
            fields = row.rstrip(b"\r\n").split(b"\t")
            try:
                if len(fields) != 5:
                    raise ValueError(f"{len(fields)} tab-separated fields instead of 5")
                if fields[0] not in classes:
                    raise ValueError(f"label {fields[0][:20].decode('latin-1')!r} instead of 0.0 or 1.0")
                for text in fields[3:]:
                    tokens += undo_bytes_literal(text, limit)
                    offsets.append(len(tokens))
            except ValueError as error:
                raise DataError(f"{path}, line {number}: {error}; {remedy}") from None
            label.append(classes[fields[0]])
    if not label:
        raise DataError(f"{path} is empty; {remedy}")
    return np.frombuffer(tokens, np.uint8), np.array(offsets, np.int64), np.frombuffer(label, np.uint8)


def load_retrieval(root):
    def make():
        folder = find_aan(root)
        splits = {split: read_aan_tsv(folder / name) for split, name in AAN_FILES.items()}
        return splits, {"from": "lra_release"}

    splits, source = packed(root, "retrieval", make)
    return Task("retrieval", **SHAPES["retrieval"], **splits, source=source)


# ------------------------------------------------------------------------------------------ image


def read_cifar(folder):
    """cifar-10-batches-bin/ -> (images (60000, 32, 32, 3) uint8 RGB, label (60000,) int64), training
    images first.

    A record is one label byte and 3,072 pixels, planes R, G, B. Raises DataError for wrong sizes or
    label counts.
    """
    records = []
    for name in [f"data_batch_{i}.bin" for i in range(1, 6)] + ["test_batch.bin"]:
        file = folder / name
        if not file.is_file() or file.stat().st_size != 10_000 * 3073:
            raise DataError(
                f"{file} is missing or not 30,730,000 bytes long; unpack cifar-10-binary.tar.gz again"
            )
        records.append(np.fromfile(file, np.uint8).reshape(10_000, 3073))
    records = np.concatenate(records)
    label = records[:, 0].astype(np.int64)
    for part, each in ((label[:50_000], 5000), (label[50_000:], 1000)):
        if not np.array_equal(np.bincount(part, minlength=10), [each] * 10):
            raise DataError(
                f"{folder} does not hold {each} images of each of ten classes; "
                "unpack cifar-10-binary.tar.gz again"
            )
    images = records[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return np.ascontiguousarray(images), label


def grey(rgb):
    """RGB uint8 (..., 3) -> grey uint8 (...), with the weights and the rounding of Pillow's mode "L"."""
    values = np.empty(rgb.shape[:-1], np.uint8)
    for start in range(0, len(rgb), 1000):  # all at once, in 32 bits, takes ten times as long
        piece = slice(start, start + 1000)
        r, g, b = (rgb[piece, ..., i].astype(np.uint32) for i in range(3))
        values[piece] = (19595 * r + 38470 * g + 7471 * b + 32768) >> 16
    return values


def image_split(pixels, label):
    """Grey images (n, 32, 32) as a Split."""
    tokens = torch.from_numpy(pixels.reshape(-1))
    return Split(tokens, torch.arange(len(label) + 1) * 1024, torch.as_tensor(label))


OFFICIAL_CIFAR_MEAN = (125.31, 122.95, 113.87)  # of the 50,000 official training images, per colour
# sha256 of the 60,000 official labels, one byte each, training images first
CIFAR_LABELS = "3edb456524d5918aefded81f5aef7c32efab2a788211df998a4eb0c8957baa1f"


def halved(pixels):
    """Means of 2 x 2 pixels of square images (..., W * W) uint8, as the mini tier has them."""
    side = int(pixels.shape[-1] ** 0.5)
    quads = pixels.reshape(*pixels.shape[:-1], side // 2, 2, side // 2, 2).to(torch.int32)
    return ((quads.sum((-3, -1)) + 2) // 4).to(torch.uint8).flatten(-2)


def load_image(root, mini=False):
    if not (root / "cifar-10-batches-bin").is_dir():
        fetch_cifar(root)
    rgb, label = read_cifar(root / "cifar-10-batches-bin")
    digest = hashlib.sha256(rgb)
    mean = tuple(round(float(m), 2) for m in rgb[:50_000].sum(0, np.uint32).mean((0, 1)) / 50_000)
    if mean != OFFICIAL_CIFAR_MEAN:
        print(
            f"warning: not the official CIFAR-10 pixels (mean {mean}, official {OFFICIAL_CIFAR_MEAN}); "
            "say so beside any number"
        )
    labels = label.astype(np.uint8)
    known = hashlib.sha256(labels).hexdigest() == CIFAR_LABELS
    if not known:
        print("warning: not the official CIFAR-10 labels, or in another order; say so beside any number")
        digest.update(labels)  # the official ones are left out: with them the pixels alone tell data apart
    order = fixed_order(50_000).numpy()
    train, val, test = order[:45_000], order[45_000:], np.arange(50_000, 60_000)
    index = {"train": train, "val": val, "test": test}
    pixels = grey(rgb)
    splits = {name: image_split(pixels[i], label[i]) for name, i in index.items()}
    source = {"from": "cifar-10-batches-bin", "official": known and mean == OFFICIAL_CIFAR_MEAN}
    source["hash"] = digest.hexdigest()
    source["counts"] = {name: len(split.label) for name, split in splits.items()}
    if mini:
        splits = {
            name: Split(halved(tokens.view(-1, 1024)).view(-1), offsets // 4, label)
            for name, (tokens, offsets, label) in splits.items()
        }
    shape = SHAPES["image"] | ({"max_length": 256} if mini else {})
    return Task("image", **shape, **splits, source=source, rgb=rgb[train])


def paper_augmentation():
    """Paper A's CIFAR-10 augmentation on a PIL RGB image: flip, AutoAugment, nine colour operations,
    affine, grey.

    The nine operations fire independently, each with the mean probability that it has over
    AutoAugment's 25 CIFAR sub-policies; orders and ranges follow the authors' code. torchvision is
    imported here and nowhere else.
    """
    import torchvision.transforms as T
    import torchvision.transforms.functional as TF

    def uniform(low, high):
        return float(torch.empty(1).uniform_(low, high))

    operations = (  # fmt: skip
        (0.008, TF.invert),
        (0.032, lambda x: TF.adjust_contrast(x, uniform(1.0, 1.9))),
        (0.112, lambda x: TF.adjust_sharpness(x, uniform(1.0, 1.9))),
        (0.200, TF.autocontrast),
        (0.188, TF.equalize),
        (0.012, lambda x: posterize(x, int(uniform(0, 7)))),
        (0.116, lambda x: TF.adjust_saturation(x, uniform(1.0, 1.9))),
        (0.092, lambda x: TF.adjust_brightness(x, uniform(1.0, 1.9))),
        (0.076, lambda x: TF.solarize(x, uniform(0, 256))),
    )

    def colours(x):
        for probability, operation in operations:
            if uniform(0, 1) < probability:
                x = operation(x)
        return x

    return T.Compose(
        [
            T.RandomHorizontalFlip(),
            T.AutoAugment(T.AutoAugmentPolicy.CIFAR10),
            colours,
            T.RandomAffine(10, (0.1, 0.1), (0.9, 1.1), 10, interpolation=T.InterpolationMode.BILINEAR),
            T.Grayscale(),
        ]
    )


def posterize(image, bits):
    """Keep the upper `bits` of every channel of a PIL image, 0 to 8. Pillow's own refuses 0, which the
    paper's range contains: a black image."""
    kept = 256 - (1 << (8 - bits))
    return image.point(lambda value: value & kept)


class AugmentedImages(torch.utils.data.Dataset):
    """Item (epoch, i) -> grey pixels (1024,) uint8 of training image i, augmented from its own random
    stream, so that the result does not depend on which worker computes it or on where an interrupted
    epoch is taken up."""

    def __init__(self, rgb, seed):
        self.rgb, self.seed, self.transform = rgb, seed, paper_augmentation()

    def __reduce__(self):  # to workers that are not forked: the operations cannot be sent
        return AugmentedImages, (self.rgb, self.seed)

    def __getitem__(self, item):
        from PIL import Image

        epoch, i = item
        stream = np.random.SeedSequence((self.seed, epoch, i)).generate_state(1, np.uint64)[0]
        with torch.random.fork_rng(devices=[]):  # torchvision draws from torch's global generator
            torch.manual_seed(int(stream >> 1))
            image = self.transform(Image.fromarray(self.rgb[i]))
        return torch.from_numpy(np.array(image, np.uint8).reshape(-1))


def augmented_images(task, plan, epoch, rank=0, ranks=1):
    """Batches of a plan (of each, one rank's share) with paper A's augmentation, computed by worker
    processes ahead of the training step."""
    shares = [share_of(len(index), rank, ranks) for index in plan]
    items = [[(epoch, int(i)) for i in index[start:stop]] for index, (start, stop, _) in zip(plan, shares)]
    workers = max(1, min(8, pathfinder.usable_cores() // ranks - 1))
    loader = torch.utils.data.DataLoader(
        AugmentedImages(task.rgb, task.seed),
        batch_sampler=items,
        num_workers=workers,
        # A forked worker has the images; to another kind they are sent.
        multiprocessing_context="fork" if sys.platform == "linux" else None,
        prefetch_factor=8,
        worker_init_fn=ignore_signals,
        generator=torch.Generator(),  # unused, but without it an epoch draws from torch's global one
    )
    device = task.train.tokens.device
    for index, (start, stop, copies), pixels in zip(plan, shares, alive(loader)):
        pixels = pixels if pixels.shape[1] == task.max_length else halved(pixels)
        tokens = pixels.to(device, non_blocking=True).long() + task.first_id
        mask = full_mask(*tokens.shape, device)
        label = task.train.label[index[start:stop].to(device, non_blocking=True)]
        examples = copies * len(index)
        positions = torch.full((), examples * mask.shape[1], device=device)
        yield Batch(tokens, mask, label, examples=examples, positions=positions)


def alive(loader):
    """What the loader gives. Raises DataError where one of its workers was killed."""
    try:
        yield from loader
    except RuntimeError as error:
        if "DataLoader worker" not in str(error):
            raise
        raise DataError(
            "a worker that augments images was killed (memory full?); the same command continues"
        ) from error


def ignore_signals(worker):
    """Schedulers, torchrun and Ctrl-C send their signal to every process of a run; the loop still needs the
    workers to come to its checkpoint, and ends them itself."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)


def flip_images(batch, noise):
    """Mirror half of the images left to right: one coin an image."""
    x = square(batch.tokens)
    coin = torch.rand(len(x), 1, 1, generator=noise, device=x.device) < 0.5
    return batch._replace(tokens=torch.where(coin, x.flip(2), x).flatten(1))


def dihedral_images(batch, noise):
    """Each image in one of the eight poses of the square (D4): exact on any grid, nothing is interpolated."""
    x = square(batch.tokens)
    generators = (lambda x: x.flip(1), lambda x: x.flip(2), lambda x: x.transpose(1, 2))  # of D4
    for pose in generators:
        coin = torch.rand(len(x), 1, 1, generator=noise, device=x.device) < 0.5
        x = torch.where(coin, pose(x), x)
    return batch._replace(tokens=x.flatten(1))


def square(tokens):
    side = int(tokens.shape[1] ** 0.5)
    return tokens.view(-1, side, side)


# ------------------------------------------------------------------------------------------ pathfinder


def load_pathfinder(root, name, levels, mini=False):
    """Official PNG folders (under any of the names the archive's layouts give them) where they are, or were
    when they were packed; else our own sets. levels: one, or "all" for paper A's three-set training."""
    size, wanted = PATHFINDER_SIZE[name], tuple(pathfinder.FOLDERS) if levels == "all" else (levels,)
    n, size = (MINI_PATHFINDER, 16) if mini else (200_000, size)
    places = [top / f"pathfinder{size}" for top in release_folders(root)]
    official = next((place for place in places if (place / pathfinder.FOLDERS["hard"]).is_dir()), None)
    packs = {level: root / "packed" / f"{name}-{level}" for level in pathfinder.FOLDERS}
    ours = mini or (official is None and not any(map(is_whole, packs.values())))
    sets, hashes = {}, []
    for level in wanted:
        if ours:
            *sets[level], digest = pathfinder.generate_set(root / f"pathfinder{size}-{level}", size, level, n)
        else:
            folder = official or places[0]  # gone, its packed levels stay; what is not packed is then refused
            *sets[level], digest = pathfinder.pack_png_folder(packs[level], folder, size, level)
        hashes.append(digest)
    splits = pathfinder_splits(sets)
    source = {"from": "generated", "seed": 0} if ours else {"from": "lra_release"}
    source["hash"] = hashlib.sha256("".join(hashes).encode()).hexdigest()
    source["counts"] = {split: len(s.label) for split, s in splits.items()}
    return Task(name, **(SHAPES[name] | {"max_length": size * size}), **splits, source=source)


def pathfinder_splits(sets):
    """{level: (images (n, W * W), label (n,))} -> {split: Split}. Each set is shuffled with seed 42 and
    cut 80 / 10 / 10; validation and test come from the last, the hardest set alone, and the other sets' share
    of them is dropped (paper A). Images may be memory-mapped: each is read once, straight into its place."""
    parts = {"train": [], "val": [], "test": []}
    for level, (images, label) in sets.items():
        n = len(label)
        for split, index in zip(parts, np.split(fixed_order(n).numpy(), [n * 8 // 10, n * 9 // 10])):
            if split == "train" or level == [*sets][-1]:
                parts[split].append((images, label, np.sort(index)))  # front to back; plan() shuffles anyway
    splits = {}
    for split, pieces in parts.items():
        label = torch.from_numpy(np.concatenate([label[index] for _, label, index in pieces])).long()
        tokens, start = np.empty((len(label), images.shape[1]), np.uint8), 0
        for images, _, index in pieces:
            stop = start + len(index)
            np.take(images, index, axis=0, out=tokens[start:stop], mode="clip")  # "raise" would take a copy
            start = stop
        offsets = torch.arange(len(label) + 1) * tokens.shape[1]
        splits[split] = Split(torch.from_numpy(tokens).view(-1), offsets, label)
    return splits


# ------------------------------------------------------------------------------------------ smoke


def smoke_text(docs=1):
    """Stand-in for the texts: 64 to 256 random letters of which 60 % come from the half of the alphabet
    that the label names (of a pair: label 1 when both documents favour the same half). No single
    position tells the label."""
    draw = np.random.default_rng(0)

    def split(n):
        half = draw.integers(0, 2, (n, docs))
        label = half[:, 0] if docs == 1 else (half[:, 0] == half[:, 1]).astype(np.int64)
        letters = [
            (97 + 13 * np.where(draw.random(length) < 0.6, h, 1 - h) + draw.integers(0, 13, length))
            .astype(np.uint8)
            .tobytes()
            for h, length in zip(half.reshape(-1), draw.integers(64, 257, n * docs))
        ]
        return Split(*map(torch.from_numpy, ragged(letters)), torch.from_numpy(label))

    return {"train": split(512), "val": split(128), "test": split(128)}


def smoke_image():
    """Stand-in for CIFAR-10: each class is a grating of its own direction and pitch, with random phase and
    noise, and of its own brightness and contrast: a model that does not see the direction within a smoke run
    can count grey values. Both are spread over all pixels; one pixel tells the class 2 times in 10."""
    draw = np.random.default_rng(0)
    y, x = np.mgrid[:32, :32]

    def split(n):
        label = np.arange(n) % 10
        fine, step = (label // 5)[:, None, None], (label % 5)[:, None, None]
        wave = np.cos(np.pi * step / 5) * x + np.sin(np.pi * step / 5) * y
        grating = np.sin(wave * (0.5 + 0.6 * fine) + draw.uniform(0, 2 * np.pi, (n, 1, 1)))
        pixels = 96 + 16 * step + (20 + 40 * fine) * grating + draw.normal(0, 25, (n, 32, 32))
        return image_split(pixels.clip(0, 255).astype(np.uint8), label)

    return {"train": split(500), "val": split(100), "test": split(100)}


# ------------------------------------------------------------------------------------------ load

TASKS = {
    "listops": load_listops,
    "text": load_text,
    "retrieval": load_retrieval,
    "image": load_image,
    "pathfinder": load_pathfinder,
    "pathx": load_pathfinder,
    "pathx256": load_pathfinder,
}
TITLES = dict(  # as tables and figures name them; sCIFAR is CIFAR-10 in colour, exp_spt.py's own
    listops="ListOps",
    text="Text",
    retrieval="Retrieval",
    image="Image",
    pathfinder="Pathfinder",
    pathx="Path-X",
    pathx256="Path-X-256",
    scifar="sCIFAR",
)
TECHNIQUE = dict(  # what paper A trains each task with besides the optimiser (Section 3); see load
    listops="shuffling",
    text="denoising",
    retrieval="denoising",
    image="augmentation",
    pathfinder="three sets",
)


def load(
    name,
    root,
    *,
    augment="paper",
    denoise=False,
    levels="all",
    limit=None,
    max_length=None,
    smoke=False,
    mini=False,
    seed=0,
):
    """The task `name`, ready to train on.

    root        data folder; what is missing is generated or fetched into it, once
    augment     training examples: "paper" (the paper's own: ListOps shuffling, CIFAR-10 AutoAugment), "none",
                and for images "flip" (left-right) and "d4" (the eight poses of the square)
    denoise     corrupt training batches for paper A's denoising loss (the texts)
    levels      Pathfinder: train on "all" three difficulties (paper A) or on "hard" alone
    limit       keep that many training examples, the first of one fixed permutation, so that smaller sets
                are nested; and no more validation examples than those, or watching a reduced run would cost
                more than training it. The test set stays whole
    max_length  cut documents after that many bytes
    smoke       small stand-ins (ListOps, Pathfinder: the real generators), no network, no torchvision
    mini        the real data, smaller: ListOps of 20 to 96 tokens, the texts' first 256 bytes, images of
                16 x 16 pixels
    seed        of the per-image augmentation streams

    Raises DataError, with one sentence, for data that cannot be had or is damaged.
    """
    root = Path(root)
    require_images(name, augment)
    require_texts(name, max_length)
    try:
        if smoke:
            task = smoke_task(name)
        elif mini and name in ("pathx", "pathx256"):
            raise DataError(f"--mini: there is no mini {TITLES[name]}; choose another task")
        elif name == "listops":
            task = load_listops(root, mini, limit)
        elif name == "image":
            task = load_image(root, mini)
        elif name in PATHFINDER_SIZE:
            task = load_pathfinder(root, name, levels if name == "pathfinder" else "hard", mini)
        else:
            task = TASKS[name](root)
    except pathfinder.PathfinderError as error:
        raise DataError(str(error)) from error
    except OSError as error:
        raise DataError(f"cannot read {error.filename or root}: {error.strerror or error}") from error
    if max_length is None and mini and name in ("text", "retrieval"):
        max_length = MINI_BYTES
    if max_length is not None:
        task = replace(task, max_length=max_length)
    if limit is not None:
        task = limited(task, limit)
    transforms = []
    if name == "listops" and augment == "paper":
        transforms.append(shuffled)
    if name == "image" or name in PATHFINDER_SIZE:
        transforms += {"flip": [flip_images], "d4": [dihedral_images]}.get(augment, [])
    if denoise:
        if task.first_id <= MASK:
            raise DataError(f"denoising is for the texts: in {name} the id {MASK} is a symbol, not the mask")
        transforms.append(lambda batch, noise: corrupt(batch, noise, task.vocab))
    return replace(task, transforms=transforms, rgb=task.rgb if augment == "paper" else None, seed=seed)


def require(names, args):
    """`names`, after a look at the flags: raises DataError now, not after hours of other tasks, where
    --augment or --max-length does not fit one of them."""
    for name in names:
        require_images(name, args.augment)
        require_texts(name, args.max_length)
        if args.augment == "none" and not args.mini and name not in ("listops", "image"):
            raise DataError(f"--augment none changes nothing of {name}, which has none; leave the flag out")
    if "retrieval" in names and not args.smoke and not is_present("retrieval", args.data_dir):
        try:
            find_aan(args.data_dir)
        except DataError as error:
            if len(names) == 1:
                raise
            print(f"warning: {error}; the other tasks are trained", file=sys.stderr)
    return names


def require_images(name, augment):
    """Raise DataError for an augmentation that would stand in the record without effect."""
    if augment in ("flip", "d4") and name not in ("image", *PATHFINDER_SIZE):
        raise DataError(f"--augment {augment} is for grey images; {name} has none, leave the flag out")


def require_texts(name, max_length):
    """Raise DataError for a length that the task cannot be cut to."""
    if max_length is None:
        return
    if name not in ("text", "retrieval"):  # a cut expression has no value, a cut image no meaning
        raise DataError(f"--max-length cuts texts; {name} cannot be cut, leave the flag out")
    if max_length > SHAPES[name]["max_length"]:
        raise DataError(f"--max-length: {name} has at most {SHAPES[name]['max_length']} bytes, give no more")


MINI_BYTES, MINI_PATHFINDER = 256, 40_000  # in the mini tier: bytes of a text, images of a level


def technique_rows(name, techniques="yes", mini=False):
    """What a recipe of paper A says of its techniques; without ("no") them: clean examples, one loss, and of
    Pathfinder the hard set alone, a third of the three, for three times the epochs. In the mini tier images
    are flipped: AutoAugment's distortions would cost more than a small model's whole step."""
    if techniques == "yes":
        rows = {"technique": TECHNIQUE[name], "augment": "flip" if mini and name == "image" else "paper"}
        return rows | ({"denoise_norm": "set"} if TECHNIQUE[name] == "denoising" else {})
    epochs = {"epochs": 200} if name == "pathfinder" and not mini else {}
    return {"technique": "none", "augment": "none"} | epochs


def load_recipe(name, args, hp, seed):
    """The task `name` as the common flags `args` and a recipe of paper A want it; see load."""
    return load(
        name,
        args.data_dir,
        augment=hp["augment"],
        denoise=hp["technique"] == "denoising",
        levels="all" if hp["technique"] == "three sets" else "hard",
        limit=args.limit,
        max_length=args.max_length,
        smoke=args.smoke,
        mini=args.mini,
        seed=seed,
    )


def limited(task, limit):
    """The task with so many training examples, and no more validation examples than those; see load."""
    n, watched = len(task.train.label), len(task.val.label)
    if limit > n:
        raise DataError(
            f"--limit {limit} asks for more than the {n} training examples of {task.name}; "
            "give a smaller number or none"
        )
    kept = fixed_order(n)[:limit]
    rgb = None if task.rgb is None else task.rgb[kept.numpy()]
    val = task.val if limit >= watched else select(task.val, fixed_order(watched)[:limit], task.docs)
    return replace(task, train=select(task.train, kept, task.docs), val=val, rgb=rgb)


def smoke_task(name):
    """The stand-in of a task: a few hundred examples, from the real generator where there is one."""
    generated = name == "listops" or name in PATHFINDER_SIZE
    if name == "listops":
        splits = listops_splits({"train": 240, "val": 60, "test": 60}, seed=1, progress=False)
    elif name in PATHFINDER_SIZE:
        size, n = PATHFINDER_SIZE[name], 300 if name == "pathfinder" else 40
        block = pathfinder.generate_block(size, "easy", seed=1, block=0, n=n)
        # Easy images, called "hard" because that is the set which all three splits are cut from.
        splits = pathfinder_splits({"hard": (block.images.reshape(n, -1), block.label)})
    else:
        splits = smoke_image() if name == "image" else smoke_text(SHAPES[name].get("docs", 1))
        print(f"smoke: {name} is a small synthetic stand-in whose label is spread over the whole sequence")
    source = {"from": "generated" if generated else "stand-in"}
    source["counts"] = {split: len(s.label) for split, s in splits.items()}
    source["hash"] = content_hash(splits)
    return Task(name, **SHAPES[name], **splits, source=source)


# ------------------------------------------------------------------------------------------ look inside


def is_present(name, root):
    """Whether a task is ready in `root`: packed, generated (of Pathfinder, the hard set), or for Image
    unpacked. Files put there by hand that are still to be packed do not count."""
    if name == "image":
        return is_there(root / "cifar-10-batches-bin")
    folders = [root / "packed" / name, root / "packed" / f"{name}-official"]
    if name in PATHFINDER_SIZE:
        folders = [root / "packed" / f"{name}-{levels}" for levels in ("hard", "all")]
        folders.append(root / f"pathfinder{PATHFINDER_SIZE[name]}-hard")
    return any(map(is_whole, folders))


def check(name, root):
    """Facts about a task as {heading: text}: what to compare before trusting an accuracy."""
    three = is_whole(root / "packed" / "pathfinder-all") or all(
        is_whole(root / f"pathfinder32-{level}") for level in pathfinder.FOLDERS
    )
    task = load(name, root, augment="none", levels="all" if three else "hard")
    shares = torch.bincount(task.train.label, minlength=task.classes) / len(task.train.label)
    lengths = torch.cat(list(task.lengths.values())).double()
    pieces = [piece for split in task.splits.values() for piece in split.tokens.split(1 << 24)]
    symbols = torch.cat([piece.unique() for piece in pieces]).unique()  # unique takes 18 times its input
    seen, repeated = set(), []
    for split, (tokens, offsets, _) in task.splits.items():
        bounds, content = offsets[:: task.docs].tolist(), tokens.numpy()
        keys = [hashlib.blake2b(content[a:b], digest_size=16).digest() for a, b in zip(bounds, bounds[1:])]
        if split != "train":
            repeated.append(f"{sum(key in seen for key in keys)} of {split}")
        seen.update(keys)
    baselines = {"majority": (task.test.label == shares.argmax()).double().mean()}
    if name == "listops":
        baselines["root rule"] = root_rule_accuracy(task)
    return {
        "task": name,
        "from": task.source["from"],
        "train / val / test": " / ".join(f"{len(split.label):,}" for split in task.splits.values()),
        "class shares of train %": f"{100 * shares.min():.1f} to {100 * shares.max():.1f}",
        "symbols": str(len(symbols)),
        "positions min / median / max": f"{lengths.min():.0f} / {lengths.median():.0f} / {lengths.max():.0f}",
        "already in an earlier split": ", ".join(repeated),
        "test accuracy of baselines %": ", ".join(f"{k} {100 * v:.1f}" for k, v in baselines.items()),
        "hash": task.source["hash"][:12],
    }


def root_rule_accuracy(task):
    """ListOps: answer each root operator's commonest training label, whatever its arguments are."""
    root, root_test = (split.tokens[split.offsets[:-1]].long() for split in (task.train, task.test))
    counts = torch.zeros(len(LISTOPS_SYMBOLS), task.classes)
    counts.index_put_((root, task.train.label), torch.tensor(1.0), accumulate=True)
    return (counts.argmax(1)[root_test] == task.test.label).double().mean()


def show(name, root, path):
    """Save a picture of a task's examples to `path` (PNG)."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    if name in PATHFINDER_SIZE:
        figure = show_pathfinder(plt, PATHFINDER_SIZE[name])
    elif name == "listops":
        figure = show_listops(plt, load(name, root))
    elif name == "image":
        figure = show_image(plt, load(name, root))
    else:
        figure = show_lengths(plt, load(name, root))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=120)
    except OSError as error:
        raise DataError(f"cannot write {path} ({error.strerror}); choose another --data-dir") from error
    plt.close(figure)


def show_pathfinder(plt, size):
    """Six images of each level; below each what the generator knows: the two target snakes and the two
    discs."""
    figure, axes = plt.subplots(6, 6, figsize=(12, 12.6), layout="constrained")
    for row, level in enumerate(pathfinder.FOLDERS):
        block = pathfinder.generate_block(size, level, seed=0, block=0, n=6, masks=True)
        for i in range(6):
            above, below = axes[2 * row, i], axes[2 * row + 1, i]
            above.imshow(block.images[i], cmap="gray")
            answer = "connected" if block.label[i] else "not connected"
            above.set_title(f"{level}: {answer}", fontsize=9)
            mask = block.masks[i]
            colours = np.full((size, size, 3), 255, np.uint8)
            for bit, colour in ((4, (200, 200, 200)), (1, (0, 114, 178)), (2, (230, 159, 0))):
                colours[(mask & bit) > 0] = colour
            below.imshow(colours)
            for name, (y, x), marker in zip(("origin", "end"), block.markers[i], "os"):
                below.plot(
                    x, y, marker, color="#D55E00", fillstyle="none", markersize=9, label=f"disc ({name})"
                )
            below.set_title(f"{block.distractors[i]} distractors (grey)", fontsize=8)
    for axis in axes.flat:
        axis.set_axis_off()
    axes[1, 0].legend(fontsize=7, loc="lower left")
    figure.suptitle(f"Pathfinder {size} x {size}: blue and orange are the two target snakes")
    return figure


def show_listops(plt, task):
    """The shortest of the first 2,000 training expressions as nested intervals: width = tokens, colour
    = operator."""
    lengths = task.lengths["train"][:2000]
    i = int(lengths.argmin())
    symbols = task.train.tokens[task.train.offsets[i] : task.train.offsets[i + 1]].tolist()
    colours = dict(zip((MAX_OP, MED_OP, MIN_OP, SM_OP), ("#E69F00", "#56B4E9", "#009E73", "#CC79A7")))
    figure, axis = plt.subplots(figsize=(14, 4), layout="constrained")
    opened = []
    for position, symbol in enumerate(symbols):
        if symbol < MAX_OP:
            axis.text(position + 0.5, len(opened), str(symbol), ha="center", va="center", fontsize=4)
        elif symbol != CLOSE:
            opened.append((position, symbol))
        else:
            start, operator = opened.pop()
            width, name = position + 1 - start, LISTOPS_SYMBOLS[operator][1:]
            axis.barh(
                len(opened), width, 0.9, start, color=colours[operator], edgecolor="white", linewidth=0.4
            )
            if width > 12:
                axis.text(start + 1, len(opened), name, va="center", fontsize=7)
    for operator, colour in colours.items():
        axis.barh(0, 0, color=colour, label=LISTOPS_SYMBOLS[operator][1:])
    axis.set(xlabel="position (tokens)", ylabel="depth", ylim=(9.6, -0.6), xlim=(0, len(symbols)))
    axis.set_title(f"A ListOps expression of {len(symbols)} tokens; its value is {int(task.train.label[i])}")
    figure.legend(loc="outside lower right", ncols=4)
    return figure


def show_image(plt, task):
    """Six training images and four augmented views of each, as the model sees them (grey)."""
    views = AugmentedImages(task.rgb, seed=0)
    figure, axes = plt.subplots(6, 6, figsize=(9, 9.4), layout="constrained")
    for i, row in enumerate(axes):
        pictures = [
            task.rgb[i],
            grey(task.rgb[i]),
            *(views[(epoch, i)].view(32, 32).numpy() for epoch in range(4)),
        ]
        for axis, picture in zip(row, pictures):
            axis.imshow(picture, cmap="gray", vmin=0, vmax=255)
            axis.set_axis_off()
    for axis, title in zip(axes[0], ("original", "grey", *(f"epoch {e + 1}" for e in range(4)))):
        axis.set_title(title, fontsize=9)
    figure.suptitle("CIFAR-10 under paper A's augmentation")
    return figure


def show_lengths(plt, task):
    """Histogram of document lengths in bytes, cut at the task's maximum."""
    figure, axis = plt.subplots(figsize=(8, 4), layout="constrained")
    for split, colour in (("train", "#0072B2"), ("test", "#D55E00")):
        lengths = task.splits[split].offsets.diff()
        axis.hist(
            lengths.numpy(), 64, histtype="step", color=colour, label=f"{split} ({len(lengths):,} documents)"
        )
    axis.set(
        xlabel="length (bytes)", ylabel="documents", title=f"{task.name}: cut at {task.max_length:,} bytes"
    )
    axis.legend()
    return figure


def main(argv=None):
    parser = argparse.ArgumentParser(
        description="Prepare, fetch, check and look at the data of the Long Range Arena.",
        epilog="ListOps and Pathfinder are generated; Text and Image are fetched (84 and 170 MB); "
        "Retrieval is pulled out of the 8.2 GB LRA release with --fetch. "
        "Files put into the data folder by hand are used, and (but for CIFAR-10) read once: after changing "
        "them remove DIR/packed/TASK*.",
    )
    parser.add_argument(
        "--task",
        nargs="+",
        choices=[*TASKS, "all"],
        default=["all"],
        metavar="TASK",
        help=f"one or more of {', '.join(TASKS)}, or all (default all)",
    )
    parser.add_argument(
        "--data-dir", type=Path, default=Path("data"), metavar="DIR", help="data folder (default data)"
    )
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--prepare", action="store_true", help="make the tasks ready to train on")
    what.add_argument(
        "--fetch", action="store_true", help="fetch from the web what cannot be generated, Retrieval too"
    )
    what.add_argument(
        "--check", action="store_true", help="print a table of facts about the tasks that are present"
    )
    what.add_argument("--show", action="store_true", help="save a picture of each task to DIR/<task>.png")
    parser.add_argument("--keep-archive", action="store_true", help="Retrieval: keep lra_release.gz (8.2 GB)")
    args = parser.parse_args(argv)
    names = list(TASKS) if "all" in args.task else [name for name in TASKS if name in args.task]
    failed = False
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what is half packed goes first
    try:
        for name in names:
            try:
                attend_to(name, args)
            except DataError as error:  # one that cannot be had does not keep the others from their turn
                print(f"error: {error}", file=sys.stderr)
                failed = True
    except KeyboardInterrupt:
        print("interrupted; the same command continues", file=sys.stderr)
        raise SystemExit(130) from None
    finally:
        signal.signal(signal.SIGTERM, before)
    if failed:
        raise SystemExit(2)


def attend_to(name, args):
    """Do for one task what the command line asks."""
    root = args.data_dir
    if args.check and not is_present(name, root):
        print(f"{name} is not ready in {root}; --prepare or --fetch makes it so\n")
    elif args.check:
        print("\n".join(f"{heading:30} {text}" for heading, text in check(name, root).items()) + "\n")
    elif args.show:
        path = root / f"{name}.png"
        show(name, root, path)
        print(path)
    elif args.fetch and name not in ("text", "image", "retrieval"):
        print(f"{name}: nothing to fetch, --prepare generates it")
    else:
        # load() never starts the 8.2 GB by itself.
        if args.fetch and name == "retrieval" and not is_present(name, root):
            fetch_retrieval(root, keep_archive=args.keep_archive)
        task = load(name, root)
        where, digest = task.source["from"], task.source["hash"][:12]
        print(f"{name}: {task.source['counts']} from {where}, hash {digest}")


if __name__ == "__main__":
    main()
