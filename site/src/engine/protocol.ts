/* Written by `npm --prefix site run types` from schemas/live.schema.json: change that, and run it again. */
export type Value = string | number | boolean | null | Value[] | {[key: string]: Value};

/**
 * What `memcheck.live.protocol.handle` takes and yields.
 */
export type TheMessagesOfMemcheckSPage = Request | Reply;
/**
 * A request, by its word.
 */
export type Request =
  | AnswerRequest
  | SetRequest
  | MoreRequest
  | ChoicesRequest
  | ImportRequest
  | ExportRequest
  | CompareRequest
  | SweepRequest
  | SuggestRequest
  | WhyRequest
  | ReportRequest
  | LinkRequest
  | CatalogRequest;
/**
 * One step of an answer. The last step of every request is `done`.
 */
export type Reply =
  | First
  | PlanForm
  | Choices
  | Lines
  | Searching
  | RemedySteps
  | Gpus
  | ImportedPlan
  | Exported
  | Drawn
  | Reported
  | Linked
  | Catalog
  | Failed
  | Done;

/**
 * Check a plan. Replies: `first`, then `form`.
 */
export interface AnswerRequest {
  /**
   * The number of the request, which its replies repeat.
   */
  id: number | string;
  /**
   * The word of the request.
   */
  do: "answer";
  /**
   * The file that the request is about; without it, the file of the request before.
   */
  path?: string;
  /**
   * The text of that file, if it has changed.
   */
  text?: string;
  /**
   * The number of the plan in the file, from 0; without it, 0.
   */
  document?: number;
  /**
   * Other files by name that are added or replaced; null removes a file.
   */
  files?: {
    [k: string]: string | null;
  };
  /**
   * What a framework's own config does not say: gpu, gpus_per_node, nodes.
   */
  hardware?: {};
  /**
   * The id of the answer that is shown: what is the same is left out.
   */
  since?: number | string;
}
/**
 * Set keys of a plan, then check it. Replies: `first` with edits, then `form`.
 */
export interface SetRequest {
  /**
   * The number of the request, which its replies repeat.
   */
  id: number | string;
  /**
   * The word of the request.
   */
  do: "set";
  /**
   * The file that the request is about; without it, the file of the request before.
   */
  path?: string;
  /**
   * The text of that file, if it has changed.
   */
  text?: string;
  /**
   * The number of the plan in the file, from 0; without it, 0.
   */
  document?: number;
  /**
   * Other files by name that are added or replaced; null removes a file.
   */
  files?: {
    [k: string]: string | null;
  };
  /**
   * What a framework's own config does not say: gpu, gpus_per_node, nodes.
   */
  hardware?: {};
  /**
   * The id of the answer that is shown: what is the same is left out.
   */
  since?: number | string;
  /**
   * New values by dotted key; null removes a key from the plan.
   */
  changes: {};
}
/**
 * Search for bytes per line, changes that help, other GPUs. Replies: `searching`, `lines`, `remedies`, `gpus`.
 */
export interface MoreRequest {
  /**
   * The number of the request, which its replies repeat.
   */
  id: number | string;
  /**
   * The word of the request.
   */
  do: "more";
  /**
   * The file that the request is about; without it, the file of the request before.
   */
  path?: string;
  /**
   * The text of that file, if it has changed.
   */
  text?: string;
  /**
   * The number of the plan in the file, from 0; without it, 0.
   */
  document?: number;
  /**
   * Other files by name that are added or replaced; null removes a file.
   */
  files?: {
    [k: string]: string | null;
  };
  /**
   * What a framework's own config does not say: gpu, gpus_per_node, nodes.
   */
  hardware?: {};
  /**
   * The id of the answer that is shown: what is the same is left out.
   */
  since?: number | string;
  /**
   * What to search for, in this order; all without it.
   *
   * @maxItems 1000
   */
  steps?: ("lines" | "remedies" | "gpus")[];
}
/**
 * The values that keys could have. Reply: `choices`.
 */
export interface ChoicesRequest {
  /**
   * The number of the request, which its replies repeat.
   */
  id: number | string;
  /**
   * The word of the request.
   */
  do: "choices";
  /**
   * The file that the request is about; without it, the file of the request before.
   */
  path?: string;
  /**
   * The text of that file, if it has changed.
   */
  text?: string;
  /**
   * The number of the plan in the file, from 0; without it, 0.
   */
  document?: number;
  /**
   * Other files by name that are added or replaced; null removes a file.
   */
  files?: {
    [k: string]: string | null;
  };
  /**
   * What a framework's own config does not say: gpu, gpus_per_node, nodes.
   */
  hardware?: {};
  /**
   * The id of the answer that is shown: what is the same is left out.
   */
  since?: number | string;
  /**
   * Dotted keys.
   *
   * @maxItems 1000
   */
  keys: string[];
}
/**
 * The plan of a framework's config, a script or a launch line. Reply: `imported`.
 */
export interface ImportRequest {
  /**
   * The number of the request, which its replies repeat.
   */
  id: number | string;
  /**
   * The word of the request.
   */
  do: "import";
  /**
   * The file that the request is about; without it, the file of the request before.
   */
  path?: string;
  /**
   * The text of that file, if it has changed.
   */
  text?: string;
  /**
   * The number of the plan in the file, from 0; without it, 0.
   */
  document?: number;
  /**
   * Other files by name that are added or replaced; null removes a file.
   */
  files?: {
    [k: string]: string | null;
  };
  /**
   * What a framework's own config does not say: gpu, gpus_per_node, nodes.
   */
  hardware?: {};
  /**
   * The id of the answer that is shown: what is the same is left out.
   */
  since?: number | string;
  /**
   * The format, where the file does not prove it.
   */
  format?: string;
  /**
   * What the config cannot say, by dotted key of the plan.
   */
  settings?: {};
}
/**
 * The config of a framework that runs the plan. Reply: `exported`.
 */
export interface ExportRequest {
  /**
   * The number of the request, which its replies repeat.
   */
  id: number | string;
  /**
   * The word of the request.
   */
  do: "export";
  /**
   * The file that the request is about; without it, the file of the request before.
   */
  path?: string;
  /**
   * The text of that file, if it has changed.
   */
  text?: string;
  /**
   * The number of the plan in the file, from 0; without it, 0.
   */
  document?: number;
  /**
   * Other files by name that are added or replaced; null removes a file.
   */
  files?: {
    [k: string]: string | null;
  };
  /**
   * What a framework's own config does not say: gpu, gpus_per_node, nodes.
   */
  hardware?: {};
  /**
   * The id of the answer that is shown: what is the same is left out.
   */
  since?: number | string;
  /**
   * Whose config to write.
   */
  format: "deepspeed" | "accelerate" | "torchtitan" | "megatron";
}
/**
 * The plan on several GPUs, or next to other plans. Reply: `drawn`.
 */
export interface CompareRequest {
  /**
   * The number of the request, which its replies repeat.
   */
  id: number | string;
  /**
   * The word of the request.
   */
  do: "compare";
  /**
   * The file that the request is about; without it, the file of the request before.
   */
  path?: string;
  /**
   * The text of that file, if it has changed.
   */
  text?: string;
  /**
   * The number of the plan in the file, from 0; without it, 0.
   */
  document?: number;
  /**
   * Other files by name that are added or replaced; null removes a file.
   */
  files?: {
    [k: string]: string | null;
  };
  /**
   * What a framework's own config does not say: gpu, gpus_per_node, nodes.
   */
  hardware?: {};
  /**
   * The id of the answer that is shown: what is the same is left out.
   */
  since?: number | string;
  /**
   * GPUs to compare; without them, the usual ones.
   *
   * @maxItems 1000
   */
  gpus?: string[];
  /**
   * Files of other plans, which are compared on their own GPUs.
   *
   * @maxItems 1000
   */
  plans?: string[];
}
/**
 * A heat map over values of keys. Replies: `searching`, then `drawn`.
 */
export interface SweepRequest {
  /**
   * The number of the request, which its replies repeat.
   */
  id: number | string;
  /**
   * The word of the request.
   */
  do: "sweep";
  /**
   * The file that the request is about; without it, the file of the request before.
   */
  path?: string;
  /**
   * The text of that file, if it has changed.
   */
  text?: string;
  /**
   * The number of the plan in the file, from 0; without it, 0.
   */
  document?: number;
  /**
   * Other files by name that are added or replaced; null removes a file.
   */
  files?: {
    [k: string]: string | null;
  };
  /**
   * What a framework's own config does not say: gpu, gpus_per_node, nodes.
   */
  hardware?: {};
  /**
   * The id of the answer that is shown: what is the same is left out.
   */
  since?: number | string;
  /**
   * Values by dotted key; the last key is the columns.
   */
  values: {
    [k: string]: unknown[];
  };
}
/**
 * Search for plans near this one. Reply: `drawn`.
 */
export interface SuggestRequest {
  /**
   * The number of the request, which its replies repeat.
   */
  id: number | string;
  /**
   * The word of the request.
   */
  do: "suggest";
  /**
   * The file that the request is about; without it, the file of the request before.
   */
  path?: string;
  /**
   * The text of that file, if it has changed.
   */
  text?: string;
  /**
   * The number of the plan in the file, from 0; without it, 0.
   */
  document?: number;
  /**
   * Other files by name that are added or replaced; null removes a file.
   */
  files?: {
    [k: string]: string | null;
  };
  /**
   * What a framework's own config does not say: gpu, gpus_per_node, nodes.
   */
  hardware?: {};
  /**
   * The id of the answer that is shown: what is the same is left out.
   */
  since?: number | string;
  /**
   * What is sought; `fit` without it.
   */
  goal?: "fit" | "throughput" | "gpus" | "cheapest" | "max-batch" | "max-sequence";
}
/**
 * Why a run ended; `path` is its log. Reply: `drawn`.
 */
export interface WhyRequest {
  /**
   * The number of the request, which its replies repeat.
   */
  id: number | string;
  /**
   * The word of the request.
   */
  do: "why";
  /**
   * The file that the request is about; without it, the file of the request before.
   */
  path?: string;
  /**
   * The text of that file, if it has changed.
   */
  text?: string;
  /**
   * The number of the plan in the file, from 0; without it, 0.
   */
  document?: number;
  /**
   * Other files by name that are added or replaced; null removes a file.
   */
  files?: {
    [k: string]: string | null;
  };
  /**
   * What a framework's own config does not say: gpu, gpus_per_node, nodes.
   */
  hardware?: {};
  /**
   * The id of the answer that is shown: what is the same is left out.
   */
  since?: number | string;
  /**
   * The GPU of the run, where the log does not say it.
   */
  gpu?: string;
}
/**
 * A report to download. Reply: `reported`.
 */
export interface ReportRequest {
  /**
   * The number of the request, which its replies repeat.
   */
  id: number | string;
  /**
   * The word of the request.
   */
  do: "report";
  /**
   * The file that the request is about; without it, the file of the request before.
   */
  path?: string;
  /**
   * The text of that file, if it has changed.
   */
  text?: string;
  /**
   * The number of the plan in the file, from 0; without it, 0.
   */
  document?: number;
  /**
   * Other files by name that are added or replaced; null removes a file.
   */
  files?: {
    [k: string]: string | null;
  };
  /**
   * What a framework's own config does not say: gpu, gpus_per_node, nodes.
   */
  hardware?: {};
  /**
   * The id of the answer that is shown: what is the same is left out.
   */
  since?: number | string;
  /**
   * A format of `memcheck check`.
   */
  format:
    | "full"
    | "concise"
    | "brief"
    | "json"
    | "github"
    | "markdown"
    | "jsonl"
    | "csv"
    | "html"
    | "pdf"
    | "story"
    | "sarif"
    | "junit"
    | "gitlab"
    | "checkstyle"
    | "rdjson";
}
/**
 * A link that opens the plan in the page. Reply: `linked`.
 */
export interface LinkRequest {
  /**
   * The number of the request, which its replies repeat.
   */
  id: number | string;
  /**
   * The word of the request.
   */
  do: "link";
  /**
   * The file that the request is about; without it, the file of the request before.
   */
  path?: string;
  /**
   * The text of that file, if it has changed.
   */
  text?: string;
  /**
   * The number of the plan in the file, from 0; without it, 0.
   */
  document?: number;
  /**
   * Other files by name that are added or replaced; null removes a file.
   */
  files?: {
    [k: string]: string | null;
  };
  /**
   * What a framework's own config does not say: gpu, gpus_per_node, nodes.
   */
  hardware?: {};
  /**
   * The id of the answer that is shown: what is the same is left out.
   */
  since?: number | string;
  /**
   * The file of a second plan, to compare with.
   */
  compared?: string;
  /**
   * The section to show first.
   */
  section?: string;
}
/**
 * Models and GPUs by name. Reply: `catalog`.
 */
export interface CatalogRequest {
  /**
   * The number of the request, which its replies repeat.
   */
  id: number | string;
  /**
   * The word of the request.
   */
  do: "catalog";
}
/**
 * The verdict, the bar and the findings of one plan: the first step of an answer.
 */
export interface First {
  /**
   * The id of the request; null if it had none.
   */
  id: number | string | null;
  /**
   * The step.
   */
  step: "first";
  /**
   * Path.
   */
  path: string;
  /**
   * Document.
   */
  document: number;
  /**
   * Name.
   */
  name: string;
  /**
   * `passed`, `failed`, or `error` where nothing could be estimated.
   */
  status: string;
  /**
   * Verdict.
   */
  verdict: Verdict;
  /**
   * The answer in a sentence.
   */
  lead: string;
  /**
   * How full the memory is that decides, such as `45.2%`; empty without an estimate.
   */
  used: string;
  /**
   * Figures.
   */
  figures: Figures | null;
  /**
   * All plans of the file.
   */
  documents: PlanTab[];
  /**
   * All sections of the result; one that is missing in `sections` has not changed.
   */
  order: SectionHead[];
  /**
   * HTML by the id of a section.
   */
  sections: {
    [k: string]: string;
  };
  /**
   * Diagnostics.
   */
  diagnostics: Diagnostic[];
  /**
   * What the request changed in the files, which the workspace holds already; empty but for `set`.
   */
  edits: FileChange[];
  /**
   * The files of the workspace that the plan was read from, its own first.
   */
  files: string[];
  /**
   * Reports of memcheck's own failures, to copy into an issue; empty as a rule.
   */
  defects: string[];
}
/**
 * The answer on a plan in a word or two.
 */
export interface Verdict {
  /**
   * Word.
   */
  word: string;
  /**
   * `good`, `warn`, `bad`, or `note` for what is accepted.
   */
  tone: string;
  /**
   * Whether something else than the need fails the plan.
   */
  fails: boolean;
}
/**
 * The figures of an estimate, in bytes.
 */
export interface Figures {
  /**
   * Needed bytes.
   */
  needed_bytes: number;
  /**
   * Needed low bytes.
   */
  needed_low_bytes: number;
  /**
   * Needed high bytes.
   */
  needed_high_bytes: number;
  /**
   * What a monitor shows: the need with the allocator's cache.
   */
  seen_bytes: number;
  /**
   * Capacity bytes.
   */
  capacity_bytes: number;
  /**
   * The most that the policy allows.
   */
  limit_bytes: number;
  /**
   * What a node's processes need of its memory.
   */
  host_bytes: number;
  /**
   * Gpus.
   */
  gpus: number;
}
/**
 * One plan of a file.
 */
export interface PlanTab {
  /**
   * The number of the plan in the file, from 0.
   */
  document: number;
  /**
   * Name.
   */
  name: string;
  /**
   * The first line of the document, from 1.
   */
  line: number;
  /**
   * Verdict.
   */
  verdict: Verdict;
  /**
   * How full the memory is that decides, such as `45.2%`; empty without an estimate.
   */
  used: string;
}
/**
 * A section of the result in its order.
 */
export interface SectionHead {
  /**
   * Id.
   */
  id: string;
  /**
   * Title.
   */
  title: string;
  /**
   * Whether the section is shown on demand.
   */
  folded: boolean;
  /**
   * Whether the section takes half of a wide screen.
   */
  half: boolean;
}
/**
 * One finding about a plan, at its place.
 */
export interface Diagnostic {
  /**
   * Stays while the subject of the finding stays.
   */
  id: string;
  /**
   * Code.
   */
  code: string;
  /**
   * Name.
   */
  name: string;
  /**
   * `error`, `warning` or `info`.
   */
  severity: string;
  /**
   * Message.
   */
  message: string;
  /**
   * Help.
   */
  help: string;
  /**
   * Path.
   */
  path: string;
  /**
   * Start.
   */
  start: TextPlace;
  /**
   * End.
   */
  end: TextPlace;
  /**
   * JSON pointer of the key in the plan, or nothing.
   */
  pointer: string;
  /**
   * Related.
   */
  related: RelatedPlace[];
  /**
   * Edits of the plan with one right outcome; empty where there are none.
   */
  fix: TextEdit[];
}
/**
 * A place in a file.
 */
export interface TextPlace {
  /**
   * The line, from 1.
   */
  line: number;
  /**
   * The character of the line, from 1.
   */
  column: number;
  /**
   * The UTF-16 unit of the line, from 0, as editors count.
   */
  character: number;
}
/**
 * Another place that takes part in a diagnostic.
 */
export interface RelatedPlace {
  /**
   * Path.
   */
  path: string;
  /**
   * Start.
   */
  start: TextPlace;
  /**
   * End.
   */
  end: TextPlace;
  /**
   * Label.
   */
  label: string;
}
/**
 * Replace the text between two places; an empty span inserts.
 */
export interface TextEdit {
  /**
   * Start.
   */
  start: TextPlace;
  /**
   * End.
   */
  end: TextPlace;
  /**
   * Text.
   */
  text: string;
}
/**
 * The edits of one file, which belong together.
 */
export interface FileChange {
  /**
   * Path.
   */
  path: string;
  /**
   * Edits.
   */
  edits: TextEdit[];
}
/**
 * The plan as controls.
 */
export interface PlanForm {
  /**
   * The id of the request; null if it had none.
   */
  id: number | string | null;
  /**
   * The step.
   */
  step: "form";
  /**
   * Groups.
   */
  groups: FormGroup[];
  /**
   * Fields by key; one that is missing has not changed.
   */
  fields: {
    [k: string]: FormField;
  };
  /**
   * Whether the plan takes a flat share as overhead.
   */
  textbook: boolean;
  /**
   * How many values were assumed.
   */
  assumed: number;
}
/**
 * Fields of one section of the plan.
 */
export interface FormGroup {
  /**
   * Id.
   */
  id: string;
  /**
   * Title.
   */
  title: string;
  /**
   * Told.
   */
  told: string;
  /**
   * The fields in their order.
   */
  keys: string[];
}
/**
 * A control: one key of the plan.
 */
export interface FormField {
  /**
   * Key.
   */
  key: string;
  /**
   * Label.
   */
  label: string;
  /**
   * `choice`, `flag`, `number`, `text`, `list`, `model` or `gpu`.
   */
  kind: string;
  /**
   * What the key means.
   */
  told: string;
  /**
   * Unit.
   */
  unit: string;
  /**
   * The value that counts; null where there is none.
   */
  value: Value;
  /**
   * `stated` in the plan, `assumed`, the format's `default`, or `unset`.
   */
  origin: string;
  /**
   * Why an assumed value was taken.
   */
  why: string;
  /**
   * Minimum.
   */
  minimum: number | null;
  /**
   * Maximum.
   */
  maximum: number | null;
  /**
   * Whether the field is shown at once.
   */
  main: boolean;
  /**
   * Whether the plan has a use for the key: others refuse it or do not read it.
   */
  relevant: boolean;
  /**
   * When there are values to choose from: `soon` (the step `choices`), `asked` (the request), or `none`.
   */
  choices: string;
  /**
   * Where the value is written in the plan's own file; null where it is not.
   */
  place: TextPlace | null;
}
/**
 * The values that some keys could have: of a number, the marks of a slider.
 */
export interface Choices {
  /**
   * The id of the request; null if it had none.
   */
  id: number | string | null;
  /**
   * The step.
   */
  step: "choices";
  /**
   * Values by key. A key that takes any value has none; one that is missing has not changed.
   */
  choices: {
    [k: string]: KeyChoice[];
  };
}
/**
 * A value that a key could have.
 */
export interface KeyChoice {
  /**
   * Value.
   */
  value: Value;
  /**
   * Label.
   */
  label: string;
  /**
   * Facts to choose by, such as the memory of a GPU; empty where the value says it all.
   */
  told: string;
  /**
   * Whether the plan passes the layout rules with it.
   */
  legal: boolean;
  /**
   * The rule that refuses the value; empty where it is legal.
   */
  code: string;
  /**
   * Why the value is refused; empty where it is legal.
   */
  reason: string;
}
/**
 * The bytes that lines are responsible for; figures of several lines do not add up.
 */
export interface Lines {
  /**
   * The id of the request; null if it had none.
   */
  id: number | string | null;
  /**
   * The step.
   */
  step: "lines";
  /**
   * Lines.
   */
  lines: LineBytes[];
}
/**
 * What one key does to the memory that the fullest GPU needs.
 */
export interface LineBytes {
  /**
   * Key.
   */
  key: string;
  /**
   * Where the key's value is written.
   */
  place: TextPlace;
  /**
   * The value that it is compared with, such as 0 for a stage or half of a length.
   */
  other: Value;
  /**
   * How much more is needed with the other value; negative where less is.
   */
  saved_bytes: number;
  /**
   * What the key does, in words.
   */
  text: string;
}
/**
 * A search goes on.
 */
export interface Searching {
  /**
   * The id of the request; null if it had none.
   */
  id: number | string | null;
  /**
   * The step.
   */
  step: "searching";
  /**
   * `choices`, `lines`, `remedies`, `gpus` or `sweep`.
   */
  part: string;
  /**
   * How many candidates were tried so far.
   */
  tried: number;
  /**
   * How many changes that help were found so far.
   */
  fits: number;
}
/**
 * The result of a search for changes that help: none where there is nothing to mend, or where none helps.
 */
export interface RemedySteps {
  /**
   * The id of the request; null if it had none.
   */
  id: number | string | null;
  /**
   * The step.
   */
  step: "remedies";
  /**
   * All sections of the result; one of another step keeps its place.
   */
  order: SectionHead[];
  /**
   * Sections that change with what was found; empty HTML where there is none.
   */
  sections: {
    [k: string]: string;
  };
  /**
   * Remedies.
   */
  remedies: RemedyEdits[];
  /**
   * All findings: those about memory are now at the key that ends them most cheaply.
   */
  diagnostics: Diagnostic[];
}
/**
 * A change that helps, and how to make it.
 */
export interface RemedyEdits {
  /**
   * The id of the remedy in the HTML: `data-remedy`.
   */
  id: string;
  /**
   * Title.
   */
  title: string;
  /**
   * New values by dotted key.
   */
  changes: {
    [k: string]: unknown;
  };
  /**
   * Edits that write the change; empty where no edit does, so that the keys have to be set by hand.
   */
  edits: FileChange[];
}
/**
 * The plan on other GPUs.
 */
export interface Gpus {
  /**
   * The id of the request; null if it had none.
   */
  id: number | string | null;
  /**
   * The step.
   */
  step: "gpus";
  /**
   * All sections of the result; one of another step keeps its place.
   */
  order: SectionHead[];
  /**
   * Sections.
   */
  sections: {
    [k: string]: string;
  };
  /**
   * Gpus.
   */
  gpus: GpuShare[];
}
/**
 * The plan on one GPU.
 */
export interface GpuShare {
  /**
   * Gpu.
   */
  gpu: string;
  /**
   * The verdict.
   */
  word: string;
  /**
   * Tone.
   */
  tone: string;
  /**
   * How full the GPU is, such as `45.2%`; empty where the plan cannot run on it.
   */
  share: string;
  /**
   * Needed bytes.
   */
  needed_bytes: number;
  /**
   * Capacity bytes.
   */
  capacity_bytes: number;
  /**
   * Whether this is the GPU of the plan.
   */
  own: boolean;
}
/**
 * The plan of a framework's config or script.
 */
export interface ImportedPlan {
  /**
   * The id of the request; null if it had none.
   */
  id: number | string | null;
  /**
   * The step.
   */
  step: "imported";
  /**
   * The format that was read.
   */
  format: string;
  /**
   * The plan file; empty where there are problems.
   */
  text: string;
  /**
   * What the plan does not carry.
   */
  notes: Remark[];
  /**
   * Why there is no plan; empty where there is one.
   */
  problems: Remark[];
  /**
   * Assumed.
   */
  assumed: AssumedValue[];
}
/**
 * A sentence about a place of a file.
 */
export interface Remark {
  /**
   * Path.
   */
  path: string;
  /**
   * Place.
   */
  place: TextPlace;
  /**
   * Message.
   */
  message: string;
  /**
   * Help.
   */
  help: string;
  /**
   * Keys of the plan that settle a problem when they are set with the request.
   */
  keys: string[];
}
/**
 * A value that nothing states.
 */
export interface AssumedValue {
  /**
   * Key.
   */
  key: string;
  /**
   * Value.
   */
  value: Value;
  /**
   * Why.
   */
  why: string;
}
/**
 * A framework's config that runs the plan.
 */
export interface Exported {
  /**
   * The id of the request; null if it had none.
   */
  id: number | string | null;
  /**
   * The step.
   */
  step: "exported";
  /**
   * Format.
   */
  format: string;
  /**
   * The usual name of such a file.
   */
  name: string;
  /**
   * Text.
   */
  text: string;
  /**
   * What the format cannot say, or what belongs elsewhere.
   */
  notices: string[];
}
/**
 * A comparison, a heat map, suggestions, or why a run ended.
 */
export interface Drawn {
  /**
   * The id of the request; null if it had none.
   */
  id: number | string | null;
  /**
   * The step.
   */
  step: "drawn";
  /**
   * The word of the request.
   */
  of: string;
  /**
   * Title.
   */
  title: string;
  /**
   * Html.
   */
  html: string;
  /**
   * Changes in the HTML that can be applied; empty but for `suggest`.
   */
  remedies: RemedyEdits[];
}
/**
 * A report to download.
 */
export interface Reported {
  /**
   * The id of the request; null if it had none.
   */
  id: number | string | null;
  /**
   * The step.
   */
  step: "reported";
  /**
   * Format.
   */
  format: string;
  /**
   * Text.
   */
  text: string;
  /**
   * Whether the text is base64 of bytes.
   */
  encoded: boolean;
}
/**
 * A link that holds the plan.
 */
export interface Linked {
  /**
   * The id of the request; null if it had none.
   */
  id: number | string | null;
  /**
   * The step.
   */
  step: "linked";
  /**
   * The part of the page's address from `#` on.
   */
  fragment: string;
  /**
   * Whether the plan was written anew, with all that it takes from other files.
   */
  flattened: boolean;
  /**
   * What to say of a long link; empty for one that goes everywhere.
   */
  warning: string;
}
/**
 * What can be chosen by name.
 */
export interface Catalog {
  /**
   * The id of the request; null if it had none.
   */
  id: number | string | null;
  /**
   * The step.
   */
  step: "catalog";
  /**
   * Models.
   */
  models: CatalogModel[];
  /**
   * Gpus.
   */
  gpus: CatalogGpu[];
  /**
   * Formats of `export`.
   */
  exports: string[];
  /**
   * Formats of `report`.
   */
  reports: string[];
}
/**
 * A model that can be named.
 */
export interface CatalogModel {
  /**
   * Name.
   */
  name: string;
  /**
   * The id on the Hugging Face hub.
   */
  id: string;
  /**
   * Family.
   */
  family: string;
  /**
   * Parameters.
   */
  parameters: number;
}
/**
 * A GPU that can be named.
 */
export interface CatalogGpu {
  /**
   * Name.
   */
  name: string;
  /**
   * Memory bytes.
   */
  memory_bytes: number;
  /**
   * Arch.
   */
  arch: string;
  /**
   * Bf16 tflops.
   */
  bf16_tflops: number | null;
  /**
   * Gpus per node.
   */
  gpus_per_node: number | null;
}
/**
 * The request has no answer.
 */
export interface Failed {
  /**
   * The id of the request; null if it had none.
   */
  id: number | string | null;
  /**
   * The step.
   */
  step: "failed";
  /**
   * `request` (a wrong message), `refused` (what was asked is not possible), or `defect` (memcheck failed).
   */
  kind: string;
  /**
   * Message.
   */
  message: string;
  /**
   * Help.
   */
  help: string;
  /**
   * Text to copy into an issue; empty but for a defect.
   */
  report: string;
}
/**
 * The last step of every request.
 */
export interface Done {
  /**
   * The id of the request; null if it had none.
   */
  id: number | string | null;
  /**
   * The step.
   */
  step: "done";
  /**
   * The number of steps before this one.
   */
  steps: number;
}
