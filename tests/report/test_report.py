"""The page as a text: what it says of each kind of results, and what it refuses."""

import json
import re
import shlex
from html.parser import HTMLParser
from importlib import resources

import numpy as np
import pytest
from report_files import (
    HOSTILE,
    RECIPE,
    script,
    write_benchmark,
    write_dictionary,
    write_pruned,
    write_pruning,
    write_restored,
    write_run,
    write_trainings,
)
from typer.testing import CliRunner

from cogd.cli import app
from cogd.commands.training import overrides
from cogd.provenance import provenance
from cogd.report import write_report
from cogd.report.collect import collect
from cogd.report.drawing import SERIES
from cogd.report.training import command, groups_of
from cogd.training import read_recipe

VOID = {"meta", "link", "img", "input", "br"}


class Outline(HTMLParser):
    """The headings, the identifiers, and whether every tag is closed in order."""

    def __init__(self, text):
        super().__init__()
        self.open, self.headings, self.ids, self.pictures = [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        named = dict(attributes)
        self.ids += [named["id"]] if "id" in named else []
        self.pictures += [named.get("alt")] if tag == "img" else []
        if tag not in VOID:
            self.open.append(tag)
        if re.fullmatch("h[1-6]", tag):
            self.headings.append(int(tag[1]))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def page(tmp_path, *paths):
    write_report(paths, tmp_path / "report.html")
    return (tmp_path / "report.html").read_text()


def test_a_section_for_each_kind_in_order(everything, tmp_path):
    text = page(tmp_path, everything)
    titles = re.findall(r"<h2[^>]*>(.*?)</h2>", text)
    assert titles == [
        "Missing pixels, restored",
        "A dictionary of atoms",
        "Beale&#39;s function",
        "Training a small CNN on digits",
        "Pruning a small CNN to 50% of its multiply-accumulates",
        "How a small CNN on digits was pruned",
        "Learning a dictionary, fruit set",
        "Overhead",
    ]


def test_the_html_is_well_formed_and_accessible(everything, tmp_path):
    outline = Outline(page(tmp_path, everything))
    assert outline.open == []
    assert len(set(outline.ids)) == len(outline.ids)
    assert outline.headings[0] == 1
    assert outline.headings.count(1) == 1
    assert all(after <= before + 1 for before, after in zip(outline.headings, outline.headings[1:], strict=False))
    assert outline.pictures
    assert all(outline.pictures)


def luminance(colour):
    """Return a colour's relative luminance, as WCAG 2 defines it."""
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_colour_stands_out_from_the_paper(scheme):
    """WCAG 2, AA: text at least 4.5 to 1 on either background, lines and areas at least 3 to 1."""
    css = (resources.files("cogd.report") / "templates" / "page.css").read_text()
    roots = [dict(re.findall(r"--([\w-]+): (#\w{6})", root)) for root in re.findall(r":root \{(.*?)\}", css, re.DOTALL)]
    colours = dict(zip(("light", "dark"), roots, strict=True))[scheme]
    needed = {"ink": 4.5, "muted": 4.5, "link": 4.5, **{f"series-{i}": 3.0 for i in range(len(SERIES))}}
    for name, ratio in needed.items():
        for background in ("paper", "wash"):
            dark, light = sorted(map(luminance, (colours[name], colours[background])))
            assert (light + 0.05) / (dark + 0.05) >= ratio, f"{name} on {background}"


def test_nothing_is_loaded_from_elsewhere(everything, tmp_path):
    text = page(tmp_path, everything)
    addresses = re.findall(r'(?:src|href)="([^"]*)"|url\(([^)]*)\)', text)
    assert addresses
    assert all((a or b).startswith(("data:", "#")) for a, b in addresses)
    assert "@import" not in text


def test_training_says_means_deviations_and_the_paired_test(tmp_path):
    write_trainings(tmp_path / "runs")
    text = page(tmp_path, tmp_path / "runs")
    assert "plain 90.00% ± 0.00 (n = 3); cogd 92.00% ± 1.00 (n = 3)." in text
    assert "cogd less plain: +2.00 points, within what chance explains (p = 0.07)." in text
    assert "plain goes from 50.00% to 90.00% in 3 epochs" in text


def commands(text):
    """Return the commands on a page, without the marks that keep their words whole."""
    return [re.sub(r"</?span>", "", command) for command in re.findall(r"<code>(.*?)</code>", text)]


def test_the_command_makes_the_run_again(tmp_path):
    write_run(tmp_path / "a run", 7, [0.5], rule="rollback")
    (command,) = commands(page(tmp_path, tmp_path / "a run"))
    assert command.startswith("cogd train --data digits --model digits --seed 7 --epochs 3 --rule rollback")
    assert command.endswith("a run&#39;")


def test_the_seeds_of_a_folder_are_one_command(tmp_path):
    write_trainings(tmp_path / "runs")
    found = commands(page(tmp_path, tmp_path / "runs"))
    assert len(found) == 2
    assert all("--seed 0 --seeds 3" in command for command in found)


def test_the_command_leaves_out_seeds_that_were_not_run_and_says_the_precision(tmp_path):
    for seed in (0, 1, 5):
        write_run(tmp_path / "r" / f"seed-{seed}", seed, [0.5])
    (found,) = commands(page(tmp_path, tmp_path / "r"))
    first, second = found.split(" &amp;&amp; ")
    assert "--seed 0 --seeds 2" in first
    assert "--seed 5 --seeds 1" in second
    assert "--precision float32" in first
    assert "--precision float32" in second


def test_runs_that_have_not_come_far_enough(tmp_path):
    write_run(tmp_path / "begun", 0, [], finished=False)
    with pytest.raises(ValueError, match=r"no run in .*begun has finished an epoch yet"):
        write_report([tmp_path / "begun"], tmp_path / "report.html")


def test_a_command_makes_what_it_says(tmp_path):
    """The printed command, run, makes a config that prints the same command."""
    write_run(tmp_path / "x", 3, [0.5], rule="paper")
    (group,) = groups_of(collect([tmp_path / "x"])[0])
    words = shlex.split(command(group) or "")
    recipe = read_recipe("digits", **overrides(words[words.index("--seed") + 2 : words.index("-o")]))
    assert {name: getattr(recipe, name) for name in RECIPE} == {**RECIPE, "rule": "paper"}


def test_an_unfinished_run_is_shown_as_such(tmp_path):
    write_run(tmp_path / "x" / "seed-0", 0, [0.5, 0.6], finished=False)
    log = tmp_path / "x" / "seed-0" / "log.jsonl"
    log.write_text(log.read_text() + '{"event": "epo')
    text = page(tmp_path, tmp_path / "x")
    assert "No run is finished yet" in text
    assert "0 of 1" in text


def test_one_restored_picture(tmp_path):
    write_restored(tmp_path / "deep.png", name="deep", dtype=np.uint16)
    text = page(tmp_path, tmp_path / "deep.json")
    assert text.count("data:image/png") == 4  # missing and restored, restored and original
    assert re.search(r"deep: \d+% of the pixels filled in, PSNR [\d.]+ dB", text)


def test_a_pruned_network_says_what_it_kept_and_what_that_cost(tmp_path):
    write_pruned(tmp_path / "small")
    text = page(tmp_path, tmp_path / "small")
    assert "50.0% of the multiply-accumulates and 53.0% of the parameters stay." in text
    assert "Accuracy 99.00% before, 90.00% with the channels removed, 98.00% fine-tuned." in text
    assert "A forward pass is faster: 1.25 times as fast." in text
    assert "Fewer MACs did not mean as much less time." in text
    assert "Channels kept: layer0.conv1 8 of 16; layer1.conv1 9 of 18." in text
    assert re.search(r'>accuracy</th><td class="number">99.00%</td>.*?>−1.00</td>', text)


def test_the_benchmark_says_who_was_where_when(tmp_path):
    write_benchmark(tmp_path)
    text = page(tmp_path, tmp_path / "sparse_coding_fruit.json")
    assert "CoGD reaches 51.0 (n = 2); sporco reaches 60.0 (n = 1). Lower is better." in text
    rows = [re.sub("<[^>]*>", "|", row) for row in re.findall(r"<tr>(.*?)</tr>", text)]
    assert "|sporco, seed 0||60.0||5.0 s||1.00 s|" in rows
    assert "|CoGD, cold||0.50 s||7.5e-04|" in rows
    assert "|sporco, cold||never||2.5e-02|" in rows
    assert "<dt>sporco.rho</dt><dd>10</dd>" in text
    said = "python benchmarks/sparse_coding.py --sets fruit --seeds 0 1 --seconds 9 --search-seconds 8 --slots 1"
    assert commands(text) == [said]
    assert "mathdefault" not in text


def test_a_table_shows_what_is_nested_in_its_rows(everything, tmp_path):
    text = page(tmp_path, everything / "overhead.json")
    assert text.count('<th scope="col" class="number">overhead percent: whole steps</th>') == 2
    assert text.count('<td class="number">0.61</td>') == 2
    assert "speed: rows." in text
    assert re.search(r">images</th><td[^>]*>50</td>", text)


def test_a_study_that_several_sessions_made_is_in_the_report(tmp_path):
    study = script("experiments/csc_study.py")
    results = study["_earlier"](tmp_path / "reconstruction.json", study["QUICK"])
    for commit in ("a1", "b2"):
        study["begin"](results, {**provenance(), "commit": commit, "processes": 6})
    results["runs"].append({"set": "fruit", "solver": "ffcsc", "made_with": 1, "images": {"psnr": [27.0]}})
    (tmp_path / "reconstruction.json").write_text(study["dump"](results))
    text = page(tmp_path, tmp_path)
    assert '<h2 id="result-1">Reconstruction</h2>' in text
    assert "<dt>commit</dt><dd>b2</dd>" in text
    assert "3 rows from" in text  # the run, and the two sessions


def test_many_layers_are_columns(tmp_path):
    write_pruned(tmp_path / "small", layers=54)
    text = page(tmp_path, tmp_path / "small")
    assert "layer, from the input on" in text
    assert "54 rows" in text


@pytest.mark.parametrize("kept", [True, False])
def test_a_network_saved_without_figures_is_left_out(tmp_path, kept):
    write_pruned(tmp_path / "runs" / "small", report=False)
    if not kept:
        file = tmp_path / "runs" / "small" / "recipe.json"
        recipe = json.loads(file.read_text())
        del recipe["report"]
        file.write_text(json.dumps(recipe))
    write_dictionary(tmp_path / "runs" / "d.safetensors")
    (reason,) = write_report([tmp_path / "runs"], tmp_path / "report.html")
    assert "recipe.json' was saved without" in reason


def test_more_series_than_colours_begin_them_anew(tmp_path):
    for number in range(10):
        write_run(tmp_path / "runs" / f"way{number}", 0, [0.5, 0.6])
    text = page(tmp_path, tmp_path / "runs")
    used = {int(number) for number in re.findall(r"var\(--series-(\d+)\)", text)}
    assert max(used) < len(SERIES)
    assert text.count('stroke="var(--series-1)"') == 2


@pytest.mark.parametrize("tuned", [True, False])
def test_a_pruning_run_shows_both_phases_in_a_row(tmp_path, tuned):
    write_pruning(tmp_path / "p", tuned)
    text = page(tmp_path, tmp_path / "p")
    assert "learning masks from 90.00% to 80.00%" in text
    assert ("fine-tuning from 85.00% to 95.00%" in text) == tuned
    assert "Channels at zero" in text
    assert "Training DigitsCNN" not in text


def test_hostile_names_are_text(tmp_path):
    write_pruned(tmp_path / "runs" / "small", name=HOSTILE)
    write_run(tmp_path / "runs" / "<b>bold</b>$x$", 0, [0.5, 0.6], name=HOSTILE)
    write_run(tmp_path / "runs" / "_plain", 0, [0.5, 0.6], name=HOSTILE)
    write_restored(tmp_path / "runs" / "cat.png", name=HOSTILE)
    write_report([tmp_path / "runs"], tmp_path / "r.html", title=HOSTILE)
    text = (tmp_path / "r.html").read_text()
    assert "<b>" not in text
    assert "<img src=x" not in text
    assert text.count("<script>") == 1
    assert Outline(text).open == []


def test_a_path_given_twice_is_shown_once(tmp_path):
    write_dictionary(tmp_path / "d.safetensors")
    text = page(tmp_path, tmp_path / "d.safetensors", tmp_path)
    assert text.count("<h2") == 1


def test_the_command_line(everything, tmp_path):
    done = CliRunner().invoke(app, ["report", str(everything), "-o", str(tmp_path / "new" / "r.html")])
    assert done.exit_code == 0, done.output
    assert done.stdout.strip() == str(tmp_path / "new" / "r.html")
    assert "other.json" in done.stderr
    assert (tmp_path / "new" / "r.html").exists()


def test_no_runs_is_a_usage_error():
    done = CliRunner().invoke(app, ["report"])
    assert done.exit_code == 2
    assert "RUNS" in done.stderr


def damaged_log(folder):
    write_run(folder / "run", 0, [0.5])
    (folder / "run" / "log.jsonl").write_text('{"event": "epoch", "epoch": 1}\n')
    return folder, "log.jsonl"


def half_a_line(folder):
    write_run(folder / "run", 0, [0.5])
    (folder / "run" / "log.jsonl").write_text('{"event": \n')
    return folder, "line 1"


def no_config(folder):
    write_run(folder / "run", 0, [0.5])
    (folder / "run" / "config.json").unlink()
    return folder, "config.json"


def no_picture(folder):
    write_restored(folder / "cat.png")
    (folder / "cat.holes.png").unlink()
    return folder, "cat.holes.png"


def cut_dictionary(folder):
    write_dictionary(folder / "d.safetensors")
    (folder / "d.safetensors").write_bytes((folder / "d.safetensors").read_bytes()[:-40])
    return folder, "d.safetensors"


def cut_json(folder):
    (folder / "b.json").write_text('{"versions": ')
    return folder, "b.json"


def wrong_type(folder):
    (folder / "b.json").write_text(json.dumps({"versions": {}, "settings": {}, "beale": {"sgd": {"plain": "x"}}}))
    return folder, "beale.sgd.plain"


@pytest.mark.parametrize(
    "spoil", [damaged_log, half_a_line, no_config, no_picture, cut_dictionary, cut_json, wrong_type]
)
def test_a_damaged_file_is_named(tmp_path, spoil):
    path, named = spoil(tmp_path)
    done = CliRunner().invoke(app, ["report", str(path), "-o", str(tmp_path / "r.html")])
    assert done.exit_code == 1
    assert named in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "r.html").exists()


@pytest.mark.parametrize(("name", "message"), [("nowhere", "no file or folder"), ("", "nothing for a report")])
def test_paths_without_results(tmp_path, name, message):
    (tmp_path / "empty").mkdir()
    done = CliRunner().invoke(app, ["report", str(tmp_path / (name or "empty"))])
    assert done.exit_code == 1
    assert message in done.stderr


def test_other_files_are_refused_when_named(tmp_path):
    (tmp_path / "a.json").write_text("[1]")
    (tmp_path / "a.txt").write_text("1")
    for name in ("a.json", "a.txt"):
        done = CliRunner().invoke(app, ["report", str(tmp_path / name)])
        assert done.exit_code == 1
        assert "no results file" in done.stderr
