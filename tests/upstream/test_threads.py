"""Issues and pull requests as they are now, by REST and by GraphQL, from one store."""

from __future__ import annotations

import msgspec
import pytest
from upstream.conftest import Client
from upstream.github_server import Fault, GitHubServer

from graftwork.catalog.patches import Upstream
from graftwork.catalog.seen import Seen
from graftwork.errors import UnreachableError
from graftwork.upstream.github import GitHub
from graftwork.upstream.threads import changed_files, look

HOSTILE = "a\r\n| <script>alert(1)</script> [x](javascript:1) \x1b[31m\u202eevil\u0000 @team `" + "z" * 999


def row(ref: str, kind: str = "pull", relation: str = "own") -> Upstream:
    return msgspec.convert({"ref": ref, "kind": kind, "relation": relation}, Upstream)


@pytest.fixture(params=["", "token"], ids=["rest", "graphql"])
def github(request: pytest.FixtureRequest, client: Client) -> GitHub:
    return client(token=request.param)


def see(github: GitHub, *rows: Upstream) -> list[Seen]:
    return list(look(github, rows))


def test_a_merged_pull_request(server: GitHubServer, github: GitHub) -> None:
    server.add(
        "o/r#7",
        state="merged",
        merged_at="2026-08-18T23:59:59Z",
        merge_commit="abc",
        files=[{"filename": "b.py"}, {"filename": "a.py"}, {"filename": "c.py"}],
    )
    (seen,) = see(github, row("o/r#7"))
    assert (seen.kind, seen.state, seen.merged, seen.merge_commit) == ("pull", "merged", "2026-08-18", "abc")
    assert (seen.base, seen.opened, seen.updated, seen.as_of) == ("main", "2026-09-01", "2026-09-02", "2026-10-01")
    assert seen.files == ["a.py", "b.py", "c.py"] and seen.method == "GitHub API" and not seen.moved_to


def test_a_closed_pull_request_has_no_merge_commit(server: GitHubServer, github: GitHub) -> None:
    server.add("o/r#7", state="closed", closed_at="2026-08-18T00:00:00Z")
    (seen,) = see(github, row("o/r#7"))
    assert (seen.state, seen.closed, seen.merge_commit, seen.merged) == ("closed", "2026-08-18", "", None)


def test_an_issue_with_its_reason(server: GitHubServer, github: GitHub) -> None:
    server.add("o/r#8", pull=False, state="closed", reason="not_planned")
    (seen,) = see(github, row("o/r#8", "issue"))
    assert (seen.kind, seen.state, seen.reason) == ("issue", "closed", "not planned")


@pytest.mark.parametrize("said", ["pull", "issue"])
def test_the_kind_is_what_the_server_says(server: GitHubServer, github: GitHub, said: str) -> None:
    server.add("o/r#7", state="merged", merged_at="2026-08-18T00:00:00Z", merge_commit="abc")
    server.add("o/r#8", pull=False)
    found = see(github, row("o/r#7", said), row("o/r#8", said))
    assert [(seen.kind, seen.state) for seen in found] == [("pull", "merged"), ("issue", "open")]


def test_a_renamed_repository_is_followed(server: GitHubServer, github: GitHub) -> None:
    server.add("new/name#7", files=[{"filename": "a.py"}])
    server.renamed["old/name"] = "new/name"
    (seen,) = see(github, row("old/name#7"))
    assert (seen.ref, seen.moved_to, seen.state) == ("old/name#7", "new/name#7", "open")
    assert seen.files == ["a.py"]


def test_letter_case_is_no_move(server: GitHubServer, github: GitHub) -> None:
    server.add("Org/Name#7")
    server.repositories["org/name"] = server.repositories["Org/Name"]
    server.renamed["org/name"] = "Org/Name"
    (seen,) = see(github, row("org/name#7"))
    assert seen.moved_to == ""


def test_a_transferred_issue_is_followed(server: GitHubServer, github: GitHub) -> None:
    server.add("o/r#1")
    server.add("o/other#3", pull=False)
    server.moved["/repos/o/r/issues/8"] = f"{server.root}/repos/o/other/issues/3"
    (seen,) = see(github, row("o/r#8", "issue"))
    assert (seen.moved_to, seen.kind, seen.state) == ("o/other#3", "issue", "open")


@pytest.mark.parametrize("status", [404, 410, 451])
def test_what_is_gone_is_missing_with_the_reason(server: GitHubServer, github: GitHub, status: int) -> None:
    server.add("o/r#1")
    server.gone["/repos/o/r/issues/8"] = status
    seen = see(github, row("o/r#8", "issue"), row("o/r#1"))
    assert seen[0].state == "missing" and seen[0].reason.startswith(str(status))
    assert seen[1].state == "open"


def test_a_hostile_title_is_one_short_printable_line(server: GitHubServer, github: GitHub) -> None:
    server.add("o/r#7", title=HOSTILE)
    (seen,) = see(github, row("o/r#7"))
    assert seen.title.isprintable() and len(seen.title) <= 301
    assert "<script>" in seen.title  # it is escaped where it is shown, not here


def test_a_state_that_we_do_not_know_is_an_error(server: GitHubServer, github: GitHub) -> None:
    server.add("o/r#7", state="draft")
    with pytest.raises(UnreachableError, match=r"(?i)a state that we do not know: draft"):
        see(github, row("o/r#7"))


@pytest.mark.parametrize(
    ("token", "body"),
    [
        ("", '{"state": "open", "base": 1}'),
        ("", '{"state": ["open"]}'),
        ("t", '{"data": {"repository": {"r7": {"__typename": "PullRequest", "mergeCommit": 7}}}}'),
        ("t", '{"data": {"repository": {"r7": {}}}}'),
    ],
)
def test_an_answer_of_another_shape_is_an_error(server: GitHubServer, client: Client, token: str, body: str) -> None:
    server.faults = [Fault(200, {}, body)]
    with pytest.raises(UnreachableError, match=r"another shape than documented|a state that we do not know"):
        see(client(token=token), row("o/r#7", relation="background"))


def test_one_query_for_a_repository(server: GitHubServer, client: Client) -> None:
    for number in (1, 2, 3):
        server.add(f"o/r#{number}")
    server.add("o/s#1")
    rows = [row("o/r#1"), row("o/s#1"), row("o/r#3"), row("o/r#2", "issue")]
    found = see(client(token="t"), *rows)
    assert {seen.ref for seen in found} == {"o/r#1", "o/r#2", "o/r#3", "o/s#1"}
    assert server.paths() == ["/graphql", "/graphql"]


def test_a_query_that_fails_is_an_error(server: GitHubServer, client: Client) -> None:
    server.faults = [Fault(200, {}, '{"data": null, "errors": [{"type": "FORBIDDEN", "message": "SSO\\u001b"}]}')]
    with pytest.raises(UnreachableError, match=r"the query was not answered: SSO$"):
        see(client(token="t"), row("o/r#1"))


def test_files_are_read_only_where_they_matter(server: GitHubServer, client: Client) -> None:
    server.add("o/r#7", files=[{"filename": "a.py"}])
    (seen,) = see(client(), row("o/r#7", relation="background"))
    assert seen.files == [] and server.paths() == ["/repos/o/r/pulls/7"]


def test_files_at_a_stamp_are_asked_for_once(server: GitHubServer, client: Client) -> None:
    server.add("o/r#7", files=[{"filename": f"{n}.py", "patch": "@@"} for n in range(5)])
    first = changed_files(client(), "o/r#7", "abc")
    asked = len(server.log)
    assert changed_files(client(), "o/r#7", "abc") == first and len(first) == 5 and len(server.log) == asked
    changed_files(client(), "o/r#7", "def")
    assert len(server.log) == 2 * asked


def test_what_was_read_before_a_limit_is_given(server: GitHubServer, client: Client) -> None:
    for number in (1, 2, 3):
        server.add(f"o/r#{number}")
    server.limit = 2
    found = []
    with pytest.raises(UnreachableError):
        for seen in look(client(), [row(f"o/r#{n}", relation="background") for n in (1, 2, 3)]):
            found.append(seen.ref)
    assert found == ["o/r#1", "o/r#2"]
