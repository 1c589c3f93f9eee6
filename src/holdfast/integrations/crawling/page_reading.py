"""The text, the title and the links of a page. It runs in a process with limits: see page_process.

What it is given may be made to harm parsers. So nothing else of the package imports this module.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from typing import Any, cast

import lxml.html
import trafilatura

from holdfast.integrations.crawling.page_tasks import PageContents, PageTask
from holdfast.integrations.crawling.robots_tags import ROBOT_NAME, RobotsTags, meta_tags
from holdfast.integrations.crawling.web_addresses import resolved_link

__all__ = ["decoded", "read_page"]

_TITLE_CHARS_MAX = 500
_META_BYTES = 1_024
_META_CHARSET = re.compile(
    rb"<meta[^>]{0,200}?charset\s*=\s*[\"']?\s*([A-Za-z0-9_:.-]{1,40})", re.I
)
_BOMS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
# Pages that name one of these mean what browsers read.
_AS_BROWSERS_READ = {
    "iso8859-1": "cp1252",
    "ascii": "cp1252",
    "gb2312": "gb18030",
    "gbk": "gb18030",
}
# Their text is none: it is code, or an alternative that a browser does not show.
_NO_TEXT = ("script", "style", "noscript", "template", "object", "embed", "iframe", "svg", "math")
_NOT_FOLLOWED = frozenset({"nofollow", "sponsored", "ugc"})
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


def read_page(body: bytes, task: PageTask) -> PageContents:
    """Return what a page has.

    Raises:
        Exception: a parser failed.
    """
    text = decoded(body, task.charset)
    if task.content_type == "text/plain":
        return PageContents(text=_clean(text, task.text_chars_max))
    # Comments and processing instructions have no text for readers.
    parser = lxml.html.HTMLParser(encoding="utf-8", remove_comments=True, remove_pis=True)
    source = (_UNPRINTABLE.sub("", text).strip() or "<html/>").encode()
    tree: Any = cast(Any, lxml.html).document_fromstring(source, parser=parser)
    tags = _tags(tree)
    links: tuple[str, ...] = ()
    if not tags.nofollow:
        found = dict.fromkeys(_links(tree, task.address))
        links = tuple(found)[: task.links_max]
    title = _title(tree)
    for element in list(_elements(tree, *_NO_TEXT)):
        if element.getparent() is not None:
            element.drop_tree()  # the text behind it stays
    main = trafilatura.extract(
        tree, include_comments=False, include_tables=True, favor_recall=True
    ) or trafilatura.html2txt(tree)
    return PageContents(
        title=title,
        text=_clean(main, task.text_chars_max),
        links=links,
        noindex=tags.noindex,
        nofollow=tags.nofollow,
    )


def decoded(body: bytes, charset: str) -> str:
    """Return the text of a body. A mark at its begin decides, then the server, then the page."""
    for mark, name in _BOMS:
        if body.startswith(mark):
            return body.decode(name, "replace").removeprefix("\ufeff")
    named = _META_CHARSET.search(body[:_META_BYTES])
    for label in (charset, named[1].decode() if named else ""):
        try:
            name = codecs.lookup(label.strip().strip("\"'")).name
            return body.decode(_AS_BROWSERS_READ.get(name, name), "replace")
        except (LookupError, ValueError):
            continue  # unknown, or no encoding of text
    try:
        return body.decode()
    except UnicodeDecodeError:
        return body.decode("cp1252", "replace")


def _clean(text: str, chars_max: int) -> str:
    lines = text.replace("\r\n", "\n").replace("\r", "\n")
    return _UNPRINTABLE.sub("", lines).strip()[:chars_max]


def _elements(tree: Any, *names: str) -> Iterator[Any]:
    return cast(Iterator[Any], tree.iter(*names))


def _tags(tree: Any) -> RobotsTags:
    tags = RobotsTags()
    for element in _elements(tree, "meta"):
        if str(element.get("name", "")).strip().lower() in ("robots", ROBOT_NAME):
            tags |= meta_tags(str(element.get("content", "")))
    return tags


def _links(tree: Any, address: str) -> Iterator[str]:
    seen_from = address
    for element in _elements(tree, "base"):
        if element.get("href"):
            seen_from = resolved_link(str(element.get("href")), seen_from=address) or address
            break
    for element in _elements(tree, "a", "area"):
        relations = set(str(element.get("rel", "")).lower().split())
        if element.get("href") is None or relations & _NOT_FOLLOWED:
            continue
        link = resolved_link(str(element.get("href")), seen_from=seen_from)
        if link is not None:
            yield link


def _title(tree: Any) -> str:
    for name in ("title", "h1"):
        for element in _elements(tree, name):
            title = " ".join(str(element.text_content()).split())
            if title:
                return _clean(title, _TITLE_CHARS_MAX)
    return ""
