/** The form: the engine's groups of fields. What a plan says, assumes or leaves to the format is told by each field. */
import { signal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useEffect } from "preact/hooks";
import { choices, diagnostics, engine, form, latest, plan, ready, resting, set, wanted, written } from "../session.ts";
import type { Choice, Form, FormGroup, Value } from "../types.ts";
import { type Control, offered } from "./field.tsx";
import { Kind, Textbook } from "./job.tsx";
import { Toggle, Words, Select } from "./choice.tsx";
import { Gpus } from "./hardware.tsx";
import { Model } from "./model-field.tsx";
import { Slider } from "./slider.tsx";

const OVERHEAD = "policy.overhead";

/** Values of fields that are shown on demand, by key, since the newest form. */
const fetched = signal<Readonly<Record<string, readonly Choice[]>>>({});
/** Groups whose further fields are open. */
const opened = signal<ReadonlySet<string>>(new Set());

export function FormPane() {
  const now = form.value;
  const open = opened.value;
  useEffect(() => {
    if (now) void fetchChoices(now, open);
  }, [now, open]);
  return (
    <section class="pane-form" id="pane-form" aria-label="Plan" inert={!ready.value || resting.value}>
      {resting.value && <p class="well small">The text cannot be read as a plan. The controls wait until it can.</p>}
      {now?.groups.map((group) => <Group key={group.id} group={group} controls={controls(now, group)} />)}
    </section>
  );
}

function controls(now: Form, group: FormGroup): Control[] {
  const found = group.keys.map((key) => now.fields[key]).filter((field) => field !== undefined);
  return found.map((field) => ({ ...field, choices: choices.value[field.key] ?? fetched.value[field.key] ?? [] }));
}

function Group({ group, controls }: { group: FormGroup; controls: readonly Control[] }) {
  const first = controls.filter((field) => field.main && field.key !== OVERHEAD);
  const rest = controls.filter((field) => !field.main && (field.relevant || field.origin === "stated"));
  const flat = controls.find((field) => field.key === OVERHEAD);
  const open = opened.value.has(group.id);
  const assumed = rest.filter((field) => field.origin === "assumed").length;
  return (
    <section class="group" aria-label={group.title}>
      <h2 title={group.told}>{group.title}</h2>
      {(group.id === "training" || group.id === "inference") && <Kind serving={group.id === "inference"} />}
      {first.map((field) => <Field key={field.key} field={field} />)}
      {flat && <Textbook field={flat} />}
      {rest.length > 0 && (
        <details class="more" open={open} onToggle={(event) => turn(group.id, event.currentTarget.open)}>
          <summary>More <small>({rest.length} {rest.length === 1 ? "key" : "keys"}{assumed ? `, ${assumed} assumed` : ""})</small></summary>
          {open && rest.map((field) => <Field key={field.key} field={field} />)}
        </details>
      )}
    </section>
  );
}

function turn(id: string, open: boolean): void {
  if (opened.value.has(id) === open) return;
  const next = new Set(opened.value);
  if (open) next.add(id);
  else next.delete(id);
  opened.value = next;
}

async function fetchChoices(now: Form, open: ReadonlySet<string>): Promise<void> {
  const keys = now.groups.filter((group) => open.has(group.id)).flatMap((group) => group.keys).filter((key) => now.fields[key]?.choices === "asked");
  if (!keys.length) return;
  await engine()?.answer({
    slot: "choices",
    request: { do: "choices", ...plan(), keys },
    step(step) {
      if (step.step === "choices") fetched.value = step["choices"] as Record<string, Choice[]>;
    },
  });
}

/** The value that a field shows: what is being set, what has just been written, or what the form says. */
export function shownValue(field: Control): Value {
  for (const changes of [wanted.value, written.value]) {
    if (field.key in changes) return changes[field.key] ?? null;
  }
  return field.value;
}

/** A control, and what is wrong with its value. */
function Field({ field }: { field: Control }) {
  const pointer = `/${field.key.replaceAll(".", "/")}`;
  const wrong = latest.value?.first.figures ? undefined : diagnostics.value.find((each) => each.pointer === pointer && each.severity === "error");
  return (
    <>
      <Input field={field} />
      {wrong && <p class="note bad">{wrong.message}</p>}
    </>
  );
}

function Input({ field }: { field: Control }): ComponentChildren {
  const props = {
    field,
    value: shownValue(field),
    set: (value: Value | undefined) => set({ [field.key]: value }),
  };
  switch (field.kind) {
    case "model":
      return <Model {...props} />;
    case "gpu":
      return <Gpus {...props} />;
    case "flag":
      return <Toggle {...props} />;
    case "choice":
      return <Select {...props} />;
    case "number":
      if (everyValue(field)) return <Select {...props} />;
      return offered(field.choices).some((choice) => typeof choice.value === "number") ? <Slider {...props} /> : <Words {...props} />;
    default:
      return field.choices.length ? <Select {...props} /> : <Words {...props} />;
  }
}

/** Whether the choices of a number are all that its range has, such as the stages of ZeRO. */
function everyValue(field: Control): boolean {
  const { minimum, maximum, choices } = field;
  return minimum !== null && maximum !== null && choices.length === maximum - minimum + 1;
}
