"""What a restored picture leaves for a report: a results file, and the picture of the holes, beside it."""

from pathlib import Path
from typing import Any

import numpy as np

from cogd.provenance import provenance
from cogd.sparse_coding.metrics import psnr, ssim
from cogd.sparse_coding.pictures import write_picture
from cogd.training.files import write_json


def write_inpainting(
    output: Path,
    restored: np.ndarray,
    hidden: np.ndarray,
    settings: dict[str, Any],
    *,
    name: str,
    original: np.ndarray | None = None,
    seconds: float | None = None,
    device: str = "cpu",
    command: str | None = None,
) -> None:
    """Write a restored picture (C, H, W), its holes (H, W) and, beside them, a results file of `cogd report`.

    Where the `original` is known, it is written too and the quality on the hidden pixels is measured. `device` is where
    the picture was restored.
    """
    holes = output.with_name(f"{output.stem}.holes.png")
    write_picture(output, restored)
    write_picture(holes, np.where(hidden, 255, 0).astype(np.uint8))
    result: dict[str, Any] = {
        "name": name,
        "holes": holes.name,
        "restored": output.name,
        "missing": float(hidden.mean()),
    }
    if original is not None:
        truth = output.with_name(f"{output.stem}.original.png")
        write_picture(truth, original)
        result |= {"original": truth.name, **quality(original, restored, hidden)}
    if seconds is not None:
        result["seconds"] = seconds
    about = {"settings": settings, **provenance(device), **({"command": command} if command else {})}
    write_json(output.with_suffix(".json"), {**about, "inpainting": result})


def quality(original: np.ndarray, restored: np.ndarray, where: np.ndarray) -> dict[str, float]:
    """Return PSNR and SSIM of a picture (C, H, W) over some pixels (H, W), in the range of its type."""
    top = float(np.iinfo(original.dtype).max)
    similarity = [ssim(o, r, top, where) for o, r in zip(original, restored, strict=True)]
    return {
        "psnr": psnr(original, restored, top, np.broadcast_to(where, original.shape)),
        "ssim": float(np.mean(similarity)),
    }
