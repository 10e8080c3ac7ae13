"""``mama-structs init``: the files of each agent in a real directory, the question, and the undo."""

import io
import json
import os
import re
import shlex
import tomllib
from pathlib import Path

import pytest

from mama_structs.cli.coding_agents import agents, config_files
from mama_structs.cli.coding_agents.names import AGENTS
from mama_structs.cli.main import main

# Files that the user has before.
EXISTING = {
    "claude-code": {
        ".mcp.json": '{"mcpServers": {"files": {"command": "files"}}}',
        ".claude/settings.json": '{\n    "model": "opus",\n    "hooks": {"SessionStart": []}\n}\n',
    },
    "codex": {".codex/config.toml": '# mine\nmodel = "gpt-5"  # big\n\n[mcp_servers.files]\ncommand = "files"\n'},
    "cursor": {".cursor/hooks.json": '\ufeff{"version": 1, "hooks": {"stop": [{"command": "x"}]}}'},
}
SERVERS = {"claude-code": ".mcp.json", "codex": ".codex/config.toml", "cursor": ".cursor/mcp.json"}


def list_files(root):
    """Return the content of all files below a directory, and the names of its directories."""
    return {
        path.relative_to(root).as_posix(): path.read_bytes() if path.is_file() else None for path in root.rglob("*")
    }


def read_server(project, agent):
    """Return the MCP server in an agent's configuration."""
    text = (project / SERVERS[agent]).read_text()
    return (tomllib.loads(text)["mcp_servers"] if agent == "codex" else json.loads(text)["mcpServers"])["mama"]


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("CLAUDE_CONFIG_DIR", "CODEX_HOME"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


@pytest.fixture
def project(tmp_path, monkeypatch, home):
    (tmp_path / "a project").mkdir()
    monkeypatch.chdir(tmp_path / "a project")
    return tmp_path / "a project"


@pytest.mark.parametrize("agent", AGENTS)
def test_init_then_undo_restores_every_file(agent, project, capsys):
    """A second run changes nothing; the undo also removes the created directories."""
    for name, text in EXISTING[agent].items():
        (project / name).parent.mkdir(exist_ok=True)
        (project / name).write_text(text)
    before = list_files(project)

    assert 0 == main(["init", agent, "--yes"])
    connected = list_files(project)
    assert 0 == main(["init", agent])
    assert "nothing to change" in capsys.readouterr().out
    assert connected == list_files(project)
    assert "serve-mcp" in read_server(project, agent)["args"]
    assert str(project / "agent.mama") in read_server(project, agent)["args"]
    assert 0 == main(["init", agent, "--undo", "--yes"])
    assert before == list_files(project)


@pytest.mark.parametrize("agent", AGENTS)
def test_dynamic_mode_is_set_by_the_command_of_the_slash_command(agent, project, capsys):
    """The configure command of an agent contains a command line that changes only the arguments of the server."""
    main(["init", agent, "x.mama", "--namespace", "user:ada", "--yes"])
    before = list_files(project)
    (text,) = (content.decode() for name, content in before.items() if "mama-configure" in name and content)
    (line,) = (line for line in text.splitlines() if line.endswith("--dynamic MODE --yes"))
    words = shlex.split(line.replace("MODE", "force_static"))

    assert 0 == main(words[words.index("init") :])
    changed = {name for name, content in list_files(project).items() if content != before[name]}
    assert {SERVERS[agent], f".{agent.partition('-')[0]}/mama-structs.json"} == changed
    expected = ["serve-mcp", str(project / "x.mama"), "--namespace", "user:ada", "--dynamic", "force_static"]
    assert expected == read_server(project, agent)["args"][-6:]
    assert f"changed {SERVERS[agent]}" in capsys.readouterr().out


def test_changes_are_shown_and_need_consent(project, capsys, monkeypatch):
    """Without an answer and with --dry-run, nothing is written."""
    (project / ".mcp.json").write_text('{\n  "a": 1\n}\n')
    before = list_files(project)

    assert 0 == main(["init", "claude-code", "--dry-run"])
    shown = capsys.readouterr().out
    assert '-  "a": 1\n+  "a": 1,\n+  "mcpServers": {\n' in shown
    assert "+++ .claude/commands/mama-search.md" in shown
    monkeypatch.setattr("sys.stdin", io.StringIO())
    assert 1 == main(["init", "claude-code"])
    assert before == list_files(project)


def test_content_of_files_is_not_shown_without_question(project, capsys):
    """An agent that runs the command with --yes does not read secrets next to the additions."""
    (project / ".mcp.json").write_text('{"token": "s3cret"}')
    main(["init", "claude-code", "--yes"])

    assert "s3cret" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "content"), [(".claude/settings.json", b"{"), (".claude/settings.json", b"\xff"), (".mcp.json", None)]
)
def test_malformed_file_prevents_every_change(name, content, project, capsys):
    """The error names the file."""
    (project / name).parent.mkdir(exist_ok=True)
    if content is None:
        (project / name).symlink_to("missing")
    else:
        (project / name).write_bytes(content)
    before = list_files(project)

    assert 1 == main(["init", "claude-code", "--yes"])
    assert before == list_files(project)
    assert f"{name} is" in capsys.readouterr().err


def test_failed_write_restores_files(project, capsys, monkeypatch):
    """The disk is full when the third file is replaced."""
    (project / ".mcp.json").write_text("{}")
    before, replace, calls = list_files(project), os.replace, []

    def fail(source, target):
        calls.append(target)
        if len(calls) == 3:
            raise OSError(28, "No space left on device")
        replace(source, target)

    monkeypatch.setattr("os.replace", fail)

    assert 1 == main(["init", "claude-code", "--yes"])
    assert before == list_files(project)
    assert "No space left on device" in capsys.readouterr().err


def test_undo_keeps_what_was_changed_by_hand(project, capsys):
    main(["init", "claude-code", "--yes"])
    command = project / ".claude/commands/mama-search.md"
    command.write_text("my own text")
    (project / ".claude/commands/mine.md").write_text("mine")
    main(["init", "claude-code", "--undo", "--yes"])

    assert {".claude", ".claude/commands", ".claude/commands/mama-search.md", ".claude/commands/mine.md"} == set(
        list_files(project)
    )
    assert ".claude/commands/mama-search.md: the file was changed by hand" in capsys.readouterr().out
    assert 1 == main(["init", "claude-code", "--undo"])
    assert "was not connected here" in capsys.readouterr().err


def test_user_scope_writes_below_home(home, project, monkeypatch):
    """Links and permissions of the files stay, and the directories of environment variables are used."""
    (home / "dotfiles").mkdir()
    (home / "dotfiles/claude.json").write_text("{}")
    (home / "dotfiles/claude.json").chmod(0o600)
    (home / ".claude.json").symlink_to("dotfiles/claude.json")
    monkeypatch.setenv("CODEX_HOME", str(home / "codex"))
    for agent in AGENTS:
        assert 0 == main(["init", agent, "--user", "--yes"])

    assert (home / ".claude.json").is_symlink()
    assert 0o600 == (home / "dotfiles/claude.json").stat().st_mode & 0o777
    assert str(home / "agent.mama") in json.loads((home / ".claude.json").read_text())["mcpServers"]["mama"]["args"]
    names = {".claude/settings.json", "codex/config.toml", ".agents/skills/mama-search/SKILL.md", ".cursor/mcp.json"}
    assert names <= set(list_files(home))
    assert not (home / ".cursor/rules").exists()
    for agent in AGENTS:
        assert 0 == main(["init", agent, "--user", "--undo", "--yes"])
    assert {"dotfiles", "dotfiles/claude.json", ".claude.json"} == set(list_files(home))


@pytest.mark.parametrize(
    "record", ["{", '{"format": 99}', '{"format": 1, "settings": {}, "files": {".mcp.json": {}}, "directories": []}']
)
def test_damaged_record_is_reported(record, project, capsys):
    main(["init", "claude-code", "--yes"])
    (project / ".claude/mama-structs.json").write_text(record)

    assert 1 == main(["init", "claude-code", "--undo", "--yes"])
    assert "is not a record of this version" in capsys.readouterr().err


def test_program_of_this_environment_is_preferred(tmp_path, monkeypatch):
    """A link on PATH to it is used, another installation on PATH is not; without a script, Python starts the module."""
    scripts, linked, other = tmp_path / "scripts", tmp_path / "linked", tmp_path / "other"
    for directory in (scripts, linked, other):
        directory.mkdir()
    for directory in (scripts, other):
        (directory / "mama-structs").write_text("#!/bin/sh\n")
        (directory / "mama-structs").chmod(0o755)
    (linked / "mama-structs").symlink_to(scripts / "mama-structs")
    monkeypatch.setattr(agents.sysconfig, "get_path", lambda _: str(scripts))
    programs = []
    for path in (linked, other):
        monkeypatch.setenv("PATH", str(path))
        programs.append(agents.find_program())
    (scripts / "mama-structs").unlink()
    programs.append(agents.find_program())
    monkeypatch.setenv("PATH", "")
    programs.append(agents.find_program())

    assert [str(linked / "mama-structs")] == programs[0]
    assert [str(scripts / "mama-structs")] == programs[1]
    assert [str(other / "mama-structs")] == programs[2]
    assert ["-P", "-m", "mama_structs"] == programs[3][1:]
    assert Path(programs[3][0]).is_absolute()


def test_files_are_those_of_the_page(project):
    """The table of docs/frameworks/coding-agents.md names each file or its directory."""
    page = (Path(__file__).parents[3] / "docs" / "frameworks" / "coding-agents.md").read_text(encoding="utf-8")
    for agent in AGENTS:
        main(["init", agent, "--yes"])
    names = [name for name, content in list_files(project).items() if content is not None]
    named = re.findall(r"`(\.[^`]+|mama-structs.json)`", page)

    assert [] == [name for name in names if not any(one in name for one in named)]


def test_missing_package_of_the_server_is_reported(project, capsys, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)

    assert 1 == main(["init", "cursor", "--yes"])
    assert "pip install 'mama-structs[mcp]'" in capsys.readouterr().err
    assert {} == list_files(project)


def test_server_is_rejected_as_store(project, capsys):
    assert 1 == main(["init", "cursor", "postgresql://ada:secret@host/db"])
    assert "hooks cannot use a server" in capsys.readouterr().err
    assert {} == list_files(project)


def test_links_to_one_file_are_rejected(project, capsys):
    """Otherwise the second change would delete the file."""
    (project / ".claude").mkdir()
    (project / ".mcp.json").write_text("{}")
    (project / ".claude/settings.json").symlink_to("../.mcp.json")
    before = list_files(project)

    assert 1 == main(["init", "claude-code", "--yes"])
    assert ".mcp.json and .claude/settings.json are the same file" in capsys.readouterr().err
    assert before == list_files(project)


def test_undo_removes_directories_behind_a_link(project, monkeypatch):
    (project / "real").mkdir()
    (project / ".claude").symlink_to("real")
    (project.parent / "link").symlink_to(project)
    monkeypatch.chdir(project.parent / "link")
    before = list_files(project)
    for option in (["--project", str(project.parent / "link"), "--yes"], ["--undo", "--yes"]):
        assert 0 == main(["init", "claude-code", *option])

    assert before == list_files(project)


@pytest.mark.parametrize("agent", AGENTS)
@pytest.mark.parametrize("written", [1, 2])
def test_undo_after_a_crash_between_files_restores_them(agent, written, project, monkeypatch):
    """A process that was killed in a first or a further run leaves some files; the next run completes them."""
    before, replace = list_files(project), os.replace

    def run_and_crash(*options):
        done = []

        def crash(source, target):
            if len(done) == written:
                raise SystemExit
            done.append(replace(source, target))

        with monkeypatch.context() as patched:
            patched.setattr("os.replace", crash)
            patched.setattr(config_files, "_restore", lambda *_: [])
            with pytest.raises(SystemExit):
                main(["init", agent, *options, "--yes"])
        for path in project.rglob("*.tmp"):
            path.unlink()

    run_and_crash()
    assert 0 == main(["init", agent, "--yes"])
    run_and_crash("other.mama")
    assert 0 == main(["init", agent, "other.mama", "--yes"])
    assert 0 == main(["init", agent, "--undo", "--yes"])
    assert before == list_files(project)


def test_failed_restore_names_the_changed_files(project, capsys, monkeypatch):
    """The disk stays full."""
    replace, calls = os.replace, []

    def fail(source, target):
        calls.append(target)
        if len(calls) > 1:
            raise OSError(28, "No space left on device")
        replace(source, target)

    (project / ".claude").mkdir()
    (project / ".mcp.json").write_text("{}")
    main(["init", "claude-code", "--yes"])
    monkeypatch.setattr("os.replace", fail)

    assert 1 == main(["init", "claude-code", "other.mama", "--yes"])
    assert "could not restore .mcp.json" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["file"], "is not a directory"), (["--namespace", "a\x7f"], "namespace"), (["--namespace", ""], "namespace")],
)
def test_unusable_settings_are_rejected(arguments, message, project, capsys):
    (project / "file").touch()

    assert 1 == main(["init", "codex", *arguments, "--yes"])
    assert message in capsys.readouterr().err
    assert ["file"] == list(list_files(project))


def test_empty_environment_variable_is_ignored(home, monkeypatch):
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", "")
    main(["init", "claude-code", "--user", "--yes"])

    assert (home / ".claude.json").exists()


def test_other_scope_in_the_home_directory_is_rejected(home, monkeypatch, capsys):
    """Both scopes have the same record there, and neither removes that of the other."""
    monkeypatch.chdir(home)
    before = list_files(home)
    for first, second in (([], ["--user"]), (["--user"], [])):
        assert 0 == main(["init", "claude-code", *first, "--yes"])
        connected = list_files(home)
        for options in (second, [*second, "--undo"]):
            assert 1 == main(["init", "claude-code", *options, "--yes"])
            assert "was connected with" in capsys.readouterr().err
            assert connected == list_files(home)
        assert 0 == main(["init", "claude-code", *first, "--undo", "--yes"])
        assert before == list_files(home)
