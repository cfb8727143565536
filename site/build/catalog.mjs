/** Makes `catalog.json`: the names that the page offers before its engine can list them, which takes Python two seconds. */

import { command } from "./node.mjs";

/** The models and GPUs that an engine knows, as `memcheck list` prints them, reduced to what a search shows. */
export function catalogOf(engine) {
  const list = (kind) => JSON.parse(command(engine, ["list", kind, "--format", "json"]).stdout);
  const models = list("models").map(({ name, id, model_type, parameters }) => ({ name, id, model_type, parameters }));
  const gpus = list("gpus").map(({ name, memory_bytes, bf16_tflops }) => ({ name, memory_bytes, bf16_tflops }));
  if (models.length < 100 || gpus.length < 10) throw new Error("the engine lists too few models or GPUs");
  return Buffer.from(JSON.stringify({ models, gpus }));
}
