/**
 * The format of `start.snapshot`: what Pyodide makes of a heap, less what every fresh heap holds anyway.
 *
 * The first megabytes of a heap are the data of the runtime itself, which come with the runtime. Pages of these are stored
 * as their difference (exclusive or) from a heap in which Python has not started, which leaves zeros; that is 1.5 MB less
 * to load. A fresh heap with another checksum means another runtime, and the snapshot is refused.
 *
 * Layout, in uint32: magic, number of pages, their checksum, the number of each page; then Pyodide's snapshot.
 */

const MAGIC = 0x6d637331;
const HEADER_WORDS = 3;
const PAGE_BYTES = 4096;
/** Where a snapshot of Pyodide says at which byte its heap begins, as an index of uint32. */
const HEAP_OFFSET = 1;

/** The pages that two fresh heaps have in common, by number, but for those of zeros. Chance and time differ, code does not. */
export function commonPages(one: Uint8Array, other: Uint8Array): number[] {
  const pages: number[] = [];
  for (let page = 0; (page + 1) * PAGE_BYTES <= one.length; page += 1) {
    const mine = words(pageOf(one, page));
    const yours = words(pageOf(other, page));
    if (mine.some((word) => word !== 0) && mine.every((word, index) => word === yours[index])) pages.push(page);
  }
  return pages;
}

/** The file of a snapshot as Pyodide made it; `pages` of the fresh heap are taken off. */
export function writeSnapshot(snapshot: Uint8Array, fresh: Uint8Array, pages: number[]): Uint8Array {
  const header = Uint32Array.of(MAGIC, pages.length, checksum(fresh, pages), ...pages);
  const file = new Uint8Array(header.byteLength + snapshot.length);
  file.set(new Uint8Array(header.buffer));
  file.set(snapshot, header.byteLength);
  difference(file.subarray(header.byteLength), fresh, pages);
  return file;
}

/** A snapshot that has been loaded. `restore` makes it Pyodide's again, in place, once there is a fresh heap. */
export function readSnapshot(file: Uint8Array): { snapshot: Uint8Array; restore: (heap: Uint8Array) => void } {
  const aligned = file.byteOffset % 4 === 0 ? file : file.slice();
  const [magic, count = 0, sum] = words(aligned.subarray(0, HEADER_WORDS * 4));
  if (magic !== MAGIC || (HEADER_WORDS + count) * 4 > aligned.length) throw new RangeError("this is no snapshot");
  const start = (HEADER_WORDS + count) * 4;
  const pages = [...words(aligned.subarray(HEADER_WORDS * 4, start))];
  const snapshot = aligned.subarray(start);
  return {
    snapshot,
    restore(heap) {
      if (checksum(heap, pages) !== sum) throw new RangeError("the snapshot was made with another runtime");
      difference(snapshot, heap, pages);
    },
  };
}

/** Combine the heap inside a snapshot with pages of a fresh one; twice gives the first again. */
function difference(snapshot: Uint8Array, fresh: Uint8Array, pages: number[]): void {
  const heap = snapshot.subarray(words(snapshot)[HEAP_OFFSET]);
  for (const page of pages) {
    const changed = words(pageOf(heap, page));
    const taken = words(pageOf(fresh, page));
    for (let index = 0; index < taken.length; index += 1) changed[index] = (changed[index] ?? 0) ^ (taken[index] ?? 0);
  }
}

/** A sum over all words of some pages that differs wherever one word does. */
function checksum(heap: Uint8Array, pages: number[]): number {
  let sum = 0x811c9dc5;
  for (const page of pages) {
    for (const word of words(pageOf(heap, page))) sum = Math.imul(sum ^ word, 0x01000193);
  }
  return sum >>> 0;
}

function pageOf(heap: Uint8Array, page: number): Uint8Array {
  const found = heap.subarray(page * PAGE_BYTES, (page + 1) * PAGE_BYTES);
  if (found.length !== PAGE_BYTES) throw new RangeError("the snapshot is damaged");
  return found;
}

function words(bytes: Uint8Array): Uint32Array {
  return new Uint32Array(bytes.buffer, bytes.byteOffset, bytes.byteLength >>> 2);
}
