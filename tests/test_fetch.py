"""fetch.py against a server on 127.0.0.1 that misbehaves on demand, and against archives that are not what
they claim. pytest tests/test_fetch.py"""

import functools
import gzip
import hashlib
import http.server
import io
import multiprocessing
import re
import resource
import tarfile
import threading

import numpy as np
import pytest

import fetch


class Server:
    """Serves `body`. Attributes switch its faults on; `ranges` lists the Range headers received, in order."""

    def __init__(self, body):
        self.body, self.ranges, self.over = body, [], threading.Event()
        self.drops = []  # close the next connections after these many bytes each
        self.stall = None  # fall silent after so many bytes, on every connection
        self.ignore_range, self.status = False, 200
        calls = {"do_GET": lambda handler: self.answer(handler), "log_message": lambda *args: None}
        handler = type("Handler", (http.server.BaseHTTPRequestHandler,), calls)
        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}/top.tar.gz"
        threading.Thread(target=self.http.serve_forever, args=(0.05,), daemon=True).start()

    def answer(self, handler):
        asked = handler.headers.get("Range")
        self.ranges.append(asked)
        start = int(re.fullmatch(r"bytes=(\d+)-", asked)[1]) if asked and not self.ignore_range else 0
        if self.status != 200 or start and start >= len(self.body):
            return handler.send_error(self.status if self.status != 200 else 416)
        handler.send_response(206 if start else 200)
        handler.send_header("Content-Length", str(len(self.body) - start))
        handler.end_headers()
        handler.wfile.write(self.body[start:][: self.drops.pop(0) if self.drops else self.stall])
        if self.stall is not None:
            self.over.wait(30)
        handler.close_connection = True


@pytest.fixture
def serve(monkeypatch):
    """Starts a Server for some bytes; nobody waits between tries."""
    monkeypatch.setattr(fetch.time, "sleep", lambda seconds: None)
    servers = []
    yield lambda body: servers.append(Server(body)) or servers[-1]
    for server in servers:
        server.over.set()
        server.http.shutdown()
        server.http.server_close()


def noise(n, seed=0):
    return np.random.default_rng(seed).bytes(n)


def refused(action, *words):
    """`action` raises a DataError: one sentence on one line, with all of `words`."""
    with pytest.raises(fetch.DataError) as caught:
        action()
    message = str(caught.value)
    assert "\n" not in message and all(str(word) in message for word in words), message


def files(folder):
    return {str(f.relative_to(folder)): f.read_bytes() for f in sorted(folder.rglob("*")) if f.is_file()}


@pytest.mark.parametrize("ignore_range", [False, True])
def test_download_continues_where_a_connection_or_a_run_ended(ignore_range, serve, tmp_path):
    server, where = serve(noise(300_000)), tmp_path / "a.gz"
    server.drops = [100_000] * 9
    refused(lambda: fetch.download(server.url, where, retries=0), "closed early", where, "by hand")
    assert files(tmp_path) == {"a.gz.part": server.body[:100_000]}
    server.ignore_range, server.drops, server.ranges = ignore_range, [50_000], []
    fetch.download(server.url, where)
    assert files(tmp_path) == {"a.gz": server.body}
    assert server.ranges == ["bytes=100000-", f"bytes={50_000 if ignore_range else 150_000}-"]


@pytest.mark.parametrize("fault, tries, words", [
    (dict(status=404), 1, "404"),
    (dict(status=503), 3, "503"),
    (dict(drops=[1_000] * 9), 3, "closed early"),  # a little further every time
    (dict(stall=1_000), 3, "timed out"),
])  # fmt: skip
def test_what_a_server_does_wrong(fault, tries, words, serve, tmp_path):
    server, where = serve(noise(50_000)), tmp_path / "a.gz"
    vars(server).update(fault)
    refused(lambda: fetch.download(server.url, where, timeout=0.3, retries=2), server.url, where, words)
    assert len(server.ranges) == tries and not where.exists()
    refused(lambda: fetch.download("no url", where), "no url")
    server.drops, server.status, server.stall = [1 << 20] * 5, 200, None
    server.body = noise(6 << 20)  # a long one may break more often, if it gets on
    fetch.download(server.url, tmp_path / "b.gz", retries=1)
    assert (tmp_path / "b.gz").read_bytes() == server.body


def archive(members):
    """A gzipped tar of {name: bytes, or the target of a link as text}, in order."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            if isinstance(content, str):
                info.type, info.linkname = tarfile.SYMTYPE, content
            else:
                info.size = len(content)
            tar.addfile(info, io.BytesIO(content) if info.size else None)
    return out.getvalue()


GOOD = {"top/a/1.txt": b"one", "top/b/2.txt": b"two", "top/unsup/1.html": b"no", "top/../../out/3.txt": b"no"}


def spec(body, known=True):
    """How test archives are fetched: two files are wanted."""
    md5 = hashlib.md5(body).hexdigest() if known else None
    return fetch.Archive("http://127.0.0.1:9/top.tar.gz", md5, "top", r"top/(\w/\d\.txt)", 2)


def test_bad_archives_leave_nothing(tmp_path):
    body = archive({f"top/a/{i}.txt": noise(3_000, i) for i in range(2)})
    flipped = bytearray(gzip.compress(gzip.decompress(body) + bytes(3 << 20)))
    flipped[-6] ^= 1  # in gzip's checksum, far behind the tar's end
    bad = [archive(GOOD | {"top/b/2.txt": "../a/1.txt"}), archive({"top/a/1.txt": b"one"})]  # a link; too few
    bad += [archive(GOOD | {"top/c/3.txt": b"one too many"}), archive({"top/c": "/tmp"} | GOOD)[:-9]]
    bad += [body[:cut] for cut in (0, 1, 5_000, len(body) - 5)] + [bytes(flipped), noise(5_000)]
    for content in bad:
        (tmp_path / "top.tar.gz").write_bytes(content)
        unpack = functools.partial(fetch.fetch_archive, tmp_path, spec(content))
        refused(unpack, "is damaged", "fetch it again")
        assert not (tmp_path / "top").exists()


def test_an_archive_is_fetched_once_and_deleted_but_never_one_put_there_by_hand(serve, tmp_path):
    server, path = serve(archive(GOOD)), tmp_path / "top.tar.gz"
    (tmp_path / "top.part").mkdir()
    (tmp_path / "top.part" / "rest").write_bytes(b"of a killed run")
    for _ in range(2):
        fetch.fetch_archive(tmp_path, spec(server.body), url=server.url)  # a mirror
    assert files(tmp_path / "top") == {"a/1.txt": b"one", "b/2.txt": b"two"} and server.ranges == [None]
    assert {f.name for f in tmp_path.iterdir()} == {"top", ".top.lock"}
    (tmp_path / "top").rename(tmp_path / "aside")
    path.write_bytes(server.body)
    fetch.fetch_archive(tmp_path, spec(server.body))
    assert len(files(tmp_path / "top")) == 2 and path.exists() and server.ranges == [None]
    (tmp_path / "top").rename(tmp_path / "moved")
    path.write_bytes(archive(GOOD | {"top/a/1.txt": b"two"}))
    refused(lambda: fetch.fetch_archive(tmp_path, spec(server.body)), "md5 differs", "delete it")
    assert path.exists() and not (tmp_path / "top").exists()


def fetched(root, server, room=None):
    """What a process does that fetches with `room` bytes left on its disk."""
    if room:
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))
    fetch.fetch_archive(root, spec(server.body, known=False), url=server.url)


def test_a_full_disk_a_kill_and_two_processes(serve, tmp_path):
    server = serve(archive(GOOD | {"top/rest": noise(300_000)}))
    fork = multiprocessing.get_context("fork")
    fill = functools.partial(fetched, tmp_path, server, 100_000)
    full = fork.Process(target=refused, args=(fill, "cannot make", "free space"))
    full.start()
    full.join()
    part = tmp_path / "top.tar.gz.part"
    assert full.exitcode == 0 and part.stat().st_size == 100_000
    server.stall = 150_000
    killed, waiting = (fork.Process(target=fetched, args=(tmp_path, server)) for _ in range(2))
    killed.start()
    while part.stat().st_size == 100_000:
        assert killed.is_alive()
        threading.Event().wait(0.02)
    waiting.start()
    waiting.join(0.5)
    assert waiting.is_alive() and len(server.ranges) == 2 and not (tmp_path / "top").exists()
    server.stall = None
    killed.kill()
    waiting.join(60)
    assert waiting.exitcode == 0 and len(files(tmp_path / "top")) == 2 and len(server.ranges) == 3
    assert {f.name for f in tmp_path.iterdir()} == {"top", ".top.lock"}
