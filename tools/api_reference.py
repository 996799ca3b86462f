"""Makes the API reference from the package itself, whenever the documentation is built.

A hook of mkdocs (see mkdocs.yml): the pages under api/ exist in no file, so that they cannot be
behind the code. Needs nothing but the package.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).parent.parent

# Pages by their names: title, what is said first, and what stands on them as module:name.
PAGES: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "tables": (
        "Tables",
        "A party's rows: ids, typed columns, at most one label. See [tables](../tables.md).",
        (
            "fedmend:read", "fedmend:read_sql", "fedmend:Table", "fedmend:Schema",
            "fedmend:Column", "fedmend.data.datasets:load", "fedmend.data.datasets:info",
            "fedmend.data.datasets:names", "fedmend.data.scenario:split_columns",
            "fedmend.data.scenario:split_rows", "fedmend.data.scenario:tear",
            "fedmend.data.scenario:split_clients", "fedmend.data.scenario:missing_block",
            "fedmend.data.crowds:annotators",
        ),
    ),
    "federation": (
        "Parties and what crosses",
        "Who is there, what each lets out, and what was seen. See [federation](../federation.md).",
        (
            "fedmend:Party", "fedmend:Federation", "fedmend:Policy", "fedmend:Ledger",
            "fedmend:Worker", "fedmend:exposed", "fedmend:Each",
        ),
    ),
    "looking": (
        "Aligning and looking",
        "Before anything is trained. See [look before you train](../how-to/look-first.md).",
        (
            "fedmend:align", "fedmend:overview", "fedmend.report.overview:Overview",
            "fedmend.preflight:label_agreement", "fedmend.preflight:Agreement",
            "fedmend.preflight:label_skew", "fedmend.preflight:Skew",
            "fedmend.preflight:learning_curve", "fedmend.preflight:Curve",
            "fedmend:Audit", "fedmend.audit:AuditReport", "fedmend.audit:Finding",
            "fedmend.audit:Reading", "fedmend.audit:statement",
        ),
    ),
    "methods": (
        "Methods",
        "All estimators have `fit(fed)`, `predict(fed)`, `score(fed)`, `save(path)`, `load(path, "
        "fed)`, `get_params()` and `set_params(…)`; their parameters are keywords of the class and "
        "keys of `[[method]]` in federation.toml.",
        (),
    ),
    "secure": (
        "Secure parts and generators",
        "What the methods are made of. See [sums](../sums.md), [inner products]"
        "(../inner-products.md) and [generators](../generators.md).",
        (
            "fedmend:secure_sum", "fedmend:rank_correlation",
            "fedmend.secure.inner_product:inner_products",
            "fedmend.secure.inner_product:ProductSession", "fedmend.secure.sums:SumSession",
            "fedmend:generators", "fedmend.generate:make", "fedmend.generate:load",
            "fedmend:Generator",
        ),
    ),
    "errors": (
        "Errors",
        "One tree; every message ends in a mend. See [troubleshooting](../troubleshooting.md).",
        (),
    ),
}  # fmt: skip
_PARAMETER = re.compile(r"^(\*{0,2}\w+(?:, \*{0,2}\w+)*): (.*)$")
_ROLE = re.compile(r":\w+:`~?([^`]+)`")


# ---------------------------------------------------------------- pages


def pages() -> dict[str, str]:
    """Every page of the reference, by its path below docs/."""
    found = {"api/index.md": _index()}
    for name, (title, words, items) in PAGES.items():
        parts = [f"# {title}", words]
        parts += [_entry(*_resolve(item)) for item in items]
        if name == "methods":
            parts += [_estimator(shown, each) for shown, each in estimators().items()]
            parts += [_entry(*_resolve(f"fedmend:{each}")) for each in _unlisted()]
            parts += [
                _entry("model", each, heading=f"What {kind} can do", inherited=True)
                for kind, each in _bases().items()
            ]
        if name == "errors":
            parts += [_error(each) for each in errors()]
        found[f"api/{name}.md"] = "\n\n".join(parts) + "\n"
    return found


def _index() -> str:
    lines = ["# API reference", "", "Made from the package when this was built.", ""]
    lines += ["| page | what is on it |", "|---|---|"]
    lines += [f"| [{title}]({name}.md) | {words} |" for name, (title, words, _) in PAGES.items()]
    return "\n".join(lines) + "\n"


def _resolve(item: str) -> tuple[str, Any]:
    module, _, name = item.partition(":")
    home = importlib.import_module(module)
    shown = f"fm.{name}" if module == "fedmend" else f"{module}.{name}"
    return shown, getattr(home, name)


def estimators() -> dict[str, type]:
    """The public estimators, by the name under which they are used."""
    import fedmend
    from fedmend.methods.network import Estimator

    public = {name: getattr(fedmend, name) for name in fedmend.__all__}
    return {
        f"fm.{name}": each
        for name, each in public.items()
        if inspect.isclass(each) and issubclass(each, Estimator)
    }


def _bases() -> dict[str, type]:
    from fedmend.methods.annotators.estimator import CrowdEstimator
    from fedmend.methods.horizontal.estimator import HorizontalEstimator
    from fedmend.methods.network import SplitEstimator

    return {
        "split estimators": SplitEstimator,
        "estimators of several labellers": CrowdEstimator,
        "estimators of horizontal federations": HorizontalEstimator,
    }


def _unlisted() -> list[str]:
    """Public functions and classes that no page names: they stand with the methods."""
    import fedmend

    listed = {item.partition(":")[2] for _, _, items in PAGES.values() for item in items}
    listed |= {shown.removeprefix("fm.") for shown in estimators()}
    return [
        name for name in fedmend.__all__ if name not in listed and callable(getattr(fedmend, name))
    ]


def errors() -> list[type]:
    from fedmend import errors as home

    kinds = (home.FedmendError, home.FedmendWarning)
    return [
        each
        for _, each in inspect.getmembers(home, inspect.isclass)
        if issubclass(each, kinds) and each.__module__ == home.__name__
    ]


# ---------------------------------------------------------------- entries


def _entry(shown: str, what: Any, *, heading: str = "", inherited: bool = False) -> str:
    """A heading, the signature, the docstring; for a class its public methods too."""
    parts = [f"## {heading or f'`{shown}`'}"]
    if inspect.isclass(what):
        if not inherited:
            parts.append(_signature(shown, what))
        parts.append(markdown(inspect.getdoc(what) or ""))
        parts += [
            "\n\n".join([f"### `{name}`", _call(f"….{name}", each), markdown(_doc(each))])
            for name, each in _methods(what, inherited=inherited)
        ]
    else:
        parts += [_signature(shown, what), markdown(inspect.getdoc(what) or "")]
    return "\n\n".join(part for part in parts if part)


def _estimator(shown: str, what: Any) -> str:
    parts = [f"## `{shown}`", markdown(inspect.getdoc(what) or "")]
    rows = [
        f"| `{name}` | {'–' if p.default is p.empty else f'`{p.default!r}`'} |"
        for name, p in what._parameters().items()
    ]
    parts.append("\n".join(["| parameter | default |", "|---|---|", *rows]))
    own = [
        f"- `{_one_line(name, each)}`: {_first_line(each)}"
        for name, each in _methods(what)
        if _first_line(each)
    ]
    if own:
        parts.append("Besides what all can do:\n\n" + "\n".join(own))
    return "\n\n".join(parts)


def _error(what: Any) -> str:
    code = getattr(what, "exit_code", None)
    above = what.__mro__[1].__name__
    told = f" Exit code {code}." if code is not None else ""
    return (
        f"## `{what.__name__}`\n\n{markdown(inspect.getdoc(what) or '')} A kind of `{above}`.{told}"
    )


def _methods(what: Any, *, inherited: bool = False) -> Iterator[tuple[str, Any]]:
    """The public methods and properties that a class defines, or has at all."""
    names = dir(what) if inherited else list(vars(what))
    for name in names:
        each = inspect.getattr_static(what, name)
        if name.startswith("_") or not _doc(each):
            continue
        if isinstance(each, property | staticmethod | classmethod) or inspect.isfunction(each):
            yield name, each


def _plain(what: Any) -> Any:
    if isinstance(what, staticmethod | classmethod):
        return what.__func__
    return what.fget if isinstance(what, property) else what


def _doc(what: Any) -> str:
    return inspect.cleandoc(getattr(_plain(what), "__doc__", None) or "")


def _first_line(what: Any) -> str:
    return _ROLE.sub(r"`\1`", _doc(what).partition("\n")[0])


def _call(shown: str, what: Any) -> str:
    return "" if isinstance(what, property) else _signature(shown, _plain(what), method=True)


def _one_line(name: str, what: Any) -> str:
    if isinstance(what, property):
        return name
    parameters = list(inspect.signature(_plain(what)).parameters)[1:]
    return f"{name}({', '.join(parameters)})"


def _parameter(p: inspect.Parameter) -> str:
    star = {p.VAR_POSITIONAL: "*", p.VAR_KEYWORD: "**"}.get(p.kind, "")
    kind = "" if p.annotation is p.empty else f": {p.annotation}".replace("'", "")
    default = "" if p.default is p.empty else f" = {p.default!r}"
    return f"{star}{p.name}{kind}{default}"


def _signature(shown: str, what: Callable[..., Any], *, method: bool = False) -> str:
    """The call as code, a parameter a line where it is long."""
    try:
        found = inspect.signature(what)
    except (TypeError, ValueError):
        return ""
    given = [_parameter(p) for p in found.parameters.values()]
    if method and given and given[0] in ("self", "cls"):
        given = given[1:]
    if any(p.kind is p.KEYWORD_ONLY for p in found.parameters.values()) and not any(
        p.kind is p.VAR_POSITIONAL for p in found.parameters.values()
    ):
        kinds = [p for p in found.parameters.values() if p.name not in ("self", "cls")]
        given.insert(next(n for n, p in enumerate(kinds) if p.kind is p.KEYWORD_ONLY), "*")
    back = found.return_annotation
    told = "" if back is found.empty or inspect.isclass(what) else f" -> {back}".replace("'", "")
    line = f"{shown}({', '.join(given)}){told}"
    if len(line) > 88:
        inner = "".join(f"    {each},\n" for each in given)
        line = f"{shown}(\n{inner}){told}"
    return f"```text\n{line}\n```"


def markdown(doc: str) -> str:
    """A docstring as Markdown: lines of the form ``name: words`` become a list, examples code."""
    lines: list[str] = []
    code = in_list = False
    for line in _ROLE.sub(r"`\1`", doc).replace("``", "`").splitlines():
        blank = not line.strip()
        begins = line.startswith((">>>", "    ")) and not in_list
        if begins and not code:
            lines.append("```text")
            code = True
        elif code and blank:
            lines.append("```")
            code = False
        parameter = None if code else _PARAMETER.match(line)
        if parameter:
            if not in_list and lines and lines[-1].strip():
                lines.append("")
            lines.append(f"- **{parameter[1]}**: {parameter[2]}")
            in_list = True
        elif in_list and not blank:
            lines.append(f"  {line.strip()}")
        else:
            lines.append(line)
            in_list = in_list and not blank
    return "\n".join([*lines, "```"] if code else lines)


# ---------------------------------------------------------------- mkdocs


def on_files(files: Any, config: Any) -> Any:
    """Called by mkdocs once it has found the pages that are files."""
    from mkdocs.structure.files import File

    _use_source()
    for path, text in pages().items():
        files.append(File.generated(config, path, content=text))
    return files


def _use_source() -> ModuleType:
    """The package of this checkout, installed or not."""
    source = str(ROOT / "src")
    if source not in sys.path:
        sys.path.insert(0, source)
    return importlib.import_module("fedmend")
