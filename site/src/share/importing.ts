/** Reading a framework's config, a script or a command as a plan: what the engine found, and what it still has to be told. */
import { signal } from "@preact/signals";
import { engine, others, set } from "../session.ts";
import { tell } from "../frame/toast.tsx";
import type { ImportedPlan, Value } from "../types.ts";
import type { TextFile } from "./files.ts";
import { show } from "./incoming.ts";

type Reading = Omit<ImportedPlan, "id" | "step">;

export interface Importing {
  files: readonly TextFile[];
  /** What the engine says; null while it reads. */
  found: Reading | null;
}
/** The text that is being read, with what has to be said of it before there is a plan. */
export const importing = signal<Importing | null>(null);
/** What a plan that was made of another file does not carry, or a config that was made of the plan. */
export const remarks = signal<{ title: string; lines: readonly string[] } | null>(null);

const MODEL = "config.json";

/** The configuration of a model, as Hugging Face has it: JSON that names a kind of model and trains nothing. */
function isModel(file: TextFile): boolean {
  try {
    const found: unknown = JSON.parse(file.text);
    return typeof found === "object" && found !== null && "model_type" in found;
  } catch {
    return false;
  }
}

/** Read files as a plan; `settings` says what they cannot say. Resolves to whether there is one. */
export async function importFiles(files: readonly TextFile[], settings: Readonly<Record<string, Value>> = {}): Promise<boolean> {
  const [first, ...rest] = files;
  if (!first) return false;
  const model = files.find(isModel);
  if (model && files.length === 1) {
    others.value = { ...others.value, [MODEL]: model.text };
    set({ model: { config: `./${MODEL}` } });
    importing.value = null;
    tell(`The plan has the model of ${model.name || MODEL} now.`);
    return true;
  }
  importing.value = { files, found: null };
  let done = false;
  const end = await engine()?.answer({
    slot: "import",
    request: {
      do: "import",
      path: first.name || "pasted.txt",
      text: first.text,
      files: Object.fromEntries(rest.map((file) => [file.name, file.text])),
      ...(Object.keys(settings).length ? { settings } : {}),
    },
    step(step) {
      if (step.step === "failed") {
        const { message, help } = step as unknown as { message: string; help: string };
        importing.value = { files, found: { format: "", text: "", notes: [], assumed: [], problems: [problem(first.name, message, help)] } };
      } else if (step.step === "imported") {
        const found = step as unknown as ImportedPlan;
        if (!found.text) importing.value = { files, found };
        else {
          done = true;
          importing.value = null;
          show(planName(first.name), found.text, {}, `Read as ${found.format}.`);
          const assumed = found.assumed.map((each) => `${each.key} = ${String(each.value)}: ${each.why}`);
          const lines = [...found.notes.map((each) => `line ${each.place.line}: ${each.message}`), ...assumed];
          remarks.value = lines.length ? { title: `Read from ${first.name || "the pasted text"} (${found.format})`, lines } : null;
        }
      }
    },
  });
  if (end?.end === "failed") importing.value = { files, found: { format: "", text: "", notes: [], assumed: [], problems: [problem(first.name, end.message, "")] } };
  return done;
}

function problem(path: string, message: string, help: string): Reading["problems"][number] {
  return { path, place: { line: 1, column: 1, character: 0 }, message, help, keys: [] };
}

function planName(name: string): string {
  return `${(name.split("/").at(-1) ?? "").replace(/\.[^.]*$/, "") || "plan"}.plan.yaml`;
}
