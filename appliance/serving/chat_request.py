"""A chat request, whichever API it came by: its fields, and what they come down to."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, NamedTuple

from msgspec import Meta

from appliance.serving.answering import Ask
from appliance.serving.asked import Asked, contradiction, only
from appliance.serving.errors import bad_request
from appliance.serving.fields import Ignored
from appliance.serving.messages import Messages, check_messages, with_short_ids
from appliance.serving.sampling import Alternatives, SamplingFields, check_logprobs, check_sampling
from appliance.serving.served_model import ServedModel, is_short_chat
from appliance.serving.structured import Form, enforced_form, strict_form, wanted_form
from appliance.serving.thinking import (
    BUDGETS,
    BudgetTokens,
    ReasoningOptions,
    asked_budget,
    asked_switch,
    check_effort,
    thinking_budget,
    thinking_variables,
    unread_variables,
)
from appliance.serving.tools import ToolUse, check_tools


class ChatFields(SamplingFields, frozen=True, kw_only=True):
    messages: Messages
    max_completion_tokens: Annotated[int, Meta(ge=1, le=1 << 31)] | None = None
    logprobs: bool | None = None
    top_logprobs: Alternatives | None = None
    tools: Any = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None
    enable_thinking: bool | None = None
    reasoning: ReasoningOptions | None = None
    thinking_token_budget: BudgetTokens | None = None
    thinking_budget: BudgetTokens | None = None
    thinking_budget_tokens: BudgetTokens | None = None
    include_reasoning: bool | None = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    @property
    def asked_max_tokens(self) -> Asked[int] | None:
        return only({"max_tokens": self.max_tokens, "max_completion_tokens": self.max_completion_tokens})

    @property
    def shows_reasoning(self) -> bool:
        excluded = self.reasoning is not None and self.reasoning.exclude
        return not excluded if self.include_reasoning is None else self.include_reasoning

    @property
    def asked_budget(self) -> Asked[int] | None:
        """Raises ApiError for budgets that differ."""
        given = {name: getattr(self, name) for name in BUDGETS}
        if self.reasoning is not None:
            given["reasoning.max_tokens"] = self.reasoning.max_tokens
        return asked_budget(given)


class CheckedChat(NamedTuple):
    """What a request comes down to before a model is asked. `form` is that of the whole answer, if it has one."""

    use: ToolUse
    form: Form | None
    max_tokens: int | None
    budget: Asked[int] | None
    effort: Asked[str] | None
    enabled: Asked[bool] | None


class ChatPrompt(NamedTuple):
    text: str
    token_ids: list[int]
    checked: CheckedChat


def check_chat(fields: ChatFields, ignored: Ignored) -> CheckedChat:
    """All that no model need be asked for, but the messages: which roles and fields they may have, a model may say.
    Raises ApiError that names the field."""
    check_sampling(fields)
    _check_logprobs(fields)
    _check_shown(fields)
    given = fields.chat_template_kwargs or {}
    for name in ("messages", "tools"):
        if name in given:
            raise bad_request(f"chat_template_kwargs.{name} is reserved. Remove it.", f"chat_template_kwargs.{name}")
    reasoning = fields.reasoning or ReasoningOptions()
    efforts = {"reasoning_effort": fields.reasoning_effort, "reasoning.effort": reasoning.effort}
    for param, effort in efforts.items():
        check_effort(effort, param)
    templates = given.get("reasoning_effort")
    only({**efforts, "chat_template_kwargs.reasoning_effort": templates if isinstance(templates, str) else None})
    switches = {"enable_thinking": fields.enable_thinking, "reasoning.enabled": reasoning.enabled}
    use = check_tools(fields.tools, fields.tool_choice, fields.parallel_tool_calls, ignored)
    asked = fields.asked_max_tokens
    return CheckedChat(
        use=use,
        form=enforced_form(use, wanted_form(fields)),
        max_tokens=asked.value if asked is not None else None,
        budget=fields.asked_budget,
        effort=only(efforts),
        enabled=asked_switch(switches, given),
    )


async def chat_ask(fields: ChatFields, model: ServedModel, ignored: Ignored, *, shorten: bool = False) -> Ask:
    """Raises ApiError that names the field. What the model's template cannot use is noted in `ignored`. `shorten`: if
    the context has no room for as many tokens as are asked for, the answer gets fewer."""
    text, prompt, checked = await chat_prompt(fields, model, ignored)
    form, budget, asked = checked.form, checked.budget, checked.max_tokens
    thoughts = model.formats.thoughts(text)
    if form is None and (form := strict_form(checked.use, model.formats, model.special_tokens, text)) is not None:
        thoughts = []  # which are in it
    room = model.room(len(prompt), None if shorten else asked, "messages")
    wanted = asked or model.sampling_defaults.get("max_tokens", room)
    return Ask(
        prompts=[prompt],
        fields=fields,
        max_tokens=[min(int(wanted), room)],
        logprobs=(fields.top_logprobs or 0) if fields.logprobs else None,
        grammar=await model.grammar(form, thoughts) if form else None,
        form_param=form.param if form else None,
        thinking=thinking_budget(budget, model.formats.reasoning, text, model.tokenizer) if budget else None,
        reading=model.formats.reading(text, checked.use),
    )


async def chat_prompt(fields: ChatFields, model: ServedModel, ignored: Ignored) -> ChatPrompt:
    """What the model is given, however long that is. Raises ApiError as `chat_ask`."""

    def render() -> tuple[CheckedChat, str]:
        checked = check_chat(fields, ignored)
        return checked, _render(fields, model, checked, ignored)

    given = (fields.tools, fields.tool_choice, fields.chat_template_kwargs)
    checked, text = render() if is_short_chat(fields.messages, given) else await asyncio.to_thread(render)
    # The template writes the special tokens itself.
    token_ids = await model.encode(text, "messages", add_special_tokens=False)
    if not token_ids:
        raise bad_request("The model's chat template produces an empty prompt for these messages.", "messages")
    return ChatPrompt(text, token_ids, checked)


def _render(fields: ChatFields, model: ServedModel, checked: CheckedChat, ignored: Ignored) -> str:
    """The prompt's text."""
    template, use = model.template, checked.use
    messages = check_messages(fields.messages, ignored, template.message_fields)
    if use.tools and "tools" not in template.variables:
        ignored.add_unused("tools")
    if template.wants_short_ids:
        messages = with_short_ids(messages)
    given = fields.chat_template_kwargs or {}
    for name in unread_variables(given, template):
        ignored.add_unused(f"chat_template_kwargs.{name}")
    variables = thinking_variables(checked.effort, checked.enabled, given, template, ignored)
    variables.setdefault("add_generation_prompt", fields.add_generation_prompt is not False)
    return model.render_chat(messages, {**variables, "tools": use.for_template(as_sent=template.keeps_tools)})


def _check_logprobs(fields: ChatFields) -> None:
    check_logprobs(fields.top_logprobs, "top_logprobs")
    if fields.top_logprobs and not fields.logprobs:
        raise bad_request("top_logprobs needs logprobs; set logprobs to true.", "top_logprobs")


def _check_shown(fields: ChatFields) -> None:
    """Raises ApiError where the reasoning is to be both in the answer and left out of it."""
    excluded = fields.reasoning.exclude if fields.reasoning is not None else None
    if excluded is not None and excluded == fields.include_reasoning:
        raise contradiction(Asked("include_reasoning", excluded), Asked("reasoning.exclude", excluded))
