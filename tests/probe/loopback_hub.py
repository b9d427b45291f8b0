"""A hub on loopback: refs, trees and files with ranges, as the real client asks for them; it counts what it sends."""

import hashlib
import json
import re
import threading
from collections import Counter
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

REPOSITORY = "org/model"
LARGE_SUFFIXES = (".safetensors", ".bin", ".pt")  # files that the hub keeps in LFS, and serves from another host


class LoopbackHub:
    """Serves folders as revisions of one repository."""

    def __init__(self, repository: str, revisions: dict[str, Path], *, ranges: bool = True) -> None:
        self.repository = repository
        self.revisions = revisions
        self.commits = {hashlib.sha1(name.encode()).hexdigest(): name for name in revisions}
        self.ranges = ranges
        self.sent: Counter[str] = Counter()  # bytes of content sent, by revision and file
        self.requests: list[tuple[str, str, str]] = []  # method, path and authorization of every request
        self.failing: set[str] = set()  # revisions whose files are refused
        self.expired = 0  # how many requests to the storage are still refused as too late
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self.server.hub = self  # type: ignore[attr-defined]
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def folder(self, commit: str) -> Path:
        return self.revisions[self.commits[commit]]

    def refs(self) -> dict:
        branches = [
            {"name": name, "ref": f"refs/heads/{name}", "targetCommit": commit} for commit, name in self.commits.items()
        ]
        return {"branches": branches, "converts": [], "tags": []}

    def tree(self, commit: str) -> list[dict]:
        return [_entry(path) for path in sorted(self.folder(commit).iterdir())]

    @contextmanager
    def running(self):
        """Serve on a thread while the context lasts."""
        thread = threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self.server.shutdown()
            self.server.server_close()
            thread.join()


def _entry(path: Path) -> dict:
    content = path.read_bytes()
    entry = {"type": "file", "path": path.name, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
    if path.suffix in LARGE_SUFFIXES:
        sha = hashlib.sha256(content).hexdigest()
        entry["lfs"] = {"oid": sha, "size": len(content), "pointerSize": 134}
    return entry


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        hub = self.server.hub
        path = unquote(urlsplit(self.path).path)
        hub.requests.append((self.command, path, self.headers.get("Authorization", "")))
        if path == f"/api/models/{hub.repository}/refs":
            self.send_content(json.dumps(hub.refs()).encode())
        elif found := re.fullmatch(rf"/api/models/{hub.repository}/tree/([^/]+)", path):
            self.send_content(json.dumps(hub.tree(found[1])).encode())
        elif found := re.fullmatch(rf"/{hub.repository}/resolve/([^/]+)/(.+)", path):
            self.resolve(*found.groups())
        elif found := re.fullmatch(r"/storage/([^/]+)/(.+)", path):
            self.send_stored(*found.groups())
        else:
            self.send_status(404, {"X-Error-Code": "RepoNotFound"})

    def log_message(self, *_):
        pass

    def resolve(self, commit, name):
        """Send a small file; point to the storage for a large one."""
        hub = self.server.hub
        path = hub.folder(commit) / name
        if hub.commits[commit] in hub.failing:
            self.send_status(403, {})
        elif not path.exists():
            self.send_status(404, {"X-Error-Code": "EntryNotFound"})
        elif path.suffix in LARGE_SUFFIXES:
            entry = _entry(path)
            location = f"{hub.url.replace('127.0.0.1', 'localhost')}/storage/{commit}/{name}"
            linked = {"X-Linked-Etag": f'"{entry["lfs"]["oid"]}"', "X-Linked-Size": str(entry["size"])}
            self.send_status(302, {"Location": location, "X-Repo-Commit": commit, **linked})
        else:
            self.send_stored(commit, name)

    def send_stored(self, commit, name):
        hub = self.server.hub
        if hub.expired:
            hub.expired -= 1
            return self.send_status(403, {})
        content = (hub.folder(commit) / name).read_bytes()
        headers = {"ETag": f'"{hashlib.sha256(content).hexdigest()}"', "X-Repo-Commit": commit}
        status = 200
        if hub.ranges and (asked := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))):
            start, stop = int(asked[1]), int(asked[2] or len(content) - 1) + 1
            headers["Content-Range"] = f"bytes {start}-{stop - 1}/{len(content)}"
            content, status = content[start:stop], 206
        sent = self.send_content(content, status, headers)
        hub.sent[f"{hub.commits[commit]}/{name}"] += sent
        return None

    def send_content(self, content, status=200, headers=None):
        """Send a body, unless it is not asked for, and return how much was sent."""
        self.send_status(status, {**(headers or {}), "Content-Length": str(len(content))})
        if self.command == "HEAD":
            return 0
        with suppress(BrokenPipeError, ConnectionResetError):
            self.wfile.write(content)
        return len(content)

    def send_status(self, status, headers):
        self.send_response(status)
        for name, value in {"Content-Length": "0", **headers}.items():
            self.send_header(name, value)
        self.end_headers()
