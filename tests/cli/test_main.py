import asyncio
import contextlib
import importlib.metadata
import importlib.util
import json
import os
import re
import runpy
import shlex
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from mama_structs import HashEmbedder
from mama_structs.cli import command_table as table
from mama_structs.cli import demo as scenario
from mama_structs.cli.main import main
from mama_structs.sync import Session
from mama_structs.testing import FakeNode, Fault

VERSION = f"mama-structs {importlib.metadata.version('mama-structs')}"
COMMAND = [sys.executable, "-m", "mama_structs"]


def run(*arguments, **options):
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=600, check=False, **options)


@contextlib.contextmanager
def running(*arguments):
    process = subprocess.Popen([*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def error_of(capsys):
    """Return the only line on stderr, and assert that stdout is empty."""
    captured = capsys.readouterr()
    assert "" == captured.out
    assert 1 == captured.err.count("\n")
    assert captured.err.startswith("mama-structs: ")
    return captured.err


# The main command


def test_module_runs_the_command():
    """``python -m mama_structs`` is the command."""
    done = run("--version")

    assert (0, VERSION + "\n", "") == (done.returncode, done.stdout, done.stderr)


def test_module_exits_with_the_code_of_main(monkeypatch, capsys):
    """The exit code of ``python -m mama_structs`` is that of the command."""
    monkeypatch.setattr(sys, "argv", ["mama-structs", "demo", "--references", "--base-url", "nowhere"])

    with pytest.raises(SystemExit) as exited:
        runpy.run_path(importlib.util.find_spec("mama_structs.__main__").origin, run_name="__main__")

    assert 1 == exited.value.code
    assert "base_url must begin with http:// or https://" in error_of(capsys)


def test_command_imports_are_lazy():
    """The command itself loads neither aiohttp nor attrs."""
    code = "import sys, mama_structs.cli.main; print({'aiohttp', 'attrs', 'cattrs', 'numpy'} & set(sys.modules))"

    assert "set()" == subprocess.check_output([sys.executable, "-c", code], text=True).strip()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "read memories:"),
        (["dance"], "invalid choice: 'dance'"),
        (["demo", "--players", "11"], "--players: must be a whole number, 12 or more, got '11'"),
        (["demo", "--players", "many"], "--players: must be a whole number, 12 or more, got 'many'"),
        (["demo", "--seed", "x"], "--seed: must be a whole number, got 'x'"),
        (["demo", "--latency", "-1"], "--latency: must be a whole number from 0 to 400"),
        (["demo", "--latency", "401"], "so that references meet their deadline, got '401'"),
        (["fake-node", "--latency", "-1"], "--latency: must be a whole number, 0 or more, got '-1'"),
        (["demo", "--player", "banana"], "--player: "),
        (["demo", "--player", "2-1"], "--player: must be the id of a player, such as 1-11, got 2-1"),
        (["demo", "--base-url", "http://localhost:1", "--seed", "2"], "--seed: not allowed with --base-url"),
        (["fake-node", "--port", "70000"], "--port: must be a whole number from 0 to 65535, got '70000'"),
    ],
)
def test_wrong_usage_exits_with_2(arguments, said, capsys):
    """A wrong command line prints the error and the usage, and exits with 2."""
    with pytest.raises(SystemExit) as exited:
        main(arguments)

    captured = capsys.readouterr()
    assert 2 == exited.value.code
    assert said in captured.err
    assert captured.err.startswith("usage: mama-structs")


# Error messages


def test_demo_unreachable_node_is_one_line(unused_port, capsys):
    """The error is one line that says what to check."""
    assert 1 == main(["demo", "--references", "--base-url", f"http://127.0.0.1:{unused_port}"])
    assert (
        "mama-structs: no Structs node answers at --base-url (is it running? A local one is at http://localhost:1317)\n"
        == error_of(capsys)
    )


@pytest.mark.parametrize("url", ["nowhere", "ftp://localhost", "http://me:secret@localhost", "http://", ""])
def test_demo_invalid_url_is_rejected(url, capsys):
    """An invalid URL is rejected before any request, and a password in it is masked."""
    assert 1 == main(["demo", "--references", "--base-url", url])
    assert "base_url must" in (said := error_of(capsys))
    assert "secret" not in said


def test_demo_error_names_unknown_player(capsys):
    """The error names a player that the chain does not have."""
    assert 1 == main(["demo", "--references", "--latency", "0", "--player", "1-999"])
    assert "mama-structs: no entity has the id 1-999\n" == error_of(capsys)


def test_demo_player_without_guild_is_rejected(capsys):
    """The error says why the player is unsuitable for the demo."""
    assert 1 == main(["demo", "--references", "--latency", "0", "--player", "1-12"])
    assert "player 1-12 has no guild (leave --player out" in error_of(capsys)


def test_demo_player_beyond_page_limit_is_rejected(monkeypatch, capsys):
    """The error says how many players were searched."""
    monkeypatch.setattr(scenario, "MAX_PAGES", 2)

    assert 1 == main(["demo", "--references", "--latency", "0", "--players", "60", "--player", "1-7"])
    assert "player 1-7 is not among the first 32 players, through which the demo looks" in error_of(capsys)


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (Fault.html(), "is the base URL that of the chain's REST interface"),
        (Fault.redirect("http://localhost:1"), "give the base URL that the redirect leads to"),
        (Fault.error(status=500, code=13, message="\x1b[2Jgone\nfor good"), "\\x1b[2Jgone\\nfor good"),
    ],
)
def test_demo_error_escapes_control_characters(mama_structs_node, fault, said, capsys):
    """An answer that is not from a node is one line without control characters."""
    mama_structs_node.faults.add(fault)

    assert 1 == main(["demo", "--references", "--base-url", mama_structs_node.url])
    assert said in error_of(capsys)


def test_ctrl_c_exits_with_130(monkeypatch, capsys):
    """Ctrl-C ends the demo with the exit code that shells expect, without output."""

    async def interrupted(**_):
        raise KeyboardInterrupt

    monkeypatch.setattr(scenario, "run_demo", interrupted)

    assert 130 == main(["demo", "--references"])
    assert ("", "") == capsys.readouterr()


def test_ctrl_c_during_query_prints_no_traceback(mama_structs_node):
    """Ctrl-C during a query prints no traceback."""
    mama_structs_node.faults.add(Fault.hung())
    with running("demo", "--references", "--base-url", mama_structs_node.url) as process:
        while not mama_structs_node.in_flight:
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        output = process.communicate(timeout=600)

    assert ("", "") == output
    assert 130 == process.returncode


def test_closed_pipe_ends_command_quietly():
    """A pipe whose reader exited ends the demo without an error text."""
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as closed:
        done = subprocess.run(
            [*COMMAND, "demo", "--latency", "0", "--json"],
            stdout=closed,
            stderr=subprocess.PIPE,
            timeout=600,
            check=False,
        )

    assert (141, b"") == (done.returncode, done.stderr)


@pytest.mark.parametrize(
    ("arguments", "unbuffered"),
    [("demo", ""), ("demo --latency 0 --json", "1"), ("fake-node --port 0", ""), ("fake-node --port 0", "1")],
)
def test_full_disk_exits_with_1(arguments, unbuffered):
    """Output that cannot be written is one line on stderr and exit code 1."""
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*COMMAND, *arguments.split()],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=600,
            check=False,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
        )

    assert (1, "mama-structs: the output cannot be written: No space left on device\n") == (
        done.returncode,
        done.stderr,
    )


def test_help_lists_every_command_once_by_group(capsys):
    """Each command is in the group of its purpose, with one line, and examples follow."""
    with pytest.raises(SystemExit):
        table.parse(["--help"])
    groups = dict(part.split(":\n", 1) for part in capsys.readouterr().out.split("\n\n") if ":\n" in part)
    commands = {path.split()[0] for path in table._COMMANDS}
    listed = [line.split()[0] for names in groups.values() for line in names.splitlines() if re.match(r"  \w", line)]

    assert ["try it", "read memories"] == list(groups)[2:4]
    assert sorted(commands) == sorted(name for name in listed if name in commands)
    assert 4 == groups["examples"].count("  mama-structs ")
    assert 80 >= max(len(line) for names in groups.values() for line in names.splitlines())


@pytest.mark.parametrize("room", [40, 80])
def test_help_fits_the_terminal(capsys, monkeypatch, room):
    """Lines of the overview wrap at the terminal's width, as those of options do."""
    monkeypatch.setenv("COLUMNS", str(room))
    with pytest.raises(SystemExit):
        table.parse(["--help"])
    listed = capsys.readouterr().out.partition("examples:")[0].splitlines()

    assert room >= max(map(len, listed))


@pytest.mark.parametrize("path", table._COMMANDS)
def test_examples_in_help_are_valid_command_lines(path, capsys):
    """The example at the end of a command's help can be parsed."""
    with pytest.raises(SystemExit):
        table.parse([*path.split(), "--help"])
    example = " ".join(capsys.readouterr().out.partition("Example: mama-structs ")[2].split())
    words = shlex.split(example.partition("<")[0])

    assert path.split() == words[: len(path.split())]
    assert table.parse(words).run is table._COMMANDS[path][0]


@pytest.mark.parametrize("arguments", [("--version",), ("--help",), ("demo", "--help")])
def test_help_on_full_disk_prints_no_traceback(arguments):
    """Neither help nor version print a traceback, on stdout and stderr."""
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*COMMAND, *arguments], stdout=full, stderr=subprocess.PIPE, text=True, timeout=600, check=False
        )

    assert done.returncode in {0, 1}
    assert done.stderr.count("\n") <= 1
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-", ">/dev/full 2>/dev/full"])
def test_command_works_without_stdout_or_stderr(closed):
    """If stdout or stderr was closed before the start, the command runs without output."""
    command = f"'{sys.executable}' -m mama_structs demo --json --latency 0 {closed}"
    # Unset PYTHONUNBUFFERED, because only buffered output fails when the interpreter exits.
    usual = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=600, check=False, env=usual)

    assert (1 if "full" in closed else 0) == done.returncode
    assert "" == done.stderr
    assert ("" if closed != "2>&-" else "{") == done.stdout[:1]


@pytest.mark.parametrize("name", ["argparse", "importlib.metadata", "asyncio", "aiohttp", "mama_structs.cli.demo"])
def test_ctrl_c_during_imports_prints_no_traceback(name):
    """Ctrl-C while the command is loading ends it without output."""
    code = (
        "import os, signal, sys\n"
        "from mama_structs.cli.main import main\n"
        "class Interrupt:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == {name!r}: os.kill(os.getpid(), signal.SIGINT)\n"
        f"assert {name!r} not in sys.modules\n"
        "sys.meta_path.insert(0, Interrupt())\n"
        "sys.exit(main(['demo']))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=600, check=False)

    assert (130, "", "") == (done.returncode, done.stdout, done.stderr)


@pytest.mark.mama_structs_node(seed=1, players=12)
def test_output_is_escaped_when_terminal_lacks_unicode(mama_structs_node):
    """Characters outside the terminal's encoding are escaped."""
    mama_structs_node.data.get("player", "1-11")["name"] = "星"
    arguments = ("demo", "--references", "--base-url", mama_structs_node.url, "--player", "1-11")

    done = run(*arguments, env={**os.environ, "LC_ALL": "C", "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"})

    assert (0, "") == (done.returncode, done.stderr)
    assert "name \\u661f" in done.stdout


# The command that serves pages


def test_pages_are_served_until_signal(tmp_path):
    """The first line is the address, printed immediately; a signal ends the command cleanly."""
    with Session.open(tmp_path / "a.mama", embedder=HashEmbedder()) as session:
        session.memories.save("Ada works as a nurse")
    with running("ui", str(tmp_path / "a.mama")) as process:
        with urllib.request.urlopen(process.stdout.readline().strip(), timeout=600) as answer:
            status = answer.status
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=600)

    assert (200, 0, "") == (status, process.returncode, errors)


# The command that serves a fake node


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_fake_node_serves_until_signal(number):
    """The first line is the URL, printed immediately; a signal ends it cleanly."""
    with running("fake-node", "--port", "0", "--players", "12", "--seed", "5") as process:
        url = process.stdout.readline().strip()
        with urllib.request.urlopen(f"{url}/structs/player/1-11", timeout=600) as answer:
            player = json.load(answer)["Player"]
        process.send_signal(number)
        rest, errors = process.stdout.read(), process.stderr.read()
        process.wait(timeout=600)

    assert "1-11" == player["id"]
    assert f"  curl {url}/structs/player/1-11\n" in rest
    assert (0, "") == (process.returncode, errors)


def test_fake_node_uses_command_line_options(monkeypatch, capsys):
    """Seed, size, latency, host and port are those of the command line."""
    opened = []
    start = FakeNode.start

    async def started(node):
        await start(node)
        opened.append(node)
        asyncio.get_running_loop().call_later(0.01, os.kill, os.getpid(), signal.SIGTERM)
        return node

    monkeypatch.setattr(FakeNode, "start", started)

    code = main(
        ["fake-node", "--port", "0", "--players", "13", "--seed", "5", "--latency", "30", "--host", "localhost"]
    )

    assert 0 == code
    assert FakeNode.world(seed=5, players=13).data == opened[0].data
    assert {"*": 0.03} == opened[0].latency
    assert capsys.readouterr().out.startswith("http://localhost:")


def test_fake_node_port_in_use_is_reported(capsys):
    """The error names the port and suggests a free one."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

        assert 1 == main(["fake-node", "--port", str(port)])

    said = error_of(capsys)
    assert f"cannot listen on 127.0.0.1 port {port}: " in said
    assert "address already in use" in said
    assert "--port 0 takes any free port" in said


@pytest.fixture
def unused_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]
