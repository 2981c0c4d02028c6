'use strict';
(() => {
  document.documentElement.classList.add('js');

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
  // A heatmap's cells are there once, and packed: postproc/src/report/embed.rs says how.
  const unpacked = (text, columns, rows) => {
    const bytes = atob(text);
    const counts = new Float64Array(columns * rows);
    for (let at = 0, i = 0; i < bytes.length;) {
      let number = 0, scale = 1, byte;
      do {
        byte = bytes.charCodeAt(i++);
        number += (byte & 0x7f) * scale;
        scale *= 128;
      } while (byte & 0x80);
      if (number % 2) at += (number - 1) / 2;
      else counts[at++] = number / 2;
    }
    return counts;
  };
  // For each row, columns and counts in turn.
  const pairs = (counts, columns, rows) => Array.from({ length: rows }, (_, row) => {
    const cells = [];
    for (let column = 0; column < columns; column++) {
      const count = counts[row * columns + column];
      if (count) cells.push(column, count);
    }
    return cells;
  });
  const figures = new Map();
  const heatmapCsv = data => {
    const addresses = data.rows_are === 'addresses';
    const number = n => addresses ? '0x' + n.toString(16) : n;
    const lines = [`time,${addresses ? 'address' : 'page'},end,mapping,references`];
    // They are made each time that they are asked for.
    const { cells: all } = data;
    data.rows.forEach(([from, to, name], row) => {
      const cells = all[row];
      for (let i = 0; i < cells.length; i += 2) {
        lines.push([cells[i] * data.column_width, number(from), number(to), quoted(name || ''), cells[i + 1]].join(','));
      }
    });
    return lines.join('\n') + '\n';
  };
  for (const figure of document.querySelectorAll('figure')) {
    const part = name => JSON.parse(figure.querySelector(`[data-${name}]`)?.textContent ?? 'null');
    const data = part('json');
    const explored = part('explored');
    if (explored?.packed != null) {
      const rows = data.rows.length;
      // Most are not looked at.
      let counts = null;
      Object.defineProperty(explored, 'counts', {
        get: () => (counts ??= unpacked(explored.packed, data.columns, rows)),
      });
      // Only who saves it needs this form.
      Object.defineProperty(data, 'cells', { enumerable: true, get: () => pairs(explored.counts, data.columns, rows) });
    }
    figures.set(figure.id, { figure, data, explored });
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
  }
  window.kvmtrace = { figures, charts: new Map() };

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
