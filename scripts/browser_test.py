#!/usr/bin/env python3
"""Explores pages of reports in a browser, and compares what it shows with the pages' data.

    browser_test.py SCREENSHOTS PAGE...

In a page of the name spoilt.html, the picture heatmap-pages cannot be drawn, and that is all that is looked at.
Uses the DevTools protocol over a pipe. Exits with 1 if something is wrong.
"""

import base64
import fcntl
import itertools
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile
import time

BROWSER = "chromium-headless-shell"
# A page is drawn this soon, in seconds. KVMTRACE_SOON is another limit, for machines that do much else.
SOON = float(os.environ.get("KVMTRACE_SOON", "2"))
# A page has at most so many bytes.
SIZE = 5_000_000


class Browser:
    """A browser with one page."""

    def __init__(self, profile):
        read, to = os.pipe()
        self.answers, back = os.pipe()
        # The browser's ends become 3 and 4, and must not be one of them before.
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (read, back)]
        self.process = subprocess.Popen(
            ["bash", "-c", 'exec "${@:3}" 3<&"$1" 4>&"$2"', "bash", *map(str, ends),
             BROWSER, "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", f"--user-data-dir={profile}",
             "--window-size=1120,900"],
            pass_fds=ends, stderr=subprocess.DEVNULL)
        for end in (read, back, *ends):
            os.close(end)
        self.commands, self.rest, self.numbers, self.events = to, b"", itertools.count(1), []
        self.session = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def message(self):
        """The next message of the browser."""
        while b"\0" not in self.rest:
            more = os.read(self.answers, 1 << 20)
            if not more:
                raise SystemExit("the browser has ended")
            self.rest += more
        text, _, self.rest = self.rest.partition(b"\0")
        return json.loads(text)

    def call(self, method, **parameters):
        """What the browser answers to a command. Events that come meanwhile are kept."""
        number = next(self.numbers)
        command = {"id": number, "method": method, "params": parameters}
        if self.session:
            command["sessionId"] = self.session
        os.write(self.commands, json.dumps(command).encode() + b"\0")
        while (answer := self.message()).get("id") != number:
            self.events.append(answer)
        if "error" in answer:
            raise SystemExit(f"{method}: {answer['error']}")
        return answer["result"]

    def value(self, expression):
        """The value of an expression of the page, which may be a promise."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise SystemExit(f"{expression}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def open(self, page):
        """Goes to a page. Returns the seconds from then until its pictures are drawn."""
        self.events.clear()
        begun = time.monotonic()
        self.call("Page.navigate", url=page.resolve().as_uri())
        while not self.value("globalThis.kvmtrace?.drawn ?? 0"):
            if time.monotonic() - begun > 60:
                raise SystemExit(f"{page}: not drawn; {self.complaints()}")
            time.sleep(0.01)
        return time.monotonic() - begun

    def complaints(self):
        """What the browser had to say about the page."""
        kinds = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")
        return [event for event in self.events if event.get("method") in kinds]

    def mouse(self, kind, x, y, **more):
        """Moves or presses the mouse."""
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def drag(self, start, end):
        """Drags from one point to another."""
        pressed = {"button": "left", "buttons": 1, "clickCount": 1}
        self.mouse("mouseMoved", *start)
        self.mouse("mousePressed", *start, **pressed)
        for step in range(1, 6):
            self.mouse("mouseMoved", *(a + (b - a) * step / 5 for a, b in zip(start, end)), button="left", buttons=1)
        self.mouse("mouseReleased", *end, **pressed)
        self.settle()

    def double_click(self, x, y):
        """Clicks twice."""
        for count in (1, 2):
            self.mouse("mousePressed", x, y, button="left", clickCount=count)
            self.mouse("mouseReleased", x, y, button="left", clickCount=count)
        self.settle()

    def key(self, key):
        """Presses a key."""
        text = {"text": key} if len(key) == 1 else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key)
        self.settle()

    def settle(self):
        """Waits until what was asked for is drawn."""
        self.value("new Promise(done => setTimeout(() => requestAnimationFrame(() => done(0)), 30))")

    def screenshot(self, path):
        """Writes the whole page as an image."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        image = self.call("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)["data"]
        path.write_bytes(base64.b64decode(image))


def number(text):
    """The number at the beginning of a text."""
    return float("nan" if text == "–" else text.removeprefix("at most ").split()[0].replace(",", ""))


def quantity(text):
    """A number with a unit, as names of lines have it."""
    units = {"ns": 1, "µs": 1e3, "ms": 1e6, "s": 1e9, "k": 1e3, "M": 1e6, "G": 1e9}
    count, _, unit = text.partition(" ")
    return round(float(count.replace(",", "")) * units.get(unit, 1))


def at_size(steps, points, size, text):
    """Whether the text is the number of misses of a line at a size. `steps`: it holds up to the next point. Otherwise the
    text may be of another size, and has it then."""
    if " at " in text:
        size = number(text.split(" at ")[1])
        steps = False
    known = [point for at, point in points if at == size or steps and at < size][-1:]
    if text == "–" or not known:
        return text == "–" and not known
    wanted = max(0.5, known[0]["misses"])
    if "low" in known[0] and f"({max(0.5, known[0]['low']):,.10g} – {max(0.5, known[0]['high']):,.10g})" not in text:
        return False
    return abs(number(text) - wanted) <= max(0.01, wanted * 1e-6)


class Page:
    """A page in a browser, and what is wrong with it."""

    def __init__(self, browser, path):
        self.browser, self.path, self.wrong = browser, path, []

    def check(self, right, words):
        """Notes what is wrong."""
        if not right:
            self.wrong.append(f"{self.path}: {words}")

    def ranges(self):
        """The x that each picture shows."""
        return self.browser.value(
            "Object.fromEntries([...kvmtrace.charts].map(([id, u]) => [id, [u.scales.x.min, u.scales.x.max]]))")

    def box(self, name):
        """Where a picture is in the window, after it was scrolled there."""
        return self.browser.value(f"""(() => {{
            const over = kvmtrace.charts.get({json.dumps(name)}).over;
            over.scrollIntoView({{block: 'center', behavior: 'instant'}});
            const box = over.getBoundingClientRect();
            return [box.left, box.top, box.width, box.height];
        }})()""")

    def at(self, name, x, y):
        """A point of a picture, given by shares of its width and height."""
        left, top, width, height = self.box(name)
        return left + x * width, top + y * height

    def read_off(self, name):
        """What the legend of a picture says: the texts and the values."""
        return self.browser.value(f"""[...kvmtrace.charts.get({json.dumps(name)}).root.querySelectorAll('.u-series:not(.bound)')]
            .map(row => [row.querySelector('.u-label').textContent, row.querySelector('.u-value').textContent])""")

    def run(self, screenshots):
        """All checks."""
        size = self.path.stat().st_size
        self.check(size < SIZE, f"{size} bytes")
        took = self.browser.open(self.path)
        self.check(took < SOON, f"drawn after {took:.2f} s")
        kinds = self.browser.value("""Object.fromEntries([...kvmtrace.figures].map(([id, one]) =>
            [id, [one.data.kind, one.explored?.over_time ?? null, one.figure.classList.contains('later')]]))""")
        drawn = self.ranges()
        seen = {name for name, (_, over_time, later) in kinds.items() if over_time is not None and not later}
        self.check(set(drawn) == seen, f"drawn are {sorted(drawn)}, and not {sorted(seen)}")
        self.check(self.browser.value(
            "[...document.querySelectorAll('figure.drawn > svg')].every(svg => getComputedStyle(svg).display === 'none')"),
            "a picture is there twice")
        linked = [name for name in drawn if kinds[name][1]]
        comparison = any(kind == "misses" for kind, *_ in kinds.values())
        self.check(comparison or len(linked) >= 2, f"linked are only {linked}")
        self.browser.screenshot(screenshots / f"{self.path.stem}.png")
        for name in linked:
            self.zoom(name, linked)
        for name in linked:
            self.cursor(name, linked)
            if kinds[name][0] == "heatmap":
                self.rows(name)
        self.alone(drawn, linked)
        self.peak()
        if linked:
            self.keys(linked)
            self.later(kinds)
        self.by_keys(drawn, kinds)
        self.values(drawn)
        self.saved(kinds)
        self.printed()
        if linked:
            self.browser.drag(self.at(linked[0], 0.2, 0.4), self.at(linked[0], 0.45, 0.45))
            self.browser.mouse("mouseMoved", *self.at(linked[0], 0.5, 0.3))
            self.browser.settle()
            self.browser.screenshot(screenshots / f"{self.path.stem}-zoomed.png")
        self.check(not self.browser.complaints(), f"complaints: {self.browser.complaints()}")
        print(f"{self.path}: {size} bytes, {len(drawn)} pictures, {len(linked)} of them linked, drawn after {took:.2f} s")
        return self.wrong

    def zoom(self, name, linked):
        """A drag in one picture zooms all that are linked; a double click shows the whole in all."""
        before = self.ranges()
        self.browser.drag(self.at(name, 0.25, 0.5), self.at(name, 0.75, 0.52))
        after = self.ranges()
        whole = before[name][1] - before[name][0]
        for other in linked:
            low, high = after[other]
            self.check(abs(high - low - whole / 2) < whole / 50, f"a drag in {name}: {other} shows {low} to {high}")
            self.check(after[other] == after[name], f"a drag in {name}: {other} shows another time")
        self.check(all(after[other] == before[other] for other in after if other not in linked), "others were zoomed, too")
        self.browser.double_click(*self.at(name, 0.5, 0.5))
        self.check(self.ranges() == before, f"a double click in {name} does not show all: {self.ranges()}")

    def cursor(self, name, linked):
        """The cursor is at the same time in all linked pictures."""
        self.browser.mouse("mouseMoved", *self.at(name, 0.4, 0.6))
        self.browser.settle()
        times = self.browser.value(
            "Object.fromEntries([...kvmtrace.charts].map(([id, u]) => [id, u.cursor.left >= 0 ? u.posToVal(u.cursor.left, 'x') : null]))")
        low, high = self.ranges()[name]
        wanted = low + 0.4 * (high - low)
        for other in linked:
            there = times[other] is not None and abs(times[other] - wanted) < (high - low) / 200
            self.check(there, f"cursor in {name} at {wanted}: {other} has {times[other]}")

    def rows(self, name):
        """A drag upwards in a heat map zooms its rows, which stay when the time is zoomed."""
        rows = lambda: self.browser.value(f"(({{min, max}}) => [min, max])(kvmtrace.charts.get({json.dumps(name)}).scales.y)")
        shown = lambda: self.browser.value(f"!kvmtrace.charts.get({json.dumps(name)}).whole.hidden")
        before, time_before = rows(), self.ranges()
        self.browser.drag(self.at(name, 0.5, 0.75), self.at(name, 0.505, 0.25))
        after = rows()
        half = (before[1] - before[0]) / 2
        self.check(abs(after[1] - after[0] - half) < half / 20, f"{name}: rows {after} after a drag upwards")
        self.check(self.ranges() == time_before, f"{name}: a drag upwards has zoomed the time")
        self.check(shown(), f"{name}: no button to show all rows")
        self.browser.drag(self.at(name, 0.3, 0.5), self.at(name, 0.6, 0.5))
        self.check(rows() == after, f"{name}: rows {rows()}, and before the time was zoomed {after}")
        self.browser.value(f"kvmtrace.charts.get({json.dumps(name)}).whole.click()")
        self.browser.settle()
        self.check(rows() == before and self.ranges() == time_before, f"{name}: rows {rows()} after all was to be shown")
        self.check(not shown(), f"{name}: a button to show all, which is shown")

    def alone(self, drawn, linked):
        """A picture that is not over time is zoomed by itself."""
        for name in drawn:
            if name in linked:
                continue
            before = self.ranges()
            self.browser.drag(self.at(name, 0.3, 0.5), self.at(name, 0.6, 0.5))
            after = self.ranges()
            changed = [other for other in after if after[other] != before[other]]
            self.check(changed == [name], f"a drag in {name} has zoomed {changed}")
            self.browser.double_click(*self.at(name, 0.5, 0.5))
            self.check(self.ranges() == before, f"a double click in {name} does not show all")

    def peak(self):
        """A line that comes from before the time that is shown is within the picture, although the point that is
        next to this time is another one."""
        figure = self.browser.value("kvmtrace.figures.get('faults')?.data ?? null")
        if not figure:
            return
        rates = [self.rate(figure, "faults", column) for column in range(len(figure["faults"]))]
        peak = rates.index(max(rates))
        begin, wide = peak * figure["column_width"], self.wide(figure, peak)
        top = self.browser.value(f"""(async u => {{
            u.setScale('x', {{ min: {begin + wide * 0.6}, max: {begin + wide * 0.9} }});
            await new Promise(requestAnimationFrame);
            return u.scales.y.max;
        }})(kvmtrace.charts.get('faults'))""")
        self.check(top >= max(rates), f"faults: the picture ends at {top}, and its line is at {max(rates)}")
        self.browser.value("kvmtrace.charts.get('faults').whole.click()")
        self.browser.settle()

    def wide(self, figure, column):
        """The time of a column of faults. The last one extends to the end."""
        last = column == len(figure["faults"]) - 1
        return figure["length"] + 1 - column * figure["column_width"] if last else figure["column_width"]

    def rate(self, figure, of, column):
        """Faults a second."""
        return figure[of][column] / self.wide(figure, column) * 1e9

    def keys(self, linked):
        """Keys move the cursor and zoom."""
        name = linked[0]
        self.browser.mouse("mouseMoved", 1, 1)
        before = self.ranges()
        self.browser.value(f"kvmtrace.charts.get({json.dumps(name)}).root.parentElement.focus()")
        self.browser.key("ArrowRight")
        self.browser.key("ArrowRight")
        read = self.read_off(linked[1])
        self.check(all(value != "–" for _, value in read[:2]), f"keys: nothing is read off: {read}")
        self.browser.key("+")
        after = self.ranges()
        for other in linked:
            (a, b), (c, d) = before[other], after[other]
            self.check(abs((d - c) - (b - a) / 2) < (b - a) / 50, f"+ in {name}: {other} shows {c} to {d}")
        self.browser.key("0")
        self.check(self.ranges() == before, "0 does not show all")

    def by_keys(self, drawn, kinds):
        """Keys go through the rows of a heat map, and hide lines."""
        focused = lambda selector: self.browser.value(f"document.activeElement.matches({json.dumps(selector)})")
        for name in drawn:
            chart = f"kvmtrace.charts.get({json.dumps(name)})"
            live = self.browser.value(f"{chart}.root.querySelector('.u-legend').getAttribute('aria-live')")
            self.check(live == "polite", f"{name}: a screen reader does not say what is read off")
            if kinds[name][0] == "heatmap":
                # The page scrolls, and the mouse may leave a picture by this.
                self.browser.value(f"{chart}.root.parentElement.focus()")
                self.browser.mouse("mouseMoved", 1, 1)
                self.browser.settle()
                row = lambda: self.browser.value(f"(u => u.posToVal(u.cursor.top, 'y'))({chart})")
                self.browser.key("ArrowRight")
                before = row()
                self.browser.key("ArrowUp")
                self.check(math.floor(row()) == math.floor(before) + 1, f"{name}: up goes from row {before} to {row()}")
                self.browser.key("ArrowDown")
                self.check(math.floor(row()) == math.floor(before), f"{name}: down goes to row {row()}, not to {before}")
                self.browser.key("+")
                self.browser.value(f"{chart}.whole.focus(), {chart}.whole.click()")
                self.browser.settle()
                self.check(focused(".plot"), f"{name}: the focus is lost with the button")
                continue
            label = f"{chart}.root.querySelectorAll('.u-series')[1].querySelector('th')"
            state = lambda: self.browser.value(f"[{chart}.series[1].show, {label}.getAttribute('aria-pressed')]")
            self.browser.value(f"{label}.focus()")
            self.check(focused("th[role=button]"), f"{name}: Tab does not reach names")
            self.browser.key("Enter")
            self.check(state() == [False, "false"], f"{name}: Enter makes a line {state()}")
            self.browser.key(" ")
            self.check(state() == [True, "true"], f"{name}: a space makes a line {state()}")

    def later(self, kinds):
        """A picture that is chosen is drawn, and shows the same time."""
        name = next((name for name, (_, over_time, later) in kinds.items() if later and over_time), None)
        if not name:
            return
        linked = [other for other in self.ranges() if kinds[other][1]]
        self.browser.drag(self.at(linked[0], 0.3, 0.5), self.at(linked[0], 0.6, 0.5))
        choose = lambda value: self.browser.value(f"""(() => {{
            const select = [...document.querySelectorAll('.choice select')]
                .find(one => [...one.options].some(option => option.value === {json.dumps(name)}));
            const before = select.value;
            select.value = {json.dumps(value)};
            select.dispatchEvent(new Event('change'));
            return before;
        }})()""")
        chosen = choose(name)
        self.browser.settle()
        ranges = self.ranges()
        self.check(ranges.get(name) == ranges[linked[0]], f"{name} shows {ranges.get(name)}")
        self.browser.double_click(*self.at(linked[0], 0.5, 0.5))
        choose(chosen)

    def values(self, drawn):
        """What is read off is what the data has."""
        read = 0
        for name in drawn:
            figure = self.browser.value(f"kvmtrace.figures.get({json.dumps(name)}).data")
            if figure["kind"] == "heatmap":
                read += self.cells(name, figure)
                continue
            for share in (0.13, 0.5, 0.88):
                self.browser.mouse("mouseMoved", *self.at(name, share, 0.5))
                self.browser.settle()
                (_, at), *rows = self.read_off(name)
                left = self.browser.value(f"(u => u.posToVal(u.cursor.left, 'x'))(kvmtrace.charts.get({json.dumps(name)}))")
                tests = self.tests(figure, left, at, rows)
                for (label, value), right in zip(rows, tests or [], strict=tests is not None):
                    self.check(right(value), f"{name}, {at}: {label} is {value}")
                    read += value != "–"
        self.check(read >= 6, f"only {read} values were read off")

    def tests(self, figure, left, at, rows):
        """For each row of a legend, whether a text is the right one. The cursor is at `left`, of which `at` is the text. None if
        this is not known here."""
        if figure["kind"] == "working-set":
            sample = min(figure["samples"], key=lambda sample: abs(sample["t"] - left))
            windows = dict(zip(figure["tau"], sample["pages"], strict=True))
            return [lambda value, pages=windows[quantity(label.removeprefix("τ = "))]: value == f"{pages:,}" for label, _ in rows]
        if figure["kind"] == "faults":
            column = min(int(left // figure["column_width"]), len(figure["faults"]) - 1)
            rates = [self.rate(figure, of, column) for of in ("faults", "first_references")]
            return [lambda value, rate=rate: abs(number(value) - rate) <= max(0.01, rate * 1e-6) for rate in rates]
        if figure["kind"] == "misses":
            lines = [(False, [(row["size_pages"], row["cell"]) for row in column["rows"]]) for column in figure["columns"]]
        elif figure["kind"] == "fault-curve":
            lines = [(line["all_sizes"], [(point["size_pages"], point) for point in line["points"]])
                     for line in figure["policies"]]
        else:
            return None
        return [lambda value, line=line: at_size(*line, number(at), value) for line in lines]

    def cells(self, name, figure):
        """What is read off in a heat map, and how it looks: in the cell with the most references, in one with few, and
        in one without. Returns how many cells were looked at."""
        columns, rows = figure["columns"], figure["rows"]
        counts = [dict(zip(row[::2], row[1::2])) for row in figure["cells"]]
        # Others are beside a line that marks a gap.
        inner = [row for row in range(1, len(rows) - 1) if rows[row - 1][1] == rows[row][0] and rows[row][1] == rows[row + 1][0]]
        used = sorted((counts[row][column], column, row) for row in inner for column in counts[row])
        empty = [(0, column, row) for row in inner for column in range(columns) if column not in counts[row]]
        looked = [*used[:1], *used[-1:], *empty[len(empty) // 2:][:1]]
        colors, most = self.browser.value(
            f"(({{ colors, most }}) => [colors, most])(kvmtrace.figures.get({json.dumps(name)}).explored)")
        self.check(most == max(max(row.values(), default=0) for row in counts), f"{name}: most is {most}")
        for count, column, row in looked:
            left, top, width, height = self.box(name)
            low, high = self.ranges()[name]
            # A mouse is at whole pixels. Of those next to the middle of a cell, the nearest one.
            share = lambda x, y: ((low + (x - left) / width * (high - low)) / figure["column_width"],
                                  (1 - (y - top) / height) * len(rows))
            x = left + ((column + 0.5) * figure["column_width"] - low) / (high - low) * width
            y = top + (1 - (row + 0.5) / len(rows)) * height
            near = [(int(x) + dx, int(y) + dy) for dx in (0, 1) for dy in (0, 1)]
            x, y = min(near, key=lambda at: max(abs(a - b - 0.5) for a, b in zip(share(*at), (column, row))))
            self.browser.mouse("mouseMoved", x, y)
            self.browser.settle()
            _, total, cell = self.read_off(name)
            wanted = sum(line.get(column, 0) for line in counts)
            self.check(total[1] == f"{wanted:,}", f"{name}: {total} in column {column}, not {wanted}")
            begin, end, mapping = rows[row]
            words = (f"{begin:#x} – {end:#x}" if figure["rows_are"] == "addresses" else f"pages {begin:,} – {end - 1:,}")
            wanted = ", ".join(filter(None, [f"{count:,} to {words}", mapping]))
            self.check(cell[1] == wanted, f"{name}: the cell is {cell[1]}, not {wanted}")
            pixel = self.browser.value(f"""(u => {{
                const [x, y] = [u.valToPos({(column + 0.5) * figure["column_width"]}, 'x', true), u.valToPos({row + 0.5}, 'y', true)];
                // The browser would complain of pixels that are read from the picture itself.
                const copy = document.createElement('canvas').getContext('2d');
                copy.drawImage(u.ctx.canvas, Math.floor(x), Math.floor(y), 1, 1, 0, 0, 1, 1);
                return [...copy.getImageData(0, 0, 1, 1).data];
            }})(kvmtrace.charts.get({json.dumps(name)}))""")
            seen = "#" + bytes(pixel[:3]).hex()
            if count:
                level = min(int(math.log1p(count) / math.log1p(most) * len(colors)), len(colors) - 1)
                self.check(seen == colors[level], f"{name}: a cell of {count} is {seen}, not {colors[level]}")
            else:
                self.check(seen not in colors, f"{name}: an empty cell is {seen}")
        return len(looked)

    def saved(self, kinds):
        """Each picture can be saved in each form. A folder beside the page, of the same name, has what the report has
        written to files: this is the same."""
        saved = self.browser.value("""(async () => {
            const saved = [];
            const { createObjectURL } = URL;
            const { click } = HTMLAnchorElement.prototype;
            URL.createObjectURL = blob => (saved.push({ text: blob.text() }), '#');
            HTMLAnchorElement.prototype.click = function () { saved.at(-1).name = this.download; };
            for (const button of document.querySelectorAll('.save button')) {
                const begun = performance.now();
                button.click();
                saved.at(-1).took = performance.now() - begun;
            }
            URL.createObjectURL = createObjectURL;
            HTMLAnchorElement.prototype.click = click;
            return Promise.all(saved.map(async ({ name, text, took }) => [name, await text, took]));
        })()""")
        names = sorted(f"{name}.{form}" for name in kinds for form in ("svg", "csv", "json"))
        self.check(sorted(name for name, *_ in saved) == names, f"saved are {[name for name, *_ in saved]}")
        files = self.path.with_suffix("")
        for name, text, took in saved:
            self.check(took < SOON * 250, f"{name}: saving it takes {took:.0f} ms")
            if name.endswith(".svg") or not files.is_dir():
                continue
            file = (files / name).read_text()
            form = json.loads if name.endswith(".json") else str
            self.check(form(text) == form(file), f"{name}: what is saved differs from the file")
        self.check(not files.is_dir() or len([*files.glob("*.svg")]) == len(kinds), f"{files}: other files")

    def spoilt(self):
        """If the script fails in one picture, its SVG is there, and all other pictures are drawn."""
        self.browser.open(self.path)
        seen = self.browser.value("""Object.fromEntries([...kvmtrace.figures].filter(([, one]) => one.explored
            && !one.figure.classList.contains('later')).map(([id, { figure }]) =>
            [id, ['svg', '.chart'].map(part => figure.querySelector(':scope > ' + part))
                .map(one => one !== null && getComputedStyle(one).display !== 'none')]))""")
        failed = [name for name, (svg, chart) in seen.items() if svg and not chart]
        self.check(failed == ["heatmap-pages"], f"as SVG, there are {failed}")
        drawn = [name for name, (svg, chart) in seen.items() if chart and not svg]
        self.check(len(drawn) >= 6 and len(drawn) + 1 == len(seen), f"of {list(seen)}, only {drawn} are drawn")
        said = [event for event in self.browser.complaints() if "spoilt" in json.dumps(event)]
        self.check(len(said) == 1, f"it is said {len(said)} times")
        return self.wrong

    def printed(self):
        """On paper, each picture is there once, as SVG."""
        self.browser.call("Emulation.setEmulatedMedia", media="print")
        seen = self.browser.value("""[...document.querySelectorAll('figure')].map(figure =>
            [figure.id, ...['svg', '.chart'].map(part => figure.querySelector(':scope > ' + part))
                .map(one => one !== null && getComputedStyle(one).display !== 'none')])""")
        self.browser.call("Emulation.setEmulatedMedia", media="")
        wrong = [name for name, svg, chart in seen if not svg or chart]
        self.check(not wrong, f"on paper, these are wrong: {wrong}")


def main(screenshots, *paths):
    """Checks each page."""
    screenshots = pathlib.Path(screenshots)
    screenshots.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        browser = Browser(profile)
        try:
            pages = [Page(browser, pathlib.Path(path)) for path in paths]
            wrong = [words for page in pages for words in (page.spoilt() if page.path.stem == "spoilt" else page.run(screenshots))]
        finally:
            browser.process.kill()
            browser.process.wait()
    print("\n".join(wrong))
    sys.exit(1 if wrong else 0)


main(*sys.argv[1:])
