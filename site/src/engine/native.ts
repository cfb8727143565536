/**
 * The engine of `memcheck ui`: Python on this machine in place of the workers. The server's addresses are described in
 * `memcheck/live/server.py`.
 */
import type { Port } from "./lane.ts";
import type { FromWorker, ToWorker } from "./messages.ts";

/** What runs: answers about the plan, or searches. Each is a process of its own. */
export type LaneName = "answers" | "searches";

/** A plan of the folder, and the hash that a save has to name. */
export interface FolderPlan {
  path: string;
  digest: string;
}
export interface Folder {
  version: string;
  folder: string;
  plans: FolderPlan[];
}
export interface Opened extends FolderPlan {
  text: string;
}
/** Saved, or why not; `text` is what another program wrote meanwhile. */
export type Saved = { digest: string } | { message: string; help: string; text?: string };

/** The token of the address that `memcheck ui` printed; null on any other page. */
export function tokenOf(hash: string): string | null {
  return /^#t=([0-9a-f]{32})$/.exec(hash)?.[1] ?? null;
}

export class Native {
  private readonly token: string;
  private readonly fetch: typeof globalThis.fetch;

  constructor(token: string, fetch: typeof globalThis.fetch = globalThis.fetch.bind(globalThis)) {
    this.token = token;
    this.fetch = fetch;
  }

  folder(): Promise<Folder> {
    return this.json<Folder>("ui/folder");
  }

  open(path: string): Promise<Opened> {
    return this.json<Opened>(`ui/file?path=${encodeURIComponent(path)}`);
  }

  async save(path: string, text: string, digest: string): Promise<Saved> {
    return (await (await this.send("ui/save", { path, text, digest })).json()) as Saved;
  }

  /** One lane of the server, as the queue knows a worker. */
  port(lane: LaneName): Port {
    return new NativePort((request, signal) => this.send("ui/ask", { lane, request }, signal));
  }

  private async json<T>(address: string): Promise<T> {
    const reply = await this.fetch(address, { headers: this.headers() });
    const found = (await reply.json()) as T & { message?: string };
    if (!reply.ok) throw new Error(found.message ?? `the server answers ${reply.status}`);
    return found;
  }

  private send(address: string, body: unknown, signal?: AbortSignal): Promise<Response> {
    const init = { method: "POST", headers: this.headers(), body: JSON.stringify(body) };
    return this.fetch(address, signal ? { ...init, signal } : init);
  }

  private headers(): Record<string, string> {
    return { "Content-Type": "application/json", "X-Memcheck-Token": this.token };
  }
}

/** A worker's messages by way of requests. A request that is stopped is aborted, and the server's process goes on. */
class NativePort implements Port {
  onmessage: ((event: { data: FromWorker }) => void) | null = null;
  onerror: ((event: { message?: string }) => void) | null = null;
  private running: { id: number; abort: AbortController } | null = null;
  private ended = false;

  private readonly ask: (request: unknown, signal: AbortSignal) => Promise<Response>;

  constructor(ask: (request: unknown, signal: AbortSignal) => Promise<Response>) {
    this.ask = ask;
    queueMicrotask(() => this.say({ kind: "ready", heapBytes: 0, snapshot: false }));
  }

  postMessage(message: ToWorker): void {
    if (message.kind === "stop") {
      if (this.running?.id === message.id) this.running.abort.abort();
    } else void this.answer(message.id, message.request);
  }

  terminate(): void {
    this.ended = true;
    this.running?.abort.abort();
  }

  private async answer(id: number, request: string): Promise<void> {
    const own = { id, abort: new AbortController() };
    this.running = own;
    let failed: string | null = null;
    try {
      const reply = await this.ask(JSON.parse(request), own.abort.signal);
      if (!reply.ok || !reply.body) throw new Error(`the server answers ${reply.status}`);
      for await (const step of lines(reply.body)) this.say({ kind: "step", id, step });
    } catch (error) {
      if (!own.abort.signal.aborted) failed = `memcheck ui does not answer: ${String(error)}`;
    }
    if (this.running === own) this.running = null;
    this.say({ kind: "done", id, failed, heapBytes: 0 });
  }

  private say(message: FromWorker): void {
    if (!this.ended) this.onmessage?.({ data: message });
  }
}

/** The lines of a stream of UTF-8, each as soon as it is whole. */
export async function* lines(stream: ReadableStream<Uint8Array>): AsyncGenerator<string> {
  const reader = stream.getReader();
  const decoder = new TextDecoder();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    rest += decoder.decode(value, { stream: !done });
    const parts = rest.split("\n");
    rest = parts.pop() ?? "";
    yield* parts;
    if (done) break;
  }
  if (rest) yield rest;
}
