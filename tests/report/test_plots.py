"""How figures become SVG."""

from __future__ import annotations

import io
from xml.etree import ElementTree

import numpy as np

from fedmend.report import plots
from fedmend.report.overview import Overview


def _figure():
    figure, axes = plots.new_figure(4.0, columns=2, rows=2, heights=(2, 1))
    axes[0].bar(range(5), range(5), label="right")
    axes[0].set(xlabel="tenth of rows", title="share of errors")
    axes[0].legend(frameon=False)
    picture = axes[1].imshow(np.arange(12).reshape(3, 4))
    figure.colorbar(picture, ax=axes[1])
    axes[2].plot([0, 1], [2, 3])
    axes[2].annotate("here", (0.5, 2.5))
    figure.supxlabel("epoch")
    return figure


def test_a_figure_is_drawn_as_matplotlib_saves_it() -> None:
    with plots.styled():
        whole = io.StringIO()
        _figure().savefig(whole, format="svg", metadata={"Date": None, "Creator": None})
        assert plots._drawn(_figure()) == whole.getvalue()


def test_figures_of_one_page_share_no_ids_and_no_colours_of_their_own(record) -> None:
    with plots.styled():
        one, two = (plots.to_svg(_figure(), name, "a < b") for name in ("one", "two"))
    assert 'aria-label="a &lt; b"' in one
    assert 'id="one-' in one and 'id="one-' not in two
    assert plots.INK not in one and "var(--ink)" in one
    overlap = plots.overlap(Overview.from_dict(record.overview))
    for svg in (plots.comparison(record), plots.curves(record), overlap):
        assert svg is not None
        ElementTree.fromstring(svg)
        assert "var(--" in svg and "#0201" not in svg and "#0102" not in svg
        alone = plots.standalone(svg)
        ElementTree.fromstring(alone)
        assert "var(" not in alone


def test_pictures_keep_what_their_styles_said() -> None:
    """As attributes: the same colours and widths, no style, and still XML; any script as text."""
    with plots.styled():
        figure, (axes,) = plots.new_figure(3)
        axes.plot([1, 2], [3, 4], "--", color=plots.SERIES[0], alpha=0.5, linewidth=3)
        axes.bar([1, 2], [1, 2], color="#123456")
        axes.set_title("年龄, возраст, 🙂 & <b>")
        drawn = plots.to_svg(figure, "some", "a <title>")
    nodes = list(ElementTree.fromstring(drawn).iter())
    assert not any("style" in node.attrib or node.tag.endswith("style") for node in nodes)
    assert any(node.get("fill") == "#123456" for node in nodes)
    line = next(node for node in nodes if node.get("stroke-dasharray"))
    assert line.get("stroke") == "var(--s1)" and line.get("fill") == "none"
    assert (line.get("stroke-width"), line.get("stroke-opacity")) == ("3", "0.5")
    words = [node for node in nodes if node.tag.endswith("text")]
    assert "年龄, возраст, 🙂 & <b>" in [node.text for node in words]
    assert all(node.get("font-size") and not node.get("font-family") for node in words)


def test_methods_a_hair_apart_do_not_stand_at_the_two_ends() -> None:
    with plots.styled():
        _, (axes,) = plots.new_figure(2.0)
        axes.plot([0.8120, 0.8125], [0, 1])
        plots._not_too_close(axes, "auc")
        low, high = axes.get_xlim()
        assert high - low >= 0.0199 and abs((low + high) / 2 - 0.81225) < 1e-9
        axes.set_xlim(3.0, 3.001)
        plots._not_too_close(axes, "rmse")
        assert axes.get_xlim() == (3.0, 3.001)
