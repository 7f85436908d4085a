"""Dispatch, help, errors and exit codes of the command line as a whole."""

import subprocess
import sys
from types import ModuleType

import pytest

from penstock import __version__
from penstock.cli import VERBS, ExitCode, Verb, exit_code_of, main
from penstock.errors import ConfigError, CorruptionError, DiskFull, PenstockError


@pytest.fixture
def verb(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A verb `try` whose `run` a test sets."""
    module = ModuleType("penstock_try")
    module.add_arguments = lambda parser: parser.add_argument("--n", type=int)  # type: ignore[attr-defined]  # a module made here
    module.run = lambda args: args.n  # type: ignore[attr-defined]  # the same
    monkeypatch.setitem(sys.modules, "penstock_try", module)
    monkeypatch.setitem(VERBS, "try", Verb("penstock_try", "a verb of a test"))
    return module


def raising(error: BaseException) -> object:
    def run(args: object) -> int:
        raise error

    return run


def test_the_verbs_run_decides_the_exit_code(verb: ModuleType) -> None:
    assert main(["try", "--n", "7"]) == 7


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("x"), ExitCode.USAGE),
        (CorruptionError("x"), ExitCode.DAMAGE),
        (DiskFull("x"), ExitCode.ERROR),
        (PenstockError("x"), ExitCode.ERROR),
    ],
)
def test_an_error_is_one_sentence_and_its_exit_code(
    verb: ModuleType,
    error: PenstockError,
    code: ExitCode,
    capsys: pytest.CaptureFixture[str],
) -> None:
    verb.run = raising(error)  # type: ignore[attr-defined]  # a module made here
    assert main(["try"]) == code
    assert exit_code_of(error) == code
    assert capsys.readouterr() == ("", "penstock try: x\n")


def test_ctrl_c_is_an_exit_code_without_a_traceback(
    verb: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    verb.run = raising(KeyboardInterrupt())  # type: ignore[attr-defined]  # a module made here
    assert main(["try"]) == ExitCode.INTERRUPTED
    assert capsys.readouterr() == ("", "")


def test_our_own_bugs_keep_their_traceback(verb: ModuleType) -> None:
    verb.run = raising(ZeroDivisionError())  # type: ignore[attr-defined]  # a module made here
    with pytest.raises(ZeroDivisionError):
        main(["try"])


def test_a_wrong_argument_is_one_sentence(
    verb: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["try", "--n", "x"])
    assert ended.value.code == ExitCode.USAGE
    assert capsys.readouterr().err == (
        "penstock try: argument --n: invalid int value: 'x'. See 'penstock try --help'.\n"
    )


def test_an_unknown_flag_names_the_nearest(
    verb: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["try", "--hepl=x"])
    assert ended.value.code == ExitCode.USAGE
    assert capsys.readouterr().err == (
        "penstock try: there is no flag '--hepl'; did you mean '--help'? "
        "See 'penstock try --help'.\n"
    )


def test_an_unknown_verb_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["sreve"])
    assert ended.value.code == ExitCode.USAGE
    assert capsys.readouterr().err == (
        "penstock: there is no verb 'sreve'; did you mean 'serve'? See 'penstock --help'.\n"
    )


def test_without_arguments_it_prints_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == ExitCode.USAGE
    out = capsys.readouterr().out
    assert all(name in out and verb.summary in out for name, verb in VERBS.items())


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"Penstock {__version__}\n"


@pytest.mark.parametrize("name", [name for name, verb in VERBS.items() if not verb.own_parser])
def test_every_verb_has_help_with_examples(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    assert ended.value.code == 0
    assert "examples:" in capsys.readouterr().out


def test_help_imports_no_verb() -> None:
    """`penstock --help` must not wait for the broker's modules."""
    script = (
        "import sys; from penstock.cli import main; main([]);"
        "print(*sorted(name for name in sys.modules if name.startswith('penstock.')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "penstock.cli penstock.errors"
