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
from console.access.new_keys import NewKeys
from console.access.throttle import FAILURES, Throttle
from console.db.models import SignIn, User, may_be_stored
from console.error_answers import wants_page
from console.pages import go_to, page
from console.parts import Folder, PageRequest, Session, TheNewKeys, TheThrottle
from console.refusals import Refusal


class PasswordForm(msgspec.Struct, rename="kebab"):
    password: str = ""
    new_password: str = ""


class KeyForm(msgspec.Struct):
    name: str = ""


@get("/access")
async def access_page(request: PageRequest, session: Session, new_keys: TheNewKeys) -> Template:
    return await _page(request, session, new_keys)


@post("/access/password")
async def change_password(
    request: PageRequest,
    session: Session,
    throttle: TheThrottle,
    new_keys: TheNewKeys,
    data: URLEncodedBody[PasswordForm],
) -> Response[Any]:
    """Asks for the current password too; every other browser is signed out."""
    user = await session.get(User, request.user.id)
    if user is None:
        raise Refusal(403, "A program has no password.", "Sign in as a person.")
    problems: dict[str, str] = {}
    if not await _is_current_password(request, user, data.password, throttle):
        problems["password"] = "This is not your current password."
    elif complaint := passwords.complaint(data.new_password):
        problems["new-password"] = complaint
    if problems and not wants_page(request):
        field, message = next(iter(problems.items()))
        raise Refusal(422, message, "Correct it and try again.", field=field)
    if problems:
        return await _page(request, session, new_keys, problems=problems, status_code=422)
    user.password_hash = await passwords.hash_password(data.new_password)
    mine = request.user.session_id
    await session.execute(delete(SignIn).where(SignIn.user_id == user.id, SignIn.id != mine))
    return go_to(request, "/access", say="Password changed. Other browsers have been signed out.")


@post("/access/sessions/{session_id:int}/end")
async def end_session(
    request: PageRequest, session: Session, new_keys: TheNewKeys, session_id: FromPath[int]
) -> Response[Any]:
    ended = delete(SignIn).where(SignIn.id == session_id, SignIn.user_id == request.user.id).returning(SignIn.id)
    if not may_be_stored(session_id) or await session.scalar(ended) is None:
        raise Refusal(404, "This browser is no longer signed in.", "The Access page lists those that are.")
    if session_id == request.user.session_id:
        return signed_out(request, new_keys)
    return go_to(request, "/access", say="Browser signed out.")


@post("/access/sessions/end-all")
async def end_all_sessions(request: PageRequest, session: Session, new_keys: TheNewKeys) -> Response[Any]:
    await session.execute(delete(SignIn).where(SignIn.user_id == request.user.id))
    return signed_out(request, new_keys)


@post("/access/keys")
async def create_key(
    request: PageRequest, session: Session, home: Folder, new_keys: TheNewKeys, data: URLEncodedBody[KeyForm]
) -> Response[Any]:
    """The key's text is shown on the page that follows, to this browser only."""
    try:
        key, text = await keys.create_key(session, home, data.name, request.user.name)
    except Refusal as refusal:
        if refusal.field != "name" or not wants_page(request):
            raise
        problems = {"name": refusal.message}
        return await _page(request, session, new_keys, problems=problems, name=data.name, status_code=refusal.status)
    new_keys.add(request.user.session_id, key.id, key.name, text)
    return go_to(request, "/access")


@post("/access/keys/{key_id:str}/dismiss")
async def dismiss_key(request: PageRequest, new_keys: TheNewKeys, key_id: FromPath[str]) -> Response[Any]:
    """Show the text of a new key no longer; the key stays valid."""
    new_keys.forget(key_id)
    return go_to(request, "/access")


@post("/access/keys/{key_id:str}/revoke")
async def revoke_key(
    request: PageRequest, session: Session, home: Folder, new_keys: TheNewKeys, key_id: FromPath[str]
) -> Response[Any]:
    key = await keys.revoke_key(session, home, key_id)
    new_keys.forget(key_id)
    return go_to(request, "/access", say=f"Key {key.name} revoked.")


@post("/access/require-key")
async def require_key(request: PageRequest, session: Session, home: Folder) -> Response[Any]:
    await keys.set_required(session, home, True)
    return go_to(request, "/access", say="The API now requires a key.")


@post("/access/stop-requiring-key")
async def stop_requiring_key(request: PageRequest, session: Session, home: Folder) -> Response[Any]:
    await keys.set_required(session, home, False)
    return go_to(request, "/access", say="The API no longer requires a key on this machine.")


def signed_out(request: PageRequest, new_keys: NewKeys) -> Response[Any]:
    new_keys.forget_session(request.user.session_id)
    answer = go_to(request, "/sign-in")
    answer.set_cookie(sessions.no_cookie())
    return answer


async def _is_current_password(request: PageRequest, user: User, password: str, throttle: Throttle) -> bool:
    """Counted separately from sign-ins, so that other people's wrong guesses do not delay a signed-in browser."""
    key = f"password {request.user.session_id}"
    throttle.attempt({key: FAILURES})
    if not await passwords.is_password(user.password_hash, password):
        return False
    throttle.succeeded(key)
    return True


async def _page(
    request: PageRequest, session: Session, new_keys: NewKeys, status_code: int = 200, **context: Any
) -> Template:
    browsers = select(SignIn).where(SignIn.user_id == request.user.id).order_by(SignIn.seen.desc())
    shown = {"problems": {}, "name": "", **context}
    return page(
        request,
        "access/access.html",
        title="Access",
        browsers=list(await session.scalars(browsers)),
        keys=await keys.list_keys(session),
        key_required=await keys.is_required(session),
        new_keys=new_keys.of(request.user.session_id),
        status_code=status_code,
        **shown,
    )


route_handlers: list[HTTPRouteHandler] = [
    access_page,
    change_password,
    end_session,
    end_all_sessions,
    create_key,
    dismiss_key,
    revoke_key,
    require_key,
    stop_requiring_key,
]
