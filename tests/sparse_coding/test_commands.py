"""The commands, on files as users have them, and the files that cannot be used."""

import json
import re
import struct
import warnings
import zlib
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image
from textures import textured
from typer.testing import CliRunner

from cogd.cli import app
from cogd.sparse_coding.learner import ConvDictionaryLearner
from cogd.sparse_coding.pictures import (
    LOSSLESS,
    SIXTEEN_BITS,
    check_suffix,
    picture_folder,
    read_picture,
    tiling,
    write_picture,
)

USAGE = (
    "either --holes",
    "is the photo itself",
    "must end in one of",
    "between 0 and 1; got 1.5",
    "penalty must be",
    "--penalty must be a number",
    "alter the pixels",
    "cannot hold 16 bits",
    "takes no order or scale",
    "rule=None only",
    "n_atoms must be",
)


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def folder(tmp_path, random):
    folder = tmp_path / "pictures"
    folder.mkdir()
    for i, image in enumerate(textured(random, 3, 40, 48)):
        pixels = np.clip(128 + 40 * image, 0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(folder / f"{i}.png")
    return folder


@pytest.fixture
def dictionary(folder, tmp_path):
    path = tmp_path / "d.safetensors"
    result = run(
        *("learn", folder, "-o", path, "--atoms", 12, "--atom-size", 7, "--penalty", 0.05, "--max-iter", 15),
    )
    assert result.exit_code == 0, result.output
    return path


def test_a_restored_picture_and_its_dictionary_go_into_a_report(folder, dictionary, tmp_path):
    out = tmp_path / "restored" / "p.png"
    done = run("inpaint", folder / "0.png", "-d", dictionary, "-o", out, "--missing", 0.4, "--results")
    assert done.exit_code == 0, done.output
    Path(dictionary).rename(out.with_name("d.safetensors"))
    assert run("report", out.parent, "-o", tmp_path / "r.html").exit_code == 0
    text = (tmp_path / "r.html").read_text()
    assert re.search(r"0.png: \d+% of the pixels filled in, PSNR", text)
    assert text.count('type="range"') == 2
    assert "<span>inpaint</span>" in text
    assert "<span>learn</span>" in text


def test_learn_reports_and_leaves_out_other_files(folder, tmp_path):
    (folder / "notes.txt").write_text("no picture")
    (folder / "cut.png").write_bytes((folder / "0.png").read_bytes()[:300])
    Image.fromarray(np.zeros((4, 48), np.uint8)).save(folder / "flat.png")
    result = run("learn", folder, "-o", tmp_path / "d.safetensors", "--atoms", 3, "--atom-size", 5, "--max-iter", 2)
    assert result.exit_code == 0
    assert "left out flat.png: 4 x 48 pixels are smaller than an atom of 5 x 5" in result.output
    assert "left out notes.txt: not a picture" in result.output
    assert "left out cut.png" in result.output
    assert "3 atoms from 3 pictures" in result.output
    assert ConvDictionaryLearner.load(tmp_path / "d.safetensors").dictionary_.shape == (3, 1, 5, 5)


def test_inpaint_simulated_and_real_holes(folder, dictionary, tmp_path, random):
    photo, out, holes = folder / "0.png", tmp_path / "out.png", tmp_path / "holes.png"
    result = run("inpaint", photo, "-d", dictionary, "-o", out, "--missing", 0.4)
    assert result.exit_code == 0, result.output
    assert float(result.output.split("PSNR ")[1].split()[0]) > 20
    Image.fromarray(np.where(random.random((40, 48)) < 0.6, 255, 0).astype(np.uint8)).save(holes)
    assert "invert it if black was to" in run("inpaint", photo, "-d", dictionary, "-o", out, "--holes", holes).output
    missing = random.random((40, 48)) < 0.3
    Image.fromarray(missing.astype(np.uint8) * 255).save(holes)
    assert run("inpaint", photo, "-d", dictionary, "-o", out, "--holes", holes).exit_code == 0
    (before,), (after,) = read_picture(photo), read_picture(out)
    assert after.dtype == np.uint8
    np.testing.assert_array_equal(after[~missing], before[~missing])
    assert np.abs(after[missing].astype(float) - before[missing]).mean() < 20


def test_colours_and_sixteen_bits_come_back_as_they_are(dictionary, tmp_path, random):
    grey = np.clip(0.5 + 0.15 * textured(random, 1, 30, 30), 0, 1)
    deep, colour = (65535 * grey).astype(np.uint16), (255 * grey.repeat(3, 0)).astype(np.uint8)
    for name, picture in (("deep.png", deep), ("colour.png", colour)):
        write_picture(tmp_path / name, picture)
        assert (
            run("inpaint", tmp_path / name, "-d", dictionary, "-o", tmp_path / "o.png", "--missing", 0.3).exit_code == 0
        )
        back = read_picture(tmp_path / "o.png")
        assert (back.dtype, back.shape) == (picture.dtype, picture.shape)
        assert (back == picture).mean() > 0.6


def test_reconstruct_and_show(folder, dictionary, tmp_path):
    result = run("reconstruct", folder / "1.png", "-d", dictionary, "-o", tmp_path / "r.png", "--penalty", 0.01)
    assert float(result.output.split("PSNR ")[1].split()[0]) > 25
    result = run("show", dictionary, "-o", tmp_path / "s.png")
    assert "12 atoms of 7 x 7, 1 channel(s), penalty 0.05" in result.output
    with Image.open(tmp_path / "s.png") as drawing:
        assert drawing.size == (1430, 676)
    assert "must end in one of .png, .svg, .pdf" in run("show", dictionary, "-o", tmp_path / "s.txt").output


def test_denoise_takes_out_noise_of_the_estimated_strength(folder, dictionary, tmp_path, random):
    (clean,) = read_picture(folder / "2.png").astype(float)
    noisy = np.clip(clean + 20 * random.standard_normal(clean.shape), 0, 255).astype(np.uint8)
    write_picture(tmp_path / "noisy.png", noisy)
    errors = [np.abs(noisy - clean).mean()]
    for noise in ((), ("--noise", 20)):
        result = run(
            *("denoise", tmp_path / "noisy.png", "-d", dictionary, "-o", tmp_path / "o.png", *noise),
            *("--figure", tmp_path / "f.svg", "--json"),
        )
        assert result.exit_code == 0, result.output
        assert json.loads(result.stdout)["noise"] == [pytest.approx(20, abs=4)]
        (cleaned,) = read_picture(tmp_path / "o.png")
        assert cleaned.dtype == np.uint8
        errors.append(np.abs(cleaned - clean).mean())
    assert max(errors[1:]) < 0.6 * errors[0]
    assert (tmp_path / "f.svg").read_text().startswith("<?xml")


def test_a_figure_that_cannot_be_written_is_refused_before_the_work(folder, dictionary, tmp_path):
    for command in (["inpaint", "--missing", 0.4], ["denoise"]):
        where = ["-d", dictionary, "-o", tmp_path / "o.png"]
        refused = run(*command, folder / "0.png", *where, "--figure", tmp_path / "f.txt")
        assert refused.exit_code == 2
        assert "--figure" in refused.stderr
        assert not (tmp_path / "o.png").exists()
        assert run(*command, folder / "0.png", *where, "--figure", tmp_path / "f.PNG").exit_code == 0
        (tmp_path / "o.png").unlink()


def test_learning_in_colour_and_in_batches(folder, tmp_path, random):
    path = tmp_path / "d.safetensors"
    Image.fromarray(random.integers(0, 255, (40, 48, 3), np.uint8)).save(folder / "colour.png")
    for options, channels in ((("--colour",), 3), (("--batch-size", 2), 1)):
        result = run("learn", folder, "-o", path, "--atoms", 3, "--atom-size", 5, "--max-iter", 3, *options)
        assert result.exit_code == 0, result.output
        assert ConvDictionaryLearner.load(path).dictionary_.shape == (3, channels, 5, 5)
    colours, left_out = picture_folder(folder, colour=True)
    assert [image.shape for image in colours] == [(3, 40, 48)] * 4
    assert left_out == []


def test_colour_dictionaries_and_grey_pictures_do_not_mix(folder, tmp_path):
    path = tmp_path / "d.safetensors"
    run("learn", folder, "-o", path, "--atoms", 3, "--atom-size", 5, "--max-iter", 2, "--colour")
    result = run("inpaint", folder / "0.png", "-d", path, "-o", tmp_path / "o.png", "--missing", 0.5)
    assert result.exit_code == 1
    assert "has atoms in colour and the picture is grey" in result.output


def test_sixteen_bits_per_colour_are_refused(tmp_path, random):
    rows = b"".join(b"\0" + random.bytes(6 * 9) for _ in range(8))
    chunks = [(b"IHDR", struct.pack(">IIBBBBB", 9, 8, 16, 2, 0, 0, 0)), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    packed = [struct.pack(">I", len(d)) + n + d + struct.pack(">I", zlib.crc32(n + d)) for n, d in chunks]
    (tmp_path / "deep.png").write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(packed))
    (tmp_path / "deep.ppm").write_bytes(b"P6 9 8 65535 " + random.bytes(6 * 9 * 8))
    for name in ("deep.png", "deep.ppm"):
        with pytest.raises(ValueError, match=f"{name}' has 16 bits per colour"):
            read_picture(tmp_path / name)


@pytest.mark.parametrize("order", ["<", ">"])
def test_sixteen_bits_in_grey_are_read_in_either_order_of_bytes(tmp_path, random, order):
    deep = random.integers(0, 65536, (8, 9)).astype(np.uint16)
    fields = [(256, 9), (257, 8), (258, 16), (259, 1), (262, 1), (273, 122), (277, 1), (278, 8), (279, deep.nbytes)]
    entries = b"".join(struct.pack(f"{order}HHII", tag, 4, 1, number) for tag, number in fields)
    head = {"<": b"II", ">": b"MM"}[order] + struct.pack(f"{order}HIH", 42, 8, len(fields))
    tiff = head + entries + struct.pack(f"{order}I", 0)
    (tmp_path / "deep.tif").write_bytes(tiff + deep.astype(f"{order}u2").tobytes())
    read = read_picture(tmp_path / "deep.tif")
    assert read.dtype == np.uint16
    np.testing.assert_array_equal(read, deep[None])


def test_a_width_with_a_16_in_it_is_no_depth(tmp_path, random):
    pixels = random.integers(0, 255, (2, 720, 3), np.uint8)  # 2160 bytes a row, which a BMP's tile names
    Image.fromarray(pixels).save(tmp_path / "wide.bmp")
    np.testing.assert_array_equal(read_picture(tmp_path / "wide.bmp"), pixels.transpose(2, 0, 1))


def test_tiling_of_one_atom():
    canvas = tiling(np.array([[[[1.0, -1.0], [0.0, 0.5]]]]))
    np.testing.assert_array_equal(canvas[1:3, 1:3], [[255, 0], [128, 191]])
    assert tiling(np.ones((5, 3, 2, 2))).shape == (3, 7, 10)


@pytest.mark.parametrize("mode", ["CMYK", "P", "YCbCr", "RGB"])
def test_colour_modes_are_read_as_rgb(tmp_path, mode):
    """A ramp of colours, close to itself after JPEG; four of them in a palette."""
    down, across = np.mgrid[0:16, 0:24]
    colours = np.stack([10 * across, 12 * down, 200 - 8 * across], -1).astype(np.uint8)
    if mode == "P":
        colours = np.array([[250, 10, 20], [0, 200, 30], [5, 6, 7], [99, 98, 255]], np.uint8)[across % 4]
    path = tmp_path / ("p.png" if mode == "P" else "p.jpg")
    picture = Image.fromarray(colours)
    picture = picture.quantize(4) if mode == "P" else picture.convert(mode)
    picture.save(path, quality=100)
    read = read_picture(path)
    assert read.shape == (3, 16, 24)
    assert np.abs(read.astype(int) - colours.transpose(2, 0, 1)).max() <= (0 if mode == "P" else 16)


def test_colours_that_pillow_cannot_convert_are_refused_by_name(tmp_path):
    path = tmp_path / "lab.tif"
    Image.new("LAB", (9, 8)).save(path)
    with pytest.raises(ValueError, match=r"lab\.tif' has the mode LAB; save it"):
        read_picture(path)


def test_what_cannot_be_used_is_one_line(folder, dictionary, tmp_path, monkeypatch):
    photo, out, deep = folder / "0.png", tmp_path / "o.png", tmp_path / "deep.png"
    write_picture(deep, np.arange(1920, dtype=np.uint16).reshape(40, 48))
    Image.fromarray(np.zeros((40, 48, 4), np.uint8)).save(tmp_path / "clear.png")
    Image.fromarray(np.zeros((40, 47), np.uint8)).save(tmp_path / "small.png")
    Image.fromarray(np.zeros((40, 48), np.uint8)).save(tmp_path / "black.png")
    (tmp_path / "empty").mkdir()
    common = ("-d", dictionary, "-o", out)
    for arguments, message in [
        (("inpaint", tmp_path / "none.png", *common, "--missing", 0.5), "there is no picture"),
        (("inpaint", tmp_path / "clear.png", *common, "--missing", 0.5), "transparency"),
        (("inpaint", photo, *common), "either --holes"),
        (("inpaint", photo, "-d", dictionary, "-o", photo, "--missing", 0.5), "is the photo itself"),
        (("inpaint", photo, *common, "--missing", 1.5), "between 0 and 1; got 1.5"),
        (("inpaint", photo, *common, "--holes", tmp_path / "small.png"), "as large as the picture"),
        (("inpaint", photo, *common, "--holes", tmp_path / "black.png"), "nowhere white"),
        (("inpaint", photo, *common, "--missing", 0.5, "--penalty", 0), "penalty must be"),
        (("inpaint", photo, "-d", photo, "-o", out, "--missing", 0.5), "damaged or no safetensors"),
        (("inpaint", photo, "-d", dictionary, "-o", tmp_path / "o.xyz", "--missing", 0.5), "must end in one of"),
        (("inpaint", photo, "-d", dictionary, "-o", tmp_path / "o.JPG", "--missing", 0.5), "alter the pixels"),
        (("inpaint", photo, "-d", dictionary, "-o", tmp_path / "o.webp", "--missing", 0.5), "alter the pixels"),
        (("inpaint", deep, "-d", dictionary, "-o", tmp_path / "o.bmp", "--missing", 0.5), "cannot hold 16 bits"),
        (("denoise", deep, "-d", dictionary, "-o", tmp_path / "o.jpg"), "cannot hold 16 bits"),
        (("reconstruct", deep, "-d", dictionary, "-o", tmp_path / "o.webp"), "cannot hold 16 bits"),
        (("learn", tmp_path / "nowhere"), "there is no folder"),
        (("learn", tmp_path / "empty"), "holds no picture"),
        (("learn", folder, "--penalty", "high"), "--penalty must be a number"),
        (("learn", folder, "--atom-size", 99), "0.png: 40 x 48 pixels are smaller than an atom of 99 x 99"),
        (("learn", folder, "--rule", "rollback", "--order", 2), "takes no order or scale"),
        (("learn", folder, "--rule", "paper", "--batch-size", 2), "rule=None only"),
        (("learn", folder, "--atoms", 0), "n_atoms must be"),
    ]:
        result = run(*arguments)
        assert result.exit_code == (2 if message in USAGE else 1), arguments
        assert message in result.output, (arguments, result.output)
        assert len(result.output.strip().splitlines()) == 1
    assert not [*tmp_path.glob("o.*")]
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    assert "larger than 100 pixels" in run("inpaint", photo, *common, "--missing", 0.5).output


@pytest.mark.parametrize("suffix", LOSSLESS)
def test_lossless_formats_bring_pictures_back(tmp_path, random, suffix):
    path = tmp_path / f"p{suffix}"
    for dtype in (np.uint8, np.uint16)[: 1 + (suffix in SIXTEEN_BITS)]:
        picture = random.integers(0, np.iinfo(dtype).max, (1, 9, 8), endpoint=True).astype(dtype)
        check_suffix(path, picture.dtype)
        write_picture(path, picture)
        np.testing.assert_array_equal(read_picture(path), picture)


def test_progress_is_one_line_that_ends_on_a_terminal_and_every_tenth_elsewhere(folder, tmp_path, monkeypatch):
    command = ("learn", folder, "-o", tmp_path / "d", "--atoms", 3, "--atom-size", 5, "--penalty", 0.02)
    said = run(*command, "--max-iter", 20).stderr.splitlines()
    assert [line.split()[1] for line in said] == ["1/20", "10/20", "20/20"]
    pattern = r"iteration 10/20  objective [\d.e+]+  \d+ codes  at most \d+ s left"
    assert re.fullmatch(pattern, said[1]), said
    assert said[2].endswith("at most 0 s left")
    assert run(*command, "--max-iter", 2, "--quiet").stderr == ""
    monkeypatch.setattr("cogd.commands.sparse_coding.sys", SimpleNamespace(stderr=SimpleNamespace(isatty=lambda: True)))
    said = run(*command, "--max-iter", 5, "--time-limit", 1e-9).stderr  # ends before its last iteration
    assert re.fullmatch(r"\riteration 1/5 .* at most 0 s left(\x1b\[K)?\n", said), said


@pytest.mark.parametrize("options", [("--rule", "paper", "--order", 2, "--scale", 0.1), ("--solver", "ffcsc")], ids=str)
def test_learn_by_a_rule_or_the_papers_solver(folder, tmp_path, options):
    path = tmp_path / "d.safetensors"
    result = run("learn", folder, "-o", path, "--atoms", 3, "--atom-size", 5, "--max-iter", 3, *options)
    assert result.exit_code == 0, result.output
    learner = ConvDictionaryLearner.load(path)
    for name, value in zip(options[::2], options[1::2], strict=True):
        assert learner.get_params()[name[2:]] == value


def test_a_dictionary_may_be_read_by_whom_other_files_may_be_read(folder, dictionary, tmp_path):
    (tmp_path / "other").touch()
    assert dictionary.stat().st_mode == (tmp_path / "other").stat().st_mode


def test_warnings_are_told_plainly(folder, dictionary, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        done = run("reconstruct", folder / "1.png", "-d", dictionary, "-o", tmp_path / "r.png", "--penalty", 1e6)
    assert done.exit_code == 0
    assert done.stderr == "warning: all codes are zero: penalty=1e+06 is too large for these images. Lower it.\n"


def test_what_was_learned_outlasts_a_disk_that_is_full(folder, tmp_path, monkeypatch):
    path = tmp_path / "d.safetensors"
    command = ("learn", folder, "-o", path, "--atoms", 3, "--atom-size", 5, "--max-iter", 3)

    def full(*_, **__):
        raise OSError(f"cannot write {str(path)!r}: no room")

    with monkeypatch.context() as patch:
        patch.setattr(ConvDictionaryLearner, "save", full)
        assert run(*command).exit_code == 1
    patient = run(*command)
    assert patient.exit_code == 0
    assert "iteration" not in patient.stderr  # nothing is left to do
    assert {p.name for p in tmp_path.iterdir()} == {"pictures", "d.safetensors"}


def test_ctrl_c_saves_what_was_learned_and_the_same_command_goes_on(folder, tmp_path, monkeypatch):
    def interrupt(progress, max_iter, time_limit):
        if progress.iteration == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr("cogd.commands.sparse_coding._show_progress", interrupt)
    path = tmp_path / "d.safetensors"
    command = ("learn", folder, "-o", path, "--atoms", 3, "--atom-size", 5, "--max-iter", 5)
    result = run(*command)
    assert result.exit_code == 130
    assert "the same command goes on" in result.output
    assert "ended by interrupted" in result.output
    assert len(ConvDictionaryLearner.load(path).history_) == 2
    monkeypatch.undo()
    assert run(*command).exit_code == 0
    resumed = ConvDictionaryLearner.load(path)
    assert run(*command[:3], tmp_path / "whole", *command[4:]).exit_code == 0
    np.testing.assert_array_equal(resumed.dictionary_, ConvDictionaryLearner.load(tmp_path / "whole").dictionary_)
    assert {p.name for p in tmp_path.iterdir()} == {"pictures", "d.safetensors", "whole"}
