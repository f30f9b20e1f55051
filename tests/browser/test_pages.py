"""Every page in a real browser: at a desk and on a phone, light and dark, for eyes, keyboards and screen readers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.browser.browser import DESK, PHONE, Browser

Pages = dict[str, Path]
KINDS = ("run", "simulated", "large", "hostile", "series", "search", "comparison", "explore", "explore-run")
MARKS = 5_000


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [DESK, PHONE], ids=["desk", "phone"])
def test_a_page_opens_without_a_complaint_and_fits_its_window(
    browser: Browser, pages: Pages, kind: str, size: tuple[int, int]
) -> None:
    browser.open(pages[kind], size)
    browser.settle()
    assert browser.complaints() == []
    assert browser.ask("return document.documentElement.scrollWidth") <= size[0]
    assert browser.ask("return [...document.querySelectorAll('.chart')].every((c) => c.querySelector('svg path'))")


# the other pages are made of the same parts
AXE = [
    ("simulated", False),
    ("simulated", True),
    ("series", False),
    ("search", True),
    ("comparison", False),
    ("comparison", True),
    ("explore", False),
    ("explore", True),
]
UNFOLD = (
    "for (const fold of document.querySelectorAll('details')) fold.open = true;"
    "const row = document.querySelector('.tl-row'); if (row) row.click();"
)


@pytest.mark.parametrize(("kind", "dark"), AXE)
def test_axe_finds_no_serious_violation(browser: Browser, pages: Pages, kind: str, dark: bool) -> None:
    browser.open(pages[kind], dark=dark)
    browser.ask(UNFOLD)
    browser.settle()
    assert browser.serious() == []


def test_axe_would_find_a_violation(browser: Browser, pages: Pages) -> None:
    browser.open(pages["explore"])
    browser.ask("const b = document.createElement('button'); document.getElementById('main').append(b)")
    assert any("button-name" in found for found in browser.serious())


@pytest.mark.parametrize("kind", ["hostile", "hostile-measured", "hostile-comparison", "hostile-explore", "search"])
def test_hostile_words_run_nothing(browser: Browser, pages: Pages, kind: str) -> None:
    browser.open(pages[kind])
    for _ in range(2):
        browser.ask(
            "for (const row of document.querySelectorAll('.tl-row')) row.click();"
            "for (const one of document.querySelectorAll('button, [title], summary')) for (const kind of ['click', 'mouseover', 'focus'])"
            " one.dispatchEvent(new Event(kind, {bubbles: true}))"
        )
        browser.settle()
    assert browser.ask("return typeof window.pwned") == "undefined"
    assert browser.ask("return document.querySelectorAll('main img, main iframe, main script:not([type])').length") == 0
    assert browser.complaints() == []
    told = browser.ask("return document.documentElement.textContent")
    assert "<script>" in told or "onerror" in told


def test_the_theme_follows_the_system_until_it_is_chosen(browser: Browser, pages: Pages) -> None:
    colour = "return getComputedStyle(document.body).backgroundColor"
    browser.open(pages["run"], dark=False)
    browser.ask("try { localStorage.clear() } catch (refused) {}")
    browser.open(pages["run"], dark=False)
    light = browser.ask(colour)
    browser.open(pages["run"], dark=True)
    dark = browser.ask(colour)
    assert light != dark
    browser.ask("document.getElementById('theme').click()")  # auto → light
    assert browser.ask(colour) == light
    browser.open(pages["run"], dark=True)
    assert browser.ask(colour) == light  # it is remembered
    browser.ask("document.getElementById('theme').click()")  # light → dark
    assert browser.ask(colour) == dark
    browser.ask("document.getElementById('theme').click()")


def test_a_pressed_number_is_copied_with_its_definition(browser: Browser, pages: Pages) -> None:
    browser.open(pages["run"])
    browser.ask("navigator.clipboard.writeText = (text) => { window.copied = text; return Promise.resolve(); }")
    told = browser.ask(
        "const one = [...document.querySelectorAll('#latency .fig')].find((f) => f.dataset.copy.startsWith('tpot p50'));"
        "one.click(); return [window.copied, one.textContent]"
    )
    browser.settle()
    assert told[1] in told[0] and "(last_token − first_token) / (output_tokens − 1)" in told[0]
    assert told[0] in browser.ask("return document.getElementById('said').textContent")


def test_a_table_is_one_tab_stop_and_arrows_walk_it(browser: Browser, pages: Pages) -> None:
    browser.open(pages["run"])
    reach = "return [...document.querySelector('#latency table').querySelectorAll('.fig')].filter((f) => f.tabIndex === 0).length"
    assert browser.ask(reach) == 1
    browser.ask("document.querySelector('#latency table .fig').focus()")
    before = browser.ask("return document.activeElement.dataset.copy")
    keys = browser.driver.switch_to.active_element
    keys.send_keys("\ue014")  # → (arrow right)
    assert browser.ask("return document.activeElement.dataset.copy") != before
    assert browser.ask(reach) == 1


def test_a_row_of_the_time_line_shows_both_strips_apart(browser: Browser, pages: Pages) -> None:
    browser.open(pages["simulated"])
    browser.ask("[...document.querySelectorAll('.tl-row')].find((r) => r.ariaLabel.includes('ok')).click()")
    told = browser.ask("return [...document.querySelectorAll('#request-detail .strip')].map((s) => s.innerText)")
    assert len(told) == 2
    assert told[0].startswith("CLIENT") and "request → first output" in told[0] and "queue_enter" not in told[0]
    assert told[1].startswith("SERVER") and all(name in told[1] for name in ("queue", "prefill", "decode"))


def test_a_request_leads_to_its_exchange_by_a_command_that_is_copied(browser: Browser, pages: Pages) -> None:
    browser.open(pages["run"])
    browser.ask("navigator.clipboard.writeText = (text) => { window.copied = text; return Promise.resolve(); }")
    browser.ask("document.querySelector('.tl-row').click()")
    browser.ask("document.querySelector('#request-detail dd .fig').click()")
    assert browser.ask("return window.copied") == "phasemeter inspect small#r-0"


def test_without_evidence_the_detail_says_what_is_lumped(browser: Browser, pages: Pages) -> None:
    browser.open(pages["run"])
    browser.ask("document.querySelector('.tl-row').click()")
    assert "one lump" in browser.ask("return document.getElementById('request-detail').innerText")


def test_the_time_line_zooms_and_its_rows_are_walked_by_keys(browser: Browser, pages: Pages) -> None:
    browser.open(pages["run"])
    wide = "return document.querySelector('.tl-inner').getBoundingClientRect().width"
    before = browser.ask(wide)
    browser.ask("document.querySelector('[aria-label=\"Zoom in\"]').click()")
    assert browser.ask(wide) > 1.5 * before
    browser.ask("document.querySelector('.tl-row').focus()")
    for key in ("\ue015", "\ue015", "\ue007"):  # down, down, enter
        browser.driver.switch_to.active_element.send_keys(key)
    assert (
        browser.ask(
            "return [...document.querySelectorAll('.tl-row')].findIndex((r) => r.getAttribute('aria-expanded') === 'true')"
        )
        == 2
    )
    assert browser.ask("return document.querySelector('.tl-row[tabindex=\"0\"]') === document.activeElement")


def test_a_large_run_draws_no_more_marks_than_it_may(browser: Browser, pages: Pages) -> None:
    browser.open(pages["large"])
    assert 0 < browser.ask("return document.querySelectorAll('.tl-track span').length") <= MARKS
    drawn = browser.ask(
        "return [...document.querySelectorAll('.chart svg')].map((s) => s.querySelectorAll('*').length)"
    )
    assert max(drawn) <= MARKS
    assert "of 3,000 requests" in browser.ask("return document.getElementById('timeline').innerText")


def test_a_series_can_be_hidden_and_a_scale_changed(browser: Browser, pages: Pages) -> None:
    browser.open(pages["run"])
    lines = "return document.querySelectorAll('#distributions .chart')[0].querySelectorAll('path.line').length"
    before = browser.ask(lines)
    browser.ask("document.querySelector('#distributions .legend button').click()")
    assert browser.ask(lines) == before - 1
    browser.ask(
        "[...document.querySelectorAll('#distributions button')].filter((b) => b.textContent === 'log scale').forEach((b) => b.click())"
    )
    assert browser.complaints() == []


def test_arrow_keys_read_a_charts_points_aloud(browser: Browser, pages: Pages) -> None:
    browser.open(pages["run"])
    browser.ask("document.querySelector('#distributions .canvas').focus()")
    browser.driver.switch_to.active_element.send_keys("\ue014")
    assert "share at or below" in browser.ask("return document.querySelector('#distributions [aria-live]').textContent")


def test_on_paper_folds_are_open_and_controls_gone(browser: Browser, pages: Pages) -> None:
    browser.open(pages["run"], media="print")
    browser.ask("window.dispatchEvent(new Event('beforeprint'))")
    browser.settle()
    assert browser.ask("return [...document.querySelectorAll('details.print')].every((d) => d.open)")
    assert browser.ask("return getComputedStyle(document.querySelector('nav')).display") == "none"
    assert browser.ask("return getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"


def test_the_page_works_without_scripts_as_far_as_numbers_go(pages: Pages) -> None:
    text = pages["run"].read_text(encoding="utf-8")
    before_scripts = text[: text.index("<script")] if "<script" in text else text
    assert "ttft" in before_scripts and "95 % interval" in before_scripts


def test_the_law_of_the_what_if_page_is_the_missions(browser: Browser, pages: Pages) -> None:
    browser.open(pages["explore"])
    assert "3.425 s" in browser.ask("return document.getElementById('explore-answer').innerText")
    start = "const v = phasemeter.data('explore-data').start;"
    law = browser.ask(start + "const l = phasemeter.law(v); return [l.ttft, l.e2e, l.decode, l.tpot]")
    assert law == pytest.approx([450, 450 + 119 * 25, 119 * 25, 25], abs=0.01)
    shorter = browser.ask(start + "return phasemeter.law({...v, output: 1}).e2e")
    assert shorter == pytest.approx(450, abs=0.01)  # one token has no cadence


def test_where_the_slo_breaks_is_where_the_law_crosses_it(browser: Browser, pages: Pages) -> None:
    browser.open(pages["explore"])
    start = "const v = phasemeter.data('explore-data').start;"
    at = browser.ask(start + "return phasemeter.breaks(v, 'output', 1e6)")
    assert at == 143 or at == 142  # 450 + (n − 1)·25 ≤ 4000 gives 143; the load's share of the queue may take one
    kept, broken = browser.ask(
        start + "const e = (n) => phasemeter.law({...v, output: n}).e2e; return [e(arguments[0]), e(arguments[0] + 1)]",
        at,
    )
    assert kept <= 4000 < broken
    assert browser.ask(start + "return phasemeter.breaks({...v, slo_ttft: 1}, 'output', 1e6)") is None


def test_more_load_than_the_slots_carry_is_said_to_grow_without_end(browser: Browser, pages: Pages) -> None:
    browser.open(pages["explore"])
    browser.ask(
        "const one = document.querySelector('[data-knob=rate]'); one.value = 100; one.dispatchEvent(new Event('change', {bubbles: true}))"
    )
    browser.settle()
    assert "grows without end" in browser.ask("return document.getElementById('explore-answer').innerText")
    assert browser.complaints() == []


def test_a_slider_moves_the_answer_and_reset_brings_it_back(browser: Browser, pages: Pages) -> None:
    browser.open(pages["explore"])
    answer = "return document.getElementById('explore-answer').innerText"
    before = browser.ask(answer)
    browser.ask(
        "const one = document.querySelector('[data-range=tpot]'); one.value = 100; one.dispatchEvent(new Event('input', {bubbles: true}))"
    )
    browser.settle()
    assert browser.ask(answer) != before
    browser.ask("document.getElementById('explore-reset').click()")
    browser.settle()
    assert browser.ask(answer) == before


def test_a_run_starts_the_sliders_at_its_own_numbers(browser: Browser, pages: Pages) -> None:
    browser.open(pages["explore-run"])
    told = browser.ask("return phasemeter.data('explore-data').start")
    assert told["output"] == 20 and 15 < told["tpot"] < 40 and 0.1 < told["prefill_per_token"] < 0.6


def test_the_comparison_has_its_verdict_on_top(browser: Browser, pages: Pages) -> None:
    browser.open(pages["comparison"])
    top = browser.ask("return document.querySelector('header .pill').innerText")
    assert top == "✓ comparable"
    assert browser.ask("return document.querySelectorAll('#differences td svg path').length") > 3


def test_the_comparison_sets_both_budgets_on_one_scale(browser: Browser, pages: Pages) -> None:
    browser.open(pages["comparison"])
    bars = browser.ask("return [...document.querySelectorAll('#budgets .bars .bar')].map((b) => b.childElementCount)")
    assert len(bars) == 4 and all(bars)
    assert "A: before" in browser.ask("return document.getElementById('budgets').innerText")


def test_a_search_leads_with_its_answer_and_draws_its_probes_and_their_latencies(
    browser: Browser, pages: Pages
) -> None:
    browser.open(pages["search"])
    told = browser.ask("return document.getElementById('load').innerText")
    assert told.index("18 req/s") < told.index("against load")
    assert "target" in told and "out of time" in told and "tpot 18.5" in told
    assert browser.ask("return document.querySelectorAll('#load .chart svg').length") == 5


CONTROLS = "button, input, summary, a[href], [tabindex='0']"


@pytest.mark.parametrize("kind", ["run", "search", "comparison", "explore"])
def test_the_tab_key_reaches_every_control_in_its_order(browser: Browser, pages: Pages, kind: str) -> None:
    browser.open(pages[kind])
    count = browser.ask(
        f'const all = [...document.querySelectorAll("{CONTROLS}")].filter((c) => c.tabIndex >= 0 && c.checkVisibility() && !c.disabled);'
        "all.forEach((c, i) => c.setAttribute('data-order', i)); return all.length"
    )
    seen = []
    for _ in range(count + 1):
        browser.driver.switch_to.active_element.send_keys("\ue004")
        seen.append(browser.ask("const c = document.activeElement; return c.getAttribute('data-order')"))
    reached = [int(order) for order in seen if order is not None]
    assert set(reached) == set(range(count))
    assert reached[: len(set(reached))] == sorted(set(reached))
