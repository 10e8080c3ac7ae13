"""What is remembered, as a prompt and as resources of the protocol."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import unquote

import mcp_types as types
from mcp.server import Server, ServerRequestContext
from mcp.shared.exceptions import MCPError

from mama_structs.adapters.recalling import MAX_CHARS
from mama_structs.recalling import recall
from mama_structs.session import Session

PROMPT: Final = "recall"
URI: Final = "mama-structs://recall"
_PLAIN: Final = "text/plain"
_WHAT: Final = "what was decided on it, what failed and why, and where the work stood; empty where nothing is known"


class Recalled:
    """Answers what clients ask of what is remembered; of their conversations nothing is known, so each is told all."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def join(self, server: Server[Any]) -> None:
        """Have a server answer by these."""
        server.add_request_handler("prompts/list", types.PaginatedRequestParams, self._prompts)
        server.add_request_handler("prompts/get", types.GetPromptRequestParams, self._prompt)
        server.add_request_handler("resources/list", types.PaginatedRequestParams, self._resources)
        server.add_request_handler("resources/templates/list", types.PaginatedRequestParams, self._templates)
        server.add_request_handler("resources/read", types.ReadResourceRequestParams, self._resource)

    async def _prompts(
        self, _ctx: ServerRequestContext[Any], _params: types.PaginatedRequestParams | None
    ) -> types.ListPromptsResult:
        """List the prompt."""
        argument = types.PromptArgument(name="message", description="What you want to say", required=True)
        prompt = types.Prompt(
            name=PROMPT,
            title="Say it with what is remembered",
            description=f"Your message, and behind it {_WHAT}.",
            arguments=[argument],
        )
        return types.ListPromptsResult(prompts=[prompt])

    async def _prompt(
        self, _ctx: ServerRequestContext[Any], params: types.GetPromptRequestParams
    ) -> types.GetPromptResult:
        """Return the user's message, and behind it, as a message of its own, what is remembered."""
        if params.name != PROMPT:
            raise MCPError(types.INVALID_PARAMS, f"there is no prompt {params.name!r:.80}, only recall")
        message = (params.arguments or {}).get("message", "")
        if not message.strip():
            raise MCPError(types.INVALID_PARAMS, "the prompt recall needs its argument message")
        texts = [message, await self._text(message)]
        return types.GetPromptResult(
            messages=[types.PromptMessage(role="user", content=types.TextContent(text=text)) for text in texts if text]
        )

    async def _resources(
        self, _ctx: ServerRequestContext[Any], _params: types.PaginatedRequestParams | None
    ) -> types.ListResourcesResult:
        """List the resource that needs no message."""
        resource = types.Resource(
            uri=URI,
            name=PROMPT,
            title="Where the work stood",
            description="The last checkpoint, and what still holds of it.",
            mime_type=_PLAIN,
        )
        return types.ListResourcesResult(resources=[resource])

    async def _templates(
        self, _ctx: ServerRequestContext[Any], _params: types.PaginatedRequestParams | None
    ) -> types.ListResourceTemplatesResult:
        """List the resource for a message."""
        template = types.ResourceTemplate(
            uri_template=f"{URI}/{{message}}",
            name=PROMPT,
            title="What is remembered on a message",
            description=f"For a message: {_WHAT}.",
            mime_type=_PLAIN,
        )
        return types.ListResourceTemplatesResult(resource_templates=[template])

    async def _resource(
        self, _ctx: ServerRequestContext[Any], params: types.ReadResourceRequestParams
    ) -> types.ReadResourceResult:
        """Return what is remembered on the message in an address."""
        base, _, message = params.uri.partition(f"{URI}/")
        if params.uri != URI and (base or not message):
            raise MCPError(types.INVALID_PARAMS, f"there is no resource {params.uri!r:.80}")
        text = await self._text(unquote(message))
        return types.ReadResourceResult(
            contents=[types.TextResourceContents(uri=params.uri, mime_type=_PLAIN, text=text)]
        )

    async def _text(self, message: str) -> str:
        session = self._session
        # Nobody has said anything: where the work stood is all there is to say.
        return (
            await recall(
                session.memories,
                message,
                exposure=session.exposed.exposure,
                resuming=not message,
                max_chars=MAX_CHARS,
            )
        ).text
