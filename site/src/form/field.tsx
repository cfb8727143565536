/** What all fields share: the label, and behind its button what the key means, where its value is from and what bars others. */
import { useId, useRef, useState } from "preact/hooks";
import { Icon } from "../frame/icons.tsx";
import { placeBelow } from "../frame/place.ts";
import type { Choice, FormField, Value } from "../types.ts";

/** A field with the values to choose from. */
export type Control = Omit<FormField, "choices"> & { choices: readonly Choice[] };

export interface FieldProps {
  field: Control;
  /** What is shown: the plan's value, or the one that is being set. */
  value: Value;
  set: (value: Value | undefined) => void;
}

/** Choices that can be taken: the legal ones, or all where the plan is refused whatever this value is. */
export function offered(choices: readonly Choice[]): readonly Choice[] {
  const legal = choices.filter((choice) => choice.legal);
  return legal.length ? legal : choices;
}

/** The label of a control. Without `for` it names a group of controls by its id. */
export function Label({ field, for: id }: { field: Control; for?: string }) {
  return (
    <span class="label">
      {id ? <label for={id}>{field.label}</label> : <span id={`label-${field.key}`}>{field.label}</span>}
      {field.unit && <small class="soft">{field.unit}</small>}
      <Info field={field} />
    </span>
  );
}

const ORIGINS: Readonly<Record<string, string>> = {
  stated: "The plan states this value",
  assumed: "This value is assumed",
  default: "The format's default",
  unset: "Not set",
};

export function Info({ field }: { field: Control }) {
  const id = useId();
  const [open, setOpen] = useState(false);
  const list = useRef<HTMLDivElement>(null);
  const button = useRef<HTMLButtonElement>(null);
  const assumed = field.origin === "assumed";
  const show = (event: { newState: string }): void => setOpen(event.newState === "open");
  const place = (node: HTMLElement | null): void => {
    if (node && list.current && button.current) placeBelow(list.current, button.current);
  };
  return (
    <>
      <button ref={button} type="button" class={assumed ? "assumed" : "info"} popovertarget={id} aria-label={assumed ? undefined : `About ${field.label}`}>
        {assumed ? <>assumed<span class="unseen">: about {field.label}</span></> : <Icon name="info" />}
      </button>
      <div ref={list} id={id} popover="auto" class="menu about" onToggle={show} role="group" aria-label={field.label}>
        {open && <About field={field} done={place} />}
      </div>
    </>
  );
}

function About({ field, done }: { field: Control; done: (node: HTMLElement | null) => void }) {
  const barred = field.choices.filter((choice) => !choice.legal);
  const line = field.place?.line;
  return (
    <div ref={done}>
      {field.told && <p>{field.told}</p>}
      <p class="soft">{ORIGINS[field.origin] ?? field.origin}{line ? ` in line ${line}` : ""}{field.why ? `: ${field.why}` : ""}. <code>{field.key}</code></p>
      {barred.length > 0 && <p><b>Values that the plan cannot have now</b></p>}
      <ul>
        {barred.map((choice) => (
          <li key={String(choice.value)}><b>{choice.label}</b>: {choice.reason}</li>
        ))}
      </ul>
    </div>
  );
}
