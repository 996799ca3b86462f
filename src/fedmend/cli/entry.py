"""The fedmend command. Heavy parts load inside the commands that use them."""

from __future__ import annotations

import atexit
import errno
import gc
import logging
import os
import sys
import warnings
from contextlib import suppress
from typing import Annotated, Any, ClassVar, NoReturn

import typer

# Each of them hangs its commands into the app, in this order.
# isort: off
from fedmend.cli import beginning as beginning
from fedmend.cli import running as running
from fedmend.cli import auditing as auditing
from fedmend.cli import looking as looking
from fedmend.cli import parties as parties

# isort: on
from fedmend.cli.shared import app, terminal
from fedmend.errors import FedmendError, FedmendWarning

__all__ = ["app", "main"]

_LOG = logging.getLogger("fedmend")
_DISK = {
    errno.ENOSPC: "make room on this disk, or --folder names one with more",
    errno.EDQUOT: "make room within your quota, or --folder names another disk",
    errno.EROFS: "this disk cannot be written to: --folder names another",
    errno.EACCES: "get the right to write there, or name another folder",
    errno.EPERM: "get the right to write there, or name another folder",
    errno.ENOTDIR: "a file stands where a folder should be: name another folder",
    errno.ENAMETOOLONG: "give a shorter name",
}
"""What a disk may refuse, and what helps."""


class _State:
    """What the options before the command have set, for as long as it runs."""

    debug = False
    handler: logging.Handler | None = None
    told: ClassVar[set[str]] = set()


def _version(asked: bool) -> None:
    if asked:
        from fedmend._version import __version__

        typer.echo(f"fedmend {__version__}")
        raise typer.Exit()


@app.callback()
def _options(
    debug: Annotated[bool, typer.Option("--debug", help="show tracebacks and the log")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="show the version")
    ] = False,
) -> None:
    _State.debug = debug
    if debug:
        from rich.logging import RichHandler

        _State.handler = RichHandler(console=terminal(stderr=True), show_path=False)
        _LOG.addHandler(_State.handler)
        _LOG.setLevel(logging.DEBUG)


# ---------------------------------------------------------------- errors


def _show_warning(message: Any, category: type[Warning], *rest: Any, **more: Any) -> None:
    """Our own warnings as one line; others stay for the log."""
    if issubclass(category, FedmendWarning):
        # One run trains many models, of which each may have the same to say.
        if str(message) not in _State.told:
            _State.told.add(str(message))
            sys.stderr.write(f"note: {message}\n")
    elif _State.debug:
        sys.stderr.write(f"{category.__name__}: {message}\n")


def main(arguments: list[str] | None = None) -> None:
    """The console script: runs a command, and turns errors into one message and an exit code."""
    if arguments is not None:
        _run(arguments)
        return
    # A process of its own: half a million objects are modules, and stay.
    gc.set_threshold(100_000)
    try:
        _run(None)
    except SystemExit as ended:
        if isinstance(ended.code, int) and ended.code:
            _end(ended.code)
        raise


def _run(arguments: list[str] | None) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("default", FedmendWarning)
        warnings.showwarning = _show_warning
        try:
            app(args=arguments, prog_name="fedmend")
        except Exception as error:
            if _State.debug:
                raise
            sys.exit(_tell(error))
        finally:
            if _State.handler is not None:
                _LOG.removeHandler(_State.handler)
            _State.debug, _State.handler = False, None
            _State.told.clear()


def _end(code: int) -> NoReturn:
    """End the process with this code, without taking the interpreter down.

    Soon after a file was read, threads of pyarrow may still give back what they have of it. One
    that comes for the interpreter while that goes down aborts the process, and the code is lost.
    """
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # a pipe that nobody reads any more
            stream.flush()
    os._exit(code)


def _notes(error: BaseException) -> list[str]:
    """Where it was. A full disk is met again in closing, and what is told first was said there."""
    before = [] if error.__context__ is None else _notes(error.__context__)
    return list(dict.fromkeys([*before, *getattr(error, "__notes__", ())]))


def _tell(error: Exception) -> int:
    """Say what went wrong; the exit code."""
    notes = "".join(f"{note}\n" for note in _notes(error))
    if isinstance(error, FedmendError):
        sys.stderr.write(f"error: {error}\n{notes}")
        return error.exit_code
    if isinstance(error, OSError) and error.errno in _DISK:
        where = f": {error.filename}" if error.filename else ""
        sys.stderr.write(f"error: {error.strerror}{where}. Mend: {_DISK[error.errno]}\n{notes}")
        return 1
    sys.stderr.write(
        f"unexpected error: {type(error).__name__}: {error}\n"
        "This is a fault in fedmend. Mend: run again with 'fedmend --debug …' and report "
        "the traceback\n"
    )
    return 1
