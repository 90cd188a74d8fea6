// Shows a model's answer as Markdown while it grows. A model's words are hostile input: everything is made of elements
// that are named here and of text nodes; no HTML is parsed, no image is loaded, and a link is one only to http(s).

export class MarkdownView {
  constructor(root) {
    this.root = root;
    this.sources = [];
  }

  // Only blocks whose source has changed are made anew: while an answer grows that is the last one.
  update(text) {
    const blocks = splitBlocks(text);
    blocks.forEach((block, index) => {
      const source = JSON.stringify(block);
      if (this.sources[index] === source) return;
      this.sources[index] = source;
      const element = makeBlock(block);
      const present = this.root.children[index];
      if (present) present.replaceWith(element);
      else this.root.append(element);
    });
    this.sources.length = blocks.length;
    while (this.root.children.length > blocks.length) this.root.lastElementChild.remove();
  }
}

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([\w+#.-]*)[^`]*$/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*?)\s*#*$/;
const ITEM = /^(\s*)(?:([-*+])|(\d{1,9})[.)])\s+(.*)$/;
const RULE = /^ {0,3}([-*_])\s*(?:\1\s*){2,}$/;
const QUOTE = /^ {0,3}>\s?(.*)$/;

// The text's blocks as data: {kind, ...}.
export function splitBlocks(text) {
  const lines = text.replace(/\r\n?/g, "\n").split("\n");
  const blocks = [];
  let at = 0;
  while (at < lines.length) {
    const line = lines[at];
    const fence = FENCE.exec(line);
    if (!line.trim()) at += 1;
    else if (fence) at = takeFence(lines, at, fence, blocks);
    else if (HEADING.test(line)) {
      const [, marks, words] = HEADING.exec(line);
      blocks.push({ kind: "heading", level: marks.length, text: words });
      at += 1;
    } else if (RULE.test(line)) {
      blocks.push({ kind: "rule" });
      at += 1;
    } else if (QUOTE.test(line)) {
      const quoted = [];
      while (at < lines.length && QUOTE.test(lines[at])) quoted.push(QUOTE.exec(lines[at++])[1]);
      blocks.push({ kind: "quote", text: quoted.join("\n") });
    } else if (ITEM.test(line)) at = takeList(lines, at, blocks);
    else at = takeParagraph(lines, at, blocks);
  }
  return blocks;
}

function takeFence(lines, at, [, marks, language], blocks) {
  const end = new RegExp(`^ {0,3}${marks[0]}{${marks.length},}\\s*$`);
  const code = [];
  at += 1;
  while (at < lines.length && !end.test(lines[at])) code.push(lines[at++]);
  blocks.push({ kind: "code", language, text: code.join("\n") });
  return at + 1; // past the closing fence, or past the end of an answer that is still growing
}

function takeList(lines, at, blocks) {
  const items = [];
  const ordered = ITEM.exec(lines[at])[3] !== undefined;
  const start = Number(ITEM.exec(lines[at])[3] ?? 1);
  while (at < lines.length) {
    const item = ITEM.exec(lines[at]);
    if (item) {
      const depth = Math.min(4, Math.floor(item[1].replace(/\t/g, "    ").length / 2));
      if (depth === 0 && (item[3] !== undefined) !== ordered) break;
      items.push({ depth, ordered: item[3] !== undefined, text: item[4] });
      at += 1;
    } else if (/^\s{2,}\S/.test(lines[at])) {
      items.at(-1).text += `\n${lines[at].trim()}`;
      at += 1;
    } else if (!lines[at].trim() && ITEM.test(lines[at + 1] ?? "")) at += 1;
    else break;
  }
  blocks.push({ kind: "list", ordered, start, items });
  return at;
}

function takeParagraph(lines, at, blocks) {
  const words = [];
  do words.push(lines[at++]);
  while (at < lines.length && lines[at].trim() && ![FENCE, HEADING, RULE, QUOTE, ITEM].some((rule) => rule.test(lines[at])));
  blocks.push({ kind: "paragraph", text: words.join("\n") });
  return at;
}

function makeBlock(block) {
  switch (block.kind) {
    case "code": {
      const holder = make("div", "code");
      const pre = make("pre");
      pre.tabIndex = 0;
      const code = make("code", "", block.text);
      pre.append(code);
      const button = make("button", "button button-quiet button-icon");
      button.type = "button";
      button.dataset.copy = block.text;
      button.ariaLabel = button.title = "Copy the code";
      button.append(...icon("copy"));
      holder.append(pre, button);
      return holder;
    }
    case "heading":
      return inline(make(`h${Math.min(6, block.level + 2)}`), block.text);
    case "rule":
      return make("hr");
    case "quote":
      return inline(make("blockquote"), block.text);
    case "list":
      return makeList(block);
    default:
      return inline(make("p"), block.text);
  }
}

function makeList({ ordered, start, items }) {
  const root = make(ordered ? "ol" : "ul");
  if (ordered && start !== 1) root.start = start;
  const open = [root];
  for (const item of items) {
    while (open.length > item.depth + 1) open.pop();
    if (item.depth >= open.length && open.at(-1).lastElementChild) {
      const inner = make(item.ordered ? "ol" : "ul");
      open.at(-1).lastElementChild.append(inner);
      open.push(inner);
    }
    open.at(-1).append(inline(make("li"), item.text));
  }
  return root;
}

// Code first, since nothing inside it means anything; then links, then the weights of text.
const INLINE = /(`+)([\s\S]*?[^`])\1(?!`)|\[([^\]\n]{1,300})\]\(\s*([^()\s]{1,2000})\s*\)|(\*\*|__)(?=\S)([\s\S]*?\S)\5|(\*|_)(?=\S)([\s\S]*?[^\s*_])\7(?!\w)/g;

function inline(parent, text, depth = 0) {
  let done = 0;
  for (const match of text.matchAll(INLINE)) {
    const [whole, , code, label, url, strongMark, strong, , emphasis] = match;
    // snake_case and __dunder__ are names, not emphasis.
    if (whole[0] === "_" && /\w/.test(text[match.index - 1] ?? "")) continue;
    if (match.index < done) continue;
    plain(parent, text.slice(done, match.index));
    if (code !== undefined) parent.append(make("code", "", code.trim() || code));
    else if (label !== undefined) parent.append(link(label, url, whole));
    else if (depth > 3) parent.append(whole);
    else if (strongMark) parent.append(inline(make("strong"), strong, depth + 1));
    else parent.append(inline(make("em"), emphasis, depth + 1));
    done = match.index + whole.length;
  }
  plain(parent, text.slice(done));
  return parent;
}

function plain(parent, text) {
  text.split("\n").forEach((line, index) => {
    if (index) parent.append(make("br"));
    if (line) parent.append(line);
  });
}

function link(label, url, whole) {
  if (!/^https?:\/\//i.test(url)) return document.createTextNode(whole);
  const anchor = make("a", "", label);
  anchor.href = url;
  anchor.title = url;
  anchor.rel = "noopener noreferrer nofollow";
  anchor.target = "_blank";
  return anchor;
}

function make(tag, className = "", text = "") {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text) element.textContent = text;
  return element;
}

// An icon of the page's templates.
export function icon(name) {
  return [...document.getElementById(`icon-${name}`).content.cloneNode(true).children];
}
