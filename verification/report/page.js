// Optional: search, copy buttons, and unfolded details in print. The page is complete without it.
(() => {
  const all = (selector) => [...document.querySelectorAll(selector)];
  const articles = all("article.claim");
  const texts = new Map(articles.map((e) => [e.id, e.textContent.toLowerCase().replace(/_/g, " ")]));
  const box = document.getElementById("search");
  box.closest(".search").hidden = false;
  box.addEventListener("input", () => {
    const words = box.value.toLowerCase().replace(/_/g, " ").split(/\s+/).filter(Boolean);
    const missed = (id) => !words.every((word) => texts.get(id).includes(word));
    for (const e of articles) e.classList.toggle("missed", missed(e.id));
    for (const e of all(".entry")) e.classList.toggle("missed", missed(e.dataset.for));
    for (const e of all("details.contents")) e.open = words.length > 0;
    const hits = articles.filter((e) => !e.classList.contains("missed")).length;
    document.getElementById("hits").value = words.length ? `${hits} of ${articles.length}` : "";
  });
  if (navigator.clipboard) {
    for (const button of all("button.copy")) {
      button.hidden = false;
      button.addEventListener("click", async () => {
        await navigator.clipboard.writeText(button.previousElementSibling.textContent);
        button.textContent = "copied";
        setTimeout(() => { button.textContent = "copy"; }, 1500);
      });
    }
  }
  addEventListener("beforeprint", () => { for (const e of all("details.more")) e.open = true; });
})();
