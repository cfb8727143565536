/** Nothing that axe-core objects to, nothing wider than the window: in both themes, at three widths, in every part. */
import assert from "node:assert/strict";
import { mkdirSync, writeFileSync } from "node:fs";
import path from "node:path";
import { test } from "node:test";
import { MADE } from "../../build/paths.mjs";
import { changed, objections, openExample, site, visit, write } from "./page.mjs";

const own = site();
const SHOTS = path.join(MADE, "shots");
mkdirSync(SHOTS, { recursive: true });

const widthFits = (page) => page.evaluate(() => {
  const root = document.documentElement;
  return [...document.querySelectorAll("body *")]
    .filter((each) => each.checkVisibility() && !each.closest("svg, pre, .wide, .unseen, .marks, .skip, [popover]") && !each.parentElement.closest(".documents") && each.getBoundingClientRect().right > root.clientWidth + 0.5)
    .map((each) => each.outerHTML.slice(0, 120));
});

for (const width of [390, 1280, 1920]) {
  test(`${width} pixels, light and dark`, () =>
    visit(own, { width, height: width < 1000 ? 844 : 950 }, async (page) => {
      const look = async (name) => {
        for (const scheme of ["light", "dark"]) {
          await page.emulateMedia({ colorScheme: scheme });
          // Playwright's own way puts a style into the page, which the policy refuses.
          const session = await page.context().newCDPSession(page);
          const { data } = await session.send("Page.captureScreenshot");
          await session.detach();
          writeFileSync(path.join(SHOTS, `${name}-${width}-${scheme}.png`), data, "base64");
          assert.deepEqual(await widthFits(page), [], `${name}, ${scheme}, is wider than the window`);
          assert.deepEqual(await objections(page), [], `${name}, ${scheme}`);
        }
      };
      const tab = async (name) => { if (width < 1000) await page.getByRole("tab", { name }).click(); };
      await look("fits");
      for (const group of await page.locator("#pane-form details > summary").all()) await group.click();
      await page.waitForTimeout(300);
      await look("more");
      await tab("YAML");
      await look("yaml");
      await write(page, "memcheck: 1\nmodel: llama-3.1-8b\nhardware: {gpu: h100-80gb}\ntraining: {framework: huggingface, sequence_length: 8192, micro_batch: 1}\n");
      await tab("Result");
      await look("broken");
      if (width < 1000) {
        await page.getByRole("button", { name: "Everything else" }).click();
        await look("menu");
        await changed(page, async () => {
          await page.getByRole("menuitem", { name: /^Examples/ }).click();
          await look("examples");
          await page.getByRole("dialog").getByRole("button", { name: /^llama-3.1-8b-four/ }).click();
        });
      } else {
        await page.getByRole("button", { name: "Export" }).click();
        await look("menu");
        await page.keyboard.press("Escape");
        await openExample(page, "llama-3.1-8b-four-a100-40gb");
      }
      await page.waitForFunction(() => !document.querySelector(".searching"));
      await page.evaluate(() => document.querySelectorAll("#pane-result details").forEach((each) => { each.open = true; }));
      await look("failing");
      await page.getByRole("button", { name: "Share" }).click();
      await look("share");
    }));
}
