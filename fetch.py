"""Files from the web, whole or not at all: fetch_archive(root, ARCHIVES["text"]) makes root/aclImdb.

DataError and claim (one process makes a file, the others wait) serve the other data modules too.
"""

import contextlib
import gzip
import hashlib
import http.client
import re
import shutil
import ssl
import tarfile
import time
import urllib.error
import urllib.request
import zlib
from pathlib import Path
from typing import NamedTuple

from tqdm import tqdm

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None


class DataError(Exception):
    """Data that is missing, damaged or not what it claims to be, in one sentence that says what to do."""


class Archive(NamedTuple):
    """A gzipped tar on the web and what to take out of it."""

    url: str
    md5: str | None
    folder: str  # what it is unpacked to
    wanted: str  # regular expression of the members to take; its group is their path in the folder
    files: int  # how many they are


# fmt: off
ARCHIVES = {
    "text": Archive(
        "https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz", "7c2ac02c03563afcf9b574c7e56c153a",
        "aclImdb", r"aclImdb/((?:train|test)/(?:pos|neg)/\d+_\d+\.txt)", 50_000),
    "image": Archive(  # plain bytes; the better-known Python version is a pickle
        "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530",
        "cifar-10-batches-bin", r"cifar-10-batches-bin/((?:data_batch_[1-5]|test_batch)\.bin)", 6),
    "retrieval": Archive(  # 8.23 GB; nobody publishes its md5, so gzip's own checksum must do
        "https://storage.googleapis.com/long-range-arena/lra_release.gz", None,
        "retrieval", r"(?:.*/)?(new_aan_pairs\.(?:train|eval|test)\.tsv)", 3),
}
# fmt: on
BROKEN = (urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError, ssl.SSLError)


@contextlib.contextmanager
def claim(path):
    """While it is held this process alone makes `path`; others wait here (on Windows, without fcntl, nobody
    does). What the file system refuses inside (disk full, read-only) comes out as a DataError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path.parent / f".{path.name}.lock", "w") as lock:
            if fcntl:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    print(f"waiting for another process that is making {path}", flush=True)
                    fcntl.flock(lock, fcntl.LOCK_EX)
            yield
    except OSError as error:
        raise DataError(f"cannot make {path} ({error}); free space or choose another --data-dir") from error


def fetch_archive(root, archive, url=None):
    """Make root/<archive.folder> out of its archive: one that lies in `root` by hand, else fetched (from the
    mirror `url`, if given) and deleted in the end. Raises DataError."""
    folder, path = Path(root) / archive.folder, Path(root) / archive.url.rsplit("/", 1)[1]
    if folder.exists():  # perhaps on a disk that cannot be written to
        return
    with claim(folder):
        if folder.exists():
            return
        by_hand = path.exists()
        if not by_hand:
            download(url or archive.url, path)
        if archive.md5 and archive.md5 != hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest():
            raise DataError(f"{path} is not the file of {archive.url} (md5 differs); delete it and try again")
        extract(path, folder, archive.wanted, archive.files)
        if not by_hand:
            path.unlink()


def download(url, path, timeout=30.0, retries=5):
    """Fetch `url` to `path`. Bytes go to `path`.part, which a later run continues. A connection that breaks,
    or is silent for `timeout` seconds, is replaced, at most `retries` times without a megabyte between
    them."""
    part, failures = Path(f"{path}.part"), 0
    while True:
        start = part.stat().st_size if part.exists() else 0
        print(f"fetching {url} to {part}" + (f", from byte {start:,} on" if start else ""), flush=True)
        try:
            receive(url, part, start, timeout)
            part.rename(path)
            return
        except (*BROKEN, ValueError) as error:  # ValueError: this is no URL
            code = getattr(error, "code", None)  # of HTTP; 416: there is nothing behind our part
            if code == 416:
                part.unlink()
            refused = type(error) is ValueError or code in {*range(400, 500)} - {408, 416, 429}
            grown = part.stat().st_size - start if part.exists() else 0
            failures = 1 if grown >= 1 << 20 else failures + 1
            if refused or failures > retries:
                advice = f"put the file at {path} by hand, or run the same command again"
                raise DataError(f"could not fetch {url}: {error}; {advice}") from error
            time.sleep(2.0 ** (failures - 1))


def receive(url, part, start, timeout):
    """Append the bytes of `url` from `start` on to `part`; where the server ignores ranges it begins anew."""
    headers = {"User-Agent": "fetch.py"} | ({"Range": f"bytes={start}-"} if start else {})
    request = urllib.request.Request(url, headers=headers)
    with urllib.request.urlopen(request, timeout=timeout) as response:
        start, mode = (start, "ab") if response.status == 206 else (0, "wb")
        length = response.headers.get("Content-Length")
        total = start + int(length) if length else None
        with open(part, mode) as out, progress(response, total, start) as stream:
            shutil.copyfileobj(stream, out, 1 << 16)
            if out.tell() < (total or 0):
                raise ConnectionError(f"the connection closed early, at byte {out.tell():,}")


def progress(stream, total, start=0):
    """`stream` with a bar that follows its read()."""
    return tqdm.wrapattr(stream, "read", total=total, initial=start, leave=False, disable=None)


def extract(archive, folder, wanted, files):
    """Unpack the plain files of a gzipped tar whose names match the regular expression `wanted` as `folder`,
    under the names that its group gives, so that nothing lands elsewhere. The tar is read to its end, where
    gzip's checksum stands; the folder appears whole or not at all. Raises DataError."""
    private, taken = folder.with_name(folder.name + ".part"), []

    def members(tar):
        while (member := tar.next()) is not None:
            tar.members.clear()  # tarfile remembers every header; the LRA release has millions
            if (match := re.fullmatch(wanted, member.name)) and member.isreg():
                taken.append(match[1])
                yield member.replace(name=match[1], deep=False)

    shutil.rmtree(private, ignore_errors=True)  # left by a killed run
    try:
        with open(archive, "rb") as file, progress(file, archive.stat().st_size) as stream:
            plain = gzip.GzipFile(fileobj=stream)
            with tarfile.open(fileobj=plain, mode="r|", bufsize=1 << 20) as tar:
                tar.extractall(private, members(tar), filter="data")
            while plain.read(1 << 20):
                pass
        if len(taken) != files:
            raise ValueError(f"it holds {len(taken):,} of the {files:,} files of {folder.name}")
        private.rename(folder)
    except (tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError, ValueError) as error:
        raise DataError(f"{archive} is damaged ({error}); delete it and fetch it again") from error
