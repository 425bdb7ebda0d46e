"""The program of a job of `drfd.futures`: make one call of a batch, and write what it returns.

It is run as `python -P call.py BATCH [NUMBER]`; the task of an array has its index for the number.
The file BATCH has three parts: a pickle of the module search path and of the places of the calls,
eight bytes each; a pickle of the function; and one of the arguments of each call. The places are
relative to the end of the first part. Arguments are positional and keyword ones, or a list of
positional ones for a call that stands for several.

BATCH.NUMBER appears at once, and has two pickles as well: of the traceback, or None for a call that
has returned; and of the value or the exception, which the reader may be unable to load.

Each call waits for the imports here, so the part of `pickle` in C must do.
"""

from __future__ import annotations

import os
import sys
from _pickle import dumps, load, loads

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, BinaryIO

PLACE_BYTES = 8
#: The class of `by_value`, which is made when it is needed.
_known: Any = None


def main(batch: str, number: str) -> int:
    """Return the exit code."""
    directory, name = os.path.split(batch)
    where = own_directory(directory)
    result = f"{name}.{number}"
    _remove(result, where)  # that of an earlier attempt
    try:
        value, text = _dumped(_made(name, where, int(number))), None
    except BaseException as error:
        import traceback

        # The frames of this module say nothing of the call.
        first = error.__traceback__
        while first and first.tb_frame.f_code.co_filename == __file__:
            first = first.tb_next
        text = "".join(traceback.format_exception(type(error), error, first))
        sys.stderr.write(text)
        value = _dumped_error(error)
    part = f"{result}.part"
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        with open(os.open(part, flags, 0o600, dir_fd=where), "wb") as file:
            file.writelines((dumps(text, 5), value))
    except OSError:
        _remove(part, where)  # or the disk stays full
        raise
    os.rename(part, result, src_dir_fd=where, dst_dir_fd=where)
    return 0 if text is None else 1


def own_directory(path: str) -> int:
    """Open a directory. Raises PermissionError if it is another user's, who could have put anything
    into it."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    return _own(fd, path)


def own_file(name: str, where: int) -> BinaryIO:
    """Open a file of a directory for reading. Raises PermissionError if it is another user's, whose
    pickle would run what that user likes."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    return open(_own(os.open(name, flags, dir_fd=where), name), "rb")


def _own(fd: int, name: str) -> int:
    if os.fstat(fd).st_uid == os.geteuid():
        return fd
    os.close(fd)
    raise PermissionError(f"{name} belongs to another user")


def _remove(name: str, where: int) -> None:
    try:
        os.unlink(name, dir_fd=where)
    except FileNotFoundError:
        pass


def _made(name: str, where: int, number: int) -> object:
    """Make the call, and return its value."""
    with own_file(name, where) as file:
        search, places = load(file)
        begin = file.tell()
        sys.path[:] = search
        function = load(file)
        place = places[PLACE_BYTES * number :][:PLACE_BYTES]
        file.seek(begin + int.from_bytes(place, "big"))
        given = load(file)
    if isinstance(given, list):
        return [function(*each) for each in given]
    arguments, keywords = given
    return function(*arguments, **keywords)


def _dumped(value: object) -> bytes:
    try:
        return dumps(value, 5)
    except Exception:
        # What belongs to the caller's script cannot be pickled by name.
        return by_value(value)


def _dumped_error(error: BaseException) -> bytes:
    """Return a pickle of the exception that can be loaded, of one that says why not otherwise."""
    kind, why = type(error), ""
    # A class whose __init__ takes other arguments than it hands on is made again without it.
    for dump in _dumped, lambda value: by_value(value, makes_again=True):
        try:
            dumped = dump(error)
            again = loads(dumped)
            if isinstance(again, kind) and str(again) == str(error):
                return dumped
            why = f"its pickle is loaded as {again!r}"
        except Exception as failure:
            why = f"{type(failure).__name__}: {failure}"
    try:
        text = str(error)
    except Exception as failure:
        text = f"its text is not known: {type(failure).__name__}"
    return dumps(
        RuntimeError(f"{kind.__name__}: {text} (it cannot be raised here itself: {why})"), 5
    )


def by_value(value: object, *, makes_again: bool = False) -> bytes:
    """Return a pickle that does not need the script of the caller, and in which code keeps the name
    of its file. `makes_again`: exceptions are loaded without their `__init__`."""
    global _known
    from io import BytesIO

    if _known is None:
        _known = _pickler()
    file = BytesIO()
    pickler = _known(file, 5)
    pickler.makes_again = makes_again
    pickler.dump(value)
    return file.getvalue()


def _pickler() -> Any:
    from types import CodeType

    import cloudpickle

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        makes_again: bool

        def reducer_override(self, value: Any) -> Any:
            if isinstance(value, CodeType):
                kind, parts = self.dispatch_table[CodeType](value)
                name = value.co_filename
                return kind, tuple(name if each == "<dynamic-code>" else each for each in parts)
            if self.makes_again and isinstance(value, BaseException):
                kind = type(value)
                return _made_again, (kind, *_builtin(kind).__reduce__(value)[1:])
            return super().reducer_override(value)

    return Pickler


def _made_again(
    kind: type[BaseException], arguments: tuple[Any, ...], state: dict[str, object] | None = None
) -> BaseException:
    builtin = _builtin(kind)
    made = builtin.__new__(kind, *arguments)
    builtin.__init__(made, *arguments)
    for name, value in (state or {}).items():
        BaseException.__setattr__(made, name, value)  # a frozen class refuses it
    return made


def _builtin(kind: type[BaseException]) -> type[BaseException]:
    return next(each for each in kind.__mro__ if each.__module__ == "builtins")


if __name__ == "__main__":
    words = sys.argv[1:]
    sys.argv[1:] = []
    sys.exit(main(words[0], words[1] if words[1:] else os.environ["DRF_ARRAY_INDEX"]))
