"""Python functions as jobs: an executor of `concurrent.futures` whose calls drfd runs.

    from drfd.futures import Executor

    with Executor(cores=1, memory="500M", time="10m") as executor:
        print(list(executor.map(fit, range(200))))

`executor` is what the submitting process uses, and `call` what each job runs. They share the files
of a batch of calls, which `call` describes.
"""

from drfd.futures.executor import Executor, Future, JobFailed, OutOfMemory, OutOfTime

__all__ = ["Executor", "Future", "JobFailed", "OutOfMemory", "OutOfTime"]
