"""Where a pinned file is to be had: the find-links and indexes that pip is configured for."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote, urlsplit

from graftwork.errors import PinError, UnreachableError, UsageError, redact
from graftwork.names import Sha256
from graftwork.trees.cache import sha256_of
from graftwork.trees.pages import PageCache
from graftwork.trees.pipconf import PipSettings, pip_settings
from graftwork.trees.session import open_session, reaching, split_credentials

if TYPE_CHECKING:
    import requests
    from pypi_simple import DistributionPackage

_LISTED = 12  # files named in an error
_HINT = "Pin a file that exists for this architecture and Python, or configure the index that has it (pip config)."


@dataclass(frozen=True)
class Location:
    """Where the bytes of a pinned file are: exactly one of ``url`` (http, without credentials) and ``path``.

    ``size`` is in bytes, where the index says it. A ``path`` had the pinned sha256 when it was found.
    """

    filename: str
    sha256: Sha256
    url: str | None = None
    path: Path | None = None
    size: int | None = None
    yanked: bool = False


class _File(NamedTuple):
    name: str
    where: str
    sha256: str | None
    size: int | None
    yanked: bool = False


@dataclass
class _Answers:
    """What the sources said, for the one error at the end."""

    files: list[_File] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    failed: list[UnreachableError] = field(default_factory=list)


class PackageIndex:
    """pip's indexes. Nothing is asked, not even of pip, before it is needed.

    With *pages* the pages of an index are kept and revalidated; where those are offline, nobody is asked.
    """

    def __init__(self, settings: PipSettings | None = None, *, pages: PageCache | None = None) -> None:
        self._given, self._pages = settings, pages

    def fresh(self) -> PackageIndex:
        """The same index with no session yet: a forked process must not share its parent's connections."""
        return PackageIndex(self.settings, pages=self._pages)

    @cached_property
    def settings(self) -> PipSettings:
        """What pip is configured for."""
        return pip_settings() if self._given is None else self._given

    @cached_property
    def session(self) -> requests.Session:
        """The session for the indexes and the files that they name."""
        if self._pages is not None and self._pages.offline:
            raise UnreachableError(
                "a part that is not in the cache is needed, and --offline asks nobody",
                hint="Run it once without --offline.",
            )
        return open_session(self.settings)

    def find(self, project: str, filename: str, sha256: Sha256) -> Location:
        """The first source that has *filename* with *sha256*: find-links in order, then the indexes in order.

        A source that lists the name with another hash is passed over; PinError names it when no source has
        the pinned one. PinError also when every source answered and none has the name; UnreachableError
        when one that may have it could not be asked.
        """
        answers = _Answers()
        for source, ask in self._sources(project):
            answers.asked.append(source)
            try:
                files = ask()
            except UnreachableError as error:
                answers.failed.append(error)
                continue
            answers.files += files
            for file in files:
                if file.name == filename and (found := _location(file, sha256)):
                    return found
        raise _not_found(answers, project, filename, sha256)

    def listed(self, project: str, choose: Callable[[Collection[str]], Collection[str]]) -> list[Location]:
        """The files of *project* that *choose* takes from all names; of one name, the first source's.

        A file that the index gives no sha256 for is left out; that of a local file is computed.
        UnreachableError when a source cannot be asked: a list with holes would pass for the whole.
        """
        files: dict[str, _File] = {}
        for _, ask in self._sources(project):
            for file in ask():
                files.setdefault(file.name, file)
        found = []
        for name in choose(files.keys()):
            file, path = files[name], _local(files[name].where)
            if sha256 := file.sha256 if path is None else _hash(path):
                url = split_credentials(file.where)[0] if path is None else None
                found.append(Location(name, Sha256(sha256), url, path, file.size, file.yanked))
        return found

    def _sources(self, project: str) -> Iterable[tuple[str, Callable[[], list[_File]]]]:
        from packaging.utils import canonicalize_name
        from pypi_simple import PYPI_SIMPLE_ENDPOINT

        wanted = self.settings
        for link in wanted.find_links:
            folder = _local(link)
            if folder is not None:
                yield str(folder), partial(_listed, folder)
            else:
                yield redact(link), partial(self._page, link, project)
        if wanted.no_index:
            return
        for index in (wanted.index_url or PYPI_SIMPLE_ENDPOINT, *wanted.extra_index_urls):
            folder = _local(index)
            name = canonicalize_name(project)
            if folder is not None:
                yield str(folder / name), partial(_listed, folder / name)
            else:
                url = split_credentials(index)[0].rstrip("/") + f"/{name}/"
                yield redact(url), partial(self._page, url, project)

    def _page(self, url: str, project: str) -> list[_File]:
        """The files of one HTML or JSON page; empty when the index does not know the project."""
        from pypi_simple import ACCEPT_ANY, ProjectPage, UnsupportedContentTypeError, UnsupportedRepoVersionError

        clean, _ = split_credentials(url)
        with reaching(redact(clean)):
            if self._pages is not None:
                response = self._pages.get(lambda: self.session, clean, ACCEPT_ANY)
            else:
                response = self.session.get(clean, headers={"Accept": ACCEPT_ANY})
            if response.status_code == 404:
                return []
            response.raise_for_status()
        try:
            page = ProjectPage.from_response(response, project)
        except (UnsupportedContentTypeError, UnsupportedRepoVersionError, ValueError, LookupError, TypeError) as error:
            raise UnreachableError(
                f"{clean}: the answer is not a page of a package index ({type(error).__name__})",
                hint="Check index-url in 'pip config list': it should end in /simple.",
            ) from error
        return [_file(package) for package in page.packages]


def _local(source: str) -> Path | None:
    """The folder that *source* names, or None for http(s)."""
    parts = urlsplit(source)
    if parts.scheme.lower() in ("http", "https"):
        return None
    if parts.scheme.lower() == "file":
        return Path(unquote(parts.path))
    if "://" in source:
        raise UsageError(f"pip's configuration: {redact(source)}: scheme {parts.scheme!r} is not supported")
    return Path(source).expanduser()


def _listed(source: Path) -> list[_File]:
    """The files of a folder, of its index.html, or of an HTML file; a missing one is skipped, as in pip."""
    from pypi_simple import ProjectPage

    page = source / "index.html" if source.is_dir() else source
    try:
        if page.is_file():
            html = page.read_text(encoding="utf-8", errors="replace")
            found = ProjectPage.from_html("", html, base_url=page.absolute().as_uri()).packages
            return [_file(package) for package in found]
        if source.is_dir():
            return [_File(item.name, str(item), None, None) for item in sorted(source.iterdir()) if item.is_file()]
    except OSError as error:
        raise UnreachableError(f"{source}: cannot be read ({error.strerror})", hint="Check find-links.") from error
    return []


def _file(package: DistributionPackage) -> _File:
    return _File(package.filename, package.url, package.digests.get("sha256"), package.size, package.is_yanked)


def _location(file: _File, sha256: Sha256) -> Location | None:
    """None when the file has another hash. The hash of a local file is computed, that of a URL taken as listed."""
    path = _local(file.where)
    if path is None:
        if file.sha256 not in (None, sha256):
            return None
        return Location(file.name, sha256, url=split_credentials(file.where)[0], size=file.size)
    return Location(file.name, sha256, path=path, size=path.stat().st_size) if _hash(path) == sha256 else None


def _hash(path: Path) -> str | None:
    try:
        return sha256_of(path)
    except OSError:
        return None


def _not_found(answers: _Answers, project: str, filename: str, sha256: Sha256) -> PinError | UnreachableError:
    for file in answers.files:
        if file.name == filename:
            path = _local(file.where)
            other = file.sha256 if path is None else _hash(path)
            return PinError(
                f"{filename}: {redact(file.where)} has sha256 {other or '(unreadable)'}, the target pins {sha256}",
                hint="The index serves another file than the pinned one: find out why before you change the pin.",
            )
    if answers.failed:
        first = answers.failed[0]
        rest = "".join(f"; {error.message}" for error in answers.failed[1:])
        return UnreachableError(f"{filename}: not found; could not ask: {first.message}{rest}", hint=first.hint)
    asked = ", ".join(answers.asked) or "nothing: no-index is set and there is no find-links"
    return PinError(
        f"{filename}: on no index (asked {asked}); {_what_there_is(answers, project, filename)}", hint=_HINT
    )


def _what_there_is(answers: _Answers, project: str, filename: str) -> str:
    """The wheels of the wanted version with their tags, else the newest versions."""
    from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
    from packaging.version import Version

    by_version: dict[Version, list[str]] = {}
    for file in answers.files:
        try:
            name, version, _, _ = parse_wheel_filename(file.name)
        except (InvalidWheelFilename, ValueError):
            continue
        if name == canonicalize_name(project):
            by_version.setdefault(version, []).append("-".join(file.name.removesuffix(".whl").split("-")[-3:]))
    try:
        wanted = parse_wheel_filename(filename)[1]
    except (InvalidWheelFilename, ValueError):
        return "it is not the name of a wheel"
    if tags := by_version.get(wanted):
        more = f" and {len(tags) - _LISTED} more" if len(tags) > _LISTED else ""
        return f"{project} {wanted} has wheels for {', '.join(sorted(set(tags))[:_LISTED])}{more}"
    newest = ", ".join(str(version) for version in sorted(by_version, reverse=True)[:_LISTED])
    return f"no wheel of {project} {wanted} is there; versions with wheels: {newest or 'none'}"
