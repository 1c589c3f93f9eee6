"""Pages about documents: projects, the processing of a document, and its segments."""

from holdfast.server.pages.documents.document_page import DOCUMENT_PAGE
from holdfast.server.pages.documents.project_pages import PROJECT_PAGES
from holdfast.server.pages.documents.removal import REMOVAL
from holdfast.server.pages.documents.search_page import SEARCH_PAGE
from holdfast.server.pages.documents.segment_page import SEGMENT_PAGE
from holdfast.server.pages.documents.upload_page import UPLOAD_PAGE

__all__ = ["DOCUMENT_PAGES"]

DOCUMENT_PAGES = (
    *PROJECT_PAGES,
    *UPLOAD_PAGE,
    *SEARCH_PAGE,
    *DOCUMENT_PAGE,
    *REMOVAL,
    *SEGMENT_PAGE,
)
