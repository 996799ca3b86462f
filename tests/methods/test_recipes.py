"""Named recipes: every stage and every parameter in them exists."""

import pytest

import fedmend as fm
from fedmend.errors import ConfigError
from fedmend.methods.recipes import RECIPES, recipe
from fedmend.methods.registry import ANNOTATED, METHODS, method_class

OF_THE_FLOW = {"name", "among", "to", "labellers", "least", "rows", "also_uncorrected"}


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_names_methods_and_parameters_that_exist(name):
    found = recipe(name)
    assert found.name == name and len(found.words) > 40
    assert set(found.tables) == {"correct", "method"}
    correct = found.tables["correct"]
    assert correct["name"] in ANNOTATED
    method_class(correct["name"])(**{k: v for k, v in correct.items() if k not in OF_THE_FLOW})
    for method in found.tables["method"]:
        assert method["name"] in METHODS
        method_class(method["name"])(**{k: v for k, v in method.items() if k != "name"})


def test_the_stages_are_in_order():
    assert recipe("correct-auto").stages == ["inc", "auto"]
    assert fm.recipe("infer-auto").stages == ["dawid-skene", "auto"]


def test_an_unknown_recipe_says_which_was_meant():
    with pytest.raises(ConfigError, match="did you mean 'correct-auto'"):
        recipe("corect-autos")
