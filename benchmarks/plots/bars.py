"""Bars as an SVG file, without any package."""

import html

INK, PALE, COLOURS = "#24292f", "#d0d7de", ("#0969da", "#bf8700", "#1a7f37", "#8250df")


def label(x, y, text, anchor="start", size=12, weight="normal"):
    return ('<text x="%g" y="%g" text-anchor="%s" font-size="%g" font-weight="%s" fill="%s">%s</text>'
            % (x, y, anchor, size, weight, INK, html.escape(text)))


def bars(title, groups, series, unit):
    """The picture: a row of bars for each group ("name", [number of each series, or None]).

    The bars of a series have one colour; all have one scale, and each has its number beside it.
    """
    names = 120 + max(0, max(len(name) for name, _ in groups) - 14) * 7
    width, bar, room = 420, 13, 12
    most = max(number for _, numbers in groups for number in numbers if number is not None)
    out, y = [], 52
    for at, name in enumerate(series):
        x = names + at * 130
        out.append('<rect x="%g" y="30" width="11" height="11" fill="%s"/>' % (x, COLOURS[at]))
        out.append(label(x + 16, 40, name))
    for name, numbers in groups:
        out.append(label(names - 8, y + bar * len(numbers) / 2 + 4, name, "end"))
        for at, number in enumerate(numbers):
            if number is not None:
                out.append('<rect x="%g" y="%g" width="%.1f" height="%g" fill="%s"/>'
                           % (names, y, max(1, width * number / most), bar - 2, COLOURS[at]))
            shown = "-" if number is None else "%.3g%s" % (number, unit)
            out.append(label(names + (0 if number is None else width * number / most) + 5, y + bar - 3, shown, size=11))
            y += bar
        y += room
    out.insert(0, '<line x1="%g" y1="48" x2="%g" y2="%g" stroke="%s"/>' % (names, names, y - room / 2, PALE))
    out.insert(0, label(10, 18, title, size=13, weight="bold"))
    head = ('<svg xmlns="http://www.w3.org/2000/svg" width="{0}" height="{1}" viewBox="0 0 {0} {1}" '
            'font-family="sans-serif">\n<rect width="{0}" height="{1}" fill="white"/>\n')
    return head.format(names + width + 90, y) + "\n".join(out) + "\n</svg>\n"
