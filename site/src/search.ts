/** What is searched once a verdict stands: remedies, the plan on other GPUs, and what each line is responsible for. */
import { batch, signal } from "@preact/signals";
import { engine, latest, plan, text } from "./session.ts";
import type { Value } from "./types.ts";

/** The plan on one GPU. */
export interface Card {
  share: string;
  tone: string;
  word: string;
}
/** How full the plan makes each GPU that was tried, the plan's own first. It stays until there is a newer one. */
export const gpuCards = signal<ReadonlyMap<string, Card>>(new Map());

export interface LineHint {
  line: number;
  text: string;
}
export const lineHints = signal<readonly LineHint[]>([]);

/** Sections that were searched, and what each remedy changes. */
export interface Found {
  /** The answer that they belong to. */
  of: number;
  html: Readonly<Record<string, string>>;
  changes: ReadonlyMap<string, Readonly<Record<string, Value>>>;
  titles: ReadonlyMap<string, string>;
}
const NOTHING: Found = { of: 0, html: {}, changes: new Map(), titles: new Map() };
export const found = signal<Found>(NOTHING);
/** What is being searched, in words; empty when nothing is. */
export const searching = signal("");

const QUIET_MS = 120;
let timer: ReturnType<typeof setTimeout> | undefined;

/** A new answer stands: search for it as soon as nothing has moved for a moment. */
export function searchSoon(): void {
  clearTimeout(timer);
  engine()?.cancel("more");
  searching.value = "";
  lineHints.value = [];
  timer = setTimeout(() => void search(), QUIET_MS);
}

async function search(): Promise<void> {
  const answer = latest.value;
  const client = engine();
  if (!answer?.first.figures || !client) return;
  const asked = text.value;
  const current = (): boolean => latest.value?.id === answer.id && text.value === asked;
  let mine: Found = { ...NOTHING, of: answer.id };
  searching.value = "Looking for changes that help";
  const end = await client.search({
    slot: "more",
    request: { do: "more", ...plan() },
    step(step) {
      if (!current()) return;
      batch(() => {
        const sections = step["sections"] as Record<string, string> | undefined;
        if (sections) mine = { ...mine, html: { ...mine.html, ...sections } };
        found.value = mine;
      });
    },
  });
  if (current()) searching.value = "";
  if (end.end === "done" && current()) found.value = mine;
}
