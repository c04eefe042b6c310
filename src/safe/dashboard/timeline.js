// The timeline of a pipeline: what each stage did in one step. Text from files is inserted only as text.
const PrimusTimeline = (() => {
  const {element, number, duration, percent, swatch} = PrimusCharts;
  const kinds = {
    F: {title: 'forward', color: '#2f6fde'},
    B: {title: 'backward', color: '#1f9d6b'},
    W: {title: 'weight gradients', color: '#14a3b8'},
    P: {title: 'waiting for other stages', color: '#d8a200'},
    S: {title: 'sums over ranks', color: '#b14fc5'},
  };
  const rowHeight = 26, barHeight = 20;
  const tables = new Map();  // by id of the run
  const steps = new Map();   // the chosen step of a run; none: the newest

  const timeOf = (microseconds) => microseconds < 1000 ? microseconds + ' µs'
      : microseconds < 1e6 ? (microseconds / 1000).toFixed(microseconds < 1e5 ? 1 : 0) + ' ms' : duration(microseconds / 1e6);

  // Sums of the durations by kind, and the idle rest.
  function sharesOf(stage) {
    const sums = {};
    for (const kind of Object.keys(kinds)) sums[kind] = 0;
    let busy = 0;
    for (const [kind, , , , length] of stage.spans) {
      sums[kind] += length;
      busy += length;
    }
    return {...sums, idle: Math.max(0, stage.microseconds - busy)};
  }

  // All stages end a step together, so the end is the common time.
  function draw(canvas, table) {
    const longest = Math.max(1, ...table.stages.map((stage) => stage.microseconds));
    const width = canvas.clientWidth || 900, scale = window.devicePixelRatio || 1;
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(table.stages.length * rowHeight * scale);
    const context = canvas.getContext('2d');
    context.setTransform(scale, 0, 0, scale, 0, 0);
    const idle = getComputedStyle(canvas).getPropertyValue('--grid') || '#ddd';
    table.stages.forEach((stage, row) => {
      const at = (microseconds) => (microseconds - stage.microseconds + longest) / longest * width;
      const top = row * rowHeight + (rowHeight - barHeight) / 2;
      context.fillStyle = idle;
      context.fillRect(at(0), top, width - at(0), barHeight);
      for (const [kind, chunk, microbatch, begin, length] of stage.spans) {
        const left = at(begin), wide = Math.max(0.5, at(begin + length) - left);
        context.globalAlpha = kind === 'F' || kind === 'B' || kind === 'W' ? 1 - 0.3 * (microbatch % 2) : 1;
        context.fillStyle = kinds[kind].color;
        context.fillRect(left, top, wide, barHeight);
        context.globalAlpha = 1;
        if (wide < 22 || !'FBW'.includes(kind)) continue;
        context.fillStyle = '#fff';
        context.font = '11px system-ui, sans-serif';
        context.fillText(kind + microbatch + (chunk ? '.' + chunk : ''), left + 3, top + 14, wide - 4);
      }
    });
    return longest;
  }

  function describe(stage, microseconds) {
    const span = stage.spans.find(([, , , begin, length]) => begin <= microseconds && microseconds < begin + length);
    if (!span) return 'idle';
    const [kind, chunk, microbatch, begin, length] = span;
    const of = 'FBW'.includes(kind) ? ` of microbatch ${microbatch}` + (chunk ? `, chunk ${chunk}` : '') : '';
    return `${kinds[kind].title}${of}, ${timeOf(length)} from ${timeOf(begin)}`;
  }

  function listen(canvas, table, longest) {
    const tip = document.getElementById('tip'), cursor = {row: 0, share: 0.5};
    const show = (x, y) => {
      const stage = table.stages[Math.min(table.stages.length - 1, Math.max(0, cursor.row))];
      const at = Math.min(1, Math.max(0, cursor.share)) * longest - longest + stage.microseconds;
      tip.replaceChildren(element('div', {class: 'where'}, `stage ${stage.stage} (rank ${stage.rank})`),
                          element('div', {}, at < 0 ? 'before the step' : describe(stage, at)));
      tip.hidden = false;
      tip.style.left = Math.max(4, Math.min(x + 14, innerWidth - tip.offsetWidth - 6)) + 'px';
      tip.style.top = Math.min(y + 14, innerHeight - tip.offsetHeight - 6) + 'px';
    };
    const hide = () => { tip.hidden = true; };
    canvas.addEventListener('pointermove', (event) => {
      const bounds = canvas.getBoundingClientRect();
      cursor.share = (event.clientX - bounds.left) / bounds.width;
      cursor.row = Math.floor((event.clientY - bounds.top) / bounds.height * table.stages.length);
      show(event.clientX, event.clientY);
    });
    canvas.addEventListener('pointerleave', hide);
    canvas.addEventListener('blur', hide);
    canvas.addEventListener('keydown', (event) => {
      const move = {ArrowLeft: [-0.01, 0], ArrowRight: [0.01, 0], ArrowUp: [0, -1], ArrowDown: [0, 1]}[event.key];
      if (!move) return;
      event.preventDefault();
      cursor.share = Math.min(1, Math.max(0, cursor.share + move[0]));
      cursor.row = Math.min(table.stages.length - 1, Math.max(0, cursor.row + move[1]));
      const bounds = canvas.getBoundingClientRect();
      show(bounds.left + cursor.share * bounds.width, bounds.top + (cursor.row + 0.5) / table.stages.length * bounds.height);
    });
  }

  function chooser(run, table, reload) {
    const select = element('select', {'aria-label': 'recorded step'});
    for (const step of table.steps) {
      const option = element('option', {value: String(step)}, 'step ' + number(step));
      option.selected = step === table.step;
      select.append(option);
    }
    select.addEventListener('change', () => {
      const step = Number(select.value);
      if (step === table.steps[0]) steps.delete(run.id); else steps.set(run.id, step);
      reload();
    });
    return select;
  }

  function sharesTable(table) {
    const titles = [...Object.values(kinds).map((kind) => kind.title), 'idle'];
    const head = element('tr', {}, element('th', {class: 'left'}, 'stage'), ...titles.map((title, i) => {
      const kind = Object.values(kinds)[i], key = element('span', {class: 'swatch'});
      if (kind) key.style.background = kind.color;
      return element('th', {}, ...(kind ? [key] : []), title);
    }), element('th', {}, 'step'));
    const body = element('tbody');
    for (const stage of table.stages) {
      const shares = sharesOf(stage), whole = Math.max(1, stage.microseconds);
      body.append(element('tr', {}, element('td', {class: 'left'}, String(stage.stage)),
                          ...[...Object.keys(kinds), 'idle'].map((kind) => element('td', {}, percent(Math.round(1000 * shares[kind] / whole) / 1000))),
                          element('td', {}, timeOf(stage.microseconds))));
    }
    return element('div', {class: 'table-holder'}, element('table', {class: 'stages'}, element('thead', {}, head), body));
  }

  function drawAll(section, runs, reload) {
    // A redraw must not close an open list of steps.
    if (section.contains(document.activeElement) && document.activeElement.tagName === 'SELECT') return;
    section.replaceChildren();
    for (const [index, run] of runs.entries()) {
      const table = tables.get(run.id);
      if (!table || !table.stages.length) continue;
      const canvas = element('canvas', {class: 'timeline', role: 'img', tabindex: 0,
                                        'aria-label': `work of ${table.stages.length} stages in step ${table.step} of ${run.name}`});
      canvas.style.height = table.stages.length * rowHeight + 'px';
      section.append(element('div', {class: 'panel'},
          element('h3', {}, swatch(index), 'Pipeline of ' + run.name, element('span', {}, chooser(run, table, reload))), canvas,
          element('p', {class: 'legend'}, `stage ${table.stages[0].stage} at the top; all stages end together, at the right` +
              (table.missing ? `; ${table.missing} stages have no record of this step` : '') +
              (table.stages.some((stage) => stage.left_out) ? '; a part of the work is left out' : '')),
          sharesTable(table)));
      listen(canvas, table, draw(canvas, table));
    }
  }

  // Fetches the timelines of these runs, and draws them.
  async function load(fetched, section, runs) {
    const reload = () => { document.activeElement.blur(); load(fetched, section, runs); };
    for (const run of runs) {
      const step = steps.get(run.id);
      try {
        tables.set(run.id, await fetched('api/timeline?run=' + run.id + (step === undefined ? '' : '&step=' + step)));
      } catch (error) {
        tables.delete(run.id);
      }
    }
    drawAll(section, runs, reload);
  }

  return {load};
})();
