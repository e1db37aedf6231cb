"""A GitHub API of this process: REST and GraphQL in the documented shapes, from one store, with faults on order.

Shapes: GitHub's REST documentation (pulls, issues, pull request files; API version 2022-11-28) and its GraphQL schema.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qs, urlsplit

from serving import Serving


@dataclass
class Fault:
    """One answer instead of the real one; ``cut`` ends the connection after that many bytes of the body."""

    status: int = 500
    headers: dict[str, str] = field(default_factory=dict)
    body: str = '{"message": "no"}'
    cut: int | None = None


@dataclass
class Asked:
    """One request as it came."""

    method: str
    path: str
    headers: dict[str, str]
    body: str
    status: int = 0


@dataclass
class Thread:
    """An issue or pull request of the store; ``moved`` is where a request for it is redirected to."""

    number: int
    pull: bool = True
    state: str = "open"
    title: str = "a title"
    merged_at: str | None = None
    closed_at: str | None = None
    merge_commit: str | None = None
    reason: str | None = None
    base: str = "main"
    head: str = "head"
    updated_at: str = "2026-09-02T10:00:00Z"
    created_at: str = "2026-09-01T10:00:00Z"
    files: list[dict[str, Any]] = field(default_factory=list)


class GitHubServer:
    """``repositories``: name -> threads; ``gone``: path -> status; ``moved``: path -> path; ``faults`` are used up."""

    def __init__(self) -> None:
        self.repositories: dict[str, dict[int, Thread]] = {}
        self.renamed: dict[str, str] = {}
        self.moved: dict[str, str] = {}
        self.gone: dict[str, int] = {}
        self.faults: list[Fault] = []
        self.faults_at: dict[str, list[Fault]] = {}
        self.log: list[Asked] = []
        self.per_page = 2
        self.limit: int | None = None
        self.reset = 4_000_000_000
        self._server = Serving(self.answer, "HTTP/1.1")
        self.root, self.close = self._server.origin, self._server.close

    def add(self, ref: str, **facts: Any) -> Thread:
        """Put a thread into the store."""
        repository, _, number = ref.partition("#")
        thread = Thread(int(number), **facts)
        self.repositories.setdefault(repository, {})[int(number)] = thread
        return thread

    def paths(self) -> list[str]:
        """What was asked for, in order."""
        return [asked.path for asked in self.log]

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        body = handler.rfile.read(int(handler.headers.get("Content-Length", 0))).decode()
        asked = Asked(handler.command, handler.path, dict(handler.headers.items()), body)
        self.log.append(asked)
        path = urlsplit(handler.path).path
        special = self.faults_at.get(path) or self.faults
        if special:
            fault = special.pop(0)
            self._send(handler, asked, fault.status, fault.body.encode(), fault.headers, fault.cut)
            return
        if self.limit is not None:
            if self.limit == 0:
                headers = {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": str(self.reset)}
                self._send(handler, asked, 403, b'{"message": "API rate limit exceeded"}', headers)
                return
            self.limit -= 1
        status, value, headers = self._find(handler, path, body)
        data = json.dumps(value).encode()
        if status == 200 and handler.command == "GET":
            etag = f'W/"{hashlib.sha256(data).hexdigest()[:16]}"'
            headers = {**headers, "ETag": etag}
            if handler.headers.get("If-None-Match") == etag:
                self._send(handler, asked, 304, b"", headers)
                return
        self._send(handler, asked, status, data, headers)

    def _send(
        self,
        handler: BaseHTTPRequestHandler,
        asked: Asked,
        status: int,
        data: bytes,
        headers: dict[str, str],
        cut: int | None = None,
    ) -> None:
        asked.status = status
        handler.send_response(status)
        for name, value in headers.items():
            handler.send_header(name, value)
        if status != 304:
            handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        handler.wfile.write(data if cut is None else data[:cut])
        handler.close_connection = cut is not None

    def _find(self, handler: BaseHTTPRequestHandler, path: str, body: str) -> tuple[int, Any, dict[str, str]]:
        if path in self.gone:
            return self.gone[path], {"message": "gone"}, {}
        if path in self.moved:
            return 301, {"message": "Moved Permanently"}, {"Location": self.moved[path]}
        if path == "/graphql":
            return 200, self._query(json.loads(body)), {}
        found = re.fullmatch(r"/repos/([^/]+/[^/]+)/(pulls|issues)(?:/(\d+)(/files)?)?", path)
        if not found:
            return 404, {"message": "Not Found"}, {}
        name, kind, number, files = found.groups()
        if name in self.renamed:
            return (
                301,
                {"message": "Moved Permanently"},
                {"Location": self.root + path.replace(name, self.renamed[name])},
            )
        threads = self.repositories.get(name)
        if threads is None or (number and int(number) not in threads):
            return 404, {"message": "Not Found"}, {}
        if not number:
            rows = [rest(name, one, "pulls") for one in _latest(threads) if one.pull and one.state == "open"]
            return self._page(handler, rows)
        thread = threads[int(number)]
        if kind == "pulls" and not thread.pull:
            return 404, {"message": "Not Found"}, {}
        return self._page(handler, thread.files) if files else (200, rest(name, thread, kind), {})

    def _page(self, handler: BaseHTTPRequestHandler, rows: list[Any]) -> tuple[int, Any, dict[str, str]]:
        parts = urlsplit(handler.path)
        query = parse_qs(parts.query)
        page = int(query.get("page", ["1"])[0])
        first = (page - 1) * self.per_page
        if first + self.per_page >= len(rows):
            return 200, rows[first:], {}
        rest_of_query = re.sub(r"&?page=\d+$", "", parts.query)
        following = f"{self.root}{parts.path}?{rest_of_query}&page={page + 1}"
        return (
            200,
            rows[first : first + self.per_page],
            {"Link": f'<{following}>; rel="next", <{following}>; rel="last"'},
        )

    def _query(self, asked: dict[str, Any]) -> dict[str, Any]:
        name = f"{asked['variables']['owner']}/{asked['variables']['name']}"
        name = self.renamed.get(name, name)
        threads = self.repositories.get(name)
        if threads is None:
            return {"data": {"repository": None}, "errors": [{"type": "NOT_FOUND", "path": ["repository"]}]}
        if "pullRequests" in asked["query"]:
            rows = [one for one in _latest(threads) if one.pull and one.state == "open"]
            first = int(asked["variables"]["after"] or 0)
            page = {
                "totalCount": len(rows),
                "pageInfo": {
                    "hasNextPage": first + self.per_page < len(rows),
                    "endCursor": str(first + self.per_page),
                },
                "nodes": [node(name, one) for one in rows[first : first + self.per_page]],
            }
            return {"data": {"repository": {"pullRequests": page}}}
        found: dict[str, Any] = {}
        errors = []
        for alias, number in re.findall(r"(\w+): issueOrPullRequest\(number: (\d+)\)", asked["query"]):
            thread = threads.get(int(number))
            found[alias] = node(name, thread) if thread else None
            if thread is None:
                errors.append({"type": "NOT_FOUND", "path": ["repository", alias], "message": "Could not resolve"})
        return {"data": {"repository": found}, **({"errors": errors} if errors else {})}


def rest(name: str, thread: Thread, kind: str) -> dict[str, Any]:
    """A thread as REST shows it at ``pulls`` or ``issues``."""
    page = f"https://github.com/{name}/{'pull' if thread.pull else 'issues'}/{thread.number}"
    found: dict[str, Any] = {
        "number": thread.number,
        "state": "closed" if thread.state == "merged" else thread.state,
        "title": thread.title,
        "html_url": page,
        "created_at": thread.created_at,
        "updated_at": thread.updated_at,
        "closed_at": thread.closed_at or thread.merged_at,
    }
    if kind == "issues":
        extra = {"pull_request": {"merged_at": thread.merged_at}} if thread.pull else {}
        return {**found, "state_reason": thread.reason, **extra}
    commit = thread.merge_commit or "f" * 40  # of an open one: GitHub's own test merge
    return {
        **found,
        "merged": thread.state == "merged",
        "merged_at": thread.merged_at,
        "merge_commit_sha": commit,
        "base": {"ref": thread.base},
        "head": {"sha": thread.head},
    }


def node(name: str, thread: Thread) -> dict[str, Any]:
    """A thread as GraphQL shows it."""
    found: dict[str, Any] = {
        "__typename": "PullRequest" if thread.pull else "Issue",
        "number": thread.number,
        "title": thread.title,
        "state": thread.state.upper(),
        "url": f"https://github.com/{name}/{'pull' if thread.pull else 'issues'}/{thread.number}",
        "createdAt": thread.created_at,
        "updatedAt": thread.updated_at,
        "closedAt": thread.closed_at or thread.merged_at,
    }
    if not thread.pull:
        return {**found, "stateReason": (thread.reason or "").upper() or None}
    return {
        **found,
        "mergedAt": thread.merged_at,
        "baseRefName": thread.base,
        "headRefOid": thread.head,
        "mergeCommit": {"oid": thread.merge_commit} if thread.merge_commit else None,
        "files": {"totalCount": len(thread.files), "nodes": [{"path": f["filename"]} for f in thread.files[:100]]},
    }


def _latest(threads: dict[int, Thread]) -> list[Thread]:
    return sorted(threads.values(), key=lambda one: (one.updated_at, one.number), reverse=True)
