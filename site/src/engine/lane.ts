/**
 * One worker and its queue: one request runs, and per slot the newest one waits. A waiting request replaces an older one of
 * its slot, so that a moved slider is answered for where it is now, not for where it was.
 *
 * The first step of a request that has begun is always delivered, since it carries the edits of the text; `newest` says
 * whether it is still what the reader asked for. Its later steps end as soon as anything waits.
 */
import type { FromWorker, ToWorker } from "./messages.ts";

/** What a lane needs of a worker; tests put another thing in its place. */
export interface Port {
  postMessage(message: ToWorker): void;
  onmessage: ((event: { data: FromWorker }) => void) | null;
  onerror: ((event: { message?: string }) => void) | null;
  terminate(): void;
}

/** A request of the protocol; the lane numbers it. */
export interface Ask {
  /** What the engine is asked, without its number. */
  request: Record<string, unknown> & { do: string };
  /** Requests of the same slot replace each other while they wait. */
  slot: string;
  /** How an older waiting request of the slot and this one become one; without it the older one is dropped. */
  merge?: (older: Ask["request"]) => Ask["request"];
  /** Called with each step; `newest` is false once a request of the same slot waits. */
  step: (step: Step, newest: boolean) => void;
}

/** One step of an answer: what the protocol says, of which the lane reads nothing but these two. */
export interface Step extends Record<string, unknown> {
  id: number;
  step: string;
}

/** How a request ended: answered whole, ended by a newer one, dropped before it began, or the engine failed. */
export type End = { end: "done" | "stopped" | "dropped" } | { end: "failed"; message: string };

/** What a lane says about its worker. */
export type LaneState =
  | { phase: "loading"; loadedBytes: number; totalBytes: number }
  | { phase: "ready"; snapshot: boolean }
  /** The engine failed once and starts again. */
  | { phase: "restarting"; message: string }
  /** The engine failed twice without an answer in between: nothing is tried again. */
  | { phase: "failed"; message: string };

export interface LaneOptions {
  start: () => Port;
  state: (state: LaneState) => void;
  /** A worker that does not give way to a waiting request for this long is replaced. */
  giveWayMs: number;
  /** A worker that sends no step for this long is replaced, whether anything waits or not. */
  silentMs: number;
  /** A worker whose heap is larger than this is replaced when nothing runs. */
  heapBytes: number;
  now?: () => number;
}

interface Queued {
  ask: Ask;
  id: number;
  end: (end: End) => void;
}

export class Lane {
  private readonly options: LaneOptions;
  private port: Port;
  /** A worker that starts while the old one, whose heap is too large, still answers. */
  private successor: Port | null = null;
  private ready = false;
  private running: (Queued & { steps: number; stopping: boolean }) | null = null;
  private readonly waiting = new Map<string, Queued>();
  private timer: ReturnType<typeof setTimeout> | null = null;
  private lastId = 0;
  private failures = 0;
  private given = false;

  constructor(options: LaneOptions) {
    this.options = options;
    this.port = this.listen(options.start());
  }

  /** Queue a request; resolves when nothing more will come of it. */
  ask(ask: Ask): Promise<End> {
    return new Promise((resolve) => {
      if (this.given) {
        resolve({ end: "failed", message: "the engine does not run" });
        return;
      }
      const older = this.waiting.get(ask.slot);
      if (older) {
        this.waiting.delete(ask.slot); // so that the newest stands last
        older.end({ end: "dropped" });
        if (ask.merge) ask = { ...ask, request: ask.merge(older.ask.request) };
      }
      this.lastId += 1;
      this.waiting.set(ask.slot, { ask, id: this.lastId, end: resolve });
      this.giveWay();
      this.next();
    });
  }

  /** Whether a request of this slot waits or runs. */
  busy(slot: string): boolean {
    return this.waiting.has(slot) || this.running?.ask.slot === slot;
  }

  /** End what runs in a slot and forget what waits there. */
  cancel(slot: string): void {
    const waiting = this.waiting.get(slot);
    if (waiting) {
      this.waiting.delete(slot);
      waiting.end({ end: "dropped" });
    }
    if (this.running?.ask.slot === slot) this.stop();
  }

  /** End the worker and all requests. */
  close(): void {
    this.given = true;
    this.settleAll({ end: "dropped" });
    this.port.terminate();
    this.successor?.terminate();
  }

  private listen(port: Port): Port {
    port.onmessage = ({ data }) => this.hear(port, data);
    port.onerror = (event) => this.fail(port, event.message ?? "the worker could not be started");
    return port;
  }

  private hear(port: Port, message: FromWorker): void {
    if (port === this.successor) {
      if (message.kind === "ready") this.succeed();
      else if (message.kind === "failed") this.successor = null; // the old one still answers
      return;
    }
    if (port !== this.port || this.given) return;
    switch (message.kind) {
      case "progress":
        this.options.state({ phase: "loading", loadedBytes: message.loadedBytes, totalBytes: message.totalBytes });
        break;
      case "ready":
        this.ready = true;
        this.options.state({ phase: "ready", snapshot: message.snapshot });
        this.next();
        break;
      case "failed":
        this.fail(port, message.message);
        break;
      case "step":
        this.deliver(message.id, message.step);
        break;
      case "done":
        this.finish(message);
        break;
    }
  }

  private deliver(id: number, text: string): void {
    const running = this.running;
    if (running?.id !== id) return;
    running.steps += 1;
    this.failures = 0;
    this.watch();
    if (running.steps === 1 || !running.stopping) {
      running.ask.step(JSON.parse(text) as Step, !this.waiting.has(running.ask.slot));
    }
    this.giveWay();
  }

  private finish(message: FromWorker & { kind: "done" }): void {
    const running = this.running;
    if (running?.id !== message.id) return;
    this.running = null;
    this.watch();
    if (message.failed === null) running.end({ end: running.stopping ? "stopped" : "done" });
    else running.end({ end: "failed", message: message.failed });
    if (message.heapBytes > this.options.heapBytes && !this.successor) this.successor = this.listen(this.options.start());
    this.next();
  }

  /** Begin the request that has waited longest. */
  private next(): void {
    if (!this.ready || this.running || this.given) return;
    const [first] = this.waiting;
    if (!first) return;
    const [slot, queued] = first;
    this.waiting.delete(slot);
    this.running = { ...queued, steps: 0, stopping: false };
    this.port.postMessage({
      kind: "ask",
      id: queued.id,
      request: JSON.stringify({ ...queued.ask.request, id: queued.id }),
    });
    this.watch();
  }

  /** Ask the running request to end after its first step, where something waits. */
  private giveWay(): void {
    if (this.running && this.running.steps > 0 && this.waiting.size > 0) this.stop();
    else if (this.running && this.waiting.size > 0) this.watch();
  }

  private stop(): void {
    if (!this.running || this.running.stopping) return;
    this.running.stopping = true;
    this.port.postMessage({ kind: "stop", id: this.running.id });
    this.watch();
  }

  /** Set the clock again: short where a request waits for a running one to end, long where it only runs. */
  private watch(): void {
    if (this.timer !== null) clearTimeout(this.timer);
    this.timer = null;
    if (!this.running) return;
    const limit = this.running.stopping ? this.options.giveWayMs : this.options.silentMs;
    this.timer = setTimeout(() => this.fail(this.port, `no answer within ${limit} ms`), limit);
  }

  /** The worker is lost: start another. What ran is told; what waits is asked of the new one. */
  private fail(port: Port, message: string): void {
    if (port === this.successor) {
      this.successor = null;
      port.terminate();
      return;
    }
    if (port !== this.port || this.given) return;
    const running = this.running;
    const gaveNoWay = running?.stopping ?? false;
    this.running = null;
    this.watch();
    port.terminate();
    running?.end(gaveNoWay ? { end: "stopped" } : { end: "failed", message });
    if (!gaveNoWay) this.failures += 1;
    if (this.failures >= 2) {
      this.given = true;
      this.options.state({ phase: "failed", message });
      this.settleAll({ end: "failed", message });
      return;
    }
    this.ready = false;
    this.options.state({ phase: "restarting", message });
    this.port = this.listen(this.options.start());
  }

  private succeed(): void {
    if (!this.successor) return;
    if (this.running) {
      // Asked again of the new worker as soon as this one is idle.
      const port = this.successor;
      setTimeout(() => port === this.successor && this.succeed(), 20);
      return;
    }
    this.port.terminate();
    this.port = this.successor;
    this.successor = null;
    this.ready = true;
    this.next();
  }

  private settleAll(end: End): void {
    for (const { end: settle } of this.waiting.values()) settle(end);
    this.waiting.clear();
    this.running?.end(end);
    this.running = null;
    this.watch();
  }
}
