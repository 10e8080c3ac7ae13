"use strict";
// Additions to pages that work without a script.

for (const field of document.querySelectorAll("select[data-submit]")) {
  field.addEventListener("change", () => field.form.requestSubmit());
}
for (const time of document.querySelectorAll("time[datetime]")) {
  time.title = new Date(time.dateTime).toLocaleString();
}
// "/" moves the focus to the search field, as on many sites.
document.addEventListener("keydown", (event) => {
  const isTyping = event.target.closest("input, textarea, select, [contenteditable]");
  if (event.key === "/" && !isTyping && !event.ctrlKey && !event.metaKey && !event.altKey) {
    const field = document.querySelector("[data-search]");
    if (field) {
      event.preventDefault();
      field.focus();
    }
  }
});

// Memory, topics, changes

// Recall preview, conversations
