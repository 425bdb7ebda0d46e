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

import os
import sys
from _pickle import dumps, load, loads

PLACE_BYTES = 8


def main(batch: str, number: str) -> int:
    """Return the exit code."""
    path = f"{batch}.{number}"
    if os.path.exists(path):
        os.unlink(path)  # that of an earlier attempt
    try:
        value, text = _dumped(_made(batch, int(number))), None
    except BaseException as error:
        import traceback

        # The frames of this module say nothing of the call.
        where = error.__traceback__
        while where and where.tb_frame.f_code.co_filename == __file__:
            where = where.tb_next
        text = "".join(traceback.format_exception(type(error), error, where))
        sys.stderr.write(text)
        value = _dumped_error(error)
    try:
        with open(f"{path}.part", "wb") as file:
            file.writelines((dumps(text, 5), value))
    except OSError:
        os.unlink(f"{path}.part")  # or the disk stays full
        raise
    os.rename(f"{path}.part", path)
    return 0 if text is None else 1


def _made(batch: str, number: int) -> object:
    """Make the call, and return its value."""
    with open(batch, "rb") as file:
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
        import cloudpickle

        return bytes(cloudpickle.dumps(value))


def _dumped_error(error: BaseException) -> bytes:
    from contextlib import suppress

    with suppress(Exception):
        dumped = _dumped(error)
        # A class whose __init__ takes other arguments than it hands on cannot be loaded.
        if isinstance(loads(dumped), BaseException):
            return dumped
    return dumps(RuntimeError(f"{type(error).__name__}: {error}"), 5)


if __name__ == "__main__":
    words = sys.argv[1:]
    sys.argv[1:] = []
    sys.exit(main(words[0], words[1] if words[1:] else os.environ["DRF_ARRAY_INDEX"]))
