// The playground: a conversation that lives in this tab, and the settings it is asked with.

import { ChatError, streamChat } from "./chat-stream.js";
import { Settings } from "./chat-settings.js";
import { Turn } from "./chat-turn.js";

const $ = (id) => document.getElementById(id);
const KEPT = "ingot-playground";

const input = $("chat-input");
const scroll = $("chat-scroll");
const settings = new Settings($("chat-settings-form"), keep);
let turns = []; // [{role, content, reasoning, calls, stats, error, stopped, left}] with their views
let running = null; // AbortController of the answer that comes
let leaving = false; // the browser was asked to go to another page

// ---- the engine ------------------------------------------------------------------------------------------------
const engine = () => $("chat-state").querySelector(".chat-state").dataset;
const ready = () => engine().state === "ready";

function showEngine() {
  $("chat-send").disabled = !ready() || !!running;
  $("chat-send").title = ready() ? "" : "The engine is not ready";
}
document.addEventListener("ingot:shown", (event) => event.detail === $("chat-state") && showEngine());

// ---- the conversation ------------------------------------------------------------------------------------------
// What was said so far. A question that got no answer is left out: many templates want the roles to take turns.
function messages() {
  const said = turns.filter((turn, index) => turn.content && turns[index + 1]?.content !== "");
  const system = settings.system ? [{ role: "system", content: settings.system }] : [];
  return [...system, ...said.map(({ role, content }) => ({ role, content }))];
}

function requestBody() {
  const model = engine().model;
  return { ...(model && { model }), messages: messages(), ...settings.sampling };
}

function add(role, content) {
  const turn = new Turn(role, content, { onEdit: edit, onAgain: again });
  turns.push(turn);
  $("chat-turns").append(turn.element);
  $("chat-empty").hidden = true;
  return turn;
}

function cutAfter(index) {
  for (const turn of turns.splice(index)) turn.element.remove();
  $("chat-empty").hidden = turns.length > 0;
}

async function send(text) {
  if (!text.trim() || running) return false;
  if (!ready()) {
    ingot.toast("The engine is not ready. Your message stays here until it is.", "warn");
    return false;
  }
  if (!settings.check()) {
    openSettings(true);
    return false;
  }
  add("user", text);
  answer();
  return true;
}

async function answer() {
  const body = requestBody();
  const turn = add("assistant", "");
  const begun = performance.now();
  let first = 0;
  let last = 0;
  let usage = null;
  running = new AbortController();
  addEventListener("beforeunload", beginLeaving);
  busy(true);
  turn.begin();
  toEnd(true);
  try {
    for await (const piece of streamChat(body, running.signal)) {
      if (piece.reasoning || piece.text || piece.call) {
        last = performance.now();
        first ||= last;
        turn.append(piece);
        toEnd();
      }
      if (piece.finish) turn.finish = piece.finish;
      if (piece.usage) usage = piece.usage;
    }
  } catch (error) {
    if (turn.left || leaving) turn.left = true;
    else if (running.signal.aborted) turn.stopped = true;
    else turn.error = error instanceof ChatError ? { message: error.message, remedy: error.remedy } : { message: String(error) };
  }
  running = null;
  removeEventListener("beforeunload", beginLeaving);
  turn.end(first ? stats(begun, first, last, usage) : null);
  busy(false);
  keep();
  toEnd();
  $("chat-said").textContent = turn.spoken;
}

function stats(begun, first, last, usage) {
  const tokens = usage?.completion_tokens;
  const seconds = (last - first) / 1000;
  return {
    first_ms: Math.round(first - begun),
    tokens,
    prompt_tokens: usage?.prompt_tokens,
    rate: tokens > 1 && seconds > 0 ? (tokens - 1) / seconds : null,
  };
}

function stop() {
  running?.abort();
}

// Some browsers end a page's requests before they hide it. What begins here may also be a download, which keeps the page.
function beginLeaving() {
  leaving = true;
  setTimeout(() => (leaving = false), 5000);
}

// The page goes away, and the answer's connection with it: what has come is kept, and says that it is not all.
function leave() {
  const turn = turns.at(-1);
  if (running && turn) {
    turn.left = true;
    stop();
  }
  keep();
}

function again(turn) {
  if (running || !ready()) return;
  cutAfter(turns.indexOf(turn));
  answer();
}

function edit(turn, text) {
  if (running || !text.trim()) return;
  cutAfter(turns.indexOf(turn));
  send(text).then((sent) => {
    if (sent) return;
    input.value = text; // what was typed is never lost
    grow();
  });
}

function busy(is) {
  $("chat-stop").hidden = !is;
  $("chat-send").hidden = is;
  $("chat-turns").setAttribute("aria-busy", is);
  showEngine();
  if (!is && document.activeElement === document.body) input.focus();
}

// ---- keeping it in this tab ------------------------------------------------------------------------------------
function keep() {
  const kept = { turns: turns.map((turn) => turn.kept), settings: settings.values, draft: input.value };
  try {
    sessionStorage.setItem(KEPT, JSON.stringify(kept));
  } catch {
    // Full, or forbidden: the conversation lives on in the page.
  }
}

function restore() {
  let kept = null;
  try {
    kept = JSON.parse(sessionStorage.getItem(KEPT));
  } catch {
    // Not ours, or damaged: begin anew.
  }
  if (!kept) return;
  settings.values = kept.settings ?? {};
  input.value = kept.draft ?? "";
  for (const turn of kept.turns ?? []) add(turn.role, turn.content).restore(turn);
}

// ---- scrolling, typing -----------------------------------------------------------------------------------------
let sticking = true;
scroll.addEventListener("scroll", () => {
  sticking = scroll.scrollTop + scroll.clientHeight > scroll.scrollHeight - 40;
}, { passive: true });

function toEnd(force = false) {
  if (force) sticking = true;
  if (sticking) requestAnimationFrame(() => (scroll.scrollTop = scroll.scrollHeight));
}

function grow() {
  input.style.height = "auto";
  input.style.height = `${Math.min(input.scrollHeight + 2, innerHeight * 0.4)}px`;
}

input.addEventListener("input", grow);
input.addEventListener("change", keep);
input.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  $("chat-form").requestSubmit();
});
addEventListener("pagehide", leave);
document.addEventListener("keydown", (event) => event.key === "Escape" && running && stop());

$("chat-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  if (!(await send(input.value))) return;
  input.value = "";
  grow();
  keep();
});
$("chat-stop").addEventListener("click", () => {
  stop();
  input.focus();
});
$("chat-clear").addEventListener("click", async () => {
  if (!turns.length || !(await ingot.confirm(`Clear this conversation? It has ${turns.length} ${turns.length === 1 ? "message" : "messages"}.`, "Clear"))) return;
  stop();
  cutAfter(0);
  keep();
  input.focus();
});
for (const button of document.querySelectorAll(".chat-suggestion")) {
  button.addEventListener("click", async () => {
    if (await send(button.textContent)) return;
    input.value = button.textContent;
    grow();
    input.focus();
  });
}

// ---- curl, settings --------------------------------------------------------------------------------------------
$("chat-curl").addEventListener("click", async () => {
  const body = requestBody();
  if (!body.messages.length) body.messages = [{ role: "user", content: input.value || "Hello" }];
  const quoted = JSON.stringify(body, null, 2).replaceAll("'", "'\\''");
  const text = [
    `curl ${engine().url}/v1/chat/completions`,
    "-H 'Content-Type: application/json'",
    '-H "Authorization: Bearer $INGOT_API_KEY"',
    `-d '${quoted}'`,
  ].join(" \\\n  ");
  const done = await navigator.clipboard?.writeText(text).then(() => true, () => false);
  if (done) ingot.toast("Copied. INGOT_API_KEY is only needed where keys have been made.");
  else ingot.toast("The browser does not allow copying here.", "bad");
});

function openSettings(open) {
  $("chat-settings").classList.toggle("chat-settings-open", open);
  $("chat-settings-toggle").setAttribute("aria-expanded", open);
}
$("chat-settings-toggle").addEventListener("click", () => {
  openSettings($("chat-settings-toggle").getAttribute("aria-expanded") !== "true");
});

restore();
grow();
showEngine();
toEnd(true);
$("chat").inert = false;
if (matchMedia("(pointer: fine)").matches) input.focus();
