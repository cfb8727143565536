/**
 * The plan in the page and what the engine says about it. The text is the state: a moved control becomes edits of the
 * text, which Python writes, and every request carries the whole text.
 *
 * One answer is asked for at a time. What changes meanwhile is sent together when it has come, so that a moved slider is
 * answered for where it is, and no edit meets a text that it was not made for.
 */
import { batch, computed, signal } from "@preact/signals";
import { edited } from "./editor/places.ts";
import type { Client, LaneState, Step } from "./engine/client.ts";
import type { Choice, Diagnostic, Failed, First, Form, FormField, SectionHead, TextEdit, Value } from "./types.ts";

export const path = signal("plan.yaml");
export const text = signal("");
/** The plan of the file that is shown, from 0. */
export const chosen = signal(0);
/** Files that the plan refers to, by name. */
export const others = signal<Readonly<Record<string, string>>>({});
export const lane = signal<LaneState>({ phase: "loading", loadedBytes: 0, totalBytes: 0 });
export const ready = computed(() => lane.value.phase === "ready");

/** One answer, whole: what the engine left out because it had not changed is put in. */
export interface Answer {
  id: number;
  first: First;
  html: Readonly<Record<string, string>>;
  order: readonly SectionHead[];
  fields: Readonly<Record<string, FormField>>;
  choices: Readonly<Record<string, readonly Choice[]>>;
}
/** The newest answer. */
export const latest = signal<Answer | null>(null);
/** The newest answer that has figures, which stays in sight while a text has none. */
export const good = signal<Answer | null>(null);
export const form = signal<Form | null>(null);
/** Values to choose from, by key. */
export const choices = signal<Readonly<Record<string, readonly Choice[]>>>({});
type Changes = Readonly<Record<string, Value | undefined>>;
/** Values that controls ask for and that no answer has confirmed yet. */
export const wanted = signal<Changes>({});
/** Values that are in the text, but not yet in the form, which comes after the verdict. */
export const written = signal<Changes>({});
export const busy = signal(false);
/** Whether the text cannot be read as a plan, so that no control can write into it. */
export const resting = signal(false);
/** What the engine cannot do, in its words, until the next answer. */
export const refusal = signal<Failed | null>(null);
export const diagnostics = computed<readonly Diagnostic[]>(() => latest.value?.first.diagnostics ?? []);
/** Whether the figures in sight are of an earlier text. */
export const stale = computed(() => good.value !== null && good.value.id !== latest.value?.id);

/** Told when the engine has edited the text: the editor makes the same edits, as a step of its history. */
export const listeners = { edited: (_edits: readonly TextEdit[]): void => undefined, answered: (): void => undefined };

let client: Client | null = null;
let running = false;
let dirty = false;
/** The newest answer of which every step has come: the engine leaves out what is as in that one. */
/** The number of the answer that was made with the page, which no engine knows. */
const PAINTED = 0;
let formId = 0;
let whole: Answer | null = null;

export function connect(to: Client): void {
  client = to;
  if (dirty) void next();
}

export function engine(): Client | null {
  return client;
}

/** The fields that every request about the plan has. */
export function plan(): { path: string; text: string; document: number; files?: Readonly<Record<string, string>> } {
  const files = others.value;
  return { path: path.value, text: text.value, document: chosen.value, ...(Object.keys(files).length ? { files } : {}) };
}

/** The text was typed, pasted or chosen. */
export function ask(): void {
  dirty = true;
  void next();
}

/** A control asks for values; `undefined` takes a key out of the plan. */
export function set(changes: Changes): void {
  wanted.value = { ...wanted.value, ...changes };
  ask();
}

/** Edits of the engine's that change the text as it is now. */
export function edit(edits: readonly TextEdit[]): void {
  text.value = edited(text.value, edits);
  listeners.edited(edits);
  ask();
}

/** Show an answer that was made with the page, before the engine runs. */
export function paint(name: string, content: string, steps: readonly Step[]): void {
  path.value = name;
  text.value = content;
  for (const step of steps) take({ ...step, id: PAINTED }, content, {}, null);
}

async function next(): Promise<void> {
  if (running || !dirty || !client) return;
  running = true;
  dirty = false;
  busy.value = true;
  const changes = wanted.value;
  const sent = plan();
  const keys = Object.keys(changes);
  const asked = keys.length
    ? { do: "set", ...sent, changes: Object.fromEntries(keys.map((key) => [key, changes[key] ?? null])) }
    : { do: "answer", ...sent };
  const base = whole;
  let told = false;
  const free = (): void => {
    if (told) return;
    told = true;
    running = false;
    busy.value = dirty;
    void next();
  };
  const end = await client.answer({
    slot: "answer",
    request: { ...asked, ...(base ? { since: base.id } : {}) },
    step(step) {
      take(step, sent.text, changes, base);
      free();
    },
  });
  if (end.end === "done" && latest.value && latest.value.id > (base?.id ?? 0)) {
    whole = latest.value;
    resting.value = formId !== whole.id;
  }
  if (end.end === "failed" && !told) wanted.value = {};
  free();
}

/** One step of an answer; `base` is the answer that it tells the difference to. */
function take(step: Step, asked: string, changes: Changes, base: Answer | null): void {
  batch(() => {
    if (step.step === "failed") {
      refusal.value = step as unknown as Failed & Step;
      settle(changes);
    } else if (step.step === "first") {
      const first = step as unknown as First & Step;
      if (!apply(first, asked, changes)) return;
      refusal.value = null;
      settle(changes);
      remember(step.id, first, base);
    } else if (latest.value?.id === step.id && step.step === "form") {
      const next = step as unknown as Form & Step;
      const fields = { ...base?.fields, ...next.fields };
      latest.value = { ...latest.value, fields };
      form.value = { ...next, fields };
      written.value = {};
      formId = step.id;
      resting.value = false;
    } else if (latest.value?.id === step.id && step.step === "choices") {
      const all = { ...base?.choices, ...(step["choices"] as Record<string, Choice[]>) };
      latest.value = { ...latest.value, choices: all };
      choices.value = all;
    }
  });
}

/** Make the edits of an answer in the text; false where the text has changed meanwhile, and the change is asked again. */
function apply(first: First, asked: string, changes: Changes): boolean {
  const edits = first.edits.find((each) => each.path === path.value)?.edits ?? [];
  if (!edits.length) return true;
  if (text.value !== asked) {
    wanted.value = { ...changes, ...wanted.value };
    dirty = true;
    return false;
  }
  text.value = edited(asked, edits);
  written.value = { ...written.value, ...changes };
  listeners.edited(edits);
  return true;
}

/** Values that were asked for are confirmed or refused; those that were asked for later wait. */
function settle(changes: Changes): void {
  wanted.value = Object.fromEntries(Object.entries(wanted.value).filter(([key, value]) => !(key in changes) || changes[key] !== value));
}

function remember(id: number, first: First, base: Answer | null): void {
  const html: Record<string, string> = {};
  for (const { id: name } of first.order) html[name] = first.sections[name] ?? base?.html[name] ?? "";
  const answer = { id, first, html, order: first.order, fields: {}, choices: {} };
  latest.value = answer;
  if (first.figures) good.value = answer;
  listeners.answered();
}
