for (const slider of document.querySelectorAll(".slider input")) {
  const show = () => slider.parentElement.style.setProperty("--split", slider.value + "%");
  slider.addEventListener("input", show);
  show();
}
addEventListener("beforeprint", () => {
  for (const details of document.querySelectorAll(".origins, .long")) details.open = true;
});
