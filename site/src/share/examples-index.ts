/** An example by its name, without loading all of them before one is asked for. */
import type { Example } from "./examples.ts";

export async function exampleNamed(name: string): Promise<Example | undefined> {
  const { examples } = await import("./examples.ts");
  return examples.find((each) => each.name === name);
}
