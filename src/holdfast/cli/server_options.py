"""The options of ``holdfast serve`` that say who may ask, and how much."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from math import isfinite
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.failures import show_errors
from holdfast.cli.parameters import parse_path
from holdfast.cli.webhook import allow_option

if TYPE_CHECKING:
    from holdfast.server.options import ServerOptions

__all__ = ["options_of", "server_options"]

# A larger file is not a secret, but a mistake.
_SECRET_BYTES_MAX = 4096


def _read_secret(
    context: click.Context, parameter: click.Parameter, file: Path | None
) -> str | None:
    """Return the text of a file without the line break at its end."""
    if file is None:
        return None
    try:
        with file.open("rb") as opened:
            secret = opened.read(_SECRET_BYTES_MAX + 1)
        if not 0 < len(secret) <= _SECRET_BYTES_MAX:
            raise click.BadParameter(f"{file} must have from 1 to {_SECRET_BYTES_MAX:,} bytes")
        return secret.decode().rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise click.BadParameter(f"{file} cannot be read: {error}") from None


# Each decorator puts its option before those of the earlier ones.
_OPTIONS = (
    allow_option,
    click.option(
        "--metrics-token-file",
        "metrics_token",
        type=parse_path,
        callback=_read_secret,
        metavar="FILE",
        help="A file with the token that may read /metrics, and nothing else.",
    ),
    click.option(
        "--tenant-rate",
        type=click.FloatRange(min=0, min_open=True),
        metavar="N",
        help="How many requests a second the callers of one tenant may make.  [default: 500]",
    ),
    click.option(
        "--rate",
        "key_rate",
        type=click.FloatRange(min=0, min_open=True),
        metavar="N",
        help="How many requests a second one caller may make.  [default: 100]",
    ),
    click.option(
        "--body-max",
        "body_bytes_max",
        type=click.IntRange(min=1024),
        metavar="BYTES",
        help="The limit on the body of a request.  [default: 4 MiB]",
    ),
    click.option(
        "--allow-host",
        "allowed_hosts",
        multiple=True,
        metavar="NAME",
        help="Without --auth: a name besides localhost under which the server may be asked.",
    ),
    click.option(
        "--trusted-proxy",
        "trusted_proxies",
        multiple=True,
        metavar="NETWORK",
        help="A proxy at this address or in this network (10.1.0.0/16) tells the addresses of "
        "callers in X-Forwarded-For. May be given several times.",
    ),
    click.option(
        "--cors",
        "cors_origins",
        multiple=True,
        metavar="ORIGIN",
        help="Pages of this origin may call the server. May be given several times.",
    ),
    click.option("--jwt-audience", metavar="TEXT", help="What the claim aud of tokens must name."),
    click.option("--jwt-issuer", metavar="TEXT", help="What the claim iss of tokens must be."),
    click.option(
        "--jwks", metavar="FILE|URL", help="The public keys with which tokens are signed."
    ),
    click.option(
        "--jwt-secret-file",
        "jwt_secret",
        type=parse_path,
        callback=_read_secret,
        metavar="FILE",
        help="A file with the secret with which tokens are signed.",
    ),
    click.option(
        "--auth",
        "authentication",
        is_flag=True,
        help="Requests need an API key ('holdfast key create') or a token.",
    ),
)
_SAME_NAMES = (
    "authentication",
    "allowed_hosts",
    "cors_origins",
    "trusted_proxies",
    "body_bytes_max",
    "metrics_token",
    "webhook_allow",
)


def server_options(function: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of a server, and pass it `ServerOptions` as ``options``."""

    @wraps(function)
    def command(
        *,
        jwt_secret: str | None,
        jwks: str | None,
        jwt_issuer: str | None,
        jwt_audience: str | None,
        key_rate: float | None,
        tenant_rate: float | None,
        **given: Any,
    ) -> None:
        named = {name: given.pop(name) for name in _SAME_NAMES}
        token = {"secret": jwt_secret, **_key_set(jwks)}
        if (jwt_issuer or jwt_audience) and not any(token.values()):
            raise click.UsageError(
                "--jwt-issuer and --jwt-audience need --jwt-secret-file or --jwks"
            )
        with show_errors():
            options = options_of(
                **{name: value for name, value in named.items() if value not in (None, ())},
                **_rates(key_rate=key_rate, tenant_rate=tenant_rate),
                **_tokens(issuer=jwt_issuer, audience=jwt_audience, **token),
            )
        function(options=options, **given)

    decorated: Callable[..., None] = command
    for option in _OPTIONS:
        decorated = option(decorated)
    return decorated


def options_of(**given: Any) -> ServerOptions:
    """Return the options of a server.

    Raises:
        click.ClickException: the extra ``server`` is not installed.
        InvalidRequest: an option is not valid.
    """
    return _import_options().ServerOptions(**given)


def _import_options() -> Any:
    try:
        from holdfast.server.options import JwtOptions, Rate, ServerOptions
    except ImportError as error:
        raise click.ClickException(
            f"this command needs the server, which is not installed ({error.name} is missing): "
            "pip install 'holdfast[server]'"
        ) from None
    return SimpleNamespace(JwtOptions=JwtOptions, Rate=Rate, ServerOptions=ServerOptions)


def _key_set(jwks: str | None) -> dict[str, str]:
    if jwks is None:
        return {}
    return {"jwks_url" if "://" in jwks else "jwks_file": jwks}


def _tokens(**given: Any) -> dict[str, Any]:
    """Return which tokens are accepted; nothing if no key for them is given."""
    named = {name: value for name, value in given.items() if value is not None}
    return {"jwt": _import_options().JwtOptions(**named)} if named else {}


def _rates(**given: float | None) -> dict[str, Any]:
    """Return rates; a burst may be twice as many as a second's."""
    return {
        name: _import_options().Rate(number, max(1, round(2 * number)) if isfinite(number) else 1)
        for name, number in given.items()
        if number is not None
    }
