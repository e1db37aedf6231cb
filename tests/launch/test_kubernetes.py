"""Manifests: valid under strict schemas of several releases, in the right order, with nothing left to find out."""

from __future__ import annotations

import contextlib
import gzip
import http.server
import json
import random
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from recipes import SGLANG, VLLM
from recipes import rendered as recipe_rendered
from tiny import Entry, tar_of, tiny_workshop
from toys import ROOT

from graftwork.catalog.catalog import Catalog
from graftwork.errors import UsageError
from graftwork.launch.demands import Contents, of_target
from graftwork.launch.deployment import Bounds, Component, Deployment, Image, Node, Ready, check
from graftwork.launch.kubernetes import manifests as rendering
from graftwork.launch.kubernetes.cluster import Cluster, Mount
from graftwork.launch.kubernetes.manifests import manifests, script, write
from graftwork.launch.kubernetes.payload import PayloadFiles
from graftwork.launch.kubernetes.scripts import unpack, wait
from graftwork.launch.recipe_file import load_recipe
from graftwork.launch.render import render

ENGINE = "sgl-workspace/sglang/python/sglang/srt"
FILES = (f"/{ENGINE}/layers/a.py", f"/{ENGINE}/layers/b.py", f"/{ENGINE}/mem/c.json")
IMAGE = "registry.example/glm:1@sha256:" + "1" * 64
GRAFTED = Cluster(image=IMAGE, gpu="amd.com/gpu")
PAYLOAD = PayloadFiles(FILES, b"not read")


def component(name: str, role: Any, node: int, **more: Any) -> Component:
    settings: dict[str, Any] = {
        "argv": [name],
        "ports": {"http": 1},
        "ready": Ready(kind="http", port="http", path="/"),
    }
    return Component(name=name, role=role, node=node, **settings | more)


def leg(name: str, role: Any, node: int) -> Component:
    argv = ["python3", "-m", "engine", "--host", f"{{host:{node}}}", "--port", "{port:http}", "--json", '{{"a": 1}}']
    env = {"MOONCAKE_CONFIG_PATH": f"{{run}}/{name}.json", "TMPDIR": "{tmp}", "UCX_NET_DEVICES": "{nics}"}
    files = {f"{name}.json": '{{"master": "{host:0}:{port:store-master/rpc}", "cache": "{cache}"}}'}
    return component(name, role, node, argv=argv, env=env, files=files, gpus=[0, 1], ports={"http": 1, "kv": 4})


@pytest.fixture
def deployment() -> Deployment:
    """Prefill, router and the store's master on one node, decode and a client of the store on the other."""
    tcp = Ready(kind="tcp", port="rpc", bound_s=60)
    made = Deployment(
        name="glm",
        engine="sglang",
        version="0.5.16",
        nodes=2,
        node=Node(gpus=2, memory_gib=64),
        components=[
            component("router", "router", 0, argv=["router", "{host:1}:{port:decode/http}"], order=0),
            leg("prefill", "prefill", 0),
            component("store-master", "store-master", 0, order=2, ports={"rpc": 1}, ready=tcp),
            leg("decode", "decode", 1),
            component(
                "store-1", "store-client", 1, order=2, argv=["client", "{host:0}:{port:store-master/rpc}"],
                ports={"rpc": 1}, ready=tcp,
            ),
        ],
        bounds=Bounds(engine_s=600, drain_s=900, lead_s=960),
        image=Image(target="t", interpreter="/opt/venv/bin/python"),
    )  # fmt: skip
    check(made)
    return made


def rendered(deployment: Deployment, cluster: Cluster = GRAFTED) -> dict[str, dict[str, Any]]:
    """The objects by kind and name."""
    return {f"{item['kind']}/{item['metadata']['name']}": item for item in manifests(deployment, cluster)["items"]}


def pod(deployment: Deployment, node: int, cluster: Cluster = GRAFTED) -> dict[str, Any]:
    found: dict[str, Any] = rendered(deployment, cluster)[f"StatefulSet/glm-n{node}"]["spec"]["template"]["spec"]
    return found


def container(spec: dict[str, Any], name: str) -> dict[str, Any]:
    return next(item for item in [*spec["initContainers"], *spec["containers"]] if item["name"] == name)


WAYS = {
    "grafted": GRAFTED,
    "volume": Cluster(IMAGE, "amd.com/gpu", "volume", PAYLOAD, "registry.example/payload:1", "team", "rdma/hca"),
    "init": Cluster(IMAGE, "amd.com/gpu", "init", PAYLOAD, mounts=[Mount("/models", "claim:weights")], env={"A": "1"}),
}


@pytest.mark.parametrize(
    ("way", "release"),
    [
        ("grafted", "1.29"),
        ("grafted", "1.37"),
        ("init", "1.29"),
        ("init", "1.35"),
        ("volume", "1.33"),
        ("volume", "1.37"),
    ],
)
def test_every_object_is_valid_under_the_strict_schema(deployment: Deployment, way: str, release: str) -> None:
    schemas = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is missing: it has the schemas")
    for item in manifests(deployment, WAYS[way])["items"]:
        assert schemas.validate(item, release, strict=True) == release
    spoiled = manifests(deployment, WAYS[way])["items"][-1]
    spoiled["spec"]["template"]["spec"]["containers"][0]["comand"] = []
    with pytest.raises(schemas.ValidationError):
        schemas.validate(spoiled, release, strict=True)


@pytest.mark.parametrize("file", sorted((ROOT / "deploy/recipes").glob("*.toml")), ids=lambda file: file.stem)
@pytest.mark.parametrize("way", ["grafted", "volume", "init"])
def test_every_recipe_as_manifests(file: Path, way: str) -> None:
    recipe = load_recipe(file, [])
    contents = of_target(Catalog.find(ROOT), recipe.target) if recipe.target else Contents()
    made = render(recipe, contents).deployment
    items = manifests(made, WAYS[way])["items"]
    pods = [item["spec"]["template"]["spec"] for item in items if item["kind"] == "StatefulSet"]
    names = [each["name"] for spec in pods for each in [*spec["initContainers"], *spec["containers"]]]
    assert {part.name for part in made.components} <= set(names)
    assert ("self-check" in names) is (way != "grafted" or bool(recipe.target))
    for part in made.components:
        spec = container(pods[part.node], part.name)
        assert ("readinessProbe" in spec) is (part.ready.kind != "none")
        assert spec.get("resources", {}).get("limits", {}).get("amd.com/gpu", "0") == str(len(part.gpus))
    schemas = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is missing: it has the schemas")
    for item in items:
        schemas.validate(item, "1.33", strict=True)


def test_a_daemon_on_a_socket_is_asked_by_a_script() -> None:
    """The socket lies in a folder that the containers of a pod share; no other pod waits for it."""
    kvd = {"command": ["kvd"], "memory_gib": 64, "disk_gib": 100, "disk_path": "/nvme"}
    found = recipe_rendered(SGLANG, kvd=kvd, prefill__hicache_gb=16, router={"kind": "infera"}).deployment
    daemon = container(rendered(found)["StatefulSet/small-n0"]["spec"]["template"]["spec"], "kvd-n0")
    socket_path = daemon["command"][daemon["command"].index("--socket") + 1]
    asked = ["python3", "/graftwork/files/wait.py", "0", f"unix:{socket_path}"]
    assert daemon["startupProbe"]["exec"] == daemon["readinessProbe"]["exec"] == {"command": asked}
    mounted = {item["mountPath"] for item in daemon["volumeMounts"]}
    assert {"/graftwork/files", str(Path(socket_path).parent)} <= mounted
    decode = rendered(found)["StatefulSet/small-n1"]["spec"]["template"]["spec"]
    (waiting,) = [item for item in decode["initContainers"] if item["name"] == "wait-1"]
    assert [word for word in waiting["command"] if "unix:" in word] == []


def test_ranks_of_one_engine_beside_a_router_start_together() -> None:
    """A sidecar with a startup probe holds back the next until it is ready, which no rank is before all run."""
    base = {**VLLM, "mixed": {"tp": 1, "dp": 2, "ranks": "apart"}, "router": {"kind": "vllm-router"}}
    found = recipe_rendered(base, prefill=None, decode=None).deployment
    spec = rendered(found)["StatefulSet/small-n0"]["spec"]["template"]["spec"]
    ranks = [container(spec, f"mixed-0-r{rank}") for rank in range(2)]
    assert not any("startupProbe" in rank for rank in ranks) and all("readinessProbe" in rank for rank in ranks)
    ports = [rank["ports"][0]["containerPort"] for rank in ranks]
    asked = container(spec, "wait-0")["command"][2:]
    assert asked == ["3600", *(f"http://127.0.0.1:{port}/health" for port in ports)]


def test_text_with_a_dollar_stays_as_it_is(deployment: Deployment) -> None:
    """Kubernetes replaces $(NAME) and halves $$ in commands and variables."""
    part = component("odd", "mixed", 0, argv=["run", "$(A) $$"], env={"A": "$(B)"})
    odd = Deployment(
        name="odd", engine="sglang", version="1", nodes=1, node=Node(gpus=0, memory_gib=1), components=[part],
        bounds=Bounds(engine_s=1, drain_s=2, lead_s=3),
    )  # fmt: skip
    found = container(rendered(odd)["StatefulSet/odd-n0"]["spec"]["template"]["spec"], "odd")
    assert found["command"] == ["run", "$$(A) $$$$"] and found["env"] == [{"name": "A", "value": "$$(B)"}]


def test_what_stops_last_starts_first(deployment: Deployment) -> None:
    """Sidecars stop after the containers, in the reverse order of their start."""
    first, second = pod(deployment, 0), pod(deployment, 1)
    assert [(item["name"], item.get("restartPolicy")) for item in first["initContainers"]] == [
        ("self-check", None),
        ("store-master", "Always"),
        ("wait-1", None),
        ("prefill", "Always"),
        ("wait-0", None),
    ]
    assert [item["name"] for item in first["containers"]] == ["router"]
    assert [item["name"] for item in second["initContainers"]] == ["self-check", "wait-2", "store-1", "wait-1"]
    assert [item["name"] for item in second["containers"]] == ["decode"]


def test_a_pod_waits_for_what_the_others_must_have_ready(deployment: Deployment) -> None:
    waiting = container(pod(deployment, 0), "wait-0")["command"]
    assert waiting[:2] == ["/opt/venv/bin/python", "/graftwork/files/wait.py"]
    decode = container(pod(deployment, 1), "decode")["ports"][0]["containerPort"]
    store = container(pod(deployment, 1), "store-1")["ports"][0]["containerPort"]
    assert waiting[2:] == ["600", f"glm-n1-0.glm-peers:{store}", f"http://glm-n1-0.glm-peers:{decode}/"]
    master = container(pod(deployment, 0), "store-master")["ports"][0]["containerPort"]
    assert container(pod(deployment, 1), "wait-2")["command"][2:] == ["60", f"glm-n0-0.glm-peers:{master}"]


def test_nothing_is_left_to_fill_in(deployment: Deployment) -> None:
    prefill = container(pod(deployment, 0), "prefill")
    port = prefill["ports"][0]["containerPort"]
    assert prefill["command"][-6:] == ["--host", "glm-n0-0.glm-peers", "--port", str(port), "--json", '{"a": 1}']
    env = {item["name"]: item["value"] for item in prefill["env"]}
    assert env == {
        "MOONCAKE_CONFIG_PATH": "/graftwork/run/prefill.json",
        "TMPDIR": "/graftwork/tmp/prefill",
        "UCX_NET_DEVICES": "all",
    }
    data = rendered(deployment)["ConfigMap/glm-files"]["data"]
    mount = next(item for item in prefill["volumeMounts"] if item["mountPath"] == "/graftwork/run/prefill.json")
    master = container(pod(deployment, 0), "store-master")["ports"][0]["containerPort"]
    assert json.loads(data[mount["subPath"]]) == {"master": f"glm-n0-0.glm-peers:{master}", "cache": "/graftwork/cache"}


def test_ports_of_a_pod_never_meet(deployment: Deployment) -> None:
    spec = pod(deployment, 0)
    starts = sorted(
        port["containerPort"]
        for item in [*spec["initContainers"], *spec["containers"]]
        for port in item.get("ports", [])
    )
    prefill = [port["containerPort"] for port in container(spec, "prefill")["ports"]]
    assert len(starts) == len(set(starts)) == 4
    assert not set(range(prefill[1] + 1, prefill[1] + 4)) & set(starts)


def test_a_port_that_the_user_chose_is_the_pods(deployment: Deployment) -> None:
    base = {**SGLANG, "router": {"kind": "sglang-router", "args": ["--port", "21001"]}}
    spec = rendered(recipe_rendered(base).deployment)["StatefulSet/small-n0"]["spec"]["template"]["spec"]
    ports = [port["containerPort"] for name in ("prefill-0", "router") for port in container(spec, name)["ports"]]
    assert ports == [21000, 21002, 21001, 21003]
    assert container(spec, "router")["startupProbe"]["httpGet"]["port"] == 21001


def test_a_pod_has_the_time_of_its_drain(deployment: Deployment) -> None:
    spec = pod(deployment, 1)
    assert spec["terminationGracePeriodSeconds"] >= deployment.bounds.drain_s
    assert spec["shareProcessNamespace"] is True
    assert spec["enableServiceLinks"] is False


def test_readiness_allows_the_bound_of_a_start(deployment: Deployment) -> None:
    decode = container(pod(deployment, 1), "decode")
    startup = decode["startupProbe"]
    assert startup["periodSeconds"] * startup["failureThreshold"] >= 600
    assert (
        startup["httpGet"]
        == decode["readinessProbe"]["httpGet"]
        == {"path": "/", "port": decode["ports"][0]["containerPort"]}
    )
    assert "livenessProbe" not in decode
    assert container(pod(deployment, 1), "store-1")["startupProbe"]["tcpSocket"]


def test_the_self_check_sees_what_the_engine_sees(deployment: Deployment) -> None:
    for way in WAYS.values():
        spec = pod(deployment, 1, way)
        check, decode = container(spec, "self-check"), container(spec, "decode")
        assert check["command"] == ["/opt/venv/bin/python", "/usr/share/graftwork/check.py"]
        assert check["image"] == decode["image"] == IMAGE
        own = [item for item in decode["volumeMounts"] if item not in check["volumeMounts"]]
        assert [item["name"] for item in own] == ["tmp"]
        names = [item["name"] for item in spec["initContainers"]]
        assert names.index("self-check") == (1 if way.way == "init" else 0)


def test_the_payload_is_mounted_file_by_file_over_the_base(deployment: Deployment) -> None:
    spec = pod(deployment, 1, WAYS["volume"])
    mounts = {item["mountPath"]: item for item in container(spec, "decode")["volumeMounts"]}
    for path in (*FILES, "/usr/share/graftwork"):
        assert mounts[path] == {"name": "payload", "mountPath": path, "subPath": path[1:], "readOnly": True}
    assert mounts[f"/{ENGINE}/layers/__pycache__"]["name"] == "bytecode"
    assert f"/{ENGINE}/mem/__pycache__" not in mounts
    volumes = {item["name"]: item for item in spec["volumes"]}
    assert volumes["payload"]["image"] == {"reference": "registry.example/payload:1"}
    assert volumes["bytecode"]["emptyDir"] == {}


def test_devices_and_folders_of_the_cluster(deployment: Deployment) -> None:
    decode = container(pod(deployment, 1, WAYS["volume"]), "decode")
    assert decode["resources"]["limits"] == {"amd.com/gpu": "2", "rdma/hca": "1"}
    assert decode["securityContext"]["capabilities"]["add"] == ["IPC_LOCK"]
    assert "resources" not in container(pod(deployment, 1), "store-1")
    spec = pod(deployment, 1, WAYS["init"])
    assert {"name": "mount-0", "persistentVolumeClaim": {"claimName": "weights"}} in spec["volumes"]
    assert {"name": "A", "value": "1"} in container(spec, "decode")["env"]
    host = Mount.parse("/models=host:/srv/models")
    assert host.volume("x") == {"name": "x", "hostPath": {"path": "/srv/models"}}


def test_services(deployment: Deployment) -> None:
    objects = rendered(deployment, WAYS["volume"])
    assert objects["Service/glm-peers"]["spec"]["publishNotReadyAddresses"] is True
    front = objects["Service/glm"]["spec"]
    assert front["ports"][0]["targetPort"] == container(pod(deployment, 0), "router")["ports"][0]["containerPort"]
    assert front["selector"].items() <= objects["StatefulSet/glm-n0"]["spec"]["template"]["metadata"]["labels"].items()
    assert {item["metadata"]["namespace"] for item in objects.values()} == {"team"}


def test_pods_are_replaced_when_a_file_changes(deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    def digest() -> str:
        annotations = rendered(deployment)["StatefulSet/glm-n0"]["spec"]["template"]["metadata"]["annotations"]
        return str(annotations["graftwork/config-sha256"])

    before = digest()
    assert digest() == before
    monkeypatch.setattr(rendering, "script", lambda name: script(name) + "# more\n")
    assert digest() != before


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"image": ""}, "no image"),
        ({"way": "init"}, "no built payload"),
        ({"way": "volume", "payload": PAYLOAD}, "no reference"),
    ],
)
def test_facts_that_do_not_fit_together(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        Cluster(**{"image": IMAGE, "gpu": "amd.com/gpu"} | settings)


@pytest.mark.parametrize("text", ["/models", "models=host:/x", "/models=/x", "/models=host:", "/models=nfs:x"])
def test_a_mount_that_is_none(text: str) -> None:
    with pytest.raises(UsageError, match="claim:NAME"):
        Mount.parse(text)


def test_a_payload_too_large_for_a_config_map(deployment: Deployment) -> None:
    large = PayloadFiles(FILES, random.Random(1).randbytes(1 << 20))
    with pytest.raises(UsageError, match="config map would have"):
        manifests(deployment, Cluster(IMAGE, "amd.com/gpu", "init", large))


def test_it_is_written_in_one_step(deployment: Deployment, tmp_path: Path) -> None:
    file = write(deployment, tmp_path / "new", GRAFTED)
    assert json.loads(file.read_text())["kind"] == "List"
    assert list(file.parent.iterdir()) == [file]
    with pytest.raises(UsageError):
        write(deployment, file, GRAFTED)


def test_a_real_payload_unpacks_to_what_the_check_proves(tmp_path: Path) -> None:
    """The script of the init container, on a payload that was built: then the check that the image carries."""
    workshop = tiny_workshop(tmp_path, image="127.0.0.1:1/example/toy:1.0")
    done = workshop.ok("image", "--dist", tmp_path / "dist")
    payload = PayloadFiles.read(Path(done["layout"]), "t")
    assert payload.files == ("/opt/toy/toy/pool.py",)
    assert payload.bytecode_folders == ["/opt/toy/toy/__pycache__"]
    layer, root = tmp_path / "payload.tar.gz", tmp_path / "root"
    layer.write_bytes(payload.compressed())
    assert gzip.decompress(payload.compressed()) == payload.layer
    ran = subprocess.run([sys.executable, unpack.__file__, layer, root], capture_output=True, text=True, check=True)
    assert ran.stdout.startswith("3 files")
    check = root / "usr/share/graftwork/check.py"
    proved = subprocess.run([sys.executable, check, "--root", root], capture_output=True, text=True, check=False)
    assert proved.returncode == 0, proved.stdout + proved.stderr
    (root / "opt/toy/toy/pool.py").write_text("")
    spoiled = subprocess.run([sys.executable, check, "--root", root], capture_output=True, text=True, check=False)
    assert spoiled.returncode == 4


def test_a_layer_that_leaves_its_folder_is_refused(tmp_path: Path) -> None:
    layer = tmp_path / "layer.tar.gz"
    layer.write_bytes(gzip.compress(tar_of([Entry("a/../../b", b"x")])))
    with pytest.raises(SystemExit, match="outside"):
        unpack.main([str(layer), str(tmp_path / "root")])


def test_no_payload_no_manifests(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no payload of t"):
        PayloadFiles.read(tmp_path, "t")


def test_waiting_ends_when_all_listen_or_the_time_is_over(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as listening, socket.socket() as silent:
        listening.bind(("127.0.0.1", 0))
        silent.bind(("127.0.0.1", 0))
        listening.listen()
        there, not_there = (f"127.0.0.1:{item.getsockname()[1]}" for item in (listening, silent))
        assert wait.main(["60", there]) == 0
        assert wait.main(["0", there, not_there]) == 1
        assert wait.serves("no-such-host.invalid:80") is False
    assert not_there in capsys.readouterr().err


def test_waiting_for_a_socket_and_for_an_answer(tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    place = f"unix:{path}"
    assert wait.main(["0", place]) == 1
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()
        assert wait.main(["60", place]) == 0

    class Half(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/health" else 503)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            """Nothing to say."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Half) as server, contextlib.ExitStack() as stack:
        stack.callback(server.shutdown)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        here = f"http://127.0.0.1:{server.server_address[1]}"
        assert wait.main(["60", f"{here}/health"]) == 0
        assert wait.serves(f"{here}/loading") is False
