/** Builds the page: the wheel, the streams that Python reads, the bundle. `npm --prefix site run build` runs this. */
import { mkdirSync, rmSync, writeFileSync } from "node:fs";
import path from "node:path";
import { build } from "vite";
import { publishEngine } from "./pack.mjs";
import { MADE, PUBLIC, run, SITE, version } from "./paths.mjs";
import { wheel } from "./wheel.mjs";

const started = Date.now();
const step = (name) => console.log(`${((Date.now() - started) / 1000).toFixed(1).padStart(6)} s  ${name}`);

rmSync(PUBLIC, { recursive: true, force: true });
mkdirSync(MADE, { recursive: true });
step("types");
run(process.execPath, [path.join(SITE, "node_modules", "typescript", "bin", "tsc"), "--project", SITE]);
step("wheel");
const made = wheel();
step("engine");
const products = { version: version(), ...publishEngine(made) };
writeFileSync(path.join(MADE, "products.json"), `${JSON.stringify(products, null, 2)}\n`);
step("bundle");
await build({ root: SITE, logLevel: "warn" });
step("done");
