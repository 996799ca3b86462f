"""The public face: exactly these names, sorted, all there, and quick to import."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import fedmend as fm


def test_all_is_sorted_and_everything_in_it_is_there() -> None:
    names = list(fm.__all__)
    assert len(set(names)) == len(names)
    for name in names:
        assert getattr(fm, name) is not None
    assert dir(fm) == sorted(names)


def test_an_unknown_name_is_an_attribute_error() -> None:
    try:
        fm.Federations  # noqa: B018
    except AttributeError as error:
        assert "Federations" in str(error)
    else:
        raise AssertionError("fedmend has no name 'Federations'")


def test_importing_fedmend_loads_nothing_heavy() -> None:
    code = (
        "import sys, fedmend, fedmend.deploy.processes\n"
        "print({'torch', 'pandas', 'numpy', 'fedmend.methods.registry'} & {*sys.modules})\n"
        "import fedmend.data\n"
        "print({'sklearn', 'adbc_driver_manager', 'PIL', 'matplotlib'} & {*sys.modules})\n"
        # what commands that train nothing load (init, ledger, datasets, audit of a ledger)
        "import fedmend.cli.terminal, fedmend.flow.config.starter\n"
        "import fedmend.audit, fedmend.deploy.ledgers; print('torch' in sys.modules)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.split() == ["set()", "set()", "False"]


def test_rooms_import_on_a_bare_machine_and_runs_without_heavy_libraries() -> None:
    # The benchmarks also run where there is nothing but numpy, pandas, torch and scikit-learn.
    rooms = (
        *(f"fedmend.{room}" for room in ("data", "learn", "generate", "methods")),
        "fedmend.federation.federation",  # the names of its room load when they are used
        "fedmend_bench.harness",
        "fedmend_bench.foundations.split",
    )
    code = (
        "import sys\n"
        "class Absent:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in {'pydantic', 'cryptography', 'tenseal', 'rbcl', 'nacl',"
        " 'jinja2', 'matplotlib', 'adbc_driver_manager', 'lightphe'}:\n"
        "            raise ImportError(name)\n"
        "sys.meta_path.insert(0, Absent())\n" + "".join(f"import {room}\n" for room in rooms)
    )
    code += (
        "del sys.meta_path[0]\n"
        "import fedmend.flow.stages, fedmend.methods.auto.auto, fedmend.methods.vertical.few_shot\n"
        "print(sorted({'scipy.stats', 'sklearn', 'sympy', 'matplotlib'} & set(sys.modules)))"
    )
    beside = Path(__file__).parents[1] / "benchmarks"
    paths = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), str(beside)]))
    env = os.environ | {"PYTHONPATH": paths}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, check=True, env=env, stdout=subprocess.PIPE, text=True)
    assert done.stdout == "[]\n", "scipy.stats alone takes almost a second"
