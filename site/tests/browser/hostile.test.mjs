/** Names, comments, descriptions, file names and pasted texts that are code: none of it runs, and nothing leaves. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { deflateRawSync } from "node:zlib";
import { example, site, visit } from "./page.mjs";

const own = site();
const EVIL = ["<img src=x onerror=window.pwned=1>", "<script>window.pwned=1</script>", "\\\"><svg onload=window.pwned=1>", "<a href=javascript:window.pwned=1>x</a>", "<iframe srcdoc=x></iframe>"].join(" ");
const clean = async (page) => {
  assert.equal(await page.evaluate(() => window.pwned), undefined);
  const made = await page.evaluate(() => document.querySelectorAll("#page :is(img, script, iframe, object, embed, [onload], [onerror], a[href^=javascript])").length);
  assert.equal(made, 0, "elements out of a text");
};

for (const [what, text] of [
  ["a name and a description", example("llama-3.1-8b-fsdp-8xh100").replace("name: llama-3.1-8b-fsdp-8xh100", `name: "${EVIL}"`).replace(/description: .*/, `description: "${EVIL}"`)],
  ["a comment and an unknown key", `${example("llama-3.1-8b-fsdp-8xh100")}\n# ${EVIL}\n"${EVIL}": 1\n`],
  ["a model", example("llama-3.1-8b-fsdp-8xh100").replace("model: llama-3.1-8b", `model: "${EVIL}"`)],
]) {
  test(`${what}, in a link`, () => visit(own, { hash: `#p=1.${deflateRawSync(text).toString("base64url")}` }, clean));
}

test("a file's name, and a pasted text", () =>
  visit(own, {}, async (page) => {
    await page.evaluate(([name, text]) => {
      const data = new DataTransfer();
      data.items.add(new File([text], name));
      for (const type of ["dragenter", "dragover", "drop"]) document.body.dispatchEvent(new DragEvent(type, { dataTransfer: data, bubbles: true, cancelable: true }));
    }, [`../../${EVIL}.py`, `import os\nos.system("${EVIL}")\n`]);
    await page.getByRole("dialog").waitFor();
    await clean(page);
  }));
