"""How to submit to a cluster: the `slurm` section of a profile."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

Count = Annotated[int, Field(strict=True, ge=1)]
Whole = Annotated[int, Field(strict=True, ge=0)]
Word = Annotated[str, Field(min_length=1)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Container(_Part):
    """A container that the nodes' tasks run in, through pyxis and enroot."""

    image: Word  # a .sqsh file, or registry#image
    mounts: tuple[Word, ...] = ()  # FROM:TO, beside the working folder and the results
    workdir: Word | None = None
    python: Word = "python"  # the interpreter inside

    def srun_arguments(self) -> list[str]:
        """The arguments of srun by which pyxis starts it."""
        mounts = [f"--container-mounts={','.join(self.mounts)}"] if self.mounts else []
        workdir = [f"--container-workdir={self.workdir}"] if self.workdir else []
        return [f"--container-image={self.image}", *mounts, *workdir]


class Slurm(_Part):
    """What a job asks SLURM for there, and how long it may take. Times are whole minutes, as SLURM's are."""

    ranks_per_node: Count  # the most; a point with fewer ranks takes one node
    gpus_per_rank: Whole = 1  # 0: a cluster of CPUs
    cpus_per_rank: Count = 1
    mem_gb: Annotated[float, Field(gt=0)] | None = None  # per node; left out, what the partition gives
    partition: Word | None = None
    account: Word | None = None
    qos: Word | None = None
    constraint: Word | None = None
    exclusive: Annotated[bool, Field(strict=True)] = False
    extra: dict[str, str | int | bool] = {}  # further flags of sbatch by their names, such as reservation
    srun: tuple[Word, ...] = ()  # further arguments of srun
    setup: tuple[str, ...] = ()  # lines of shell before the ranks start: modules, environment
    container: Container | None = None
    python: Word | None = None  # the interpreter on the nodes; left out, the one that submits
    max_running: Count = 64  # jobs of one array that run at once
    max_array: Count = 1000  # jobs in one array; SLURM's MaxArraySize is 1001 where nobody changed it
    minutes: Count = 30  # a point's limit where nothing predicts its time
    max_minutes: Count | None = None  # the partition's limit
    retries: Whole = 3  # new starts after a preemption, and after a time limit
    scratch: Word | None = None  # a folder on every node, exported to the ranks as TMPDIR

    @field_validator("extra")
    @classmethod
    def _not_the_suites_own(cls, value: dict[str, Any]) -> dict[str, Any]:
        own = {"array", "job-name", "nodes", "ntasks-per-node", "output", "error", "time", "signal"}
        if taken := sorted(own & {key.replace("_", "-") for key in value}):
            raise ValueError(f"{taken[0]} is set by the suite for every job; leave it out, reservation would work")
        return value
