"""A federation.toml: its defaults, and all that can be wrong with it, in one message."""

from __future__ import annotations

import tomllib

import pytest

from fedmend.data.sql import without_password
from fedmend.errors import ConfigError
from fedmend.flow import plan_of
from fedmend.flow.checks import privacy_notes
from fedmend.flow.config import load_config
from fedmend.flow.config.rewriting import mended_text
from fedmend.flow.config.settings import title_of
from fedmend.methods.recipes import RECIPES
from fedmend.methods.registry import METHODS, method_class

MENDED = {"settings": {"methods": [{"name": "auto"}]}, "words": []}
TWO = '"telco.csv"\nlabel = "minutes"'


def load(workshop, text="", *, two=False, method='name = "vfl"', head="", **options):
    """A file of the bank and the telco; two: the telco labels, too. head: keys above the tables."""
    workshop.write(text, method=method)
    content = head + workshop.config.read_text()
    workshop.config.write_text(content.replace('"telco.csv"', TWO) if two else content)
    return load_config(workshop.config, **options)


def problems(workshop, *args, **options):
    with pytest.raises(ConfigError) as caught:
        load(workshop, *args, **options)
    return caught.value.problems


def test_a_file_as_windows_writes_it(workshop):
    """With a mark of its encoding at its beginning, and lines that end in two characters."""
    workshop.write("[run]\nseed = 3\n")
    plain = plan_of(load_config(workshop.config)).text
    workshop.config.write_bytes(b"\xef\xbb\xbf" + plain.replace("\n", "\r\n").encode())
    config = load_config(workshop.config)
    assert [party.name for party in config.party] == ["bank", "telco"]
    assert plan_of(config).text == plain
    assert tomllib.loads(mended_text(config, MENDED, workshop.folder / "m.toml"))["run"] == {
        "seed": 3
    }


def test_defaults_and_paths(workshop):
    config = load(workshop, method="")
    assert [party.name for party in config.party] == ["bank", "telco"]
    assert config.run.all_seeds == [0]
    assert config.folder == workshop.folder / "runs" / "federation"
    assert config.at("x.csv") == workshop.folder / "x.csv"
    assert [method.name for method in config.method] == ["vfl"]
    assert config.align.mode == "ecdh" and config.complete is None
    assert config.title == "bank and telco"
    assert title_of(["a", "b", "c"]) == "a, b and c"
    assert title_of([f"h{number}" for number in range(12)]) == "h0, h1 and 10 more"


def test_one_method_or_several(workshop):
    (method,) = load(workshop, '[method]\nname = "local-vfl"\nbottom = [8, 8]\n', method="").method
    assert (method.shown_as, method.params) == ("LocalVFL", {"bottom": [8, 8]})
    several = load(workshop, '[[method]]\nname = "vfl"\ntitle = "again"\n')
    assert [each.shown_as for each in several.method] == ["VFL", "again"]


def test_all_problems_come_together(workshop):
    workshop.config.write_text(
        """
[run]
seed = "zero"
sede = 1
device = "gpu"

[[party]]
name = "bank"
data = "bank.csv"
sql = "select"
lable = "default"
kinds.age = "intger"
policy.refuse = ["rows"]

[[party]]
name = "bank"
policy.allow = ["row"]

[[method]]
name = "vlf"

[[method]]
name = "vfl"
epoch = 3
embedding = "wide"
validation = 2.0
seed = 4
preset = "paper"

[evaluate]
metrics = ["acuracy"]
test_share = 1.5
"""
    )
    with pytest.raises(ConfigError) as caught:
        load_config(workshop.config)
    found = "\n".join(caught.value.problems)
    for part in (
        "run.seed must be a whole number, got 'zero'",
        "run.sede = 1 is not known: did you mean 'seed'?",
        "run.device must be 'cpu', 'cuda' or 'cuda:0', got 'gpu'",
        "party[bank].lable = 'default' is not known: did you mean 'label'?",
        "party[bank] has both data and sql",
        "party[bank].sql needs a database",
        "party[bank].kinds.age = 'intger' is not a kind: did you mean 'integer'?",
        "party[bank].policy.refuse: unknown kind 'rows'. Did you mean 'row'?",
        "party[bank].policy keeps 'control' back, which every run needs. Mend: allow names all",
        "party[bank].name = 'bank' is given 2 times",
        "party[bank] has no table",
        "no party has a label",
        "method[1].name = 'vlf' is not a method: did you mean 'vfl'?",
        "method[vfl].epoch = 3 is not known: did you mean 'epochs'?",
        "method[vfl].embedding must be a whole number, got 'wide'",
        "method[vfl].validation must be in [0, 1), got 2.0",
        "method[vfl].seed = 4: seeds stand in one place. Mend: set run.seed",
        "method[vfl].preset = 'paper': it has none. Mend: leave it out",
        "'acuracy' is not a metric: did you mean 'accuracy'?",
        "evaluate.test_share must be less than 1, got 1.5",
    ):
        assert part in found, part
    assert len(found.splitlines()) == 20


def test_all_that_is_wrong_with_complete_comes_together(workshop):
    found = "\n".join(
        problems(
            workshop,
            '[complete]\ngenerater = "vae"\nrounds = 1.5\ntau = "high"\nmodel = [1]\nexport = "x"\n'
            'linear = "ridge"\nsource = "bnak"\nseed = 3\ndirection = "up"\n',
        )
    )
    for part in (
        "complete.generater = 'vae' is not known: did you mean 'generator'?",
        "complete.rounds must be a whole number, got 1.5. Mend: the default is 1",
        "complete.tau must be a number in [-1, 1], 'significance' or 'cv', got 'high'",
        "complete.model must be text in quotes or a list of texts, got [1]",
        "complete.linear must be a table, got 'ridge'. Mend: leave it out",
        "complete.export must be true or false, got 'x'",
        "complete.source = 'bnak' is not a party: did you mean 'bank'?",
        "complete.seed = 3: seeds stand in one place",
        "complete.direction must be one of a-to-b, both, got 'up'",
    ):
        assert part in found, part
    assert len(found.splitlines()) == 9


INC = 'name = "inc"'
ONE_WRONG = [
    # single values
    ({"text": "[run]\nseeds = []"}, "run.seeds is empty. Mend: give [0, 1, 2]"),
    ({"text": "[run]\nseeds = [3, 1, 3]"}, "run.seeds: 3 is given more than once"),
    ({"text": f"[run]\nseed = {10**60}"}, "run: a seed has 63 bits at most"),
    ({"text": "[run]\nseed = -1"}, "run.seed must be greater than or equal to 0, got -1"),
    ({"text": "[run]\nseed = true"}, "run.seed must be a whole number, got True"),
    ({"text": '[run]\nleave_out = ["align"]'}, "run.leave_out[1] must be one of 'diagnose'"),
    (
        {"text": '[align]\nmode = "psi2"'},
        "must be one of 'ecdh', 'spu' or 'same-order', got 'psi2'",
    ),
    ({"text": '[align]\nnormalize = "text"'}, "is not known: did you mean 'normalise'?"),
    ({"text": '[rport]\ntitle = "x"'}, "is not known: did you mean 'report'?"),
    ({"head": 'shape = "horizontal"\n'}, "is not known there. Mend: write it under [run]"),
    ({"text": '[run]\nlabel = "y"'}, "is not known there. Mend: write it under [[party]]"),
    ({"head": "align = 3\n"}, "align must be a table, got 3"),
    ({"head": "complete = 3\n"}, "complete must be a table, got 3"),
    ({"text": '[evaluate]\nmetrics = "auc"'}, "metrics must be a list in [ ], got 'auc'"),
    ({"text": "[report]\ntitle = 5"}, "report.title must be text in quotes, got 5"),
    ({"text": '[predict]\nalone = ["tellco"]'}, "'tellco' is not a party: did you mean 'telco'?"),
    # methods
    ({"text": '[[method]]\nname = "vfl"'}, "2 methods are shown as 'VFL'. Mend: give each its own"),
    # [complete]
    (
        {"text": '[complete]\nname = "psg-pum"'},
        "does not complete rows: did you mean 'fedpsg-pum'?",
    ),
    ({"text": '[complete]\n[align]\nmode = "same-order"'}, "nothing to complete. Mend: remove"),
    (
        {"text": '[complete]\n[[method]]\nname = "vfl"\ntitle = "VFL completed rows"'},
        "2 methods are shown as",
    ),
    ({"text": "[complete]", "method": 'name = "local"'}, "no method uses completed rows"),
    # several annotators
    (
        {"two": True, "method": 'name = "inc"\nlabel_parties = ["bnak", "telco"]'},
        "label_parties: 'bnak' has no label: did you mean 'bank'?",
    ),
    (
        {"two": True, "method": 'name = "vfl"\nlabel_party = "tello"'},
        "label_party = 'tello' has no label: did you mean 'telco'?",
    ),
    (
        {"two": True, "method": INC, "text": '[evaluate]\nreference = "telko"'},
        "reference = 'telko' has no label: did you mean 'telco'?",
    ),
    ({"two": True, "method": f'{INC}\nposterior = "sum"'}, "posterior must be one of product, row"),
    (
        {"two": True, "method": f'{INC}\ninitial_epochs = "few"'},
        "a number, got 'few'. Mend: l",
    ),
    (
        {
            "two": True,
            "method": 'name = "vfl"\nlabel_party = "bank"',
            "text": '[[method]]\nname = "clean"\nlabel_party = "telco"',
        },
        "different label parties, and nothing says whose test labels count. Mend: evaluate.referen",
    ),
    ({"two": True}, "several parties have a label: bank, telco; method[vfl] learns from one"),
    # [correct]
    ({"two": True, "text": '[correct]\nname = "vfl"'}, "correct.name = 'vfl' does not correct"),
    (
        {"two": True, "text": "[correct]\nepoch = 3"},
        "epoch = 3 is not known: did you mean 'epochs'",
    ),
    (
        {"two": True, "text": '[correct]\nto = "bnak"'},
        "none of the annotators: did you mean 'bank'",
    ),
    (
        {"two": True, "text": '[correct]\nlabellers = ["bank", "shop"]'},
        "correct.labellers: 'shop' has no label",
    ),
    ({"two": True, "text": "[correct]\nleast = 1.0"}, "correct.least must be less than 1, got 1.0"),
    ({"two": True, "text": '[correct]\nrows = "completed"'}, "but nothing is completed"),
    (
        {"two": True, "text": '[complete]\n[correct]\nrows = "completed"\namong = "labellers"'},
        "rows are completed for all parties",
    ),
    ({"text": "[correct]"}, "[correct] needs several parties that label, but only bank does"),
    ({"two": True, "text": "[correct]", "method": INC}, "none uses the corrected labels"),
    ({"recipe": "correct-atuo"}, "recipe = 'correct-atuo' is not known: did you mean"),
]


@pytest.mark.parametrize(("given", "said"), ONE_WRONG, ids=lambda each: str(each)[:40])
def test_what_is_wrong_is_told(workshop, given, said):
    (problem,) = problems(workshop, **given)
    assert said in problem
    assert any(each in problem for each in ("Mend: ", "did you mean", "choose from", "one of"))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('name = "telco"', 'name = "coordinator"', "'coordinator' is taken"),
        ('name = "telco"', 'name = "tel co"', "a to z, digits, '-', '_' and '.', 64 at most, got"),
        ('name = "telco"\n', "", 'party[2].name is missing. Mend: add name = "bank"'),
        ('name = "vfl"\n', "", 'method[1].name is missing. Mend: add name = "vfl"'),
        ('name = "vfl"\n', 'nmae = "vfl"\n', "method[1].name is missing. Mend: write 'nmae' as"),
        ('label = "default"', 'label = "customer"', "party[bank].label = 'customer' is the id"),
        ('data = "telco.csv"', 'data = "t.csv"\ntest = "u.csv"', "party[bank].test is missing"),
        ('data = "telco.csv"', 'sql = "select 1"', "party[telco].sql needs a database"),
        ('data = "telco.csv"', "data = 3", "party[telco].data must be text in quotes, got 3"),
        (
            "data =",
            'test = "t.csv"\ndata =',
            "evaluate.test_share = 0.3 and test tables are both given",
        ),
    ],
)
def test_parties(workshop, old, new, said):
    workshop.write("[evaluate]\ntest_share = 0.3\n" if "share" in said else "")
    workshop.edit((old, new))
    with pytest.raises(ConfigError) as caught:
        load_config(workshop.config)
    (problem,) = caught.value.problems
    assert said in problem


def test_one_annotator_is_no_crowd(workshop):
    first, second = problems(workshop, '[evaluate]\nreference = "majority"\n', method=INC)
    assert "method[inc] learns from several annotators, but only bank has a label" in first
    assert "evaluate.reference = 'majority', but only bank has a label" in second


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "no such file. Mend: 'fedmend init'"),
        (b"[run\nseed = 1", "is not TOML"),
        (b"title = '\xff'", "is not UTF-8 (byte 9)"),
        (b"", "party is missing. Mend: add"),
    ],
)
def test_files_that_are_none(tmp_path, content, said):
    path = tmp_path / "federation.toml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert said in caught.value.problems[0]
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(tmp_path)


def test_a_method_that_is_not_there_is_told_with_the_nearest():
    with pytest.raises(ConfigError, match="did you mean 'vfl'"):
        method_class("vfll")


def test_shown_settings_hold_no_password(workshop):
    workshop.write()
    query = 'sql = "select 1"\nuri = "postgresql://me:secret@host/db"'
    workshop.edit(('data = "telco.csv"', query))
    shown = load_config(workshop.config).shown()
    assert "secret" not in str(shown)
    assert shown["party"][1]["uri"] == "postgresql://me:***@host/db"


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("sqlite:///file.db", "sqlite:///file.db"),
        ("postgresql://me@host/db", "postgresql://me@host/db"),
        ("postgresql://h/d?password=x&a=b", "postgresql://h/d?password=***&a=b"),
        ("postgresql://me:sec@ret@host/db", None),
        ("postgresql://host/db?user=me&password=sec%40ret", None),
        ("postgresql://me:sec%40ret@host/db?sslpassword=secret&sslmode=require", None),
        ("host=h user=me password=secret dbname=d", None),
    ],
)
def test_addresses_without_their_passwords(uri, shown):
    found = without_password(uri)
    assert found == shown if shown else "sec" not in found and "ret" not in found


def test_policy_of_a_party(workshop):
    workshop.write()
    policy = '[party.policy]\nrefuse = ["weights"]\nmin_intersection = 12\nsealed = ["gradient"]\n'
    workshop.edit(('label = "default"\n', f'label = "default"\n{policy}'))
    found = load_config(workshop.config).party[0].policy.build()
    assert "weights" not in found.may_leave and found.min_intersection == 12
    assert found.sealed == {"gradient"} and found.may_leave >= found.sealed


def test_complete_takes_the_parameters_of_its_class(workshop):
    text = '[complete]\ntau = 0\nmodel = ["linear", "tree"]\nlinear = {alpha = 0.1}\n'
    complete = load(workshop, text).complete
    assert (complete.name, complete.also_unmended, complete.export) == ("fedpsg-pum", True, False)
    assert complete.params == {"tau": 0, "model": ["linear", "tree"], "linear": {"alpha": 0.1}}
    assert load(workshop, "[complete]\n").complete.params == {}


def test_methods_for_several_annotators(workshop):
    config = load(
        workshop,
        '[[method]]\nname = "majority"\nbatch_size = 0.01\n[[method]]\nname = "dawid-skene"\n'
        'label_dp = 2\n[[method]]\nname = "random-labeller"\n[[method]]\nname = "vfl"\n'
        'label_party = "telco"\n[evaluate]\nreference = "bank"\n',
        two=True,
        method=INC,
    )
    assert config.labellers == ["bank", "telco"]
    shown = [method.shown_as for method in config.method]
    assert shown == ["InC", "majority vote", "Dawid–Skene", "Random", "VFL"]


def test_defaults_of_a_correction(workshop):
    how = plan_of(load(workshop, "[correct]\n", two=True)).correct
    assert (how.name, how.to, how.labellers, how.among) == ("inc", "bank", None, "all")
    text = '[correct]\nlabellers = ["telco", "bank"]\nepochs = 7\nleast = 0.6\n'
    how = plan_of(load(workshop, text, two=True)).correct
    assert how.to == "telco" and how.params == {"epochs": 7} and how.least == 0.6
    assert how.estimator(3).get_params()["label_parties"] == ("telco", "bank")


def test_exchanges_in_the_open_are_noted(workshop):
    config = load(
        workshop,
        method='name = "vfl"\nseal = false\n[[method]]\nname = "risa"\nseal = true\n'
        '[[method]]\nname = "local-vfl"\ntitle = "mean"\nseal = false',
    )
    (note,) = privacy_notes(config)
    assert note.startswith("VFL, mean: seal = false lets the coordinator read every embedding")
    assert note.endswith("Mend: leave seal out")
    assert list(privacy_notes(load(workshop))) == []


# ---------------------------------------------------------------- recipes


def test_a_recipe_is_the_tables_it_names(workshop):
    config = load(workshop, two=True, method="", head='recipe = "correct-auto"\n')
    tables = RECIPES["correct-auto"].tables
    assert config.correct.among == tables["correct"]["among"]
    assert [each.name for each in config.method] == [each["name"] for each in tables["method"]]
    assert config.recipe == "correct-auto"
    assert plan_of(config).text == workshop.config.read_text()


def test_the_command_goes_before_the_file_and_the_file_before_the_recipe(workshop):
    config = load(
        workshop,
        "[correct]\nepochs = 50\n",
        two=True,
        method='name = "auto"\nepochs = 3\n[[method]]\nname = "local"',
        recipe="correct-auto",
    )
    assert config.correct.params["epochs"] == 50 and config.correct.among == "labellers"
    assert [each.name for each in config.method] == ["auto", "local"], "to compare"
    assert config.method[0].params["epochs"] == 3
    assert plan_of(config).text.startswith('recipe = "correct-auto"\n')
    head = 'recipe = "correct-auto"\n'
    config = load(workshop, two=True, method="", head=head, recipe="infer-auto")
    assert config.recipe == "infer-auto" and config.correct.name == "dawid-skene"
    assert plan_of(config).text.count("recipe =") == 1


@pytest.mark.parametrize("name", list(RECIPES))
def test_every_recipe_is_a_plan(workshop, name):
    plan = plan_of(load(workshop, two=True, method="", head=f'recipe = "{name}"\n'))
    assert plan.choose is not None and plan.correct is not None


# ---------------------------------------------------------------- what the label is


def test_one_task_for_all_methods(workshop):
    workshop.write('[[method]]\nname = "local-trees"\n[[method]]\nname = "inc"\n')
    workshop.edit(('label = "default"', 'label = "default"\ntask = "count"'))
    with pytest.raises(ConfigError, match="inc"):
        load_config(workshop.config)  # which needs annotators
    workshop.edit(('"inc"', '"auto"'))
    config = load_config(workshop.config)
    assert {method.name: method.params["task"] for method in config.method} == {
        "vfl": "count", "local-trees": "count", "auto": "count"
    }  # fmt: skip
    auto = config.method[-1]
    known = {name: METHODS[name].known(auto.params) for name in ("boosting", "inc")}
    assert known == {"boosting": {"task": "count"}, "inc": {}}


def test_tasks_that_contradict_each_other(workshop):
    workshop.write('[[method]]\nname = "local"\ntask = "regression"\n')
    workshop.edit(('label = "default"', 'label = "default"\ntask = "count"'))
    with pytest.raises(ConfigError, match=r"method\[local\].task = 'regression', but party\[bank"):
        load_config(workshop.config)
    workshop.edit(('task = "regression"', ""), ('"telco.csv"', '"telco.csv"\ntask = "count"'))
    with pytest.raises(ConfigError, match=r"party\[telco\].task = 'count', but telco has no label"):
        load_config(workshop.config)
    workshop.edit(('\ntask = "count"', ""), ('"default"', '"default"\ntask = "counts"'))
    with pytest.raises(ConfigError, match=r"party\[bank\].task must be one of 'binary'"):
        load_config(workshop.config)


def test_a_weight_column_is_no_column_to_learn_from(workshop):
    trees = 'name = "boosting"\nweight_column = "income"\n'
    alone = '[[method]]\nname = "local-trees"\nweight_column = "income"\n'
    load(workshop, alone, method=trees)
    load(workshop, method='name = "auto"\ncandidates = ["local-trees", "boosting"]\n' + trees[18:])
    (problem,) = problems(workshop, '[[method]]\nname = "local-trees"\n', method=trees)
    assert "weight_column = 'income': local-trees would take this column" in problem
    (problem,) = problems(workshop, "[complete]\n", method='name = "auto"\n' + trees[18:])
    assert "'income': [complete], local, " in problem and "boosting would" not in problem
    assert 'Mend: name = "boosting" and "local-trees" only' in problem
