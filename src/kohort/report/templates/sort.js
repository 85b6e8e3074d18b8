document.querySelectorAll("table.stack").forEach(function (table) {
  var body = table.tBodies[0];
  if (!table.tHead || !body || body.rows.length < 3) return;
  Array.prototype.forEach.call(table.tHead.rows[0].cells, function (head, column) {
    var button = document.createElement("button"), rising = false;
    button.type = "button";
    while (head.firstChild) button.appendChild(head.firstChild);
    head.appendChild(button);
    button.addEventListener("click", function () {
      rising = !rising;
      Array.prototype.forEach.call(table.tHead.rows[0].cells, function (other) { other.removeAttribute("aria-sort"); });
      head.setAttribute("aria-sort", rising ? "ascending" : "descending");
      function text(row) {
        var cell = row.cells[column];
        if (!cell) return "";
        return (cell.firstChild ? cell.firstChild.textContent.trim() : "") || cell.textContent.trim();
      }
      function number(value) { return parseFloat(value.replace(/,/g, "")); }
      Array.prototype.slice.call(body.rows).map(function (row, place) { return [row, place]; }).sort(function (a, b) {
        var one = text(a[0]), other = text(b[0]), first = number(one), second = number(other), far;
        if (isNaN(first) || isNaN(second)) far = isNaN(first) - isNaN(second) || one.localeCompare(other);
        else far = first - second;
        return (rising ? far : -far) || a[1] - b[1];
      }).forEach(function (pair) { body.appendChild(pair[0]); });
    });
  });
});
