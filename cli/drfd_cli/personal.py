"""A user's own defaults and presets: `config.toml` in the user's configuration directory.

Settings become words of a command line, which stand before those that the user writes, so that the
user's own win:

    the configuration of drfd < personal defaults < preset < #DRF lines < command line

Nothing slow is loaded where there is no such file: `drf submit` loads this module.
"""

from __future__ import annotations

import os

from drfd.common.errors import ConfigError
from drfd.payload.submitter import config_directory
from drfd.protocol.job_options import OPTIONS, options_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping
    from typing import NoReturn

#: The options of a job by their keys here. `warnings` is no property of a job.
_OPTIONS = {option.setting: option for option in OPTIONS}
_WARNINGS, _NO_WARNINGS = "warnings", "--no-warnings"
_PRESET_KEYS = (*_OPTIONS, _WARNINGS)
_DEFAULT_KEYS = (
    *(key for key, option in _OPTIONS.items() if option.is_default), _WARNINGS, "colour", "columns",
)  # fmt: skip
_COLOURS = ("auto", "always", "never")


class NotOwn(ConfigError):
    """The file belongs to another user, as when HOME is still that of before `sudo`. Nothing in it
    may decide what the caller's jobs run."""


class UserSetting:
    """A setting as a word of the command line, and where it stands."""

    def __init__(self, option: str, value: str | None, place: str) -> None:
        self.option = option
        #: None for an option without a value.
        self.value = value
        #: "file, line 3: preset.gpu.cores"
        self.place = place

    @property
    def word(self) -> str:
        return self.option if self.value is None else f"{self.option}={self.value}"


class Settings:
    """The content of the file."""

    def __init__(
        self, defaults: list[UserSetting], presets: dict[str, list[UserSetting]], colour: str,
        columns: list[str],
    ) -> None:  # fmt: skip
        self.defaults = defaults
        self.presets = presets
        #: `auto`, `always` or `never`.
        self.colour = colour
        #: Keys of columns that drf top and drf web have besides their own.
        self.columns = columns


def path_of(environ: Mapping[str, str]) -> str:
    """Return the path of the file, which need not be there."""
    return f"{config_directory(environ)}/config.toml"


#: What counts without a file.
_NONE = Settings([], {}, "auto", [])


def read(environ: Mapping[str, str]) -> Settings:
    """Return the user's settings. Raises ConfigError; NotOwn for a file of another user, which is
    not read.

    Whether a value can be an option's is not looked at.
    """
    path = path_of(environ)
    try:
        data = content_of(path)
    except (FileNotFoundError, NotADirectoryError):
        return _NONE
    except OSError as error:
        if isinstance(error, PermissionError) and not _may_look(path):
            # HOME is still another user's, as with `su` and setpriv: this file is not the caller's.
            return _NONE
        raise ConfigError("config", f"cannot read {path}: {error.strerror}") from None
    # Imported here: it is slow to load and seldom needed.
    import tomllib

    try:
        text = data.decode()
        table = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError("config", f"{path} is not TOML: {error}") from None
    return _Reader(path, text, environ).read(table)


def content_of(path: str) -> bytes:
    """Return the content of the file. Raises OSError; NotOwn if it is neither the caller's nor
    root's."""
    # A FIFO of another user must not keep the caller waiting.
    with open(path, "rb", opener=lambda *at: os.open(at[0], at[1] | os.O_NONBLOCK)) as file:
        if os.fstat(file.fileno()).st_uid not in (0, os.geteuid()):
            raise NotOwn("config", f"{path} is not yours, so it is ignored")
        return file.read(_MOST_BYTES)


def _may_look(path: str) -> bool:
    """Return whether the caller may enter the directories of the path."""
    try:
        os.stat(path)
    except PermissionError:
        return False
    except OSError:
        pass
    return True


def chosen(verb: str, preset: str | None, environ: Mapping[str, str]) -> list[UserSetting]:
    """Return the settings for a job of this verb, weaker ones first. Raises ConfigError, NotOwn
    among them, and if there is no such preset."""
    settings = read(environ)
    found, known = settings.defaults, {*options_of(verb), _NO_WARNINGS}
    if preset is not None:
        if preset not in settings.presets:
            path, there = path_of(environ), ", ".join(sorted(settings.presets))
            hint = f"presets: {there}" if there else f"write [preset.{preset}] there"
            text = f"--preset: there is no preset {preset!r} in {path}"
            raise ConfigError("config", text, hint=_near(preset, settings.presets) or hint)
        found = [*found, *settings.presets[preset]]
    return [each for each in found if each.option in known]


#: Longest file that is read.
_MOST_BYTES = 1 << 20


class _Reader:
    def __init__(self, path: str, text: str, environ: Mapping[str, str]) -> None:
        self._path = path
        self._text = text
        self._home = environ.get("HOME") or ""

    def read(self, table: dict[str, object]) -> Settings:
        own = {key: value for key, value in table.items() if key != "preset"}
        colour = own.pop("colour", own.pop("color", "auto"))
        if colour not in _COLOURS:
            self._fail("", "colour", f"{colour!r} is not a choice", "auto, always or never")
        columns = own.pop("columns", [])
        if not isinstance(columns, list) or not all(isinstance(each, str) for each in columns):
            self._fail("", "columns", f"{columns!r} is not a list of keys", 'columns = ["group"]')
        presets = table.get("preset", {})
        if not isinstance(presets, dict) or not all(
            isinstance(each, dict) for each in presets.values()
        ):
            self._fail("", "preset", "a preset is a table", "[preset.gpu] with keys below")
        return Settings(
            list(self._settings(own, "", _DEFAULT_KEYS)),
            {
                name: list(self._settings(each, f"preset.{name}", _PRESET_KEYS))
                for name, each in presets.items()
            },
            str(colour),
            columns,
        )

    def _settings(
        self, table: Mapping[str, object], title: str, known: Collection[str]
    ) -> Iterator[UserSetting]:
        for key, value in table.items():
            if key not in known:
                names = {*known} if title else {*known, "preset"}
                others = f"known keys: {', '.join(sorted(names - {'colour'}))}"
                if key in _PRESET_KEYS:
                    others = "it can stand in a preset"
                self._fail(title, key, "unknown key", _near(key, names) or others)
            yield from self._setting(title, key, value)

    def _setting(self, title: str, key: str, value: object) -> Iterator[UserSetting]:
        place = self._place(title, key)
        option = _OPTIONS.get(key)
        if option is None or option.kind == "flag":
            if not isinstance(value, bool):
                self._fail(title, key, f"{value!r} is not true or false")
            if option is None and not value:
                yield UserSetting(_NO_WARNINGS, None, place)
            elif option is not None and value:
                yield UserSetting(option.flag, None, place)
        elif option.many:
            texts = [
                self._text_of(title, key, each)
                for each in (value if isinstance(value, list) else [value])
            ]
            for each in texts if option.many == "each" else [option.many.join(texts)]:
                yield UserSetting(option.flag, each, place)
        else:
            text = self._text_of(title, key, value)
            if option.kind == "file" and text.startswith("~/"):
                text = self._home + text[1:]
            yield UserSetting(option.flag, text, place)

    def _text_of(self, title: str, key: str, value: object) -> str:
        if isinstance(value, bool) or not isinstance(value, str | int | float) or value == "":
            self._fail(title, key, f"{value!r} is not a text or a number")
        return str(value)

    def _fail(self, title: str, key: str, text: str, hint: str = "") -> NoReturn:
        raise ConfigError("config", f"{self._place(title, key)}: {text}", hint=hint)

    def _place(self, title: str, key: str) -> str:
        line = self._line_of(title, key)
        at = "" if line is None else f", line {line}"
        return f"{self._path}{at}: {title}.{key}" if title else f"{self._path}{at}: {key}"

    def _line_of(self, title: str, key: str) -> int | None:
        """Return the number of the line that begins with this key below this heading, or None if
        it is written in another way."""
        heading = ""
        for number, line in enumerate(self._text.split("\n"), 1):
            word = line.strip()
            if word.startswith("["):
                heading = _bare(word.partition("]")[0].strip("["))
                if not title and heading.partition(".")[0] == key:
                    return number
            elif heading == title and _bare(word.partition("=")[0]) == key:
                return number
        return None


def _bare(name: str) -> str:
    return ".".join(part.strip().strip("\"'") for part in name.split("."))


def _near(word: str, known: Collection[str]) -> str:
    # Imported here: it is slow to load and seldom needed.
    from difflib import get_close_matches

    near = get_close_matches(word, sorted(known), 1)
    return f"did you mean {near[0]}?" if near else ""
