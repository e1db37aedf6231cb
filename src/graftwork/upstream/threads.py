"""Issues and pull requests as they are now: one GraphQL query for a repository with a token, REST without."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from graftwork.catalog.patches import Upstream
from graftwork.catalog.seen import Seen
from graftwork.errors import UnreachableError
from graftwork.oci.errors import printable
from graftwork.upstream.answers import Answer
from graftwork.upstream.github import GitHub

_MISSING = {404: "404: not found, or not to be seen", 410: "410: deleted", 451: "451: withheld for legal reasons"}
_PLACE = re.compile(r"/([A-Za-z0-9-]+/[A-Za-z0-9_.-]+)/(?:pull|pulls|issues)/(\d+)$")
# What a change touches matters only where it may fix the defect or collide with the patch: each costs a request.
WITH_FILES = ("own", "same-fix", "superseding", "collision")
_FIELDS = """
  __typename
  ... on PullRequest { number title state url createdAt updatedAt closedAt mergedAt baseRefName
    mergeCommit { oid } files(first: 100) { nodes { path } } }
  ... on Issue { number title state url createdAt updatedAt closedAt stateReason }
"""


def url_of(ref: str, kind: str) -> str:
    """The page of a reference."""
    repository, _, number = ref.partition("#")
    return f"https://github.com/{repository}/{'pull' if kind == 'pull' else 'issues'}/{number}"


def look(github: GitHub, rows: Sequence[Upstream]) -> Iterator[Seen]:
    """Each of *rows*, as the server shows it now. The first that cannot be asked raises UnreachableError."""
    by_repository: dict[str, list[Upstream]] = {}
    for row in rows:
        by_repository.setdefault(row.ref.partition("#")[0], []).append(row)
    for repository, wanted in by_repository.items():
        try:
            if github.token:
                yield from _by_query(github, repository, wanted)
            else:
                yield from (_by_rest(github, row) for row in wanted)
        except (AttributeError, TypeError) as error:
            hint = "Compare the answer with docs/upstream.md: what is assumed of the API."
            raise UnreachableError(f"{repository}: an answer has another shape than documented", hint=hint) from error


def changed_files(github: GitHub, ref: str, stamp: str = "") -> list[dict[str, Any]]:
    """The files of a pull request with their diffs (REST, "List pull requests files": at most 3,000).

    Given a *stamp* that changes with them, such as the commit at its head, they are asked for once.
    """
    repository, _, number = ref.partition("#")
    path = f"repos/{repository}/pulls/{number}/files?per_page=100"
    key = f"{github.root}/{path} at {stamp}"
    if stamp and (kept := github.answers.get(key)):
        return github.rows(kept)
    rows: list[dict[str, Any]] = []
    for answer in github.pages(path):
        if answer.status != 200:
            raise UnreachableError(f"{ref}: {_MISSING[answer.status]}", hint="Its changes cannot be read any more.")
        rows += github.rows(answer)
        if stamp and not answer.next:
            github.answers.put(key, Answer(url=answer.url, status=200, body=json.dumps(rows), day=answer.day))
    return rows


def _by_query(github: GitHub, repository: str, wanted: Sequence[Upstream]) -> Iterator[Seen]:
    """All in one query; those it does not find (transferred, renamed, deleted) one by one, where redirects tell."""
    owner, _, name = repository.partition("/")
    parts = " ".join(f"r{n}: issueOrPullRequest(number: {n}) {{ {_FIELDS} }}" for n in sorted(map(_number, wanted)))
    query = f"query($owner: String!, $name: String!) {{ repository(owner: $owner, name: $name) {{ {parts} }} }}"
    document, answer = github.graphql(query, {"owner": owner, "name": name})
    errors = [item for item in document.get("errors") or [] if isinstance(item, dict)]
    other = [item for item in errors if item.get("type") != "NOT_FOUND"]
    if other:
        said = "; ".join(printable(str(item.get("message"))) for item in other)
        raise UnreachableError(f"{repository}: the query was not answered: {said}", hint="Check GITHUB_TOKEN's rights.")
    data = document.get("data")
    found = (data.get("repository") if isinstance(data, dict) else None) or {}
    for row in wanted:
        node = found.get(f"r{_number(row)}") if isinstance(found, dict) else None
        yield _from_node(github, row, node, answer) if isinstance(node, dict) else _by_rest(github, row)


def _from_node(github: GitHub, row: Upstream, node: dict[str, Any], answer: Answer) -> Seen:
    pull = node.get("__typename") == "PullRequest"
    files = ((node.get("files") or {}).get("nodes") or []) if pull else []
    return Seen(
        ref=row.ref,
        kind="pull" if pull else "issue",
        state=_state(node.get("state"), node.get("mergedAt")),
        as_of=answer.day,
        method=github.method,
        title=_text(node.get("title")),
        reason=_text(node.get("stateReason")).lower().replace("_", " "),
        opened=_day(node.get("createdAt")),
        updated=_day(node.get("updatedAt")),
        closed=_day(node.get("closedAt")),
        merged=_day(node.get("mergedAt")),
        merge_commit=_text((node.get("mergeCommit") or {}).get("oid")),
        base=_text(node.get("baseRefName")),
        moved_to=_moved(row.ref, node.get("url")),
        files=sorted(_text(file.get("path")) for file in files) if row.relation in WITH_FILES else [],
    )


def _by_rest(github: GitHub, row: Upstream) -> Seen:
    """By the kind that patch.toml says first: an issue's answer says if it is a pull request after all."""
    repository, number = row.ref.partition("#")[0], _number(row)
    answer = github.get(f"repos/{repository}/{'pulls' if row.kind == 'pull' else 'issues'}/{number}")
    pull = row.kind == "pull"
    if pull and answer.status == 404:
        answer, pull = github.get(f"repos/{repository}/issues/{number}"), False
    if answer.status != 200:
        reason = _MISSING[answer.status]
        return Seen(ref=row.ref, kind=row.kind, state="missing", as_of=answer.day, method=github.method, reason=reason)
    found = github.document(answer)
    if not pull and isinstance(found.get("pull_request"), dict):
        at = _moved("", found.get("html_url")) or row.ref
        pulled = github.get(f"repos/{at.replace('#', '/pulls/')}")
        if pulled.status == 200:
            found, pull = github.document(pulled), True
    moved = _moved(row.ref, found.get("html_url"))
    files: list[str] = []
    if pull and row.relation in WITH_FILES:
        files = sorted(_text(file.get("filename")) for file in changed_files(github, moved or row.ref))
    merged = _day(found.get("merged_at")) if pull else None
    return Seen(
        ref=row.ref,
        kind="pull" if pull else "issue",
        state=_state(found.get("state"), merged),
        as_of=answer.day,
        method=github.method,
        title=_text(found.get("title")),
        reason=_text(found.get("state_reason")).replace("_", " "),
        opened=_day(found.get("created_at")),
        updated=_day(found.get("updated_at")),
        closed=_day(found.get("closed_at")),
        merged=merged,
        merge_commit=_text(found.get("merge_commit_sha")) if merged else "",
        base=_text((found.get("base") or {}).get("ref")),
        moved_to=moved,
        files=files,
    )


def _state(said: Any, merged: Any) -> Any:
    """``merged`` by its date: REST says closed of a merged one, GraphQL MERGED."""
    state = "merged" if merged else str(said).lower()
    if state not in ("open", "closed", "merged"):
        raise UnreachableError(f"the server gives a state that we do not know: {printable(str(said))}")
    return state


def _moved(ref: str, url: Any) -> str:
    """The reference that *url* is of, if it is another than *ref*. GitHub takes no notice of case in names."""
    found = _PLACE.search(str(url or ""))
    now = f"{found[1]}#{found[2]}" if found else ""
    return now if now.lower() != ref.lower() else ""


def _text(value: Any) -> str:
    """Upstream's own words: on one line, printable, short. They are escaped again wherever they are shown."""
    return printable(str(value)) if value is not None else ""


def _day(value: Any) -> str | None:
    found = re.match(r"\d{4}-\d{2}-\d{2}", str(value or ""))
    return found[0] if found else None


def _number(row: Upstream) -> int:
    return int(row.ref.partition("#")[2])
