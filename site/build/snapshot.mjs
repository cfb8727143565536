/**
 * Makes `start.snapshot`: the heap of an engine that has answered the plan that the page shows first. A page that restores
 * it needs neither to start Python nor to load, compile and import some 500 modules.
 */
import { ask, source, startPlain } from "./node.mjs";
import { commonBytes, writeSnapshot } from "../.build/js/src/engine/snapshot.js";

/** A start from a snapshot should take less memory than answers do later. */
const LARGEST_HEAP_BYTES = 64 * 2 ** 20;

/** The bytes of a snapshot after `requests` have been answered, the steps of their answers, and the engine itself. */
export async function makeSnapshot(files, requests) {
  const from = source(files);
  const fresh = await freshHeap(from);
  const constants = fresh.slice(0, commonBytes(fresh, await freshHeap(from)));
  const engine = await startPlain(from, true);
  const answers = [];
  for (const request of requests) answers.push(await ask(engine, request));
  engine.python.runPython("settle()");
  wipe(engine.python._module);
  const snapshot = engine.python.makeMemorySnapshot();
  if (engine.heapBytes() > LARGEST_HEAP_BYTES) {
    const mib = (engine.heapBytes() / 2 ** 20).toFixed(1);
    throw new Error(`the heap of the snapshot has grown to ${mib} MiB, beyond 64 MiB`);
  }
  return { file: writeSnapshot(snapshot, constants), answers, engine };
}

/** What a heap holds before Python starts in it: the data of the runtime. */
async function freshHeap(from) {
  let fresh = null;
  const stop = new Error("the heap has been read");
  const createPyodideModule = async (settings) => {
    settings.noInitialRun = true;
    fresh = (await from.createRuntime(settings)).HEAPU8;
    throw stop;
  };
  await from
    .loadPyodide({ indexURL: from.indexURL, stdLibURL: from.emptyURL, createPyodideModule })
    .catch((error) => error === stop || Promise.reject(error));
  return fresh;
}

/** Overwrite with zeros what is free between the allocations of the heap: what lay there would be compressed and sent. */
function wipe(runtime) {
  runtime._malloc_set_footprint_limit(runtime._malloc_footprint());
  const held = [];
  for (let size = 2 ** 22; size >= 16; ) {
    const start = runtime._malloc(size);
    if (start === 0) size >>= 1;
    else {
      runtime.HEAPU8.fill(0, start, start + size);
      held.push(start);
    }
  }
  for (const start of held) runtime._free(start);
  runtime._malloc_set_footprint_limit(-1);
}

