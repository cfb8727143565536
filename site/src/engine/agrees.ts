/** Holds the page's own names of the protocol's records against `protocol.ts`, which comes from the schema. Types alone. */
import type * as page from "../types.ts";
import type * as protocol from "./protocol.ts";

/** Fails to compile where a message of the engine is not what the page takes it for. */
type Takes<Expected, Sent extends Expected> = Sent;

export type Agreed = [
  Takes<page.First, protocol.First>,
  Takes<page.Form, protocol.PlanForm>,
  Takes<page.Failed, protocol.Failed>,
  Takes<{ choices: Readonly<Record<string, readonly page.Choice[]>> }, protocol.Choices>,
];
