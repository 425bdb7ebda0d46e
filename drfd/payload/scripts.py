"""How a script's text is handed to its interpreter, so that it sees its own path.

The text is in a file in memory, as it was submitted. A variable of the job names the path that the
script came from. The usual interpreters are started with a few lines of their own language, which
run the text under that path: `$0`, the directory for imports, and the file in error messages are
those of the script. Other interpreters get the name of the file in memory, as does every script
without that variable. Imports must stay few: `drf submit` loads this module.
"""

from __future__ import annotations

#: The variable with the absolute path of the script.
VARIABLE = "DRF_SCRIPT"
#: Stands in a program for the number of the text's descriptor.
MARK = "~"

#: The options of this bash, for another.
_FLAGS = '"-${-//[!abefhkmnptuvxBCEHPT]/}"'
#: bash imports BASH_SOURCE as an ordinary variable, which can be unset and then be an array: bash
#: puts the files of functions and of `source` before what is in it. Meanwhile it names the file of
#: BASH_ENV. A bash that does not let go of it gets the file in memory.
_NAMED = (
    'if unset BASH_SOURCE 2>/dev/null && BASH_SOURCE=("$0") && [ "${BASH_SOURCE[*]}" = "$0" ]; '
    f'then eval "$(</proc/self/fd/~)"; else exec "$BASH" {_FLAGS} /proc/self/fd/~ "$@"; fi'
)
#: bash gets the text itself, never the file, which may be another by then. `eval` keeps $0 and
#: counts lines from its own, but sets no BASH_SOURCE; a script that wants one gets a bash of its
#: own.
_SHELL = (
    'if [ "${BASH_VERSION-}" ]; then case "$(</proc/self/fd/~)" in *BASH_SOURCE*) '
    f'exec /usr/bin/env "BASH_SOURCE=${{BASH_ENV-}}" "$BASH" {_FLAGS} -c \'{_NAMED}\' "$0" "$@";; '
    '*) eval "$(</proc/self/fd/~)";; esac; else . /proc/self/fd/~; fi'
)
#: As Python runs a file: a module named __main__, whose tracebacks begin in the script.
_PYTHON = """\
def run():
    import os, sys
    with open("/proc/self/fd/~", "rb") as file:
        text = file.read()
    os.close(~)
    del sys.argv[0]
    path = sys.argv[0]
    if sys.path and sys.path[0] == "":
        sys.path[0] = os.path.dirname(os.path.realpath(path))
    space = sys.modules["__main__"].__dict__
    del space["run"]
    space.update(__file__=path, __cached__=None)
    try:
        exec(compile(text, path, "exec", dont_inherit=True), space)
    except Exception as error:
        error = error.with_traceback(error.__traceback__.tb_next)
        sys.excepthook(type(error), error, error.__traceback__)
        sys.exit(1)
run()"""
_NODE = """\
{ const path = process.argv[1], Module = require("module"), main = new Module(path, null);
main.id = "."; main.filename = path;
main.paths = Module._nodeModulePaths(require("path").dirname(path));
process.mainModule = Module._cache[path] = main;
main._compile(require("fs").readFileSync("/proc/self/fd/~", "utf8"), path); main.loaded = true; }"""
#: Stands after the first line of the text, before the path and `"`.
_PERL = 'BEGIN { $0 = $ENV{DRF_SCRIPT} }\n# line 2 "'

#: Most words of a first line that are looked at, and the characters that they consist of.
_MOST_WORDS = 16
_PLAIN = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_./+-"
#: Interpreters → the option that a program follows, and letters of options that stand before it.
_SHELLS = ("-c", _SHELL, "abefhilmnprtuvxBCEHPT")
_PYTHONS = ("-c", _PYTHON, "bBdEIOPRqsSuvx")
_KINDS = {
    **dict.fromkeys(("sh", "bash", "dash", "ash"), _SHELLS),
    **dict.fromkeys(("python", "pypy"), _PYTHONS),
    **dict.fromkeys(("node", "nodejs"), ("-e", _NODE, "")),
}


def start_of(text: str, path: str | None) -> tuple[str, tuple[str, ...]]:
    """Return the content of the file in memory, for a text that came from this absolute path, if
    that is known; and the path and the first words of its interpreter, of which the last but one is
    a program with `MARK` in it, and the last the script's path; no words to execute the file."""
    first, end, rest = text.partition("\n")
    if not path or "\0" in first:
        return text, ()
    if not first.startswith("#!"):
        return text, ("/bin/sh", "sh", "-c", _SHELL, path)
    # As the kernel divides the line: the interpreter, and all that follows as one argument.
    interpreter, _, option = first[2:].strip(" \t").replace("\t", " ", 1).partition(" ")
    option = option.strip(" \t")
    words = [interpreter]
    if interpreter.rsplit("/", 1)[-1] == "env":
        words = option.removeprefix("-S ").split(" ") if option.startswith("-S ") else [option]
        words = [word for word in words if word]
    elif option:
        words.append(option)
    if not 1 <= len(words) <= _MOST_WORDS or any(not word or word.strip(_PLAIN) for word in words):
        return text, ()
    name = words[0].rsplit("/", 1)[-1]
    if not name.startswith("-") and name.rstrip("0123456789.") == "perl":
        if end and '"' not in path and "\n" not in path:
            return f'{first}\n{_PERL}{path}"\n{rest}', ()
        return text, ()
    kind = _KINDS.get(name) or _KINDS.get(name.rstrip("0123456789."))
    if kind is None or not all(_is_flags(word, kind[2]) for word in words[1:]):
        return text, ()
    given = (option,) if option else ()
    return text, (interpreter, interpreter, *given, kind[0], kind[1], path)


def text_of(content: str, path: str | None) -> str:
    """Return the text of which `start_of` has made this content."""
    first, _, rest = content.partition("\n")
    text = first + "\n" + rest.removeprefix(f'{_PERL}{path}"\n')
    return text if start_of(text, path)[0] == content else content


def command(
    text: str, words: tuple[str, ...], argv: tuple[str, ...], fd: int
) -> tuple[str, tuple[str, ...]]:
    """Return the path and the arguments to execute, for a text in this descriptor, as `start_of`
    has it, and a job with these words. `starter/script.h` does the same."""
    path = f"/proc/self/fd/{fd}"
    if words:
        *before, program, name = words
        return words[0], (*before[1:], program.replace(MARK, str(fd)), name, *argv[1:])
    if not text.startswith("#!"):
        return "/bin/sh", ("sh", path, *argv[1:])
    return path, argv


def _is_flags(word: str, known: str) -> bool:
    return len(word) > 1 and word.startswith("-") and not word[1:].strip(known)
