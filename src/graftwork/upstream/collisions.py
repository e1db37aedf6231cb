"""Open pull requests that change lines near our anchors: found by the files they touch, never by title."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from graftwork.catalog.seen import Collision, Scan
from graftwork.errors import UnreachableError
from graftwork.names import RelPath
from graftwork.oci.errors import printable
from graftwork.trees.tree import Tree
from graftwork.upstream.changes import Change, from_api, lines_of, occurrences, package_path, telling
from graftwork.upstream.github import GitHub
from graftwork.upstream.limits import RateLimitError
from graftwork.upstream.places import Place
from graftwork.upstream.threads import changed_files

_NEAR = 5  # lines between an anchor and a change that make it a threat
_FAR = 40  # the same where their file has moved on, and only line numbers are left to compare
_QUERY = """query($owner: String!, $name: String!, $after: String) { repository(owner: $owner, name: $name) {
  pullRequests(states: OPEN, first: 50, after: $after, orderBy: {field: UPDATED_AT, direction: DESC}) {
    totalCount pageInfo { hasNextPage endCursor }
    nodes { number title updatedAt baseRefName headRefOid files(first: 100) { totalCount nodes { path } } } } } }"""


@dataclass(frozen=True)
class Pull:
    """An open pull request; ``paths`` are its files where one listing gave them all, else None.

    ``stamp`` changes whenever its files may: the commit at its head. ``listed`` is the day of the listing.
    """

    ref: str
    title: str
    updated: str | None
    base: str
    stamp: str
    paths: tuple[str, ...] | None
    listed: str


@dataclass(frozen=True)
class Found:
    """What a scan found, by patch id, which pull requests it looked at, and how far it came."""

    collisions: dict[str, list[Collision]]
    looked_at: frozenset[str]
    scan: Scan


def scan(
    github: GitHub, repository: str, engine: str, anchors: Mapping[str, Sequence[Place]], tree: Tree, version: str
) -> Found:
    """Look through every open pull request of *repository*. A rate limit ends it early; the scan says how far it came.

    *anchors*: patch id -> places in *tree*, which is *version*.
    """
    files = {place.file for rows in anchors.values() for place in rows}
    found: dict[str, list[Collision]] = {patch: [] for patch in anchors}
    looked: set[str] = set()
    count, short, day = 0, "", github.clock().date().isoformat()
    try:
        for pull, total in _open(github, repository):
            paths, count, day = pull.paths, total, min(day, pull.listed)
            touched = None if paths is None else {package_path(path, engine) for path in paths} & files
            if touched is None or touched:
                changes, opaque = from_api(changed_files(github, pull.ref, pull.stamp), engine)
                for patch, rows in anchors.items():
                    found[patch] += threats(pull, changes, opaque, rows, tree)
            looked.add(pull.ref)
    except RateLimitError as error:
        if not looked:
            raise
        short = f"; ended by the rate limit ({error.seconds:.0f} s)"
    method = f"{github.method}, open pull requests by path{short}"
    said = Scan(
        repository=repository,
        as_of=day,
        method=method,
        version=version,
        open=max(count, len(looked)),
        looked_at=len(looked),
    )
    return Found(found, frozenset(looked), said)


def threats(
    pull: Pull, changes: Sequence[Change], opaque: Iterable[str], anchors: Sequence[Place], tree: Tree
) -> Iterator[Collision]:
    """One collision for each anchor that *pull* threatens; by its nearest change."""
    texts = {place.file: lines_of(tree.read(RelPath(place.file))) for place in anchors if _there(tree, place.file)}
    for place in anchors:
        near = []
        for change in changes:
            if change.file == place.file:
                span = _near(change, place, texts.get(place.file, []))
                near += [span] if span else []
        if place.file in opaque:
            near.append((place.first, place.last))
        if near:
            theirs = min(near, key=lambda span: _gap(span, (place.first, place.last)))
            yield Collision(
                ref=pull.ref,
                title=pull.title,
                anchor=place.name,
                file=place.file,
                ours=(place.first, place.last),
                theirs=theirs,
                base=pull.base,
                updated=pull.updated,
            )


def _near(change: Change, place: Place, text: Sequence[str]) -> tuple[int, int] | None:
    """The lines of *change* in our tree if they are near *place*.

    Where the place is found in our text, its lines there count. Else the branch has moved on: a changed or
    neighbouring line that is the anchor's own and no other's, or line numbers and the function that git names, decide.
    """
    if not place.text:
        return change.lines
    at = occurrences(change.old, text)
    if len(at) == 1 and telling(change.old):
        first = at[0] + 1 + len(change.before)
        span = (first, first + len(change.removed) - 1) if change.removed else (max(first - 1, 1), first)
        return span if _gap(span, (place.first, place.last)) <= _NEAR else None
    once = Counter(line.strip() for line in text)
    own = {line.strip() for line in place.text if once[line.strip()] == 1}
    if own & {line.strip() for line in change.old}:
        return change.lines
    named = place.scope.rpartition(".")[2]
    close = _gap(change.lines, (place.first, place.last))
    if close <= _NEAR or (close <= _FAR and named and f"{named}(" in change.section):
        return change.lines
    return None


def _gap(one: tuple[int, int], other: tuple[int, int]) -> int:
    """Lines between two spans; 0 where they touch."""
    return max(one[0] - other[1], other[0] - one[1], 0)


def _there(tree: Tree, path: str) -> bool:
    return tree.exists(RelPath(path))


def _open(github: GitHub, repository: str) -> Iterator[tuple[Pull, int]]:
    """The open pull requests, last changed first, and how many there are as far as that is known."""
    if github.token:
        yield from _open_by_query(github, repository)
        return
    count = 0
    for answer in github.pages(f"repos/{repository}/pulls?state=open&sort=updated&direction=desc&per_page=100"):
        if answer.status != 200:
            raise UnreachableError(f"{repository}: {answer.status}", hint="Its pull requests cannot be listed.")
        rows = github.rows(answer)
        count += len(rows)
        for row in rows:
            base, head = row.get("base") or {}, row.get("head") or {}
            facts = (row.get("updated_at"), base.get("ref"), head.get("sha"))
            yield _pull(repository, row, facts, None, answer.day), count


def _open_by_query(github: GitHub, repository: str) -> Iterator[tuple[Pull, int]]:
    owner, _, name = repository.partition("/")
    after: str | None = None
    while True:
        document, answer = github.graphql(_QUERY, {"owner": owner, "name": name, "after": after})
        try:
            page = document["data"]["repository"]["pullRequests"]
            for node in page["nodes"]:
                files = node["files"]
                paths = tuple(str(file["path"]) for file in files["nodes"])
                every = paths if len(paths) >= int(files["totalCount"]) else None
                facts = (node["updatedAt"], node["baseRefName"], node["headRefOid"])
                yield _pull(repository, node, facts, every, answer.day), int(page["totalCount"])
            if not page["pageInfo"]["hasNextPage"]:
                return
            after = str(page["pageInfo"]["endCursor"])
        except (KeyError, TypeError, ValueError):
            said = "; ".join(printable(str(item.get("message"))) for item in document.get("errors") or [])
            raise UnreachableError(
                f"{repository}: open pull requests were not listed: {said or 'the answer has another shape'}"
            ) from None


def _pull(
    repository: str,
    row: Mapping[str, Any],
    facts: tuple[Any, Any, Any],
    paths: tuple[str, ...] | None,
    listed: str,
) -> Pull:
    """*facts*: when it was updated, its base branch, the commit at its head."""
    updated, base, head = (printable(str(fact or "")) for fact in facts)
    number = row.get("number")
    if not isinstance(number, int):
        raise UnreachableError(f"{repository}: a pull request without a number was listed")
    title = printable(str(row.get("title") or ""))
    return Pull(f"{repository}#{number}", title, updated[:10] or None, base, head, paths, listed)
