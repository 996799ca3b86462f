"""What became of the labels: how many were corrected, for whom, and on whose evidence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedmend.report.amounts import human_bytes, human_seconds, percent
from fedmend.report.labelling import Labelling

__all__ = ["sentences", "skills_of"]


def sentences(found: Mapping[str, Any]) -> list[str]:
    """What the label-correction stage did."""
    rows, changed = int(found["rows"]), int(found["changed"])
    parties = [str(each) for each in found["parties"]]
    share = f" ({percent(changed / rows)})" if rows else ""
    lines = [
        f"{_listed(parties)} label. {found['method']} learned from all of them what each label "
        f"probably is; {changed:,} of {rows:,} labels of {found['to']}{share} became another one."
    ]
    if found.get("filled"):
        lines.append(f"{int(found['filled']):,} rows without a label of {found['to']} got one.")
    if found.get("dropped"):
        lines.append(
            f"{int(found['dropped']):,} labels were too doubtful either way and are left out."
        )
    if found.get("rows_of") == "completed":
        lines.append("Completed rows took part in it.")
    lines.append(
        f"The corrected labels went to {found['to']} and nobody else; what it had before stays "
        f"with it. It took {human_seconds(float(found.get('seconds') or 0.0))} and "
        f"{human_bytes(int(found.get('bytes') or 0))} crossed."
    )
    return lines


def skills_of(found: Mapping[str, Any]) -> Labelling | None:
    """Who labels how well, where the method has told."""
    stored = found.get("labelling")
    return Labelling(**stored) if stored else None


def _listed(names: list[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else names[0]
