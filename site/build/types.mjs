/** Writes `src/engine/protocol.ts`: the messages of `memcheck.live` as types, from `schemas/live.schema.json`. */
import { readFileSync, writeFileSync } from "node:fs";
import path from "node:path";
import { compile } from "json-schema-to-typescript";
import { ROOT, SITE } from "./paths.mjs";

const VALUE = "export type Value = string | number | boolean | null | Value[] | { [key: string]: Value };";

/** The text of the file. A part of the schema that takes anything is a value of JSON. */
export async function protocol() {
  const text = readFileSync(path.join(ROOT, "schemas", "live.schema.json"), "utf8");
  const schema = JSON.parse(text, (_, part) => (anything(part) ? { ...part, tsType: "Value" } : part));
  return compile(schema, "Message", {
    additionalProperties: false,
    bannerComment:
      "/* Written by `npm --prefix site run types` from schemas/live.schema.json: change that, and run it again. */\n" + VALUE,
    format: true,
    style: { printWidth: 120 },
    unreachableDefinitions: true,
  });
}

/** Whether a part of a schema says what a value means, and nothing of what it is. */
function anything(part) {
  return typeof part?.description === "string" && Object.keys(part).length === 1;
}

if (process.argv[1] === new URL(import.meta.url).pathname) {
  writeFileSync(path.join(SITE, "src", "engine", "protocol.ts"), await protocol());
}
