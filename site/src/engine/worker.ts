/**
 * The worker that runs Python. It answers one request at a time, step by step, and looks for messages between two steps,
 * so that a newer request or "stop" ends an older one.
 */
import bridge from "./bridge.py?raw";
import { isNotYet, startPlain, startSnapshot, type CreateRuntime, type Engine, type Source, type Steps } from "./boot.ts";
import type { FromWorker, ToWorker } from "./messages.ts";
import { products, type Product } from "./products.ts";

const post = (message: FromWorker): void => self.postMessage(message);
/** The page's own folder; the worker's script lies in `assets/` below it. */
const BASE = new URL("../", self.location.href).href;
const address = (path: string): string => new URL(path, BASE).href;
const nativeFetch = self.fetch.bind(self);

/** Compressed bytes that have come before the engine is ready, and those that it needs. */
const progress = { loadedBytes: 0, totalBytes: 0 };

/** A file of the engine, unpacked where the host has not done that. Counted where the reader waits for it. */
async function fetched(product: Product, counted = true): Promise<Response> {
  const response = await nativeFetch(address(product.path), { credentials: "omit" });
  if (!response.ok || !response.body) throw new Error(`${product.path}: the server answers ${response.status}`);
  const stream = counted ? response.body.pipeThrough(counter(product.bytes)) : response.body;
  const type = product.path.includes(".wasm") ? "application/wasm" : "application/octet-stream";
  return new Response(await unpacked(stream), { headers: { "content-type": type } });
}

/** Counts what passes and says so, at most twenty times a second. A host that unpacks sends more bytes than it stores. */
function counter(total: number): TransformStream<Uint8Array<ArrayBuffer>, Uint8Array<ArrayBuffer>> {
  let own = 0;
  return new TransformStream({
    transform(chunk, controller) {
      const before = Math.min(own, total);
      own += chunk.byteLength;
      progress.loadedBytes += Math.min(own, total) - before;
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

/** The stream, through gzip if it begins as such: a few hosts unpack `.gz` files on their own. */
async function unpacked(stream: ReadableStream<Uint8Array<ArrayBuffer>>): Promise<ReadableStream<Uint8Array<ArrayBuffer>>> {
  const reader = stream.getReader();
  const first = (await reader.read()).value ?? new Uint8Array();
  const whole = new ReadableStream<Uint8Array<ArrayBuffer>>({
    start: (controller) => (first.byteLength > 0 ? controller.enqueue(first) : undefined),
    async pull(controller) {
      const { done, value } = await reader.read();
      if (done) controller.close();
      else controller.enqueue(value);
    },
    cancel: (reason) => reader.cancel(reason),
  });
  return first[0] === 0x1f && first[1] === 0x8b ? whole.pipeThrough(new DecompressionStream("gzip")) : whole;
}

/** Pyodide's own requests by the name it asks for; any other address is refused. */
const provided: Record<string, () => Promise<Response>> = {
  "pyodide.asm.wasm": () => fetched(products.runtime),
  "library.zip": () => fetched(products.library),
  "empty.zip": () => Promise.resolve(new Response(Uint8Array.of(0x50, 0x4b, 5, 6, ...Array<number>(18).fill(0)))),
};
self.fetch = (input) => {
  const name = String(input instanceof Request ? input.url : input).split("/").at(-1) ?? "";
  return provided[name]?.() ?? Promise.reject(new TypeError(`nothing but the engine's own files is loaded: ${name}`));
};

const bytes = async (product: Product, counted = true) =>
  new Uint8Array(await (await fetched(product, counted)).arrayBuffer());

/**
 * Whether the snapshot is worth its bytes: it is 2 MB more than what it saves, and 2 s less. `downlink` does not tell, since
 * a browser that has measured nothing says 1.6 Mbit/s.
 */
function snapshotIsWorth(): boolean {
  const { connection } = navigator as { connection?: { saveData?: boolean; effectiveType?: string } };
  return !connection?.saveData && (connection?.effectiveType ?? "4g") === "4g";
}

async function start(): Promise<{ engine: Engine; snapshot: boolean }> {
  const { loadPyodide } = (await import(/* @vite-ignore */ address(products.loader.path))) as typeof import("pyodide");
  const glue = (await import(/* @vite-ignore */ address(products.glue.path))) as { default: CreateRuntime };
  const source = (counted: boolean): Source => ({
    loadPyodide,
    createRuntime: glue.default,
    indexURL: address("engine/"),
    packages: products.packages,
    libraryURL: "library.zip",
    emptyURL: "empty.zip",
    engine: () => bytes(products.engine, counted),
    library: () => bytes(products.library, counted),
    bridge,
  });
  const always = products.loader.bytes + products.glue.bytes + products.runtime.bytes;
  if (self.name !== "plain" && snapshotIsWorth()) {
    progress.totalBytes = always + products.snapshot.bytes;
    try {
      return { engine: await startSnapshot(source(false), bytes(products.snapshot)), snapshot: true };
    } catch (error) {
      console.info("the engine starts without its snapshot:", error);
    }
  }
  progress.loadedBytes = 0;
  progress.totalBytes = always + products.library.bytes + products.engine.bytes;
  return { engine: await startPlain(source(true)), snapshot: false };
}

/** Give the event loop one turn, so that waiting messages are read. A channel is not slowed down as timers are. */
const turns = new MessageChannel();
let resume: () => void = () => undefined;
turns.port1.onmessage = () => resume();
const turn = (): Promise<void> =>
  new Promise((resolve) => {
    resume = resolve;
    turns.port2.postMessage(null);
  });

/** Wait this long, or until something is asked. */
const pause = (ms: number): Promise<void> =>
  new Promise((resolve) => {
    resume = resolve;
    setTimeout(resolve, ms);
  });

/** Verdict and form come at once; what is searched after them begins a little later, so that a quick move need not wait. */
const EAGER_STEPS = 2;
const SEARCH_AFTER_MS = 60;

let engine: Engine | null = null;
/** The request that runs; another value ends it. */
let running = 0;
/** When the newest request came, on the clock of `performance.now`. */
let askedAt = 0;

async function answer(id: number, request: string): Promise<void> {
  if (!engine) return;
  running = id;
  askedAt = performance.now();
  let sent = 0;
  let failed: string | null = null;
  let steps: Steps | null = null;
  while (running === id) {
    let step: string | null;
    try {
      steps ??= skipped(engine.begin(request), sent);
      step = steps.next();
    } catch (error) {
      steps?.close();
      steps = null;
      if (isNotYet(error)) {
        // The answer needs more than the snapshot holds: once the files have come, it begins again.
        try {
          await engine.files();
          continue;
        } catch (lost) {
          error = lost;
        }
      }
      failed = String(error);
      break;
    }
    if (step === null) break;
    sent += 1;
    post({ kind: "step", id, step });
    await (sent === EAGER_STEPS ? pause(SEARCH_AFTER_MS) : turn());
  }
  steps?.close();
  if (running === id) running = 0;
  post({ kind: "done", id, failed, heapBytes: engine.heapBytes() });
}

/** The steps of an answer after those that have been sent. */
function skipped(steps: Steps, sent: number): Steps {
  for (let step = 0; step < sent; step += 1) steps.next();
  return steps;
}

/** What a plan of another model or framework needs, by use. */
const NEXT = ["memcheck.families", "memcheck.frameworks"];
const PAUSE_MS = 20;
/** How long nothing was asked before something is imported: a move would wait for the import. */
const QUIET_MS = 400;

/** Import what the next plans need while nothing else is asked, a module at a time. */
async function prepare(idle: Engine): Promise<void> {
  await idle.files();
  const steps = idle.prepare(NEXT);
  do {
    do await new Promise((resolve) => setTimeout(resolve, PAUSE_MS));
    while (running !== 0 || performance.now() - askedAt < QUIET_MS);
  } while (steps.next() !== null);
}

self.onmessage = ({ data }: MessageEvent<ToWorker>) => {
  if (data.kind === "stop") {
    running = running === data.id ? 0 : running;
    resume();
  } else void answer(data.id, data.request);
};

start().then(
  (started) => {
    engine = started.engine;
    post({ kind: "ready", heapBytes: engine.heapBytes(), snapshot: started.snapshot });
    // The reader need not wait for these: the next model or the first broken plan will.
    const ready = self.name === "answers" ? prepare(engine) : engine.files();
    ready.catch((error: unknown) => console.info("the engine is not whole yet:", error));
  },
  (error: unknown) => post({ kind: "failed", message: String(error) }),
);
