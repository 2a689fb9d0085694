// What furo's pages lack for keys and screen readers: names of the two sidebars, and a stop of the
// Tab key at whatever scrolls sideways.
(() => {
  const NAMES = { ".sidebar-drawer": "Lessons", ".toc-drawer": "On this page" };
  const SCROLL = "article pre, article table, .table-wrapper, .text_html";

  function reachable(element) {
    const scrolls = element.scrollWidth > element.clientWidth;
    if (scrolls) element.tabIndex = 0;
    else element.removeAttribute("tabindex");
  }

  document.addEventListener("DOMContentLoaded", () => {
    for (const [selector, name] of Object.entries(NAMES)) {
      document.querySelector(selector)?.setAttribute("aria-label", name);
    }
    const watch = new ResizeObserver((seen) => seen.forEach(({ target }) => reachable(target)));
    document.querySelectorAll(SCROLL).forEach((element) => watch.observe(element));
  });
})();
