"""The inbox in a real browser: signing in, the views at two widths and in two themes, handling."""

from __future__ import annotations

import pytest
from playwright.async_api import Page, expect

from tests.browser.graphs import Claim
from tests.browser.site import STEP_SECONDS, Site

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.xdist_group("browser")]

ANA, BEN = "ana@example.com", "ben@example.com"


async def signed_in(site: Site, page: Page) -> None:
    key = await site.hf.keys.create(ANA, tenant="default", role="reviewer")
    await page.goto(f"{site.address}/reviews")
    await page.get_by_label("API key").fill(key.secret)
    await page.get_by_role("button", name="Sign in").click()
    await expect(page.get_by_role("heading", level=1)).to_have_text("Reviews")


async def filled(site: Site) -> None:
    """Ask for reviews of each kind, once."""
    if (await site.hf.reviews.list()).reviews:
        return
    question = "Replace the boiler in the basement of 12 Harbour Street under the warranty?"
    await site.waiting("boiler", Claim(question=question, assignees=[ANA]))
    await site.waiting("roof", Claim(question="Repair the roof?", remind_after="1ms"))
    many = Claim(question="Close the claim?", assignees=[ANA, BEN, "cy", "di"], quorum=2)
    await site.waiting("claim-2026-11-000123", many)
    _, claimed = await site.waiting("window", Claim(question="Pay for the window?"))
    await site.hf.reviews.claim(claimed.id, by=BEN)
    run, decided = await site.waiting("door", Claim(question="Pay for the door?"))
    await site.hf.reviews.reject(decided.id, by=BEN, comment="Not covered.")
    await run.result(timeout=STEP_SECONDS)


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [400, 1400])
async def test_the_views(site: Site, width: int, dark: bool) -> None:
    await filled(site)
    name = f"{width}-{'dark' if dark else 'light'}"
    page = await site.page(width=width, dark=dark)
    await page.goto(f"{site.address}/reviews")
    await site.look(page, f"sign-in-{name}")
    await signed_in(site, page)
    await expect(page.get_by_role("link", name="Replace the boiler")).to_be_visible()
    await site.look(page, f"inbox-mine-{name}")
    await page.get_by_role("link", name="All", exact=False).last.focus()
    for view, shown in (
        ("All", "Pay for the window?"),
        ("Overdue", "Repair the roof?"),
        ("Decided", "Pay for the door?"),
    ):
        await page.get_by_role("navigation", name="Views").get_by_text(view).click()
        await expect(page.get_by_role("link", name=shown)).to_be_visible()
        await site.look(page, f"inbox-{view.lower()}-{name}")
    await page.goto(f"{site.address}/reviews?view=all")
    await page.get_by_role("link", name="Close the claim?").click()
    await expect(page.get_by_text("2 equal votes decide")).to_be_visible()
    await site.look(page, f"inbox-review-{name}")


@pytest.mark.parametrize("javascript", [True, False])
async def test_a_reviewer_claims_comments_edits_and_decides(site: Site, javascript: bool) -> None:
    run, review = await site.waiting(f"handled-{javascript}", Claim(question="Handle it?"))
    page = await site.page(width=400, javascript=javascript)
    await signed_in(site, page)
    await page.goto(f"{site.address}/reviews/{review.id}")
    await page.get_by_role("button", name="Claim").click()
    await expect(page.get_by_text("only you can decide it")).to_be_visible()
    await page.get_by_label("Add a comment").fill("I ask the technician.")
    await page.get_by_role("button", name="Comment", exact=True).click()
    await expect(page.get_by_text("I ask the technician.")).to_be_visible()
    await page.get_by_label("Months").fill("18")
    await page.get_by_role("button", name="Save the values").click()
    await expect(page.get_by_text("changed the values")).to_be_visible()
    if javascript:
        await site.look(page, "inbox-handled-400-light")
    await page.get_by_role("button", name="Approve").click()
    await expect(page.get_by_role("region", name="Outcome")).to_contain_text(f"Approved by {ANA}")
    result = await run.result(timeout=STEP_SECONDS)
    assert (result.outcome, result.months) == ("approved", 18)
    await page.get_by_role("button", name="Sign out").click()
    await page.goto(f"{site.address}/reviews/{review.id}")
    await expect(page.get_by_role("heading", level=1)).to_have_text("Sign in")


async def test_enter_in_a_field_decides_nothing(site: Site) -> None:
    _, review = await site.waiting("enter", Claim(question="Press Enter?"))
    page = await site.page()
    await page.goto(await site.hf.reviews.link(review.id, reviewer=ANA))
    await page.get_by_label("Months").press("Enter")
    await page.get_by_label("Name").press("Enter")
    await expect(page.get_by_role("button", name="Approve")).to_be_visible()
    assert (await site.hf.reviews.get(review.id)).status == "pending"


async def test_a_page_from_before_a_change_shows_the_difference(site: Site) -> None:
    _, review = await site.waiting("changed", Claim(question="Change it?"))
    page = await site.page(dark=True)
    await page.goto(await site.hf.reviews.link(review.id, reviewer=ANA))
    await page.get_by_label("Comment").fill("My comment is long.")
    await page.get_by_label("Cover").select_option("parts")
    found = await site.hf.reviews.get(review.id)
    await site.hf.reviews.edit(review.id, by=BEN, values={**found.values, "months": 48})
    await page.get_by_role("button", name="Approve").click()
    await expect(page.get_by_role("alert")).to_contain_text("months: 24 → 48")
    await expect(page.get_by_label("Comment")).to_have_value("My comment is long.")
    await site.look(page, "link-changed-1000-dark")
    assert (await site.hf.reviews.get(review.id)).status == "pending"
    await expect(page.get_by_label("Months")).to_have_value("48")
    await expect(page.get_by_text("Stored now: parts and labour")).to_be_visible()
    await page.get_by_role("button", name="Approve").click()
    await expect(page.get_by_role("region", name="Outcome")).to_contain_text("Approved")
