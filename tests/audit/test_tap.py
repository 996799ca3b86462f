"""A rehearsal leaves no trace in the federation it was copied from."""

from __future__ import annotations

from fedmend.audit.tap import rehearsal


def test_what_is_put_into_a_rehearsals_sites_is_not_in_the_others(make_fed) -> None:
    fed = make_fed()
    site = fed.engine.site("bank")
    site.state["models"] = {"first": 1}
    copy = rehearsal(fed, []).engine.site("bank")
    assert copy.state["models"] == {"first": 1}
    copy.state["models"]["second"] = 2
    copy.state["other"] = {}
    copy.alignments.clear()
    copy.tables.pop("train")
    assert site.state == {"models": {"first": 1}}
    assert set(site.alignments) == set(site.tables) == {"train"}
