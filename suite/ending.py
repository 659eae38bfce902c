"""How a command ends: its exit code, and what a person can have caused as one sentence each."""

import errno
import json
import os
import shlex
import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, NoReturn

import typer

from suite.experiment.errors import BadInput
from suite.launch.processes import take_interrupts
from suite.records.published import BadRowsError

DONE, SOME_FAILED, BAD_INPUT, NOTHING_MEASURED, INTERRUPTED = 0, 1, 2, 3, 130

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def to_the_end(command: Callable[[], object]) -> None:
    """Run a command; bad input, or what cannot be read or written, is one clear message and exit code 2."""
    if threading.current_thread() is threading.main_thread():
        take_interrupts()
    try:
        try:
            command()
        finally:
            sys.stdout.flush()
    except (BadInput, BadRowsError) as error:
        for problem in error.problems:
            print(f"error: {problem}", file=sys.stderr)
        sys.exit(BAD_INPUT)
    except BrokenPipeError:  # whoever read the output has left
        _drop_output()
        sys.exit(SOME_FAILED)
    except OSError as error:
        if error.filename is None and error.errno not in _NO_ROOM:
            raise
        _drop_output()
        what = error.filename or "the output, or a file, cannot be written"
        print(f"error: {what}: {error.strerror}", file=sys.stderr)
        sys.exit(BAD_INPUT)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


def refuse(sentence: str) -> NoReturn:
    """End with a sentence that says what is wrong with the input."""
    print(f"error: {sentence}", file=sys.stderr)
    raise typer.Exit(BAD_INPUT)


def _drop_output() -> None:
    """Let go of what standard output would not take, or the interpreter tries again when it ends."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def command_line(command: str, experiment: str, overrides: Iterable[str] | None) -> str:
    """A command to type."""
    return shlex.join(["suite", command, experiment, *(overrides or [])])


def print_json(value: Any) -> None:
    """Print a value for machines."""
    print(json.dumps(value, indent=1))


def print_skipped(problems: Iterable[Any]) -> None:
    """Say which files were no records, and why."""
    for problem in problems:
        print(f"skipped {problem.file}: {problem.reason}", file=sys.stderr)
