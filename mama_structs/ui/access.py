"""Access control of the pages: token, host, origin, form token, and the headers that restrict the browser."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Awaitable, Callable
from typing import Final

import attrs
from aiohttp import web
from yarl import URL

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

TOKEN_PARAMETER: Final = "token"  # noqa: S105 - a parameter's name
FORM_TOKEN_FIELD: Final = "form_token"  # noqa: S105 - a field's name
# No inline scripts and styles, no other hosts, no frames. Images are files of the server or drawn in the page.
CONTENT_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
HEADERS: Final = {
    "Content-Security-Policy": CONTENT_POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_TOKEN_BYTES: Final = 32
_READING_METHODS: Final = frozenset({"GET", "HEAD"})


@attrs.frozen(kw_only=True, repr=False)
class Access:
    """
    The secrets and the address of one server.

    A browser gets the token with the address that the user opens, and sends it back as a cookie. A page of another
    host can neither read the token nor send the cookie, because the cookie is limited to requests of this site.
    """

    port: int
    token: str = attrs.field(factory=lambda: secrets.token_urlsafe(_TOKEN_BYTES))
    _single_use_tokens: set[str] = attrs.field(factory=set, init=False)

    @property
    def cookie_name(self) -> str:
        """Name of the cookie. Browsers share cookies between the ports of a host, so the name contains the port."""
        return f"mama_structs_ui_{self.port}"

    @property
    def form_token(self) -> str:
        """Token that each form contains, derived from the token."""
        return hmac.new(self.token.encode(), b"form", hashlib.sha256).hexdigest()

    @property
    def allowed_hosts(self) -> frozenset[str]:
        """Values of the Host header that the server accepts."""
        return frozenset({f"127.0.0.1:{self.port}", f"localhost:{self.port}"})

    def is_token(self, text: str | None) -> bool:
        """Return True if a text is the token. The comparison takes the same time for each text."""
        return text is not None and hmac.compare_digest(text.encode(errors="replace"), self.token.encode())

    def create_single_use_token(self) -> str:
        """Return a further token for an address, which `admit` accepts once."""
        token = secrets.token_urlsafe(_TOKEN_BYTES)
        self._single_use_tokens.add(token)
        return token

    def admit(self, text: str | None) -> bool:
        """Return True if an address with this token leads in."""
        if text in self._single_use_tokens:
            self._single_use_tokens.remove(text)
            return True
        return self.is_token(text)

    def is_form_token(self, text: object) -> bool:
        """Return True if a text is the form token."""
        return isinstance(text, str) and hmac.compare_digest(text.encode(errors="replace"), self.form_token.encode())


ACCESS: Final = web.AppKey("access", Access)


@web.middleware
async def add_headers(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Add the restricting headers to each response, also to errors."""
    try:
        response = await handler(request)
    except web.HTTPException as error:
        error.headers.update(HEADERS)
        raise
    response.headers.update(HEADERS)
    return response


@web.middleware
async def check_access(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Reject requests to another host name, from another site, without the token, and forms without their token."""
    access = request.app[ACCESS]
    if request.host not in access.allowed_hosts:
        # A foreign name that resolves to this machine would make the pages readable by that site (DNS rebinding).
        raise web.HTTPForbidden(text="This server answers only to its own address.\n")
    if request.method not in _READING_METHODS:
        # Read-only methods need no check, because they change nothing and other sites cannot read the response.
        _check_origin(request, access)
    if request.method == "GET" and access.admit(request.query.get(TOKEN_PARAMETER)):
        return _enter(request, access)
    if not access.is_token(request.cookies.get(access.cookie_name)):
        raise web.HTTPForbidden(
            text="Open the complete address that mama-structs printed. Its token changes at each start.\n"
        )
    if request.method not in _READING_METHODS:
        try:
            form = await request.post()
        except (ValueError, LookupError) as error:
            raise web.HTTPBadRequest(text="This form cannot be read.\n") from error
        if not access.is_form_token(form.get(FORM_TOKEN_FIELD)):
            raise web.HTTPForbidden(text="This form is of an earlier start of the server. Reload its page.\n")
    return await handler(request)


def _check_origin(request: web.Request, access: Access) -> None:
    origin = request.headers.get("Origin")
    own = {f"http://{host}" for host in access.allowed_hosts}
    if origin not in own or request.headers.get("Sec-Fetch-Site", "same-origin") != "same-origin":
        raise web.HTTPForbidden(text="This request comes from another site.\n")


def _enter(request: web.Request, access: Access) -> web.Response:
    """
    Store the token as a cookie, and let the browser load the page again without the token in its address.

    An HTTP redirect would not do: after a click on a link of another site, such as a notebook, the browser sends no
    cookie with the redirected request.
    """
    # A browser reads two slashes, or a slash and a backslash, at the beginning as the name of another host.
    path = f"/{request.rel_url.raw_path.lstrip('/' + chr(92))}"
    query = [(name, value) for name, value in request.query.items() if name != TOKEN_PARAMETER]
    target = URL.build(path=path, encoded=True).with_query(query)
    # A browser may request /favicon.ico for a page that names no icon, and log a 404.
    text = '<!doctype html><link rel="icon" href="data:,">Loading …\n'
    response = web.Response(status=200, text=text, content_type="text/html")
    response.headers["Refresh"] = f"0; url={target}"
    response.set_cookie(access.cookie_name, access.token, httponly=True, samesite="Strict", path="/")
    return response
