"""``python -m fedmend_bench NAME``: a benchmark on a machine without the fedmend command."""

from __future__ import annotations

import argparse
import sys

from fedmend._parameters import parse_options
from fedmend.errors import FedmendError
from fedmend_bench.harness import available, run_bench, show


def main(arguments: list[str] | None = None) -> int:
    """Run one benchmark; the exit code is that of the error, if there was one."""
    known = "\n".join(f"  {name:<12} {line}" for name, line in available().items())
    parser = argparse.ArgumentParser(
        prog="python -m fedmend_bench",
        description=f"benchmarks:\n{known}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name")
    parser.add_argument("--quick", action="store_true", help="an honest small version")
    parser.add_argument("--resume", action="store_true", help="go on from what was measured before")
    parser.add_argument("--json", metavar="FILE", help="write the result here too")
    parser.add_argument("-o", "--option", action="append", default=[], metavar="KEY=VALUE")
    given = parser.parse_args(arguments)
    try:
        options = parse_options(given.option)
        result = run_bench(given.name, quick=given.quick, resume=given.resume, options=options)
    except FedmendError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    show(result)
    if given.json:
        result.write_json(given.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
