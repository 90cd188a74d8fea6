// Vercel's AI SDK against the engine at INGOT_URL: its OpenAI provider by both APIs, its compatible and its Anthropic one.
import assert from "node:assert/strict";
import { describe, test } from "node:test";

import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { embedMany, generateObject, generateText, stepCountIs, Output, streamObject, streamText, tool } from "ai";
import { z } from "zod";

const url = process.env.INGOT_URL;
const name = "ingot-guide";
const apiKey = "none";
const openai = createOpenAI({ baseURL: `${url}/v1`, apiKey });
const compatible = createOpenAICompatible({
  name: "ingot", baseURL: `${url}/v1`, apiKey, includeUsage: true, supportsStructuredOutputs: true,
});
const anthropic = createAnthropic({ baseURL: `${url}/v1`, apiKey });

const models = {
  responses: openai(name),
  chat: openai.chat(name),
  compatible: compatible(name),
  anthropic: anthropic(name),
};
const prompt = "What does sealed mean?";
const getWeather = tool({
  description: "The weather of a place",
  inputSchema: z.object({ city: z.string().max(8), unit: z.enum(["C", "F"]) }),
  execute: async ({ city }) => ({ city, degrees: 24 }),
});
const getTime = tool({
  description: "The time at a place",
  inputSchema: z.object({ zone: z.enum(["UTC", "CET"]) }),
  execute: async () => "12:00",
});
const person = z.object({ name: z.string().max(8), age: z.number().int().min(1).max(99), tags: z.array(z.enum(["a", "b"])).max(2) });

for (const [api, model] of Object.entries(models)) {
  describe(api, () => {
    test("generateText", async () => {
      const answer = await generateText({ model, system: "Answer briefly.", prompt, maxOutputTokens: 20, maxRetries: 0 });
      assert.ok(answer.text.length > 0);
      assert.ok(answer.usage.inputTokens > 0 && answer.usage.outputTokens > 0);
      assert.equal(answer.finishReason, "length");
    });

    test("streamText", async () => {
      const whole = await generateText({ model, prompt, maxOutputTokens: 60, maxRetries: 0 });
      const stream = streamText({ model, prompt, maxOutputTokens: 60, maxRetries: 0, onError() {} });
      let text = "";
      for await (const part of stream.textStream) text += part;
      assert.equal(text, whole.text);
      assert.deepEqual((await stream.usage).outputTokens, whole.usage.outputTokens);
    });

    test("several tools over several steps", async () => {
      const answer = await generateText({
        model, prompt, tools: { getWeather, getTime }, toolChoice: "required", stopWhen: stepCountIs(2), maxRetries: 0,
        maxOutputTokens: 200,
      });
      assert.equal(answer.steps.length, 2);
      for (const step of answer.steps) {
        assert.ok(step.toolCalls.length >= 1);
        assert.equal(step.finishReason, "tool-calls");
        assert.equal(step.toolResults.length, step.toolCalls.length);
      }
    });

    test("a named tool, streamed, then its result", async () => {
      let steps = 0;
      const stream = streamText({
        model, prompt, tools: { getWeather, getTime }, maxRetries: 0, maxOutputTokens: 100, stopWhen: stepCountIs(2), onError() {},
        prepareStep: () => ({ toolChoice: steps++ ? "none" : { type: "tool", toolName: "getWeather" } }),
      });
      const kinds = [];
      for await (const part of stream.fullStream) kinds.push(part.type);
      assert.ok(!kinds.includes("error"), kinds.join());
      assert.ok(kinds.includes("tool-input-start") && kinds.includes("tool-call") && kinds.includes("tool-result"));
      const all = await stream.steps;
      assert.equal(all[0].toolCalls[0].toolName, "getWeather");
      assert.ok(all.at(-1).text.length > 0);
    });

    test("generateObject", async () => {
      const { object } = await generateObject({ model, schema: person, prompt, maxOutputTokens: 200, maxRetries: 0 });
      person.parse(object);
    });

    test("streamObject", async () => {
      const stream = streamObject({ model, schema: person, prompt, maxOutputTokens: 200, maxRetries: 0, onError() {} });
      for await (const _ of stream.partialObjectStream);
      person.parse(await stream.object);
    });

    test("an enum, an array, and an object beside tools", async () => {
      const chosen = await generateObject({ model, output: "enum", enum: ["sunny", "rainy"], prompt, maxRetries: 0 });
      assert.ok(["sunny", "rainy"].includes(chosen.object));
      const { output } = await generateText({ model, prompt, tools: { getTime }, toolChoice: "none", maxRetries: 0, maxOutputTokens: 200, output: Output.object({ schema: person }) });
      person.parse(output);
    });

    test("a wrong model and an image are errors", async () => {
      const other = { responses: openai("other"), chat: openai.chat("other"), compatible: compatible("other"), anthropic: anthropic("other") }[api];
      await assert.rejects(generateText({ model: other, prompt, maxRetries: 0 }), (error) => error.statusCode === 404);
      const image = Buffer.from("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==", "base64");
      const messages = [{ role: "user", content: [{ type: "text", text: "What is this?" }, { type: "image", image }] }];
      await assert.rejects(generateText({ model, messages, maxRetries: 0 }), (error) => error.statusCode === 400);
    });

    test("a stop sequence and an abort", async () => {
      if (api !== "responses") {
        const answer = await generateText({ model, prompt, stopSequences: [" "], maxRetries: 0 });
        assert.ok(!answer.text.includes(" "));
        assert.equal(answer.finishReason, "stop");
      }
      const gone = new AbortController();
      const stream = streamText({ model, prompt, maxRetries: 0, abortSignal: gone.signal, onError() {} });
      for await (const part of stream.fullStream) if (part.type === "text-delta") gone.abort();
      assert.ok(gone.signal.aborted);
    });
  });
}

test("embedMany", async () => {
  const value = ["What is a cast?", "What is a bundle?"];
  for (const model of [openai.embedding(name), compatible.embeddingModel(name)]) {
    const { embeddings, usage } = await embedMany({ model, values: value, maxRetries: 0 });
    assert.equal(embeddings.length, 2);
    assert.ok(usage.tokens > 0);
  }
});
