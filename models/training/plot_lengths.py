"""Loss and passkey accuracy by length as one SVG, from what the `lssar` program measured.

    lssar score --ids held_out.bin --lengths 1024,2048,4096,8192,16384 --json > loss.json
    lssar passkey --trials 20 --json > passkey.json
    plot_lengths.py loss.json passkey.json length.svg
"""
import json
import math
import sys

WIDTH, HEIGHT, LEFT, TOP, PLOT = 760, 300, 56, 44, (280, 190)
INK, GRID, BLUE, RED = "#334155", "#cbd5e1", "#2563eb", "#dc2626"


def text(x, y, what, anchor="middle", size=12, colour=INK):
    return (f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" '
            f'fill="{colour}">{what}</text>')


class Panel:
    """One plot: lengths on a logarithmic x axis, y from low to high."""

    def __init__(self, left, title, lengths, low, high, ticks, form):
        self.left, self.low, self.high = left, low, high
        self.first, self.last = math.log2(lengths[0]), math.log2(lengths[-1])
        width, height = PLOT
        self.parts = [text(left + width / 2, TOP - 16, title, size=14)]
        for tick in ticks:
            y = self.y(tick)
            self.parts.append(f'<path d="M{left} {y:.1f}h{width}" stroke="{GRID}"/>')
            self.parts.append(text(left - 8, y + 4, form(tick), "end"))
        for length in lengths:
            self.parts.append(text(self.x(length), TOP + height + 20, f"{length // 1024}K"))
        self.parts.append(text(left + width / 2, TOP + height + 42, "tokens (trained at 1K)"))

    def x(self, length):
        share = (math.log2(length) - self.first) / (self.last - self.first)
        return self.left + 16 + share * (PLOT[0] - 32)

    def y(self, value):
        return TOP + (self.high - value) / (self.high - self.low) * PLOT[1]

    def line(self, points, colour):
        path = "L".join(f"{self.x(x):.1f} {self.y(y):.1f}" for x, y in points)
        self.parts.append(f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        for x, y in points:
            self.parts.append(
                f'<circle cx="{self.x(x):.1f}" cy="{self.y(y):.1f}" r="4" fill="{colour}"/>')

    def interval(self, x, low, high, colour):
        self.parts.append(f'<path d="M{self.x(x):.1f} {self.y(low):.1f}V{self.y(high):.1f}" '
                          f'stroke="{colour}" stroke-width="6" stroke-opacity="0.25"/>')


def main():
    loss_path, passkey_path, svg_path = sys.argv[1:]
    with open(loss_path) as file:
        losses = [(row["length"], row["loss"]) for row in json.load(file)["lengths"]]
    with open(passkey_path) as file:
        passkeys = json.load(file)["lengths"]
    lengths = [length for length, _ in losses]

    loss = Panel(LEFT, "loss, nats a token", lengths, 3.0, 4.2, (3.0, 3.3, 3.6, 3.9, 4.2),
                 lambda tick: f"{tick:.1f}")
    loss.line(losses, BLUE)
    found = Panel(LEFT + 370, "passkeys found (95% interval)", lengths, 0, 1,
                  (0, 0.25, 0.5, 0.75, 1), lambda tick: f"{tick:.0%}")
    for row in passkeys:
        found.interval(row["length"], *row["interval95"], RED)
    found.line([(row["length"], row["accuracy"]) for row in passkeys], RED)

    with open(svg_path, "w") as file:
        file.write(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
                   f'font-family="sans-serif"><rect width="{WIDTH}" height="{HEIGHT}" '
                   'fill="white"/>\n')
        file.write("\n".join(loss.parts + found.parts) + "\n</svg>\n")


if __name__ == "__main__":
    main()
