// What an answer holds beside its words: the reasoning before them, and tool calls. A model's words are text nodes here.

// Open while the model reasons; folded once, when the answer begins. After that it is the reader's to open.
export class Reasoning {
  constructor() {
    this.words = document.createTextNode("");
    this.element = make("details", "chat-reasoning");
    const text = make("div", "chat-reasoning-text");
    text.append(this.words);
    this.element.append(make("summary", "", "Reasoning"), text);
    this.element.open = true;
    this.element.hidden = true;
  }

  get text() {
    return this.words.data;
  }

  append(text) {
    this.element.hidden = false;
    this.words.appendData(text);
  }

  fold() {
    if (this.folded) return;
    this.folded = true;
    this.element.open = false;
  }
}

// The calls as they grow: a name, then arguments in pieces.
export class ToolCalls {
  constructor() {
    this.calls = [];
    this.element = make("div", "chat-calls");
    this.element.hidden = true;
  }

  add({ index, name, args }) {
    this.calls[index] ??= this.#begin();
    const call = this.calls[index];
    call.name.append(name);
    call.args.append(args);
  }

  get kept() {
    return Object.entries(this.calls).map(([index, { name, args }]) => ({ index, name: name.textContent, args: args.textContent }));
  }

  #begin() {
    this.element.hidden = false;
    const title = make("p", "", "Tool call ");
    const name = make("code");
    title.append(name);
    const holder = make("div", "code");
    const pre = make("pre");
    pre.tabIndex = 0;
    const args = make("code");
    pre.append(args);
    holder.append(pre);
    this.element.append(title, holder);
    return { name, args };
  }
}

function make(tag, className = "", text = "") {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text) element.textContent = text;
  return element;
}
