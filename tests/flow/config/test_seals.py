"""Split training in the open is noted where it was asked for."""

from __future__ import annotations

import pytest

from fedmend.flow.checks import privacy_notes
from fedmend.flow.config import load_config


@pytest.mark.parametrize("seal", ["", "seal = true"])
def test_the_default_and_boxes_need_no_note(workshop, seal: str) -> None:
    workshop.write(method=f'name = "vfl"\n{seal}')
    assert list(privacy_notes(load_config(workshop.config))) == []


def test_exchanges_in_the_open_are_noted(workshop) -> None:
    workshop.write(
        method='name = "vfl"\nseal = false\n[[method]]\nname = "risa"\n'
        '[[method]]\nname = "local-vfl"\ntitle = "mean"\nseal = false'
    )
    (note,) = privacy_notes(load_config(workshop.config))
    assert note.startswith("VFL, mean: seal = false lets the coordinator read every embedding")
    assert note.endswith("Mend: leave seal out")


def test_a_party_insists_by_its_policy(workshop) -> None:
    workshop.write()
    text = workshop.config.read_text()
    policy = '[party.policy]\nsealed = ["embedding", "gradient"]\n\n[[method]]'
    workshop.config.write_text(text.replace("[[method]]", policy))
    telco = load_config(workshop.config).party[1].policy.build()
    assert telco.sealed == {"embedding", "gradient"}
    assert telco.may_leave >= telco.sealed
