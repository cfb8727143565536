/** Drawings of the frame's buttons, 24 units wide, drawn with strokes. A button says in words what it does. */
const PATHS = {
  plan: "M6 3h8l4 4v14H6z M14 3v4h4 M9 12h6 M9 16h6",
  compare: "M12 4v16 M5 8h4 M5 12h4 M5 16h4 M15 8h4 M15 12h4 M15 16h4",
  sweep: "M4 4h16v16H4z M4 9.3h16 M4 14.6h16 M9.3 4v16 M14.6 4v16",
  share: "M10 14a4 4 0 0 0 5.7 0l3-3A4 4 0 0 0 13 5.3l-1 1 M14 10a4 4 0 0 0-5.7 0l-3 3A4 4 0 0 0 11 18.7l1-1",
  export: "M12 4v11 M7 10.5 12 15.5l5-5 M5 20h14",
  theme: "M12 3a9 9 0 1 0 0 18z M12 3a9 9 0 0 1 0 18",
  more: "M12 5.5v.01 M12 12v.01 M12 18.5v.01",
  close: "M6 6l12 12 M18 6 6 18",
  copy: "M9 9h11v11H9z M5 15H4V4h11v1",
  down: "M7 10l5 5 5-5",
  bulb: "M9 18h6 M10 21h4 M12 3a6 6 0 0 0-3.5 10.9c.6.5 1 1.200 1 2.100h5c0-.9.4-1.600 1-2.100A6 6 0 0 0 12 3z",
  info: "M12 21a9 9 0 1 0 0-18 9 9 0 0 0 0 18z M12 11v5 M12 8v.01",
  undo: "M9 7 5 11l4 4 M5 11h9a5 5 0 0 1 0 10h-3",
} as const;

export function Icon({ name }: { name: keyof typeof PATHS }) {
  return (
    <svg viewBox="0 0 24 24" aria-hidden="true">
      <path d={PATHS[name]} />
    </svg>
  );
}

/** The mark: a bar of memory against its limit. */
export function Mark() {
  return (
    <svg viewBox="0 0 24 24" aria-hidden="true">
      <rect class="c-parameters" x="2" y="7" width="7" height="10" rx="1" />
      <rect class="c-optimizer-states" x="9.5" y="7" width="4" height="10" />
      <rect class="c-activations" x="14" y="7" width="4" height="10" />
      <path d="M21 4v16" fill="none" stroke="currentColor" stroke-width="2" />
    </svg>
  );
}
