"""One run: a look at the server, a warm-up, the load, the report."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from appliance.bench.answers import ask
from appliance.bench.connection import Pool
from appliance.bench.load import Generator, Load
from appliance.bench.measurement import Measurement
from appliance.bench.prompts import Prompt, random_words
from appliance.bench.report import Report, load_shape, make_report
from appliance.bench.server import PATHS, Form, ServerError, find_model, probe
from appliance.bench.target import Target


class Options(NamedTuple):
    """`prompts` are those of a file; None for random words."""

    load: Load
    api: str
    model: str | None
    prompts: Iterator[Prompt] | None
    input_tokens: int
    output_tokens: int
    warmup: int
    timeout_s: float


class StoppedError(Exception):
    """Ctrl-C came before the load."""


class Run:
    """Ctrl-C ends the load at once, and the report tells what was measured until then."""

    def __init__(self, target: Target, options: Options) -> None:
        self._pool = Pool(target)
        self._options = options
        self._generator: Generator[bytes] | None = None
        self._preparing: asyncio.Future[tuple[Form, Iterator[bytes]]] | None = None
        self._interrupted = False

    async def report(self) -> Report:
        """Raises ServerError, StoppedError."""
        options, load = self._options, self._options.load
        self._preparing = preparing = asyncio.ensure_future(self._prepare())
        try:
            loop = asyncio.get_running_loop()
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(number, self._stop)
            form, bodies = await preparing
            if options.warmup:
                several = min(load.concurrency, options.warmup)
                warm_up = Load(several, requests=options.warmup)
                await self._put(warm_up, form, islice(bodies, options.warmup))
            started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            measured = await self._put(load, form, bodies, shown=True)
        except asyncio.CancelledError:
            if not preparing.cancelled():
                raise
            raise StoppedError from None
        finally:
            self._pool.close()
        return make_report(
            measured,
            form,
            url=self._pool.target.url,
            started=started,
            shape=load_shape(
                load,
                input_tokens=None if options.prompts is not None else options.input_tokens,
                output_tokens=options.output_tokens,
                warmup=options.warmup,
            ),
            interrupted=self._interrupted,
        )

    async def _prepare(self) -> tuple[Form, Iterator[bytes]]:
        options = self._options
        served = await find_model(self._pool, options.model)
        longest, wanted = served.max_model_len, options.input_tokens + options.output_tokens
        if longest is not None and options.prompts is None and wanted > longest:
            raise ServerError(
                f"{options.input_tokens:,} tokens in and {options.output_tokens:,} out are {wanted:,}, and the context "
                f"of {served.model} is {longest:,}. Lower --input-tokens or --output-tokens."
            )
        seed = options.load.seed
        form, words = await probe(self._pool, served, options.api, options.input_tokens, seed - 1)
        prompts = options.prompts or random_words(words, seed)
        return form, (form.body(prompt, options.output_tokens) for prompt in prompts)

    async def _put(self, load: Load, form: Form, bodies: Iterator[bytes], *, shown: bool = False) -> Measurement:
        """The load on the server. `shown`: with its progress on a terminal."""
        measurement = Measurement(self._options.output_tokens)
        path, timeout_s = PATHS[form.api], self._options.timeout_s
        self._generator = Generator(load, lambda body: ask(self._pool, path, body, timeout_s), bodies, measurement)
        if self._interrupted:
            return measurement
        if shown and sys.stderr.isatty():
            from appliance.bench.progress import shown_while  # with rich, which takes long to import

            await shown_while(self._generator.run(), measurement, load)
        else:
            await self._generator.run()
        return measurement

    def _stop(self) -> None:
        self._interrupted = True
        if self._preparing is not None:
            self._preparing.cancel()
        if self._generator is not None:
            self._generator.stop()
