/** The model's field: its name at once, the search in the catalog when it is first used. */
import { signal } from "@preact/signals";
import type { ComponentType } from "preact";
import { useId } from "preact/hooks";
import { catalog, counted, loadCatalog } from "../share/catalog.ts";
import { type FieldProps } from "./field.tsx";
import type ModelBox from "./model.tsx";

const box = signal<ComponentType<Parameters<typeof ModelBox>[0]> | null>(null);
let asked = false;

async function load(): Promise<void> {
  if (asked) return;
  asked = true;
  const [module] = await Promise.all([import("./model.tsx"), loadCatalog()]);
  box.value = module.default;
}

export function Model({ field, value, set }: FieldProps) {
  const id = useId();
  const name = typeof value === "string" ? value : "";
  const Box = box.value;
  const known = catalog.value?.find((model) => model.name === name);
  return (
    <div class="field" data-key={field.key}>
      {Box && catalog.value ? (
        <Box models={catalog.value} value={name} set={set} describedBy={id} />
      ) : (
        <div class="combo">
          <input type="text" aria-label="Model" aria-describedby={id} value={name} placeholder={name ? "" : "own dimensions"} onFocus={() => void load()} readOnly />
        </div>
      )}
      <span class="note" id={id}>{known ? `${counted(known.parameters)} parameters, ${known.model_type}` : ""}</span>
    </div>
  );
}
