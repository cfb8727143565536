/**
 * Measures the built page in Chromium and writes `benchmarks/site.md`: bytes, starts, moves, memory. Run a build first.
 * With `--equality FILE` (of `python -m benchmarks.page_plans`) the plans are compared as well.
 */
import { readFileSync, writeFileSync } from "node:fs";
import { cpus, loadavg } from "node:os";
import path from "node:path";
import { parseArgs } from "node:util";
import { chromium } from "playwright-core";
import { ask } from "./node.mjs";
import { differences, started } from "./equality.mjs";
import { MADE, ROOT, version } from "./paths.mjs";
import { serve } from "./serve.mjs";

const { values: options } = parseArgs({ options: { equality: { type: "string" } } });
const executablePath = process.env.CHROMIUM ?? "/usr/bin/chromium";
const START_MS = 120_000;
const STARTS = 3;
const MOVES = 200;
const HEAP_MOVES = 2_000;
const MIB = 2 ** 20;

/** Numbers that look random and are the same in each run. */
function random(seed) {
  let state = seed;
  return (below) => {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
    return Math.floor((state / 2 ** 32) * below);
  };
}

const sorted = (found) => [...found].sort((one, other) => one - other);
const median = (found) => sorted(found)[Math.floor(found.length / 2)];
const share = (found, part) => sorted(found)[Math.min(found.length - 1, Math.floor(found.length * part))];

/** Milliseconds from the request for the page to the verdict of the engine that runs. */
async function start(page, url) {
  const begun = performance.now();
  await page.goto(url);
  await page.waitForSelector('main[data-engine="ready"]:not([data-busy])', { timeout: START_MS });
  return performance.now() - begun;
}

async function starts(browser) {
  const found = { cold: [], "cold, without the snapshot": [], warm: [], offline: [] };
  for (let round = 0; round < STARTS; round += 1) {
    const server = await serve();
    const context = await browser.newContext();
    const page = await context.newPage();
    found.cold.push(await start(page, server.url));
    await page.waitForFunction(async () => (await navigator.serviceWorker.getRegistration())?.active?.state === "activated", null, { timeout: START_MS });
    found.warm.push(await start(page, server.url));
    await server.close();
    found.offline.push(await start(page, server.url));
    await context.close();

    const poor = await serve({ missing: /\.snapshot\.gz$/u });
    const other = await browser.newContext({ serviceWorkers: "block" });
    found["cold, without the snapshot"].push(await start(await other.newPage(), poor.url));
    await other.close();
    await poor.close();
  }
  return found;
}

/** Milliseconds from the event of a control to the painted verdict, for random legal moves of the controls in sight. */
async function moves(browser) {
  const server = await serve();
  const context = await browser.newContext({ viewport: { width: 1280, height: 900 }, serviceWorkers: "block" });
  const page = await context.newPage();
  await start(page, server.url);
  const found = await page.evaluate(async (count) => {
    let state = 7;
    const below = (limit) => {
      state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
      return Math.floor((state / 2 ** 32) * limit);
    };
    const main = document.querySelector("main");
    const until = (done, limit) =>
      new Promise((resolve) => {
        const end = performance.now() + limit;
        const look = () => (done() ? resolve(true) : performance.now() > end ? resolve(false) : setTimeout(look, 5));
        look();
      });
    /** Resolves after the frame that shows the next answer. */
    const painted = () =>
      new Promise((resolve) => {
        const give = setTimeout(() => (seen.disconnect(), resolve(false)), 5_000);
        const seen = new MutationObserver(() => {
          seen.disconnect();
          clearTimeout(give);
          requestAnimationFrame(() => {
            const turn = new MessageChannel();
            turn.port1.onmessage = () => resolve(true);
            turn.port2.postMessage(null);
          });
        });
        seen.observe(main, { attributeFilter: ["data-answer"] });
      });
    const times = [];
    for (let tries = 0; times.length < count && tries < 3 * count; tries += 1) {
      await until(() => !("busy" in main.dataset), 5_000);
      const controls = [...document.querySelectorAll(
        'main input[type="range"]:not(:disabled), main input[type="radio"]:not(:disabled):not(:checked), main .field select',
      )].filter((control) => control.checkVisibility());
      const control = controls[below(controls.length)];
      if (!control) continue;
      if (times.length % 10 === 9) await new Promise((resolve) => setTimeout(resolve, 700)); // a reader looks: searches begin
      const shown = painted();
      const begun = performance.now();
      if (control.type === "range") {
        const value = below(Number(control.max) + 1);
        if (value === control.valueAsNumber) continue;
        control.valueAsNumber = value;
        control.dispatchEvent(new Event("input", { bubbles: true }));
      } else if (control.type === "radio") control.click();
      else {
        const legal = [...control.options].filter((option) => !option.disabled && !option.selected);
        if (legal.length === 0) continue;
        control.value = legal[below(legal.length)].value;
        control.dispatchEvent(new Event("change", { bubbles: true }));
      }
      if (await shown) times.push(performance.now() - begun);
    }
    return times;
  }, MOVES);
  await context.close();
  await server.close();
  return found;
}

/** The heap of an engine that answers moves of legal values, and milliseconds until the first step of each. */
async function heap() {
  const engine = await started("snapshot");
  const below = random(11);
  const file = path.join(ROOT, "examples", "llama-3.1-8b-fsdp-8xh100.yaml");
  const text = readFileSync(file, "utf8");
  const request = { path: "plan.yaml", text };
  let id = 1;
  const known = {};
  for (const step of await ask(engine, { id, do: "answer", ...request })) Object.assign(known, step.choices ?? {});
  const times = [];
  for (let move = 0; move < HEAP_MOVES; move += 1) {
    const keys = Object.keys(known).filter((key) => known[key].some(({ legal }) => legal));
    const key = keys[below(keys.length)];
    const legal = known[key].filter((choice) => choice.legal);
    id += 1;
    const steps = engine.begin(JSON.stringify({ id, do: "set", ...request, changes: { [key]: legal[below(legal.length)].value } }));
    const begun = performance.now();
    steps.next();
    times.push(performance.now() - begun);
    steps.close();
  }
  return { bytes: engine.heapBytes(), times };
}

const table = (head, rows) => [`| ${head.join(" | ")} |`, `|${head.map(() => "---|").join("")}`, ...rows.map((row) => `| ${row.join(" | ")} |`)].join("\n");
const ms = (value) => `${Math.round(value).toLocaleString("en")} ms`;

const browser = await chromium.launch({ executablePath, args: ["--no-sandbox", "--disable-gpu"] });
const name = browser.version();
const load = loadavg()[0].toFixed(1);
const say = (text) => console.log(`${(performance.now() / 1_000).toFixed(0)} s: ${text}`);
say("starts");
const begins = await starts(browser);
say("moves");
const moved = await moves(browser);
await browser.close();
say("heap");
const grown = await heap();
say("plans");
const bytes = JSON.parse(readFileSync(path.join(MADE, "measured.json"), "utf8"));
let compared = "";
if (options.equality) {
  const cases = JSON.parse(readFileSync(options.equality, "utf8"));
  const rows = [];
  for (const way of ["snapshot", "plain"]) rows.push([way, cases.length, differences(cases, await started(way)).length]);
  compared = `\n## The same answers as the command\n\nExit code, JSON and messages of \`memcheck check --format json\`, in CPython here and in the page's engine.\n\n${table(["start", "plans", "differences"], rows)}\n`;
}
const page = `# The page: bytes and speed

Written by \`npm --prefix site run bench\` after a build. memcheck ${version()}, Chromium ${name}, ${cpus().length} cores, load ${load}.

## Bytes

As they travel, with gzip. The build fails beyond the budget.

${table(["product", "kB"], Object.entries(bytes).map(([product, size]) => [product, (size / 1_000).toFixed(1)]))}

## Starts

From the request for the page to the first verdict of the running engine, in ${STARTS} visits each. The page shows the answer
to its first plan before that.

${table(["start", "median", "worst"], Object.entries(begins).map(([way, found]) => [way, ms(median(found)), ms(Math.max(...found))]))}

## Moves

${table(
  ["what", "moves", "median", "95 %", "worst"],
  [
    ["a control's event to the painted verdict", moved.length, ms(median(moved)), ms(share(moved, 0.95)), ms(Math.max(...moved))],
    ["the engine's first step alone", grown.times.length, ms(median(grown.times)), ms(share(grown.times, 0.95)), ms(Math.max(...grown.times))],
  ],
)}

After ${HEAP_MOVES.toLocaleString("en")} moves the engine's heap has ${(grown.bytes / MIB).toFixed(0)} MiB; a worker beyond 192 MiB is replaced.
${compared}`;
writeFileSync(path.join(ROOT, "benchmarks", "site.md"), page);
console.log(page);
