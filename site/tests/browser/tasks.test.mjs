/** Twelve things that people do on the page, each in Chromium with the engine that is shipped. */
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { answered, changed, example, objections, site, verdict, visit } from "./page.mjs";

const own = site();
const slider = (page, key) => page.locator(`[data-key="${key}"] input[type="range"]`);
const editor = (page) => page.locator(".editor .cm-content");

/** Replace the whole plan by typing it. */
async function write(page, text) {
  await editor(page).click();
  await page.keyboard.press("Control+A");
  await page.keyboard.press("Delete");
  await changed(page, () => page.keyboard.insertText(text));
}

const shownText = (page) => page.evaluate(() => {
  const lines = document.querySelector(".editor").shadowRoot.querySelectorAll(".cm-line");
  return [...lines].map((line) => [...line.childNodes].filter((node) => !node.classList?.contains("cm-hint")).map((node) => node.textContent).join("")).join("\n");
});

async function openExample(page, name) {
  await page.getByRole("button", { name: "Plan", exact: true }).click();
  await page.getByRole("menuitem", { name: /^Examples/ }).click();
  await changed(page, () => page.getByRole("dialog").getByRole("button", { name: new RegExp(`^${name}`) }).click());
}

test("pick a model by searching the catalog", () =>
  visit(own, {}, async (page) => {
    await page.getByLabel("Model").click();
    const box = page.getByRole("combobox", { name: "Model" });
    await box.waitFor();
    await box.fill("qwen2.5 7b");
    await page.getByRole("option").first().waitFor();
    await changed(page, () => page.getByRole("option", { name: /^qwen2\.5-7b / }).click());
    assert.match(await shownText(page), /^model: qwen2\.5-7b$/m);
    assert.equal(await verdict(page), "Fits");
  }));

test("slide to out of memory", () =>
  visit(own, {}, async (page) => {
    assert.equal(await verdict(page), "Fits");
    await slider(page, "training.micro_batch_size").focus();
    for (let step = 0; step < 8 && (await verdict(page)) !== "Does not fit"; step += 1) await changed(page, () => page.keyboard.press("ArrowRight"));
    assert.equal(await verdict(page), "Does not fit");
    assert.match(await shownText(page), /micro_batch_size: [2-9]/);
  }));

