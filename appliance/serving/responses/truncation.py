"""`truncation: auto`: a conversation that exceeds the context loses its oldest turns."""

from __future__ import annotations

import msgspec

from appliance.serving.answering import Ask
from appliance.serving.chat_request import ChatFields, chat_ask
from appliance.serving.errors import ApiError
from appliance.serving.fields import Ignored
from appliance.serving.served_model import ServedModel


async def ask_that_fits(fields: ChatFields, model: ServedModel, ignored: Ignored) -> Ask:
    """As `chat_ask`, leaving out no more turns than necessary. A turn begins with a message of the user; the last one
    stays, and so does what the system says before the first."""
    messages = fields.messages
    turns = [index for index, message in enumerate(messages) if message["role"] == "user"]
    head = [message for message in messages[: turns[0] if turns else 0] if message["role"] == "system"]
    fewest, most = 0, max(len(turns) - 1, 0)
    fitting: Ask | None = None
    dropped = 0
    while fitting is None or fewest < most:
        shortened = (
            fields if dropped == 0 else msgspec.structs.replace(fields, messages=head + messages[turns[dropped] :])
        )
        try:
            fitting, most = await chat_ask(shortened, model, ignored), dropped
        except ApiError as error:
            if error.code != "context_length_exceeded" or dropped == most:
                raise
            fewest = dropped + 1
        dropped = (fewest + most) // 2
    return fitting
