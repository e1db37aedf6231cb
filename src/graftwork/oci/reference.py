"""Image references, by the grammar of the distribution project's ``reference`` package."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, replace

from graftwork import names
from graftwork.errors import UsageError
from graftwork.names import Digest

DEFAULT_REGISTRY = "docker.io"
DEFAULT_TAG = "latest"
_OFFICIAL = "library"
_LONGEST_REPOSITORY = 255

_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
_REGISTRY = re.compile(rf"(?P<host>{_LABEL}(?:\.{_LABEL})*|\[[0-9A-Fa-f:]+\])(?::(?P<port>[0-9]{{1,5}}))?")
_PART = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_REPOSITORY = re.compile(rf"{_PART}(?:/{_PART})*")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_HEX64 = re.compile(r"[0-9a-f]{64}")
_HINT = "Write it as [registry[:port]/]repository[:tag][@sha256:digest], such as registry.example:5000/team/engine:v1."


@dataclass(frozen=True)
class ImageRef:
    """One image of one repository: by tag, by digest, or by both (then the digest decides).

    ``str()`` gives the full form, which ``parse`` reads back to an equal value.
    """

    registry: str
    repository: str
    tag: str | None = None
    digest: Digest | None = None

    @classmethod
    def parse(cls, text: str) -> ImageRef:
        """Read a reference as people write it; UsageError says which rule it breaks.

        A first part without '.', ':' or an upper-case letter (and not ``localhost``) belongs to the repository, as in
        Docker. A reference with neither tag nor digest gets the tag ``latest``.
        """
        if _HEX64.fullmatch(text):
            raise _refused(text, "64 hex digits are an image ID, not a name")
        rest, has_digest, digest_text = text.partition("@")
        rest, tag = _split_tag(rest)
        registry, repository = _split_registry(rest)
        try:
            digest = names.digest(digest_text) if has_digest else None
        except ValueError as error:
            raise _refused(text, str(error)) from error
        if tag is None and digest is None:
            tag = DEFAULT_TAG
        found = cls(registry, repository, tag, digest)
        if problem := found._problem():
            raise _refused(text, problem)
        return found

    def __str__(self) -> str:
        tag = f":{self.tag}" if self.tag is not None else ""
        return f"{self.name}{tag}" + (f"@{self.digest}" if self.digest is not None else "")

    @property
    def name(self) -> str:
        """``registry/repository``."""
        return f"{self.registry}/{self.repository}"

    @property
    def reference(self) -> str:
        """What the manifest is asked for by: the digest where there is one, else the tag."""
        return self.digest or self.tag or DEFAULT_TAG

    @property
    def api_host(self) -> str:
        """The host (and port) that serves this registry's API."""
        return api_host(self.registry)

    def with_digest(self, digest: str) -> ImageRef:
        """The same repository and tag, pinned to *digest*."""
        try:
            return self._checked(replace(self, digest=names.digest(digest)))
        except ValueError as error:
            raise _refused(digest, str(error)) from error

    def _checked(self, other: ImageRef) -> ImageRef:
        if problem := other._problem():
            raise _refused(str(other), problem)
        return other

    def _problem(self) -> str:
        if problem := registry_problem(self.registry):
            return problem
        if len(self.repository) > _LONGEST_REPOSITORY:
            return f"the repository has {len(self.repository)} characters, the limit is {_LONGEST_REPOSITORY}"
        if self.repository != self.repository.lower():
            return f"the repository {self.repository!r} has upper-case letters"
        if not _REPOSITORY.fullmatch(self.repository):
            return f"{self.repository!r} is not a repository name"
        if self.tag is not None and not _TAG.fullmatch(self.tag):
            return f"{self.tag!r} is not a tag (1 to 128 letters, digits, '_', '.', '-')"
        return ""


def api_host(registry: str) -> str:
    """The host (and port) of *registry*'s API."""
    # The default registry serves its API under another name than the one in references.
    return f"registry-1.{DEFAULT_REGISTRY}" if registry == DEFAULT_REGISTRY else registry


def normal_registry(registry: str) -> str:
    """*registry* under the name that references use: the default one has three host names."""
    known = (f"index.{DEFAULT_REGISTRY}", f"registry-1.{DEFAULT_REGISTRY}")
    return DEFAULT_REGISTRY if registry in known else registry


def is_loopback(registry: str) -> bool:
    """Whether *registry* (host and port) is this machine: 127.0.0.0/8, ::1 or localhost."""
    found = _REGISTRY.fullmatch(registry)
    host = found["host"].strip("[]") if found else ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def registry_problem(registry: str) -> str:
    """Why *registry* is not a host with an optional port; empty if it is."""
    found = _REGISTRY.fullmatch(registry)
    if not found:
        return f"{registry!r} is not a registry (host or host:port)"
    if found["port"] is not None and not 0 < int(found["port"]) < 65536:
        return f"the port of {registry!r} is not between 1 and 65535"
    if found["host"].startswith("["):
        try:
            ipaddress.IPv6Address(found["host"][1:-1])
        except ValueError:
            return f"{found['host']} is not an IPv6 address"
    return ""


def _split_tag(text: str) -> tuple[str, str | None]:
    """The name and the tag: a colon after the last slash starts a tag, any other a port."""
    head, colon, tag = text.rpartition(":")
    return (head, tag) if colon and "/" not in tag and not text.endswith("]") else (text, None)


def _split_registry(name: str) -> tuple[str, str]:
    first, slash, rest = name.partition("/")
    is_registry = first == "localhost" or any(c in first for c in ".:") or first != first.lower()
    registry, repository = (normal_registry(first), rest) if slash and is_registry else (DEFAULT_REGISTRY, name)
    if registry == DEFAULT_REGISTRY and "/" not in repository:
        repository = f"{_OFFICIAL}/{repository}"
    return registry, repository


def _refused(text: str, problem: str) -> UsageError:
    return UsageError(f"not an image reference: {text!r}: {problem}", hint=_HINT)
