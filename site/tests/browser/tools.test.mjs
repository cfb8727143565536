/** Compare, sweep, export, search, inference, the page without a network, and walks over several of them. */
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { answered, changed, openExample, planText, site, slider, verdict, visit, write } from "./page.mjs";

const own = site();

test("compare with the plan as it was", () =>
  visit(own, {}, async (page) => {
    await page.getByRole("button", { name: "Compare" }).click();
    await page.getByRole("button", { name: /This plan as it is now/ }).click();
    await page.locator("#section-comparison .index li").nth(1).waitFor();
    await changed(page, async () => {
      await slider(page, "training.micro_batch_size").focus();
      await page.keyboard.press("ArrowRight");
    });
    await page.waitForFunction(() => {
      const shares = [...document.querySelectorAll("#section-comparison .index .num")].map((each) => each.textContent);
      return shares.length === 2 && shares[0] !== shares[1];
    });
    await page.getByRole("button", { name: "Stop" }).click();
    assert.equal(await page.locator("#section-comparison").count(), 0);
  }));

test("sweep two keys, and take a cell", () =>
  visit(own, {}, async (page) => {
    await page.getByRole("button", { name: "Sweep" }).click();
    await page.getByRole("button", { name: "Draw the map" }).click();
    const cells = page.locator("#section-sweep .cell");
    await cells.first().waitFor();
    const cell = cells.nth(9);
    const share = (await cell.innerText()).match(/[\d.,]+%/)[0];
    await changed(page, () => cell.click());
    assert.match(await page.locator(".figures").innerText(), new RegExp(share.replace(".", "\\.")));
  }));

test("export reports, pictures and a framework's config", () =>
  visit(own, {}, async (page) => {
    for (const [entry, name, holds] of [
      ["Markdown", /\.md$/, /memcheck/], ["JSON", /\.json$/, /"needed_bytes"|"plans"/], ["CSV", /\.csv$/, /,/], ["HTML", /\.html$/, /<!DOCTYPE html>/],
      ["SVG", /\.svg$/, /^<svg /], ["PNG", /\.png$/, /PNG/], ["DeepSpeed", /\.json$/, /zero_optimization/],
    ]) {
      await page.getByRole("button", { name: "Export" }).click();
      const saved = page.waitForEvent("download");
      await page.getByRole("menuitem", { name: new RegExp(`^${entry}`) }).click();
      const file = await saved;
      assert.match(file.suggestedFilename(), name);
      assert.match(readFileSync(await file.path(), "latin1"), holds, entry);
    }
  }));

test("search for the least change that fits, and apply it", () =>
  visit(own, {}, async (page) => {
    await openExample(page, "llama-3.1-8b-no-sync-8xa100-40gb");
    await page.getByRole("button", { name: "Suggest" }).click();
    await page.getByRole("menuitem", { name: "The least change that fits" }).click();
    await page.locator("#section-suggest .apply").first().waitFor();
    await changed(page, () => page.locator("#section-suggest .apply").first().click());
    assert.match(await verdict(page), /^Fits|^Uncertain/);
  }));

test("check an inference job", () =>
  visit(own, {}, async (page) => {
    await changed(page, () => page.getByText("Inference", { exact: true }).click());
    assert.match(await planText(page), /^inference:/m);
    assert.doesNotMatch(await planText(page), /^training:/m);
    assert.ok(await page.locator(".figures").isVisible());
  }));

test("reload without a network", () =>
  visit(own, {}, async (page) => {
    await page.evaluate(() => navigator.serviceWorker.ready);
    await page.context().setOffline(true);
    await page.reload();
    await answered(page);
    assert.equal(await verdict(page), "Fits");
    assert.equal(await page.locator(".top .status", { hasText: "offline" }).count(), 1);
    await changed(page, () => page.getByRole("button", { name: "Micro-batch size: more" }).click());
  }));

test("walk: an 8B model that does not fit on four A100, its first remedy, and the batch up to the limit", () =>
  visit(own, {}, async (page) => {
    await openExample(page, "llama-3.1-8b-four-a100-40gb");
    assert.equal(await verdict(page), "Does not fit");
    assert.match(await planText(page), /sequence_length: 8192/);
    await page.locator("#section-remedies .apply").first().waitFor();
    await changed(page, () => page.locator("#section-remedies .apply").first().click());
    assert.match(await verdict(page), /^(Fits|Uncertain)/);
    const more = page.getByRole("button", { name: "Micro-batch size: more" });
    for (let step = 0; step < 12 && (await verdict(page)) !== "Does not fit"; step += 1) await changed(page, () => more.click());
    assert.equal(await verdict(page), "Does not fit");
    await changed(page, () => page.getByRole("button", { name: "Micro-batch size: less" }).click());
    assert.match(await verdict(page), /^(Fits|Uncertain|Above)/);
  }));

const TEXTBOOK = [
  ["Llama 7B of the Lattice calculator", "{parameters: 6607343616, layers: 32, hidden_size: 4096, activation_multiplier: 40.6875}", (gib) => assert.equal(gib.toFixed(1), "153.1")],
  ["8B of the Training Memory Calculator", "{parameters: 8030261248, layers: 32, hidden_size: 4096, activation_multiplier: 17}", (gib) => assert.equal(((gib * 2 ** 30) / 1e9).toFixed(1), "161.4")],
];
test("walk: textbook mode gives the figures of web calculators", (all) =>
  visit(own, {}, async (page) => {
    for (const [name, rough, figure] of TEXTBOOK) {
      await all.test(name, async () => {
        // 16 bytes a parameter with gradients that stay through the second forward pass, and layers x 2 x s x h x multiplier.
        await write(page, `memcheck: 1
model:
  rough: ${rough}
hardware: {gpu: h200}
training:
  framework: huggingface
  micro_batch_size: 1
  sequence_length: 4096
  gradient_accumulation_steps: 2
  precision: bf16-mixed
  optimizer: {name: adamw, implementation: fused}
`);
        await changed(page, () => page.getByLabel(/^Textbook/).check());
        assert.match(await planText(page), /overhead: "?10%"?/);
        figure(Number((await page.locator(".figures b").first().innerText()).replace(",", "")));
      });
    }
  }));
