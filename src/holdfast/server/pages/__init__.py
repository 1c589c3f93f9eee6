"""Pages for people: reviews behind signed links, and an inbox. They need no JavaScript."""

from holdfast.server.pages.inbox import INBOX
from holdfast.server.pages.links import LINKS
from holdfast.server.pages.sign_in import SIGN_IN
from holdfast.server.pages.stylesheet import STYLESHEETS

__all__ = ["PAGES"]

PAGES = (*LINKS, *INBOX, *SIGN_IN, *STYLESHEETS)
