/** The folders of a build, and small helpers that all steps share. */
import { execFileSync } from "node:child_process";
import { createHash } from "node:crypto";
import { existsSync, mkdirSync, readFileSync, writeFileSync } from "node:fs";
import path from "node:path";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";

export const SITE = path.dirname(path.dirname(fileURLToPath(import.meta.url)));
export const ROOT = path.dirname(SITE);
/** Everything that a build makes on its way; ignored by git. */
export const MADE = path.join(SITE, ".build");
/** What vite copies into `site/dist` as it is. */
export const PUBLIC = path.join(MADE, "public");
export const DIST = path.join(SITE, "dist");
export const PYODIDE = path.join(SITE, "node_modules", "pyodide");

/** The interpreter that builds the wheel: `PYTHON`, else the checkout's environment, else `python3`. */
export function python() {
  if (process.env.PYTHON) return process.env.PYTHON;
  const own = path.join(ROOT, ".venv", "bin", "python");
  return existsSync(own) ? own : "python3";
}

/** Run a program; its output is shown only when it fails. */
export function run(program, words, options = {}) {
  try {
    return execFileSync(program, words, { encoding: "utf8", stdio: ["ignore", "pipe", "pipe"], ...options });
  } catch (error) {
    process.stderr.write(`${error.stdout ?? ""}${error.stderr ?? ""}`);
    throw new Error(`${program} ${words.join(" ")} failed`, { cause: error });
  }
}

/** The first 12 hexadecimal digits of the SHA-256 of some bytes: enough to name a file of one build. */
export function digest(...parts) {
  const hash = createHash("sha256");
  for (const part of parts) hash.update(part);
  return hash.digest("hex").slice(0, 12);
}

/** The version of the package, as its sources state it. */
export function version() {
  const found = /^__version__ = "([^"]+)"$/mu.exec(readFileSync(path.join(ROOT, "memcheck", "__init__.py"), "utf8"));
  if (!found) throw new Error("memcheck/__init__.py states no version");
  return found[1];
}

/**
 * Write one product into the folder that is served; returns its address below the page's and its compressed bytes.
 *
 * Binary products are compressed here, since static hosts differ in what they compress. The page looks at the first two
 * bytes, so that a host that unpacks `.gz` files on its own does no harm.
 */
export function publish(name, suffix, bytes) {
  const address = `engine/${name}-${digest(bytes)}.${suffix}`;
  const target = path.join(PUBLIC, address);
  mkdirSync(path.dirname(target), { recursive: true });
  const packed = gzipSync(bytes, { level: 9 });
  writeFileSync(target, suffix.endsWith(".gz") ? packed : bytes);
  return { path: address, bytes: packed.length };
}
