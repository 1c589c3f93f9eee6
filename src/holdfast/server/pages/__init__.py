"""Pages for people: reviews and documents. They need no JavaScript."""

from holdfast.server.pages.documents import DOCUMENT_PAGES
from holdfast.server.pages.inbox import INBOX
from holdfast.server.pages.links import LINKS
from holdfast.server.pages.sign_in import SIGN_IN
from holdfast.server.pages.stylesheet import STYLESHEETS

__all__ = ["PAGES"]

PAGES = (*LINKS, *INBOX, *DOCUMENT_PAGES, *SIGN_IN, *STYLESHEETS)
