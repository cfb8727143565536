// Opens pages in Chromium and prints, as JSON, what a reader would stumble over:
//   node look.mjs CHROMIUM [--shots FOLDER] FILE...
// Per file and view: messages on the console, requests but for the file itself, widths, and what axe-core objects to.
// The packages are those of `site`. Axe-core takes most of the time, so it looks at each width once and at each colour scheme once.
import { createRequire } from "node:module";
import { mkdtempSync, rmSync } from "node:fs";
import { availableParallelism, tmpdir } from "node:os";
import { basename, join, resolve } from "node:path";
import { pathToFileURL } from "node:url";

const packages = createRequire(new URL("../../site/package.json", import.meta.url));
const { chromium } = packages("playwright-core");
const FLAGS = [
  "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
  "--disable-background-networking", "--disable-component-update", "--disable-sync",
];
const VIEWS = [];
for (const width of [1280, 390]) for (const scheme of ["light", "dark"]) VIEWS.push({ width, scheme, judged: (width > 800) === (scheme === "light") });

const [executablePath, ...rest] = process.argv.slice(2);
const shots = rest[0] === "--shots" ? rest.splice(0, 2)[1] : null;
const axe = packages.resolve("axe-core/axe.min.js");
const profile = mkdtempSync(join(tmpdir(), "memcheck-chromium-"));
const left = rest.flatMap((file) => VIEWS.map((view) => ({ address: pathToFileURL(resolve(file)).href, ...view })));
const seen = [];
try {
  await Promise.all(Array.from({ length: Math.min(availableParallelism(), 4) }, (_, number) => work(join(profile, `${number}`))));
} finally {
  rmSync(profile, { recursive: true, force: true });
}
process.stdout.write(JSON.stringify(seen, null, 1) + "\n");

async function work(folder) { // a browser of its own: pages of one share a process
  const context = await chromium.launchPersistentContext(folder, { executablePath, headless: true, args: FLAGS });
  await context.addInitScript({ path: axe });
  try {
    for (let view; (view = left.shift()); ) seen.push(await look(context, view));
  } finally {
    await context.close();
  }
}

async function look(context, { address, width, scheme, judged }) {
  const page = await context.newPage();
  const found = { file: basename(address), width, scheme, messages: [], requests: [] };
  page.on("console", (message) => found.messages.push(`${message.type()}: ${message.text()}`));
  page.on("pageerror", (error) => found.messages.push(`error: ${error.message}`));
  page.on("request", (request) => { if (request.url() !== address) found.requests.push(request.url()); });
  await page.setViewportSize({ width, height: 900 });
  await page.emulateMedia({ colorScheme: scheme });
  await page.goto(address, { waitUntil: "load" });
  if (shots) await page.screenshot({ path: join(shots, `${basename(address, ".html")}-${width}-${scheme}.png`), fullPage: true });
  await page.evaluate(() => document.querySelectorAll("details").forEach((each) => { each.open = true; }));
  found.overflow = await page.evaluate(() => {
    const root = document.documentElement;
    const wide = [...document.querySelectorAll("body *")].filter(
      (each) => !each.closest("svg, pre, .wide") && each.getBoundingClientRect().right > root.clientWidth + 0.5,
    );
    return { scroll: root.scrollWidth, client: root.clientWidth, wide: wide.map((each) => each.outerHTML.slice(0, 120)) };
  });
  found.background = await page.evaluate(() => getComputedStyle(document.body).backgroundColor);
  if (judged) found.axe = await page.evaluate(async () => {
    const result = await axe.run(document, { resultTypes: ["violations"] });
    return result.violations.map((each) => `${each.id} x${each.nodes.length}: ${each.help}: ${each.nodes[0].html.slice(0, 160)}`);
  });
  found.rules = await page.evaluate(() => axe.getRules().length);
  await page.close();
  return found;
}
