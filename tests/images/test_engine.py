"""The engine's view of an image, over a folder, and what is sent to it; a real engine is in tests/real."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import tarfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tiny import base_layers, sha, tar_of

from graftwork.errors import MissingFile, TreeError, UnreachableError, UsageError
from graftwork.images import containerd
from graftwork.images.engine import EngineView, connected, engine_source, load
from graftwork.images.graft import Addition, Base, graft
from graftwork.images.ship import Image
from graftwork.oci.model import Platform
from graftwork.oci.tarscan import Kind

AMD64 = Platform.parse("linux/amd64")


class Api:
    """The part of an engine's API that is used, over the folder *root*: paths as moby's ContainerStatPath has them."""

    base_url, api_version, timeout = "http+docker://engine", "1.43", 5

    def __init__(
        self, root: Path, image: dict[str, Any] | None = None, history: list[dict[str, Any]] | None = None
    ) -> None:
        self.root, self.image, self.rows = root.resolve(), image or {}, history or []
        self.status: list[list[str]] = [["Backing Filesystem", "extfs"]]
        self.removed: list[str] = []
        self.requests: list[str] = []

    def create_container(self, name: str, command: list[str]) -> dict[str, str]:
        return {"Id": "c1"}

    def remove_container(self, container: str, **options: Any) -> None:
        self.removed.append(container)

    def info(self) -> dict[str, Any]:
        return {"DriverStatus": self.status}

    def inspect_image(self, name: str) -> dict[str, Any]:
        return self.image

    def history(self, name: str) -> list[dict[str, Any]]:
        return self.rows

    def head(self, url: str, params: dict[str, str], **options: Any) -> Any:
        self.requests.append(f"HEAD {params['path']}")
        path = self.root / params["path"].lstrip("/")
        if path.parent.is_file():
            return SimpleNamespace(status_code=500, headers={})  # 'not a directory', says a real one
        if not path.is_symlink() and not path.exists():
            return SimpleNamespace(status_code=404, headers={})
        mode = 1 << 31 if path.is_dir() and not path.is_symlink() else 1 << 27 if path.is_symlink() else 0
        target = ""
        if path.is_symlink():
            text = str(path.readlink())
            end = self.root / text.lstrip("/") if text.startswith("/") else path
            try:
                target = str(end.resolve())
                looped = end.resolve().is_symlink()  # from 3.13 on, resolve() leaves a loop as it is
            except (OSError, RuntimeError):
                looped = True
            if looped:
                return SimpleNamespace(status_code=500, headers={})
            target = "/" + str(Path(target).relative_to(self.root))
        text = json.dumps({"name": path.name, "mode": mode, "size": 0, "linkTarget": target})
        headers = {"X-Docker-Container-Path-Stat": base64.b64encode(text.encode()).decode()}
        return SimpleNamespace(status_code=200, headers=headers)

    def get(self, url: str, params: dict[str, str], **options: Any) -> Any:
        self.requests.append(f"GET {params['path']}")
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w") as tar:
            path = self.root / params["path"].lstrip("/")
            tar.add(path, arcname=path.name)
        return _Answer(io.BytesIO(out.getvalue()))


class _Answer(SimpleNamespace):
    def __init__(self, raw: io.BytesIO) -> None:
        super().__init__(raw=raw, status_code=200)

    def __enter__(self) -> _Answer:
        return self

    def __exit__(self, *_: object) -> None:
        self.raw.close()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "root"
    (folder / "opt/real/pkg").mkdir(parents=True)
    (folder / "opt/real/pkg/a.py").write_bytes(b"a = 1\n")
    (folder / "opt/real/pkg/a.py").chmod(0o640)
    (folder / "opt/real/pkg/b.py").write_bytes(b"b = 1\n")
    (folder / "opt/link").symlink_to("/opt/real")
    (folder / "opt/real/other.py").symlink_to("pkg/a.py")
    (folder / "opt/dangling").symlink_to("nothing")
    (folder / "opt/loop").symlink_to("loop")
    return folder


def view(root: Path) -> EngineView:
    return EngineView(SimpleNamespace(api=Api(root)), "toy:1")  # type: ignore[arg-type]


def test_links_are_followed_to_the_real_path_with_its_facts(root: Path) -> None:
    with view(root) as seen:
        found = seen.stat("opt/link/pkg/a.py")
        assert found is not None and (found.path, found.kind) == ("opt/real/pkg/a.py", Kind.FILE)
        assert (found.mode, found.sha256) == (0o640, hashlib.sha256(b"a = 1\n").hexdigest())
        assert found.uid == (root / "opt").stat().st_uid
        assert seen.read("opt/link/pkg/../other.py") == b"a = 1\n"
        link = seen.stat("opt/link", follow=False)
        assert link is not None and link.kind is Kind.SYMLINK and link.path == "opt/link"
        folder = seen.stat("/opt/link/")
        assert folder is not None and folder.kind is Kind.FOLDER and folder.path == "opt/real"
        assert seen.names("opt/link/pkg").names == ("a.py", "b.py") and seen.names("opt/nothing").names == ()
        assert seen.names("opt/real/pkg/a.py").names == ()


def test_what_is_not_there_is_none_and_never_read(root: Path) -> None:
    with view(root) as seen:
        for path in ("opt/none", "opt/dangling", "opt/real/pkg/a.py/x", "opt/dangling/x"):
            assert seen.stat(path) is None, path
        with pytest.raises(MissingFile, match="opt/none: not in toy:1"):
            seen.read("opt/none")
        with pytest.raises(TreeError, match="not a regular file"):
            seen.read("opt/real")
        with pytest.raises(TreeError, match="a loop of links"):
            seen.stat("opt/loop/x")


def test_each_file_is_asked_for_once_and_the_container_is_removed(root: Path) -> None:
    with view(root) as seen:
        for _ in range(3):
            seen.read("opt/link/pkg/a.py")
            seen.stat("opt/link/pkg/a.py")
        api: Any = seen._api
        assert len(api.requests) == len(set(api.requests)) and seen.moved == 6
    assert api.removed == ["c1"]


TARS = [tar_of(entries) for entries in base_layers()]
SETTINGS = {"Env": ["PATH=/usr/bin"], "Labels": None, "Entrypoint": ["/x"], "Healthcheck": {"Test": ["NONE"]}}
INSPECTED = {
    "Id": "sha256:" + "1" * 64,
    "Architecture": "amd64",
    "Os": "linux",
    "Created": "2026-01-01T00:00:00Z",
    "Author": "somebody",
    "Config": SETTINGS,
    "RootFS": {"Type": "layers", "Layers": [sha(tar) for tar in TARS]},
}
ROWS = [
    {"Created": 30, "CreatedBy": "ENV X=1", "Size": 0, "Comment": ""},
    *({"Created": n, "CreatedBy": f"step {n}", "Size": 10, "Comment": "c"} for n in (2, 1, 0)),
]


def client(image: dict[str, Any], rows: list[dict[str, Any]], root: Path) -> Any:
    sent: list[bytes] = []
    loaded = SimpleNamespace(load=lambda file: sent.append(file.read()))
    return SimpleNamespace(api=Api(root, image, rows), images=loaded, sent=sent)


def test_an_engines_image_as_a_base_keeps_everything_the_engine_tells(tmp_path: Path) -> None:
    base = engine_source(client(INSPECTED, ROWS, tmp_path), "toy:1").base(AMD64)
    config = base.config.data
    assert config["config"] == SETTINGS and config["author"] == "somebody"
    assert [step["created_by"] for step in config["history"]] == ["step 0", "step 1", "step 2", "ENV X=1"]
    assert config["history"][3]["empty_layer"] is True and config["history"][1]["created"] == "1970-01-01T00:00:01Z"
    assert [layer.digest for layer in base.manifest.layers] == INSPECTED["RootFS"]["Layers"]  # type: ignore[index]


def test_a_history_that_does_not_fit_the_layers_is_left_out(tmp_path: Path) -> None:
    assert engine_source(client(INSPECTED, ROWS[:2], tmp_path), "toy:1").base(AMD64).config.data["history"] == []


def grafted(base: Base) -> Image:
    tar = b"the payload's tar".ljust(1024)
    addition = Addition(sha(b"blob"), sha(tar), 4, {}, {}, [{"created_by": "graftwork image t"}])
    return Image(AMD64, graft(base, addition), b"blob", tar)


def test_only_the_payload_is_sent_and_the_engines_answer_is_checked(tmp_path: Path) -> None:
    engine = client(INSPECTED, ROWS, tmp_path)
    image = grafted(engine_source(engine, "toy:1").base(AMD64))
    want = image.grafted.config.data["rootfs"]["diff_ids"]
    engine.api.image = {**INSPECTED, "RootFS": {"Layers": want}}
    assert load(engine, image, "patched:1") == INSPECTED["Id"]
    with tarfile.open(fileobj=io.BytesIO(engine.sent[0])) as tar:
        names = tar.getnames()
        assert len(names) == 3 and names[0] == f"{want[-1][7:]}/layer.tar"
        listed = tar.extractfile("manifest.json")
        assert listed is not None
        (entry,) = json.loads(listed.read())
    assert entry["RepoTags"] == ["patched:1"] and entry["Layers"] == [f"{digest[7:]}/layer.tar" for digest in want]
    engine.api.image = INSPECTED
    with pytest.raises(TreeError, match="made other layers of patched:1"):
        load(engine, image, "patched:1")


def test_an_engine_that_keeps_images_in_containerd_gets_a_layout_and_is_no_base(tmp_path: Path) -> None:
    engine = client(INSPECTED, ROWS, tmp_path)
    containerd.refuse_base(engine, "toy:1")
    image = grafted(engine_source(engine, "toy:1").base(AMD64))
    engine.api.status = [["driver-type", "io.containerd.snapshotter.v1"]]
    engine.api.image = {**INSPECTED, "RootFS": {"Layers": image.grafted.config.data["rootfs"]["diff_ids"]}}
    load(engine, image, "patched:1")
    with tarfile.open(fileobj=io.BytesIO(engine.sent[0])) as tar:
        found = {member.name: tar.extractfile(member).read() for member in tar}  # type: ignore[union-attr]
    grown = image.grafted
    blobs = {f"blobs/sha256/{sha(data)[7:]}": data for data in (b"blob", grown.config.raw, grown.manifest.raw)}
    assert found.items() >= blobs.items() and set(found) - set(blobs) == {"index.json", "oci-layout"}
    (row,) = json.loads(found["index.json"])["manifests"]
    assert row["digest"] == grown.manifest.digest
    assert row["annotations"]["io.containerd.image.name"] == "docker.io/library/patched:1"
    engine.api.image = {**INSPECTED, "RepoDigests": ["example.test/toy@sha256:1"]}
    with pytest.raises(UsageError, match="does not tell their manifests") as refused:
        containerd.refuse_base(engine, "toy:1")
    assert "--base example.test/toy@sha256:1" in refused.value.hint


def test_an_engine_that_lacks_the_base(tmp_path: Path) -> None:
    import docker.errors

    engine = client(INSPECTED, ROWS, tmp_path)
    image = grafted(engine_source(engine, "toy:1").base(AMD64))

    def refuse(file: object) -> None:
        raise docker.errors.ImageLoadError("open x/layer.tar: no such file or directory")

    engine.images.load = refuse
    with pytest.raises(UnreachableError, match="seems to lack layers of docker:toy:1") as refused:
        load(engine, image, "patched:1")
    assert "docker-archive:FILE" in refused.value.hint


@pytest.mark.parametrize("host", ["unix:///nonexistent/docker.sock", "bogus://x", "tcp://127.0.0.1:9"])
def test_no_engine_at_all(monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    monkeypatch.setenv("DOCKER_HOST", host)
    with pytest.raises(UnreachableError, match="no Docker Engine answers"), connected():
        pass
