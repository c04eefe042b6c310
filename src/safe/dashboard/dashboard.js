// The page of 'primus dashboard'. Text from files is inserted only as text, never as HTML.
(() => {
  const {element, number, trimmed, bytes, duration, percent, swatch, view, show, redraw, listenToControls} = PrimusCharts;
  const maxChosen = 8;
  const runs = new Map();  // by id
  const events = new Map();  // of the chosen runs, by id
  const chosen = [];  // ids
  const heat = {field: 'seconds', tables: new Map()};
  let report = {runs: [], charts: [], differences: []};
  let order = {key: 'age', down: false};
  let serverVersion = '';

  const byId = (id) => document.getElementById(id);
  async function fetched(path) {
    const answer = await fetch(path);
    if (!answer.ok) throw new Error((await answer.text()).trim() || answer.statusText);
    return answer.json();
  }
  const time = (seconds) => new Date(1000 * seconds).toISOString().replace('T', ' ').slice(0, 19);

  // ---- The list of runs

  const columns = [
    {key: 'name', title: 'run', left: true, value: (run) => run.name},
    {key: 'state', title: 'state', left: true, value: (run) => [run.state, run.reason, run.next].filter(Boolean).join(', '),
     show: (run, text) => element('span', {class: 'state ' + run.state, title: run.failure || run.problem}, text)},
    {key: 'step', title: 'step', value: (run) => run.step,
     show: (run) => run.steps ? number(run.step) + ' / ' + number(run.steps) : number(run.step)},
    {key: 'loss', title: 'loss', value: (run) => run.loss === null ? Infinity : run.loss,
     show: (run) => run.loss === null ? run.loss_text || '–' : run.loss.toFixed(4)},
    {key: 'validation', title: 'validation', value: (run) => run.validation_loss === null ? Infinity : run.validation_loss,
     show: (run) => run.validation_loss === null ? '–' : run.validation_loss.toFixed(4)},
    {key: 'speed', title: 'tokens/s', value: (run) => -(run.tokens_per_second_per_device || 0),
     show: (run) => number(run.tokens_per_second_per_device) || '–'},
    {key: 'goodput', title: 'goodput', value: (run) => -(run.goodput || 0),
     show: (run) => run.goodput === null ? '–' : percent(run.goodput)},
    {key: 'restarts', title: 'restarts', value: (run) => -(run.restarts || 0),
     show: (run) => run.restarts === null ? '–' : String(run.restarts)},
    {key: 'age', title: 'changed', value: (run) => age(run), show: (run) => duration(Math.round(age(run))) + ' ago'},
    {key: 'event', title: 'last event', left: true, value: (run) => run.newest_event,
     show: (run, text) => element('span', {class: 'long', title: text}, text || '–')},
  ];
  const age = (run) => run.age_seconds + (Date.now() - run.received) / 1000;

  function shownRuns() {
    const words = byId('filter').value.toLowerCase().split(/\s+/).filter(Boolean);
    const column = columns.find((each) => each.key === order.key);
    const list = [...runs.values()].filter((run) => {
      const text = (run.name + ' ' + run.state + ' ' + run.reason).toLowerCase();
      return words.every((word) => text.includes(word));
    });
    const compare = (a, b) => {
      const x = column.value(a), y = column.value(b);
      return (x < y ? -1 : x > y ? 1 : 0) * (order.down ? -1 : 1) || (a.name < b.name ? -1 : 1);
    };
    return list.sort(compare);
  }

  function drawList() {
    const table = byId('list');
    const focused = document.activeElement && document.activeElement.dataset ? document.activeElement.dataset.id : undefined;
    const head = element('tr');
    for (const column of columns) {
      const button = element('button', {type: 'button', 'data-id': 'sort ' + column.key}, column.title);
      button.addEventListener('click', () => {
        order = {key: column.key, down: order.key === column.key && !order.down};
        drawList();
      });
      const sorted = order.key === column.key ? (order.down ? 'descending' : 'ascending') : 'none';
      head.append(element('th', {...(column.left ? {class: 'left'} : {}), 'aria-sort': sorted}, button));
    }
    const body = element('tbody');
    for (const run of shownRuns()) {
      const place = chosen.indexOf(run.id);
      const row = element('tr', {title: run.folder, ...(place >= 0 ? {class: 'chosen'} : {})});
      const box = element('input', {type: 'checkbox', 'data-id': run.id, 'aria-label': 'show ' + run.name});
      box.checked = place >= 0;
      box.disabled = place < 0 && chosen.length >= maxChosen;
      box.addEventListener('click', (event) => event.stopPropagation());
      box.addEventListener('change', () => choose(run.id, box.checked));
      for (const column of columns) {
        const text = column.value(run);
        const cell = element('td', column.left ? {class: 'left'} : {}, column.show ? column.show(run, text) : text);
        if (column.key === 'name') cell.prepend(...(place >= 0 ? [box, swatch(place)] : [box]));
        row.append(cell);
      }
      row.addEventListener('click', () => { if (!box.disabled) choose(run.id, !box.checked); });
      body.append(row);
    }
    table.replaceChildren(element('thead', {}, head), body);
    if (focused) for (const each of table.querySelectorAll('[data-id]')) if (each.dataset.id === focused) each.focus();
    const running = [...runs.values()].filter((run) => run.state === 'running').length;
    byId('subtitle').textContent = runs.size + (runs.size === 1 ? ' run, ' : ' runs, ') + running + ' running' + connection;
    document.title = (running ? '▶ ' : '') + 'Primus dashboard';
  }

  function choose(id, on) {
    const place = chosen.indexOf(id);
    if (on && place < 0 && chosen.length < maxChosen) chosen.push(id);
    if (!on && place >= 0) chosen.splice(place, 1);
    view.range = null;
    history.replaceState(null, '', chosen.length ? '#' + chosen.join(',') : '#');
    drawList();
    load(true);
  }

  // ---- The chosen runs

  // At most one request is under way; a change in between leads to one more. The data of a run that is being read, or
  // that trains, is fetched at most once a second.
  let loading = false, again = false, loaded = 0;
  async function load(urgent) {
    if (urgent) loaded = 0;
    if (loading) { again = true; return; }
    loading = true;
    do {
      again = false;
      for (let left; (left = loaded + 1000 - Date.now()) > 0;) await new Promise((resume) => setTimeout(resume, Math.min(left, 50)));
      byId('chosen').hidden = chosen.length === 0;
      if (!chosen.length) { byId('problems').replaceChildren(); break; }
      const ids = [...chosen];
      try {
        const [next, ...lists] = await Promise.all(
            [fetched('api/report?runs=' + ids.join(',')), ...ids.map((id) => fetched('api/events?run=' + id))]);
        lists.forEach((list) => events.set(list.id, list.events));
        if (ids.join() === chosen.join()) drawChosen(next);
        loadRanks(ids);
      } catch (error) {
        byId('problems').replaceChildren(element('p', {class: 'problem'}, String(error.message || error)));
      }
      loaded = Date.now();
    } while (again);
    loading = false;
  }

  function marksOf(id) {
    const marks = [];
    for (const event of events.get(id) || []) {
      if (event.kind === 'begin' && event.step > 0) marks.push({step: event.step, kind: 'restart'});
      if (event.void) continue;
      if (event.kind === 'checkpoint' && event.text.startsWith('durable')) marks.push({step: event.step, kind: 'checkpoint'});
      if (event.kind === 'warning' || event.kind === 'fault') marks.push({step: event.step, kind: event.kind});
    }
    return marks;
  }

  function drawChosen(next) {
    report = next;
    for (const run of report.runs) run.marks = marksOf(run.id);
    show(report);
    drawProgress();
    drawGoodput();
    drawEvents();
    if (view.range) loadRange();
  }

  function drawProgress() {
    for (const run of report.runs) {
      if (run.progress >= 1) continue;
      byId('problems').append(element('p', {class: 'hint'},
          run.name + ': ' + Math.floor(100 * run.progress) + ' % of the records are read; until then, the curves are samples'));
    }
  }

  // After a zoom, the server reads the visible steps again, with more points.
  let zoomTimer = null, zoomed = '';
  function loadRange() {
    clearTimeout(zoomTimer);
    zoomTimer = setTimeout(async () => {
      if (!view.range || view.axis !== 'step' || report.runs.every((run) => run.steps_per_point === 1)) return;
      const [from, to] = [Math.max(0, Math.floor(view.range[0])), Math.max(0, Math.ceil(view.range[1]))];
      const ids = report.runs.map((run) => run.id).join(',');
      const parts = await fetched(`api/range?runs=${ids}&from=${from}&to=${to}`);
      if (!view.range || ids !== report.runs.map((run) => run.id).join(',')) return;
      zoomed = ids;
      parts.runs.forEach((part, i) => { if (part.positions) report.runs[i] = {...report.runs[i], ...part, whole: report.runs[i].whole || report.runs[i]}; });
      redraw();
    }, 150);
  }
  function endRange() {
    if (!zoomed) return;
    zoomed = '';
    report.runs = report.runs.map((run) => run.whole || run);
    redraw();
  }

  const lostColors = ['#d6336c', '#d8a200', '#e8702a', '#b14fc5', '#14a3b8', '#6b7a8f', '#8a5a3b', '#7a9a01'];
  function drawGoodput() {
    const section = byId('goodput');
    section.replaceChildren();
    for (const [index, run] of report.runs.entries()) {
      if (!run.times) continue;
      const wall = run.times.wall || 1;
      const parts = Object.entries(run.times).filter(([name]) => name !== 'wall');
      const bar = element('div', {class: 'shares', role: 'img', 'aria-label': run.times_text});
      const legend = element('div', {class: 'legend'});
      parts.forEach(([name, seconds], i) => {
        const share = element('span', {title: name + ' ' + percent(seconds / wall)});
        share.style.width = 100 * seconds / wall + '%';
        share.style.background = name === 'useful' ? '#1f9d6b' : lostColors[(i - 1) % lostColors.length];
        bar.append(share);
        const key = element('span', {class: 'swatch'});
        key.style.background = share.style.background;
        if (seconds > 0) legend.append(element('span', {}, key, name.replaceAll('_', ' ') + ' ' + percent(seconds / wall) + ' (' + duration(seconds) + ')'));
      });
      section.append(element('div', {class: 'panel'},
          element('h3', {}, swatch(index), 'Where the time went: ' + run.name, element('span', {}, run.restarts + ' restarts in ' + duration(wall))),
          bar, legend));
    }
  }

  function drawEvents() {
    const section = byId('events');
    const scrolled = new Map([...section.querySelectorAll('.events-holder')].map((each) => [each.dataset.id, each.scrollTop]));
    section.replaceChildren();
    for (const [index, run] of report.runs.entries()) {
      const list = events.get(run.id) || [];
      if (!list.length) continue;
      const body = element('tbody');
      for (const event of list) {
        body.append(element('tr', {class: 'kind-' + event.kind.replace(/[^a-z_]/g, '') + (event.void ? ' void' : ''),
                                   ...(event.void ? {title: 'a restart has repeated this step'} : {})},
                            element('td', {}, time(event.time)), element('td', {}, number(event.step)),
                            element('td', {}, event.kind.replaceAll('_', ' ')),
                            element('td', {}, [event.cause, event.text].filter(Boolean).join(': '))));
      }
      const head = element('thead', {}, element('tr', {}, ...['time (UTC)', 'step', 'event', 'what happened'].map((text) => element('th', {class: 'left'}, text))));
      const holder = element('div', {class: 'table-holder events-holder', tabindex: 0, 'data-id': run.id}, element('table', {}, head, body));
      section.append(element('h2', {}, swatch(index), 'Events of ' + run.name), holder);
      holder.scrollTop = scrolled.get(run.id) || 0;
    }
  }

  // ---- The table of ranks and steps

  const heatFields = {
    seconds: {title: 'step time', format: (value) => duration(value), relative: true},
    wait: {title: 'share of waiting for data', format: percent},
    memory: {title: 'memory', format: bytes},
  };
  let ranksLoaded = {};
  async function loadRanks(ids) {
    if (ranksLoaded.ids === ids.join() && Date.now() < ranksLoaded.time + 3000) return;
    ranksLoaded = {ids: ids.join(), time: Date.now()};
    for (const id of ids) {
      try {
        heat.tables.set(id, await fetched('api/ranks?run=' + id));
      } catch (error) {
        heat.tables.delete(id);
      }
    }
    drawRanks();
    PrimusTimeline.load(fetched, byId('timeline'), report.runs);
  }

  function heatColor(share) {
    // From blue through green and yellow to red; readable on light and dark pages.
    const stops = [[44, 90, 160], [40, 150, 140], [120, 180, 80], [235, 190, 50], [215, 60, 50]];
    const place = Math.min(0.9999, Math.max(0, share)) * (stops.length - 1), i = Math.floor(place), part = place - i;
    return stops[i].map((value, k) => Math.round(value + part * (stops[i + 1][k] - value)));
  }

  function drawRanks() {
    const section = byId('ranks');
    section.replaceChildren();
    const field = heatFields[heat.field];
    for (const [index, run] of report.runs.entries()) {
      const table = heat.tables.get(run.id);
      if (!table || !table.ranks.length) continue;
      const values = table.ranks.flatMap((rank) => rank[heat.field].filter((value) => value !== null));
      const select = element('select', {'aria-label': 'what the colors show'});
      for (const [key, each] of Object.entries(heatFields)) {
        const option = element('option', {value: key}, each.title);
        option.selected = key === heat.field;
        select.append(option);
      }
      select.addEventListener('change', () => { heat.field = select.value; drawRanks(); });
      const panel = element('div', {class: 'panel'}, element('h3', {}, swatch(index), 'Ranks of ' + run.name, element('span', {}, select)));
      section.append(panel);
      if (!values.length) { panel.append(element('p', {class: 'hint'}, 'no values')); continue; }
      const sorted = [...values].sort((a, b) => a - b);
      // A few very slow steps must not hide the differences between the others.
      const low = sorted[0], high = sorted[Math.floor(0.995 * (sorted.length - 1))];
      const width = Math.max(...table.ranks.map((rank) => rank[heat.field].length));
      const canvas = element('canvas', {width, height: table.ranks.length, role: 'img', tabindex: 0,
                                        'aria-label': field.title + ' by rank and step of ' + run.name});
      canvas.style.height = Math.min(480, Math.max(14 * table.ranks.length, 28)) + 'px';
      const context = canvas.getContext('2d'), image = context.createImageData(width, table.ranks.length);
      table.ranks.forEach((rank, row) => rank[heat.field].forEach((value, column) => {
        if (value === null) return;
        const share = high > low ? (value - low) / (high - low) : 0;
        image.data.set([...heatColor(share), 255], 4 * (row * width + column));
      }));
      context.putImageData(image, 0, 0);
      listenToHeat(canvas, table, width);
      panel.append(canvas, element('p', {class: 'legend'},
          `rank ${table.ranks[0].rank} at the top to ${table.ranks[table.ranks.length - 1].rank}; ` +
          `steps 1 to ${number(width * table.steps_per_column)}, ${number(table.steps_per_column)} in a column, the largest value of each; ` +
          `blue ${field.format(low)}, red ${field.format(high)}` + (table.left_out ? `; ${table.left_out} ranks are left out` : '')),
          slowest(table));
    }
  }

  // The ranks whose step time without waiting stands out.
  function slowest(table) {
    const means = table.ranks.map((rank) => {
      const values = rank.seconds.map((value, i) => value === null ? null : value * (1 - (rank.wait[i] || 0))).filter((value) => value !== null);
      return {rank: rank.rank, mean: values.reduce((sum, value) => sum + value, 0) / Math.max(1, values.length)};
    });
    const sorted = means.map((each) => each.mean).sort((a, b) => a - b), median = sorted[Math.floor(sorted.length / 2)];
    const slow = means.filter((each) => each.mean > 1.1 * median).sort((a, b) => b.mean - a.mean).slice(0, 5);
    const text = slow.map((each) => `rank ${each.rank} (${percent(each.mean / median - 1)} above the median)`).join(', ');
    return element('p', {class: slow.length ? 'warning' : 'hint'}, slow.length ? 'Slow: ' + text : '');
  }

  function listenToHeat(canvas, table, width) {
    const tip = byId('tip');
    const showCell = (column, row, x, y) => {
      const rank = table.ranks[Math.min(table.ranks.length - 1, Math.max(0, row))];
      column = Math.min(width - 1, Math.max(0, column));
      const first = column * table.steps_per_column + 1, last = first + table.steps_per_column - 1;
      const lines = Object.entries(heatFields).filter(([key]) => rank[key][column] !== null && rank[key][column] !== undefined)
                        .map(([key, each]) => element('div', {}, each.title + ' ' + each.format(rank[key][column])));
      tip.replaceChildren(element('div', {class: 'where'}, `rank ${rank.rank}, step ${first === last ? first : first + '–' + last}`), ...lines);
      tip.hidden = false;
      tip.style.left = Math.max(4, Math.min(x + 14, innerWidth - tip.offsetWidth - 6)) + 'px';
      tip.style.top = Math.min(y + 14, innerHeight - tip.offsetHeight - 6) + 'px';
    };
    const hide = () => { tip.hidden = true; };
    const cell = {column: width - 1, row: 0};
    canvas.addEventListener('pointermove', (event) => {
      const bounds = canvas.getBoundingClientRect();
      cell.column = Math.floor((event.clientX - bounds.left) / bounds.width * width);
      cell.row = Math.floor((event.clientY - bounds.top) / bounds.height * table.ranks.length);
      showCell(cell.column, cell.row, event.clientX, event.clientY);
    });
    canvas.addEventListener('pointerleave', hide);
    canvas.addEventListener('blur', hide);
    canvas.addEventListener('keydown', (event) => {
      const move = {ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1]}[event.key];
      if (!move) return;
      event.preventDefault();
      cell.column = Math.min(width - 1, Math.max(0, cell.column + move[0]));
      cell.row = Math.min(table.ranks.length - 1, Math.max(0, cell.row + move[1]));
      const bounds = canvas.getBoundingClientRect();
      showCell(cell.column, cell.row, bounds.left + (cell.column + 0.5) / width * bounds.width,
               bounds.top + (cell.row + 0.5) / table.ranks.length * bounds.height);
    });
  }

  // ---- Live changes

  let connection = '';
  function listen() {
    const stream = new EventSource('api/stream');
    let listTimer = null;
    stream.addEventListener('run', (event) => {
      const run = JSON.parse(event.data);
      runs.set(run.id, {...run, received: Date.now()});
      if (!listTimer) listTimer = setTimeout(() => { listTimer = null; drawList(); }, 250);
      if (chosen.includes(run.id)) load();
    });
    stream.addEventListener('removed', (event) => {
      const id = JSON.parse(event.data).id;
      runs.delete(id);
      if (chosen.includes(id)) choose(id, false);
      drawList();
    });
    // After a lost connection, changes may have been missed.
    stream.addEventListener('open', () => { if (connection) { connection = ''; begin(); } });
    stream.addEventListener('error', () => { connection = ' · connection lost, trying again'; drawList(); });
  }

  async function begin() {
    const first = await fetched('api/runs');
    serverVersion = first.version;
    runs.clear();
    for (const run of first.runs) runs.set(run.id, {...run, received: Date.now()});
    const wanted = location.hash.slice(1).split(',').filter((id) => runs.has(id));
    chosen.length = 0;
    chosen.push(...wanted.slice(0, maxChosen));
    if (!chosen.length && runs.size) {
      const newest = [...runs.values()].sort((a, b) => (b.state === 'running') - (a.state === 'running') || age(a) - age(b));
      chosen.push(newest[0].id);
    }
    drawList();
    byId('footer').textContent = 'primus ' + serverVersion +
        '. Long runs are drawn as the mean of neighbouring steps, with their least and largest values as a band; ' +
        'red marks are steps whose value was NaN or infinite. Lines across a chart: dotted checkpoint, yellow warning, red restart or fault.';
    for (const note of first.notes) byId('problems').append(element('p', {class: 'problem'}, note));
    await load(true);
  }

  listenToControls();
  byId('filter').addEventListener('input', drawList);
  byId('show-marks').addEventListener('change', (event) => byId('charts').classList.toggle('hide-marks', !event.target.checked));
  // The charts set view.range; afterwards the points of the visible steps are fetched.
  for (const kind of ['pointerup', 'dblclick', 'click', 'keyup', 'change']) {
    byId('chosen').addEventListener(kind, () => { view.range ? loadRange() : endRange(); });
  }
  setInterval(drawList, 5000);
  begin().then(listen, (error) => { byId('subtitle').textContent = String(error.message || error); setTimeout(() => location.reload(), 5000); });
})();
