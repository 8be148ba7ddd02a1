// The bug lab's choice in words: what the picked fault does. The value is the fault's key.

const sentence = element.querySelector("p");
const say = () => { sentence.textContent = props.page.sentences[props.value] ?? ""; };
watch("value", say);
say();
document.dispatchEvent(new CustomEvent("kshipra:lab")); // the accordion's button is made when it is first opened
