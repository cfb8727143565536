"""What is shown of a snapshot's devices: blocks by the code that made them, growth, peaks, and what is not known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from memcheck.edge.screen import gib, plural, words
from memcheck.report.story import Prose
from memcheck.report.story.blocks import Fact, Facts, Section, Table
from memcheck.why.live import Mapped, component_of, place_of
from memcheck.why.snapshots import DeviceMemory
from memcheck.why.statements import size

SHOWN_BLOCKS = 8
MOMENTS = {
    "oom": "What was live when the allocation failed",
    "peak": "What was live at the peak",
    "end": "What was live when the snapshot was written",
}


def failing(devices: Sequence[DeviceMemory]) -> DeviceMemory | None:
    """The device whose allocation failed, else the fullest; None where there is none."""
    first = next((device for device in devices if device.failed), None)
    return first or max(devices, key=lambda device: device.peak_allocated_bytes, default=None)


def device_sections(devices: Sequence[DeviceMemory], mapped: Mapped | None) -> list[Section]:
    """Sections for people. ``mapped``: the live blocks of the device that failed next to a plan's ledger."""
    device = failing(devices)
    if device is None:
        return []
    found = [Section("devices", "What the snapshot recorded", (Facts(tuple(map(_fact, devices))),))]
    if device.growth:
        told = [
            Prose(f"{size(g.bytes)} never freed over {plural(g.steps, 'step')}: {place_of(g.stack)}", "bad")
            for g in device.growth[:3]
        ]
        found.insert(0, Section("growth", "Memory that steps do not free", tuple(told)))
    if mapped is not None:
        rows = tuple(
            (gib(row.bytes), f"{row.count:,}", words(row.component), row.tensor or "not in the plan", row.where)
            for row in mapped.rows[:SHOWN_BLOCKS]
        )
        table = Table("", ("GiB", "blocks", "component", "tensor of the plan", "allocated in"), rows, right=(0, 1))
        unknown = mapped.unknown_bytes
        said = f"{size(unknown)} of {size(device.live_bytes)} are in blocks that the plan does not have."
        found.append(Section("live", MOMENTS[device.moment], (table, Prose(said, "dim"))))
    elif device.live:
        told_rows = tuple(
            (gib(group.bytes), f"{group.count:,}", words(component_of(group.stack)), place_of(group.stack) or "unknown")
            for group in device.live[:SHOWN_BLOCKS]
        )
        table = Table("", ("GiB", "blocks", "component", "allocated in"), told_rows, right=(0, 1))
        found.append(Section("live", MOMENTS[device.moment], (table,)))
    return found


def _fact(device: DeviceMemory) -> Fact:
    least = "" if device.complete else "at least "
    said = [f"peak {least}{size(device.peak_allocated_bytes)} allocated"]
    if device.peak_reserved_bytes is not None:
        said.append(f"{size(device.peak_reserved_bytes)} reserved")
    said.append(f"{size(device.allocated_bytes)} at the end")
    if device.pending_bytes:
        said.append(f"{size(device.pending_bytes)} kept for another stream")
    if device.expandable:
        said.append("expandable segments")
    return Fact(f"device {device.device}", f"{', '.join(said)}; {plural(device.events, 'event')}")


def devices_data(devices: Sequence[DeviceMemory], mapped: Mapped | None) -> list[dict[str, Any]]:
    """The devices for programs; ``live`` of the one that failed has the plan's tensors."""
    first = failing(devices)
    return [_device_data(device, mapped if device is first else None) for device in devices]


def _device_data(device: DeviceMemory, mapped: Mapped | None) -> dict[str, Any]:
    live: list[dict[str, Any]] = [
        {
            "component": component_of(group.stack),
            "where": place_of(group.stack),
            "count": group.count,
            "bytes": group.bytes,
            "steps": group.steps,
            "tensor": None,
            "expected": None,
        }
        for group in device.live
    ]
    if mapped is not None:
        live = [{**row._asdict(), "tensor": row.tensor or None} for row in mapped.rows]
    plain = (
        "device", "source", "events", "allocated_bytes", "reserved_bytes", "peak_allocated_bytes",
        "peak_reserved_bytes", "complete", "before_bytes", "moment", "live_bytes", "pending_bytes", "expandable",
    )  # fmt: skip
    return {
        **{key: getattr(device, key) for key in plain},
        "failed": [
            {
                "requested_bytes": failed.requested_bytes,
                "free_bytes": failed.free_bytes,
                "message_bytes": failed.message_bytes,
                "where": place_of(failed.stack),
            }
            for failed in device.failed
        ],
        "growth": [{"where": place_of(g.stack), "steps": g.steps, "bytes": g.bytes} for g in device.growth],
        "live": live,
        "notes": list(device.notes),
    }
