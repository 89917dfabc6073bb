"""The generator: act with the newest policy, append what happened, never wait for the trainer beyond its grants.

    loader thread:  trainer (or store) ──> newest weights ──> idle policy of the double buffer
    main thread:    grant ──> swap policies ──> rollout.collect ──> encode ──> log.append ──> (again)

A trainer that dies is waited for: what was granted is still generated, then the loop asks again until a trainer
answers, or the store says that training is done.
"""

import logging
import os
import socket
import threading
import time
from contextlib import ExitStack
from typing import Any

from offbeat.errors import ServiceUnavailable, StoreUnavailable, WorkloadError
from offbeat.log import Entry, Log
from offbeat.log.retry import retrying
from offbeat.policy import DoubleBuffer, decode_weights, newest_in_store
from offbeat.rendezvous import find_service, is_finished
from offbeat.runs import Run, write_status
from offbeat.service import PolicyClient, Progress, ProgressRequest
from offbeat.store import Store
from offbeat.telemetry import GeneratorMetrics, Health, StatusServer, TrajectoryLogLine
from offbeat.trajectory import TrajectoryBatch, encode, split_rows
from offbeat.workloads import Policy, open_workload

logger = logging.getLogger(__name__)

PATIENCE_S = 1.0
RECONNECT_S = 0.2


def run_generator(run: Run, index: int, *, stop: threading.Event) -> None:
    """Generate until training is finished or `stop` is set.

    Raises RunLocked when another process is this generator, WorkloadError when the environment keeps failing.
    """
    import torch

    torch.set_num_threads(run.config.generator.torch_threads)
    with run.hold(f"generator-{index}"), ExitStack() as stack:
        log = run.open_log()
        stack.callback(log.close)
        store = run.open_store()
        stack.callback(store.close)
        Generator(run, index, log=log, store=store, stack=stack, stop=stop).run()


class TrainerLink:
    """The way to the living trainer's service; finds it again after a restart. Used by one thread."""

    def __init__(self, store: Store, *, timeout_s: float) -> None:
        self.epoch = -1
        self._store = store
        self._timeout_s = timeout_s
        self._client: PolicyClient | None = None
        self._address = ""

    def progress(self, request: ProgressRequest) -> Progress:
        """Ask the trainer; raises ServiceUnavailable when none answers now."""
        try:
            answer = self._connected().progress(request)
        except ServiceUnavailable:
            self.close()
            raise
        self.epoch = answer.epoch
        return answer

    def weights(self, version: int) -> bytes:
        """A policy version's bytes; raises ServiceUnavailable."""
        return self._connected().weights(version)

    def close(self) -> None:
        """Drop the connection."""
        if self._client is not None:
            self._client.close()
        self._client = None

    def _connected(self) -> PolicyClient:
        if self._client is None:
            service = find_service(self._store)
            if service is None:
                raise ServiceUnavailable("no trainer has announced itself in the store yet")
            self._client = PolicyClient(service.address, timeout_s=self._timeout_s)
            self._address = service.address
        return self._client


class PolicyLoader:
    """A thread that keeps the idle policy at the newest version, and shows the trainer that this generator lives."""

    def __init__(self, generator: "Generator", store: Store, buffer: DoubleBuffer[Policy]) -> None:
        self.error: WorkloadError | None = None
        self._generator = generator
        self._store = store
        self._buffer = buffer
        self._link = TrainerLink(store, timeout_s=PATIENCE_S + 10)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._body, name="policy-loader", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread."""
        self._closing.set()
        self._thread.join(timeout=15)
        self._link.close()

    def _body(self) -> None:
        while not self._closing.is_set():
            try:
                answer = self._link.progress(self._generator.request(wanted=0, version=self._buffer.newest))
                if answer.version > self._buffer.newest:
                    self._load(self._link.weights(answer.version))
            except ServiceUnavailable:
                self._load_from_store()
                self._closing.wait(RECONNECT_S)
            except WorkloadError as error:
                self.error = error
                return

    def _load_from_store(self) -> None:
        if self._buffer.newest >= 0:
            return  # without a trainer nothing newer comes
        try:
            found = newest_in_store(self._store)
        except StoreUnavailable:
            return
        if found is not None:
            self._buffer.offer(*found)

    def _load(self, data: bytes) -> None:
        begun = time.monotonic()
        self._buffer.offer(*decode_weights(data))
        self._generator.metrics.observe_weight_sync(time.monotonic() - begun)


class Generator:
    """One life of one generator."""

    def __init__(
        self, run: Run, index: int, *, log: Log, store: Store, stack: ExitStack, stop: threading.Event
    ) -> None:
        self.metrics = GeneratorMetrics()
        self._run = run
        self._index = index
        self._log = log
        self._store = store
        self._stop = stop
        self._incarnation = _new_incarnation(log, index)
        self._produced = 0
        self._phase = "starting"
        self._beats = 0
        self._trouble = ""
        self._workload = workload = open_workload(run.config, base=run.base)
        self._buffer: DoubleBuffer[Policy] = DoubleBuffer(workload.make_policy)
        self._rollout = workload.make_rollout(seed=_rollout_seed(run.config.seed, index, self._incarnation))
        stack.callback(self._rollout.close)
        self._link = TrainerLink(store, timeout_s=PATIENCE_S + 10)
        stack.callback(self._link.close)
        self._log_line = TrajectoryLogLine(logger)
        self._open_report(stack)
        self._loader = PolicyLoader(self, store, self._buffer)
        stack.callback(self._loader.close)

    def request(self, *, wanted: int, version: int) -> ProgressRequest:
        """What this generator tells and asks the trainer."""
        return ProgressRequest(
            generator=self._index,
            incarnation=self._incarnation,
            version=version,
            produced=self._produced,
            wanted=wanted,
            patience_s=PATIENCE_S,
        )

    def run(self) -> None:
        """The whole life."""
        failures = 0
        while not self._stop.is_set():
            waited_from = time.monotonic()
            granted = self._admitted()
            self.metrics.add_admission_wait(time.monotonic() - waited_from)
            if not granted:
                return
            begun = time.monotonic()
            try:
                self._generate()
                failures = 0
            except WorkloadError as error:
                failures += 1
                self.metrics.add_env_error()
                logger.warning("unroll lost (%d in a row): %s", failures, error)
                if failures > self._run.config.generator.max_env_errors:
                    raise
            self.metrics.add_busy(time.monotonic() - begun)

    def _admitted(self) -> bool:
        """Wait until the next unroll may be made; False when training is done or this process is to stop."""
        wanted = self._rollout.num_trajectories
        while not self._stop.is_set():
            if self._loader.error is not None:
                raise self._loader.error
            version, _ = self._buffer.swap()
            try:
                answer = self._link.progress(self.request(wanted=wanted if version >= 0 else 0, version=version))
            except ServiceUnavailable as error:
                self._wait_without_trainer(str(error))
                if is_finished(self._store):
                    return False
                continue
            self._trouble = ""
            if answer.finished:
                return False
            if version >= 0 and answer.granted - self._produced >= wanted:
                return True
            self._rest("waiting")
            if answer.version > version:
                self._buffer.wait_for(answer.version, PATIENCE_S)
        return False

    def _generate(self) -> None:
        self._rest("working")
        version, policy = self._buffer.swap()
        batch = self._rollout.collect(policy, version, self._buffer.swap)
        entries = self._entries(batch)
        retrying(
            lambda: self._log.append("trajectories", self._index, entries),
            stop=self._stop,
            on_failure=self._note_trouble,
        )
        self._produced += len(batch)
        self._trouble = ""
        samples = self._workload.num_samples(batch)
        self.metrics.observe_unroll(trajectories=len(batch), samples=samples)
        self.metrics.set_policy_version(self._buffer.version)
        self.metrics.set_reward_faults(self._rollout.faults)
        self._log_line.collected(samples // len(batch))

    def _entries(self, batch: TrajectoryBatch) -> list[Entry]:
        entries, sequence = [], self._produced
        config = self._run.config
        for part in split_rows(batch, max_bytes=config.generator.record_bytes, align=config.group_size):
            headers, payload = encode(
                part,
                run_id=self._run.run_id,
                generator=self._index,
                incarnation=self._incarnation,
                sequence=sequence,
                created_at_ns=time.time_ns(),
                codec=self._run.config.log.codec,
            )
            entries.append(Entry(headers=headers, payload=payload))
            sequence += len(part)
        return entries

    def _wait_without_trainer(self, reason: str) -> None:
        self._trouble = reason
        self._rest("waiting")
        self._stop.wait(RECONNECT_S)

    def _rest(self, phase: str) -> None:
        self._phase = phase
        self._beats += 1

    def _note_trouble(self, reason: str) -> None:
        if not self._trouble:
            logger.warning("the log refuses to take trajectories, trying again: %s", reason)
        self._trouble = reason

    def _open_report(self, stack: ExitStack) -> None:
        observation = self._run.config.observation
        port = observation.generator_port + self._index if observation.generator_port else 0
        server = StatusServer(
            observation.host,
            port,
            title=f"offbeat generator {self._index} of {self._run.run_id}",
            health=lambda: Health(ok=not self._trouble, reason=self._trouble),
            metrics=self.metrics,
        )
        stack.callback(server.close)
        self._url = server.url
        closing = threading.Event()
        thread = threading.Thread(target=self._write_status_until, args=(closing,), name="report", daemon=True)
        thread.start()
        stack.callback(thread.join, 10)
        stack.callback(closing.set)

    def _write_status_until(self, closing: threading.Event) -> None:
        while not closing.wait(self._run.config.observation.interval_s if self._beats else 0.1):
            write_status(self._store, f"generator-{self._index}", self._status())
        self._phase = "stopped"
        write_status(self._store, f"generator-{self._index}", self._status())

    def _status(self) -> dict[str, Any]:
        return {
            "run_id": self._run.run_id,
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "http": self._url,
            "phase": self._phase,
            "progress": self._beats,
            "updated_at_ns": time.time_ns(),
            "trouble": self._trouble,
            "incarnation": self._incarnation,
            **self.metrics.snapshot(),
        }


def _new_incarnation(log: Log, partition: int) -> int:
    """A number above every former life's, whatever the clock says."""
    last = max(log.begin("trajectories", partition), log.end("trajectories", partition) - 1)
    records = log.read("trajectories", partition, last, max_records=1, payloads=False)
    former = int(records[0].headers.get("incarnation", "0")) if records else 0
    return max(time.time_ns(), former + 1)


def _rollout_seed(run_seed: int, index: int, incarnation: int) -> int:
    """A seed of its own for every life of every generator: a restarted one must not repeat its former episodes."""
    return (run_seed * 1_000_003 + index * 7919 + incarnation) % (2**31 - 1)
