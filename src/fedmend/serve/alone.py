"""One party predicts its own rows without anybody else, from what it keeps of a model.

A label party has all it needs. Any other party needs a copy of what decides, which it is given
at the end of a run (``[predict] alone`` in federation.toml) where the label party's policy lets
"weights" out. The sides of absent parties are guessed, or handled as the method has learnt it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fedmend.errors import DataError
from fedmend.federation import Federation, Party, Policy
from fedmend.federation.policy import MACHINES_PREDICTIONS
from fedmend.flow.new_rows import read_rows
from fedmend.methods.registry import HORIZONTAL, METHODS
from fedmend.serve.asking import Group, Predicted, ask_horizontal, ask_split
from fedmend.serve.models import load_model, name_of_class, read_told, schema_of
from fedmend.serve.worker import PREDICTIONS_FILE, PredictionWorker
from fedmend.split.parts import MANIFEST

if TYPE_CHECKING:
    from fedmend.flow.config import PartySettings

__all__ = ["predict_alone"]


def predict_alone(
    folder: Path, party: PartySettings, rows: Path, out: Path, *, device: str = "cpu"
) -> Predicted:
    """Predict a file of the party's rows with its part of a model, kept in `folder`.

    Nothing else is read: no other party's part, and nothing of the coordinator's.
    """
    if not (folder / MANIFEST).is_file():
        raise DataError(
            f"{folder} holds no model that can decide alone",
            party=party.name,
            mend=f'[predict] alone = ["{party.name}"] in federation.toml before the run, and a '
            "label party whose policy lets 'weights' out",
        )
    name = name_of_class(read_told(folder)["method"])
    table = read_rows(rows, party, schema_of(folder))
    home = folder.resolve().parent
    # The party asks itself, with a top that it was once sent.
    own = Policy(foreign_predictions=MACHINES_PREDICTIONS)
    fed = Federation(Party(party.name, table, home=home, policy=own), device=device)
    title = METHODS[name].class_name
    with fed, fed.workers(PredictionWorker) as crew:
        model = load_model(name, folder.resolve(), fed)
        if name in HORIZONTAL:
            (done,) = ask_horizontal(model, fed, crew, title)
        else:
            group = Group((party.name,), crew[party.name].claim(party.name))
            (done,) = ask_split(model, fed, crew, [group], title)
        # The part lies at the party's home; predictions go where it was asked to put them.
        fed.engine.sites[party.name].home = None  # type: ignore[attr-defined]
        crew[party.name].write(str(out))
    return Predicted(done.party, title, 0, done.alone, out / party.name / PREDICTIONS_FILE)
