"""The report of a whole run, opened in a browser: every section, every picture, no errors."""

from __future__ import annotations

import shutil

from fedmend.report.page import write_report

PICTURES = True

# Section, and what is drawn in it: how many pictures, and words that must be told.
SECTIONS = {
    "summary": (0, "Rows known to all"),
    "overview": (1, "What is torn"),
    "advice": (0, "recipe"),
    "mended": (2, "threshold"),
    "corrected": (1, "labels of bank"),
    "comparison": (1, "AUC"),
    "uncertainty": (1, "Uncertainty tells wrong answers from right ones"),
    "curves": (1, "validation rows"),
    "costs": (1, "crossed in all"),
    "ledger": (0, "The coordinator saw"),
    "settings": (0, "federation.toml"),
}


def test_every_section_of_a_whole_run(browser, finished, tmp_path):
    world, _ = finished
    run = shutil.copytree(world.run_folder, tmp_path / "run")
    browser.get(write_report(run).as_uri())
    severe = [line for line in browser.get_log("browser") if line["level"] == "SEVERE"]
    assert severe == []
    for name, (pictures, words) in SECTIONS.items():
        section = browser.find_element("id", name)
        assert section.is_displayed() and section.size["height"] > 60, name
        drawn = section.find_elements("css selector", "figure svg")
        assert len(drawn) >= pictures, name
        assert all(svg.size["height"] > 60 and svg.size["width"] > 300 for svg in drawn), name
        assert words in section.text or name == "overview", (name, section.text)
    # the torn table, the heat map with its threshold, the provenance mosaic, expertise
    labels = [
        svg.get_attribute("aria-label") or ""
        for svg in browser.find_elements("css selector", "figure svg")
    ]
    for picture in ("Which rows have which columns", "uncertainty is worth", "curves of every"):
        assert any(picture in each for each in labels), (picture, labels)
    assert "known to those who label" not in browser.find_element("id", "overview").text
