"""One framework's side of the comparison, in a process of its own: frameworks do not bear each other in one.

``python -m portaloader.parity.worker REQUEST.json RESULT.json``: the request is :class:`portaloader.parity.Request` with a
framework; the result holds the digests of each batch, or an error. With ``dump`` (the number of a batch) that batch is
written to ``RESULT.json.npz`` as well.
"""

from __future__ import annotations

import importlib
import json
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

import portaloader
from portaloader.dali_pipeline import is_dali
from portaloader.errors import ArgumentError, PipelineError, PlanError, PortaloaderError, SourceError
from portaloader.parity.digest import batch_digest, field_digest


def stream(request: dict[str, Any], result: Path) -> dict[str, Any]:
    """Digests of the first ``batches`` batches, over as many epochs as they take."""
    pipeline = load_pipeline(request["pipeline"])
    found: dict[str, Any] = {"batches": [], "notes": []}
    options = dict(request["options"])
    if is_dali(pipeline):
        options.pop("shuffle", None)  # its readers have the order
    with portaloader.get_loader(
        request["source"], pipeline, framework=request["framework"], **options, **request["arguments"]
    ) as loader:
        for number, batch in enumerate(islice(_epochs(loader), request["batches"])):
            values = loader.to_numpy(batch)
            fields = {name: field_digest(array) for name, array in values.items()}
            found["batches"].append(
                {"digest": batch_digest(fields), "ids": values["id"].tolist() if "id" in values else None, "fields": fields}
            )
            if request["dump"] == number:
                np.savez(f"{result}.npz", **values)  # type: ignore[arg-type]
        found["device"] = str(loader.adapter.device)
        for wide, narrow in loader.adapter.narrowed.items():
            if wide in loader.dtypes.values():
                found["notes"].append(f"{wide} arrives as {narrow}; compared as {wide}")
    return found


def load_pipeline(name: str | None) -> Any:
    """The pipeline of "module:function", looked for in the working folder as well; None for None.

    Raises:
        ArgumentError: there is none of this name.
    """
    if name is None:
        return None
    module, colon, attribute = name.partition(":")
    if not colon:
        raise ArgumentError(f"the pipeline {name!r} is not of the form module:function.")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ArgumentError(f"the pipeline {name!r} cannot be imported: {error}") from error


def _epochs(loader: Any) -> Any:
    while True:
        yield from loader


def main(request: str, result: str) -> None:
    """Answer the request; an error that portaloader explains is an answer as well."""
    target = Path(result)
    try:
        answer = stream(json.loads(Path(request).read_text(encoding="utf-8")), target)
    except PortaloaderError as error:
        misuse = isinstance(error, (ArgumentError, PipelineError, PlanError, SourceError))
        answer = {"error": f"{type(error).__name__}: {error}", "misuse": misuse}
    target.write_text(json.dumps(answer), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
