/** One of several words: segments where they have room in a line or two, else a list. A barred one stays, with its reason. */
import { useId } from "preact/hooks";
import type { Value } from "../types.ts";
import { type FieldProps, Label, offered } from "./field.tsx";

const SEGMENTS = 5;
const SEGMENT_CHARACTERS = 34;

export function Select(props: FieldProps) {
  const { field, value, set } = props;
  const id = useId();
  const free = new Set(offered(field.choices));
  const chosen = field.choices.findIndex((choice) => same(choice.value, value));
  const room = field.choices.length <= SEGMENTS && field.choices.reduce((sum, choice) => sum + choice.label.length, 0) <= SEGMENT_CHARACTERS;
  if (!room) {
    return (
      <div class="field" data-key={field.key}>
        <Label field={field} for={id} />
        <select id={id} value={String(chosen)}
          onChange={(event) => set(field.choices[Number(event.currentTarget.value)]?.value)}>
          {chosen < 0 && <option value="-1">{value === null || value === undefined ? "" : String(value)}</option>}
          {field.choices.map((choice, index) => (
            <option key={index} value={String(index)} disabled={!free.has(choice) && index !== chosen} title={choice.reason}>
              {choice.label}
            </option>
          ))}
        </select>
      </div>
    );
  }
  return (
    <div class="field" data-key={field.key}>
      <Label field={field} />
      <fieldset class="segments" aria-labelledby={`label-${field.key}`}>
        {field.choices.map((choice, index) => (
          <label key={index} title={choice.legal ? undefined : choice.reason}>
            <input type="radio" name={id} checked={index === chosen} disabled={(!free.has(choice) && index !== chosen)}
              onChange={() => set(choice.value)} />
            {choice.label}
          </label>
        ))}
      </fieldset>
    </div>
  );
}

export function Toggle({ field, value, set }: FieldProps) {
  const id = useId();
  const barred = field.choices.length > 0 && !offered(field.choices).some((choice) => choice.value === !value);
  return (
    <div class="field" data-key={field.key}>
      <Label field={field} for={id} />
      <input id={id} class="beside" type="checkbox" checked={value === true} disabled={barred}
        onChange={(event) => set(event.currentTarget.checked)} />
    </div>
  );
}

/** A text, a size such as `700M` or a list, as YAML has it. */
export function Words({ field, value, set }: FieldProps) {
  const id = useId();
  return (
    <div class="field" data-key={field.key}>
      <Label field={field} for={id} />
      <input id={id} type="text" list={`${id}-list`}
        value={value === null || value === undefined ? "" : Array.isArray(value) ? value.join(", ") : String(value)}
        onChange={(event) => set(read(event.currentTarget.value, Array.isArray(value)))} />
      <datalist id={`${id}-list`}>
        {field.choices.filter((choice) => choice.legal).map((choice) => <option key={String(choice.value)} value={String(choice.value)} />)}
      </datalist>
    </div>
  );
}

/** What a text field says: nothing takes the key out, a number is a number, words with commas are a list. */
function read(text: string, list: boolean): Value | undefined {
  const shown = text.trim();
  if (!shown) return undefined;
  if (list || shown.includes(",")) return shown.split(",").map((part) => part.trim()).filter(Boolean);
  return /^-?\d+(\.\d+)?$/.test(shown) ? Number(shown) : shown;
}

export function same(one: Value | undefined, other: Value | undefined): boolean {
  return one === other || JSON.stringify(one) === JSON.stringify(other);
}
