"""Which files the image's interpreter would import for a package: decided from its files, nothing is run."""

from __future__ import annotations

import ast
import fnmatch
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from graftwork.errors import MissingFile, TreeError
from graftwork.oci.tarscan import Kind
from graftwork.trees.merged import MergedView

_HOOK = re.compile(r"import (__editable___\w+_finder); ?\1\.install\(\)\s*")
# Hooks that are known to leave the search for packages alone.
_HARMLESS = ("distutils-precedence.pth", "_virtualenv.pth", "_distutils_hack*.pth", "*-nspkg.pth", "coverage*.pth")


@dataclass(frozen=True)
class ImportRoot:
    """*package* is the real path of the package's folder, *root* the folder above it; both without leading slash.

    *via* says what led there; *searched* are the folders in the interpreter's order; *notes* is for the report.
    *complete* is False where lower layers were not read for import hooks.
    """

    package: str
    root: str
    via: str
    searched: tuple[str, ...]
    notes: tuple[str, ...]
    complete: bool


@dataclass
class _Search:
    view: MergedView
    minor: str
    deep: bool
    path: list[tuple[str, str]] = field(default_factory=list)  # folder, why
    finders: dict[str, tuple[str, str]] = field(default_factory=dict)  # package -> its folder, why
    notes: list[str] = field(default_factory=list)
    complete: bool = True

    def add(self, folder: str, why: str) -> None:
        folder = "/" + folder.strip("/")
        if folder not in (known for known, _ in self.path):
            self.path.append((folder, why))

    def site(self, folder: str, why: str) -> None:
        """A site folder and what its .pth files add, in the order of site.addsitedir."""
        if self.folder(folder):
            self.add(folder, why)
            listing = self.view.names(folder, deep=self.deep)
            self.complete &= listing.complete
            pth = [name for name in listing.names if name.endswith(".pth") and not name.startswith(".")]
            self.view.want([f"{folder}/{name}" for name in pth])
            for name in pth:
                self._pth(folder, name)

    def folder(self, path: str) -> bool:
        found = self.view.stat(path)
        return found is not None and found.kind is Kind.FOLDER

    def file(self, path: str) -> bool:
        found = self.view.stat(path)
        return found is not None and found.kind is Kind.FILE

    def text(self, path: str) -> str:
        return self.view.read(path).decode("utf-8-sig", "replace")

    def _pth(self, folder: str, name: str) -> None:
        if not self.file(f"{folder}/{name}"):
            return
        for line in self.text(f"{folder}/{name}").splitlines():
            line = line.rstrip()
            if line.startswith(("import ", "import\t")):
                self._hook(folder, name, line)
            elif line and not line.startswith("#"):
                target = line if line.startswith("/") else f"{folder}/{line}"
                if self.folder(target):
                    self.add(target, f"a line of /{folder}/{name}")

    def _hook(self, folder: str, name: str, line: str) -> None:
        match = _HOOK.fullmatch(line)
        if match is None:
            if not any(fnmatch.fnmatchcase(name, pattern) for pattern in _HARMLESS):
                self.notes.append(f"/{folder}/{name} runs code at start-up, which was not followed: {line[:120]}")
            return
        finder = f"{folder}/{match[1]}.py"
        mapping = _mapping(self.text(finder)) if self.file(finder) else None
        if mapping is None:
            self.notes.append(f"/{folder}/{name} names a finder whose mapping cannot be read: /{finder}")
            return
        for package, target in mapping.items():
            self.finders.setdefault(package, (target, f"the editable finder /{finder}"))


def import_root(
    view: MergedView,
    package: str,
    minor: str,
    interpreter: str,
    *,
    env: Mapping[str, str] | None = None,
    workdir: str = "/",
    deep: bool = True,
) -> ImportRoot:
    """Where Python *minor* ("3.12"), started as *interpreter* (a path, or a name on PATH), would find *package*.

    *env* is the environment of the image's configuration. Followed: PYTHONPATH, virtual environments (pyvenv.cfg),
    Debian's dist-packages, site-packages, lines of .pth files, setuptools' editable finders (which come after
    ``sys.path``). Other start-up code is reported, not followed. MissingFile if nothing provides the package, TreeError
    for a package that is a single module or is spread over folders. Sources: site.py, getpath.py, Debian's site.py.
    """
    search = _Search(view, minor, deep)
    if "/" not in interpreter:
        interpreter = _on_path(search, interpreter, env or {})
    real = view.stat(interpreter)
    if real is None or real.kind is not Kind.FILE:
        raise MissingFile(f"{interpreter}: the image has no such interpreter", hint="Correct base.interpreter.")
    for entry in (env or {}).get("PYTHONPATH", "").split(":"):
        if entry.startswith("/") and search.folder(entry):
            search.add(entry, "PYTHONPATH")
        elif entry and not entry.startswith("/"):
            search.notes.append(f"PYTHONPATH holds {entry!r}, which depends on the working folder; not followed")
    _site_folders(search, interpreter.strip("/"), real.path)
    if workdir.strip("/") and search.folder(f"{workdir}/{package}"):
        search.notes.append(f"{workdir} holds a folder {package}, which 'python -m' started there finds first")
    folder, via = _first(search, package)
    where = view.stat(folder)
    assert where is not None
    searched = tuple(path for path, _ in search.path)
    return ImportRoot(
        where.path,
        where.path.rpartition("/")[0],
        via,
        searched,
        (*search.notes, *_records(search, package)),
        search.complete,
    )


def _on_path(search: _Search, name: str, env: Mapping[str, str]) -> str:
    folders = [f for f in env.get("PATH", "/usr/local/bin:/usr/bin:/bin").split(":") if f.startswith("/")]
    search.view.want([f"{folder}/{name}" for folder in folders])
    return next((f"{folder}/{name}" for folder in folders if search.file(f"{folder}/{name}")), name)


def _site_folders(search: _Search, interpreter: str, real: str) -> None:
    """The standard library's and the site folders, of the virtual environment and of its base."""
    home = _prefix_of(search, real)
    environment = None
    # The link is not resolved here: that is what makes a virtual environment one (PEP 405).
    for folder in (interpreter.rpartition("/")[0], interpreter.rpartition("/")[0].rpartition("/")[0]):
        if search.file(f"{folder}/pyvenv.cfg"):
            environment = folder
            break
    version = f"python{search.minor}"
    search.add(f"{home}/lib/{version}", "the standard library")
    search.add(f"{home}/lib/{version}/lib-dynload", "the standard library")
    if environment is not None:
        for lib in ("lib", "lib64"):
            search.site(f"{environment}/{lib}/{version}/site-packages", "the virtual environment")
        if not _system_too(search.text(f"{environment}/pyvenv.cfg")):
            return
    debian = home == "usr" and search.folder("usr/lib/python3/dist-packages")
    if debian:
        search.site(f"usr/local/lib/{version}/dist-packages", "Debian's local packages")
        search.site("usr/lib/python3/dist-packages", "Debian's packages")
        search.site(f"usr/lib/{version}/dist-packages", "Debian's packages")
    else:
        for lib in ("lib", "lib64"):
            search.site(f"{home}/{lib}/{version}/site-packages", "site-packages")


def _prefix_of(search: _Search, real: str) -> str:
    """The folder that holds lib/python3.x/os.py, looked for upwards from the real interpreter (getpath.py)."""
    folder = real.rpartition("/")[0]
    while folder:
        if search.file(f"{folder}/lib/python{search.minor}/os.py"):
            return folder
        folder = folder.rpartition("/")[0]
    raise TreeError(
        f"/{real}: no standard library of Python {search.minor} above it",
        hint="Correct base.python or base.interpreter of the target.",
    )


def _system_too(config: str) -> bool:
    for line in config.splitlines():
        key, _, value = line.partition("=")
        if key.strip().lower() == "include-system-site-packages":
            return value.strip().lower() == "true"
    return True


def _first(search: _Search, package: str) -> tuple[str, str]:
    """The first folder of the search path that has the package, else an editable finder's. A bare folder comes last."""
    bare: list[str] = []
    tag = f"cpython-{search.minor.replace('.', '')}"
    search.view.want([f"{folder}/{package}/__init__.py" for folder, _ in search.path])
    for folder, why in search.path:
        base = f"{folder}/{package}"
        if search.folder(base):
            if search.file(f"{base}/__init__.py"):
                return base, why
            bare.append(base)
        elif search.file(f"{base}.py") or search.file(f"{base}.{tag}-x86_64-linux-gnu.so"):
            raise TreeError(f"{base}: {package} is a single module there, not a package folder")
    if bare:
        # A folder without __init__.py ends the search of the path finder, before setuptools' finder is asked (PEP 420).
        shadowed = search.finders.get(package)
        if shadowed:
            search.notes.append(f"{bare[0]} has no __init__.py and yet hides {shadowed[0]}, of {shadowed[1]}")
        if len(bare) > 1:
            raise TreeError(f"{package} is a namespace package spread over {', '.join(bare)}")
        return bare[0], "a folder without __init__.py"
    if package in search.finders and search.folder(search.finders[package][0]):
        return search.finders[package]
    raise MissingFile(
        f"the interpreter of the image finds no {package} in {', '.join(folder for folder, _ in search.path)}",
        hint="Correct base.interpreter of the target, or pin a base that has the engine.",
    )


def _mapping(source: str) -> dict[str, str] | None:
    """MAPPING of a finder that setuptools wrote, as text; None if it is not a plain dictionary of strings."""
    try:
        nodes: Iterable[ast.stmt] = ast.parse(source).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    for node in nodes:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
        if value is not None and any(isinstance(name, ast.Name) and name.id == "MAPPING" for name in targets):
            try:
                found = ast.literal_eval(value)
            except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
                return None
            if isinstance(found, dict) and all(isinstance(text, str) for item in found.items() for text in item):
                return found
            return None
    return None


def _records(search: _Search, package: str) -> list[str]:
    """What installers wrote about an editable or direct install: told, as it decides nothing."""
    notes = []
    for folder, _ in search.path:
        for name in search.view.names(folder, deep=False).names:
            if name == f"{package}.egg-link":
                notes.append(f"{folder}/{name} marks a development install")
            elif re.fullmatch(rf"{re.escape(package)}-[^-]+\.dist-info", name, re.IGNORECASE):
                record = f"{folder}/{name}/direct_url.json"
                if search.file(record):
                    notes.append(f"{record}: {' '.join(search.text(record).split())[:200]}")
    return notes
