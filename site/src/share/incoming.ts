/** Texts that come in: an example, a file that was opened or dropped, a paste, a link. One becomes the plan in the page. */
import { batch } from "@preact/signals";
import { ask, chosen, others, path, text } from "../session.ts";
import { tell } from "../frame/toast.tsx";
import type { Example } from "./examples.ts";
import type { Value } from "../types.ts";
import { openPaste } from "../frame/dialogs.ts";
import { type TextFile, read } from "./files.ts";
import { importFiles, importing, remarks } from "./importing.ts";

/** Show a plan in place of the present one, which the toast brings back. */
export function show(name: string, content: string, files: Readonly<Record<string, string>> = {}, told = ""): void {
  const before = { name: path.value, content: text.value, files: others.value };
  replace(name, content, files);
  if (told) tell(told, before.content ? { label: "Back", run: () => replace(before.name, before.content, before.files) } : undefined);
}

function replace(name: string, content: string, files: Readonly<Record<string, string>>): void {
  batch(() => {
    remarks.value = null;
    path.value = name;
    text.value = content;
    others.value = files;
    chosen.value = 0;
  });
  ask();
}

/** A text of before, in the same file. */
export function restore(content: string): void {
  text.value = content;
  ask();
}

export function takeExample(example: Example): void {
  show(`${example.name}.yaml`, example.text, {}, `The example ${example.name} is shown.`);
}

const PLAN = /^memcheck\s*:/m;

/** Which of several files is the one to show: a plan before anything else, then the first. */
function main(files: readonly TextFile[]): TextFile | undefined {
  return files.find((file) => /\.ya?ml$/i.test(file.name) && PLAN.test(file.text)) ?? files[0];
}

/** Files from the disk: plans are shown, with the others as what they refer to; all else is imported. */
export async function takeFiles(list: Iterable<File>): Promise<void> {
  const { files, refused } = await read(list);
  for (const why of refused) tell(why);
  if (files.length && !(await bring(files))) openPaste();
}

/** Texts that were pasted or read: a plan is shown, anything else is read as one. Resolves to whether there is a plan. */
export async function bring(files: readonly TextFile[], settings: Readonly<Record<string, Value>> = {}): Promise<boolean> {
  const first = main(files);
  if (!first) return false;
  if (!PLAN.test(first.text)) return importFiles(files, settings);
  importing.value = null;
  const rest = Object.fromEntries(files.filter((file) => file !== first).map((file) => [file.name, file.text]));
  show(first.name || "plan.yaml", first.text, rest, `${first.name || "The pasted plan"} is shown.`);
  return true;
}
