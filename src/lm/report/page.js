// Draws the report from the JSON in the page.
(() => {
  const {element, number, duration, swatch, view, show, redraw, listenToControls} = PrimusCharts;
  const data = JSON.parse(document.getElementById('data').textContent);

  function drawRuns() {
    const columns = [['run', (run, i) => [swatch(i), run.name]],
                     ['state', (run) => [element('span', {class: 'state ' + run.state}, [run.state, run.reason, run.next].filter(Boolean).join(', '))]],
                     ['step', (run) => [run.steps ? number(run.step) + ' / ' + number(run.steps) : number(run.step)]],
                     ['loss', (run) => [run.loss === null ? run.loss_text || '–' : run.loss.toFixed(4)]],
                     ['best validation', (run) => [run.best_validation ? run.best_validation.loss.toFixed(4) + ' at step ' +
                                                   number(run.best_validation.step) : '–']],
                     ['tokens/s', (run) => [run.tokens_per_second === null ? '–' : number(run.tokens_per_second)]],
                     ['training time', (run) => [duration(run.seconds)]]];
    if (data.runs.some((run) => run.restarts !== undefined)) {
      columns.push(['restarts', (run) => [run.restarts === undefined ? '–' : number(run.restarts)]],
                   ['goodput', (run) => run.goodput === undefined ? ['–'] :
                    [element('span', {title: run.times_text}, (100 * run.goodput).toFixed(1) + ' %')]]);
    }
    const table = document.getElementById('runs');
    const head = element('tr');
    for (const [title] of columns) head.append(element('th', title === 'state' ? {class: 'left'} : {}, title));
    const body = element('tbody');
    data.runs.forEach((run, index) => {
      const row = element('tr', {title: run.folder + ' (click to hide or show)'});
      for (const [title, cells] of columns) {
        row.append(element('td', title === 'state' ? {class: 'left'} : {}, ...cells(run, index)));
      }
      row.addEventListener('click', () => {
        if (!view.hidden.delete(index)) view.hidden.add(index);
        row.classList.toggle('hidden-run', view.hidden.has(index));
        redraw();
      });
      body.append(row);
    });
    table.append(element('thead', {}, head), body);
  }

  drawRuns();
  const count = data.runs.length;
  document.getElementById('subtitle').textContent =
      (count === 1 ? data.runs[0].folder : count + ' runs') + ' · ' + data.generated;
  document.title = 'Training report: ' + (count === 1 ? data.runs[0].name : count + ' runs');
  document.getElementById('footer').textContent = 'Made by primus ' + data.version +
      '. Long runs are drawn as the mean of neighbouring steps, with their least and largest values as a band; ' +
      'red marks are steps whose value was NaN or infinite.';
  listenToControls();
  show(data);
})();
