// One question to the model: the request, its streamed answer in pieces, and errors in words.

export class ChatError extends Error {
  constructor(message, remedy = "") {
    super(message);
    this.remedy = remedy;
  }
}

const REMEDIES = {
  engine_not_ready: "Your message is kept. Send it again when the engine is ready.",
  engine_unreachable: "Start the engine with the button at the top, then send the message again.",
  engine_failed: "The dashboard says why it ended and how to fix it.",
  context_length_exceeded: "Clear the conversation, request fewer tokens, or edit an earlier message and continue from there.",
};

// Yields {reasoning}, {text}, {call}, {finish} and {usage} as they come. `signal` ends the request: the engine's slot is free at once.
export async function* streamChat(body, signal) {
  let response;
  try {
    response = await fetch("/playground/chat", {
      method: "POST",
      headers: { "Content-Type": "application/json", Accept: "text/event-stream, application/json" },
      body: JSON.stringify({ ...body, stream: true, stream_options: { include_usage: true } }),
      signal,
    });
  } catch (error) {
    if (signal.aborted) throw error;
    throw new ChatError("The console cannot be reached.", "Your message is kept. Send it again when the console is back.");
  }
  if (!response.ok) throw await refusal(response);
  let ended = false;
  for await (const data of events(response.body, signal)) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw inWords(chunk.error);
    const choice = chunk.choices?.[0];
    yield* pieces(choice?.delta ?? {});
    if (choice?.finish_reason) {
      ended = true;
      yield { finish: choice.finish_reason };
    }
    if (chunk.usage) yield { usage: chunk.usage };
  }
  if (!ended) throw cutOff("engine");
}

// vLLM calls the reasoning `reasoning`, others `reasoning_content`, and Ingot sends both.
function* pieces(delta) {
  const reasoning = delta.reasoning_content ?? delta.reasoning;
  if (reasoning) yield { reasoning };
  if (delta.content) yield { text: delta.content };
  for (const { index, function: called } of delta.tool_calls ?? []) {
    yield { call: { index, name: called?.name ?? "", args: called?.arguments ?? "" } };
  }
}

function cutOff(end) {
  return new ChatError(`The answer was cut off: the connection to the ${end} was lost.`, "Ask again.");
}

// The data of each event of a stream; pieces may be cut anywhere, also inside a character.
async function* events(stream, signal) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read().catch((error) => {
        throw signal.aborted ? error : cutOff("console");
      });
      if (done) return;
      const parts = (rest + value).split(/\r?\n\r?\n/);
      rest = parts.pop();
      for (const part of parts) {
        const data = part.split(/\r?\n/).filter((line) => line.startsWith("data:")).map((line) => line.slice(5).trimStart());
        if (data.length) yield data.join("\n");
      }
    }
  } finally {
    reader.cancel().catch(() => {}); // it may be at its end already
  }
}

async function refusal(response) {
  const text = await response.text();
  try {
    const body = JSON.parse(text);
    if (body.error) return inWords(body.error);
    if (body.message) return new ChatError(body.message, body.remedy);
  } catch {
    // not JSON: said below
  }
  return new ChatError(`The console answered with status ${response.status}.`, response.status === 401 ? "Sign in again." : "Try again.");
}

function inWords(error) {
  const where = error.param && !error.message.includes(error.param) ? ` (${error.param})` : "";
  const remedy = REMEDIES[error.code] ?? (error.param ? "Correct the setting and send the message again." : "Try again.");
  return new ChatError(`${error.message}${where}`, remedy);
}
