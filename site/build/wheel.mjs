/** The wheel that a page is built from: the one given, or one built from the checkout. */
import { mkdirSync, readdirSync, readFileSync, rmSync, statSync, writeFileSync, existsSync } from "node:fs";
import path from "node:path";
import { digest, MADE, python, ROOT, run, version } from "./paths.mjs";

/** The path of the wheel. `MEMCHECK_WHEEL` names a wheel that is there; another version than the checkout's is refused. */
export function wheel() {
  const given = process.env.MEMCHECK_WHEEL;
  if (given) {
    const built = path.basename(given).split("-")[1];
    if (built !== version()) throw new Error(`${given} is version ${built}, and the page is built beside ${version()}`);
    return given;
  }
  const folder = path.join(MADE, "wheel");
  const mark = path.join(folder, "sources");
  const now = sources();
  const kept = existsSync(mark) && readFileSync(mark, "utf8") === now && readdirSync(folder).find((name) => name.endsWith(".whl"));
  if (kept) return path.join(folder, kept);
  rmSync(folder, { recursive: true, force: true });
  mkdirSync(folder, { recursive: true });
  run(python(), ["-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps", "--wheel-dir", folder, ROOT]);
  const made = readdirSync(folder).find((name) => name.endsWith(".whl"));
  if (!made) throw new Error("pip built no wheel");
  writeFileSync(mark, now);
  return path.join(folder, made);
}

/** A digest of everything that goes into the wheel, so that an unchanged checkout is not built again. */
function sources() {
  const parts = [];
  for (const top of ["memcheck", "schemas", "pyproject.toml", "README.md", "LICENSE"]) {
    const whole = path.join(ROOT, top);
    const names = statSync(whole).isDirectory() ? readdirSync(whole, { recursive: true }).sort() : [""];
    for (const name of names) {
      if (name.includes("__pycache__") || name.startsWith(path.join("live", "page"))) continue;
      const file = path.join(whole, name);
      if (statSync(file).isFile()) parts.push(`${top}/${name}\0`, readFileSync(file));
    }
  }
  return digest(...parts);
}
