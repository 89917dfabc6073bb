"""Every error that Offbeat raises on purpose, as one small tree.

    OffbeatError
    ├── ConfigError              the configuration is wrong; said before anything starts (exit code 2)
    │   ├── UnsupportedSpace     an environment's space that no policy here can act in
    │   └── ResumeRefused        a resumed run's configuration changes what cannot change
    ├── NotReady                 the machine is: a port, a folder, a package, a service (exit code 2)
    │   └── RunLocked            another process already works in this run's folder
    ├── TrajectoryError
    │   ├── RecordCorrupt        bytes that do not decode to what their headers promise
    │   └── ContractViolation    decoded, but not a trajectory that can be trained on
    ├── LogError
    │   ├── LogUnavailable       the backend does not answer, or has no room; trying again may help
    │   ├── LogDamaged           what was written is gone or makes no sense; trying again cannot help
    │   ├── PositionOutOfRange   a read below the log's beginning
    │   ├── RecordTooLarge       one record above the backend's limit
    │   └── Fenced               a newer trainer has taken this run over
    ├── StoreError
    │   ├── StoreUnavailable     the backend does not answer, or has no room; trying again may help
    │   ├── ObjectNotFound       no object under this key
    │   ├── PreconditionFailed   a conditional write lost against another writer
    │   └── DigestMismatch       the bytes stored are not the bytes sent
    ├── CheckpointError          no valid checkpoint, or one that does not fit the run
    ├── ServiceUnavailable       the trainer's policy service does not answer
    ├── WorkloadError            the environment raised or returned what it must not
    ├── LogprobMismatch          recorded log-probs are not those of the policy that acted
    ├── EvaluationError          an evaluation that cannot be scored
    ├── RegistryError            the model registry refused
    │   └── RegistryUnavailable  the registry does not answer, or has no room; trying again may help
    └── RunFailed                the run ended without its result
        ├── ChildFailed          a generator or trainer kept dying or stood still
        ├── GateRejected         the challenger did not pass and promotion was required
        └── RunCancelled         somebody stopped the run

A message says what was got, what was expected, and what to do. Foreign exceptions are translated where they
enter, with `raise ... from`.
"""


class OffbeatError(Exception):
    """Base of every error in this package; `exit_code` is what the command line ends with."""

    exit_code = 1


class ConfigError(OffbeatError):
    """The configuration is wrong. Said before anything starts."""

    exit_code = 2


class UnsupportedSpace(ConfigError):
    """An observation or action space that no policy here supports."""


class ResumeRefused(ConfigError):
    """The configuration of a resumed run changes what cannot change."""


class NotReady(OffbeatError):
    """The machine lacks something the run needs: a port, a writable folder, a package, a service."""

    exit_code = 2


class RunLocked(NotReady):
    """Another process already works in this run's folder."""


class TrajectoryError(OffbeatError):
    """A record that is not what the contract asks for."""


class RecordCorrupt(TrajectoryError):
    """Bytes that do not decode to what their headers promise."""


class ContractViolation(TrajectoryError):
    """A decoded record that breaks the trajectory contract."""


class LogError(OffbeatError):
    """The trajectory log failed."""


class LogUnavailable(LogError):
    """The log's backend does not answer or has no room; trying again may help."""


class LogDamaged(LogError):
    """What was written to the log is gone or makes no sense; trying again cannot help."""


class PositionOutOfRange(LogError):
    """A read below the log's beginning."""


class RecordTooLarge(LogError):
    """One record above the backend's size limit."""


class Fenced(LogError):
    """A newer trainer has taken this run over; this one must stop."""


class StoreError(OffbeatError):
    """The object store failed."""


class StoreUnavailable(StoreError):
    """The store's backend does not answer or has no room; trying again may help."""


class ObjectNotFound(StoreError):
    """No object under this key."""


class PreconditionFailed(StoreError):
    """A conditional write lost against another writer."""


class DigestMismatch(StoreError):
    """The bytes stored are not the bytes sent."""


class CheckpointError(OffbeatError):
    """No valid checkpoint, or one that does not fit the run."""


class ServiceUnavailable(OffbeatError):
    """The trainer's policy service does not answer."""


class WorkloadError(OffbeatError):
    """The environment raised, or returned what it must not."""


class LogprobMismatch(OffbeatError):
    """Recorded log-probs are not those of the policy that acted; every importance weight would be wrong."""


class EvaluationError(OffbeatError):
    """An evaluation that cannot be scored."""


class RegistryError(OffbeatError):
    """The model registry refused."""


class RegistryUnavailable(RegistryError):
    """The registry does not answer or has no room; trying again may help."""


class RunFailed(OffbeatError):
    """The run ended without its result."""


class ChildFailed(RunFailed):
    """A generator or trainer kept dying, or stood still past its deadline."""


class GateRejected(RunFailed):
    """The challenger did not pass the gate and promotion was required."""


class RunCancelled(RunFailed):
    """Somebody stopped the run."""
