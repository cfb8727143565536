/** Nothing that axe-core objects to, nothing wider than the window: in both themes, at three widths, in every part. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { changed, objections, openExample, site, visit, write } from "./page.mjs";

const own = site();
const NARROW = 390;
const WIDE = 1280;
const WIDEST = 1920;
/** Of axe-core's rules those that look at colours: in the dark nothing else is another. */
const COLOURS = ["color-contrast", "link-in-text-block"];

const widthFits = (page) => page.evaluate(() => {
  const root = document.documentElement;
  return [...document.querySelectorAll("body *")]
    .filter((each) => each.checkVisibility() && !each.closest("svg, pre, .wide, .unseen, .marks, .skip, [popover]") && !each.parentElement.closest(".documents") && each.getBoundingClientRect().right > root.clientWidth + 0.5)
    .map((each) => each.outerHTML.slice(0, 120));
});

/** Wait until the page is drawn at a width. */
async function resize(page, width) {
  await page.setViewportSize({ width, height: width < 1000 ? 844 : 950 });
  await page.evaluate(() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))));
}

/** Look at one state. The widest window shows what a wide one does, with more room. */
async function look(page, name, ...widths) {
  for (const width of widths) {
    await resize(page, width);
    assert.deepEqual(await widthFits(page), [], `${name} is wider than ${width} pixels`);
    if (width === WIDEST) continue;
    for (const [scheme, rules] of [["dark", COLOURS], ["light", undefined]]) {
      await page.emulateMedia({ colorScheme: scheme });
      assert.deepEqual(await objections(page, rules), [], `${name}, ${width} pixels, ${scheme}`);
    }
  }
}

test("three widths, light and dark", () =>
  visit(own, { width: NARROW, height: 844 }, async (page) => {
    const all = [WIDEST, WIDE, NARROW];
    const tab = (name) => page.getByRole("tab", { name }).click();
    await look(page, "fits", ...all);
    for (const group of await page.locator("#pane-form details > summary").all()) await group.click();
    await page.waitForTimeout(300);
    await look(page, "more", ...all);
    await tab("YAML");
    await look(page, "yaml", NARROW);
    await write(page, "memcheck: 1\nmodel: llama-3.1-8b\nhardware: {gpu: h100-80gb}\ntraining: {framework: huggingface, sequence_length: 8192, micro_batch: 1}\n");
    await tab("Result");
    await look(page, "broken", ...all);
    await page.getByRole("button", { name: "Everything else" }).click();
    await look(page, "menu", NARROW);
    await changed(page, async () => {
      await page.getByRole("menuitem", { name: /^Examples/ }).click();
      await look(page, "examples", NARROW);
      await page.getByRole("dialog").getByRole("button", { name: /^llama-3.1-8b-four/ }).click();
    });
    await page.waitForFunction(() => !document.querySelector(".searching"));
    await page.evaluate(() => document.querySelectorAll("#pane-result details").forEach((each) => { each.open = true; }));
    await look(page, "failing", ...all);
    await page.getByRole("button", { name: "Share" }).click();
    await look(page, "share", NARROW);
    await page.keyboard.press("Escape");
    await resize(page, WIDE);
    await page.getByRole("button", { name: "Share" }).click();
    await look(page, "share", WIDE, WIDEST);
    await page.keyboard.press("Escape");
    await page.getByRole("button", { name: "Export" }).click();
    await look(page, "menu", WIDE, WIDEST);
    await page.keyboard.press("Escape");
    await openExample(page, "gpt2-124m-8xa100-40gb");
    await look(page, "another example", WIDE);
  }));
