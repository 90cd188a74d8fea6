// One message of the conversation as it is shown: a question that can be edited, or an answer that grows.

import { Reasoning, ToolCalls } from "./chat-parts.js";
import { icon, MarkdownView } from "./markdown.js";

export class Turn {
  constructor(role, content, { onEdit, onAgain }) {
    this.role = role;
    this.content = content;
    this.stats = null;
    this.error = null;
    this.stopped = false;
    this.left = false; // the page was left before the answer was whole
    this.finish = null;
    this.onEdit = onEdit;
    this.onAgain = onAgain;
    this.element = make("li", `chat-turn chat-${role}`);
    this.element.append(make("span", "sr-only", role === "user" ? "You:" : "Model:"));
    this.body = make("div", role === "user" ? "chat-question" : "chat-answer prose");
    this.reasoning = new Reasoning();
    this.calls = new ToolCalls();
    this.foot = make("div", "chat-foot");
    this.element.append(this.reasoning.element, this.body, this.calls.element, this.foot);
    if (role === "user") this.#question();
    else this.markdown = new MarkdownView(this.body);
  }

  // ---- questions -----------------------------------------------------------------------------------------------
  #question() {
    this.body.replaceChildren(this.content);
    this.foot.replaceChildren(button("pencil", "Edit", () => this.#edit()));
  }

  #edit() {
    const area = make("textarea", "input");
    area.value = this.content;
    area.rows = Math.min(12, this.content.split("\n").length + 1);
    area.ariaLabel = "Edit the message";
    const done = () => {
      this.#question();
      this.foot.querySelector("button").focus();
    };
    const send = () => this.onEdit(this, area.value);
    area.addEventListener("keydown", (event) => {
      if (event.key === "Escape") {
        event.stopPropagation();
        done();
      } else if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        send();
      }
    });
    this.body.replaceChildren(area);
    this.foot.replaceChildren(button("check", "Ask this instead", send, true), button("x", "Cancel", done, true));
    area.focus();
  }

  // ---- answers -------------------------------------------------------------------------------------------------
  begin() {
    this.element.classList.add("chat-running");
    this.foot.replaceChildren(make("span", "chat-thinking", "Waiting for the first token"));
  }

  // A piece of the answer: {reasoning}, {text} or {call}.
  append({ reasoning, text, call }) {
    this.foot.replaceChildren();
    if (reasoning) this.reasoning.append(reasoning);
    else this.reasoning.fold();
    if (call) this.calls.add(call);
    if (text) this.#appendText(text);
  }

  #appendText(text) {
    this.content += text;
    this.drawing ||= requestAnimationFrame(() => {
      this.drawing = 0;
      this.markdown.update(this.content);
    });
  }

  // Whether anything of the answer has come.
  get began() {
    return !!(this.content || this.reasoning.text || this.calls.kept.length);
  }

  end(stats) {
    this.stats = stats;
    this.element.classList.remove("chat-running");
    cancelAnimationFrame(this.drawing);
    this.drawing = 0;
    this.markdown.update(this.content);
    this.#answerFoot();
  }

  #answerFoot() {
    this.foot.replaceChildren();
    if (this.error) this.foot.append(this.#problem());
    if (this.left) this.foot.append(this.#leftNote());
    const words = this.#figures();
    const row = make("div", "chat-row");
    if (this.content) row.append(button("copy", "Copy the answer", null, false, this.content));
    row.append(button("rotate-cw", "Ask again", () => this.onAgain(this), this.left));
    if (words.length) row.append(make("span", "chat-figures", words.join(" · ")));
    this.foot.append(row);
  }

  #problem() {
    const box = make("div", "callout callout-bad");
    const text = make("div");
    text.append(make("strong", "", this.error.message));
    if (this.error.remedy) text.append(make("p", "", this.error.remedy));
    box.append(text);
    return box;
  }

  #leftNote() {
    const words = this.began ? "The answer was cut off when you left the page." : "You left the page before the answer began.";
    const note = make("p", "small dim", words);
    note.dataset.left = "";
    return note;
  }

  #figures() {
    const words = [];
    if (this.stopped) words.push("stopped");
    if (this.finish === "length") words.push("ended at the token limit");
    if (!this.stats) return words;
    const { rate, first_ms, tokens, prompt_tokens } = this.stats;
    if (rate) words.push(`${rate.toLocaleString("en", { maximumFractionDigits: rate < 10 ? 1 : 0 })} tok/s`);
    words.push(`first token ${first_ms < 1000 ? `${first_ms} ms` : `${(first_ms / 1000).toFixed(1)} s`}`);
    if (tokens) words.push(`${tokens.toLocaleString("en")} ${tokens === 1 ? "token" : "tokens"} of answer, ${prompt_tokens.toLocaleString("en")} of prompt`);
    return words;
  }

  // What a screen reader says when the answer has ended.
  get spoken() {
    if (this.error) return `${this.error.message} ${this.error.remedy ?? ""}`;
    return `${this.stopped ? "Stopped. " : ""}The model says: ${this.body.textContent}${this.calls.element.textContent}`;
  }

  // ---- over a reload -------------------------------------------------------------------------------------------
  get kept() {
    const { role, content, stats, error, stopped, left, finish } = this;
    return { role, content, reasoning: this.reasoning.text, calls: this.calls.kept, stats, error, stopped, left, finish };
  }

  restore({ reasoning, calls, stats, error, stopped, left, finish }) {
    if (reasoning) this.reasoning.append(reasoning);
    for (const call of calls ?? []) this.calls.add(call);
    if (this.content || calls?.length) this.reasoning.fold();
    Object.assign(this, { error: error ?? null, stopped: !!stopped, left: !!left, finish: finish ?? null });
    if (this.role === "assistant") this.end(stats ?? null);
  }
}

function button(iconName, label, onClick, worded = false, copies = null) {
  const node = make("button", `button button-quiet button-small${worded ? "" : " button-icon"}`);
  node.type = "button";
  node.append(...icon(iconName));
  if (worded) node.append(label);
  else node.ariaLabel = node.title = label;
  if (copies !== null) node.dataset.copy = copies;
  if (onClick) node.addEventListener("click", onClick);
  return node;
}

function make(tag, className = "", text = "") {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text) element.textContent = text;
  return element;
}
