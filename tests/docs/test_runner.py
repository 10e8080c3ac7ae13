"""The page runner detects errors in documentation pages."""

import textwrap

import pytest

FENCE = "```"


@pytest.fixture
def page_of(tmp_path):
    """Return a function that writes a page, and replaces ``'''`` in its text with a fence."""

    def write(text):
        page = tmp_path / "page.md"
        page.write_text(textwrap.dedent(text).replace("'''", FENCE), encoding="utf-8")
        return page

    return write


GOOD = {
    "blocks share one namespace": """
        '''python
        one = 1
        '''
        Then:
        '''python
        print(one + 1)
        '''
        '''text output
        2
        '''
    """,
    "await at the top level, and one loop for all blocks": """
        '''python
        import asyncio
        loop = asyncio.get_running_loop() if await asyncio.sleep(0) else None
        before = asyncio.get_running_loop()
        '''
        '''python
        await asyncio.sleep(0)
        assert before is asyncio.get_running_loop()
        '''
    """,
    "a script may start a loop of its own": """
        '''python
        import asyncio

        async def main():
            print("ran")

        asyncio.run(main())
        '''
        '''text output
        ran
        '''
    """,
    "a line of dots stands for any lines": """
        '''python
        print("a\\nb\\nc\\nd")
        '''
        '''text output
        a
        ...
        d
        '''
    """,
    "a line of dots may stand for none": """
        '''python
        print("a")
        '''
        '''text output
        a
        ...
        '''
    """,
    "json": """
        '''python
        print('{"a": 1}')
        '''
        '''json output
        {"a": 1}
        '''
    """,
    "other languages are left alone": """
        '''sh
        exit 1
        '''
        '''json
        {"not": "run"}
        '''
    """,
}

BAD = {
    "a wrong output": (
        "printed",
        """
        '''python
        print(2)
        '''
        '''text output
        3
        '''
        """,
    ),
    "an output that is shown and never printed": (
        "nothing",
        """
        '''python
        x = 1
        '''
        '''text output
        1
        '''
        """,
    ),
    "an output that is printed and not shown": (
        "nothing",
        """
        '''python
        print(1)
        '''
        """,
    ),
    "more output than shown": (
        "printed",
        """
        '''python
        print("a\\nb")
        '''
        '''text output
        a
        '''
        """,
    ),
    "dots inside a line, which are no wildcard": (
        "printed",
        """
        '''python
        print("a long line")
        '''
        '''text output
        a ... line
        '''
        """,
    ),
    "lines out of order around dots": (
        "printed",
        """
        '''python
        print("b\\na")
        '''
        '''text output
        a
        ...
        b
        '''
        """,
    ),
    "an exception": (
        "ZeroDivisionError",
        """
        '''python
        1 / 0
        '''
        """,
    ),
    "a failed assertion": (
        "AssertionError",
        """
        '''python
        assert 1 == 2
        '''
        """,
    ),
    "a warning": (
        "DeprecationWarning",
        """
        '''python
        import warnings
        warnings.warn("old", DeprecationWarning)
        '''
        """,
    ),
    "a coroutine that is never awaited": (
        "never awaited",
        """
        '''python
        async def forgotten():
            return 1

        forgotten()
        '''
        """,
    ),
    "a session that is never closed": (
        "never closed",
        """
        '''python
        from mama_structs import Session
        session = await Session.open()
        '''
        """,
    ),
    "a task that is left behind": (
        "leaves something open",
        """
        '''python
        import asyncio
        task = asyncio.create_task(asyncio.sleep(60))
        await asyncio.sleep(0)
        '''
        """,
    ),
    "another host by number": (
        "no network",
        """
        '''python
        import socket
        with socket.socket() as connection:
            connection.connect(("192.0.2.1", 80))
        '''
        """,
    ),
    "another host by name": (
        "no network",
        """
        '''python
        import socket
        socket.getaddrinfo("example.org", 80)
        '''
        """,
    ),
    "another host through the client": (
        "no network",
        """
        '''python
        from mama_structs import StructsClient
        async with StructsClient("http://192.0.2.1:1317", retries=0) as client:
            await client.block_height()
        '''
        """,
    ),
    "no Python": (
        "is no Python",
        """
        '''python
        one +
        '''
        """,
    ),
    "a block that asks not to be run": (
        "exactly `python`",
        """
        '''python no-run
        print(1)
        '''
        """,
    ),
    "an interactive session": (
        "exactly `python`",
        """
        '''pycon
        >>> 1
        '''
        """,
    ),
    "a body of dots": (
        "does nothing",
        """
        '''python
        async def tool(): ...
        '''
        """,
    ),
    "a body of pass below a docstring": (
        "does nothing",
        """
        '''python
        def tool():
            "Do it."
            pass
        '''
        """,
    ),
    "output without a block": (
        "must follow",
        """
        '''text output
        1
        '''
        """,
    ),
    "output after output": (
        "must follow",
        """
        '''python
        print(1)
        '''
        '''text output
        1
        '''
        '''text output
        1
        '''
        """,
    ),
    "an indented fence": (
        "indented",
        """
        * A step:

          '''python
          1 / 0
          '''
        """,
    ),
    "a block that is never closed": (
        "never closed",
        """
        '''python
        x = 1
        """,
    ),
}


@pytest.mark.parametrize("text", GOOD.values(), ids=GOOD)
def test_run_page_accepts_correct_page(docs, page_of, text):
    docs.run_page(page_of(text))


@pytest.mark.parametrize(("reason", "text"), BAD.values(), ids=BAD)
def test_run_page_rejects_wrong_page(docs, page_of, reason, text):
    """The message names the reason."""
    with pytest.raises(docs.PageError, match=reason):
        docs.run_page(page_of(text))


def test_page_error_points_to_line_of_block_and_statement(docs, page_of):
    page = page_of("""\
        # Title

        '''python
        x = 1
        1 / 0
        '''
    """)

    with pytest.raises(docs.PageError, match=r"page\.md:3: raised ZeroDivisionError") as raised:
        docs.run_page(page)

    cause = raised.value.__cause__
    while cause.__traceback__.tb_next is not None:
        cause.__traceback__ = cause.__traceback__.tb_next
    assert 5 == cause.__traceback__.tb_lineno
    assert str(page) == cause.__traceback__.tb_frame.f_code.co_filename
