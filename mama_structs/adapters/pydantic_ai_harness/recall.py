"""Capability of the harness that adds recalled memories to an agent's messages."""

from __future__ import annotations

from typing import Any

from pydantic_ai import RunContext, UserPromptPart
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.messages import ModelMessage, ModelRequest, ModelResponse, post_compaction_window
from pydantic_ai.models import ModelRequestContext

from mama_structs import sync
from mama_structs._internal.prompt_quoting import remove_recalled
from mama_structs._internal.sync_proxy import await_in_proxy_loop
from mama_structs.adapters.shared.loop_bridge import check_session
from mama_structs.adapters.shared.tool_results import observe_message, recall_for_messages
from mama_structs.session.session import Session


class SessionRecall(AbstractCapability[Any]):
    """Adds recalled memories to requests and stores the refs of answers. It has no tools."""

    def __init__(self, session: Session | sync.Session, *, id: str | None, max_chars: int) -> None:  # noqa: A002 - the framework's parameter name
        self._session = session
        self._own = check_session(session)
        self._max_chars = max_chars
        self.id = id

    async def before_model_request(
        self, ctx: RunContext[Any], request_context: ModelRequestContext
    ) -> ModelRequestContext:
        """Append the recalled text to the user's message."""
        again = not _has_recalled_text(ctx.messages)
        text = await await_in_proxy_loop(
            self._session,
            lambda: recall_for_messages(self._own, ctx.messages, max_chars=self._max_chars, repeat=again),
        )
        if text:
            ctx.enqueue(UserPromptPart(text))
        return request_context

    async def after_model_request(
        self,
        ctx: RunContext[Any],  # noqa: ARG002 - the framework's signature
        *,
        request_context: ModelRequestContext,  # noqa: ARG002 - the framework's signature
        response: ModelResponse,
    ) -> ModelResponse:
        """Store the refs of an answer before its calls run."""
        await await_in_proxy_loop(self._session, lambda: observe_message(self._own, response))
        return response


def _has_recalled_text(messages: list[ModelMessage]) -> bool:
    """Return True if recalled text is in the messages since the last compaction."""
    left = post_compaction_window(messages)
    prompts = (part for one in left if isinstance(one, ModelRequest) for part in one.parts)
    texts = (part.content for part in prompts if isinstance(part, UserPromptPart) and isinstance(part.content, str))
    return any(remove_recalled(text) != text for text in texts)
