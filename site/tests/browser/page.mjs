/**
 * Opens the built page in Chromium, and holds against every test what no visit may have: a message on the console, a
 * request that leaves the page's own origin, a report of the security policy.
 */
import assert from "node:assert/strict";
import { existsSync, readFileSync } from "node:fs";
import { createRequire } from "node:module";
import path from "node:path";
import { after, before } from "node:test";
import { chromium } from "playwright-core";
import { serve } from "../../build/serve.mjs";
import { DIST, ROOT } from "../../build/paths.mjs";

const BROWSERS = ["/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome", "/usr/bin/google-chrome-stable"];
const FLAGS = [
  "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
  "--disable-background-networking", "--disable-component-update", "--disable-sync",
];
export const executablePath = process.env.CHROMIUM ?? BROWSERS.find((each) => existsSync(each));
/** The engine starts in seconds on an idle machine, and in a minute on one that runs everything else, too. */
export const START_MS = 120_000;
export const ANSWER_MS = 90_000;
export const AXE = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
export const example = (name) => readFileSync(path.join(ROOT, "examples", `${name}.yaml`), "utf8");

/** Starts server and browser for the tests of one file. Pages that a test opens are checked and closed by `visit`. */
export function site() {
  const own = { url: "", browser: null, requests: [] };
  before(async () => {
    assert.ok(existsSync(path.join(DIST, "index.html")), "build the page first: npm --prefix site run build");
    const server = await serve({ asked: (wanted) => own.requests.push(wanted) });
    own.server = server;
    own.url = server.url;
    own.browser = await chromium.launch({ executablePath, args: FLAGS });
  });
  after(async () => {
    await own.browser?.close();
    await own.server?.close();
  });
  return own;
}

/**
 * Open the page, do something with it, and check that nothing went wrong meanwhile.
 *
 * `options`: width, height, scheme, url (in place of the test's own server), hash (of the address), init (a script before any of the page's), waits (false: do not
 * wait for the engine), allowed (messages of the console that the test brings about itself), context (of Playwright).
 */
export async function visit(own, options, work) {
  const { width = 1280, height = 900, scheme = "light", url = own.url, hash = "", init, waits = true, allowed = [], context: given = {} } = options;
  const context = await own.browser.newContext({ viewport: { width, height }, colorScheme: scheme, acceptDownloads: true, ...given });
  const seen = { messages: [], outside: [], reports: [] };
  await context.exposeFunction("reportViolation", (text) => seen.reports.push(text));
  await context.addInitScript(() => {
    document.addEventListener("securitypolicyviolation", (event) => {
      window.reportViolation(`${event.violatedDirective}: ${event.blockedURI} ${event.sample}`);
    });
  });
  if (init) await context.addInitScript(init);
  const page = await context.newPage();
  page.setDefaultTimeout(ANSWER_MS);
  page.on("console", (message) => {
    if (["error", "warning"].includes(message.type()) && !allowed.some((each) => each.test(message.text()))) seen.messages.push(message.text());
  });
  page.on("pageerror", (error) => seen.messages.push(error.stack ?? error.message));
  context.on("request", (request) => {
    if (!request.url().startsWith(url) && !/^(blob|data):/.test(request.url())) seen.outside.push(request.url());
  });
  try {
    await page.goto(url + hash, { waitUntil: "load" });
    if (waits) await answered(page);
    await work(page, seen);
    assert.deepEqual(seen.messages, [], "messages on the console");
    assert.deepEqual(seen.outside, [], "requests that left the page's origin");
    assert.deepEqual(seen.reports, [], "reports of the security policy");
  } finally {
    await context.close();
  }
}

/** Wait until the engine runs and the newest text has its answer. */
export async function answered(page) {
  await page.waitForSelector('main[data-engine="ready"]:not([data-busy])', { timeout: START_MS });
}

/** Do something that changes the plan, and wait for the answer to it. */
export async function changed(page, work) {
  const number = () => page.locator("main").getAttribute("data-answer");
  const old = await number();
  await work();
  await page.waitForFunction((was) => {
    const main = document.querySelector("main");
    return main?.dataset.answer !== was && !("busy" in main.dataset);
  }, old, { timeout: ANSWER_MS });
}

/** Follow a link in the page that is open. */
export const follow = (page, hash) => page.evaluate((to) => { location.hash = to; }, hash);

/** The word of the verdict, such as `Fits`. */
export const verdict = (page) => page.locator(".verdict .word").innerText().then((text) => text.replace(/^[✓!✕i]\s*/u, "").trim());

/** The plan as the editor shows it, without what is shown after its lines. */
export async function planText(page) {
  await page.waitForFunction(() => document.querySelector(".editor")?.shadowRoot?.querySelector(".cm-content"));
  return page.evaluate(() => {
    const lines = document.querySelector(".editor").shadowRoot.querySelectorAll(".cm-line");
    const own = (line) => [...line.childNodes].filter((node) => !node.classList?.contains("cm-hint")).map((node) => node.textContent).join("");
    return [...lines].map(own).join("\n");
  });
}

export const slider = (page, key) => page.locator(`[data-key="${key}"] input[type="range"]`);

/** Replace the whole plan in the editor. */
export async function write(page, text) {
  await page.locator(".editor .cm-content").click();
  await page.keyboard.press("Control+A");
  await changed(page, () => page.keyboard.insertText(text));
}

/** Open an example by its name. */
export async function openExample(page, name) {
  await page.getByRole("button", { name: "Plan", exact: true }).click();
  await page.getByRole("menuitem", { name: /^Examples/ }).click();
  await changed(page, () => page.getByRole("dialog").getByRole("button", { name: new RegExp(`^${name}`) }).click());
}

/** What axe-core objects to by all its rules, or by some. */
export async function objections(page, rules) {
  if (!(await page.evaluate(() => "axe" in window))) await page.evaluate(AXE);
  return page.evaluate(async (only) => {
    const { violations } = await window.axe.run(document, { resultTypes: ["violations"], ...(only && { runOnly: only }) });
    return violations.map((each) => `${each.id} x${each.nodes.length}: ${each.help}: ${each.nodes[0].html.slice(0, 200)} ${each.nodes[0].failureSummary ?? ""}`);
  }, rules);
}
