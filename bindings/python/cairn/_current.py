"""The job of this process, for the modules below the one that makes it (_job.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional

if TYPE_CHECKING:
    from ._job import Job

job: "Optional[Job]" = None  # none before the hooks are installed, and in a forked child


class Damaged(RuntimeError):
    """A restore failed after overwriting tensors; the process must not train on what is left."""


class Poisoned(RuntimeError):
    """This rank's state holds values that are not finite, or was rejected, and `on_poison` is
    `stop`. The last good step is kept: start the job again with `cairn run --resume`."""


def forget() -> None:
    """In a forked child: a job that has begun is the parent's; before that the child may be the one
    that trains."""
    global job
    if job is not None and job.has_begun():
        job = None
