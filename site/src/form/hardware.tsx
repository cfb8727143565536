/** GPUs as cards: memory and rate of each, and how full this plan makes it once that is known. */
import { useEffect, useId, useState } from "preact/hooks";
import { gpuShares } from "../search.ts";
import { engine, form, plan } from "../session.ts";
import type { Choice } from "../types.ts";
import { type FieldProps, Label } from "./field.tsx";

const FIRST = 8;

export function Gpus({ field, value, set }: FieldProps) {
  const shares = new Map(gpuShares.value.map((each) => [each.gpu, each]));
  const id = useId();
  const [all, setAll] = useState(false);
  const [query, setQuery] = useState("");
  // An answer brings the usual GPUs; the whole catalog, with what bars each, is asked for.
  const [catalog, setCatalog] = useState<readonly Choice[]>([]);
  const now = form.value;
  useEffect(() => {
    if (all) void fetchAll(field.key, setCatalog);
  }, [all, now]);
  const choices = all && catalog.length ? catalog : field.choices;
  const barred = choices.some((choice) => choice.legal);
  const wanted = query.trim().toLowerCase();
  const sorted = choices.map((choice) => ({ ...choice, name: String(choice.value) }));
  const shown = all
    ? sorted.filter((choice) => choice.name.includes(wanted) || choice.name === value)
    : sorted.filter((choice, index) => index < FIRST || choice.name === value);
  return (
    <div class="field" data-key={field.key}>
      <Label field={field} />
      {all && (
        <input type="search" aria-label="Filter GPUs" placeholder="Filter" value={query} onInput={(event) => setQuery(event.currentTarget.value)} />
      )}
      <fieldset class="gpus" aria-labelledby={`label-${field.key}`}>
        {shown.map((choice) => {
          const there = shares.get(choice.name);
          return (
            <label key={choice.name} title={choice.legal ? there?.word : choice.reason} class={there ? `tone-${there.tone}` : ""}>
              <input type="radio" name={id} checked={choice.name === value} disabled={(barred && !choice.legal && choice.name !== value)}
                onChange={() => set(choice.value)} />
              <b>{choice.label}</b>
              <small>{choice.told}</small>
              {there && <small><span class="share">{there.share}</span><span class="unseen"> {there.word}</span></small>}
            </label>
          );
        })}
      </fieldset>
      <button type="button" class="why-not" aria-expanded={all} onClick={() => { setAll(!all); setQuery(""); }}>
        {all ? "Fewer GPUs" : "All GPUs"}
      </button>
    </div>
  );
}

async function fetchAll(key: string, take: (found: readonly Choice[]) => void): Promise<void> {
  await engine()?.answer({
    slot: "gpus",
    request: { do: "choices", ...plan(), keys: [key] },
    step(step) {
      if (step.step === "choices") take((step["choices"] as Record<string, Choice[]>)[key] ?? []);
    },
  });
}
