"""Challenges, tokens and credentials: who is asked for what, and that no secret is ever shown."""

from __future__ import annotations

import base64
import json
import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from oci.quirky import Quirky, serve

from graftwork.errors import GraftworkError, UsageError
from graftwork.oci.challenge import Challenge, Scope, covers, delete, merged, parse_challenges, parse_scopes, pull, push
from graftwork.oci.credentials import Credential, find_credential
from graftwork.oci.errors import AccessError, RegistryError
from graftwork.oci.reference import DEFAULT_REGISTRY
from graftwork.oci.registry import Registry
from graftwork.oci.traffic import Patience
from graftwork.oci.transport import Transport

REPO = "team/engine"
ABSENT = "sha256:" + "0" * 64
USER = ("somebody", 'pass:word, with "quotes"')


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    for name in ("REGISTRY_AUTH_FILE", "DOCKER_CONFIG", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def client(registry: Quirky, **more: Any) -> Registry:
    patience = Patience(tries=3, backoff=0.0, connect=2, read=5)
    return Registry(Transport(registry.host, patience=patience, sleep=lambda seconds: None, **more))


# Challenges


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ('Basic realm="x"', [("basic", {"realm": "x"})]),
        ("", []),
        ("Negotiate", [("negotiate", {})]),
        ("Negotiate abc==, Basic realm=x", [("negotiate", {}), ("basic", {"realm": "x"})]),
        (
            'Bearer realm="https://a.example/t?x=1,2",service="s \\"q\\"",scope="repository:a:pull,push"',
            [("bearer", {"realm": "https://a.example/t?x=1,2", "service": 's "q"', "scope": "repository:a:pull,push"})],
        ),
        (
            'BEARER Realm = "r" , Service=s, basic realm="b"',
            [("bearer", {"realm": "r", "service": "s"}), ("basic", {"realm": "b"})],
        ),
        ('Bearer realm="a" service="b"', [("bearer", {"realm": "a", "service": "b"})]),
        (', , Basic realm=""', [("basic", {"realm": ""})]),
    ],
)
def test_challenges(header: str, expected: list[tuple[str, dict[str, str]]]) -> None:
    assert parse_challenges(header) == [Challenge(scheme, params) for scheme, params in expected]


_token = st.from_regex(r"[A-Za-z][A-Za-z0-9-]{0,8}", fullmatch=True)
_value = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=20)


@given(st.lists(st.tuples(_token, st.dictionaries(_token.map(str.lower), _value, min_size=1)), max_size=3))
def test_every_quoted_challenge_is_read_back(challenges: list[tuple[str, dict[str, str]]]) -> None:
    def quoted(text: str) -> str:
        return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'

    header = ", ".join(
        f"{scheme} " + ", ".join(f"{key}={quoted(value)}" for key, value in params.items())
        for scheme, params in challenges
    )
    assert parse_challenges(header) == [Challenge(scheme.lower(), params) for scheme, params in challenges]


@given(st.text(max_size=80))
def test_any_header_is_read_without_a_fault(header: str) -> None:
    assert all(challenge.scheme for challenge in parse_challenges(header))


def test_scopes() -> None:
    assert str(push("a/b")) == "repository:a/b:pull,push"
    assert merged([pull("a"), push("a"), pull("b")]) == {push("a"), pull("b")}
    assert parse_scopes("repository:h:5/a:pull,push registry:catalog:*") == {push("h:5/a")}
    assert covers(frozenset({push("a")}), frozenset({pull("a")}))
    assert not covers(frozenset({pull("a")}), frozenset({push("a")}))
    assert str(delete("a")) == "repository:a:pull,delete"
    assert str(Scope("a", frozenset({"*", "pull"}))) == "repository:a:pull,*"


# Tokens


@pytest.mark.parametrize("key", ["token", "access_token"])
def test_a_token_is_asked_for_once_and_used_while_it_lives(key: str) -> None:
    with serve(auth="bearer", token_key=key) as server, client(server) as registry:
        for _ in range(3):
            assert not registry.find_blob(REPO, ABSENT)
        assert [seen.path for seen in server.calls("GET", "/token")] == [
            "/token?service=quirky&scope=repository%3Ateam%2Fengine%3Apull"
        ]


def test_a_push_token_does_for_reading() -> None:
    with serve(auth="bearer") as server, client(server) as registry:
        server.put("team/base", b"x")
        registry.mount(REPO, server.put("team/base", b"x"), "team/base")
        registry.find_blob(REPO, ABSENT)
        registry.find_blob("team/base", ABSENT)
        assert len(server.calls("GET", "/token")) == 1


def test_a_token_is_renewed_before_it_ends_and_once_after_a_401() -> None:
    from graftwork.oci.auth import Authenticator

    now = [0.0]
    with serve(auth="bearer", expires_in=100) as server:
        transport = client(server).transport
        transport._auth = Authenticator(server.host, lambda name: None, transport._auth._ask, clock=lambda: now[0])
        registry = Registry(transport)
        counts = []
        for moment in (0.0, 89.0, 91.0):
            now[0] = moment
            registry.find_blob(REPO, ABSENT)
            counts.append(len(server.calls("GET", "/token")))
        assert counts == [1, 1, 2]
        server.tokens.clear()
        registry.find_blob(REPO, ABSENT)
        assert len(server.calls("GET", "/token")) == 3


def test_a_registry_that_refuses_every_token_is_not_asked_for_ever() -> None:
    with serve(auth="bearer", withheld={REPO}) as server, client(server) as registry:
        with pytest.raises(AccessError) as caught:
            registry.find_blob(REPO, ABSENT)
        assert (caught.value.status, caught.value.exit_code) == (401, 6)
        assert len(server.calls("HEAD")) == 2


def test_basic_and_token_with_credentials() -> None:
    for auth in ("basic", "bearer"):
        with serve(auth=auth, user=USER) as server:
            assert not client(server, credential=Credential(*USER)).find_blob(REPO, ABSENT)
            with pytest.raises(AccessError, match="401") as caught:
                client(server).find_blob(REPO, ABSENT)
            assert "docker login" in caught.value.hint


def test_an_identity_token_is_traded_by_post() -> None:
    with serve(auth="identity") as server:
        assert not client(server, credential=Credential(identity_token="the identity token")).find_blob(REPO, ABSENT)
        assert [seen.method for seen in server.calls(part="/token")] == ["POST"]
        with pytest.raises(AccessError):
            client(server, credential=Credential(identity_token="another")).find_blob(REPO, ABSENT)


@pytest.mark.parametrize("key", ["nothing", "expires"])
def test_an_answer_without_a_token(key: str) -> None:
    with serve(auth="bearer", token_key=key) as server, pytest.raises(RegistryError, match="holds no token"):
        client(server).find_blob(REPO, ABSENT)


@pytest.mark.parametrize("realm", ["http://tokens.example/t", "ftp://127.0.0.1/t", "/token"])
def test_credentials_are_not_sent_to_an_unsafe_realm(realm: str) -> None:
    with serve(auth="bearer", user=USER, realm=realm) as server, pytest.raises(AccessError, match="not safe"):
        client(server, credential=Credential(*USER)).find_blob(REPO, ABSENT)


def test_secrets_are_in_no_repr() -> None:
    credential = Credential("the-name", "the-password", "the-identity", "the-bearer")
    with serve(auth="bearer", user=("a", "b")) as server:
        registry = client(server, credential=credential)
        with pytest.raises(AccessError) as caught:
            registry.transport._auth._challenge = None
            registry.find_blob(REPO, ABSENT)
        texts = [repr(credential), str(credential), repr(caught.value), str(vars(caught.value)), caught.value.hint]
        assert not any("the-" in text for text in texts)


# Credential files


def write(path: Path, config: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(config if isinstance(config, str) else json.dumps(config))
    return path


def entry(user: str, password: str = "p") -> dict[str, str]:
    return {"auth": base64.b64encode(f"{user}:{password}".encode()).decode()}


def helper(folder: Path, name: str, script: str) -> None:
    folder.mkdir(exist_ok=True)
    path = folder / f"docker-credential-{name}"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def test_no_file_is_no_credential() -> None:
    assert find_credential("registry.example") is None


@pytest.mark.parametrize(
    ("registry", "repository", "user"),
    [
        ("r.example", "a/b/c", "abc"),
        ("r.example", "a/b/d", "ab"),
        ("r.example", "a/bc", "host"),
        ("r.example", "", "host"),
        ("r.example:5000", "a/b", "port"),
        ("url.example", "a", "url"),
        (DEFAULT_REGISTRY, "library/x", "default"),
        ("other.example", "a/b/c", None),
    ],
)
def test_the_most_specific_entry_wins(home: Path, registry: str, repository: str, user: str | None) -> None:
    auths = {
        "r.example": entry("host"),
        "r.example/a/b": entry("ab"),
        "r.example/a/b/c": entry("abc"),
        "r.example:5000": entry("port"),
        "https://url.example/v1/": entry("url"),
        f"https://index.{DEFAULT_REGISTRY}/v1/": entry("default"),
        "empty.example": {},
    }
    write(home / ".docker" / "config.json", {"auths": auths})
    found = find_credential(registry, repository)
    assert (found.username if found else None) == user


def test_the_order_of_files(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def user() -> str:
        found = find_credential("r.example")
        assert found
        return found.username

    write(home / ".docker" / "config.json", {"auths": {"r.example": entry("docker home")}})
    assert user() == "docker home"
    write(home / ".config" / "containers" / "auth.json", {"auths": {"r.example": entry("podman home")}})
    assert user() == "podman home"
    write(home / "run" / "containers" / "auth.json", {"auths": {"r.example": entry("podman run")}})
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(home / "run"))
    assert user() == "podman run"
    write(home / "named" / "config.json", {"auths": {"r.example": entry("docker named")}})
    monkeypatch.setenv("DOCKER_CONFIG", str(home / "named"))
    assert user() == "docker named"
    monkeypatch.setenv("REGISTRY_AUTH_FILE", str(write(home / "x.json", {"auths": {"r.example": entry("file")}})))
    assert user() == "file"
    write(home / "x.json", {"auths": {}})
    assert find_credential("r.example") is None


def test_kinds_of_entries(home: Path) -> None:
    auths = {
        "plain.example": {"username": "u", "password": "p"},
        "identity.example": {**entry("00000000-0000-0000-0000-000000000000", ""), "identitytoken": "refresh"},
        "bearer.example": {"registrytoken": "ready"},
        "colon.example": entry("u", "p:q:r"),
    }
    write(home / ".docker" / "config.json", {"auths": auths})
    assert find_credential("plain.example") == Credential("u", "p")
    assert find_credential("colon.example") == Credential("u", "p:q:r")
    identity, bearer = find_credential("identity.example"), find_credential("bearer.example")
    assert identity and identity.identity_token == "refresh"
    assert bearer and bearer.bearer_token == "ready"


def test_credentials_of_files_are_used(home: Path) -> None:
    with serve(auth="bearer", user=USER) as server:
        write(home / ".docker" / "config.json", {"auths": {server.host: entry(*USER)}})
        assert not client(server).find_blob(REPO, ABSENT)


@pytest.mark.parametrize(
    "content",
    [
        "{secret",
        '"secret"',
        '{"auths": ["secret"]}',
        '{"auths": {"r.example": "secret"}}',
        '{"auths": {"r.example": {"auth": "!!secret"}}}',
        '{"auths": {"r.example": {"auth": "c2VjcmV0"}}}',
        '{"auths": {"r.example": {"auth": "/w=="}}}',
        '{"auths": {"r.example": {"auth": 7}}}',
        "[" * 100_000,
    ],
)
def test_a_broken_file_is_named_and_not_quoted(home: Path, content: str) -> None:
    path = write(home / ".docker" / "config.json", content)
    with pytest.raises(UsageError, match=str(path)) as caught:
        find_credential("r.example")
    assert "secret" not in str(caught.value)
    assert caught.value.__cause__ is None or "secret" not in str(caught.value.__cause__)


def test_helpers(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{home / 'bin'}:/usr/bin:/bin")
    helper(home / "bin", "one", 'read host; echo "{\\"Username\\": \\"one\\", \\"Secret\\": \\"$1 $host\\"}"')
    helper(home / "bin", "id", 'echo \'{"Username": "<token>", "Secret": "refresh"}\'')
    helper(home / "bin", "none", 'echo "credentials not found in native keychain"; exit 1')
    config: dict[str, Any] = {"credsStore": "one", "credHelpers": {"id.example": "id", "none.example": "none"}}
    config["auths"] = {"none.example": entry("unused"), "r.example": {}}
    path = write(home / ".docker" / "config.json", config)
    assert find_credential("r.example") == Credential("one", "get r.example")
    assert find_credential(DEFAULT_REGISTRY) == Credential("one", f"get https://index.{DEFAULT_REGISTRY}/v1/")
    assert find_credential("id.example") == Credential(identity_token="refresh")
    assert find_credential("none.example") is None
    config["credsStore"] = "none"
    config["auths"] = {"r.example": entry("written down")}
    write(path, config)
    found = find_credential("r.example")
    assert found and found.username == "written down"


@pytest.mark.parametrize(
    ("name", "script", "says"),
    [
        ("absent", None, "not on the PATH"),
        ("../evil", None, "not the name"),
        ("fails", "echo secret; echo secret >&2; exit 3", "exit 3"),
        ("junk", "echo secret", "not a credential"),
        ("list", "echo '[\"secret\"]'", "not a credential"),
        ("slow", "exec sleep 20", "did not answer"),
    ],
)
def test_a_failing_helper_is_named_and_not_quoted(
    home: Path, monkeypatch: pytest.MonkeyPatch, name: str, script: str | None, says: str
) -> None:
    monkeypatch.setenv("PATH", f"{home / 'bin'}:/usr/bin:/bin")
    if script:
        helper(home / "bin", name, script)
    write(home / ".docker" / "config.json", {"credHelpers": {"r.example": name}})
    with pytest.raises(UsageError, match=says) as caught:
        find_credential("r.example", timeout=1.0 if name == "slow" else 20.0)
    assert "secret" not in f"{caught.value}{caught.value.hint}{caught.value.__cause__}"


_keys = st.sampled_from(["auths", "credHelpers", "credsStore", "r.example", "auth", "username"])
_leaves = st.none() | st.booleans() | st.text(max_size=5)


@given(
    st.recursive(
        _leaves,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_keys, inner, max_size=4),
        max_leaves=12,
    )
)
def test_any_json_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, config: Any) -> None:
    path = write(
        tmp_path_factory.mktemp("any") / "config.json", config if isinstance(config, dict) else {"auths": config}
    )
    try:
        found = find_credential("r.example", "a/b", environ={"REGISTRY_AUTH_FILE": str(path), "PATH": ""})
    except GraftworkError:
        return
    assert found is None or isinstance(found, Credential)
