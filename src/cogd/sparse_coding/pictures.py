"""Picture files in and out, in their own depth, and the pictures that a dictionary gives."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

SUFFIXES = (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp", ".webp", ".pgm", ".ppm")
LOSSLESS = (".png", ".tif", ".tiff", ".bmp", ".pgm", ".ppm")
SIXTEEN_BITS = (".png", ".tif", ".tiff", ".pgm", ".ppm")
COLOUR_MODES = ("RGB", "CMYK", "YCbCr", "HSV")


def read_picture(path: str | Path) -> np.ndarray:
    """Return a picture (C, H, W), uint8 or uint16, one channel where it is grey and three where it has colours.

    Palettes and CMYK are converted to RGB; a picture with transparency is refused, as it would be lost.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     write_picture(f"{folder}/flat.png", np.zeros((3, 4, 6), np.uint8))
    ...     read_picture(f"{folder}/flat.png").shape
    (3, 4, 6)
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(path) as file:
                _check_depth(file, path)
                picture = ImageOps.exif_transpose(file)
                picture.load()
                format = file.format
    except FileNotFoundError as error:
        raise FileNotFoundError(f"there is no picture {str(path)!r}.") from error
    except UnidentifiedImageError as error:
        raise ValueError(f"{str(path)!r} is no picture in a known format.") from error
    except (Image.DecompressionBombWarning, Image.DecompressionBombError) as error:
        raise ValueError(f"{str(path)!r} is larger than {Image.MAX_IMAGE_PIXELS} pixels. Cut it into parts.") from error
    except (OSError, SyntaxError) as error:
        raise ValueError(f"{str(path)!r} is damaged or cut short: {error}. Copy it again.") from error
    return _as_array(picture, path, format)


def write_picture(path: str | Path, picture: np.ndarray) -> None:
    """Write a picture (C, H, W) or (H, W), uint8 or uint16, in the format of the path's suffix.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     write_picture(f"{folder}/flat.png", np.full((4, 6), 2**15, np.uint16))
    ...     read_picture(f"{folder}/flat.png").dtype
    dtype('uint16')
    """
    planes = picture.reshape(-1, *picture.shape[-2:])
    image = Image.fromarray(planes[0] if len(planes) == 1 else np.ascontiguousarray(planes.transpose(1, 2, 0)))
    try:
        image.save(path)
    except ValueError as error:
        raise ValueError(f"{str(path)!r} needs the suffix of a picture format, such as .png.") from error


def check_suffix(path: str | Path, dtype: Any) -> None:
    """Refuse, before the work, a format that cannot hold a picture's depth.

    >>> check_suffix("photo.bmp", np.uint16)
    Traceback (most recent call last):
    ValueError: 'photo.bmp' cannot hold 16 bits; choose one of .png, .tif, .tiff, .pgm, .ppm.
    """
    if dtype == np.uint16 and Path(path).suffix.lower() not in SIXTEEN_BITS:
        raise ValueError(f"{str(path)!r} cannot hold 16 bits; choose one of {', '.join(SIXTEEN_BITS)}.")


class PictureFolder(Sequence[np.ndarray]):
    """Picture files as images (C, H, W), or (H, W) in grey, each read when it is looked at.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     write_picture(f"{folder}/flat.png", np.zeros((4, 6), np.uint8))
    ...     PictureFolder([Path(folder) / "flat.png"], colour=True)[0].shape
    (3, 4, 6)
    """

    def __init__(self, paths: Sequence[Path], colour: bool):
        self.paths, self.colour = paths, colour

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, i: Any) -> Any:
        picture = read_picture(self.paths[i])
        if not self.colour:
            return grey(picture)
        return picture if len(picture) == 3 else picture.repeat(3, axis=0)


def picture_folder(
    folder: str | Path, colour: bool = False, least: tuple[int, int] = (1, 1)
) -> tuple[PictureFolder, list[str]]:
    """Return a folder's pictures of at least this size (H, W) in order of name, and why each other file is left out.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     write_picture(f"{folder}/flat.png", np.zeros((4, 6), np.uint8))
    ...     pictures, left_out = picture_folder(folder)
    >>> len(pictures), left_out
    (1, [])
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise ValueError(f"there is no folder {str(folder)!r}.")
    usable, left_out = [], []
    for path in sorted(path for path in folder.iterdir() if path.is_file()):
        if path.suffix.lower() not in SUFFIXES:
            left_out.append(f"{path.name}: not a picture by its suffix")
            continue
        try:
            height, width = read_picture(path).shape[1:]
            if height < least[0] or width < least[1]:
                raise ValueError(f"{height} x {width} pixels are smaller than an atom of {least[0]} x {least[1]}")
        except ValueError as error:
            left_out.append(f"{path.name}: {error}")
        else:
            usable.append(path)
    if not usable:
        reasons = "; ".join(left_out[:3]) or "it is empty"
        raise ValueError(f"{str(folder)!r} holds no picture that can be used ({', '.join(SUFFIXES)}): {reasons}.")
    return PictureFolder(usable, colour), left_out


def grey(picture: np.ndarray) -> np.ndarray:
    """Return the luma (H, W) of a picture (C, H, W) in its own dtype.

    >>> grey(np.full((3, 1, 2), 100, np.uint8))
    array([[100, 100]], dtype=uint8)
    """
    if len(picture) == 1:
        return picture[0]
    return np.rint(np.tensordot([0.299, 0.587, 0.114], picture, 1)).astype(picture.dtype)


def read_holes(path: str | Path, shape: tuple[int, ...]) -> np.ndarray:
    """Return where a picture is missing, (H, W): where the picture of its holes is white.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     write_picture(f"{folder}/holes.png", np.array([[255, 0, 0]], np.uint8))
    ...     read_holes(f"{folder}/holes.png", (1, 3))
    array([[ True, False, False]])
    """
    holes = grey(read_picture(path))
    if holes.shape != shape:
        raise ValueError(f"{str(path)!r} must be as large as the picture, {shape} (H, W); it is {holes.shape}.")
    missing = holes > np.iinfo(holes.dtype).max // 2
    if missing.all() or not missing.any():
        raise ValueError(
            f"{str(path)!r} is {'all' if missing.all() else 'nowhere'} white; white marks what is missing."
        )
    return missing


def tiling(dictionary: np.ndarray) -> np.ndarray:
    """Return the picture of all atoms, (H, W) or (C, H, W) uint8, most grey = 0, each atom at its own contrast.

    >>> tiling(np.ones((4, 1, 2, 2), np.float32)).shape
    (7, 7)
    """
    count, channels, height, width = dictionary.shape
    columns = int(np.ceil(np.sqrt(count)))
    rows = -(-count // columns)
    canvas = np.zeros((channels, rows * (height + 1) + 1, columns * (width + 1) + 1), np.uint8)
    for k, atom in enumerate(dictionary):
        top, left = 1 + k // columns * (height + 1), 1 + k % columns * (width + 1)
        scaled = atom / max(np.abs(atom).max(), np.finfo(atom.dtype).tiny)
        canvas[:, top : top + height, left : left + width] = np.rint(127.5 * (1 + scaled))
    return canvas[0] if channels == 1 else canvas


def _check_depth(file: Image.Image, path: str | Path) -> None:
    """Refuse 16 bits per colour, which Pillow would read as 8."""
    if file.mode in COLOUR_MODES and any(map(_is_deep, getattr(file, "tile", ()))):
        raise ValueError(f"{str(path)!r} has 16 bits per colour, which would be lost. Save it with 8, or in grey.")


def _is_deep(tile: Any) -> bool:
    """Return whether a part of a file has 16 bits: its first argument is how bytes are packed, PPM's last the range."""
    decoder, _, _, arguments = tile
    arguments = [arguments] if isinstance(arguments, str) else arguments or [""]
    return "16" in str(arguments[0]) or (decoder.startswith("ppm") and arguments[-1] > 255)


def _as_array(picture: Image.Image, path: str | Path, format: str | None) -> np.ndarray:
    if picture.has_transparency_data:
        raise ValueError(f"{str(path)!r} has transparency, which would be lost. Flatten it first.")
    if picture.mode in ("L", "1"):
        return np.asarray(picture.convert("L"))[None]
    if picture.mode.startswith("I;16") or (picture.mode == "I" and format in ("PPM", "PNG")):  # these have 16 at most
        return np.asarray(picture).astype(np.uint16)[
            None
        ]  # in the machine's order of bytes; Pillow converts by clipping
    if picture.mode == "P" or picture.mode in COLOUR_MODES:
        colours = np.asarray(picture.convert("RGB")).transpose(2, 0, 1)
        return colours[:1] if picture.mode == "P" and (colours == colours[:1]).all() else colours
    raise ValueError(f"{str(path)!r} has the mode {picture.mode}; save it with 8 or 16 bits in grey, or 8 bits in RGB.")
