/** The page's way to the server of `memcheck ui`. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { lines, Native, tokenOf } from "../../src/engine/native.ts";
import type { FromWorker } from "../../src/engine/messages.ts";

const TOKEN = "0123456789abcdef0123456789abcdef";

function stream(...chunks: string[]): ReadableStream<Uint8Array> {
  const encoder = new TextEncoder();
  return new ReadableStream({
    start(controller) {
      for (const chunk of chunks) controller.enqueue(encoder.encode(chunk));
      controller.close();
    },
  });
}

test("only the address of memcheck ui has a token", () => {
  assert.equal(tokenOf(`#t=${TOKEN}`), TOKEN);
  for (const hash of ["", "#p=1.abc", "#t=", `#t=${TOKEN}0`, `#t=${TOKEN.toUpperCase()}`]) assert.equal(tokenOf(hash), null);
});

test("lines come as soon as they are whole, across chunks and within a letter", async () => {
  const euro = new TextEncoder().encode("€\n");
  const cut = new ReadableStream<Uint8Array>({
    start(controller) {
      controller.enqueue(euro.slice(0, 2));
      controller.enqueue(euro.slice(2));
      controller.close();
    },
  });
  const found: string[] = [];
  for await (const line of lines(stream('{"a":', "1}\n{}", "\n"))) found.push(line);
  for await (const line of lines(cut)) found.push(line);
  assert.deepEqual(found, ['{"a":1}', "{}", "€"]);
});

test("a request carries the token and its lane, and its steps arrive as a worker's", async () => {
  const sent: { address: string; init: RequestInit }[] = [];
  const native = new Native(TOKEN, (address, init) => {
    sent.push({ address: String(address), init: init ?? {} });
    return Promise.resolve(new Response(stream('{"id":7,"step":"first"}\n{"id":7,"step":"done"}\n')));
  });
  const port = native.port("searches");
  const heard: FromWorker[] = [];
  await new Promise<void>((resolve) => {
    port.onmessage = ({ data }) => {
      heard.push(data);
      if (data.kind === "ready") port.postMessage({ kind: "ask", id: 7, request: '{"id":7,"do":"answer"}' });
      if (data.kind === "done") resolve();
    };
  });
  assert.deepEqual(heard.map((each) => each.kind), ["ready", "step", "step", "done"]);
  const [{ address, init }] = sent as [{ address: string; init: RequestInit }];
  assert.equal(address, "ui/ask");
  assert.equal((init.headers as Record<string, string>)["X-Memcheck-Token"], TOKEN);
  assert.deepEqual(JSON.parse(String(init.body)), { lane: "searches", request: { id: 7, do: "answer" } });
});

test("a stopped request is aborted without an error, a server that is gone is one", async () => {
  const ends: (string | null)[] = [];
  for (const [stop, failure] of [[true, null], [false, /does not answer/]] as const) {
    const native = new Native(TOKEN, (_, init) =>
      stop
        ? new Promise((_resolve, reject) => init?.signal?.addEventListener("abort", () => reject(new Error("aborted"))))
        : Promise.reject(new TypeError("failed to fetch")),
    );
    const port = native.port("answers");
    await new Promise<void>((resolve) => {
      port.onmessage = ({ data }) => {
        if (data.kind === "ready") port.postMessage({ kind: "ask", id: 1, request: "{}" });
        if (data.kind === "ready" && stop) setTimeout(() => port.postMessage({ kind: "stop", id: 1 }), 1);
        if (data.kind === "done") {
          ends.push(data.failed);
          resolve();
        }
      };
    });
    const told = ends.at(-1) ?? null;
    if (failure === null) assert.equal(told, null);
    else assert.match(String(told), failure);
  }
});
