"""JSON Web Tokens: which are accepted, and every way to forge one that is not."""

from __future__ import annotations

import base64
import hmac
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from joserfc import jwt
from joserfc.jwk import ECKey, Key, OctKey, OKPKey, RSAKey

from holdfast import Holdfast
from holdfast.clock import ManualClock
from holdfast.errors import InvalidRequest, Unauthenticated
from holdfast.server import JwtOptions, ServerOptions, token_keys, tokens
from holdfast.server.tokens import TokenVerifier
from tests.server.callers import bearer, serving

SECRET = "s" * 32
RSA = RSAKey.generate_key(2048, {"kid": "r1", "use": "sig"})
EC = ECKey.generate_key("P-256", {"kid": "e1"})
ED = OKPKey.generate_key("Ed25519", {"kid": "d1"})
PUBLIC = {"keys": [key.as_dict(private=False) for key in (RSA, EC, ED)]}
AUDIENCE = "https://holdfast.example"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def claims(clock: ManualClock, **changed: Any) -> dict[str, Any]:
    now = clock.now_ms() // 1000
    full = {
        "sub": "ann",
        "aud": AUDIENCE,
        "iss": "https://issuer.example",
        "exp": now + 60,
        "tenant": "acme",
        "role": "operator",
        **changed,
    }
    return {name: value for name, value in full.items() if value is not ...}


def signed(claims: dict[str, Any], key: Key, algorithm: str, **header: Any) -> str:
    return jwt.encode({"alg": algorithm, **header}, claims, key, [algorithm], tokens._REGISTRY)


def with_secret(**options: Any) -> JwtOptions:
    return JwtOptions(secret=SECRET, audience=AUDIENCE, **options)


def with_public_keys(**options: Any) -> JwtOptions:
    return JwtOptions(jwks=PUBLIC, audience=AUDIENCE, **options)


OCT = OctKey.import_key(SECRET)


@pytest.mark.parametrize(
    ("key", "algorithm"),
    [(OCT, "HS256"), (OCT, "HS512"), (RSA, "RS256"), (RSA, "PS384"), (EC, "ES256"), (ED, "EdDSA")],
)
async def test_a_valid_token_is_accepted(clock: ManualClock, key: Key, algorithm: str) -> None:
    options = with_secret() if key is OCT else with_public_keys()
    token = signed(claims(clock), key, algorithm, kid=key.kid or "any")
    found = await TokenVerifier(options, clock).verify(token)
    assert (found.name, found.tenant, found.role) == ("token:ann", "acme", "operator")
    assert found.person == "ann"
    assert token not in repr(found)


async def refused(options: JwtOptions, clock: ManualClock, token: str) -> str:
    with pytest.raises(Unauthenticated) as caught:
        await TokenVerifier(options, clock).verify(token)
    assert caught.value.__cause__ is None
    return str(caught.value)


def part(value: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


@pytest.mark.parametrize("algorithm", ["none", "None", "NONE", "nOnE", ""])
async def test_a_token_with_alg_none_is_refused(clock: ManualClock, algorithm: str) -> None:
    head = part({"alg": algorithm, "typ": "JWT"})
    for options in (with_secret(), with_public_keys()):
        for signature in ("", "AA"):
            token = f"{head}.{part(claims(clock))}.{signature}"
            assert await refused(options, clock, token) == "the token is not valid"


async def test_a_public_key_is_no_secret(clock: ManualClock) -> None:
    pem = RSA.as_pem(private=False)
    secrets = [pem, pem.strip(), json.dumps(RSA.as_dict(private=False)).encode()]
    for secret in secrets:
        for kid in ({"kid": "r1"}, {}):
            head = f"{part({'alg': 'HS256', **kid})}.{part(claims(clock))}"
            digest = hmac.digest(secret, head.encode(), "sha256")
            signature = base64.urlsafe_b64encode(digest).decode().rstrip("=")
            await refused(with_public_keys(), clock, f"{head}.{signature}")
    with pytest.raises(InvalidRequest, match="secret cannot be used"):
        TokenVerifier(JwtOptions(secret=pem), clock)


async def test_a_secret_in_a_set_of_public_keys_is_ignored(clock: ManualClock) -> None:
    oct = {"kty": "oct", "k": "c3Nzc3Nzc3Nzc3Nzc3Nzc3Nzc3Nzc3Nzc3Nzc3Nzc3M", "kid": "o1"}
    options = JwtOptions(jwks={"keys": [*PUBLIC["keys"], oct]}, audience=AUDIENCE)
    await refused(options, clock, signed(claims(clock), OCT, "HS256", kid="o1"))
    with pytest.raises(InvalidRequest, match="no public key"):
        TokenVerifier(JwtOptions(jwks={"keys": [oct]}, audience=AUDIENCE), clock)


async def test_a_token_cannot_bring_its_own_key(clock: ManualClock) -> None:
    mine = RSAKey.generate_key(2048)
    for header in (
        {"jwk": mine.as_dict(private=False)},
        {"jku": "https://evil.example/keys"},
        {"x5u": "https://evil.example/keys"},
        {"x5c": ["MII"]},
        {"crit": ["exp"], "exp": 1},
        {"b64": False, "crit": ["b64"]},
        {"typ": "JWE"},
        {"unknown": "x"},
    ):
        head = {"alg": "RS256", "kid": "r1", **header}
        await refused(with_public_keys(), clock, signed(claims(clock), mine, "RS256", kid="r1"))
        token = f"{part(head)}.{part(claims(clock))}.AAAA"
        await refused(with_public_keys(), clock, token)
        if "b64" not in header and "crit" not in header:
            await refused(with_public_keys(), clock, signed(claims(clock), RSA, "RS256", **header))


async def test_the_algorithm_must_be_the_one_of_the_key(clock: ManualClock) -> None:
    await refused(with_public_keys(), clock, signed(claims(clock), RSA, "RS256", kid="e1"))
    await refused(with_secret(), clock, signed(claims(clock), RSA, "RS256", kid="r1"))
    only = {"keys": [{**RSA.as_dict(private=False), "alg": "PS256"}]}
    options = JwtOptions(jwks=only, audience=AUDIENCE)
    await refused(options, clock, signed(claims(clock), RSA, "RS256", kid="r1"))
    encrypting = {"keys": [{**RSA.as_dict(private=False), "use": "enc"}, PUBLIC["keys"][1]]}
    options = JwtOptions(jwks=encrypting, audience=AUDIENCE)
    await refused(options, clock, signed(claims(clock), RSA, "RS256", kid="r1"))


async def test_a_changed_token_is_refused(clock: ManualClock) -> None:
    token = signed(claims(clock, tenant="b"), OCT, "HS256")
    head, body, signature = token.split(".")
    raised = part(claims(clock, tenant="a", role="admin"))
    other = signed(claims(clock), OctKey.import_key("x" * 32), "HS256")
    for forged in (
        f"{head}.{raised}.{signature}",
        f"{head}.{body}.",
        f"{head}.{body}",
        f"{head}..{signature}",
        f"{head}.{body}.{signature}.{signature}",
        f"{head}.{body}.{signature[:-4]}AAAA",
        f"{head}\n.{body}.{signature}",
        f" {token}",
        other,
        "..",
        "a.b.c",
        "é.é.é",
        "x" * 10_000,
        f"{part({'alg': ['HS256']})}.{body}.{signature}",
        f"{part([])}.{body}.{signature}",
        f"{part({})}.{body}.{signature}",
    ):
        await refused(with_secret(), clock, forged)


@pytest.mark.parametrize(
    "changed",
    [
        {"exp": ...},
        {"exp": "9999999999"},
        {"exp": None},
        {"exp": True},
        {"exp": float("inf")},
        {"nbf": 1_700_000_031},
        {"nbf": "soon"},
        {"aud": ...},
        {"aud": "https://other.example"},
        {"aud": ["https://other.example"]},
        {"aud": {}},
        {"iss": ...},
        {"iss": "https://evil.example"},
        {"iss": ["https://issuer.example"]},
        {"tenant": ...},
        {"tenant": ""},
        {"tenant": "a#b"},
        {"tenant": ["acme"]},
        {"tenant": None},
        {"role": ...},
        {"role": "root"},
        {"role": []},
        {"role": {"admin": True}},
        {"role": "public"},
        {"sub": 7},
    ],
)
async def test_wrong_claims_are_refused(clock: ManualClock, changed: dict[str, Any]) -> None:
    options = with_secret(issuer="https://issuer.example")
    good = signed(claims(clock), OCT, "HS256")
    await TokenVerifier(options, clock).verify(good)
    said = await refused(options, clock, signed(claims(clock, **changed), OCT, "HS256"))
    assert said == "the token is not valid"


async def test_a_token_expires_after_the_leeway(clock: ManualClock) -> None:
    token = signed(claims(clock), OCT, "HS256")
    clock.advance(89.999)
    await TokenVerifier(with_secret(), clock).verify(token)
    clock.advance(0.001)
    assert await refused(with_secret(), clock, token) == "the token has expired"
    early = signed(claims(clock, nbf=clock.now_ms() // 1000 + 30), OCT, "HS256")
    await TokenVerifier(with_secret(), clock).verify(early)


async def test_a_token_for_others_is_refused_without_an_audience(clock: ManualClock) -> None:
    options = JwtOptions(secret=SECRET)
    await refused(options, clock, signed(claims(clock), OCT, "HS256"))
    await TokenVerifier(options, clock).verify(signed(claims(clock, aud=...), OCT, "HS256"))


async def test_the_claims_have_configurable_names(clock: ManualClock) -> None:
    options = with_secret(tenant_claim="https://x/org", role_claim="roles")
    token = signed(
        claims(clock, roles=["viewer", "admin", "other"], **{"https://x/org": "b"}), OCT, "HS256"
    )
    found = await TokenVerifier(options, clock).verify(token)
    assert (found.tenant, found.role) == ("b", "admin")


def test_wrong_options_are_refused(tmp_path: Path) -> None:
    for wrong in (
        {},
        {"secret": "short"},
        {"secret": SECRET, "jwks": PUBLIC},
        {"jwks": PUBLIC},
        {"jwks_url": "http://issuer.example/keys", "audience": "x"},
        {"jwks_url": "file:///etc/passwd", "audience": "x"},
        {"secret": SECRET, "leeway_seconds": -1},
    ):
        with pytest.raises(InvalidRequest):
            JwtOptions(**wrong)  # type: ignore[arg-type]
    missing = JwtOptions(jwks_file=tmp_path / "none.json", audience="x")
    with pytest.raises(InvalidRequest, match="cannot be used"):
        TokenVerifier(missing, ManualClock())
    with pytest.raises(InvalidRequest, match="authentication"):
        ServerOptions(jwt=with_secret())
    assert SECRET not in repr(with_secret())


# --- a set of keys at a URL -----------------------------------------------------------------------


class Issuer:
    """Serves a set of public keys, and counts the requests."""

    def __init__(self) -> None:
        self.asked = 0
        self.answer: Callable[[], httpx.Response] = lambda: httpx.Response(200, json=PUBLIC)

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        self.asked += 1
        return self.answer()


@pytest.fixture
def issuer(monkeypatch: pytest.MonkeyPatch) -> Issuer:
    made = Issuer()
    client = httpx.AsyncClient

    def opened(**options: Any) -> httpx.AsyncClient:
        return client(transport=httpx.MockTransport(made), **options)

    monkeypatch.setattr(token_keys.httpx, "AsyncClient", opened)
    return made


@pytest.fixture
def verifier(clock: ManualClock) -> TokenVerifier:
    options = JwtOptions(jwks_url="https://issuer.example/keys", audience=AUDIENCE)
    return TokenVerifier(options, clock)


async def test_the_set_is_fetched_once(
    issuer: Issuer, verifier: TokenVerifier, clock: ManualClock
) -> None:
    for _ in range(3):
        await verifier.verify(signed(claims(clock), RSA, "RS256", kid="r1"))
    assert issuer.asked == 1


async def test_unknown_keys_fetch_the_set_once_a_minute(
    issuer: Issuer, verifier: TokenVerifier, clock: ManualClock
) -> None:
    new = RSAKey.generate_key(2048, {"kid": "r2"})
    token = signed(claims(clock, exp=10**10), new, "RS256", kid="r2")
    for number in range(20):
        with pytest.raises(Unauthenticated):
            await verifier.verify(signed(claims(clock), new, "RS256", kid=f"k{number}"))
    assert issuer.asked == 1
    issuer.answer = lambda: httpx.Response(200, json={"keys": [new.as_dict(private=False)]})
    clock.advance(60)
    assert (await verifier.verify(token)).tenant == "acme"
    assert issuer.asked == 2


@pytest.mark.parametrize(
    "answer",
    [
        httpx.Response(500),
        httpx.Response(302, headers={"location": "https://evil.example"}),
        httpx.Response(200, content=b"not json"),
        httpx.Response(200, content=b"[" * 300_000),
        httpx.Response(200, content=b" " * 300_000),
        httpx.Response(200, json={"keys": []}),
        httpx.Response(200, json={"keys": "all"}),
    ],
)
async def test_the_last_good_set_is_used_while_the_url_fails(
    issuer: Issuer, verifier: TokenVerifier, clock: ManualClock, answer: httpx.Response
) -> None:
    token = signed(claims(clock, exp=10**10), RSA, "RS256", kid="r1")
    await verifier.verify(token)
    issuer.answer = lambda: answer
    clock.advance(601)
    await verifier.verify(token)
    with pytest.raises(Unauthenticated):
        await verifier.verify(signed(claims(clock), RSA, "RS256", kid="other"))
    await verifier.verify(token)
    assert issuer.asked == 2


# --- over HTTP ------------------------------------------------------------------------------------


@pytest.fixture
async def server(tmp_path: Path, clock: ManualClock) -> AsyncIterator[httpx.AsyncClient]:
    options = ServerOptions(authentication=True, jwt=with_secret())
    async with (
        Holdfast(f"sqlite:///{tmp_path}/runs.db", clock=clock) as hf,
        serving(hf, options) as (http, _),
    ):
        yield http


async def test_a_token_opens_what_its_role_may(
    server: httpx.AsyncClient, clock: ManualClock
) -> None:
    token = bearer(signed(claims(clock), OCT, "HS256"))
    assert (await server.get("/v1/runs", headers=token)).status_code == 200
    assert (await server.get("/v1/keys", headers=token)).status_code == 403
    other = {**token, "Holdfast-Tenant": "other"}
    assert (await server.get("/v1/runs", headers=other)).status_code == 403
    clock.advance(90)
    expired = await server.get("/v1/runs", headers=token)
    assert (expired.status_code, expired.json()["detail"]) == (401, "the token has expired")


async def test_an_attacker_does_not_lock_out_a_token_from_its_address(
    server: httpx.AsyncClient, clock: ManualClock
) -> None:
    token = bearer(signed(claims(clock), OCT, "HS256"))
    assert (await server.get("/v1/runs", headers=token)).status_code == 200
    for _ in range(60):
        forged = await server.get("/v1/runs", headers=bearer("a.b.c"))
    assert forged.status_code == 429
    other = bearer(signed(claims(clock, sub="new"), OCT, "HS256"))
    assert (await server.get("/v1/runs", headers=other)).status_code == 429
    assert (await server.get("/v1/runs", headers=token)).status_code == 200
