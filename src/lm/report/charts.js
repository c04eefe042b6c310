// Charts of runs, for the pages of 'primus report' and 'primus dashboard'. Text from files is inserted only as text,
// never as HTML.
const PrimusCharts = (() => {
  const palette = ['#2f6fde', '#e8702a', '#1f9d6b', '#b14fc5', '#d8a200', '#14a3b8', '#d6336c', '#6b7a8f', '#7a9a01',
                   '#8a5a3b'];
  const dashes = ['', '7 4', '2 4', '9 4 2 4'];
  const color = (run) => palette[run % palette.length];
  const dash = (run) => dashes[Math.floor(run / palette.length) % dashes.length];
  const view = {axis: 'step', smoothing: 0, log: false, hidden: new Set(), range: null, printing: false};
  const charts = [];
  let data = {runs: [], charts: [], differences: []}, nextId = 0;

  function element(tag, attributes, ...children) {
    const svg = ['svg', 'g', 'path', 'line', 'text', 'rect', 'circle', 'clipPath'].includes(tag);
    const made = svg ? document.createElementNS('http://www.w3.org/2000/svg', tag) : document.createElement(tag);
    for (const [name, value] of Object.entries(attributes || {})) made.setAttribute(name, value);
    for (const child of children) made.append(child);
    return made;
  }

  // Formats a number for display.
  function number(value) {
    if (value === null || value === undefined) return '';
    const size = Math.abs(value);
    if (value === 0) return '0';
    if (size >= 1e15 || size < 1e-3) return value.toExponential(3).replace(/\.?0+e/, 'e').replace('e+', 'e');
    for (const [unit, factor] of [['T', 1e12], ['G', 1e9], ['M', 1e6], ['k', 1e3]]) {
      if (size >= factor * (unit === 'k' ? 10 : 1)) return trimmed(value / factor) + unit;
    }
    return trimmed(value);
  }
  function trimmed(value, digits = 4) {
    const text = value.toPrecision(digits);
    return text.includes('.') && !text.includes('e') ? text.replace(/\.?0+$/, '') : String(Number(text));
  }
  function bytes(value) {
    let unit = 0;
    for (; value >= 1024 && unit < 5; ++unit) value /= 1024;
    return trimmed(value, 3) + ' ' + ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'][unit];
  }
  function duration(seconds) {
    if (seconds < 60) return trimmed(seconds) + ' s';
    const minutes = Math.floor(seconds / 60), hours = Math.floor(minutes / 60), days = Math.floor(hours / 24);
    const both = (large, unit, small, smaller) => large + ' ' + unit + (small ? ' ' + small + ' ' + smaller : '');
    if (hours < 1) return both(minutes, 'min', Math.floor(seconds % 60), 's');
    return days < 1 ? both(hours, 'h', minutes % 60, 'min') : both(days, 'd', hours % 24, 'h');
  }
  function percent(value) { return trimmed(100 * value) + ' %'; }
  const formats = {number, bytes, percent};
  const axisText = (value) => view.axis === 'seconds' ? duration(value) : number(value);

  // Positions of a run's buckets on the chosen axis.
  function axisOf(run) { return view.axis === 'step' ? run.positions.last : run.positions[view.axis]; }
  // Interpolates a step's position between buckets, because evaluations have only a step.
  function placeOf(run, step) {
    if (view.axis === 'step') return step;
    const steps = run.positions.last, places = axisOf(run);
    if (!steps.length) return step;
    let i = 0, end = steps.length - 1;
    while (i < end) { const middle = (i + end) >> 1; if (steps[middle] < step) i = middle + 1; else end = middle; }
    if (i === 0 || steps[i] <= step) return places[i];
    const share = (step - steps[i - 1]) / (steps[i] - steps[i - 1]);
    return places[i - 1] + share * (places[i] - places[i - 1]);
  }

  // Returns the data of one run for one chart: positions, means, extremes, and non-finite values.
  function seriesOf(chart, index) {
    const run = data.runs[index];
    const source = chart.evaluations ? run.evaluations : run;
    const curve = source.curves[chart.key];
    if (!curve) return null;
    const steps = source.positions.last;
    const x = chart.evaluations ? steps.map((step) => placeOf(run, step)) : axisOf(run);
    return {index, x, steps, first: source.positions.first, mean: curve.mean, least: curve.least || curve.mean,
            largest: curve.largest || curve.mean, band: Boolean(curve.least), other: new Map(curve.other || []),
            smooth: chart.evaluations ? null : smoothed(curve.mean)};
  }
  // Exponential moving average with bias correction.
  function smoothed(values) {
    if (view.smoothing === 0) return null;
    let sum = 0, weight = 0;
    return values.map((value) => {
      if (value === null) return null;
      sum = view.smoothing * sum + (1 - view.smoothing) * value;
      weight = view.smoothing * weight + (1 - view.smoothing);
      return sum / weight;
    });
  }

  function steppedTicks(low, high, count) {
    const rough = (high - low) / count, power = Math.pow(10, Math.floor(Math.log10(rough)));
    const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough);
    const ticks = [];
    for (let i = Math.ceil(low / step); i * step <= high + step * 1e-9; ++i) ticks.push(i * step);
    return ticks;
  }
  function timeTicks(low, high, count) {
    const rough = (high - low) / count;
    const step = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400]
                     .find((size) => size >= rough);
    if (!step || rough < 1) return steppedTicks(low, high, count);
    const ticks = [];
    for (let i = Math.ceil(low / step); i * step <= high; ++i) ticks.push(i * step);
    return ticks;
  }
  function logTicks(low, high) {
    const ticks = [], first = Math.floor(Math.log10(low)), last = Math.ceil(Math.log10(high));
    const factors = last - first <= 1 ? [1, 2, 3, 4, 5, 6, 8] : last - first <= 3 ? [1, 2, 5] : [1];
    const stride = Math.max(1, Math.ceil((last - first) / 7));
    for (let power = first; power <= last; power += stride) {
      for (const factor of factors) ticks.push(factor * Math.pow(10, power));
    }
    return ticks.filter((tick) => tick >= low * (1 - 1e-9) && tick <= high * (1 + 1e-9));
  }

  class Chart {
    constructor(definition, name) {
      this.name = name;
      this.definition = definition;
      this.holder = element('div', {class: 'chart' + (definition.wide ? ' wide' : '')});
      const heading = element('h3', {}, definition.title);
      if (definition.unit) heading.append(element('span', {}, definition.unit));
      this.svg = element('svg', {role: 'img', tabindex: 0, 'aria-label': definition.title});
      this.holder.append(heading, this.svg);
      this.format = formats[definition.format] || number;
      this.listen();
    }

    draw() {
      const width = view.printing ? (this.definition.wide ? 700 : 340) : this.holder.clientWidth - 28;
      const height = this.definition.wide ? 300 : 210;
      if (width <= 0) return;
      this.box = {left: 62, right: width - 10, top: 10, bottom: height - 24};
      this.svg.setAttribute('viewBox', `0 0 ${width} ${height}`);
      this.svg.setAttribute('height', height);
      this.svg.replaceChildren();
      this.series = data.runs.map((run, index) => view.hidden.has(index) ? null : seriesOf(this.definition, index))
                        .filter(Boolean);
      this.scale();
      this.drawAxes();
      const clip = element('clipPath', {id: 'clip-' + this.definition.id});
      clip.append(element('rect', {x: this.box.left, y: this.box.top - 2, width: this.box.right - this.box.left,
                                   height: this.box.bottom - this.box.top + 4}));
      const inside = element('g', {'clip-path': `url(#clip-${this.definition.id})`});
      this.svg.append(clip, inside);
      this.drawMarks(inside);
      for (const series of this.series) this.drawSeries(series, inside);
      this.cursor = element('line', {class: 'cursor', y1: this.box.top, y2: this.box.bottom, visibility: 'hidden'});
      this.dots = element('g');
      this.selection = element('rect', {class: 'selection', y: this.box.top, height: this.box.bottom - this.box.top,
                                        width: 0});
      this.svg.append(this.cursor, this.dots, this.selection);
    }

    scale() {
      let low = Infinity, high = -Infinity, positive = true;
      const [from, to] = view.range || fullRange();
      for (const series of this.series) {
        series.x.forEach((x, i) => {
          if (x < from || x > to || series.mean[i] === null) return;
          low = Math.min(low, series.least[i]);
          high = Math.max(high, series.largest[i]);
          positive = positive && series.least[i] > 0;
        });
      }
      if (low > high) [low, high] = [0, 1];
      this.log = view.log && positive && low > 0;
      if (this.log) {
        if (high / low < 1.02) { low /= 1.02; high *= 1.02; }
        const space = Math.pow(high / low, 0.05);
        low /= space; high *= space;
      } else {
        const space = (high - low) * 0.06 || Math.abs(high) * 0.05 || 0.5;
        // A range that comes close to zero starts at zero.
        low = low >= 0 && low < 0.25 * high ? 0 : low - space;
        high += space;
      }
      const {left, right, top, bottom} = this.box, reach = to - from || 1;
      this.toX = (x) => left + (x - from) / reach * (right - left);
      this.fromX = (pixel) => from + (pixel - left) / (right - left) * reach;
      this.toY = this.log ? (y) => bottom - Math.log(y / low) / Math.log(high / low) * (bottom - top)
                          : (y) => bottom - (y - low) / (high - low) * (bottom - top);
      this.ticksY = this.log ? logTicks(low, high) : steppedTicks(low, high, (bottom - top) / 36);
      const count = Math.max(2, Math.floor((right - left) / 75));
      this.ticksX = view.axis === 'seconds' ? timeTicks(from, to, count) : steppedTicks(from, to, count);
    }

    drawAxes() {
      const {left, right, bottom} = this.box;
      for (const tick of this.ticksY) {
        const y = this.toY(tick);
        this.svg.append(element('line', {class: 'grid', x1: left, x2: right, y1: y, y2: y}),
                        element('text', {x: left - 7, y: y + 4, 'text-anchor': 'end'}, this.format(tick)));
      }
      this.svg.append(element('line', {class: 'axis', x1: left, x2: right, y1: bottom, y2: bottom}));
      for (const tick of this.ticksX) {
        const x = this.toX(tick);
        if (x > right + 1) continue;
        const anchor = x > right - 20 ? 'end' : 'middle';
        this.svg.append(element('line', {class: 'axis', x1: x, x2: x, y1: bottom, y2: bottom + 4}),
                        element('text', {x, y: bottom + 17, 'text-anchor': anchor}, axisText(tick)));
      }
    }

    path(series, values) {
      let text = '', pen = 'M';
      series.x.forEach((x, i) => {
        if (values[i] === null) { pen = 'M'; return; }
        text += `${pen}${this.toX(x).toFixed(1)} ${this.toY(values[i]).toFixed(1)}`;
        pen = 'L';
      });
      return text;
    }

    drawSeries(series, into) {
      const style = {stroke: color(series.index), 'stroke-dasharray': dash(series.index)};
      if (series.band) {
        // Segments between gaps become separate areas.
        let begin = 0;
        const close = (end) => {
          if (end > begin) {
            const point = (i, value) => `${this.toX(series.x[i]).toFixed(1)} ${this.toY(value[i]).toFixed(1)}`;
            const up = [], down = [];
            for (let i = begin; i < end; ++i) { up.push(point(i, series.largest)); down.unshift(point(i, series.least)); }
            into.append(element('path', {class: 'band', fill: color(series.index), stroke: color(series.index),
                                         d: 'M' + up.concat(down).join('L') + 'Z'}));
          }
          begin = end + 1;
        };
        series.mean.forEach((value, i) => { if (value === null) close(i); });
        close(series.mean.length);
      }
      into.append(element('path', {class: series.smooth ? 'curve raw' : 'curve', ...style,
                                   d: this.path(series, series.mean)}));
      if (series.smooth) into.append(element('path', {class: 'curve', ...style, d: this.path(series, series.smooth)}));
      if (series.x.length <= 60) {
        series.x.forEach((x, i) => {
          if (series.mean[i] === null) return;
          into.append(element('circle', {cx: this.toX(x), cy: this.toY(series.mean[i]), r: 2.4,
                                         fill: color(series.index)}));
        });
      }
      for (const i of series.other.keys()) {
        const x = this.toX(series.x[i]), y = this.box.top;
        into.append(element('line', {class: 'bad-line', x1: x, x2: x, y1: y, y2: this.box.bottom}),
                    element('path', {class: 'bad-mark', d: `M${x - 5} ${y}H${x + 5}L${x} ${y + 9}Z`}));
      }
    }

    // Restarts, checkpoints and warnings: a run may have `marks`, lists of {step, kind, text}.
    drawMarks(into) {
      data.runs.forEach((run, index) => {
        if (view.hidden.has(index)) return;
        for (const mark of run.marks || []) {
          const x = this.toX(placeOf(run, mark.step));
          if (x < this.box.left || x > this.box.right) continue;
          into.append(element('line', {class: 'mark ' + mark.kind, x1: x, x2: x, y1: this.box.top, y2: this.box.bottom}));
        }
      });
    }

    // The arrow keys move the cursor, and Escape shows the whole range.
    onKey(event) {
      const move = {ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10}[event.key];
      if (event.key === 'Escape') { view.range = null; redraw(); }
      if (!move || !this.box) return;
      event.preventDefault();
      const [from, to] = view.range || fullRange(), start = this.place === undefined ? to : this.place;
      this.place = Math.min(to, Math.max(from, start + move * (to - from) / 100));
      for (const chart of charts) chart.point(this.place);
      const bounds = this.svg.getBoundingClientRect();
      showTip(this, this.place, {clientX: bounds.left + this.toX(this.place), clientY: bounds.top + 30});
    }

    listen() {
      this.svg.addEventListener('keydown', (event) => this.onKey(event));
      this.svg.addEventListener('blur', () => {
        for (const chart of charts) chart.point(null);
        document.getElementById('tip').hidden = true;
      });
      let begin = null;
      const placeAt = (event) => {
        const bounds = this.svg.getBoundingClientRect();
        const pixel = Math.min(this.box.right, Math.max(this.box.left, event.clientX - bounds.left));
        return this.fromX(pixel);
      };
      this.svg.addEventListener('pointermove', (event) => {
        const place = placeAt(event);
        for (const chart of charts) chart.point(place);
        if (begin !== null) {
          const a = this.toX(Math.min(begin, place)), b = this.toX(Math.max(begin, place));
          this.selection.setAttribute('x', a);
          this.selection.setAttribute('width', b - a);
        }
        showTip(this, place, event);
      });
      this.svg.addEventListener('pointerleave', () => {
        for (const chart of charts) chart.point(null);
        document.getElementById('tip').hidden = true;
      });
      this.svg.addEventListener('pointerdown', (event) => {
        if (event.button !== 0 || event.pointerType === 'touch') return;
        begin = placeAt(event);
        this.svg.setPointerCapture(event.pointerId);
        event.preventDefault();
      });
      this.svg.addEventListener('pointerup', (event) => {
        if (begin === null) return;
        const end = placeAt(event), from = Math.min(begin, end), to = Math.max(begin, end);
        begin = null;
        if (this.toX(to) - this.toX(from) > 6) { view.range = [from, to]; }
        redraw();
      });
      this.svg.addEventListener('dblclick', () => { view.range = null; redraw(); });
    }

    nearest(series, place) {
      let i = 0, end = series.x.length - 1;
      if (end < 0) return -1;
      while (i < end) { const middle = (i + end) >> 1; if (series.x[middle] < place) i = middle + 1; else end = middle; }
      return i > 0 && place - series.x[i - 1] < series.x[i] - place ? i - 1 : i;
    }

    point(place) {
      this.dots.replaceChildren();
      this.cursor.setAttribute('visibility', place === null ? 'hidden' : 'visible');
      if (place === null) return;
      const x = this.toX(place);
      this.cursor.setAttribute('x1', x);
      this.cursor.setAttribute('x2', x);
      for (const series of this.series) {
        const i = this.nearest(series, place);
        const value = i < 0 ? null : (series.smooth || series.mean)[i];
        if (value === null) continue;
        this.dots.append(element('circle', {cx: this.toX(series.x[i]), cy: this.toY(value), r: 3.5,
                                            fill: color(series.index)}));
      }
    }
  }

  function showTip(chart, place, event) {
    const tip = document.getElementById('tip');
    tip.replaceChildren(element('div', {class: 'where'}, (view.axis === 'seconds' ? '' : view.axis + ' ') + axisText(place)));
    const table = element('table');
    for (const series of chart.series) {
      const i = chart.nearest(series, place);
      if (i < 0) continue;
      const steps = series.first[i] === series.steps[i] ? series.steps[i] : series.first[i] + '–' + series.steps[i];
      const row = element('tr', {}, element('td', {}, swatch(series.index), data.runs[series.index].name),
                          element('td', {}, 'step ' + steps));
      const value = element('td', {}, element('b', {}, series.mean[i] === null ? '' : chart.format(series.mean[i])));
      if (series.smooth && series.smooth[i] !== null) value.append('  smoothed ' + chart.format(series.smooth[i]));
      if (series.band && series.mean[i] !== null) {
        value.append('  (' + chart.format(series.least[i]) + ' to ' + chart.format(series.largest[i]) + ')');
      }
      if (series.other.has(i)) value.append(element('span', {class: 'bad'}, '  ' + series.other.get(i) + ' × NaN or infinite'));
      row.append(value);
      table.append(row);
    }
    tip.append(table);
    tip.hidden = false;
    const bounds = tip.getBoundingClientRect();
    const x = event.clientX + 16 + bounds.width > innerWidth ? event.clientX - 16 - bounds.width : event.clientX + 16;
    tip.style.left = Math.max(4, x) + 'px';
    tip.style.top = Math.min(event.clientY + 14, innerHeight - bounds.height - 6) + 'px';
  }

  function swatch(index) {
    const made = element('span', {class: 'swatch'});
    made.style.background = color(index);
    return made;
  }

  // The full range of the axis: all visible runs, from first to last step.
  function fullRange() {
    let low = Infinity, high = -Infinity;
    data.runs.forEach((run, index) => {
      const places = axisOf(run);
      if (view.hidden.has(index) || !places.length) return;
      low = Math.min(low, view.axis === 'step' ? run.positions.first[0] : places[0]);
      high = Math.max(high, places[places.length - 1]);
    });
    if (low > high) return [0, 1];
    return low === high ? [low - 0.5, high + 0.5] : [low, high];
  }

  function redraw() {
    document.getElementById('reset').hidden = view.range === null;
    for (const chart of charts) chart.draw();
  }

  function drawProblems() {
    const problems = document.getElementById('problems');
    problems.replaceChildren();
    for (const run of data.runs) {
      if (run.failure) problems.append(element('p', {class: 'problem'}, run.name + ': ' + run.failure));
      for (const warning of run.warnings) {
        problems.append(element('p', {class: 'warning', title: warning.advice},
                                run.name + ', step ' + number(warning.step) + ': ' + warning.text));
      }
      for (const note of run.notes) problems.append(element('p', {class: 'problem'}, run.name + ': ' + note));
    }
  }

  // Parts that the reader has opened stay open when the page draws them again.
  function openParts(section) {
    return new Set([...section.querySelectorAll('details[open] > summary')].map((summary) => summary.textContent));
  }
  function part(title, content, open) {
    const made = element('details', {}, element('summary', {}, title), content);
    made.open = open.has(title);
    return made;
  }

  // The texts that a run wrote, the newest first. Answers to one prompt in one step are in one group.
  function textGroups(run) {
    const groups = [];
    for (const text of run.texts) {
      const last = groups[groups.length - 1];
      if (last && last.step === text.step && last.prompt === text.prompt) last.texts.push(text);
      else groups.push({step: text.step, prompt: text.prompt, texts: [text]});
    }
    return groups.reverse();
  }

  function drawTexts() {
    const section = document.getElementById('texts'), open = openParts(section);
    section.replaceChildren();
    for (const run of data.runs) {
      if (!run.texts.length) continue;
      const groups = textGroups(run);
      const list = element('div', {class: 'texts'});
      for (const group of groups) {
        list.append(element('h3', {}, 'step ' + number(group.step)), element('pre', {class: 'prompt'}, group.prompt));
        for (const text of group.texts) {
          const rewards = Object.entries(text.rewards || {})
                              .map(([name, value]) => name + ' ' + (value === null ? 'none' : Number(value.toPrecision(4))));
          const facts = [...rewards, number(text.tokens) + ' tokens', ...(text.finished === false ? ['cut off'] : [])];
          list.append(element('div', {class: 'answer'}, element('p', {class: 'hint'}, facts.join(' · ')),
                              element('pre', {}, text.text)));
        }
      }
      section.append(part('Texts that ' + run.name + ' wrote', list, open));
    }
  }

  function settingsTable(names, rows) {
    const head = element('tr', {}, element('th', {}, 'setting'));
    names.forEach((name, i) => head.append(element('th', {}, swatch(name), data.runs[name].name)));
    const body = element('tbody');
    for (const [key, values] of rows) {
      const row = element('tr', {}, element('td', {}, key));
      for (const value of values) row.append(element('td', {}, value === null ? '–' : value));
      body.append(row);
    }
    return element('div', {class: 'table-holder'}, element('table', {}, element('thead', {}, head), body));
  }

  function drawSettings() {
    const section = document.getElementById('settings'), open = openParts(section);
    section.replaceChildren();
    const all = data.runs.map((run, index) => index);
    if (data.runs.length > 1) {
      section.append(element('h2', {}, 'What differs between the runs'));
      section.append(data.differences.length
                         ? settingsTable(all, data.differences.map((row) => [row.key, row.values]))
                         : element('p', {class: 'hint'}, 'Nothing but their names: the settings are the same.'));
    }
    data.runs.forEach((run, index) => {
      const rows = Object.entries(run.settings).map(([key, value]) => [key, [value]]);
      if (!rows.length) return;
      section.append(part('All settings of ' + run.name, settingsTable([index], rows), open));
    });
  }

  // Draws `shown`, the JSON of the report. Called again, it keeps the charts, their zoom and their place.
  function show(shown) {
    data = shown;
    const holder = document.getElementById('charts');
    const known = new Map(charts.map((chart) => [chart.name, chart]));
    charts.length = 0;
    for (const definition of data.charts) {
      const name = definition.key + (definition.evaluations ? ' of evaluations' : '');
      charts.push(known.get(name) || new Chart({...definition, id: nextId++}, name));
    }
    const holders = charts.map((chart) => chart.holder);
    if (holders.length !== holder.children.length || holders.some((each, i) => holder.children[i] !== each)) {
      holder.replaceChildren(...holders);
    }
    drawProblems();
    drawTexts();
    drawSettings();
    redraw();
  }

  function listenToControls() {
    document.getElementById('x-axis').addEventListener('change', (event) => {
      view.axis = event.target.value;
      view.range = null;
      redraw();
    });
    document.getElementById('smoothing').addEventListener('input', (event) => {
      view.smoothing = Number(event.target.value);
      document.getElementById('smoothing-value').textContent = view.smoothing === 0 ? 'off' : view.smoothing.toFixed(2);
      redraw();
    });
    document.getElementById('log-scale').addEventListener('change', (event) => { view.log = event.target.checked; redraw(); });
    document.getElementById('reset').addEventListener('click', () => { view.range = null; redraw(); });
    addEventListener('resize', redraw);
    // Draws again for printing, because only now is the width of the printed page known.
    addEventListener('beforeprint', () => { view.printing = true; redraw(); });
    addEventListener('afterprint', () => { view.printing = false; redraw(); });
  }

  return {element, number, trimmed, bytes, duration, percent, swatch, view, charts, show, redraw, listenToControls};
})();
