/**
 * The format of `start.snapshot`: what Pyodide makes of a heap, less what every fresh heap holds anyway.
 *
 * A heap begins with the constants of the runtime, which come with the runtime. They are stored as their difference
 * (exclusive or) from a heap in which Python has not started, which leaves zeros; that is 1.5 MB less to load. A fresh heap
 * with another checksum means another runtime, and the snapshot is refused.
 *
 * Layout: uint32 magic, bytes that were taken off, their checksum, zero; then Pyodide's snapshot.
 */

const MAGIC = 0x6d637331;
const HEADER_BYTES = 16;
const PAGE_BYTES = 4096;
/** Where a snapshot of Pyodide says at which byte its heap begins, as an index of uint32. */
const HEAP_OFFSET = 1;

/**
 * Bytes with which two fresh heaps begin alike, in whole pages. What differs first is the state of the random numbers,
 * and with it begins what the runtime writes; node and browsers write different things there.
 */
export function commonBytes(one: Uint8Array, other: Uint8Array): number {
  const mine = words(one);
  const yours = words(other);
  let index = 0;
  while (index < mine.length && mine[index] === yours[index]) index += 1;
  return Math.floor((index * 4) / PAGE_BYTES) * PAGE_BYTES;
}

/** The file of a snapshot as Pyodide made it; `constants` are the first bytes of a fresh heap. */
export function writeSnapshot(snapshot: Uint8Array, constants: Uint8Array): Uint8Array {
  const file = new Uint8Array(HEADER_BYTES + snapshot.length);
  words(file.subarray(0, HEADER_BYTES)).set([MAGIC, constants.length, checksum(constants), 0]);
  file.set(snapshot, HEADER_BYTES);
  difference(file.subarray(HEADER_BYTES), constants);
  return file;
}

/** A snapshot that has been loaded. `restore` makes it Pyodide's again, in place, once there is a fresh heap. */
export function readSnapshot(file: Uint8Array): { snapshot: Uint8Array; restore: (heap: Uint8Array) => void } {
  const aligned = file.byteOffset % 4 === 0 ? file : file.slice();
  const [magic, length = 0, sum] = words(aligned.subarray(0, HEADER_BYTES));
  if (magic !== MAGIC || aligned.length < HEADER_BYTES) throw new RangeError("this is no snapshot");
  const snapshot = aligned.subarray(HEADER_BYTES);
  return {
    snapshot,
    restore(heap) {
      const constants = heap.subarray(0, length);
      if (checksum(constants) !== sum) throw new RangeError("the snapshot was made with another runtime");
      difference(snapshot, constants);
    },
  };
}

/** Combine the first bytes of the heap inside a snapshot with others; twice gives the first again. */
function difference(snapshot: Uint8Array, constants: Uint8Array): void {
  const start = words(snapshot)[HEAP_OFFSET] ?? 0;
  if (start % 4 !== 0 || start + constants.length > snapshot.length) throw new RangeError("the snapshot is damaged");
  const heap = words(snapshot.subarray(start, start + constants.length));
  const taken = words(constants);
  for (let index = 0; index < taken.length; index += 1) heap[index] = (heap[index] ?? 0) ^ (taken[index] ?? 0);
}

/** A sum over all words that differs wherever one of them does. */
function checksum(bytes: Uint8Array): number {
  let sum = 0x811c9dc5;
  for (const word of words(bytes)) sum = Math.imul(sum ^ word, 0x01000193);
  return sum >>> 0;
}

function words(bytes: Uint8Array): Uint32Array {
  return new Uint32Array(bytes.buffer, bytes.byteOffset, bytes.byteLength >>> 2);
}
