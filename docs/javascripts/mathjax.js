// Typeset what pymdownx.arithmatex marks as mathematics, also after instant navigation.
window.MathJax = {
  tex: { inlineMath: [["\\(", "\\)"]], displayMath: [["\\[", "\\]"]], processEscapes: true },
  options: { ignoreHtmlClass: ".*|", processHtmlClass: "arithmatex" },
};
document$.subscribe(() => MathJax.startup?.promise?.then(() => MathJax.typesetPromise()));
