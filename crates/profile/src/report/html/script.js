// Tables sort by a click on a head; the numbers behind the texts are in data-v.
for (const head of document.querySelectorAll('table.sort th')) {
  head.tabIndex = 0;
  const sort = () => {
    const table = head.closest('table'), body = table.tBodies[0], at = head.cellIndex;
    const down = head.getAttribute('aria-sort') !== 'descending';
    for (const other of table.querySelectorAll('th')) other.removeAttribute('aria-sort');
    head.setAttribute('aria-sort', down ? 'descending' : 'ascending');
    const key = row => {
      const cell = row.cells[at], value = cell.dataset.v;
      return value === undefined ? cell.textContent : Number(value);
    };
    const order = (a, b) => a < b ? -1 : a > b ? 1 : 0;
    const rows = [...body.rows].sort((a, b) => order(key(a), key(b)) * (down ? -1 : 1));
    body.append(...rows);
  };
  head.addEventListener('click', sort);
  head.addEventListener('keydown', event => { if (event.key === 'Enter') sort(); });
}
