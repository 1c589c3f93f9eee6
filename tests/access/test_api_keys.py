"""API keys: what is stored, what is refused, and what a use costs."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast import Holdfast
from holdfast.access.key_text import new_key_text, parsed_key_text
from holdfast.clock import ManualClock
from holdfast.errors import ConditionFailed, InvalidRequest, KeyNotFound, Unauthenticated
from holdfast.records.api_key import use_key_write
from holdfast.records.keys import api_key_key
from holdfast.storage import Put
from holdfast.sync import Holdfast as BlockingHoldfast


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def hf(tmp_path: Path, clock: ManualClock) -> AsyncIterator[Holdfast]:
    async with Holdfast(f"sqlite:///{tmp_path}/runs.db", clock=clock) as opened:
        yield opened


async def test_a_key_stands_for_its_tenant_and_role(hf: Holdfast) -> None:
    made = await hf.keys.create("ci", tenant="acme", role="operator")
    verified = await hf.keys.verify(made.secret)
    assert (verified.id, verified.name, verified.tenant, verified.role) == (
        made.id,
        "ci",
        "acme",
        "operator",
    )


async def test_the_store_does_not_have_the_secret(hf: Holdfast, tmp_path: Path) -> None:
    made = await hf.keys.create("ci", tenant="acme", role="viewer")
    secret = made.secret.rpartition("_")[2]
    assert made.secret not in repr(made)
    assert made.secret in made.as_dict().values()
    assert secret not in repr(await hf.keys.list())
    await hf.close()
    for file in ("runs.db", "runs.db-wal"):
        stored = (tmp_path / file).read_bytes() if (tmp_path / file).exists() else b""
        assert secret.encode() not in stored


@pytest.mark.parametrize("at", [0, 3, 10, 19, 20, 40, 51, 58])
async def test_a_mistyped_key_is_refused_without_a_read(hf: Holdfast, at: int) -> None:
    made = await hf.keys.create("ci", tenant="acme", role="viewer")
    hf.meter.reset()
    typed = made.secret[:at] + ("q" if made.secret[at] != "q" else "p") + made.secret[at + 1 :]
    for text in (typed, typed.upper(), "", made.secret + "\n", made.secret[:-1], "x" * 10_000):
        with pytest.raises(Unauthenticated, match="is not valid"):
            await hf.keys.verify(text)
    assert hf.meter.report().calls == 0


async def test_another_secret_under_a_known_id_is_refused(hf: Holdfast) -> None:
    made = await hf.keys.create("ci", tenant="acme", role="viewer")
    forged = new_key_text(_random_of(made.id) + b"\0" * 20)
    assert forged.split("_")[1] == made.id
    with pytest.raises(Unauthenticated, match="is not valid"):
        await hf.keys.verify(forged)


def _random_of(id: str) -> bytes:
    return base64.b32decode(id.upper())


async def test_an_expiry_is_exact_to_the_millisecond(hf: Holdfast, clock: ManualClock) -> None:
    made = await hf.keys.create("ci", tenant="acme", role="viewer", expires="1500ms")
    clock.advance(1.499)
    await hf.keys.verify(made.secret)
    clock.advance(0.001)
    with pytest.raises(Unauthenticated, match="expired"):
        await hf.keys.verify(made.secret)


async def test_a_revoked_key_is_refused_and_gone(hf: Holdfast) -> None:
    made = await hf.keys.create("ci", tenant="acme", role="viewer")
    with pytest.raises(KeyNotFound):
        await hf.keys.revoke(made.id, tenant="other")
    await hf.keys.verify(made.secret)
    await hf.keys.revoke(made.id, tenant="acme")
    with pytest.raises(Unauthenticated, match="is not valid"):
        await hf.keys.verify(made.secret)
    with pytest.raises(KeyNotFound):
        await hf.keys.revoke(made.id)
    assert await hf.keys.list() == []


async def test_keys_are_listed_by_tenant(hf: Holdfast) -> None:
    for tenant in ("acme", "acme2", "*"):
        await hf.keys.create("ci", tenant=tenant, role="admin")
    assert [key.tenant for key in await hf.keys.list("acme")] == ["acme"]
    assert [key.tenant for key in await hf.keys.list()] == ["*", "acme", "acme2"]


async def test_a_use_is_noted_once_an_hour(hf: Holdfast, clock: ManualClock) -> None:
    made = await hf.keys.create("ci", tenant="acme", role="viewer")
    times = []
    for seconds in (0, 3599, 1):
        clock.advance(seconds)
        await hf.keys.verify(made.secret)
        await asyncio.gather(*hf.keys._uses)
        [key] = await hf.keys.list()
        assert key.last_used_at is not None
        times.append(key.last_used_at.timestamp())
    assert [time - times[0] for time in times] == [0, 0, 3600]


async def test_a_late_note_of_a_use_does_not_bring_a_revoked_key_back(hf: Holdfast) -> None:
    made = await hf.keys.create("ci", tenant="acme", role="viewer")
    await hf.keys.revoke(made.id)
    with pytest.raises(ConditionFailed):
        await hf.keys._table.write(use_key_write(made.id, now_ms=1))


async def test_a_damaged_key_is_refused_and_left_out_of_lists(hf: Holdfast) -> None:
    made = await hf.keys.create("ci", tenant="acme", role="viewer")
    good = await hf.keys.create("ci", tenant="acme", role="viewer")
    place = api_key_key(made.id)
    item = await hf.keys._table.get(place)
    assert item is not None
    await hf.keys._table.write(Put({**item, "role": "root"}))
    with pytest.raises(Unauthenticated):
        await hf.keys.verify(made.secret)
    assert [key.id for key in await hf.keys.list("acme")] == [good.id]
    await hf.keys.revoke(made.id)


@pytest.mark.parametrize(
    "wrong",
    [{"role": "root"}, {"role": None}, {"tenant": "a#b"}, {"expires": 0}, {"expires": "soon"}],
)
async def test_wrong_arguments_are_refused(hf: Holdfast, wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidRequest):
        await hf.keys.create("ci", **{"tenant": "a", "role": "viewer", **wrong})  # type: ignore[arg-type]
    assert await hf.keys.list() == []


def test_the_text_of_a_key_has_160_random_bits() -> None:
    texts = {new_key_text(bytes(10) + number.to_bytes(20, "big")) for number in range(1000)}
    parts = {parsed_key_text(text) for text in texts}
    assert len(texts) == len(parts) == 1000
    assert None not in parts


def test_the_blocking_api_has_the_keys(tmp_path: Path) -> None:
    with BlockingHoldfast(f"sqlite:///{tmp_path}/runs.db") as hf:
        made = hf.keys.create("ci", tenant="acme", role="viewer")
        assert hf.keys.verify(made.secret).id == made.id
        hf.keys.revoke(made.id)
        assert hf.keys.list("acme") == []
