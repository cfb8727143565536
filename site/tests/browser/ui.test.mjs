/** `memcheck ui`: the page with the plans of a folder, answered by this checkout's own memcheck. */
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import path from "node:path";
import { createInterface } from "node:readline";
import { test } from "node:test";
import { DIST, python, ROOT } from "../../build/paths.mjs";
import { changed, example, site, slider, verdict, visit } from "./page.mjs";

const own = site();
const SERVE = `
import sys
from memcheck.cli.replace import put_in_place
from memcheck.live.server import PageServer
server = PageServer(sys.argv[1], put_in_place, page=sys.argv[2])
print(server.address, flush=True)
server.serve_forever()
`;

test("open a folder, change a plan, save it, and settle a conflict with the disk", async () => {
  const folder = mkdtempSync(path.join(tmpdir(), "memcheck-ui-"));
  const file = path.join(folder, "plan.yaml");
  const on = () => readFileSync(file, "utf8");
  writeFileSync(file, example("llama-3.1-8b-fsdp-8xh100"));
  const server = spawn(python(), ["-c", SERVE, folder, DIST], { cwd: ROOT, stdio: ["ignore", "pipe", "inherit"] });
  try {
    const [address] = await once(createInterface({ input: server.stdout }), "line");
    const [url, token] = address.split("#");
    // The browser reports the refused save, too.
    await visit(own, { url, hash: `#${token}`, allowed: [/409/] }, async (page) => {
      assert.equal(await verdict(page), "Fits");
      const status = page.locator(".top .status", { hasText: "reading" });
      await status.waitFor();
      const more = () => changed(page, async () => {
        await slider(page, "training.micro_batch_size").focus();
        await page.keyboard.press("ArrowRight");
      });
      const save = () => status.getByRole("button", { name: "Save" }).click();
      await more();
      assert.equal(on(), example("llama-3.1-8b-fsdp-8xh100"), "nothing is written before Save");
      await save();
      await status.getByText("not saved").waitFor({ state: "detached" });
      const saved = on();
      assert.match(saved, /micro_batch_size: [2-9]/);

      const other = `${saved}# changed by another program\n`;
      writeFileSync(file, other);
      await more();
      await save();
      const dialog = page.getByRole("dialog", { name: "The file has changed on the disk" });
      await dialog.getByText("# changed by another program").waitFor();
      assert.equal(on(), other, "the disk's text is kept until somebody chooses");
      await dialog.getByRole("button", { name: "Save this page's" }).click();
      await status.getByText("not saved").waitFor({ state: "detached" });
      assert.doesNotMatch(on(), /another program/);
      assert.notEqual(on(), saved);
    });
  } finally {
    server.kill();
    rmSync(folder, { recursive: true });
  }
});
