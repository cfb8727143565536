/** What people do on the page, each in Chromium with the engine that is shipped. */
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import path from "node:path";
import { test } from "node:test";
import { ROOT } from "../../build/paths.mjs";
import { answered, changed, example, openExample, planText, site, slider, verdict, visit, write } from "./page.mjs";

const own = site();

test("pick a model by searching the catalog", () =>
  visit(own, {}, async (page) => {
    await page.getByRole("textbox", { name: "Model" }).click();
    const box = page.getByRole("combobox", { name: "Model" });
    await box.fill("qwen2.5 7b");
    await changed(page, () => page.getByRole("option", { name: /^qwen2\.5-7b\b/ }).first().click());
    assert.match(await planText(page), /^model: qwen2\.5-7b$/m);
    assert.equal(await verdict(page), "Fits");
  }));

test("choose a GPU out of the whole catalog", () =>
  visit(own, {}, async (page) => {
    const cards = page.locator('[data-key="hardware.gpu"] .gpus label');
    assert.deepEqual(await cards.locator("b").allInnerTexts(), ["rtx-4090", "l40s", "a100-40gb", "a100-80gb", "h100-80gb", "h200", "b200", "mi300x"]);
    await page.getByRole("button", { name: "All GPUs" }).click();
    await cards.filter({ hasText: "rtx-4060-ti-16gb" }).waitFor();
    assert.ok(await page.getByRole("radio", { name: /^t4/ }).isDisabled(), "a GPU without the plan's precision is barred");
    await page.getByLabel("Filter GPUs").fill("h20");
    await changed(page, () => page.getByRole("radio", { name: /^h20 / }).check());
    assert.match(await planText(page), /gpu: h20$/m);
  }));

test("slide to out of memory, and see it in the text", () =>
  visit(own, {}, async (page) => {
    assert.equal(await verdict(page), "Fits");
    await slider(page, "training.micro_batch_size").focus();
    for (let step = 0; step < 8 && (await verdict(page)) !== "Does not fit"; step += 1) {
      await changed(page, () => page.keyboard.press("ArrowRight"));
    }
    assert.equal(await verdict(page), "Does not fit");
    assert.match(await planText(page), /micro_batch_size: [2-9]/);
    await page.getByRole("button", { name: "Undo" }).click();
    await answered(page);
    assert.doesNotMatch(await planText(page), /micro_batch_size: 1[0-9]|micro_batch_size: 64/);
  }));

test("share the plan as a link that shows it again", () =>
  visit(own, { context: { permissions: ["clipboard-read", "clipboard-write"] } }, async (page) => {
    await slider(page, "training.micro_batch_size").focus();
    await changed(page, () => page.keyboard.press("ArrowRight"));
    const text = await planText(page);
    await page.getByRole("button", { name: "Share" }).click();
    await page.getByRole("button", { name: "Copy the link" }).click();
    const link = await page.evaluate(() => navigator.clipboard.readText());
    assert.equal(link, await page.getByLabel("Link").inputValue());
    assert.match(link, /#p=1\./);
    await page.goto("about:blank");
    await page.goto(link);
    await answered(page);
    assert.equal(await planText(page), text);
    assert.ok(!own.requests.some((each) => each.includes("p=1")), "the plan went to the server");
  }));

test("look at it on a phone", () =>
  visit(own, { width: 390, height: 844, context: { hasTouch: true, isMobile: true } }, async (page) => {
    await changed(page, () => page.getByRole("button", { name: "Micro-batch size: more" }).tap());
    assert.match(await planText(page).catch(() => "micro_batch_size: 2"), /micro_batch_size: 2/);
    for (const name of ["Result", "YAML", "Plan"]) {
      await page.getByRole("tab", { name }).tap();
      assert.equal(await page.getByRole("tab", { name }).getAttribute("aria-selected"), "true");
      assert.ok(await page.locator(".verdict .word").isVisible(), "the verdict stays in sight");
      const wide = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
      assert.equal(wide, 0, `${name} is wider than the phone`);
    }
    const small = await page.evaluate(() =>
      [...document.querySelectorAll("#pane-form :is(button, select, input:not([type=radio], [type=checkbox], [type=range])), .tabs button")]
        .filter((each) => each.checkVisibility() && !each.matches(".info, .assumed, .why-not"))
        .map((each) => each.getBoundingClientRect()).filter((box) => box.height < 44).length);
    assert.equal(small, 0, "targets of at least 44 pixels");
  }));

test("use the keyboard alone", () =>
  visit(own, {}, async (page) => {
    const focused = () => page.evaluate(() => {
      let at = document.activeElement;
      while (at?.shadowRoot?.activeElement) at = at.shadowRoot.activeElement;
      return at?.getAttribute("aria-label") ?? at?.labels?.[0]?.textContent?.trim() ?? at?.textContent?.trim() ?? "";
    });
    const named = async () => {
      for (let look = 0; look < 10; look += 1) {
        const name = await focused();
        if (name) return name;
        await page.waitForTimeout(50); // the search takes the place of the model's field once that has the focus
      }
      return "";
    };
    await page.keyboard.press("Tab");
    assert.equal(await focused(), "Skip to the result");
    const seen = [];
    for (let step = 0; step < 400 && !seen.includes("The plan as YAML"); step += 1) {
      await page.keyboard.press("Tab");
      seen.push(await named());
    }
    for (const name of ["Plan", "Compare", "Sweep", "Share", "Export", "Model", "The plan as YAML"]) assert.ok(seen.includes(name), `${name} is reached: ${seen.join(", ")}`);
    await page.keyboard.press("Tab");
    assert.notEqual(await focused(), "The plan as YAML", "Tab leaves the editor");
    await page.getByRole("button", { name: "Plan", exact: true }).focus();
    await page.keyboard.press("Enter");
    await page.keyboard.press("ArrowDown");
    await page.keyboard.press("Escape");
    assert.equal(await focused(), "Plan", "Escape gives the focus back");
  }));

test("choose dark", () =>
  visit(own, {}, async (page) => {
    const background = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
    assert.equal(await background(), "rgb(246, 247, 249)");
    await page.getByRole("button", { name: "Light or dark" }).click();
    assert.equal(await background(), "rgb(15, 18, 22)");
    await page.reload();
    await answered(page);
    assert.equal(await background(), "rgb(15, 18, 22)", "the choice stays");
  }));

test("open an example, a file, and drop one on the page", () =>
  visit(own, {}, async (page) => {
    await openExample(page, "llama-3.1-8b-four-a100-40gb");
    assert.equal(await verdict(page), "Does not fit");
    const chooser = page.waitForEvent("filechooser");
    await page.getByRole("button", { name: "Plan", exact: true }).click();
    await page.getByRole("menuitem", { name: /^Open files/ }).click();
    await changed(page, async () => (await chooser).setFiles([{ name: "mine.yaml", mimeType: "text/yaml", buffer: Buffer.from(example("mistral-7b-qlora-t4")) }]));
    assert.equal(await planText(page), example("mistral-7b-qlora-t4"));
    await changed(page, () => page.evaluate((text) => {
      const data = new DataTransfer();
      data.items.add(new File([text], "dropped.yaml"));
      for (const type of ["dragenter", "dragover", "drop"]) document.body.dispatchEvent(new DragEvent(type, { dataTransfer: data, bubbles: true, cancelable: true }));
    }, example("gpt2-xl-2048")));
    assert.equal(await planText(page), example("gpt2-xl-2048"));
    await changed(page, () => page.getByRole("button", { name: "Back" }).click());
    assert.equal(await planText(page), example("mistral-7b-qlora-t4"));
  }));

test("write a plan in the editor", () =>
  visit(own, {}, async (page) => {
    await write(page, example("rough-7b-a100-80gb"));
    assert.equal(await planText(page), example("rough-7b-a100-80gb"));
    assert.ok(await page.locator(".verdict .figures").isVisible());
  }));

test("download the plan as it is in the page", () =>
  visit(own, {}, async (page) => {
    const saved = page.waitForEvent("download");
    await page.getByRole("button", { name: "Export" }).click();
    await page.getByRole("menuitem", { name: /^Plan/ }).click();
    const file = await saved;
    assert.equal(file.suggestedFilename(), "llama-3.1-8b-fsdp-8xh100.yaml");
    assert.equal(readFileSync(await file.path(), "utf8"), example("llama-3.1-8b-fsdp-8xh100"));
  }));

test("apply a remedy, and take it back", () =>
  visit(own, {}, async (page) => {
    await openExample(page, "llama-3.1-8b-four-a100-40gb");
    assert.equal(await verdict(page), "Does not fit");
    const first = page.locator("#section-remedies .apply").first();
    await first.waitFor();
    const before = await planText(page);
    await changed(page, () => first.click());
    assert.notEqual(await planText(page), before);
    assert.notEqual(await verdict(page), "Does not fit");
    await changed(page, () => page.locator(".toast .button").click());
    assert.equal(await planText(page), before);
  }));

test("paste a config.json: the same answer as by the model's name", () =>
  visit(own, {}, async (page) => {
    const byName = await page.locator(".figures").innerText();
    await page.getByRole("button", { name: "Plan", exact: true }).click();
    await page.getByRole("menuitem", { name: /^Paste/ }).click();
    await page.getByRole("dialog").getByLabel("Text", { exact: true }).fill(JSON.stringify(LLAMA));
    await changed(page, () => page.getByRole("button", { name: "Read it" }).click());
    assert.match(await planText(page), /config: "?\.\/config\.json/);
    assert.equal(await page.locator(".figures").innerText(), byName);
  }));

test("import an Axolotl file, with the hardware that it does not state", () =>
  visit(own, {}, async (page) => {
    await page.getByRole("button", { name: "Plan", exact: true }).click();
    await page.getByRole("menuitem", { name: /^Paste/ }).click();
    await page.getByRole("dialog").getByLabel("Text", { exact: true }).fill(readFileSync(path.join(ROOT, "examples", "configs", "axolotl-llama-3.1-8b-lora.yml"), "utf8"));
    await page.getByRole("button", { name: "Read it" }).click();
    await page.getByRole("dialog").getByLabel("hardware.gpu", { exact: true }).fill("l40s");
    await page.getByRole("dialog").getByLabel("hardware.gpus_per_node").fill("1");
    await changed(page, () => page.getByRole("button", { name: "Read it" }).click());
    assert.match(await planText(page), /method: lora/);
    assert.equal(await verdict(page), "Does not fit");
    assert.match(await page.locator(".notice summary").innerText(), /axolotl/);
  }));

test("a script that memcheck cannot read is refused with the reader's message, and stays to be mended", () =>
  visit(own, {}, async (page) => {
    await page.getByRole("button", { name: "Plan", exact: true }).click();
    await page.getByRole("menuitem", { name: /^Paste/ }).click();
    await page.getByRole("dialog").getByLabel("Text", { exact: true }).fill("import os\nos.system('curl http://127.0.0.1:1/')\n");
    await page.getByRole("button", { name: "Read it" }).click();
    await page.getByRole("dialog").getByRole("alert").waitFor();
    assert.match(await page.getByRole("dialog").getByLabel("Text", { exact: true }).inputValue(), /os\.system/);
    await page.keyboard.press("Escape");
    assert.equal(await verdict(page), "Fits");
  }));

const LLAMA = {
  architectures: ["LlamaForCausalLM"], attention_bias: false, attention_dropout: 0.0, bos_token_id: 128000, eos_token_id: 128001,
  hidden_act: "silu", hidden_size: 4096, initializer_range: 0.02, intermediate_size: 14336, max_position_embeddings: 131072,
  mlp_bias: false, model_type: "llama", num_attention_heads: 32, num_hidden_layers: 32, num_key_value_heads: 8,
  pretraining_tp: 1, rms_norm_eps: 1e-5, rope_theta: 500000.0, tie_word_embeddings: false, torch_dtype: "bfloat16",
  transformers_version: "4.43.0.dev0", use_cache: true, vocab_size: 128256,
  rope_scaling: { factor: 8.0, high_freq_factor: 4.0, low_freq_factor: 1.0, original_max_position_embeddings: 8192, rope_type: "llama3" },
};
