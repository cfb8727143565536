/**
 * Builds the page: the wheel, the streams that Python reads, the snapshot, the answer to the first plan, the bundle, the
 * service worker. `npm --prefix site run build` runs this; the page is in `site/dist` then.
 */
import { mkdirSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync } from "node:fs";
import path from "node:path";
import { build } from "vite";
import { holdBudget, measured } from "./budget.mjs";
import { data, drawn } from "./first-paint.mjs";
import { packagesOf, writeLicences } from "./licences.mjs";
import { downloaded, packEngine, packLibrary, publishEngine } from "./pack.mjs";
import { digest, DIST, MADE, PUBLIC, publish, ROOT, run, SITE, version } from "./paths.mjs";
import { protocol } from "./types.mjs";
import { wheel } from "./wheel.mjs";

/** The example that the page shows before its engine has started. */
const FIRST = "llama-3.1-8b-fsdp-8xh100.yaml";

const started = Date.now();
const step = (name) => console.log(`${((Date.now() - started) / 1000).toFixed(1).padStart(6)} s  ${name}`);

rmSync(PUBLIC, { recursive: true, force: true });
mkdirSync(MADE, { recursive: true });

step("types");
writeFileSync(path.join(SITE, "src", "engine", "protocol.ts"), await protocol());
const tsc = path.join(SITE, "node_modules", "typescript", "bin", "tsc");
run(process.execPath, [tsc, "--project", SITE]);
run(process.execPath, [tsc, "--project", path.join(SITE, "tests")]);

step("wheel");
const made = wheel();

step("engine");
const files = { engine: packEngine(made), library: packLibrary() };
const products = { version: version(), ...publishEngine(files) };

step("snapshot");
const { makeSnapshot } = await import("./snapshot.mjs"); // these read what the first step has made
const { catalogOf } = await import("./catalog.mjs");
const text = readFileSync(path.join(ROOT, "examples", FIRST), "utf8");
const { file, answers, engine } = await makeSnapshot(files, [{ id: 0, do: "answer", path: FIRST, text }]);
const steps = answers[0].filter((each) => each.step !== "done");
if (!steps[0]?.figures) throw new Error(`the engine has no figures for ${FIRST}: ${JSON.stringify(answers[0]).slice(0, 500)}`);
products.snapshot = publish("start", "snapshot.gz", file);
products.catalog = publish("catalog", "json", catalogOf(engine));
writeFileSync(path.join(MADE, "products.json"), `${JSON.stringify(products, null, 2)}\n`);
writeFileSync(path.join(MADE, "drawn.html"), drawn(steps));
writeFileSync(path.join(MADE, "data.html"), data(FIRST, text, steps));

step("bundle");
const bundle = await build({ root: SITE, logLevel: "warn" });
const manifest = path.join(DIST, ".vite", "manifest.json");
const chunks = JSON.parse(readFileSync(manifest, "utf8"));
rmSync(path.dirname(manifest), { recursive: true });
writeLicences(packagesOf(bundle.output.flatMap(({ moduleIds }) => moduleIds ?? [])), downloaded());
writeFileSync(path.join(DIST, "version.json"), `${JSON.stringify({ version: version() })}\n`);

step("service worker");
const stored = readdirSync(DIST, { recursive: true })
  .filter((name) => statSync(path.join(DIST, name)).isFile() && name !== "version.json")
  .map((name) => name.split(path.sep).join("/"))
  .sort();
const name = digest(...stored.map((name) => `${name}\0${digest(readFileSync(path.join(DIST, name)))}\n`));
await build({
  root: SITE,
  configFile: false,
  publicDir: false,
  logLevel: "warn",
  define: { __STORED__: JSON.stringify({ version: name, files: stored.map((each) => (each === "index.html" ? "./" : each)) }) },
  build: {
    target: "es2022",
    outDir: DIST,
    emptyOutDir: false,
    rollupOptions: { input: path.join(SITE, "src", "sw.ts"), output: { entryFileNames: "sw.js", format: "es" } },
  },
});

step("budget");
const bytes = measured(products, chunks);
writeFileSync(path.join(MADE, "measured.json"), JSON.stringify(bytes));
holdBudget(bytes);
step("done");
