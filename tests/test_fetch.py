"""fetch.py against a server on 127.0.0.1 that misbehaves on demand, and against archives that are not what
they claim. pytest tests/test_fetch.py"""

import gzip
import hashlib
import http.server
import io
import re
import signal
import subprocess
import sys
import tarfile
import textwrap
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import fetch

QUICK = {"timeout": 0.3, "retries": 2}


class Server:
    """Serves `body`. Attributes switch its faults on; `ranges` lists the Range headers received, in order."""

    def __init__(self, body):
        self.body, self.ranges, self.over = body, [], threading.Event()
        self.drops = []  # close the next connections after these many bytes each
        self.stall = None  # fall silent after so many bytes, on every connection
        self.ignore_range, self.status, self.kind = False, 200, "application/x-gzip"
        server = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                server.answer(self)

            def log_message(self, *args):
                pass

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.http.server_port}/top.tar.gz"
        threading.Thread(target=self.http.serve_forever, args=(0.05,), daemon=True).start()

    def answer(self, handler):
        asked = handler.headers.get("Range")
        self.ranges.append(asked)
        start = int(re.fullmatch(r"bytes=(\d+)-", asked)[1]) if asked and not self.ignore_range else 0
        if self.status != 200 or start and start >= len(self.body):
            return handler.send_error(self.status if self.status != 200 else 416)
        body = self.body[start:]
        handler.send_response(206 if start else 200)
        handler.send_header("Content-Length", str(len(body)))
        handler.send_header("Content-Type", self.kind)
        handler.end_headers()
        handler.wfile.write(body[: self.drops.pop(0) if self.drops else self.stall])
        if self.stall is not None:
            self.over.wait(30)
        handler.close_connection = True


@pytest.fixture
def serve():
    servers = []

    def start(body):
        servers.append(Server(body))
        return servers[-1]

    yield start
    for server in servers:
        server.over.set()
        server.http.shutdown()
        server.http.server_close()


def noise(n, seed=0):
    return np.random.default_rng(seed).bytes(n)


def md5(body):
    return hashlib.md5(body).hexdigest()


def refused(action, *words):
    """The message of the DataError that `action` raises: one sentence on one line, with all of `words`."""
    with pytest.raises(fetch.DataError) as caught:
        action()
    message = str(caught.value)
    assert "\n" not in message and all(str(word) in message for word in words), message
    return message


def files(folder):
    return {str(f.relative_to(folder)): f.read_bytes() for f in sorted(folder.rglob("*")) if f.is_file()}


# ------------------------------------------------------------------------------------------ download


@pytest.mark.parametrize("ignore_range", [False, True])
def test_download_continues_where_a_connection_or_a_run_ended(ignore_range, serve, tmp_path):
    server, where = serve(noise(300_000)), tmp_path / "a.gz"
    server.drops = [100_000] * 9
    refused(
        lambda: fetch.download(server.url, where, 300_000, retries=0), "closed early", where, "300kB", "hand"
    )
    assert not where.exists() and (tmp_path / "a.gz.part").stat().st_size == 100_000
    server.ignore_range, server.drops, server.ranges = ignore_range, [50_000], []
    fetch.download(server.url, where, 300_000, md5(server.body), **QUICK)
    assert where.read_bytes() == server.body and [f.name for f in tmp_path.iterdir()] == ["a.gz"]
    assert server.ranges == ["bytes=100000-", f"bytes={50_000 if ignore_range else 150_000}-"]


@pytest.mark.parametrize("n", [5_000, 90_000, 100_000])
def test_a_part_of_something_else_is_dropped(n, serve, tmp_path):
    """Shorter than the file, as long, and longer."""
    server = serve(noise(90_000))
    (tmp_path / "a.gz.part").write_bytes(noise(n, seed=1))
    fetch.download(server.url, tmp_path / "a.gz", None, md5(server.body), **QUICK)
    assert (tmp_path / "a.gz").read_bytes() == server.body and server.ranges == [f"bytes={n}-", None]


@pytest.mark.parametrize(
    "fault, tries, words",
    [
        (dict(status=404), 1, ["404", "by hand"]),
        (dict(status=503), 3, ["503"]),
        (dict(kind="text/html; charset=utf-8"), 1, ["web page"]),
        (dict(body=noise(40_000)), 1, ["40,000 bytes instead of 50,000"]),
        (dict(body=noise(50_000, seed=1)), 1, [md5(noise(50_000, seed=1)), md5(noise(50_000))]),
        (dict(drops=[1_000] * 9), 3, ["closed early"]),  # a little further every time
        (dict(stall=1_000), 3, ["timed out"]),
    ],
    ids=lambda fault: next(iter(fault)) if isinstance(fault, dict) else "",
)
def test_what_a_server_does_wrong(fault, tries, words, serve, tmp_path, monkeypatch):
    monkeypatch.setattr(fetch.time, "sleep", lambda seconds: None)
    server, where = serve(noise(50_000)), tmp_path / "a.gz"
    vars(server).update(fault)
    start = time.monotonic()
    refused(
        lambda: fetch.download(server.url, where, 50_000, md5(noise(50_000)), **QUICK),
        server.url,
        where,
        *words,
    )
    assert len(server.ranges) == tries and not where.exists() and time.monotonic() - start < 5
    if "body" in fault:  # a next run would build on wrong bytes
        assert not list(tmp_path.iterdir())


def test_a_long_download_may_fail_more_often_if_it_gets_on(serve, tmp_path, monkeypatch):
    monkeypatch.setattr(fetch.time, "sleep", lambda seconds: None)
    server = serve(noise(6 << 20))
    server.drops = [1 << 20] * 5
    fetch.download(server.url, tmp_path / "a.gz", timeout=5, retries=1)
    assert (tmp_path / "a.gz").read_bytes() == server.body and len(server.ranges) == 6


def test_nobody_answers_and_no_url(tmp_path):
    where = tmp_path / "a.gz"
    refused(
        lambda: fetch.download("http://127.0.0.1:9/a.gz", where, 10, timeout=0.1, retries=1), "refused", where
    )
    refused(lambda: fetch.download("no url", where, 10), "no url", where)


# ------------------------------------------------------------------------------------------ unpacking


def archive(members):
    """A gzipped tar of {name: bytes, or TarInfo to add as it is}, in order."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for name, content in members.items():
            info = content if isinstance(content, tarfile.TarInfo) else tarfile.TarInfo(name)
            info.size = 0 if info is content else len(content)
            tar.addfile(info, None if info is content else io.BytesIO(content))
    return out.getvalue()


def special(name, kind, link=""):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info


GOOD = {"top": special("top", tarfile.DIRTYPE), "top/a/1.txt": b"one", "top/b/2.txt": b"two"}


def unpack(tmp_path, body, wanted=r"top/(\w+/\d\.txt)"):
    (tmp_path / "a.tar.gz").write_bytes(body)
    fetch.extract(tmp_path / "a.tar.gz", tmp_path / "top", wanted, 2)


def test_extract_takes_what_is_wanted_and_nothing_else(tmp_path):
    more = {"top/unsup/1.html": b"no", "other/a/1.txt": b"no", "top.txt": b"no", "top/a/1.txt/b": b"no"}
    (tmp_path / "top.part").mkdir()
    (tmp_path / "top.part" / "rest").write_bytes(b"of a killed run")
    unpack(tmp_path, archive(GOOD | more))
    assert files(tmp_path / "top") == {"a/1.txt": b"one", "b/2.txt": b"two"}
    unpack(other := tmp_path / "top", archive(GOOD), r"(?:.*/)?(\d\.txt)")  # wherever they are nested
    assert files(other / "top") == {"1.txt": b"one", "2.txt": b"two"}


def test_bad_archives_leave_nothing(tmp_path):
    body = archive({f"top/a/{i}.txt": noise(3_000, i) for i in range(2)})
    flipped = bytearray(gzip.compress(gzip.decompress(body) + bytes(3 << 20)))
    flipped[-6] ^= 1  # in gzip's checksum, far behind the tar's end
    bad = [{"top/../../escaped.txt": b"x"}, {"/tmp/escaped.txt": b"x"}, {"top\\..\\..\\escaped.txt": b"x"}]
    bad += [{"c": special("top/c", tarfile.SYMTYPE, "../.."), "top/c/4.txt": b"x"}]
    bad += [{"top/b/2.txt": special("top/b/2.txt", tarfile.SYMTYPE, "../a/1.txt")}]
    bad = [archive(GOOD | members) for members in bad]
    bad += [archive({"top/a/1.txt": b"one"}), archive(GOOD | {"top/c/3.txt": b"one too many"})]
    bad += [body[:cut] for cut in (0, 1, 5_000, len(body) - 5)] + [bytes(flipped), noise(5_000)]
    (tmp_path / "in").mkdir()
    for content in bad:
        refused(
            lambda content=content: unpack(tmp_path / "in", content), "a.tar.gz is damaged", "fetch it again"
        )
        assert {f.name for f in tmp_path.rglob("*")} == {"in", "a.tar.gz"}
    assert not Path("/tmp/escaped.txt").exists()


# ------------------------------------------------------------------------------------------ both


def spec(server):
    """How test archives are fetched: size and md5 are known, two files are wanted."""
    known = (len(server.body), md5(server.body))
    return fetch.Archive("http://127.0.0.1:9/top.tar.gz", *known, "top", r"top/(\w/\d\.txt)", 2)


def test_an_archive_is_fetched_once_and_deleted_but_never_one_put_there_by_hand(serve, tmp_path):
    server, path = serve(archive(GOOD)), tmp_path / "top.tar.gz"
    for _ in range(2):
        fetch.fetch_archive(tmp_path, spec(server), url=server.url)  # a mirror
    assert len(files(tmp_path / "top")) == 2 and server.ranges == [None] and not path.exists()
    other = tmp_path / "other"
    other.mkdir()
    (other / path.name).write_bytes(server.body)
    fetch.fetch_archive(other, spec(server))
    assert len(files(other / "top")) == 2 and (other / path.name).exists() and server.ranges == [None]
    (other / path.name).write_bytes(server.body[:-1] + b"?")
    (other / "top").rename(other / "aside")
    refused(lambda: fetch.fetch_archive(other, spec(server)), "is not the file of", "md5", "delete it")
    assert (other / path.name).exists() and not (other / "top").exists()


def run(code, *args):
    """A Python process with this repository on its path."""
    code = "import sys; sys.path.insert(0, sys.argv[1]); import fetch\n" + textwrap.dedent(code)
    command = [sys.executable, "-c", code, str(Path(fetch.__file__).parent), *map(str, args)]
    return subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def test_full_disk_is_a_sentence_and_the_download_goes_on_later(serve, tmp_path):
    """No file of that process may grow beyond 100,000 bytes."""
    server = serve(archive(GOOD | {"top/rest": noise(300_000)}))
    code = """
    import resource
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
    try:
        fetch.fetch_archive(sys.argv[2], fetch.Archive(sys.argv[3], None, None, "top", ".*", 2))
    except fetch.DataError as error:
        sys.exit(str(error))
    """
    process = run(code, tmp_path, server.url)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 1 and "cannot write" in error and "free space" in error
    fetch.fetch_archive(tmp_path, spec(server), url=server.url)
    assert len(files(tmp_path / "top")) == 2 and server.ranges == [None, "bytes=100000-"]


def test_of_two_processes_one_fetches_and_a_killed_one_leaves_nothing_whole(serve, tmp_path):
    server = serve(archive(GOOD | {"top/rest": noise(300_000)}))
    server.stall = 200_000
    code = """
    archive = fetch.Archive(sys.argv[3], None, None, "top", r"top/(\\w/\\d\\.txt)", 2)
    fetch.fetch_archive(sys.argv[2], archive)
    """
    killed, waiting = run(code, tmp_path, server.url), None
    part = tmp_path / "top.tar.gz.part"
    try:
        while not part.exists() or not part.stat().st_size:
            assert killed.poll() is None
            time.sleep(0.02)
        waiting = run(code, tmp_path, server.url)
        assert "waiting for another process" in waiting.stdout.readline()
        time.sleep(0.5)
        assert len(server.ranges) == 1 and not (tmp_path / "top").exists()
        server.stall = None
        killed.send_signal(signal.SIGKILL)
        _, error = waiting.communicate(timeout=60)
        assert waiting.returncode == 0, error
    finally:
        for process in (killed, waiting):
            if process and process.poll() is None:
                process.kill()
    assert len(files(tmp_path / "top")) == 2 and len(server.ranges) == 2
    assert {f.name for f in tmp_path.iterdir()} == {"top", ".top.lock"}
