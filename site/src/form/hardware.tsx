/** GPUs as cards: memory and rate of each, and how full this plan makes it once that is known. */
import { useId, useState } from "preact/hooks";
import { gpuShares } from "../search.ts";
import { type FieldProps, Label } from "./field.tsx";

const FIRST = 8;

export function Gpus({ field, value, set }: FieldProps) {
  const shares = new Map(gpuShares.value.map((each) => [each.gpu, each]));
  const id = useId();
  const [all, setAll] = useState(false);
  const [query, setQuery] = useState("");
  const barred = field.choices.some((choice) => choice.legal);
  const wanted = query.trim().toLowerCase();
  const sorted = field.choices.map((choice) => ({ ...choice, name: String(choice.value) }));
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
      {field.choices.length > FIRST && (
        <button type="button" class="why-not" aria-expanded={all} onClick={() => { setAll(!all); setQuery(""); }}>
          {all ? "Fewer GPUs" : `All ${field.choices.length} GPUs`}
        </button>
      )}
    </div>
  );
}
