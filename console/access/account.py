"""The Access page: one's password, the browsers that are signed in, and the API keys."""

from __future__ import annotations

from typing import Any

import msgspec
from litestar import Response, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath, URLEncodedBody
from litestar.response import Template
from sqlalchemy import delete, select

from console.access import keys, passwords, sessions
from console.access.throttle import Throttle
from console.db.models import SignIn, User
from console.errors import Refusal
from console.pages import go_to, page
from console.parts import Folder, PageRequest, Session, TheThrottle


class PasswordForm(msgspec.Struct, rename="kebab"):
    password: str = ""
    new_password: str = ""


class KeyForm(msgspec.Struct):
    name: str = ""


@get("/access")
async def access_page(request: PageRequest, session: Session) -> Template:
    return await _page(request, session)


@post("/access/password")
async def change_password(
    request: PageRequest, session: Session, throttle: TheThrottle, data: URLEncodedBody[PasswordForm]
) -> Response[Any]:
    """Takes the present password too; every other browser is signed out."""
    user = await session.get(User, request.user.id)
    if user is None:
        raise Refusal(403, f"{request.user.name} has no password: it is a program.", "Sign in as a person.")
    problems: dict[str, str] = {}
    if not await _is_present_password(user, data.password, throttle):
        problems["password"] = "That is not the present password."
    elif complaint := passwords.complaint(data.new_password):
        problems["new-password"] = complaint
    if problems:
        return await _page(request, session, problems=problems, status_code=422)
    user.password_hash = await passwords.hash_password(data.new_password)
    mine = request.user.session_id
    await session.execute(delete(SignIn).where(SignIn.user_id == user.id, SignIn.id != mine))
    return go_to(request, "/access", say="The password is changed; other browsers are signed out.")


@post("/access/sessions/{session_id:int}/end")
async def end_session(request: PageRequest, session: Session, session_id: FromPath[int]) -> Response[Any]:
    await session.execute(delete(SignIn).where(SignIn.id == session_id, SignIn.user_id == request.user.id))
    if session_id == request.user.session_id:
        return signed_out(request)
    return go_to(request, "/access", say="That browser is signed out.")


@post("/access/sessions/end-all")
async def end_all_sessions(request: PageRequest, session: Session) -> Response[Any]:
    await session.execute(delete(SignIn).where(SignIn.user_id == request.user.id))
    return signed_out(request)


@post("/access/keys")
async def make_key(
    request: PageRequest, session: Session, home: Folder, data: URLEncodedBody[KeyForm]
) -> Response[Any]:
    """The answer is the page itself, not a redirect: the key is on it, once."""
    try:
        key, text = await keys.make_key(session, home, data.name, request.user.name)
    except Refusal as refusal:
        if refusal.field != "name":
            raise
        problems = {"name": refusal.message}
        return await _page(request, session, problems=problems, name=data.name, status_code=refusal.status)
    return await _page(request, session, made=key, text=text, status_code=201)


@post("/access/keys/{key_id:str}/revoke")
async def revoke_key(request: PageRequest, session: Session, home: Folder, key_id: FromPath[str]) -> Response[Any]:
    key = await keys.revoke_key(session, home, key_id)
    return go_to(request, "/access", say=f"The key {key.name} is revoked.")


def signed_out(request: PageRequest) -> Response[Any]:
    answer = go_to(request, "/sign-in")
    answer.set_cookie(sessions.no_cookie())
    return answer


async def _is_present_password(user: User, password: str, throttle: Throttle) -> bool:
    key = f"account {user.name.lower()}"
    throttle.attempt(key)
    if not await passwords.is_password(user.password_hash, password):
        return False
    throttle.succeeded(key)
    return True


async def _page(request: PageRequest, session: Session, status_code: int = 200, **context: Any) -> Template:
    browsers = select(SignIn).where(SignIn.user_id == request.user.id).order_by(SignIn.seen.desc())
    shown = {"problems": {}, "name": "", "made": None, "text": "", **context}
    return page(
        request,
        "access/access.html",
        title="Access",
        browsers=list(await session.scalars(browsers)),
        keys=await keys.list_keys(session),
        status_code=status_code,
        **shown,
    )


route_handlers: list[HTTPRouteHandler] = [
    access_page,
    change_password,
    end_session,
    end_all_sessions,
    make_key,
    revoke_key,
]
