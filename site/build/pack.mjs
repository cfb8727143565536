/**
 * Packs what Python reads into streams that compress as a whole: `engine.pack` (memcheck and what it imports, as source)
 * and the standard library. A stream is a third smaller than the same files, each compressed for itself.
 */
import { mkdirSync, readdirSync, readFileSync } from "node:fs";
import path from "node:path";
import { MADE, publish, PYODIDE, python, run, SITE } from "./paths.mjs";
import { readZip, storedZip } from "./zip.mjs";

/** Parts of the package that a page cannot use: PyTorch, ReportLab and a server are not there. */
const LEFT_OUT = ["memcheck/verify/", "memcheck/live/server.py", "memcheck/report/pdf/"];
/** Modules of the standard library that no module of the engine imports, which `checkImports` holds. */
const UNUSED = [
  ...["_pydatetime", "_pyio", "_pyrepl", "antigravity", "bdb", "cProfile", "compileall", "ctypes", "dbm", "doctest"],
  ...["ensurepip", "filecmp", "fileinput", "ftplib", "idlelib", "imaplib", "lib2to3", "mailbox", "modulefinder"],
  ...["nntplib", "optparse", "pdb", "pickletools", "plistlib", "poplib", "profile", "pstats", "pyclbr", "pydoc"],
  ...["pydoc_data", "sched", "shelve", "smtplib", "socketserver", "sqlite3", "tabnanny", "tarfile", "this", "timeit"],
  ...["tkinter", "trace", "turtle", "turtledemo", "unittest", "venv", "wave", "wsgiref", "xmlrpc", "zipapp", "zoneinfo"],
];
/** Tables of characters of single systems and languages, of which the usual ones stay. */
const UNUSUAL_ENCODING = /^encodings\/(?:mac_|hp_|palmos|ptcp|kz1048|tis_|iso8859_(?!15?\.|2\.)|cp(?!437|125[012]\.))/u;
const SHIM = path.join(SITE, "build", "shim", "rpds.py");

/** The wheels of `requirements.txt`, downloaded once and checked against their hashes. */
export function downloaded() {
  const folder = path.join(MADE, "downloads");
  mkdirSync(folder, { recursive: true });
  const list = path.join(SITE, "build", "requirements.txt");
  const wanted = readFileSync(list, "utf8").split("\n").filter((line) => line && !line.startsWith("#"));
  const stem = (line) => line.split(" ")[0].replace("==", "-").replaceAll(/(?<=[a-z])-(?=[a-z])/gu, "_");
  const has = (line) => readdirSync(folder).find((name) => name.startsWith(`${stem(line)}-`));
  if (!wanted.every(has)) {
    run(python(), [
      ...["-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps", "--require-hashes"],
      ...["--only-binary", ":all:", "--python-version", "3.14", "--platform", "manylinux2014_x86_64"],
      ...["--dest", folder, "--requirement", list],
    ]);
  }
  return wanted.map((line) => path.join(folder, has(line)));
}

/** `engine.pack` of a wheel, as `src/engine/pack.ts` reads it; the files of `[path, bytes]` sorted by path. */
export function packEngine(wheel) {
  const files = [["rpds.py", readFileSync(SHIM)]];
  for (const archive of [wheel, ...downloaded()]) {
    for (const [name, bytes] of readZip(readFileSync(archive))) {
      if (wanted(name)) files.push([name, bytes]);
    }
  }
  files.sort(([one], [other]) => (one < other ? -1 : 1));
  checkImports(files);
  return writePack(files);
}

/** Refuse an engine that imports what the page's standard library leaves out. */
function checkImports(files) {
  const pattern = new RegExp(`^[ \\t]*(?:import|from)[ \\t]+(${UNUSED.join("|")})\\b`, "mu");
  for (const [name, bytes] of files) {
    const found = name.startsWith("memcheck/") && name.endsWith(".py") && pattern.exec(String(bytes));
    if (found) throw new Error(`${name} imports ${found[1]}, which build/pack.mjs leaves out of the page`);
  }
}

/** Whether a file of a wheel goes into the pack: sources and data, and of what describes a wheel its METADATA alone. */
function wanted(name) {
  if (LEFT_OUT.some((part) => name.startsWith(part))) return false;
  if (name.includes(".dist-info/")) return name.endsWith("/METADATA");
  return !/\.(?:so|pyd|pyi|pyx|pxd|typed)$|(?:^|\/)tests?\//u.test(name);
}

/** The bytes of a pack: the length of the index, the index, the files. */
export function writePack(files) {
  let offset = 0;
  const index = files.map(([name, bytes]) => {
    const entry = [name, offset, bytes.length];
    offset += bytes.length;
    return entry;
  });
  const listed = Buffer.from(JSON.stringify(index), "utf8");
  const length = Buffer.alloc(4);
  length.writeUInt32LE(listed.length, 0);
  return Buffer.concat([length, listed, ...files.map(([, bytes]) => bytes)]);
}

/** Python's standard library as one archive that stores its files, so that the whole compresses as one stream. */
export function packLibrary() {
  const unused = new RegExp(`^(?:${UNUSED.join("|")})(?:/|\\.py$)`, "u");
  const files = readZip(readFileSync(path.join(PYODIDE, "python_stdlib.zip")));
  return storedZip(files.filter(([name]) => !unused.test(name) && !UNUSUAL_ENCODING.test(name)));
}

/** Pyodide itself, the standard library and the engine into the folder that is served; their addresses by name. */
export function publishEngine({ engine, library }) {
  const file = (name) => readFileSync(path.join(PYODIDE, name));
  return {
    packages: JSON.parse(readFileSync(path.join(PYODIDE, "pyodide-lock.json"), "utf8")).info,
    loader: publish("pyodide", "mjs", file("pyodide.mjs")),
    glue: publish("pyodide.asm", "mjs", file("pyodide.asm.mjs")),
    runtime: publish("pyodide", "wasm.gz", file("pyodide.asm.wasm")),
    library: publish("library", "zip.gz", library),
    engine: publish("engine", "pack.gz", engine),
  };
}
