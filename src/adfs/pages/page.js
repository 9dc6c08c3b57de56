"use strict";
// Every curve and its band are SVG groups whose id begins with "curve-0-", "curve-1-", …; a checkbox shows or hides them.
for (const box of document.querySelectorAll("input[data-method]")) {
  const show = () => {
    for (const part of document.querySelectorAll(`[id^="curve-${box.dataset.method}-"]`)) {
      part.style.display = box.checked ? "" : "none";
    }
    box.parentElement.classList.toggle("off", !box.checked);
  };
  box.addEventListener("change", show);
  show(); // a browser may keep the boxes as they were before the page was loaded again
}
