"""``mama-structs hook``: answers to coding agents. An error of the hook never reaches the agent."""

import asyncio
import gc
import json
import os
import shutil
import socket
import stat
import subprocess
import sys
import time
import weakref

import pytest

from mama_structs import HashEmbedder, Session, as_embedder
from mama_structs.cli import hook as client
from mama_structs.cli import hook_messages
from mama_structs.cli import hook_server as hook_helper
from mama_structs.cli.hook_server import QUIT_COMMAND, HookServer, classify_event, extract_message, format_answer
from mama_structs.memory.store.memory_store import MemoryStore

COMMAND = [sys.executable, "-m", "mama_structs", "hook"]
pytestmark = pytest.mark.skipif(not hasattr(socket, "AF_UNIX"), reason="there are no Unix sockets here")

RETRIES = "Acquirer Nordbank: timeouts are retried 3 times with exponential backoff"
QUESTION = "How often are timeouts of the acquirer Nordbank retried?"


@pytest.fixture(scope="module")
def filled_store(tmp_path_factory):
    """A directory with two decisions and a checkpoint, which tests copy."""
    path = tmp_path_factory.mktemp("hook") / "a.mama"

    async def fill():
        async with Session.open(path, embedder=HashEmbedder()) as session:
            await session.memories.save_decision(RETRIES, topic="retries", reasoning="the bank asked for it")
            await session.memories.save_decision("shield first", topic="defence", reasoning="raids doubled")
            await session.memories.save_checkpoint("retries are in, alerts are not", next_steps=["alerts"])

    asyncio.run(fill())
    return path


@pytest.fixture
def store(tmp_path, filled_store):
    return shutil.copytree(filled_store, tmp_path / "a.mama")


@pytest.fixture
async def helper(store):
    """A helper server of the hook, in this process."""
    own = HookServer(str(store))
    yield own
    await own.close()


async def asked(helper, **event):
    return await helper.answer("default", 2_000, json.dumps(event))


async def sent(request):
    """Send a request to the helper in the working directory, and return its answer."""
    reader, writer = await asyncio.open_unix_connection(client.SOCKET_NAME)
    writer.write(request)
    writer.write_eof()
    answer = (await reader.read()).decode()
    writer.close()
    return answer


async def served(helper, listening, *requests):
    """Run a helper, send it requests, and return its answers."""
    serving = asyncio.create_task(helper.serve(listening))
    answers = [await sent(request) for request in requests]
    await sent(f"\0{QUIT_COMMAND}\0".encode())
    await serving
    return answers


# Events of different agents


@pytest.mark.parametrize(
    ("event", "kind", "message"),
    [
        ({"hook_event_name": "UserPromptSubmit", "prompt": "why?"}, "prompt", "why?"),
        ({"hook_event_name": "SessionStart", "source": "startup"}, "start", ""),
        ({"hook_event_name": "PreCompact", "trigger": "auto"}, "compact", ""),
        ({"hook_event_name": "BeforeAgent", "prompt": "why?"}, "prompt", "why?"),
        ({"hook_event_name": "PreCompress"}, "compact", ""),
        ({"hook_event_name": "beforeSubmitPrompt", "prompt": "why?"}, "prompt", "why?"),
        ({"agent_action_name": "pre_user_prompt", "tool_info": {"user_prompt": "why?"}}, "prompt", "why?"),
        ({"event": "session.start"}, "start", ""),
        ({"event": "message", "data": {"content": [{"type": "text", "text": "why?"}]}}, "prompt", "why?"),
        ({"prompt": "why?"}, "prompt", "why?"),
        ({"hook_event_name": "PreToolUse", "prompt": "why?"}, None, "why?"),
        ({"hook_event_name": "SessionEnd"}, None, ""),
        ({}, None, ""),
    ],
)
def test_events_of_common_agents_are_classified(event, kind, message):
    """Each agent's names for the three events and for the user's message are known; other events are ignored."""
    name = event.get("hook_event_name") or event.get("agent_action_name") or event.get("event") or ""

    assert message == extract_message(event)
    assert kind == classify_event(name, message)


@pytest.mark.parametrize(
    ("name", "kind", "answer"),
    [
        (
            "UserPromptSubmit",
            "prompt",
            {"hookSpecificOutput": {"hookEventName": "UserPromptSubmit", "additionalContext": "text"}},
        ),
        ("PreCompact", "compact", {}),
        ("beforeSubmitPrompt", "prompt", {"continue": True, "additional_context": "text"}),
        ("sessionStart", "start", {"additional_context": "text"}),
        ("preCompact", "compact", {}),
        ("", "prompt", {"additional_context": "text"}),
        ("before_compaction", "compact", {"additional_context": "text"}),
    ],
)
def test_answer_has_format_of_the_agent(name, kind, answer):
    """Claude Code and Codex read ``hookSpecificOutput``, Cursor also *continue*; none reads text before a compaction."""
    assert answer == format_answer(name, kind, "text")
    assert {} == format_answer(name, kind, "")


# Recalled text in the answers


async def test_prompt_is_answered_by_words_until_embedder_is_loaded(helper):
    """The same memory is found before and after loading, and an irrelevant message gets an empty answer."""
    cold = await asked(helper, session_id="1", hook_event_name="UserPromptSubmit", prompt=QUESTION)
    (session,) = helper._sessions.values()
    calls = session.memories._shared.embedding.stats.calls
    await helper._warm_up()
    warm = await asked(helper, session_id="2", hook_event_name="UserPromptSubmit", prompt=QUESTION)

    assert 0 == calls
    assert RETRIES in cold["hookSpecificOutput"]["additionalContext"]
    assert RETRIES in warm["hookSpecificOutput"]["additionalContext"]
    assert {} == await asked(helper, session_id="1", hook_event_name="UserPromptSubmit", prompt="what is for lunch?")


async def test_fact_is_recalled_once_until_context_is_lost(helper):
    """After a compaction or clear, the facts are recalled again."""
    prompt = {"session_id": "1", "hook_event_name": "UserPromptSubmit", "prompt": QUESTION}

    assert {} != await asked(helper, **prompt)
    assert {} == await asked(helper, **prompt)
    assert {} != await asked(helper, **{**prompt, "session_id": "another"})
    assert {} == await asked(helper, session_id="1", hook_event_name="PreCompact")
    assert {} != await asked(helper, **prompt)


async def test_event_may_begin_with_byte_order_mark(helper):
    """PowerShell writes one before the JSON that it pipes to a command."""
    answer = await helper.answer("default", 2_000, "\ufeff" + json.dumps({"prompt": QUESTION}))

    assert RETRIES in answer["additional_context"]


async def test_checkpoint_stays_available_when_agent_takes_no_text_before_compaction(helper):
    """Cursor has no event after a compaction, so its next prompt or session start recalls the checkpoint."""
    await asked(helper, conversation_id="1", hook_event_name="preCompact")

    answer = await asked(helper, conversation_id="1", hook_event_name="sessionStart")
    assert "alerts are not" in answer["additional_context"]


async def test_session_start_recalls_last_checkpoint(helper):
    """It is recalled again after a compaction."""
    begun = {"session_id": "1", "hook_event_name": "SessionStart"}

    for source in ("startup", "compact"):
        answer = await asked(helper, **begun, source=source)
        assert "alerts are not" in answer["hookSpecificOutput"]["additionalContext"]
    assert {} == await asked(helper, **begun, source="resume")


async def test_session_start_does_not_search(helper, monkeypatch):
    """A session start has no message: only the state of the work is recalled, before and after loading."""
    monkeypatch.setattr(MemoryStore, "search", None)
    for helper._is_warm in (False, True):
        began = {"session_id": str(helper._is_warm), "hook_event_name": "SessionStart"}
        assert "alerts are not" in str(await asked(helper, **began))


async def test_helper_collects_garbage_after_its_first_answer(helper, store, monkeypatch):
    """`main` disables garbage collection, so that the imports for the first answer are fast."""
    monkeypatch.chdir(store)
    gc.disable()
    try:
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(client.SOCKET_NAME)
            listening.listen()
            await served(helper, listening, b"default\x002000\0{}")
        assert gc.isenabled()
    finally:
        gc.enable()


async def test_undelivered_answer_is_recalled_again(helper, store, monkeypatch):
    """If the hook gave up, the next prompt of its conversation gets the facts."""
    monkeypatch.chdir(store)
    request = f"default\0{2_000}\0{json.dumps({'session_id': '1', 'prompt': QUESTION})}".encode()
    with socket.socket(socket.AF_UNIX) as listening, socket.socket(socket.AF_UNIX) as gone:
        listening.bind(client.SOCKET_NAME)
        listening.listen()
        gone.connect(client.SOCKET_NAME)
        gone.send(request)
        gone.close()
        answers = await served(helper, listening, request)

    assert RETRIES in answers[0]


async def test_request_task_is_not_garbage_collected(helper, store, monkeypatch):
    """A task is referenced until it has answered, even if nothing else references it."""
    monkeypatch.chdir(store)
    waiting = []
    asked = asyncio.Event()

    async def answer(*_request):
        future = asyncio.get_running_loop().create_future()
        waiting.append(weakref.ref(future))
        asked.set()
        await future
        return {}

    monkeypatch.setattr(helper, "answer", answer)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(client.SOCKET_NAME)
        listening.listen()
        serving = asyncio.create_task(served(helper, listening, b"default\x002000\0"))
        await asked.wait()
        gc.collect()
        waiting[0]().set_result(None)
        assert ["{}\n"] == await serving


async def test_error_is_a_separate_line(helper, store, monkeypatch):
    """An error in the helper follows the empty answer, without user data."""
    monkeypatch.chdir(store)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(client.SOCKET_NAME)
        listening.listen()
        answers = await served(helper, listening, b'default\x0010\0{"prompt": "why?"}', b"default\x002000\0secret")

    assert ["{}\nmax_chars must be a whole number of 300 or more, got 10\n", "{}\nJSONDecodeError\n"] == answers


async def test_helper_rejects_request_that_is_too_long(helper, store, monkeypatch):
    """A request above the limit is not buffered, and the helper serves the next one."""
    monkeypatch.chdir(store)
    monkeypatch.setattr(hook_messages, "MAX_REQUEST_BYTES", 1_000)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(client.SOCKET_NAME)
        listening.listen()
        long, short = await served(helper, listening, b"default\x00500\0" + b" " * 2_000, b"default\x00500\0{}")

    assert "{}\nthe request is longer than 1,000 bytes\n" == long
    assert "{}\n" == short


async def test_helper_rejects_request_that_is_not_finished(helper, store, monkeypatch):
    """A client that keeps its connection open gets an error after the timeout and does not block others."""
    monkeypatch.chdir(store)
    monkeypatch.setattr(hook_messages, "REQUEST_SECONDS", 0.05)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(client.SOCKET_NAME)
        listening.listen()
        serving = asyncio.create_task(helper.serve(listening))
        reader, writer = await asyncio.open_unix_connection(client.SOCKET_NAME)
        writer.write(b"default\0")
        slow = await asyncio.wait_for(reader.read(), 60)
        writer.close()
        await sent(f"\0{QUIT_COMMAND}\0".encode())
        await serving

    assert b"{}\nthe request was not complete after 0.05 seconds\n" == slow


async def test_send_answer_times_out_when_client_does_not_read(monkeypatch):
    """A client that does not read does not block the helper."""
    monkeypatch.setattr(hook_messages, "REQUEST_SECONDS", 0.05)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        _, writer = await asyncio.open_connection(sock=ours)

        assert not await hook_messages.send_answer(writer, b"x" * 10**7)


async def test_helper_exits_after_upgrade(helper, store, monkeypatch):
    """A helper whose code was replaced answers once more and exits, so that the next hook starts the new one."""
    monkeypatch.chdir(store)
    versions = iter([1, 2])
    monkeypatch.setattr(hook_helper, "_get_version", lambda: next(versions))
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(client.SOCKET_NAME)
        listening.listen()
        serving = asyncio.create_task(helper.serve(listening))
        answer = await sent(json.dumps({"prompt": QUESTION}).join(["default\x002000\0", ""]).encode())
        await serving

    assert RETRIES in answer
    assert not (store / client.SOCKET_NAME).exists()


async def test_open_conversations_are_bounded(helper):
    """A helper closes the least recently used conversation."""
    for number in range(12):
        await asked(helper, session_id=str(number), prompt=QUESTION)

    assert [str(number) for number in range(4, 12)] == [name for _, name in helper._sessions]


async def test_helper_searches_by_words_without_embedder(tmp_path):
    """A missing embedder is not an error."""
    foreign = as_embedder(lambda texts: [[1.0, 0.0]] * len(texts), name="mine", dimensions=2)
    async with Session.open(tmp_path / "a.mama", embedder=foreign) as session:
        for text in (RETRIES, "shield first, raids doubled", "alerts come later"):
            await session.memories.save_context(text)
    helper = HookServer(str(tmp_path / "a.mama"))
    await asked(helper, prompt="anything")
    await helper._warm_up()
    answer = await asked(helper, prompt=QUESTION)
    await helper.close()

    assert RETRIES in answer["additional_context"]


# The command


def test_hook_command_imports_few_modules(tmp_path):
    """In addition to the interpreter's own modules it loads six small ones."""
    code = (
        "import sys\n"
        "before = set(sys.modules)\n"
        "from mama_structs.cli.main import main\n"
        "main(['hook', sys.argv[1]])\n"
        "print(*sorted(set(sys.modules) - before))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, input="{}", check=True
    )
    loaded = done.stdout.splitlines()[-1].split()
    slow = ("asyncio", "json", "argparse", "socket", "subprocess", "pathlib", "attr", "numpy", "logging", "tempfile")

    assert [
        "mama_structs",
        "mama_structs._internal",
        "mama_structs._internal.lazy_import",
        "mama_structs.cli",
        "mama_structs.cli.hook",
        "mama_structs.cli.main",
    ] == [name for name in loaded if name.startswith("mama_structs")]
    assert [] == [name for name in loaded if name.startswith(slow)]


@pytest.mark.parametrize(
    ("arguments", "event", "said"),
    [
        ([], "{}", "it needs STORE"),
        (["{nothing}"], "{}", "No such file or directory"),
        (["{empty}"], "{}", "is not the directory of a store"),
        (["postgresql://me:secret@db/agents"], "{}", "it needs a session's directory"),
        (["{empty}", "--what"], "{}", "it takes no '--what'"),
        (["{empty}", "--seconds", "soon"], "{}", "could not convert"),
    ],
)
def test_hook_error_is_an_empty_answer(arguments, event, said, tmp_path):
    """A wrong command line or a missing store gives an empty answer, exit code 0 and a line on stderr."""
    (tmp_path / "empty").mkdir()
    given = [one.format(nothing=tmp_path / "nothing", empty=tmp_path / "empty") for one in arguments]
    done = subprocess.run([*COMMAND, *given], capture_output=True, text=True, input=event, check=False)

    assert (0, "{}\n") == (done.returncode, done.stdout)
    assert said in done.stderr
    assert "secret" not in done.stderr
    assert 1 == done.stderr.count("\n")
    assert [] == list((tmp_path / "empty").iterdir())


def test_hook_times_out_when_helper_hangs(store, monkeypatch, capfdbinary):
    """If the helper does not answer, the hook ends after its time limit."""
    read, write = os.pipe()
    os.write(write, b"{}")
    os.close(write)
    monkeypatch.chdir(store)
    with socket.socket(socket.AF_UNIX) as hanging:
        hanging.bind(client.SOCKET_NAME)
        hanging.listen()
        monkeypatch.setattr(client, "_read_event", lambda until: b"{}")
        assert 0 == client.answer_hook([str(store), "--seconds", "0.05"])
    os.close(read)

    assert b"{}\n" == capfdbinary.readouterr().out


def test_hook_fails_fast_when_helper_cannot_start(store, monkeypatch):
    """If the helper exits with an error, the hook does not wait for its time limit."""
    monkeypatch.chdir(store)
    monkeypatch.setattr(client, "_HELPER_CODE", "raise SystemExit(1)")
    with pytest.raises(OSError, match="the helper cannot start"):
        client.request_answer(b"", time.monotonic() + 600)


def test_hook_ctrl_c_is_an_empty_answer(monkeypatch, capfdbinary):
    """An interrupted hook prints no traceback."""

    def interrupted(_until):
        raise KeyboardInterrupt

    monkeypatch.setattr(client, "_read_event", interrupted)

    assert 0 == client.answer_hook(["anywhere"])
    assert (b"{}\n", b"mama-structs hook: KeyboardInterrupt\n") == capfdbinary.readouterr()


def test_hook_times_out_when_stdin_stays_open(store):
    """An agent that leaves stdin open gets its answer within the time limit."""
    with subprocess.Popen(
        [*COMMAND, str(store), "--seconds", "0.05"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert b"{}\n" == process.stdout.readline()
        assert b"stdin was not closed in time" in process.stderr.read()
        assert 0 == process.wait()


@pytest.mark.parametrize("event", ["", "[1]", "no JSON", '{"prompt": 7}', '{"prompt": "\\ud800"}', "\0\0\0"])
async def test_hook_answers_any_input(store, event, monkeypatch):
    """For any event the helper answers, and it continues to serve."""
    own = HookServer(str(store))
    monkeypatch.chdir(store)
    texts = (event, json.dumps({"prompt": QUESTION}))
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(client.SOCKET_NAME)
        listening.listen()
        requests = (f"default\0{2_000}\0{text}".encode(errors="surrogatepass") for text in texts)
        answers = await served(own, listening, *requests)

    assert RETRIES in json.loads(answers[1])["additional_context"]


def test_helper_serves_later_hooks(store, monkeypatch):
    """The first hook starts the helper, whose socket only its user may use, and later hooks reuse it."""
    event = json.dumps({"session_id": "1", "hook_event_name": "UserPromptSubmit", "prompt": QUESTION})
    answers = [
        subprocess.run([*COMMAND, str(store), "--seconds=600"], capture_output=True, text=True, input=event, check=True)
        for _ in range(2)
    ]
    mode = (store / client.SOCKET_NAME).stat().st_mode
    monkeypatch.chdir(store)
    client.request_answer(f"\0{QUIT_COMMAND}\0".encode(), time.monotonic() + 600, may_start=False)

    assert RETRIES in answers[0].stdout
    assert "{}\n" == answers[1].stdout, "it is the same helper, and this conversation was told"
    assert ["", ""] == [answer.stderr for answer in answers]
    assert (True, 0o600) == (stat.S_ISSOCK(mode), stat.S_IMODE(mode))
