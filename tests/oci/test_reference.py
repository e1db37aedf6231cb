"""References: the cases of the distribution project's grammar, and round trips of random ones."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graftwork.errors import UsageError
from graftwork.oci.reference import DEFAULT_REGISTRY, ImageRef, is_loopback

SHA = "sha256:" + "0123456789abcdef" * 4


@pytest.mark.parametrize(
    ("text", "registry", "repository", "tag", "digest"),
    [
        ("ubuntu", DEFAULT_REGISTRY, "library/ubuntu", "latest", None),
        ("ubuntu:22.04", DEFAULT_REGISTRY, "library/ubuntu", "22.04", None),
        ("team/engine", DEFAULT_REGISTRY, "team/engine", "latest", None),
        (f"{DEFAULT_REGISTRY}/ubuntu", DEFAULT_REGISTRY, "library/ubuntu", "latest", None),
        (f"index.{DEFAULT_REGISTRY}/team/engine", DEFAULT_REGISTRY, "team/engine", "latest", None),
        ("localhost/engine", "localhost", "engine", "latest", None),
        ("localhost:5000/engine:v1", "localhost:5000", "engine", "v1", None),
        ("host:5000/engine", "host:5000", "engine", "latest", None),
        ("HOST/engine", "HOST", "engine", "latest", None),
        ("registry.example/a/b/c:v1", "registry.example", "a/b/c", "v1", None),
        (f"registry.example/a@{SHA}", "registry.example", "a", None, SHA),
        (f"registry.example:5000/a:v1@{SHA}", "registry.example:5000", "a", "v1", SHA),
        ("[::1]:5000/a", "[::1]:5000", "a", "latest", None),
        ("[2001:db8::1]/a:v1", "[2001:db8::1]", "a", "v1", None),
        ("127.0.0.1:5000/a__b-c---d.e:_x", "127.0.0.1:5000", "a__b-c---d.e", "_x", None),
        # 'engine:5000' is a name and a tag, since nothing follows.
        ("engine:5000", DEFAULT_REGISTRY, "library/engine", "5000", None),
        ("xn--n3h.example/engine", "xn--n3h.example", "engine", "latest", None),
    ],
)
def test_reads_as_docker_does(text: str, registry: str, repository: str, tag: str | None, digest: str | None) -> None:
    found = ImageRef.parse(text)
    assert (found.registry, found.repository, found.tag, found.digest) == (registry, repository, tag, digest)
    assert ImageRef.parse(str(found)) == found


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "not a repository"),
        ("Ubuntu", "upper-case"),
        ("registry.example/Team/engine", "upper-case"),
        ("a/B", "upper-case"),
        ("registry.example/", "not a repository"),
        ("registry.example//a", "not a repository"),
        ("a:", "not a tag"),
        ("a:-x", "not a tag"),
        ("a:" + "x" * 129, "not a tag"),
        ("a@sha256:abc", "not a digest"),
        ("a@", "not a digest"),
        (f"a@{SHA.upper()}", "not a digest"),
        (f"a@{SHA}@{SHA}", "not a digest"),
        ("a@md5:" + "0" * 32, "not a digest"),
        ("a..b/c", "not a registry"),
        ("a/b..c", "not a repository"),
        ("-host.example/a", "not a registry"),
        ("host:0/a", "port"),
        ("host:70000/a", "port"),
        ("[::1/a", "not a registry"),
        ("[1:2]/a", "IPv6"),
        ("a b", "not a repository"),
        ("https://host/a", "not a re"),
        ("0123456789abcdef" * 4, "image ID"),
        ("registry.example/" + "a/" * 128 + "a", "limit is 255"),
    ],
)
def test_refuses_and_says_why(text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says) as caught:
        ImageRef.parse(text)
    assert caught.value.hint


def test_a_digest_goes_before_the_tag() -> None:
    both = ImageRef.parse("registry.example/a:v1").with_digest(SHA)
    assert (both.reference, str(both)) == (SHA, f"registry.example/a:v1@{SHA}")
    with pytest.raises(UsageError, match="not a digest"):
        both.with_digest("sha256:0")


def test_the_default_registry_serves_its_api_elsewhere() -> None:
    assert ImageRef.parse("ubuntu").api_host == f"registry-1.{DEFAULT_REGISTRY}"
    assert ImageRef.parse("host:1/a").api_host == "host:1"


@pytest.mark.parametrize("host", ["localhost", "localhost:1", "127.0.0.1:80", "127.9.9.9", "[::1]:5000", "LOCALHOST"])
def test_loopback(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["localhost.example", "128.0.0.1", "10.0.0.1:5000", "[::2]", "127.example", "a:1:2"])
def test_not_loopback(host: str) -> None:
    assert not is_loopback(host)


_part = st.from_regex(r"[a-z0-9]{1,4}(?:(?:[._]|__|-{1,3})[a-z0-9]{1,4}){0,2}", fullmatch=True)
_tag = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,20}", fullmatch=True)
_registry = st.one_of(
    st.from_regex(r"[a-z0-9]{1,5}\.[a-z]{2,3}(:[1-9][0-9]{0,3})?", fullmatch=True),
    st.sampled_from(["localhost", "[::1]:5000", "127.0.0.1:1"]),
)


@given(_registry, st.lists(_part, min_size=1, max_size=4), st.none() | _tag, st.booleans())
def test_every_valid_reference_round_trips(registry: str, parts: list[str], tag: str | None, pinned: bool) -> None:
    text = f"{registry}/{'/'.join(parts)}" + (f":{tag}" if tag else "") + (f"@{SHA}" if pinned else "")
    found = ImageRef.parse(text)
    assert ImageRef.parse(str(found)) == found
    assert found.repository == "/".join(parts)
    assert found.tag == (tag or (None if pinned else "latest"))


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        found = ImageRef.parse(text)
    except UsageError:
        return
    assert ImageRef.parse(str(found)) == found
