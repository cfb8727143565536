import assert from "node:assert/strict";
import { test } from "node:test";
import { Lane, type Ask, type End, type LaneState, type Port, type Step } from "../../src/engine/lane.ts";
import type { FromWorker, ToWorker } from "../../src/engine/messages.ts";

/** A worker that does what the test says. */
class Fake implements Port {
  onmessage: ((event: { data: FromWorker }) => void) | null = null;
  onerror: ((event: { message?: string }) => void) | null = null;
  readonly heard: ToWorker[] = [];
  ended = false;

  postMessage(message: ToWorker): void {
    this.heard.push(message);
  }
  terminate(): void {
    this.ended = true;
  }
  say(message: FromWorker): void {
    this.onmessage?.({ data: message });
  }
  ready(): void {
    this.say({ kind: "ready", heapBytes: 0, snapshot: true });
  }
  /** The number of the request that was asked last, and what it is about. */
  asked(): { id: number; about: unknown } {
    const last = this.heard.filter((message) => message.kind === "ask").at(-1);
    assert.ok(last);
    return { id: last.id, about: (JSON.parse(last.request) as { about?: unknown }).about };
  }
  step(step: string): void {
    const { id } = this.asked();
    this.say({ kind: "step", id, step: JSON.stringify({ id, step }) });
  }
  done(failed: string | null = null, heapBytes = 0): void {
    this.say({ kind: "done", id: this.asked().id, failed, heapBytes });
  }
}

function laneOf(options: { giveWayMs?: number; silentMs?: number } = {}) {
  const workers: Fake[] = [];
  const states: LaneState["phase"][] = [];
  const lane = new Lane({
    start() {
      workers.push(new Fake());
      return workers.at(-1) as Fake;
    },
    state: (state) => states.push(state.phase),
    giveWayMs: options.giveWayMs ?? 10_000,
    silentMs: options.silentMs ?? 10_000,
    heapBytes: 1_000,
  });
  const worker = () => workers.at(-1) as Fake;
  const steps: [unknown, string, boolean][] = [];
  const ask = (about: unknown, slot = "answer", merge?: Ask["merge"]): Promise<End> =>
    lane.ask({
      slot,
      request: { do: "answer", about },
      ...(merge ? { merge } : {}),
      step: (step: Step, newest) => steps.push([about, step.step, newest]),
    });
  return { lane, worker, workers, states, steps, ask };
}

const soon = (ms = 0) => new Promise((resolve) => setTimeout(resolve, ms));

test("a request waits for the worker, runs, and ends", async () => {
  const { worker, ask, steps, states, lane } = laneOf();
  const end = ask(1);
  assert.equal(worker().heard.length, 0);
  worker().ready();
  worker().step("first");
  worker().step("form");
  worker().done();
  assert.deepEqual(await end, { end: "done" });
  assert.deepEqual(steps, [[1, "first", true], [1, "form", true]]);
  assert.deepEqual(states, ["ready"]);
  lane.close();
});

test("of a hundred moves the first and the last are asked", async () => {
  const { worker, ask, lane } = laneOf();
  worker().ready();
  const ends = Array.from({ length: 100 }, (_, move) => ask(move));
  worker().step("first");
  worker().done();
  assert.equal(worker().asked().about, 99);
  worker().step("first");
  worker().done();
  const words = (await Promise.all(ends)).map(({ end }) => end);
  assert.equal(words.filter((word) => word === "dropped").length, 98);
  assert.equal(words.at(-1), "done");
  assert.equal(worker().heard.filter((message) => message.kind === "ask").length, 2);
  lane.close();
});

test("what waits ends what runs after its first step, and no later step is shown", async () => {
  const { worker, ask, steps, lane } = laneOf();
  worker().ready();
  const search = ask("search", "more");
  worker().step("first");
  const move = ask("move");
  assert.deepEqual(worker().heard.at(-1), { kind: "stop", id: 1 });
  worker().step("remedies");
  worker().done();
  worker().step("first");
  worker().done();
  assert.deepEqual(await search, { end: "stopped" });
  assert.deepEqual(await move, { end: "done" });
  assert.deepEqual(steps, [["search", "first", true], ["move", "first", true]]);
  lane.close();
});

test("the first step of an older request is told that it is older", () => {
  const { worker, ask, steps, lane } = laneOf();
  worker().ready();
  void ask(1);
  void ask(2);
  assert.equal(worker().heard.filter((message) => message.kind === "stop").length, 0); // its edits are needed
  worker().step("first");
  assert.deepEqual(steps, [[1, "first", false]]);
  assert.deepEqual(worker().heard.at(-1), { kind: "stop", id: 1 });
  lane.close();
});

test("slots do not replace each other, and older changes can be kept", () => {
  const { worker, ask, lane } = laneOf();
  void ask("export", "export");
  void ask({ zero: 1 });
  void ask({ batch: 2 }, "answer", (older) => ({ do: "answer", about: { ...(older["about"] as object), batch: 2 } }));
  worker().ready();
  assert.equal(worker().asked().about, "export");
  worker().done();
  assert.deepEqual(worker().asked().about, { zero: 1, batch: 2 });
  assert.ok(lane.busy("answer") && !lane.busy("export"));
  lane.close();
});

test("a search that gives no way costs its worker, and what waits is asked of the next", async () => {
  const { worker, workers, ask, states, lane } = laneOf({ giveWayMs: 20 });
  worker().ready();
  const search = ask("search", "more");
  worker().step("first");
  const move = ask("move");
  await soon(60);
  assert.deepEqual(await search, { end: "stopped" });
  assert.ok(workers[0]?.ended);
  assert.equal(workers.length, 2);
  worker().ready();
  assert.equal(worker().asked().about, "move");
  worker().step("first");
  worker().done();
  assert.deepEqual(await move, { end: "done" });
  assert.deepEqual(states, ["ready", "restarting", "ready"]);
  lane.close();
});

test("an engine that fails twice in a row is given up; an answer in between clears it", async () => {
  const { worker, workers, ask, states, lane } = laneOf();
  for (let round = 0; round < 3; round += 1) {
    worker().ready();
    const lost = ask("lost");
    worker().onerror?.({ message: "out of memory" });
    assert.deepEqual(await lost, { end: "failed", message: "out of memory" });
    worker().ready();
    const fine = ask("fine");
    worker().step("first");
    worker().done();
    assert.deepEqual(await fine, { end: "done" });
  }
  worker().onerror?.({ message: "first" });
  const waiting = ask("waits");
  worker().say({ kind: "failed", message: "second" });
  assert.deepEqual(await waiting, { end: "failed", message: "second" });
  assert.equal(states.at(-1), "failed");
  assert.equal((await ask("more")).end, "failed");
  assert.ok(workers.every((each) => each.ended));
  lane.close();
});

test("a worker that says nothing is replaced", async () => {
  const { worker, ask, states, lane } = laneOf({ silentMs: 20 });
  worker().ready();
  const lost = ask("lost");
  await soon(60);
  assert.equal((await lost).end, "failed");
  assert.equal(states.at(-1), "restarting");
  lane.close();
});

test("a worker whose heap has grown is replaced once the next is ready, without a pause", async () => {
  const { worker, workers, ask, lane } = laneOf();
  worker().ready();
  const first = ask(1);
  worker().step("first");
  worker().done(null, 2_000);
  assert.deepEqual(await first, { end: "done" });
  assert.equal(workers.length, 2);
  const [old, next] = workers as [Fake, Fake];
  const second = ask(2);
  assert.equal(old.asked().about, 2); // the old one still answers
  next.ready();
  assert.ok(!old.ended);
  old.step("first");
  old.done(null, 2_000);
  assert.deepEqual(await second, { end: "done" });
  await soon(60);
  assert.ok(old.ended);
  void ask(3);
  assert.equal(next.asked().about, 3);
  assert.equal(workers.length, 2);
  lane.close();
});

test("a request that leaves Python with an exception fails, and the worker goes on", async () => {
  const { worker, workers, ask, lane } = laneOf();
  worker().ready();
  const end = ask(1);
  worker().done("PythonError");
  assert.deepEqual(await end, { end: "failed", message: "PythonError" });
  void ask(2);
  assert.equal(worker().asked().about, 2);
  assert.equal(workers.length, 1);
  lane.close();
});

test("cancelling ends what runs in a slot and drops what waits there", async () => {
  const { worker, ask, lane } = laneOf();
  worker().ready();
  const running = ask("runs", "more");
  const waiting = ask("waits", "more");
  lane.cancel("more");
  assert.deepEqual(await waiting, { end: "dropped" });
  assert.deepEqual(worker().heard.at(-1), { kind: "stop", id: 1 });
  worker().done();
  assert.deepEqual(await running, { end: "stopped" });
  lane.close();
});
