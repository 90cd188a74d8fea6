"""Where the fields of a translated request come from, so that errors name what the client has sent."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping

from appliance.serving.errors import ApiError
from appliance.serving.fields import Ignored


class FieldOrigins:
    """By the path of a field in the translated request: its path in the client's own."""

    def __init__(self, origins: Mapping[str, str]) -> None:
        self._origins = dict(origins)

    def add(self, path: str, origin: str) -> None:
        self._origins[path] = origin

    def of(self, path: str) -> str:
        """That of the field, or of the innermost one around it."""
        ends = [len(path), *(match.start() for match in re.finditer(r"[.\[]", path))]
        for end in sorted(ends, reverse=True):
            if (origin := self._origins.get(path[:end])) is not None:
                return origin + path[end:]
        return path

    @contextlib.contextmanager
    def in_errors(self) -> Iterator[None]:
        """Within it, an ApiError about the translated request becomes one about the client's."""
        try:
            yield
        except ApiError as error:
            self._rename(error)
            raise

    def note(self, unused: Ignored, ignored: Ignored) -> None:
        """What the model has no use for, by the names that the client has used."""
        for name in unused.names:
            if name in self._origins:
                ignored.add_unused(self._origins[name])

    def _rename(self, error: ApiError) -> None:
        if error.param is None:
            return
        param, origin = error.param, self.of(error.param)
        error.param = origin
        if error.message.startswith(param):
            error.message = origin + error.message.removeprefix(param)
        elif not param.isalpha():  # a path, and no word of the sentence
            error.message = error.message.replace(param, origin)
