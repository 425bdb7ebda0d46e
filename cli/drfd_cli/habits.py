"""Verbs and options of other programs, and what does the same here."""

from __future__ import annotations

from collections.abc import Collection

#: What does it here → words of others. Of several rows of an option, the first counts whose option
#: a command has.
_HERE = {
    "drf status": "ls list queue q ps jobs condor_q qstat",
    "drf cancel ID": "kill rm remove delete stop del condor_rm qdel",
    "drf log -f ID": "tail follow condor_tail",
    "drf log ID": "cat output",
    "drf doctor, or drf shares": "info",
    "drf submit -- CMD": "add batch condor_submit qsub",
    "drf history": "past condor_history",
    "drf suspend ID, or drf hold ID if it waits; drf drain, so that no more jobs start":
        "pause freeze",
    "drf resume ID, or drf release ID if held": "continue unpause thaw",
    "drf why ID": "explain reason analyze",
    "drf hold ID, or drf submit --hold": "stash",
    "drf submit -g NAME%N, for N jobs at once": "group parallel",
    "drf set": "modify update condor_qedit",
    "drf top": "watch htop monitor",
    "drf release ID if it is held, drf resume ID if suspended; drf undrain after a drain": "start",
    "drf release ID": "unhold enqueue condor_release qrls",
    "drf hold ID": "condor_hold qhold uhold",
    "drf status and top leave ended jobs out; drf history has them": "clean",
    "drf set --priority N ID": "switch priority prio condor_prio top",
    "drf run, or drf submit --pty and drf attach ID: others have no input": "send",
    "drf submit --export NAME: a job has the environment of its submission": "env",
    "drf cancel --all": "reset",
    "drf exec ID": "condor_ssh_to_job",
    "drf wait ID": "condor_wait wait_job",
    "drf drain": "condor_drain",
    "drf nodes, or drf shares": "condor_status",
    "drf shares": "condor_userprio",
    "drf retry ID": "rerun restart again redo requeue resubmit",
    "drf --version": "version",
    "drf shutdown": "shutdown abort",
    "drf reload": "reconfigure",
    "drf show ID, and the cgroup that it names": "listpids",
    "drf signal SIGNAL ID": "notify",
    "a table [[window]] in the configuration, for reservations": "create",
    "journalctl -u drfd": "setdebug",
    "-c CORES": "--cpus-per-task --cpus --ncpus --threads --ntasks --request-cpus",
    "-m SIZE": "--memory --mem-per-node --mem-per-cpu --ram --request-memory",
    "--gres gpu=N": "--gpus --gpu --gpus-per-node -G",
    "-p POOL": "--partition --account -A --queue",
    # Of drf set, where -n selects jobs.
    "--rename NAME": "--job-name -J --label -L -l",
    "-n NAME": "--job-name -J --label -L -l",
    "-t TIME": "--timeout --time-limit --walltime",
    "--notify end,fail": "--mail-user --mail-type",
    "--after ID": "--dependency -d",
    "--begin now+1h": "--delay -D",
    "--hold": "--stashed -s -H",
    "cd DIR first: a job runs where you submit it":
        "--chdir --workdir --working-directory --cwd -C",
    "--array 0-99": "-a --count",
    "--group NAME%N lets fewer tasks run at once; drf submit makes arrays, and their %N stays":
        "--array",
    "--priority -N": "--nice",
    "--priority N": "--urgency",
    "-- sh -c 'COMMAND < FILE'": "--stdin --input -i",
    "-q": "--print-task-id -P",
    "-w": "--immediate --follow",
    "--retry N": "--requeue",
    "-- sh -c 'COMMAND'": "--wrap",
}  # fmt: skip
HABITS: dict[str, list[str]] = {}
for _here, _words in _HERE.items():
    for _word in _words.split():
        HABITS.setdefault(_word, []).append(_here)


def unknown_option(name: str, ours: Collection[str]) -> str:
    there = {"--", "cd", *ours}
    for here in HABITS.get(name, ()):
        if here.partition(" ")[0] in there:
            return f"No such option {name}; here it is: {here}"
    from difflib import get_close_matches

    near = get_close_matches(name, ours, 1, 0.75)
    return f"No such option '{name}'." + (f" Did you mean '{near[0]}'?" if near else "")
