// The theme's search is a dialog without a name, which a screen reader can't announce.
document.querySelectorAll(".md-search").forEach((one) => one.setAttribute("aria-label", "Search"));
