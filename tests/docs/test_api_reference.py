"""The API reference is made from the package: every public name, every parameter."""

from __future__ import annotations

import importlib.util
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

import fedmend

ROOT = Path(__file__).parents[2]
MODULES = {"data", "datasets", "errors", "scenario", "__version__"}


@pytest.fixture(scope="module")
def reference() -> Any:
    path = ROOT / "tools" / "api_reference.py"
    spec = importlib.util.spec_from_file_location("api_reference", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def pages(reference: Any) -> dict[str, str]:
    return dict(reference.pages())


def test_every_public_name_is_there(pages: dict[str, str]) -> None:
    headings = re.findall(r"^## `([\w.]+)`", "\n".join(pages.values()), flags=re.MULTILINE)
    named = {name.rpartition(".")[2] for name in headings}
    assert set(fedmend.__all__) - MODULES <= named
    assert len(headings) == len(set(headings))


def test_every_error_has_its_exit_code(pages: dict[str, str]) -> None:
    from fedmend import errors

    for name, each in inspect.getmembers(errors, inspect.isclass):
        if issubclass(each, errors.FedmendError) and each.__module__ == errors.__name__:
            text = pages["api/errors.md"].partition(f"## `{name}`")[2].partition("\n## ")[0]
            assert f"Exit code {each.exit_code}." in text


def test_every_parameter_of_every_method_has_its_default(
    reference: Any, pages: dict[str, str]
) -> None:
    text = pages["api/methods.md"]
    for shown, each in reference.estimators().items():
        part = text.partition(f"## `{shown}`\n")[2].partition("\n## ")[0]
        for name, parameter in each._parameters().items():
            assert f"| `{name}` | `{parameter.default!r}` |" in part, f"{shown} {name}"


def test_pages_are_in_the_navigation(pages: dict[str, str]) -> None:
    nav = (ROOT / "mkdocs.yml").read_text()
    for path, text in pages.items():
        assert f"- {path}" in nav
        assert text.count("```") % 2 == 0, path


def test_a_docstring_becomes_markdown(reference: Any) -> None:
    doc = (
        "What it does, see :class:`Table`.\n\nname: words\n    that go on\nother, more: ``x``\n\n"
        ">>> 1 + 1\n2\n\nThe end."
    )
    assert reference.markdown(doc) == (
        "What it does, see `Table`.\n\n- **name**: words\n  that go on\n- **other, more**: `x`\n\n"
        "```text\n>>> 1 + 1\n2\n```\n\nThe end."
    )
