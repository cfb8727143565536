/** The engine's messages under the names that the page calls them by. */
export type {
  Diagnostic, Failed, Figures, FileChange, First, FormField, FormGroup, GpuShare, Gpus, KeyChoice as Choice, LineBytes, Lines,
  PlanForm as Form, PlanTab, RelatedPlace, RemedyEdits, RemedySteps, Searching, SectionHead, TextEdit, TextPlace, Value, Verdict,
} from "./engine/protocol.ts";

import type { TextPlace as At, Value as Any } from "./engine/protocol.ts";

/** A sentence about a place of a file that is imported; `keys` of the plan settle a problem. */
export interface Remark { path: string; place: At; message: string; help: string; keys: readonly string[] }
/** The plan of a framework's config or script; `text` is empty where there are problems. */
export interface ImportedPlan { format: string; text: string; notes: readonly Remark[]; problems: readonly Remark[]; assumed: readonly { key: string; value: Any; why: string }[] }
