"""The classes of the async API that have a blocking twin: what `checks.blocking` generates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["TWINS", "Twin"]


@dataclass(frozen=True, eq=False)
class Twin:
    """A class of the async API and the file of its blocking twin."""

    name: str
    """The name of both classes."""
    file: str
    inner: str
    """The attribute of the blocking object that holds the async one."""
    details: str
    """The rest of the class's docstring, after the async one's first paragraph."""
    package: str = "holdfast"
    """The package that exports the async class; the blocking one is in its ``sync``."""
    opens: bool = False
    """Whether a caller makes it, and not another twin: then it has an event loop of its own."""
    methods: frozenset[str] | None = None
    """The methods and properties that it has; None: all that are public, and not ``left_out``."""
    left_out: frozenset[str] = frozenset()
    attributes: Mapping[str, str] = field(default_factory=dict[str, str])
    """Properties for attributes of the async object, with their code."""
    notes: Mapping[str, str] = field(default_factory=dict[str, str])
    """Paragraphs after the first line of a method's docstring."""


_CTRL_C = "Ctrl-C during this call stops the workers at once."
TWINS = (
    Twin(
        name="Holdfast",
        file="app.py",
        inner="_holdfast",
        details="Every call blocks. Several threads may share one instance. ``with Holdfast(url) "
        "as hf: …`` closes it at the end. After a fork the child opens its own.",
        opens=True,
        notes={"close": _CTRL_C},
    ),
    Twin(
        name="RunHandle",
        file="handle.py",
        inner="_handle",
        details="To make a handle reads nothing: an operation raises `RunNotFound` where there is "
        "no such run.",
    ),
    Twin(
        name="Fleet",
        file="fleet.py",
        inner="_fleet",
        details="",
    ),
    Twin(
        name="Worker",
        file="worker.py",
        inner="_worker",
        details="",
        # `serve` needs the signals of the process, which only its main thread gets.
        methods=frozenset({"running", "start", "stop"}),
        attributes={
            "id": '''
@property
def id(self) -> str:
    """The name under which it is registered; empty before it has started."""
    return self._worker.id
''',
            "counts": '''
@property
def counts(self) -> Counter[str]:
    """How many runs it claimed, ended (by status), lost, and took over from dead workers."""
    return self._worker.counts.copy()
''',
        },
        notes={"stop": _CTRL_C},
    ),
    Twin(
        name="Documents",
        file="documents.py",
        inner="_documents",
        details="",
        # Content is streamed, which the async API does.
        left_out=frozenset({"place"}),
        attributes={
            "projects": '''
@property
def projects(self) -> Projects:
    """The projects, each of which has documents."""
    return Projects(self._portal, self._documents.projects)
''',
        },
    ),
    Twin(name="ApiKeys", file="api_keys.py", inner="_keys", details=""),
    Twin(
        name="Client",
        file="client.py",
        inner="_client",
        details="Every call blocks. Several threads may share one instance. ``with Client(url) as "
        "client: …`` closes it at the end. After a fork the child makes its own.",
        package="holdfast.client",
        opens=True,
    ),
    Twin(
        name="RemoteRun",
        file="run.py",
        inner="_run",
        details="To make one sends nothing: an operation raises `RunNotFound` where there is no "
        "such run.",
        package="holdfast.client",
    ),
    *(
        Twin(
            name=name,
            file=file,
            inner=f"_{file.removesuffix('.py')}",
            details="",
            package="holdfast.client",
        )
        for name, file in (
            ("RemoteBulkJobs", "bulk_jobs.py"),
            ("RemoteDocuments", "documents.py"),
            ("RemoteFleet", "fleet.py"),
            ("RemoteKeys", "keys.py"),
            ("RemoteProjects", "projects.py"),
            ("RemoteQuotaLevels", "quotas.py"),
            ("RemoteReviews", "reviews.py"),
            ("RemoteWebhooks", "webhooks.py"),
        )
    ),
    *(
        Twin(
            name=name,
            file=f"{name.lower()}.py",
            inner=f"_{name.lower()}",
            details="",
            left_out=frozenset(left_out),
        )
        for name, left_out in (
            # A server sets the address, and it has the async API.
            ("Callbacks", {"set_public_url"}),
            ("Projects", ()),
            # A server or a worker sends notices and delivers, in its event loop.
            ("Reviews", {"notify"}),
            ("Webhooks", {"deliver"}),
        )
    ),
)
