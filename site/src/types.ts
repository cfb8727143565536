export interface TextPlace { line: number; column: number; character: number }
export interface TextEdit { start: TextPlace; end: TextPlace; text: string }
export interface FileChange { path: string; edits: TextEdit[] }
export interface RelatedPlace { path: string; start: TextPlace; end: TextPlace; label: string }
export interface Diagnostic { id: string; code: string; name: string; severity: string; message: string; help: string; path: string; start: TextPlace; end: TextPlace; pointer: string; related: RelatedPlace[]; fix: TextEdit[] }
export interface Verdict { word: string; tone: string; fails: boolean }
export interface PlanTab { document: number; name: string; line: number; verdict: Verdict; used: string }
export interface SectionHead { id: string; title: string; folded: boolean; half: boolean }
export interface Figures { needed_bytes: number; needed_low_bytes: number; needed_high_bytes: number; seen_bytes: number; capacity_bytes: number; limit_bytes: number; host_bytes: number; gpus: number }
export interface First { path: string; document: number; name: string; status: string; verdict: Verdict; lead: string; used: string; figures: Figures | null; documents: PlanTab[]; order: SectionHead[]; sections: Record<string, string>; diagnostics: Diagnostic[]; files: string[]; defects: string[]; edits: FileChange[] }
export interface Failed { kind: string; message: string; help: string; report: string }
export type Value = string | number | boolean | null | Value[] | { [key: string]: Value };
export interface Choice { value: Value; label: string; told: string; legal: boolean; code: string; reason: string }
export interface FormField { key: string; label: string; kind: string; told: string; unit: string; value: Value; origin: string; why: string; minimum: number | null; maximum: number | null; main: boolean; relevant: boolean; choices: string; place: TextPlace | null }
export interface FormGroup { id: string; title: string; told: string; keys: string[] }
export interface Form { groups: FormGroup[]; fields: Record<string, FormField>; textbook: boolean; assumed: number }
export interface LineBytes { key: string; place: TextPlace; other: Value; saved_bytes: number; text: string }
export interface Lines { lines: LineBytes[] }
export interface Searching { part: string; tried: number; fits: number }
export interface RemedyEdits { id: string; title: string; changes: Record<string, Value>; edits: FileChange[] }
export interface RemedySteps { order: SectionHead[]; sections: Record<string, string>; remedies: RemedyEdits[]; diagnostics: Diagnostic[] }
export interface GpuShare { gpu: string; word: string; tone: string; share: string; needed_bytes: number; capacity_bytes: number; own: boolean }
export interface Gpus { order: SectionHead[]; sections: Record<string, string>; gpus: GpuShare[] }
