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
import type { Diagnostic, Failed, First, Form, SectionHead, TextEdit, Value } from "./types.ts";

export const path = signal("plan.yaml");
export const text = signal("");
/** The plan of the file that is shown, from 0. */
export const chosen = signal(0);
/** Files that the plan refers to, by name. */
export const others = signal<Readonly<Record<string, string>>>({});
export const lane = signal<LaneState>({ phase: "loading", loadedBytes: 0, totalBytes: 0 });
export const ready = computed(() => lane.value.phase === "ready");

/** One answer with all of its sections. */
export interface Answer {
  id: number;
  first: First;
  html: Readonly<Record<string, string>>;
  order: readonly SectionHead[];
}
/** The newest answer. */
export const latest = signal<Answer | null>(null);
/** The newest answer that has figures, which stays in sight while a text has none. */
export const good = signal<Answer | null>(null);
export const form = signal<Form | null>(null);
/** Values that controls ask for and that no answer has confirmed yet. */
export const wanted = signal<Readonly<Record<string, Value | undefined>>>({});
export const busy = signal(false);
/** What the engine cannot do, in its words, until the next answer. */
export const refusal = signal<Failed | null>(null);
export const diagnostics = computed<readonly Diagnostic[]>(() => latest.value?.first.diagnostics ?? []);
/** Whether the figures in sight are of an earlier text. */
export const stale = computed(() => good.value !== null && good.value !== latest.value);

/** Told when the engine has edited the text: the editor makes the same edits, as a step of its history. */
export const listeners = { edited: (_edits: readonly TextEdit[]): void => undefined, answered: (): void => undefined };

let client: Client | null = null;
let running = false;
let dirty = false;
const MOST_KEPT = 8;
const answers = new Map<number, Answer>();

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

/** A control asks for a value; `undefined` takes the key out of the plan. */
export function set(key: string, value: Value | undefined): void {
  wanted.value = { ...wanted.value, [key]: value };
  ask();
}

export function setAll(changes: Readonly<Record<string, Value | undefined>>): void {
  wanted.value = { ...wanted.value, ...changes };
  ask();
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
  const since = latest.value?.id;
  const end = await client.answer({
    slot: "answer",
    request: { ...asked, ...(since === undefined ? {} : { since }) },
    step: (step) => take(step, sent.text, changes),
  });
  batch(() => {
    running = false;
    if (end.end === "failed") wanted.value = {};
    busy.value = dirty;
  });
  void next();
}

/** One step of an answer. */
function take(step: Step, asked: string, changes: Readonly<Record<string, Value | undefined>>): void {
  batch(() => {
    if (step.step === "failed") {
      refusal.value = step as unknown as Failed & Step;
      settle(changes);
    } else if (step.step === "first") {
      const first = step as unknown as First & Step;
      if (!apply(first, asked, changes)) return;
      refusal.value = null;
      settle(changes);
      remember(step.id, first);
    } else if (step.step === "form") {
      form.value = step as unknown as Form & Step;
    }
  });
}

/** Make the edits of an answer in the text; false where the text has changed meanwhile, and the change is asked again. */
function apply(first: First, asked: string, changes: Readonly<Record<string, Value | undefined>>): boolean {
  const edits = (first.edits ?? []).find((each) => each.path === path.value)?.edits ?? [];
  if (!edits.length) return true;
  if (text.value !== asked) {
    wanted.value = { ...changes, ...wanted.value };
    dirty = true;
    return false;
  }
  text.value = edited(asked, edits);
  listeners.edited(edits);
  return true;
}

/** Values that were asked for are confirmed or refused; those that were asked for later wait. */
function settle(changes: Readonly<Record<string, Value | undefined>>): void {
  wanted.value = Object.fromEntries(Object.entries(wanted.value).filter(([key, value]) => !(key in changes) || changes[key] !== value));
}

function remember(id: number, first: First): void {
  const before = latest.value?.html ?? {};
  const html: Record<string, string> = {};
  for (const { id: name } of first.order) html[name] = first.sections[name] ?? before[name] ?? "";
  const answer = { id, first, html, order: first.order };
  answers.set(id, answer);
  for (const old of answers.keys()) if (answers.size > MOST_KEPT) answers.delete(old);
  latest.value = answer;
  if (first.figures) good.value = answer;
  if (first.form) form.value = first.form;
  listeners.answered();
}
