"""A reviewer decides with a link, in a real browser."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode

import msgspec
import pytest
from playwright.async_api import Page, expect

from tests.browser.graphs import HOSTILE, Claim
from tests.browser.site import STEP_SECONDS, Site

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.xdist_group("browser")]

ANA, BEN = "ana@example.com", "ben@example.com"


@pytest.mark.parametrize("javascript", [True, False])
async def test_a_reviewer_reads_edits_approves_and_the_run_finishes(
    site: Site, javascript: bool
) -> None:
    run, review = await site.waiting(f"boiler-{javascript}", Claim(assignees=[ANA]))
    page = await site.page(width=400, javascript=javascript)
    await page.goto(await site.hf.reviews.link(review.id, reviewer=ANA))
    await expect(page.get_by_role("heading", level=1)).to_have_text("Approve this warranty?")
    await expect(page.get_by_text("has lost pressure")).to_be_visible()
    if javascript:  # axe is a script
        await site.look(page, "link-400-light")
    await page.get_by_label("Months").fill("12")
    await page.get_by_label("Cover").select_option("replacement")
    await page.get_by_label("Exclusions").fill("frost\nrust")
    await page.get_by_label("Comment").fill("Twelve months are enough.")
    await page.get_by_role("button", name="Approve").click()
    await expect(page.get_by_role("region", name="Outcome")).to_contain_text(f"Approved by {ANA}")
    if javascript:
        await site.look(page, "link-approved-400-light")
    result = await run.result(timeout=STEP_SECONDS)
    assert (result.outcome, result.months) == ("approved", 12)
    decision = (await site.hf.reviews.get(review.id)).decision
    assert decision is not None
    assert decision.comment == "Twelve months are enough."
    assert decision.values["exclusions"] == ["frost", "rust"]
    assert decision.values["holder"] == {"name": "J. Tenant", "email": "tenant@example.com"}
    assert decision.values["extras"] == {"visits": 2}


@pytest.mark.parametrize(("width", "dark"), [(400, True), (1400, False), (1400, True)])
async def test_the_page_at_other_sizes_and_in_the_dark(site: Site, width: int, dark: bool) -> None:
    name = f"{width}-{'dark' if dark else 'light'}"
    _, review = await site.waiting(f"look-{name}", Claim(assignees=[ANA]))
    page = await site.page(width=width, dark=dark)
    await page.goto(await site.hf.reviews.link(review.id, reviewer=ANA))
    await expect(page.get_by_role("button", name="Approve")).to_be_visible()
    await site.look(page, f"link-{name}")
    await page.get_by_label("Months").fill("0")
    await page.evaluate("document.forms[0].noValidate = true")
    await page.get_by_role("button", name="Approve").click()
    await expect(page.get_by_role("alert")).to_contain_text("Months: it must be at least 1")
    await site.look(page, f"link-wrong-value-{name}")
    assert (await site.hf.reviews.get(review.id)).status == "pending"


async def test_a_rejection_keeps_what_is_wrong_in_the_form(site: Site) -> None:
    run, review = await site.waiting("refused", Claim(assignees=[ANA]))
    page = await site.page(dark=True)
    await page.goto(await site.hf.reviews.link(review.id, reviewer=ANA))
    await page.get_by_label("Months").fill("")
    await page.get_by_label("Comment").fill("The fault is not covered.")
    await page.get_by_role("button", name="Reject").click()
    await expect(page.get_by_role("region", name="Outcome")).to_contain_text(f"Rejected by {ANA}")
    await site.look(page, "link-rejected-1000-dark")
    assert (await run.result(timeout=STEP_SECONDS)).outcome == "rejected"


async def test_a_used_link_shows_the_decision_and_changes_nothing(site: Site) -> None:
    _, review = await site.waiting("used", Claim())
    first, second = await site.page(), await site.page()
    for page, person in ((first, ANA), (second, BEN)):
        await page.goto(await site.hf.reviews.link(review.id, reviewer=person))
    await first.get_by_role("button", name="Approve").click()
    await expect(first.get_by_role("region", name="Outcome")).to_contain_text(ANA)
    await second.get_by_role("button", name="Reject").click()
    await expect(second.get_by_role("alert")).to_contain_text("it was decided before")
    await expect(second.get_by_role("region", name="Outcome")).to_contain_text(f"Approved by {ANA}")
    await site.look(second, "link-decided-before-1000-light")
    await second.goto(second.url)
    await expect(second.get_by_role("button")).to_have_count(0)
    await site.look(second, "link-used-1000-light")
    decision = (await site.hf.reviews.get(review.id)).decision
    assert decision is not None
    assert decision.by == ANA


async def test_an_expired_link(site: Site) -> None:
    _, review = await site.waiting("late", Claim())
    address = await site.hf.reviews.link(review.id, reviewer=ANA, expires="1ms")
    await refused(site, address, 410, "This link has expired", "link-expired-1000-light")
    assert (await site.hf.reviews.get(review.id)).status == "pending"


async def test_forged_links(site: Site) -> None:
    _, review = await site.waiting("forged", Claim())
    address = await site.hf.reviews.link(review.id, reviewer=ANA)
    other = await site.hf.reviews.link(review.id, reviewer=BEN)
    start, _, signature = address.rpartition(".")
    head, _, payload = start.rpartition(".")
    swapped = f"{other.rpartition('.')[0]}.{signature}"  # the right of Ana, for Ben
    for forged in (address[:-2], swapped, f"{head}.{payload[:-4]}AAAA.{signature}"):
        await refused(site, forged, 404, "This link is not valid", "link-forged-1000-light")
    assert (await site.hf.reviews.get(review.id)).status == "pending"


async def test_a_link_of_another_tenant(site: Site) -> None:
    """A token names its tenant and is signed: with another tenant's name it opens nothing."""
    _, ours = await site.waiting("shared-name", Claim())
    _, theirs = await site.waiting("shared-name", Claim(), tenant="rival")
    address = await site.hf.reviews.link(theirs.id, reviewer=ANA, tenant="rival")
    token = address.rpartition("/")[2]
    altered = with_tenant(token, "rival", "default")
    await refused(
        site, f"{site.address}/r/{altered}", 404, "This link is not valid", "link-tenant-1000-light"
    )
    page = await site.page()
    await page.goto(address)
    await page.get_by_role("button", name="Reject").click()
    await expect(page.get_by_role("region", name="Outcome")).to_contain_text("Rejected")
    assert (await site.hf.reviews.get(ours.id)).status == "pending"
    assert (await site.hf.reviews.get(theirs.id, tenant="rival")).status == "rejected"


async def test_hostile_text_is_only_text(site: Site) -> None:
    shown = {HOSTILE: [HOSTILE, {"nested": HOSTILE}], "text": f"{HOSTILE}\n" * 30}
    claim = Claim(question=HOSTILE, shown=shown, with_form=False)
    _, review = await site.waiting("hostile", claim)
    page = await site.page(width=400)
    dialogs: list[str] = []
    page.on("dialog", lambda dialog: dialogs.append(dialog.message))
    await page.goto(await site.hf.reviews.link(review.id, reviewer="ana</b>"))
    await expect(page.get_by_role("heading", level=1)).to_contain_text("<script>document.title")
    assert await page.locator("script, img").count() == 0
    assert "owned" not in (await page.title()).split("–")[-1]
    assert "\u202e" not in await page.content()
    assert dialogs == []
    await site.look(page, "link-hostile-400-light")


async def refused(site: Site, address: str, status: int, title: str, name: str) -> None:
    page = await site.page()
    answer = await page.goto(address)
    assert answer is not None
    assert answer.status == status
    await expect(page.get_by_role("heading", level=1)).to_have_text(title)
    await expect(page.get_by_role("button")).to_have_count(0)
    assert await _posted(page, address) == status
    await site.look(page, name)


async def _posted(page: Page, address: str) -> int:
    form = {"action": "approve", "seen": "", "end": "1"}
    return (await page.context.request.post(address, form=form)).status


def with_tenant(token: str, before: str, after: str) -> str:
    """Return a token in which another tenant stands, with the signature of the first."""

    version, payload, signature = token.split(".")
    data = msgspec.msgpack.decode(urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    assert data[2][0] == before
    data[2][0] = after
    altered = urlsafe_b64encode(msgspec.msgpack.encode(data)).rstrip(b"=").decode()
    return f"{version}.{altered}.{signature}"
