// Entries by words, by what they are of and found, and in other orders. Without this script all are there, the newest first.
const shelf = document.getElementById("entries");
const books = [...shelf.children].map((article) => {
  const own = { article, text: article.textContent.toLowerCase(), name: JSON.parse(article.dataset.name) };
  for (const name of ["kind", "upload", "method", "data", "finding"]) own[name] = JSON.parse(article.dataset[name]);
  return own;
});
if (books.length > 1) {
  const bar = document.createElement("div");
  const told = document.createElement("span");
  const words = document.createElement("input");
  bar.className = "tools";
  words.type = "search";
  words.placeholder = "name, method, finding …";
  words.setAttribute("aria-label", "Show results with these words");
  told.setAttribute("role", "status");
  told.className = "soft";
  bar.append(words);
  const choose = (label, options) => {
    const choice = document.createElement("select");
    choice.setAttribute("aria-label", label);
    choice.append(...options.map((text) => new Option(text)));
    choice.addEventListener("change", () => apply());
    bar.append(choice);
    return choice;
  };
  const choices = new Map();
  for (const [name, called] of [["kind", "kind"], ["upload", "upload"], ["method", "method"], ["data", "data set"], ["finding", "finding"]]) {
    const values = [...new Set(books.flatMap((book) => book[name]))].sort();
    if (values.length > 1) choices.set(name, choose(`Show results of this ${called}`, [`any ${called}`, ...values]));
  }
  const orders = new Map([
    ["newest first", (a, b) => b.article.dataset.made - a.article.dataset.made],
    ["oldest first", (a, b) => a.article.dataset.made - b.article.dataset.made],
    ["gravest finding first", (a, b) => a.article.dataset.gravity - b.article.dataset.gravity],
    ["by name", () => 0],
  ]);
  const order = choose("Order", [...orders.keys()]);
  const apply = () => {
    const wanted = words.value.toLowerCase().split(/\s+/).filter(Boolean);
    let count = 0;
    for (const book of books) {
      const shown = wanted.every((word) => book.text.includes(word)) &&
        [...choices].every(([name, choice]) => !choice.selectedIndex || book[name].includes(choice.value));
      book.article.hidden = !shown;
      count += shown;
    }
    told.textContent = `${count} of ${books.length} results`;
    books.sort((a, b) => orders.get(order.value)(a, b) || a.name.localeCompare(b.name, "en"));
    if (books.some((book, place) => shelf.children[place] !== book.article)) shelf.append(...books.map((book) => book.article));
  };
  words.addEventListener("input", apply);
  bar.append(told);
  shelf.before(bar);
  apply();
}
