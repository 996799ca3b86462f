"""How figures become SVG."""

from __future__ import annotations

import io

import numpy as np

from fedmend.report import plots


def _figure():
    figure, axes = plots.new_figure(7.6, 4.0, columns=2, rows=2, heights=(2, 1))
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


def test_names_in_any_script_are_kept_as_text() -> None:
    with plots.styled():
        figure, (axes,) = plots.new_figure(4.0, 2.0)
        axes.set_title("年龄, возраст, 🙂 & <b>")
        drawn = plots.to_svg(figure, "one", "any")
    assert "年龄, возраст, 🙂 &amp; &lt;b&gt;" in drawn


def test_figures_of_one_page_share_no_ids_and_no_colours_of_their_own() -> None:
    with plots.styled():
        one, two = (plots.to_svg(_figure(), name, "a < b") for name in ("one", "two"))
    assert 'aria-label="a &lt; b"' in one
    assert 'id="one-' in one
    assert 'id="one-' not in two
    assert plots.INK not in one
    assert "var(--ink)" in one
    assert "var(--" not in plots.standalone(one)


def test_methods_a_hair_apart_do_not_stand_at_the_two_ends() -> None:
    with plots.styled():
        _, (axes,) = plots.new_figure(4.0, 2.0)
        axes.plot([0.8120, 0.8125], [0, 1])
        plots._not_too_close(axes, "auc")
        low, high = axes.get_xlim()
        assert high - low >= 0.0199 and abs((low + high) / 2 - 0.81225) < 1e-9
        axes.set_xlim(3.0, 3.001)
        plots._not_too_close(axes, "rmse")
        assert axes.get_xlim() == (3.0, 3.001)
