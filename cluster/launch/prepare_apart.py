"""Prepares the model in a process of its own, which takes torch's memory with it when it ends."""

import multiprocessing
import signal
from multiprocessing.connection import Connection
from pathlib import Path

from replicas.models.prepared_model import PreparedModel


class ModelNotReady(Exception):
    """The model cannot be had or served; the message says why."""


def prepare_apart(spec: str, *, cache_dir: Path) -> PreparedModel:
    """replicas.models.prepare in a forked process; bars go to this one's stderr.

    Call it while this process has one thread. Raises ModelNotReady.
    """
    fork = multiprocessing.get_context("fork")
    reader, writer = fork.Pipe(duplex=False)
    process = fork.Process(target=_prepare, args=(spec, cache_dir, writer), daemon=True)
    process.start()
    writer.close()
    try:
        outcome = reader.recv()
    except EOFError:
        process.join()
        raise ModelNotReady(f"preparing {spec} ended with code {process.exitcode}") from None
    finally:
        process.terminate()
        process.join()
    if isinstance(outcome, str):
        raise ModelNotReady(outcome)
    assert isinstance(outcome, Path)
    return PreparedModel.load(outcome)


def _prepare(spec: str, cache_dir: Path, writer: "Connection[object, object]") -> None:
    # Whoever started this process ends it once the outcome is there, maybe before `send` returns;
    # the handler that was inherited would make a traceback of that.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    # Only this process is to import the model's libraries.
    from replicas.models.prepare import prepare_model
    from replicas.models.supported import ModelError

    try:
        writer.send(Path(prepare_model(spec, cache_dir=cache_dir).folder))
    except (ModelError, OSError) as error:
        writer.send(str(error))
