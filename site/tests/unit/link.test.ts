import assert from "node:assert/strict";
import { test } from "node:test";
import { deflateRawSync } from "node:zlib";
import { LARGEST_PLAN_BYTES, LinkError, readLink, writeLink, type Link } from "../../src/share/link.ts";

/** Numbers that look random and are the same in each run. */
function random(seed: number): (below: number) => number {
  let state = seed;
  return (below) => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
    return Math.floor((state / 2 ** 32) * below);
  };
}

const PIECES = ["memcheck: 1\n", "training:\n", "  zero_stage: ", "é", "漢", "😀", "\0", "\ufeff", "\r\n", "\t", "&", "=", "#", "%00", "<script>"];

const payload = (bytes: Uint8Array, format = 1): string => `#p=${format}.${Buffer.from(bytes).toString("base64url")}`;
const fault = (wanted: string) => (error: unknown) => error instanceof LinkError && error.fault === wanted;

test("what is written is read: 1,000 random texts", async () => {
  const below = random(1);
  for (let round = 0; round < 1_000; round += 1) {
    const text = Array.from({ length: below(200) }, () => PIECES[below(PIECES.length)]).join("");
    const link: Link = { plan: text, version: "0.1.0" };
    if (below(2)) link.compared = `${text}#`;
    if (below(2)) link.document = 1 + below(9_000);
    if (below(2)) link.section = "what-would-help";
    const written = await writeLink(link);
    assert.match(written, /^#[\w=&.-]+$/u);
    assert.deepEqual(await readLink(written), link);
  }
});

test("a link that python wrote is read", async () => {
  // zlib.compressobj(9, zlib.DEFLATED, -15) of "memcheck: 1\n", base64.urlsafe_b64encode without padding
  assert.deepEqual(await readLink("#v=0.1.0&p=1.y03NTc5ITc62UjDkAgA"), { plan: "memcheck: 1\n", version: "0.1.0" });
});

test("no plan in an address is no link", async () => {
  for (const fragment of ["", "#", "#section", "#v=0.1.0", "#t=00112233445566778899aabbccddeeff", "#pp=1.x", "#e=%ff"]) {
    assert.equal(await readLink(fragment), null, fragment);
  }
  assert.deepEqual(await readLink("#e=llama-3.1-8b-fsdp-8xh100"), { example: "llama-3.1-8b-fsdp-8xh100" });
});

test("unknown parts are ignored, and names that are none", async () => {
  const written = await writeLink({ plan: "a: 1" });
  assert.deepEqual(await readLink(`${written}&z=9&theme=dark&s=%3Cscript%3E&d=-1&v=`), { plan: "a: 1" });
});

test("a cut, changed or foreign link is damaged", async () => {
  const whole = await writeLink({ plan: "memcheck: 1\nmodel: llama-3.1-8b\n".repeat(20) });
  for (const broken of [
    whole.slice(0, -5),
    "#p=",
    "#p=1",
    "#p=1.",
    "#p=0.AAAA",
    "#p=x.AAAA",
    "#p=1.A",
    "#p=1.!!!!",
    "#p=1.AAAA%20",
    payload(Uint8Array.of(0xff, 0xff, 0xff)),
    payload(deflateRawSync(Uint8Array.of(0xff, 0xfe, 0x41))), // no UTF-8
  ]) {
    await assert.rejects(readLink(broken), fault("damaged"), broken.slice(0, 60));
  }
});

test("a link of a later format needs a newer page", async () => {
  for (const format of [2, 10, 999_999]) await assert.rejects(readLink(payload(deflateRawSync("a"), format)), fault("newer"));
});

test("a bomb is not unpacked", async () => {
  const bomb = payload(deflateRawSync(Buffer.alloc(64 * 2 ** 20)));
  const before = process.memoryUsage().arrayBuffers;
  await assert.rejects(readLink(bomb), fault("large"));
  assert.ok(process.memoryUsage().arrayBuffers - before < 16 * 2 ** 20);
  await assert.rejects(readLink(`#p=1.${"A".repeat(2 ** 20)}`), fault("large"));
});

test("the largest plan fits, one byte more does not", async () => {
  const below = random(2);
  const noise = Array.from({ length: LARGEST_PLAN_BYTES }, () => String.fromCharCode(32 + below(95))).join("");
  assert.deepEqual(await readLink(await writeLink({ plan: noise })), { plan: noise });
  await assert.rejects(writeLink({ plan: `${noise}x` }), fault("large"));
  await assert.rejects(readLink(payload(deflateRawSync(`${noise}x`))), fault("large"));
});
