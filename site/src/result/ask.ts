/** Answers that are asked for by name and stand above the result: suggestions for a goal, and why a run ended. */
import { engine, plan } from "../session.ts";
import type { RemedyEdits } from "../types.ts";
import { showExtra } from "./extras.ts";

/** What a search for plans near this one can be for, in the words of the menu. */
export const GOALS = [
  ["fit", "The least change that fits"],
  ["throughput", "The fastest layout"],
  ["gpus", "The fewest GPUs"],
  ["max-batch", "The largest batch"],
  ["max-sequence", "The longest sequence"],
] as const;

export function suggest(goal: string, told: string): void {
  const title = `Suggestions: ${told.toLowerCase()}`;
  showExtra("suggest", { title, html: "", doing: "Searching" });
  void engine()?.search({
    slot: "suggest",
    request: { do: "suggest", ...plan(), goal },
    step(step) {
      if (step.step === "drawn") showExtra("suggest", { title, html: String(step["html"]), doing: "", remedies: step["remedies"] as RemedyEdits[] });
      if (step.step === "failed") showExtra("suggest", { title, html: "", doing: "", failed: `${String(step["message"])}. ${String(step["help"])}` });
    },
  });
}

/** Why a run ended, from its log. */
export function why(log: string): void {
  const title = "Why the run ended";
  showExtra("why", { title, html: "", doing: "Reading the log" });
  void engine()?.search({
    slot: "why",
    request: { do: "why", path: "job.out", text: log },
    step(step) {
      if (step.step === "drawn") showExtra("why", { title: String(step["title"]), html: String(step["html"]), doing: "" });
      if (step.step === "failed") showExtra("why", { title, html: "", doing: "", failed: `${String(step["message"])}. ${String(step["help"])}` });
    },
  });
}
