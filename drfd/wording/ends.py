"""What an ended job shows, in sentences: one for each note of `drfd.core.explain.ended_jobs`."""

from __future__ import annotations

from drfd.common.units import show_cores, show_duration, show_size
from drfd.core.explain import ended_jobs as end

#: Meaning of signals that end programs.
_SIGNALS = {
    "SIGSEGV": "it used memory that was not its own: a fault of the program",
    "SIGBUS": "it used memory that was not there: a fault of the program, or a file cut short "
    "under it",
    "SIGABRT": "it gave up by itself, after a failed check of its own",
    "SIGFPE": "an arithmetic fault of the program, such as a division by zero",
    "SIGILL": "an instruction that this processor does not know: was it built for another one?",
    "SIGSYS": "a system call that it may not make",
    "SIGPIPE": "it wrote to a pipe that nobody read any more",
    "SIGHUP": "the sign of a terminal that is gone",
    "SIGXFSZ": "a file became larger than its limit",
    "SIGXCPU": "it used more CPU time than a limit of its own (ulimit -t)",
}
#: Meaning of exit codes of a shell.
_CODES = {
    126: "a shell's word for: the command was found and could not be executed",
    127: "a shell's word for: there is no such command",
}
#: Remedies for a failed launch.
_REMEDIES = {
    end.LaunchFault.NOT_IN_PATH: (
        "write its full path, or set PATH before you submit: the job has yours"
    ),
    end.LaunchFault.NO_PROGRAM: "look at its path, and for a script at its first line",
    end.LaunchFault.NO_INTERPRETER: "mend the script's first line",
    end.LaunchFault.NO_FIRST_LINE: "give it one, or submit it as a script: drf submit FILE",
    end.LaunchFault.NO_DIRECTORY: "submit from a directory that exists and that you may enter",
    end.LaunchFault.NO_OUTPUT: "name other files with -o and -e",
    end.LaunchFault.NO_TERMINAL: "the drf run that started it has ended; run it again",
    end.LaunchFault.NO_USER: "the account was removed after the job had been submitted",
    end.LaunchFault.NO_LIMITS: "drf doctor tells what is wrong with this machine's limits",
}


def end_text(note: end.EndNote) -> str:
    """Return the sentence, without a full stop."""
    match note:
        case end.Ran():
            which = "its last run took" if note.is_last_of_many else "it ran for"
            return f"{which} {_span(note.ran_ms)} and used {_used(note.used)}"
        case end.AllRuns():
            which = "its only run" if note.runs == 1 else f"its {note.runs} runs together"
            cpu = "" if note.cpu_s is None else f" and used {_cpu_time(note.cpu_s)} of CPU time"
            return f"{which} took {_span(note.ran_ms)}{cpu}"
        case end.UsedBeforeLoss():
            return f"until then it had used {_used(note.used)}"
        case end.WorkUnknown():
            return "whether its work was done only its output can tell; submit it again if not"
        case end.KilledForMemory():
            how = "stopped" if note.is_measured else "killed"
            return (
                f"it was {how} {_span(note.ran_ms)} after its start, with a peak of "
                f"{show_size(note.peak_bytes)} and a limit of {show_size(note.limit_bytes)}"
            )
        case end.MachineShort(by_kernel=True):
            return "the kernel chose it when the whole machine was short; journalctl -k tells more"
        case end.MachineShort():
            return (
                "the kernel has counted no kill in it: systemd-oomd or somebody else did it; "
                "journalctl -u systemd-oomd tells more"
            )
        case end.DemandNotAtFault():
            return (
                "its demand was not the fault: submit it again; an administrator can keep more "
                "memory for the system with capacity.reserve_memory"
            )
        case end.FirstProcessExited():
            return f"its first process was not the one: it ended with exit code {note.exit_code}"
        case end.LargestProcess():
            largest = show_size(note.size_bytes)
            together = "; all of them together reached the limit" if note.is_one_of_many else ""
            return f"the largest of its processes had {largest}, shared pages included{together}"
        case end.InKernelLog():
            return (
                "the kernel's log names the process that it killed first: "
                "journalctl -k --grep oom-kill"
            )
        case end.UsedNearEnd():
            shown = show_cores(round(note.cores_milli, -1))
            if note.is_idle:
                return (
                    f"near its end it used {shown} cores: "
                    "it may have waited for something, not computed"
                )
            return f"near its end it still used {shown} cores: it was at work"
        case end.ShellRefused():
            return f"{note.exit_code} is {_CODES[note.exit_code]}"
        case end.ShellSawSignal():
            return (
                f"{note.exit_code} is a shell's word for: what it ran was killed by {note.signal}"
            )
        case end.FaultSignal():
            return _SIGNALS[note.signal]
        case end.SignalFromElsewhere():
            memory = (
                ", and the kernel has counted no kill for memory in it"
                if note.is_not_for_memory
                else ""
            )
            return f"somebody else sent it, or a program of the job's own: drfd did not{memory}"
        case end.NearMemoryLimit():
            peak, limit = show_size(note.peak_bytes), show_size(note.limit_bytes)
            return f"its memory came up to {peak} of {limit}"
        case end.HasErrorOutput():
            option = "--err " if note.is_apart else ""
            return f"what it said: drf log {option}{note.job}"
        case end.LaunchFault():
            return _REMEDIES[note]


def _used(fact: end.ResourcesUsed) -> str:
    mean = ""
    if fact.mean_cores_milli is not None:
        cores = show_cores(fact.mean_cores_milli)
        mean = f" ({cores} of {show_cores(fact.cores_milli)} cores on average)"
    peak, limit = show_size(fact.memory_peak_bytes), show_size(fact.memory_bytes)
    return f"{_cpu_time(fact.cpu_s)} of CPU time{mean} and {peak} of {limit} of memory"


def _cpu_time(cpu_s: float) -> str:
    return show_duration(cpu_s) if cpu_s >= 60 else f"{cpu_s:.1f}s"


def _span(ran_ms: int) -> str:
    return f"{ran_ms / 1000:.1f}s" if ran_ms < 60_000 else show_duration(ran_ms / 1000)
