/** What all fields share: their label with the mark of an assumed value, and the notes below. */
import { useState } from "preact/hooks";
import type { Field, Value } from "../types.ts";

export interface FieldProps {
  field: Field;
  /** What is shown: the plan's value, or the one that is being set. */
  value: Value;
  set: (value: Value | undefined) => void;
  /** Whether the text cannot be read, so that nothing can be set. */
  resting: boolean;
}

export function Label({ field, for: id }: { field: Field; for?: string }) {
  const words = (
    <>
      <span title={field.help}>{field.label}</span>
      {field.unit && <small class="soft">{field.unit}</small>}
    </>
  );
  return (
    <>
      {id ? <label for={id}>{words}</label> : <span class="label" id={`label-${field.key}`}>{words}</span>}
    </>
  );
}

/** Why a value was assumed, which values are not legal and why, and what is wrong with the one that was typed. */
export function Notes({ field, id, wrong = "" }: { field: Field; id: string; wrong?: string }) {
  const [open, setOpen] = useState(false);
  const barred = field.choices.filter((choice) => !choice.legal);
  return (
    <span class="note" id={id}>
      {wrong && <span class="note bad">{wrong}. </span>}
      {field.assumed && <span class="assumed" title={field.assumed}>assumed</span>}
      {barred.length > 0 && (
        <button type="button" class="why-not" aria-expanded={open} onClick={() => setOpen(!open)}>
          {barred.length === 1 ? "1 value is not possible" : `${barred.length} values are not possible`}
        </button>
      )}
      {open && (
        <ul>
          {barred.map((choice) => (
            <li key={String(choice.value)}><b>{choice.label}</b>: {choice.reason}</li>
          ))}
        </ul>
      )}
    </span>
  );
}
