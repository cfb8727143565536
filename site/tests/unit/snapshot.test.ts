import assert from "node:assert/strict";
import { test } from "node:test";
import { commonBytes, readSnapshot, writeSnapshot } from "../../src/engine/snapshot.ts";

const PAGE = 4096;

/** A heap of three pages whose words count up from `first`. */
function heap(first: number): Uint8Array {
  return new Uint8Array(Uint32Array.from({ length: (3 * PAGE) / 4 }, (_, index) => first + index).buffer);
}

/** A snapshot as Pyodide lays it out: the second word says where the heap begins. */
function snapshotOf(of: Uint8Array): Uint8Array {
  const whole = new Uint8Array(32 + of.length);
  new Uint32Array(whole.buffer)[1] = 32;
  whole.set(of, 32);
  return whole;
}

test("whole pages count as common, up to the first word that differs", () => {
  const one = heap(5);
  assert.equal(commonBytes(one, heap(5)), 3 * PAGE);
  const other = heap(5);
  other[2 * PAGE + 8] = 0xff;
  assert.equal(commonBytes(one, other), 2 * PAGE);
  assert.equal(commonBytes(one, heap(6)), 0);
});

test("the constants are zeros in the file, and are there again when it is restored", () => {
  const fresh = heap(5);
  const grown = heap(5);
  grown[PAGE + 1] = 77; // what Python has changed
  const made = snapshotOf(grown);
  const file = writeSnapshot(made, fresh.slice(0, 2 * PAGE));
  assert.equal(file.subarray(16 + 32, 16 + 32 + 2 * PAGE).filter((byte) => byte !== 0).length, 1);
  for (const place of [0, 1]) {
    const loaded = new Uint8Array(file.length + place); // also where it does not begin at a whole word
    loaded.set(file, place);
    const { snapshot, restore } = readSnapshot(loaded.subarray(place));
    restore(heap(5));
    assert.deepEqual(snapshot, made);
  }
});

test("another runtime, another file and a damaged one are refused", () => {
  const file = writeSnapshot(snapshotOf(heap(5)), heap(5).slice(0, PAGE));
  assert.throws(() => readSnapshot(file.slice()).restore(heap(6)), /another runtime/u);
  assert.throws(() => readSnapshot(new Uint8Array(64)), /no snapshot/u);
  assert.throws(() => readSnapshot(file.slice(0, 8)), /no snapshot/u);
  const cut = readSnapshot(file.slice(0, PAGE));
  assert.throws(() => cut.restore(heap(5)), /damaged/u);
});
