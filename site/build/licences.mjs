/** Makes `licences.txt`: whose work the page carries, under which terms, with the text that each of them asks to be kept. */
import { existsSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import path from "node:path";
import { DIST, ROOT, SITE } from "./paths.mjs";
import { readZip } from "./zip.mjs";

/** What comes inside Pyodide's runtime; its package on npm carries no texts. */
const RUNTIME = `Pyodide (https://pyodide.org), under the Mozilla Public License 2.0, https://mozilla.org/MPL/2.0/. Its sources, with
those of what it contains, are at https://github.com/pyodide/pyodide: CPython and its standard library (Python Software
Foundation License 2), Emscripten's runtime (MIT), musl (MIT), libffi (MIT), zlib (zlib), bzip2 (bzip2 licence), XZ Utils'
liblzma (public domain), Zstandard (BSD), SQLite (public domain), OpenSSL (Apache 2.0) and HACL* (MIT).
`;

/** Write the file; `bundled` are the names of the npm packages in the scripts, `wheels` the paths of Python's. */
export function writeLicences(bundled, wheels) {
  const parts = [`memcheck\n\n${readFileSync(path.join(ROOT, "LICENSE"), "utf8")}`, RUNTIME];
  for (const wheel of wheels) {
    const files = readZip(readFileSync(wheel));
    const metadata = String(files.find(([name]) => name.endsWith(".dist-info/METADATA"))[1]);
    const texts = files.filter(([name]) => /\.dist-info\/(?:licenses\/)?(?:LICEN[CS]E|COPYING|NOTICE)/iu.test(name));
    if (texts.length === 0) throw new Error(`${wheel} carries no licence`);
    const head = /^Name: (.*)$/mu.exec(metadata)[1];
    parts.push(`${head}\n\n${texts.map(([, text]) => String(text)).join("\n")}`);
  }
  for (const name of bundled) {
    const folder = path.join(SITE, "node_modules", name);
    const { license } = JSON.parse(readFileSync(path.join(folder, "package.json"), "utf8"));
    const file = readdirSync(folder).find((each) => /^(?:LICEN[CS]E|COPYING)/iu.test(each));
    if (!license && !file) throw new Error(`${name} carries no licence`);
    parts.push(`${name} (${license})\n\n${file ? readFileSync(path.join(folder, file), "utf8") : ""}`);
  }
  writeFileSync(path.join(DIST, "licences.txt"), parts.map((part) => part.trim()).join(`\n\n${"-".repeat(80)}\n\n`) + "\n");
}

/** The npm packages of which a bundle holds code, by the paths of its modules. */
export function packagesOf(modules) {
  const names = new Set();
  for (const module of modules) {
    const found = /.*\/node_modules\/((?:@[^/]+\/)?[^/]+)\//u.exec(module);
    if (found && existsSync(path.join(SITE, "node_modules", found[1]))) names.add(found[1]);
  }
  return [...names].sort();
}
