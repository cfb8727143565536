/**
 * The page's way to the engine: two workers with a queue each. A answers the plan, its form and its lines; B searches
 * remedies and other GPUs, so that a search never delays an answer.
 */
import { Lane, type Ask, type End, type LaneState, type Port } from "./lane.ts";
import type { LaneName } from "./native.ts";
import { keepOffline, type Offline } from "./offline.ts";
import { workerAddress } from "./trusted.ts";

export type { Ask, End, LaneState, Step } from "./lane.ts";
export { takeNewer, type Offline } from "./offline.ts";

const MIB = 1 << 20;
const HEAP_BYTES = 192 * MIB;
/** The second worker starts once no answer was asked for this long: its start would slow down the first moves. */
const SETTLED_MS = 500;

/** What answers requests: two workers in the page, one, or the server of `memcheck ui`. */
export interface Client {
  /** Ask for an answer, before everything else. */
  answer(ask: Ask): Promise<End>;
  /** Ask for a search. It runs beside answers, where the machine has memory for two workers. */
  search(ask: Ask): Promise<End>;
  /** End what runs or waits in a slot. */
  cancel(slot: string): void;
  close(): void;
}

export interface ClientOptions {
  /** Told about the worker that answers. */
  state: (state: LaneState) => void;
  /** Told when the page works without a network, and when a newer build waits for `takeNewer`. */
  offline?: (state: Offline) => void;
  /** Starts what answers in a lane: a worker of the page, a process of `memcheck ui`, or what a test puts there. */
  start?: (lane: LaneName) => Port;
  /** Whether a second worker runs the searches; by default where the machine has more than 4 GiB of memory. */
  two?: boolean;
}

/** Start the engine in workers. */
export function startClient(options: ClientOptions): Client {
  const start = options.start ?? startWorker;
  const common = { heapBytes: HEAP_BYTES, giveWayMs: 2_000, silentMs: 30_000 };
  let searches: Lane | null = null;
  let stored = false;
  const settled = new Settled();
  const two = options.two ?? ((navigator as { deviceMemory?: number }).deviceMemory ?? 8) > 4;
  const answers = new Lane({
    ...common,
    start: () => start("answers"),
    state(state) {
      // The second worker starts after the first is ready: both would ask for the same files at once.
      if (state.phase === "ready" && two && !searches) {
        searches = new Lane({ ...common, start: () => new LaterPort(settled.reached(), () => start("searches")), state: () => undefined });
      }
      if (state.phase === "ready" && !options.start && !stored) {
        stored = true;
        void keepOffline(options.offline ?? (() => undefined));
      }
      options.state(state);
    },
  });
  return {
    answer(ask) {
      settled.disturb();
      return answers.ask(ask);
    },
    search: (ask) => (searches ?? answers).ask(ask),
    cancel(slot) {
      answers.cancel(slot);
      searches?.cancel(slot);
    },
    close() {
      answers.close();
      searches?.close();
    },
  };
}

function startWorker(lane: LaneName): Port {
  return new Worker(workerAddress(), { type: "module", name: lane }) as unknown as Port;
}

/** Whether the reader has paused: nothing was asked for `SETTLED_MS`. */
class Settled {
  private timer: ReturnType<typeof setTimeout> | undefined;
  private waiting: (() => void)[] = [];

  disturb(): void {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => {
      for (const go of this.waiting.splice(0)) go();
    }, SETTLED_MS);
  }

  /** Resolves at the next pause. */
  reached(): Promise<void> {
    return new Promise((resolve) => {
      this.waiting.push(resolve);
      this.disturb();
    });
  }
}

/** A worker that starts later. A lane posts nothing before it hears from its worker, so that nothing is lost. */
class LaterPort implements Port {
  onmessage: Port["onmessage"] = null;
  onerror: Port["onerror"] = null;
  private port: Port | null = null;
  private ended = false;

  constructor(when: Promise<void>, start: () => Port) {
    void when.then(() => {
      if (this.ended) return;
      this.port = start();
      this.port.onmessage = (event) => this.onmessage?.(event);
      this.port.onerror = (event) => this.onerror?.(event);
    });
  }

  postMessage(message: Parameters<Port["postMessage"]>[0]): void {
    this.port?.postMessage(message);
  }

  terminate(): void {
    this.ended = true;
    this.port?.terminate();
  }
}
