// Every header becomes a button that sorts the table by its column.
each(".sortable th", (header) => {
  const button = document.createElement("button");
  button.type = "button";
  button.append(...header.childNodes);
  header.append(button);
  button.addEventListener("click", () => sortRows(header.closest("table"), header));
});
