"""Files from the web, whole or not at all: fetch_archive(root, ARCHIVES["text"]) makes root/aclImdb.

DataError and making (one process makes a folder, the others wait) serve the other data modules too.
"""

import contextlib
import functools
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


class UserError(Exception):
    """A mistake that the user can mend. The message is one sentence that says how."""


class DataError(UserError):
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
progress = functools.partial(tqdm.wrapattr, method="read", leave=False, disable=None)  # a stream with a bar


@contextlib.contextmanager
def making(folder, tag=""):
    """Yields where to make `folder`, which gets its own name at the end, or None where it is there already.
    One process makes it; others wait (not on Windows, which has no fcntl). What a killed run left is removed,
    or with a tag, which only the same contents may have, kept. An OSError (disk full) becomes a DataError."""
    if folder.exists():  # perhaps on a disk that cannot be written to
        yield None
        return
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with open(folder.parent / f".{folder.name}.lock", "w") as lock:
            if fcntl:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    print(f"waiting for another process that is making {folder}", flush=True)
                    fcntl.flock(lock, fcntl.LOCK_EX)
            if folder.exists():
                yield None
                return
            private = folder.with_name(f"{folder.name}{tag}.part")
            if not tag:
                shutil.rmtree(private, ignore_errors=True)
            yield private
            private.rename(folder)
    except OSError as error:
        raise DataError(f"cannot make {folder} ({error}); free space or choose another --data-dir") from error


def fetch_archive(root, archive, url=None):
    """Make root/<archive.folder> out of its archive: one that lies in `root`, else fetched (from `url`, if
    given) and deleted in the end. Raises DataError."""
    folder, path = Path(root) / archive.folder, Path(root) / archive.url.rsplit("/", 1)[1]
    with making(folder) as private:
        if private:
            by_hand = path.exists()
            if not by_hand:
                download(url or archive.url, path)
            md5 = archive.md5 and hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()
            if archive.md5 != md5:
                raise DataError(f"{path} is not that of {archive.url} (md5 differs); delete it and try again")
            extract(path, private, archive)
            if not by_hand:
                path.unlink()


def download(url, path, timeout=30.0, retries=5):
    """Fetch `url` to `path`, by way of `path`.part, which a later run continues where the server allows it. A
    connection that breaks or is silent for `timeout` seconds is replaced, at most `retries` times without a
    megabyte between them."""
    part, failures = Path(f"{path}.part"), 0
    while True:
        start = part.stat().st_size if part.exists() else 0
        print(f"fetching {url} to {part}" + (f", from byte {start:,} on" if start else ""), flush=True)
        headers = {"User-Agent": "fetch.py"} | ({"Range": f"bytes={start}-"} if start else {})
        try:
            request = urllib.request.Request(url, headers=headers)
            with urllib.request.urlopen(request, timeout=timeout) as response:
                had = start if response.status == 206 else 0
                total = had + int(response.headers.get("Content-Length", 0))  # without it no more than had
                bar = progress(response, total=total, initial=had)
                with open(part, "ab" if had else "wb") as out, bar as stream:
                    shutil.copyfileobj(stream, out, 1 << 16)
                    if out.tell() < total:
                        raise ConnectionError(f"the connection closed early, at byte {out.tell():,}")
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


def extract(path, folder, archive):
    """Unpack the wanted files of a gzipped tar into `folder`, under the names that the expression's group
    gives, so that nothing lands elsewhere. Raises DataError."""
    taken = []

    def members(tar):
        while (member := tar.next()) is not None:
            tar.members.clear()  # tarfile remembers every header; the LRA release has millions
            if (match := re.fullmatch(archive.wanted, member.name)) and member.isreg():
                taken.append(match[1])
                yield member.replace(name=match[1], deep=False)

    try:
        with open(path, "rb") as file, progress(file, total=path.stat().st_size) as stream:
            plain = gzip.GzipFile(fileobj=stream)
            with tarfile.open(fileobj=plain, mode="r|", bufsize=1 << 20) as tar:
                tar.extractall(folder, members(tar), filter="data")
            while plain.read(1 << 20):  # to the end, where gzip's checksum stands
                pass
        if len(taken) != archive.files:
            raise ValueError(f"it holds {len(taken):,} of the {archive.files:,} files of {archive.folder}")
    except (tarfile.TarError, gzip.BadGzipFile, zlib.error, EOFError, ValueError) as error:
        raise DataError(f"{path} is damaged ({error}); delete it and fetch it again") from error
