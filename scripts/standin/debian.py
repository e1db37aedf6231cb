"""The stand-in's root file system: Debian packages with Python and a shell."""

from __future__ import annotations

import json
import os
import posixpath
import re
import subprocess
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

from graftwork.images.interpreters import find_interpreter
from standin.layers import LayerWriter

_PYTHON = ("python{0}-minimal", "libpython{0}-minimal", "libpython{0}-stdlib")
# What Python's extension modules and a shell load; busybox-static is the shell and its tools.
_LIBRARIES = """
    base-files base-passwd libc6 libgcc-s1 zlib1g libexpat1 libssl3 libcrypt1 libffi8 libbz2-1.0 liblzma5 libsqlite3-0
    libreadline8 libncursesw6 libtinfo6 libuuid1 libnsl2 libtirpc3 libgssapi-krb5-2 libkrb5-3 libk5crypto3
    libkrb5support0 libcom-err2 libkeyutils1 busybox-static
"""
_MERGED = ("bin", "lib", "lib32", "lib64", "libx32", "sbin")
_SKIPPED = ("usr/share/doc/", "usr/share/man/", "usr/share/locale/", "usr/share/lintian/", "usr/share/bug/")
_HOST_SKIPPED = {"__pycache__", "test", "tests", "idlelib", "tkinter", "turtledemo", "ensurepip", "lib2to3"}


class CannotMake(Exception):
    """The stand-in cannot be made here; the message says why and what to do."""


@dataclass(frozen=True)
class Python:
    """The stand-in's interpreter: *minor* such as 3.11, *path* in the image, *prefix* on this host for a copy."""

    minor: str
    path: str
    origin: str
    prefix: Path | None = None


def choose_python(wanted: str, source: str = "auto") -> Python:
    """The interpreter for a base that runs Python *wanted* ("3.10"), from "debian", or a copy of this host's *source*.

    "auto" takes Debian's if that has *wanted*, else a copy of this host's, else the minor that Debian has.
    """
    has = bool(_show(f"python{wanted}-minimal"))
    if source not in ("auto", "debian"):
        return _of_host(source)
    if source == "auto" and not has and (found := find_interpreter(wanted)):
        return _of_host(str(found.program))
    if not has:
        other = re.search(r"\bpython(3\.\d+)-minimal", _show("python3-minimal"))
        if not other:
            raise CannotMake("apt knows no package python3-minimal; run apt-get update")
        wanted = other[1]
    return Python(wanted, f"/usr/bin/python{wanted}", "Debian's")


def _of_host(program: str) -> Python:
    code = "import json, sys; print(json.dumps([sys.base_prefix, '%d.%d' % sys.version_info[:2]]))"
    prefix, minor = json.loads(_run([program, "-I", "-c", code]))
    return Python(minor, f"/usr/local/bin/python{minor}", "a copy of this host's", Path(prefix))


def _show(package: str) -> str:
    done = subprocess.run(["apt-cache", "show", package], capture_output=True, text=True, check=False)
    return done.stdout


def download(python: Python, folder: Path) -> list[Path]:
    """The packages' files in *folder*, fetched with apt where they are not there yet; sorted by name."""
    names = [*_LIBRARIES.split(), *([] if python.prefix else [name.format(python.minor) for name in _PYTHON])]
    folder.mkdir(parents=True, exist_ok=True)
    missing = [name for name in names if not any(folder.glob(f"{name}_*.deb"))]
    if missing:
        root = ["-o", "APT::Sandbox::User=root"] if os.geteuid() == 0 else []
        _run(["apt-get", "-qq", *root, "download", *missing], folder)
    return sorted(next(iter(sorted(folder.glob(f"{name}_*.deb")))) for name in names)


def _run(command: list[str], folder: Path | None = None) -> str:
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise CannotMake(f"{command[0]} is not there (the stand-in is made of Debian packages, with apt)") from error
    if done.returncode:
        raise CannotMake(f"exit code {done.returncode}: {' '.join(command)}\n{done.stderr.strip()}")
    return done.stdout


def add_root(layer: LayerWriter, python: Python, packages: list[Path]) -> None:
    """Write the root file system, with /bin, /lib and the others merged into /usr."""
    layer.folder("usr")
    for name in _MERGED:
        layer.folder(f"usr/{name}")
        layer.link(name, f"usr/{name}")
    seen = {"usr", *_MERGED, *(f"usr/{name}" for name in _MERGED)}
    for package in packages:
        for info, data in _members(package):
            if info.name not in seen and not info.name.startswith(_SKIPPED):
                seen.add(info.name)
                layer.copy(info, data)
    for tool in ("sh", "ls", "cat", "env", "id", "find", "sha256sum", "rm", "sleep", "true"):
        layer.link(f"usr/bin/{tool}", "busybox")
    for path, text in _FILES.items():
        layer.file(path, text.encode())
    if python.prefix:
        _add_host_python(layer, python)
    else:
        layer.link("usr/bin/python3", f"python{python.minor}")


_FILES = {
    "etc/passwd": "root:x:0:0:root:/root:/bin/sh\nstandin:x:1000:1000:stand-in:/home/standin:/bin/sh\n",
    "etc/group": "root:x:0:\nstandin:x:1000:\n",
    "etc/graftwork-standin": "A stand-in for an engine's base image, for tests and benches. It holds no real ROCm.\n",
}


def _members(package: Path) -> Iterator[tuple[tarfile.TarInfo, IO[bytes] | None]]:
    """The package's files, in paths of a merged /usr, folders named with no slash at the end."""
    with _filesystem(package) as stream, tarfile.open(fileobj=stream, mode="r|") as archive:
        for info in archive:
            name = _merged(posixpath.normpath(info.name))
            if name != ".":
                link = _merged(info.linkname.removeprefix("./")) if info.islnk() else info.linkname
                yield _renamed(info, name, link), archive.extractfile(info) if info.isreg() else None


def _renamed(info: tarfile.TarInfo, name: str, link: str) -> tarfile.TarInfo:
    found = info.replace(name=name, linkname=link, uname="", gname="", deep=False)
    found.pax_headers = {}
    return found


def _merged(path: str) -> str:
    return f"usr/{path}" if path.split("/")[0] in _MERGED else path


@contextmanager
def _filesystem(package: Path) -> Iterator[IO[bytes]]:
    with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", str(package)], stdout=subprocess.PIPE) as process:
        yield cast(IO[bytes], process.stdout)
        cast(IO[bytes], process.stdout).read()
    if process.returncode:
        raise CannotMake(f"dpkg-deb could not read {package.name}")


def _add_host_python(layer: LayerWriter, python: Python) -> None:
    prefix, name = cast(Path, python.prefix), f"python{python.minor}"
    layer.folder("usr/local")
    layer.folder("usr/local/bin")
    layer.file(f"usr/local/bin/{name}", (prefix / "bin" / name).read_bytes(), mode=0o755)
    layer.link("usr/local/bin/python3", name)
    for library in sorted((prefix / "lib").glob(f"lib{name}*.so*")):
        layer.file(f"usr/lib/{library.name}", library.read_bytes(), mode=0o755)
    layer.folder("usr/local/lib")
    for folder, inside, files in os.walk(prefix / "lib" / name):
        inside[:] = sorted(set(inside) - _HOST_SKIPPED - {d for d in inside if d.startswith(("config-", "site-"))})
        where = f"usr/local/lib/{Path(folder).relative_to(prefix / 'lib')}"
        layer.folder(where)
        for file in sorted(files):
            layer.file(f"{where}/{file}", (Path(folder) / file).read_bytes())


def compile_with(python: Python, packages: list[Path], work: Path, jobs: list[dict[str, str]]) -> None:
    """Compile *jobs* (source, target, name, optimize) with the stand-in's own interpreter, which need not be root."""
    script = (
        "import json, py_compile, sys\n"
        "for job in json.load(sys.stdin):\n"
        "    py_compile.compile(job['source'], job['target'], job['name'], True, int(job['optimize']))\n"
    )
    if python.prefix:
        command = [str(python.prefix / "bin" / f"python{python.minor}")]
    else:
        root = work / "python-root"
        for package in packages:
            _run(["dpkg-deb", "-x", str(package), str(root)])
        loader = next(iter(sorted(root.glob("lib*/*/ld-linux-*")) or sorted(root.glob("lib*/ld-linux-*"))), None)
        if loader is None:
            raise CannotMake("libc6 has no ld-linux; is this another libc?")
        libraries = ":".join(str(path) for path in (*root.glob("lib/*-linux-gnu"), *root.glob("usr/lib/*-linux-gnu")))
        command = [str(loader), "--library-path", libraries, str(root / python.path.lstrip("/"))]
    environment = {"PYTHONHASHSEED": "0", "LC_ALL": "C.UTF-8"}
    if not python.prefix:
        environment["PYTHONHOME"] = str(work / "python-root/usr")
    done = subprocess.run(
        [*command, "-S", "-s", "-c", script],
        input=json.dumps(jobs),
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise CannotMake(f"the stand-in's Python {python.minor} could not compile:\n{done.stderr.strip()}")
