from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from graftwork.errors import PinError, UnreachableError, UsageError
from graftwork.names import Sha256
from graftwork.trees.index import PackageIndex
from graftwork.trees.pipconf import PipSettings
from graftwork.trees.session import open_session

DATA = b"not really a wheel"
SHA = Sha256(hashlib.sha256(DATA).hexdigest())
OTHER = "1" * 64
NAME = "eng-1.2.3-cp311-cp311-manylinux_2_28_x86_64.whl"
TAGS = "cp311-cp311-manylinux_2_28_x86_64"


def index(*urls: str, **more: Any) -> PackageIndex:
    found = PackageIndex(PipSettings(index_url=urls[0] if urls else None, extra_index_urls=urls[1:], retries=1, **more))
    found.session = open_session(found.settings, backoff=0)
    return found


def serve(server: Any, *names: str, sha256: str = SHA, prefix: str = "/simple", project: str = "eng") -> str:
    links = "".join(f'<a href="../../files/{name}#sha256={sha256}">{name}</a>' for name in names)
    server.files[f"{prefix}/{project}/"] = f"<!DOCTYPE html><html><body>{links}</body></html>".encode()
    server.types[f"{prefix}/{project}/"] = "text/html"
    return f"{server.origin}{prefix}"


def test_html_page(server: Any) -> None:
    found = index(serve(server, NAME)).find("eng", NAME, SHA)
    assert (found.url, found.sha256, found.path) == (f"{server.origin}/files/{NAME}", SHA, None)


def test_json_page_and_a_name_that_is_normalised(server: Any) -> None:
    file = {"filename": NAME, "url": f"/files/{NAME}", "hashes": {"sha256": SHA}, "size": 18}
    page = {"meta": {"api-version": "1.1"}, "name": "my-eng", "files": [file], "versions": ["1.2.3"]}
    server.files["/simple/my-eng/"] = json.dumps(page).encode()
    server.types["/simple/my-eng/"] = "application/vnd.pypi.simple.v1+json"
    found = index(f"{server.origin}/simple/").find("My_Eng", NAME, SHA)
    assert found.url == f"{server.origin}/files/{NAME}"
    assert found.size == 18


def test_other_hash_names_both(server: Any) -> None:
    with pytest.raises(PinError) as caught:
        index(serve(server, NAME, sha256=OTHER)).find("eng", NAME, SHA)
    assert SHA in caught.value.message
    assert OTHER in caught.value.message
    assert caught.value.exit_code == 5


def test_a_mirror_with_another_file_does_not_hide_the_right_one(server: Any, other_server: Any) -> None:
    found = index(serve(server, NAME, sha256=OTHER), serve(other_server, NAME)).find("eng", NAME, SHA)
    assert found.url == f"{other_server.origin}/files/{NAME}"


def test_nowhere_lists_the_tags_of_the_version(server: Any) -> None:
    names = [NAME.replace("x86_64", "aarch64"), NAME.replace("cp311", "cp310"), NAME.replace("1.2.3", "1.2.4")]
    with pytest.raises(PinError) as caught:
        index(serve(server, *names)).find("eng", NAME, SHA)
    assert NAME in caught.value.message
    assert "cp310-cp310-manylinux_2_28_x86_64, cp311-cp311-manylinux_2_28_aarch64" in caught.value.message


def test_nowhere_lists_the_versions(server: Any) -> None:
    names = [NAME.replace("1.2.3", version) for version in ("1.2.10", "1.2.9", "2.0")]
    with pytest.raises(
        PinError, match=r"no wheel of eng 1\.2\.3 is there; versions with wheels: 2\.0, 1\.2\.10, 1\.2\.9"
    ):
        index(serve(server, *names)).find("eng", NAME, SHA)
    with pytest.raises(PinError, match="not the name of a wheel"):
        index(serve(server, *names)).find("eng", "eng.tar.gz", SHA)


def test_project_that_no_index_knows(server: Any) -> None:
    with pytest.raises(PinError, match="versions with wheels: none"):
        index(f"{server.origin}/simple").find("eng", NAME, SHA)


def test_dead_index_is_unreachable_and_shows_no_secret() -> None:
    with pytest.raises(UnreachableError) as caught:
        index("http://user:secret@127.0.0.1:9/simple").find("eng", NAME, SHA)
    assert "http://127.0.0.1:9/simple/eng/" in caught.value.message
    assert "secret" not in caught.value.message + caught.value.hint
    assert caught.value.exit_code == 6


def test_one_dead_index_beside_one_without_the_file_is_unreachable(server: Any) -> None:
    with pytest.raises(UnreachableError, match="could not ask"):
        index("http://127.0.0.1:9/simple", f"{server.origin}/simple").find("eng", NAME, SHA)
    assert index("http://127.0.0.1:9/simple", serve(server, NAME)).find("eng", NAME, SHA).url


def test_server_error_is_retried_and_retry_after_is_heard(server: Any) -> None:
    url = serve(server, NAME)
    server.statuses, server.extra_headers = [503], {"Retry-After": "0"}
    assert index(url).find("eng", NAME, SHA).url
    assert len(server.asked("/simple/eng/")) == 2
    server.statuses = [500, 500]
    with pytest.raises(UnreachableError, match="the server answered 500"):
        index(url).find("eng", NAME, SHA)


@pytest.mark.parametrize(("status", "hint"), [(401, "wants credentials"), (403, "refuses")])
def test_refused_for_credentials(server: Any, status: int, hint: str) -> None:
    server.statuses = [status]
    with pytest.raises(UnreachableError, match=f"answered {status}") as caught:
        index(f"{server.origin}/simple").find("eng", NAME, SHA)
    assert hint in caught.value.hint


@pytest.mark.parametrize("kind", ["text/html", "application/vnd.pypi.simple.v1+json", "image/png"])
def test_page_that_is_no_index(server: Any, kind: str) -> None:
    server.files["/simple/eng/"], server.types["/simple/eng/"] = b"\x89PNG[]", kind
    with pytest.raises((PinError, UnreachableError)):
        index(f"{server.origin}/simple").find("eng", NAME, SHA)


def test_credentials_go_to_their_own_origin_only(server: Any, other_server: Any) -> None:
    page = serve(other_server, NAME, prefix="/mirror")
    server.redirects["/simple/eng/"] = f"{page}/eng/"
    url = server.origin.replace("http://", "http://us%40er:p%3Aw@") + "/simple"
    found = index(url).find("eng", NAME, SHA)
    assert server.asked("/simple/eng/")[0]["authorization"] == "Basic dXNAZXI6cDp3"
    assert "authorization" not in other_server.asked("/mirror/eng/")[0]
    assert found.url == f"{other_server.origin}/files/{NAME}"


def test_credentials_of_the_index_reach_its_files_and_stay_out_of_the_location(server: Any) -> None:
    serve(server, NAME)
    found_in = index(server.origin.replace("http://", "http://user:secret@") + "/simple")
    server.files[f"/files/{NAME}"] = DATA
    found = found_in.find("eng", NAME, SHA)
    assert "secret" not in (found.url or "")
    assert found_in.session.get(found.url or "").content == DATA
    assert server.asked(f"/files/{NAME}")[0]["authorization"].startswith("Basic ")


def test_netrc(server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "netrc").write_text("machine 127.0.0.1 login me password pw\n")
    (tmp_path / "netrc").chmod(0o600)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    index(serve(server, NAME)).find("eng", NAME, SHA)
    assert server.asked("/simple/eng/")[0]["authorization"] == "Basic bWU6cHc="


def test_redirect_to_nonsense(server: Any) -> None:
    server.redirects["/simple/eng/"] = "http://" + "a" * 90 + "/?token=secret"
    with pytest.raises(UnreachableError) as caught:
        index(f"{server.origin}/simple").find("eng", NAME, SHA)
    assert "secret" not in caught.value.message


def test_user_agent_is_ours(server: Any) -> None:
    index(serve(server, NAME)).find("eng", NAME, SHA)
    assert server.asked("/simple/eng/")[0]["user-agent"].startswith("graftwork/")


def test_pips_proxy_and_certificate_win_over_the_environment(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    found_in = index("http://index.example/simple", proxy=server.origin)
    server.files["http://index.example/simple/eng/"] = f'<a href="/f/{NAME}#sha256={SHA}">{NAME}</a>'.encode()
    server.types["http://index.example/simple/eng/"] = "text/html"
    assert found_in.find("eng", NAME, SHA).url == f"http://index.example/f/{NAME}"
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", "/environment.pem")
    with pytest.raises(UnreachableError, match=r"/pip\.pem"):
        index("https://127.0.0.1:9/simple", cert="/pip.pem").find("eng", NAME, SHA)


def test_find_links_folder_comes_first(tmp_path: Path, server: Any) -> None:
    (tmp_path / NAME).write_bytes(DATA)
    found = index(serve(server, NAME), find_links=(str(tmp_path),)).find("eng", NAME, SHA)
    assert (found.path, found.url, found.size) == (tmp_path / NAME, None, len(DATA))
    assert server.log == []


def test_find_links_page(server: Any) -> None:
    server.files["/links.html"] = f'<a href="w/{NAME}">{NAME}</a>'.encode()
    server.types["/links.html"] = "text/html"
    found = index(no_index=True, find_links=(f"{server.origin}/links.html",)).find("eng", NAME, SHA)
    assert found.url == f"{server.origin}/w/{NAME}"


def test_local_file_with_another_hash(tmp_path: Path) -> None:
    (tmp_path / NAME).write_bytes(b"other")
    with pytest.raises(PinError) as caught:
        index(no_index=True, find_links=(tmp_path.as_uri(),)).find("eng", NAME, SHA)
    assert hashlib.sha256(b"other").hexdigest() in caught.value.message


@pytest.mark.parametrize("form", ["uri", "path"])
def test_index_in_a_folder(tmp_path: Path, form: str) -> None:
    (tmp_path / "simple/eng").mkdir(parents=True)
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / NAME).write_bytes(DATA)
    link = f'<a href="../../files/{NAME}#sha256={SHA}">{NAME}</a>'
    (tmp_path / "simple/eng/index.html").write_text(link)
    root = tmp_path / "simple"
    found = index(root.as_uri() if form == "uri" else str(root)).find("eng", NAME, SHA)
    assert found.path is not None
    assert found.path.read_bytes() == DATA


def test_missing_folders_are_skipped(tmp_path: Path, server: Any) -> None:
    none = (tmp_path / "none").as_uri()
    assert index(none, serve(server, NAME), find_links=(none, "/no/such")).find("eng", NAME, SHA).url
    with pytest.raises(PinError, match="on no index"):
        index(none).find("eng", NAME, SHA)


def test_no_index_without_find_links() -> None:
    with pytest.raises(PinError, match="no-index is set"):
        index("http://127.0.0.1:9/simple", no_index=True).find("eng", NAME, SHA)


@pytest.mark.parametrize(
    "url",
    ["ftp://u:secret@x/simple", "http://[::1/simple", "http://x:port/simple", "http:///simple", "https://" + "a" * 90],
)
def test_senseless_url(url: str) -> None:
    with pytest.raises((UsageError, UnreachableError)) as caught:
        index(url).find("eng", NAME, SHA)
    assert "secret" not in caught.value.message


def test_a_fresh_index_shares_settings_and_no_connection(server: Any) -> None:
    one = index(serve(server, NAME))
    other = one.fresh()
    assert other.settings is one.settings
    assert other.session is not one.session
