/** Builds the page: the wheel, the streams that Python reads, the bundle. `npm --prefix site run build` runs this. */
import { mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import path from "node:path";
import { build } from "vite";
import { packEngine, packLibrary, publishEngine } from "./pack.mjs";
import { MADE, PUBLIC, publish, ROOT, run, SITE, version } from "./paths.mjs";
import { wheel } from "./wheel.mjs";

/** The example that the page shows before its engine has started. */
const FIRST = "llama-3.1-8b-fsdp-8xh100.yaml";

const started = Date.now();
const step = (name) => console.log(`${((Date.now() - started) / 1000).toFixed(1).padStart(6)} s  ${name}`);

rmSync(PUBLIC, { recursive: true, force: true });
mkdirSync(MADE, { recursive: true });
step("types");
const tsc = path.join(SITE, "node_modules", "typescript", "bin", "tsc");
run(process.execPath, [tsc, "--project", SITE]);
run(process.execPath, [tsc, "--project", path.join(SITE, "tests")]);
step("wheel");
const made = wheel();
step("engine");
const files = { engine: packEngine(made), library: packLibrary() };
const products = { version: version(), ...publishEngine(files) };
step("snapshot");
const { makeSnapshot } = await import("./snapshot.mjs"); // reads what the first step has made
const text = readFileSync(path.join(ROOT, "examples", FIRST), "utf8");
const { file } = await makeSnapshot(files, [{ id: 1, do: "answer", path: FIRST, text }]);
products.snapshot = publish("start", "snapshot.gz", file);
writeFileSync(path.join(MADE, "products.json"), `${JSON.stringify(products, null, 2)}\n`);
step("bundle");
await build({ root: SITE, logLevel: "warn" });
step("done");
