"""
Runs our MCP server with real clients, and prints the result as one line of JSON.

Each client starts the server with the command of docs/frameworks/mcp.md, or connects to it over HTTP. Clients that
offer the whole protocol also use a server with host tools (``mcp_server.py``). ``--write`` writes the
table of docs/internals/compatibility.md. Node.js clients need ``npm``, and are excused without it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import attrs

HERE: Final = Path(__file__).parent
ROOT: Final = HERE.parents[2]
TABLE_PATH: Final = ROOT / "docs" / "internals" / "compatibility.md"
BEGIN: Final = "<!-- the table: python tests/hosts/suites/mcp_clients.py --write -->"
END: Final = "<!-- end of the table -->"
NODE_PACKAGES: Final = {
    "@modelcontextprotocol/sdk": "1.32.2",
    "@modelcontextprotocol/client": "2.4.0",
    "@modelcontextprotocol/inspector": "2.12.0",
    "ajv": "8.20.0",
    "ajv-formats": "3.0.1",
    # The inspector needs this version of Node.js.
    "node": "22.23.3",
}
SDK_1: Final = ("mcp==1.30.0", "langchain-mcp-adapters==0.3.1")
LEGACY: Final = "legacy"
MODERN: Final = "2026-07-28"
# The framework chooses the protocol, and does not show which one.
CHOSEN: Final = "chosen by the framework"
SECONDS: Final = 300


@attrs.frozen
class Client:
    """A client: the name in the table, its package, the driver, and its protocol."""

    name: str
    package: str
    driver: str
    era: str = LEGACY
    # Checks that the client does not offer, with the reason.
    excused: Mapping[str, str] = attrs.field(factory=dict)


CLIENTS: Final = (
    Client("TypeScript SDK 1", "@modelcontextprotocol/sdk", "sdk"),
    Client("TypeScript SDK 2", "@modelcontextprotocol/client", "client"),
    Client("TypeScript SDK 2", "@modelcontextprotocol/client", "client", MODERN),
    Client("Inspector, command line", "@modelcontextprotocol/inspector", "inspector"),
    Client("Inspector, command line", "@modelcontextprotocol/inspector", "inspector", MODERN),
    Client("Python SDK 1", "mcp", "sdk_1", excused={"cancel": "a cancelled task sends no notification"}),
    Client("Python SDK 2", "mcp", "sdk_2"),
    Client("Python SDK 2", "mcp", "sdk_2", MODERN),
    Client(
        "fastmcp",
        "fastmcp",
        "fastmcp",
        MODERN,
        excused={"ping": "not in this protocol", "list_changed": "it does not subscribe"},
    ),
    Client("LangChain adapters", "langchain-mcp-adapters", "langchain", CHOSEN),
    Client("Pydantic AI", "pydantic-ai-slim", "pydantic_ai", CHOSEN),
    Client("OpenAI Agents", "openai-agents", "openai_agents", CHOSEN),
    Client("Agent Framework", "agent-framework-core", "agent_framework", CHOSEN),
    Client("Google ADK", "google-adk", "google_adk", CHOSEN),
    Client("Haystack, mcp-haystack", "mcp-haystack", "haystack", CHOSEN),
)
IN_SDK_1: Final = ("sdk_1", "langchain")
TRANSPORTS: Final = ("stdio", "HTTP")


class Environments:
    """The environments of the clients, created when they are missing."""

    def __init__(self, folder: Path) -> None:
        self.node_folder: Final = folder / "mcp-node"
        self._folder = folder

    def python(self, driver: str) -> str:
        """Return the interpreter of a client."""
        if driver not in IN_SDK_1:
            own = self._folder / "mcp-clients" / "bin" / "python"
            return str(own) if own.exists() else sys.executable
        place = self._folder / "mcp-sdk-1"
        python = str(place / "bin" / "python")
        if not Path(python).exists():
            venv.create(place, with_pip=True, symlinks=True)
            subprocess.run([python, "-m", "pip", "install", "-q", *SDK_1], check=True)
        return python

    def find_missing_node(self) -> str | None:
        """Install the Node.js packages if necessary; return why this is impossible."""
        if (self.node_folder / "node_modules").exists():
            return None
        if shutil.which("npm") is None:
            return "npm is not installed"
        self.node_folder.mkdir(parents=True, exist_ok=True)
        package = {"private": True, "dependencies": NODE_PACKAGES}
        (self.node_folder / "package.json").write_text(json.dumps(package), encoding="utf-8")
        command = ["npm", "install", "--no-audit", "--no-fund", "--engine-strict=false"]
        done = subprocess.run(command, cwd=self.node_folder, capture_output=True, text=True, check=False)
        return None if done.returncode == 0 else f"npm install failed: {done.stderr.strip()[-200:]}"

    def version(self, client: Client) -> str:
        """Return the installed version of a client."""
        if client.package in NODE_PACKAGES:
            found = self.node_folder / "node_modules" / client.package / "package.json"
            return str(json.loads(found.read_text(encoding="utf-8"))["version"])
        code = f"import importlib.metadata as m; print(m.version({client.package!r}))"
        return subprocess.check_output([self.python(client.driver), "-c", code], text=True).strip()


@contextlib.contextmanager
def server_targets(transport: str, folder: str) -> Iterator[dict[str, Any]]:
    """Yield how to reach both servers: commands for stdio, or the URLs of running servers."""
    # `env` passes the search path, because clients pass only few variables to a server over stdio.
    python = ["env", f"PYTHONPATH={ROOT}", sys.executable]
    plain = [*python, "-m", "mama_structs", "serve-mcp", f"{folder}/agent.mama"]
    embedded = [*python, str(HERE / "mcp_server.py")]
    if transport == "stdio":
        yield {"plain": {"command": plain}, "embedded": {"command": [*embedded, "stdio"]}}
        return
    with contextlib.ExitStack() as stack:
        urls = {}
        for name, command in (("plain", [*plain, "--http", "0"]), ("embedded", [*embedded, "http"])):
            running = stack.enter_context(
                subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            )
            stack.callback(running.terminate)
            assert running.stdout is not None
            urls[name] = {"url": running.stdout.readline().strip()}
        yield urls


def run_driver(client: Client, transport: str, places: Environments) -> dict[str, str]:
    """Run the checks of a client over one transport."""
    environment = os.environ.copy()
    environment.pop("PYTHONPATH", None)
    with tempfile.TemporaryDirectory() as folder, server_targets(transport, folder) as targets:
        if client.driver == "inspector":
            return run_inspector(client, targets["plain"], places)
        given = [client.driver, client.era, json.dumps(targets)]
        is_node = client.package in NODE_PACKAGES
        command = ["node", str(HERE / "mcp_client.mjs")] if is_node else [places.python(client.driver)]
        command += given if is_node else [str(HERE / "mcp_client.py"), *given]
        where = places.node_folder if is_node else Path(folder)
        try:
            done = subprocess.run(
                command, cwd=where, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
            )
        except subprocess.TimeoutExpired:
            return {"connect": f"failed: it ran longer than {SECONDS} seconds"}
    try:
        return dict(json.loads(done.stdout.strip().splitlines()[-1])["checks"])
    except (IndexError, ValueError):
        return {"connect": f"failed: {done.stderr.strip()[-300:]}"}


def run_inspector(client: Client, target: Mapping[str, Any], places: Environments) -> dict[str, str]:
    """Run the checks with the inspector's command line, one process for each."""
    modules = places.node_folder / "node_modules"
    launcher = modules / "@modelcontextprotocol" / "inspector" / "clients" / "launcher" / "build" / "index.js"
    era = ["--protocol-era", "legacy" if client.era == LEGACY else "modern", "--connect-timeout", "120000"]
    reached = ["--server-url", target["url"], "--transport", "http"] if "url" in target else target["command"]
    arguments = ["--tool-args-json", json.dumps({"topic": "auth", "decision": "Use JWT", "reasoning": "no state"})]
    checks = {
        "list": (["tools/list", "--strict"], 0, "save__decision"),
        "call": (["tools/call", "--tool-name", "save__decision", *arguments], 0, "structuredContent"),
        "error": (["tools/call", "--tool-name", "save__decision"], 5, "invalid_argument"),
        "resources": (["resources/read", "--uri", "mama-structs://recall/JWT"], 0, "Use JWT"),
        "prompts": (["prompts/get", "--prompt-name", "recall", "--prompt-args", "message=JWT"], 0, "Use JWT"),
    }
    found = {}
    for name, (method, code, text) in checks.items():
        node = str(modules / "node" / "bin" / "node")
        command = [node, str(launcher), "--cli", "--format", "json", *era, "--method", *method]
        # After --, the inspector does not parse the options of the command as its own.
        done = subprocess.run(
            [*command, *(reached if "url" in target else ["--", *reached])],
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        is_ok = done.returncode == code and text in done.stdout and (name != "list" or "Warning" not in done.stderr)
        found[name] = "ok" if is_ok else f"failed: exit code {done.returncode}: {(done.stderr or done.stdout)[-300:]}"
    return found


def make_table(rows: list[dict[str, Any]]) -> str:
    """Return the table of the page."""
    lines = ["| client | protocol | transport | checks |", "| --- | --- | --- | --- |"]
    for row in rows:
        hidden = ("end", "host tools")
        passed = [name for name, result in row["checks"].items() if result == "ok" and name not in hidden]
        rest = [f"no {name}: {reason}" for name, reason in row["excused"].items()]
        rest += [f"**{name}: failed**" for name in row["failed"]]
        shown = "; ".join([", ".join(passed), *rest])
        lines.append(f"| {row['name']} {row['version']} | {row['protocol']} | {row['transport']} | {shown} |")
    return "\n".join([*lines, "", f"Run on {datetime.now(UTC):%Y-%m-%d} with Python {sys.version.split()[0]}."])


def write_table(rows: list[dict[str, Any]]) -> None:
    """Replace the table of the page."""
    head, _, rest = TABLE_PATH.read_text(encoding="utf-8").partition(BEGIN)
    TABLE_PATH.write_text(f"{head}{BEGIN}\n\n{make_table(rows)}\n\n{END}{rest.partition(END)[2]}", encoding="utf-8")


def main() -> int:
    """Run all clients, and print the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("drivers", nargs="*", help="drivers to run; all by default")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--environments", type=Path, default=Path(sys.prefix).parent)
    asked = parser.parse_args()
    places = Environments(asked.environments)
    missing_node = places.find_missing_node()
    passed, failed, excused, rows = 0, [], [], []
    for client in CLIENTS:
        if asked.drivers and client.driver not in asked.drivers:
            continue
        if client.package in NODE_PACKAGES and missing_node is not None:
            excused.append(f"{client.name}: {missing_node}")
            continue
        for transport in TRANSPORTS:
            checks = run_driver(client, transport, places)
            wrong = {name: one for name, one in checks.items() if one.startswith("failed")}
            unsupported = {name: client.excused[name] for name in wrong if name in client.excused}
            bad = {name: one for name, one in wrong.items() if name not in client.excused}
            passed += sum(one == "ok" for one in checks.values())
            label = f"{client.name}, {client.era}, {transport}"
            failed += [f"{label}, {name}: {one}" for name, one in bad.items()]
            protocol = "2025-11-25" if client.era == LEGACY else client.era
            row = {"name": client.name, "version": places.version(client), "protocol": protocol, "checks": checks}
            rows.append({**row, "transport": transport, "excused": unsupported, "failed": [*bad]})
            sys.stdout.write(f"{label}: {json.dumps(checks)}\n")
            sys.stdout.flush()
            if asked.write:
                write_table(rows)
    sys.stdout.write(f"{json.dumps({'passed': passed, 'failed': failed, 'excused': excused})}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
