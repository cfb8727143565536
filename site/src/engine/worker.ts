/**
 * The worker that runs Python. It answers one request at a time, step by step, and looks for messages between two steps,
 * so that a newer request or "stop" ends an older one.
 */
import bridge from "./bridge.py?raw";
import { startPlain, type Engine, type Steps } from "./boot.ts";
import { products } from "./products.ts";
import type { FromWorker, ToWorker } from "./messages.ts";

const post = (message: FromWorker): void => self.postMessage(message);
/** The page's own folder; the worker's script lies in `assets/` below it. */
const BASE = new URL("../", self.location.href).href;
const address = (path: string): string => new URL(path, BASE).href;

/** Bytes of all engine files that have come, and of those that have been asked for. */
const progress = { loadedBytes: 0, totalBytes: 0 };

/** A file of the engine as a stream, unpacked where the host has not done that. */
async function fetched(path: string): Promise<Response> {
  const response = await nativeFetch(address(path), { credentials: "omit", cache: "force-cache" });
  if (!response.ok || !response.body) throw new Error(`${path}: the server answers ${response.status}`);
  progress.totalBytes += Number(response.headers.get("content-length") ?? 0);
  const [first, rest] = await peek(response.body.pipeThrough(counter()));
  const packed = first[0] === 0x1f && first[1] === 0x8b;
  const stream = packed ? rest.pipeThrough(new DecompressionStream("gzip") as ReadableWritablePair<Uint8Array, Uint8Array>) : rest;
  const type = path.includes(".wasm") ? "application/wasm" : "application/octet-stream";
  return new Response(stream as ReadableStream<Uint8Array<ArrayBuffer>>, { headers: { "content-type": type } });
}

/** Counts what passes and says so, at most twenty times a second. */
function counter(): TransformStream<Uint8Array, Uint8Array> {
  return new TransformStream({
    transform(chunk, controller) {
      progress.loadedBytes += chunk.byteLength;
      const now = performance.now();
      if (now - said > 50) {
        said = now;
        post({ kind: "progress", ...progress });
      }
      controller.enqueue(chunk);
    },
  });
}
let said = 0;

/** The first chunk of a stream, and a stream that begins with it. */
async function peek(stream: ReadableStream<Uint8Array>): Promise<[Uint8Array, ReadableStream<Uint8Array>]> {
  const reader = stream.getReader();
  const { value } = await reader.read();
  const first = value ?? new Uint8Array();
  const rest = new ReadableStream<Uint8Array>({
    start(controller) {
      if (first.byteLength > 0) controller.enqueue(first);
    },
    async pull(controller) {
      const next = await reader.read();
      if (next.done) controller.close();
      else controller.enqueue(next.value);
    },
  });
  return [first, rest];
}

/** Pyodide's own requests by the name it asks for; any other address is refused. */
const nativeFetch = self.fetch.bind(self);
const provided: Record<string, () => Promise<Response>> = {
  "pyodide.asm.wasm": () => fetched(products.runtime),
  "python_stdlib.zip": () => fetched(products.library),
};
self.fetch = (input) => {
  const name = String(input instanceof Request ? input.url : input).split("/").at(-1) ?? "";
  const known = provided[name];
  return known ? known() : Promise.reject(new TypeError(`nothing but the engine's own files is loaded: ${name}`));
};

async function start(): Promise<Engine> {
  const bytes = async (path: string) => new Uint8Array(await (await fetched(path)).arrayBuffer());
  const { loadPyodide } = (await import(/* @vite-ignore */ address(products.loader))) as typeof import("pyodide");
  const glue = (await import(/* @vite-ignore */ address(products.glue))) as { default: never };
  const indexURL = address("engine/");
  return startPlain(
    {
      loadPyodide: (options) => loadPyodide({ ...options, createPyodideModule: glue.default }),
      indexURL,
      packages: products.packages,
      stdLibURL: `${indexURL}python_stdlib.zip`,
      engine: () => bytes(products.engine),
    },
    bridge,
  );
}

/** Give the event loop one turn, so that waiting messages are read. A channel is not slowed down as timers are. */
const turns = new MessageChannel();
let resume: (() => void) | null = null;
turns.port1.onmessage = () => resume?.();
const turn = (): Promise<void> =>
  new Promise((resolve) => {
    resume = resolve;
    turns.port2.postMessage(null);
  });

let engine: Engine | null = null;
let running: { id: number; steps: Steps } | null = null;

async function answer(id: number, request: string): Promise<void> {
  if (!engine) return;
  running?.steps.close();
  const own = { id, steps: engine.begin(request) };
  running = own;
  let failed: string | null = null;
  for (;;) {
    let step: string | null;
    try {
      step = own.steps.next();
    } catch (error) {
      failed = String(error);
      break;
    }
    if (step === null) break;
    post({ kind: "step", id, step });
    await turn();
    if (running !== own) break;
  }
  own.steps.close();
  if (running === own) running = null;
  post({ kind: "done", id, failed, heapBytes: engine.heapBytes() });
}

self.onmessage = ({ data }: MessageEvent<ToWorker>) => {
  if (data.kind === "stop") {
    if (running?.id === data.id) running = null;
  } else void answer(data.id, data.request);
};

start().then(
  (started) => {
    engine = started;
    post({ kind: "ready", heapBytes: started.heapBytes(), snapshot: false });
  },
  (error: unknown) => post({ kind: "failed", message: String(error) }),
);
