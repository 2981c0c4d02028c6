'use strict';
(() => {
  document.documentElement.classList.add('js');
  const grouped = n => n.toLocaleString('en-US');
  const time = ns => {
    const [by, unit] = ns >= 1e9 ? [1e9, 's'] : ns >= 1e6 ? [1e6, 'ms'] : ns >= 1e3 ? [1e3, 'µs'] : [1, 'ns'];
    return +(ns / by).toPrecision(4) + ' ' + unit;
  };

  // Which of several pictures is shown.
  for (const select of document.querySelectorAll('.choice select')) {
    const figures = [...select.closest('section').querySelectorAll('figure')];
    select.addEventListener('change', () => {
      for (const figure of figures) figure.classList.toggle('later', figure.id !== select.value);
    });
  }

  // Pictures and data can be saved from the page alone.
  const save = (name, type, text) => {
    const link = document.createElement('a');
    link.href = URL.createObjectURL(new Blob([text], { type }));
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  };
  const quoted = text => /[",\n\r]/.test(text) ? '"' + text.replaceAll('"', '""') + '"' : text;
  // A heatmap's cells are there once, not as CSV, too.
  const heatmapCsv = data => {
    const addresses = data.rows_are === 'addresses';
    const number = n => addresses ? '0x' + n.toString(16) : n;
    const lines = [`time,${addresses ? 'address' : 'page'},end,mapping,references`];
    data.rows.forEach(([from, to, name], row) => {
      const cells = data.cells[row];
      for (let i = 0; i < cells.length; i += 2) {
        lines.push([cells[i] * data.column_width, number(from), number(to), quoted(name || ''), cells[i + 1]].join(','));
      }
    });
    return lines.join('\n') + '\n';
  };
  for (const figure of document.querySelectorAll('figure')) {
    const data = JSON.parse(figure.querySelector('[data-json]').textContent);
    const table = figure.querySelector('[data-csv]');
    const csv = () => table ? table.textContent.replaceAll('\\u003c', '<') : heatmapCsv(data);
    const kinds = [
      ['SVG', 'image/svg+xml', () => new XMLSerializer().serializeToString(figure.querySelector('svg'))],
      ['CSV', 'text/csv', csv],
      ['JSON', 'application/json', () => JSON.stringify(data)],
    ];
    for (const [name, type, text] of kinds) {
      const button = document.createElement('button');
      button.type = 'button';
      button.textContent = name;
      button.title = 'Save this as ' + name;
      button.addEventListener('click', () => save(figure.id + '.' + name.toLowerCase(), type, text()));
      figure.querySelector('.save').append(button);
    }

    // Lines are put on and off by their names.
    for (const key of figure.querySelectorAll('[data-key]')) {
      const line = figure.querySelector(`[data-series="${key.dataset.key}"]`);
      if (line) key.addEventListener('click', () => {
        key.classList.toggle('off', line.classList.toggle('off'));
      });
    }

    // What a cell of a heatmap is.
    if (data.kind !== 'heatmap') continue;
    const cells = new Map();
    data.cells.forEach((row, at) => {
      for (let i = 0; i < row.length; i += 2) cells.set(at * data.columns + row[i], row[i + 1]);
    });
    const [left, top, width, height] = data.plot;
    const svg = figure.querySelector('svg');
    const tip = document.createElement('div');
    tip.className = 'tip';
    tip.hidden = true;
    figure.append(tip);
    svg.addEventListener('pointermove', event => {
      const box = svg.getBoundingClientRect();
      const scale = svg.viewBox.baseVal.width / box.width;
      const x = ((event.clientX - box.left) * scale - left) / width;
      const y = 1 - ((event.clientY - box.top) * scale - top) / height;
      tip.hidden = !(x >= 0 && x < 1 && y >= 0 && y < 1 && data.rows.length > 0);
      if (tip.hidden) return;
      const column = Math.floor(x * data.columns);
      const row = Math.floor(y * data.rows.length);
      const [from, to, name] = data.rows[row];
      const moment = column * data.column_width;
      const addresses = data.rows_are === 'addresses';
      tip.textContent = [
        data.time_unit === 'ns' ? time(moment) : 'after ' + grouped(moment) + ' references',
        addresses ? '0x' + from.toString(16) + ' – 0x' + to.toString(16)
          : 'pages ' + grouped(from) + ' – ' + grouped(to - 1),
        name,
        grouped(cells.get(row * data.columns + column) || 0) + ' references',
      ].filter(Boolean).join('\n');
      const figureBox = figure.getBoundingClientRect();
      const at = event.clientX - figureBox.left;
      tip.style.left = (at > figureBox.width - 260 ? at - 250 : at + 14) + 'px';
      tip.style.top = (event.clientY - figureBox.top + 14) + 'px';
    });
    svg.addEventListener('pointerleave', () => { tip.hidden = true; });
  }

  // Tables are sorted by what is clicked on.
  for (const head of document.querySelectorAll('th')) {
    let down = false;
    const sort = () => {
      down = !down;
      const body = head.closest('table').tBodies[0];
      const column = head.cellIndex;
      const number = head.classList.contains('n');
      const value = row => {
        const text = row.cells[column].textContent;
        return number ? parseFloat(text.replaceAll(',', '')) || 0 : text;
      };
      const order = (a, b) => (value(a) < value(b) ? -1 : value(a) > value(b) ? 1 : 0);
      body.append(...[...body.rows].sort((a, b) => (down === number ? -order(a, b) : order(a, b))));
    };
    head.addEventListener('click', sort);
    head.addEventListener('keydown', event => { if (event.key === 'Enter') sort(); });
  }
})();
