/** A number: a slider that stops at legal values, and a field that takes any value and says what is wrong with it. */
import { useId, useState } from "preact/hooks";
import type { FieldProps } from "./field.tsx";
import { Label, offered } from "./field.tsx";

const MARKS = 9;
const WIDE_MARKS = 6;

/**
 * Values that a slider stops at: the legal ones and the one that the plan has, in order. Where nothing is legal the plan is
 * refused for another reason, and every value can be chosen.
 */
function stops(field: FieldProps["field"], value: number): number[] {
  const legal = offered(field.choices).map((choice) => Number(choice.value));
  return [...new Set([...legal, value])].filter(Number.isFinite).sort((a, b) => a - b);
}

/** At most `count` of the indices 0 to last, both ends among them, evenly. */
export function spread(last: number, count: number): number[] {
  if (last < count) return Array.from({ length: last + 1 }, (_, index) => index);
  return Array.from({ length: count }, (_, index) => Math.round((index * last) / (count - 1)));
}

export function Slider({ field, value, set }: FieldProps) {
  const id = useId();
  const [typed, setTyped] = useState<string | null>(null);
  const now = typeof value === "number" ? value : Number.NaN;
  const all = stops(field, now);
  const at = Math.max(0, all.indexOf(now));
  const last = Math.max(1, all.length - 1);
  const wrong = typed !== null && !/^\s*\d+(\.\d+)?\s*$/.test(typed);

  const commit = (text: string): void => {
    if (/^\s*\d+(\.\d+)?\s*$/.test(text)) {
      setTyped(null);
      if (Number(text) !== now) set(Number(text));
    }
  };
  const step = (by: number): void => {
    const next = all[at + by];
    if (next !== undefined) set(next);
  };
  return (
    <div class="field" data-key={field.key}>
      <Label field={field} for={id} />
      <span class="number beside">
        <button type="button" tabIndex={-1} aria-label={`${field.label}: less`} disabled={at === 0} onClick={() => step(-1)}>−</button>
        <input type="text" inputMode="decimal" aria-label={`${field.label}, as a number`}
          value={typed ?? (Number.isNaN(now) ? "" : String(now))} aria-invalid={wrong}
          onInput={(event) => setTyped(event.currentTarget.value)}
          onChange={(event) => commit(event.currentTarget.value)}
          onBlur={() => setTyped(null)}
          onKeyDown={(event) => {
            const by = { ArrowUp: 1, ArrowDown: -1 }[event.key];
            if (by) { event.preventDefault(); step(by); }
          }} />
        <button type="button" tabIndex={-1} aria-label={`${field.label}: more`} disabled={at >= all.length - 1} onClick={() => step(1)}>+</button>
      </span>
      <span class="slider">
        <input id={id} type="range" min={0} max={last} step={1} value={at} disabled={all.length < 2}
          style={{ "--at": String(at / last) }} aria-valuetext={String(all[at] ?? "")}
          onInput={(event) => set(all[event.currentTarget.valueAsNumber])} />
        <span class="marks" aria-hidden="true">
          {spread(all.length - 1, all.length > MARKS || all.at(-1)! > 9999 ? WIDE_MARKS : MARKS).map((index) => (
            <span key={index} class={index === at ? "on" : ""} style={{ left: `${(100 * index) / last}%` }}>{short(all[index]!)}</span>
          ))}
        </span>
      </span>
      {wrong && <span class="note bad">A number is needed here.</span>}
    </div>
  );
}

/** 8192 as 8k: what has room below a slider. */
function short(value: number): string {
  if (value >= 2 ** 20 && value % 2 ** 20 === 0) return `${value / 2 ** 20}M`;
  if (value >= 1024 && value % 1024 === 0) return `${value / 1024}k`;
  return value >= 10_000 ? `${Math.round(value / 1000)}k` : String(value);
}
