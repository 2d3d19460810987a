"""What holds for every command, whichever there are."""

import json
import math
import os
import re
import resource
import shlex
import subprocess
import sys
from typing import Any

import pytest
import typer
from typer.main import get_command
from typer.testing import CliRunner

from cogd.cli import app
from cogd.commands import conventions, doctor, errors
from cogd.commands.conventions import Answer, Device, OnDevice, Quiet, Seed, add

COMMANDS: dict[str, Any] = get_command(app).commands  # type: ignore[attr-defined]
every_command = pytest.mark.parametrize("name", COMMANDS)


def cogd(*arguments, app=app):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def examples(name):
    """Return the arguments of each example in a command's help."""
    lines = [line.strip() for line in COMMANDS[name].help.splitlines()]
    return [shlex.split(line, comments=True)[2:] for line in lines if line.startswith(f"cogd {name}")]


def options(name):
    return {option: parameter for parameter in COMMANDS[name].params for option in parameter.opts}


@every_command
def test_examples_are_in_the_help_and_can_be_parsed(name):
    assert "\b\nExamples:" in COMMANDS[name].help
    assert examples(name)
    for arguments in examples(name):
        assert COMMANDS[name].make_context(name, list(arguments)).params


@every_command
def test_help_fits_and_says_what_every_option_is(name):
    done = cogd(name, "--help")
    assert done.exit_code == 0
    assert all(parameter.help for parameter in COMMANDS[name].params if parameter.name != "context")
    assert "..." not in COMMANDS[name].get_short_help_str(60)
    assert max(len(line) for line in done.stdout.splitlines() if line.strip().startswith("cogd ")) <= 100


WITHOUT_DEVICE = {
    "beale": "two numbers are quicker on the CPU",
    "compare": "reads results",
    "demo": "each part takes what is there",
    "doctor": "says which there are",
    "export": "is checked where files are run, on the CPU",
    "report": "reads results",
    "show": "reads a dictionary",
}
WITHOUT_SEED = {
    **WITHOUT_DEVICE,
    "denoise": "nothing is random",
    "evaluate": "nothing is random",
    "latency": "time depends on no chance that a seed decides",
    "reconstruct": "nothing is random",
}


@every_command
def test_common_options_have_one_meaning(name):
    has = options(name)
    assert {"--json", "--quiet", "-q", "--debug", "--output", "-o"} <= set(has)
    assert ("--device" in has) == (name not in WITHOUT_DEVICE)
    assert ("--seed" in has) == (name not in WITHOUT_SEED)
    assert "--device" not in has or has["--device"].default is Device.auto
    assert "--seed" not in has or has["--seed"].default == 0


@every_command
def test_an_unknown_option_is_a_usage_error(name):
    needed = [str(p.name) for p in COMMANDS[name].params if p.required and p.param_type_name == "argument"]
    done = cogd(name, *needed, "--no-such-option")
    assert done.exit_code == 2
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert len(done.stderr.splitlines()) == 1


def test_no_command_shows_the_help():
    assert cogd().stdout == cogd("--help").stdout
    assert "doctor" in cogd().stdout


def test_a_mistyped_command_is_guessed():
    done = cogd("trian")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "'train'" in done.stderr


# The mechanism, on commands of its own


def answer(seed: Seed = 0, device: OnDevice = Device.auto, quiet: Quiet = False) -> Answer:
    """Answer."""
    conventions.note("thinking", quiet)
    return Answer({"seed": seed, "device": device, "path": doctor.__file__}, f"the seed is {seed}", exit_code=seed)


def unbounded() -> Answer:
    """Answer with numbers that are not finite."""
    return Answer({"deviation": math.nan, "most": -math.inf}, "")


def fail(kind: str) -> Answer:
    """Fail."""
    raises = {
        "value": ValueError("x must be > 0;\ngot 0."),
        "memory": MemoryError("too large"),
        "usage": typer.BadParameter("give one of the two"),
        "interrupt": KeyboardInterrupt(),
        "fault": KeyError("name"),
    }
    raise raises[kind]


@pytest.fixture
def own():
    app = typer.Typer(cls=errors.Commands, rich_markup_mode=None, pretty_exceptions_enable=False)
    add(app, answer)
    add(app, fail)
    add(app, unbounded)
    return app


def test_answers_for_people_and_for_machines(own):
    done = cogd("answer", app=own)
    assert (done.exit_code, done.stdout, done.stderr) == (0, "the seed is 0\n", "thinking\n")
    done = cogd("answer", "--quiet", "--json", "--seed", "3", "--device", "cpu", app=own)
    assert (done.exit_code, done.stderr) == (3, "")
    assert json.loads(done.stdout) == {"seed": 3, "device": "cpu", "path": doctor.__file__}
    assert cogd("answer", "--device", "tpu", app=own).exit_code == 2


def test_an_answer_goes_into_a_file_too_and_holds_nothing_that_json_does_not(own, tmp_path):
    file = tmp_path / "new" / "answer.json"
    assert cogd("answer", "-o", file, app=own).stdout == "the seed is 0\n"
    assert json.loads(file.read_text())["seed"] == 0
    assert cogd("answer", "-o", tmp_path, app=own).exit_code == 2
    done = cogd("unbounded", "--json", app=own)
    assert json.loads(done.stdout, parse_constant=pytest.fail) == {"deviation": None, "most": None}


@pytest.mark.parametrize(
    ("kind", "code", "said"),
    [
        ("value", 1, "error: x must be > 0; got 0.\n"),
        ("memory", 1, "error: too large\n"),
        ("usage", 2, "error: give one of the two"),
        ("interrupt", 130, "interrupted\n"),
    ],
)
def test_failures_are_a_paragraph_and_an_exit_code(own, kind, code, said):
    done = cogd("fail", kind, app=own)
    assert (done.exit_code, done.stdout) == (code, "")
    assert done.stderr.startswith(said)
    assert len(done.stderr.splitlines()) == 1


def test_debug_lets_the_error_through(own):
    assert isinstance(cogd("fail", "value", "--debug", app=own).exception, ValueError)


def test_a_fault_of_ours_is_a_paragraph_too(own, capsys):
    error = cogd("fail", "fault", app=own).exception
    errors.tell_unforeseen(type(error), error, None)
    assert capsys.readouterr().err == (
        "error: KeyError: 'name' This is a fault of CoGD itself; the same command with --debug shows where.\n"
    )


# Doctor


def test_doctor_knows_every_extra_and_every_dependency():
    done = cogd("doctor", "--json")
    assert done.exit_code == 0
    found = json.loads(done.stdout)
    assert set(found["extras"]) == {name for name in doctor.packages_by_extra() if name}
    assert {"torch", "numpy", "typer"} <= set(found["versions"])
    assert found["auto"] in ("cpu", "cuda")
    assert "everything that CoGD needs is there" in cogd("doctor").stdout


def test_doctor_fails_where_something_is_missing_or_too_old(monkeypatch):
    from packaging.requirements import Requirement

    wanted = {"": [Requirement("numpy>=999"), Requirement("no-such-package")]}
    monkeypatch.setattr(doctor, "packages_by_extra", lambda: wanted)
    done = cogd("doctor")
    assert done.exit_code == 1
    assert "numpy needs >=999" in done.stdout
    assert "no-such-package missing" in done.stdout


def test_doctor_says_that_torch_is_missing(monkeypatch):
    from importlib.metadata import PackageNotFoundError, version

    def without_torch(name):
        if name == "torch":
            raise PackageNotFoundError(name)
        return version(name)

    monkeypatch.setitem(sys.modules, "torch", None)  # importing it fails
    monkeypatch.setattr("importlib.metadata.version", without_torch)
    done = cogd("doctor")
    assert done.exit_code == 1
    assert re.search(r"result +torch missing", done.stdout)
    assert json.loads(cogd("doctor", "--json").stdout)["threads"] is None


# In processes of their own


def python(*arguments, **environment):
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, env={**os.environ, **environment}
    )


def test_importing_the_command_line_imports_nothing_heavy():
    heavy = {"torch", "numpy", "numba", "scipy", "sklearn", "PIL", "matplotlib", "pydantic", "rich"}
    program = f"import sys, cogd.cli; print(sorted({heavy} & set(sys.modules)))"
    assert python("-c", program).stdout.strip() == "[]"


def test_help_takes_at_most_twice_what_importing_typer_and_rich_takes():
    """The processor's time, the best of several, alternating; 1.3 times is usual."""

    def seconds(*arguments):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert python(*arguments).returncode == 0
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime

    pairs = [(seconds("-c", "import typer, rich"), seconds("-m", "cogd", "--help")) for _ in range(5)]
    imported, shown = map(min, zip(*pairs, strict=True))
    assert shown <= 2 * imported


def test_shell_completion_offers_the_commands():
    words = {"_COGD_COMPLETE": "complete_bash", "COMP_WORDS": "cogd ev", "COMP_CWORD": "1"}
    program = "import sys; sys.argv[0] = 'cogd'; from cogd.cli import main; main()"
    assert python("-c", program, **words).stdout.split() == ["evaluate"]


def test_a_fault_has_no_traceback_without_debug():
    program = "import sys, cogd.cli, cogd.commands.doctor as d; d.machine = lambda: {}['cpu']; cogd.cli.main()"
    plain, debug = python("-c", program, "doctor"), python("-c", program, "doctor", "--debug")
    assert (plain.returncode, debug.returncode) == (1, 1)
    assert plain.stderr.startswith("error: KeyError: 'cpu'")
    assert "Traceback" not in plain.stderr
    assert "Traceback" in debug.stderr


def test_an_interrupt_exits_with_130(tmp_path):
    program = "import os, signal, cogd.toy, cogd.cli\n"
    program += "cogd.toy.against_plain = lambda *_, **__: os.kill(os.getpid(), signal.SIGINT)\ncogd.cli.main()"
    done = python("-c", program, "beale", "-o", str(tmp_path / "b.png"))
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")
