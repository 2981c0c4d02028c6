'use strict';
// Pictures that are explored: uPlot draws them from the figures' data, and those over time are linked.
(() => {
  const { figures, charts } = window.kvmtrace;
  // Pictures with this key have the same cursor, and show the same time.
  const LINK = 'time';
  const INK = '#1f2937', SOFT = '#6b7280', GRID = '#e5e7eb';
  const FONT = '12px system-ui, sans-serif';

  // Numbers.
  const grouped = n => n.toLocaleString('en-US', { maximumFractionDigits: 2 });
  const SCALES = {
    ns: [[1e9, ' s'], [1e6, ' ms'], [1e3, ' µs'], [1, ' ns']],
    count: [[1e9, ' G'], [1e6, ' M'], [1e4, ' k', 1e3], [1, '']],
    pages: [[1e9, ' G'], [1e6, ' M'], [1, '']],
    share: [[0, ' %', 0.01]],
  };
  // What a number is divided by, and its unit.
  const scaleOf = (unit, size) => {
    const scale = SCALES[unit].find(([from]) => size >= from) ?? SCALES[unit].at(-1);
    return [scale[2] ?? scale[0], scale[1]];
  };
  const bytes = n => {
    const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
    let i = 0;
    for (; n >= 1024 && i < units.length - 1; i++) n /= 1024;
    return +n.toPrecision(3) + ' ' + units[i];
  };
  // A value as it is read off.
  const exact = (axis, value) => {
    if (axis.unit === 'count') return grouped(value);
    if (axis.unit === 'pages') return grouped(value) + ' pages, ' + bytes(value * axis.page_size);
    const [by, unit] = scaleOf(axis.unit, Math.abs(value));
    return value === 0 ? '0' + unit : +(value / by).toPrecision(6) + unit;
  };

  // The values at which an axis has a number, and their texts.
  const nice = value => {
    const power = 10 ** Math.floor(Math.log10(value));
    return [1, 2, 5, 10].find(t => t * power >= value * (1 - 1e-9)) * power;
  };
  const ticks = (axis, min, max, room) => {
    if (axis.log && max / min >= 5) {
      const base = axis.unit === 'pages' ? 2 : 10;
      const log = value => Math.log(value) / Math.log(base);
      const [first, last] = [Math.ceil(log(min) - 1e-9), Math.floor(log(max) + 1e-9)];
      const every = Math.max(1, Math.ceil((last - first) / room));
      const times = base === 10 && every === 1 && (last - first + 1) * 3 <= room * 1.5 ? [1, 2, 5] : [1];
      const found = [];
      for (let power = times.length > 1 ? first - 1 : first; power <= last; power += every) {
        for (const t of times) found.push(t * base ** power);
      }
      return found.filter(value => value >= min * (1 - 1e-9) && value <= max * (1 + 1e-9));
    }
    const step = nice((max - min) / room);
    const found = [];
    for (let i = Math.ceil(min / step - 1e-9); i * step <= max + step * 1e-9; i++) found.push(i * step || 0);
    return found;
  };
  const tickTexts = (axis, values) => {
    if (values.length === 0) return [];
    const steps = values.slice(1).map((value, i) => value - values[i]);
    const even = steps.length > 0 && Math.abs(steps[0] - steps.at(-1)) < steps[0] * 0.01;
    const most = Math.max(...values.map(Math.abs));
    return values.map(value => {
      const [by, unit] = scaleOf(axis.unit, even ? most : Math.abs(value));
      const digits = even ? Math.max(0, Math.ceil(-Math.log10(steps[0] / by) - 1e-9)) : 3;
      const number = (value / by).toLocaleString('en-US', {
        minimumFractionDigits: 0, maximumFractionDigits: Math.min(digits, 12),
      });
      const text = number === '0' ? '0' : number + unit;
      return axis.unit === 'pages' ? text + '\n' + bytes(value * axis.page_size) : text;
    });
  };
  const drawnAxis = (axis, upright) => ({
    stroke: INK,
    font: FONT,
    labelFont: FONT,
    label: axis.label,
    labelSize: 22,
    labelGap: upright ? 4 : 0,
    size: upright ? 66 : axis.unit === 'pages' ? 44 : 28,
    gap: 6,
    grid: { stroke: GRID, width: 1 },
    ticks: { stroke: GRID, width: 1, size: 5 },
    splits: (u, i, min, max) => ticks(axis, min, max, Math.max(2, upright ? u.height / 50 : u.width / 95)),
    filter: (u, splits) => splits,
    values: (u, splits) => tickTexts(axis, splits),
  });

  // Time is the same in all linked pictures: from 0 to the last end of one of them.
  const isMap = explored => explored.packed != null;
  const endOf = ({ data, explored }) => (isMap(explored) ? data.columns * data.column_width : explored.x.range[1]);
  const linked = [...figures.values()].filter(({ explored }) => explored?.over_time);
  const end = Math.max(...linked.map(endOf));

  // What all pictures have in common: zoom by drag, cursor, keys, and links of those over time.
  const common = overTime => ({
    cursor: {
      drag: { x: true, y: false, dist: 5 },
      points: { size: 7 },
      // The height of the cursor means something else in another picture.
      sync: overTime ? { key: LINK, scales: ['x', 'y'], match: [(a, b) => a === b, () => false],
        filters: { pub: type => type === 'mousemove', sub: () => true } } : undefined,
    },
    legend: { markers: { width: 3 } },
    hooks: {
      setScale: [(u, key) => {
        const { x: { min, max }, y } = u.scales;
        u.whole.hidden = min <= u.data[0][0] && max >= u.data[0].at(-1)
          && (!u.rows || (y.min <= u.rows.min && y.max >= u.rows.max));
        if (key !== 'x') return;
        if (u.cursor.sync.key !== LINK) return;
        for (const other of uPlot.sync(LINK).plots) {
          const { x } = other.scales;
          if (other !== u && (x.min !== min || x.max !== max)) other.setScale('x', { min, max });
        }
      }],
    },
  });
  const clipped = (u, draw) => {
    const { left, top, width, height } = u.bbox;
    u.ctx.save();
    u.ctx.beginPath();
    u.ctx.rect(left, top, width, height);
    u.ctx.clip();
    draw(u.ctx, u.bbox);
    u.ctx.restore();
  };
  const worded = (u, text, x, y, color, align = 'left') => {
    const { ctx } = u;
    ctx.save();
    ctx.font = 12 * uPlot.pxRatio + 'px system-ui, sans-serif';
    ctx.textAlign = align;
    ctx.textBaseline = 'alphabetic';
    ctx.lineWidth = 4 * uPlot.pxRatio;
    ctx.strokeStyle = '#fff';
    ctx.fillStyle = color;
    ctx.strokeText(text, x, y);
    ctx.fillText(text, x, y);
    ctx.restore();
  };

  // What the legend shows of a value, if there is one.
  const shown = text => (u, value) => (value == null ? '–' : text(value));

  // Lines over two axes.
  const lines = ({ explored: chart }) => {
    const options = common(chart.over_time);
    const { x, y } = chart;
    const xs = chart.xs.slice();
    const data = [xs];
    if (chart.over_time && xs.at(-1) < end) xs.push(end);
    const padded = values => (values.length < xs.length ? [...values, null] : values);
    const series = [{ label: x.label.match(/, (.)$/)?.[1] ?? x.label.split(':')[0], value: shown(v => exact(x, v)) }];
    const bands = [], bounds = new Map();
    // Whether a value holds up to the next point.
    const steps = [];
    const allSteps = chart.series.every(one => one.steps);
    for (const one of chart.series) {
      const at = data.push(padded(one.y)) - 1;
      steps[at] = one.steps;
      const bounded = one.low != null;
      series.push({
        label: one.name,
        stroke: one.color,
        width: 2,
        dash: one.dashed ? [6, 3] : undefined,
        class: bounded ? 'bounded' : undefined,
        spanGaps: true,
        paths: one.steps ? uPlot.paths.stepped({ align: 1 }) : uPlot.paths.linear(),
        points: { show: one.dots, size: 6, fill: one.color },
        value: (u, value, i, index) => {
          if (value == null) return '–';
          // A line that is not stepped has values at its points only, and xs are those of all lines.
          const elsewhere = one.steps || index === u.cursor.idxs[0] ? '' : ` at ${exact(x, xs[index])}`;
          const low = bounded && u.data[at + 2][index], high = bounded && u.data[at + 1][index];
          // A logarithmic scale has no 0. This value has its place.
          if (y.log && value <= y.least) return y.unit === 'share' ? '0 %' + elsewhere : `at most ${value}${elsewhere}`;
          const bounds = bounded && low != null ? ` (${exact(y, low)} – ${exact(y, high)})` : '';
          return exact(y, value) + bounds + elsewhere;
        },
      });
      if (bounded) {
        for (const bound of [one.high, one.low]) {
          data.push(padded(bound));
          series.push({ label: '', class: 'bound', stroke: 'transparent', width: 0, spanGaps: true, auto: false,
            paths: one.steps ? uPlot.paths.stepped({ align: 1 }) : uPlot.paths.linear(), points: { show: false } });
        }
        bands.push({ series: [at + 1, at + 2], fill: one.color + '38' });
        bounds.set(at, [at + 1, at + 2]);
      }
    }
    // The x that are shown, from the moment at which they are known.
    let view = [xs[0], xs.at(-1)];
    // The least and the greatest y of what is drawn there. Lines come from points outside, too, which uPlot
    // does not pass to `range`.
    const extent = (u, [from, to]) => {
      let [min, max] = [Infinity, -Infinity];
      steps.forEach((stepped, at) => {
        if (!u.series[at].show) return;
        const values = data[at];
        let first = xs.findLastIndex((x, i) => x <= from && values[i] != null);
        let last = stepped ? -1 : xs.findIndex((x, i) => x >= to && values[i] != null);
        if (first < 0) first = 0;
        if (last < 0) last = xs.length - 1;
        for (let i = first; i <= last && (!stepped || i === first || xs[i] <= to); i++) {
          if (values[i] != null) [min, max] = [Math.min(min, values[i]), Math.max(max, values[i])];
        }
      });
      return [min, max];
    };
    Object.assign(options, {
      scales: {
        x: { time: false, distr: x.log ? 3 : 1, range: (u, min, max) => (view = [min, max]) },
        y: {
          distr: y.log ? 3 : 1,
          // What is seen fills the height.
          range: u => {
            let [min, max] = extent(u, view);
            if (min > max) return y.range;
            if (y.log) return [Math.max(min / 1.3, y.range[0]), Math.max(max * 1.3, y.range[0] * 2)];
            // Such as that of no difference.
            for (const [level] of chart.levels) [min, max] = [Math.min(min, level), Math.max(max, level)];
            const room = (max - min) * 0.08 || 1;
            return y.range[0] === 0 ? [0, max * 1.05 || 1] : [min - room, max + room];
          },
        },
      },
      axes: [drawnAxis(x, false), drawnAxis(y, true)],
      padding: [chart.uprights.length ? 22 : 10, 24, 0, 0],
      series,
      bands,
    });
    // The point that a line has at the cursor, or the one that is nearest to it.
    options.cursor.dataIdx = (u, at, index, value) => {
      if (allSteps && index > 0 && xs[index] > value) index--;
      const values = u.data[at];
      if (at === 0 || values[index] != null) return index;
      let before = index, after = index;
      while (before >= 0 && values[before] == null) before--;
      while (after < xs.length && values[after] == null) after++;
      if (steps[at] || after >= xs.length) return before < 0 ? null : before;
      const far = i => Math.abs(u.valToPos(xs[i], 'x') - u.valToPos(xs[index], 'x'));
      return before < 0 || far(after) < far(before) ? after : before;
    };
    const { hooks } = options;
    hooks.setSeries = [(u, at, change) => {
      if (change.show == null) return;
      u.root.querySelectorAll('.u-series')[at]?.querySelector('th').setAttribute('aria-pressed', change.show);
      for (const bound of bounds.get(at) ?? []) u.setSeries(bound, { show: change.show }, false);
    }];
    hooks.drawClear = [u => clipped(u, (ctx, box) => {
      for (const [from, to, fill] of chart.zones) {
        const left = u.valToPos(from, 'x', true);
        ctx.fillStyle = fill;
        ctx.fillRect(left, box.top, u.valToPos(to, 'x', true) - left, box.height);
      }
    })];
    hooks.draw = [u => {
      const { left, top, width, height } = u.bbox;
      const ratio = uPlot.pxRatio;
      const rule = (from, to, color) => clipped(u, ctx => {
        ctx.strokeStyle = color;
        ctx.lineWidth = ratio;
        ctx.setLineDash([5 * ratio, 4 * ratio]);
        ctx.beginPath();
        ctx.moveTo(...from);
        ctx.lineTo(...to);
        ctx.stroke();
      });
      for (const [value, name, color] of chart.uprights) {
        const at = u.valToPos(value, 'x', true);
        if (at < left || at > left + width) continue;
        rule([at, top], [at, top + height], color);
        worded(u, name, at, top - 5 * ratio, color, 'center');
      }
      for (const [value, name, color] of chart.levels) {
        const at = u.valToPos(value, 'y', true);
        if (at < top || at > top + height) continue;
        rule([left, at], [left + width, at], color);
        worded(u, name, left + 8 * ratio, Math.min(at + 15 * ratio, top + height - 3 * ratio), color);
      }
    }];
    return { options, data, height: 400 };
  };

  // Cells of a heat map.
  const cells = ({ data: map, explored }) => {
    const { columns, column_width: width, pages_in_a_row: block } = map;
    const rows = map.rows.length;
    const addresses = map.rows_are === 'addresses';
    const { counts, colors, most } = explored;
    const levels = colors.length / Math.log1p(Math.max(most, 1));
    const level = count => Math.min(colors.length - 1, Math.floor(Math.log1p(count) * levels));
    // A pixel for each cell, which the browser makes larger.
    const image = document.createElement('canvas');
    [image.width, image.height] = [columns, Math.max(rows, 1)];
    const context = image.getContext('2d');
    const pixels = context.createImageData(image.width, image.height);
    const inks = colors.map(color => [1, 3, 5].map(at => parseInt(color.slice(at, at + 2), 16)).concat(255));
    const sums = new Array(columns).fill(0);
    for (let row = 0; row < rows; row++) {
      for (let column = 0; column < columns; column++) {
        const count = counts[row * columns + column];
        if (!count) continue;
        sums[column] += count;
        pixels.data.set(inks[level(count)], ((rows - 1 - row) * columns + column) * 4);
      }
    }
    context.putImageData(pixels, 0, 0);
    const xs = Array.from({ length: columns + 1 }, (_, i) => i * width);
    const values = [...sums, null];
    if (xs.at(-1) < end) {
      xs.push(end);
      values.push(null);
    }
    const x = map.time_unit === 'ns'
      ? { unit: 'ns', label: 'time since the trace began', log: false }
      : { unit: 'count', label: 'references so far', log: false };
    const rowText = row => {
      const [from, to] = map.rows[row];
      return addresses
        ? `0x${from.toString(16)} – 0x${to.toString(16)}`
        : `pages ${grouped(from)} – ${grouped(to - 1)}`;
    };
    // Runs of rows of one mapping without a gap.
    const runs = [], gaps = [];
    map.rows.forEach(([from, , name], row) => {
      const gap = row > 0 && map.rows[row - 1][1] !== from;
      if (gap) gaps.push(row);
      if (row > 0 && !gap && runs.at(-1).name === (name ?? '')) runs.at(-1).to = row + 1;
      else runs.push({ from: row, to: row + 1, name: name ?? '', address: from });
    });
    // The tallest have a name. A name that would overlap another one is left out.
    const named = (u, min, max) => {
      const high = row => (row - min) / (max - min) * u.bbox.height / uPlot.pxRatio;
      const taken = [];
      const seen = runs.map(run => ({ ...run, from: Math.max(run.from, min), to: Math.min(run.to, max) }));
      const tall = run => run.to - run.from;
      for (const run of seen.filter(run => tall(run) > 0).sort((a, b) => tall(b) - tall(a) || a.from - b.from)) {
        const middle = (run.from + run.to) / 2;
        if (!taken.some(other => Math.abs(high(other.middle) - high(middle)) < 13)) taken.push({ ...run, middle });
      }
      return taken.sort((a, b) => a.middle - b.middle);
    };
    const cut = text => (text.length > 30 ? '…' + text.slice(-29) : text);
    const rowAxis = text => ({
      scale: 'y', stroke: INK, font: FONT, gap: 6, grid: { show: false }, ticks: { stroke: GRID, width: 1, size: 5 },
      filter: (u, splits) => splits,
      splits: (u, i, min, max) => named(u, min, max).map(run => run.middle),
      values: u => named(u, u.scales.y.min, u.scales.y.max).map(text),
    });
    const pages = {
      ...drawnAxis({ unit: 'count', log: false, label: 'pages, in order of first reference' }, true),
      splits: (u, i, min, max) => ticks({}, min * block, max * block, 8).map(page => page / block),
      values: (u, splits) => tickTexts({ unit: 'count' }, splits.map(row => row * block)),
      grid: { show: false },
    };
    const options = common(true);
    const whole = { min: 0, max: Math.max(rows, 1) };
    options.cursor.drag = { x: true, y: true, dist: 5, uni: 40 };
    options.cursor.bind = { dblclick: (u, target, handler) => event => {
      handler(event);
      u.setScale('y', whole);
    } };
    // The end belongs to the last one: uPlot moves a cursor that is next to an edge onto the edge.
    const within = (value, many) => (many > 0 && value >= 0 && value <= many * (1 + 1e-9)
      ? Math.min(many - 1, Math.floor(value)) : null);
    options.cursor.dataIdx = (u, at, index, value) => within(value / width, columns) ?? columns;
    // The column and the row at the cursor. A cursor that comes from another picture has no row.
    const under = u => {
      const { left, top, idx } = u.cursor;
      if (idx == null || left < 0) return [null, null];
      const column = within(u.posToVal(left, 'x') / width, columns);
      return [column, top < 0 ? null : within(u.posToVal(top, 'y'), rows)];
    };
    const drawn = { paths: () => null, points: { show: false }, auto: false };
    Object.assign(options, {
      scales: {
        x: { time: false, range: (u, min, max) => [min, max] },
        y: { auto: false, range: (u, min, max) => (min == null ? [0, whole.max] : [min, max]) },
      },
      axes: addresses
        ? [drawnAxis(x, false), { ...rowAxis(run => run.address.toString(16)), size: 112 },
          { ...rowAxis(run => cut(run.name)), side: 1, size: 200 }]
        : [drawnAxis(x, false), pages],
      padding: [10, addresses ? 0 : 24, 0, 0],
      series: [
        { label: map.time_unit === 'ns' ? 't' : 'references', value: shown(v => exact(x, v)) },
        { ...drawn, label: 'references in the column', value: shown(grouped) },
        { ...drawn, label: 'cell', value: u => {
          const [column, row] = under(u);
          if (column == null || row == null) return '–';
          const count = grouped(counts[row * columns + column]);
          return [`${count} to ${rowText(row)}`, map.rows[row][2]].filter(Boolean).join(', ');
        } },
      ],
    });
    // The row may change while the column does not.
    options.hooks.setCursor = [u => u.setLegend(null, false)];
    options.hooks.draw = [u => clipped(u, ctx => {
      const first = Math.max(0, Math.floor(u.scales.x.min / width));
      const last = Math.min(columns, Math.ceil(u.scales.x.max / width));
      const low = Math.max(0, Math.floor(u.scales.y.min)), high = Math.min(rows, Math.ceil(u.scales.y.max));
      const at = column => u.valToPos(column * width, 'x', true);
      const up = row => u.valToPos(row, 'y', true);
      ctx.imageSmoothingEnabled = false;
      if (last > first && high > low) {
        ctx.drawImage(image, first, rows - high, last - first, high - low,
          at(first), up(high), at(last) - at(first), up(low) - up(high));
      }
      ctx.strokeStyle = '#d1d5db';
      ctx.lineWidth = uPlot.pxRatio;
      for (const row of addresses ? gaps : []) {
        ctx.beginPath();
        ctx.moveTo(0, up(row));
        ctx.lineTo(ctx.canvas.width, up(row));
        ctx.stroke();
      }
    })];
    const key = document.createElement('div');
    key.className = 'key';
    const scale = document.createElement('span');
    for (const color of colors) {
      const box = document.createElement('span');
      box.style.background = color;
      scale.append(box);
    }
    key.append('references in a cell: 1', scale, `${grouped(most)}, logarithmic`);
    return { options, data: [xs, values, values], height: 500, key, rows: whole };
  };

  const element = (name, text, className) => {
    const made = document.createElement(name);
    made.textContent = text;
    if (className) made.className = className;
    return made;
  };
  const zoom = (u, from, to) => {
    const [first, last] = [u.data[0][0], u.data[0].at(-1)];
    const [min, max] = [Math.max(from, first), Math.min(to, last)];
    if (max > min) u.setScale('x', { min, max });
  };
  // By positions, so that it is the same on a logarithmic scale. The place of the cursor remains.
  const zoomBy = (u, times, shift = 0) => {
    const wide = u.bbox.width / uPlot.pxRatio;
    const place = u.cursor.left >= 0 && !shift ? u.cursor.left : wide / 2;
    const end = u.valToPos(u.data[0].at(-1), 'x') - wide * times;
    const left = Math.max(u.valToPos(u.data[0][0], 'x'), Math.min(end, place * (1 - times) + shift * wide));
    zoom(u, u.posToVal(left, 'x'), u.posToVal(left + wide * times, 'x'));
  };
  const move = (u, by) => {
    const xs = u.data[0];
    const { min, max } = u.scales.x;
    let at = u.cursor.idx ?? xs.findIndex(x => x >= min);
    if (u.cursor.idx != null) at = Math.min(xs.length - 1, Math.max(0, at + by));
    const top = u.cursor.top >= 0 ? u.cursor.top : u.bbox.height / uPlot.pxRatio / 2;
    const left = Math.min(u.valToPos(xs[at], 'x') + 0.01, u.bbox.width / uPlot.pxRatio);
    if (xs[at] >= min && xs[at] <= max) u.setCursor({ left, top }, true, true);
  };
  // The cursor goes to the row above or below.
  const climb = (u, by) => {
    const { min, max } = u.scales.y;
    const row = Math.floor(u.cursor.top >= 0 ? u.posToVal(u.cursor.top, 'y') : (min + max) / 2) + by;
    const left = u.cursor.left >= 0 ? u.cursor.left : u.bbox.width / uPlot.pxRatio / 2;
    if (row + 0.5 > min && row + 0.5 < max) u.setCursor({ left, top: u.valToPos(row + 0.5, 'y') }, true, true);
  };
  // A screen reader says what is read off, and keys hide lines.
  const speaking = (u, hidable) => {
    u.root.querySelector('.u-legend').setAttribute('aria-live', 'polite');
    if (!hidable) return;
    u.root.querySelectorAll('.u-series').forEach((row, at) => {
      if (at === 0) return;
      const label = row.querySelector('th');
      label.tabIndex = 0;
      label.setAttribute('role', 'button');
      label.setAttribute('aria-pressed', u.series[at].show);
      label.addEventListener('keydown', event => {
        if (event.key !== 'Enter' && event.key !== ' ') return;
        event.preventDefault();
        u.setSeries(at, { show: !u.series[at].show });
      });
    });
  };
  const show = one => {
    const { figure, explored } = one;
    if (!explored || charts.has(figure.id) || figure.classList.contains('later')) return;
    const { options, data, height, key, rows } = isMap(explored) ? cells(one) : lines(one);
    const box = element('div', '', 'chart');
    const plot = element('div', '', 'plot');
    const whole = element('button', 'Show all', 'whole');
    whole.type = 'button';
    whole.hidden = true;
    plot.tabIndex = 0;
    plot.setAttribute('role', 'group');
    plot.setAttribute('aria-label', explored.title + '. Left and right move the cursor, plus and minus zoom, '
      + 'shift and left or right move the time shown, zero shows all.' + (rows ? ' Up and down move the row.' : ''));
    box.append(element('h3', explored.title), element('p', explored.subtitle), plot);
    if (key) box.append(key);
    if (explored.notes.length) box.append(element('p', explored.notes.join(' '), 'notes'));
    figure.prepend(box);
    const size = () => ({ width: Math.max(320, plot.clientWidth), height });
    let u = null;
    options.hooks.init = [made => Object.assign(made, { whole, rows })];
    u = new uPlot({ ...options, ...size() }, data, plot);
    plot.querySelector('.uplot').append(whole);
    charts.set(figure.id, u);
    // Only now is the SVG hidden.
    figure.classList.add('drawn');
    const all = () => {
      zoom(u, u.data[0][0], u.data[0].at(-1));
      if (rows) u.setScale('y', rows);
    };
    speaking(u, !rows);
    whole.addEventListener('click', () => {
      all();
      // The button is hidden now.
      plot.focus({ preventScroll: true });
    });
    const keys = { '+': () => zoomBy(u, 0.5), '=': () => zoomBy(u, 0.5), '-': () => zoomBy(u, 2), '0': all };
    if (rows) Object.assign(keys, { ArrowUp: () => climb(u, 1), ArrowDown: () => climb(u, -1) });
    plot.addEventListener('keydown', event => {
      if (event.ctrlKey || event.altKey || event.metaKey) return;
      const side = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      const does = side ? () => (event.shiftKey ? zoomBy(u, 1, side / 4) : move(u, side)) : keys[event.key];
      if (!does) return;
      event.preventDefault();
      does();
    });
    new ResizeObserver(() => {
      if (plot.clientWidth && plot.clientWidth !== u.width) u.setSize(size());
    }).observe(plot);
    // One that is shown later shows what the others do.
    const other = explored.over_time && [...charts.values()].find(c => c !== u && c.cursor.sync.key === LINK);
    if (other) u.setScale('x', { min: other.scales.x.min, max: other.scales.x.max });
  };
  // A picture that cannot be drawn remains what it was, and others are drawn.
  const showIfPossible = one => {
    try {
      show(one);
    } catch (error) {
      one.figure.querySelector('.chart')?.remove();
      one.figure.classList.remove('drawn');
      charts.get(one.figure.id)?.destroy();
      charts.delete(one.figure.id);
      console.error(error);
    }
  };
  for (const one of figures.values()) showIfPossible(one);
  for (const select of document.querySelectorAll('.choice select')) {
    select.addEventListener('change', () => showIfPossible(figures.get(select.value)));
  }
  requestAnimationFrame(() => { window.kvmtrace.drawn = performance.now(); });
})();
