/** What is searched once a verdict stands: remedies, the plan on other GPUs, and what each line is responsible for. */
import { batch, computed, signal } from "@preact/signals";
import type { Step } from "./engine/client.ts";
import { diagnostics, engine, latest, plan, text } from "./session.ts";
import type { Diagnostic, GpuShare, Gpus, LineBytes, Lines, RemedyEdits, RemedySteps, Searching, SectionHead } from "./types.ts";

/** How full the plan makes each GPU that was tried, the plan's own first. It stays until there is a newer one. */
export const gpuShares = signal<readonly GpuShare[]>([]);
export const lineHints = signal<readonly LineBytes[]>([]);

/** What was found for one answer. */
export interface Found {
  /** The number of the answer; 0: nothing was searched yet. */
  of: number;
  /** Sections that the search adds or changes, by id. */
  html: Readonly<Record<string, string>>;
  /** All sections in their order; empty until the search tells it. */
  order: readonly SectionHead[];
  remedies: readonly RemedyEdits[];
  /** The findings, once they stand at the keys that end them most cheaply. */
  diagnostics: readonly Diagnostic[] | null;
  /** Whether changes that help were searched to the end. */
  tried: boolean;
}
const NOTHING: Found = { of: 0, html: {}, order: [], remedies: [], diagnostics: null, tried: false };
export const found = signal<Found>(NOTHING);
/** What is being searched, in words; empty when nothing is. */
export const searching = signal("");
/** The findings of the text as it is. */
export const findings = computed<readonly Diagnostic[]>(() => {
  const now = found.value;
  return now.of === latest.value?.id && now.diagnostics ? now.diagnostics : diagnostics.value;
});

const QUIET_MS = 120;
const PARTS: Readonly<Record<string, string>> = { remedies: "Looking for changes that help", gpus: "Trying other GPUs" };
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
  const add = (part: Partial<Found>, sections: Readonly<Record<string, string>>): void => {
    mine = { ...mine, ...part, html: { ...mine.html, ...sections } };
    found.value = mine;
  };
  searching.value = PARTS["remedies"]!;
  await client.search({
    slot: "more",
    request: { do: "more", ...plan(), steps: ["remedies", "gpus", "lines"] },
    step(step) {
      if (!current()) return;
      batch(() => {
        if (step.step === "searching") {
          const now = step as unknown as Searching & Step;
          const words = PARTS[now.part];
          if (words) searching.value = now.tried ? `${words}: ${now.tried} tried, ${now.fits} found` : words;
        } else if (step.step === "remedies") {
          const now = step as unknown as RemedySteps & Step;
          add({ order: now.order, remedies: now.remedies, diagnostics: now.diagnostics, tried: true }, now.sections);
        } else if (step.step === "gpus") {
          const now = step as unknown as Gpus & Step;
          gpuShares.value = now.gpus;
          add({ order: joined(mine.order, now.order) }, now.sections);
          searching.value = "";
        } else if (step.step === "lines") lineHints.value = (step as unknown as Lines & Step).lines;
      });
    },
  });
  if (current()) searching.value = "";
}

/** The order of the newer step, with the sections that only the step before knows after what they stood after. */
export function joined(before: readonly SectionHead[], newer: readonly SectionHead[]): readonly SectionHead[] {
  const found = [...newer];
  before.forEach((head, index) => {
    if (found.some(({ id }) => id === head.id)) return;
    const after = before[index - 1]?.id;
    found.splice(found.findIndex(({ id }) => id === after) + 1, 0, head);
  });
  return found;
}
