/** Two questions about the job as a whole: does it train or serve, and is the overhead modelled or a flat share. */
import { useId } from "preact/hooks";
import { form, set } from "../session.ts";
import type { Control } from "./field.tsx";

const FLAT = "10%";
/** Where a job that serves begins: one sequence of 8,192 tokens. */
const SERVED = { batch_size: 1, context_length: 8192 };
const TRAINED = { micro_batch_size: 1, sequence_length: 4096 };

export function Kind({ serving }: { serving: boolean }) {
  const id = useId();
  return (
    <fieldset class="segments" aria-label="What the job does">
      <label>
        <input type="radio" name={id} checked={!serving} onChange={() => set({ inference: undefined, training: TRAINED })} />Training
      </label>
      <label>
        <input type="radio" name={id} checked={serving} onChange={() => set({ training: undefined, "parallelism.zero_stage": undefined, inference: SERVED })} />Inference
      </label>
    </fieldset>
  );
}

/** The overhead as textbooks have it: a share of everything else. */
export function Textbook({ field }: { field: Control }) {
  const flat = form.value?.textbook ?? false;
  const id = useId();
  return (
    <div class="field" data-key={field.key}>
      <label class="switch">
        <input type="checkbox" checked={flat} aria-describedby={id} onChange={() => set({ [field.key]: flat ? undefined : FLAT })} />
        <span>Textbook: a flat {flat ? String(field.value) : FLAT} on top</span>
      </label>
      <span class="note" id={id}>{field.told}</span>
    </div>
  );
}
