from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import requests

from graftwork.errors import UnreachableError
from graftwork.trees.cache import Cache, CacheError
from graftwork.trees.pages import PageCache

PAGE = "/simple/eng/"


@pytest.fixture
def page(server: Any) -> str:
    server.files[PAGE] = b"<html>one</html>"
    server.types[PAGE] = "text/html; charset=utf-8"
    return f"{server.origin}{PAGE}"


def get(pages: PageCache, url: str) -> requests.Response:
    return pages.get(requests.Session, url, "text/html")


def test_a_page_is_moved_once_and_then_revalidated_by_its_etag(server: Any, page: str, cache: Cache) -> None:
    first = PageCache(cache)
    assert get(first, page).text == "<html>one</html>"
    assert (first.requests, first.moved_bytes) == (1, 16)
    server.statuses = [304]
    again = PageCache(cache)
    answer = get(again, page)
    assert (answer.status_code, answer.text, answer.url) == (200, "<html>one</html>", page)
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert (again.requests, again.moved_bytes) == (1, 0)
    conditions = [headers.get("if-none-match") for headers in server.asked(PAGE)]
    assert conditions == [None, '"one"']


def test_a_page_that_changed_replaces_the_kept_one(server: Any, page: str, cache: Cache) -> None:
    get(PageCache(cache), page)
    server.files[PAGE], server.etag = b"<html>two</html>", '"two"'
    assert get(PageCache(cache), page).text == "<html>two</html>"
    get(PageCache(cache), page)
    assert server.asked(PAGE)[-1]["if-none-match"] == '"two"'


def test_without_an_etag_the_date_revalidates(server: Any, page: str, cache: Cache) -> None:
    pages = PageCache(cache)
    kept = requests.Response()
    kept.status_code, kept.url, kept._content = 200, page, b"old"
    kept.headers["Last-Modified"] = "Mon, 30 Nov 2026 00:00:00 GMT"
    pages._store(page, "text/html", kept)
    get(pages, page)
    (headers,) = server.asked(PAGE)
    assert headers["if-modified-since"] == "Mon, 30 Nov 2026 00:00:00 GMT"
    assert "if-none-match" not in headers


def test_offline_takes_what_is_kept_and_asks_nobody(server: Any, page: str, cache: Cache) -> None:
    get(PageCache(cache), page)
    server.log.clear()

    def never() -> requests.Session:
        raise AssertionError("a session was opened")

    assert PageCache(cache, offline=True).get(never, page, "text/html").text == "<html>one</html>"
    with pytest.raises(UnreachableError, match="--offline") as caught:
        PageCache(cache, offline=True).get(never, f"{page}other/", "text/html")
    assert caught.value.exit_code == 6 and caught.value.hint
    assert server.log == []


def test_an_error_page_is_given_and_not_kept(server: Any, page: str, cache: Cache) -> None:
    server.statuses = [503]
    assert get(PageCache(cache), page).status_code == 503
    assert not (cache.root / "pages").exists()


@pytest.mark.parametrize("spoiled", ["", "{}", '{"headers": 3, "body": "x"}', "[]"])
def test_a_spoiled_page_is_asked_for_anew(server: Any, page: str, cache: Cache, spoiled: str) -> None:
    get(PageCache(cache), page)
    (file,) = (path for path in (cache.root / "pages").rglob("*") if path.is_file())
    cache.keep("pages", file.name, spoiled.encode())
    assert get(PageCache(cache), page).text == "<html>one</html>"
    assert "if-none-match" not in server.asked(PAGE)[-1]


def test_a_cache_that_cannot_be_written_is_told(page: str, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(CacheError, match="cannot be used"):
        get(PageCache(Cache(tmp_path / "cache")), page)
