/** Every state that the page can be in, each brought about in Chromium. */
import assert from "node:assert/strict";
import { cpSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { deflateRawSync } from "node:zlib";
import { test } from "node:test";
import { DIST } from "../../build/paths.mjs";
import { serve } from "../../build/serve.mjs";
import { answered, changed, example, follow, openExample, planText, site, slider, START_MS, verdict, visit, write } from "./page.mjs";

const own = site();
const payload = (text) => `1.${deflateRawSync(text).toString("base64url")}`;
const withPlan = (text, more = "") => ({ hash: `#p=${payload(text)}${more}` });
const RUNTIME = "**/engine/*.wasm.gz";

test("painted and loading: the example can be read before a byte of the engine has come, and one line says how much has", () =>
  visit(own, { waits: false, allowed: [/Failed to load/] }, async (page) => {
    await page.locator(".verdict .word").waitFor();
    assert.equal(await verdict(page), "Fits");
    assert.ok(await page.getByRole("heading", { name: "Where the memory goes" }).isVisible());
    const line = page.locator(".top .status");
    await line.waitFor();
    assert.match(await line.innerText(), /Loading the engine|Starting Python/);
    assert.equal(await page.locator(".top progress").count(), 1);
    if ((await page.locator("main").getAttribute("data-engine")) !== "ready") assert.ok(await page.locator("#pane-form").evaluate((pane) => pane.inert));
    assert.match(await planText(page), /model: llama-3\.1-8b/);
    await answered(page);
    assert.equal(await line.count(), 0, "nothing is said about an engine that runs");
  }));

test("broken text: the finding at its line, the last answer below, the controls wait", () =>
  visit(own, {}, async (page) => {
    const text = example("llama-3.1-8b-fsdp-8xh100").replace("zero_stage: 3", "zero_stage: [3");
    await write(page, text);
    assert.equal(await verdict(page), "Not estimated");
    assert.match(await page.locator(".old-figures").innerText(), /before line \d+ was changed/);
    assert.ok(await page.locator("#pane-form").evaluate((pane) => pane.inert));
    assert.ok(await page.locator('.sections[data-old] #section-memory').isVisible());
    await write(page, example("llama-3.1-8b-fsdp-8xh100"));
    assert.equal(await verdict(page), "Fits");
    assert.equal(await page.locator("#pane-form").evaluate((pane) => pane.inert), false);
  }));

test("not estimated: an unknown model, with close names and the way to paste a config", () =>
  visit(own, withPlan(example("llama-3.1-8b-fsdp-8xh100").replace("model: llama-3.1-8b", "model: llama-3.1-8bb")), async (page) => {
    assert.equal(await verdict(page), "Not estimated");
    assert.ok(await page.getByRole("button", { name: "Paste a config.json" }).isVisible());
    await changed(page, () => page.getByRole("button", { name: "llama-3.1-8b", exact: true }).click());
    assert.equal(await verdict(page), "Fits");
  }));

test("refused layout: the rule, and the nearest legal values as buttons", () =>
  visit(own, withPlan(example("qwen2.5-7b-tp8-8xh100")), async (page) => {
    assert.equal(await verdict(page), "Not estimated");
    assert.match(await page.locator(".notice").first().innerText(), /MEM202/);
    await changed(page, () => page.locator(".notice .button").filter({ hasText: /: 4$/ }).first().click());
    assert.match(await planText(page), /tensor: 4/);
    assert.ok(await page.locator(".verdict .figures").isVisible());
  }));

const VERDICTS = [
  ["llama-3.1-8b-fsdp-8xh100", "Fits"],
  ["llama-3.1-8b-four-a100-40gb", "Does not fit"],
  ["llama-3.1-405b-inference-16xh100", "Fits, with a warning"],
  ["llama-3.3-70b-loading-32xh100", "Does not fit: host memory"],
  ["mistral-7b-qlora-t4", "Fits, fails the check"],
];
test("verdicts, one link after the other: in words, with a sign and a tone", (all) =>
  visit(own, withPlan(example(VERDICTS[0][0])), async (page) => {
    for (const [index, [name, word]] of VERDICTS.entries()) {
      await all.test(word, async () => {
        if (index) await changed(page, () => follow(page, withPlan(example(name)).hash));
        assert.match(await verdict(page), new RegExp(word, "i"));
        assert.match(await page.locator(".verdict .sign").innerText(), /^[✓!✕i]$/u);
        assert.match(await page.locator(".verdict").getAttribute("class"), /tone-(good|warn|bad)/);
      });
    }
  }));

test("several plans in a file: a tab for each", () =>
  visit(own, withPlan(example("llama-3.2-1b-optimizers-a10g")), async (page) => {
    const tabs = page.getByRole("tablist", { name: "Plans of the file" }).getByRole("tab");
    assert.ok((await tabs.count()) > 1);
    const lead = () => page.locator("#section-lead").innerText();
    const first = await lead();
    await changed(page, () => tabs.nth(1).click());
    assert.equal(await tabs.nth(1).getAttribute("aria-selected"), "true");
    assert.notEqual(await lead(), first);
  }));

const DAMAGED = [
  ["a newer format", "#p=9.abc", /newer|format 9/],
  ["damage", "#p=1.%%%", /damaged/],
  ["cut in the middle", `#p=${payload(example("llama-3.1-8b-fsdp-8xh100")).slice(0, -40)}`, /damaged/],
  ["a bomb", `#p=${payload("x".repeat(40_000_000))}`, /more than a plan/],
  ["an unknown example", "#e=no-such-example", /no example/],
];
test("a link that cannot be read says why, and the example is shown", (all) =>
  visit(own, { hash: DAMAGED[0][1] }, async (page) => {
    const alert = page.getByRole("alert");
    for (const [index, [why, hash, told]] of DAMAGED.entries()) {
      await all.test(why, async () => {
        if (index) {
          await follow(page, "");
          await alert.waitFor({ state: "detached" });
          await follow(page, hash);
        }
        assert.match(await alert.first().innerText(), told);
        assert.equal(await verdict(page), "Fits");
      });
    }
  }));

test("a link to an example by its name, and from another version", () =>
  visit(own, { hash: "#e=gpt2-124m-8xa100-40gb&v=0.0.1", waits: false }, async (page) => {
    await page.locator(".toast", { hasText: "0.0.1" }).waitFor(); // it goes after some seconds
    await answered(page);
    // The editor draws the lines that are in sight.
    assert.ok(example("gpt2-124m-8xa100-40gb").startsWith(await planText(page)));
  }));

test("the engine fails twice: the plan is kept, with the report and the command to run instead", () =>
  visit(own, { waits: false, allowed: [/Failed to load|ERR_/], init: () => undefined }, async (page) => {
    await page.route("**/engine/**", (route) => route.abort());
    await page.reload();
    await page.getByText("The engine failed twice").waitFor({ timeout: START_MS });
    assert.ok(await page.getByRole("button", { name: "Copy the report" }).isVisible());
    assert.match(await page.locator(".notice pre").innerText(), /memcheck check/);
    assert.match(await planText(page), /model: llama-3\.1-8b/);
  }));

test("no WebAssembly: the example can be read, with the command to run instead", () =>
  visit(own, { waits: false, init: () => { delete globalThis.WebAssembly; } }, async (page) => {
    await page.getByText("no WebAssembly").waitFor();
    assert.match(await page.locator(".notice pre").innerText(), /pip install memcheck/);
  }));

test("on paper: every part open, no controls, black on white", () =>
  visit(own, { scheme: "dark" }, async (page) => {
    await page.emulateMedia({ media: "print" });
    for (const hidden of [".top", "#pane-form", ".tabs", ".yaml-head button"]) assert.equal(await page.locator(hidden).filter({ visible: true }).count(), 0, hidden);
    const colours = await page.evaluate(() => [getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]);
    assert.deepEqual(colours, ["rgba(0, 0, 0, 0)", "rgb(22, 25, 29)"]);
    const folded = await page.locator("details:not([open]) > :not(summary)").evaluateAll((all) => all.filter((each) => each.getBoundingClientRect().height === 0).length);
    assert.equal(folded, 0, "folded parts are open on paper");
    const pdf = await page.pdf();
    assert.ok(pdf.length > 10_000);
  }));

test("answering: figures of the former plan stay, dimmed, until the new ones come", () =>
  visit(own, {}, async (page) => {
    const before = await page.locator(".figures").innerText();
    await changed(page, async () => {
      await slider(page, "training.sequence_length").focus();
      await page.keyboard.press("ArrowRight");
      assert.ok(await page.locator(".figures").isVisible());
    });
    assert.notEqual(await page.locator(".figures").innerText(), before);
    await openExample(page, "gpt2-124m-8xa100-40gb");
    assert.equal(await page.locator("main[data-busy]").count(), 0);
  }));

test("a newer build waits for the reader, who keeps the plan over the change", async () => {
  const folder = mkdtempSync(path.join(tmpdir(), "page-"));
  cpSync(DIST, folder, { recursive: true });
  const server = await serve({ folder });
  try {
    await visit(own, { url: server.url, context: { serviceWorkers: "allow" } }, async (page) => {
      await page.evaluate(() => navigator.serviceWorker.ready.then(() => null));
      await page.reload(); // a first visit is not controlled yet, and a newer worker would take over at once
      await answered(page);
      const worker = path.join(folder, "sw.js");
      writeFileSync(worker, readFileSync(worker, "utf8").replaceAll(/(version:`)\w+/gu, "$1newer"));
      const button = page.getByRole("button", { name: "New version: reload" });
      assert.equal(await button.count(), 0);
      await page.evaluate(() => navigator.serviceWorker.getRegistration().then((found) => found.update()));
      await button.waitFor({ timeout: START_MS });
      await Promise.all([page.waitForEvent("load", { timeout: START_MS }), button.click()]);
      await answered(page);
      assert.equal(await verdict(page), "Fits");
      assert.deepEqual(await page.evaluate(() => caches.keys()), ["memcheck-newer"]);
    });
  } finally {
    await server.close();
    rmSync(folder, { recursive: true });
  }
});

test("zoom of 200 %: half the width in CSS pixels, nothing is cut off or scrolls sideways", () =>
  visit(own, { width: 640, height: 450, context: { deviceScaleFactor: 2 } }, async (page) => {
    for (const name of ["Plan", "Result", "YAML"]) {
      await page.getByRole("tab", { name, exact: true }).click();
      const wide = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
      assert.equal(wide, 0, name);
      const cut = await page.locator("main button:visible, main label:visible").evaluateAll((all) =>
        all.filter((each) => each.scrollWidth > each.clientWidth + 1 && getComputedStyle(each).overflow === "hidden" && getComputedStyle(each).textOverflow !== "ellipsis").map((each) => each.textContent));
      assert.deepEqual(cut, [], name);
    }
  }));
