/**
 * Builds the page and puts it into `memcheck/live/page`, from where the wheel takes it. `memcheck ui` answers with the Python
 * that is installed, so that the engine's files and the service worker stay out.
 */
import { cpSync, existsSync, rmSync } from "node:fs";
import path from "node:path";
import "./build.mjs";
import { DIST, ROOT } from "./paths.mjs";

const target = path.join(ROOT, "memcheck", "live", "page");
rmSync(target, { recursive: true, force: true });
for (const name of ["index.html", "assets", "licences.txt", "version.json"]) {
  cpSync(path.join(DIST, name), path.join(target, name), { recursive: true });
}
const catalog = path.join(target, "engine");
cpSync(path.join(DIST, "engine"), catalog, { recursive: true, filter: (file) => !/\.(?:gz|mjs)$/u.test(file) });
if (!existsSync(path.join(target, "index.html"))) throw new Error("the page was not copied");
