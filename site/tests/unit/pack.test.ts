import assert from "node:assert/strict";
import { test } from "node:test";
import { readPack, unpack } from "../../src/engine/pack.ts";

/** A pack of an index, as `build/pack.mjs` writes it. */
function pack(index: unknown, body = new Uint8Array()): Uint8Array {
  const listed = new TextEncoder().encode(JSON.stringify(index));
  const whole = new Uint8Array(4 + listed.length + body.length);
  new DataView(whole.buffer).setUint32(0, listed.length, true);
  whole.set(listed, 4);
  whole.set(body, 4 + listed.length);
  return whole;
}

const BODY = Uint8Array.of(1, 2, 3, 4, 5);

test("files are views of the pack, also of one inside a larger buffer", () => {
  const inner = pack([["a/b.py", 0, 2], ["c.json", 2, 3], ["empty", 5, 0]], BODY);
  const outer = new Uint8Array(inner.length + 7);
  outer.set(inner, 7);
  for (const each of [inner, outer.subarray(7)]) {
    const files = readPack(each);
    assert.deepEqual(files.map(({ path, bytes }) => [path, [...bytes]]), [["a/b.py", [1, 2]], ["c.json", [3, 4, 5]], ["empty", []]]);
    assert.ok(files.every(({ bytes }) => bytes.buffer === each.buffer));
  }
});

test("a pack that is cut or damaged is refused", () => {
  const whole = pack([["a", 0, 5]], BODY);
  for (const length of [0, 3, 4, 10, whole.length - 1]) assert.throws(() => readPack(whole.slice(0, length)), `${length} bytes`);
  for (const index of [{}, [1], [["a"]], [["a", -1, 2]], [["a", 0.5, 2]], [["a", 0, 6]], [["a", 2 ** 53, 1]], [[1, 0, 1]]]) {
    assert.throws(() => readPack(pack(index, BODY)), RangeError, JSON.stringify(index));
  }
});

test("no file is written outside the folder", () => {
  for (const path of ["/etc/passwd", "../x", "a/../../x"]) assert.throws(() => readPack(pack([[path, 0, 1]], BODY)), RangeError);
});

test("folders are made once each, before what lies in them", () => {
  const done: string[] = [];
  const files = { mkdirTree: (path: string) => done.push(`+${path}`), writeFile: (path: string) => done.push(path) };
  assert.equal(unpack(pack([["p/a", 0, 1], ["p/b", 1, 1], ["c", 2, 1]], BODY), "/lib", files), 3);
  assert.deepEqual(done, ["+/lib/p", "/lib/p/a", "/lib/p/b", "+/lib", "/lib/c"]);
});
