from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from graftwork.errors import TreeError
from graftwork.trees.folder import FolderTree
from graftwork.trees.version import engine_version
from graftwork.trees.wheel import WheelTree

SCM = """
__all__ = ["__version__"]
version: str
__version__: str
__version__ = version = '0.5.23'
raise SystemExit("must not run")
"""
FALLBACK = "try:\n    from eng._version import __version__\nexcept ImportError:\n    __version__ = '0.0.0.dev0'\n"


def tree(root: Path, files: dict[str, str]) -> FolderTree:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return FolderTree(root)


@pytest.mark.parametrize(
    ("files", "version"),
    [
        ({"eng/_version.py": SCM}, "0.5.23"),
        ({"eng/_version.py": "__version__: str = '1.0'\n", "eng-2.0.dist-info/METADATA": "Version: 2.0\n"}, "1.0"),
        ({"eng/version.py": "__version__ = '0.4.6.post1'\n"}, "0.4.6.post1"),
        ({"eng/version.py": FALLBACK, "eng-2.0.dist-info/METADATA": "Name: eng\nVersion: 2.0\n\nVersion: 3\n"}, "2.0"),
        ({"eng/version.py": FALLBACK}, None),
        ({"eng/__init__.py": "", "engine-2.0.dist-info/METADATA": "Version: 2.0\n"}, None),
    ],
)
def test_version(tmp_path: Path, files: dict[str, str], version: str | None) -> None:
    assert engine_version(tree(tmp_path, files), "eng") == version


def test_metadata_of_a_name_with_a_dash(tmp_path: Path) -> None:
    files = {"sgl_kernel/__init__.py": "", "sgl_kernel-0.3.1.dist-info/METADATA": "Version: 0.3.1\n"}
    assert engine_version(tree(tmp_path, files), "sgl-kernel") == "0.3.1"


def test_wheel(make_wheel: Callable[..., Path]) -> None:
    files = {"eng/__init__.py": b"", "eng-1.2.3.dist-info/METADATA": b"Metadata-Version: 2.1\nVersion: 1.2.3\n"}
    assert engine_version(WheelTree(make_wheel(files)), "eng") == "1.2.3"


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({"eng/_version.py": "__version__ = = 1"}, "not Python"),
        ({"eng/_version.py": "__version__ = 'latest'"}, "'latest' is not a version"),
        (
            {"eng-1.0.dist-info/METADATA": "Version: 1.0\n", "Eng-2.0.dist-info/METADATA": "Version: 2.0\n"},
            "two versions",
        ),
    ],
)
def test_refused(tmp_path: Path, files: dict[str, str], says: str) -> None:
    with pytest.raises(TreeError, match=says):
        engine_version(tree(tmp_path, files), "eng")
