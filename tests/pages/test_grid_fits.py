"""The picture of an attack: nothing of it lies outside, however few columns it has and however much is said above them."""

from __future__ import annotations

import torch
from looped import each

from fedpriv.pages.grid import Column, draw_columns

TITLE = "posterior over rounds on prototype uploads of fedproto-with-a-long-label, a-folder-of-images-with-a-long-name"
SUBTITLE = (
    "mean PSNR 12.3 dB, advantage over the floor +1.2 dB (95 % interval -0.4 to 2.8), 48 targets of 8 clients, chosen by "
    "fixed quantiles of the score\nextractor: white box · labels: given · batch: size, order, learning rate and steps · "
    "batch norm: running · attacker data: same domain · rounds seen: 30 · server view: each upload"
)


def figure(columns: int, title: str = TITLE, subtitle: str = SUBTITLE):
    cells = tuple((torch.rand(1, 8, 8), "12.3 dB") for _ in range(3))
    made = [Column("10 % quantile", "client 7 · round 30 · class 9", cells, True) for _ in range(columns)]
    return draw_columns(["truth", "reconstruction", "floor:\nmean image of\nthe class"], made, title, subtitle)


def boxes(drawn) -> list:
    renderer = drawn.canvas.get_renderer()
    return [text.get_window_extent(renderer) for text in drawn.texts if text.get_text()]


@each("columns", range(1, 9))
def test_no_text_lies_outside_the_picture(columns):
    drawn = figure(columns)
    for box in boxes(drawn):
        assert min(box.x0, box.y0) >= 0
        assert box.x1 <= drawn.bbox.x1
        assert box.y1 <= drawn.bbox.y1


@each("columns", [1, 5, 10])
def test_all_that_is_said_is_there_and_covers_nothing(columns):
    drawn = figure(columns)
    title, subtitle, *rest = drawn.texts
    assert title.get_text().replace("\n", " ") == TITLE
    assert subtitle.get_text().split() == SUBTITLE.split()
    over, under, *others = boxes(drawn)
    assert over.y0 >= under.y1
    assert under.y0 >= max(box.y1 for box in others)
    assert under.y0 >= max(axes.get_window_extent().y1 for axes in drawn.axes)
    assert len(rest) == len(others)


def test_a_word_wider_than_the_picture_is_broken():
    drawn = figure(1, title="w" * 300)
    assert drawn.texts[0].get_text().replace("\n", "") == "w" * 300
    assert all(box.x1 <= drawn.bbox.x1 for box in boxes(drawn))
