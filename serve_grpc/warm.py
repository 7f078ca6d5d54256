"""A warm Job: `jaxport serve --warm-only` compiles what the models need, publishes it, and ends."""

import logging
import time

import jax

from serve_grpc.cache import CompileCache, Published
from serve_grpc.catalog import Catalog
from serve_grpc.compiles import CompileWatch
from serve_grpc.device import Device
from serve_grpc.errors import ConfigError, LoadRefused
from serve_grpc.loader import Loader
from serve_grpc.memory import Memory
from serve_grpc.metrics import Metrics
from serve_grpc.repository import Repository
from serve_grpc.scheduler import Scheduler
from serve_grpc.serving import Serving
from serve_grpc.settings import BatchSettings, RepositorySettings, ServeSettings

log = logging.getLogger(__name__)


def warm(settings: ServeSettings, device: Device, cache: CompileCache) -> int:
    """Loads every model once and publishes what had to be compiled.

    Raises EnvironmentUnfit when the cache cannot be written, LoadRefused when a version was refused, and ConfigError when
    there is nothing to load.
    """
    cache.prepare()
    # An executable that JAX reads back from a cache of its own does not load again once it is stored anew.
    jax.config.update("jax_enable_compilation_cache", False)
    published = Published(cache)
    metrics = Metrics()
    catalog = Catalog()
    serving = Serving(catalog)
    watch = CompileWatch(metrics)
    loader = Loader(device, settings.batch, metrics, cache, published.put)
    repository = Repository(
        settings.repository.models,
        loader,
        catalog,
        serving,
        Scheduler(),
        metrics,
        watch,
        on_health=lambda *_: None,
        on_polled=lambda _: None,
        memory=Memory(device, settings.batch.max_batch, settings.updates.memory_limit),
    )
    _poll(repository, serving, settings.repository)
    if published.failure is not None:
        raise published.failure
    log.info(
        "warmed models=%d compiled=%d published=%d cache=%s",
        len(serving.names()), loader.compiled.total(), published.count, cache.folder,
    )  # fmt: skip
    if repository.refused:
        names = ", ".join(repository.refused)
        raise LoadRefused(f"not loaded, for reasons that the log has: {names}; mend or remove it")
    if not serving.names():
        raise ConfigError(
            f"--models {settings.repository.models}: nothing in it to warm for; needed: folders <model>/<version>/, "
            "as jaxport export writes them"
        )
    return 0


def _poll(repository: Repository, serving: Serving, settings: RepositorySettings) -> None:
    """Loads what there is; with `wait`, what there is once there is something. What does not load ends the wait, too."""
    told = False
    while True:
        repository.poll()
        if repository.refused or repository.vanished:
            # It may have been half copied or half deleted, and what is to replace it may have come meanwhile.
            log.info("looking again in %gs at what did not load", settings.poll_seconds)
            time.sleep(settings.poll_seconds)
            repository.poll()
        if not settings.wait or serving.names() or repository.refused:
            return
        if not told:
            log.info("waiting for a first model in %s", settings.models)
            told = True
        time.sleep(settings.poll_seconds)


def warm_command(settings: ServeSettings) -> str:
    """What fills the cache that a server with these settings looks for."""
    repository, batch = settings.repository, settings.batch
    words = ["jaxport serve --warm-only --models", str(repository.models)]
    if repository.cache_dir is not None:
        words += ["--cache-dir", str(repository.cache_dir)]
    if batch.max_batch != BatchSettings.max_batch:
        words += ["--max-batch", str(batch.max_batch)]
    return " ".join(words)
