"""The mending tables of a federation.toml: [correct], recipes, stages that are left out."""

from __future__ import annotations

import pytest

from fedmend.errors import ConfigError
from fedmend.flow import plan_of
from fedmend.flow.config import load_config
from fedmend.methods.recipes import RECIPES

LABELLED = '"telco.csv"\nlabel = "minutes"'


def load(workshop, text, *, two=True, method='name = "vfl"', **options):
    workshop.write(text, method=method)
    if two:
        content = workshop.config.read_text().replace('"telco.csv"', LABELLED)
        workshop.config.write_text(content)
    return load_config(workshop.config, **options)


def problems(workshop, text, **options) -> str:
    with pytest.raises(ConfigError) as caught:
        load(workshop, text, **options)
    told = str(caught.value)
    assert any(words in told for words in ("Mend", "did you mean", "choose from"))
    return told


def test_defaults_of_a_correction(workshop) -> None:
    how = plan_of(load(workshop, "[correct]\n")).correct
    assert how is not None
    assert (how.name, how.to, how.labellers, how.among) == ("inc", "bank", None, "all")
    chosen = load(workshop, '[correct]\nlabellers = ["telco", "bank"]\nepochs = 7\nleast = 0.6\n')
    how = plan_of(chosen).correct
    assert how is not None
    assert how.to == "telco" and how.params == {"epochs": 7} and how.least == 0.6
    assert how.estimator(3).get_params()["label_parties"] == ("telco", "bank")


def test_methods_of_one_label_need_no_label_party_then(workshop) -> None:
    plan = plan_of(load(workshop, '[correct]\nto = "telco"\nalso_uncorrected = true\n'))
    assert [(each.title, each.params["label_party"]) for each in plan.trainings] == [
        ("VFL", "telco"), ("VFL + corrected labels", "telco"),
    ]  # fmt: skip


def test_methods_of_several_learn_from_the_votes_themselves(workshop) -> None:
    plan = plan_of(load(workshop, '[[method]]\nname = "inc"\n[correct]\n'))
    assert [(each.title, each.corrected) for each in plan.trainings] == [
        ("VFL + corrected labels", True), ("InC", False),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[correct]\nname = "vfl"', "correct.name = 'vfl' does not correct labels"),
        ("[correct]\nepoch = 3", "correct.epoch = 3 is not known: did you mean 'epochs'"),
        ('[correct]\nto = "bnak"', "correct.to = 'bnak' is none of the annotators: did you mean"),
        ('[correct]\nlabellers = ["bank", "shop"]', "correct.labellers: 'shop' has no label"),
        ('[correct]\nlabellers = ["bank"]', "correct.labellers"),
        ("[correct]\nleast = 1.0", "correct.least must be less than 1"),
        ('[correct]\nrows = "completed"', "but nothing is completed"),
        (
            '[complete]\n[correct]\nrows = "completed"\namong = "labellers"',
            "rows are completed for all parties",
        ),
        ('[run]\nleave_out = ["align"]', "run.leave_out"),
        ('[predict]\nalone = ["tellco"]', "predict.alone: 'tellco' is not a party: did you mean"),
    ],
)
def test_what_is_wrong_is_told(workshop, text, said) -> None:
    assert said in problems(workshop, f"{text}\n")


def test_one_labeller_has_nothing_to_correct(workshop) -> None:
    told = problems(workshop, "[correct]\n", two=False)
    assert "[correct] needs several parties that label, but only bank does" in told


def test_correction_nobody_uses(workshop) -> None:
    told = problems(workshop, "[correct]\n", method='name = "inc"')
    assert "none uses the corrected labels" in told


# ---------------------------------------------------------------- recipes


def test_a_recipe_is_the_tables_it_names(workshop) -> None:
    text = workshop_text(workshop, 'recipe = "correct-complete-vfl"\n')
    workshop.config.write_text(text)
    config = load_config(workshop.config)
    tables = RECIPES["correct-complete-vfl"].tables
    assert config.correct is not None and config.complete is not None
    assert config.correct.among == tables["correct"]["among"]
    assert [each.name for each in config.method] == [each["name"] for each in tables["method"]]
    plan = plan_of(config)
    assert plan.config.recipe == "correct-complete-vfl"
    assert plan.text == text


def workshop_text(workshop, head: str, method: str = "") -> str:
    workshop.write("", method=method)
    return head + workshop.config.read_text().replace('"telco.csv"', LABELLED)


def test_the_file_goes_before_the_recipe(workshop) -> None:
    text = workshop_text(
        workshop, "", method='name = "vfl"\nepochs = 3\n[[method]]\nname = "local"'
    )
    workshop.config.write_text(text + "[correct]\nepochs = 50\n")
    config = load_config(workshop.config, recipe="correct-complete-vfl")
    assert config.correct is not None
    assert config.correct.params["epochs"] == 50 and config.correct.params["crossfit"] is True
    assert [each.name for each in config.method] == ["vfl", "local"], "to compare"
    assert config.method[0].params["epochs"] == 3
    assert plan_of(config).text.startswith('recipe = "correct-complete-vfl"\n')


def test_the_command_goes_before_the_file(workshop) -> None:
    workshop.config.write_text(workshop_text(workshop, 'recipe = "correct-local-vfl"\n'))
    config = load_config(workshop.config, recipe="correct-complete-vfl")
    assert config.recipe == "correct-complete-vfl" and config.complete is not None
    assert plan_of(config).text.count("recipe =") == 1


def test_an_unknown_recipe(workshop) -> None:
    workshop.config.write_text(
        workshop_text(workshop, "", method='name = "local"\nlabel_party="bank"')
    )
    with pytest.raises(ConfigError, match="recipe = 'complete-vlf' is not known: did you mean"):
        load_config(workshop.config, recipe="complete-vlf")


@pytest.mark.parametrize("name", list(RECIPES))
def test_every_recipe_is_a_plan(workshop, name) -> None:
    workshop.config.write_text(workshop_text(workshop, f'recipe = "{name}"\n'))
    if "correct" not in RECIPES[name].tables:
        workshop.config.write_text(workshop.config.read_text().replace(LABELLED, '"telco.csv"'))
    assert plan_of(load_config(workshop.config)).trainings
