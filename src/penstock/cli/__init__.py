"""The command line: `penstock VERB …`, one module per verb.

`VERBS` is the whole table. A module is imported only when its verb is used, so `penstock --help`
costs nothing. It has two functions: `add_arguments(parser)` describes its arguments (with a
description and an `epilog` of examples) and `run(args) -> int` does the work and returns an exit
code. A verb with `own_parser` has `main(argv) -> int` instead (nsqd's command line is Go's, not
argparse's).

`run` raises PenstockError for what a person should know; `main` prints it as one sentence on
stderr, without a traceback, and exits with the code that its kind has (see `ExitCode`). Anything
else is our bug and keeps its traceback. To add a verb: write its module, name it in VERBS and in
docs/cli.md.
"""

import argparse
import os
import sys
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from enum import IntEnum
from importlib import import_module
from typing import NamedTuple, NoReturn

from penstock import __version__
from penstock.errors import ConfigError, CorruptionError, PenstockError


class ExitCode(IntEnum):
    """What a script can tell from the exit code."""

    OK = 0
    ERROR = 1  # the world outside: no broker, disk full, refused by the broker
    USAGE = 2  # a wrong argument or setting; nothing was done
    DAMAGE = 3  # stored bytes are not what was written; they were kept
    BUG = 70  # one of ours, and the broker ended at once; what was answered is safe
    INTERRUPTED = 130  # Ctrl-C, as shells count it


class Verb(NamedTuple):
    module: str
    summary: str
    own_parser: bool = False


VERBS = {
    "serve": Verb("penstock.cli.serve", "run the broker"),
    "nsqd": Verb("penstock.cli.nsqd", "run the broker with nsqd's own command line", True),
    "lookup": Verb("penstock.cli.lookup", "run a name server"),
    "nsqlookupd": Verb(
        "penstock.cli.nsqlookupd", "run a name server with nsqlookupd's own command line", True
    ),
    "pub": Verb("penstock.cli.pub", "publish lines, a file or generated messages"),
    "tail": Verb("penstock.cli.tail", "print a topic's messages as they come"),
    "config": Verb("penstock.cli.config", "print the settings in force and where they came from"),
    "check": Verb("penstock.cli.check", "check a data directory for damage"),
    "dump": Verb("penstock.cli.dump", "print what a data directory holds"),
    "bench": Verb("penstock.cli.bench", "measure a broker"),
}

EXAMPLES = """\
examples:
  penstock serve                          run the broker, data in ./data
  echo hello | penstock pub greetings     publish one message
  penstock tail greetings                 watch a topic
  penstock VERB --help                    what a verb can do

exit codes: 0 done · 1 the work failed · 2 wrong argument or setting · 3 damaged data found ·
70 a bug in Penstock · 130 interrupted
"""


class Parser(argparse.ArgumentParser):
    """argparse with one-sentence errors, on which nothing was done."""

    def parse_args(  # type: ignore[override]  # nobody here hands it a namespace
        self, args: Sequence[str] | None = None
    ) -> argparse.Namespace:
        """As argparse's; a mistyped flag is told with the nearest that exists."""
        parsed, unknown = self.parse_known_args(args)
        flags = [argument.partition("=")[0] for argument in unknown if argument.startswith("-")]
        if flags:
            self.error(
                f"there is no flag '{flags[0]}'{_near(flags[0], self._option_string_actions)}"
            )
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return parsed

    def error(self, message: str) -> NoReturn:
        end = "" if message.endswith(("?", ".")) else "."
        self.exit(ExitCode.USAGE, f"{self.prog}: {message}{end} See '{self.prog} --help'.\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    prog = f"penstock {arguments[0]}" if arguments and arguments[0] in VERBS else "penstock"
    try:
        return _dispatch(arguments)
    except PenstockError as error:
        print(f"{prog}: {error}", file=sys.stderr)
        return exit_code_of(error)
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        # whoever read our output has seen enough (`| head`); nothing more may be flushed to it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.OK


def exit_code_of(error: PenstockError) -> ExitCode:
    """The exit code that belongs to a kind of error."""
    if isinstance(error, ConfigError):
        return ExitCode.USAGE
    return ExitCode.DAMAGE if isinstance(error, CorruptionError) else ExitCode.ERROR


def _dispatch(arguments: list[str]) -> int:
    name = arguments[0] if arguments else "--help"
    verb = VERBS.get(name)
    if verb is None:
        return _without_verb(arguments)
    module = import_module(verb.module)
    if verb.own_parser:
        return int(module.main(arguments[1:]))
    parser = Parser(prog=f"penstock {name}", formatter_class=argparse.RawDescriptionHelpFormatter)
    module.add_arguments(parser)
    return int(module.run(parser.parse_args(arguments[1:])))


def _without_verb(arguments: list[str]) -> int:
    verbs = "\n".join(f"  {name:<10} {verb.summary}" for name, verb in VERBS.items())
    parser = Parser(
        prog="penstock",
        usage="penstock VERB [arguments]",
        description=f"Penstock: a durable message queue, NSQ-compatible.\n\nverbs:\n{verbs}",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"Penstock {__version__}")
    if not arguments:
        parser.print_help()
        return ExitCode.USAGE
    if not arguments[0].startswith("-"):
        parser.error(f"there is no verb '{arguments[0]}'{_near(arguments[0], VERBS)}")
    parser.parse_args(arguments)
    return ExitCode.OK


def _near(name: str, known: Iterable[str]) -> str:
    near = get_close_matches(name, list(known), n=1)
    return f"; did you mean '{near[0]}'?" if near else ""
