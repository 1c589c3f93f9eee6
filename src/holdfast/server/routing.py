"""Routes: every one names the role that it needs and the problems that it may answer with."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Annotated, Any, Literal, TypeAlias, cast, get_args, get_origin, get_type_hints

import msgspec
from litestar import Response
from litestar.connection import ASGIConnection
from litestar.enums import MediaType
from litestar.handlers import HTTPRouteHandler
from litestar.params import HeaderParameter, KwargDefinition, RawBody
from litestar.types import Scope

from holdfast.server.bodies import BodyReader
from holdfast.server.roles import Role

__all__ = [
    "Method",
    "RouteDescription",
    "described_routes",
    "description_of",
    "options_handlers",
    "route",
]

_Connection: TypeAlias = ASGIConnection[Any, Any, Any, Any]
_Guard: TypeAlias = Callable[[_Connection, HTTPRouteHandler], Awaitable[None]]
Method: TypeAlias = Literal["GET", "POST", "PUT", "PATCH", "DELETE"]

# What Litestar passes by name, and what every handler may ask for.
_GIVEN = frozenset(
    {"body", "cookies", "data", "headers", "query", "request", "requester", "return", "scope"}
    | {"services", "socket", "state"}
)
# What a handler gets without Litestar's help.
_ASKED = frozenset({"data", "requester", "scope", "services"})


class RouteDescription(msgspec.Struct, frozen=True, kw_only=True):
    """What the API says of a route, and what a request to it must fulfil."""

    method: Method
    path: str
    role: Role
    tag: str
    status: int
    name: str
    summary: str
    details: str
    media_type: str
    result: Any
    """The type of the answer; None if there is none."""
    body: Any
    """The type of the request's body; None if there is none."""
    body_is_optional: bool
    parameters: Mapping[str, tuple[Any, Any]]
    """The types and the defaults of path, query and header parameters, by name."""
    query: frozenset[str]
    """The names of the query parameters."""
    repeatable: frozenset[str]
    """Those that a request may have several times."""
    also: Mapping[int, Any]
    """Other statuses of success, and what the answer is then."""
    etag: bool
    """Whether the answer has an ETag, and may be 304."""
    located: bool
    """Whether the answer has the path of what was stored."""
    conflicts: bool
    missing: bool
    open: bool
    """Whether the answer never depends on the store or on who asks."""
    fails: frozenset[int]
    """Statuses of problems that only this route has."""
    reads: tuple[str, ...]
    """The types of a body that the handler reads itself."""

    @property
    def problems(self) -> tuple[int, ...]:
        """The statuses of the problems that it may answer with."""
        # The gate refuses pages of other origins with 403, hosts with 421.
        statuses = {400, 403, 414, 421, 431, 500, *self.fails}
        if self.missing:
            statuses.add(404)
        if self.body is not None or self.reads:
            statuses |= {408, 413, 415, 422}
        if self.role != "public":
            statuses |= {401, 422, 429}
        if self.conflicts:
            statuses.add(409)
        if not self.open:
            statuses.add(503)
        return tuple(sorted(statuses))


class _Handler(HTTPRouteHandler):
    """A handler whose guards get the handler itself, and not a new copy of it for each guard."""

    async def authorize_connection(self, connection: _Connection) -> None:
        guards = cast("list[_Guard]", self.resolve_guards())  # pyright: ignore[reportUnknownMemberType]
        for guard in guards:
            await guard(connection, self)


def description_of(handler: object) -> RouteDescription | None:
    """Return the description of a handler; None if it is not one of ours."""
    opt: Mapping[str, Any] = getattr(handler, "opt", {})
    return opt.get("route")


def described_routes(handlers: Iterable[object]) -> list[RouteDescription]:
    """Return the descriptions of handlers, without those that are not ours."""
    return [found for each in handlers if (found := description_of(each)) is not None]


def route(
    method: Method,
    path: str,
    *,
    role: Role,
    tag: str,
    status: int = 200,
    conflicts: bool = False,
    missing: bool | None = None,
    etag: bool = False,
    located: bool = False,
    also: Mapping[int, Any] | None = None,
    returns: Any = None,
    open: bool = False,
    fails: Iterable[int] = (),
    reads: Iterable[str] = (),
    media_type: str = MediaType.JSON,
    **options: Any,
) -> Callable[[Callable[..., Any]], HTTPRouteHandler]:
    """Make a handler of a function. Its first docstring line is the summary in the API.

    A parameter ``data`` is the body: its type is a msgspec Struct, which is decoded strictly before
    the function is called. A function without it that reads the body itself names the types of
    bodies in ``reads``. ``conflicts`` says that it may answer with 409, ``missing`` with 404; by
    default it may if its path has parameters. With ``etag`` a client that has the same answer
    already gets 304, and with ``located`` the answer has a Location. ``also`` has other statuses of
    success with the types of their answers, and ``returns`` the type of the answer if the
    annotation does not say it. ``open`` says that the route reads no store; ``fails`` has other
    statuses of problems. Other options are those of Litestar.
    """
    described = functools.partial(
        RouteDescription,
        method=method,
        path=path,
        role=role,
        tag=tag,
        status=status,
        media_type=media_type,
        also=also or {},
        etag=etag,
        located=located,
        conflicts=conflicts,
        missing="{" in path if missing is None else missing,
        open=open,
        fails=frozenset(fails),
        reads=tuple(reads),
    )

    def decorate(function: Callable[..., Any]) -> HTTPRouteHandler:
        hints = get_type_hints(function, include_extras=True)
        if returns is not None:
            hints["return"] = returns
        body, is_optional = _body_of(hints.get("data"))
        parts = _derived_parts(function, hints, path)
        route = described(body=body, body_is_optional=is_optional, **parts)
        opt = {"role": role, "route": route, **options.pop("opt", {})}
        return _Handler(
            path,
            # A request with HEAD is answered as one with GET, see `ServerApp`.
            http_method=["GET", "HEAD"] if method == "GET" else method,
            status_code=status,
            media_type=media_type,
            opt=opt,
            include_in_schema=False,
            **options,
        )(_called_directly(function, hints, body))

    return decorate


def _derived_parts(
    function: Callable[..., Any], hints: Mapping[str, Any], path: str
) -> dict[str, Any]:
    """Return the parts of a description that the function itself says."""
    given = inspect.signature(function).parameters
    summary, _, rest = (function.__doc__ or "").strip().partition("\n")
    parameters = {
        _wire_name(name, hint): (hint, given[name].default)
        for name, hint in hints.items()
        if name not in _GIVEN
    }
    query = frozenset(
        name
        for name, (hint, _) in parameters.items()
        if f"{{{name}:" not in path and not _is_header(hint)
    )
    return {
        "name": function.__name__,
        "summary": summary.rstrip("."),
        "details": " ".join(rest.split()),
        "result": hints.get("return"),
        "parameters": parameters,
        "query": query,
        "repeatable": frozenset(name for name in query if _is_list(parameters[name][0])),
    }


def options_handlers(
    routes: Iterable[RouteDescription], told: Mapping[str, Mapping[str, str]] | None = None
) -> list[HTTPRouteHandler]:
    """Return the handlers of OPTIONS, which name the methods of each path.

    ``told`` has further headers of their answers, by path.
    Those that Litestar makes name only the methods of the first handler of a path.
    """
    methods: dict[str, set[str]] = {}
    for each in routes:
        also = {"HEAD"} if each.method == "GET" else set[str]()
        methods.setdefault(each.path, {"OPTIONS"}).update({each.method}, also)
    return [
        _options_handler(path, {"Allow": ", ".join(sorted(found)), **(told or {}).get(path, {})})
        for path, found in methods.items()
    ]


def _options_handler(path: str, headers: Mapping[str, str]) -> HTTPRouteHandler:
    async def name_methods() -> Response[None]:
        return Response(None, status_code=204, headers=dict(headers))

    return HTTPRouteHandler(
        path, http_method="OPTIONS", opt={"role": "public"}, include_in_schema=False
    )(name_methods)


def _called_directly(
    function: Callable[..., Any], hints: dict[str, Any], body: Any
) -> Callable[..., Any]:
    """Return a function that gets the scope and the raw body, and gives the function what it asks.

    Litestar would start a task for each dependency, which costs as much as all else in a request.
    And it would convert the ``"5"`` in a body to 5, and answer one that is nested too deeply with
    500.
    """
    reader = None if body is None else BodyReader(body, is_optional=hints["data"] is not body)
    asks_scope = "scope" in hints
    asks_requester, asks_services = "requester" in hints, "services" in hints

    @functools.wraps(function)
    async def called(scope: Any, body: bytes = b"", **given: Any) -> Any:
        if reader is not None:
            given["data"] = reader.read(body)
        if asks_scope:
            given["scope"] = scope
        if asks_requester:
            given["requester"] = scope["user"]  # from `Services.authorize`
        if asks_services:
            given["services"] = scope["route_handler"].opt["services"]
        return await function(**given)

    by_name = inspect.Parameter.KEYWORD_ONLY
    taken = [inspect.Parameter("scope", by_name, annotation=Scope)]
    if reader is not None:
        taken.append(inspect.Parameter("body", by_name, annotation=RawBody))
    signature = inspect.signature(function)
    taken += [
        parameter.replace(kind=by_name, annotation=hints[name])
        for name, parameter in signature.parameters.items()
        if name not in _ASKED
    ]
    called.__signature__ = signature.replace(parameters=taken)  # pyright: ignore[reportAttributeAccessIssue]
    called.__annotations__ = {each.name: each.annotation for each in taken}
    called.__annotations__["return"] = hints.get("return")
    del called.__wrapped__  # Litestar would read the signature of what it wraps
    return called


def _body_of(hint: Any) -> tuple[Any, bool]:
    """Return the type of a body, and whether a request may have none."""
    parts = [part for part in get_args(hint) if part is not type(None)]
    return (parts[0], True) if len(parts) == 1 else (hint, False)


def _wire_name(name: str, hint: Any) -> str:
    """Return the name of a parameter in a request."""
    for given in _metadata(hint):
        if isinstance(given, KwargDefinition):
            return getattr(given, "name", None) or name
    return name


def _is_header(hint: Any) -> bool:
    return any(isinstance(given, HeaderParameter) for given in _metadata(hint))


def _is_list(hint: Any) -> bool:
    plain = get_args(hint)[0] if get_origin(hint) is Annotated else hint
    return any(get_origin(part) is list for part in (plain, *get_args(plain)))


def _metadata(hint: Any) -> tuple[Any, ...]:
    return get_args(hint)[1:] if get_origin(hint) is Annotated else ()
