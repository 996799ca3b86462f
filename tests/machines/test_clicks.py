"""A whole run of two parties by clicking: their consoles in a browser, the coordinator waiting."""

from __future__ import annotations

import contextlib
import datetime
import re
import threading

import pytest
from tests.serve.conftest import serving

from fedmend.console.server import ConsoleServer
from fedmend.deploy.consent import open_question
from fedmend.deploy.party_file import load_party
from fedmend.flow import Listener

from .conftest import Page, told_what_it_costs, wait_until

NEXT_YEAR = datetime.date.today() + datetime.timedelta(days=365)


class Told(Listener):
    def __init__(self):
        self.words = []

    def stage(self, words):
        self.words.append(words)


class Run(threading.Thread):
    """The coordinator's side, in the background."""

    def __init__(self, world, name):
        super().__init__()
        self.world, self.title, self.told, self.error = world, name, Told(), None
        self.start()

    def run(self):
        try:
            self.world.run(self.title, epochs=1, listener=self.told)
        except Exception as error:
            self.error = error


@pytest.fixture
def asking(fresh_world):
    """The world with parties that want to be asked; their files are put back."""
    paths = [fresh_world.kits.party(name) / "party.toml" for name in fresh_world.names]
    before = {path: path.read_text() for path in paths}
    for path in paths:
        path.write_text('approve = "ask"\n' + before[path])
    yield fresh_world
    for path in paths:
        path.write_text(before[path])


@pytest.mark.slow
def test_a_run_of_two_parties_by_clicking(asking, browser):
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    page = Page(browser)
    says, click, go = page.says, page.click, page.go
    kits = {name: asking.kits.party(name) for name in asking.names}
    with contextlib.ExitStack() as open_:
        open_.enter_context(told_what_it_costs())
        consoles = {
            name: open_.enter_context(serving(ConsoleServer(kit))) for name, kit in kits.items()
        }
        consoles["bank"].party.daemon = asking.parties["bank"]  # who starts it ends it
        browser.get(consoles["telco"].link)
        says("telco runs since")
        browser.get(consoles["bank"].link)
        assert "token" not in browser.current_url
        click("Stop")
        says("bank has ended")
        click("Start")
        says("bank takes part (process")
        says("Nothing waits for an answer")
        run = Run(asking, "clicked")
        # The page takes the request in by itself.
        says("May the coordinator run “bank and telco”?")
        says("outputs of a party's bottom model")
        day = browser.find_element(By.ID, "until")
        browser.execute_script("arguments[0].value = arguments[1]", day, NEXT_YEAR.isoformat())
        click("Yes until then")
        says(f"yes until {NEXT_YEAR}")
        wait_until(lambda: "waiting for the answer of telco" in " ".join(run.told.words))
        assert open_question(kits["telco"]) is not None and run.is_alive()
        browser.get(consoles["telco"].address)
        click("Yes, this run")
        says("yes: run 'bank and telco'")
        run.join(200)
        assert run.error is None and (asking.folder / "clicked" / "report.html").is_file()
        asked = [each for each in run.told.words if "takes part" in each]
        assert asked == ["bank takes part; waiting for the answer of telco", "telco takes part"]
        says("ended: finished")
        go("What left")
        says("sealed for bank: passed on unread")
        says("all as written")
        go("Models")
        click("Revoke")
        says("nobody is answered with it any more")
        go("Ledgers and export")
        name = (asking.folder / "clicked" / "run.name").read_text()
        assert browser.find_element(By.ID, "run").get_attribute("value") == name
        theirs = str(asking.folder / "clicked" / "ledger.jsonl")
        browser.find_element(By.ID, "theirs").send_keys(theirs, Keys.ENTER)
        says("telco: agrees")
        browser.get(consoles["bank"].address + "rules")
        (rule,) = load_party(kits["bank"]).rule
        says(rule.words)
        click("Take out")
        says("there is no rule")
        browser.set_window_size(390, 800)  # as wide as a telephone
        for page in ("Inbox", "Rules", "What left", "My table", "Models"):
            go(page)
            wide = browser.execute_script("return document.documentElement.scrollWidth")
            assert wide <= browser.execute_script("return window.innerWidth"), page
        inks = {look: _lightness(browser, look) for look in ("light", "dark")}
        assert inks["light"][0] < 80 < 200 < inks["light"][1], inks  # text, and what it stands on
        assert inks["dark"][1] < 80 < 200 < inks["dark"][0], inks
        assert [each for each in browser.get_log("browser") if each["level"] == "SEVERE"] == []


def _lightness(browser, look):
    """Of text and background, 0 to 255, for somebody whose machine prefers this look."""
    feature = {"name": "prefers-color-scheme", "value": look}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
    ask = "const it = getComputedStyle(document.body); return [it.color, it.backgroundColor]"
    colours = (re.findall(r"\d+", each)[:3] for each in browser.execute_script(ask))
    return [sum(map(int, each)) / 3 for each in colours]
