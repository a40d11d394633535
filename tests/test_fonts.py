"""Letters of any script in figures: in a font that has them, or named in one sentence."""

import hashlib
import logging
import warnings

import numpy as np
import pytest
from matplotlib import font_manager
from matplotlib.figure import Figure
from PIL import Image

from pellucid.views import fonts
from pellucid.views.figures import save_figure
from pellucid.views.fonts import choose_fonts, describe_lacking

NOWHERE = "\U00013000"  # a hieroglyph: two fonts in the world have it


def labelled(*names: str) -> Figure:
    figure = Figure(figsize=(3, 2), layout="constrained")
    ax = figure.subplots()
    ax.set_xticks(range(len(names)), names)
    return figure


def drawn(figure, path):
    save_figure(figure, path)
    return hashlib.sha256(np.asarray(Image.open(path)).tobytes()).hexdigest()


def needs(letters: str) -> None:
    if choose_fonts(letters)[1]:
        pytest.skip(f"no font for {letters} on this machine (Debian: fonts-wqy-zenhei or fonts-noto-cjk)")


@pytest.fixture(autouse=True)
def anew():
    fonts._say.cache_clear()


def test_scripts_that_the_usual_font_has_need_no_other():
    assert choose_fonts("Straße кот γάτα قط ½ →") == ([], [])


@pytest.mark.parametrize("suffix", [".png", ".pdf", ".svg"])
def test_a_letter_that_no_font_has_is_named_in_a_sentence_and_nothing_else_is_said(
    suffix, tmp_path, caplog, monkeypatch
):
    usual = [font for font in font_manager.fontManager.ttflist if font.name == fonts.USUAL]
    monkeypatch.setattr(font_manager.fontManager, "ttflist", usual)
    monkeypatch.setattr(font_manager, "findSystemFonts", list)
    fonts._covered.cache_clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        save_figure(labelled("cat", f"猫 {NOWHERE}"), tmp_path / f"figure{suffix}")
        save_figure(labelled("cat", f"猫 {NOWHERE}"), tmp_path / f"again{suffix}")
    assert [record.message for record in caplog.records] == [describe_lacking(["猫", NOWHERE])]
    assert "fonts-noto-cjk" in caplog.text
    assert "site-packages" not in caplog.text


def test_names_in_another_script_are_drawn_in_a_font_that_has_them(tmp_path, caplog):
    needs("猫犬")
    figures = [drawn(labelled("cat", name), tmp_path / "figure.png") for name in ("猫", "犬", "猫")]
    assert figures[0] == figures[2]
    assert figures[0] != figures[1]  # boxes would be alike
    assert not caplog.records


def test_titles_keep_the_usual_font_where_it_has_the_letters():
    needs("猫")
    plain, mixed = labelled("cat"), labelled("cat")
    title, other = plain.suptitle("a cat"), mixed.suptitle("a 猫")
    with fonts.fonts_for(plain), fonts.fonts_for(mixed):
        assert title.get_fontfamily() == ["sans-serif"]
        assert other.get_fontfamily()[0] == "sans-serif"
        assert len(other.get_fontfamily()) == 2


def test_a_font_installed_since_is_found(monkeypatch):
    needs("猫")
    known = [font for font in font_manager.fontManager.ttflist if "DejaVu" in font.name]
    monkeypatch.setattr(font_manager.fontManager, "ttflist", known)
    families, lacking = choose_fonts("猫")
    assert (len(families), lacking) == (1, [])


def test_files_that_are_no_fonts_are_passed_over(tmp_path, monkeypatch):
    broken = tmp_path / "broken.ttf"
    broken.write_bytes(b"no font")
    monkeypatch.setattr(font_manager, "findSystemFonts", lambda: [str(broken)])
    assert choose_fonts(NOWHERE + "\uffff")[1][-1] in (NOWHERE, "\uffff")


def test_the_log_of_fonts_speaks_again_afterwards(tmp_path):
    level = fonts.FONT_LOG.level
    save_figure(labelled("猫"), tmp_path / "a.png")
    assert fonts.FONT_LOG.level == level == logging.NOTSET
