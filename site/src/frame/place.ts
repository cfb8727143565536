/** Where a popover goes: below its button, inside the window. */
export function placeBelow(list: HTMLElement, opener: HTMLElement): void {
  const box = opener.getBoundingClientRect();
  const { clientWidth, clientHeight } = document.documentElement;
  const below = box.bottom + 6;
  list.style.top = `${below + list.offsetHeight > clientHeight - 8 ? Math.max(8, box.top - 6 - list.offsetHeight) : below}px`;
  list.style.left = `${Math.max(8, Math.min(box.left, clientWidth - list.offsetWidth - 8))}px`;
}
