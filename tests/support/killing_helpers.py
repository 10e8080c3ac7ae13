"""Kill a command or a program before a chosen SQL statement. The store is a directory or a server database."""

import contextlib
import os
import signal
import subprocess
import sys
import textwrap

# One interpreter runs each command in a forked process, in which all modules are already loaded.
_RUNNER = """
    import importlib, os, signal, sys
    from mama_structs.cli.main import main
    from mama_structs.storage.sealed_rows import SqliteRows, SqliteSnapshot
    from mama_structs.storage.postgres.pool import Connection

    for name in (
        "session.session session.backend session.wiring memory.store.factory importers.mama_v1 "
        "tools.exposure tools.memory_tools tools.ref_tools tools.exposed_tools"
    ).split():
        importlib.import_module(f"mama_structs.{name}")

    def counted(do):
        def counting(self, *arguments):
            global left
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return do(self, *arguments)

        return counting

    exec(os.environ.get("PROGRAM", ""))
    SqliteRows._execute = counted(SqliteSnapshot._execute)
    Connection._run_statement = counted(Connection._run_statement)
    for line in sys.stdin:
        left, code = int(line), 1
        if not (child := os.fork()):
            try:
                sys.stdout = sys.stderr
                code = main(sys.argv[1:])
            finally:
                os._exit(code)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@contextlib.contextmanager
def killed_commands(*arguments, program=""):
    """
    Yield a function that runs the command up to a given number of statements, and returns True if it was killed.

    A *program* is code that replaces the command by a function `main` of its arguments, which returns an exit code.
    """
    command = [sys.executable, "-c", textwrap.dedent(_RUNNER), *map(str, arguments)]
    environment = {**os.environ, "PROGRAM": textwrap.dedent(program)}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment) as runner:

        def is_killed(statements):
            runner.stdin.write(f"{statements}\n")
            runner.stdin.flush()
            code = int(runner.stdout.readline())
            assert code in (0, -signal.SIGKILL)
            return code != 0

        yield is_killed
