"""Named recipes: every stage and every parameter in them exists."""

import pytest

import fedmend as fm
from fedmend.errors import ConfigError
from fedmend.methods.recipes import RECIPES, recipe
from fedmend.methods.registry import ANNOTATED, COMPLETIONS, METHODS, make, method_class

OF_THE_FLOW = {"name", "among", "to", "labellers", "least", "rows", "also_uncorrected"}


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_names_methods_and_parameters_that_exist(name):
    found = recipe(name)
    assert found.name == name and len(found.words) > 40
    assert set(found.tables) <= {"correct", "complete", "method"}
    correct, complete = found.tables.get("correct"), found.tables.get("complete")
    if correct is not None:
        assert correct["name"] in ANNOTATED
        method_class(correct["name"])(**{k: v for k, v in correct.items() if k not in OF_THE_FLOW})
    if complete is not None:
        assert complete["name"] in COMPLETIONS
        make(complete["name"], {k: v for k, v in complete.items() if k != "name"})
    for method in found.tables["method"]:
        assert method["name"] in METHODS
        method_class(method["name"])(**{k: v for k, v in method.items() if k != "name"})


def test_the_stages_are_in_order():
    assert recipe("correct-complete-vfl").stages == ["inc", "fedpsg-pum", "vfl"]
    assert fm.recipe("complete-vfl").stages == ["fedpsg-pum", "vfl"]


def test_an_unknown_recipe_says_which_was_meant():
    with pytest.raises(ConfigError, match="did you mean 'correct-local-vfl'"):
        recipe("corect-localvfl")
