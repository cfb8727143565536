/** What a worker and the page send each other around the protocol of `memcheck.live`. */

export type ToWorker =
  | { kind: "ask"; id: number; request: string }
  /** Compute no further step of this request. */
  | { kind: "stop"; id: number };

export type FromWorker =
  /** Compressed bytes that have come, of all that have been asked for until now. */
  | { kind: "progress"; loadedBytes: number; totalBytes: number }
  | { kind: "ready"; heapBytes: number; snapshot: boolean }
  /** Python could not be started. */
  | { kind: "failed"; message: string }
  /** One step of an answer, as JSON text. */
  | { kind: "step"; id: number; step: string }
  /** No further step comes. `failed` is the text of an exception that left Python, which is a defect. */
  | { kind: "done"; id: number; failed: string | null; heapBytes: number };
