"""Set-up, sign-in and sign-out; the Access page is in `account`."""

from __future__ import annotations

from typing import Any

import msgspec
from litestar import Response, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromQuery, URLEncodedBody
from litestar.response import Redirect
from sqlalchemy import delete, func, select

from appliance.address import network_of
from console.access import account, known_addresses, passwords, sessions, setup
from console.access.next_page import local_path
from console.access.throttle import FAILURES, FAILURES_OF_ACCOUNT, FAILURES_OF_KNOWN_ADDRESS
from console.db.models import SignIn, User
from console.error_answers import wants_page
from console.pages import go_to, page
from console.parts import Config, PageRequest, Session, TheNewKeys, TheThrottle
from console.refusals import Refusal


class SetUpForm(msgspec.Struct, rename="kebab"):
    code: str = ""
    name: str = ""
    password: str = ""


class SignInForm(msgspec.Struct, rename="kebab"):
    name: str = ""
    password: str = ""
    next: str = "/"


@get("/setup", public=True)
async def setup_page(request: PageRequest, session: Session, code: FromQuery[str] = "") -> Response[Any]:
    if await _somebody(session):
        return Redirect("/sign-in", status_code=303)
    return page(request, "access/setup.html", title="Set up Ingot", code=code, name="admin", problem="")


@post("/setup", public=True)
async def set_up(
    request: PageRequest,
    session: Session,
    config: Config,
    throttle: TheThrottle,
    data: URLEncodedBody[SetUpForm],
) -> Response[Any]:
    if await _somebody(session):
        return Redirect("/sign-in", status_code=303)
    key = f"setup {network_of(_address(request))}"
    throttle.attempt({key: FAILURES})
    name = data.name.strip()
    problems: dict[str, str] = {}
    if await setup.is_code(session, data.code.strip()):
        throttle.succeeded(key)
    else:
        problems["code"] = (
            "This is not the current set-up code. Copy the whole set-up link that the console printed last."
        )
    if complaint := setup.name_complaint(name):
        problems["name"] = complaint
    if complaint := passwords.complaint(data.password):
        problems["password"] = complaint
    if problems:
        field, problem = next(iter(problems.items()))
        if not wants_page(request):
            raise Refusal(422, problem, field=field)
        return page(
            request,
            "access/setup.html",
            title="Set up Ingot",
            code=data.code,
            name=name,
            problem=problem,
            status_code=422,
        )
    user = await setup.make_administrator(session, name, data.password, code=data.code.strip())
    return await _sign_in(request, session, config, user, "/")


@get("/sign-in", public=True)
async def sign_in_page(request: PageRequest, session: Session, next: FromQuery[str] = "/") -> Response[Any]:
    if request.user is not None:
        return Redirect(local_path(next), status_code=303)
    if not await _somebody(session):
        return Redirect("/setup", status_code=303)
    return page(request, "access/sign-in.html", title="Sign in", next=local_path(next), name="", problem="")


@post("/sign-in", public=True)
async def sign_in(
    request: PageRequest,
    session: Session,
    config: Config,
    throttle: TheThrottle,
    data: URLEncodedBody[SignInForm],
) -> Response[Any]:
    name = data.name.strip()
    address = _address(request)
    # Read in a transaction of its own: none is kept open, with a connection, for as long as a hash takes.
    async with request.app.state.console.database.session() as reading:
        user = await reading.scalar(select(User).where(User.name == name))
        known = user is not None and await known_addresses.is_known(reading, user.id, address)
    limits = _limits(name, address, known=known)
    throttle.attempt(limits)
    if not await passwords.is_password(user.password_hash if user else None, data.password):
        problem = "The name or the password is wrong."
        if not wants_page(request):
            raise Refusal(422, problem, field="password")
        return page(
            request,
            "access/sign-in.html",
            title="Sign in",
            next=local_path(data.next),
            name=name,
            problem=problem,
            status_code=422,
        )
    assert user is not None
    throttle.succeeded(*limits)
    return await _sign_in(request, session, config, user, local_path(data.next))


@post("/sign-out")
async def sign_out(request: PageRequest, session: Session, new_keys: TheNewKeys) -> Response[Any]:
    await session.execute(delete(SignIn).where(SignIn.id == request.user.session_id))
    return account.signed_out(request, new_keys)


def _limits(name: str, address: str, *, known: bool) -> dict[str, int]:
    """What a try to sign in is counted for, and how many failures each is allowed."""
    network, account_name = network_of(address), name.lower()
    if known:
        return {f"account {account_name} from {network}": FAILURES_OF_KNOWN_ADDRESS}
    return {f"address {network}": FAILURES, f"account {account_name}": FAILURES_OF_ACCOUNT}


async def _sign_in(request: PageRequest, session: Session, config: Config, user: User, url: str) -> Response[Any]:
    cookie = await sessions.open_session(
        session, user, request, hours=config.session_hours, secure=config.cookie_secure
    )
    answer = go_to(request, url)
    answer.set_cookie(cookie)
    return answer


async def _somebody(session: Session) -> bool:
    return bool(await session.scalar(select(func.count()).select_from(User)))


def _address(request: PageRequest) -> str:
    return request.client.host if request.client else "unknown"


route_handlers: list[HTTPRouteHandler] = [
    setup_page,
    set_up,
    sign_in_page,
    sign_in,
    sign_out,
    *account.route_handlers,
]
