"""The client against every answer that the API is documented to give, and some that it should not."""

from __future__ import annotations

import datetime
import json
import stat
from pathlib import Path

import pytest
from upstream.conftest import NOW, Client
from upstream.github_server import Fault, GitHubServer

from graftwork.errors import UnreachableError, UsageError
from graftwork.trees.cache import Cache
from graftwork.upstream.answers import Answers
from graftwork.upstream.github import API, GitHub
from graftwork.upstream.limits import RateLimitError, asked_to_wait

REPO = "o/r"
PULL = "repos/o/r/pulls/1"


@pytest.fixture(autouse=True)
def _store(server: GitHubServer) -> None:
    server.add("o/r#1")


def test_an_answer_is_asked_for_again_by_its_etag(server: GitHubServer, client: Client) -> None:
    first = client().get(PULL)
    again = client().get(PULL)
    assert [asked.status for asked in server.log] == [200, 304]
    assert "If-None-Match" not in server.log[0].headers and server.log[1].headers["If-None-Match"] == first.etag
    assert again.body == first.body and json.loads(again.body)["number"] == 1


def test_what_changed_comes_anew(server: GitHubServer, client: Client) -> None:
    client().get(PULL)
    server.repositories[REPO][1].title = "another"
    github = client()
    assert github.document(github.get(PULL))["title"] == "another"


def test_offline_asks_nobody_and_says_when_it_was_seen(server: GitHubServer, client: Client) -> None:
    client().get(PULL)
    kept = client(offline=True, clock=lambda: NOW.replace(year=2030)).get(PULL)
    assert (kept.day, kept.cached, len(server.log)) == ("2026-10-01", True, 1)
    with pytest.raises(UnreachableError, match="not in the cache") as caught:
        client(offline=True).get("repos/o/r/pulls/2")
    assert "without --offline" in caught.value.hint


def test_a_spoiled_cache_entry_is_asked_for_anew(server: GitHubServer, client: Client, tmp_path: Path) -> None:
    github = client()
    github.get(PULL)
    (entry,) = (tmp_path / "cache/github").iterdir()
    entry.write_bytes(b"{")
    assert github.get(PULL).status == 200 and server.log[1].status == 200
    assert stat.S_IMODE((tmp_path / "cache/github").stat().st_mode) == 0o700


def test_pages_are_followed_to_the_last(server: GitHubServer, client: Client) -> None:
    for number in range(1, 6):
        server.add(f"o/r#{number}")
    github = client()
    rows = [row["number"] for page in github.pages("repos/o/r/pulls?state=open") for row in github.rows(page)]
    assert sorted(rows) == [1, 2, 3, 4, 5] and len(server.log) == 3


def test_a_next_page_elsewhere_is_not_asked_for(server: GitHubServer, client: Client) -> None:
    link = {"Link": '<https://elsewhere.example/2>; rel="next"'}
    server.faults = [Fault(200, link, "[]")]
    with pytest.raises(UnreachableError, match="its next page is https://elsewhere"):
        list(client(token="secret").pages("repos/o/r/pulls"))


@pytest.mark.parametrize("status", [500, 502, 503, 504])
def test_a_fault_of_the_server_is_tried_again(
    server: GitHubServer, client: Client, waits: list[float], status: int
) -> None:
    server.faults = [Fault(status), Fault(status)]
    assert client().get(PULL).status == 200
    assert waits == [1.0, 2.0]


def test_a_fault_that_stays_is_an_error_that_says_so(server: GitHubServer, client: Client) -> None:
    server.faults = [Fault(502)] * 9
    with pytest.raises(UnreachableError, match="502: no") as caught:
        client().get(PULL)
    assert caught.value.exit_code == 6 and len(server.log) == 4


def test_a_cut_connection_is_tried_again(server: GitHubServer, client: Client, waits: list[float]) -> None:
    server.faults = [Fault(200, body='{"number": 1, "state": "open"}', cut=5)] * 2
    github = client()
    assert github.document(github.get(PULL))["title"] == "a title"
    assert waits == [1.0, 2.0]


def test_no_server_is_an_error_with_the_place(server: GitHubServer, client: Client) -> None:
    server.close()
    with pytest.raises(UnreachableError, match=r"cannot reach http://127\.0\.0\.1:\d+/repos/o/r/pulls/1") as caught:
        client().get(PULL)
    assert "HTTPS_PROXY" in caught.value.hint


@pytest.mark.parametrize(
    "headers",
    [
        {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": str(int(NOW.timestamp()) + 30)},
        {"Retry-After": "31"},
        {"Retry-After": "Thu, 01 Oct 2026 12:00:31 GMT"},
    ],
)
@pytest.mark.parametrize("status", [403, 429])
def test_a_short_limit_is_waited_for(
    server: GitHubServer, client: Client, waits: list[float], status: int, headers: dict[str, str]
) -> None:
    server.faults = [Fault(status, headers)]
    assert client().get(PULL).status == 200
    assert waits == [31.0]


def test_a_secondary_limit_without_a_time_is_a_minute(server: GitHubServer, client: Client, waits: list[float]) -> None:
    server.faults = [Fault(403, {}, '{"message": "You have exceeded a secondary rate limit."}')]
    assert client().get(PULL).status == 200
    assert waits == [60.0]


@pytest.mark.parametrize(("token", "hint"), [("", "Set GITHUB_TOKEN or GH_TOKEN"), ("t", "Run it again later")])
def test_a_long_limit_is_not_waited_for(
    server: GitHubServer, client: Client, waits: list[float], token: str, hint: str
) -> None:
    server.limit, server.reset = 0, int(NOW.timestamp()) + 3600
    with pytest.raises(RateLimitError, match="asks to wait 3601 s") as caught:
        client(token=token).get(PULL)
    assert hint in caught.value.hint and not waits and len(server.log) == 1


def test_nothing_is_asked_until_the_limit_ends(server: GitHubServer, client: Client) -> None:
    server.limit, server.reset = 0, int(NOW.timestamp()) + 3600
    now = [NOW]
    github = client(clock=lambda: now[0])
    for _ in range(3):
        with pytest.raises(RateLimitError):
            github.get(PULL)
    assert len(server.log) == 1
    server.limit, now[0] = 9, NOW + datetime.timedelta(seconds=3602)
    assert github.get(PULL).status == 200


def test_waiting_for_a_limit_ends(server: GitHubServer, client: Client, waits: list[float]) -> None:
    server.faults = [Fault(429, {"Retry-After": "5"})] * 9
    with pytest.raises(RateLimitError):
        client().get(PULL)
    assert waits == [5.0, 5.0, 5.0]


def test_a_refusal_is_no_limit(server: GitHubServer, client: Client) -> None:
    server.faults = [Fault(403, {"X-RateLimit-Remaining": "40"}, '{"message": "Resource not accessible"}')]
    with pytest.raises(UnreachableError, match="403: Resource not accessible") as caught:
        client().get(PULL)
    assert not isinstance(caught.value, RateLimitError) and "GITHUB_TOKEN" in caught.value.hint
    assert len(server.log) == 1


@pytest.mark.parametrize(
    ("status", "headers", "body", "seconds"),
    [
        (200, {"Retry-After": "5"}, "", None),
        (403, {}, "no", None),
        (429, {}, "", 60.0),
        (429, {"Retry-After": "soon"}, "", 60.0),
        (403, {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "x"}, "", 60.0),
        (403, {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "50"}, "", 1.0),
        (429, {"Retry-After": "Thu, 01 Jan 1970 00:00:40 GMT"}, "", 0.0),
    ],
)
def test_what_an_answer_asks_to_wait(status: int, headers: dict[str, str], body: str, seconds: float | None) -> None:
    assert asked_to_wait(status, headers, body, now=100.0) == seconds


def test_a_redirect_within_the_api_is_followed(server: GitHubServer, client: Client) -> None:
    server.moved["/repos/old/name/pulls/1"] = "/repositories/7/pulls/1"
    server.moved["/repositories/7/pulls/1"] = f"{server.root}/repos/o/r/pulls/1"
    assert json.loads(client().get("repos/old/name/pulls/1").body)["number"] == 1


@pytest.mark.parametrize("where", ["https://elsewhere.example/x", "file:///etc/passwd", ""])
def test_a_redirect_away_is_refused_and_gets_no_token(server: GitHubServer, client: Client, where: str) -> None:
    server.faults = [Fault(301, {"Location": where} if where else {})]
    with pytest.raises(UnreachableError, match="away from the API"):
        client(token="secret").get(PULL)
    assert len(server.log) == 1


def test_redirects_in_a_circle_end(server: GitHubServer, client: Client) -> None:
    server.moved["/repos/o/r/pulls/1"] = "/repos/o/r/pulls/1"
    with pytest.raises(UnreachableError, match="more than 5 redirects"):
        client().get(PULL)


@pytest.mark.parametrize("status", [404, 410, 451])
def test_what_is_gone_is_an_answer(server: GitHubServer, client: Client, status: int) -> None:
    server.gone["/repos/o/r/pulls/1"] = status
    assert client().get(PULL).status == status


@pytest.mark.parametrize(
    ("body", "says"), [("<html>", "is not JSON"), ("[1]", "not a JSON object"), ("[" * 9999, "JSON")]
)
def test_an_answer_that_is_no_json_is_an_error(server: GitHubServer, client: Client, body: str, says: str) -> None:
    server.faults = [Fault(200, {}, body)]
    github = client()
    with pytest.raises(UnreachableError, match=says):
        github.document(github.get(PULL))


def test_the_token_is_sent_and_never_shown(
    server: GitHubServer, client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login someone password other\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    client(token="secret").get(PULL)
    assert server.log[0].headers["Authorization"] == "Bearer secret"
    client().get("repos/o/r/issues/1")
    assert "Authorization" not in server.log[1].headers
    server.faults = [Fault(401, {}, '{"message": "Bad credentials"}')]
    with pytest.raises(UnreachableError) as caught:
        client(token="secret").get(PULL)
    assert "secret" not in str(caught.value) + caught.value.hint
    assert b"secret" not in b"".join(file.read_bytes() for file in (tmp_path / "cache/github").iterdir())


def test_a_proxy_is_used(server: GitHubServer, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server plays the proxy: it is asked by the whole URL of another host."""
    monkeypatch.setenv("HTTP_PROXY", server.root)
    monkeypatch.setenv("http_proxy", server.root)
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    server.faults = [Fault(200, {}, '{"by": "proxy"}')]
    github = client(root="http://api.example")
    assert github.document(github.get(PULL)) == {"by": "proxy"}
    assert server.paths() == ["http://api.example/repos/o/r/pulls/1"]


@pytest.mark.parametrize("root", ["", "api.example", "ftp://api.example", "https://user:pw@api.example", "https://"])
def test_a_root_that_is_none_is_a_usage_error(root: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        GitHub(Answers(Cache(tmp_path)), root=root)
    assert "pw" not in str(caught.value)


def test_the_environment_names_root_and_token(tmp_path: Path) -> None:
    answers = Answers(Cache(tmp_path))
    plain = GitHub.from_environment(answers, False, {})
    assert (plain.root, plain.token) == (API, "")
    other = GitHub.from_environment(
        answers, True, {"GRAFTWORK_GITHUB_API": "https://ghe.example/api/v3/", "GH_TOKEN": "a"}
    )
    assert (other.root, other.token, other.offline) == ("https://ghe.example/api/v3", "a", True)
    assert GitHub.from_environment(answers, True, {"GITHUB_TOKEN": "b", "GH_TOKEN": "a"}).token == "b"


def test_a_query_is_answered_from_the_cache_offline(server: GitHubServer, client: Client) -> None:
    query, variables = "{ r1: issueOrPullRequest(number: 1) }", {"owner": "o", "name": "r"}
    live, _ = client(token="t").graphql(query, variables)
    kept, answer = client(offline=True).graphql(query, variables)
    assert kept == live and answer.day == "2026-10-01" and len(server.log) == 1


def test_a_query_that_is_limited_is_made_again(server: GitHubServer, client: Client, waits: list[float]) -> None:
    server.faults = [Fault(200, {}, '{"errors": [{"type": "RATE_LIMITED", "message": "limit"}]}')]
    document, _ = client(token="t").graphql("{ r1: issueOrPullRequest(number: 1) }", {"owner": "o", "name": "r"})
    assert document["data"]["repository"]["r1"]["number"] == 1 and waits == [60.0]
