/** A heat map over two keys of the plan: chosen here, computed by the engine, each cell a plan that can be taken. */
import { signal } from "@preact/signals";
import { useState } from "preact/hooks";
import { Dialog } from "../frame/dialog.tsx";
import { offered } from "../form/field.tsx";
import { choices, engine, form, plan, set } from "../session.ts";
import type { Choice, Value } from "../types.ts";
import { button } from "./apply.ts";
import { closeExtra, showExtra } from "./extras.ts";

const ID = "sweep";
const MOST = 8;
const FIRST = ["training.micro_batch_size", "inference.batch_size"];
const SECOND = ["training.sequence_length", "inference.context_length"];

interface Axis {
  key: string;
  values: readonly Value[];
}
const axes = signal<readonly [Axis, Axis] | null>(null);

/** Keys with more than one value to choose from. */
function keys(): { key: string; label: string; all: readonly Choice[] }[] {
  const now = form.value;
  if (!now) return [];
  return now.groups.flatMap((group) => group.keys).flatMap((key) => {
    const all = offered(choices.value[key] ?? []);
    return all.length > 1 && key !== "model" ? [{ key, label: now.fields[key]?.label ?? key, all }] : [];
  });
}

/** At most MOST values, those around the plan's own. */
function around(all: readonly Choice[], now: Value | undefined): Value[] {
  const values = all.map((choice) => choice.value);
  const at = Math.max(0, values.findIndex((value) => value === now));
  const start = Math.max(0, Math.min(at - 2, values.length - MOST));
  return values.slice(start, start + MOST);
}

export function sweep(): void {
  const now = axes.value;
  if (!now) return;
  showExtra(ID, { title: "Sweep", html: "", doing: "Computing the heat map" });
  void engine()?.search({
    slot: ID,
    request: { do: "sweep", ...plan(), values: Object.fromEntries(now.map((axis) => [axis.key, axis.values])) },
    step(step) {
      if (step.step === "searching") showExtra(ID, { title: "Sweep", html: "", doing: `Computing the heat map: ${String(step["tried"])} plans` });
      if (step.step === "drawn") showExtra(ID, { title: String(step["title"]), html: String(step["html"]), doing: "" });
      if (step.step === "failed") showExtra(ID, { title: "Sweep", html: "", doing: "", failed: `${String(step["message"])}. ${String(step["help"])}` });
    },
  });
}

export function stopSweep(): void {
  axes.value = null;
  engine()?.cancel(ID);
  closeExtra(ID);
}

/** Every cell of the map as a button that takes its values. */
export function withCells(body: HTMLElement): void {
  const now = axes.value;
  if (!now) return;
  for (const table of body.querySelectorAll<HTMLTableElement>("table.heat")) {
    [...(table.tBodies[0]?.rows ?? [])].forEach((row, down) => {
      [...row.cells].slice(1).forEach((cell, across) => {
        const made = button("", "cell", { row: String(down), column: String(across) }, `Take ${now[0].key} ${String(now[0].values[down])}, ${now[1].key} ${String(now[1].values[across])}: ${cell.textContent}`);
        made.append(...cell.childNodes);
        cell.append(made);
      });
    });
  }
}

/** Take the values of a cell. */
export function takeCell(row: number, column: number): void {
  const now = axes.value;
  if (!now) return;
  const changes: Record<string, Value> = {};
  const [down, across] = [now[0].values[row], now[1].values[column]];
  if (down !== undefined) changes[now[0].key] = down;
  if (across !== undefined) changes[now[1].key] = across;
  set(changes);
}

export function SweepDialog({ close }: { close: () => void }) {
  const all = keys();
  const first = (wanted: readonly string[], not = ""): string => wanted.find((key) => all.some((each) => each.key === key)) ?? all.find((each) => each.key !== not)?.key ?? "";
  const [rows, setRows] = useState(() => first(FIRST));
  const [columns, setColumns] = useState(() => first(SECOND, rows));
  const [chosen, setChosen] = useState<Readonly<Record<string, readonly Value[]>>>({});
  const valuesOf = (key: string): readonly Value[] => {
    const each = all.find((one) => one.key === key);
    return chosen[key] ?? (each ? around(each.all, form.value?.fields[key]?.value) : []);
  };
  const turn = (key: string, value: Value): void => {
    const now = valuesOf(key);
    const order = all.find((each) => each.key === key)?.all.map((choice) => choice.value) ?? [];
    const next = now.includes(value) ? now.filter((each) => each !== value) : [...now, value];
    setChosen({ ...chosen, [key]: [...next].sort((one, other) => order.indexOf(one) - order.indexOf(other)) });
  };
  const ready = rows && columns && rows !== columns && valuesOf(rows).length > 0 && valuesOf(columns).length > 0;
  const axis = (label: string, key: string, choose: (key: string) => void, other: string) => (
    <fieldset class="axis">
      <legend>{label}</legend>
      <select aria-label={`${label}: key`} value={key} onChange={(event) => choose(event.currentTarget.value)}>
        {all.filter((each) => each.key !== other).map((each) => <option key={each.key} value={each.key}>{each.label}</option>)}
      </select>
      <div class="boxes">
        {all.find((each) => each.key === key)?.all.map((choice) => (
          <label key={String(choice.value)}>
            <input type="checkbox" checked={valuesOf(key).includes(choice.value)} onChange={() => turn(key, choice.value)} />{choice.label}
          </label>
        ))}
      </div>
    </fieldset>
  );
  return (
    <Dialog title="Sweep two keys" close={close}>
      <p class="soft small">Every combination is estimated as a plan of its own. A cell of the map can be taken with a click.</p>
      {axis("Rows", rows, setRows, columns)}
      {axis("Columns", columns, setColumns, rows)}
      <div class="buttons">
        <span class="soft small">{valuesOf(rows).length * valuesOf(columns).length} plans</span>
        <button type="button" class="button main" disabled={!ready}
          onClick={() => { axes.value = [{ key: rows, values: valuesOf(rows) }, { key: columns, values: valuesOf(columns) }]; close(); sweep(); }}>Draw the map</button>
      </div>
    </Dialog>
  );
}
