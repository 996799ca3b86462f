"""The report in a real browser: it renders without errors, and every section shows."""

from __future__ import annotations

import threading

import pytest

from fedmend.flow import Plan
from fedmend.flow.config import Config
from fedmend.flow.live import Listener, LiveListener
from fedmend.flow.manifest import Manifest
from fedmend.report.page import SECTIONS
from fedmend.serve.watching import WatchServer


@pytest.fixture
def shown(browser, tmp_path):
    """Open a page, which must be without errors and ask the network for nothing."""

    def show(page):
        path = tmp_path / "report.html"
        path.write_text(page, encoding="utf-8")
        browser.get(path.as_uri())
        assert severe(browser) == []
        loaded = browser.execute_script(
            "return performance.getEntriesByType('resource').map(entry => entry.name)"
        )
        assert [name for name in loaded if not name.startswith("data:")] == []
        return browser

    return show


def severe(browser):
    return [line for line in browser.get_log("browser") if line["level"] == "SEVERE"]


def nothing_sticks_out(browser):
    """Sideways, at a desk or on a telephone."""
    for width in (1000, 400):
        browser.set_window_size(width, 1200)
        assert browser.execute_script(
            "return document.documentElement.scrollWidth <= window.innerWidth"
        ), width


def test_a_plain_report_in_light_dark_and_print(shown, plain_page):
    browser = shown(plain_page)
    pictures = browser.find_elements("css selector", "figure svg")
    assert len(pictures) == 3
    assert all(svg.size["height"] > 60 and svg.size["width"] > 300 for svg in pictures)
    nothing_sticks_out(browser)

    def look(media, scheme):
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        emulated = {"media": media, "features": features}
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", emulated)
        body = browser.find_element("css selector", "body")
        return [body.value_of_css_property(name) for name in ("background-color", "color")]

    assert look("screen", "light") == ["rgba(255, 255, 255, 1)", "rgba(29, 37, 48, 1)"]
    assert look("screen", "dark") == ["rgba(20, 24, 29, 1)", "rgba(230, 233, 237, 1)"]
    # Paper is white, whatever the screen was.
    assert look("print", "dark")[0] == "rgba(255, 255, 255, 1)"


def test_every_section_the_keyboard_and_paper(shown, whole_page):
    """Tab goes through links, tables and folded parts; Enter follows and unfolds them."""
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    browser = shown(whole_page)
    there = [name for name in SECTIONS if name != "audit"]
    for section in there:
        element = browser.find_element("id", section)
        assert element.is_displayed() and element.size["height"] > 100, section
    for section, pictures in (("mended", 4), ("annotators", 2), ("rounds", 2)):
        assert len(browser.find_elements("css selector", f"#{section} figure svg")) == pictures
    for svg in browser.find_elements("css selector", "section > figure svg"):
        assert svg.size["height"] > 60 and svg.size["width"] > 300
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
    links = [each[1].rpartition("#")[2] for each in seen if each[0] == "a"]
    assert links == there  # the first one leads past the head with one step
    assert ("div", "Scores of all methods") in seen
    folded = here.find_element("xpath", "..")
    assert folded.get_attribute("open") is None
    press(Keys.ENTER)
    assert folded.get_attribute("open") is not None
    nothing_sticks_out(browser)
    # On paper folded parts are unfolded, but for the settings, which are a file of their own.
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    assert browser.find_element("css selector", "#flows table").size["height"] > 50
    assert not browser.find_element("css selector", "nav").is_displayed()
    assert not browser.find_element("css selector", "#all-settings table").is_displayed()


def test_the_live_page_follows_a_run(browser, record, plain_page, tmp_path):
    from selenium.common.exceptions import StaleElementReferenceException
    from selenium.webdriver.support.wait import WebDriverWait

    part = tmp_path / "run.part"
    part.mkdir()
    manifest = Manifest(part, number=part.stat().st_ino)
    how = {"report": {"title": record.title}, "evaluate": {"metrics": [record.metric]}}
    run = LiveListener(manifest, Listener(), Plan(Config.model_validate(how)))
    run.stage("Finding the rows the parties share")
    run.found("overview", record.overview)

    def says(words, where="live"):
        # The page takes what is new in place of what it had, perhaps while it is looked at.
        waiting = WebDriverWait(browser, 15, 0.1, [StaleElementReferenceException])
        waiting.until(
            lambda page: words in page.find_element("id", where).text,
            browser.find_element("id", "live").text,
        )

    with WatchServer(tmp_path / "run") as server:
        server.patience = 0.0
        thread = threading.Thread(target=server.serve)
        thread.start()
        try:
            browser.get(server.address)
            says("Finding the rows")
            assert browser.find_element("id", "overview").is_displayed()
            run.stage("Training VFL")
            run.scored(record.methods[0])
            says("Training VFL")
            says(record.methods[0].title, "comparison")
            # The run ends: its folder takes its name, and the page becomes the report.
            (part / "report.html").write_text(plain_page, encoding="utf-8")
            record.save(part)
            run.finish()
            part.rename(tmp_path / "run")
            says("finished")
        finally:
            server.stop()
            thread.join()
    assert severe(browser) == []
