"""First part of the demo: decisions on one day, and the recalled text on the next."""

from __future__ import annotations

import tempfile
from typing import Any, Final

import attrs

from mama_structs._internal.jsonable import to_json_text
from mama_structs.session.session import Session

# The last message is unrelated to the decisions, to show that nothing is recalled for it.
TUESDAY_MESSAGES: Final = (
    "Shall we use JWT for logins?",
    "Let's continue from yesterday.",
    "How many hours are in a day?",
)


@attrs.frozen
class DemoCall:
    """One tool call of the agent and its answer."""

    tool: str
    arguments: dict[str, Any]
    answer: Any

    @property
    def chars(self) -> int:
        """The length of the answer in characters."""
        return len(self.answer if isinstance(self.answer, str) else to_json_text(self.answer))


@attrs.frozen
class DemoDays:
    """The tool calls of the first day, and the recalled text for each message of the second."""

    calls: tuple[DemoCall, ...]
    recalled_texts: dict[str, str]


async def run_two_days() -> DemoDays:
    """Run the first day's calls in one session and the second day's recalls in another."""
    calls: list[DemoCall] = []
    with tempfile.TemporaryDirectory() as place:
        async with Session.open(place) as monday:

            async def call(tool: str, **arguments: Any) -> Any:
                answer = await monday.call(tool, arguments)
                calls.append(DemoCall(tool, arguments, answer))
                return answer

            jwt = await call(
                "save/decision", topic="auth", decision="Use JWT for logins", reasoning="stateless: no session store"
            )
            why = "A stolen JWT could not be revoked"
            await call("evolve/outcome", decision_id=jwt["id"], outcome="FAILED", reason=why)
            await call(
                "evolve/supersede",
                decision_id=jwt["id"],
                decision="Keep logins as sessions in Redis",
                reasoning="can be ended at once",
            )
            await call("save/checkpoint", summary="Logins are moved to Redis", next_steps=["stop accepting old tokens"])
        async with Session.open(place) as tuesday:
            recalled_texts = {message: (await tuesday.recall(message)).text for message in TUESDAY_MESSAGES}
    return DemoDays(tuple(calls), recalled_texts)
