"""The stylesheet of the pages. Its name has its hash, so that browsers may keep it."""

from __future__ import annotations

from typing import Annotated

from litestar import Response
from litestar.enums import MediaType
from litestar.exceptions import NotFoundException
from litestar.params import PathParameter

from holdfast.server.pages.page import STYLESHEET, STYLESHEET_NAME, page

__all__ = ["STYLESHEETS"]


@page("GET", "/pages/{name:str}", role="public")
async def send_stylesheet(name: Annotated[str, PathParameter(max_length=64)]) -> Response[bytes]:
    """Send the stylesheet of all pages."""
    if name != STYLESHEET_NAME:
        raise NotFoundException
    return Response(
        STYLESHEET,
        media_type=MediaType.CSS,
        headers={"Cache-Control": "public, max-age=31536000, immutable"},
    )


STYLESHEETS = (send_stylesheet,)
