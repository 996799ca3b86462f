from __future__ import annotations

import pytest

from fedmend.data.sql import without_password
from fedmend.errors import ConfigError
from fedmend.flow.config import load_config
from fedmend.flow.config.settings import title_of
from fedmend.methods.registry import method_class


def problems_of(path):
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    return caught.value.problems


def one_problem(path, *parts):
    problems = problems_of(path)
    assert len(problems) == 1, problems
    for part in parts:
        assert part in problems[0]


def test_defaults_and_paths(workshop):
    workshop.write(method="")
    config = load_config(workshop.config)
    assert [party.name for party in config.party] == ["bank", "telco"]
    assert config.run.all_seeds == [0]
    assert config.folder == workshop.folder / "runs" / "federation"
    assert config.at("x.csv") == workshop.folder / "x.csv"
    assert [method.name for method in config.method] == ["vfl"]
    assert config.align.mode == "ecdh"
    assert config.title == "bank and telco"
    assert title_of(["a", "b", "c"]) == "a, b and c"
    assert title_of([f"h{number}" for number in range(12)]) == "h0, h1 and 10 more"


def test_one_method_or_several(workshop):
    workshop.write('[method]\nname = "local-vfl"\nbottom = [8, 8]\n', method="")
    (method,) = load_config(workshop.config).method
    assert (method.shown_as, method.params) == ("LocalVFL", {"bottom": [8, 8]})
    workshop.write('[[method]]\nname = "vfl"\ntitle = "again"\n')
    assert [each.shown_as for each in load_config(workshop.config).method] == ["VFL", "again"]


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

[[method]]
name = "vlf"

[[method]]
name = "vfl"
epoch = 3
embedding = "wide"
dropout = 2.0
seed = 4

[evaluate]
metrics = ["acuracy"]
test_share = 1.5
"""
    )
    problems = "\n".join(problems_of(workshop.config))
    for part in (
        "run.seed must be a whole number, got 'zero'",
        "run.sede = 1 is not known: did you mean 'seed'?",
        "run.device must be 'cpu', 'cuda' or 'cuda:0', got 'gpu'",
        "party[bank].lable = 'default' is not known: did you mean 'label'?",
        "party[bank] has both data and sql",
        "party[bank].sql needs a database",
        "party[bank].kinds.age = 'intger' is not a kind: did you mean 'integer'?",
        "party[bank].policy.refuse: unknown kind 'rows'. Did you mean 'row'?",
        "party[bank].name = 'bank' is given 2 times",
        "party[bank] has no table",
        "no party has a label",
        "method[1].name = 'vlf' is not a method: did you mean 'vfl'?",
        "method[vfl].epoch = 3 is not known: did you mean 'epochs'?",
        "method[vfl].embedding must be a whole number, got 'wide'",
        "method[vfl].dropout must be in [0, 1), got 2.0",
        "method[vfl].seed = 4: seeds stand in one place. Mend: set run.seed",
        "'acuracy' is not a metric: did you mean 'accuracy'?",
        "evaluate.test_share must be less than 1, got 1.5",
    ):
        assert part in problems, part
    assert len(problems.splitlines()) == 18


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("[run]\nseeds = []", ["run.seeds is empty", "[0, 1, 2]"]),
        ("[run]\nseeds = [3, 1, 3]", ["run.seeds: 3 is given more than once"]),
        (f"[run]\nseed = {10**60}", ["run: a seed has 63 bits at most"]),
        ("[run]\nseed = -1", ["run.seed must be greater than or equal to 0, got -1"]),
        ("[run]\nseed = true", ["run.seed must be a whole number, got True"]),
        (
            '[align]\nmode = "psi2"',
            ["align.mode must be one of 'ecdh', 'spu' or 'same-order'", "'psi2'"],
        ),
        ('[align]\nnormalize = "text"', ["align.normalize", "did you mean 'normalise'?"]),
        ('[rport]\ntitle = "x"', ["rport", "did you mean 'report'?"]),
        ("align = 3", ["align must be a table, got 3"]),
        ('[evaluate]\nmetrics = "auc"', ["evaluate.metrics must be a list in [ ], got 'auc'"]),
        ("[report]\ntitle = 5", ["report.title must be text in quotes, got 5"]),
    ],
)
def test_single_values(workshop, text, parts):
    # Top-level keys must come first in TOML.
    workshop.write(text if text.startswith("[") else "")
    if not text.startswith("["):
        workshop.config.write_text(text + "\n" + workshop.config.read_text())
    one_problem(workshop.config, *parts)


@pytest.mark.parametrize(
    ("old", "new", "parts"),
    [
        ('name = "telco"', 'name = "coordinator"', ["'coordinator' is taken"]),
        (
            'name = "telco"',
            'name = "tel co"',
            ["must be letters a to z, digits", "'tel co'", 'name = "tel-co"'],
        ),
        ('name = "telco"\n', "", ["party[2].name is missing", 'name = "bank"']),
        ('label = "default"', 'label = "customer"', ["party[bank].label = 'customer' is the id"]),
        (
            'data = "telco.csv"',
            'data = "t.csv"\nlabel = "x"',
            ["several parties have a label: bank, telco", 'label_party = "bank"', "inc"],
        ),
        ('data = "telco.csv"', 'data = "t.csv"\ntest = "u.csv"', ["party[bank].test is missing"]),
        ('data = "telco.csv"', 'sql = "select 1"', ["party[telco].sql needs a database"]),
    ],
)
def test_parties(workshop, old, new, parts):
    workshop.write()
    workshop.config.write_text(workshop.config.read_text().replace(old, new))
    one_problem(workshop.config, *parts)


def test_two_methods_of_one_title(workshop):
    workshop.write('[[method]]\nname = "vfl"\n')
    one_problem(workshop.config, "2 methods are shown as 'VFL'", "title")


def test_test_tables_and_share_exclude_each_other(workshop):
    workshop.write("[evaluate]\ntest_share = 0.3\n")
    text = workshop.config.read_text()
    workshop.config.write_text(text.replace("data =", 'test = "t.csv"\ndata ='))
    one_problem(workshop.config, "evaluate.test_share = 0.3 and test tables are both given")


def test_file_that_is_not_there_not_toml_or_not_utf8(tmp_path):
    one_problem(tmp_path / "absent.toml", "no such file", "fedmend init")
    one_problem(tmp_path, "cannot be read")
    broken = tmp_path / "broken.toml"
    broken.write_text("[run\nseed = 1")
    one_problem(broken, "is not TOML", "line 1")
    broken.write_bytes(b"title = '\xff'")
    one_problem(broken, "is not UTF-8 (byte 9)")
    broken.write_text("")
    assert "party is missing. Mend: add" in problems_of(broken)[0]


def test_a_method_that_is_not_there_is_told_with_the_nearest():
    with pytest.raises(ConfigError, match="did you mean 'vfl'"):
        method_class("vfll")


def test_shown_settings_hold_no_password(workshop):
    workshop.write()
    text = workshop.config.read_text().replace(
        'data = "telco.csv"', 'sql = "select 1"\nuri = "postgresql://me:secret@host/db"'
    )
    workshop.config.write_text(text)
    shown = load_config(workshop.config).shown()
    assert "secret" not in str(shown)
    assert shown["party"][1]["uri"] == "postgresql://me:***@host/db"
    assert without_password("sqlite:///file.db") == "sqlite:///file.db"
    assert without_password("postgresql://me@host/db") == "postgresql://me@host/db"
    for uri in (
        "postgresql://me:sec@ret@host/db",
        "postgresql://host/db?user=me&password=sec%40ret",
        "postgresql://me:sec%40ret@host/db?sslpassword=secret&sslmode=require",
        "host=h user=me password=secret dbname=d",
    ):
        assert "sec" not in without_password(uri) and "ret" not in without_password(uri)
    assert (
        without_password("postgresql://h/d?password=x&a=b") == "postgresql://h/d?password=***&a=b"
    )


def test_policy_of_a_party(workshop):
    workshop.write()
    text = workshop.config.read_text() + ""
    workshop.config.write_text(
        text.replace(
            'label = "default"\n',
            'label = "default"\n[party.policy]\nrefuse = ["weights"]\nmin_intersection = 12\n',
        )
    )
    policy = load_config(workshop.config).party[0].policy.build()
    assert "weights" not in policy.may_leave and policy.min_intersection == 12


# ---------------------------------------------------------------- completion


def test_complete_takes_the_parameters_of_its_class(workshop):
    workshop.write('[complete]\ntau = 0\nmodel = ["linear", "tree"]\nlinear = {alpha = 0.1}\n')
    complete = load_config(workshop.config).complete
    assert (complete.name, complete.also_unmended, complete.export) == ("fedpsg-pum", True, False)
    assert complete.params == {"tau": 0, "model": ["linear", "tree"], "linear": {"alpha": 0.1}}
    workshop.write("[complete]\n")
    assert load_config(workshop.config).complete.params == {}
    workshop.write()
    assert load_config(workshop.config).complete is None


def test_all_that_is_wrong_with_complete_comes_together(workshop):
    workshop.write(
        '[complete]\ngenerater = "vae"\nrounds = 1.5\ntau = "high"\nmodel = [1]\nexport = "x"\n'
        'linear = "ridge"\nsource = "bnak"\nseed = 3\ndirection = "up"\n'
    )
    problems = "\n".join(problems_of(workshop.config))
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
        assert part in problems, part
    assert len(problems.splitlines()) == 9


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ('[complete]\nname = "fedpsgpum"', ["does not complete rows: did you mean 'fedpsg-pum'?"]),
        ('[complete]\n[align]\nmode = "same-order"', ["nothing to complete", 'mode = "ecdh"']),
        ('[complete]\n[[method]]\nname = "vfl"\ntitle = "VFL completed rows"', ["2 methods are"]),
        ("complete = 3", ["complete must be a table, got 3"]),
    ],
)
def test_complete_and_the_rest(workshop, text, parts):
    workshop.write(text if text.startswith("[") else "")
    if not text.startswith("["):
        workshop.config.write_text(text + "\n" + workshop.config.read_text())
    one_problem(workshop.config, *parts)


def test_complete_needs_a_method_that_uses_it(workshop):
    workshop.write("[complete]\n", method='name = "local"')
    one_problem(workshop.config, "no method uses completed rows", 'name = "vfl"')


# ---------------------------------------------------------------- several labellers


def several(workshop, text, method='name = "inc"'):
    workshop.write(text, method=method)
    content = workshop.config.read_text()
    workshop.config.write_text(content.replace('"telco.csv"', '"telco.csv"\nlabel = "y"'))
    return workshop.config


def test_methods_for_several_labellers(workshop):
    config = load_config(
        several(
            workshop,
            '[[method]]\nname = "majority"\nbatch_size = 0.01\n[[method]]\nname = "dawid-skene"\n'
            'label_dp = 2\n[[method]]\nname = "random-labeller"\n[[method]]\nname = "vfl"\n'
            'label_party = "telco"\n[evaluate]\nreference = "bank"\n',
        )
    )
    assert config.labellers == ["bank", "telco"]
    assert [method.shown_as for method in config.method] == ["InC", "MJ", "EM", "Random", "VFL"]


@pytest.mark.parametrize(
    ("method", "text", "parts"),
    [
        ('name = "inc"\nlabel_parties = ["bnak", "telco"]', "", ["'bnak' has no label", "'bank'?"]),
        ('name = "vfl"\nlabel_party = "tello"', "", ["label_party = 'tello'", "'telco'?"]),
        ('name = "inc"', '[evaluate]\nreference = "telko"', ["reference = 'telko'", "'telco'?"]),
        ('name = "inc"\nposterior = "sum"', "", ["posterior must be one of product, row, bayes"]),
        ('name = "inc"\ninitial_epochs = "few"', "", ["a whole number", "Mend: leave it out"]),
        ('name = "vfl"\nlabel_party = "bank"', '[[method]]\nname = "clean"\nlabel_party = "telco"',
         ["different label parties", 'evaluate.reference = "bank"']),
    ],
)  # fmt: skip
def test_several_labellers_and_their_problems(workshop, method, text, parts):
    one_problem(several(workshop, text, method), *parts)


def test_one_labeller_is_no_crowd(workshop):
    workshop.write('[evaluate]\nreference = "majority"\n', method='name = "inc"')
    problems = problems_of(workshop.config)
    assert "method[inc] learns from several annotators, but only bank has a label" in problems[0]
    assert "evaluate.reference = 'majority', but only bank has a label" in problems[1]
