/** The engine's messages under the names that the page calls them by. */
export type {
  Diagnostic, Failed, Figures, FileChange, First, FormField, FormGroup, GpuShare, Gpus, ImportedPlan, KeyChoice as Choice, LineBytes, Lines,
  PlanForm as Form, PlanTab, RelatedPlace, RemedyEdits, RemedySteps, Searching, SectionHead, TextEdit, TextPlace, Value, Verdict,
} from "./engine/protocol.ts";
