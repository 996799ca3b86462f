"""The report in a real browser: it renders without errors, and every section shows."""

from __future__ import annotations

import threading

import pytest

from fedmend.report.page import render

SECTIONS = ["summary", "overview", "comparison", "curves", "costs", "ledger", "settings"]


def colour(browser, selector, name="background-color"):
    element = browser.find_element("css selector", selector)
    return element.value_of_css_property(name)


@pytest.fixture
def shown(browser, entries, tmp_path):
    """Open the page of a record, which must be without errors."""

    def show(record, stages=()):
        path = tmp_path / "report.html"
        path.write_text(render(record, entries, stages), encoding="utf-8")
        browser.get(path.as_uri())
        severe = [line for line in browser.get_log("browser") if line["level"] == "SEVERE"]
        assert severe == []
        return browser

    return show


def nothing_sticks_out(browser):
    """Sideways, at a desk or on a telephone."""
    for width in (1000, 400):
        browser.set_window_size(width, 1200)
        assert browser.execute_script(
            "return document.documentElement.scrollWidth <= window.innerWidth"
        ), width


def test_report_renders_and_every_section_shows(shown, record):
    browser = shown(record)
    for section in SECTIONS:
        element = browser.find_element("id", section)
        assert element.is_displayed(), section
        assert element.size["height"] > 40 and element.size["width"] > 300, section
    pictures = browser.find_elements("css selector", "figure svg")
    assert len(pictures) == 3
    assert all(svg.size["height"] > 60 and svg.size["width"] > 300 for svg in pictures)
    nothing_sticks_out(browser)


def test_mending_and_labellers_show(shown, full_record):
    browser = shown(full_record)
    for section, pictures in (("mended", 2), ("labellers", 1)):
        element = browser.find_element("id", section)
        assert element.is_displayed() and element.size["height"] > 400
        drawn = element.find_elements("css selector", "figure svg")
        assert len(drawn) == pictures
        assert all(svg.size["height"] > 100 and svg.size["width"] > 300 for svg in drawn)
        assert browser.find_element("css selector", f"nav a[href='#{section}']").is_displayed()
    nothing_sticks_out(browser)


def test_every_section_and_the_keyboard(shown, whole):
    """Tab goes through links, tables and folded parts; Enter follows and unfolds them."""
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    from fedmend.report.page import CHAPTERS
    from fedmend.report.stages import stages_of

    told = [{"stage": name, "seconds": 2.0, "bytes": 900} for name in ("align", "train")]
    browser = shown(whole, stages_of(told))
    there = [name for name in CHAPTERS if name not in ("rounds", "audit")]
    for section in there:
        element = browser.find_element("id", section)
        assert element.is_displayed() and element.size["height"] > 100, section
    for svg in browser.find_elements("css selector", "section > figure svg"):
        assert svg.size["height"] > 60 and svg.size["width"] > 300
        # nothing is drawn beyond the page
        assert svg.get_attribute("aria-label")

    def press(key):
        ActionChains(browser).send_keys(key).perform()
        return browser.switch_to.active_element

    seen = []
    for _ in range(60):
        here = press(Keys.TAB)
        seen.append((here.tag_name, here.get_attribute("href") or here.get_attribute("aria-label")))
        if here.tag_name == "summary":
            break
    assert seen[0][1].endswith("#summary")  # past the head with one step
    links = [each[1].rpartition("#")[2] for each in seen[1:] if each[0] == "a"]
    assert links == there
    assert ("div", "Scores of all methods") in seen
    folded = here.find_element("xpath", "..")
    assert folded.get_attribute("open") is None
    press(Keys.ENTER)
    assert folded.get_attribute("open") is not None
    nothing_sticks_out(browser)


def test_folded_parts_print(shown, whole):
    browser = shown(whole)
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    inside = browser.find_element("css selector", "#flows table")
    assert inside.size["height"] > 50
    assert not browser.find_element("css selector", "nav").is_displayed()
    assert not browser.find_element("css selector", "#all-settings table").is_displayed()


def test_report_asks_the_network_for_nothing(shown, record):
    browser = shown(record)
    loaded = browser.execute_script(
        "return performance.getEntriesByType('resource').map(entry => entry.name)"
    )
    assert [name for name in loaded if not name.startswith("data:")] == []


def test_dark_light_and_print_colours(shown, record):
    browser = shown(record)

    def look(media, scheme):
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        browser.execute_cdp_cmd(
            "Emulation.setEmulatedMedia", {"media": media, "features": features}
        )
        return colour(browser, "body"), colour(browser, "body", "color")

    light, dark = look("screen", "light"), look("screen", "dark")
    assert light == ("rgba(255, 255, 255, 1)", "rgba(29, 37, 48, 1)")
    assert dark == ("rgba(20, 24, 29, 1)", "rgba(230, 233, 237, 1)")
    # Paper is white, whatever the screen was.
    assert look("print", "dark")[0] == light[0]


def test_the_live_page_follows_a_run(browser, record, tmp_path):
    from selenium.webdriver.support.wait import WebDriverWait

    from fedmend.flow.live import Listener, LiveListener
    from fedmend.serve.watching import WatchServer

    part = tmp_path / "run.part"
    part.mkdir()
    run = LiveListener(part, Listener(), record.title, {}, [record.metric], [0])
    run.stage("Finding the rows the parties share")
    run.found("overview", record.overview)

    def told(words):
        WebDriverWait(browser, 15).until(
            lambda page: words in page.find_element("id", "live").text,
            browser.find_element("id", "live").text,
        )

    with WatchServer(tmp_path / "run") as server:
        server.patience = 0.0
        thread = threading.Thread(target=server.serve)
        thread.start()
        try:
            browser.get(server.address)
            told("Finding the rows")
            assert browser.find_element("id", "overview").is_displayed()
            run.stage("Training VFL")
            told("Training VFL")
            run.scored(record.methods[0])
            WebDriverWait(browser, 15).until(
                lambda page: record.methods[0].title in page.find_element("id", "comparison").text
            )
            # The run ends: its folder takes its name, and the page becomes the report.
            (part / "report.html").write_text(render(record, []), encoding="utf-8")
            record.save(part)
            run.finish()
            part.rename(tmp_path / "run")
            told("finished")
        finally:
            server.stop()
            thread.join()
    severe = [line for line in browser.get_log("browser") if line["level"] == "SEVERE"]
    assert severe == []
