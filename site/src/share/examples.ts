/** The example plans of the repository, one chunk that is loaded when the first of them is asked for. */
const FILES = import.meta.glob("../../../examples/*.yaml", { query: "?raw", import: "default", eager: true }) as Readonly<Record<string, string>>;

export interface Example {
  name: string;
  text: string;
  /** What the plan says about itself. */
  told: string;
}

export const examples: readonly Example[] = Object.entries(FILES).map(([file, text]) => ({
  name: file.split("/").at(-1)!.replace(/\.yaml$/, ""),
  text,
  told: /^description: "?(.*?)"?$/m.exec(text)?.[1] ?? "",
}));
